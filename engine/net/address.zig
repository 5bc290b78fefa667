//! address: the socket addresses that "host:port" (base/endpoint.zig) stands for. Numeric addresses
//! are understood at once. The lookup of a name may block, so dial.zig has a thread do it.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const c = std.c;

pub const Endpoint = base.Endpoint;

/// One address that a socket can be bound or connected to.
pub const Address = extern union {
    any: c.sockaddr,
    v4: c.sockaddr.in,
    v6: c.sockaddr.in6,

    pub const text_bytes_max = 64;

    pub fn v4_from(octets: [4]u8, to_port: u16) Address {
        return .{ .v4 = .{
            .addr = @bitCast(octets),
            .port = std.mem.nativeToBig(u16, to_port),
        } };
    }

    pub fn v6_from(octets: [16]u8, to_port: u16) Address {
        return .{ .v6 = .{
            .addr = octets,
            .port = std.mem.nativeToBig(u16, to_port),
            .flowinfo = 0,
            .scope_id = 0,
        } };
    }

    pub fn family(a: *const Address) c_uint {
        return a.any.family;
    }

    pub fn length(a: *const Address) c.socklen_t {
        return if (a.family() == c.AF.INET6) @sizeOf(c.sockaddr.in6) else @sizeOf(c.sockaddr.in);
    }

    pub fn port(a: *const Address) u16 {
        // IPv4 and IPv6 addresses have the port in the same place.
        return std.mem.bigToNative(u16, a.v4.port);
    }

    /// The host as text: "1.2.3.4" or "::1". A v4 address that came in through a v6 socket is shown
    /// as v4.
    pub fn host(a: *const Address, text: *[text_bytes_max]u8) []const u8 {
        var plain = a.unmapped();
        var storage: [text_bytes_max:0]u8 = @splat(0);
        const flags: c.NI = .{ .NUMERICHOST = true };
        const result =
            c.getnameinfo(&plain.any, plain.length(), &storage, storage.len, null, 0, flags);
        const name = if (@intFromEnum(result) == 0) std.mem.sliceTo(&storage, 0) else "unknown";
        @memcpy(text[0..name.len], name);
        return text[0..name.len];
    }

    pub fn eql(a: *const Address, b: *const Address) bool {
        if (a.family() != b.family() or a.port() != b.port()) return false;
        if (a.family() == c.AF.INET) return a.v4.addr == b.v4.addr;
        return std.mem.eql(u8, &a.v6.addr, &b.v6.addr);
    }

    pub fn is_any(a: *const Address) bool {
        const plain = a.unmapped();
        if (plain.family() == c.AF.INET) return plain.v4.addr == 0;
        return std.mem.allEqual(u8, &plain.v6.addr, 0);
    }

    /// Whether two addresses have the same host, whatever their ports.
    pub fn same_host(a: *const Address, b: *const Address) bool {
        const one = a.unmapped();
        const other = b.unmapped();
        if (one.family() != other.family()) return false;
        if (one.family() == c.AF.INET) return one.v4.addr == other.v4.addr;
        return std.mem.eql(u8, &one.v6.addr, &other.v6.addr);
    }

    /// The host of the address, as a host that connections come from.
    pub fn source(a: *const Address) base.Source {
        if (a.family() != c.AF.INET) return a.v6.addr;
        return mapped_prefix ++ @as([4]u8, @bitCast(a.v4.addr));
    }

    const mapped_prefix = [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff };

    fn unmapped(a: *const Address) Address {
        if (a.family() != c.AF.INET6) return a.*;
        if (!std.mem.startsWith(u8, &a.v6.addr, &mapped_prefix)) return a.*;
        return v4_from(a.v6.addr[12..16].*, a.port());
    }
};

/// The addresses that a host stands for, in the order to try.
pub const AddressList = struct {
    items: [addresses_max]Address = undefined,
    count: usize = 0,

    const addresses_max = 8;

    pub fn slice(list: *const AddressList) []const Address {
        return list.items[0..list.count];
    }
};

/// The addresses of a numeric host; null if `host` is a name.
pub fn numeric(endpoint: Endpoint) ?AddressList {
    return look_up(endpoint, .{ .numeric_only = true }) catch null;
}

