//! test_runner: runs the unit tests of a layer's mutated copy, one after the other, with the
//! mutation that is named on. It says which test it is at before it begins, so that whoever
//! watches the process knows which one ended it or never came back. Driven by run.py.
//!
//!   test-protocol [NAME] [--from N]

const std = @import("std");
const builtin = @import("builtin");
const mutant = @import("mutant");
const testing = std.testing;

pub fn main(init: std.process.Init.Minimal) !u8 {
    var args = try init.args.iterateAllocator(std.heap.page_allocator);
    defer args.deinit();
    _ = args.skip();
    var first: usize = 0;
    while (args.next()) |arg| {
        if (std.mem.eql(u8, arg, "--from")) {
            first = try std.fmt.parseInt(usize, args.next() orelse return error.Usage, 10);
        } else mutant.active = mutant.number_of(arg) orelse return error.NoSuchMutant;
    }
    var failed = false;
    for (builtin.test_functions[first..], first..) |function, index| {
        std.debug.print("at {d} {s}\n", .{ index, function.name });
        testing.allocator_instance = .{};
        testing.io_instance = .init(testing.allocator, .{
            .argv0 = .init(init.args),
            .environ = init.environ,
        });
        testing.environ = init.environ;
        const result = function.func();
        testing.io_instance.deinit();
        const leaks = testing.allocator_instance.deinit() == .leak;
        if (result) |_| {
            if (!leaks) continue;
            std.debug.print("  fails: it leaks\n", .{});
        } else |err| {
            if (err == error.SkipZigTest) continue;
            std.debug.print("  fails: {t}\n", .{err});
        }
        failed = true;
    }
    std.debug.print("end\n", .{});
    return @intFromBool(failed);
}
