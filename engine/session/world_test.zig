//! A world in a test: one coordinator and a few sessions over perfect pipes. It shows how the
//! layers are driven, and checks the plain paths: form a group, sum, broadcast, barrier, lose a
//! peer, join, mismatch, give up. Liars and want of memory: hostile_test.zig. Faults, timing and
//! everything else: tests/sim.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const wire = @import("wire");
const protocol = @import("protocol");
const session = @import("root.zig");
const control = session.control;
const driver = session.driver;
const user = session.user;
const Session = session.Session;
const Lane = session.Lane;
const Group = session.Group;
const Operation = session.Operation;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

pub const peers_max = 6;
/// One more than have links to all others.
pub const nodes_max = base.limits.full_mesh_max + 1;

const Pipe = struct {
    a: *Lane,
    b: *Lane,
    node_a: *Node,
    node_b: *Node,
    /// Nothing leaves on this lane.
    stuck: ?*Lane = null,
};

pub const Node = struct {
    world: *World,
    index: usize,
    s: *Session,
    group: *Group = undefined,
    connection: ?*protocol.Connection = null,
    dials_control: bool = false,
    ready: bool = false,
    optimized: u32 = 0,
    admitted: u32 = 0,
    admit_failure: ?session.Status = null,
    /// Why it is not in a group that it asked for, or not any more.
    failure: ?session.Status = null,
    /// The words of the coordinator when it refused a join.
    refusal: [200]u8 = undefined,
    refusal_bytes: usize = 0,
    finished: u32 = 0,
    /// So often was it told that some lane may have something to send.
    wakes: u32 = 0,
    alive: bool = true,
};

pub const Dial = struct { node: *Node, lane: *Lane, to: usize };

