//! flow: what is known of how a link and its lanes carry bytes, and what was decided: plain data.
//! measure.zig fills it in; pace.zig and spread.zig decide.

const std = @import("std");
const base = @import("base");
const Interval = @import("interval.zig").Interval;
const per_second = @import("interval.zig").per_second;
const Peak = @import("peak.zig").Peak;
const Pacer = @import("pace.zig").Pacer;
const Spread = @import("spread.zig").Spread;
const WayBack = @import("way_back.zig").WayBack;
const limits = base.limits;

/// The system's counters of a lane, since it opened.
pub const Sample = struct {
    /// Bytes that the other side has acknowledged, and bytes that were sent a second time.
    acked: u64,
    retransmitted: u64 = 0,
    /// Bytes that the system has not sent yet; null: it does not say.
    unsent: ?u64 = null,
    /// The round trip, smoothed, and the shortest there was; 0: the system does not say.
    rtt_ns: u64 = 0,
    base_ns: u64 = 0,
    /// Both ends are on this machine.
    is_within: bool = false,
};

/// The system is to send on a lane like this.
pub const Pace = struct {
    /// Payload bytes per second; 0: no limit.
    rate: u64 = 0,
    /// Bytes that it may hold without having sent them; 0: as many as it likes.
    unsent_max: u32 = 0,
    /// Bytes that it may hold in all, for a lane within the machine; 0: as many as it likes.
    held_max: u32 = 0,
    /// Null: it stays as it is.
    control: ?Control = .system,
    /// Its congestion control begins anew, with what it has in the air. For bbr, which would
    /// otherwise send next to nothing for a fifth of a second every ten.
    renews: bool = false,

    /// The congestion control of a lane, where the user leaves it to the library.
    pub const Control = enum {
        /// As the administrator has chosen.
        system,
        /// One that grows until something is lost. The system's may stop long before (HyStart of
        /// cubic, where lanes that begin together wait for each other), and grow slowly after that.
        starting,
        /// One for which loss is no sign of a full link, if this process may use it.
        loss_tolerant,
    };

    pub const unsent_first = 128 * limits.KiB;
    const unsent_least = 64 * limits.KiB;
    const unsent_most = 1 * limits.MiB;
    /// It may hold this part of the bytes that are in the air.
    const unsent_part = 8;

    /// Small changes are not worth a system call.
    pub fn differs(one: Pace, other: Pace) bool {
        return other.renews or one.control != other.control or one.held_max != other.held_max or
            apart(one.rate, other.rate) or apart(one.unsent_max, other.unsent_max);
    }

    /// Within a machine what is under way is to stay in the caches of the cores that send and
    /// receive it. Peers that share cores take turns, so more of it must wait for each.
    pub fn held(is_alone: bool) u32 {
        return if (is_alone) 256 * limits.KiB else 512 * limits.KiB;
    }

    /// For a lane that moves so much, over such a distance.
    pub fn unsent(base_ns: u64, rate: u64) u32 {
        if (base_ns < Spread.far_ns) return 0;
        const part = on_the_way(rate, base_ns) / unsent_part;
        return @intCast(std.math.clamp(part, unsent_least, unsent_most));
    }

    fn apart(one: u64, other: u64) bool {
        return (one == 0) != (other == 0) or @max(one, other) - @min(one, other) > one / 128;
    }
};

/// The bytes that leave within a round trip.
fn on_the_way(rate: u64, rtt_ns: u64) u64 {
    return rate *| (rtt_ns / std.time.ns_per_us) / std.time.us_per_s;
}

