//! How a coordinator goes on while its disk takes long, and what the next one knows: messages that
//! rely on a record of the journal wait for it, and no others do; decisions and attempts are in the
//! log before they are told. Next: peer.zig, where messages wait; log.zig, which says for which
//! record.

const std = @import("std");
const base = @import("base");
const limits = @import("base").limits;
const wire = @import("wire");
const court_file = @import("court_test.zig");
const journal = @import("journal.zig");
const Court = court_file.Court;
const Shelf = court_file.Shelf;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const id_of = court_file.id_of;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

/// How many messages of a kind a peer was told since its stream was read last.
fn told(court: *Court, index: usize, kind: std.meta.Tag(control.Message)) !usize {
    const bytes = try court.unread(index);
    defer std.testing.allocator.free(bytes);
    var rest: []const u8 = bytes;
    if (std.mem.startsWith(u8, rest, &wire.hello.encode_answer(.welcome)))
        rest = rest[wire.hello.answer_bytes..];
    var count: usize = 0;
    while (rest.len > 0) {
        const length = try control.body_length(rest[0..control.header_bytes]);
        const message = try control.decode(rest[0 .. control.header_bytes + length]);
        count += @intFromBool(message == kind);
        rest = rest[control.header_bytes + length ..];
    }
    return count;
}

fn join(court: *Court, index: usize, name: []const u8) !void {
    return join_at(court, index, name, "a:1");
}

fn join_at(court: *Court, index: usize, name: []const u8, address: []const u8) !void {
    try court.say(index, .{ .join = .{
        .name = .of(name),
        .address = .of(address),
        .initial_world_size = 1,
        .round = 0,
        .stop_round = 0,
        .address_key = @splat(0),
    } });
    try court.say(index, .{ .join_end = .{} });
}

test "a group is told of when its record is on the disk; other groups and beats do not wait" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    shelf.slow = true;
    try join(&court, 0, "h");
    try expectEqual(0, try told(&court, 0, .joined));
    try expectEqual(0, try told(&court, 0, .prepare));
    // Meanwhile the disk takes longer than anybody may be silent, and than a round may take.
    try court.pass(court.c.run.options.prepare_ns + court.c.run.options.silence_ns);
    try expect(try told(&court, 0, .heartbeat_ack) > 10);
    for (0..court_file.peers_max) |index| try court.done(index, 1, 0);
    for (0..court_file.peers_max) |index| try expectEqual(1, try told(&court, index, .commit));
    try court.expect_said("warning the disk of the journal takes more than 2 s: groups that " ++
        "begin, gain or lose a member wait for it; all else goes on");
    try expectEqual(0, try told(&court, 0, .joined));
    try shelf.write(&court);
    try expectEqual(1, try told(&court, 0, .joined));
    try expectEqual(1, try told(&court, 0, .prepare));
    try expectEqual(0, try told(&court, 0, .release));
    try expectEqual(.ok, court.c.run.journal_state);
    // A refusal does not overtake the answer before it, whose number it does not name.
    try join(&court, 1, "i");
    try join_at(&court, 1, "i", "no address");
    try expectEqual(0, try told(&court, 1, .refused));
    try shelf.write(&court);
    try expectEqual(1, try told(&court, 1, .joined));
    try expectEqual(1, try told(&court, 1, .refused));
}

test "an epoch is told of when it is on the disk, and what is decided in the one before at once" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    court.c.run.options.initial_world_size = 2;
    for (0..2) |index| try court.connect(index);
    try court.listen();
    for (0..2) |index| try court.prepare(index, court.round, true);
    try court.listen();
    for (0..2) |index| try court.enter(index);
    try court.connect(2);
    try court.next_round();
    for (0..3) |index| try court.prepare(index, court.round, true);
    shelf.slow = true;
    for (0..2) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try expectEqual(2, court.group().current().?.number);
    for (0..2) |index| try court.done(index, 1, 0);
    for (0..3) |index| try expectEqual(0, try told(&court, index, .activate));
    for (0..2) |index| try expectEqual(1, try told(&court, index, .commit));
    try court.pass(10 * court.c.run.options.silence_ns);
    for (0..3) |index| try expectEqual(0, try told(&court, index, .activate));
    try shelf.write(&court);
    for (0..3) |index| try expectEqual(1, try told(&court, index, .activate));
}