pub const World = struct {
    gpa: std.mem.Allocator,
    /// For a session, where it is not `gpa`.
    allocators: [nodes_max]?std.mem.Allocator = @splat(null),
    coordinator: *protocol.Coordinator = undefined,
    nodes: [nodes_max]Node = undefined,
    count: usize = 0,
    pipes: std.ArrayList(Pipe) = .empty,
    dials: std.ArrayList(Dial) = .empty,
    now: u64 = 1000,
    log_lines: u32 = 0,
    /// Those of peers at warning level, and worse.
    warnings: u32 = 0,
    /// The system says this of every lane.
    sample: ?session.Sample = null,
    /// The last line of a peer's log.
    said: [300]u8 = undefined,
    said_bytes: usize = 0,
    /// No connection between these two can be made; so many were tried.
    apart: ?[2]usize = null,
    /// The first cannot dial the second.
    walled: ?[2]usize = null,
    dials_in_vain: u32 = 0,
    /// So many has each link; 0: as the links like.
    lanes: u8 = 2,
    /// Room for sums of all operations of a peer.
    windows_bytes: u64 = base.limits.windows_bytes_default,
    /// Nothing moves on lanes that are open at both ends.
    holds_open: bool = false,
    stall_warning_ns: u64 = 10 * std.time.ns_per_s,
    fragment_bytes_min: u32 = base.limits.fragment_bytes_min,

    pub fn init(w: *World, count: usize, initial: u32) !void {
        w.coordinator = try protocol.Coordinator.create(w.gpa, .{
            .run_id = @splat(1),
            .lanes = w.lanes,
            .initial_world_size = initial,
            .chunk_bytes = 64,
            .window_bytes = 512,
            .windows_bytes = w.windows_bytes,
            .stall_warning_ns = w.stall_warning_ns,
        }, .{ .ctx = w, .vtable = &.{
            .close = coordinator_close,
            .wake = coordinator_wake,
            .find = coordinator_find,
            .log = coordinator_log,
        } }, 0);
        w.coordinator.tick(w.now);
        for (0..count) |_| _ = try w.add();
    }

    pub fn add(w: *World) !*Node {
        const node = &w.nodes[w.count];
        node.* = .{ .world = w, .index = w.count, .s = undefined };
        w.count += 1;
        node.s = try driver.create(w.allocators[node.index] orelse w.gpa, .{
            .peer_id = .from_int(node.index + 1),
            .run_id = @splat(1),
            .seed = node.index,
            .address_key = @splat(@intCast(node.index)),
            .label = .shown(&.{ 'n', '0' + @as(u8, @intCast(node.index)) }),
            .fragment_bytes_min = w.fragment_bytes_min,
            .host = .{ .ctx = node, .vtable = &host },
        });
        var address: [8]u8 = undefined;
        try driver.set_address(node.s, try std.fmt.bufPrint(&address, "n{d}:1", .{node.index}));
        w.connect(node);
        node.group = try user.join(node.s, w.now, "g", 0);
        return node;
    }

    fn connect(w: *World, node: *Node) void {
        node.dials_control = false;
        node.connection = w.coordinator.accept(w.now, @splat(0)).?;
        node.connection.?.driver = node.index;
        control.opened(node.s, w.now);
    }

    pub fn deinit(w: *World) void {
        for (w.nodes[0..w.count]) |*node| if (node.alive) driver.destroy(node.s);
        w.coordinator.destroy();
        w.pipes.deinit(w.gpa);
        w.dials.deinit(w.gpa);
    }

    /// Moves bytes until nothing moves, and no round is due soon.
    pub fn settle(w: *World) !void {
        for (0..100_000) |_| if (!try w.step() and !w.begin_round()) return;
        return error.Endless;
    }

    fn begin_round(w: *World) bool {
        for (w.coordinator.run.groups.items) |group| {
            const due = group.round_due();
            if (group.phase != .idle or due <= w.now) continue;
            w.now = due;
            w.coordinator.tick(due);
            return true;
        }
        return false;
    }

    pub fn step(w: *World) !bool {
        var moved = false;
        w.now += 1;
        for (w.nodes[0..w.count]) |*node| {
            if (!node.alive) continue;
            for (node.s.operations.items) |operation| if (operation.has_work()) {
                moved = true;
                break driver.tick(node.s, w.now);
            };
            if (node.dials_control) w.connect(node);
            const connection = node.connection orelse continue;
            if (try pump(&node.s.control, &connection.stream)) {
                moved = true;
                w.coordinator.received(w.now, connection);
            }
            const again = node.connection orelse continue;
            if (try pump(&again.stream, &node.s.control)) {
                moved = true;
                control.received(node.s, w.now);
            }
        }
        if (w.dials.items.len > 0) moved = true;
        try w.connect_dials();
        var index: usize = 0;
        while (index < w.pipes.items.len) : (index += 1) {
            const pipe = w.pipes.items[index];
            if (w.holds_open and pipe.a.state == .open and pipe.b.state == .open) continue;
            const a_moves = pipe.stuck != pipe.a;
            if (a_moves and w.move(pipe.node_a, pipe.a, pipe.node_b, pipe.b)) moved = true;
            if (index >= w.pipes.items.len or w.pipes.items[index].a != pipe.a) continue;
            const b_moves = pipe.stuck != pipe.b;
            if (b_moves and w.move(pipe.node_b, pipe.b, pipe.node_a, pipe.a)) moved = true;
        }
        return moved;
    }

    /// The dials that were begun come to something, or to nothing, the last one first.
    pub fn connect_dials(w: *World) !void {
        while (w.dials.pop()) |dial| {
            const to = &w.nodes[dial.to];
            const is_walled = if (w.walled) |wall|
                wall[0] == dial.node.index and wall[1] == dial.to
            else
                false;
            const can_be = to.alive and !w.are_apart(dial.node.index, dial.to) and !is_walled;
            w.dials_in_vain += @intFromBool(!can_be);
            const lane: ?*Lane = if (can_be) driver.accept(to.s, w.now, @splat(0)) else null;
            if (lane) |accepted| {
                try w.pipes.append(w.gpa, .{
                    .a = dial.lane,
                    .b = accepted,
                    .node_a = dial.node,
                    .node_b = to,
                });
                driver.opened(dial.node.s, w.now, dial.lane);
            } else driver.failed(dial.node.s, w.now, dial.lane, .refused);
        }
    }

    fn are_apart(w: *const World, a: usize, b: usize) bool {
        const pair = w.apart orelse return false;
        return std.mem.eql(usize, &pair, &.{ a, b }) or std.mem.eql(usize, &pair, &.{ b, a });
    }

    fn pump(from: *wire.Stream, to: *wire.Stream) !bool {
        const bytes = from.send_slice();
        if (bytes.len == 0) return false;
        const room = try to.recv_slice();
        const count = @min(bytes.len, room.len);
        @memcpy(room[0..count], bytes[0..count]);
        to.received(count);
        from.sent(count);
        return true;
    }

    pub fn move(w: *World, from: *Node, a: *Lane, to: *Node, b: *Lane) bool {
        var out: [2][]const u8 = undefined;
        const wakes = from.wakes;
        // One that lets others go first has woken itself.
        if (driver.send_slices(from.s, w.now, a, &out) == 0) return from.wakes != wakes;
        var in: [2][]u8 = undefined;
        _ = driver.recv_slices(to.s, b, &in);
        const count = @min(out[0].len, in[0].len);
        @memcpy(in[0][0..count], out[0][0..count]);
        // The last words of a lane arrive, though it ends with them.
        driver.received(to.s, w.now, b, count);
        for (w.pipes.items) |*pipe| if (pipe.a == a or pipe.b == a) {
            driver.sent(from.s, w.now, a, count);
            break;
        };
        return true;
    }

    pub fn node_of(w: *World, id: base.PeerId) *Node {
        for (w.nodes[0..w.count]) |*node| if (node.s.self.eql(id)) return node;
        unreachable;
    }

    pub fn pipe_of(w: *World, lane: *const Lane) *Pipe {
        for (w.pipes.items) |*pipe| if (pipe.a == lane or pipe.b == lane) return pipe;
        unreachable;
    }

    /// All lanes of a link break, for both ends, and neither dials before `link.retry_at` is set.
    pub fn cut(w: *World, link: *session.Link) void {
        for (link.lanes) |place| if (place) |lane| {
            const pipe = w.pipe_of(lane).*;
            w.break_lane(lane);
            const ends = [_]*Node{ pipe.node_a, pipe.node_b };
            for (ends, 0..) |node, index| {
                node.s.link_to(ends[1 - index].s.self).?.retry_at = base.never;
            }
        };
    }

    pub fn break_lane(w: *World, lane: *const Lane) void {
        const pipe = w.pipe_of(lane).*;
        _ = w.pipes.orderedRemove(w.pipe_of(lane) - w.pipes.items.ptr);
        driver.closed(pipe.node_a.s, w.now, pipe.a);
        driver.closed(pipe.node_b.s, w.now, pipe.b);
    }

    /// Time passes for everybody.
    pub fn pass(w: *World, duration_ns: u64) !void {
        const until = w.now + duration_ns;
        while (w.now < until) {
            w.now += std.time.ns_per_s / 4;
            for (w.nodes[0..w.count]) |*node| if (node.alive) driver.tick(node.s, w.now);
            w.coordinator.tick(w.now);
            try w.settle();
        }
    }

    pub fn kill(w: *World, victim: *Node) void {
        victim.alive = false;
        var index = w.pipes.items.len;
        while (index > 0) {
            index -= 1;
            if (index >= w.pipes.items.len) continue;
            const pipe = w.pipes.items[index];
            if (pipe.node_a != victim and pipe.node_b != victim) continue;
            _ = w.pipes.orderedRemove(index);
            if (pipe.node_a == victim)
                driver.closed(pipe.node_b.s, w.now, pipe.b)
            else
                driver.closed(pipe.node_a.s, w.now, pipe.a);
        }
        if (victim.connection) |connection| w.coordinator.closed(w.now, connection);
        victim.connection = null;
        driver.destroy(victim.s);
    }

    fn coordinator_close(ctx: *anyopaque, connection: *protocol.Connection) void {
        const w: *World = @ptrCast(@alignCast(ctx));
        w.nodes[connection.driver].connection = null;
    }
    fn coordinator_wake(_: *anyopaque, _: *protocol.Connection) void {}
    fn coordinator_find(
        _: *anyopaque,
        question: *const protocol.addresses.Question,
    ) protocol.addresses.Reply {
        return .{ .answer = .{ .found = question.address } };
    }
    fn coordinator_log(ctx: *anyopaque, _: protocol.LogLevel, _: []const u8) void {
        const w: *World = @ptrCast(@alignCast(ctx));
        w.log_lines += 1;
    }

    const host: session.Host.VTable = .{
        .dial = dial_lane,
        .lane_close = lane_close,
        .lane_wake = lane_wake,
        .lane_sample = lane_sample,
        .lane_pace = lane_pace,
        .control_dial = control_dial,
        .control_close = control_close,
        .group_event = group_event,
        .operation_finished = operation_finished,
        .operation_resolved = operation_resolved,
        .fault_point = fault_point,
        .log = log,
    };

    fn node_from(ctx: *anyopaque) *Node {
        return @ptrCast(@alignCast(ctx));
    }
    fn dial_lane(ctx: *anyopaque, lane: *Lane, address: []const u8) void {
        const node = node_from(ctx);
        const name = (base.Endpoint.parse_told(address) catch unreachable).host;
        const to = std.fmt.parseInt(usize, name[1..], 10) catch unreachable;
        node.world.dials.append(node.world.gpa, .{ .node = node, .lane = lane, .to = to }) catch
            unreachable;
    }
    fn lane_close(ctx: *anyopaque, lane: *Lane) void {
        const w = node_from(ctx).world;
        for (w.dials.items, 0..) |dial, index| if (dial.lane == lane) {
            _ = w.dials.orderedRemove(index);
            return;
        };
        for (w.pipes.items, 0..) |pipe, index| {
            if (pipe.a != lane and pipe.b != lane) continue;
            _ = w.pipes.orderedRemove(index);
            if (pipe.a == lane) {
                driver.closed(pipe.node_b.s, w.now, pipe.b);
            } else driver.closed(pipe.node_a.s, w.now, pipe.a);
            return;
        }
    }
    fn lane_wake(ctx: *anyopaque, _: *Lane) void {
        node_from(ctx).wakes += 1;
    }
    fn lane_sample(ctx: *anyopaque, _: *Lane) ?session.Sample {
        return node_from(ctx).world.sample;
    }
    fn lane_pace(_: *anyopaque, _: *Lane, _: session.Pace) void {}
    fn control_dial(ctx: *anyopaque) void {
        node_from(ctx).dials_control = true;
    }
    fn control_close(ctx: *anyopaque) void {
        const node = node_from(ctx);
        if (node.connection) |connection| node.world.coordinator.closed(node.world.now, connection);
        node.connection = null;
    }
    fn group_event(ctx: *anyopaque, _: *Group, event: session.GroupEvent) void {
        const node = node_from(ctx);
        switch (event) {
            .ready => node.ready = true,
            .admitted => node.admitted += 1,
            .admit_failed => |status| node.admit_failure = status,
            .refused => |why| {
                node.refusal_bytes = @min(why.len, node.refusal.len);
                @memcpy(node.refusal[0..node.refusal_bytes], why[0..node.refusal_bytes]);
            },
            .join_failed => |body| node.failure = body.status,
            .optimized => node.optimized += 1,
            .gone => |status| node.failure = status,
        }
    }
    fn operation_finished(ctx: *anyopaque, _: *Operation) void {
        node_from(ctx).finished += 1;
    }
    fn operation_resolved(_: *anyopaque, _: *Operation) void {}
    fn fault_point(_: *anyopaque, _: session.FaultPoint, _: u64, _: u64, _: u64) void {}
    fn log(ctx: *anyopaque, level: session.LogLevel, message: []const u8) void {
        const w = node_from(ctx).world;
        w.log_lines += 1;
        w.warnings += @intFromBool(level == .warning or level == .err);
        w.said_bytes = @min(message.len, w.said.len);
        @memcpy(w.said[0..w.said_bytes], message[0..w.said_bytes]);
    }

    pub fn admit_all(w: *World) !void {
        // Newcomers first: the others do not wait for one whose user has not come.
        var came: [nodes_max]bool = @splat(false);
        for ([_]bool{ true, false }) |newcomers| {
            for (w.nodes[0..w.count]) |*node| {
                if (!node.alive or !node.ready or came[node.index]) continue;
                if ((node.group.epoch() == 0) != newcomers) continue;
                came[node.index] = true;
                try user.admit(node.s, w.now, node.group, base.never);
            }
            try w.settle();
        }
    }
};

