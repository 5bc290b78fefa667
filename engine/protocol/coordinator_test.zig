//! Standing: which role a peer may have, and what is remembered of it. Which connection speaks for
//! a peer, what a return makes void, what a coordinator that has started again accepts from peers
//! that come back, and what a passed attempt still means. The rules: door.zig, membership.zig,
//! member.zig. The harness: court_test.zig. Rules about votes and decisions: coordinator_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const log = @import("log.zig");
const Op = @import("member.zig").Op;
const Status = @import("member.zig").Status;
const Witness = @import("hostile_test.zig").Witness;
const Court = court_file.Court;
const Shelf = court_file.Shelf;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const id_of = court_file.id_of;
const limits = base.limits;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

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
    const why = @import("attempt.zig").knows_more;
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

// ---- rules towards honest members
//
// Rules that the coordinator keeps towards honest members. Mutations have shown that nothing else
// tests them (tests/mutants). Here are rules about one message and one answer; rules that take a
// world are in tests/sim. Members that lie: hostile_test.zig.

test "votes whose digests differ end the operation, with the names of both" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..peers_max) |index| {
        var vote = court.vote(5, 0);
        vote.digest = if (index == 2) 8 else 7;
        try court.say(index, .{ .done = vote });
    }
    try court.listen();
    for (court.commits[0..peers_max], court.aborts[0..peers_max]) |commits, aborts| {
        try expectEqual(0, commits);
        try expectEqual(1, aborts);
    }
    const abort = court.last_abort.?;
    try expectEqual(.digest, abort.reason);
    try expect(abort.peer.eql(id_of(0)) and abort.other.eql(id_of(2)));
    for (court.peers[0..peers_max]) |peer| try expect(peer != null);
}

test "a vote of an attempt that is over counts in no other" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    var late = court.vote(5, 0);
    try court.stumble();
    for (0..peers_max) |index| try court.report_end(index);
    try court.say(0, .{ .done = late });
    for (1..peers_max) |index| try court.done(index, 5, 0);
    try court.listen();
    try expectEqual(0, court.commits[1]);
    late.attempt = court.attempt;
    try court.say(0, .{ .done = late });
    try court.listen();
    try expectEqual(1, court.commits[1]);
}

test "an operation that raises began with the first member that called it" {
    // Method: one of those that have called it says that it began after the loss.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try lose_third(&court);
    try court.listen();
    for (0..2) |index| {
        var said = court.running(5, 1);
        said.descriptor.recovery = .raise;
        said.begun_attempt = @intCast(1 + index);
        try court.say(index, .{ .report_op = said });
        try court.report_end(index);
    }
    try court.listen();
    try expectEqual(1, court.aborts[0]);
    try expectEqual(.peer_lost, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(2)));
}

test "aborts are forgiven once all have seen them, however many there are" {
    // Goal: only what is kept for others counts against a member. Method: one gives up three times
    // as often as it may while nobody has seen it, and all say what they have seen now and then.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (1..3 * limits.decisions_kept_max + 1) |count| {
        try court.give_up(2, count);
        if (count % 1000 != 0) continue;
        for (0..peers_max) |index| try court.say_seen(index, count);
        try court.listen();
    }
    try court.listen();
    for (court.peers[0..peers_max]) |peer| try expect(peer != null);
    try expectEqual(3 * limits.decisions_kept_max, court.aborts[0]);
    const kept = court.c.run.groups.items[0].current().?.decided_ids.count();
    try expectEqual(3 * limits.decisions_kept_max % 1000, kept);
}

test "all have seen as many decisions as any member in the epoch, whoever says so first" {
    // Goal: the count of those who have seen least. Method: decisions and what members say of them
    // in any order, one of them leaves, and after each word the least is taken anew.
    for (0..20) |seed| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        const epoch = court.c.run.groups.items[0].current().?;
        var prng: base.Prng = .init(seed);
        var seen: [peers_max]u64 = @splat(0);
        var decisions: u64 = 0;
        for (0..300) |step| {
            if (step == 200) {
                try court.say(2, .{ .leave = .{ .group = 0 } });
                seen[2] = std.math.maxInt(u64);
            }
            if (prng.chance(2)) {
                decisions += 1;
                try court.give_up(0, decisions);
            }
            const index: usize = prng.below(if (step < 200) peers_max else peers_max - 1);
            seen[index] += prng.below(decisions - seen[index] + 1);
            try court.say_seen(index, seen[index]);
            try court.listen();
            const kept = epoch.outstanding();
            const first = if (kept.len > 0) kept[0].number else decisions + 1;
            try expectEqual(std.mem.min(u64, &seen), @min(first - 1, decisions));
        }
    }
}

test "a commit reaches the others when the first member takes no more bytes" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const full = &court.peers[0].?.stream;
    while (!full.is_full(.usual)) try full.send_raw(&@as([4096]u8, @splat(0)));
    for (0..peers_max) |index| try court.say(index, .{ .done = court.vote(5, 0) });
    try court.listen();
    try expect(court.peers[0] == null);
    try expectEqual(1, court.commits[1]);
    try expectEqual(1, court.commits[2]);
}

test "a journal in which an epoch has the same member twice is refused" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        _ = log.record(&court.c.run, .{ .activation = .{
            .told = .{
                .group = 0,
                .round = court.round,
                .epoch = 2,
                .safe_point = 2,
                .members = .of(&.{ id_of(0), id_of(1), id_of(0) }),
                .joined = 0,
                .left = .of(&.{}),
            },
            .instances = .of(&.{ 1, 2, 1 }),
        } });
        try shelf.write(&court);
    }
    try std.testing.expectError(error.BadRecord, shelf.start(&court));
}

