//! Syncs in a world over perfect pipes (world_test.zig): who ends up with what, what moves, and
//! what happens when a source dies, lies or is late. Under every order of events: tests/sim.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const hostile_test = @import("hostile_test.zig");
const membership = @import("membership.zig");
const session = @import("root.zig");
const sync_file = @import("sync.zig");
const world_test = @import("world_test.zig");
const Requests = @import("link.zig").Requests;
const Node = world_test.Node;
const Operation = session.Operation;
const State = session.State;
const World = world_test.World;
const driver = session.driver;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const expectError = std.testing.expectError;
const gpa = std.testing.allocator;
const user = session.user;

pub const leaf_bytes = 16;
pub const leaves = 40;
pub const deadline_never = std.math.maxInt(u64) - 1;

/// One peer's state: a tensor of whole leaves, a short one, an empty one, and one of its own.
pub const Held = struct {
    node: *Node,
    state: *State = undefined,
    weights: [leaves * leaf_bytes]u8 = undefined,
    bias: [5]u8 = undefined,
    own: [3]u8 = undefined,
    rules: wire.control.StateRules = .{},
    operation: ?*Operation = null,

    const shapes = [_][]const u64{ &.{ leaves, leaf_bytes }, &.{5}, &.{ 0, 7 }, &.{3} };

    pub fn init(held: *Held, node: *Node, value: u8, revision: u64) !void {
        held.* = .{ .node = node };
        @memset(&held.weights, value);
        @memset(&held.bias, value);
        @memset(&held.own, @intCast(node.index));
        const tensors = [_]session.Tensor{
            .{ .name = "weights", .dtype = .u8, .shape = shapes[0], .data = &held.weights },
            .{ .name = "bias", .dtype = .u8, .shape = shapes[1], .data = &held.bias },
            .{ .name = "empty", .dtype = .f32, .shape = shapes[2], .data = null },
            .{
                .name = "own",
                .dtype = .u8,
                .shape = shapes[3],
                .data = &held.own,
                .may_differ = true,
            },
        };
        try held.share(&tensors, revision);
    }

    fn share(held: *Held, tensors: []const session.Tensor, revision: u64) !void {
        var at: usize = 0;
        held.state = try State.create(gpa, .{
            .name = "model",
            .tensors = tensors,
            .revision = revision,
            .rules = held.rules,
            .leaf_bytes = leaf_bytes,
        }, &at);
        try user.state_add(held.node.s, held.node.group, held.state);
    }

    /// Another state of the same name, of one tensor.
    fn share_anew(held: *Held, shape: []const u64, revision: u64) !void {
        user.state_remove(held.node.s, held.node.group, held.state);
        held.state.destroy();
        try held.share(&.{
            .{ .name = "weights", .dtype = .u8, .shape = shape, .data = &held.weights },
        }, revision);
    }

    /// The same tensors under these rules.
    fn rule(held: *Held, rules: wire.control.StateRules) void {
        held.rules = rules;
        held.state.rules = rules;
    }

    pub fn fetch(held: *const Held) ?*session.Transfer {
        return held.node.group.shared(held.state).?.prefetch;
    }

    pub fn deinit(held: *Held) void {
        if (held.node.alive) user.state_remove(held.node.s, held.node.group, held.state);
        held.state.destroy();
    }

    pub fn sync(held: *Held, strategy: wire.control.Strategy, deadline: u64) !void {
        try held.sync_at(null, strategy, deadline);
    }

    fn sync_at(
        held: *Held,
        revision: ?u64,
        strategy: wire.control.Strategy,
        deadline: u64,
    ) !void {
        held.state.hash_leaves(0, held.state.leaf_count());
        held.state.hash_root();
        held.operation = try user.begin_sync(held.node.s, held.node.world.now, .{
            .group = held.node.group,
            .state = held.state,
            .strategy = strategy,
            .revision = revision,
            .deadline = deadline,
        });
    }

    /// The call returns: what becomes of the user's memory.
    pub fn end(held: *Held, status: session.Status) !void {
        const operation = held.operation.?;
        try expect(operation.finished);
        try expectEqual(status, operation.status);
        if (status == .ok) held.state.apply();
        user.release(held.node.s, operation);
        held.operation = null;
    }

    /// Whatever is asked of it in this attempt, it does not answer; its lanes are well.
    fn hear_nothing(held: *Held) void {
        for (held.operation.?.work.sync.transfer.peers) |*peer| peer.is_linked = false;
    }

    pub fn expect_value(held: *const Held, value: u8, revision: u64) !void {
        try expect(std.mem.allEqual(u8, &held.weights, value));
        try expect(std.mem.allEqual(u8, &held.bias, value));
        try expect(std.mem.allEqual(u8, &held.own, @intCast(held.node.index)));
        try expectEqual(revision, held.state.revision);
    }
};

pub const Case = struct {
    world: World = .{ .gpa = gpa },
    held: [world_test.peers_max]Held = undefined,
    count: usize,

    /// Values and revisions by rank.
    pub fn init(case: *Case, values: []const u8, revisions: []const u64) !void {
        try case.init_at(false, values, revisions);
    }

    /// `is_far`: links are, and like several lanes.
    pub fn init_at(
        case: *Case,
        is_far: bool,
        values: []const u8,
        revisions: []const u64,
    ) !void {
        case.* = .{ .count = values.len };
        if (is_far) {
            const far_ns = 20 * std.time.ns_per_ms;
            case.world = .{ .gpa = gpa, .lanes = 0, .fragment_bytes_min = 1 };
            case.world.sample = .{ .acked = 0, .rtt_ns = far_ns, .base_ns = far_ns };
        }
        try case.world.init(values.len, @intCast(values.len));
        try case.world.settle();
        for (case.world.nodes[0..values.len]) |*node| {
            try user.admit(node.s, case.world.now, node.group, deadline_never);
        }
        try case.world.settle();
        for (values, revisions, 0..) |value, revision, index| {
            try case.held[index].init(&case.world.nodes[index], value, revision);
        }
    }

    pub fn deinit(case: *Case) void {
        for (case.held[0..case.count]) |*held| held.deinit();
        case.world.deinit();
    }

    pub fn all(case: *Case) []Held {
        return case.held[0..case.count];
    }

    pub fn sync_all(case: *Case) !void {
        for (case.all()) |*held| try held.sync(.popular, deadline_never);
        try case.world.settle();
    }
};

test "all equal: committed by the offers, and nothing moves" {
    var case: Case = undefined;
    try case.init(&.{ 7, 7, 7 }, &.{ 4, 4, 4 });
    defer case.deinit();
    try case.sync_all();
    for (case.all()) |*held| {
        const moved = held.operation.?.work.sync;
        try expectEqual(0, moved.bytes_sent + moved.bytes_received);
        try expectEqual(1, held.operation.?.op.attempts);
        try held.end(.ok);
        try held.expect_value(7, 5);
    }
}

