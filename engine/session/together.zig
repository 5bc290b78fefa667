//! together: links of this peer that send at the same time, as in the direct schedule. The queue
//! that all of them wait in is that of the peer's own way out, and no link alone knows what that
//! carries: each would find what the others leave, and keep to that after they have ended. So the
//! sum of them has a limit of its own, found as that of one link is (pace.zig), and each has its
//! part of it. A link on which packets wait longer, while others are calm, is its own limit.
//!
//! Pure: no lane, no socket, no clock. measure.zig calls it.

const std = @import("std");
const pace = @import("pace.zig");
const Interval = pace.Interval;
const ms = std.time.ns_per_ms;

pub const Together = struct {
    pacer: pace.Pacer = .{},
    /// So many sent much when last several did.
    links: u64 = 0,
    /// Now.
    now: Sum = .{},

    /// Of the interval: the links that send much.
    pub const Sum = struct {
        links: u64 = 0,
        /// All links, first.
        acked_by_all: u64 = 0,
        acked: u64 = 0,
        retransmitted: u64 = 0,
        /// The shortest time that packets of one wait, and the longest way.
        waits_ns: u64 = std.math.maxInt(u64),
        base_ns: u64 = 0,
        lanes: u64 = 0,
        lanes_busy: u64 = 0,
        /// Those that leave something of their part, and what they moved, bytes per second.
        slow: u64 = 0,
        slow_rate: u64 = 0,
    };

    /// One that moves less than this part of all is not one of them.
    const little_part = 8;

    pub fn begin(t: *Together, acked_by_all: u64) void {
        t.now = .{ .acked_by_all = acked_by_all };
    }

    pub fn is_one(t: *const Together, i: *const Interval) bool {
        return i.acked > 0 and i.acked >= t.now.acked_by_all / little_part;
    }

    pub fn add(t: *Together, i: *const Interval, lanes: u64, lanes_busy: u64) void {
        if (!t.is_one(i)) return;
        const now = &t.now;
        now.links += 1;
        now.acked +|= i.acked;
        now.retransmitted +|= i.retransmitted;
        now.waits_ns = @min(now.waits_ns, i.rtt_ns -| i.base_ns);
        now.base_ns = @max(now.base_ns, i.base_ns);
        now.lanes += lanes;
        now.lanes_busy += lanes_busy;
    }

    /// All are added. `is_late`: the process stood still.
    pub fn step(t: *Together, ns: u64, is_late: bool) void {
        if (t.now.links >= 2) t.links = t.now.links;
        const sum: Interval = .{
            .ns = ns,
            .acked = t.now.acked,
            .retransmitted = t.now.retransmitted,
            .rtt_ns = t.now.base_ns +| t.now.waits_ns,
            .base_ns = t.now.base_ns,
            // A lane may wait for a credit now and then.
            .saturated = !is_late and t.now.links >= 2 and t.now.lanes_busy * 2 >= t.now.lanes,
        };
        t.pacer.step(&sum);
    }

    /// All of them wait: none is its own limit.
    pub fn is_common(t: *const Together) bool {
        return t.now.links >= 2 and t.now.waits_ns > Interval.queue_ns;
    }

    /// Before `part`, once the sum has a limit.
    pub fn note_slow(t: *Together, i: *const Interval) void {
        if (!t.is_one(i) or !pace.is_slow(i.goodput(), t.even())) return;
        t.now.slow += 1;
        t.now.slow_rate +|= i.goodput();
    }

    /// Bytes per second for a link; 0: no limit. One that is idle may begin at the same time as
    /// those that sent together before. What slow ones leave goes to the others.
    pub fn part(t: *const Together, i: *const Interval) u64 {
        const rate = t.pacer.rate;
        if (rate == 0) return 0;
        if (!t.is_one(i)) return @max(1, rate / @max(1, t.links));
        if (t.now.links < 2) return 0;
        const fast = t.now.links - t.now.slow;
        if (fast == 0 or pace.is_slow(i.goodput(), t.even())) return @max(1, t.even());
        return @max(1, (rate -| t.now.slow_rate) / fast);
    }

    fn even(t: *const Together) u64 {
        return t.pacer.rate / @max(1, t.now.links);
    }
};
