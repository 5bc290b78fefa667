//! Flow: the measurements of a link and its lanes, and the decisions that follow from them: plain
//! data, which measure.zig fills in. This file decides over how many lanes a link is spread, and
//! finds how long packets of the other side wait on their way here. pace.zig decides the rate of a
//! link.

const std = @import("std");
const base = @import("base");
const per_second = @import("pace.zig").per_second;
const Interval = @import("pace.zig").Interval;
const Pacer = @import("pace.zig").Pacer;
const Peak = @import("pace.zig").Peak;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const limits = base.limits;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;
const us = std.time.ns_per_us;

/// The system's counters of a lane since it opened.
pub const Sample = struct {
    /// Bytes that the other side has acknowledged.
    acked: u64,
    /// Bytes that were sent again.
    retransmitted: u64 = 0,
    /// Bytes that the system holds and has not sent; null: the system does not say.
    unsent: ?u64 = null,
    /// The smoothed round trip; 0: the system does not say.
    rtt_ns: u64 = 0,
    /// The shortest round trip of the lane; 0: the system does not say.
    base_ns: u64 = 0,
    /// Both ends of the lane are on this machine.
    is_within: bool = false,
};

/// How the system is to send on a lane.
pub const Pace = struct {
    /// Payload bytes per second; 0: no limit.
    rate: u64 = 0,
    /// Bytes that the system may hold unsent; 0: no limit.
    unsent_max: u32 = 0,
    /// Bytes that the system may hold in all for a lane within the machine, sent or not; 0: no
    /// limit.
    held_max: u32 = 0,
    /// The congestion control; null: unchanged.
    control: ?Control = .system,
    /// The congestion control begins anew, with as many bytes in flight as before. Without a new
    /// beginning, bbr sends next to nothing for a fifth of a second every ten seconds.
    renews: bool = false,

    /// The congestion control of a lane, if the user leaves the choice to the library.
    pub const Control = enum {
        /// The congestion control that the administrator has chosen.
        system,
        /// A congestion control that grows until a packet is lost. The congestion control of the
        /// system may stop growing fast long before a loss (HyStart of cubic, when lanes begin
        /// together and wait for each other).
        starting,
        /// A congestion control that does not take loss as the sign of a full link, if this process
        /// may use it.
        loss_tolerant,
    };

    pub const unsent_first = 128 * limits.KiB;
    const unsent_least = 64 * limits.KiB;
    const unsent_most = 1 * limits.MiB;
    /// The system may hold unsent one part in `unsent_part` of the bytes in flight.
    const unsent_part = 8;

    /// Whether the pace `other` differs enough from `one` to be worth a system call.
    pub fn differs(one: Pace, other: Pace) bool {
        return other.renews or one.control != other.control or one.held_max != other.held_max or
            apart(one.rate, other.rate) or apart(one.unsent_max, other.unsent_max);
    }

    /// Bytes that the system may hold for a lane within the machine. `is_alone`: each peer has a
    /// core of its own. A small number of bytes stays in the caches of the cores that send and
    /// receive. Peers that share cores take turns, so more bytes must wait for each peer.
    pub fn held(is_alone: bool) u32 {
        return if (is_alone) 256 * limits.KiB else 512 * limits.KiB;
    }

    /// Bytes that the system may hold unsent for a lane with this rate and shortest round trip; 0:
    /// no limit.
    pub fn unsent(base_ns: u64, rate: u64) u32 {
        if (base_ns < Spread.far_ns) return 0;
        const part = on_the_way(rate, base_ns) / unsent_part;
        return @intCast(std.math.clamp(part, unsent_least, unsent_most));
    }

    fn apart(one: u64, other: u64) bool {
        return (one == 0) != (other == 0) or @max(one, other) - @min(one, other) > one / 128;
    }
};

/// Bytes that leave within a round trip.
fn on_the_way(rate: u64, rtt_ns: u64) u64 {
    return rate *| (rtt_ns / std.time.ns_per_us) / std.time.us_per_s;
}

