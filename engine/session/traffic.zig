//! traffic: what this peer tells the coordinator of its links: the bytes per second that move on
//! each, every two seconds while there are any, how each link carries what is sent, and how much
//! all links together carry at most (node.zig). The speed on all links together is of the same
//! time. The coordinator makes a matrix of it: protocol/measurement.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Link = @import("link.zig").Link;
const Node = @import("node.zig").Node;
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
/// moved on all links since there are any. `ceiling`: the user's limit for all links, bytes per
/// second, or 0; connections that begin exceed it for a moment, and what is told does not.
pub fn account(
    told: *Told,
    now: base.Instant,
    links: []const *Link,
    node: *const Node,
    moved: Moved,
    ceiling: u64,
    room: *Room,
) ?wire.control.Traffic {
    const span_ns = now -| told.at;
    if (span_ns < every_ns) return null;
    var count: usize = 0;
    for (links) |link| {
        const on_link = of_link(link, span_ns, ceiling);
        link.sent_told = link.sent;
        link.received_told = link.received;
        if (on_link.sent + on_link.received == 0 and !link.is_asked) continue;
        link.is_asked = false;
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
    const rate_max = base.limits.link_rate_told_max;
    return .{
        .span_ns = span_ns,
        .sent = per_second(moved.sent - before.sent, span_ns),
        .received = per_second(moved.received - before.received, span_ns),
        .up = @min(within(node.up.rate, ceiling), rate_max),
        .down = @min(node.down.rate, rate_max),
        .links = .of(room[0..count]),
    };
}

/// The traffic since the last account, and how the link carries it. The system measures some of
/// this, and what is told must be within bounds whatever the system says.
fn of_link(link: *const Link, span_ns: u64, ceiling: u64) Traffic {
    const flow = &link.flow;
    const rate = within(within(flow.carries(), flow.ceiling), ceiling);
    return .{
        .peer = link.peer,
        .sent = per_second(link.sent - link.sent_told, span_ns),
        .received = per_second(link.received - link.received_told, span_ns),
        .rate = @min(rate, base.limits.link_rate_told_max),
        .brought = @min(flow.brought.rate, base.limits.link_rate_told_max),
        .rtt_ns = @min(flow.base_ns, base.limits.link_rtt_ns_told_max),
        .again_ppm = @min(flow.again_ppm, base.limits.link_again_ppm_max),
        .lanes = @intCast(@min(link.open_count, base.limits.lanes_per_link_max)),
    };
}

/// A limit of 0 is none.
fn within(rate: u64, limit: u64) u64 {
    return if (limit == 0) rate else @min(rate, limit);
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

fn link_for_test() Link {
    return .{
        .gpa = std.testing.allocator,
        .peer = .from_int(7),
        .wins = true,
        .leads = true,
        .expires_at = 0,
        .early = .{ .gpa = std.testing.allocator },
        .flow = .init(0),
        .down_since = 0,
    };
}

fn told_of(link: *Link) !Traffic {
    return told_within(link, 0);
}

fn told_within(link: *Link, ceiling: u64) !Traffic {
    var told: Told = .{ .at = 1 };
    var room: Room = undefined;
    link.sent += 4000;
    const moved: Moved = .{ .sent = link.sent, .received = 0 };
    const node: Node = .{ .up = .{ .rate = 5000 }, .down = .{ .rate = std.math.maxInt(u64) } };
    const said = account(&told, 1 + every_ns, &.{link}, &node, moved, ceiling, &room).?;
    try std.testing.expectEqual(within(5000, ceiling), said.up);
    try std.testing.expectEqual(base.limits.link_rate_told_max, said.down);
    try std.testing.expectEqual(1, said.links.items.len);
    return said.links.items[0];
}

test "an account says how the link carries, by the most it has moved until it is held" {
    var link = link_for_test();
    defer link.deinit();
    var expected: Traffic = .{ .peer = .from_int(7), .sent = 2000, .received = 0 };
    try std.testing.expectEqual(expected, try told_of(&link));
    link.flow.carried.rate = 800;
    link.flow.brought.rate = 700;
    link.flow.base_ns = 90 * std.time.ns_per_ms;
    link.flow.again_ppm = 1_500;
    link.open_count = 4;
    expected.rate = 800;
    expected.brought = 700;
    expected.rtt_ns = 90 * std.time.ns_per_ms;
    expected.again_ppm = 1_500;
    expected.lanes = 4;
    try std.testing.expectEqual(expected, try told_of(&link));
    link.flow.pacer.found = 600;
    link.flow.pacer.rate = 590;
    expected.rate = 600;
    try std.testing.expectEqual(expected, try told_of(&link));
    // Somebody else's queue: there is no limit.
    link.flow.pacer.rate = 0;
    expected.rate = 800;
    try std.testing.expectEqual(expected, try told_of(&link));
    // The user's limits, of all links and of this one.
    expected.rate = 700;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
    link.flow.ceiling = 500;
    expected.rate = 500;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
}

test "whatever the system measures, the coordinator can read what it is told" {
    var link = link_for_test();
    defer link.deinit();
    link.flow.carried.rate = std.math.maxInt(u64);
    link.flow.brought.rate = std.math.maxInt(u64);
    link.flow.base_ns = std.math.maxInt(u64);
    link.flow.again_ppm = std.math.maxInt(u32);
    link.open_count = std.math.maxInt(u32);
    const links = [_]Traffic{try told_of(&link)};
    var bytes: [160]u8 = undefined;
    const message: wire.control.Message = .{ .traffic = .{
        .span_ns = every_ns,
        .sent = 1,
        .received = 0,
        .up = 0,
        .down = 0,
        .links = .of(&links),
    } };
    _ = try wire.control.decode(try wire.control.encode(message, &bytes));
}
