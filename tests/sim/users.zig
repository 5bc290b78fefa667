//! Users: who calls what. Each peer has one user per group, who joins, passes safe points and runs the
//! program of its epoch (program.zig); now and then one does what users do: calls late, with another
//! descriptor, with a deadline that is too short, changes its mind, leaves. What every call returned is handed
//! to checkers.zig. The engine's callbacks only take notes here; users act when the call into the engine
//! has returned, as a thread of the user would.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const session_layer = @import("session");
const Borrowed = @import("borrowed.zig").Borrowed;
const checkers_file = @import("checkers.zig");
const faults = @import("faults.zig");
const oracle = @import("oracle.zig");
const program = @import("program.zig");
const world_file = @import("world.zig");
const fmt_key = checkers_file.fmt_key;
const Group = session_layer.Group;
const GroupEvent = session_layer.GroupEvent;
const Instant = base.Instant;
const Node = world_file.Node;
const Operation = session_layer.Operation;
const Status = protocol.Status;
const Step = program.Step;
const World = world_file.World;
const ms = world_file.ms;
const assert = std.debug.assert;

pub const groups_max = 2;
const group_names = [groups_max][]const u8{ "a", "second group" };
/// Longer than anything that recovery takes.
const long_deadline_ns = 60 * std.time.ns_per_s;
/// From the end of the faults until everybody has got on.
const progress_ns = 100 * std.time.ns_per_s;
/// A driver that is late by less than this keeps its promise (P7).
const slack_ns = 200 * ms;

pub const User = struct {
    node: *Node,
    index: u8,
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
    /// Groups that were left, until nothing of them is held any more.
    old_groups: std.ArrayList(*Group) = .empty,
    version: u32 = 0,
    admits: u32 = 0,
    admit_was_impatient: bool = false,
    seen_attempt: u32 = 0,
    seen_epoch: u64 = 0,

    pub const State = enum {
        /// Has no group, and will join when woken.
        outside,
        joining,
        /// Between two rounds: calls admit when woken.
        between,
        admitting,
        running,
        /// Has done all it has to do (phase ending).
        stopped,
        /// Has left for good.
        left,
    };
    const Heard = union(enum) { ready, join_failed, admitted, admit_failed: Status, gone };

    pub fn init(node: *Node, index: u8) User {
        return .{ .node = node, .index = index };
    }

    fn world(user: *const User) *World {
        return user.node.world;
    }

    fn in_flight(user: *const User) u32 {
        var count: u32 = 0;
        for (user.world().works.items) |work| {
            if (work.user == user and work.state == .running) count += 1;
        }
        return count;
    }
};

/// One call.
pub const Work = struct {
    index: u32,
    node: *Node,
    user: *User,
    group: *Group,
    /// What was called, which a fault may have made differ from the program.
    step: Step,
    record: *checkers_file.Record,
    op: ?*Operation = null,
    send: []u8,
    recv: []u8,
    /// What the buffers must hold until a success is copied out.
    send_before: []u8,
    recv_before: []u8,
    state: State = .running,
    deadline: Instant,
    impatient: bool,
    cancelled: bool = false,
    /// Of its success.
    ranges: std.ArrayList(checkers_file.Range) = .empty,
    /// Resolved before the user has looked at the doubt.
    resolved_early: bool = false,

    pub const State = enum {
        running,
        /// The engine said that it is over; the user has not looked yet.
        finished,
        in_doubt,
        /// In doubt, and decided; the user has not looked yet.
        resolved,
        closed,
    };

    fn lent(work: *const Work) bool {
        return work.state == .running or work.state == .finished;
    }

    fn call(work: *const Work) *checkers_file.Call {
        return &work.record.calls[work.node.digit()];
    }
};

// ---- waking

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
        .joining, .admitting, .stopped, .left => {},
    }
}

// ---- membership

