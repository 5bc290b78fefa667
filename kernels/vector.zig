//! Elements in memory <-> vectors of the compute type: unaligned loads and stores, and the
//! conversions of the 16-bit floats. Compiled once per CPU level. A vector is 64 bytes of the
//! compute type on every CPU; narrower machines split it. The numbers are those of scalar.zig.

const std = @import("std");
const builtin = @import("builtin");
const root = @import("root");
const dtypes = @import("dtype");

const DType = dtypes.DType;
const ReduceOp = dtypes.ReduceOp;

/// The CPU converts f16 by itself: F16C, or any aarch64. Else a conversion would be one library
/// call per element, and the integer code below is used.
const has_f16 = switch (builtin.cpu.arch) {
    .x86_64 => std.Target.x86.featureSetHas(builtin.cpu.features, .f16c),
    .aarch64 => true,
    else => false,
};

/// A level that is built for an emulator that does not round to nearest even (build.zig).
const f16_by_integers = @hasDecl(root, "f16_by_integers") and root.f16_by_integers;

/// A fused multiply-add is one instruction. Used only where the product is exact, so that the bits
/// are those of two operations.
pub const has_fma = switch (builtin.cpu.arch) {
    .x86_64 => std.Target.x86.featureSetHas(builtin.cpu.features, .fma),
    .aarch64 => true,
    else => false,
};

/// The type in which `op` over `d` computes (scalar.zig has the same).
pub fn Compute(comptime op: ReduceOp, comptime d: DType) type {
    return switch (d) {
        .f16, .bf16 => f32,
        else => Plain(dtypes.partial_dtype(op, d)),
    };
}

pub fn lanes(comptime C: type) comptime_int {
    return 64 / @sizeOf(C);
}

pub fn Vector(comptime C: type) type {
    return @Vector(lanes(C), C);
}

