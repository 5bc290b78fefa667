//! Unreached: which peers of a group could not dial which others, by their own words: for the
//! status, for the log, and for the peers that were dialed. No decision depends on it: lanes decide
//! who is let in (roster.zig), and links the way of data (broken.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const awaited = @import("awaited.zig");
const Group = @import("group.zig").Group;
const Peer = @import("coordinator.zig").Peer;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const Dialed = wire.Dialed;

/// The other side and the log hear of one pair no more often, and of so many pairs of one peer.
const tell_ns = 30 * std.time.ns_per_s;
const tells_max = base.limits.full_mesh_max;

pub const Unreached = struct {
    /// About peers that a round has asked for lanes to each other.
    claims: std.ArrayList(Claim) = .empty,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// `pending` once it can, or need not any more.
        dialed: Dialed,
        source: base.Source,
        /// Null: the other side and the log have not heard of it.
        told_at: ?Instant,

        fn is_due(claim: *const Claim, now: Instant) bool {
            return now -| (claim.told_at orelse return true) >= tell_ns;
        }
    };

    pub fn deinit(unreached: *Unreached, gpa: Allocator) void {
        unreached.claims.deinit(gpa);
    }

    fn find(unreached: *const Unreached, from: PeerId, to: PeerId) ?*Claim {
        for (unreached.claims.items) |*claim| {
            if (claim.from.eql(from) and claim.to.eql(to)) return claim;
        }
        return null;
    }

    /// Pairs of this peer that were told lately.
    fn told_by(unreached: *const Unreached, from: PeerId, now: Instant) usize {
        var count: usize = 0;
        for (unreached.claims.items) |*claim| {
            count += @intFromBool(claim.from.eql(from) and !claim.is_due(now));
        }
        return count;
    }

    /// The peer is gone.
    pub fn forget(unreached: *Unreached, id: PeerId) void {
        var index = unreached.claims.items.len;
        while (index > 0) {
            index -= 1;
            const claim = &unreached.claims.items[index];
            if (claim.from.eql(id) or claim.to.eql(id)) _ = unreached.claims.swapRemove(index);
        }
    }
};

/// A peer has said which lanes it lacks; the roster has heard it.
pub fn prepared(
    group: *Group,
    now: Instant,
    from: *Peer,
    missing: *const wire.codec.List(control.Missing),
) void {
    for (group.unreached.claims.items) |*claim| {
        if (!claim.from.eql(from.id) or group.roster.lacks(from.id, claim.to)) continue;
        // A round does not wait for a link that is down, and does not name it.
        if (!group.broken.has(from.id, claim.to)) claim.dialed = .pending;
    }
    var it = missing.iterator();
    var lacks_away = false;
    while (it.next()) |entry| {
        if (entry.dialed == .pending or !group.roster.lacks(from.id, entry.peer)) continue;
        const other = group.coordinator.peer_of(entry.peer) orelse continue;
        lacks_away = lacks_away or other.connection == null;
        say(group, now, from, entry);
    }
    if (lacks_away and group.newcomer_of(from) != null) awaited.tell_of_away(group, from);
}

/// A peer has said how a link of its is; both are of the group.
pub fn link_told(group: *Group, now: Instant, from: *Peer, body: *const control.LinkTold) void {
    if (body.health == .down and body.dialed != .pending)
        return say(group, now, from, .{
            .peer = body.other,
            .dialed = body.dialed,
            .source = body.source,
        });
    if (body.health != .up) return;
    if (group.unreached.find(from.id, body.other)) |claim| claim.dialed = .pending;
}

/// A peer that is away may be dead: if nobody can dial it, its ports need not be at fault.
/// Newcomers hear that they wait for it (awaited.zig); nobody else hears anything.
fn say(group: *Group, now: Instant, from: *Peer, missing: control.Missing) void {
    const c = group.coordinator;
    const other = c.peer_of(missing.peer) orelse return;
    const known = group.unreached.find(from.id, other.id);
    const is_due = if (known) |claim| claim.is_due(now) else true;
    const is_here = other.connection != null;
    const is_new = is_here and is_due and group.unreached.told_by(from.id, now) < tells_max;
    if (known) |claim| {
        claim.dialed = missing.dialed;
        claim.source = missing.source;
        if (is_new) claim.told_at = now;
    } else group.unreached.claims.append(group.gpa, .{
        .from = from.id,
        .to = other.id,
        .dialed = missing.dialed,
        .source = missing.source,
        .told_at = if (is_new) now else null,
    }) catch return; // it is said again
    if (!is_new) return;
    var room: addresses.Room = undefined;
    const address = addresses.told_to(from, other, &room);
    var host: [base.source.text_bytes_max]u8 = undefined;
    const source = base.source.write_host(missing.source, &host);
    c.log(.warning, "peer {f} cannot dial peer {f}{s}{s}{s}{s}: {s}; " ++ wire.dialed.remedy, .{
        from.named(),
        other.named(),
        if (address.len > 0) " at " else "",
        address,
        if (source.len > 0) " from " else "",
        source,
        missing.dialed.why(),
    });
    other.send(group.id, .{ .unreached = .{
        .group = group.id,
        .peer = from.id,
        .dialed = missing.dialed,
        .source = missing.source,
        .address = .of(address),
    } });
}
