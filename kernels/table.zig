//! The table of one CPU level: what a level object (level.zig) exports and dispatch.zig chooses
//! from. It crosses between separately compiled objects, so it holds C function pointers only,
//! and indexes by the numbers of DType and ReduceOp, and of a codec's kind, block and rounding.

const builtin = @import("builtin");

pub const op_count = 8;
pub const dtype_count = 12;

comptime {
    // Elements and digests are read as they lie in memory, and are the same on every peer.
    if (builtin.cpu.arch.endian() != .little) @compileError("PCCL needs a little-endian CPU");
}

pub const Widen = *const fn ([*]u8, [*]const u8, usize) callconv(.c) void;
pub const Accumulate = *const fn ([*]u8, [*]const u8, [*]const u8, usize) callconv(.c) void;
/// With the number of contributors.
pub const AccumulateAvg =
    *const fn ([*]u8, [*]const u8, [*]const u8, u32, usize) callconv(.c) void;
pub const Mean = @import("mean.zig").Mean;
pub const AccumulateMean =
    *const fn ([*]u8, [*]const u8, [*]const u8, *const Mean, usize) callconv(.c) void;
pub const ReduceK =
    *const fn ([*]u8, [*]const [*]const u8, usize, u32, usize) callconv(.c) void;
pub const Digest = *const fn (*[2]u64, [*]const u8, usize, u64) callconv(.c) void;
pub const Blake3 = *const fn (*[32]u8, [*]const u8, usize) callconv(.c) void;
pub const Copy = *const fn (noalias [*]u8, noalias [*]const u8, usize) callconv(.c) void;

/// By what each place of a block is multiplied: its sign times a power of two, which is `down` in
/// an encoding and `up` in a decoding.
pub const Signs = [256]f32;

/// The values to encode: f32, the caller's own, and the same elements of encoded pieces, of which
/// `position` come before them in the sum. Codecs without blocks have no scales.
pub const EncodeJob = extern struct {
    scales: [*]u8,
    codes: [*]u8,
    own: [*]const u8,
    /// Null where blocks are not rotated.
    signs: ?*const Signs,
    inputs: [*]const [*]const u8,
    input_count: usize,
    position: usize,
    /// Where the first of these blocks has its scale and its codes in each input.
    scales_at: usize,
    codes_at: usize,
    /// In blocks; in elements where there are none.
    count: usize,
    factor: f32,
    /// The key of the random bits, and the number of the first element.
    key: u64,
    first: u64,
};
pub const Encode = *const fn (*const EncodeJob) callconv(.c) void;
pub const DecodeBlocks = *const fn (
    [*]u8,
    [*]const u8,
    [*]const u8,
    ?*const Signs,
    usize,
) callconv(.c) void;
pub const AddBlocks =
    *const fn ([*]u8, [*]const u8, [*]const u8, [*]const u8, usize) callconv(.c) void;
pub const Rotate = *const fn ([*]u8, [*]const u8, *const Signs, usize) callconv(.c) void;
pub const Lost = *const fn ([*]u8, [*]const u8, [*]const u8, usize) callconv(.c) void;

/// `magnitude` is the greatest in bits, NaNs above all.
pub const Range = extern struct { least: f32, greatest: f32, magnitude: u32 };
/// An element's code is its distance from `least` times `inverse`, or itself times `inverse` and
/// `zero` more.
pub const Steps = extern struct { least: f32, inverse: f32, zero: i32 };
pub const WidenRange = *const fn (*Range, [*]const u8, usize) callconv(.c) void;
pub const EncodeRange = *const fn ([*]u8, [*]const u8, usize, *const Steps) callconv(.c) void;
pub const DecodeRange = *const fn ([*]u8, [*]const u8, usize, *const [2]f32) callconv(.c) void;

/// values, places, input, count, k.
pub const TopK = *const fn ([*]u8, [*]u8, [*]const u8, usize, usize) callconv(.c) void;
/// A place has 12 bits.
pub const top_k_chunk_max = 4096;