test "as much is asked of a source as its link has in the air, and no peer may ask for more" {
    // Goal: the distance does not limit a sync. Method: a link that brings more than all leaves in
    // a round trip; then a peer that asks for more than any link has room for.
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    const late = &case.held[1];
    const flow = &hostile_test.link_to(late.node, case.held[0].node).flow;
    flow.base_ns = std.time.ns_per_s;
    flow.arriving = (leaves + 1) * base.limits.state_leaf_bytes / 2;
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const t = &late.operation.?.work.sync.transfer;
    while (t.phase != .leaves) try expect(try case.world.step());
    try expectEqual(leaves + 1, t.fetch.left);
    try expectEqual(leaves + 1, t.fetch.sources[0].count);

    const giver = case.held[0].node.s;
    const asks = hostile_test.link_to(case.held[0].node, late.node);
    var header = std.mem.zeroInit(wire.frame.Header, .{ .kind = .want });
    for (0..Requests.most) |index| {
        header.index = index;
        for (0..2) |_| try sync_file.on_prefetch_want(giver, asks, &header); // twice is once
    }
    header.index = Requests.most;
    try expectError(error.TooManyRequests, sync_file.on_prefetch_want(giver, asks, &header));
    asks.asked.clear(gpa);
    try case.world.settle();
    for (case.all()) |*held| try held.end(.ok);
    try late.expect_value(1, 4);
}

test "a link is measured by what comes in, too, for as long as it comes" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    const late = &case.held[1];
    case.world.sample = .{ .acked = 0, .retransmitted = 0, .rtt_ns = 1, .base_ns = 1 };
    try expectEqual(base.never, late.node.s.measure_at);
    try case.sync_all();
    try expect(late.node.s.measure_at < base.never);
    try case.world.pass(std.time.ns_per_s / 2);
    try expect(hostile_test.link_to(late.node, case.held[0].node).flow.arriving > 0);
    try expectEqual(base.never, late.node.s.measure_at);
    for (case.all()) |*held| try held.end(.ok);
}

test "a sync that stands names the link of the source that owes, and no other" {
    // Method: what two members send to the third stays under way, for less than the silence limit.
    // The third has asked one of them for the hashes of all leaves.
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    defer case.deinit();
    const w = &case.world;
    for (w.nodes[0..3]) |*node| node.s.settings.stall_warning_ns = 2 * std.time.ns_per_s;
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const late = case.held[2].operation.?;
    const t = &late.work.sync.transfer;
    while (t.hashes_from == null) try expect(try w.step());
    const source = t.hashes_from.?;
    t.discard(1 - source);
    for (case.held[0..2]) |*giver| {
        const link = hostile_test.link_to(giver.node, case.held[2].node);
        for (link.lanes) |place| if (place) |lane| {
            w.pipe_of(lane).stuck = lane;
        };
    }
    try w.pass(3 * std.time.ns_per_s);
    try expectEqual(1, late.op.stuck.count());
    try expect(late.op.stuck.has(source));
    for (w.pipes.items) |*pipe| pipe.stuck = null;
    try w.settle();
    for (case.all()) |*held| try held.end(.ok);
}

test "a sync that waits for another member is in the log by the name of its state" {
    var case: Case = undefined;
    try case.init(&.{ 7, 7 }, &.{ 4, 4 });
    defer case.deinit();
    try case.held[0].sync(.popular, deadline_never);
    try case.world.pass(7 * std.time.ns_per_s);
    const said = case.world.said[0..case.world.said_bytes];
    const wanted = "sync of \"model\" (sequence 0 of epoch 1) has been waiting ";
    try expect(std.mem.startsWith(u8, said, wanted));
    try case.held[1].sync(.popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| try held.end(.ok);
}

test "a sync that replaces what a member has says in its log what came, and from whom" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    defer case.deinit();
    try case.sync_all();
    const said = case.world.said[0..case.world.said_bytes];
    const what = "shared state \"model\": content of revision 3 replaces revision 0 of this " ++
        "peer; ";
    try expect(std.mem.startsWith(u8, said, what ++ "it came from peer "));
    try expect(std.mem.endsWith(u8, said, " (n0) and 1 more"));
    for (case.all()) |*held| try held.end(.ok);
    // Nobody's content changes: nothing is said.
    const lines = case.world.log_lines;
    try case.sync_all();
    try expectEqual(lines, case.world.log_lines);
    for (case.all()) |*held| try held.end(.ok);
}

test "equal contents of different revisions move nothing, and agree on the highest" {
    var case: Case = undefined;
    try case.init(&.{ 7, 7 }, &.{ 4, 9 });
    defer case.deinit();
    try case.sync_all();
    for (case.all()) |*held| {
        try expectEqual(0, held.operation.?.work.sync.leaves_moved);
        try held.end(.ok);
        try held.expect_value(7, 10);
    }
}

test "only leaves that differ move, from all who hold the elected content" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 1, 2 }, &.{ 3, 3, 3, 0 });
    defer case.deinit();
    const late = &case.held[3];
    // It has all but the bias and every other leaf.
    for (0..leaves) |leaf| if (leaf % 2 == 0) {
        @memset(late.weights[leaf * leaf_bytes ..][0..leaf_bytes], 1);
    };
    try case.sync_all();
    const moved = late.operation.?.work.sync;
    try expectEqual(leaves / 2 + 1, moved.leaves_moved);
    try expectEqual(3, moved.sources.count());
    var sent: u64 = 0;
    for (case.all()) |*held| sent += held.operation.?.work.sync.bytes_sent;
    // The last ones may have been asked of two.
    try expect(moved.bytes_received <= sent and sent <= moved.bytes_received + 8 * leaf_bytes);
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
    // And once more, from the content that was written.
    try case.sync_all();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 5);
    }
}

test "strategies: who insists gives, who only receives never does" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3 }, &.{ 9, 0, 9 });
    defer case.deinit();
    try case.held[0].sync(.popular, deadline_never);
    try case.held[1].sync(.send_only, deadline_never);
    try case.held[2].sync(.receive_only, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(2, 1);
    }
    for (case.all()) |*held| {
        @memset(&held.bias, @intCast(held.node.index));
        try held.sync(.receive_only, deadline_never);
    }
    try case.world.settle();
    for (case.all()) |*held| try held.end(.state_unavailable);
    for (case.all(), 0..) |*held, index| {
        try held.sync(if (index == 1) .popular else .send_only, deadline_never);
    }
    try case.world.settle();
    for (case.all()) |*held| {
        const failure = &held.operation.?.failure;
        try expectEqual(.state_conflict, failure.reason.?);
        try expect(failure.peer.eql(case.world.nodes[0].s.self));
        try expect(failure.other.eql(case.world.nodes[2].s.self));
        try held.end(.mismatch);
        try expect(std.mem.allEqual(u8, &held.bias, @intCast(held.node.index)));
    }
}

