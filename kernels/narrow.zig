//! The low bytes of vectors of u32, put side by side. It is its own file because no single way is
//! good on every CPU. Compiled once per CPU level (level.zig).

const U = @Vector(16, u32);
const Bytes = @Vector(16, u8);

/// to[0 .. 16 * n] := the low bytes of the lanes, in order.
pub inline fn put_bytes(comptime n: usize, to: [*]u8, values: [n]U) void {
    inline for (values, 0..) |value, v| {
        const bytes: Bytes = @truncate(value);
        to[v * 16 ..][0..16].* = bytes;
    }
}
