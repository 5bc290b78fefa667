//! The specification: what every kernel computes, one element at a time, in plain code. The vector
//! code (reduce.zig) must give the same bits on every CPU level; tests.zig demands it. This file is
//! never on a hot path. The digest is specified in xxh3.zig.
//!
//! Words: an *input* is one peer's contribution, of the caller's dtype. A *partial* is a
//! reduction on its way (`partial_dtype`: the dtype itself, f32 for avg of f16, 64 bits for avg of
//! narrow integers, 128 bits for avg of wide ones, wide.zig). A *result* is of the caller's dtype
//! again. Between load and store, values are of the compute type.
//!
//!   floats    f16 and bf16 compute in f32 and are rounded once, to nearest even, when stored.
//!             Whatever is stored by an addition, product, minimum or maximum is canonical: any NaN
//!             is the positive quiet NaN. Subnormals are kept. Nothing is contracted to an FMA.
//!   integers  sum and prod wrap. avg adds in 64 or 128 bits and truncates the quotient toward
//!             zero. band, bor and bxor are of the bits; floats have none of these.
//!   avg       divides once, at the last hop, by the number of contributors. The partial of c
//!             numbers of bf16, f32 or f64 is their sum over the least power of two that is c or
//!             more, so no partial is greater than the greatest input (Mean). f32 has room for the
//!             sum of f16.
//!   min, max  IEEE 754-2019 minimum and maximum: NaN wins, -0 < +0.

const std = @import("std");
const dtypes = @import("base").dtype;
const Mean = @import("mean.zig").Mean;
const wide = @import("wide.zig");
const assert = std.debug.assert;

const DType = dtypes.DType;
const ReduceOp = dtypes.ReduceOp;

/// Inputs of one `reduce_k`.
pub const reduce_inputs_max = 32;

/// How an element of `d` lies in memory. bf16 is kept as its bits: Zig has no such type.
pub fn Stored(comptime d: DType) type {
    return switch (d) {
        .f32 => f32,
        .f64 => f64,
        .f16 => f16,
        .bf16 => u16,
        .i8 => i8,
        .u8 => u8,
        .i16 => i16,
        .u16 => u16,
        .i32 => i32,
        .u32 => u32,
        .i64 => i64,
        .u64 => u64,
    };
}

/// The type in which `op` over `d` computes.
pub fn Compute(comptime op: ReduceOp, comptime d: DType) type {
    return switch (d) {
        .f16, .bf16 => f32,
        else => Stored(dtypes.partial_dtype(op, d)),
    };
}

/// An average of 64-bit integers is added up in 128 bits (wide.zig).
pub fn is_wide(op: ReduceOp, dtype: DType) bool {
    return op == .avg and (dtype == .i64 or dtype == .u64);
}

/// The partial, or the average, of `a` and `b` (Mean). Where the sum, or what follows from it, is
/// no number of `d`, both are made smaller before they are added. A result of finite inputs is at
/// most the greatest number, also if it was rounded up beyond that.
pub fn mean(
    comptime d: DType,
    comptime C: type,
    comptime is_last: bool,
    a: C,
    b: C,
    how: *const Mean,
) C {
    const up: C = @floatCast(how.up);
    const down: C = @floatCast(how.down);
    const divisor: C = @floatCast(how.divisor);
    const sum = a * up + b;
    const plain = if (is_last) sum / divisor else sum * down;
    if (@abs(plain) <= dtypes.greatest(d, C)) return plain;
    const small = a * (up * down) + b * down;
    return within(d, C, if (is_last) small / (divisor * down) else small, &.{ a, b });
}

/// `value`, but at most the greatest number of `d` if all inputs are finite.
fn within(comptime d: DType, comptime C: type, value: C, inputs: []const C) C {
    for (inputs) |input| if (!std.math.isFinite(input)) return value;
    const most = dtypes.greatest(d, C);
    return @min(@max(value, -most), most);
}

/// out := the partial of one contribution: unchanged (a NaN keeps its bits), or of a wider type.
pub fn first(op: ReduceOp, dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    if (is_wide(op, dtype)) return wide.first(dtype, out, input, count);
    switch (op) {
        inline else => |o| switch (dtype) {
            inline else => |d| for (0..count) |index| {
                const C = Compute(o, d);
                const partial = comptime dtypes.partial_dtype(o, d);
                if (partial == d) put(d, out, index).* = at(d, input, index).* //
                else store(partial, C, out, index, load(d, C, input, index));
            },
        },
    }
}

