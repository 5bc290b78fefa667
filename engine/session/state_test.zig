//! Syncs, and fetches in the background, whose lanes break while others of their links stay
//! (dial.zig): at every moment, and whichever side notices first. Other syncs: sync_test.zig;
//! collectives whose lanes break: session_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const sync_file = @import("sync.zig");
const sync_test = @import("sync_test.zig");
const world = @import("world_test.zig");
const Node = @import("world_test.zig").Node;
const Requests = @import("link.zig").Requests;
const Case = sync_test.Case;
const Fragment = wire.Fragment;
const Header = wire.frame.Header;
const Held = sync_test.Held;
const Lane = session.Lane;
const Link = session.Link;
const Operation = session.Operation;
const World = world.World;
const deadline_never = sync_test.deadline_never;
const driver = session.driver;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectError = std.testing.expectError;
const gpa = std.testing.allocator;
const user = session.user;
const leaves = sync_test.leaves;
const ms = std.time.ns_per_ms;

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
        driver.closed(broken.nodes[end].s, w.now, broken.ends[end]);
    }

    /// The system takes what this end sends, and nothing arrives.
    fn swallow(broken: *const Broken, w: *World, end: usize) void {
        if (!broken.is_there(end)) return;
        const s = broken.nodes[end].s;
        var slices: [2][]const u8 = undefined;
        const count = driver.send_slices(s, w.now, broken.ends[end], &slices);
        for (slices[0..count]) |slice| driver.sent(s, w.now, broken.ends[end], slice.len);
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

// ---- leaves
//
// Leaves of a shared state that travel as several frames (sync.zig): on which links, what counts of
// them, and sources that send fragments that no honest one sends. Lanes that break meanwhile:
// state_test.zig; pieces of collectives: state_test.zig.

/// How many fragments of leaves each lane of a link sends until something is over.
const Seen = struct {
    link: *Link,
    fragments: [8]u32 = @splat(0),

    fn look(seen: *Seen) void {
        for (seen.link.lanes[0..8], &seen.fragments) |place, *count| {
            const lane = place orelse continue;
            if (lane.state != .open or !lane.out_busy) continue;
            const header = lane.outgoing();
            count.* += @intFromBool(header.kind == .leaf and !header.fragment.is_whole());
        }
    }

    fn check(seen: *const Seen, is_far: bool) !void {
        try expectEqual(is_far, seen.link.flow.is_far());
        const open = seen.link.open_count;
        try expectEqual(@as(u32, if (is_far) 4 else 2), open);
        for (seen.fragments[0..open]) |count| try expectEqual(is_far, count > 0);
    }
};

test "all lanes of a far link share a leaf of a sync, and those of a near link take whole ones" {
    for ([_]bool{ false, true }) |is_far| {
        var case: Case = undefined;
        try case.init_at(is_far, &.{ 1, 2 }, &.{ 3, 0 });
        defer case.deinit();
        for (case.all()) |*held| try held.sync(.popular, sync_test.deadline_never);
        const giver, const late = .{ &case.held[0], &case.held[1] };
        var seen: Seen = .{ .link = hostile_test.link_to(giver.node, late.node) };
        while (!late.operation.?.finished) {
            try expect(try case.world.step());
            seen.look();
        }
        try seen.check(is_far);
        try case.world.settle();
        // Leaves are counted, and not their fragments.
        try expectEqual(sync_test.leaves + 1, giver.operation.?.work.sync.leaves_given);
        try expectEqual(sync_test.leaves + 1, late.operation.?.work.sync.leaves_moved);
        for (case.all()) |*held| {
            try held.end(.ok);
            try held.expect_value(1, 4);
        }
    }
}

test "all lanes of a far link share a leaf that a newcomer fetches in the background" {
    for ([_]bool{ false, true }) |is_far| {
        var case: Case = undefined;
        const late = try sync_test.newcomer_at(&case, is_far);
        defer case.deinit();
        const t = late.fetch().?;
        t.fetch.discard(1 - t.hashes_from.?);
        const giver = case.world.node_of(t.peers[t.hashes_from.?].id);
        var seen: Seen = .{ .link = hostile_test.link_to(giver, late.node) };
        while (late.node.group.is_fetching()) {
            try expect(try case.world.step());
            seen.look();
        }
        try seen.check(is_far);
        const state = late.state;
        for (state.staged, state.wanted[1..], state.staged_hashes) |place, *wanted, *hash| {
            try expectEqual(1, place.?[0]);
            try std.testing.expectEqualSlices(u8, wanted, hash);
        }
    }
}

/// A member that has asked the first one for one leaf of a sync which has not come so far.
const Asks = struct {
    case: Case,
    operation: *session.Operation,
    phase: session.Transfer.Phase,
    lanes: [2]*Lane,

    const leaf = 1;

    fn init(asks: *Asks) !void {
        const case = &asks.case;
        try case.init(&.{ 1, 2 }, &.{ 3, 0 });
        for (case.all()) |*held| try held.sync(.popular, sync_test.deadline_never);
        const late = &case.held[1];
        asks.operation = late.operation.?;
        const t = asks.transfer();
        asks.phase = t.phase;
        t.phase = .leaves;
        t.fetch.begin(&.full(2));
        t.fetch.need(leaf);
        try expectEqual(0, t.fetch.next().?.rank);
        const link = hostile_test.link_to(late.node, case.held[0].node);
        asks.lanes = .{ link.lanes[0].?, link.lanes[1].? };
    }

    /// The sync goes on as if nothing had been.
    fn deinit(asks: *Asks) !void {
        const case = &asks.case;
        asks.transfer().phase = asks.phase;
        for (asks.lanes) |lane| {
            lane.drop_into();
            lane.discard = 0;
        }
        try case.world.settle();
        for (case.all()) |*held| try held.end(.ok);
        case.deinit();
    }

    fn transfer(asks: *const Asks) *session.Transfer {
        return &asks.operation.work.sync.transfer;
    }

    fn bytes(asks: *const Asks) []u8 {
        return asks.case.held[1].state.staged[leaf].?;
    }

    fn header(fragment: Fragment, answer: u32) Header {
        return std.mem.zeroInit(Header, .{
            .kind = .leaf,
            .index = leaf,
            .payload_bytes = @as(u32, @intCast(fragment.range(sync_test.leaf_bytes).len())),
            .reduced_attempt = answer,
            .fragment = fragment,
        });
    }

    fn place(asks: *Asks, lane: usize, head: Header) sync_file.Error!?[]u8 {
        const s = asks.case.held[1].node.s;
        const into, const owner =
            try sync_file.place(s, asks.lanes[lane], asks.operation, &head) orelse return null;
        asks.lanes[lane].incoming = head;
        asks.lanes[lane].expect(into, owner, std.math.maxInt(u16));
        return into;
    }

    /// All of it has come.
    fn arrive(asks: *Asks, lane: usize, value: u8) void {
        const it = asks.lanes[lane];
        @memset(it.into.?, value);
        it.into = null;
        it.into_owner = null;
        sync_file.arrived(asks.case.held[1].node.s, it, asks.operation, &it.incoming);
    }
};

const halves = [_]Fragment{ .{ .after = 8 }, .{ .before = 8 } };

test "a fragment of a leaf of a wrong length, or that reaches into another, breaks the protocol" {
    var asks: Asks = undefined;
    try asks.init();
    const first = (try asks.place(0, Asks.header(halves[0], 1))).?;
    try expectEqual(asks.bytes().ptr, first.ptr);
    for ([_]Fragment{ .whole, .{ .before = 7 }, .{ .before = 4, .after = 4 } }) |fragment|
        try expectError(error.Overlap, asks.place(1, Asks.header(fragment, 1)));
    for ([_]Fragment{ .whole, halves[0], halves[1], .{ .before = 15 } }) |fragment| {
        var longer = Asks.header(fragment, 1);
        longer.payload_bytes += 1;
        try expectError(error.WrongLength, asks.place(1, longer));
    }
    // A part of what has a place is not needed.
    try expectEqual(null, try asks.place(1, Asks.header(.{ .after = 12 }, 1)));
    const second = (try asks.place(1, Asks.header(halves[1], 1))).?;
    try expectEqual(asks.bytes().ptr + 8, second.ptr);
    try expectEqual(8, second.len);
    try asks.deinit();
}

test "fragments of two answers are not put together, and the later one counts" {
    var asks: Asks = undefined;
    try asks.init();
    const sync = asks.operation.work.sync;
    _ = (try asks.place(0, Asks.header(halves[0], 1))).?;
    asks.arrive(0, 9);
    _ = (try asks.place(0, Asks.header(halves[1], 1))).?;
    // It begins in the middle of the one before, whose rest is thrown away.
    _ = (try asks.place(1, Asks.header(halves[1], 2))).?;
    try expectEqual(8, asks.lanes[0].discard);
    try expect(!asks.lanes[0].brings(asks.operation.owner()));
    asks.lanes[0].discard = 0;
    asks.arrive(1, 1);
    try expectEqual(null, try asks.place(0, Asks.header(halves[0], 1)));
    // Only both halves are a leaf, which is looked at then, and not before.
    asks.case.held[1].state.wanted[Asks.leaf + 1] = asks.case.held[0].state.hashes[Asks.leaf + 1];
    try expectEqual(0, sync.leaves_moved);
    _ = (try asks.place(0, Asks.header(halves[0], 2))).?;
    try expectEqual(0, sync.leaves_moved);
    asks.arrive(0, 1);
    try expectEqual(1, sync.leaves_moved);
    try expect(std.mem.allEqual(u8, asks.bytes(), 1));
    // Nobody writes to it any more.
    for ([_]u32{ 2, 3 }) |answer|
        try expectEqual(null, try asks.place(1, Asks.header(halves[0], answer)));
    sync.leaves_moved = 0;
    try asks.deinit();
}

test "a fragment that goes again is as it was, and is not cut once more" {
    // Goal: whoever has the first half of it coming in, on a lane that is broken, knows it again.
    var case: Case = undefined;
    try case.init_at(true, &.{ 1, 1 }, &.{ 3, 3 });
    defer case.deinit();
    const node = case.held[0].node;
    const link = hostile_test.link_to(node, case.held[1].node);
    const lane = link.lanes[0].?;
    var asked: Requests = .{};
    defer asked.clear(gpa);
    const lost: Requests.Item = .{
        .class = 0,
        .index = 3,
        .again = 1,
        .answer = 5,
        .part = .{ .before = 2, .after = 6 },
    };
    try asked.push(gpa, .{ .class = 0, .index = 4 });
    try asked.put_back(gpa, lost);
    const leaf: [sync_test.leaf_bytes]u8 = @splat(0);
    try expectEqual(lost, sync_file.take_answer(node.s, lane, &asked, &leaf).item);
    const other = sync_file.take_answer(node.s, lane, &asked, &leaf);
    try expectEqual(Fragment{ .after = 15 }, other.item.part);
    try expectEqual(leaf.len / Fragment.most, other.bytes.len);
    try expectEqual(4, asked.first().?.index);
    // A page of hashes is never cut.
    asked.clear(gpa);
    try asked.push(gpa, .{ .class = 1, .index = 0 });
    const hashes: [100]u8 = @splat(0);
    const page = sync_file.take_answer(node.s, lane, &asked, &hashes);
    try expect(page.item.part.is_whole() and page.bytes.len == hashes.len);
}

// ---- leaves that are hashed
//
// Leaves that a runner hashes (state.zig), in a sync and in the background: they count when they
// are hashed, and whatever ends an attempt or a fetch waits for them. Worlds as in sync_test.zig;
// in every order: tests/sim.

/// Those of one peer, with the short one of the bias.
const leaves_all = leaves + 1;
const bytes_all = leaves * sync_test.leaf_bytes + 5;

/// A runner that does nothing by itself.
const Idle = struct {
    node: *Node,
    jobs: [leaves_all]*base.Job = undefined,
    count: usize = 0,
    fenced: usize = 0,

    fn open(idle: *Idle, node: *Node) void {
        idle.* = .{ .node = node };
        const vtable: *const base.Runner.VTable = &.{ .post = post, .fence = fence };
        node.s.runner = .{ .ctx = idle, .vtable = vtable, .bytes_min = sync_test.leaf_bytes };
    }

    fn post(ctx: *anyopaque, job: *base.Job) void {
        const idle: *Idle = @ptrCast(@alignCast(ctx));
        idle.jobs[idle.count] = job;
        idle.count += 1;
    }

    fn fence(ctx: *anyopaque, owner: *const anyopaque) void {
        const idle: *Idle = @ptrCast(@alignCast(ctx));
        while (idle.count > 0) {
            const job = idle.take();
            std.debug.assert(job.owner == owner);
            job.run(job);
            idle.fenced += 1;
        }
    }

    fn take(idle: *Idle) *base.Job {
        idle.count -= 1;
        return idle.jobs[idle.count];
    }

    /// It does what it has, the last first, and tells of it, until nothing comes any more.
    fn work(idle: *Idle) !void {
        const w = idle.node.world;
        try w.settle();
        while (idle.count > 0) {
            const job = idle.take();
            job.run(job);
            driver.job_done(idle.node.s, w.now, job);
            try w.settle();
        }
    }
};

/// The last of three members has old content, and a runner that works when it is told to.
fn one_that_lacks_all(case: *Case, idle: *Idle) !*Held {
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    const late = &case.held[2];
    idle.open(late.node);
    return late;
}

test "leaves that a runner hashes count once they are hashed, and the sync waits for them" {
    var case: Case = undefined;
    var idle: Idle = undefined;
    const late = try one_that_lacks_all(&case, &idle);
    defer case.deinit();
    try case.sync_all();
    const sync = late.operation.?.work.sync;
    try expect(idle.count > 0);
    // Those for which there was no place, and the short one.
    try expectEqual(leaves_all - idle.count, sync.leaves_moved);
    try expect(!late.operation.?.finished);
    // Nobody is left to ask, and it does not give up.
    for (0..2) |rank| sync.transfer.discard(@intCast(rank));
    try idle.work();
    try expectEqual(leaves_all, sync.leaves_moved);
    try expectEqual(bytes_all, sync.bytes_received);
    try late.end(.ok);
    try late.expect_value(1, 4);
}

test "a leaf that a runner finds to be wrong is asked of another" {
    var case: Case = undefined;
    var idle: Idle = undefined;
    const late = try one_that_lacks_all(&case, &idle);
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, sync_test.deadline_never);
    @memset(&case.held[0].weights, 9); // while it must not write
    try idle.work();
    try expectEqual(leaves_all, late.operation.?.work.sync.leaves_moved);
    for (case.all()) |*held| try held.end(.ok);
    try late.expect_value(1, 4);
}

