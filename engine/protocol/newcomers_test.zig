//! Newcomers that come and go, or open no lanes: what that costs, and whom it holds up. The rules:
//! membership.zig, group.zig, group.zig. The harness: court_test.zig; its three peers are members
//! here, or have left. By processes: tests/hostile/test_hostile_rounds.py.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const id_of = court_file.id_of;
const peers_max = court_file.peers_max;
const places_max = court_file.places_max;
const Court = court_file.Court;

fn members_prepare(court: *Court, missing: []const base.PeerId) !void {
    for (0..peers_max) |index| try court.lack(index, missing);
    try court.listen();
}

fn form(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.listen();
}

test "a newcomer that opens no lanes holds nobody up for longer than 2 s" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silent = id_of(3);
    try court.connect(3);
    try court.connect(4);
    try court.next_round();
    try court.lack(4, &.{silent});
    try members_prepare(&court, &.{silent});
    try expectEqual(.prepare, court.group().phase);
    const first = court.round;
    try court.pass(1500 * ms);
    try court.listen();
    try expectEqual(first, court.round);
    // Those who are ready have a round of their own, and another who comes does not delay it.
    try court.connect(5);
    try court.pass(500 * ms);
    try court.listen();
    try expect(court.round > first);
    try court.prepare(4, court.round, true);
    try members_prepare(&court, &.{});
    try expectEqual(.ask, court.group().phase);
    try expectEqual(first, court.released[3]);
    try expectEqual(1, court.prepares[3]);
    try expectEqual(0, court.prepares[5]);
}

test "the end of a coordinator without a journal is the end of the wait of newcomers" {
    for ([_]bool{ true, false }) |has_journal| {
        var shelf: court_file.Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        if (has_journal) try shelf.start(&court) else try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        try court.connect(3);
        court.c.end(court.now);
        try expectEqual(has_journal, court.peers[3] != null);
        for (court.peers[0..peers_max]) |peer| try expect(peer != null);
    }
}

test "a newcomer that could not enter, or goes, waits twice as long each time" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silent = id_of(3);
    for ([_]u64{ 1, 4, 16 }) |seconds| {
        if (court.peers[3] == null) try court.connect(3);
        try court.next_round();
        const round = court.round;
        try expectEqual(.prepare, court.group().phase);
        // Nobody can enter, so all of the time to prepare is taken.
        try members_prepare(&court, &.{silent});
        while (court.group().phase == .prepare) try court.pass(500 * ms);
        court.hang_up(3);
        try court.connect(3);
        try court.pass((seconds * 1000 - 500) * ms);
        try court.listen();
        try expectEqual(round, court.round);
        try court.pass(500 * ms);
        try court.listen();
        try expect(court.round > round);
        court.hang_up(3); // the second time that it doubles
        try court.pass(60_000 * ms);
    }
}

test "a member that is lost is missing at the next safe point, however soon that comes" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const began = court.now;
    try court.say(0, .{ .leave = .{ .group = 0 } });
    try court.listen();
    try expectEqual(began, court.now);
    try expect(court.group().phase != .idle);
    // Once: rounds for newcomers keep their distance.
    try expect(court.group().round_due() > court.now);
}

test "a crowd that opens no lanes keeps nobody from elsewhere, who came later, out for long" {
    // Method: sixty from one network, of which rounds take 32, and one from another,
    // which came last. Nobody comes while the rounds are under way.
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const last = places_max - 1;
    const source = court.source;
    court.source = @splat(7);
    try court.connect(3);
    try court.next_round();
    const first = court.round;
    for (4..last) |place| try court.connect(place);
    court.source = source;
    try court.connect(last);
    // The round that has one alone, and two of 32: each takes 2 s.
    try court.pass(2000 * ms);
    try court.next_round();
    try expectEqual(first + 1, court.round);
    try expectEqual(1, court.prepares[last]);
    try court.pass(2000 * ms);
    try court.next_round();
    try expectEqual(first + 2, court.round);
}

test "a crowd of as many networks costs a newcomer 2 s for each 32 that came before it" {
    // Method: a newcomer that has a round alone, then fifty-nine newcomers of fifty-nine networks,
    // and the honest newcomer. None of the crowd opens a lane.
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const last = places_max - 1;
    try court.connect(3);
    try court.next_round();
    const began = court.now;
    for (4..last + 1) |place| {
        court.source = @splat(@intCast(100 + place));
        try court.connect(place);
    }
    while (court.prepares[last] == 0) {
        try court.pass(100 * ms);
        try court.listen();
    }
    // The round under way, and the first 32 of those before it.
    try expect(court.now - began > 2 * 2000 * ms - 200 * ms);
    try expect(court.now - began <= 2 * 2000 * ms + 200 * ms);
    const own = court.round;
    // Its own round goes on without the others after 2 s, and those have failed: nobody new waits
    // behind them again.
    for (0..peers_max) |member| try court.prepare(member, own, true);
    try court.prepare(last, own, true);
    try court.pass(2000 * ms);
    try court.listen();
    try expect(court.round > own);
    try expectEqual(2, court.prepares[last]);
    try expect(court.now - began <= 3 * 2000 * ms + 400 * ms);
}

test "whoever comes while nobody can enter is in a round within 2 s" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    try court.connect(3);
    try court.next_round();
    try court.pass(1000 * ms);
    try court.connect(4);
    try court.pass(1500 * ms);
    try court.listen();
    try expectEqual(1, court.prepares[4]);
    try expectEqual(1, court.prepares[3]); // it waits
}

