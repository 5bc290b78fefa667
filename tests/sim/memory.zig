//! Memory of one simulated process: counts the memory held, so that a process that ended must hold
//! nothing, and refuses beyond a bound, so that unbounded growth is seen. world.zig owns one per
//! node.

const std = @import("std");
const Allocator = std.mem.Allocator;
const Alignment = std.mem.Alignment;

pub const Memory = struct {
    backing: Allocator,
    bytes_max: usize,
    bytes: usize = 0,
    blocks: usize = 0,
    peak_bytes: usize = 0,
    refused: bool = false,

    pub fn init(backing: Allocator, bytes_max: usize) Memory {
        return .{ .backing = backing, .bytes_max = bytes_max };
    }

    pub fn allocator(memory: *Memory) Allocator {
        return .{ .ptr = memory, .vtable = &vtable };
    }

    const vtable: Allocator.VTable = .{
        .alloc = alloc,
        .resize = resize,
        .remap = remap,
        .free = free,
    };

    fn alloc(context: *anyopaque, len: usize, alignment: Alignment, address: usize) ?[*]u8 {
        const memory: *Memory = @ptrCast(@alignCast(context));
        if (memory.bytes + len > memory.bytes_max) {
            memory.refused = true;
            return null;
        }
        const pointer = memory.backing.rawAlloc(len, alignment, address) orelse return null;
        memory.grow(0, len);
        memory.blocks += 1;
        return pointer;
    }

    fn resize(
        context: *anyopaque,
        block: []u8,
        alignment: Alignment,
        len: usize,
        address: usize,
    ) bool {
        const memory: *Memory = @ptrCast(@alignCast(context));
        if (memory.bytes - block.len + len > memory.bytes_max) return false;
        if (!memory.backing.rawResize(block, alignment, len, address)) return false;
        memory.grow(block.len, len);
        return true;
    }

    fn remap(
        context: *anyopaque,
        block: []u8,
        alignment: Alignment,
        len: usize,
        address: usize,
    ) ?[*]u8 {
        const memory: *Memory = @ptrCast(@alignCast(context));
        if (memory.bytes - block.len + len > memory.bytes_max) return null;
        const pointer = memory.backing.rawRemap(block, alignment, len, address) orelse return null;
        memory.grow(block.len, len);
        return pointer;
    }

    fn free(context: *anyopaque, block: []u8, alignment: Alignment, address: usize) void {
        const memory: *Memory = @ptrCast(@alignCast(context));
        memory.backing.rawFree(block, alignment, address);
        memory.bytes -= block.len;
        memory.blocks -= 1;
    }

    fn grow(memory: *Memory, from: usize, to: usize) void {
        memory.bytes = memory.bytes - from + to;
        memory.peak_bytes = @max(memory.peak_bytes, memory.bytes);
    }
};

test "what is not freed is seen, and the bound holds" {
    var memory = Memory.init(std.testing.allocator, 1000);
    const gpa = memory.allocator();
    const a = try gpa.alloc(u8, 600);
    try std.testing.expectError(error.OutOfMemory, gpa.alloc(u8, 600));
    try std.testing.expect(memory.refused);
    try std.testing.expectEqual(1, memory.blocks);
    gpa.free(a);
    try std.testing.expectEqual(0, memory.bytes);
}