/// The measurements of one link, and the decisions that follow from them.
pub const Flow = struct {
    /// The controllers of the rate: `pacer` while this peer sends on this link alone, `shared`
    /// while it sends on other links as well. A link may carry less while other links send, because
    /// links may share more than this peer's uplink, such as the downlink of a peer that all
    /// members send to.
    pacer: Pacer = .{ .signs = .{ .full_after_overflow = 600 * std.time.ns_per_ms } },
    shared: Pacer = .{},
    /// Over how many lanes the link is spread.
    spread: Spread,
    /// Bytes per second that the user lets this peer send on the link; 0: no limit.
    ceiling: u64 = 0,
    /// The number of lanes that the other side wants; 0: the other side has not said.
    theirs: u8 = 0,
    /// The number of lanes wanted by this side that the other side was last told, or assumes at
    /// first.
    told: u8 = Spread.near,
    /// The measurements of the link in the last interval.
    last: Interval = .{},
    /// How many lanes were measured in the last interval. `lanes_busy`: how many of these lanes
    /// were busy during the whole interval.
    lanes_open: u8 = 0,
    lanes_busy: u8 = 0,
    /// Bytes per second that were acknowledged in the last interval in which the link was busy.
    goodput: u64 = 0,
    /// The highest recent rate at which bytes came in during an interval, bytes per second.
    arriving: u64 = 0,
    /// All bytes that had ever come in on the link when the interval under way began. `sent`: all
    /// bytes that had ever gone out by then.
    received: u64 = 0,
    sent: u64 = 0,
    /// The highest recent rate sent on the link while more bytes were waiting.
    carried: Peak = .{},
    /// As `carried`, but only from intervals in which the link was full by itself (pace.zig:
    /// is_own).
    alone: Peak = .{},
    /// A probe of the link is under way (measure.zig).
    is_probed: bool = false,
    /// The highest recent rate received on the link.
    brought: Peak = .{},
    /// Nanoseconds without traffic on the link, except pings.
    idle_ns: u64 = 0,
    /// How long packets of the other side wait on their way here.
    way_back: WayBack = .{},
    /// The shortest round trip of the link's lanes; 0: not known.
    base_ns: u64 = 0,
    /// The other peer is on this machine.
    is_within: bool = false,
    /// The index among the open lanes whose turn it is to begin its congestion control anew.
    /// `renewed`: which open lanes begin anew in this interval: none, the lane `turn`, or all.
    turn: u8 = 0,
    renewed: enum { none, one, all } = .none,
    /// The link was idle, so all its lanes are to begin their congestion control anew.
    is_rested: bool = false,
    /// Recent bytes sent again per million bytes acknowledged.
    again_ppm: u32 = 0,
    /// Nanoseconds of busy intervals that `again_ppm` has been above `lossy_ppm` without a queue on
    /// the way.
    lossy_ns: u64 = 0,
    /// Nanoseconds of busy intervals since `again_ppm` was last above `lossy_ppm`.
    clean_ns: u64 = 0,
    /// Nanoseconds of busy intervals since a queue last stood on the way.
    calm_ns: u64 = 0,
    /// As `lossy_ns`, but counted only once no queue has stood for `sent_again_ns`, so that packets
    /// sent again after a queue has overflowed do not count.
    way_ns: u64 = 0,
    /// The link loses packets that no full queue drops. False again once the link has lost few
    /// packets for a minute of busy time.
    is_lossy: bool = false,
    /// As `is_lossy`, but never set because a queue has overflowed. An overflow may set `is_lossy`
    /// by mistake: to ask for bbr then does no harm, but to ask for more lanes would.
    way_loses: bool = false,

    /// `set`: the number of lanes by the run's settings; 0: the link finds its number of lanes by
    /// trials.
    pub fn init(set: u8) Flow {
        const count = if (set == 0) Spread.near else set;
        return .{ .spread = .{ .lanes = count, .is_fixed = set > 0 } };
    }

    /// The number of lanes that the link is to have: the larger wish of the two sides.
    pub fn lanes(flow: *const Flow) u8 {
        const ours = flow.spread.lanes;
        return if (flow.spread.is_fixed) ours else @max(ours, flow.theirs);
    }

    /// Notes a round trip to the other peer; 0: the system did not say.
    pub fn note_distance(flow: *Flow, rtt_ns: u64) void {
        if (rtt_ns == 0) return;
        flow.base_ns = if (flow.base_ns == 0) rtt_ns else @min(flow.base_ns, rtt_ns);
        if (flow.spread.is_fixed) return;
        flow.spread.lanes = @max(flow.spread.lanes, Spread.first(flow.base_ns));
    }

    pub fn is_far(flow: *const Flow) bool {
        return flow.base_ns >= Spread.far_ns;
    }

    /// The congestion control that a lane should have. `now`: the congestion control that the lane
    /// has. Lanes to near peers keep that of the system, because a full queue in a machine room is
    /// too short to be measured.
    pub fn control(flow: *const Flow, now: ?Pace.Control, has_lost: bool) Pace.Control {
        if (!flow.is_far()) return .system;
        if (flow.is_lossy) return .loss_tolerant;
        const is_full = has_lost or flow.last.crowded();
        return if (now == .starting and !is_full) .starting else .system;
    }

    /// Chooses the lanes that begin their congestion control anew; called after each interval.
    /// `rate`: the limit of the link, bytes per second; 0: none. bbr pauses to measure the shortest
    /// round trip, which is known anyway while a limit keeps queues away. So lanes begin anew in
    /// turn, each before bbr would pause it.
    pub fn take_turn(flow: *Flow, rate: u64) void {
        flow.turn = (flow.turn + 1) % limits.lanes_per_link_max;
        if (rate == 0 or !flow.last.calm()) {
            flow.renewed = .none;
            return;
        }
        flow.renewed = if (flow.is_rested) .all else .one;
        flow.is_rested = false;
    }

    /// Whether the lane with this index among the open lanes begins its congestion control anew.
    pub fn renews(flow: *const Flow, index: usize) bool {
        return switch (flow.renewed) {
            .none => false,
            .one => index == flow.turn,
            .all => true,
        };
    }

    /// Bytes per second that the link was found to carry; 0: not known.
    pub fn carries(flow: *const Flow) u64 {
        if (flow.is_probed) return 0;
        const is_held = flow.pacer.rate > 0 and flow.pacer.found > 0;
        return if (is_held) flow.pacer.found else flow.carried.rate;
    }

    /// Bytes per second beyond which the link itself was found to carry nothing; 0: not known, as
    /// for near links, whose queues are too short to be measured.
    pub fn limit(flow: *const Flow) u64 {
        const is_held = flow.pacer.rate > 0 and flow.pacer.found > 0;
        return if (is_held) flow.pacer.found else flow.alone.rate;
    }

    /// Bytes that are in flight in both directions, or on their way back as credits, when the link
    /// is full.
    pub fn in_air(flow: *const Flow) u64 {
        const rate = @max(flow.goodput, flow.arriving);
        return on_the_way(2 *| rate, flow.base_ns);
    }

    /// Whether the other side must still be told the number of lanes that this side wants.
    pub fn is_news(flow: *const Flow) bool {
        return !flow.spread.is_fixed and flow.told != flow.spread.lanes;
    }

    pub fn note(flow: *Flow, i: *const Interval) void {
        if (!i.is_telling()) {
            return if (i.crowded()) flow.carried.queued(i.acked, i.ns) else flow.carried.pause();
        }
        flow.goodput = i.goodput();
        flow.carried.sent(i.acked, i.ns);
        const ppm: u64 = @min(i.retransmitted *| 1_000_000 / i.acked, 1_000_000);
        flow.again_ppm = @intCast((@as(u64, flow.again_ppm) * 3 + ppm) / 4);
        const is_much = flow.again_ppm > lossy_ppm;
        flow.lossy_ns = if (is_much and !i.crowded()) flow.lossy_ns +| i.ns else 0;
        flow.calm_ns = if (i.crowded()) 0 else flow.calm_ns +| i.ns;
        flow.way_ns = if (is_much and flow.calm_ns >= sent_again_ns) flow.way_ns +| i.ns else 0;
        flow.clean_ns = if (is_much) 0 else flow.clean_ns +| i.ns;
        if (flow.lossy_ns >= lossy_after) flow.is_lossy = true;
        if (flow.way_ns >= lossy_after) flow.way_loses = true;
        if (flow.clean_ns < clean_after) return;
        flow.is_lossy = false;
        flow.way_loses = false;
    }

    /// Notes the bytes that have moved in an interval, in both directions. An interval with pings
    /// alone counts as idle.
    pub fn note_moved(flow: *Flow, bytes: u64, ns: u64) void {
        if (bytes <= idle_bytes) {
            flow.idle_ns +|= ns;
            return;
        }
        if (flow.idle_ns == 0) return;
        flow.pacer.rest(flow.idle_ns);
        flow.shared.rest(flow.idle_ns);
        flow.carried.rest(flow.idle_ns);
        flow.alone.rest(flow.idle_ns);
        flow.brought.rest(flow.idle_ns);
        flow.idle_ns = 0;
    }

    /// Notes the bytes that have come in during an interval. `received`: all bytes that ever came
    /// in on the link.
    pub fn note_arrived(flow: *Flow, received: u64, ns: u64) void {
        const rate = per_second(received - flow.received, ns);
        flow.brought.arrived(received - flow.received, ns);
        flow.received = received;
        flow.arriving = @max(rate, flow.arriving - flow.arriving / 64);
    }

    const lossy_ppm = 500;
    const lossy_after = 1 * std.time.ns_per_s;
    const clean_after = 60 * std.time.ns_per_s;
    const sent_again_ns = 2 * std.time.ns_per_s;
    const idle_bytes = 4 * limits.KiB;
};

