//! Reductions with explicit vectors. Compiled once per CPU level (level.zig). Each function is a
//! main loop over whole vectors and a tail that runs the same arithmetic on a padded copy, so that
//! the last elements get the same bits. The specification is scalar.zig, with which tests.zig
//! compares.
//!
//! Pointers have any alignment. `out` may be exactly an operand: each step loads everything that it
//! reads before it stores, and a store never reaches bytes that a later step reads.

const std = @import("std");
const dtypes = @import("dtype");
const vector = @import("vector.zig");
const table = @import("table.zig");

const DType = dtypes.DType;
const ReduceOp = dtypes.ReduceOp;
const Compute = vector.Compute;
const Vector = vector.Vector;
const load = vector.load;
const load_pair = vector.load_pair;
const store = vector.store;
const store_pair = vector.store_pair;

/// Independent pairs of vectors in flight: they hide the latency of the arithmetic.
const unroll = 2;

pub fn accumulate(comptime op: ReduceOp, comptime d: DType) table.Accumulate {
    const partial = dtypes.partial_dtype(op, d);
    const C = Compute(op, d);
    return struct {
        fn run(out: [*]u8, a: [*]const u8, b: [*]const u8, count: usize) callconv(.c) void {
            hop(op, d, partial, C, out, a, b, count, .{});
        }
    }.run;
}

pub fn accumulate_avg(comptime d: DType) table.AccumulateAvg {
    const C = Compute(.avg, d);
    return struct {
        fn run(
            out: [*]u8,
            a: [*]const u8,
            b: [*]const u8,
            contributors: u32,
            count: usize,
        ) callconv(.c) void {
            hop(.avg, d, d, C, out, a, b, count, Divisor(C).init(contributors));
        }
    }.run;
}

/// out := the partial, or the average, of a and b (scalar.zig: mean).
pub fn mean(comptime d: DType, comptime is_last: bool) table.AccumulateMean {
    const C = Compute(.avg, d);
    return struct {
        fn run(
            out: [*]u8,
            a: [*]const u8,
            b: [*]const u8,
            how: *const table.Mean,
            count: usize,
        ) callconv(.c) void {
            const n = 2 * vector.lanes(C);
            const size = comptime d.size();
            const factors: Factors(d, C, is_last) = .init(how);
            var index: usize = 0;

            // Main loop, and the pairs that are left.
            inline for (.{ unroll, 1 }) |width| {
                while (count - index >= width * n) : (index += width * n) {
                    const at = index * size;
                    factors.pairs(width, out + at, a + at, b + at);
                }
            }

            // Tail: one padded pair.
            const left = (count - index) * size;
            if (left == 0) return;
            var a_block: [n * size]u8 = @splat(0);
            var b_block: [n * size]u8 = @splat(0);
            var out_block: [n * size]u8 = undefined;
            @memcpy(a_block[0..left], a + index * size);
            @memcpy(b_block[0..left], b + index * size);
            factors.pairs(1, &out_block, &a_block, &b_block);
            @memcpy(out + index * size, out_block[0..left]);
        }
    }.run;
}

/// The numbers of a Mean in vectors.
fn Factors(comptime d: DType, comptime C: type, comptime is_last: bool) type {
    return struct {
        const V = Vector(C);
        const pair_bytes = 2 * vector.lanes(C) * d.size();

        up: V,
        down: V,
        divisor: V,

        inline fn init(how: *const table.Mean) @This() {
            return .{
                .up = @splat(@floatCast(how.up)),
                .down = @splat(@floatCast(how.down)),
                .divisor = @splat(@floatCast(how.divisor)),
            };
        }

        inline fn pairs(
            self: *const @This(),
            comptime width: usize,
            out: [*]u8,
            a: [*]const u8,
            b: [*]const u8,
        ) void {
            var x: [width][2]V = undefined;
            var y: [width][2]V = undefined;
            var means: [width][2]V = undefined;
            var is_good: @Vector(vector.lanes(C), bool) = @splat(true);
            inline for (0..width) |v| {
                x[v] = load_pair(d, C, a + v * pair_bytes);
                y[v] = load_pair(d, C, b + v * pair_bytes);
                inline for (&means[v], x[v], y[v]) |*value, p, q| {
                    const sum = p * self.up + q;
                    value.* = if (is_last) sum / self.divisor else sum * self.down;
                    is_good &= fits(d, C, value.*);
                }
            }
            if (!@reduce(.And, is_good)) {
                @branchHint(.unlikely);
                inline for (&means, x, y) |*pair, ps, qs| {
                    inline for (pair, ps, qs) |*value, p, q|
                        value.* = self.smaller(value.*, p, q);
                }
            }
            inline for (means, 0..) |pair, v| store_pair(d, C, out + v * pair_bytes, pair);
        }

        /// `plain` where that is a number of the dtype.
        inline fn smaller(self: *const @This(), plain: V, p: V, q: V) V {
            const small = p * (self.up * self.down) + q * self.down;
            const value = if (is_last) small / (self.divisor * self.down) else small;
            const finite = is_finite(C, p) & is_finite(C, q);
            return chosen(d, C, plain, value, finite);
        }
    };
}

