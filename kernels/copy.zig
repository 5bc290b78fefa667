//! copy: memory to memory, for results that are larger than the caches. `rep movsb` writes whole
//! lines without reading them first, which a plain loop of stores cannot; on small blocks it
//! costs more to start than it saves.

const std = @import("std");
const builtin = @import("builtin");

/// From here on the microcode is faster than the loop.
const large_bytes = 1 << 20;

/// The blocks do not overlap.
pub fn copy(noalias out: [*]u8, noalias input: [*]const u8, bytes: usize) void {
    if (builtin.cpu.arch == .x86_64 and bytes >= large_bytes) return copy_movsb(out, input, bytes);
    @memcpy(out[0..bytes], input);
}

fn copy_movsb(noalias out: [*]u8, noalias input: [*]const u8, bytes: usize) void {
    // The direction flag is clear by the calling convention. rdi, rsi and rcx are changed, so
    // they are outputs.
    var to = out;
    var from = input;
    var left = bytes;
    asm volatile ("rep movsb"
        : [to] "+{rdi}" (to),
          [from] "+{rsi}" (from),
          [left] "+{rcx}" (left),
        :
        : .{ .memory = true });
}

test "every size around the threshold arrives whole" {
    const gpa = std.testing.allocator;
    const a = try gpa.alloc(u8, large_bytes + 70);
    defer gpa.free(a);
    const b = try gpa.alloc(u8, a.len);
    defer gpa.free(b);
    for (a, 0..) |*byte, index| byte.* = @truncate(index *% 31);
    for ([_]usize{ 0, 1, 63, large_bytes - 1, large_bytes, large_bytes + 69 }) |bytes| {
        @memset(b, 0xee);
        copy(b.ptr + 1, a.ptr, bytes);
        try std.testing.expectEqual(0xee, b[0]);
        try std.testing.expectEqualSlices(u8, a[0..bytes], b[1 .. bytes + 1]);
        if (bytes + 1 < b.len) try std.testing.expectEqual(0xee, b[bytes + 1]);
    }
}
