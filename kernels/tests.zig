//! Tests of the kernels: scalar.zig against the numbers that the documents promise, then every CPU
//! level that this machine has against scalar.zig, to the bit; levels.zig then names those that it
//! lacks. Other architectures: `make test-aarch64`.

const std = @import("std");
const base = @import("base");
const kernels = @import("root.zig");
const scalar = @import("scalar.zig");
const guarded = @import("guarded.zig");
const vector = @import("vector.zig");
const xxh3 = @import("xxh3.zig");
const expect = std.testing.expect;
const expect_equal = std.testing.expectEqual;

const DType = base.DType;
const Buffer = guarded.Buffer;
const expect_bytes = guarded.expect_bytes;
const length_max = guarded.length_max;
const ReduceOp = base.ReduceOp;
const dtypes = std.enums.values(DType);
const ops = std.enums.values(ReduceOp);

// ---- The promises of scalar.zig ---------------------------------------------------------------

fn reduced(comptime T: type, op: ReduceOp, dtype: DType, inputs: []const T) T {
    var pointers: [8][*]const u8 = undefined;
    for (inputs, pointers[0..inputs.len]) |*input, *pointer| pointer.* = std.mem.asBytes(input);
    var result: T = undefined;
    const out = std.mem.asBytes(&result);
    scalar.reduce_k(op, dtype, out, pointers[0..inputs.len], @intCast(inputs.len), 1);
    return result;
}

test "integer sums and products wrap, averages do not" {
    try expect_equal(@as(i8, -128), reduced(i8, .sum, .i8, &.{ 127, 1 }));
    try expect_equal(@as(u8, 0), reduced(u8, .sum, .u8, &.{ 255, 1 }));
    const greatest: i64 = std.math.maxInt(i64);
    try expect_equal(-greatest - 1, reduced(i64, .sum, .i64, &.{ greatest, 1 }));
    try expect_equal(@as(i16, 0), reduced(i16, .prod, .i16, &.{ 256, 256 }));
    try expect_equal(@as(u32, 1), reduced(u32, .prod, .u32, &.{ 0xffff_ffff, 0xffff_ffff }));
    try expect_equal(@as(i8, 127), reduced(i8, .avg, .i8, &.{ 127, 127, 127 }));
    try expect_equal(@as(u8, 255), reduced(u8, .avg, .u8, &.{ 255, 255 }));
    const least: i32 = std.math.minInt(i32);
    try expect_equal(least, reduced(i32, .avg, .i32, &.{ least, least }));
    const half: u64 = 1 << 63;
    try expect_equal(half, reduced(u64, .avg, .u64, &.{ half, half }));
    try expect_equal(@as(i64, 1 << 62), reduced(i64, .avg, .i64, &.{ greatest, 1 }));
}

test "an integer average truncates toward zero" {
    try expect_equal(@as(i32, 1), reduced(i32, .avg, .i32, &.{ 1, 2 }));
    try expect_equal(@as(i32, -1), reduced(i32, .avg, .i32, &.{ -1, -2 }));
    try expect_equal(@as(i8, 0), reduced(i8, .avg, .i8, &.{ -1, 0, 0 }));
    try expect_equal(@as(i64, -3), reduced(i64, .avg, .i64, &.{ -5, -2, -4 }));
}

test "and, or and exclusive or are of the bits, whether they have a sign or not" {
    try expect_equal(@as(u8, 0b1000), reduced(u8, .band, .u8, &.{ 0b1100, 0b1010, 0b1001 }));
    try expect_equal(@as(u8, 0b1111), reduced(u8, .bor, .u8, &.{ 0b1100, 0b1010, 0b1001 }));
    try expect_equal(@as(u8, 0b1111), reduced(u8, .bxor, .u8, &.{ 0b1100, 0b1010, 0b1001 }));
    try expect_equal(@as(i16, 0x70), reduced(i16, .band, .i16, &.{ -1, 0x70 }));
    try expect_equal(@as(i32, -1), reduced(i32, .bor, .i32, &.{ -1, 5 }));
    try expect_equal(@as(i64, -6), reduced(i64, .bxor, .i64, &.{ -1, 5 }));
    const highest: u64 = 1 << 63;
    try expect_equal(highest, reduced(u64, .band, .u64, &.{ highest | 1, highest | 2 }));
    try expect_equal(@as(u32, 7), reduced(u32, .bxor, .u32, &.{ 7, 9, 9 }));
}

