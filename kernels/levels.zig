//! The program that ends `zig build test-kernels`: says which CPU levels the tests could run on
//! this machine, and which they could not. The tests themselves: tests.zig.

const std = @import("std");
const builtin = @import("builtin");
const kernels = @import("kernels");

pub fn main(init: std.process.Init) !void {
    var buffer: [1024]u8 = undefined;
    var stdout = std.Io.File.stdout().writer(init.io, &buffer);
    const out = &stdout.interface;
    try out.print("kernels tested on {t}, levels:", .{builtin.cpu.arch});
    var missing: usize = 0;
    for (kernels.level_names, 0..) |name, index| {
        if (kernels.supported(index)) try out.print(" {s}", .{name}) else missing += 1;
    }
    if (missing > 0) {
        try out.writeAll("; NOT RUN, this CPU lacks:");
        for (kernels.level_names, 0..) |name, index| {
            if (!kernels.supported(index)) try out.print(" {s}", .{name});
        }
    }
    try out.writeAll("\n");
    try out.flush();
}