test "structures that differ are listed to everybody" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 1 }, &.{ 0, 0, 0 });
    defer case.deinit();
    const other = &case.held[1];
    user.state_remove(other.node.s, other.node.group, other.state);
    other.state.destroy();
    try other.share(&.{
        .{ .name = "weights", .dtype = .u8, .shape = &.{7}, .data = &other.weights },
        .{ .name = "gain", .dtype = .u8, .shape = &.{5}, .data = &other.bias },
    }, 0);
    try case.sync_all();
    for (case.all()) |*held| {
        const text = held.operation.?.work.sync.differs();
        const only = "rank 0 (n0, 00000000) against rank 1 (n1, 00000000): \"bias\" is only " ++
            "on rank 0";
        for ([_][]const u8{ only, "\"gain\"", "u8[40, 16]", "u8[7]" }) |part| {
            try expect(std.mem.indexOf(u8, text, part) != null);
        }
        try expectEqual(.structure, held.operation.?.failure.reason.?);
        try held.end(.mismatch);
    }
}

test "a newcomer whose state does not fit is refused alone, told both, and the others have theirs" {
    // Method: another shape, and a content that it insists on beside a member that does.
    for ([_]bool{ true, false }) |is_shape| {
        var case: Case = undefined;
        try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
        defer case.deinit();
        const w = &case.world;
        const node = try w.add();
        try w.settle();
        try w.admit_all();
        case.count = 4;
        const late = &case.held[3];
        try late.init(node, 9, 9);
        if (is_shape) {
            user.state_remove(node.s, node.group, late.state);
            late.state.destroy();
            try late.share(&.{
                .{ .name = "weights", .dtype = .u8, .shape = &.{ 39, 16 }, .data = &late.weights },
            }, 9);
        }
        for (case.all()) |*held| {
            const insists = !is_shape and (held == late or held == &case.held[0]);
            try held.sync(if (insists) .send_only else .popular, deadline_never);
        }
        try w.settle();
        try w.pass(std.time.ns_per_s / 2);
        for (case.held[0..3]) |*held| {
            try held.end(.ok);
            try held.expect_value(1, 4);
        }
        try late.end(.mismatch);
        const why = node.group.why_removed();
        const shapes = [_][]const u8{ "u8[40, 16]", "u8[39, 16]" };
        const words = [_][]const u8{ "insists on its content", "send_only" };
        for (if (is_shape) shapes else words) |part| {
            try expect(std.mem.indexOf(u8, why, part) != null);
        }
        try expect(std.mem.allEqual(u8, &late.weights, 9));
        try expectEqual(3, w.nodes[0].group.alive());
    }
}

// ---- revisions that are given, and rules

test "a revision that the caller gives is that of this call, and an outcome names who had it" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 2 }, &.{ 3, 3, 3 });
    defer case.deinit();
    try case.held[0].sync_at(70, .popular, deadline_never);
    for (case.all()[1..]) |*held| try held.sync(.popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| {
        const operation = held.operation.?;
        try expectEqual(70, operation.work.sync.revision);
        try expect(sync_file.contributors(operation).eql(&.full(3)));
        try expect(sync_file.holders(operation).eql(&.full(1)));
        try held.end(.ok);
        try held.expect_value(1, 71);
    }
    // A call that fails leaves the state's own, and one that moves nothing was held by all.
    const last = base.limits.state_revisions_max;
    try expectError(error.RevisionTooLarge, case.held[0].sync_at(last, .popular, deadline_never));
    for (case.all()) |*held| try held.sync_at(9, .receive_only, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| try held.end(.state_unavailable);
    try case.sync_all();
    for (case.all()) |*held| {
        try expectEqual(71, held.operation.?.work.sync.revision);
        try expect(sync_file.holders(held.operation.?).eql(&.full(3)));
        try held.end(.ok);
        try held.expect_value(1, 72);
    }
}

test "hashes are counted apart from what they are of" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    try case.sync_all();
    const bytes = leaves * leaf_bytes + 5;
    const hashes = (leaves + 1) * @sizeOf(wire.control.Hash);
    for (case.all(), [_][2]u64{ .{ bytes, hashes }, .{ 0, 0 } }, 0..) |*held, sent, index| {
        const moved = held.operation.?.work.sync;
        try expectEqual(sent[0], moved.bytes_sent);
        try expectEqual(sent[1], moved.hash_bytes_sent);
        try expectEqual(bytes * index, moved.bytes_received);
        try expectEqual(hashes * index, moved.hash_bytes_received);
        try held.end(.ok);
    }
}

test "successive: the revision goes up by one, and content of another one is not taken" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 7 });
    defer case.deinit();
    for (case.all()) |*held| held.rule(.{ .successive = true });
    try case.sync_all(); // the first: any
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(2, 8);
    }
    @memset(&case.held[2].weights, 9);
    for (case.all(), [_]?u64{ null, null, 1000 }) |*held, revision|
        try held.sync_at(revision, .popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(2, 9);
    }
    // Nobody has it: nothing is elected, also if all have the same.
    for (case.all()) |*held| try held.sync_at(10, .popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| {
        try held.end(.state_unavailable);
        try held.expect_value(2, 9);
    }
    // One that has made its state anew knows of no commit, and receives.
    user.state_remove(case.held[0].node.s, case.held[0].node.group, case.held[0].state);
    case.held[0].state.destroy();
    try case.held[0].init(&case.world.nodes[0], 4, 50);
    case.held[0].rule(.{ .successive = true });
    try case.sync_all();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(2, 10);
    }
}

test "a member that has missed a commit takes part with the revision that its program gives" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1 }, &.{ 3, 3 });
    defer case.deinit();
    for (case.all()) |*held| held.rule(.{ .successive = true });
    try case.sync_all();
    for (case.all()) |*held| try held.end(.ok);
    case.held[0].state.revision = 3; // as after a doubt
    try case.held[0].sync_at(4, .popular, deadline_never);
    try case.held[1].sync(.popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 5);
    }
}

test "holders are those of the attempt that was committed" {
    // Method: the only other one is lost when it has given a little; then its content is nobody's.
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 2 }, &.{ 9, 3, 3 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    try run_until_moved(&case, &case.held[1], 2);
    case.world.kill(case.held[0].node);
    try case.world.settle();
    for (case.all()[1..]) |*held| {
        const operation = held.operation.?;
        var left: base.Mask = .full(3);
        left.unset(0);
        try expectEqual(2, operation.op.attempts);
        try expect(sync_file.contributors(operation).eql(&left));
        try expect(sync_file.holders(operation).eql(&left));
        try held.end(.ok);
        try held.expect_value(2, 4);
    }
}

test "refuse: a member from before goes whose structure, or revision, is not that of the others" {
    for ([_]bool{ true, false }) |is_shape| {
        var case: Case = undefined;
        try case.init(&.{ 1, 1, 1 }, &.{ 3, 3, 3 });
        defer case.deinit();
        for (case.all()) |*held| held.rule(.{ .successive = true, .refuse = true });
        try case.sync_all();
        for (case.all()) |*held| try held.end(.ok);
        const odd = &case.held[1];
        if (is_shape) try odd.share_anew(&.{ 39, 16 }, 4);
        for (case.all()) |*held| {
            const revision: ?u64 = if (!is_shape and held == odd) 1000 else null;
            try held.sync_at(revision, .popular, deadline_never);
        }
        try case.world.settle();
        try case.world.pass(std.time.ns_per_s / 2);
        for ([_]*Held{ &case.held[0], &case.held[2] }) |held| {
            try held.end(.ok);
            try held.expect_value(1, 5);
        }
        try odd.end(.mismatch);
        const why = odd.node.group.why_removed();
        const words = if (is_shape) "u8[39, 16] on rank 1" else "is above 4";
        try expect(std.mem.indexOf(u8, why, words) != null);
        try expectEqual(2, case.world.nodes[0].group.alive());
    }
}

