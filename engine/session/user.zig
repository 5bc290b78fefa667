//! User: the functions of a session for its user, who joins, founds and leaves groups, passes safe
//! points, and begins, withdraws and releases operations and syncs. All functions are free
//! functions on Session. membership.zig has the coordinator's word on groups, protocol/member.zig
//! when members enter, call.zig a call and its checks, session.zig the calls beyond those in
//! flight. frame.zig and sync.zig move an operation's data; control.zig ends an operation.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const protocol = @import("protocol");
const wire = @import("wire");
const call_file = @import("call.zig");
const control = @import("control.zig");
const detach_all = @import("session.zig").detach_all;
const measure = @import("measure.zig");
const membership = @import("membership.zig");
const queue_clashes = @import("session.zig").queue_clashes;
const queue_put = @import("session.zig").queue_put;
const release_operation = @import("session.zig").release_operation;
const sync_file = @import("sync.zig");
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const State = @import("state.zig").State;
const Sync = @import("state.zig").Sync;
const Uses = @import("call.zig").Uses;
const Allocator = std.mem.Allocator;
const Built = call_file.Built;
const Call = call_file.Call;
const CallError = call_file.CallError;
const Instant = base.Instant;
const PeerId = base.PeerId;
const assert = std.debug.assert;

pub const JoinError = error{ OutOfMemory, AlreadyJoined };

/// Asks to join a group. The event `ready`, `refused` or `join_failed` follows. The caller must
/// have checked the name.
pub fn join(
    s: *Session,
    now: Instant,
    name: []const u8,
    initial_world_size: u32,
) JoinError!*Group {
    s.reach(now);
    return open(s, name, initial_world_size, null);
}

pub const FoundError = JoinError || error{
    /// This peer is in no epoch of the parent group.
    NotReady,
    /// A founder is not in the parent's epoch or is named twice, or this peer is not named.
    BadFounders,
};

/// Asks for a sub-group of these members of the parent's epoch, with ranks in this order. Every
/// founder must ask. The event `ready`, `refused` or `join_failed` follows when all founders that
/// are not lost have asked.
pub fn found(
    s: *Session,
    now: Instant,
    name: []const u8,
    parent: *const Group,
    founders: []const PeerId,
) FoundError!*Group {
    s.reach(now);
    const epoch = parent.member.current orelse return error.NotReady;
    if (parent.state != .joined) return error.NotReady;
    var named: base.Mask = .empty;
    for (founders) |id| {
        const rank = epoch.rank_of(id) orelse return error.BadFounders;
        if (named.has(rank)) return error.BadFounders;
        named.set(rank);
    }
    if (!named.has(epoch.rank)) return error.BadFounders;
    const members = try s.gpa.dupe(PeerId, founders);
    errdefer s.gpa.free(members);
    const parent_name = try s.gpa.dupe(u8, parent.name);
    errdefer s.gpa.free(parent_name);
    return open(s, name, 0, .{
        .parent = parent_name,
        .epoch = epoch.number,
        .members = members,
        .root = if (parent.founding) |*founding| founding.root else parent.number,
        .is_new = parent.is_newcomer(),
    });
}

fn open(
    s: *Session,
    name: []const u8,
    initial_world_size: u32,
    founding: ?Group.Founding,
) JoinError!*Group {
    for (s.groups.items) |group| {
        if (group.state != .left and std.mem.eql(u8, group.name, name))
            return error.AlreadyJoined;
    }
    try s.groups.ensureUnusedCapacity(s.gpa, 1);
    const group = try s.gpa.create(Group);
    errdefer s.gpa.destroy(group);
    s.groups_opened += 1;
    group.* = .{
        .session = s,
        .number = s.groups_opened,
        .name = try s.gpa.dupe(u8, name),
        .initial_world_size = initial_world_size,
        .founding = founding,
        .member = .init(s.gpa, 0, s.self, .{ .ctx = group, .vtable = &control.member_actions }),
    };
    group.member.in_flight_max = s.in_flight_max;
    s.groups.appendAssumeCapacity(group);
    if (s.control_state == .open) membership.present_group(s, group);
    if (s.control_state == .away) s.reconnect_at = @min(s.reconnect_at, s.now);
    return group;
}

/// Leaves a group: the other members go on without this peer, and operations in flight here are
/// cancelled.
pub fn leave(s: *Session, now: Instant, group: *Group) void {
    s.reach(now);
    if (group.state == .joined) group.member.leave();
    group.state = .left;
    membership.forget_group(s, group);
    control.run_deferred(s);
}

