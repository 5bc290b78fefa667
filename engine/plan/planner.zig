//! planner: chooses the paths of the data of an epoch: the order of the ring, how much each hub
//! owns in a direct schedule, and which of both a call takes. It predicts how long an all_reduce
//! takes along each candidate (figures.zig), and keeps the paths of now unless others are faster by
//! a tenth. protocol/attempt.zig asks for a plan when rates have changed, or a link has broken.
//!
//! A link that was never full may carry more than anybody has measured, because several links of a
//! member share its uplink. It is taken to be as good as its ends allow: a link that is not tried
//! is never measured. If the guess was wrong, the next plan knows better.

const std = @import("std");
const base = @import("base");
const cycle = @import("cycle.zig");
const figures = @import("figures.zig");
const matrix_file = @import("matrix.zig");
const shares = @import("shares.zig");
const Edges = cycle.Edges;
const Matrix = matrix_file.Matrix;
const Volume = @import("volume.zig").Volume;
const lesser = matrix_file.lesser;
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const Order = base.Order;
const Paths = base.Paths;
const Shares = base.Shares;
const limits = base.limits;
const members_max = matrix_file.members_max;

/// The sizes whose times are compared: a small call, one in between, and one of much data.
const sizes = [_]u64{ 4 * limits.KiB, 64 * limits.KiB, large };
const large = 64 * limits.MiB;
/// Calls of so many bytes or more are not small.
const small_bytes_max = 256 * limits.KiB;
/// Other paths are taken if they save more than this part of the time, and more than this time: a
/// gain between members that are near each other is not worth an attempt.
const gain_part = 10;
const gain_ns_min = 2 * std.time.ns_per_ms;
/// Hubs own equally much unless other shares save this part of the time.
const share_gain = 6;
/// Rates within a sixteenth of each other count as equal, because no two measurements agree.
const equal_part = 16;
/// The rate of all links, if none is known: only round trips count then.
const rate_unknown = 125_000_000;

pub const Question = struct {
    alive: *const Mask,
    /// Members of the epoch, including lost ones.
    world_size: usize,
    /// Broken links.
    broken: *const Edges,
    /// Rates and round trips of the links; null in an epoch of too many members.
    matrix: ?*const Matrix = null,
    /// The paths of the present attempt; null: there are none to keep.
    now: ?*const Paths = null,
    /// Becomes the times of the ways that were compared.
    tried: ?*Tried = null,
};

/// How long an all_reduce of 64 MiB takes by each way that was compared; 0: that way is not there.
pub const Tried = struct {
    /// The ring of the ranks, and the ring whose slowest link is fastest.
    ranks_ns: u64 = 0,
    widest_ns: u64 = 0,
    /// The direct schedule, with hubs that own equally much, and with the best shares.
    even_ns: u64 = 0,
    uneven_ns: u64 = 0,
};

/// The paths to take; null: none avoid the broken links. Without memory the paths of now stay.
pub fn paths_of(gpa: Allocator, question: *const Question) ?Paths {
    const plain = plain_of(question) orelse return null;
    const known = question.matrix orelse return plain;
    if (question.alive.count() < 3) return plain;
    return planned_of(gpa, question, known, &plain) catch kept_of(question, &plain) orelse plain;
}

fn planned_of(
    gpa: Allocator,
    question: *const Question,
    known: *const Matrix,
    plain: *const Paths,
) Allocator.Error!Paths {
    const filled = try gpa.create(Matrix); // large for a stack
    defer gpa.destroy(filled);
    if (!fill(filled, known, question.alive, false)) return plain.*;
    const kept = kept_of(question, plain) orelse plain.*;
    const planned: Planned = try .of(gpa, question, filled, &kept);
    return if (is_worth(filled, &kept, &planned.paths)) planned.paths else kept;
}

/// The paths if no rate is known: rank order if that avoids the broken links.
fn plain_of(question: *const Question) ?Paths {
    const alive = question.alive;
    const hubs = hubs_of(question);
    const ranks = cycle.search(alive, question.broken, null);
    if (ranks == null and hubs.is_empty()) return null;
    return .{
        .order = ranks orelse .of(alive),
        .has_ring = ranks != null,
        .hubs = hubs,
        .plan = if (ranks != null) .ring else .direct,
    };
}

