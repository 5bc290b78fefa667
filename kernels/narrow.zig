//! The low bytes of vectors of u32, put side by side. It is its own file because no single way is
//! good on every CPU. Compiled once per CPU level (level.zig).

const builtin = @import("builtin");

const U = @Vector(16, u32);
const Bytes = @Vector(16, u8);
const Wide = @Vector(64, u8);

const is_x86 = builtin.cpu.arch == .x86_64;
/// Any bytes of two registers in one instruction.
const has_vbmi = is_x86 and builtin.cpu.has(.x86, .avx512vbmi);

/// to[0 .. 16 * n] := the low bytes of the lanes, in order.
pub inline fn put_bytes(comptime n: usize, to: [*]u8, values: [n]U) void {
    comptime var v = 0;
    if (has_vbmi) inline while (v + 4 <= n) : (v += 4) {
        const ab = low_bytes(values[v], values[v + 1]);
        const cd = low_bytes(values[v + 2], values[v + 3]);
        const all: Wide = @shuffle(u8, ab, cd, halves());
        to[v * 16 ..][0..64].* = all;
    };
    inline while (v < n) : (v += 1) {
        const bytes: Bytes = @truncate(values[v]);
        to[v * 16 ..][0..16].* = bytes;
    }
}

/// The bytes of `a` and `b` in the lower half; what is above does not matter.
inline fn low_bytes(a: U, b: U) Wide {
    return @shuffle(u8, @as(Wide, @bitCast(a)), @as(Wide, @bitCast(b)), every_fourth());
}

fn every_fourth() [64]i32 {
    var places: [64]i32 = undefined;
    for (&places, 0..) |*place, index| {
        const from: i32 = @intCast(index % 16 * 4);
        place.* = if (index / 16 % 2 == 0) from else ~from;
    }
    return places;
}

fn halves() [64]i32 {
    var places: [64]i32 = undefined;
    for (&places, 0..) |*place, index| {
        const from: i32 = @intCast(index % 32);
        place.* = if (index < 32) from else ~from;
    }
    return places;
}
