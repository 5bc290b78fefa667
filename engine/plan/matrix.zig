//! Matrix: the rate of each link of an epoch, and of each member on all its links together, by
//! rank, as the coordinator believes them; and the rate at which bytes can cross from some members
//! to the others. Plain data, and questions about it. figures.zig computes times from it.

const std = @import("std");
const base = @import("base");

pub const members_max = base.limits.measured_max;

/// A set of ranks, a bit each.
pub const Side = u32;

pub fn bit(rank: usize) Side {
    return @as(Side, 1) << @intCast(rank);
}

/// Rates are in bytes per second; 0: not known.
pub const Matrix = struct {
    up: [members_max]u64 = @splat(0),
    down: [members_max]u64 = @splat(0),
    /// Members whose uplinks were found to carry no more than `up`; others may carry more.
    is_full: [members_max]bool = @splat(false),
    rates: [members_max][members_max]u64 = @splat(@splat(0)),
    /// The rates at which the links themselves were full. A link whose limit is not known may carry
    /// more than its rate.
    limits: [members_max][members_max]u64 = @splat(@splat(0)),
    rtts_ns: [members_max][members_max]u64 = @splat(@splat(0)),
    /// The cuts, found once for the members of an attempt.
    cuts: Cuts = .{},

    /// Clears a member's row, which is about to be told anew.
    pub fn clear_row(matrix: *Matrix, rank: usize) void {
        matrix.rates[rank] = @splat(0);
        matrix.rtts_ns[rank] = @splat(0);
        matrix.cuts.alive = 0;
    }

    pub fn cuts_of(matrix: *Matrix, alive: Side) []const Cut {
        if (matrix.cuts.alive != alive) matrix.cuts.find(matrix, alive);
        return matrix.cuts.found[0..matrix.cuts.count];
    }

    /// The most bytes per second that go from one side to the other at once: bounded by the rates
    /// of the members on either side, and of the links between them. It is infinite if a needed
    /// rate is not known.
    fn crossing(matrix: *const Matrix, from: Side, to: Side) f64 {
        var out: f64 = 0;
        var in: f64 = 0;
        var sources = from;
        while (sources != 0) : (sources &= sources - 1) {
            const rank = @ctz(sources);
            var links: f64 = 0;
            var targets = to;
            while (targets != 0) : (targets &= targets - 1)
                links += limit(matrix.rates[rank][@ctz(targets)]);
            out += @min(limit(matrix.up[rank]), links);
        }
        var targets = to;
        while (targets != 0) : (targets &= targets - 1) {
            const rank = @ctz(targets);
            var links: f64 = 0;
            sources = from;
            while (sources != 0) : (sources &= sources - 1)
                links += limit(matrix.rates[@ctz(sources)][rank]);
            in += @min(limit(matrix.down[rank]), links);
        }
        return @min(out, in);
    }
};

/// The smaller of two rates; a rate of 0 is not known, or no limit.
pub fn lesser(one: u64, other: u64) u64 {
    return if (one == 0) other else if (other == 0) one else @min(one, other);
}

/// The rate as a limit; infinite if it is not known.
pub fn limit(rate: u64) f64 {
    return if (rate == 0) std.math.inf(f64) else @floatFromInt(rate);
}

/// The member whose farthest other member is nearest, and the round trip to that one; of equal
/// members the first. Null: of no member all round trips are known.
pub fn middle(matrix: *const Matrix, alive: *const base.Mask) ?struct { rank: u16, rtt_ns: u64 } {
    const members: base.Order = .of(alive);
    var best: ?u16 = null;
    var best_ns: u64 = std.math.maxInt(u64);
    for (members.slice()) |a| {
        var farthest: u64 = 0;
        for (members.slice()) |b| if (a != b) {
            const trip = lesser(matrix.rtts_ns[a][b], matrix.rtts_ns[b][a]);
            farthest = @max(farthest, if (trip == 0) std.math.maxInt(u64) else trip);
        };
        if (farthest >= best_ns) continue;
        best = a;
        best_ns = farthest;
    }
    return .{ .rank = best orelse return null, .rtt_ns = best_ns };
}

/// The most bytes per second from the ranks of `side` to all other ranks alive.
pub const Cut = struct { side: Side, rate: f64 };

