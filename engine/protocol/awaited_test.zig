//! Peers whose `admit` others wait for: who hears of them, and when (debt.zig). The harness:
//! court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = court_file.ms;
const second = 1000 * ms;
const id_of = court_file.id_of;

const Told = struct {
    count: u32 = 0,
    why: control.Awaited.Why = .begin,
    first: base.PeerId = .none,
    label: base.Label = .{},
    rank: u16 = 0,
};

/// The last that a peer was told since it was asked last.
fn told(court: *Court, index: usize) !Told {
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
fn begin(court: *Court, entered: usize) !void {
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
    try expectEqual(0, (try told(&court, 0)).count);
    try court.listen();
    for (0..2) |index| try court.prepare(index, court.round, true);
    try court.prepare(2, court.round, false);
    try court.pass(4 * second);
    for (0..3) |index| try expectEqual(0, (try told(&court, index)).count);
    try court.pass(2 * second);
    for (0..2) |index| {
        const it = try told(&court, index);
        try expectEqual(1, it.count);
        try expect(it.first.eql(id_of(2)));
        try std.testing.expectEqualStrings("node7:42", it.label.slice());
        try expectEqual(.begin, it.why);
        try expectEqual(base.limits.peers_max, it.rank);
    }
    try expectEqual(0, (try told(&court, 2)).count);
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
    try begin(&court, 2);
    defer court.c.destroy();
    try court.connect(3);
    try court.pass(6 * second);
    for (0..3) |index| try expectEqual(0, (try told(&court, index)).count);
    const it = try told(&court, 3);
    try expectEqual(1, it.count);
    try expect(it.first.eql(id_of(2)));
    try expectEqual(.safe_point, it.why);
    try expectEqual(2, it.rank);
    try court.enter(2);
    try court.pass(20 * second);
    try expectEqual(0, (try told(&court, 3)).count);
    try expect(try in_status(&court, "", ",\"epochs\""));
}

test "newcomers hear of a member that is away before it has come to the safe point" {
    var court: Court = undefined;
    try begin(&court, 1);
    defer court.c.destroy();
    court.hang_up(2);
    court.c.run.options.silence_ns = 60 * second;
    try court.connect(3);
    try court.pass(6 * second);
    const it = try told(&court, 3);
    // Rank 1 has not come to it either, and is there.
    try expectEqual(.away, it.why);
    try expectEqual(1, it.count);
    try expect(it.first.eql(id_of(2)));
    try expectEqual(2, it.rank);
    try court.come_back(2, 1);
    try court.pass(6 * second);
    const later = try told(&court, 3);
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
    const it = try told(&court, 3);
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
    const it = try told(&court, 4);
    try expectEqual(1, it.count);
    try expectEqual(.in_flight, it.why);
    try expectEqual(1, it.rank);
    try expect(it.first.eql(id_of(1)));
}
