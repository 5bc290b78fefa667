//! Users: who is in which group, and when it calls. Each peer has one user per group, which joins,
//! passes safe points and runs the program of its epoch (program.zig). Now and then a user thinks
//! for long, is impatient, or leaves. The engine's callbacks only take notes here; users act when
//! the call into the engine has returned, as a thread of the user would. Calls and their results:
//! calls.zig. How a world ends: ending.zig.

const std = @import("std");
const calls = @import("calls.zig");
const ending = @import("ending.zig");
const faults = @import("faults.zig");
const floats = @import("floats.zig");
const program = @import("program.zig");
const splits = @import("splits.zig");
const syncs = @import("syncs.zig");
const protocol = @import("protocol");
const session_layer = @import("session");
const world_file = @import("world.zig");
const Group = session_layer.Group;
const GroupEvent = session_layer.GroupEvent;
const Instant = @import("base").Instant;
const session_user = session_layer.user;
const Node = world_file.Node;
const Status = protocol.Status;
const Step = program.Step;
const World = world_file.World;
const ms = world_file.ms;
const assert = std.debug.assert;

pub const groups_max = 8;
pub const group_names = [groups_max][]const u8{ "a", "second group", "3", "4", "5", "6", "7", "8" };
/// Longer than anything that recovery takes.
pub const long_deadline_ns = 60 * std.time.ns_per_s;
/// A driver that is late by less than this keeps its promise (P7).
const slack_ns = 200 * ms;

pub const User = struct {
    node: *Node,
    index: u8,
    /// The content that it shares in syncs.
    content: syncs.Content,
    /// The membership in which a sync of it was committed.
    synced_in: ?u32 = null,
    kept: ?syncs.Kept = null,
    /// The codecs' losses that it carries on.
    residuals: floats.Residuals = .{},
    group: ?*Group = null,
    state: State = .outside,
    membership: u32 = 0,
    epoch: u64 = 0,
    /// Safe points since the epoch began.
    round_number: u32 = 0,
    round: program.Round = .{},
    order: [program.steps_max]u8 = undefined,
    next_step: u32 = 0,
    /// Every call of the round succeeded so far.
    clean: bool = true,
    began_round_at: Instant = 0,
    /// Rounds without a failure that began when all was well.
    clean_rounds: u32 = 0,
    /// Filled by callbacks, emptied by listen().
    heard: [4]Heard = undefined,
    heard_count: u8 = 0,
    /// It withdraws a call, which costs it its place.
    deserts: bool = false,
    /// Groups that were left, until nothing of them is held any more.
    old_groups: std.ArrayList(*Group) = .empty,
    version: u32 = 0,
    admits: u32 = 0,
    /// For the admit under way, on the clock of its node.
    admit_deadline: Instant = 0,
    admit_was_impatient: bool = false,
    /// It passes the safe point together with all.
    is_together: bool = false,
    /// It has asked for the best paths, and has no answer yet.
    waits_for_paths: bool = false,
    seen_attempt: u32 = 0,
    seen_epoch: u64 = 0,
    /// Made of members of its group.
    sub: splits.Sub = .{},

    pub const State = enum {
        /// Has no group, and will join when woken.
        outside,
        joining,
        /// Between two rounds: calls admit when woken.
        between,
        admitting,
        /// Waits for its sub-group, and then runs.
        splitting,
        running,
        /// Has done all it has to do (phase ending).
        stopped,
        /// Has left for good.
        left,
    };
    const Heard = union(enum) { ready, join_failed, admitted, admit_failed: Status, gone };

    pub fn init(node: *Node, index: u8) User {
        const seed = node.world.config.seed;
        return .{ .node = node, .index = index, .content = .init(seed, node.index, index) };
    }

    /// Another process begins at its place. Events still to come for the old one do not match.
    pub fn reset(user: *User) void {
        const before = user.*;
        user.* = .init(before.node, before.index);
        user.version = before.version;
        user.admits = before.admits;
        user.sub.count = before.sub.count;
    }

    pub fn world(user: *const User) *World {
        return user.node.world;
    }

    pub fn in_flight(user: *const User) u32 {
        var count: u32 = 0;
        for (user.node.open_works.items) |work| {
            if (work.user == user and work.state == .running) count += 1;
        }
        return count;
    }
};

