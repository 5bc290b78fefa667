//! status: the status codes of include/pccl.h and the sentence that goes with a failure. The only place where an
//! error of the engine becomes a code: each switch names every error, so a new one does not compile until it
//! has a code and a sentence.

const std = @import("std");
const base = @import("base");
const net = @import("net");

pub const Status = enum(c_int) {
    ok = 0,
    timeout = 1,
    invalid_argument = 2,
    invalid_usage = 3,
    out_of_memory = 4,
    mismatch = 5,
    aborted = 6,
    expelled = 7,
    in_doubt = 8,
    deadline_exceeded = 9,
    too_few_peers = 10,
    coordinator_unreachable = 11,
    authentication_failed = 12,
    version_mismatch = 13,
    state_unavailable = 14,
    cancelled = 15,
    system_error = 16,

    /// "PCCL_MISMATCH"
    pub fn name(status: Status) [:0]const u8 {
        return switch (status) {
            inline else => |tag| comptime name: {
                const tag_name = @tagName(tag);
                var text: [tag_name.len:0]u8 = undefined;
                for (&text, tag_name) |*to, from| to.* = std.ascii.toUpper(from);
                const upper = text;
                break :name "PCCL_" ++ upper;
            },
        };
    }
};

// ---- the sentence of this thread

const sentence_bytes_max = 1024;

threadlocal var sentence: [sentence_bytes_max:0]u8 = @splat(0);

/// Keeps a sentence for pccl_last_error and returns the status. A sentence that is too long is cut.
pub fn fail(status: Status, comptime format: []const u8, arguments: anytype) Status {
    var writer: std.Io.Writer = .fixed(&sentence);
    writer.print(format, arguments) catch {}; // cut
    sentence[writer.end] = 0;
    return status;
}

pub fn last() [*:0]const u8 {
    return &sentence;
}

pub fn out_of_memory() Status {
    return fail(.out_of_memory, "there is not enough memory for this call; nothing was sent", .{});
}

export fn pccl_status_name(number: c_int) [*:0]const u8 {
    const status = std.enums.fromInt(Status, number) orelse return "PCCL_UNKNOWN";
    return status.name();
}

export fn pccl_last_error() [*:0]const u8 {
    return last();
}

test "names are those of the header" {
    try std.testing.expectEqualStrings("PCCL_OK", std.mem.span(pccl_status_name(0)));
    try std.testing.expectEqualStrings("PCCL_IN_DOUBT", std.mem.span(pccl_status_name(8)));
    try std.testing.expectEqualStrings("PCCL_SYSTEM_ERROR", std.mem.span(pccl_status_name(16)));
    try std.testing.expectEqualStrings("PCCL_UNKNOWN", std.mem.span(pccl_status_name(17)));
    try std.testing.expectEqualStrings("PCCL_UNKNOWN", std.mem.span(pccl_status_name(-1)));
}

test "a sentence is kept until the next failure, and a long one is cut" {
    try std.testing.expectEqual(.aborted, fail(.aborted, "peer {s} died", .{"a1"}));
    try std.testing.expectEqualStrings("peer a1 died", std.mem.span(last()));
    _ = fail(.aborted, "{s}", .{"x" ** 2000});
    try std.testing.expectEqual(sentence_bytes_max, std.mem.span(last()).len);
}
