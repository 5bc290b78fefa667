//! Time, silence and freezes, as the coordinator judges them: whom it takes for lost, whom it waits
//! for, and when a group begins or begins again. The rules: coordinator.zig, membership.zig and
//! debt.zig. The harness: court_test.zig. How members judge silence: session/dial.zig.

const std = @import("std");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Group = @import("group.zig").Group;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const peers_max = court_file.peers_max;
const id_of = court_file.id_of;
const Court = court_file.Court;
const Shelf = court_file.Shelf;

/// Bits of the members that are alive.
const all_three = 0b111;
const first_two = 0b011;

fn form(court: *Court) !void {
    try court.init(gpa);
    try court.form();
}

/// The coordinator is frozen, and hears one member before it sees how late it is.
fn freeze(court: *Court, duration_ns: u64) !void {
    court.now += duration_ns;
    try court.beat(0);
    court.c.tick(court.now);
}

/// Time passes, and only the first so many members say that they are alive.
fn pass_hearing(court: *Court, heard: usize, duration_ns: u64) !void {
    const until = court.now + duration_ns;
    while (court.now < until) {
        court.now += 500 * ms;
        for (0..heard) |index| try court.beat(index);
        court.c.tick(court.now);
    }
}

test "a coordinator that was frozen loses nobody before the silence limit has passed again" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    try freeze(&court, 2 * silence_ns);
    for (court.peers[0..peers_max]) |peer| try expect(peer != null);
    try pass_hearing(&court, 2, silence_ns - 500 * ms);
    try expectEqual(all_three, court.members_alive());
    try pass_hearing(&court, 2, 500 * ms);
    try expectEqual(first_two, court.members_alive());
}

test "time in which the coordinator was frozen does not count as away" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    court.hang_up(2);
    try pass_hearing(&court, 2, silence_ns - 500 * ms);
    try freeze(&court, 2 * silence_ns);
    try expectEqual(all_three, court.members_alive());
    try court.come_back(2, court.attempt);
    try court.say(2, .{ .join_end = .{} });
    try pass_hearing(&court, 3, 2 * silence_ns);
    try expectEqual(all_three, court.members_alive());
}

test "after silence from everybody, who is away has the silence limit from the first word" {
    // One that is short is taken twice, up to the time that a connection may take to be tried anew.
    for ([_]u64{ 5000, 2000, 1000 }, [_]u64{ 5000, 3000, 2000 }) |silence_ms, patience_ms| {
        var court: Court = undefined;
        try form(&court);
        defer court.c.destroy();
        court.c.run.options.silence_ns = silence_ms * ms;
        court.hang_up(2);
        try pass_hearing(&court, 0, 4 * silence_ms * ms);
        for (court.peers[0..2]) |peer| try expect(peer != null);
        try expectEqual(all_three, court.members_alive());
        // The first of these ticks hears the first word.
        try pass_hearing(&court, 2, patience_ms * ms);
        try expectEqual(all_three, court.members_alive());
        try pass_hearing(&court, 2, 500 * ms);
        try expectEqual(first_two, court.members_alive());
    }
}

test "after a restart members have twice the silence limit to come back" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    for (0..2) |index| {
        try court.come_back(index, 1);
        try court.say(index, .{ .join_end = .{} });
    }
    try pass_hearing(&court, 2, 2 * court.c.run.options.silence_ns - 500 * ms);
    try expectEqual(all_three, court.members_alive());
    try pass_hearing(&court, 2, 500 * ms);
    try expectEqual(first_two, court.members_alive());
}

test "a member whose new connection does not name the epoch in time is out of it" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    court.hang_up(2);
    try court.open(2);
    try pass_hearing(&court, 3, silence_ns - 500 * ms);
    try expectEqual(all_three, court.members_alive());
    try pass_hearing(&court, 3, 500 * ms);
    try expectEqual(first_two, court.members_alive());
    try expect(court.peers[2] != null);
}

test "lanes that closed show that a member that is away is dead, lanes that broke do not" {
    for ([_]control.LinkState{ .broken, .closed }) |state| {
        var court: Court = undefined;
        try form(&court);
        defer court.c.destroy();
        court.hang_up(2);
        for (0..2) |index| try court.say(index, .{ .link_lost = .{
            .other = id_of(2),
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .state = state,
        } });
        const alive: u64 = if (state == .closed) first_two else all_three;
        try expectEqual(alive, court.members_alive());
    }
}

