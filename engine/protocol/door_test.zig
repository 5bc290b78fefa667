//! Door: who gets in and who stays: places of strangers, of status questions and of members; peers
//! that join nothing, a full run, ids of members that are away, groups that end, and peers that say
//! too much. The rules: door.zig, coordinator.zig, peer.zig, base/places.zig. The harness:
//! court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const coordinator = @import("coordinator.zig");
const court_file = @import("court_test.zig");
const network_join_price = @import("peer.zig").network_join_price;
const Arrivals = @import("peer.zig").Arrivals;
const Connection = @import("coordinator.zig").Connection;
const Peer = @import("peer.zig").Peer;
const Court = court_file.Court;
const Shelf = court_file.Shelf;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const id_of = court_file.id_of;
const limits = base.limits;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

/// Hosts of the documentation network.
fn host(number: u8) base.Source {
    return [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff, 192, 0, 2, number };
}

const crowd = host(1);
const elsewhere = host(2);

fn give(connection: *Connection, bytes: []const u8) !void {
    const room = try connection.stream.recv_slice();
    @memcpy(room[0..bytes.len], bytes);
    connection.stream.received(bytes.len);
}

fn hello_of(purpose: wire.hello.Purpose, id: base.PeerId, instance: u64) [96]u8 {
    return wire.hello.encode(.{
        .purpose = purpose,
        .run_id = @splat(1),
        .from = id,
        .instance = instance,
    });
}

/// Peers beyond those of the court.
fn other_id(index: usize) base.PeerId {
    return .from_int(index + 1);
}

fn is_there(court: *const Court, connection: *const Connection) bool {
    for (court.c.run.connections.items) |item| if (item == connection) return true;
    return false;
}

/// Another peer; false if it is not greeted with a welcome.
fn greet(court: *Court, id: base.PeerId, instance: u64) !bool {
    const connection = try knock(court);
    try give(connection, &hello_of(.control, id, instance));
    court.c.received(court.now, connection);
    return court.c.run.peer_of(id) != null and court.c.run.peer_of(id).?.connection != null;
}

/// Comes again until it has a place.
fn knock(court: *Court) !*Connection {
    for (0..100) |_| {
        court.now += 1;
        if (court.c.accept(court.now, court.source)) |connection| {
            connection.driver = peers_max - 1; // no place of the court is its
            return connection;
        }
    }
    return error.NeverLetIn;
}

fn say(court: *Court, connection: *Connection, message: control.Message) !void {
    var bytes: [1024]u8 = undefined;
    try give(connection, try control.encode(message, &bytes));
    court.c.received(court.now, connection);
}

fn join_of(name: []const u8) control.Message {
    return .{ .join = .{
        .name = .of(name),
        .address = .of("a:1"),
        .initial_world_size = 100,
        .round = 0,
        .stop_round = 0,
        .address_key = @splat(0),
    } };
}

// ---- places

test "a crowd from one network takes places from nobody else, whoever speaks in it" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.source = elsewhere;
    const silent = try knock(&court);
    court.source = crowd;
    var most: usize = 0;
    for (0..2000) |index| {
        court.now += 1;
        const connection = court.c.accept(court.now, crowd) orelse continue;
        if (index % 2 == 0) try give(connection, "PCCL"); // the rest of the hello never comes
        most = @max(most, court.c.run.connections.items.len);
    }
    try expectEqual(limits.strangers_max, most);
    try expect(is_there(&court, silent));
    // None of those that are half-way is pushed out for a silent one of its kind.
    var spoken: usize = 0;
    for (court.c.run.connections.items) |item| spoken += @intFromBool(item.stream.in.items.len > 0);
    try expect(spoken > limits.strangers_max / 2);
}

test "those who have come just now are heard before any of them must go" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.source = crowd;
    // A peer from there: nobody is turned away at random.
    try expect(try greet(&court, id_of(0), 1));
    court.now += 1;
    for (0..limits.strangers_max) |_| try expect(court.c.accept(court.now, crowd) != null);
    try expectEqual(null, court.c.accept(court.now, crowd));
    court.now += 1;
    try expect(court.c.accept(court.now, crowd) != null);
    try expectEqual(limits.strangers_max + 1, court.c.run.connections.items.len);
}

