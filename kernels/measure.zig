//! Every kernel as a case of a benchmark, with the skeleton that has the same loads and stores
//! (skeleton.zig). It owns no clock and no memory. Callers: bench.zig, and the C ABI, through which
//! `pccl bench kernels` and `python -m bench kernels` measure. A turn of a case works through
//! `count` f32, or through their encoded bytes.

const std = @import("std");
const base = @import("base");
const kernels = @import("root.zig");
const dispatch = @import("dispatch.zig");
const noise = @import("noise.zig");
const skeleton = @import("skeleton.zig");
const assert = std.debug.assert;

const Codec = base.Codec;
const DType = base.DType;
const Kind = base.codec.Kind;

/// All inputs of the widest case, and its output.
const streams_max = 9;
/// Streams must not meet in the same sets of a cache.
const stream_gap = 4096 + 256;

/// Elements are measured in multiples of this.
pub const granule = 4096;

pub const Case = struct {
    name: []const u8,
    work: Work,
    shape: usize,
};

const Work = union(enum) {
    sum: DType,
    sum_of: usize,
    widen: DType,
    narrow: DType,
    widen_fp8,
    narrow_fp8,
    encode: Codec,
    decode: Codec,
    /// out := a + decoded, in the rotated domain: no rotation.
    add: Codec,
    ring: Codec,
    owner: Codec,
    /// As `ring` and `owner`, where the sum is not encoded again.
    ring_last: Codec,
    owner_alone: Codec,
    rotate: base.codec.Block,
    /// So many of each 4096.
    top_k: usize,
    digest,
    blake3,
};

const owner_inputs = 7;

pub const cases = make: {
    @setEvalBranchQuota(100_000);
    var list: []const Case = &.{
        case("sum/f32", .{ .sum = .f32 }, &.{ 32, 32 }, 32),
        case("sum/f16", .{ .sum = .f16 }, &.{ 16, 16 }, 16),
        case("sum/bf16", .{ .sum = .bf16 }, &.{ 16, 16 }, 16),
        case("sum_of_2/f32", .{ .sum_of = 2 }, &.{ 32, 32 }, 32),
        case("sum_of_4/f32", .{ .sum_of = 4 }, &.{ 32, 32, 32, 32 }, 32),
        case("sum_of_8/f32", .{ .sum_of = 8 }, &.{ 32, 32, 32, 32, 32, 32, 32, 32 }, 32),
        case("convert/f32_to_f16", .{ .narrow = .f16 }, &.{32}, 16),
        case("convert/f32_to_bf16", .{ .narrow = .bf16 }, &.{32}, 16),
        case("convert/f16_to_f32", .{ .widen = .f16 }, &.{16}, 32),
        case("convert/bf16_to_f32", .{ .widen = .bf16 }, &.{16}, 32),
        case("convert/f32_to_fp8_e4m3", .narrow_fp8, &.{32}, 8),
        case("convert/fp8_e4m3_to_f32", .widen_fp8, &.{8}, 32),
        case("hadamard/32", .{ .rotate = .b32 }, &.{32}, 32),
        case("hadamard/64", .{ .rotate = .b64 }, &.{32}, 32),
        case("hadamard/128", .{ .rotate = .b128 }, &.{32}, 32),
        case("hadamard/256", .{ .rotate = .b256 }, &.{32}, 32),
        case("top_k/64_of_4096", .{ .top_k = 64 }, &.{32}, 0),
        case("top_k/128_of_4096", .{ .top_k = 128 }, &.{32}, 0),
        case("digest", .digest, &.{32}, 0),
        case("blake3", .blake3, &.{32}, 0),
    };
    for ([_]Codec{
        .of(.bf16),
        .of(.f16),
        .{ .kind = .bf16, .rounding = .stochastic },
        .{ .kind = .int8 },
        .{ .kind = .int8, .block = .b32 },
        .{ .kind = .int8, .block = .b64 },
        .{ .kind = .int8, .block = .b256 },
        .{ .kind = .int8, .rounding = .stochastic },
        .of(.int8),
        .{ .kind = .int6 },
        .{ .kind = .int5 },
        .of(.int6),
        .of(.int5),
        .{ .kind = .int4 },
        .{ .kind = .int4, .rounding = .stochastic },
        .of(.int4),
        .{ .kind = .int4, .rotate = true, .rounding = .stochastic },
        .{ .kind = .e3m0 },
        .of(.e3m0),
        .{ .kind = .fp8_e4m3 },
        .of(.fp8_e4m3),
        .of(.min_max_u8),
        .of(.zero_point_u8),
    }) |codec| {
        // The traffic of int6 and int5 lies between that of the others.
        const bits: u8 = switch (codec.kind.bits()) {
            6, 5 => 8,
            else => |b| b,
        };
        const name = name_of(codec);
        list = list ++ [_]Case{
            case("encode/" ++ name, .{ .encode = codec }, &.{32}, bits),
            case("decode/" ++ name, .{ .decode = codec }, &.{bits}, 32),
        };
        if (codec.rounding == .nearest) list = list ++ [_]Case{
            case("ring/" ++ name, .{ .ring = codec }, &.{ 32, bits }, bits),
            case("ring_last/" ++ name, .{ .ring_last = codec }, &.{ 32, bits }, 32),
        };
        if (codec.kind.family() != .block or codec.rounding != .nearest) continue;
        if (!codec.rotate) list = list ++ [_]Case{
            case("add/" ++ name, .{ .add = codec }, &.{ 32, bits }, 32),
        };
        const many: [1 + owner_inputs]u8 = .{32} ++ @as([owner_inputs]u8, @splat(bits));
        list = list ++ [_]Case{
            case("owner/" ++ name, .{ .owner = codec }, &many, bits),
            case("owner_alone/" ++ name, .{ .owner_alone = codec }, &many, 32),
        };
    }
    break :make list[0..list.len].*;
};