test "a link that loses packets is lossy until it has lost few for a minute in which it was busy" {
    var flow: Flow = .init(0);
    flow.base_ns = 100 * ms;
    var i: Interval = .{
        .ns = 100 * ms,
        .acked = 1_000_000,
        .retransmitted = 2_000,
        .rtt_ns = 100 * ms,
        .base_ns = 100 * ms,
        .saturated = true,
    };
    for (0..30) |_| flow.note(&i);
    try std.testing.expectEqual(.loss_tolerant, flow.control(.starting, true));
    i.retransmitted = 0;
    for (0..590) |_| flow.note(&i);
    try std.testing.expect(flow.is_lossy);
    i.retransmitted = 10_000; // restarts the minute
    flow.note(&i);
    i.retransmitted = 0;
    for (0..590) |_| flow.note(&i);
    try std.testing.expect(flow.is_lossy);
    for (0..30) |_| flow.note(&i);
    try std.testing.expect(!flow.is_lossy);
    try std.testing.expectEqual(.system, flow.control(.loss_tolerant, true));
    // Losses in a queue that overflows do not set `is_lossy`. Packets that are sent again after the
    // queue is gone may set `is_lossy`, but not `way_loses`.
    i.retransmitted = 200_000;
    i.rtt_ns = 200 * ms;
    for (0..30) |_| flow.note(&i);
    try std.testing.expect(!flow.is_lossy);
    i.rtt_ns = 100 * ms;
    for (0..3) |_| flow.note(&i);
    i.retransmitted = 0;
    for (0..60) |_| flow.note(&i);
    try std.testing.expect(flow.is_lossy and !flow.way_loses);
    i.retransmitted = 2_000;
    for (0..30) |_| flow.note(&i);
    try std.testing.expect(flow.way_loses);
    i.retransmitted = 0;
    for (0..620) |_| flow.note(&i);
    try std.testing.expect(!flow.is_lossy and !flow.way_loses);
}

