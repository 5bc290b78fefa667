//! How a coordinator goes on while its disk takes long: messages that rely on a record wait for it,
//! and no others do. Next: peer.zig, where messages wait; log.zig, which says for which
//! record.

const std = @import("std");
const limits = @import("base").limits;
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const Shelf = court_file.Shelf;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const ms = court_file.ms;

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
