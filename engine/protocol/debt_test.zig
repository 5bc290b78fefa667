//! Calls that others wait for: who is named, who is let go, and whose word counts for what. The
//! rules: debt.zig, and member.zig for the messages of a member. The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Op = @import("member.zig").Op;
const Witness = @import("hostile_test.zig").Witness;
const Court = court_file.Court;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = court_file.ms;
const newcomer = court_file.peers_max;

const second = 1000 * ms;
const peers_max = court_file.peers_max;

const tag = 5;
/// One tick more than the warning takes.
const warning_ns = 10 * second + 500 * ms;

fn form_stalled(court: *Court, stall_ns: u64) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    court.c.run.options.stall_ns = stall_ns;
    try court.form();
}

/// Whom the coordinator has named to a member; the ranks as bits.
fn named_to(court: *Court, index: usize) u64 {
    return if (court.stalled[index]) |said| said.missing.words[0] else 0;
}

fn waited_for(court: *const Court) u64 {
    var ranks: u64 = 0;
    for (court.group().epochs.items[0].members, 0..) |*member, rank| {
        if (member.waited_for) ranks |= @as(u64, 1) << @intCast(rank);
    }
    return ranks;
}

/// A message from the first to the second.
const message_tag = (base.Pair{ .src = 0, .dst = 1 }).tag(7);

fn called_message(court: *Court, index: usize) !void {
    var said = court.running(message_tag, 1);
    said.descriptor.kind = .send_recv;
    try court.say(index, .{ .called = .{
        .group = 0,
        .epoch = said.epoch,
        .attempt = said.attempt,
        .op = said.op,
        .descriptor = said.descriptor,
    } });
}

// ---- who is named

test "a member that has not called what most have is named after the warning time, once" {
    // Method: one has voted, as the root of a broadcast does, one says that it waits.
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try court.done(0, tag, 0);
    try court.called(1, tag);
    try court.pass(warning_ns - 500 * ms);
    try court.listen();
    try expectEqual(0, waited_for(&court));
    for (0..2) |index| try expectEqual(0b100, named_to(&court, index)); // callers hear it before
    try expectEqual(0b100, named_to(&court, 2)); // it is asked long before
    const before = court.said_bytes;
    try court.pass(30 * second);
    try court.listen();
    try expectEqual(0b100, waited_for(&court));
    for (0..2) |index| try expectEqual(0b100, named_to(&court, index));
    try court.expect_said("warning peer 03000000 (rank 2) has not called all_reduce (tag 5, " ++
        "sequence 0 of epoch 1), for which 2 of 3 have waited 10 s; group g");
    const lines = std.mem.count(u8, court.said[before..court.said_bytes], "\n");
    try expectEqual(1, lines);
    try expectEqual(0b111, court.members_alive());
}

test "a member that calls in the end is not named any more, and the log says so" {
    var court: Court = undefined;
    try form_stalled(&court, 60 * second);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.pass(30 * second);
    try court.called(2, tag);
    try court.pass(300 * second);
    try court.listen();
    try expectEqual(0, waited_for(&court));
    for (0..2) |index| try expectEqual(0, named_to(&court, index));
    try court.expect_said("warning peer 03000000 (rank 2) of epoch 1 is not waited for any " ++
        "more; group g");
    // However slow it is from here on.
    try expectEqual(0b111, court.members_alive());
}

test "what a single one of three waits for is nobody's fault, but it hears for whom it waits" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    try court.called(0, tag);
    try court.pass(2 * second);
    try court.listen();
    for (0..peers_max) |index| try expectEqual(null, court.stalled[index]);
    try court.pass(second); // the others are asked whether they have called
    try court.listen();
    try expectEqual(0, named_to(&court, 0));
    for (1..peers_max) |index| try expectEqual(0b110, named_to(&court, index));
    try court.pass(3 * second);
    try court.listen();
    try expectEqual(0b110, named_to(&court, 0));
    try court.called(1, tag);
    try court.pass(500 * ms);
    try court.listen();
    try expectEqual(0b100, named_to(&court, 0));
    try court.pass(5 * second);
    try expectEqual(0, waited_for(&court));
    try expectEqual(0b111, court.members_alive());
}

test "callers hear it after five seconds, however late the warning is" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    court.c.run.options.stall_warning_ns = 60 * second;
    for (0..2) |index| try court.called(index, tag);
    try court.pass(4 * second);
    try court.listen();
    try expectEqual(0, named_to(&court, 0));
    try court.pass(1500 * ms);
    try court.listen();
    for (0..2) |index| try expectEqual(0b100, named_to(&court, index));
    try court.pass(50 * second);
    try expectEqual(0, waited_for(&court));
    try court.pass(10 * second);
    try expectEqual(0b100, waited_for(&court));
}

