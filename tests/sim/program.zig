//! Program: the calls of the members of a group, drawn from the seed, the epoch and the number of
//! safe points since the epoch began. All members of an epoch agree on these, newcomers included,
//! so all run the same program without talking. users.zig draws what one peer does differently on
//! purpose (a fault of a user).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const session_layer = @import("session");
const syncs = @import("syncs.zig");
const Prng = base.Prng;
const all_to_all_ranks_max = session_layer.all_to_all_ranks_max;

pub const OpKind = wire.control.OpKind;
pub const Recovery = wire.control.Recovery;

/// The names of an operation that all members agree on: its place in the program.
pub const Key = struct {
    group: u8,
    epoch: u64,
    /// Safe points since the epoch began.
    round: u32,
    index: u32,

    pub fn hash(key: Key) u64 {
        var z: u64 = key.epoch *% 0x9e3779b97f4a7c15;
        z ^= (@as(
            u64,
            key.round,
        ) << 24 | @as(u64, key.index) << 8 | key.group) *% 0xbf58476d1ce4e5b9;
        return z ^ z >> 31;
    }
};

pub const Step = struct {
    key: Key,
    kind: OpKind,
    count: u32,
    recovery: Recovery,
    tag: u64,
    /// Position among the members of the epoch.
    root_rank: u32,
    /// For a message.
    pair: ?base.Pair = null,
    in_place: bool,
    /// Ranks have different shards.
    uneven: bool = false,
    /// As so many arrays that lie one behind the other; some are empty.
    arrays: u32 = 1,
    /// An average instead of a sum; of i32 instead of u64, whose partial sums travel wider than
    /// they are called.
    average: bool,
    /// Bits instead of sums: band, bor or bxor of u64.
    bits: ?base.ReduceOp = null,
    /// Floats instead of integers, with a codec or without (floats.zig).
    floats: ?Floats = null,
    plan: base.Plan,
    /// Steps of one batch are called together, each peer in an order of its own.
    batch: u32,
    /// Nothing is called after this batch before all of it has finished.
    waits: bool,

    /// Whether the member with this rank calls it.
    pub fn has(step: *const Step, rank: u16) bool {
        return if (step.pair) |pair| pair.has(rank) else true;
    }

    pub fn op(step: *const Step) base.ReduceOp {
        return if (step.average) .avg else step.bits orelse .sum;
    }

    pub fn dtype(step: *const Step) base.DType {
        if (step.floats) |floats| return floats.dtype;
        return if (step.average) .i32 else .u64;
    }

    pub const arrays_max = 3;

    pub fn may_have_arrays(kind: OpKind) bool {
        return !kind.has_shards() and kind != .barrier and kind != .sync;
    }

    /// Elements of the arrays.
    pub fn split(step: *const Step) [arrays_max]u64 {
        var sizes: [arrays_max]u64 = @splat(0);
        var left: u64 = step.count;
        for (sizes[1..step.arrays], 1..) |*size, index| {
            size.* = if (step.key.index % 3 == index) 0 else left / 3;
            left -= size.*;
        }
        sizes[0] = left;
        return sizes;
    }

    pub fn codec(step: *const Step) base.Codec {
        return if (step.floats) |floats| floats.codec else .none;
    }
};

pub const Floats = struct {
    dtype: base.DType = .f32,
    codec: base.Codec = .none,
    /// Peers that can carry on what they lose, of sums.
    feedback: bool = false,
};

/// Elements of an operation on floats.
pub const floats_max = 400;

pub const steps_max = 8;

pub const Round = struct {
    steps: [steps_max]Step = undefined,
    count: u32 = 0,
    /// The next safe point waits until everything has finished.
    drains: bool = true,

    pub fn slice(round: *const Round) []const Step {
        return round.steps[0..round.count];
    }
};

pub const Options = struct {
    seed: u64,
    group: u8,
    epoch: u64,
    round: u32,
    world_size: u32,
    count_max: u32,
    tags: u8,
};

pub fn draw(options: Options) Round {
    const place: Key = .{
        .group = options.group,
        .epoch = options.epoch,
        .round = options.round,
        .index = 0,
    };
    var prng = Prng.init(options.seed ^ place.hash());
    var round: Round = .{ .drains = !prng.chance(4) };
    const wanted: u32 = @intCast(prng.between(1, 5));
    var batch: u32 = 0;
    while (round.count < wanted) : (batch += 1) {
        const first_tag = prng.below(options.tags);
        const size: u32 = @intCast(@min(prng.between(1, options.tags), wanted - round.count));
        const waits = prng.chance(2);
        const synced = if (prng.chance(3)) prng.below(size) else size;
        for (0..size) |offset| {
            var key = place;
            key.index = round.count;
            round.steps[round.count] = draw_step(&prng, &options, key);
            const step = &round.steps[round.count];
            // Tags need not be small or dense.
            const tag = (first_tag + offset) % options.tags * 1_000_003;
            step.tag = if (step.pair) |pair| pair.tag(tag) else tag;
            step.bits = draw_bits(&options, step);
            if (offset == synced) step.* = sync_step(&options, key);
            step.batch = batch;
            step.waits = waits;
            round.count += 1;
        }
    }
    return round;
}

/// One state to a group, of the same size all the time.
pub fn state_bytes(seed: u64, group: u8) u32 {
    var prng = Prng.init(seed ^ group ^ 0x5757);
    return @intCast(prng.between(8, syncs.bytes_max));
}

