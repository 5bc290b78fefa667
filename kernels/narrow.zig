//! Wide lanes put side by side as bytes. This has a file of its own because no single way is good
//! on every CPU. Compiled once per CPU level (level.zig).

const builtin = @import("builtin");

const lanes = 16;
const V = @Vector(lanes, f32);
const U = @Vector(lanes, u32);
const I = @Vector(lanes, i32);
const Bytes = @Vector(lanes, u8);
const Wide = @Vector(64, u8);

const is_x86 = builtin.cpu.arch == .x86_64;
/// Any bytes of two registers in one instruction.
const has_vbmi = is_x86 and builtin.cpu.has(.x86, .avx512vbmi);
/// Packs halve the lanes of two registers of 32 bytes. They work on each half of a register by
/// itself, so that the order is put right once, at the end. Where registers have 64 bytes, one
/// truncates alone.
const has_packs = is_x86 and builtin.cpu.has(.x86, .avx2) and !builtin.cpu.has(.x86, .avx512f);

/// to[0 .. 16 * n] := the low bytes of the lanes, in order.
pub inline fn put_bytes(comptime n: usize, to: [*]u8, values: [n]U) void {
    comptime var v = 0;
    if (has_vbmi) inline while (v + 4 <= n) : (v += 4) {
        const ab = low_bytes(values[v], values[v + 1]);
        const cd = low_bytes(values[v + 2], values[v + 3]);
        const all: Wide = @shuffle(u8, ab, cd, halves());
        to[v * 16 ..][0..64].* = all;
    };
    if (has_packs) inline while (v + 2 <= n) : (v += 2) {
        const mask: U = @splat(255);
        const a: Words = avx2.words_unsigned(@bitCast(values[v] & mask));
        const b: Words = avx2.words_unsigned(@bitCast(values[v + 1] & mask));
        to[v * 16 ..][0..32].* = avx2.in_order(avx2.@"llvm.x86.avx2.packuswb"(a, b));
    };
    inline while (v < n) : (v += 1) {
        const bytes: Bytes = @truncate(values[v]);
        to[v * 16 ..][0..16].* = bytes;
    }
}

/// to[0 .. 16 * n] := the nearest integers, even ones in a tie, and `bias` more. They are bytes.
pub inline fn put_nearest(
    comptime n: usize,
    comptime bias: comptime_int,
    to: [*]u8,
    values: [n]V,
) void {
    if (!has_packs or n % 2 != 0) {
        var codes: [n]U = undefined;
        inline for (&codes, values) |*code, value| code.* = nearest(bias, value);
        return put_bytes(n, to, codes);
    }
    inline for (0..n / 2) |pair| {
        const a = avx2.words(values[2 * pair]);
        const b = avx2.words(values[2 * pair + 1]);
        to[pair * 32 ..][0..32].* = avx2.bytes(bias, a, b);
    }
}

/// The same with two integers of four bits in each byte.
pub inline fn put_nearest_pairs(
    comptime n: usize,
    comptime bias: comptime_int,
    to: [*]u8,
    low: [n]V,
    high: [n]V,
) void {
    if (!has_packs or n % 2 != 0) {
        var codes: [n]U = undefined;
        inline for (&codes, low, high) |*code, a, b| {
            code.* = nearest(bias, a) | nearest(bias, b) << @splat(4);
        }
        return put_bytes(n, to, codes);
    }
    inline for (0..n / 2) |pair| {
        var both: [2]Words = undefined;
        inline for (&both, 2 * pair..) |*words, v| {
            words.* = avx2.words(low[v]) +% (avx2.words(high[v]) << @splat(4));
        }
        to[pair * 32 ..][0..32].* = avx2.bytes(bias | bias << 4, both[0], both[1]);
    }
}

/// In the low byte: the last bit of this float is worth one, so that the adder rounds.
inline fn nearest(comptime bias: comptime_int, value: V) U {
    return @bitCast(value + @as(V, @splat(1.5 * (1 << 23) + bias)));
}

const Words = @Vector(lanes, i16);

const avx2 = struct {
    const Half = @Vector(8, i32);

    extern fn @"llvm.x86.avx.cvt.ps2dq.256"(@Vector(8, f32)) Half;
    extern fn @"llvm.x86.avx2.packssdw"(Half, Half) Words;
    extern fn @"llvm.x86.avx2.packusdw"(Half, Half) Words;
    extern fn @"llvm.x86.avx2.packsswb"(Words, Words) @Vector(32, u8);
    extern fn @"llvm.x86.avx2.packuswb"(Words, Words) @Vector(32, u8);

    /// Nearest integers, by the rounding mode of the thread, which is that (float_mode.zig).
    inline fn words(value: V) Words {
        const low = @"llvm.x86.avx.cvt.ps2dq.256"(half(f32, value, 0));
        const high = @"llvm.x86.avx.cvt.ps2dq.256"(half(f32, value, 8));
        return @"llvm.x86.avx2.packssdw"(low, high);
    }

    inline fn words_unsigned(value: I) Words {
        return @"llvm.x86.avx2.packusdw"(half(i32, value, 0), half(i32, value, 8));
    }

    inline fn bytes(comptime bias: u8, a: Words, b: Words) @Vector(32, u8) {
        const all = in_order(@"llvm.x86.avx2.packsswb"(a, b));
        return all +% @as(@Vector(32, u8), @splat(bias));
    }

    /// Four of each register in turn, first of the lower halves.
    inline fn in_order(packed_bytes: @Vector(32, u8)) @Vector(32, u8) {
        const fours: @Vector(8, u32) = @bitCast(packed_bytes);
        return @bitCast(@shuffle(u32, fours, undefined, [8]i32{ 0, 4, 1, 5, 2, 6, 3, 7 }));
    }

    inline fn half(comptime T: type, value: @Vector(lanes, T), comptime at: i32) @Vector(8, T) {
        return @shuffle(T, value, undefined, [8]i32{
            at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6, at + 7,
        });
    }
};

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
