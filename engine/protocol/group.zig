//! Group, as the coordinator keeps it: its live epochs, the newcomers, and the round that lets them
//! in. The functions here answer questions, and change only the group's own parts: the founders,
//! the newcomers and the order in which rounds take them, the roster of a round, failed dials, and
//! the reasons of removals. membership.zig handles the events of a group; operation.zig and
//! attempt.zig handle those inside an epoch.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const journal = @import("journal.zig");
const ranks_of = @import("peer.zig").ranks_of;
const Broken = @import("path.zig").Broken;
const Epoch = @import("epoch.zig").Epoch;
const Look = @import("path.zig").Look;
const Peer = @import("peer.zig").Peer;
const Ranks = @import("peer.zig").Ranks;
const Rounds = @import("peer.zig").Rounds;
const Allocator = std.mem.Allocator;
const Dialed = wire.Dialed;
const Instant = base.Instant;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// The wait of newcomers for other peers, and what the coordinator has said of it (debt.zig).
pub const Awaited = struct {
    /// Since when a newcomer waits; `never` while none does.
    since: base.Instant = base.never,
    /// When newcomers were last told whom they wait for.
    told_at: base.Instant = 0,
    is_logged: bool = false,
};

/// The last line of the log about a group that has too few peers to begin (debt.zig).
pub const Said = struct {
    /// The number of peers that the log named last; 0: enough are there.
    here: u32 = 0,
    since: base.Instant = 0,
    /// The log has warned that the peers have waited long.
    waits: bool = false,
};

