//! Election: chooses the content that the members of a sync end up with, from their offers. Pure:
//! epoch.zig tells it the offers of an attempt and who is alive, and carries out its decision.
//! structure.zig finds how two structures differ; session/sync.zig moves the bytes.
//!
//!   1. Structures must be equal, and all members that insist (send_only) must hold the same
//!      content.
//!   2. A root that a survivor has voted for in an earlier attempt stays: it may be all that is
//!      left of a member that is gone.
//!   3. Otherwise the content of send_only members is elected. Without any, members of strategy
//!      popular are compared: the highest revision wins, then members of the epoch before
//!      newcomers, then the content that most of them hold, then the smallest peer id. So fresh
//!      weights of three newcomers never outvote one incumbent.
//!   4. If all hold the elected content at its revision, and nobody only receives, the offers are
//!      votes, and nothing moves.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Structures = @import("structure.zig").Structures;
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const PeerId = base.PeerId;
const Hash = wire.control.Hash;
const Strategy = wire.control.Strategy;
const assert = std.debug.assert;

pub const Offer = struct {
    digest: u128,
    revision: u64,
    structure: Hash,
    root: Hash,
    strategy: Strategy,
    voted: bool,
};

pub const Verdict = union(enum) {
    /// All hold the same; with this digest it may be committed.
    equal: u128,
    elected: Elected,
    /// Structures of these two ranks differ.
    structure: [2]u16,
    /// These two ranks insist on different contents.
    conflict: [2]u16,
    /// Nobody offers anything that may be taken.
    unavailable,

    pub const Elected = struct { revision: u64, root: Hash, holders: Mask };
};

