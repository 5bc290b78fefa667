//! Tests of the codecs: codec_scalar.zig against the promises of docs/reference/CODECS.md, then
//! every CPU level that this machine has against codec_scalar.zig, to the bit: every codec, every
//! length from 0 to 257, all alignments, and the numbers where arithmetic goes wrong first.

const std = @import("std");
const base = @import("base");
const kernels = @import("root.zig");
const scalar = @import("codec_scalar.zig");
const guarded = @import("guarded.zig");
const expect = std.testing.expect;
const expect_equal = std.testing.expectEqual;

const Codec = base.Codec;
const DType = base.DType;
const Buffer = guarded.Buffer;
const expect_bytes = guarded.expect_bytes;
const length_max = guarded.length_max;
const Kind = base.codec.Kind;
const Piece = kernels.Piece;

const float_dtypes = [_]DType{ .f32, .f64, .f16, .bf16 };

/// Every codec there is but none: kinds, blocks, rotation, rounding.
const all_codecs = blk: {
    @setEvalBranchQuota(10_000);
    var list: []const Codec = &.{};
    for (std.enums.values(Kind)[1..]) |kind| {
        for (std.enums.values(base.codec.Block)) |block| for ([_]bool{ false, true }) |rotate| {
            for (std.enums.values(base.codec.Rounding)) |rounding| {
                const codec: Codec = .{
                    .kind = kind,
                    .block = block,
                    .rotate = rotate,
                    .rounding = rounding,
                };
                if (codec.problem() == null) list = list ++ .{codec};
            }
        };
    }
    break :blk list;
};

// ---- The promises of codec_scalar.zig ---------------------------------------------------------

/// `values` through the codec and back.
fn through(codec: Codec, values: []const f32, out: []f32) !void {
    const piece: Piece = .{
        .codec = codec,
        .dtype = .f32,
        .count = values.len,
        .seed = 1,
        .operation = 2,
    };
    var encoded: [8192]u8 = undefined;
    scalar.encode(piece, &encoded, std.mem.sliceAsBytes(values).ptr, null);
    scalar.decode(piece, std.mem.sliceAsBytes(out).ptr, &encoded);
}

fn bare(kind: Kind) Codec {
    return .{ .kind = kind };
}

test "numbers that a code can hold come back as they were" {
    const gpa = std.testing.allocator;
    const out = try gpa.alloc(f32, 300);
    defer gpa.free(out);
    const values = try gpa.alloc(f32, 300);
    defer gpa.free(values);
    const greatest = [_]struct { Kind, i32, f32 }{
        .{ .int8, 127, 0.25 }, .{ .int6, 31, 4 }, .{ .int5, 15, 1 }, .{ .int4, 7, 0x1p-80 },
    };
    for (greatest) |entry| {
        const kind, const limit, const scale = entry;
        for (values, 0..) |*value, index| {
            const number = @as(i32, @intCast(index % @as(usize, @intCast(2 * limit + 1)))) - limit;
            value.* = @as(f32, @floatFromInt(number)) * scale;
        }
        // Each block needs its greatest magnitude, so that the scale is the one meant here.
        const most = @as(f32, @floatFromInt(limit)) * scale;
        for ([_]usize{ 5, 133, 299 }) |index| values[index] = most;
        try through(bare(kind), values, out);
        try std.testing.expectEqualSlices(f32, values, out);
    }
    const exponents = [_]f32{ 64, -64, 32, -16, 8, 4, -2, 1, 0 };
    for (values, 0..) |*value, index| value.* = exponents[index % exponents.len] * 0x1p9;
    try through(bare(.e3m0), values, out);
    try std.testing.expectEqualSlices(f32, values, out);
    const floats = [_]f32{ 448, -416, 1.125, 0.0625, -0x1p-6, 0x1p-9, -7 * 0x1p-9, 0, 240 };
    for (values, 0..) |*value, index| value.* = floats[index % floats.len] * 0x1p-30;
    try through(bare(.fp8_e4m3), values, out);
    try std.testing.expectEqualSlices(f32, values, out);
}

test "fp8 rounds to the nearest, as a search among all its values finds it" {
    var prng: std.Random.DefaultPrng = .init(3);
    var values: [128]f32 = undefined;
    var out: [128]f32 = undefined;
    for (0..50) |_| {
        for (&values) |*value| {
            const exponent: f32 = @floatFromInt(prng.random().intRangeAtMost(i32, -10, 7));
            value.* = (prng.random().float(f32) * 2 - 1) * std.math.exp2(exponent);
        }
        values[7] = 448;
        try through(bare(.fp8_e4m3), &values, &out);
        for (values, out) |value, got| {
            var best: f32 = std.math.inf(f32);
            for (0..127) |code| {
                const exponent: i32 = @intCast(code >> 3);
                const mantissa: f32 = @floatFromInt(code & 7);
                const magnitude = if (exponent == 0)
                    std.math.ldexp(mantissa, -9)
                else
                    std.math.ldexp(mantissa + 8, exponent - 10);
                best = @min(best, @abs(@abs(value) - magnitude));
            }
            try expect_equal(best, @abs(value - got));
        }
    }
}

