//! Peers that send frames that no honest one sends, memory that runs out in the middle of a frame,
//! and the memory of a session over a long life. Worlds as in world_test.zig. Rules that honest
//! peers see: rules_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const session = @import("root.zig");
const world = @import("world_test.zig");
const control = session.control;
const driver = session.driver;
const user = session.user;
const World = world.World;
const Node = world.Node;
const Lane = session.Lane;
const Group = session.Group;
const Link = session.Link;
const Operation = session.Operation;
const limits = base.limits;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

pub fn form(w: *World, count: usize) !void {
    try w.init(count, @intCast(count));
    try w.settle();
    try w.admit_all();
}

pub fn link_to(node: *Node, other: *Node) *Link {
    for (node.s.links.items) |link| {
        if (link.peer.eql(.from_int(other.index + 1))) return link;
    }
    unreachable;
}

/// One frame of data comes in on a lane, with this header. False: the lane was closed for it.
pub fn inject(node: *Node, lane: *Lane, header: wire.frame.Header) !bool {
    const bytes = try gpa.alloc(u8, wire.frame.header_bytes + header.payload_bytes);
    defer gpa.free(bytes);
    @memset(bytes, 7);
    bytes[0..wire.frame.header_bytes].* = wire.frame.encode(header);
    return feed(node, lane, bytes);
}

pub fn feed(node: *Node, lane: *Lane, bytes: []const u8) bool {
    const link = lane.link.?;
    const number = lane.number;
    var rest = bytes;
    while (rest.len > 0) {
        if (link.lanes[number] != lane) return false;
        var in: [2][]u8 = undefined;
        _ = driver.recv_slices(node.s, lane, &in);
        const count = @min(in[0].len, rest.len);
        @memcpy(in[0][0..count], rest[0..count]);
        driver.received(node.s, node.world.now, lane, count);
        rest = rest[count..];
    }
    return link.lanes[number] == lane;
}

pub fn data(group: *const Group, tag: u64, payload_bytes: u32) wire.frame.Header {
    return .{
        .epoch = group.epoch(),
        .tag = tag,
        .sequence = 0,
        .index = 0,
        .attempt = group.attempt(),
        .payload_bytes = payload_bytes,
        .reduced_attempt = 0,
        .group = group.id.?,
        .class = 0,
        .kind = .partial,
    };
}

/// The head of a whole piece of a sum that this node owns and has called.
pub fn piece_of(node: *Node, operation: *const Operation) wire.frame.Header {
    const board = &operation.work.movement.board;
    const partition = &board.ledger.partition;
    const piece: usize = @intCast(partition.first_piece(board.position));
    const bytes: u32 = @intCast(board.partial_bytes(piece));
    var header = data(node.group, operation.op.id.tag, bytes);
    header.sequence = operation.op.id.sequence;
    header.index = partition.number(piece);
    header.fingerprint = operation.fingerprint;
    return header;
}

test "data ahead of time is kept only from members of a known epoch or the next" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = link_to(node, &w.nodes[1]);
    const lane = link.lanes[0].?;
    const group = node.group;
    var header = data(group, 5, 64);
    header.epoch += 1; // no round is under way, so nobody can be there
    try expect(try inject(node, lane, header));
    header.epoch += 1_000_000;
    try expect(try inject(node, lane, header));
    header = data(group, 5, 64);
    header.group = 9;
    try expect(try inject(node, lane, header));
    try expectEqual(0, link.early.count());
    try expectEqual(0, link.early.bytes);

    // In a round, the next epoch may have begun elsewhere; an older one can not.
    try group.round_members.append(node.s.gpa, .from_int(2));
    header = data(group, 5, 64);
    header.epoch -= 1;
    try expect(try inject(node, lane, header));
    try expectEqual(0, link.early.count());
    header.epoch += 2;
    try expect(try inject(node, lane, header));
    try expectEqual(1, link.early.count());
    // A peer that the round does not name can not be in it.
    link.early.forget(.of(&header));
    group.round_members.clearRetainingCapacity();
    try group.round_members.append(node.s.gpa, .from_int(3));
    try expect(try inject(node, lane, header));
    try expectEqual(0, link.early.count());
}

