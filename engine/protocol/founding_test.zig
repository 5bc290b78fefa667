//! Groups that are made of members of another one: when they begin, in which order, and who stays
//! outside (door.zig). The harness: court_test.zig; its group is the parent.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Group = @import("group.zig").Group;
const Court = court_file.Court;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const id_of = court_file.id_of;
const limits = base.limits;
const ms = court_file.ms;
const all = [_]usize{ 0, 1, 2 };
const outsider = court_file.peers_max;

/// A peer asks for the group, and names these as its founders.
fn ask(court: *Court, index: usize, epoch: u64, founders: []const usize) !void {
    var ids: [court_file.places_max]base.PeerId = undefined;
    for (founders, ids[0..founders.len]) |founder, *id| id.* = id_of(founder);
    try join(court, index, 0, .{
        .parent = .of("g"),
        .epoch = epoch,
        .members = .of(ids[0..founders.len]),
    });
}

fn join(
    court: *Court,
    index: usize,
    initial_world_size: u32,
    founders: wire.control.Founders,
) !void {
    try court.say(index, .{ .join = .{
        .name = .of("sub"),
        .address = .of("a:1"),
        .address_key = @splat(0),
        .initial_world_size = initial_world_size,
        .round = 0,
        .stop_round = 0,
        .founders = founders,
    } });
    try court.say(index, .{ .join_end = .{} });
}

fn sub(court: *const Court) *Group {
    return court.c.run.group_named("sub").?;
}

/// Its lanes are open, and its user waits to enter, or does not.
fn prepare(court: *Court, index: usize, entering: bool) !void {
    try court.say(index, .{ .prepared = .{
        .group = sub(court).id,
        .round = sub(court).round,
        .entering = entering,
        .missing = .of(&.{}),
    } });
}

fn expect_members(court: *const Court, members: []const usize) !void {
    const epoch = sub(court).current() orelse return error.NotBegun;
    try expectEqual(members.len, epoch.members.len);
    for (members, epoch.members) |index, *member| try expect(member.id.eql(id_of(index)));
}

/// One that names no founders does not enter.
fn expect_join_refused(court: *Court, index: usize) !void {
    try join(court, index, 0, .{});
    try expect_refused(court, true);
}

fn expect_refused(court: *Court, expected: bool) !void {
    court.refused = false;
    try court.listen();
    try expectEqual(expected, court.refused);
}

test "a group of founders begins when all have asked, and has their order" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.c.run.options.min_world_size = 3; // of the run, and not of its sub-groups
    try court.form();
    try ask(&court, 2, 1, &.{ 2, 0 });
    try court.pass(2000 * ms);
    try expectEqual(.idle, sub(&court).phase);
    try ask(&court, 0, 1, &.{ 2, 0 });
    for ([_]usize{ 0, 2 }) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 2, 0 });
    try expectEqual(2, sub(&court).current().?.began.joined);
    try expectEqual(1, sub(&court).current().?.min_world_size);
}

test "a founder that was lost before the first one asked is not waited for" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.say(1, .{ .leave = .{ .group = 0 } });
    for ([_]usize{ 2, 0 }) |index| try ask(&court, index, 1, &all);
    for ([_]usize{ 2, 0 }) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 0, 2 });
}

test "a founder that is lost to the parent, or has left it, is not waited for" {
    for ([_]bool{ false, true }) |is_lost| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        for (0..2) |index| try ask(&court, index, 1, &all);
        try court.pass(500 * ms);
        try expectEqual(.idle, sub(&court).phase);
        if (is_lost) {
            court.hang_up(2);
            try court.pass(500 * ms);
            try expectEqual(.idle, sub(&court).phase); // it may come back
            for (0..2) |index| try court.say_closed(index, 2);
        } else try court.say(2, .{ .leave = .{ .group = 0 } });
        try expectEqual(.prepare, sub(&court).phase); // at once
        for (0..2) |index| try prepare(&court, index, true);
        try expect_members(&court, &.{ 0, 1 });
    }
}

test "a founder that has left the parent is turned away" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try ask(&court, 0, 1, &all);
    try court.say(2, .{ .leave = .{ .group = 0 } });
    try ask(&court, 2, 1, &all);
    try expect_refused(&court, true);
    try expectEqual(1, sub(&court).newcomers.items.len);
}

