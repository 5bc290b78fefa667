//! traffic: a peer's account of what it moves, in all and on its links in one span, for the status.
//! No decision depends on it. Only the peer knows these numbers, so the status shows them as the
//! peer's own words. The part that lasts: matrix.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const control = wire.control;

pub const Traffic = struct {
    span_ns: u64 = 0,
    sent: u64 = 0,
    received: u64 = 0,
    /// Room for them is made when a peer first tells of some: a newcomer has none.
    links: std.ArrayList(control.LinkTraffic) = .empty,
    told_at: base.Instant = 0,

    /// It is told every two seconds while anything moves.
    const stale_ns = 10 * std.time.ns_per_s;

    pub fn deinit(traffic: *Traffic, gpa: Allocator) void {
        traffic.links.deinit(gpa);
    }

    /// An account comes in; its links follow.
    pub fn begin(
        traffic: *Traffic,
        gpa: Allocator,
        now: base.Instant,
        body: *const control.Traffic,
    ) Allocator.Error!void {
        // Decoding has bounded how many there are.
        try traffic.links.ensureTotalCapacityPrecise(gpa, body.links.count);
        traffic.links.clearRetainingCapacity();
        traffic.told_at = now;
        traffic.span_ns = body.span_ns;
        traffic.sent = body.sent;
        traffic.received = body.received;
    }

    pub fn add(traffic: *Traffic, link: *const control.LinkTraffic) void {
        traffic.links.appendAssumeCapacity(link.*);
    }

    /// Null if it is old: nothing moves, or the peer is away.
    pub fn latest(traffic: *const Traffic, now: base.Instant) ?*const Traffic {
        return if (now -| traffic.told_at > stale_ns) null else traffic;
    }

    pub fn moving(traffic: *const Traffic) []const control.LinkTraffic {
        return traffic.links.items;
    }
};
