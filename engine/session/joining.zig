//! joining: what the user asks of groups: to join one or to found one, to leave it, and to pass a
//! safe point, alone or together with all members. Free functions on Session. The word of the
//! coordinator on groups: membership.zig; when members enter: protocol/member.zig; the user's
//! operations: calls.zig.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const call = @import("call.zig");
const calls = @import("calls.zig");
const control = @import("control.zig");
const membership = @import("membership.zig");
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Instant = base.Instant;
const PeerId = base.PeerId;

pub const JoinError = error{ OutOfMemory, AlreadyJoined };

/// Asks to join a group; `ready`, `refused` or `join_failed` follows. The name has been checked.
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
    /// This peer is in no epoch of the parent.
    NotReady,
    /// Not all founders are members of the epoch, or one is named twice, or this peer is none.
    BadFounders,
};

/// Asks for a group that is made of these members of the parent's epoch, in this order, and of
/// nobody else; they must all ask. `ready`, `refused` or `join_failed` follows when all of them
/// have that are not lost.
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

/// Leaves gracefully: the others go on without this peer, operations in flight here are
/// cancelled.
pub fn leave(s: *Session, now: Instant, group: *Group) void {
    s.reach(now);
    if (group.state == .joined) group.member.leave();
    group.state = .left;
    membership.forget_group(s, group);
    control.run_deferred(s);
}

/// Lets go of a group that was left.
pub const release = membership.release_group;

pub const AdmitError = error{ Left, NotReady, Busy };

/// Passes a safe point; `admitted` or `admit_failed` follows, perhaps before this returns.
pub fn admit(s: *Session, now: Instant, group: *Group, deadline: Instant) AdmitError!void {
    s.reach(now);
    try may_admit(group);
    group.admit_deadline = deadline;
    if (group.vote.is_open()) {
        membership.resume_call(s, group);
    } else admit_alone(group, .alone);
    control.run_deferred(s);
}

/// The same together with all members, which must all call this: it is over when all have, and
/// all enter a new epoch, or none does. On an error nothing was begun.
pub fn admit_together(
    s: *Session,
    now: Instant,
    group: *Group,
    deadline: Instant,
) (AdmitError || call.CallError)!void {
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

/// A newcomer enters when it has fetched what it can: from then on the others wait for it.
fn admit_alone(group: *Group, how: protocol.Member.How) void {
    group.member.how = how;
    if (group.member.current == null and group.is_fetching()) {
        group.admit_waits = true;
    } else group.member.admit();
}

/// Together with all members: from here it goes on in membership.zig.
fn begin_vote(s: *Session, group: *Group, deadline: Instant) call.CallError!void {
    const v = &group.vote;
    v.late_length = 0;
    if (!v.is_open()) {
        v.own = @intFromBool(group.member.epoch_to_enter() != null);
        const operation = try agree(s, group, .safe_point, &v.own, &v.all, deadline);
        v.op = &operation.op;
    }
    membership.resume_call(s, group);
}

/// Begins the operation in which the members agree on the least of one number each. Both numbers
/// are kept until it is over; they may be one.
fn agree(
    s: *Session,
    group: *Group,
    purpose: call.Call.Purpose,
    own: *const u32,
    all: *u32,
    deadline: Instant,
) call.CallError!*Operation {
    return calls.begin(s, s.now, group, .{
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

/// Asks how many newcomers wait for the next safe point that all members pass together.
/// The answer, in `pending`, is the same for all; they must all ask.
pub fn ask_pending(
    s: *Session,
    now: Instant,
    group: *Group,
    pending: *u32,
    deadline: Instant,
) call.CallError!*Operation {
    pending.* = group.member.newcomers_waiting_together();
    s.reach(now);
    return agree(s, group, .pending, pending, pending, deadline);
}

/// The user does not wait for its admit any more; the safe point was not passed.
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