test "links that move nothing of what all have called are named, once, until something moves" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    // While some have not called, no link is to blame.
    for (0..2) |index| try court.called_with(index, tag, .full(index));
    try court.pass(500 * ms);
    const none = "\"stuck_links\":[]";
    try expect(std.mem.indexOf(u8, try court.status(), none) != null);
    try expectEqual(0, std.mem.count(u8, court.said[0..court.said_bytes], "nothing of it moves"));
    const line = "warning all_reduce (tag 5, sequence 0 of epoch 1) stands, though all have " ++
        "called it: nothing of it moves between rank 1 (02000000) and rank 0 (01000000); group g";
    try court.called(2, tag);
    try court.pass(500 * ms);
    const links = "\"stuck_links\":[{\"rank\":1,\"other\":0}]";
    try expect(std.mem.indexOf(u8, try court.status(), links) != null);
    try court.pass(60 * second);
    try court.expect_said(line);
    try expectEqual(1, std.mem.count(u8, court.said[0..court.said_bytes], "nothing of it moves"));
    try court.listen();
    for (0..peers_max) |index| {
        try expect(court.stalled[index].?.missing.is_empty());
        const link = &court.elsewhere[index].slice()[0];
        try expectEqual(1, link.rank);
        try expectEqual(0, link.waits_for);
    }
    // Nobody is let go: it is not known which of the two it is.
    try expectEqual(0b111, court.members_alive());
    // The other end says so, too; then something moves, and nothing again, as often as they like.
    const from_first = base.Mask.full(2).without(&.full(1));
    try court.called_with(0, tag, from_first);
    for (0..3) |_| {
        for (0..2) |index| try court.called(index, tag);
        try court.pass(500 * ms);
        try expect(std.mem.indexOf(u8, try court.status(), none) != null);
        try court.called_with(0, tag, from_first);
        try court.called_with(1, tag, .full(1));
        try court.pass(500 * ms);
        try expect(std.mem.indexOf(u8, try court.status(), none) == null);
    }
    try expectEqual(2, std.mem.count(u8, court.said[0..court.said_bytes], "nothing of it moves"));
}

test "a member that votes has all of the operation, so its links are named no more" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    for (0..peers_max) |index| {
        try court.called_with(index, tag, if (index == 1) .full(1) else .empty);
    }
    try court.done(1, tag, 0);
    try court.pass(500 * ms);
    const none = "\"stuck_links\":[]";
    try expect(std.mem.indexOf(u8, try court.status(), none) != null);
}

test "whoever says that nothing moves to itself, or to a rank that is not there, is out" {
    for ([_]base.Mask{ .full(2), .full(peers_max + 1) }) |stuck| {
        var court: Court = undefined;
        try form_stalled(&court, 0);
        defer court.c.destroy();
        try court.called_with(1, tag, stuck);
        try expectEqual(0b101, court.members_alive());
    }
}

test "the status says who has not called, however few have, and for how long" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try court.called(0, tag);
    const text = try court.status();
    const early = "\"called\":1,\"waits_for\":[],\"not_called\":[]";
    try expect(std.mem.indexOf(u8, text, early) != null);
    try court.pass(6 * second + 500 * ms);
    const later = try court.status();
    const wanted = "\"waits_for\":[],\"not_called\":[1,2],\"waited_ns\":6000000000";
    try expect(std.mem.indexOf(u8, later, wanted) != null);
    for (1..3) |index| try court.called(index, tag);
    try court.pass(500 * ms);
    const last = try court.status();
    const nobody = "\"called\":3,\"waits_for\":[],\"not_called\":[]";
    try expect(std.mem.indexOf(u8, last, nobody) != null);
}

test "of a message only the two count: the one is named, and is not let go on the other's word" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    try called_message(&court, 0);
    try court.pass(60 * second);
    try court.listen();
    try expectEqual(0b010, waited_for(&court));
    try expectEqual(0b010, named_to(&court, 0));
    try expectEqual(null, court.stalled[2]);
    try court.expect_said("warning peer 02000000 (rank 1) has not called its part of a message " ++
        "from rank 0 (01000000) to rank 1 (02000000) (tag 7, sequence 0 of epoch 1), for which " ++
        "1 of 2 have waited 10 s; group g");
    try expectEqual(0b111, court.members_alive());
    try called_message(&court, 1);
    try court.pass(second);
    try expectEqual(0, waited_for(&court));
}

test "who says that it has called what nobody else has a part in is let go" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try called_message(&court, 2);
    try expectEqual(0b011, court.members_alive());
}

test "calls in the log are one line for each member that is waited for, not for each call" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    const before = court.said_bytes;
    for (0..20) |other| for (0..2) |index| try court.called(index, other);
    try court.pass(60 * second);
    const lines = std.mem.count(u8, court.said[before..court.said_bytes], "\n");
    try expectEqual(1, lines);
}

test "what a member calls in a report after a view is called" {
    // Method: the third has never said it in so many words.
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.stumble();
    for (0..peers_max) |index| {
        try court.report(index, tag, 1);
        try court.report_end(index);
    }
    try court.pass(60 * second);
    try expectEqual(0, waited_for(&court));
    try expectEqual(0b111, court.members_alive());
}

test "in each attempt members are asked anew, and told anew whom they wait for" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.pass(warning_ns);
    try court.stumble();
    court.stalled = @splat(null);
    for (0..peers_max) |index| {
        if (index < 2) try court.report(index, tag, 1);
        try court.report_end(index);
    }
    try court.pass(500 * ms);
    try court.listen();
    for (0..peers_max) |index| {
        try expectEqual(0b100, named_to(&court, index));
        try expectEqual(2, court.stalled[index].?.attempt);
    }
}

