//! How this thread's floating point unit rounds and treats subnormals. A host program may have
//! changed it (-ffast-math does), and then results would differ between peers.

const builtin = @import("builtin");

/// Round to nearest even, subnormals kept, exceptions masked. Every thread that runs kernels calls
/// it; returns the former mode for `restore`, which a thread borrowed from the host must call.
pub fn standard() u64 {
    const former = read();
    write(switch (builtin.cpu.arch) {
        .x86_64 => 0x1f80, // MXCSR after reset: all exceptions masked, no FTZ, no DAZ
        .aarch64 => 0,
        else => former,
    });
    return former;
}

pub fn restore(former: u64) void {
    write(former);
}

pub fn read() u64 {
    switch (builtin.cpu.arch) {
        .x86_64 => {
            var mode: u32 = undefined;
            asm volatile ("stmxcsr (%%rax)"
                :
                : [mode] "{rax}" (&mode),
                : .{ .memory = true });
            return mode;
        },
        .aarch64 => return asm volatile ("mrs %[mode], fpcr"
            : [mode] "=r" (-> u64),
        ),
        else => return 0,
    }
}

pub fn write(mode: u64) void {
    switch (builtin.cpu.arch) {
        .x86_64 => {
            const word: u32 = @truncate(mode);
            asm volatile ("ldmxcsr (%%rax)"
                :
                : [word] "{rax}" (&word),
                : .{ .memory = true });
        },
        .aarch64 => asm volatile ("msr fpcr, %[mode]"
            :
            : [mode] "r" (mode),
        ),
        else => {},
    }
}

test "a thread has the standard mode, and gets its own back" {
    if (builtin.cpu.arch != .x86_64 and builtin.cpu.arch != .aarch64) return;
    const expect_equal = @import("std").testing.expectEqual;
    const mode = read();
    defer write(mode);
    const flushes = mode | @as(u64, if (builtin.cpu.arch == .x86_64) 1 << 15 else 1 << 24);
    write(flushes);
    const former = standard();
    try expect_equal(flushes, former);
    try expect_equal(0, read() & (flushes ^ mode));
    restore(former);
    try expect_equal(flushes, read());
}
