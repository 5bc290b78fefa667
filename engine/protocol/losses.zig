//! losses: peers go, because their connections end or because they must. A member that is away may
//! come back within the silence limit (tick.zig), unless other members have seen its lanes close.
//! The consequences for a group: departures.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const departures = @import("departures.zig");
const detours = @import("detours.zig");
const post = @import("post.zig");
const Connection = @import("peer.zig").Connection;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const control = wire.control;

/// The word of a second member on a machine that is busy.
pub const second_witness_ns = 100 * std.time.ns_per_ms;

/// The connection ended; it is invalid afterwards.
pub fn closed(run: *Run, now: Instant, connection: *Connection) void {
    if (connection.peer) |peer| gone_away(run, now, peer);
    forget(run, connection);
}

fn forget(run: *Run, connection: *Connection) void {
    for (run.connections.items, 0..) |item, index| if (item == connection) {
        _ = run.connections.swapRemove(index);
        break;
    };
    connection.destroy(run.gpa);
}

/// Closes what has been doomed, until nothing more follows from it.
pub fn sweep(run: *Run, now: Instant) void {
    if (!run.shared.any_doomed) return;
    var index: usize = 0;
    while (index < run.connections.items.len) {
        const connection = run.connections.items[index];
        const why = connection.doomed orelse {
            index += 1;
            continue;
        };
        if (connection.peer) |peer| {
            disconnect(run, peer);
            lose(run, now, peer, why);
        }
        run.host.vtable.close(run.host.ctx, connection);
        forget(run, connection);
        index = 0; // a removal may doom others
    }
    run.shared.any_doomed = false;
}

/// The coordinator ends, and no journal goes on with the run: who was never a member has nothing to
/// wait for. Members hear nothing, because their calls may be in doubt: these have deadlines.
pub fn end_newcomers(run: *Run, now: Instant) void {
    if (run.journal_state != .off) return;
    for (run.connections.items) |connection| {
        const peer = connection.peer orelse continue;
        if (run.is_in_epoch(peer)) continue;
        post.say(run, peer, .{ .expelled = .{
            .group = std.math.maxInt(u16),
            .why = .of("the coordinator has ended, and without a journal the run ends with it"),
        } });
        connection.doom("the coordinator ends");
    }
    sweep(run, now);
}

pub fn disconnect(run: *Run, peer: *Peer) void {
    if (peer.connection) |connection| {
        run.lobby.disconnected(run.gpa, peer);
        connection.peer = null;
    }
    peer.connection = null;
    peer.present = 0;
    peer.may_probe = false;
    peer.telling = null;
    peer.refused = false;
    peer.claim.disconnected();
}

/// Its connection ended. A member may come back; who only waited to become one asks again.
fn gone_away(run: *Run, now: Instant, peer: *Peer) void {
    const why = "its connection to the coordinator closed";
    if (peer.connection.?.has_answered) peer.away_since = now;
    disconnect(run, peer);
    for (run.groups.items) |group| departures.gone_away(run, group, now, peer, why);
    if (!run.is_member(peer)) return lose(run, now, peer, why);
    run.log(.info, "peer {f} is away: {s}", .{ peer.named(), why });
    peer.forget_witnesses(now -| run.options.heartbeat_ns);
    hear_witnesses(run, now, peer);
}

pub fn hear_witnesses(run: *Run, now: Instant, peer: *Peer) void {
    // If it is dead, another one will say so soon: an attempt with it would be in vain.
    if (peer.connection == null and peer.has_witness()) {
        for (run.groups.items) |group| for (group.epochs.items) |epoch| {
            if (epoch.replan_at == base.never or epoch.rank_of(peer) == null) continue;
            epoch.replan_at = @max(epoch.replan_at, now + second_witness_ns);
        };
    }
    lose_abandoned(run, now);
}

/// Members that are away, and whose lanes are closed as well: their processes are dead. One
/// that is away cannot object, so where two others could have noticed, two must say so.
fn lose_abandoned(run: *Run, now: Instant) void {
    var index: usize = 0;
    while (index < run.peers.items.len) {
        const peer = run.peers.items[index];
        index += 1;
        if (peer.connection != null or !is_abandoned(run, peer)) continue;
        lose(run, now, peer, "it is away, and its lanes to other members are closed");
        index = 0; // with it, others may have one less who could notice
    }
}

fn is_abandoned(run: *const Run, peer: *const Peer) bool {
    if (!peer.has_witness()) {
        // A newcomer is heard where no member is left that could have noticed.
        if (!peer.has_bystander()) return false;
        for (run.groups.items) |group| if (detours.neighbours_of(group, peer) > 0) return false;
        return true;
    }
    for (&peer.witnesses) |*known| if (known.id.eql(.none)) {
        for (run.groups.items) |group| if (detours.neighbours_of(group, peer) > 1) return false;
    };
    return true;
}

/// Takes a peer out of the run.
pub fn lose(run: *Run, now: Instant, peer: *Peer, why: []const u8) void {
    run.log(.info, "peer {f} is gone: {s}", .{ peer.named(), why });
    disconnect(run, peer);
    for (run.groups.items) |group| take_out(run, now, group, peer, why);
    forget_peer(run, peer);
}

fn forget_peer(run: *Run, peer: *Peer) void {
    for (run.peers.items, 0..) |item, index| if (item == peer) {
        _ = run.peers.orderedRemove(index);
        break;
    };
    peer.destroy(run.gpa);
}

/// Those who are away and members of nothing.
pub fn forget_idle(run: *Run) void {
    var index = run.peers.items.len;
    while (index > 0) {
        index -= 1;
        const peer = run.peers.items[index];
        if (peer.connection == null and !run.is_member(peer)) forget_peer(run, peer);
    }
}

/// Takes a peer out of one group and tells it, after that is recorded. A peer that is neither
/// there nor a member anywhere is forgotten.
pub fn expel(run: *Run, now: Instant, group: *Group, peer: *Peer, why: []const u8) void {
    expel_as(run, now, group, peer, .{ .group = group.id, .why = .of(why) });
}

pub fn expel_as(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    told: control.Expelled,
) void {
    const why = told.why.data;
    run.log(.warning, "peer {f} must leave group {s}: {s}", .{
        peer.named(),
        group.name,
        why,
    });
    take_out(run, now, group, peer, why);
    post.send(run, peer, group.id, .{ .expelled = told });
    if (peer.connection == null and !run.is_member(peer)) forget_peer(run, peer);
}

pub fn take_out(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    why: []const u8,
) void {
    departures.remove(run, group, now, peer, why) catch |err| {
        // Out of memory: the group's promises cannot be kept, so its members are let go, not
        // misled.
        run.log(.err, "group {s}: {t} while removing a peer", .{ group.name, err });
        for (run.peers.items) |other| {
            if (group.contains(other)) other.doom("the coordinator ran out of memory");
        }
    };
}