test "the bits of floats have no kernel on any level" {
    for ([_]ReduceOp{ .band, .bor, .bxor }) |op| for (dtypes) |dtype| {
        try expect_equal(!dtype.is_float(), kernels.has_kernel(op, dtype));
    };
}

test "minimum and maximum: a NaN wins and -0 is below +0" {
    const nan = std.math.nan(f32);
    for ([_]ReduceOp{ .min, .max }) |op| {
        try expect_equal(0x7fc0_0000, @as(u32, @bitCast(reduced(f32, op, .f32, &.{ nan, 1 }))));
        try expect_equal(0x7fc0_0000, @as(u32, @bitCast(reduced(f32, op, .f32, &.{ -1, -nan }))));
    }
    try expect(std.math.signbit(reduced(f64, .min, .f64, &.{ 0.0, -0.0 })));
    try expect(std.math.signbit(reduced(f64, .min, .f64, &.{ -0.0, 0.0 })));
    try expect(!std.math.signbit(reduced(f64, .max, .f64, &.{ 0.0, -0.0 })));
    try expect(!std.math.signbit(reduced(f64, .max, .f64, &.{ -0.0, 0.0 })));
    try expect_equal(-std.math.inf(f16), reduced(f16, .min, .f16, &.{ 1, -std.math.inf(f16) }));
}

test "any NaN in a result is the positive quiet NaN" {
    const signalling: f32 = @bitCast(@as(u32, 0xffa0_1234));
    var result: f32 = undefined;
    const out = std.mem.asBytes(&result);
    scalar.finish_one(.sum, .f32, out, std.mem.asBytes(&signalling), 1);
    try expect_equal(0x7fc0_0000, @as(u32, @bitCast(result)));
    const inf = std.math.inf(f64);
    const bits: u64 = @bitCast(reduced(f64, .sum, .f64, &.{ inf, -inf }));
    try expect_equal(0x7ff8_0000_0000_0000, bits);
    try expect_equal(0x7fc0, reduced(u16, .prod, .bf16, &.{ 0x7f80, 0x8000 })); // inf * -0
    // On its way into the first hop a NaN keeps its bits.
    scalar.first(.sum, .f32, out, std.mem.asBytes(&signalling), 1);
    try expect_equal(0xffa0_1234, @as(u32, @bitCast(result)));
}

test "16-bit floats are added in f32 and rounded once" {
    // 2048 + 1 + 1: rounding each sum to f16 would lose both ones.
    try expect_equal(@as(f16, 2050), reduced(f16, .sum, .f16, &.{ 2048, 1, 1 }));
    try expect_equal(0x4381, reduced(u16, .sum, .bf16, &.{ 0x4380, 0x3f80, 0x3f80 })); // 256+1+1
    // The sum overflows f16, the average does not.
    try expect_equal(@as(f16, 65504), reduced(f16, .avg, .f16, &.{ 65504, 65504 }));
    try expect_equal(std.math.inf(f16), reduced(f16, .sum, .f16, &.{ 65504, 65504 }));
    // Subnormals are kept.
    const tiny: f16 = @bitCast(@as(u16, 1));
    try expect_equal(@as(u16, 2), @as(u16, @bitCast(reduced(f16, .sum, .f16, &.{ tiny, tiny }))));
    try expect_equal(3, reduced(u16, .sum, .bf16, &.{ 1, 2 }));
}

test "bf16 rounds to the nearest, ties to even" {
    // Every product of two bf16 is exact in f32, so the only rounding is the one under test.
    var prng: std.Random.DefaultPrng = .init(1);
    for (0..20_000) |_| {
        const x = prng.random().int(u16) & 0xbfff; // below 2: the product stays finite
        const y = prng.random().int(u16) & 0xbfff;
        const exact = @as(f64, f32_of_bf16(x)) * f32_of_bf16(y);
        const got = reduced(u16, .prod, .bf16, &.{ x, y });
        const error_got = @abs(f32_of_bf16(got) - exact);
        // A neighbour is closer to zero or farther from it by one in the bits.
        for ([_]u16{ got +% 1, got -% 1 }) |other| {
            if ((other ^ got) & 0x8000 != 0 or other & 0x7fff >= 0x7f80) continue;
            const error_other = @abs(f32_of_bf16(other) - exact);
            const tie_to_even = error_other == error_got and got & 1 == 0;
            if (error_got >= error_other and !tie_to_even) {
                std.debug.print("{x} * {x} gave {x}, {x} is nearer\n", .{ x, y, got, other });
                return error.TestUnexpectedResult;
            }
        }
    }
}

