//! detours: ways around the broken links of a group (broken.zig), and the member that must leave
//! because there is none. The search: path_search.zig. When it is due: look.zig, tick.zig.

const base = @import("base");
const path_search = @import("path_search.zig");
const reports = @import("reports.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;

/// Members of an epoch stop, and go on around the links that are broken.
pub fn new_attempt(run: *Run, group: *Group, epoch: *Epoch) ProtocolError!void {
    try reports.new_attempt(run, epoch, paths_for(group, epoch));
}

/// Paths that use no broken link; else none that has been broken for long; else all, until
/// somebody leaves.
fn paths_for(group: *const Group, epoch: *const Epoch) base.Paths {
    const world_size = epoch.members.len;
    for ([_]bool{ false, true }) |lasting| {
        const edges = group.broken.edges(&epoch.ranks, lasting);
        if (path_search.paths(&epoch.alive, world_size, &edges)) |paths| return paths;
    }
    return .all(&epoch.alive, world_size);
}

/// Members have come or gone.
pub fn look_soon(group: *Group, now: base.Instant) void {
    if (group.broken.claims.items.len > 0) group.look.ask(now, .none);
}

/// An epoch whose paths use a broken link gets a new attempt now, if there are others. True:
/// there is one that would have gone on as it is. Only for a look that is due: others come
/// later, because one member says too often that links are broken.
pub fn go_around(group: *Group, now: base.Instant) bool {
    var any = false;
    if (group.broken.claims.items.len == 0) return any;
    for (group.epochs.items) |epoch| {
        if (epoch.alive.is_empty() or epoch.recovering) continue;
        if (epoch.replan_at <= now) continue;
        const edges = group.broken.edges(&epoch.ranks, false);
        if (!path_search.uses_broken(&epoch.paths, &epoch.alive, &edges)) continue;
        if (paths_for(group, epoch).eql(&epoch.paths)) continue;
        epoch.replan_at = now;
        any = true;
    }
    return any;
}

/// The peer that must leave because no ring goes around the links that have been broken for
/// long, and nobody reaches all others.
pub fn stranded(group: *const Group) ?*Peer {
    if (group.broken.claims.items.len == 0) return null;
    for (group.epochs.items) |epoch| {
        if (epoch.recovering) continue;
        const edges = group.broken.edges(&epoch.ranks, true);
        if (path_search.paths(&epoch.alive, epoch.members.len, &edges) != null) continue;
        const rank = edges.worst(&epoch.alive, &epoch.alive) orelse continue;
        return epoch.members[rank].peer;
    }
    return null;
}

/// How many other members could notice that their lanes to this one close: those who are there
/// and whose links to it are well, or who say that they have noticed: what one says of its own
/// link must not make its word weigh more. After a restart nobody is there at first, so all
/// count.
pub fn neighbours_of(group: *const Group, peer: *const Peer) usize {
    var most: usize = 0;
    for (group.epochs.items) |epoch| {
        if (epoch.rank_of(peer) == null) continue;
        const broken = group.broken.edges_of(&epoch.ranks, peer.id);
        var count: usize = 0;
        for (epoch.members, 0..) |*member, other| {
            const neighbour = member.peer orelse continue;
            const could_notice = !broken.has(other) or peer.has_word_of(neighbour.id);
            if (neighbour == peer or !could_notice) continue;
            count += @intFromBool(neighbour.connection != null or group.recovering);
        }
        most = @max(most, count);
    }
    return most;
}
