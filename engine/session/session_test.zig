//! Calls beyond those in flight: they begin in the order of the calls, and are like any other call
//! to whoever waits for them, gives them up, or leaves. The rules: session.zig and
//! protocol/member.zig; worlds as in world_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const hostile_test = @import("hostile_test.zig");
const session = @import("root.zig");
const world = @import("world_test.zig");
const world_of = @import("hostile_test.zig").form;
const Node = world.Node;
const Operation = session.Operation;
const World = world.World;
const at_once = limits.operations_in_flight_max;
const driver = session.driver;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectError = std.testing.expectError;
const gpa = std.testing.allocator;
const user = session.user;
const limits = base.limits;

const most = at_once + limits.operations_queued_max;

/// The calls of one peer, each with a tag and an array of its own.
const Caller = struct {
    node: *Node,
    operations: [most]*Operation = undefined,
    count: usize = 0,
    memory: [most]u64 = @splat(1),
    deadline: u64 = base.never,
    recovery: wire.control.Recovery = .resume_chunks,

    fn call(caller: *Caller, tag: u64) !void {
        const value = caller.memory[caller.count..][0..1];
        caller.operations[caller.count] = try caller.begin(tag, value, value);
        caller.count += 1;
    }

    fn begin(caller: *Caller, tag: u64, send: []u64, recv: [*]u64) !*Operation {
        const node = caller.node;
        return user.begin(node.s, node.world.now, node.group, .{
            .kind = .all_reduce,
            .send = @ptrCast(send.ptr),
            .recv = @ptrCast(recv),
            .count = send.len,
            .dtype = .u64,
            .tag = tag,
            .recovery = caller.recovery,
            .deadline = caller.deadline,
        });
    }

    fn call_all(caller: *Caller, first: u64, end: u64) !void {
        for (first..end) |tag| try caller.call(tag);
    }

    fn expect_sums(caller: *const Caller, value: u64) !void {
        for (caller.operations[0..caller.count], caller.memory[0..caller.count]) |operation, got| {
            try expect(operation.finished);
            try expectEqual(.ok, operation.status);
            try expectEqual(value, got);
        }
    }

    fn release(caller: *Caller) void {
        for (caller.operations[0..caller.count]) |operation|
            user.release(caller.node.s, operation);
        caller.count = 0;
        @memset(&caller.memory, 1);
    }
};

/// A world of two peers that call.
const Two = struct {
    w: World = .{ .gpa = gpa },
    callers: [2]Caller = undefined,

    fn form(two: *Two) !void {
        try world_of(&two.w, 2);
        for (&two.callers, two.w.nodes[0..2]) |*caller, *node| caller.* = .{ .node = node };
    }

    /// Both enter the next epoch, with a newcomer. Their calls so far belong to the last one.
    fn enter_next(two: *Two, newcomer: *Node) !void {
        const w = &two.w;
        try user.admit(newcomer.s, w.now, newcomer.group, base.never);
        try w.settle();
        for (&two.callers) |*caller|
            try user.admit(caller.node.s, w.now, caller.node.group, base.never);
        try w.settle();
    }
};

test "calls beyond those in flight wait, begin in their order, and all succeed" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    const first = &callers[0];
    try first.call_all(0, 200);
    try w.settle();
    // The others were told of those in flight alone, and the rest holds no large buffers.
    const s = first.node.s;
    try expectEqual(at_once, s.operations.items.len);
    try expectEqual(200, first.node.group.in_flight());
    for (first.operations[0..200], 0..) |operation, tag| {
        try expectEqual(tag < at_once, operation.op.state == .running);
        try expectEqual(tag < at_once, operation.work.movement.memory.shadow.len > 0);
    }
    // One after the other the places become free.
    for (0..200) |tag| {
        try callers[1].call(tag);
        try w.settle();
        try expect(first.operations[tag].finished);
        const end = @min(200, tag + 1 + at_once);
        for (tag + 1..end) |later| try expectEqual(.running, first.operations[later].op.state);
        for (end..200) |later| try expectEqual(.queued, first.operations[later].op.state);
    }
    for (callers) |*caller| {
        try expectEqual(0, caller.node.s.queue.count);
        try caller.expect_sums(2);
        caller.release();
    }
}

