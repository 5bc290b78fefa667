//! The specification of the codecs: what every byte of an encoded piece is, one element at a time,
//! in plain code. The vector code must give the same bytes on every CPU level; codec_test.zig
//! demands it. This file is never on a hot path. Why the formats are as they are:
//! docs/internals/KERNELS.md.
//!
//! All arithmetic is in f32, each operation rounded once, nothing contracted. An f64 is rounded to
//! f32 first and widened at the end. A piece is some consecutive elements of an array, encoded by
//! itself. Its values are those of its elements, or, with `rotate`, those of the rotated blocks:
//! sums are formed in the rotated domain, and only `decode` rotates back.
//!
//!   half   Each element by itself as bf16 or f16, NaNs canonical.
//!   block  Scales (bf16, one per block), then codes. A value is code times scale. A block with a
//!          NaN, an infinity or a magnitude of 2^127 or more is an escape block: its scale is NaN,
//!          its codes zero, and all its elements decode to NaN. A block whose scale would be below
//!          2^-110 has the scale zero, and decodes to zeros.
//!   range  The range of the whole piece as two f32, then one byte per element. With a NaN, an
//!          infinity or a magnitude of 2^127 or more, all elements decode to NaN.
//!
//! A sum is divided (avg) by multiplying what it is scaled by with 1/divisor rounded to f32, and
//! one that is not encoded again by a true division. Contributions to an average are multiplied by
//! a power of two (`shift`) before they are encoded or added, so that no sum is greater than the
//! greatest of them, and the division takes that out again: scales have room for both.

const std = @import("std");
const base = @import("base");
const scalar = @import("scalar.zig");
const Mean = @import("mean.zig").Mean;
const assert = std.debug.assert;

const Codec = base.Codec;
const DType = base.DType;
const Kind = base.codec.Kind;
const block_elements_max = base.codec.block_elements_max;

/// Which elements, and what their signs and random bits follow from.
pub const Piece = struct {
    codec: Codec,
    dtype: DType,
    count: usize,
    /// The same on all peers, as is `operation`.
    seed: u64,
    operation: u64,
    /// The peer that rounds, and its step: peers that round alike would err alike.
    origin: u32 = 0,
    /// Index of the first element in the whole array, a multiple of the codec's granule.
    first: u64 = 0,
    /// A contribution to an average, and a sum of these, is 2^-shift of what it is without codec.
    shift: u6 = 0,

    pub fn bytes(piece: Piece) usize {
        return piece.codec.encoded_bytes(piece.count);
    }

    /// 2^-shift
    pub fn down(piece: Piece) f32 {
        return 1 / piece.up();
    }

    /// 2^shift
    pub fn up(piece: Piece) f32 {
        return @floatFromInt(@as(u64, 1) << piece.shift);
    }

    /// By what a sum of contributions is multiplied when it is encoded: 1 on its way.
    pub fn factor(piece: Piece, divisor: u32) f32 {
        return if (divisor > 1) 1 / @as(f32, @floatFromInt(divisor)) * piece.up() else 1;
    }

    /// By what a sum of contributions is divided.
    pub fn divisor_of(piece: Piece, divisor: u32) f32 {
        return if (divisor > 1) @as(f32, @floatFromInt(divisor)) * piece.down() else 1;
    }
};

/// f32 for each element of a piece: what its former encoding lost, to be added now, and what this
/// one loses: zero where that is no finite number. Both may be the same memory.
pub const Residual = struct { in: [*]const u8, out: [*]u8 };

const one: u32 = 1;
pub const escape_bits = 0x7f00_0000; // 2^127
const scale_nan: u16 = 0x7fc0;
const scale_min_bits: u16 = (127 - 110) << 7; // 2^-110 as bf16
pub const range_min: f32 = 0x1p-110;

/// out := the encoded elements.
pub fn encode(piece: Piece, out: [*]u8, input: [*]const u8, residual: ?Residual) void {
    const spans = Spans.of(piece);
    for (0..spans.number) |number| {
        const span = spans.at(number);
        var values: Values = .{};
        var wanted: Values = .{};
        for (span.begin..span.end, 0..) |index, place| {
            wanted.put(place, f32_at(piece.dtype, input, index) + residual_at(residual, index));
            values.put(place, wanted.get(place));
        }
        rotate(piece, &values);
        write(piece, span, out, &values, piece.down());
        const rest = residual orelse continue;
        read(piece, span, out, &values);
        rotate_back(piece, &values);
        for (span.begin..span.end, 0..) |index, place| {
            const lost = wanted.get(place) - values.get(place) * piece.up();
            put_f32(rest.out, index, if (std.math.isFinite(lost)) lost else 0);
        }
    }
}

