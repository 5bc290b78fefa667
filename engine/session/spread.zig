//! spread: over how many lanes a link is spread. Each lane is a TCP connection, which loss, a cap
//! per flow or its windows may hold below what the link carries: then twice as many are tried, and
//! kept if they bring more. A full link gains nothing by more of them. Among numbers that are as
//! good the smallest is kept, but not less than a link begins with: lanes take shares from others
//! on the way, and after a pause few of them begin slowly.
//!
//! Pure: no lane, no socket, no clock. measure.zig calls it; pace.zig says how fast.

const std = @import("std");
const base = @import("base");
const Interval = @import("interval.zig").Interval;
const per_second = @import("interval.zig").per_second;
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
    /// The trial under way: how many lanes there were, and what they moved, bytes per second.
    trial: ?struct { lanes: u8, moved: u64 } = null,
    /// The round that begins a trial does not count: new connections start slowly.
    is_warm: bool = true,
    /// The link loses packets that no full queue drops. Then connections carry much in their first
    /// seconds and less and less after them, so one trial that brings nothing says little: it goes
    /// on with twice as many, once until one has brought something.
    is_lossy: bool = false,
    is_forgiven: bool = false,
    /// Saturated time in which no fewer lanes are tried: what so many carry that lose packets
    /// varies by more than one of them brings.
    down_rest: u64 = 0,
    /// Saturated time until the next trial, and how long after one that brought nothing.
    rest: u64 = 0,
    rest_next: u64 = rest_min,
    /// The next trial is one of fewer lanes.
    down: bool = false,
    /// Lanes leave one by one until there are so many: what they carried is more than those that
    /// stay can carry at once.
    goal: ?u8 = null,

    /// Long enough that what moves for a moment does not decide.
    const round_ns = 3 * s;
    const round_lossy_ns = 1500 * ms;
    const round_trips = 8;
    const rest_min = 15 * s;
    const rest_max = 240 * s;
    /// Those that stay have grown so many round trips after one has left.
    const leave_trips = 4;
    const leave_ns = 500 * ms;
    /// Twice the lanes must bring one part in so many more; half of them may bring one less.
    const gain_part = 8;
    const gain_lossy_part = 4;
    const loss_part = 16;

    /// Within a machine room two lanes keep both directions busy. Further away a connection takes
    /// a while to grow, in each operation anew after a pause, so more of them begin.
    pub const near = 2;
    const far = 4;
    const distant = 8;
    pub const far_ns = 2 * ms;
    const distant_ns = 50 * ms;

    /// So many lanes a link begins with.
    pub fn first(base_ns: u64) u8 {
        if (base_ns < far_ns) return near;
        return if (base_ns < distant_ns) far else distant;
    }

    pub fn step(spread: *Spread, i: *const Interval, is_full: bool, is_lossy: bool) void {
        if (spread.is_fixed or !i.saturated or i.base_ns < far_ns) return;
        if (is_lossy and !spread.is_lossy) spread.begin_lossy();
        spread.is_lossy = is_lossy;
        spread.ns += i.ns;
        spread.acked += i.acked;
        if (is_full) spread.full_ns += i.ns;
        spread.rest -|= i.ns;
        spread.down_rest -|= i.ns;
        if (spread.goal) |goal| return spread.leave(i, goal);
        const least_ns: u64 = if (is_lossy) round_lossy_ns else round_ns;
        if (spread.ns < @max(least_ns, round_trips * i.base_ns)) return;
        const goodput, const was_full = spread.end_round();
        if (!spread.is_warm) {
            spread.is_warm = true;
        } else if (spread.trial != null) {
            spread.judge(goodput, was_full);
        } else if (spread.rest == 0) spread.begin(goodput, was_full, first(i.base_ns));
    }

    /// Lanes that had lost nothing yet say nothing of how much those carry that lose packets.
    fn begin_lossy(spread: *Spread) void {
        _ = spread.end_round();
        if (spread.trial) |before| {
            spread.lanes = before.lanes;
            spread.goal = null;
        }
        spread.trial = null;
        spread.is_forgiven = false;
        spread.rest = 0;
        spread.down_rest = rest_max;
    }

    fn begin(spread: *Spread, goodput: u64, was_full: bool, fewest: u8) void {
        const may_lose = spread.lanes > fewest and spread.down_rest == 0;
        const may_add = !was_full and spread.lanes < base.limits.lanes_per_link_max;
        if (!may_lose and !may_add) return;
        spread.down = may_lose and (spread.down or !may_add);
        spread.trial = .{ .lanes = spread.lanes, .moved = goodput };
        if (!spread.down) return spread.double();
        spread.goal = @max(spread.lanes / 2, fewest);
    }

    fn double(spread: *Spread) void {
        spread.lanes = @min(spread.lanes * 2, base.limits.lanes_per_link_max);
        spread.is_warm = false;
    }

    fn leave(spread: *Spread, i: *const Interval, goal: u8) void {
        if (spread.ns < @max(leave_ns, leave_trips * i.base_ns)) return;
        const goodput, const was_full = spread.end_round();
        if (spread.trial) |before| {
            if (!was_full and goodput < before.moved - before.moved / loss_part)
                return spread.judge(goodput, was_full);
        }
        spread.lanes -= @intFromBool(spread.lanes > goal);
        if (spread.lanes > goal) return;
        spread.goal = null;
        spread.is_warm = false;
    }

    /// So much it moved, bytes per second, and whether the link was full most of the time.
    fn end_round(spread: *Spread) struct { u64, bool } {
        defer {
            spread.ns = 0;
            spread.acked = 0;
            spread.full_ns = 0;
        }
        return .{ per_second(spread.acked, spread.ns), spread.full_ns * 2 > spread.ns };
    }

    fn judge(spread: *Spread, goodput: u64, was_full: bool) void {
        const before = spread.trial.?;
        const gain = before.moved / if (spread.is_lossy) @as(u64, gain_lossy_part) else gain_part;
        const is_kept = if (spread.down)
            goodput > before.moved - before.moved / loss_part
        else
            goodput > before.moved + gain;
        if (spread.is_lossy) spread.down_rest = rest_max;
        if (!is_kept and spread.is_lossy and !spread.down and !spread.is_forgiven) {
            spread.is_forgiven = true;
            if (!was_full and spread.lanes < base.limits.lanes_per_link_max) return spread.double();
            spread.trial = null; // they are enough, for now
            return;
        }
        spread.trial = null;
        if (is_kept) {
            spread.rest_next = rest_min;
            spread.is_forgiven = false;
            return;
        }
        spread.goal = if (before.lanes < spread.lanes) before.lanes else null;
        spread.lanes = @max(spread.lanes, before.lanes);
        spread.down = !spread.down;
        spread.rest = spread.rest_next;
        spread.rest_next = @min(spread.rest_next * 2, rest_max);
    }
};