test "one_sender: all hear of two that give, and nothing is written" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3 }, &.{ 0, 0, 0 });
    defer case.deinit();
    for (case.all()) |*held| held.rule(.{ .one_sender = true });
    try case.held[0].sync(.receive_only, deadline_never);
    try case.held[1].sync(.popular, deadline_never);
    try case.held[2].sync(.send_only, deadline_never);
    try case.world.settle();
    for (case.all(), 1..) |*held, value| {
        const failure = &held.operation.?.failure;
        try expectEqual(.state_strategy, failure.reason.?);
        try expect(failure.peer.eql(case.world.nodes[1].s.self));
        try expect(failure.other.eql(case.world.nodes[2].s.self));
        try held.end(.mismatch);
        try held.expect_value(@intCast(value), 0);
    }
    for (case.all(), 0..) |*held, index|
        try held.sync(if (index == 2) .send_only else .receive_only, deadline_never);
    try case.world.settle();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(3, 1);
    }
}

/// Steps until the peer has so many leaves.
fn run_until_moved(case: *Case, held: *Held, count: u32) !void {
    while (held.operation.?.work.sync.leaves_moved < count) try expect(try case.world.step());
}

test "a source that dies is replaced, and what it gave is kept" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const late = &case.held[2];
    try run_until_moved(&case, late, 10);
    case.world.kill(case.held[0].node);
    try case.world.settle();
    try expectEqual(2, late.operation.?.op.attempts);
    try expectEqual(leaves + 1, late.operation.?.work.sync.leaves_moved); // none of them twice
    for (case.held[1..3]) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "what a member has fetched and voted for outlives the last one who held it" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 3 }, &.{ 3, 0, 0 });
    defer case.deinit();
    @memset(&case.held[1].bias, 2);
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    // The second has everything and has voted, the third has not, when the first dies.
    while (!case.held[1].operation.?.work.sync.voted) try expect(try case.world.step());
    const last = &case.held[2];
    try expect(!last.operation.?.work.sync.voted);
    case.world.kill(case.held[0].node);
    try case.world.settle();
    for (case.held[1..3]) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "the only holder dies before anybody has everything: the rest agree on what they have" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3 }, &.{ 3, 1, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    try run_until_moved(&case, &case.held[1], 5);
    case.world.kill(case.held[0].node);
    try case.world.settle();
    for (case.held[1..3]) |*held| {
        try held.end(.ok);
        try held.expect_value(2, 2);
    }
}

