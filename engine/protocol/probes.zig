//! probes: which members of an epoch of few are asked now to find out a link of which nobody knows
//! what it carries (measured.zig). A probe may move only while nothing else does: members say with
//! each heartbeat whether they have a moment, and none is in two pairs at a time. The pair that was
//! due first comes first. Where a probe brings nothing, as between members that are near each other
//! or have calls again, the pair is asked again later and later. How a member probes, and how many
//! bytes it may send for that, is its own business: session/probing.zig.

const std = @import("std");
const base = @import("base");
const measured = @import("measured.zig");
const post = @import("post.zig");
const Epoch = @import("epoch.zig").Epoch;
const Pair = @import("matrix.zig").Probes.Pair;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Mask = base.Mask;
const limits = base.limits;

/// Two members take part in one pair for so long: the probe, and what it takes to begin and end it.
pub const round_ns = limits.probe_ns_max / 2 * 3;
/// A pair is asked again after a round, and each time after twice as long, up to six minutes.
const doubled_max = 8;
/// Members have a moment at the same time, and say so one after the other.
const gather_ns = 50 * std.time.ns_per_ms;

/// A member has a moment: pairs are made soon.
pub fn gather(run: *Run, now: Instant) void {
    if (run.options.probes) run.due_at = @min(run.due_at, now +| gather_ns);
}

/// At a tick.
pub fn review(run: *Run, epoch: *Epoch, now: Instant) Allocator.Error!void {
    if (!run.options.probes or !epoch.running or epoch.members.len > limits.measured_max) return;
    var free: Mask = .empty;
    const inside = epoch.activated.intersect(&epoch.inside());
    for (epoch.members, 0..) |*member, rank| {
        const peer = member.peer orelse continue;
        if (!inside.has(rank) or !peer.is_present(epoch.group)) continue;
        if (peer.may_probe and peer.probes_until <= now) free.set(rank);
    }
    if (free.count() < 2) return;
    const probes = &epoch.probes;
    if (probes.pairs.len == 0) {
        probes.pairs = try run.gpa.alloc(Pair, epoch.members.len * epoch.members.len);
        @memset(probes.pairs, .{});
    }
    while (earliest(epoch, &free, now)) |ranks| {
        for (ranks) |rank| free.unset(rank);
        ask(run, epoch, now, ranks);
    }
}

fn pair_of(epoch: *const Epoch, ranks: [2]u16) *Pair {
    return &epoch.probes.pairs[ranks[0] * epoch.members.len + ranks[1]];
}

/// The pair of free members whose link is not known that was due first; by rank where several were.
fn earliest(epoch: *const Epoch, free: *const Mask, now: Instant) ?[2]u16 {
    var found: ?[2]u16 = null;
    for (0..epoch.members.len) |low| for (low + 1..epoch.members.len) |high| {
        if (!free.has(low) or !free.has(high)) continue;
        const ranks: [2]u16 = .{ @intCast(low), @intCast(high) };
        const due = pair_of(epoch, ranks).due;
        if (due > now or !(is_unknown(epoch, ranks) or is_unknown(epoch, .{ ranks[1], ranks[0] })))
            continue;
        if (found) |other| if (pair_of(epoch, other).due <= due) continue;
        found = ranks;
    };
    return found;
}

/// The way from the first to the second.
fn is_unknown(epoch: *const Epoch, ranks: [2]u16) bool {
    const peers = peers_of(epoch, ranks);
    return measured.believed(peers[0], peers[1]).rate == 0;
}

fn peers_of(epoch: *const Epoch, ranks: [2]u16) [2]*Peer {
    return .{ epoch.members[ranks[0]].peer.?, epoch.members[ranks[1]].peer.? };
}

/// Both ways at once, where neither is known.
fn ask(run: *Run, epoch: *Epoch, now: Instant, ranks: [2]u16) void {
    for ([_][2]u16{ ranks, .{ ranks[1], ranks[0] } }) |way| {
        const peer = peers_of(epoch, way)[0];
        peer.may_probe = false;
        peer.probes_until = now +| round_ns;
        if (!is_unknown(epoch, way)) continue;
        post.send(run, peer, epoch.group, .{ .probe = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .rank = way[1],
        } });
    }
    const pair = pair_of(epoch, ranks);
    pair.due = now +| (@as(u64, round_ns) << @intCast(@min(pair.asked, doubled_max)));
    pair.asked +|= 1;
}
