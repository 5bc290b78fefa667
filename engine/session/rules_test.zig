//! Rules of a session that no other test sees, as mutations have shown (tests/mutants): what a call
//! must not ask for, whose turn it is on a lane, and what is forgotten when. Worlds as in
//! world_test.zig; members that lie are hostile_test.zig's.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const protocol = @import("protocol");
const wire = @import("wire");
const dial = @import("dial.zig");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const Node = world.Node;
const Operation = session.Operation;
const Session = session.Session;
const World = world.World;
const control = session.control;
const driver = session.driver;
const elements = world.elements;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectError = std.testing.expectError;
const form = hostile_test.form;
const gpa = std.testing.allocator;
const user = session.user;
const ms = std.time.ns_per_ms;

test "a call whose arrays lie in the same memory is refused" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    var memory: [12]u64 = @splat(1);
    var arrays: [2]session.Array = undefined;
    for (&arrays, [_]usize{ 0, 4 }) |*array, first| array.* = .{
        .send = @ptrCast(&memory[first]),
        .recv = @ptrCast(&memory[first]),
        .count = 8,
        .dtype = .u64,
    };
    const call: session.Call = .{
        .kind = .all_reduce,
        .arrays = &arrays,
        .deadline = base.never,
    };
    try expectError(error.ArraysOverlap, user.begin(node.s, w.now, node.group, call));
    try expectEqual(0, node.s.operations.items.len);
}

test "a rank sends itself as much as it receives of itself" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    var given: [3]u64 = @splat(1);
    var taken: [4]u64 = undefined;
    var call: session.Call = .{
        .kind = .all_to_all,
        .send = @ptrCast(&given),
        .recv = @ptrCast(&taken),
        .exchanged = .{ .send = &.{ 1, 2 }, .recv = &.{ 2, 2 } },
        .dtype = .u64,
        .deadline = base.never,
    };
    try expectError(error.OwnCountsDiffer, user.begin(node.s, w.now, node.group, call));
    call.exchanged = .{ .send = &.{ 1, 2 }, .recv = &.{ 1, 2 } };
    const operation = try user.begin(node.s, w.now, node.group, call);
    user.cancel(node.s, w.now, operation);
    user.release(node.s, operation);
}

test "members that cut the same number of elements differently have called different things" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    var given: [2][20]u64 = @splat(@splat(1));
    var taken: [2][30]u64 = undefined;
    const counts = [2][]const u64{ &.{ 10, 20 }, &.{ 20, 10 } };
    var operations: [2]*Operation = undefined;
    for (w.nodes[0..2], &given, &taken, counts, &operations) |*node, *own, *all, cut, *operation| {
        operation.* = try user.begin(node.s, w.now, node.group, .{
            .kind = .all_gather,
            .send = @ptrCast(own),
            .recv = @ptrCast(all),
            .counts = cut,
            .count = 30,
            .dtype = .u64,
            .deadline = base.never,
        });
    }
    try w.settle();
    for (w.nodes[0..2], operations) |*node, operation| {
        try expectEqual(.mismatch, operation.status);
        user.release(node.s, operation);
    }
}

test "a coordinator with other settings is not the one of before" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    for (w.nodes[0..2]) |*node| {
        w.coordinator.closed(w.now, node.connection.?);
        node.connection = null;
        control.closed(node.s, w.now);
    }
    w.coordinator.run.options.lanes += 1; // as one that was started anew, with other options
    try w.pass(std.time.ns_per_s);
    for (w.nodes[0..2]) |*node| {
        try expectEqual(.lost, node.s.control_state);
        try expectEqual(.left, node.group.state);
    }
}