test "time in which the coordinator was frozen is no time that others have waited" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.pass(5 * second);
    court.now += 100 * second;
    for (0..peers_max) |index| try court.beat(index);
    court.c.tick(court.now);
    try court.pass(9 * second);
    try expectEqual(0, waited_for(&court));
    try court.pass(2 * second);
    try expectEqual(0b100, waited_for(&court));
}

// ---- what those wait in who are waited for

/// All that a member was told of them: rank, tag, the first that each waits for, how many.
fn expect_elsewhere(court: *Court, index: usize, wanted: []const [4]u64) !void {
    const told = court.elsewhere[index].slice();
    try expectEqual(wanted.len, told.len);
    for (wanted, told) |numbers, *waits| try expectEqual(
        numbers,
        [4]u64{ waits.rank, waits.op.tag, waits.waits_for, waits.count },
    );
}

test "members that wait for each other on different tags are told of it, and nobody is blamed" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.called(2, tag + 1);
    try court.pass(6 * second);
    try court.listen();
    for (0..2) |index| try expect_elsewhere(&court, index, &.{.{ 2, tag + 1, 0, 2 }});
    try expect_elsewhere(&court, 2, &.{ .{ 0, tag, 2, 1 }, .{ 1, tag, 2, 1 } });
    const text = try court.status();
    const wanted = "\"elsewhere\":[{\"rank\":2,\"kind\":\"all_reduce\",\"tag\":6," ++
        "\"sequence\":0,\"waits_for\":[0,1]}]";
    try expect(std.mem.indexOf(u8, text, wanted) != null);
    court.stalled = @splat(null);
    try court.pass(30 * second);
    try court.listen();
    for (0..peers_max) |index| try expectEqual(null, court.stalled[index]); // nothing is new
    try court.expect_said("warning peer 03000000 (rank 2) has not called all_reduce (tag 5, " ++
        "sequence 0 of epoch 1), for which 2 of 3 have waited 10 s; it waits in all_reduce (tag " ++
        "6, sequence 0 of epoch 1) for rank 0 (01000000) and 1 more; group g");
    try expectEqual(0b111, court.members_alive());
}

test "the log says of a member that it has not entered the epoch of the call" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try court.connect(peers_max);
    try court.next_round();
    for (0..peers_max + 1) |index| try court.prepare(index, court.round, true);
    for (0..peers_max) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    for ([_]usize{ 0, 1, peers_max }) |index| try court.enter(index);
    for ([_]usize{ 0, 1, peers_max }) |index| try court.called(index, tag);
    try court.pass(warning_ns);
    try court.expect_said("warning peer 03000000 (rank 2) has not called all_reduce (tag 5, " ++
        "sequence 0 of epoch 2), for which 3 of 4 have waited 10 s; it has not entered the " ++
        "epoch, as a member from before does when its program calls admit; group g");
}

test "what a member waits in instead is told again now and then, however often it changes" {
    // Method: a member that calls one tag after the other and gives each up after two seconds.
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    var told: u32 = 0;
    for (0..30) |round| {
        const other = tag + 1 + round;
        try court.called(2, other);
        court.stalled = @splat(null);
        try court.pass(2 * second);
        try court.listen();
        told += @intFromBool(court.stalled[0] != null);
        try court.give_up(2, other);
    }
    try expect(told >= 5 and told <= 13);
}

test "what a member waits in is the one in which it has waited for the longest time" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try court.called(2, tag + 1);
    try court.pass(second);
    try court.called(2, tag + 2);
    for (0..2) |index| try court.called(index, tag);
    try court.pass(7 * second);
    try court.listen();
    try expect_elsewhere(&court, 0, &.{.{ 2, tag + 1, 0, 2 }});
}

test "who has called everything that others wait for waits in nothing that they are told of" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    // All have called this one: it is under way, however long it takes.
    for (0..peers_max) |index| try court.called(index, tag + 1);
    try court.pass(6 * second);
    try court.listen();
    try expectEqual(0b100, named_to(&court, 0));
    try expect_elsewhere(&court, 0, &.{});
}

// ---- who is let go

test "who does not call is let go with the true reason, and the others' operation commits" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    try court.done(0, tag, 0);
    try court.called(1, tag);
    try court.pass(20 * second);
    try expectEqual(0b111, court.members_alive());
    try court.pass(second);
    try expectEqual(0b011, court.members_alive());
    const why = "it has not called all_reduce (tag 5, sequence 0 of epoch 1), for which 2 of 3 " ++
        "have waited 20 s";
    try court.expect_said("warning peer 03000000 must leave group g: " ++ why);
    try court.expect_said("info peer 03000000 is out of epoch 1: " ++ why ++
        "; 2 of 3 members remain in group g");
    try court.listen();
    try expect(court.expelled[2] and court.peers[2] != null); // it may ask to join again
    for (0..2) |index| {
        try court.report_vote(index, tag, 1, 1 - @as(u32, @intCast(index)));
        try court.report_end(index);
    }
    for (0..2) |index| try court.done(index, tag, 0);
    try court.listen();
    for (0..2) |index| try expectEqual(1, court.commits[index]);
}

