//! Proofs of a review.
const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const control = wire.control;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const ms = court_file.ms;
const id_of = court_file.id_of;
const peers_max = court_file.peers_max;
const Court = court_file.Court;

const newcomer = peers_max;
const tag = 5;
const lonely_tag = 6;

fn grow(court: *Court) !void {
    const all = peers_max + 1;
    try court.connect(newcomer);
    try court.next_round();
    for (0..all) |index| try court.prepare(index, court.round, true);
    for (0..peers_max) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    for (0..all) |index| try court.enter(index);
    for (0..peers_max) |index| try court.say(index, .{ .epoch_closed = .{
        .group = 0,
        .epoch = court.epoch - 1,
    } });
    try court.listen();
    for (0..all) |index| try court.done(index, 8, 0);
    try court.listen();
    for (court.commits[0..all]) |commits| try expectEqual(1, commits);
}

fn wait(court: *Court, duration_ns: u64) !void {
    try court.pass_answering(duration_ns, &.{ 0, 1, 2, newcomer });
    try court.listen();
}

fn fitted_case(restarts: bool) !u64 {
    var shelf: court_file.Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    if (restarts) {
        try court_file.restart_after(&shelf, &court, grow);
        court.epoch = 2;
        const ids = [_]base.PeerId{ id_of(0), id_of(1), id_of(2), id_of(3) };
        for (0..4) |index| {
            try court.open(index);
            try court.say(index, .{ .epoch_report = .{
                .epoch = 2,
                .attempt = 1,
                .entered = true,
                .decisions_seen = 1,
                .alive = .full(4),
                .members = .of(&ids),
            } });
        }
        for (0..4) |index| try court.say(index, .{ .join_end = .{} });
        try court.listen();
        court.attempt = court.group().current().?.attempt;
        for (0..4) |index| try court.report_end(index);
        try court.listen();
    } else {
        try court.init(gpa);
        errdefer court.c.destroy();
        try court.form();
        try grow(&court);
    }
    defer court.c.destroy();
    try expect(court.group().current().?.running);
    try expectEqual(0b1111, court.members_alive());
    try court.called(newcomer, lonely_tag);
    for (0..peers_max) |index| try court.called(index, tag);
    try wait(&court, 12_000 * ms);
    return court.members_alive();
}

test "rev4 a member that has taken part is no stray, without a restart" {
    try expectEqual(0b1111, try fitted_case(false));
}

test "rev4 a member that has taken part is no stray after a restart of the coordinator" {
    try expectEqual(0b1111, try fitted_case(true));
}

fn starve(flaps: bool, members_more: usize, by_newcomer: bool) !bool {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form_with(members_more);
    const all = peers_max + members_more;
    try court.connect(all); // the newcomer
    try court.next_round();
    const who: usize = if (by_newcomer) all + 1 else 2;
    if (by_newcomer) try court.connect(who); // it is in no round
    try expectEqual(.prepare, court.group().phase);
    // Rank 2 is no neighbour of these in the ring, so no path changes.
    try court.say(who, .{ .link_told = .{ .other = id_of(5), .group = 0, .health = .silent } });
    if (flaps) {
        court.now += 25 * ms;
        court.c.tick(court.now); // its look
        try court.say(who, .{ .link_told = .{ .other = id_of(7), .group = 0, .health = .silent } });
    }
    for (0..all) |index| try court.prepare(index, court.round, true);
    try court.prepare(all, court.round, true);
    try court.listen();
    const began = court.now;
    var turn: usize = 0;
    var is_up = false;
    var beat_at: u64 = 0;
    while (court.now < began + 30_000 * ms and court.group().phase == .prepare) : (turn += 1) {
        court.now = @max(court.now + 1, court.c.next_deadline());
        if (court.now >= beat_at) {
            for (0..all + 2) |index| try court.beat(index);
            beat_at = court.now + 400 * ms;
        }
        court.c.tick(court.now);
        // What a link that comes and goes has its member say, once for each look.
        if (flaps and court.group().look.at == base.never) {
            is_up = !is_up;
            try court.say(who, .{ .link_told = .{
                .other = id_of(7),
                .group = 0,
                .health = if (is_up) .up else .silent,
            } });
        }
    }
    std.debug.print("by newcomer {} members {d} flaps {}: phase {t} after {d} ms, {d} ticks\n", .{
        by_newcomer, all, flaps, court.group().phase, (court.now - began) / ms, turn,
    });
    return court.group().phase != .prepare;
}

test "rev4 a newcomer enters beside links that come and go" {
    try expect(try starve(false, 10, false));
    try expect(try starve(true, 10, false));
}

test "rev4 a newcomer enters beside another that says much of its links" {
    try expect(try starve(true, 10, true));
}

test "rev4 a newcomer that has voted hears of its call in the resume" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form_with(1);
    try court.done(0, tag, 0);
    var said = court.vote(tag, 0);
    said.descriptor.kind = .barrier;
    said.descriptor.count = 0;
    try court.say(newcomer, .{ .done = said });
    try court.listen();
    try court.say(0, .{ .leave = .{ .group = 0 } });
    try court.listen();
    var report = court.running(tag, 1);
    report.descriptor = said.descriptor;
    report.state = .done;
    report.voted_attempt = 1;
    report.digest = 7;
    try court.say(newcomer, .{ .report_op = report });
    for (1..peers_max + 1) |index| try court.report_end(index);
    const bytes = try court.told(newcomer);
    defer gpa.free(bytes);
    var rest: []const u8 = bytes;
    var op = false;
    var all = false;
    while (try Court.next_of(&rest)) |message| switch (message) {
        .resume_op => op = true,
        .resume_all => all = true,
        else => {},
    };
    try expect(all);
    try expect(op); // else its Member.on_resume refuses: error.Unexpected
}

/// A member on a thin line, which always has something under way, and answers all the same.
fn thin_line(is_thin: bool) !bool {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    const epoch = court.group().current().?;
    var next_tag: u64 = 100;
    var before: u64 = 0;
    var seen: u64 = 0;
    for (0..140) |step| {
        court.now += 500 * ms;
        for (0..peers_max) |index| try court.beat(index);
        const stream = &court.peers[2].?.stream;
        const mark = stream.told_bytes();
        const stops = step >= 130; // for five seconds at the most it says nothing of it
        for (0..if (stops) 70 else 5) |_| {
            for (0..peers_max) |index| try court.done(index, next_tag, if (index == 2) seen else epoch.decisions);
            next_tag += 1;
            if (!stops) seen = epoch.decisions;
        }
        for (0..peers_max) |index| {
            if (index != 2 or !is_thin) {
                const bytes = try court.told(index);
                gpa.free(bytes);
                continue;
            }
            // All but the last byte of what there was at the last tick.
            while (stream.sent_bytes + 1 < before) {
                const count = @min(stream.send_slice().len, before - 1 - stream.sent_bytes);
                if (count == 0) break;
                stream.sent(count);
            }
        }
        before = @max(mark, before);
        before = stream.told_bytes();
        court.c.tick(court.now);
        if (court.peers[2] == null) {
            std.debug.print("thin {}: let go in step {d}, {d} ms after it stopped\n", .{
                is_thin, step, (step -| 130) * 500,
            });
            return step >= 138;
        }
    }
    return true;
}

test "rev4 a member that is behind for a moment has its time, whatever its line was before" {
    try expect(try thin_line(false));
    try expect(try thin_line(true));
}