const expectEqual = std.testing.expectEqual;
const expect = std.testing.expect;

/// Lanes that carry so much each, on a link that carries so much.
fn run(spread: *Spread, each: u64, all: u64, seconds: usize) void {
    run_on(spread, each, all, seconds, false);
}

fn run_on(spread: *Spread, each: u64, all: u64, seconds: usize, is_lossy: bool) void {
    for (0..5 * seconds) |_|
        step_with(spread, @min(spread.lanes * each, all), false, is_lossy);
}

/// A fifth of a second, in which there was enough to send, and so many bytes per second arrived.
fn step_with(spread: *Spread, rate: u64, is_full: bool, is_lossy: bool) void {
    spread.step(&.{
        .ns = 200 * ms,
        .acked = rate / 5,
        .rtt_ns = 100 * ms,
        .base_ns = 100 * ms,
        .saturated = true,
    }, is_full, is_lossy);
}

test "lanes that are capped become more, up to what the link carries" {
    var spread: Spread = .{ .lanes = 4 };
    run(&spread, 1_000, 40_000_000, 50);
    try expectEqual(base.limits.lanes_per_link_max, spread.lanes);
    spread = .{ .lanes = 4 };
    run(&spread, 6_000_000, 25_000_000, 24); // 4 carry 24, 8 no more than 25
    try expectEqual(4, spread.lanes);
    spread = .{ .lanes = 4 };
    run(&spread, 2_000_000, 25_000_000, 38);
    try expectEqual(16, spread.lanes);
}

test "a link keeps as many lanes as it begins with, and loses those that bring nothing" {
    // Goal: after a pause each lane begins slowly, so fewer of them would be slower. Method: a
    // link that is full with any number of lanes.
    var spread: Spread = .{ .lanes = Spread.first(100 * ms) };
    for (0..4) |_| {
        for (0..5 * 60) |_| {
            step_with(&spread, 25_000_000, true, false);
            try expect(spread.lanes >= 8);
        }
        try expectEqual(8, spread.lanes);
        spread.lanes = 32;
    }
}

test "lanes leave one by one, and come back at once if fewer carry less" {
    // Goal: what a lane carried has time to move to those that stay. Method: a full link that has
    // been given twice the lanes, and one on which each lane is capped.
    const lanes, const full = .{ 16, 25_000_000 };
    for ([_]struct { each: u64, left: u8 }{
        .{ .each = full, .left = 8 },
        .{ .each = 1_500_000, .left = lanes },
    }) |case| {
        var spread: Spread = .{ .lanes = lanes, .down = true };
        var before = spread.lanes;
        var fewest = spread.lanes;
        for (0..100) |_| {
            const rate = @min(spread.lanes * case.each, full);
            spread.step(&.{
                .ns = 100 * ms,
                .acked = rate / 10,
                .rtt_ns = 100 * ms,
                .base_ns = 100 * ms,
                .saturated = true,
            }, rate >= full / 8 * 7, false);
            try expect(spread.lanes + 1 >= before);
            before = spread.lanes;
            fewest = @min(fewest, spread.lanes);
        }
        try expectEqual(case.left, spread.lanes);
        try expect(case.left < lanes or (fewest < lanes and fewest > lanes - 4));
    }
}

