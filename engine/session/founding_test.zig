//! Sub-groups as peers see them: entering, disagreement, other connections. When they begin is
//! decided in protocol/group.zig. Worlds as in world_test.zig; with faults: tests/sim.

const std = @import("std");
const base = @import("base");
const session = @import("root.zig");
const world = @import("world_test.zig");
const form = @import("hostile_test.zig").form;
const control = session.control;
const joining = session.joining;
const Node = world.Node;
const World = world.World;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

/// A node asks for a sub-group of these.
fn ask(node: *Node, founders: []const usize) !*session.Group {
    var ids: [world.nodes_max]base.PeerId = undefined;
    for (founders, ids[0..founders.len]) |index, *id| id.* = .from_int(index + 1);
    const members = ids[0..founders.len];
    return joining.found(node.s, node.world.now, "sub", node.group, members);
}

/// The connection to the coordinator ends; another one comes.
fn reconnect(node: *Node) !void {
    const w = node.world;
    w.coordinator.closed(w.now, node.connection.?);
    node.connection = null;
    control.closed(node.s, w.now);
    while (node.connection == null) try w.pass(1);
    try w.settle();
}

test "founders enter a sub-group in the order in which they are named, and nobody else does" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    const first = try ask(&w.nodes[2], &.{ 2, 0 });
    try w.settle();
    const second = try ask(&w.nodes[0], &.{ 2, 0 });
    try w.settle();
    for ([_]*session.Group{ first, second }, [_]usize{ 2, 0 }) |group, index|
        try joining.admit(w.nodes[index].s, w.now, group, base.never);
    try w.settle();
    try expectEqual(0, first.rank());
    try expectEqual(1, second.rank());
    for ([_]*session.Group{ first, second }) |group| {
        try expectEqual(2, group.world_size());
        try expect(group.members()[0].eql(.from_int(3)));
    }
}

test "founders that name others hear that they do not agree" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    _ = try ask(&w.nodes[0], &.{ 0, 1 });
    try w.settle();
    _ = try ask(&w.nodes[1], &.{ 0, 1, 2 });
    try w.settle();
    for (w.nodes[0..2]) |*node| {
        try expectEqual(.mismatch, node.failure.?);
        try expectEqual(.joined, node.group.state);
    }
}

test "a member of a sub-group comes back as a member, and a founder that waits asks anew" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const first = try ask(node, &.{ 0, 1 });
    try w.settle();
    try expectEqual(2, first.founders().members.count);
    try reconnect(node);
    const second = try ask(&w.nodes[1], &.{ 0, 1 });
    try w.settle();
    try joining.admit(node.s, w.now, first, base.never);
    try joining.admit(w.nodes[1].s, w.now, second, base.never);
    try w.settle();
    try expectEqual(2, first.world_size());
    try expectEqual(0, first.founders().members.count);
    try reconnect(node);
    try expectEqual(.joined, first.state);
    try expectEqual(2, first.alive());
}

test "a founder that asks anew and is refused does not wait any more" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const group = try ask(node, &.{ 0, 1 });
    try w.settle();
    try expectEqual(.joined, group.state);
    group.founding.?.epoch += 1; // as if it had been over meanwhile
    try reconnect(node);
    try expectEqual(.left, group.state);
    try expectEqual(.expelled, node.failure.?);
    try expectEqual(.joined, node.group.state);
}

test "a join that the coordinator refuses is told as a refusal, with its reason" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    for (w.nodes[0..2]) |*node| _ = try ask(node, &.{ 0, 1 });
    try w.settle();
    const node = &w.nodes[2];
    const group = try joining.join(node.s, w.now, "sub", 0);
    try w.settle();
    const why = node.refusal[0..node.refusal_bytes];
    try expect(std.mem.indexOf(u8, why, "founders") != null);
    try expectEqual(.left, group.state);
    // It has lost nothing: it was no member of this one, and is one of the other.
    try expectEqual(null, node.failure);
    try expectEqual(.joined, node.group.state);
}

test "founders are members of the epoch, each once, with this peer" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    for ([_][]const usize{ &.{ 1, 2 }, &.{ 0, 1, 0 }, &.{ 0, 5 }, &.{} }) |founders|
        try std.testing.expectError(error.BadFounders, ask(&w.nodes[0], founders));
    const newcomer = try w.add();
    try w.settle();
    try std.testing.expectError(error.NotReady, ask(newcomer, &.{3}));
}
