//! abi: include/pccl.h in Zig: the only exported functions, and the only place where an error
//! becomes a status code (failure.zig). It owns argument checks, handles and sentences; what is
//! done, net does. One file per topic of the header. This is the root of the library.

const std = @import("std");

/// Else every thread that calls the library gets a signal stack of 256 KiB, which nothing here
/// uses, with its first failure; and where that memory is refused, the dynamic loader aborts.
pub const std_options: std.Options = .{ .signal_stack_size = null };

comptime {
    _ = @import("status.zig");
    _ = @import("version.zig");
    _ = @import("token.zig");
    _ = @import("coordinator.zig");
    _ = @import("comm.zig");
    _ = @import("collective.zig");
    _ = @import("work.zig");
    _ = @import("state.zig");
    _ = @import("log.zig");
    _ = @import("kernels.zig");
}

test {
    _ = @import("failure.zig");
    _ = @import("sized.zig");
    _ = @import("text.zig");
    _ = @import("threads_test.zig");
}
