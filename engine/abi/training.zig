//! training: the arithmetic of low-communication training through the C ABI: the pseudo-gradient of
//! a worker, the outer step, the mixing of its result into the worker's parameters, and sparse
//! pieces. This file owns the checks of arguments; kernels/outer.zig and kernels/sparse.zig do the
//! rest, and docs/guides/DILOCO.md says what the functions are for.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const kernels = @import("kernels");
const argument = @import("argument.zig");
const library = @import("library.zig");
const status = @import("status.zig");

const DType = base.DType;
const Rule = kernels.OuterRule;
const Sparse = kernels.sparse.Sparse;
const Mode = library.KernelMode;

/// The type pccl_outer_options_t of pccl.h.
pub const OuterOptions = extern struct {
    size: usize = @sizeOf(OuterOptions),
    rule: c_uint = @intFromEnum(Rule.nesterov),
    learning_rate: f32 = 0.7,
    momentum: f32 = 0.9,
    beta1: f32 = 0.9,
    beta2: f32 = 0.95,
    epsilon: f32 = 1e-8,
    scale: f32 = 1,
    reserved: u32 = 0,
    step: u64 = 1,
};

/// The type pccl_sparse_options_t of pccl.h.
pub const SparseOptions = extern struct {
    size: usize = @sizeOf(SparseOptions),
    chunk: u32 = 0,
    kept: u32 = 0,
    values: c_uint = 0,
    reserved: u32 = 0,
};

/// The bytes of an array of `count` elements, or an error that names the array.
fn some(
    pointer: anytype,
    count: u64,
    comptime name: []const u8,
) status.Error!Bytes(@TypeOf(pointer)) {
    if (count > std.math.maxInt(usize) / 8) return status.bad_argument(
        "count is {d}, more elements than memory can hold",
        .{count},
    );
    return @ptrCast(pointer orelse return status.is_null(name));
}

fn Bytes(comptime Pointer: type) type {
    const pointer = @typeInfo(@typeInfo(Pointer).optional.child).pointer;
    return if (pointer.is_const) [*]const u8 else [*]u8;
}

fn float_dtype(given: c_uint) status.Error!DType {
    const dtype = try argument.word(DType, given, "dtype", "pccl_dtype_t");
    if (!dtype.is_float()) return status.bad_argument(
        "parameters of dtype {t} cannot be trained; they must be f32, f64, f16 or bf16",
        .{dtype},
    );
    return dtype;
}

pub const pccl_outer_difference = status.C(outer_difference).call;

fn outer_difference(
    outer: ?[*]align(1) const f32,
    parameters: ?*const anyopaque,
    dtype_number: c_uint,
    count: u64,
    out: ?[*]align(1) f32,
    sum_of_squares: ?*f64,
) status.Error!void {
    const dtype = try float_dtype(dtype_number);
    const from = try some(outer, count, "outer");
    const own = try some(parameters, count, "parameters");
    const to = try some(out, count, "out");
    const mode: Mode = try .begin();
    defer mode.end();
    const sum = kernels.outer_difference(dtype, to, from, own, @intCast(count));
    if (sum_of_squares) |result| result.* = sum;
}

pub const pccl_outer_mix = status.C(outer_mix).call;

fn outer_mix(
    parameters: ?*anyopaque,
    dtype_number: c_uint,
    outer: ?[*]align(1) const f32,
    count: u64,
    alpha: f32,
) status.Error!void {
    const dtype = try float_dtype(dtype_number);
    const own = try some(parameters, count, "parameters");
    const from = try some(outer, count, "outer");
    // A NaN lies in no interval, so a NaN is refused.
    if (!(alpha >= 0 and alpha <= 1)) return status.bad_argument(
        "alpha is {d}, and must lie between 0, which takes the outer parameters, and 1",
        .{alpha},
    );
    const mode: Mode = try .begin();
    defer mode.end();
    kernels.outer_mix(dtype, own, from, alpha, 1 - alpha, @intCast(count));
}

pub const pccl_outer_step = status.C(outer_step).call;

fn outer_step(
    outer: ?[*]align(1) f32,
    first_moment: ?[*]align(1) f32,
    second_moment: ?[*]align(1) f32,
    gradient: ?[*]align(1) const f32,
    count: u64,
    options: ?*const OuterOptions,
) status.Error!void {
    const given = options orelse return status.is_null("options");
    const o = try argument.sized(OuterOptions, "pccl_outer_options_t", given);
    const rule = try argument.word(Rule, o.rule, "rule", "pccl_outer_rule_t");
    const how = try how_of(rule, &o);
    const theirs = try some(outer, count, "outer");
    const g = try some(gradient, count, "gradient");
    // A rule never touches a moment that it does not have, so `theirs` stands in for that.
    const first = if (rule.moments() > 0) try some(first_moment, count, "first_moment") else theirs;
    const second = if (rule.moments() > 1)
        try some(second_moment, count, "second_moment")
    else
        theirs;
    const mode: Mode = try .begin();
    defer mode.end();
    kernels.outer_step(rule, theirs, first, second, g, &how, @intCast(count));
}

