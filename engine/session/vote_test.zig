//! Safe points that all members pass together (membership.zig), and newcomers that wait for those
//! who are there. Worlds as in world_test.zig; with faults: tests/sim.

const std = @import("std");
const base = @import("base");
const control = @import("control.zig");
const form = @import("hostile_test.zig").form;
const session = @import("root.zig");
const world = @import("world_test.zig");
const Node = world.Node;
const World = world.World;
const calls = session.calls;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectEqualStrings = std.testing.expectEqualStrings;
const gpa = std.testing.allocator;
const joining = session.joining;
const second = std.time.ns_per_s;

fn together(node: *Node) !void {
    try joining.admit_together(node.s, node.world.now, node.group, base.never);
    try node.world.settle();
}

fn alone(node: *Node) !void {
    try joining.admit(node.s, node.world.now, node.group, base.never);
    try node.world.settle();
}

/// A newcomer whose user waits to enter, so that an epoch with it has begun.
fn add_newcomer(w: *World) !*Node {
    const node = try w.add();
    try w.settle();
    try alone(node);
    return node;
}

test "a safe point that all pass together is passed when all have called, and by all alike" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    for ([_]usize{ 2, 0 }) |index| try together(&w.nodes[index]);
    for (w.nodes[0..3]) |*node| try expectEqual(1, node.admitted);
    try together(&w.nodes[1]);
    for (w.nodes[0..3]) |*node| {
        try expectEqual(2, node.admitted);
        try expectEqual(1, node.group.epoch());
        try expectEqual(2, node.group.member.safe_points);
    }
    const newcomer = try add_newcomer(&w);
    try expectEqual(1, newcomer.admitted);
    for (w.nodes[0..2]) |*node| try together(node);
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.group.epoch());
    try together(&w.nodes[2]);
    for (w.nodes[0..4]) |*node| try expectEqual(4, node.group.world_size());
}

test "an epoch that some did not know of when they called begins for none of them" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    try together(&w.nodes[0]);
    const newcomer = try add_newcomer(&w);
    try together(&w.nodes[1]);
    for (w.nodes[0..2]) |*node| {
        try expectEqual(2, node.admitted);
        try expectEqual(1, node.group.epoch());
    }
    // Each alone enters at the next one: all are at the same place.
    for (w.nodes[0..2]) |*node| try alone(node);
    for (w.nodes[0..3]) |*node| try expectEqual(3, node.group.world_size());
    const count = newcomer.group.member.safe_points;
    for (w.nodes[0..2]) |*node| try expectEqual(count, node.group.member.safe_points);
}

test "members that a round asks to stop pass a safe point together, if all do not know the epoch" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    for (w.nodes[0..2]) |*node| node.group.member.on_ask(7);
    for (w.nodes[0..2]) |*node| try together(node);
    for (w.nodes[0..2]) |*node| try expectEqual(2, node.admitted);
}

test "a newcomer that enters together waits until all members have entered" {
    for ([_]bool{ false, true }) |loses_one| {
        var w: World = .{ .gpa = gpa };
        try form(&w, 3);
        defer w.deinit();
        const newcomer = try w.add();
        try w.settle();
        try together(newcomer);
        try expectEqual(0, newcomer.admitted);
        for (w.nodes[0..2]) |*node| try alone(node);
        try expectEqual(0, newcomer.admitted);
        try expectEqual(4, w.nodes[0].group.world_size());
        if (loses_one) {
            w.kill(&w.nodes[2]);
            try w.pass(2 * second);
        } else try alone(&w.nodes[2]);
        try expectEqual(1, newcomer.admitted);
        try expectEqual(4, newcomer.group.world_size());
    }
}

test "a newcomer that does not wait knows that nobody else has entered, and hears who has" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const newcomer = try add_newcomer(&w);
    try expectEqual(2, newcomer.group.rank());
    try expectEqual(2, newcomer.group.not_entered().count());
    try alone(&w.nodes[0]);
    try w.pass(second);
    try expectEqual(1, newcomer.group.not_entered().count());
    try expect(newcomer.group.not_entered().has(1));
    try alone(&w.nodes[1]);
    for (w.nodes[0..3]) |*node| try expectEqual(0, node.group.not_entered().count());
}

