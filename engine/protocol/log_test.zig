//! How a coordinator goes on while its disk takes long: messages that rely on a record wait for it,
//! and no others do. Next: peer.zig, where messages wait; log.zig, which says for which
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
        "begin, gain or lose a member, and those in which a call fails, wait for it; " ++
        "all else goes on");
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
        try join(&court, 1, "j");
        try expectEqual(2, try told(&court, 1, .joined));
        // It is well when that is written too, and not only what was given at first.
        court.c.journal_written(court.now, shelf.number - 1);
        try expectEqual(.failed, court.c.run.journal_state);
        try shelf.write(&court);
        try expectEqual(.ok, court.c.run.journal_state);
        try join(&court, 2, "k");
        try expectEqual(0, try told(&court, 2, .joined));
    }
    try shelf.start(&court);
    defer court.c.destroy();
    // Those that had no members have ended; nobody has heard of k.
    try expectEqual(1, court.c.run.groups.items.len);
    try expect(std.mem.find(u8, shelf.bytes.items, "j") != null);
}

test "what the disk does not have yet is lost with the coordinator, and nobody has heard of it" {
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
    try expectEqual(0b111, court.members_alive());
}

// ---- refused calls
//
// Refused calls in the journal: no member hears of one before the disk has it, many share a write,
// and a coordinator that starts again refuses those that some member may not have heard of. The
// rules: log.zig; in a world: tests/sim/scenarios/refused_across_a_restart.txt.

const refused_tag = 5;

/// The last member votes for something else than the others, so the call is refused.
fn differ(court: *Court) !void {
    for (0..peers_max) |index| {
        var said = court.vote(refused_tag, 0);
        if (index == peers_max - 1) said.descriptor.count += 1;
        try court.say(index, .{ .done = said });
    }
}

/// All come back, have seen so many decisions of the coordinator before, and have called nothing
/// that is not decided.
fn come_back(court: *Court, seen: [peers_max]u64) !void {
    court.epoch = 1;
    court.aborts = @splat(0);
    court.last_abort = null;
    for (seen, 0..) |count, index| {
        try court.come_back_seen(index, 1, count);
        try court.say(index, .{ .join_end = .{} });
    }
    try court_file.report_nothing(court);
    try court.listen();
}

const Found = struct { calls: usize = 0, records: usize = 0 };

/// The refusals of a journal.
fn refusals_in(bytes: []const u8) !Found {
    var found: Found = .{};
    var replay: journal.Replay = .init(bytes);
    while (try replay.next()) |record| switch (record) {
        .refusals => |*body| {
            found.calls += body.calls.count;
            found.records += 1;
        },
        .settings, .start, .group, .activation, .removal => {},
    };
    return found;
}

test "a refusal is told when it is on the disk, and what is decided after it not before" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    shelf.slow = true;
    try differ(&court);
    for (0..peers_max) |index| try court.done(index, refused_tag + 1, 0);
    try court.listen();
    try expectEqual(@as([peers_max]u32, @splat(0)), court.aborts[0..peers_max].*);
    try expectEqual(@as([peers_max]u32, @splat(0)), court.commits[0..peers_max].*);
    // Nobody is judged meanwhile.
    try court.pass(10 * court.c.run.options.silence_ns);
    try court.listen();
    try expectEqual(0b111, court.members_alive());
    try expectEqual(null, court.last_abort);
    try shelf.write(&court);
    try court.listen();
    try expectEqual(@as([peers_max]u32, @splat(1)), court.aborts[0..peers_max].*);
    try expectEqual(@as([peers_max]u32, @splat(1)), court.commits[0..peers_max].*);
    try expectEqual(.mismatch, court.last_abort.?.reason);
}

test "refusals that come while the disk is busy share one write" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    shelf.slow = true;
    const count = 2 * journal.refusals_max;
    const before = court.c.run.journal_progress.given;
    for (0..count) |number| try court.give_up(0, number);
    try expectEqual(before + 1, court.c.run.journal_progress.given);
    try shelf.write(&court);
    try court.listen();
    try expectEqual(1, court.aborts[1]);
    try expectEqual(before + 2, court.c.run.journal_progress.given);
    try shelf.write(&court);
    try court.listen();
    try expectEqual(count, court.aborts[1]);
    try expectEqual(Found{ .calls = count, .records = 3 }, try refusals_in(shelf.bytes.items));
    // A record about something else does not overtake them.
    for (0..2) |number| try court.give_up(0, count + number);
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try expectEqual(before + 5, court.c.run.journal_progress.given);
    try shelf.write(&court);
    try court.listen();
    try expectEqual(count + 2, court.aborts[1]);
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
    // It calls it again alone, as far as it knows.
    var said = court.running(refused_tag, 1);
    said.descriptor.count += 1;
    try court.say(2, .{ .report_op = said });
    try court.report_end(2);
    try court.listen();
    try expectEqual(1, court.aborts[2]);
    const abort = court.last_abort.?;
    try expectEqual(.mismatch, abort.reason);
    try expect(abort.peer.eql(id_of(0)) and abort.other.eql(id_of(2)));
    try expectEqual(court_file.descriptor, abort.descriptor);
    try expectEqual(said.descriptor, abort.other_descriptor);
    try court.done(2, refused_tag, 0);
    try court.listen();
    try expectEqual(0, court.commits[2]);
}

