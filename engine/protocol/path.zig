//! path: finds the order of the ring and the hubs of a direct schedule for an attempt, from the
//! members that are alive and the links that are broken; and the member that must leave if neither
//! avoids the broken links. Members report broken links (Broken). The search depends on nothing but
//! its arguments; collective/ring.zig and direct.zig move the data.
//!
//! Up to 12 members the search is exact. Above that, a broken edge of the ring is removed by
//! reversing a part of the ring; each reversal mends at least one edge and breaks none. Reversals
//! always succeed while any two members whose link is broken have, together, as many good links as
//! there are members (Ore's theorem), so in particular while no member has lost half of its links.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Ranks = @import("peer.zig").Ranks;
const Allocator = std.mem.Allocator;
const Health = wire.control.LinkHealth;
const Instant = base.Instant;
const Mask = base.Mask;
const Order = base.Order;
const Paths = base.Paths;
const PeerId = base.PeerId;
const assert = std.debug.assert;

/// Broken links between ranks.
pub const Edges = struct {
    /// For each rank, the ranks that it cannot reach.
    of: [base.limits.peers_max]Mask = @splat(.empty),

    pub fn add(edges: *Edges, a: usize, b: usize) void {
        assert(a != b);
        edges.of[a].set(b);
        edges.of[b].set(a);
    }

    pub fn has(edges: *const Edges, a: usize, b: usize) bool {
        return edges.of[a].has(b);
    }

    /// The candidate that has lost most links to members; on a tie the highest rank.
    /// Null: no candidate has lost a link.
    pub fn worst(edges: *const Edges, members: *const Mask, candidates: *const Mask) ?u16 {
        var found: ?u16 = null;
        var most: u32 = 1;
        for (0..base.limits.peers_max) |rank| {
            if (!candidates.has(rank)) continue;
            var lost: u32 = 0;
            for (edges.of[rank].words, members.words) |a, b| lost += @popCount(a & b);
            if (lost < most) continue;
            most = lost;
            found = @intCast(rank);
        }
        return found;
    }
};

/// Paths without broken links: a ring around the broken links, or hubs that have no broken link.
/// Null: there are no such paths. `world_size` is that of the epoch, lost members included.
pub fn paths_of(alive: *const Mask, world_size: usize, edges: *const Edges) ?Paths {
    const hubs = hubs_of(alive, world_size, edges);
    if (search(alive, edges)) |order| return .{ .order = order, .hubs = hubs };
    if (hubs.is_empty()) return null;
    return .{ .order = .of(alive), .has_ring = false, .hubs = hubs };
}

/// The ranks that reach all other ranks; none in a group so large that no member has links to all
/// others.
fn hubs_of(alive: *const Mask, world_size: usize, edges: *const Edges) Mask {
    var hubs = Paths.all(alive, world_size).hubs;
    for (0..world_size) |rank| {
        if (!hubs.has(rank)) continue;
        var lost: u64 = 0;
        for (edges.of[rank].words, alive.words) |a, b| lost |= a & b;
        if (lost != 0) hubs.unset(rank);
    }
    return hubs;
}

/// Whether these paths use a broken link.
pub fn uses_broken(used: *const Paths, alive: *const Mask, edges: *const Edges) bool {
    if (used.has_ring and crosses(&used.order, edges)) return true;
    for (0..base.limits.peers_max) |rank| {
        if (!used.hubs.has(rank)) continue;
        for (edges.of[rank].words, alive.words) |a, b| if (a & b != 0) return true;
    }
    return false;
}

/// Whether the ring uses a broken link.
pub fn crosses(order: *const Order, edges: *const Edges) bool {
    if (order.count < 2) return false;
    for (order.slice(), 1..) |rank, next| if (edges.has(rank, order.at(next))) return true;
    return false;
}

/// A ring without broken links, in rank order if that has none. Null: there is no such ring, or
/// among more than 12 members none was found.
pub fn search(alive: *const Mask, edges: *const Edges) ?Order {
    const ranks: Order = .of(alive);
    if (!crosses(&ranks, edges)) return ranks;
    if (ranks.count > exact_max) return mend(ranks, edges);
    var exact: Exact = .{ .ranks = ranks, .edges = edges };
    exact.found.append(ranks.at(0));
    return if (exact.extend(1, 0)) exact.found else null;
}

const exact_max = 12;