test "an answer that is lost on a lane which only its sender believes in is asked for again" {
    // Found by the simulator: the one that asked had closed the lane before, so it missed nothing.
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    const w = &case.world;
    const pipe = w.pipes.orderedRemove(0);
    const here, const there = if (pipe.node_a == case.held[0].node) //
        .{ pipe.a, pipe.b }
    else
        .{ pipe.b, pipe.a };
    driver.closed(case.held[1].node.s, w.now, there);
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    var slices: [2][]const u8 = undefined;
    for (0..40) |_| { // what goes there is never heard of again
        _ = try w.step();
        const count = driver.send_slices(case.held[0].node.s, w.now, here, &slices);
        for (slices[0..count]) |slice| driver.sent(case.held[0].node.s, w.now, here, slice.len);
    }
    try w.settle();
    try expect(!case.held[1].operation.?.finished);
    driver.closed(case.held[0].node.s, w.now, here);
    try w.settle();
    w.now += std.time.ns_per_s / 10;
    w.coordinator.tick(w.now);
    try w.settle();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "a member without a link to any holder gets it from one that has got it before" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3, 4 }, &.{ 3, 0, 0, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    // As in a group of more than 32: links only to neighbours.
    for ([_][2]usize{ .{ 0, 2 }, .{ 0, 3 }, .{ 1, 3 } }) |pair| {
        case.held[pair[0]].operation.?.work.sync.transfer.peers[pair[1]].is_linked = false;
        case.held[pair[1]].operation.?.work.sync.transfer.peers[pair[0]].is_linked = false;
    }
    try case.world.settle();
    for (case.held[1..4], 0..) |*held, before| {
        var source: base.Mask = .empty;
        source.set(before);
        try expect(held.operation.?.work.sync.sources.eql(&source));
    }
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "a link that ends beside a sync ends nothing, whether or not anybody was asked on it" {
    // Goal: in a group of more than 32 a link that a message has left behind may end at any time.
    // Method: as above, with a link between the last member and one that holds nothing yet.
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3, 4 }, &.{ 3, 0, 0, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    for ([_][2]usize{ .{ 0, 2 }, .{ 0, 3 } }) |pair| {
        case.held[pair[0]].operation.?.work.sync.transfer.peers[pair[1]].is_linked = false;
        case.held[pair[1]].operation.?.work.sync.transfer.peers[pair[0]].is_linked = false;
    }
    const last = &case.held[3];
    const sync = last.operation.?.work.sync;
    while (sync.transfer.phase != .hashes) try expect(try case.world.step());
    try expect(!sync.transfer.fetch.has_sources());
    const link = hostile_test.link_to(last.node, case.held[1].node);
    sync_file.link_gone(last.node.s, last.operation.?, link);
    case.held[1].operation.?.work.sync.transfer.peers[3].is_linked = false;
    try case.world.settle();
    var source: base.Mask = .empty;
    source.set(2);
    try expect(sync.sources.eql(&source));
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "a holder that answers pings and gives nothing is not waited for" {
    var case: Case = undefined;
    try case.init(&.{ 1, 5, 2 }, &.{ 3, 0, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    case.held[0].hear_nothing();
    const late = &case.held[2];
    const patience_ns = 2 * late.node.s.settings.silence_ns;
    try case.world.pass(patience_ns - std.time.ns_per_s);
    try expectEqual(0, late.operation.?.work.sync.transfer.hashes_from.?);
    try expect(!late.operation.?.finished);
    try case.world.pass(2 * std.time.ns_per_s);
    for (case.all()) |*held| try held.end(.state_unavailable);
    // Nobody is let go for it.
    for (case.all()) |*held| try expectEqual(3, held.node.group.alive());
}

test "hashes that were asked for in an attempt that has passed are asked for anew" {
    // Goal: no time passes before they are. Method: a member dies while they are on their way.
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 1 }, &.{ 3, 0, 3 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const late = &case.held[1];
    while (late.operation.?.work.sync.transfer.hashes_from == null)
        try expect(try case.world.step());
    case.world.kill(case.held[2].node);
    try case.world.settle();
    for (case.held[0..2]) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "a sync in doubt, whose state is the caller's again, gives up a source like any other" {
    // Goal: what was asked for before is still owed in the attempt after the doubt, and its state
    // has no name any more. Method: the doubt's own steps, while a holder gives no leaf.
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const late = &case.held[1];
    const operation = late.operation.?;
    const t = &operation.work.sync.transfer;
    while (t.phase != .leaves) try expect(try case.world.step());
    case.held[0].hear_nothing();
    while (!t.has_said_all(0)) try expect(try case.world.step());
    try expect(t.fetch.owes(0));
    const s = late.node.s;
    sync_file.over(case.world.nodes[0].s, operation, false);
    sync_file.start(s, operation);
    s.now += 2 * s.settings.silence_ns;
    sync_file.tick(s, operation, false);
    try expect(!t.fetch.owes(0) and !t.fetch.may_wait());
    for (case.all()) |*held| user.cancel(held.node.s, s.now, held.operation.?);
    try case.world.settle();
    for (case.all()) |*held| try held.end(held.operation.?.status);
}

test "one who is slow with the hashes is asked again when another one has lied" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    defer case.deinit();
    const late = &case.held[2];
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const slow = hostile_test.link_to(case.held[0].node, late.node);
    for (slow.lanes) |place| if (place) |lane| {
        case.world.pipe_of(lane).stuck = lane;
    };
    const liar = &case.held[1];
    @memset(&liar.weights, 9);
    liar.state.hash_leaves(0, liar.state.leaf_count());
    try case.world.pass(late.node.s.settings.silence_ns / 4 + std.time.ns_per_s / 2);
    try expectEqual(null, late.operation.?.work.sync.transfer.hashes_from);
    try expect(!late.operation.?.finished);
    for (slow.lanes) |place| if (place) |lane| {
        case.world.pipe_of(lane).stuck = null;
    };
    try case.world.pass(2 * std.time.ns_per_s);
    for (case.all()) |*held| try held.end(.ok);
    try late.expect_value(1, 4);
}

test "who asks for what there is not, or brings it, breaks the protocol; other pages are dropped" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    const held = &case.held[1];
    try held.sync(.popular, deadline_never);
    const s = held.node.s;
    const operation = held.operation.?;
    const sync = operation.work.sync;
    const link = hostile_test.link_to(held.node, case.held[0].node);
    var header = std.mem.zeroInit(wire.frame.Header, .{ .kind = .want });
    header.index = held.state.leaf_count();
    try expectError(error.UnknownLeaf, sync_file.on_want(s, link, operation, &header));
    header.class = 1; // pages
    header.index = held.state.page_count();
    try expectError(error.UnknownLeaf, sync_file.on_want(s, link, operation, &header));

    sync.transfer.phase = .hashes;
    sync.transfer.hashes_from = sync.transfer.find(link.peer);
    header = std.mem.zeroInit(wire.frame.Header, .{ .kind = .hashes });
    header.payload_bytes = @intCast(State.page_of(held.state.wanted, 0).len);
    const lane = link.lanes[0].?;
    header.index = held.state.page_count();
    try expectError(error.UnknownPage, sync_file.place(s, lane, operation, &header));
    header.index = 0;
    sync.transfer.pages_got = 1; // it has come already
    try expectEqual(null, try sync_file.place(s, lane, operation, &header));
    sync.transfer.pages_got = 0;
    try expect(try sync_file.place(s, lane, operation, &header) != null);

    // That another has everything by now may come before it is known what was elected.
    sync.transfer.phase = .offered;
    sync_file.on_open(s, link, operation);
    try expect(sync.transfer.peers[sync.transfer.find(link.peer).?].gives);
    sync.transfer.hashes_from = null;
    sync.transfer.peers[sync.transfer.find(link.peer).?].gives = false;
    try case.held[0].sync(.popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*each| try each.end(.ok);
}

test "what is elected counts when the offer of this attempt has been made" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1 }, &.{ 3, 3 });
    defer case.deinit();
    const held = &case.held[0];
    try held.sync(.popular, deadline_never);
    const sync = held.operation.?.work.sync;
    const offered = sync.transfer.phase;
    sync.transfer.phase = .begun;
    sync_file.elected(held.node.s, held.operation.?, &std.mem.zeroInit(wire.control.StateElected, .{
        .revision = sync.revision,
        .root = sync.root,
        .holders = base.Mask.full(2),
    }));
    try expectEqual(.begun, sync.transfer.phase);
    sync.transfer.phase = offered;
    try case.held[1].sync(.popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*each| try each.end(.ok);
}

test "hashes that do not come are asked of another before their source can be lost" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 1, 2 }, &.{ 3, 3, 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    case.held[0].hear_nothing();
    case.held[1].hear_nothing();
    const late = &case.held[3];
    const silence_ns = late.node.s.settings.silence_ns;
    const second_ns = std.time.ns_per_s;
    try case.world.pass(silence_ns / 4 - second_ns / 2);
    try expectEqual(0, late.operation.?.work.sync.transfer.hashes_from.?);
    try case.world.pass(second_ns);
    try expectEqual(1, late.operation.?.work.sync.transfer.hashes_from.?);
    // The second one is given twice the time.
    try case.world.pass(silence_ns / 2 - second_ns);
    try expectEqual(1, late.operation.?.work.sync.transfer.hashes_from.?);
    try case.world.pass(second_ns);
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
    for (case.all()) |*held| try expectEqual(4, held.node.group.alive());
}

test "a newcomer does not wait to enter for members that answer pings and give nothing" {
    for ([_]bool{ false, true }) |all| {
        var case: Case = undefined;
        const late = try newcomer_case(&case);
        defer case.deinit();
        const fetching = late.fetch().?;
        const first = fetching.hashes_from.?;
        if (all) for (0..fetching.peers.len) |source| {
            if (source != first) fetching.fetch.discard(@intCast(source));
        };
        // The first request is lost: what it asked for never comes.
        fetching.peers[first].wants_page = null;
        try user.admit(late.node.s, case.world.now, late.node.group, deadline_never);
        const patience_ns = 2 * late.node.s.settings.silence_ns;
        try case.world.pass(patience_ns - std.time.ns_per_s);
        try expect(late.node.group.admit_waits);
        try case.world.pass(2 * std.time.ns_per_s);
        try expect(!late.node.group.is_fetching() and !late.node.group.admit_waits);
        for (late.state.staged) |place| {
            if (all) try expectEqual(null, place) else try expectEqual(1, place.?[0]);
        }
    }
}

test "a member whose link to the only holder is broken waits for another that has got it" {
    // The only holder and the last member have lost their lanes for good: nobody dials.
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3, 4 }, &.{ 3, 0, 0, 0 });
    defer case.deinit();
    const holder = &case.held[0];
    const last = &case.held[3];
    const link = hostile_test.link_to(last.node, holder.node);
    case.world.cut(link);
    try case.world.pass(100 * std.time.ns_per_ms);
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    // It asks nobody in vain, and nobody is given up, however long it takes.
    try case.world.pass(3 * last.node.s.settings.silence_ns);
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
        try expectEqual(4, held.node.group.alive());
    }
}