fn f32_of_bf16(bits: u16) f32 {
    return @bitCast(@as(u32, bits) << 16);
}

// ---- Conversions by integers (used where the CPU cannot convert f16) --------------------------

test "f16 to f32 by integers is exact for all 65,536 values" {
    for (0..4096) |block| {
        var bits: @Vector(16, u16) = undefined;
        inline for (0..16) |lane| bits[lane] = @intCast(block * 16 + lane);
        const wide = vector.f32_from_f16_by_integers(16, bits);
        inline for (0..16) |lane| {
            const half: f16 = @bitCast(bits[lane]);
            if (std.math.isNan(half)) {
                try expect(std.math.isNan(wide[lane]));
            } else {
                const wanted: u32 = @bitCast(@as(f32, half));
                try expect_equal(wanted, @as(u32, @bitCast(wide[lane])));
            }
        }
    }
}

test "f32 to f16 by integers rounds like the language, at and around every boundary" {
    // For every f16: itself, the midpoint to its neighbour, and up to 2 f32 steps beside both.
    for (0..0x7c01) |number| {
        const low: f32 = @as(f16, @bitCast(@as(u16, @intCast(number))));
        const step: f32 = @as(f16, @bitCast(@as(u16, @intCast(@min(number + 1, 0x7bff)))));
        const middle = if (number >= 0x7bff) 65520 else (low + step) / 2;
        var values: @Vector(16, f32) = @splat(0);
        inline for (0..5) |i| {
            const distance = @as(u32, i) -% 2;
            values[2 * i] = @bitCast(@as(u32, @bitCast(low)) +% distance);
            values[2 * i + 1] = -@as(f32, @bitCast(@as(u32, @bitCast(middle)) +% distance));
        }
        values[10] = std.math.floatMax(f32);
        values[11] = std.math.floatTrueMin(f32);
        values[12] = -std.math.inf(f32);
        const halves = vector.f16_from_f32_by_integers(16, values);
        inline for (0..16) |lane| {
            const wanted: f16 = @floatCast(values[lane]);
            if (std.math.isNan(wanted)) {
                try expect_equal(0x7e00, halves[lane] & 0x7fff);
            } else {
                try expect_equal(@as(u16, @bitCast(wanted)), halves[lane]);
            }
        }
    }
}

// ---- Every level against the scalar code ------------------------------------------------------

const pool_count = 1024;

/// Elements of one dtype: special values, random bits, and numbers of moderate size.
const Pool = struct {
    bytes: [pool_count * 8]u8,
    dtype: DType,

    fn init(dtype: DType, seed: u64) Pool {
        var pool: Pool = .{ .bytes = undefined, .dtype = dtype };
        var prng: std.Random.DefaultPrng = .init(seed);
        const random = prng.random();
        random.bytes(&pool.bytes);
        const size = dtype.size();
        for (0..pool_count) |index| {
            const element = pool.bytes[index * size ..][0..size];
            switch (random.uintLessThan(u8, 4)) {
                0 => special(dtype, random.int(usize), element),
                1 => if (dtype.is_float()) moderate(dtype, random, element),
                else => {}, // random bits
            }
        }
        return pool;
    }

    fn from(pool: *const Pool, index: usize, count: usize) []const u8 {
        const size = pool.dtype.size();
        const start = index % (pool_count - length_max);
        return pool.bytes[start * size ..][0 .. count * size];
    }
};

fn moderate(dtype: DType, random: std.Random, element: []u8) void {
    const value: f32 = (random.float(f32) - 0.5) * 16;
    switch (dtype) {
        .f32 => @memcpy(element, std.mem.asBytes(&value)),
        .f64 => @memcpy(element, std.mem.asBytes(&@as(f64, value))),
        .f16 => @memcpy(element, std.mem.asBytes(&@as(f16, @floatCast(value)))),
        .bf16 => @memcpy(element, std.mem.asBytes(&value)[2..4]),
        else => unreachable,
    }
}

