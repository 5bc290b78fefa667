//! Tests of the memory that connections can make a coordinator hold (run.zig, wire/stream.zig),
//! and of how often a host may ask for the status (run.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const coordinator = @import("coordinator.zig");
const court_file = @import("court_test.zig");
const Connection = coordinator.Connection;
const Court = court_file.Court;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

/// Peers that say who they are and are members of nothing.
const Idlers = struct {
    court: *Court,
    /// Null: its connection is closed. Not of the court, which would take it for one of its own.
    connections: [count]?*Connection = @splat(null),

    const count = 12;

    fn knock(idlers: *Idlers) !void {
        for (&idlers.connections, 0..) |*place, index| {
            const connection = idlers.court.c.accept(idlers.court.now, @splat(0)) orelse
                return error.NoPlace;
            connection.driver = 0; // where the court has another one
            place.* = connection;
            try idlers.put(index, &wire.hello.encode(.{
                .purpose = .control,
                .run_id = @splat(1),
                .from = .from_int(index + 1),
                .instance = 1,
            }));
        }
    }

    fn put(idlers: *Idlers, index: usize, bytes: []const u8) !void {
        const connection = idlers.connections[index].?;
        if (connection.peer) |peer| peer.rates = .{}; // how much it says is another matter
        var rest = bytes;
        while (rest.len > 0) {
            const room = try connection.stream.recv_slice();
            const part = @min(room.len, rest.len);
            @memcpy(room[0..part], rest[0..part]);
            connection.stream.received(part);
            rest = rest[part..];
        }
        idlers.court.c.received(idlers.court.now, connection);
        idlers.look();
    }

    /// The court hears that a connection is closed only of its own.
    fn look(idlers: *Idlers) void {
        for (&idlers.connections) |*place| {
            const connection = place.* orelse continue;
            for (idlers.court.c.run.connections.items) |known| {
                if (known == connection) break;
            } else place.* = null;
        }
    }

    fn left(idlers: *const Idlers) usize {
        var here: usize = 0;
        for (idlers.connections) |place| here += @intFromBool(place != null);
        return here;
    }

    fn beat(idlers: *Idlers, index: usize, heartbeats: []const u8) !void {
        if (idlers.connections[index] != null) try idlers.put(index, heartbeats);
    }
};

fn heartbeats_of(comptime count: usize, buffer: *[count * 34]u8) ![]const u8 {
    var length: usize = 0;
    for (0..count) |number| length += (try control.encode(.{ .heartbeat = .{
        .number = number,
        .bytes_sent = 0,
        .bytes_received = 0,
    } }, buffer[length..])).len;
    return buffer[0..length];
}

test "peers that beat and read nothing are let go, longest queue first, and no member with them" {
    // Goal: F9. Method: 12 peers send heartbeats and read no answer; three members read theirs, and
    // one of them has asked last each time that memory runs out.
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    const memory = 2 * limits.MiB;
    court.c.run.memory.bytes_max = memory;
    try court.form();
    try court.listen();
    var idlers: Idlers = .{ .court = &court };
    try idlers.knock();
    try expectEqual(Idlers.count, idlers.left());
    var buffer: [512 * 34]u8 = undefined;
    const heartbeats = try heartbeats_of(512, &buffer);
    var most: usize = 0;
    for (0..40) |_| {
        for (0..Idlers.count) |index| {
            try idlers.beat(index, heartbeats);
            most = @max(most, court.c.run.memory.bytes);
        }
        for (0..peers_max) |index| {
            try court.beat(index);
            idlers.look();
            most = @max(most, court.c.run.memory.bytes);
        }
        try court.listen();
    }
    try expect(most > memory / 2 and most < memory + 64 * limits.KiB);
    try expect(idlers.left() < Idlers.count);
    for (court.peers[0..peers_max]) |place| try expect(place != null);
    try expectEqual(peers_max + idlers.left(), court.c.run.peers.items.len);
    // Their memory is free again once all are gone.
    for (idlers.connections) |place| if (place) |connection|
        court.c.closed(court.now, connection);
    try expect(court.c.run.memory.bytes < peers_max * 40 * limits.KiB);
}

test "one peer that reads nothing is let go at its own limit" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.listen();
    const stream = &court.peers[0].?.stream;
    const queued: [limits.KiB]u8 = @splat(0);
    while (stream.out.length + 16 * limits.KiB < limits.control_queue_bytes_max)
        try stream.send_raw(&queued);
    var most: usize = 0;
    while (court.peers[0] != null) {
        try court.beat(0);
        most = @max(most, court.c.run.memory.bytes);
    }
    try expect(most >= limits.control_queue_bytes_max);
    try expect(most < limits.control_queue_bytes_max + limits.control_queue_bytes_max / 4);
    try expect(court.peers[1] != null and court.peers[2] != null);
    try court.expect_said("info peer 01000000 is gone: it does not read what it is told, and " ++
        "more does not wait for it");
}