pub const elements = 100;
var buffers: [peers_max][elements]u64 = undefined;

pub fn sum(node: *Node, count: u64, recovery: wire.control.Recovery) !*Operation {
    for (&buffers[node.index], 0..) |*value, index| {
        value.* = (index % 7 + 1) << @intCast(4 * node.index);
    }
    return user.begin(node.s, node.world.now, node.group, .{
        .kind = .all_reduce,
        .send = @ptrCast(&buffers[node.index]),
        .recv = @ptrCast(&buffers[node.index]),
        .count = count,
        .dtype = .u64,
        .recovery = recovery,
        .deadline = base.never,
    });
}

pub fn check_sum(operation: *Operation) !void {
    try expectEqual(.ok, operation.status);
    const own = operation.work.movement.board.ledger.roles.rank;
    const result: [*]const u64 = @ptrCast(&buffers[own]);
    var it = operation.ranges();
    while (it.next()) |range| for (range.begin..range.end) |index| {
        var expected: u64 = 0;
        for (0..operation.ids.len) |rank| if (range.contributors.has(rank)) {
            const digit = operation.ids[rank].bytes[15] - 1;
            expected += (index % 7 + 1) << @intCast(4 * @as(u32, digit));
        };
        try expectEqual(expected, result[index]);
    };
}