/// Frees a group that this peer has left.
pub const release_group = membership.release_group;

pub const AdmitError = error{ Left, NotReady, Busy };

/// Passes a safe point. The event `admitted` or `admit_failed` follows, perhaps before this
/// returns.
pub fn admit(s: *Session, now: Instant, group: *Group, deadline: Instant) AdmitError!void {
    s.reach(now);
    try may_admit(group);
    group.admit_deadline = deadline;
    if (group.vote.is_open()) {
        membership.resume_call(s, group);
    } else admit_alone(group, .alone);
    control.run_deferred(s);
}

/// Passes a safe point together with all members, each of which must call this function. When all
/// have called it, all members enter a new epoch, or none does. On an error nothing has begun.
pub fn admit_together(
    s: *Session,
    now: Instant,
    group: *Group,
    deadline: Instant,
) (AdmitError || CallError)!void {
    s.reach(now);
    try may_admit(group);
    if (group.member.current == null) {
        group.admit_deadline = deadline;
        admit_alone(group, .together);
    } else {
        try begin_vote(s, group, deadline);
        if (group.is_admitting()) group.admit_deadline = deadline;
    }
    control.run_deferred(s);
}

fn may_admit(group: *const Group) AdmitError!void {
    if (group.state != .joined) return error.Left;
    if (!group.ready_told) return error.NotReady;
    if (group.is_admitting()) return error.Busy;
}

/// Passes the safe point without an agreement. A newcomer first finishes its prefetches, because
/// after its entry the other members wait for it.
fn admit_alone(group: *Group, how: protocol.Member.How) void {
    group.member.how = how;
    if (group.member.current == null and group.is_fetching()) {
        group.admit_waits = true;
    } else group.member.admit();
}

/// Passes the safe point by an agreement of all members, which continues in membership.zig.
fn begin_vote(s: *Session, group: *Group, deadline: Instant) CallError!void {
    const v = &group.vote;
    v.late_length = 0;
    if (!v.is_open()) {
        v.own = @intFromBool(group.member.epoch_to_enter() != null);
        const operation = try agree(s, group, .safe_point, &v.own, &v.all, deadline);
        v.op = &operation.op;
    }
    membership.resume_call(s, group);
}

/// Begins the operation in which the members agree on the minimum of one number from each member.
/// `own` and `all` must stay valid until the operation is finished; they may point to one number.
fn agree(
    s: *Session,
    group: *Group,
    purpose: Call.Purpose,
    own: *const u32,
    all: *u32,
    deadline: Instant,
) CallError!*Operation {
    return begin(s, s.now, group, .{
        .kind = .all_reduce,
        .send = @ptrCast(own),
        .recv = @ptrCast(all),
        .count = 1,
        .dtype = .u32,
        .op = .min,
        .recovery = .resume_chunks,
        .purpose = purpose,
        .deadline = deadline,
    });
}

/// Asks how many newcomers wait for the next safe point that all members pass together. All members
/// must ask; `pending` becomes the same number on each of them.
pub fn ask_pending(
    s: *Session,
    now: Instant,
    group: *Group,
    pending: *u32,
    deadline: Instant,
) CallError!*Operation {
    pending.* = group.member.newcomers_waiting_together();
    s.reach(now);
    return agree(s, group, .pending, pending, pending, deadline);
}

/// The user stops waiting for its admit(), and the safe point has not been passed.
pub fn admit_withdraw(
    s: *Session,
    group: *Group,
    reason: wire.control.AbortReason,
) void {
    group.admit_deadline = base.never;
    group.admit_waits = false;
    membership.withdraw_vote(s, group, reason);
    group.member.admit_give_up();
}

/// Asks for the best paths of the group. The event `optimized` follows once the coordinator knows
/// no better paths. A call while another waits is answered with it.
pub fn optimize(s: *Session, now: Instant, group: *Group) error{ Left, NotAdmitted }!void {
    s.reach(now);
    if (group.state != .joined) return error.Left;
    if (group.member.current == null) return error.NotAdmitted;
    if (!group.waits_for_paths) membership.ask_for_paths(s, group);
    control.run_deferred(s);
}

/// Begins an operation. The event operation_finished follows, perhaps before this returns. The
/// caller must have checked the arguments, except for checks that depend on the membership.
pub fn begin(s: *Session, now: Instant, group: *Group, call: Call) CallError!*Operation {
    s.reach(now);
    if (group.state != .joined) return error.Left;
    const member = &group.member;
    const tag = try call_file.tag_of(member, &call);
    try member.check_start(tag);
    var one: call_file.Array = undefined;
    var built: Built = try .init(s.gpa, member, &call, tag, &one);
    errdefer built.uses.deinit(s.gpa);
    if (is_in_use(s, &built.uses)) return error.BufferInUse;
    if (built.uses.clashes_itself()) return error.ArraysOverlap;
    const operation = try operation_create(s, group, &built, null);
    start(s, operation, tag);
    s.fault_point(operation, .operation_called);
    control.run_deferred(s);
    return operation;
}