pub const Group = struct {
    gpa: Allocator,
    id: u16,
    name: []u8,
    initial_world_size: u32,
    min_world_size: u32,
    prepare_ns: u64,
    /// At most two: the epoch that members leave, and the newest, which newcomers join.
    epochs: std.ArrayList(*Epoch) = .empty,
    /// The largest number that an epoch of the group has had.
    last_epoch: u64 = 0,
    /// The number of the last record of the journal about the group (log.zig).
    recorded: u64 = 0,
    newcomers: std.ArrayList(Newcomer) = .empty,
    phase: Phase = .idle,
    /// The number of the last round. Numbers are never reused, so a late answer cannot pass for an
    /// answer to a later round.
    round: u64 = 0,
    round_deadline: base.Instant = base.never,
    round_began: base.Instant = 0,
    /// The next round begins no earlier, except with `lost_member`: a member was lost since the
    /// last round began.
    next_round_at: base.Instant = 0,
    lost_member: bool = false,
    /// The number of rounds since the last one that made an epoch. The pause between rounds grows
    /// with this number.
    fruitless: u6 = 0,
    /// The thing that the round under way waits for until `round_deadline`.
    waits_for: WaitsFor = .lanes,
    roster: Roster = .{},
    patience: Patience = .{},
    /// The next round takes only newcomers that are `chosen`, so that newcomers who came later
    /// cannot hold those up.
    narrow: bool = false,
    /// A step of the round failed for want of memory, and the next tick repeats it.
    out_of_memory: bool = false,
    /// The coordinator has restarted, and not all members of the group are back or lost.
    recovering: bool = false,
    /// Members that have come back after a restart; they are answered when all members are back.
    returned: std.ArrayList(Returned) = .empty,
    /// Broken links between peers of the group, and when the coordinator next searches for paths
    /// around them.
    broken: Broken = .{},
    look: Look = .{},
    /// The round, and the state of its newcomers and of `broken`, at the last search for paths
    /// around broken links: an equal state is not searched again.
    found: Found = .{},
    removals: Removals = .{},
    /// Dials between peers of the group that failed.
    unreached: Unreached = .{},
    /// The wait of newcomers for other peers.
    awaited: Awaited = .{},
    /// The last line of the log about too few peers.
    attendance_said: Said = .{},
    /// The group has had an epoch.
    had_members: bool = false,
    /// The founders of a sub-group; null: any peer may join the group.
    founding: ?Founding = null,

    pub const Phase = enum { idle, prepare, ask, activate };
    pub const WaitsFor = enum {
        /// Lanes of all peers in the round: no newcomer could enter without the others.
        lanes,
        /// Lanes of the remaining peers: some newcomers could enter without them.
        rest,
        /// The `admit` of the other newcomers: all lanes are open, and some newcomers have called
        /// `admit`.
        users,
        /// The first `admit` of a newcomer: all lanes are open.
        any_user,
    };

    /// The shortest pause between two rounds.
    pub const interval_ns: u64 = 100 * std.time.ns_per_ms;

    const Returned = struct { peer: *Peer, rounds: Rounds };
    pub const Found = struct { round: u64 = 0, gone: u32 = 0, changes: u64 = 0 };

    pub fn create(gpa: Allocator, options: Options) Allocator.Error!*Group {
        const group = try gpa.create(Group);
        errdefer gpa.destroy(group);
        group.* = .{
            .gpa = gpa,
            .id = options.id,
            .name = try gpa.dupe(u8, options.name),
            .initial_world_size = options.initial_world_size,
            .min_world_size = options.min_world_size,
            .prepare_ns = options.prepare_ns,
            .round = options.round,
            .founding = options.founding,
        };
        return group;
    }

    pub const Options = struct {
        id: u16,
        name: []const u8,
        initial_world_size: u32,
        min_world_size: u32,
        prepare_ns: u64,
        /// The group's rounds are numbered after this: no round of an earlier group with this `id`
        /// had a larger number.
        round: u64,
        /// `create` moves the founders into the group, which frees them.
        founding: ?Founding = null,
    };

    pub fn destroy(group: *Group) void {
        for (group.epochs.items) |epoch| epoch.destroy();
        group.epochs.deinit(group.gpa);
        group.newcomers.deinit(group.gpa);
        group.roster.deinit(group.gpa);
        group.patience.deinit(group.gpa);
        group.returned.deinit(group.gpa);
        group.broken.deinit(group.gpa);
        group.unreached.deinit(group.gpa);
        if (group.founding) |*founding| founding.deinit(group.gpa);
        group.gpa.free(group.name);
        group.gpa.destroy(group);
    }

    pub fn current(group: *const Group) ?*Epoch {
        return group.epochs.getLastOrNull();
    }

    pub fn epoch_of(group: *const Group, number: u64) ?*Epoch {
        for (group.epochs.items) |epoch| if (epoch.number == number) return epoch;
        return null;
    }

    pub fn newcomer_of(group: *const Group, peer: *const Peer) ?*Newcomer {
        for (group.newcomers.items) |*newcomer| if (newcomer.peer == peer) return newcomer;
        return null;
    }

    pub fn is_in_round(group: *const Group, peer: *const Peer) bool {
        const newcomer = group.newcomer_of(peer) orelse return false;
        return newcomer.in_round;
    }

    pub fn contains(group: *const Group, peer: *const Peer) bool {
        if (group.newcomer_of(peer) != null) return true;
        for (group.epochs.items) |epoch| if (epoch.rank_of(peer) != null) return true;
        return false;
    }

    /// The journal's record of the group.
    pub fn record(group: *const Group) journal.GroupMade {
        return .{
            .id = group.id,
            .name = .of(group.name),
            .initial_world_size = group.initial_world_size,
            .last_epoch = group.last_epoch,
            .is_founded = group.founding != null,
        };
    }

    /// Applies a removal that was read from the journal or the log. Both may have it, so it may
    /// come twice.
    pub fn restore_removal(group: *Group, body: *const journal.Removal) error{BadRecord}!void {
        if (body.why.data.len > 0) group.removals.note(body.peer, body.why.data);
        var last: u64 = 0;
        var it = body.epochs.iterator();
        while (it.next()) |from| {
            last = @max(last, from.epoch);
            const epoch = group.epoch_of(from.epoch) orelse continue; // this epoch is over
            const rank = epoch.ranks.get(body.peer) orelse return error.BadRecord;
            if (from.attempt <= 1) return error.BadRecord;
            if (epoch.alive.has(rank)) epoch.detach(rank, from.attempt);
        }
        // A removal names all epochs of the peer that had not ended. So an earlier epoch in which
        // the peer is still alive had ended.
        var index = group.epochs.items.len;
        while (index > 0) {
            index -= 1;
            const epoch = group.epochs.items[index];
            const rank = epoch.ranks.get(body.peer) orelse continue;
            if (epoch.number >= last or !epoch.alive.has(rank)) continue;
            group.epochs.orderedRemove(index).destroy();
        }
    }

    /// When the next round may begin. After a loss it may begin at once, so that members whose
    /// operations go on without the lost one find a new epoch at their next safe point.
    pub fn round_due(group: *const Group) base.Instant {
        if (group.lost_member) return 0;
        return if (group.narrow) group.round_began +| interval_ns else group.next_round_at;
    }

    /// The number of newcomers that a round needs to make an epoch. A round that closes the gap of
    /// a loss needs none.
    pub fn least(group: *const Group) u32 {
        if (group.current()) |epoch| if (!epoch.alive.is_empty()) return 1;
        if (group.founding) |*founding| return founding.least(group.newcomers.items);
        return @max(group.initial_world_size, group.min_world_size);
    }

    /// Whether a member of the current epoch is lost, and another one is alive.
    pub fn has_gaps(group: *const Group) bool {
        const epoch = group.current() orelse return false;
        return !epoch.alive.is_empty() and epoch.alive.count() < epoch.members.len;
    }

    /// Whether a member or a newcomer is left that could enter the epoch of the round under way.
    pub fn has_candidates(group: *const Group) bool {
        if (group.current() != null) return true;
        for (group.newcomers.items) |*newcomer| if (newcomer.in_round) return true;
        return false;
    }

    /// Frees the epochs that each member has closed or been lost from. No member closes the newest
    /// epoch, so that one stays while it has members.
    pub fn drop_empty(group: *Group) void {
        var index = group.epochs.items.len;
        while (index > 0) {
            index -= 1;
            if (!group.epochs.items[index].inside().is_empty()) continue;
            group.epochs.orderedRemove(index).destroy();
        }
    }

    /// Whether this round, of whose end the peer has not heard, made the peer a member.
    pub fn was_let_in(group: *const Group, peer: *const Peer, round: u64) bool {
        for (group.epochs.items) |epoch| {
            if (epoch.began.round == round and epoch.rank_of(peer) != null) return true;
        }
        return false;
    }
};

