//! Loops with the loads and stores of a kernel and no arithmetic: the limit of this machine's
//! caches and memory. Benchmarks compare with them (measure.zig); nothing else calls them. Compiled
//! once per CPU level (level.zig), like the kernels themselves.

const table = @import("table.zig");

/// Elements of one turn of the loop.
pub const group = 128;
const Part = @Vector(64, u8);

/// Bits per element of the inputs and of the output (0 for none, which returns what was read).
pub const Shape = struct { inputs: []const u8, output: u8 };

pub const shapes = [table.skeleton_count]Shape{
    .{ .inputs = &.{32}, .output = 0 },
    .{ .inputs = &.{32}, .output = 32 },
    .{ .inputs = &.{ 32, 32 }, .output = 32 },
    .{ .inputs = &.{ 32, 32, 32, 32 }, .output = 32 },
    .{ .inputs = &.{ 32, 32, 32, 32, 32, 32, 32, 32 }, .output = 32 },
    .{ .inputs = &.{32}, .output = 16 },
    .{ .inputs = &.{32}, .output = 8 },
    .{ .inputs = &.{32}, .output = 4 },
    .{ .inputs = &.{16}, .output = 32 },
    .{ .inputs = &.{8}, .output = 32 },
    .{ .inputs = &.{4}, .output = 32 },
    .{ .inputs = &.{ 16, 16 }, .output = 16 },
    .{ .inputs = &.{ 32, 16 }, .output = 32 },
    .{ .inputs = &.{ 32, 8 }, .output = 32 },
    .{ .inputs = &.{ 32, 4 }, .output = 32 },
    .{ .inputs = &.{ 32, 16 }, .output = 16 },
    .{ .inputs = &.{ 32, 8 }, .output = 8 },
    .{ .inputs = &.{ 32, 4 }, .output = 4 },
    .{ .inputs = &.{ 32, 8, 8, 8, 8, 8, 8, 8 }, .output = 8 },
    .{ .inputs = &.{ 32, 4, 4, 4, 4, 4, 4, 4 }, .output = 4 },
    .{ .inputs = &.{ 32, 8, 8, 8, 8, 8, 8, 8 }, .output = 32 },
    .{ .inputs = &.{ 32, 4, 4, 4, 4, 4, 4, 4 }, .output = 32 },
};

pub fn skeleton(comptime shape: Shape) table.Skeleton {
    return struct {
        fn run(out: [*]u8, inputs: [*]const [*]const u8, groups: usize) callconv(.c) void {
            const out_parts = comptime parts_of(if (shape.output == 0) 32 else shape.output);
            var all: Part = @splat(0);
            for (0..groups) |number| {
                inline for (0..out_parts) |place| {
                    var part: Part = @splat(0);
                    inline for (shape.inputs, 0..) |bits, index| {
                        const parts = comptime parts_of(bits);
                        const begin = place * parts / out_parts;
                        const end = @max(begin + 1, (place + 1) * parts / out_parts);
                        inline for (begin..end) |from| {
                            part |= at(inputs[index], number * parts + from).*;
                        }
                    }
                    if (shape.output == 0) {
                        all |= part;
                    } else {
                        put(out, number * out_parts + place).* = part;
                    }
                }
            }
            if (shape.output == 0) put(out, 0).* = all;
        }
    }.run;
}

fn parts_of(bits: usize) usize {
    return bits * group / 8 / @sizeOf(Part);
}

inline fn at(bytes: [*]const u8, part: usize) *align(1) const Part {
    return @ptrCast(bytes + part * @sizeOf(Part));
}

inline fn put(bytes: [*]u8, part: usize) *align(1) Part {
    return @ptrCast(bytes + part * @sizeOf(Part));
}
