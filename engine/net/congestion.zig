//! congestion: which congestion control the lanes of a peer have, as its user says. Where the user
//! leaves it to the library, session/flow.zig finds the links that need another one, and tcp.zig
//! sets it.

const std = @import("std");
const log = @import("log.zig");
const socket = @import("socket.zig");
const tcp = @import("tcp.zig");
const Pair = @import("test_pair.zig").Pair;
const Fd = socket.Fd;
const Pace = @import("session").Pace;

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

    /// The library would like another one for a lane, and the user may have left it the choice.
    pub fn change(choice: *const Choice, fd: Fd, wanted: Pace.Control, listener: Fd) void {
        if (choice.congestion != .auto) return;
        var room: tcp.ControlName = undefined;
        const system = tcp.congestion_of(listener, &room) orelse return;
        const name = switch (wanted) {
            .system => system,
            // Every Linux has reno and lets everybody use it. Others than cubic have no HyStart.
            .starting => if (std.mem.eql(u8, system, "cubic")) "reno" else return,
            .loss_tolerant => "bbr",
        };
        _ = socket.control_congestion(fd, name);
    }

    /// A lane that has bbr begins anew: it stops for a moment ten seconds after it has begun, or
    /// last seen the shortest round trip.
    pub fn renew(choice: *const Choice, fd: Fd) void {
        if (choice.congestion != .auto) return;
        var room: tcp.ControlName = undefined;
        const name = tcp.congestion_of(fd, &room) orelse return;
        if (!std.mem.eql(u8, name, "bbr")) return;
        if (socket.control_congestion(fd, "reno")) _ = socket.control_congestion(fd, "bbr");
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
    try std.testing.expect(!choice.was_refused);
    choice.congestion = .cubic;
    choice.apply(client, pair.listener);
    if (choice.was_refused) return;
    try std.testing.expectEqualStrings("cubic", tcp.congestion_of(client, &room).?);
}

test "the library chooses for a lane, unless its user has chosen" {
    if (@import("builtin").os.tag != .linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    const client = pair.client;
    var room: tcp.ControlName = undefined;
    var of_system: tcp.ControlName = undefined;
    const system = tcp.congestion_of(pair.listener, &of_system).?;
    const is_cubic = std.mem.eql(u8, system, "cubic");
    var choice: Choice = .{ .congestion = .system };
    choice.apply(client, pair.listener);
    choice.change(client, .starting, pair.listener);
    try std.testing.expectEqualStrings(system, tcp.congestion_of(client, &room).?);
    choice.congestion = .auto;
    choice.change(client, .starting, pair.listener);
    const starting = if (is_cubic) "reno" else system;
    try std.testing.expectEqualStrings(starting, tcp.congestion_of(client, &room).?);
    choice.change(client, .system, pair.listener);
    try std.testing.expectEqualStrings(system, tcp.congestion_of(client, &room).?);
    choice.renew(client);
    try std.testing.expectEqualStrings(system, tcp.congestion_of(client, &room).?);
    if (!socket.control_congestion(client, "bbr")) return; // not to be had here
    choice.renew(client);
    try std.testing.expectEqualStrings("bbr", tcp.congestion_of(client, &room).?);
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
