//! Ports: the range that a peer takes its listening port from, so that a firewall can let it in:
//! "29400-29500", or one port alone. It knows no sockets but to listen on them (socket.zig).

const std = @import("std");
const address = @import("address.zig");
const socket = @import("socket.zig");
const HeldPort = @import("fixture.zig").HeldPort;
const AddressList = address.AddressList;

pub const Ports = struct {
    first: u16,
    last: u16,

    pub const ParseError = error{BadPorts};

    pub fn parse(text: []const u8) ParseError!Ports {
        const dash = std.mem.indexOfScalar(u8, text, '-');
        const first = try number(text[0 .. dash orelse text.len]);
        const last = if (dash) |at| try number(text[at + 1 ..]) else first;
        if (last < first) return error.BadPorts;
        return .{ .first = first, .last = last };
    }

    fn number(text: []const u8) ParseError!u16 {
        // parseInt alone would take signs and underscores.
        for (text) |byte| if (!std.ascii.isDigit(byte)) return error.BadPorts;
        const port = std.fmt.parseInt(u16, text, 10) catch return error.BadPorts;
        return if (port == 0) error.BadPorts else port;
    }

    pub const ListenError = socket.ListenError || error{NoPortFree};

    /// Listens on the first port of the range that is free there. Ports in `list` are not used.
    pub fn listen(ports: Ports, list: *const AddressList) ListenError!socket.Fd {
        var to = list.*;
        var port: u32 = ports.first;
        while (port <= ports.last) : (port += 1) {
            // The port is in the same place in all kinds of addresses.
            for (to.items[0..to.count]) |*at| at.v4.port = std.mem.nativeToBig(u16, @intCast(port));
            return socket.listen(&to) catch |err| switch (err) {
                error.AddressInUse => continue,
                else => return err,
            };
        }
        return error.NoPortFree;
    }
};

test "a range of ports is two numbers in order, or one" {
    const expectEqual = std.testing.expectEqual;
    try expectEqual(Ports{ .first = 29400, .last = 29500 }, try Ports.parse("29400-29500"));
    try expectEqual(Ports{ .first = 7, .last = 7 }, try Ports.parse("7"));
    try expectEqual(Ports{ .first = 65535, .last = 65535 }, try Ports.parse("65535-65535"));
    for ([_][]const u8{
        "", "-", "0", "0-5", "5-", "-5", "6-5", "65536", "1-65536", "1-2-3", "+5", "1_0", " 5", "a",
    }) |text| try std.testing.expectError(error.BadPorts, Ports.parse(text));
}

test "a taken port of the range is passed over, and a range without a free one is an error" {
    const held = try HeldPort.init();
    defer held.deinit();
    try held.listen();
    const taken = held.at.port();
    const list = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const alone: Ports = .{ .first = taken, .last = taken };
    try std.testing.expectError(error.NoPortFree, alone.listen(&list));
    const wider: Ports = .{ .first = taken, .last = taken +| 64 };
    const fd = try wider.listen(&list);
    defer socket.close(fd);
    const got = socket.local_address(fd).?.port();
    try std.testing.expect(got > taken and got <= wider.last);
}
