//! Measurements: what members tell of their links and what is believed of it (measurement.zig), and
//! speeds of peers and links and who calls last in the status (matrix.zig, record.zig). The
//! harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const measurement = @import("measurement.zig");
const Court = court_file.Court;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

fn expect_status(court: *Court, wanted: []const u8) !void {
    const text = try court.status();
    if (std.mem.indexOf(u8, text, wanted) != null) return;
    std.debug.print("missing: {s}\nin: {s}\n", .{ wanted, text });
    return error.NotInStatus;
}

test "the status has the speed of each peer and of its links, of one span, as it tells them" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const links = [_]control.LinkTraffic{
        .{
            .peer = court_file.id_of(2),
            .sent = 700,
            .received = 8,
            .rate = 900,
            .brought = 30,
            .rtt_ns = 90 * ms,
            .again_ppm = 1_500,
            .lanes = 4,
        },
        .{ .peer = court_file.id_of(40), .sent = 1, .received = 1 }, // of another group
    };
    try court.say(1, .{ .traffic = .{
        .span_ns = 2100 * ms,
        .sent = 701,
        .received = 9,
        .up = 950,
        .down = 40,
        .links = .of(&links),
    } });
    try expect_status(&court, "\"sent_per_s\":0,\"received_per_s\":0,\"span_ns\":0," ++
        "\"up\":0,\"down\":0,");
    try expect_status(&court, "\"sent_per_s\":701,\"received_per_s\":9," ++
        "\"span_ns\":2100000000,\"up\":950,\"down\":40,\"calls\":0,\"last_to_call\":0," ++
        "\"late_ns\":0,\"links\":[{\"rank\":2,\"sent_per_s\":700," ++
        "\"received_per_s\":8,\"rate\":900,\"rtt_ns\":90000000," ++
        "\"retransmitted_ppm\":1500,\"lanes\":4,\"age_ns\":0}]}");
    // A report about other links: the rate of this link stays, and its age grows.
    try court.pass(1_000 * ms);
    try court.say(1, .{ .traffic = account(0, 0, &.{}) });
    try expect_status(&court, "\"links\":[{\"rank\":2,\"sent_per_s\":0,\"received_per_s\":0," ++
        "\"rate\":900,\"rtt_ns\":90000000,\"retransmitted_ppm\":1500,\"lanes\":4," ++
        "\"age_ns\":1000000000}]}");
    // A peer that says no more of them.
    try court.pass(11_000 * ms);
    const text = try court.status();
    try expect(std.mem.indexOf(u8, text, "\"sent_per_s\":701") == null);
    // Its rates stay: nothing moves, and the next call is as fast.
    try expect(std.mem.indexOf(u8, text, "\"up\":950,\"down\":40,") != null);
}

test "more links than may be told end the connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const link: control.LinkTraffic = .{ .peer = .none, .sent = 1, .received = 1 };
    const most: [base.limits.links_told_max + 1]control.LinkTraffic = @splat(link);
    var told = account(0, 0, &.{});
    told.links = .of(most[1..]);
    try court.say(0, .{ .traffic = told });
    try expect(court.peers[0] != null);
    told.links = .of(&most);
    try court.say(0, .{ .traffic = told });
    try expect(court.peers[0] == null);
}

test "a link of more lanes than there may be ends the connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const most = base.limits.lanes_per_link_max;
    for ([_]u8{ most, most + 1 }) |lanes| {
        try expect(court.peers[0] != null);
        const link: control.LinkTraffic =
            .{ .peer = .none, .sent = 1, .received = 1, .lanes = lanes };
        try court.say(0, .{ .traffic = account(0, 0, &.{link}) });
    }
    try expect(court.peers[0] == null);
}

fn account(up: u64, down: u64, links: []const control.LinkTraffic) control.Traffic {
    return .{
        .span_ns = 1,
        .sent = 1,
        .received = 1,
        .up = up,
        .down = down,
        .links = .of(links),
    };
}

fn link_to(index: usize, rate: u64, brought: u64) control.LinkTraffic {
    return .{
        .peer = court_file.id_of(index),
        .sent = 1,
        .received = 1,
        .rate = rate,
        .brought = brought,
        .rtt_ns = 20 * ms,
    };
}

