//! unfilled: memory whose user writes it before reading it. In safe builds, an allocator fills
//! memory with 0xaa when it hands it out and again when it takes it back. For undo logs and leaves
//! these are two passes more than the operation needs, and unused pages become resident. For the
//! thirty small lists of an operation, the fill costs more than the reservation.

const std = @import("std");
const Allocator = std.mem.Allocator;
const Alignment = std.mem.Alignment;

pub fn Buffer(comptime alignment: Alignment) type {
    return []align(alignment.toByteUnits()) u8;
}

pub fn alloc(
    gpa: Allocator,
    comptime alignment: Alignment,
    bytes: usize,
) Allocator.Error!Buffer(alignment) {
    if (bytes == 0) return &.{};
    const memory = gpa.rawAlloc(bytes, alignment, @returnAddress());
    return @alignCast((memory orelse return error.OutOfMemory)[0..bytes]);
}

pub fn free(gpa: Allocator, comptime alignment: Alignment, buffer: Buffer(alignment)) void {
    if (buffer.len > 0) gpa.rawFree(buffer, alignment, @returnAddress());
}

/// Memory for a `T` that nothing has written yet. gpa.destroy frees it.
pub fn create(gpa: Allocator, comptime T: type) Allocator.Error!*T {
    return @ptrCast(try alloc(gpa, .of(T), @sizeOf(T)));
}

/// Memory for `count` items that nothing has written yet. The arena or `free_list` frees it.
pub fn list(arena: Allocator, comptime T: type, count: usize) Allocator.Error![]T {
    const bytes = std.math.mul(usize, count, @sizeOf(T)) catch return error.OutOfMemory;
    return @ptrCast(try alloc(arena, .of(T), bytes));
}

pub fn free_list(gpa: Allocator, comptime T: type, items: []T) void {
    free(gpa, .of(T), @ptrCast(items));
}

test "what is had is aligned and nothing wrote it, nor what is given back" {
    var room: [4096]u8 align(4096) = @splat(7);
    var fixed: std.heap.FixedBufferAllocator = .init(room[1..]);
    const gpa = fixed.allocator();
    const buffer = try alloc(gpa, .@"64", 1000);
    try std.testing.expectEqual(0, @intFromPtr(buffer.ptr) % 64);
    free(gpa, .@"64", buffer);
    try std.testing.expect(std.mem.allEqual(u8, &room, 7));
    try std.testing.expectEqual(0, (try alloc(gpa, .@"64", 0)).len);
    try std.testing.expectError(error.OutOfMemory, alloc(gpa, .@"64", 5000));
}
