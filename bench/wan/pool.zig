//! Pool: memory for packets, in sizes that double, kept when a packet is gone: so a busy emulator
//! asks the system for nothing. It owns memory and no packet.

const std = @import("std");
const packet = @import("packet.zig");
const assert = std.debug.assert;

const smallest_bytes = 256;
const largest_bytes = 1 << 17;
const sizes = std.math.log2(largest_bytes / smallest_bytes) + 1;

comptime {
    assert(@sizeOf(packet.Packet) + packet.content_bytes_max <= largest_bytes);
}

pub const Pool = struct {
    gpa: std.mem.Allocator,
    free: [sizes]?*Free = @splat(null),

    const Free = struct { next: ?*Free };
    const alignment = @alignOf(packet.Packet);

    pub fn take(pool: *Pool, bytes: usize) !*packet.Packet {
        const index = index_of(bytes);
        if (pool.free[index]) |found| {
            pool.free[index] = found.next;
            return @ptrCast(@alignCast(found));
        }
        const memory = try pool.gpa.alignedAlloc(u8, .fromByteUnits(alignment), size_of(index));
        return @ptrCast(memory.ptr);
    }

    /// `memory_bytes` must be what was asked for.
    pub fn give(pool: *Pool, taken: *packet.Packet) void {
        const index = index_of(taken.memory_bytes);
        const free: *Free = @ptrCast(taken);
        free.* = .{ .next = pool.free[index] };
        pool.free[index] = free;
    }

    pub fn deinit(pool: *Pool) void {
        for (&pool.free, 0..) |*first, index| {
            while (first.*) |free| {
                first.* = free.next;
                const memory: [*]align(alignment) u8 = @ptrCast(@alignCast(free));
                pool.gpa.free(memory[0..size_of(index)]);
            }
        }
    }

    fn index_of(bytes: usize) usize {
        assert(bytes <= largest_bytes);
        const rounded = std.math.ceilPowerOfTwoAssert(usize, @max(bytes, smallest_bytes));
        return std.math.log2(rounded / smallest_bytes);
    }

    fn size_of(index: usize) usize {
        return @as(usize, smallest_bytes) << @intCast(index);
    }
};

test "memory that was given back is taken again" {
    var pool: Pool = .{ .gpa = std.testing.allocator };
    defer pool.deinit();
    const small = try pool.take(100);
    const large = try pool.take(70_000);
    small.memory_bytes = 100;
    large.memory_bytes = 70_000;
    pool.give(small);
    pool.give(large);
    try std.testing.expectEqual(large, try pool.take(120_000));
    try std.testing.expectEqual(small, try pool.take(256));
    small.memory_bytes = 256;
    large.memory_bytes = 120_000;
    pool.give(small);
    pool.give(large);
}
