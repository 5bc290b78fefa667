//! Leaves that a runner hashes (state.zig), in a sync and in the background: they count when they
//! are hashed, and whatever ends an attempt or a fetch waits for them. Worlds as in sync_test.zig;
//! in every order: tests/sim.

const std = @import("std");
const base = @import("base");
const session = @import("root.zig");
const sync_test = @import("sync_test.zig");
const Node = @import("world_test.zig").Node;
const Case = sync_test.Case;
const Held = sync_test.Held;
const calls = session.calls;
const driver = session.driver;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

const leaves = sync_test.leaves;
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
        const world = idle.node.world;
        try world.settle();
        while (idle.count > 0) {
            const job = idle.take();
            job.run(job);
            driver.job_done(idle.node.s, world.now, job);
            try world.settle();
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
            calls.cancel(late.node.s, case.world.now, late.operation.?);
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
        } else calls.state_remove(late.node.s, late.node.group, late.state);
        try expectEqual(0, idle.count);
        // All of it is known, whether its hash has been told or was waited for.
        const state = late.state;
        for (0..leaves_all) |leaf| try expect(!state.lacks(@intCast(leaf)));
        if (how == 0) try expect(!late.node.group.is_fetching()) //
        else try calls.state_add(late.node.s, late.node.group, late.state);
    }
}
