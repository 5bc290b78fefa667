//! Figures: how long an operation takes at the rates that members have measured, and how long at
//! least: a pure function of the matrix (matrix.zig), of the bytes that move (volume.zig) and of
//! the way taken. A figure that needs an unknown rate is 0. planner.zig compares ways by it.
//!
//! The bound holds for any schedule: all members together send each byte as often as it must be
//! added and told, and each cut carries the bytes that one side has and the other wants. The
//! prediction is for one way: the time of the slowest link or member, and the hops. Formulas of
//! bound and prediction: docs/internals/ALGORITHMS.md.

const std = @import("std");
const base = @import("base");
const matrix_file = @import("matrix.zig");
const Matrix = matrix_file.Matrix;
const Side = matrix_file.Side;
const Volume = @import("volume.zig").Volume;
const bit = matrix_file.bit;
const members_max = matrix_file.members_max;

/// The way that the data of an operation takes, as pccl_plan_t (pccl.h) numbers it.
pub const Way = enum(u8) { ring = 1, direct = 2, message = 3 };

pub const Figures = struct {
    way: Way = .ring,
    /// The time from the call to the commit; 0: not known.
    predicted_ns: u64 = 0,
    /// The least time with any schedule; 0: not known.
    bound_ns: u64 = 0,
};

/// The way that the data of an operation takes, and its members.
pub const Course = struct {
    way: Way,
    /// Ranks of the members, in the order of the ring.
    order: []const u16,
    /// The parts of the data that the hubs of a direct schedule own.
    shares: base.Shares = .{},
    /// One member alone has, or wants, all the data.
    is_rooted: bool = false,
    /// The round trip to the coordinator in nanoseconds.
    commit_ns: u64 = 0,

    fn alive(course: *const Course) Side {
        var side: Side = 0;
        for (course.order) |rank| side |= bit(rank);
        return side;
    }

    fn next(course: *const Course, position: usize) u16 {
        return course.order[(position + 1) % course.order.len];
    }

    /// The part of the data that a member owns.
    fn part(course: *const Course, rank: u16) f64 {
        const sum: f64 = @floatFromInt(course.shares.sum());
        if (sum == 0) return 1 / @as(f64, @floatFromInt(course.order.len));
        return @as(f64, @floatFromInt(course.shares.of[rank])) / sum;
    }
};

pub fn of(matrix: *Matrix, volume: *const Volume, course: *const Course) Figures {
    return .{
        .way = course.way,
        .predicted_ns = predicted_ns(matrix, volume, course),
        .bound_ns = nanoseconds(bound(matrix, volume, course.alive())),
    };
}

/// The predicted time; 0: not known.
pub fn predicted_ns(matrix: *const Matrix, volume: *const Volume, course: *const Course) u64 {
    return nanoseconds(predicted(matrix, volume, course) orelse 0);
}

/// The least time with any schedule, in seconds.
fn bound(matrix: *Matrix, volume: *const Volume, alive: Side) f64 {
    const total = volume.total(alive);
    var least: f64 = 0;
    for ([_]*const [members_max]u64{ &matrix.up, &matrix.down }) |rates| {
        const rate = sum_of(rates, alive) orelse continue;
        least = @max(least, total / rate);
    }
    for (matrix.cuts_of(alive)) |*cut|
        least = @max(least, volume.crossing(cut.side, alive) / cut.rate);
    return least;
}

/// The sum of the rates of the members alive; null if one rate is not known.
fn sum_of(rates: *const [members_max]u64, alive: Side) ?f64 {
    var sum: f64 = 0;
    var left = alive;
    while (left != 0) : (left &= left - 1) {
        const rate = rates[@ctz(left)];
        if (rate == 0) return null;
        sum += @floatFromInt(rate);
    }
    return sum;
}

/// Links of a direct schedule are not busy all the time: several share each uplink, and all wait
/// for the slowest contribution to a chunk.
const direct_busy = 9.0 / 8.0;

/// The predicted time in seconds; null if the rate of a link that is used is not known.
fn predicted(matrix: *const Matrix, volume: *const Volume, course: *const Course) ?f64 {
    if (volume.total(course.alive()) == 0) return null;
    const loads: Loads = .of(volume, course);
    const least = (Spent.of(matrix, &loads, course) orelse return null).most;
    const busy = least * @as(f64, if (course.way == .direct) direct_busy else 1);
    const hops: Hops = .of(matrix, course, &loads, volume.all > 0);
    const commit = seconds(course.commit_ns);
    if (course.way == .message) return busy + 2 * hops.longest + commit;
    if (course.is_rooted) return busy + hops.way + commit;
    // All members begin at once, so links are busy to the end, and the last bytes have one more
    // hop. If there is little to move, each step waits for the step before.
    return commit + @max(busy + hops.longest, hops.way + busy / hops.steps);
}

/// The seconds that each link, and each member on all its links, needs to send and receive; null if
/// the rate of a link that is used is not known.
const Spent = struct {
    link: [members_max][members_max]f64 = @splat(@splat(0)),
    out: [members_max]f64 = @splat(0),
    in: [members_max]f64 = @splat(0),
    most: f64 = 0,

    fn of(matrix: *const Matrix, loads: *const Loads, course: *const Course) ?Spent {
        var spent: Spent = .{};
        for (course.order) |a| for (course.order) |b| {
            const load = loads.of_link[a][b];
            if (load == 0) continue;
            if (matrix.rates[a][b] == 0) return null;
            spent.link[a][b] = time(load, matrix.rates[a][b]);
            spent.most = @max(spent.most, spent.link[a][b]);
            spent.out[a] += load;
            spent.in[b] += load;
        };
        for (course.order) |rank| {
            const up, const down = .{ matrix.up[rank], matrix.down[rank] };
            spent.out[rank] = if (up > 0) time(spent.out[rank], up) else 0;
            spent.in[rank] = if (down > 0) time(spent.in[rank], down) else 0;
            spent.most = @max(spent.most, spent.out[rank], spent.in[rank]);
        }
        return spent;
    }
};

