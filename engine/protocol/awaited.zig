//! awaited: peers that newcomers wait for. A group without members begins when the users of its
//! newcomers have called `admit`, and one of founders when all of these have asked for it. Where it
//! has members, newcomers wait outside while one of them has not come to the safe point of the
//! epoch that has begun, as after a loss, or has calls of the epoch before in flight. If such a
//! member is away, that is what they are told, because it may be dead; in a round they are told of
//! any that is away. The log and the status say it too. No decision depends on it: rounds are in
//! rounds.zig, missing calls of operations in stalls.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const post = @import("post.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;

pub const Why = control.Awaited.Why;

pub const Missing = struct {
    why: Why = .begin,
    items: [limits.peers_max]Item = undefined,
    count: usize = 0,

    pub const Item = struct {
        peer: *const Peer,
        /// Null: it is in no epoch.
        rank: ?u16 = null,

        /// As a line of the log has it.
        pub fn format(item: Item, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const peer = item.peer;
            const rank = item.rank orelse return writer.print("peer {f}", .{peer.named()});
            const ranked: base.Ranked = .{ .rank = rank, .id = peer.id, .label = peer.label };
            try ranked.format(writer);
        }
    };

    fn add(missing: *Missing, item: Item) void {
        missing.items[missing.count] = item;
        missing.count += 1;
    }

    fn add_ranks(missing: *Missing, why: Why, epoch: *const Epoch, ranks: *const base.Mask) void {
        missing.why = why;
        for (epoch.members, 0..) |*member, rank| if (ranks.has(rank)) {
            if (member.peer) |peer| missing.add(.{ .peer = peer, .rank = @intCast(rank) });
        };
    }

    /// One that is away must come back before it can do anything else. It may be dead.
    fn add_held_up(missing: *Missing, why: Why, epoch: *const Epoch, ranks: *const base.Mask) void {
        const absent = ranks.intersect(&away(epoch));
        if (absent.is_empty())
            missing.add_ranks(why, epoch, ranks)
        else
            missing.add_ranks(.away, epoch, &absent);
    }

    pub fn slice(missing: *const Missing) []const Item {
        return missing.items[0..missing.count];
    }
};

/// Fills in for whom newcomers wait, if there are any.
pub fn find(run: *const Run, group: *const Group, missing: *Missing) void {
    missing.count = 0;
    if (group.newcomers.items.len == 0) return;
    if (group.current()) |epoch| if (!epoch.alive.is_empty()) {
        if (group.phase == .activate)
            missing.add_held_up(.safe_point, epoch, &epoch.not_entered())
        else if (group.epochs.items.len > 1)
            missing.add_held_up(.in_flight, group.epochs.items[0], &group.epochs.items[0].inside())
        else if (group.phase == .prepare)
            missing.add_ranks(.away, epoch, &away(epoch));
        return;
    };
    if (group.founding) |*founding| {
        const awaited = founding.awaited(group.newcomers.items);
        missing.why = .founders;
        for (founding.members, 0..) |id, place| if (awaited.has(place)) {
            if (run.peer_of(id)) |peer| missing.add(.{ .peer = peer });
        };
        if (missing.count > 0) return;
    }
    missing.why = .begin;
    var waits = false;
    for (group.newcomers.items) |*newcomer| {
        waits = waits or newcomer.wants;
        if (newcomer.was_ready and !newcomer.wants) missing.add(.{ .peer = newcomer.peer });
    }
    if (!waits) missing.count = 0;
}

fn away(epoch: *const Epoch) base.Mask {
    var found: base.Mask = .empty;
    for (epoch.members, 0..) |*member, rank| if (member.peer) |peer| {
        if (peer.connection == null) found.set(rank);
    };
    return found;
}

/// A newcomer has said that it cannot dial a member, which is away: at once, since it would look
/// for the reason in its network.
pub fn tell_of_away(run: *Run, group: *const Group, newcomer: *Peer) void {
    var missing: Missing = .{};
    find(run, group, &missing);
    if (missing.count == 0 or missing.why != .away) return;
    var entries: Entries = undefined;
    post.send(run, newcomer, group.id, message(group, &missing, &entries));
}

/// At a tick. `late`: the coordinator was frozen, and nobody waited longer for that.
pub fn review(run: *Run, group: *Group, now: Instant, late: bool) void {
    const it = &group.awaited;
    var missing: Missing = .{};
    find(run, group, &missing);
    if (missing.count == 0) {
        it.* = .{};
        return;
    }
    if (late or it.since == base.never) it.since = now;
    const warning_ns = run.options.stall_warning_ns;
    const told_ns = limits.wait_told_ns(warning_ns);
    const waited_ns = now -| it.since;
    if (waited_ns < told_ns or now -| it.told_at < told_ns) return;
    it.told_at = now;
    tell(run, group, &missing);
    if (waited_ns < warning_ns or it.is_logged) return;
    it.is_logged = true;
    run.log(.warning, "newcomers have waited {d} s for {f} to {s}{s}; group {s}", .{
        waited_ns / std.time.ns_per_s,
        missing.items[0],
        what(missing.why),
        if (missing.count > 1) ", and for others" else "",
        group.name,
    });
}

fn what(why: Why) []const u8 {
    return switch (why) {
        .begin => "call admit",
        .safe_point => "pass its next safe point (admit)",
        .in_flight => "finish its calls of the epoch before",
        .founders => "ask for the group, of which it is a founder",
        .away => "come back, or to be lost",
    };
}

/// Newcomers that could enter, or wait for the next round.
fn tell(run: *Run, group: *Group, missing: *const Missing) void {
    var entries: Entries = undefined;
    for (group.newcomers.items) |*newcomer| {
        if (missing.why == .begin and !newcomer.wants) continue;
        post.send(run, newcomer.peer, group.id, message(group, missing, &entries));
    }
}

const Entries = [limits.awaited_told_max]control.AwaitedEntry;

fn message(group: *const Group, missing: *const Missing, entries: *Entries) control.Message {
    const shown = @min(missing.count, entries.len);
    for (missing.items[0..shown], entries[0..shown]) |*item, *entry| entry.* = .{
        .id = item.peer.id,
        .label = .of(item.peer.label.slice()),
        .rank = item.rank orelse limits.peers_max,
    };
    return .{ .awaited = .{
        .group = group.id,
        .why = missing.why,
        .count = @intCast(missing.count),
        .peers = .of(entries[0..shown]),
    } };
}