test "a loss is told when it is on the disk, also to whoever is lost" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    for (0..2) |index| try court.done(index, 1, 0);
    shelf.slow = true;
    // It is silent, is let go, and comes back.
    const until = court.now + court.c.run.options.silence_ns;
    while (court.now < until) {
        court.now += 500 * ms;
        for (0..2) |index| try court.beat(index);
        court.c.tick(court.now);
    }
    try expectEqual(null, court.peers[2]);
    try court.come_back(2, 1);
    try court.say(2, .{ .join_end = .{} });
    for (0..2) |index| {
        try expectEqual(0, try told(&court, index, .view));
        try expectEqual(0, try told(&court, index, .commit)); // the lost one has not voted
    }
    try expectEqual(0, try told(&court, 2, .expelled));
    // Nobody is judged by the decisions that it does not say to have seen.
    for (0..2 * limits.decisions_untold_max) |tag| try court.give_up(0, 100 + tag);
    for (0..2) |index| try expectEqual(0, try told(&court, index, .abort));
    try court.pass(10 * court.c.run.options.silence_ns);
    try expectEqual(0b011, court.members_alive());
    try shelf.write(&court);
    for (0..2) |index| {
        try expectEqual(1, try told(&court, index, .view));
        try expectEqual(1, try told(&court, index, .commit));
    }
    try expectEqual(1, try told(&court, 2, .expelled));
    for (court.peers[0..3]) |peer| try expect(peer != null);
}

test "nobody is named for a call that it makes when it has heard what waits for the disk" {
    // Goal: two have called an operation in front of a safe point at which the third stands, until
    // it hears of the next epoch. Method: that epoch's record takes long.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    for (0..2) |index| try court.done(index, 1, 0);
    try court.connect(3);
    try court.next_round();
    for (0..4) |index| try court.prepare(index, court.round, true);
    shelf.slow = true;
    for (0..court_file.peers_max) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try expectEqual(2, court.group().epochs.items.len);
    const limit_ns = court.c.run.options.stall_warning_ns;
    const before = court.said_bytes;
    try court.pass(2 * limit_ns);
    try expectEqual(0, try told(&court, 2, .activate));
    for ([_]bool{ false, true }) |is_named| {
        const said = court.said[before..court.said_bytes];
        const found = std.mem.indexOf(u8, said, "has not called all_reduce");
        try expectEqual(is_named, found != null);
        try shelf.write(&court);
        try court.pass(limit_ns + 500 * ms);
    }
}

test "who is left out because it is stranded hears so after the record" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    shelf.slow = true;
    for (0..2) |other| try court.say(2, .{ .link_told = .{
        .other = court_file.id_of(other),
        .group = 0,
        .health = .down,
    } });
    court.c.tick(court.now + 20 * ms);
    try expectEqual(0b011, court.members_alive());
    try expectEqual(0, try told(&court, 2, .expelled));
    try shelf.write(&court);
    try expectEqual(1, try told(&court, 2, .expelled));
}

test "a disk that fails while something waits for it holds up nobody" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        shelf.slow = true;
        try join(&court, 0, "h");
        shelf.full = true;
        try shelf.write(&court);
        try expectEqual(.failed, court.c.run.journal_state);
        try expectEqual(1, try told(&court, 0, .joined));
        // Nothing waits, whether or not all of it is being written anew.
        shelf.full = false;
        try join(&court, 1, "i");
        try expectEqual(1, try told(&court, 1, .joined));
        try court.pass(court.c.run.options.journal_retry_ns);
        try expect(shelf.replaces);
        try join(&court, 1, "the last");
        try expectEqual(2, try told(&court, 1, .joined));
        // It is well when that is written too, and not only what was given at first.
        court.c.journal_written(court.now, shelf.number - 1);
        try expectEqual(.failed, court.c.run.journal_state);
        try shelf.write(&court);
        try expectEqual(.ok, court.c.run.journal_state);
        try expect(std.mem.find(u8, shelf.bytes.items, "the last") != null);
        try join(&court, 2, "k");
        try expectEqual(0, try told(&court, 2, .joined));
    }
    try shelf.start(&court);
    defer court.c.destroy();
    // Those that had no members have ended; nobody has heard of k.
    try expectEqual(1, court.c.run.groups.items.len);
}