// ---- founders
//
// The founders of a sub-group are the peers that have named each other to make it.

/// The founders of a sub-group. A sub-group that was read from the journal has an empty list,
/// because it has begun.
pub const Founding = struct {
    /// The id of the parent group, and its epoch in which the founders are members.
    parent: u16 = limits.groups_max,
    epoch: u64 = 0,
    /// The founders in the rank order of the sub-group.
    members: []PeerId = &.{},
    places: Ranks = .empty,
    /// Founders that have asked for the sub-group with this list, by their places in it.
    asked: Mask = .empty,
    /// Founders that the parent has lost since, by their places: the others do not wait for them.
    gone: Mask = .empty,
    /// A founder that has named another list, which ends the sub-group; `.none`: there is none.
    differs: PeerId = .none,
    /// The last peer that named another list and is no founder: this peer alone is turned away.
    outsider: PeerId = .none,

    pub fn deinit(founding: *Founding, gpa: Allocator) void {
        gpa.free(founding.members);
        founding.places.deinit(gpa);
    }

    pub fn place_of(founding: *const Founding, id: PeerId) ?u16 {
        return founding.places.get(id);
    }

    /// Founders that the others wait for: neither lost nor newcomers of the sub-group yet.
    pub fn awaited(founding: *const Founding, newcomers: []const Newcomer) Mask {
        var here: Mask = founding.gone;
        for (newcomers) |*newcomer| {
            if (founding.place_of(newcomer.peer.id)) |place| here.set(place);
        }
        return Mask.full(founding.members.len).without(&here);
    }

    /// How many newcomers the first epoch needs: those that are there, and the awaited founders.
    pub fn least(founding: *const Founding, newcomers: []const Newcomer) u32 {
        const rest = founding.awaited(newcomers).count();
        return @max(1, @as(u32, @intCast(newcomers.len)) + rest);
    }

    pub fn less_than(founding: *const Founding, a: *Peer, b: *Peer) bool {
        const none = limits.peers_max;
        return (founding.place_of(a.id) orelse none) < (founding.place_of(b.id) orelse none);
    }

    pub fn says(founding: *const Founding, parent: u16, told: *const control.Founders) bool {
        if (founding.parent != parent or founding.epoch != told.epoch) return false;
        if (founding.members.len != told.members.count) return false;
        var it = told.members.iterator();
        for (founding.members) |id| if (!id.eql(it.next().?)) return false;
        return true;
    }
};

/// Copies the founders that a message names, so that they outlive it. `free_founders` frees the
/// copy.
pub fn copy_founders(
    gpa: Allocator,
    told: *const control.Founders,
) Allocator.Error!control.Founders {
    var founders = told.*;
    founders.parent.data = try gpa.dupe(u8, told.parent.data);
    errdefer gpa.free(founders.parent.data);
    founders.members.encoded = try gpa.dupe(u8, told.members.encoded);
    return founders;
}

pub fn free_founders(gpa: Allocator, founders: *const control.Founders) void {
    gpa.free(founders.parent.data);
    gpa.free(founders.members.encoded);
}

// ---- newcomers
//
// A peer that waits to become a member of a group, as the coordinator keeps it.

pub const Newcomer = struct {
    peer: *Peer,
    in_round: bool = false,
    /// The newcomer has all lanes of the round.
    prepared: bool = false,
    /// The newcomer's user waits in `admit`, as the newcomer has said in this round.
    entering: bool = false,
    /// `wants`: the user waits in `admit`, as the newcomer said last. `was_ready`: the newcomer has
    /// had all lanes of some round. Both are for debt.zig.
    wants: bool = false,
    was_ready: bool = false,
    /// A round has waited in vain for the newcomer's user. Rounds leave the newcomer out until its
    /// user calls `admit`, or until no round can begin without dawdlers.
    dawdles: bool = false,
    /// The newcomer could have entered when the last round ended, so a `narrow` round takes it.
    chosen: bool = false,
    /// The number of peers present, as the newcomer was last told (debt.zig); 0: it was not told.
    here_told: u32 = 0,
};

// ---- the roster of a round
//
// A roster has the peers of a round, in the rank order of the epoch that the round is to make, and
// the lanes that each peer says it lacks. From that `fit` finds the newcomers that can enter when
// others do not open their lanes. A roster knows no time; membership.zig runs the round.

