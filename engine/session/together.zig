//! together: links of this peer that send at the same time, as in the direct schedule. The queue
//! that all of them wait in is that of the peer's own way out, and no link alone knows what that
//! carries: each would find what the others leave, and keep to that after they have ended. So the
//! sum of them has a limit of its own, found as that of one link is (pace.zig), and each has its
//! part of it. A link on which packets wait longer, while others are calm, is its own limit.
//!
//! Pure: no lane, no socket, no clock. measure.zig calls it.

const std = @import("std");
const pace = @import("pace.zig");
const Peak = @import("peak.zig").Peak;
const Interval = @import("interval.zig").Interval;
const per_second = @import("interval.zig").per_second;
const ms = std.time.ns_per_ms;

pub const Together = struct {
    /// A call may be shorter than it takes to know one link.
    pacer: pace.Pacer = .{ .signs = .{
        .full_after = 400 * ms,
        .full_after_loss = 200 * ms,
        .held_after = 150 * ms,
        .probe_after = 500 * ms,
        .probe_part = 4,
        .intervals = 2,
        .is_brief = true,
    } },
    /// The most that they carried at once, while some had more to send and no queue stood. In the
    /// first call all peers overfill each other's ways, so less arrives while it stands.
    carried: Peak = .{},
    /// In the last interval the system was given a quarter of what was acknowledged, at least.
    was_given: bool = false,
    /// So many sent much when last several did.
    senders: u64 = 0,
    /// Now.
    now: Sum = .{},

    /// In an interval.
    pub const Sum = struct {
        /// All links together, first: what was acknowledged, and what moved.
        acked_by_all: u64 = 0,
        moved_by_all: u64 = 0,
        given_by_all: u64 = 0,
        /// Some had more to send all the time.
        is_telling: bool = false,
        /// Those that send much.
        senders: u64 = 0,
        /// Those that are said to have sent much by acknowledgements, which come a round trip
        /// later, and what they say.
        links: u64 = 0,
        acked: u64 = 0,
        retransmitted: u64 = 0,
        /// The shortest time that packets of one wait, and the longest way.
        waits_ns: u64 = std.math.maxInt(u64),
        base_ns: u64 = 0,
        lanes: u64 = 0,
        lanes_busy: u64 = 0,
        /// The most that any of them is known to carry, bytes per second.
        carries: u64 = 0,
        /// Those that leave something of their part, and what they move, bytes per second.
        slow: u64 = 0,
        slow_rate: u64 = 0,

        pub fn note(sum: *Sum, i: *const Interval) void {
            sum.acked_by_all +|= i.acked;
            sum.moved_by_all +|= i.moved();
            sum.given_by_all +|= i.given;
            sum.is_telling = sum.is_telling or i.is_telling();
        }
    };

    /// One that moves less than this part of all is not one of them.
    const little_part = 8;

    /// `now`: all links are noted.
    pub fn begin(t: *Together, now: Sum) void {
        t.now = now;
    }

    pub fn is_one(t: *const Together, i: *const Interval) bool {
        return i.acked > 0 and i.acked >= t.now.acked_by_all / little_part;
    }

    /// It sends much while others do.
    pub fn shares(t: *const Together, i: *const Interval) bool {
        return t.now.senders >= 2 and t.is_sender(i);
    }

    fn is_sender(t: *const Together, i: *const Interval) bool {
        return i.moved() > 0 and i.moved() >= t.now.moved_by_all / little_part;
    }

    pub fn add(
        t: *Together,
        i: *const Interval,
        carries: u64,
        lanes: u64,
        lanes_busy: u64,
    ) void {
        const now = &t.now;
        now.senders += @intFromBool(t.is_sender(i));
        if (!t.is_one(i)) return;
        now.links += 1;
        now.acked +|= i.acked;
        now.retransmitted +|= i.retransmitted;
        now.waits_ns = @min(now.waits_ns, i.round());
        now.base_ns = @max(now.base_ns, i.base_ns);
        now.carries = @max(now.carries, carries);
        now.lanes += lanes;
        now.lanes_busy += lanes_busy;
    }

    /// All are added. `is_late`: the process stood still.
    pub fn step(t: *Together, ns: u64, is_late: bool) void {
        if (t.now.senders >= 2) t.senders = t.now.senders;
        const is_known = t.now.is_telling and t.now.senders >= 2 and t.is_calm();
        if (is_known) t.carried.sent(t.now.acked_by_all, ns) else t.carried.pause();
        // When nothing is left to send, acknowledgements of far links trail behind those of near.
        const is_given = t.now.given_by_all > t.now.acked_by_all / 4;
        const may_tell = is_given or t.was_given;
        t.was_given = is_given;
        const sum: Interval = .{
            .ns = ns,
            .acked = t.now.acked,
            .retransmitted = t.now.retransmitted,
            .rtt_ns = t.now.base_ns +| t.now.waits_ns,
            .base_ns = t.now.base_ns,
            .saturated = !is_late and may_tell and t.now.links >= 2 and t.are_busy(ns),
            .known = t.carried.rate,
        };
        t.pacer.step(&sum);
    }

    /// Nothing has moved for so long.
    pub fn rest(t: *Together, ns: u64) void {
        t.carried.rest(ns);
        t.pacer.rest(ns);
    }

    /// They use what they carry together. Lanes of several links wait for credits now and then; and
    /// where a call is short, all of it is with the system before half a queue is gone.
    fn are_busy(t: *const Together, ns: u64) bool {
        if (t.now.lanes_busy * 4 >= t.now.lanes) return true;
        const is_much = per_second(t.now.acked, ns) >= t.now.carries / 4;
        return t.now.carries > 0 and is_much and !t.is_calm();
    }

    /// Packets of some link hardly wait.
    fn is_calm(t: *const Together) bool {
        return t.now.waits_ns <= Interval.queue_ns / 2;
    }

    /// All of them wait: none is its own limit.
    pub fn is_common(t: *const Together) bool {
        return t.now.links >= 2 and t.now.waits_ns > Interval.queue_ns;
    }

    /// Before `part`, once the sum has a limit.
    pub fn note_slow(t: *Together, i: *const Interval) void {
        if (!t.is_sender(i) or !t.is_slow(i)) return;
        t.now.slow += 1;
        t.now.slow_rate +|= per_second(i.moved(), i.ns);
    }

    /// Bytes per second for a link; 0: no limit. One that is idle may begin at the same time as
    /// those that sent together before. The others have all that slow ones leave.
    pub fn part(t: *const Together, i: *const Interval) u64 {
        const rate = t.pacer.rate;
        if (rate == 0) return 0;
        if (!t.is_sender(i)) return @max(1, rate / @max(1, t.senders));
        if (t.now.senders < 2) return 0;
        const fast = t.now.senders - t.now.slow;
        if (fast == 0 or t.is_slow(i)) return @max(1, t.even());
        return @max(1, (rate -| t.now.slow_rate) / fast);
    }

    fn is_slow(t: *const Together, i: *const Interval) bool {
        return pace.is_slow(per_second(i.moved(), i.ns), t.even());
    }

    fn even(t: *const Together) u64 {
        return t.pacer.rate / @max(1, t.now.senders);
    }
};

