//! Calls: one collective call of one user, from the buffers that it lends to its return. Now and
//! then a call is a mistake (another descriptor), has a deadline that is too short, or is
//! withdrawn. Results are checked against oracle.zig here and handed to checkers.zig. users.zig
//! decides who calls and when.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const session_layer = @import("session");
const wire = @import("wire");
const Borrowed = @import("borrowed.zig").Borrowed;
const checkers_file = @import("checkers.zig");
const ending = @import("ending.zig");
const jobs = @import("jobs.zig");
const excused = @import("excused.zig");
const faults = @import("faults.zig");
const floats = @import("floats.zig");
const oracle = @import("oracle.zig");
const program = @import("program.zig");
const rules = @import("rules.zig");
const shards = @import("shards.zig");
const syncs = @import("syncs.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const session_user = session_layer.user;
const fmt_key = checkers_file.fmt_key;
const fmt_peers = checkers_file.fmt_peers;
const Instant = base.Instant;
const Group = session_layer.Group;
const Node = world_file.Node;
const Operation = session_layer.Operation;
const sync = session_layer.sync;
const Step = program.Step;
const StateRules = wire.control.StateRules;
const Strategy = wire.control.Strategy;
const User = users.User;
const World = world_file.World;
const ms = world_file.ms;

/// One call.
pub const Work = struct {
    index: u32,
    node: *Node,
    user: *User,
    group: *Group,
    /// The call, which a fault may have made differ from the program.
    step: Step,
    record: *checkers_file.Record,
    op: ?*Operation = null,
    send: []u8,
    recv: []u8,
    /// The contents of the buffers again when the call fails, or returns in doubt; for a result
    /// apart from the input, what the call has left in it.
    send_before: []u8,
    recv_before: []u8,
    layout: shards.Layout,
    state: State = .running,
    deadline: Instant,
    impatient: bool,
    cancelled: bool = false,
    /// The ranges of its success.
    ranges: std.ArrayList(checkers_file.Range) = .empty,
    /// Resolved before the user has looked at the doubt.
    resolved_early: bool = false,
    // For a sync (syncs.zig).
    shared: ?*session_layer.State = null,
    strategy: Strategy = .popular,
    revision: ?u64 = null,
    rules: StateRules = .{},
    /// The tensors and their state are the user's, before and after.
    kept: bool = false,
    /// The user wrote to the tensors meanwhile: what it holds is its own fault.
    torn: bool = false,
    // For floats (floats.zig).
    residual: ?floats.Lent = null,
    /// Its losses when it succeeded.
    lost: []const u8 = &.{},
    seen_attempt: u32 = 0,

    pub const State = enum {
        running,
        /// The engine said that it is over; the user has not looked yet.
        finished,
        in_doubt,
        /// In doubt, and decided; the user has not looked yet.
        resolved,
        closed,
    };

    pub fn name(work: *const Work) checkers_file.KeyFormat {
        return checkers_file.fmt_key(work.step.key);
    }

    fn lent(work: *const Work) bool {
        return work.state == .running;
    }

    /// It is over, and its caller's memory is given back first, by jobs that take their time.
    fn gives_back(work: *const Work) bool {
        return work.node.world.has_workshops() and work.op.?.is_over();
    }

    pub fn call(work: *const Work) *checkers_file.Call {
        return &work.record.calls[work.node.digit()];
    }
};

/// False if the call could not be made, and the user does something else.
pub fn begin(user: *User, planned: Step) bool {
    const world = user.world();
    var step = planned;
    // Newcomers come with something wrong more often.
    const group = user.group.?;
    const is_new = user.round_number == 0 and group.rank() >= group.world_size() -
        group.joined().len;
    if (faults.chance(world, .mismatch, if (is_new) 4 else 12)) {
        world.statistics.fault(.mismatch);
        deviate(world, &step);
    }
    const prng = &world.prng_users;
    var deadline_ns: u64 = users.long_deadline_ns;
    const impatient = faults.chance(world, .tiny_deadline, 5);
    if (impatient) {
        world.statistics.fault(.tiny_deadline);
        deadline_ns = if (prng.chance(3)) prng.below(ms) else prng.below(60 * ms);
    }
    const work = lend(user, step, user.node.here() + deadline_ns, impatient) orelse {
        // All memory of this world is lent: enough has happened.
        if (world.phase != .safety) world.checkers.fail(
            .interface,
            "p{d}: the memory of this world does not suffice for its calls (borrowed.zig)",
            .{user.node.index},
        );
        faults.heal(world);
        users.wake_after(user, 10 * ms);
        return false;
    };
    call(work) catch |err| {
        close(work);
        work.call().state = .none;
        switch (err) {
            error.TagInUse, error.OutOfMemory => world.checkers.fail(
                .interface,
                "p{d} {f}: {t}",
                .{ user.node.index, fmt_key(step.key), err },
            ),
            else => {
                world.note("p{d} cannot call: {t}", .{ user.node.index, err });
                users.come_again(user);
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

/// A user's mistake: another count, operation, recovery, root, plan, codec or number of arrays than
/// the others.
fn deviate(world: *World, step: *Step) void {
    const prng = world.faults.stream(.mismatch);
    if (step.kind == .sync) {
        if (!world.config.keeps_state) step.count += 1; // another shape
        return;
    }
    if (step.kind == .send_recv) {
        switch (prng.below(3)) {
            0 => step.arrays = if (step.arrays == 1) 2 else 1,
            1 => step.count += 1,
            else => step.count /= 2,
        }
        return;
    }
    switch (prng.below(if (step.floats == null) 7 else 9)) {
        6 => step.arrays = if (step.arrays == 1) 2 else 1,
        0 => step.count += 1,
        7, 8 => step.floats.?.codec = if (step.codec().kind == .none) .of(.bf16) else .none,
        4 => step.plan = if (step.plan == .ring) .direct else .ring,
        1 => step.recovery = if (step.recovery == .restart) .resume_chunks else .restart,
        2 => step.average = !step.average,
        3 => step.kind = if (step.kind == .all_reduce) .barrier else .all_reduce,
        else => step.count = if (step.count < 2) 3 else step.count / 2,
    }
    step.uneven = step.kind.has_shards() and step.uneven != prng.chance(3);
    if (!Step.may_have_arrays(step.kind)) step.arrays = 1;
    if (step.kind == .barrier) step.count = 0;
    if (!step.kind.reduces()) step.average = false;
    if (!step.kind.has_codecs()) step.floats = null;
    if (!step.kind.reduces() or step.average) step.bits = null;
}

fn asked(step: *const Step, layout: *const shards.Layout) u64 {
    var hash = std.hash.Wyhash.init(1);
    shards.hash_into(&hash, layout);
    hash.update(std.mem.asBytes(&[_]u64{
        @intFromEnum(step.kind),
        @intFromEnum(step.recovery),
        if (step.kind.has_root()) step.root_rank else 0,
        @intFromEnum(step.op()),
        @intFromEnum(step.plan),
        @intFromEnum(step.dtype()),
        step.arrays,
    }));
    const codec = step.codec();
    hash.update(&.{
        @intFromEnum(codec.kind),
        @intFromEnum(codec.block),
        @intFromBool(codec.rotate),
        @intFromEnum(codec.rounding),
    });
    return hash.final();
}

fn is_in_place(step: *const Step) bool {
    return switch (step.kind) {
        .broadcast, .sync => true,
        .all_to_all, .send_recv => false,
        else => step.in_place,
    };
}

fn element_bytes(step: *const Step) usize {
    if (step.kind == .sync) return 1;
    return step.dtype().size();
}

/// Buffers with this peer's contribution; null if there is no more memory to lend.
pub fn lend(user: *User, step: Step, deadline: Instant, impatient: bool) ?*Work {
    const world = user.world();
    const gpa = world.gpa;
    const index: u32 = @intCast(world.works.items.len);
    const width = element_bytes(&step);
    const epoch = user.group.?.member.current.?;
    const layout: shards.Layout = .of(gpa, &step, epoch.rank, epoch.ids.len);
    const in_place = is_in_place(&step);
    const lent = layout.lent(in_place);
    const skew: usize = if (world.prng_users.chance(4)) 4 else 0;
    const kept = if (step.kind == .sync) user.kept else null;
    const memory = if (kept) |shared| shared.memory else //
        world.borrowed.lend(index, @intCast(lent[0] * width), skew) orelse return null;
    const other = if (in_place) memory else //
        world.borrowed.lend(index, @intCast(lent[1] * width), skew) orelse return null;
    const send = if (in_place) layout.together(memory, width)[0] else memory;
    const recv = if (in_place) layout.together(memory, width)[1] else other;
    @memset(recv, 0xab);
    const digit = user.node.digit();
    const form: oracle.Form = .of(world.config.processes_max());
    if (step.kind == .sync) syncs.fill(user, &step, send) //
    else if (step.floats != null) floats.fill(user, &step, layout.send.first, send) //
    else for (0..@intCast(layout.send.count)) |index_in_send| {
        const place = send[index_in_send * width ..];
        const element = layout.send.first + index_in_send;
        if (step.average) {
            const value = oracle.average_value(step.key, digit, element);
            std.mem.writeInt(i32, place[0..4], value, .little);
        } else {
            const value = if (step.kind.reduces())
                oracle.contribution(step.op(), form, step.key, digit, element)
            else
                oracle.broadcast_value(step.key, digit, element);
            std.mem.writeInt(u64, place[0..8], value, .little);
        }
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
        .layout = layout,
        .deadline = deadline,
        .impatient = impatient,
        .kept = kept != null,
        .strategy = if (step.kind == .sync) syncs.draw_strategy(user) else .popular,
        .revision = if (step.kind == .sync) syncs.draw_revision(user) else null,
        .rules = world.config.state_rules,
        .residual = floats.lend(user, &step, layout.total(), index),
    };
    world.works.append(gpa, work) catch @panic("out of memory");
    user.node.open_works.append(gpa, work) catch @panic("out of memory");
    return work;
}

pub fn call(work: *Work) !void {
    const user = work.user;
    const world = user.world();
    const step = &work.step;
    world.stamp += 1;
    const record = work.call();
    if (record.state != .none) {
        world.checkers.lives(.interface, "{f} is called twice", .{fmt_key(step.key)});
    }
    record.* = .{
        .state = .running,
        .of_insider = user.node.is_insider,
        .began = world.stamp,
        .called_at = world.now,
        .membership = user.membership,
        .asked = asked(step, &work.layout),
        .after_success = work.record.won != null,
        .work = work,
    };
    world.note("p{d} calls {f}: {t} {d} in {d} {t} {t} {t} codec {f}{s} tag {d}{s} {t}", .{
        user.node.index,
        work.name(),
        step.kind,
        step.count,
        step.arrays,
        step.dtype(),
        step.recovery,
        step.plan,
        step.codec(),
        if (work.residual != null) " with feedback" else "",
        step.tag,
        if (is_in_place(step)) " in place" else "",
        step.op(),
    });
    const op = if (step.kind == .sync) try syncs.begin(work) else try begin_plain(work);
    work.op = op;
    op.user = @intFromPtr(work);
    if (op.finished) over(work); // before begin() returned
    world.at(
        user.node.global(work.deadline) + users.promised_ns(world),
        .{ .watchdog = work.index },
    );
}

fn is_sender(work: *const Work) bool {
    const pair = work.step.pair orelse return false;
    return pair.src == work.layout.rank;
}

fn begin_plain(work: *const Work) !*Operation {
    const user = work.user;
    const step = &work.step;
    var arrays: [Step.arrays_max]session_layer.Array = undefined;
    var before: usize = 0;
    for (arrays[0..step.arrays], step.split()[0..step.arrays]) |*array, count| {
        array.* = .{
            .send = if (work.send.len > 0) work.send.ptr + before else null,
            .recv = if (work.recv.len > 0) work.recv.ptr + before else null,
            .count = count,
            .dtype = step.dtype(),
        };
        before += @intCast(count * step.dtype().size());
    }
    const is_exchange = step.kind == .all_to_all and step.uneven;
    const ranks = user.group.?.member.current.?.ids.len;
    var exchanged: [2][base.limits.peers_max]u64 = undefined;
    if (is_exchange) work.layout.exchanged(exchanged[0][0..ranks], exchanged[1][0..ranks]);
    return session_user.begin(user.node.session.?, user.node.here(), user.group.?, .{
        .kind = step.kind,
        .send = work.send.ptr,
        .recv = work.recv.ptr,
        .count = step.count,
        .counts = if (step.uneven and !is_exchange) work.layout.counts else null,
        .exchanged = if (is_exchange) .{
            .send = exchanged[0][0..ranks],
            .recv = exchanged[1][0..ranks],
        } else null,
        .dtype = step.dtype(),
        .arrays = if (step.arrays > 1) arrays[0..step.arrays] else &.{},
        .codec = step.codec(),
        .residual = if (work.residual) |*lent| lent.native() else null,
        .op = step.op(),
        .root_rank = step.root_rank,
        .part = if (is_sender(work)) .send else .recv,
        .partner_rank = if (step.pair) |pair| pair.other(work.layout.rank) else 0,
        .recovery = step.recovery,
        .plan = step.plan,
        .tag = base.Pair.user_tag_of(step.tag),
        .deadline = work.deadline,
    });
}

pub fn cancel(work: *Work) void {
    if (work.state != .running) return;
    work.cancelled = true;
    const world = work.node.world;
    const session = work.node.session.?;
    if (!world.scripted and world.faults.stream(.cancel).chance(2)) {
        world.note("p{d} deserts {f}", .{ work.node.index, work.name() });
        work.user.deserts = true;
        session_user.desert(session, work.node.here(), work.op.?);
    } else {
        world.note("p{d} cancels {f}", .{ work.node.index, work.name() });
        session_user.cancel(session, work.node.here(), work.op.?);
    }
    world.settle(work.node);
    work.user.deserts = false;
    if (work.state != .running or world.failed()) return;
    if (work.gives_back()) return world.after(jobs.all_ns, .{ .given_back = work.index });
    given_back(work);
}

pub fn given_back(work: *Work) void {
    if (work.state != .running) return;
    const checkers = &work.node.world.checkers;
    checkers.fail(.p7_bounded_wait, "{f} does not end, though it is over", .{work.name()});
}

pub fn watchdog(work: *Work) void {
    if (work.state != .running) return;
    const world = work.node.world;
    const due = users.latest_return(work.node, work.deadline);
    if (world.now < due) return world.at(due, .{ .watchdog = work.index });
    if (work.gives_back()) return world.after(jobs.all_ns, .{ .given_back = work.index });
    world.checkers.fail(.p7_bounded_wait, "p{d}: {f} outlives its deadline", .{
        work.node.index, work.name(),
    });
}

pub fn operation_finished(node: *Node, op: *Operation) void {
    if (op.user == 0) return; // inside begin(); call() looks when it returns
    const work: *Work = @ptrFromInt(op.user);
    if (work.node != node or work.state != .running) {
        return node.world.checkers.fail(.interface, "p{d}: {f} finishes twice", .{
            node.index, work.name(),
        });
    }
    over(work);
}

fn over(work: *Work) void {
    work.state = .finished;
    if (work.op.?.status == .ok) return;
    // Memory that is no input may hold anything, but keeps what it holds now.
    const is_input = is_in_place(&work.step) and work.layout.send.count > 0;
    if (!is_input) @memcpy(work.recv_before, work.recv);
    // Whoever looks from now on, from whatever thread, must find this.
    check_input(work);
}

pub fn operation_resolved(node: *Node, op: *Operation) void {
    const work: *Work = @ptrFromInt(op.user);
    if (work.node == node and work.state == .finished and op.status == .in_doubt) {
        work.resolved_early = true;
        return;
    }
    if (work.node != node or work.state != .in_doubt) {
        return node.world.checkers.fail(.interface, "p{d}: {f} is resolved but was not in doubt", .{
            node.index, work.name(),
        });
    }
    work.state = .resolved;
}

pub fn finished(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    world.stamp += 1;
    world.calls_finished += 1;
    world.statistics.calls.getPtr(op.status).* += 1;
    world.trace.mix(@intFromEnum(op.status));
    world.note("p{d} {f} returns {t}{s}{s}", .{
        work.node.index,
        work.name(),
        op.status,
        if (op.failure.reason != null) " because of " else "",
        if (op.failure.reason) |reason| @tagName(reason) else "",
    });
    if (op.status != .ok) check_input(work);
    const record = work.call();
    record.status = op.status;
    record.finished = world.stamp;
    if (op.status != .ok) work.user.clean = false;
    switch (op.status) {
        .ok => {
            record.state = if (work.torn) .gone else .ok;
            if (work.step.kind == .sync) syncs.take(work);
            if (work.user.in_flight() > 0) world.statistics.overlapping += 1;
            succeed(work);
        },
        .in_doubt => {
            record.state = .in_doubt;
            work.state = .in_doubt;
            syncs.forget(work);
            check_expected(work);
            if (work.resolved_early) {
                resolved(work);
            } else if (!world.scripted and world.prng_users.chance(4)) {
                // The user does not want to know.
                world.statistics.doubts_open += 1;
                close(work);
            }
            return users.wake_waiting(work.user);
        },
        .mismatch => {
            record.state = .failed;
            rules.check_mismatch(work);
            if (op.failure.reason == null) syncs.learn(work.user);
        },
        .aborted => {
            record.state = .failed;
            rules.check_lost(work);
        },
        .deadline_exceeded, .cancelled => record.state = .failed,
        .too_few_peers, .state_unavailable => record.state = .failed,
        .expelled, .coordinator_unreachable => record.state = .gone,
    }
    check_expected(work);
    close(work);
    users.wake_waiting(work.user);
}

pub fn resolved(work: *Work) void {
    const world = work.node.world;
    const committed = work.op.?.committed orelse {
        // The coordinator is gone: nobody will ever know here.
        world.statistics.doubts_open += 1;
        return close(work);
    };
    world.note("p{d} {f} was {s} after all", .{
        work.node.index, work.name(), if (committed) "committed" else "aborted",
    });
    work.call().resolved = committed;
    if (committed) {
        world.statistics.doubts_committed += 1;
        check_input(work);
        // The committed content comes with the next sync.
        if (work.step.kind == .sync) return close(work);
        work.op.?.copy_result();
        succeed(work);
    } else world.statistics.doubts_aborted += 1;
    close(work);
}

/// The user has no more to do with it: its buffers are its own again, and it writes over them.
fn close(work: *Work) void {
    work.state = .closed;
    const open = &work.node.open_works;
    for (open.items, 0..) |item, index| if (item == work) {
        _ = open.orderedRemove(index);
        break;
    };
    if (!work.kept) {
        Borrowed.give_back(work.send);
        Borrowed.give_back(work.recv);
    }
    if (work.residual) |lent| {
        Borrowed.give_back(lent.in);
        Borrowed.give_back(lent.out);
    }
    const op = work.op orelse return syncs.forget(work);
    work.op = null;
    if (work.node.session) |s| session_user.release(s, op);
    syncs.forget(work);
}

/// Failures that nothing in this world explains.
fn check_expected(work: *Work) void {
    const world = work.node.world;
    const status = work.op.?.status;
    if (status == .ok or world.scripted) return;
    const well = world.phase != .safety and work.user.began_round_at >= world.healed_at;
    if (work.node.is_insider) return;
    excused.note_failure(world);
    if (!world.config.is_calm() and !well) return;
    if (work.impatient or work.cancelled) return;
    // After the faults, members may still be found missing and long deadlines may still run out
    // once.
    const settles = world.now < world.healed_at + ending.progress_ns;
    if (well and !world.config.is_calm() and settles) return;
    // Nothing goes around the link between the two of a message.
    const cut = world.phase == .safety or settles;
    const is_broken = work.op.?.failure.reason == .link_broken;
    if (cut and is_broken and world.config.has(.cut_pair)) return;
    if (rules.may_refuse(&world.config, work.op.?)) return;
    world.checkers.fail(.spurious, "p{d}: {f} returned {t} although nothing was wrong", .{
        work.node.index, work.name(), status,
    });
}

/// After a failure, and as long as there is a doubt, the input is as it was (P3), and nothing that
/// was given back is written.
fn check_input(work: *const Work) void {
    // A user writes again to what it keeps as soon as the call has returned.
    if (work.kept and work.state != .running and work.state != .finished) return;
    floats.check_input(work);
    const same = std.mem.eql(u8, work.send, work.send_before) and
        std.mem.eql(u8, work.recv, work.recv_before);
    if (same) return;
    work.node.world.checkers.fail(.p3_input_kept, "p{d}: a buffer of {f} is not as it was", .{
        work.node.index, work.name(),
    });
}

fn succeed(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    if (work.torn) return;
    floats.take(work);
    // After changed bytes members need not even agree about who they are, and each has lent what it
    // was told: nothing that follows may be computed from what another says.
    const is_blind = world.checkers.lives_only or work.node.is_insider;
    if (is_blind) return world.trace.mix(std.hash.Wyhash.hash(0, work.recv));
    if (!excused.has_lies(work)) {
        check_values(work);
        rules.check(work);
    }
    if (work.step.kind != .sync) check_send(work);
    var ranges_hash: u64 = if (work.shared) |state| state.revision else 0;
    if (work.step.kind == .sync) ranges_hash = hash_of_members(work, ranges_hash);
    var it = op.ranges();
    while (it.next()) |range| {
        const digits = contributors_of(work, &range.contributors);
        work.ranges.append(world.gpa, .{
            .begin = range.begin,
            .end = range.end,
            .contributors = digits,
        }) catch @panic("out of memory");
        ranges_hash = std.hash.Wyhash.hash(ranges_hash, std.mem.asBytes(&[_]u64{
            range.begin, range.end,
        }));
        ranges_hash = std.hash.Wyhash.hash(ranges_hash, std.mem.asBytes(&digits.words));
    }
    if (op.range_count() > 1) world.statistics.split_results += 1;
    if (op.op.attempts > 1) world.statistics.retried_results += 1;
    const bytes_hash = if (work.step.kind == .sync)
        shared_hash(work)
    else
        std.hash.Wyhash.hash(0, work.recv);
    world.trace.mix(bytes_hash);
    world.checkers.succeeded(work.record, work.node.digit(), .{
        .bytes_hash = if (work.step.kind.is_private()) 0 else bytes_hash,
        .digest = op.digest(),
        .ranges_hash = if (work.step.kind.is_private()) 0 else ranges_hash,
        .contributors = one_set(work),
        .sequence = op.op.id.sequence,
        .asked = work.call().asked,
    });
}

/// A hash of those that took part in a sync, and of those that had the content.
fn hash_of_members(work: *Work, before: u64) u64 {
    const op = work.op.?;
    var hash = before;
    for ([_]*const base.Mask{ sync.contributors(op), sync.holders(op) }) |mask| {
        const digits = contributors_of(work, mask);
        hash = std.hash.Wyhash.hash(hash, std.mem.asBytes(&digits.words));
        // A coordinator that dies may have told some, but not all, who has it.
        if (!work.node.world.keeps_coordinator()) break;
    }
    return hash;
}

/// The hash of what a sync has made equal.
pub fn shared_hash(work: *const Work) u64 {
    return syncs.content_hash(work, work.recv);
}

/// The contributors to every part of a private result; null if they may differ, or there is none.
fn one_set(work: *const Work) ?base.Mask {
    const kind = work.step.kind;
    if (!kind.is_private() or kind.carries() or work.step.recovery == .resume_chunks) return null;
    return if (work.ranges.items.len > 0) work.ranges.items[0].contributors else null;
}

/// Ranks of the epoch as digits.
fn contributors_of(work: *const Work, mask: *const base.Mask) base.Mask {
    const world = work.node.world;
    var digits: base.Mask = .empty;
    for (work.op.?.member_ids(), 0..) |id, rank| {
        if (!mask.has(rank)) continue;
        digits.set(digit_of(world, id) orelse continue);
    }
    return digits;
}

/// Null if it is no peer.
pub fn digit_of(world: *const World, id: base.PeerId) ?u16 {
    return world.digits.get(id);
}

fn check_values(work: *Work) void {
    const world = work.node.world;
    const step = &work.step;
    if (step.kind == .broadcast) return check_broadcast(work);
    if (step.kind == .sync) return syncs.check(work);
    if (step.kind == .all_gather or step.kind.carries()) shards.check_gathered(work) //
    else if (work.layout.recv.count > 0) check_reduced(work);
    if (step.floats != null and !world.failed()) floats.check(work);
}

fn check_reduced(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    const step = &work.step;
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
        if (!check_contributors(work, &digits, range.begin, range.end)) return;
    }
    if (expected_begin != work.layout.recv.count) return world.checkers.fail(
        .p4_contributors,
        "p{d}: ranges of {f} end at {d} of {d}",
        .{ work.node.index, fmt_key(step.key), expected_begin, work.layout.recv.count },
    );
}

fn check_contributors(
    work: *Work,
    digits: *const base.Mask,
    range_begin: u64,
    range_end: u64,
) bool {
    const world = work.node.world;
    const key = work.step.key;
    if (!digits.has(work.node.digit())) {
        world.checkers.fail(.p4_contributors, "p{d} is not a contributor of its own {f}", .{
            work.node.index, fmt_key(key),
        });
        return false;
    }
    var it: oracle.Digits = .{ .left = digits.* };
    while (it.next()) |digit| {
        const other = &work.record.calls[digit];
        if (excused.is_untold(world, other)) continue;
        if (other.state == .none) {
            world.checkers.fail(.p4_contributors, "{f}: p{d} is listed but never called", .{
                fmt_key(key), digit + 1,
            });
            return false;
        }
        if (other.asked != work.call().asked) {
            world.checkers.fail(.descriptors, "{f}: p{d} and p{d}, which has ok, differ", .{
                fmt_key(key), digit + 1, work.node.index,
            });
            return false;
        }
    }
    if (work.step.floats != null) return true; // looked at as a whole
    if (work.step.average) return check_average(work, digits, range_begin, range_end);
    for (range_begin..range_end) |index| {
        const value = std.mem.readInt(u64, work.recv[index * 8 ..][0..8], .little);
        const sum: oracle.Sum = .{
            .processes_max = world.config.processes_max(),
            .op = work.step.op(),
            .key = key,
            .element = work.layout.recv.first + index,
            .contributors = digits,
        };
        const wrong = sum.check(value) orelse continue;
        world.checkers.fail(
            .p4_contributors,
            "p{d}: {f} element {d} is {x}: {f} (listed: {f})",
            .{ work.node.index, fmt_key(key), sum.element, value, wrong, fmt_peers(digits) },
        );
        return false;
    }
    return true;
}

fn check_average(
    work: *Work,
    digits: *const base.Mask,
    range_begin: u64,
    range_end: u64,
) bool {
    for (range_begin..range_end) |index| {
        const value = std.mem.readInt(i32, work.recv[index * 4 ..][0..4], .little);
        const element = work.layout.recv.first + index;
        const expected = oracle.average(work.step.key, element, digits);
        if (value == expected) continue;
        work.node.world.checkers.fail(
            .p4_contributors,
            "p{d}: {f} element {d} is {d}, the average of its contributors {f} is {d}",
            .{ work.node.index, work.name(), element, value, fmt_peers(digits), expected },
        );
        return false;
    }
    return true;
}

fn check_broadcast(work: *Work) void {
    const world = work.node.world;
    const key = work.step.key;
    const root_id = work.op.?.member_ids()[work.step.root_rank];
    const root = digit_of(world, root_id) orelse return world.checkers.fail(
        .p4_contributors,
        "{f}: the root is no peer",
        .{fmt_key(key)},
    );
    for (0..work.step.count) |element| {
        const value = std.mem.readInt(u64, work.recv[element * 8 ..][0..8], .little);
        if (value == oracle.broadcast_value(key, root, element)) continue;
        return world.checkers.fail(.p4_contributors, "p{d}: {f} element {d} is not the root's", .{
            work.node.index, fmt_key(key), element,
        });
    }
    if (work.step.count == 0) return; // nothing came from the root, which may have been lost
    const root_asked = &world.checkers.record(key).calls[root];
    if (excused.is_untold(world, root_asked)) return;
    if (root_asked.state != .none and root_asked.asked != work.call().asked) world.checkers.fail(
        .descriptors,
        "{f}: the root p{d} called something else than p{d}, which has ok",
        .{ fmt_key(key), root + 1, work.node.index },
    );
}

/// The engine wants to send these bytes: a user's memory may only be read while it is lent.
pub fn check_sent_place(node: *Node, bytes: []const u8) void {
    const world = node.world;
    const owner = world.borrowed.owner_of(bytes.ptr);
    if (owner == Borrowed.nobody) return;
    const work = world.works.items[owner];
    if (work.lent() and work.node == node) return;
    world.checkers.fail(.p3_input_kept, "p{d} sends from a buffer of {f}, which is over", .{
        node.index, work.name(),
    });
}

/// The engine wants to receive into this place.
pub fn check_received_place(node: *Node, bytes: []const u8) void {
    const world = node.world;
    const owner = world.borrowed.owner_of(bytes.ptr);
    if (owner == Borrowed.nobody) return;
    const work = world.works.items[owner];
    const into_recv = @intFromPtr(bytes.ptr) >= @intFromPtr(work.recv.ptr) and
        @intFromPtr(bytes.ptr) + bytes.len <= @intFromPtr(work.recv.ptr) + work.recv.len;
    if (work.lent() and work.node == node and into_recv) return;
    world.checkers.fail(.p3_input_kept, "p{d} receives into a buffer of {f} that is not lent", .{
        node.index, work.name(),
    });
}

/// The bytes that users wrote over their buffers after each call are still there.
pub fn check_borrowed(world: *World) void {
    for (world.works.items) |work| {
        if (work.state != .closed or work.kept or work.call().of_insider) continue;
        var untouched = Borrowed.untouched(work.send) and Borrowed.untouched(work.recv);
        if (work.residual) |lent| {
            if (!Borrowed.untouched(lent.in) or !Borrowed.untouched(lent.out)) untouched = false;
        }
        if (untouched) continue;
        return world.checkers.fail(.p3_input_kept, "p{d}: {f} was over, its buffer was written", .{
            work.node.index, work.name(),
        });
    }
}

/// After every call into a node: what a user has given only to be read is as it was, and so is what
/// has been given back in doubt.
pub fn observe(node: *Node) void {
    for (node.open_works.items) |work| switch (work.state) {
        .running => check_send(work),
        .in_doubt, .resolved => check_input(work),
        else => {},
    };
}

fn check_send(work: *const Work) void {
    floats.check_input(work);
    if (is_in_place(&work.step) and work.step.kind != .sync) return;
    if (std.mem.eql(u8, work.send, work.send_before)) return;
    work.node.world.checkers.fail(.p3_input_kept, "p{d}: the send buffer of {f} changed", .{
        work.node.index, work.name(),
    });
}

/// The process is gone: its calls never returned.
pub fn node_down(node: *Node) void {
    while (node.open_works.getLastOrNull()) |work| {
        const record = work.call();
        if (record.state == .running) record.state = .gone;
        if (work.state == .in_doubt) node.world.statistics.doubts_open += 1;
        work.op = null;
        close(work);
    }
}
