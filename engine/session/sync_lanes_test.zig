//! Syncs, and fetches in the background, whose lanes break while others of their links stay
//! (dial.zig): at every moment, and whichever side notices first. Other syncs: sync_test.zig;
//! collectives whose lanes break: queue_test.zig.

const std = @import("std");
const wire = @import("wire");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const sync_file = @import("sync.zig");
const sync_test = @import("sync_test.zig");
const world_test = @import("world_test.zig");
const Case = sync_test.Case;
const Lane = session.Lane;
const Node = world_test.Node;
const World = world_test.World;
const deadline_never = sync_test.deadline_never;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const lanes = session.lanes;

/// A lane that is broken, as its two ends know it.
pub const Broken = struct {
    nodes: [2]*Node,
    ends: [2]*Lane,
    number: usize,

    /// Lane `number` between the two carries nothing any more. `node` is the first end.
    pub fn init(w: *World, node: *Node, other: *Node, number: usize) Broken {
        const lane = hostile_test.link_to(node, other).lanes[number].?;
        const place = w.pipe_of(lane);
        const pipe = place.*;
        _ = w.pipes.orderedRemove(place - w.pipes.items.ptr);
        if (pipe.a == lane)
            return .{ .nodes = .{ node, other }, .ends = .{ pipe.a, pipe.b }, .number = number };
        return .{ .nodes = .{ node, other }, .ends = .{ pipe.b, pipe.a }, .number = number };
    }

    /// Else this end has given it up for one that the other end has dialed in its place.
    fn is_there(broken: *const Broken, end: usize) bool {
        const link = hostile_test.link_to(broken.nodes[end], broken.nodes[1 - end]);
        return link.lanes[broken.number] == broken.ends[end];
    }

    pub fn notice(broken: *const Broken, w: *World, end: usize) void {
        if (!broken.is_there(end)) return;
        lanes.closed(broken.nodes[end].s, w.now, broken.ends[end]);
    }

    /// The system takes what this end sends, and nothing arrives.
    fn swallow(broken: *const Broken, w: *World, end: usize) void {
        if (!broken.is_there(end)) return;
        const s = broken.nodes[end].s;
        var slices: [2][]const u8 = undefined;
        const count = lanes.send_slices(s, w.now, broken.ends[end], &slices);
        for (slices[0..count]) |slice| lanes.sent(s, w.now, broken.ends[end], slice.len);
    }

    /// The coordinator begins another attempt, if a member has told it of a reason.
    fn tick(w: *World) !void {
        _ = try w.step();
        w.now += std.time.ns_per_s / 10;
        w.coordinator.tick(w.now);
    }

    /// One end notices, the other one much later.
    fn run(broken: *const Broken, w: *World, first: usize) !void {
        broken.notice(w, first);
        try tick(w);
        for (0..60) |_| {
            _ = try w.step();
            broken.swallow(w, 1 - first);
        }
        broken.notice(w, 1 - first);
        try tick(w);
        try w.settle();
    }
};