test "a group forms, sums, and goes on without a peer that dies inside the operation" {
    for (1..peers_max) |count| for (0..count) |victim| {
        var w: World = .{ .gpa = std.testing.allocator };
        try w.init(count, @intCast(count));
        defer w.deinit();
        try w.settle();
        try w.admit_all();
        for (w.nodes[0..count]) |*node| {
            try expectEqual(1, node.admitted);
            try expectEqual(count, node.group.world_size());
        }
        var operations: [peers_max]*Operation = undefined;
        for (w.nodes[0..count], 0..) |*node, index| {
            operations[index] = try sum(node, elements, .resume_chunks);
        }
        try w.settle();
        for (w.nodes[0..count], 0..) |*node, index| {
            try check_sum(operations[index]);
            user.release(node.s, operations[index]);
        }
        if (count == 1) continue;
        for (w.nodes[0..count], 0..) |*node, index| {
            operations[index] = try sum(node, elements, .resume_chunks);
        }
        for (0..6) |_| _ = try w.step();
        w.kill(&w.nodes[victim]);
        try w.settle();
        for (w.nodes[0..count], 0..) |*node, index| {
            if (!node.alive) continue;
            try check_sum(operations[index]);
            user.release(node.s, operations[index]);
        }
        // At the next safe point the ranks are dense again, and all agree on who left.
        try w.admit_all();
        for (w.nodes[0..count]) |*node| {
            if (!node.alive) continue;
            try expectEqual(count - 1, node.group.world_size());
            try expectEqual(1, node.group.left().len);
            try expect(node.group.left()[0].eql(.from_int(victim + 1)));
        }
    };
}