pub const Election = struct {
    gpa: Allocator,
    /// By rank, of the attempt under way.
    offers: []?Offer,
    offered: Mask = .empty,
    decided: bool = false,
    /// While it is found out how structures differ.
    structures: ?Structures = null,
    /// Newcomers whose offers do not fit, and that must leave for it (misfit.zig).
    misfits: Mask = .empty,
    /// The name of the state, as the first member that offered has it.
    name: base.Label = .{},

    /// The members as the epoch knows them.
    pub const Members = struct {
        ids: []const PeerId,
        alive: *const Mask,
        /// Ranks below this were members of the epoch before.
        incumbents: usize,
    };

    pub fn create(gpa: Allocator, ranks: usize) Allocator.Error!*Election {
        const election = try gpa.create(Election);
        errdefer gpa.destroy(election);
        election.* = .{ .gpa = gpa, .offers = try gpa.alloc(?Offer, ranks) };
        @memset(election.offers, null);
        return election;
    }

    pub fn destroy(election: *Election) void {
        election.reset();
        election.gpa.free(election.offers);
        election.gpa.destroy(election);
    }

    /// A new attempt: everybody offers again.
    pub fn reset(election: *Election) void {
        if (election.structures) |*structures| structures.deinit(election.gpa);
        election.structures = null;
        election.misfits = .empty;
        election.offered = .empty;
        election.decided = false;
        @memset(election.offers, null);
    }

    /// False if this member has offered in this attempt already.
    pub fn take(election: *Election, rank: u16, offer: Offer) bool {
        if (election.offered.has(rank)) return false;
        election.offered.set(rank);
        election.offers[rank] = offer;
        return true;
    }

    /// Null until all who are alive have offered, and once it is decided.
    pub fn decide(election: *Election, members: Members) ?Verdict {
        if (election.decided or !election.offered.covers(members.alive)) return null;
        if (members.alive.is_empty()) return null;
        election.decided = true;
        const first = members.alive.at(0);
        if (election.unlike(members, first, structures_equal)) |other|
            return .{ .structure = .{ first, other } };
        const winner = election.voted_for(members) orelse switch (election.insisted(members)) {
            .none => election.best(members) orelse return .unavailable,
            .rank => |rank| rank,
            .conflict => |ranks| return .{ .conflict = ranks },
        };
        return election.proclaim(members, winner);
    }

    fn proclaim(election: *const Election, members: Members, winner: u16) Verdict {
        const offer = election.at(winner);
        var elected: Verdict.Elected = .{
            .revision = offer.revision,
            .root = offer.root,
            .holders = .empty,
        };
        var equal = true;
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            const other = election.at(rank);
            if (std.mem.eql(u8, &other.root, &offer.root)) elected.holders.set(rank);
            if (other.digest != offer.digest) equal = false;
            if (other.revision != offer.revision) equal = false;
            if (other.strategy == .receive_only and !other.voted) equal = false;
        }
        equal = equal and elected.holders.eql(members.alive);
        return if (equal) .{ .equal = offer.digest } else .{ .elected = elected };
    }

    fn at(election: *const Election, rank: u16) *const Offer {
        return &election.offers[rank].?;
    }

    fn structures_equal(a: *const Offer, b: *const Offer) bool {
        return std.mem.eql(u8, &a.structure, &b.structure);
    }

    /// The first member whose offer is unlike that of `rank`.
    fn unlike(
        election: *const Election,
        members: Members,
        rank: u16,
        comptime alike: fn (*const Offer, *const Offer) bool,
    ) ?u16 {
        for (0..members.alive.count()) |position| {
            const other = members.alive.at(position);
            if (!alike(election.at(rank), election.at(other))) return other;
        }
        return null;
    }

    /// Rule 2. Votes for two roots cannot be: only one was elected since the last loss.
    fn voted_for(election: *const Election, members: Members) ?u16 {
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            if (election.at(rank).voted) return rank;
        }
        return null;
    }

    const Insisted = union(enum) { none, rank: u16, conflict: [2]u16 };

    fn insisted(election: *const Election, members: Members) Insisted {
        var first: ?u16 = null;
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            if (election.at(rank).strategy != .send_only) continue;
            const before = first orelse {
                first = rank;
                continue;
            };
            const roots = .{ &election.at(before).root, &election.at(rank).root };
            if (!std.mem.eql(u8, roots[0], roots[1])) return .{ .conflict = .{ before, rank } };
            // Among equal contents the one that has seen more.
            if (election.at(rank).revision > election.at(before).revision) first = rank;
        }
        return if (first) |rank| .{ .rank = rank } else .none;
    }

    fn best(election: *const Election, members: Members) ?u16 {
        var buffer: [base.limits.peers_max]u16 = undefined;
        var count: usize = 0;
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            if (election.at(rank).strategy != .popular) continue;
            buffer[count] = rank;
            count += 1;
        }
        // Those that hold the same stand together, so each content is counted once.
        const ranks = buffer[0..count];
        std.mem.sort(u16, ranks, election, root_less_than);
        var winner: ?Candidate = null;
        var first: usize = 0;
        for (ranks, 1..) |rank, end| {
            if (end < count and !root_less_than(election, rank, ranks[end])) continue;
            for (ranks[first..end]) |holder| {
                const candidate: Candidate = .{ .rank = holder, .followers = end - first };
                const before = winner orelse candidate;
                if (winner == null or election.is_better(members, candidate, before))
                    winner = candidate;
            }
            first = end;
        }
        return if (winner) |candidate| candidate.rank else null;
    }

    /// `followers`: how many of strategy popular hold what this member holds.
    const Candidate = struct { rank: u16, followers: usize };

    fn root_less_than(election: *const Election, a: u16, b: u16) bool {
        return std.mem.lessThan(u8, &election.at(a).root, &election.at(b).root);
    }

    fn is_better(
        election: *const Election,
        members: Members,
        candidate: Candidate,
        before: Candidate,
    ) bool {
        const a = candidate.rank;
        const b = before.rank;
        const mine = election.at(a);
        const theirs = election.at(b);
        if (mine.revision != theirs.revision) return mine.revision > theirs.revision;
        const incumbents = .{ a < members.incumbents, b < members.incumbents };
        if (incumbents[0] != incumbents[1]) return incumbents[0];
        if (candidate.followers != before.followers) return candidate.followers > before.followers;
        return members.ids[a].less_than(members.ids[b]);
    }
};

// ---- tests

const Case = struct {
    election: *Election,
    ids: [8]PeerId,
    alive: Mask,
    incumbents: usize = 0,

    fn init(ranks: usize) !Case {
        var case: Case = .{
            .election = try Election.create(std.testing.allocator, ranks),
            .ids = undefined,
            .alive = .full(ranks),
        };
        // The smallest id is that of the last rank.
        for (&case.ids, 0..) |*id, rank| id.* = .from_int(100 - rank);
        return case;
    }

    fn offer(case: *Case, rank: u16, root: u8, revision: u64, strategy: Strategy) !void {
        const taken = case.election.take(rank, .{
            .digest = @as(u128, root) << 64 | revision,
            .revision = revision,
            .structure = @splat(1),
            .root = @splat(root),
            .strategy = strategy,
            .voted = false,
        });
        try std.testing.expect(taken);
    }

    fn decide(case: *Case) ?Verdict {
        return case.election.decide(.{
            .ids = &case.ids,
            .alive = &case.alive,
            .incumbents = case.incumbents,
        });
    }

    fn expect(case: *Case, root: u8, revision: u64, holders: []const u16) !void {
        const elected = case.decide().?.elected;
        try std.testing.expectEqual(root, elected.root[0]);
        try std.testing.expectEqual(revision, elected.revision);
        var mask: Mask = .empty;
        for (holders) |rank| mask.set(rank);
        try std.testing.expect(mask.eql(&elected.holders));
    }
};