test "a member that is away is not let go because it has not called" {
    // Method: the connection of the third ends just before the others have waited for long enough.
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.pass(19 * second);
    court.hang_up(2);
    try court.pass(3 * second);
    try expectEqual(0b111, court.members_alive());
    // It comes back, and has no time left.
    try court.come_back(2, court.attempt);
    try court.report_end(2);
    try court.say(2, .{ .join_end = .{} });
    try court.pass(second);
    try expectEqual(0b011, court.members_alive());
}

test "one that stays away or begins attempts gains no time by it" {
    // Method: two have called; the third never does, and breaks a lane every few seconds.
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    for (0..5) |_| {
        try court.pass(4 * second);
        if (court.members_alive() != 0b111) break;
        try court.stumble();
        for (0..peers_max) |index| {
            if (index < 2) try court.report(index, tag, 1);
            try court.report_end(index);
        }
    }
    try court.pass(second);
    try expectEqual(0b011, court.members_alive());
}

test "whose turn it was is judged anew when one of those who are missing has been let go" {
    // Method: the first waits for the second in one call and for the third in another, and each of
    // those for the other: only one of them is let go at once.
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    for ([_]usize{ 0, 1 }) |index| try court.called(index, tag);
    for ([_]usize{ 0, 2 }) |index| try court.called(index, tag + 1);
    try court.pass(21 * second);
    try expectEqual(2, court.group().current().?.alive.count());
    try court.pass(10 * second);
    try expectEqual(2, court.group().current().?.alive.count());
}

test "a member that waited for one that was let go has its time anew" {
    // Method: the fourth has called what the fifth has not, and the other way round.
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try court.grow(2);
    court.c.run.options.stall_ns = 20 * second;
    for ([_]usize{ 0, 1, 2, 3 }) |index| try court.called(index, tag);
    for ([_]usize{ 0, 1, 2, 4 }) |index| try court.called(index, tag + 1);
    try court.pass(21 * second);
    const epoch = court.group().current().?;
    try expectEqual(4, epoch.alive.count());
    for (epoch.records.items) |known| if (known.id.tag == tag + 1)
        try expect(court.now -| known.stall.since <= 2 * second);
}

test "nobody is let go for a call while members report" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    for (0..2) |index| try court.called(index, tag);
    try court.pass(19 * second);
    try court.stumble();
    try court.pass(2 * second);
    try expectEqual(0b111, court.members_alive());
    for (0..peers_max) |index| {
        if (index < 2) try court.report(index, tag, 1);
        try court.report_end(index);
    }
    try court.pass(second);
    try expectEqual(0b011, court.members_alive());
}

test "in a group of two nobody is let go on the word of the other" {
    var court: Court = undefined;
    try form_stalled(&court, 20 * second);
    defer court.c.destroy();
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try court.listen();
    for (0..2) |index| try court.report_end(index);
    try court.called(0, tag);
    // The next epoch waits for both to get there.
    for (0..2) |index| try court.prepare(index, court.round, true);
    for (0..2) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.pass(60 * second);
    try expectEqual(0b010, waited_for(&court));
    try expectEqual(0b011, court.members_alive());
}

test "what is said of a passed attempt makes no record, and of one to come ends the connection" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    try court.stumble();
    for (0..peers_max) |index| try court.report_end(index);
    const newest = court.attempt;
    court.attempt = newest - 1;
    try court.called(0, tag);
    try expectEqual(0, court.group().epochs.items[0].records.items.len);
    try expectEqual(0b111, court.members_alive());
    court.attempt = newest + 1;
    try court.called(2, tag);
    try expectEqual(0b011, court.members_alive());
}

test "of the deadlines of those that wait the first counts" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    for ([_]u64{ 8 * second, 4 * second, 90 * second }, 0..) |left_ns, index| {
        const said = court.running(tag, 1);
        try court.say(index, .{ .called = .{
            .group = 0,
            .epoch = said.epoch,
            .attempt = said.attempt,
            .op = said.op,
            .descriptor = said.descriptor,
            .left_ns = left_ns,
        } });
    }
    const record = court.group().epochs.items[0].records.items[0];
    try expectEqual(court.now + 4 * second, record.stall.until);
}

test "what is said of a call that is decided makes no record" {
    var court: Court = undefined;
    try form_stalled(&court, 0);
    defer court.c.destroy();
    const records = &court.group().epochs.items[0].records.items;
    for (0..peers_max) |index| try court.done(index, tag, 0);
    try court.listen();
    try expectEqual(1, court.commits[0]);
    // It has crossed the decision on its way.
    for (0..peers_max) |index| try court.called(index, tag);
    try expectEqual(0, records.len);
}

// ---- what a member says

fn stalled(attempt: u32, missing: base.Mask) control.Stalled {
    return .{
        .group = 0,
        .epoch = 1,
        .attempt = attempt,
        .op = .{ .tag = tag, .sequence = 0 },
        .missing = missing,
    };
}

fn only(rank: usize) base.Mask {
    var mask: base.Mask = .empty;
    mask.set(rank);
    return mask;
}