fn is_in_use(s: *const Session, uses: *const Uses) bool {
    for (s.operations.items) |other| if (other.clashes(uses)) return true;
    return queue_clashes(s, uses);
}

/// Begins an operation from operation_create, or queues it until its turn.
fn start(s: *Session, operation: *Operation, tag: u64) void {
    const member = &operation.group.member;
    if (member.is_full(tag)) queue_put(s, operation) //
    else s.operations.appendAssumeCapacity(operation);
    member.start(&operation.op, tag);
}

/// Withdraws an operation. Before this peer's vote, the operation is withdrawn for all members, and
/// the call ends as cancelled. After the vote, the call ends in doubt.
pub fn cancel(s: *Session, now: Instant, operation: *Operation) void {
    s.reach(now);
    if (!operation.finished) operation.group.member.give_up(&operation.op, .cancelled);
    control.run_deferred(s);
}

/// Withdraws an operation in which other members take part: this peer leaves the group, and the
/// other members go on as after its death. A peer that has contributed to half of a sum cannot stay
/// for the next sum. In a message or a world of one peer, only the operation is withdrawn. After
/// this peer's vote the operation ends in doubt, and this peer stays in the group.
pub fn desert(s: *Session, now: Instant, operation: *Operation) void {
    s.reach(now);
    const group = operation.group;
    if (operation.is_over() or !group.member.others_take_part(&operation.op))
        return cancel(s, now, operation);
    const why = "it withdrew an operation in which others take part";
    s.log(.warning, "this peer leaves group \"{s}\": {s}", .{ group.name, why });
    group.removed(why);
    group.member.leave();
    membership.group_gone(s, group, .expelled, why);
    control.run_deferred(s);
}

/// Gives a finished operation back to the session.
pub const release = release_operation;

// ---- shared states

pub const StateError = error{ OutOfMemory, Closed, NameInUse };

/// Adds a shared state to a group that this peer is in. Names of states in a group must differ.
pub fn state_add(s: *Session, group: *Group, state: *State) StateError!void {
    if (group.state != .joined) return error.Closed;
    for (group.states.items) |*other| if (other.state.tag == state.tag) return error.NameInUse;
    try sync_file.reserve_synced(s, group);
    try group.states.append(s.gpa, .{ .group = group, .state = state });
}

/// Removes a shared state; no sync of it may be under way.
pub fn state_remove(s: *Session, group: *Group, state: *State) void {
    assert(!state.in_call);
    if (group.shared(state)) |shared| sync_file.stop_prefetch(s, shared);
    detach_all(s, .{ .state = state });
    const states = &group.states;
    for (states.items, 0..) |*item, index| if (item.state == state) {
        _ = states.swapRemove(index);
        return;
    };
}

/// Begins to prefetch a state, if this peer is a newcomer that can. All leaves must be hashed.
pub fn prefetch_begin(
    s: *Session,
    now: Instant,
    group: *Group,
    state: *const State,
) Allocator.Error!void {
    s.reach(now);
    try sync_file.begin_prefetch(s, group.shared(state).?);
}

pub const SyncCall = struct {
    group: *Group,
    state: *State,
    strategy: wire.control.Strategy,
    /// The revision of this peer's content; null: `state.revision`.
    revision: ?u64 = null,
    deadline: Instant,
};

pub const SyncError = protocol.Member.StartError || error{
    Left,
    BufferInUse,
    RevisionTooLarge,
};