/// A message between the two, of one number.
const Message = struct { node: *Node, operation: *Operation, memory: *u64 };

fn message(node: *Node, part: session.Call.Part, tag: u64, memory: *u64) !Message {
    const operation = try user.begin(node.s, node.world.now, node.group, .{
        .kind = .send_recv,
        .part = part,
        .partner_rank = 1 - node.group.rank(),
        .send = @ptrCast(memory),
        .recv = @ptrCast(memory),
        .count = 1,
        .dtype = .u64,
        .tag = tag,
        .deadline = base.never,
    });
    return .{ .node = node, .operation = operation, .memory = memory };
}

test "many receives called before the sends hold up neither these nor a collective" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const each = 200;
    var received: [2][each]u64 = @splat(@splat(0));
    var sent: [2][each]u64 = @splat(@splat(0));
    var messages: [4 * each]Message = undefined;
    var count: usize = 0;
    for (w.nodes[0..2], &received) |*node, *memory| for (memory, 0..) |*number, tag| {
        messages[count] = try message(node, .recv, tag, number);
        count += 1;
    };
    try w.settle();
    for (&two.callers) |*caller| try caller.call_all(0, at_once);
    try w.settle();
    for (&two.callers) |*caller| try caller.expect_sums(2);
    for (w.nodes[0..2], &sent, 0..) |*node, *memory, index| for (memory, 0..) |*number, tag| {
        number.* = 1000 * index + tag;
        messages[count] = try message(node, .send, tag, number);
        count += 1;
        if (tag == 0) { // the other has told of none of its own yet
            const state = messages[count - 1].operation.op.state;
            try expect(state == .running or state == .voted);
        }
    };
    try w.settle();
    for (&messages) |*one| {
        try expect(one.operation.finished);
        try expectEqual(.ok, one.operation.status);
        user.release(one.node.s, one.operation);
    }
    for (received, 0..) |memory, index| for (memory, 0..) |number, tag|
        try expectEqual(1000 * (1 - index) + tag, number);
    for (&two.callers) |*caller| caller.release();
}

test "so many calls wait and no more, and those end like any other" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    try callers[0].call_all(0, most);
    var value = [1]u64{1};
    try expectError(error.TooManyOperations, callers[0].begin(most, &value, &value));
    // All members may be as far.
    try callers[1].call_all(0, most);
    try w.settle();
    for (callers) |*caller| {
        try expect(caller.node.connection != null);
        try caller.expect_sums(2);
        caller.release();
    }
    // The number of the call that was refused is free.
    try callers[1].call(most);
    const operation = try callers[0].begin(most, &value, &value);
    try w.settle();
    try callers[1].expect_sums(2);
    try expectEqual(2, value[0]);
    user.release(callers[0].node.s, operation);
    callers[1].release();
}

test "the tag and the memory of a call that waits are in use" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    const first = &callers[0];
    try first.call_all(0, at_once + 2);
    const last = first.operations[at_once + 1];
    try expectError(error.TagInUse, first.call(last.op.id.tag));
    var other = [1]u64{0};
    const in_use = first.memory[at_once + 1 ..][0..1];
    try expectError(error.BufferInUse, first.begin(5000, in_use, &other));
    user.leave(first.node.s, w.now, first.node.group);
    for (first.operations[0..first.count]) |operation| {
        try expect(operation.finished);
        try expectEqual(.cancelled, operation.status);
    }
    first.release();
}

