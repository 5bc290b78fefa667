//! Figures of operations, from what members measure to the outcome: told to the coordinator, told
//! on to the members, and worked out as an attempt begins (measure.zig, session.zig). The world:
//! world_test.zig. The arithmetic: collective/figures_test.zig.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const wire = @import("wire");
const measure = @import("measure.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const Operation = session.Operation;
const World = world.World;
const calls = session.calls;
const Way = @FieldType(collective.Figures, "way");
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const ms = std.time.ns_per_ms;
const second = std.time.ns_per_s;

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
        calls.release(node.s, operation);
    }
}

fn form(w: *World, count: u32) !void {
    try w.init(count, count);
    try w.settle();
    try w.admit_all();
    try w.pass(3 * second); // an account is of the time since the one before
}

test "what members measure comes back as figures of the next operation" {
    var w: World = .{ .gpa = std.testing.allocator };
    try form(&w, 2);
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
    try form(&w, 2);
    defer w.deinit();
    find_rates(&w, 1000);
    try w.pass(3 * second);
    var values: [2][10]u64 = @splat(@splat(1));
    for ([_]session.Call{
        .{ .kind = .all_reduce, .plan = .direct, .deadline = base.never },
        .{ .kind = .send_recv, .deadline = base.never },
    }, [_]Way{ .direct, .message }, [_]u64{ 90 * ms, 100 * ms }) |asked, way, predicted_ns| {
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
            operation.* = try calls.begin(node.s, w.now, node.group, call);
        }
        try w.settle();
        for (w.nodes[0..2], operations) |*node, operation| {
            try expectEqual(.ok, operation.status);
            try expectEqual(way, operation.figures.way);
            const commit_ns = node.s.round_trip_ns;
            try expectEqual(predicted_ns + commit_ns, operation.figures.predicted_ns);
            try expectEqual(80 * ms, operation.figures.bound_ns);
            calls.release(node.s, operation);
        }
    }
    w.kill(&w.nodes[1]);
    try w.pass(10 * second);
    const alone = try world.sum(&w.nodes[0], 10, .restart);
    try w.settle();
    try expectEqual(collective.Figures{ .way = .ring }, alone.figures);
    calls.release(w.nodes[0].s, alone);
}

test "a coordinator that tells of ranks that there are not has broken the protocol" {
    var w: World = .{ .gpa = std.testing.allocator };
    try form(&w, 2);
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
