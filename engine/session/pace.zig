//! Pace: the rate limit of a link, found from what its lanes have moved in each interval. A link
//! begins without a limit. Once packets queue on the way, the link is full, and the rate at which
//! data arrives is what the link carries. The pacer holds the link at that rate, so that the queue
//! empties and no buffer overflows. Now and then the pacer probes a slightly higher rate. The limit
//! only ever slows TCP down.
//!
//! A queue that does not shrink although this peer sends less is made by other traffic, or delays
//! acknowledgements. Then the pacer holds the rate that the link was found to carry, because to
//! back off further would leave the link to the other traffic.
//!
//! This file uses no lane, socket or clock; measure.zig calls it. flow.zig chooses the number of
//! lanes. pace_test.zig runs the pacer on models of many paths.

const std = @import("std");
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

pub const Pacer = struct {
    /// Payload bytes per second over all lanes; 0: no limit.
    rate: u64 = 0,
    state: State = .free,
    /// Bytes per second that the link was found to carry; 0: not known.
    found: u64 = 0,
    /// Nanoseconds of the present `state`, counting only intervals in which there was enough to
    /// send.
    lasted: u64 = 0,
    /// Payload bytes that were acknowledged in the present `state`.
    acked: u64 = 0,
    /// Bytes per second that were acknowledged in each of the last intervals. Acknowledgements come
    /// in bursts, so rates are averaged over several intervals.
    recent: [4]u64 = @splat(0),
    /// Nanoseconds that packets and their acknowledgements waited, in each interval of `recent`.
    waited: [4]u64 = @splat(0),
    /// Number of intervals in `recent` and `waited`.
    recent_count: u8 = 0,
    /// The highest rate that arrived since the present queue began, bytes per second. A queue that
    /// this peer made drains at the rate that the link carries, so the link carries `peak`.
    peak: u64 = 0,
    /// Measurements of the present queue on the way out.
    queue: Queue = .{},
    /// Nanoseconds that the present queue has stood without a break.
    crowded: u64 = 0,
    /// The present queue has lost packets.
    overflowed: bool = false,
    /// The queue that is being drained began in the state `held`, not in a probe.
    is_unasked: bool = false,
    /// The queue that is being drained began less than `soon_ns` after the state `held` began.
    is_soon: bool = false,
    /// `found` when draining began, or the lower rate at which data has arrived since.
    found_before: u64 = 0,
    /// Nanoseconds that packets waited when the probe or the round of draining under way began.
    waits: u64 = 0,
    /// Nanoseconds since packets last waited (`Interval.is_free`).
    calm_ns: u64 = 0,
    /// Rounds of draining that have not made the queue shorter.
    vain: u8 = 0,
    /// The highest `found` since the link got a limit.
    most: u64 = 0,
    /// Times that the limit was lowered since a probe last began without a queue.
    lowered: u8 = 0,
    /// Nanoseconds from finding a limit to the next probe.
    probe_after: u64 = probe_ns_min,
    /// The last probe reached the rate that it tried, so the next probe takes a larger step.
    is_rising: bool = false,
    /// Recent bytes lost in a queue. `passed`: recent bytes acknowledged. `lost` and `passed` decay
    /// over `memory` intervals.
    lost: u64 = 0,
    passed: u64 = 0,
    /// Nanoseconds that `overflows` has been true without a break.
    overflowing: u64 = 0,
    signs: Signs = .{},

    /// The acknowledgements since the present queue on the way out began. If this peer made the
    /// queue, the acknowledged rate is what the link carries.
    const Queue = struct {
        acked: u64 = 0,
        ns: u64 = 0,
        /// Nanoseconds that acknowledgements waited when the queue began, and in the last interval.
        /// While this wait shrinks, acknowledgements come faster than the acknowledged data
        /// arrived.
        back_first: ?u64 = null,
        back_last: u64 = 0,
        has_lost: bool = false,

        /// A queue that has lasted for a shorter time does not show what the link carries.
        const least_ns: u64 = 400 * ms;

        fn note(queue: *Queue, i: *const Interval) void {
            if (i.retransmitted > i.acked / lost_part) queue.has_lost = true;
            const back = i.back_ns orelse return;
            if (!i.queued() or !i.is_telling()) return;
            defer queue.back_last = back;
            if (queue.back_first == null) {
                queue.back_first = back;
                return;
            }
            queue.acked +|= i.acked;
            queue.ns +|= i.ns;
        }

        /// Bytes per second that the link carries by this queue; null: not known.
        fn carries(queue: *const Queue) ?u64 {
            if (queue.ns < least_ns or queue.has_lost) return null;
            const ns = queue.ns +| queue.back_first.? -| queue.back_last;
            const part = queue.ns / 4;
            return per_second(queue.acked, std.math.clamp(ns, queue.ns - part, queue.ns + part));
        }
    };

    /// The signs by which a limit is found.
    pub const Signs = struct {
        /// A queue that has stood for `full_after`, or overflowed and stood for `full_after_loss`,
        /// means that the link is full. The start of a connection makes shorter queues, too.
        full_after: u64 = 800 * ms,
        full_after_loss: u64 = 500 * ms,
        /// A queue that overflows again and again for this time means that the link is full, even
        /// if the queue does not last.
        full_after_overflow: u64 = never,
        /// As `full_after`, for a link that is held. Shorter queues empty by themselves: a network
        /// may stall for a moment, or acknowledgements wait in the other side's queue while the
        /// other side probes.
        held_after: u64 = 600 * ms,
        /// Number of intervals over which the arriving rate is averaged.
        intervals: u8 = 4,
        /// Nanoseconds from finding the first limit to the first probe.
        probe_after: u64 = probe_ns_min,
        /// A probe raises the rate by one part in `probe_part`. On a long path a probe lasts two
        /// intervals longer than the round trip, and adds a queue of less than 50 ms.
        probe_part: u64 = 8,
        /// The signs of a full link (the fields above) are those for short calls, which end after
        /// few intervals. So a queue lasts until hardly any packet waits, and data that arrives
        /// while a queue shrinks counts, too.
        is_brief: bool = false,
    };

    const never = std.math.maxInt(u64);

    pub const State = enum {
        /// No limit: the link was not full since it began, or since its limit was dropped.
        free,
        /// The link sends less than it carries, until the queue is gone.
        draining,
        /// The link sends as much as it was found to carry.
        held,
        /// A probe: the link sends more than it was found to carry.
        probing,
        /// The link sends as much as it was found to carry although a queue stands, because other
        /// traffic makes the queue.
        yielding,
    };

    /// A held link is drained when its queue has overflowed and stood for this time.
    const overflowed_ns: u64 = 150 * ms;
    /// A queue that comes back within this time means that the limit of the link is too high.
    const soon_ns: u64 = 500 * ms;
    /// Other traffic counts as gone once no queue has stood for this time.
    const calm_min_ns: u64 = 500 * ms;
    const drain_ns: u64 = 400 * ms;
    /// A queue that this peer makes gets shorter by at least this much in a round of draining.
    const shrinks_ns: u64 = 10 * ms;
    const vain_max = 1;
    /// Waits that differ by at most this time count as equal.
    const steady_ns: u64 = 4 * ms;
    const lowered_max = 4;
    /// A limit below this many bytes per second is dropped.
    const rate_min = 16 * 1024;
    const probe_ns_min: u64 = 1 * s;
    const probe_ns_max: u64 = 8 * s;
    const yield_ns: u64 = 10 * s;
    /// If a probe loses more than one byte in `lost_part`, the link is full.
    const lost_part = 64;
    const overflow_part = 32;
    /// A link whose rate is known to a hundredth is held below that rate by one part in
    /// `exact_part`.
    const exact_part = 128;
    const overflow_min = 64 * 1024;
    /// The number of intervals over which losses are averaged.
    const memory = 8;
    /// The fewest intervals over which the arriving rate is averaged, when there is no time for
    /// more.
    const few = 2;

    pub fn step(p: *Pacer, i: *const Interval) void {
        p.note_lost(i);
        p.calm_ns = if (i.is_free()) p.calm_ns + i.ns else 0;
        // An interval in which the link was not kept busy says nothing, unless the link has no
        // limit yet and its queue overflows.
        const is_flooded = p.state == .free and i.acked > 0 and p.overflows();
        if (!i.is_telling() and !is_flooded) return p.pause();
        p.note(i);
        switch (p.state) {
            .free => if (p.is_full(i)) {
                p.probe_after = p.signs.probe_after;
                p.drain(p.first(i), i);
            } else if (p.crowded == 0 and !p.overflows()) p.start_anew(),
            .draining => if (i.is_free()) p.drained() //
            else if (p.lasted >= i.rtt_ns + drain_ns) p.drain_more(i),
            .held => if (p.is_crowded()) {
                const is_soon = p.lasted < soon_ns + p.crowded;
                p.drain(p.found, i);
                p.is_unasked = true;
                p.is_soon = is_soon;
            } else if (p.lasted >= p.probe_after and !i.queued()) {
                p.lowered = 0;
                p.probe(i.waits());
            },
            .probing => p.judge(i),
            .yielding => if (p.calm_ns >= calm_min_ns) p.hold(p.found) //
            else if (p.lasted >= yield_ns) p.probe(i.waits()),
        }
        // The queue is gone, so `peak` and `queue` begin anew.
        if (!i.is_free()) return;
        p.peak = 0;
        p.queue = .{};
    }

    /// Notes a pause of the link, in which the network may have changed. A limit that is too high
    /// makes a queue, which shows at once. A limit that is too low would slow the link for a while,
    /// so after a long pause a probe begins at once, and more probes follow until a probe gains
    /// nothing. The limit is kept, because to find it anew would cost the first operation after
    /// each pause a full queue.
    pub fn rest(p: *Pacer, ns: u64) void {
        p.forget_queue();
        p.lost = 0;
        p.passed = 0;
        p.calm_ns = 0;
        if (ns < half_life_ns) return;
        p.lowered = 0;
        p.is_rising = false;
        p.vain = 0;
        p.most = 0;
        p.probe_after = probe_ns_min;
        switch (p.state) {
            .free => {},
            .draining, .held, .probing, .yielding => p.probe(0),
        }
    }

    fn note(p: *Pacer, i: *const Interval) void {
        p.lasted += i.ns;
        p.acked += i.acked;
        p.recent = p.recent[1..].* ++ .{i.goodput()};
        p.waited = p.waited[1..].* ++ .{i.round()};
        p.recent_count = @min(p.recent_count + 1, p.recent.len);
        p.peak = @max(p.peak, p.of_last(p.window()));
        p.queue.note(i);
        const is_over = if (p.signs.is_brief) i.is_free() else !i.queued();
        if (is_over) {
            p.crowded = 0;
            p.overflowed = false;
        }
        if (!i.queued() or !i.is_telling()) return;
        p.crowded += i.ns;
        if (i.retransmitted > 0) p.overflowed = true;
    }

    fn window(p: *const Pacer) usize {
        if (p.state != .free) return p.recent.len;
        return if (p.overflows()) few else p.signs.intervals;
    }

    fn note_lost(p: *Pacer, i: *const Interval) void {
        if (p.signs.full_after_overflow == never) return;
        p.lost -= p.lost / memory;
        p.passed -= p.passed / memory;
        p.passed +|= i.acked;
        if (i.crowded()) p.lost +|= i.retransmitted;
        p.overflowing = if (p.overflows()) p.overflowing + i.ns else 0;
    }

    /// Whether queues have lately lost more than one byte in `overflow_part`: TCP has far more in
    /// flight than the link carries. Losses show this even if TCP took all bytes of a call before
    /// the queue showed.
    fn overflows(p: *const Pacer) bool {
        return p.lost > @max(p.passed / overflow_part, overflow_min);
    }

    /// Bytes per second that arrived over the last intervals; 0: not known.
    fn lately(p: *const Pacer) u64 {
        return p.of_last(p.recent.len);
    }

    fn of_last(p: *const Pacer, count: usize) u64 {
        if (p.recent_count < count) return 0;
        // While waits shrink, acknowledgements come faster than the acknowledged data arrived.
        const shrinks = p.waited[p.waited.len - count] > p.waited[p.waited.len - 1] + steady_ns;
        if (shrinks and !p.signs.is_brief) return 0;
        var sum: u64 = 0;
        for (p.recent[p.recent.len - count ..]) |each| sum += each;
        return sum / count;
    }

    /// The first limit: the rate `peak`. With signs for short calls, the first limit is the rate
    /// that the link carried before (`i.known`) if that is higher, but at most 7/4 of `peak`.
    fn first(p: *const Pacer, i: *const Interval) u64 {
        if (!p.signs.is_brief) return p.peak;
        return @max(p.peak, @min(i.known, p.peak +| p.peak / 4 * 3));
    }

    fn probe(p: *Pacer, waits: u64) void {
        p.waits = waits;
        // A limit that is new or has just risen may be far too low, so the probe takes a larger
        // step.
        const is_new = p.probe_after <= probe_ns_min;
        const part: u64 = if (p.is_rising) 2 else if (is_new) 4 else p.signs.probe_part;
        p.to(.probing, p.found + p.found / part);
    }

    fn start_anew(p: *Pacer) void {
        p.queue = .{};
        p.peak = 0;
        p.to(.free, 0);
    }

    fn is_full(p: *const Pacer, i: *const Interval) bool {
        const signs = &p.signs;
        // Losses count only if this peer sends much, because a queue of other traffic drops packets
        // of a peer that sends little, too.
        const is_much = p.peak > 0 and i.known > 0 and p.peak >= i.known / 2;
        const is_flooded = p.overflowing >= signs.full_after_overflow and i.crowded();
        if (is_flooded and i.retransmitted > 0 and is_much) return true;
        return p.crowded >= signs.full_after or
            (p.overflowed and p.crowded >= signs.full_after_loss);
    }

    fn is_crowded(p: *const Pacer) bool {
        return p.crowded >= p.signs.held_after or (p.overflowed and p.crowded >= overflowed_ns);
    }

    fn to(p: *Pacer, state: State, rate: u64) void {
        p.state = state;
        p.rate = rate;
        p.lasted = 0;
        p.acked = 0;
    }

    /// Bytes per second that were acknowledged in the present `state`.
    fn moved(p: *const Pacer) u64 {
        return per_second(p.acked, p.lasted);
    }

    fn forget_queue(p: *Pacer) void {
        p.recent_count = 0;
        p.crowded = 0;
        p.overflowed = false;
        p.overflowing = 0;
        p.peak = 0;
        p.queue = .{};
    }

    /// Drops the measurement under way, because the link sent too little to show what it carries.
    pub fn pause(p: *Pacer) void {
        const arrived = p.lately();
        p.forget_queue();
        switch (p.state) {
            .free => p.to(.free, 0),
            // This peer makes no queue on an idle link.
            .draining => p.hold(p.found),
            .probing => if (arrived > p.found) p.hold(@min(arrived, p.rate)),
            .held, .yielding => {},
        }
    }

    fn drain(p: *Pacer, carries: u64, i: *const Interval) void {
        if (p.is_lost(carries)) return p.to(.free, 0);
        p.found = carries;
        p.found_before = carries;
        p.waits = i.waits();
        p.is_rising = false;
        p.is_unasked = false;
        p.is_soon = false;
        p.vain = 0;
        p.to(.draining, carries - carries / 8);
    }

    /// Whether this peer made the queue: while draining, more has arrived than was sent. Behind a
    /// queue of other traffic, no more arrives than is sent.
    fn is_own(p: *const Pacer) bool {
        return p.moved() >= p.rate + p.rate / 16;
    }

    /// The queue is gone: sets the limit to the rate that arrived while the queue stood, because
    /// the link was full then. If the queue came without a probe, the limit was too high, perhaps
    /// only for a moment: the limit is lowered, and a probe follows soon.
    fn drained(p: *Pacer) void {
        if (p.queue.carries()) |carries| if (p.is_own()) {
            const near = std.math.clamp(carries, p.found - p.found / 32, p.found + p.found / 8);
            p.hold(near);
            p.rate = near - near / exact_part;
            return;
        };
        const is_less = if (p.signs.is_brief)
            p.is_soon and p.peak < p.found - p.found / 16
        else
            p.is_unasked and p.peak > 0 and p.peak < p.found - p.found / 32;
        if (!is_less) return p.hold(@max(p.found, @min(p.peak, p.found + p.found / 8)));
        p.probe_after = probe_ns_min;
        p.lowered += 1;
        if (p.lowered > lowered_max) {
            p.lowered = 0;
            return p.yield(@min(p.most, p.found + p.found / 8));
        }
        const carries = @max(p.peak, p.found - p.found / 32);
        if (p.is_lost(carries)) return p.to(.free, 0);
        p.hold(carries);
    }

    /// The queue still stands after a round of draining. A queue that shrinks is drained further.
    /// If less arrives than is sent, the link carries less, and the limit falls to what arrives. If
    /// the queue does not shrink, the limit falls a little; if the queue still does not shrink
    /// after that, it counts as made by other traffic.
    fn drain_more(p: *Pacer, i: *const Interval) void {
        const arrives = p.moved();
        const is_less = arrives < p.rate / 8 * 7;
        const shrinks = i.waits() + shrinks_ns <= p.waits;
        p.waits = i.waits();
        // Less was sent than the link was found to carry, and as much arrives: the queue drains.
        if (arrives >= p.found - p.found / 16) return p.to(.draining, p.rate);
        if (shrinks and !is_less) return p.to(.draining, p.rate);
        p.vain += 1;
        if (p.vain > vain_max and !is_less) return p.yield(p.found_before);
        p.found = if (is_less) @max(arrives, p.found / 2) else p.found - p.found / 16;
        if (p.is_lost(p.found)) return p.to(.free, 0);
        if (is_less) {
            p.vain = 0;
            p.found_before = p.found;
        }
        p.probe_after = probe_ns_min;
        p.peak = 0;
        p.queue = .{};
        p.to(.draining, p.found - p.found / 8);
    }

    /// Holds the rate `carries` although a queue stands, because other traffic makes the queue.
    fn yield(p: *Pacer, carries: u64) void {
        p.found = carries;
        p.queue = .{};
        p.to(.yielding, carries);
    }

    /// Whether a rate is so low that the link must have changed. If so, drops the limit, which is
    /// then found anew: otherwise a series of bad moments could lower the limit without end.
    fn is_lost(p: *Pacer, carries: u64) bool {
        p.most = @max(p.most, carries);
        if (carries > p.most / 2 and carries >= rate_min) return false;
        p.most = 0;
        p.found = 0;
        p.peak = 0;
        p.is_rising = false;
        return true;
    }

    fn hold(p: *Pacer, carries: u64) void {
        p.found = carries;
        p.most = @max(p.most, carries);
        p.to(.held, carries - carries / 64);
    }

    /// Judges a probe by the bytes that are acknowledged a round trip after it began. If the probe
    /// makes a queue or loses packets, the link is full, and the arriving rate is what the link
    /// carries. If no more data arrives, TCP is held back or still grows, and the probe goes on.
    fn judge(p: *Pacer, i: *const Interval) void {
        const is_lossy = i.retransmitted > i.acked / lost_part;
        const shows: u64 = if (p.is_rising) 1 else few;
        if (p.lasted < i.base_ns + p.waits + shows * i.ns and !is_lossy) return;
        const count = if (p.crowded > 0) few else p.signs.intervals;
        const arrives = @max(p.found, @min(p.of_last(count), p.rate));
        const gained = arrives > p.found + p.found / 12;
        // The queue stood before the probe and has not grown, so other traffic makes it.
        if (p.waits > Interval.queue_ns and i.queued() and i.waits() <= p.waits + steady_ns)
            return p.yield(arrives);
        if (gained) p.lowered = 0;
        if (p.crowded > 0 or is_lossy) {
            p.is_rising = false;
            // After a probe that gained, the next probe comes soon.
            p.probe_after = if (arrives > p.found + p.found / 32)
                probe_ns_min
            else
                @min(@max(p.probe_after, probe_ns_min / 2) * 2, probe_ns_max);
            return if (p.crowded > 0) p.drain(arrives, i) else p.hold(arrives);
        }
        if (!gained or p.lasted < i.rtt_ns + p.signs.intervals * i.ns) return;
        p.is_rising = arrives >= p.rate - p.rate / 16;
        p.probe_after = i.ns;
        p.hold(arrives);
    }
};