test "members that are away have places besides those of strangers, also after a restart" {
    // Method: silent strangers fill what they can before the members come back, whose hellos are a
    // while on the way.
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    for (0..1000) |_| {
        court.now += 1;
        _ = court.c.accept(court.now, crowd);
    }
    try expectEqual(limits.strangers_max + peers_max, court.c.run.connections.items.len);
    var members: [peers_max]*Connection = undefined;
    court.source = elsewhere;
    for (&members) |*member| member.* = try knock(&court);
    for (0..1000) |_| {
        court.now += 1;
        _ = court.c.accept(court.now, crowd);
    }
    for (members, 0..) |member, index| {
        try expect(is_there(&court, member));
        try give(member, &hello_of(.control, id_of(index), 1 + index));
        court.c.received(court.now, member);
        try expectEqual(member, court.c.run.peer_of(id_of(index)).?.connection);
    }
    try expectEqual(0b111, court.members_alive());
}

test "who asks for the status has a place of another kind, for a second" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.source = crowd;
    for (0..200) |_| {
        const connection = try knock(&court);
        try give(connection, &hello_of(.status, .none, 0));
        court.c.received(court.now, connection);
        try expect(is_there(&court, connection));
    }
    try expectEqual(limits.statuses_max, court.c.run.connections.items.len);
    // An answer that is not read holds one of these, too.
    court.source = elsewhere;
    const asked = try knock(&court);
    try give(asked, &hello_of(.status, .none, 0));
    try say(&court, asked, .{ .status_request = .{} });
    try expectEqual(limits.statuses_max, court.c.run.connections.items.len);
    try expect(is_there(&court, asked));
    try expect(try greet(&court, id_of(0), 1));
    try expect(court.c.next_deadline() <= court.now + limits.status_ns_max);
    court.now += limits.status_ns_max - 200;
    court.c.tick(court.now);
    try expectEqual(limits.statuses_max + 1, court.c.run.connections.items.len);
    court.now += 200;
    court.c.tick(court.now);
    try expectEqual(1, court.c.run.connections.items.len);
}

test "a stranger has five seconds, however long the heartbeat is" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.c.run.options.heartbeat_ns = 1000 * std.time.ns_per_s;
    court.c.run.options.silence_ns = 3000 * std.time.ns_per_s;
    court.c.tick(court.now);
    _ = try knock(&court);
    const until = court.now + limits.stranger_ns_max;
    try expectEqual(until, court.c.next_deadline());
    court.now = until - 1;
    court.c.tick(court.now);
    try expectEqual(1, court.c.run.connections.items.len);
    court.now = until;
    court.c.tick(court.now);
    try expectEqual(0, court.c.run.connections.items.len);
}

// ---- those who join nothing, and the full run

/// Time passes, and the peer beats.
fn beat_for(court: *Court, connection: *Connection, duration_ns: u64) !void {
    const until = court.now + duration_ns;
    while (court.now < until and is_there(court, connection)) {
        court.now += 500 * ms;
        try say(court, connection, .{ .heartbeat = .{
            .number = 1,
            .bytes_sent = 0,
            .bytes_received = 0,
        } });
        court.c.tick(court.now);
    }
}

test "a peer that joins nothing is let go after five seconds, and one that waits to enter stays" {
    const Case = enum { joins_nothing, waits, leaves, tells_for_ever };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try expect(try greet(&court, id_of(0), 1));
        const connection = court.c.run.peer_of(id_of(0)).?.connection.?;
        if (case != .joins_nothing) try say(&court, connection, join_of("g"));
        if (case == .waits or case == .leaves) try say(&court, connection, .{ .join_end = .{} });
        try beat_for(&court, connection, limits.idle_ns_max - 500 * ms);
        try expect(is_there(&court, connection));
        if (case == .leaves) {
            try say(&court, connection, .{ .leave = .{ .group = 0 } });
            try beat_for(&court, connection, limits.idle_ns_max - 500 * ms);
            try expect(is_there(&court, connection));
        }
        if (case == .tells_for_ever) {
            try beat_for(&court, connection, court.c.run.options.silence_ns);
            try expect(is_there(&court, connection));
        }
        try beat_for(&court, connection, 500 * ms);
        try expectEqual(case == .waits, is_there(&court, connection));
    }
}

