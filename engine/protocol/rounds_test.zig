//! Rounds, seen from outside: what counts in which of them, what begins one again, and whom it does
//! not wait for. Rounds: membership.zig. The harness: court_test.zig. Under every order of events:
//! tests/sim.

const std = @import("std");
const court_file = @import("court_test.zig");
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const Court = court_file.Court;

fn prepared(court: *Court, index: usize, round: u64, entering: bool) !void {
    try court.prepare(index, round, entering);
    try court.listen();
}

fn stopped(court: *Court, index: usize, round: u64) !void {
    try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = round,
        .count = court.safe_point,
    } });
    try court.listen();
}

fn leave(court: *Court, index: usize) !void {
    try court.say(index, .{ .leave = .{ .group = 0 } });
    try court.next_round();
}

/// The third has left, and the first two answer until they are alone.
fn go_on_in_two(court: *Court) !void {
    for (0..2) |index| try prepared(court, index, court.round, true);
    for (0..2) |index| try stopped(court, index, court.round);
    for (0..2) |index| {
        try court.enter(index);
        try court.say(index, .{ .epoch_closed = .{ .group = 0, .epoch = court.epoch - 1 } });
    }
    try court.listen();
}

/// The first two are members, and the third a newcomer that a round is begun for.
fn form_with_newcomer(court: *Court) !void {
    try court.init(gpa);
    try court.form();
    try leave(court, 2);
    try go_on_in_two(court);
    try expectEqual(.idle, court.group().phase);
    court.hang_up(2);
    try come_anew(court);
}

fn come_anew(court: *Court) !void {
    try court.connect(2);
    try court.next_round();
    try expectEqual(.prepare, court.group().phase);
}

test "what a member says of another round does not count" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try leave(&court, 2);
    const round = court.round;
    const group = court.group();
    try expectEqual(.prepare, group.phase);
    try prepared(&court, 0, round, true);
    try prepared(&court, 1, round - 1, true);
    try expectEqual(.prepare, group.phase);
    try prepared(&court, 1, round, true);
    try expectEqual(.ask, group.phase);
    try stopped(&court, 0, round);
    try stopped(&court, 1, round - 1);
    try expectEqual(.ask, group.phase);
    try stopped(&court, 1, round);
    try expectEqual(.activate, group.phase);
}

test "members tell their safe points in each round anew" {
    var court: Court = undefined;
    try form_with_newcomer(&court);
    defer court.c.destroy();
    const group = court.group();
    for (0..3) |index| try prepared(&court, index, court.round, true);
    try expectEqual(.ask, group.phase);
    try stopped(&court, 0, court.round);
    court.hang_up(2);
    try court.listen();
    try expectEqual(.idle, group.phase);
    try court.pass(1000 * ms); // it has left a round
    try come_anew(&court);
    for (0..3) |index| try prepared(&court, index, court.round, true);
    try stopped(&court, 1, court.round);
    try expectEqual(.ask, group.phase);
    try stopped(&court, 0, court.round);
    try expectEqual(.activate, group.phase);
}

test "a preparation begins again without a member that is lost, and newcomers prepare anew" {
    var court: Court = undefined;
    try form_with_newcomer(&court);
    defer court.c.destroy();
    const group = court.group();
    const first = court.round;
    try prepared(&court, 2, first, true);
    try leave(&court, 1);
    try expectEqual(first, court.released[2]);
    try expect(court.round > first);
    try prepared(&court, 0, court.round, true);
    // It has some time to open its lanes.
    try court.pass(1500 * ms);
    try court.listen();
    try expectEqual(first, court.released[2]);
    try expect(group.newcomers.items[0].in_round);
    try prepared(&court, 2, court.round, true);
    try expectEqual(.ask, group.phase);
}

test "the next round begins when all have entered" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..3) |index| try court.connect(index);
    try court.listen();
    for (0..3) |index| try prepared(&court, index, court.round, true);
    const first = court.round;
    const group = court.group();
    for (0..2) |index| try court.enter(index);
    try leave(&court, 1);
    try expectEqual(.activate, group.phase);
    try expectEqual(first, court.round);
    try court.enter(2);
    try court.listen();
    try expectEqual(.prepare, group.phase);
    try expect(court.round > first);
}

test "a newcomer whose user is not ready is left out of the next round" {
    var court: Court = undefined;
    try form_with_newcomer(&court);
    defer court.c.destroy();
    const group = court.group();
    try leave(&court, 1);
    const first = court.round;
    try prepared(&court, 0, first, true);
    try prepared(&court, 2, first, false);
    try court.pass(2000 * ms);
    try court.listen();
    try expectEqual(first, court.released[2]);
    try expect(court.round > first);
    try expectEqual(.prepare, group.phase);
    try expect(!group.newcomers.items[0].in_round);
    // The first goes on alone, and another newcomer comes: the round after that is for this one.
    try prepared(&court, 0, court.round, true);
    try stopped(&court, 0, court.round);
    try court.enter(0);
    try court.say(0, .{ .epoch_closed = .{ .group = 0, .epoch = court.epoch - 1 } });
    try court.connect(3);
    try court.next_round();
    try expectEqual(.prepare, group.phase);
    for (group.newcomers.items, [_]bool{ false, true }) |*newcomer, is_next|
        try expectEqual(is_next, newcomer.in_round);
}