pub fn join(user: *User) void {
    const world = user.world();
    const s = user.node.session.?;
    const size = world.config.initial_world_size;
    const group = s.join(user.node.here(), group_names[user.index], size) catch |err| {
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
fn come_again(user: *User) void {
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
    user.heard_count = 0;
    user.state = .outside;
    user.old_groups.append(world.gpa, group) catch @panic("out of memory");
    user.node.session.?.leave(user.node.here(), group);
    for (world.works.items) |work| {
        if (work.group == group and work.state == .in_doubt and !world.failed()) {
            world.checkers.fail(.interface, "p{d} left, and {f} is still in doubt", .{
                user.node.index, fmt_key(work.step.key),
            });
        }
    }
}

/// Groups that were left are freed once their last call has been looked at.
fn release_groups(user: *User) void {
    var index = user.old_groups.items.len;
    while (index > 0) {
        index -= 1;
        const group = user.old_groups.items[index];
        const held = for (user.world().works.items) |work| {
            if (work.group == group and work.state != .closed) break true;
        } else false;
        if (held) continue;
        _ = user.old_groups.swapRemove(index);
        user.node.session.?.group_release(group);
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
    if (user.group != group) return; // it was left already
    const heard: User.Heard = switch (event) {
        .ready => .ready,
        .join_failed => .join_failed,
        .admitted => .admitted,
        .admit_failed => |status| .{ .admit_failed = status },
        .gone => .gone,
    };
    node.world.note("p{d} group {d}: {t}", .{ node.index, user.index, event });
    node.world.trace.mix(@intFromEnum(heard));
    if (user.heard_count == user.heard.len) {
        return node.world.checkers.fail(.interface, "p{d}: too many events at once", .{node.index});
    }
    user.heard[user.heard_count] = heard;
    user.heard_count += 1;
}

pub fn admit(user: *User) void {
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
    user.node.session.?.admit(user.node.here(), user.group.?, deadline) catch |err| {
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
fn promised_ns(world: *const World) u64 {
    return world.config.silence_ns * 12 / 10 + slack_ns;
}

pub fn admit_watchdog(user: *User, count: u32) void {
    if (user.admits != count or user.state != .admitting) return;
    const world = user.world();
    if (world.now < user.node.thawed_at + promised_ns(world)) {
        return world.at(user.node.thawed_at + promised_ns(world), .{ .admit_watchdog = .{
            .node = user.node.index,
            .user = user.index,
            .count = count,
        } });
    }
    world.checkers.fail(.p7_bounded_wait, "p{d}: admit outlives its deadline", .{user.node.index});
}

fn admitted(user: *User) void {
    const world = user.world();
    const group = user.group.?;
    world.statistics.admissions += 1;
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
    user.state = .running;
    user.next_step = 0;
    user.clean = true;
    draw_order(user);
    world.note("p{d} runs g{d}/e{d}/r{d}", .{
        user.node.index, user.index, user.epoch, user.round_number,
    });
    wake_after(user, think_ns(world));
}

fn check_epoch(user: *User) void {
    const world = user.world();
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

/// Steps of one batch in an order of this peer's own.
fn draw_order(user: *User) void {
    const steps = user.round.slice();
    for (user.order[0..steps.len], 0..) |*place, index| place.* = @intCast(index);
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

// ---- the program

fn run_program(user: *User) void {
    const world = user.world();
    while (user.next_step < user.round.count) {
        const step = &user.round.steps[user.order[user.next_step]];
        if (must_wait(user, step)) return; // woken when something finishes
        if (!begin(user, step.*)) return;
        user.next_step += 1;
        const think = think_ns(world);
        if (think > 1000) return wake_after(user, think);
        if (user.state != .running) return;
    }
    if (user.round.drains and user.in_flight() > 0) return;
    finish_round(user);
}

fn must_wait(user: *User, step: *const Step) bool {
    for (user.world().works.items) |work| {
        if (work.user != user or work.state != .running) continue;
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
    if (world.phase == .ending and ending_reached(user)) {
        if (user.in_flight() > 0) return;
        user.state = .stopped;
        return;
    }
    user.state = .between;
    // Whoever has got on takes it slowly while others still recover.
    const pause_ns: u64 = if (world.phase == .healing and user.clean_rounds > 0) 100 * ms else 0;
    wake_after(user, pause_ns + think_ns(world));
}

/// False if the call could not be made, and the user does something else.
pub fn begin(user: *User, planned: Step) bool {
    const world = user.world();
    var step = planned;
    if (faults.chance(world, .mismatch, 12)) {
        world.statistics.fault(.mismatch);
        deviate(world, &step);
    }
    const prng = &world.prng_users;
    var deadline_ns: u64 = long_deadline_ns;
    const impatient = faults.chance(world, .tiny_deadline, 5);
    if (impatient) {
        world.statistics.fault(.tiny_deadline);
        deadline_ns = if (prng.chance(3)) prng.below(ms) else prng.below(60 * ms);
    }
    const work = lend(user, step, user.node.here() + deadline_ns, impatient) orelse {
        // All memory of this world is lent: enough has happened.
        faults.heal(world);
        wake_after(user, 10 * ms);
        return false;
    };
    call(work) catch |err| {
        work.state = .closed;
        work.call().state = .none;
        switch (err) {
            error.TagInUse, error.OutOfMemory => world.checkers.fail(
                .interface,
                "p{d} {f}: {t}",
                .{ user.node.index, fmt_key(step.key), err },
            ),
            else => {
                world.note("p{d} cannot call: {t}", .{ user.node.index, err });
                come_again(user);
            },
        }
        return false;
    };
    if (faults.chance(world, .cancel, 6)) {
        world.statistics.fault(.cancel);
        world.after(prng.below(40 * ms), .{ .cancel = work.index });
    }
    return true;
}

/// A user's mistake: another count, operation, recovery or root than the others.
fn deviate(world: *World, step: *Step) void {
    const prng = world.faults.stream(.mismatch);
    switch (prng.below(4)) {
        0 => step.count += 1,
        1 => step.recovery = if (step.recovery == .restart) .resume_chunks else .restart,
        2 => step.kind = if (step.kind == .all_reduce) .barrier else .all_reduce,
        else => step.count = if (step.count < 2) 3 else step.count / 2,
    }
    if (step.kind == .barrier) step.count = 0;
}

fn asked(step: *const Step) u64 {
    var hash = std.hash.Wyhash.init(1);
    hash.update(std.mem.asBytes(&[_]u64{
        @intFromEnum(step.kind),
        if (step.kind == .barrier) 0 else step.count,
        @intFromEnum(step.recovery),
        if (step.kind == .broadcast) step.root_rank else 0,
    }));
    return hash.final();
}

/// Buffers with this peer's contribution; null if there is no more memory to lend.
pub fn lend(user: *User, step: Step, deadline: Instant, impatient: bool) ?*Work {
    const world = user.world();
    const gpa = world.gpa;
    const index: u32 = @intCast(world.works.items.len);
    const bytes = step.count * @sizeOf(u64);
    const in_place = step.in_place or step.kind == .broadcast;
    const skew: usize = if (world.prng_users.chance(4)) 4 else 0;
    const send = world.borrowed.lend(index, bytes, skew) orelse return null;
    const recv = if (in_place) send else world.borrowed.lend(index, bytes, skew) orelse return null;
    @memset(recv, 0xab);
    const digit = user.node.digit();
    for (0..step.count) |element| {
        const value = if (step.kind == .broadcast)
            oracle.broadcast_value(step.key, digit, element)
        else
            oracle.contribution(step.key, digit, element);
        std.mem.writeInt(u64, send[element * 8 ..][0..8], value, .little);
    }
    const work = gpa.create(Work) catch @panic("out of memory");
    work.* = .{
        .index = index,
        .node = user.node,
        .user = user,
        .group = user.group.?,
        .step = step,
        .record = world.checkers.record(step.key),
        .send = send,
        .recv = recv,
        .send_before = gpa.dupe(u8, send) catch @panic("out of memory"),
        .recv_before = gpa.dupe(u8, recv) catch @panic("out of memory"),
        .deadline = deadline,
        .impatient = impatient,
    };
    world.works.append(gpa, work) catch @panic("out of memory");
    return work;
}

pub fn call(work: *Work) !void {
    const user = work.user;
    const world = user.world();
    const step = &work.step;
    world.stamp += 1;
    const record = work.call();
    if (record.state != .none) {
        world.checkers.fail(.interface, "{f} is called twice", .{fmt_key(step.key)});
    }
    record.* = .{
        .state = .running,
        .began = world.stamp,
        .membership = user.membership,
        .asked = asked(step),
        .after_success = work.record.won != null,
    };
    world.note("p{d} calls {f}: {t}[{d}] {t} tag {d}{s}", .{
        user.node.index, fmt_key(step.key), step.kind, step.count, step.recovery, step.tag,
        if (work.send.ptr == work.recv.ptr) " in place" else "",
    });
    const op = try user.node.session.?.begin(user.node.here(), user.group.?, .{
        .kind = step.kind,
        .send = work.send.ptr,
        .recv = work.recv.ptr,
        .count = step.count,
        .dtype = .u64,
        .op = .sum,
        .root_rank = step.root_rank,
        .recovery = step.recovery,
        .tag = step.tag,
        .deadline = work.deadline,
    });
    work.op = op;
    op.user = @intFromPtr(work);
    if (op.finished) work.state = .finished; // before begin() returned
    world.at(user.node.global(work.deadline) + promised_ns(world), .{ .watchdog = work.index });
}

pub fn cancel(work: *Work) void {
    if (work.state != .running) return;
    work.cancelled = true;
    const world = work.node.world;
    world.note("p{d} cancels {f}", .{ work.node.index, fmt_key(work.step.key) });
    work.node.session.?.cancel(work.node.here(), work.op.?);
    world.settle(work.node);
    if (work.state == .running and !world.failed()) {
        world.checkers.fail(.p7_bounded_wait, "{f}: cancel did not end it", .{fmt_key(work.step.key)});
    }
}

pub fn watchdog(work: *Work) void {
    if (work.state != .running) return;
    const world = work.node.world;
    const thawed = work.node.thawed_at + promised_ns(world);
    if (world.now < thawed) return world.at(thawed, .{ .watchdog = work.index });
    world.checkers.fail(.p7_bounded_wait, "p{d}: {f} outlives its deadline", .{
        work.node.index, fmt_key(work.step.key),
    });
}

// ---- what the engine says

pub fn operation_finished(node: *Node, op: *Operation) void {
    if (op.user == 0) return; // inside begin(); call() looks when it returns
    const work: *Work = @ptrFromInt(op.user);
    if (work.node != node or work.state != .running) {
        return node.world.checkers.fail(.interface, "p{d}: {f} finishes twice", .{
            node.index, fmt_key(work.step.key),
        });
    }
    work.state = .finished;
}

pub fn operation_resolved(node: *Node, op: *Operation) void {
    const work: *Work = @ptrFromInt(op.user);
    if (work.node == node and work.state == .finished and op.status == .in_doubt) {
        work.resolved_early = true;
        return;
    }
    if (work.node != node or work.state != .in_doubt) {
        return node.world.checkers.fail(.interface, "p{d}: {f} is resolved but was not in doubt", .{
            node.index, fmt_key(work.step.key),
        });
    }
    work.state = .resolved;
}

/// Users look at what happened during a call into the engine; true if there was anything.
pub fn listen(node: *Node) bool {
    var any = false;
    const world = node.world;
    for (node.users[0..node.user_count]) |*user| {
        var place: u8 = 0;
        // come_again() empties the list.
        while (place < user.heard_count) : (place += 1) {
            any = true;
            switch (user.heard[place]) {
                .ready => {
                    user.state = .between;
                    if (!world.scripted) wake_after(user, think_ns(world));
                },
                .admitted => admitted(user),
                .join_failed, .gone => come_again(user),
                .admit_failed => |status| admit_failed(user, status),
            }
        }
        user.heard_count = 0;
    }
    var index = world.works.items.len;
    while (index > 0) {
        index -= 1;
        const work = world.works.items[index];
        if (work.node != node) continue;
        switch (work.state) {
            .finished => finished(work),
            .resolved => resolved(work),
            .running, .in_doubt, .closed => continue,
        }
        any = true;
    }
    for (node.users[0..node.user_count]) |*user| release_groups(user);
    return any;
}

fn admit_failed(user: *User, status: Status) void {
    const world = user.world();
    if (status != .deadline_exceeded) return come_again(user);
    if (!user.admit_was_impatient and world.config.is_calm()) world.checkers.fail(
        .spurious,
        "p{d}: admit ran out of time although nothing was wrong",
        .{user.node.index},
    );
    user.state = .between;
    wake_after(user, think_ns(world));
}

fn finished(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    world.stamp += 1;
    world.calls_finished += 1;
    world.statistics.calls.getPtr(op.status).* += 1;
    world.trace.mix(@intFromEnum(op.status));
    world.note("p{d} {f} returns {t}{s}{s}", .{
        work.node.index, fmt_key(work.step.key), op.status,
        if (op.failure.reason != null) " because of " else "",
        if (op.failure.reason) |reason| @tagName(reason) else "",
    });
    check_input(work);
    const record = work.call();
    record.status = op.status;
    record.finished = world.stamp;
    if (op.status != .ok) work.user.clean = false;
    switch (op.status) {
        .ok => {
            record.state = .ok;
            if (work.user.in_flight() > 0) world.statistics.overlapping += 1;
            succeed(work);
        },
        .in_doubt => {
            record.state = .in_doubt;
            work.state = .in_doubt;
            check_expected(work);
            if (work.resolved_early) resolved(work);
            return wake_waiting(work.user);
        },
        .mismatch, .aborted, .deadline_exceeded, .cancelled => record.state = .failed,
        .too_few_peers => record.state = .failed,
        .expelled, .coordinator_unreachable => record.state = .gone,
    }
    check_expected(work);
    close(work);
    wake_waiting(work.user);
}

/// The user may have waited for this call.
fn wake_waiting(user: *User) void {
    if (user.state == .running) wake_after(user, think_ns(user.world()));
}

fn resolved(work: *Work) void {
    const world = work.node.world;
    const committed = work.op.?.committed orelse {
        // The coordinator is gone: nobody will ever know here.
        world.statistics.doubts_open += 1;
        return close(work);
    };
    world.note("p{d} {f} was {s} after all", .{
        work.node.index, fmt_key(work.step.key), if (committed) "committed" else "aborted",
    });
    work.call().resolved = committed;
    if (committed) {
        world.statistics.doubts_committed += 1;
        succeed(work);
    } else world.statistics.doubts_aborted += 1;
    close(work);
}

/// The user has no more to do with it: its buffers are its own again, and it writes over them.
fn close(work: *Work) void {
    work.state = .closed;
    Borrowed.give_back(work.send);
    Borrowed.give_back(work.recv);
    const op = work.op orelse return;
    work.op = null;
    if (work.node.session) |s| s.release(op);
}

/// Failures that nothing in this world explains.
fn check_expected(work: *Work) void {
    const world = work.node.world;
    const status = work.op.?.status;
    if (status == .ok or world.scripted) return;
    const well = world.phase != .safety and work.user.began_round_at >= world.healed_at;
    if (!world.config.is_calm() and !well) return;
    if (work.impatient or work.cancelled) return;
    // After the faults, members may still be found missing and long deadlines may still run out once.
    if (well and !world.config.is_calm() and world.now < world.healed_at + progress_ns) return;
    world.checkers.fail(.spurious, "p{d}: {f} returned {t} although nothing was wrong", .{
        work.node.index, fmt_key(work.step.key), status,
    });
}

// ---- values

/// Before a success is copied out, buffers are as they were (P3).
fn check_input(work: *const Work) void {
    const same = std.mem.eql(u8, work.send, work.send_before) and
        std.mem.eql(u8, work.recv, work.recv_before);
    if (same) return;
    work.node.world.checkers.fail(.p3_input_kept, "p{d}: a buffer of {f} changed before its success", .{
        work.node.index, fmt_key(work.step.key),
    });
}

fn succeed(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    op.copy_result();
    check_values(work);
    if (work.send.ptr != work.recv.ptr and !std.mem.eql(u8, work.send, work.send_before)) {
        world.checkers.fail(.p3_input_kept, "p{d}: the send buffer of {f} changed", .{
            work.node.index, fmt_key(work.step.key),
        });
    }
    var ranges_hash: u64 = 0;
    var it = op.ranges();
    while (it.next()) |range| {
        const digits = contributors_of(work, &range.contributors);
        work.ranges.append(world.gpa, .{
            .begin = range.begin,
            .end = range.end,
            .contributors = digits,
        }) catch @panic("out of memory");
        ranges_hash = std.hash.Wyhash.hash(ranges_hash, std.mem.asBytes(&[_]u64{
            range.begin, range.end, digits,
        }));
    }
    if (op.range_count() > 1) world.statistics.split_results += 1;
    if (op.op.attempts > 1) world.statistics.retried_results += 1;
    const bytes_hash = std.hash.Wyhash.hash(0, work.recv);
    world.trace.mix(bytes_hash);
    world.checkers.succeeded(work.record, work.node.digit(), .{
        .bytes_hash = bytes_hash,
        .digest = op.digest(),
        .ranges_hash = ranges_hash,
        .sequence = op.op.id.sequence,
        .asked = work.call().asked,
    });
}

/// Ranks of the epoch as digits.
fn contributors_of(work: *const Work, mask: *const base.Mask) u16 {
    const world = work.node.world;
    var digits: u16 = 0;
    for (work.op.?.member_ids(), 0..) |id, rank| {
        if (!mask.has(rank)) continue;
        for (world.nodes[1..]) |*node| {
            if (node.state != .absent and node.id.eql(id)) {
                digits |= @as(u16, 1) << @intCast(node.digit());
            }
        }
    }
    return digits;
}

fn check_values(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    const step = &work.step;
    if (step.kind == .broadcast) return check_broadcast(work);
    if (step.count == 0) return;
    const restarting = step.recovery != .resume_chunks;
    if (restarting and op.range_count() != 1) return world.checkers.fail(
        .one_set,
        "p{d}: {f} ({t}) has {d} ranges with different contributors",
        .{ work.node.index, fmt_key(step.key), step.recovery, op.range_count() },
    );
    var expected_begin: u64 = 0;
    var it = op.ranges();
    while (it.next()) |range| {
        if (range.begin != expected_begin or range.end <= range.begin) return world.checkers.fail(
            .p4_contributors,
            "p{d}: ranges of {f} do not tile the elements",
            .{ work.node.index, fmt_key(step.key) },
        );
        expected_begin = range.end;
        const digits = contributors_of(work, &range.contributors);
        if (!check_contributors(work, digits, range.begin, range.end)) return;
    }
    if (expected_begin != step.count) world.checkers.fail(
        .p4_contributors,
        "p{d}: ranges of {f} end at {d} of {d}",
        .{ work.node.index, fmt_key(step.key), expected_begin, step.count },
    );
}

fn check_contributors(work: *Work, digits: u16, range_begin: u64, range_end: u64) bool {
    const world = work.node.world;
    const key = work.step.key;
    if (digits >> @intCast(work.node.digit()) & 1 == 0) {
        world.checkers.fail(.p4_contributors, "p{d} is not a contributor of its own {f}", .{
            work.node.index, fmt_key(key),
        });
        return false;
    }
    for (work.record.calls, 0..) |other, digit| {
        if (digits >> @intCast(digit) & 1 == 0) continue;
        if (other.state == .none) {
            world.checkers.fail(.p4_contributors, "{f}: p{d} is listed but never called", .{
                fmt_key(key), digit + 1,
            });
            return false;
        }
        if (other.asked != work.call().asked) {
            world.checkers.fail(.descriptors, "{f}: p{d} called something else than p{d}, which has ok", .{
                fmt_key(key), digit + 1, work.node.index,
            });
            return false;
        }
    }
    for (range_begin..range_end) |element| {
        const value = std.mem.readInt(u64, work.recv[element * 8 ..][0..8], .little);
        const fault = oracle.check_sum(key, element, digits, value) orelse continue;
        world.checkers.fail(
            .p4_contributors,
            "p{d}: {f} element {d} is {x}: contribution of p{d} is {t} (listed: {b})",
            .{ work.node.index, fmt_key(key), element, value, fault.digit + 1, fault.kind, digits },
        );
        return false;
    }
    return true;
}

fn check_broadcast(work: *Work) void {
    const world = work.node.world;
    const key = work.step.key;
    const root_id = work.op.?.member_ids()[work.step.root_rank];
    const root = for (world.nodes[1..]) |*node| {
        if (node.state != .absent and node.id.eql(root_id)) break node.digit();
    } else return world.checkers.fail(.p4_contributors, "{f}: the root is no peer", .{fmt_key(key)});
    for (0..work.step.count) |element| {
        const value = std.mem.readInt(u64, work.recv[element * 8 ..][0..8], .little);
        if (value == oracle.broadcast_value(key, root, element)) continue;
        return world.checkers.fail(.p4_contributors, "p{d}: {f} element {d} is not the root's", .{
            work.node.index, fmt_key(key), element,
        });
    }
    if (work.step.count == 0) return; // nothing came from the root, which may have been lost
    const root_asked = world.checkers.record(key).calls[root];
    if (root_asked.state != .none and root_asked.asked != work.call().asked) world.checkers.fail(
        .descriptors,
        "{f}: the root p{d} called something else than p{d}, which has ok",
        .{ fmt_key(key), root + 1, work.node.index },
    );
}

// ---- checks after every event

/// The engine wants to send these bytes: a user's memory may only be read while it is lent.
pub fn check_sent_place(node: *Node, bytes: []const u8) void {
    const world = node.world;
    const owner = world.borrowed.owner_of(bytes.ptr);
    if (owner == Borrowed.nobody) return;
    const work = world.works.items[owner];
    if (work.lent() and work.node == node) return;
    world.checkers.fail(.p3_input_kept, "p{d} sends from a buffer of {f}, which is over", .{
        node.index, fmt_key(work.step.key),
    });
}

/// The engine wants to receive into this place.
pub fn check_received_place(node: *Node, bytes: []const u8) void {
    const world = node.world;
    const owner = world.borrowed.owner_of(bytes.ptr);
    if (owner == Borrowed.nobody) return;
    world.checkers.fail(.p3_input_kept, "p{d} receives into a buffer of {f} before its commit", .{
        node.index, fmt_key(world.works.items[owner].step.key),
    });
}

/// After every call into a node.
pub fn observe(node: *Node) void {
    const world = node.world;
    for (node.users[0..node.user_count]) |*user| {
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
    for (world.works.items) |work| {
        if (work.node == node and work.state == .running) check_input(work);
    }
}

/// Its process is gone: its calls never returned.
pub fn node_down(node: *Node) void {
    for (node.world.works.items) |work| {
        if (work.node != node or work.state == .closed) continue;
        const record = work.call();
        if (record.state == .running) record.state = .gone;
        if (work.state == .in_doubt) node.world.statistics.doubts_open += 1;
        work.op = null;
        close(work);
    }
    for (node.users[0..node.user_count]) |*user| {
        user.group = null;
        user.heard_count = 0;
        user.old_groups.clearRetainingCapacity();
        user.state = .left;
        user.version += 1;
    }
}

/// What users wrote over their buffers after each call is still there.
pub fn check_borrowed(world: *World) void {
    for (world.works.items) |work| {
        if (work.state != .closed) continue;
        if (Borrowed.untouched(work.send) and Borrowed.untouched(work.recv)) continue;
        return world.checkers.fail(.p3_input_kept, "p{d}: {f} was over, and its buffer was written", .{
            work.node.index, fmt_key(work.step.key),
        });
    }
}

// ---- the end of a world

pub fn healed(world: *World) void {
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        for (node.users[0..node.user_count]) |*user| {
            // Whoever has left for good may stay away; somebody must be there.
            if (user.state == .left) {
                user.state = .outside;
                wake_after(user, 0);
            }
        }
    }
    world.after(50 * ms, .check_progress);
}

/// Has every user of every live peer got on since all is well?
pub fn check_progress(world: *World) void {
    if (world.phase != .healing) return;
    var waiting: ?*User = null;
    for (world.nodes[1..]) |*node| {
        if (node.state == .absent and node.index <= world.peers_started)
            return world.after(50 * ms, .check_progress);
        if (node.state != .up) continue;
        for (node.users[0..node.user_count]) |*user| {
            if (user.clean_rounds == 0) waiting = user;
        }
    }
    const user = waiting orelse {
        world.phase = .ending;
        world.note("everybody has got on; users come to an end", .{});
        return ending_step(world);
    };
    if (world.now > world.healed_at + progress_ns) return world.checkers.fail(
        .p6_progress,
        "p{d} group {d} has not got on: it is {t}, in epoch {d}, with {d} calls in flight",
        .{ user.node.index, user.index, user.state, user.epoch, user.in_flight() },
    );
    world.after(50 * ms, .check_progress);
}

/// True at the furthest place of the program that any member has reached.
fn ending_reached(user: *const User) bool {
    for (user.world().nodes[1..]) |*node| {
        if (node.state != .up) continue;
        const other = &node.users[user.index];
        if (other.epoch == 0 or other.group == null) continue;
        if (other.epoch > user.epoch) return false;
        if (other.epoch == user.epoch and other.round_number > user.round_number) return false;
    }
    return true;
}

/// Users stop one by one; when all have, they leave, and when all have left, the world is over.
pub fn ending_step(world: *World) void {
    if (world.phase != .ending) return;
    var busy: ?*User = null;
    var inside: ?*User = null;
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        for (node.users[0..node.user_count]) |*user| switch (user.state) {
            .stopped => inside = user,
            .left => {},
            .outside => user.state = .left,
            .joining, .between, .admitting, .running => busy = user,
        };
    }
    if (busy) |user| {
        if (world.now > world.healed_at + 2 * progress_ns) return world.checkers.fail(
            .p6_progress,
            "p{d} group {d} does not come to an end: it is {t}, with {d} calls in flight",
            .{ user.node.index, user.index, user.state, user.in_flight() },
        );
        if (user.state == .running or user.state == .between) restart_stopped(world);
        return world.after(50 * ms, .ending);
    }
    if (inside) |user| {
        leave(user);
        return world.after(world.prng_users.below(20 * ms), .ending);
    }
    world.checkers.check_atomicity();
    for (world.works.items) |work| {
        if (work.node.state == .up and work.state == .running) return world.checkers.fail(
            .p7_bounded_wait,
            "p{d}: {f} never returned",
            .{ work.node.index, fmt_key(work.step.key) },
        );
    }
    world.after(2 * world.config.heartbeat_ns, .over);
}

/// Somebody went past the place where others have stopped: they go on.
fn restart_stopped(world: *World) void {
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        for (node.users[0..node.user_count]) |*user| {
            if (user.state != .stopped or ending_reached(user)) continue;
            user.state = .between;
            wake_after(user, 0);
        }
    }
}