pub fn wake_after(user: *User, ns: u64) void {
    user.version += 1;
    user.world().after(ns, .{ .user = .{
        .node = user.node.index,
        .user = user.index,
        .version = user.version,
    } });
}

pub fn woken(user: *User, version: u32) void {
    if (version != user.version) return;
    act(user);
    user.world().settle(user.node);
}

/// The time a user takes to think before the next call.
fn think_ns(world: *World) u64 {
    const prng = &world.prng_users;
    if (faults.chance(world, .straggler, 6)) {
        world.statistics.fault(.straggler);
        return world.faults.stream(.straggler).below(3000 * ms);
    }
    return if (prng.chance(3)) prng.below(20 * ms) else prng.below(50_000);
}

pub fn start(user: *User) void {
    wake_after(user, think_ns(user.world()));
}

fn act(user: *User) void {
    if (user.world().scripted) return;
    switch (user.state) {
        .outside => join(user),
        .between => admit(user),
        .running => run_program(user),
        .joining, .admitting, .splitting, .stopped, .left => {},
    }
}

pub fn join(user: *User) void {
    const world = user.world();
    const s = user.node.session.?;
    const size = world.config.initial_world_size;
    const name = group_names[user.index];
    const group = session_user.join(s, user.node.here(), name, size) catch |err| {
        world.note("p{d} cannot join now: {t}", .{ user.node.index, err });
        return wake_after(user, 300 * ms);
    };
    group.user = @intFromPtr(user);
    user.group = group;
    user.state = .joining;
    user.epoch = 0;
    user.seen_epoch = 0;
    user.seen_attempt = 0;
    user.membership = world.checkers.membership_new();
    world.note("p{d} joins group {d}", .{ user.node.index, user.index });
}

/// The group is of no use any more: give it back and come again later.
pub fn come_again(user: *User) void {
    forget_group(user);
    const world = user.world();
    if (world.phase == .ending) {
        user.state = .left;
        return;
    }
    wake_after(user, 100 * ms + world.prng_users.below(200 * ms));
}

fn forget_group(user: *User) void {
    const group = user.group orelse return;
    const world = user.world();
    user.group = null;
    user.kept = null;
    user.heard_count = 0;
    user.state = .outside;
    user.waits_for_paths = false;
    splits.drop(user);
    leave_group(user, group);
    for (user.node.open_works.items) |work| {
        if (work.group == group and work.state == .in_doubt and !world.failed()) {
            world.checkers.fail(.interface, "p{d} left, and {f} is still in doubt", .{
                user.node.index, work.name(),
            });
        }
    }
}

/// It is freed later.
pub fn leave_group(user: *User, group: *Group) void {
    user.old_groups.append(user.world().gpa, group) catch @panic("out of memory");
    session_user.leave(user.node.session.?, user.node.here(), group);
}

/// Groups that were left are freed once their last call has been looked at.
fn release_groups(user: *User) void {
    var index = user.old_groups.items.len;
    while (index > 0) {
        index -= 1;
        const group = user.old_groups.items[index];
        const held = for (user.node.open_works.items) |work| {
            if (work.group == group) break true;
        } else false;
        if (held) continue;
        _ = user.old_groups.swapRemove(index);
        syncs.drop_states(user.node, group);
        session_user.release_group(user.node.session.?, group);
    }
}

/// The user leaves; sometimes it comes back.
pub fn leave(user: *User) void {
    const world = user.world();
    if (user.group == null) return;
    world.note("p{d} leaves group {d}", .{ user.node.index, user.index });
    forget_group(user);
    if (world.phase == .safety and world.prng_users.chance(2))
        wake_after(user, world.prng_users.below(1000 * ms))
    else
        user.state = .left;
    if (!user.node.is_frozen()) world.settle(user.node);
}

