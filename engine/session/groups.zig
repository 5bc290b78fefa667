//! groups: those of this peer, as they come and go: asked for, joined, admitted to, left, and lost.
//! Free functions on Session. The user's view of a group: group.zig; its members, and when they
//! enter: protocol/member.zig; safe points that all pass together: vote.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Group = @import("group.zig").Group;
const GroupEvent = @import("host.zig").GroupEvent;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const labels = @import("labels.zig");
const links = @import("links.zig");
const prefetch = @import("prefetch.zig");
const rounds = @import("rounds.zig");
const vote = @import("vote.zig");
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const Status = protocol.Status;
const control = wire.control;
const assert = std.debug.assert;

const Error = error{ OutOfMemory, Unexpected };

pub fn group_gone(s: *Session, group: *Group, status: Status, why: []const u8) void {
    if (group.state == .left) return;
    group.state = .left;
    const event: GroupEvent = if (group.ready_told)
        .{ .gone = status }
    else
        .{ .join_failed = .{ .status = status, .why = why } };
    s.host.vtable.group_event(s.host.ctx, group, event);
    forget_group(s, group);
}

/// Whatever was kept for the group is not wanted any more.
pub fn forget_group(s: *Session, group: *Group) void {
    group.admit_waits = false;
    group.vote.is_wanted = false;
    for (group.states.items) |state| prefetch.stop(s, state);
    if (group.id) |id| for (s.links.items) |link| link.early.prune_epochs(id, std.math.maxInt(u64));
    prune_addresses(s);
    links.review(s);
}

pub fn on_joined(s: *Session, body: *const control.Joined) Error!void {
    for (s.groups.items) |group| {
        if (group.state == .left or !std.mem.eql(u8, group.name, body.name.data)) continue;
        renumbered(s, body.group, group);
        group.state = .joined;
        group.id = body.group;
        group.member.welcomed(body.group);
        if (group.member.current == null) {
            group.member.forget_round();
            rounds.over(s, group);
        }
        return links.report_closed(s, group);
    }
    // The user left before the answer came, when the number to leave was not known yet.
    s.send(.{ .leave = .{ .group = body.group } });
}

/// A coordinator never gives the number of a group to another while a member of the first is in
/// it: this peer is a member of that one no more, or the coordinator is a new one. Frames must
/// not be taken for its.
fn renumbered(s: *Session, number: u16, now_of: *const Group) void {
    for (s.groups.items) |group| {
        if (group == now_of or group.state != .joined or group.id != number) continue;
        s.log(.warning, "group {s} is not known to the coordinator any more", .{group.name});
        const why = "the coordinator has started without its journal";
        lose_membership(s, group, why);
    }
}

/// This peer is not a member any more, and finds out without being told.
pub fn lose_membership(s: *Session, group: *Group, why: []const u8) void {
    group.removed(why);
    group.member.on_expelled(false);
    group_gone(s, group, .expelled, why);
}

pub fn on_refused(s: *Session, body: *const control.Refused) void {
    for (s.groups.items) |group| {
        if (!std.mem.eql(u8, group.name, body.name.data)) continue;
        if (group.state == .joining) {
            group.state = .left;
            s.host.vtable.group_event(s.host.ctx, group, .{ .join_failed = .{
                .status = .cancelled,
                .why = body.why.data,
            } });
        } else if (group.state == .joined and group.member.newest() == 0) {
            // It waited, and has asked anew on another connection.
            return lose_membership(s, group, body.why.data);
        }
    }
}

/// Forgets where peers are dialed that are in no epoch and no round of this one any more, and
/// from which nothing is fetched; and their labels.
pub fn prune_addresses(s: *Session) void {
    labels.prune(s);
    var index = s.addresses.count();
    while (index > 0) {
        index -= 1;
        const id: PeerId = .{ .bytes = s.addresses.keys()[index] };
        const wanted = for (s.groups.items) |group| {
            if (group.state == .joined and group.needs(id)) break true;
        } else false;
        if (wanted) continue;
        s.gpa.free(s.addresses.values()[index]);
        s.addresses.swapRemoveAt(index);
    }
}

pub fn on_expelled(s: *Session, body: *const control.Expelled) void {
    const everywhere = body.group == std.math.maxInt(u16);
    s.log(.warning, "the coordinator removed this peer: {s}", .{body.why.data});
    for (s.groups.items) |group| {
        if (group.state != .joined) continue;
        if (!everywhere and group != s.group_of(body.group)) continue;
        group.removed(body.why.data);
        if (body.refused and !body.peer.eql(.none)) group.wanted = .{
            .op = body.op,
            .peer = body.peer,
            .descriptor = body.descriptor,
        };
        group.member.on_expelled(body.refused);
        // The last that is said of it: then the number may be that of another group.
        if (!everywhere) s.send(.{ .leave = .{ .group = body.group } });
        // A newcomer that has called nothing differs in what it has named (founding.zig).
        const named_others = body.refused and !group.ready_told;
        group_gone(s, group, if (named_others) .mismatch else .expelled, body.why.data);
    }
}

