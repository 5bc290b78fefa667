//! Leaves of a shared state that travel as several frames (sync.zig): on which links, what
//! counts of them, and sources that send fragments that no honest one sends. Lanes that break
//! meanwhile: sync_lanes_test.zig; pieces of collectives: cutting_test.zig.

const std = @import("std");
const wire = @import("wire");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const sync_file = @import("sync.zig");
const sync_test = @import("sync_test.zig");
const Requests = @import("link.zig").Requests;
const Case = sync_test.Case;
const Fragment = wire.Fragment;
const Header = wire.frame.Header;
const Lane = session.Lane;
const Link = session.Link;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectError = std.testing.expectError;

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
    const gpa = std.testing.allocator;
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