/// A depth-first search for a ring that remembers dead ends. The search finds the order that has
/// the lowest ranks first.
const Exact = struct {
    ranks: Order,
    edges: *const Edges,
    found: Order = .{},
    /// For each set of used positions, a bit for each last position from which the ring cannot be
    /// closed.
    dead: [1 << exact_max]u16 = @splat(0),

    fn extend(x: *Exact, used: u16, last: u4) bool {
        const here = x.ranks.at(last);
        if (@popCount(used) == x.ranks.count) return !x.edges.has(here, x.ranks.at(0));
        if (x.dead[used] >> last & 1 == 1) return false;
        for (1..x.ranks.count) |next| {
            const bit = @as(u16, 1) << @intCast(next);
            if (used & bit != 0 or x.edges.has(here, x.ranks.at(next))) continue;
            x.found.append(x.ranks.at(next));
            if (x.extend(used | bit, @intCast(next))) return true;
            x.found.count -= 1;
        }
        x.dead[used] |= @as(u16, 1) << last;
        return false;
    }
};

/// Reverses parts of the ring until no edge is broken; null: no further reversal helps.
fn mend(start: Order, edges: *const Edges) ?Order {
    var order = start;
    const n: usize = order.count;
    var from: usize = 0;
    while (find_turn(&order, edges, from)) |turn| {
        // Positions wrap round at the end of the ring.
        for (0..turn.length / 2) |index| {
            const a = (turn.first + index) % n;
            const b = (turn.first + turn.length - 1 - index) % n;
            std.mem.swap(u16, &order.ranks[a], &order.ranks[b]);
        }
        from = turn.first;
    }
    if (crosses(&order, edges)) return null;
    // Rotates the ring so that it begins with the lowest rank, and few members change their places.
    const lowest = std.mem.findMin(u16, order.slice());
    std.mem.rotate(u16, order.ranks[0..n], lowest);
    return order;
}

const Turn = struct { first: usize, length: usize };

/// The shortest part of the ring that begins behind a broken edge and whose reversal replaces that
/// edge, and the edge at the end of the part, by two good edges. Broken edges are tried from
/// position `from` on.
fn find_turn(order: *const Order, edges: *const Edges, from: usize) ?Turn {
    const n: usize = order.count;
    for (from..from + n) |before| {
        const a = order.at(before);
        const b = order.at(before + 1);
        if (!edges.has(a, b)) continue;
        for (2..n - 1) |length| {
            const c = order.at(before + length);
            const d = order.at(before + length + 1);
            if (edges.has(a, c) or edges.has(b, d)) continue;
            return .{ .first = (before + 1) % n, .length = length };
        }
    }
    return null;
}

// ---- tests

/// Whether there is a ring without broken links, found by trying all orders.
fn test_any(order: *Order, fixed: usize, edges: *const Edges) bool {
    if (fixed == order.count) return !crosses(order, edges);
    for (fixed..order.count) |index| {
        std.mem.swap(u16, &order.ranks[fixed], &order.ranks[index]);
        defer std.mem.swap(u16, &order.ranks[fixed], &order.ranks[index]);
        if (test_any(order, fixed + 1, edges)) return true;
    }
    return false;
}

fn test_found(order: *const Order, alive: *const Mask, edges: *const Edges) !void {
    try std.testing.expect(!crosses(order, edges));
    var left = alive.*;
    for (order.slice()) |rank| {
        try std.testing.expect(left.has(rank));
        left.unset(rank);
    }
    try std.testing.expect(left.is_empty());
}

fn test_search(alive: *const Mask, edges: *const Edges) !void {
    var any: Order = .of(alive);
    const exists = test_any(&any, 1, edges);
    const found = search(alive, edges) orelse return std.testing.expect(!exists);
    try std.testing.expect(exists);
    try test_found(&found, alive, edges);
}

/// The links among `count` members: pairs whose bit is set are broken.
fn test_edges(alive: *const Mask, count: usize, pairs: u64) Edges {
    var edges: Edges = .{};
    var bit: u6 = 0;
    for (0..count) |a| for (a + 1..count) |b| {
        if (pairs >> bit & 1 == 1) edges.add(alive.at(a), alive.at(b));
        bit += 1;
    };
    return edges;
}

test "an order is found whenever there is one, for up to 8 members" {
    // Goal: no member must leave while some ring avoids the broken links. Method: all graphs of up
    // to five members, and random graphs of more, against all permutations.
    var alive: Mask = .empty;
    for (1..9) |count| {
        alive.set(count * 3);
        const pairs = count * (count - 1) / 2;
        if (count <= 5) {
            for (0..@as(usize, 1) << @intCast(pairs)) |bits| {
                try test_search(&alive, &test_edges(&alive, count, bits));
            }
            continue;
        }
        var prng: base.Prng = .init(count);
        for (0..300) |_| {
            // Dense graphs and sparse graphs: with about half of the links, rings are rare.
            var bits = prng.next();
            if (prng.chance(2)) bits &= prng.next();
            try test_search(&alive, &test_edges(&alive, count, bits));
        }
    }
}