test "the next coordinator refuses again what some member has not seen, and no more" {
    for ([_][peers_max]u64{ .{ 2, 2, 2 }, .{ 2, 1, 2 }, .{ 0, 0, 0 } }) |seen| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        {
            try shelf.start(&court);
            defer court.c.destroy();
            try court.form();
            for (0..2) |number| try court.give_up(0, refused_tag + number);
        }
        try shelf.start(&court);
        defer court.c.destroy();
        try come_back(&court, seen);
        const news = 2 - std.mem.min(u64, &seen);
        for (0..peers_max) |index| try expectEqual(news, court.aborts[index]);
        const epoch = court.group().current().?;
        try expectEqual(news, epoch.outstanding().len);
        try expectEqual(0, epoch.members[0].caused);
        // When all have seen them they are over.
        for (0..peers_max) |index| try court.say_seen(index, epoch.decisions);
        try expectEqual(0, epoch.outstanding().len);
        court.c.run.journal_due = true;
        try court.pass(500 * court_file.ms);
        try expectEqual(Found{}, try refusals_in(shelf.bytes.items));
    }
}

test "a refusal that all have seen is forgotten with the next one, and when all is written anew" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        for (0..3) |number| try court.give_up(0, number);
        for (0..peers_max) |index| try court.say_seen(index, 3);
        try court.give_up(0, 3);
        try expectEqual(4, (try refusals_in(shelf.bytes.items)).calls);
    }
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try expectEqual(1, (try refusals_in(shelf.bytes.items)).calls);
        // A refusal that is decided again takes the place of the earlier one.
        try come_back(&court, .{ 3, 3, 3 });
        try expectEqual(1, court.aborts[0]);
        try expectEqual(2, (try refusals_in(shelf.bytes.items)).calls);
    }
    try shelf.start(&court);
    defer court.c.destroy();
    try expectEqual(1, (try refusals_in(shelf.bytes.items)).calls);
}

test "a refusal waits for no journal that has failed, and is in the next whole one" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    shelf.slow = true;
    for (0..2) |number| try court.give_up(0, number);
    shelf.full = true;
    try shelf.write(&court);
    try expectEqual(.failed, court.c.run.journal_state);
    try court.listen();
    try expectEqual(2, court.aborts[1]);
    try court.give_up(0, 2);
    try court.listen();
    try expectEqual(3, court.aborts[1]);
    shelf.full = false;
    shelf.slow = false;
    try court.pass(court.c.run.options.journal_retry_ns);
    try expectEqual(.ok, court.c.run.journal_state);
    try expectEqual(3, (try refusals_in(shelf.bytes.items)).calls);
}

test "refusals of an epoch that ends while they wait hold up nobody" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    shelf.slow = true;
    for (0..2) |number| try court.give_up(0, number);
    try expect(court.c.run.journal_progress.refusals_wait);
    // All say that they have seen what none of them can have heard.
    for (0..peers_max) |index| try court.say_seen(index, 2);
    try shelf.write(&court);
    try court.listen();
    try expectEqual(2, court.aborts[1]);
    try expectEqual(court.c.run.journal_progress.given, court.c.run.journal_progress.settled);
    try expectEqual(1, (try refusals_in(shelf.bytes.items)).calls);
}

test "one who has calls refused all the time does not keep a mute member from being let go" {
    // Method: something waits for the disk whenever the coordinator looks, and never for long.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try shelf.start(&court);
    defer court.c.destroy();
    try court.form();
    shelf.slow = true;
    for (0..base.limits.decisions_untold_max) |number| try court.give_up(0, number);
    const until = court.now + 3 * court.c.run.options.silence_ns;
    var number: u64 = base.limits.decisions_untold_max;
    while (court.peers[2] != null) : (number += 1) {
        try expect(court.now < until);
        try court.give_up(0, number);
        try court.pass(500 * court_file.ms);
        try court.listen();
        for (0..2) |index| try court.say_seen(index, court.group().current().?.decisions);
        for (0..2) |_| try shelf.write(&court);
    }
    try expectEqual(0b011, court.members_alive());
}