test "a peer that keeps sending ahead loses its lane at the bound, and the memory comes back" {
    for ([_]u32{ limits.eager_bytes_max, 100 }) |payload_bytes| {
        var w: World = .{ .gpa = gpa };
        try form(&w, 2);
        defer w.deinit();
        const node = &w.nodes[0];
        const link = link_to(node, &w.nodes[1]);
        const lane = link.lanes[0].?;
        const number = lane.number;
        var kept: usize = 0;
        while (try inject(node, lane, data(node.group, kept, payload_bytes))) kept += 1;
        try expect(link.lanes[number] != lane);
        try expect(kept >= limits.eager_operations_max);
        try expect(kept <= limits.early_operations_max);
        try expect(link.early.bytes <= limits.early_bytes_max);
        try w.settle();
        driver.tick(node.s, w.now + 10 * std.time.ns_per_s);
        link.early.prune_epochs(node.group.id.?, node.group.epoch());
        try expectEqual(0, link.early.bytes);
    }
}

test "only the later of two frames of a piece gets its place, and none of another length" {
    // Goal: a frame that goes again is taken wherever the first one stands, and a liar moves no
    // place. Method: heads and parts of payloads by hand, on two lanes, at a peer that sums alone.
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const operation = try world.sum(node, world.elements, .restart);
    try w.settle();
    const header = piece_of(node, operation);
    const link = link_to(node, &w.nodes[1]);
    const one = link.lanes[0].?;
    const two = link.lanes[1].?;
    const payload: [world.elements * @sizeOf(u64)]u8 = @splat(7);
    const whole = payload[0..header.payload_bytes];

    try expect(feed(node, one, &wire.frame.encode(header)));
    try expect(feed(node, one, whole[0..8]));
    const place = one.place();
    var other = header;
    for ([_]u8{ 0, 1 }) |again| {
        other.again = again;
        other.payload_bytes = header.payload_bytes + 8;
        try expect(try inject(node, two, other)); // thrown away
        try expectEqual(whole.len - 8, one.into.?.len);
    }
    other = header;
    try expect(try inject(node, two, other)); // no later than the first
    try expectEqual(whole.len - 8, one.into.?.len);
    other.again = 1;
    try expect(feed(node, two, &wire.frame.encode(other)));
    try expectEqual(null, one.into);
    try expectEqual(place.ptr, two.into.?.ptr);
    try expectEqual(place.len, two.into.?.len);
    // The older one comes once more, as its lane brings what it held.
    try expect(feed(node, one, whole[8..]));
    try expect(try inject(node, one, header));
    try expectEqual(2, one.taken);
    try expect(feed(node, two, whole));
    try expectEqual(4, two.taken);
    try expectEqual(null, two.into);
    user.cancel(node.s, w.now, operation);
    try w.settle();
    user.release(node.s, operation);
}

test "one operation can not be sent ahead of time beyond its share" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = link_to(node, &w.nodes[1]);
    const lane = link.lanes[0].?;
    const piece = 1000;
    var kept: usize = 0;
    var header = data(node.group, 5, piece);
    while (try inject(node, lane, header)) : (header.index += 1) kept += 1;
    try expectEqual(limits.eager_bytes_max / piece, kept);
    // A single frame that is too large is not even read.
    const second = link.lanes[1].?;
    const large = data(node.group, 6, limits.eager_bytes_max + 1);
    try expect(!try inject(node, second, large));
}

