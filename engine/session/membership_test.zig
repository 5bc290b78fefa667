//! Safe points that all members pass together (membership.zig), and newcomers that wait for those
//! who are there. Worlds as in world_test.zig; with faults: tests/sim.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const form = @import("hostile_test.zig").form;
const membership = @import("membership.zig");
const session = @import("root.zig");
const session_file = @import("session.zig");
const world = @import("world_test.zig");
const Node = world.Node;
const World = world.World;
const control = session.control;
const driver = session.driver;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectEqualStrings = std.testing.expectEqualStrings;
const gpa = std.testing.allocator;
const user = session.user;
const second = std.time.ns_per_s;

fn together(node: *Node) !void {
    try user.admit_together(node.s, node.world.now, node.group, base.never);
    try node.world.settle();
}

fn alone(node: *Node) !void {
    try user.admit(node.s, node.world.now, node.group, base.never);
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
            work.* = try user.ask_pending(node.s, w.now, node.group, answer, base.never);
            try w.settle();
        }
        for (w.nodes[0..2], works, answers) |*node, work, answer| {
            try expectEqual(.ok, work.status);
            try expectEqual(wanted, answer);
            user.release(node.s, work);
        }
    }
    for (w.nodes[0..2]) |*node| try together(node);
    for (w.nodes[0..2]) |*node| try expectEqual(3, node.group.world_size());
}

test "a safe point that one has no time for is passed by nobody, and by all who call again" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    try user.admit_together(w.nodes[0].s, w.now, w.nodes[0].group, w.now + second);
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
    try user.admit_together(first.s, w.now, first.group, w.now + 8 * second);
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
    for (w.nodes[0..2]) |*node| try user.admit_together(node.s, w.now, node.group, base.never);
    const operation: *session.Operation = .from_op(first.group.vote.op.?);
    while (operation.op.state != .voted) try expect(try w.step());
    user.admit_withdraw(first.s, first.group, .cancelled);
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
    user.leave(leaver.s, w.now, leaver.group);
    user.release_group(leaver.s, leaver.group);
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

// ---- calls that wait
//
// Tests of what a peer says about others: their labels, and for whom it waits (session.zig,
// membership.zig). Worlds as in world_test.zig.

test "labels are known of members, of those who have left last, and of nobody else" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    const first = w.nodes[0].s;
    for (0..3) |index| {
        const wanted = [_]u8{ 'n', '0' + @as(u8, @intCast(index)) };
        try expectEqualStrings(&wanted, session_file.label_of(first, .from_int(index + 1)).slice());
    }
    try expectEqual(0, session_file.label_of(first, .from_int(9)).length);
    w.kill(&w.nodes[2]);
    try w.settle();
    try w.admit_all();
    try expectEqualStrings("n2", session_file.label_of(first, .from_int(3)).slice());
    const newcomer = try w.add();
    try w.settle();
    try expectEqualStrings("n3", session_file.label_of(first, .from_int(4)).slice());
    try w.admit_all();
    try w.admit_all();
    try expectEqual(2, w.nodes[0].group.rank() + newcomer.group.rank());
    try expectEqual(0, session_file.label_of(first, .from_int(3)).length);
    for (0..2) |index| {
        const id: base.PeerId = .from_int(index + 1);
        try std.testing.expect(session_file.label_of(newcomer.s, id).length == 2);
    }
    user.leave(first, w.now, w.nodes[0].group);
    user.release_group(first, w.nodes[0].group);
    membership.prune_addresses(first);
    try expectEqual(0, first.labels.count());
    w.nodes[0].group = undefined;
}

test "a call that waits for five seconds is in the log with those it waits for, once in a while" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    w.said_bytes = 0;
    const operation = try world.sum(&w.nodes[0], 10, .restart);
    try w.pass(4 * second);
    try expectEqual(0, w.said_bytes);
    try w.pass(3 * second);
    try expectEqualStrings("all_reduce (tag 0, sequence 0 of epoch 1) has been waiting 6 s for " ++
        "rank 1 (n1, 00000000) and rank 2 (n2, 00000000); group g", w.said[0..w.said_bytes]);
    const lines = w.log_lines;
    try w.pass(30 * second);
    try expectEqual(0, w.log_lines - lines);
    var others: [2]*session.Operation = undefined;
    for (w.nodes[1..3], &others) |*node, *other| other.* = try world.sum(node, 10, .restart);
    try w.settle();
    try world.check_sum(operation);
    user.release(w.nodes[0].s, operation);
    for (w.nodes[1..3], others) |*node, other| user.release(node.s, other);
}

