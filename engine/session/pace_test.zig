//! Tests of pace.zig: a pacer on a path that carries so much and has a queue of so much time.

const std = @import("std");
const pace = @import("pace.zig");
const Interval = @import("pace.zig").Interval;
const Pacer = pace.Pacer;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;
const share = pace.share;

/// A link that carries so much, behind a queue of so much time; beyond that, packets are lost.
const Path = struct {
    carries: u64,
    base_ns: u64 = 100 * ms,
    queue_ns_max: u64 = 50 * ms,
    /// Others keep so much in the queue.
    foreign_ns: u64 = 0,
    /// Acknowledgements wait for so long, and whether that is known.
    back_ns: u64 = 0,
    knows_back: bool = false,
    /// It is less by so much after each interval, and acknowledgements come that much faster.
    back_falls_ns: u64 = 0,
    /// Packets that go again take the place of others.
    wastes: bool = false,
    /// TCP would send so much without a limit.
    wish: u64,
    queued: u64 = 0,
    lost: u64 = 0,

    const interval = 100 * ms;

    fn run(path: *Path, pacer: *Pacer, count: usize) void {
        for (0..count) |_| {
            const rate = if (pacer.rate == 0) path.wish else @min(pacer.rate, path.wish);
            const room = path.carries * interval / s;
            path.queued += rate * interval / s;
            const acked = @min(path.queued, room);
            path.queued -= acked;
            const most = path.carries * path.queue_ns_max / s;
            const lost = path.queued -| most;
            path.queued -= lost;
            path.lost += lost;
            const falls = @min(path.back_falls_ns, path.back_ns);
            path.back_ns -= falls;
            const waits = path.queued * s / path.carries + path.foreign_ns + path.back_ns;
            pacer.step(&.{
                .ns = interval,
                .acked = if (path.wastes) acked -| lost else acked * (interval + falls) / interval,
                .retransmitted = lost,
                .rtt_ns = path.base_ns + waits,
                .base_ns = path.base_ns,
                .back_ns = if (path.knows_back) path.back_ns else null,
                .saturated = true,
            });
        }
    }

    fn is_filled(path: *const Path, pacer: *const Pacer) bool {
        const hundredth = path.carries / 100;
        return pacer.found >= 90 * hundredth and pacer.found <= 111 * hundredth;
    }
};

const mbyte = 1_000_000;

test "a full link is held at what it carries, and loses nothing any more" {
    for ([_]u64{ 1, 25, 125 }) |carries| {
        var path: Path = .{ .carries = carries * mbyte, .wish = 2 * carries * mbyte };
        var pacer: Pacer = .{};
        path.run(&pacer, 40);
        try expect(path.is_filled(&pacer));
        const lost = path.lost;
        path.run(&pacer, 600);
        try expect(path.is_filled(&pacer));
        try expectEqual(lost, path.lost);
    }
}

test "a link that carries more or less is followed" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte };
    var pacer: Pacer = .{};
    path.run(&pacer, 40);
    path.carries /= 2;
    path.run(&pacer, 40);
    try expect(path.is_filled(&pacer));
    path.carries *= 8;
    path.run(&pacer, 200);
    try expect(path.is_filled(&pacer));
}

test "a link that carries a little less is held at a little less" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte };
    var pacer: Pacer = .{};
    path.run(&pacer, 60);
    path.carries = 23 * mbyte;
    path.run(&pacer, 200);
    try expect(pacer.found >= 22 * mbyte and pacer.found <= path.carries / 64 * 66);
}

test "a limit that was found too low is left behind within seconds" {
    // Goal: a queue of the other direction, in which acknowledgements wait, costs little. Method:
    // a link is held at a quarter of what it carries.
    var path: Path = .{ .carries = 60 * mbyte, .wish = 400 * mbyte };
    var pacer: Pacer = .{
        .state = .held,
        .rate = 14 * mbyte,
        .found = 15 * mbyte,
        .most = 15 * mbyte,
    };
    path.run(&pacer, 40);
    try expect(path.is_filled(&pacer));
    try expect(path.lost <= path.carries / 20);
}

test "a link that is full is tried now and then, and sooner after a trial that brought more" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte };
    var pacer: Pacer = .{};
    path.run(&pacer, 400);
    try expectEqual(8 * s, pacer.probe_after);
    pacer.found = 20 * mbyte;
    pacer.rate = 20 * mbyte;
    while (pacer.state != .probing) path.run(&pacer, 1);
    while (pacer.state == .probing) path.run(&pacer, 1);
    try expect(pacer.probe_after <= 1 * s);
}

test "a link that TCP does not fill is not limited" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 20 * mbyte };
    var pacer: Pacer = .{};
    path.run(&pacer, 200);
    try expectEqual(0, pacer.rate);
    try expectEqual(0, path.lost);
}