/// out := the elements of an encoded piece.
pub fn decode(piece: Piece, out: [*]u8, encoded: [*]const u8) void {
    const spans = Spans.of(piece);
    for (0..spans.number) |number| {
        const span = spans.at(number);
        var values: Values = .{};
        read(piece, span, encoded, &values);
        rotate_back(piece, &values);
        for (span.begin..span.end, 0..) |index, place| {
            put_element(piece.dtype, out, index, values.get(place));
        }
    }
}

/// The step of a ring: out := the encoding of (partial + own) / divisor. A residual is added to
/// `own`, and is then what the encoding of the sum loses.
pub fn accumulate_encode(
    piece: Piece,
    out: [*]u8,
    partial: [*]const u8,
    own: [*]const u8,
    residual: ?Residual,
    divisor: u32,
) void {
    reduce_encode(piece, out, own, 1, &.{partial}, residual, divisor);
}

/// The step of an owner: out := the encoding of the sum of all inputs over `divisor`, where `own`,
/// which was never encoded, is added after `position` of them.
pub fn reduce_encode(
    piece: Piece,
    out: [*]u8,
    own: [*]const u8,
    position: usize,
    inputs: []const [*]const u8,
    residual: ?Residual,
    divisor: u32,
) void {
    assert(position <= inputs.len);
    const spans = Spans.of(piece);
    for (0..spans.number) |number| {
        const span = spans.at(number);
        var mine: Values = .{};
        for (span.begin..span.end, 0..) |index, place| {
            const value = f32_at(piece.dtype, own, index) + residual_at(residual, index);
            mine.put(place, value * piece.down());
        }
        var wanted = mine;
        rotate(piece, &mine);
        var sum: Values = .{};
        for (0..inputs.len + 1) |turn| {
            var next = mine;
            if (turn < position) read(piece, span, inputs[turn], &next);
            if (turn > position) read(piece, span, inputs[turn - 1], &next);
            for (0..span.padded) |place| {
                const value = next.get(place);
                sum.put(place, if (turn == 0) value else sum.get(place) + value);
            }
        }
        write(piece, span, out, &sum, piece.factor(divisor));
        const rest = residual orelse continue;
        // The loss is counted in elements: own, then the inputs in their order, each decoded.
        for (inputs) |input| {
            var next: Values = .{};
            read(piece, span, input, &next);
            rotate_back(piece, &next);
            for (0..span.end - span.begin) |place| {
                wanted.put(place, wanted.get(place) + next.get(place));
            }
        }
        var got: Values = .{};
        read(piece, span, out, &got);
        rotate_back(piece, &got);
        const scale = piece.divisor_of(divisor);
        for (span.begin..span.end, 0..) |index, place| {
            const lost = (wanted.get(place) - got.get(place) * scale) * piece.up();
            put_f32(rest.out, index, if (std.math.isFinite(lost)) lost else 0);
        }
    }
}

/// The step of an owner that alone has the result: out := the sum of all inputs and `own`, which
/// was never encoded, over `divisor`. `own` is added after `position` of them. But where blocks are
/// rotated it comes last: the inputs are added up as they are and rotated back once. A residual is
/// added to `own`, and nothing is lost.
pub fn reduce_decode(
    piece: Piece,
    out: [*]u8,
    own: [*]const u8,
    position: usize,
    inputs: []const [*]const u8,
    residual: ?Residual,
    divisor: u32,
) void {
    assert(position <= inputs.len and inputs.len > 0);
    const place_of_own = if (piece.codec.rotate) inputs.len else position;
    const how: Mean = .{ .up = 1, .down = 1, .divisor = piece.divisor_of(divisor) };
    const spans = Spans.of(piece);
    for (0..spans.number) |number| {
        const span = spans.at(number);
        var mine: Values = .{};
        for (span.begin..span.end, 0..) |index, place| {
            const value = f32_at(piece.dtype, own, index) + residual_at(residual, index);
            mine.put(place, value * piece.down());
        }
        var sum: Values = .{};
        var last: Values = .{};
        for (0..inputs.len + 1) |turn| {
            var next = mine;
            if (turn < place_of_own) read(piece, span, inputs[turn], &next);
            if (turn > place_of_own) read(piece, span, inputs[turn - 1], &next);
            if (turn == place_of_own) rotate_back(piece, &sum);
            if (turn == inputs.len) last = next else for (0..span.padded) |place| {
                const value = next.get(place);
                sum.put(place, if (turn == 0) value else sum.get(place) + value);
            }
        }
        for (span.begin..span.end, 0..) |index, place| {
            const all = .{ sum.get(place), last.get(place) };
            const value = if (divisor > 1)
                scalar.mean(.f32, f32, true, all[0], all[1], &how)
            else
                all[0] + all[1];
            put_element(piece.dtype, out, index, value);
            if (residual) |rest| put_f32(rest.out, index, 0);
        }
    }
}