/// Whether any paths avoid the broken links.
pub fn has_paths(alive: *const Mask, world_size: usize, broken: *const Edges) bool {
    return plain_of(&.{ .alive = alive, .world_size = world_size, .broken = broken }) != null;
}

/// The ranks that reach all other ranks; none in a group so large that no member has links to all
/// others.
fn hubs_of(question: *const Question) Mask {
    var hubs = Paths.all(question.alive, question.world_size).hubs;
    for (0..question.world_size) |rank| {
        if (!hubs.has(rank)) continue;
        if (question.broken.of[rank].meets(question.alive)) hubs.unset(rank);
    }
    return hubs;
}

/// The paths of now without the members that are lost since; null: they use a broken link, or are
/// of another kind.
fn kept_of(question: *const Question, plain: *const Paths) ?Paths {
    const now = question.now orelse return null;
    if (now.has_ring != plain.has_ring) return null;
    var kept = now.*;
    kept.order = .{};
    for (now.order.slice()) |rank| if (question.alive.has(rank)) kept.order.append(rank);
    kept.hubs = plain.hubs;
    if (kept.order.count != question.alive.count()) return null;
    if (kept.has_ring and cycle.crosses(&kept.order, question.broken)) return null;
    for (&kept.shares.of, 0..) |*share, rank| if (!kept.hubs.has(rank)) {
        share.* = 0;
    };
    if (kept.shares.is_even() != now.shares.is_even()) return null;
    if (kept.plan == .direct and kept.hubs.is_empty()) return null;
    if (kept.small_bytes > 0 and kept.hubs.is_empty()) return null;
    return kept;
}

/// Whether these paths use a broken link.
pub fn uses_broken(used: *const Paths, alive: *const Mask, broken: *const Edges) bool {
    if (used.has_ring and cycle.crosses(&used.order, broken)) return true;
    for (0..limits.peers_max) |rank| {
        if (used.hubs.has(rank) and broken.of[rank].meets(alive)) return true;
    }
    return false;
}

/// Whether the other paths take half of the time, or less, for a call of much data, also if no
/// member can carry more than it has.
pub fn halves(gpa: Allocator, known: *const Matrix, now: *const Paths, other: *const Paths) bool {
    var alive: Mask = .empty;
    for (now.order.slice()) |rank| alive.set(rank);
    const filled = gpa.create(Matrix) catch return false;
    defer gpa.destroy(filled);
    if (!fill(filled, known, &alive, true)) return false;
    return 2 * predicted_ns(filled, other, large) <= predicted_ns(filled, now, large);
}

fn is_worth(matrix: *const Matrix, now: *const Paths, other: *const Paths) bool {
    var gains = false;
    for (sizes) |bytes| {
        const before = predicted_ns(matrix, now, bytes);
        const after = predicted_ns(matrix, other, bytes);
        if (is_gain(before, after)) gains = true;
        if (is_gain(after, before)) return false;
    }
    // Calls with a codec are direct whatever the plan.
    return gains or is_gain(direct_ns(matrix, now), direct_ns(matrix, other));
}

fn is_gain(before: u64, after: u64) bool {
    return after +| before / gain_part < before and before - after > gain_ns_min;
}

/// How long much data takes if a call asks for the direct schedule.
fn direct_ns(matrix: *const Matrix, paths: *const Paths) u64 {
    if (paths.hubs.is_empty()) return 0;
    var direct = paths.*;
    direct.plan = .direct;
    return predicted_ns(matrix, &direct, large);
}

/// How long an all_reduce of `bytes` takes along these paths.
fn predicted_ns(matrix: *const Matrix, paths: *const Paths, bytes: u64) u64 {
    return figures.predicted_ns(matrix, &volume_of(bytes), &course_of(paths, bytes));
}

fn volume_of(bytes: u64) Volume {
    return .{ .all = @floatFromInt(bytes) };
}