test "an honest peer sends ahead for so many operations, and the rest when it is their turn" {
    // Goal: the receiver's bound never hits an honest sender. Method: one peer calls everything it
    // may in three groups before the other calls anything.
    const group_count = 3;
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    var groups: [2][group_count]*Group = undefined;
    for (w.nodes[0..2], 0..) |*node, index| {
        groups[index][0] = node.group;
        for (1..group_count) |number| {
            const name = ([_][]const u8{ "", "h", "i" })[number];
            groups[index][number] = try user.join(node.s, w.now, name, 2);
        }
    }
    try w.settle();
    for (1..group_count) |number| {
        for (w.nodes[0..2], 0..) |*node, index| {
            try user.admit(node.s, w.now, groups[index][number], base.never);
        }
        try w.settle();
    }
    const each = limits.operations_in_flight_max;
    const operations = try gpa.alloc(*Operation, 2 * group_count * each);
    defer gpa.free(operations);
    const count = 16; // two chunks, so that each peer starts one
    const memory = try gpa.alloc(u64, count * operations.len);
    defer gpa.free(memory);
    @memset(memory, 1);
    var next: usize = 0;
    for (w.nodes[0..2], 0..) |*node, index| {
        for (0..group_count * each) |number| {
            operations[next] = try user.begin(node.s, w.now, groups[index][number / each], .{
                .kind = .all_reduce,
                .send = @ptrCast(&memory[next * count]),
                .recv = @ptrCast(&memory[next * count]),
                .count = count,
                .dtype = .u64,
                .tag = number % each,
                .deadline = base.never,
            });
            next += 1;
        }
        try w.settle();
        if (index > 0) break;
        const link = link_to(&w.nodes[1], node);
        var ahead: usize = 0;
        for (link.early.kept.values()) |*early| ahead += @intFromBool(early.data.items.len > 0);
        try expectEqual(limits.eager_operations_max, ahead);
        try expectEqual(group_count * each, link.early.count());
    }
    for (operations[0..next], 0..) |operation, number| {
        try expectEqual(.ok, operation.status);
        try expectEqual(1, operation.op.attempts);
        user.release(w.nodes[number / (group_count * each)].s, operation);
    }
}

test "what came ahead of time is forgotten when its operation is aborted or its group left" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = link_to(node, &w.nodes[1]);
    const first = try world.sum(&w.nodes[1], world.elements, .restart);
    try w.settle();
    try expectEqual(1, link.early.count());
    user.cancel(w.nodes[1].s, w.now, first);
    try w.settle();
    try expectEqual(0, link.early.count());
    // Frames that were still in the air when the abort came, too.
    try expect(try inject(node, link.lanes[0].?, data(node.group, 0, 64)));
    try expectEqual(0, link.early.count());
    try expectEqual(0, link.early.bytes);
    user.release(w.nodes[1].s, first);
    const second = try world.sum(&w.nodes[1], world.elements, .restart);
    try w.settle();
    try expectEqual(1, link.early.count());
    user.leave(node.s, w.now, node.group);
    try expectEqual(0, link.early.count());
    try expectEqual(0, link.early.bytes);
    try w.settle();
    user.release(w.nodes[1].s, second);
}

test "where peers are dialed is forgotten when they are gone" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const stays = &w.nodes[0];
    for (1..world.peers_max - 1) |index| {
        w.kill(&w.nodes[index]);
        _ = try w.add();
        try w.settle();
        // The first safe point lets the newcomer in or closes the gap, the second closes the epoch
        // before.
        for (0..2) |_| try w.admit_all();
        try expectEqual(2, stays.group.world_size());
        try expectEqual(1, stays.s.addresses.count());
    }
    user.leave(stays.s, w.now, stays.group);
    try expectEqual(0, stays.s.addresses.count());
}

