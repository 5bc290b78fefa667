//! Figures by hand: small matrices whose bounds and predictions are easily worked out (figures.zig
//! and matrix.zig of engine/plan, volumes of a ledger), and random ones, in which no way is faster
//! than the bound. Rates are in bytes per second; an operation of the tests has 1200 bytes.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const figures = plan.figures;
const Course = figures.Course;
const Ledger = @import("ledger.zig").Ledger;
const Matrix = plan.Matrix;
const Partition = @import("partition.zig").Partition;
const Roles = @import("roles.zig").Roles;
const Shard = @import("partition.zig").Shard;
const Side = plan.matrix.Side;
const Volume = plan.Volume;
const OpKind = wire.control.OpKind;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const s = std.time.ns_per_s;
const ms = std.time.ns_per_ms;
const bytes = 1200;

const Case = struct {
    kind: OpKind,
    members: u16 = 4,
    root: u16 = 0,
    dtype: base.DType = .u8,
    op: base.ReduceOp = .sum,
    codec: base.Codec = .none,
    alive: ?Side = null,
};

/// The bytes that such an operation has to move, of 1200 elements in all. A message goes from rank
/// 1 to rank 2.
fn volume_of(case: Case, way: anytype) !Volume {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    const roles: Roles = .{
        .kind = case.kind,
        .world_size = case.members,
        .rank = 0,
        .root = case.root,
        .pair = .{ .src = 1, .dst = 2 },
    };
    const descriptor: wire.control.Descriptor = .{
        .kind = case.kind,
        .dtype = case.dtype,
        .op = case.op,
        .recovery = .raise,
        .codec = case.codec,
        .count = bytes,
        .safe_points = 0,
    };
    const shards = try arena.allocator().alloc(Shard, roles.parts());
    for (shards) |*shard| shard.* = .{
        .elements = bytes / roles.parts(),
        .dtype = case.dtype,
        .partial_bytes = @intCast(if (case.kind.reduces())
            base.dtype.partial_size(case.op, case.dtype)
        else
            case.dtype.size()),
    };
    const partition: Partition = .init(.{
        .shards = shards,
        .world_size = case.members,
        .chunk_bytes_max = 64,
        .window_bytes = 1 << 20,
        .codec = case.codec,
    });
    const ledger: Ledger = try .init(arena.allocator(), &descriptor, partition, roles, 1);
    const alive = case.alive orelse all(case.members);
    return ledger.volume(alive, way == .ring);
}

fn all(members: u16) Side {
    return (@as(Side, 1) << @intCast(members)) - 1;
}

fn figures_of(matrix: *Matrix, case: Case, way: @FieldType(Course, "way")) !figures.Figures {
    const order = [_]u16{ 0, 1, 2, 3, 4, 5, 6, 7 };
    const pair = [_]u16{ 1, 2 };
    const volume = try volume_of(case, way);
    return figures.of(matrix, &volume, &.{
        .way = way,
        .order = if (way == .message) &pair else order[0..case.members],
        .is_rooted = case.kind.has_root(),
    });
}

/// Rates of 100 everywhere, and no way takes time.
fn even() Matrix {
    return .{ .up = @splat(100), .down = @splat(100), .rates = @splat(@splat(100)) };
}

test "on even links each collective takes as long as its bytes, and no schedule is faster" {
    const Expected = struct { Case, @FieldType(Course, "way"), f64, f64 };
    // All shards together have 1200 bytes: in an all_to_all of four, one of them has 75.
    for ([_]Expected{
        .{ .{ .kind = .all_reduce }, .ring, 18, 18 },
        // Links of a direct schedule are busy for eight ninths of the time.
        .{ .{ .kind = .all_reduce }, .direct, 20.25, 18 },
        .{ .{ .kind = .all_reduce, .members = 2 }, .ring, 12, 12 },
        .{ .{ .kind = .broadcast, .root = 2 }, .ring, 12, 12 },
        .{ .{ .kind = .broadcast, .root = 2 }, .direct, 40.5, 12 },
        .{ .{ .kind = .reduce, .root = 1 }, .ring, 12, 12 },
        .{ .{ .kind = .reduce, .root = 1 }, .direct, 40.5, 12 },
        .{ .{ .kind = .reduce_scatter }, .ring, 9, 9 },
        .{ .{ .kind = .all_gather }, .ring, 9, 9 },
        .{ .{ .kind = .all_gather }, .direct, 10.125, 9 },
        .{ .{ .kind = .scatter }, .direct, 10.125, 9 },
        .{ .{ .kind = .scatter, .root = 3 }, .ring, 9, 9 },
        .{ .{ .kind = .gather }, .direct, 10.125, 9 },
        .{ .{ .kind = .all_to_all }, .direct, 2.53125, 2.25 },
        .{ .{ .kind = .all_to_all }, .ring, 4.5, 2.25 },
        .{ .{ .kind = .send_recv }, .message, 12, 12 },
    }) |each| {
        const case, const way, const predicted, const bound = each;
        var matrix = even();
        const found = try figures_of(&matrix, case, way);
        errdefer std.debug.print("{t} {t}\n", .{ case.kind, way });
        try expectEqual(way, found.way);
        try expectEqual(predicted, in_seconds(found.predicted_ns));
        try expectEqual(bound, in_seconds(found.bound_ns));
    }
}

