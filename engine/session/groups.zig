//! groups: those of this peer, as they come and go by the coordinator's word: joined, refused and
//! lost, and the next epoch of one while it is prepared. Free functions on Session. The user asks
//! to join and to leave them in joining.zig. The user's view of one: group.zig; its members, and
//! when they enter: protocol/member.zig; which lanes an epoch waits for: rounds.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Group = @import("group.zig").Group;
const GroupEvent = @import("host.zig").GroupEvent;
const Session = @import("session.zig").Session;
const labels = @import("labels.zig");
const links = @import("links.zig");
const prefetch = @import("prefetch.zig");
const rounds = @import("rounds.zig");
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Status = protocol.Status;
const control = wire.control;

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
    group.admit_deadline = base.never;
    group.vote.is_wanted = false;
    for (group.states.items) |*shared| prefetch.stop(s, shared);
    if (group.id) |id| for (s.links.items) |link| link.early.prune_epochs(id, std.math.maxInt(u64));
    prune_addresses(s);
    links.review(s);
}

pub fn on_joined(s: *Session, body: *const control.Joined) Error!void {
    const group = asking(s, body.name.data) orelse return error.Unexpected;
    if (group.state == .left) {
        // Perhaps a second time: the number to leave may not have been known.
        s.send(.{ .leave = .{ .group = body.group } });
        return answered(s, group);
    }
    group.asks = false;
    renumbered(s, body.group, group);
    group.state = .joined;
    group.id = body.group;
    group.member.welcomed(body.group);
    if (group.member.current == null) {
        group.member.forget_round();
        round_over(s, group);
    }
    links.report_closed(s, group);
}

/// The group of this name whose join the coordinator answers next.
fn asking(s: *const Session, name: []const u8) ?*Group {
    for (s.groups.items) |group| if (group.asks and std.mem.eql(u8, group.name, name)) return group;
    return null;
}

/// The join of a group that this peer has left is answered: the next join of its name may be sent.
fn answered(s: *Session, group: *Group) void {
    group.asks = false;
    const next = for (s.groups.items) |other| {
        if (other.state != .left and std.mem.eql(u8, other.name, group.name)) break other;
    } else null;
    if (group.is_released) release(s, group);
    if (next) |wanted| present(s, wanted);
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

pub fn on_refused(s: *Session, body: *const control.Refused) Error!void {
    const group = asking(s, body.name.data) orelse return error.Unexpected;
    switch (group.state) {
        .left => answered(s, group),
        .joining => {
            group.asks = false;
            group.state = .left;
            s.host.vtable.group_event(s.host.ctx, group, .{ .refused = body.why.data });
        },
        .joined => {
            group.asks = false;
            // It waited, and has asked anew on another connection.
            if (group.member.newest() == 0) lose_membership(s, group, body.why.data);
        },
    }
}

/// The connection to the coordinator is gone, and with it the answers.
pub fn disconnected(s: *Session) void {
    var index = s.groups.items.len;
    while (index > 0) {
        index -= 1;
        const group = s.groups.items[index];
        group.asks = false;
        group.member.disconnected();
        if (group.is_released) release(s, group);
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
        // A newcomer that has called nothing differs in what it has named (protocol/door.zig).
        const named_others = body.refused and !group.ready_told;
        group_gone(s, group, if (named_others) .mismatch else .expelled, body.why.data);
    }
}

/// Opens a group on a connection: a newcomer's wish, or all that a member knows. A name is asked
/// for again when the join before is answered: until then what the coordinator says of the group
/// may be of the membership that this peer has left.
pub fn present(s: *Session, group: *Group) void {
    if (group.state == .left or asking(s, group.name) != null) return;
    group.asks = true;
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

/// Frees a group that was left, when no answer is under way to its join. No operation of it may be
/// held any more; `leave` has let go of those of vote.zig.
pub fn release(s: *Session, group: *Group) void {
    std.debug.assert(group.state == .left);
    group.is_released = true;
    // Its user is told nothing more.
    group.user = 0;
    if (group.asks) return;
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
    for (group.states.items) |*shared| prefetch.forget(shared);
    group.states.deinit(s.gpa);
    group.synced.deinit(s.gpa);
    group.synced_below.deinit(s.gpa);
    if (group.founding) |*founding| {
        s.gpa.free(founding.parent);
        s.gpa.free(founding.members);
    }
    if (group.measured) |measured| s.gpa.destroy(measured);
    s.gpa.free(group.name);
    s.gpa.destroy(group);
}

// ---- rounds

pub fn on_prepare(s: *Session, body: *const control.Prepare) Allocator.Error!void {
    const group = s.group_of(body.group) orelse return;
    const member = &group.member;
    const old = group.alive_mask();
    try group.round_members.ensureTotalCapacity(s.gpa, old.count() + body.members.count);
    try group.round_peers.ensureTotalCapacity(s.gpa, body.links.count);
    try group.missing_told.ensureTotalCapacity(s.gpa, body.links.count);
    group.round_members.clearRetainingCapacity();
    group.round_peers.clearRetainingCapacity();
    group.missing_told.clearRetainingCapacity();
    for (group.members(), 0..) |id, rank| {
        if (old.has(rank)) group.round_members.appendAssumeCapacity(id);
    }
    var new = body.members.iterator();
    while (new.next()) |id| group.round_members.appendAssumeCapacity(id);
    var wanted = body.links.iterator();
    while (wanted.next()) |entry| {
        if (entry.id.eql(s.self)) continue;
        group.round_peers.appendAssumeCapacity(entry.id);
        try s.remember_address(entry.id, entry.address.data);
    }
    prune_addresses(s);
    group.report_at = s.now +| rounds.report_ns;
    group.attendance = null; // enough have come
    group.forget_away(); // the coordinator says it again
    member.on_prepare(body.round, body.members.count);
    links.review(s);
    links.say_broken(s, group);
    rounds.check_ready(s);
}

/// The epoch that a round was for has begun, or never will.
pub fn round_over(s: *Session, group: *Group) void {
    group.round_peers.clearRetainingCapacity();
    group.round_members.clearRetainingCapacity();
    group.forget_away();
    prune_addresses(s);
    links.review(s);
}