test "when a newcomer goes the others go on, and are not asked again if they lack nothing" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    for (3..6) |place| try court.connect(place);
    try court.next_round();
    const first = court.round;
    for (3..5) |place| try court.prepare(place, first, true);
    try members_prepare(&court, &.{});
    court.hang_up(5);
    try court.listen();
    try expectEqual(first, court.round);
    try expectEqual(.ask, court.group().phase);
    // Also while members are asked for their safe points.
    court.hang_up(4);
    try expectEqual(.ask, court.group().phase);
    // A round for nobody is over.
    court.hang_up(3);
    try expectEqual(.idle, court.group().phase);
}

test "those who lack only one that has gone are in a round of their own at once" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    for (3..5) |place| try court.connect(place);
    try court.next_round();
    const first = court.round;
    try court.lack(3, &.{id_of(4)});
    try members_prepare(&court, &.{id_of(4)});
    court.hang_up(4);
    try court.next_round();
    try expect(court.round > first);
    try expectEqual(2, court.prepares[3]);
}

test "a round has at most 32 newcomers, and the next begins 100 ms later at the earliest" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const begun = court.now;
    for (3..places_max) |place| try court.connect(place);
    try court.listen();
    // The first came alone, and the others too late for its round.
    court.hang_up(3);
    try expectEqual(.idle, court.group().phase);
    try court.next_round();
    try expect(court.now >= begun + 100 * ms);
    var asked: u32 = 0;
    for (4..places_max) |place| asked += court.prepares[place];
    try expectEqual(32, asked);
}

test "the first epoch begins with those who failed before, if there are no others" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..peers_max) |index| try court.connect(index);
    try court.listen();
    const first = court.round;
    try court.lack(0, &.{id_of(1)});
    try court.lack(1, &.{id_of(0)});
    try court.pass(court.c.run.options.prepare_ns);
    try court.pass(500 * ms);
    try court.listen();
    try expect(court.round > first);
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.listen();
    try expectEqual(1, court.epoch);
}

test "490 newcomers with long addresses that go at once cost little, and no member" {
    // F2 of tests/hostile: 197 KiB sent by them had 2.4 GiB sent to the others.
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const before = court.told_bytes;
    const label = "a" ** 49 ++ ".";
    for (0..490) |number| {
        const place = peers_max + number % (places_max - peers_max);
        if (court.peers[place] != null) court.hang_up(place);
        try court.knock(place, .{
            .purpose = .control,
            .run_id = @splat(1),
            .from = .from_int(1000 + number),
            .instance = 1,
        });
        try court.say(place, .{ .join = .{
            .name = .of("g"),
            .address = .of(label ** 4 ++ "a" ** 49 ++ ":65535"),
            .initial_world_size = 0,
            .round = 0,
            .stop_round = 0,
            .address_key = @splat(0),
        } });
        try court.say(place, .{ .join_end = .{} });
        court.now += 10 * ms;
        if (number % 50 == 0) for (0..peers_max) |index| try court.beat(index);
        court.c.tick(court.now);
        try court.listen();
    }
    const told = court.told_bytes - before;
    try expect(told > base.limits.MiB / 4 and told < 8 * base.limits.MiB);
    try expectEqual(0b111, court.members_alive());
}

test "members of an epoch are told only what differs from it" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    try court.connect(3);
    try court.next_round();
    try court.prepare(3, court.round, true);
    try members_prepare(&court, &.{});
    for (0..peers_max) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    var seen: usize = 0;
    for ([_]usize{ 0, 3 }, [_]u32{ 1, 4 }) |index, told| {
        const bytes = try court.told(index);
        defer std.testing.allocator.free(bytes);
        var rest = bytes;
        while (rest.len > 0) {
            const total = control.header_bytes +
                try control.body_length(rest[0..control.header_bytes]);
            switch (try control.decode(rest[0..total])) {
                .activate => |body| {
                    try expectEqual(told, body.members.count);
                    try expectEqual(told == 1, body.base == 1);
                    seen += 1;
                },
                else => {},
            }
            rest = rest[total..];
        }
    }
    try expectEqual(2, seen);
}

/// News of a link of this peer.
fn tell_link(court: *Court, index: usize, other: usize, health: control.LinkHealth) !void {
    try court.say(index, .{ .link_told = .{
        .other = id_of(other),
        .group = 0,
        .health = health,
    } });
}

test "a newcomer gets in however much a peer has to say of its links" {
    // Method: in a group of 13 a member, or another newcomer, has news for each look.
    const last = peers_max + 10;
    for ([_]usize{ 2, last + 1 }) |teller| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form_with(10);
        try court.connect(last);
        try court.next_round();
        if (teller > last) try court.connect(teller);
        try tell_link(&court, teller, 5, .silent); // no path leads over it
        court.now += 25 * ms;
        court.c.tick(court.now);
        for (0..last + 1) |index| try court.prepare(index, court.round, true);
        for (0..40) |turn| {
            if (court.group().phase != .prepare) break;
            const health: control.LinkHealth = if (turn % 2 == 0) .silent else .up;
            if (court.group().look.at == base.never) try tell_link(&court, teller, 7, health);
            court.now = court.c.next_deadline();
            court.c.tick(court.now);
        }
        try expectEqual(.ask, court.group().phase);
    }
}
