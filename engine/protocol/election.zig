//! Election: chooses, from the offers of a sync's members, the content that all of them end up
//! with. It does no I/O: operation.zig gives it the offers of an attempt and the ranks that are
//! alive, and carries out its verdict; session/sync.zig moves the bytes. If two members have
//! different structures, Structures asks both for their tensors, page by page in order of names,
//! compares the two lists, and writes the differences as a sentence. Structures holds at most one
//! page of each member.
//!
//! 1. All structures must be equal.
//!
//! 2. The root that a member has voted for in an earlier attempt stays elected: the member that
//! first offered it may be lost.
//!
//! 3. Otherwise the content of a send_only member is elected. Two send_only members with different
//! contents are a conflict.
//!
//! 4. If no member is send_only, the contents of the popular members are compared. The content of
//! the higher standing wins (Standing in wire/control.zig), then the content of the higher
//! revision, then the content that more popular members hold, then the content of the smaller peer
//! id. So newcomers' content never replaces that of members, however many newcomers there are and
//! whatever revision they offer.
//!
//! 5. If all members hold the elected content at its revision, and none is receive_only, the offers
//! are votes, and no data moves.
//!
//! A state may have further rules (wire.control.StateRules). The rules successive and refuse go by
//! the judges: the members of the previous epoch, or all members if none of those is left.
//!
//! highest_revision: the highest revision wins, even a newcomer's. Between equal revisions the
//! higher standing wins.
//!
//! successive: only content of the expected revision is elected, which is one more than the highest
//! revision that a judge has committed. Before the first commit any revision may be elected.
//!
//! refuse: if one structure has more judges than any other, members with a different structure are
//! refused. With successive, members that offer content of a higher revision than expected are
//! refused as well, if other content may be elected.
//!
//! one_sender: if a member is send_only, all others must be receive_only.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Hash = wire.control.Hash;
const Mask = base.Mask;
const PeerId = base.PeerId;
const Standing = wire.control.Standing;
const StateRules = wire.control.StateRules;
const StateTensor = wire.control.StateTensor;
const Strategy = wire.control.Strategy;
const limits = base.limits;

pub const Offer = struct {
    digest: u128,
    revision: u64,
    /// One more than the last revision that the member has committed; 0: it has committed none.
    expected: u64 = 0,
    structure: Hash,
    root: Hash,
    strategy: Strategy,
    /// The standing that the member claims. A newcomer's claim counts only if the epoch has no
    /// member of the previous one.
    standing: Standing = .newcomer,
    voted: bool,
    /// The offer is the member's vote, if all offers are equal.
    is_vote: bool,
};

pub const Verdict = union(enum) {
    /// All members hold the same content, and the sync is committed with this digest.
    equal: u128,
    elected: Elected,
    /// Two ranks whose structures differ.
    structure: Differ,
    /// Two ranks that are send_only and offer different contents.
    conflict: [2]u16,
    /// Two ranks that contradict by the rule one_sender: one is send_only, the other is not
    /// receive_only.
    givers: [2]u16,
    /// The offers of these ranks are above the expected revision: they are refused, and the others
    /// go on.
    ahead: Ahead,
    /// No member's content may be elected.
    unavailable,

    /// `refuses`: the second rank's structure is not the one of most judges, and that rank is
    /// refused.
    pub const Differ = struct { ranks: [2]u16, refuses: bool };
    pub const Ahead = struct { ranks: Mask, expected: u64 };
    pub const Elected = struct { revision: u64, root: Hash, holders: Mask };
};

