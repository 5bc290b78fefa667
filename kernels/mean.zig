//! Mean: by what the parts of an average of floats are multiplied. The arithmetic is specified in
//! scalar.zig; the vectors are in reduce.zig.

const std = @import("std");
const assert = std.debug.assert;

/// How the last of some contributions joins an average of bf16, f32 or f64: the sum of all of them
/// is `a * up + b`, where `a` is the partial of the others. The new partial is that times `down`,
/// the average is that over `divisor`. All but `divisor` are powers of two.
pub const Mean = extern struct {
    up: f64,
    down: f64,
    divisor: f64,

    /// `contributors`, 2 or more, are all contributions in the sum.
    pub fn of(contributors: u32) Mean {
        assert(contributors > 1);
        return .{
            .up = power(exponent(contributors - 1)),
            .down = 1 / power(exponent(contributors)),
            .divisor = @floatFromInt(contributors),
        };
    }

    /// The least power of two that is `contributors` or more has this exponent.
    pub fn exponent(contributors: u32) u6 {
        return std.math.log2_int_ceil(u32, contributors);
    }

    fn power(exponent_of: u6) f64 {
        return @floatFromInt(@as(u64, 1) << exponent_of);
    }
};

test "a partial is never greater than its greatest contribution, and the power is the least" {
    for (2..70) |contributors| {
        const mean: Mean = .of(@intCast(contributors));
        const count: f64 = @floatFromInt(contributors);
        try std.testing.expect(count * mean.down <= 1 and count * mean.down > 0.5);
        if (contributors == 2) try std.testing.expectEqual(1, mean.up) //
        else try std.testing.expectEqual(1, Mean.of(@intCast(contributors - 1)).down * mean.up);
    }
}