/// The numbers of a step, in f32. The powers of the betas are products in f64, one factor for each
/// step, so that all machines compute the same powers.
fn how_of(rule: Rule, o: *const OuterOptions) status.Error!kernels.OuterHow {
    inline for (.{ "learning_rate", "momentum", "beta1", "beta2", "epsilon", "scale" }) |name| {
        const value = @field(o, name);
        const is_beta = comptime std.mem.startsWith(u8, name, "beta");
        const limit: f32 = if (is_beta) 1 else std.math.inf(f32);
        if (!(value >= 0 and value < limit)) return status.bad_argument(
            name ++ " is {d}, and must be 0 or more{s}",
            .{ value, if (limit == 1) " and below 1" else " and finite" },
        );
    }
    try argument.check_reserved(o.reserved, "outer_options");
    if (rule != .adam) return .{
        .scale = o.scale,
        .learning_rate = o.learning_rate,
        .decay = o.momentum,
    };
    if (o.step == 0) return status.bad_argument(
        "step is 0, and must be the number of this step of adam, from 1 on",
        .{},
    );
    return .{
        .scale = o.scale,
        .learning_rate = o.learning_rate,
        .decay = o.beta1,
        .fresh = 1 - o.beta1,
        .square_decay = o.beta2,
        .square_fresh = 1 - o.beta2,
        .weight = weight_of(o.beta1, o.step),
        .square_weight = weight_of(o.beta2, o.step),
        .epsilon = o.epsilon,
    };
}

/// The weight 1 - beta^step of adam's moments.
fn weight_of(beta: f32, step: u64) f32 {
    var power: f64 = 1;
    for (0..step) |_| {
        power *= beta;
        if (power < 1e-30) break; // too small to change 1 - power
    }
    return @floatCast(1 - power);
}

/// Reads the options of a sparse piece; null stands for those of PCCL_SPARSE_OPTIONS_INIT.
fn sparse_of(options: ?*const SparseOptions) status.Error!Sparse {
    const default: SparseOptions = .{};
    const o = try argument.sized(SparseOptions, "pccl_sparse_options_t", options orelse &default);
    try argument.check_reserved(o.reserved, "sparse_options");
    const Values = @FieldType(Sparse, "values");
    const chunk = if (o.chunk == 0) 4096 else o.chunk;
    const kept = if (o.kept == 0) @min(64, chunk) else o.kept;
    const sparse: Sparse = .{
        .chunk = std.math.cast(u16, chunk) orelse std.math.maxInt(u16),
        .kept = std.math.cast(u16, kept) orelse std.math.maxInt(u16),
        .values = try argument.word(Values, o.values, "values", "pccl_sparse_values_t"),
    };
    if (sparse.problem()) |problem| return status.bad_argument(
        "{s}; here chunk is {d} and kept is {d}",
        .{ problem, chunk, kept },
    );
    return sparse;
}

pub fn pccl_sparse_bytes(options: ?*const SparseOptions, count: u64) callconv(.c) u64 {
    const sparse = sparse_of(options) catch return 0;
    return if (count > std.math.maxInt(usize) / 8) 0 else sparse.bytes(@intCast(count));
}

pub const pccl_sparse_encode = status.C(sparse_encode).call;

fn sparse_encode(
    input: ?[*]align(1) const f32,
    count: u64,
    options: ?*const SparseOptions,
    piece: ?*anyopaque,
) status.Error!void {
    const sparse = try sparse_of(options);
    const from = try some(input, count, "input");
    const to = try some(piece, count, "piece");
    const mode: Mode = try .begin();
    defer mode.end();
    kernels.sparse.encode(sparse, to[0..sparse.bytes(@intCast(count))], from, @intCast(count));
}

pub const pccl_sparse_add = status.C(sparse_add).call;

