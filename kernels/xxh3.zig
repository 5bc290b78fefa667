//! The digest: XXH3 with 128 bits and a seed (https://github.com/Cyan4973/xxHash, its specification
//! doc/xxhash_spec.md), written for reading. It is not cryptographic: it finds accidents, not
//! liars. Over 240 bytes the work is in stripes of 64 bytes. The code that accumulates them is a
//! parameter, so that digest.zig can do it with vectors. `Scalar` here is the specification of that
//! part.

const std = @import("std");
const assert = std.debug.assert;

const prime32_1: u64 = 0x9E3779B1;
const prime32_2: u64 = 0x85EBCA77;
const prime32_3: u64 = 0xC2B2AE3D;
const prime64_1: u64 = 0x9E3779B185EBCA87;
const prime64_2: u64 = 0xC2B2AE3D27D4EB4F;
const prime64_3: u64 = 0x165667B19E3779F9;
const prime64_4: u64 = 0x85EBCA77C2B2AE63;
const prime64_5: u64 = 0x27D4EB2F165667C5;
const prime_mx1: u64 = 0x165667919E3779F9;
const prime_mx2: u64 = 0x9FB21C651E98DF25;

const stripe_size = 64;
const secret_size = 192;
/// Each stripe of a block reads the secret 8 bytes further on.
const secret_step = 8;
const stripes_per_block = (secret_size - stripe_size) / secret_step;
const block_size = stripe_size * stripes_per_block;

pub const Lanes = [8]u64;
pub const Secret = [secret_size]u8;

const default_secret: Secret = blk: {
    @setEvalBranchQuota(10_000);
    var bytes: Secret = undefined;
    _ = std.fmt.hexToBytes(&bytes, //
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f" ++
            "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c" ++
            "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" ++
            "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364" ++
            "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e" ++
            "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e") catch unreachable;
    break :blk bytes;
};

/// Stripes one lane at a time: the specification.
pub const Scalar = struct {
    /// Adds `stripe_count` consecutive stripes of `input` to the lanes.
    pub fn accumulate(
        lanes: *Lanes,
        input: [*]const u8,
        secret: [*]const u8,
        stripe_count: usize,
    ) void {
        for (0..stripe_count) |stripe| for (0..8) |lane| {
            const data = read64(input + stripe * stripe_size + lane * 8);
            const keyed = data ^ read64(secret + stripe * secret_step + lane * 8);
            lanes[lane ^ 1] +%= data;
            lanes[lane] +%= (keyed & 0xffff_ffff) * (keyed >> 32);
        };
    }

    /// Closes a block: mixes the high bits of each lane into its low bits.
    pub fn scramble(lanes: *Lanes, secret: [*]const u8) void {
        for (0..8) |lane| {
            const x = lanes[lane];
            lanes[lane] = (x ^ (x >> 47) ^ read64(secret + lane * 8)) *% prime32_1;
        }
    }
};

/// The digest of `bytes`, with `Stripes` (like `Scalar`) for the part that matters for speed.
pub fn digest(comptime Stripes: type, bytes: []const u8, seed: u64) u128 {
    return switch (bytes.len) {
        0 => length_0(seed),
        1...3 => length_1_to_3(bytes, seed),
        4...8 => length_4_to_8(bytes, seed),
        9...16 => length_9_to_16(bytes, seed),
        17...128 => length_17_to_128(bytes, seed),
        129...240 => length_129_to_240(bytes, seed),
        else => length_over_240(Stripes, bytes, seed),
    };
}

fn length_0(seed: u64) u128 {
    return join(
        avalanche_64(seed ^ secret64(64) ^ secret64(72)),
        avalanche_64(seed ^ secret64(80) ^ secret64(88)),
    );
}