test "a peer says whether its user waits to enter, and a group begins when all do" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    const newcomers = &w.coordinator.run.groups.items[0].newcomers;
    for (newcomers.items) |*newcomer| try expect(newcomer.prepared and !newcomer.entering);
    try user.admit(w.nodes[0].s, w.now, w.nodes[0].group, w.now + std.time.ns_per_s);
    try w.settle();
    var waiting: usize = 0;
    for (newcomers.items) |*newcomer| waiting += @intFromBool(newcomer.entering);
    try expectEqual(1, waiting);
    try expectEqual(0, w.nodes[0].admitted);
    try user.admit(w.nodes[1].s, w.now, w.nodes[1].group, w.now + std.time.ns_per_s);
    try w.settle();
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.admitted);
}

test "time does not go back when a call began in the midst of a round of the engine" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    // The round read its clock before the user's thread did, and goes on with that.
    w.now += std.time.ns_per_s;
    const early = try sum(&w.nodes[0], elements, .restart);
    w.now -= std.time.ns_per_s;
    const late = try sum(&w.nodes[1], elements, .restart);
    try w.settle();
    for ([_]*Operation{ early, late }, w.nodes[0..2]) |operation, *node| {
        try expectEqual(.ok, operation.status);
        try expect(operation.finished_at >= operation.started_at);
        user.release(node.s, operation);
    }
}

test "newcomers are pending until this member has passed the safe point with them" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    for (w.nodes[0..2]) |*node| try expectEqual(0, node.group.pending());
    _ = try w.add();
    try w.settle();
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.group.pending());
    // The epoch begins for the newcomer, and then for one member before the other.
    try user.admit(w.nodes[2].s, w.now, w.nodes[2].group, base.never);
    try w.settle();
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.group.pending());
    try user.admit(w.nodes[0].s, w.now, w.nodes[0].group, base.never);
    try w.settle();
    try expectEqual(0, w.nodes[0].group.pending());
    try expectEqual(1, w.nodes[1].group.pending());
    try user.admit(w.nodes[1].s, w.now, w.nodes[1].group, base.never);
    try w.settle();
    try expectEqual(0, w.nodes[1].group.pending());
    for (w.nodes[0..3]) |*node| try expectEqual(3, node.group.world_size());
}