test "rank order stays where it can, and else the lowest ranks come first" {
    const alive: Mask = .full(5);
    var edges: Edges = .{};
    edges.add(1, 3);
    try std.testing.expect(search(&alive, &edges).?.is_rank_order());
    edges.add(2, 3);
    try std.testing.expectEqualSlices(u16, &.{ 0, 1, 2, 4, 3 }, search(&alive, &edges).?.slice());
    edges.add(0, 3);
    try std.testing.expectEqual(null, search(&alive, &edges));
    try std.testing.expectEqual(3, edges.worst(&alive, &alive));
}

test "paths that use a broken link are told from those that go around it" {
    const alive: Mask = .full(4);
    var edges: Edges = .{};
    edges.add(0, 2);
    var used: Paths = .{ .order = .of(&alive), .has_ring = true, .hubs = .empty };
    try std.testing.expect(!uses_broken(&used, &alive, &edges));
    edges.add(1, 2);
    try std.testing.expect(uses_broken(&used, &alive, &edges));
    used.has_ring = false;
    try std.testing.expect(!uses_broken(&used, &alive, &edges));
    used.hubs.set(3);
    try std.testing.expect(!uses_broken(&used, &alive, &edges));
    used.hubs.set(1);
    try std.testing.expect(uses_broken(&used, &alive, &edges));
}

test "two members need their link, and who has lost most or has the higher rank leaves" {
    const alive: Mask = .full(2);
    var edges: Edges = .{};
    try std.testing.expectEqual(null, edges.worst(&alive, &alive));
    try std.testing.expect(search(&alive, &edges) != null);
    edges.add(0, 1);
    try std.testing.expectEqual(null, search(&alive, &edges));
    try std.testing.expectEqual(1, edges.worst(&alive, &alive));
    edges.add(0, 7); // rank 7 is not alive
    try std.testing.expectEqual(1, edges.worst(&alive, &alive));
    edges.add(0, 5);
    try std.testing.expectEqual(0, edges.worst(&.full(6), &.full(6)));
    var late: Mask = .empty;
    late.set(5);
    try std.testing.expectEqual(5, edges.worst(&.full(6), &late));
}

test "large worlds do without any links, as long as nobody has lost half of its own" {
    // Goal: the theorem at the head of this file. Method: break random links while both ends keep
    // more than half of their links.
    var prng: base.Prng = .init(7);
    for ([_]usize{ 13, 14, 33, 100, 512 }) |count| for (0..4) |_| {
        const alive: Mask = .full(count);
        var edges: Edges = .{};
        for (0..count * count) |_| {
            const a = prng.below(count);
            const b = prng.below(count);
            const most = (count - 1) - (count + 1) / 2;
            const full = edges.of[a].count() >= most or edges.of[b].count() >= most;
            if (a != b and !full) edges.add(a, b);
        }
        // Breaks links of the ring in rank order, too.
        for (0..count / 4) |index| {
            const full = edges.of[4 * index].count() >= (count - 1) / 2 or
                edges.of[4 * index + 1].count() >= (count - 1) / 2;
            if (!full) edges.add(4 * index, 4 * index + 1);
        }
        const found = search(&alive, &edges) orelse return error.NotFound;
        try test_found(&found, &alive, &edges);
    };
}

test "a member of a large world that reaches only two others is between them" {
    const alive: Mask = .full(64);
    var edges: Edges = .{};
    for (0..64) |rank| if (rank != 9 and rank != 30 and rank != 50) edges.add(9, rank);
    const found = search(&alive, &edges) orelse return error.NotFound;
    try test_found(&found, &alive, &edges);
}

// ---- broken links
//
// Which links of a group are broken, as the members report. A link is broken when the member at
// either end reports it, until that member takes its report back.

