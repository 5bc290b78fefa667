//! Members that lie, and memory that runs out: the cost to the liar, and that it costs nobody else
//! anything. The coordinator is that of court_test.zig; a Member is told messages directly. Rules
//! that honest members see: coordinator_test.zig. Worlds of honest peers: session/world_test.zig
//! and tests/sim.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const member_file = @import("member.zig");
const status = @import("status.zig");
const Member = member_file.Member;
const Op = member_file.Op;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;

const ms = court_file.ms;
const peers_max = court_file.peers_max;
const descriptor = court_file.descriptor;
const id_of = court_file.id_of;
const Court = court_file.Court;
const Shelf = court_file.Shelf;
const restart = court_file.restart;
const restart_after = court_file.restart_after;
const report_nothing = court_file.report_nothing;

test "the log says who entered an epoch, who is out of it, and why" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.expect_said("info epoch 1 begins with world size 3 (joined: 01000000, 02000000, " ++
        "03000000; left: nobody) in group g");
    court.peers[2].?.peer.?.label = .shown("node7:42");
    court.hang_up(2);
    try court.expect_said("info peer 03000000 (node7:42) is away: its connection to the " ++
        "coordinator closed");
    try court.say_closed(0, 2);
    try court.say_closed(1, 2);
    try court.expect_said("info peer 03000000 (node7:42) is out of epoch 1: it is away, and its " ++
        "lanes to other members are closed; 2 of 3 members remain in group g");
    try recover(&court);
    try court.expect_said("info epoch 2 begins with world size 2 (joined: nobody; left: " ++
        "03000000 (node7:42)) in group g");
    try court.say(1, .{ .leave = .{ .group = 0 } });
    try court.expect_said("info peer 02000000 is out of epoch 2: it left; 1 of 2 members " ++
        "remain in group g");
    try court.connect(2);
    try court.put(2, &@as([64]u8, @splat(0xff)));
    try court.expect_said("info peer 03000000 does not wait any more: it broke the protocol " ++
        "(TooLong); group g");
}

test "who makes up more aborts than the others can have seen is let go, and nobody else" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    // The honest ones give up now and then, too, and have said nothing yet.
    for (0..50) |tag| try court.give_up(0, 1_000_000 + tag);
    var invented: u64 = 0;
    while (court.peers[2] != null) : (invented += 1) {
        try expect(invented <= limits.decisions_kept_max);
        try court.give_up(2, invented);
    }
    try expectEqual(limits.decisions_kept_max + 1, invented);
    for (50..100) |tag| try court.give_up(1, 1_000_000 + tag);
    try expect(court.peers[0] != null and court.peers[1] != null);
    try court.listen();
    try expectEqual(limits.decisions_kept_max + 100, court.aborts[0]);
}

test "who never says what it has seen is let go before what is kept for it costs others" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    var decisions: u64 = 0;
    for (0..40) |_| { // 20 s
        for (0..30) |_| {
            try court.give_up(0, decisions);
            decisions += 1;
        }
        try court.pass(500 * ms);
        try court.listen();
        for (0..2) |index| try court.say_seen(index, decisions);
        if (court.peers[2] == null) break;
    }
    try expect(court.peers[0] != null and court.peers[1] != null);
    try expectEqual(null, court.peers[2]);
}

test "what members say of their links, as often as they like, is no line of the log" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const before = court.said_bytes;
    for (0..100) |turn| try court.say(2, .{ .link_told = .{
        .other = id_of(0),
        .group = 0,
        .health = if (turn % 2 == 0) .silent else .up,
    } });
    var lines = std.mem.splitScalar(u8, court.said[before..court.said_bytes], '\n');
    while (lines.next()) |line| try expect(line.len == 0 or std.mem.startsWith(u8, line, "debug "));
}

test "what one member says of its links has ways looked for now and then, and not for each word" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const look = &court.group().look;
    var looks: usize = 0;
    const began = court.now;
    for (0..2000) |turn| {
        try court.say(2, .{ .link_told = .{
            .other = id_of(0),
            .group = 0,
            .health = if (turn % 2 == 0) .silent else .up,
        } });
        court.now += ms;
        const before = look.not_before;
        court.c.tick(court.now);
        looks += @intFromBool(look.not_before != before);
    }
    try expect(looks > 10 and looks <= (court.now - began) / (20 * ms) + 1);
    // The same again has nobody look at all.
    try court.pass(1000 * ms);
    for (0..2) |turn| {
        try expectEqual(base.never, look.at);
        try court.say(2, .{ .link_told = .{ .other = id_of(0), .group = 0, .health = .silent } });
        try expectEqual(turn > 0, look.at == base.never);
        try court.pass(1000 * ms);
    }
}

test "a newcomer that repeats itself has ways looked for once, and another member's words later" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(3);
    try court.next_round();
    const look = &court.group().look;
    try court.say(2, .{ .link_told = .{ .other = id_of(0), .group = 0, .health = .silent } });
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.prepare(3, court.round, false);
    const first = look.not_before;
    try expect(first > court.now);
    court.now += 5 * ms; // 2 ms for each of four
    try court.say(2, .{ .link_told = .{ .other = id_of(1), .group = 0, .health = .silent } });
    try court.prepare(3, court.round, true);
    try expectEqual(.prepare, court.group().phase); // the round waits for the next look
    try expectEqual(first, look.not_before);
    try expect(court.c.next_deadline() <= first);
    court.now = first;
    court.c.tick(court.now);
    try expectEqual(.ask, court.group().phase);
    try expect(look.not_before > first);
}

