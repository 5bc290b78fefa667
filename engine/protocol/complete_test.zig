//! Calls that need every member of the epoch (recovery complete), and calls that a member has left
//! behind unmade: what the coordinator takes from members that lie, and what a member says. The
//! rules: attempt.zig, member.zig, debt.zig; in a world: tests/sim/scenarios (complete,
//! complete_to_one_then_both_lost, passed_without_a_call). The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;

const Court = court_file.Court;
const Op = @import("member.zig").Op;
const Witness = @import("hostile_test.zig").Witness;
const id_of = court_file.id_of;
const peers_max = court_file.peers_max;

const lost = 2;
const tag = 5;

/// A member has left, and the others have gone on.
fn lose_one(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.say(lost, .{ .leave = .{ .group = 0 } });
    try court.listen();
    for (0..lost) |index| try court.report_end(index);
    try court.listen();
}

test "members that only fail such calls while one is lost tell nobody" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    try fail_alone(&w, 5000);
    try expectEqual(0, w.gave_up);
    try expectEqual(0, w.called);
}

test "before its next vote a member says which such calls have failed" {
    // Found by: pccl-sim, seeds 336216 and 329713: others had called the same with another
    // recovery, and succeeded when it was gone.
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    const resumed: control.Resume = .{ .group = 0, .epoch = 1, .attempt = 2 };
    try w.member.on_resume(&resumed);
    try fail_alone(&w, base.limits.failed_alone_max + 1);
    try expectEqual(0, w.gave_up);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, tag + 1));
    w.member.completed(&op, 9);
    try expectEqual(base.limits.failed_alone_max, w.gave_up);
    // Once, unless the connection is lost.
    try w.view(3, .full(2));
    try expectEqual(base.limits.failed_alone_max, w.gave_up);
    for (0..base.limits.failed_alone_max) |sequence| try w.abort(1, tag, sequence, 1 + sequence);
    // Before a report.
    w.gave_up = 0;
    try w.resume_op(3, op.id);
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 3 });
    try fail_alone(&w, 2);
    try w.view(4, .full(2));
    try expectEqual(2, w.gave_up);
    w.member.disconnected();
    w.member.present();
    try expectEqual(4, w.gave_up);
}

test "a member that hears first that such a call has failed elsewhere knows why" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    try w.abort(2, tag, 0, 1);
    try w.abort(2, tag, 1, 2);
    try fail_alone(&w, 1);
    var op: Op = undefined;
    try expectEqual(.cancelled, (try w.call(&op, tag)).?.reason); // one that needs fewer
    try expectEqual(0, w.gave_up);
}

/// Calls that need every member.
fn fail_alone(w: *Witness, count: usize) !void {
    for (0..count) |_| {
        var op: Op = .{ .descriptor = court_file.descriptor, .chunks = 1 };
        op.descriptor.recovery = .complete;
        try w.member.check_start(tag);
        w.failure = null;
        w.member.start(&op, tag);
        try expectEqual(.aborted, w.failure.?.status);
        try expectEqual(.peer_lost, w.failure.?.reason);
        try expect(w.failure.?.peer.eql(.from_int(3)));
    }
}

test "nobody may say that such a call lacks a member" {
    var court: Court = undefined;
    try lose_one(&court);
    defer court.c.destroy();
    try court.say(0, .{ .gave_up = .{
        .group = 0,
        .epoch = court.epoch,
        .op = .{ .tag = tag, .sequence = 0 },
        .reason = .peer_lost,
    } });
    try expectEqual(null, court.peers[0]);
    try expect(court.peers[1] != null);
}

test "votes of all others do not commit such a call without the lost" {
    var court: Court = undefined;
    try lose_one(&court);
    defer court.c.destroy();
    for (0..lost) |index| {
        var said = court.vote(tag, 0);
        said.descriptor.recovery = .complete;
        try court.say(index, .{ .done = said });
    }
    try court.listen();
    for (0..lost) |index| try expectEqual(1, court.aborts[index]);
    try expectEqual(.peer_lost, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(lost)));
}

// ---- calls that a member has passed by

/// The next epoch has begun, with a newcomer; nobody has entered it.
fn begin_next(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.connect(peers_max);
    try court.next_round();
    for (0..peers_max + 1) |index| try court.prepare(index, court.round, true);
    for (0..peers_max) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    try expectEqual(2, court.epoch);
}

fn close_first(court: *Court, index: usize) !void {
    try court.say(index, .{ .epoch_closed = .{ .group = 0, .epoch = 1 } });
}

test "a member that has not entered the next epoch closes none" {
    var court: Court = undefined;
    try begin_next(&court);
    defer court.c.destroy();
    try court.enter(0);
    try close_first(&court, 0);
    try expect(court.peers[0] != null);
    try close_first(&court, 1);
    try expectEqual(null, court.peers[1]);
}

test "calls that a member has passed by are ended up to a bound" {
    var court: Court = undefined;
    try begin_next(&court);
    defer court.c.destroy();
    try court.enter(0);
    try close_first(&court, 0);
    const at_once = base.limits.operations_in_flight_max;
    const most = base.limits.decisions_kept_max;
    for (0..most / at_once + 2) |round| {
        const first: u64 = @min(round, most / at_once);
        for (0..at_once) |number| try court.say(1, .{ .called = .{
            .group = 0,
            .epoch = 1,
            .attempt = 1,
            .op = .{ .tag = first * at_once + number, .sequence = 0 },
            .descriptor = court_file.descriptor,
            .left_ns = std.math.maxInt(u64),
        } });
        court.c.tick(court.now);
        try court.listen();
    }
    try expectEqual(most, court.aborts[1]);
    try expectEqual(.passed, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(0)));
    try expect(court.last_abort.?.other.eql(id_of(1)));
    try expect(court.peers[1] != null);
    // Calls that wait are no error of the coordinator.
    const said = court.said[0..court.said_bytes];
    try expectEqual(null, std.mem.indexOf(u8, said, "Unexpected"));
}
