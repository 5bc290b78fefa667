//! founding: groups that are made of members of one epoch of another group, their parent
//! (sub-groups). Each founder names the same peers in the same order, which is that of the ranks.
//! The group begins when all founders have asked for it that have not been lost to the parent, or
//! left it, since its first founder asked. Nobody else ever enters. The founders are not in the
//! journal: after a restart those who wait ask anew, and a group that has begun is only known to be
//! closed.
//!
//! Free functions on Coordinator, so that coordinator.zig stays readable. The round that lets them
//! in: group.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Coordinator = @import("coordinator.zig").Coordinator;
const Group = @import("group.zig").Group;
const Newcomer = @import("group.zig").Newcomer;
const Peer = @import("coordinator.zig").Peer;
const Ranks = @import("epoch.zig").Ranks;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// The founders of a group; nobody where it comes from the journal.
pub const Founding = struct {
    /// The number of the parent, and its epoch.
    parent: u16 = limits.groups_max,
    epoch: u64 = 0,
    /// In rank order.
    members: []PeerId = &.{},
    places: Ranks = .empty,
    /// Those that have named the same founders.
    asked: Mask = .empty,
    /// The parent has lost them since: nobody waits for them.
    gone: Mask = .empty,
    /// The founder that has named others. It is the end of the group.
    differs: PeerId = .none,
    /// The last that has named others and is no founder: it is turned away alone.
    outsider: PeerId = .none,

    pub fn deinit(founding: *Founding, gpa: Allocator) void {
        gpa.free(founding.members);
        founding.places.deinit(gpa);
    }

    fn place_of(founding: *const Founding, id: PeerId) ?u16 {
        return founding.places.get(id);
    }

    /// Founders that the others wait for.
    pub fn awaited(founding: *const Founding, newcomers: []const Newcomer) Mask {
        var here: Mask = founding.gone;
        for (newcomers) |*newcomer| {
            if (founding.place_of(newcomer.peer.id)) |place| here.set(place);
        }
        return Mask.full(founding.members.len).without(&here);
    }

    /// Newcomers that the first epoch needs: those who are there, and all others that may come.
    pub fn least(founding: *const Founding, newcomers: []const Newcomer) u32 {
        const rest = founding.awaited(newcomers).count();
        return @max(1, @as(u32, @intCast(newcomers.len)) + rest);
    }

    pub fn less_than(founding: *const Founding, a: *Peer, b: *Peer) bool {
        const none = limits.peers_max;
        return (founding.place_of(a.id) orelse none) < (founding.place_of(b.id) orelse none);
    }

    fn says(founding: *const Founding, parent: u16, told: *const control.Founders) bool {
        if (founding.parent != parent or founding.epoch != told.epoch) return false;
        if (founding.members.len != told.members.count) return false;
        var it = told.members.iterator();
        for (founding.members) |id| if (!id.eql(it.next().?)) return false;
        return true;
    }
};

/// Those that a peer names in its join; null: nobody. `objection` has found nothing against it.
pub fn of(
    c: *const Coordinator,
    peer: *const Peer,
    told: *const control.Founders,
) Allocator.Error!?Founding {
    if (told.members.count == 0) return null;
    var founding: Founding = .{
        .parent = c.group_named(told.parent.data).?.id,
        .epoch = told.epoch,
        .members = try c.gpa.alloc(PeerId, told.members.count),
    };
    errdefer founding.deinit(c.gpa);
    try founding.places.ensureTotalCapacity(c.gpa, told.members.count);
    var it = told.members.iterator();
    for (founding.members, 0..) |*id, place| {
        id.* = it.next().?;
        founding.places.putAssumeCapacity(id.*, @intCast(place));
    }
    founding.asked.set(founding.place_of(peer.id).?);
    const epoch = c.group_at(founding.parent).?.epoch_of(told.epoch).?;
    for (founding.members, 0..) |id, place| {
        if (!epoch.alive.has(epoch.ranks.get(id).?)) founding.gone.set(place);
    }
    return founding;
}

/// A copy that outlives the message.
pub fn copy(gpa: Allocator, told: *const control.Founders) Allocator.Error!control.Founders {
    var founders = told.*;
    founders.parent.data = try gpa.dupe(u8, told.parent.data);
    errdefer gpa.free(founders.parent.data);
    founders.members.encoded = try gpa.dupe(u8, told.members.encoded);
    return founders;
}

pub fn free(gpa: Allocator, founders: *const control.Founders) void {
    gpa.free(founders.parent.data);
    gpa.free(founders.members.encoded);
}