test "a lane that has lost nothing grows until its link is full, and then is the system's" {
    var flow: Flow = .init(0);
    try std.testing.expectEqual(.system, flow.control(.starting, false)); // near
    flow.base_ns = 100 * ms;
    try std.testing.expectEqual(.starting, flow.control(.starting, false));
    try std.testing.expectEqual(.system, flow.control(.starting, true));
    try std.testing.expectEqual(.system, flow.control(.system, false)); // stays the system's
    flow.last = .{ .base_ns = 100 * ms, .rtt_ns = 100 * ms + Interval.queue_ns + 1 };
    try std.testing.expectEqual(.system, flow.control(.starting, false));
}

test "lanes of a link that is held begin anew in turn, and all after a pause" {
    // Goal: each lane begins anew within the ten seconds after which bbr pauses, and no two at
    // once.
    var flow: Flow = .init(0);
    flow.last = .{ .base_ns = 1, .rtt_ns = 1 };
    var last: [limits.lanes_per_link_max]usize = @splat(0);
    for (1..300) |interval| {
        flow.take_turn(1000);
        var count: usize = 0;
        for (&last, 0..) |*at, lane| {
            if (flow.renews(lane)) at.* = interval;
            count += @intFromBool(flow.renews(lane));
            try std.testing.expect(interval - at.* < 80); // tenths of a second
        }
        try std.testing.expectEqual(1, count);
    }
    flow.is_rested = true;
    flow.take_turn(0); // no limit
    try std.testing.expect(!flow.renews(flow.turn));
    flow.last.rtt_ns = Interval.queue_ns; // a queue
    flow.take_turn(1000);
    try std.testing.expect(!flow.renews(flow.turn));
    flow.last.rtt_ns = 1;
    flow.take_turn(1000);
    for (0..last.len) |lane| try std.testing.expect(flow.renews(lane));
    flow.take_turn(1000);
    try std.testing.expect(!flow.renews(flow.turn + 1));
}

