//! Board: what the movers of one operation look at and write on: its ledger, who has which position
//! in the attempt under way, and the slots with the credits of those who may fill them. Partial
//! sums and contributions wait in slots. Each member that may send some has slots of its own here,
//! so no member's sums wait for those of another, and no cycle of full buffers can form.
//!
//! It knows ranks and numbers, never bytes. Next: ring.zig, direct.zig, message.zig, which move;
//! memory.zig, where the slots are.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const job_file = @import("job.zig");
const Answer = job_file.Answer;
const Assembly = @import("assembly.zig").Assembly;
const Job = job_file.Job;
const Ledger = @import("ledger.zig").Ledger;
const Move = job_file.Move;
const Schedule = @import("schedule.zig").Schedule;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const Fragment = wire.Fragment;
const Header = wire.frame.Header;
const KeptRange = wire.control.KeptRange;
const assert = std.debug.assert;
const no_slot = job_file.no_slot;
const nobody = job_file.nobody;

/// An attempt begins with this.
pub const Begin = struct {
    attempt: u32,
    schedule: Schedule,
    /// Members alive: in the order of the ring, or of the ranks.
    order: *const base.Order,
    /// Ranks of members that reach all others; they own the chunks of a direct schedule.
    hubs: *const base.Mask,
    /// Ranges that some members hold; null for a first attempt.
    kept: []const KeptRange,
};

pub const PlaceError = error{ UnknownPiece, WrongLength, Twice, Overlap, NoCredit, WrongPhase };