/// The rows that a member has heard since it read last, by rank.
fn told_to(court: *Court, index: usize) ![peers_max]?Line {
    var lines: [peers_max]?Line = @splat(null);
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var rest: []const u8 = bytes;
    while (try Court.next_of(&rest)) |message| switch (message) {
        .measured => |*body| {
            var line: Line = .{ .up = body.up, .down = body.down };
            var it = body.links.iterator();
            while (it.next()) |link| line.rates[link.rank] = link.rate;
            lines[body.rank] = line;
        },
        else => {},
    };
    return lines;
}

const Line = struct { up: u64, down: u64, rates: [peers_max]u64 = @splat(0) };

fn expect_told(court: *Court, index: usize, expected: [peers_max]?Line) !void {
    try std.testing.expectEqual(expected, try told_to(court, index));
}

test "members hear what a member carries, and again when that has changed by more than a tenth" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    try court.say(0, .{ .traffic = account(100, 200, &.{ link_to(1, 50, 0), link_to(2, 70, 0) }) });
    try court.pass(500 * ms);
    const first: Line = .{ .up = 100, .down = 200, .rates = .{ 0, 50, 70 } };
    for (0..3) |index| try expect_told(&court, index, .{ first, null, null });
    // A little more or less, a link on which nothing moves any more, and what is not known.
    try court.say(0, .{ .traffic = account(110, 180, &.{link_to(1, 55, 0)}) });
    try court.say(0, .{ .traffic = account(0, 0, &.{ link_to(1, 0, 0), link_to(2, 0, 0) }) });
    try court.pass(500 * ms);
    for (0..3) |index| try expect_told(&court, index, .{ null, null, null });
    try court.say(0, .{ .traffic = account(110, 180, &.{link_to(1, 56, 0)}) });
    try court.say(1, .{ .traffic = account(0, 90, &.{link_to(2, 9, 0)}) });
    try court.pass(500 * ms);
    for (0..3) |index| try expect_told(&court, index, .{
        .{ .up = 110, .down = 180, .rates = .{ 0, 56, 70 } },
        .{ .up = 0, .down = 90, .rates = .{ 0, 0, 9 } },
        null,
    });
}

test "a member that claims more of its link than the other end has seen is believed no more" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    try court.say(1, .{ .traffic = account(0, 0, &.{link_to(0, 30, 40)}) });
    const claims = [_]control.LinkTraffic{ link_to(1, 1000, 20), link_to(2, 1000, 0) };
    try court.say(0, .{ .traffic = account(0, 0, &claims) });
    try court.pass(500 * ms);
    try expect_told(&court, 2, .{
        .{ .up = 0, .down = 0, .rates = .{ 0, 40, 1000 } },
        .{ .up = 0, .down = 0, .rates = .{ 20, 0, 0 } },
        null,
    });
    // The word of the other end changes the row of the one that claims.
    try court.say(2, .{ .traffic = account(0, 0, &.{link_to(0, 0, 60)}) });
    try court.pass(500 * ms);
    try expect_told(&court, 2, .{
        .{ .up = 0, .down = 0, .rates = .{ 0, 40, 60 } },
        null,
        .{ .up = 0, .down = 0 }, // the round trip of its link
    });
}

test "numbers that cannot be are said once, ignored, and end nothing" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    const most = base.limits.link_rate_told_max;
    try court.say(0, .{ .traffic = account(most, most, &.{link_to(1, most, most)}) });
    try court.pass(500 * ms);
    const known: Line = .{ .up = most, .down = most, .rates = .{ 0, most, 0 } };
    try expect_told(&court, 0, .{ known, null, null });
    var slow = link_to(1, 7, 0);
    slow.rtt_ns = base.limits.link_rtt_ns_told_max + 1;
    var lossy = link_to(1, 7, 0);
    lossy.again_ppm = base.limits.link_again_ppm_max + 1;
    for (0..2) |_| {
        const wrong = [_]control.LinkTraffic{
            link_to(1, most + 1, 0),
            link_to(1, 7, std.math.maxInt(u64)),
            slow,
            lossy,
            link_to(0, 7, 0), // itself
            link_to(40, 7, 0), // nobody
        };
        try court.say(0, .{ .traffic = account(most + 1, 1, &wrong) });
        try court.say(0, .{ .traffic = account(1, most + 1, &.{}) });
    }
    try court.pass(500 * ms);
    try expect_told(&court, 0, .{ null, null, null });
    try expect(court.peers[0] != null);
    try std.testing.expectEqual(1, court.c.run.peers.items[0].row.links.items.len);
    const said = court.said[0..court.said_bytes];
    const peer = " peer 01000000 tells of ";
    inline for (.{
        "warning" ++ peer ++ "a rate above 10 Tbit/s",
        "warning" ++ peer ++ "a round trip above 60 s",
        "warning" ++ peer ++ "more bytes sent again than there are",
        "info" ++ peer ++ "a link to nobody of this run",
    }) |line| try std.testing.expectEqual(
        1,
        std.mem.count(u8, said, line ++ "; that is not believed\n"),
    );
}