pub const Broken = struct {
    claims: std.ArrayList(Claim) = .empty,
    /// A counter that grows with each change of `claims`.
    changes: u64 = 0,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// How the link is, as `from` reports it; never `up`.
        health: Health,
    };

    pub fn deinit(broken: *Broken, gpa: Allocator) void {
        broken.claims.deinit(gpa);
    }

    /// Takes a report of `from` about its link to `to`. False: the report changes nothing. If
    /// `from` claims more broken links than an honest member can have, an earlier claim of `from`
    /// is dropped.
    pub fn tell(
        broken: *Broken,
        gpa: Allocator,
        from: PeerId,
        to: PeerId,
        health: Health,
    ) Allocator.Error!bool {
        var earlier: ?*Claim = null;
        var count: usize = 0;
        for (broken.claims.items, 0..) |*claim, index| {
            if (!claim.from.eql(from)) continue;
            earlier = earlier orelse claim;
            count += 1;
            if (!claim.to.eql(to)) continue;
            if (claim.health == health) return false;
            if (health != .up) claim.health = health else _ = broken.claims.swapRemove(index);
            broken.changes += 1;
            return true;
        }
        if (health == .up) return false;
        const claim: Claim = .{ .from = from, .to = to, .health = health };
        if (count >= base.limits.links_broken_max)
            earlier.?.* = claim
        else
            try broken.claims.append(gpa, claim);
        broken.changes += 1;
        return true;
    }

    /// Whether `from` reports that its link to `to` is broken.
    pub fn has(broken: *const Broken, from: PeerId, to: PeerId) bool {
        for (broken.claims.items) |*claim| {
            if (claim.from.eql(from) and claim.to.eql(to)) return true;
        }
        return false;
    }

    /// Drops the claims of a member that comes back; the member repeats the claims that still hold.
    pub fn forget_from(broken: *Broken, id: PeerId) void {
        broken.forget_where(id, false);
    }

    /// Drops all claims about the links of a peer that is gone.
    pub fn forget(broken: *Broken, id: PeerId) void {
        broken.forget_where(id, true);
    }

    fn forget_where(broken: *Broken, id: PeerId, either_end: bool) void {
        var kept: usize = 0;
        for (broken.claims.items) |claim| {
            if (claim.from.eql(id) or (either_end and claim.to.eql(id))) continue;
            broken.claims.items[kept] = claim;
            kept += 1;
        }
        broken.changes += @intFromBool(kept < broken.claims.items.len);
        broken.claims.shrinkRetainingCapacity(kept);
    }

    /// Broken links between peers that have a rank. `lasting`: without silent links, which may work
    /// again at once.
    pub fn edges(broken: *const Broken, ranks: *const Ranks, lasting: bool) Edges {
        var found: Edges = .{};
        for (broken.claims.items) |*claim| {
            if (lasting and claim.health != .down) continue;
            const a = ranks.get(claim.from) orelse continue;
            const b = ranks.get(claim.to) orelse continue;
            found.add(a, b);
        }
        return found;
    }

    /// The ranks to which the links of a peer are broken.
    pub fn edges_of(broken: *const Broken, ranks: *const Ranks, id: PeerId) base.Mask {
        var found: base.Mask = .empty;
        for (broken.claims.items) |*claim| {
            const is_from = claim.from.eql(id);
            if (!is_from and !claim.to.eql(id)) continue;
            found.set(ranks.get(if (is_from) claim.to else claim.from) orelse continue);
        }
        return found;
    }
};

test "a link is broken until both ends that said so have taken it back" {
    const gpa = std.testing.allocator;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const ids: [3]PeerId = .{ .from_int(1), .from_int(2), .from_int(3) };
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (ids, 0..) |id, rank| try ranks.put(gpa, id, @intCast(rank));
    // The link was never reported as broken.
    try std.testing.expect(!try broken.tell(gpa, ids[2], ids[0], .up));
    try std.testing.expectEqual(0, broken.claims.items.len);
    try std.testing.expect(try broken.tell(gpa, ids[0], ids[1], .silent));
    try std.testing.expect(try broken.tell(gpa, ids[1], ids[0], .down));
    try std.testing.expect(broken.edges(&ranks, true).has(0, 1));
    try std.testing.expect(try broken.tell(gpa, ids[1], ids[0], .up));
    try std.testing.expect(!broken.edges(&ranks, true).has(0, 1));
    try std.testing.expect(broken.edges(&ranks, false).has(1, 0));
    try std.testing.expect(try broken.tell(gpa, ids[0], ids[1], .up));
    try std.testing.expect(!broken.edges(&ranks, false).has(0, 1));
    try std.testing.expectEqual(0, broken.claims.items.len);
}

