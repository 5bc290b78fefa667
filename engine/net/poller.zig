//! poller: waits for many sockets at once, with epoll on Linux, and with poll() elsewhere and where
//! a test asks for it. epoll reports readiness once per change, poll() as long as it lasts: an
//! engine reads until nothing is left, so both look the same to it. A Waker ends the wait: it is a
//! descriptor that another thread makes readable. A Waker also tells a program with an event loop
//! of its own that a work is finished (work.zig). The engines wait; socket.zig moves the bytes.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const clock = @import("clock.zig");
const descriptor = @import("descriptor.zig");
const socket = @import("socket.zig");
const c = std.c;
const linux = std.os.linux;
const assert = std.debug.assert;
const Allocator = std.mem.Allocator;
const Fd = socket.Fd;

const on_linux = builtin.os.tag == .linux;

pub const Backend = enum {
    epoll,
    poll,

    pub const default: Backend = if (on_linux) .epoll else .poll;
};

pub const Event = struct {
    /// The `context` that `add` was given for the socket.
    context: usize,
    readable: bool,
    writable: bool,
    /// The other side has ended or the connection is broken: reading tells which.
    hangup: bool,
};

pub const Error = error{ OutOfMemory, SystemLimit };

/// `add`, `remove`, `want_write` and `prepare` are called under the lock of the engine; `wait`
/// without the lock, by one thread; `wake` by any thread.
pub const Poller = struct {
    backend: Backend,
    waker: Waker,
    epoll_fd: Fd = -1,
    poll: PollTable,
    found: *Found,

    /// Room for the events of a wait, on the heap: a poller is passed on by value, and stacks may
    /// be small.
    const Found = struct {
        events: [events_max]Event,
        /// The events as epoll writes them.
        raw: if (on_linux) [events_max]linux.epoll_event else void,
    };

    /// The most events that a wait returns. A wait sees all that is ready at once, because
    /// strangers that have said something must be heard before others take their places
    /// (coordinator_engine.zig: round).
    const events_max = 2048;
    /// The context of the waker's own descriptor.
    const waker_context = 0;

    pub fn init(gpa: Allocator, backend: Backend) Error!Poller {
        var poller: Poller = .{
            .backend = backend,
            .waker = try Waker.init(),
            .poll = .{ .gpa = gpa },
            .found = undefined,
        };
        poller.found = gpa.create(Found) catch |err| {
            poller.waker.deinit();
            return err;
        };
        errdefer poller.deinit();
        if (on_linux and backend == .epoll) {
            descriptor.hold_forks();
            defer descriptor.allow_forks();
            const result = linux.epoll_create1(linux.EPOLL.CLOEXEC);
            if (linux.errno(result) != .SUCCESS) return error.SystemLimit;
            poller.epoll_fd = descriptor.adopt(@intCast(result));
        }
        // The waker is not watched for writing: after a drain it takes bytes again, which would end
        // a wait.
        try poller.add_for(poller.waker.read_fd, waker_context, .read);
        return poller;
    }

    pub fn deinit(poller: *Poller) void {
        poller.waker.deinit();
        if (poller.epoll_fd >= 0) socket.close(poller.epoll_fd);
        poller.poll.gpa.destroy(poller.found);
        poller.poll.deinit();
    }

    /// Watches a socket. `context` comes back in its events; it must not be 0, the waker's context.
    pub fn add(poller: *Poller, fd: Fd, context: usize) Error!void {
        return poller.add_for(fd, context, .both);
    }

    const Directions = enum { read, both };

    fn add_for(poller: *Poller, fd: Fd, context: usize, directions: Directions) Error!void {
        const writes = directions == .both;
        if (!on_linux or poller.backend == .poll) return poller.poll.add(fd, context, writes);
        const out: u32 = if (writes) linux.EPOLL.OUT else 0;
        const flags = linux.EPOLL.IN | out | linux.EPOLL.RDHUP | linux.EPOLL.ET;
        var event: linux.epoll_event = .{ .events = flags, .data = .{ .ptr = context } };
        const result = linux.epoll_ctl(poller.epoll_fd, linux.EPOLL.CTL_ADD, fd, &event);
        if (linux.errno(result) != .SUCCESS) return error.SystemLimit;
    }

    /// Stops watching a socket, before its descriptor is closed: a copy in a forked child would
    /// keep the socket in the set.
    pub fn remove(poller: *Poller, fd: Fd) void {
        if (!on_linux or poller.backend == .poll) return poller.poll.remove(fd);
        _ = linux.epoll_ctl(poller.epoll_fd, linux.EPOLL.CTL_DEL, fd, null);
    }

    /// Sets whether poll() reports when the socket takes bytes again. epoll reports it anyway, once
    /// per change.
    pub fn want_write(poller: *Poller, fd: Fd, wanted: bool) void {
        if (!on_linux or poller.backend == .poll) poller.poll.want_write(fd, wanted);
    }

    /// Sets whether poll() reports when the socket has bytes to read. epoll reports it anyway, once
    /// per change.
    pub fn want_read(poller: *Poller, fd: Fd, wanted: bool) void {
        if (!on_linux or poller.backend == .poll) poller.poll.want_read(fd, wanted);
    }

    /// Fixes the sockets that the next wait watches. A change after `prepare` is seen by the wait
    /// after the next. A thread that changes something in between calls `wake`.
    pub fn prepare(poller: *Poller) Error!void {
        if (!on_linux or poller.backend == .poll) try poller.poll.prepare();
    }

    /// Blocks until something happens or `deadline` comes; the deadline 0 only looks. The slice is
    /// valid until the next wait.
    pub fn wait(poller: *Poller, deadline: base.Instant) []const Event {
        const timeout_ms = milliseconds_until(deadline);
        const count = if (on_linux and poller.backend == .epoll)
            poller.wait_epoll(timeout_ms)
        else
            poller.poll.wait(timeout_ms, &poller.found.events);
        // The waker's own event is left out: it has done its work by ending the wait.
        var kept: usize = 0;
        for (poller.found.events[0..count]) |event| {
            if (event.context == waker_context) {
                poller.waker.drain();
                continue;
            }
            poller.found.events[kept] = event;
            kept += 1;
        }
        return poller.found.events[0..kept];
    }

    /// Sleeps for `ns` nanoseconds, unless `wake` ends the sleep. The next wait finds at once all
    /// that arrived.
    pub fn gather(poller: *const Poller, ns: u64) void {
        if (!on_linux) return; // poll() counts in milliseconds, which is too long
        assert(ns < std.time.ns_per_s);
        const waker = poller.waker.read_fd;
        var entries = [_]linux.pollfd{.{ .fd = waker, .events = linux.POLL.IN, .revents = 0 }};
        var timeout: linux.timespec = .{ .sec = 0, .nsec = @intCast(ns) };
        _ = linux.ppoll(&entries, entries.len, &timeout, null); // a signal ends the sleep sooner
    }

    pub fn wake(poller: *Poller) void {
        poller.waker.wake();
    }

    fn wait_epoll(poller: *Poller, timeout_ms: c_int) usize {
        const raw = &poller.found.raw;
        const result = linux.epoll_wait(poller.epoll_fd, raw, raw.len, timeout_ms);
        if (linux.errno(result) != .SUCCESS) return 0; // EINTR: an early return does no harm
        for (raw[0..result], poller.found.events[0..result]) |*from, *to| {
            const flags = from.events;
            const hangup = flags & (linux.EPOLL.RDHUP | linux.EPOLL.HUP | linux.EPOLL.ERR) != 0;
            to.* = .{
                .context = from.data.ptr,
                .readable = hangup or flags & linux.EPOLL.IN != 0,
                .writable = hangup or flags & linux.EPOLL.OUT != 0,
                .hangup = hangup,
            };
        }
        return result;
    }
};