// ---- Spans: elements that are encoded together ------------------------------------------------

/// A block, a whole piece (range), or so many 16-bit floats. `padded` counts the zeros behind the
/// last element too.
const Span = struct { number: usize, begin: usize, end: usize, padded: usize };

const Spans = struct {
    number: usize,
    width: usize,
    count: usize,
    pads: bool,

    fn of(piece: Piece) Spans {
        assert(piece.first % piece.codec.granule() == 0);
        const width = switch (piece.codec.kind.family()) {
            .none => unreachable,
            .half => block_elements_max,
            .block => piece.codec.block.elements(),
            .range => @max(piece.count, 1),
        };
        return .{
            .number = if (piece.codec.kind.family() == .range) 1 else blk: {
                break :blk std.math.divCeil(usize, piece.count, width) catch unreachable;
            },
            .width = width,
            .count = piece.count,
            .pads = piece.codec.kind.family() == .block,
        };
    }

    fn at(spans: Spans, number: usize) Span {
        const begin = number * spans.width;
        const end = @min(begin + spans.width, spans.count);
        const padded = if (spans.pads) spans.width else end - begin;
        return .{ .number = number, .begin = begin, .end = end, .padded = padded };
    }
};

/// The values of a span. A range spans a whole piece, of which the tests make this many elements.
const Values = struct {
    items: [values_max]f32 = @splat(0),

    const values_max = 1100;

    fn get(values: *const Values, index: usize) f32 {
        return values.items[index];
    }

    fn put(values: *Values, index: usize, value: f32) void {
        values.items[index] = value;
    }
};

fn f32_at(dtype: DType, bytes: [*]const u8, index: usize) f32 {
    return switch (dtype) {
        .f64 => @floatCast(scalar.load(.f64, f64, bytes, index)),
        inline .f32, .f16, .bf16 => |d| scalar.load(d, f32, bytes, index),
        else => unreachable, // codecs are for floats
    };
}

fn put_element(dtype: DType, bytes: [*]u8, index: usize, value: f32) void {
    switch (dtype) {
        .f64 => scalar.store(.f64, f64, bytes, index, value),
        inline .f32, .f16, .bf16 => |d| scalar.store(d, f32, bytes, index, value),
        else => unreachable,
    }
}

fn residual_at(residual: ?Residual, index: usize) f32 {
    const rest = residual orelse return -0.0; // the number that changes none when it is added
    return scalar.load(.f32, f32, rest.in, index);
}

fn put_f32(bytes: [*]u8, index: usize, value: f32) void {
    scalar.put(.f32, bytes, index).* = value;
}

fn write(piece: Piece, span: Span, out: [*]u8, values: *const Values, factor: f32) void {
    switch (piece.codec.kind.family()) {
        .none => unreachable,
        .half => for (span.begin..span.end, 0..) |index, place| {
            const half = half_from(piece, index, values.get(place) * factor);
            scalar.put(.u16, out, index).* = half;
        },
        .block => write_block(piece, span, out, values, factor),
        .range => write_range(piece, span, out, values, factor),
    }
}

fn read(piece: Piece, span: Span, encoded: [*]const u8, values: *Values) void {
    switch (piece.codec.kind.family()) {
        .none => unreachable,
        .half => for (span.begin..span.end, 0..) |index, place| {
            values.put(place, switch (piece.codec.kind) {
                .bf16 => scalar.load(.bf16, f32, encoded, index),
                .f16 => scalar.load(.f16, f32, encoded, index),
                else => unreachable,
            });
        },
        .block => read_block(piece, span, encoded, values),
        .range => read_range(piece, span, encoded, values),
    }
}

