//! The codecs with a scale per block, on whole blocks of f32. Compiled once per CPU level
//! (level.zig). Specification: codec_scalar.zig. codec.zig cuts pieces into blocks.
//!
//! From a block's values to its scale leads a long chain of dependent steps: reduce, multiply,
//! round, divide. So encoding goes in batches: first the values of some blocks and their greatest
//! magnitudes, then all scales in one vector. The codes are made when the values of the next batch
//! have been found, so that the CPU need not wait for the scales. The values that a batch keeps
//! stay in the first-level cache.

const std = @import("std");
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
const I = @Vector(lanes, i32);
const Bytes = @Vector(lanes, u8);
const Quad = @Vector(4, i32);
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
) table.Encode {
    const B = Blocks(kind, block);
    return struct {
        fn run(job: *const table.EncodeJob) callconv(.c) void {
            const stochastic = rounding == .stochastic;
            var noise: Noise = if (stochastic) .init(job.key, job.first >> 6) else undefined;
            var scratch: [2][B.batch * B.elements]f32 align(64) = undefined;
            var now: B.Valued = undefined;
            now.count = 0;
            var number: usize = 0;
            while (true) : (number += B.batch) {
                const count = @min(B.batch, job.count - @min(number, job.count));
                const to = std.mem.asBytes(&scratch[number / B.batch % 2]);
                const next = B.next(rounding, job, number, count, to, &now, &noise);
                if (count == 0) return;
                now = next;
            }
        }
    }.run;
}

/// out := the values. With signs, which are `up`, they are rotated back.
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
            if (B.is_integer) if (signs) |turns| {
                return B.decode_back(out, scales, codes, turns, blocks);
            };
            const factor: f32 = if (signs == null) 1 else 1.0 / @as(f32, B.elements);
            for (0..blocks) |number| {
                const to = out + number * B.value_bytes;
                const from = codes + number * B.code_bytes;
                rotate.prefetch(from, B.code_bytes);
                const scale = B.scale_at(scales, number) orelse {
                    @branchHint(.unlikely);
                    B.put_nans(to);
                    continue;
                };
                B.put_values(to, from, scale * factor);
                const turns = signs orelse continue;
                if (scale < rotate.great) back(B.elements, to, turns) else {
                    @branchHint(.unlikely);
                    rotate.back_great(B.elements, to, turns);
                }
            }
        }
    }.run;
}