pub const Election = struct {
    gpa: Allocator,
    /// The offer of each rank in the current attempt.
    offers: []?Offer,
    offered: Mask = .empty,
    decided: bool = false,
    /// The comparison of two structures that differ; null: none is under way.
    structures: ?Structures = null,
    /// Ranks that are to be refused because their offers do not fit (operation.zig).
    misfits: Mask = .empty,
    /// The part of the offers of `misfits` that does not fit.
    blame: Blame = .structure,
    /// By the rule refuse, members of the previous epoch are refused, too, for their structure.
    refuses: bool = false,
    /// The name of the state in the first offer.
    name: base.Label = .{},

    pub const Blame = union(enum) {
        structure,
        content,
        /// Offers are above this revision, which is the expected one.
        revision: u64,
    };

    /// The members of the epoch, and the rules of the state.
    pub const Members = struct {
        ids: []const PeerId,
        alive: *const Mask,
        /// Ranks below this number were members of the previous epoch.
        incumbents: usize,
        rules: StateRules = .{},

        fn judges(members: *const Members) Mask {
            const before = members.alive.intersect(&.full(members.incumbents));
            return if (before.is_empty()) members.alive.* else before;
        }
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

    /// Forgets all offers: in a new attempt all members offer again.
    pub fn reset(election: *Election) void {
        if (election.structures) |*structures| structures.deinit(election.gpa);
        election.structures = null;
        election.misfits = .empty;
        election.refuses = false;
        election.offered = .empty;
        election.decided = false;
        @memset(election.offers, null);
    }

    /// Takes an offer. False: the member has offered in this attempt already.
    pub fn take(election: *Election, rank: u16, offer: Offer) bool {
        if (election.offered.has(rank)) return false;
        election.offered.set(rank);
        election.offers[rank] = offer;
        return true;
    }

    /// Decides on the offers. Null: not all members that are alive have offered, or the election is
    /// decided already.
    pub fn decide(election: *Election, members: Members) ?Verdict {
        if (election.decided or !election.offered.covers(members.alive)) return null;
        if (members.alive.is_empty()) return null;
        election.decided = true;
        if (election.misshapen(&members)) |differ| return .{ .structure = differ };
        if (members.rules.one_sender) if (election.givers(members.alive)) |ranks|
            return .{ .givers = ranks };
        if (election.voted_for(members)) |rank| return election.proclaim(members, rank);
        const next = election.expected(&members);
        const allowed = election.in_rule(&members, next);
        const winner = switch (election.insisted(&allowed)) {
            .none => election.best(members, &allowed) orelse return .unavailable,
            .rank => |rank| rank,
            .conflict => |ranks| return .{ .conflict = ranks },
        };
        if (members.rules.refuse) if (election.ahead(&members, next)) |those|
            return .{ .ahead = those };
        return election.proclaim(members, winner);
    }

    /// The only revision that may be elected (rule successive); 0: any may.
    fn expected(election: *const Election, members: *const Members) u64 {
        if (!members.rules.successive) return 0;
        const judges = members.judges();
        var most: u64 = 0;
        for (0..judges.count()) |position|
            most = @max(most, election.at(judges.at(position)).expected);
        return most;
    }

    /// The ranks whose revision may be elected.
    fn in_rule(election: *const Election, members: *const Members, next: u64) Mask {
        var allowed = members.alive.*;
        if (next == 0) return allowed;
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            if (election.at(rank).revision != next) allowed.unset(rank);
        }
        return allowed;
    }

    /// The ranks that offer content of a higher revision than `next`; null: none does. A rank with
    /// a lower revision merely receives the elected content.
    fn ahead(election: *const Election, members: *const Members, next: u64) ?Verdict.Ahead {
        var found: Verdict.Ahead = .{ .ranks = .empty, .expected = next };
        if (next == 0) return null;
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            const offer = election.at(rank);
            const gives = offer.strategy != .receive_only;
            if (gives and offer.revision > next) found.ranks.set(rank);
        }
        return if (found.ranks.is_empty()) null else found;
    }

    /// A send_only rank and another rank that is not receive_only, in ascending order; null: there
    /// is no such pair.
    fn givers(election: *const Election, alive: *const Mask) ?[2]u16 {
        const sender = for (0..alive.count()) |position| {
            if (election.at(alive.at(position)).strategy == .send_only) break alive.at(position);
        } else return null;
        for (0..alive.count()) |position| {
            const rank = alive.at(position);
            if (rank == sender or election.at(rank).strategy == .receive_only) continue;
            return .{ @min(rank, sender), @max(rank, sender) };
        }
        return null;
    }

    fn misshapen(election: *const Election, members: *const Members) ?Verdict.Differ {
        const first = members.alive.at(0);
        const other = election.unlike(members, first) orelse return null;
        if (members.rules.refuse) if (election.usual(members)) |rank| return .{
            .ranks = .{ rank, election.unlike(members, rank).? },
            .refuses = true,
        };
        return .{ .ranks = .{ first, other }, .refuses = false };
    }

    /// A judge with the structure that most judges have; null if two structures have equally many
    /// judges.
    fn usual(election: *const Election, members: *const Members) ?u16 {
        const judges = members.judges();
        var found = judges.at(0);
        var most: usize = 0;
        var is_tied = false;
        for (0..judges.count()) |position| {
            const rank = judges.at(position);
            const count = election.alike(&judges, rank);
            if (count < most) continue;
            const is_other = !structures_equal(election.at(found), election.at(rank));
            if (count == most) is_tied = is_tied or is_other;
            if (count == most) continue;
            found, most, is_tied = .{ rank, count, false };
        }
        return if (is_tied) null else found;
    }

    /// How many ranks in `of` have the structure of `rank`.
    fn alike(election: *const Election, of: *const Mask, rank: u16) usize {
        var count: usize = 0;
        for (0..of.count()) |position| {
            const is_equal = structures_equal(election.at(rank), election.at(of.at(position)));
            count += @intFromBool(is_equal);
        }
        return count;
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
            if (!other.is_vote) equal = false;
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

    /// The first member whose structure is not that of `rank`.
    fn unlike(election: *const Election, members: *const Members, rank: u16) ?u16 {
        for (0..members.alive.count()) |position| {
            const other = members.alive.at(position);
            if (!structures_equal(election.at(rank), election.at(other))) return other;
        }
        return null;
    }

    /// A rank that has voted in an earlier attempt (rule 2 above). All such votes are for one root,
    /// because only one was elected since the last loss.
    fn voted_for(election: *const Election, members: Members) ?u16 {
        for (0..members.alive.count()) |position| {
            const rank = members.alive.at(position);
            if (election.at(rank).voted) return rank;
        }
        return null;
    }

    const Insisted = union(enum) { none, rank: u16, conflict: [2]u16 };

    fn insisted(election: *const Election, allowed: *const Mask) Insisted {
        var first: ?u16 = null;
        for (0..allowed.count()) |position| {
            const rank = allowed.at(position);
            if (election.at(rank).strategy != .send_only) continue;
            const before = first orelse {
                first = rank;
                continue;
            };
            const roots = .{ &election.at(before).root, &election.at(rank).root };
            if (!std.mem.eql(u8, roots[0], roots[1])) return .{ .conflict = .{ before, rank } };
            // Between send_only members with equal contents the higher revision is elected.
            if (election.at(rank).revision > election.at(before).revision) first = rank;
        }
        return if (first) |rank| .{ .rank = rank } else .none;
    }

    fn best(election: *const Election, members: Members, allowed: *const Mask) ?u16 {
        var buffer: [base.limits.peers_max]u16 = undefined;
        var count: usize = 0;
        for (0..allowed.count()) |position| {
            const rank = allowed.at(position);
            if (election.at(rank).strategy != .popular) continue;
            buffer[count] = rank;
            count += 1;
        }
        // In the order of roots members with the same content stand together, so that each content
        // is counted once.
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

    /// `followers`: how many popular members hold the content of `rank`.
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
        const ours = [_]u8{
            @intFromEnum(election.standing(&members, a)),
            @intFromEnum(election.standing(&members, b)),
        };
        const is_level = ours[0] == ours[1];
        if (!is_level and !members.rules.highest_revision) return ours[0] > ours[1];
        if (mine.revision != theirs.revision) return mine.revision > theirs.revision;
        if (!is_level) return ours[0] > ours[1];
        if (candidate.followers != before.followers) return candidate.followers > before.followers;
        return members.ids[a].less_than(members.ids[b]);
    }

    /// The standing of a rank: the one that it claims, but a newcomer's if it came with this epoch
    /// and the epoch has members of the previous one.
    fn standing(election: *const Election, members: *const Members, rank: u16) Standing {
        if (members.incumbents > 0 and rank >= members.incumbents) return .newcomer;
        return election.at(rank).standing;
    }
};