pub fn group_event(node: *Node, group: *Group, event: GroupEvent) void {
    const user: *User = @ptrFromInt(group.user);
    assert(user.node == node);
    if (user.sub.group == group) return splits.hear(user, event);
    if (user.group != group) return; // it was left already
    if (event == .optimized) {
        if (!user.waits_for_paths)
            node.world.checkers.fail(.interface, "p{d}: paths nobody asked for", .{node.index});
        user.waits_for_paths = false;
        return;
    }
    const heard: User.Heard = switch (event) {
        .ready => .ready,
        .refused, .join_failed => .join_failed,
        .admitted => .admitted,
        .admit_failed => |status| .{ .admit_failed = status },
        .gone => .gone,
        .optimized => unreachable,
    };
    node.world.note("p{d} group {d}: {t}", .{ node.index, user.index, event });
    node.world.trace.mix(@intFromEnum(heard));
    if (user.heard_count == user.heard.len) {
        return node.world.checkers.fail(.interface, "p{d}: too many events at once", .{node.index});
    }
    user.heard[user.heard_count] = heard;
    user.heard_count += 1;
}

/// Some safe points are passed by all members together: those after the same rounds.
fn draw_together(user: *const User) bool {
    const place = [_]u64{ user.index, user.epoch, user.round_number };
    const of_newcomer = [_]u64{ user.index, user.node.index, user.admits };
    const drawn = if (user.epoch > 0) place else of_newcomer;
    const seed = user.world().config.seed;
    return std.hash.Wyhash.hash(seed, std.mem.sliceAsBytes(&drawn)) % 3 == 0;
}

pub fn admit(user: *User) void {
    user.is_together = !user.world().scripted and draw_together(user);
    begin_admit(user);
}

/// In a script.
pub fn admit_together(user: *User) void {
    user.is_together = true;
    begin_admit(user);
}

fn begin_admit(user: *User) void {
    const world = user.world();
    const prng = &world.prng_users;
    user.admit_was_impatient = faults.chance(world, .impatient_admit, 6);
    var deadline_ns: u64 = long_deadline_ns;
    if (user.admit_was_impatient) {
        world.statistics.fault(.impatient_admit);
        deadline_ns = prng.below(100 * ms);
    }
    user.state = .admitting;
    user.admits += 1;
    user.began_round_at = world.now;
    const deadline = user.node.here() + deadline_ns;
    user.admit_deadline = deadline;
    const s = user.node.session.?;
    const here = user.node.here();
    const begun = if (user.is_together)
        session_user.admit_together(s, here, user.group.?, deadline)
    else
        session_user.admit(s, here, user.group.?, deadline);
    begun catch |err| {
        world.note("p{d} cannot admit: {t}", .{ user.node.index, err });
        return come_again(user);
    };
    if (world.scripted) return;
    world.at(user.node.global(deadline) + promised_ns(world), .{ .admit_watchdog = .{
        .node = user.node.index,
        .user = user.index,
        .count = user.admits,
    } });
}

/// By how much a call may outlive its deadline (P7), on the world's clock.
pub fn promised_ns(world: *const World) u64 {
    return world.config.silence_ns * 12 / 10 + slack_ns;
}

/// When a call with this deadline must have returned (P7). A process that was frozen, or whose
/// clock stood still, has as long from then on.
pub fn latest_return(node: *const Node, deadline: Instant) Instant {
    return @max(node.global(deadline), node.thawed_at) + promised_ns(node.world);
}

pub fn admit_watchdog(user: *User, count: u32) void {
    if (user.admits != count or user.state != .admitting) return;
    const world = user.world();
    const due = latest_return(user.node, user.admit_deadline);
    if (world.now < due) return world.at(due, .{ .admit_watchdog = .{
        .node = user.node.index,
        .user = user.index,
        .count = count,
    } });
    world.checkers.fail(.p7_bounded_wait, "p{d}: admit outlives its deadline", .{user.node.index});
}