// ---- a way out to try it on

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

/// Links that share a queue of 50 ms before what they all go through.
const WayOut = struct {
    carries: u64,
    /// As Together.add has them.
    lanes_busy: u64 = 8,
    /// Somebody else sends so much there, bytes per second.
    others: u64 = 0,
    queued: u64 = 0,
    lost: u64 = 0,
    moved: u64 = 0,
    together: Together = .{},
    links: [3]Interval = @splat(.{}),

    const ns = 100 * ms;
    const queue_ns_max = 50 * ms;
    const distances = [_]u64{ 60 * ms, 90 * ms, 150 * ms };

    /// `wishes`: what TCP would send on each without a limit, bytes per second.
    fn run(out: *WayOut, wishes: [3]u64, intervals: usize) void {
        for (0..intervals) |_| {
            var sent: [3]u64 = undefined;
            var all: u64 = 0;
            for (&sent, wishes, &out.links) |*each, wish, *link| {
                const part = out.together.part(link);
                each.* = (if (part == 0) wish else @min(part, wish)) / 10;
                all += each.*;
            }
            const room = out.carries / 10;
            const before = out.queued;
            out.queued += all + out.others / 10;
            const acked = @min(out.queued, room) * all / @max(1, all + out.others / 10);
            out.queued -= @min(out.queued, room);
            const dropped = out.queued -| out.carries / 20;
            out.queued -= dropped;
            out.lost += dropped;
            out.moved += acked;
            const waits = @max(before, out.queued) * 1000 / out.carries * ms;
            for (&out.links, sent, distances) |*link, each, base_ns| link.* = .{
                .ns = ns,
                .acked = if (all == 0) 0 else acked * each / all,
                .given = each,
                .retransmitted = if (all == 0) 0 else dropped * each / all,
                .rtt_ns = base_ns + waits,
                .base_ns = base_ns,
                .saturated = true,
            };
            out.step();
        }
    }

    fn step(out: *WayOut) void {
        const t = &out.together;
        hear(t, &.{ &out.links[0], &out.links[1], &out.links[2] }, out.carries, out.lanes_busy);
        t.step(ns, false);
        for (&out.links) |*link| t.note_slow(link);
    }
};

