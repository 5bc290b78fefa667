//! traffic: a peer's account of what it moves, in all and on its links in one span, for the status.
//! No decision depends on it. Only the peer knows these numbers, so the status shows them as the
//! peer's own words.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const control = wire.control;

pub const Traffic = struct {
    span_ns: u64 = 0,
    sent: u64 = 0,
    received: u64 = 0,
    links: [base.limits.links_told_max]control.LinkTraffic = undefined,
    count: usize = 0,
    told_at: base.Instant = 0,

    /// It is told every two seconds while anything moves.
    const stale_ns = 10 * std.time.ns_per_s;

    pub fn note(traffic: *Traffic, now: base.Instant, body: *const control.Traffic) void {
        traffic.count = 0;
        traffic.told_at = now;
        traffic.span_ns = body.span_ns;
        traffic.sent = body.sent;
        traffic.received = body.received;
        var it = body.links.iterator();
        while (it.next()) |link| {
            traffic.links[traffic.count] = link; // decoding has bounded how many there are
            traffic.count += 1;
        }
    }

    /// Null if it is old: nothing moves, or the peer is away.
    pub fn latest(traffic: *const Traffic, now: base.Instant) ?*const Traffic {
        return if (now -| traffic.told_at > stale_ns) null else traffic;
    }

    pub fn moving(traffic: *const Traffic) []const control.LinkTraffic {
        return traffic.links[0..traffic.count];
    }
};