test "a full run says so to the next peer, and has room when one has gone" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for (0..limits.peers_max) |index| try expect(try greet(&court, other_id(index), 1));
    try court.knock(0, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = id_of(0),
        .instance = 1,
    });
    try expectEqual(null, court.peers[0]);
    try expectEqual(.full, court.verdict.?);
    const gone = court.c.run.peer_of(other_id(7)).?.connection.?;
    court.c.closed(court.now, gone);
    try expect(try greet(&court, id_of(0), 1));
}

test "the id of a member that is away is kept for its process, also after a restart" {
    for ([_]bool{ false, true }) |restarted| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        if (restarted) try court_file.restart(&shelf, &court) else try court.init(gpa);
        defer court.c.destroy();
        if (!restarted) {
            try court.form();
            court.hang_up(0);
        }
        for ([_]u64{ 2, 0, 1 << 63 }) |instance| {
            try court.knock(0, .{
                .purpose = .control,
                .run_id = @splat(1),
                .from = id_of(0),
                .instance = instance,
            });
            try expectEqual(null, court.peers[0]);
            const verdict: wire.hello.Verdict = if (instance == 0) .refused else .held;
            try expectEqual(verdict, court.verdict.?);
            try expectEqual(0b111, court.members_alive());
        }
        try court.come_back(0, court.attempt);
        try expect(court.peers[0] != null);
    }
}

test "the journal keeps which process a member is when it is written anew, lost ones included" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    {
        try shelf.start(&court);
        defer court.c.destroy();
        try court.form();
        try court.say(2, .{ .leave = .{ .group = 0 } });
        court.c.run.journal_due = true;
        court.c.tick(court.now);
        try shelf.write(&court);
    }
    for (0..2) |_| {
        try shelf.start(&court);
        defer court.c.destroy();
        try expectEqual(0b011, court.members_alive());
        for (0..2) |index| try expectEqual(1 + index, court.c.run.peer_of(id_of(index)).?.instance);
        try expectEqual(null, court.c.run.peer_of(id_of(2)));
    }
}

// ---- groups that end

test "groups that nobody is in end, so that there is room for any number of names" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try expect(try greet(&court, other_id(0), 1));
    const connection = court.c.run.peer_of(other_id(0)).?.connection.?;
    var numbers: std.StaticBitSet(limits.groups_max) = .initEmpty();
    for (0..300) |index| {
        connection.peer.?.rates = .{};
        var name: [16]u8 = undefined;
        try say(&court, connection, join_of(try std.fmt.bufPrint(&name, "g{d}", .{index})));
        try say(&court, connection, .{ .join_end = .{} });
        const id = court.c.run.groups.getLast().id;
        numbers.set(id);
        try say(&court, connection, .{ .leave = .{ .group = id } });
        try expect(is_there(&court, connection));
        if (index % 10 == 0) court.c.tick(court.now);
    }
    court.c.tick(court.now);
    try expectEqual(1, court.c.run.groups.items.len);
    try expectEqual(0b111, court.members_alive());
    try expectEqual(limits.groups_max - 1, numbers.count()); // one is of a group that goes on
    try court.expect_said("info group g1 has ended: nobody is in it");
}

test "64 groups are all there are while somebody is in each" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    const each = limits.groups_per_peer_max;
    for (0..limits.groups_max / each) |index| try expect(try greet(&court, other_id(index), 1));
    var left: ?*Connection = null;
    for (0..limits.groups_max) |number| {
        const connection = court.c.run.peer_of(other_id(number / each)).?.connection.?;
        var name: [16]u8 = undefined;
        try say(&court, connection, join_of(try std.fmt.bufPrint(&name, "g{d}", .{number})));
        try say(&court, connection, .{ .join_end = .{} });
        left = connection;
    }
    try expectEqual(limits.groups_max, court.c.run.groups.items.len);
    for ([_]bool{ true, false }) |refused| {
        try court.connect(0);
        court.refused = false;
        try court.listen();
        try expectEqual(refused, court.refused);
        court.hang_up(0);
        // All that this peer was in end with it.
        if (refused) court.c.closed(court.now, left.?);
    }
}