fn admitted(user: *User) void {
    const world = user.world();
    const group = user.group.?;
    world.statistics.admissions += 1;
    if (user.is_together and user.epoch > 0 and !user.node.is_insider)
        world.checkers.passed_together(.{
            .group = user.index,
            .epoch = user.epoch,
            .round = user.round_number,
        }, group.epoch(), user.node.digit());
    if (group.epoch() != user.epoch) {
        if (group.epoch() < user.epoch) world.checkers.fail(
            .views,
            "p{d}: epoch {d} follows epoch {d}",
            .{ user.node.index, group.epoch(), user.epoch },
        );
        user.epoch = group.epoch();
        user.round_number = 0;
        world.statistics.epochs += 1;
        check_epoch(user);
    } else user.round_number += 1;
    if (world.scripted) {
        user.state = .between;
        return;
    }
    user.round = program.draw(.{
        .seed = world.config.seed,
        .group = user.index,
        .epoch = user.epoch,
        .round = user.round_number,
        .world_size = group.world_size(),
        .count_max = world.config.count_max,
        .tags = world.config.tags,
    });
    user.next_step = 0;
    user.clean = true;
    draw_order(user);
    user.state = .splitting;
    if (!splits.begin(user)) split_over(user);
}

/// There is nothing to wait for any more.
pub fn split_over(user: *User) void {
    const world = user.world();
    user.state = .running;
    ask_for_paths(user);
    world.note("p{d} runs g{d}/e{d}/r{d}", .{
        user.node.index, user.index, user.epoch, user.round_number,
    });
    wake_after(user, think_ns(world));
}

/// In one round of four: the user waits for the best paths beside its calls. After the end of the
/// faults nobody asks any more, and whoever has asked must be answered (ending.zig).
fn ask_for_paths(user: *User) void {
    const world = user.world();
    const drawn = [_]u64{ user.index, user.node.index, user.epoch, user.round_number };
    const hash = std.hash.Wyhash.hash(world.config.seed, std.mem.sliceAsBytes(&drawn));
    if (world.phase != .safety or hash % 4 > 0) return;
    user.waits_for_paths = true;
    session_user.optimize(user.node.session.?, user.node.here(), user.group.?) catch |err| {
        world.note("p{d} cannot ask for paths: {t}", .{ user.node.index, err });
        user.waits_for_paths = false;
    };
}

fn check_epoch(user: *User) void {
    const world = user.world();
    if (user.node.is_insider) return;
    const group = user.group.?;
    var hash = std.hash.Wyhash.init(0);
    for (group.members()) |id| hash.update(&id.bytes);
    hash.update("joined");
    for (group.joined()) |id| hash.update(&id.bytes);
    hash.update("left");
    for (group.left()) |id| hash.update(&id.bytes);
    world.checkers.epoch_seen(.{
        .group = user.index,
        .number = group.epoch(),
        .members_hash = hash.final(),
        .members = group.world_size(),
    }, user.node.digit());
    const rank = group.rank();
    if (rank >= group.members().len or !group.members()[rank].eql(user.node.id)) {
        world.checkers.fail(.views, "p{d}: rank {d} is not its own", .{ user.node.index, rank });
    }
}

/// Steps of one batch in an order of this peer's own, unless some may wait for their turn: then two
/// members would wait for what is in flight at the other.
fn draw_order(user: *User) void {
    const steps = user.round.slice();
    for (user.order[0..steps.len], 0..) |*place, index| place.* = @intCast(index);
    if (user.world().config.in_flight_max < program.steps_max) return;
    const prng = &user.world().prng_users;
    var first: usize = 0;
    while (first < steps.len) {
        var end = first;
        while (end < steps.len and steps[end].batch == steps[first].batch) end += 1;
        var left = end - first;
        while (left > 1) : (left -= 1) {
            const other = first + prng.below(left);
            std.mem.swap(u8, &user.order[first + left - 1], &user.order[other]);
        }
        first = end;
    }
}

fn run_program(user: *User) void {
    const world = user.world();
    while (user.next_step < user.round.count) {
        const step = &user.round.steps[user.order[user.next_step]];
        if (!step.has(@intCast(user.group.?.rank()))) {
            user.next_step += 1;
            continue;
        }
        if (must_wait(user, step)) return; // woken when something finishes
        if (!calls.begin(user, step.*)) return;
        user.next_step += 1;
        const think = think_ns(world);
        if (think > 1000) return wake_after(user, think);
        if (user.state != .running) return;
    }
    if (user.round.drains and user.in_flight() > 0) return;
    finish_round(user);
}