test "the only holder is out of reach of the only other member: it is asked once a lane is back" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    const other = &case.held[1];
    const link = hostile_test.link_to(other.node, case.held[0].node);
    case.world.cut(link);
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    try case.world.pass(other.node.s.settings.silence_ns / 2);
    try expect(!other.operation.?.finished);
    link.retry_at = 0;
    try case.world.pass(2 * std.time.ns_per_s);
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "leaves that are not what they should be are asked of another" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    // A user that writes while it must not: a holder sends what it has not offered.
    @memset(&case.held[0].weights, 9);
    try case.world.settle();
    const late = &case.held[2];
    try expectEqual(leaves + 1, late.operation.?.work.sync.leaves_moved);
    for (case.all()) |*held| try held.end(.ok);
    try late.expect_value(1, 4);
    try case.held[1].expect_value(1, 4);
}

test "a page of hashes that is not that of the elected root is asked of another" {
    // Goal: no source can give something else leaf by leaf, each with a hash that fits it. Method:
    // the first one that is asked writes while it must not, and hashes what it has written.
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 2 }, &.{ 3, 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    const late = &case.held[2];
    const liar = &case.held[0];
    @memset(&liar.weights, 9);
    liar.state.hash_leaves(0, liar.state.leaf_count());
    const moved = &late.operation.?.work.sync.transfer;
    while (moved.hashes_from == null) try expect(try case.world.step());
    try expectEqual(0, late.operation.?.work.sync.transfer.hashes_from);
    try case.world.settle();
    try expectEqual(leaves + 1, late.operation.?.work.sync.leaves_moved);
    try expect(!late.operation.?.work.sync.sources.has(0));
    for (case.all()) |*held| try held.end(.ok);
    try late.expect_value(1, 4);
    try case.held[1].expect_value(1, 4);
}

test "who lies about a vote does not get leaves that are on their way to another content" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2, 3, 1 }, &.{ 0, 3, 0, 0 });
    defer case.deinit();
    const liar = &case.held[0];
    const honest = &case.held[2];
    // A leaf that it need not fetch, and so does not stage.
    @memset(honest.weights[(leaves - 1) * leaf_bytes ..], 2);
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    while (!honest.operation.?.work.sync.voted) try expect(try case.world.step());
    case.world.kill(case.held[3].node);
    const lie = liar.operation.?.work.sync;
    lie.voted = true;
    lie.root = liar.state.root;
    const first = honest.operation.?.op.attempts;
    const sync = honest.operation.?.work.sync;
    while (honest.operation.?.op.attempts == first or sync.transfer.phase != .leaves or
        !sync.transfer.has_said_all(0)) try expect(try case.world.step());
    try expectEqual(null, honest.state.staged[leaves]);
    const link = hostile_test.link_to(honest.node, liar.node);
    // It was asked for before.
    try sync.transfer.peers[0].asked.push(gpa, .{ .class = 0, .index = leaves });
    var slices: [2][]const u8 = undefined;
    for (link.lanes) |place| if (place) |lane| {
        _ = driver.send_slices(honest.node.s, case.world.now, lane, &slices);
    };
    try case.world.settle();
    for (case.held[0..3]) |*held| try expect(held.operation.?.finished);
}

test "revisions end at their limit, and nobody is let go for it" {
    var case: Case = undefined;
    const last = base.limits.state_revisions_max;
    try case.init(&.{ 7, 7 }, &.{ 0, last - 1 });
    defer case.deinit();
    for (0..3) |_| {
        try case.sync_all();
        for (case.all()) |*held| {
            try held.end(.ok);
            try held.expect_value(7, last);
        }
    }
}

test "a holder that is the only one and writes meanwhile makes the sync fail, and nothing changes" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    @memset(&case.held[0].weights, 9);
    try case.world.settle();
    try case.held[0].end(.state_unavailable);
    try case.held[1].end(.state_unavailable);
    try case.held[1].expect_value(2, 0);
    @memset(&case.held[0].weights, 1);
    try case.sync_all();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 4);
    }
}

test "who waits for a member that never calls is told so at its deadline, not left in doubt" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1, 1 }, &.{ 0, 0, 0 });
    defer case.deinit();
    try case.held[0].sync(.popular, case.world.now + 1000);
    try case.held[1].sync(.popular, deadline_never);
    try case.world.settle();
    try expect(!case.held[0].operation.?.finished);
    case.world.now += 1000;
    driver.tick(case.held[0].node.s, case.world.now);
    try expect(!case.held[0].operation.?.finished); // the coordinator is asked
    try case.world.settle();
    try case.held[0].end(.deadline_exceeded);
    try case.held[1].end(.aborted);
    // The one that comes late finds it aborted.
    try case.held[2].sync(.popular, deadline_never);
    try case.held[2].end(.aborted);
    try case.sync_all();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 1);
    }
}

test "a sync that is cancelled after its offer is in doubt, and aborted for the others" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1 }, &.{ 0, 0 });
    defer case.deinit();
    try case.held[0].sync(.popular, deadline_never);
    try case.world.settle();
    user.cancel(case.held[0].node.s, case.world.now, case.held[0].operation.?);
    try case.held[0].end(.in_doubt);
    try case.world.settle();
    try expectEqual(0, case.held[0].node.s.operations.items.len);
    try case.held[1].sync(.popular, deadline_never);
    try case.held[1].end(.aborted);
}

test "a holder that is cancelled while others fetch gives nothing more, and all are told" {
    var case: Case = undefined;
    try case.init(&.{ 1, 2 }, &.{ 3, 0 });
    defer case.deinit();
    for (case.all()) |*held| try held.sync(.popular, deadline_never);
    try run_until_moved(&case, &case.held[1], 5);
    const holder = &case.held[0];
    user.cancel(holder.node.s, case.world.now, holder.operation.?);
    try holder.end(.in_doubt);
    @memset(&holder.weights, 9); // its own again
    try case.world.settle();
    try case.held[1].end(.aborted);
    try case.held[1].expect_value(2, 0);
    try expectEqual(0, holder.node.s.operations.items.len);
}

test "a call that would use the memory of a sync is refused, and so is a reserved tag" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1 }, &.{ 0, 0 });
    defer case.deinit();
    const held = &case.held[0];
    try held.sync(.popular, deadline_never);
    var call: session.Call = .{
        .kind = .all_reduce,
        .send = &held.weights,
        .recv = &held.weights,
        .count = 8,
        .deadline = deadline_never,
    };
    const s = held.node.s;
    try expectError(error.BufferInUse, user.begin(s, case.world.now, held.node.group, call));
    call.send = &held.own;
    call.recv = &held.own;
    call.count = 3;
    call.tag = base.limits.state_tags_first;
    try expectError(error.TagReserved, user.begin(s, case.world.now, held.node.group, call));
    try case.held[1].sync(.popular, deadline_never);
    try case.world.settle();
    for (case.all()) |*each| try each.end(.ok);
}

// ---- fetched before the newcomer enters (sync.zig)