test "a founder that goes before the group begins is waited for until it is lost" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (all) |index| try ask(&court, index, 1, &all);
    for (0..2) |index| try prepare(&court, index, true);
    court.hang_up(2);
    try court.pass(1000 * ms);
    try expectEqual(.idle, sub(&court).phase);
    try expectEqual(2, sub(&court).newcomers.items.len);
    for (0..2) |index| try court.say_closed(index, 2);
    try court.pass(2000 * ms);
    for (0..2) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 0, 1 });
}

test "founders enter together, however long the user of one of them takes" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (all) |index| try ask(&court, index, 1, &all);
    try court.listen();
    const prepares = court.prepares[0];
    for (all) |index| try prepare(&court, index, index > 0);
    try court.pass(20_000 * ms);
    try court.listen();
    try expectEqual(null, sub(&court).current());
    try expectEqual(prepares, court.prepares[0]); // nobody begins anew for that
    try prepare(&court, 0, true);
    try expect_members(&court, &all);
}

test "nobody but a founder enters, before the group begins and afterwards" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form_with(1);
    try ask(&court, 0, 2, &.{ 0, 1 });
    for ([_]usize{ 2, 1 }) |index| try expect_join_refused(&court, index);
    try ask(&court, 1, 2, &.{ 0, 1 });
    for (0..2) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 0, 1 });
    try court.say(1, .{ .leave = .{ .group = sub(&court).id } });
    for ([_]usize{ 1, 2 }) |index| {
        try ask(&court, index, 2, &.{ 0, 1, 2 });
        try expect_refused(&court, true);
        try expect_join_refused(&court, index);
    }
    try expectEqual(0, sub(&court).newcomers.items.len);
}

test "founders that name others, or in another order, are a mismatch for all" {
    for ([_][]const usize{ &.{ 0, 1 }, &.{ 1, 0, 2 } }) |other| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        try ask(&court, 0, 1, &all);
        try ask(&court, 2, 1, &all);
        try ask(&court, 1, 1, other);
        try court.listen();
        for (all) |index| try expect(court.expelled[index]);
        try expect(court.expelled_refused);
        const why = "peer 02000000 names other founders of group sub than peer 01000000, or in " ++
            "another order: all founders must name the same";
        try std.testing.expectEqualStrings(why, court.why_expelled());
        try expectEqual(0, sub(&court).newcomers.items.len);
        try expectEqual(7, court.members_alive()); // nobody has lost its place in the parent
        // When they have left it, they may try again.
        const number = sub(&court).id;
        for (all) |index| try court.say(index, .{ .leave = .{ .group = number } });
        for (all) |index| try ask(&court, index, 1, other);
        try expect(sub(&court).founding.?.differs.eql(.none));
    }
}

test "founders of two epochs differ, though their names are the same" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(outsider);
    try court.next_round();
    for (0..outsider + 1) |index| try court.prepare(index, court.round, true);
    for (all) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    try expectEqual(2, court.group().epochs.items.len);
    for (0..2) |index| try ask(&court, index, 1 + index, &.{ 0, 1 });
    try court.listen();
    for (0..2) |index| try expect(court.expelled[index]);
}

test "one that is no founder cannot make founders differ" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try ask(&court, 0, 1, &.{ 0, 1 });
    try ask(&court, 2, 1, &all);
    try court.listen();
    try expect(court.expelled[2] and !court.expelled[0] and court.expelled_refused);
    try ask(&court, 1, 1, &.{ 0, 1 });
    for (0..2) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 0, 1 });
}

