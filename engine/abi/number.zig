//! number: a number of a caller that stands for a word of the header becomes a word of the engine.

const std = @import("std");
const status = @import("status.zig");

/// pccl_probe_t
pub const Probe = enum(c_uint) { auto = 0, off = 1 };

/// `kind` has the words: a type of the header.
pub fn known(
    comptime E: type,
    value: c_uint,
    comptime name: []const u8,
    comptime kind: []const u8,
) status.Error!E {
    return std.enums.fromInt(E, value) orelse status.fail(
        .invalid_argument,
        name ++ " {d} is unknown; see " ++ kind,
        .{value},
    );
}
