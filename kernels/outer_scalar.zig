//! The specification of outer.zig, element by element, and the tests that compare every CPU level
//! with it.

const std = @import("std");
const base = @import("base");
const kernels = @import("root.zig");
const guarded = @import("guarded.zig");
const scalar = @import("scalar.zig");
const table = @import("table.zig");

const DType = base.DType;
const How = table.OuterHow;
const Rule = table.OuterRule;
const expect_equal = std.testing.expectEqual;

/// The lanes in which the squares are added up, before the sum over the lanes.
const lanes = 16;

/// out := outer - parameters; returns the sum of the squares of these differences, in f64: sixteen
/// sums, of the elements of each index modulo 16 in their order, which are then added up in theirs.
pub fn difference(
    comptime d: DType,
    out: [*]u8,
    outer: [*]const u8,
    parameters: [*]const u8,
    count: usize,
) f64 {
    var squares: [lanes]f64 = @splat(0);
    for (0..count) |index| {
        const rest = scalar.load(.f32, f32, outer, index) - value(d, parameters, index);
        squares[index % lanes] += @as(f64, rest) * rest;
        scalar.store(.f32, f32, out, index, rest);
    }
    var sum: f64 = 0;
    for (squares) |square| sum += square;
    return sum;
}

/// parameters := keep * parameters + take * outer; outer alone where keep is 0.
pub fn mix(
    comptime d: DType,
    parameters: [*]u8,
    outer: [*]const u8,
    keep: f32,
    take: f32,
    count: usize,
) void {
    for (0..count) |index| {
        const theirs = scalar.load(.f32, f32, outer, index);
        const mixed = keep * value(d, parameters, index) + take * theirs;
        const result = if (keep == 0) theirs else mixed;
        if (d == .f64) {
            scalar.store(.f64, f64, parameters, index, result);
        } else scalar.store(d, f32, parameters, index, result);
    }
}

/// With g = scale * gradient:
///
/// sgd       outer -= rate * g
/// nesterov  v = decay * v + g;  outer -= rate * (g + decay * v), PyTorch's form
/// adam      m = decay * m + fresh * g;  s = square_decay * s + square_fresh * (g * g)
///           outer -= rate * (m / weight / (sqrt(s / square_weight) + epsilon))
pub fn step(
    rule: Rule,
    outer: [*]u8,
    first: [*]u8,
    second: [*]u8,
    gradient: [*]const u8,
    how: *const How,
    count: usize,
) void {
    for (0..count) |index| {
        const g = scalar.load(.f32, f32, gradient, index) * how.scale;
        const direction = switch (rule) {
            .sgd => g,
            .nesterov => blk: {
                const velocity = how.decay * scalar.load(.f32, f32, first, index) + g;
                scalar.store(.f32, f32, first, index, velocity);
                break :blk g + how.decay * velocity;
            },
            .adam => blk: {
                const mean = how.decay * scalar.load(.f32, f32, first, index) + how.fresh * g;
                const square = how.square_decay * scalar.load(.f32, f32, second, index) +
                    how.square_fresh * (g * g);
                scalar.store(.f32, f32, first, index, mean);
                scalar.store(.f32, f32, second, index, square);
                break :blk mean / how.weight / (@sqrt(square / how.square_weight) + how.epsilon);
            },
        };
        const before = scalar.load(.f32, f32, outer, index);
        scalar.store(.f32, f32, outer, index, before - how.learning_rate * direction);
    }
}

fn value(comptime d: DType, bytes: [*]const u8, index: usize) f32 {
    if (d == .f64) return @floatCast(scalar.load(.f64, f64, bytes, index));
    return scalar.load(d, f32, bytes, index);
}

// ---- Every level against the specification -----------------------------------------------------

const Buffer = guarded.Buffer;
const count_max = 5 * lanes;

/// Numbers of a model, with zeros, subnormals, great ones, infinities and NaNs among them.
fn fill(comptime d: DType, bytes: []u8, seed: u64) void {
    var prng: std.Random.DefaultPrng = .init(seed);
    const random = prng.random();
    const special = [_]f32{
        0,                          -0.0,                           std.math.floatMin(f32) / 4,
        std.math.floatMax(f32) / 2, -std.math.floatMax(f32) / 2,    std.math.inf(f32),
        std.math.nan(f32),          @bitCast(@as(u32, 0xffc00001)),
    };
    for (0..bytes.len / comptime d.size()) |index| {
        const drawn = random.int(u8);
        const number = if (drawn < special.len) special[drawn] else random.floatNorm(f32);
        if (d == .f64) {
            scalar.put(.f64, bytes.ptr, index).* = @as(f64, number) * 1.0000001;
        } else scalar.store(d, f32, bytes.ptr, index, number);
    }
}