/// Bits of the values where arithmetic goes wrong first, as (exponent and mantissa) of each format.
fn special(dtype: DType, choice: usize, element: []u8) void {
    const bits: u64 = switch (dtype) {
        inline .f32, .f64, .f16, .bf16 => |d| float_special(d, choice),
        inline else => |d| blk: {
            const T = scalar.Stored(d);
            const greatest = std.math.maxInt(T);
            const all_ones = 0 -% @as(T, 1);
            const list = [_]T{ 0, 1, 2, 3, greatest - 1, greatest, std.math.minInt(T), all_ones };
            const U = std.meta.Int(.unsigned, @bitSizeOf(T));
            break :blk @as(U, @bitCast(list[choice % list.len]));
        },
    };
    @memcpy(element, std.mem.asBytes(&bits)[0..element.len]);
}

fn float_special(comptime d: DType, choice: usize) u64 {
    const bits_of = switch (d) {
        .f32 => .{ 32, 23 },
        .f64 => .{ 64, 52 },
        .f16 => .{ 16, 10 },
        .bf16 => .{ 16, 7 },
        else => comptime unreachable,
    };
    const width: u64 = bits_of[0];
    const mantissa: u64 = bits_of[1];
    const infinity: u64 = ((1 << (width - 1 - mantissa)) - 1) << mantissa;
    const quiet: u64 = 1 << (mantissa - 1);
    const one: u64 = ((1 << (width - 2 - mantissa)) - 1) << mantissa;
    const list = [special_count / 2]u64{
        0, 1, quiet, (1 << mantissa) - 1, // zero, least, middle and greatest subnormal
        1 << mantissa, infinity - 1, infinity, one, // least normal, greatest, infinity, one
        infinity | quiet, infinity | quiet | 5, infinity | 1, infinity | (quiet - 1), // NaNs
        one + 1, one - 1, one + (1 << mantissa), (2 << mantissa) | 1, // around one, two, small
    };
    const sign: u64 = if (choice & 1 == 1) @as(u64, 1) << (width - 1) else 0;
    return list[(choice >> 1) % list.len] | sign;
}

const special_count = 32;

const Case = struct {
    op: ReduceOp,
    dtype: DType,
    count: usize,
    contributors: u32 = 3,
    out_offset: usize = 0,
    a_offset: usize = 0,
    b_offset: usize = 0,

    /// All functions with these operands (partials, inputs) on the level in use.
    fn run(case: Case, a_all: []const u8, b_all: []const u8) !void {
        errdefer std.debug.print("failed: level {s} {any}\n", .{ kernels.level_name(), case });
        const op = case.op;
        const dtype = case.dtype;
        const count = case.count;
        const partial_bytes = count * base.dtype.partial_size(op, dtype);
        const bytes = count * dtype.size();
        const a = a_all[0..partial_bytes];
        const b = b_all[0..bytes];
        var wanted: [length_max * 8]u8 = undefined;
        var a_buffer: Buffer = .{};
        var b_buffer: Buffer = .{};
        var out_buffer: Buffer = .{};
        const out = out_buffer.at(case.out_offset);
        const a_bytes = a_buffer.put(case.a_offset, a);
        const b_bytes = b_buffer.put(case.b_offset, b);

        scalar.first(op, dtype, &wanted, b.ptr, count);
        kernels.first(op, dtype, out, b_bytes, count);
        try out_buffer.check(case.out_offset, wanted[0..partial_bytes]);

        @memset(&out_buffer.bytes, 0xa5);
        scalar.finish_one(op, dtype, &wanted, b.ptr, count);
        kernels.finish_one(op, dtype, out, b_bytes, count);
        try out_buffer.check(case.out_offset, wanted[0..bytes]);

        @memset(&out_buffer.bytes, 0xa5);
        const n = case.contributors;
        scalar.accumulate(op, dtype, &wanted, a.ptr, b.ptr, n, count);
        kernels.accumulate(op, dtype, out, a_bytes, b_bytes, n, count);
        try out_buffer.check(case.out_offset, wanted[0..partial_bytes]);
        kernels.accumulate(op, dtype, a_bytes, a_bytes, b_bytes, n, count);
        try a_buffer.check(case.a_offset, wanted[0..partial_bytes]);
        _ = a_buffer.put(case.a_offset, a);

        @memset(&out_buffer.bytes, 0xa5);
        scalar.accumulate_last(op, dtype, &wanted, a.ptr, b.ptr, case.contributors, count);
        kernels.accumulate_last(op, dtype, out, a_bytes, b_bytes, case.contributors, count);
        try out_buffer.check(case.out_offset, wanted[0..bytes]);
        kernels.accumulate_last(op, dtype, b_bytes, a_bytes, b_bytes, case.contributors, count);
        try b_buffer.check(case.b_offset, wanted[0..bytes]);
        _ = b_buffer.put(case.b_offset, b);
        kernels.accumulate_last(op, dtype, a_bytes, a_bytes, b_bytes, case.contributors, count);
        try expect_bytes(wanted[0..bytes], a_bytes[0..bytes]);
        kernels.finish_one(op, dtype, b_bytes, b_bytes, count);
        scalar.finish_one(op, dtype, &wanted, b.ptr, count);
        try b_buffer.check(case.b_offset, wanted[0..bytes]);
    }
};

