//! Lanes that close without harm: those that no side would like to have any more (dial.zig), and
//! those that fall silent while others of their link deliver (dial.zig, dial.zig). Lanes that
//! break under a shared state: state_test.zig.

const std = @import("std");
const wire = @import("wire");
const control = @import("control.zig");
const deadline_never = @import("sync_test.zig").deadline_never;
const dial = @import("dial.zig");
const driver = @import("driver.zig");
const form = @import("hostile_test.zig").form;
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const world_test = @import("world_test.zig");
const Broken = @import("state_test.zig").Broken;
const Case = @import("sync_test.zig").Case;
const Lane = session.Lane;
const Link = session.Link;
const Operation = session.Operation;
const user = session.user;
const World = world.World;
const elements = world_test.elements;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const second = std.time.ns_per_s;

/// Two members whose link has six lanes, and both ends of it.
const Two = struct {
    w: World = .{ .gpa = gpa, .lanes = 0 },
    ends: [2]*Link = undefined,
    idle_ns: u64 = 0,

    fn form(two: *Two) !void {
        const w = &two.w;
        try hostile_test.form(w, 2);
        for (&two.ends, 0..) |*end, index|
            end.* = hostile_test.link_to(&w.nodes[index], &w.nodes[1 - index]);
        two.idle_ns = dial.idle_silences * w.nodes[0].s.settings.silence_ns;
        try two.wish(0, 6);
        try two.expect_open(6);
    }

    /// One side would like so many lanes.
    fn wish(two: *Two, side: usize, count: u8) !void {
        two.ends[side].flow.spread.lanes = count;
        try two.w.pass(2 * second);
        try expectEqual(count, two.ends[1 - side].flow.theirs);
    }

    fn expect_open(two: *const Two, count: u32) !void {
        for (two.ends) |link| try expectEqual(count, link.open_count);
    }

    fn sum(two: *Two, side: usize) !*Operation {
        return world_test.sum(&two.w.nodes[side], elements, .restart);
    }

    /// The lane of that number, as the side knows it that has dialed it.
    fn dialed(two: *const Two, number: usize) *Lane {
        const lane = two.ends[0].lanes[number].?;
        return if (lane.is_ours) lane else two.ends[1].lanes[number].?;
    }
};

test "lanes that no side would like close when they have been idle for a minute, and come back" {
    // Goal: nobody takes it for a fault. Method: a sum waits for its second member meanwhile.
    var two: Two = .{};
    try two.form();
    const w = &two.w;
    defer w.deinit();
    const first = try two.sum(0);
    try two.wish(0, 3);
    try w.pass(two.idle_ns - 3 * second);
    try two.expect_open(6);
    const dials = [_]u6{ two.ends[0].retries, two.ends[1].retries };
    w.warnings = 0;
    try w.pass(5 * second);
    try two.expect_open(3);
    for (two.ends, dials) |link, retries| {
        try expectEqual(retries, link.retries);
        try expectEqual(.up, link.told);
    }
    try w.pass(two.idle_ns);
    try two.expect_open(3);
    try expectEqual(0, w.warnings);
    const other = try two.sum(1);
    try w.settle();
    for ([_]*Operation{ first, other }) |operation| {
        try expectEqual(1, operation.op.attempts);
        try world_test.check_sum(operation);
    }
    try two.wish(1, 5);
    try two.expect_open(5);
}

test "a lane that the other side would like stays, and so does one that something is under way on" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    try two.wish(1, 2);
    try two.w.pass(2 * two.idle_ns);
    try two.expect_open(6);
    try two.wish(1, 6);
    try two.wish(0, 2);
    try two.w.pass(2 * two.idle_ns);
    try two.expect_open(6);
    // Nobody says that this has come.
    const lane = two.dialed(4);
    lane.unacked.push(.{ .operation = null });
    try two.wish(1, 2);
    try two.w.pass(2 * two.idle_ns);
    try two.expect_open(3);
    lane.unacked = .{};
    try two.w.pass(two.idle_ns - second);
    try two.expect_open(3);
    try two.w.pass(2 * second);
    try two.expect_open(2);
}