test "a newcomer's word ends a member that is away and alone, and no other" {
    // Beside two others, who would have noticed, it counts for nothing.
    {
        var court: Court = undefined;
        try form(&court);
        defer court.c.destroy();
        try court.connect(3);
        try court.next_round();
        court.hang_up(2);
        try say_gone(&court, 3, 2);
        try expectEqual(all_three, court.members_alive());
    }
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    for (0..2) |index| try court.say(index, .{ .leave = .{ .group = 0 } });
    try court.next_round();
    try court.prepare(2, court.round, true);
    try court.say(2, .{ .safe_points = .{ .group = 0, .round = court.round, .count = 1 } });
    try court.listen();
    try court.enter(2);
    try court.say(2, .{ .epoch_closed = .{ .group = 0, .epoch = court.epoch - 1 } });
    try court.connect(3);
    try court.next_round();
    try expectEqual(.prepare, court.group().phase);
    try court.connect(4); // too late for this round, so it has no lanes to speak of
    court.hang_up(2);
    try say_gone(&court, 4, 2);
    try expectEqual(1, court.group().epochs.items.len);
    try say_gone(&court, 3, 2);
    try expectEqual(0, court.group().epochs.items.len);
}

/// A newcomer says that its lanes to a member are closed.
fn say_gone(court: *Court, index: usize, other: usize) !void {
    try court.say(index, .{ .link_lost = .{
        .other = id_of(other),
        .group = 0,
        .epoch = 0,
        .attempt = 0,
        .state = .closed,
    } });
}

test "a member that speaks of a group before it has named it on its connection is out" {
    var court: Court = undefined;
    for (0..4) |number| {
        try form(&court);
        defer court.c.destroy();
        court.hang_up(2);
        try court.open(2);
        try expectEqual(all_three, court.members_alive());
        // To leave it may say so once more than it must.
        try court.say(2, .{ .leave = .{ .group = 0 } });
        try expectEqual(all_three, court.members_alive());
        try court.say(2, switch (number) {
            0 => .{ .safe_points = .{ .group = 0, .round = 0, .count = 0 } },
            1 => .{ .activated = .{ .group = 0, .epoch = court.epoch } },
            2 => .{ .decisions_seen = .{ .group = 0, .epoch = court.epoch, .count = 0 } },
            3 => .{ .done = court.vote(5, 0) },
            else => unreachable,
        });
        try expect(court.peers[2] == null);
        try expectEqual(first_two, court.members_alive());
    }
}

test "members that are asked for their safe points have time after a freeze of the coordinator" {
    // Method: one leaves, so that the others prepare and are asked. After the freeze one of them
    // answers, and the other one never does.
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try court.next_round();
    for (0..2) |index| try court.prepare(index, court.round, true);
    try expectEqual(.ask, court.group().phase);
    try court.listen();
    try freeze(&court, 2 * silence_ns);
    try court.say(0, .{ .safe_points = .{ .group = 0, .round = court.round, .count = 1 } });
    try pass_hearing(&court, 2, silence_ns - 500 * ms);
    try expectEqual(.ask, court.group().phase);
    for (court.peers[0..2]) |peer| try expect(peer != null);
    try pass_hearing(&court, 2, 500 * ms);
    try expect(court.peers[0] != null and court.peers[1] == null);
}

test "an attempt with the same paths is not begun, however often links are said to be broken" {
    // Method: no paths do without both links, which may work again at once, so the attempt takes
    // all. With one of them well again there are other paths.
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    for ([_][2]usize{ .{ 0, 1 }, .{ 1, 2 } }, 2..) |link, attempt| {
        try tell(&court, link[0], link[1], .silent);
        try pass_hearing(&court, 3, 500 * ms);
        try court.listen();
        try expectEqual(attempt, court.attempt);
        for (0..peers_max) |index| try court.report_end(index);
        try expect(court.group().current().?.running);
    }
    for (0..6) |turn| {
        try tell(&court, 2, 1, if (turn % 2 == 0) .silent else .up);
        try pass_hearing(&court, 3, 500 * ms);
    }
    try court.listen();
    try expectEqual(3, court.attempt);
    try tell(&court, 0, 1, .up);
    try pass_hearing(&court, 3, 500 * ms);
    try court.listen();
    try expectEqual(4, court.attempt);
}

fn tell(court: *Court, index: usize, other: usize, health: control.LinkHealth) !void {
    try court.say(index, .{ .link_told = .{
        .other = id_of(other),
        .group = 0,
        .health = health,
    } });
}

test "the first epoch waits for the least world size, also where fewer were to begin" {
    for (1..peers_max + 1) |least| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        court.c.run.options.initial_world_size = 1;
        court.c.run.options.min_world_size = @intCast(least);
        for (0..peers_max) |index| {
            try court.connect(index);
            const phase: Group.Phase = if (index + 1 < least) .idle else .prepare;
            try expectEqual(phase, court.group().phase);
        }
    }
}
