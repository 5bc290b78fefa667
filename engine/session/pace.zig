//! pace: how fast a link is sent to, from what its lanes have moved in each interval. It begins
//! without a limit. Once a queue stands on the way, the link is full: what arrives then is what it
//! carries, and the link is held there, so that the queue empties and nothing overflows. Now and
//! then a little more is tried. It only ever slows TCP down.
//!
//! A queue that does not shrink although this peer sends less is somebody else's, or is one that
//! acknowledgements wait in: then the link is held at what it was found to carry, because to go on
//! backing off would leave the link to the other.
//!
//! Pure: no lane, no socket, no clock. measure.zig calls it; spread.zig says how many lanes.
//! pace_test.zig tries it on paths of many kinds.

const std = @import("std");
const aging = @import("aging.zig");
const interval = @import("interval.zig");
const Interval = interval.Interval;
const per_second = interval.per_second;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

pub const Pacer = struct {
    /// Payload bytes per second over all lanes; 0: no limit.
    rate: u64 = 0,
    state: State = .free,
    /// So much the link was found to carry; 0 before it was full.
    found: u64 = 0,
    /// Time that the present state has lasted, of intervals in which there was enough to send.
    lasted: u64 = 0,
    /// Payload that was acknowledged in it.
    acked: u64 = 0,
    /// Acknowledged of late, bytes per second: acknowledgements come in bursts, so it takes
    /// several intervals to know what arrives.
    recent: [4]u64 = @splat(0),
    /// How long packets and their acknowledgements waited then.
    waited: [4]u64 = @splat(0),
    recent_count: u8 = 0,
    /// The most that arrived since there is a queue. A queue of this peer's is fed and drained at
    /// what the link carries, so this much it does carry.
    peak: u64 = 0,
    queue: Queue = .{},
    /// How long there has been a queue, without a break, and whether it has overflowed.
    crowded: u64 = 0,
    overflowed: bool = false,
    /// It came while the link was held, and not because more was tried; and it came back soon
    /// after the last one was gone.
    is_unasked: bool = false,
    is_soon: bool = false,
    /// When draining began: what was found, and how long packets waited; also when a probe did.
    found_before: u64 = 0,
    waits: u64 = 0,
    /// Hardly any packet has waited for so long.
    calm_ns: u64 = 0,
    /// How often draining has not helped.
    vain: u8 = 0,
    /// The most that was found since there was a limit; and how often that was lowered since
    /// the link was calm for a while, or carried more.
    most: u64 = 0,
    lowered: u8 = 0,
    /// From one probe to the next.
    probe_after: u64 = probe_ns_min,
    /// The last probe brought as much as it tried, so the next one tries more.
    is_rising: bool = false,
    /// Bytes that were lost in a queue, and those that were acknowledged, of late; and for how long
    /// it has been many.
    lost: u64 = 0,
    passed: u64 = 0,
    overflowing: u64 = 0,
    signs: Signs = .{},

    /// A queue on the way out, since it is one. If it is this peer's, as much has arrived as the
    /// link carries.
    const Queue = struct {
        acked: u64 = 0,
        ns: u64 = 0,
        /// How long acknowledgements waited when it began, and in the last interval: those that
        /// wait less and less come faster than what they acknowledge has arrived.
        back_first: ?u64 = null,
        back_last: u64 = 0,
        has_lost: bool = false,

        /// One that lasts for less says little.
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

        /// Bytes per second; null: that is not known.
        fn carries(queue: *const Queue) ?u64 {
            if (queue.ns < least_ns or queue.has_lost) return null;
            const ns = queue.ns +| queue.back_first.? -| queue.back_last;
            const part = queue.ns / 4;
            return per_second(queue.acked, std.math.clamp(ns, queue.ns - part, queue.ns + part));
        }
    };

    /// How a limit is found.
    pub const Signs = struct {
        /// A queue that lasts for so long, or overflows and lasts for so long, is no moment: the
        /// start of a connection makes one, too.
        full_after: u64 = 800 * ms,
        full_after_loss: u64 = 500 * ms,
        /// One that overflows again and again, though it does not last.
        full_after_overflow: u64 = never,
        /// As `full_after`, for a link that is held. A network that stands still for a moment makes
        /// a queue that is gone by itself; and acknowledgements wait in queues of the other side,
        /// for as long as that one tries more.
        held_after: u64 = 600 * ms,
        /// So many intervals are enough to say what arrives.
        intervals: u8 = 4,
        /// More is tried so long after it is found.
        probe_after: u64 = probe_ns_min,
        /// One part in so many more: over a long way a probe lasts two intervals longer than the
        /// round trip, and fills less than a queue of 50 ms.
        probe_part: u64 = 8,
        /// Calls end before much is known. So a queue is there until hardly any packet waits, and
        /// what arrives while one shrinks counts, because there may be nothing else.
        is_brief: bool = false,
    };

    const never = std.math.maxInt(u64);

    pub const State = enum {
        /// No limit: it was never full.
        free,
        /// Less than it carries, until the queue is gone.
        draining,
        /// As much as it carries.
        held,
        /// A little more.
        probing,
        /// As much as it carries, whatever waits: the queue is not of this peer's making.
        yielding,
    };

    /// One that overflows may last less long until a link is held at less.
    const overflowed_ns: u64 = 150 * ms;
    /// A queue that comes back sooner means that the link is held too high.
    const soon_ns: u64 = 500 * ms;
    /// Others have gone when there was no queue for so long.
    const calm_min_ns: u64 = 500 * ms;
    const drain_ns: u64 = 400 * ms;
    /// A queue of this peer's is less by so much, when it has sent less for a while.
    const shrinks_ns: u64 = 10 * ms;
    const vain_max = 1;
    /// Less than this is no change.
    const steady_ns: u64 = 4 * ms;
    const lowered_max = 4;
    /// A limit below this is none.
    const rate_min = 16 * 1024;
    const probe_ns_min: u64 = 1 * s;
    const probe_ns_max: u64 = 8 * s;
    const yield_ns: u64 = 10 * s;
    /// If one in so many bytes is lost in a probe, the link is full.
    const lost_part = 64;
    const overflow_part = 32;
    /// A link is held at this part less than it carries, where that is known to a hundredth.
    const exact_part = 128;
    const overflow_min = 64 * 1024;
    /// Intervals, about, for which it is remembered what was lost.
    const memory = 8;
    /// As many intervals as say something, if there are no more.
    const few = 2;

    pub fn step(p: *Pacer, i: *const Interval) void {
        p.note_lost(i);
        p.calm_ns = if (i.is_free()) p.calm_ns + i.ns else 0;
        // Nothing is learned from a link that was not kept busy, unless it has no limit yet and its
        // queue overflows.
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
        // Bytes that arrived until now were the end of the queue.
        if (!i.is_free()) return;
        p.peak = 0;
        p.queue = .{};
    }

    /// Nothing has moved for so long, and the network may have changed. A limit that is too high
    /// makes a queue, which shows at once; one that is too low would bind for a while. So more is
    /// tried at once, and again until it brings nothing. The limit is not forgotten: to find it
    /// anew would cost the first operation after each pause a full queue.
    pub fn rest(p: *Pacer, ns: u64) void {
        p.forget_queue();
        p.lost = 0;
        p.passed = 0;
        p.calm_ns = 0;
        if (ns < aging.half_life_ns) return;
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

    /// A queue has lost one part in so many of late: TCP has far more in the air than the link
    /// carries, also where it was given all there was before that showed.
    fn overflows(p: *const Pacer) bool {
        return p.lost > @max(p.passed / overflow_part, overflow_min);
    }

    /// Bytes per second; 0 before there were enough intervals to say.
    fn lately(p: *const Pacer) u64 {
        return p.of_last(p.recent.len);
    }

    fn of_last(p: *const Pacer, count: usize) u64 {
        if (p.recent_count < count) return 0;
        // A queue that acknowledgements waited in is less: they come faster than what they
        // acknowledge has arrived.
        const shrinks = p.waited[p.waited.len - count] > p.waited[p.waited.len - 1] + steady_ns;
        if (shrinks and !p.signs.is_brief) return 0;
        var sum: u64 = 0;
        for (p.recent[p.recent.len - count ..]) |each| sum += each;
        return sum / count;
    }

    /// As much as arrived; where little is known, as was carried before, unless that is too much to
    /// be of this time.
    fn first(p: *const Pacer, i: *const Interval) u64 {
        if (!p.signs.is_brief) return p.peak;
        return @max(p.peak, @min(i.known, p.peak +| p.peak / 4 * 3));
    }

    fn probe(p: *Pacer, waits: u64) void {
        p.waits = waits;
        // A limit that is new, or that has just risen, may be far too low.
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
        // Little that is sent through the queue of others is lost there too.
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

    /// Bytes per second since the state began.
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

    /// It sent too little for that anything could be learned.
    pub fn pause(p: *Pacer) void {
        const arrived = p.lately();
        p.forget_queue();
        switch (p.state) {
            .free => p.to(.free, 0),
            // An idle link has no queue of this peer's.
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

    /// More has arrived than was sent since this peer sends less: it was its own queue that has
    /// shrunk. Behind a queue of others it gets through what it sends, or less.
    fn is_own(p: *const Pacer) bool {
        return p.moved() >= p.rate + p.rate / 16;
    }

    /// The queue is gone. While it was there the link was full, and what arrived is what it
    /// carries. If it came by itself, the link is held too high; perhaps for a moment only, so more
    /// is tried again soon.
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

    /// The queue is still there: it is long, or the link carries less, if less arrives than is
    /// sent, or a little less, if it does not shrink, or the queue is somebody else's.
    fn drain_more(p: *Pacer, i: *const Interval) void {
        const arrives = p.moved();
        const is_less = arrives < p.rate / 8 * 7;
        const shrinks = i.waits() + shrinks_ns <= p.waits;
        p.waits = i.waits();
        // As much as the link was found to carry, although less was sent.
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

    /// As much as before the queue of others came, and no less because of it.
    fn yield(p: *Pacer, carries: u64) void {
        p.found = carries;
        p.queue = .{};
        p.to(.yielding, carries);
    }

    /// The link is not as it was known, and is found out anew. So no series of bad moments can
    /// take a link away.
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

    /// A probe shows in what is acknowledged a round trip later. If it makes a queue, or loses
    /// packets, the link is full, and what arrives is what it carries. While it shows nothing, it
    /// is TCP that is held back or grows: this limit need not be in its way.
    fn judge(p: *Pacer, i: *const Interval) void {
        const is_lossy = i.retransmitted > i.acked / lost_part;
        const shows: u64 = if (p.is_rising) 1 else few;
        if (p.lasted < i.base_ns + p.waits + shows * i.ns and !is_lossy) return;
        const count = if (p.crowded > 0) few else p.signs.intervals;
        const arrives = @max(p.found, @min(p.of_last(count), p.rate));
        const gained = arrives > p.found + p.found / 12;
        // It stood before, and is no longer than that.
        if (p.waits > Interval.queue_ns and i.queued() and i.waits() <= p.waits + steady_ns)
            return p.yield(arrives);
        if (gained) p.lowered = 0;
        if (p.crowded > 0 or is_lossy) {
            p.is_rising = false;
            // One that has found something makes the next one come soon.
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

/// Held by this limit and by nothing else: more lanes would bring nothing.
pub fn is_full(rate: u64, i: *const Interval) bool {
    return rate > 0 and i.goodput() >= rate / 8 * 7;
}

/// Shares of the limit: each lane the same, but what a slow one leaves goes to the others.
/// `moved`: what each has moved of late, bytes per second. 0: no limit.
pub fn share(rate: u64, moved: []const u64, shares: []u64) void {
    if (rate == 0) return @memset(shares, 0);
    const even = rate / @max(1, moved.len);
    var left = rate;
    var fast: usize = 0;
    for (moved) |each| {
        if (is_slow(each, even)) left -= each else fast += 1;
    }
    for (moved, shares) |each, *given| {
        // A slow one may catch up.
        given.* = if (fast == 0 or is_slow(each, even)) @max(even, 1) else @max(left / fast, 1);
    }
}

pub fn is_slow(moved: u64, even: u64) bool {
    return moved < even / 4 * 3;
}
