//! cycle: finds a ring through all members, which uses none of the given edges: the ring with the
//! shortest sum of round trips, and among equally short rings that with the lowest ranks first.
//! planner.zig gives it the broken links, and the links that are too slow.
//!
//! Up to 12 members the search is exact: the dynamic program of Held and Karp (1962). Above that,
//! an edge of the ring is removed by reversing a part of the ring; each reversal removes at least
//! one edge and adds none. Reversals always succeed while any two members between which there is an
//! edge have, together, as many good links as there are members (Ore's theorem), so in particular
//! while no member has lost half of its links. Further reversals then shorten the ring.

const std = @import("std");
const base = @import("base");
const matrix = @import("matrix.zig");
const Mask = base.Mask;
const Order = base.Order;
const assert = std.debug.assert;

/// Links that a ring must not use, by the ranks of their ends.
pub const Edges = struct {
    /// For each rank, the ranks that it does not send to.
    of: [base.limits.peers_max]Mask = @splat(.empty),

    pub fn add(edges: *Edges, a: usize, b: usize) void {
        edges.add_one_way(a, b);
        edges.add_one_way(b, a);
    }

    pub fn add_one_way(edges: *Edges, from: usize, to: usize) void {
        assert(from != to);
        edges.of[from].set(to);
    }

    pub fn has(edges: *const Edges, from: usize, to: usize) bool {
        return edges.of[from].has(to);
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

/// Round trips between ranks in nanoseconds, as Matrix has them.
pub const RoundTrips = [matrix.members_max][matrix.members_max]u64;

/// Whether the ring uses an edge.
pub fn crosses(order: *const Order, edges: *const Edges) bool {
    if (order.count < 2) return false;
    for (order.slice(), 1..) |rank, next| if (edges.has(rank, order.at(next))) return true;
    return false;
}

/// A ring without edges; rank order if that has none, and no other ring is shorter. Without
/// `trips`, as in an epoch whose members are too many to be measured, all rings are equally long.
/// Null: there is no such ring, or among more than 12 members none was found. Above 12 members each
/// edge must lead both ways.
pub fn search(alive: *const Mask, edges: *const Edges, trips: ?*const RoundTrips) ?Order {
    const ranks: Order = .of(alive);
    if (trips == null and !crosses(&ranks, edges)) return ranks;
    if (ranks.count > exact_max) {
        const found = mend(ranks, edges) orelse return null;
        return if (trips) |known| shorten(found, edges, known) else found;
    }
    if (ranks.count < 2) return ranks;
    var exact: Exact = .{ .ranks = &ranks, .edges = edges, .trips = trips };
    exact.fill();
    return exact.shortest();
}

pub const exact_max = 12;

/// The shortest ways from each member, over all members that are left, to the first of the ranks.
const Exact = struct {
    ranks: *const Order,
    edges: *const Edges,
    trips: ?*const RoundTrips,
    /// By the set of positions that are used, and by the last of them, in microseconds; position 0
    /// is always used, and counts in neither.
    least: [1 << last_max][last_max]u32 = undefined,

    const last_max = exact_max - 1;
    const no_way = std.math.maxInt(u32);

    comptime {
        const us_max = base.limits.link_rtt_ns_told_max / std.time.ns_per_us;
        assert(us_max * exact_max < no_way);
    }

    fn fill(x: *Exact) void {
        const lasts = x.ranks.count - 1;
        const all = (@as(usize, 1) << @intCast(lasts)) - 1;
        var used = all;
        while (used > 0) : (used -= 1) for (0..lasts) |last| {
            if (used >> @intCast(last) & 1 == 0) continue;
            x.least[used][last] =
                if (used == all) x.length(last + 1, 0) else x.onward(used, last + 1).length;
        };
    }

    const Step = struct { next: usize = 0, length: u32 = no_way };

    /// The first step of the shortest way from the position `from`; of equal ones the lowest.
    fn onward(x: *const Exact, used: usize, from: usize) Step {
        var best: Step = .{};
        for (1..x.ranks.count) |next| {
            const bit = @as(usize, 1) << @intCast(next - 1);
            if (used & bit != 0) continue;
            const length_on = x.length(from, next) +| x.least[used | bit][next - 1];
            if (length_on < best.length) best = .{ .next = next, .length = length_on };
        }
        return best;
    }

    fn length(x: *const Exact, from: usize, to: usize) u32 {
        const a = x.ranks.at(from);
        const b = x.ranks.at(to);
        if (x.edges.has(a, b)) return no_way;
        const trips = x.trips orelse return 0;
        return @intCast(@min(trips[a][b], base.limits.link_rtt_ns_told_max) / std.time.ns_per_us);
    }

    fn shortest(x: *const Exact) ?Order {
        var found: Order = .{};
        found.append(x.ranks.at(0));
        var used: usize = 0;
        var at: usize = 0;
        while (found.count < x.ranks.count) {
            const step = x.onward(used, at);
            if (step.length == no_way) return null;
            found.append(x.ranks.at(step.next));
            used |= @as(usize, 1) << @intCast(step.next - 1);
            at = step.next;
        }
        return found;
    }
};

/// Reverses parts of the ring until it uses no edge; null: no further reversal helps.
fn mend(start: Order, edges: *const Edges) ?Order {
    var order = start;
    var from: usize = 0;
    while (find_turn(&order, edges, from)) |turn| {
        reverse(&order, turn);
        from = turn.first;
    }
    if (crosses(&order, edges)) return null;
    begin_with_lowest(&order);
    return order;
}

/// Rotates the ring so that it begins with the lowest rank, and few members change their places.
fn begin_with_lowest(order: *Order) void {
    const lowest = std.mem.findMin(u16, order.slice());
    std.mem.rotate(u16, order.ranks[0..order.count], lowest);
}

const Turn = struct { first: usize, length: usize };

/// Reverses a part of the ring. Positions wrap round at the end of the ring.
fn reverse(order: *Order, turn: Turn) void {
    const n: usize = order.count;
    for (0..turn.length / 2) |index| {
        const a = (turn.first + index) % n;
        const b = (turn.first + turn.length - 1 - index) % n;
        std.mem.swap(u16, &order.ranks[a], &order.ranks[b]);
    }
}

/// The shortest part of the ring that begins behind an edge that the ring uses, and whose reversal
/// replaces that edge, and the link at the end of the part, by two links that are no edges. Edges
/// are tried from position `from` on.
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

/// Reverses parts of a ring without edges as long as that makes it shorter.
fn shorten(start: Order, edges: *const Edges, trips: *const RoundTrips) Order {
    var order = start;
    const n: usize = order.count;
    const way = struct {
        fn between(of: *const RoundTrips, a: usize, b: usize) u64 {
            return of[a][b] +| of[b][a];
        }
    }.between;
    var is_shorter = true;
    while (is_shorter) {
        is_shorter = false;
        for (0..n) |before| for (2..n - 1) |length| {
            const a = order.at(before);
            const b = order.at(before + 1);
            const c = order.at(before + length);
            const d = order.at(before + length + 1);
            if (edges.has(a, c) or edges.has(b, d)) continue;
            if (way(trips, a, c) + way(trips, b, d) >= way(trips, a, b) + way(trips, c, d))
                continue;
            reverse(&order, .{ .first = (before + 1) % n, .length = length });
            is_shorter = true;
        };
    }
    begin_with_lowest(&order);
    return order;
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
    const found = search(alive, edges, null) orelse return std.testing.expect(!exists);
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
    try std.testing.expect(search(&alive, &edges, null).?.is_rank_order());
    edges.add(2, 3);
    const around = search(&alive, &edges, null).?;
    try std.testing.expectEqualSlices(u16, &.{ 0, 1, 2, 4, 3 }, around.slice());
    edges.add(0, 3);
    try std.testing.expectEqual(null, search(&alive, &edges, null));
    try std.testing.expectEqual(3, edges.worst(&alive, &alive));
}

test "two members need their link, and who has lost most or has the higher rank leaves" {
    const alive: Mask = .full(2);
    var edges: Edges = .{};
    try std.testing.expectEqual(null, edges.worst(&alive, &alive));
    try std.testing.expect(search(&alive, &edges, null) != null);
    edges.add(0, 1);
    try std.testing.expectEqual(null, search(&alive, &edges, null));
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
        const found = search(&alive, &edges, null) orelse return error.NotFound;
        try test_found(&found, &alive, &edges);
    };
}

test "a member of a large world that reaches only two others is between them" {
    const alive: Mask = .full(64);
    var edges: Edges = .{};
    for (0..64) |rank| if (rank != 9 and rank != 30 and rank != 50) edges.add(9, rank);
    const found = search(&alive, &edges, null) orelse return error.NotFound;
    try test_found(&found, &alive, &edges);
}

/// The sum of the round trips along a ring.
fn test_length(order: *const Order, trips: *const RoundTrips) u64 {
    var sum: u64 = 0;
    for (order.slice(), 1..) |rank, next| sum += trips[rank][order.at(next)];
    return sum;
}

/// The shortest ring without edges, found by trying all orders; null: there is none.
fn test_shortest(order: *Order, fixed: usize, edges: *const Edges, trips: *const RoundTrips) ?u64 {
    if (fixed == order.count) return if (crosses(order, edges)) null else test_length(order, trips);
    var least: ?u64 = null;
    for (fixed..order.count) |index| {
        std.mem.swap(u16, &order.ranks[fixed], &order.ranks[index]);
        defer std.mem.swap(u16, &order.ranks[fixed], &order.ranks[index]);
        const found = test_shortest(order, fixed + 1, edges, trips) orelse continue;
        least = @min(least orelse found, found);
    }
    return least;
}

test "of all rings without edges the shortest is found, also with edges that lead one way" {
    const ms = std.time.ns_per_ms;
    var prng: base.Prng = .init(3);
    for (0..200) |_| {
        const count = 2 + prng.below(6);
        const alive: Mask = .full(count);
        var edges: Edges = .{};
        var trips: RoundTrips = undefined;
        for (0..count) |a| for (0..count) |b| {
            trips[a][b] = prng.below(300) * ms;
            if (a != b and prng.chance(4)) edges.add_one_way(a, b);
        };
        var any: Order = .of(&alive);
        const least = test_shortest(&any, 1, &edges, &trips);
        const found = search(&alive, &edges, &trips);
        if (found) |*ring| try test_found(ring, &alive, &edges);
        const length = if (found) |*ring| test_length(ring, &trips) else null;
        try std.testing.expectEqual(least, length);
    }
}

test "a large ring is shortened by reversals, and still uses no edge" {
    // Method: members on a circle in random order, of which some links are edges.
    var prng: base.Prng = .init(5);
    for ([_]usize{ 13, 20, 32 }) |count| {
        const alive: Mask = .full(count);
        var places: [32]usize = undefined;
        for (&places, 0..) |*place, index| place.* = index;
        for (0..count) |index| std.mem.swap(usize, &places[index], &places[prng.below(count)]);
        var edges: Edges = .{};
        var trips: RoundTrips = undefined;
        for (0..count) |a| for (0..count) |b| {
            const apart = @max(places[a], places[b]) - @min(places[a], places[b]);
            trips[a][b] = @min(apart, count - apart);
            if (a < b and apart == 3) edges.add(a, b);
        };
        const before = search(&alive, &edges, null).?;
        const found = search(&alive, &edges, &trips).?;
        try test_found(&found, &alive, &edges);
        try std.testing.expect(2 * test_length(&found, &trips) < test_length(&before, &trips));
        try std.testing.expect(test_length(&found, &trips) <= 2 * count);
    }
}
