//! Standing: which role a peer may have, and what is remembered of it. Which connection speaks for
//! a peer, what a return makes void, what a coordinator that has started again accepts from peers
//! that come back, and what a passed attempt still means. The rules: door.zig, membership.zig,
//! member.zig. The harness: court_test.zig. Rules about votes and decisions: rules_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Op = @import("member.zig").Op;
const Status = @import("member.zig").Status;
const Witness = @import("hostile_test.zig").Witness;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;

const ms = court_file.ms;
const peers_max = court_file.peers_max;
const id_of = court_file.id_of;
const Court = court_file.Court;
const Shelf = court_file.Shelf;

fn come_back_alone(court: *Court, index: usize) !void {
    try court.come_back(index, court.attempt);
    try court.say(index, .{ .join_end = .{} });
}

// ---- connections, and whom they speak for

test "a connection that asks for the status a second time is closed" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.knock(0, .{ .purpose = .status, .run_id = @splat(1), .from = .none });
    try court.say(0, .{ .status_request = .{} });
    try expect(court.peers[0] != null);
    try court.listen();
    try court.say(0, .{ .status_request = .{} });
    try expectEqual(null, court.peers[0]);
    try expectEqual(0, court.c.run.connections.items.len);
}

test "a second process does not get the id of one that is there, and gets it when that is gone" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..2) |place| try court.knock(place, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = id_of(0),
        .instance = 1 + place,
    });
    try expect(court.peers[0] != null);
    try expectEqual(null, court.peers[1]);
    try expectEqual(1, court.c.run.peer_of(id_of(0)).?.instance);
    court.hang_up(0);
    try court.knock(1, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = id_of(0),
        .instance = 2,
    });
    try expect(court.peers[1] != null);
    try expectEqual(2, court.c.run.peer_of(id_of(0)).?.instance);
}

test "what others said of a member before it came back does not count when it goes away again" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.hang_up(0);
    try court.say_closed(2, 0);
    try come_back_alone(&court, 0);
    court.hang_up(0);
    try court.say_closed(1, 0);
    try expectEqual(0b111, court.members_alive());
    try court.say_closed(2, 0);
    try expectEqual(0b110, court.members_alive());
}

test "a newcomer that has a new connection is in no epoch before it has asked again" {
    // Method: the old connection looks well, the round has the newcomer's answer, and the others
    // give theirs between the two connections.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..peers_max) |index| try court.connect(index);
    try court.listen();
    const before = court.round;
    try court.prepare(0, court.round, true);
    try court.open(0);
    for (1..peers_max) |index| try court.prepare(index, court.round, true);
    try expectEqual(null, court.group().current());
    try court.say(0, .{ .join_end = .{} });
    try court.pass(1000 * ms); // it has left a round
    try court.listen();
    try expect(court.round > before);
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.listen();
    try expectEqual(1, court.epoch);
    try expectEqual(0b111, court.members_alive());
}

test "a member that has come back twice before the others is waited for, and answered once" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    const returned = &court.group().returned;
    try come_back_alone(&court, 0);
    try expectEqual(1, returned.items.len);
    try court.come_back(0, court.attempt);
    try expectEqual(0, returned.items.len);
    for (1..peers_max) |index| try come_back_alone(&court, index);
    try expect(court.group().recovering);
    try court.say(0, .{ .join_end = .{} });
    try expect(!court.group().recovering);
    try court.listen();
    try court_file.report_nothing(&court);
}

// ---- what a coordinator that has started again takes from those who come back

test "a member of an epoch that the journal has lost is out of the one before" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    court.epoch = 2;
    try come_back_alone(&court, 0);
    const why = "it knows more than the coordinator, which has started again without its " ++
        "journal, or with one that had failed";
    try court.expect_said("info peer 01000000 is out of epoch 1: " ++ why ++
        "; 2 of 3 members remain in group g");
    try expect(court.peers[0] != null);
    try court.listen();
    try std.testing.expectEqualStrings(why, court.why_expelled());
}

test "a member that comes back too late hears why it was removed" {
    // Method: the same member is lost in each way in which it may not be told, and comes back. The
    // last ones ask a coordinator that has started again since, one of them with a journal that was
    // written anew, and one that has forgotten.
    const Way = enum { away, silent, faulty, closed, restart, restarts, forgotten };
    for (std.enums.values(Way), [_][]const u8{
        "it did not come back within the silence limit",
        "it was silent for longer than the silence limit",
        "it broke the protocol (Unexpected)",
        "it is away, and its lanes to other members are closed",
        "it left",
        "it left",
        "it was removed, so long ago that the coordinator does not know why any more",
    }) |way, why| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        if (@intFromEnum(way) >= @intFromEnum(Way.restart)) {
            try court_file.restart_after(&shelf, &court, lose_last);
            if (way == .restarts) {
                court.c.destroy();
                try shelf.start(&court);
                court.epoch = 1;
            }
            if (way == .forgotten) court.group().removals.count = 0;
        } else {
            try court.init(gpa);
            try court.form();
        }
        defer court.c.destroy();
        switch (way) {
            .away, .closed => court.hang_up(2),
            .silent, .restart, .restarts, .forgotten => {},
            .faulty => try court.say(2, .{ .epoch_closed = .{ .group = 0, .epoch = court.epoch } }),
        }
        if (way == .closed) for (0..2) |index| try court.say_closed(index, 2);
        if (way == .away or way == .silent) for (0..11) |_| {
            court.now += 500 * ms;
            for (0..2) |index| try court.beat(index);
            court.c.tick(court.now);
        };
        try expectEqual(0b011, court.members_alive());
        court.attempt = 1;
        try come_back_alone(&court, 2);
        try court.listen();
        try std.testing.expectEqualStrings(why, court.why_expelled());
        try expect(!court.expelled_refused);
    }
}