/// Runs `each(op, dtype)` for all of them that go together, on every level that this machine has.
fn on_every_level(comptime each: fn (ReduceOp, DType) anyerror!void) !void {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    for (kernels.level_names, 0..) |name, index| {
        if (!kernels.tested(index)) continue;
        try expect(kernels.force(name));
        for (ops) |op| for (dtypes) |dtype| {
            // One code for all levels: wide.zig has its tests.
            if (op.takes(dtype) and !scalar.is_wide(op, dtype)) try each(op, dtype);
        };
    }
}

test "every level gives the bits of the scalar code at every length from 0 to 257" {
    // Method: each length meets other alignments of the three pointers, odd ones included.
    try on_every_level(struct {
        fn each(op: ReduceOp, dtype: DType) !void {
            const partials: Pool = .init(base.dtype.partial_dtype(op, dtype), 2);
            const inputs: Pool = .init(dtype, 3);
            for (0..length_max + 1) |count| {
                const case: Case = .{
                    .op = op,
                    .dtype = dtype,
                    .count = count,
                    .out_offset = count * 7 % 64,
                    .a_offset = (count * 13 + 5) % 64,
                    .b_offset = (count * 29 + 11) % 64,
                };
                try case.run(partials.from(count * 3, count), inputs.from(count * 5, count));
            }
        }
    }.each);
}

test "every level gives the bits of the scalar code at every alignment" {
    try on_every_level(struct {
        fn each(op: ReduceOp, dtype: DType) !void {
            const partials: Pool = .init(base.dtype.partial_dtype(op, dtype), 4);
            const inputs: Pool = .init(dtype, 5);
            for (0..64) |offset| for ([_]usize{ 1, 67, length_max }) |count| {
                var case: Case = .{ .op = op, .dtype = dtype, .count = count };
                const a = partials.from(offset * 9, count);
                const b = inputs.from(offset * 4, count);
                case.out_offset = offset;
                try case.run(a, b);
                case.a_offset = offset;
                try case.run(a, b);
                case.b_offset = offset;
                try case.run(a, b);
            };
        }
    }.each);
}

test "every level gives the bits of the scalar code for every pair of special values" {
    try on_every_level(struct {
        fn each(op: ReduceOp, dtype: DType) !void {
            const partial = base.dtype.partial_dtype(op, dtype);
            for (0..special_count) |left| {
                var a: [special_count * 8]u8 = undefined;
                var b: [special_count * 8]u8 = undefined;
                for (0..special_count) |right| {
                    special(partial, left, a[right * partial.size() ..][0..partial.size()]);
                    special(dtype, right, b[right * dtype.size() ..][0..dtype.size()]);
                }
                const case: Case = .{ .op = op, .dtype = dtype, .count = special_count };
                try case.run(&a, &b);
            }
        }
    }.each);
}

test "every level divides like the scalar code by any number of contributors" {
    try on_every_level(struct {
        fn each(op: ReduceOp, dtype: DType) !void {
            if (op != .avg) return;
            const partials: Pool = .init(base.dtype.partial_dtype(op, dtype), 6);
            const inputs: Pool = .init(dtype, 7);
            const large = [_]u32{ 511, 512, 65_535, 65_537, 1 << 31, (1 << 31) + 1, (1 << 32) - 1 };
            for (0..40) |index| {
                const case: Case = .{
                    .op = op,
                    .dtype = dtype,
                    .count = 97,
                    .contributors = if (index < 33) @intCast(index + 2) else large[index - 33],
                };
                try case.run(partials.from(index * 31, 97), inputs.from(index * 17, 97));
            }
        }
    }.each);
}