fn course_of(paths: *const Paths, bytes: u64) figures.Course {
    const is_small = bytes < paths.small_bytes;
    var owned: Shares = if (is_small) .{} else paths.shares;
    // If shares are even, each hub has one part.
    if (owned.is_even()) for (&owned.of, 0..) |*share, rank| {
        share.* = @intFromBool(paths.hubs.has(rank));
    };
    return .{
        .way = if (is_small or paths.plan == .direct) .direct else .ring,
        .order = paths.order.slice(),
        .shares = owned,
    };
}

/// The times of an all_reduce of 64 MiB along paths, and the links that limit it; for people.
pub const Explained = struct {
    figures: figures.Figures = .{},
    limits: [figures.limits_max]figures.Limit = undefined,
    limit_count: usize = 0,

    /// `commit_ns`: the round trip to the coordinator.
    pub fn of(matrix: *Matrix, paths: *const Paths, commit_ns: u64) Explained {
        var explained: Explained = .{};
        var course = course_of(paths, large);
        course.commit_ns = commit_ns;
        // Hubs also carry the data of members that do not reach each other.
        if (course.way == .direct) for (course.order) |rank|
            if (!paths.hubs.has(rank)) return explained;
        explained.figures = figures.of(matrix, &volume_of(large), &course);
        const found = figures.limits_of(matrix, &volume_of(large), &course, &explained.limits);
        explained.limit_count = found.len;
        return explained;
    }

    pub fn limited_by(explained: *const Explained) []const figures.Limit {
        return explained.limits[0..explained.limit_count];
    }
};

// ---- what is known

/// Writes what each member and link may carry. False: nothing is known.
fn fill(filled: *Matrix, known: *const Matrix, alive: *const Mask, is_cautious: bool) bool {
    filled.* = known.*;
    const members: Order = .of(alive);
    const ends: Ends = .of(known, &members, is_cautious);
    var farthest: u64 = 0;
    for (members.slice()) |a| for (members.slice()) |b| {
        farthest = @max(farthest, known.rtts_ns[a][b]);
    };
    if (ends.fastest == 0 and farthest == 0) return false;
    for (members.slice()) |a| {
        filled.up[a] = ends.up_of(known, a);
        filled.down[a] = ends.down_of(known, a);
        for (members.slice()) |b| if (a != b) {
            filled.rates[a][b] = @max(known.rates[a][b], ends.limit_of(known, a, b));
            const trip = &filled.rtts_ns[a][b];
            if (trip.* == 0) trip.* = known.rtts_ns[b][a];
            if (trip.* == 0) trip.* = farthest;
        };
    }
    return true;
}

fn is_measured(known: *const Matrix) bool {
    for (known.rates) |rates| for (rates) |rate| if (rate > 0) return true;
    return false;
}

