//! connection: the TCP connections of one engine: which of them can be read or written, which wait
//! for their turn, and which are closed but may still be named by an event. This file knows no
//! protocol, and moves bytes only when an engine asks (peer_engine.zig, coordinator_engine.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const address = @import("address.zig");
const descriptor = @import("descriptor.zig");
const poller = @import("poller.zig");
const socket = @import("socket.zig");
const limits = base.limits;
const assert = std.debug.assert;
const Allocator = std.mem.Allocator;
const Fd = socket.Fd;

/// One TCP connection: of a lane, to the coordinator, or of a stranger.
pub const Connection = struct {
    fd: Fd,
    /// The lane or other thing that the connection belongs to; only the engine uses the value.
    owner: usize,
    /// The socket may have bytes to read (`readable`), or room to write (`writable`): true until
    /// the socket says otherwise.
    readable: bool = false,
    writable: bool = false,
    /// The end of the connection is near: only reading up to it tells how the connection ended.
    hangup: bool = false,
    closed: bool = false,
    queued: bool = false,
    index: usize,
    node: std.DoublyLinkedList.Node = .{},

    /// Reads into the slices; error.WouldBlock once nothing is left to read. 0: the connection has
    /// ended.
    pub inline fn receive(
        connection: *Connection,
        slices: []const []u8,
    ) socket.TransferError!usize {
        const count = socket.receive(connection.fd, slices) catch |err| {
            connection.readable = false;
            return err;
        };
        var room: usize = 0;
        for (slices) |slice| room +%= slice.len; // slices lie apart, so no sum is too large
        // A short read has emptied the socket, unless the end of the connection comes next.
        if (count < room and !connection.hangup) connection.readable = false;
        return count;
    }

    /// Sends as many bytes of the slices as fit; error.WouldBlock if none fits.
    pub fn send(
        connection: *Connection,
        connections: *Connections,
        slices: []const []const u8,
    ) socket.TransferError!usize {
        var wanted: usize = 0;
        for (slices) |slice| wanted +%= slice.len; // no sum is too large, as in `receive`
        const count = socket.send(connection.fd, slices) catch |err| {
            if (err == error.WouldBlock) connections.blocked(connection);
            return err;
        };
        if (count < wanted) connections.blocked(connection);
        return count;
    }

    /// Sends as many bytes of a control stream as fit.
    pub inline fn send_stream(
        connection: *Connection,
        connections: *Connections,
        stream: *wire.Stream,
    ) error{Broken}!void {
        while (connection.writable) {
            const bytes = stream.send_slice();
            if (bytes.len == 0) return;
            const count = connection.send(connections, &.{bytes}) catch |err| switch (err) {
                error.WouldBlock => return,
                error.Broken => return error.Broken,
            };
            stream.sent(count);
        }
    }

    /// Reads once into a control stream, and returns the number of bytes. 0: nothing was there.
    pub fn receive_stream(connection: *Connection, stream: *wire.Stream) error{Ended}!usize {
        // Without memory for received bytes the connection cannot go on.
        const room = stream.recv_slice() catch return error.Ended;
        const count = connection.receive(&.{room}) catch |err| switch (err) {
            error.WouldBlock => return 0,
            error.Broken => return error.Ended,
        };
        if (count == 0) return error.Ended;
        stream.received(count);
        return count;
    }
};

