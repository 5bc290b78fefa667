//! The table of one CPU level: what a level object (level.zig) exports and dispatch.zig chooses
//! from. It crosses between separately compiled objects, so it holds C function pointers only,
//! and indexes by the numbers of DType and ReduceOp.

const builtin = @import("builtin");

pub const op_count = 5;
pub const dtype_count = 12;

comptime {
    // Elements and digests are read as they lie in memory, and are the same on every peer.
    if (builtin.cpu.arch.endian() != .little) @compileError("PCCL needs a little-endian CPU");
}

pub const Widen = *const fn ([*]u8, [*]const u8, usize) callconv(.c) void;
pub const Accumulate = *const fn ([*]u8, [*]const u8, [*]const u8, usize) callconv(.c) void;
pub const AccumulateAvg = *const fn ([*]u8, [*]const u8, [*]const u8, u32, usize) callconv(.c) void;
pub const ReduceK =
    *const fn ([*]u8, [*]const [*]const u8, usize, u32, usize) callconv(.c) void;
pub const Digest = *const fn (*[2]u64, [*]const u8, usize, u64) callconv(.c) void;
pub const Blake3 = *const fn (*[32]u8, [*]const u8, usize) callconv(.c) void;
pub const Copy = *const fn (noalias [*]u8, noalias [*]const u8, usize) callconv(.c) void;

pub const Table = extern struct {
    /// Input to partial for avg of 8 to 32 bit integers; null for the others, where it is a copy.
    widen: [dtype_count]?Widen,
    /// Input to result of a world of one for floats; null for integers, where it is a copy.
    canonical: [dtype_count]?Widen,
    /// out := a (+) b. But for avg it is also the last hop, since the partial type is the dtype.
    accumulate: [op_count][dtype_count]Accumulate,
    /// out := (a (+) b) / contributors: the last hop of avg.
    accumulate_avg: [dtype_count]AccumulateAvg,
    reduce_k: [op_count][dtype_count]ReduceK,
    /// out[0] is the low half.
    digest: Digest,
    blake3: Blake3,
    copy_past: Copy,
};
