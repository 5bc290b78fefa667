//! How much a link, and all links of a peer at once, are found to carry, from the counters of lanes
//! (measure.zig): two links of one lane each, whose counters a test moves on.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const hostile = @import("hostile_test.zig");
const hostile_test = @import("hostile_test.zig");
const measure = @import("measure.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const Host = @import("session.zig").Host;
const Lane = @import("link.zig").Lane;
const Pace = @import("flow.zig").Pace;
const Sample = @import("flow.zig").Sample;
const Link = session.Link;
const Node = @import("pace.zig").Node;
const Operation = session.Operation;
const user = session.user;
const World = world.World;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;
const link_to = hostile.link_to;
const ms = std.time.ns_per_ms;
const second = std.time.ns_per_s;

const mbyte = 1_000_000;

const Pair = struct {
    links: [2]Link,
    lanes: [2]Lane,
    acked: [2]u64 = @splat(0),
    retransmitted: u64 = 0,
    rtt_ns: u64 = 20 * ms,
    is_within: bool = false,
    told: [2]Told = @splat(.{}),
    node: Node = .{},

    /// How often a lane was to begin anew, and to have another congestion control, and which.
    const Told = struct {
        renewals: usize = 0,
        changes: usize = 0,
        control: ?Pace.Control = null,
        held_max: u32 = 0,
    };

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
            .retransmitted = pair.retransmitted,
            .rtt_ns = pair.rtt_ns,
            .base_ns = 20 * ms,
            .is_within = pair.is_within,
        };
    }

    fn pace(ctx: *anyopaque, lane: *Lane, given: Pace) void {
        const pair: *Pair = @ptrCast(@alignCast(ctx));
        const told = &pair.told[lane.driver];
        told.renewals += @intFromBool(given.renews);
        told.held_max = given.held_max;
        if (given.control == null) return;
        told.changes += 1;
        told.control = given.control;
    }

    const vtable: Host.VTable = made: {
        var those: Host.VTable = undefined; // it calls no more than these
        those.lane_sample = sample;
        those.lane_pace = pace;
        break :made those;
    };

    fn host(pair: *Pair) Host {
        return .{ .ctx = pair, .vtable = &vtable, .cores = 2 };
    }

    /// Intervals in which so much moves each second on each link, and some have more to send.
    fn run(pair: *Pair, sent: [2]u64, received: [2]u64, busy: [2]bool, intervals: usize) void {
        for (0..intervals) |_| {
            for (0..2) |index| {
                pair.acked[index] += sent[index] / 10;
                pair.links[index].received += received[index] / 10;
                pair.lanes[index].out_busy = busy[index];
            }
            const links = [_]*Link{ &pair.links[0], &pair.links[1] };
            _ = measure.run_measure(pair.host(), &links, &pair.node, measure.every_ns, 0);
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

test "a queue that acknowledgements wait in is none of this link's, if pings say so" {
    // Method: round trips are 60 ms longer, and pings say that it is the way back, or say nothing,
    // or say what cannot be.
    const us = std.time.ns_per_us;
    const Says = enum { truth, nothing, lies };
    for ([_]Says{ .truth, .nothing, .lies }) |says| {
        var pair: Pair = undefined;
        pair.init();
        defer pair.deinit();
        const flow = &pair.links[0].flow;
        for ([_]u64{ 0, 60, 60, 20 }, 1..) |waits_ms, interval| {
            pair.rtt_ns = (20 + waits_ms) * ms;
            const sent_ns = interval * 100 * ms;
            const stamp: u64 = switch (says) {
                .truth => sent_ns / us,
                .nothing => 0,
                .lies => if (interval == 1) 1 << 62 else 1,
            };
            flow.way_back.heard(stamp, sent_ns + (10 + waits_ms) * ms);
            pair.run(.{ 8 * mbyte, 0 }, .{ 0, 0 }, .{ true, false }, 1);
            try expectEqual(waits_ms == 60, flow.last.crowded());
            try expectEqual(says == .nothing and waits_ms == 60, flow.last.queued());
        }
        pair.run(.{ 8 * mbyte, 0 }, .{ 0, 0 }, .{ true, false }, 40);
        try expectEqual(null, flow.last.back_ns);
    }
}

test "a ping says when it left, unless it may wait behind data of its own side" {
    const Case = struct { unsent: ?u64, base_ns: u64 = 20 * ms };
    for ([_]Case{
        .{ .unsent = 0 },
        .{ .unsent = 1 },
        .{ .unsent = null },
        .{ .unsent = 0, .base_ns = ms }, // near
    }) |case| {
        var w: world.World = .{ .gpa = gpa, .sample = .{
            .acked = 0,
            .unsent = case.unsent,
            .rtt_ns = case.base_ns,
            .base_ns = case.base_ns,
        } };
        try hostile_test.form(&w, 2);
        defer w.deinit();
        const link = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
        const other = hostile_test.link_to(&w.nodes[1], &w.nodes[0]);
        other.flow.way_back = .{};
        link.lanes[0].?.ping_due = true;
        const host = w.nodes[0].s.host;
        host.vtable.lane_wake(host.ctx, link.lanes[0].?);
        try w.settle();
        const is_said = case.unsent == 0 and case.base_ns > ms;
        try expectEqual(is_said, other.flow.way_back.first != null);
    }
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

test "a lane begins, and goes on after a pause, with a control that grows until something is lost" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const told = &pair.told[0];
    measure.opened(pair.host(), &.{&pair.links[0]}, &pair.links[0], &pair.lanes[0], 0);
    const both = [2]bool{ true, true };
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 5);
    try expectEqual(Pair.Told{ .changes = 1, .control = .starting }, told.*);
    pair.retransmitted = 1;
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 5);
    try expectEqual(Pair.Told{ .changes = 2, .control = .system }, told.*);
    const links = [_]*Link{ &pair.links[0], &pair.links[1] };
    measure.begin_after(&links, &pair.node, 400 * ms);
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 5);
    try expectEqual(2, told.changes);
    measure.begin_after(&links, &pair.node, 600 * ms);
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 5);
    try expectEqual(Pair.Told{ .changes = 3, .control = .starting }, told.*);
    pair.retransmitted = 2;
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 5);
    try expectEqual(Pair.Told{ .changes = 4, .control = .system }, told.*);
}

