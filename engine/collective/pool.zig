//! Pool: large buffers that are used again, because fresh pages cost more than the arithmetic on
//! them. Undo logs and slots of operations come from here (memory.zig). One thread at a time.

const std = @import("std");
const base = @import("base");
const Allocator = std.mem.Allocator;

pub const Pool = struct {
    gpa: Allocator,
    kept: [kept_max]Buffer = @splat(&.{}),
    kept_bytes: usize = 0,

    pub const Buffer = base.unfilled.Buffer(alignment);
    const alignment: std.mem.Alignment = .@"64";
    const kept_max = 16;
    /// The most that an idle peer holds on to.
    const kept_bytes_max = 1024 * base.limits.MiB;

    pub fn init(gpa: Allocator) Pool {
        return .{ .gpa = gpa };
    }

    pub fn deinit(pool: *Pool) void {
        for (&pool.kept) |*buffer| {
            base.unfilled.free(pool.gpa, alignment, buffer.*);
            buffer.* = &.{};
        }
        pool.kept_bytes = 0;
    }

    /// At least `bytes`, contents undefined.
    pub fn take(pool: *Pool, bytes: usize) Allocator.Error!Buffer {
        if (bytes == 0) return &.{};
        var best: ?*Buffer = null;
        for (&pool.kept) |*buffer| {
            // A buffer more than twice as large would starve the operation that needs it.
            if (buffer.len < bytes or buffer.len > bytes *| 2) continue;
            if (best == null or buffer.len < best.?.len) best = buffer;
        }
        if (best) |buffer| {
            defer buffer.* = &.{};
            pool.kept_bytes -= buffer.len;
            return buffer.*;
        }
        return base.unfilled.alloc(pool.gpa, alignment, bytes);
    }

    pub fn give(pool: *Pool, buffer: Buffer) void {
        if (buffer.len == 0) return;
        if (pool.kept_bytes + buffer.len <= kept_bytes_max) for (&pool.kept) |*place| {
            if (place.len > 0) continue;
            place.* = buffer;
            pool.kept_bytes += buffer.len;
            return;
        };
        base.unfilled.free(pool.gpa, alignment, buffer);
    }
};

test "a returned buffer is used again, and nothing leaks" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    const a = try pool.take(1000);
    pool.give(a);
    const b = try pool.take(900);
    try std.testing.expectEqual(a.ptr, b.ptr);
    pool.give(b);
}