/// Whether a link sends as fast as its limit `rate` allows, so that more lanes would gain nothing.
pub fn is_full(rate: u64, i: *const Interval) bool {
    return rate > 0 and i.goodput() >= rate / 8 * 7;
}

/// Divides the limit of a link among its lanes: each lane gets the same, but fast lanes also get
/// what slow lanes leave. `moved`: bytes per second that each lane moved in the last interval.
/// `rate` 0: no limit.
pub fn share(rate: u64, moved: []const u64, shares: []u64) void {
    if (rate == 0) return @memset(shares, 0);
    const even = rate / @max(1, moved.len);
    var left = rate;
    var fast: usize = 0;
    for (moved) |each| {
        if (is_slower(each, even)) left -= each else fast += 1;
    }
    for (moved, shares) |each, *given| {
        // A slow lane may catch up, so it gets an even share.
        given.* = if (fast == 0 or is_slower(each, even)) @max(even, 1) else @max(left / fast, 1);
    }
}

pub fn is_slower(moved: u64, even: u64) bool {
    return moved < even / 4 * 3;
}

// ---- intervals
//
// An interval has what the lanes of a link have moved in a tenth of a second. measure.zig fills in
// intervals; this file and flow.zig decide by them.

/// Bytes per second, where `bytes` move in `ns`.
pub fn per_second(bytes: u64, ns: u64) u64 {
    return bytes *| s / @max(1, ns);
}