test "a queue of others does not starve this peer" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 20 * mbyte, .foreign_ns = 40 * ms };
    var pacer: Pacer = .{};
    var limited: usize = 0;
    for (0..600) |_| {
        path.run(&pacer, 1);
        limited += @intFromBool(pacer.rate > 0 and pacer.rate < 19 * mbyte);
        try expect(pacer.rate == 0 or pacer.rate >= 14 * mbyte);
    }
    try expect(limited < 100);
}

test "moments in which others crowd a link do not add up" {
    // Goal: a link that others crowd now and then stays in use. Method: a queue of theirs for a
    // part of each period; this peer alone could send 20 MB/s all the time.
    for ([_][2]usize{ .{ 3, 7 }, .{ 2, 5 }, .{ 1, 3 }, .{ 5, 10 } }) |pattern| {
        var path: Path = .{ .carries = 25 * mbyte, .wish = 20 * mbyte };
        var pacer: Pacer = .{};
        var sum: u64 = 0;
        const count = 2400;
        for (0..count) |index| {
            path.foreign_ns = if (index % pattern[1] < pattern[0]) 60 * ms else 0;
            sum += if (pacer.rate == 0) path.wish else @min(pacer.rate, path.wish);
            path.run(&pacer, 1);
        }
        try expect(sum / count >= 14 * mbyte);
    }
}

test "a queue that only acknowledgements wait in costs a link little" {
    // Goal: the way back is that of a peer whose own link is full, as round a ring. Method: its
    // queue stands for a minute, or comes with each of its trials and goes again.
    for ([_]usize{ 600, 6 }) |stands| {
        var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte };
        var pacer: Pacer = .{};
        path.run(&pacer, 60);
        try expect(path.is_filled(&pacer));
        const lost = path.lost;
        var sum: u64 = 0;
        for (0..600) |index| {
            path.foreign_ns = if (index % (10 * stands) < stands) 50 * ms else 0;
            path.run(&pacer, 1);
            sum += @min(pacer.rate, path.carries);
            try expect(pacer.rate > 0);
        }
        try expect(sum / 600 >= path.carries / 16 * 15);
        try expect(path.lost - lost <= path.carries / 10);
    }
}

test "a queue that acknowledgements are known to wait in costs a link nothing" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte, .knows_back = true };
    var pacer: Pacer = .{};
    path.run(&pacer, 60);
    var limited: usize = 0;
    for (0..50) |turn| {
        path.back_ns = turn % 2 * 60 * ms;
        for (0..9) |_| {
            path.run(&pacer, 1);
            limited += @intFromBool(pacer.rate < path.carries / 64 * 62);
        }
    }
    try expect(limited < 30);
    try expect(pacer.found >= path.carries / 64 * 63);
}

test "a limit that is a little too high is right once its queue is gone" {
    // Goal: what arrives while packets wait is what the link carries, to a hundredth, and is held
    // at a 128th less. Method: it is held a fortieth too high, and a queue comes by itself, while
    // acknowledgements wait less and less, or not at all.
    const Case = struct { knows_back: bool = true, falls_ns: u64 = 0, loses: bool = false };
    for ([_]Case{
        .{},
        .{ .falls_ns = 5 * ms },
        .{ .knows_back = false },
        .{ .loses = true },
    }) |case| {
        var path: Path = .{
            .carries = 40 * mbyte,
            .wish = 400 * mbyte,
            .knows_back = case.knows_back,
            .queue_ns_max = if (case.loses) 24 * ms else 200 * ms,
            .back_ns = 20 * case.falls_ns,
            .back_falls_ns = case.falls_ns,
        };
        var pacer: Pacer = .{
            .state = .held,
            .rate = 41 * mbyte,
            .found = 41 * mbyte,
            .most = 41 * mbyte,
            .probe_after = 60 * s,
        };
        while (pacer.state == .held) path.run(&pacer, 1);
        while (pacer.state == .draining) path.run(&pacer, 1);
        const is_right = pacer.found >= 396 * mbyte / 10 and pacer.found <= 404 * mbyte / 10;
        try expectEqual(case.knows_back and !case.loses, is_right);
        if (is_right) try expectEqual(pacer.found - pacer.found / 128, pacer.rate);
        if (is_right) try expectEqual(0, pacer.lowered);
    }
}

test "what arrives while a queue overflows is less than what a link carries" {
    var path: Path = .{
        .carries = 40 * mbyte,
        .wish = 50 * mbyte,
        .knows_back = true,
        .wastes = true,
        .queue_ns_max = 150 * ms,
    };
    var pacer: Pacer = .{};
    while (pacer.state != .held) path.run(&pacer, 1);
    try expect(path.lost > 0);
    try expect(pacer.found >= path.carries / 128 * 127);
}