/// The measurements of the members at the ends of links.
const Ends = struct {
    /// Members carry no more than they have carried.
    is_cautious: bool,
    members: *const Order,
    /// The highest rate of a link, and of a member's uplink and downlink.
    fastest: u64 = 0,
    up_most: u64 = 0,
    down_most: u64 = 0,
    /// By rank: the sum of the limits of links from, and to, the member.
    limits_from: [members_max]u64 = @splat(0),
    limits_to: [members_max]u64 = @splat(0),
    /// By rank: how many limits of links to the member are known.
    limited: [members_max]u64 = @splat(0),

    fn of(known: *const Matrix, members: *const Order, is_cautious: bool) Ends {
        var ends: Ends = .{ .is_cautious = is_cautious, .members = members };
        for (members.slice()) |a| {
            ends.up_most = @max(ends.up_most, known.up[a]);
            ends.down_most = @max(ends.down_most, known.down[a]);
            for (members.slice()) |b| if (a != b) {
                ends.fastest = @max(ends.fastest, known.rates[a][b]);
                const limit = limit_known(known, a, b);
                ends.limits_from[a] += limit;
                ends.limits_to[b] += limit;
                ends.limited[b] += @intFromBool(limit > 0);
            };
        }
        return ends;
    }

    /// The limit of a link; 0: it is not known, or the link has carried more since.
    fn limit_known(known: *const Matrix, a: u16, b: u16) u64 {
        const limit = known.limits[a][b];
        return if (limit >= known.rates[a][b] / 4 * 3) limit else 0;
    }

    /// The most that the uplink of a member may carry. It may have been full where the links that
    /// were full together were nearly as fast as the member has ever sent.
    fn up_of(ends: *const Ends, known: *const Matrix, a: u16) u64 {
        const up = known.up[a];
        const is_full = known.is_full[a] or ends.limits_from[a] > up / 4 * 3;
        return if (is_full or (ends.is_cautious and up > 0)) up else ends.up_most;
    }

    fn down_of(ends: *const Ends, known: *const Matrix, b: u16) u64 {
        const is_full = ends.is_down_full(known, b) or (ends.is_cautious and known.down[b] > 0);
        return if (is_full) known.down[b] else ends.down_most;
    }

    /// Whether the downlink of a member was full: the links to it that were full together carried
    /// much of the most that the member has received, which bursts make too high.
    fn is_down_full(ends: *const Ends, known: *const Matrix, b: u16) bool {
        return ends.limits_to[b] > known.down[b] / 5 * 2;
    }

    /// The most that a link may carry. A link that was not full by itself, or only where others
    /// filled the downlink of its receiver with it and left it a fair part, may carry what its ends
    /// do; but not if it has carried as little as another link of its sender that is full far below
    /// the uplink.
    fn limit_of(ends: *const Ends, known: *const Matrix, a: u16, b: u16) u64 {
        const limit = limit_known(known, a, b);
        const is_fair = limit *| ends.limited[b] > known.down[b] / 2;
        const is_shared = ends.limited[b] > 1 and is_fair and ends.is_down_full(known, b);
        if (limit > 0 and !is_shared) return limit;
        const up = ends.up_of(known, a);
        const guess = if (up > 0) 0 else if (ends.fastest > 0) ends.fastest else rate_unknown;
        const most = lesser(lesser(up, ends.down_of(known, b)), guess);
        const rate = known.rates[a][b];
        if (rate > 0) for (ends.members.slice()) |other| {
            const alike = limit_known(known, a, other);
            if (alike > 0 and rate <= alike / 4 * 5 and alike < up / 2)
                return @min(most, @max(rate, alike));
        };
        return most;
    }
};

// ---- candidates

