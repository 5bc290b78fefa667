//! Conversions between f32 and the other floats, and the codecs bf16 and f16 with their random
//! rounding. Compiled once per CPU level (level.zig). Specification: codec_scalar.zig.

const std = @import("std");
const dtypes = @import("dtype");
const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");
const Noise = @import("noise.zig").Noise;

const DType = dtypes.DType;
const lanes = 16;
const V = @Vector(lanes, f32);
const U = @Vector(lanes, u32);
const H = @Vector(lanes, u16);

/// f32 from elements of `d`. NaNs are canonical.
pub fn to_f32(comptime d: DType) table.Widen {
    return struct {
        fn run(out: [*]u8, input: [*]const u8, count: usize) callconv(.c) void {
            each(4, comptime d.size(), out, input, count, .{}, struct {
                inline fn step(to: [*]u8, from: [*]const u8, _: usize, _: anytype) void {
                    vector.store(.f32, f32, to, get(d, from));
                }
            }.step);
        }
    }.run;
}

/// Elements of `d` from f32, each rounded once. NaNs are canonical.
pub fn from_f32(comptime d: DType) table.Widen {
    return struct {
        fn run(out: [*]u8, input: [*]const u8, count: usize) callconv(.c) void {
            each(comptime d.size(), 4, out, input, count, .{}, struct {
                inline fn step(to: [*]u8, from: [*]const u8, _: usize, _: anytype) void {
                    put(d, to, get(.f32, from));
                }
            }.step);
        }
    }.run;
}

/// Sixteen elements of any float dtype as f32.
pub inline fn get(comptime d: DType, from: [*]const u8) V {
    if (d != .f64) return vector.load(d, f32, from);
    const pointer: *align(1) const @Vector(lanes, f64) = @ptrCast(from);
    return @floatCast(pointer.*);
}

/// Sixteen f32 as elements of any float dtype, each rounded once. NaNs are canonical.
pub inline fn put(comptime d: DType, to: [*]u8, value: V) void {
    if (d != .f64) return vector.store(d, f32, to, value);
    const wide: @Vector(lanes, f64) = vector.canonical(f32, value);
    vector.put(to, wide);
}

/// Vectors that are summed up and rounded together.
const unroll = 4;