// ---- tests

const Case = struct {
    election: *Election,
    ids: [8]PeerId,
    alive: Mask,
    incumbents: usize = 0,
    rules: StateRules = .{},

    fn init(ranks: usize) !Case {
        var case: Case = .{
            .election = try Election.create(std.testing.allocator, ranks),
            .ids = undefined,
            .alive = .full(ranks),
        };
        // The last rank has the smallest id.
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
            .standing = if (rank < case.incumbents) .member else .newcomer,
            .voted = false,
            .is_vote = strategy != .receive_only,
        });
        try std.testing.expect(taken);
    }

    /// Offers like a member that has committed revision `after` (null: none), as session/sync.zig
    /// does.
    fn offer_after(case: *Case, rank: u16, root: u8, revision: u64, after: ?u64) !void {
        try case.offer(rank, root, revision, .popular);
        const made = &case.election.offers[rank].?;
        made.expected = if (after) |last| last + 1 else 0;
        made.standing = if (after == null) .member else .synced;
        made.is_vote = after == null or made.revision == made.expected;
    }

    fn shape(case: *Case, shapes: []const u8) !void {
        case.election.reset();
        for (shapes, 0..) |structure, rank| {
            try case.offer(@intCast(rank), 1, 0, .popular);
            case.election.offers[rank].?.structure = @splat(structure);
        }
    }

    fn decide(case: *Case) ?Verdict {
        return case.election.decide(.{
            .ids = &case.ids,
            .alive = &case.alive,
            .incumbents = case.incumbents,
            .rules = case.rules,
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
    case.alive.unset(2); // rank 2 is lost
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

test "incumbents outvote newcomers of a higher revision, unless the rule says otherwise" {
    var case = try Case.init(4);
    defer case.election.destroy();
    case.incumbents = 3;
    for (0..3) |rank| try case.offer(@intCast(rank), 1, 5, .popular);
    try case.offer(3, 2, 5000, .popular); // a newcomer that gives its step as its revision
    try case.expect(1, 5, &.{ 0, 1, 2 });

    // One incumbent outvotes three newcomers.
    case.election.reset();
    case.incumbents = 1;
    try case.offer(0, 1, 0, .popular);
    for (1..4) |rank| try case.offer(@intCast(rank), 2, 6, .popular);
    try case.expect(1, 0, &.{0});

    // Without incumbents, as when a run starts again, the highest revision is elected.
    case.election.reset();
    case.incumbents = 0;
    for (0..3) |rank| try case.offer(@intCast(rank), 1, 5, .popular);
    try case.offer(3, 2, 6, .popular);
    try case.expect(2, 6, &.{3});

    // If all incumbents are receive_only, the newcomer's content is elected.
    case.election.reset();
    case.incumbents = 3;
    for (0..3) |rank| try case.offer(@intCast(rank), 1, 7, .receive_only);
    try case.offer(3, 2, 6, .popular);
    try case.expect(2, 6, &.{3});

    case.election.reset();
    case.rules.highest_revision = true;
    for (0..3) |rank| try case.offer_after(@intCast(rank), 1, 5, 4);
    try case.offer(3, 2, 6, .popular);
    try case.expect(2, 6, &.{3});

    // Between equal revisions the incumbent's content is elected.
    case.election.reset();
    case.incumbents = 1;
    try case.offer_after(0, 1, 6, 5);
    for (1..4) |rank| try case.offer(@intCast(rank), 2, 6, .popular);
    try case.expect(1, 6, &.{0});
}

test "a newcomer that has not synced before the next epoch outvotes nobody who has" {
    var case = try Case.init(4);
    defer case.election.destroy();
    case.incumbents = 3;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 2, 12, 10); // the highest revision of a synced member
    try case.offer(2, 3, 5000, .popular); // came an epoch ago, and has not synced
    try case.offer_after(3, 4, 6000, 5999); // a newcomer's claim does not count
    try case.expect(2, 12, &.{1});
}

test "where nobody is from before, founders that were new in the parent are newcomers" {
    var case = try Case.init(3);
    defer case.election.destroy();
    for ([_]Standing{ .member, .synced }) |standing| {
        case.election.reset();
        try case.offer(0, 1, 5000, .popular);
        try case.offer(1, 2, 0, .popular);
        try case.offer(2, 3, 6000, .popular);
        case.election.offers[1].?.standing = standing;
        try case.expect(2, 0, &.{1});
    }
}

test "among equals most members win, then the smallest id" {
    var case = try Case.init(5);
    defer case.election.destroy();
    try case.offer(0, 1, 0, .popular);
    try case.offer(1, 2, 0, .popular);
    try case.offer(2, 2, 0, .popular);
    try case.offer(3, 3, 0, .popular);
    try case.offer(4, 3, 0, .receive_only); // not counted as a holder
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
    try case.offer(3, 2, 0, .receive_only); // holds the elected content by chance, and may send it
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
    const differ = case.decide().?.structure;
    try std.testing.expectEqual(Verdict.Differ{ .ranks = .{ 0, 2 }, .refuses = false }, differ);
}

// ---- the rules of a state

test "successive: another revision than the one that follows is not elected, whoever has it" {
    var case = try Case.init(4);
    defer case.election.destroy();
    case.rules.successive = true;
    case.incumbents = 3;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 2, 1000, 10); // not the expected revision 11
    try case.offer_after(2, 2, 10, 9); // its last sync ended in doubt
    try case.offer_after(3, 3, 4000, null); // a newcomer from another checkpoint
    try case.expect(1, 11, &.{0});

    // A send_only member of another revision is not elected, either.
    case.election.reset();
    for (0..3) |rank| try case.offer_after(@intCast(rank), 1, 11, 10);
    try case.offer(3, 3, 12, .send_only);
    try case.expect(1, 11, &.{ 0, 1, 2 });

    // No member offers the expected revision.
    case.election.reset();
    for (0..4) |rank| try case.offer_after(@intCast(rank), 1, 12, 10);
    try std.testing.expectEqual(.unavailable, std.meta.activeTag(case.decide().?));
}

test "successive: before the first commit any revision may be, and a newcomer's word is none" {
    var case = try Case.init(3);
    defer case.election.destroy();
    case.rules.successive = true;
    try case.offer_after(0, 1, 3, null);
    try case.offer_after(1, 2, 7, null);
    try case.offer_after(2, 3, 0, null);
    try case.expect(2, 7, &.{1});

    case.election.reset();
    case.incumbents = 2;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 1, 11, 10);
    try case.offer_after(2, 3, 90, 89); // claims to have committed 89
    try case.expect(1, 11, &.{ 0, 1 });

    // Without incumbents the highest revision that any member has committed counts.
    case.election.reset();
    case.incumbents = 0;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 2, 12, 11);
    try case.offer_after(2, 3, 13, null);
    try case.expect(2, 12, &.{1});
}