test "a coordinator whose silence or heartbeat no honest one has is given up" {
    // Method: one that an honest peer joins, and each lie of its welcome alone. A number above its
    // bound makes it no message at all (wire/control.zig).
    const ns_per_ms = std.time.ns_per_ms;
    const Case = struct {
        heartbeat_ns: u64,
        silence_ns: u64,
        stall_warning_ns: u64 = std.time.ns_per_s,
        welcome: bool,
    };
    for ([_]Case{
        .{
            .heartbeat_ns = ns_per_ms,
            .silence_ns = 3 * ns_per_ms,
            .stall_warning_ns = ns_per_ms,
            .welcome = true,
        },
        .{
            .heartbeat_ns = ns_per_ms,
            .silence_ns = 3 * ns_per_ms,
            .stall_warning_ns = ns_per_ms - 1,
            .welcome = false,
        },
        .{ .heartbeat_ns = ns_per_ms, .silence_ns = 3 * ns_per_ms, .welcome = true },
        .{ .heartbeat_ns = ns_per_ms - 1, .silence_ns = 9 * ns_per_ms, .welcome = false },
        .{ .heartbeat_ns = ns_per_ms, .silence_ns = 3 * ns_per_ms - 1, .welcome = false },
        .{ .heartbeat_ns = 1, .silence_ns = 1, .welcome = false },
        .{ .heartbeat_ns = ns_per_ms, .silence_ns = 1, .welcome = false },
        .{ .heartbeat_ns = ns_per_ms, .silence_ns = base.never, .welcome = false },
        .{ .heartbeat_ns = base.never, .silence_ns = base.never, .welcome = false },
        .{
            .heartbeat_ns = ns_per_ms,
            .silence_ns = base.limits.interval_ns_max,
            .welcome = true,
        },
    }) |case| {
        var w: World = .{ .gpa = gpa };
        try w.init(1, 1);
        defer w.deinit();
        w.coordinator.run.options.heartbeat_ns = case.heartbeat_ns;
        w.coordinator.run.options.silence_ns = case.silence_ns;
        w.coordinator.run.options.stall_warning_ns = case.stall_warning_ns;
        try w.settle();
        try expectEqual(case.welcome, w.nodes[0].s.knows_settings());
    }
}

test "operations take turns on a link, also where one has much to send" {
    // Method: two broadcasts of many pieces; the second has sent as much as the first all the time.
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    var memory: [2][2][400]u64 = @splat(@splat(@splat(1)));
    var operations: [2][2]*Operation = undefined;
    for (w.nodes[0..2], &memory, &operations) |*node, *own, *both| {
        for (own, both, 0..) |*array, *operation, tag| operation.* = try user.begin(
            node.s,
            w.now,
            node.group,
            .{
                .kind = .broadcast,
                .send = @ptrCast(array),
                .recv = @ptrCast(array),
                .count = array.len,
                .dtype = .u64,
                .tag = tag,
                .deadline = base.never,
            },
        );
    }
    var compared: u32 = 0;
    const root = for (&operations) |*both| {
        if (both[0].work.movement.board.ledger.roles.rank == 0) break both;
    } else unreachable;
    while (try w.step()) {
        const first = root[0].work.movement.bytes_sent;
        const second = root[1].work.movement.bytes_sent;
        // A frame on each lane, and what was sent before the other had called.
        if (first > 1000 and first < 2500) {
            try expect(second > 0 and @max(first, second) - @min(first, second) <= 512);
            compared += 1;
        }
    }
    try expect(compared > 5);
    for (w.nodes[0..2], &operations) |*node, *both| for (both) |operation| {
        try expectEqual(.ok, operation.status);
        user.release(node.s, operation);
    };
}

test "operations have room for what is in the air, and together no more than the run allows" {
    // Goal: the limit is of a peer, not of an operation. Method: sums of 50 pieces of 64 bytes, of
    // which half may be in the air; a link that has more than that.
    var w: World = .{ .gpa = gpa, .windows_bytes = 2048 };
    try form(&w, 2);
    defer w.deinit();
    var memory: [2][4][400]u64 = @splat(@splat(@splat(1)));
    const rooms = [4]u64{ 512, 2048 - 512, 512, 512 };
    for (w.nodes[0..2], &memory) |*node, *own| {
        const flow = &hostile_test.link_to(node, &w.nodes[1 - node.index]).flow;
        for (own, rooms, 0..) |*array, room, tag| {
            if (tag == 1) {
                flow.goodput = 1 << 40;
                flow.base_ns = std.time.ns_per_s;
            }
            const operation = try user.begin(node.s, w.now, node.group, .{
                .kind = .all_reduce,
                .send = @ptrCast(array),
                .recv = @ptrCast(array),
                .count = array.len,
                .dtype = .u64,
                .tag = tag,
                .deadline = base.never,
            });
            try expectEqual(room, operation.work.movement.room_bytes());
        }
        try expectEqual(2048, node.s.settings.windows_bytes);
    }
    try w.settle();
    for (w.nodes[0..2], &memory) |*node, *own| {
        for (own) |*array| try expect(std.mem.allEqual(u64, array, 2));
        while (node.s.operations.getLastOrNull()) |operation| {
            try expectEqual(.ok, operation.status);
            user.release(node.s, operation);
        }
    }
}