/// out := a (+) b, where `a` and `out` are partials and `b` is an input: the last of so many
/// contributors.
pub fn accumulate(
    op: ReduceOp,
    dtype: DType,
    out: [*]u8,
    a: [*]const u8,
    b: [*]const u8,
    contributors: u32,
    count: usize,
) void {
    if (is_wide(op, dtype)) return wide.accumulate(dtype, out, a, b, count);
    switch (op) {
        inline else => |o| switch (dtype) {
            inline else => |d| for (0..count) |index| {
                const C = Compute(o, d);
                const partial = comptime dtypes.partial_dtype(o, d);
                const x = load(partial, C, a, index);
                const y = load(d, C, b, index);
                store(partial, C, out, index, if (comptime dtypes.has_mean(o, d))
                    mean(d, C, false, x, y, &.of(contributors))
                else
                    combine(o, C, x, y));
            },
        },
    }
}

/// out := the result of a (+) b: the last hop.
pub fn accumulate_last(
    op: ReduceOp,
    dtype: DType,
    out: [*]u8,
    a: [*]const u8,
    b: [*]const u8,
    contributors: u32,
    count: usize,
) void {
    if (is_wide(op, dtype)) return wide.accumulate_last(dtype, out, a, b, contributors, count);
    switch (op) {
        inline else => |o| switch (dtype) {
            inline else => |d| for (0..count) |index| {
                const C = Compute(o, d);
                const partial = comptime dtypes.partial_dtype(o, d);
                const x = load(partial, C, a, index);
                const y = load(d, C, b, index);
                store(d, C, out, index, if (comptime dtypes.has_mean(o, d))
                    mean(d, C, true, x, y, &.of(contributors))
                else
                    finish(o, C, combine(o, C, x, y), contributors));
            },
        },
    }
}

/// out := the result of a single contribution.
pub fn finish_one(op: ReduceOp, dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    switch (op) {
        inline else => |o| switch (dtype) {
            inline else => |d| for (0..count) |index| {
                const C = Compute(o, d);
                store(d, C, out, index, finish(o, C, load(d, C, input, index), 1));
            },
        },
    }
}

/// out := the result of ((in0 (+) in1) (+) in2) ..., kept in the compute type in between.
pub fn reduce_k(
    op: ReduceOp,
    dtype: DType,
    out: [*]u8,
    inputs: []const [*]const u8,
    contributors: u32,
    count: usize,
) void {
    if (is_wide(op, dtype)) return wide.reduce_k(dtype, out, inputs, contributors, count);
    switch (op) {
        inline else => |o| switch (dtype) {
            inline else => |d| for (0..count) |index| {
                const C = Compute(o, d);
                var values: [reduce_inputs_max]C = undefined;
                for (values[0..inputs.len], inputs) |*value, input|
                    value.* = load(d, C, input, index);
                store(d, C, out, index, total(o, d, C, values[0..inputs.len], contributors));
            },
        },
    }
}

fn total(
    comptime op: ReduceOp,
    comptime d: DType,
    comptime C: type,
    values: []const C,
    contributors: u32,
) C {
    var sum = values[0];
    for (values[1..]) |value| sum = combine(op, C, sum, value);
    const plain = finish(op, C, sum, contributors);
    if (comptime !dtypes.has_mean(op, d)) return plain;
    if (@abs(plain) <= dtypes.greatest(d, C)) return plain;
    const down: C = @floatCast(Mean.of(@intCast(values.len)).down);
    sum = values[0] * down;
    for (values[1..]) |value| sum += value * down;
    const divisor: C = @floatFromInt(contributors);
    return within(d, C, sum / (divisor * down), values);
}