test "a group that a removed member has not heard of is not over, and its number is not another's" {
    // Method: a member comes back too late to a group that has none left. Until it says that it
    // has heard so, what it says of the number is of the group that it means.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    for (0..peers_max) |index| court.hang_up(index);
    try court.pass(court.c.run.options.silence_ns);
    try expectEqual(0, court.c.run.groups.items.len);
    try court.come_back(0, court.attempt);
    try court.say(0, .{ .join_end = .{} });
    court.c.tick(court.now);
    const group = court.group();
    try expectEqual(0, group.epochs.items.len);
    try court.say(0, .{ .decisions_seen = .{
        .group = group.id,
        .epoch = court.epoch,
        .count = 0,
    } });
    try expect(court.peers[0] != null);
    try court.say(0, .{ .leave = .{ .group = group.id } });
    court.c.tick(court.now);
    try expectEqual(0, court.c.run.groups.items.len);
    try expect(court.peers[0] != null);
}

test "no epoch and no round of a name or of a number comes again after its group has ended" {
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    var last_epoch: u64 = 0;
    for (0..3) |start| {
        try shelf.start(&court);
        defer court.c.destroy();
        if (start == 2) try expectEqual(last_epoch, court.c.run.ended.epoch);
        var last_round: u64 = 0;
        for (0..3) |again| {
            court.peers = @splat(null);
            court.c.run.next_group = 0;
            court.safe_point = 0;
            try court.form();
            try expect(court.epoch > last_epoch and court.round > last_round);
            last_epoch = court.epoch;
            last_round = court.round;
            for (0..peers_max) |index| {
                try court.say(index, .{ .leave = .{ .group = 0 } });
                court.hang_up(index);
            }
            // Numbers beyond those of a start; in the last one nothing but the journal's start says
            // so, because it is written anew without the group.
            if (start == 0 and again == 2) {
                court.group().last_epoch = 1 << 22;
                last_epoch = 1 << 22;
            }
            court.c.tick(court.now);
            try expectEqual(0, court.c.run.groups.items.len);
        }
        court.c.run.journal_due = true;
        court.c.tick(court.now);
        try shelf.write(&court);
    }
}

// ---- those who say too much

test "a peer that says too much is not read for a while, loses nothing and is not lost" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.keeps_rates = true;
    const connection = court.peers[0].?;
    const beats = limits.peer_messages_burst + 3 * limits.peer_messages_per_s_max;
    for (0..beats) |number| try court.say(0, .{ .heartbeat = .{
        .number = number,
        .bytes_sent = 0,
        .bytes_received = number,
    } });
    try expect(connection.is_paused(court.now));
    try expect(connection.paused_until <= court.now + limits.pause_ns_max);
    try expect(connection.peer.?.bytes_received < limits.peer_messages_burst + 10);
    try expectEqual(connection.paused_until, court.c.next_deadline());
    const began = court.now;
    var pauses: usize = 0;
    while (court.peers[0] != null and connection.peer.?.bytes_received < beats - 1) {
        court.now = court.c.next_deadline();
        for (1..peers_max) |index| try court.beat(index);
        court.c.tick(court.now);
        pauses += 1;
        try expect(pauses < 10_000);
    }
    try expect(court.peers[0] != null);
    const took_ns = court.now - began;
    try expect(took_ns > 2 * std.time.ns_per_s and took_ns < 4 * std.time.ns_per_s);
    try expectEqual(0b111, court.members_alive());
}

