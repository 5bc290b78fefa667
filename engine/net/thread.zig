//! thread: how the threads of the library start: named, without signals, and with the floating-point
//! mode that the kernels promise (docs/PROMISE.md, P5). It does not know what they do:
//! peer_engine.zig, coordinator_engine.zig, resolver.zig.

const std = @import("std");
const builtin = @import("builtin");
const c = std.c;

/// A kernel with vectors of 64 bytes and a result on the stack fits many times.
const stack_bytes = 1024 * 1024;

pub const Error = error{ThreadLimit};

/// Starts `run(context)`. Every signal is blocked in the new thread: handlers belong to the host program.
pub fn spawn(
    comptime name: [:0]const u8,
    context: anytype,
    comptime run: fn (@TypeOf(context)) void,
) Error!std.Thread {
    comptime std.debug.assert(name.len <= 15); // Linux keeps no more
    const Start = struct {
        fn start(argument: @TypeOf(context)) void {
            set_name(name);
            _ = FloatMode.enter();
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

/// Rounding to nearest, denormals kept: the mode in which results are the same on every CPU. A thread of the
/// user may run with another one; it is put back after each of its calls.
pub const FloatMode = struct {
    control: Control,

    const Control = switch (builtin.cpu.arch) {
        .x86_64 => u32,
        .aarch64 => u64,
        else => @compileError("the floating-point control word of this CPU is not known"),
    };

    /// Sets our mode and returns the one before.
    pub fn enter() FloatMode {
        const before = read();
        const ours = before & ~changed_bits;
        if (ours != before) write(ours);
        return .{ .control = before };
    }

    pub fn leave(before: FloatMode) void {
        if (before.control & changed_bits != 0) write(before.control);
    }

    const changed_bits: Control = switch (builtin.cpu.arch) {
        // MXCSR: flush to zero, rounding mode, denormals are zero.
        .x86_64 => 1 << 15 | 0b11 << 13 | 1 << 6,
        // FPCR: flush to zero, rounding mode, flush to zero for f16, default NaN.
        .aarch64 => 1 << 24 | 0b11 << 22 | 1 << 19 | 1 << 25,
        else => unreachable,
    };

    fn read() Control {
        switch (builtin.cpu.arch) {
            .x86_64 => {
                var control: u32 = undefined;
                asm volatile ("stmxcsr %[control]"
                    : [control] "=m" (control),
                );
                return control;
            },
            .aarch64 => return asm volatile ("mrs %[control], fpcr"
                : [control] "=r" (-> u64),
            ),
            else => unreachable,
        }
    }

    fn write(control: Control) void {
        switch (builtin.cpu.arch) {
            .x86_64 => asm volatile ("ldmxcsr %[control]"
                :
                : [control] "m" (control),
            ),
            .aarch64 => asm volatile ("msr fpcr, %[control]"
                :
                : [control] "r" (control),
            ),
            else => unreachable,
        }
    }
};

test "denormals survive inside our mode, and the mode of the user comes back" {
    const flush: FloatMode.Control = FloatMode.changed_bits;
    const user = FloatMode.read();
    defer FloatMode.write(user);
    FloatMode.write(user | flush);
    var tiny: f32 = @bitCast(@as(u32, 4));
    const before = FloatMode.enter();
    std.mem.doNotOptimizeAway(&tiny);
    const half = tiny / 2;
    before.leave();
    try std.testing.expectEqual(user | flush, FloatMode.read());
    FloatMode.write(user);
    try std.testing.expectEqual(@as(u32, 2), @as(u32, @bitCast(half)));
}

test "a thread of the library has every signal blocked" {
    const Seen = struct {
        blocked: bool = false,

        fn run(seen: *@This()) void {
            var none: c.sigset_t = undefined;
            var mask: c.sigset_t = undefined;
            _ = c.sigemptyset(&none);
            _ = c.pthread_sigmask(c.SIG.BLOCK, &none, &mask);
            seen.blocked = c.sigismember(&mask, .INT) == 1 and c.sigismember(&mask, .TERM) == 1;
        }
    };
    var seen: Seen = .{};
    const thread = try spawn("pccl-test", &seen, Seen.run);
    thread.join();
    try std.testing.expect(seen.blocked);
}