pub const Board = struct {
    ledger: Ledger,

    // The attempt under way; `members` 0 while stopped.
    attempt: u32 = 0,
    position: u16 = 0,
    members: u16 = 0,
    schedule: Schedule = .ring,
    /// By rank: its position in this attempt, or `nobody`.
    positions: []u16,

    free_slots: []u16,
    /// By slot: what comes into it in fragments; of what leaves it, what the other side has.
    assemblies: []Assembly,
    left: []Fragment.Mask,
    free_count: u16 = 0,
    /// So many slots may hold a contribution of this peer on its way out.
    origin_slots: u16,
    /// So many every member has.
    origin_sure: u16,
    /// So many slots may each sender of partial sums fill here in this attempt: an owner's
    /// neighbour in the ring, or a contributor.
    slots_each: u32 = 0,
    /// So many slots has every member at least.
    slots_sure: usize,
    /// The order in which bytes go round the ring (ring.zig).
    is_far: bool,
    /// By position.
    targets: []Target,
    /// By position of the owner in a ring, of the sender or receiver in a direct schedule.
    credits: []Credit,
    /// For each neighbour, so many pieces are made ready ahead of time, one at least.
    ahead: u16,
    /// Pieces that a job is at.
    under_way: std.ArrayList(usize),

    /// A member that this one sends to.
    pub const Target = struct {
        /// It has called, and can receive.
        open: bool = false,
        /// Payload sent in this attempt before that.
        eager_bytes: usize = 0,
        /// Contributions that are ready to go to it, oldest first, and those that jobs are at.
        ready: []Move = &.{},
        ready_count: u16 = 0,
        preparing: u16 = 0,
        /// Contributions to it that are in slots until it has them.
        held: u16 = 0,

        pub fn push(target: *Target, move: Move) void {
            target.ready[target.ready_count] = move;
            target.ready_count += 1;
        }

        pub fn pop(target: *Target) ?Move {
            if (target.ready_count == 0) return null;
            target.ready_count -= 1;
            defer std.mem.copyForwards(
                Move,
                target.ready[0..target.ready_count],
                target.ready[1 .. target.ready_count + 1],
            );
            return target.ready[0];
        }

        pub fn has_room(target: *const Target) bool {
            return target.ready_count + target.preparing < target.ready.len;
        }
    };

    pub const Credit = struct {
        /// As receiver: slots in use, and how many have been freed in this attempt.
        held: u32 = 0,
        freed: u64 = 0,
        announced: u64 = 0,
        /// As sender: what the receiver allows, and what was used.
        allowed: u64 = 0,
        /// The part of `allowed` that was said, not guessed: a credit may overtake the open on
        /// another lane.
        granted: u64 = 0,
        used: u64 = 0,

        pub fn has_left(credit: *const Credit) bool {
            return credit.used < credit.allowed;
        }
    };

    /// Slots for contributions that must be converted before they travel.
    const origin_slots_min = 8;
    const slots_each_max = 4096;

    pub const Sizes = struct {
        members_max: u32,
        window_bytes: u64,
        /// This member's, if it is larger.
        window_here: u64 = 0,
        is_far: bool = false,
        /// Contributions for one neighbour that are made ready ahead of time, one at least.
        ahead: u16 = 1,
        /// Jobs that may be under way.
        jobs: u16 = 0,
    };

    /// `arena` gives all of it back.
    pub fn init(arena: Allocator, ledger: Ledger, sizes: *const Sizes) Allocator.Error!Board {
        const world_size = ledger.roles.world_size;
        // Room for more than all have, but not for more than half of the operation.
        const sure = slots_needed(&ledger, sizes.window_bytes, sizes.is_far);
        const half: usize = @intCast(@min(ledger.partition.pieces / 2, no_slot - 1));
        const here = slots_needed(&ledger, sizes.window_here, sizes.is_far);
        const is_more = @min(here.all, half) > sure.all;
        const slots = if (is_more) @min(here.all, half) else sure.all;
        const spare = slots - (sure.all - sure.origin);
        const targets = try base.unfilled.list(arena, Target, sizes.members_max);
        const ready = try base.unfilled.list(arena, Move, sizes.members_max * sizes.ahead);
        for (targets, 0..) |*target, index| target.* = .{
            .ready = ready[index * sizes.ahead ..][0..sizes.ahead],
        };
        return .{
            .ledger = ledger,
            // Never of those that senders take for granted.
            .origin_slots = @max(sure.origin, @as(u16, @intCast(@min(here.origin, spare)))),
            .origin_sure = sure.origin,
            .slots_sure = sure.all,
            .is_far = sizes.is_far,
            .free_slots = try base.unfilled.list(arena, u16, slots),
            .assemblies = try base.unfilled.list(arena, Assembly, slots),
            .left = try base.unfilled.list(arena, Fragment.Mask, slots),
            .positions = try base.unfilled.list(arena, u16, world_size),
            .targets = targets,
            .credits = try base.unfilled.list(arena, Credit, sizes.members_max),
            .ahead = sizes.ahead,
            .under_way = try .initCapacity(arena, sizes.jobs),
        };
    }

    /// Slots, and those of them that hold contributions of this peer.
    const Needed = struct { all: usize = 0, origin: u16 = 0 };

    fn slots_needed(ledger: *const Ledger, window_bytes: u64, is_far: bool) Needed {
        const kind = ledger.descriptor.kind;
        const world_size = ledger.roles.world_size;
        if (!(kind.reduces() or kind.carries()) or world_size < 2) return .{};
        if (kind == .send_recv) return .{}; // from memory to memory
        const senders = world_size - 1;
        const slot_bytes = @max(1, ledger.partition.slot_bytes());
        const by_window = @max(1, window_bytes / (slot_bytes * senders));
        // After a loss fewer senders share the same pieces, hence the factor.
        const pieces = ledger.partition.pieces;
        const by_work = @max(1, std.math.divCeil(u64, pieces, 2) catch unreachable);
        const per_sender = @min(by_window, by_work, slots_each_max);
        // They are kept until others have them: so many are on their way to all of them together.
        // Where those are far, that may be all that there is.
        const least = origin_slots_of(world_size);
        const most = if (is_far) pieces else by_work;
        const under_way = @min(window_bytes / slot_bytes, most, slots_each_max);
        const origin: u16 = if (converts_any(ledger)) @intCast(@max(least, under_way)) else 0;
        return .{
            .all = @intCast(@min(per_sender * senders + origin, no_slot - 1)),
            .origin = origin,
        };
    }

    /// Some contributions do not travel as they lie in the caller's array.
    fn converts_any(ledger: *const Ledger) bool {
        if (ledger.encodes()) return true;
        for (ledger.partition.shards) |*shard| {
            if (shard.partial_bytes > shard.dtype.size()) return true;
        }
        return false;
    }

    /// One at least on its way to each owner of a direct schedule, so that none waits for another.
    fn origin_slots_of(world_size: u32) u16 {
        if (world_size > base.limits.full_mesh_max) return origin_slots_min;
        return @intCast(@max(origin_slots_min, world_size -| 1));
    }

    // ---- attempts

    /// The first half of a beginning; the ledger's follows.
    pub fn begin(b: *Board, options: *const Begin) void {
        b.attempt = options.attempt;
        b.members = options.order.count;
        b.schedule = options.schedule;
        b.position = options.order.position(b.ledger.roles.rank);
        @memset(b.positions, nobody);
        for (options.order.slice(), 0..) |rank, position| b.positions[rank] = @intCast(position);
        b.free_count = @intCast(b.free_slots.len);
        // The lowest slots are handed out first and so stay in cache.
        for (b.free_slots, 0..) |*entry, index| {
            entry.* = @intCast(b.free_slots.len - 1 - index);
        }
        @memset(b.left, 0);
        for (b.targets) |*target| target.* = .{ .ready = target.ready };
        b.slots_each = b.slots_per_sender(b.free_slots.len, b.origin_slots);
        // Before a receiver says what it allows, it is taken to have what all have.
        @memset(b.credits, .{ .allowed = b.slots_per_sender(b.slots_sure, b.origin_sure) });
    }

    /// The share of one sender, from the beginning of an attempt on.
    fn slots_per_sender(b: *const Board, slots: usize, reserved: u16) u32 {
        if (b.members < 2 or slots == 0) return 0;
        // Round the ring, what comes in is for the root alone.
        const one_owner = b.schedule == .ring and b.ledger.descriptor.kind.ends_at_root();
        const senders = if (one_owner) 1 else b.members - 1;
        return @intCast(@max(1, (slots - reserved) / senders));
    }

    // ---- who is where

    pub fn rank_at(b: *const Board, wanted: u16) u16 {
        for (b.positions, 0..) |position, rank| if (position == wanted) return @intCast(rank);
        unreachable;
    }

    /// The audience's position; the chunk is not void.
    pub inline fn audience_position(b: *const Board, chunk: usize) ?u16 {
        return b.positions[b.ledger.audience(chunk) orelse return null];
    }

    pub inline fn source_position(b: *const Board, chunk: usize) ?u16 {
        return b.positions[b.ledger.source(chunk) orelse return null];
    }

    // ---- sizes

    /// Contributions of this peer do not travel as they lie in its buffer.
    pub fn converts(b: *const Board, piece: usize) bool {
        if (b.ledger.encodes()) return true;
        if (b.schedule == .direct) return false;
        const shard = &b.ledger.partition.shards[b.ledger.partition.shard_of(piece)];
        return shard.partial_bytes > shard.dtype.size();
    }

    /// A sum or contribution as it travels.
    pub fn partial_bytes(b: *const Board, piece: usize) usize {
        const partition = &b.ledger.partition;
        const place = partition.place_of(piece);
        if (b.ledger.encodes()) return partition.codec.encoded_bytes(place.elements);
        const width = switch (b.schedule) {
            .ring => partition.shards[place.shard].partial_bytes,
            .direct => place.dtype.size(),
        };
        return place.elements * width;
    }

    // ---- slots

    fn slot_take(b: *Board) u16 {
        b.free_count -= 1;
        return b.free_slots[b.free_count];
    }

    fn slot_give(b: *Board, index: u16) void {
        b.free_slots[b.free_count] = index;
        b.free_count += 1;
    }

    /// A slot for a sum or contribution that comes in, of those that its sender was promised.
    pub fn place_in_slot(
        b: *Board,
        header: *const Header,
        piece: usize,
        credit: *Credit,
    ) PlaceError!u16 {
        if (!b.is_long(header, piece)) return error.WrongLength;
        if (credit.held >= b.slots_each or b.free_count == 0) return error.NoCredit;
        credit.held += 1;
        const index = b.slot_take();
        const assembly = &b.assemblies[index];
        assembly.* = .{};
        if (!header.fragment.is_whole()) assembly.place(header.fragment) catch unreachable;
        return index;
    }

    /// Another fragment of what comes into that slot, or has.
    pub fn place_beside(b: *Board, header: *const Header, piece: usize, index: u16) PlaceError!u16 {
        const assembly = &b.assemblies[index];
        if (assembly.placed == 0) return error.Twice; // it came, or comes, whole
        if (!b.is_long(header, piece)) return error.WrongLength;
        try assembly.place(header.fragment);
        return index;
    }

    fn is_long(b: *const Board, header: *const Header, piece: usize) bool {
        return header.payload_bytes == header.fragment.range(b.partial_bytes(piece)).len();
    }

    /// A slot that came in is free again: its sender may fill it once more.
    pub fn slot_free(b: *Board, credit: *Credit, index: u16) void {
        b.slot_give(index);
        credit.held -= 1;
        credit.freed += 1;
    }

    /// A frame whose slot this was did not come in whole.
    pub fn slot_unplaced(b: *Board, credit: *Credit, index: u16) void {
        b.slot_give(index);
        credit.held -= 1;
    }

    /// So many slots wait for acknowledgements that this frame must be acknowledged soon. The rest
    /// is enough for its senders to go on, who hear of slots in quarters.
    pub fn is_short(b: *const Board, move: *const Move) bool {
        if (move.slot == no_slot) return false;
        if (move.holder == nobody) return b.targets[move.to].held * 2 >= b.origin_share();
        return b.credits[move.holder].held * 2 >= b.slots_each;
    }

    /// Whoever sends here is told once more how much it may send.
    pub fn grant_again(b: *Board, classes: Classes) void {
        for (b.credits[classes.first..][0..classes.count]) |*credit| credit.announced = 0;
    }

    /// The other side has a frame. Whether its slot is free again, because all of it is there.
    pub fn slot_left(b: *Board, move: *const Move, fragment: Fragment) bool {
        if (move.slot == no_slot) return false;
        const left = &b.left[move.slot];
        left.* |= fragment.mask();
        if (left.* != Fragment.all) return false;
        left.* = 0;
        if (move.holder != nobody) {
            b.slot_free(&b.credits[move.holder], move.slot);
        } else {
            b.targets[move.to].held -= 1;
            b.slot_give(move.slot);
        }
        return true;
    }

    /// So many contributions to one neighbour may be in slots: all links are busy at the same time,
    /// whichever of them is the fastest.
    fn origin_share(b: *const Board) u16 {
        return switch (b.schedule) {
            .ring => b.origin_slots,
            .direct => @max(1, b.origin_slots / @max(1, b.members - 1)),
        };
    }

    // ---- contributions

    /// The job that makes this peer's contribution as it travels, for a piece whose sum starts with
    /// it. Null: no slot is free for it, or enough are ready, or a liar's final bytes of it are
    /// being taken in, before which its input must be saved.
    pub fn contribution(b: *Board, piece: usize, to: u16) ?Job {
        const target = &b.targets[to];
        if (!target.has_room() or b.is_under_way(piece)) return null;
        var job: Job = b.job_of(.contribute, piece);
        job.to = to;
        if (b.converts(piece)) {
            // More would take slots that others have been promised.
            if (b.free_count == 0 or target.held == b.origin_share()) return null;
            target.held += 1;
            job.slot = b.slot_take();
        }
        target.preparing += 1;
        return job;
    }

    pub fn contributed(b: *Board, job: *const Job, kind: wire.frame.Kind, class: u16) void {
        const target = &b.targets[job.to];
        target.preparing -= 1;
        target.push(.{
            .kind = kind,
            .piece = job.piece,
            .class = class,
            .reduced_attempt = if (kind == .final) b.attempt else 0,
            .place = if (job.slot == no_slot) .own else .slot,
            .slot = job.slot,
            .to = job.to,
        });
    }

    pub fn job_of(b: *const Board, kind: Job.Kind, piece: usize) Job {
        return .{
            .kind = kind,
            .piece = piece,
            .members = b.members,
            .position = b.position,
            .shift = b.shift(),
        };
    }

    /// Contributions to an average become so much smaller with a codec that their sum is not
    /// greater than the greatest of them. That loses the least numbers of f16, which go directly
    /// where they can (schedule.zig): an owner that adds up all contributions in f32 has room.
    fn shift(b: *const Board) u6 {
        const codec = b.ledger.partition.codec.kind;
        if (b.ledger.descriptor.op != .avg or codec == .none) return 0;
        if (codec == .f16 and b.schedule == .direct) return 0;
        return std.math.log2_int_ceil(u16, @max(1, b.members)); // nobody, before it begins
    }

    pub fn is_under_way(b: *const Board, piece: usize) bool {
        return std.mem.indexOfScalar(usize, b.under_way.items, piece) != null;
    }

    /// The next piece whose final bytes are to go out; one of which this peer is the source must be
    /// brought to the result first.
    pub inline fn next_final(b: *Board, due: *BitSet, cursor: *usize) Answer {
        if (due.count == 0) return .nothing;
        var from = cursor.*;
        var found: ?usize = null;
        for (0..b.ahead) |_| {
            const piece = due.next(from).?;
            from = piece + 1;
            if (!b.ledger.own_left.has(piece)) found = found orelse piece //
            else if (!b.is_under_way(piece)) return .{ .job = b.job_of(.bring, piece) };
        }
        const piece = found orelse return .nothing;
        due.unset_bit(piece);
        cursor.* = piece + 1;
        return .{ .move = .{
            .kind = .final,
            .piece = piece,
            .reduced_attempt = b.ledger.arriving[b.ledger.partition.chunk_of(piece)],
            .place = .result,
        } };
    }

    // ---- to those who send here

    /// Which credits a neighbour's frames count under: `count` classes from `first` on.
    pub const Classes = struct { first: u16, count: u16 };

    pub const Grant = struct { class: u16, allowed: u64 };

    /// The freed slots to tell a sender of; null if none. Told in quarters of the window, so that
    /// credits cost little.
    pub fn next_grant(b: *Board, classes: Classes) ?Grant {
        for (0..classes.count) |class| {
            const credit = &b.credits[classes.first + class];
            const window = b.slots_each;
            if (credit.freed - credit.announced < @max(1, window / 4)) continue;
            credit.announced = credit.freed;
            return .{ .class = @intCast(class), .allowed = credit.freed + window };
        }
        return null;
    }

    // ---- from those whom this peer sends to

    pub fn opened(b: *Board, to: u16, classes: Classes, credit: u64) void {
        if (b.targets[to].open) return;
        b.targets[to].open = true;
        for (b.credits[classes.first..][0..classes.count]) |*entry| {
            entry.allowed = @max(entry.used, credit, entry.granted);
        }
    }

    /// All others have called.
    pub fn are_all_open(b: *const Board) bool {
        for (b.targets[0..b.members], 0..) |*target, position| {
            if (position != b.position and !target.open) return false;
        }
        return true;
    }

    pub fn credited(
        b: *Board,
        classes: Classes,
        class: u16,
        allowed: u64,
    ) error{UnknownPiece}!void {
        if (class >= classes.count) return error.UnknownPiece;
        const entry = &b.credits[classes.first + class];
        entry.granted = @max(entry.granted, allowed);
        entry.allowed = @max(entry.allowed, allowed);
    }
};

comptime {
    assert(nobody == no_slot); // one number that is nothing
}
