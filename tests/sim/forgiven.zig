//! Forgiven: worlds in which one member gives up more operations than may be held against it at
//! once (limits.decisions_kept_max), and goes on. Aborts that everybody has seen are forgiven. A
//! member stores aborts whose calls it has not made up to the same bound, beyond which it forgets
//! the oldest. The rules: protocol/operation.zig (abort_now, acknowledge), protocol/member.zig
//! (store). Other long lives: endurance.zig.

const std = @import("std");
const base = @import("base");
const Borrowed = @import("borrowed.zig").Borrowed;
const Config = @import("swarm.zig").Config;
const Statistics = @import("statistics.zig").Statistics;
const Status = @import("protocol").Status;
const calls = @import("calls.zig");
const program = @import("program.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const World = world_file.World;
const Node = world_file.Node;
const expectEqual = std.testing.expectEqual;
const ms = world_file.ms;

const many = base.limits.decisions_kept_max + 100;
const peers = 3;

/// A world that does what the test says (as scenario.zig does), with all peers in one epoch.
const Stage = struct {
    arena: std.heap.ArenaAllocator,
    borrowed: Borrowed,
    statistics: Statistics = .{},
    world: World,

    /// The stage must not move afterwards.
    fn init(stage: *Stage) !void {
        const gpa = std.testing.allocator;
        stage.* = .{
            .arena = .init(gpa),
            .borrowed = try .init(gpa, 4 << 20, 0),
            .world = undefined,
        };
        var config = Config.plain();
        config.initial_world_size = peers;
        stage.world.init(.{
            .arena = stage.arena.allocator(),
            .backing = gpa,
            .borrowed = &stage.borrowed,
            .statistics = &stage.statistics,
            .config = config,
            .scripted = true,
        });
        for (0..peers) |_| _ = stage.world.add_peer(0);
        stage.run_for(100 * ms);
        for (stage.nodes()) |*node| {
            try expectEqual(.between, node.users[0].state);
            users.admit(&node.users[0]);
            stage.world.settle(node);
        }
        stage.run_for(100 * ms);
        for (stage.nodes()) |*node| try expectEqual(.between, node.users[0].state);
    }

    fn deinit(stage: *Stage) void {
        stage.world.deinit();
        stage.arena.deinit();
        stage.borrowed.deinit(std.testing.allocator);
    }

    fn nodes(stage: *Stage) []Node {
        return stage.world.nodes[1 .. 1 + peers];
    }

    fn run_for(stage: *Stage, ns: u64) void {
        const world = &stage.world;
        const end = world.now + ns;
        while (world.queue.peek()) |event| {
            if (event.at > end or world.failed()) break;
            _ = world.step();
        }
        world.now = end;
    }

    /// The call that has this place in the program of all.
    fn call(stage: *Stage, node: *Node, place: u32, tag: u64, deadline_ns: u64) !*calls.Work {
        const work = calls.lend(&node.users[0], .{
            .key = .{ .group = 0, .epoch = 0, .round = place, .index = 0 },
            .kind = .all_reduce,
            .count = 1,
            .recovery = .resume_chunks,
            .tag = tag,
            .root_rank = 0,
            .in_place = false,
            .average = false,
            .plan = .ring,
            .batch = 0,
            .waits = false,
        }, node.here() + deadline_ns, true).?;
        try calls.call(work);
        stage.world.settle(node);
        return work;
    }

    fn expect_together(stage: *Stage) !void {
        if (stage.world.checkers.violation) |*violation| {
            std.debug.print("{t}: {s}\n", .{ violation.check, violation.text() });
            return error.PromiseBroken;
        }
        for (stage.nodes()) |*node| {
            const group = node.users[0].group orelse return error.Expelled;
            try expectEqual(peers, group.alive());
            try expectEqual(1, group.attempt());
        }
    }
};

fn status_of(work: *const calls.Work) Status {
    return work.record.calls[work.node.digit()].status;
}

test "a member gives up more operations than may be held against it, and all have seen each" {
    var stage: Stage = undefined;
    try stage.init();
    defer stage.deinit();
    const second = 1000 * ms;
    for (0..many) |index| {
        const place: u32 = @intCast(index);
        calls.cancel(try stage.call(&stage.nodes()[0], place, 0, second));
        stage.run_for(5 * ms);
        for (stage.nodes()[1..]) |*node| {
            const work = try stage.call(node, place, 0, second);
            try expectEqual(.closed, work.state);
            try expectEqual(.aborted, status_of(work));
        }
    }
    try stage.expect_together();
    var last: [peers]*calls.Work = undefined;
    for (stage.nodes(), &last) |*node, *work| work.* = try stage.call(node, many, 0, second);
    stage.run_for(second);
    for (last) |work| {
        try expectEqual(.closed, work.state);
        try expectEqual(.ok, status_of(work));
    }
    try stage.expect_together();
}

test "a member that stores too many aborts forgets the oldest, whose call has its deadline left" {
    var stage: Stage = undefined;
    try stage.init();
    defer stage.deinit();
    const second = 1000 * ms;
    for (0..many) |index| {
        const place: u32 = @intCast(index);
        calls.cancel(try stage.call(&stage.nodes()[0], place, index, second));
        if (index % 16 == 0) stage.run_for(5 * ms);
    }
    stage.run_for(2 * second);
    try stage.expect_together();
    const late = &stage.nodes()[1];
    const stored = &late.users[0].group.?.member.current.?.aborts;
    try expectEqual(base.limits.decisions_kept_max, stored.items.len);
    const newest = try stage.call(late, many - 1, many - 1, second);
    try expectEqual(.aborted, status_of(newest));
    const oldest = try stage.call(late, 0, 0, second);
    stage.run_for(second / 2);
    try expectEqual(.running, oldest.state);
    stage.run_for(2 * second);
    try expectEqual(.deadline_exceeded, status_of(oldest));
    try stage.expect_together();
}
