//! The codecs with a scale per block, on whole blocks of f32. Compiled once per CPU level
//! (level.zig). What they compute: codec_scalar.zig; who cuts pieces into blocks: codec.zig.
//!
//! From a block's values to its scale is a long way of dependent steps: reduce, multiply, round,
//! divide. So encoding goes in batches: first the values of some blocks and their greatest
//! magnitudes, then all scales in one vector, then all codes. What a batch keeps stays in the
//! first-level cache.

const std = @import("std");
const builtin = @import("builtin");
const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");
const fp8 = @import("fp8.zig");
const narrow = @import("narrow.zig");
const rotate = @import("rotate.zig");
const Noise = @import("noise.zig").Noise;

const Kind = codecs.Kind;
const Block = codecs.Block;
const Rounding = codecs.Rounding;

const lanes = 16;
const V = @Vector(lanes, f32);
const U = @Vector(lanes, u32);
const Bytes = @Vector(lanes, u8);
const has_fma = vector.has_fma;

const escape_bits = 0x7f00_0000;
const scale_nan = 0x7fc0;
const one_bits = 0x3f80_0000;
const scale_min_bits = (127 - 110) << 7;

/// out := the encoding of (the job's inputs and own blocks, rotated) * factor.
pub fn encode(
    comptime kind: Kind,
    comptime block: Block,
    comptime rounding: Rounding,
) table.EncodeBlocks {
    const B = Blocks(kind, block);
    return struct {
        fn run(job: *const table.EncodeJob) callconv(.c) void {
            const stochastic = rounding == .stochastic;
            var noise: Noise = if (stochastic) .init(job.key, job.first >> 6) else undefined;
            const in_place = job.signs == null and job.input_count == 0;
            var scratch: [B.batch * B.elements]f32 align(64) = undefined;
            var number: usize = 0;
            while (number < job.blocks) : (number += B.batch) {
                const count = @min(B.batch, job.blocks - number);
                var values: [*]const u8 = std.mem.asBytes(&scratch);
                if (in_place) values = job.own + number * B.value_bytes;
                // The lanes behind the last block are those of a harmless one.
                var magnitudes: [B.batch]u32 = @splat(one_bits);
                for (magnitudes[0..count], 0..) |*magnitude, index| {
                    const own = job.own + (number + index) * B.value_bytes;
                    rotate.prefetch(own, B.value_bytes);
                    const to = std.mem.asBytes(&scratch)[index * B.value_bytes ..].ptr;
                    if (in_place) {
                        magnitude.* = B.greatest(own);
                    } else if (job.signs) |signs| {
                        rotate.forward(B.vectors, to, own, signs);
                        magnitude.* = B.sum(job, number + index, to, to);
                    } else {
                        magnitude.* = B.sum(job, number + index, to, own);
                    }
                }
                const batch = B.scales(rounding, magnitudes, job.factor);
                for (0..count) |index| {
                    const to = job.codes + (number + index) * B.code_bytes;
                    if (batch.any_empty and batch.inverses[index] == 0) {
                        @branchHint(.unlikely);
                        B.put_zeros(to[0..B.code_bytes]);
                        continue;
                    }
                    const from = values + index * B.value_bytes;
                    const element = job.first + (number + index) * B.elements;
                    B.put_codes(to, from, batch.inverses[index], rounding, &noise, element);
                }
                const to = job.scales + number * codecs.scale_bytes;
                if (count == B.batch) {
                    const all: @Vector(B.batch, u16) = batch.scales;
                    vector.put(to, all);
                } else for (batch.scales[0..count], 0..) |scale, index| {
                    vector.put(to + index * codecs.scale_bytes, scale);
                }
            }
        }
    }.run;
}

/// out := the values. With signs they are rotated back, which takes out their factor.
pub fn decode(comptime kind: Kind, comptime block: Block) table.DecodeBlocks {
    const B = Blocks(kind, block);
    return struct {
        fn run(
            out: [*]u8,
            scales: [*]const u8,
            codes: [*]const u8,
            signs: ?*const table.Signs,
            blocks: usize,
        ) callconv(.c) void {
            const factor: f32 = if (signs == null) 1 else 1.0 / @as(f32, B.elements);
            for (0..blocks) |number| {
                const to = out + number * B.value_bytes;
                const from = codes + number * B.code_bytes;
                rotate.prefetch(from, B.code_bytes);
                const scale = B.scale_at(scales, number) orelse {
                    @branchHint(.unlikely);
                    const nans: V = @splat(std.math.nan(f32));
                    inline for (0..B.vectors) |v| vector.put(to + v * 64, nans);
                    continue;
                };
                const times: V = @splat(scale * factor);
                inline for (0..B.vectors / B.chunk) |c| {
                    var values: [B.chunk]V = undefined;
                    inline for (&values, c * B.chunk..) |*value, v| {
                        value.* = B.number_at(from, v) * times;
                    }
                    if (signs != null) rotate.within(B.chunk, &values);
                    inline for (values, c * B.chunk..) |value, v| vector.put(to + v * 64, value);
                }
                if (signs) |turns| rotate.spread(B.vectors, to, turns);
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
                rotate.prefetch(codes + number * B.code_bytes, B.code_bytes);
                rotate.prefetch(a + number * B.value_bytes, B.value_bytes);
                const times: V = @splat(B.scale_at(scales, number) orelse std.math.nan(f32));
                inline for (0..B.vectors) |v| {
                    const at = number * B.value_bytes + v * 64;
                    const own = vector.load(.f32, f32, a + at);
                    const from = codes + number * B.code_bytes;
                    vector.put(out + at, plus(own, B.number_at(from, v), times));
                }
            }
        }
    }.run;
}

