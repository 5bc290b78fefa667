//! Averages of 64-bit integers: their partials have 128 bits, so no sum wraps. One element at a
//! time on every CPU level: an addition with carry, and two divisions for each average. This is the
//! specification, too.

const std = @import("std");
const dtypes = @import("base").dtype;
const scalar = @import("scalar.zig");
const assert = std.debug.assert;
const DType = dtypes.DType;

fn Partial(comptime d: DType) type {
    return if (d == .i64) i128 else u128;
}

/// out := the partial of one contribution.
pub fn first(dtype: DType, out: [*]u8, input: [*]const u8, count: usize) void {
    switch (dtype) {
        inline .i64, .u64 => |d| for (0..count) |index| {
            put(d, out, index, scalar.at(d, input, index).*);
        },
        else => unreachable,
    }
}

/// out := a + b, where `a` and `out` are partials. `out` may be exactly `a`.
pub fn accumulate(dtype: DType, out: [*]u8, a: [*]const u8, b: [*]const u8, count: usize) void {
    switch (dtype) {
        inline .i64, .u64 => |d| for (0..count) |index| {
            put(d, out, index, at(d, a, index) +% scalar.at(d, b, index).*);
        },
        else => unreachable,
    }
}

/// out := (a + b) / contributors. `out` may be exactly `a` or exactly `b`.
pub fn accumulate_last(
    dtype: DType,
    out: [*]u8,
    a: [*]const u8,
    b: [*]const u8,
    contributors: u32,
    count: usize,
) void {
    switch (dtype) {
        inline .i64, .u64 => |d| for (0..count) |index| {
            const sum = at(d, a, index) +% scalar.at(d, b, index).*;
            scalar.put(d, out, index).* = quotient(d, sum, contributors);
        },
        else => unreachable,
    }
}

/// out := the sum of all inputs / contributors. `out` may be exactly an input.
pub fn reduce_k(
    dtype: DType,
    out: [*]u8,
    inputs: []const [*]const u8,
    contributors: u32,
    count: usize,
) void {
    switch (dtype) {
        inline .i64, .u64 => |d| for (0..count) |index| {
            var sum: Partial(d) = 0;
            for (inputs) |input| sum += scalar.at(d, input, index).*;
            scalar.put(d, out, index).* = quotient(d, sum, contributors);
        },
        else => unreachable,
    }
}

fn at(comptime d: DType, bytes: [*]const u8, index: usize) Partial(d) {
    return @as(*align(1) const Partial(d), @ptrCast(bytes + index * @sizeOf(Partial(d)))).*;
}

fn put(comptime d: DType, bytes: [*]u8, index: usize, value: Partial(d)) void {
    @as(*align(1) Partial(d), @ptrCast(bytes + index * @sizeOf(Partial(d)))).* = value;
}

/// Truncated toward zero. The library has no division of 128 bits, which compiler-rt would bring: a
/// sum is divided in three parts of 32 bits. A forged partial whose quotient has more than 64 bits
/// wraps.
fn quotient(comptime d: DType, sum: Partial(d), divisor: u32) scalar.Stored(d) {
    if (d == .u64) return unsigned(sum, divisor);
    const magnitude = unsigned(@abs(sum), divisor);
    const signed: i64 = @bitCast(magnitude);
    return if (sum < 0) 0 -% signed else signed;
}

fn unsigned(sum: u128, divisor: u32) u64 {
    const high = @as(u64, @truncate(sum >> 64)) % divisor;
    const middle = high << 32 | @as(u32, @truncate(sum >> 32));
    const low = (middle % divisor) << 32 | @as(u32, @truncate(sum));
    return (middle / divisor) << 32 | @as(u32, @truncate(low / divisor));
}

test "averages of 64-bit integers do not wrap, and truncate toward zero" {
    const expectEqual = std.testing.expectEqual;
    const most: u64 = std.math.maxInt(u64);
    const least: i64 = std.math.minInt(i64);
    const greatest: i64 = std.math.maxInt(i64);
    try expectEqual(most, averages(u64, .u64, &.{ most, most, most }));
    try expectEqual(@as(u64, 1) << 63, averages(u64, .u64, &.{ 1 << 63, 1 << 63 }));
    try expectEqual(most - 1, averages(u64, .u64, &.{ most, most, most - 2 }));
    try expectEqual(@as(u64, 6148914691236517205), averages(u64, .u64, &.{ most, 0, 0 }));
    try expectEqual(least, averages(i64, .i64, &.{ least, least, least, least, least }));
    try expectEqual(greatest, averages(i64, .i64, &.{ greatest, greatest, greatest }));
    try expectEqual(@as(i64, 0), averages(i64, .i64, &.{ least, greatest }));
    try expectEqual(@as(i64, 1 << 62), averages(i64, .i64, &.{ greatest, 1 }));
    try expectEqual(@as(i64, -3), averages(i64, .i64, &.{ -5, -2, -4 }));
    try expectEqual(@as(i64, -1), averages(i64, .i64, &.{ -1, -1, -2 }));
}

/// The average by hops, which must be that of one pass.
fn averages(comptime T: type, comptime d: DType, values: []const T) !T {
    var partial: [16]u8 = undefined;
    var result: T = undefined;
    first(d, &partial, std.mem.asBytes(&values[0]), 1);
    const last = values.len - 1;
    for (values[1..last]) |value| accumulate(d, &partial, &partial, std.mem.asBytes(&value), 1);
    const number: u32 = @intCast(values.len);
    const out = std.mem.asBytes(&result);
    accumulate_last(d, out, &partial, std.mem.asBytes(&values[last]), number, 1);
    var inputs: [8][*]const u8 = undefined;
    for (inputs[0..values.len], values) |*input, *value| input.* = std.mem.asBytes(value);
    var pass: T = undefined;
    reduce_k(d, std.mem.asBytes(&pass), inputs[0..values.len], number, 1);
    try std.testing.expectEqual(result, pass);
    return result;
}