/// All cuts, if few members are alive; of more members, the cuts around each one. A cut of unknown
/// rate is left out.
const Cuts = struct {
    /// The members that the cuts divide; 0: the cuts are not found yet.
    alive: Side = 0,
    count: usize = 0,
    found: [room]Cut = undefined,

    const all_max = 8;
    const room = @max((1 << all_max) - 2, 2 * members_max);

    fn find(cuts: *Cuts, matrix: *const Matrix, alive: Side) void {
        cuts.alive = alive;
        cuts.count = 0;
        if (@popCount(alive) > all_max) {
            var left = alive;
            while (left != 0) : (left &= left - 1) {
                const one = left & (~left + 1);
                cuts.add(matrix, one);
                cuts.add(matrix, alive & ~one);
            }
            return;
        }
        // All subsets of the members, except the whole and the empty one, in descending order of
        // their bits.
        var side = (alive -% 1) & alive;
        while (side != 0) : (side = (side - 1) & alive) cuts.add(matrix, side);
    }

    fn add(cuts: *Cuts, matrix: *const Matrix, side: Side) void {
        const rate = matrix.crossing(side, cuts.alive & ~side);
        if (std.math.isInf(rate)) return;
        cuts.found[cuts.count] = .{ .side = side, .rate = rate };
        cuts.count += 1;
    }
};

const expectEqual = std.testing.expectEqual;

fn rate_of(matrix: *Matrix, alive: Side, side: Side) ?f64 {
    for (matrix.cuts_of(alive)) |cut| if (cut.side == side) return cut.rate;
    return null;
}

test "a side sends no more than its members, its links, and the members of the other side carry" {
    var matrix: Matrix = .{};
    try expectEqual(0, matrix.cuts_of(0b111).len);
    matrix.up = @splat(10);
    matrix.clear_row(0);
    try expectEqual(6, matrix.cuts_of(0b111).len);
    try expectEqual(10, rate_of(&matrix, 0b111, 0b001));
    try expectEqual(20, rate_of(&matrix, 0b111, 0b110));
    // A link of rank 0 whose rate is not known may carry anything.
    matrix.clear_row(0);
    matrix.rates[0][1] = 3;
    try expectEqual(10, rate_of(&matrix, 0b111, 0b001));
    matrix.clear_row(0);
    matrix.rates[0][1] = 3;
    matrix.rates[0][2] = 4;
    try expectEqual(7, rate_of(&matrix, 0b111, 0b001));
    try expectEqual(3 + 10, rate_of(&matrix, 0b111, 0b101) orelse 0);
    // Now each member can receive 1 byte per second.
    matrix.down = @splat(1);
    matrix.cuts.alive = 0;
    try expectEqual(2, rate_of(&matrix, 0b111, 0b001));
    try expectEqual(1, rate_of(&matrix, 0b111, 0b101));
    // Rank 2 is not alive.
    try expectEqual(2, matrix.cuts_of(0b011).len);
    try expectEqual(1, rate_of(&matrix, 0b011, 0b001));
}

test "the middle is nearest to the member that is farthest from it, if all round trips are known" {
    var matrix: Matrix = .{};
    const alive: base.Mask = .full(3);
    try expectEqual(null, middle(&matrix, &alive));
    matrix.rtts_ns[0][1] = 30;
    matrix.rtts_ns[2][0] = 90;
    try expectEqual(90, middle(&matrix, &alive).?.rtt_ns); // rank 0 alone has both
    matrix.rtts_ns[2][1] = 20; // one direction is enough
    const found = middle(&matrix, &alive).?;
    try expectEqual(1, found.rank);
    try expectEqual(30, found.rtt_ns);
}

test "all cuts of eight members are looked at, and of more those around each" {
    var matrix: Matrix = .{ .up = @splat(2) };
    try expectEqual(254, matrix.cuts_of(0b0101_0101_0101_0101).len);
    try expectEqual(8, rate_of(&matrix, 0b0101_0101_0101_0101, 0b0101_0101));
    try expectEqual(64, matrix.cuts_of(std.math.maxInt(Side)).len);
    try expectEqual(62, rate_of(&matrix, std.math.maxInt(Side), ~bit(31)));
    try expectEqual(2, rate_of(&matrix, std.math.maxInt(Side), bit(31)));
}