test "leaves that are being hashed when an attempt ends are hashed first, and are kept" {
    var case: Case = undefined;
    var idle: Idle = undefined;
    const late = try one_that_lacks_all(&case, &idle);
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, sync_test.deadline_never);
    while (idle.count < 8) try expect(try case.world.step());
    case.world.kill(case.held[0].node);
    try idle.work();
    try expect(idle.fenced >= 8);
    const operation = late.operation.?;
    try expectEqual(2, operation.op.attempts);
    try expectEqual(bytes_all, operation.work.sync.bytes_received); // none of them twice
    try expectEqual(leaves_all, operation.work.sync.leaves_moved);
    try expectEqual(0, operation.work.sync.leaves_early);
    for (case.held[1..3]) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "a sync that ends, and a session, wait for the leaves that are being hashed" {
    for (0..2) |how| {
        var case: Case = undefined;
        var idle: Idle = undefined;
        const late = try one_that_lacks_all(&case, &idle);
        defer case.deinit();
        try case.sync_all();
        const under_way = idle.count;
        try expect(under_way > 0);
        if (how == 0) {
            user.cancel(late.node.s, case.world.now, late.operation.?);
            try expectEqual(under_way, idle.fenced);
            try late.expect_value(2, 0);
        } else case.world.kill(late.node);
        try expectEqual(0, idle.count);
        try case.world.settle(); // the others end theirs
    }
}