test "what members say of links that are none of theirs changes nothing, or ends them" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const group = court.c.run.groups.items[0];
    // About a stranger: others may have known it once.
    try court.say(2, .{ .link_told = .{
        .other = id_of(8),
        .group = 0,
        .health = .down,
    } });
    try expectEqual(0, group.broken.claims.items.len);
    // The same again and again is kept once.
    for (0..1000) |_| for (0..2) |other| try court.say(2, .{ .link_told = .{
        .other = id_of(other),
        .group = 0,
        .health = .silent,
    } });
    try expectEqual(2, group.broken.claims.items.len);
    // A link that is silent costs nobody its place, and no attempt where nothing goes around it.
    try court.pass(2000 * ms);
    try court.listen();
    try expectEqual(1, court.attempt);
    for (court.peers[0..peers_max]) |peer| try expect(peer != null);
    // The peer that reaches nobody leaves, and its claims go with it.
    for (0..2) |other| try court.say(2, .{ .link_told = .{
        .other = id_of(other),
        .group = 0,
        .health = .down,
    } });
    try court.pass(500 * ms);
    try expectEqual(0b011, court.members_alive());
    try expectEqual(0, group.broken.claims.items.len);
    // About itself: no honest one says that. Nor in a group that it is not in.
    try court.say(1, .{ .link_told = .{ .other = id_of(1), .group = 0, .health = .down } });
    try expectEqual(null, court.peers[1]);
    try court.say(0, .{ .link_told = .{ .other = id_of(1), .group = 9, .health = .down } });
    try expectEqual(null, court.peers[0]);
}

/// A member has left, and the others are asked for safe points; where they meet.
fn meet(court: *Court, counts: [2]u64) !u64 {
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try court.next_round();
    for (0..2) |index| try court.report_end(index);
    for (0..2) |index| try court.prepare(index, court.round, true);
    for (0..2, counts) |index, count| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = count,
    } });
    try court.listen();
    try expectEqual(2, court.epoch);
    return court.safe_point;
}

test "a member that claims to be far ahead of all others does not keep them waiting" {
    const ahead = limits.safe_points_ahead_max;
    const Case = struct { counts: [2]u64, committed_at: u64, meet: u64 };
    for ([_]Case{
        .{ .counts = .{ 12, 15 }, .committed_at = 12, .meet = 16 },
        .{ .counts = .{ 12, limits.safe_points_max - 1 }, .committed_at = 11, .meet = 13 + ahead },
        .{ .counts = .{ limits.safe_points_max - 1, 12 }, .committed_at = 11, .meet = 13 + ahead },
        // One that says that it is behind does not pull the others back from what was committed.
        .{ .counts = .{ 0, 20_000 }, .committed_at = 19_990, .meet = 20_001 },
        // All lie alike: the group has come to the end of its safe points, and nothing overflows.
        .{
            .counts = @splat(limits.safe_points_max - 1),
            .committed_at = limits.safe_points_max - 1,
            .meet = limits.safe_points_max,
        },
    }) |case| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        var last = descriptor;
        last.safe_points = case.committed_at;
        for (0..peers_max) |index| try court.say(index, .{ .done = .{
            .group = 0,
            .epoch = 1,
            .attempt = 1,
            .op = .{ .tag = 5, .sequence = 0 },
            .descriptor = last,
            .digest = 7,
            .decisions_seen = 0,
        } });
        try expectEqual(case.meet, try meet(&court, case.counts));
    }
}

test "a number beyond its bound costs whoever sends it its place, and nobody else anything" {
    const Case = struct { name: []const u8, message: control.Message };
    var op_at_end = descriptor;
    op_at_end.safe_points = limits.safe_points_max;
    const done: control.Done = .{
        .group = 0,
        .epoch = 1,
        .attempt = 1,
        .op = .{ .tag = 5, .sequence = 0 },
        .descriptor = descriptor,
        .digest = 7,
        .decisions_seen = 0,
    };
    var late = done;
    late.descriptor = op_at_end;
    var large = done;
    large.descriptor.count = limits.elements_max + 1;
    var last = done;
    last.op.sequence = limits.sequences_max + 1;
    for ([_]Case{
        .{ .name = "safe points of a vote", .message = .{ .done = late } },
        .{ .name = "elements of a vote", .message = .{ .done = large } },
        .{ .name = "the sequence of a vote", .message = .{ .done = last } },
        .{ .name = "safe points", .message = .{ .safe_points = .{
            .group = 0,
            .round = 1,
            .count = limits.safe_points_max,
        } } },
        .{ .name = "a group", .message = .{ .leave = .{ .group = limits.groups_max } } },
    }) |case| {
        errdefer std.debug.print("{s}\n", .{case.name});
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        try court.say(2, case.message);
        try expectEqual(null, court.peers[2]);
        try expect(court.peers[0] != null and court.peers[1] != null);
        try court.expect_said("info peer 03000000 is gone: it broke the protocol (OutOfRange)");
    }
}

test "who does not say how many safe points it has passed does not stop the others for long" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try court.next_round();
    for (0..2) |index| try court.report_end(index);
    for (0..2) |index| try court.prepare(index, court.round, true);
    try court.say(0, .{ .safe_points = .{ .group = 0, .round = court.round, .count = 1 } });
    try court.listen();
    try court.pass(court.c.run.options.silence_ns - 500 * ms);
    try expect(court.peers[1] != null);
    try court.pass(1000 * ms);
    try expect(court.peers[0] != null);
    try expectEqual(null, court.peers[1]);
    try court.next_round();
    try expectEqual(.prepare, court.c.run.groups.items[0].phase); // of a round without it
}