/// The bytes and times of all lanes of a link in one interval.
pub const Interval = struct {
    ns: u64 = 0,
    /// Payload bytes that the other side has acknowledged. `retransmitted`: bytes sent again.
    acked: u64 = 0,
    retransmitted: u64 = 0,
    /// Bytes that the operating system was given to send.
    given: u64 = 0,
    /// The smoothed round trip of the lanes, and the shortest round trip that a lane has ever had.
    rtt_ns: u64 = 0,
    base_ns: u64 = 0,
    /// How long packets and acknowledgements of the other side wait on their way here (flow.zig);
    /// null: not known.
    back_ns: ?u64 = null,
    /// Each lane had more to send during the whole interval.
    saturated: bool = false,
    /// The rate that the link carried before, bytes per second; 0: not known.
    known: u64 = 0,

    /// Bytes per second that were acknowledged.
    pub fn goodput(i: *const Interval) u64 {
        return per_second(i.acked, i.ns);
    }

    /// Whether the interval shows what the link carries: the link was kept busy, and data was
    /// acknowledged.
    pub fn is_telling(i: *const Interval) bool {
        return i.saturated and i.acked > 0;
    }

    /// Bytes that were acknowledged, or that were given to the system, whichever is more.
    pub fn moved(i: *const Interval) u64 {
        return @max(i.acked, i.given);
    }

    /// Whether packets or their acknowledgements wait for longer than jitter explains. `queue_ns`
    /// is the same for all distances, because a queue on one link also delays acknowledgements of
    /// other links.
    pub fn crowded(i: *const Interval) bool {
        return i.round() > queue_ns;
    }

    /// Whether hardly any packet or acknowledgement waits.
    pub fn calm(i: *const Interval) bool {
        return i.round() <= queue_ns / 2;
    }

    /// As `crowded`, but for packets alone if the wait of acknowledgements (`back_ns`) is known.
    pub fn queued(i: *const Interval) bool {
        return i.waits() > queue_ns;
    }

    /// As `calm`, but for packets alone if the wait of acknowledgements (`back_ns`) is known.
    pub fn is_free(i: *const Interval) bool {
        return i.waits() <= queue_ns / 2;
    }

    /// Nanoseconds that packets wait on the way out.
    pub fn waits(i: *const Interval) u64 {
        return i.round() -| (i.back_ns orelse 0);
    }

    /// Nanoseconds that packets and their acknowledgements wait together.
    pub fn round(i: *const Interval) u64 {
        return i.rtt_ns -| i.base_ns;
    }

    pub const queue_ns = 20 * ms;
};