test "a newcomer's fetch waits for its last leaves, also when its sources are gone" {
    for (0..2) |how| {
        var case: Case = undefined;
        const late = try sync_test.newcomer_case(&case);
        defer case.deinit();
        var idle: Idle = undefined;
        idle.open(late.node);
        late.fetch().?.hashing.runner = &late.node.s.runner.?;
        try case.world.settle();
        const t = late.fetch().?;
        try expect(idle.count > 0);
        try expectEqual(leaves_all - idle.count, t.leaves_kept);
        if (how == 0) {
            for (case.held[0..2]) |*held| case.world.kill(held.node);
            try case.world.settle();
            try expect(late.node.group.is_fetching());
            try idle.work();
        } else user.state_remove(late.node.s, late.node.group, late.state);
        try expectEqual(0, idle.count);
        // All of it is known, whether its hash has been told or was waited for.
        const state = late.state;
        for (0..leaves_all) |leaf| try expect(!state.lacks(@intCast(leaf)));
        if (how == 0) try expect(!late.node.group.is_fetching()) //
        else try user.state_add(late.node.s, late.node.group, late.state);
    }
}

// ---- fragments
//
// Pieces that travel as several frames (sync.zig): which links cut them, lanes that break in the
// middle of one, and peers that send fragments that no honest one sends. Worlds as in
// world_test.zig.