inline fn fits(comptime d: DType, comptime C: type, value: Vector(C)) Lanes(C) {
    return @abs(value) <= @as(Vector(C), @splat(dtypes.greatest(d, C)));
}

inline fn is_finite(comptime C: type, value: Vector(C)) Lanes(C) {
    return @abs(value) <= @as(Vector(C), @splat(std.math.floatMax(C)));
}

/// `plain` where it fits; else `value`, at most the greatest number where all inputs are finite.
inline fn chosen(
    comptime d: DType,
    comptime C: type,
    plain: Vector(C),
    value: Vector(C),
    finite: Lanes(C),
) Vector(C) {
    const most: Vector(C) = @splat(dtypes.greatest(d, C));
    const least = -most;
    const upper = @select(C, value > most, most, value);
    const within = @select(C, upper < least, least, upper);
    return @select(C, fits(d, C, plain), plain, @select(C, finite, within, value));
}

fn Lanes(comptime C: type) type {
    return @Vector(vector.lanes(C), bool);
}

/// out(`to`) := finish(a (+) b). `finish` is a Divisor, or nothing.
inline fn hop(
    comptime op: ReduceOp,
    comptime d: DType,
    comptime to: DType,
    comptime C: type,
    out: [*]u8,
    a: [*]const u8,
    b: [*]const u8,
    count: usize,
    finish: anytype,
) void {
    const partial = comptime dtypes.partial_dtype(op, d);
    // Pairs of all three are combined lane by lane.
    comptime std.debug.assert(d != .bf16 or (partial == .bf16 and to == .bf16));
    const n = 2 * vector.lanes(C);
    const in_size = comptime d.size();
    const partial_size = comptime partial.size();
    const out_size = comptime to.size();
    var index: usize = 0;

    // Main loop, and the pairs that are left.
    inline for (.{ unroll, 1 }) |width| {
        while (count - index >= width * n) : (index += width * n) {
            var sums: [width][2]Vector(C) = undefined;
            inline for (&sums, 0..) |*pair, v| {
                const x = load_pair(partial, C, a + (index + v * n) * partial_size);
                const y = load_pair(d, C, b + (index + v * n) * in_size);
                inline for (pair, x, y) |*sum, p, q| {
                    sum.* = finished(C, combine(op, C, p, q), finish);
                }
            }
            inline for (sums, 0..) |pair, v| {
                store_pair(to, C, out + (index + v * n) * out_size, pair);
            }
        }
    }

    // Tail: one padded pair.
    const left = count - index;
    if (left == 0) return;
    var a_block: [n * partial_size]u8 = @splat(0);
    var b_block: [n * in_size]u8 = @splat(0);
    var out_block: [n * out_size]u8 = undefined;
    @memcpy(a_block[0 .. left * partial_size], a + index * partial_size);
    @memcpy(b_block[0 .. left * in_size], b + index * in_size);
    const x = load_pair(partial, C, &a_block);
    const y = load_pair(d, C, &b_block);
    var pair: [2]Vector(C) = undefined;
    inline for (&pair, x, y) |*sum, p, q| sum.* = finished(C, combine(op, C, p, q), finish);
    store_pair(to, C, &out_block, pair);
    @memcpy(out + index * out_size, out_block[0 .. left * out_size]);
}

pub fn reduce_k(comptime op: ReduceOp, comptime d: DType) table.ReduceK {
    const C = Compute(op, d);
    return struct {
        fn run(
            out: [*]u8,
            inputs: [*]const [*]const u8,
            input_count: usize,
            contributors: u32,
            count: usize,
        ) callconv(.c) void {
            const finish = if (op == .avg) Divisor(C).init(contributors) else .{};
            reduce_all(op, d, C, out, inputs[0..input_count], count, finish);
        }
    }.run;
}