// ---- aging
//
// Aging: how much of a rate that was found earlier still counts. The caller of `aged` decides which
// time it passes: busy time, or all time.

/// A rate counts half this time after it was found.
pub const half_life_ns = 2 * 60 * s;

/// The part of a rate that is left after `ns`. Within a half-life the curve is 1 - 0.693 x + 0.193
/// x^2: it ends at a half, and begins so steep that many short steps give the same as one long
/// step.
pub fn aged(rate: u64, ns: u64) u64 {
    const halved = rate >> @intCast(@min(ns / half_life_ns, 63));
    const part_ppm = ns % half_life_ns *| 1_000_000 / half_life_ns;
    const taken_ppm = (693 * part_ppm - 193 * part_ppm * part_ppm / 1_000_000) / 1000;
    return halved - halved *| taken_ppm / 1_000_000;
}

test "what is found out counts half after a half-life, in one step or in many" {
    try expectEqual(1000, aged(1000, 0));
    try expectEqual(500, aged(1000, half_life_ns));
    try expectEqual(250, aged(1000, 2 * half_life_ns));
    try expectEqual(0, aged(1000, std.math.maxInt(u64)));
    const half = aged(1000, half_life_ns / 2);
    try expect(half > 690 and half < 720); // 707
    var rate: u64 = 1_000_000_000;
    for (0..600) |_| rate = aged(rate, 200 * ms);
    try expect(rate > 490_000_000 and rate < 510_000_000);
    try expect(aged(std.math.maxInt(u64), half_life_ns - 1) > 0);
}