test "little is left to the system, and nothing is said of a near link" {
    try std.testing.expectEqual(0, Pace.unsent(Spread.far_ns - 1, 1 << 40));
    try std.testing.expectEqual(64 << 10, Pace.unsent(s / 10, 0));
    try std.testing.expectEqual(125_000, Pace.unsent(s / 10, 10_000_000));
    try std.testing.expectEqual(1 << 20, Pace.unsent(s / 10, 1 << 40));
}

test "a link that is far begins with more lanes, unless the run says how many" {
    for ([_]u8{ 0, 1 }) |set| {
        var flow: Flow = .init(set);
        flow.note_distance(0);
        try std.testing.expectEqual(0, flow.base_ns);
        flow.note_distance(60 * std.time.ns_per_ms);
        flow.note_distance(70 * std.time.ns_per_ms);
        try std.testing.expectEqual(60 * std.time.ns_per_ms, flow.base_ns);
        try std.testing.expectEqual(Spread.first(flow.base_ns) * (1 - set) + set, flow.lanes());
    }
}

test "a pace is told again when it has changed by more than a little" {
    const one: Pace = .{ .rate = 1000, .unsent_max = 64 };
    try std.testing.expect(!one.differs(.{ .rate = 1005, .unsent_max = 64 }));
    try std.testing.expect(one.differs(.{ .rate = 1100, .unsent_max = 64 }));
    try std.testing.expect(one.differs(.{ .rate = 0, .unsent_max = 64 }));
    try std.testing.expect((Pace{}).differs(one));
    try std.testing.expect(one.differs(.{ .rate = 1000, .unsent_max = 64, .renews = true }));
    try std.testing.expect(one.differs(.{ .rate = 1000, .unsent_max = 64, .control = .starting }));
}

