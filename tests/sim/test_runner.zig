//! test_runner: makes one program of the simulator and its unit tests, zig-out/mutants/pccl-sim,
//! because to compile the two takes minutes each. `pccl-sim unit-tests` runs the unit tests, and
//! everything else is main.zig's.

const std = @import("std");
const builtin = @import("builtin");
const sim = @import("sim");
const testing = std.testing;

pub const panic = sim.panic;

pub fn main(init: std.process.Init) !u8 {
    var args = try init.minimal.args.iterateAllocator(std.heap.page_allocator);
    defer args.deinit();
    _ = args.skip();
    const command = args.next() orelse "";
    return if (std.mem.eql(u8, command, "unit-tests")) run_tests(init) else sim.main(init);
}

/// One line for each test that fails, and their number at the end.
fn run_tests(init: std.process.Init) u8 {
    var failures: usize = 0;
    for (builtin.test_functions) |function| {
        testing.allocator_instance = .{};
        testing.io_instance = .init(testing.allocator, .{
            .argv0 = .init(init.minimal.args),
            .environ = init.minimal.environ,
        });
        testing.environ = init.minimal.environ;
        const result = function.func();
        testing.io_instance.deinit();
        const leaks = testing.allocator_instance.deinit() == .leak;
        result catch |err| {
            std.debug.print("{s} fails: {t}\n", .{ function.name, err });
            if (@errorReturnTrace()) |trace| std.debug.dumpErrorReturnTrace(trace);
        };
        if (leaks) std.debug.print("{s} leaks\n", .{function.name});
        failures += @intFromBool(leaks or std.meta.isError(result));
    }
    const count = builtin.test_functions.len;
    std.debug.print("pccl-sim: {d} of {d} unit tests pass\n", .{ count - failures, count });
    return @intFromBool(failures > 0);
}