/// The time until a deadline, rounded up: a wait that ends just before the deadline would run the
/// loop for nothing.
fn milliseconds_until(deadline: base.Instant) c_int {
    if (deadline == 0) return 0;
    const left_ns = @min(deadline -| clock.now(), std.time.ns_per_hour);
    return @intCast(std.math.divCeil(u64, left_ns, std.time.ns_per_ms) catch unreachable);
}

/// The sockets of the poll() backend.
const PollTable = struct {
    gpa: Allocator,
    /// The sockets to be watched; the engine's lock guards the list.
    entries: std.ArrayList(Entry) = .empty,
    /// The sockets being watched; used by the waiting thread.
    waiting: std.ArrayList(c.pollfd) = .empty,
    contexts: std.ArrayList(usize) = .empty,
    /// The index at which the last scan for events ended. The next scan goes on from there, so that
    /// the first sockets do not starve the last.
    next: usize = 0,

    const Entry = struct { fd: Fd, context: usize, read: bool = true, write: bool };

    fn deinit(table: *PollTable) void {
        table.entries.deinit(table.gpa);
        table.waiting.deinit(table.gpa);
        table.contexts.deinit(table.gpa);
    }

    /// Adds a socket. A new connection is watched for writing too: that is how it tells that it is
    /// open.
    fn add(table: *PollTable, fd: Fd, context: usize, writes: bool) Allocator.Error!void {
        try table.entries.append(table.gpa, .{ .fd = fd, .context = context, .write = writes });
    }

    fn remove(table: *PollTable, fd: Fd) void {
        _ = table.entries.swapRemove(table.find(fd));
    }

    fn want_write(table: *PollTable, fd: Fd, wanted: bool) void {
        table.entries.items[table.find(fd)].write = wanted;
    }

    fn want_read(table: *PollTable, fd: Fd, wanted: bool) void {
        table.entries.items[table.find(fd)].read = wanted;
    }

    fn find(table: *const PollTable, fd: Fd) usize {
        for (table.entries.items, 0..) |entry, index| if (entry.fd == fd) return index;
        unreachable; // a socket is added before anything else is done with it
    }

    fn prepare(table: *PollTable) Allocator.Error!void {
        const count = table.entries.items.len;
        try table.waiting.ensureTotalCapacity(table.gpa, count);
        try table.contexts.ensureTotalCapacity(table.gpa, count);
        table.waiting.items.len = count;
        table.contexts.items.len = count;
        for (table.entries.items, 0..) |entry, index| {
            const write: i16 = if (entry.write) c.POLL.OUT else 0;
            const read: i16 = if (entry.read) c.POLL.IN else 0;
            const events = read | write;
            // poll() reports the end of a connection whether or not anything is asked, and as long
            // as it lasts: a socket of which nothing is wanted is left out.
            const fd = if (events == 0) -1 else entry.fd;
            table.waiting.items[index] = .{ .fd = fd, .events = events, .revents = 0 };
            table.contexts.items[index] = entry.context;
        }
    }

    fn wait(table: *PollTable, timeout_ms: c_int, events: []Event) usize {
        const waiting = table.waiting.items;
        if (c.poll(waiting.ptr, @intCast(waiting.len), timeout_ms) <= 0) return 0;
        var count: usize = 0;
        for (0..waiting.len) |_| {
            if (count == events.len) break;
            table.next = (table.next + 1) % waiting.len;
            const flags = waiting[table.next].revents;
            if (flags == 0) continue;
            // A socket that another thread has closed since `prepare` is reported as NVAL; its
            // connection ignores the event.
            const hangup = flags & (c.POLL.HUP | c.POLL.ERR | c.POLL.NVAL) != 0;
            events[count] = .{
                .context = table.contexts.items[table.next],
                .readable = hangup or flags & c.POLL.IN != 0,
                .writable = hangup or flags & c.POLL.OUT != 0,
                .hangup = hangup,
            };
            count += 1;
        }
        return count;
    }
};