test "a lane of a link that is held begins anew after a pause, and in its turn" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const links = [_]*Link{ &pair.links[0], &pair.links[1] };
    pair.links[0].flow.shared = .{ .state = .held, .found = 9 * mbyte, .rate = 9 * mbyte };
    measure.begin_after(&links, &pair.node, 2000 * ms);
    const both = [2]bool{ true, true };
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 3);
    try expectEqual(1, pair.told[0].renewals);
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, both, 3 * limits.lanes_per_link_max);
    try expectEqual(4, pair.told[0].renewals);
    try expectEqual(0, pair.told[1].renewals); // no limit
}

test "a limit that was found while other links were busy is none for a link alone" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const flow = &pair.links[0].flow;
    flow.shared = .{ .state = .held, .found = 9 * mbyte, .rate = 9 * mbyte };
    pair.run(.{ 8 * mbyte, 8 * mbyte }, .{ 0, 0 }, .{ true, true }, 3);
    try expectEqual(9 * mbyte, pair.lanes[0].pace.rate);
    pair.run(.{ 8 * mbyte, mbyte / 2 }, .{ 0, 0 }, .{ true, false }, 3);
    try expectEqual(0, pair.lanes[0].pace.rate);
    flow.pacer = .{ .state = .held, .found = 24 * mbyte, .rate = 24 * mbyte };
    pair.run(.{ 8 * mbyte, 0 }, .{ 0, 0 }, .{ true, false }, 3);
    try expectEqual(24 * mbyte, pair.lanes[0].pace.rate);
    try expectEqual(24 * mbyte, flow.carries());
}

test "where a queue stands a link carries no less than what moves, with no more to send" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const idle = [2]bool{ false, false };
    const flow = &pair.links[0].flow;
    pair.rtt_ns = 60 * ms;
    // Little may wait in a queue of others: of a link that is not known that says nothing.
    pair.run(.{ 3 * mbyte, 3 * mbyte }, .{ 0, 0 }, idle, 5);
    try expectEqual(0, flow.carries());
    pair.run(.{ 3 * mbyte, 3 * mbyte }, .{ 0, 0 }, .{ true, true }, 5);
    for ([_]u64{ 20, 60, 60 }, [_]u64{ 8, 8, 1 }, [_]u64{ 3, 8, 8 }) |rtt_ms, moves, carries| {
        pair.rtt_ns = rtt_ms * ms;
        pair.run(@splat(moves * mbyte), .{ 0, 0 }, idle, 5);
        try expectEqual(carries * mbyte, flow.carries());
    }
    try expectEqual(6 * mbyte, pair.node.up.rate);
}