/// A link, or all links from a member, or all links to a member, that an operation waits for.
pub const Limit = struct { from: ?u16, to: ?u16 };

/// The most limits that are named.
pub const limits_max = 8;
/// Links whose time is within this part of the slowest one's limit an operation as well.
const limit_part = 16;

/// Finds the limits of an operation: the links that need longest, and then the members. A member is
/// named only if its links could each carry more. There are no limits if a rate is not known.
pub fn limits_of(
    matrix: *const Matrix,
    volume: *const Volume,
    course: *const Course,
    room: *[limits_max]Limit,
) []Limit {
    const spent = Spent.of(matrix, &.of(volume, course), course) orelse return room[0..0];
    if (spent.most == 0) return room[0..0];
    const near = spent.most / limit_part * (limit_part - 1);
    var found: std.ArrayList(Limit) = .initBuffer(room);
    var sends: Side = 0;
    var receives: Side = 0;
    for (course.order) |a| for (course.order) |b| if (spent.link[a][b] >= near) {
        sends |= bit(a);
        receives |= bit(b);
        found.appendBounded(.{ .from = a, .to = b }) catch return found.items;
    };
    for (course.order) |rank| {
        if (spent.out[rank] >= near and sends & bit(rank) == 0)
            found.appendBounded(.{ .from = rank, .to = null }) catch return found.items;
        if (spent.in[rank] >= near and receives & bit(rank) == 0)
            found.appendBounded(.{ .from = null, .to = rank }) catch return found.items;
    }
    return found.items;
}

/// Bytes on each link, by the ranks of its ends.
const Loads = struct {
    of_link: [members_max][members_max]f64 = @splat(@splat(0)),

    fn of(volume: *const Volume, course: *const Course) Loads {
        var loads: Loads = .{};
        if (course.way == .ring) {
            var round: [members_max]f64 = undefined;
            loads_of_ring(volume, course, &round);
            for (course.order, 0..) |a, position|
                loads.of_link[a][course.next(position)] = round[position];
            return loads;
        }
        for (course.order) |a| for (course.order) |b| if (a != b) {
            // Contributions to the owners, and results to all.
            const shared = volume.all * (course.part(a) + course.part(b));
            loads.of_link[a][b] = shared + volume.from[a] + volume.to[b] + volume.pairs[a][b];
        };
        return loads;
    }
};

/// Bytes from each position to the next in the ring.
fn loads_of_ring(volume: *const Volume, course: *const Course, loads: *[members_max]f64) void {
    const n: f64 = @floatFromInt(course.order.len);
    var from: f64 = 0;
    var to: f64 = 0;
    for (course.order) |rank| {
        from += volume.from[rank];
        to += volume.to[rank];
    }
    for (course.order, 0..) |rank, position| {
        const sums = volume.all * (n - 1) / n + to - volume.to[rank];
        const results = volume.all * (n - 1) / n + from - volume.from[course.next(position)];
        loads[position] = sums * volume.widening + results;
    }
    if (!volume.has_pairs) return;
    for (course.order, 0..) |a, start| {
        var left: f64 = 0;
        for (course.order) |b| left += volume.pairs[a][b];
        for (0..course.order.len - 1) |step| {
            const position = (start + step) % course.order.len;
            loads[position] += left;
            left -= volume.pairs[a][course.next(position)];
        }
    }
}

/// Seconds that bytes are on their way, without the time to send them.
const Hops = struct {
    longest: f64 = 0,
    /// The seconds from the first member of the longest way to the last.
    way: f64,
    steps: f64,

    fn of(matrix: *const Matrix, course: *const Course, loads: *const Loads, twice: bool) Hops {
        var hops: Hops = .{ .way = 0, .steps = 1 };
        var round: f64 = 0;
        var shortest: f64 = std.math.inf(f64);
        for (course.order, 0..) |a, position| for (course.order) |b| {
            const is_hop = if (course.way == .ring) b == course.next(position) //
            else loads.of_link[a][b] > 0;
            if (a == b or !is_hop) continue;
            const hop = seconds(matrix.rtts_ns[a][b]) / 2;
            hops.longest = @max(hops.longest, hop);
            shortest = @min(shortest, hop);
            round += hop;
        };
        const times: f64 = if (twice) 2 else 1;
        const is_ring = course.way == .ring;
        hops.way = times * if (is_ring) round - shortest else hops.longest;
        hops.steps = times * if (is_ring) @as(f64, @floatFromInt(course.order.len - 1)) else 1;
        return hops;
    }
};

fn time(bytes: f64, rate: u64) f64 {
    return bytes / @as(f64, @floatFromInt(rate));
}

fn seconds(ns: u64) f64 {
    return @as(f64, @floatFromInt(ns)) / std.time.ns_per_s;
}

fn nanoseconds(s: f64) u64 {
    return std.math.lossyCast(u64, @round(s * std.time.ns_per_s));
}