test "the error of an integer code is at most half a step, with rounding at random one step" {
    var prng: std.Random.DefaultPrng = .init(4);
    var values: [256]f32 = undefined;
    var out: [256]f32 = undefined;
    for ([_]struct { Kind, f32 }{
        .{ .int8, 127 },         .{ .int6, 31 },             .{ .int5, 15 }, .{ .int4, 7 },
        .{ .min_max_u8, 127.5 }, .{ .zero_point_u8, 127.5 },
    }) |entry| {
        for (&values) |*value| value.* = prng.random().float(f32) * 2 - 1;
        values[3] = 1;
        values[9] = -1;
        var codec = bare(entry[0]);
        try through(codec, &values, &out);
        // A scale has 8 bits.
        for (values, out) |x, y| try expect(@abs(x - y) <= 0.5 / entry[1] * 1.01 + 0x1p-8);
        if (codec.kind.family() == .range) continue;
        codec.rounding = .stochastic;
        try through(codec, &values, &out);
        for (values, out) |x, y| try expect(@abs(x - y) <= 1 / entry[1] * 1.02);
    }
}

/// Some elements of great magnitude. Turn by turn: all the greatest, one of them beside ones, with
/// signs in turn, and of all magnitudes to there.
fn fill_great(values: []f32, turn: usize) void {
    const most = std.math.floatMax(f32);
    var prng: std.Random.DefaultPrng = .init(turn);
    for (values, 0..) |*value, index| value.* = switch (turn) {
        0 => most,
        1 => if (index == 77) -most else 1,
        2 => if (index % 2 == 0) most else -most,
        3 => if (index % 3 == 0) 0x1p127 else -0x1.3p121,
        else => (prng.random().float(f32) * 2 - 1) * most,
    };
}

/// The result of great numbers, if the same numbers that are 2^40 times smaller make `small`.
fn great_of(small: f32) f32 {
    const quarter = small * 0x1p38;
    const most = std.math.floatMax(f32) / 4;
    return if (std.math.isInf(quarter)) quarter else std.math.clamp(quarter, -most, most) * 4;
}

test "great numbers come through rotated blocks as small ones do, and averages of them" {
    // Method: numbers up to the greatest f32, and the same 2^40 times smaller: a power of two
    // changes no digit. A result beyond the greatest f32 is the greatest f32.
    const peers = 3;
    const count = 512;
    for (all_codecs) |codec| for (0..5) |turn| {
        if (!codec.rotate) continue;
        const piece: Piece = .{
            .codec = codec,
            .dtype = .f32,
            .count = count,
            .seed = 1,
            .operation = turn,
            .shift = 2,
        };
        var inputs: [peers][count]f32 = undefined;
        var out: [2][count]f32 = undefined;
        var averages: [2][count]f32 = undefined;
        var kept: [2][count]f32 = undefined;
        for (&inputs, 0..) |*input, peer| fill_great(input, (turn + peer / 2) % 5);
        for (&out, &averages, &kept, 0..) |*alone, *average, *own_average, size| {
            if (size == 1) for (&inputs) |*input| for (input) |*value| {
                value.* *= 0x1p-40;
            };
            try through(codec, &inputs[0], alone);
            var encoded: [peers + 1][1100]u8 = undefined;
            for (inputs, encoded[0..peers]) |input, *bytes| {
                scalar.encode(piece, bytes, std.mem.asBytes(&input), null);
            }
            const others = [_][*]const u8{ &encoded[1], &encoded[2] };
            const own = std.mem.asBytes(&inputs[0]);
            scalar.reduce_encode(piece, &encoded[peers], own, 0, &others, null, peers);
            scalar.decode(piece, std.mem.asBytes(average), &encoded[peers]);
            const to = std.mem.asBytes(own_average);
            scalar.reduce_decode(piece, to, own, 0, &others, null, peers);
        }
        for (&[_]*const [2][count]f32{ &out, &averages }) |both| {
            for (both[0], both[1]) |great, small| {
                try expect(std.math.isFinite(great));
                try expect_equal(great_of(small), great);
            }
        }
        for (kept[0], kept[1]) |great, small| try expect_equal(great_of(small), great);
    };
}

