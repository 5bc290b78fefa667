//! aging: how much of what was found out of a network still counts. Pure; for pace.zig and
//! peak.zig, which say what time counts.

const std = @import("std");
const ms = std.time.ns_per_ms;
const s = std.time.ns_per_s;

/// Whatever was found out of a link counts half after so long.
pub const half_life_ns = 2 * 60 * s;

/// So much of it is left. The curve is 1 - 0.693 x + 0.193 x^2 within a half-life: a half at its
/// end, and as steep as it must be where it begins, so that many short steps come to the same.
pub fn aged(rate: u64, ns: u64) u64 {
    const halved = rate >> @intCast(@min(ns / half_life_ns, 63));
    const part_ppm = ns % half_life_ns *| 1_000_000 / half_life_ns;
    const taken_ppm = (693 * part_ppm - 193 * part_ppm * part_ppm / 1_000_000) / 1000;
    return halved - halved *| taken_ppm / 1_000_000;
}

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

test "what is found out counts half after a half-life, in one step or in many" {
    try expectEqual(1000, aged(1000, 0));
    try expectEqual(500, aged(1000, half_life_ns));
    try expectEqual(250, aged(1000, 2 * half_life_ns));
    try expectEqual(0, aged(1000, std.math.maxInt(u64)));
    const half = aged(1000, half_life_ns / 2);
    try expect(half > 690 and half < 720); // 707
    var rate: u64 = 1_000_000_000;
    for (0..600) |_| rate = aged(rate, 200 * ms);
    try expect(rate > 490_000_000 and rate < 510_000_000);
    try expect(aged(std.math.maxInt(u64), half_life_ns - 1) > 0);
}