test "what was sent ahead in a passed attempt, or comes from a lost member, is not kept" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = hostile_test.link_to(node, &w.nodes[2]);
    const lane = link.lanes[0].?;
    try expect(try hostile_test.inject(node, lane, hostile_test.data(node.group, 9, 8)));
    try expectEqual(1, link.early.count());
    const group = w.coordinator.run.groups.items[0];
    group.current().?.replan_at = w.now;
    w.coordinator.tick(w.now);
    try w.settle();
    try expectEqual(2, node.group.attempt());
    try expectEqual(0, link.early.count());

    // Its connection to the coordinator ends, and it is out; its lanes are still open.
    const epoch = node.group.member.current.?;
    epoch.alive.unset(epoch.rank_of(w.nodes[2].s.self).?);
    var header = hostile_test.data(node.group, 9, 8);
    header.attempt += 1;
    try expect(try hostile_test.inject(node, lane, header));
    try expectEqual(0, link.early.count());
    epoch.alive.set(epoch.rank_of(w.nodes[2].s.self).?);
}

test "a group that was left wants no links any more" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = hostile_test.link_to(node, &w.nodes[1]);
    try expect(link.wanted);
    user.leave(node.s, w.now, node.group);
    try expect(!link.wanted);
}

test "a member says again which of its links are broken when a round begins" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    hostile_test.link_to(&w.nodes[0], &w.nodes[2]).told = .down; // and the coordinator forgot it
    const broken = &w.coordinator.run.groups.items[0].broken;
    try expectEqual(0, broken.claims.items.len);
    _ = try w.add();
    try w.settle();
    try expectEqual(1, broken.claims.items.len);
    try expect(broken.claims.items[0].from.eql(w.nodes[0].s.self));
}

test "a newcomer that has another connection wants no links for the round it was in" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const node = try w.add();
    w.apart = .{ 0, 2 }; // so the round waits for it
    try w.settle();
    try expect(node.group.member.round != 0);
    w.coordinator.closed(w.now, node.connection.?);
    node.connection = null;
    control.closed(node.s, w.now);
    while (node.connection == null or node.group.id == null) try w.pass(1);
    for (0..4) |_| _ = try w.step(); // hello, welcome, joined
    try expectEqual(0, node.group.member.round);
    try expectEqual(0, node.group.round_peers.items.len);
}

test "a link that was broken in a passed attempt ends no message in the next" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    var values: [2][8]u64 = @splat(@splat(1));
    var operations: [2]*Operation = undefined;
    for (w.nodes[0..2], &values, &operations) |*node, *own, *operation| {
        const sends = node.group.rank() == 0;
        operation.* = try user.begin(node.s, w.now, node.group, .{
            .kind = .send_recv,
            .part = if (sends) .send else .recv,
            .partner_rank = if (sends) 1 else 0,
            .send = if (sends) @ptrCast(own) else null,
            .recv = if (sends) null else @ptrCast(own),
            .count = own.len,
            .dtype = .u64,
            .recovery = .restart,
            .deadline = base.never,
        });
    }
    // One has voted when its link breaks: it waits for what the other says.
    while (operations[0].op.state != .voted) try expect(try w.step());
    operations[0].withdraw_from(hostile_test.link_to(&w.nodes[0], &w.nodes[1]));
    const group = w.coordinator.run.groups.items[0];
    group.current().?.replan_at = w.now;
    w.coordinator.tick(w.now);
    try w.settle();
    for (w.nodes[0..2], operations) |*node, operation| {
        try expectEqual(.ok, operation.status);
        try expectEqual(2, operation.op.attempts);
        user.release(node.s, operation);
    }
}

test "a connection that could not be made is tried again after longer and longer" {
    var w: World = .{ .gpa = gpa };
    w.apart = .{ 0, 1 };
    try w.init(3, 3);
    defer w.deinit();
    try w.settle();
    const newcomers = &w.coordinator.run.groups.items[0].newcomers;
    const second_ns = std.time.ns_per_s;
    try w.pass(w.nodes[0].s.settings.silence_ns - second_ns);
    var ready: usize = 0;
    for (newcomers.items) |*newcomer| ready += @intFromBool(newcomer.prepared);
    try expectEqual(1, ready);
    // For the silence limit, and then the round does not wait for it any more.
    try w.pass(2 * second_ns);
    for (newcomers.items) |*newcomer| try expect(newcomer.prepared);
    try expect(w.dials_in_vain >= 10);
    try expect(w.dials_in_vain <= 30); // of both, and not 48, one at each tick
}