pub const Roster = struct {
    /// Members first, then newcomers.
    places: std.ArrayList(Place) = .empty,
    members: usize = 0,
    ranks: Ranks = .empty,
    /// How many members, and how many of all peers, have not answered the round.
    silent_members: usize = 0,
    silent: usize = 0,
    /// Each member keeps links to all others in the present epoch, so the round asks for no lanes
    /// between members.
    members_meet: bool = true,
    /// Places of newcomers that have left since the round began.
    gone: Mask = .empty,

    pub const Place = struct {
        id: PeerId,
        /// The peer has answered the round.
        spoke: bool = false,
        /// Places of peers to which this peer has no lanes yet.
        missing: Mask = .empty,

        fn is_complete(place: *const Place) bool {
            return place.spoke and place.missing.is_empty();
        }
    };

    pub fn deinit(roster: *Roster, gpa: Allocator) void {
        roster.places.deinit(gpa);
        roster.ranks.deinit(gpa);
    }

    pub fn begin(roster: *Roster, gpa: Allocator, peers: []const *Peer, options: Options) !void {
        try roster.places.ensureTotalCapacity(gpa, peers.len);
        const ranks = try ranks_of(gpa, peers);
        roster.ranks.deinit(gpa);
        roster.ranks = ranks;
        roster.places.clearRetainingCapacity();
        for (peers) |peer| roster.places.appendAssumeCapacity(.{ .id = peer.id });
        roster.members = options.members;
        roster.members_meet = options.members_meet;
        roster.silent_members = options.members;
        roster.silent = peers.len;
        roster.gone = .empty;
    }

    pub const Options = struct { members: usize, members_meet: bool };

    fn find(roster: *const Roster, id: PeerId) ?u16 {
        return roster.ranks.get(id);
    }

    /// Notes the lanes that a peer lacks of those that the round asked it for.
    pub fn hear(
        roster: *Roster,
        id: PeerId,
        missing: *const wire.codec.List(control.Missing),
    ) void {
        const index = roster.find(id) orelse return;
        if (roster.gone.has(index)) return; // the peer is back, and not in this round
        const place = &roster.places.items[index];
        if (!place.spoke) {
            roster.silent -= 1;
            if (index < roster.members) roster.silent_members -= 1;
        }
        place.spoke = true;
        place.missing = .empty;
        var it = missing.iterator();
        while (it.next()) |other| {
            const lacked = roster.find(other.peer) orelse continue;
            // Lanes that the round did not ask for do not decide which newcomers enter (path.zig).
            if (roster.needs_link(index, lacked)) place.missing.set(lacked);
        }
    }

    /// Whether the peer `id` has said that it has no lanes to `other`.
    pub fn lacks(roster: *const Roster, id: PeerId, other: PeerId) bool {
        const index = roster.find(id) orelse return false;
        return roster.places.items[index].missing.has(roster.find(other) orelse return false);
    }

    pub fn leave(roster: *Roster, id: PeerId) void {
        const index = roster.find(id) orelse return;
        if (roster.gone.has(index)) return;
        if (!roster.places.items[index].spoke) roster.silent -= 1;
        roster.gone.set(index);
    }

    /// Whether the round asks these two places for lanes to each other.
    pub fn needs_link(roster: *const Roster, a: usize, b: usize) bool {
        if (roster.members_meet and @max(a, b) < roster.members) return false;
        const count = roster.places.items.len;
        return base.reaches(a, b, count, count);
    }

    /// The places to which the round asks the peer at `index` for lanes.
    pub fn linked(
        roster: *const Roster,
        index: usize,
        buffer: *[limits.full_mesh_max]usize,
    ) []const usize {
        const count = roster.places.items.len;
        const reach: usize = limits.ring_reach;
        var found: usize = 0;
        for (0..if (count <= limits.full_mesh_max) count else 2 * reach + 1) |step| {
            const other = if (count <= limits.full_mesh_max)
                step
            else
                (index + count - reach + step) % count;
            if (!roster.needs_link(index, other)) continue;
            buffer[found] = other;
            found += 1;
        }
        return buffer[0..found];
    }

    pub fn newcomers(roster: *const Roster) usize {
        return roster.places.items.len - roster.members - roster.gone.count();
    }

    pub fn has_spoken(roster: *const Roster, id: PeerId) bool {
        return roster.places.items[roster.find(id) orelse return true].spoke;
    }

    /// Whether all peers have all lanes, so that the epoch can begin. In a large world it is false
    /// once a newcomer has left, because that newcomer's neighbours need lanes to others.
    pub fn is_whole(roster: *const Roster) bool {
        const moved = !roster.gone.is_empty() and roster.places.items.len > limits.full_mesh_max;
        for (roster.places.items, 0..) |*place, index| {
            if (!roster.gone.has(index) and !place.is_complete()) return false;
        }
        return !moved;
    }

    /// Whether a peer has not answered, or lacks lanes to a peer that has not left.
    pub fn waits(roster: *const Roster) bool {
        if (roster.silent > 0) return true;
        for (roster.places.items, 0..) |*place, index| {
            if (roster.gone.has(index)) continue;
            if (!place.missing.without(&roster.gone).is_empty()) return true;
        }
        return false;
    }

    /// Newcomers that could enter together, and how many that is.
    pub const Fit = struct {
        places: Mask = .empty,
        count: u32 = 0,
    };

    /// Chooses newcomers whose lanes to all members and to each other are open. Newcomers are
    /// chosen in the order of `arrivals`, so that no newcomer can keep an earlier one out by
    /// claiming to lack lanes to it.
    pub fn fit(roster: *const Roster, arrivals: []const PeerId) Fit {
        const members: Mask = .full(roster.members);
        var lacked: Mask = .empty;
        for (roster.places.items[0..roster.members]) |*place| lacked.merge(&place.missing);
        var found: Fit = .{};
        for (arrivals) |id| {
            const index = roster.find(id) orelse continue;
            const place = &roster.places.items[index];
            if (!place.spoke or roster.gone.has(index) or lacked.has(index)) continue;
            if (place.missing.meets(&members) or place.missing.meets(&found.places)) continue;
            found.places.set(index);
            found.count += 1;
            lacked.merge(&place.missing);
        }
        return found;
    }

    pub fn has(roster: *const Roster, found: *const Fit, id: PeerId) bool {
        return found.places.has(roster.find(id) orelse return false);
    }

    /// The ids of the peers at all places from `first` on.
    pub fn ids_from(
        roster: *const Roster,
        first: usize,
        buffer: *[limits.peers_max]PeerId,
    ) []const PeerId {
        const places = roster.places.items[first..];
        for (places, buffer[0..places.len]) |*place, *id| id.* = place.id;
        return buffer[0..places.len];
    }
};

