//! spread: over how many lanes a link is spread. Each lane is a TCP connection, which loss, a cap
//! per flow or its windows may hold below what the link carries: then twice as many are tried, and
//! kept if they bring more. A full link gains nothing by more of them. Among numbers that are as
//! good the smallest is kept, because lanes take shares from others on the way.
//!
//! Pure: no lane, no socket, no clock. measure.zig calls it; pace.zig says how fast.

const std = @import("std");
const base = @import("base");
const pace = @import("pace.zig");
const Interval = pace.Interval;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

pub const Spread = struct {
    lanes: u8,
    /// The run has set it.
    is_fixed: bool = false,
    /// The round under way, of intervals in which there was enough to send.
    ns: u64 = 0,
    acked: u64 = 0,
    full_ns: u64 = 0,
    /// So many lanes moved this, bytes per second, before twice as many were tried.
    before: ?u64 = null,
    /// Rounds of a trial that pass first: new connections start slowly.
    warm_up: u8 = 0,
    /// Saturated time until the next trial, and how long after one that brought nothing.
    rest: u64 = 0,
    rest_next: u64 = rest_min,

    const round_ns = 1 * s;
    const round_trips = 4;
    const rest_min = 15 * s;
    const rest_max = 240 * s;
    /// Twice the lanes must bring one part in so many more.
    const gain_part = 14;

    /// Within a machine room two lanes keep both directions busy. Further away four start where
    /// one would take a while.
    pub const near = 2;
    pub const far = 4;
    pub const far_ns = 2 * ms;

    pub fn step(spread: *Spread, i: *const Interval, is_full: bool) void {
        if (spread.is_fixed or !i.saturated) return;
        spread.ns += i.ns;
        spread.acked += i.acked;
        if (is_full) spread.full_ns += i.ns;
        spread.rest -|= i.ns;
        if (spread.ns < @max(round_ns, round_trips * i.base_ns)) return;
        const goodput = spread.acked *| s / spread.ns;
        const was_full = spread.full_ns * 2 > spread.ns;
        spread.ns = 0;
        spread.acked = 0;
        spread.full_ns = 0;
        if (spread.warm_up > 0) {
            spread.warm_up -= 1;
            return;
        }
        if (spread.before) |before| return spread.judge(before, goodput);
        const most = base.limits.lanes_per_link_max;
        if (was_full or spread.rest > 0 or spread.lanes >= most) return;
        spread.before = goodput;
        spread.lanes = @min(spread.lanes * 2, most);
        spread.warm_up = 1;
    }

    fn judge(spread: *Spread, before: u64, goodput: u64) void {
        spread.before = null;
        if (goodput > before + before / gain_part) {
            spread.rest_next = rest_min;
            return;
        }
        spread.lanes = @max(1, spread.lanes / 2);
        spread.rest = spread.rest_next;
        spread.rest_next = @min(spread.rest_next * 2, rest_max);
    }
};

const expectEqual = std.testing.expectEqual;
const expect = std.testing.expect;

/// Lanes that carry so much each, on a link that carries so much.
fn run(spread: *Spread, each: u64, all: u64, seconds: usize) void {
    for (0..5 * seconds) |_| {
        const rate = @min(spread.lanes * each, all);
        spread.step(&.{
            .ns = 200 * ms,
            .acked = rate / 5,
            .retransmitted = 0,
            .rtt_ns = 100 * ms,
            .base_ns = 100 * ms,
            .saturated = true,
        }, false);
    }
}

test "lanes that are capped become more, up to what the link carries" {
    var spread: Spread = .{ .lanes = 4 };
    run(&spread, 1, 40_000_000, 60);
    try expectEqual(base.limits.lanes_per_link_max, spread.lanes);
    spread = .{ .lanes = 4 };
    run(&spread, 6_000_000, 25_000_000, 14); // 4 carry 24, 8 no more than 25
    try expectEqual(4, spread.lanes);
    spread = .{ .lanes = 4 };
    run(&spread, 2_000_000, 25_000_000, 14);
    try expectEqual(16, spread.lanes);
}

test "trials that bring nothing become rare" {
    var spread: Spread = .{ .lanes = 4 };
    var more: usize = 0;
    for (0..600) |_| {
        run(&spread, 25_000_000, 25_000_000, 1);
        more += @intFromBool(spread.lanes > 4);
    }
    try expect(more > 2);
    try expect(more < 30);
}

test "what the run has set stays" {
    var spread: Spread = .{ .lanes = 1, .is_fixed = true };
    run(&spread, 1, 25_000_000, 60);
    try expectEqual(1, spread.lanes);
}
