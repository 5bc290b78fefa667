//! candidates: which newcomers the next round of a group takes, in which order, and who the members
//! of the epoch would be that it makes. The round: rounds.zig; whose turn it is among many:
//! turns.zig; who has to wait after it has failed: patience.zig.

const std = @import("std");
const base = @import("base");
const turns = @import("turns.zig");
const Founding = @import("founding.zig").Founding;
const Group = @import("group.zig").Group;
const Newcomer = @import("newcomer.zig").Newcomer;
const Peer = @import("peer.zig").Peer;
const Allocator = std.mem.Allocator;

/// Newcomers of one round, where members must open lanes to them.
const newcomers_per_round = 32;

const Which = enum { chosen, prompt, all, waiting };

/// Marks the newcomers of the next round. False: there is none to begin.
pub fn take_newcomers(group: *Group, now: base.Instant) bool {
    const members = if (group.current()) |epoch| epoch.alive.count() else 0;
    const gaps = group.has_gaps();
    const needed = group.least();
    if (group.narrow) {
        const chosen = mark(group, now, .chosen, base.limits.peers_max);
        if (chosen >= needed or gaps) return true;
        forget_chosen(group);
    }
    // In the first round of a large world nobody has an epoch that its size could hold up.
    const most: u32 = if (members == 0) base.limits.peers_max else @min(
        newcomers_per_round,
        base.limits.peers_max - members,
    );
    if (mark(group, now, .prompt, most) >= needed or gaps) return true;
    // Dawdlers come along only where there is nothing else to do.
    if (mark(group, now, .all, most) >= needed) return true;
    // Nothing can begin without those who have failed: only they have to wait for it.
    if (members == 0 and mark(group, now, .waiting, most) >= needed) return true;
    take_nobody(group);
    return false;
}

pub fn take_nobody(group: *Group) void {
    for (group.newcomers.items) |*newcomer| newcomer.in_round = false;
}

fn mark(group: *Group, now: base.Instant, which: Which, most: u32) u32 {
    var buffer: [base.limits.peers_max]turns.Candidate = undefined;
    var count: u32 = 0;
    for (group.newcomers.items, 0..) |*newcomer, index| {
        newcomer.prepared = false;
        newcomer.in_round = false;
        if (!switch (which) {
            .chosen => newcomer.chosen,
            .prompt => !newcomer.dawdles and is_due(group, newcomer, now),
            .all => is_due(group, newcomer, now),
            .waiting => true,
        }) continue;
        buffer[count] = .{
            .index = @intCast(index),
            .source = newcomer.peer.source,
            .has_failed = group.patience.until(newcomer.peer.id) > 0,
        };
        count += 1;
    }
    const candidates = buffer[0..count];
    if (count > most) turns.order(candidates);
    const taken = @min(count, most);
    for (candidates[0..taken]) |*candidate|
        group.newcomers.items[candidate.index].in_round = true;
    return taken;
}

/// Some who could be in the round under way are not, because it has not room for them.
pub fn leaves_some_out(group: *const Group, now: base.Instant) bool {
    for (group.newcomers.items) |*newcomer| {
        const is_out = !newcomer.in_round and !newcomer.dawdles;
        if (is_out and is_due(group, newcomer, now)) return true;
    }
    return false;
}

fn is_due(group: *const Group, newcomer: *const Newcomer, now: base.Instant) bool {
    return group.patience.until(newcomer.peer.id) <= now;
}

/// The next round is for all who have come by then, and soon.
pub fn open_to_all(group: *Group) void {
    group.fruitless = 0;
    group.next_round_at = group.round_began +| Group.interval_ns;
    forget_chosen(group);
}

fn forget_chosen(group: *Group) void {
    group.narrow = false;
    for (group.newcomers.items) |*newcomer| newcomer.chosen = false;
}

/// Members of the next epoch in rank order: incumbents as they are, then newcomers by id, or
/// founders as they are named.
pub fn future_members(group: *Group) Allocator.Error![]*Peer {
    var peers: std.ArrayList(*Peer) = .empty;
    errdefer peers.deinit(group.gpa);
    if (group.current()) |epoch| for (epoch.members) |*member| {
        if (member.peer) |peer| try peers.append(group.gpa, peer);
    };
    const incumbents = peers.items.len;
    for (group.newcomers.items) |*newcomer| {
        if (newcomer.in_round) try peers.append(group.gpa, newcomer.peer);
    }
    if (group.founding) |*founding| {
        const order: *const Founding = founding;
        std.mem.sort(*Peer, peers.items[incumbents..], order, Founding.less_than);
    } else std.mem.sort(*Peer, peers.items[incumbents..], {}, Peer.less_than);
    return peers.toOwnedSlice(group.gpa);
}