test "successive: an offer that its member knows to be out of rule is no vote" {
    var case = try Case.init(2);
    defer case.election.destroy();
    case.rules.successive = true;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 1, 11, 9); // has not seen the commit of 10
    try case.expect(1, 11, &.{ 0, 1 });
}

test "successive: what a survivor has voted for stays, also if all who knew its revision are gone" {
    var case = try Case.init(2);
    defer case.election.destroy();
    case.rules = .{ .successive = true, .refuse = true };
    try case.offer_after(0, 1, 11, 9);
    case.election.offers[0].?.voted = true;
    try case.offer_after(1, 2, 10, 9);
    try case.expect(1, 11, &.{0});
}

test "refuse: the structure that most judges have is right, and none is where two are equal" {
    var case = try Case.init(5);
    defer case.election.destroy();
    const Shaped = struct { shapes: *const [5]u8, incumbents: usize, ranks: [2]u16, refuses: bool };
    for ([_]Shaped{
        // Most judges have structure b; the first rank with another structure is compared with it.
        .{ .shapes = "abbcb", .incumbents = 5, .ranks = .{ 1, 0 }, .refuses = true },
        .{ .shapes = "abbcb", .incumbents = 0, .ranks = .{ 1, 0 }, .refuses = true },
        .{ .shapes = "aabcd", .incumbents = 5, .ranks = .{ 0, 2 }, .refuses = true },
        // Newcomers are no judges, however many they are.
        .{ .shapes = "aabbb", .incumbents = 2, .ranks = .{ 0, 2 }, .refuses = true },
        .{ .shapes = "abbbb", .incumbents = 1, .ranks = .{ 0, 1 }, .refuses = true },
        // Two structures have equally many judges.
        .{ .shapes = "aabbc", .incumbents = 5, .ranks = .{ 0, 2 }, .refuses = false },
        .{ .shapes = "abaaa", .incumbents = 2, .ranks = .{ 0, 1 }, .refuses = false },
    }) |shaped| for ([_]bool{ true, false }) |refuses| {
        case.incumbents = shaped.incumbents;
        case.rules.refuse = refuses;
        try case.shape(shaped.shapes);
        const differ = case.decide().?.structure;
        try std.testing.expectEqual(shaped.refuses and refuses, differ.refuses);
        const first: u16 = if (refuses) shaped.ranks[0] else 0;
        try std.testing.expectEqual(first, differ.ranks[0]);
        if (refuses) try std.testing.expectEqual(shaped.ranks[1], differ.ranks[1]);
    };
}