test "small calls behind the traffic of others bring no limit" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    pair.rtt_ns = 60 * ms;
    pair.retransmitted = 1;
    pair.run(.{ mbyte, mbyte }, .{ 0, 0 }, .{ false, false }, 50);
    try expectEqual(0, pair.node.together.pacer.rate);
    for (&pair.links) |*link| try expectEqual(0, link.flow.shared.rate);
}

test "arrivals gather for a small part of the shortest way, while all ways are long" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const links = [_]*Link{ &pair.links[0], &pair.links[1] };
    const Case = struct { base_ns: [2]u64, patience_ns: u64 };
    for ([_]Case{
        .{ .base_ns = .{ 150 * ms, 32 * ms }, .patience_ns = ms / 2 },
        .{ .base_ns = .{ 150 * ms, 90 * ms }, .patience_ns = ms },
        .{ .base_ns = .{ 150 * ms, ms / 20 }, .patience_ns = 0 },
        .{ .base_ns = .{ 150 * ms, 0 }, .patience_ns = 0 }, // not known yet
    }) |case| {
        for (links, case.base_ns) |link, base_ns| link.flow.base_ns = base_ns;
        try expectEqual(case.patience_ns, measure.patience_ns(&links));
    }
    pair.links[1].open_count = 0; // it has no lane
    try expectEqual(ms, measure.patience_ns(&links));
    try expectEqual(0, measure.patience_ns(&.{}));
}

test "within a machine less is under way where each peer has a core" {
    var pair: Pair = undefined;
    pair.init();
    defer pair.deinit();
    const host = pair.host();
    const links = [_]*Link{ &pair.links[0], &pair.links[1] };
    // The other one is elsewhere.
    measure.opened(host, &links, links[1], &pair.lanes[1], 0);
    try expectEqual(0, pair.told[1].held_max);
    pair.is_within = true;
    measure.opened(host, &links, links[0], &pair.lanes[0], 0);
    try expectEqual(256 * limits.KiB, pair.told[0].held_max);
    // It is here, and so three peers have two cores.
    measure.opened(host, &links, links[1], &pair.lanes[1], 0);
    try expectEqual(512 * limits.KiB, pair.told[1].held_max);
    const nothing: [2]u64 = @splat(0);
    pair.run(nothing, nothing, @splat(false), 1);
    try expectEqual(512 * limits.KiB, pair.told[0].held_max);
    // One has gone.
    links[1].open_count = 0;
    pair.run(nothing, nothing, @splat(false), 1);
    try expectEqual(256 * limits.KiB, pair.told[0].held_max);
}

// ---- probes
//
// Probes of links of which nothing is known, over perfect pipes: asked for by the coordinator,
// sent, thrown away, ended by a call, refused (measure.zig). The world: world_test.zig. The choice
// of links: protocol/measurement_test.zig.

const bytes_max = 512;

/// The system says that all lanes are so long.
fn form_probing(w: *World, count: usize, base_ns: u64) !void {
    w.sample = .{ .acked = 0, .base_ns = base_ns };
    try w.init(count, @intCast(count));
    for (w.nodes[0..count]) |*node| node.s.probe = .init(bytes_max);
    try w.settle();
    try w.admit_all();
}

fn left_of(link: *const Link) u32 {
    return limits.probe_bytes_max - link.probe_left;
}

/// Bytes of probes that each has sent to each.
fn expect_probed(w: *World, expected: u32) !void {
    for (w.nodes[0..w.count]) |*from| for (w.nodes[0..w.count]) |*to| if (from != to)
        try expectEqual(expected, left_of(link_to(from, to)));
}

test "far links of which nothing is known are probed both ways, and near ones are not" {
    inline for (.{ .{ 2 * ms, bytes_max }, .{ 2 * ms - 1, 0 } }) |case| {
        var w: World = .{ .gpa = gpa };
        try form_probing(&w, 3, case[0]);
        defer w.deinit();
        // So long that each pair is asked once.
        for (0..30) |_| {
            try w.pass(second / 2);
            if (left_of(link_to(&w.nodes[2], &w.nodes[1])) > 0) break;
        }
        try expect_probed(&w, case[1]);
    }
}

