//! label: the name of this peer for people: the caller's, or by default this host and this process.

const std = @import("std");
const base = @import("base");
const status = @import("status.zig");
const text = @import("text.zig");

const bytes_max = base.limits.label_bytes_max;

pub fn of_peer(given: ?[*:0]const u8) status.Error!base.Label {
    const told = text.bounded(given orelse return of_process(), bytes_max) catch
        return status.fail(.invalid_argument, "the label has more than {d} bytes", .{bytes_max});
    if (told.len == 0) return of_process();
    return base.Label.read(told) orelse status.fail(
        .invalid_argument,
        "the label, \"{s}\", cannot be shown: it must be UTF-8 without control characters, line " ++
            "ends and marks that turn the writing",
        .{told},
    );
}

/// "node7:4242"
fn of_process() base.Label {
    var host: [host_bytes_max]u8 = @splat(0);
    // Where the name does not fit, its beginning is there, and the last byte is zero all the same.
    const is_known = std.c.gethostname(&host, host.len - 1) == 0;
    const name = if (is_known) std.mem.sliceTo(&host, 0) else "?";
    var whole: [host_bytes_max + 16]u8 = undefined;
    const pid = std.c.getpid();
    const told = std.fmt.bufPrint(&whole, "{s}:{d}", .{ name, pid }) catch unreachable;
    return .shown(told);
}

/// Longer than the name of any host, with the zero.
const host_bytes_max = 256;

test "a peer that is given no label has that of its host and process" {
    const expect = std.testing.expect;
    const own = try of_peer(null);
    var pid: [16]u8 = undefined;
    const end = try std.fmt.bufPrint(&pid, ":{d}", .{std.c.getpid()});
    try expect(own.length > end.len and std.mem.endsWith(u8, own.slice(), end));
    try std.testing.expectEqualStrings(own.slice(), (try of_peer("")).slice());
    try std.testing.expectEqualStrings("mine", (try of_peer("mine")).slice());
    for ([_][*:0]const u8{ "x" ** (bytes_max + 1), "a\nb" }) |wrong|
        try expect(status.code(if (of_peer(wrong)) |_| {} else |err| err) == .invalid_argument);
}
