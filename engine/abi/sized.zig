//! sized: structs that begin with their size. Callers and library may be of different versions, and
//! fields are only ever appended. So a shorter struct of an old caller is filled up with defaults,
//! and a longer one of a new caller is fine as long as the part that we do not know is zero.

const std = @import("std");
const assert = std.debug.assert;

/// No struct of the header will ever be larger; what claims to be is not initialised.
const size_max = 4096;

pub const Error = error{BadSize};

/// The options of a caller; null stands for all defaults, which are zeros.
pub fn read(comptime T: type, from: ?*const T) Error!T {
    comptime assert(std.mem.eql(u8, std.meta.fields(T)[0].name, "size"));
    var value = std.mem.zeroes(T);
    value.size = @sizeOf(T);
    const pointer = from orelse return value;
    const bytes: [*]const u8 = @ptrCast(pointer);
    const size = std.mem.readInt(usize, bytes[0..@sizeOf(usize)], .native);
    if (!plausible(T, size)) return error.BadSize;
    const known = @min(size, @sizeOf(T));
    @memcpy(std.mem.asBytes(&value)[0..known], bytes[0..known]);
    for (bytes[known..size]) |byte| if (byte != 0) return error.BadSize;
    value.size = @sizeOf(T);
    return value;
}

/// Gives a caller the fields that its version of the struct has.
pub fn write(comptime T: type, to: *T, value: T) Error!void {
    const bytes: [*]u8 = @ptrCast(to);
    const size = std.mem.readInt(usize, bytes[0..@sizeOf(usize)], .native);
    if (!plausible(T, size)) return error.BadSize;
    const known = @min(size, @sizeOf(T));
    @memcpy(bytes[@sizeOf(usize)..known], std.mem.asBytes(&value)[@sizeOf(usize)..known]);
    @memset(bytes[known..size], 0);
}

/// Checks an output struct before the work whose result it is for.
pub fn check(comptime T: type, to: *const T) Error!void {
    const bytes: [*]const u8 = @ptrCast(to);
    const size = std.mem.readInt(usize, bytes[0..@sizeOf(usize)], .native);
    if (!plausible(T, size)) return error.BadSize;
}

/// Any version of the struct is a multiple of its alignment.
fn plausible(comptime T: type, size: usize) bool {
    return size >= @sizeOf(usize) and size <= size_max and size % @alignOf(T) == 0;
}

const Sample = extern struct { size: usize, a: u64, b: u32, c: u32 };
const Longer = extern struct { sample: Sample, d: u64 };

test "old and new callers are read, and nonsense is refused" {
    const full: Sample = .{ .size = @sizeOf(Sample), .a = 1, .b = 2, .c = 3 };
    try std.testing.expectEqual(full, try read(Sample, &full));
    try std.testing.expectEqual(0, (try read(Sample, null)).a);
    var old = full;
    old.size = 16;
    const filled = try read(Sample, &old);
    try std.testing.expect(filled.a == 1 and filled.b == 0 and filled.c == 0);
    var new: Longer = .{ .sample = full, .d = 0 };
    new.sample.size = @sizeOf(Longer);
    try std.testing.expectEqual(full, try read(Sample, &new.sample));
    new.d = 9;
    try std.testing.expectError(error.BadSize, read(Sample, &new.sample));
    for ([_]usize{ 0, 4, 17, 1 << 20, std.math.maxInt(usize) }) |size| {
        old.size = size;
        try std.testing.expectError(error.BadSize, read(Sample, &old));
    }
}

test "a result is written as far as the caller's struct goes" {
    var out: Sample = .{ .size = 16, .a = 0, .b = 77, .c = 77 };
    try write(Sample, &out, .{ .size = 0, .a = 5, .b = 6, .c = 7 });
    try std.testing.expectEqual(Sample{ .size = 16, .a = 5, .b = 77, .c = 77 }, out);
    var longer: Longer = .{ .sample = out, .d = 9 };
    longer.sample.size = @sizeOf(Longer);
    try write(Sample, &longer.sample, .{ .size = 0, .a = 5, .b = 6, .c = 7 });
    try std.testing.expect(longer.sample.c == 7 and longer.d == 0);
    out.size = 0;
    try std.testing.expectError(error.BadSize, write(Sample, &out, out));
    try std.testing.expectError(error.BadSize, check(Sample, &out));
    out.size = 1 << 20;
    try std.testing.expectError(error.BadSize, check(Sample, &out));
}