const Planned = struct {
    paths: Paths,
    large_ns: u64,

    fn of(
        gpa: Allocator,
        question: *const Question,
        matrix: *const Matrix,
        kept: *const Paths,
    ) Allocator.Error!Planned {
        var best: Planned = .{ .paths = kept.*, .large_ns = predicted_ns(matrix, kept, large) };
        var tried: Tried = .{};
        // As long as no rate is known, much data goes in rank order: round trips alone say little.
        if (is_measured(question.matrix.?)) {
            if (kept.has_ring) best.try_rings(question, matrix, &tried);
            if (!kept.hubs.is_empty()) try best.try_direct(gpa, question, matrix, &tried);
        }
        if (question.tried) |to| to.* = tried;
        best.choose_small(matrix);
        return best;
    }

    fn take_if_faster(best: *Planned, paths: *const Paths, ns: u64) void {
        if (ns >= best.large_ns) return;
        best.* = .{ .paths = paths.*, .large_ns = ns };
    }

    /// Tries the ring of ranks, and the widest.
    fn try_rings(
        best: *Planned,
        question: *const Question,
        matrix: *const Matrix,
        tried: *Tried,
    ) void {
        var paths = best.paths;
        paths.plan = .ring;
        for ([_]?Order{
            cycle.search(question.alive, question.broken, null),
            widest(question.alive, question.broken, matrix),
        }, [_]*u64{ &tried.ranks_ns, &tried.widest_ns }) |order, ns| {
            paths.order = order orelse continue;
            ns.* = predicted_ns(matrix, &paths, large);
            best.take_if_faster(&paths, ns.*);
        }
    }

    fn try_direct(
        best: *Planned,
        gpa: Allocator,
        question: *const Question,
        matrix: *const Matrix,
        tried: *Tried,
    ) Allocator.Error!void {
        var paths = best.paths;
        paths.plan = .direct;
        paths.shares = .{};
        const even_ns = predicted_ns(matrix, &paths, large);
        tried.even_ns = even_ns;
        if (are_members_measured(question)) {
            paths.shares = try shares.of(gpa, matrix, question.alive, &paths.hubs);
            tried.uneven_ns = predicted_ns(matrix, &paths, large);
        }
        // Rates are not known well enough for small differences between hubs.
        const is_even = tried.uneven_ns == 0 or
            tried.uneven_ns > even_ns / share_gain * (share_gain - 1);
        if (is_even) paths.shares = .{};
        best.paths.shares = paths.shares;
        best.take_if_faster(&paths, if (is_even) even_ns else tried.uneven_ns);
    }

    /// Whether the uplink of each member was measured. A hub that was never busy may be fast.
    fn are_members_measured(question: *const Question) bool {
        const members: Order = .of(question.alive);
        for (members.slice()) |rank| if (question.matrix.?.up[rank] == 0) return false;
        return true;
    }

    /// Chooses the calls that are direct: those of fewer bytes than the first size, from 8 KiB on,
    /// that is not faster so.
    fn choose_small(best: *Planned, matrix: *const Matrix) void {
        const paths = &best.paths;
        if (paths.hubs.is_empty()) return;
        paths.small_bytes = 0;
        var direct = paths.*;
        direct.small_bytes = small_bytes_max + 1;
        var bytes = sizes[0];
        const saved = predicted_ns(matrix, paths, bytes) -| predicted_ns(matrix, &direct, bytes);
        if (saved <= gain_ns_min) return;
        while (bytes < small_bytes_max) {
            bytes *= 2;
            if (predicted_ns(matrix, &direct, bytes) >= predicted_ns(matrix, paths, bytes)) break;
        }
        paths.small_bytes = bytes;
    }
};

/// The ring whose slowest link is fastest, and of those with almost as fast links the shortest.
/// Null: none was found.
fn widest(alive: *const Mask, broken: *const Edges, matrix: *const Matrix) ?Order {
    var room: [members_max * members_max]u64 = undefined;
    const rates = distinct_rates(alive, matrix, &room);
    // Invariant: with links of rates[low] and more there is a ring; with those of rates[high] and
    // more there is none.
    var low: usize = 0;
    var high = rates.len;
    if (ring_above(alive, broken, matrix, 0) == null) return null;
    while (high - low > 1) {
        const middle = low + (high - low) / 2;
        if (ring_above(alive, broken, matrix, rates[middle]) == null) high = middle //
        else low = middle;
    }
    const rate = rates[low];
    return ring_above(alive, broken, matrix, rate - rate / equal_part);
}

/// The rates of the links, each once, ascending. No link needs to carry more than the slowest
/// member: all links of a ring carry equally much.
fn distinct_rates(
    alive: *const Mask,
    matrix: *const Matrix,
    room: *[members_max * members_max]u64,
) []u64 {
    const members: Order = .of(alive);
    var most: u64 = std.math.maxInt(u64);
    for (members.slice()) |a| {
        const slowest = lesser(matrix.up[a], matrix.down[a]);
        if (slowest > 0) most = @min(most, slowest);
    }
    var count: usize = 0;
    for (members.slice()) |a| for (members.slice()) |b| if (a != b) {
        room[count] = @min(rate_of(alive, matrix, a, b), most);
        count += 1;
    };
    std.mem.sort(u64, room[0..count], {}, std.sort.asc(u64));
    var kept: usize = 1;
    for (room[1..count]) |rate| if (rate != room[kept - 1]) {
        room[kept] = rate;
        kept += 1;
    };
    return room[0..kept];
}

/// The rate of a link; the slower way, where the search for a ring needs edges both ways.
fn rate_of(alive: *const Mask, matrix: *const Matrix, a: u16, b: u16) u64 {
    const there = matrix.rates[a][b];
    return if (alive.count() > cycle.exact_max) @min(there, matrix.rates[b][a]) else there;
}

