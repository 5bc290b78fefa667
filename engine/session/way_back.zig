//! way_back: how long what the other side sends waits on its way here. A round trip does not tell
//! which of its two ways has a queue, and acknowledgements wait in the queue of the other side's
//! uplink, which that one fills with what it sends to others. So pings say when they have left, by
//! the clock of the other side, and one that takes longer than the fastest of late has waited. The
//! two clocks need not agree, as only differences count, nor run alike: the fastest is forgotten
//! after a while.
//!
//! Pure: no lane, no socket, no clock. outgoing.zig sends the stamps, measure.zig asks.

const std = @import("std");
const us = std.time.ns_per_us;

pub const WayBack = struct {
    /// Microseconds from stamps to arrivals, less than those of the first: the least since the
    /// interval began.
    least: ?i64 = null,
    /// The least of the time under way, and of the one before.
    fastest: i64 = std.math.maxInt(i64),
    fastest_before: i64 = std.math.maxInt(i64),
    lasted: u64 = 0,
    /// From the first stamp to its arrival.
    first: ?u64 = null,
    /// In the last interval that heard of any; null: that is long ago.
    waits_ns: ?u64 = null,
    silent_ns: u64 = 0,

    /// Clocks differ by 100 µs in each second at most, so by 3 ms in this time.
    const kept_ns = 30 * std.time.ns_per_s;
    /// It is known for so long after the last stamp.
    const known_ns = 200 * std.time.ns_per_ms;

    /// Not a stamp: it may have waited for what was sent before it.
    pub const none: u64 = 0;

    pub fn stamp(now_ns: u64) u64 {
        return @max(1, now_ns / us);
    }

    /// A ping is here that has left at `sent`, microseconds of the other side. All numbers are
    /// possible: its clock began whenever it did.
    pub fn heard(way: *WayBack, sent: u64, now_ns: u64) void {
        if (sent == none) return;
        const took = now_ns / us -% sent;
        const first = way.first orelse took;
        way.first = first;
        const more: i64 = @bitCast(took -% first);
        way.least = @min(way.least orelse more, more);
    }

    /// An interval is over. How long packets waited at least; null: that is not known.
    pub fn step(way: *WayBack, ns: u64) ?u64 {
        way.lasted +|= ns;
        if (way.lasted >= kept_ns) {
            way.lasted = 0;
            way.fastest_before = way.fastest;
            way.fastest = std.math.maxInt(i64);
        }
        if (way.least) |least| {
            way.fastest = @min(way.fastest, least);
            const fastest = @min(way.fastest, way.fastest_before);
            way.waits_ns = @as(u64, @intCast(least -| fastest)) *| us;
            way.silent_ns = 0;
            way.least = null;
        } else {
            way.silent_ns +|= ns;
            if (way.silent_ns > known_ns) way.waits_ns = null;
        }
        return way.waits_ns;
    }
};

test "what waits on its way back is known by clocks that do not agree" {
    const ms = std.time.ns_per_ms;
    // Ours began later than the other's, or earlier.
    for ([_]u64{ 0, 1 << 40, std.math.maxInt(u64) - 1000 }) |theirs_us| {
        var way: WayBack = .{};
        const waits_ms = [_]u64{ 3, 0, 0, 7, 40, 12, 0 };
        const told_ms = [_]u64{ 0, 0, 0, 7, 40, 12, 0 }; // the first is the fastest so far
        for (waits_ms, told_ms, 1..) |waits, told, interval| {
            for (0..5) |each| {
                const sent_ns = interval * 100 * ms + each * ms;
                // The last ones wait longer, which does not count.
                const here_ns = sent_ns + (50 + waits + each) * ms;
                way.heard(theirs_us +% sent_ns / us, here_ns);
            }
            try std.testing.expectEqual(told * ms, way.step(100 * ms));
        }
    }
}

test "what waits on its way back is not known without stamps, nor long after the last" {
    const ms = std.time.ns_per_ms;
    var way: WayBack = .{};
    way.heard(WayBack.none, 1);
    try std.testing.expectEqual(null, way.step(100 * ms));
    for ([_]u64{ 50, 80 }) |took| {
        way.heard(WayBack.stamp(0), took * ms);
        _ = way.step(100 * ms);
    }
    for (0..2) |_| try std.testing.expectEqual(30 * ms, way.step(100 * ms));
    try std.testing.expectEqual(null, way.step(100 * ms));
}

test "clocks may drift, and a peer may say what it likes" {
    // Goal: a clock that runs slower than ours makes no queue for longer than a minute. Method:
    // each stamp comes 1 ms later than the one before, one in a second.
    const ms = std.time.ns_per_ms;
    const s = std.time.ns_per_s;
    var way: WayBack = .{};
    for (1..500) |second| {
        way.heard(second * std.time.us_per_s, second * s + second * ms);
        try std.testing.expect(way.step(s).? <= 60 * ms);
    }
    for ([_]u64{ 1, std.math.maxInt(u64), 1 << 63, (1 << 63) - 1 }) |said| {
        way.heard(said, 500 * s);
        _ = way.step(1);
    }
    try std.testing.expect(way.step(1) != null);
}
