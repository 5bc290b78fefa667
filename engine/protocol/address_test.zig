//! Addresses, seen from outside: nobody is told an address that is not known to be the peer's, and
//! who waits for the answer. The rules: door.zig. The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("address.zig");
const court_file = @import("court_test.zig");
const Peer = @import("peer.zig").Peer;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectEqualStrings = std.testing.expectEqualStrings;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const id_of = court_file.id_of;
const Court = court_file.Court;

fn init(court: *Court) !void {
    try court.init(gpa);
    court.c.run.options.initial_world_size = 1;
}

fn knock(court: *Court, index: usize) !void {
    try court.knock(index, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = id_of(index),
        .instance = 1 + index,
    });
}

fn join(court: *Court, index: usize, address: []const u8) !void {
    try begin_join(court, index, address);
    try court.say(index, .{ .join_end = .{} });
}

fn begin_join(court: *Court, index: usize, address: []const u8) !void {
    try begin_join_of(court, index, "g", address);
}

fn begin_join_of(court: *Court, index: usize, name: []const u8, address: []const u8) !void {
    try court.say(index, .{ .join = .{
        .name = .of(name),
        .address = .of(address),
        .address_key = @splat(7),
        .advertised = court.advertises,
        .initial_world_size = 0,
        .round = 0,
        .stop_round = 0,
    } });
}

fn address_of(court: *const Court, index: usize) []const u8 {
    return court.c.run.peer_of(id_of(index)).?.address;
}

/// This text is in what a peer was told and has not read yet.
fn was_told(court: *const Court, index: usize, text: []const u8) !bool {
    const bytes = try court.unread(index);
    defer gpa.free(bytes);
    return std.mem.indexOf(u8, bytes, text) != null;
}

test "an address that is not known to be the peer's is told to nobody, and then in numbers" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.c.run.options.initial_world_size = 2;
    try knock(&court, 1);
    try join(&court, 1, "192.0.2.8:80");
    court.reply = .later;
    try knock(&court, 0);
    try join(&court, 0, "a.third.party:80");
    try expectEqual(2, court.asked);
    try court.listen();
    try expectEqual(0, court.round); // not even a round of its own
    try expect(!court.c.run.is_member(court.c.run.peer_of(id_of(0)).?));
    // It is there as long as it says that it lives.
    for (0..40) |_| {
        court.now += 500 * ms;
        for (0..2) |index| try court.beat(index);
        court.c.tick(court.now);
    }
    try expect(court.peers[0] != null);
    try expectEqual(2, court.asked);
    court.c.answered(court.now, court.last_question, .{ .found = "192.0.2.7:80" });
    try expect(try was_told(&court, 1, "192.0.2.7:80"));
    try expect(!try was_told(&court, 1, "a.third.party"));
    try court.listen();
    try expectEqual(.prepare, court.group().phase);
}

test "where a connection comes from is believed, and nothing else" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.reply = .later;
    court.source = (try base.Endpoint.parse("10.0.0.1:1")).source().?;
    try knock(&court, 0);
    try join(&court, 0, "[::ffff:10.0.0.1]:80");
    try expectEqual(0, court.asked);
    try expectEqualStrings("[::ffff:10.0.0.1]:80", address_of(&court, 0));
    for ([_][]const u8{ "10.0.0.2:80", "localhost:80" }, 1..) |address, index| {
        try knock(&court, index);
        try join(&court, index, address);
        court.now += 50 * ms;
        court.c.tick(court.now);
        try expectEqual(index, court.asked);
        try expectEqualStrings("", address_of(&court, index));
    }
}

test "a peer that is not found hears why, and keeps its connection" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.reply = .later;
    try knock(&court, 0);
    try join(&court, 0, "192.0.2.1:80");
    court.c.answered(court.now, court.last_question, .{ .not_found = .refused });
    try expect(try was_told(&court, 0, "192.0.2.1:80"));
    try expect(try was_told(&court, 0, "advertise"));
    try court.listen();
    try expect(court.refused and court.peers[0] != null);
    try expectEqual(0, court.group().newcomers.items.len);
    // With another address it is let in.
    court.now += 50 * ms;
    try join(&court, 0, "192.0.2.2:80");
    court.c.answered(court.now, court.last_question, .{ .found = "192.0.2.2:80" });
    try expectEqual(1, court.group().newcomers.items.len);
}