test "a link whose rate this peer knows is told with the next account, and not probed" {
    var w: World = .{ .gpa = gpa };
    try form_probing(&w, 2, 20 * ms);
    defer w.deinit();
    for (w.nodes[0..2]) |*node| {
        node.s.links.items[0].flow.carried.rate = 5000;
        node.s.links.items[0].sent_told = node.s.links.items[0].sent;
        node.s.links.items[0].received_told = node.s.links.items[0].received;
    }
    try w.pass(6 * second);
    try expect_probed(&w, 0);
    for (w.nodes[0..2]) |*node|
        try expectEqual(5000, node.group.measured.?.matrix.rates[0][1]);
}

test "a peer says at once that nothing moves any more, where others are far" {
    inline for (.{ .{ 20 * ms, true }, .{ ms, false } }) |case| {
        var w: World = .{ .gpa = gpa };
        try form_probing(&w, 2, case[0]);
        defer w.deinit();
        var operations: [2]*session.Operation = undefined;
        for (w.nodes[0..2], &operations) |*node, *operation|
            operation.* = try world.sum(node, 10, .restart);
        try w.settle();
        for (w.nodes[0..2], operations) |*node, operation| {
            user.release(node.s, operation);
            const s = node.s;
            s.heartbeat_at = s.now + second;
            while (s.measure_at != base.never) {
                try expect(s.heartbeat_at > s.now);
                session.driver.tick(s, s.measure_at);
            }
            try expectEqual(case[1], s.heartbeat_at <= s.now);
        }
    }
}

/// The first node is asked, but nothing has moved yet.
fn begin(w: *World) !void {
    const node = &w.nodes[0];
    try expect(measure.may_begin(node.s));
    try measure.on_probe(node.s, node.group, &.{
        .group = node.group.id.?,
        .epoch = node.group.epoch(),
        .rank = 1,
    });
    try expect(node.s.probe.under_way != null);
    try expect(!node.s.probe.is_under_way(w.now + limits.probe_ns_max));
}

/// The call of one of the two nodes begins after a few frames of the probe.
fn expect_ended_by(caller: ?usize) !void {
    var w: World = .{ .gpa = gpa };
    try form_probing(&w, 2, 20 * ms);
    defer w.deinit();
    try begin(&w);
    const link = link_to(&w.nodes[0], &w.nodes[1]);
    for (0..3) |_| _ = try w.step();
    try expect(left_of(link) > 0 and left_of(link) < bytes_max);
    var operations: [2]*session.Operation = undefined;
    if (caller) |first| {
        operations[first] = try world.sum(&w.nodes[first], 10, .restart);
    } else w.now += limits.probe_ns_max;
    try w.settle();
    try expectEqual(null, w.nodes[0].s.probe.under_way);
    try expect(left_of(link) < bytes_max);
    const first = caller orelse return;
    operations[1 - first] = try world.sum(&w.nodes[1 - first], 10, .restart);
    try w.settle();
    for (w.nodes[0..2], operations) |*node, operation| {
        try expectEqual(.ok, operation.status);
        try expectEqual(1, node.group.attempt());
        user.release(node.s, operation);
    }
}

test "a probe ends with its time, and when a call begins at either end" {
    for ([_]?usize{ null, 0, 1 }) |caller| try expect_ended_by(caller);
}

test "a probe that is cut short says nothing of its link, and a whole one does" {
    for ([_]bool{ false, true }) |is_whole| {
        var w: World = .{ .gpa = gpa };
        try form_probing(&w, 2, 20 * ms);
        defer w.deinit();
        try begin(&w);
        const flow = &link_to(&w.nodes[0], &w.nodes[1]).flow;
        flow.carried.rate = 5000;
        try expectEqual(0, flow.carries());
        const operation = if (is_whole) null else try world.sum(&w.nodes[0], 10, .restart);
        try w.settle();
        try expectEqual(null, w.nodes[0].s.probe.under_way);
        try expectEqual(@as(u64, if (is_whole) 5000 else 0), flow.carries());
        const first = operation orelse continue;
        const other = try world.sum(&w.nodes[1], 10, .restart);
        try w.settle();
        user.release(w.nodes[0].s, first);
        user.release(w.nodes[1].s, other);
    }
}