test "one member alone cannot have another lost that is away, unless nobody else could notice" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    // Peer 0 is away; the first word of peer 2 is not enough, and saying it again is no other.
    court.hang_up(0);
    for (0..3) |_| try court.say_closed(2, 0);
    try expectEqual(0b111, court.members_alive());
    // Said before it went away it does not count later, either.
    try court.come_back(0, 1);
    try court.say(0, .{ .join_end = .{} });
    try court.say_closed(2, 0);
    try court.pass(1000 * ms);
    court.hang_up(0);
    try court.say_closed(1, 0);
    try expectEqual(0b111, court.members_alive());
    try court.say_closed(2, 0);
    try expectEqual(0b110, court.members_alive());
    // In a group of two, the other one is the only witness.
    court.hang_up(1);
    try court.say_closed(2, 1);
    try expectEqual(0b100, court.members_alive());
    // Nobody is a witness of itself.
    try court.say_closed(2, 2);
    try expectEqual(null, court.peers[2]);
}

test "a member that says its own link to one that is away is broken is no better a witness for it" {
    // Goal: of three, the one that takes itself out of those who could notice does not remain as
    // the only one whose word is needed. Method: it says so before the other goes away, and after.
    for ([_]bool{ true, false }) |before| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        if (!before) court.hang_up(0);
        try court.say(2, .{ .link_told = .{ .other = id_of(0), .group = 0, .health = .silent } });
        if (before) court.hang_up(0);
        try court.say_closed(2, 0);
        try expectEqual(0b111, court.members_alive());
        try court.say_closed(1, 0);
        try expectEqual(0b110, court.members_alive());
    }
}

test "of members that die at once none waits for the word of another" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.hang_up(1);
    try court.say_closed(0, 1);
    try expectEqual(0b111, court.members_alive());
    court.hang_up(2); // who could have objected
    try expectEqual(0b101, court.members_alive());
    try court.say_closed(0, 2);
    try expectEqual(0b001, court.members_alive());
}

test "after a restart the first member that is back cannot have those lost that are still away" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try restart(&shelf, &court);
    defer court.c.destroy();
    try court.come_back(2, 1);
    try court.say(2, .{ .join_end = .{} });
    for (0..2) |other| try court.say_closed(2, other);
    try expectEqual(0b111, court.members_alive());
}

test "one that calls the same operation twice, differently, is let go" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.done(2, 5, 0);
    try court.stumble();
    var other = court.running(5, 1);
    other.descriptor.count = 99;
    try court.say(2, .{ .report_op = other });
    try expectEqual(null, court.peers[2]);
}

test "members that contradict each other about chunks end the operation, not each other" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.stumble();
    try court.report(0, 5, 0); // a count of zero is a count
    try court.report(1, 5, 4);
    try court.report(2, 5, 4);
    for (0..peers_max) |index| try court.report_end(index);
    try court.listen();
    for (0..peers_max) |index| {
        try expect(court.peers[index] != null);
        try expectEqual(1, court.aborts[index]);
    }
    try expectEqual(.contradiction, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(0)));
    try expect(court.last_abort.?.other.eql(id_of(1)));
    // The group goes on.
    for (0..peers_max) |index| try court.done(index, 6, 0);
    try court.listen();
    try expectEqual(1, court.commits[1]);
}

test "a range beyond the chunks of its own report is a lie of its sender" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.stumble();
    try court.report(0, 5, 8);
    var lie = court.running(5, 4);
    lie.settled = .of(&.{.{ .begin = 0, .end = 5, .reduced_attempt = 1 }});
    try court.say(1, .{ .report_op = lie });
    try expectEqual(null, court.peers[1]);
    try expect(court.peers[0] != null);
}

test "ranges of a report that go back are a lie: they would cost more than there are chunks" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.stumble();
    var lie = court.running(5, 8);
    lie.settled = .of(&.{
        .{ .begin = 0, .end = 8, .reduced_attempt = 1 },
        .{ .begin = 7, .end = 8, .reduced_attempt = 1 },
    });
    try court.say(1, .{ .report_op = lie });
    try expectEqual(null, court.peers[1]);
    try expect(court.peers[0] != null);
}

/// Operation 5 is committed, and 6 aborted.
fn decide_both(court: *Court) !void {
    for (0..peers_max) |index| try court.done(index, 5, 0);
    try court.give_up(0, 6);
}