test "a member says once that a call takes long, and at once if it was asked" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, tag));
    try expectEqual(0, w.called);
    for (0..2) |_| w.member.takes_long(&op, null);
    try expectEqual(1, w.called);
    // The coordinator has not heard it yet.
    try w.member.on_stalled(&stalled(1, only(0)));
    try expectEqual(2, w.called);
    try expect(op.missing.is_empty());
    // It is asked before its user calls.
    var asked = stalled(1, only(0));
    asked.op.tag = tag + 1;
    try w.member.on_stalled(&asked);
    try expectEqual(2, w.called);
    var late: Op = undefined;
    try expectEqual(null, try w.call(&late, tag + 1));
    try expectEqual(3, w.called);
    try expectEqual(0, w.member.current.?.asked.count());
}

test "a vote says that a member has called, and nothing is said while nobody hears it" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    var voted: Op = undefined;
    try expectEqual(null, try w.call(&voted, tag));
    w.member.completed(&voted, 9);
    w.member.takes_long(&voted, null);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, tag + 1));
    w.member.disconnected();
    w.member.takes_long(&op, null);
    w.member.welcomed(0);
    try w.view(2, .full(3));
    w.member.takes_long(&op, null);
    try expectEqual(0, w.called);
    try w.resume_op(2, voted.id);
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    w.member.takes_long(&op, null);
    try expectEqual(1, w.called);
}

test "a call that fails at its deadline says whom it waited for, as far as they are alive" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, tag));
    var both = only(1);
    both.set(2);
    try w.member.on_stalled(&stalled(2, both)); // of no attempt that it knows
    try expect(op.missing.is_empty());
    var said = stalled(1, both);
    said.elsewhere = .of(&.{.{ .rank = 1, .kind = .sync, .waits_for = 0, .count = 2 }});
    try w.member.on_stalled(&said);
    w.member.current.?.alive.unset(2);
    w.member.give_up(&op, .deadline);
    try expectEqual(only(1), w.failure.?.missing);
    try expectEqual(.sync, w.failure.?.elsewhere.slice()[0].kind);
}

test "a new attempt forgets whom calls have waited for, and what was asked for" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, tag));
    try w.member.on_stalled(&stalled(1, only(1)));
    var asked = stalled(1, only(0));
    asked.op.tag = tag + 1;
    try w.member.on_stalled(&asked);
    try w.view(2, .full(3));
    try expect(op.missing.is_empty());
    try expectEqual(0, w.member.current.?.asked.count());
}

test "a coordinator that names ranks of nobody, or asks for too many calls, is refused" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    try std.testing.expectError(error.Unexpected, w.member.on_stalled(&stalled(1, only(3))));
    for ([_]control.Elsewhere{
        .{ .rank = 3, .waits_for = 0, .count = 1 },
        .{ .rank = 1, .waits_for = 3, .count = 1 },
        .{ .rank = 1, .waits_for = 0, .count = 0 },
        .{ .rank = 1, .waits_for = 0, .count = 4 },
    }) |wrong| {
        var said = stalled(1, only(1));
        said.elsewhere = .of(&.{wrong});
        try std.testing.expectError(error.Unexpected, w.member.on_stalled(&said));
    }
    const most = base.limits.operations_in_flight_total_max * base.limits.peers_max;
    var asked = stalled(1, only(0));
    for (0..most) |index| {
        asked.op.tag = index;
        try w.member.on_stalled(&asked);
    }
    asked.op.tag = most;
    try std.testing.expectError(error.Unexpected, w.member.on_stalled(&asked));
    // Nobody waits for what was decided meanwhile.
    try w.abort(2, 0, 0, 1);
    try w.member.on_stalled(&asked);
}

// ---- reports and votes
//
// Reports and votes that a member owes: who is named, who is let go, and who has more time. The
// rules: debt.zig.

/// A lane broke, and the first two have reported.
fn form_owing(court: *Court, stall_ns: u64) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    court.c.run.options.stall_ns = stall_ns;
    try court.form();
    try court.stumble();
    for (0..2) |index| try court.report_end(index);
}

/// Time passes, and everybody reads what it is told.
fn pass(court: *Court, seconds: usize) !void {
    for (0..2 * seconds) |_| {
        try court.pass(500 * ms);
        try court.listen();
        court.c.tick(court.now); // now that nothing waits to be sent
    }
}

fn is_named(court: *const Court) bool {
    return court.group().current().?.members[2].waited_for;
}

test "a member that reports nothing is named after the warning time, and let go by itself at last" {
    var court: Court = undefined;
    try form_owing(&court, 0);
    defer court.c.destroy();
    try pass(&court, 9);
    try expect(!is_named(&court));
    const before = court.said_bytes;
    try pass(&court, 45);
    try expect(is_named(&court));
    const lines = std.mem.count(u8, court.said[before..court.said_bytes], "\n");
    try expectEqual(1, lines);
    try court.expect_said("warning peer 03000000 (rank 2) has not said what it holds of the " ++
        "calls of epoch 1, for which the others have waited 10 s; group g");
    try expectEqual(0b111, court.members_alive());
    try pass(&court, 7);
    try expectEqual(0b011, court.members_alive());
    try court.expect_said("warning peer 03000000 must leave group g: it has not said what it " ++
        "holds of the calls of epoch 1, for which the others have waited 60 s");
    for (0..2) |index| try court.report_end(index);
    try expect(court.group().current().?.running);
}