test "a member that comes back, and those of another epoch, hear all of it" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    try court.say(0, .{ .traffic = account(100, 200, &.{link_to(1, 50, 0)}) });
    try court.pass(500 * ms);
    const known: Line = .{ .up = 100, .down = 200, .rates = .{ 0, 50, 0 } };
    for (0..3) |index| try expect_told(&court, index, .{ known, null, null });
    court.hang_up(1);
    try court.come_back(1, court.attempt);
    try court.say(1, .{ .join_end = .{} });
    try court.pass(500 * ms);
    try expect_told(&court, 0, .{ null, null, null });
    try expect_told(&court, 1, .{ known, null, null });
    for (0..3) |index| try court.report_end(index);
    const before = court.epoch;
    try court.grow(1);
    try expect(court.epoch > before);
    try court.pass(500 * ms);
    for (0..3) |index| try expect_told(&court, index, .{ known, null, null });
    try expect_told(&court, 3, .{ known, null, null });
}

test "in an epoch of more members than all have links to, nobody hears of rates" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form_with(base.limits.measured_max + 1 - peers_max);
    try court.listen();
    try court.say(0, .{ .traffic = account(100, 200, &.{link_to(1, 50, 0)}) });
    try court.pass(500 * ms);
    for (0..3) |index| try expect_told(&court, index, .{ null, null, null });
    try expect_status(&court, "\"up\":100,\"down\":200,");
}

test "who calls last is counted, with the time that the others have waited for it alone" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    // It votes first, and has called last.
    for (0..3) |tag| for ([_]usize{ 2, 0, 1 }) |index| {
        var vote = court.vote(tag, 0);
        vote.age_ns = ([_]u64{ 900, 800, 300 })[index] * ms;
        try court.say(index, .{ .done = vote });
    };
    const none = "\"calls\":3,\"last_to_call\":0,\"late_ns\":0,";
    try expect_status(&court, none);
    try expect_status(&court, "\"calls\":3,\"last_to_call\":3,\"late_ns\":1500000000,");
    // A sync is voted for last by whoever had to fetch, and has no ages.
    for (0..3) |index| {
        var vote = court.vote(4, 0);
        vote.descriptor.kind = .sync;
        vote.age_ns = index * 100 * ms;
        try court.say(index, .{ .done = vote });
    }
    // Within a millisecond, nobody is late; the votes of an attempt that was cut short say nothing.
    for (0..3) |index| try court.done(index, 7, 0);
    try expect_status(&court, "\"calls\":4,\"last_to_call\":3,\"late_ns\":1500000000,");
    var early = court.vote(8, 0);
    early.age_ns = 900 * ms;
    try court.say(0, .{ .done = early });
    try court.stumble();
    for (0..3) |index| try court.report_end(index);
    for (0..3) |index| try court.done(index, 9, 0);
    try expect_status(&court, "\"calls\":5,\"last_to_call\":3,\"late_ns\":1500000000,");
}

// ---- probes
//
// The members that are asked to probe links, and when (measurement.zig).

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

// ---- paths
//
// When the paths of data change because of rates (attempt.zig). Which paths: plan/planner.zig.

const carried = 25_000_000;

/// All links carry as much by themselves, but that between ranks 1 and 2.
fn say_rates(court: *Court, of_slow: u64) !void {
    for (0..count) |from| {
        var links: [count - 1]control.LinkTraffic = undefined;
        var places: usize = 0;
        for (0..count) |to| if (from != to) {
            const is_slow = @min(from, to) == 1 and @max(from, to) == 2;
            const each: u64 = if (is_slow) of_slow else carried;
            links[places] = link_to(to, each, 0);
            links[places].limit = each;
            places += 1;
        };
        try court.say(from, .{ .traffic = account(carried, carried, &links) });
    }
}