test "a removal that the disk does not have yet is in the log" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        shelf.slow = true;
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try court.listen();
        try expectEqual(1, court.attempt);
    }
    try shelf.start(&court);
    defer court.c.destroy();
    try expectEqual(0b011, court.members_alive());
}

test "a decision without a member is not told to that member, though the disk lacks its removal" {
    // Method: two have voted when the third is lost. The disk is slow, so nobody hears of the loss,
    // nor of the commit that follows from it.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        for (0..2) |index| try court.done(index, 5, 0);
        shelf.slow = true;
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try court.listen();
        try expectEqual(0, court.commits[0]);
    }
    try shelf.start(&court);
    defer court.c.destroy();
    court.epoch = 1;
    for (0..peers_max) |index| {
        try court.come_back(index, 1);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
    try expectEqual([_]u32{ 1, 1, 0 }, court.commits[0..peers_max].*);
    try expectEqual(0b011, court.members_alive());
}

// ---- the log
//
// The next coordinator knows each decision and attempt that this one has told anybody. A machine
// that loses power loses the end of the log; then members know more than the coordinator. In a
// world: tests/sim/scenarios/refused_across_a_restart.txt.

const refused_tag = 5;

/// The last member votes for something else than the others, so the call is refused.
fn differ(court: *Court) !void {
    for (0..peers_max) |index| {
        var said = court.vote(refused_tag, 0);
        if (index == peers_max - 1) said.descriptor.count += 1;
        try court.say(index, .{ .done = said });
    }
}

/// All come back to the next coordinator, have seen so many decisions of the one before, and have
/// called nothing that is not decided.
fn come_back(court: *Court, seen: [peers_max]u64) !void {
    court.epoch = 1;
    court.aborts = @splat(0);
    court.last_abort = null;
    for (seen, 0..) |count, index| {
        try court.come_back_seen(index, 1, count);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
}

fn logged_decisions(bytes: []const u8) usize {
    var count: usize = 0;
    var replay: journal.LogReplay = .init(bytes);
    while (replay.next()) |record| count += @intFromBool(record != .attempt);
    return count;
}

/// A coordinator that has aborted two calls and was killed.
fn abort_two(shelf: *Shelf, court: *Court) !void {
    try shelf.start(court);
    defer court.c.destroy();
    try court.form();
    for (0..2) |number| try court.give_up(0, refused_tag + number);
}

test "decisions do not wait for the disk" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    shelf.slow = true;
    try differ(&court);
    for (0..peers_max) |index| try court.done(index, refused_tag + 1, 0);
    try court.listen();
    for (0..peers_max) |index| {
        try expectEqual(1, court.aborts[index]);
        try expectEqual(1, court.commits[index]);
    }
    try expectEqual(2, logged_decisions(shelf.log.items));
}