/// Two peers that have settled, and have lost the lanes between them.
fn apart(w: *World) ![2]*session.Link {
    try form(w, 2);
    const ends = [_]*session.Link{
        hostile_test.link_to(&w.nodes[0], &w.nodes[1]),
        hostile_test.link_to(&w.nodes[1], &w.nodes[0]),
    };
    w.cut(ends[0]);
    return ends;
}

test "the side that does not lead dials when the other has had time to" {
    for ([_]usize{ 0, 1 }) |walled| {
        // One of them cannot dial the other, whichever leads.
        var w: World = .{ .gpa = gpa };
        w.walled = .{ walled, 1 - walled };
        try w.init(2, 2);
        defer w.deinit();
        try w.settle();
        // The one that leads, the second, dials at once; the other not yet.
        const most = w.nodes[0].s.settings.lanes;
        const first = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
        try expectEqual(if (walled == 1) 0 else most, first.open_count);
        try w.pass(w.nodes[0].s.settings.silence_ns / 10);
        try w.pass(std.time.ns_per_s);
        try w.admit_all();
        for (w.nodes[0..2], 0..) |*node, index| {
            const link = hostile_test.link_to(node, &w.nodes[1 - index]);
            try expectEqual(node.s.settings.lanes, link.open_count);
            // And from then on the one that can leads.
            try expectEqual(index != walled, link.leads);
        }
    }
}

test "a link gets the lanes that one side would like, in the midst of an operation" {
    // Goal: the wish is heard where lanes are never idle, and where the other side alone can dial.
    // Method: node 0 wants four lanes while a sum is under way, and cannot dial node 1.
    var w: World = .{ .gpa = gpa, .lanes = 0 };
    w.walled = .{ 0, 1 };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const link = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
    try expectEqual(2, link.open_count);
    const sums = [_]*Operation{
        try world.sum(&w.nodes[0], world.elements, .restart),
        try world.sum(&w.nodes[1], world.elements, .restart),
    };
    link.flow.spread.lanes = 4;
    try w.settle();
    for (sums) |operation| try world.check_sum(operation);
    try expectEqual(4, hostile_test.link_to(&w.nodes[1], &w.nodes[0]).flow.theirs);
    try expectEqual(4, link.open_count);
}

test "where the system does not say how far a peer is, the time that it took to connect does" {
    // Goal: both ends know the distance, though one alone has dialed. Method: their connection
    // takes 30 ms; the word of a liar, and a connection of which a packet was lost, say nothing.
    for ([_]u64{ 30 * ms, 1000 * ms }) |took_ns| {
        var w: World = .{ .gpa = gpa, .sample = .{ .acked = 0 } };
        const ends = try apart(&w);
        defer w.deinit();
        for (ends) |link| link.flow.base_ns = 0;
        ends[1].retry_at = 0;
        driver.tick(w.nodes[1].s, w.now);
        w.now += took_ns;
        try w.connect_dials();
        try w.pass(std.time.ns_per_s);
        for (ends) |link| {
            if (took_ns == 1000 * ms) try expectEqual(0, link.flow.base_ns) //
            else try expectEqual(30, link.flow.base_ns / ms);
        }
    }
    var w: World = .{ .gpa = gpa };
    try hostile_test.form(&w, 2);
    defer w.deinit();
    const link = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
    const far = base.limits.link_rtt_ns_told_max;
    var ping = std.mem.zeroInit(wire.frame.Header, .{ .kind = .ping, .index = 2, .tag = far });
    try expect(try hostile_test.inject(&w.nodes[0], link.lanes[0].?, ping));
    try expectEqual(far, link.flow.base_ns);
    ping.tag += 1;
    try expect(!try hostile_test.inject(&w.nodes[0], link.lanes[0].?, ping));
}

