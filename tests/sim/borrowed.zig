//! Borrowed: the memory that users lend to the engine, so that a world can tell which call an
//! address belongs to. A call lends its buffers until it finishes. Then they are scribbled over,
//! and neither a read (bytes that the engine wants to send) nor a write (a changed scribble) may
//! touch them again.

const std = @import("std");

pub const Borrowed = struct {
    /// One owner per granule, so that an address gives its call at once.
    const granule = 64;
    const scribble = 0xee;
    pub const nobody: u32 = std.math.maxInt(u32);

    memory: []align(granule) u8,
    owners: []u32,
    used: usize = 0,
    /// Bytes that no call may take while there are faults, so that none lack after them.
    reserve: usize,
    reserve_is_open: bool = false,

    pub fn init(gpa: std.mem.Allocator, bytes: usize, reserve: usize) !Borrowed {
        const memory = try gpa.alignedAlloc(u8, .fromByteUnits(granule), bytes + reserve);
        errdefer gpa.free(memory);
        const owners = try gpa.alloc(u32, memory.len / granule);
        return .{ .memory = memory, .owners = owners, .reserve = reserve };
    }

    pub fn deinit(b: *Borrowed, gpa: std.mem.Allocator) void {
        gpa.free(b.memory);
        gpa.free(b.owners);
    }

    pub fn reset(b: *Borrowed) void {
        b.used = 0;
        b.reserve_is_open = false;
    }

    pub fn open_reserve(b: *Borrowed) void {
        b.reserve_is_open = true;
    }

    /// null when the world has lent all it has; `skew` bytes before it make it unaligned.
    pub fn lend(b: *Borrowed, owner: u32, bytes: usize, skew: usize) ?[]u8 {
        const total = std.mem.alignForward(usize, bytes + skew + 1, granule);
        const closed = if (b.reserve_is_open) 0 else b.reserve;
        if (b.used + total > b.memory.len - closed) return null;
        @memset(b.owners[b.used / granule ..][0 .. total / granule], owner);
        defer b.used += total;
        return b.memory[b.used + skew ..][0..bytes];
    }

    /// Whose memory this is; `nobody` if it is not a user's.
    pub fn owner_of(b: *const Borrowed, pointer: [*]const u8) u32 {
        const address = @intFromPtr(pointer);
        const start = @intFromPtr(b.memory.ptr);
        if (address < start or address >= start + b.used) return nobody;
        return b.owners[(address - start) / granule];
    }

    pub fn give_back(buffer: []u8) void {
        @memset(buffer, scribble);
    }

    pub fn untouched(buffer: []const u8) bool {
        return std.mem.allEqual(u8, buffer, scribble);
    }
};

test "an address gives its call" {
    const gpa = std.testing.allocator;
    var b = try Borrowed.init(gpa, 1024, 4096);
    defer b.deinit(gpa);
    const one = b.lend(1, 100, 3).?;
    const two = b.lend(2, 0, 0).?;
    try std.testing.expectEqual(1, b.owner_of(one.ptr + 99));
    try std.testing.expectEqual(2, b.owner_of(two.ptr));
    try std.testing.expectEqual(Borrowed.nobody, b.owner_of("elsewhere"));
    try std.testing.expectEqual(null, b.lend(3, 2000, 0));
    b.open_reserve();
    try std.testing.expectEqual(2000, b.lend(3, 2000, 0).?.len);
    Borrowed.give_back(one);
    try std.testing.expect(Borrowed.untouched(one));
}
