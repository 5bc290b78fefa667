//! Membership: the groups that this peer joins and loses by the coordinator's word. A join is
//! accepted or refused; a round prepares the next epoch of a group; members pass safe points
//! together. user.zig has the user's calls to join and leave. group.zig has the user's view of a
//! group. protocol/member.zig decides when members enter. dial.zig knows the lanes that an epoch
//! waits for. All functions are free functions on Session.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const dial = @import("dial.zig");
const names_of_missing = @import("session.zig").names_of_missing;
const prune_labels = @import("session.zig").prune_labels;
const release_operation = @import("session.zig").release_operation;
const sync_file = @import("sync.zig");
const Awaited = @import("group.zig").Awaited;
const Group = @import("group.zig").Group;
const GroupEvent = @import("session.zig").GroupEvent;
const Link = @import("link.zig").Link;
const Names = @import("operation.zig").Names;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Status = protocol.Status;
const control = wire.control;
const limits = base.limits;

const Error = error{ OutOfMemory, Unexpected };

/// Tells the user once that this peer is not a member of the group any more, and forgets the group.
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

/// Forgets all that the session kept for a group: pending admits, prefetches, early frames,
/// addresses and links.
pub fn forget_group(s: *Session, group: *Group) void {
    group.admit_waits = false;
    group.admit_deadline = base.never;
    group.vote.is_wanted = false;
    for (group.states.items) |*shared| sync_file.stop_prefetch(s, shared);
    if (group.id) |id| for (s.links.items) |link| link.early.prune_epochs(id, std.math.maxInt(u64));
    prune_addresses(s);
    dial.review(s);
}

/// The coordinator has accepted a join: this peer is in the group. If the user has left the group
/// meanwhile, sends a leave.
pub fn on_joined(s: *Session, body: *const control.Joined) Error!void {
    const group = group_asking(s, body.name.data) orelse return error.Unexpected;
    if (group.state == .left) {
        // The peer may leave twice: its first leave did not know the group's number.
        s.send(.{ .leave = .{ .group = body.group } });
        return group_answered(s, group);
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
    dial.report_closed(s, group);
    if (group.waits_for_paths) ask_for_paths(s, group);
}

/// Asks the coordinator for the best paths of the group.
pub fn ask_for_paths(s: *Session, group: *Group) void {
    group.waits_for_paths = true;
    if (s.control_state != .open or group.asks) return; // on_joined asks
    s.send(.{ .optimize = .{ .group = group.id.? } });
}

pub fn on_optimized(s: *Session, group: *Group) void {
    if (!group.waits_for_paths) return;
    group.waits_for_paths = false;
    s.host.vtable.group_event(s.host.ctx, group, .optimized);
}

/// The group of this name whose join the coordinator has not answered yet.
fn group_asking(s: *const Session, name: []const u8) ?*Group {
    for (s.groups.items) |group| if (group.asks and std.mem.eql(u8, group.name, name)) return group;
    return null;
}

/// The coordinator has answered the join of a group that this peer has left: sends the next join of
/// that name, if there is one.
fn group_answered(s: *Session, group: *Group) void {
    group.asks = false;
    const next = for (s.groups.items) |other| {
        if (other.state != .left and std.mem.eql(u8, other.name, group.name)) break other;
    } else null;
    if (group.is_released) release_group(s, group);
    if (next) |wanted| present_group(s, wanted);
}

/// The coordinator has given `number` to the group `now_of`, so any other group with this number
/// has lost this peer. While a member is in a group, the coordinator gives the group's number to no
/// other group: it has removed this peer, or is a new coordinator. Frames of one group must not be
/// taken for frames of the other.
fn renumbered(s: *Session, number: u16, now_of: *const Group) void {
    for (s.groups.items) |group| {
        if (group == now_of or group.state != .joined or group.id != number) continue;
        s.log(.warning, "group {s} is not known to the coordinator any more", .{group.name});
        const why = "the coordinator has started without its journal";
        lose_membership(s, group, why);
    }
}

/// Ends a membership that the coordinator does not know, without a message from the coordinator.
pub fn lose_membership(s: *Session, group: *Group, why: []const u8) void {
    group.removed(why);
    group.member.on_expelled(false);
    group_gone(s, group, .expelled, why);
}

/// The coordinator has refused the join of a group.
pub fn on_refused(s: *Session, body: *const control.Refused) Error!void {
    const group = group_asking(s, body.name.data) orelse return error.Unexpected;
    switch (group.state) {
        .left => group_answered(s, group),
        .joining => {
            group.asks = false;
            group.state = .left;
            s.host.vtable.group_event(s.host.ctx, group, .{ .refused = body.why.data });
        },
        .joined => {
            group.asks = false;
            // The peer was a newcomer that had repeated its join on a new connection.
            if (group.member.newest() == 0) lose_membership(s, group, body.why.data);
        },
    }
}

/// The connection to the coordinator has closed, so joins in flight will not be answered.
pub fn disconnected(s: *Session) void {
    var index = s.groups.items.len;
    while (index > 0) {
        index -= 1;
        const group = s.groups.items[index];
        group.asks = false;
        group.member.disconnected();
        if (group.is_released) release_group(s, group);
    }
}

/// Forgets addresses and labels of peers that no group needs: peers that are in no epoch and no
/// round, and that are no source of a prefetch.
pub fn prune_addresses(s: *Session) void {
    prune_labels(s);
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

/// The coordinator has removed this peer from one group, or from all groups.
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
        // The leave is the last message about this group: then the coordinator may reuse its
        // number.
        if (!everywhere) s.send(.{ .leave = .{ .group = body.group } });
        // A newcomer without calls was refused for the founders that it named (protocol/door.zig).
        const named_others = body.refused and !group.ready_told;
        group_gone(s, group, if (named_others) .mismatch else .expelled, body.why.data);
    }
}

