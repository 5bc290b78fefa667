//! Members that have not entered their epoch: who hears of them, and when (debt.zig). The
//! harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = court_file.ms;
const newcomer = court_file.peers_max;

/// The ranks that a peer was told are missing, since this was asked last; null: nothing.
fn told(court: *Court, index: usize) !?base.Mask {
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

fn ranks(comptime list: []const u16) base.Mask {
    var mask: base.Mask = .empty;
    inline for (list) |rank| mask.set(rank);
    return mask;
}

/// An epoch of three members and a newcomer, none of which has entered.
fn begin(court: *Court) !void {
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
    try begin(&court);
    try court.enter(newcomer);
    // It takes nobody for there who has not been named.
    try expectEqual(null, try told(&court, newcomer));
    try court.pass(500 * ms);
    try expectEqual(ranks(&.{ 0, 1, 2 }), (try told(&court, newcomer)).?);
    try court.enter(0);
    try court.enter(1);
    try expectEqual(null, try told(&court, newcomer)); // those who come together cost one message
    try court.pass(500 * ms);
    for (0..newcomer + 1) |index| try expectEqual(ranks(&.{2}), (try told(&court, index)).?);
    try court.enter(2);
    for (0..newcomer + 1) |index| try expect((try told(&court, index)).?.is_empty());
    try court.pass(500 * ms);
    try expectEqual(null, try told(&court, newcomer));
}

test "the last member from before is news at once, whichever newcomers are missing" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try begin(&court);
    for (0..2) |index| try court.enter(index);
    try expectEqual(null, try told(&court, newcomer));
    try court.enter(2);
    try expectEqual(ranks(&.{newcomer}), (try told(&court, newcomer)).?);
}

test "a member that is lost is not missing" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try begin(&court);
    for (0..2) |index| try court.enter(index);
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try court.pass(500 * ms);
    try expectEqual(ranks(&.{newcomer}), (try told(&court, newcomer)).?);
    try court.enter(newcomer);
    try expect((try told(&court, 0)).?.is_empty());
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
    try expect((try told(&court, 0)).?.is_empty());
}