test "without memory to set a frame aside its lane ends, though it was in the middle of bytes" {
    // Goal: no use of a lane after it is freed. Method: an operation is withdrawn by bytes that
    // come in on the very lane on which it is sending, when there is no memory to keep what is
    // left. Freed memory of an arena keeps the 0xaa that free() writes over it, unless somebody
    // writes to it later.
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var failing: std.testing.FailingAllocator = .init(arena.allocator(), .{});
    var w: World = .{ .gpa = gpa };
    w.allocators[0] = failing.allocator();
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const operation = try world.sum(node, world.elements, .restart);
    const other = try world.sum(&w.nodes[1], world.elements, .restart);
    const link = link_to(node, &w.nodes[1]);
    const lane = for (0..10_000) |_| {
        try expect(try w.step());
        const lane = link.lanes[0].?;
        const sends = std.meta.eql(lane.out_owner, operation.owner()) and lane.out_payload.len > 0;
        const receives = lane.brings(operation.owner()) and lane.incoming.kind == .final;
        if (sends and receives) break lane;
    } else return error.NeverBoth;
    operation.withdraws = .cancelled;
    failing.fail_index = failing.alloc_index;
    var in: [2][]u8 = undefined;
    try expectEqual(2, driver.recv_slices(node.s, lane, &in));
    @memset(in[0], 1);
    @memset(in[1][0..10], 2); // and the next frame has begun
    driver.received(node.s, w.now, lane, in[0].len + 10);
    try expect(failing.has_induced_failure);
    failing.fail_index = std.math.maxInt(usize);
    try expectEqual(.cancelled, operation.status);
    try expectEqual(null, link.lanes[0]);
    try expect(std.mem.allEqual(u8, std.mem.asBytes(lane), 0xaa));
    // The others learn it, and the two go on once their lane is there again.
    try w.settle();
    try expectEqual(.aborted, other.status);
    user.release(node.s, operation);
    user.release(w.nodes[1].s, other);
    w.now += 10 * std.time.ns_per_s;
    for (w.nodes[0..2]) |*each| driver.tick(each.s, w.now);
    try w.settle();
    const again = try world.sum(node, world.elements, .restart);
    const other_again = try world.sum(&w.nodes[1], world.elements, .restart);
    try w.settle();
    try expectEqual(.ok, again.status);
    user.release(node.s, again);
    user.release(w.nodes[1].s, other_again);
}

test "a new attempt needs no memory: one that has voted could not be withdrawn for want of it" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 3);
    defer w.deinit();
    const node = &w.nodes[0];
    const epoch = node.group.member.current.?;
    var bytes: [2][100]u8 = .{ @splat(1), @splat(2) };
    // The root of a small broadcast votes as it calls.
    const operation = try broadcast(node, &bytes[0]);
    try w.settle();
    const attempts = operation.history.entries.items.ptr;
    w.kill(&w.nodes[2]);
    try w.settle();
    for (0..20) |_| {
        for (w.coordinator.run.peers.items) |peer| peer.rates = .{}; // it causes many
        node.s.send(.{ .link_lost = .{
            .other = .from_int(2),
            .group = node.group.id.?,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .state = .broken,
        } });
        try w.settle();
        w.now += 30 * std.time.ns_per_ms;
        w.coordinator.tick(w.now);
        try w.settle();
    }
    try expectEqual(22, epoch.attempt);
    try expectEqual(attempts, operation.history.entries.items.ptr);
    try expectEqual(2, operation.history.entries.items.len); // with three members, and with two
    const other = try broadcast(&w.nodes[1], &bytes[1]);
    try w.settle();
    try std.testing.expectEqualSlices(u8, &bytes[0], &bytes[1]);
    try expectEqual(.ok, operation.status);
    user.release(node.s, operation);
    user.release(w.nodes[1].s, other);
}

fn broadcast(node: *Node, bytes: []u8) !*Operation {
    return user.begin(node.s, node.world.now, node.group, .{
        .kind = .broadcast,
        .send = bytes.ptr,
        .recv = bytes.ptr,
        .count = bytes.len,
        .deadline = base.never,
    });
}