fn length_1_to_3(bytes: []const u8, seed: u64) u128 {
    const c1: u32 = bytes[0];
    const c2: u32 = bytes[bytes.len >> 1];
    const c3: u32 = bytes[bytes.len - 1];
    const length: u32 = @intCast(bytes.len);
    const low: u32 = (c1 << 16) | (c2 << 24) | c3 | (length << 8);
    const high = std.math.rotl(u32, @byteSwap(low), 13);
    const flip_low = @as(u64, secret32(0) ^ secret32(4)) +% seed;
    const flip_high = @as(u64, secret32(8) ^ secret32(12)) -% seed;
    return join(avalanche_64(low ^ flip_low), avalanche_64(high ^ flip_high));
}

fn length_4_to_8(bytes: []const u8, seed_plain: u64) u128 {
    const seed = seed_plain ^ (@as(u64, @byteSwap(@as(u32, @truncate(seed_plain)))) << 32);
    const first: u64 = read32(bytes.ptr);
    const last: u64 = read32(bytes.ptr + bytes.len - 4);
    const keyed = (first | (last << 32)) ^ ((secret64(16) ^ secret64(24)) +% seed);
    const product = @as(u128, keyed) * (prime64_1 +% (@as(u64, bytes.len) << 2));
    const high = high64(product) +% (low64(product) << 1);
    var low = low64(product) ^ (high >> 3);
    low = (low ^ (low >> 35)) *% prime_mx2;
    return join(low ^ (low >> 28), avalanche(high));
}

fn length_9_to_16(bytes: []const u8, seed: u64) u128 {
    const flip_low = (secret64(32) ^ secret64(40)) -% seed;
    const flip_high = (secret64(48) ^ secret64(56)) +% seed;
    const first = read64(bytes.ptr);
    const last = read64(bytes.ptr + bytes.len - 8);
    const mixed = @as(u128, first ^ last ^ flip_low) * prime64_1;
    var low = low64(mixed) +% (@as(u64, bytes.len - 1) << 54);
    const keyed = last ^ flip_high;
    const high = high64(mixed) +% keyed +% (keyed & 0xffff_ffff) * (prime32_2 - 1);
    low ^= @byteSwap(high);
    const product = @as(u128, low) * prime64_2;
    return join(avalanche(low64(product)), avalanche(high64(product) +% high *% prime64_2));
}

/// Two running sums for the middle lengths.
const Pair = struct {
    low: u64,
    high: u64 = 0,

    fn mix(pair: *Pair, one: [*]const u8, two: [*]const u8, secret: [*]const u8, seed: u64) void {
        pair.low +%= mix_16(one, secret, seed);
        pair.low ^= read64(two) +% read64(two + 8);
        pair.high +%= mix_16(two, secret + 16, seed);
        pair.high ^= read64(one) +% read64(one + 8);
    }

    fn finish(pair: Pair, length: u64, seed: u64) u128 {
        const high = pair.low *% prime64_1 +% pair.high *% prime64_4 +%
            (length -% seed) *% prime64_2;
        return join(avalanche(pair.low +% pair.high), 0 -% avalanche(high));
    }
};

fn length_17_to_128(bytes: []const u8, seed: u64) u128 {
    var pair: Pair = .{ .low = @as(u64, bytes.len) *% prime64_1 };
    var round = (bytes.len - 1) / 32 + 1;
    while (round > 0) { // from the middle outwards: the ends are mixed last
        round -= 1;
        const one = bytes.ptr + 16 * round;
        const two = bytes.ptr + bytes.len - 16 * (round + 1);
        pair.mix(one, two, default_secret[32 * round ..].ptr, seed);
    }
    return pair.finish(bytes.len, seed);
}

