//! founders: groups that are made of members of one epoch of another group, their parent
//! (sub-groups). Each founder names the same peers in the same order, which is that of the ranks.
//! The group begins when all founders have asked for it that have not been lost to the parent, or
//! left it, since its first founder asked. Nobody else ever enters. The founders are not in the
//! journal: after a restart those who wait ask anew, and a group that has begun is only known to be
//! closed.
//!
//! The round that lets them in: rounds.zig; a founder that is lost to the parent: departures.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const groups = @import("groups.zig");
const losses = @import("losses.zig");
const post = @import("post.zig");
const Founding = @import("founding.zig").Founding;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// Those that a peer names in its join; null: nobody. `objection` has found nothing against it.
pub fn of(
    run: *const Run,
    peer: *const Peer,
    told: *const control.Founders,
) Allocator.Error!?Founding {
    if (told.members.count == 0) return null;
    var founding: Founding = .{
        .parent = run.group_named(told.parent.data).?.id,
        .epoch = told.epoch,
        .members = try run.gpa.alloc(PeerId, told.members.count),
    };
    errdefer founding.deinit(run.gpa);
    try founding.places.ensureTotalCapacity(run.gpa, told.members.count);
    var it = told.members.iterator();
    for (founding.members, 0..) |*id, place| {
        id.* = it.next().?;
        founding.places.putAssumeCapacity(id.*, @intCast(place));
    }
    founding.asked.set(founding.place_of(peer.id).?);
    const epoch = run.group_at(founding.parent).?.epoch_of(told.epoch).?;
    for (founding.members, 0..) |id, place| {
        if (!epoch.alive.has(epoch.ranks.get(id).?)) founding.gone.set(place);
    }
    return founding;
}

/// Why a peer may not ask for this group as one of its founders; null if it may, and if it names
/// none. Whether others may have this group is seen when they have told everything: one of them may
/// be a member that is back.
pub noinline fn objection(
    run: *Run,
    name: []const u8,
    peer: *const Peer,
    told: *const control.Founders,
) ?[]const u8 {
    if (told.members.count == 0) return null;
    groups.end_groups(run); // its own last attempt may be over
    const parent = run.group_named(told.parent.data);
    const group = run.group_named(name) orelse return problem(parent, peer, told);
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
const has_gone = "this peer is no longer in the group that its founders are in";

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
pub fn turns_away(run: *Run, now: Instant, group: *Group, peer: *Peer) bool {
    const founding = if (group.founding) |*it| it else return false;
    if (group.had_members) return refuse(run, group, peer, has_begun);
    const place = founding.place_of(peer.id) orelse {
        if (!founding.outsider.eql(peer.id)) return refuse(run, group, peer, not_one);
        expel(run, now, group, peer, peer.id);
        return true;
    };
    if (!founding.differs.eql(.none)) {
        expel(run, now, group, peer, founding.differs);
        while (group.newcomers.items.len > 0)
            expel(run, now, group, group.newcomers.items[0].peer, founding.differs);
        return true;
    }
    if (founding.gone.has(place)) return refuse(run, group, peer, has_gone);
    if (!founding.asked.has(place))
        return refuse(run, group, peer, "it is made of founders, and this peer has named none");
    return false;
}

fn refuse(run: *Run, group: *const Group, peer: *Peer, why: []const u8) bool {
    post.say(run, peer, .{ .refused = .{ .name = .of(group.name), .why = .of(why) } });
    return true;
}

/// Founders that do not agree have called differently: a Mismatch, of which each hears who differs
/// from whom.
fn expel(run: *Run, now: Instant, group: *Group, peer: *Peer, differs: PeerId) void {
    const founding = &group.founding.?;
    const first = founding.members[founding.asked.at(0)];
    var room: [limits.expelled_bytes_max]u8 = undefined;
    const why = std.fmt.bufPrint(&room, "peer {f} names other founders of group {s} than peer " ++
        "{f}, or in another order: all founders must name the same", .{
        run.named(group, differs),
        group.name,
        run.named(group, first),
    }) catch &room; // cut
    if (!peer.is_present(group.id)) groups.welcome_to(run, group, peer);
    losses.expel_as(run, now, group, peer, .{
        .group = group.id,
        .refused = true,
        .why = .of(why),
    });
}