test "where both sides dial at once, they agree on the lane of the one that wins" {
    // Goal: whatever crosses what. Method: both dial, and one side after the other goes on first.
    for ([_]usize{ 0, 1 }) |first| {
        var w: World = .{ .gpa = gpa };
        const ends = try apart(&w);
        defer w.deinit();
        for (ends, w.nodes[0..2]) |link, *node| {
            link.retry_at = 0;
            driver.tick(node.s, w.now);
        }
        // Each has said its hello before it hears that of the other.
        try expectEqual(4, w.dials.items.len);
        if (first == 1) std.mem.reverse(world.Dial, w.dials.items);
        try w.connect_dials();
        try w.settle();
        for (ends, 0..) |link, index| {
            try expectEqual(2, link.open_count);
            for (link.lanes[0..2]) |lane| try expectEqual(index == 1, lane.?.is_ours);
        }
        for (w.nodes[0..2]) |*node| try expectEqual(0, node.s.strangers.items.len);
        try w.pass(2 * std.time.ns_per_s);
        for (ends) |link| try expectEqual(2, link.open_count);
    }
}

test "a hello that waits for a lane of ours is taken when that comes to nothing" {
    var w: World = .{ .gpa = gpa };
    const ends = try apart(&w);
    defer w.deinit();
    // The one that wins has dialed, and is not answered.
    const s = w.nodes[1].s;
    ends[1].retry_at = 0;
    driver.tick(s, w.now);
    const ours = ends[1].lanes[0].?;
    w.dials.clearRetainingCapacity();
    driver.opened(s, w.now, ours);
    const theirs = try knock(s, w.now, .{
        .purpose = .lane,
        .run_id = s.run_id,
        .from = w.nodes[0].s.self,
        .to = s.self,
    });
    try expectEqual(.waiting, theirs.state);
    driver.closed(s, w.now, ours);
    try expectEqual(.open, theirs.state);
    try expectEqual(theirs, ends[1].lanes[0].?);
}

test "a lane is for the peer and the run that it names" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const s = w.nodes[0].s;
    const right: wire.hello.Hello = .{
        .purpose = .lane,
        .run_id = s.run_id,
        .from = w.nodes[1].s.self,
        .to = s.self,
    };
    var for_another = right;
    for_another.to = .from_int(7);
    var of_another = right;
    of_another.run_id[0] ^= 1;
    for ([_]wire.hello.Hello{ for_another, of_another, right }, 0..) |hello, turn| {
        const lane = driver.accept(s, w.now, @splat(0)).?;
        lane.head[0..wire.hello.hello_bytes].* = wire.hello.encode(hello);
        _ = dial.greet(s, lane);
        const is_taken = for (s.links.items) |link| {
            if (std.mem.indexOfScalar(?*session.Lane, &link.lanes, lane) != null) break true;
        } else false;
        try expectEqual(turn == 2, is_taken);
    }
}

/// A connection that says this comes in.
fn knock(s: *session.Session, now: u64, hello: wire.hello.Hello) !*session.Lane {
    const lane = driver.accept(s, now, @splat(0)).?;
    var slices: [2][]u8 = undefined;
    const count = driver.recv_slices(s, lane, &slices);
    @memcpy(slices[count - 1][0..wire.hello.hello_bytes], &wire.hello.encode(hello));
    driver.received(s, now, lane, wire.hello.hello_bytes);
    return lane;
}

test "a lane in the name of a peer that nobody has named stays a stranger until somebody does" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const s = node.s;
    s.strangers_max = 8;
    const links_before = s.links.items.len;
    const first: base.PeerId = .from_int(100);
    var last: *session.Lane = undefined;
    for (0..20) |index| last = try knock(s, w.now + index, .{
        .purpose = .lane,
        .run_id = s.run_id,
        .from = .from_int(100 + index),
        .to = s.self,
    });
    // No more of them than of those who say nothing, and nothing is kept for them.
    try expectEqual(8, s.strangers.items.len);
    try expectEqual(links_before, s.links.items.len);
    try expectEqual(.waiting, last.state);
    try expectEqual(0, last.out_head_left.len);
    const named: base.PeerId = .from_int(119);
    try node.group.round_members.append(gpa, named);
    control.received(s, w.now + 20);
    try expectEqual(7, s.strangers.items.len);
    try expectEqual(.open, last.state);
    try expectEqual(last, s.link_to(named).?.lanes[0].?);
    try expectEqual(null, s.link_to(first));
    // A stranger that is not patient has lost its place, and so has one not named in time.
    const waiting = s.strangers.items[0];
    driver.received(s, w.now + 20, waiting, 1);
    try expectEqual(6, s.strangers.items.len);
    driver.tick(s, w.now + 20 + base.limits.stranger_ns_max);
    try expectEqual(0, s.strangers.items.len);
}

