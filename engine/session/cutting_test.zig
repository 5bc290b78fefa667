//! Pieces that travel as several frames (sync.zig): which links cut them, lanes that break in
//! the middle of one, and peers that send fragments that no honest one sends. Worlds as in
//! world_test.zig.

const std = @import("std");
const wire = @import("wire");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const Lane = session.Lane;
const Link = session.Link;
const Operation = session.Operation;
const World = world.World;
const calls = session.calls;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = std.time.ns_per_ms;

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
    const Case = struct { fragment: wire.Fragment, more: u32 = 0, is_taken: bool };
    for ([_]Case{
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
        calls.cancel(node.s, w.now, operation);
        try w.settle();
        calls.release(node.s, operation);
    }
}