/// Begins a sync of a state whose leaves and root are hashed; otherwise like `begin`. After a
/// commit the caller applies the state.
pub fn begin_sync(s: *Session, now: Instant, sync_call: SyncCall) SyncError!*Operation {
    s.reach(now);
    const state = sync_call.state;
    const group = sync_call.group;
    if (group.state != .joined) return error.Left;
    if (sync_call.revision) |revision| if (revision >= base.limits.state_revisions_max)
        return error.RevisionTooLarge;
    try group.member.check_start(state.tag);
    assert(!state.in_call);
    sync_file.stop_prefetch(s, group.shared(state).?);
    var uses: Uses = .{};
    errdefer uses.deinit(s.gpa);
    try uses.reserve(s.gpa, state.entries.len);
    for (state.entries) |*entry| uses.writes(State.span_of(entry));
    uses.sort();
    if (is_in_use(s, &uses)) return error.BufferInUse;
    const epoch = group.member.current.?;
    const made = try Sync.create(s.gpa, .{
        .state = state,
        .strategy = sync_call.strategy,
        .revision = sync_call.revision,
        .expected = group.synced.expected(state.tag),
        .standing = sync_file.standing(s, group, state.tag),
        .ranks = epoch.ids.len,
    });
    errdefer made.destroy();
    const call: Call = .{
        .kind = .sync,
        .rules = state.rules,
        .recovery = .resume_chunks,
        .tag = state.tag,
        .deadline = sync_call.deadline,
    };
    const operation =
        try operation_create(s, group, &.sync(&group.member, &call, uses), made);
    state.in_call = true;
    start(s, operation, state.tag);
    control.run_deferred(s);
    return operation;
}

// ---- how an operation is made

/// Makes the operation of a built call, and takes over the list of uses. `made`: the sync of the
/// call; null: the call moves data.
fn operation_create(
    s: *Session,
    group: *Group,
    built: *const Built,
    made: ?*Sync,
) Allocator.Error!*Operation {
    const epoch = group.member.current.?;
    const call = built.call;
    const waiting = s.queue.count;
    try s.operations.ensureUnusedCapacity(s.gpa, waiting + 1);
    try s.deferred.ensureTotalCapacity(s.gpa, s.operations.items.len + waiting + 1);
    const operation = try base.unfilled.create(s.gpa, Operation);
    errdefer s.gpa.destroy(operation);
    const ids = try base.unfilled.list(s.gpa, PeerId, epoch.ids.len);
    errdefer base.unfilled.free_list(s.gpa, PeerId, ids);
    @memcpy(ids, epoch.ids);
    var history: protocol.History = .{};
    try history.reserve(s.gpa, epoch.alive.count());
    errdefer history.deinit(s.gpa);
    const room = if (epoch.ids.len <= collective.direct_members_max) epoch.ids.len else 2;
    const neighbours = try base.unfilled.list(s.gpa, Operation.Neighbour, room);
    errdefer base.unfilled.free_list(s.gpa, Operation.Neighbour, neighbours);
    operation.* = .{
        .gpa = s.gpa,
        .group = group,
        .op = .{ .descriptor = built.descriptor, .chunks = 0 },
        .work = if (made) |it| .{ .sync = it } else .{ .movement = &operation.room },
        .uses = built.uses,
        .only_reads = call.kind == .broadcast and call.root_rank == epoch.rank,
        .neighbours_room = neighbours,
        .deadline = call.deadline,
        .started_at = s.now,
        .fingerprint = built.descriptor.fingerprint(),
        .form = call.form,
        .purpose = call.purpose,
        .ids = ids,
        .history = history,
    };
    if (operation.moves()) |movement| {
        try movement_create(s, group, built, movement);
        const partition = &movement.board.ledger.partition;
        operation.op.chunks = partition.chunks;
        const small = s.settings.chunk_bytes / base.limits.small_chunk_part;
        operation.is_small = partition.bytes <= small;
    }
    return operation;
}

/// Bytes of partial sums that a new operation may hold beyond its first window. This is as much as
/// the links have in flight, within what the operations in flight leave of `windows_bytes`.
fn room_for_sums(s: *const Session, first: u64) u64 {
    const in_air = measure.window(s.links.items);
    if (in_air <= first) return 0;
    var left = s.settings.windows_bytes;
    for (s.operations.items) |operation| {
        if (operation.moves()) |x| left -|= x.room_bytes();
    }
    return @min(in_air, left);
}

fn movement_create(
    s: *Session,
    group: *const Group,
    built: *const Built,
    movement: *collective.Movement,
) Allocator.Error!void {
    const arrays = try base.unfilled.list(s.gpa, collective.Array, built.arrays.len);
    defer base.unfilled.free_list(s.gpa, collective.Array, arrays);
    var options = built.options(&group.member, &s.settings, arrays, &s.sink);
    if (s.runner) |*runner| options.runner = runner;
    if (!group.member.is_full(built.tag))
        options.window_here = room_for_sums(s, options.window_bytes);
    options.is_far = measure.any_far(s.links.items);
    movement.* = try .prepare(s.gpa, &s.pool, options);
    errdefer movement.deinit();
    // An operation that waits for its turn has no large buffers.
    if (!group.member.is_full(built.tag)) try movement.reserve();
}
