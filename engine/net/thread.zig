//! thread: how the threads of the library start: named, without signals, and with the
//! floating-point mode that the kernels promise (docs/PROMISE.md, P5). It does not know their work:
//! peer_engine.zig, coordinator_engine.zig, resolver.zig.

const std = @import("std");
const builtin = @import("builtin");
const kernels = @import("kernels");
const c = std.c;

/// A kernel with vectors of 64 bytes and a result on the stack fits many times.
const stack_bytes = 1024 * 1024;

pub const Error = error{ThreadLimit};

/// Starts `run(context)`. Every signal is blocked in the new thread: handlers belong to the host
/// program.
pub fn spawn(
    comptime name: [:0]const u8,
    context: anytype,
    comptime run: fn (@TypeOf(context)) void,
) Error!std.Thread {
    comptime std.debug.assert(name.len <= 15); // Linux keeps no more
    const Start = struct {
        fn start(argument: @TypeOf(context)) void {
            set_name(name);
            _ = kernels.float_mode.standard();
            run(argument);
        }
    };
    var all: c.sigset_t = undefined;
    var before: c.sigset_t = undefined;
    _ = c.sigfillset(&all);
    // A new thread inherits the mask of the thread that starts it.
    _ = c.pthread_sigmask(c.SIG.SETMASK, &all, &before);
    defer {
        var unused: c.sigset_t = undefined;
        _ = c.pthread_sigmask(c.SIG.SETMASK, &before, &unused);
    }
    return std.Thread.spawn(.{ .stack_size = stack_bytes }, Start.start, .{context}) catch
        error.ThreadLimit;
}

fn set_name(comptime name: [:0]const u8) void {
    if (comptime builtin.os.tag.isDarwin()) {
        _ = c.pthread_setname_np(name);
    } else if (builtin.os.tag == .linux) {
        _ = c.pthread_setname_np(c.pthread_self(), name);
    }
}

test "a thread of the library has every signal blocked and rounds as promised" {
    const Seen = struct {
        blocked: bool = false,
        mode: u64 = 0,

        fn run(seen: *@This()) void {
            var none: c.sigset_t = undefined;
            var mask: c.sigset_t = undefined;
            _ = c.sigemptyset(&none);
            _ = c.pthread_sigmask(c.SIG.BLOCK, &none, &mask);
            seen.mode = kernels.float_mode.read();
            seen.blocked = c.sigismember(&mask, .INT) == 1 and c.sigismember(&mask, .TERM) == 1;
        }
    };
    var seen: Seen = .{};
    const standard = kernels.float_mode.standard();
    defer kernels.float_mode.restore(standard);
    const ours = kernels.float_mode.read();
    // Threads inherit the mode of the thread that starts them: here one that flushes denormals.
    const flush_to_zero = if (builtin.cpu.arch == .x86_64) 1 << 15 else 1 << 24;
    kernels.float_mode.write(ours | flush_to_zero);
    const thread = try spawn("pccl-test", &seen, Seen.run);
    thread.join();
    try std.testing.expect(seen.blocked);
    try std.testing.expectEqual(ours, seen.mode);
}