// ---- over how many lanes
//
// Each lane is a TCP connection. Loss, a cap for each connection or TCP's windows may hold a lane
// below what the link carries. Then a trial doubles the lanes, and keeps the new lanes if they
// carry more; a full link gains nothing by more lanes. Among numbers of lanes that carry the same,
// the smallest is kept, because each lane takes a share from other traffic on the path. But a link
// never has fewer lanes than it begins with, because after a pause each lane begins slowly.

pub const Spread = struct {
    lanes: u8,
    /// The run's settings say the number of lanes: no trials.
    is_fixed: bool = false,
    /// The round under way: its nanoseconds, its acknowledged bytes, and the nanoseconds in which
    /// the link was full. A round counts only intervals with enough to send.
    ns: u64 = 0,
    acked: u64 = 0,
    full_ns: u64 = 0,
    /// The trial under way: the number of lanes before the trial, and the bytes per second that
    /// they moved.
    trial: ?struct { lanes: u8, moved: u64 } = null,
    /// False: this round does not count, because new connections start slowly.
    is_warm: bool = true,
    /// The link loses packets that no full queue drops. Connections on a lossy link carry much in
    /// their first seconds and less and less after that, so a first trial without a gain says
    /// little, and goes on with twice as many lanes.
    is_lossy: bool = false,
    /// A trial without a gain has been followed by one with twice as many lanes. Another trial may
    /// be followed like this only after a trial has gained.
    is_forgiven: bool = false,
    /// Nanoseconds of busy time until fewer lanes may be tried. The rate of lanes that lose packets
    /// varies by more than one lane adds, so trials of fewer lanes must be rare.
    down_rest: u64 = 0,
    /// Nanoseconds of busy time until the next trial. `rest_next`: `rest` after the next trial
    /// without a gain.
    rest: u64 = 0,
    rest_next: u64 = rest_min,
    /// The trial under way, or else the next trial, is of fewer lanes.
    down: bool = false,
    /// The number of lanes to which the link shrinks; null: no lane leaves. Lanes leave one by one,
    /// because the lanes that stay cannot carry at once what the leaving lanes carried.
    goal: ?u8 = null,

    /// A round lasts at least this long, so that a burst does not decide.
    const round_ns = 3 * s;
    const round_lossy_ns = 1500 * ms;
    const round_trips = 8;
    const rest_min = 15 * s;
    const rest_max = 240 * s;
    /// The next lane leaves after `leave_trips` round trips, in which the lanes that stay grow.
    const leave_trips = 4;
    const leave_ns = 500 * ms;
    /// Twice the lanes must carry more by one part in `gain_part`. Half the lanes may carry less by
    /// one part in `loss_part`.
    const gain_part = 8;
    const gain_lossy_part = 4;
    const loss_part = 16;

    /// The number of lanes with which a link begins. Within a machine room, two lanes keep both
    /// directions busy. On longer distances a connection takes a while to grow, again after each
    /// pause, so a link begins with more lanes.
    pub const near = 2;
    const far = 4;
    const distant = 8;
    pub const far_ns = limits.far_ns;
    const distant_ns = 50 * ms;

    /// The number of lanes that a link with this round trip begins with.
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

    /// The link begins to lose packets: ends the trial under way, because rates from before the
    /// losses say nothing about rates after them.
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

    /// Ends the round. Returns the bytes per second that it moved, and whether the link was full
    /// most of the time.
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
            spread.trial = null; // no more lanes are tried for now
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

/// Runs lanes that carry `each` bytes per second, on a link that carries `all` bytes per second.
fn run_test(spread: *Spread, each: u64, all: u64, seconds: usize) void {
    run_on_test(spread, each, all, seconds, false);
}

fn run_on_test(spread: *Spread, each: u64, all: u64, seconds: usize, is_lossy: bool) void {
    for (0..5 * seconds) |_|
        step_test(spread, @min(spread.lanes * each, all), false, is_lossy);
}

/// Runs a fifth of a second with enough to send, in which `rate` bytes per second arrive.
fn step_test(spread: *Spread, rate: u64, is_full: bool, is_lossy: bool) void {
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
    run_test(&spread, 1_000, 40_000_000, 50);
    try expectEqual(base.limits.lanes_per_link_max, spread.lanes);
    spread = .{ .lanes = 4 };
    run_test(&spread, 6_000_000, 25_000_000, 24); // 4 carry 24 MB/s, 8 carry 25 MB/s
    try expectEqual(4, spread.lanes);
    spread = .{ .lanes = 4 };
    run_test(&spread, 2_000_000, 25_000_000, 38);
    try expectEqual(16, spread.lanes);
}

test "a link keeps as many lanes as it begins with, and loses those that bring nothing" {
    // Goal: the link never has fewer lanes than it begins with, because after a pause fewer lanes
    // would be slower. Method: a link that is full with any number of lanes.
    var spread: Spread = .{ .lanes = Spread.first(100 * ms) };
    for (0..4) |_| {
        for (0..5 * 60) |_| {
            step_test(&spread, 25_000_000, true, false);
            try expect(spread.lanes >= 8);
        }
        try expectEqual(8, spread.lanes);
        spread.lanes = 32;
    }
}

test "lanes leave one by one, and come back at once if fewer carry less" {
    // Goal: the lanes that stay have time to take over what a leaving lane carried. Method: a link
    // that a single lane fills, and a link on which each lane is capped.
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
        run_test(&spread, 25_000_000, 25_000_000, 1);
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
            run_on_test(&spread, 100_000_000, 23_000_000 + noise, 1, is_lossy);
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
    // Method: new connections carry five times their lasting rate, and each second the excess
    // shrinks by a quarter.
    const each: u64, const all: u64 = .{ 450_000, 25_000_000 };
    var spread: Spread = .{ .lanes = 8 };
    var carried = 5 * each * 8;
    var lanes = spread.lanes;
    for (0..20 * 5) |step| {
        const rate = @min(carried, all);
        step_test(&spread, rate, rate == all, step > 10);
        carried += 5 * each * (spread.lanes -| lanes);
        lanes = spread.lanes;
        const least = each * lanes;
        if (step % 5 == 0) carried = @max(least, carried - (carried - least) / 4);
    }
    try expectEqual(base.limits.lanes_per_link_max, spread.lanes);
}

test "where packets are lost lanes that bring nothing leave again, however many were tried" {
    // Method: a path that drops all excess without a queue, a path that seems full half of the
    // time, and a path that carries less with more lanes.
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
            step_test(&spread, case.moved[index], case.is_full and step % 40 < 20, true);
            most = @max(most, spread.lanes);
            sum += spread.lanes;
        }
        try expect(most <= 32);
        try expect(sum / steps <= 9);
    }
}