test "refuse: members ahead of the revision that follows leave, if anybody has it" {
    var case = try Case.init(4);
    defer case.election.destroy();
    case.rules = .{ .successive = true, .refuse = true };
    case.incumbents = 3;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 1, 1000, 10);
    try case.offer_after(2, 1, 10, 9); // behind: it receives
    try case.offer(3, 1, 4000, .receive_only); // receive_only: gives nothing
    const ahead = case.decide().?.ahead;
    try std.testing.expectEqual(11, ahead.expected);
    try std.testing.expect(ahead.ranks.has(1) and ahead.ranks.count() == 1);

    // If all members are ahead, none is refused.
    case.election.reset();
    for (0..4) |rank| try case.offer_after(@intCast(rank), 1, 1000, 10);
    try std.testing.expectEqual(.unavailable, std.meta.activeTag(case.decide().?));

    // Without the rule successive no revision is expected.
    case.election.reset();
    case.rules.successive = false;
    try case.offer_after(0, 1, 11, 10);
    try case.offer_after(1, 2, 1000, 10);
    for (2..4) |rank| try case.offer_after(@intCast(rank), 1, 11, 10);
    try case.expect(2, 1000, &.{1});
}

test "who leaves is found out anew in each attempt" {
    var case = try Case.init(2);
    defer case.election.destroy();
    case.election.refuses = true;
    case.election.misfits.set(1);
    case.election.reset();
    try std.testing.expect(!case.election.refuses and case.election.misfits.is_empty());
}

