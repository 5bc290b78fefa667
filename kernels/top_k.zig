//! The k greatest magnitudes of a chunk of up to 4096 f32, with their places in 12 bits each: for
//! exchanging the elements that matter most. Compiled once per CPU level (level.zig).
//! Specification: scalar.zig.
//!
//! Few elements are looked at twice. The elements are first taken in small sets, and the greatest
//! of each set is found. If k of these greatest reach a number, k elements reach it, so every
//! element below that number is out; not many more than k remain. Such a number is found by halving
//! an interval; how many greatest reach it is counted in vectors. Loops have no branch that depends
//! on one element: a CPU would guess wrong at every other candidate, and each time lose as long as
//! 64 elements take.

const std = @import("std");
const table = @import("table.zig");
const vector = @import("vector.zig");

const lanes = 16;
const I = @Vector(lanes, i32);
const chunk_max = table.top_k_chunk_max;
/// Vectors whose lanes share a greatest element.
const group = 8;

comptime {
    std.debug.assert(group * lanes % 64 == 0);
}

const Maxima = [chunk_max / group]i32;
/// Candidates of one word that are noted without asking whether there are so many.
const noted_at_once = 4;

pub fn top_k(
    values: [*]u8,
    places: [*]u8,
    input: [*]const u8,
    count: usize,
    k: usize,
) callconv(.c) void {
    // Whole groups, and what lies behind the last element is smaller than any.
    var keys: [chunk_max]i32 align(64) = undefined;
    var maxima: Maxima align(64) = undefined;
    const padded = std.mem.alignForward(usize, count, group * lanes);
    fill(&keys, &maxima, input, count);
    const bound = bound_of(&maxima, padded / group, k);

    // Not initialised: to fill it would take longer than all of the rest.
    var candidates: Candidates = undefined;
    candidates.find(&keys, padded, bound);
    const least = kth(candidates.keys[0..], candidates.count, k, bound, 0);
    // All above the threshold, and of those on it the first ones.
    var left_equal = k - least.above;
    var taken: usize = 0;
    var taken_at: [chunk_max]u16 = undefined;
    for (candidates.keys[0..candidates.count], candidates.at[0..candidates.count]) |key, at| {
        // A candidate that is not taken is overwritten by the next, or is behind the last.
        if (taken == k) break;
        taken_at[taken] = at;
        @memcpy(values[taken * 4 ..][0..4], input[@as(usize, at) * 4 ..][0..4]);
        const equal = @intFromBool(key == least.key) & @intFromBool(left_equal > 0);
        left_equal -= equal;
        taken += @intFromBool(key > least.key) | equal;
    }
    std.debug.assert(taken == k);
    pack(places, taken_at[0..k]);
}

/// Two places in three bytes.
fn pack(places: [*]u8, at: []const u16) void {
    for (0..at.len / 2) |pair| {
        const both = at[pair * 2] | @as(u32, at[pair * 2 + 1]) << 12;
        const to = places + pair * 3;
        std.mem.writeInt(u16, to[0..2], @truncate(both), .little);
        to[2] = @truncate(both >> 16);
    }
    if (at.len % 2 == 1) {
        const last = at[at.len - 1];
        std.mem.writeInt(u16, (places + at.len / 2 * 3)[0..2], last, .little);
    }
}

/// Bits of the magnitudes, which order like integers, and -1 behind the last; and the greatest of
/// each group, lane by lane.
fn fill(
    keys: *[chunk_max]i32,
    maxima: *align(64) Maxima,
    input: [*]const u8,
    count: usize,
) void {
    const group_elements = group * lanes;
    const whole = count / group_elements;
    for (0..whole) |number| fill_group(keys, maxima, input + number * group_elements * 4, number);
    const left = count % group_elements;
    if (left == 0) return;
    var block: [group_elements * 4]u8 = @splat(0);
    @memcpy(block[0 .. left * 4], input[whole * group_elements * 4 ..]);
    fill_group(keys, maxima, &block, whole);
    @memset(keys[count..][0 .. group_elements - left], -1);
}