// ---- 16-bit floats ----------------------------------------------------------------------------

fn half_from(piece: Piece, index: usize, value: f32) u16 {
    const is_bf16 = piece.codec.kind == .bf16;
    if (std.math.isNan(value)) return if (is_bf16) 0x7fc0 else 0x7e00;
    if (piece.codec.rounding == .nearest) {
        if (is_bf16) return scalar.bf16_from_f32(value);
        return @bitCast(@as(f16, @floatCast(value)));
    }
    const random = noise_half(piece, piece.first + index);
    const bits: u32 = @bitCast(value);
    const sign: u16 = @intCast(bits >> 31 << 15);
    const magnitude = bits & 0x7fff_ffff;
    if (is_bf16) {
        if (magnitude == 0x7f80_0000) return sign | 0x7f80;
        return sign | @as(u16, @intCast((magnitude + random) >> 16));
    }
    if (magnitude >= 0x4780_0000) return sign | 0x7c00; // 65536 and more
    if (magnitude >= 0x3880_0000) { // 2^-14, the smallest normal f16
        return sign | @as(u16, @intCast((magnitude + (random >> 3) - 0x3800_0000) >> 13));
    }
    // 2^-9 + magnitude has 8 bits below the last bit of an f16 subnormal.
    const raised: u32 = @bitCast(@as(f32, @bitCast(magnitude)) + 0x1p-9);
    const fixed = raised - @as(u32, @bitCast(@as(f32, 0x1p-9)));
    return sign | @as(u16, @intCast((fixed + (random >> 8)) >> 8));
}

// ---- 8-bit floats, without a scale --------------------------------------------------------------

/// E4M3 of OCP has no infinity: beyond 464, halfway between 448 and the 480 that is NaN's code, is
/// NaN. At 464 the even one is 448.
pub fn fp8_from_f32(value: f32) u8 {
    if (!(@abs(value) <= 464)) return 0x7f;
    return small_float(3, -6, .{ .kind = .fp8_e4m3 }, value, 0);
}

pub fn f32_from_fp8(code: u8) f32 {
    if (code & 0x7f == 0x7f) return std.math.nan(f32);
    return small_float_value(3, -6, 8, code);
}

// ---- Blocks -----------------------------------------------------------------------------------

/// The greatest magnitude of a code, which stands for the greatest magnitude of the block.
fn code_max(kind: Kind) f32 {
    return switch (kind) {
        .int8 => 127,
        .int6 => 31,
        .int5 => 15,
        .int4 => 7,
        .e3m0 => 64,
        .fp8_e4m3 => 448,
        else => unreachable,
    };
}

/// A scale above this, or a negative one, or a NaN, is that of an escape block.
fn scale_max_bits(kind: Kind) u16 {
    return scalar.bf16_from_f32(0x1p127 / code_max(kind));
}

fn write_block(piece: Piece, span: Span, out: [*]u8, values: *const Values, factor: f32) void {
    const codec = piece.codec;
    const block = codec.block.elements();
    var greatest: u32 = 0;
    for (values.items[0..block]) |value| {
        greatest = @max(greatest, @as(u32, @bitCast(value)) & 0x7fff_ffff);
    }
    var scale: u16 = scale_nan;
    var inverse: f32 = 0;
    if (greatest < escape_bits) {
        const wanted = @as(f32, @bitCast(greatest)) * factor * (1 / code_max(codec.kind));
        scale = switch (codec.rounding) {
            .nearest => scalar.bf16_from_f32(wanted),
            // Upward, so that no code is above the greatest whatever the random bits are.
            .stochastic => @intCast((@as(u32, @bitCast(wanted)) + 0xffff) >> 16),
        };
        if (scale < scale_min_bits) scale = 0 else inverse = factor / f32_of(scale);
    }
    scalar.put(.u16, out, span.number).* = scale;

    var codes: [block_elements_max]u8 = undefined;
    for (codes[0..block], values.items[0..block], 0..) |*code, value, index| {
        const element = piece.first + span.begin + index;
        const random = if (codec.rounding == .stochastic) noise_byte(piece, element) else 0;
        const scaled = if (inverse == 0) 0 else value * inverse;
        code.* = code_from(codec, scaled, random);
    }
    const bytes = block * codec.kind.bits() / 8;
    const place = codec.head_bytes(piece.count) + span.number * bytes;
    pack(codec.kind.bits(), out[place..], codes[0..block]);
}