test "a peer shows who it is to whom asks for it, and to nobody who asks for another" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const s = w.nodes[1].s;
    for ([_]base.PeerId{ s.self, .from_int(7) }, 0..) |id, turn| {
        const lane = try knock(s, w.now, .{
            .purpose = .probe,
            .run_id = @splat(0),
            .from = .none,
            .to = id,
            .nonce = @splat(5),
        });
        const proof = wire.hello.proof(&@splat(1), s.run_id, s.self, @splat(5));
        const answer = lane.out_head_left[0..wire.hello.answer_bytes];
        try expectEqual(turn == 0, wire.hello.is_proof(answer, proof));
        // It says that, and no more.
        try expectEqual(.refusing, lane.state);
        driver.sent(s, w.now, lane, wire.hello.answer_bytes);
        try expectEqual(0, s.strangers.items.len);
    }
}

test "a link that was never open is not told of as one that closed" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = hostile_test.link_to(node, &w.nodes[1]);
    w.cut(link);
    try w.settle();
    for ([_]bool{ false, true }) |was_open| {
        link.was_open = was_open;
        const before = node.s.control.send_slice().len;
        dial.report_closed(node.s, node.group);
        try expectEqual(was_open, node.s.control.send_slice().len > before);
    }
}

test "a message whose own link cannot be made is withdrawn, and nothing stays of that link" {
    // Goal: in a world too large for links to all, where no other operation misses the link. Then
    // one between the two is lost, and they are neighbours: from then on it may be down, and not
    // before.
    var w: World = .{ .gpa = gpa };
    try w.init(world.nodes_max, world.nodes_max);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const partner = 2 + base.limits.ring_reach + 1;
    const a = world.node_of_rank(&w, 2);
    const b = world.node_of_rank(&w, partner);
    w.apart = .{ a.index, b.index };
    var given: [elements]u64 = undefined;
    var taken: [elements]u64 = undefined;
    const operations = [_]*Operation{
        try world.exchange(a, .send, partner, &given),
        try world.exchange(b, .recv, 2, &taken),
    };
    const silence_ns = a.s.settings.silence_ns;
    try w.pass(silence_ns - std.time.ns_per_s);
    for (operations) |operation| try expect(!operation.finished);
    try w.pass(2 * std.time.ns_per_s);
    for (operations, [_]*Node{ a, b }) |operation, node| {
        try expectEqual(.aborted, operation.status);
        user.release(node.s, operation);
    }
    try w.settle();
    const claims = &w.coordinator.run.groups.items[0].broken.claims;
    try expectEqual(0, claims.items.len);
    w.kill(world.node_of_rank(&w, 3));
    try w.settle();
    try w.pass(std.time.ns_per_s);
    try expect(a.s.link_to(b.s.self).?.wanted);
    try expectEqual(0, claims.items.len);
    try w.pass(silence_ns);
    try expect(claims.items.len > 0);
}

/// Begins the calls of all in a world; `counts`: what each has for each, by rank.
fn exchange_unevenly(
    w: *World,
    counts: []const [2][]const u64,
    memory: [][2][16]u64,
    operations: []*Operation,
) !void {
    for (counts, memory, operations, 0..) |*own, *arrays, *operation, rank| {
        const node = world.node_of_rank(w, @intCast(rank));
        arrays[0] = @splat(rank);
        operation.* = try user.begin(node.s, w.now, node.group, .{
            .kind = .all_to_all,
            .send = @ptrCast(&arrays[0]),
            .recv = @ptrCast(&arrays[1]),
            .exchanged = .{ .send = own[0], .recv = own[1] },
            .dtype = .u64,
            .recovery = .restart,
            .deadline = base.never,
        });
    }
}

test "an uneven exchange goes around no broken link" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    w.apart = .{ 0, 1 };
    w.cut(hostile_test.link_to(&w.nodes[0], &w.nodes[1]));
    var memory: [3][2][16]u64 = undefined;
    var operations: [3]*Operation = undefined;
    const counts = [_]u64{ 1, 2, 3 };
    const own = [3][2][]const u64{
        .{ &counts, &.{ 1, 1, 1 } },
        .{ &counts, &.{ 2, 2, 2 } },
        .{ &counts, &.{ 3, 3, 3 } },
    };
    // Once it breaks under the call, and once it is known to be broken.
    for ([_]u64{ w.nodes[0].s.settings.silence_ns + std.time.ns_per_s, 0 }) |wait_ns| {
        try exchange_unevenly(&w, &own, &memory, &operations);
        if (wait_ns > 0) try w.pass(wait_ns) else try w.settle();
        for (operations, 0..) |operation, rank| {
            try expectEqual(.aborted, operation.status);
            user.release(world.node_of_rank(&w, @intCast(rank)).s, operation);
        }
    }
}