test "more is read from one that was paused only when what it has said is taken" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.keeps_rates = true;
    const connection = court.peers[0].?;
    const beats = 2 * limits.peer_messages_burst;
    for (0..beats) |_| try court.beat(0);
    try expect(connection.is_paused(court.now));
    const waits = connection.stream.in.items.len - connection.stream.in_start;
    try expect(waits > 0);
    // Its time is over, and the coordinator has not ticked yet.
    court.now = connection.paused_until;
    court.c.take_said(court.now, connection);
    try expect(connection.is_paused(court.now));
    const paid = limits.pause_ns_min / (std.time.ns_per_s / limits.peer_messages_per_s_max);
    const taken = waits - (connection.stream.in.items.len - connection.stream.in_start);
    try expect(taken >= (paid - 1) * 33 and taken <= (paid + 1) * 33);
}

test "a pause is no silence, and what follows it is" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const connection = court.peers[0].?;
    connection.paused_until = court.now + 1;
    coordinator.pause(&court.c.run, court.now, connection, limits.pause_ns_max);
    const silence_ns = court.c.run.options.silence_ns;
    const until = court.now + limits.pause_ns_max + silence_ns;
    while (court.now + 500 * ms < until) {
        court.now += 500 * ms;
        for (1..peers_max) |index| try court.beat(index);
        court.c.tick(court.now);
        try expect(court.peers[0] != null);
    }
    court.now = until;
    court.c.tick(court.now);
    try expectEqual(null, court.peers[0]);
}

test "joins and leaves without end come four a second, from one peer and from one network" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try expect(try greet(&court, id_of(0), 1));
    const connection = court.c.run.peer_of(id_of(0)).?.connection.?;
    // Its program leaves as soon as it is in.
    const began = court.now;
    for (0..limits.peer_joins_burst + 12) |_| {
        try say(&court, connection, join_of("g"));
        try say(&court, connection, .{ .join_end = .{} });
        while (connection.peer.?.joins_waiting > 0) {
            court.now = court.c.next_deadline();
            court.c.tick(court.now);
            try expect(is_there(&court, connection));
        }
        const number = court.group().id;
        try say(&court, connection, .{ .leave = .{ .group = number } });
    }
    const seconds = (court.now - began) / std.time.ns_per_s;
    try expect(seconds >= 2 and seconds <= 3);
    // Another one from there finds that others have joined too often; from elsewhere it does not.
    const shared = court.c.run.arrivals.of(gpa, court.now, connection.source, .begins_group);
    shared.paid_at = court.now + 3600 * std.time.ns_per_s;
    for ([_]base.Source{ connection.source, elsewhere }, 1..) |source, index| {
        court.source = source;
        try expect(try greet(&court, id_of(index), 1));
        const other = court.c.run.peer_of(id_of(index)).?.connection.?;
        try say(&court, other, join_of("h"));
        try expectEqual(@intFromBool(index == 1), other.peer.?.joins_waiting);
        try expectEqual(index == 1, other.peer.?.telling.?.group == null);
    }
}

/// So many seconds pass at the tick of a coordinator; members and others beat.
fn wait(court: *Court, seconds: usize) !void {
    for (0..2 * seconds) |_| {
        court.now += 500 * ms;
        for (0..peers_max) |index| if (court.peers[index]) |connection| {
            if (!connection.is_paused(court.now)) try court.beat(index);
        };
        court.c.tick(court.now);
    }
}

test "a peer whose join waits is not idle, and one that only says too much is" {
    for ([_]bool{ true, false }) |joins| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try expect(try greet(&court, id_of(0), 1));
        const connection = court.c.run.peer_of(id_of(0)).?.connection.?;
        if (joins) {
            const arrivals = court.c.run.arrivals.of(gpa, court.now, court.source, .begins_group);
            arrivals.paid_at = court.now + 20 * std.time.ns_per_s +
                network_join_price.burst_ns;
            try say(&court, connection, join_of("g"));
            try say(&court, connection, .{ .join_end = .{} });
        } else {
            connection.peer.?.rates.messages.paid_at = base.never;
            try say(&court, connection, .{ .leave = .{ .group = 0 } });
        }
        try wait(&court, 5);
        try expectEqual(joins, is_there(&court, connection));
        if (!joins) continue;
        try expectEqual(0, court.c.run.groups.items.len);
        try wait(&court, 20);
        try expect(court.group().contains(connection.peer.?));
    }
}

