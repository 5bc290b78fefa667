//! The outer step of low-communication training (DiLoCo, arXiv 2311.08105, and its family): the
//! pseudo-gradient of a worker, the step of the outer optimizer, and the mixing of the result into
//! the worker's parameters. Compiled once per CPU level (level.zig). Specification:
//! outer_scalar.zig.
//!
//! All arithmetic is in f32, one rounding for each operation and no fused multiply-add, so peers of
//! any CPU and of any framework reach the same bytes from the same bytes. Outer parameters and
//! moments are f32; a worker's parameters are of any float dtype.

const std = @import("std");
const dtypes = @import("dtype");
const half = @import("half.zig");
const table = @import("table.zig");
const vector = @import("vector.zig");

const DType = dtypes.DType;
const lanes = 16;
const V = @Vector(lanes, f32);
const Squares = @Vector(lanes, f64);

/// out := outer - parameters, and the sum of the squares of these differences.
pub fn difference(comptime d: DType) table.OuterDifference {
    return struct {
        fn run(
            out: [*]u8,
            outer: [*]const u8,
            parameters: [*]const u8,
            sum_of_squares: *f64,
            count: usize,
        ) callconv(.c) void {
            const size = comptime d.size();
            var squares: Squares = @splat(0);
            var index: usize = 0;
            // Main loop.
            while (count - index >= lanes) : (index += lanes) {
                vectors(out + index * 4, outer + index * 4, parameters + index * size, &squares);
            }
            // Tail: a padded copy.
            const left = count - index;
            if (left > 0) {
                var outer_block: [lanes * 4]u8 = @splat(0);
                var parameter_block: [lanes * size]u8 = @splat(0);
                var out_block: [lanes * 4]u8 = undefined;
                @memcpy(outer_block[0 .. left * 4], outer + index * 4);
                @memcpy(parameter_block[0 .. left * size], parameters + index * size);
                vectors(&out_block, &outer_block, &parameter_block, &squares);
                @memcpy(out + index * 4, out_block[0 .. left * 4]);
            }
            var sum: f64 = 0;
            inline for (0..lanes) |lane| sum += squares[lane];
            sum_of_squares.* = sum;
        }

        inline fn vectors(
            out: [*]u8,
            outer: [*]const u8,
            parameters: [*]const u8,
            squares: *Squares,
        ) void {
            const rest = half.get(.f32, outer) - half.get(d, parameters);
            const wide: Squares = rest;
            squares.* += wide * wide;
            vector.store(.f32, f32, out, rest);
        }
    }.run;
}

/// parameters := keep * parameters + take * outer; outer alone where keep is 0.
pub fn mix(comptime d: DType) table.OuterMix {
    return struct {
        fn run(
            parameters: [*]u8,
            outer: [*]const u8,
            keep: f32,
            take: f32,
            count: usize,
        ) callconv(.c) void {
            const size = comptime d.size();
            var index: usize = 0;
            while (count - index >= lanes) : (index += lanes) {
                vectors(parameters + index * size, outer + index * 4, keep, take);
            }
            const left = count - index;
            if (left == 0) return;
            var parameter_block: [lanes * size]u8 = @splat(0);
            var outer_block: [lanes * 4]u8 = @splat(0);
            @memcpy(parameter_block[0 .. left * size], parameters + index * size);
            @memcpy(outer_block[0 .. left * 4], outer + index * 4);
            vectors(&parameter_block, &outer_block, keep, take);
            @memcpy(parameters + index * size, parameter_block[0 .. left * size]);
        }

        inline fn vectors(parameters: [*]u8, outer: [*]const u8, keep: f32, take: f32) void {
            const theirs = half.get(.f32, outer);
            if (keep == 0) return half.put(d, parameters, theirs);
            const own = half.get(d, parameters) * @as(V, @splat(keep));
            half.put(d, parameters, own + theirs * @as(V, @splat(take)));
        }
    }.run;
}

/// One step of the rule of `how`, with `scale` times the gradient. `first` and `second` are the
/// moments that the rule has; a rule without one never touches it.
pub fn step(comptime rule: table.OuterRule) table.OuterStep {
    return struct {
        fn run(
            outer: [*]u8,
            first: [*]u8,
            second: [*]u8,
            gradient: [*]const u8,
            how: *const table.OuterHow,
            count: usize,
        ) callconv(.c) void {
            var index: usize = 0;
            while (count - index >= lanes) : (index += lanes) {
                const at = index * 4;
                const has_first = comptime rule.moments() > 0;
                const has_second = comptime rule.moments() > 1;
                vector_step(
                    rule,
                    outer + at,
                    if (has_first) first + at else first,
                    if (has_second) second + at else second,
                    gradient + at,
                    how,
                );
            }
            const left = (count - index) * 4;
            if (left == 0) return;
            const at = index * 4;
            const Block = [lanes * 4]u8;
            var outer_block: Block = @splat(0);
            var gradient_block: Block = @splat(0);
            var moments: [2]Block = @splat(@splat(0));
            @memcpy(outer_block[0..left], outer + at);
            @memcpy(gradient_block[0..left], gradient + at);
            inline for (.{ first, second }, 0..) |moment, number| {
                if (number < comptime rule.moments())
                    @memcpy(moments[number][0..left], moment + at);
            }
            vector_step(rule, &outer_block, &moments[0], &moments[1], &gradient_block, how);
            @memcpy(outer + at, outer_block[0..left]);
            inline for (.{ first, second }, 0..) |moment, number| {
                if (number < comptime rule.moments())
                    @memcpy(moment + at, moments[number][0..left]);
            }
        }
    }.run;
}

/// One vector of a step.
inline fn vector_step(
    comptime rule: table.OuterRule,
    outer: [*]u8,
    first: [*]u8,
    second: [*]u8,
    gradient: [*]const u8,
    how: *const table.OuterHow,
) void {
    const rate: V = @splat(how.learning_rate);
    const g = half.get(.f32, gradient) * @as(V, @splat(how.scale));
    const direction = switch (rule) {
        .sgd => g,
        .nesterov => blk: {
            const decay: V = @splat(how.decay);
            const velocity = decay * half.get(.f32, first) + g;
            vector.store(.f32, f32, first, velocity);
            break :blk g + decay * velocity;
        },
        .adam => blk: {
            const mean = @as(V, @splat(how.decay)) * half.get(.f32, first) +
                @as(V, @splat(how.fresh)) * g;
            const square = @as(V, @splat(how.square_decay)) * half.get(.f32, second) +
                @as(V, @splat(how.square_fresh)) * (g * g);
            vector.store(.f32, f32, first, mean);
            vector.store(.f32, f32, second, square);
            const root = @sqrt(square / @as(V, @splat(how.square_weight)));
            break :blk mean / @as(V, @splat(how.weight)) /
                (root + @as(V, @splat(how.epsilon)));
        },
    };
    vector.store(.f32, f32, outer, half.get(.f32, outer) - rate * direction);
}