/// The shortest ring of links of a rate, and more. Not inlined, because its stack frame is large.
noinline fn ring_above(
    alive: *const Mask,
    broken: *const Edges,
    matrix: *const Matrix,
    rate: u64,
) ?Order {
    var edges = broken.*;
    const members: Order = .of(alive);
    for (members.slice()) |a| for (members.slice()) |b| if (a != b) {
        if (rate_of(alive, matrix, a, b) < rate) edges.add_one_way(a, b);
    };
    return cycle.search(alive, &edges, &matrix.rtts_ns);
}

// ---- tests

const mbit = 125_000;
const ms = std.time.ns_per_ms;

/// A world in which each link was full by itself at 200 Mbit/s, and takes 40 ms there and back.
fn test_even(count: usize) Matrix {
    var matrix: Matrix = .{};
    for (0..count) |a| {
        matrix.up[a] = 200 * mbit;
        matrix.down[a] = 200 * mbit;
        matrix.is_full[a] = true;
        for (0..count) |b| if (a != b) test_link(&matrix, a, b, 200);
        for (0..count) |b| if (a != b) {
            matrix.rtts_ns[a][b] = 40 * ms;
        };
    }
    return matrix;
}

/// A link that was full by itself at this rate.
fn test_link(matrix: *Matrix, a: usize, b: usize, rate: u64) void {
    matrix.rates[a][b] = rate * mbit;
    matrix.limits[a][b] = rate * mbit;
}

fn test_paths(
    matrix: *const Matrix,
    alive: *const Mask,
    broken: *const Edges,
    now: ?*const Paths,
) Paths {
    return paths_of(std.testing.allocator, &.{
        .alive = alive,
        .world_size = alive.count(),
        .broken = broken,
        .matrix = matrix,
        .now = now,
    }).?;
}

test "on even links much data keeps to the ring of ranks, and little goes straight" {
    const alive: Mask = .full(4);
    const paths = test_paths(&test_even(4), &alive, &.{}, null);
    try std.testing.expect(paths.order.is_rank_order() and paths.plan == .ring);
    try std.testing.expectEqual(256 * limits.KiB, paths.small_bytes);
    // Between members that are near each other nothing is worth an attempt.
    var near = test_even(4);
    near.rtts_ns = @splat(@splat(ms / 4));
    const plain: Paths = .all(&alive, 4);
    try std.testing.expect(plain.eql(&test_paths(&near, &alive, &.{}, null)));
}

test "nothing is planned of what nobody has measured" {
    const alive: Mask = .full(4);
    const plain: Paths = .all(&alive, 4);
    try std.testing.expect(plain.eql(&test_paths(&.{}, &alive, &.{}, null)));
    // Round trips alone: small calls go straight, and much data keeps to the ring of ranks.
    var distances: Matrix = .{ .rtts_ns = test_even(4).rtts_ns };
    distances.rtts_ns[0][1] = 300 * ms;
    const paths = test_paths(&distances, &alive, &.{}, null);
    try std.testing.expect(paths.order.is_rank_order() and paths.plan == .ring);
    try std.testing.expect(paths.small_bytes > 0);
}

test "a ring leaves a slow pair out, and a broken link however fast it was" {
    const alive: Mask = .full(4);
    var matrix = test_even(4);
    test_link(&matrix, 1, 2, 20);
    test_link(&matrix, 2, 1, 20);
    const around = test_paths(&matrix, &alive, &.{}, null);
    var slow: Edges = .{};
    slow.add(1, 2);
    try std.testing.expectEqual(.ring, around.plan);
    try std.testing.expect(!cycle.crosses(&around.order, &slow));
    // The slow link is all that is left for a ring, as the others of rank 1 are broken.
    var broken: Edges = .{};
    broken.add(1, 3);
    const forced = test_paths(&matrix, &alive, &broken, &around);
    try std.testing.expect(!uses_broken(&forced, &alive, &broken));
}

