//! traffic: what moves on each link, as this peer tells the coordinator for the status: bytes per
//! second, every two seconds while there are any. The speed on all links together is of the same
//! time.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Session = @import("session.zig").Session;
const Traffic = wire.control.LinkTraffic;
const most = base.limits.links_told_max;

pub const every_ns = 2 * std.time.ns_per_s;

/// The last account.
pub const Told = struct {
    at: base.Instant = 0,
    any: bool = false,
    /// The session's counters then.
    sent: u64 = 0,
    received: u64 = 0,
};

/// At a heartbeat.
pub fn tell(s: *Session) void {
    const told = &s.traffic;
    const span_ns = s.now -| told.at;
    if (span_ns < every_ns) return;
    var found: [most]Traffic = undefined;
    var count: usize = 0;
    for (s.links.items) |link| {
        const moved: Traffic = .{
            .peer = link.peer,
            .sent = per_second(link.sent - link.sent_told, span_ns),
            .received = per_second(link.received - link.received_told, span_ns),
        };
        link.sent_told = link.sent;
        link.received_told = link.received;
        if (moved.sent + moved.received == 0) continue;
        if (count < most) {
            found[count] = moved;
            count += 1;
        } else if (weaker(&moved, &found)) |place| place.* = moved;
    }
    const before = told.*;
    told.* = .{
        .at = s.now,
        .any = count > 0 and told.at > 0,
        .sent = s.bytes_sent,
        .received = s.bytes_received,
    };
    if (before.at == 0) return; // nobody knows since when it has moved
    // That nothing moves any more is told once.
    if (told.any or before.any) s.send(.{ .traffic = .{
        .span_ns = span_ns,
        .sent = per_second(s.bytes_sent - before.sent, span_ns),
        .received = per_second(s.bytes_received - before.received, span_ns),
        .links = .of(found[0..count]),
    } });
}

/// The weakest, where it is weaker than this one: the busiest are told.
fn weaker(than: *const Traffic, found: *[most]Traffic) ?*Traffic {
    var weakest = &found[0];
    for (found[1..]) |*item| if (sum(item) < sum(weakest)) {
        weakest = item;
    };
    return if (sum(weakest) < sum(than)) weakest else null;
}

fn sum(item: *const Traffic) u64 {
    return item.sent +| item.received;
}

fn per_second(bytes: u64, span_ns: u64) u64 {
    return bytes *| std.time.ms_per_s / (span_ns / std.time.ns_per_ms);
}