test "the deadline of a call that waits runs from the call, and its number is used up" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    const first = &callers[0];
    try first.call_all(0, at_once);
    first.deadline = w.now + 2 * std.time.ns_per_s;
    try first.call(at_once);
    try expect(driver.next_deadline(first.node.s) <= first.deadline);
    first.deadline = base.never;
    try first.call(at_once + 1);
    try w.pass(std.time.ns_per_s);
    const late = first.operations[at_once];
    try expect(!late.finished);
    try w.pass(std.time.ns_per_s + std.time.ns_per_s / 4);
    try expectEqual(.deadline_exceeded, late.status);
    try expect(late.finished and late.ended_queued);
    try expectEqual(1, first.memory[at_once]);
    try expectEqual(.queued, first.operations[at_once + 1].op.state);
    // The other one hears of it at its call; all else goes on, and the next of the tag is in step.
    try callers[1].call_all(0, at_once + 2);
    try w.settle();
    try expectEqual(.aborted, callers[1].operations[at_once].status);
    try expectEqual(.ok, first.operations[at_once + 1].status);
    for (callers) |*caller| {
        caller.release();
        try caller.call(at_once);
    }
    try w.settle();
    for (callers) |*caller| {
        try expectEqual(.ok, caller.operations[0].status);
        caller.release();
    }
}

test "each call that waits ends at its own deadline" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const first = &two.callers[0];
    try first.call_all(0, at_once);
    for ([_]u64{ 6, 2, 4 }, 0..) |seconds, index| {
        first.deadline = w.now + seconds * std.time.ns_per_s;
        try first.call(at_once + index);
    }
    for ([_][3]bool{ .{ false, true, false }, .{ false, true, true }, @splat(true) }) |ended| {
        try w.pass(2 * std.time.ns_per_s + std.time.ns_per_s / 4);
        for (ended, first.operations[at_once..][0..3]) |is_ended, operation|
            try expectEqual(is_ended, operation.finished);
    }
    try two.callers[1].call_all(0, at_once + 3);
    try w.settle();
    for (&two.callers) |*caller| caller.release();
}

test "a call that waits ends at once when another member gives it up" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    try callers[0].call_all(0, at_once + 1);
    try callers[1].call(at_once);
    try w.settle();
    user.cancel(callers[1].node.s, w.now, callers[1].operations[0]);
    try w.settle();
    try expectEqual(.aborted, callers[0].operations[at_once].status);
    try expect(!callers[0].operations[0].finished);
    try expectEqual(0, callers[0].node.s.queue.count);
    callers[1].release();
    try callers[1].call_all(0, at_once);
    try w.settle();
    for (callers) |*caller| caller.release();
}

test "a peer that withdraws a call that waits leaves the group, as with any of several" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    try callers[0].call_all(0, at_once + 2);
    user.desert(callers[0].node.s, w.now, callers[0].operations[at_once]);
    for (callers[0].operations[0 .. at_once + 2]) |operation|
        try expectEqual(.cancelled, operation.status);
    try expectEqual(.left, callers[0].node.group.state);
    try w.settle();
    // The other goes on without it.
    try callers[1].call_all(0, at_once + 2);
    try w.settle();
    try callers[1].expect_sums(1);
    for (callers) |*caller| caller.release();
}

test "nobody is blamed for a call that waits: a member that is asked says that it has called" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    // 64 is called and asked about before it waits, 65 waits before it is asked about.
    try callers[1].call(at_once);
    try w.pass(8 * std.time.ns_per_s);
    try expect(has_missing(callers[1].operations[0]));
    try callers[0].call_all(0, at_once + 2);
    try callers[1].call(at_once + 1);
    try w.pass(8 * std.time.ns_per_s);
    const epoch = w.coordinator.run.groups.items[0].epochs.items[0];
    var found: usize = 0;
    for (epoch.records.items) |record| if (record.id.tag >= at_once) {
        found += 1;
        try expect(record.stall.called.has(0) and record.stall.called.has(1));
    };
    try expectEqual(2, found);
    for (callers[1].operations[0..2]) |operation| try expect(!has_missing(operation));
    // It is asked no more, and not many more than may be in flight are known of it.
    try callers[1].call_all(0, at_once);
    try w.settle();
    for (callers) |*caller| {
        try caller.expect_sums(2);
        caller.release();
    }
}

fn has_missing(operation: *const Operation) bool {
    return !operation.op.missing.is_empty();
}