test "every level reduces 2 to 32 inputs like the scalar code, in place too" {
    try on_every_level(struct {
        fn each(op: ReduceOp, dtype: DType) !void {
            const pool: Pool = .init(dtype, 8);
            // Here and not in each case: to fill them would take longer than all of that.
            var buffers: [kernels.reduce_inputs_max]Buffer = @splat(.{});
            for ([_]usize{ 2, 3, 4, 5, 6, 7, 8, 13, 32 }) |k| for (0..length_max + 1) |count| {
                if (count > 70 and count % 17 != 0 and count < length_max - 1) continue;
                try reduce_k_case(op, dtype, &pool, buffers[0..k], count);
            };
        }
    }.each);
}

fn reduce_k_case(
    op: ReduceOp,
    dtype: DType,
    pool: *const Pool,
    buffers: []Buffer,
    count: usize,
) !void {
    const k = buffers.len;
    errdefer std.debug.print(
        "failed: level {s} {t} {t} k={d} count={d}\n",
        .{ kernels.level_name(), op, dtype, k, count },
    );
    const bytes = count * dtype.size();
    var wanted: [length_max * 8]u8 = undefined;
    var inputs: [kernels.reduce_inputs_max][*]const u8 = undefined;
    for (0..k) |index| {
        const data = pool.from(index * 101 + count, count);
        inputs[index] = buffers[index].put((count + index * 11) % 64, data);
    }
    const contributors: u32 = @intCast(k);
    scalar.reduce_k(op, dtype, &wanted, inputs[0..k], contributors, count);
    var out_buffer: Buffer = .{};
    const offset = count * 3 % 64;
    kernels.reduce_k(op, dtype, out_buffer.at(offset), inputs[0..k], contributors, count);
    try out_buffer.check(offset, wanted[0..bytes]);
    // The last input as output.
    const in_place = (count + (k - 1) * 11) % 64;
    const out = buffers[k - 1].at(in_place);
    kernels.reduce_k(op, dtype, out, inputs[0..k], contributors, count);
    try buffers[k - 1].check(in_place, wanted[0..bytes]);
}

test "reduce_k of two inputs is first and the last hop, when nothing is rounded in between" {
    for ([_]DType{ .f32, .f64, .i8, .u64 }) |dtype| for (ops) |op| {
        if (!op.takes(dtype)) continue;
        const pool: Pool = .init(dtype, 9);
        const x = pool.from(0, 100);
        const y = pool.from(400, 100);
        var partial: [1600]u8 = undefined;
        var hops: [800]u8 = undefined;
        var pass: [800]u8 = undefined;
        kernels.first(op, dtype, &partial, x.ptr, 100);
        kernels.accumulate_last(op, dtype, &hops, &partial, y.ptr, 2, 100);
        kernels.reduce_k(op, dtype, &pass, &.{ x.ptr, y.ptr }, 2, 100);
        const size = 100 * dtype.size();
        try std.testing.expectEqualSlices(u8, hops[0..size], pass[0..size]);
    };
}

// ---- Top-k ------------------------------------------------------------------------------------

test "every level finds the greatest magnitudes like the scalar code, ties and NaNs included" {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    const pool: Pool = .init(.f32, 21);
    for (kernels.level_names, 0..) |name, index| {
        if (!kernels.tested(index)) continue;
        try expect(kernels.force(name));
        for ([_]usize{ 1, 2, 15, 16, 17, 127, 128, 129, 250, 257 }) |count| {
            for ([_]usize{ 1, 2, 3, 8, 64, 127, count }) |k| {
                if (k > count) continue;
                try top_k_case(pool.from(count * 7 + k, count), count, k, count % 7);
            }
        }
        // A whole chunk, in which many elements are equal.
        var chunk: [kernels.top_k_chunk_max]f32 = undefined;
        var prng: std.Random.DefaultPrng = .init(22);
        for (&chunk) |*value| value.* = @round(prng.random().floatNorm(f32) * 50) / 8;
        for ([_]usize{ 64, 129, 4095 }) |k| {
            try top_k_case(std.mem.asBytes(&chunk), chunk.len, k, 3);
        }
        // All that is taken in a few places, magnitudes of all sizes, and one value everywhere.
        for (&chunk, 0..) |*value, at| value.* = @floatFromInt(at);
        for ([_]usize{ 1, 5, 64 }) |k| try top_k_case(std.mem.asBytes(&chunk), chunk.len, k, 0);
        for (&chunk) |*value| value.* = @bitCast(prng.random().int(u32));
        for ([_]usize{ 1, 2, 64, 512 }) |k| {
            try top_k_case(std.mem.asBytes(&chunk), chunk.len, k, 0);
            try top_k_case(std.mem.asBytes(&chunk), chunk.len - 125, k, 1);
        }
        @memset(&chunk, -0.0);
        for ([_]usize{ 1, 64, 4096 }) |k| try top_k_case(std.mem.asBytes(&chunk), chunk.len, k, 0);
    }
}

