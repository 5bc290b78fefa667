//! The rotation of blocks: random signs and a fast Hadamard transform, and its inverse. Compiled
//! once per CPU level (level.zig). Specification: codec_scalar.zig. The butterflies are in the same
//! order on every CPU: distances 1, 2, 4, ... of elements.
//!
//! Butterflies inside 16 bytes need a shuffle each; those between registers need none. AVX2 has
//! registers of two times 16 bytes, and slow shuffles between the two halves. There the butterflies
//! inside 16 bytes go to memory, and then each 16 bytes are loaded into both halves of a register.

const std = @import("std");
const builtin = @import("builtin");
const codecs = @import("codec");
const table = @import("table.zig");
const vector = @import("vector.zig");

const has_fma = vector.has_fma;
const is_x86 = builtin.cpu.arch == .x86_64;
const has_avx512 = is_x86 and builtin.cpu.has(.x86, .avx512f);
const is_avx2 = is_x86 and builtin.cpu.has(.x86, .avx2) and !has_avx512;

const Signs = table.Signs;

/// Bytes that are asked for ahead of their use: a block is too long for the CPU to see the stream.
/// Zen 3 sees it, and what is asked for besides only costs time.
const prefetch_bytes = if (is_avx2) 0 else 2048;

/// So many bytes of a block are worked on in registers.
pub const chunk_bytes = if (has_avx512) 1024 else 256;

/// Other CPUs take several registers for a vector.
const register_bytes = if (is_avx2) 32 else 64;
const part_bytes = 16;

fn Register(comptime T: type) type {
    return @Vector(register_bytes / @sizeOf(T), T);
}

/// to := the transform of `count` elements of `from`, of f32 multiplied by the signs before or
/// after. `to` may be `from`.
pub inline fn transform(
    comptime T: type,
    comptime count: usize,
    to: [*]u8,
    from: [*]const u8,
    before: ?*const Signs,
    after: ?*const Signs,
) void {
    const bytes = count * @sizeOf(T);
    const size = @min(bytes, chunk_bytes);
    const registers = size / register_bytes;
    const last = size == bytes;
    if (is_avx2) inline for (0..bytes / register_bytes) |place| {
        put(to, place, near(T, get(T, from, place, before)), null);
    };
    if (is_avx2) through_memory(to);
    inline for (0..bytes / size) |c| {
        var values: [registers]Register(T) = undefined;
        inline for (&values, c * registers..) |*value, place| {
            value.* = if (is_avx2)
                halves_met(T, to + place * register_bytes)
            else
                far(T, near(T, get(T, from, place, before)));
        }
        between(&values);
        inline for (values, c * registers..) |value, place| {
            put(to, place, value, if (last) after else null);
        }
    }
    // The butterflies between chunks.
    if (!last) inline for (0..registers) |first| {
        var values: [bytes / size]Register(T) = undefined;
        inline for (&values, 0..) |*value, c| value.* = get(T, to, c * registers + first, null);
        between(&values);
        inline for (values, 0..) |value, c| put(to, c * registers + first, value, after);
    };
}

/// out := the rotated blocks, with the signs `down`. `out` may be exactly `input`.
pub fn blocks_forward(comptime block: codecs.Block) table.Rotate {
    const stride = block.elements() * 4;
    return struct {
        fn run(
            out: [*]u8,
            input: [*]const u8,
            signs: *const Signs,
            blocks: usize,
        ) callconv(.c) void {
            for (0..blocks) |number| {
                const from = input + number * stride;
                prefetch(from, stride);
                transform(f32, block.elements(), out + number * stride, from, signs, null);
            }
        }
    }.run;
}

/// out := the blocks rotated back, with the signs `up`. `out` may be exactly `input`.
pub fn blocks_back(comptime block: codecs.Block) table.Rotate {
    const stride = block.elements() * 4;
    return struct {
        fn run(
            out: [*]u8,
            input: [*]const u8,
            signs: *const Signs,
            blocks: usize,
        ) callconv(.c) void {
            const factor: Register(f32) = @splat(1.0 / @as(f32, comptime block.elements()));
            for (0..blocks) |number| {
                const from = input + number * stride;
                const to = out + number * stride;
                prefetch(from, stride);
                var most: @Vector(register_bytes / 4, i32) = @splat(0);
                inline for (0..stride / register_bytes) |place| {
                    const value = get(f32, from, place, null);
                    const magnitude: @TypeOf(most) = @bitCast(@abs(value));
                    most = @max(most, magnitude);
                    put(to, place, value * factor, null);
                }
                if (@reduce(.Max, most) >= comptime @as(i32, @bitCast(great))) {
                    @branchHint(.unlikely);
                    back_great(block.elements(), to, signs);
                } else {
                    transform(f32, block.elements(), to, to, null, signs);
                }
            }
        }
    }.run;
}

/// No block of magnitudes below this, and no block of codes that has a scale below it, has an
/// element of 2^128 or more.
pub const great: f32 = 0x1p100;