test "where the run says so, a member that reports nothing is let go when it says" {
    var court: Court = undefined;
    try form_owing(&court, 20 * second);
    defer court.c.destroy();
    try pass(&court, 19);
    try expectEqual(0b111, court.members_alive());
    try pass(&court, 2);
    try expectEqual(0b011, court.members_alive());
}

test "a report that comes in parts, or has not been asked for on the wire, has its time" {
    const Case = enum { parts, unheard, frozen };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try form_owing(&court, 0);
        defer court.c.destroy();
        for (0..4) |part| {
            switch (case) {
                .parts => try court.report(2, part, 1),
                .unheard, .frozen => {},
            }
            if (case == .frozen) {
                court.now += 20 * second;
                for (0..peers_max) |index| try court.beat(index);
                court.c.tick(court.now);
            } else if (case == .unheard) {
                try court.pass(20 * second); // what it is told stays where it is
            } else try pass(&court, 20);
        }
        try expectEqual(0b111, court.members_alive());
        try court.report_end(2);
        try expect(court.group().current().?.running);
        try court.pass(500 * ms);
        try expect(!is_named(&court));
    }
}

test "a member that comes again gains no time, and one that reports what has passed does" {
    for ([_]bool{ true, false }) |comes_again| {
        var court: Court = undefined;
        try form_owing(&court, 20 * second);
        defer court.c.destroy();
        const who: usize = if (comes_again) 2 else 0;
        for (0..10) |_| {
            try pass(&court, 2);
            const before = court.attempt;
            if (court.peers[who] == null) break;
            court.hang_up(who);
            try court.come_back(who, before);
            try court.say(who, .{ .join_end = .{} });
            // It reports the attempt that its own return has ended, or that of others has.
            if (court.peers[2] != null) {
                court.attempt = before;
                try court.report_end(2);
            }
            court.attempt = before + 1;
            for (0..2) |index| try court.report_end(index);
        }
        try pass(&court, 2);
        const left: u64 = if (comes_again) 0b011 else 0b111;
        try expectEqual(left, court.members_alive());
    }
}

test "whose vote alone is missing is named, and stays" {
    // Method: two have voted. The third says that it has called, and neither what it lacks nor that
    // it lacks nothing; a new attempt in between makes no difference.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.c.run.options.stall_ns = 20 * second;
    try court.form();
    for (0..2) |index| try court.done(index, tag, 0);
    try court.called(2, tag);
    try pass(&court, 5);
    try court.stumble();
    for (0..2) |index| try court.report_vote(index, tag, 1, 1);
    try court.report(2, tag, 1);
    for (0..peers_max) |index| try court.report_end(index);
    for (0..2) |index| try court.done(index, tag, 0);
    try pass(&court, 4);
    try expect(!is_named(&court));
    try pass(&court, 2);
    try expect(is_named(&court));
    try court.expect_said("warning peer 03000000 (rank 2) alone has not finished all_reduce " ++
        "(tag 5, sequence 0 of epoch 1), for which 2 of 3 have waited 10 s; group g");
    try pass(&court, 60);
    try expectEqual(0b111, court.members_alive());
    try court.done(2, tag, 0);
    try court.listen();
    for (0..peers_max) |index| try expectEqual(1, court.commits[index]);
    try court.pass(500 * ms);
    try court.expect_said("warning peer 03000000 (rank 2) of epoch 1 is not waited for any " ++
        "more; group g");
}

// ---- newcomers that wait
//
// Peers whose `admit` others wait for: who hears of them, and when (debt.zig).

const id_of = court_file.id_of;

const Told = struct {
    count: u32 = 0,
    why: control.Awaited.Why = .begin,
    first: base.PeerId = .none,
    label: base.Label = .{},
    rank: u16 = 0,
};

/// The last that a peer was told since it was asked last.
fn awaited_told(court: *Court, index: usize) !Told {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var last: Told = .{};
    var rest: []const u8 = bytes;
    while (try Court.next_of(&rest)) |message| {
        court.hear(index, message);
        if (message != .awaited) continue;
        var peers = message.awaited.peers.iterator();
        const first = peers.next().?;
        last = .{
            .count = message.awaited.count,
            .why = message.awaited.why,
            .rank = first.rank,
            .first = first.id,
            .label = base.Label.read(first.label.data).?,
        };
    }
    return last;
}

fn in_status(court: *Court, comptime peers: []const u8, comptime why: []const u8) !bool {
    const text = try court.status();
    const field = "\"awaited\":[" ++ peers ++ "]" ++ why;
    return std.mem.indexOf(u8, text, field) != null;
}

/// An epoch of three begins, to whose safe point so many of them have come.
fn begin_awaited(court: *Court, entered: usize) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    for (0..3) |index| try court.connect(index);
    try court.listen();
    for (0..3) |index| try court.prepare(index, court.round, true);
    try court.listen();
    for (0..entered) |index| try court.enter(index);
}