/// Runs `each` on every CPU level that this machine has, with up to four vectors and each tail, and
/// at many alignments.
fn on_every_level(comptime each: fn (count: usize, offset: usize) anyerror!void) !void {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    for (kernels.level_names, 0..) |name, index| {
        if (!kernels.tested(index)) continue;
        try std.testing.expect(kernels.force(name));
        for (0..count_max) |count| try each(count, count * 7 % 64);
    }
}

fn test_worker(comptime d: DType, count: usize, offset: usize) !void {
    const size = comptime d.size();
    var outer_bytes: [count_max * 4]u8 = undefined;
    var parameter_bytes: [count_max * 8]u8 = undefined;
    fill(.f32, &outer_bytes, count);
    fill(d, parameter_bytes[0 .. count_max * size], count + 1);
    var outer: Buffer = .{};
    var parameters: Buffer = .{};
    var out: Buffer = .{};
    const outer_at = outer.put(offset, outer_bytes[0 .. count * 4]);
    const parameters_at = parameters.put(63 - offset, parameter_bytes[0 .. count * size]);
    var wanted: [count_max * 8]u8 = undefined;
    const sum = difference(d, &wanted, outer_at, parameters_at, count);
    const got = kernels.outer_difference(d, out.at(offset), outer_at, parameters_at, count);
    try out.check(offset, wanted[0 .. count * 4]);
    if (std.math.isNan(sum)) {
        try std.testing.expect(std.math.isNan(got));
    } else try expect_equal(sum, got);
    for ([_][2]f32{ .{ 0, 1 }, .{ 0.25, 0.75 } }) |parts| {
        @memcpy(wanted[0 .. count * size], parameter_bytes[0 .. count * size]);
        mix(d, &wanted, outer_at, parts[0], parts[1], count);
        const mixed = parameters.put(63 - offset, parameter_bytes[0 .. count * size]);
        kernels.outer_mix(d, mixed, outer_at, parts[0], parts[1], count);
        try parameters.check(63 - offset, wanted[0 .. count * size]);
    }
}

fn test_step(rule: Rule, count: usize, offset: usize) !void {
    const how: How = .{
        .scale = if (count % 2 == 0) 1 else 1.25,
        .learning_rate = 0.7,
        .decay = 0.9,
        .fresh = 0.1,
        .square_decay = 0.95,
        .square_fresh = 0.05,
        .weight = 0.19,
        .square_weight = 0.0975,
        .epsilon = 1e-8,
    };
    var bytes: [4][count_max * 4]u8 = undefined;
    var buffers: [4]Buffer = @splat(.{});
    var at: [4][*]u8 = undefined;
    for (&bytes, &buffers, &at, 0..) |*all, *buffer, *to, number| {
        fill(.f32, all, count * 4 + number);
        to.* = buffer.put((offset + number * 5) % 64, all[0 .. count * 4]);
    }
    kernels.outer_step(rule, at[0], at[1], at[2], at[3], &how, count);
    step(rule, &bytes[0], &bytes[1], &bytes[2], &bytes[3], &how, count);
    for (&bytes, &buffers, 0..) |*all, *buffer, number|
        try buffer.check((offset + number * 5) % 64, all[0 .. count * 4]);
}

test "every level takes the specified differences, and mixes as specified" {
    try on_every_level(struct {
        fn each(count: usize, offset: usize) !void {
            inline for (.{ DType.f32, .f64, .f16, .bf16 }) |d| try test_worker(d, count, offset);
        }
    }.each);
}

test "every level takes the specified steps, and touches only the moments of the rule" {
    try on_every_level(struct {
        fn each(count: usize, offset: usize) !void {
            for (std.enums.values(Rule)) |rule| try test_step(rule, count, offset);
        }
    }.each);
}

test "a step of Nesterov is PyTorch's" {
    var outer = [_]f32{1};
    var velocity = [_]f32{0.5};
    var unused = [_]f32{7};
    const gradient = [_]f32{2};
    const how: How = .{ .learning_rate = 0.5, .decay = 0.5 };
    const x: [*]u8 = @ptrCast(&outer);
    const v: [*]u8 = @ptrCast(&velocity);
    const g: [*]const u8 = @ptrCast(&gradient);
    kernels.outer_step(.nesterov, x, v, @ptrCast(&unused), g, &how, 1);
    try expect_equal(2.25, velocity[0]); // 0.5 * 0.5 + 2
    try expect_equal(1 - 0.5 * (2 + 0.5 * 2.25), outer[0]);
    try expect_equal(7, unused[0]);
}

test "where nothing is kept, an infinity of the worker is gone" {
    var parameters = [_]f32{std.math.inf(f32)};
    const outer = [_]f32{3};
    kernels.outer_mix(.f32, std.mem.asBytes(&parameters), std.mem.asBytes(&outer), 0, 1, 1);
    try expect_equal(3, parameters[0]);
}