test "a member that has not heard of a refusal hears of it from the next coordinator" {
    // Goal: the members that have heard of it have left when the coordinator is killed, and no
    // other knows of it. Method: the last one has not read it. It is told what differs, too.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        try differ(&court);
        for (0..2) |index| try court.say(index, .{ .leave = .{ .group = 0 } });
    }
    // Nor does the one after that, if the next one is killed before anybody is back.
    for (0..2) |_| {
        try shelf.start(&court);
        court.c.destroy();
    }
    try shelf.start(&court);
    defer court.c.destroy();
    court.epoch = 1;
    var alone: base.Mask = .empty;
    alone.set(2);
    try court.come_back_alive(2, 3, alone);
    try court.say(2, .{ .join_end = .{} });
    try court.listen();
    try expectEqual(1, court.aborts[2]);
    const abort = court.last_abort.?;
    try expectEqual(.mismatch, abort.reason);
    try expect(abort.peer.eql(id_of(0)) and abort.other.eql(id_of(2)));
    try expectEqual(court_file.descriptor, abort.descriptor);
    try expectEqual(abort.descriptor.count + 1, abort.other_descriptor.count);
    // It votes for it alone, and has not read the abort.
    try court.report_end(2);
    try court.done(2, refused_tag, 0);
    try court.listen();
    try expectEqual(0, court.commits[2]);
}

test "the next coordinator tells each member what that has not seen, and no more" {
    for ([_][peers_max]u64{ .{ 2, 2, 2 }, .{ 2, 1, 2 }, .{ 0, 0, 0 } }) |seen| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try abort_two(&shelf, &court);
        try shelf.start(&court);
        defer court.c.destroy();
        try come_back(&court, seen);
        for (seen, 0..) |count, index| try expectEqual(2 - count, court.aborts[index]);
        const epoch = court.group().current().?;
        // When all have seen them they are over, and numbers go on.
        for (0..peers_max) |index| try court.say_seen(index, 2);
        try expectEqual(0, epoch.outstanding().len);
        try court_file.report_nothing(&court);
        try court.give_up(0, 7);
        try court.listen();
        try expectEqual(3, court.last_abort.?.decision);
        // A log that is written anew has the last of them alone, and the count of all.
        for (0..peers_max) |index| try court.say_seen(index, 3);
        court.c.run.log_bytes = limits.MiB;
        try court.give_up(0, 8);
        try expectEqual(1, logged_decisions(shelf.log.items));
        var replay: journal.LogReplay = .init(shelf.log.items);
        try expectEqual(4, replay.next().?.abort.decision);
        try expectEqual(4, replay.next().?.attempt.decision);
    }
}

test "a log that is long is written anew" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    var number: u64 = 0;
    var before: usize = 0;
    while (shelf.log.items.len >= before) : (number += 1) {
        before = shelf.log.items.len;
        try court.give_up(0, number);
        for (0..peers_max) |index| try court.say_seen(index, number + 1);
    }
    try expect(before > limits.MiB - 1000 and before <= limits.MiB);
    try expectEqual(1, logged_decisions(shelf.log.items)); // the last was not seen by then
}

test "a log that cannot be written holds up nobody, and has all again when it can" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        shelf.full = true;
        for (0..2) |number| try court.give_up(0, number);
        try expectEqual(.failed, court.c.run.journal_state);
        try court.listen();
        try expectEqual(2, court.aborts[1]);
        shelf.full = false;
        try court.pass(court.c.run.options.journal_retry_ns);
        try expectEqual(.ok, court.c.run.journal_state);
        try court.give_up(0, 2);
        try expectEqual(3, logged_decisions(shelf.log.items));
    }
    try shelf.start(&court);
    defer court.c.destroy();
    try come_back(&court, .{ 3, 3, 2 });
    try expectEqual(1, court.aborts[2]);
}

test "decisions that a machine without power has lost are over when all members have seen them" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try abort_two(&shelf, &court);
    shelf.log.clearRetainingCapacity();
    try shelf.start(&court);
    defer court.c.destroy();
    try come_back(&court, @splat(2));
    try court_file.report_nothing(&court);
    try court.give_up(0, 7);
    try court.listen();
    try expectEqual(3, court.last_abort.?.decision);
    try expectEqual(0b111, court.members_alive());
}