test "a group that begins names those who have not called admit, to those who have" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..3) |index| try court.connect(index);
    court.c.run.peer_of(id_of(2)).?.label = base.Label.read("node7:42").?;
    try court.listen();
    // Missing lanes are another reason, with words of their own.
    try court.prepare(0, court.round, true);
    try court.lack(1, &.{id_of(2)});
    try court.pass(20 * second);
    try expectEqual(0, (try awaited_told(&court, 0)).count);
    try court.listen();
    for (0..2) |index| try court.prepare(index, court.round, true);
    try court.prepare(2, court.round, false);
    try court.pass(4 * second);
    for (0..3) |index| try expectEqual(0, (try awaited_told(&court, index)).count);
    try court.pass(2 * second);
    for (0..2) |index| {
        const it = try awaited_told(&court, index);
        try expectEqual(1, it.count);
        try expect(it.first.eql(id_of(2)));
        try std.testing.expectEqualStrings("node7:42", it.label.slice());
        try expectEqual(.begin, it.why);
        try expectEqual(base.limits.peers_max, it.rank);
    }
    try expectEqual(0, (try awaited_told(&court, 2)).count);
    try expect(try in_status(&court, "\"" ++ id_of(2).hex() ++ "\"", ",\"awaits\":\"begin\""));
    try court.pass(20 * second);
    try court.expect_said("warning newcomers have waited 10 s for peer 03000000 (node7:42) to " ++
        "call admit; group g");
    const lines = std.mem.count(u8, court.said[0..court.said_bytes], "to call admit");
    try expectEqual(1, lines);
    try court.listen();
    try court.prepare(2, court.round, true);
    try expect(try in_status(&court, "", ",\"epochs\""));
}

test "newcomers hear which member has not come to the safe point of an epoch that has begun" {
    var court: Court = undefined;
    try begin_awaited(&court, 2);
    defer court.c.destroy();
    try court.connect(3);
    try court.pass(6 * second);
    for (0..3) |index| try expectEqual(0, (try awaited_told(&court, index)).count);
    const it = try awaited_told(&court, 3);
    try expectEqual(1, it.count);
    try expect(it.first.eql(id_of(2)));
    try expectEqual(.safe_point, it.why);
    try expectEqual(2, it.rank);
    try court.enter(2);
    try court.pass(20 * second);
    try expectEqual(0, (try awaited_told(&court, 3)).count);
    try expect(try in_status(&court, "", ",\"epochs\""));
}

test "newcomers hear of a member that is away before it has come to the safe point" {
    var court: Court = undefined;
    try begin_awaited(&court, 1);
    defer court.c.destroy();
    court.hang_up(2);
    court.c.run.options.silence_ns = 60 * second;
    try court.connect(3);
    try court.pass(6 * second);
    const it = try awaited_told(&court, 3);
    // Rank 1 has not come to it either, and is there.
    try expectEqual(.away, it.why);
    try expectEqual(1, it.count);
    try expect(it.first.eql(id_of(2)));
    try expectEqual(2, it.rank);
    try court.come_back(2, 1);
    try court.pass(6 * second);
    const later = try awaited_told(&court, 3);
    try expectEqual(.safe_point, later.why);
    try expectEqual(1, later.count);
    try expect(later.first.eql(id_of(1)));
}

test "a group that has lost somebody says to newcomers who has not passed its next safe point" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.say(0, .{ .leave = .{ .group = 0 } });
    try court.next_round();
    for (1..3) |index| try court.prepare(index, court.round, true);
    for (1..3) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    try court.connect(3);
    try court.enter(1);
    const wanted = "\"" ++ comptime id_of(2).hex() ++ "\"";
    try expect(try in_status(&court, wanted, ",\"awaits\":\"safe_point\",\"awaited_ns\":0,"));
    try court.pass(11 * second);
    const it = try awaited_told(&court, 3);
    try expectEqual(1, it.count);
    try expectEqual(.safe_point, it.why);
    try expectEqual(1, it.rank);
    try court.expect_said("warning newcomers have waited 10 s for rank 1 (03000000) to pass its " ++
        "next safe point (admit); group g");
    try court.enter(2);
    try court.pass(500 * ms);
    try expect(!try in_status(&court, wanted, ""));
}

test "newcomers hear which member has calls of the epoch before in flight" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(3);
    try court.next_round();
    for (0..4) |index| try court.prepare(index, court.round, true);
    for (0..3) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    for (0..4) |index| try court.enter(index);
    for ([_]usize{ 0, 2 }) |index| try court.say(index, .{ .epoch_closed = .{
        .group = 0,
        .epoch = court.epoch - 1,
    } });
    try court.connect(4);
    try court.pass(6 * second);
    const it = try awaited_told(&court, 4);
    try expectEqual(1, it.count);
    try expectEqual(.in_flight, it.why);
    try expectEqual(1, it.rank);
    try expect(it.first.eql(id_of(1)));
}

// ---- peers that are too few
//
// How many peers have come to a group that begins when enough are there: who is told, and when
// (debt.zig).

/// The last that a peer was told of it since it was asked last; null: nothing.
fn attendance_told(court: *Court, index: usize) !?control.Waiting {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var last: ?control.Waiting = null;
    var rest: []const u8 = bytes;
    while (rest.len > 0) {
        if (std.mem.startsWith(u8, rest, &wire.hello.encode_answer(.welcome))) {
            rest = rest[wire.hello.answer_bytes..];
            continue;
        }
        const total = control.header_bytes +
            try control.body_length(rest[0..control.header_bytes]);
        const message = try control.decode(rest[0..total]);
        if (message == .waiting) last = message.waiting;
        court.hear(index, message);
        rest = rest[total..];
    }
    return last;
}