test "a link that begins to lose packets has the lanes of before a trial, and never too few" {
    // Method: losses begin in a trial of fewer lanes, in a trial of more lanes, and while the lanes
    // of a failed trial leave.
    for ([_]Spread{
        .{ .lanes = 11, .goal = 8, .down = true, .trial = .{ .lanes = 16, .moved = 1 } },
        .{ .lanes = 32, .trial = .{ .lanes = 16, .moved = 1 } },
        .{ .lanes = 19, .goal = 16 },
    }) |before| {
        var spread = before;
        for (0..100) |_| step_test(&spread, 25_000_000, true, true);
        try expectEqual(16, spread.lanes);
    }
    var spread: Spread = .{ .lanes = 11 };
    for (0..5 * 600) |_| step_test(&spread, 25_000_000, true, false);
    try expectEqual(8, spread.lanes);
}

test "what the run has set stays" {
    var spread: Spread = .{ .lanes = 1, .is_fixed = true };
    run_test(&spread, 1, 25_000_000, 60);
    try expectEqual(1, spread.lanes);
}

// ---- the way back
//
// How long packets of the other side wait on their way here. A round trip does not tell which of
// its two directions has a queue. Acknowledgements wait in the queue of the other side's uplink,
// which fills with what the other side sends to other peers. So each ping says when it left, by the
// sender's clock. A ping that takes longer than the fastest recent ping has waited for the
// difference. The two clocks need not agree, because only differences count. The clocks may also
// drift, and the other side may lie: a wait cannot exceed the round trip minus the shortest round
// trip, so a clock that shows a longer wait is measured anew.
//
// frame.zig sends the stamps, and measure.zig reads the waits.

