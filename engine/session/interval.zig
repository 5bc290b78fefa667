//! interval: what the lanes of a link have done in a time of a tenth of a second, and what that
//! says. measure.zig fills it in; pace.zig, together.zig, spread.zig and flow.zig judge by it.

const std = @import("std");
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

/// Bytes per second.
pub fn per_second(bytes: u64, ns: u64) u64 {
    return bytes *| s / @max(1, ns);
}

/// All that the lanes of a link have done in one interval.
pub const Interval = struct {
    ns: u64 = 0,
    /// Payload that the other side has acknowledged, and what was sent a second time.
    acked: u64 = 0,
    retransmitted: u64 = 0,
    /// Bytes that the system was given to send.
    given: u64 = 0,
    /// The round trip, smoothed, and the shortest that was ever seen.
    rtt_ns: u64 = 0,
    base_ns: u64 = 0,
    /// So long what comes back waits, acknowledgements too (way_back.zig); null: that is not known.
    back_ns: ?u64 = null,
    /// There was more to send all the time.
    saturated: bool = false,
    /// So much was carried before, bytes per second; 0: it is not known.
    known: u64 = 0,

    /// Bytes per second.
    pub fn goodput(i: *const Interval) u64 {
        return per_second(i.acked, i.ns);
    }

    /// It was kept busy, and something arrived: so much it carries.
    pub fn is_telling(i: *const Interval) bool {
        return i.saturated and i.acked > 0;
    }

    /// Bytes that were acknowledged, or given and will be.
    pub fn moved(i: *const Interval) u64 {
        return @max(i.acked, i.given);
    }

    /// Packets, or acknowledgements of them, wait for longer than jitter explains. The same for all
    /// distances: a queue on one link shows on others, whose acknowledgements wait in it.
    pub fn crowded(i: *const Interval) bool {
        return i.round() > queue_ns;
    }

    /// Hardly any of them waits.
    pub fn calm(i: *const Interval) bool {
        return i.round() <= queue_ns / 2;
    }

    /// As `crowded` and `calm`, of packets alone, where that is known.
    pub fn queued(i: *const Interval) bool {
        return i.waits() > queue_ns;
    }

    pub fn is_free(i: *const Interval) bool {
        return i.waits() <= queue_ns / 2;
    }

    /// Packets, on the way out.
    pub fn waits(i: *const Interval) u64 {
        return i.round() -| (i.back_ns orelse 0);
    }

    /// Packets and their acknowledgements.
    pub fn round(i: *const Interval) u64 {
        return i.rtt_ns -| i.base_ns;
    }

    pub const queue_ns = 20 * ms;
};