/// Why a peer may not ask for this group as one of its founders; null if it may, and if it names
/// none. Whether others may have this group is seen when they have told everything: one of them may
/// be a member that is back.
pub noinline fn objection(
    c: *Coordinator,
    name: []const u8,
    peer: *const Peer,
    told: *const control.Founders,
) ?[]const u8 {
    if (told.members.count == 0) return null;
    c.end_groups(); // its own last attempt may be over
    const parent = c.group_named(told.parent.data);
    const group = c.group_named(name) orelse return problem(parent, peer, told);
    if (group.contains(peer)) return null; // it is a member, and has not heard of it
    const known = if (group.founding) |*it| it else return other_kind;
    if (group.had_members) return has_begun;
    const maybe = known.place_of(peer.id);
    if (maybe) |place| if (parent != null and known.says(parent.?.id, told)) {
        known.asked.set(place);
        return null;
    };
    if (problem(parent, peer, told)) |why| return why;
    if (maybe == null) known.outsider = peer.id else known.differs = peer.id;
    return null;
}

const other_kind = "there is a group of this name that takes whoever comes; take another name " ++
    "for one of founders";
const not_one = "it is made of founders, and this peer is not one of them";
const has_begun = "it has begun without this peer, and nobody enters a group of founders " ++
    "afterwards; take another name for another one";

fn problem(
    parent: ?*const Group,
    peer: *const Peer,
    told: *const control.Founders,
) ?[]const u8 {
    const group = parent orelse return "the group that its founders are in does not exist";
    const epoch = group.epoch_of(told.epoch) orelse
        return "the epoch that its founders are in is over";
    const own = epoch.rank_of(peer) orelse
        return "this peer is not a member of the epoch that its founders are in";
    var named: Mask = .empty;
    var it = told.members.iterator();
    while (it.next()) |id| {
        const rank = epoch.ranks.get(id) orelse
            return "one of its founders is not a member of the epoch that they are to be in";
        if (named.has(rank)) return "one of its founders is named twice";
        named.set(rank);
    }
    return if (named.has(own)) null else "this peer is not one of the founders that it names";
}

/// A newcomer may not enter, and hears why. True of all that are not founders of a group that has
/// some, and of founders that do not agree.
pub fn turns_away(c: *Coordinator, now: Instant, group: *Group, peer: *Peer) bool {
    const founding = if (group.founding) |*it| it else return false;
    if (group.had_members) return refuse(group, peer, has_begun);
    const place = founding.place_of(peer.id) orelse {
        if (!founding.outsider.eql(peer.id)) return refuse(group, peer, not_one);
        expel(c, now, group, peer, peer.id);
        return true;
    };
    if (!founding.differs.eql(.none)) {
        expel(c, now, group, peer, founding.differs);
        while (group.newcomers.items.len > 0)
            expel(c, now, group, group.newcomers.items[0].peer, founding.differs);
        return true;
    }
    if (founding.gone.has(place))
        return refuse(group, peer, "this peer is no longer in the group that its founders are in");
    if (!founding.asked.has(place))
        return refuse(group, peer, "it is made of founders, and this peer has named none");
    return false;
}

fn refuse(group: *const Group, peer: *Peer, why: []const u8) bool {
    peer.say(.{ .refused = .{ .name = .of(group.name), .why = .of(why) } });
    return true;
}

/// Founders that do not agree have called differently: a Mismatch, of which each hears who differs
/// from whom.
fn expel(c: *Coordinator, now: Instant, group: *Group, peer: *Peer, differs: PeerId) void {
    const founding = &group.founding.?;
    const first = founding.members[founding.asked.at(0)];
    var room: [limits.expelled_bytes_max]u8 = undefined;
    const why = std.fmt.bufPrint(&room, "peer {f} names other founders of group {s} than peer " ++
        "{f}, or in another order: all founders must name the same", .{
        group.named(differs),
        group.name,
        group.named(first),
    }) catch &room; // cut
    if (!peer.is_present(group.id)) Coordinator.welcome_to(group, peer);
    c.expel_as(now, group, peer, .{ .group = group.id, .refused = true, .why = .of(why) });
}

/// A peer is not a member of the parent any more: groups that wait for it begin without it.
pub fn lose(now: Instant, parent: *const Group, id: PeerId) void {
    for (parent.coordinator.groups.items) |group| {
        const founding = if (group.founding) |*it| it else continue;
        if (founding.parent != parent.id or group.had_members) continue;
        founding.gone.set(founding.place_of(id) orelse continue);
        group.advance(now);
    }
}