test "a sum far beyond the greatest f32 is not finite in rotated blocks" {
    const values: [256]f32 = @splat(0x1p127);
    for (all_codecs) |codec| {
        if (!codec.rotate) continue;
        const piece: Piece = .{
            .codec = codec,
            .dtype = .f32,
            .count = values.len,
            .seed = 1,
            .operation = 2,
        };
        var encoded: [2][600]u8 = undefined;
        for (0..12) |number| {
            const from = encoded[number % 2][0..];
            const to = encoded[(number + 1) % 2][0..];
            const own = std.mem.asBytes(&values);
            if (number == 0) scalar.encode(piece, to, own, null);
            if (number > 0) scalar.accumulate_encode(piece, to, from, own, null, 1);
        }
        var out: [256]f32 = undefined;
        scalar.decode(piece, std.mem.asBytes(&out), &encoded[0]);
        var finite: usize = 0;
        for (out) |value| finite += @intFromBool(std.math.isFinite(value));
        try expect(finite < values.len / 2);
    }
}

test "a NaN, an infinity or 2^127 makes its own block NaN, and no other" {
    const bad = [_]f32{
        std.math.nan(f32), std.math.inf(f32), -std.math.inf(f32), 0x1p127, -std.math.floatMax(f32),
    };
    for (all_codecs) |codec| {
        if (codec.kind.family() != .block) continue;
        const block = codec.block.elements();
        // Rotated blocks have room for every finite number.
        const places = [_]usize{ 0, block - 1, block, 2 * block + 7 };
        for (bad[0..if (codec.rotate) 3 else bad.len]) |number| for (places) |place| {
            var values: [3 * 256]f32 = @splat(1);
            var out: [3 * 256]f32 = undefined;
            values[place] = number;
            try through(codec, values[0 .. 3 * block], out[0 .. 3 * block]);
            for (out[0 .. 3 * block], 0..) |value, index| {
                const bits: u32 = @bitCast(value);
                const spoilt = index / block == place / block;
                try expect_equal(spoilt, bits == 0x7fc0_0000);
                if (!spoilt) try expect(@abs(value - 1) < 2);
            }
        };
    }
    // 16-bit floats stand for themselves.
    for ([_]Kind{ .bf16, .f16 }) |kind| {
        var out: [3]f32 = undefined;
        try through(bare(kind), &.{ 1, std.math.nan(f32), -std.math.inf(f32) }, &out);
        try expect_equal(1, out[0]);
        try expect_equal(0x7fc0_0000, @as(u32, @bitCast(out[1])));
        try expect_equal(-std.math.inf(f32), out[2]);
    }
    // A range spans its piece.
    for ([_]Kind{ .min_max_u8, .zero_point_u8 }) |kind| {
        var out: [3]f32 = undefined;
        try through(bare(kind), &.{ 1, std.math.nan(f32), 2 }, &out);
        for (out) |value| try expect_equal(0x7fc0_0000, @as(u32, @bitCast(value)));
    }
}

test "blocks of zeros and of the smallest numbers decode to zeros" {
    const tiny = std.math.floatTrueMin(f32);
    for (all_codecs) |codec| {
        for ([_]f32{ 0, -0.0, tiny, -0x1p-127, 0x1p-126 }) |number| {
            const values: [256]f32 = @splat(number);
            var out: [256]f32 = undefined;
            try through(codec, &values, &out);
            for (out) |value| switch (codec.kind) {
                .bf16, .f16, .min_max_u8 => try expect(@abs(value - number) <= @abs(number)),
                else => try expect_equal(0, value),
            };
        }
    }
}

test "random rounding is right on average, and the same at every asking" {
    var values: [256]f32 = @splat(0.3);
    values[0] = 1;
    values[128] = 1;
    for (all_codecs) |codec| {
        if (codec.rounding != .stochastic or codec.rotate) continue;
        var mean: f64 = 0;
        const rounds = 400;
        for (0..rounds) |round| {
            const piece: Piece = .{
                .codec = codec,
                .dtype = .f32,
                .count = values.len,
                .seed = 5,
                .operation = round,
                .origin = 6,
            };
            var encoded: [1024]u8 = undefined;
            var again: [1024]u8 = undefined;
            var out: [256]f32 = undefined;
            scalar.encode(piece, &encoded, std.mem.asBytes(&values), null);
            scalar.encode(piece, &again, std.mem.asBytes(&values), null);
            const size = piece.bytes();
            try std.testing.expectEqualSlices(u8, encoded[0..size], again[0..size]);
            scalar.decode(piece, std.mem.asBytes(&out), &encoded);
            for (out[64..128]) |value| mean += value;
        }
        mean /= 64 * rounds;
        // A step is at most 0.25 wide here; 25,600 draws err by a 160th of their deviation.
        const step: f64 = if (codec.kind == .e3m0) 0.25 else 1.0 / 7.0;
        try expect(@abs(mean - 0.3) < step / 160.0 * 4);
    }
}