inline fn reduce_all(
    comptime op: ReduceOp,
    comptime d: DType,
    comptime C: type,
    out: [*]u8,
    inputs: []const [*]const u8,
    count: usize,
    finish: anytype,
) void {
    const n = 2 * vector.lanes(C);
    const size = comptime d.size();
    var index: usize = 0;

    // Main loop: all inputs of a pair at a time. SSE2 has 16 registers, and a pair takes eight.
    while (count - index >= n) : (index += n) {
        var pair = load_pair(d, C, inputs[0] + index * size);
        for (inputs[1..]) |input| {
            const y = load_pair(d, C, input + index * size);
            inline for (&pair, y) |*sum, q| sum.* = combine(op, C, sum.*, q);
        }
        inline for (&pair) |*sum| sum.* = finished(C, sum.*, finish);
        if (comptime dtypes.has_mean(op, d)) if (!both_fit(d, C, pair)) {
            @branchHint(.unlikely);
            pair = smaller_mean(d, C, pair, inputs, index * size, n * size, finish.divisor);
        };
        store_pair(d, C, out + index * size, pair);
    }

    // Tail: one padded pair.
    const left = count - index;
    if (left == 0) return;
    var block: [n * size]u8 = @splat(0);
    @memcpy(block[0 .. left * size], inputs[0] + index * size);
    var pair = load_pair(d, C, &block);
    for (inputs[1..]) |input| {
        @memcpy(block[0 .. left * size], input + index * size);
        const y = load_pair(d, C, &block);
        inline for (&pair, y) |*sum, q| sum.* = combine(op, C, sum.*, q);
    }
    inline for (&pair) |*sum| sum.* = finished(C, sum.*, finish);
    if (comptime dtypes.has_mean(op, d)) if (!both_fit(d, C, pair)) {
        @branchHint(.unlikely);
        pair = smaller_mean(d, C, pair, inputs, index * size, left * size, finish.divisor);
    };
    store_pair(d, C, &block, pair);
    @memcpy(out + index * size, block[0 .. left * size]);
}

inline fn both_fit(comptime d: DType, comptime C: type, pair: [2]Vector(C)) bool {
    return @reduce(.And, fits(d, C, pair[0]) & fits(d, C, pair[1]));
}

/// `plain` where that is a number of the dtype; else the average of so many bytes of the inputs,
/// all made smaller before they are added.
noinline fn smaller_mean(
    comptime d: DType,
    comptime C: type,
    plain: [2]Vector(C),
    inputs: []const [*]const u8,
    at: usize,
    bytes: usize,
    divisor: Vector(C),
) [2]Vector(C) {
    const how: table.Mean = .of(@intCast(inputs.len));
    const down: Vector(C) = @splat(@floatCast(how.down));
    var block: [2 * vector.lanes(C) * d.size()]u8 = @splat(0);
    var sums: [2]Vector(C) = @splat(@splat(-0.0)); // changes nothing that is added to it
    var finite: [2]Lanes(C) = @splat(@splat(true));
    for (inputs) |input| {
        @memcpy(block[0..bytes], input + at);
        inline for (&sums, &finite, load_pair(d, C, &block)) |*sum, *all, q| {
            sum.* += q * down;
            all.* &= is_finite(C, q);
        }
    }
    var result: [2]Vector(C) = undefined;
    inline for (&result, plain, sums, finite) |*value, first, sum, all|
        value.* = chosen(d, C, first, sum / (divisor * down), all);
    return result;
}

/// Input to partial for avg of f16 and of narrow integers: the same numbers in more bits.
pub fn widen(comptime d: DType) table.Widen {
    return struct {
        fn run(out: [*]u8, input: [*]const u8, count: usize) callconv(.c) void {
            const partial = comptime dtypes.partial_dtype(.avg, d);
            convert(d, partial, Compute(.avg, d), out, input, count);
        }
    }.run;
}

/// The result of a world of one: the input with every NaN made the positive quiet NaN.
pub fn canonical(comptime d: DType) table.Widen {
    return struct {
        fn run(out: [*]u8, input: [*]const u8, count: usize) callconv(.c) void {
            convert(d, d, Compute(.sum, d), out, input, count);
        }
    }.run;
}