test "a thin member owns nothing of a direct schedule, and sends each byte once" {
    const alive: Mask = .full(4);
    var matrix = test_even(4);
    matrix.up[2] = 50 * mbit;
    matrix.down[2] = 50 * mbit;
    for ([_]usize{ 0, 1, 3 }) |other| {
        test_link(&matrix, 2, other, 50);
        test_link(&matrix, other, 2, 50);
    }
    const paths = test_paths(&matrix, &alive, &.{}, null);
    try std.testing.expectEqual(.direct, paths.plan);
    try std.testing.expectEqualSlices(u8, &.{ 1, 1, 0, 1 }, paths.shares.of[0..4]);
}

test "shares stay even as long as nobody knows what a hub can send" {
    const alive: Mask = .full(4);
    var matrix = test_even(4);
    for ([_]usize{ 0, 1, 3 }) |other| {
        test_link(&matrix, 2, other, 50);
        test_link(&matrix, other, 2, 50);
    }
    try std.testing.expect(!test_paths(&matrix, &alive, &.{}, null).shares.is_even());
    matrix.up[0] = 0;
    try std.testing.expect(test_paths(&matrix, &alive, &.{}, null).shares.is_even());
}

test "what an operation waits for is a link, or all links of a member" {
    const Limit = figures.Limit;
    const expectEqualSlices = std.testing.expectEqualSlices;
    const alive: Mask = .full(3);
    var matrix = test_even(3);
    var paths: Paths = .all(&alive, 3);
    test_link(&matrix, 1, 2, 20);
    var explained: Explained = .of(&matrix, &paths, 0);
    try expectEqualSlices(Limit, &.{.{ .from = 1, .to = 2 }}, explained.limited_by());
    // Rank 1 sends no more than this one link carries, which is no other limit.
    matrix.up[1] = 20 * mbit;
    explained = .of(&matrix, &paths, 0);
    try expectEqualSlices(Limit, &.{.{ .from = 1, .to = 2 }}, explained.limited_by());
    const seconds = explained.figures.predicted_ns / std.time.ns_per_s;
    try std.testing.expectEqual(4 * large / 3 / (20 * mbit), seconds);
    // In a direct schedule its links share an uplink, and could each carry more.
    paths.plan = .direct;
    test_link(&matrix, 1, 2, 200);
    explained = .of(&matrix, &paths, 0);
    try expectEqualSlices(Limit, &.{.{ .from = 1, .to = null }}, explained.limited_by());
    matrix.up[1] = 200 * mbit;
    matrix.down[0] = 20 * mbit;
    explained = .of(&matrix, &paths, 0);
    try expectEqualSlices(Limit, &.{.{ .from = null, .to = 0 }}, explained.limited_by());
    matrix.rates[2][0] = 0;
    explained = .of(&matrix, &paths, 0);
    try std.testing.expectEqual(0, explained.limit_count);
    try std.testing.expectEqual(0, explained.figures.predicted_ns);
}

test "paths stay as they are for a gain of less than a tenth, and without lost members" {
    const alive: Mask = .full(5);
    var matrix = test_even(5);
    var now = test_paths(&matrix, &alive, &.{}, null);
    now.order = .{};
    for ([_]u16{ 0, 2, 1, 4, 3 }) |rank| now.order.append(rank);
    for (0..5) |a| for (0..5) |b| {
        matrix.rtts_ns[a][b] += 2 * ms * @max(a, b);
    };
    try std.testing.expect(now.eql(&test_paths(&matrix, &alive, &.{}, &now)));
    var left = alive;
    left.unset(1);
    const fewer = test_paths(&matrix, &left, &.{}, &now);
    try std.testing.expectEqualSlices(u16, &.{ 0, 2, 4, 3 }, fewer.order.slice());
    // A link of the ring is a twentieth as fast as before.
    test_link(&matrix, 2, 4, 10);
    const other = test_paths(&matrix, &left, &.{}, &fewer);
    var slow: Edges = .{};
    slow.add_one_way(2, 4);
    try std.testing.expect(!cycle.crosses(&other.order, &slow));
}