test "who comes back says it again, and who is gone has no links" {
    const gpa = std.testing.allocator;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const ids: [3]PeerId = .{ .from_int(1), .from_int(2), .from_int(3) };
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (ids, 0..) |id, rank| try ranks.put(gpa, id, @intCast(rank));
    try std.testing.expect(try broken.tell(gpa, ids[0], ids[1], .down));
    try std.testing.expect(try broken.tell(gpa, ids[1], ids[2], .down));
    broken.forget_from(ids[0]);
    try std.testing.expect(!broken.edges(&ranks, false).has(0, 1));
    broken.forget(ids[2]);
    try std.testing.expectEqual(0, broken.claims.items.len);
}

test "a member that repeats itself changes nothing, and of very many words its last ones count" {
    const gpa = std.testing.allocator;
    const expect = std.testing.expect;
    const most = base.limits.links_broken_max;
    var broken: Broken = .{};
    defer broken.deinit(gpa);
    const liar: PeerId = .from_int(1);
    const honest: PeerId = .from_int(2);
    try expect(try broken.tell(gpa, honest, liar, .down));
    for (0..2 * most) |index| {
        try expect(try broken.tell(gpa, liar, .from_int(3 + index), .silent));
        const before = broken.changes;
        try expect(!try broken.tell(gpa, liar, .from_int(3 + index), .silent));
        try std.testing.expectEqual(before, broken.changes);
    }
    try std.testing.expectEqual(1 + most, broken.claims.items.len);
    try expect(!try broken.tell(gpa, honest, liar, .down)); // the claim of `honest` is still there
    var ranks: Ranks = .empty;
    defer ranks.deinit(gpa);
    for (1..4) |number| try ranks.put(gpa, .from_int(number), @intCast(number));
    try ranks.put(gpa, .from_int(2 + 2 * most), 4);
    var mask: base.Mask = .empty;
    mask.set(1);
    try expect(broken.edges_of(&ranks, honest).eql(&mask));
    mask = .empty;
    mask.set(2);
    mask.set(4);
    try expect(broken.edges_of(&ranks, liar).eql(&mask));
}

// ---- when ways are looked for
//
// When the coordinator looks again for ways around the broken links of a group, and for members to
// which no way leads. A look takes long in a large group, and a member can cause a look with a few
// bytes. So a look follows a little after the first report, once for all reports until then, and
// the next look only after a pause.

pub const Look = struct {
    /// The time at which the next look is due; `never`: nothing has changed.
    at: Instant = base.never,
    /// The member whose report made the look due at `at`, and which is charged for the attempt.
    by: PeerId = .none,
    /// The earliest time of the next look.
    not_before: Instant = 0,

    /// The pause after a look, for each member of the group. A look at 256 members takes a few
    /// milliseconds.
    const pause_ns = 2 * std.time.ns_per_ms;

    pub fn ask(look: *Look, at: Instant, by: PeerId) void {
        const when = @max(at, look.not_before);
        if (when >= look.at) return;
        look.at = when;
        look.by = by;
    }

    /// Takes a look that is due, and returns the member that is charged for it. Null: no look is
    /// due.
    pub fn take(look: *Look, now: Instant, members: usize) ?PeerId {
        if (now < look.at) return null;
        look.at = base.never;
        look.pause(now, members);
        return look.by;
    }

    /// Sets the pause after a look.
    pub fn pause(look: *Look, now: Instant, members: usize) void {
        look.not_before = now +| pause_ns *| members;
    }

    /// The time of the next look, or of the end of the pause, at which a waiting round goes on.
    pub fn next_deadline(look: *const Look, now: Instant) Instant {
        return if (look.not_before > now) @min(look.at, look.not_before) else look.at;
    }
};

test "however often it is asked for, a look comes once, and again only after a pause" {
    const expectEqual = std.testing.expectEqual;
    const ms = std.time.ns_per_ms;
    var look: Look = .{};
    try expectEqual(null, look.take(5 * ms, 256));
    look.ask(20 * ms, .from_int(1));
    look.ask(30 * ms, .from_int(2));
    try expectEqual(null, look.take(20 * ms - 1, 256));
    try expectEqual(PeerId.from_int(1), look.take(20 * ms, 256).?);
    try expectEqual(null, look.take(20 * ms, 256));
    look.ask(40 * ms, .from_int(2));
    look.ask(20 * ms, .from_int(1)); // not earlier than 532 ms: member 2 still pays
    try expectEqual(532 * ms, look.next_deadline(20 * ms));
    try expectEqual(null, look.take(532 * ms - 1, 256));
    try expectEqual(PeerId.from_int(2), look.take(532 * ms, 3).?);
    try expectEqual(538 * ms, look.next_deadline(532 * ms));
    try expectEqual(base.never, look.next_deadline(538 * ms));
}