fn sparse_add(
    into: ?[*]align(1) f32,
    weights: ?[*]align(1) f32,
    count: u64,
    options: ?*const SparseOptions,
    piece: ?*const anyopaque,
    scale: f32,
) status.Error!void {
    const sparse = try sparse_of(options);
    const to = try some(into, count, "into");
    const from = try some(piece, count, "piece");
    const mode: Mode = try .begin();
    defer mode.end();
    const all: ?[*]u8 = @ptrCast(weights);
    const bytes = from[0..sparse.bytes(@intCast(count))];
    const length: usize = @intCast(count);
    kernels.sparse.add(sparse, to, all, bytes, scale, length) catch return status.bad_argument(
        "the piece names a place that its chunk of {d} elements has not, so nothing was added: " ++
            "its sender is faulty, or encoded another array",
        .{sparse.chunk},
    );
}

const expect_equal = std.testing.expectEqual;

test "a round of two workers" {
    var outer = [_]f32{ 1, 2, 3 };
    var momentum: [3]f32 = @splat(0);
    var worker = [_]f32{ 0.5, 2.5, 3 };
    var difference: [3]f32 = undefined;
    var squares: f64 = 0;
    const f32_number = 0;
    const ok = Status.ok;
    const call = pccl_outer_difference;
    try expect_equal(ok, call(&outer, &worker, f32_number, 3, &difference, &squares));
    try expect_equal([_]f32{ 0.5, -0.5, 0 }, difference);
    try expect_equal(0.5, squares);
    const options: OuterOptions = .{ .learning_rate = 1, .momentum = 0.5, .scale = 2 };
    try expect_equal(ok, pccl_outer_step(&outer, &momentum, null, &difference, 3, &options));
    try expect_equal([_]f32{ 1, -1, 0 }, momentum);
    try expect_equal([_]f32{ -0.5, 3.5, 3 }, outer);
    try expect_equal(ok, pccl_outer_mix(&worker, f32_number, &outer, 3, 0.5));
    try expect_equal([_]f32{ 0, 3, 3 }, worker);
}

test "a step of adam" {
    var outer = [_]f32{3};
    var mean = [_]f32{1};
    var square = [_]f32{1};
    const gradient = [_]f32{2};
    const options: OuterOptions =
        .{ .rule = 2, .learning_rate = 1, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 2, .step = 2 };
    try expect_equal(.ok, pccl_outer_step(&outer, &mean, &square, &gradient, 1, &options));
    try expect_equal(1.5, mean[0]); // 0.5 * 1 + 0.5 * 2
    try expect_equal(1.75, square[0]); // 0.75 * 1 + 0.25 * 2 * 2
    // 1.5 / (1 - 0.5^2) is 2, and so is the root of 1.75 / (1 - 0.75^2).
    try expect_equal(3.0 - 2.0 / (2.0 + 2.0), outer[0]);
}

test "a caller need not have moments that the rule has not, nor ask for squares" {
    var outer = [_]f32{3};
    const worker = [_]f32{2};
    try expect_equal(.ok, pccl_outer_step(&outer, null, null, &worker, 1, &.{
        .rule = 0,
        .learning_rate = 1,
        .step = 0, // only adam reads it
    }));
    try expect_equal(1, outer[0]);
    try expect_equal(.ok, pccl_outer_difference(&outer, &worker, 0, 1, &outer, null));
    try expect_equal(-1, outer[0]);
}

test "a thread that flushes subnormals gets the bytes of others, and its mode back" {
    if (builtin.cpu.arch != .x86_64 and builtin.cpu.arch != .aarch64) return;
    const mode = kernels.float_mode.read();
    defer kernels.float_mode.write(mode);
    const flushes = mode | @as(u64, if (builtin.cpu.arch == .x86_64) 1 << 15 else 1 << 24);
    const tiny = std.math.floatMin(f32) / 8;
    const once = [_]f32{tiny};
    const twice = [_]f32{2 * tiny};
    const sgd: OuterOptions = .{ .rule = 0, .learning_rate = 1 };
    var difference: [1]f32 = undefined;
    var mixed = twice;
    var moved = twice;
    var piece: [5]u8 = undefined;
    var sum = once;
    var weights: [1]f32 = @splat(0.5);
    for (0..5) |index| {
        kernels.float_mode.write(flushes);
        const result = switch (index) {
            0 => pccl_outer_difference(&twice, &once, 0, 1, &difference, null),
            1 => pccl_outer_mix(&mixed, 0, &twice, 1, 0.5),
            2 => pccl_outer_step(&moved, null, null, &once, 1, &sgd),
            3 => pccl_sparse_encode(&twice, 1, null, &piece),
            else => pccl_sparse_add(&sum, &weights, 1, null, &piece, 1),
        };
        const after = kernels.float_mode.read();
        kernels.float_mode.write(mode);
        try expect_equal(.ok, result);
        try expect_equal(flushes, after);
    }
    try expect_equal(once, difference);
    try expect_equal(twice, mixed);
    try expect_equal(once, moved);
    try expect_equal([_]f32{3 * tiny}, sum);
    try expect_equal([_]f32{1.5}, weights);
}

