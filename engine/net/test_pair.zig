//! Pair: for tests, a connection over the loopback interface, with both of its ends and the
//! listener that it came through. Used by tcp.zig and congestion.zig.

const std = @import("std");
const address = @import("address.zig");
const socket = @import("socket.zig");
const Fd = socket.Fd;

pub const Pair = struct {
    listener: Fd,
    client: Fd,
    server: Fd,

    pub fn init() !Pair {
        const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
        const listener = try socket.listen(&any_port);
        errdefer socket.close(listener);
        const client = try socket.connect_start(&socket.local_address(listener).?);
        errdefer socket.close(client);
        try std.testing.expect(socket.wait_for(client, .write, 5000));
        try socket.connect_finish(client);
        try std.testing.expect(socket.wait_for(listener, .read, 5000));
        return .{ .listener = listener, .client = client, .server = try socket.accept(listener) };
    }

    pub fn deinit(pair: *const Pair) void {
        for ([_]Fd{ pair.server, pair.client, pair.listener }) |fd| socket.close(fd);
    }
};