fn roster_of(comptime places: usize, members: usize) !Roster {
    var people: [places]Peer = undefined;
    var peers: [places]*Peer = undefined;
    for (&people, &peers, 1..) |*peer, *pointer, number| {
        peer.* = .{
            .id = .from_int(number),
            .connection = null,
            .instance = 0,
            .last_heard = 0,
        };
        pointer.* = peer;
    }
    var roster: Roster = .{};
    try roster.begin(std.testing.allocator, &peers, .{
        .members = members,
        .members_meet = places <= limits.full_mesh_max,
    });
    return roster;
}

fn say_members(roster: *Roster, number: u64, missing: []const PeerId) void {
    var entries: [8]control.Missing = undefined;
    for (missing, entries[0..missing.len]) |peer, *entry| {
        entry.* = .{ .peer = peer, .dialed = .pending };
    }
    roster.hear(.from_int(number), &.of(entries[0..missing.len]));
}

test "a newcomer that opens no lanes is left out, and those who lack only it are not" {
    const gpa = std.testing.allocator;
    const expect = std.testing.expect;
    var roster = try roster_of(5, 2); // 1 and 2 are members; 3, 4 and 5 new
    defer roster.deinit(gpa);
    const arrivals = [_]PeerId{ .from_int(5), .from_int(4), .from_int(3) };
    const silent: PeerId = .from_int(5);
    for (1..5) |number| say_members(&roster, number, &.{silent});
    try expect(roster.waits() and !roster.is_whole());
    const found = roster.fit(&arrivals);
    try std.testing.expectEqual(2, found.count);
    try expect(!roster.has(&found, silent));
    // Once the silent newcomer has left, the round waits for no lanes, but peers that lacked it are
    // asked anew.
    roster.leave(silent);
    try expect(!roster.waits() and !roster.is_whole());
    say_members(&roster, 5, &.{}); // from a new process with this id
    roster.leave(silent);
    for (1..5) |number| say_members(&roster, number, &.{});
    try expect(roster.is_whole());
    try std.testing.expectEqual(2, roster.newcomers());
}

test "of two newcomers that lack lanes to each other, the one that came first goes on" {
    const gpa = std.testing.allocator;
    var roster = try roster_of(3, 1);
    defer roster.deinit(gpa);
    say_members(&roster, 1, &.{});
    for ([_][2]u64{ .{ 2, 3 }, .{ 3, 2 } }) |order| {
        // Either of the two may claim to lack lanes.
        for ([_]u64{ 2, 3 }) |claims| {
            for ([_]u64{ 2, 3 }) |number| {
                const other: PeerId = .from_int(5 - number);
                say_members(&roster, number, if (number == claims) &.{other} else &.{});
            }
            const arrivals = [_]PeerId{ .from_int(order[0]), .from_int(order[1]) };
            const found = roster.fit(&arrivals);
            try std.testing.expectEqual(1, found.count);
            try std.testing.expect(roster.has(&found, arrivals[0]));
        }
    }
}

test "who lacks a member, or is lacked by one, is not let in; members do not wait for each other" {
    const gpa = std.testing.allocator;
    var roster = try roster_of(4, 2);
    defer roster.deinit(gpa);
    say_members(&roster, 1, &.{ .from_int(2), .from_int(4) });
    say_members(&roster, 2, &.{});
    say_members(&roster, 3, &.{.from_int(1)});
    say_members(&roster, 4, &.{});
    const arrivals = [_]PeerId{ .from_int(3), .from_int(4) };
    try std.testing.expectEqual(0, roster.fit(&arrivals).count);
    say_members(&roster, 1, &.{.from_int(2)});
    say_members(&roster, 3, &.{});
    try std.testing.expect(roster.is_whole());
    try std.testing.expectEqual(2, roster.fit(&arrivals).count);
}