test "a call of a newcomer that is alone in its epoch names the members that have not entered it" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = try w.add();
    try w.settle();
    try user.admit(node.s, w.now, node.group, base.never);
    try w.settle();
    try expectEqual(2, node.group.rank());
    w.said_bytes = 0;
    const operation = try world.sum(node, 10, .restart);
    operation.deadline = w.now + 9 * second;
    try w.pass(7 * second);
    const wanted = "waiting 6 s for rank 0 (n0, 00000000) and rank 1 (n1, 00000000); rank 0 " ++
        "(n0, 00000000) and rank 1 (n1, 00000000) have not entered the epoch, as members from " ++
        "before do when their programs call admit; group g";
    const said = w.said[0..w.said_bytes];
    try std.testing.expect(std.mem.endsWith(u8, said, wanted));
    try w.pass(3 * second);
    try expectEqual(.deadline_exceeded, operation.status);
    try expectEqual(base.Mask.full(2), operation.failure.outside);
    user.release(node.s, operation);
    const inside = try world.sum(node, 10, .restart);
    inside.deadline = w.now + 9 * second;
    try w.admit_all();
    try w.pass(10 * second);
    try expectEqual(2, inside.failure.missing.count());
    try std.testing.expect(inside.failure.outside.is_empty());
    user.release(node.s, inside);
}

test "a link that moves nothing of what all have called is named by status, logs and errors" {
    // Method: what the first has sent to the second stays under way, for less than the silence
    // limit, and nothing else leaves on their lanes. The third has a deadline, and its error names
    // a link that is not its own.
    var w: World = .{ .gpa = gpa, .stall_warning_ns = 2 * second };
    try form(&w, 3);
    defer w.deinit();
    const link = w.nodes[0].s.link_to(w.nodes[1].s.self).?;
    var operations: [3]*session.Operation = undefined;
    for (w.nodes[0..3], &operations) |*node, *operation| {
        operation.* = try world.sum(node, 100, .restart);
    }
    while (!link.is_loaded()) _ = try w.step();
    for (link.lanes) |place| if (place) |lane| {
        w.pipe_of(lane).stuck = lane;
    };
    operations[2].deadline = w.now + 4 * second;
    try w.pass(3 * second / 2);
    const epoch = w.coordinator.run.groups.items[0].epochs.items[0];
    try expectEqual(0, epoch.records.items[0].stall.stuck.count);
    w.said_bytes = 0;
    try w.pass(2 * second);
    try std.testing.expect(epoch.records.items[0].stall.stuck.count > 0);
    const line = "all_reduce (tag 0, sequence 0 of epoch 1) stands, though all have called it: " ++
        "nothing of it moves between rank ";
    try expectEqualStrings(line, w.said[0..@min(line.len, w.said_bytes)]);
    try w.pass(second);
    try expectEqual(.deadline_exceeded, operations[2].status);
    const told = operations[2].failure.elsewhere.slice();
    try std.testing.expect(told.len > 0);
    for (told) |*it| try std.testing.expect(it.rank < 2 and it.waits_for < 2);
    for (w.nodes[0..3], operations) |*node, operation| user.release(node.s, operation);
}

test "a link whose lanes break and are made again in vain moves nothing" {
    // Method: whatever is said on an open lane is lost, with the settings that runs have.
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    var operations: [2]*session.Operation = undefined;
    for (w.nodes[0..2], &operations) |*node, *operation| {
        operation.* = try world.sum(node, 100, .restart);
    }
    while (!w.nodes[0].s.link_to(w.nodes[1].s.self).?.is_loaded()) _ = try w.step();
    const records = &w.coordinator.run.groups.items[0].epochs.items[0].records;
    const until = w.now + 40 * second;
    w.holds_open = true;
    while (records.items.len == 0 or records.items[0].stall.stuck.count == 0) {
        try std.testing.expect(w.now < until);
        try w.pass(second / 4);
    }
    w.holds_open = false;
    try w.pass(10 * second);
    for (operations) |operation| try world.check_sum(operation);
    for (w.nodes[0..2], operations) |*node, operation| user.release(node.s, operation);
}

