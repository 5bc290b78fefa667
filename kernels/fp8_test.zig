//! Tests of the conversions to and from fp8 E4M3: every CPU level that this machine has against the
//! scalar code, and the scalar code against ml_dtypes, by a digest that
//! tests/python/test_fp8_digest.py makes there.

const std = @import("std");
const kernels = @import("root.zig");
const spec = @import("codec_scalar.zig");
const expect_equal = std.testing.expectEqual;

/// SHA-256 of the codes of all `inputs` in order.
const digest_of_codes =
    "142ee428d59c332b6c91804b42236f1be998b8662e03ed67f7a051ee6b8e68e5";
/// SHA-256 of the values of codes 0 to 255.
const digest_of_values =
    "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2";

/// All upper halves of an f32, with lower halves that are zero, above it, below and at the middle,
/// and the greatest. Where rounding goes the other way, and where overflow begins, has few bits, so
/// between two upper halves nothing changes: these stand for all 2^32.
const inputs_count = lows.len << 16;
const lows = [_]u32{ 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };

fn input(index: usize) u32 {
    const high: u32 = @intCast(index / lows.len);
    return high << 16 | lows[index % lows.len];
}

fn expect_digest(wanted: *const [64]u8, bytes: []const u8) !void {
    var hash: [32]u8 = undefined;
    std.crypto.hash.sha2.Sha256.hash(bytes, &hash, .{});
    try std.testing.expectEqualStrings(wanted, &std.fmt.bytesToHex(hash, .lower));
}

test "the scalar code gives the bits of ml_dtypes for whatever f32 and for all codes" {
    const gpa = std.testing.allocator;
    const codes = try gpa.alloc(u8, inputs_count);
    defer gpa.free(codes);
    for (codes, 0..) |*code, index| code.* = spec.fp8_from_f32(@bitCast(input(index)));
    try expect_digest(digest_of_codes, codes);

    var values: [256]u32 = undefined;
    for (&values, 0..) |*bits, code| bits.* = @bitCast(spec.f32_from_fp8(@intCast(code)));
    try expect_digest(digest_of_values, std.mem.asBytes(&values));
}

test "every level gives the bytes of the scalar code for whatever f32 and for all codes" {
    const gpa = std.testing.allocator;
    const values = try gpa.alloc(u32, inputs_count);
    defer gpa.free(values);
    const codes = try gpa.alloc(u8, inputs_count);
    defer gpa.free(codes);
    for (values, 0..) |*bits, index| bits.* = input(index);
    var all: [256]u8 = undefined;
    for (&all, 0..) |*code, number| code.* = @intCast(number);
    var wide: [256]u32 = undefined;

    const before = kernels.level_name();
    defer _ = kernels.force(before);
    for (kernels.level_names, 0..) |level, number| {
        if (!kernels.tested(number)) continue;
        try std.testing.expect(kernels.force(level));
        errdefer std.debug.print("level {s}\n", .{level});
        @memset(codes, 0xa5);
        kernels.fp8_from_f32(codes.ptr, std.mem.sliceAsBytes(values).ptr, values.len);
        for (values, codes) |bits, code| {
            errdefer std.debug.print("f32 0x{x}\n", .{bits});
            try expect_equal(spec.fp8_from_f32(@bitCast(bits)), code);
        }
        kernels.fp8_to_f32(std.mem.asBytes(&wide), &all, all.len);
        for (wide, all) |bits, code| {
            try expect_equal(@as(u32, @bitCast(spec.f32_from_fp8(code))), bits);
        }
    }
}

test "any count at any alignment, and nothing beside it is touched" {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    const count_max = 70;
    var values: [4 * count_max + 8]u8 = undefined;
    var codes: [count_max + 8]u8 = undefined;
    for (kernels.level_names, 0..) |level, number| {
        if (!kernels.tested(number)) continue;
        try std.testing.expect(kernels.force(level));
        for (0..count_max + 1) |count| for (0..4) |shift| {
            for (0..count) |index| {
                const bits = input(index * 4999 + count);
                std.mem.writeInt(u32, values[shift + 4 * index ..][0..4], bits, .little);
            }
            @memset(&codes, 0xa5);
            kernels.fp8_from_f32(codes[shift + 1 ..].ptr, values[shift..].ptr, count);
            for (codes, 0..) |code, at| {
                const inside = at > shift and at <= shift + count;
                const bits = if (inside) input((at - shift - 1) * 4999 + count) else 0;
                const wanted = if (inside) spec.fp8_from_f32(@bitCast(bits)) else 0xa5;
                try expect_equal(wanted, code);
            }
            @memset(&values, 0xa5);
            kernels.fp8_to_f32(values[shift..].ptr, codes[shift + 1 ..].ptr, count);
            for (values[0..shift]) |byte| try expect_equal(0xa5, byte);
            for (values[shift + 4 * count ..]) |byte| try expect_equal(0xa5, byte);
            for (codes[shift + 1 ..][0..count], 0..) |code, index| {
                const got = std.mem.readInt(u32, values[shift + 4 * index ..][0..4], .little);
                try expect_equal(@as(u32, @bitCast(spec.f32_from_fp8(code))), got);
            }
        };
    }
}