test "one_sender: beside one that sends, all others only receive, also what is the same" {
    var case = try Case.init(3);
    defer case.election.destroy();
    const Given = struct { strategies: [3]Strategy, givers: ?[2]u16 };
    for ([_]Given{
        .{ .strategies = .{ .receive_only, .send_only, .receive_only }, .givers = null },
        .{ .strategies = .{ .popular, .popular, .receive_only }, .givers = null },
        .{ .strategies = .{ .popular, .receive_only, .send_only }, .givers = .{ 0, 2 } },
        .{ .strategies = .{ .receive_only, .send_only, .popular }, .givers = .{ 1, 2 } },
        .{ .strategies = .{ .send_only, .receive_only, .send_only }, .givers = .{ 0, 2 } },
    }) |given| for ([_]bool{ true, false }) |one_sender| {
        case.election.reset();
        case.rules.one_sender = one_sender;
        for (given.strategies, 0..) |strategy, rank|
            try case.offer(@intCast(rank), 1, 0, strategy);
        const verdict = case.decide().?;
        const expected: ?[2]u16 = if (one_sender) given.givers else null;
        const found: ?[2]u16 = switch (verdict) {
            .givers => |ranks| ranks,
            else => null,
        };
        try std.testing.expectEqual(expected, found);
    };
}

// ---- how two structures differ

pub const Structures = struct {
    ranks: [2]u16,
    sides: [2]Side = .{ .{}, .{} },
    text_storage: [limits.state_differs_bytes_max]u8 = undefined,
    text_length: usize = 0,
    found: u32 = 0,

    const Side = struct {
        /// How many tensors of this member are compared, and how many it has; null: not known yet.
        taken: u32 = 0,
        total: ?u32 = null,
        asked: bool = false,
        page: []u8 = &.{},
        reader: wire.codec.Reader = .{ .bytes = "" },
        left: u32 = 0,
        head: ?StateTensor = null,
    };

    /// The most differences that the sentence lists; for the rest it says "and more".
    const listed_max = 6;
    const name_bytes_shown = 60;

    pub const Error = error{ OutOfMemory, Unexpected };

    /// Begins the sentence with the names of the two members; what follows names them by rank
    /// alone.
    pub fn init(parties: [2]base.Ranked) Structures {
        var s: Structures = .{
            .ranks = .{ @intCast(parties[0].rank), @intCast(parties[1].rank) },
        };
        s.add("{f} against {f}: ", .{ parties[0], parties[1] });
        return s;
    }

    pub fn deinit(s: *Structures, gpa: Allocator) void {
        for (&s.sides) |*side| gpa.free(side.page);
    }

    pub const Next = union(enum) {
        /// Ask this rank for its tensors from `first` on.
        ask: struct { rank: u16, first: u32 },
        wait,
        /// The comparison is complete, and `text` has the sentence.
        over,
    };

    /// Compares the tensors that have arrived. Call `next` until it returns `wait` or `over`.
    pub fn next(s: *Structures) Next {
        while (s.found <= listed_max) {
            for (&s.sides, s.ranks) |*side, rank| switch (side_ready(side)) {
                .yes => {},
                .waits => return .wait,
                .asks => {
                    side.asked = true;
                    return .{ .ask = .{ .rank = rank, .first = side.taken } };
                },
            };
            const a = s.sides[0].head;
            const b = s.sides[1].head;
            if (a == null and b == null) break;
            s.compare(a, b);
        }
        if (s.found > listed_max) s.add(", and more", .{});
        if (s.found == 0) s.add(
            "both list the same tensors, but cut them differently: one of them has another " ++
                "build of this library",
            .{},
        );
        return .over;
    }

    /// Whether the next tensor of this member is in `head`, or known not to exist.
    fn side_ready(side: *Side) enum { yes, waits, asks } {
        if (side.head != null) return .yes;
        if (side.left > 0) {
            side.left -= 1;
            // Reading a tensor cannot fail: `wire.control.decode` has checked the page.
            side.head = wire.codec.read(StateTensor, &side.reader) catch unreachable;
            return .yes;
        }
        if (side.total) |total| if (side.taken >= total) return .yes;
        return if (side.asked) .waits else .asks;
    }

    fn compare(s: *Structures, a: ?StateTensor, b: ?StateTensor) void {
        const order: std.math.Order = if (a == null)
            .gt
        else if (b == null)
            .lt
        else
            std.mem.order(u8, a.?.name.data, b.?.name.data);
        switch (order) {
            .lt => s.only(0, &a.?),
            .gt => s.only(1, &b.?),
            .eq => s.both(&a.?, &b.?),
        }
        for (&s.sides, [2]bool{ order != .gt, order != .lt }) |*side, passed| if (passed) {
            side.head = null;
            side.taken += 1;
        };
    }

    fn only(s: *Structures, side: usize, tensor: *const StateTensor) void {
        s.found += 1;
        if (s.found > listed_max) return;
        s.add("{s}{f} is only on rank {d} ({f})", .{
            s.separator(),
            Name{ .bytes = tensor.name.data },
            s.ranks[side],
            Shape{ .tensor = tensor },
        });
    }

    fn both(s: *Structures, a: *const StateTensor, b: *const StateTensor) void {
        if (alike(a, b)) return;
        s.found += 1;
        if (s.found > listed_max) return;
        s.add("{s}{f} is {f} on rank {d} and {f} on rank {d}", .{
            s.separator(),
            Name{ .bytes = a.name.data },
            Shape{ .tensor = a },
            s.ranks[0],
            Shape{ .tensor = b },
            s.ranks[1],
        });
    }

    fn alike(a: *const StateTensor, b: *const StateTensor) bool {
        if (a.dtype != b.dtype or a.may_differ != b.may_differ) return false;
        if (a.shape.count != b.shape.count) return false;
        var left = a.shape.iterator();
        var right = b.shape.iterator();
        while (left.next()) |dimension| if (dimension != right.next().?) return false;
        return true;
    }

    fn separator(s: *const Structures) []const u8 {
        return if (s.found == 1) "" else "; ";
    }

    /// Appends to the sentence, or leaves the addition out if it does not fit whole.
    fn add(s: *Structures, comptime format: []const u8, arguments: anytype) void {
        const free = s.text_storage[s.text_length..];
        const added = std.fmt.bufPrint(free, format, arguments) catch return;
        s.text_length += added.len;
    }

    pub fn text(s: *const Structures) []const u8 {
        return s.text_storage[0..s.text_length];
    }

    /// Takes a page of a member's tensors. error.Unexpected: `next` did not ask for this page, or
    /// it contradicts earlier ones.
    pub fn page(
        s: *Structures,
        gpa: Allocator,
        rank: u16,
        message: *const wire.control.StateTensors,
    ) Error!void {
        const side = for (&s.sides, s.ranks) |*side, of| {
            if (of == rank) break side;
        } else return error.Unexpected;
        if (!side.asked or message.first != side.taken) return error.Unexpected;
        const count = message.tensors.count;
        if (message.total -| message.first < count) return error.Unexpected;
        if (count == 0 and message.first < message.total) return error.Unexpected;
        if (side.total) |total| if (total != message.total) return error.Unexpected;
        if (message.tensors.encoded.len > 2 * limits.state_page_bytes) return error.Unexpected;
        const copy = try gpa.dupe(u8, message.tensors.encoded);
        gpa.free(side.page);
        side.page = copy;
        side.reader = .{ .bytes = copy };
        side.left = count;
        side.total = message.total;
        side.asked = false;
    }
};

