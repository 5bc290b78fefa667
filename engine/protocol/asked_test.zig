//! Questions that members answer by themselves: which member is let go for want of an answer, and
//! which has more time. The rules: peer.zig. The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const court_file = @import("court_test.zig");
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const ms = court_file.ms;
const second = 1000 * ms;
const Court = court_file.Court;

fn form(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.listen();
    court.now += second;
    court.c.tick(court.now);
}

test "a member that beats and never answers a round is let go, and newcomers get in" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    try court.connect(3);
    try court.pass_answering(court.c.run.options.silence_ns - 500 * ms, &.{ 0, 1, 3 });
    try expectEqual(.prepare, court.group().phase);
    try expectEqual(0b111, court.members_alive());
    try court.pass_answering(1500 * ms, &.{ 0, 1, 3 });
    try expectEqual(null, court.peers[2]);
    try court.expect_said("info peer 03000000 is gone: it does not say which lanes it has");
    try court.pass_answering(second, &.{ 0, 1, 3 });
    try expectEqual(2, court.group().last_epoch);
    try expectEqual(0b111, court.members_alive());
}

test "a member that beats and never answers a round keeps no gap open" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    try court.say(1, .{ .leave = .{ .group = 0 } });
    try court.pass_answering(court.c.run.options.silence_ns + 2 * second, &.{0});
    try expectEqual(null, court.peers[2]);
    try expectEqual(2, court.group().last_epoch);
    try expectEqual(0b001, court.members_alive());
}

/// Time passes, and one member takes so many bytes in half a second; the others read.
fn pass_thin(court: *Court, duration_ns: u64, thin: usize, bytes: usize) !void {
    const until = court.now + duration_ns;
    while (court.now < until) {
        try court.pass(500 * ms);
        const connection = court.peers[thin] orelse return;
        var left = bytes;
        while (left > 0 and connection.stream.send_slice().len > 0) {
            const count = @min(left, connection.stream.send_slice().len);
            connection.stream.sent(count);
            left -= count;
        }
        court.peers[thin] = null; // its queue is left alone
        try court.listen();
        court.peers[thin] = connection;
    }
}

const all = std.math.maxInt(usize);

/// Much waits for a member on a thin line before it is asked.
fn burden(court: *Court, index: usize) !void {
    const stream = &court.peers[index].?.stream;
    for (0..2000) |_| try stream.send(.{ .heartbeat_ack = .{ .number = 1 } });
}

test "a member has its time from when a question has left for it, up to a minute" {
    for ([_]bool{ true, false }) |reads| {
        var court: Court = undefined;
        try form(&court);
        defer court.c.destroy();
        const silence_ns = court.c.run.options.silence_ns;
        try burden(&court, 2);
        try court.connect(3);
        try court.pass_answering(0, &.{});
        try expectEqual(.prepare, court.group().phase);
        for ([_]usize{ 0, 1, 3 }) |index| try court.prepare(index, court.group().round, true);
        try pass_thin(&court, 50 * second, 2, 10);
        try expectEqual(0b111, court.members_alive());
        if (reads) {
            try pass_thin(&court, silence_ns, 2, all);
        } else try pass_thin(&court, 9500 * ms, 2, 10);
        try expectEqual(0b111, court.members_alive());
        try pass_thin(&court, second, 2, 10);
        try expectEqual(null, court.peers[2]);
    }
}

test "a member that has been let into a long queue by others may say later what it has seen" {
    // Method: two exchange messages without end; the third takes a few of the decisions a second.
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const thin_bytes = 8_000;
    const message_tag = (base.Pair{ .src = 0, .dst = 1 }).tag(0);
    var decisions: u64 = 0;
    var taken: u64 = 0;
    for (0..24) |_| { // 12 s
        for (0..200) |_| {
            for (0..2) |index| {
                var said = court.vote(0, decisions);
                said.op = .{ .tag = message_tag, .sequence = decisions };
                said.descriptor.kind = .send_recv;
                try court.say(index, .{ .done = said });
            }
            decisions += 1;
        }
        const before = court.peers[2].?.stream.sent_bytes;
        try pass_thin(&court, 500 * ms, 2, thin_bytes);
        try expect(court.peers[2] != null);
        taken += court.peers[2].?.stream.sent_bytes - before;
        // It says what it has seen as it reads on; each has less than so many bytes.
        try court.say_seen(2, @min(decisions, taken / 128));
    }
    try expectEqual(decisions, court.group().current().?.decisions);
    try expect(court.peers[2].?.stream.out.length > 12 * thin_bytes); // more than the limit's worth
    // One that reads and says nothing of it goes after the silence limit.
    try pass_thin(&court, court.c.run.options.silence_ns + second, 2, all);
    try expectEqual(null, court.peers[2]);
    try court.expect_said("info peer 03000000 is gone: it does not say which decisions it has " ++
        "seen");
}

test "time in which the answer of a member lies unread at the coordinator is not its own" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    try court.connect(3);
    try court.listen();
    for ([_]usize{ 0, 1, 3 }) |index| try court.prepare(index, court.round, true);
    const until = court.now + 2 * court.c.run.options.silence_ns;
    while (court.now < until) {
        try pass_thin(&court, second, 2, all);
        court.peers[2].?.peer.?.unread_until = court.now; // as when its vote waits (operation.zig)
    }
    try expectEqual(0b111, court.members_alive());
    try pass_thin(&court, court.c.run.options.silence_ns + second, 2, all);
    try expectEqual(null, court.peers[2]);
}

/// For a while this member takes, each half a second, all but what it was told last.
fn pass_late(court: *Court, duration_ns: u64, late: usize) !void {
    const until = court.now + duration_ns;
    while (court.now < until) {
        const stream = &court.peers[late].?.stream;
        try pass_thin(court, 500 * ms, late, stream.told_bytes() - stream.sent_bytes);
    }
}

/// Decisions that the others have seen, more than a member may leave unsaid.
fn decide(court: *Court) !void {
    const count = 2 * base.limits.decisions_untold_max;
    for (0..count) |tag| try court.give_up(0, tag);
    for (0..2) |index| try court.say_seen(index, count);
}

test "a member whose line always has something under way has its time once it is behind" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    try pass_late(&court, 13 * silence_ns, 2);
    try decide(&court);
    try pass_late(&court, silence_ns, 2);
    try expectEqual(0b111, court.members_alive());
    try pass_thin(&court, 2 * second, 2, all);
    try expectEqual(null, court.peers[2]);
}

test "a member that comes back has its time from when it has been told what it missed" {
    var court: Court = undefined;
    try form(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    court.hang_up(2);
    try decide(&court);
    try court.pass(second);
    try court.listen();
    try court.come_back(2, 1);
    try court.say(2, .{ .join_end = .{} });
    try pass_thin(&court, 2 * silence_ns, 2, 10);
    try expectEqual(0b111, court.members_alive());
    try pass_thin(&court, silence_ns + second, 2, all);
    try expectEqual(null, court.peers[2]);
}