/// How an element lies in memory: a 16-bit float as its bits.
fn Plain(comptime d: DType) type {
    return switch (d) {
        .f32 => f32,
        .f64 => f64,
        .f16, .bf16 => u16,
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

/// `lanes(C)` elements from `bytes`, exactly.
pub inline fn load(comptime d: DType, comptime C: type, bytes: [*]const u8) Vector(C) {
    const Raw = @Vector(lanes(C), Plain(d));
    const pointer: *align(1) const Raw = @ptrCast(bytes);
    const raw = pointer.*;
    return switch (d) {
        .f16 => f32_from_f16(lanes(C), raw),
        .bf16 => @bitCast(@as(@Vector(lanes(C), u32), raw) << @splat(16)),
        else => raw,
    };
}

/// Twice `lanes(C)` elements, in an order of the dtype's own: what is loaded in pairs is combined
/// lane by lane and stored in pairs. With bf16 one vector has the even elements and one the odd
/// ones, which are where an f32 has its upper half already: to bring 16 bits each into lanes of 32,
/// in order, takes a CPU more than the addition.
pub inline fn load_pair(comptime d: DType, comptime C: type, bytes: [*]const u8) [2]Vector(C) {
    if (d != .bf16) {
        return .{ load(d, C, bytes), load(d, C, bytes + comptime lanes(C) * d.size()) };
    }
    const pointer: *align(1) const Words = @ptrCast(bytes);
    const words = pointer.*;
    return .{ @bitCast(words << @splat(16)), @bitCast(words & @as(Words, @splat(0xffff_0000))) };
}

/// Rounds once, and makes any NaN the positive quiet NaN.
pub inline fn store_pair(
    comptime d: DType,
    comptime C: type,
    bytes: [*]u8,
    pair: [2]Vector(C),
) void {
    if (d != .bf16) {
        store(d, C, bytes, pair[0]);
        store(d, C, bytes + comptime lanes(C) * d.size(), pair[1]);
        return;
    }
    const even = bf16_in_f32(16, canonical(f32, pair[0])) >> @splat(16);
    const odd = bf16_in_f32(16, canonical(f32, pair[1])) & @as(Words, @splat(0xffff_0000));
    put(bytes, even | odd);
}

const Words = @Vector(16, u32);

comptime {
    // The lower half of a word is the element that lies first.
    std.debug.assert(builtin.cpu.arch.endian() == .little);
}

/// The vector as it is, to any address.
pub inline fn put(bytes: [*]u8, value: anytype) void {
    const pointer: *align(1) @TypeOf(value) = @ptrCast(bytes);
    pointer.* = value;
}

/// Rounds once, and makes any NaN the positive quiet NaN.
pub inline fn store(
    comptime d: DType,
    comptime C: type,
    bytes: [*]u8,
    value: Vector(C),
) void {
    const n = lanes(C);
    const Raw = @Vector(n, Plain(d));
    const pointer: *align(1) Raw = @ptrCast(bytes);
    pointer.* = switch (d) {
        .f32, .f64 => canonical(C, value),
        .f16 => f16_from_f32(n, canonical(C, value)),
        .bf16 => bf16_from_f32(n, canonical(C, value)),
        else => if (Plain(d) == C) value else @truncate(value),
    };
}

pub inline fn canonical(comptime C: type, value: Vector(C)) Vector(C) {
    return @select(C, value == value, value, @as(Vector(C), @splat(std.math.nan(C))));
}

pub inline fn bf16_from_f32(comptime n: comptime_int, value: @Vector(n, f32)) @Vector(n, u16) {
    return @truncate(bf16_in_f32(n, value) >> @splat(16));
}

/// The upper halves are the bf16.
inline fn bf16_in_f32(comptime n: comptime_int, value: @Vector(n, f32)) @Vector(n, u32) {
    const bits: @Vector(n, u32) = @bitCast(value);
    const odd = (bits >> @splat(16)) & @as(@Vector(n, u32), @splat(1));
    return bits + @as(@Vector(n, u32), @splat(0x7fff)) + odd;
}

pub inline fn f32_from_f16(comptime n: comptime_int, bits: @Vector(n, u16)) @Vector(n, f32) {
    if (!has_f16) return f32_from_f16_by_integers(n, bits);
    return @floatCast(@as(@Vector(n, f16), @bitCast(bits)));
}

pub inline fn f16_from_f32(comptime n: comptime_int, value: @Vector(n, f32)) @Vector(n, u16) {
    if (!has_f16 or f16_by_integers) return f16_from_f32_by_integers(n, value);
    return @bitCast(@as(@Vector(n, f16), @floatCast(value)));
}

const f16_shift = 13; // mantissa bits that f32 has and f16 has not
const bias_difference = (127 - 15) << 23;

/// Moves exponent and mantissa into place and corrects the bias. A subnormal is first given the
/// exponent of the smallest normal number, whose value is then subtracted: the subtraction
/// normalises. (The trick is Fabian Giesen's.) No operand is an f32 subnormal, so the result does
/// not depend on how the thread treats them.
pub inline fn f32_from_f16_by_integers(
    comptime n: comptime_int,
    half: @Vector(n, u16),
) @Vector(n, f32) {
    const U = @Vector(n, u32);
    const wide: U = half;
    const sign = (wide & @as(U, @splat(0x8000))) << @splat(16);
    const magnitude = (wide & @as(U, @splat(0x7fff))) << @splat(f16_shift);
    const exponent = magnitude & @as(U, @splat(0x7c00 << f16_shift));

    const normal = magnitude + @as(U, @splat(bias_difference));
    const special = normal + @as(U, @splat(bias_difference)); // infinity and NaN: exponent 255
    const raised: @Vector(n, f32) = @bitCast(normal + @as(U, @splat(1 << 23)));
    const smallest: @Vector(n, f32) = @splat(@bitCast(@as(u32, bias_difference + (1 << 23))));
    const subnormal: U = @bitCast(raised - smallest);

    const is_special = exponent == @as(U, @splat(0x7c00 << f16_shift));
    const is_subnormal = exponent == @as(U, @splat(0));
    const finite = @select(u32, is_subnormal, subnormal, normal);
    return @bitCast(@select(u32, is_special, special, finite) | sign);
}

/// Round to nearest even. A normal result is rounded by an integer addition that may carry into the
/// exponent; a subnormal one by adding a float whose last mantissa bit weighs as much as the last
/// bit of an f16 subnormal, so that the adder rounds.
pub inline fn f16_from_f32_by_integers(
    comptime n: comptime_int,
    value: @Vector(n, f32),
) @Vector(n, u16) {
    // Signed, since magnitudes have no sign bit and SSE2 compares signed integers only.
    const I = @Vector(n, i32);
    const bits: I = @bitCast(value);
    const magnitude = bits & @as(I, @splat(0x7fff_ffff));
    const sign = (bits >> @splat(16)) & @as(I, @splat(0x8000));

    const odd = (magnitude >> @splat(f16_shift)) & @as(I, @splat(1));
    const rebiased = magnitude -% @as(I, @splat(bias_difference)) +% @as(I, @splat(0xfff)) +% odd;
    const normal = rebiased >> @splat(f16_shift);

    const weight_bits = ((127 - 15) + (23 - 10) + 1) << 23;
    const weight: @Vector(n, f32) = @splat(@bitCast(@as(u32, weight_bits)));
    const sum: I = @bitCast(@as(@Vector(n, f32), @bitCast(magnitude)) + weight);
    const subnormal = sum -% @as(I, @splat(weight_bits));

    const smallest_normal: I = @splat(bias_difference + (1 << 23));
    const overflow: I = @splat((127 + 16) << 23); // 65536: infinity, as is all that rounds to it
    const infinity: I = @splat(0x7f80_0000);
    const finite = @select(i32, magnitude < smallest_normal, subnormal, normal);
    const infinite: I = @splat(0x7c00);
    const nan: I = @splat(0x7e00);
    const special = @select(i32, magnitude > infinity, nan, infinite);
    const half = @select(i32, magnitude < overflow, finite, special) | sign;
    return @truncate(@as(@Vector(n, u32), @bitCast(half)));
}