fn in_seconds(ns: u64) f64 {
    return @as(f64, @floatFromInt(ns)) / s;
}

test "a cluster behind a thin link is bound by that, and a ring that crosses it is as slow" {
    // Ranks 0 and 1 are near each other, 2 and 3 too; each link across carries 5.
    var matrix = even();
    for ([_]u16{ 0, 1 }) |a| for ([_]u16{ 2, 3 }) |b| {
        matrix.rates[a][b] = 5;
        matrix.rates[b][a] = 5;
    };
    const ring = try figures_of(&matrix, .{ .kind = .all_reduce }, .ring);
    // Four links of 5 carry the size; the ring has one of them each way.
    try expectEqual(60 * s, ring.bound_ns);
    try expectEqual(360 * s, ring.predicted_ns);
    // Straight to the owners, each link has a half of 1200.
    const direct = try figures_of(&matrix, .{ .kind = .all_reduce }, .direct);
    try expectEqual(60 * s, direct.bound_ns);
    try expectEqual(135 * s, direct.predicted_ns);
}

test "a thin member is bound by its own rate, and all wait for it" {
    var matrix = even();
    matrix.up[3] = 10;
    // It must send what it has once, though all schedules of today have it send more.
    const found = try figures_of(&matrix, .{ .kind = .all_reduce }, .ring);
    try expectEqual(120 * s, found.bound_ns);
    try expectEqual(180 * s, found.predicted_ns);
    const root = try figures_of(&matrix, .{ .kind = .broadcast, .root = 3 }, .ring);
    try expectEqual(120 * s, root.bound_ns);
    // Nobody needs to have it from rank 3.
    const other = try figures_of(&matrix, .{ .kind = .broadcast, .root = 0 }, .ring);
    try expectEqual(12 * s, other.bound_ns);
}

test "hops and the commit take their time" {
    var matrix = even();
    matrix.rtts_ns = @splat(@splat(20 * ms));
    matrix.rtts_ns[1][2] = 60 * ms;
    const order = [_]u16{ 0, 1, 2, 3 };
    const Expected = struct { OpKind, @FieldType(Course, "way"), u64 };
    for ([_]Expected{
        // All begin at once: the last bytes have one more hop, of 30 ms at most.
        .{ .all_reduce, .ring, 18_030 * ms },
        .{ .all_reduce, .direct, 20_280 * ms },
        // One begins: 10 + 30 + 10 ms from the first to the last.
        .{ .broadcast, .ring, 12_050 * ms },
        // Straight from the root, whose hops take 10 ms.
        .{ .broadcast, .direct, 40_510 * ms },
    }) |each| {
        const kind, const way, const expected = each;
        const volume = try volume_of(.{ .kind = kind }, way);
        const found = figures.of(&matrix, &volume, &.{
            .way = way,
            .order = &order,
            .is_rooted = kind.has_root(),
            .commit_ns = 90 * ms,
        });
        try expectEqual(expected + 90 * ms, found.predicted_ns);
    }
    // With little to move, six steps wait for each other, and each sends a sixth.
    var little: Volume = .{ .all = 0.012 };
    const found = figures.of(&matrix, &little, &.{ .way = .ring, .order = &order });
    try expectEqual(100 * ms + 30_000, found.predicted_ns);
    // A message waits for the receiver's call.
    const message = try figures_of(&matrix, .{ .kind = .send_recv }, .message);
    try expectEqual(12_060 * ms, message.predicted_ns);
}

