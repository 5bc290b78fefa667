//! The k greatest magnitudes of a chunk of up to 4096 f32, with their places in 12 bits each: for
//! exchanging what matters most. Compiled once per CPU level (level.zig). What it computes:
//! scalar.zig.
//!
//! Few elements are ever sorted. The greatest of each 8 elements are found first; the k-th of
//! those is a lower bound, since there are k elements at least as great, and what is above it is
//! not many more than k.

const std = @import("std");
const table = @import("table.zig");
const vector = @import("vector.zig");

const lanes = 16;
const I = @Vector(lanes, i32);
const chunk_max = table.top_k_chunk_max;
/// Vectors whose lanes share a greatest element.
const group = 8;
const groups_max = chunk_max / lanes / group * lanes;

pub fn top_k(
    values: [*]u8,
    places: [*]u8,
    input: [*]const u8,
    count: usize,
    k: usize,
) callconv(.c) void {
    // Whole groups, and what lies behind the last element is smaller than any.
    var keys: [chunk_max]i32 align(64) = undefined;
    const padded = std.mem.alignForward(usize, count, group * lanes);
    fill(&keys, input, count, padded);
    const threshold = find(&keys, padded, k);

    // All above the threshold, and of those on it the first ones.
    var left_equal = k - above(&keys, padded, threshold);
    var taken: usize = 0;
    var pending: u32 = 0;
    var index: usize = 0;
    while (index < padded) : (index += lanes) {
        const key: I = keys[index..][0..lanes].*;
        var mask: u16 = @bitCast(key >= @as(I, @splat(threshold)));
        while (mask != 0) : (mask &= mask - 1) {
            const at = index + @ctz(mask);
            if (keys[at] == threshold) {
                if (left_equal == 0) continue;
                left_equal -= 1;
            }
            @memcpy(values[taken * 4 ..][0..4], input[at * 4 ..][0..4]);
            if (taken % 2 == 0) {
                pending = @intCast(at);
            } else {
                put_pair(places + taken / 2 * 3, pending | @as(u32, @intCast(at)) << 12);
            }
            taken += 1;
        }
    }
    std.debug.assert(taken == k);
    if (k % 2 == 1) {
        places[k / 2 * 3] = @truncate(pending);
        places[k / 2 * 3 + 1] = @truncate(pending >> 8);
    }
}

inline fn put_pair(to: [*]u8, both: u32) void {
    to[0] = @truncate(both);
    to[1] = @truncate(both >> 8);
    to[2] = @truncate(both >> 16);
}

/// Bits of the magnitudes, which order like integers; -1 behind the last.
fn fill(keys: *[chunk_max]i32, input: [*]const u8, count: usize, padded: usize) void {
    const mask: I = @splat(0x7fff_ffff);
    var index: usize = 0;
    while (count - index >= lanes) : (index += lanes) {
        const bits: I = @bitCast(vector.load(.f32, f32, input + index * 4));
        keys[index..][0..lanes].* = bits & mask;
    }
    for (index..padded) |at| {
        const bits: *align(1) const u32 = @ptrCast(input + at * 4);
        keys[at] = if (at < count) @intCast(bits.* & 0x7fff_ffff) else -1;
    }
}

/// The k-th greatest key.
fn find(keys: *const [chunk_max]i32, padded: usize, k: usize) i32 {
    var maxima: [groups_max]u32 align(64) = undefined;
    const group_count = padded / group;
    for (0..padded / (group * lanes)) |number| {
        var most: I = @splat(-1);
        inline for (0..group) |v| {
            const key: I = keys[(number * group + v) * lanes ..][0..lanes].*;
            most = @max(most, key);
        }
        // Lanes without an element count as zeros: a bound may be lower than need be.
        const whole: I = @max(most, @as(I, @splat(0)));
        maxima[number * lanes ..][0..lanes].* = @as(@Vector(lanes, u32), @bitCast(whole));
    }
    const bound: i32 = if (k > group_count) 0 else @intCast(nth(maxima[0..group_count], k));
    var candidates: [chunk_max]u32 = undefined;
    var found: usize = 0;
    var index: usize = 0;
    while (index < padded) : (index += lanes) {
        const key: I = keys[index..][0..lanes].*;
        var mask: u16 = @bitCast(key >= @as(I, @splat(bound)));
        while (mask != 0) : (mask &= mask - 1) {
            candidates[found] = @intCast(keys[index + @ctz(mask)]);
            found += 1;
        }
    }
    return @intCast(nth(candidates[0..found], k));
}

/// The k-th greatest number, digit by digit. Reorders them.
fn nth(numbers: []u32, k: usize) u32 {
    var live = numbers;
    var rest = k;
    var result: u32 = 0;
    inline for (.{ .{ 20, 11 }, .{ 10, 10 }, .{ 0, 10 } }) |digit| {
        const shift, const width = digit;
        const mask = (1 << width) - 1;
        var counts: [1 << width]u16 = @splat(0);
        var most: u32 = 0;
        for (live) |number| {
            const d = number >> shift & mask;
            counts[d] += 1;
            most = @max(most, d);
        }
        while (counts[most] < rest) : (most -= 1) rest -= counts[most];
        result |= most << shift;
        var kept: usize = 0;
        for (live) |number| {
            live[kept] = number;
            kept += @intFromBool(number >> shift & mask == most);
        }
        live = live[0..kept];
    }
    return result;
}

fn above(keys: *const [chunk_max]i32, padded: usize, threshold: i32) usize {
    var counts: I = @splat(0);
    var index: usize = 0;
    while (index < padded) : (index += lanes) {
        const key: I = keys[index..][0..lanes].*;
        counts += @intFromBool(key > @as(I, @splat(threshold)));
    }
    return @intCast(@reduce(.Add, counts));
}
