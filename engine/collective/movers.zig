//! Movers: the three ways that the data of one operation can take; an attempt uses one of them. All
//! movers have the same functions, so a caller need not know which mover is active. The memory of
//! all three is reserved at the start: broken links and measured rates may change the schedule of a
//! call, which must not fail for want of memory then.

const std = @import("std");
const plan = @import("plan");
const board_file = @import("board.zig");
const Board = board_file.Board;
const Direct = @import("direct.zig").Direct;
const Message = @import("message.zig").Message;
const Partition = @import("partition.zig").Partition;
const Ring = @import("ring.zig").Ring;
const Allocator = std.mem.Allocator;

pub const Movers = struct {
    active: plan.figures.Way = .ring,
    ring: Ring,
    direct: Direct,
    message: Message = .{},

    /// Makes the movers, whose lists are in `arena`.
    pub fn init(
        arena: Allocator,
        partition: *const Partition,
        members_max: u32,
        slots: usize,
    ) Allocator.Error!Movers {
        return .{
            .ring = try .init(arena, partition, slots),
            .direct = try .init(arena, partition, members_max, slots),
        };
    }

    /// Chooses the mover of an attempt that begins, and resets all movers.
    pub fn choose(movers: *Movers, b: *const Board) void {
        const is_message = b.ledger.descriptor.kind == .send_recv;
        movers.active = if (is_message) .message else switch (b.schedule) {
            .ring => .ring,
            .direct => .direct,
        };
        movers.ring.reset();
        movers.direct.reset();
        movers.message.reset();
    }

    /// The number of frames that other members need for private results: one for each piece that
    /// goes on from here.
    pub fn owed(movers: *const Movers, b: *const Board) u64 {
        const l = &b.ledger;
        var frames: u64 = 0;
        for (0..l.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (l.is_done(chunk)) continue;
            if (movers.ask(b, .passes_here, .{chunk})) frames += l.partition.pieces_of(chunk);
        }
        return frames;
    }

    /// Calls the function named `what` of the active mover.
    pub inline fn ask(
        movers: anytype,
        board: anytype,
        comptime what: @EnumLiteral(),
        args: anytype,
    ) Said(what) {
        switch (movers.active) {
            inline else => |tag| {
                const mover = &@field(movers, @tagName(tag));
                const function = @field(@TypeOf(mover.*), @tagName(what));
                return @call(.auto, function, .{ mover, board } ++ args);
            },
        }
    }

    fn Said(comptime what: @EnumLiteral()) type {
        return @typeInfo(@TypeOf(@field(Ring, @tagName(what)))).@"fn".return_type.?;
    }
};