test "what was decided stays so, whatever members say after a restart" {
    // Method: member 1 has heard that 5 was committed and 6 aborted. Member 2 says that it has not
    // voted for 5 and has for 6, and gives up 5 before all are back.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try restart_after(&shelf, &court, decide_both);
    defer court.c.destroy();
    try court.come_back_seen(2, 1, 0);
    try court.say(2, .{ .join_end = .{} });
    try court.give_up(2, 5);
    for (0..2) |index| {
        try court.come_back_seen(index, 1, if (index == 1) 2 else 0);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
    try court.report_vote(0, 5, 1, 1);
    try court.report_vote(2, 5, 1, 0);
    try court.report_vote(0, 6, 1, 1);
    try court.report_vote(2, 6, 1, 1);
    for (0..peers_max) |index| try court.report_end(index);
    try court.listen();
    for (court.commits[0..peers_max], court.aborts[0..peers_max], 0..) |commits, aborts, index| {
        try expectEqual(@intFromBool(index != 1), commits);
        try expectEqual(@intFromBool(index != 1), aborts);
    }
    try expectEqual(5, court.last_commit.?.op.tag);
    try expectEqual(6, court.last_abort.?.op.tag);
}

test "a journal that could not be written is tried again, and then holds what it had missed" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        shelf.full = true;
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try expectEqual(.failed, court.c.run.journal_state);
        for (0..3) |_| {
            try court.pass_answering(court.c.run.options.journal_retry_ns, &.{ 0, 1 });
            try expectEqual(.failed, court.c.run.journal_state);
        }
        const json = try court.status();
        try expect(std.mem.indexOf(u8, json, "\"journal\":\"failed\"") != null);
        shelf.full = false;
        try court.pass(court.c.run.options.journal_retry_ns);
        try expectEqual(.ok, court.c.run.journal_state);
        try expectEqual(1, std.mem.count(u8, court.said[0..court.said_bytes], "err the run cont"));
        try court.expect_said("warning the journal is written again: from now on the run " ++
            "survives the end of this coordinator");
    }
    try shelf.start(&court);
    defer court.c.destroy();
    const epoch = court.c.run.groups.items[0].current().?;
    try expect(epoch.alive.has(0) and epoch.alive.has(1) and !epoch.alive.has(2));
}

test "without memory at any step of a round and a loss, the group goes on once there is some" {
    // Goal: no failed allocation leaves a group stopped. Method: each allocation of the coordinator
    // fails in turn, for one call; afterwards there is memory and time, and those who are still
    // connected must be members of an epoch that runs and commits.
    var fail_at: usize = 0;
    var failed: usize = 0;
    while (true) : (fail_at += 1) {
        var failing: std.testing.FailingAllocator = .init(gpa, .{});
        var court: Court = undefined;
        try court.init(failing.allocator());
        defer court.c.destroy();
        for (0..peers_max - 1) |index| try court.connect(index);
        failing.fail_index = failing.alloc_index + fail_at;
        const induced = try hurdles(&court, &failing);
        if (!induced) break;
        failed += 1;
        failing.fail_index = std.math.maxInt(usize);
        try recover(&court);
    }
    try expect(failed > 10);
}

/// A round, a new attempt and a loss. True once an allocation has failed, and then it stops there.
fn hurdles(court: *Court, failing: *std.testing.FailingAllocator) !bool {
    try no_memory(court, peers_max - 1, court.connect(peers_max - 1));
    if (failing.has_induced_failure) return true;
    try court.listen();
    for (0..peers_max) |index| {
        try try_say(court, index, .{ .prepared = .{
            .group = 0,
            .round = court.round,
            .entering = true,
            .missing = .of(&.{}),
        } });
        if (failing.has_induced_failure) return true;
    }
    try court.listen();
    for (0..peers_max) |index| {
        try try_say(court, index, .{ .activated = .{ .group = 0, .epoch = court.epoch } });
        if (failing.has_induced_failure) return true;
    }
    try try_say(court, 0, .{ .link_lost = .{
        .other = id_of(1),
        .group = 0,
        .epoch = court.epoch,
        .attempt = court.attempt,
        .state = .broken,
    } });
    court.now += 500 * ms;
    court.c.tick(court.now);
    if (failing.has_induced_failure) return true;
    try court.listen();
    court.hang_up(2);
    return failing.has_induced_failure;
}

fn try_say(court: *Court, index: usize, message: control.Message) !void {
    try no_memory(court, index, court.say(index, message));
}

/// Without memory for the bytes themselves a driver ends the connection.
fn no_memory(court: *Court, index: usize, result: anytype) !void {
    result catch |err| {
        if (err != error.OutOfMemory) return err;
        const connection = court.peers[index] orelse return;
        court.peers[index] = null;
        court.c.closed(court.now, connection);
    };
}

/// Everybody who is still there does what the coordinator asks, as a member would.
fn recover(court: *Court) !void {
    for (0..20) |_| { // 10 s, less than a round may take
        for (court.peers[0..peers_max], 0..) |maybe, index| {
            if (maybe == null and court.epoch == 0) try court.connect(index);
        }
        try court.pass(500 * ms);
        var any = false;
        for (0..peers_max) |index| {
            if (court.peers[index] == null) continue;
            any = true;
            const rest = try court.told(index);
            defer gpa.free(rest);
            var offset: usize = 0;
            while (offset < rest.len) {
                if (court.peers[index] == null) break;
                const welcome = wire.hello.encode_answer(.welcome);
                if (std.mem.startsWith(u8, rest[offset..], &welcome)) {
                    offset += wire.hello.answer_bytes;
                    continue;
                }
                const head = rest[offset..][0..control.header_bytes];
                const total = control.header_bytes + try control.body_length(head);
                const message = try control.decode(rest[offset..][0..total]);
                court.hear(index, message);
                try court.obey(index, message);
                offset += total;
            }
        }
        if (!any) return; // all were let go, and told so by that
    }
    const group = court.c.run.groups.items[0];
    try expectEqual(.idle, group.phase);
    const epoch = group.current().?;
    try expect(epoch.running);
    var alive: u32 = 0;
    for (court.peers[0..peers_max]) |maybe| alive += @intFromBool(maybe != null);
    try expectEqual(alive, epoch.alive.count());
    const before = epoch.committed;
    for (0..peers_max) |index| try court.say(index, .{ .done = .{
        .group = 0,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
        .op = .{ .tag = 9, .sequence = 0 },
        .descriptor = descriptor,
        .digest = 1,
        .decisions_seen = 0,
    } });
    try expectEqual(before + 1, epoch.committed);
}

