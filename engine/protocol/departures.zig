//! departures: a peer leaves one group, as a newcomer that waits no more or as a member. Its
//! operations in flight go on among the others. Why peers leave: losses.zig, tick.zig, joining.zig.

const base = @import("base");
const comebacks = @import("comebacks.zig");
const detours = @import("detours.zig");
const journal = @import("journal.zig");
const journaling = @import("journaling.zig");
const rounds = @import("rounds.zig");
const votes = @import("votes.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const PeerId = base.PeerId;

/// The peer's connection ended: it is told nothing more until it comes back.
pub fn gone_away(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *const Peer,
    why: []const u8,
) void {
    for (group.returned.items, 0..) |item, index| if (item.peer == peer) {
        _ = group.returned.swapRemove(index);
        break;
    };
    remove_newcomer(run, group, now, peer, why);
}

/// It waits no more to become a member.
fn remove_newcomer(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *const Peer,
    why: []const u8,
) void {
    const index = for (group.newcomers.items, 0..) |*newcomer, index| {
        if (newcomer.peer == peer) break index;
    } else return;
    run.log(.info, "peer {f} does not wait any more: {s}; group {s}", .{
        peer.named(),
        why,
        group.name,
    });
    group.broken.forget(peer.id);
    group.unreached.forget(peer.id);
    const gone = group.newcomers.orderedRemove(index);
    if (gone.in_round) {
        group.patience.lose(group.gpa, peer.id, now);
        group.roster.leave(peer.id);
        if (!can_go_on(group)) rounds.release(run, group);
    }
    rounds.advance(run, group, now);
}

/// A newcomer has gone from the round under way. Whoever comes and goes must not have the
/// others begin anew each time: they go on, if enough are left, and none has stopped for an
/// epoch in which it would have other neighbours.
fn can_go_on(group: *const Group) bool {
    const places = group.roster.places.items.len;
    if (group.phase == .ask and places > base.limits.full_mesh_max) return false;
    return group.roster.newcomers() >= group.least() or group.has_gaps();
}

/// The peer is gone from this group: lost, or it left. `why`, for the log, and for the peer if
/// it comes back.
pub fn remove(run: *Run, group: *Group, now: base.Instant, peer: *Peer, why: []const u8) !void {
    gone_away(run, group, now, peer, why);
    var lost: [2]*Epoch = undefined;
    var from: [2]journal.From = undefined;
    var lost_count: usize = 0;
    // Everywhere at once, before anything that may fail: the peer's memory goes away.
    for (group.epochs.items) |epoch| if (epoch.rank_of(peer)) |rank| {
        from[lost_count] = .{ .epoch = epoch.number, .attempt = epoch.attempt + 1 };
        epoch.detach(rank, epoch.attempt + 1);
        lost[lost_count] = epoch;
        lost_count += 1;
    };
    if (lost_count == 0) return;
    group.lost_member = true;
    group.removals.note(peer.id, why);
    group.broken.forget(peer.id);
    group.unreached.forget(peer.id);
    lose(run, now, group, peer.id);
    const recorded = journaling.note(run, group, .{ .removal = .{
        .group = group.id,
        .peer = peer.id,
        .epochs = .of(from[0..lost_count]),
        .why = .of(group.removals.why_of(peer.id).?),
    } });
    for (lost[0..lost_count]) |item| item.recorded = recorded;
    const epoch = lost[lost_count - 1];
    const out = "peer {f} is out of epoch {d}: {s}; {d} of {d} members remain in group {s}";
    run.log(.info, out, .{
        peer.named(),
        epoch.number,
        why,
        epoch.alive.count(),
        epoch.members.len,
        group.name,
    });
    // Nobody can open lanes to who is gone: the round begins again, without it.
    if (group.phase == .prepare) rounds.release(run, group);
    detours.look_soon(group, now);
    for (lost[0..lost_count]) |item| {
        try votes.commit_voted(run, item);
        try detours.new_attempt(run, group, item);
    }
    try comebacks.check_recovered(run, group, now);
    group.drop_empty();
    if (group.phase != .idle and !group.has_candidates()) {
        group.phase = .idle;
        group.round_deadline = base.never;
    }
    rounds.advance(run, group, now);
}

/// A peer is not a member of the parent any more: groups that wait for it begin without it.
fn lose(run: *Run, now: Instant, parent: *const Group, id: PeerId) void {
    for (run.groups.items) |group| {
        const founding = if (group.founding) |*it| it else continue;
        if (founding.parent != parent.id or group.had_members) continue;
        founding.gone.set(founding.place_of(id) orelse continue);
        rounds.advance(run, group, now);
    }
}