test "a link that shared an uplink may carry more, one that was full by itself not" {
    const alive: Mask = .full(4);
    var matrix = test_even(4);
    // As after calls of a direct schedule: each link has carried a third of its sender's uplink.
    for (0..4) |a| for (0..4) |b| {
        matrix.rates[a][b] /= 3;
        matrix.limits[a][b] = 0;
    };
    test_link(&matrix, 1, 2, 15);
    test_link(&matrix, 2, 1, 15);
    const paths = test_paths(&matrix, &alive, &.{}, null);
    var slow: Edges = .{};
    slow.add(1, 2);
    try std.testing.expectEqual(.ring, paths.plan);
    try std.testing.expect(!cycle.crosses(&paths.order, &slow));
    // Whether others take half of the time is asked with more caution: the uplink of rank 0 has
    // carried a twentieth, and nobody knows whether it can carry more.
    const now: Paths = .all(&alive, 4);
    try std.testing.expect(halves(std.testing.allocator, &matrix, &now, &paths));
    matrix.up[0] = 10 * mbit;
    matrix.is_full[0] = false;
    try std.testing.expect(!halves(std.testing.allocator, &matrix, &now, &paths));
}

test "a link that is full far below its part of a full downlink carries no more" {
    const alive: Mask = .full(4);
    var matrix = test_even(4);
    // Each member receives 150 Mbit/s while all links to it are full, one of them at 12 Mbit/s.
    for (0..4) |a| for (0..4) |b| if (a != b) {
        const is_slow = @min(a, b) == 1 and @max(a, b) == 2;
        test_link(&matrix, a, b, if (is_slow) 12 else 50);
        matrix.down[b] = 150 * mbit;
    };
    const paths = test_paths(&matrix, &alive, &.{}, null);
    var slow: Edges = .{};
    slow.add(1, 2);
    const is_around = paths.plan == .ring and !cycle.crosses(&paths.order, &slow);
    try std.testing.expect(is_around or paths.shares.of[1] < paths.shares.of[0]);
}

test "whatever members report, paths have each member once and use no broken link" {
    // Goal: a liar makes data slow at most. Method: random matrices, with rates of any size, and
    // random broken links.
    const rate_max: u64 = limits.link_rate_told_max;
    const trip_max: u64 = limits.link_rtt_ns_told_max;
    var prng: base.Prng = .init(17);
    for (0..300) |_| {
        const count = 3 + prng.below(8);
        const alive: Mask = .full(count);
        var matrix: Matrix = .{};
        var broken: Edges = .{};
        for (0..count) |a| {
            matrix.up[a] = prng.next() >> @intCast(prng.below(64));
            matrix.down[a] = prng.next() >> @intCast(prng.below(64));
            matrix.is_full[a] = prng.chance(2);
            for (0..count) |b| if (a != b) {
                matrix.rates[a][b] = rate_max >> @intCast(prng.below(60));
                matrix.limits[a][b] = rate_max >> @intCast(prng.below(60));
                matrix.rtts_ns[a][b] = trip_max >> @intCast(prng.below(40));
                if (prng.chance(8)) broken.add(a, b);
            };
            matrix.up[a] = @min(matrix.up[a], rate_max);
            matrix.down[a] = @min(matrix.down[a], rate_max);
        }
        const found = paths_of(std.testing.allocator, &.{
            .alive = &alive,
            .world_size = count,
            .broken = &broken,
            .matrix = &matrix,
        }) orelse {
            try std.testing.expect(!has_paths(&alive, count, &broken));
            continue;
        };
        try std.testing.expect(!uses_broken(&found, &alive, &broken));
        try std.testing.expectEqual(count, found.order.count);
        var left = alive;
        for (found.order.slice()) |rank| left.unset(rank);
        try std.testing.expect(left.is_empty());
        for (found.shares.of, 0..) |share, rank| {
            if (share > 0) try std.testing.expect(found.hubs.has(rank));
        }
        try std.testing.expect(found.shares.sum() <= base.Shares.sum_max);
    }
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