/// Two members that have synced once, and a newcomer whose lanes are open.
pub fn newcomer_case(case: *Case) !*Held {
    return newcomer_at(case, false);
}

/// `is_far`: as in Case.init_at.
pub fn newcomer_at(case: *Case, is_far: bool) !*Held {
    try case.init_at(is_far, &.{ 1, 1 }, &.{ 0, 0 });
    for (case.all()) |*held| held.state.serves = true;
    try case.sync_all();
    for (case.all()) |*held| try held.end(.ok);
    const node = try case.world.add();
    try case.world.settle();
    try expect(node.ready);
    const late = &case.held[2];
    case.count = 3;
    try late.init(node, 2, 0);
    late.state.serves = true;
    late.state.hash_leaves(0, late.state.leaf_count());
    late.state.hash_root();
    try user.prefetch_begin(node.s, case.world.now, node.group, late.state);
    try expect(node.group.is_fetching());
    return late;
}

/// Leaves that have not been fetched.
fn missing(state: *const State) usize {
    var count: usize = 0;
    for (state.staged) |place| count += @intFromBool(place == null);
    return count;
}

pub fn admit_all(case: *Case) !void {
    // The newcomer last in the list first: nobody waits for one whose user has not come.
    const all = case.all();
    for (0..all.len) |back| {
        const held = &all[all.len - 1 - back];
        if (!held.node.alive) continue;
        try user.admit(held.node.s, case.world.now, held.node.group, deadline_never);
        if (back == 0) try case.world.settle();
    }
    try case.world.settle();
    for (all) |*held| {
        if (held.node.alive) try expectEqual(case.count, held.node.group.world_size());
    }
}

/// All members found a sub-group, enter it, and make their states anew there.
fn found_all(case: *Case, name: []const u8, roots: []const *session.Group) !void {
    var ids: [world_test.nodes_max]base.PeerId = undefined;
    for (case.all(), 0..) |*held, index| ids[index] = .from_int(held.node.index + 1);
    const founders = ids[0..case.count];
    var subs: [world_test.nodes_max]*session.Group = undefined;
    for (case.all(), roots, subs[0..case.count]) |*held, root, *group|
        group.* = try user.found(held.node.s, case.world.now, name, root, founders);
    try case.world.settle();
    for (case.all(), subs[0..case.count]) |*held, group|
        try user.admit(held.node.s, case.world.now, group, deadline_never);
    try case.world.settle();
    for (case.all(), subs[0..case.count]) |*held, group| {
        try expectEqual(case.count, group.world_size());
        held.deinit();
        held.node.group = group;
    }
}

fn standing_of(held: *const Held) wire.control.Standing {
    return sync_file.standing(held.node.s, held.node.group, held.state.tag);
}

test "a state that is made anew under its name keeps the standing of its member" {
    var case: Case = undefined;
    _ = try newcomer_case(&case);
    defer case.deinit();
    try admit_all(&case);
    for (case.all()) |*held| {
        held.deinit();
        const is_late = held.node.index == 2;
        try held.init(held.node, if (is_late) 2 else 1, if (is_late) 5000 else 0);
        const standing: wire.control.Standing = if (is_late) .newcomer else .synced;
        try expectEqual(standing, standing_of(held));
        const expected: u64 = if (is_late) 0 else 1;
        try expectEqual(expected, held.node.group.synced.expected(held.state.tag));
    }
    // An epoch later it is a member that has committed no sync.
    const node = try case.world.add();
    try case.world.settle();
    case.count = 4;
    try case.held[3].init(node, 3, 6000);
    try admit_all(&case);
    try expectEqual(.member, standing_of(&case.held[2]));
    try case.sync_all();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 1);
        if (held.node.index != 3) try expectEqual(.synced, standing_of(held));
    }
}

test "founders that are new in the parent outvote nobody in a sub-group" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1 }, &.{ 0, 0 });
    defer case.deinit();
    const node = try case.world.add();
    try case.world.settle();
    case.count = 3;
    try case.held[2].init(node, 2, 0);
    try admit_all(&case);
    const roots = [_]*session.Group{
        case.world.nodes[0].group, case.world.nodes[1].group, case.world.nodes[2].group,
    };
    try found_all(&case, "sub", &roots);
    for (case.all()) |*held| {
        const is_late = held.node.index == 2;
        try held.init(held.node, if (is_late) 2 else 1, if (is_late) 5000 else 0);
        const standing: wire.control.Standing = if (is_late) .newcomer else .member;
        try expectEqual(standing, standing_of(held));
    }
    try case.sync_all();
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 1);
    }
}

test "syncs of sub-groups, and of the group that they come from, count in a new sub-group" {
    var case: Case = undefined;
    try case.init(&.{ 1, 1 }, &.{ 0, 0 });
    defer case.deinit();
    const roots = [_]*session.Group{ case.world.nodes[0].group, case.world.nodes[1].group };
    try found_all(&case, "one", &roots);
    for (case.all()) |*held| {
        try held.init(held.node, 1, 0);
        try expectEqual(.newcomer, standing_of(held)); // all have come with the first epoch
    }
    try case.sync_all();
    for (case.all()) |*held| try held.end(.ok);
    for (case.all()) |*held| {
        try expectEqual(.synced, standing_of(held));
        // A sub-group that is left takes nothing along; what the group above has not synced it has
        // not, whatever was synced below.
        const root = roots[held.node.index];
        try expectEqual(.newcomer, sync_file.standing(held.node.s, root, held.state.tag));
    }
    // They found another from the group above, and one from the sub-group.
    const subs = [_]*session.Group{ case.held[0].node.group, case.held[1].node.group };
    for ([_][]const u8{ "two", "three" }, [_][2]*session.Group{ roots, subs }) |name, parents| {
        try found_all(&case, name, &parents);
        for (case.all()) |*held| {
            try held.init(held.node, 1, 0);
            try expectEqual(.synced, standing_of(held));
            // Which revision follows is known in a group alone.
            try expectEqual(0, held.node.group.synced.expected(held.state.tag));
        }
        if (parents[0] == roots[0]) for (subs, case.all()) |sub, *held|
            try expectEqual(1, sub.synced.expected(held.state.tag));
    }
}

test "what a newcomer has fetched before it enters does not move again, but what has changed does" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    while (late.fetch()) |under_way| {
        if (under_way.leaves_kept == leaves / 2) break;
        try expect(try case.world.step());
    } else return error.TestUnexpectedResult;
    // They train meanwhile: seven leaves, some of them sent already.
    for (case.held[0..2]) |*held| for (0..7) |leaf| {
        held.weights[leaf * 5 * leaf_bytes] = 9;
    };
    try case.world.settle();
    try expect(!late.node.group.is_fetching());
    try admit_all(&case);
    try case.sync_all();
    const moved = late.operation.?.work.sync.leaves_moved;
    try expect(moved > 0 and moved <= 7);
    for (case.all()) |*held| {
        try held.end(.ok);
        try std.testing.expectEqualSlices(u8, &case.held[0].weights, &held.weights);
        try expectEqual(2, held.state.revision);
    }
    try expectEqual(9, late.weights[0]);
}

