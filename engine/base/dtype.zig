//! Element types and reduce operations: their numbers (those of include/pccl.h), names, sizes, and
//! the dtype of a partial sum. The arithmetic is in kernels/; kernels/scalar.zig defines its
//! results.

const std = @import("std");

pub const DType = enum(u8) {
    f32 = 0,
    f64 = 1,
    f16 = 2,
    bf16 = 3,
    i8 = 4,
    u8 = 5,
    i16 = 6,
    u16 = 7,
    i32 = 8,
    u32 = 9,
    i64 = 10,
    u64 = 11,

    /// Bytes of one element.
    pub fn size(d: DType) usize {
        return switch (d) {
            .i8, .u8 => 1,
            .f16, .bf16, .i16, .u16 => 2,
            .f32, .i32, .u32 => 4,
            .f64, .i64, .u64 => 8,
        };
    }

    /// The dtype's name in every message and in Python: "f32", "bf16", ...
    pub fn name(d: DType) [:0]const u8 {
        return @tagName(d);
    }

    pub fn is_float(d: DType) bool {
        return switch (d) {
            .f32, .f64, .f16, .bf16 => true,
            .i8, .u8, .i16, .u16, .i32, .u32, .i64, .u64 => false,
        };
    }
};

pub const ReduceOp = enum(u8) {
    sum = 0,
    avg = 1,
    prod = 2,
    min = 3,
    max = 4,
    /// The bitwise operations and, or, exclusive or; for integers only.
    band = 5,
    bor = 6,
    bxor = 7,

    pub fn name(op: ReduceOp) [:0]const u8 {
        return @tagName(op);
    }

    pub fn is_bitwise(op: ReduceOp) bool {
        return switch (op) {
            .sum, .avg, .prod, .min, .max => false,
            .band, .bor, .bxor => true,
        };
    }

    /// Whether `op` can combine elements of `d`: bitwise operations take no floats.
    pub fn takes(op: ReduceOp, d: DType) bool {
        return !(op.is_bitwise() and d.is_float());
    }
};

/// The dtype in which a partial result of `op` over elements of `d` is kept and sent. It is `d`,
/// except for avg of f16 and of narrow integers: their sum is kept in f32 or in 64 bits, so that it
/// cannot overflow before the division. avg of 64-bit integers keeps sums in 128 bits, for which
/// there is no dtype (kernels/wide.zig).
pub fn partial_dtype(op: ReduceOp, d: DType) DType {
    if (op != .avg) return d;
    return switch (d) {
        .f16 => .f32,
        .i8, .i16, .i32 => .i64,
        .u8, .u16, .u32 => .u64,
        .f32, .f64, .bf16, .i64, .u64 => d,
    };
}

/// Bytes per element of a partial result: 4 for avg of f16, 8 for avg of integers of 8 to 32 bits,
/// 16 for avg of 64-bit integers, otherwise the size of `d`.
pub fn partial_size(op: ReduceOp, d: DType) usize {
    if (op == .avg and (d == .i64 or d == .u64)) return 16;
    return partial_dtype(op, d).size();
}

/// Whether `op` is an average that is kept in the width of its floats. A sum of many floats can
/// exceed the greatest number of `d`, so partial results are scaled down (kernels/mean.zig).
pub fn has_mean(op: ReduceOp, d: DType) bool {
    return op == .avg and d.is_float() and partial_dtype(op, d) == d;
}

/// The greatest finite number of a float dtype with has_mean, as a `C`, the type it computes in.
pub fn greatest(comptime d: DType, comptime C: type) C {
    if (d == .bf16) return @as(f32, @bitCast(@as(u32, 0x7f7f_0000)));
    return std.math.floatMax(C);
}

test "the numbers and sizes are those of include/pccl.h" {
    const expect_equal = std.testing.expectEqual;
    const sizes = [_]usize{ 4, 8, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8 };
    const names = [_][]const u8{
        "f32", "f64", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64",
    };
    try expect_equal(sizes.len, std.enums.values(DType).len);
    for (sizes, names, 0..) |size, name, number| {
        const d: DType = @enumFromInt(number);
        try expect_equal(size, d.size());
        try std.testing.expectEqualStrings(name, d.name());
        try expect_equal(name[0] == 'f' or name[0] == 'b', d.is_float());
    }
    const ops = [_][]const u8{ "sum", "avg", "prod", "min", "max", "band", "bor", "bxor" };
    try expect_equal(ops.len, std.enums.values(ReduceOp).len);
    for (ops, 0..) |name, number| {
        const op: ReduceOp = @enumFromInt(number);
        try std.testing.expectEqualStrings(name, op.name());
    }
}

test "integers have all operations, and floats all but those of bits" {
    for (std.enums.values(DType)) |d| for (std.enums.values(ReduceOp), 0..) |op, number| {
        try std.testing.expectEqual(number < 5 or !d.is_float(), op.takes(d));
    };
}

test "only avg of f16 and of integers travels wider than it is" {
    for (std.enums.values(ReduceOp)) |op| {
        for (std.enums.values(DType)) |d| {
            const own = op != .avg or d == .f32 or d == .f64 or d == .bf16;
            const wide: usize = if (d == .f16) 4 else if (d.size() < 8) 8 else 16;
            try std.testing.expectEqual(if (own) d.size() else wide, partial_size(op, d));
            try std.testing.expectEqual(own and op == .avg, has_mean(op, d));
            const partial = partial_dtype(op, d);
            try std.testing.expectEqual(d.name()[0] == 'u', partial.name()[0] == 'u');
            try std.testing.expectEqual(d.is_float(), partial.is_float());
        }
    }
}