pub const JoinError = error{ OutOfMemory, AlreadyJoined };

/// Asks to join a group; `ready` or `join_failed` follows. The name has been checked.
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
/// nobody else; they must all ask. `ready` or `join_failed` follows when all of them have that
/// are not lost.
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
    group.* = .{
        .session = s,
        .name = try s.gpa.dupe(u8, name),
        .initial_world_size = initial_world_size,
        .founding = founding,
        .member = .init(s.gpa, 0, s.self, .{ .ctx = group, .vtable = &Session.member_actions }),
    };
    group.member.in_flight_max = s.in_flight_max;
    s.groups.appendAssumeCapacity(group);
    if (s.control_state == .open) present(s, group);
    if (s.control_state == .away) s.reconnect_at = @min(s.reconnect_at, s.now);
    return group;
}

/// Opens a group on a connection: a newcomer's wish, or all that a member knows.
pub fn present(s: *Session, group: *Group) void {
    if (group.state == .left) return;
    const member = &group.member;
    s.send(.{ .join = .{
        .name = .of(group.name),
        .address = .of(s.address),
        .address_key = s.address_key,
        .advertised = s.advertised,
        .initial_world_size = group.initial_world_size,
        .round = member.unanswered_round,
        .stop_round = member.stop_round,
        .label = .of(s.label.slice()),
        .founders = group.founders(),
    } });
    member.present();
}

/// Leaves gracefully: the others go on without this peer, operations in flight here are
/// cancelled.
pub fn leave(s: *Session, now: Instant, group: *Group) void {
    s.reach(now);
    if (group.state == .joined) group.member.leave();
    group.state = .left;
    forget_group(s, group);
    s.run_deferred();
}

/// Frees a group that was left. No operation of it may be held any more; `leave` has let go of
/// those of vote.zig.
pub fn group_release(s: *Session, group: *Group) void {
    assert(group.state == .left);
    for (s.groups.items, 0..) |item, index| if (item == group) {
        _ = s.groups.orderedRemove(index);
        break;
    };
    group_free(s, group);
}

pub fn group_free(s: *Session, group: *Group) void {
    group.member.deinit();
    group.round_members.deinit(s.gpa);
    group.round_peers.deinit(s.gpa);
    group.missing_told.deinit(s.gpa);
    for (group.states.items) |state| prefetch.forget(state);
    group.states.deinit(s.gpa);
    if (group.founding) |*founding| {
        s.gpa.free(founding.parent);
        s.gpa.free(founding.members);
    }
    s.gpa.free(group.name);
    s.gpa.destroy(group);
}

pub const AdmitError = error{ Left, NotReady, Busy };

/// Passes a safe point; `admitted` or `admit_failed` follows, perhaps before this returns.
pub fn admit(s: *Session, now: Instant, group: *Group, deadline: Instant) AdmitError!void {
    s.reach(now);
    try may_admit(group);
    group.admit_deadline = deadline;
    if (group.vote.is_open()) {
        vote.resume_call(s, group);
    } else admit_alone(s, group, .alone);
    s.run_deferred();
}

/// The same together with all members, which must all call this: it is over when all have, and
/// all enter a new epoch, or none does. On an error nothing was begun.
pub fn admit_together(
    s: *Session,
    now: Instant,
    group: *Group,
    deadline: Instant,
) (AdmitError || Session.CallError)!void {
    s.reach(now);
    try may_admit(group);
    if (group.member.current == null) {
        group.admit_deadline = deadline;
        admit_alone(s, group, .together);
    } else {
        try vote.begin(s, group, deadline);
        if (group.is_admitting()) group.admit_deadline = deadline;
    }
    s.run_deferred();
}

fn may_admit(group: *const Group) AdmitError!void {
    if (group.state != .joined) return error.Left;
    if (!group.ready_told) return error.NotReady;
    if (group.is_admitting()) return error.Busy;
}

/// A newcomer enters when it has fetched what it can: from then on the others wait for it.
fn admit_alone(_: *Session, group: *Group, how: protocol.Member.How) void {
    group.member.how = how;
    if (group.member.current == null and group.is_fetching()) {
        group.admit_waits = true;
    } else group.member.admit();
}

/// Asks how many newcomers wait for the next safe point that all members pass together.
/// The answer, in `pending`, is the same for all; they must all ask.
pub fn ask_pending(
    s: *Session,
    now: Instant,
    group: *Group,
    pending: *u32,
    deadline: Instant,
) Session.CallError!*Operation {
    pending.* = group.member.newcomers_waiting_together();
    s.reach(now);
    return vote.agree(s, group, .pending, pending, pending, deadline);
}

/// The user does not wait for its admit any more; the safe point was not passed.
pub fn admit_withdraw(
    _: *Session,
    group: *Group,
    reason: control.AbortReason,
) void {
    group.admit_deadline = base.never;
    group.admit_waits = false;
    vote.withdraw(group, reason);
    group.member.admit_give_up();
}