test "a lane that accepts nothing is closed, though what the other says on it comes in" {
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const link = link_to(node, &w.nodes[1]);
    const lane = link.lanes[0].?;
    w.pipe_of(lane).stuck = lane;
    // The other end hears nothing, but is not asked here.
    const silence_ns = node.s.settings.silence_ns;
    w.nodes[1].s.settings.silence_ns = 10 * silence_ns;
    try w.pass(silence_ns - std.time.ns_per_s);
    try expectEqual(lane, link.lanes[0]);
    try expect(w.now - lane.heard_at < std.time.ns_per_s);
    try w.pass(2 * std.time.ns_per_s);
    // The other lane is well, so the link is, and the closed one was dialed again.
    try expectEqual(.up, link.told);
    try expectEqual(2, link.open_count);
    try expect(w.now - link.lanes[0].?.heard_at < std.time.ns_per_s);
    try expectEqual(null, w.pipe_of(link.lanes[0].?).stuck);
}

test "the number of a group from before says nothing on a new connection to the coordinator" {
    // Goal: a coordinator that has started without its journal numbers groups anew; what it says of
    // one is never taken for another. Method: this peer is in two groups, and hears a coordinator
    // that gives the second the number of the first.
    var w: World = .{ .gpa = gpa };
    try form(&w, 2);
    defer w.deinit();
    const node = &w.nodes[0];
    const first = node.group;
    const second = try user.join(node.s, w.now, "h", 2);
    try w.settle();
    try expectEqual(0, first.id.?);
    try expectEqual(1, second.id.?);
    const settings = node.s.settings;
    w.coordinator.closed(w.now, node.connection.?);
    node.connection = null;
    control.closed(node.s, w.now);
    control.opened(node.s, w.now);
    const welcome = wire.hello.encode_answer(.welcome);
    try hear_bytes(node, &welcome);
    try hear(node, .{ .welcome = settings });
    try hear(node, .{ .expelled = .{ .group = 0, .why = .of("of another group") } });
    try expectEqual(.joined, first.state);
    try hear(node, .{ .joined = .{ .name = .of("h"), .group = 0 } });
    try expectEqual(.left, first.state);
    try expectEqual(.joined, second.state);
    try expectEqual(0, second.id.?);
    try hear(node, .{ .expelled = .{ .group = 0, .why = .of("it is another run") } });
    try expectEqual(.left, second.state);
}

test "a member whose place another process has taken is out, says so, and a newcomer is not" {
    for ([_]wire.hello.Verdict{ .refused, .held, .full }) |verdict| {
        var w: World = .{ .gpa = gpa };
        try form(&w, 2);
        defer w.deinit();
        const node = &w.nodes[0];
        const newcomer = try user.join(node.s, w.now, "h", 2);
        const operation = try world.sum(node, world.elements, .restart);
        w.coordinator.closed(w.now, node.connection.?);
        node.connection = null;
        control.closed(node.s, w.now);
        control.opened(node.s, w.now);
        try hear_bytes(node, &wire.hello.encode_answer(verdict));
        const is_out = verdict != .full; // the run has no room now, which may pass
        try expectEqual(is_out, node.group.state == .left);
        try expect(newcomer.state != .left);
        const why = node.group.why_removed();
        try expectEqual(is_out, std.mem.indexOf(u8, why, "another process") != null);
        if (is_out) try expectEqual(.expelled, operation.status);
        try expectEqual(.away, node.s.control_state);
    }
}

pub fn hear(node: *Node, message: wire.control.Message) !void {
    var bytes: [4096]u8 = undefined;
    try hear_bytes(node, try wire.control.encode(message, &bytes));
}

fn hear_bytes(node: *Node, bytes: []const u8) !void {
    const room = try node.s.control.recv_slice();
    @memcpy(room[0..bytes.len], bytes);
    node.s.control.received(bytes.len);
    control.received(node.s, node.world.now);
}