test "in a large world each place is asked for its neighbours, and one that goes moves them" {
    const gpa = std.testing.allocator;
    const expect = std.testing.expect;
    var roster = try roster_of(40, 36);
    defer roster.deinit(gpa);
    try expect(roster.needs_link(0, 39) and roster.needs_link(0, limits.ring_reach));
    try expect(!roster.needs_link(0, limits.ring_reach + 1));
    var buffer: [limits.full_mesh_max]usize = undefined;
    for ([_]usize{ 0, 20, 39 }) |index| {
        const linked = roster.linked(index, &buffer);
        try std.testing.expectEqual(2 * limits.ring_reach, linked.len);
        for (linked) |other| try expect(roster.needs_link(index, other));
    }
    for (1..41) |number| say_members(&roster, number, &.{});
    try expect(roster.is_whole());
    roster.leave(.from_int(38));
    try expect(!roster.waits() and !roster.is_whole());
}

// ---- newcomers of the next round
//
// The newcomers that a group's next round takes, and the members of the epoch that the round would
// make.

/// The most newcomers of a round if there are members, which must open lanes to all of them.
const newcomers_per_round = 32;

const Which = enum { chosen, prompt, all, waiting };

/// Marks the newcomers that the next round takes. False: no round can begin.
pub fn take_newcomers(group: *Group, now: base.Instant) bool {
    const members = if (group.current()) |epoch| epoch.alive.count() else 0;
    const gaps = group.has_gaps();
    const needed = group.least();
    if (group.narrow) {
        const chosen = mark(group, now, .chosen, base.limits.peers_max);
        if (chosen >= needed or gaps) return true;
        forget_chosen(group);
    }
    // The first round may be of any size, because there are no members that it could hold up.
    const most: u32 = if (members == 0) base.limits.peers_max else @min(
        newcomers_per_round,
        base.limits.peers_max - members,
    );
    if (mark(group, now, .prompt, most) >= needed or gaps) return true;
    // Newcomers that dawdle are taken only if no round can begin without them.
    if (mark(group, now, .all, most) >= needed) return true;
    // If no first epoch can begin without newcomers that have failed, these need not wait
    // (Patience).
    if (members == 0 and mark(group, now, .waiting, most) >= needed) return true;
    take_nobody(group);
    return false;
}

pub fn take_nobody(group: *Group) void {
    for (group.newcomers.items) |*newcomer| newcomer.in_round = false;
}

fn mark(group: *Group, now: base.Instant, which: Which, most: u32) u32 {
    var buffer: [base.limits.peers_max]NewcomerTurn = undefined;
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
    if (count > most) turn_order(candidates);
    const taken = @min(count, most);
    for (candidates[0..taken]) |*candidate|
        group.newcomers.items[candidate.index].in_round = true;
    return taken;
}

/// Whether some newcomers that could be in the round under way are not, because it has no room.
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

/// Lets the next round begin soon, and take all newcomers instead of the chosen ones.
pub fn open_to_all(group: *Group) void {
    group.fruitless = 0;
    group.next_round_at = group.round_began +| Group.interval_ns;
    forget_chosen(group);
}

fn forget_chosen(group: *Group) void {
    group.narrow = false;
    for (group.newcomers.items) |*newcomer| newcomer.chosen = false;
}

/// The members of the next epoch in rank order: present members in their order, then the newcomers
/// of the round by id, or founders in the order of their list.
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

// ---- turns of newcomers
//
// The order in which a round takes newcomers if it has no room for all. Newcomers that have not
// failed come before those that have. Within both kinds networks take turns, so that a crowd from
// one network, which never opens a lane, cannot keep newcomers of other networks out. Within a
// network newcomers are taken in the order of arrival.

pub const NewcomerTurn = struct {
    /// The newcomer's index in `Group.newcomers`, which is in the order of arrival.
    index: u32,
    source: base.Source,
    has_failed: bool,
    /// The number of earlier newcomers of the same network and the same `has_failed`.
    turn: u32 = 0,

    fn less_than(_: void, a: NewcomerTurn, b: NewcomerTurn) bool {
        if (a.has_failed != b.has_failed) return b.has_failed;
        if (a.turn != b.turn) return a.turn < b.turn;
        return a.index < b.index;
    }
};

/// Sorts newcomers, given in the order of arrival, into the order in which a round takes them.
pub fn turn_order(candidates: []NewcomerTurn) void {
    for (candidates, 0..) |*candidate, count| {
        for (candidates[0..count]) |*earlier| {
            if (earlier.has_failed != candidate.has_failed) continue;
            const together = base.places.same_network(earlier.source, candidate.source);
            candidate.turn += @intFromBool(together);
        }
    }
    std.mem.sort(NewcomerTurn, candidates, {}, NewcomerTurn.less_than);
}

