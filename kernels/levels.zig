//! The program that ends `zig build test-kernels`: says which CPU levels the tests could run on
//! this machine, and which they could not. It is a release build, and compares once more the output
//! of all kernels on fixed inputs (golden.zig). The tests themselves: tests.zig, codec_test.zig.

const std = @import("std");
const builtin = @import("builtin");
const kernels = @import("kernels");

pub fn main(init: std.process.Init) !void {
    var buffer: [1024]u8 = undefined;
    var stdout = std.Io.File.stdout().writer(init.io, &buffer);
    const out = &stdout.interface;
    try compare(init.gpa, out);
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

fn compare(gpa: std.mem.Allocator, out: *std.Io.Writer) !void {
    var different = false;
    for (kernels.level_names, 0..) |level, index| {
        if (!kernels.supported(index)) continue;
        std.debug.assert(kernels.force(level));
        var begin: usize = 0;
        while (try kernels.golden.check(gpa, &begin)) |difference| {
            // On the first level as a line of golden.txt, on others with what is wrong.
            if (index > 0) try out.print("level {s}: ", .{level});
            try out.print("{s} {x:0>32}\n", .{ difference.name(), difference.digest });
            different = true;
        }
    }
    try out.flush();
    if (different) return error.NotWhatGoldenSays;
}
