//! Tests of joins that wait because there were too many (door.zig). The harness:
//! court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const network_join_price = @import("peer.zig").network_join_price;
const Arrivals = @import("peer.zig").Arrivals;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;

const ms = court_file.ms;
const peers_max = court_file.peers_max;
const id_of = court_file.id_of;
const Court = court_file.Court;
const Peer = @import("peer.zig").Peer;

/// Somebody behind the same address has used up its joins, and what comes in `seconds` with them.
fn use_up(court: *Court, seconds: u64) void {
    for ([_]Arrivals.Aim{ .enters_group, .begins_group }) |aim| {
        const bucket = court.c.run.arrivals.of(gpa, court.now, court.source, aim);
        bucket.paid_at = court.now + network_join_price.burst_ns + seconds * 1000 * ms;
    }
}

fn join(court: *Court, index: usize, name: []const u8) !void {
    try ask(court, index, name);
    try court.say(index, .{ .join_end = .{} });
}

fn ask(court: *Court, index: usize, name: []const u8) !void {
    try court.say(index, .{ .join = .{
        .name = .of(name),
        .address = .of("a:1"),
        .address_key = @splat(0),
        .initial_world_size = 100,
        .round = 0,
        .stop_round = 0,
    } });
}

fn greet(court: *Court, index: usize) !*Peer {
    try court.knock(index, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = id_of(index),
        .instance = 1 + index,
    });
    return court.peers[index].?.peer.?;
}

fn is_in(court: *const Court, peer: *const Peer, name: []const u8) bool {
    const group = court.c.run.group_named(name) orelse return false;
    return group.contains(peer);
}

test "a join that waits stops nothing else that its peer says" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    court.keeps_rates = true;
    use_up(&court, 60);
    try join(&court, 0, "h");
    const peer = court.peers[0].?.peer.?;
    try expectEqual(1, peer.joins_waiting);
    for (0..peers_max) |index| try court.done(index, 1, 0);
    try court.listen();
    for (court.commits[0..peers_max]) |commits| try expectEqual(1, commits);
    // Signs of life are answered meanwhile.
    for (0..100) |_| {
        try court.pass(500 * ms);
        const answers = try court.told(0);
        defer gpa.free(answers);
        try expect(answers.len > 0);
    }
    try expect(!is_in(&court, peer, "h"));
    try court.pass(11 * 1000 * ms);
    try expect(is_in(&court, peer, "h"));
    try expectEqual(0, peer.joins_waiting);
    try expectEqual(0b111, court.members_alive());
}

test "joins of one network that wait are let in in the order in which they came" {
    const count = 6;
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    use_up(&court, 1);
    var peers: [count]*Peer = undefined;
    for (&peers, peers_max..) |*peer, index| {
        peer.* = try greet(&court, index);
        if (index == peers_max + count - 1) break;
        try join(&court, index, "g");
        try expectEqual(1, peer.*.joins_waiting);
    }
    const began = court.now;
    const price = network_join_price.cost_ns;
    // The last one comes when there is room for one, and the coordinator has not ticked yet.
    court.now += 1000 * ms + 1;
    try join(&court, peers_max + count - 1, "g");
    try expect(!is_in(&court, peers[count - 1], "g"));
    var inside: usize = 0;
    while (inside < count) {
        court.now = court.c.next_deadline();
        for (0..peers_max + count) |index| try court.beat(index);
        court.c.tick(court.now);
        while (inside < count and is_in(&court, peers[inside], "g")) inside += 1;
        for (peers[inside..]) |peer| try expect(!is_in(&court, peer, "g"));
        try expect(court.now <= began + 1000 * ms + count * price + limits.pause_ns_max);
    }
    try expect(court.now >= began + 1000 * ms + (count - 1) * price);
}

test "a peer has no more joins that wait than it may have groups, and none without a connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    use_up(&court, 60);
    const peer = try greet(&court, 0);
    for (0..limits.groups_per_peer_max) |number| {
        var name: [8]u8 = undefined;
        try join(&court, 0, try std.fmt.bufPrint(&name, "g{d}", .{number}));
    }
    try court.listen();
    try expect(!court.refused);
    try join(&court, 0, "one too many");
    try court.listen();
    try expect(court.refused);
    try expectEqual(limits.groups_per_peer_max, peer.joins_waiting);
    try expectEqual(0, court.c.run.groups.items.len);
    court.hang_up(0);
    try expectEqual(0, court.c.run.lobby.waiting.items.len);
}

test "a peer that asks for a group again before it has the answer breaks the protocol" {
    // Method: the join waits for others of its network, or for the peer to be found where it says.
    for ([_]bool{ true, false }) |waits| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        if (waits) use_up(&court, 60) else court.reply = .later;
        const peer = try greet(&court, 0);
        try join(&court, 0, "one");
        try expectEqual(@intFromBool(waits), peer.joins_waiting);
        try expectEqual(@intFromBool(!waits), peer.claim.waiting.items.len);
        try ask(&court, 0, "one");
        try expectEqual(null, court.peers[0]);
    }
}

test "what a peer says of a group by a number from before is void until its join is answered" {
    // Method: a newcomer that was in a round has another connection, on which its join waits.
    for ([_]bool{ true, false }) |waits| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        if (waits) use_up(&court, 60);
        const peer = try greet(&court, peers_max);
        try join(&court, peers_max, if (waits) "g" else "h");
        try court.prepare(peers_max, 7, true);
        if (waits) try court.prepare(peers_max, 7, true);
        // One that has no join that waits breaks the protocol by that, in a group that is not its.
        try expectEqual(waits, court.peers[peers_max] != null);
        if (waits) try expectEqual(1, peer.joins_waiting);
    }
}

test "a member that was lost while it was away is told so when its join is answered" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.hang_up(2);
    try court.pass(court.c.run.options.silence_ns + 500 * ms);
    try expectEqual(0b011, court.members_alive());
    use_up(&court, 5);
    try court.come_back(2, court.attempt);
    try court.say(2, .{ .join_end = .{} });
    try expectEqual(1, court.peers[2].?.peer.?.joins_waiting);
    try court.listen();
    try expect(!court.expelled[2]);
    try court.pass(6 * 1000 * ms);
    try court.listen();
    try expect(court.expelled[2]);
    try expect(court.peers[2] != null);
}
