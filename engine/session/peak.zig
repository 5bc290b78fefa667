//! peak: the most that was carried of late while more was waiting to be carried: by a link
//! (flow.zig), or by all links of this peer at once (node.zig). A peer that has little to send
//! learns nothing by that, so that time does not count: a rate halves in two minutes in which it
//! was busy, unless as much is carried again. Time in which nothing moved at all counts as well,
//! but not before it is busy again: until then the rate is the best that is known.
//!
//! Pure: no lane, no socket, no clock. Its tests are those of node.zig.

const std = @import("std");
const aging = @import("aging.zig");
const per_second = @import("interval.zig").per_second;
const ms = std.time.ns_per_ms;

pub const Peak = struct {
    /// Bytes per second; 0: not known.
    rate: u64 = 0,
    /// The stretch under way.
    bytes: u64 = 0,
    ns: u64 = 0,
    /// Nothing has moved for so long since the last one.
    idle_ns: u64 = 0,

    /// Acknowledgements come in bursts, and so do the turns of a busy thread that reads.
    const stretch_ns = 200 * ms;

    /// An interval in which there was more to send all the time.
    pub fn sent(peak: *Peak, bytes: u64, ns: u64) void {
        const rate = peak.lately(bytes, ns) orelse return;
        peak.take(rate);
    }

    /// There was not, but a queue stood on the way: that carries so much at least. The queue may be
    /// made by others, and this peer may have sent little; so this sets no first rate.
    pub fn queued(peak: *Peak, bytes: u64, ns: u64) void {
        const rate = peak.lately(bytes, ns) orelse return;
        if (peak.rate > 0 and rate > peak.rate) peak.take(rate) else peak.pause();
    }

    /// There was neither: the stretch is cut short.
    pub fn pause(peak: *Peak) void {
        peak.bytes = 0;
        peak.ns = 0;
    }

    /// Bytes that come in do not say how much others had to send. So less than half of what has
    /// come before is taken for a pause of theirs.
    pub fn arrived(peak: *Peak, bytes: u64, ns: u64) void {
        const rate = peak.lately(bytes, ns) orelse return;
        const before = aging.aged(peak.rate, peak.idle_ns);
        if (rate < before / 2) peak.pause() else peak.take(rate);
    }

    /// Nothing has moved for so long.
    pub fn rest(peak: *Peak, ns: u64) void {
        peak.pause();
        peak.idle_ns +|= ns;
    }

    /// The rate of a stretch that has come to its end.
    fn lately(peak: *Peak, bytes: u64, ns: u64) ?u64 {
        peak.bytes +|= bytes;
        peak.ns +|= ns;
        return if (peak.ns < stretch_ns) null else per_second(peak.bytes, peak.ns);
    }

    fn take(peak: *Peak, rate: u64) void {
        peak.rate = @max(rate, aging.aged(peak.rate, peak.ns +| peak.idle_ns));
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
