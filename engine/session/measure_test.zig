//! How much a link, and all links of a peer at once, are found to carry, from the counters of lanes
//! (measure.zig): two links of one lane each, whose counters a test moves on.

const std = @import("std");
const measure = @import("measure.zig");
const Host = @import("host.zig").Host;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Node = @import("peak.zig").Node;
const Pace = @import("flow.zig").Pace;
const Sample = @import("flow.zig").Sample;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = std.time.ns_per_ms;
const mbyte = 1_000_000;

const Pair = struct {
    links: [2]Link,
    lanes: [2]Lane,
    acked: [2]u64 = @splat(0),
    node: Node = .{},

    fn init(pair: *Pair) void {
        pair.* = .{ .links = undefined, .lanes = undefined };
        for (&pair.links, &pair.lanes, 0..) |*link, *lane, index| {
            link.* = .{
                .gpa = gpa,
                .peer = .from_int(index + 1),
                .wins = true,
                .leads = true,
                .expires_at = 0,
                .early = .{ .gpa = gpa },
                .flow = .init(1),
                .down_since = 0,
                .open_count = 1,
            };
            lane.* = .{
                .gpa = gpa,
                .driver = index,
                .state = .open,
                .link = link,
                .deadline = 0,
                .head_need = 0,
            };
            link.put(lane);
        }
    }

    fn deinit(pair: *Pair) void {
        for (&pair.links) |*link| link.deinit();
    }

    fn sample(ctx: *anyopaque, lane: *Lane) ?Sample {
        const pair: *Pair = @ptrCast(@alignCast(ctx));
        return .{
            .acked = pair.acked[lane.driver],
            .retransmitted = 0,
            .rtt_ns = 20 * ms,
            .base_ns = 20 * ms,
        };
    }

    fn pace(_: *anyopaque, _: *Lane, _: Pace) void {}

    /// Intervals in which so much moves each second on each link, and some have more to send.
    fn run(pair: *Pair, sent: [2]u64, received: [2]u64, busy: [2]bool, intervals: usize) void {
        var vtable: Host.VTable = undefined; // it calls no more than these
        vtable.lane_sample = sample;
        vtable.lane_pace = pace;
        const host: Host = .{ .ctx = pair, .vtable = &vtable };
        for (0..intervals) |_| {
            for (0..2) |index| {
                pair.acked[index] += sent[index] / 10;
                pair.links[index].received += received[index] / 10;
                pair.lanes[index].out_busy = busy[index];
            }
            const links = [_]*Link{ &pair.links[0], &pair.links[1] };
            _ = measure.run(host, &links, &pair.node, measure.every_ns, 0);
        }
    }
};

test "a peer carries the sum of what its links carry at once, and a link its own part" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const both = [2]bool{ true, true };
    pair.run(.{ 8 * mbyte, 12 * mbyte }, .{ 3 * mbyte, 4 * mbyte }, both, 5);
    try expectEqual(20 * mbyte, pair.node.up.rate);
    try expectEqual(7 * mbyte, pair.node.down.rate);
    try expectEqual(8 * mbyte, pair.links[0].flow.carries());
    try expectEqual(12 * mbyte, pair.links[1].flow.carries());
    try expectEqual(4 * mbyte, pair.links[1].flow.brought.rate);
    // One has more to send, the other sends a little: it says nothing of itself.
    const one = [2]bool{ true, false };
    pair.run(.{ 24 * mbyte, 1 * mbyte }, .{ 3 * mbyte, 4 * mbyte }, one, 5);
    try expectEqual(25 * mbyte, pair.node.up.rate);
    try expectEqual(24 * mbyte, pair.links[0].flow.carries());
    try expectEqual(12 * mbyte, pair.links[1].flow.carries());
    // Nobody has.
    pair.run(.{ 90 * mbyte, 90 * mbyte }, .{ 0, 0 }, .{ false, false }, 5);
    try expectEqual(25 * mbyte, pair.node.up.rate);
    try expectEqual(7 * mbyte, pair.node.down.rate);
}

test "a probe says how much a link carries, and has no limit and no lanes follow from it" {
    for ([_]bool{ true, false }) |is_probed| {
        var pair: Pair = undefined;
        pair.init();
        defer pair.deinit();
        const flow = &pair.links[0].flow;
        flow.spread.is_fixed = false;
        flow.is_probed = is_probed;
        pair.run(.{ 8 * mbyte, 0 }, .{ 0, 0 }, .{ true, false }, 8);
        flow.is_probed = false;
        try expectEqual(8 * mbyte, flow.carries());
        try expectEqual(is_probed, flow.pacer.recent_count == 0);
        try expectEqual(is_probed, flow.spread.acked == 0);
    }
}

test "bytes that come while a link has no lane are not of one interval" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const idle = [2]bool{ false, false };
    pair.run(.{ 0, 0 }, .{ 3 * mbyte, 3 * mbyte }, idle, 4);
    pair.links[0].open_count = 0;
    pair.run(.{ 0, 0 }, .{ 3 * mbyte, 3 * mbyte }, idle, 40);
    pair.links[0].open_count = 1;
    pair.run(.{ 0, 0 }, .{ 3 * mbyte, 3 * mbyte }, idle, 4);
    try expectEqual(3 * mbyte, pair.links[0].flow.brought.rate);
    try expectEqual(6 * mbyte, pair.node.down.rate);
}

test "a lane that is left to small operations may be idle while its link is busy" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    pair.lanes[0].is_kept = true;
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, .{ false, false }, 5);
    try expectEqual(8 * mbyte, pair.links[0].flow.carries());
    try expectEqual(0, pair.links[1].flow.carries());
}

test "a link that has been idle for minutes is found out anew, also while another is busy" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const both = [2]bool{ true, true };
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 5);
    // Signs of life go over the second.
    pair.run(.{ 8 * mbyte, 10_000 }, .{ 0, 0 }, .{ true, false }, 10 * 240);
    pair.run(.{ 2 * mbyte, 3 * mbyte }, .{ 0, 0 }, both, 3);
    try expect(pair.links[0].flow.carries() > 79 * mbyte / 10);
    try expectEqual(3 * mbyte, pair.links[1].flow.carries());
    // Nothing was measured meanwhile.
    const links = [_]*Link{ &pair.links[0], &pair.links[1] };
    measure.begin_after(&links, &pair.node, 480 * 1000 * ms);
    pair.run(.{ 2 * mbyte, mbyte }, .{ 0, 0 }, both, 2);
    try expectEqual(2 * mbyte, pair.links[0].flow.carries());
    try expectEqual(mbyte, pair.links[1].flow.carries());
    try expectEqual(3 * mbyte, pair.node.up.rate);
}
