//! unseen: decisions are kept until every member has said that it has seen them. Votes make
//! decisions, so they must not run far ahead of that. A vote waits while some other member is far
//! behind: that member says what it has seen, or is let go (decisions.zig: check_seen). A member
//! that is far behind itself may vote for operations that it has called by then, and is let go
//! beyond. The numbers: base/limits.zig.

const std = @import("std");
const base = @import("base");
const Epoch = @import("epoch.zig").Epoch;
const ProtocolError = @import("peer.zig").ProtocolError;
const limits = base.limits;

/// How long a vote waits until it is looked at again.
pub const wait_ns = 10 * std.time.ns_per_ms;

/// A vote of this member comes too early for some other.
pub fn must_wait(epoch: *const Epoch, rank: u16) bool {
    return epoch.outstanding().len >= limits.decisions_unseen_max and !is_behind(epoch, rank);
}

/// The member votes, or offers, which counts as a vote.
pub fn count_vote(epoch: *Epoch, rank: u16) ProtocolError!void {
    const member = &epoch.members[rank];
    if (!is_behind(epoch, rank)) {
        member.votes_behind = 0;
        return;
    }
    if (member.votes_behind >= limits.decisions_kept_max) return error.Unexpected;
    member.votes_behind += 1;
}

fn is_behind(epoch: *const Epoch, rank: u16) bool {
    const unseen = epoch.decisions -| epoch.members[rank].decisions_seen;
    return @min(unseen, epoch.outstanding().len) >= limits.decisions_unseen_max;
}

const testing = std.testing;
const court_file = @import("court_test.zig");
const Court = court_file.Court;

/// All members vote for so many operations; those who `tell` say that they have seen the rest.
fn decide(court: *Court, first: u64, count: u64, tell: [court_file.peers_max]bool) !void {
    for (first..first + count) |tag| {
        for (tell, 0..) |tells, index| try court.done(index, tag, if (tells) tag else 0);
        try court.listen();
    }
}

fn alive(court: *const Court) u64 {
    return court.group().current().?.alive.words[0];
}

test "a member that votes on and never says what it has seen is let go" {
    // The others are lost, so that its vote alone decides.
    var court: Court = undefined;
    try court.init(testing.allocator);
    defer court.c.destroy();
    try court.form();
    for (0..2) |index| court.hang_up(index);
    try court.pass(10 * std.time.ns_per_s);
    try court.listen();
    try court.report_end(2);
    try court.listen();
    const enough = limits.decisions_unseen_max + limits.decisions_kept_max;
    for (0..enough) |tag| try court.done(2, tag, 0);
    try testing.expect(court.peers[2] != null);
    try testing.expectEqual(enough, court.group().current().?.decisions);
    try court.done(2, enough, 0);
    try testing.expectEqual(null, court.peers[2]);
}

test "a vote waits for a member that is far behind, and is taken when that has said more" {
    var court: Court = undefined;
    try court.init(testing.allocator);
    defer court.c.destroy();
    try court.form();
    const most = limits.decisions_unseen_max;
    try decide(&court, 0, most, .{ true, true, false });
    const epoch = court.group().current().?;
    try testing.expectEqual(most, epoch.decisions);
    // The one that is behind votes for what it has called; the vote of another is not read.
    try court.done(2, most, 0);
    try court.done(0, most, most);
    try court.done(1, most, most);
    try testing.expectEqual(most, epoch.decisions);
    try testing.expect(court.peers[0].?.is_paused(court.now));
    try testing.expectEqual(court.now + wait_ns, court.peers[0].?.peer.?.unread_until);
    try testing.expect(!court.peers[2].?.is_paused(court.now));
    try court.say_seen(2, most);
    court.now += wait_ns;
    court.c.tick(court.now);
    for (0..2) |index| court.c.received(court.now, court.peers[index].?);
    try testing.expectEqual(most + 1, epoch.decisions);
    try testing.expectEqual(0b111, alive(&court));
}
