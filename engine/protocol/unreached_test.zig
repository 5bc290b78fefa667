//! Unreached, seen from outside: who hears of a dial that failed, how often, and until when. The
//! rules: membership.zig. The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Dialed = wire.Dialed;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const id_of = court_file.id_of;
const Court = court_file.Court;

/// Three members, and 3 and 4, which are in a round.
fn form(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.connect(3);
    try court.connect(4);
    try court.next_round();
    try court.listen();
}

/// Whether there is something new for this peer about an address.
fn hears(court: *Court, index: usize) !bool {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    return std.mem.indexOf(u8, bytes, "a:1") != null;
}

fn claim_of(court: *Court) ?Dialed {
    const claims = court.group().unreached.claims.items;
    return if (claims.len > 0) claims[0].dialed else null;
}

test "a peer hears who could not dial it, and the log says so, until it can" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    // Nothing has failed yet, or nobody is in the round whom it names.
    try court.lack_dialed(4, &.{id_of(3)}, .pending);
    try court.lack_dialed(4, &.{id_of(50)}, .refused);
    try expectEqual(null, claim_of(&court));
    for ([_]usize{ 3, 4 }, [_][]const u8{ "n3", "n4" }) |index, label|
        court.peers[index].?.peer.?.label = .shown(label);
    court.dialed_from = (try base.Endpoint.parse("10.0.0.7:1")).source().?;
    try court.lack_dialed(4, &.{id_of(3)}, .refused);
    try expect(try hears(&court, 3));
    try expect(!try hears(&court, 4));
    const told = try court.status();
    try expect(std.mem.indexOf(u8, told, "\"address\":\"a:1\",\"from\":\"10.0.0.7\"") != null);
    try court.expect_said("warning peer 05000000 (n4) cannot dial peer 04000000 (n3) at a:1 " ++
        "from 10.0.0.7: " ++
        "the connection was refused; " ++ wire.dialed.remedy);
    // It may say so as often as it likes: the others hear it now and then.
    court.said_bytes = 0;
    for ([_]Dialed{ .refused, .no_answer }) |dialed| {
        try court.lack_dialed(4, &.{id_of(3)}, dialed);
        try expect(!try hears(&court, 3));
        try expectEqual(dialed, claim_of(&court).?);
    }
    try expectEqual(0, court.said_bytes);
    try court.lack(4, &.{});
    try expectEqual(.pending, claim_of(&court).?);
    court.now += 31_000 * ms;
    try court.lack_dialed(4, &.{id_of(3)}, .refused);
    try expect(try hears(&court, 3));
    court.hang_up(4);
    try expectEqual(null, claim_of(&court));
}

test "why a link is down is known until it is up, though rounds do not wait for it" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    for ([_]wire.control.LinkHealth{ .silent, .down, .up }) |health| {
        try court.say(0, .{ .link_told = .{
            .other = id_of(3),
            .group = 0,
            .health = health,
            .dialed = if (health == .up) .pending else .no_answer,
        } });
        try expectEqual(health == .down, try hears(&court, 3));
        if (health != .down) continue;
        try court.lack(0, &.{});
        try expectEqual(.no_answer, claim_of(&court).?);
    }
    try expectEqual(.pending, claim_of(&court).?);
}

test "nobody is said to have been dialed at an address that is not known" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const peer = court.peers[3].?.peer.?;
    gpa.free(peer.address);
    peer.address = &.{};
    court.said_bytes = 0;
    try court.lack_dialed(4, &.{id_of(3)}, .no_address);
    try court.expect_said("warning peer 05000000 cannot dial peer 04000000: " ++
        "its address is not known; " ++ wire.dialed.remedy);
}

test "a newcomer that cannot dial a member which is away hears of that, and nobody of ports" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const is_told = struct {
        fn of_away(it: *Court, index: usize) !bool {
            const bytes = try it.told(index);
            defer gpa.free(bytes);
            var rest: []const u8 = bytes;
            while (try Court.next_of(&rest)) |message| {
                it.hear(index, message);
                if (message != .awaited) continue;
                var peers = message.awaited.peers.iterator();
                const first = peers.next().?;
                try expectEqual(.away, message.awaited.why);
                try expectEqual(1, message.awaited.count);
                try expectEqual(1, first.rank);
                try expect(first.id.eql(id_of(1)));
                return true;
            }
            return false;
        }
    }.of_away;
    court.hang_up(1);
    court.said_bytes = 0;
    // No dial has failed yet.
    try court.lack_dialed(4, &.{id_of(1)}, .pending);
    try expect(!try is_told(&court, 4));
    try court.lack_dialed(4, &.{id_of(1)}, .refused);
    try expect(try is_told(&court, 4));
    try expect(!try is_told(&court, 3));
    try court.say(4, .{ .link_told = .{
        .other = id_of(1),
        .group = 0,
        .health = .down,
        .dialed = .refused,
    } });
    const said = court.said[0..court.said_bytes];
    try expectEqual(null, std.mem.indexOf(u8, said, "cannot dial"));
    const status = try court.status();
    const wanted = "\"unreached\":[],\"awaited\":[\"" ++ comptime id_of(1).hex() ++
        "\"],\"awaits\":\"away\"";
    try expect(std.mem.indexOf(u8, status, wanted) != null);
    // It is back, and still cannot be dialed: that is a matter of ports.
    try court.come_back(1, 1);
    try court.say(1, .{ .join_end = .{} });
    try court.next_round();
    try court.listen();
    try court.lack_dialed(4, &.{id_of(1)}, .refused);
    try expect(!try is_told(&court, 4));
    try court.expect_said("warning peer 05000000 cannot dial peer 02000000 at a:1: " ++
        "the connection was refused; " ++ wire.dialed.remedy);
}
