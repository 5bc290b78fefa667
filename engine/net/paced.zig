//! paced: how much of what a lane has to send may leave now, where the system does not keep to a
//! rate by itself: a bucket that fills with time, and that sending empties. The engine asks for no
//! more bytes than it holds, and wakes when it holds a step's worth again. Where the system keeps
//! to the rate (tcp.zig), and where there is none, everything may leave.
//!
//! Pure: no socket, no clock. peer_engine.zig calls it.

const std = @import("std");
const base = @import("base");
const Instant = base.Instant;

pub const Outgoing = struct {
    bucket: Bucket = .{},
    /// Bytes that the socket has taken since it was opened.
    taken: u64 = 0,
    /// The engine is to look at the lane when the bucket has filled.
    waits: bool = false,

    /// Whether anything may leave now. If not, `wake_at` is when it may, if not sooner.
    pub fn is_open(out: *Outgoing, now: Instant, wake_at: *Instant) bool {
        if (out.bucket.is_open(now)) return true;
        out.waits = true;
        wake_at.* = @min(wake_at.*, out.bucket.opens_at());
        return false;
    }

    /// As much of these slices as may leave now.
    pub fn cut(out: *const Outgoing, now: Instant, slices: [][]const u8) []const []const u8 {
        var room = out.bucket.room(now);
        for (slices, 0..) |*slice, index| {
            if (slice.len >= room) {
                slice.* = slice.*[0..@intCast(room)];
                return slices[0 .. index + 1];
            }
            room -= slice.len;
        }
        return slices;
    }

    pub fn took(out: *Outgoing, now: Instant, count: usize) void {
        out.taken += count;
        out.bucket.take(now, count);
    }
};

pub const Bucket = struct {
    /// Bytes per second; 0: no limit.
    rate: u64 = 0,
    /// When it is full, if nothing more is taken.
    full_at: Instant = 0,

    /// Less than this is not worth a wake.
    const step_ns_min = 1 * std.time.ns_per_ms;
    const step_bytes_min = 1448;
    /// It holds so many steps: an engine that wakes late makes up for it.
    const steps = 4;

    /// Bytes that may leave.
    pub fn room(bucket: *const Bucket, now: Instant) u64 {
        if (bucket.rate == 0) return std.math.maxInt(u64);
        const held_ns = steps * bucket.step_ns() -| (bucket.full_at -| now);
        return bucket.rate *| held_ns / std.time.ns_per_s;
    }

    /// Whether it holds a step's worth.
    pub fn is_open(bucket: *const Bucket, now: Instant) bool {
        return bucket.rate == 0 or bucket.opens_at() <= now;
    }

    pub fn opens_at(bucket: *const Bucket) Instant {
        return bucket.full_at -| (steps - 1) * bucket.step_ns();
    }

    pub fn take(bucket: *Bucket, now: Instant, count: usize) void {
        if (bucket.rate > 0) bucket.full_at = @max(bucket.full_at, now) +| bucket.ns_of(count);
    }

    fn step_ns(bucket: *const Bucket) u64 {
        return @max(step_ns_min, bucket.ns_of(step_bytes_min));
    }

    fn ns_of(bucket: *const Bucket, bytes: u64) u64 {
        return bytes *| std.time.ns_per_s / bucket.rate;
    }
};

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

test "an engine that wakes when it should, or late, sends at the rate and never more" {
    // Goal: no more leaves in any time than the rate and a full bucket, and not much less. Method:
    // a lane that always has bytes, looked at when its bucket opens, up to three steps late.
    const ms = std.time.ns_per_ms;
    var prng: base.Prng = .init(7);
    for ([_]u64{ 1_000, 100_000, 2_500_000, 1_250_000_000, 1_250_000_000_000 }) |rate| {
        var bucket: Bucket = .{ .rate = rate };
        const begun: Instant = 1_000 * ms;
        var now = begun;
        const full = bucket.room(now);
        try expect(full >= 4 * 1447 and full >= rate / 1000 * 4);
        var sent: u64 = 0;
        for (0..1000) |_| {
            now = @max(now, bucket.opens_at()) + prng.below(3 * bucket.step_ns());
            try expect(bucket.is_open(now));
            const count = bucket.room(now);
            try expect(count > 0 and count <= full);
            sent += count;
            bucket.take(now, @intCast(count));
            const due = (now - begun) / 1000 * rate / 1_000_000;
            try expect(sent <= due + due / 1000 + full + 1000);
            try expect(sent + full >= due - due / 1000);
        }
    }
}

test "a bucket that was emptied opens after a step, and not before" {
    var bucket: Bucket = .{ .rate = 10_000_000 };
    const now: Instant = std.time.ns_per_s;
    bucket.take(now, @intCast(bucket.room(now)));
    try expectEqual(0, bucket.room(now));
    try expectEqual(now + std.time.ns_per_ms, bucket.opens_at());
    try expect(!bucket.is_open(bucket.opens_at() - 1));
    try expectEqual(10_000, bucket.room(bucket.opens_at()));
    // Time in which nothing is sent fills it once.
    try expectEqual(40_000, bucket.room(now + std.time.ns_per_hour));
}

test "slices are cut where the bucket ends, and left alone where there is no rate" {
    var out: Outgoing = .{};
    const bytes: [50_000]u8 = undefined;
    var slices = [_][]const u8{ bytes[0..1_000], &bytes };
    try expectEqual(50_000, out.cut(1, &slices)[1].len);
    out.took(1, 51_000);
    try expectEqual(51_000, out.taken);
    try expectEqual(0, out.bucket.full_at);
    out.bucket.rate = 10_000_000;
    const cut = out.cut(1, &slices);
    try expectEqual(40_000, cut[0].len + cut[1].len);
    var first = [_][]const u8{ &bytes, bytes[0..7] };
    try expectEqual(1, out.cut(1, &first).len);
}

test "a lane whose bucket is empty waits, and the engine wakes for the first that opens" {
    var out: Outgoing = .{ .bucket = .{ .rate = 10_000_000 } };
    var wake_at: Instant = base.never;
    const now: Instant = std.time.ns_per_s;
    try expect(out.is_open(now, &wake_at) and !out.waits);
    try expectEqual(base.never, wake_at);
    out.took(now, 40_000);
    try expect(!out.is_open(now, &wake_at) and out.waits);
    try expectEqual(now + std.time.ns_per_ms, wake_at);
    wake_at = now; // another lane
    try expect(!out.is_open(now, &wake_at));
    try expectEqual(now, wake_at);
}