fn read_block(piece: Piece, span: Span, encoded: [*]const u8, values: *Values) void {
    const codec = piece.codec;
    const block = codec.block.elements();
    const scale = scalar.at(.u16, encoded, span.number).*;
    const bytes = block * codec.kind.bits() / 8;
    const packed_codes = encoded[codec.head_bytes(piece.count) + span.number * bytes ..];
    for (0..block) |place| {
        const code = unpack(codec.kind.bits(), packed_codes, block, place);
        // The product is exact: 8 bits times 8 bits.
        const value = value_of(codec.kind, code) * f32_of(scale);
        const escaped = scale > scale_max_bits(codec.kind);
        values.put(place, if (escaped) std.math.nan(f32) else value);
    }
}

/// An int8 is two's complement. Narrower integers are stored with 2^(bits - 1) added.
fn code_from(codec: Codec, scaled: f32, random: u8) u8 {
    switch (codec.kind) {
        .int8, .int6, .int5, .int4 => {
            const number = switch (codec.rounding) {
                .nearest => fixed_point(scaled, 0),
                .stochastic => (fixed_point(scaled, 8) + random) >> 8,
            };
            if (codec.kind == .int8) return @bitCast(@as(i8, @intCast(number)));
            return @intCast(number + bias_of(codec.kind));
        },
        .e3m0 => return small_float(0, 0, codec, scaled, random),
        .fp8_e4m3 => return small_float(3, -6, codec, scaled, random),
        else => unreachable,
    }
}

fn bias_of(kind: Kind) i32 {
    return @as(i32, 1) << @intCast(kind.bits() - 1);
}

/// `value` with so many bits behind the point, rounded to nearest even: the adder does it, because
/// the last bit of a float of this size is worth 2^-fraction.
pub fn fixed_point(value: f32, comptime fraction: comptime_int) i32 {
    const big: f32 = 1.5 * (1 << (23 - fraction));
    return @as(i32, @bitCast(value + big)) - @as(i32, @bitCast(big));
}

/// A float with `mantissa` bits of mantissa whose smallest normal number is 2^`least`.
fn small_float(
    comptime mantissa: comptime_int,
    comptime least: comptime_int,
    codec: Codec,
    scaled: f32,
    random: u8,
) u8 {
    const sign: u32 = @as(u32, @bitCast(scaled)) >> 31 << @intCast(codec.kind.bits() - 1);
    const magnitude = @min(@abs(scaled), code_max(codec.kind));
    const bits: u32 = @bitCast(magnitude);
    const nearest = codec.rounding == .nearest;
    if (magnitude < std.math.ldexp(@as(f32, 1), least)) {
        // A subnormal, or zero: an integer times 2^(least - mantissa). Rounded as in fixed_point.
        const fraction: i32 = if (nearest) 0 else 8;
        const big: f32 = std.math.ldexp(@as(f32, 1), 23 + least - mantissa - fraction);
        const fixed = @as(u32, @bitCast(magnitude + big)) - @as(u32, @bitCast(big));
        return @intCast(sign | (if (nearest) fixed else (fixed + random) >> 8));
    }
    const dropped = 23 - mantissa;
    const odd = (bits >> dropped) & 1;
    const rounded = if (nearest)
        bits + (one << (dropped - 1)) - 1 + odd
    else
        bits + (one << (dropped - 9)) + (@as(u32, random) << (dropped - 8));
    const exponent_offset = (127 + least - 1) << mantissa;
    return @intCast(sign | ((rounded >> dropped) - exponent_offset));
}

fn value_of(kind: Kind, code: u8) f32 {
    switch (kind) {
        .int8 => return @floatFromInt(@as(i8, @bitCast(code))),
        .int6, .int5, .int4 => return @floatFromInt(code - bias_of(kind)),
        .e3m0 => return small_float_value(0, 0, 4, code),
        .fp8_e4m3 => return small_float_value(3, -6, 8, code),
        else => unreachable,
    }
}