pub const Connections = struct {
    gpa: Allocator,
    poller: poller.Poller,
    all: std.ArrayList(*Connection) = .empty,
    ready: std.DoublyLinkedList = .{},
    ready_count: usize = 0,
    closed: std.DoublyLinkedList = .{},
    listener: Fd = -1,
    accepting: bool = false,
    spare: socket.Spare = .{},

    const listener_context = 1;
    comptime {
        // No pointer to a connection equals the context of the waker or the listener.
        assert(@alignOf(Connection) > listener_context);
    }

    pub fn init(gpa: Allocator, backend: poller.Backend) poller.Error!Connections {
        return .{ .gpa = gpa, .poller = try .init(gpa, backend) };
    }

    /// Closes all connections and the listener.
    pub fn deinit(connections: *Connections) void {
        while (connections.all.getLastOrNull()) |connection| connections.close(connection);
        connections.bury();
        connections.all.deinit(connections.gpa);
        connections.stop_listening();
        connections.poller.deinit();
    }

    /// Takes over the listener, even if it fails.
    pub fn listen(connections: *Connections, listener: Fd) poller.Error!void {
        errdefer socket.close(listener);
        try connections.poller.add(listener, listener_context);
        connections.listener = listener;
        connections.spare = .init();
        connections.accepting = true;
    }

    fn stop_listening(connections: *Connections) void {
        if (connections.listener < 0) return;
        connections.poller.remove(connections.listener);
        socket.close(connections.listener);
        connections.listener = -1;
        connections.accepting = false;
        connections.spare.deinit();
    }

    /// The most connections that a round accepts. With this limit a flood of connections does not
    /// hold up the peers that are there, and each new connection is heard once before connections
    /// of the next round can take its place.
    pub const accepts_per_round = limits.strangers_max;

    /// The next connection that came in; null if none waits, or no more are `left` to this round.
    /// Connections that are turned away for want of descriptors count, too.
    pub fn accept(connections: *Connections, left: *usize) ?Fd {
        while (connections.accepting and left.* > 0) {
            left.* -= 1;
            const fd = socket.accept(connections.listener) catch |err| switch (err) {
                error.WouldBlock => {
                    connections.accepting = false;
                    return null;
                },
                error.SystemLimit => {
                    // Without descriptors it is better to close the connection than to let it hang.
                    connections.accepting = connections.spare.turn_away(connections.listener);
                    continue;
                },
            };
            if (descriptor.has_room()) return fd;
            socket.close(fd);
        }
        return null;
    }

    /// Takes over the socket, even if it fails.
    pub fn add(connections: *Connections, fd: Fd, owner: usize) poller.Error!*Connection {
        errdefer socket.close(fd);
        if (!descriptor.take()) return error.SystemLimit;
        errdefer descriptor.give_back();
        try connections.all.ensureUnusedCapacity(connections.gpa, 1);
        const connection = try connections.gpa.create(Connection);
        errdefer connections.gpa.destroy(connection);
        connection.* = .{ .fd = fd, .owner = owner, .index = connections.all.items.len };
        try connections.poller.add(fd, @intFromPtr(connection));
        connections.all.appendAssumeCapacity(connection);
        return connection;
    }

    /// Closes a connection, whose memory stays until the next `bury`.
    pub fn close(connections: *Connections, connection: *Connection) void {
        assert(!connection.closed);
        if (connection.queued) connections.unqueue(connection);
        connections.poller.remove(connection.fd);
        socket.close(connection.fd);
        descriptor.give_back();
        connection.closed = true;
        connections.all.items[connections.all.items.len - 1].index = connection.index;
        _ = connections.all.swapRemove(connection.index);
        connections.closed.append(&connection.node);
    }

    /// Frees closed connections, before the engine waits, when no event can name them.
    pub fn bury(connections: *Connections) void {
        while (connections.closed.popFirst()) |node| {
            connections.gpa.destroy(@as(*Connection, @fieldParentPtr("node", node)));
        }
    }

    /// Queues a connection for a turn, in which the engine reads and writes it.
    pub fn queue(connections: *Connections, connection: *Connection) void {
        if (connection.queued or connection.closed) return;
        connection.queued = true;
        connections.ready.append(&connection.node);
        connections.ready_count += 1;
    }

    pub fn next_ready(connections: *Connections) ?*Connection {
        const node = connections.ready.first orelse return null;
        const connection: *Connection = @fieldParentPtr("node", node);
        connections.unqueue(connection);
        return connection;
    }

    fn unqueue(connections: *Connections, connection: *Connection) void {
        connections.ready.remove(&connection.node);
        connections.ready_count -= 1;
        connection.queued = false;
    }

    fn blocked(connections: *Connections, connection: *Connection) void {
        connection.writable = false;
        connections.poller.want_write(connection.fd, true);
    }

    /// Notes the events that a wait has found, and queues their connections.
    pub fn note(connections: *Connections, events: []const poller.Event) void {
        for (events) |event| {
            if (event.context == listener_context) {
                connections.accepting = true;
                continue;
            }
            const connection: *Connection = @ptrFromInt(event.context);
            if (connection.closed) continue; // closed since the wait began
            connection.readable = connection.readable or event.readable;
            connection.hangup = connection.hangup or event.hangup;
            if (event.writable and !connection.writable) {
                connection.writable = true;
                connections.poller.want_write(connection.fd, false);
            }
            connections.queue(connection);
        }
    }

    pub fn has_turns(connections: *const Connections) bool {
        return connections.ready_count > 0 or connections.accepting;
    }
};