test "what is not known gives no figure" {
    var nothing: Matrix = .{};
    for (std.enums.values(OpKind)) |kind| {
        const way: @FieldType(Course, "way") = if (kind == .send_recv) .message else .ring;
        if (kind == .sync) continue;
        const found = try figures_of(&nothing, .{ .kind = kind }, way);
        try expectEqual(.{ 0, 0 }, .{ found.predicted_ns, found.bound_ns });
    }
    // A link that the way does not take need not be known, and one that it takes must be.
    var matrix = even();
    matrix.rates[0][2] = 0;
    const case: Case = .{ .kind = .all_reduce };
    try expectEqual(18 * s, (try figures_of(&matrix, case, .ring)).predicted_ns);
    try expectEqual(0, (try figures_of(&matrix, case, .direct)).predicted_ns);
    matrix.rates[0][1] = 0;
    const found = try figures_of(&matrix, case, .ring);
    try expectEqual(0, found.predicted_ns);
    try expectEqual(18 * s, found.bound_ns);
    // One member whose own rate is not known: what the others must send is.
    matrix.up[1] = 0;
    matrix.down[1] = 0;
    matrix.cuts.alive = 0;
    try expectEqual(12 * s, (try figures_of(&matrix, case, .ring)).bound_ns);
    // Nothing moves.
    var empty: Volume = .{};
    const barrier = figures.of(&matrix, &empty, &.{ .way = .ring, .order = &.{ 0, 3 } });
    try expectEqual(.{ 0, 0 }, .{ barrier.predicted_ns, barrier.bound_ns });
}

test "sums that are wider, and codecs, count as they travel" {
    var matrix = even();
    // Averages of bytes go round as sums of eight bytes each, and straight as they are.
    const wide: Case = .{ .kind = .all_reduce, .op = .avg };
    const ring = try figures_of(&matrix, wide, .ring);
    try expectEqual(.{ 81 * s, 18 * s }, .{ ring.predicted_ns, ring.bound_ns });
    const direct = try figures_of(&matrix, wide, .direct);
    try expectEqual(.{ 20_250 * ms, 18 * s }, .{ direct.predicted_ns, direct.bound_ns });
    const coded: Case = .{ .kind = .all_reduce, .dtype = .f32, .codec = .of(.int8) };
    const found = try figures_of(&matrix, coded, .direct);
    try expect(found.bound_ns > 18 * s and found.bound_ns < 30 * s); // 72 s without
    try expectEqual(found.bound_ns / 8 * 9, found.predicted_ns);
}

test "shards of members that are lost are not moved" {
    const order = [_]u16{ 0, 1, 3 };
    for ([_]struct { OpKind, u64 }{
        .{ .all_gather, 6_000 }, // three shards of 300, two of them from each to the next
        .{ .scatter, 6_000 }, // the root has shards for two
        .{ .all_to_all, 2_250 }, // 75 for each, two hops to the farther one: 225 on each link
    }) |each| {
        const kind, const expected = each;
        var matrix = even();
        const volume = try volume_of(.{ .kind = kind, .alive = 0b1011 }, .ring);
        const found = figures.of(&matrix, &volume, &.{ .way = .ring, .order = &order });
        try expectEqual(expected * ms, found.predicted_ns);
    }
}

test "no way is faster than the bound, whatever the rates" {
    const Way = @FieldType(Course, "way");
    var prng: base.Prng = .init(7);
    for (0..2000) |_| {
        var matrix: Matrix = .{};
        for (0..8) |a| {
            matrix.up[a] = 1 + prng.below(1000);
            matrix.down[a] = 1 + prng.below(1000);
            for (0..8) |b| matrix.rates[a][b] = 1 + prng.below(1000);
        }
        const kinds = std.enums.values(OpKind);
        const kind = kinds[prng.below(kinds.len)];
        if (kind == .barrier or kind == .sync) continue;
        const members: u16 = @intCast(3 + prng.below(6));
        const ways = [_]Way{ .ring, .direct };
        const way = if (kind == .send_recv) .message else ways[prng.below(2)];
        const case: Case = .{ .kind = kind, .members = members, .root = @intCast(prng.below(3)) };
        const found = try figures_of(&matrix, case, way);
        errdefer std.debug.print("{t} {t} of {d}: {any}\n", .{ kind, way, members, found });
        try expect(found.bound_ns > 0);
        try expect(found.predicted_ns + 1 >= found.bound_ns);
    }
}