test "a peer that has named no address enters without one, and hears that nobody dials it" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.advertises = false;
    court.reply = .later;
    try knock(&court, 0);
    try join(&court, 0, "192.168.1.7:80");
    try expectEqual(0, court.group().newcomers.items.len);
    court.c.answered(court.now, court.last_question, .{ .not_found = .no_answer });
    try expectEqual(1, court.group().newcomers.items.len);
    try expectEqualStrings("", address_of(&court, 0));
    try expect(try was_told(&court, 0, "192.168.1.7:80"));
    try court.listen();
    try expect(!court.refused);
    // It comes back, and is looked for once more.
    court.hang_up(0);
    try knock(&court, 0);
    court.now += 50 * ms;
    try join(&court, 0, "192.168.1.7:80");
    try expectEqual(2, court.asked);
}

/// Where the peer that was asked about last is to be looked for besides.
fn seen(court: *const Court) []const u8 {
    return court.last_seen[0..court.last_seen_bytes];
}

fn comes_from(court: *Court, host: []const u8) !void {
    var text: [32]u8 = undefined;
    const address = try std.fmt.bufPrint(&text, "{s}:9", .{host});
    court.source = (try base.Endpoint.parse(address)).source().?;
}

test "a peer may be where its connection comes from, at its own port, and others are told that" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.c.run.options.initial_world_size = 2;
    try comes_from(&court, "192.0.2.50");
    try knock(&court, 1);
    try join(&court, 1, "192.0.2.50:80");
    court.reply = .later;
    court.advertises = false;
    try comes_from(&court, "192.0.2.7");
    try knock(&court, 0);
    try join(&court, 0, "10.0.0.4:29400");
    try expectEqualStrings("192.0.2.7:29400", seen(&court));
    // It is not believed before it is found there.
    try expectEqualStrings("", address_of(&court, 0));
    court.c.answered(court.now, court.last_question, .{ .found = "192.0.2.7:29400" });
    try expect(try was_told(&court, 1, "192.0.2.7:29400"));
    try expect(!try was_told(&court, 1, "10.0.0.4"));
}

test "a member that was found where it came from is looked for again when it comes from elsewhere" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.advertises = false;
    court.reply = .later;
    const peer = court.c.run.peer_of(id_of(2)).?;
    const own = "10.0.0.4:29400";
    gpa.free(peer.claim.text);
    peer.claim.text = try gpa.dupe(u8, own);
    peer.claim.advertised = false;
    gpa.free(peer.address);
    peer.address = try gpa.dupe(u8, "192.0.2.7:29400");
    const asked = court.asked;
    for ([_][]const u8{ "192.0.2.7", "192.0.2.8" }, 0..) |host, more| {
        court.hang_up(2);
        try comes_from(&court, host);
        try knock(&court, 2);
        court.now += 50 * ms;
        try begin_join(&court, 2, own);
        try court.report_epoch(2, court.attempt, 0, .full(court_file.peers_max));
        try court.say(2, .{ .join_end = .{} });
        try expectEqual(asked + more, court.asked);
    }
    try expectEqualStrings("192.0.2.8:29400", seen(&court));
    try expectEqualStrings("192.0.2.7:29400", peer.address);
}

test "a named address is meant so, and a loopback interface is no way for others" {
    for ([_]bool{ true, false }, [_][]const u8{ "192.0.2.7", "127.0.0.1" }) |advertises, host| {
        var court: Court = undefined;
        try init(&court);
        defer court.c.destroy();
        court.reply = .later;
        court.advertises = advertises;
        try comes_from(&court, host);
        try knock(&court, 0);
        try join(&court, 0, "10.0.0.4:29400");
        try expectEqual(1, court.asked);
        try expectEqualStrings("", seen(&court));
    }
}