fn counted(here: u32, emptied: bool) control.Waiting {
    return .{ .group = 0, .here = here, .needed = 3, .emptied = emptied };
}

fn expect_status(court: *Court, wanted: ?[]const u8) !void {
    const text = try court.status();
    const key = "\"here\":";
    const at = std.mem.indexOf(u8, text, key) orelse return expectEqual(null, wanted);
    if (!std.mem.startsWith(u8, text[at..], wanted.?)) return error.NotInStatus;
}

test "those who have come to a group hear how many are missing, each number once" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.connect(0);
    try court.pass(500 * ms);
    try expectEqual(counted(1, false), (try attendance_told(&court, 0)).?);
    try court.expect_said("info 1 of 3 peers are here; group g");
    try expect_status(&court, "\"here\":1,\"needed\":3,\"emptied\":false");
    try court.connect(1);
    try court.pass(5000 * ms);
    for (0..2) |index| try expectEqual(counted(2, false), (try attendance_told(&court, index)).?);
    try court.pass(5000 * ms);
    for (0..2) |index| try expectEqual(null, try attendance_told(&court, index));
    const lines = std.mem.count(u8, court.said[0..court.said_bytes], "peers are here");
    try expectEqual(2, lines);
    try court.connect(2);
    try court.pass(500 * ms);
    for (0..3) |index| try expectEqual(null, try attendance_told(&court, index));
    try expect_status(&court, null);
}

test "a group that all have left says so to who comes, and how many it waits for again" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(court_file.peers_max);
    try expect_status(&court, null); // its members wait for nobody
    for (0..court_file.peers_max) |index| try court.say(index, .{ .leave = .{ .group = 0 } });
    try court.pass(500 * ms);
    try expectEqual(counted(1, true), (try attendance_told(&court, court_file.peers_max)).?);
    try court.expect_said("info 1 of 3 peers are here; all that were in it are gone; group g");
    try court.pass(10_000 * ms);
    try court.expect_said("warning only 1 of 3 peers are here after 10 s, and the others may " ++
        "have ended; all that were in it are gone; group g");
    try expect_status(&court, "\"here\":1,\"needed\":3,\"emptied\":true");
}

test "a newcomer whose address is being looked for is here" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.reply = .later;
    try court.connect(0);
    try expect_status(&court, "\"here\":1,\"needed\":3,\"emptied\":false");
}

// ---- members that have not entered
//
// Members that have not entered their epoch: who hears of them, and when (debt.zig).

/// The ranks that a peer was told are missing, since this was asked last; null: nothing.
fn told_of(court: *Court, index: usize) !?base.Mask {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var last: ?base.Mask = null;
    var rest: []const u8 = bytes;
    while (try Court.next_of(&rest)) |message| {
        court.hear(index, message);
        if (message == .entered) last = message.entered.missing;
    }
    return last;
}

fn mask_of(comptime list: []const u16) base.Mask {
    var mask: base.Mask = .empty;
    inline for (list) |rank| mask.set(rank);
    return mask;
}

/// An epoch of three members and a newcomer, none of which has entered.
fn begin_entering(court: *Court) !void {
    try court.form();
    try court.connect(newcomer);
    try court.next_round();
    for (0..newcomer + 1) |index| try court.prepare(index, court.round, true);
    for (0..newcomer) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    try expectEqual(4, court.group().current().?.members.len);
}

test "a newcomer hears which members have not entered, and at once that all have" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try begin_entering(&court);
    try court.enter(newcomer);
    // It takes nobody for there who has not been named.
    try expectEqual(null, try told_of(&court, newcomer));
    try court.pass(500 * ms);
    try expectEqual(mask_of(&.{ 0, 1, 2 }), (try told_of(&court, newcomer)).?);
    try court.enter(0);
    try court.enter(1);
    try expectEqual(null, try told_of(&court, newcomer)); // a crowd costs one message
    try court.pass(500 * ms);
    for (0..newcomer + 1) |index| try expectEqual(mask_of(&.{2}), (try told_of(&court, index)).?);
    try court.enter(2);
    for (0..newcomer + 1) |index| try expect((try told_of(&court, index)).?.is_empty());
    try court.pass(500 * ms);
    try expectEqual(null, try told_of(&court, newcomer));
}

test "the last member from before is news at once, whichever newcomers are missing" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try begin_entering(&court);
    for (0..2) |index| try court.enter(index);
    try expectEqual(null, try told_of(&court, newcomer));
    try court.enter(2);
    try expectEqual(mask_of(&.{newcomer}), (try told_of(&court, newcomer)).?);
}

test "a member that is lost is not missing" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try begin_entering(&court);
    for (0..2) |index| try court.enter(index);
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try court.pass(500 * ms);
    try expectEqual(mask_of(&.{newcomer}), (try told_of(&court, newcomer)).?);
    try court.enter(newcomer);
    try expect((try told_of(&court, 0)).?.is_empty());
}

test "a member that is back hears who is missing" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    court.hang_up(0);
    try court.come_back(0, 1);
    try court.say(0, .{ .join_end = .{} });
    try expect((try told_of(&court, 0)).?.is_empty());
}
