//! spread: over how many lanes a link is spread. Each lane is a TCP connection, which loss, a cap
//! per flow or its windows may hold below what the link carries: then twice as many are tried, and
//! kept if they bring more. A full link gains nothing by more of them, but one that caps each flow
//! looks like it, because each has a queue: so more are tried there too, rarely. Among numbers that
//! are as good the smallest is kept, but not less than a link begins with: lanes take shares from
//! others on the way, and after a pause few of them begin slowly.
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
    /// For so long a lane was idle in it while the link moved a lot: round a ring it is not the one
    /// that all wait for.
    free_ns: u64 = 0,
    /// The trial under way: how many lanes there were, and what they moved, bytes per second.
    trial: ?struct { lanes: u8, moved: u64 } = null,
    /// The round that begins a trial does not count: new connections start slowly.
    is_warm: bool = true,
    /// The link loses packets that no full queue drops. Then connections decay for seconds after
    /// they have begun, so one trial that brings nothing says little, and the next one follows.
    /// Fewer lanes are not tried: each carries what it can, and the sum varies by more than one.
    is_lossy: bool = false,
    /// Since the last one that brought something there has been such a trial.
    is_forgiven: bool = false,
    /// Saturated time until the next trial, and how long after one that brought nothing.
    rest: u64 = 0,
    rest_next: u64 = rest_min,
    /// The same of a link that seems full.
    full_rest: u64 = full_rest_min,
    full_rest_next: u64 = full_rest_min,
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
    const full_rest_min = 30 * s;
    const full_rest_max = 960 * s;
    /// Those that stay have grown so many round trips after one has left.
    const leave_trips = 4;
    const leave_ns = 500 * ms;
    /// Twice the lanes must bring one part in so many more; half of them may bring one less.
    const gain_part = 8;
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
        if (spread.is_fixed or i.base_ns < far_ns) return;
        if (!i.saturated) return spread.note_free(i);
        if (is_lossy and !spread.is_lossy) spread.begin_anew();
        spread.is_lossy = is_lossy;
        spread.ns += i.ns;
        spread.acked += i.acked;
        if (is_full) spread.full_ns += i.ns;
        spread.rest -|= i.ns;
        spread.full_rest -|= i.ns;
        if (spread.goal) |goal| return spread.leave(i, goal);
        const least_ns: u64 = if (is_lossy) round_lossy_ns else round_ns;
        if (spread.ns < @max(least_ns, round_trips * i.base_ns)) return;
        const is_limit = spread.free_ns <= spread.ns;
        const goodput, const was_full = spread.end_round();
        if (!spread.is_warm) {
            spread.is_warm = true;
        } else if (spread.trial) |before| {
            if (spread.is_lossy and was_full) {
                spread.trial = null; // they are enough
            } else spread.judge(before.lanes, before.moved, goodput);
        } else if (spread.rest == 0 and is_limit)
            spread.begin(goodput, was_full, first(i.base_ns));
    }

    /// A link that others waited for until it got more lanes has shown that they bring something.
    fn note_free(spread: *Spread, i: *const Interval) void {
        if (i.acked == 0 or i.goodput() < i.known / 4) return;
        spread.free_ns += i.ns;
        if (spread.trial == null or spread.down or !spread.is_warm) return;
        if (spread.free_ns < round_ns or spread.free_ns < 2 * spread.ns) return;
        spread.trial = null;
        spread.keep();
    }

    fn keep(spread: *Spread) void {
        spread.rest_next = rest_min;
        if (!spread.down) spread.full_rest_next = full_rest_min;
        spread.is_forgiven = false;
    }

    /// Lanes that had lost nothing yet say nothing of how much those carry that lose packets.
    fn begin_anew(spread: *Spread) void {
        _ = spread.end_round();
        spread.down = false;
        spread.goal = null;
        spread.trial = null;
        spread.rest = 0;
    }

    fn begin(spread: *Spread, goodput: u64, was_full: bool, fewest: u8) void {
        const most = base.limits.lanes_per_link_max;
        const may_lose = spread.lanes > fewest and !spread.is_lossy;
        const may_add = (!was_full or spread.full_rest == 0) and spread.lanes < most;
        if (!may_lose and !may_add) return;
        spread.down = may_lose and (spread.down or !may_add);
        if (!spread.down) return spread.double(spread.lanes, goodput);
        spread.trial = .{ .lanes = spread.lanes, .moved = goodput };
        spread.goal = spread.lanes / 2;
    }

    /// `lanes`: so many there are again if those to come bring nothing.
    fn double(spread: *Spread, lanes: u8, goodput: u64) void {
        spread.trial = .{ .lanes = lanes, .moved = goodput };
        spread.lanes = @min(spread.lanes * 2, base.limits.lanes_per_link_max);
        spread.is_warm = false;
    }

    fn leave(spread: *Spread, i: *const Interval, goal: u8) void {
        if (spread.ns < @max(leave_ns, leave_trips * i.base_ns)) return;
        const goodput, const was_full = spread.end_round();
        if (spread.trial) |before| {
            if (!was_full and goodput < before.moved - before.moved / loss_part)
                return spread.judge(before.lanes, before.moved, goodput);
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
            spread.free_ns = 0;
        }
        return .{ pace.per_second(spread.acked, spread.ns), spread.full_ns * 2 > spread.ns };
    }

    fn judge(spread: *Spread, lanes: u8, moved: u64, goodput: u64) void {
        spread.trial = null;
        const is_kept = if (spread.down)
            goodput > moved - moved / loss_part
        else
            goodput > moved + moved / gain_part;
        if (is_kept) return spread.keep();
        if (spread.is_lossy and !spread.is_forgiven) {
            spread.is_forgiven = true;
            return spread.double(lanes, goodput);
        }
        spread.goal = if (lanes < spread.lanes) lanes else null;
        spread.lanes = @max(spread.lanes, lanes);
        spread.rest = spread.rest_next;
        spread.rest_next = @min(spread.rest_next * 2, rest_max);
        if (!spread.down) {
            spread.full_rest = spread.full_rest_next;
            spread.full_rest_next = @min(spread.full_rest_next * 2, full_rest_max);
        }
        spread.down = !spread.down;
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
        }, false, false);
    }
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
            spread.step(&.{
                .ns = 200 * ms,
                .acked = 5_000_000,
                .rtt_ns = 100 * ms,
                .base_ns = 100 * ms,
                .saturated = true,
            }, true, false);
            try expect(spread.lanes >= 8);
        }
        try expectEqual(8, spread.lanes);
        spread.lanes = 32;
    }
}

