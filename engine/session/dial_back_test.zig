//! Rules of a dial that the coordinator asks for: whom it reaches, what is told of it, and when it
//! ends. Worlds as in world_test.zig; the coordinator is the test.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const world = @import("world_test.zig");
const form = @import("hostile_test.zig").form;
const control = @import("control.zig");
const driver = @import("driver.zig");
const lanes = @import("lanes.zig");
const World = world.World;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const second = std.time.ns_per_s;

/// Somebody asks the coordinator that members dial this one.
fn ask(w: *World, index: usize) !void {
    const connection = w.coordinator.accept(w.now, @splat(0)).?;
    connection.driver = world.nodes_max;
    var bytes: [200]u8 = undefined;
    bytes[0..wire.hello.hello_bytes].* = wire.hello.encode(.{
        .purpose = .status,
        .run_id = @splat(1),
        .from = .none,
    });
    const said = try wire.control.encode(
        .{ .status_request = .{ .dial_back = .from_int(index + 1) } },
        bytes[wire.hello.hello_bytes..],
    );
    const all = bytes[0 .. wire.hello.hello_bytes + said.len];
    const room = try connection.stream.recv_slice();
    @memcpy(room[0..all.len], all);
    connection.stream.received(all.len);
    w.coordinator.received(w.now, connection);
    w.coordinator.closed(w.now, connection);
}

fn expect_answers(w: *World, wanted: []const ?wire.Dialed) !void {
    const entries = w.coordinator.run.dial_back.slice();
    try expectEqual(wanted.len, entries.len);
    for (wanted, entries) |dialed, *entry| try expectEqual(dialed, entry.answer);
    for (w.nodes[0..w.count]) |*node| try expect(!node.alive or node.s.dial_back == null);
}

test "members find the peer that they dial, and their other lanes stay as they are" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    const pipes = w.pipes.items.len;
    try ask(&w, 1);
    try w.settle();
    try expect_answers(&w, &.{ .pending, .pending });
    try expectEqual(pipes, w.pipes.items.len);
    for (w.nodes[0..3]) |*node| try expectEqual(0, node.s.strangers.items.len);
}

test "why a peer was not found is told: refused, something else, or a process of another key" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    w.walled = .{ 0, 1 };
    try ask(&w, 1);
    try w.settle();
    try expect_answers(&w, &.{.refused});

    try w.pass(60 * second);
    w.walled = null;
    w.nodes[1].s.address_key = @splat(99);
    try ask(&w, 1);
    try w.settle();
    try expect_answers(&w, &.{.other_answers});

    try w.pass(60 * second);
    w.nodes[1].s.self = .from_int(9); // whoever listens there is somebody else
    try ask(&w, 1);
    try w.settle();
    try expect_answers(&w, &.{.other_answers});
    w.nodes[1].s.self = .from_int(2);
}

test "a dial back ends after five seconds, with its connection, and when another is asked for" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const s = w.nodes[0].s;
    const ask_for: wire.control.Message = .{ .dial_back = .{
        .peer = .from_int(2),
        .nonce = @splat(7),
        .address = .of("n1:1"),
    } };
    const Case = enum { nothing_answers, silent, hangs_up, another };
    for (std.enums.values(Case)) |case| {
        try w.nodes[0].connection.?.stream.send(ask_for);
        while (w.dials.items.len == 0) try control_step(&w);
        const lane = s.dial_back.?.lane;
        try expect(lane == w.dials.pop().?.lane);
        if (case != .nothing_answers) lanes.opened(s, w.now, lane);
        switch (case) {
            .nothing_answers, .silent => {
                w.now = lane.deadline - 1;
                driver.tick(s, w.now);
                const is_silent = case == .silent;
                try expectEqual(w.now + 1, @min(driver.next_deadline(s), lane.deadline));
                try expect(s.dial_back != null);
                w.now += 1;
                driver.tick(s, w.now);
                try expect_told(&w, if (is_silent) .silent else .no_answer);
            },
            .hangs_up => {
                lanes.closed(s, w.now, lane);
                try expect_told(&w, .other_answers);
            },
            .another => {
                try w.nodes[0].connection.?.stream.send(ask_for);
                while (w.dials.items.len == 0) try control_step(&w);
                try expect(s.dial_back.?.lane == w.dials.items[0].lane);
                try expectEqual(1, w.dials.items.len);
                lanes.failed(s, w.now, w.dials.pop().?.lane, .unreachable_host);
                try expect_told(&w, .unreachable_host);
            },
        }
    }
}

/// The first peer hears all that the coordinator has said.
fn control_step(w: *World) !void {
    const stream = &w.nodes[0].connection.?.stream;
    const bytes = stream.send_slice();
    const room = try w.nodes[0].s.control.recv_slice();
    @memcpy(room[0..bytes.len], bytes);
    w.nodes[0].s.control.received(bytes.len);
    stream.sent(bytes.len);
    control.received(w.nodes[0].s, w.now);
}

/// The last that the first peer has to say to the coordinator.
fn expect_told(w: *World, dialed: wire.Dialed) !void {
    try expectEqual(null, w.nodes[0].s.dial_back);
    const stream = &w.nodes[0].s.control;
    var buffer: [4096]u8 = undefined;
    var wanted: [100]u8 = undefined;
    var length: usize = 0;
    while (stream.send_slice().len > 0) {
        const bytes = stream.send_slice();
        @memcpy(buffer[length..][0..bytes.len], bytes);
        length += bytes.len;
        stream.sent(bytes.len);
    }
    const message = try wire.control.encode(.{ .dialed_back = .{
        .nonce = @splat(7),
        .dialed = dialed,
        .proof = @splat(0),
    } }, &wanted);
    try expect(std.mem.indexOf(u8, buffer[0..length], message) != null);
}