/// The optimizer of an outer step.
pub const OuterRule = enum(u32) {
    sgd = 0,
    nesterov = 1,
    adam = 2,

    /// Arrays of f32 that the rule keeps beside the parameters, `first` before `second`.
    pub fn moments(rule: OuterRule) usize {
        return @intFromEnum(rule);
    }
};
/// The numbers of an outer step (outer_scalar.zig). `decay` is the momentum of nesterov and the
/// first beta of adam, `fresh` one less it; `weight` is one less its power by the number of steps,
/// this one too.
pub const OuterHow = extern struct {
    scale: f32 = 1,
    learning_rate: f32,
    decay: f32 = 0,
    fresh: f32 = 0,
    square_decay: f32 = 0,
    square_fresh: f32 = 0,
    weight: f32 = 1,
    square_weight: f32 = 1,
    epsilon: f32 = 0,
};
/// out, outer, parameters, sum of squares, count.
pub const OuterDifference =
    *const fn ([*]u8, [*]const u8, [*]const u8, *f64, usize) callconv(.c) void;
/// parameters, outer, keep, take, count.
pub const OuterMix = *const fn ([*]u8, [*]const u8, f32, f32, usize) callconv(.c) void;
/// outer, first and second moment, gradient, how, count.
pub const OuterStep =
    *const fn ([*]u8, [*]u8, [*]u8, [*]const u8, *const OuterHow, usize) callconv(.c) void;
pub const outer_rule_count = 3;

/// out, inputs, groups of elements: skeleton.zig.
pub const Skeleton = *const fn ([*]u8, [*]const [*]const u8, usize) callconv(.c) void;
pub const skeleton_count = 22;

/// The kinds of a family follow each other in codec.Kind.
pub const half_count = 2;
pub const block_kind_count = 6;
pub const block_count = 4;
pub const range_count = 2;
pub const rounding_count = 2;

pub const Table = extern struct {
    /// Input to partial for avg of f16 and of 8 to 32 bit integers; null for the others, where it
    /// is a copy.
    widen: [dtype_count]?Widen,
    /// Input to result of a world of one for floats; null for integers, where it is a copy.
    canonical: [dtype_count]?Widen,
    /// out := a (+) b. But for avg it is also the last hop, since the partial type is the dtype.
    /// Null where the op does not take the dtype.
    accumulate: [op_count][dtype_count]?Accumulate,
    /// out := (a (+) b) / contributors: the last hop of avg. Null for bf16, f32, f64.
    accumulate_avg: [dtype_count]?AccumulateAvg,
    /// The hops of avg of bf16, f32 and f64, and the last of them; null for the others.
    accumulate_mean: [dtype_count]?AccumulateMean,
    accumulate_mean_last: [dtype_count]?AccumulateMean,
    /// Null where the op does not take the dtype.
    reduce_k: [op_count][dtype_count]?ReduceK,
    /// out[0] is the low half.
    digest: Digest,
    blake3: Blake3,
    copy_past: Copy,
    /// Between floats and f32; null for integers.
    to_f32: [dtype_count]?Widen,
    from_f32: [dtype_count]?Widen,
    fp8_to_f32: Widen,
    fp8_from_f32: Widen,
    encode_half: [half_count][rounding_count]Encode,
    encode_blocks: [block_kind_count][block_count][rounding_count]Encode,
    decode_blocks: [block_kind_count][block_count]DecodeBlocks,
    add_blocks: [block_kind_count][block_count]AddBlocks,
    rotate: [block_count]Rotate,
    rotate_back: [block_count]Rotate,
    widen_range: WidenRange,
    encode_range: [range_count]EncodeRange,
    decode_range: [range_count]DecodeRange,
    lost: Lost,
    top_k: TopK,
    /// Null for integers.
    outer_difference: [dtype_count]?OuterDifference,
    outer_mix: [dtype_count]?OuterMix,
    outer_step: [outer_rule_count]OuterStep,
    skeletons: [skeleton_count]Skeleton,
};
