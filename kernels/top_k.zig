//! The k greatest magnitudes of a chunk of up to 4096 f32, with their places in 12 bits each: for
//! exchanging what matters most. Compiled once per CPU level (level.zig). What it computes:
//! scalar.zig.
//!
//! Few elements are looked at twice. The greatest of each few elements are found first; a number
//! that k of those reach is reached by k elements, so what is below it is out of it, and what is
//! left is not many more than k. How many reach a number is counted in vectors, for one bit of it
//! after the other.

const std = @import("std");
const table = @import("table.zig");
const vector = @import("vector.zig");

const lanes = 16;
const I = @Vector(lanes, i32);
const chunk_max = table.top_k_chunk_max;
/// Vectors whose lanes share a greatest element.
const group = 8;
const words_max = chunk_max / 64;

comptime {
    std.debug.assert(group * lanes % 64 == 0);
}

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

    var candidates: Candidates = .{};
    candidates.find(&keys, padded, bound_of(&keys, padded, k));
    const least = kth(&candidates.keys, candidates.count, k);
    // All above the threshold, and of those on it the first ones.
    var left_equal = k - least.above;
    var taken: usize = 0;
    var pending: u32 = 0;
    for (candidates.keys[0..candidates.count], candidates.at[0..candidates.count]) |key, at| {
        const equal = key == least.key;
        const take = key > least.key or (equal and left_equal > 0);
        left_equal -= @intFromBool(equal and take);
        // What is not taken is written over by the next one, or is behind the last.
        if (taken == k) break;
        @memcpy(values[taken * 4 ..][0..4], input[@as(usize, at) * 4 ..][0..4]);
        if (!take) continue;
        if (taken % 2 == 0) {
            pending = at;
        } else {
            put_pair(places + taken / 2 * 3, pending | @as(u32, at) << 12);
        }
        taken += 1;
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

/// At least k keys reach it.
fn bound_of(keys: *const [chunk_max]i32, padded: usize, k: usize) i32 {
    var maxima: [chunk_max / group]i32 align(64) = undefined;
    for (0..padded / (group * lanes)) |number| {
        var most: I = @splat(-1);
        inline for (0..group) |v| {
            const key: I = keys[(number * group + v) * lanes ..][0..lanes].*;
            most = @max(most, key);
        }
        maxima[number * lanes ..][0..lanes].* = most;
    }
    var count = padded / group;
    // Fewer of more elements each do as well, as long as there are some for each of k.
    while (count % (2 * lanes) == 0 and count / 2 >= 4 * k) {
        count /= 2;
        var index: usize = 0;
        while (index < count) : (index += lanes) {
            const a: I = maxima[index..][0..lanes].*;
            const b: I = maxima[count + index ..][0..lanes].*;
            maxima[index..][0..lanes].* = @max(a, b);
        }
    }
    return if (k > count) 0 else kth(&maxima, count, k).key;
}

/// Where k keys are above a key, or on it.
const Least = struct { key: i32, above: usize };

/// The k-th greatest of some keys, or, if k and no more are above some number, that. There are k
/// that are not negative, and up to the next whole vector behind the last there is memory.
fn kth(keys: []align(64) i32, count: usize, k: usize) Least {
    const padded = std.mem.alignForward(usize, count, lanes);
    @memset(keys[count..padded], -1);
    var low: i32 = 0;
    var above: usize = 0;
    var bit: u5 = 31;
    while (bit > 0) {
        bit -= 1;
        const number = low | @as(i32, 1) << bit;
        const reach = count_from(keys[0..padded], number);
        if (reach >= k) low = number else above = reach;
        if (reach == k) return .{ .key = number - 1, .above = k };
    }
    return .{ .key = low, .above = above };
}

/// How many reach the number.
fn count_from(keys: []align(64) const i32, number: i32) usize {
    var counts: I = @splat(0);
    var index: usize = 0;
    while (index < keys.len) : (index += lanes) {
        const key: I = keys[index..][0..lanes].*;
        counts += @intFromBool(key >= @as(I, @splat(number)));
    }
    return @intCast(@reduce(.Add, counts));
}

/// The keys that reach a bound, in their order, and where they are.
const Candidates = struct {
    keys: [chunk_max]i32 align(64) = undefined,
    at: [chunk_max]u16 = undefined,
    count: usize = 0,

    fn find(
        candidates: *Candidates,
        keys: *const [chunk_max]i32,
        padded: usize,
        bound: i32,
    ) void {
        var words: [words_max]u64 = undefined;
        for (words[0 .. padded / 64], 0..) |*word, number| {
            word.* = 0;
            inline for (0..64 / lanes) |part| {
                const key: I = keys[number * 64 + part * lanes ..][0..lanes].*;
                const mask: u16 = @bitCast(key >= @as(I, @splat(bound)));
                word.* |= @as(u64, mask) << part * lanes;
            }
        }
        var count: usize = 0;
        for (words[0 .. padded / 64], 0..) |word, number| {
            var rest = word;
            while (rest != 0) : (rest &= rest - 1) {
                const at = number * 64 + @ctz(rest);
                candidates.keys[count] = keys[at];
                candidates.at[count] = @intCast(at);
                count += 1;
            }
        }
        candidates.count = count;
    }
};