test "a name that no terminal should get, and an address of no host, are refused" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const before = court.c.run.groups.items.len;
    const said_before = court.said_bytes;
    for ([_][2][]const u8{
        .{ "\xffg", "a:1" },
        .{ "h\n2026-01-01 WARNING forged", "a:1" },
        .{ "h\x1b[2J", "a:1" },
        .{ "h\u{202e}", "a:1" },
        .{ "h", "\xff:1" },
        .{ "h", "[/red]:1" },
        .{ "h", "a\n:1" },
        .{ "h", "a" },
        .{ "h", "224.0.0.1:1" },
        .{ "h", "255.255.255.255:1" },
        .{ "h", "" },
    }) |pair| {
        court.refused = false;
        try court.say(2, .{ .join = .{
            .name = .of(pair[0]),
            .address = .of(pair[1]),
            .address_key = @splat(0),
            .initial_world_size = 1,
            .round = 0,
            .stop_round = 0,
        } });
        try court.say(2, .{ .join_end = .{} });
        try court.listen();
        try expect(court.refused);
    }
    try expect(court.peers[2] != null);
    try expectEqual(before, court.c.run.groups.items.len);
    try expectEqual(said_before, court.said_bytes);
    const json = try court.status();
    const parsed = try std.json.parseFromSlice(std.json.Value, gpa, json, .{});
    defer parsed.deinit();
    const group = parsed.value.object.get("groups").?.array.items[0].object;
    try std.testing.expectEqualStrings("g", group.get("name").?.string);
    for (group.get("epochs").?.array.items[0].object.get("members").?.array.items) |member| {
        try std.testing.expectEqualStrings("a:1", member.object.get("address").?.string);
    }
}

test "the id of zeros, which stands for nobody, is refused, and a status needs no other" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for ([_]wire.hello.Purpose{ .control, .status }) |purpose| {
        try court.knock(0, .{
            .purpose = purpose,
            .run_id = @splat(1),
            .from = .none,
        });
        try expectEqual(purpose == .status, court.peers[0] != null);
        try expectEqual(0, court.c.run.peers.items.len);
    }
}

test "a run id that differs in one bit, wherever it is, is of another run" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..8 * @sizeOf(base.RunId)) |bit| {
        var run_id: base.RunId = @splat(1);
        run_id[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        try court.knock(0, .{
            .purpose = .control,
            .run_id = run_id,
            .from = id_of(0),
        });
        try expectEqual(null, court.peers[0]);
        try expectEqual(0, court.c.run.peers.items.len);
    }
}

test "the status says who is alive" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for ([_]usize{ 0, 1 }) |dead| {
        const json = try court.status();
        try expectEqual(dead, std.mem.count(u8, json, "\"alive\":false"));
        try expectEqual(peers_max - dead, std.mem.count(u8, json, "\"alive\":true"));
        try court.say(2, .{ .leave = .{ .group = 0 } });
    }
}

test "a status that does not fit into a message is cut, and a large one is not made each time" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const first = try court.status();
    try expect(std.mem.endsWith(u8, first, "\"cut\":false}"));
    // Small ones are always new.
    court.now += 1;
    _ = try court.status();
    try expectEqual(court.now, court.c.run.status.made_at);
    const group = court.c.run.groups.items[0];
    const claims = 40_000;
    for (0..claims) |index| try group.broken.claims.append(gpa, .{
        .from = .from_int(1),
        .to = .from_int(index + 2),
        .health = .silent,
    });
    const made_at = court.now;
    const large = try status.get(&court.c.run, made_at);
    try expect(large.len < limits.control_message_bytes_max);
    const parsed = try std.json.parseFromSlice(std.json.Value, gpa, large, .{});
    defer parsed.deinit();
    try expect(parsed.value.object.get("cut").?.bool);
    const shown = parsed.value.object.get("groups").?.array.items[0].object;
    const told = shown.get("broken_links").?.array.items.len;
    try expect(told > 1000 and told < claims);
    for ([_]u64{ 249, 251 }) |later_ms| {
        court.now = made_at + later_ms * std.time.ns_per_ms;
        _ = try court.status();
        try expectEqual(if (later_ms < 250) made_at else court.now, court.c.run.status.made_at);
    }
}

