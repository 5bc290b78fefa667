//! Queue: a rate, and a drop-tail queue before it that holds so many bytes. It owns no packets and
//! no clock: it says when the bytes that arrive at an instant will have left, or that they do not
//! fit. So a queue costs no timer, and its state is one number: when all of its bytes have left.

const std = @import("std");
const assert = std.debug.assert;
const ns_per_s = std.time.ns_per_s;

/// A queue without a limit of its own holds what its rate carries in this time, but not less than
/// `limit_bytes_min`.
const limit_default_ns = 50 * std.time.ns_per_ms;
const limit_bytes_min = 64 * 1024;

pub const Queue = struct {
    /// 1000 bits a second; 0: no limit, and so never a queue.
    rate_kbit: u64 = 0,
    /// 0: the default.
    limit_bytes: u64 = 0,
    /// When the last byte that was accepted has left.
    empty_at_ns: u64 = 0,

    /// How long the rate takes for so many bytes.
    pub fn duration_ns(queue: *const Queue, bytes: u64) u64 {
        assert(queue.rate_kbit > 0);
        return (bytes * 8 * (ns_per_s / 1000) + queue.rate_kbit / 2) / queue.rate_kbit;
    }

    /// How many bytes still fit; null: any number.
    pub fn room_bytes(queue: *const Queue, now_ns: u64) ?u64 {
        if (queue.rate_kbit == 0) return null;
        const waiting_ns = queue.empty_at_ns -| now_ns;
        return queue.capacity_bytes() -| queue.bytes_in(waiting_ns);
    }

    /// When these bytes, which fit, will have left.
    pub fn accept(queue: *Queue, now_ns: u64, bytes: u64) u64 {
        if (queue.rate_kbit == 0) return now_ns;
        queue.empty_at_ns = @max(queue.empty_at_ns, now_ns) + queue.duration_ns(bytes);
        return queue.empty_at_ns;
    }

    /// Nothing waits, so to forget this queue loses nothing.
    pub fn is_idle(queue: *const Queue, now_ns: u64) bool {
        return queue.empty_at_ns <= now_ns;
    }

    fn capacity_bytes(queue: *const Queue) u64 {
        if (queue.limit_bytes > 0) return queue.limit_bytes;
        return @max(limit_bytes_min, queue.bytes_in(limit_default_ns));
    }

    fn bytes_in(queue: *const Queue, ns: u64) u64 {
        return @intCast(@as(u128, ns) * queue.rate_kbit * 1000 / 8 / ns_per_s);
    }
};

test "bytes leave one after the other at the rate" {
    var queue: Queue = .{ .rate_kbit = 8_000 }; // one byte in a microsecond
    try std.testing.expectEqual(1_001_000, queue.accept(1_000_000, 1));
    try std.testing.expectEqual(1_101_000, queue.accept(1_000_500, 100));
    // Later than all of them: nothing is left of the queue.
    try std.testing.expectEqual(9_010_000, queue.accept(9_000_000, 10));
}

test "what does not fit is known before, and room comes back at the rate" {
    var queue: Queue = .{ .rate_kbit = 8_000, .limit_bytes = 3_000 };
    try std.testing.expectEqual(3_000, queue.room_bytes(0).?);
    _ = queue.accept(0, 3_000);
    try std.testing.expectEqual(0, queue.room_bytes(0).?);
    try std.testing.expectEqual(1_000, queue.room_bytes(1_000_000).?);
    try std.testing.expect(!queue.is_idle(2_999_999));
    try std.testing.expect(queue.is_idle(3_000_000));
}

test "without a limit of its own it holds 50 ms of its rate, or 64 KiB" {
    try std.testing.expectEqual(1_250_000, (Queue{ .rate_kbit = 200_000 }).room_bytes(0).?);
    try std.testing.expectEqual(64 * 1024, (Queue{ .rate_kbit = 1_000 }).room_bytes(0).?);
}

test "without a rate nothing waits" {
    var queue: Queue = .{};
    try std.testing.expectEqual(null, queue.room_bytes(7));
    try std.testing.expectEqual(7, queue.accept(7, 1 << 40));
    try std.testing.expect(queue.is_idle(0));
}

test "rounding loses nothing that adds up" {
    var queue: Queue = .{ .rate_kbit = 300_000, .limit_bytes = 1 << 40 };
    for (0..100_000) |_| _ = queue.accept(0, 1_500);
    const exact_ns = 100_000 * 40_000;
    try std.testing.expectApproxEqRel(exact_ns, @as(f64, @floatFromInt(queue.empty_at_ns)), 1e-4);
}
