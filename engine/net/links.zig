//! links: the sockets of one engine: which of them can be read or written, which wait for their
//! turn, and which are closed but may still be named by an event. It moves no bytes of its own
//! accord and knows no protocol; the engines do (peer_engine.zig, coordinator_engine.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const address = @import("address.zig");
const descriptors = @import("descriptors.zig");
const poller = @import("poller.zig");
const socket = @import("socket.zig");
const limits = base.limits;
const assert = std.debug.assert;
const Allocator = std.mem.Allocator;
const Fd = socket.Fd;

/// One TCP connection.
pub const Link = struct {
    fd: Fd,
    /// The engine's to use.
    owner: usize,
    /// There may be bytes to read, or room to write: true until the socket says otherwise.
    readable: bool = false,
    writable: bool = false,
    /// The end is in sight: only reading to it tells how the connection ended.
    hangup: bool = false,
    closed: bool = false,
    queued: bool = false,
    index: usize,
    node: std.DoublyLinkedList.Node = .{},

    /// Reads into the slices; error.WouldBlock once nothing is left. 0: the end.
    pub inline fn receive(link: *Link, slices: []const []u8) socket.TransferError!usize {
        const count = socket.receive(link.fd, slices) catch |err| {
            link.readable = false;
            return err;
        };
        var room: usize = 0;
        for (slices) |slice| room +%= slice.len; // they lie apart, so no sum is too large
        // A short read has emptied the socket, unless the end comes next.
        if (count < room and !link.hangup) link.readable = false;
        return count;
    }

    /// Sends of the slices what fits; error.WouldBlock if nothing does.
    pub fn send(link: *Link, links: *Links, slices: []const []const u8) socket.TransferError!usize {
        var wanted: usize = 0;
        for (slices) |slice| wanted +%= slice.len; // as above
        const count = socket.send(link.fd, slices) catch |err| {
            if (err == error.WouldBlock) links.blocked(link);
            return err;
        };
        if (count < wanted) links.blocked(link);
        return count;
    }

    /// Sends what a control stream holds, as far as it goes.
    pub inline fn send_stream(link: *Link, links: *Links, stream: *wire.Stream) error{Broken}!void {
        while (link.writable and stream.send_slice().len > 0) {
            const count = link.send(links, &.{stream.send_slice()}) catch |err| switch (err) {
                error.WouldBlock => return,
                error.Broken => return error.Broken,
            };
            stream.sent(count);
        }
    }

    /// One read into a control stream, and its bytes. 0: nothing was there.
    pub fn receive_stream(link: *Link, stream: *wire.Stream) error{Ended}!usize {
        // Without memory for its bytes the connection cannot go on.
        const room = stream.recv_slice() catch return error.Ended;
        const count = link.receive(&.{room}) catch |err| switch (err) {
            error.WouldBlock => return 0,
            error.Broken => return error.Ended,
        };
        if (count == 0) return error.Ended;
        stream.received(count);
        return count;
    }
};

pub const Links = struct {
    gpa: Allocator,
    poller: poller.Poller,
    all: std.ArrayList(*Link) = .empty,
    ready: std.DoublyLinkedList = .{},
    ready_count: usize = 0,
    closed: std.DoublyLinkedList = .{},
    listener: Fd = -1,
    accepting: bool = false,
    spare: socket.Spare = .{},

    const listener_context = 1;
    comptime {
        // No pointer is taken for the waker or the listener.
        assert(@alignOf(Link) > listener_context);
    }

    pub fn init(gpa: Allocator, backend: poller.Backend) poller.Error!Links {
        return .{ .gpa = gpa, .poller = try .init(gpa, backend) };
    }

    /// Closes what is left.
    pub fn deinit(links: *Links) void {
        while (links.all.getLastOrNull()) |link| links.close(link);
        links.bury();
        links.all.deinit(links.gpa);
        links.stop_listening();
        links.poller.deinit();
    }

    /// Takes over the listener, also when it fails.
    pub fn listen(links: *Links, listener: Fd) poller.Error!void {
        errdefer socket.close(listener);
        try links.poller.add(listener, listener_context);
        links.listener = listener;
        links.spare = .init();
        links.accepting = true;
    }

    pub fn stop_listening(links: *Links) void {
        if (links.listener < 0) return;
        links.poller.remove(links.listener);
        socket.close(links.listener);
        links.listener = -1;
        links.accepting = false;
        links.spare.deinit();
    }

    /// A round takes in no more, so that a flood of connections holds up nobody who is there, and
    /// each of them is heard once before those of the next round can take its place.
    pub const accepts_per_round = limits.strangers_max;

    /// The next connection that came in; null if there is none now, or no more are `left` to this
    /// round. Those that are turned away for want of descriptors count, too.
    pub fn accept(links: *Links, left: *usize) ?Fd {
        while (links.accepting and left.* > 0) {
            left.* -= 1;
            const fd = socket.accept(links.listener) catch |err| switch (err) {
                error.WouldBlock => {
                    links.accepting = false;
                    return null;
                },
                error.SystemLimit => {
                    // Out of descriptors: better a connection that closes than one that hangs.
                    if (!links.spare.turn_away(links.listener)) links.accepting = false;
                    continue;
                },
            };
            if (descriptors.has_room()) return fd;
            socket.close(fd);
        }
        return null;
    }

    /// Takes over the socket, also when it fails.
    pub fn add(links: *Links, fd: Fd, owner: usize) poller.Error!*Link {
        errdefer socket.close(fd);
        if (!descriptors.take()) return error.SystemLimit;
        errdefer descriptors.give_back();
        try links.all.ensureUnusedCapacity(links.gpa, 1);
        const link = try links.gpa.create(Link);
        errdefer links.gpa.destroy(link);
        link.* = .{ .fd = fd, .owner = owner, .index = links.all.items.len };
        try links.poller.add(fd, @intFromPtr(link));
        links.all.appendAssumeCapacity(link);
        return link;
    }

    /// The link itself lives on until the next `bury`.
    pub fn close(links: *Links, link: *Link) void {
        assert(!link.closed);
        if (link.queued) links.unqueue(link);
        links.poller.remove(link.fd);
        socket.close(link.fd);
        descriptors.give_back();
        link.closed = true;
        links.all.items[links.all.items.len - 1].index = link.index;
        _ = links.all.swapRemove(link.index);
        links.closed.append(&link.node);
    }

    /// Forgets closed links. Called where no event is outstanding: just before the engine waits.
    pub fn bury(links: *Links) void {
        while (links.closed.popFirst()) |node| {
            links.gpa.destroy(@as(*Link, @fieldParentPtr("node", node)));
        }
    }

    /// The link gets a turn.
    pub fn queue(links: *Links, link: *Link) void {
        if (link.queued or link.closed) return;
        link.queued = true;
        links.ready.append(&link.node);
        links.ready_count += 1;
    }

    pub fn next_ready(links: *Links) ?*Link {
        const node = links.ready.first orelse return null;
        const link: *Link = @fieldParentPtr("node", node);
        links.unqueue(link);
        return link;
    }

    fn unqueue(links: *Links, link: *Link) void {
        links.ready.remove(&link.node);
        links.ready_count -= 1;
        link.queued = false;
    }

    fn blocked(links: *Links, link: *Link) void {
        link.writable = false;
        links.poller.want_write(link.fd, true);
    }

    /// Notes what a wait has found, and queues whom it concerns.
    pub fn note(links: *Links, events: []const poller.Event) void {
        for (events) |event| {
            if (event.context == listener_context) {
                links.accepting = true;
                continue;
            }
            const link: *Link = @ptrFromInt(event.context);
            if (link.closed) continue; // since the wait began
            link.readable = link.readable or event.readable;
            link.hangup = link.hangup or event.hangup;
            if (event.writable and !link.writable) {
                link.writable = true;
                links.poller.want_write(link.fd, false);
            }
            links.queue(link);
        }
    }

    pub fn has_turns(links: *const Links) bool {
        return links.ready_count > 0 or links.accepting;
    }
};