fn top_k_case(input: []const u8, count: usize, k: usize, offset: usize) !void {
    const Out = struct { values: [4 * 4096]u8, places: [6144 + 64]u8 };
    var wanted: Out = undefined;
    var got: Out = undefined;
    var shifted: [4 * 4096 + 8]u8 = undefined;
    @memcpy(shifted[offset..][0 .. count * 4], input[0 .. count * 4]);
    const size = std.math.divCeil(usize, k * 12, 8) catch unreachable;
    got.places[size] = 0xa5;
    scalar.top_k(&wanted.values, &wanted.places, input.ptr, count, k);
    kernels.top_k(&got.values, &got.places, shifted[offset..].ptr, count, k);
    try expect_bytes(wanted.values[0 .. k * 4], got.values[0 .. k * 4]);
    try expect_bytes(wanted.places[0..size], got.places[0..size]);
    try expect_equal(0xa5, got.places[size]);
}

// ---- Digest -----------------------------------------------------------------------------------

/// The reference implementation on its own test data; xxhsum and the Python package xxhash agree.
const digest_vectors = [_]struct { usize, u64, u128 }{
    .{ 0, 0x0, 0x99aa06d3014798d86001c324468d497f },
    .{ 0, 0x9e3779b185ebca8d, 0x00feaa732a3ce25ea986dfc5d7605bfe },
    .{ 1, 0x0, 0xa6cd5e9392000f6ac44bdff4074eecdb },
    .{ 3, 0x9e3779b185ebca8d, 0x1c7ecf6a308cf00e634b8990b4976373 },
    .{ 4, 0x0, 0x970d585ac632bf8e2e7d8d6876a39fe9 },
    .{ 8, 0x9e3779b185ebca8d, 0xf50cec145bcd5c5a7b29471dc729b5ff },
    .{ 9, 0x0, 0x564ef6078950d457ed7ccbc501eb7501 },
    .{ 16, 0x9e3779b185ebca8d, 0x6ffcb80cd33085c80346d13a7a5498c7 },
    .{ 17, 0x0, 0x955fa78643ed3669abbc12d11973d7db },
    .{ 128, 0x9e3779b185ebca8d, 0xa0f7ccb68ee02add8394f5c51f1d8246 },
    .{ 129, 0x0, 0x03815fc91f1b30b686c9e3bc8f0a3b5c },
    .{ 192, 0x9e3779b185ebca8d, 0xc1e549baf8d0d863fd5412027e573a96 },
    .{ 240, 0x9e3779b185ebca8d, 0x29d2133d6ea58c5b604e98db085c1864 },
    .{ 241, 0x0, 0x99a80ecf0ecfc647c5a639ecd2030e5e },
    .{ 241, 0x9e3779b185ebca8d, 0xec64afae6a137582dda9b0a161d4829a },
    .{ 1023, 0x9e3779b185ebca8d, 0x96b80fe329ce5e350f0f02de8590e1b5 },
    .{ 1024, 0x0, 0x0d30d24071c64c57dd85c9b5c1109c5c },
    .{ 1025, 0x9e3779b185ebca8d, 0x2c383949f57bf7e196792bcf9af88519 },
    .{ 2048, 0x0, 0xf736557fd47073a5dd59e2c3a5f038e0 },
    .{ 4097, 0x9e3779b185ebca8d, 0xc94c98bcf2d279fca78887a19a340214 },
};

fn digest_data(comptime size: usize) [size]u8 {
    var bytes: [size]u8 = undefined;
    var state: u64 = 2654435761;
    for (&bytes) |*byte| {
        byte.* = @truncate(state >> 56);
        state *%= 0x9e3779b185ebca8d;
    }
    return bytes;
}