inline fn convert(
    comptime from: DType,
    comptime to: DType,
    comptime C: type,
    out: [*]u8,
    input: [*]const u8,
    count: usize,
) void {
    const n = vector.lanes(C);
    const in_size = comptime from.size();
    const out_size = comptime to.size();
    var index: usize = 0;
    while (count - index >= n) : (index += n) {
        store(to, C, out + index * out_size, load(from, C, input + index * in_size));
    }
    const left = count - index;
    if (left == 0) return;
    var in_block: [n * in_size]u8 = @splat(0);
    var out_block: [n * out_size]u8 = undefined;
    @memcpy(in_block[0 .. left * in_size], input + index * in_size);
    store(to, C, &out_block, load(from, C, &in_block));
    @memcpy(out + index * out_size, out_block[0 .. left * out_size]);
}

inline fn combine(comptime op: ReduceOp, comptime C: type, x: Vector(C), y: Vector(C)) Vector(C) {
    if (@typeInfo(C) == .float) return switch (op) {
        .sum, .avg => x + y,
        .prod => x * y,
        .min => extreme(C, x, y, x < y, .minus),
        .max => extreme(C, x, y, x > y, .plus),
        .band, .bor, .bxor => comptime unreachable, // ReduceOp.takes
    };
    return switch (op) {
        .sum, .avg => x +% y,
        .prod => x *% y,
        .min => @min(x, y),
        .max => @max(x, y),
        .band => x & y,
        .bor => x | y,
        .bxor => x ^ y,
    };
}

/// `x` where `take_x`, else `y`; of two zeros the one with the wanted sign; a NaN where there is
/// one (which one does not matter, store makes them equal).
inline fn extreme(
    comptime C: type,
    x: Vector(C),
    y: Vector(C),
    take_x: @Vector(vector.lanes(C), bool),
    comptime zero: enum { plus, minus },
) Vector(C) {
    const Bits = @Vector(vector.lanes(C), std.meta.Int(.unsigned, @bitSizeOf(C)));
    const x_bits: Bits = @bitCast(x);
    const y_bits: Bits = @bitCast(y);
    const equal: Vector(C) = @bitCast(switch (zero) {
        .minus => x_bits | y_bits,
        .plus => x_bits & y_bits,
    });
    const ordered = @select(C, take_x, x, @select(C, x == y, equal, y));
    return @select(C, x == x, ordered, x);
}

inline fn finished(comptime C: type, sum: Vector(C), finish: anytype) Vector(C) {
    return if (@TypeOf(finish) == @TypeOf(.{})) sum else finish.quotient(sum);
}

fn Divisor(comptime C: type) type {
    return if (@typeInfo(C) == .float) FloatDivisor(C) else IntegerDivisor(C);
}

fn FloatDivisor(comptime C: type) type {
    return struct {
        divisor: Vector(C),

        inline fn init(contributors: u32) @This() {
            return .{ .divisor = @splat(@floatFromInt(contributors)) };
        }

        inline fn quotient(self: @This(), sum: Vector(C)) Vector(C) {
            return sum / self.divisor;
        }
    };
}

/// Division of 64-bit integers by one number, truncated toward zero, without the divide
/// instruction. With m = floor((2^64 - 1) / n), the high half of x * m is the quotient x / n or
/// one less: m is at least 2^64 / n - 1, so x * m / 2^64 is more than x / n - 1. One step
/// corrects it.
fn IntegerDivisor(comptime C: type) type {
    return struct {
        divisor: u64,
        reciprocal: u64,

        inline fn init(contributors: u32) @This() {
            const all_ones: u64 = std.math.maxInt(u64);
            return .{ .divisor = contributors, .reciprocal = all_ones / contributors };
        }

        inline fn quotient(self: @This(), sum: Vector(C)) Vector(C) {
            var result: Vector(C) = undefined;
            inline for (0..vector.lanes(C)) |lane| result[lane] = self.quotient_one(sum[lane]);
            return result;
        }

        inline fn quotient_one(self: @This(), x: C) C {
            if (C == u64) return self.quotient_unsigned(x);
            const magnitude = self.quotient_unsigned(@abs(x));
            const negative: u64 = @bitCast(x >> 63); // all ones, or zero
            return @bitCast((magnitude ^ negative) -% negative);
        }

        inline fn quotient_unsigned(self: @This(), x: u64) u64 {
            const estimate: u64 = @truncate((@as(u128, x) * self.reciprocal) >> 64);
            const rest = x - estimate * self.divisor;
            return estimate + @intFromBool(rest >= self.divisor);
        }
    };
}
