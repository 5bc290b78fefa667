//! Conversions between f32 and the 8-bit float of OCP, E4M3: float8_e4m3fn in ml_dtypes and torch.
//! E4M3 has no infinity; a value that rounds to more than 448 is NaN. Compiled once per CPU level
//! (level.zig). Specification: codec_scalar.zig. The codec with a scale per block, which never
//! overflows: block.zig.

const half = @import("half.zig");
const narrow = @import("narrow.zig");
const vector = @import("vector.zig");

const lanes = 16;
const V = @Vector(lanes, f32);
const I = @Vector(lanes, i32);
const U = @Vector(lanes, u32);
const W = @Vector(lanes, u16);
const Bytes = @Vector(lanes, u8);

const mantissa_dropped = 23 - 3;
const exponent_offset = (127 - 7) << 3;
const nan_code = 0x7f;

/// Rounded to nearest even. NaNs, and what becomes one, are canonical.
pub fn from_f32(out: [*]u8, input: [*]const u8, count: usize) callconv(.c) void {
    half.each(1, 4, out, input, count, .{}, struct {
        inline fn step(to: [*]u8, from: [*]const u8, _: usize, _: anytype) void {
            narrow.put_bytes(1, to, .{code_of(vector.load(.f32, f32, from))});
        }
    }.step);
}

pub fn to_f32(out: [*]u8, input: [*]const u8, count: usize) callconv(.c) void {
    half.each(4, 1, out, input, count, .{}, struct {
        inline fn step(to: [*]u8, from: [*]const u8, _: usize, _: anytype) void {
            const code: Bytes = from[0..lanes].*;
            const is_nan = code & @as(Bytes, @splat(0x7f)) == @as(Bytes, @splat(nan_code));
            const nan: V = @splat(@bitCast(@as(u32, 0x7fc0_0000)));
            vector.put(to, @select(f32, is_nan, nan, finite(code)));
        }
    }.step);
}

/// The value of a code that is no NaN: as an f16, which has one exponent bit more, it is less by
/// 2^8.
pub inline fn finite(code: Bytes) V {
    const wide: W = code;
    const sign = (wide & @as(W, @splat(0x80))) << @splat(8);
    const bits = (wide & @as(W, @splat(0x7f))) << @splat(7) | sign;
    return vector.f32_from_f16(lanes, bits) * @as(V, @splat(0x1p8));
}

/// Signed, since SSE2 compares signed integers only.
inline fn code_of(value: V) U {
    const bits: I = @bitCast(value);
    // 480 is where NaN's code would be a number; infinities and NaNs are above it.
    const above: I = @splat(@bitCast(@as(f32, 480)));
    const magnitude = @min(bits & @as(I, @splat(0x7fff_ffff)), above);
    const odd = magnitude >> @splat(mantissa_dropped) & @as(I, @splat(1));
    const rounded = magnitude + @as(I, @splat((1 << (mantissa_dropped - 1)) - 1)) + odd;
    const normal = (rounded >> @splat(mantissa_dropped)) - @as(I, @splat(exponent_offset));

    // The last bit of a float of this size weighs as much as that of a subnormal: the adder rounds.
    const weight: V = @splat(0x1p14);
    const sum: I = @bitCast(@as(V, @bitCast(magnitude)) + weight);
    const subnormal = sum - @as(I, @bitCast(weight));

    const normal_min: I = @splat(@bitCast(@as(f32, 0x1p-6)));
    const code = @select(i32, magnitude < normal_min, subnormal, normal);
    const sign = bits >> @splat(24) & @as(I, @splat(0x80));
    const nan: I = @splat(nan_code);
    return @bitCast(@select(i32, code == nan, nan, code | sign));
}