fn length_129_to_240(bytes: []const u8, seed: u64) u128 {
    var pair: Pair = .{ .low = @as(u64, bytes.len) *% prime64_1 };
    var end: usize = 32;
    while (end < 160) : (end += 32) {
        const one = bytes.ptr + end - 32;
        pair.mix(one, one + 16, default_secret[end - 32 ..].ptr, seed);
    }
    pair.low = avalanche(pair.low);
    pair.high = avalanche(pair.high);
    while (end <= bytes.len) : (end += 32) {
        const one = bytes.ptr + end - 32;
        pair.mix(one, one + 16, default_secret[3 + end - 160 ..].ptr, seed);
    }
    const last = bytes.ptr + bytes.len - 16;
    pair.mix(last, last - 16, default_secret[136 - 17 - 16 ..].ptr, 0 -% seed);
    return pair.finish(bytes.len, seed);
}

fn length_over_240(comptime Stripes: type, bytes: []const u8, seed: u64) u128 {
    assert(bytes.len > 240);
    const secret = seeded_secret(seed);
    const secret_last = secret[secret_size - stripe_size ..].ptr;
    var lanes: Lanes = .{
        prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1,
    };

    const block_count = (bytes.len - 1) / block_size;
    for (0..block_count) |block| {
        Stripes.accumulate(&lanes, bytes.ptr + block * block_size, &secret, stripes_per_block);
        Stripes.scramble(&lanes, secret_last);
    }
    const rest = bytes.ptr + block_count * block_size;
    const stripe_count = (bytes.len - 1 - block_count * block_size) / stripe_size;
    Stripes.accumulate(&lanes, rest, &secret, stripe_count);
    // The last 64 bytes, which may overlap what was read before.
    Stripes.accumulate(&lanes, bytes.ptr + bytes.len - stripe_size, secret_last - 7, 1);

    const length: u64 = bytes.len;
    return join(
        merge(&lanes, secret[11..].ptr, length *% prime64_1),
        merge(&lanes, secret_last - 11, ~(length *% prime64_2)),
    );
}

fn seeded_secret(seed: u64) Secret {
    var secret: Secret = undefined;
    for (0..secret_size / 16) |i| {
        const low = secret64(16 * i) +% seed;
        const high = secret64(16 * i + 8) -% seed;
        std.mem.writeInt(u64, secret[16 * i ..][0..8], low, .little);
        std.mem.writeInt(u64, secret[16 * i + 8 ..][0..8], high, .little);
    }
    return secret;
}

fn merge(lanes: *const Lanes, secret: [*]const u8, start: u64) u64 {
    var sum = start;
    for (0..4) |i| sum +%= fold(
        lanes[2 * i] ^ read64(secret + 16 * i),
        lanes[2 * i + 1] ^ read64(secret + 16 * i + 8),
    );
    return avalanche(sum);
}

fn mix_16(bytes: [*]const u8, secret: [*]const u8, seed: u64) u64 {
    return fold(
        read64(bytes) ^ (read64(secret) +% seed),
        read64(bytes + 8) ^ (read64(secret + 8) -% seed),
    );
}

fn fold(x: u64, y: u64) u64 {
    const product = @as(u128, x) * y;
    return low64(product) ^ high64(product);
}

fn avalanche(x: u64) u64 {
    const y = (x ^ (x >> 37)) *% prime_mx1;
    return y ^ (y >> 32);
}

fn avalanche_64(x: u64) u64 {
    const y = (x ^ (x >> 33)) *% prime64_2;
    const z = (y ^ (y >> 29)) *% prime64_3;
    return z ^ (z >> 32);
}

fn join(low: u64, high: u64) u128 {
    return low | (@as(u128, high) << 64);
}

fn low64(x: u128) u64 {
    return @truncate(x);
}

fn high64(x: u128) u64 {
    return @intCast(x >> 64);
}

fn secret32(offset: usize) u32 {
    return read32(default_secret[offset..].ptr);
}

fn secret64(offset: usize) u64 {
    return read64(default_secret[offset..].ptr);
}

fn read32(bytes: [*]const u8) u32 {
    return std.mem.readInt(u32, bytes[0..4], .little);
}

fn read64(bytes: [*]const u8) u64 {
    return std.mem.readInt(u64, bytes[0..8], .little);
}
