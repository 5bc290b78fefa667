//! stack: the function that the compiler calls at the beginning of a function with a frame of more
//! than a page. It touches each page of the frame, so that a stack that is too small ends in its
//! guard page and not in the memory beyond. Only on x86-64, in a build with safety.
//!
//! Zig's compiler_rt has such a function as well, but it brings along its memset, which goes byte
//! by byte, and its memcpy, and these would be used instead of those of libc. build.zig links
//! without compiler_rt where this file suffices, so nothing brings them back unnoticed.

const std = @import("std");
const builtin = @import("builtin");

comptime {
    if (builtin.cpu.arch == .x86_64 and builtin.os.tag == .linux and builtin.mode != .Debug) {
        @export(&probe, .{ .name = "__zig_probe_stack", .visibility = .hidden });
    }
}

/// The length is in rax, and every register stays as it is. The caller moves the stack pointer.
fn probe() callconv(.naked) void {
    @setRuntimeSafety(false);
    asm volatile (
        \\    push   %%rcx
        \\    mov    %%rax, %%rcx
        \\    cmp    $0x1000, %%rcx
        \\    jb     2f
        \\ 1:
        \\    sub    $0x1000, %%rsp
        \\    orl    $0, 16(%%rsp)
        \\    sub    $0x1000, %%rcx
        \\    cmp    $0x1000, %%rcx
        \\    ja     1b
        \\ 2:
        \\    sub    %%rcx, %%rsp
        \\    orl    $0, 16(%%rsp)
        \\    add    %%rax, %%rsp
        \\    pop    %%rcx
        \\    ret
    );
}