/// All that the links have done in an interval.
fn hear(t: *Together, links: []const *const Interval, carries: u64, lanes_busy: u64) void {
    var sum: Together.Sum = .{};
    for (links) |link| sum.note(link);
    t.begin(sum);
    for (links) |link| t.add(link, carries, 8, lanes_busy);
}

const mbyte = 1_000_000;

test "what links send together is held to what they carry together, each with its part" {
    var out: WayOut = .{ .carries = 24 * mbyte };
    out.run(@splat(20 * mbyte), 100);
    const moved, const lost = .{ out.moved, out.lost };
    out.run(@splat(20 * mbyte), 300);
    // Nearly all of it is used for half a minute, and nearly nothing overflows.
    try expect(out.moved - moved > 24 * mbyte * 30 / 10 * 9);
    try expect(out.lost - lost < 24 * mbyte * 30 / 100);
    for (&out.links) |*link| try expect(link.goodput() > 6 * mbyte);
}

test "what a slow link leaves of its part goes to the others" {
    var out: WayOut = .{ .carries = 24 * mbyte };
    const wishes = [_]u64{ 4 * mbyte, 20 * mbyte, 20 * mbyte };
    out.run(wishes, 100);
    const moved = out.moved;
    out.run(wishes, 300);
    try expect(out.moved - moved > 24 * mbyte * 30 / 10 * 9);
    try expect(out.links[0].goodput() > 3 * mbyte);
    try expect(out.links[1].goodput() > 8 * mbyte);
}

test "a link that sends alone has no limit by this, and those that are idle may begin together" {
    var out: WayOut = .{ .carries = 24 * mbyte };
    out.run(@splat(20 * mbyte), 100);
    out.run(.{ 0, 0, 20 * mbyte }, 1);
    const rate = out.together.pacer.rate;
    try expect(rate > 20 * mbyte);
    try expectEqual(0, out.together.part(&out.links[2]));
    try expectEqual(rate / 3, out.together.part(&out.links[0]));
    // Alone it can make a queue: that is for its own limit.
    out.run(.{ 0, 0, 90 * mbyte }, 30);
    try expect(!out.together.is_common());
    try expectEqual(rate, out.together.pacer.rate);
}

test "links that never sent together have no limit by this" {
    var out: WayOut = .{ .carries = 24 * mbyte };
    for (0..60) |turn| {
        var wishes: [3]u64 = @splat(0);
        wishes[turn % 3] = 60 * mbyte;
        out.run(wishes, 10);
        for (&out.links) |*link| try expectEqual(0, out.together.part(link));
    }
}