test "a member that comes back waits neither for the joins of its network nor for its own" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.c.run.arrivals.of(gpa, court.now, court.source, .enters_group).paid_at = base.never;
    court.c.run.peer_of(id_of(0)).?.rates.joins.paid_at = base.never;
    court.hang_up(0);
    try court.come_back(0, court.attempt);
    try expect(!court.peers[0].?.is_paused(court.now));
    try expect(court.c.run.peer_of(id_of(0)).?.telling.?.group != null);
}

test "a member that comes back again and again has the others begin anew twice a second" {
    // Goal: a return needs no join, and was free: 1,000 of them a second, an attempt each. Method:
    // the connection of a member breaks every ten milliseconds for ten seconds.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.keeps_rates = true;
    const first = court.group().current().?.attempt;
    const ends = court.now + 10 * std.time.ns_per_s;
    while (court.now < ends) {
        if (court.peers[2]) |connection| court.c.closed(court.now, connection);
        try court.come_back(2, court.group().current().?.attempt);
        try court.say(2, .{ .join_end = .{} });
        const waits = court.peers[2].?.is_paused(court.now);
        for (0..2) |index| try court.beat(index);
        try court.listen();
        // One that waits has a connection that lasts.
        if (waits) try wait_for_return(&court);
        court.now += 10 * ms;
        court.c.tick(court.now);
    }
    const caused = court.group().current().?.attempt - first;
    try expect(caused >= 20 and caused <= limits.peer_attempts_burst + 22);
    try expectEqual(0b111, court.members_alive());
}

/// It is read again, and is back before it could be taken for lost.
fn wait_for_return(court: *Court) !void {
    const began = court.now;
    const connection = court.peers[2].?;
    while (!connection.peer.?.is_present(0)) {
        court.now = court.c.next_deadline();
        for (0..2) |index| try court.beat(index);
        court.c.tick(court.now);
        try expect(court.now <= began + limits.pause_ns_max);
    }
}

test "a member of many groups that comes back waits for none of them, and not for one at a time" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.c.run.options.initial_world_size = 1;
    court.keeps_rates = true;
    try expect(try greet(&court, id_of(0), 1));
    var names: [6][2]u8 = undefined;
    for (&names, 0..) |*name, number| {
        const connection = court.c.run.peer_of(id_of(0)).?.connection.?;
        name.* = .{ 'm', @intCast('0' + number) };
        var join = join_of(name);
        join.join.initial_world_size = 1;
        try say(&court, connection, join);
        try say(&court, connection, .{ .join_end = .{} });
        const group = court.c.run.groups.getLast();
        try say(&court, connection, .{ .prepared = .{
            .group = group.id,
            .round = group.round,
            .entering = true,
            .missing = .of(&.{}),
        } });
        try expect(group.current() != null);
    }
    for (0..limits.peer_attempts_burst) |_| {
        court.c.closed(court.now, court.c.run.peer_of(id_of(0)).?.connection.?);
        try expect(try greet(&court, id_of(0), 1));
        const connection = court.c.run.peer_of(id_of(0)).?.connection.?;
        for (&names, court.c.run.groups.items) |*name, group| {
            const before = group.current().?.attempt;
            try say(&court, connection, join_of(name));
            try say(&court, connection, .{ .epoch_report = .{
                .epoch = group.last_epoch,
                .attempt = before,
                .entered = true,
                .decisions_seen = 0,
                .alive = .full(1),
                .members = .of(&.{id_of(0)}),
            } });
            try say(&court, connection, .{ .join_end = .{} });
            try expectEqual(before + 1, group.current().?.attempt);
        }
    }
}

test "groups made without end keep no newcomer of the same network out of a group that works" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const begins = court.c.run.arrivals.of(gpa, court.now, court.source, .begins_group);
    begins.paid_at = base.never;
    for ([_][]const u8{ "another", "g" }, peers_max..) |group, index| {
        try expect(try greet(&court, id_of(index), 1));
        const connection = court.c.run.peer_of(id_of(index)).?.connection.?;
        try say(&court, connection, join_of(group));
        try expectEqual(@intFromBool(index == peers_max), connection.peer.?.joins_waiting);
    }
}