/// Rotates a block back where it is, over the number of its elements, with the signs `up`: elements
/// from 2^128 on, but below 2^130, become the greatest number.
pub noinline fn back_great(comptime elements: usize, at: [*]u8, signs: *const Signs) void {
    transform(f32, elements, at, at, null, null);
    const R = Register(f32);
    const most: R = @splat(std.math.floatMax(f32) / 4);
    inline for (0..elements * 4 / register_bytes) |place| {
        const quarter = turned(get(f32, at, place, null) * @as(R, @splat(0.25)), signs, place);
        const whole = @max(@min(quarter, most), -most) * @as(R, @splat(4));
        const finite = @abs(quarter) < @as(R, @splat(std.math.inf(f32)));
        put(at, place, @select(f32, finite, whole, quarter), null);
    }
}

/// Makes the compiler store and load there. It may else leave out both, and shuffle instead.
pub inline fn through_memory(at: [*]const u8) void {
    asm volatile (""
        :
        : [at] "r" (at),
        : .{ .memory = true });
}

pub inline fn prefetch(from: [*]const u8, comptime bytes: usize) void {
    if (prefetch_bytes > 0) inline for (0..(bytes + 63) / 64) |line| {
        @prefetch(from + prefetch_bytes + line * 64, .{ .rw = .read, .locality = 3 });
    };
}

inline fn get(
    comptime T: type,
    from: [*]const u8,
    comptime place: usize,
    signs: ?*const Signs,
) Register(T) {
    const pointer: *align(1) const Register(T) = @ptrCast(from + place * register_bytes);
    return if (signs) |turns| turned(pointer.*, turns, place) else pointer.*;
}

inline fn put(to: [*]u8, comptime place: usize, value: anytype, signs: ?*const Signs) void {
    const pointer: *align(1) @TypeOf(value) = @ptrCast(to + place * register_bytes);
    pointer.* = if (signs) |turns| turned(value, turns, place) else value;
}

/// Vector number `place` of a block times its signs.
pub inline fn turned(value: anytype, signs: *const Signs, comptime place: usize) @TypeOf(value) {
    const lanes = @typeInfo(@TypeOf(value)).vector.len;
    const times: @Vector(lanes, f32) = signs[place * lanes ..][0..lanes].*;
    return value * times;
}

/// The butterflies inside each 16 bytes.
inline fn near(comptime T: type, value: Register(T)) Register(T) {
    var x = value;
    comptime var distance = 1;
    inline while (distance < part_bytes / @sizeOf(T)) : (distance *= 2) x = across(T, distance, x);
    return x;
}

/// Those between the 16 bytes of a register.
inline fn far(comptime T: type, value: Register(T)) Register(T) {
    var x = value;
    comptime var distance = part_bytes / @sizeOf(T);
    inline while (distance < register_bytes / @sizeOf(T)) : (distance *= 2) {
        x = across(T, distance, x);
    }
    return x;
}

/// The same from memory, of two times 16 bytes.
inline fn halves_met(comptime T: type, at: [*]const u8) Register(T) {
    const lanes = part_bytes / @sizeOf(T);
    const parts: *align(1) const [2]@Vector(lanes, T) = @ptrCast(at);
    comptime var twice: [2 * lanes]i32 = undefined;
    inline for (&twice, 0..) |*place, lane| place.* = lane % lanes;
    const lower = @shuffle(T, parts[0], undefined, twice);
    const upper = @shuffle(T, parts[1], undefined, twice);
    return plus_signed(T, lanes, lower, upper);
}

/// Each lane takes its partner and adds itself, negated in the upper lane of a pair.
inline fn across(comptime T: type, comptime distance: usize, x: Register(T)) Register(T) {
    @setEvalBranchQuota(100_000);
    const lanes = register_bytes / @sizeOf(T);
    comptime var places: [lanes]i32 = undefined;
    inline for (&places, 0..) |*place, lane| place.* = lane ^ distance;
    return plus_signed(T, distance, @shuffle(T, x, undefined, places), x);
}

/// x + y, where y is negated in the upper lanes of pairs.
inline fn plus_signed(
    comptime T: type,
    comptime distance: usize,
    x: Register(T),
    y: Register(T),
) Register(T) {
    const lanes = register_bytes / @sizeOf(T);
    comptime var ones: [lanes]T = undefined;
    inline for (&ones, 0..) |*one, lane| one.* = if (lane & distance == 0) 1 else -1;
    if (T != f32) return x +% y *% ones;
    // A product with one or minus one is exact, so fused or not gives the same bits. Not all of
    // them, or the units that multiply would have more to do than those that add.
    if (has_fma and !(is_avx2 and distance == 1)) return @mulAdd(Register(T), y, ones, x);
    comptime var signs: [lanes]u32 = undefined;
    inline for (&signs, ones) |*sign, one| sign.* = @as(u32, @bitCast(one)) & 1 << 31;
    const negated = @as(@Vector(lanes, u32), @bitCast(y)) ^ signs;
    return @as(Register(T), @bitCast(negated)) + x;
}

/// The butterflies between registers.
inline fn between(values: anytype) void {
    const count = values.len;
    comptime var distance = 1;
    inline while (distance < count) : (distance *= 2) {
        inline for (0..count) |index| {
            if (index & distance == 0) {
                const a = values[index];
                const b = values[index + distance];
                const is_float = @typeInfo(@TypeOf(a)).vector.child == f32;
                values[index] = if (is_float) a + b else a +% b;
                values[index + distance] = if (is_float) a - b else a -% b;
            }
        }
    }
}
