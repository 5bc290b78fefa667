//! Syncs: what users of the simulator share, and which results a sync may have. Each user has a
//! content that lives as long as its process. All users train it in the same way before each sync,
//! so that equal contents stay equal. It drifts now and then; at the start it is fresh, or from a
//! checkpoint. A call lends the engine a copy, or the user keeps a state that newcomers read at any
//! time. Other calls, and the common part of all calls: calls.zig.
//!
//! The oracle: all successes hold equal bytes and revisions. One caller that was allowed to give
//! these must have offered them, and no caller that goes on should have outvoted them.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const session_layer = @import("session");
const calls = @import("calls.zig");
const checkers_file = @import("checkers.zig");
const faults = @import("faults.zig");
const program = @import("program.zig");
const swarm = @import("swarm.zig");
const users = @import("users.zig");
const fmt_key = checkers_file.fmt_key;
const Node = @import("world.zig").Node;
const Prng = base.Prng;
const State = session_layer.State;
const Strategy = wire.control.Strategy;
const User = users.User;
const Work = calls.Work;

pub const bytes_max = 300;
/// Bytes that are each peer's own.
const own_bytes = 3;
const leaf_bytes = 16;

/// The content that a user has between two syncs.
pub const Content = struct {
    bytes: [bytes_max + 1]u8 = @splat(0),
    revision: u64 = 0,

    /// Fresh, or from the checkpoint of some revision, which is the same for all who restore it.
    pub fn init(seed: u64, node: u16, group: u8) Content {
        var prng = swarm.stream(seed ^ @as(u64, node) << 8 ^ group, "content");
        var content: Content = .{};
        if (prng.chance(3)) {
            for (&content.bytes) |*byte| byte.* = @truncate(prng.next());
            return content;
        }
        content.revision = if (prng.chance(2)) 3 else prng.below(6);
        var checkpoint = swarm.stream(seed ^ content.revision, "checkpoint");
        for (&content.bytes) |*byte| byte.* = @truncate(checkpoint.next());
        return content;
    }

    /// A step that depends on nothing but its place in the program.
    fn train(content: *Content, key: program.Key, shared: usize) void {
        var prng = Prng.init(key.hash());
        for (0..prng.below(4)) |_| content.bytes[prng.below(shared)] +%= 1;
    }
};

/// The buffer of a call: weights, bias, and what is the peer's own.
const Layout = struct {
    weights: usize,
    bias: usize,

    fn of(bytes: usize) Layout {
        const shared = bytes - own_bytes;
        const bias = @min(shared, 5);
        return .{ .weights = shared - bias, .bias = bias };
    }
};

pub fn fill(user: *User, step: *const program.Step, buffer: []u8) void {
    const world = user.world();
    const content = &user.content;
    const shared = step.count - own_bytes;
    if (!world.scripted) {
        content.train(step.key, shared);
        if (world.prng_users.chance(5)) {
            for (0..1 + world.prng_users.below(3)) |_| {
                content.bytes[world.prng_users.below(shared)] = @truncate(world.prng_users.next());
            }
        }
    }
    @memcpy(buffer[0..shared], content.bytes[0..shared]);
    @memset(buffer[shared..], own_byte(user.node));
}

fn own_byte(node: *const Node) u8 {
    return @truncate(node.digit());
}

/// The state that a user shares as long as it is in its group.
pub const Kept = struct { state: *State, memory: []u8 };

/// The user may enter: it makes its state now, and fetches as a newcomer.
pub fn keep(user: *User) void {
    const world = user.world();
    if (!world.config.keeps_state or world.scripted) return;
    const bytes = program.state_bytes(world.config.seed, user.index);
    const memory = world.gpa.alloc(u8, bytes) catch @panic("out of memory");
    const shared = bytes - own_bytes;
    @memcpy(memory[0..shared], user.content.bytes[0..shared]);
    @memset(memory[shared..], own_byte(user.node));
    const rules = world.config.state_rules;
    // One peer in four gives no newcomer anything.
    var serving = swarm.stream(world.config.seed ^ user.node.index, "serving");
    const serves = !serving.chance(4);
    const state = create(user, user.group.?, memory, rules, serves) catch |err| {
        return world.note("p{d} cannot share now: {t}", .{ user.node.index, err });
    };
    user.kept = .{ .state = state, .memory = memory };
    state.hash_leaves(0, state.leaf_count());
    const s = user.node.session.?;
    session_layer.user.prefetch_begin(s, user.node.here(), user.group.?, state) catch |err| {
        world.note("p{d} cannot fetch ahead: {t}", .{ user.node.index, err });
    };
}

