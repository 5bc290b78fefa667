//! Tests of forks.zig with real sockets and real children.

const std = @import("std");
const address = @import("address.zig");
const socket = @import("socket.zig");
const c = std.c;
const Fd = socket.Fd;

test "a forked child lets go of every descriptor of ours" {
    const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const listener = try socket.listen(&any_port);
    defer socket.close(listener);
    const child = c.fork();
    if (child == 0) {
        const still_open = c.fcntl(listener, c.F.GETFD) != -1;
        c._exit(if (still_open) 1 else 0);
    }
    var status: c_int = -1;
    try std.testing.expectEqual(child, c.waitpid(child, &status, 0));
    try std.testing.expectEqual(0, status);
    try std.testing.expect(c.fcntl(listener, c.F.GETFD) != -1);
}

test "a child that is forked while sockets come and go inherits none of them" {
    // Goal: no moment at which a descriptor is open and not noted. Method: threads connect, accept
    // and close as fast as they can; children look which descriptors they have.
    const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const listener = try socket.listen(&any_port);
    defer socket.close(listener);
    const Busy = struct {
        listener: Fd,
        over: std.atomic.Value(bool) = .init(false),

        fn run(busy: *@This()) void {
            const at = socket.local_address(busy.listener).?;
            while (!busy.over.load(.acquire)) {
                const client = socket.connect_start(&at) catch continue;
                if (socket.wait_for(busy.listener, .read, 100)) {
                    if (socket.accept(busy.listener)) |server| socket.close(server) else |_| {}
                }
                socket.close(client);
            }
        }
    };
    const looked_at = 256;
    var before: [looked_at]bool = undefined;
    for (&before, 0..) |*open_before, fd| {
        open_before.* = c.fcntl(@intCast(fd), c.F.GETFD) != -1 and fd != listener;
    }
    var busy: Busy = .{ .listener = listener };
    var threads: [2]std.Thread = undefined;
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Busy.run, .{&busy});
    defer for (threads) |thread| thread.join();
    defer busy.over.store(true, .release);
    for (0..300) |_| {
        const child = c.fork();
        if (child == 0) {
            for (before, 0..) |open_before, fd| {
                const is_open = c.fcntl(@intCast(fd), c.F.GETFD) != -1;
                if (is_open and !open_before) c._exit(1);
            }
            c._exit(0);
        }
        var status: c_int = -1;
        try std.testing.expectEqual(child, c.waitpid(child, &status, 0));
        try std.testing.expectEqual(0, status);
    }
}
