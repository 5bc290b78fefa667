//! attempts: with which attempt an epoch goes on after a restart. The coordinator before may have
//! begun more attempts than are set aside for a start (restoring.zig), and the members tell
//! of them. A member that lies must not use up the attempts that an epoch has. The numbers:
//! base/limits.zig.

const std = @import("std");
const base = @import("base");
const Epoch = @import("epoch.zig").Epoch;
const limits = base.limits;

/// A member tells of an attempt before all are back.
pub fn hear(epoch: *Epoch, rank: u16, attempt: u32) void {
    epoch.members[rank].attempt_told = attempt;
    const believed = @min(attempt, epoch.first_attempt +| limits.attempts_ahead_max);
    epoch.attempt = @max(epoch.attempt, believed);
}

/// All are back or lost. A member that is far ahead of the attempts of this start, and of what over
/// half have reached, is let go: they would have reached more.
pub fn settle(epoch: *Epoch) void {
    var told: [limits.peers_max]u32 = undefined;
    var count: usize = 0;
    for (epoch.members) |*member| if (member.peer != null and member.named) {
        told[count] = member.attempt_told;
        count += 1;
    };
    if (count == 0) return;
    std.mem.sort(u32, told[0..count], {}, std.sort.desc(u32));
    const vouched = told[count / 2];
    const most = @max(epoch.first_attempt, vouched) +| limits.attempts_ahead_max;
    for (epoch.members) |*member| {
        const peer = member.peer orelse continue;
        if (!member.named) continue;
        if (member.attempt_told > most) {
            peer.doom("it tells of attempts that there cannot have been");
            continue;
        }
        epoch.attempt = @max(epoch.attempt, member.attempt_told);
    }
}

/// The last one has begun: a member could not tell of another. Its members may begin an epoch
/// anew. Only if over half of them lie does it come to that.
pub fn end(epoch: *Epoch) void {
    for (epoch.members) |*member| {
        if (member.peer) |peer| peer.doom("its epoch has had all attempts that there may be");
    }
}

const testing = std.testing;
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const Shelf = court_file.Shelf;
const peers_max = court_file.peers_max;

/// The members come back to a coordinator that has started again, the last one first.
fn come_back(court: *Court, told: [peers_max]u32) !void {
    for (0..peers_max) |behind| {
        const index = peers_max - 1 - behind;
        try court.come_back(index, told[index]);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
}

fn is_last_there(court: *const Court) bool {
    return court.peers[peers_max - 1] != null;
}

test "one that lies about attempts after a restart costs the others nothing when they come back" {
    const ahead = limits.attempts_ahead_max;
    for ([_]u32{ limits.attempts_max, limits.attempts_max - 1, 3 * ahead, ahead, 5 }) |lie| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart(&shelf, &court);
        defer court.c.destroy();
        try come_back(&court, .{ 1, 1, lie });
        // A lie that may be true is believed.
        try testing.expectEqual(lie <= ahead, is_last_there(&court));
        try testing.expect(court.attempt <= 2 * ahead);
        for (0..peers_max) |index| try court.report_end(index);
        try testing.expect(court.group().current().?.running);
        court.hang_up(0);
        try court.come_back(0, court.attempt);
        try court.say(0, .{ .join_end = .{} });
        try court.listen();
        for (0..peers_max) |index| try court.report_end(index);
        for (court.peers[0 .. peers_max - 1]) |place| try testing.expect(place != null);
        try testing.expect(court.group().current().?.running);
    }
}

test "attempts that over half tell of are believed, however many" {
    const many = 100 * limits.attempts_ahead_max;
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    try come_back(&court, .{ many, many - 2, many - 1 });
    try testing.expectEqual(many + 1, court.attempt);
    try testing.expectEqual(0b111, court.members_alive());
    try court_file.report_nothing(&court);
}

test "an epoch that has had all attempts ends, and its members may begin another" {
    var court: Court = undefined;
    try court.init(testing.allocator);
    defer court.c.destroy();
    try court.form();
    court.attempt = limits.attempts_max - 2;
    court.group().current().?.attempt = court.attempt;
    try court.stumble();
    try testing.expectEqual(limits.attempts_max - 1, court.attempt);
    for (0..peers_max) |index| try court.report_end(index);
    try court.say_closed(0, 1);
    try court.pass(500 * court_file.ms);
    for (court.peers[0..peers_max]) |place| try testing.expectEqual(null, place);
    court.c.run.next_group = 0;
    try court.form();
    try testing.expectEqual(1, court.group().current().?.attempt);
    try testing.expectEqual(0b111, court.members_alive());
}