/// A tensor's name for people: quoted, cut to `name_bytes_shown`, and without control characters.
const Name = struct {
    bytes: []const u8,

    pub fn format(name: Name, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const plain = name.bytes.len <= Structures.name_bytes_shown and
            std.unicode.utf8ValidateSlice(name.bytes);
        const shown = name.bytes[0..@min(name.bytes.len, Structures.name_bytes_shown)];
        try writer.writeByte('"');
        for (shown) |byte| {
            const harmless = byte >= 0x20 and byte != 0x7f and (byte < 0x80 or plain);
            try writer.writeByte(if (harmless) byte else '?');
        }
        if (shown.len < name.bytes.len) try writer.writeAll("...");
        try writer.writeByte('"');
    }
};

/// A tensor's dtype and shape for people: "f32[3, 4]".
const Shape = struct {
    tensor: *const StateTensor,

    pub fn format(shape: Shape, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.print("{s}[", .{shape.tensor.dtype.name()});
        var it = shape.tensor.shape.iterator();
        var index: u32 = 0;
        while (it.next()) |dimension| : (index += 1) {
            if (index == limits.state_dimensions_max) break;
            if (index > 0) try writer.writeAll(", ");
            try writer.print("{d}", .{dimension});
        }
        try writer.writeByte(']');
        if (shape.tensor.may_differ) try writer.writeAll(", may differ");
    }
};

// ---- tests

