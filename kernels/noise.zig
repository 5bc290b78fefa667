//! Random bits by counting, sixteen words at a time: what codec_scalar.zig calls noise_word.
//! Nothing is remembered, so the bits of an element do not depend on what was encoded before it.
//! Compiled once per CPU level (level.zig).

const V = @Vector(16, u32);

const lane_numbers: V = .{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };

/// Words 16 * group to 16 * group + 15. The key of a group changes every 2^28 of them.
pub const Noise = struct {
    key: u64,
    part: u64,
    low: V,
    high: V,

    pub inline fn init(key: u64, group: u64) Noise {
        var noise: Noise = undefined;
        noise.key = key;
        noise.enter(group >> 28);
        return noise;
    }

    inline fn enter(noise: *Noise, part: u64) void {
        const keys = mix(noise.key +% part);
        noise.part = part;
        noise.low = @splat(@truncate(keys));
        noise.high = @splat(@truncate(keys >> 32));
    }

    pub inline fn words(noise: *Noise, group: u64) V {
        if (group >> 28 != noise.part) noise.enter(group >> 28);
        const begin: V = @splat(@as(u32, @truncate(group)) << 4);
        var x = (begin + lane_numbers) ^ noise.low;
        x = (x ^ (x >> @splat(16))) *% @as(V, @splat(0x7feb_352d));
        x = (x ^ (x >> @splat(15))) +% noise.high;
        x = x *% @as(V, @splat(0x846c_a68b));
        return x ^ (x >> @splat(16));
    }
};

/// The finaliser of SplitMix64.
pub fn mix(x: u64) u64 {
    var y = x +% 0x9e37_79b9_7f4a_7c15;
    y = (y ^ (y >> 30)) *% 0xbf58_476d_1ce4_e5b9;
    y = (y ^ (y >> 27)) *% 0x94d0_49bb_1331_11eb;
    return y ^ (y >> 31);
}
