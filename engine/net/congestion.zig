//! congestion: which congestion control the lanes of a peer have, as its user says. Where the user
//! leaves it to the library, session/flow.zig finds the links that need another one, and tcp.zig
//! sets it.

const std = @import("std");
const log = @import("log.zig");
const socket = @import("socket.zig");
const tcp = @import("tcp.zig");
const Pair = @import("test_pair.zig").Pair;
const Fd = socket.Fd;

/// pccl_congestion_t
pub const Congestion = enum(c_uint) { auto = 0, system = 1, bbr = 2, cubic = 3 };

/// The user's choice, for all lanes of a peer.
pub const Choice = struct {
    congestion: Congestion = .auto,
    /// The log says so once.
    was_refused: bool = false,

    /// A lane is connected. `listener`: a socket whose congestion control nobody has chosen.
    pub fn apply(choice: *Choice, fd: Fd, listener: Fd) void {
        var room: tcp.ControlName = undefined;
        const name = switch (choice.congestion) {
            .auto => return,
            // Within a machine another one was set (socket.zig).
            .system => tcp.congestion_of(listener, &room) orelse return,
            .bbr, .cubic => |wanted| @tagName(wanted),
        };
        if (socket.control_congestion(fd, name) or choice.was_refused) return;
        choice.was_refused = true;
        log.print(.warning, refusal, .{ name, name, name });
    }

    /// Whether the library may choose another one for a lossy link.
    pub fn is_open(choice: *const Choice) bool {
        return choice.congestion == .auto;
    }

    const refusal = "this system does not let this process use the congestion control {s}, so " ++
        "lanes keep the system's: an administrator can load it (modprobe tcp_{s}) and add it to " ++
        "net.ipv4.tcp_allowed_congestion_control (sysctl), or connect without congestion={s}";
};

test "the user's choice is that of a lane, within a machine too" {
    if (@import("builtin").os.tag != .linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    const client = pair.client;
    var room: tcp.ControlName = undefined;
    var system: tcp.ControlName = undefined;
    var choice: Choice = .{};
    choice.apply(client, pair.listener);
    try std.testing.expectEqualStrings("reno", tcp.congestion_of(client, &room).?);
    choice.congestion = .system;
    choice.apply(client, pair.listener);
    const expected = tcp.congestion_of(pair.listener, &system).?;
    try std.testing.expectEqualStrings(expected, tcp.congestion_of(client, &room).?);
    try std.testing.expect(!choice.was_refused and !choice.is_open());
    choice.congestion = .cubic;
    choice.apply(client, pair.listener);
    if (choice.was_refused) return;
    try std.testing.expectEqualStrings("cubic", tcp.congestion_of(client, &room).?);
}

test "a congestion control that the system refuses is said once, and the lane keeps its own" {
    // Goal: one line for all lanes. Method: nobody may set anything on a socket that is closed.
    var text: [log.line_bytes_max]u8 = undefined;
    while (log.process.take(&text)) |_| {}
    var choice: Choice = .{ .congestion = .bbr };
    for (0..3) |_| choice.apply(-1, -1);
    const line = log.process.take(&text).?;
    try std.testing.expectEqual(.warning, line.level);
    for ([_][]const u8{ "bbr", "modprobe tcp_bbr", "tcp_allowed_congestion_control" }) |word|
        try std.testing.expect(std.mem.indexOf(u8, line.text, word) != null);
    try std.testing.expectEqual(null, log.process.take(&text));
}
