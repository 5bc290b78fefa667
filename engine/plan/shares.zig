//! shares: how much of the data each hub should own in a direct schedule, so that the slowest link
//! or member is done as early as possible. A hub on a thin link owns little or nothing.
//!
//! Let hub a own the part w(a) of S bytes to which all n members contribute, and which all want.
//! Then S (w(a) + w(b)) bytes go from a to b: contributions to what b owns, and what a owns. And a
//! member sends, and receives, S (1 + (n - 2) w(a)) bytes. With x(a) = w(a) / T for the time T in
//! which all is done, and S = 1, the least T is one over the greatest sum X of all x, where
//!
//!     x(a) + x(b) <= rate of the link between a and b, the slower way,
//!     (n - 2) x(a) + X <= rate of the member, up or down, whichever is slower.
//!
//! x = 0 fulfils all of these, so the simplex method (Dantzig 1951) needs no first phase. Bland's
//! rule (1977) chooses the pivots, so it ends, and ends equally everywhere. Many shares may be
//! fastest, or slower by a 64th at most: the shares whose largest is smallest are taken, so that as
//! many hubs as possible work. The parts w are then rounded to small integers.

const std = @import("std");
const base = @import("base");
const matrix_file = @import("matrix.zig");
const Matrix = matrix_file.Matrix;
const Mask = base.Mask;
const Shares = base.Shares;
const Allocator = std.mem.Allocator;
const members_max = matrix_file.members_max;

/// The shares of the hubs among the members alive; even if no rate is known. Rates of 0 limit
/// nothing.
pub fn of(
    gpa: Allocator,
    matrix: *const Matrix,
    alive: *const Mask,
    hubs: *const Mask,
) Allocator.Error!Shares {
    const program = try gpa.create(Program); // too large for a stack
    defer gpa.destroy(program);
    program.fill(matrix, alive, hubs);
    if (program.rows == 0 or program.columns == 0) return .{};
    const fastest = sum_of(&program.solve(null));
    // Fewer owners allow a greater sum. Invariant: `low` owners, one of which may own everything,
    // are fast enough, and `high` are not.
    var low: usize = 1;
    var high = program.columns + 1;
    while (high - low > 1) {
        const owners = low + (high - low) / 2;
        if (sum_of(&program.solve(1 / @as(f64, @floatFromInt(owners)))) * 64 >= fastest * 63)
            low = owners
        else
            high = owners;
    }
    const most = if (low == 1) null else 1 / @as(f64, @floatFromInt(low));
    return program.rounded(&program.solve(most));
}

const Values = [members_max]f64;

fn sum_of(values: *const Values) f64 {
    var sum: f64 = 0;
    for (values) |value| sum += value;
    return sum;
}

/// A row for each link, each member and each hub.
const rows_max = members_max * (members_max - 1) / 2 + 2 * members_max;
/// Coefficients, and differences of parts, below this number are errors of rounding.
const tiny = 1e-9;

