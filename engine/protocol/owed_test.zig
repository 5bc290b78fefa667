//! Reports and votes that a member owes: who is named, who is let go, and who has more time. The
//! rules: debt.zig. The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const court_file = @import("court_test.zig");
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const second = 1000 * ms;
const peers_max = court_file.peers_max;
const Court = court_file.Court;

const tag = 5;

/// A lane broke, and the first two have reported.
fn form(court: *Court, stall_ns: u64) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    court.c.run.options.stall_ns = stall_ns;
    try court.form();
    try court.stumble();
    for (0..2) |index| try court.report_end(index);
}

/// Time passes, and everybody reads what it is told.
fn pass(court: *Court, seconds: usize) !void {
    for (0..2 * seconds) |_| {
        try court.pass(500 * ms);
        try court.listen();
        court.c.tick(court.now); // now that nothing waits to be sent
    }
}

fn is_named(court: *const Court) bool {
    return court.group().current().?.members[2].waited_for;
}

test "a member that reports nothing is named after the warning time, and let go by itself at last" {
    var court: Court = undefined;
    try form(&court, 0);
    defer court.c.destroy();
    try pass(&court, 9);
    try expect(!is_named(&court));
    const before = court.said_bytes;
    try pass(&court, 45);
    try expect(is_named(&court));
    const lines = std.mem.count(u8, court.said[before..court.said_bytes], "\n");
    try expectEqual(1, lines);
    try court.expect_said("warning peer 03000000 (rank 2) has not said what it holds of the " ++
        "calls of epoch 1, for which the others have waited 10 s; group g");
    try expectEqual(0b111, court.members_alive());
    try pass(&court, 7);
    try expectEqual(0b011, court.members_alive());
    try court.expect_said("warning peer 03000000 must leave group g: it has not said what it " ++
        "holds of the calls of epoch 1, for which the others have waited 60 s");
    for (0..2) |index| try court.report_end(index);
    try expect(court.group().current().?.running);
}

test "where the run says so, a member that reports nothing is let go when it says" {
    var court: Court = undefined;
    try form(&court, 20 * second);
    defer court.c.destroy();
    try pass(&court, 19);
    try expectEqual(0b111, court.members_alive());
    try pass(&court, 2);
    try expectEqual(0b011, court.members_alive());
}

test "a report that comes in parts, or has not been asked for on the wire, has its time" {
    const Case = enum { parts, unheard, frozen };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try form(&court, 0);
        defer court.c.destroy();
        for (0..4) |part| {
            switch (case) {
                .parts => try court.report(2, part, 1),
                .unheard, .frozen => {},
            }
            if (case == .frozen) {
                court.now += 20 * second;
                for (0..peers_max) |index| try court.beat(index);
                court.c.tick(court.now);
            } else if (case == .unheard) {
                try court.pass(20 * second); // what it is told stays where it is
            } else try pass(&court, 20);
        }
        try expectEqual(0b111, court.members_alive());
        try court.report_end(2);
        try expect(court.group().current().?.running);
        try court.pass(500 * ms);
        try expect(!is_named(&court));
    }
}

test "a member that comes again gains no time, and one that reports what has passed does" {
    for ([_]bool{ true, false }) |comes_again| {
        var court: Court = undefined;
        try form(&court, 20 * second);
        defer court.c.destroy();
        const who: usize = if (comes_again) 2 else 0;
        for (0..10) |_| {
            try pass(&court, 2);
            const before = court.attempt;
            if (court.peers[who] == null) break;
            court.hang_up(who);
            try court.come_back(who, before);
            try court.say(who, .{ .join_end = .{} });
            // It reports the attempt that its own return has ended, or that of others has.
            if (court.peers[2] != null) {
                court.attempt = before;
                try court.report_end(2);
            }
            court.attempt = before + 1;
            for (0..2) |index| try court.report_end(index);
        }
        try pass(&court, 2);
        const left: u64 = if (comes_again) 0b011 else 0b111;
        try expectEqual(left, court.members_alive());
    }
}

test "whose vote alone is missing is named, and stays" {
    // Method: two have voted. The third says that it has called, and neither what it lacks nor that
    // it lacks nothing; a new attempt in between makes no difference.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.c.run.options.stall_ns = 20 * second;
    try court.form();
    for (0..2) |index| try court.done(index, tag, 0);
    try court.called(2, tag);
    try pass(&court, 5);
    try court.stumble();
    for (0..2) |index| try court.report_vote(index, tag, 1, 1);
    try court.report(2, tag, 1);
    for (0..peers_max) |index| try court.report_end(index);
    for (0..2) |index| try court.done(index, tag, 0);
    try pass(&court, 4);
    try expect(!is_named(&court));
    try pass(&court, 2);
    try expect(is_named(&court));
    try court.expect_said("warning peer 03000000 (rank 2) alone has not finished all_reduce " ++
        "(tag 5, sequence 0 of epoch 1), for which 2 of 3 have waited 10 s; group g");
    try pass(&court, 60);
    try expectEqual(0b111, court.members_alive());
    try court.done(2, tag, 0);
    try court.listen();
    for (0..peers_max) |index| try expectEqual(1, court.commits[index]);
    try court.pass(500 * ms);
    try court.expect_said("warning peer 03000000 (rank 2) of epoch 1 is not waited for any " ++
        "more; group g");
}
