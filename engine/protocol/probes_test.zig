//! The members that are asked to probe links, and when (measurement.zig). The harness:
//! court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const measurement = @import("measurement.zig");
const Court = court_file.Court;
const control = wire.control;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = court_file.ms;

const count = 4;
/// The rank that each member was asked to probe since it read last; null: none.
const Asked = [count]?u16;
const nobody: Asked = @splat(null);

/// At the next tick.
fn expect_asked(court: *Court, expected: Asked) !void {
    try court.pass(500 * ms);
    var asked: Asked = nobody;
    for (&asked, 0..) |*rank, index| {
        const bytes = try court.told(index);
        defer gpa.free(bytes);
        var rest: []const u8 = bytes;
        while (try Court.next_of(&rest)) |message| switch (message) {
            .probe => |body| {
                try expectEqual(null, rank.*);
                try expectEqual(court.epoch, body.epoch);
                rank.* = body.rank;
            },
            else => {},
        };
    }
    try expectEqual(expected, asked);
}

fn form(court: *Court) !void {
    try court.init(gpa);
    try court.form_with(count - court_file.peers_max);
    try court.listen();
    court.may_probe = .full(count);
}

fn say_found(court: *Court, from: usize, to: usize) !void {
    const links = [_]control.LinkTraffic{.{
        .peer = court_file.id_of(to),
        .sent = 1,
        .received = 1,
        .rate = 1000,
        .rtt_ns = 20 * ms,
    }};
    try court.say(from, .{ .traffic = .{
        .span_ns = 1,
        .sent = 1,
        .received = 1,
        .up = 0,
        .down = 0,
        .links = .of(&links),
    } });
}

test "members probe in pairs, none in two, each pair once before any is asked again" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const rounds = [_]Asked{ .{ 1, 0, 3, 2 }, .{ 2, 3, 0, 1 }, .{ 3, 2, 1, 0 }, .{ 1, 0, 3, 2 } };
    for (rounds) |expected| {
        try expect_asked(&court, expected);
        for (0..2) |_| try expect_asked(&court, nobody);
    }
    // It brought nothing, so each is asked again later and later.
    try expect_asked(&court, rounds[1]);
    for (0..2) |_| try expect_asked(&court, nobody);
    try expect_asked(&court, rounds[2]);
    var asked: usize = 0;
    court.now += measurement.round_ns;
    for (0..40) |_| {
        try court.pass(500 * ms);
        for (0..count) |index| {
            const bytes = try court.told(index);
            defer gpa.free(bytes);
            var rest: []const u8 = bytes;
            while (try Court.next_of(&rest)) |message| asked += @intFromBool(message == .probe);
        }
    }
    try std.testing.expect(asked >= count and asked <= 8 * count);
}

test "members that have a moment are asked soon, and not only at the next heartbeat" {
    for ([_]bool{ false, true }) |is_on| {
        var court: Court = undefined;
        try form(&court);
        defer court.c.destroy();
        court.c.run.options.probes = is_on;
        court.c.tick(court.now);
        for (0..count) |index| try court.beat(index);
        const is_due = court.c.next_deadline() <= court.now + 50 * ms;
        try expectEqual(is_on, is_due);
        // A moment that is said again is no news.
        court.c.tick(court.now + 50 * ms);
        for (0..count) |index| court.c.run.peer_of(court_file.id_of(index)).?.may_probe = true;
        const due = court.c.next_deadline();
        for (0..count) |index| try court.beat(index);
        try expectEqual(due, court.c.next_deadline());
    }
}

test "a link that is known is probed by nobody, and one that is known one way only the other way" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    try say_found(&court, 0, 1);
    try say_found(&court, 2, 3);
    try say_found(&court, 3, 2);
    try expect_asked(&court, .{ null, 0, null, null });
    for (0..2) |_| try expect_asked(&court, nobody);
    try say_found(&court, 1, 0);
    for (0..count) |from| for (0..count) |to| if (from != to) try say_found(&court, from, to);
    for (0..10) |_| try expect_asked(&court, nobody);
}

test "a member that has no moment, is away, or has not entered is asked nothing" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    court.may_probe.unset(1);
    try expect_asked(&court, .{ 2, null, 0, null });
    court.may_probe = .full(count);
    court.hang_up(2);
    try expect_asked(&court, .{ null, 3, null, 1 });
    try court.pass(1000 * ms);
    court.c.run.groups.items[0].current().?.activated.unset(3);
    try expect_asked(&court, .{ 1, 0, null, null });
}

test "nobody is asked where the run probes nothing, and in an epoch of many" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    court.c.run.options.probes = false;
    for (0..4) |_| try expect_asked(&court, nobody);
    court.c.run.options.probes = true;
    court.c.run.groups.items[0].current().?.running = false;
    try expect_asked(&court, nobody);
    court.c.run.groups.items[0].current().?.running = true;
    try expect_asked(&court, .{ 1, 0, 3, 2 });

    var crowd: Court = undefined;
    try crowd.init(gpa);
    defer crowd.c.destroy();
    try crowd.form_with(base.limits.measured_max + 1 - court_file.peers_max);
    try crowd.listen();
    crowd.may_probe = .full(count);
    for (0..4) |_| try expect_asked(&crowd, nobody);
}
