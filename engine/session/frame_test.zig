//! Which frame goes first on a lane (frame.zig), in worlds of two as in world_test.zig: large
//! broadcasts of many frames, and small ones beside them.

const std = @import("std");
const base = @import("base");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const Link = session.Link;
const Operation = session.Operation;
const user = session.user;
const World = world.World;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const form = hostile_test.form;
const gpa = std.testing.allocator;
const ms = std.time.ns_per_ms;

const large_elements = 400;
const small_elements = 2;
/// By node and tag.
var memory: [2][32][large_elements]u64 = @splat(@splat(@splat(1)));

const Both = struct {
    of: [2]*Operation,

    /// Both members call a broadcast of so many elements.
    fn call(w: *World, tag: u64, count: u64) !Both {
        var both: Both = undefined;
        for (w.nodes[0..2], &memory, &both.of) |*node, *own, *operation| {
            operation.* = try user.begin(node.s, w.now, node.group, .{
                .kind = .broadcast,
                .send = @ptrCast(&own[tag]),
                .recv = @ptrCast(&own[tag]),
                .count = count,
                .dtype = .u64,
                .tag = tag,
                .deadline = base.never,
            });
        }
        return both;
    }

    /// The operation of the member that broadcasts.
    fn root(both: *const Both) *Operation {
        const first = both.of[0].work.movement.board.ledger.roles.rank;
        return both.of[if (first == 0) 0 else 1];
    }

    fn sent(both: *const Both) u64 {
        return both.root().work.movement.bytes_sent;
    }

    fn end(both: *const Both, w: *World) !void {
        for (w.nodes[0..2], both.of) |*node, operation| {
            try expectEqual(.ok, operation.status);
            user.release(node.s, operation);
        }
    }
};

/// The link over which the root sends.
fn link_of(w: *World, both: *const Both) *Link {
    for (w.nodes[0..2], both.of, 0..) |*node, operation, index| {
        if (operation == both.root()) return hostile_test.link_to(node, &w.nodes[1 - index]);
    }
    unreachable;
}

test "the next frame is that of a small operation, however many large ones have called before" {
    var w: World = .{ .gpa = gpa, .lanes = 1 };
    try form(&w, 2);
    defer w.deinit();
    var large: [6]Both = undefined;
    for (&large, 0..) |*both, tag| both.* = try .call(&w, tag, large_elements);
    const link = link_of(&w, &large[0]);
    while (large[5].sent() < 500) try expect(try w.step());
    const small: Both = try .call(&w, large.len, small_elements);
    var frames: u32 = 0;
    var before = sum_sent(&large);
    while (small.sent() == 0) {
        try expect(try w.step());
        const now = sum_sent(&large);
        frames += @intFromBool(now > before);
        before = now;
    }
    // The one that was under way.
    try expect(frames <= 1);
    try expect(!link.lanes[0].?.is_kept); // of one lane none is kept
    try w.settle();
    for (&large) |*both| try both.end(&w);
    try small.end(&w);
}

fn sum_sent(all: []const Both) u64 {
    var sum: u64 = 0;
    for (all) |*both| sum += both.sent();
    return sum;
}

test "large operations have a frame for each whole frame of small ones" {
    // Goal: small operations that never end do not stop a large one. Method: so many at once that
    // they have many frames' worth of bytes together; frames are of 64 bytes.
    var w: World = .{ .gpa = gpa, .lanes = 1 };
    try form(&w, 2);
    defer w.deinit();
    const large: Both = try .call(&w, 0, large_elements);
    while (large.sent() < 500) try expect(try w.step());
    const begun = large.sent();
    var small: [30]Both = undefined;
    for (&small, 1..) |*both, tag| both.* = try .call(&w, tag, small_elements);
    while (sum_sent(&small) < small.len * small_elements * 8) {
        try expect(try w.step());
        const frames = (large.sent() - begun) / 64;
        try expect(sum_sent(&small) <= (frames + 1) * (64 + 8 * small_elements));
    }
    // They have overtaken it all the same.
    try expect(large.sent() - begun <= 10 * 64);
    try w.settle();
    try large.end(&w);
    for (&small) |*both| try both.end(&w);
}

test "over a long link one lane of several is left to small operations, for a while" {
    var w: World = .{ .gpa = gpa, .lanes = 4 };
    w.sample = .{ .acked = 1, .rtt_ns = 20 * ms, .base_ns = 20 * ms };
    try form(&w, 2);
    defer w.deinit();
    const large: Both = try .call(&w, 0, large_elements);
    const link = link_of(&w, &large);
    while (large.sent() < 500) try expect(try w.step());
    for (link.lanes[0..4]) |lane| try expect(!lane.?.is_kept);
    const small: Both = try .call(&w, 1, small_elements);
    while (small.sent() == 0 or link.lanes[0].?.out_busy) try expect(try w.step());
    const begun = large.sent();
    while (large.sent() < begun + 1000) {
        try expect(try w.step());
        try expect(link.lanes[0].?.is_kept and !link.lanes[0].?.out_busy);
        try expect(!link.lanes[1].?.is_kept);
    }
    try w.settle();
    try large.end(&w);
    try small.end(&w);
    // A link that has lost a lane needs all others.
    try expect(link.keeps(link.lanes[0].?, w.now));
    link.open_count -= 1;
    try expect(!link.keeps(link.lanes[0].?, w.now));
    link.open_count += 1;
    try w.pass(61 * std.time.ns_per_s);
    const last: Both = try .call(&w, 0, large_elements);
    var was_busy = false;
    while (last.sent() < 1000) {
        try expect(try w.step());
        was_busy = was_busy or link.lanes[0].?.out_busy;
    }
    try expect(was_busy);
    try w.settle();
    try last.end(&w);
}