/// The codecs bf16 and f16: out := the sum of the job's inputs and own elements, times its factor.
pub fn encode(comptime kind: codecs.Kind, comptime rounding: codecs.Rounding) table.Encode {
    const d: DType = if (kind == .bf16) .bf16 else .f16;
    return struct {
        fn run(given: *const table.EncodeJob) callconv(.c) void {
            const job = given.*;
            var noise: Noise = undefined;
            if (rounding == .stochastic) noise = .init(job.key, job.first >> 5);
            var index: usize = 0;

            // Main loop, and the vectors that are left.
            inline for (.{ unroll, 1 }) |width| {
                while (job.count - index >= width * lanes) : (index += width * lanes) {
                    const sums = total(width, &job, index, null);
                    inline for (sums, 0..) |sum, v| {
                        const at = index + v * lanes;
                        vector.put(job.codes + at * 2, half(sum, &job, at, &noise));
                    }
                }
            }

            // Tail: one vector of padded copies.
            const left = job.count - index;
            if (left == 0) return;
            const sums = total(1, &job, index, left);
            var last: [lanes * 2]u8 = undefined;
            vector.put(&last, half(sums[0], &job, index, &noise));
            @memcpy(job.codes[index * 2 ..][0 .. left * 2], last[0 .. left * 2]);
        }

        /// The sums of some vectors, in the order of the ranks.
        inline fn total(
            comptime width: usize,
            job: *const table.EncodeJob,
            index: usize,
            left: ?usize,
        ) [width]V {
            // The first of two that are added makes no difference.
            const before = if (job.position > 1) job.position else 0;
            var sums: [width]V = undefined;
            if (before > 0) {
                @branchHint(.unlikely);
                sums = @splat(@splat(-0.0)); // changes nothing that is added to it
                add_inputs(&sums, job, 0, before, index, left);
            }
            inline for (&sums, 0..) |*sum, v| {
                const own = some(.f32, job.own + (index + v * lanes) * 4, left);
                sum.* = if (before > 0) sum.* + own else own;
            }
            add_inputs(&sums, job, before, job.input_count, index, left);
            return sums;
        }

        inline fn add_inputs(
            sums: anytype,
            job: *const table.EncodeJob,
            begin: usize,
            end: usize,
            index: usize,
            left: ?usize,
        ) void {
            for (job.inputs[begin..end]) |input| {
                const from = input + job.codes_at + index * 2;
                inline for (sums, 0..) |*sum, v| sum.* += some(d, from + v * lanes * 2, left);
            }
        }

        /// A vector, or so many elements and zeros.
        inline fn some(comptime from_dtype: DType, from: [*]const u8, left: ?usize) V {
            const bytes = (left orelse return get(from_dtype, from)) * comptime from_dtype.size();
            var block: [lanes * from_dtype.size()]u8 = @splat(0);
            @memcpy(block[0..bytes], from);
            return get(from_dtype, &block);
        }

        inline fn half(sum: V, job: *const table.EncodeJob, index: usize, noise: *Noise) H {
            const value = sum * @as(V, @splat(job.factor));
            if (rounding == .nearest) {
                const plain = vector.canonical(f32, value);
                if (d == .bf16) return vector.bf16_from_f32(lanes, plain);
                return vector.f16_from_f32(lanes, plain);
            }
            const element = job.first + index;
            const words = noise.words(element >> 5);
            const shift: @Vector(lanes, u5) = @splat(@intCast(element & 16));
            return rounded(words >> shift & @as(U, @splat(0xffff)), value);
        }

        inline fn rounded(random: U, value: V) H {
            const bits: U = @bitCast(value);
            const sign = bits >> @splat(16) & @as(U, @splat(0x8000));
            const magnitude = bits & @as(U, @splat(0x7fff_ffff));
            const infinity: U = @splat(0x7f80_0000);
            const made = if (kind == .bf16) blk: {
                const finite = (magnitude +% random) >> @splat(16);
                break :blk @select(u32, magnitude == infinity, infinity >> @splat(16), finite);
            } else f16_bits(random, magnitude);
            const nan: U = @splat(if (kind == .bf16) 0x7fc0 else 0x7e00);
            return @truncate(@select(u32, magnitude > infinity, nan, made | sign));
        }

        inline fn f16_bits(random: U, magnitude: U) U {
            const normal = (magnitude +% (random >> @splat(3)) -%
                @as(U, @splat(0x3800_0000))) >> @splat(13);
            // 2^-9 + magnitude has 8 bits below the last bit of an f16 subnormal.
            const raised = @as(V, @bitCast(magnitude)) + @as(V, @splat(0x1p-9));
            const fixed = @as(U, @bitCast(raised)) -% @as(U, @splat(@bitCast(@as(f32, 0x1p-9))));
            const subnormal = (fixed +% (random >> @splat(8))) >> @splat(8);
            const least: U = @splat(0x3880_0000);
            const finite = @select(u32, magnitude < least, subnormal, normal);
            const overflow: U = @splat(0x4780_0000);
            const infinite: U = @splat(0x7c00);
            return @select(u32, magnitude < overflow, finite, infinite);
        }
    }.run;
}

/// The residual of a codec: out := wanted - got, zero where that is not finite. Whole vectors.
pub fn lost(out: [*]u8, wanted: [*]const u8, got: [*]const u8, vectors: usize) callconv(.c) void {
    for (0..vectors) |v| {
        const rest = get(.f32, wanted + v * 64) - get(.f32, got + v * 64);
        const magnitude = @as(U, @bitCast(rest)) & @as(U, @splat(0x7fff_ffff));
        const finite = magnitude < @as(U, @splat(0x7f80_0000));
        vector.put(out + v * 64, @select(f32, finite, rest, @as(V, @splat(0))));
    }
}

/// Runs `step` on sixteen elements at a time, the last ones in a padded copy.
pub inline fn each(
    comptime out_size: usize,
    comptime in_size: usize,
    out: [*]u8,
    input: [*]const u8,
    count: usize,
    context: anytype,
    comptime step: anytype,
) void {
    var index: usize = 0;
    // Main loop.
    while (count - index >= lanes) : (index += lanes) {
        step(out + index * out_size, input + index * in_size, index, context);
    }
    // Tail.
    const left = count - index;
    if (left == 0) return;
    var in_block: [lanes * in_size]u8 = @splat(0);
    var out_block: [lanes * out_size]u8 = undefined;
    @memcpy(in_block[0 .. left * in_size], input + index * in_size);
    step(&out_block, &in_block, index, context);
    @memcpy(out + index * out_size, out_block[0 .. left * out_size]);
}
