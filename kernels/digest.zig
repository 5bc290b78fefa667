//! The stripes of the digest with vectors: the eight 64-bit lanes are one vector, kept in registers
//! for a whole block. Compiled once per CPU level (level.zig). Specification: xxh3.zig.

const xxh3 = @import("xxh3.zig");

const V = @Vector(8, u64);
const prime32_1: V = @splat(0x9E3779B1);

pub fn digest(out: *[2]u64, bytes: [*]const u8, size: usize, seed: u64) callconv(.c) void {
    const value = xxh3.digest(Vector, bytes[0..size], seed);
    out.* = .{ @truncate(value), @truncate(value >> 64) };
}

const Vector = struct {
    pub inline fn accumulate(
        lanes: *xxh3.Lanes,
        input: [*]const u8,
        secret: [*]const u8,
        stripe_count: usize,
    ) void {
        var sum = lanes_load(lanes);
        for (0..stripe_count) |stripe| {
            const data = load(input + stripe * 64);
            const keyed = data ^ load(secret + stripe * 8);
            const swapped = @shuffle(u64, data, undefined, [8]i32{ 1, 0, 3, 2, 5, 4, 7, 6 });
            // Both factors have 32 bits, which makes it one pmuludq or umull.
            const low = keyed & @as(V, @splat(0xffff_ffff));
            sum +%= swapped +% low *% (keyed >> @splat(32));
        }
        lanes_store(lanes, sum);
    }

    pub inline fn scramble(lanes: *xxh3.Lanes, secret: [*]const u8) void {
        const x = lanes_load(lanes);
        lanes_store(lanes, (x ^ (x >> @splat(47)) ^ load(secret)) *% prime32_1);
    }

    inline fn load(bytes: [*]const u8) V {
        const vector: *align(1) const V = @ptrCast(bytes);
        return vector.*;
    }

    inline fn lanes_load(lanes: *const xxh3.Lanes) V {
        const vector: *align(8) const V = @ptrCast(lanes);
        return vector.*;
    }

    inline fn lanes_store(lanes: *xxh3.Lanes, value: V) void {
        const vector: *align(8) V = @ptrCast(lanes);
        vector.* = value;
    }
};
