//! Network: connections shaped like TCP, as data. A connection is two pipes of ordered bytes, each
//! with a bounded buffer (a full one is a closed window), a delay, a rate, and any segmentation.
//! faults.zig decides the faults (reset, stall, half-open); world.zig decides who is told.

const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;
const Instant = base.Instant;

/// How a pipe treats bytes; drawn per connection.
pub const Shape = struct {
    delay_ns: u64,
    /// Each segment is late by up to this much more.
    jitter_ns: u64,
    /// Time that one byte occupies the wire.
    ns_per_byte: u64,
    /// Bytes that are under way or unread; more than that, and the sender has to wait.
    capacity: u32,
    /// Longest segment; 1 is the worst case for a parser.
    segment_max: u32,
};

/// One direction of a connection.
pub const Pipe = struct {
    const segments_max = 64;
    const Segment = struct { arrives: Instant, length: u32 };

    shape: Shape,
    ring: []u8,
    start: u32 = 0,
    length: u32 = 0,
    segments: [segments_max]Segment = undefined,
    segment_start: u32 = 0,
    segment_count: u32 = 0,
    busy_until: Instant = 0,
    last_arrival: Instant = 0,
    /// Nothing arrives before.
    stalled_until: Instant = 0,
    /// Bytes vanish; the sender sees a window that fills and stays full.
    swallows: bool = false,
    swallowed: u32 = 0,
    /// The sender has closed; the receiver learns it after the bytes.
    finished: bool = false,
    /// The sender stopped because there was no room.
    blocked: bool = false,
    /// A delivery is in the world's queue.
    scheduled: bool = false,

    pub fn init(gpa: std.mem.Allocator, shape: Shape) !Pipe {
        return .{ .shape = shape, .ring = try gpa.alloc(u8, shape.capacity) };
    }

    pub fn room(pipe: *const Pipe) u32 {
        if (pipe.swallows) return pipe.shape.capacity -| pipe.swallowed;
        if (pipe.segment_count == segments_max) return 0;
        return pipe.shape.capacity - pipe.length;
    }

    /// Takes what fits of `bytes` and says how much that was.
    pub fn write(pipe: *Pipe, now: Instant, prng: *base.Prng, bytes: []const u8) u32 {
        if (pipe.swallows) {
            const taken: u32 = @intCast(@min(bytes.len, pipe.room()));
            pipe.swallowed += taken;
            return taken;
        }
        var taken: u32 = 0;
        while (taken < bytes.len and pipe.room() > 0) {
            const most: u32 = @intCast(@min(pipe.room(), bytes.len - taken));
            const longest = @min(most, pipe.shape.segment_max);
            const length: u32 = if (longest < most and longest > 1)
                @intCast(prng.between(1, longest))
            else
                longest;
            pipe.write_segment(now, prng, bytes[taken..][0..length]);
            taken += length;
        }
        return taken;
    }

    fn write_segment(pipe: *Pipe, now: Instant, prng: *base.Prng, bytes: []const u8) void {
        const length: u32 = @intCast(bytes.len);
        const capacity: u32 = @intCast(pipe.ring.len);
        const end = (pipe.start + pipe.length) % capacity;
        const first = @min(length, capacity - end);
        @memcpy(pipe.ring[end..][0..first], bytes[0..first]);
        @memcpy(pipe.ring[0 .. length - first], bytes[first..]);
        pipe.length += length;

        const wire_ns = pipe.shape.ns_per_byte * length;
        pipe.busy_until = @max(now, pipe.busy_until) + wire_ns;
        const jitter = if (pipe.shape.jitter_ns == 0) 0 else prng.below(pipe.shape.jitter_ns);
        const arrives = pipe.busy_until + pipe.shape.delay_ns + jitter;
        pipe.last_arrival = @max(pipe.last_arrival, arrives);
        const slot = (pipe.segment_start + pipe.segment_count) % segments_max;
        pipe.segments[slot] = .{ .arrives = pipe.last_arrival, .length = length };
        pipe.segment_count += 1;
    }

    /// When the next segment (or the end) arrives; null if nothing is under way.
    pub fn next_arrival(pipe: *const Pipe) ?Instant {
        if (pipe.segment_count > 0) {
            return @max(pipe.segments[pipe.segment_start].arrives, pipe.stalled_until);
        }
        if (pipe.finished and !pipe.swallows) {
            return @max(pipe.last_arrival, pipe.stalled_until);
        }
        return null;
    }

    /// The next segment if it has arrived, at most in two pieces. Valid until the next write.
    pub fn read(pipe: *Pipe, now: Instant, pieces: *[2][]const u8) ?u32 {
        if (pipe.segment_count == 0 or now < pipe.stalled_until) return null;
        const segment = pipe.segments[pipe.segment_start];
        if (segment.arrives > now) return null;
        const capacity: u32 = @intCast(pipe.ring.len);
        const first = @min(segment.length, capacity - pipe.start);
        pieces[0] = pipe.ring[pipe.start..][0..first];
        pieces[1] = pipe.ring[0 .. segment.length - first];
        pipe.start = (pipe.start + segment.length) % capacity;
        pipe.length -= segment.length;
        pipe.segment_start = (pipe.segment_start + 1) % segments_max;
        pipe.segment_count -= 1;
        return segment.length;
    }

    /// All that is under way is lost.
    pub fn discard(pipe: *Pipe) void {
        pipe.length = 0;
        pipe.start = 0;
        pipe.segment_count = 0;
        pipe.segment_start = 0;
    }
};

test "bytes arrive in order, whatever the segmentation and the sizes of the writes" {
    const gpa = std.testing.allocator;
    var prng = base.Prng.init(1);
    for ([_]u32{ 1, 2, 7, 1000 }) |segment_max| {
        var pipe = try Pipe.init(gpa, .{
            .delay_ns = 10,
            .jitter_ns = 100,
            .ns_per_byte = 3,
            .capacity = 61,
            .segment_max = segment_max,
        });
        defer gpa.free(pipe.ring);
        var now: Instant = 0;
        var written: u32 = 0;
        var read: u32 = 0;
        while (read < 5000) {
            var bytes: [40]u8 = undefined;
            for (&bytes, written..) |*byte, index| byte.* = @truncate(index *% 31);
            written += pipe.write(now, &prng, bytes[0..@intCast(prng.between(1, 40))]);
            if (pipe.next_arrival()) |at| now = @max(now, at);
            var pieces: [2][]const u8 = undefined;
            while (pipe.read(now, &pieces)) |_| {
                for (pieces) |piece| for (piece) |byte| {
                    try std.testing.expectEqual(@as(u8, @truncate(read *% 31)), byte);
                    read += 1;
                };
            }
        }
    }
}

test "a pipe that swallows fills its window once and never opens it again" {
    const gpa = std.testing.allocator;
    var prng = base.Prng.init(1);
    var pipe = try Pipe.init(gpa, .{
        .delay_ns = 0,
        .jitter_ns = 0,
        .ns_per_byte = 0,
        .capacity = 8,
        .segment_max = 8,
    });
    defer gpa.free(pipe.ring);
    pipe.swallows = true;
    try std.testing.expectEqual(8, pipe.write(0, &prng, "0123456789"));
    try std.testing.expectEqual(0, pipe.write(0, &prng, "0"));
    try std.testing.expectEqual(null, pipe.next_arrival());
}