test "more lanes are tried where a link seems full, and rarely where it is" {
    // Goal: a cap of each flow is found, though each has a queue of its own. Method: links that
    // seem full with any number of lanes; one of them caps each lane.
    const all = 25_000_000;
    for ([_]struct { each: u64, lanes: u8, mean: usize }{
        .{ .each = 2_000_000, .lanes = 16, .mean = 16 },
        .{ .each = all, .lanes = 8, .mean = 8 },
    }) |case| {
        var spread: Spread = .{ .lanes = 8 };
        const seconds = 3600;
        var sum: usize = 0;
        for (0..5 * seconds) |_| {
            spread.step(&.{
                .ns = 200 * ms,
                .acked = @min(spread.lanes * case.each, all) / 5,
                .rtt_ns = 140 * ms,
                .base_ns = 100 * ms,
                .saturated = true,
            }, true, false);
            sum += spread.lanes;
        }
        try expectEqual(case.lanes, spread.lanes);
        try expectEqual(case.mean, (sum + 5 * seconds / 2) / (5 * seconds));
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
    var prng: base.Prng = .init(1);
    var spread: Spread = .{ .lanes = 4 };
    var sum: usize = 0;
    const seconds = 4 * 3600;
    for (0..seconds) |_| {
        const noise = prng.below(4_000_000);
        run(&spread, 100_000_000, 23_000_000 + noise, 1);
        sum += spread.lanes;
    }
    try expect(sum / seconds <= 8);
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

test "lanes that lose packets become more though they decay at first, and no queue is no proof" {
    // Method: connections that carry five times as much when they begin, and in each second a
    // quarter less of what is too much; then a way that drops without a queue what is more than it
    // carries.
    const each: u64, const all: u64 = .{ 450_000, 25_000_000 };
    var spread: Spread = .{ .lanes = 8 };
    var carried = 5 * each * 8;
    var lanes = spread.lanes;
    for (0..20 * 5) |step| {
        const rate = @min(carried, all);
        spread.step(&.{
            .ns = 200 * ms,
            .acked = rate / 5,
            .rtt_ns = 100 * ms,
            .base_ns = 100 * ms,
            .saturated = true,
        }, rate == all, step > 10);
        carried += 5 * each * (spread.lanes -| lanes);
        lanes = spread.lanes;
        const least = each * lanes;
        if (step % 5 == 0) carried = @max(least, carried - (carried - least) / 4);
    }
    try expectEqual(base.limits.lanes_per_link_max, spread.lanes);

    spread = .{ .lanes = 8 };
    var most: u8 = 0;
    var sum: usize = 0;
    const seconds = 1800;
    for (0..seconds) |_| {
        for (0..5) |_| spread.step(&.{
            .ns = 200 * ms,
            .acked = all / 10,
            .rtt_ns = 100 * ms,
            .base_ns = 100 * ms,
            .saturated = true,
        }, false, true);
        most = @max(most, spread.lanes);
        sum += spread.lanes;
    }
    try expectEqual(32, most);
    try expect(sum / seconds <= 9);
}

test "a link that others had to wait for keeps the lanes after which they need not" {
    // Goal: of links that limit each other round a ring each gets its lanes, and none gets more
    // that is not waited for. Method: lanes that are capped, in a ring whose other links carry
    // hardly more than the first of them.
    const each, const ring = .{ 2_500_000, 10_500_000 };
    var spread: Spread = .{ .lanes = 4 };
    for (0..5 * 600) |_| {
        const rate: u64 = spread.lanes * @as(u64, each);
        spread.step(&.{
            .ns = 200 * ms,
            .acked = @min(rate, ring) / 5,
            .rtt_ns = 100 * ms,
            .base_ns = 100 * ms,
            .saturated = rate <= ring,
            .known = ring,
        }, false, false);
    }
    try expectEqual(8, spread.lanes);
}

test "what the run has set stays" {
    var spread: Spread = .{ .lanes = 1, .is_fixed = true };
    run(&spread, 1, 25_000_000, 60);
    try expectEqual(1, spread.lanes);
}