/// A descriptor that one thread makes readable and another waits for: an eventfd on Linux, a pipe
/// elsewhere.
pub const Waker = struct {
    read_fd: Fd,
    write_fd: Fd,

    pub fn init() error{SystemLimit}!Waker {
        descriptor.hold_forks();
        defer descriptor.allow_forks();
        if (on_linux) {
            const fd = c.eventfd(0, linux.EFD.NONBLOCK | linux.EFD.CLOEXEC);
            if (fd < 0) return error.SystemLimit;
            return .{ .read_fd = descriptor.adopt(fd), .write_fd = fd };
        }
        return pipe();
    }

    /// Makes a waker from a pipe, under `hold_forks`.
    fn pipe() error{SystemLimit}!Waker {
        var fds: [2]Fd = undefined;
        if (c.pipe(&fds) != 0) return error.SystemLimit;
        const nonblock: c_int = @bitCast(c.O{ .NONBLOCK = true });
        for (fds) |fd| {
            _ = c.fcntl(fd, c.F.SETFL, nonblock);
            _ = c.fcntl(fd, c.F.SETFD, @as(c_int, c.FD_CLOEXEC));
            _ = descriptor.adopt(fd);
        }
        return .{ .read_fd = fds[0], .write_fd = fds[1] };
    }

    pub fn deinit(waker: *Waker) void {
        socket.close(waker.read_fd);
        if (waker.write_fd != waker.read_fd) socket.close(waker.write_fd);
    }

    /// Makes the descriptor readable until `drain`.
    pub fn wake(waker: *Waker) void {
        // If the pipe or the counter is full, the descriptor is readable already.
        const one: u64 = 1;
        _ = c.write(waker.write_fd, std.mem.asBytes(&one), @sizeOf(u64));
    }

    pub fn drain(waker: *Waker) void {
        var bytes: [256]u8 = undefined;
        while (c.read(waker.read_fd, &bytes, bytes.len) == bytes.len) {}
    }
};

// ---- tests