test "the digest is XXH3-128 of the reference implementation" {
    const bytes = digest_data(4097);
    for (digest_vectors) |v| {
        try expect_equal(v[2], xxh3.digest(xxh3.Scalar, bytes[0..v[0]], v[1]));
    }
}

test "every level gives the same digest at every length, alignment and seed" {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    const bytes = digest_data(4097 + 64);
    for (kernels.level_names, 0..) |name, index| {
        if (!kernels.tested(index)) continue;
        try expect(kernels.force(name));
        for (0..4097) |size| {
            if (size > 1200 and size % 61 != 0) continue;
            const part = bytes[size % 64 ..][0..size];
            const seed: u64 = size *% 0x9e3779b97f4a7c15;
            errdefer std.debug.print("failed: level {s} size {d}\n", .{ name, size });
            try expect_equal(xxh3.digest(xxh3.Scalar, part, seed), kernels.digest(part, seed));
        }
    }
}

test "the digest sees every bit, the length and the seed" {
    var bytes: [700]u8 = @splat(0);
    const plain = kernels.digest(&bytes, 1);
    try expect(plain != kernels.digest(&bytes, 2));
    try expect(plain != kernels.digest(bytes[0..699], 1));
    for (0..bytes.len) |index| for (0..8) |bit| {
        const mask = @as(u8, 1) << @intCast(bit);
        bytes[index] ^= mask;
        try expect(plain != kernels.digest(&bytes, 1));
        bytes[index] ^= mask;
    };
}

// ---- Levels and modes -------------------------------------------------------------------------

test "tests that were built for the upper levels run where they all are" {
    const last = kernels.level_names.len - 1;
    if (!kernels.tested(0)) try expect(kernels.tested(last));
}

test "an unknown level is refused and changes nothing" {
    const before = kernels.level_name();
    for ([_][]const u8{ "", "v5", "Baseline", "v4xx" }) |name| try expect(!kernels.force(name));
    try std.testing.expectEqualStrings(before, kernels.level_name());
    for (kernels.level_names, 0..) |name, index| {
        try expect_equal(kernels.supported(index), kernels.force(name));
    }
    try expect(kernels.force(before));
}

test "the standard mode keeps subnormals that a host's mode would flush" {
    const former = kernels.float_mode.read();
    defer kernels.float_mode.restore(former);
    const flush: u64 = switch (@import("builtin").cpu.arch) {
        .x86_64 => 0x1f80 | 0x8000 | 0x0040, // FTZ and DAZ
        .aarch64 => 1 << 24, // FZ
        else => return, // no mode is changed there
    };
    const tiny: f32 = std.math.floatTrueMin(f32);
    const zero: f32 = 0;
    var sum: f32 = undefined;
    const out = std.mem.asBytes(&sum);
    kernels.float_mode.write(flush);
    kernels.accumulate(.sum, .f32, out, std.mem.asBytes(&tiny), std.mem.asBytes(&zero), 2, 1);
    try expect_equal(0, @as(u32, @bitCast(sum)));
    try expect_equal(flush, kernels.float_mode.standard());
    kernels.accumulate(.sum, .f32, out, std.mem.asBytes(&tiny), std.mem.asBytes(&zero), 2, 1);
    try expect_equal(1, @as(u32, @bitCast(sum)));
}

test "a copy past the caches arrives whole, from and to anywhere, on every level" {
    const gpa = std.testing.allocator;
    const a = try gpa.alloc(u8, 1000);
    defer gpa.free(a);
    const b = try gpa.alloc(u8, 1100);
    defer gpa.free(b);
    for (a, 0..) |*byte, index| byte.* = @truncate(index *% 31);
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    for (kernels.level_names, 0..) |name, index| {
        if (!kernels.tested(index)) continue;
        try expect(kernels.force(name));
        for (0..258) |bytes| for (0..64) |shift| {
            const out = 1 + shift;
            const in = (shift * 7) % 64;
            @memset(b, 0xee);
            kernels.copy_past(b.ptr + out, a.ptr + in, bytes);
            try std.testing.expectEqualSlices(u8, a[in..][0..bytes], b[out..][0..bytes]);
            try expect_equal(0xee, b[out - 1]);
            try expect_equal(0xee, b[out + bytes]);
        };
    }
}