test "all members are told the same number of newcomers, who enter at the next safe point" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    for ([_]u32{ 0, 0, 1 }, 0..) |wanted, turn| {
        var answers: [2]u32 = undefined;
        var works: [2]*session.Operation = undefined;
        for (w.nodes[0..2], &answers, &works, 0..) |*node, *answer, *work, index| {
            // In the second turn the first does not know of it yet.
            if (turn == 1 and index == 1) _ = try add_newcomer(&w);
            work.* = try joining.ask_pending(node.s, w.now, node.group, answer, base.never);
            try w.settle();
        }
        for (w.nodes[0..2], works, answers) |*node, work, answer| {
            try expectEqual(.ok, work.status);
            try expectEqual(wanted, answer);
            calls.release(node.s, work);
        }
    }
    for (w.nodes[0..2]) |*node| try together(node);
    for (w.nodes[0..2]) |*node| try expectEqual(3, node.group.world_size());
}

test "a safe point that one has no time for is passed by nobody, and by all who call again" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    try joining.admit_together(w.nodes[0].s, w.now, w.nodes[0].group, w.now + second);
    try w.pass(2 * second);
    try expectEqual(.deadline_exceeded, w.nodes[0].admit_failure.?);
    const late = w.nodes[0].group.vote.why_late();
    try expectEqualStrings("rank 1 (n1, 00000000) must come to it first", late);
    try together(&w.nodes[1]);
    try expectEqual(.aborted, w.nodes[1].admit_failure.?);
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.group.member.safe_points);
    for (w.nodes[0..2]) |*node| try together(node);
    for (w.nodes[0..2]) |*node| {
        try expectEqual(2, node.group.member.safe_points);
        try expectEqual(2, node.admitted);
    }
}

test "a safe point says for whom it has waited, in its log and when its time is over" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const first = &w.nodes[0];
    try joining.admit_together(first.s, w.now, first.group, w.now + 8 * second);
    try w.pass(7 * second);
    try expectEqualStrings("admit_together (sequence 0 of epoch 1) has been waiting 6 s for " ++
        "rank 1 (n1, 00000000); group g", w.said[0..w.said_bytes]);
    try w.pass(2 * second);
    const wanted = "rank 1 (n1, 00000000) must come to it first";
    try expectEqualStrings(wanted, first.group.vote.why_late());
}

test "a call that ended in doubt is answered at the next one" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const first = &w.nodes[0];
    for (w.nodes[0..2]) |*node| try joining.admit_together(node.s, w.now, node.group, base.never);
    const operation: *session.Operation = .from_op(first.group.vote.op.?);
    while (operation.op.state != .voted) try expect(try w.step());
    joining.admit_withdraw(first.s, first.group, .cancelled);
    control.run_deferred(first.s);
    try expectEqual(.in_doubt, operation.op.state);
    try w.settle();
    try expectEqual(1, first.admitted);
    try expectEqual(2, w.nodes[1].admitted);
    // However it calls, and whatever it is asked meanwhile: the others have passed it together.
    first.group.member.on_ask(7);
    try alone(first);
    try expectEqual(2, first.admitted);
    for (w.nodes[0..2]) |*node| try expectEqual(2, node.group.member.safe_points);
    try expect(!first.group.vote.is_open());
}

test "whoever leaves a safe point that others pass together takes nothing along" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    for (w.nodes[0..2]) |*node| try together(node);
    const leaver = &w.nodes[0];
    joining.leave(leaver.s, w.now, leaver.group);
    joining.release(leaver.s, leaver.group);
    try expectEqual(0, leaver.s.operations.items.len);
    try w.settle();
    try together(&w.nodes[2]);
    for (w.nodes[1..3]) |*node| try expectEqual(2, node.admitted);
}

test "a coordinator names members alone that have not entered, and this peer knows where it is" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const group = w.nodes[0].group;
    const message = struct {
        fn of(missing: base.Mask) @import("wire").control.Entered {
            return .{ .group = 0, .epoch = 1, .missing = missing, .waiting = 0 };
        }
    };
    try std.testing.expectError(error.Unexpected, group.member.on_entered(&message.of(.full(3))));
    try group.member.on_entered(&message.of(.full(2)));
    try expectEqual(1, group.not_entered().count());
    try expect(group.not_entered().has(1));
}