test "the powers of adam's betas" {
    try expect_equal(@as(f32, 1) - 0.9, weight_of(0.9, 1));
    try std.testing.expectApproxEqAbs(0.19, weight_of(0.9, 2), 1e-6);
    try expect_equal(1, weight_of(0.9, std.math.maxInt(u64)));
    try expect_equal(1, weight_of(0, 1));
}

const Status = status.Status;

fn expect_refused(word: []const u8, result: Status) !void {
    try expect_equal(.invalid_argument, result);
    const said = std.mem.span(status.pccl_last_error());
    if (std.mem.indexOf(u8, said, word) == null) try std.testing.expectEqualStrings(word, said);
}

test "bad arguments are refused by name, and nothing is written" {
    var x = [_]f32{ 1, 2 };
    const options: OuterOptions = .{};
    var piece: [16]u8 = undefined;
    try expect_refused("outer", pccl_outer_difference(null, &x, 0, 2, &x, null));
    try expect_refused("parameters", pccl_outer_difference(&x, null, 0, 2, &x, null));
    try expect_refused("out", pccl_outer_difference(&x, &x, 0, 2, null, null));
    try expect_refused("i32", pccl_outer_difference(&x, &x, 8, 2, &x, null));
    try expect_refused("dtype 99", pccl_outer_difference(&x, &x, 99, 2, &x, null));
    for ([_]f32{ -0.1, 1.1, std.math.nan(f32) }) |alpha|
        try expect_refused("alpha", pccl_outer_mix(&x, 0, &x, 2, alpha));
    try expect_refused("options", pccl_outer_step(&x, &x, &x, &x, 2, null));
    try expect_refused("first_moment", pccl_outer_step(&x, null, &x, &x, 2, &options));
    const wrong = [_]struct { []const u8, OuterOptions }{
        .{ "rule 7", .{ .rule = 7 } },
        .{ "learning_rate", .{ .learning_rate = -1 } },
        .{ "momentum", .{ .momentum = std.math.inf(f32) } },
        .{ "beta1", .{ .rule = 2, .beta1 = 1 } },
        .{ "beta2", .{ .rule = 2, .beta2 = 1 } },
        .{ "epsilon", .{ .rule = 2, .epsilon = -1 } },
        .{ "step", .{ .rule = 2, .step = 0 } },
        .{ "scale", .{ .scale = std.math.nan(f32) } },
        .{ "reserved", .{ .reserved = 1 } },
        .{ "size", .{ .size = 3 } },
    };
    for (wrong) |case|
        try expect_refused(case[0], pccl_outer_step(&x, &x, &x, &x, 2, &case[1]));
    const adam: OuterOptions = .{ .rule = 2 };
    try expect_refused("second_moment", pccl_outer_step(&x, &x, null, &x, 2, &adam));
    for ([_]SparseOptions{
        .{ .chunk = 4097 },
        .{ .chunk = 9, .kept = 10 },
        .{ .chunk = (1 << 16) + 9, .kept = 1 },
        .{ .kept = (1 << 16) + 1 },
    }) |bad| {
        try expect_equal(0, pccl_sparse_bytes(&bad, 2));
        try expect_refused("chunk", pccl_sparse_encode(&x, 2, &bad, &piece));
    }
    try expect_equal(4 + 3, pccl_sparse_bytes(&.{ .chunk = 9 }, 9)); // all elements are kept
    try expect_equal(0, pccl_sparse_bytes(null, std.math.maxInt(u64)));
    try expect_refused("reserved", pccl_sparse_encode(&x, 2, &.{ .reserved = 1 }, &piece));
    try expect_refused("values 3", pccl_sparse_encode(&x, 2, &.{ .values = 3 }, &piece));
    try expect_refused("piece", pccl_sparse_add(&x, null, 2, null, null, 1));
    const few: SparseOptions = .{ .kept = 1 };
    piece = @splat(0xff);
    try expect_refused("place", pccl_sparse_add(&x, null, 2, &few, &piece, 1));
    try expect_equal([_]f32{ 1, 2 }, x);
    try expect_equal(.ok, pccl_outer_mix(&x, 0, &x, 0, 0));
    try expect_refused("count", pccl_outer_mix(&x, 0, &x, std.math.maxInt(u64), 0));
}