/// Rotates values back where they are.
noinline fn back(comptime elements: usize, at: [*]u8, signs: *const table.Signs) void {
    rotate.transform(f32, elements, at, at, null, signs);
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

        /// Blocks whose scales are computed together: a multiple of four.
        const batch = if (elements > 128) 4 else 8;

        /// Vectors of a block that are worked on in registers.
        const chunk = @min(vectors, rotate.chunk_bytes / 64);

        /// Where the values of some blocks are, and one over their scales: zero for blocks without
        /// codes, which are escaped ones and those of zeros.
        const Valued = struct {
            values: [*]const u8,
            count: usize,
            inverses: [batch]f32,
            any_empty: bool,
        };

        /// Finds the values and the scales of some blocks, and puts these, and the codes of those
        /// before them: memory that the ones wait for and the arithmetic of the others overlap.
        inline fn next(
            comptime rounding: Rounding,
            job: *const table.EncodeJob,
            number: usize,
            count: usize,
            scratch: [*]u8,
            former: *const Valued,
            noise: *Noise,
        ) Valued {
            const own = job.own + number * value_bytes;
            // Behind the last block there are harmless ones.
            var quads: [batch]Quad align(64) = @splat(@splat(one_bits));
            for (&quads, 0..) |*quad, index| {
                const from = own + index * value_bytes;
                const to = scratch + index * value_bytes;
                if (index < count) {
                    rotate.prefetch(from, value_bytes);
                    if (job.signs) |signs| {
                        rotate.transform(f32, elements, to, from, signs, null);
                    }
                }
                if (index < former.count) {
                    put_codes_of(former, index, rounding, job, number - batch + index, noise);
                }
                if (index < count) {
                    const values = if (job.signs == null) from else to;
                    quad.* = if (job.input_count == 0)
                        greatest(values)
                    else
                        sum(job, number + index, to, values);
                }
            }
            const found = scales_of(rounding, all_met(&quads), job.factor);
            const to = job.scales + number * codecs.scale_bytes;
            if (count == batch) vector.put(to, found.scales) else {
                const scales: [batch]u16 = found.scales;
                for (scales[0..count], 0..) |scale, index| {
                    vector.put(to + index * codecs.scale_bytes, scale);
                }
            }
            return .{
                .values = if (job.signs == null and job.input_count == 0) own else scratch,
                .count = count,
                .inverses = found.inverses,
                .any_empty = found.any_empty,
            };
        }

        inline fn put_codes_of(
            blocks: *const Valued,
            index: usize,
            comptime rounding: Rounding,
            job: *const table.EncodeJob,
            number: usize,
            noise: *Noise,
        ) void {
            const to = job.codes + number * code_bytes;
            const from = blocks.values + index * value_bytes;
            const inverse = blocks.inverses[index];
            if (blocks.any_empty and inverse == 0) {
                @branchHint(.unlikely);
                return put_zeros(to[0..code_bytes]);
            }
            put_codes(to, from, inverse, rounding, noise, job.first + number * elements);
        }

        /// to := the values of a block that are to be encoded, added in the order of the ranks.
        /// `own` may be `to`. Returns what `greatest` does.
        inline fn sum(
            job: *const table.EncodeJob,
            number: usize,
            to: [*]u8,
            own: [*]const u8,
        ) Quad {
            for (job.inputs[0..job.input_count]) |from| {
                rotate.prefetch(from + job.codes_at + number * code_bytes, code_bytes);
            }
            // The first of two that are added makes no difference.
            const before = if (job.position > 1) job.position else 0;
            var most: I = @splat(0);
            inline for (0..vectors / chunk) |c| {
                var sums: [chunk]V = undefined;
                if (before > 0) {
                    @branchHint(.unlikely);
                    // A negative zero changes nothing that is added to it.
                    inline for (&sums) |*s| s.* = @splat(-0.0);
                    add_all(c, &sums, job, number, 0, before);
                    inline for (&sums, c * chunk..) |*s, v| {
                        s.* += vector.load(.f32, f32, own + v * 64);
                    }
                } else inline for (&sums, c * chunk..) |*s, v| {
                    s.* = vector.load(.f32, f32, own + v * 64);
                }
                add_all(c, &sums, job, number, before, job.input_count);
                inline for (sums, c * chunk..) |s, v| vector.put(to + v * 64, s);
                most = @max(most, greatest_of(chunk, &sums));
            }
            return folded(most);
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

        /// The bits of the greatest magnitudes of a block, of four kinds of its elements. Bits
        /// order like integers, NaNs above all.
        inline fn greatest(from: [*]const u8) Quad {
            var values: [vectors]V = undefined;
            inline for (&values, 0..) |*value, v| {
                value.* = vector.load(.f32, f32, from + v * 64);
            }
            return folded(greatest_of(vectors, &values));
        }

        inline fn greatest_of(comptime count: usize, values: *const [count]V) I {
            var parts: [count]I = undefined;
            inline for (&parts, values) |*part, value| {
                part.* = @as(I, @bitCast(value)) & @as(I, @splat(0x7fff_ffff));
            }
            comptime var half = count / 2;
            inline while (half > 0) : (half /= 2) {
                inline for (0..half) |v| parts[v] = @max(parts[v], parts[v + half]);
            }
            return parts[0];
        }

        inline fn folded(most: I) Quad {
            const eight = @max(part_of(8, 0, most), part_of(8, 8, most));
            return @max(part_of(4, 0, eight), part_of(4, 4, eight));
        }

        /// The greatest of each.
        inline fn all_met(quads: *const [batch]Quad) @Vector(batch, u32) {
            const first = met(met(quads[0], quads[2]), met(quads[1], quads[3]));
            if (batch == 4) return @bitCast(first);
            const second = met(met(quads[4], quads[6]), met(quads[5], quads[7]));
            return @bitCast(@shuffle(i32, first, second, [8]i32{ 0, 1, 2, 3, -1, -2, -3, -4 }));
        }

        /// Two kinds of each, a b a b.
        inline fn met(a: Quad, b: Quad) Quad {
            const lower = @shuffle(i32, a, b, [4]i32{ 0, ~@as(i32, 0), 1, ~@as(i32, 1) });
            const upper = @shuffle(i32, a, b, [4]i32{ 2, ~@as(i32, 2), 3, ~@as(i32, 3) });
            return @max(lower, upper);
        }

        const Scales = struct {
            scales: @Vector(batch, u16),
            inverses: @Vector(batch, f32),
            any_empty: bool,
        };

        inline fn scales_of(
            comptime rounding: Rounding,
            magnitude: @Vector(batch, u32),
            factor: f32,
        ) Scales {
            const F = @Vector(batch, f32);
            const N = @Vector(batch, i32); // no sign bit is set: SSE2 compares signed integers
            const escaped = @as(N, @bitCast(magnitude)) >= @as(N, @splat(escape_bits));
            const wanted = @as(F, @bitCast(magnitude)) * @as(F, @splat(factor)) *
                @as(F, @splat(1.0 / code_max));
            const bits: @Vector(batch, u32) = @bitCast(wanted);
            const odd = bits >> @splat(16) & @as(@Vector(batch, u32), @splat(1));
            const added: @Vector(batch, u32) = if (rounding == .stochastic)
                @splat(0xffff)
            else
                @as(@Vector(batch, u32), @splat(0x7fff)) + odd;
            const rounded: N = @bitCast((bits +% added) >> @splat(16));
            const tiny = rounded < @as(N, @splat(scale_min_bits));
            const kept = @select(i32, tiny, @as(N, @splat(0)), rounded);
            const scale = @select(i32, escaped, @as(N, @splat(scale_nan)), kept);
            const empty = @select(bool, escaped, escaped, tiny);
            const ones: F = @splat(1);
            const divisor: F = @bitCast(scale << @splat(16));
            const inverse = @as(F, @splat(factor)) / @select(f32, empty, ones, divisor);
            return .{
                .scales = @intCast(scale),
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
            // 16 elements make a vector, four of which share words.
            var words: [@max(1, vectors / 4)]U = undefined;
            if (rounding == .stochastic) inline for (&words, 0..) |*word, number| {
                word.* = noise.words((element >> 6) + number);
                // A block of 32 is the first or the second half of 64.
                if (elements < 64) word.* >>= @splat(@intCast((element & 32) >> 1));
            };
            var bytes: [elements]u8 = undefined;
            const all = comptime if (kind.bits() == 4) vectors / 2 else vectors;
            const width = comptime @min(4, all);
            inline for (0..all / width) |step| {
                const v = step * width;
                const made = numbers(rounding, width, v, from, times, &words);
                if (comptime kind.bits() == 4) {
                    const high = v + vectors / 2;
                    const others = numbers(rounding, width, high, from, times, &words);
                    put_pairs(rounding, width, to + v * lanes, made, others);
                } else {
                    const at: [*]u8 = if (comptime kind.bits() == 8) to else &bytes;
                    put_bytes(rounding, width, at + v * lanes, made);
                }
            }
            if (comptime kind.bits() == 5 or kind.bits() == 6) planes(to, &bytes);
        }

        const is_integer = switch (kind) {
            .int8, .int6, .int5, .int4 => true,
            else => false,
        };

        /// An element's number before its code is put: the element times the scale, if the nearest
        /// integer is meant, which narrow.zig finds; else the code.
        fn Number(comptime rounding: Rounding) type {
            return if (rounding == .nearest and is_integer) V else U;
        }

        inline fn numbers(
            comptime rounding: Rounding,
            comptime width: usize,
            comptime begin: usize,
            from: [*]const u8,
            times: V,
            words: []const U,
        ) [width]Number(rounding) {
            var made: [width]Number(rounding) = undefined;
            inline for (&made, begin..) |*number, v| {
                const scaled = vector.load(.f32, f32, from + v * 64) * times;
                var byte: U = undefined;
                if (rounding == .stochastic) {
                    byte = words[v / 4] >> @splat(8 * (v % 4)) & @as(U, @splat(255));
                }
                const plain = @TypeOf(number.*) == V;
                number.* = if (plain) scaled else code_from(rounding, scaled, byte);
            }
            return made;
        }

        inline fn put_bytes(
            comptime rounding: Rounding,
            comptime width: usize,
            to: [*]u8,
            made: [width]Number(rounding),
        ) void {
            if (@TypeOf(made) == [width]V) return narrow.put_nearest(width, bias, to, made);
            narrow.put_bytes(width, to, made);
        }

        inline fn put_pairs(
            comptime rounding: Rounding,
            comptime width: usize,
            to: [*]u8,
            low: [width]Number(rounding),
            high: [width]Number(rounding),
        ) void {
            if (@TypeOf(low) == [width]V) {
                return narrow.put_nearest_pairs(width, bias, to, low, high);
            }
            var pairs: [width]U = undefined;
            inline for (&pairs, low, high) |*pair, a, b| pair.* = a | b << @splat(4);
            narrow.put_bytes(width, to, pairs);
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
                .int8, .int6, .int5, .int4 => integer_stochastic(scaled, random),
                .e3m0 => small_float(0, 0, rounding, scaled, random),
                .fp8_e4m3 => small_float(3, -6, rounding, scaled, random),
                else => unreachable,
            };
        }

        const bias = if (kind == .int8) 0 else 1 << (kind.bits() - 1);

        inline fn integer_stochastic(scaled: V, random: U) U {
            const big: V = @splat(1.5 * (1 << 15) + bias); // the last bit is worth 2^-8
            const fixed: U = @bitCast(scaled + big);
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

        /// `decode` with signs. All sums of codes are integers of 15 bits, and exact times a scale
        /// of 8, so that the transform of the codes and that of their values have the same bits.
        /// A product with the scale may be beyond what an f32 holds.
        inline fn decode_back(
            out: [*]u8,
            scales: [*]const u8,
            codes: [*]const u8,
            signs: *const table.Signs,
            blocks: usize,
        ) void {
            var sums: [batch][elements]i16 align(64) = undefined;
            var begin: usize = 0;
            while (begin < blocks) : (begin += batch) {
                const count = @min(batch, blocks - begin);
                for (sums[0..count], begin..) |*block_sums, number| {
                    const from = codes + number * code_bytes;
                    rotate.prefetch(from, code_bytes);
                    const to = std.mem.asBytes(block_sums);
                    inline for (0..vectors) |v| {
                        const wide: @Vector(lanes, i16) = integer_at(from, v);
                        vector.put(to[v * 32 ..].ptr, wide);
                    }
                    rotate.transform(i16, elements, to, to, null, null);
                }
                rotate.through_memory(std.mem.asBytes(&sums));
                for (sums[0..count], begin..) |*block_sums, number| {
                    const to = out + number * value_bytes;
                    const scale = scale_at(scales, number) orelse std.math.nan(f32);
                    if (scale > 0 and scale < rotate.great) {
                        put_sums(to, block_sums, scale / elements, signs);
                    } else if (scale >= 0) {
                        @branchHint(.unlikely);
                        // With a scale of zero codes are zero, if an encoder wrote them; else zeros
                        // have signs.
                        put_values(to, codes + number * code_bytes, scale / elements);
                        rotate.back_great(elements, to, signs);
                    } else {
                        @branchHint(.unlikely);
                        put_nans(to);
                    }
                }
            }
        }

        inline fn put_sums(
            to: [*]u8,
            sums: *const [elements]i16,
            factor: f32,
            signs: *const table.Signs,
        ) void {
            const times: V = @splat(factor);
            inline for (0..vectors) |v| {
                const some: @Vector(lanes, i16) = sums[v * lanes ..][0..lanes].*;
                const values = @as(V, @floatFromInt(@as(I, some))) * times;
                vector.put(to + v * 64, rotate.turned(values, signs, v));
            }
        }

        inline fn put_values(to: [*]u8, codes: [*]const u8, factor: f32) void {
            const times: V = @splat(factor);
            inline for (0..vectors) |v| vector.put(to + v * 64, number_at(codes, v) * times);
        }

        fn put_nans(to: [*]u8) void {
            const nans: V = @splat(std.math.nan(f32));
            inline for (0..vectors) |v| vector.put(to + v * 64, nans);
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

        /// The numbers of the codes of vector `v` of a block, without the scale.
        inline fn number_at(codes: [*]const u8, comptime v: usize) V {
            if (is_integer) return @floatFromInt(@as(I, integer_at(codes, v)));
            return value_of(code_at(codes, v));
        }

        inline fn integer_at(codes: [*]const u8, comptime v: usize) @Vector(lanes, i8) {
            return @bitCast(code_at(codes, v) -% @as(Bytes, @splat(bias)));
        }

        inline fn code_at(codes: [*]const u8, comptime v: usize) Bytes {
            if (comptime kind.bits() == 8) return bytes_at(codes, v * lanes);
            const is_low = v < vectors / 2;
            const pairs = bytes_at(codes, v % (vectors / 2) * lanes);
            const low = if (is_low) pairs & @as(Bytes, @splat(15)) else pairs >> @splat(4);
            if (comptime kind.bits() == 4) return low;
            return low | high_bits(codes + elements / 2, v) << @splat(4);
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

/// Some lanes of a vector.
inline fn part_of(comptime n: usize, comptime at: usize, value: anytype) @Vector(n, i32) {
    comptime var places: [n]i32 = undefined;
    inline for (&places, at..) |*place, lane| place.* = lane;
    return @shuffle(i32, value, undefined, places);
}

/// The product is exact, so that fused or not gives the same bits.
inline fn plus(to: V, number: V, times: V) V {
    return if (has_fma) @mulAdd(V, number, times, to) else to + number * times;
}

inline fn f32_of(scale: u16) f32 {
    return @bitCast(@as(u32, scale) << 16);
}
