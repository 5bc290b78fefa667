//! The root of a level object: this folder's vector code, compiled for one CPU level, exported as
//! one table. build.zig compiles it once per level; dispatch.zig chooses among the tables.

const dtypes = @import("dtype");
const codecs = @import("codec");
const options = @import("level_options");
const table = @import("table.zig");
const reduce = @import("reduce.zig");
const copy = @import("copy.zig");
const block = @import("block.zig");
const half = @import("half.zig");
const fp8 = @import("fp8.zig");
const range = @import("range.zig");
const rotate = @import("rotate.zig");
const skeleton = @import("skeleton.zig");
const top_k = @import("top_k.zig");
const outer = @import("outer.zig");
const digest = @import("digest.zig");
const blake3 = @import("blake3.zig");

/// For an emulator that rounds wrong (vector.zig).
pub const f16_by_integers = options.f16_by_integers;

const DType = dtypes.DType;
const ReduceOp = dtypes.ReduceOp;

const kernels: table.Table = blk: {
    @setEvalBranchQuota(100_000);
    var t: table.Table = undefined;
    for (0..table.dtype_count) |number| {
        const d: DType = @enumFromInt(number);
        t.widen[number] = if (dtypes.partial_dtype(.avg, d) != d) reduce.widen(d) else null;
        t.canonical[number] = if (d.is_float()) reduce.canonical(d) else null;
        const has_mean = dtypes.has_mean(.avg, d);
        t.accumulate_avg[number] = if (has_mean) null else reduce.accumulate_avg(d);
        t.accumulate_mean[number] = if (has_mean) reduce.mean(d, false) else null;
        t.accumulate_mean_last[number] = if (has_mean) reduce.mean(d, true) else null;
        for (0..table.op_count) |op_number| {
            const op: ReduceOp = @enumFromInt(op_number);
            t.accumulate[op_number][number] = null;
            t.reduce_k[op_number][number] = null;
            if (!op.takes(d)) continue;
            const same = same_arithmetic(op, d);
            t.accumulate[op_number][number] = reduce.accumulate(same.op, same.dtype);
            t.reduce_k[op_number][number] = reduce.reduce_k(
                if (op == .avg) .avg else same.op,
                if (op == .avg) d else same.dtype,
            );
        }
    }
    t.digest = &digest.digest;
    t.blake3 = &blake3.blake3;
    t.copy_past = &copy.copy_past;
    add_codecs(&t);
    break :blk t;
};

fn add_codecs(comptime t: *table.Table) void {
    for (0..table.dtype_count) |number| {
        const d: DType = @enumFromInt(number);
        t.to_f32[number] = if (d.is_float()) half.to_f32(d) else null;
        t.from_f32[number] = if (d.is_float()) half.from_f32(d) else null;
        t.outer_difference[number] = if (d.is_float()) outer.difference(d) else null;
        t.outer_mix[number] = if (d.is_float()) outer.mix(d) else null;
    }
    t.fp8_to_f32 = &fp8.to_f32;
    t.fp8_from_f32 = &fp8.from_f32;
    for (0..table.block_kind_count) |kind_number| {
        const kind = nth(.int8, kind_number);
        for (0..table.block_count) |block_number| {
            const b: codecs.Block = @enumFromInt(block_number);
            t.decode_blocks[kind_number][block_number] = block.decode(kind, b);
            t.add_blocks[kind_number][block_number] = block.add(kind, b);
            for (0..table.rounding_count) |rounding_number| {
                const r: codecs.Rounding = @enumFromInt(rounding_number);
                const encode = block.encode(kind, b, r);
                t.encode_blocks[kind_number][block_number][rounding_number] = encode;
            }
        }
    }
    for (0..table.block_count) |number| {
        t.rotate[number] = rotate.blocks_forward(@enumFromInt(number));
        t.rotate_back[number] = rotate.blocks_back(@enumFromInt(number));
    }
    for (0..table.half_count) |number| for (0..table.rounding_count) |rounding| {
        const encode = half.encode(nth(.bf16, number), @enumFromInt(rounding));
        t.encode_half[number][rounding] = encode;
    };
    for (0..table.range_count) |number| {
        t.encode_range[number] = range.encode(nth(.min_max_u8, number));
        t.decode_range[number] = range.decode(nth(.min_max_u8, number));
    }
    t.widen_range = &range.widen;
    t.lost = &half.lost;
    t.top_k = &top_k.top_k;
    for (&t.outer_step, 0..) |*entry, number| entry.* = outer.step(@enumFromInt(number));
    for (&t.skeletons, skeleton.shapes) |*entry, shape| entry.* = skeleton.skeleton(shape);
}

/// The kind so many after the first of its family.
fn nth(first: codecs.Kind, number: usize) codecs.Kind {
    return @enumFromInt(@intFromEnum(first) + number);
}

/// Where two hops give the same bits, one function serves both: the sum of an avg is a sum, and a
/// wrapping sum or product has no sign, nor has a bit.
fn same_arithmetic(op: ReduceOp, d: DType) struct { op: ReduceOp, dtype: DType } {
    if (dtypes.partial_dtype(op, d) != d) return .{ .op = op, .dtype = d };
    const plain_op: ReduceOp = if (op == .avg) .sum else op;
    if (plain_op == .min or plain_op == .max) return .{ .op = plain_op, .dtype = d };
    return .{ .op = plain_op, .dtype = switch (d) {
        .u8 => .i8,
        .u16 => .i16,
        .u32 => .i32,
        .u64 => .i64,
        else => d,
    } };
}

comptime {
    if (@import("std").enums.values(DType).len != table.dtype_count) @compileError("dtype_count");
    if (@import("std").enums.values(ReduceOp).len != table.op_count) @compileError("op_count");
    const name = "pccl_kernels_" ++ options.level;
    @export(&kernels, .{ .name = name, .visibility = .hidden });
}
