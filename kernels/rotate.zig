//! The rotation of blocks: random signs and a fast Hadamard transform, and its inverse. Compiled
//! once per CPU level (level.zig). What it computes: codec_scalar.zig. The butterflies are in the
//! same order on every CPU: distances 1 to 8 inside a vector of 16, then whole vectors.

const builtin = @import("builtin");
const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");

const V = @Vector(16, f32);
const U = @Vector(16, u32);
const lanes = 16;
const has_fma = vector.has_fma;
const has_avx512 = builtin.cpu.arch == .x86_64 and builtin.cpu.has(.x86, .avx512f);

const Signs = table.Signs;

/// Bytes that are asked for ahead of their use: a block is too long for the CPU to see the stream.
const prefetch_bytes = 2048;

/// So many vectors of a block are worked on in registers.
pub const chunk_max = if (has_avx512) 16 else 4;

/// to := the rotated block of `from`: signs, then the transform.
pub inline fn forward(
    comptime vectors: usize,
    to: [*]u8,
    from: [*]const u8,
    signs: *const Signs,
) void {
    const chunk = @min(vectors, chunk_max);
    inline for (0..vectors / chunk) |c| {
        var values: [chunk]V = undefined;
        inline for (&values, c * chunk..) |*value, v| {
            value.* = turned(vector.load(.f32, f32, from + v * 64), signs, v);
        }
        within(chunk, &values);
        inline for (values, c * chunk..) |value, v| vector.put(to + v * 64, value);
    }
    if (chunk < vectors) spread(vectors, to, null);
}

/// The transform of the vectors of one chunk.
pub inline fn within(comptime chunk: usize, values: *[chunk]V) void {
    inline for (values) |*value| value.* = across(value.*);
    between(chunk, values);
}

/// What the transform of a block still needs when each of its chunks has had its own; then signs,
/// for the way back.
pub inline fn spread(comptime vectors: usize, at: [*]u8, signs: ?*const Signs) void {
    const chunk = @min(vectors, chunk_max);
    inline for (0..chunk) |first| {
        var values: [vectors / chunk]V = undefined;
        inline for (&values, 0..) |*value, c| {
            value.* = vector.load(.f32, f32, at + (c * chunk + first) * 64);
        }
        between(vectors / chunk, &values);
        inline for (values, 0..) |value, c| {
            const v = c * chunk + first;
            vector.put(at + v * 64, if (signs) |turns| turned(value, turns, v) else value);
        }
    }
}

/// out := the rotated blocks. `out` may be exactly `input`.
pub fn blocks_forward(comptime block: codecs.Block) table.Rotate {
    const vectors = comptime block.elements() / lanes;
    const stride = vectors * lanes * 4;
    return struct {
        fn run(
            out: [*]u8,
            input: [*]const u8,
            signs: *const Signs,
            blocks: usize,
        ) callconv(.c) void {
            for (0..blocks) |number| {
                const from = input + number * stride;
                prefetch(from, stride);
                forward(vectors, out + number * stride, from, signs);
            }
        }
    }.run;
}

pub inline fn prefetch(from: [*]const u8, comptime bytes: usize) void {
    inline for (0..(bytes + 63) / 64) |line| {
        @prefetch(from + prefetch_bytes + line * 64, .{ .rw = .read, .locality = 3 });
    }
}

pub inline fn turned(value: V, signs: *const Signs, comptime v: usize) V {
    const mask: U = signs[v * lanes ..][0..lanes].*;
    return @bitCast(@as(U, @bitCast(value)) ^ mask);
}

/// Distances 1, 2, 4 and 8: each lane takes its partner and adds itself, negated in the upper lane
/// of a pair. A product with one or minus one is exact, so fused or not gives the same bits.
inline fn across(value: V) V {
    @setEvalBranchQuota(100_000);
    var x = value;
    inline for (.{ 1, 2, 4, 8 }) |distance| {
        const partner = @shuffle(f32, x, undefined, partners(distance));
        if (has_fma) {
            x = @mulAdd(V, x, comptime ones(distance), partner);
        } else {
            const negated: U = @as(U, @bitCast(x)) ^ comptime sign_bits(distance);
            x = @as(V, @bitCast(negated)) + partner;
        }
    }
    return x;
}

inline fn between(comptime vectors: usize, values: *[vectors]V) void {
    comptime var distance = 1;
    inline while (distance < vectors) : (distance *= 2) {
        inline for (0..vectors) |index| {
            if (index & distance == 0) {
                const a = values[index];
                const b = values[index + distance];
                values[index] = a + b;
                values[index + distance] = a - b;
            }
        }
    }
}

fn partners(distance: usize) [lanes]i32 {
    var places: [lanes]i32 = undefined;
    for (&places, 0..) |*place, lane| place.* = @intCast(lane ^ distance);
    return places;
}

fn ones(distance: usize) V {
    var factors: [lanes]f32 = undefined;
    for (&factors, 0..) |*factor, lane| factor.* = if (lane & distance == 0) 1 else -1;
    return factors;
}

fn sign_bits(distance: usize) U {
    var bits: [lanes]u32 = undefined;
    for (&bits, 0..) |*bit, lane| bit.* = if (lane & distance == 0) 0 else 1 << 31;
    return bits;
}