test "who has no part in a message, or names an impossible one, has no word in it and is let go" {
    const pair: base.Pair = .{ .src = 0, .dst = 1 };
    const Lie = enum { votes, gives_up, contradicts, to_itself, to_nobody, all_reduce };
    for (std.enums.values(Lie)) |lie| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        var vote: control.Done = .{
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .op = .{ .tag = pair.tag(5), .sequence = 0 },
            .descriptor = descriptor,
            .digest = 0,
            .decisions_seen = 0,
        };
        vote.descriptor.kind = .send_recv;
        const liar = 2; // ranks are in the order of the ids
        switch (lie) {
            .votes => {},
            .gives_up => try court.give_up(liar, pair.tag(5)),
            .contradicts => try court.say(liar, .{ .mismatch_seen = .{
                .group = 0,
                .epoch = court.epoch,
                .op = vote.op,
                .mine = vote.descriptor,
                .other = id_of(0),
                .theirs = vote.descriptor,
            } }),
            .to_itself => vote.op.tag = (base.Pair{ .src = 2, .dst = 2 }).tag(5),
            .to_nobody => vote.op.tag = (base.Pair{ .src = 2, .dst = peers_max }).tag(5),
            .all_reduce => {
                vote.op.tag = (base.Pair{ .src = 2, .dst = 1 }).tag(5);
                vote.descriptor.kind = .all_reduce;
            },
        }
        try court.say(liar, .{ .done = vote });
        try expectEqual(null, court.peers[liar]);
        // Nobody else is the worse for it: the message of the two is committed.
        vote.op.tag = pair.tag(5);
        vote.descriptor.kind = .send_recv;
        try court.listen();
        for (0..2) |index| try court.report_end(index);
        vote.attempt = court.attempt;
        for (0..2) |index| try court.say(index, .{ .done = vote });
        try court.listen();
        for (0..2) |index| try expectEqual(1, court.commits[index]);
    }
}

test "an abort of a message of others is counted, and not kept" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    const others: base.Pair = .{ .src = 1, .dst = 2 };
    const own: base.Pair = .{ .src = 1, .dst = 0 };
    try w.abort(2, others.tag(7), 0, 1);
    try expectEqual(0, w.member.current.?.aborts.items.len);
    try expectEqual(1, w.member.current.?.decisions_seen);
    try w.abort(2, own.tag(7), 0, 2);
    var op: Op = undefined;
    try expect((try w.call(&op, own.tag(7))).?.peer.eql(.from_int(2)));
}

// ---- a member that is told too much

/// A member in epoch 1 of three peers, with nothing behind it.
pub const Witness = struct {
    member: Member,
    sent: u32 = 0,
    gave_up: u32 = 0,
    called: u32 = 0,
    reported: u32 = 0,
    failure: ?member_file.Failure = null,

    pub fn init(w: *Witness) !void {
        w.* = .{ .member = .init(gpa, 0, .from_int(1), .{ .ctx = w, .vtable = &.{
            .send = send,
            .stop = stop,
            .chunks = chunks,
            .start = start,
            .finished = finished,
            .resolved = resolved,
            .admitted = admitted,
            .closed = closed,
        } }) };
        const ids = [_]base.PeerId{ .from_int(1), .from_int(2), .from_int(3) };
        try w.member.on_activate(&.{
            .group = 0,
            .round = 1,
            .epoch = 1,
            .safe_point = 1,
            .members = .of(&ids),
            .joined = 3,
            .left = .of(&.{}),
        });
        w.member.admit();
    }

    pub fn abort(w: *Witness, maker: u128, tag: u64, sequence: u64, decision: u64) !void {
        try w.member.on_abort(&.{
            .group = 0,
            .epoch = 1,
            .op = .{ .tag = tag, .sequence = sequence },
            .reason = .cancelled,
            .peer = .from_int(maker),
            .other = .none,
            .descriptor = descriptor,
            .other_descriptor = descriptor,
            .decision = decision,
        });
    }

    /// A new attempt of epoch 1, in which everybody alive reaches everybody.
    pub fn view(w: *Witness, attempt: u32, alive: base.Mask) !void {
        try w.member.on_view(&.{
            .group = 0,
            .epoch = 1,
            .attempt = attempt,
            .alive = alive,
            .order = .of(&.{}),
            .has_ring = true,
            .hubs = alive,
        });
    }

    /// An operation goes on in this attempt, and nothing of it is kept.
    pub fn resume_op(w: *Witness, attempt: u32, id: control.OpId) !void {
        try w.member.on_resume_op(&.{
            .group = 0,
            .epoch = 1,
            .attempt = attempt,
            .op = id,
            .kept = .of(&.{}),
        });
    }

    /// A call with this tag; what it failed with at once, if it did.
    pub fn call(w: *Witness, op: *Op, tag: u64) !?member_file.Failure {
        op.* = .{ .descriptor = descriptor, .chunks = 1 };
        try w.member.check_start(tag);
        w.failure = null;
        w.member.start(op, tag);
        return w.failure;
    }

    fn from(ctx: *anyopaque) *Witness {
        return @ptrCast(@alignCast(ctx));
    }
    fn send(ctx: *anyopaque, message: control.Message) void {
        if (message == .decisions_seen) from(ctx).sent += 1;
        if (message == .gave_up) from(ctx).gave_up += 1;
        if (message == .called) from(ctx).called += 1;
        if (message == .report_end) from(ctx).reported += 1;
    }
    fn finished(ctx: *anyopaque, _: *Op, failure: ?member_file.Failure) void {
        from(ctx).failure = failure;
    }
    fn chunks(_: *anyopaque, _: *Op) []const u32 {
        return &.{0};
    }
    fn stop(_: *anyopaque, _: u64) void {}
    fn start(_: *anyopaque, _: *Op, _: []const control.KeptRange) void {}
    fn resolved(_: *anyopaque, _: *Op, _: ?bool) void {}
    fn admitted(_: *anyopaque, _: ?member_file.Status) void {}
    fn closed(_: *anyopaque, _: u64) void {}
};

test "a view begins its attempt once, however often it is told" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    for (0..2) |_| {
        try w.view(2, .full(3));
        try expectEqual(1, w.reported);
    }
}