fn small_float_value(
    comptime mantissa: comptime_int,
    comptime least: comptime_int,
    comptime bits: comptime_int,
    code: u8,
) f32 {
    const rest = code & ((1 << (bits - 1)) - 1);
    const exponent: i32 = rest >> mantissa;
    const whole = rest & ((1 << mantissa) - 1);
    const significand: f32 = @floatFromInt(if (exponent == 0) whole else whole + (1 << mantissa));
    const power: i32 = @max(exponent, 1);
    const magnitude = std.math.ldexp(significand, power - 1 + least - mantissa);
    return if (code >> (bits - 1) == 1) -magnitude else magnitude;
}

/// Codes of 8 bits are bytes. Else the low four bits of elements i and i + block/2 make byte i;
/// then come the bits above them: two of elements i + k * block/4, or one of i + k * block/8, with
/// the first in the lowest bits.
fn pack(bits: usize, out: [*]u8, codes: []const u8) void {
    const block = codes.len;
    @memset(out[0 .. block * bits / 8], 0);
    for (codes, 0..) |code, index| {
        if (bits == 8) {
            out[index] = code;
            continue;
        }
        out[index % (block / 2)] |= (code & 15) << @intCast(4 * (index / (block / 2)));
        if (bits == 4) continue;
        const each = bits - 4;
        const bytes = block * each / 8;
        const shift: u3 = @intCast(each * (index / bytes));
        out[block / 2 + index % bytes] |= (code >> 4) << shift;
    }
}

fn unpack(bits: usize, packed_codes: [*]const u8, block: usize, index: usize) u8 {
    if (bits == 8) return packed_codes[index];
    const shift: u3 = @intCast(4 * (index / (block / 2)));
    const low = (packed_codes[index % (block / 2)] >> shift) & 15;
    if (bits == 4) return low;
    const each = bits - 4;
    const bytes = block * each / 8;
    const high_shift: u3 = @intCast(each * (index / bytes));
    const mask = (@as(u8, 1) << @intCast(each)) - 1;
    const high = (packed_codes[block / 2 + index % bytes] >> high_shift) & mask;
    return low | high << 4;
}

fn f32_of(scale: u16) f32 {
    return @bitCast(@as(u32, scale) << 16);
}

// ---- Rotation ---------------------------------------------------------------------------------

/// By what values are divided before they are rotated: four times the elements of a block. So no
/// rotated value of finite numbers is more than 2^126, and its sums and roundings stay below 2^127.
/// A power of two changes exponents alone.
pub fn rotation_room(block: base.codec.Block) f32 {
    return @floatFromInt(4 * block.elements());
}

/// Signs and the factor, then the Hadamard matrix.
fn rotate(piece: Piece, values: *Values) void {
    if (!piece.codec.rotate) return;
    const block = piece.codec.block.elements();
    signs(piece, values);
    for (values.items[0..block]) |*value| value.* *= 1 / rotation_room(piece.codec.block);
    hadamard(values.items[0..block]);
}

/// The inverse. 1/block of its factor comes first, so that no sum overflows. An element that
/// rounding has made greater than the greatest f32, but less than 2^130, becomes the greatest f32.
fn rotate_back(piece: Piece, values: *Values) void {
    if (!piece.codec.rotate) return;
    const block = piece.codec.block.elements();
    const factor = 1 / @as(f32, @floatFromInt(block));
    for (values.items[0..block]) |*value| value.* *= factor;
    hadamard(values.items[0..block]);
    const most = std.math.floatMax(f32) / 4;
    for (values.items[0..block]) |*value| {
        const part = value.* * (rotation_room(piece.codec.block) / 4);
        value.* = if (std.math.isFinite(part)) std.math.clamp(part, -most, most) * 4 else part;
    }
    signs(piece, values);
}

fn hadamard(values: []f32) void {
    var distance: usize = 1;
    while (distance < values.len) : (distance *= 2) {
        for (0..values.len) |index| {
            if (index & distance != 0) continue;
            const a = values[index];
            const b = values[index + distance];
            values[index] = a + b;
            values[index + distance] = a - b;
        }
    }
}

/// All blocks of an operation have the same signs.
fn signs(piece: Piece, values: *Values) void {
    for (values.items[0..piece.codec.block.elements()], 0..) |*value, index| {
        const word = sign_word(piece.seed, piece.operation, index / 64);
        if (word >> @intCast(index % 64) & 1 == 1) value.* = -value.*;
    }
}