test "newcomers that come after a loss are pending until this member has passed the safe point" {
    // A program that passes safe points only where somebody is pending must let them in.
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(3, 3);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    w.kill(&w.nodes[2]);
    try w.pass(3 * std.time.ns_per_s);
    for (w.nodes[0..2]) |*node| try expectEqual(0, node.group.pending());
    const newcomer = try w.add();
    try w.pass(std.time.ns_per_s);
    for (w.nodes[0..2]) |*node| try expectEqual(1, node.group.pending());
    try user.admit(w.nodes[0].s, w.now, w.nodes[0].group, base.never);
    try w.pass(std.time.ns_per_s);
    try expectEqual(0, w.nodes[0].group.pending());
    try expectEqual(1, w.nodes[1].group.pending());
    try user.admit(w.nodes[1].s, w.now, w.nodes[1].group, base.never);
    try w.pass(std.time.ns_per_s);
    try user.admit(newcomer.s, w.now, newcomer.group, base.never);
    try w.pass(std.time.ns_per_s);
    for (w.nodes[0..2]) |*node| {
        try expectEqual(1, node.group.pending());
        try user.admit(node.s, w.now, node.group, base.never);
        try w.settle();
        try expectEqual(0, node.group.pending());
        try expectEqual(3, node.group.world_size());
    }
}

test "a newcomer enters at the safe point, and a mismatch is named on every peer" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    _ = try w.add();
    try w.settle();
    try w.admit_all();
    for (w.nodes[0..3]) |*node| {
        try expectEqual(0, node.group.pending());
        try expectEqual(3, node.group.world_size());
        try expectEqual(2, node.group.epoch());
        try expectEqual(1, node.group.joined().len);
        try expect(node.group.joined()[0].eql(.from_int(3)));
    }
    var operations: [3]*Operation = undefined;
    for (w.nodes[0..3], 0..) |*node, index| {
        operations[index] = try sum(node, if (index == 1) 50 else elements, .restart);
    }
    try w.settle();
    for (w.nodes[0..3], 0..) |*node, index| {
        try expectEqual(.mismatch, operations[index].status);
        try expect(operations[index].failure.descriptor != null);
        user.release(node.s, operations[index]);
    }
}

test "one that gives up aborts for all, and a late caller is told" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(3, 3);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const first = try sum(&w.nodes[0], elements, .restart);
    const second = try sum(&w.nodes[1], elements, .restart);
    try w.settle();
    user.cancel(w.nodes[0].s, w.now, first);
    try expectEqual(.cancelled, first.status);
    try w.settle();
    try expectEqual(.aborted, second.status);
    const third = try sum(&w.nodes[2], elements, .restart);
    try expectEqual(.aborted, third.status);
    user.release(w.nodes[0].s, first);
    user.release(w.nodes[1].s, second);
    user.release(w.nodes[2].s, third);
}

/// Nobody waits for the others to call.
fn expect_aborted_at_once(w: *World, recovery: wire.control.Recovery) !void {
    for ([_]usize{ 0, 2 }) |index| {
        const later = try sum(&w.nodes[index], elements, recovery);
        try expectEqual(.aborted, later.status);
        try expectEqual(.peer_lost, later.failure.reason.?);
        try std.testing.expect(later.failure.peer.eql(.from_int(2)));
        try w.settle();
        user.release(w.nodes[index].s, later);
    }
}

test "a call that is deserted costs the others what a death does, and this peer its place" {
    for ([_]wire.control.Recovery{ .resume_chunks, .restart, .raise, .complete }) |recovery| {
        var w: World = .{ .gpa = std.testing.allocator };
        try w.init(3, 3);
        defer w.deinit();
        try w.settle();
        try w.admit_all();
        var operations: [3]*Operation = undefined;
        for (w.nodes[0..3], &operations) |*node, *operation| {
            operation.* = try sum(node, elements, recovery);
        }
        for (0..6) |_| _ = try w.step();
        const leaver = &w.nodes[1];
        user.desert(leaver.s, w.now, operations[1]);
        try expectEqual(.cancelled, operations[1].status);
        try w.settle();
        for ([_]usize{ 0, 2 }) |index| {
            if (recovery == .raise or recovery == .complete) {
                try expectEqual(.aborted, operations[index].status);
            } else try check_sum(operations[index]);
        }
        if (recovery == .complete) try expect_aborted_at_once(&w, recovery);
        try std.testing.expectError(error.Left, sum(leaver, elements, recovery));
        for (w.nodes[0..3], operations) |*node, operation| user.release(node.s, operation);
        // The others pass the safe point without it; it may come again.
        user.release_group(leaver.s, leaver.group);
        leaver.ready = false;
        leaver.group = try user.join(leaver.s, w.now, "g", 0);
        for ([_]usize{ 2, 3 }) |size| {
            try w.admit_all();
            try expectEqual(size, w.nodes[0].group.world_size());
        }
        for (w.nodes[0..3]) |*node| try expectEqual(3, node.group.world_size());
    }
}