test "between a view and its resume nothing is voted for" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, 7));
    try w.view(2, .full(3));
    w.member.completed(&op, 9);
    try expectEqual(.running, op.state);
    try w.resume_op(2, op.id);
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    w.member.completed(&op, 9);
    try expectEqual(.voted, op.state);
}

test "only the round that has stopped a member lets it go on" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.on_ask(2);
    for ([_]u64{ 1, 2 }, [_]u64{ 2, 0 }) |round, stopped_by| {
        w.member.on_release(round);
        try expectEqual(stopped_by, w.member.stop_round);
    }
}

test "a coordinator that forgets what was voted for is refused" {
    // Found by: pccl-sim fuzz. Method: a broadcast is in doubt when its root is lost; the resume
    // neither names it, nor was it decided before.
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    var op: Op = .{ .descriptor = descriptor, .chunks = 1 };
    op.descriptor.kind = .broadcast;
    op.descriptor.root = .from_int(3);
    try w.member.check_start(7);
    w.member.start(&op, 7);
    w.member.welcomed(0);
    w.member.completed(&op, 9);
    w.member.give_up(&op, .deadline);
    try expectEqual(.in_doubt, op.state);
    const resumed: control.Resume = .{ .group = 0, .epoch = 1, .attempt = 2 };
    try w.view(2, .full(2));
    try std.testing.expectError(error.Unexpected, w.member.on_resume(&resumed));
    try expectEqual(.in_doubt, op.state);
    try expectEqual(0, w.gave_up);
    // Named, it goes on.
    try w.resume_op(2, op.id);
    try w.member.on_resume(&resumed);
    try expectEqual(.in_doubt, op.state);
    try expectEqual(0, w.gave_up);
}

test "a resume of another call under its number does not begin one whose root is lost" {
    // Found by: fresh seed 437580121429. Method: a newcomer's call is resumed, of which nothing is
    // kept, before this member calls a broadcast there.
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    try w.view(2, .full(2));
    try w.resume_op(2, .{ .tag = 7, .sequence = 0 });
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    var op: Op = .{ .descriptor = descriptor, .chunks = 1 };
    op.descriptor.kind = .broadcast;
    op.descriptor.root = .from_int(3);
    try w.member.check_start(7);
    w.member.start(&op, 7);
    try expectEqual(.root_lost, w.failure.?.reason);
    try expectEqual(1, w.gave_up);
}

test "what a resume says of calls to come is of its own attempt" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    for ([_]u32{ 2, 3 }) |attempt| {
        try w.view(attempt, .full(3));
        try expectEqual(0, w.member.current.?.resumes.items.len);
        try w.resume_op(attempt, .{ .tag = 7, .sequence = 0 });
        try expectEqual(1, w.member.current.?.resumes.items.len);
    }
}

test "aborts that a member makes up push out its own, never those of others" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    try w.abort(2, 7, 0, 1);
    const flood = 2 * limits.decisions_kept_max;
    for (0..flood) |index| try w.abort(3, 1000 + index, 0, 2 + index);
    try expectEqual(limits.decisions_kept_max, w.member.current.?.aborts.items.len);
    // Seen decisions have been told without a vote.
    try expectEqual((flood + 1) / limits.decisions_untold_max, w.sent);
    var op: Op = undefined;
    const failure = (try w.call(&op, 7)).?;
    try expect(failure.peer.eql(.from_int(2)));
    const last = (try w.call(&op, 1000 + flood - 1)).?;
    try expect(last.peer.eql(.from_int(3)));
    var waits: Op = undefined;
    try expectEqual(null, try w.call(&waits, 1000));
}

test "a member that is ahead of where the others begin an epoch begins it at its next safe point" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    for (0..10) |_| w.member.admit();
    try expectEqual(11, w.member.safe_points);
    w.member.on_ask(2);
    const ids = [_]base.PeerId{ .from_int(1), .from_int(2) };
    try w.member.on_activate(&.{
        .group = 0,
        .round = 2,
        .epoch = 2,
        .safe_point = 5,
        .members = .of(&ids),
        .joined = 0,
        .left = .of(&.{}),
    });
    w.member.admit();
    try expectEqual(2, w.member.current.?.number);
    try expectEqual(5, w.member.safe_points);
}

test "a peer that gives up again and again while another is away costs it one entry" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    const count = 3 * limits.decisions_kept_max;
    for (0..count) |sequence| try w.abort(2, 7, sequence, 1 + sequence);
    try expectEqual(1, w.member.current.?.aborts.items.len);
    var op: Op = undefined;
    for (0..count) |sequence| {
        const failure = (try w.call(&op, 7)).?;
        try expectEqual(sequence, op.id.sequence);
        try expect(failure.peer.eql(.from_int(2)));
    }
    try expectEqual(0, w.member.current.?.aborts.items.len);
    try expectEqual(null, try w.call(&op, 7));
}

test "what a peer gives up while the coordinator is away is not more than it may tell at once" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    var op: Op = undefined;
    for (0..limits.given_up_max) |_| {
        try expectEqual(null, try w.call(&op, 7));
        w.member.give_up(&op, .cancelled);
    }
    try std.testing.expectError(error.TooManyGivenUp, w.call(&op, 7));
    w.gave_up = 0;
    w.member.present();
    try expectEqual(limits.given_up_max, w.gave_up);
    // Told at once, with as many as the others have not seen from before, they cost it nothing.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..2 * w.gave_up) |tag| try court.give_up(2, tag);
    try expect(court.peers[2] != null);
    // The answers make room.
    try w.abort(1, 7, 0, 1);
    try expectEqual(null, try w.call(&op, 7));
    w.member.give_up(&op, .cancelled);
}