fn form_far(w: *World, base_ns: u64) !void {
    w.* = .{ .gpa = gpa, .lanes = 0, .fragment_bytes_min = 1 };
    w.sample = .{ .acked = 0, .rtt_ns = base_ns, .base_ns = base_ns };
    try hostile_test.form(w, 2);
}

fn sum_both(w: *World) ![2]*Operation {
    return .{
        try world.sum(&w.nodes[0], world.elements, .restart),
        try world.sum(&w.nodes[1], world.elements, .restart),
    };
}

/// Whether that lane sends a fragment.
fn cuts(lane: *const Lane) bool {
    if (lane.state != .open or !lane.out_busy) return false;
    return !lane.outgoing().fragment.is_whole();
}

test "all lanes of a far link share a piece, and those of a near link take whole ones" {
    for ([_]u64{ 1 * ms, 20 * ms }) |base_ns| {
        var w: World = undefined;
        try form_far(&w, base_ns);
        defer w.deinit();
        const link = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
        const operations = try sum_both(&w);
        var fragments: [8]u32 = @splat(0);
        while (!operations[0].finished) {
            try expect(try w.step());
            for (link.lanes[0..8], &fragments) |place, *count| {
                if (place) |lane| count.* += @intFromBool(cuts(lane));
            }
        }
        try w.settle();
        for (operations) |operation| try world.check_sum(operation);
        const is_far = link.flow.is_far();
        try expectEqual(@as(u32, if (is_far) 4 else 2), link.open_count);
        for (fragments[0..link.open_count]) |count| try expectEqual(is_far, count > 0);
    }
}

