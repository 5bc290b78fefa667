//! node: how much this peer sends and receives at most on all its links at once, which no single
//! link shows, and the limit of those that send together.
//!
//! Pure: no lane, no socket, no clock. measure.zig calls it; traffic.zig tells the coordinator.

const std = @import("std");
const aging = @import("aging.zig");
const Peak = @import("peak.zig").Peak;
const Together = @import("together.zig").Together;
const ms = std.time.ns_per_ms;

/// The bytes that all links of a peer have moved in one interval.
pub const Moved = struct {
    acked: u64 = 0,
    received: u64 = 0,
    /// Some link had more to send all the time.
    saturated: bool = false,
};

/// How much this peer sends and receives at most, on all its links at once.
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

const expectEqual = std.testing.expectEqual;
const expect = std.testing.expect;
const mbyte = 1_000_000;

fn send(node: *Node, per_s: u64, received_per_s: u64, saturated: bool, intervals: usize) void {
    for (0..intervals) |_| node.note(&.{
        .acked = per_s / 10,
        .received = received_per_s / 10,
        .saturated = saturated,
    }, 100 * ms);
}

test "a peer's rate is what all its links have carried at once while some had more to send" {
    var node: Node = .{};
    send(&node, 25 * mbyte, 12 * mbyte, true, 1);
    try expectEqual(0, node.up.rate); // one interval may be a burst
    send(&node, 25 * mbyte, 12 * mbyte, true, 1);
    try expectEqual(25 * mbyte, node.up.rate);
    try expectEqual(12 * mbyte, node.down.rate);
    // There was nothing to send for a part: that says nothing, however long it lasts.
    send(&node, 1 * mbyte, 1 * mbyte, false, 36_000);
    try expectEqual(25 * mbyte, node.up.rate);
    try expectEqual(12 * mbyte, node.down.rate);
}

test "a rate that is not reached any more halves in two minutes, and a larger one counts at once" {
    var node: Node = .{};
    send(&node, 80 * mbyte, 80 * mbyte, true, 2);
    send(&node, 10 * mbyte, 60 * mbyte, true, 1200);
    try expect(node.up.rate > 39 * mbyte and node.up.rate < 41 * mbyte);
    try expectEqual(60 * mbyte, node.down.rate);
    send(&node, 10 * mbyte, 60 * mbyte, true, 6 * 1200);
    try expectEqual(10 * mbyte, node.up.rate);
    send(&node, 90 * mbyte, 90 * mbyte, true, 2);
    try expectEqual(90 * mbyte, node.up.rate);
    try expectEqual(90 * mbyte, node.down.rate);
}

test "a rate from before a pause stays until more is known, and counts less then" {
    var node: Node = .{};
    send(&node, 80 * mbyte, 80 * mbyte, true, 2);
    node.rest(aging.half_life_ns);
    node.rest(aging.half_life_ns);
    try expectEqual(80 * mbyte, node.up.rate);
    // Less than half of what counts now comes in: others pause.
    send(&node, 30 * mbyte, 9 * mbyte, true, 2);
    try expectEqual(30 * mbyte, node.up.rate);
    try expectEqual(80 * mbyte, node.down.rate);
    send(&node, 30 * mbyte, 25 * mbyte, true, 2);
    try expectEqual(25 * mbyte, node.down.rate);
    // The pause has been counted.
    send(&node, 10 * mbyte, 10 * mbyte, true, 2);
    try expect(node.up.rate > 29 * mbyte);
    try expectEqual(25 * mbyte, node.down.rate);
}

test "a stretch that a pause cuts short is not put together" {
    var node: Node = .{};
    for (0..100) |_| {
        send(&node, 50 * mbyte, 0, true, 1);
        send(&node, 0, 0, false, 1);
    }
    try expectEqual(0, node.up.rate);
}