// ---- peaks
//
// A peak is the highest recent rate while more bytes were waiting to be sent: of a link (flow.zig),
// or of all links of this peer at once. A peak halves in two minutes of busy time, unless the link
// carries as much again. Time with little to send does not age the peak, because it says nothing of
// the rate. Time without any traffic ages the peak once the link is busy again: until then the peak
// is the best known rate.

pub const Peak = struct {
    /// Bytes per second; 0: not known.
    rate: u64 = 0,
    /// Bytes and nanoseconds of the stretch under way (`stretch_ns`).
    bytes: u64 = 0,
    ns: u64 = 0,
    /// Nanoseconds without traffic since `rate` was last set.
    idle_ns: u64 = 0,

    /// A rate is averaged over at least this time, because acknowledgements come in bursts, and a
    /// busy thread reads in bursts.
    const stretch_ns = 200 * ms;

    /// Notes an interval during which there was always more to send.
    pub fn sent(peak: *Peak, bytes: u64, ns: u64) void {
        const rate = peak.lately(bytes, ns) orelse return;
        peak.take(rate);
    }

    /// Notes an interval without enough to send, but with a queue on the way. The path carries at
    /// least the rate of this interval, so the peak may rise. The interval sets no first rate,
    /// because other traffic may have made the queue.
    pub fn queued(peak: *Peak, bytes: u64, ns: u64) void {
        const rate = peak.lately(bytes, ns) orelse return;
        if (peak.rate > 0 and rate > peak.rate) peak.take(rate) else peak.pause();
    }

    /// Notes an interval that says nothing of the rate: drops the stretch under way.
    pub fn pause(peak: *Peak) void {
        peak.bytes = 0;
        peak.ns = 0;
    }

    /// Notes bytes that came in. How much the senders had to send is not known, so a rate below
    /// half of the peak counts as a pause of the senders.
    pub fn arrived(peak: *Peak, bytes: u64, ns: u64) void {
        const rate = peak.lately(bytes, ns) orelse return;
        const before = aged(peak.rate, peak.idle_ns);
        if (rate < before / 2) peak.pause() else peak.take(rate);
    }

    /// Notes that nothing has moved for `ns`.
    pub fn rest(peak: *Peak, ns: u64) void {
        peak.pause();
        peak.idle_ns +|= ns;
    }

    /// Adds to the stretch under way. Returns the rate of the stretch, bytes per second; null: the
    /// stretch is too short.
    fn lately(peak: *Peak, bytes: u64, ns: u64) ?u64 {
        peak.bytes +|= bytes;
        peak.ns +|= ns;
        return if (peak.ns < stretch_ns) null else per_second(peak.bytes, peak.ns);
    }

    fn take(peak: *Peak, rate: u64) void {
        peak.rate = @max(rate, aged(peak.rate, peak.ns +| peak.idle_ns));
        peak.idle_ns = 0;
        peak.pause();
    }
};

