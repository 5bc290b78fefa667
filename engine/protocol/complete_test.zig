//! Calls that need every member of the epoch (recovery complete), and calls that a member has left
//! behind unmade: what the coordinator takes from members that lie, and what a member says. The
//! rules: epoch.zig, member.zig, stall.zig; in a world: tests/sim/scenarios (complete,
//! complete_to_one_then_both_lost, passed_without_a_call). The harness: court_test.zig.

const std = @import("std");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const control = wire.control;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

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

test "members fail such calls alone while one is lost, and tell nobody" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    for (0..5000) |_| {
        var op: Op = .{ .descriptor = court_file.descriptor, .chunks = 1 };
        op.descriptor.recovery = .complete;
        try w.member.check_start(tag);
        w.failure = null;
        w.member.start(&op, tag);
        try expectEqual(.aborted, w.failure.?.status);
        try expectEqual(.peer_lost, w.failure.?.reason);
        try expect(w.failure.?.peer.eql(.from_int(3)));
    }
    try expectEqual(0, w.gave_up);
    try expectEqual(0, w.called);
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
