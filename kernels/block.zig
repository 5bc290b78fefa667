//! The codecs with a scale per block, on whole blocks of f32: encode, decode, decode and add.
//! Compiled once per CPU level (level.zig). What they compute: codec_scalar.zig; who cuts pieces
//! into blocks, converts and rotates them: codec.zig.

const std = @import("std");
const builtin = @import("builtin");
const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");
const narrow = @import("narrow.zig");
const rotate = @import("rotate.zig");
const Noise = @import("noise.zig").Noise;

const Kind = codecs.Kind;
const Block = codecs.Block;
const Rounding = codecs.Rounding;

const lanes = 16;
const V = @Vector(lanes, f32);
const U = @Vector(lanes, u32);
const has_fma = vector.has_fma;

const escape_bits = 0x7f00_0000;
const scale_nan = 0x7fc0;
const scale_min_bits = (127 - 110) << 7;

pub fn encode(
    comptime kind: Kind,
    comptime block: Block,
    comptime rounding: Rounding,
) table.EncodeBlocks {
    const B = Blocks(kind, block);
    return struct {
        fn run(
            scales: [*]u8,
            codes: [*]u8,
            input: [*]const u8,
            blocks: usize,
            factor: f32,
            key: u64,
            first: u64,
        ) callconv(.c) void {
            var noise: Noise = if (rounding == .stochastic) .init(key, first >> 6) else undefined;
            for (0..blocks) |number| {
                const from = input + number * B.input_bytes;
                rotate.prefetch(from, B.input_bytes);
                const element = first + number * B.elements;
                const in: B.Memory = .{ .bytes = from };
                B.write(rounding, scales, codes, number, in, factor, &noise, element);
            }
        }
    }.run;
}

/// The step of a ring in one pass: out := the encoding of (input block + own) * factor.
pub fn add_encode(
    comptime kind: Kind,
    comptime block: Block,
    comptime rounding: Rounding,
) table.AddEncodeBlocks {
    const B = Blocks(kind, block);
    return struct {
        fn run(
            scales: [*]u8,
            codes: [*]u8,
            in_scales: [*]const u8,
            in_codes: [*]const u8,
            own: [*]const u8,
            blocks: usize,
            factor: f32,
            key: u64,
            first: u64,
        ) callconv(.c) void {
            var noise: Noise = if (rounding == .stochastic) .init(key, first >> 6) else undefined;
            for (0..blocks) |number| {
                const from = own + number * B.input_bytes;
                rotate.prefetch(from, B.input_bytes);
                var sums: [B.vectors]V = undefined;
                B.add(&sums, from, in_scales, in_codes, number);
                const element = first + number * B.elements;
                const in: B.Computed = .{ .values = &sums };
                B.write(rounding, scales, codes, number, in, factor, &noise, element);
            }
        }
    }.run;
}

/// out := the values times `factor`, a power of two.
pub fn decode(comptime kind: Kind, comptime block: Block) table.DecodeBlocks {
    const B = Blocks(kind, block);
    return struct {
        fn run(
            out: [*]u8,
            scales: [*]const u8,
            codes: [*]const u8,
            blocks: usize,
            factor: f32,
        ) callconv(.c) void {
            for (0..blocks) |number| {
                const to = out + number * B.input_bytes;
                const from = codes + number * B.code_bytes;
                rotate.prefetch(from, B.code_bytes);
                const scale = B.scale_at(scales, number) orelse {
                    @branchHint(.unlikely);
                    B.fill(to);
                    continue;
                };
                const times: V = @splat(scale * factor);
                const numbers = B.numbers(from);
                inline for (numbers, 0..) |n, v| vector.put(to + v * 64, n * times);
            }
        }
    }.run;
}

/// out := a + the values. `out` may be exactly `a`.
pub fn add(comptime kind: Kind, comptime block: Block) table.AddBlocks {
    const B = Blocks(kind, block);
    return struct {
        fn run(
            out: [*]u8,
            a: [*]const u8,
            scales: [*]const u8,
            codes: [*]const u8,
            blocks: usize,
        ) callconv(.c) void {
            for (0..blocks) |number| {
                const to = out + number * B.input_bytes;
                rotate.prefetch(codes + number * B.code_bytes, B.code_bytes);
                rotate.prefetch(a + number * B.input_bytes, B.input_bytes);
                var sums: [B.vectors]V = undefined;
                B.add(&sums, a + number * B.input_bytes, scales, codes, number);
                inline for (sums, 0..) |sum, v| vector.put(to + v * 64, sum);
            }
        }
    }.run;
}