/// This lane is about to send. Only members that have opted in give a state in the background, and
/// only to peers of a round of its group.
pub fn check_given(node: *Node, lane: *session_layer.Lane) void {
    if (lane.out_head_left.len < wire.frame.header_bytes) return;
    const owner = lane.out_owner orelse return;
    if (owner != .state) return;
    const state: *const State = @ptrCast(@alignCast(owner.state));
    const may = state.serves and lane.link.?.asks_in != null;
    if (!may) node.world.checkers.fail(
        .leak,
        "p{d} gives a state that it gives to nobody, or to a peer of no round",
        .{node.index},
    );
}

/// A group that was left is about to be released.
pub fn drop_states(node: *Node, group: *session_layer.Group) void {
    while (group.states.getLastOrNull()) |shared| {
        session_layer.user.state_remove(node.session.?, group, shared.state);
        destroy(node, shared.state);
    }
}

/// The process is gone.
pub fn node_down(node: *Node) void {
    while (node.states.getLastOrNull()) |state| destroy(node, state);
}

fn destroy(node: *Node, state: *State) void {
    for (node.states.items, 0..) |item, index| if (item == state) {
        _ = node.states.swapRemove(index);
        break;
    };
    state.destroy();
}

fn create(
    user: *User,
    group: *session_layer.Group,
    memory: []u8,
    rules: wire.control.StateRules,
    prefetch: bool,
) !*State {
    const layout = Layout.of(memory.len);
    const bias = memory[layout.weights..];
    const shapes = [_][1]u64{ .{layout.weights}, .{layout.bias}, .{own_bytes} };
    const tensors = [_]session_layer.Tensor{
        .{
            .name = "own",
            .dtype = .u8,
            .shape = &shapes[2],
            .data = bias.ptr + layout.bias,
            .may_differ = true,
        },
        .{ .name = "weights", .dtype = .u8, .shape = &shapes[0], .data = memory.ptr },
        .{ .name = "bias", .dtype = .u8, .shape = &shapes[1], .data = bias.ptr },
        .{ .name = "empty", .dtype = .f32, .shape = &.{0}, .data = null },
    };
    var at: usize = 0;
    const state = State.create(user.node.memory.allocator(), .{
        .name = "state",
        .tensors = &tensors,
        .revision = user.content.revision,
        .rules = rules,
        .leaf_bytes = leaf_bytes,
        .prefetch = prefetch,
    }, &at) catch |err| switch (err) {
        error.OutOfMemory => return error.OutOfMemory,
        else => unreachable, // these tensors are good
    };
    session_layer.user.state_add(user.node.session.?, group, state) catch |err| {
        state.destroy();
        return switch (err) {
            error.OutOfMemory => error.OutOfMemory,
            error.Closed => error.Left,
            error.NameInUse => error.TagInUse,
        };
    };
    user.node.states.append(user.world().gpa, state) catch @panic("out of memory");
    return state;
}

pub fn begin(work: *Work) !*session_layer.Operation {
    const user = work.user;
    const world = user.world();
    const s = user.node.session.?;
    const state = if (work.kept) user.kept.?.state else //
        try create(user, work.group, work.send, work.rules, false);
    work.shared = state;
    state.hash_leaves(0, state.leaf_count());
    state.hash_root();
    const call = work.call();
    call.content = content_hash(work, work.send);
    call.revision = work.revision orelse state.revision;
    // Each call makes its state anew, and the members know it by its name.
    call.expected = if (user.synced_in == user.membership) user.content.revision else 0;
    call.strategy = work.strategy;
    const op = try session_layer.user.begin_sync(s, user.node.here(), .{
        .group = work.group,
        .state = state,
        .strategy = work.strategy,
        .revision = work.revision,
        .deadline = work.deadline,
    });
    if (faults.chance(world, .scribble, 4)) {
        world.statistics.fault(.scribble);
        const delay = world.prng_users.below(2 * world.config.delay_ns_max + 1);
        world.after(delay, .{ .scribble = work.index });
    }
    return op;
}

pub fn content_hash(work: *const Work, buffer: []const u8) u64 {
    return std.hash.Wyhash.hash(work.step.count, buffer[0 .. buffer.len - own_bytes]);
}