/// The report of an operation of which every other chunk is settled, `ranges` of them.
fn report_of(court: *const Court, tag: u64, ranges: usize, buffer: []u8) ![]const u8 {
    const settled = try gpa.alloc(control.SettledRange, ranges);
    defer gpa.free(settled);
    for (settled, 0..) |*range, index| range.* = .{
        .begin = @intCast(2 * index),
        .end = @intCast(2 * index + 1),
        .reduced_attempt = 1,
    };
    var report = court.running(tag, limits.chunks_max);
    report.settled = .of(settled);
    return control.encode(.{ .report_op = report }, buffer);
}

const report_bytes_max = 16 * limits.chunks_max;

test "reports have a coordinator hold as much as they say, and no more once they are answered" {
    // Method: all that a member may have in flight, in as many chunks as there may be.
    const buffer = try gpa.alloc(u8, report_bytes_max);
    defer gpa.free(buffer);
    for ([_]usize{ 0, 100 }) |ranges| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        try court.form();
        try court.stumble();
        const before = court.c.run.memory.bytes;
        var said: usize = 0;
        for (0..limits.operations_in_flight_max) |tag| {
            const report = try report_of(&court, tag, ranges, buffer);
            said += report.len;
            try court.put(2, report);
        }
        const held = court.c.run.memory.bytes - before;
        try expect(held < 8 * said);
        try expect(held >= limits.operations_in_flight_max * ranges * 72);
        for (0..peers_max) |index| try court.report_end(index);
        try court.listen();
        try expect(court.group().current().?.running);
        try expect(court.c.run.memory.bytes <= before + 128 * limits.KiB);
        try expectEqual(0, court.group().current().?.members[2].held_bytes);
        for (court.peers[0..peers_max]) |place| try expect(place != null);
    }
}

test "a member whose reports fill the memory for all queues goes, and all that it said with it" {
    const buffer = try gpa.alloc(u8, report_bytes_max);
    defer gpa.free(buffer);
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    const memory = 4 * limits.MiB;
    court.c.run.memory.bytes_max = memory;
    try court.form();
    try court.stumble();
    var most: usize = 0;
    for (0..limits.operations_in_flight_max) |tag| {
        if (court.peers[2] == null) break;
        try court.put(2, try report_of(&court, tag, limits.chunks_max / 2, buffer));
        most = @max(most, court.c.run.memory.bytes);
        for (0..2) |index| try court.beat(index);
    }
    try expectEqual(null, court.peers[2]);
    try expect(most > memory / 2 and most <= memory);
    try expect(court.c.run.memory.bytes < limits.MiB);
    try expectEqual(0b011, court.members_alive());
}

test "a member that reports one operation twice in an attempt is let go" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.stumble();
    for (0..2) |_| try court.report(2, 7, 1);
    try expectEqual(null, court.peers[2]);
    try expectEqual(0b011, court.members_alive());
}

test "a newcomer cannot have a coordinator hold what a member may" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    var long: [limits.newcomer_message_bytes_max + 64]u8 = @splat(0);
    std.mem.writeInt(u32, long[0..4], limits.newcomer_message_bytes_max + 1, .little);
    std.mem.writeInt(u16, long[4..6], @intFromEnum(control.Message.report_op), .little);
    try court.form();
    try court.listen();
    // The coordinator waits for the rest from a member.
    try court.put(0, long[0..control.header_bytes]);
    try expect(court.peers[0] != null);
    var other: Court = undefined;
    try other.init(gpa);
    defer other.c.destroy();
    try other.open(0);
    try other.put(0, long[0..control.header_bytes]);
    try expectEqual(null, other.peers[0]);
}

test "a host that asks for large answers too often is told to wait, others are not" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    var answers: usize = 0;
    court.c.run.status_rates.charge(@splat(1), court.now, 100 * limits.MiB);
    for (0..20) |_| {
        court.source = @splat(1);
        court.c.run.status_rates.charge(court.source, court.now, limits.MiB);
        answers += @intFromBool(try ask(&court) == .status_reply);
    }
    try expect(answers < 10);
    court.source = @splat(2);
    try expectEqual(.status_reply, try ask(&court));
    court.source = @splat(1);
    try expectEqual(.refused, try ask(&court));
    court.now += 20 * 1000 * ms;
    try expectEqual(.status_reply, try ask(&court));
}

fn ask(court: *Court) !std.meta.Tag(control.Message) {
    try court.knock(0, .{ .purpose = .status, .run_id = @splat(1), .from = .none });
    try court.say(0, .{ .status_request = .{} });
    const bytes = try court.told(0);
    defer gpa.free(bytes);
    const answer = try control.decode(bytes[wire.hello.answer_bytes..]);
    court.c.closed(court.now, court.peers[0].?);
    court.peers[0] = null;
    return answer;
}