fn sync_step(options: *const Options, key: Key) Step {
    return .{
        .key = key,
        .kind = .sync,
        .count = state_bytes(options.seed, options.group),
        .recovery = .resume_chunks,
        .tag = base.limits.state_tags_first,
        .root_rank = 0,
        .in_place = true,
        .average = false,
        .plan = .auto,
        .batch = 0,
        .waits = false,
    };
}

fn draw_step(prng: *Prng, options: *const Options, key: Key) Step {
    const kind: OpKind = switch (prng.below(16)) {
        0 => .barrier,
        1 => .broadcast,
        2 => .reduce,
        3 => .reduce_scatter,
        4 => .all_gather,
        5 => .scatter,
        6 => .gather,
        // With many members it has so many shards that little else would happen.
        7 => if (options.world_size > 16 and (!prng.chance(8) or
            options.world_size > all_to_all_ranks_max(false))) .all_gather else .all_to_all,
        8, 9, 10 => if (options.world_size > 1) .send_recv else .all_reduce,
        else => .all_reduce,
    };
    const floats = if (kind.has_codecs() and prng.chance(4)) draw_floats(prng) else null;
    const count_max = count_max_of(options, floats);
    var count: u32 = switch (prng.below(8)) {
        0 => 0,
        1 => 1,
        2 => count_max,
        else => @intCast(prng.between(1, count_max)),
    };
    // Together they are about as many.
    const shards = if (kind == .all_to_all)
        options.world_size * options.world_size
    else if (kind.has_shards()) options.world_size else 1;
    count = (count + shards - 1) / shards;
    return .{
        .key = key,
        .floats = floats,
        .kind = kind,
        .count = if (kind == .barrier) 0 else count,
        .recovery = switch (prng.below(8)) {
            0 => if (kind == .send_recv) .restart else .complete,
            1, 2 => .restart,
            3 => if (prng.chance(2)) .raise else .restart,
            else => .resume_chunks,
        },
        .tag = 0,
        .root_rank = if (kind.has_root()) @intCast(prng.below(options.world_size)) else 0,
        .pair = if (kind == .send_recv) draw_pair(prng, options.world_size) else null,
        .in_place = prng.chance(2),
        .uneven = kind.has_shards() and prng.chance(2) and
            (kind != .all_to_all or options.world_size <= all_to_all_ranks_max(true)),
        .arrays = if (Step.may_have_arrays(kind) and prng.chance(4))
            @intCast(prng.between(2, Step.arrays_max))
        else
            1,
        .average = kind.reduces() and prng.chance(8),
        .plan = if (prng.chance(2)) .ring else .direct,
        .batch = 0,
        .waits = false,
    };
}

/// From numbers of its own: what else a seed draws does not depend on it.
fn draw_bits(options: *const Options, step: *const Step) ?base.ReduceOp {
    if (!step.kind.reduces() or step.average or step.floats != null) return null;
    var prng = Prng.init(options.seed ^ step.key.hash() ^ 0xb175);
    const ops = [_]base.ReduceOp{ .band, .bor, .bxor };
    return if (prng.chance(4)) ops[prng.below(ops.len)] else null;
}

fn draw_pair(prng: *Prng, world_size: u32) base.Pair {
    const src = prng.below(world_size);
    const distance = prng.between(1, world_size - 1);
    return .{ .src = @intCast(src), .dst = @intCast((src + distance) % world_size) };
}

fn draw_floats(prng: *Prng) Floats {
    const kinds = std.enums.values(base.codec.Kind);
    const dtypes = [_]base.DType{ .f32, .f32, .f32, .f64, .f16, .bf16 };
    const blocks = [_]base.codec.Block{ .b32, .b32, .b32, .b64, .b128, .b256 };
    var codec: base.Codec = .{ .kind = kinds[prng.below(kinds.len)] };
    if (codec.kind.family() == .block) {
        codec.block = blocks[prng.below(blocks.len)];
        codec.rotate = prng.chance(2);
    }
    codec.rounding = .stochastic;
    if (codec.problem() != null or !prng.chance(3)) codec.rounding = .nearest;
    return .{
        .dtype = dtypes[prng.below(dtypes.len)],
        .codec = codec,
        .feedback = codec.kind != .none and !prng.chance(3),
    };
}

/// With a codec a piece is a block at least: as many of them as there are of other elements.
fn count_max_of(options: *const Options, maybe: ?Floats) u32 {
    const floats = maybe orelse return options.count_max;
    const granule = if (floats.codec.kind == .none) 1 else floats.codec.granule();
    const blocks: u32 = @intCast(options.count_max * granule / 8);
    return std.math.clamp(blocks, options.count_max, floats_max);
}

test "a program is a function of its place, and tags of a batch differ" {
    for (0..200) |seed| {
        const options: Options = .{
            .seed = seed,
            .group = 0,
            .epoch = 3,
            .round = 2,
            .world_size = 4,
            .count_max = 64,
            .tags = 3,
        };
        const a = draw(options);
        const b = draw(options);
        try std.testing.expectEqual(a.count, b.count);
        for (a.slice(), b.slice()) |x, y| try std.testing.expectEqual(x, y);
        for (a.slice()) |x| for (a.slice()) |y| {
            if (x.key.index == y.key.index or x.batch != y.batch) continue;
            try std.testing.expect(x.tag != y.tag);
        };
    }
}