/// values := the k elements of `input` (f32) with the greatest magnitudes, in their order in
/// `input`; places := 12 bits for each, its index, in consecutive bits from the lowest up.
/// Magnitudes are compared by their bits, so NaNs are the greatest; of equal ones the first are
/// taken.
pub fn top_k(values: [*]u8, places: [*]u8, input: [*]const u8, count: usize, k: usize) void {
    assert(k > 0 and k <= count and count <= 4096);
    @memset(places[0 .. std.math.divCeil(usize, k * 12, 8) catch unreachable], 0);
    var taken: usize = 0;
    for (0..count) |index| {
        var before: usize = 0; // elements that are to be taken rather than this one
        for (0..count) |other| {
            const mine = magnitude_bits(input, index);
            const theirs = magnitude_bits(input, other);
            before += @intFromBool(theirs > mine or (theirs == mine and other < index));
        }
        if (before >= k) continue;
        put(.u32, values, taken).* = at(.u32, input, index).*;
        for (0..12) |bit| {
            const place = taken * 12 + bit;
            const one: u8 = @intCast(index >> @intCast(bit) & 1);
            places[place / 8] |= one << @intCast(place % 8);
        }
        taken += 1;
    }
}

fn magnitude_bits(input: [*]const u8, index: usize) u32 {
    return at(.u32, input, index).* & 0x7fff_ffff;
}

fn combine(comptime op: ReduceOp, comptime C: type, x: C, y: C) C {
    if (@typeInfo(C) == .float) return switch (op) {
        .sum, .avg => x + y,
        .prod => x * y,
        .min => minimum(C, x, y),
        .max => maximum(C, x, y),
        .band, .bor, .bxor => unreachable, // ReduceOp.takes
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

fn finish(comptime op: ReduceOp, comptime C: type, sum: C, contributors: u32) C {
    assert(contributors > 0);
    if (op != .avg) return sum;
    if (@typeInfo(C) == .float) return sum / @as(C, @floatFromInt(contributors));
    return @divTrunc(sum, contributors);
}

fn minimum(comptime F: type, x: F, y: F) F {
    if (std.math.isNan(x)) return x;
    if (std.math.isNan(y)) return y;
    if (x == 0 and y == 0) return if (std.math.signbit(x)) x else y;
    return if (x < y) x else y;
}

fn maximum(comptime F: type, x: F, y: F) F {
    if (std.math.isNan(x)) return x;
    if (std.math.isNan(y)) return y;
    if (x == 0 and y == 0) return if (std.math.signbit(x)) y else x;
    return if (x > y) x else y;
}

/// Element `index` as compute type. Exact: every compute type holds every value of its dtypes.
pub fn load(comptime d: DType, comptime C: type, bytes: [*]const u8, index: usize) C {
    const value = at(d, bytes, index).*;
    return switch (d) {
        .bf16 => @bitCast(@as(u32, value) << 16),
        .f16 => value,
        else => value,
    };
}

/// Stores a value of the compute type as `d`, rounded once, a NaN as the positive quiet NaN. The
/// quotient of an avg fits `d`; were a forged partial to make it larger, it would wrap.
pub fn store(comptime d: DType, comptime C: type, bytes: [*]u8, index: usize, value: C) void {
    const S = Stored(d);
    put(d, bytes, index).* = switch (d) {
        .bf16 => bf16_from_f32(value),
        .f16 => if (std.math.isNan(value)) quiet_nan(f16) else @floatCast(value),
        .f32, .f64 => if (std.math.isNan(value)) quiet_nan(C) else value,
        else => if (@bitSizeOf(S) < @bitSizeOf(C)) @truncate(value) else value,
    };
}

/// The positive quiet NaN with no payload: 0x7e00, 0x7fc00000, 0x7ff8000000000000.
fn quiet_nan(comptime F: type) F {
    return std.math.nan(F);
}

/// Round to nearest, ties to even: bf16 is the upper half of an f32, so rounding is an integer
/// addition that may carry into the exponent, up to infinity.
pub fn bf16_from_f32(value: f32) u16 {
    if (std.math.isNan(value)) return 0x7fc0;
    const bits: u32 = @bitCast(value);
    const odd = (bits >> 16) & 1;
    return @intCast((bits + 0x7fff + odd) >> 16);
}

pub fn at(comptime d: DType, bytes: [*]const u8, index: usize) *align(1) const Stored(d) {
    return @ptrCast(bytes + index * @sizeOf(Stored(d)));
}

pub fn put(comptime d: DType, bytes: [*]u8, index: usize) *align(1) Stored(d) {
    return @ptrCast(bytes + index * @sizeOf(Stored(d)));
}