test "the answer about a peer that has gone, or says something else by now, is for nobody" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.reply = .later;
    try knock(&court, 0);
    try join(&court, 0, "192.0.2.1:80");
    const first = court.last_question;
    court.hang_up(0);
    court.c.answered(court.now, first, .{ .found = "192.0.2.1:80" });
    try knock(&court, 0);
    court.now += 50 * ms;
    try join(&court, 0, "192.0.2.1:80");
    const second = court.last_question;
    try expect(second != first);
    court.c.answered(court.now, first, .{ .found = "192.0.2.1:80" });
    try expectEqualStrings("", address_of(&court, 0));
    // Another address, with the join of another group, while the first is being looked for.
    court.now += 50 * ms;
    try begin_join_of(&court, 0, "h", "192.0.2.99:80");
    try court.say(0, .{ .join_end = .{} });
    court.c.answered(court.now, second, .{ .found = "192.0.2.1:80" });
    try expectEqualStrings("", address_of(&court, 0));
    court.c.answered(court.now, court.last_question, .{ .found = "192.0.2.99:80" });
    try expectEqualStrings("192.0.2.99:80", address_of(&court, 0));
    try expectEqual(1, court.group().newcomers.items.len);
}

test "questions for which there is no room are asked later, and not one upon the other" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.reply = .later;
    court.room = 0;
    for (0..3) |index| {
        try knock(&court, index);
        try join(&court, index, "192.0.2.1:80");
    }
    try expectEqual(0, court.asked);
    court.room = 3;
    court.c.tick(court.now);
    try expectEqual(1, court.asked); // and the next not at once
    const pace = court.c.next_deadline() - court.now;
    try expect(pace > 0 and pace <= 50 * ms);
    court.c.answered(court.now, court.last_question, .{ .not_found = .refused });
    try expectEqual(1, court.asked);
    for (2..4) |count| {
        court.now += 50 * ms;
        court.c.tick(court.now);
        try expectEqual(count, court.asked);
    }
}

test "networks take turns to be looked for, and those from where somebody was not found come last" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.reply = .later;
    court.room = 0;
    // Two networks have many who wait before one comes from a third.
    for (0..9) |index| {
        court.source = @splat(if (index == 8) 3 else @intCast(1 + index % 2));
        try knock(&court, index);
        try join(&court, index, "192.0.2.1:80");
    }
    var order: [9]usize = undefined;
    for (&order, 0..) |*place, turn| {
        court.room = 1;
        court.now += 50 * ms;
        court.c.tick(court.now);
        try expectEqual(turn + 1, court.asked);
        place.* = asked_of(&court);
    }
    try std.testing.expectEqualSlices(usize, &.{ 0, 1, 8 }, order[0..3]);
    try std.testing.expectEqualSlices(usize, &.{ 2, 3, 4, 5, 6, 7 }, order[3..]);
}

/// Whose question was the last.
fn asked_of(court: *const Court) usize {
    for (0..9) |index| {
        const peer = court.c.run.peer_of(id_of(index)) orelse continue;
        if (peer.claim.number == court.last_question) return index;
    }
    unreachable;
}

test "a network from where somebody was not found waits for the others, for a minute" {
    for ([_]bool{ true, false }) |waits| {
        var court: Court = undefined;
        try init(&court);
        defer court.c.destroy();
        court.reply = .later;
        court.source = @splat(1);
        try knock(&court, 0);
        try join(&court, 0, "192.0.2.1:80");
        court.room = 0;
        court.c.answered(court.now, court.last_question, .{ .not_found = .no_answer });
        if (!waits) try court.pass(60_000 * ms);
        for (1..3) |index| {
            court.source = @splat(@intCast(index));
            try knock(&court, index);
            try join(&court, index, "192.0.2.1:80");
        }
        court.room = 1;
        try court.pass(500 * ms);
        try expectEqual(@as(usize, if (waits) 2 else 1), asked_of(&court));
    }
}

/// As after a restart: the last of the three is a member, and where it is dialed is not known.
fn forget_address(court: *Court) !*Peer {
    const peer = court.c.run.peer_of(id_of(2)).?;
    gpa.free(peer.address);
    peer.address = &.{};
    gpa.free(peer.claim.text);
    peer.claim.text = &.{};
    court.hang_up(2);
    court.reply = .later;
    try court.come_back(2, court.attempt);
    return peer;
}