test "a log that lost its end claims no decision that it lacks" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try abort_two(&shelf, &court);
    for (0..2) |_| { // as it was appended to, and as it is written anew
        const whole = try std.testing.allocator.dupe(u8, shelf.log.items);
        defer std.testing.allocator.free(whole);
        for (0..whole.len + 1) |length| {
            shelf.log.clearRetainingCapacity();
            try shelf.log.appendSlice(std.testing.allocator, whole[0..length]);
            const decisions = logged_decisions(shelf.log.items);
            try shelf.start(&court);
            defer court.c.destroy();
            const epoch = court.group().current().?;
            try expectEqual(decisions, epoch.decisions);
            try expectEqual(decisions, epoch.outstanding().len);
        }
    }
}

test "of members that know other decisions after a loss of power the most stay" {
    // Method: the log has the first of two decisions. Members that know no more are told it.
    const cases = [_]struct { seen: [peers_max]u64, alive: u64, told: [peers_max]u32 }{
        .{ .seen = .{ 2, 1, 0 }, .alive = 0b110, .told = .{ 0, 0, 1 } },
        .{ .seen = .{ 2, 2, 0 }, .alive = 0b011, .told = .{ 0, 0, 0 } },
        .{ .seen = .{ 2, 2, 3 }, .alive = 0b011, .told = .{ 0, 0, 0 } },
        .{ .seen = .{ 4, 3, 2 }, .alive = 0b100, .told = .{ 0, 0, 0 } },
    };
    for (cases) |case| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try abort_two(&shelf, &court);
        shelf.log.items.len -= 1; // of the second decision
        try shelf.start(&court);
        defer court.c.destroy();
        const said = court.said[0..court.said_bytes];
        try expect(std.mem.find(u8, said, "of the log of decisions are not whole") != null);
        try come_back(&court, case.seen);
        try expectEqual(case.alive, court.members_alive());
        try expectEqual(case.told, court.aborts[0..peers_max].*);
        for (0..peers_max) |index|
            try expectEqual(case.alive >> @intCast(index) & 1 == 1, court.peers[index] != null);
    }
}

test "members that vote while others come back may have seen what the log lacks" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try abort_two(&shelf, &court);
    shelf.log.clearRetainingCapacity();
    try shelf.start(&court);
    defer court.c.destroy();
    court.epoch = 1;
    for (0..peers_max) |index| {
        try court.come_back_seen(index, 1, 2);
        try court.say(index, .{ .join_end = .{} });
        if (index < peers_max - 1) try court.done(index, 9, 2);
    }
    try court.listen();
    try expectEqual(0b111, court.members_alive());
}

test "a member is not asked what it has seen before it is told" {
    // Method: it lacks many decisions, and another one does not come back for long.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart_after(&shelf, &court, abort_many);
    defer court.c.destroy();
    court.epoch = 1;
    for (0..2) |index| {
        try court.come_back(index, 1);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.pass_answering(court.c.run.options.silence_ns * 3 / 2, &.{ 0, 1 });
    for (court.peers[0..2]) |peer| try expect(peer != null);
    try court.pass_answering(court.c.run.options.silence_ns, &.{ 0, 1 });
    try court.listen();
    try expectEqual(0b011, court.members_alive());
    try expectEqual(2 * limits.decisions_untold_max, court.aborts[1]);
}

fn abort_many(court: *Court) !void {
    for (0..2 * limits.decisions_untold_max) |tag| try court.give_up(0, tag);
}

test "what members say to have seen after a restart costs nobody else, true or not" {
    for ([_]u64{ 0, 3, 2 + limits.decisions_unlogged_max, limits.decisions_max }) |lie| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try abort_two(&shelf, &court);
        try shelf.start(&court);
        defer court.c.destroy();
        try come_back(&court, .{ 2, 2, lie });
        try expectEqual(lie == 0, court.peers[2] != null);
        for (court.peers[0..2]) |peer| try expect(peer != null);
        try expectEqual(2, court.group().current().?.decisions);
    }
}