test "attempts that one member causes come two a second after a burst, and others do not wait" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.keeps_rates = true;
    const first = court.attempt;
    var now = court.now;
    const ends = court.now + 10 * std.time.ns_per_s;
    while (court.now < ends) {
        now += 50 * ms;
        court.now = now;
        for (1..peers_max) |index| try court.beat(index);
        try court.say(0, .{ .link_lost = .{
            .other = id_of(1),
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .state = .broken,
        } });
        court.now += 25 * ms;
        court.c.tick(court.now);
        const before = court.attempt;
        try court.listen();
        if (court.attempt > before) for (0..peers_max) |index| try court.report_end(index);
    }
    const caused = court.attempt - first;
    try expect(caused >= 20 and caused <= limits.peer_attempts_burst + 22);
    // One of another member is not put off by it.
    const epoch = court.group().current().?;
    for (0..10) |_| court.c.run.peer_of(id_of(0)).?.rates.cost_attempt(court.now);
    for ([_]usize{ 0, 1 }) |index| try court.say(index, .{ .link_lost = .{
        .other = id_of(2),
        .group = 0,
        .epoch = court.epoch,
        .attempt = court.attempt,
        .state = .broken,
    } });
    try expect(epoch.replan_at <= court.now + 100 * ms);
}

test "ways around links that one member says are broken come two a second, however often it ticks" {
    // Method: one of three says of its links, in turn, that one is broken and the other is not, so
    // that there is always another way; the coordinator ticks forty times a second.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    court.keeps_rates = true;
    const first = court.attempt;
    const ends = court.now + 10 * std.time.ns_per_s;
    var broken: usize = 0;
    while (court.now < ends) {
        const before = court.attempt;
        try court.listen();
        if (court.attempt > before) for (0..peers_max) |index| try court.report_end(index);
        for (1..peers_max) |index| try court.beat(index);
        broken = 1 - broken;
        for (0..2) |other| try court.say(2, .{ .link_told = .{
            .other = id_of(other),
            .group = 0,
            .health = if (other == broken) .silent else .up,
        } });
        court.now += 25 * ms;
        court.c.tick(court.now);
    }
    const caused = court.attempt - first;
    try expect(caused >= 10 and caused <= limits.peer_attempts_burst + 22);
    try expectEqual(0b111, court.members_alive());
}

// ---- joins that wait
//
// Tests of joins that wait because there were too many (door.zig).

/// Somebody behind the same address has used up its joins, and what comes in `seconds` with them.
fn use_up(court: *Court, seconds: u64) void {
    for ([_]Arrivals.Aim{ .enters_group, .begins_group }) |aim| {
        const bucket = court.c.run.arrivals.of(gpa, court.now, court.source, aim);
        bucket.paid_at = court.now + network_join_price.burst_ns + seconds * 1000 * ms;
    }
}

fn join_crowd(court: *Court, index: usize, name: []const u8) !void {
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

fn greet_again(court: *Court, index: usize) !*Peer {
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
    try join_crowd(&court, 0, "h");
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
        peer.* = try greet_again(&court, index);
        if (index == peers_max + count - 1) break;
        try join_crowd(&court, index, "g");
        try expectEqual(1, peer.*.joins_waiting);
    }
    const began = court.now;
    const price = network_join_price.cost_ns;
    // The last one comes when there is room for one, and the coordinator has not ticked yet.
    court.now += 1000 * ms + 1;
    try join_crowd(&court, peers_max + count - 1, "g");
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
    const peer = try greet_again(&court, 0);
    for (0..limits.groups_per_peer_max) |number| {
        var name: [8]u8 = undefined;
        try join_crowd(&court, 0, try std.fmt.bufPrint(&name, "g{d}", .{number}));
    }
    try court.listen();
    try expect(!court.refused);
    try join_crowd(&court, 0, "one too many");
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
        const peer = try greet_again(&court, 0);
        try join_crowd(&court, 0, "one");
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
        const peer = try greet_again(&court, peers_max);
        try join_crowd(&court, peers_max, if (waits) "g" else "h");
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
