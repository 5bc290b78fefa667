//! Roster: who takes part in the preparation of a round, in the rank order of the epoch that the
//! round is to make, and what each has said of its lanes to the others. From that follows who can
//! go on when somebody does not open its lanes. It knows no time; the round is in rounds.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Peer = @import("peer.zig").Peer;
const Ranks = @import("peer.zig").Ranks;
const ranks_of = @import("peer.zig").ranks_of;
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

pub const Roster = struct {
    /// Members first, then newcomers.
    places: std.ArrayList(Place) = .empty,
    members: usize = 0,
    ranks: Ranks = .empty,
    /// How many have not answered, of the members and of all.
    silent_members: usize = 0,
    silent: usize = 0,
    /// All links between members are kept in the epoch that they are in.
    members_meet: bool = true,
    /// Newcomers that have gone since.
    gone: Mask = .empty,

    pub const Place = struct {
        id: PeerId,
        /// It has answered.
        spoke: bool = false,
        /// Places of those to which it has no lanes yet.
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

    /// A peer says which lanes it lacks, of those it was asked for.
    pub fn hear(
        roster: *Roster,
        id: PeerId,
        missing: *const wire.codec.List(control.Missing),
    ) void {
        const index = roster.find(id) orelse return;
        if (roster.gone.has(index)) return; // it has come back, and is not in this round
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
            // Links between members are another matter than who is let in (broken.zig).
            if (roster.needs_link(index, lacked)) place.missing.set(lacked);
        }
    }

    /// Whether it has said that it has no lanes to the other one.
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

    /// All places to which the round asks this one for lanes.
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

    /// Everybody has all lanes, so that the epoch can begin. Where not all keep links to all, the
    /// neighbours of whoever has gone would have others.
    pub fn is_whole(roster: *const Roster) bool {
        const moved = !roster.gone.is_empty() and roster.places.items.len > limits.full_mesh_max;
        for (roster.places.items, 0..) |*place, index| {
            if (!roster.gone.has(index) and !place.is_complete()) return false;
        }
        return !moved;
    }

    /// Somebody has not answered, or lacks lanes to one that is still there.
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

    /// Those whose lanes to all members are open, and to each other, chosen in the order in which
    /// they came: nobody can keep out one who was there before by saying that it lacks lanes to it.
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

    /// Ids of all from this place on, to be told.
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

fn say(roster: *Roster, number: u64, missing: []const PeerId) void {
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
    for (1..5) |number| say(&roster, number, &.{silent});
    try expect(roster.waits() and !roster.is_whole());
    const found = roster.fit(&arrivals);
    try std.testing.expectEqual(2, found.count);
    try expect(!roster.has(&found, silent));
    // Once it is gone nobody waits; but those who lacked it are asked anew.
    roster.leave(silent);
    try expect(!roster.waits() and !roster.is_whole());
    say(&roster, 5, &.{}); // from the one that has its id now
    roster.leave(silent);
    for (1..5) |number| say(&roster, number, &.{});
    try expect(roster.is_whole());
    try std.testing.expectEqual(2, roster.newcomers());
}

test "of two newcomers that lack lanes to each other, the one that came first goes on" {
    const gpa = std.testing.allocator;
    var roster = try roster_of(3, 1);
    defer roster.deinit(gpa);
    say(&roster, 1, &.{});
    for ([_][2]u64{ .{ 2, 3 }, .{ 3, 2 } }) |order| {
        // Whichever of the two says so.
        for ([_]u64{ 2, 3 }) |claims| {
            for ([_]u64{ 2, 3 }) |number| {
                const other: PeerId = .from_int(5 - number);
                say(&roster, number, if (number == claims) &.{other} else &.{});
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
    say(&roster, 1, &.{ .from_int(2), .from_int(4) });
    say(&roster, 2, &.{});
    say(&roster, 3, &.{.from_int(1)});
    say(&roster, 4, &.{});
    const arrivals = [_]PeerId{ .from_int(3), .from_int(4) };
    try std.testing.expectEqual(0, roster.fit(&arrivals).count);
    say(&roster, 1, &.{.from_int(2)});
    say(&roster, 3, &.{});
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
    for (1..41) |number| say(&roster, number, &.{});
    try expect(roster.is_whole());
    roster.leave(.from_int(38));
    try expect(!roster.waits() and !roster.is_whole());
}
