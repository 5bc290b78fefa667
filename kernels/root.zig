//! kernels: arithmetic on slices of elements. Functions never fail, never allocate and know nothing
//! of peers; they run the table of the best CPU level (dispatch.zig). Their specification is
//! scalar.zig, their code reduce.zig. Called by collective/.
//!
//! Pointers may have any alignment. An *input* has the caller's dtype, a *partial* the type of
//! `base.dtype.partial_dtype(op, dtype)`, a result the caller's dtype again. Sizes are in elements.
//! Where both are given, `op` takes the dtype (`ReduceOp.takes`): there is no kernel for others.
//! A NaN in any result is the positive quiet NaN, whichever peer and CPU it comes from. A thread
//! that calls these must be in the standard floating point mode (float_mode.zig).

const std = @import("std");
const base = @import("base");
const codec = @import("codec.zig");
const dispatch = @import("dispatch.zig");
const wide = @import("wide.zig");
const is_wide = scalar.is_wide;
const assert = std.debug.assert;

const DType = base.DType;
const ReduceOp = base.ReduceOp;

pub const scalar = @import("scalar.zig");
pub const float_mode = @import("float_mode.zig");
pub const golden = @import("golden.zig");
pub const measure = @import("measure.zig");
pub const level_names = dispatch.level_names;
pub const level_name = dispatch.level_name;
/// Uses the named level from now on; false if there is no such level or this CPU lacks it.
/// PCCL_CPU_LEVEL is read by the C ABI, which calls this.
pub const force = dispatch.force;
pub const supported = dispatch.supported;
pub const tested = dispatch.tested;

/// Inputs that one pass of `reduce_k` can take.
pub const reduce_inputs_max = scalar.reduce_inputs_max;

/// Whether the level in use can combine elements, as it must where the op takes the dtype.
pub fn has_kernel(op: ReduceOp, dtype: DType) bool {
    if (is_wide(op, dtype)) return true;
    const table = dispatch.table();
    const accumulates = table.accumulate[@intFromEnum(op)][@intFromEnum(dtype)] != null;
    const reduces = table.reduce_k[@intFromEnum(op)][@intFromEnum(dtype)] != null;
    assert(accumulates == reduces);
    return accumulates;
}

/// out := the partial of one contribution: a copy, in which a NaN keeps its bits, or widened for
/// avg of f16 and of integers. `out` and `input` do not overlap.
pub fn first(op: ReduceOp, dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    if (is_wide(op, dtype)) return wide.first(dtype, out, input, count);
    if (op == .avg) {
        if (dispatch.table().widen[@intFromEnum(dtype)]) |widen| return widen(out, input, count);
    }
    @memcpy(out[0 .. count * dtype.size()], input);
}

/// out := a (+) b, where `a` and `out` are partials and `b` is an input: the last of so many
/// contributors. `out` may be exactly `a`.
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
    if (op == .avg) {
        const means = &dispatch.table().accumulate_mean;
        if (means[@intFromEnum(dtype)]) |kernel|
            return kernel(out, a, b, &.of(contributors), count);
    }
    const kernel = dispatch.table().accumulate[@intFromEnum(op)][@intFromEnum(dtype)];
    kernel.?(out, a, b, count);
}

/// The last hop: out := the result of a (+) b; avg divides by `contributors`. `out` may be exactly
/// `a` or exactly `b`.
pub fn accumulate_last(
    op: ReduceOp,
    dtype: DType,
    out: [*]u8,
    a: [*]const u8,
    b: [*]const u8,
    contributors: u32,
    count: usize,
) void {
    assert(contributors > 1);
    if (op != .avg) return accumulate(op, dtype, out, a, b, contributors, count);
    if (is_wide(op, dtype)) return wide.accumulate_last(dtype, out, a, b, contributors, count);
    const table = dispatch.table();
    if (table.accumulate_mean_last[@intFromEnum(dtype)]) |kernel|
        return kernel(out, a, b, &.of(contributors), count);
    table.accumulate_avg[@intFromEnum(dtype)].?(out, a, b, contributors, count);
}

/// out := the result of a single contribution: the input, NaNs made canonical. `out` may be
/// `input`.
pub fn finish_one(op: ReduceOp, dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    _ = op; // any of them of one number is that number
    if (dispatch.table().canonical[@intFromEnum(dtype)]) |canonical| {
        return canonical(out, input, count);
    }
    if (out != input) @memcpy(out[0 .. count * dtype.size()], input);
}

/// out := the result of ((in0 (+) in1) (+) in2) ... over 2 to 32 inputs, in one pass and without
/// rounding to 16 bits in between; avg divides by `contributors`. `out` may be exactly an input.
pub fn reduce_k(
    op: ReduceOp,
    dtype: DType,
    out: [*]u8,
    inputs: []const [*]const u8,
    contributors: u32,
    count: usize,
) void {
    assert(inputs.len >= 2 and inputs.len <= reduce_inputs_max);
    assert(contributors > 0);
    if (is_wide(op, dtype)) return wide.reduce_k(dtype, out, inputs, contributors, count);
    const kernel = dispatch.table().reduce_k[@intFromEnum(op)][@intFromEnum(dtype)];
    kernel.?(out, inputs.ptr, inputs.len, contributors, count);
}