test "a minute begins anew when something has gone, or come, meanwhile" {
    for ([_]bool{ false, true }) |comes| {
        var two: Two = .{};
        try two.form();
        defer two.w.deinit();
        try two.wish(0, 2);
        try two.w.pass(two.idle_ns - 4 * second);
        const lane = two.dialed(5);
        if (comes) lane.used -%= 1 else lane.unacked.acked +%= 1;
        const other = &two.w.pipe_of(lane).*;
        const there = if (other.a == lane) other.b else other.a;
        if (!comes) there.taken +%= 1;
        try two.w.pass(4 * second);
        try two.expect_open(3);
        try two.w.pass(two.idle_ns);
        try two.expect_open(2);
    }
}

test "a lane beyond the number stands in for one that cannot be made, so the last never closes" {
    var two: Two = .{};
    try two.form();
    const w = &two.w;
    defer w.deinit();
    try two.wish(0, 2);
    w.apart = .{ 0, 1 };
    for (0..2) |number| {
        const broken: Broken = .init(w, &w.nodes[0], &w.nodes[1], number);
        for (0..2) |end| broken.notice(w, end);
    }
    try w.pass(2 * two.idle_ns);
    try expect(w.dials_in_vain > 0);
    try two.expect_open(2);
    for (two.ends) |link| for (link.lanes[2..4]) |lane| try expect(lane.?.state == .open);
    w.apart = null;
    try w.pass(2 * two.idle_ns);
    try two.expect_open(2);
    for (two.ends) |link| for (link.lanes[0..2]) |lane| try expect(lane.?.state == .open);
}

test "a lane that falls silent while others deliver costs a sum no attempt" {
    for (0..2) |side| for (0..12) |steps| {
        var w: World = .{ .gpa = gpa };
        try hostile_test.form(&w, 2);
        defer w.deinit();
        var sums: [2]*Operation = undefined;
        for (w.nodes[0..2], &sums) |*node, *operation|
            operation.* = try world_test.sum(node, elements, .restart);
        for (0..steps) |_| _ = try w.step();
        const link = hostile_test.link_to(&w.nodes[side], &w.nodes[1 - side]);
        const lane = link.lanes[steps % 2].?;
        w.pipe_of(lane).stuck = lane;
        try w.pass(w.nodes[0].s.settings.silence_ns + 2 * second);
        for (sums) |operation| {
            try expectEqual(1, operation.op.attempts);
            try world_test.check_sum(operation);
            user.release(w.nodes[operation.work.movement.board.ledger.roles.rank].s, operation);
        }
        try expectEqual(2, link.open_count);
    };
}

test "a lane that falls silent while others deliver costs a sync no attempt" {
    for (0..2) |side| for (0..12) |steps| {
        var case: Case = undefined;
        try case.init(&.{ 1, 2 }, &.{ 3, 0 });
        defer case.deinit();
        const w = &case.world;
        for (case.all()) |*held| try held.sync(.popular, deadline_never);
        for (0..steps) |_| _ = try w.step();
        const link = hostile_test.link_to(&w.nodes[side], &w.nodes[1 - side]);
        const lane = link.lanes[steps % 2].?;
        w.pipe_of(lane).stuck = lane;
        try w.pass(w.nodes[0].s.settings.silence_ns + 2 * second);
        for (case.all()) |*held| {
            try expectEqual(1, held.operation.?.op.attempts);
            try held.end(.ok);
            try held.expect_value(1, 4);
        }
        try expectEqual(2, link.open_count);
    };
}

// ---- dialed for the doctor
//
// Rules of a dial that the coordinator asks for: whom it reaches, what is told of it, and when it
// ends. Worlds as in world_test.zig; the coordinator is the test.

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
    const Ending = enum { nothing_answers, silent, hangs_up, another };
    for (std.enums.values(Ending)) |case| {
        try w.nodes[0].connection.?.stream.send(ask_for);
        while (w.dials.items.len == 0) try control_step(&w);
        const lane = s.dial_back.?.lane;
        try expect(lane == w.dials.pop().?.lane);
        if (case != .nothing_answers) driver.opened(s, w.now, lane);
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
                driver.closed(s, w.now, lane);
                try expect_told(&w, .other_answers);
            },
            .another => {
                try w.nodes[0].connection.?.stream.send(ask_for);
                while (w.dials.items.len == 0) try control_step(&w);
                try expect(s.dial_back.?.lane == w.dials.items[0].lane);
                try expectEqual(1, w.dials.items.len);
                driver.failed(s, w.now, w.dials.pop().?.lane, .unreachable_host);
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