fn Blocks(comptime kind: Kind, comptime block: Block) type {
    return struct {
        const elements = block.elements();
        const vectors = elements / lanes;
        const value_bytes = elements * 4;
        const code_bytes = elements * kind.bits() / 8;

        /// Blocks whose scales are computed together.
        const batch = @min(16, 1024 / elements);

        /// Vectors of a block that are worked on in registers.
        const chunk = @min(vectors, rotate.chunk_max);

        /// to := the values of a block that are to be encoded, added in the order of the ranks.
        /// `own` may be `to`. Returns the bits of the greatest magnitude.
        inline fn sum(
            job: *const table.EncodeJob,
            number: usize,
            to: [*]u8,
            own: [*]const u8,
        ) u32 {
            if (job.input_count == 0) return greatest(own);
            for (job.inputs[0..job.input_count]) |from| {
                rotate.prefetch(from + job.codes_at + number * code_bytes, code_bytes);
            }
            inline for (0..vectors / chunk) |c| {
                var sums: [chunk]V = undefined;
                // A negative zero changes nothing that is added to it.
                inline for (&sums) |*s| s.* = @splat(-0.0);
                add_all(c, &sums, job, number, 0, job.position);
                inline for (&sums, c * chunk..) |*s, v| {
                    s.* += vector.load(.f32, f32, own + v * 64);
                }
                add_all(c, &sums, job, number, job.position, job.input_count);
                inline for (sums, c * chunk..) |s, v| vector.put(to + v * 64, s);
            }
            return greatest(to);
        }

        inline fn add_all(
            comptime c: usize,
            sums: *[chunk]V,
            job: *const table.EncodeJob,
            number: usize,
            begin: usize,
            end: usize,
        ) void {
            for (job.inputs[begin..end]) |from| {
                const scale = scale_at(from + job.scales_at, number) orelse std.math.nan(f32);
                const times: V = @splat(scale);
                const codes = from + job.codes_at + number * code_bytes;
                inline for (sums, c * chunk..) |*s, v| {
                    s.* = plus(s.*, number_at(codes, v), times);
                }
            }
        }

        /// Bits order like integers, NaNs above all.
        inline fn greatest(from: [*]const u8) u32 {
            const I = @Vector(lanes, i32);
            const mask: I = @splat(0x7fff_ffff);
            var parts: [vectors]I = undefined;
            inline for (&parts, 0..) |*part, v| {
                const bits: I = @bitCast(vector.load(.f32, f32, from + v * 64));
                part.* = bits & mask;
            }
            comptime var half = vectors / 2;
            inline while (half > 0) : (half /= 2) {
                inline for (0..half) |v| parts[v] = @max(parts[v], parts[v + half]);
            }
            return @bitCast(@reduce(.Max, parts[0]));
        }

        /// `inverses` are zero for blocks without codes: escaped ones and those of zeros.
        const Scales = struct { scales: [batch]u16, inverses: [batch]f32, any_empty: bool };

        inline fn scales(
            comptime rounding: Rounding,
            magnitudes: [batch]u32,
            factor: f32,
        ) Scales {
            const I = @Vector(batch, i32); // no sign bit is set: SSE2 compares signed integers
            const F = @Vector(batch, f32);
            const magnitude: @Vector(batch, u32) = magnitudes;
            const escaped = @as(I, @bitCast(magnitude)) >= @as(I, @splat(escape_bits));
            const wanted = @as(F, @bitCast(magnitude)) * @as(F, @splat(factor)) *
                @as(F, @splat(1.0 / code_max));
            const bits: @Vector(batch, u32) = @bitCast(wanted);
            const odd = bits >> @splat(16) & @as(@Vector(batch, u32), @splat(1));
            const added: @Vector(batch, u32) = if (rounding == .stochastic)
                @splat(0xffff)
            else
                @as(@Vector(batch, u32), @splat(0x7fff)) + odd;
            const rounded: I = @bitCast((bits +% added) >> @splat(16));
            const tiny = rounded < @as(I, @splat(scale_min_bits));
            const kept = @select(i32, tiny, @as(I, @splat(0)), rounded);
            const scale = @select(i32, escaped, @as(I, @splat(scale_nan)), kept);
            const empty = @select(bool, escaped, escaped, tiny);
            const ones: F = @splat(1);
            const divisor: F = @bitCast(scale << @splat(16));
            const inverse = @as(F, @splat(factor)) / @select(f32, empty, ones, divisor);
            return .{
                .scales = @as(@Vector(batch, u16), @intCast(scale)),
                .inverses = @select(f32, empty, @as(F, @splat(0)), inverse),
                .any_empty = @reduce(.Or, empty),
            };
        }

        inline fn put_codes(
            to: [*]u8,
            from: [*]const u8,
            inverse: f32,
            comptime rounding: Rounding,
            noise: *Noise,
            element: u64,
        ) void {
            const times: V = @splat(inverse);
            var words: U = undefined;
            var made: [vectors]U = undefined;
            inline for (&made, 0..) |*code, v| {
                var byte: U = undefined;
                if (rounding == .stochastic) {
                    if (v % 4 == 0) words = random_words(noise, element, v);
                    byte = words >> @splat(8 * (v % 4)) & @as(U, @splat(255));
                }
                const value = vector.load(.f32, f32, from + v * 64);
                code.* = code_from(rounding, value * times, byte);
            }
            pack(to, &made);
        }

        /// 16 elements make a vector, four of which share words.
        inline fn random_words(noise: *Noise, element: u64, comptime v: usize) U {
            const words = noise.words((element >> 6) + v / 4);
            // A block of 32 is the first or the second half of 64.
            if (elements >= 64) return words;
            const shift: @Vector(lanes, u5) = @splat(@intCast((element & 32) >> 1));
            return words >> shift;
        }

        fn put_zeros(to: *[code_bytes]u8) void {
            @memset(to, 0);
            switch (kind) {
                .int4 => @memset(to, 0x88),
                .int5 => @memset(to[elements / 2 ..], 0xff),
                .int6 => @memset(to[elements / 2 ..], 0xaa),
                else => {},
            }
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
        inline fn scale_at(from: [*]const u8, number: usize) ?f32 {
            const pointer: *align(1) const u16 = @ptrCast(from + number * codecs.scale_bytes);
            const scale = pointer.*;
            return if (scale > scale_max_bits) null else f32_of(scale);
        }

        const scale_max_bits: u16 = blk: {
            const bits: u32 = @bitCast(@as(f32, 0x1p127 / code_max));
            break :blk (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        };

        /// What the codes of vector `v` of a block stand for, without the scale.
        inline fn number_at(codes: [*]const u8, comptime v: usize) V {
            if (comptime kind.bits() == 8) return value_of(bytes_at(codes, v * lanes));
            const is_low = v < vectors / 2;
            const pairs = bytes_at(codes, v % (vectors / 2) * lanes);
            const low = if (is_low) pairs & @as(Bytes, @splat(15)) else pairs >> @splat(4);
            if (comptime kind.bits() == 4) return value_of(low);
            return value_of(low | high_bits(codes + elements / 2, v) << @splat(4));
        }

        /// The bits above the low four of vector `v`.
        inline fn high_bits(codes: [*]const u8, comptime v: usize) Bytes {
            const each = comptime kind.bits() - 4;
            const width = elements * each / 8;
            const mask: Bytes = @splat((1 << each) - 1);
            if (width >= lanes) {
                const shift = v * lanes / width * each;
                return (bytes_at(codes, v * lanes % width) >> @splat(shift)) & mask;
            }
            // Several shifts meet in one vector.
            const part: @Vector(width, u8) = codes[0..width].*;
            const places: @Vector(lanes, i32) = comptime blk: {
                var list: [lanes]i32 = undefined;
                for (&list, 0..) |*place, lane| place.* = lane % width;
                break :blk list;
            };
            const shifts: @Vector(lanes, u3) = comptime blk: {
                var list: [lanes]u3 = undefined;
                for (&list, v * lanes..) |*shift, index| shift.* = index / width * each;
                break :blk list;
            };
            return (@shuffle(u8, part, undefined, places) >> shifts) & mask;
        }

        inline fn bytes_at(codes: [*]const u8, at: usize) Bytes {
            return codes[at..][0..lanes].*;
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
                .fp8_e4m3 => return fp8.finite(code),
                else => unreachable,
            }
        }
    };
}

/// The product is exact, so that fused or not gives the same bits.
inline fn plus(to: V, number: V, times: V) V {
    return if (has_fma) @mulAdd(V, number, times, to) else to + number * times;
}

inline fn f32_of(scale: u16) f32 {
    return @bitCast(@as(u32, scale) << 16);
}