test "what is given up after a restart, and nobody knows to be committed, is aborted for all" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    for (0..peers_max) |index| {
        try court.come_back(index, 1);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
    try court.give_up(2, 5);
    try court.report(0, 5, 1);
    for (0..peers_max) |index| try court.report_end(index);
    try court.listen();
    for (court.aborts[0..peers_max]) |aborts| try expectEqual(1, aborts);
}

test "a round is released when a member that it waits for has a new connection, and begins again" {
    // Method: one leaves, so that the two others are asked to prepare. One of these comes back on a
    // new connection, on which it has been asked nothing.
    for ([_]bool{ false, true }) |asked| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try court.next_round();
        for (0..2) |index| try court.report_end(index);
        const round = court.round;
        if (asked) for (0..2) |index| try court.prepare(index, round, true);
        const phase = court.c.run.groups.items[0].phase;
        try expectEqual(asked, phase == .ask);
        court.hang_up(1);
        try court.come_back(1, court.attempt);
        try court.say(1, .{ .join_end = .{} });
        try court.next_round();
        try expectEqual(round, court.released[0]);
        try expect(court.round > round);
        try expectEqual(.prepare, court.c.run.groups.items[0].phase);
    }
}

test "a member that comes back says anew what it knows of its links, not what others know" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const told = [_][2]usize{ .{ 0, 1 }, .{ 1, 0 }, .{ 1, 2 } };
    for (told) |pair| try court.say(pair[0], .{ .link_told = .{
        .other = id_of(pair[1]),
        .group = 0,
        .health = .silent,
    } });
    const broken = &court.c.run.groups.items[0].broken;
    try expectEqual(told.len, broken.claims.items.len);
    court.hang_up(1);
    try court.come_back(1, court.attempt);
    try court.say(1, .{ .join_end = .{} });
    try expectEqual(1, broken.claims.items.len);
    try expect(broken.claims.items[0].from.eql(id_of(0)));
}

test "a group below its least world size commits nothing that all others have voted for" {
    for ([_]u32{ 2, 3 }) |least| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        court.c.run.options.min_world_size = least;
        try court.form();
        for (0..2) |index| try court.done(index, 5, 0);
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try court.listen();
        for (court.commits[0..2], court.aborts[0..2]) |commits, aborts| {
            try expectEqual(@intFromBool(least == 2), commits);
            try expectEqual(@intFromBool(least == 3), aborts);
        }
        if (least == 3) try expectEqual(.too_few_peers, court.last_abort.?.reason);
    }
}

test "members who are too few for anything else still agree on safe points" {
    const tag = limits.admit_tag;
    for ([_]bool{ false, true }) |voted_before| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        court.c.run.options.min_world_size = 3;
        try court.form();
        if (voted_before) for (0..2) |index| try court.done(index, tag, 0);
        if (!voted_before) try court.called(0, tag);
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try court.listen();
        if (!voted_before) {
            for (0..2) |index| try court.report(index, tag, 1);
            for (0..2) |index| try court.report_end(index);
            try court.listen();
            for (0..2) |index| try court.done(index, tag, 0);
            try court.listen();
        }
        try expectEqual(0, court.aborts[0]);
        try expectEqual(1, court.commits[0]);
    }
}

test "an epoch with too few members commits nothing after a restart, whatever they have voted" {
    // Method: after a loss two members vote in the second attempt; the coordinator dies with their
    // votes. Where two are too few its successor aborts, else both vote again.
    for ([_]u32{ 2, 3 }) |least| {
        var shelf: Shelf = .{ .min_world_size = least };
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart_after(&shelf, &court, lose_third);
        defer court.c.destroy();
        for (0..2) |index| {
            try court.come_back_alive(index, 2, .full(2));
            try court.say(index, .{ .join_end = .{} });
        }
        try court.listen();
        for (0..2) |index| try court.report_vote(index, 5, 1, 2);
        for (0..2) |index| try court.report_end(index);
        for (0..2) |index| try court.done(index, 5, 0);
        try court.listen();
        for (court.commits[0..2], court.aborts[0..2]) |commits, aborts| {
            try expectEqual(@intFromBool(least == 2), commits);
            try expectEqual(@intFromBool(least == 3), aborts);
        }
        if (least == 3) try expectEqual(.too_few_peers, court.last_abort.?.reason);
    }
}

fn lose_third(court: *Court) !void {
    try court.say(2, .{ .leave = .{ .group = 0 } });
}

test "a member that asks for a group too many keeps those that it has" {
    // Method: one member joins as many groups as it may; the next is refused. Its account of that
    // one, as of each, is no breach, for which it would be out of all groups.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (1..limits.groups_per_peer_max + 2) |number| {
        var name: [8]u8 = undefined;
        const text = try std.fmt.bufPrint(&name, "g{d}", .{number});
        try court.say(0, .{ .join = .{
            .name = .of(text),
            .address = .of("a:1"),
            .address_key = @splat(0),
            .initial_world_size = 2,
            .round = 0,
            .stop_round = 0,
        } });
        try court.say(0, .{ .join_end = .{} });
        try court.listen();
        try expectEqual(number >= limits.groups_per_peer_max, court.refused);
    }
    try expect(court.peers[0] != null);
    for (0..peers_max) |index| try court.done(index, 5, 0);
    try court.listen();
    for (court.commits[0..peers_max]) |commits| try expectEqual(1, commits);
}
