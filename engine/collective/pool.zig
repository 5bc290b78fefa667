//! Pool: large buffers that are used again, because fresh pages cost more than the arithmetic on
//! them. Undo logs and slots of operations come from here (memory.zig). One thread at a time uses a
//! pool.

const std = @import("std");
const base = @import("base");
const Allocator = std.mem.Allocator;

pub const Pool = struct {
    gpa: Allocator,
    /// Buffers that wait for their next use, the oldest first.
    kept: [kept_max]Buffer = undefined,
    kept_count: usize = 0,
    kept_bytes: usize = 0,

    pub const Buffer = base.unfilled.Buffer(alignment);
    const alignment: std.mem.Alignment = .@"64";
    /// The most buffers that wait for their next use. An operation takes about three buffers, and a
    /// model has layers of a few dozen sizes.
    const kept_max = 128;
    /// The most bytes that an idle peer holds on to.
    const kept_bytes_max = 1024 * base.limits.MiB;

    pub fn init(gpa: Allocator) Pool {
        return .{ .gpa = gpa };
    }

    pub fn deinit(pool: *Pool) void {
        while (pool.kept_count > 0) pool.drop_oldest();
    }

    /// Takes a buffer of at least `bytes` bytes; its contents are undefined.
    pub fn take(pool: *Pool, bytes: usize) Allocator.Error!Buffer {
        if (bytes == 0) return &.{};
        var best: ?usize = null;
        for (pool.kept[0..pool.kept_count], 0..) |buffer, index| {
            // A buffer more than twice as large is left for an operation that needs it.
            if (buffer.len < bytes or buffer.len > bytes *| 2) continue;
            // The newest among buffers of equal size may still be in a cache.
            if (best == null or buffer.len <= pool.kept[best.?].len) best = index;
        }
        if (best) |index| return pool.remove(index);
        while (true) {
            return base.unfilled.alloc(pool.gpa, alignment, bytes) catch |err| {
                // The missing memory may be in buffers that wait here.
                if (pool.kept_count == 0) return err;
                pool.drop_oldest();
                continue;
            };
        }
    }

    /// Keeps a buffer that comes back; buffers that have waited longest are freed to make room. A
    /// buffer larger than half of `kept_bytes_max` is kept only if it fits as it is.
    pub fn give(pool: *Pool, buffer: Buffer) void {
        if (buffer.len == 0) return;
        const room = kept_bytes_max - pool.kept_bytes;
        if (buffer.len > kept_bytes_max / 2 and buffer.len > room)
            return base.unfilled.free(pool.gpa, alignment, buffer);
        while (pool.kept_count == kept_max or pool.kept_bytes > kept_bytes_max - buffer.len)
            pool.drop_oldest();
        pool.kept[pool.kept_count] = buffer;
        pool.kept_count += 1;
        pool.kept_bytes += buffer.len;
    }

    fn drop_oldest(pool: *Pool) void {
        base.unfilled.free(pool.gpa, alignment, pool.remove(0));
    }

    fn remove(pool: *Pool, index: usize) Buffer {
        const buffer = pool.kept[index];
        const later = pool.kept[index + 1 .. pool.kept_count];
        @memmove(pool.kept[index..][0..later.len], later);
        pool.kept_count -= 1;
        pool.kept_bytes -= buffer.len;
        return buffer;
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

test "a large buffer is kept, however many small ones were before it" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    var small: [Pool.kept_max + 8]Pool.Buffer = undefined;
    for (&small) |*buffer| buffer.* = try pool.take(100);
    for (small) |buffer| pool.give(buffer);
    const large = try pool.take(1 << 20);
    pool.give(large);
    const again = try pool.take(1 << 20);
    try std.testing.expectEqual(large.ptr, again.ptr);
    pool.give(again);
    try std.testing.expectEqual(Pool.kept_max, pool.kept_count);
    const newest = try pool.take(100);
    try std.testing.expectEqual(small[small.len - 1].ptr, newest.ptr);
    pool.give(newest);
}

test "no more is kept than a peer may hold on to" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    const half = Pool.kept_bytes_max / 2;
    // Nothing is written to these buffers, so they take no memory.
    const one = try pool.take(half);
    const other = try pool.take(half);
    const third = try pool.take(half);
    for ([_]Pool.Buffer{ one, other, third }) |buffer| pool.give(buffer);
    try std.testing.expectEqual(2 * half, pool.kept_bytes);
    for ([_]Pool.Buffer{ third, other }) |buffer| {
        const kept = try pool.take(half);
        try std.testing.expectEqual(buffer.ptr, kept.ptr);
    }
    for ([_]Pool.Buffer{ third, other }) |buffer| pool.give(buffer);
    for ([_]usize{ half + 1, Pool.kept_bytes_max + 1 }) |bytes| {
        const most = try pool.take(bytes);
        pool.give(most);
        try std.testing.expectEqual(2, pool.kept_count);
    }
}

test "what is kept is given up where it is missing" {
    var backing: [4096]u8 align(64) = undefined;
    var little: std.heap.FixedBufferAllocator = .init(&backing);
    var pool = Pool.init(little.allocator());
    defer pool.deinit();
    pool.give(try pool.take(1024));
    const large = try pool.take(3584);
    try std.testing.expectEqual(0, pool.kept_count);
    try std.testing.expectError(error.OutOfMemory, pool.take(2048));
    pool.give(large);
}