test "a coordinator that asks for a probe of nobody breaks the protocol" {
    var w: World = .{ .gpa = gpa };
    try form_probing(&w, 2, 20 * ms);
    defer w.deinit();
    const node = &w.nodes[0];
    const epoch = node.group.epoch();
    inline for (.{ 0, 2 }) |rank| try std.testing.expectError(
        error.Unexpected,
        measure.on_probe(node.s, node.group, &.{ .group = 0, .epoch = epoch, .rank = rank }),
    );
    // This is of another epoch.
    try measure.on_probe(node.s, node.group, &.{ .group = 0, .epoch = epoch + 9, .rank = 1 });
    try expectEqual(null, node.s.probe.under_way);
}

fn frame_of(payload_bytes: u32) wire.frame.Header {
    return std.mem.zeroInit(wire.frame.Header, .{
        .kind = .probe,
        .payload_bytes = payload_bytes,
    });
}

test "a frame of a probe that is too long, or of a peer that is no member, closes its lane" {
    var w: World = .{ .gpa = gpa };
    try form_probing(&w, 2, 20 * ms);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = link_to(node, &w.nodes[1]);
    const most = limits.probe_frame_bytes_max;
    const lane = link.lanes[0].?;
    for (0..100) |_| try expect(try hostile.inject(node, lane, frame_of(most)));
    try expect(!link.declines);
    try expect(!try hostile.inject(node, lane, frame_of(most + 1)));
    // A newcomer that has its lanes.
    const newcomer = try w.add();
    newcomer.s.probe = .init(bytes_max);
    try w.settle();
    const other = link_to(node, newcomer);
    try expect(other.open_count > 0);
    try expect(!try hostile.inject(node, other.lanes[0].?, frame_of(1)));
}

test "a peer that takes part in none asks the sender to end it" {
    var w: World = .{ .gpa = gpa };
    try form_probing(&w, 2, 20 * ms);
    defer w.deinit();
    w.nodes[1].s.probe.bytes_max = 0;
    try expect(!measure.may_begin(w.nodes[1].s));
    try begin(&w);
    for (0..100) |_| _ = try w.step();
    try expect(left_of(link_to(&w.nodes[0], &w.nodes[1])) < bytes_max);
    try expectEqual(null, w.nodes[0].s.probe.under_way);
    // The coordinator asks neither.
    w.nodes[0].s.probe = .init(bytes_max);
    link_to(&w.nodes[0], &w.nodes[1]).probe_left = limits.probe_bytes_max;
    try w.pass(10 * second);
    try expect_probed(&w, 0);
}

// ---- figures
//
// Figures of operations, from what members measure to the outcome: told to the coordinator, told on
// to the members, and worked out as an attempt begins (measure.zig, session.zig). The world:
// world_test.zig. The arithmetic: collective/figures_test.zig.

const Way = @FieldType(plan.Figures, "way");

/// Each member has found that it carries so much, on each link and on all, over 20 ms and back.
fn find_rates(w: *World, rate: u64) void {
    for (w.nodes[0..w.count]) |*node| {
        node.s.node.up.rate = rate;
        node.s.node.down.rate = rate;
        for (node.s.links.items) |link| {
            link.sent += 1000;
            link.flow.carried.rate = rate;
            link.flow.brought.rate = rate;
            link.flow.base_ns = 20 * ms;
        }
    }
}

/// Ten numbers of eight bytes.
fn sum_all(w: *World, operations: []*Operation) !void {
    for (w.nodes[0..operations.len], operations) |*node, *operation|
        operation.* = try world.sum(node, 10, .restart);
    try w.settle();
}

fn expect_figures(w: *World, way: Way, predicted_ns: u64, bound_ns: u64) !void {
    var operations: [world.peers_max]*Operation = undefined;
    const all = operations[0..w.count];
    try sum_all(w, all);
    for (w.nodes[0..w.count], all) |*node, operation| {
        try expectEqual(.ok, operation.status);
        try expectEqual(way, operation.figures.way);
        const commit_ns = if (predicted_ns > 0) node.s.round_trip_ns else 0;
        try expectEqual(predicted_ns + commit_ns, operation.figures.predicted_ns);
        try expectEqual(bound_ns, operation.figures.bound_ns);
        user.release(node.s, operation);
    }
}