/// The addresses to listen on: the host "" is every interface. The lookup of a name may block.
pub fn to_bind(endpoint: Endpoint) LookUpError!AddressList {
    if (endpoint.host.len > 0) return look_up(endpoint, .{ .passive = true });
    return every_interface(endpoint.port);
}

pub fn every_interface(port: u16) AddressList {
    var list: AddressList = .{ .count = 2 };
    list.items[0] = .v6_from(@splat(0), port); // takes IPv4 as well, if the system can
    list.items[1] = .v4_from(@splat(0), port);
    return list;
}

pub const LookUpError = error{ NameNotFound, NameLookupFailed, BadAddress };

const LookUpOptions = struct { numeric_only: bool = false, passive: bool = false };

/// Returns the addresses of a host. The lookup of a name blocks for as long as the system's
/// resolver likes.
pub fn look_up(endpoint: Endpoint, options: LookUpOptions) LookUpError!AddressList {
    var host: [base.limits.address_bytes_max + 1:0]u8 = undefined;
    if (endpoint.host.len == 0 or endpoint.host.len > base.limits.address_bytes_max)
        return error.BadAddress;
    @memcpy(host[0..endpoint.host.len], endpoint.host);
    host[endpoint.host.len] = 0;
    var hints = std.mem.zeroes(c.addrinfo);
    hints.socktype = c.SOCK.STREAM;
    hints.flags = .{ .NUMERICHOST = options.numeric_only, .PASSIVE = options.passive };
    var found: ?*c.addrinfo = null;
    const result = c.getaddrinfo(@ptrCast(&host), null, &hints, &found);
    if (@intFromEnum(result) != 0) return switch (result) {
        .NONAME, .NODATA => error.NameNotFound,
        else => error.NameLookupFailed,
    };
    defer if (found) |first| c.freeaddrinfo(first);
    var list: AddressList = .{};
    var entry = found;
    while (entry) |item| : (entry = item.next) {
        const sockaddr = item.addr orelse continue;
        if (list.count == list.items.len) break;
        var address: Address = undefined;
        switch (sockaddr.family) {
            c.AF.INET => address.v4 = @as(*align(1) const c.sockaddr.in, @ptrCast(sockaddr)).*,
            c.AF.INET6 => address.v6 = @as(*align(1) const c.sockaddr.in6, @ptrCast(sockaddr)).*,
            else => continue,
        }
        // IPv4 and IPv6 addresses have the port in the same place.
        address.v4.port = std.mem.nativeToBig(u16, endpoint.port);
        list.items[list.count] = address;
        list.count += 1;
    }
    return if (list.count > 0) list else error.NameNotFound;
}

test "numeric addresses need no lookup, and names are told apart" {
    const v4 = numeric(.{ .host = "127.0.0.1", .port = 99 }).?;
    try std.testing.expectEqual(99, v4.slice()[0].port());
    var text: [Address.text_bytes_max]u8 = undefined;
    try std.testing.expectEqualStrings("127.0.0.1", v4.slice()[0].host(&text));
    const v6 = numeric(.{ .host = "::1", .port = 99 }).?;
    try std.testing.expectEqualStrings("::1", v6.slice()[0].host(&text));
    try std.testing.expect(numeric(.{ .host = "localhost", .port = 99 }) == null);
    const mapped = numeric(.{ .host = "::ffff:10.1.2.3", .port = 1 }).?;
    try std.testing.expectEqualStrings("10.1.2.3", mapped.slice()[0].host(&text));
    try std.testing.expect((try to_bind(.{ .host = "", .port = 1 })).slice()[0].is_any());
    const plain = numeric(.{ .host = "10.1.2.3", .port = 2 }).?;
    try std.testing.expect(mapped.slice()[0].same_host(&plain.slice()[0]));
    try std.testing.expect(plain.slice()[0].same_host(&mapped.slice()[0]));
    try std.testing.expect(numeric(.{ .host = "::ffff:0.0.0.0", .port = 1 }).?.slice()[0].is_any());
    const other = numeric(.{ .host = "10.1.2.4", .port = 1 }).?;
    try std.testing.expect(!mapped.slice()[0].same_host(&other.slice()[0]));
    // One host is one source, whether it comes through an IPv4 or an IPv6 socket.
    try std.testing.expectEqual(mapped.slice()[0].source(), plain.slice()[0].source());
    try std.testing.expectEqual(@as(u8, 1), v6.slice()[0].source()[15]);
}
