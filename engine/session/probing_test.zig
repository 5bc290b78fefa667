//! Probes of links of which nothing is known, over perfect pipes: asked for by the coordinator,
//! sent, thrown away, ended by a call, refused (measure.zig). The world: world_test.zig. The choice
//! of links: protocol/probes_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const hostile = @import("hostile_test.zig");
const measure = @import("measure.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const Link = session.Link;
const Node = world.Node;
const World = world.World;
const calls = session.calls;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;
const link_to = hostile.link_to;
const ms = std.time.ns_per_ms;
const second = std.time.ns_per_s;

const bytes_max = 512;

/// The system says that all lanes are so long.
fn form(w: *World, count: usize, base_ns: u64) !void {
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
        try form(&w, 3, case[0]);
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
    try form(&w, 2, 20 * ms);
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
        try form(&w, 2, case[0]);
        defer w.deinit();
        var operations: [2]*session.Operation = undefined;
        for (w.nodes[0..2], &operations) |*node, *operation|
            operation.* = try world.sum(node, 10, .restart);
        try w.settle();
        for (w.nodes[0..2], operations) |*node, operation| {
            calls.release(node.s, operation);
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
    try form(&w, 2, 20 * ms);
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
        calls.release(node.s, operation);
    }
}

test "a probe ends with its time, and when a call begins at either end" {
    for ([_]?usize{ null, 0, 1 }) |caller| try expect_ended_by(caller);
}

test "a probe that is cut short says nothing of its link, and a whole one does" {
    for ([_]bool{ false, true }) |is_whole| {
        var w: World = .{ .gpa = gpa };
        try form(&w, 2, 20 * ms);
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
        calls.release(w.nodes[0].s, first);
        calls.release(w.nodes[1].s, other);
    }
}

test "a coordinator that asks for a probe of nobody breaks the protocol" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2, 20 * ms);
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
    try form(&w, 2, 20 * ms);
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
    try form(&w, 2, 20 * ms);
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
