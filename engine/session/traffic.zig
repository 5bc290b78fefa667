//! traffic: what moves on each link, as this peer tells the coordinator for the status: bytes per
//! second, every two seconds while there are any. The speed on all links together is of the same
//! time.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Link = @import("link.zig").Link;
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

pub const Moved = struct { sent: u64, received: u64 };

/// The links of an account that is told.
pub const Room = [most]Traffic;

/// At a heartbeat: the account since the last one, if there is something to tell. `moved`: what has
/// moved on all links since there are any.
pub fn account(
    told: *Told,
    now: base.Instant,
    links: []const *Link,
    moved: Moved,
    room: *Room,
) ?wire.control.Traffic {
    const span_ns = now -| told.at;
    if (span_ns < every_ns) return null;
    var count: usize = 0;
    for (links) |link| {
        const on_link: Traffic = .{
            .peer = link.peer,
            .sent = per_second(link.sent - link.sent_told, span_ns),
            .received = per_second(link.received - link.received_told, span_ns),
        };
        link.sent_told = link.sent;
        link.received_told = link.received;
        if (on_link.sent + on_link.received == 0) continue;
        if (count < most) {
            room[count] = on_link;
            count += 1;
        } else if (weaker(&on_link, room)) |place| place.* = on_link;
    }
    const before = told.*;
    told.* = .{
        .at = now,
        .any = count > 0 and before.at > 0,
        .sent = moved.sent,
        .received = moved.received,
    };
    if (before.at == 0) return null; // nobody knows since when it has moved
    // That nothing moves any more is told once.
    if (!told.any and !before.any) return null;
    return .{
        .span_ns = span_ns,
        .sent = per_second(moved.sent - before.sent, span_ns),
        .received = per_second(moved.received - before.received, span_ns),
        .links = .of(room[0..count]),
    };
}

/// The weakest, where it is weaker than this one: the busiest are told.
fn weaker(than: *const Traffic, found: *Room) ?*Traffic {
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