test "frames that move, however few, and calls that are missing, name no link" {
    // Method: one of three calls late; then a lane takes a frame now and then.
    var w: World = .{ .gpa = gpa, .stall_warning_ns = 3 * second };
    try form(&w, 3);
    defer w.deinit();
    var operations: [3]*session.Operation = undefined;
    for (w.nodes[0..2], operations[0..2]) |*node, *operation| {
        operation.* = try world.sum(node, 100, .restart);
    }
    try w.pass(30 * second);
    for (operations[0..2]) |operation| try std.testing.expect(operation.op.stuck.is_empty());
    const link = w.nodes[0].s.link_to(w.nodes[1].s.self).?;
    for (link.lanes) |place| if (place) |lane| {
        w.pipe_of(lane).stuck = lane;
    };
    operations[2] = try world.sum(&w.nodes[2], 100, .restart);
    for (0..3) |_| {
        try w.pass(2 * second);
        for (operations) |operation| try std.testing.expect(operation.op.stuck.is_empty());
        for (link.lanes) |place| if (place) |lane| {
            const pipe = w.pipe_of(lane);
            const is_a = pipe.a == lane;
            const to = if (is_a) pipe.node_b else pipe.node_a;
            for (0..4) |_| _ = w.move(&w.nodes[0], lane, to, if (is_a) pipe.b else pipe.a);
        };
    }
    for (link.lanes) |place| if (place) |lane| {
        w.pipe_of(lane).stuck = null;
    };
    try w.settle();
    for (w.nodes[0..3], operations) |*node, operation| {
        try world.check_sum(operation);
        user.release(node.s, operation);
    }
}

test "an admit that waits for five seconds is in the log with those who have not called it" {
    var w: World = .{ .gpa = gpa };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    const first = &w.nodes[0];
    try user.admit(first.s, w.now, first.group, w.now + 60 * second);
    try w.pass(4 * second);
    var room: [200]u8 = undefined;
    try expectEqualStrings("", first.group.awaited.text(w.now, &room));
    try w.pass(2 * second);
    const wanted = "peer 00000000 (n1) must call admit first: " ++
        "every peer must call it equally often";
    try expectEqualStrings(wanted, first.group.awaited.text(w.now, &room));
    try expectEqualStrings(wanted ++ "; group g", w.said[0..w.said_bytes]);
    const lines = w.log_lines;
    try w.pass(3 * second);
    try expectEqual(0, w.log_lines - lines);
    try user.admit(w.nodes[1].s, w.now, w.nodes[1].group, w.now + 60 * second);
    try w.settle();
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.admitted);
    try w.pass(20 * second);
    try expectEqualStrings("", first.group.awaited.text(w.now, &room));
}

test "the log says what a member that is waited for waits in itself" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const operation = try world.sum(&w.nodes[0], 10, .restart);
    var values: [10]u64 = @splat(1);
    const there = try user.begin(w.nodes[1].s, w.now, w.nodes[1].group, .{
        .kind = .all_reduce,
        .send = @ptrCast(&values),
        .recv = @ptrCast(&values),
        .count = values.len,
        .dtype = .u64,
        .tag = 5,
        .deadline = w.now + 9 * second,
    });
    const lines = w.log_lines;
    try w.pass(7 * second);
    try expectEqual(2, w.log_lines - lines);
    try expectEqualStrings("all_reduce (tag 5, sequence 0 of epoch 1) has been waiting 6 s for " ++
        "rank 0 (n0, 00000000); rank 0 (n0, 00000000) waits in all_reduce (tag 0, sequence 0 " ++
        "of epoch 1) for rank 1 (this peer); group g", w.said[0..w.said_bytes]);
    try w.pass(7 * second);
    try expectEqual(.deadline_exceeded, there.status);
    const told = there.failure.elsewhere.slice();
    try expectEqual(1, told.len);
    try expectEqual(.all_reduce, told[0].kind);
    const other = try world.sum(&w.nodes[1], 10, .restart);
    try w.settle();
    try world.check_sum(operation);
    user.release(w.nodes[0].s, operation);
    for ([_]*session.Operation{ there, other }) |item| user.release(w.nodes[1].s, item);
}