test "rotation spreads what sticks out, and signs and noise depend on seed and operation" {
    var values: [128]f32 = undefined;
    var prng: std.Random.DefaultPrng = .init(7);
    for (&values) |*value| value.* = prng.random().floatNorm(f32);
    values[17] = 60;
    var plain: [128]f32 = undefined;
    var rotated: [128]f32 = undefined;
    try through(bare(.int4), &values, &plain);
    try through(.of(.int4), &values, &rotated);
    try expect(error_of(&values, &rotated) * 2 < error_of(&values, &plain));

    const codec: Codec = .{ .kind = .int4, .rotate = true, .rounding = .stochastic };
    const one: Piece = .{ .codec = codec, .dtype = .f32, .count = 128, .seed = 1, .operation = 1 };
    var encoded: [4][66]u8 = undefined;
    var pieces: [4]Piece = @splat(one);
    pieces[1].seed = 2;
    pieces[2].operation = 2;
    pieces[3].origin = 1;
    for (pieces, &encoded) |piece, *bytes| {
        scalar.encode(piece, bytes, std.mem.asBytes(&values), null);
    }
    for (1..4) |other| try expect(!std.mem.eql(u8, &encoded[0], &encoded[other]));
}

/// Relative L2 error.
fn error_of(wanted: []const f32, got: []const f32) f64 {
    var lost: f64 = 0;
    var all: f64 = 0;
    for (wanted, got) |x, y| {
        lost += (@as(f64, x) - y) * (@as(f64, x) - y);
        all += @as(f64, x) * x;
    }
    return @sqrt(lost / all);
}

test "sums of an owner and of a ring are near the exact ones, and an average is divided once" {
    const peers = 8;
    const count = 512;
    var prng: std.Random.DefaultPrng = .init(8);
    var inputs: [peers][count]f32 = undefined;
    var exact: [count]f32 = @splat(0);
    for (&inputs) |*input| for (input, &exact) |*value, *sum| {
        value.* = prng.random().floatNorm(f32);
        sum.* += value.* / peers;
    };
    for ([_]struct { Kind, f64 }{
        .{ .bf16, 1e-2 },       .{ .f16, 2e-3 },           .{ .int8, 2e-2 },     .{ .int6, 8e-2 },
        .{ .int5, 1.6e-1 },     .{ .int4, 4e-1 },          .{ .fp8_e4m3, 8e-2 }, .{ .e3m0, 6e-1 },
        .{ .min_max_u8, 3e-2 }, .{ .zero_point_u8, 3e-2 },
    }) |entry| {
        const codec: Codec = .of(entry[0]);
        const piece: Piece = .{
            .codec = codec,
            .dtype = .f32,
            .count = count,
            .seed = 1,
            .operation = 1,
        };
        var encoded: [peers][1100]u8 = undefined;
        var pointers: [peers][*]const u8 = undefined;
        for (inputs, &encoded, &pointers) |input, *bytes, *pointer| {
            scalar.encode(piece, bytes, std.mem.asBytes(&input), null);
            pointer.* = bytes;
        }
        var out: [1100]u8 = undefined;
        var result: [count]f32 = undefined;
        const own = std.mem.asBytes(&inputs[0]);
        scalar.reduce_encode(piece, &out, own, 0, pointers[1..], null, peers);
        scalar.decode(piece, std.mem.asBytes(&result), &out);
        const encoded_error = error_of(&exact, &result);
        try expect(encoded_error < entry[1]);
        // A peer that keeps the sum does not encode it once more.
        scalar.reduce_decode(piece, std.mem.asBytes(&result), own, 0, pointers[1..], null, peers);
        try expect(error_of(&exact, &result) < encoded_error);

        @memcpy(&out, &encoded[0]);
        for (inputs[1..], 2..) |input, number| {
            const divisor: u32 = if (number == peers) peers else 1;
            scalar.accumulate_encode(piece, &out, &out, std.mem.asBytes(&input), null, divisor);
        }
        scalar.decode(piece, std.mem.asBytes(&result), &out);
        try expect(error_of(&exact, &result) < entry[1] * 2);
    }
}