/// A flow of others that goes through the same queue, and fills it as TCP does: it sends more and
/// more until something is lost.
const Rival = struct {
    carries: u64 = 25 * mbyte,
    queue_ns_max: u64,
    knows_back: bool,
    ours: u64 = 0,
    theirs: u64 = 0,
    rate: u64 = mbyte,
    since_loss_ns: u64 = s,

    const step_ns = 5 * ms;

    /// The bytes that this peer gets through in a tenth of a second.
    fn run(rival: *Rival, pacer: *Pacer) u64 {
        var acked: u64 = 0;
        var lost: u64 = 0;
        for (0..20) |_| {
            const most: u64 = 60 * mbyte;
            const rate = if (pacer.rate == 0) most else @min(pacer.rate, most);
            rival.ours += rate * step_ns / s;
            rival.theirs += rival.rate * step_ns / s;
            const all = rival.ours + rival.theirs;
            const out = @min(all, rival.carries * step_ns / s);
            const our_part = out * rival.ours / all;
            acked += our_part;
            rival.ours -= our_part;
            rival.theirs -= out - our_part;
            rival.since_loss_ns += step_ns;
            rival.rate += 700_000 * step_ns / s;
            const over = (all - out) -| rival.carries * rival.queue_ns_max / s;
            if (over == 0) continue;
            const our_loss = over * rival.ours / (all - out);
            lost += our_loss;
            rival.ours -= our_loss;
            rival.theirs -= over - our_loss;
            if (rival.since_loss_ns <= 150 * ms) continue;
            rival.rate = rival.rate / 10 * 7;
            rival.since_loss_ns = 0;
        }
        const waits = (rival.ours + rival.theirs) * s / rival.carries;
        pacer.step(&.{
            .ns = 100 * ms,
            .acked = acked,
            .retransmitted = lost,
            .rtt_ns = 100 * ms + waits,
            .base_ns = 100 * ms,
            .back_ns = if (rival.knows_back) 0 else null,
            .saturated = true,
        });
        return acked;
    }
};

test "a flow that fills the queue takes no more of a link whose way back is known" {
    for ([_]u64{ 30, 60, 100, 200, 400 }) |queue_ms| {
        var moved: [2]u64 = @splat(0);
        for ([_]bool{ false, true }, &moved) |knows_back, *ours| {
            var rival: Rival = .{ .queue_ns_max = queue_ms * ms, .knows_back = knows_back };
            var pacer: Pacer = .{};
            for (0..3000) |_| ours.* += rival.run(&pacer);
        }
        try expect(moved[1] >= moved[0] / 10 * 9);
    }
}

test "acknowledgements that a shrinking queue hands out faster say nothing of the link" {
    // Goal: no link is found to carry more than it does. Method: a queue on the way back shrinks
    // by 40 ms in 400, again and again, and hands out what was sent when there was no limit.
    const carries = 24 * mbyte;
    var pacer: Pacer = .{ .state = .held, .rate = carries, .found = carries, .most = carries };
    for (0..600) |index| {
        const turn = index % 20;
        const waits: u64 = if (turn < 8) 50 else if (turn < 12) (12 - turn) * 10 else 0;
        const is_shrinking = turn >= 8 and turn < 12;
        pacer.step(&.{
            .ns = 100 * ms,
            .acked = if (is_shrinking) carries / 100 * 11 else @min(pacer.rate, carries) / 10,
            .rtt_ns = (60 + waits) * ms,
            .base_ns = 60 * ms,
            .saturated = true,
        });
        try expect(pacer.found <= carries / 32 * 33);
    }
    try expect(pacer.found >= carries / 4 * 3);
}

test "a queue that overflows again and again is found, also by a link that is never kept busy" {
    // Goal: TCP that takes all it is given, and loses much of it, is held back. Method: each burst
    // is given in one interval, so none has more to send all the time.
    const floods: Pacer.Signs = .{ .full_after_overflow = 600 * ms };
    var pacer: Pacer = .{ .signs = floods };
    for (0..40) |index| pacer.step(&.{
        .ns = 100 * ms,
        .acked = 6 * mbyte,
        .given = if (index % 5 == 0) 30 * mbyte else 0,
        .retransmitted = if (index % 2 == 0) mbyte else 0,
        .rtt_ns = if (index % 3 == 2) 115 * ms else 150 * ms,
        .base_ns = 100 * ms,
        .known = 50 * mbyte,
    });
    try expect(pacer.found >= 50 * mbyte and pacer.found <= 61 * mbyte);
    // Neither packets that are lost while there is no queue are a sign of it, nor is little that is
    // lost in the queue of others.
    for ([_]struct { rtt: u64, sent: u64 }{
        .{ .rtt = 101, .sent = 6 * mbyte },
        .{ .rtt = 150, .sent = 2 * mbyte },
    }) |case| {
        pacer = .{ .signs = floods };
        for (0..100) |index| {
            const is_end = index % 50 > 46;
            pacer.step(&.{
                .ns = 100 * ms,
                .acked = case.sent,
                .retransmitted = if (is_end) 0 else case.sent / 10,
                .rtt_ns = if (is_end) 150 * ms else case.rtt * ms,
                .base_ns = 100 * ms,
                .known = 50 * mbyte,
            });
            try expectEqual(0, pacer.rate);
        }
    }
}