test "trials that bring nothing become rare" {
    var spread: Spread = .{ .lanes = 4 };
    var more: usize = 0;
    for (0..600) |_| {
        run(&spread, 25_000_000, 25_000_000, 1);
        more += @intFromBool(spread.lanes > 4);
    }
    try expect(more > 2);
    try expect(more < 60);
}

test "what moves for a moment does not add lanes for good" {
    for ([_]bool{ false, true }) |is_lossy| {
        var prng: base.Prng = .init(1);
        var spread: Spread = .{ .lanes = 4 };
        var sum: usize = 0;
        const seconds = 4 * 3600;
        for (0..seconds) |_| {
            const noise = prng.below(4_000_000);
            run_on(&spread, 100_000_000, 23_000_000 + noise, 1, is_lossy);
            sum += spread.lanes;
        }
        try expect(sum / seconds <= 8);
    }
}

test "a link that is near keeps its lanes" {
    var spread: Spread = .{ .lanes = Spread.near };
    for (0..1000) |_| spread.step(&.{
        .ns = s,
        .acked = 1,
        .retransmitted = 0,
        .rtt_ns = ms,
        .base_ns = ms,
        .saturated = true,
    }, false, false);
    try expectEqual(Spread.near, spread.lanes);
}

test "lanes that lose packets become more though they decay at first" {
    // Method: connections that carry five times as much when they begin, and in each second a
    // quarter less of what is too much.
    const each: u64, const all: u64 = .{ 450_000, 25_000_000 };
    var spread: Spread = .{ .lanes = 8 };
    var carried = 5 * each * 8;
    var lanes = spread.lanes;
    for (0..20 * 5) |step| {
        const rate = @min(carried, all);
        step_with(&spread, rate, rate == all, step > 10);
        carried += 5 * each * (spread.lanes -| lanes);
        lanes = spread.lanes;
        const least = each * lanes;
        if (step % 5 == 0) carried = @max(least, carried - (carried - least) / 4);
    }
    try expectEqual(base.limits.lanes_per_link_max, spread.lanes);
}

test "where packets are lost lanes that bring nothing leave again, however many were tried" {
    // Method: a way that drops without a queue what is more than it carries, one that seems full
    // half of the time, and one that carries less with more lanes.
    for ([_]struct { moved: [3]u64, is_full: bool = false }{
        .{ .moved = .{ 25_000_000, 25_000_000, 25_000_000 } },
        .{ .moved = .{ 25_000_000, 25_000_000, 25_000_000 }, .is_full = true },
        .{ .moved = .{ 20_000_000, 15_000_000, 17_000_000 } },
    }) |case| {
        var spread: Spread = .{ .lanes = 8 };
        var most: u8 = 0;
        var sum: usize = 0;
        const steps = 5 * 7200;
        for (0..steps) |step| {
            const index: usize = if (spread.lanes <= 8) 0 else if (spread.lanes <= 16) 1 else 2;
            step_with(&spread, case.moved[index], case.is_full and step % 40 < 20, true);
            most = @max(most, spread.lanes);
            sum += spread.lanes;
        }
        try expect(most <= 32);
        try expect(sum / steps <= 9);
    }
}

test "a link that begins to lose packets has the lanes of before a trial, and never too few" {
    // Method: losses begin in a trial of fewer lanes, of more, and while those of a trial leave.
    for ([_]Spread{
        .{ .lanes = 11, .goal = 8, .down = true, .trial = .{ .lanes = 16, .moved = 1 } },
        .{ .lanes = 32, .trial = .{ .lanes = 16, .moved = 1 } },
        .{ .lanes = 19, .goal = 16 },
    }) |before| {
        var spread = before;
        for (0..100) |_| step_with(&spread, 25_000_000, true, true);
        try expectEqual(16, spread.lanes);
    }
    var spread: Spread = .{ .lanes = 11 };
    for (0..5 * 600) |_| step_with(&spread, 25_000_000, true, false);
    try expectEqual(8, spread.lanes);
}

test "what the run has set stays" {
    var spread: Spread = .{ .lanes = 1, .is_fixed = true };
    run(&spread, 1, 25_000_000, 60);
    try expectEqual(1, spread.lanes);
}