test "a call that fails names its peers as they were then, with rank and label" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const operation = try world.sum(&w.nodes[0], 10, .restart);
    const other = try world.sum(&w.nodes[1], 11, .restart);
    try w.settle();
    try expectEqual(.mismatch, operation.status);
    var line: [100]u8 = undefined;
    for ([_][]const u8{ "rank 0 (this peer)", "rank 1 (n1, 00000000)" }, 1..) |wanted, number| {
        const who = operation.names.who(.from_int(number));
        try expectEqualStrings(wanted, try std.fmt.bufPrint(&line, "{f}", .{who}));
    }
    user.release(w.nodes[0].s, operation);
    user.release(w.nodes[1].s, other);
}

test "a newcomer that cannot dial a killed member names the loss, and no port" {
    var w: World = .{ .gpa = gpa };
    try w.init(1, 1);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    w.apart = .{ 0, 1 };
    const newcomer = try w.add();
    try w.pass(second);
    w.kill(&w.nodes[0]);
    const wanted = "rank 0 (n0, 00000000) must come back to the coordinator first, or be lost " ++
        "at the silence limit: the connection to it has closed";
    var room: [300]u8 = undefined;
    // Until its link is taken to be broken for good, and it is not lost yet.
    try w.pass(19 * second / 4);
    try expectEqualStrings("", newcomer.s.unreached.text(w.now, &room));
    try expectEqualStrings(wanted, newcomer.group.awaited.text(w.now, &room));
    try expectEqualStrings(wanted ++ "; group g", w.said[0..w.said_bytes]);
    // It is lost, and the newcomer begins without it.
    try w.pass(4 * second);
    try expectEqualStrings("", newcomer.s.unreached.text(w.now, &room));
    try expectEqualStrings("", newcomer.group.awaited.text(w.now, &room));
    try w.admit_all();
    try expectEqual(1, newcomer.group.world_size());
}

test "a call whose deadline is near names those who have not called when it passes, and no log" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 4);
    defer w.deinit();
    const lines = w.log_lines;
    const begun = w.now;
    var values: [4][10]u64 = @splat(@splat(1));
    var operations: [4]?*session.Operation = @splat(null);
    // The second and the third call in time, one of them at the last moment, and the fourth never.
    const called_at = [_]u64{ 0, second / 4, second * 9 / 10, base.never };
    while (w.now < begun + 2 * second) {
        for (w.nodes[0..4], &values, &operations, called_at) |*node, *value, *operation, call| {
            if (operation.* != null or w.now - begun < call or w.now - begun > second) continue;
            operation.* = try user.begin(node.s, w.now, node.group, .{
                .kind = .all_reduce,
                .send = @ptrCast(value),
                .recv = @ptrCast(value),
                .count = value.len,
                .dtype = .u64,
                .deadline = w.now + second,
            });
        }
        try w.settle();
        w.now += second / 100;
        for (w.nodes[0..4]) |*node|
            if (driver.next_deadline(node.s) <= w.now) driver.tick(node.s, w.now);
        if (w.coordinator.next_deadline() <= w.now) w.coordinator.tick(w.now);
    }
    try expectEqual(0, w.log_lines - lines);
    for (operations[0..3]) |operation| {
        const failure = &operation.?.failure;
        try expectEqual(.deadline, failure.reason.?);
        try expectEqual(1, failure.missing.count());
        try std.testing.expect(failure.missing.has(3));
    }
    for (w.nodes[0..3], operations[0..3]) |*node, operation| user.release(node.s, operation.?);
}

fn awaited(peers: []const wire.control.AwaitedEntry, count: u32) wire.control.Awaited {
    return .{ .group = 0, .why = .begin, .count = count, .peers = .of(peers) };
}

test "for whom a newcomer waits is said once, and no more are named than there are" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const s = w.nodes[0].s;
    const peers = [_]wire.control.AwaitedEntry{
        .{ .id = .from_int(2), .rank = 1, .label = .of("n1") },
        .{ .id = .from_int(7), .rank = 1, .label = .of("n7") },
    };
    const lines = w.log_lines;
    for (0..2) |_| try session.membership.on_awaited(s, &awaited(peers[0..1], 1));
    try expectEqual(1, w.log_lines - lines);
    try session.membership.on_awaited(s, &awaited(peers[0..2], 2));
    try expectEqual(2, w.log_lines - lines);
    for ([_]u32{ 0, 1 }) |count| try std.testing.expectError(
        error.Unexpected,
        session.membership.on_awaited(s, &awaited(peers[0..2], count)),
    );
}