test "what two exchange unevenly must be the same for both" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    for ([_]u64{ 2, 3 }) |wanted| {
        var memory: [2][2][16]u64 = undefined;
        var operations: [2]*Operation = undefined;
        const own = [2][2][]const u64{
            .{ &.{ 1, 3 }, &.{ 1, 4 } },
            .{ &.{ 4, 1 }, &.{ wanted, 1 } },
        };
        try exchange_unevenly(&w, &own, &memory, &operations);
        try w.settle();
        for (operations, 0..) |operation, rank| {
            const status: session.Status = if (wanted == 3) .ok else .mismatch;
            try expectEqual(status, operation.status);
            user.release(world.node_of_rank(&w, @intCast(rank)).s, operation);
        }
    }
}

test "a peer that has seen a mismatch says so again in the next attempt" {
    // The coordinator may have been between two attempts when it was told, as if it were so here.
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    var memory: [2][2][16]u64 = undefined;
    var operations: [2]*Operation = undefined;
    const counts: [2][]const u64 = @splat(&.{ 1, 1, 1 });
    try exchange_unevenly(&w, &.{ counts, counts }, &memory, &operations);
    operations[0].mismatch_told = true;
    w.kill(world.node_of_rank(&w, 2));
    try w.settle();
    try expect(!operations[0].mismatch_told);
    for (operations, 0..) |operation, rank| {
        try expectEqual(.ok, operation.status);
        user.release(world.node_of_rank(&w, @intCast(rank)).s, operation);
    }
}

test "a peer that was frozen takes no link to be broken for the time that it has missed" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    const s = w.nodes[0].s;
    const link = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
    w.cut(link);
    var now = w.now + 4 * s.settings.silence_ns;
    driver.tick(s, now);
    try expectEqual(.up, link.told);
    const ticks = s.settings.silence_ns / s.settings.heartbeat_ns;
    for (0..ticks) |_| {
        try expectEqual(.up, link.told);
        now += s.settings.heartbeat_ns;
        driver.tick(s, now);
    }
    try expectEqual(.down, link.told);
}

test "a call that has returned uses no memory, though nobody has taken its result" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 1);
    defer w.deinit();
    const node = &w.nodes[0];
    var memory: [8]u64 = @splat(1);
    const call: session.Call = .{
        .kind = .all_reduce,
        .send = @ptrCast(&memory),
        .recv = @ptrCast(&memory),
        .count = memory.len,
        .dtype = .u64,
        .deadline = base.never,
    };
    var again = call;
    again.tag = 1;
    const first = try user.begin(node.s, w.now, node.group, call);
    try expectError(error.BufferInUse, user.begin(node.s, w.now, node.group, again));
    try w.settle();
    try expect(first.finished);
    const second = try user.begin(node.s, w.now, node.group, again);
    try w.settle();
    for ([_]*Operation{ first, second }) |operation| user.release(node.s, operation);
}

test "what is left of a payload that nobody wants any more is still to be read" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const lane = hostile_test.link_to(&w.nodes[0], &w.nodes[1]).lanes[0].?;
    var rest: [10]u8 = undefined;
    lane.into = &rest;
    lane.drop_into();
    try expectEqual(null, lane.into);
    try expectEqual(rest.len, lane.discard);
}

test "data of a call that differs is thrown away as it comes in" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    var values: [100]u64 = @splat(1);
    const operation = try user.begin(node.s, w.now, node.group, .{
        .kind = .all_reduce,
        .send = @ptrCast(&values),
        .recv = @ptrCast(&values),
        .count = values.len,
        .dtype = .u64,
        .deadline = base.never,
    });
    const x = operation.work.movement;
    const lane = hostile_test.link_to(node, &w.nodes[1]).lanes[0].?;
    for (0..@intCast(x.board.ledger.partition.pieces)) |piece| {
        var header = hostile_test.data(node.group, 0, @intCast(x.board.partial_bytes(piece)));
        header.index = x.board.ledger.partition.number(piece);
        header.fingerprint = operation.fingerprint +% 1;
        try expect(try hostile_test.inject(node, lane, header));
    }
    try expectEqual(0, x.bytes_received);
    user.cancel(node.s, w.now, operation);
    user.release(node.s, operation);
}