/// out := f32 from elements of a float dtype. NaNs are canonical.
pub fn to_f32(dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    dispatch.table().to_f32[@intFromEnum(dtype)].?(out, input, count);
}

/// out := elements of a float dtype from f32, each rounded once. NaNs are canonical.
pub fn from_f32(dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    dispatch.table().from_f32[@intFromEnum(dtype)].?(out, input, count);
}

/// out := f32 from fp8 E4M3, one byte each (fp8.zig). NaNs are canonical.
pub fn fp8_to_f32(out: [*]u8, input: [*]const u8, count: usize) void {
    dispatch.table().fp8_to_f32(out, input, count);
}

/// out := fp8 E4M3 from f32, rounded to nearest; what is beyond 448 then is NaN. NaNs are 0x7f.
pub fn fp8_from_f32(out: [*]u8, input: [*]const u8, count: usize) void {
    dispatch.table().fp8_from_f32(out, input, count);
}

/// out := the blocks of f32, each rotated with the signs of this seed and operation 0
/// (codec_scalar.zig). `count` is a multiple of the block.
pub fn rotate(
    block: base.codec.Block,
    out: [*]u8,
    input: [*]const u8,
    seed: u64,
    count: usize,
) void {
    const signs = codec.signs_of(block, seed, 0, .down);
    const blocks = @divExact(count, block.elements());
    dispatch.table().rotate[@intFromEnum(block)](out, input, &signs, blocks);
}

/// values, places := the k greatest magnitudes of up to 4096 f32 (scalar.zig).
pub fn top_k(
    values: [*]u8,
    places: [*]u8,
    input: [*]const u8,
    count: usize,
    k: usize,
) void {
    assert(k > 0 and k <= count and count <= top_k_chunk_max);
    dispatch.table().top_k(values, places, input, count, k);
}

pub const top_k_chunk_max = @import("table.zig").top_k_chunk_max;

/// Pieces of the elements that matter most.
pub const sparse = @import("sparse.zig");

pub const OuterRule = @import("table.zig").OuterRule;
pub const OuterHow = @import("table.zig").OuterHow;

/// out := outer - parameters, in f32; returns the sum of the squares of the differences
/// (outer_scalar.zig). `dtype` is that of the parameters. `out` may be `outer`.
pub fn outer_difference(
    dtype: DType,
    out: [*]u8,
    outer: [*]const u8,
    parameters: [*]const u8,
    count: usize,
) f64 {
    var sum: f64 = 0;
    const kernel = dispatch.table().outer_difference[@intFromEnum(dtype)].?;
    kernel(out, outer, parameters, &sum, count);
    return sum;
}

/// parameters := keep * parameters + take * outer, rounded once to `dtype`; outer alone where keep
/// is 0.
pub fn outer_mix(
    dtype: DType,
    parameters: [*]u8,
    outer: [*]const u8,
    keep: f32,
    take: f32,
    count: usize,
) void {
    const kernel = dispatch.table().outer_mix[@intFromEnum(dtype)].?;
    kernel(parameters, outer, keep, take, count);
}

/// Moves `outer` and the moments of the rule by one step (outer_scalar.zig). Moments that the rule
/// has not are never read or written.
pub fn outer_step(
    rule: OuterRule,
    outer: [*]u8,
    first_moment: [*]u8,
    second_moment: [*]u8,
    gradient: [*]const u8,
    how: *const OuterHow,
    count: usize,
) void {
    const kernel = dispatch.table().outer_step[@intFromEnum(rule)];
    kernel(outer, first_moment, second_moment, gradient, how, count);
}

/// Encoded pieces (codec.zig): `encode`, `decode`, the step of a ring and those of an owner.
pub const Piece = codec.Piece;
pub const Residual = codec.Residual;
pub const encode = codec.encode;
pub const decode = codec.decode;
pub const accumulate_encode = codec.accumulate_encode;
pub const reduce_encode = codec.reduce_encode;
pub const reduce_decode = codec.reduce_decode;
pub const add_encoded = codec.add_encoded;

/// Memory to memory, past the caches (copy.zig). The blocks do not overlap.
pub fn copy_past(noalias out: [*]u8, noalias input: [*]const u8, bytes: usize) void {
    dispatch.table().copy_past(out, input, bytes);
}

/// 128 bits that depend on every byte, their order, their number and the seed (XXH3, xxh3.zig). Not
/// cryptographic.
pub fn digest(bytes: []const u8, seed: u64) u128 {
    var halves: [2]u64 = undefined;
    dispatch.table().digest(&halves, bytes.ptr, bytes.len, seed);
    return halves[0] | @as(u128, halves[1]) << 64;
}

/// The BLAKE3 hash of the bytes, any number of them (blake3.zig), by the calling thread alone.
/// Cryptographic: nobody can make other bytes with the same hash.
pub fn blake3(bytes: []const u8) [32]u8 {
    var hash: [32]u8 = undefined;
    dispatch.table().blake3(&hash, bytes.ptr, bytes.len);
    return hash;
}

test {
    _ = @import("tests.zig");
    _ = @import("float_mode.zig");
    _ = @import("mean.zig");
    _ = @import("wide.zig");
    _ = @import("blake3_test.zig");
    _ = @import("codec_test.zig");
    _ = @import("fp8_test.zig");
    _ = @import("outer_scalar.zig");
    _ = sparse;
    _ = @import("golden.zig");
    _ = @import("measure.zig");
}
