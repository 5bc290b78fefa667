//! The rotation of blocks: random signs and a fast Hadamard transform, and its inverse. Compiled
//! once per CPU level (level.zig). What it computes: codec_scalar.zig. The butterflies are in the
//! same order on every CPU: distances 1 to 8 inside a vector of 16, then whole vectors.

const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");

const V = @Vector(16, f32);
const U = @Vector(16, u32);
const lanes = 16;
const has_fma = vector.has_fma;

/// Bytes that are asked for ahead of their use: a block is too long for the CPU to see the stream.
const prefetch_bytes = 2048;

/// Signs, then the transform of a block. `signs` has a sign bit for each place.
pub inline fn forward(
    comptime vectors: usize,
    values: *[vectors]V,
    signs: *const [codecs.block_elements_max]u32,
) void {
    inline for (values, 0..) |*value, v| value.* = across(turned(value.*, signs, v));
    between(vectors, values);
}

/// The transform, then signs: the inverse but for a factor, which the caller has applied.
pub inline fn backward(
    comptime vectors: usize,
    values: *[vectors]V,
    signs: *const [codecs.block_elements_max]u32,
) void {
    inline for (values) |*value| value.* = across(value.*);
    between(vectors, values);
    inline for (values, 0..) |*value, v| value.* = turned(value.*, signs, v);
}

/// out := the rotated blocks. `out` may be exactly `input`.
pub fn blocks_forward(comptime block: codecs.Block) table.Rotate {
    const vectors = comptime block.elements() / lanes;
    const stride = vectors * lanes * 4;
    return struct {
        fn run(
            out: [*]u8,
            input: [*]const u8,
            signs: *const [codecs.block_elements_max]u32,
            blocks: usize,
        ) callconv(.c) void {
            for (0..blocks) |number| {
                const from = input + number * stride;
                prefetch(from, stride);
                var values: [vectors]V = undefined;
                inline for (&values, 0..) |*value, v| {
                    value.* = vector.load(.f32, f32, from + v * 64);
                }
                forward(vectors, &values, signs);
                const to = out + number * stride;
                inline for (values, 0..) |value, v| vector.put(to + v * 64, value);
            }
        }
    }.run;
}

pub inline fn prefetch(from: [*]const u8, comptime bytes: usize) void {
    inline for (0..(bytes + 63) / 64) |line| {
        @prefetch(from + prefetch_bytes + line * 64, .{ .rw = .read, .locality = 3 });
    }
}

inline fn turned(
    value: V,
    signs: *const [codecs.block_elements_max]u32,
    comptime v: usize,
) V {
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
