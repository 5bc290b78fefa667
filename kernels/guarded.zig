//! Buffers for the tests of kernels: room for any alignment, and guards on both sides that show a
//! write outside. Used by tests.zig and codec_test.zig.

const std = @import("std");

/// Elements in the longest operands of these tests: all lengths up to it are tried.
pub const length_max = 257;

const guard = 64;
/// The longest operand is of f64, or encoded with its scales.
const room = 2 * guard + 64 + length_max * 8 + 512;
const untouched: [guard]u8 = @splat(0xa5);

pub const Buffer = struct {
    bytes: [room]u8 align(64) = @splat(0xa5),

    pub fn at(buffer: *Buffer, offset: usize) [*]u8 {
        return buffer.bytes[guard + offset ..].ptr;
    }

    /// Nothing is in it any more.
    pub fn clear(buffer: *Buffer, offset: usize) [*]u8 {
        @memset(&buffer.bytes, 0xa5);
        return buffer.at(offset);
    }

    pub fn put(buffer: *Buffer, offset: usize, data: []const u8) [*]u8 {
        const to = buffer.clear(offset);
        @memcpy(to, data);
        return to;
    }

    /// It holds this, and nothing was written beside it.
    pub fn check(buffer: *Buffer, offset: usize, wanted: []const u8) !void {
        const start = guard + offset;
        try expect_bytes(wanted, buffer.bytes[start..][0..wanted.len]);
        try expect_bytes(&untouched, buffer.bytes[start - guard ..][0..guard]);
        try expect_bytes(&untouched, buffer.bytes[start + wanted.len ..][0..guard]);
    }
};

/// Like expectEqualSlices, whose loop is the cost of these tests when nothing is optimised.
pub fn expect_bytes(wanted: []const u8, got: []const u8) !void {
    if (!std.mem.eql(u8, wanted, got)) try std.testing.expectEqualSlices(u8, wanted, got);
}