test "networks take turns, and those who have failed come last" {
    const crowd: base.Source = @splat(1);
    const other: base.Source = @splat(2);
    var candidates = [_]NewcomerTurn{
        .{ .index = 0, .source = crowd, .has_failed = true },
        .{ .index = 1, .source = crowd, .has_failed = false },
        .{ .index = 2, .source = crowd, .has_failed = false },
        .{ .index = 3, .source = other, .has_failed = true },
        .{ .index = 4, .source = crowd, .has_failed = false },
        .{ .index = 5, .source = other, .has_failed = false },
    };
    turn_order(&candidates);
    for ([_]u32{ 1, 5, 2, 4, 0, 3 }, candidates) |index, candidate| {
        try std.testing.expectEqual(index, candidate.index);
    }
    // A newcomer that has failed does not delay the turns of others from its network that have not.
    var few = [_]NewcomerTurn{
        .{ .index = 0, .source = crowd, .has_failed = true },
        .{ .index = 1, .source = crowd, .has_failed = false },
        .{ .index = 2, .source = other, .has_failed = false },
    };
    turn_order(&few);
    for ([_]u32{ 1, 2, 0 }, few) |index, candidate| {
        try std.testing.expectEqual(index, candidate.index);
    }
}

// ---- newcomers that failed
//
// Peers that have failed to enter a group, and until when each waits before a round takes it again:
// 1, 2, 4 ... 60 s. Failures count by id, so that a peer that leaves and comes back does not begin
// at 1 s again.

pub const Patience = struct {
    /// In the order of their last failures, the latest last.
    failed: std.ArrayList(Failed) = .empty,

    const Failed = struct { id: PeerId, until: Instant, count: u6 };

    /// The most peers in `failed`: beyond, the peer whose last failure is oldest is dropped.
    const failed_max = 1024;
    const wait_ns_min: u64 = std.time.ns_per_s;
    const wait_ns_max: u64 = 60 * std.time.ns_per_s;

    pub fn deinit(patience: *Patience, gpa: Allocator) void {
        patience.failed.deinit(gpa);
    }

    fn find(patience: *const Patience, id: PeerId) ?usize {
        for (patience.failed.items, 0..) |*item, index| if (item.id.eql(id)) return index;
        return null;
    }

    /// Notes that a peer failed to enter: from now on it waits, twice as long as the last time.
    /// Without memory to note that, the peer does not wait, and the next round may take it.
    pub fn lose(patience: *Patience, gpa: Allocator, id: PeerId, now: Instant) void {
        var failed: Failed = .{ .id = id, .until = 0, .count = 0 };
        if (patience.find(id)) |index| failed = patience.failed.orderedRemove(index);
        failed.until = now +| @min(wait_ns_min << @min(failed.count, 6), wait_ns_max);
        failed.count +|= 1;
        while (patience.failed.items.len > 0) {
            if (patience.failed.items[0].until +| wait_ns_max > now) break;
            _ = patience.failed.orderedRemove(0); // the wait ended more than a minute ago
        }
        if (patience.failed.items.len >= failed_max) _ = patience.failed.orderedRemove(0);
        patience.failed.append(gpa, failed) catch return;
    }

    /// Forgets the failures of a peer that has entered.
    pub fn forget(patience: *Patience, id: PeerId) void {
        if (patience.find(id)) |index| _ = patience.failed.orderedRemove(index);
    }

    /// Until when a peer waits before a round takes it; 0: it has not failed.
    pub fn until(patience: *const Patience, id: PeerId) Instant {
        return if (patience.find(id)) |index| patience.failed.items[index].until else 0;
    }
};

test "who fails waits twice as long each time, up to a minute, until it gets in" {
    const gpa = std.testing.allocator;
    const expectEqual = std.testing.expectEqual;
    const second = std.time.ns_per_s;
    var patience: Patience = .{};
    defer patience.deinit(gpa);
    const id: PeerId = .from_int(7);
    for ([_]u64{ 1, 2, 4, 8, 16, 32, 60, 60 }) |seconds| {
        patience.lose(gpa, id, 100);
        try expectEqual(100 + seconds * second, patience.until(id));
    }
    try expectEqual(0, patience.until(.from_int(8)));
    patience.forget(id);
    try expectEqual(0, patience.until(id));
}

test "a peer that has waited is remembered for a minute, so that it waits longer the next time" {
    const gpa = std.testing.allocator;
    const second = std.time.ns_per_s;
    var patience: Patience = .{};
    defer patience.deinit(gpa);
    const id: PeerId = .from_int(7);
    patience.lose(gpa, id, 0);
    for ([_]u64{ 60, 180 }, [_]u64{ 2, 1 }) |after, waits| {
        patience.lose(gpa, .from_int(8), after * second);
        patience.lose(gpa, id, after * second);
        try std.testing.expectEqual((after + waits) * second, patience.until(id));
    }
}

test "of very many who have failed, those that failed last are remembered" {
    const gpa = std.testing.allocator;
    var patience: Patience = .{};
    defer patience.deinit(gpa);
    patience.lose(gpa, .from_int(1), 0);
    for (1..Patience.failed_max) |number| patience.lose(gpa, .from_int(1 + number), 0);
    patience.lose(gpa, .from_int(1), 0); // it has failed again, after the others
    patience.lose(gpa, .from_int(1 + Patience.failed_max), 0);
    try std.testing.expectEqual(Patience.failed_max, patience.failed.items.len);
    try std.testing.expect(patience.until(.from_int(1)) > 0);
    try std.testing.expectEqual(0, patience.until(.from_int(2)));
}

