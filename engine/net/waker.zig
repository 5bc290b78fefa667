//! waker: a descriptor that one thread makes readable and another waits for: an eventfd on Linux,
//! a pipe elsewhere. It ends a wait of poller.zig, and tells a program with an event loop of its
//! own that a work is finished (work.zig).

const std = @import("std");
const builtin = @import("builtin");
const descriptor = @import("descriptor.zig");
const socket = @import("socket.zig");
const c = std.c;
const linux = std.os.linux;
const Fd = socket.Fd;

const on_linux = builtin.os.tag == .linux;

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

    /// Under `hold_forks`.
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

    /// Readable from now on, until it is drained.
    pub fn wake(waker: *Waker) void {
        // A full pipe or counter wakes as well.
        const one: u64 = 1;
        _ = c.write(waker.write_fd, std.mem.asBytes(&one), @sizeOf(u64));
    }

    pub fn drain(waker: *Waker) void {
        var bytes: [256]u8 = undefined;
        while (c.read(waker.read_fd, &bytes, bytes.len) == bytes.len) {}
    }
};

fn test_waker(made: Waker) !void {
    var waker = made;
    defer waker.deinit();
    for ([_]Fd{ waker.read_fd, waker.write_fd }) |fd| {
        try std.testing.expectEqual(c.FD_CLOEXEC, c.fcntl(fd, c.F.GETFD));
    }
    waker.drain(); // of nothing, and does not block
    for (0..2) |_| {
        try std.testing.expect(!socket.wait_for(waker.read_fd, .read, 0));
        waker.wake();
        waker.wake();
        // As long as nobody drains it.
        for (0..2) |_| try std.testing.expect(socket.wait_for(waker.read_fd, .read, 0));
        waker.drain();
    }
}

test "a waker is readable from the wake to the drain" {
    try test_waker(try .init());
}

test "a pipe wakes like an eventfd" {
    // The branch of other systems, run on this one too.
    descriptor.hold_forks();
    const made = Waker.pipe();
    descriptor.allow_forks();
    try test_waker(try made);
}