test "a connection that is closed while its event is on the way is left alone" {
    const c = std.c;
    for (std.enums.values(poller.Backend)) |backend| {
        if (backend == .epoll and poller.Backend.default != .epoll) continue;
        var connections = try Connections.init(std.testing.allocator, backend);
        defer connections.deinit();
        var fds: [2]Fd = undefined;
        try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, c.SOCK.STREAM, 0, &fds));
        const a = try connections.add(descriptor.adopt(fds[0]), 1);
        const b = try connections.add(descriptor.adopt(fds[1]), 2);
        try connections.poller.prepare();
        const events = connections.poller.wait(base.never);
        try std.testing.expectEqual(2, events.len);
        connections.close(a);
        connections.note(events);
        try std.testing.expectEqual(b, connections.next_ready().?);
        try std.testing.expectEqual(null, connections.next_ready());
        // The other end of b is closed: reading finds the end.
        connections.bury();
        try connections.poller.prepare();
        connections.note(connections.poller.wait(base.never));
        try std.testing.expect(b.hangup and b.readable);
        var byte: [1]u8 = undefined;
        try std.testing.expectEqual(0, try b.receive(&.{&byte}));
    }
}

test "the end of a connection is read though it came with the last bytes" {
    const c = std.c;
    for (std.enums.values(poller.Backend)) |backend| {
        if (backend == .epoll and poller.Backend.default != .epoll) continue;
        var connections = try Connections.init(std.testing.allocator, backend);
        defer connections.deinit();
        var fds: [2]Fd = undefined;
        try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, c.SOCK.STREAM, 0, &fds));
        const connection = try connections.add(descriptor.adopt(fds[0]), 1);
        try std.testing.expectEqual(1, c.write(fds[1], "x", 1));
        try std.testing.expectEqual(0, c.close(fds[1]));
        try connections.poller.prepare();
        connections.note(connections.poller.wait(base.never));
        try std.testing.expectEqual(connection, connections.next_ready().?);
        var room: [8]u8 = undefined;
        try std.testing.expectEqual(1, try connection.receive(&.{&room}));
        // Nothing more happens to the socket, so no later event says that it has ended.
        try std.testing.expect(connection.readable);
        try std.testing.expectEqual(0, try connection.receive(&.{&room}));
    }
}