inline fn fill_group(
    keys: *[chunk_max]i32,
    maxima: *align(64) Maxima,
    input: [*]const u8,
    number: usize,
) void {
    const mask: I = @splat(0x7fff_ffff);
    var most: I = @splat(0);
    inline for (0..group) |v| {
        const bits: I = @bitCast(vector.load(.f32, f32, input + v * lanes * 4));
        const key = bits & mask;
        keys[(number * group + v) * lanes ..][0..lanes].* = key;
        most = @max(most, key);
    }
    maxima[number * lanes ..][0..lanes].* = most;
}

/// At least k keys reach it. Exactly the k-th maximum is not asked for: a few candidates more cost
/// less than looking on.
fn bound_of(maxima: *align(64) Maxima, maxima_count: usize, k: usize) i32 {
    var count = maxima_count;
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
    if (k > count) return 0;
    var least: I = @splat(std.math.maxInt(i32));
    var index: usize = 0;
    while (index < count) : (index += lanes) {
        least = @min(least, @as(I, maxima[index..][0..lanes].*));
    }
    return kth(maxima, count, k, @reduce(.Min, least), k / 8 + 2).key;
}

/// Where k keys are above a key, or on it.
const Least = struct { key: i32, above: usize };

/// The k-th greatest of some keys, or a number that at least k and at most k + `more` of them
/// reach, less one. At least k reach `from`; up to the next whole vector behind the last there is
/// memory.
fn kth(keys: []align(64) i32, count: usize, k: usize, from: i32, more: usize) Least {
    const padded = std.mem.alignForward(usize, count, lanes);
    @memset(keys[count..padded], -1);
    var greatest: I = @splat(0);
    var index: usize = 0;
    while (index < padded) : (index += lanes) {
        greatest = @max(greatest, @as(I, keys[index..][0..lanes].*));
    }
    // k keys reach the lower end, and not so many the number above the upper end.
    var low = from;
    var high = @reduce(.Max, greatest);
    var above: usize = 0;
    while (low < high) {
        const middle = low + @divTrunc(high - low, 2);
        const reach = count_above(keys[0..padded], middle);
        if (reach >= k and reach - k <= more) return .{ .key = middle, .above = k };
        if (reach >= k) {
            low = middle + 1;
        } else {
            high = middle;
            above = reach;
        }
    }
    return .{ .key = low, .above = above };
}

/// How many are greater than the number.
fn count_above(keys: []align(64) const i32, number: i32) usize {
    var counts: I = @splat(0);
    var index: usize = 0;
    while (index < keys.len) : (index += lanes) {
        const key: I = keys[index..][0..lanes].*;
        counts += @intFromBool(key > @as(I, @splat(number)));
    }
    return @intCast(@reduce(.Add, counts));
}

/// The keys that reach a bound, in their order, and where they are.
const Candidates = struct {
    keys: [chunk_max]i32 align(64),
    at: [chunk_max + noted_at_once]u16,
    count: usize,

    fn find(
        candidates: *Candidates,
        keys: *const [chunk_max]i32,
        padded: usize,
        bound: i32,
    ) void {
        var count: usize = 0;
        for (0..padded / 64) |number| {
            var word: u64 = 0;
            inline for (0..64 / lanes) |part| {
                const key: I = keys[number * 64 + part * lanes ..][0..lanes].*;
                const mask: u16 = @bitCast(key > @as(I, @splat(bound - 1)));
                word |= @as(u64, mask) << part * lanes;
            }
            const found = @popCount(word);
            var rest = word;
            inline for (0..noted_at_once) |n| {
                candidates.at[count + n] = @truncate(number * 64 + @ctz(rest));
                rest &= rest -% 1;
            }
            if (rest != 0) {
                @branchHint(.unlikely);
                var next = count + noted_at_once;
                while (rest != 0) : (rest &= rest - 1) {
                    candidates.at[next] = @truncate(number * 64 + @ctz(rest));
                    next += 1;
                }
            }
            count += found;
        }
        for (candidates.keys[0..count], candidates.at[0..count]) |*key, at| key.* = keys[at];
        candidates.count = count;
    }
};