test "no number of a system makes it overflow" {
    var peak: Peak = .{};
    const most = std.math.maxInt(u64);
    for (0..3) |_| peak.sent(most, most);
    for (0..3) |_| peak.arrived(most, most);
    for (0..3) |_| peak.sent(most, 100 * ms);
    try std.testing.expect(peak.rate > 0);
}

// ---- links that send together
//
// Several links of this peer may send at the same time, as in the direct schedule. Packets of all
// these links wait in the queue of the peer's uplink, and no link alone shows what the uplink
// carries: each link would find what the other links leave, and keep that limit after the other
// links have ended. So all links together have one limit, which is found as for a single link, and
// each link gets a part of it. If the packets of one link wait and those of another link do not, no
// common limit is sought: the slow link is limited by its own path.

pub const Together = struct {
    /// The limit of all links together. The signs for this limit need little time, because a call
    /// may end before the limit of a single link would be found.
    pacer: Pacer = .{ .signs = .{
        .full_after = 400 * ms,
        .full_after_loss = 200 * ms,
        .held_after = 150 * ms,
        .probe_after = 500 * ms,
        .probe_part = 4,
        .intervals = 2,
        .is_brief = true,
    } },
    /// The highest rate of all links together while some link had more to send and no queue stood.
    /// While a queue stands in the first call, less arrives, because all peers overfill the paths
    /// of each other.
    carried: Peak = .{},
    /// In the last interval, the bytes given to the system were more than a quarter of the bytes
    /// acknowledged.
    was_given: bool = false,
    /// Number of links that sent much, in the last interval in which several links sent much.
    senders: u64 = 0,
    /// The sums over all links in the interval under way.
    now: Sum = .{},

    /// The bytes and rates of the links in one interval.
    pub const Sum = struct {
        /// Bytes of all links together: acknowledged; acknowledged or given to the system,
        /// whichever is more on each link; given to the system.
        acked_by_all: u64 = 0,
        moved_by_all: u64 = 0,
        given_by_all: u64 = 0,
        /// Some link had more to send during the whole interval.
        is_telling: bool = false,
        /// Number of links that send much (`is_sender`).
        senders: u64 = 0,
        /// Number of links that sent much by their acknowledgements, which come a round trip later
        /// (`is_one`). `acked`, `retransmitted`: the bytes of these links.
        links: u64 = 0,
        acked: u64 = 0,
        retransmitted: u64 = 0,
        /// The shortest wait in queues among the links counted in `links`, and the longest of their
        /// shortest round trips.
        waits_ns: u64 = std.math.maxInt(u64),
        base_ns: u64 = 0,
        /// Lanes of the links counted in `links`, and how many of these lanes were busy during the
        /// whole interval.
        lanes: u64 = 0,
        lanes_busy: u64 = 0,
        /// The highest known rate of a link counted in `links`, bytes per second.
        carries: u64 = 0,
        /// Number of links that leave some of their part unused, and the bytes per second that
        /// these links move.
        slow: u64 = 0,
        slow_rate: u64 = 0,

        pub fn note(sum: *Sum, i: *const Interval) void {
            sum.acked_by_all +|= i.acked;
            sum.moved_by_all +|= i.moved();
            sum.given_by_all +|= i.given;
            sum.is_telling = sum.is_telling or i.is_telling();
        }
    };

    /// A link that moves less than one part in `little_part` of all bytes does not count as sending
    /// much.
    const little_part = 8;

    /// Begins an interval. `now`: sums to which all links were added with `Sum.note`.
    pub fn begin(t: *Together, now: Sum) void {
        t.now = now;
    }

    /// Whether a link sent much, judged by its acknowledged bytes.
    pub fn is_one(t: *const Together, i: *const Interval) bool {
        return i.acked > 0 and i.acked >= t.now.acked_by_all / little_part;
    }

    /// Whether a link sent as much as the link itself carries: a queue stands on it, and on no
    /// other link that sends, or it sends alone.
    pub fn is_own(t: *const Together, i: *const Interval) bool {
        if (!i.is_telling() or !i.crowded()) return false;
        return if (t.now.links < 2) t.is_one(i) else t.is_calm();
    }

    /// Whether a link sends much while other links do, too.
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

    /// Ends the interval, after `add` was called for each link. `is_late`: the process stood still.
    pub fn step(t: *Together, ns: u64, is_late: bool) void {
        if (t.now.senders >= 2) t.senders = t.now.senders;
        const is_known = t.now.is_telling and t.now.senders >= 2 and t.is_calm();
        if (is_known) t.carried.sent(t.now.acked_by_all, ns) else t.carried.pause();
        // Once nothing is left to send, acknowledgements of far links trail behind those of near
        // links, so their sum does not show what the uplink carries.
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

    /// Notes that nothing has moved for `ns`.
    pub fn rest(t: *Together, ns: u64) void {
        t.carried.rest(ns);
        t.pacer.rest(ns);
    }

    /// Whether the links send as much as they can together. A quarter of busy lanes is enough,
    /// because lanes of several links wait for credits now and then. A queue with much acknowledged
    /// is enough, too, because the system may hold all bytes of a short call while its queue
    /// stands.
    fn are_busy(t: *const Together, ns: u64) bool {
        if (t.now.lanes_busy * 4 >= t.now.lanes) return true;
        const is_much = per_second(t.now.acked, ns) >= t.now.carries / 4;
        return t.now.carries > 0 and is_much and !t.is_calm();
    }

    /// Whether packets of some link hardly wait.
    fn is_calm(t: *const Together) bool {
        return t.now.waits_ns <= Interval.queue_ns / 2;
    }

    /// Whether packets of all links wait, so that a queue common to the links limits them.
    pub fn is_common(t: *const Together) bool {
        return t.now.links >= 2 and t.now.waits_ns > Interval.queue_ns;
    }

    /// Counts a link that leaves some of its part unused; called for all links before `part`.
    pub fn note_slow(t: *Together, i: *const Interval) void {
        if (!t.is_sender(i) or !t.is_slow(i)) return;
        t.now.slow += 1;
        t.now.slow_rate +|= per_second(i.moved(), i.ns);
    }

    /// A link's part of the common limit, bytes per second; 0: no limit. An idle link has the part
    /// that it would have if it began together with the links that last sent together. Fast links
    /// share all that slow links leave.
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
        return is_slower(per_second(i.moved(), i.ns), t.even());
    }

    fn even(t: *const Together) u64 {
        return t.pacer.rate / @max(1, t.now.senders);
    }
};