/// A sync of `values`, in which a lane between the first member and the last breaks after so many
/// steps. Returns whether the sync was still under way.
fn run_sync(is_far: bool, values: []const u8, first: usize, number: usize, steps: usize) !bool {
    var case: Case = undefined;
    const revisions = (&[_]u64{ 3, 3, 3, 0 })[4 - values.len ..];
    try case.init_at(is_far, values, revisions);
    defer case.deinit();
    const w = &case.world;
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    for (0..steps) |_| _ = try w.step();
    const late = &case.held[values.len - 1];
    const is_under_way = !late.operation.?.finished;
    const broken: Broken = .init(w, case.held[0].node, late.node, number);
    try broken.run(w, first);
    for (case.all()) |*held| {
        try expectEqual(1, held.operation.?.op.attempts);
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
    return is_under_way;
}

test "a lane that breaks costs a sync no attempt, whenever that is and whoever notices first" {
    for ([_][]const u8{ &.{ 1, 2 }, &.{ 1, 1, 1, 2 } }) |values| for (0..4) |how| {
        var steps: usize = 0;
        while (try run_sync(false, values, how / 2, how % 2, steps)) steps += 1;
        try expect(steps > 8);
    };
}

test "a lane that breaks costs a sync no attempt where leaves come as fragments" {
    for (0..2) |first| {
        var steps: usize = 0;
        while (try run_sync(true, &.{ 1, 2 }, first, steps % 4, steps)) steps += 1;
        try expect(steps > 8);
    }
}

/// The same of a newcomer that fetches from one member alone.
fn run_fetch(is_far: bool, first: usize, steps: usize) !bool {
    var case: Case = undefined;
    const late = try sync_test.newcomer_at(&case, is_far);
    defer case.deinit();
    const w = &case.world;
    const fetching = late.fetch().?;
    const only = fetching.hashes_from.?;
    const id = fetching.peers[only].id;
    fetching.fetch.discard(1 - only);
    for (0..steps) |_| _ = try w.step();
    const is_under_way = late.fetch() != null;
    const member = w.node_of(id);
    const broken: Broken = .init(w, member, late.node, steps % 2);
    try broken.run(w, first);
    try expect(!late.node.group.is_fetching());
    for (late.state.staged) |place| try expectEqual(1, place.?[0]);
    return is_under_way;
}

test "a newcomer's fetch outlives a lane of its only source, whoever notices first" {
    for (0..4) |how| {
        var steps: usize = 0;
        while (try run_fetch(how < 2, how % 2, steps)) steps += 1;
        try expect(steps > 20);
    }
}

test "that a source has nothing to give is said again when its lane breaks" {
    for (0..12) |steps| {
        var case: Case = undefined;
        const late = try sync_test.newcomer_case(&case);
        defer case.deinit();
        for (case.held[0..2]) |*held| held.state.serves = false;
        for (0..steps) |_| _ = try case.world.step();
        for (case.world.nodes[0..2]) |*node| {
            const broken: Broken = .init(&case.world, node, late.node, steps % 2);
            broken.notice(&case.world, 1);
            broken.swallow(&case.world, 0);
            broken.notice(&case.world, 0);
        }
        try case.world.settle();
        try expect(!late.node.group.is_fetching());
    }
}

/// A member has a link to no holder, and hears on a lane that breaks that another one has it all.
fn run_open(first: usize, steps: usize) !bool {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3 }, &.{ 3, 0, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    case.held[0].operation.?.work.sync.transfer.peers[2].is_linked = false;
    case.held[2].operation.?.work.sync.transfer.peers[0].is_linked = false;
    for (0..steps) |_| _ = try case.world.step();
    const is_under_way = !case.held[2].operation.?.finished;
    const broken: Broken =
        .init(&case.world, case.held[1].node, case.held[2].node, steps % 2);
    try broken.run(&case.world, first);
    for (case.all()) |*held| {
        try expectEqual(1, held.operation.?.op.attempts);
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
    return is_under_way;
}

test "that a member has everything by now is said again when its lane breaks" {
    for (0..2) |first| {
        var steps: usize = 0;
        while (try run_open(first, steps)) steps += 1;
        try expect(steps > 20);
    }
}

fn run_two_answers(kind: wire.frame.Kind) !void {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    const late = &case.held[1];
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const operation = late.operation.?;
    const t = &operation.work.sync.transfer;
    const phase = t.phase;
    t.phase = if (kind == .leaf) .leaves else .hashes;
    t.hashes_from = 0;
    t.fetch.begin(&.full(2));
    t.fetch.need(0);
    try expectEqual(0, t.fetch.next().?.rank);
    const s = late.node.s;
    const state = late.state;
    const bytes = if (kind == .leaf) state.leaf(0) else session.State.page_of(state.wanted, 0);
    const link = hostile_test.link_to(late.node, case.held[0].node);
    var header = std.mem.zeroInit(wire.frame.Header, .{
        .kind = kind,
        .payload_bytes = @as(u32, @intCast(bytes.len)),
        .again = 1,
        .reduced_attempt = @as(u32, 1), // the number of the answer
    });
    const lane = link.lanes[0].?;
    // The rest of a header is of no account, or two lanes would write to one leaf.
    const into, const owner = (try sync_file.place(s, lane, operation, &header)).?;
    lane.incoming = header;
    lane.expect(into, owner, std.math.maxInt(u16));
    const second = link.lanes[1].?;
    for ([_]u8{ 0, 1 }) |again| {
        header.again = again;
        header.class = 1 + @as(u16, again);
        try expectEqual(null, try sync_file.place(s, second, operation, &header));
        try expect(lane.brings(owner));
    }
    header.again = 2;
    header.class = 0;
    try expect(try sync_file.place(s, second, operation, &header) != null);
    try expect(!lane.brings(owner));
    try expectEqual(header.payload_bytes, lane.discard);
    lane.discard = 0;
    t.hashes_from = null;
    t.peers[0].owes_page = false;
    t.phase = phase;
    try case.world.settle();
    for (case.all()) |*held| try held.end(.ok);
}

test "of two answers of one source to a request, the one that was sent later gets the place" {
    for ([_]wire.frame.Kind{ .leaf, .hashes }) |kind| try run_two_answers(kind);
}

test "nothing of a sync that is over goes again" {
    for (0..2) |first| {
        var case: Case = undefined;
        try case.init(&.{ 1, 2 }, &.{ 3, 0 });
        defer case.deinit();
        try case.sync_all();
        for (case.all()) |*held| try held.end(.ok);
        const nodes = [_]*Node{ case.held[0].node, case.held[1].node };
        var unacked: usize = 0;
        for (nodes, 0..) |node, index| {
            const link = hostile_test.link_to(node, nodes[1 - index]);
            for (link.lanes[0..2]) |lane| for (0..lane.?.unacked.count) |place| {
                const sent = lane.?.unacked.at(@intCast(place));
                try expect(sent.operation == null and sent.request == null);
                unacked += 1;
            };
        }
        try expect(unacked > 0);
        const broken: Broken = .init(&case.world, nodes[0], nodes[1], 0);
        try broken.run(&case.world, first);
        for (nodes) |node| try expectEqual(0, node.s.operations.items.len);
    }
}

test "a lane that waits for acknowledgements takes nothing of a shared state" {
    var case: Case = undefined;
    const late = try sync_test.newcomer_case(&case);
    defer case.deinit();
    const w = &case.world;
    const fetching = late.fetch().?;
    const source = fetching.hashes_from.?;
    const link = late.node.s.link_to(fetching.peers[source].id).?;
    const lane = link.lanes[0].?;
    try expect(fetching.peers[source].wants_page != null);
    while (lane.unacked.has_room()) lane.unacked.push(.{ .operation = null });
    try expect(!sync_file.next_prefetch(late.node.s, lane, link));
    lane.unacked = .{};
    try w.settle();
    try expect(!late.node.group.is_fetching());
    try sync_test.admit_all(&case);

    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const operation = late.operation.?;
    const phase = operation.work.sync.transfer.phase;
    operation.work.sync.transfer.phase = .offered;
    operation.work.sync.transfer.peers[0].wants_page = 0;
    const other = hostile_test.link_to(late.node, case.held[0].node).lanes[0].?;
    const kept = other.unacked;
    while (other.unacked.has_room()) other.unacked.push(.{ .operation = null });
    const asked = &operation.work.sync.transfer.peers[0].asked;
    try asked.push(std.testing.allocator, .{ .class = 0, .index = 0 });
    try expect(!sync_file.says_next(other, other.link.?, operation));
    try expect(!sync_file.gives_next(late.node.s, other, other.link.?, operation));
    asked.clear(std.testing.allocator);
    other.unacked = kept;
    operation.work.sync.transfer.peers[0].wants_page = null;
    operation.work.sync.transfer.phase = phase;
    try w.settle();
    for (case.all()) |*held| try held.end(.ok);
}
