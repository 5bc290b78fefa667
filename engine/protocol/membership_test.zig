//! Rounds, seen from outside: what counts in which of them, what begins one again, and whom it does
//! not wait for. Rounds: membership.zig. The harness: court_test.zig. Under every order of events:
//! tests/sim.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Group = @import("group.zig").Group;
const Court = court_file.Court;
const Dialed = wire.Dialed;
const Shelf = court_file.Shelf;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectEqualStrings = std.testing.expectEqualStrings;
const gpa = std.testing.allocator;
const id_of = court_file.id_of;
const ms = court_file.ms;
const peers_max = court_file.peers_max;
const places_max = court_file.places_max;

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

// ---- newcomers that come and go
//
// Newcomers that come and go, or open no lanes: what that costs, and whom it holds up. The rules:
// membership.zig, group.zig, group.zig. its three peers are members here, or have left. By
// processes: tests/hostile/test_hostile_rounds.py.

fn members_prepare(court: *Court, missing: []const base.PeerId) !void {
    for (0..peers_max) |index| try court.lack(index, missing);
    try court.listen();
}

fn form_with_room(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.listen();
}

test "a newcomer that opens no lanes holds nobody up for longer than 2 s" {
    var court: Court = undefined;
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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
    try form_with_room(&court);
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

// ---- names for people
//
// Names of peers for people: who hears whose, and which are refused (membership.zig).

fn join(court: *Court, index: usize, label: []const u8) !void {
    try court.knock(index, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = court_file.id_of(index),
        .instance = 1 + index,
    });
    try court.say(index, .{ .join = .{
        .name = .of("g"),
        .address = .of("a:1"),
        .address_key = @splat(0),
        .initial_world_size = 0,
        .round = 0,
        .stop_round = 0,
        .label = .of(label),
    } });
    try court.say(index, .{ .join_end = .{} });
}

/// The names that a peer was told, "01=a 02=b", and nothing else that it was told is lost.
fn labels_told(court: *Court, index: usize, room: []u8) ![]const u8 {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var writer: std.Io.Writer = .fixed(room);
    var rest: []const u8 = bytes;
    var is_prepared = false;
    while (rest.len > 0) {
        if (std.mem.startsWith(u8, rest, &wire.hello.encode_answer(.welcome))) {
            rest = rest[wire.hello.answer_bytes..];
            continue;
        }
        const total = control.header_bytes +
            try control.body_length(rest[0..control.header_bytes]);
        const message = try control.decode(rest[0..total]);
        is_prepared = is_prepared or message == .prepare;
        if (message == .labels) {
            if (!is_prepared) return error.BeforePrepare;
            var entries = message.labels.peers.iterator();
            while (entries.next()) |entry|
                try writer.print("{x:0>2}={s} ", .{ entry.id.bytes[0], entry.label.data });
        }
        court.hear(index, message);
        rest = rest[total..];
    }
    return writer.buffered();
}

test "newcomers hear the names of all, members those of newcomers, and nobody an empty one" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    var room: [200]u8 = undefined;
    for ([_][]const u8{ "a:1", "", "c:3" }, 0..) |label, index| try join(&court, index, label);
    for (0..peers_max) |index|
        try expectEqualStrings("01=a:1 03=c:3 ", try labels_told(&court, index, &room));
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.listen();
    for (0..peers_max) |index| try court.enter(index);
    court.now = @max(court.now, court.group().round_due());
    try join(&court, peers_max, "d:4");
    court.c.tick(court.now);
    for (0..peers_max) |index|
        try expectEqualStrings("04=d:4 ", try labels_told(&court, index, &room));
    try expectEqualStrings("01=a:1 03=c:3 04=d:4 ", try labels_told(&court, peers_max, &room));
    try court.expect_said("info peer 04000000 (d:4) asks to join group g");
}

test "the status names who is there and who is lost" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for ([_][]const u8{ "a:1", "b:2", "c:3" }, 0..) |label, index| try join(&court, index, label);
    try court.listen();
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.listen();
    for (0..peers_max) |index| try court.enter(index);
    try court.say(2, .{ .leave = .{ .group = 0 } });
    const text = try court.status();
    for ([_][]const u8{ "a:1", "b:2", "c:3" }, 0..) |label, rank| {
        var wanted: [100]u8 = undefined;
        const alive = if (rank < 2) "true" else "false";
        const part = try std.fmt.bufPrint(
            &wanted,
            "\"label\":\"{s}\",\"rank\":{d},\"alive\":{s}",
            .{ label, rank, alive },
        );
        try std.testing.expect(std.mem.indexOf(u8, text, part) != null);
    }
}

test "a label that cannot be shown is refused, and one that is too long ends the connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try join(&court, 0, "a\nb");
    try court.listen();
    try std.testing.expect(court.refused);
    try join(&court, 1, "x" ** (base.limits.label_bytes_max + 1));
    try std.testing.expectEqual(null, court.peers[1]);
}

// ---- dials that failed
//
// Unreached, seen from outside: who hears of a dial that failed, how often, and until when. The
// rules: membership.zig.

/// Three members, and 3 and 4, which are in a round.
fn form_of_two(court: *Court) !void {
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
    try form_of_two(&court);
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
    try form_of_two(&court);
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
    try form_of_two(&court);
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
    try form_of_two(&court);
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

// ---- time, silence and freezes
//
// Time, silence and freezes, as the coordinator judges them: whom it takes for lost, whom it waits
// for, and when a group begins or begins again. The rules: coordinator.zig, membership.zig and
// debt.zig. How members judge silence: session/dial.zig.

/// Bits of the members that are alive.
const all_three = 0b111;
const first_two = 0b011;

fn form_of_three(court: *Court) !void {
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
    try form_of_three(&court);
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
    try form_of_three(&court);
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
        try form_of_three(&court);
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
    try form_of_three(&court);
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
        try form_of_three(&court);
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
        try form_of_three(&court);
        defer court.c.destroy();
        try court.connect(3);
        try court.next_round();
        court.hang_up(2);
        try say_gone(&court, 3, 2);
        try expectEqual(all_three, court.members_alive());
    }
    var court: Court = undefined;
    try form_of_three(&court);
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
        try form_of_three(&court);
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
    try form_of_three(&court);
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
    try form_of_three(&court);
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