/// Sends the join of a group, and all that a member knows of the group, on the present connection.
/// A second join of a name waits until the first is answered: until then the coordinator's messages
/// on the group may be about the membership that this peer has left.
pub fn present_group(s: *Session, group: *Group) void {
    if (group.state == .left or group_asking(s, group.name) != null) return;
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

/// Frees a group that this peer has left, once the coordinator has answered the group's join. The
/// user must have released all operations of the group; `leave` has released the operations of
/// membership.zig.
pub fn release_group(s: *Session, group: *Group) void {
    std.debug.assert(group.state == .left);
    group.is_released = true;
    // no more events of this group for the user
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
    for (group.states.items) |*shared| sync_file.forget_prefetch(shared);
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

/// The coordinator has begun a round for the next epoch: opens lanes to the peers that the round
/// names.
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
    group.report_at = s.now +| dial.round_report_ns;
    group.attendance = null; // enough peers for the group have arrived
    group.forget_away(); // the coordinator tells again which peers are away
    member.on_prepare(body.round, body.members.count);
    dial.review(s);
    dial.say_broken(s, group);
    dial.check_ready(s);
}

/// A round is over, because its epoch has begun or never will: forgets the peers of the round, and
/// closes links that only the round wanted.
pub fn round_over(s: *Session, group: *Group) void {
    group.round_peers.clearRetainingCapacity();
    group.round_members.clearRetainingCapacity();
    group.forget_away();
    prune_addresses(s);
    dial.review(s);
}

// ---- safe points that all pass together
//
// Before a safe point is passed together, all members agree whether a new epoch begins there. The
// agreement is an operation that takes the minimum of one number from each member, so the epoch
// begins if all members know of it. So `admit` returns when all members have called it, with the
// same answer for all, and no member waits for the word of a single other member. Losses, restarts
// and doubts are handled as for any operation. An agreement in doubt is kept, and the next admit
// waits for its answer. A newcomer has no part in the agreement: it enters after all earlier
// members (protocol/member.zig). user.ask_pending asks how many newcomers wait, without passing the
// safe point.

/// Continues the agreement that the user's admit() waits for, which an earlier admit() may have
/// begun.
pub fn resume_call(s: *Session, group: *Group) void {
    group.vote.is_wanted = true;
    if (group.vote.agreed) |enters| return pass_together(group, enters);
    go_on_together(s, group);
}

fn pass_together(group: *Group, enters: bool) void {
    group.vote.is_wanted = false;
    group.member.admit_agreed(enters);
}

/// Forgets the agreement of a safe point that has been passed.
pub fn passed_together(group: *Group) void {
    group.vote.agreed = null;
}

/// Notes that an agreement has ended. go_on_together acts on it later, because Member must not be
/// called inside a member's action.
pub fn note_safe_points(s: *Session, operation: *Operation) void {
    operation.group.vote.is_news = true;
    s.votes_changed = true;
}

/// Acts on an agreement that has ended: passes the safe point, or fails the admit().
pub fn go_on_together(s: *Session, group: *Group) void {
    const vote = &group.vote;
    const operation: *Operation = .from_op(vote.op orelse return);
    if (!vote.is_news) return;
    vote.is_news = false;
    if (operation.op.state == .in_doubt) return fail_vote(s, group, .deadline_exceeded);
    const status = operation.status;
    const is_agreed = status == .ok or operation.committed == true;
    if (is_agreed and status != .ok) operation.copy_result();
    vote.op = null;
    release_operation(s, operation);
    if (!is_agreed) return fail_vote(s, group, if (status == .in_doubt) .aborted else status);
    // Lying members could agree on an epoch that this peer does not know.
    const enters = vote.all != 0 and group.member.epoch_to_enter() != null;
    vote.agreed = enters;
    if (vote.is_wanted) pass_together(group, enters);
}

fn fail_vote(s: *Session, group: *Group, status: protocol.Status) void {
    if (!group.vote.is_wanted) return;
    group.vote.is_wanted = false;
    group.admit_deadline = base.never;
    s.host.vtable.group_event(s.host.ctx, group, .{ .admit_failed = status });
}

/// The user's admit() has stopped waiting: gives up the agreement, and notes the members that the
/// agreement waited for.
pub fn withdraw_vote(s: *Session, group: *Group, reason: wire.control.AbortReason) void {
    group.vote.is_wanted = false;
    const operation: *Operation = .from_op(group.vote.op orelse return);
    if (!operation.finished) group.member.give_up(&operation.op, reason);
    if (operation.op.missing.is_empty()) return;
    const names = names_of_missing(s, operation);
    var writer: std.Io.Writer = .fixed(&group.vote.late_storage);
    const missing: Ranks = .{
        .names = &names,
        .operation = operation,
        .ranks = &operation.op.missing,
    };
    // a text that is too long is cut
    writer.print("{f} must come to it first", .{missing}) catch {};
    group.vote.late_length = writer.end;
}

// ---- calls that wait
//
// While this peer waits for others, in an operation or to enter, the log names them as the
// coordinator told. The error of a failed call names these peers, too (abi/sentence.zig).
// protocol/debt.zig finds the missing members.

/// Tells the coordinator once that this call takes long. A call with a near deadline is reported
/// sooner, with the time that is left, so that the coordinator can answer before the deadline.
pub fn say_called(s: *Session, operation: *Operation) void {
    const told_ns = limits.wait_told_ns(s.settings.stall_warning_ns);
    const rest_ns = operation.deadline -| operation.started_at;
    const long_ns = @min(told_ns, rest_ns) / limits.called_part;
    if (s.now -| operation.started_at < long_ns) return;
    const is_urgent = rest_ns < 2 * told_ns;
    const left_ns = if (is_urgent) operation.deadline -| s.now else null;
    operation.group.member.takes_long(&operation.op, left_ns);
}

/// When to tell the coordinator that this call takes long. `never`: a tick is early enough, or the
/// coordinator has been told.
pub fn says_called_at(s: *const Session, operation: *const Operation) base.Instant {
    const told_ns = limits.wait_told_ns(s.settings.stall_warning_ns);
    const rest_ns = operation.deadline -| operation.started_at;
    if (rest_ns >= 2 * told_ns) return base.never;
    if (!operation.group.member.may_say_called(&operation.op, true)) return base.never;
    return operation.started_at +| rest_ns / limits.called_part;
}

/// Checks at each tick whether bytes of an operation move. If no bytes have moved for the time of
/// the stall warning, tells the coordinator with which members nothing moves. Pings may still be
/// answered: the other process may take no frames, another process may have taken the lane over, or
/// lanes may break and reopen in vain. `late`: this process was frozen and has seen nothing move.
pub fn review_waits(s: *Session, operation: *Operation, late: bool) void {
    if (operation.op.state != .running or !operation.is_under_way()) return;
    const exchanged = switch (operation.work) {
        .movement => |x| x.bytes_sent + x.bytes_received,
        .sync => |it| it.bytes_sent + it.bytes_received + it.hash_bytes_sent +
            it.hash_bytes_received,
    };
    const has_moved = exchanged != operation.exchanged or operation.exchanged_at == 0;
    operation.exchanged = exchanged;
    // While some members have not called the operation, no bytes need to move.
    if (late or has_moved or !operation.op.missing.is_empty()) operation.exchanged_at = s.now;
    const warning_ns = s.settings.stall_warning_ns;
    const stands = s.now -| operation.exchanged_at >= warning_ns;
    const stuck: base.Mask = if (stands) stuck_of(s, operation) else .empty;
    operation.group.member.say_stuck(&operation.op, &stuck);
}

/// The ranks with which no bytes of an operation move. In a movement: neighbours whose link has
/// moved no bytes, and which have an unacknowledged or incomplete frame or have sent no `open` yet.
/// In a sync: sources that owe a leaf or page, and whose link has moved no bytes.
fn stuck_of(s: *const Session, operation: *const Operation) base.Mask {
    var stuck: base.Mask = .empty;
    switch (operation.work) {
        .movement => |x| for (operation.neighbours) |*neighbour| {
            const place = neighbour.position;
            const link = neighbour.link;
            const is_open = !x.sends_to(place) or x.board.targets[place].open;
            if (moves_bytes(s, link) or (!link.is_loaded() and is_open)) continue;
            for (operation.ids, 0..) |id, rank| if (id.eql(link.peer)) stuck.set(rank);
        },
        .sync => |it| for (0..it.transfer.peers.len) |rank| {
            const link = sync_file.link_to(s, &it.transfer, rank) orelse continue;
            if (it.transfer.owes(@intCast(rank)) and !moves_bytes(s, link)) stuck.set(rank);
        },
    }
    return stuck;
}

fn moves_bytes(s: *const Session, link: *const Link) bool {
    return s.now -| link.moved_at < s.settings.stall_warning_ns;
}

/// The least time between two log lines on waiting calls: many calls may wait for one member.
const said_ns = 5 * std.time.ns_per_s;

/// The coordinator tells for which members a call waits, or with which members no bytes move.
pub fn on_stalled(s: *Session, body: *const control.Stalled) protocol.Member.EpochError!void {
    const group = s.group_of(body.group) orelse return;
    try group.member.on_stalled(body);
    const operation = for (s.operations.items) |item| {
        if (item.group != group or item.is_over() or item.op.epoch != body.epoch) continue;
        if (item.op.id.eql(body.op)) break item;
    } else return;
    if (operation.op.missing.is_empty()) return say_stuck(s, operation);
    // The coordinator answers early if a deadline is near; the log line waits until this call is
    // old.
    const told_ns = limits.wait_told_ns(s.settings.stall_warning_ns);
    if (s.now -| operation.started_at < told_ns) return;
    if (group.wait_said_at != 0 and s.now -| group.wait_said_at < said_ns) return;
    group.wait_said_at = s.now;
    const names: Names = names_of_missing(s, operation);
    const outside = group.member.outside_of(&operation.op);
    s.log(.warning, "{f} has been waiting {d} s for {f}{f}{f}; group {s}", .{
        operation.named(&names),
        (s.now -| operation.started_at) / std.time.ns_per_s,
        Ranks{ .names = &names, .operation = operation, .ranks = &operation.op.missing },
        Outside{ .names = &names, .operation = operation, .ranks = &outside },
        Elsewhere{
            .names = &names,
            .operation = operation,
            .missing = &operation.op.missing,
            .told = &operation.op.elsewhere,
        },
        group.name,
    });
}

fn say_stuck(s: *Session, operation: *const Operation) void {
    const group = operation.group;
    if (operation.op.elsewhere.count == 0) return;
    if (group.wait_said_at != 0 and s.now -| group.wait_said_at < said_ns) return;
    group.wait_said_at = s.now;
    const names: Names = names_of_missing(s, operation);
    s.log(.warning, "{f} stands, though all have called it: {f}; group {s}", .{
        operation.named(&names),
        Stuck{ .names = &names, .operation = operation, .told = &operation.op.elsewhere },
        group.name,
    });
}

/// The links without progress, as in the log: "nothing of it moves between rank 1 (node7:4242,
/// 7f3a01c2) and rank 2 (this peer)".
pub const Stuck = struct {
    names: *const Names,
    operation: *const Operation,
    told: *const protocol.Elsewhere,

    pub fn format(it: Stuck, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll("nothing of it moves between ");
        for (it.told.slice(), 0..) |*link, index| {
            if (!it.told.is_new(index)) continue;
            if (index > 0) try writer.writeAll(", nor between ");
            try writer.print("{f} and {f}", .{
                it.names.who(it.operation.ids[link.rank]),
                it.names.who(it.operation.ids[link.waits_for]),
            });
        }
    }
};

/// Ranks as in the log: "rank 1 (node7:4242, 7f3a01c2) and rank 2 (this peer)".
pub const Ranks = struct {
    names: *const Names,
    operation: *const Operation,
    ranks: *const base.Mask,

    pub fn format(it: Ranks, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const most = Names.missing_max;
        const count = it.ranks.count();
        for (0..@min(count, most)) |index| {
            if (index > 0) try writer.writeAll(" and ");
            try writer.print("{f}", .{it.names.who(it.operation.ids[it.ranks.at(index)])});
        }
        if (count > most) try writer.print(" and {d} more", .{count - most});
    }
};

/// Members outside the epoch, as in the log: "; rank 1 (node7:4242, 7f3a01c2) has not entered the
/// epoch, as a member from before …"
pub const Outside = struct {
    names: *const Names,
    operation: *const Operation,
    ranks: *const base.Mask,

    pub fn format(it: Outside, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const count = it.ranks.count();
        if (count == 0) return;
        const ranks: Ranks = .{ .names = it.names, .operation = it.operation, .ranks = it.ranks };
        const tail = if (count == 1)
            "has not entered the epoch, as a member from before does when its program calls admit"
        else
            "have not entered the epoch, as members from before do when their programs call admit";
        try writer.print("; {f} {s}", .{ ranks, tail });
    }
};

/// The coordinator tells for which peers this newcomer waits.
pub fn on_awaited(s: *Session, body: *const control.Awaited) error{Unexpected}!void {
    const group = s.group_of(body.group) orelse return;
    var awaited: Awaited = .{ .why = body.why, .count = body.count, .at = s.now };
    var peers = body.peers.iterator();
    while (peers.next()) |entry| {
        const label = base.Label.read(entry.label.data) orelse return error.Unexpected;
        awaited.named[awaited.named_count] = .{
            .id = entry.id,
            .label = label,
            .rank = if (entry.rank < limits.peers_max) entry.rank else null,
        };
        awaited.named_count += 1;
    }
    if (awaited.named_count == 0 or awaited.named_count > body.count) return error.Unexpected;
    const is_news = !awaited.eql(&group.awaited);
    group.awaited = awaited;
    if (is_news) s.log(.warning, "{f}; group {s}", .{ &awaited, group.name });
}

/// The calls that missing members wait in, as in the log: "; rank 1 (node7:4242, 7f3a01c2) waits in
/// all_reduce (tag 5, sequence 0 of epoch 1) for rank 0 (this peer)".
pub const Elsewhere = struct {
    names: *const Names,
    operation: *const Operation,
    missing: *const base.Mask,
    told: *const protocol.Elsewhere,

    pub fn format(it: Elsewhere, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const ids = it.operation.ids;
        for (it.told.slice()) |*waits| {
            if (!it.missing.has(waits.rank)) continue; // the member is not missing any more
            try writer.print("; {f} waits in {f} for {f}", .{
                it.names.who(ids[waits.rank]),
                wire.NamedCall{
                    .kind = waits.kind,
                    .op = waits.op,
                    .epoch = it.operation.op.epoch,
                    .state = it.names.state(waits.op.tag),
                },
                it.names.who(ids[waits.waits_for]),
            });
            if (waits.count > 1) try writer.print(" and {d} more", .{waits.count - 1});
        }
    }
};

/// The coordinator tells how many peers have arrived, and how many the group needs to begin.
pub fn on_waiting(s: *Session, body: *const control.Waiting) void {
    const group = s.group_of(body.group) orelse return;
    group.attendance = .{ .here = body.here, .needed = body.needed, .emptied = body.emptied };
    const emptied = if (body.emptied) "; all that were in it before are gone" else "";
    s.log(.info, "{d} of {d} peers are here{s}; group {s}", .{
        body.here,
        body.needed,
        emptied,
        group.name,
    });
}