test "with a residual nothing is lost for good" {
    // Method: encode the same numbers again and again, each time with what was lost before: the
    // mean of what is decoded must approach them as 1 / rounds.
    const count = 256;
    var values: [count]f32 = undefined;
    var prng: std.Random.DefaultPrng = .init(9);
    for (&values) |*value| value.* = prng.random().floatNorm(f32);
    for ([_]Kind{ .bf16, .int8, .int4, .e3m0, .min_max_u8 }) |kind| {
        var rest: [count]f32 = @splat(0);
        var mean: [count]f32 = @splat(0);
        const rounds = 64;
        for (0..rounds) |round| {
            const piece: Piece = .{
                .codec = .of(kind),
                .dtype = .f32,
                .count = count,
                .seed = 1,
                .operation = round,
            };
            var encoded: [600]u8 = undefined;
            var out: [count]f32 = undefined;
            const both = std.mem.asBytes(&rest);
            const residual: kernels.Residual = .{ .in = both, .out = both };
            scalar.encode(piece, &encoded, std.mem.asBytes(&values), residual);
            scalar.decode(piece, std.mem.asBytes(&out), &encoded);
            for (&mean, out) |*sum, value| sum.* += value / rounds;
        }
        var once: [count]f32 = undefined;
        try through(.of(kind), &values, &once);
        try expect(error_of(&values, &mean) * 10 < error_of(&values, &once) + 1e-4);
    }
}

// ---- Every level against the scalar code ------------------------------------------------------

const pool_count = 1024;

/// Elements of one dtype: moderate numbers of many sizes, and now and then a special one.
const Pool = struct {
    bytes: [pool_count * 8]u8,
    dtype: DType,

    /// About one in `specials` elements is special; 0 for none.
    fn init(dtype: DType, seed: u64, specials: usize) Pool {
        var pool: Pool = .{ .bytes = undefined, .dtype = dtype };
        var prng: std.Random.DefaultPrng = .init(seed);
        const random = prng.random();
        for (0..pool_count) |index| {
            const size: f32 = @floatFromInt(random.intRangeAtMost(i32, -12, 12));
            const moderate = (random.float(f32) - 0.5) * std.math.exp2(size);
            const is_special = specials > 0 and random.uintLessThan(usize, specials) == 0;
            const value = if (is_special) special(random.int(usize)) else moderate;
            pool.put(index, value);
        }
        return pool;
    }

    fn put(pool: *Pool, index: usize, value: f32) void {
        const at = pool.bytes[index * pool.dtype.size() ..];
        switch (pool.dtype) {
            .f32 => @memcpy(at[0..4], std.mem.asBytes(&value)),
            .f64 => @memcpy(at[0..8], std.mem.asBytes(&(@as(f64, value) * 1.0000000001))),
            .f16 => @memcpy(at[0..2], std.mem.asBytes(&@as(f16, @floatCast(value)))),
            .bf16 => @memcpy(at[0..2], std.mem.asBytes(&value)[2..4]),
            else => unreachable,
        }
    }

    fn from(pool: *const Pool, index: usize, count: usize) []const u8 {
        const size = pool.dtype.size();
        const start = index % (pool_count - length_max);
        return pool.bytes[start * size ..][0 .. count * size];
    }
};

fn special(choice: usize) f32 {
    const list = [_]u32{
        0x0000_0000, 0x0000_0001, 0x007f_ffff, 0x0080_0000, 0x3f80_0000, 0x3f7f_ffff, 0x7eff_ffff,
        0x7f00_0000, 0x7f7f_ffff, 0x7f80_0000, 0x7fc0_0000, 0x7fa0_1234, 0x477f_e000, 0x477f_f000,
        0x4780_0000, 0x3880_0000, 0x3300_0000, 0x0880_0000, 0x0900_0000, 0x4b00_0001,
    };
    const sign: u32 = if (choice & 1 == 1) 1 << 31 else 0;
    return @bitCast(list[(choice >> 1) % list.len] | sign);
}

