//! The codecs min_max_u8 and zero_point_u8: the range of a piece, and bytes on its steps. Compiled
//! once per CPU level (level.zig). Specification: codec_scalar.zig.

const std = @import("std");
const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");

const lanes = 16;
const V = @Vector(lanes, f32);
const U = @Vector(lanes, u32);
const I = @Vector(lanes, i32);

/// The range of what came before and these elements too.
pub fn widen(range: *table.Range, input: [*]const u8, count: usize) callconv(.c) void {
    var least: V = @splat(range.least);
    var greatest: V = @splat(range.greatest);
    var magnitude: I = @splat(@bitCast(range.magnitude));
    var index: usize = 0;
    while (index < count) : (index += lanes) {
        var block: [lanes * 4]u8 = undefined;
        var from = input + index * 4;
        if (count - index < lanes) {
            // Tail: the first of these elements again and again.
            for (0..lanes) |lane| @memcpy(block[lane * 4 ..][0..4], from);
            @memcpy(block[0 .. (count - index) * 4], from);
            from = &block;
        }
        const value = vector.load(.f32, f32, from);
        least = @select(f32, value < least, value, least);
        greatest = @select(f32, value > greatest, value, greatest);
        const bits = @as(I, @bitCast(value)) & @as(I, @splat(0x7fff_ffff));
        magnitude = @max(magnitude, bits);
    }
    range.least = @reduce(.Min, least);
    range.greatest = @reduce(.Max, greatest);
    range.magnitude = @bitCast(@reduce(.Max, magnitude));
}

pub fn encode(comptime kind: codecs.Kind) table.EncodeRange {
    return struct {
        fn run(
            out: [*]u8,
            input: [*]const u8,
            count: usize,
            steps: *const table.Steps,
        ) callconv(.c) void {
            var index: usize = 0;
            while (count - index >= lanes) : (index += lanes) {
                const to: *[lanes]u8 = out[index..][0..lanes];
                to.* = codes(kind, input + index * 4, steps);
            }
            const left = count - index;
            if (left == 0) return;
            var block: [lanes * 4]u8 = @splat(0);
            @memcpy(block[0 .. left * 4], input + index * 4);
            const last: [lanes]u8 = codes(kind, &block, steps);
            @memcpy(out[index..count], last[0..left]);
        }
    }.run;
}

inline fn codes(
    comptime kind: codecs.Kind,
    from: [*]const u8,
    steps: *const table.Steps,
) @Vector(lanes, u8) {
    const value = vector.load(.f32, f32, from);
    const base: V = @splat(steps.least);
    const inverse: V = @splat(steps.inverse);
    const scaled = if (kind == .min_max_u8) (value - base) * inverse else value * inverse;
    // The adder rounds to nearest even: this float's last bit is worth one.
    const big: V = @splat(1.5 * (1 << 23));
    const zero: I = @splat(steps.zero);
    const number = @as(I, @bitCast(scaled + big)) -% @as(I, @bitCast(big)) +% zero;
    const limited: I = @min(@max(number, @as(I, @splat(0))), @as(I, @splat(255)));
    return @truncate(@as(U, @bitCast(limited)));
}

pub fn decode(comptime kind: codecs.Kind) table.DecodeRange {
    return struct {
        fn run(
            out: [*]u8,
            input: [*]const u8,
            count: usize,
            head: *const [2]f32,
        ) callconv(.c) void {
            var index: usize = 0;
            while (count - index >= lanes) : (index += lanes) {
                const bytes: @Vector(lanes, u8) = input[index..][0..lanes].*;
                vector.store(.f32, f32, out + index * 4, values(kind, bytes, head));
            }
            const left = count - index;
            if (left == 0) return;
            var block: [lanes]u8 = @splat(0);
            var last: [lanes * 4]u8 = undefined;
            @memcpy(block[0..left], input[index..count]);
            vector.store(.f32, f32, &last, values(kind, block, head));
            @memcpy(out[index * 4 .. count * 4], last[0 .. left * 4]);
        }
    }.run;
}

inline fn values(comptime kind: codecs.Kind, bytes: @Vector(lanes, u8), head: *const [2]f32) V {
    const number: V = @floatFromInt(@as(@Vector(lanes, i32), bytes));
    const a: V = @splat(head[0]);
    const b: V = @splat(head[1]);
    return if (kind == .min_max_u8) a + number * b else (number - b) * a;
}