test "an abort of the last sequence there is, which a member makes up, is taken like any other" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    const last = limits.sequences_max;
    for ([_]u64{ last - 2, last - 1, last, last }, 1..) |sequence, decision| {
        try w.abort(2, 7, sequence, decision);
    }
    try expectEqual(1, w.member.current.?.aborts.items.len);
}

test "a view with hubs in a world where nobody has links to all is a coordinator that lies" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.on_ask(2);
    var ids: [limits.full_mesh_max + 1]base.PeerId = undefined;
    for (&ids, 1..) |*id, number| id.* = .from_int(number);
    try w.member.on_activate(&.{
        .group = 0,
        .round = 2,
        .epoch = 2,
        .safe_point = 2,
        .members = .of(&ids),
        .joined = ids.len - 1,
        .left = .of(&.{}),
    });
    var view: control.View = .{
        .group = 0,
        .epoch = 2,
        .attempt = 2,
        .alive = .full(2),
        .order = .of(&.{}),
        .has_ring = true,
        .hubs = .full(1),
    };
    try std.testing.expectError(error.Unexpected, w.member.on_view(&view));
    view.hubs = .empty;
    view.has_ring = false;
    try std.testing.expectError(error.Unexpected, w.member.on_view(&view));
    view.has_ring = true;
    try w.member.on_view(&view);
    try expectEqual(2, w.member.epoch_of(2).?.attempt);
}

test "a view whose paths contradict themselves ends the connection" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    const alive: base.Mask = .full(3);
    const good: control.View = .{
        .group = 0,
        .epoch = 1,
        .attempt = 2,
        .alive = alive,
        .order = .of(&.{}),
        .has_ring = true,
        .hubs = .full(2),
        .shares = .of(&.{ 63, 1, 0 }),
        .plan = .direct,
        .small_bytes = 1000,
    };
    var bad = good;
    bad.plan = .auto;
    try std.testing.expectError(error.Unexpected, w.member.on_view(&bad));
    // Rank 2 is no hub, and the sum of all shares is bounded.
    for ([_][3]u16{ .{ 1, 1, 1 }, .{ 64, 1, 0 }, .{ 0xffff, 0, 0 } }) |shares| {
        bad = good;
        bad.shares = .of(&shares);
        try std.testing.expectError(error.Unexpected, w.member.on_view(&bad));
    }
    try w.member.on_view(&good);
    const paths = &w.member.epoch_of(1).?.paths;
    try std.testing.expectEqualSlices(u8, &.{ 63, 1, 0 }, paths.shares.of[0..3]);
    try expectEqual(.direct, paths.plan);
}

test "a member with more operations in flight than there may be leaves the run" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..limits.operations_in_flight_max) |tag| try court.done(1, tag, 0);
    try expect(court.peers[1] != null);
    try court.done(1, limits.operations_in_flight_max, 0);
    try expectEqual(null, court.peers[1]);
    try expect(court.peers[0] != null and court.peers[2] != null);
}

test "a member with more messages of one direction in flight than there may be leaves the run" {
    for ([_]base.Pair{ .{ .src = 1, .dst = 0 }, .{ .src = 2, .dst = 1 } }) |pair| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        const other: base.Pair = .{ .src = pair.dst, .dst = pair.src };
        for (0..limits.operations_in_flight_max) |number| {
            try court.done(1, number, 0);
            for ([_]base.Pair{ pair, other }) |each| try message_done(&court, each.tag(number));
        }
        for (court.peers[0..peers_max]) |place| try expect(place != null);
        try message_done(&court, pair.tag(limits.operations_in_flight_max));
        try expectEqual(null, court.peers[1]);
        try expect(court.peers[0] != null and court.peers[2] != null);
    }
}

/// Rank 1 says that it is done with its part of a message.
fn message_done(court: *Court, tag: u64) !void {
    var vote: control.Done = .{
        .group = 0,
        .epoch = court.epoch,
        .attempt = court.attempt,
        .op = .{ .tag = tag, .sequence = 0 },
        .descriptor = descriptor,
        .digest = 0,
        .decisions_seen = 0,
    };
    vote.descriptor.kind = .send_recv;
    try court.say(1, .{ .done = vote });
}

test "a member that has seen decisions which nobody made leaves the run" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.give_up(0, 5);
    for ([_]usize{ 0, 2 }) |index| try court.say_seen(index, 1);
    try court.say_seen(1, 2);
    try expectEqual(null, court.peers[1]);
    try expect(court.peers[0] != null and court.peers[2] != null);
}

test "what was decided is not decided again, whoever gives it up" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..peers_max) |index| try court.done(index, 5, 0);
    try court.give_up(1, 5);
    try court.give_up(2, 6);
    try court.give_up(1, 6);
    try court.listen();
    for (court.commits[0..peers_max], court.aborts[0..peers_max]) |commits, aborts| {
        try expectEqual(1, commits);
        try expectEqual(1, aborts);
    }
}

test "a commit of what a member has not voted for is a lie" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, 7));
    try std.testing.expectError(error.Unexpected, w.member.on_commit(&.{
        .group = 0,
        .epoch = 1,
        .op = op.id,
        .attempt = 1,
        .digest = 7,
        .decision = 1,
    }));
}