fn form_measured(w: *World, count: u32) !void {
    try w.init(count, count);
    try w.settle();
    try w.admit_all();
    try w.pass(3 * second); // an account is of the time since the one before
}

test "what members measure comes back as figures of the next operation" {
    var w: World = .{ .gpa = std.testing.allocator };
    try form_measured(&w, 2);
    defer w.deinit();
    try expect_figures(&w, .ring, 0, 0);
    find_rates(&w, 1000);
    try w.pass(3 * second);
    // 80 bytes each way, and the last hop.
    try expect_figures(&w, .ring, 90 * ms, 80 * ms);
    find_rates(&w, 2000);
    try w.pass(3 * second);
    try expect_figures(&w, .ring, 50 * ms, 40 * ms);
    // Nobody knows the rates of a newcomer, and what is known of the others stays.
    _ = try w.add();
    try w.settle();
    try w.admit_all();
    try w.pass(3 * second);
    const matrix = &w.nodes[2].group.measured.?.matrix;
    try expectEqual(.{ 2000, 0 }, .{ matrix.rates[0][1], matrix.rates[0][2] });
    // Each of the others sends its 80 bytes, at 2000 a second.
    try expect_figures(&w, .ring, 0, 40 * ms);
}

test "a message, a schedule that is asked for, and a member alone say which way was taken" {
    var w: World = .{ .gpa = std.testing.allocator };
    try form_measured(&w, 2);
    defer w.deinit();
    find_rates(&w, 1000);
    try w.pass(3 * second);
    var values: [2][10]u64 = @splat(@splat(1));
    for ([_]session.Call{
        .{ .kind = .all_reduce, .plan = .direct, .deadline = base.never },
        .{ .kind = .send_recv, .deadline = base.never },
    }, [_]Way{ .direct, .message }, [_]u64{ 100 * ms, 100 * ms }) |asked, way, predicted_ns| {
        var operations: [2]*Operation = undefined;
        for (w.nodes[0..2], &values, &operations) |*node, *of, *operation| {
            var call = asked;
            const rank = node.group.rank();
            call.send = @ptrCast(of);
            call.recv = @ptrCast(of);
            call.count = of.len;
            call.dtype = .u64;
            call.part = if (rank == 0) .send else .recv;
            call.partner_rank = 1 - rank;
            operation.* = try user.begin(node.s, w.now, node.group, call);
        }
        try w.settle();
        for (w.nodes[0..2], operations) |*node, operation| {
            try expectEqual(.ok, operation.status);
            try expectEqual(way, operation.figures.way);
            const commit_ns = node.s.round_trip_ns;
            try expectEqual(predicted_ns + commit_ns, operation.figures.predicted_ns);
            try expectEqual(80 * ms, operation.figures.bound_ns);
            user.release(node.s, operation);
        }
    }
    w.kill(&w.nodes[1]);
    try w.pass(10 * second);
    const alone = try world.sum(&w.nodes[0], 10, .restart);
    try w.settle();
    try expectEqual(plan.Figures{ .way = .ring }, alone.figures);
    user.release(w.nodes[0].s, alone);
}

test "a coordinator that tells of ranks that there are not has broken the protocol" {
    var w: World = .{ .gpa = std.testing.allocator };
    try form_measured(&w, 2);
    defer w.deinit();
    const s = w.nodes[0].s;
    const group = w.nodes[0].group;
    var told: wire.control.Measured = .{
        .group = 0,
        .epoch = group.epoch(),
        .rank = 1,
        .up = 5,
        .down = 5,
        .links = .of(&.{.{ .rank = 0, .rate = 9, .rtt_ns = 0 }}),
    };
    try measure.on_measured(s, group, &told);
    try expectEqual(9, group.measured.?.matrix.rates[1][0]);
    told.links = .of(&.{.{ .rank = 2, .rate = 9, .rtt_ns = 0 }});
    try std.testing.expectError(error.Unexpected, measure.on_measured(s, group, &told));
    told.links = .of(&.{});
    told.rank = 2;
    try std.testing.expectError(error.Unexpected, measure.on_measured(s, group, &told));
    // One that is over, or has not begun here, says nothing.
    told.epoch += 1;
    try measure.on_measured(s, group, &told);
    try expectEqual(group.epoch(), group.measured.?.epoch);
}