/// Maximizes the sum of the variables, which are the x of the hubs.
const Program = struct {
    hubs: [members_max]u16,
    columns: usize,
    rows: usize,
    /// The rows of the program: coefficients, and the limit of their sum.
    given: [rows_max]Row,
    /// The rows as pivots change them, with those of the cap.
    work: [rows_max]Row,

    const Row = struct { of: [members_max]f64 = @splat(0), limit: f64 };

    fn fill(p: *Program, matrix: *const Matrix, alive: *const Mask, hubs: *const Mask) void {
        p.columns = 0;
        p.rows = 0;
        for (0..members_max) |rank| if (hubs.has(rank)) {
            p.hubs[p.columns] = @intCast(rank);
            p.columns += 1;
        };
        const others: f64 = @floatFromInt(alive.count() -| 2);
        for (0..members_max) |a| {
            if (!alive.has(a)) continue;
            var member: Row = .{ .limit = slower(matrix.up[a], matrix.down[a]) };
            for (p.hubs[0..p.columns], 0..) |hub, column|
                member.of[column] = if (hub == a) others + 1 else 1;
            p.add(&member);
            for (a + 1..members_max) |b| {
                if (!alive.has(b)) continue;
                var link: Row = .{ .limit = slower(matrix.rates[a][b], matrix.rates[b][a]) };
                for (p.hubs[0..p.columns], 0..) |hub, column|
                    link.of[column] = if (hub == a or hub == b) 1 else 0;
                p.add(&link);
            }
        }
    }

    /// Adds a row, unless it limits no variable.
    fn add(p: *Program, row: *const Row) void {
        if (std.math.isInf(row.limit)) return;
        for (row.of) |coefficient| {
            if (coefficient == 0) continue;
            p.given[p.rows] = row.*;
            p.rows += 1;
            return;
        }
    }

    /// The values with the greatest sum of which no value is more than the part `most`: pivots
    /// until no variable can rise. All are 0 if `most` allows no others.
    fn solve(p: *Program, most: ?f64) Values {
        const rows = p.work[0 .. p.rows + if (most == null) 0 else p.columns];
        @memcpy(rows[0..p.rows], p.given[0..p.rows]);
        if (most) |part| for (rows[p.rows..], 0..) |*row, column| {
            row.* = .{ .limit = 0 };
            for (row.of[0..p.columns], 0..) |*coefficient, each|
                coefficient.* = if (each == column) 1 - part else -part;
        };
        // The variable, below `members_max`, or the slack that each column and each row stands for.
        var outside: [members_max]usize = undefined;
        var inside: [rows_max]usize = undefined;
        for (&outside, 0..) |*it, index| it.* = index;
        for (&inside, 0..) |*it, index| it.* = members_max + index;
        var gain: Values = @splat(1);
        for (0..pivots_max) |_| {
            const column = p.entering(&gain, &outside) orelse break;
            const row = leaving(rows, column, &inside) orelse break;
            p.pivot(rows, &gain, row, column);
            std.mem.swap(usize, &inside[row], &outside[column]);
        }
        var values: Values = @splat(0);
        for (inside[0..rows.len], rows) |variable, *row| {
            if (variable < members_max) values[variable] = row.limit;
        }
        return values;
    }

    /// More than any program of 32 variables has needed; rounding could make pivots go on for ever.
    const pivots_max = 10 * members_max;

    fn entering(p: *const Program, gain: *const Values, outside: *const [members_max]usize) ?usize {
        var found: ?usize = null;
        for (0..p.columns) |column| {
            if (gain[column] <= tiny) continue;
            if (found) |other| if (outside[other] < outside[column]) continue;
            found = column;
        }
        return found;
    }

    fn leaving(rows: []const Row, column: usize, inside: *const [rows_max]usize) ?usize {
        var found: ?usize = null;
        var least: f64 = std.math.inf(f64);
        for (rows, 0..) |*row, index| {
            if (row.of[column] <= tiny) continue;
            const ratio = row.limit / row.of[column];
            if (found) |other| {
                if (ratio > least) continue;
                if (ratio == least and inside[other] < inside[index]) continue;
            }
            found = index;
            least = ratio;
        }
        return found;
    }

    fn pivot(p: *const Program, rows: []Row, gain: *Values, row: usize, column: usize) void {
        const chosen = &rows[row];
        const by = chosen.of[column];
        for (chosen.of[0..p.columns]) |*it| it.* /= by;
        chosen.limit /= by;
        chosen.of[column] = 1 / by;
        for (rows, 0..) |*other, index| if (index != row) {
            const times = other.of[column];
            if (times == 0) continue;
            for (other.of[0..p.columns], chosen.of[0..p.columns]) |*it, of_chosen|
                it.* -= times * of_chosen;
            other.limit = @max(0, other.limit - times * chosen.limit);
            other.of[column] = -times * chosen.of[column];
        };
        const times = gain[column];
        for (gain[0..p.columns], chosen.of[0..p.columns]) |*it, of_chosen|
            it.* -= times * of_chosen;
        gain[column] = -times * chosen.of[column];
    }

    /// Integers whose parts of their sum are near the values: of those that are nearly the fastest
    /// (by a 64th), the nearest; of equal ones those with the smallest sum.
    fn rounded(p: *const Program, values: *const Values) Shares {
        const sum = sum_of(values);
        if (sum <= 0) return .{};
        var fastest: f64 = std.math.inf(f64);
        for (1..Shares.sum_max + 1) |parts|
            fastest = @min(fastest, p.seconds(&p.apportioned(values, sum, parts)));
        var best: Shares = .{};
        var least: f64 = std.math.inf(f64);
        for (1..Shares.sum_max + 1) |parts| {
            const tried = p.apportioned(values, sum, parts);
            if (p.seconds(&tried) * 63 > fastest * 64) continue;
            var farthest: f64 = 0;
            for (p.hubs[0..p.columns], values[0..p.columns]) |hub, value| {
                const share: f64 = @floatFromInt(tried.of[hub]);
                const part = share / @as(f64, @floatFromInt(parts));
                farthest = @max(farthest, @abs(part - value / sum));
            }
            if (farthest >= least - tiny) continue;
            least = farthest;
            best = tried;
        }
        return best;
    }

    /// The time until the slowest link or member is done, for S = 1.
    fn seconds(p: *const Program, shares: *const Shares) f64 {
        var longest: f64 = 0;
        for (p.given[0..p.rows]) |*row| {
            var load: f64 = 0;
            for (p.hubs[0..p.columns], row.of[0..p.columns]) |hub, coefficient|
                load += coefficient * @as(f64, @floatFromInt(shares.of[hub]));
            longest = @max(longest, load / row.limit);
        }
        return longest / @as(f64, @floatFromInt(shares.sum()));
    }

    /// Divides `parts` among the hubs by the method of largest remainders; on a tie the lowest rank
    /// gets more.
    fn apportioned(p: *const Program, values: *const Values, sum: f64, parts: usize) Shares {
        var shares: Shares = .{};
        var rests: Values = @splat(-1);
        var left = parts;
        for (p.hubs[0..p.columns], values[0..p.columns], rests[0..p.columns]) |hub, value, *rest| {
            const part = value / sum * @as(f64, @floatFromInt(parts));
            const whole: u8 = @intFromFloat(@floor(part + tiny));
            shares.of[hub] = whole;
            rest.* = part - @as(f64, @floatFromInt(whole));
            left -|= whole;
        }
        while (left > 0) : (left -= 1) {
            const column = std.mem.findMax(f64, rests[0..p.columns]);
            shares.of[p.hubs[column]] += 1;
            rests[column] = -1;
        }
        return shares;
    }
};