test "a link that stands still for a moment is not held at less" {
    // Goal: a hiccup of the network costs no rate. Method: goodput in MB/s and round trip in ms,
    // as a link of 24 MB/s with cubic gave them: twice within half a second it was late.
    const seen = [_][2]f64{
        .{ 22.4, 24 }, .{ 14.3, 50 }, .{ 19.8, 60 }, .{ 17.8, 67 }, .{ 19.2, 62 },
        .{ 18.3, 61 }, .{ 25.4, 24 }, .{ 21.2, 34 }, .{ 18.6, 33 }, .{ 22.9, 24 },
        .{ 14.9, 50 }, .{ 19.4, 44 }, .{ 24.9, 36 }, .{ 23.7, 26 }, .{ 22.3, 25 },
    };
    const found = 21 * mbyte;
    var pacer: Pacer = .{ .state = .held, .found = found, .most = found };
    for (seen) |one| pacer.step(&.{
        .ns = 100 * ms,
        .acked = @intFromFloat(one[0] * mbyte / 10),
        .retransmitted = 0,
        .rtt_ns = @intFromFloat(one[1] * ms),
        .base_ns = 22 * ms,
        .saturated = true,
    });
    try expect(pacer.found >= found);
}

test "an idle link keeps what was found" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 100 * mbyte };
    var pacer: Pacer = .{};
    path.run(&pacer, 40);
    const found = pacer.found;
    const idle: Interval = .{
        .ns = 100 * ms,
        .rtt_ns = 100 * ms,
        .base_ns = 100 * ms,
        .saturated = false,
    };
    for (0..100) |_| pacer.step(&idle);
    try expectEqual(found, pacer.found);
    try expect(pacer.rate > 0);
}

test "after minutes without a byte more than the old limit is tried at once" {
    // Goal: a network that has become faster meanwhile is used within seconds, and one that has
    // become slower is not overrun. Method: one operation's worth of seconds after a pause.
    for ([_]u64{ 25, 100, 12 }) |carries| {
        var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte };
        var pacer: Pacer = .{};
        path.run(&pacer, 40);
        path = .{ .carries = carries * mbyte, .wish = 400 * mbyte };
        const before = pacer.rate;
        pacer.rest(pace.half_life_ns - 1);
        try expectEqual(before, pacer.rate);
        pacer.rest(pace.half_life_ns);
        try expect(pacer.rate > before and pacer.rate <= pacer.found / 4 * 5 + 4);
        path.run(&pacer, 60);
        try expect(path.is_filled(&pacer));
        // Less than what a quarter more brings in a second.
        try expect(carries < 25 or path.lost <= 8 * mbyte);
    }
}

test "a link that has no limit yet is tried soon after it has one, whatever rested before" {
    var path: Path = .{ .carries = 25 * mbyte, .wish = 400 * mbyte };
    var pacer: Pacer = .{ .signs = .{ .probe_after = 500 * ms } };
    pacer.rest(10 * pace.half_life_ns);
    while (pacer.state != .held) path.run(&pacer, 1);
    path.run(&pacer, 5);
    try expectEqual(.probing, pacer.state);
}

test "a queue of others is forgotten after minutes without a byte" {
    var pacer: Pacer = .{ .state = .yielding, .found = mbyte };
    pacer.rest(pace.half_life_ns);
    try expectEqual(.probing, pacer.state);
    try expectEqual(mbyte / 4 * 5, pacer.rate);
}

test "what a slow lane leaves goes to the others" {
    var shares: [4]u64 = undefined;
    share(0, &.{ 1, 2, 3, 4 }, &shares);
    try expectEqual([4]u64{ 0, 0, 0, 0 }, shares);
    share(400, &.{ 100, 100, 100, 100 }, &shares);
    try expectEqual([4]u64{ 100, 100, 100, 100 }, shares);
    share(400, &.{ 10, 130, 130, 130 }, &shares);
    try expectEqual([4]u64{ 100, 130, 130, 130 }, shares);
    share(400, &.{ 0, 0, 0, 0 }, &shares);
    try expectEqual([4]u64{ 100, 100, 100, 100 }, shares);
}