test "in a world of one a call is withdrawn alone" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(1, 1);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const node = &w.nodes[0];
    const lonely = try sum(node, elements, .resume_chunks);
    user.desert(node.s, w.now, lonely);
    try w.settle();
    user.release(node.s, lonely);
    const next = try sum(node, elements, .resume_chunks);
    try w.settle();
    try check_sum(next);
    user.release(node.s, next);
}

test "a residual that an operation in flight uses is no buffer of another call" {
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const node = &w.nodes[0];
    var values: [5][elements]f32 = @splat(@splat(1));
    var bytes: [5][*]u8 = undefined;
    for (&bytes, &values) |*at, *of| at.* = @ptrCast(of);
    var call: session.Call = .{
        .kind = .all_reduce,
        .send = bytes[0],
        .recv = bytes[0],
        .count = elements,
        .dtype = .f32,
        .codec = .of(.int8),
        .residual = .{ .in = bytes[1], .out = bytes[2] },
        .deadline = base.never,
    };
    const operation = try user.begin(node.s, w.now, node.group, call);
    call.tag = 1;
    for ([_]?kernels.Residual{
        null,
        .{ .in = bytes[1], .out = bytes[2] },
        .{ .in = bytes[2], .out = bytes[3] },
        .{ .in = bytes[3], .out = bytes[1] },
    }, [_]usize{ 1, 4, 4, 4 }) |residual, recv| {
        call.residual = residual;
        call.send = bytes[recv];
        call.recv = bytes[recv];
        const begun = user.begin(node.s, w.now, node.group, call);
        try std.testing.expectError(error.BufferInUse, begun);
    }
    user.cancel(node.s, w.now, operation);
    user.release(node.s, operation);
    // Nor is it one of its own call.
    for ([_]kernels.Residual{
        .{ .in = bytes[1], .out = bytes[1] },
        .{ .in = bytes[1], .out = bytes[4] },
    }) |residual| {
        call.residual = residual;
        const refused = user.begin(node.s, w.now, node.group, call);
        try std.testing.expectError(error.ResidualOverlaps, refused);
    }
    call.residual = .{ .in = bytes[4], .out = bytes[2] };
    const written = user.begin(node.s, w.now, node.group, call);
    try std.testing.expectError(error.ResidualInWritten, written);
    call.residual = .{ .in = bytes[1], .out = bytes[2] };
    const second = try user.begin(node.s, w.now, node.group, call);
    user.cancel(node.s, w.now, second);
    user.release(node.s, second);
}

test "in a world too large for links to all, a call for the direct schedule takes the ring" {
    // Goal: whatever a call says, nothing is sent where no link is. Method: the first attempt, and
    // the one after a loss that leaves few enough.
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(nodes_max, nodes_max);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    var values: [nodes_max][elements]u32 = @splat(@splat(1));
    for ([_]u32{ nodes_max, nodes_max - 1 }) |expected| {
        var operations: [nodes_max]?*Operation = @splat(null);
        for (w.nodes[0..nodes_max], &values, &operations) |*node, *own, *operation| {
            if (!node.alive) continue;
            own.* = @splat(1);
            operation.* = try user.begin(node.s, w.now, node.group, .{
                .kind = .all_reduce,
                .send = @ptrCast(own),
                .recv = @ptrCast(own),
                .count = elements,
                .dtype = .u32,
                .recovery = .restart,
                .plan = .direct,
                .deadline = base.never,
            });
        }
        if (expected < nodes_max) w.kill(&w.nodes[7]);
        try w.settle();
        for (w.nodes[0..nodes_max], &values, operations) |*node, *own, operation| {
            if (!node.alive) continue;
            try expectEqual(.ok, operation.?.status);
            for (own) |value| try expectEqual(expected, value);
            user.release(node.s, operation.?);
        }
    }
}