test "what is given up while members come back is told when all are back, unless it is decided" {
    // Method: the coordinator before has committed 5, which member 0 alone knows. The last member
    // gives up 5 and 6 before the others are back.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart_after(&shelf, &court, commit_one);
    defer court.c.destroy();
    try court.come_back_seen(2, 1, 0);
    try court.say(2, .{ .join_end = .{} });
    for ([_]u64{ 5, 6 }) |tag| try court.give_up(2, tag);
    try court.listen();
    try expectEqual(0, court.aborts[2]);
    for (0..2) |index| {
        try court.come_back_seen(index, 1, if (index == 0) 1 else 0);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
    try expectEqual([_]u32{ 0, 1, 1 }, court.commits[0..peers_max].*);
    try expectEqual([_]u32{ 1, 1, 1 }, court.aborts[0..peers_max].*);
    try expectEqual(2, court.last_abort.?.decision);
    try expectEqual(2, logged_decisions(shelf.log.items));
}

fn commit_one(court: *Court) !void {
    for (0..peers_max) |index| try court.done(index, 5, 0);
}

test "an epoch goes on with the attempt after the last one that its members can know" {
    // Method: a link breaks, so there is a second attempt, of which the journal has no record. A
    // member is believed as far as the log may have lost its end.
    const most = limits.attempts_unlogged_max;
    for ([_]u32{ 1, 2, 2 + most, 3 + most, limits.attempts_max }) |told_attempt| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart_after(&shelf, &court, begin_attempt);
        defer court.c.destroy();
        for (0..peers_max) |index| {
            try court.come_back(index, if (index == 2) told_attempt else 2);
            try court.say(index, .{ .join_end = .{} });
        }
        try court.listen();
        try expectEqual(told_attempt > 2 + most, court.peers[2] == null);
        try expectEqual(2 + most + 1, court.group().current().?.attempt);
    }
}

test "a second loss of power uses no number of an attempt twice" {
    // Method: the second coordinator begins an attempt, and the log with that attempt is lost.
    const most = limits.attempts_unlogged_max;
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try court_file.restart_after(&shelf, &court, begin_attempt);
        defer court.c.destroy();
        try expectEqual(2 + most, court.group().current().?.attempt);
        for (0..peers_max) |index| {
            try court.come_back(index, 2);
            try court.say(index, .{ .join_end = .{} });
        }
        try expectEqual(2 + most + 1, court.group().current().?.attempt);
    }
    shelf.log.clearRetainingCapacity();
    try shelf.start(&court);
    defer court.c.destroy();
    court.epoch = 1;
    for (0..peers_max) |index| {
        try court.come_back(index, 2 + most + 1);
        try court.say(index, .{ .join_end = .{} });
    }
    try expectEqual(0b111, court.members_alive());
    try expectEqual(2 + 2 * most + 1, court.group().current().?.attempt);
}

fn begin_attempt(court: *Court) !void {
    try court.stumble();
    try expectEqual(2, court.attempt);
}

test "who has calls refused all the time does not keep a mute member from being let go" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    for (0..base.limits.decisions_untold_max) |number| try court.give_up(0, number);
    const until = court.now + 3 * court.c.run.options.silence_ns;
    var number: u64 = base.limits.decisions_untold_max;
    while (court.peers[2] != null) : (number += 1) {
        try expect(court.now < until);
        try court.give_up(0, number);
        try court.pass(500 * court_file.ms);
        try court.listen();
        for (0..2) |index| try court.say_seen(index, court.group().current().?.decisions);
    }
    try expectEqual(0b011, court.members_alive());
}

test "an epoch that has had all attempts ends, and its members may begin another" {
    var court: Court = undefined;
    try court.init(std.testing.allocator);
    defer court.c.destroy();
    try court.form();
    court.attempt = limits.attempts_max - 2;
    court.group().current().?.attempt = court.attempt;
    try court.stumble();
    try expectEqual(limits.attempts_max - 1, court.attempt);
    for (0..peers_max) |index| try court.report_end(index);
    try court.say_closed(0, 1);
    try court.pass(500 * ms);
    for (court.peers[0..peers_max]) |place| try expectEqual(null, place);
    court.c.run.next_group = 0;
    try court.form();
    try expectEqual(1, court.group().current().?.attempt);
    try expectEqual(0b111, court.members_alive());
}