/// The connection to the coordinator ends, and no other is made before the world moves.
fn cut_off(w: *World, node: *Node) void {
    w.coordinator.closed(w.now, node.connection.?);
    node.connection = null;
    control.closed(node.s, w.now);
}

test "a peer gives up a coordinator that is away for longer than reconnect_timeout, and no other" {
    const second = std.time.ns_per_s;
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const hasty = &w.nodes[0];
    const patient = &w.nodes[1];
    hasty.s.reconnect_timeout_ns = 2 * second;
    const operation = try world.sum(hasty, world.elements, .restart);
    // It is back in time, once, and that time does not count again.
    cut_off(&w, hasty);
    w.now += second;
    driver.tick(hasty.s, w.now);
    try w.settle();
    try expectEqual(.open, hasty.s.control_state);
    for ([_]*Node{ hasty, patient }) |node| cut_off(&w, node);
    const away_at = w.now;
    for ([_]u64{ second, 2 * second - 1 }) |after_ns| {
        for ([_]*Node{ hasty, patient }) |node| driver.tick(node.s, away_at + after_ns);
        try expectEqual(.dialing, hasty.s.control_state);
        try expect(!operation.finished);
    }
    try expect(driver.next_deadline(hasty.s) <= away_at + 2 * second);
    for ([_]*Node{ hasty, patient }) |node| driver.tick(node.s, away_at + 2 * second);
    try expectEqual(.coordinator_unreachable, operation.status);
    try expectEqual(.left, hasty.group.state);
    try expectEqual(.joined, patient.group.state);
    // A connection that the driver still tried for is closed.
    w.now = away_at + 3 * second;
    try w.settle();
    try expectEqual(.lost, hasty.s.control_state);
    try expectEqual(null, hasty.connection);
    try expectEqual(.open, patient.s.control_state);
    user.release(hasty.s, operation);
}

test "a name is asked for again when the join before it is answered, or its connection has ended" {
    for ([_]bool{ true, false }) |answered| {
        var w: World = .{ .gpa = gpa };
        try form(&w, 2);
        defer w.deinit();
        const node = &w.nodes[0];
        const first = try user.join(node.s, w.now, "h", 2);
        user.leave(node.s, w.now, first);
        user.release_group(node.s, first);
        const second = try user.join(node.s, w.now, "h", 2);
        try expect(first.asks);
        try expect(!second.asks);
        if (!answered) {
            cut_off(&w, node);
            try expectEqual(2, node.s.groups.items.len);
            while (node.connection == null) try w.pass(1);
        }
        try w.settle();
        try expectEqual(.joined, second.state);
        try expect(!second.asks);
        // The group that was released is gone.
        try expectEqual(2, node.s.groups.items.len);
        try expectEqual(second, node.s.groups.items[1]);
    }
}

test "a refusal is of the join that came first, and the next one is answered for itself" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const first = try user.join(node.s, w.now, "h", 2);
    user.leave(node.s, w.now, first);
    const second = try user.join(node.s, w.now, "h", 2);
    const refused: wire.control.Message = .{ .refused = .{ .name = .of("h"), .why = .of("no") } };
    try hostile_test.hear(node, refused);
    try expect(!first.asks);
    try expect(second.asks);
    try expectEqual(.joining, second.state);
    try hostile_test.hear(node, refused);
    try expectEqual(.left, second.state);
    // Nobody asks any more.
    try hostile_test.hear(node, refused);
    try expectEqual(.away, node.s.control_state);
}

test "a group that was released is told nothing, however late the answer to its join is" {
    // Method: it waits for a safe point together, and is left on a connection that has no answer.
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    try user.admit_together(node.s, w.now, node.group, w.now + 50 * std.time.ns_per_s);
    cut_off(&w, node);
    while (!node.group.asks) {
        w.now += 10 * ms;
        driver.tick(node.s, w.now);
        _ = try w.step();
    }
    user.leave(node.s, w.now, node.group);
    user.release_group(node.s, node.group);
    driver.tick(node.s, w.now + 60 * std.time.ns_per_s);
    try expectEqual(null, node.admit_failure);
}
