//! random: bytes from the operating system, for ids and seeds. The layers below get a seed and
//! draw from it (base/prng.zig).

const std = @import("std");
const builtin = @import("builtin");
const c = std.c;
const linux = std.os.linux;

pub fn fill(bytes: []u8) void {
    if (builtin.os.tag != .linux) return c.arc4random_buf(bytes.ptr, bytes.len);
    // Uses the system call itself: the libc that the library is linked with may be older than its
    // wrapper.
    var done: usize = 0;
    while (done < bytes.len) {
        const result = linux.getrandom(bytes.ptr + done, bytes.len - done, 0);
        switch (linux.errno(result)) {
            .SUCCESS => done += result,
            .INTR => {},
            // Every supported kernel has getrandom.
            else => |code| std.debug.panic("getrandom: {t}", .{code}),
        }
    }
}

pub fn array(comptime size: usize) [size]u8 {
    var bytes: [size]u8 = undefined;
    fill(&bytes);
    return bytes;
}

pub fn seed() u64 {
    return @bitCast(array(8));
}

test "two draws differ" {
    try std.testing.expect(!std.mem.eql(u8, &array(16), &array(16)));
}