test "calls that wait are one line of the log in five seconds, and name members that are there" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const operation = try world.sum(node, 10, .restart);
    w.now += 6 * second;
    node.s.now = w.now;
    var missing: base.Mask = .empty;
    missing.set(1);
    const lines = w.log_lines;
    for ([_]u64{ 0, 4, 1 }, [_]u64{ 1, 1, 2 }) |later, said| {
        node.s.now += later * second;
        for (0..2) |_| try session.membership.on_stalled(node.s, &.{
            .group = 0,
            .epoch = operation.op.epoch,
            .attempt = 1,
            .op = operation.op.id,
            .missing = missing,
        });
        try expectEqual(said, w.log_lines - lines);
    }
    // A member that is lost by now waits in nothing.
    var elsewhere: protocol.Elsewhere = .{};
    elsewhere.add(.{ .rank = 1, .count = 1 });
    const names = session_file.names_of_missing(node.s, operation);
    for ([_]base.Mask{ missing, .empty }) |these| {
        var room: [200]u8 = undefined;
        const text = try std.fmt.bufPrint(&room, "{f}", .{session.membership.Elsewhere{
            .names = &names,
            .operation = operation,
            .missing = &these,
            .told = &elsewhere,
        }});
        try expectEqual(these.is_empty(), text.len == 0);
    }
    w.now = node.s.now;
    const other = try world.sum(&w.nodes[1], 10, .restart);
    try w.settle();
    user.release(node.s, operation);
    user.release(w.nodes[1].s, other);
}

// ---- founders
//
// Sub-groups as peers see them: entering, disagreement, other connections. When they begin is
// decided in protocol/group.zig. Worlds as in world_test.zig; with faults: tests/sim.

/// A node asks for a sub-group of these.
fn ask_founders(node: *Node, founders: []const usize) !*session.Group {
    var ids: [world.nodes_max]base.PeerId = undefined;
    for (founders, ids[0..founders.len]) |index, *id| id.* = .from_int(index + 1);
    const members = ids[0..founders.len];
    return user.found(node.s, node.world.now, "sub", node.group, members);
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
    const first = try ask_founders(&w.nodes[2], &.{ 2, 0 });
    try w.settle();
    const other = try ask_founders(&w.nodes[0], &.{ 2, 0 });
    try w.settle();
    for ([_]*session.Group{ first, other }, [_]usize{ 2, 0 }) |group, index|
        try user.admit(w.nodes[index].s, w.now, group, base.never);
    try w.settle();
    try expectEqual(0, first.rank());
    try expectEqual(1, other.rank());
    for ([_]*session.Group{ first, other }) |group| {
        try expectEqual(2, group.world_size());
        try expect(group.members()[0].eql(.from_int(3)));
    }
}

test "founders that name others hear that they do not agree" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    _ = try ask_founders(&w.nodes[0], &.{ 0, 1 });
    try w.settle();
    _ = try ask_founders(&w.nodes[1], &.{ 0, 1, 2 });
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
    const first = try ask_founders(node, &.{ 0, 1 });
    try w.settle();
    try expectEqual(2, first.founders().members.count);
    try reconnect(node);
    const other = try ask_founders(&w.nodes[1], &.{ 0, 1 });
    try w.settle();
    try user.admit(node.s, w.now, first, base.never);
    try user.admit(w.nodes[1].s, w.now, other, base.never);
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
    const group = try ask_founders(node, &.{ 0, 1 });
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
    for (w.nodes[0..2]) |*node| _ = try ask_founders(node, &.{ 0, 1 });
    try w.settle();
    const node = &w.nodes[2];
    const group = try user.join(node.s, w.now, "sub", 0);
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
        try std.testing.expectError(error.BadFounders, ask_founders(&w.nodes[0], founders));
    const newcomer = try w.add();
    try w.settle();
    try std.testing.expectError(error.NotReady, ask_founders(newcomer, &.{3}));
}
