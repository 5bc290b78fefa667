//! A coordinator under fuzz: a few connections on which peers, members, those who ask for the
//! status and strangers say anything in any order, while time passes. It may not crash, leak, hold
//! more than its budget, or answer with a status that is no JSON.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const words_file = @import("words.zig");
const addresses = protocol.addresses;
const Connection = protocol.Connection;
const Coordinator = protocol.Coordinator;
const Words = words_file.Words;

const connections_max = 5;
const second = std.time.ns_per_s;

const Hall = struct {
    c: *Coordinator,
    now: u64 = second,
    places: [connections_max]?*Connection = @splat(null),

    fn close(ctx: *anyopaque, connection: *Connection) void {
        const hall: *Hall = @ptrCast(@alignCast(ctx));
        const place = &hall.places[connection.driver];
        if (place.* == connection) place.* = null;
    }
    fn wake(_: *anyopaque, _: *Connection) void {}
    fn find(_: *anyopaque, question: *const addresses.Question) addresses.Reply {
        return if (question.number % 3 == 0) .later else .{ .answer = .{
            .found = question.address,
        } };
    }
    fn log(_: *anyopaque, _: protocol.LogLevel, _: []const u8) void {}

    fn put(hall: *Hall, place: usize, bytes: []const u8) !void {
        const connection = hall.places[place] orelse return;
        var rest = bytes;
        while (rest.len > 0) {
            const room = try connection.stream.recv_slice();
            const count = @min(room.len, rest.len);
            @memcpy(room[0..count], rest[0..count]);
            connection.stream.received(count);
            rest = rest[count..];
        }
        hall.c.received(hall.now, connection);
    }

    fn knock(hall: *Hall, place: usize, hello: wire.hello.Hello) !void {
        if (hall.places[place]) |old| {
            hall.places[place] = null;
            hall.c.closed(hall.now, old);
        }
        const connection = hall.c.accept(hall.now, @splat(@intCast(1 + place % 2))) orelse return;
        connection.driver = place;
        hall.places[place] = connection;
        try hall.put(place, &wire.hello.encode(hello));
    }

    fn say(hall: *Hall, place: usize, message: wire.control.Message) !void {
        var bytes: [4096]u8 = undefined;
        try hall.put(place, try wire.control.encode(message, &bytes));
    }
};

/// Each step begins with a byte that says what happens, and the rest says the details.
pub fn run(allocator: std.mem.Allocator, bytes: []const u8) !void {
    var arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
    defer arena.deinit();
    var words: Words = .{ .rest = bytes, .arena = arena.allocator() };
    var hall: Hall = .{ .c = undefined };
    hall.c = try Coordinator.create(allocator, .{
        .run_id = words_file.run_id,
        .initial_world_size = @intCast(1 + words.below(3)),
        .min_world_size = 1,
    }, .{ .ctx = &hall, .vtable = &.{
        .close = Hall.close,
        .wake = Hall.wake,
        .find = Hall.find,
        .log = Hall.log,
    } }, 1);
    defer hall.c.destroy();
    hall.c.tick(hall.now);
    while (words.rest.len > 0) try step(&hall, &words);
    try ask_status(&hall);
}

fn step(hall: *Hall, words: *Words) !void {
    const place = words.below(connections_max);
    switch (words.below(16)) {
        0 => try hall.knock(place, .{
            .purpose = std.enums.values(wire.hello.Purpose)[words.below(3)],
            .run_id = if (words.byte() < 250) words_file.run_id else @splat(2),
            .from = words.id(),
            .instance = words.below(3),
        }),
        1 => try hall.put(place, words.bytes(words.byte())),
        2 => if (hall.places[place]) |connection| {
            hall.places[place] = null;
            hall.c.closed(hall.now, connection);
        },
        3 => {
            hall.now += @as(u64, std.time.ns_per_ms) << @intCast(words.below(14));
            hall.c.tick(hall.now);
        },
        // The messages to it leave.
        4 => if (hall.places[place]) |connection| {
            connection.stream.sent(connection.stream.send_slice().len);
        },
        // A peer that does as it should, up to its epoch.
        5, 6 => {
            try hall.knock(place, .{
                .purpose = .control,
                .run_id = words_file.run_id,
                .from = words_file.id_of(place),
                .instance = 1,
            });
            try hall.say(place, .{ .join = .{
                .name = .of("g"),
                .address = .of("n1:1"),
                .initial_world_size = 0,
                .round = 0,
                .stop_round = 0,
                .address_key = @splat(1),
            } });
            try hall.say(place, .{ .join_end = .{} });
        },
        7, 8 => try go_on(hall, place),
        else => try hall.say(place, try words.message()),
    }
}

/// Every peer that has been asked something answers as it should.
fn go_on(hall: *Hall, first: usize) !void {
    for (0..connections_max) |offset| {
        const place = (first + offset) % connections_max;
        const group = if (hall.c.run.groups.items.len > 0) hall.c.run.groups.items[0] else return;
        const round = group.round;
        try hall.say(place, .{ .prepared = .{
            .group = 0,
            .round = round,
            .entering = true,
            .missing = .{},
        } });
        try hall.say(place, .{ .safe_points = .{ .group = 0, .round = round, .count = 0 } });
        for (group.epochs.items) |epoch| {
            try hall.say(place, .{ .activated = .{ .group = 0, .epoch = epoch.number } });
            break;
        }
    }
}

fn ask_status(hall: *Hall) !void {
    try hall.knock(0, .{ .purpose = .status, .run_id = words_file.run_id, .from = .from_int(1) });
    try hall.say(0, .{ .status_request = .{} });
    const connection = hall.places[0] orelse return; // it was refused
    const sent = connection.stream.send_slice();
    if (sent.len < wire.hello.answer_bytes) return;
    const reply = wire.control.decode(sent[wire.hello.answer_bytes..]) catch return;
    if (reply != .status_reply) return;
    try std.testing.expect(try std.json.validate(hall.c.run.gpa, reply.status_reply.json.data));
}
