//! text: C strings of callers as slices, never read further than they may be long.

const std = @import("std");
const base = @import("base");
const status = @import("status.zig");

pub const Error = error{TooLong};

/// error.TooLong: no terminating zero within bytes_max + 1 bytes.
pub fn bounded(text: [*:0]const u8, bytes_max: usize) Error![]const u8 {
    for (0..bytes_max + 1) |length| if (text[length] == 0) return text[0..length];
    return error.TooLong;
}

/// Copies with a terminating zero; false if it does not fit.
pub fn copy(text: []const u8, to: [*]u8, capacity: usize) bool {
    if (text.len >= capacity) return false;
    @memcpy(to[0..text.len], text);
    to[text.len] = 0;
    return true;
}

/// An address among options; null stands for the default.
pub fn address(
    text: ?[*:0]const u8,
    comptime default: []const u8,
    comptime name: []const u8,
) status.Error![]const u8 {
    return bounded(text orelse return default, base.limits.address_bytes_max) catch status.fail(
        .invalid_argument,
        name ++ " has more than {d} bytes; it must be host:port",
        .{base.limits.address_bytes_max},
    );
}

pub fn optional_address(
    text: ?[*:0]const u8,
    comptime name: []const u8,
) status.Error!?[]const u8 {
    return if (text == null) null else try address(text, "", name);
}

/// A directory or file among options. Ends with a zero, as the system wants it.
pub fn optional_path(
    text: ?[*:0]const u8,
    comptime name: []const u8,
) status.Error!?[:0]const u8 {
    const path = bounded(text orelse return null, base.limits.path_bytes_max) catch
        return status.fail(
            .invalid_argument,
            name ++ " has more than {d} bytes",
            .{base.limits.path_bytes_max},
        );
    if (path.len == 0) return status.fail(.invalid_argument, name ++ " is empty", .{});
    return path.ptr[0..path.len :0];
}

test "a string that does not end is not followed" {
    try std.testing.expectEqualStrings("abc", try bounded("abc", 3));
    try std.testing.expectError(error.TooLong, bounded("abcd", 3));
    var out: [4]u8 = undefined;
    try std.testing.expect(copy("abc", &out, out.len));
    try std.testing.expect(!copy("abcd", &out, out.len));
}

test "a path may be left out, and is not empty" {
    try std.testing.expectEqual(null, try optional_path(null, "dir"));
    try std.testing.expectEqualStrings("/tmp", (try optional_path("/tmp", "dir")).?);
    const empty = status.code(if (optional_path("", "dir")) |_| {} else |err| err);
    try std.testing.expectEqual(.invalid_argument, empty);
}