fn case(name: []const u8, work: Work, inputs: []const u8, output: u8) Case {
    for (skeleton.shapes, 0..) |shape, index| {
        if (shape.output == output and std.mem.eql(u8, shape.inputs, inputs)) {
            return .{ .name = name, .work = work, .shape = index };
        }
    }
    @compileError("no skeleton for " ++ name);
}

/// int8, int8_b64, int4_rotated_stochastic, ...
fn name_of(codec: Codec) []const u8 {
    var name: []const u8 = @tagName(codec.kind);
    if (codec.block != .b128) name = name ++ "_" ++ @tagName(codec.block);
    if (codec.rotate) name = name ++ "_rotated";
    if (codec.rounding == .stochastic) name = name ++ "_stochastic";
    return name;
}

pub fn find(name: []const u8) ?*const Case {
    for (&cases) |*c| if (std.mem.eql(u8, c.name, name)) return c;
    return null;
}

fn stream_bytes(count: usize) usize {
    return 4 * count + stream_gap;
}

/// Enough for any case with so many elements.
pub fn memory_bytes(count: usize) usize {
    return streams_max * stream_bytes(count);
}

/// One case and its memory.
pub const Bench = struct {
    case: *const Case,
    memory: []u8,
    count: usize,

    /// `memory` has `memory_bytes(count)`. Fills the streams with what the case expects there.
    pub fn init(c: *const Case, memory: []u8, count: usize) Bench {
        assert(count > 0 and count % granule == 0 and memory.len >= memory_bytes(count));
        const bench: Bench = .{ .case = c, .memory = memory, .count = count };
        const values = bench.stream(1);
        for (0..count) |index| {
            const bits: u32 = @truncate(noise.mix(index));
            // Sums of four bytes look much like normal numbers.
            var sum: f32 = -510;
            for (0..4) |byte| sum += @floatFromInt(bits >> @intCast(8 * byte) & 255);
            @as(*align(1) f32, @ptrCast(values + index * 4)).* = sum / 147;
        }
        const codec: ?Codec = switch (c.work) {
            .decode, .add, .ring, .ring_last, .owner, .owner_alone => |codec| codec,
            else => null,
        };
        for (2..streams_max) |number| {
            if (codec) |some| {
                kernels.encode(bench.piece(some), bench.stream(number), values, null);
            } else {
                @memcpy(bench.stream(number)[0 .. 4 * count], values);
            }
        }
        @memset(bench.stream(0)[0 .. 4 * count], 1);
        if (c.work == .widen) {
            // 16-bit floats that are no NaNs.
            kernels.from_f32(c.work.widen, bench.stream(1), bench.stream(2), count);
        }
        if (c.work == .decode) @memcpy(bench.stream(1)[0 .. 4 * count], bench.stream(2));
        return bench;
    }

    /// Stream 0 is the output.
    fn stream(bench: *const Bench, number: usize) [*]u8 {
        const bytes = stream_bytes(bench.count);
        return bench.memory[number * bytes ..].ptr;
    }

    fn piece(bench: *const Bench, codec: Codec) kernels.Piece {
        return .{
            .codec = codec,
            .dtype = .f32,
            .count = bench.count,
            .seed = 1,
            .operation = 2,
        };
    }

    pub fn run(bench: *const Bench) void {
        const out = bench.stream(0);
        const a = bench.stream(1);
        const b = bench.stream(2);
        const count = bench.count;
        var inputs: [streams_max - 1][*]const u8 = undefined;
        for (&inputs, 1..) |*input, number| input.* = bench.stream(number);
        switch (bench.case.work) {
            // As a user's in-place sum is.
            .sum => |d| kernels.accumulate(.sum, d, a, a, b, 2, count),
            .sum_of => |k| kernels.reduce_k(.sum, .f32, out, inputs[0..k], 1, count),
            .widen => |d| kernels.to_f32(d, out, a, count),
            .narrow => |d| kernels.from_f32(d, out, a, count),
            .widen_fp8 => kernels.fp8_to_f32(out, a, count),
            .narrow_fp8 => kernels.fp8_from_f32(out, a, count),
            .encode => |codec| kernels.encode(bench.piece(codec), out, a, null),
            .decode => |codec| kernels.decode(bench.piece(codec), out, a),
            .add => |codec| kernels.add_encoded(bench.piece(codec), a, b),
            .ring => |codec| {
                kernels.accumulate_encode(bench.piece(codec), out, b, a, null, 1);
            },
            .owner => |codec| {
                const others = inputs[1..][0..owner_inputs];
                kernels.reduce_encode(bench.piece(codec), out, a, 3, others, null, 1);
            },
            .ring_last => |codec| {
                kernels.reduce_decode(bench.piece(codec), out, a, 1, &.{b}, null, 1);
            },
            .owner_alone => |codec| {
                const others = inputs[1..][0..owner_inputs];
                kernels.reduce_decode(bench.piece(codec), out, a, 3, others, null, 1);
            },
            .rotate => |block| {
                kernels.rotate(block, out, a, 1, count);
            },
            .top_k => |k| {
                const chunk = kernels.top_k_chunk_max;
                for (0..count / chunk) |number| {
                    const values = out + number * k * 4;
                    const places = b + number * k * 2;
                    kernels.top_k(values, places, a + number * chunk * 4, chunk, k);
                }
            },
            .digest => std.mem.doNotOptimizeAway(kernels.digest(a[0 .. 4 * count], 0)),
            .blake3 => std.mem.doNotOptimizeAway(kernels.blake3(a[0 .. 4 * count])),
        }
    }

    /// The same loads and stores.
    pub fn run_skeleton(bench: *const Bench) void {
        var inputs: [streams_max - 1][*]const u8 = undefined;
        for (&inputs, 1..) |*input, number| input.* = bench.stream(number);
        const in_place = switch (bench.case.work) {
            .sum, .add => true,
            else => false,
        };
        const out = bench.stream(if (in_place) 1 else 0);
        const run_shape = dispatch.table().skeletons[bench.case.shape];
        run_shape(out, &inputs, bench.count / skeleton.group);
    }
};

test "every case runs, and none touches what is beside its memory" {
    const gpa = std.testing.allocator;
    const size = memory_bytes(granule);
    const memory = try gpa.alloc(u8, size + 64);
    defer gpa.free(memory);
    @memset(memory[size..], 0xa5);
    for (&cases) |*c| {
        try std.testing.expectEqual(c, find(c.name).?);
        const bench: Bench = .init(c, memory, granule);
        bench.run();
        bench.run_skeleton();
    }
    for (memory[size..]) |byte| try std.testing.expectEqual(0xa5, byte);
    try std.testing.expectEqual(@as(?*const Case, null), find("sum"));
}