pub const WayBack = struct {
    /// The fastest ping of this interval: microseconds from its stamp to its arrival, minus those
    /// of the first ping; null: no ping came.
    least: ?i64 = null,
    /// The smallest `least` in the span under way. `fastest_before`: the smallest `least` in the
    /// span before.
    fastest: i64 = never,
    fastest_before: i64 = never,
    /// How long the span under way has lasted; it ends after `kept_ns`.
    lasted: u64 = 0,
    /// Microseconds from the stamp of the first ping to its arrival, by two clocks that do not
    /// agree; null: no ping with a stamp has come.
    first: ?u64 = null,
    /// How long packets waited in the last interval with a ping; null: not known, or too long ago.
    waits_ns: ?u64 = null,
    /// Nanoseconds of intervals since a ping last came.
    silent_ns: u64 = 0,

    const never = std.math.maxInt(i64);
    /// A span ends after this time, because clocks drift apart: by at most half a millisecond a
    /// second, and most clocks by far less.
    const kept_ns = 20 * s;
    /// A wait counts as known for this time after the last ping.
    const known_ns = 200 * ms;
    /// A ping may be sent and read later than a packet, by at most this time.
    const late_ns = 10 * ms;

    /// The stamp of a ping that tells no time, because it may have waited for bytes sent before it.
    pub const none: u64 = 0;

    pub fn stamp(now_ns: u64) u64 {
        return @max(1, now_ns / us);
    }

    /// Takes a ping that left at `sent`, in microseconds of the other side's clock. `sent` may be
    /// any number, because the other side's clock may have begun at any time.
    pub fn heard(way: *WayBack, sent: u64, now_ns: u64) void {
        if (sent == none) return;
        const took = now_ns / us -% sent;
        const first = way.first orelse took;
        way.first = first;
        const more: i64 = @bitCast(took -% first);
        way.least = @min(way.least orelse more, more);
    }

    /// Ends an interval whose round trips were longer than the shortest by `round_ns`. Returns how
    /// long packets waited, at most `round_ns`; null: not known.
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

    /// Forgets the waits, because nothing was measured for `ns`.
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
    // This side's clock began later than the other side's, or earlier.
    for ([_]u64{ 0, 1 << 40, std.math.maxInt(u64) - 1000 }) |theirs_us| {
        var way: WayBack = .{};
        const waits_ms = [_]u64{ 3, 0, 0, 7, 40, 12, 0 };
        const told_ms = [_]u64{ 0, 0, 0, 7, 40, 12, 0 }; // the first ping is the fastest so far
        for (waits_ms, told_ms, 1..) |waits, told, interval| {
            for (0..5) |each| {
                const sent_ns = interval * 100 * ms + each * ms;
                // Later pings of an interval wait longer, and only the fastest ping counts.
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
    // The other side's clock is slower by 50 parts in a million, so pings before a pause of ten
    // minutes seem to be 30 ms faster than pings after it.
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
        // Round trips are 40 ms longer than the shortest, because packets wait on the way out.
        try std.testing.expect(way.step(100 * ms, 40 * ms).? <= ms);
    }
}

test "clocks may drift, stand still and leap, and a peer may say what it likes" {
    // Goal: a wait never exceeds what round trips show, and is right after a while. Method: a clock
    // that runs slower; a clock that stands still for a minute while round trips are short; then
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
