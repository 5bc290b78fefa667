//! Rules of dialing a peer back: who is asked, for whom, how often, and what is believed. The
//! harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const DialBack = @import("run.zig").DialBack;
const Court = court_file.Court;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectEqualStrings = std.testing.expectEqualStrings;
const gpa = std.testing.allocator;
const id_of = court_file.id_of;
const members = court_file.peers_max;
const ms = court_file.ms;

/// The places of a peer that wants to be dialed, and of whoever asks for that.
const wants = members;
const asks = 60;

fn ask(court: *Court, index: usize) !void {
    try court.knock(asks, .{ .purpose = .status, .run_id = @splat(1), .from = .none });
    try court.say(asks, .{ .status_request = .{ .dial_back = id_of(index) } });
    court.hang_up(asks);
}

/// The dial that this member was asked for since the last time.
fn dials_of(court: *Court, index: usize) !?control.DialBack {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var found: ?control.DialBack = null;
    var rest: []const u8 = bytes;
    while (try Court.next_of(&rest)) |message| switch (message) {
        .dial_back => |body| {
            try expectEqual(null, found);
            try expectEqualStrings("a:1", body.address.data);
            found = body;
        },
        else => {},
    };
    return found;
}

fn answer(court: *Court, index: usize, dialed: wire.Dialed, key: u8) !void {
    const asked = &court.c.run.dial_back;
    const bytes: wire.hello.Key = @splat(key);
    try court.say(index, .{ .dialed_back = .{
        .nonce = asked.nonce,
        .dialed = dialed,
        .proof = wire.hello.proof(&bytes, @splat(1), asked.peer, asked.nonce),
    } });
}

test "members dial whom somebody of its host asks for, and its own proof alone is believed" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(wants);
    try court.listen();
    try ask(&court, wants);
    const asked = &court.c.run.dial_back;
    for (0..members) |index| {
        const told = (try dials_of(&court, index)).?;
        try expectEqual(id_of(wants), told.peer);
        try expectEqual(asked.nonce, told.nonce);
    }
    try expectEqual(null, try dials_of(&court, wants));
    try answer(&court, 0, .pending, 0);
    try answer(&court, 1, .pending, 1); // somebody else's key
    try expect(!asked.is_over(court.now));
    try answer(&court, wants, .refused, 0); // nobody has asked it
    try answer(&court, 2, .refused, 0);
    try answer(&court, 2, .pending, 0); // it has said so already
    const wanted = [_]wire.Dialed{ .pending, .other_answers, .refused };
    try expectEqual(members, asked.count);
    for (asked.slice(), wanted) |*entry, dialed| try expectEqual(dialed, entry.answer);
    try expect(asked.is_over(court.now));
    const json = try court.status();
    for ([_][]const u8{
        "\"state\":\"reached\",\"address\":\"a:1\"}",
        "\"state\":\"failed\",\"address\":\"a:1\",\"why\":\"something else answers there\"}",
        "\"over\":true,\"left_out\":0",
    }) |part| try expect(std.mem.indexOf(u8, json, part) != null);
}

test "nobody has members dial a peer of another host, one that is away, or one without address" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(wants);
    court.source = (try base.Endpoint.parse("192.0.2.7:1")).source().?;
    try ask(&court, wants);
    try expectEqual(base.PeerId.none, court.c.run.dial_back.peer);
    court.source = @splat(0);
    try ask(&court, wants + 1);
    try expectEqual(base.PeerId.none, court.c.run.dial_back.peer);
    try ask(&court, 2); // a member may, too
    try expectEqual(members - 1, court.c.run.dial_back.count);
    court.hang_up(2);
    court.now += 2000 * ms;
    try ask(&court, 2);
    try expectEqual(null, try dials_of(&court, wants));
    try expect((try dials_of(&court, 0)) != null);

    court.now += 60_000 * ms;
    const peer = court.c.run.peer_of(id_of(wants)).?;
    peer.claim.state = .asked; // it is looked for still
    try ask(&court, wants);
    try expectEqual(null, try dials_of(&court, 0));
    peer.claim.failed = true; // and again, as a member
    court.c.run.gpa.free(peer.address);
    peer.address = &.{};
    try ask(&court, wants);
    try expectEqual(null, try dials_of(&court, 0));
    try expectEqual(2, court.c.run.dial_back.count);
    for (court.c.run.dial_back.slice()) |*entry| try expectEqual(.no_address, entry.answer);
}

test "one peer is dialed at a time, a second apart, and none again within a minute" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..3) |index| try court.connect(wants + index);
    const asked = &court.c.run.dial_back;
    try ask(&court, wants);
    const began_at = asked.began_at;
    const nonce = asked.nonce;
    court.now += 2000 * ms;
    try ask(&court, wants + 1); // the first one's answers are still to come
    try expectEqual(id_of(wants), asked.peer);
    for (0..members) |index| try answer(&court, index, .pending, 0);
    try ask(&court, wants + 1);
    try expectEqual(id_of(wants + 1), asked.peer);
    try expect(!std.mem.eql(u8, &nonce, &asked.nonce));
    try court.say(0, .{ .dialed_back = .{
        .nonce = nonce,
        .dialed = .refused,
        .proof = @splat(0),
    } });
    try expectEqual(null, asked.slice()[0].answer); // of the one before
    for (0..members) |index| try answer(&court, index, .refused, 0);
    court.now += 999 * ms;
    try ask(&court, wants + 2);
    try expectEqual(id_of(wants + 1), asked.peer);
    court.now += 1 * ms;
    try ask(&court, wants + 2);
    try expectEqual(id_of(wants + 2), asked.peer);
    // Members that say nothing are waited for as long as a dial may take.
    try ask(&court, wants + 2);
    court.now += 7999 * ms;
    try ask(&court, wants + 1);
    try expectEqual(id_of(wants + 2), asked.peer);
    try expectEqual(began_at + 3000 * ms, asked.began_at);
    court.now += 1 * ms;
    try expect(asked.is_over(court.now));
    try ask(&court, wants + 2);
    try expectEqual(began_at + 3000 * ms, asked.began_at);
    court.now = asked.began_at + 60_000 * ms;
    try expect(!asked.is_shown(court.now));
    try ask(&court, wants + 2);
    try expectEqual(court.now, asked.began_at);
}

test "of many members so few dial a peer that its places for strangers last" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form_with(DialBack.members_max - members + 2);
    const last = DialBack.members_max + 2;
    try court.connect(last);
    try ask(&court, last);
    try expectEqual(DialBack.members_max, court.c.run.dial_back.count);
    try expectEqual(2, court.c.run.dial_back.left_out);
    for (court.c.run.dial_back.slice(), 0..) |*entry, index| {
        try expectEqual(null, entry.answer);
        for (court.c.run.dial_back.slice()[0..index]) |*other| try expect(!entry.id.eql(other.id));
    }
}