const Viewed = struct { attempt: u32, order: base.Order, small_bytes: u64 };

/// The last view that a member has heard since it read last; null: none.
fn viewed(court: *Court, index: usize) !?Viewed {
    var found: ?Viewed = null;
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var rest: []const u8 = bytes;
    while (try Court.next_of(&rest)) |message| switch (message) {
        .view => |*body| {
            var order: base.Order = .{};
            var it = body.order.iterator();
            while (it.next()) |rank| order.append(rank);
            found = .{ .attempt = body.attempt, .order = order, .small_bytes = body.small_bytes };
        },
        else => {},
    };
    return found;
}

fn report_end_of_all(court: *Court) !void {
    for (0..count) |index| try court.report_end(index);
}

test "better paths wait until no member has a call, or take half of the time" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    // All links are even: only small calls would be faster. A member has a call.
    court.may_probe.unset(1);
    try say_rates(&court, carried);
    try court.pass(1000 * ms);
    try expectEqual(null, try viewed(&court, 0));
    court.may_probe.set(1);
    try court.pass(1000 * ms); // the attempt begins at the tick after the review
    const small = (try viewed(&court, 0)).?;
    try expectEqual(2, small.attempt);
    try expect(small.small_bytes > 0);
    try expectEqual(0, small.order.count); // rank order
    for (1..count) |index| try expectEqual(small, (try viewed(&court, index)).?);
    court.attempt = 2;
    try report_end_of_all(&court);
    // A link is a tenth as fast as before, while a call goes on. The next attempt comes after the
    // first pause, a fourth of `plan_pause_ns`.
    court.may_probe.unset(1);
    try say_rates(&court, carried / 10);
    try court.pass(1000 * ms);
    try expectEqual(null, try viewed(&court, 0));
    try court.pass(2000 * ms);
    const around = (try viewed(&court, 0)).?;
    try expectEqual(3, around.attempt);
    try std.testing.expectEqualSlices(u16, &.{ 0, 1, 3, 2 }, around.order.slice());
    court.attempt = 3;
    try report_end_of_all(&court);
    // It is well again. The ring stays, as no other is faster by a tenth; the hubs own equally much
    // again, which makes calls that ask for the direct schedule faster.
    try say_rates(&court, carried);
    court.may_probe.set(1);
    try court.pass(60_000 * ms);
    const after = (try viewed(&court, 0)).?;
    try expectEqual(4, after.attempt);
    try std.testing.expectEqualSlices(u16, around.order.slice(), after.order.slice());
    try expect(court.group().current().?.paths.shares.is_even());
}

test "a link that flaps causes no more than one attempt in a pause" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const epoch = court.group().current().?;
    for (0..120) |turn| {
        try say_rates(&court, if (turn % 4 < 2) carried / 20 else carried);
        try court.pass(500 * ms);
        if (epoch.attempt == court.attempt) continue;
        court.attempt = epoch.attempt;
        try report_end_of_all(&court);
    }
    // In a minute: three pauses that are shorter, then one of 10 s each.
    try expect(epoch.attempt > 1 and epoch.attempt <= 9);
}

// ---- paths that members ask for

/// Which members have been told that no better paths are known, since they read last; the probes
/// that members were asked for count in `probes`.
fn optimized(court: *Court, probes: *usize) !base.Mask {
    var told: base.Mask = .empty;
    for (0..count) |index| {
        const bytes = try court.told(index);
        defer gpa.free(bytes);
        var rest: []const u8 = bytes;
        while (try Court.next_of(&rest)) |message| switch (message) {
            .optimized => |body| {
                try expectEqual(court.group().id, body.group);
                told.set(index);
            },
            .probe => probes.* += 1,
            else => {},
        };
    }
    return told;
}

fn ask_for_paths(court: *Court, index: usize) !void {
    try court.say(index, .{ .optimize = .{ .group = court.group().id } });
}