/// All functions with one piece on every level that this machine has, against the scalar code.
const Case = struct {
    piece: Piece,
    offset: usize,
    pool: *const Pool,

    const inputs_max = 3;
    const Encoded = [length_max * 4 + 1024]u8;

    fn run(case: Case) !void {
        const piece = case.piece;
        const own = case.pool.from(case.offset * 7, piece.count);
        var inputs: [inputs_max]Encoded = undefined;
        var pointers: [inputs_max][*]const u8 = undefined;
        for (&inputs, &pointers, 1..) |*input, *pointer, number| {
            const other = case.pool.from(case.offset * 7 + number * 101, piece.count);
            scalar.encode(piece, input, other.ptr, null);
            pointer.* = input;
        }
        var rest: [length_max]f32 = undefined;
        for (&rest, 0..) |*value, index| value.* = @as(f32, @floatFromInt(index)) * 0x1p-9 - 0.3;

        const before = kernels.level_name();
        defer _ = kernels.force(before);
        var wanted: Wanted = undefined;
        wanted.fill(piece, own, &pointers, &rest);
        for (kernels.level_names, 0..) |name, index| {
            if (!kernels.tested(index)) continue;
            try expect(kernels.force(name));
            errdefer std.debug.print("failed: level {s} {any} offset {d}\n", .{
                name, piece, case.offset,
            });
            try case.check(&wanted, own, &inputs, &rest);
        }
    }

    /// The results of the scalar code.
    const Wanted = struct {
        encoded: Encoded,
        with_residual: Encoded,
        lost: [length_max]f32,
        decoded: [length_max * 8]u8,
        accumulated: Encoded,
        reduced: [inputs_max + 1]Encoded,
        /// Decoded sums: of the first input alone, then of all with own at each place.
        kept: [inputs_max + 2]Decoded,

        const Decoded = [length_max * 8]u8;

        fn fill(
            wanted: *Wanted,
            piece: Piece,
            own: []const u8,
            inputs: []const [*]const u8,
            rest: *const [length_max]f32,
        ) void {
            const lost: kernels.Residual = .{
                .in = std.mem.asBytes(rest),
                .out = std.mem.asBytes(&wanted.lost),
            };
            scalar.encode(piece, &wanted.encoded, own.ptr, null);
            scalar.encode(piece, &wanted.with_residual, own.ptr, lost);
            scalar.decode(piece, &wanted.decoded, &wanted.encoded);
            scalar.accumulate_encode(piece, &wanted.accumulated, inputs[0], own.ptr, null, 1);
            for (&wanted.reduced, 0..) |*out, position| {
                scalar.reduce_encode(piece, out, own.ptr, position, inputs, null, 3);
            }
            scalar.reduce_decode(piece, &wanted.kept[0], own.ptr, 1, inputs[0..1], null, 2);
            for (wanted.kept[1..], divided, 0..) |*out, by, position| {
                scalar.reduce_decode(piece, out, own.ptr, position, inputs, null, by);
            }
        }

        const divided = [inputs_max + 1]u32{ 1, 4, 1, 3 };
    };

    fn check(
        case: Case,
        wanted: *const Wanted,
        own: []const u8,
        inputs: *const [inputs_max]Encoded,
        rest: *const [length_max]f32,
    ) !void {
        const piece = case.piece;
        const size = piece.bytes();
        var own_buffer: Buffer = .{};
        var out: Buffer = .{};
        const out_offset = case.offset * 13 % 64;
        const own_bytes = own_buffer.put(case.offset, own);

        kernels.encode(piece, out.clear(out_offset), own_bytes, null);
        try out.check(out_offset, wanted.encoded[0..size]);
        const to = out.clear(out_offset);
        kernels.decode(piece, to, &wanted.encoded);
        try out.check(out_offset, wanted.decoded[0 .. piece.count * piece.dtype.size()]);

        var in_buffers: [inputs_max]Buffer = @splat(.{});
        var pointers: [inputs_max][*]const u8 = undefined;
        var last: [*]u8 = undefined;
        const last_offset = (case.offset + 2 * 11) % 64;
        for (&in_buffers, inputs, &pointers, 0..) |*buffer, input, *pointer, number| {
            last = buffer.put((case.offset + number * 11) % 64, input[0..size]);
            pointer.* = last;
        }
        kernels.accumulate_encode(piece, out.clear(out_offset), pointers[0], own_bytes, null, 1);
        try out.check(out_offset, wanted.accumulated[0..size]);
        for (wanted.reduced, 0..) |reduced, position| {
            const at = out.clear(out_offset);
            kernels.reduce_encode(piece, at, own_bytes, position, &pointers, null, 3);
            try out.check(out_offset, reduced[0..size]);
        }
        const wide = piece.count * piece.dtype.size();
        const first = pointers[0..1];
        kernels.reduce_decode(piece, out.clear(out_offset), own_bytes, 1, first, null, 2);
        try out.check(out_offset, wanted.kept[0][0..wide]);
        for (wanted.kept[1..], Wanted.divided, 0..) |*kept, by, position| {
            const at = out.clear(out_offset);
            kernels.reduce_decode(piece, at, own_bytes, position, &pointers, null, by);
            try out.check(out_offset, kept[0..wide]);
        }
        // In place of own, and of the last input.
        const copy = own_buffer.put(case.offset, own);
        const by = Wanted.divided[case.offset % Wanted.divided.len];
        const place = case.offset % Wanted.divided.len;
        kernels.reduce_decode(piece, copy, copy, place, &pointers, null, by);
        try own_buffer.check(case.offset, wanted.kept[1 + place][0..wide]);
        _ = own_buffer.put(case.offset, own);
        const turn = case.offset % (inputs_max + 1);
        kernels.reduce_encode(piece, last, own_bytes, turn, &pointers, null, 3);
        try in_buffers[2].check(last_offset, wanted.reduced[turn][0..size]);
        try case.check_residual(wanted, own_bytes, rest);
    }

    fn check_residual(
        case: Case,
        wanted: *const Wanted,
        own: [*]const u8,
        rest: *const [length_max]f32,
    ) !void {
        const piece = case.piece;
        var out: Buffer = .{};
        var rest_buffer: Buffer = .{};
        const offset = case.offset * 5 % 64;
        const bytes = std.mem.asBytes(rest)[0 .. piece.count * 4];
        const rest_bytes = rest_buffer.put(offset, bytes);
        const residual: kernels.Residual = .{ .in = rest_bytes, .out = rest_bytes };
        kernels.encode(piece, out.clear(0), own, residual);
        try out.check(0, wanted.with_residual[0..piece.bytes()]);
        try rest_buffer.check(offset, std.mem.asBytes(&wanted.lost)[0..bytes.len]);

        // The residual of an encoded sum.
        var added: Encoded = undefined;
        var scratch: [length_max]f32 = undefined;
        const former: kernels.Residual = .{
            .in = std.mem.asBytes(rest),
            .out = std.mem.asBytes(&scratch),
        };
        const encoded = &wanted.encoded;
        scalar.accumulate_encode(piece, &added, encoded, own, former, 2);
        _ = rest_buffer.put(offset, bytes);
        kernels.accumulate_encode(piece, out.clear(0), encoded, own, residual, 2);
        try out.check(0, added[0..piece.bytes()]);
        try rest_buffer.check(offset, std.mem.asBytes(&scratch)[0..bytes.len]);

        // A sum that is not encoded loses nothing.
        var sum: [length_max * 8]u8 = undefined;
        @memset(&scratch, 1);
        scalar.reduce_decode(piece, &sum, own, 0, &.{encoded}, former, 1);
        _ = rest_buffer.put(offset, bytes);
        kernels.reduce_decode(piece, out.clear(0), own, 0, &.{encoded}, residual, 1);
        try out.check(0, sum[0 .. piece.count * piece.dtype.size()]);
        try rest_buffer.check(offset, std.mem.asBytes(&scratch)[0..bytes.len]);
        for (scratch[0..piece.count]) |value| try expect_equal(0, value);
    }
};