/// The lane of a peer on which the payload of a fragment is still to come.
fn lane_within(link: *const Link) ?*Lane {
    for (link.lanes) |place| if (place) |lane| {
        if (lane.state != .open or lane.into == null) continue;
        const header = &lane.incoming;
        if (header.kind.is_data() and !header.fragment.is_whole()) return lane;
    };
    return null;
}

test "a lane that breaks in the middle of a fragment costs no attempt" {
    // Goal: what had come of a piece stays, and the rest of it comes on other lanes. Method: the
    // lane breaks after one, two, three ... fragments, so that some piece is there in each part.
    for (0..40) |after| {
        var w: World = undefined;
        try form_far(&w, 20 * ms);
        defer w.deinit();
        const link = hostile_test.link_to(&w.nodes[0], &w.nodes[1]);
        const operations = try sum_both(&w);
        var left = after;
        const lane = while (true) {
            try expect(try w.step());
            const lane = lane_within(link) orelse continue;
            if (left == 0) break lane;
            left -= 1;
        };
        w.break_lane(lane);
        try w.settle();
        for (operations) |operation| {
            try expectEqual(1, operation.op.attempts);
            try world.check_sum(operation);
        }
    }
}

test "a fragment of a wrong length closes its lane, and so does one that reaches into another" {
    // Goal: no byte gets there twice, and none beyond its piece. Method: the first half of a piece
    // is on its way, at a peer that sums alone, when another frame of the piece comes.
    const Cut = struct { fragment: wire.Fragment, more: u32 = 0, is_taken: bool };
    for ([_]Cut{
        .{ .fragment = .{ .after = 8 }, .is_taken = true },
        .{ .fragment = .{ .after = 12 }, .is_taken = true },
        .{ .fragment = .{ .before = 8 }, .is_taken = true },
        .{ .fragment = .{ .before = 8 }, .more = 1, .is_taken = false },
        .{ .fragment = .{ .before = 15 }, .more = 4, .is_taken = false },
        .{ .fragment = .{ .before = 7 }, .is_taken = false },
        .{ .fragment = .whole, .is_taken = false },
    }) |case| {
        var w: World = .{ .gpa = gpa };
        try hostile_test.form(&w, 2);
        defer w.deinit();
        const node = &w.nodes[0];
        const operation = try world.sum(node, world.elements, .restart);
        try w.settle();
        const x = operation.work.movement;
        var header = hostile_test.piece_of(node, operation);
        const bytes = header.payload_bytes;
        header.payload_bytes = bytes / 2;
        header.fragment = .{ .after = 8 };
        const link = hostile_test.link_to(node, &w.nodes[1]);
        const one = link.lanes[0].?;
        try expect(hostile_test.feed(node, one, &wire.frame.encode(header)));
        var other = header;
        other.fragment = case.fragment;
        other.payload_bytes = @intCast(case.fragment.range(bytes).len() + case.more);
        const free = x.board.free_count;
        try expectEqual(case.is_taken, try hostile_test.inject(node, link.lanes[1].?, other));
        try expectEqual(free, x.board.free_count);
        try expectEqual(0, x.board.ledger.settled_count);
        const payload: [world.elements * @sizeOf(u64)]u8 = @splat(7);
        try expect(hostile_test.feed(node, one, payload[0..header.payload_bytes]));
        // Only both halves are a piece.
        const is_whole = case.is_taken and case.fragment.before == 8;
        try expectEqual(@intFromBool(is_whole), x.board.ledger.settled_count);
        user.cancel(node.s, w.now, operation);
        try w.settle();
        user.release(node.s, operation);
    }
}
