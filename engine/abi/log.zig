//! log: the C side of net/log.zig.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const status = @import("status.zig");

pub const pccl_log_next = status.C(next).call;

fn next(level: ?*c_int, message: ?[*]u8, capacity: usize) status.Error!void {
    const level_to = level orelse return status.is_null("level");
    const to = message orelse return status.is_null("message");
    if (capacity == 0) return status.fail(.invalid_argument, "capacity is 0", .{});
    var text: [net.log.line_bytes_max]u8 = undefined;
    const line = net.log.process.take(&text) orelse
        return status.fail(.timeout, "there is no log line", .{});
    to[base.text.show(line.text, to[0 .. capacity - 1]).len] = 0; // cut between letters
    level_to.* = @intFromEnum(line.level);
}

test "lines come out, cut to the room there is" {
    net.log.put(.warning, "peer 0a1b2c3d is gone");
    var level: c_int = -1;
    var text: [8]u8 = undefined;
    // Other tests of this process may have logged before.
    while (pccl_log_next(&level, &text, text.len) == .ok) {
        if (std.mem.eql(u8, std.mem.sliceTo(&text, 0), "peer 0a")) break;
    } else return error.TestUnexpectedResult;
    try std.testing.expectEqual(2, level);
    try std.testing.expectEqual(.invalid_argument, pccl_log_next(null, &text, text.len));
    try std.testing.expectEqual(.invalid_argument, pccl_log_next(&level, &text, 0));
}
