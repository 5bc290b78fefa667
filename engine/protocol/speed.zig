//! speed: bytes per second over the last seconds, from counters that are told now and then.

const std = @import("std");
const base = @import("base");
const Instant = base.Instant;

pub const Speed = struct {
    latest: Sample = .{},
    middle: Sample = .{},
    oldest: Sample = .{},

    /// The time between `latest` and `oldest` is this at least, once so much has been told, and
    /// about twice this at most.
    const window_ns = 2 * std.time.ns_per_s;
    /// Less time says nothing.
    const span_ns_min = std.time.ns_per_s / 10;

    const Sample = struct { at: Instant = 0, sent: u64 = 0, received: u64 = 0 };
    pub const PerSecond = struct { sent: u64 = 0, received: u64 = 0 };

    pub fn note(speed: *Speed, now: Instant, sent: u64, received: u64) void {
        const sample: Sample = .{ .at = now, .sent = sent, .received = received };
        if (speed.latest.at == 0) {
            speed.* = .{ .latest = sample, .middle = sample, .oldest = sample };
        } else if (now -| speed.middle.at >= window_ns) {
            speed.oldest = speed.middle;
            speed.middle = sample;
        }
        speed.latest = sample;
    }

    pub fn per_second(speed: *const Speed) PerSecond {
        const span_ns = speed.latest.at -| speed.oldest.at;
        return .{
            .sent = rate(speed.latest.sent -| speed.oldest.sent, span_ns),
            .received = rate(speed.latest.received -| speed.oldest.received, span_ns),
        };
    }

    pub fn rate(bytes: u64, span_ns: u64) u64 {
        if (span_ns < span_ns_min) return 0;
        return bytes *| std.time.ms_per_s / (span_ns / std.time.ns_per_ms);
    }
};

test "the speed is that of the last seconds, whatever was before, and counters may be nonsense" {
    const second = std.time.ns_per_s;
    var speed: Speed = .{};
    try std.testing.expectEqual(Speed.PerSecond{}, speed.per_second());
    var sent: u64 = 1 << 40; // counted before the first word of it
    var now: Instant = 100 * second;
    for (0..20) |_| {
        speed.note(now, sent, 0);
        now += second / 2;
        sent += 500;
    }
    try std.testing.expectEqual(Speed.PerSecond{ .sent = 1000 }, speed.per_second());
    for (0..20) |_| {
        speed.note(now, sent, 0);
        now += second / 2;
    }
    try std.testing.expectEqual(Speed.PerSecond{}, speed.per_second());
    speed.note(now, 5, std.math.maxInt(u64));
    const wild = speed.per_second();
    try std.testing.expect(wild.sent == 0 and wild.received > 0);
}