const Part = session.Call.Part;

/// One part of a message of `elements` numbers, all of them what the sender's rank is.
pub fn exchange(node: *Node, part: Part, partner: u32, values: *[elements]u64) !*Operation {
    if (part == .send) values.* = @splat(node.group.rank());
    return user.begin(node.s, node.world.now, node.group, .{
        .kind = .send_recv,
        .part = part,
        .partner_rank = partner,
        .send = if (part == .send) @ptrCast(values) else null,
        .recv = if (part == .recv) @ptrCast(values) else null,
        .count = elements,
        .dtype = .u64,
        .recovery = .restart,
        .deadline = base.never,
    });
}

pub fn node_of_rank(w: *World, rank: u32) *Node {
    for (w.nodes[0..w.count]) |*node| if (node.group.rank() == rank) return node;
    unreachable;
}

test "in a world too large for links to all, a message has a link of its own while it needs it" {
    // Goal: whoever calls first, whoever dials, a message gets through, and nobody takes a link
    // that waits for the other's call to be broken. Method: both ways, with minutes between the
    // calls; then the link is let go, and a second message makes it anew.
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(nodes_max, nodes_max);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const a = node_of_rank(&w, 2);
    const b = node_of_rank(&w, 20);
    var given: [elements]u64 = undefined;
    var taken: [elements]u64 = undefined;
    for ([_]*Node{ a, b, a, b }, [_]*Node{ b, a, b, a }, 0..) |from, to, turn| {
        try expectEqual(null, a.s.link_to(b.s.self));
        taken = @splat(99);
        const order: [2]Part = if (turn < 2) .{ .recv, .send } else .{ .send, .recv };
        var operations: [2]*Operation = undefined;
        for (order, &operations) |part, *operation| {
            try w.pass(60 * std.time.ns_per_s);
            operation.* = switch (part) {
                .send => try exchange(from, .send, to.group.rank(), &given),
                .recv => try exchange(to, .recv, from.group.rank(), &taken),
            };
        }
        try expect(!operations[0].finished);
        try w.settle();
        for (taken) |value| try expectEqual(from.group.rank(), value);
        for (operations, order) |operation, part| {
            try expectEqual(.ok, operation.status);
            // Nothing was taken for a broken link meanwhile.
            try expectEqual(1, operation.op.attempts);
            user.release((if (part == .send) from else to).s, operation);
        }
        try w.pass(2 * Session.linger_ns);
    }
    try expectEqual(1, a.group.attempt());
    for (w.nodes[0..nodes_max]) |*node| try expectEqual(nodes_max, node.group.alive());
}

test "what others still need of a call in doubt goes on once all of it is set aside" {
    // Goal: a driver whose lanes found nothing to send while a large array was given back learns
    // that they may have something again. Method: a peer gives up once it has voted.
    var w: World = .{ .gpa = std.testing.allocator };
    try w.init(2, 2);
    defer w.deinit();
    try w.settle();
    try w.admit_all();
    const count = 3 * base.limits.MiB / @sizeOf(u64);
    var operations: [2]*Operation = undefined;
    var arrays: [2][]u64 = undefined;
    for (&arrays, &operations, w.nodes[0..2], 1..) |*array, *operation, *node, value| {
        array.* = try w.gpa.alloc(u64, count);
        @memset(array.*, value);
        operation.* = try user.begin(node.s, w.now, node.group, .{
            .kind = .all_reduce,
            .send = @ptrCast(array.ptr),
            .recv = @ptrCast(array.ptr),
            .count = count,
            .dtype = .u64,
            .deadline = w.now + 1000 * std.time.ns_per_s,
        });
    }
    defer for (arrays) |array| w.gpa.free(array);
    const node = &w.nodes[0];
    while (operations[0].op.state != .voted) _ = try w.step();
    user.cancel(node.s, w.now, operations[0]);
    try expect(!operations[0].finished); // there is more of it than one step gives back
    node.wakes = 0;
    while (!operations[0].finished) driver.tick(node.s, w.now);
    try expect(node.wakes > 0);
    try w.settle();
    try expectEqual(session.Status.ok, operations[1].status);
    for (arrays[1]) |value| try expectEqual(3, value);
    for (arrays[0]) |value| try expectEqual(1, value);
    for (operations, w.nodes[0..2]) |operation, *owner| user.release(owner.s, operation);
}