test "members that ask for the best paths get them once unknown links are probed, though busy" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const epoch = court.group().current().?;
    var probes: usize = 0;
    try court.pass(500 * ms);
    try ask_for_paths(&court, 1);
    try ask_for_paths(&court, 3);
    for (0..20) |_| {
        try court.pass(500 * ms);
        try expect((try optimized(&court, &probes)).is_empty());
        if (probes == count * (count - 1)) break;
    }
    try expectEqual(count * (count - 1), probes);
    try say_rates(&court, carried); // only small calls would be faster
    court.may_probe.unset(2); // a call goes on
    try court.pass(1000 * ms);
    court.attempt = 2;
    try expectEqual(2, epoch.attempt);
    try expect((try optimized(&court, &probes)).is_empty());
    try report_end_of_all(&court);
    try court.pass(500 * ms);
    var askers: base.Mask = .empty;
    for ([_]usize{ 1, 3 }) |index| askers.set(index);
    try expectEqual(askers, try optimized(&court, &probes));
    // Nothing has changed since: the next answer comes at once, and to the member that has asked.
    try ask_for_paths(&court, 0);
    court.c.tick(court.now);
    try expect((try optimized(&court, &probes)).eql(&.full(1)));
    try expectEqual(2, epoch.attempt);
}

test "members that ask for paths wait until the first probe of each link is told, and no longer" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    var probes: usize = 0;
    try court.pass(500 * ms);
    try ask_for_paths(&court, 0);
    // The last probe begins at 3.5 s. A member that has found something tells it within 2 s and a
    // heartbeat of the probe's end.
    var waited: usize = 0;
    while ((try optimized(&court, &probes)).is_empty()) : (waited += 1) {
        try expect(waited < 40);
        try court.pass(500 * ms);
    }
    try expect(probes >= count * (count - 1) and waited > 2 * (3 + 3));
    // Nothing was found, so pairs are asked again; nobody waits for that.
    try ask_for_paths(&court, 0);
    court.c.tick(court.now);
    try expect((try optimized(&court, &probes)).has(0));
}

test "nobody waits for probes that cannot come" {
    const Case = enum { near, busy, unprobed, outside };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try form(&court);
        defer court.c.destroy();
        // A member that is busy, or whose round trips are not known, may probe later, and is waited
        // for until a limit.
        if (case != .outside) court.may_probe = .empty;
        if (case == .unprobed) court.c.run.options.probes = false;
        // A member that has not entered the epoch is not asked for probes.
        if (case == .outside) for (0..count - 1) |rank|
            court.group().current().?.activated.unset(rank);
        try court.pass(500 * ms);
        if (case == .near) for (0..count) |from| for (0..count) |to| if (from != to) {
            var link = link_to(to, 0, 0);
            link.rtt_ns = 1 * ms;
            try court.say(from, .{ .traffic = account(0, 0, &.{link}) });
        };
        try ask_for_paths(&court, 2);
        court.c.tick(court.now);
        var probes: usize = 0;
        if (case == .busy) {
            try expect((try optimized(&court, &probes)).is_empty());
            try court.pass(4000 * ms);
        }
        const told = try optimized(&court, &probes);
        try expect(told.has(2) and told.count() == 1);
        try expectEqual(0, probes);
    }
}

test "a run of fixed paths answers at once, and a link that is well again changes nothing" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const epoch = court.group().current().?;
    court.c.run.options.plan_pause_ns = base.never;
    // The ring has gone around a link that is well by now.
    epoch.paths.order = .{};
    for ([_]u16{ 0, 2, 1, 3 }) |rank| epoch.paths.order.append(rank);
    try say_rates(&court, carried / 20);
    var probes: usize = 0;
    try court.pass(1000 * ms);
    _ = try optimized(&court, &probes);
    try ask_for_paths(&court, 1);
    court.c.tick(court.now);
    try expect((try optimized(&court, &probes)).has(1));
    try court.pass(20_000 * ms);
    try expectEqual(1, epoch.attempt);
}

test "a liar that has each plan replaced holds nobody up that asks for paths" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const epoch = court.group().current().?;
    try say_rates(&court, carried);
    try court.pass(500 * ms);
    try ask_for_paths(&court, 0);
    var probes: usize = 0;
    for (0..60) |turn| {
        try say_rates(&court, if (turn % 4 < 2) carried / 20 else carried);
        try court.pass(500 * ms);
        if ((try optimized(&court, &probes)).has(0)) break;
        if (epoch.attempt == court.attempt) continue;
        court.attempt = epoch.attempt;
        try report_end_of_all(&court);
    } else return error.NoAnswer;
    try expect(epoch.attempt <= 3);
}

test "paths keep to the ranks where the run asks for that" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    court.c.run.options.plan_pause_ns = base.never;
    try say_rates(&court, carried / 20);
    try court.pass(60_000 * ms);
    try expectEqual(1, court.group().current().?.attempt);
}