test "a connection has one turn, keeps what events said of it, and ends for who reads it" {
    const c = std.c;
    var connections = try Connections.init(std.testing.allocator, .default);
    defer connections.deinit();
    var fds: [2]Fd = undefined;
    const flags = c.SOCK.STREAM | c.SOCK.NONBLOCK;
    try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, flags, 0, &fds));
    const connection = try connections.add(descriptor.adopt(fds[0]), 1);
    try std.testing.expectEqual(1, c.write(fds[1], "x", 1));
    const context = @intFromPtr(connection);
    connections.note(&.{
        .{ .context = context, .readable = true, .writable = false, .hangup = false },
        .{ .context = context, .readable = false, .writable = true, .hangup = false },
    });
    try std.testing.expect(connection.readable and connection.writable);
    try std.testing.expectEqual(1, connections.ready_count);
    try std.testing.expect(!connections.accepting);
    connections.note(&.{.{
        .context = Connections.listener_context,
        .readable = true,
        .writable = false,
        .hangup = false,
    }});
    try std.testing.expect(connections.accepting);
    // A short read has emptied the socket.
    var stream: wire.Stream = .init(std.testing.allocator);
    defer stream.deinit();
    try std.testing.expectEqual(1, try connection.receive_stream(&stream));
    try std.testing.expect(!connection.readable);
    try std.testing.expectEqual(0, try connection.receive_stream(&stream));
    try std.testing.expectEqual(0, c.close(fds[1]));
    try std.testing.expectError(error.Ended, connection.receive_stream(&stream));
    connections.close(connection);
    try std.testing.expectEqual(null, connections.next_ready());
}

test "a full socket blocks, and says when it takes bytes again" {
    const c = std.c;
    for (std.enums.values(poller.Backend)) |backend| {
        if (backend == .epoll and poller.Backend.default != .epoll) continue;
        var connections = try Connections.init(std.testing.allocator, backend);
        defer connections.deinit();
        var fds: [2]Fd = undefined;
        const flags = c.SOCK.STREAM | c.SOCK.NONBLOCK;
        try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, flags, 0, &fds));
        const connection = try connections.add(descriptor.adopt(fds[0]), 1);
        defer _ = c.close(fds[1]);
        try connections.poller.prepare();
        connections.note(connections.poller.wait(base.never));
        try std.testing.expect(connection.writable);
        const bytes: [64 * 1024]u8 = @splat(7);
        var total: usize = 0;
        while (connection.writable) {
            const count = connection.send(&connections, &.{&bytes}) catch 0;
            try std.testing.expectEqual(count == bytes.len, connection.writable);
            total += count;
        }
        try connections.poller.prepare();
        connections.note(connections.poller.wait(0));
        try std.testing.expect(!connection.writable);
        var drain: [64 * 1024]u8 = undefined;
        while (total > 0) total -= try socket.receive(fds[1], &.{&drain});
        try connections.poller.prepare();
        connections.note(connections.poller.wait(base.never));
        try std.testing.expect(connection.writable);
    }
}

test "a round takes so many connections in, whether or not there are descriptors for them" {
    const c = std.c;
    var restore: c.rlimit = undefined;
    try std.testing.expectEqual(0, c.getrlimit(.NOFILE, &restore));
    defer _ = c.setrlimit(.NOFILE, &restore);
    var tight = restore;
    tight.cur = @min(restore.cur, 512);
    try std.testing.expectEqual(0, c.setrlimit(.NOFILE, &tight));
    for ([_]bool{ true, false }) |has_room| {
        var connections = try Connections.init(std.testing.allocator, .default);
        defer connections.deinit();
        const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
        try connections.listen(try socket.listen(&any_port));
        const at = socket.local_address(connections.listener).?;
        const most = Connections.accepts_per_round;
        var fds: [most + 20]Fd = undefined;
        for (&fds) |*fd| fd.* = try socket.connect_start(&at);
        defer for (fds) |fd| socket.close(fd);
        var held: usize = 0; // descriptors that other engines hold
        defer for (0..held) |_| descriptor.give_back();
        if (!has_room) while (descriptor.take()) : (held += 1) {};
        var left: usize = most;
        var taken: usize = 0;
        while (connections.accept(&left)) |fd| : (taken += 1) socket.close(fd);
        try std.testing.expectEqual(0, left);
        try std.testing.expectEqual(@as(usize, if (has_room) most else 0), taken);
        try std.testing.expect(connections.accepting); // more connections wait for the next round
    }
}
