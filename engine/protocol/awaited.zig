//! awaited: peers whose `admit` others wait for. A group without members begins when the users of
//! its newcomers have called `admit`; and newcomers wait outside while a member has not come to the
//! safe point of the epoch that has begun. The waiting peers, the log and the status are told the
//! peers that they wait for. No decision depends on it: rounds are group.zig's, missing calls of
//! operations are stall.zig's.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Group = @import("group.zig").Group;
const Peer = @import("coordinator.zig").Peer;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;

pub const Awaited = struct {
    /// Since when somebody waits; `never` while nobody does.
    since: Instant = base.never,
    told_at: Instant = 0,
    is_logged: bool = false,
};

pub const Peers = struct {
    items: [limits.peers_max]*const Peer = undefined,
    count: usize = 0,

    fn add(peers: *Peers, peer: *const Peer) void {
        peers.items[peers.count] = peer;
        peers.count += 1;
    }

    fn slice(peers: *const Peers) []const *const Peer {
        return peers.items[0..peers.count];
    }
};

/// Those who have not called it, if anybody waits for that.
pub fn of(group: *const Group, peers: *Peers) []const *const Peer {
    peers.count = 0;
    if (group.newcomers.items.len == 0) return peers.slice();
    if (group.current()) |epoch| if (!epoch.alive.is_empty()) {
        if (group.phase != .activate) return peers.slice();
        for (epoch.members, 0..) |*member, rank| {
            const is_missing = epoch.alive.has(rank) and !epoch.activated.has(rank);
            if (is_missing) if (member.peer) |peer| peers.add(peer);
        }
        return peers.slice();
    };
    var waits = false;
    for (group.newcomers.items) |*newcomer| {
        waits = waits or newcomer.wants;
        if (newcomer.was_ready and !newcomer.wants) peers.add(newcomer.peer);
    }
    if (!waits) peers.count = 0;
    return peers.slice();
}

/// At a tick. `late`: the coordinator was frozen, and nobody waited longer for that.
pub fn review(group: *Group, now: Instant, late: bool) void {
    const it = &group.awaited;
    var peers: Peers = .{};
    const missing = of(group, &peers);
    if (missing.len == 0) {
        it.* = .{};
        return;
    }
    if (late or it.since == base.never) it.since = now;
    const warning_ns = group.coordinator.options.stall_warning_ns;
    const told_ns = limits.wait_told_ns(warning_ns);
    const waited_ns = now -| it.since;
    if (waited_ns < told_ns or now -| it.told_at < told_ns) return;
    it.told_at = now;
    tell(group, missing);
    if (waited_ns < warning_ns or it.is_logged) return;
    it.is_logged = true;
    group.coordinator.log(.warning, "newcomers have waited {d} s for peer {f} to call admit" ++
        "{s}; group {s}", .{
        waited_ns / std.time.ns_per_s,
        missing[0].named(),
        if (missing.len > 1) ", and for others" else "",
        group.name,
    });
}

/// Newcomers that could enter, or wait for the next round.
fn tell(group: *Group, missing: []const *const Peer) void {
    var entries: [limits.awaited_told_max]control.LabelEntry = undefined;
    const shown = @min(missing.len, entries.len);
    for (missing[0..shown], entries[0..shown]) |peer, *entry|
        entry.* = .{ .id = peer.id, .label = .of(peer.label.slice()) };
    for (group.newcomers.items) |*newcomer| {
        if (group.phase != .activate and !newcomer.wants) continue;
        newcomer.peer.send(group.id, .{ .awaited = .{
            .group = group.id,
            .count = @intCast(missing.len),
            .peers = .of(entries[0..shown]),
        } });
    }
}