// ---- Ranges -----------------------------------------------------------------------------------

fn write_range(piece: Piece, span: Span, out: [*]u8, values: *const Values, factor: f32) void {
    const zero_point = piece.codec.kind == .zero_point_u8;
    const items = values.items[0..span.end];
    var least: f32 = if (zero_point or items.len == 0) 0 else items[0];
    var greatest = least;
    var escaped = false;
    for (items) |value| {
        escaped = escaped or @as(u32, @bitCast(value)) & 0x7fff_ffff >= escape_bits;
        least = @min(least, value);
        greatest = @max(greatest, value);
    }
    least += 0.0; // -0 is 0
    greatest += 0.0;
    const nan = std.math.nan(f32);
    const step = (greatest - least) / 255;
    const inverse = if (escaped or step < range_min) 0 else 1 / step;
    const zero: f32 = @floatFromInt(fixed_point(-least * inverse, 0));
    const head: [2]f32 = if (escaped)
        .{ nan, nan }
    else if (zero_point)
        .{ step * factor, if (inverse == 0) 0 else zero }
    else
        .{ least * factor, step * factor };
    put_f32(out, 0, head[0]);
    put_f32(out, 1, head[1]);
    for (out[base.codec.range_bytes..][0..items.len], items) |*code, value| {
        const scaled = if (zero_point) value * inverse else (value - least) * inverse;
        const offset: i32 = if (zero_point) @intFromFloat(zero) else 0;
        const number = if (inverse == 0) 0 else fixed_point(scaled, 0) + offset;
        code.* = @intCast(std.math.clamp(number, 0, 255));
    }
}

fn read_range(piece: Piece, span: Span, encoded: [*]const u8, values: *Values) void {
    const head = [2]f32{
        scalar.load(.f32, f32, encoded, 0),
        scalar.load(.f32, f32, encoded, 1),
    };
    for (encoded[base.codec.range_bytes..][0..span.end], 0..) |code, place| {
        const number: f32 = @floatFromInt(code);
        values.put(place, switch (piece.codec.kind) {
            .min_max_u8 => head[0] + number * head[1],
            .zero_point_u8 => (number - head[1]) * head[0],
            else => unreachable,
        });
    }
}

// ---- Random bits, by counting -----------------------------------------------------------------

/// The finaliser of SplitMix64.
pub fn mix(x: u64) u64 {
    var y = x +% 0x9e37_79b9_7f4a_7c15;
    y = (y ^ (y >> 30)) *% 0xbf58_476d_1ce4_e5b9;
    y = (y ^ (y >> 27)) *% 0x94d0_49bb_1331_11eb;
    return y ^ (y >> 31);
}

/// Bit i: is the sign of element 64 * index + i of each block turned?
pub fn sign_word(seed: u64, operation: u64, index: usize) u64 {
    return mix(mix(mix(seed) ^ operation) +% index);
}

/// The key from which the random bits of one peer's step follow.
pub fn noise_key(seed: u64, operation: u64, origin: u32) u64 {
    return mix(~mix(mix(seed) ^ operation) +% origin);
}

/// Word `number` of the random words: lowbias32 (Chris Wellons) with a key at two places.
pub fn noise_word(key: u64, number: u64) u32 {
    const keys = mix(key +% (number >> 32));
    var x = @as(u32, @truncate(number)) ^ @as(u32, @truncate(keys));
    x = (x ^ (x >> 16)) *% 0x7feb_352d;
    x = (x ^ (x >> 15)) +% @as(u32, @truncate(keys >> 32));
    x = x *% 0x846c_a68b;
    return x ^ (x >> 16);
}

/// Elements i, i + 16, i + 32 and i + 48 of each 64 share a word.
fn noise_byte(piece: Piece, element: u64) u8 {
    const key = noise_key(piece.seed, piece.operation, piece.origin);
    const word = noise_word(key, (element >> 6) * 16 + element % 16);
    return @truncate(word >> @intCast(8 * (element / 16 % 4)));
}

/// Elements i and i + 16 of each 32 share a word.
fn noise_half(piece: Piece, element: u64) u32 {
    const key = noise_key(piece.seed, piece.operation, piece.origin);
    const word = noise_word(key, (element >> 5) * 16 + element % 16);
    return (word >> @intCast(16 * (element / 16 % 2))) & 0xffff;
}