// ---- a model of an uplink

/// A model for tests: links that share a queue of 50 ms in front of an uplink.
const WayOut = struct {
    carries: u64,
    /// Busy lanes of each link, as in `Together.add`.
    lanes_busy: u64 = 8,
    /// Bytes per second that other traffic sends through the uplink.
    others: u64 = 0,
    queued: u64 = 0,
    lost: u64 = 0,
    moved: u64 = 0,
    together: Together = .{},
    links: [3]Interval = @splat(.{}),

    const ns = 100 * ms;
    const queue_ns_max = 50 * ms;
    const distances = [_]u64{ 60 * ms, 90 * ms, 150 * ms };

    /// `wishes`: bytes per second that TCP would send on each link without a limit.
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

/// Tells `t` what the links have moved in an interval.
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
    // For 30 s the links use over 90 % of the uplink, and overfill its queue by less than 1 %.
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
    // A link that sends alone may make a queue, which does not change the common limit.
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

/// An interval of a link with a steady `rate` in MB/s, and a round trip of `rtt` ms, of which 60 ms
/// are distance.
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
    // Goal: the queue that each call makes is seen, although nothing is left to send when the queue
    // shows. Method: bursts of 300 ms with a second between, and no lane that is busy.
    var out: WayOut = .{ .carries = 24 * mbyte, .lanes_busy = 0 };
    for (0..2) |_| {
        out.run(@splat(20 * mbyte), 3);
        out.run(@splat(0), 10);
    }
    try expect(out.together.pacer.rate > 20 * mbyte);
    try expect(out.together.pacer.rate <= 24 * mbyte);
    // A small rate that waits behind other traffic does not show what the uplink carries.
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

// ---- all links of this peer
//
// The highest rates at which this peer sends and receives on all its links at once, which no single
// link shows; and the limit of links that send together.

/// Bytes that all links of a peer have moved in one interval.
pub const Moved = struct {
    acked: u64 = 0,
    received: u64 = 0,
    /// Some link had more to send during the whole interval.
    saturated: bool = false,
};

/// The most that this peer sends and receives on all its links at once.
pub const Node = struct {
    up: Peak = .{},
    down: Peak = .{},
    together: Together = .{},

    pub fn note(node: *Node, moved: *const Moved, ns: u64) void {
        if (moved.saturated) node.up.sent(moved.acked, ns) else node.up.pause();
        node.down.arrived(moved.received, ns);
    }

    pub fn rest(node: *Node, ns: u64) void {
        node.up.rest(ns);
        node.down.rest(ns);
        node.together.rest(ns);
    }
};

fn send_test(node: *Node, per_s: u64, received_per_s: u64, saturated: bool, intervals: usize) void {
    for (0..intervals) |_| node.note(&.{
        .acked = per_s / 10,
        .received = received_per_s / 10,
        .saturated = saturated,
    }, 100 * ms);
}

test "a peer's rate is what all its links have carried at once while some had more to send" {
    var node: Node = .{};
    send_test(&node, 25 * mbyte, 12 * mbyte, true, 1);
    try expectEqual(0, node.up.rate); // a single interval may be a burst
    send_test(&node, 25 * mbyte, 12 * mbyte, true, 1);
    try expectEqual(25 * mbyte, node.up.rate);
    try expectEqual(12 * mbyte, node.down.rate);
    // Intervals without enough to send leave the rates unchanged, even for an hour.
    send_test(&node, 1 * mbyte, 1 * mbyte, false, 36_000);
    try expectEqual(25 * mbyte, node.up.rate);
    try expectEqual(12 * mbyte, node.down.rate);
}

test "a rate that is not reached any more halves in two minutes, and a larger one counts at once" {
    var node: Node = .{};
    send_test(&node, 80 * mbyte, 80 * mbyte, true, 2);
    send_test(&node, 10 * mbyte, 60 * mbyte, true, 1200);
    try expect(node.up.rate > 39 * mbyte and node.up.rate < 41 * mbyte);
    try expectEqual(60 * mbyte, node.down.rate);
    send_test(&node, 10 * mbyte, 60 * mbyte, true, 6 * 1200);
    try expectEqual(10 * mbyte, node.up.rate);
    send_test(&node, 90 * mbyte, 90 * mbyte, true, 2);
    try expectEqual(90 * mbyte, node.up.rate);
    try expectEqual(90 * mbyte, node.down.rate);
}

test "a rate from before a pause stays until more is known, and counts less then" {
    var node: Node = .{};
    send_test(&node, 80 * mbyte, 80 * mbyte, true, 2);
    node.rest(half_life_ns);
    node.rest(half_life_ns);
    try expectEqual(80 * mbyte, node.up.rate);
    // Less than half of the aged rate comes in, which counts as a pause of the senders.
    send_test(&node, 30 * mbyte, 9 * mbyte, true, 2);
    try expectEqual(30 * mbyte, node.up.rate);
    try expectEqual(80 * mbyte, node.down.rate);
    send_test(&node, 30 * mbyte, 25 * mbyte, true, 2);
    try expectEqual(25 * mbyte, node.down.rate);
    // The pause of the link ages a rate only once.
    send_test(&node, 10 * mbyte, 10 * mbyte, true, 2);
    try expect(node.up.rate > 29 * mbyte);
    try expectEqual(25 * mbyte, node.down.rate);
}

test "a stretch that a pause cuts short is not put together" {
    var node: Node = .{};
    for (0..100) |_| {
        send_test(&node, 50 * mbyte, 0, true, 1);
        send_test(&node, 0, 0, false, 1);
    }
    try expectEqual(0, node.up.rate);
}