test "a link that is closed while its event is on the way is left alone" {
    const c = std.c;
    for (std.enums.values(poller.Backend)) |backend| {
        if (backend == .epoll and poller.Backend.default != .epoll) continue;
        var links = try Links.init(std.testing.allocator, backend);
        defer links.deinit();
        var fds: [2]Fd = undefined;
        try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, c.SOCK.STREAM, 0, &fds));
        const a = try links.add(socket.adopt(fds[0]), 1);
        const b = try links.add(socket.adopt(fds[1]), 2);
        try links.poller.prepare();
        const events = links.poller.wait(base.never);
        try std.testing.expectEqual(2, events.len);
        links.close(a);
        links.note(events);
        try std.testing.expectEqual(b, links.next_ready().?);
        try std.testing.expectEqual(null, links.next_ready());
        // b's other end is gone: reading finds the end.
        links.bury();
        try links.poller.prepare();
        links.note(links.poller.wait(base.never));
        try std.testing.expect(b.hangup and b.readable);
        var byte: [1]u8 = undefined;
        try std.testing.expectEqual(0, try b.receive(&.{&byte}));
    }
}

test "a full socket blocks, and says when it takes bytes again" {
    const c = std.c;
    for (std.enums.values(poller.Backend)) |backend| {
        if (backend == .epoll and poller.Backend.default != .epoll) continue;
        var links = try Links.init(std.testing.allocator, backend);
        defer links.deinit();
        var fds: [2]Fd = undefined;
        const flags = c.SOCK.STREAM | c.SOCK.NONBLOCK;
        try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, flags, 0, &fds));
        const link = try links.add(socket.adopt(fds[0]), 1);
        defer _ = c.close(fds[1]);
        try links.poller.prepare();
        links.note(links.poller.wait(base.never));
        try std.testing.expect(link.writable);
        const bytes: [64 * 1024]u8 = @splat(7);
        var total: usize = 0;
        while (link.writable) total += link.send(&links, &.{&bytes}) catch 0;
        try links.poller.prepare();
        links.note(links.poller.wait(0));
        try std.testing.expect(!link.writable);
        var drain: [64 * 1024]u8 = undefined;
        while (total > 0) total -= try socket.receive(fds[1], &.{&drain});
        try links.poller.prepare();
        links.note(links.poller.wait(base.never));
        try std.testing.expect(link.writable);
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
        var links = try Links.init(std.testing.allocator, .default);
        defer links.deinit();
        const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
        try links.listen(try socket.listen(&any_port));
        const at = socket.local_address(links.listener).?;
        const most = Links.accepts_per_round;
        var fds: [most + 20]Fd = undefined;
        for (&fds) |*fd| fd.* = try socket.connect_start(&at);
        defer for (fds) |fd| socket.close(fd);
        var held: usize = 0; // by other engines
        defer for (0..held) |_| descriptors.give_back();
        if (!has_room) while (descriptors.take()) : (held += 1) {};
        var left: usize = most;
        var taken: usize = 0;
        while (links.accept(&left)) |fd| : (taken += 1) socket.close(fd);
        try std.testing.expectEqual(0, left);
        try std.testing.expectEqual(@as(usize, if (has_room) most else 0), taken);
        try std.testing.expect(links.accepting); // more wait, for the next round
    }
}
