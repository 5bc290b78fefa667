//! Memory that does not grow with what others send, nor with the bytes of a call. Worlds as in
//! world_test.zig, with an allocator that counts. Bounds on what peers make this one
//! keep: hostile_test.zig.

const std = @import("std");
const wire = @import("wire");
const session = @import("root.zig");
const hostile_test = @import("hostile_test.zig");
const world = @import("world_test.zig");
const World = world.World;
const calls = session.calls;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

/// Two peers, the first of which counts.
const Counted = struct {
    counter: std.testing.FailingAllocator = .init(gpa, .{}),
    w: World = .{ .gpa = gpa },

    fn init(it: *Counted) !void {
        it.* = .{};
        it.w.allocators[0] = it.counter.allocator();
        try hostile_test.form(&it.w, 2);
    }

    /// Allocations of the first peer for one sum of so many elements on both.
    fn sum(it: *Counted, count: u64) !usize {
        const before = it.counter.allocations;
        var operations: [2]*session.Operation = undefined;
        for (&operations, it.w.nodes[0..2]) |*operation, *node|
            operation.* = try world.sum(node, count, .restart);
        try it.w.settle();
        for (operations, it.w.nodes[0..2]) |operation, *node| {
            try world.check_sum(operation);
            calls.release(node.s, operation);
        }
        return it.counter.allocations - before;
    }
};

test "a frame that comes again a million times costs no memory" {
    var it: Counted = undefined;
    try it.init();
    defer it.w.deinit();
    const node = &it.w.nodes[0];
    const operation = try world.sum(node, world.elements, .restart);
    try it.w.settle();
    var header = hostile_test.piece_of(node, operation);
    const lane = hostile_test.link_to(node, &it.w.nodes[1]).lanes[0].?;
    try expect(try hostile_test.inject(node, lane, header));

    const allocations, const bytes = .{ it.counter.allocations, it.counter.allocated_bytes };
    var frame: [wire.frame.header_bytes + world.elements * @sizeOf(u64)]u8 = @splat(7);
    const length = wire.frame.header_bytes + header.payload_bytes;
    for (0..1_000_000) |round| {
        header.again = @truncate(round);
        frame[0..wire.frame.header_bytes].* = wire.frame.encode(header);
        if (!hostile_test.feed(node, lane, frame[0..length])) return error.Closed;
    }
    try expectEqual(allocations, it.counter.allocations);
    try expectEqual(bytes, it.counter.allocated_bytes);
    calls.cancel(node.s, it.w.now, operation);
    try it.w.settle();
    calls.release(node.s, operation);
}

test "a call allocates as often for many pieces as for few" {
    // Goal: no allocation for a frame. Method: sums of one and of all elements, once both sizes
    // were summed before.
    var it: Counted = undefined;
    try it.init();
    defer it.w.deinit();
    for (0..2) |_| for ([_]u64{ 1, world.elements }) |count| {
        _ = try it.sum(count);
    };
    const few = try it.sum(1);
    try expectEqual(7, few); // docs/PERFORMANCE.md
    try expectEqual(few, try it.sum(world.elements));
}