test "a newcomer enters once it has fetched, and what it holds already is not fetched" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    const s = late.node.s;
    try user.admit(s, case.world.now, late.node.group, deadline_never);
    try expect(late.node.group.admit_waits);
    while (late.node.group.is_fetching()) try expect(try case.world.step());
    try expect(!late.node.group.admit_waits);
    try case.world.settle();
    for (case.held[0..2]) |*held| {
        try user.admit(held.node.s, case.world.now, held.node.group, deadline_never);
    }
    try case.world.settle();
    try expectEqual(1, late.node.admitted);
    try case.sync_all();
    try expectEqual(0, late.operation.?.work.sync.leaves_moved);
    try expectEqual(leaves + 1, late.operation.?.work.sync.leaves_early);
    for (case.all()) |*held| {
        try held.end(.ok);
        try held.expect_value(1, 2);
    }
    // Another one, from a checkpoint that lacks three leaves.
    const node = try case.world.add();
    try case.world.settle();
    const last = &case.held[3];
    case.count = 4;
    try last.init(node, 1, 0);
    last.bias[0] = 7;
    last.weights[0] = 7;
    last.weights[99] = 7;
    last.state.hash_leaves(0, last.state.leaf_count());
    try user.prefetch_begin(node.s, case.world.now, node.group, last.state);
    const under_way = last.fetch().?;
    while (under_way.hashes_from != null) try expect(try case.world.step());
    try expectEqual(3, under_way.fetch.left);
    try case.world.settle();
    try admit_all(&case);
}

test "a newcomer whose round goes on without it fetches on" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    for (0..8) |_| try expect(try case.world.step());
    for (case.all()) |*held| {
        forget_newcomer(held.node.group, late);
        if (held == late) continue;
        try expect(!held.node.group.knows(late.node.s.self));
    }
    try case.world.settle();
    try expect(!late.node.group.is_fetching());
    for (late.state.staged) |place| try expectEqual(1, place.?[0]);
}

test "a state is given to newcomers of a round, by members that have opted in, of what they have" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    try case.world.settle();
    const held = &case.held[0];
    const s = held.node.s;
    const group = held.node.group;
    const link = hostile_test.link_to(held.node, late.node);
    const Lack = enum { nothing, opting_in, membership, structure, leaf, round };
    for (std.enums.values(Lack)) |lack| {
        var want = std.mem.zeroInit(wire.frame.Header, .{
            .kind = .want,
            .group = group.id.?,
            .tag = held.state.tag,
            .attempt = 99,
            .class = @import("link.zig").class_leaf,
            .fingerprint = std.mem.readInt(u32, held.state.structure()[0..4], .little),
        });
        const current = group.member.current;
        switch (lack) {
            .nothing => {},
            .opting_in => held.state.serves = false,
            .membership => group.member.current = null,
            .structure => want.fingerprint ^= 1,
            .leaf => want.index = held.state.leaf_count(),
            .round => {
                forget_newcomer(group, late);
                link.asks_in = null;
            },
        }
        try sync_file.on_prefetch_want(s, link, &want);
        const lane = link.lanes[0].?;
        try expect(sync_file.next_prefetch(s, lane, link));
        const kind: wire.frame.Kind = if (lack == .nothing) .leaf else .lack;
        try expectEqual(kind, lane.outgoing().kind);
        group.member.current = current;
        held.state.serves = true;
        try case.world.settle();
    }
}

/// As if others had entered in its place.
fn forget_newcomer(group: *session.Group, late: *const Held) void {
    for (&group.member.epochs) |slot| if (slot) |epoch| {
        if (epoch.entered) continue;
        for (epoch.ids) |*id| if (id.eql(late.node.s.self)) {
            id.* = .from_int(99);
        };
    };
    group.round_members.clearRetainingCapacity();
}

test "a newcomer whose round is over finds its sources while it fetches, and then wants no links" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    const s = late.node.s;
    for (0..8) |_| try expect(try case.world.step());
    membership.round_over(s, late.node.group); // the coordinator has released it
    try expect(late.node.group.is_fetching());
    try expectEqual(2, s.addresses.count());
    for (s.links.items) |link| try expect(link.wanted);
    while (late.node.group.is_fetching()) try expect(try case.world.step());
    for (s.links.items) |link| try expect(!link.wanted);
}

test "a source that dies, closes its state or has not opted in is done without" {
    for (0..3) |how| {
        var case: Case = undefined;
        const late = try newcomer_case(&case);
        defer case.deinit();
        for (0..8) |_| try expect(try case.world.step());
        const source = &case.held[0];
        switch (how) {
            0 => case.world.kill(source.node),
            1 => {
                user.state_remove(source.node.s, source.node.group, source.state);
                @memset(&source.weights, 7);
            },
            else => source.state.serves = false,
        }
        try case.world.settle();
        try expect(!late.node.group.is_fetching());
        for (late.state.staged) |place| try expectEqual(1, place.?[0]);
        if (how == 1) try user.state_add(source.node.s, source.node.group, source.state);
    }
}

test "a fetch is over as soon as the last lane to its last source is gone" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    for (0..8) |_| try expect(try case.world.step());
    for (case.held[0..2], 0..) |*held, index| {
        try expect(late.node.group.is_fetching());
        const link = hostile_test.link_to(late.node, held.node);
        for (link.lanes) |place| if (place) |lane|
            @import("dial.zig").fail(late.node.s, lane, "test");
        try expectEqual(index == 0, late.node.group.is_fetching());
    }
    try case.world.settle();
}

test "a newcomer whose members share nothing enters at once, and its fetch ends with its state" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    for (0..8) |_| try expect(try case.world.step());
    user.state_remove(late.node.s, late.node.group, late.state);
    try expect(late.node.group.shared(late.state) == null);
    try case.world.settle();
    for (case.held[0..2]) |*held| held.state.serves = false;
    const before = missing(late.state);
    try user.state_add(late.node.s, late.node.group, late.state);
    try user.prefetch_begin(late.node.s, case.world.now, late.node.group, late.state);
    try case.world.settle();
    try expect(!late.node.group.is_fetching());
    try expectEqual(before, missing(late.state));
    try admit_all(&case);
}

test "answers to a fetch before say nothing" {
    var case: Case = undefined;
    const late = try newcomer_case(&case);
    defer case.deinit();
    const fetching = late.fetch().?;
    const only = fetching.hashes_from.?;
    fetching.fetch.discard(1 - only);
    const link = late.node.s.link_to(fetching.peers[only].id).?;
    for (0..8) |_| try expect(try case.world.step());
    sync_file.on_lack(late.node.s, link, &std.mem.zeroInit(wire.frame.Header, .{
        .kind = .lack,
        .tag = late.state.tag,
        .group = late.node.group.id.?,
        .attempt = fetching.number -% 1,
    }));
    try expect(fetching.fetch.is_usable(only));
    try case.world.settle();
    try expect(!late.node.group.is_fetching());
    for (late.state.staged) |place| try expectEqual(1, place.?[0]);
}
