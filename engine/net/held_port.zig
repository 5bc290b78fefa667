//! HeldPort: for tests: a port of the loopback interface that is taken and refuses connections
//! until it listens. A port that was found free and closed again may be somebody else's by the time
//! it is dialed.

const std = @import("std");
const address = @import("address.zig");
const socket = @import("socket.zig");
const c = std.c;

pub const HeldPort = struct {
    fd: socket.Fd,
    at: address.Address,

    pub fn init() !HeldPort {
        const fd = c.socket(c.AF.INET, c.SOCK.STREAM, 0);
        if (fd < 0) return error.SystemLimit;
        errdefer _ = c.close(fd);
        const any: address.Address = .v4_from(.{ 127, 0, 0, 1 }, 0);
        if (c.bind(fd, &any.any, any.length()) != 0) return error.AddressNotAvailable;
        return .{ .fd = fd, .at = socket.local_address(fd) orelse return error.SystemLimit };
    }

    pub fn deinit(held: HeldPort) void {
        _ = c.close(held.fd);
    }

    pub fn endpoint(held: *const HeldPort) address.Endpoint {
        return .{ .host = "127.0.0.1", .port = held.at.port() };
    }

    /// From now on connections come in.
    pub fn listen(held: *const HeldPort) !void {
        if (c.listen(held.fd, 1) != 0) return error.SystemLimit;
    }
};
