//! Oracle: the values that peers contribute, and what a result must then be. Peer with digit r
//! contributes m << 4r to a u64 sum, m in 1..7 drawn from the operation, the peer and the element.
//! In the sum, hex digit r is m if r counted once, 0 if it did not, 2m if it counted twice (no
//! carry: 14 < 16), and another operation's m with probability 6/7 if a stale value got in. So
//! every element says who is in it.

const std = @import("std");
const program = @import("program.zig");
const Key = program.Key;

pub const digits = 16;

fn mix(value: u64) u64 {
    var z = value;
    z = (z ^ z >> 30) *% 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) *% 0x94d049bb133111eb;
    return z ^ z >> 31;
}

pub fn multiplier(key: Key, digit: u8, element: u64) u64 {
    return 1 + mix(key.hash() +% element *% 0x9e3779b97f4a7c15 +% digit) % 7;
}

pub fn contribution(key: Key, digit: u8, element: u64) u64 {
    return multiplier(key, digit, element) << @intCast(4 * @as(u32, digit));
}

/// What the root broadcasts.
pub fn broadcast_value(key: Key, digit: u8, element: u64) u64 {
    return mix(key.hash() +% (element << 8) +% digit +% 1);
}

/// What a peer contributes to an average.
pub fn average_value(key: Key, digit: u8, element: u64) i32 {
    const drawn: i32 = @intCast(mix(key.hash() ^ (element << 8) ^ digit) % 2_000_001);
    return drawn - 1_000_000;
}

/// Truncated toward zero, as integer averages are.
pub fn average(key: Key, element: u64, contributors: u16) i32 {
    var sum: i64 = 0;
    for (0..digits) |digit| {
        if (contributors >> @intCast(digit) & 1 == 1) {
            sum += average_value(key, @intCast(digit), element);
        }
    }
    return @intCast(@divTrunc(sum, @popCount(contributors)));
}

/// What a peer contributes to an operation on floats: an integer that is never zero and so small
/// that the sum of all digits is exact in 8 bits; in one operation of 16, now and then, one of the
/// numbers that codecs have rules for.
pub fn float_value(key: Key, digit: u8, element: u64) f32 {
    const drawn = mix(key.hash() ^ element *% 0x9e3779b97f4a7c15 ^ @as(u64, digit) << 32);
    const specials = [_]f32{
        std.math.nan(f32), std.math.inf(f32), -std.math.inf(f32), 0x1p127, -0.0, 1e-31, 0x1p-140,
    };
    if (has_specials(key) and drawn >> 40 & 15 == 0) return specials[(drawn >> 48) % specials.len];
    const magnitude: f32 = @floatFromInt(1 + drawn % 15);
    return if (drawn >> 32 & 1 == 1) -magnitude else magnitude;
}

pub fn has_specials(key: Key) bool {
    return mix(key.hash() ^ 0xf1) % 16 == 0;
}

/// Says what is wrong with one element of a sum; null if it is as it must be.
pub const Fault = struct {
    digit: u8,
    kind: enum { missing, twice, not_listed, wrong_value },
};

pub fn check_sum(key: Key, element: u64, contributors: u16, value: u64) ?Fault {
    for (0..digits) |index| {
        const digit: u8 = @intCast(index);
        const found = value >> @intCast(4 * index) & 15;
        const listed = contributors >> @intCast(index) & 1 == 1;
        const expected = if (listed) multiplier(key, digit, element) else 0;
        if (found == expected) continue;
        if (!listed) return .{ .digit = digit, .kind = .not_listed };
        if (found == 0) return .{ .digit = digit, .kind = .missing };
        if (found == 2 * expected) return .{ .digit = digit, .kind = .twice };
        return .{ .digit = digit, .kind = .wrong_value };
    }
    return null;
}

test "the oracle names a missing, a double and a stranger's contribution" {
    const key: Key = .{ .group = 0, .epoch = 1, .round = 2, .index = 3 };
    const sum = contribution(key, 0, 9) + contribution(key, 15, 9);
    try std.testing.expectEqual(null, check_sum(key, 9, 0x8001, sum));
    const missing = check_sum(key, 9, 0x8003, sum).?;
    try std.testing.expectEqual(1, missing.digit);
    try std.testing.expectEqual(.missing, missing.kind);
    try std.testing.expectEqual(.not_listed, check_sum(key, 9, 0x0001, sum).?.kind);
    const twice = check_sum(key, 9, 0x8001, sum + contribution(key, 0, 9)).?;
    try std.testing.expectEqual(.twice, twice.kind);
}
