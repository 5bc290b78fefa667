//! secret: memory for the run id, which a token carries and which must not leave the process. This
//! memory has pages of its own, which no core file has, and is zeroed before it is given back. The
//! few copies of the run id that live long are here; bytes that pass through a socket's queue, and
//! the caller's own copy, are elsewhere. A function that reads or makes a token leaves copies in
//! the stack frames of the functions that it has called; `clear_stack` zeroes these.

const std = @import("std");
const builtin = @import("builtin");
const linux = std.os.linux;
const Alignment = std.mem.Alignment;

/// Each allocation takes whole pages, which no core file has.
pub const allocator: std.mem.Allocator = .{
    .ptr = undefined,
    .vtable = &.{
        .alloc = alloc,
        .resize = std.mem.Allocator.noResize,
        .remap = std.mem.Allocator.noRemap,
        .free = free,
    },
};

const pages = std.heap.page_allocator;

fn alloc(_: *anyopaque, len: usize, alignment: Alignment, at: usize) ?[*]u8 {
    const bytes = pages.rawAlloc(len, alignment, at) orelse return null;
    if (builtin.os.tag != .linux) return bytes;
    const whole = std.mem.alignForward(usize, len, std.heap.pageSize());
    // A kernel before 3.4 cannot leave these pages out of core files; they are used all the same.
    _ = linux.madvise(bytes, whole, linux.MADV.DONTDUMP);
    return bytes;
}

fn free(_: *anyopaque, bytes: []u8, alignment: Alignment, at: usize) void {
    std.crypto.secureZero(u8, bytes);
    pages.rawFree(bytes, alignment, at);
}

/// The frames below a function of the C ABI that gets or gives a token have fewer bytes than this.
const stack_bytes = 32 * 1024;

/// Zeroes the stack below the caller's frame, where functions that have returned had their frames.
pub noinline fn clear_stack() void {
    var below: [stack_bytes]u8 = undefined;
    std.crypto.secureZero(u8, &below);
}

const testing = std.testing;

test "what functions that have returned left on the stack is zeroed" {
    const Deep = struct {
        noinline fn leave() usize {
            var left: [1024]u8 = undefined;
            for (&left, 0..) |*byte, index| @as(*volatile u8, byte).* = @truncate(index);
            return @intFromPtr(&left);
        }
    };
    const at = Deep.leave();
    clear_stack();
    const left: *const volatile [1024]u8 = @ptrFromInt(at);
    var zeros: usize = 0;
    for (left) |*byte| zeros += @intFromBool(byte.* == 0);
    try testing.expect(zeros > 900); // only the frames of this loop may be left
}

test "what is secret is in no core file, and what is not is" {
    if (builtin.os.tag != .linux) return error.SkipZigTest;
    for ([_]usize{ 1, 4096, 4097, 300_000 }) |size| {
        const bytes = try allocator.alloc(u8, size);
        defer allocator.free(bytes);
        @memset(bytes, 7);
        try testing.expect(try is_left_out(&bytes[0]));
        try testing.expect(try is_left_out(&bytes[size - 1]));
    }
    const open = try pages.alloc(u8, 300_000);
    defer pages.free(open);
    try testing.expect(!try is_left_out(&open[0]));
}

/// For tests: whether a core file lacks this byte, by the flag "dd" of proc_pid_smaps(5).
pub fn is_left_out(byte: *const u8) !bool {
    const gpa = testing.allocator;
    const path = "/proc/self/smaps";
    const fd = std.c.open(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true });
    try testing.expect(fd >= 0);
    defer _ = std.c.close(fd);
    var text: std.ArrayList(u8) = .empty;
    defer text.deinit(gpa);
    while (true) {
        try text.ensureUnusedCapacity(gpa, 65_536);
        const room = text.unusedCapacitySlice();
        const count = std.c.read(fd, room.ptr, room.len);
        try testing.expect(count >= 0);
        if (count == 0) break;
        text.items.len += @intCast(count);
    }
    var found = false;
    var lines = std.mem.splitScalar(u8, text.items, '\n');
    while (lines.next()) |line| {
        if (std.mem.startsWith(u8, line, "VmFlags:")) {
            if (found) return std.mem.indexOf(u8, line, " dd") != null;
            continue;
        }
        const dash = std.mem.indexOfScalar(u8, line, '-') orelse continue;
        const space = std.mem.indexOfScalar(u8, line, ' ') orelse continue;
        if (space < dash) continue;
        const begin = std.fmt.parseInt(usize, line[0..dash], 16) catch continue;
        const end = try std.fmt.parseInt(usize, line[dash + 1 .. space], 16);
        if (begin <= @intFromPtr(byte) and @intFromPtr(byte) < end) found = true;
    }
    return error.NotMapped;
}