// ---- peers that could not be dialed
//
// Failed dials between peers of a group, by the word of the peers that dialed.

/// The shortest time between two reports of one pair's failed dials to the log and the dialed peer.
const tell_ns = 30 * std.time.ns_per_s;

pub const Unreached = struct {
    /// The last failed dial of each pair of peers that should have lanes to each other.
    claims: std.ArrayList(Claim) = .empty,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// How the dial failed; `pending` once `from` reaches `to`, or need not any more.
        dialed: Dialed,
        source: base.Source,
        /// When the log and the dialed peer were last told; null: never.
        told_at: ?Instant,

        pub fn is_due(claim: *const Claim, now: Instant) bool {
            return now -| (claim.told_at orelse return true) >= tell_ns;
        }
    };

    pub fn deinit(unreached: *Unreached, gpa: Allocator) void {
        unreached.claims.deinit(gpa);
    }

    pub fn find(unreached: *const Unreached, from: PeerId, to: PeerId) ?*Claim {
        for (unreached.claims.items) |*claim| {
            if (claim.from.eql(from) and claim.to.eql(to)) return claim;
        }
        return null;
    }

    /// The number of failed dials by this peer that were told in the last `tell_ns`.
    pub fn told_by(unreached: *const Unreached, from: PeerId, now: Instant) usize {
        var count: usize = 0;
        for (unreached.claims.items) |*claim| {
            count += @intFromBool(claim.from.eql(from) and !claim.is_due(now));
        }
        return count;
    }

    /// Drops all failed dials by, or of, a peer that is gone.
    pub fn forget(unreached: *Unreached, id: PeerId) void {
        var index = unreached.claims.items.len;
        while (index > 0) {
            index -= 1;
            const claim = &unreached.claims.items[index];
            if (claim.from.eql(id) or claim.to.eql(id)) _ = unreached.claims.swapRemove(index);
        }
    }
};

// ---- reasons of removals
//
// Why peers were removed from a group, for peers that come back and do not know it. A connected
// peer is told at once; a peer that was away may ask much later, perhaps after the coordinator has
// restarted. So the journal has the reasons, too (log.zig).

pub const Removals = struct {
    /// The last removals, oldest first. The array has a fixed size, so that a group's memory does
    /// not grow.
    entries: [entries_max]Entry = undefined,
    count: usize = 0,

    pub const Entry = struct {
        id: PeerId,
        length: usize,
        text: [why_bytes_max]u8,

        pub fn why(entry: *const Entry) []const u8 {
            return entry.text[0..entry.length];
        }
    };
    const entries_max = 32;
    const why_bytes_max = base.limits.removal_why_bytes_max;

    pub fn note(removals: *Removals, id: PeerId, why: []const u8) void {
        for (removals.known(), 0..) |*entry, index| if (entry.id.eql(id)) {
            removals.forget(index);
            break;
        };
        if (removals.count == entries_max) removals.forget(0);
        const entry = &removals.entries[removals.count];
        removals.count += 1;
        entry.id = id;
        entry.length = @min(why.len, why_bytes_max);
        @memcpy(entry.text[0..entry.length], why[0..entry.length]);
    }

    fn forget(removals: *Removals, index: usize) void {
        const rest = removals.entries[index + 1 .. removals.count];
        @memmove(removals.entries[index..][0..rest.len], rest);
        removals.count -= 1;
    }

    pub fn known(removals: *const Removals) []const Entry {
        return removals.entries[0..removals.count];
    }

    pub fn why_of(removals: *const Removals, id: PeerId) ?[]const u8 {
        for (removals.known()) |*entry| {
            if (entry.id.eql(id)) return entry.why();
        }
        return null;
    }
};

test "the last reason of each of the last peers that were removed is known, and no others" {
    var removals: Removals = .{};
    const most = Removals.entries_max;
    for (0..most) |index| removals.note(.from_int(index + 1), "it was silent");
    removals.note(.from_int(1), "it left" ++ " and left" ** 40);
    try std.testing.expectEqual(most, removals.count);
    removals.note(.from_int(most + 1), "it broke the protocol");
    try std.testing.expectEqual(most, removals.count);
    try std.testing.expectEqual(null, removals.why_of(.from_int(2)));
    try std.testing.expectEqualStrings("it was silent", removals.why_of(.from_int(3)).?);
    try std.testing.expect(std.mem.startsWith(u8, removals.why_of(.from_int(1)).?, "it left and"));
    try std.testing.expectEqualStrings(
        "it broke the protocol",
        removals.why_of(.from_int(most + 1)).?,
    );
}

test "a peer that is removed again has one place and the last reason" {
    var removals: Removals = .{};
    removals.note(.from_int(1), "it was silent");
    removals.note(.from_int(2), "it was silent");
    removals.note(.from_int(1), "it left");
    try std.testing.expectEqual(2, removals.count);
    try std.testing.expectEqualStrings("it left", removals.why_of(.from_int(1)).?);
}
