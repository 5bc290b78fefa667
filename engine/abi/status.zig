//! status: the status codes of include/pccl.h, the last failure of this thread, and functions for C
//! made of Zig functions that may fail. sentence.zig decides which code an error of the engine
//! becomes.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const session = @import("session");

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

    /// The name in C: "PCCL_MISMATCH".
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

/// The status of how a call of this peer ended, or of why the peer is out of a group: the names are
/// the same.
pub fn of(why: session.Status) Status {
    return switch (why) {
        inline else => |tag| @field(Status, @tagName(tag)),
    };
}

// ---- the failure of this thread

/// A failing function inside abi keeps status and sentence here and returns this error.
pub const Error = error{Failed};

const sentence_bytes_max = 1024;

threadlocal var sentence: [sentence_bytes_max:0]u8 = @splat(0);
threadlocal var failed_with: Status = .ok;

/// Keeps the status of a failure and the sentence that pccl_last_error answers. The sentence is
/// text, whatever bytes the names in it have. A sentence that is too long is cut.
pub fn fail(status: Status, comptime format: []const u8, arguments: anytype) Error {
    var storage: [sentence_bytes_max]u8 = undefined;
    var writer: std.Io.Writer = .fixed(&storage);
    writer.print(format, arguments) catch {}; // a long sentence is cut
    sentence[base.text.show(writer.buffered(), &sentence).len] = 0;
    failed_with = status;
    return error.Failed;
}

/// The status that a function of the C ABI returns.
pub fn code(result: Error!void) Status {
    result catch return failed_with;
    return .ok;
}

/// The function of the C ABI that does what `function` does, and returns a status.
pub fn C(comptime function: anytype) type {
    return Function(code, function);
}

/// Like `C`, for a `noinline` function that gets or gives a token: no copy of the token stays on
/// the stack.
pub fn Secret(comptime function: anytype) type {
    return Function(cleared, function);
}

pub fn cleared(result: Error!void) Status {
    net.secret.clear_stack();
    return code(result);
}

/// Makes `call`, a function for C, of a Zig function that may fail, with the same arguments.
/// `code_of` makes the result of `call` from what `inner` returns.
pub fn Function(comptime code_of: anytype, comptime inner: anytype) type {
    const R = @typeInfo(@TypeOf(code_of)).@"fn".return_type.?;
    const params = @typeInfo(@TypeOf(inner)).@"fn".params;
    var types: [params.len]type = undefined;
    for (params, &types) |param, *to| to.* = param.type.?;
    const T = types;
    return switch (T.len) {
        1 => struct {
            pub fn call(a: T[0]) callconv(.c) R {
                return code_of(inner(a));
            }
        },
        2 => struct {
            pub fn call(a: T[0], b: T[1]) callconv(.c) R {
                return code_of(inner(a, b));
            }
        },
        3 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2]) callconv(.c) R {
                return code_of(inner(a, b, c));
            }
        },
        4 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2], d: T[3]) callconv(.c) R {
                return code_of(inner(a, b, c, d));
            }
        },
        5 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2], d: T[3], e: T[4]) callconv(.c) R {
                return code_of(inner(a, b, c, d, e));
            }
        },
        6 => struct {
            pub fn call(a: T[0], b: T[1], c: T[2], d: T[3], e: T[4], f: T[5]) callconv(.c) R {
                return code_of(inner(a, b, c, d, e, f));
            }
        },
        else => @compileError("write it out"),
    };
}

pub const no_memory = "there is not enough memory for this call; nothing was sent";

pub fn out_of_memory() Error {
    return fail(.out_of_memory, no_memory, .{});
}

pub fn bad_argument(comptime format: []const u8, arguments: anytype) Error {
    return fail(.invalid_argument, format, arguments);
}

pub fn is_null(comptime what: []const u8) Error {
    return bad_argument(what ++ " is NULL", .{});
}

pub fn pccl_status_name(number: c_int) callconv(.c) [*:0]const u8 {
    const status = std.enums.fromInt(Status, number) orelse return "PCCL_UNKNOWN";
    return status.name();
}

pub fn pccl_last_error() callconv(.c) [*:0]const u8 {
    return &sentence;
}

pub fn pccl_set_last_error(text: ?[*:0]const u8) callconv(.c) void {
    const given = if (text) |some| std.mem.span(some) else "";
    fail(.invalid_usage, "{s}", .{given}) catch {};
}

test "names are those of the header" {
    try std.testing.expectEqualStrings("PCCL_OK", std.mem.span(pccl_status_name(0)));
    try std.testing.expectEqualStrings("PCCL_IN_DOUBT", std.mem.span(pccl_status_name(8)));
    try std.testing.expectEqualStrings("PCCL_SYSTEM_ERROR", std.mem.span(pccl_status_name(16)));
    try std.testing.expectEqualStrings("PCCL_UNKNOWN", std.mem.span(pccl_status_name(17)));
    try std.testing.expectEqualStrings("PCCL_UNKNOWN", std.mem.span(pccl_status_name(-1)));
}

test "a sentence is kept until the next failure, and a long one is cut" {
    try std.testing.expectEqual(.aborted, code(fail(.aborted, "peer {s} died", .{"a1"})));
    try std.testing.expectEqual(.ok, code({}));
    try std.testing.expectEqualStrings("peer a1 died", std.mem.span(pccl_last_error()));
    try std.testing.expectEqual(.mismatch, code(fail(.mismatch, "{s}", .{"x" ** 2000})));
    try std.testing.expectEqual(sentence_bytes_max, std.mem.span(pccl_last_error()).len);
}