/// All this of one link.
pub const Flow = struct {
    /// While this peer sends on it alone, and while it sends on others as well: these may share
    /// more than its own way out, such as that into one other peer that all send to.
    pacer: Pacer = .{ .signs = .{ .full_after_overflow = 600 * std.time.ns_per_ms } },
    shared: Pacer = .{},
    spread: Spread,
    /// Bytes per second that the user lets this peer send on it; 0: no limit of its own.
    ceiling: u64 = 0,
    /// So many lanes the other side would like.
    theirs: u8 = 0,
    /// As the other side was told, or takes it to be before it is.
    told: u8 = Spread.near,
    /// The last interval, how many lanes it had, and how many of them were busy all the time.
    last: Interval = .{},
    lanes_open: u8 = 0,
    lanes_busy: u8 = 0,
    /// The last interval in which it was kept busy.
    goodput: u64 = 0,
    /// The most that came in within an interval, bytes per second; of late.
    arriving: u64 = 0,
    /// All that ever came in, and went out, when the interval began.
    received: u64 = 0,
    sent: u64 = 0,
    /// The most that went out while there was more to send, and the most that came in.
    carried: Peak = .{},
    /// A probe is under way, and has not come to its end yet (probing.zig).
    is_probed: bool = false,
    brought: Peak = .{},
    /// Nothing has moved on it for so long.
    idle_ns: u64 = 0,
    way_back: WayBack = .{},
    /// The shortest round trip of its lanes; 0 while it is not known.
    base_ns: u64 = 0,
    /// The other peer is on this machine.
    is_within: bool = false,
    /// The lane of this place among the open ones is renewed in this interval, or all, or none.
    turn: u8 = 0,
    renewed: enum { none, one, all } = .none,
    /// It was idle, so all are to be renewed.
    is_rested: bool = false,
    /// Sent a second time, in millionths, of late; for how long that was a lot, though no queue
    /// stood on the way, and for how long it was little.
    again_ppm: u32 = 0,
    lossy_ns: u64 = 0,
    clean_ns: u64 = 0,
    /// It was busy for so long since a queue stood on it, and lost a lot for so long beyond what of
    /// a queue that has overflowed is sent again.
    calm_ns: u64 = 0,
    way_ns: u64 = 0,
    /// It loses packets that no full queue drops, until it has lost few of them for a while.
    is_lossy: bool = false,
    /// The same without a queue that overflowed before. The other one may be such a link: there it
    /// does no harm to ask for bbr, and much to ask for lanes.
    way_loses: bool = false,

    /// `set`: as the run says; 0: by what they move.
    pub fn init(set: u8) Flow {
        const count = if (set == 0) Spread.near else set;
        return .{ .spread = .{ .lanes = count, .is_fixed = set > 0 } };
    }

    /// So many lanes there are to be.
    pub fn lanes(flow: *const Flow) u8 {
        const ours = flow.spread.lanes;
        return if (flow.spread.is_fixed) ours else @max(ours, flow.theirs);
    }

    /// The other peer is no further than that; 0: it is not known.
    pub fn note_distance(flow: *Flow, rtt_ns: u64) void {
        if (rtt_ns == 0) return;
        flow.base_ns = if (flow.base_ns == 0) rtt_ns else @min(flow.base_ns, rtt_ns);
        if (flow.spread.is_fixed) return;
        flow.spread.lanes = @max(flow.spread.lanes, Spread.first(flow.base_ns));
    }

    pub fn is_far(flow: *const Flow) bool {
        return flow.base_ns >= Spread.far_ns;
    }

    /// For a lane that has this one. Not within a machine room, where a full queue is too short to
    /// be seen.
    pub fn control(flow: *const Flow, now: ?Pace.Control, has_lost: bool) Pace.Control {
        if (!flow.is_far()) return .system;
        if (flow.is_lossy) return .loss_tolerant;
        const is_full = has_lost or flow.last.crowded();
        return if (now == .starting and !is_full) .starting else .system;
    }

    /// An interval is over. `rate`: the limit of the link. Lanes begin anew in turn, so that no two
    /// of them need a pause at once, where a limit keeps queues away: to look for the shortest
    /// round trip is what bbr stops for, and there it is what it was.
    pub fn take_turn(flow: *Flow, rate: u64) void {
        flow.turn = (flow.turn + 1) % limits.lanes_per_link_max;
        if (rate == 0 or !flow.last.calm()) {
            flow.renewed = .none;
            return;
        }
        flow.renewed = if (flow.is_rested) .all else .one;
        flow.is_rested = false;
    }

    /// The lane of this place begins anew.
    pub fn renews(flow: *const Flow, index: usize) bool {
        return switch (flow.renewed) {
            .none => false,
            .one => index == flow.turn,
            .all => true,
        };
    }

    /// So much the link was found to carry; 0 while that is not known.
    pub fn carries(flow: *const Flow) u64 {
        if (flow.is_probed) return 0;
        const is_held = flow.pacer.rate > 0 and flow.pacer.found > 0;
        return if (is_held) flow.pacer.found else flow.carried.rate;
    }

    /// Bytes that are in the air both ways, or on their way back as credits, when the link is full.
    pub fn in_air(flow: *const Flow) u64 {
        const rate = @max(flow.goodput, flow.arriving);
        return on_the_way(2 *| rate, flow.base_ns);
    }

    /// The other side has not heard how many lanes there are to be.
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

    /// So many bytes have moved in an interval, both ways. Signs of life alone are none.
    pub fn note_moved(flow: *Flow, bytes: u64, ns: u64) void {
        if (bytes <= idle_bytes) {
            flow.idle_ns +|= ns;
            return;
        }
        if (flow.idle_ns == 0) return;
        flow.pacer.rest(flow.idle_ns);
        flow.shared.rest(flow.idle_ns);
        flow.carried.rest(flow.idle_ns);
        flow.brought.rest(flow.idle_ns);
        flow.idle_ns = 0;
    }

    /// `received`: all that ever came in.
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
    const ms = std.time.ns_per_ms;
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
    i.retransmitted = 10_000; // once more
    flow.note(&i);
    i.retransmitted = 0;
    for (0..590) |_| flow.note(&i);
    try std.testing.expect(flow.is_lossy);
    for (0..30) |_| flow.note(&i);
    try std.testing.expect(!flow.is_lossy);
    try std.testing.expectEqual(.system, flow.control(.loss_tolerant, true));
    // A queue that overflows is no loss of the path, and no sign that there is none. Nor is what of
    // it is sent again after it is gone, if that takes no longer than a moment.
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
    const ms = std.time.ns_per_ms;
    var flow: Flow = .init(0);
    try std.testing.expectEqual(.system, flow.control(.starting, false)); // near
    flow.base_ns = 100 * ms;
    try std.testing.expectEqual(.starting, flow.control(.starting, false));
    try std.testing.expectEqual(.system, flow.control(.starting, true));
    try std.testing.expectEqual(.system, flow.control(.system, false)); // does not begin again
    flow.last = .{ .base_ns = 100 * ms, .rtt_ns = 100 * ms + Interval.queue_ns + 1 };
    try std.testing.expectEqual(.system, flow.control(.starting, false));
}

test "lanes of a link that is held begin anew in turn, and all after a pause" {
    // Goal: bbr never waits ten seconds for its pause, and lanes never stop together.
    var flow: Flow = .init(0);
    flow.last = .{ .base_ns = 1, .rtt_ns = 1 };
    var last: [limits.lanes_per_link_max]usize = @splat(0);
    for (1..300) |interval| {
        flow.take_turn(1000);
        var count: usize = 0;
        for (&last, 0..) |*at, lane| {
            if (flow.renews(lane)) at.* = interval;
            count += @intFromBool(flow.renews(lane));
            try std.testing.expect(interval - at.* < 80); // of a tenth of a second
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
    const s = std.time.ns_per_s;
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