fn piece_of(codec: Codec, dtype: DType, count: usize, number: u64) Piece {
    return .{
        .codec = codec,
        .dtype = dtype,
        .count = count,
        .seed = 0x1234_5678_9abc_def0 +% number,
        .operation = number * 3,
        .origin = @truncate(number),
        // Also where the random words of a piece change their key.
        .first = if (number % 3 == 0) (1 << 34) - 256 else number * 256 + codec.granule(),
    };
}

test "every level gives the bytes of the scalar code for every codec and dtype" {
    for (float_dtypes) |dtype| for ([_]usize{ 0, 5 }) |specials| {
        const pool: Pool = .init(dtype, 11 + specials, specials * 100);
        for (all_codecs, 0..) |codec, number| {
            for ([_]usize{ 97, length_max }, 0..) |count, turn| {
                const piece = piece_of(codec, dtype, count, number * 2 + turn);
                try (Case{ .piece = piece, .offset = (number * 5) % 64, .pool = &pool }).run();
            }
        }
    };
}

test "every level gives the bytes of the scalar code at every length from 0 to 257" {
    const pool: Pool = .init(.f32, 12, 700);
    for (0..length_max + 1) |count| {
        // Each length meets a few codecs, each codec many lengths.
        for (0..6) |turn| {
            const codec = all_codecs[(count * 6 + turn) * 7 % all_codecs.len];
            const piece = piece_of(codec, .f32, count, count);
            try (Case{ .piece = piece, .offset = count % 64, .pool = &pool }).run();
        }
    }
}

test "every level gives the bytes of the scalar code at every alignment" {
    for (float_dtypes) |dtype| {
        const pool: Pool = .init(dtype, 13, 0);
        for (0..64) |offset| for (0..4) |turn| {
            const codec = all_codecs[(offset * 4 + turn) * 5 % all_codecs.len];
            const piece = piece_of(codec, dtype, 161, offset);
            try (Case{ .piece = piece, .offset = offset, .pool = &pool }).run();
        };
    }
}

test "every level gives the bytes of the scalar code where most elements are special" {
    const pool: Pool = .init(.f32, 14, 2);
    for (all_codecs, 0..) |codec, number| {
        for ([_]usize{ 1, 7, 33, length_max }) |count| {
            const piece = piece_of(codec, .f32, count, number);
            try (Case{ .piece = piece, .offset = number % 64, .pool = &pool }).run();
        }
    }
}