test "a member that nobody reaches any more hears that, and not that it was silent" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for ([_][2]usize{ .{ 0, 1 }, .{ 0, 2 }, .{ 1, 2 } }) |pair| {
        try court.say(pair[0], .{ .link_told = .{
            .other = id_of(pair[1]),
            .group = 0,
            .health = .down,
        } });
    }
    try court.pass(500 * ms);
    try court.listen();
    try expect(court.expelled[2] and court.peers[2] != null);
    const why = "other members could not reach it for longer than the silence limit, and " ++
        "nothing goes around that";
    try std.testing.expectEqualStrings(why, court.why_expelled());
}

fn lose_last(court: *Court) !void {
    try court.say(2, .{ .leave = .{ .group = 0 } });
}

test "a member that knows of a removal which the journal has lost is out of the epoch" {
    for ([_]bool{ false, true }) |lost| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart(&shelf, &court);
        defer court.c.destroy();
        try court.come_back_alive(0, 2, .full(if (lost) 2 else peers_max));
        try court.say(0, .{ .join_end = .{} });
        const alive: u64 = if (lost) 0b110 else 0b111;
        try expectEqual(alive, court.members_alive());
    }
}

test "no epoch has the number of another after a restart, even if there were very many" {
    // Method: all leave after more epochs than are set aside for a start. Nothing but the record
    // of the group says how many there were when the journal is written anew.
    const last = 1 << 21;
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        for (0..peers_max) |index| try court.say(index, .{ .leave = .{ .group = 0 } });
        court.group().last_epoch = last;
        court.c.run.journal_due = true;
        court.c.tick(court.now);
        try shelf.write(&court);
    }
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try expectEqual(last + 1, court.epoch);
}

test "after a restart no round begins before all have entered the epoch that there is" {
    // Method: two are back that have not entered yet, and the third has left and asks to join.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    for (0..2) |index| {
        try court.open(index);
        try court.say(index, .{ .epoch_report = .{
            .epoch = 1,
            .attempt = 1,
            .entered = false,
            .decisions_seen = 0,
            .alive = .full(peers_max),
            .members = .of(&.{ id_of(0), id_of(1), id_of(2) }),
        } });
        try court.say(index, .{ .join_end = .{} });
    }
    try court.connect(2);
    try expect(!court.group().recovering);
    for (0..2) |index| {
        try court.listen();
        try expectEqual(0, court.round);
        try court.enter(index);
    }
    try court.listen();
    try expect(court.round > 0);
}

// ---- what a passed attempt still means

fn say_broken(court: *Court, attempt: u32) !void {
    try court.say(0, .{ .link_lost = .{
        .other = id_of(1),
        .group = 0,
        .epoch = court.epoch,
        .attempt = attempt,
        .state = .broken,
    } });
}

test "lanes that broke in an attempt that is over begin no other" {
    // Method: members tell of some between a view and its resume, of some after the resume, and in
    // the end of some in the attempt under way.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.stumble();
    for (1..3) |attempt| try say_broken(&court, @intCast(attempt)); // nothing moves in the second
    for (0..peers_max) |index| try court.report_end(index);
    for ([_]u32{ 1, 2 }, [_]u32{ 2, 3 }) |of, after| {
        try court.pass(1000 * ms);
        try court.listen();
        try expectEqual(2, court.attempt);
        try say_broken(&court, of);
        try court.pass(1000 * ms);
        try court.listen();
        try expectEqual(after, court.attempt);
    }
}

test "a resume of an attempt that is over starts nothing" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, 7));
    const epoch = w.member.current.?;
    try w.view(2, .full(3));
    try w.view(3, .full(3));
    for ([_]u32{ 2, 3 }) |attempt| {
        try w.resume_op(attempt, op.id);
        try expectEqual(@intFromBool(attempt == 3), epoch.resumes.items.len);
        try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = attempt });
        try expectEqual(attempt == 3, epoch.running);
        try expectEqual(attempt - 1, op.attempts);
    }
}

test "a vote for a private result is void in the next attempt, and the call can be given up" {
    const Case = struct { kind: control.OpKind, status: Status };
    for ([_]Case{
        .{ .kind = .all_reduce, .status = .in_doubt },
        .{ .kind = .reduce_scatter, .status = .deadline_exceeded },
    }) |case| {
        var w: Witness = undefined;
        try w.init();
        defer w.member.deinit();
        w.member.welcomed(0);
        var op: Op = .{ .descriptor = court_file.descriptor, .chunks = 1 };
        op.descriptor.kind = case.kind;
        try w.member.check_start(7);
        w.member.start(&op, 7);
        w.member.completed(&op, 9);
        try expectEqual(.voted, op.state);
        try w.view(2, .full(3));
        try w.resume_op(2, op.id);
        try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
        w.member.give_up(&op, .deadline);
        try expectEqual(case.status, w.failure.?.status);
    }
}
