//! Region: memory for the many small lists of an operation, which are freed together. It is an
//! arena for one thread. The arena of the standard library serves several threads, at the cost of
//! two atomic operations for each list; an operation has thirty lists. One block is mostly enough.

const std = @import("std");
const Allocator = std.mem.Allocator;
const Alignment = std.mem.Alignment;
const unfilled = @import("unfilled.zig");

pub const Region = struct {
    gpa: Allocator,
    /// The unused rest of the last block.
    free: []u8 = &.{},
    last: ?*Block = null,

    /// The head of a block. `bytes`: size of the block with its head.
    const Block = struct { before: ?*Block, bytes: usize };

    /// Bytes of the first block: enough for an operation of few pieces.
    const first_bytes = 4 * 1024;

    pub fn init(gpa: Allocator) Region {
        return .{ .gpa = gpa };
    }

    pub fn deinit(region: *Region) void {
        while (region.last) |block| {
            region.last = block.before;
            const memory: [*]align(@alignOf(Block)) u8 = @ptrCast(block);
            unfilled.free(region.gpa, .of(Block), memory[0..block.bytes]);
        }
        region.free = &.{};
    }

    /// The region as an allocator, valid until the region moves. Memory that it has given stays
    /// valid after a move.
    pub fn allocator(region: *Region) Allocator {
        return .{ .ptr = region, .vtable = &vtable };
    }

    const vtable: Allocator.VTable = .{
        .alloc = take,
        .resize = Allocator.noResize,
        .remap = Allocator.noRemap,
        .free = Allocator.noFree,
    };

    fn take(context: *anyopaque, bytes: usize, alignment: Alignment, _: usize) ?[*]u8 {
        const region: *Region = @ptrCast(@alignCast(context));
        return region.take_here(bytes, alignment) orelse {
            if (!region.grow(bytes, alignment)) return null;
            return region.take_here(bytes, alignment).?;
        };
    }

    fn take_here(region: *Region, bytes: usize, alignment: Alignment) ?[*]u8 {
        const start = @intFromPtr(region.free.ptr);
        const skipped = alignment.forward(start) - start;
        if (region.free.len < skipped or region.free.len - skipped < bytes) return null;
        defer region.free = region.free[skipped + bytes ..];
        return region.free.ptr + skipped;
    }

    /// Adds a block, twice as large as the last, or as large as `bytes` needs. Sums are checked,
    /// because a size may come from a user's call.
    fn grow(region: *Region, bytes: usize, alignment: Alignment) bool {
        const head = @sizeOf(Block) + alignment.toByteUnits();
        const needed = std.math.add(usize, bytes, head) catch return false;
        const usual = if (region.last) |block| 2 *| block.bytes else first_bytes;
        const memory = unfilled.alloc(region.gpa, .of(Block), @max(needed, usual)) catch
            unfilled.alloc(region.gpa, .of(Block), needed) catch return false;
        const block: *Block = @ptrCast(memory.ptr);
        block.* = .{ .before = region.last, .bytes = memory.len };
        region.last = block;
        region.free = memory[@sizeOf(Block)..];
        return true;
    }
};

test "lists lie apart and aligned, in blocks that are all given back" {
    var region: Region = .init(std.testing.allocator);
    defer region.deinit();
    var random: std.Random.DefaultPrng = .init(3);
    const draw = random.random();
    var bytes: [200][]u8 = undefined;
    var words: [200][]u128 = undefined;
    for (&bytes, &words, 0..) |*some, *others, index| {
        some.* = try region.allocator().alloc(u8, draw.uintLessThan(usize, 400));
        others.* = try region.allocator().alloc(u128, 1 + draw.uintLessThan(usize, 40));
        @memset(some.*, @truncate(index));
        @memset(others.*, index);
    }
    const moved = region;
    region = moved;
    for (bytes, words, 0..) |some, others, index| {
        try std.testing.expect(std.mem.allEqual(u8, some, @truncate(index)));
        try std.testing.expect(std.mem.allEqual(u128, others, index));
    }
    const large = try region.allocator().alignedAlloc(u8, .fromByteUnits(4096), 1 << 20);
    try std.testing.expectEqual(0, @intFromPtr(large.ptr) % 4096);
}

test "a region takes no more than it must where more is not to be had, and says when nothing is" {
    var room: [1024]u8 align(16) = undefined;
    var fixed: std.heap.FixedBufferAllocator = .init(&room);
    var region: Region = .init(fixed.allocator());
    const memory = region.allocator();
    _ = try memory.alloc(u8, 500); // less than a usual block
    try std.testing.expectError(error.OutOfMemory, memory.alloc(u8, 600));
    try std.testing.expectError(error.OutOfMemory, memory.alloc(u8, std.math.maxInt(usize)));
    _ = try memory.alloc(u8, 300);
}