test "every level gives the bytes of the scalar code where numbers are great" {
    var pool: Pool = .init(.f32, 16, 0);
    var values: [pool_count]f32 = undefined;
    fill_great(&values, 4);
    fill_great(values[300..600], 0);
    for (values, 0..) |value, index| pool.put(index, value);
    for (all_codecs, 0..) |codec, number| {
        const piece = piece_of(codec, .f32, length_max, number);
        for ([_]u6{ 0, 2 }) |shift| {
            var shifted = piece;
            shifted.shift = shift;
            try (Case{ .piece = shifted, .offset = number % 64, .pool = &pool }).run();
        }
    }
}

test "a long piece is the pieces it can be cut into, but for the place of its scales" {
    // Goal: the tiles of codec.zig, many of them, change nothing. Method: a piece of many tiles,
    // and the same elements one block at a time.
    const gpa = std.testing.allocator;
    const count = 3 * 2048 + 128 + 77;
    const values = try gpa.alloc(f32, count);
    defer gpa.free(values);
    var prng: std.Random.DefaultPrng = .init(15);
    for (values) |*value| value.* = prng.random().floatNorm(f32);
    const encoded = try gpa.alloc(u8, 4 * count);
    defer gpa.free(encoded);
    const decoded = try gpa.alloc(f32, count);
    defer gpa.free(decoded);
    for (all_codecs) |codec| {
        if (codec.kind.family() == .range) continue;
        const whole = piece_of(codec, .f32, count, 1);
        kernels.encode(whole, encoded.ptr, std.mem.sliceAsBytes(values).ptr, null);
        kernels.decode(whole, std.mem.sliceAsBytes(decoded).ptr, encoded.ptr);
        var begin: usize = 0;
        while (begin < count) : (begin += 256) {
            var part = whole;
            part.count = @min(256, count - begin);
            part.first += begin;
            var bytes: [1024]u8 = undefined;
            var out: [256]f32 = undefined;
            scalar.encode(part, &bytes, std.mem.sliceAsBytes(values[begin..]).ptr, null);
            scalar.decode(part, std.mem.asBytes(&out), &bytes);
            const got = decoded[begin..][0..part.count];
            try std.testing.expectEqualSlices(f32, out[0..part.count], got);
        }
    }
}

test "whatever bytes a stranger sends, every level makes of them what the scalar code does" {
    // Goal: no scale, code or range, and no sum of such, is more than the arithmetic can take.
    // Method: random bytes as what came in; every other time with scales that are moderate, so that
    // codes decide and not NaN.
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    var prng: std.Random.DefaultPrng = .init(77);
    for (0..4) |round| for (float_dtypes) |dtype| for (all_codecs) |codec| {
        const piece = piece_of(codec, dtype, length_max - 3 * round, round);
        var own: [length_max * 8]u8 = undefined;
        prng.random().bytes(&own);
        var encoded: [3][length_max * 4 + 1024]u8 = undefined;
        for (&encoded) |*bytes| {
            prng.random().bytes(bytes);
            if (round % 2 == 0 or codec.kind.family() != .block) continue;
            for (0..codec.blocks(piece.count)) |block| {
                const scale = 0x3f00 + prng.random().uintLessThan(u16, 0x200); // 0.5 to 8
                std.mem.writeInt(u16, bytes[2 * block ..][0..2], scale, .little);
            }
        }
        const inputs = [_][*]const u8{ &encoded[0], &encoded[1], &encoded[2] };
        var wanted: [4][length_max * 8]u8 = @splat(@splat(0));
        scalar.decode(piece, &wanted[0], inputs[0]);
        scalar.accumulate_encode(piece, &wanted[1], inputs[0], &own, null, 2);
        scalar.reduce_encode(piece, &wanted[2], &own, 1, &inputs, null, 4);
        scalar.reduce_decode(piece, &wanted[3], &own, 1, &inputs, null, 4);
        for (kernels.level_names, 0..) |name, index| {
            if (!kernels.tested(index)) continue;
            try expect(kernels.force(name));
            errdefer std.debug.print("failed: level {s} {any}\n", .{ name, piece });
            var got: [4][length_max * 8]u8 = @splat(@splat(0));
            kernels.decode(piece, &got[0], inputs[0]);
            kernels.accumulate_encode(piece, &got[1], inputs[0], &own, null, 2);
            kernels.reduce_encode(piece, &got[2], &own, 1, &inputs, null, 4);
            kernels.reduce_decode(piece, &got[3], &own, 1, &inputs, null, 4);
            for (&wanted, &got) |*a, *b| try std.testing.expectEqualSlices(u8, a, b);
        }
    };
}