fn slower(one: u64, other: u64) f64 {
    return matrix_file.limit(matrix_file.lesser(one, other));
}

// ---- tests

fn test_shares(matrix: *const Matrix, count: usize, expected: []const u8) !void {
    const found = try of(std.testing.allocator, matrix, &.full(count), &.full(count));
    try std.testing.expectEqualSlices(u8, expected, found.of[0..count]);
}

test "even links share evenly, a thin member owns nothing, and a thin link leads to a hub less" {
    var matrix: Matrix = .{
        .up = @splat(100),
        .down = @splat(100),
        .rates = @splat(@splat(100)),
    };
    try test_shares(&matrix, 4, &.{ 1, 1, 1, 1 });
    // A member of a quarter sends and receives each byte once, which takes 4 times as long.
    matrix.up[2] = 25;
    try test_shares(&matrix, 4, &.{ 1, 1, 0, 1 });
    matrix.up[2] = 100;
    // Ranks 0 and 3 own nearly everything, so nearly nothing uses the link between 1 and 2.
    matrix.rates[1][2] = 1;
    try test_shares(&matrix, 4, &.{ 25, 1, 0, 25 });
    // Only rank 1 can own anything.
    var second: Mask = .empty;
    second.set(1);
    const gpa = std.testing.allocator;
    const found = try of(gpa, &matrix, &.full(4), &second);
    try std.testing.expectEqualSlices(u8, &.{ 0, 1, 0, 0 }, found.of[0..4]);
    const even = try of(gpa, &.{}, &.full(4), &.full(4));
    try std.testing.expect(even.is_even());
}

test "shares that are rounded stay nearly as fast" {
    // Goal: small parts are not lost where a thin link waits for them. Method: random links, beside
    // the values before they are rounded.
    var prng: base.Prng = .init(5);
    const program = try std.testing.allocator.create(Program);
    defer std.testing.allocator.destroy(program);
    for (0..50) |_| {
        const count = 4 + prng.below(5);
        var matrix: Matrix = .{};
        for (0..count) |a| for (0..count) |b| if (a != b) {
            matrix.rates[a][b] = 1000 + prng.below(20_000);
        };
        program.fill(&matrix, &.full(count), &.full(count));
        const values = program.solve(null);
        const rounded = program.rounded(&values);
        try std.testing.expect(program.seconds(&rounded) * sum_of(&values) < 1.04);
    }
}

test "no other shares are faster, found by trying all of a grid" {
    // Goal: the method finds the optimum. Method: random rates of four members; all shares of
    // sixteenths; the time of the rounded shares is at most 4 % above the best of them.
    const gpa = std.testing.allocator;
    const program = try gpa.create(Program);
    defer gpa.destroy(program);
    var prng: base.Prng = .init(11);
    for (0..100) |_| {
        var matrix: Matrix = .{};
        const alive: Mask = .full(4);
        for (0..4) |a| {
            matrix.up[a] = 100 + prng.below(900);
            matrix.down[a] = 100 + prng.below(900);
            for (0..4) |b| matrix.rates[a][b] = 10 + prng.below(400);
        }
        program.fill(&matrix, &alive, &alive);
        const found = try of(gpa, &matrix, &alive, &alive);
        const time = program.seconds(&found);
        var best: f64 = std.math.inf(f64);
        for (0..17) |a| for (0..17 - a) |b| for (0..17 - a - b) |c| {
            var shares: Shares = .{};
            const rest = 16 - a - b - c;
            for ([_]usize{ a, b, c, rest }, shares.of[0..4]) |part, *share|
                share.* = @intCast(part);
            best = @min(best, program.seconds(&shares));
        };
        try std.testing.expect(time <= best * 1.04);
    }
}