test "founders must be members of one epoch, each once, and the one who asks among them" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form_with(1);
    const Case = struct { by: usize, epoch: u64, founders: []const usize };
    for ([_]Case{
        .{ .by = 0, .epoch = 1, .founders = &.{ 0, 1 } }, // it is over
        .{ .by = 0, .epoch = 3, .founders = &.{ 0, 1 } }, // it has not begun
        .{ .by = 0, .epoch = 2, .founders = &.{ 0, 4 } },
        .{ .by = 0, .epoch = 2, .founders = &.{ 0, 1, 0 } },
        .{ .by = 0, .epoch = 2, .founders = &.{ 1, 2 } },
    }) |case| {
        try ask(&court, case.by, case.epoch, case.founders);
        try expect_refused(&court, true);
        try expectEqual(null, court.c.run.group_named("sub"));
    }
    try court.say(1, .{ .leave = .{ .group = 0 } });
    try ask(&court, 1, 2, &.{ 0, 1 });
    try expect_refused(&court, true);
    // A group that takes whoever comes is no group of founders.
    try join(&court, 0, 2, .{});
    try ask(&court, 2, 2, &.{ 0, 2 });
    try expect_refused(&court, true);
}

test "a founder that gives up and asks for others is not its own contradiction" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try ask(&court, 0, 1, &all);
    try court.say(0, .{ .leave = .{ .group = sub(&court).id } });
    try ask(&court, 0, 1, &.{ 1, 0 });
    try ask(&court, 1, 1, &.{ 1, 0 });
    for (0..2) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 1, 0 });
}

test "those who wait hear for which founders, until these have asked" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..2) |index| try ask(&court, index, 1, &all);
    try court.listen();
    try court.pass(limits.wait_told_ns_max + 1000 * ms);
    const bytes = try court.told(0);
    defer gpa.free(bytes);
    var rest: []const u8 = bytes;
    var any = false;
    while (try Court.next_of(&rest)) |message| {
        try expect(message != .waiting);
        if (message != .awaited) continue;
        any = true;
        try expectEqual(.founders, message.awaited.why);
        try expectEqual(1, message.awaited.count);
        var peers = message.awaited.peers.iterator();
        try expect(peers.next().?.id.eql(id_of(2)));
    }
    try expect(any);
}

test "after a restart founders that wait ask anew, and a group that has begun stays closed" {
    inline for (.{ false, true }) |has_begun| {
        var shelf: court_file.Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart_after(&shelf, &court, struct {
            fn before(it: *Court) anyerror!void {
                for (0..2) |index| try ask(it, index, 1, &all);
                if (!has_begun) return;
                try ask(it, 2, 1, &all);
                for (all) |index| try prepare(it, index, true);
                try expect_members(it, &all);
                it.epoch = 1; // of both groups
            }
        }.before);
        defer court.c.destroy();
        try expectEqual(has_begun, court.c.run.group_named("sub") != null);
        for (0..2) |index| {
            try court.come_back(index, 1);
            try court.say(index, .{ .join_end = .{} });
            if (!has_begun) try ask(&court, index, 1, &all);
        }
        if (has_begun) {
            try ask(&court, 0, 1, &.{ 0, 1 });
            try expect_refused(&court, true);
            try expectEqual(1, sub(&court).min_world_size);
        } else {
            // The third was lost with the coordinator.
            try expectEqual(.idle, sub(&court).phase);
            try court.pass_answering(12_000 * ms, &.{});
            try expectEqual(3, court.members_alive());
            for (0..2) |index| try prepare(&court, index, true);
            try expect_members(&court, &.{ 0, 1 });
        }
    }
}

test "founders keep to their own rate of joins alone, and what they name waits with them" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.keeps_rates = true;
    try court.form();
    const peer_file = @import("peer.zig");
    for ([_]peer_file.Arrivals.Aim{ .begins_group, .enters_group }) |aim| court.c.run.arrivals
        .of(gpa, court.now, court.source, aim)
        .take(court.now, peer_file.network_join_price, 2 * limits.network_joins_burst);
    try ask(&court, 0, 1, &.{ 1, 0 });
    try expectEqual(1, sub(&court).newcomers.items.len);
    const joins = &court.peers[1].?.peer.?.rates.joins;
    joins.take(court.now, peer_file.join_price, limits.peer_joins_burst + 1);
    try ask(&court, 1, 1, &.{ 1, 0 });
    try expectEqual(1, sub(&court).newcomers.items.len);
    try expectEqual(1, court.c.run.lobby.waiting.items.len);
    try court.pass(1500 * ms);
    for (0..2) |index| try prepare(&court, index, true);
    try expect_members(&court, &.{ 1, 0 });
}
