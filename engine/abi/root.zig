//! abi: include/pccl.h in Zig: the only exported functions, and the only place where an error
//! becomes a status code (sentence.zig). This layer owns argument checks, handles and sentences;
//! net does the work. One file per topic of the header. This file is the root of the library.

const std = @import("std");
const builtin = @import("builtin");

/// Keeps Zig from giving each thread that calls the library, at its first failure, a signal stack
/// of 256 KiB, which nothing here uses: if that memory were refused, the dynamic loader would
/// abort.
pub const std_options: std.Options = .{ .signal_stack_size = null };

/// Ends the process after a bug of the engine, with a line that anybody may see: it has no address
/// and no content of memory. A Debug build adds a stack trace.
pub const panic = if (builtin.mode == .Debug)
    std.debug.FullPanic(std.debug.defaultPanic)
else
    std.debug.FullPanic(end_process);

fn end_process(message: []const u8, _: ?usize) noreturn {
    @branchHint(.cold);
    var buffer: [512]u8 = undefined;
    const format = "pccl: internal error: {s}. The process ends here. This is a bug: please " ++
        "report this line with the version of pccl and its log\n";
    const line = std.fmt.bufPrint(&buffer, format, .{message}) catch "pccl: internal error\n";
    _ = std.c.write(2, line.ptr, line.len);
    std.process.abort();
}

/// Public functions of these files whose names begin with pccl are exported under these names.
pub const files = .{
    @import("status.zig"),
    @import("argument.zig"),
    @import("library.zig"),
    @import("coordinator.zig"),
    @import("comm.zig"),
    @import("work.zig"),
    @import("state.zig"),
    @import("training.zig"),
};

comptime {
    @setEvalBranchQuota(10_000);
    for (files) |file| for (std.meta.declarations(file)) |declaration| {
        if (!std.mem.startsWith(u8, declaration.name, "pccl")) continue;
        @export(&@field(file, declaration.name), .{ .name = declaration.name });
    };
    _ = @import("collective.zig"); // exports the functions of its table
}

test {
    _ = @import("sentence.zig");
    _ = @import("header_test.zig");
    _ = @import("threads_test.zig");
}
