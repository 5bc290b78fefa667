//! Refused calls in the journal: no member hears of one before the disk has it, many share a write,
//! and a coordinator that starts again refuses those that some member may not have heard of. The
//! rules: log.zig; in a world: tests/sim/scenarios/refused_across_a_restart.txt. The harness:
//! court_test.zig.

const std = @import("std");
const base = @import("base");
const court_file = @import("court_test.zig");
const journal = @import("journal.zig");
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

const Court = court_file.Court;
const Shelf = court_file.Shelf;
const id_of = court_file.id_of;
const peers_max = court_file.peers_max;
const tag = 5;

/// The last member votes for something else than the others, so the call is refused.
fn differ(court: *Court) !void {
    for (0..peers_max) |index| {
        var said = court.vote(tag, 0);
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
    for (0..peers_max) |index| try court.done(index, tag + 1, 0);
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
    var said = court.running(tag, 1);
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
    try court.done(2, tag, 0);
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
            for (0..2) |number| try court.give_up(0, tag + number);
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
