//! way_back: how long what the other side sends waits on its way here. A round trip does not tell
//! which of its two ways has a queue, and acknowledgements wait in the queue of the other side's
//! uplink, which that one fills with what it sends to others. So pings say when they have left, by
//! the clock of the other side, and one that takes longer than the fastest of late has waited. The
//! two clocks need not agree, as only differences count. They need not run alike either, nor be
//! true: nothing waits for longer than round trips are longer than the shortest, so a clock that
//! says so is set anew.
//!
//! Pure: no lane, no socket, no clock. outgoing.zig sends the stamps, measure.zig asks.

const std = @import("std");
const us = std.time.ns_per_us;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

pub const WayBack = struct {
    /// Microseconds from stamps to arrivals, more than that of the first: the least since the
    /// interval began.
    least: ?i64 = null,
    /// The least of the time under way, and of the one before.
    fastest: i64 = never,
    fastest_before: i64 = never,
    lasted: u64 = 0,
    /// From the first stamp to its arrival.
    first: ?u64 = null,
    /// In the last interval that heard of any; null: that is long ago.
    waits_ns: ?u64 = null,
    silent_ns: u64 = 0,

    const never = std.math.maxInt(i64);
    /// Clocks of computers differ by half a millisecond in each second at most, most by far less.
    const kept_ns = 20 * s;
    /// It is known for so long after the last stamp.
    const known_ns = 200 * ms;
    /// Pings are sent and read a little later than packets.
    const late_ns = 10 * ms;

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

    /// An interval is over, in which round trips were longer by `round_ns` than the shortest. How
    /// long packets waited, and never more than that; null: that is not known.
    pub fn step(way: *WayBack, ns: u64, round_ns: u64) ?u64 {
        way.grow_older(ns);
        const least = way.least orelse {
            way.silent_ns +|= ns;
            if (way.silent_ns > known_ns) way.waits_ns = null;
            return if (way.waits_ns) |waits| @min(waits, round_ns) else null;
        };
        way.least = null;
        way.silent_ns = 0;
        way.fastest = @min(way.fastest, least);
        const fastest = @min(way.fastest, way.fastest_before);
        const waits = @as(u64, @intCast(least -| fastest)) *| us;
        way.waits_ns = @min(waits, round_ns);
        if (waits > round_ns +| late_ns) {
            way.fastest = least -| @as(i64, @intCast(round_ns / us));
            way.fastest_before = never;
        }
        return way.waits_ns;
    }

    /// Nothing was measured for so long.
    pub fn rest(way: *WayBack, ns: u64) void {
        way.grow_older(ns);
        way.waits_ns = null;
        way.least = null;
    }

    fn grow_older(way: *WayBack, ns: u64) void {
        way.lasted +|= ns;
        if (way.lasted < kept_ns) return;
        way.fastest_before = if (way.lasted < 2 * kept_ns) way.fastest else never;
        way.fastest = never;
        way.lasted = 0;
    }
};

test "what waits on its way back is known by clocks that do not agree" {
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
            try std.testing.expectEqual(told * ms, way.step(100 * ms, 50 * ms));
        }
    }
}

test "what waits on its way back is not known without stamps, nor long after the last" {
    var way: WayBack = .{};
    way.heard(WayBack.none, 1);
    try std.testing.expectEqual(null, way.step(100 * ms, s));
    for ([_]u64{ 50, 80 }) |took| {
        way.heard(WayBack.stamp(0), took * ms);
        _ = way.step(100 * ms, s);
    }
    try std.testing.expectEqual(30 * ms, way.step(100 * ms, s));
    try std.testing.expectEqual(20 * ms, way.step(100 * ms, 20 * ms));
    try std.testing.expectEqual(null, way.step(100 * ms, s));
}

test "pings of a pause say nothing of what waits after it" {
    // The other clock is slower by 50 parts in a million, so what came at the beginning of a pause
    // of ten minutes seems to have come 30 ms sooner.
    var way: WayBack = .{};
    const pause = 600 * s;
    for (0..600) |second| {
        const here_ns = second * s;
        way.heard(WayBack.stamp(here_ns - second * 50 * us + s), here_ns + 50 * ms);
    }
    way.rest(pause);
    for (1..50) |interval| {
        const here_ns = pause + interval * 100 * ms;
        way.heard(WayBack.stamp(here_ns - here_ns / 20_000 + s), here_ns + 50 * ms);
        // Forty milliseconds of the way out.
        try std.testing.expect(way.step(100 * ms, 40 * ms).? <= ms);
    }
}

test "clocks may drift, stand still and leap, and a peer may say what it likes" {
    // Goal: no more is believed than round trips show, and the truth after a while. Method: a
    // clock that runs slower; one that stands still for a minute while round trips are short; then
    // the largest and smallest numbers.
    var way: WayBack = .{};
    for (1..500) |second| {
        way.heard(second * std.time.us_per_s, second * s + second * ms);
        try std.testing.expect(way.step(s, s).? <= 40 * ms);
    }
    var now: u64 = 560 * s;
    for ([_]u64{ 500, 501 }, [_]u64{ 0, 30 }, [_]u64{ 0, 50 }) |second, waits, round| {
        way.heard(second * std.time.us_per_s, now + waits * ms);
        now += s;
        try std.testing.expectEqual(waits * ms, way.step(s, round * ms));
    }
    for ([_]u64{ 1, std.math.maxInt(u64), 1 << 63, (1 << 63) - 1, 1, 1 << 62, 1 }) |said| {
        way.heard(said, now);
        try std.testing.expect(way.step(s, 50 * ms).? <= 50 * ms);
    }
    way.rest(2 * 20 * s);
    way.heard(7, now);
    try std.testing.expectEqual(0, way.step(s, 50 * ms));
}