test "where one link alone has a queue the others are not held to it" {
    var t: Together = .{};
    const calm = sent_at(10, 61);
    var crowded = sent_at(10, 120);
    crowded.retransmitted = 10_000;
    run_two(&t, .{ &calm, &crowded }, 100);
    try expect(!t.is_common());
    try expectEqual(0, t.part(&crowded));
}

/// An interval at a steady rate, in megabytes per second, with a round trip of 60 ms and more.
fn sent_at(rate: u64, rtt: u64) Interval {
    return .{
        .ns = 100 * ms,
        .acked = rate * mbyte / 10,
        .given = rate * mbyte / 10,
        .rtt_ns = rtt * ms,
        .base_ns = 60 * ms,
        .saturated = true,
    };
}

fn run_two(t: *Together, links: [2]*const Interval, intervals: usize) void {
    for (0..intervals) |_| {
        hear(t, &links, 0, 8);
        t.step(100 * ms, false);
    }
}

test "the first limit is no less than what they carried before the ways of others were full" {
    var t: Together = .{};
    const fast = sent_at(12, 61);
    const queued = sent_at(7, 100);
    run_two(&t, .{ &fast, &fast }, 4);
    run_two(&t, .{ &queued, &queued }, 5);
    try expect(t.pacer.found > 23 * mbyte);
}

test "a way that carries less is found out anew, whatever it carried before" {
    for ([_]u64{ 16, 10, 8, 3 }) |less| {
        var out: WayOut = .{ .carries = 24 * mbyte };
        out.run(@splat(20 * mbyte), 100);
        try expect(out.together.pacer.found > 20 * mbyte);
        out.carries = less * mbyte;
        out.run(@splat(20 * mbyte), 30);
        const found = out.together.pacer.found;
        try expect(found > less * mbyte / 4 * 3 and found < less * mbyte / 4 * 5);
    }
}

test "acknowledgements that trail behind the last bytes lower no limit" {
    var t: Together = .{};
    const queued = sent_at(12, 100);
    run_two(&t, .{ &queued, &queued }, 6);
    try expectEqual(.draining, t.pacer.state);
    const found = t.pacer.found;
    var trailing = sent_at(6, 100);
    trailing.given = 0;
    run_two(&t, .{ &trailing, &trailing }, 20);
    try expectEqual(found, t.pacer.found);
}

test "calls that are shorter than a limit takes to find are held to what they carry together" {
    // Goal: the queue that each of them makes is seen, though nothing is left to send when it is
    // noticed. Method: bursts of 200 ms with a second between, with no lane that is busy.
    var out: WayOut = .{ .carries = 24 * mbyte, .lanes_busy = 0 };
    for (0..2) |_| {
        out.run(@splat(20 * mbyte), 3);
        out.run(@splat(0), 10);
    }
    try expect(out.together.pacer.rate > 20 * mbyte);
    try expect(out.together.pacer.rate <= 24 * mbyte);
    // Little that waits behind the traffic of others is no sign of what the way carries.
    var other: WayOut = .{ .carries = 24 * mbyte, .lanes_busy = 0 };
    other.others = 30 * mbyte;
    other.run(@splat(mbyte), 30);
    try expectEqual(0, other.together.pacer.rate);
}

test "a link whose first bytes are still on their way has its part" {
    var t: Together = .{};
    t.pacer.rate = 24 * mbyte;
    const heard: Interval = .{ .ns = 100 * ms, .acked = mbyte, .given = mbyte };
    const unheard: Interval = .{ .ns = 100 * ms, .given = mbyte };
    hear(&t, &.{ &heard, &unheard, &unheard }, 0, 8);
    for ([_]*const Interval{ &heard, &unheard }) |each| {
        try expect(t.shares(each));
        try expectEqual(8 * mbyte, t.part(each));
    }
}