/// Compares two lists of tensors, given in pages of `page_tensors` as two members would send them.
fn test_compare(a: []const StateTensor, b: []const StateTensor, page_tensors: u32) !Structures {
    const gpa = std.testing.allocator;
    var s: Structures = .init(.{
        .{ .rank = 3, .id = .from_int(0xaa << 120), .label = .shown("node7:42") },
        .{ .rank = 5, .id = .from_int(0xbb << 120), .label = .{} },
    });
    errdefer s.deinit(gpa);
    while (true) switch (s.next()) {
        .wait => return error.Unexpected,
        .over => return s,
        .ask => |ask| {
            const all = if (ask.rank == 3) a else b;
            const end = @min(all.len, ask.first + page_tensors);
            var bytes: [8192]u8 = undefined;
            const encoded = try wire.control.encode(.{ .state_tensors = .{
                .group = 0,
                .epoch = 1,
                .attempt = 1,
                .op = .{ .tag = 0, .sequence = 0 },
                .first = ask.first,
                .total = @intCast(all.len),
                .tensors = .of(all[ask.first..end]),
            } }, &bytes);
            const message = try wire.control.decode(encoded);
            try std.testing.expectEqual(.wait, std.meta.activeTag(s.next()));
            try s.page(gpa, ask.rank, &message.state_tensors);
        },
    };
}

fn test_tensor(name: []const u8, dtype: base.DType, shape: []const u64) StateTensor {
    return .{ .name = .of(name), .dtype = dtype, .may_differ = false, .shape = .of(shape) };
}

const test_beginning = "rank 3 (node7:42, aa000000) against rank 5 (bb000000): ";

test "the sentence says what is where and who is who, whatever the size of the pages" {
    const gpa = std.testing.allocator;
    var flagged = test_tensor("f", .f32, &.{});
    flagged.may_differ = true;
    const a = [_]StateTensor{
        test_tensor("a", .f32, &.{ 3, 4 }),
        test_tensor("b", .u8, &.{7}),
        test_tensor("d", .f16, &.{}),
        test_tensor("f", .f32, &.{}),
    };
    const b = [_]StateTensor{
        test_tensor("a", .f32, &.{ 3, 5 }),
        test_tensor("c", .u8, &.{7}),
        test_tensor("d", .f16, &.{}),
        flagged,
    };
    for (1..6) |page_tensors| {
        var s = try test_compare(&a, &b, @intCast(page_tensors));
        defer s.deinit(gpa);
        try std.testing.expectEqualStrings(
            test_beginning ++ "\"a\" is f32[3, 4] on rank 3 and f32[3, 5] on rank 5; " ++
                "\"b\" is only on rank 3 (u8[7]); " ++
                "\"c\" is only on rank 5 (u8[7]); " ++
                "\"f\" is f32[] on rank 3 and f32[], may differ on rank 5",
            s.text(),
        );
    }
}

test "many differences are counted off, equal lists are said to be, names are tamed" {
    const gpa = std.testing.allocator;
    var many: [40]StateTensor = undefined;
    var names: [40][2]u8 = undefined;
    for (&many, &names, 0..) |*tensor, *name, index| {
        name.* = .{ 'a' + @as(u8, @intCast(index / 20)), 'a' + @as(u8, @intCast(index % 20)) };
        tensor.* = test_tensor(name, .u8, &.{index});
    }
    var s = try test_compare(&many, &.{}, 7);
    defer s.deinit(gpa);
    try std.testing.expect(std.mem.endsWith(u8, s.text(), ", and more"));

    var same = try test_compare(&many, &many, 7);
    defer same.deinit(gpa);
    try std.testing.expect(std.mem.indexOf(u8, same.text(), "both list the same tensors") != null);

    const wild = [_]StateTensor{test_tensor("\x1b[31m\xff", .u8, &.{1})};
    var tamed = try test_compare(&wild, &.{}, 1);
    defer tamed.deinit(gpa);
    try std.testing.expect(std.mem.startsWith(
        u8,
        tamed.text(),
        test_beginning ++ "\"?[31m?\" is only on",
    ));
}

test "pages that nobody asked for, that lie about their place or never end are refused" {
    const gpa = std.testing.allocator;
    var s: Structures = .init(.{
        .{ .rank = 0, .id = .from_int(1), .label = .{} },
        .{ .rank = 1, .id = .from_int(2), .label = .{} },
    });
    defer s.deinit(gpa);
    var page = std.mem.zeroInit(wire.control.StateTensors, .{});
    page.total = 9;
    try std.testing.expectError(error.Unexpected, s.page(gpa, 0, &page)); // not asked yet
    _ = s.next();
    try std.testing.expectError(error.Unexpected, s.page(gpa, 2, &page)); // a third rank
    try std.testing.expectError(error.Unexpected, s.page(gpa, 0, &page)); // an empty page
    page.tensors = .{ .count = 1, .encoded = "of no account" };
    page.first = 3; // the page that was asked for begins with tensor 0
    try std.testing.expectError(error.Unexpected, s.page(gpa, 0, &page));
    page.first = 0;
    try s.page(gpa, 0, &page);
}