fn must_wait(user: *User, step: *const Step) bool {
    for (user.node.open_works.items) |work| {
        if (work.user != user) continue;
        // One that is over, but not looked at yet, has the state's name still.
        if (work.shared != null and step.kind == .sync) return true;
        if (work.state != .running) continue;
        if (work.step.tag == step.tag) return true;
        if (work.step.waits and work.step.key.round == step.key.round and
            work.step.key.epoch == step.key.epoch and work.step.batch != step.batch) return true;
    }
    return false;
}

fn finish_round(user: *User) void {
    const world = user.world();
    if (user.clean and user.began_round_at >= world.healed_at and world.phase != .safety) {
        user.clean_rounds += 1;
    }
    if (world.phase == .ending and ending.reached(user)) {
        if (user.in_flight() > 0) return;
        splits.drop(user);
        user.state = .stopped;
        return;
    }
    user.state = .between;
    // Whoever has got on takes it slowly while others still recover.
    const pause_ns: u64 = if (world.phase == .healing and user.clean_rounds > 0) 100 * ms else 0;
    wake_after(user, pause_ns + think_ns(world));
}

/// Users look at what happened during a call into the engine; true if there was anything.
pub fn listen(node: *Node) bool {
    var any = false;
    const world = node.world;
    for (node.users) |*user| {
        any = splits.listen(user) or any;
        var place: u8 = 0;
        // come_again() empties the list.
        while (place < user.heard_count) : (place += 1) {
            any = true;
            switch (user.heard[place]) {
                .ready => {
                    user.state = .between;
                    syncs.keep(user);
                    if (!world.scripted) wake_after(user, think_ns(world));
                },
                .admitted => admitted(user),
                .join_failed => come_again(user),
                .gone => {
                    const well = world.config.only_cuts or world.config.only_resets;
                    if (well and !user.deserts and world.phase == .safety) world.checkers.fail(
                        .place,
                        "p{d} group {d} has lost its place, and there was a way to keep it",
                        .{ node.index, user.index },
                    );
                    come_again(user);
                },
                .admit_failed => |status| admit_failed(user, status),
            }
        }
        user.heard_count = 0;
    }
    var index: usize = 0;
    while (index < node.open_works.items.len) {
        const work = node.open_works.items[index];
        switch (work.state) {
            .finished => calls.finished(work),
            .resolved => calls.resolved(work),
            .running, .in_doubt => {
                index += 1;
                continue;
            },
            .closed => unreachable,
        }
        any = true;
    }
    for (node.users) |*user| release_groups(user);
    return any;
}

fn admit_failed(user: *User, status: Status) void {
    const world = user.world();
    // One that passes a safe point together with others is aborted by any of them.
    const is_aborted = user.is_together and status == .aborted;
    if (status != .deadline_exceeded and !is_aborted) return come_again(user);
    if (!user.admit_was_impatient and !is_aborted and world.config.is_calm()) world.checkers.fail(
        .spurious,
        "p{d}: admit ran out of time although nothing was wrong",
        .{user.node.index},
    );
    user.state = .between;
    wake_after(user, think_ns(world));
}

/// The user may have waited for this call.
pub fn wake_waiting(user: *User) void {
    if (user.state == .running) wake_after(user, think_ns(user.world()));
}

/// After every call into a node.
pub fn observe(node: *Node) void {
    const world = node.world;
    if (node.is_insider) return calls.observe(node);
    for (node.users) |*user| {
        const group = user.group orelse continue;
        if (group.epoch() == 0) continue;
        if (group.epoch() == user.seen_epoch and group.attempt() == user.seen_attempt) continue;
        user.seen_epoch = group.epoch();
        user.seen_attempt = group.attempt();
        const alive = group.alive_mask();
        world.checkers.view_seen(.{
            .group = user.index,
            .epoch = group.epoch(),
            .attempt = group.attempt(),
            .alive = alive,
        }, node.digit());
    }
    calls.observe(node);
    floats.observe(node);
}

/// Its process is gone: its calls never returned.
pub fn node_down(node: *Node) void {
    calls.node_down(node);
    syncs.node_down(node);
    for (node.users) |*user| {
        user.group = null;
        user.kept = null;
        user.heard_count = 0;
        user.sub = .{ .count = user.sub.count };
        user.old_groups.clearRetainingCapacity();
        user.state = .left;
        user.version += 1;
    }
}