pub fn draw_strategy(user: *User) Strategy {
    const world = user.world();
    if (!faults.chance(world, .strategy, 3)) return .popular;
    world.statistics.fault(.strategy);
    return if (world.faults.stream(.strategy).chance(2)) .receive_only else .send_only;
}

/// Another revision than that of its content: a little less or more, or more than anybody has.
pub fn draw_revision(user: *User) ?u64 {
    const world = user.world();
    if (!faults.chance(world, .strategy, 4)) return null;
    world.statistics.fault(.strategy);
    const step = world.faults.stream(.strategy).below(6);
    return if (step == 5) user.content.revision + 1000 else user.content.revision -| 2 + step;
}

/// Its call has shown it that it does not fit: it comes again as one that has nothing.
pub fn learn(user: *User) void {
    user.content.revision = 0;
}

/// A user writes to what it shares while it must not: others must not take it for what was offered.
pub fn scribble(work: *Work) void {
    if (work.state != .running) return;
    const prng = &work.node.world.prng_users;
    work.node.world.note("p{d} writes while {f} runs", .{ work.node.index, work.name() });
    work.torn = true;
    for (0..3) |_| {
        const place = prng.below(work.send.len - own_bytes);
        work.send[place] +%= 1;
        work.send_before[place] = work.send[place];
        work.recv_before[place] = work.send[place];
    }
}

/// The state goes with the call; the engine uses it no more.
pub fn forget(work: *Work) void {
    const state = work.shared orelse return;
    work.shared = null;
    const s = work.node.session orelse return; // node_down sees to it
    if (work.kept) return;
    session_layer.user.state_remove(s, work.group, state);
    destroy(work.node, state);
}

/// The call is committed: the user has what was elected.
pub fn take(work: *Work) void {
    const state = work.shared.?;
    const statistics = work.node.world.statistics;
    const op = work.op.?;
    statistics.syncs += 1;
    statistics.leaves_moved += op.work.sync.leaves_moved;
    statistics.leaves_early += op.work.sync.leaves_early;
    if (op.work.sync.leaves_moved > 0) {
        statistics.syncs_fetched += 1;
        if (op.op.attempts > 1) statistics.syncs_retried += 1;
    }
    state.apply();
    const content = &work.user.content;
    const shared = work.send.len - own_bytes;
    @memcpy(content.bytes[0..shared], work.send[0..shared]);
    content.revision = state.revision;
    work.user.synced_in = work.user.membership;
}

pub fn check(work: *Work) void {
    const world = work.node.world;
    const content = content_hash(work, work.send);
    const revision = work.shared.?.revision;
    const own = work.send[work.send.len - own_bytes ..];
    if (!std.mem.allEqual(u8, own, own_byte(work.node))) return world.checkers.fail(
        .p3_input_kept,
        "p{d}: {f} wrote to a tensor that may differ",
        .{ work.node.index, fmt_key(work.step.key) },
    );
    var offered = false;
    var insists = false;
    for (work.record.calls) |*call| {
        if (call.state == .none) continue;
        if (call.strategy == .send_only) insists = true;
        // If all of them hold the same, a coordinator that starts again commits it: another may
        // have been told so.
        if (call.strategy == .receive_only and world.incarnations == 1) continue;
        if (call.content == content and call.revision + 1 == revision) offered = true;
    }
    if (!offered) return world.checkers.fail(
        .election,
        "p{d}: {f} gave what nobody had offered at revision {d}",
        .{ work.node.index, fmt_key(work.step.key), revision - 1 },
    );
    const mine = work.call();
    if (work.rules.successive) return; // what may be taken follows from more: rules.zig
    const epoch = work.group.member.epoch_of(work.op.?.op.epoch) orelse return;
    // Nobody's standing is above that of a member from before that has committed a sync.
    const incumbents = epoch.ids.len - epoch.joined;
    const stands = mine.expected > 0 and (incumbents == 0 or epoch.rank < incumbents);
    const counts = stands or work.rules.highest_revision;
    if (counts and mine.strategy == .popular and mine.revision >= revision and !insists)
        return world.checkers.fail(
            .election,
            "p{d} offered revision {d}, and {f} elected {d}",
            .{ work.node.index, mine.revision, fmt_key(work.step.key), revision - 1 },
        );
    if (mine.strategy == .send_only and mine.content != content) world.checkers.fail(
        .election,
        "p{d} insisted on its content, and {f} elected another",
        .{ work.node.index, fmt_key(work.step.key) },
    );
}