test "nothing is decided before all who are alive have offered, and nothing twice" {
    var case = try Case.init(3);
    defer case.election.destroy();
    try case.offer(0, 7, 1, .popular);
    try case.offer(1, 7, 1, .popular);
    try std.testing.expectEqual(null, case.decide());
    try std.testing.expect(!case.election.take(1, case.election.offers[1].?));
    case.alive.unset(2); // the third is lost
    try std.testing.expectEqual(@as(u128, 7) << 64 | 1, case.decide().?.equal);
    try std.testing.expectEqual(null, case.decide());
    case.election.reset();
    try std.testing.expectEqual(null, case.decide());
}

test "three newcomers with fresh weights never outvote one incumbent" {
    var case = try Case.init(4);
    defer case.election.destroy();
    case.incumbents = 1;
    try case.offer(0, 1, 0, .popular);
    for (1..4) |rank| try case.offer(@intCast(rank), 2, 0, .popular);
    try case.expect(1, 0, &.{0});
}

test "a higher revision outranks incumbents, and they outrank numbers" {
    var case = try Case.init(4);
    defer case.election.destroy();
    case.incumbents = 3;
    for (0..3) |rank| try case.offer(@intCast(rank), 1, 5, .popular);
    try case.offer(3, 2, 6, .popular); // a newcomer with a later checkpoint
    try case.expect(2, 6, &.{3});
}

test "among equals most members win, then the smallest id" {
    var case = try Case.init(5);
    defer case.election.destroy();
    try case.offer(0, 1, 0, .popular);
    try case.offer(1, 2, 0, .popular);
    try case.offer(2, 2, 0, .popular);
    try case.offer(3, 3, 0, .popular);
    try case.offer(4, 3, 0, .receive_only); // does not count for its content
    try case.expect(2, 0, &.{ 1, 2 });

    case.election.reset();
    for (0..5) |rank| try case.offer(@intCast(rank), @intCast(rank), 0, .popular);
    try case.expect(4, 0, &.{4});
}

test "equal contents of different revisions take the highest, and everybody is told" {
    var case = try Case.init(2);
    defer case.election.destroy();
    try case.offer(0, 1, 3, .popular);
    try case.offer(1, 1, 9, .popular);
    try case.expect(1, 9, &.{ 0, 1 });
}

test "who insists wins against any revision, and two who insist on different contents conflict" {
    var case = try Case.init(4);
    defer case.election.destroy();
    try case.offer(0, 1, 9, .popular);
    try case.offer(1, 2, 0, .send_only);
    try case.offer(2, 2, 4, .send_only);
    try case.offer(3, 2, 0, .receive_only); // holds the same by chance, and may give it
    try case.expect(2, 4, &.{ 1, 2, 3 });

    case.election.reset();
    try case.offer(0, 1, 9, .popular);
    try case.offer(1, 2, 0, .send_only);
    try case.offer(2, 1, 0, .popular);
    try case.offer(3, 3, 0, .send_only);
    try std.testing.expectEqual([2]u16{ 1, 3 }, case.decide().?.conflict);
}

test "receive_only is never taken: not even where all who only receive are equal" {
    var case = try Case.init(2);
    defer case.election.destroy();
    try case.offer(0, 1, 9, .receive_only);
    try case.offer(1, 1, 9, .receive_only);
    try std.testing.expectEqual(.unavailable, std.meta.activeTag(case.decide().?));
    case.election.reset();
    try case.offer(0, 1, 9, .receive_only);
    try case.offer(1, 2, 0, .popular);
    try case.expect(2, 0, &.{1});
}

test "an offer of one that only receives is no vote" {
    var case = try Case.init(2);
    defer case.election.destroy();
    try case.offer(0, 1, 9, .popular);
    try case.offer(1, 1, 9, .receive_only);
    try case.expect(1, 9, &.{ 0, 1 });
}

test "a root that a survivor has voted for stays, whatever else is offered" {
    var case = try Case.init(3);
    defer case.election.destroy();
    try case.offer(0, 1, 9, .send_only);
    try case.offer(1, 2, 3, .popular);
    try case.offer(2, 1, 9, .popular);
    case.election.offers[1].?.voted = true;
    try case.expect(2, 3, &.{1});
}

test "structures that differ are named before anything else" {
    var case = try Case.init(3);
    defer case.election.destroy();
    for (0..3) |rank| try case.offer(@intCast(rank), 1, 0, .popular);
    case.election.offers[2].?.structure = @splat(2);
    try std.testing.expectEqual([2]u16{ 0, 2 }, case.decide().?.structure);
}
