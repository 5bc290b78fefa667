//! congestion: which congestion control the lanes of a peer have, as its user says. Where the user
//! leaves it to the library, session/flow.zig says what each lane needs.

const std = @import("std");
const log = @import("log.zig");
const socket = @import("socket.zig");
const tcp = @import("tcp.zig");
const Pair = @import("fixture.zig").Pair;
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
    pub fn change(choice: *const Choice, fd: Fd, wanted: Pace.Control, before: *Before) void {
        if (choice.congestion != .auto) return;
        switch (wanted) {
            .system => before.restore(fd),
            // Every Linux has reno and lets everybody use it. Others than cubic have no HyStart.
            // Where the way to a host has cubic and the process may not choose that, a lane could
            // not go back to it.
            .starting => if (is_of(fd, "cubic") and socket.may_control_congestion("cubic"))
                before.replace(fd, "reno"),
            .loss_tolerant => before.replace(fd, "bbr"),
        }
    }

    /// A lane that has bbr begins anew: it stops for a moment ten seconds after it has begun, or
    /// last seen the shortest round trip. `listener`: as for `apply`.
    pub fn renew(choice: *const Choice, fd: Fd, listener: Fd) void {
        if (choice.congestion == .system or !is_of(fd, "bbr")) return;
        if (!socket.control_congestion(fd, "reno") or socket.control_congestion(fd, "bbr")) return;
        // It was taken from this process meanwhile.
        var room: tcp.ControlName = undefined;
        const system = tcp.congestion_of(listener, &room) orelse return;
        _ = socket.control_congestion(fd, system);
    }

    fn is_of(fd: Fd, name: []const u8) bool {
        var room: tcp.ControlName = undefined;
        return std.mem.eql(u8, tcp.congestion_of(fd, &room) orelse return false, name);
    }

    const refusal = "this system does not let this process use the congestion control {s}, so " ++
        "lanes keep the system's: an administrator can load it (modprobe tcp_{s}) and add it to " ++
        "net.ipv4.tcp_allowed_congestion_control (sysctl), or connect without congestion={s}";
};

/// The congestion control that a lane had before the library changed it; empty: it has not.
pub const Before = struct {
    room: tcp.ControlName = @splat(0),

    fn replace(before: *Before, fd: Fd, name: []const u8) void {
        var room: tcp.ControlName = undefined;
        const own = tcp.congestion_of(fd, &room) orelse return;
        if (!socket.control_congestion(fd, name)) return before.restore(fd);
        if (before.room[0] == 0) @memcpy(before.room[0..own.len], own);
    }

    fn restore(before: *Before, fd: Fd) void {
        if (before.room[0] == 0) return;
        _ = socket.control_congestion(fd, std.mem.sliceTo(&before.room, 0));
        before.room = @splat(0);
    }
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
    var before: Before = .{};
    choice.apply(client, pair.listener);
    choice.change(client, .starting, &before);
    try std.testing.expectEqualStrings(system, tcp.congestion_of(client, &room).?);
    choice.congestion = .auto;
    choice.change(client, .starting, &before);
    const starting = if (is_cubic) "reno" else system;
    try std.testing.expectEqualStrings(starting, tcp.congestion_of(client, &room).?);
    choice.change(client, .loss_tolerant, &before);
    const is_bbr = std.mem.eql(u8, "bbr", tcp.congestion_of(client, &room).?);
    choice.renew(client, pair.listener);
    // Where bbr is not to be had it is the system's, and not what it began with.
    const tolerant = if (is_bbr) "bbr" else system;
    try std.testing.expectEqualStrings(tolerant, tcp.congestion_of(client, &room).?);
    choice.change(client, .system, &before);
    try std.testing.expectEqualStrings(system, tcp.congestion_of(client, &room).?);
    // One that somebody else has chosen stays: reno within a machine.
    try std.testing.expect(socket.control_congestion(client, "reno"));
    before = .{};
    for ([_]Pace.Control{ .starting, .system }) |wanted| choice.change(client, wanted, &before);
    try std.testing.expectEqualStrings("reno", tcp.congestion_of(client, &room).?);
}

test "a lane goes back to what it had before the first change, if the library may change it" {
    if (@import("builtin").os.tag != .linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    var room: tcp.ControlName = undefined;
    if (!socket.control_congestion(pair.client, "cubic")) return error.SkipZigTest;
    var before: Before = .{};
    for (0..2) |_| before.replace(pair.client, "reno");
    const user: Choice = .{ .congestion = .system };
    user.change(pair.client, .system, &before);
    try std.testing.expectEqualStrings("reno", tcp.congestion_of(pair.client, &room).?);
    const library: Choice = .{};
    library.change(pair.client, .system, &before);
    try std.testing.expectEqualStrings("cubic", tcp.congestion_of(pair.client, &room).?);
}

test "it is known what a process may choose" {
    if (@import("builtin").os.tag != .linux) return;
    try std.testing.expect(socket.may_control_congestion("reno"));
    try std.testing.expect(!socket.may_control_congestion("no such"));
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