fn test_backend(backend: Backend) !void {
    var poller = try Poller.init(std.testing.allocator, backend);
    defer poller.deinit();
    var fds: [2]Fd = undefined;
    try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, c.SOCK.STREAM, 0, &fds));
    defer for (fds) |fd| socket.close(fd);
    try poller.add(fds[0], 7);

    // The socket is writable at once, and nothing else.
    try poller.prepare();
    var events = poller.wait(base.never);
    try std.testing.expectEqual(1, events.len);
    try std.testing.expect(events[0].writable and !events[0].readable and !events[0].hangup);
    poller.want_write(fds[0], false);

    // Events do not end `gather`; a wake ends it, and the next wait as well.
    if (on_linux) {
        const until = clock.after(3 * std.time.ns_per_ms);
        poller.gather(3 * std.time.ns_per_ms);
        try std.testing.expect(clock.now() >= until);
        poller.wake();
        const far = clock.after(std.time.ns_per_s / 2);
        poller.gather(std.time.ns_per_s - 1);
        try std.testing.expect(clock.now() < far);
        try poller.prepare();
        try std.testing.expectEqual(0, poller.wait(base.never).len);
    }

    // Nothing happens: the wait ends at its deadline.
    try poller.prepare();
    const deadline = clock.after(3 * std.time.ns_per_ms);
    try std.testing.expectEqual(0, poller.wait(deadline).len);
    try std.testing.expect(clock.now() >= deadline);

    // A wake ends one wait.
    poller.wake();
    try poller.prepare();
    try std.testing.expectEqual(0, poller.wait(base.never).len);
    try poller.prepare();
    try std.testing.expectEqual(0, poller.wait(0).len);

    _ = c.write(fds[1], "x", 1);
    try poller.prepare();
    events = poller.wait(base.never);
    try std.testing.expect(events.len == 1 and events[0].context == 7 and events[0].readable);
    _ = c.shutdown(fds[1], c.SHUT.RDWR);
    try poller.prepare();
    events = poller.wait(base.never);
    try std.testing.expect(events.len == 1 and events[0].hangup);
    poller.remove(fds[0]);
    try poller.prepare();
    try std.testing.expectEqual(0, poller.wait(0).len);
}

test "epoll reports readiness, hangup, wakes and deadlines" {
    if (on_linux) try test_backend(.epoll);
}

test "poll reports the same" {
    try test_backend(.poll);
}

test "what is not to be read is not reported by poll, until it is" {
    var poller = try Poller.init(std.testing.allocator, .poll);
    defer poller.deinit();
    var fds: [2]Fd = undefined;
    try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, c.SOCK.STREAM, 0, &fds));
    defer for (fds) |fd| socket.close(fd);
    try poller.add(fds[0], 7);
    poller.want_write(fds[0], false);
    _ = c.write(fds[1], "x", 1);
    for ([_]bool{ false, true }) |wanted| {
        poller.want_read(fds[0], wanted);
        try poller.prepare();
        try std.testing.expectEqual(@intFromBool(wanted), poller.wait(0).len);
    }
    // The end of a connection that cannot be read yet does not wake the loop again and again.
    _ = c.shutdown(fds[0], c.SHUT.RDWR);
    for ([_]bool{ false, true }) |wanted| {
        poller.want_read(fds[0], wanted);
        try poller.prepare();
        try std.testing.expectEqual(@intFromBool(wanted), poller.wait(0).len);
    }
}

test "where more is ready than there is room for, poll() goes on behind what it told last" {
    var table: PollTable = .{ .gpa = std.testing.allocator };
    defer table.deinit();
    var fds: [2]Fd = undefined;
    try std.testing.expectEqual(0, c.socketpair(c.AF.UNIX, c.SOCK.STREAM, 0, &fds));
    defer for (fds) |fd| socket.close(fd);
    for (fds, 1..) |fd, context| try table.add(fd, context, true);
    try table.prepare();
    var contexts: usize = 0;
    for (0..2) |_| {
        var events: [1]Event = undefined;
        try std.testing.expectEqual(1, table.wait(0, &events));
        contexts += events[0].context;
    }
    try std.testing.expectEqual(1 + 2, contexts);
}

fn test_waker(made: Waker) !void {
    var waker = made;
    defer waker.deinit();
    for ([_]Fd{ waker.read_fd, waker.write_fd }) |fd| {
        try std.testing.expectEqual(c.FD_CLOEXEC, c.fcntl(fd, c.F.GETFD));
    }
    waker.drain(); // an empty waker does not block
    for (0..2) |_| {
        try std.testing.expect(!socket.wait_for(waker.read_fd, .read, 0));
        waker.wake();
        waker.wake();
        // The waker stays readable until it is drained.
        for (0..2) |_| try std.testing.expect(socket.wait_for(waker.read_fd, .read, 0));
        waker.drain();
    }
}

test "a waker is readable from the wake to the drain" {
    try test_waker(try .init());
}

test "a pipe wakes like an eventfd" {
    // Other systems use the pipe; the test runs it on this one too.
    descriptor.hold_forks();
    const made = Waker.pipe();
    descriptor.allow_forks();
    try test_waker(try made);
}