test "members are looked for again after a restart, and stay whatever comes of it" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const peer = try forget_address(&court);
    try court.say(2, .{ .join_end = .{} });
    try court.listen();
    try expectEqual(1, court.asked - 3);
    try expectEqual(0b111, court.members_alive());
    // No round begins before newcomers can be told where it is.
    try court.say(1, .{ .leave = .{ .group = 0 } });
    try court.next_round();
    try expectEqual(.idle, court.group().phase);
    court.c.answered(court.now, court.last_question, .{ .not_found = .refused });
    try expectEqual(.prepare, court.group().phase);
    try expectEqual(0b101, court.members_alive());
    // It is looked for again later.
    court.now += 10_000 * ms;
    court.c.tick(court.now);
    try expectEqual(2, court.asked - 3);
    court.c.answered(court.now, court.last_question, .{ .found = "192.0.2.3:80" });
    try expectEqualStrings("192.0.2.3:80", peer.address);
}

test "one behind NAT is told about once, with its name, and a warning is for a named address" {
    for ([_]bool{ false, true }) |advertises| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        court.advertises = advertises;
        const peer = try forget_address(&court);
        peer.label = .shown("node7:42");
        try court.say(2, .{ .join_end = .{} });
        court.said_bytes = 0;
        for (0..2) |_| {
            court.c.answered(court.now, court.last_question, .{ .not_found = .no_answer });
            court.now += 10_000 * ms;
            for (0..3) |index| try court.beat(index);
            court.c.tick(court.now);
        }
        var text: [200]u8 = undefined;
        try court.expect_said(try std.fmt.bufPrint(&text, "{s} peer 03000000 (node7:42) is not " ++
            "found at a:1: newcomers are not told where it is", .{
            if (advertises) "warning" else "info",
        }));
        const said = court.said[0..court.said_bytes];
        try expectEqual(1, std.mem.count(u8, said, "is not found at"));
    }
}

test "a newcomer behind NAT is told about once, and warns nobody" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.advertises = false;
    court.reply = .later;
    try knock(&court, 0);
    try join(&court, 0, "192.168.1.7:80");
    court.c.answered(court.now, court.last_question, .{ .not_found = .no_answer });
    try court.expect_said("info peer 01000000 is not found at 192.168.1.7:80 (no answer in " ++
        "5 s (a firewall or NAT?)): it can dial the others, but nobody can dial it");
    const said = court.said[0..court.said_bytes];
    try expectEqual(1, std.mem.count(u8, said, "is not found at"));
}

test "a member that comes back with its address is not looked for again" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.hang_up(2);
    court.reply = .later;
    try court.come_back(2, court.attempt);
    try court.say(2, .{ .join_end = .{} });
    try expectEqual(3, court.asked);
    try expectEqualStrings("a:1", address_of(&court, 2));
}

test "a peer of the coordinator's machine is told to others where they have reached that machine" {
    var court: Court = undefined;
    try init(&court);
    defer court.c.destroy();
    court.c.run.options.initial_world_size = 3;
    // 0 and 2 come over the loopback interface, 1 from another machine.
    const hosts = [_][]const u8{ "127.0.0.1", "192.0.2.7", "127.0.0.1" };
    const here = (try base.Endpoint.parse("192.0.2.1:1")).source().?;
    for (hosts, 0..) |host, index| {
        var text: [32]u8 = undefined;
        const address = try std.fmt.bufPrint(&text, "{s}:4{d}", .{ host, index });
        court.source = (try base.Endpoint.parse(address)).source().?;
        try knock(&court, index);
        if (index == 1) court.peers[index].?.here = here;
        try join(&court, index, address);
    }
    // In rounds and in answers to questions.
    try expect(try was_told(&court, 1, "192.0.2.1:40"));
    try expect(!try was_told(&court, 1, "127.0.0.1:40"));
    try court.listen();
    try court.say(1, .{ .ask_address = .{ .group = 0, .peer = id_of(2) } });
    try expect(try was_told(&court, 1, "192.0.2.1:42"));
    // Peers of one machine meet on its loopback interface, and other addresses are what they are.
    var room: addresses.Room = undefined;
    const local = court.c.run.peer_of(id_of(0)).?;
    const remote = court.c.run.peer_of(id_of(1)).?;
    const neighbour = court.c.run.peer_of(id_of(2)).?;
    try expectEqualStrings("127.0.0.1:40", neighbour.told_to(local, &room));
    try expectEqualStrings("192.0.2.7:41", local.told_to(remote, &room));
    // One that does not know where it has reached the coordinator is told nothing that is wrong.
    remote.connection.?.here = @splat(0);
    try expectEqualStrings("", remote.told_to(local, &room));
}
