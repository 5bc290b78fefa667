//! Frames that go a second time while their first lane is stuck or slow (second.zig). Worlds as in
//! world_test.zig, whose links are far, and one lane of which is stuck.

const std = @import("std");
const collective = @import("collective");
const session = @import("root.zig");
const world = @import("world_test.zig");
const hostile_test = @import("hostile_test.zig");
const World = world.World;
const Lane = session.Lane;
const Link = session.Link;
const Operation = session.Operation;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

/// Two peers that are far from each other.
const Stuck = struct {
    w: World,
    link: *Link,
    /// Delivers nothing.
    lane: *Lane,
    operations: [2]*Operation,

    /// A sum is under way, and a lane is stuck that has begun a frame of it, the first that does so
    /// after so many steps.
    fn init(it: *Stuck, base_ns: u64, steps: usize) !void {
        it.w = .{ .gpa = gpa, .lanes = 0, .fragment_bytes_min = 1 };
        it.w.sample = .{ .acked = 0, .rtt_ns = base_ns, .base_ns = base_ns };
        try hostile_test.form(&it.w, 2);
        it.link = hostile_test.link_to(&it.w.nodes[0], &it.w.nodes[1]);
        for (&it.operations, it.w.nodes[0..2]) |*operation, *node|
            operation.* = try world.sum(node, world.elements, .restart);
        for (0..steps) |_| try expect(try it.w.step());
        it.lane = while (true) {
            try expect(try it.w.step());
            if (lane_that_sends(it.link)) |lane| break lane;
        };
        it.w.pipe_of(it.lane).stuck = it.lane;
    }

    fn flow_again(it: *Stuck) void {
        it.w.pipe_of(it.lane).stuck = null;
    }

    fn are_done(it: *const Stuck) bool {
        return it.operations[0].is_over() and it.operations[1].is_over();
    }

    fn check(it: *Stuck) !void {
        for (it.operations) |operation| {
            try expectEqual(1, operation.op.attempts);
            try world.check_sum(operation);
        }
    }
};

fn lane_that_sends(link: *const Link) ?*Lane {
    for (link.lanes) |place| if (place) |lane| {
        if (lane.out_busy and lane.unacked.count > 0 and lane.unacked.is_leaving) return lane;
    };
    return null;
}

/// Frames of a link that wait for their twin, or are one.
fn twins(link: *const Link) usize {
    var count: usize = 0;
    for (link.lanes) |place| if (place) |lane| for (0..lane.unacked.count) |index| {
        count += @intFromBool(lane.unacked.at(@intCast(index)).twin != .none);
    };
    return count;
}

test "what a stuck lane holds goes on another, and the operation ends without it" {
    for (0..20) |steps| {
        var it: Stuck = undefined;
        try it.init(20 * ms, steps);
        defer it.w.deinit();
        try it.w.settle();
        try expect(!it.are_done());
        try it.w.pass(2 * s);
        try expect(it.are_done());
        try expectEqual(.open, it.lane.state);
        it.flow_again();
        try it.w.settle();
        try it.check();
        // The next one finds all slots free.
        for (it.w.nodes[0..2]) |*node| _ = try world.sum(node, world.elements, .restart);
        try it.w.settle();
        for (it.w.nodes[0..2]) |*node| for (node.s.operations.items) |operation|
            try expectEqual(.ok, operation.status);
    }
}

test "nothing goes twice over a near link, nor before it is late" {
    for ([_]u64{ 1 * ms, 20 * ms }) |base_ns| {
        var it: Stuck = undefined;
        try it.init(base_ns, 0);
        defer it.w.deinit();
        try it.w.pass(if (it.link.flow.is_far()) s / 2 else 2 * s);
        try expectEqual(0, twins(it.link));
        try expect(!it.are_done());
        it.flow_again();
        try it.w.settle();
        try it.check();
    }
}

test "both lanes of a frame may break, in any order and at any time" {
    // Goal: a frame that went twice arrives whatever becomes of either lane. Method: the lane of
    // the second one breaks, or the stuck one, or both, after some more steps.
    for ([_][2]bool{ .{ true, false }, .{ false, true }, .{ true, true } }) |breaks| {
        for (0..12) |steps| {
            var it: Stuck = undefined;
            try it.init(20 * ms, 0);
            defer it.w.deinit();
            try it.w.settle();
            for (0..40) |_| {
                if (twins(it.link) > 0) break;
                it.w.now += s / 4;
                session.driver.tick(it.w.nodes[0].s, it.w.now);
                _ = try it.w.step();
            } else return error.NothingGoesTwice;
            for (0..steps) |_| _ = try it.w.step();
            if (breaks[0]) if (lane_of_later(it.link)) |lane| it.w.break_lane(lane);
            if (breaks[1]) it.w.break_lane(it.lane) else it.flow_again();
            try it.w.settle();
            try it.w.pass(2 * s);
            try it.check();
        }
    }
}

fn lane_of_later(link: *const Link) ?*Lane {
    for (link.lanes) |place| if (place) |lane| for (0..lane.unacked.count) |index| {
        if (lane.unacked.at(@intCast(index)).twin == .later) return lane;
    };
    return null;
}

/// A lane that has sent the head of a frame from a slot, and the payload is still to leave.
fn lane_within(w: *World, kept: *?*Link) ?*Lane {
    for (w.nodes[0..w.count]) |*node| for (node.s.links.items) |link| {
        for (link.lanes) |place| {
            const lane = place orelse continue;
            if (!lane.out_busy or lane.unacked.count == 0 or !lane.unacked.is_leaving) continue;
            if (lane.out_head_left.len > 0 or lane.out_payload.len == 0) continue;
            const sent = lane.unacked.newest();
            if (sent.move.slot == collective.no_slot) continue;
            if (lane.out_payload.len < sent.fragment.range(64).len()) continue;
            kept.* = link;
            return lane;
        }
    };
    return null;
}

test "what a frame is sent from stays as it is until its twin is acknowledged, too" {
    // Goal: the other side takes in the later of two frames, and may have all of the earlier one.
    // Method: both lanes are stuck between head and payload; the earlier one goes on, and much
    // later the other.
    var found: usize = 0;
    for (0..8) |steps| {
        var w: World = .{ .gpa = gpa, .lanes = 0 };
        w.sample = .{ .acked = 0, .rtt_ns = 20 * ms, .base_ns = 20 * ms };
        try hostile_test.form(&w, 3);
        defer w.deinit();
        var operations: [3]*Operation = undefined;
        for (&operations, w.nodes[0..3]) |*operation, *node|
            operation.* = try world.sum(node, world.elements, .restart);
        for (0..steps) |_| _ = try w.step();
        var link: ?*Link = null;
        const earlier = while (try w.step()) {
            if (lane_within(&w, &link)) |lane| break lane;
        } else continue;
        w.pipe_of(earlier).stuck = earlier;
        try w.settle();
        const later = for (0..40) |_| {
            w.now += s / 4;
            for (w.nodes[0..3]) |*node| session.driver.tick(node.s, w.now);
            _ = try w.step();
            if (lane_of_later(link.?)) |lane| break lane;
        } else continue;
        try expect(later.out_head_left.len == 0 and later.out_payload.len > 0);
        found += 1;
        w.pipe_of(later).stuck = later;
        w.pipe_of(earlier).stuck = null;
        try w.settle();
        try w.pass(s);
        w.pipe_of(later).stuck = null;
        try w.settle();
        try w.pass(2 * s);
        for (operations) |operation| {
            try expectEqual(1, operation.op.attempts);
            try world.check_sum(operation);
        }
    }
    try expect(found > 3);
}