fn Blocks(comptime kind: Kind, comptime block: Block) type {
    return struct {
        const elements = block.elements();
        const vectors = elements / lanes;
        const input_bytes = elements * 4;
        const code_bytes = elements * kind.bits() / 8;

        /// Values of a block in memory, from where they are loaded twice rather than spilled.
        const Memory = struct {
            bytes: [*]const u8,

            inline fn at(in: Memory, comptime v: usize) V {
                return vector.load(.f32, f32, in.bytes + v * 64);
            }
        };

        /// Values of a block that were just computed.
        const Computed = struct {
            values: *const [vectors]V,

            inline fn at(in: Computed, comptime v: usize) V {
                return in.values[v];
            }
        };

        inline fn write(
            comptime rounding: Rounding,
            scales: [*]u8,
            codes: [*]u8,
            number: usize,
            in: anytype,
            factor: f32,
            noise: *Noise,
            element: u64,
        ) void {
            const to = codes + number * code_bytes;
            const scale = scale_for(rounding, greatest(in), factor);
            if (scale -% 1 >= scale_nan - 1) { // zero or NaN
                @branchHint(.unlikely);
                put_scale(scales, number, scale);
                @memset(to[0..code_bytes], 0);
                return zero_codes(to[0..code_bytes]);
            }
            const inverse: V = @splat(factor / f32_of(scale));
            switch (rounding) {
                .nearest => write_codes(to, in, inverse, .nearest, {}),
                .stochastic => write_codes(to, in, inverse, .stochastic, Random{
                    .noise = noise,
                    .element = element,
                }),
            }
            put_scale(scales, number, scale);
        }

        inline fn greatest(in: anytype) u32 {
            // Bits of magnitudes order like integers, NaNs above all.
            const I = @Vector(lanes, i32);
            const mask: I = @splat(0x7fff_ffff);
            var parts: [vectors]I = undefined;
            inline for (&parts, 0..) |*part, v| part.* = @as(I, @bitCast(in.at(v))) & mask;
            comptime var half = vectors / 2;
            inline while (half > 0) : (half /= 2) {
                inline for (0..half) |v| parts[v] = @max(parts[v], parts[v + half]);
            }
            return @bitCast(@reduce(.Max, parts[0]));
        }

        inline fn scale_for(comptime rounding: Rounding, magnitude: u32, factor: f32) u16 {
            if (magnitude >= escape_bits) {
                @branchHint(.unlikely);
                return scale_nan;
            }
            const wanted = @as(f32, @bitCast(magnitude)) * factor * (1.0 / code_max);
            const bits: u32 = @bitCast(wanted);
            const added = if (rounding == .stochastic) 0xffff else 0x7fff + (bits >> 16 & 1);
            const scale = (bits + added) >> 16;
            return @intCast(if (scale < scale_min_bits) 0 else scale);
        }

        const code_max: f32 = switch (kind) {
            .int8 => 127,
            .int6 => 31,
            .int5 => 15,
            .int4 => 7,
            .e3m0 => 64,
            .fp8_e4m3 => 448,
            else => unreachable,
        };

        inline fn put_scale(scales: [*]u8, number: usize, scale: u16) void {
            const pointer: *align(1) u16 = @ptrCast(scales + number * codecs.scale_bytes);
            pointer.* = scale;
        }

        fn zero_codes(to: *[code_bytes]u8) void {
            switch (kind) {
                .int4 => @memset(to, 0x88),
                .int5 => @memset(to[elements / 2 ..], 0xff),
                .int6 => @memset(to[elements / 2 ..], 0xaa),
                else => {},
            }
        }

        /// The random bytes of a block.
        const Random = struct {
            noise: *Noise,
            element: u64,

            /// 16 elements make a vector, four of which share words.
            inline fn group(random: Random, comptime v: usize) U {
                const words = random.noise.words((random.element >> 6) + v / 4);
                // A block of 32 is the first or the second half of 64.
                if (elements >= 64) return words;
                return words >> @splat(@intCast((random.element & 32) >> 1));
            }
        };

        inline fn write_codes(
            to: [*]u8,
            in: anytype,
            inverse: V,
            comptime rounding: Rounding,
            random: anytype,
        ) void {
            var words: U = undefined;
            var made: [vectors]U = undefined;
            inline for (&made, 0..) |*code, v| {
                var byte: U = undefined;
                if (rounding == .stochastic) {
                    if (v % 4 == 0) words = random.group(v);
                    byte = words >> @splat(8 * (v % 4)) & @as(U, @splat(255));
                }
                code.* = code_from(rounding, in.at(v) * inverse, byte);
            }
            pack(to, &made);
        }

        /// A code in the low bits of each lane. Above it there may be others, but no bit of the
        /// low byte is wrong.
        inline fn code_from(comptime rounding: Rounding, scaled: V, random: U) U {
            return switch (kind) {
                .int8, .int6, .int5, .int4 => integer(rounding, scaled, random),
                .e3m0 => small_float(0, 0, rounding, scaled, random),
                .fp8_e4m3 => small_float(3, -6, rounding, scaled, random),
                else => unreachable,
            };
        }

        const bias = if (kind == .int8) 0 else 1 << (kind.bits() - 1);

        inline fn integer(comptime rounding: Rounding, scaled: V, random: U) U {
            const fraction = if (rounding == .nearest) 0 else 8;
            const big: V = @splat(1.5 * (1 << (23 - fraction)) + bias);
            const fixed: U = @bitCast(scaled + big);
            if (rounding == .nearest) return fixed;
            return (fixed +% random) >> @splat(8) & @as(U, @splat(255));
        }

        inline fn small_float(
            comptime mantissa: comptime_int,
            comptime least: comptime_int,
            comptime rounding: Rounding,
            scaled: V,
            random: U,
        ) U {
            const nearest = rounding == .nearest;
            const given: U = @bitCast(scaled);
            const sign = given >> @splat(31) << @splat(comptime kind.bits() - 1);
            const magnitude = @min(@abs(scaled), @as(V, @splat(code_max)));
            const bits: U = @bitCast(magnitude);

            const fraction = if (nearest) 0 else 8;
            const big_bits: u32 = (127 + 23 + least - mantissa - fraction) << 23;
            const big: V = @splat(@bitCast(big_bits));
            const fixed = @as(U, @bitCast(magnitude + big)) -% @as(U, @splat(big_bits));
            const subnormal = if (nearest) fixed else (fixed +% random) >> @splat(8);

            const dropped = 23 - mantissa;
            const half = 1 << (dropped - 1);
            const added: U = if (nearest)
                @as(U, @splat(half - 1)) + (bits >> @splat(dropped) & @as(U, @splat(1)))
            else
                @as(U, @splat(half >> 8)) + (random << @splat(dropped - 8));
            const exponent_offset: U = @splat((127 + least - 1) << mantissa);
            const normal = ((bits +% added) >> @splat(dropped)) -% exponent_offset;

            const normal_min: V = @splat(@bitCast(@as(u32, 127 + least) << 23));
            return sign | @select(u32, magnitude < normal_min, subnormal, normal);
        }

        inline fn pack(to: [*]u8, made: *const [vectors]U) void {
            switch (comptime kind.bits()) {
                8 => narrow.put_bytes(vectors, to, made.*),
                4 => {
                    var pairs: [vectors / 2]U = undefined;
                    inline for (&pairs, 0..) |*pair, v| {
                        pair.* = made[v] | made[v + vectors / 2] << @splat(4);
                    }
                    narrow.put_bytes(vectors / 2, to, pairs);
                },
                else => {
                    var bytes: [elements]u8 = undefined;
                    narrow.put_bytes(vectors, &bytes, made.*);
                    planes(to, &bytes);
                },
            }
        }

        /// The low four bits of all, then the bits above them.
        inline fn planes(to: [*]u8, bytes: *const [elements]u8) void {
            const Half = @Vector(elements / 2, u8);
            const a: Half = bytes[0 .. elements / 2].*;
            const b: Half = bytes[elements / 2 ..].*;
            const low = (a & @as(Half, @splat(15))) | b << @splat(4);
            to[0 .. elements / 2].* = low;
            const each = comptime kind.bits() - 4;
            const width = elements * each / 8;
            const Part = @Vector(width, u8);
            var high: Part = @splat(0);
            inline for (0..8 / each) |k| {
                const part: Part = bytes[k * width ..][0..width].*;
                high |= (part >> @splat(4)) << @splat(k * each);
            }
            to[elements / 2 ..][0..width].* = high;
        }

        /// Null for an escape block.
        inline fn scale_at(scales: [*]const u8, number: usize) ?f32 {
            const pointer: *align(1) const u16 = @ptrCast(scales + number * codecs.scale_bytes);
            const scale = pointer.*;
            return if (scale > scale_max_bits) null else f32_of(scale);
        }

        const scale_max_bits: u16 = blk: {
            const bits: u32 = @bitCast(@as(f32, 0x1p127 / code_max));
            break :blk (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        };

        inline fn fill(to: [*]u8) void {
            inline for (0..vectors) |v| vector.put(to + v * 64, @as(V, @splat(std.math.nan(f32))));
        }

        inline fn add(
            sums: *[vectors]V,
            a: [*]const u8,
            scales: [*]const u8,
            codes: [*]const u8,
            number: usize,
        ) void {
            const scale = scale_at(scales, number) orelse std.math.nan(f32);
            const times: V = @splat(scale);
            const numbers_here = numbers(codes + number * code_bytes);
            inline for (sums, numbers_here, 0..) |*sum, n, v| {
                // The product is exact, so that both give the same bits.
                const own = vector.load(.f32, f32, a + v * 64);
                sum.* = if (has_fma) @mulAdd(V, n, times, own) else own + n * times;
            }
        }

        /// What the codes of a block stand for, without the scale.
        inline fn numbers(codes: [*]const u8) [vectors]V {
            var result: [vectors]V = undefined;
            switch (comptime kind.bits()) {
                8 => inline for (&result, 0..) |*value, v| {
                    const bytes: @Vector(lanes, u8) = codes[v * lanes ..][0..lanes].*;
                    value.* = value_of(bytes);
                },
                4 => inline for (0..vectors / 2) |v| {
                    const pairs: @Vector(lanes, u8) = codes[v * lanes ..][0..lanes].*;
                    result[v] = value_of(pairs & @as(@Vector(lanes, u8), @splat(15)));
                    result[v + vectors / 2] = value_of(pairs >> @splat(4));
                },
                else => {
                    const bytes = joined(codes);
                    inline for (&result, 0..) |*value, v| {
                        const part: @Vector(lanes, u8) = bytes[v * lanes ..][0..lanes].*;
                        value.* = value_of(part);
                    }
                },
            }
            return result;
        }

        /// The planes put together again.
        inline fn joined(codes: [*]const u8) [elements]u8 {
            const Half = @Vector(elements / 2, u8);
            var bytes: [elements]u8 = undefined;
            const each = comptime kind.bits() - 4;
            const width = elements * each / 8;
            const Part = @Vector(width, u8);
            const high: Part = codes[elements / 2 ..][0..width].*;
            const mask: Part = @splat((1 << each) - 1);
            inline for (0..8 / each) |k| {
                const part = (high >> @splat(k * each)) & mask;
                bytes[k * width ..][0..width].* = part << @splat(4);
            }
            const low: Half = codes[0 .. elements / 2].*;
            const a: Half = bytes[0 .. elements / 2].*;
            const b: Half = bytes[elements / 2 ..].*;
            bytes[0 .. elements / 2].* = a | (low & @as(Half, @splat(15)));
            bytes[elements / 2 ..].* = b | low >> @splat(4);
            return bytes;
        }

        inline fn value_of(code: @Vector(lanes, u8)) V {
            switch (kind) {
                .int8 => {
                    const signed: @Vector(lanes, i8) = @bitCast(code);
                    return @floatFromInt(@as(@Vector(lanes, i32), signed));
                },
                .int6, .int5, .int4 => {
                    const wide: @Vector(lanes, i32) = code;
                    return @floatFromInt(wide - @as(@Vector(lanes, i32), @splat(bias)));
                },
                .e3m0 => {
                    const wide: U = code;
                    const sign = (wide & @as(U, @splat(8))) << @splat(28);
                    // As the exponent of an f32: zero stays zero.
                    const bits = (wide & @as(U, @splat(7))) << @splat(23) | sign;
                    return @as(V, @bitCast(bits)) * @as(V, @splat(0x1p126));
                },
                .fp8_e4m3 => {
                    // As an f16, which has one exponent bit more: less by 2^8.
                    const wide: @Vector(lanes, u16) = code;
                    const W = @Vector(lanes, u16);
                    const sign = (wide & @as(W, @splat(0x80))) << @splat(8);
                    const half = (wide & @as(W, @splat(0x7f))) << @splat(7) | sign;
                    return vector.f32_from_f16(lanes, half) * @as(V, @splat(0x1p8));
                },
                else => unreachable,
            }
        }
    };
}

inline fn f32_of(scale: u16) f32 {
    return @bitCast(@as(u32, scale) << 16);
}