test "calls that wait belong to their epoch, which is over when they are" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    const newcomer = try w.add();
    try w.settle();
    callers[0].deadline = w.now + 2 * std.time.ns_per_s;
    try callers[0].call_all(0, at_once);
    callers[0].deadline = base.never;
    try callers[0].call_all(at_once, at_once + 9);
    // The other has something in flight, too, so it does not close that epoch.
    try callers[1].call(at_once + 20);
    const before = callers[0].node.group.epoch();
    try two.enter_next(newcomer);
    try expectEqual(3, callers[0].node.group.world_size());
    const member = &callers[0].node.group.member;
    try expect(member.epoch_of(before) != null);
    try expectEqual(9, callers[0].node.s.queue.count);
    // The new epoch has room of its own.
    try callers[0].call(7);
    try expectEqual(.running, callers[0].operations[at_once + 9].op.state);
    // All that was in flight ends at once.
    try w.pass(3 * std.time.ns_per_s);
    for (callers[0].operations[0..at_once]) |operation|
        try expectEqual(.deadline_exceeded, operation.status);
    try expect(member.epoch_of(before) != null);
    w.kill(callers[1].node);
    try w.settle();
    for (callers[0].operations[at_once .. at_once + 9]) |operation| {
        try expect(operation.finished);
        try expectEqual(.ok, operation.status);
    }
    try expectEqual(null, member.epoch_of(before));
    user.leave(callers[0].node.s, w.now, callers[0].node.group);
    callers[0].release();
}

test "an epoch that was left is over when what waits in it fails alone" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    const newcomer = try w.add();
    try w.settle();
    callers[0].recovery = .complete;
    try callers[0].call_all(0, at_once + 9);
    try callers[1].call(at_once + 20); // so it does not close that epoch
    const before = callers[0].node.group.epoch();
    try two.enter_next(newcomer);
    w.kill(callers[1].node);
    try w.settle();
    for (callers[0].operations[0..callers[0].count]) |operation| {
        try expectEqual(.aborted, operation.status);
    }
    try expectEqual(null, callers[0].node.group.member.epoch_of(before));
    callers[0].release();
}

test "a loss does not disturb what waits, and the survivor goes on alone" {
    var two: Two = .{};
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    try callers[0].call_all(0, 3 * at_once);
    try callers[1].call_all(0, at_once / 2);
    for (0..40) |_| _ = try w.step();
    w.kill(callers[1].node);
    try w.settle();
    for (callers[0].operations[0..callers[0].count]) |operation| {
        try expect(operation.finished);
        try expectEqual(.ok, operation.status);
    }
    callers[0].release();
}

test "a call whose turn finds no memory is withdrawn for all, and later ones go on" {
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var failing: std.testing.FailingAllocator = .init(arena.allocator(), .{});
    var two: Two = .{};
    two.w.allocators[0] = failing.allocator();
    try two.form();
    defer two.w.deinit();
    const w = &two.w;
    const callers = &two.callers;
    try callers[0].call_all(0, at_once);
    const node = callers[0].node;
    var large: [4096]u64 = @splat(1);
    const waiting = try callers[0].begin(at_once, &large, &large);
    failing.fail_index = failing.alloc_index;
    user.cancel(node.s, w.now, callers[0].operations[0]);
    failing.fail_index = std.math.maxInt(usize);
    try expectEqual(.cancelled, waiting.status);
    try expect(waiting.ended_queued);
    user.release(node.s, waiting);
    try callers[0].call(at_once + 1);
    try w.settle();
    try callers[1].call_all(0, at_once + 2);
    try w.settle();
    for ([_]usize{ 0, at_once }) |index|
        try expectEqual(.aborted, callers[1].operations[index].status);
    for ([_]usize{ 1, at_once + 1 }) |index|
        try expectEqual(.ok, callers[1].operations[index].status);
    for (callers) |*caller| caller.release();
}

// ---- bounds
//
// Memory that does not grow with what others send, nor with the bytes of a call. Worlds as in
// world_test.zig, with an allocator that counts. Bounds on what peers make this one keep:
// hostile_test.zig.

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
            user.release(node.s, operation);
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
    user.cancel(node.s, it.w.now, operation);
    try it.w.settle();
    user.release(node.s, operation);
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
    try expectEqual(7, few); // docs/internals/ALGORITHMS.md, "How a link is filled"
    try expectEqual(few, try it.sum(world.elements));
}
