//! Endpoint: "host:port" as text, and the rule which endpoints a peer may tell other peers. Socket
//! addresses and name lookup are in net/address.zig.

const std = @import("std");
const ids = @import("ids.zig");
const limits = @import("limits.zig");
const source_file = @import("source.zig");

/// The parts of a text such as "host:port", "1.2.3.4:port", "[v6]:port". `host` points into the
/// text.
pub const Endpoint = struct {
    /// The host without brackets; empty: every interface of this machine.
    host: []const u8,
    port: u16,

    pub const ParseError = error{BadAddress};

    /// An endpoint or a host as text, in a buffer of its own.
    pub const Text = struct {
        storage: [limits.address_bytes_max]u8 = undefined,
        length: usize = 0,

        /// Formats a text of at most `limits.address_bytes_max` bytes; error.BadAddress if it is
        /// longer.
        pub fn of(comptime form: []const u8, args: anytype) ParseError!Text {
            var made: Text = .{};
            const written = std.fmt.bufPrint(&made.storage, form, args) catch
                return error.BadAddress;
            made.length = written.len;
            return made;
        }

        pub fn slice(it: *const Text) []const u8 {
            return it.storage[0..it.length];
        }
    };

    /// Parses an endpoint, which must have a port.
    pub fn parse(text: []const u8) ParseError!Endpoint {
        const split = try Split.of(text);
        return .{ .host = split.host, .port = split.port orelse return error.BadAddress };
    }

    /// Parses an endpoint. `port` is used if the text has no port, as in a bare IPv6 address.
    pub fn parse_with_port(text: []const u8, port: u16) ParseError!Endpoint {
        const split = try Split.of(text);
        return .{ .host = split.host, .port = split.port orelse port };
    }

    /// Like parse_with_port, for an address to dial: the host must not be empty, nor the port 0.
    pub fn parse_to_dial(text: []const u8, port: u16) ParseError!Endpoint {
        const endpoint = try parse_with_port(text, port);
        if (endpoint.host.len == 0 or endpoint.port == 0) return error.BadAddress;
        return endpoint;
    }

    /// Parses the address that a peer tells of itself: one host and a port.
    pub fn parse_told(text: []const u8) ParseError!Endpoint {
        const endpoint = try parse(text);
        if (endpoint.port == 0 or !is_one_host(endpoint.host)) return error.BadAddress;
        return endpoint;
    }

    /// The host as a number if the text has one, equal for all ways to write it. Null for a name.
    pub fn source(endpoint: Endpoint) ?ids.Source {
        const host = endpoint.host;
        if (std.mem.indexOfScalar(u8, host, ':') != null) {
            const zone = std.mem.indexOfScalar(u8, host, '%') orelse host.len;
            const v6 = std.Io.net.Ip6Address.parse(host[0..zone], 0) catch return null;
            return v6.bytes;
        }
        const v4 = std.Io.net.Ip4Address.parse(host, 0) catch return null;
        return mapped_prefix ++ v4.bytes;
    }

    /// Whether the endpoint clearly leads to the dialing machine itself. Other names may lead
    /// there, too.
    pub fn is_loopback(endpoint: Endpoint) bool {
        if (endpoint.source()) |found| return source_file.is_loopback(found);
        return std.ascii.eqlIgnoreCase(endpoint.host, "localhost");
    }

    /// Writes a text that `parse` reads back.
    pub fn format(endpoint: Endpoint, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const is_v6 = std.mem.indexOfScalar(u8, endpoint.host, ':') != null;
        const form = if (is_v6) .{ "[", "]" } else .{ "", "" };
        try writer.print("{s}{s}{s}:{d}", .{ form[0], endpoint.host, form[1], endpoint.port });
    }
};

const Split = struct {
    host: []const u8,
    port: ?u16,

    fn of(text: []const u8) Endpoint.ParseError!Split {
        const split = try of_any(text);
        // brackets enclose a host, and are never inside it
        if (std.mem.indexOfAny(u8, split.host, "[]") != null) return error.BadAddress;
        return split;
    }

    fn of_any(text: []const u8) Endpoint.ParseError!Split {
        if (text.len == 0 or text.len > limits.address_bytes_max) return error.BadAddress;
        for (text) |byte| if (byte <= ' ' or byte >= 0x7f) return error.BadAddress;
        if (text[0] == '[') {
            const end = std.mem.indexOfScalar(u8, text, ']') orelse return error.BadAddress;
            const rest = text[end + 1 ..];
            if (end == 1 or (rest.len > 0 and rest[0] != ':')) return error.BadAddress;
            const port = if (rest.len > 0) try parse_port(rest[1..]) else null;
            return .{ .host = text[1..end], .port = port };
        }
        const colons = std.mem.count(u8, text, ":");
        if (colons != 1) return .{ .host = text, .port = null };
        const colon = std.mem.indexOfScalar(u8, text, ':').?;
        return .{ .host = text[0..colon], .port = try parse_port(text[colon + 1 ..]) };
    }

    fn parse_port(text: []const u8) Endpoint.ParseError!u16 {
        // parseInt alone would accept signs and underscores.
        for (text) |byte| if (!std.ascii.isDigit(byte)) return error.BadAddress;
        return std.fmt.parseInt(u16, text, 10) catch error.BadAddress;
    }
};

// ---- one host

/// Whether the text names exactly one host: no broadcast or multicast address, no unspecified
/// address, and no number that only looks like a name.
fn is_one_host(host: []const u8) bool {
    if (std.mem.indexOfScalar(u8, host, ':') != null) return is_one_v6(host);
    const last = host[if (std.mem.lastIndexOfScalar(u8, host, '.')) |dot| dot + 1 else 0..];
    // Resolvers take "1", "127.1" and "0x7f.1" for addresses: a host whose last label is a number
    // is one.
    if (is_number(last)) {
        const v4 = std.Io.net.Ip4Address.parse(host, 0) catch return false;
        return is_one_v4(v4.bytes);
    }
    return is_name(host);
}

fn is_number(label: []const u8) bool {
    const is_hex = std.ascii.startsWithIgnoreCase(label, "0x");
    for (label[if (is_hex) 2 else 0..]) |byte| {
        if (!(if (is_hex) std.ascii.isHex(byte) else std.ascii.isDigit(byte))) return false;
    }
    return label.len > 0;
}

fn is_one_v4(bytes: [4]u8) bool {
    // 0/8 is this network, 224/4 is multicast, and from 240 on there are only reserved addresses
    // and broadcast.
    return bytes[0] != 0 and bytes[0] < 224;
}

/// The first bytes of an IPv4 address that is written as an IPv6 address.
const mapped_prefix = [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff };

fn is_one_v6(host: []const u8) bool {
    const zone = std.mem.indexOfScalar(u8, host, '%');
    // An interface name has at most 15 bytes. Other peers are told the name unchanged.
    if (zone) |at| switch (host.len - at - 1) {
        1...15 => if (!is_name(host[at + 1 ..])) return false,
        else => return false,
    };
    const parsed = std.Io.net.Ip6Address.parse(host[0 .. zone orelse host.len], 0) catch
        return false;
    const bytes = &parsed.bytes;
    if (std.mem.startsWith(u8, bytes, &mapped_prefix)) return is_one_v4(bytes[12..16].*);
    return bytes[0] != 0xff and !std.mem.allEqual(u8, bytes, 0);
}

fn is_name(host: []const u8) bool {
    if (host.len == 0 or host[0] == '-') return false;
    for (host) |byte| switch (byte) {
        'a'...'z', 'A'...'Z', '0'...'9', '.', '-', '_' => {},
        else => return false,
    };
    return std.mem.indexOf(u8, host, "..") == null and host[0] != '.';
}

test "endpoints are read and written back" {
    const good = [_]struct { []const u8, []const u8, u16 }{
        .{ "10.0.0.1:80", "10.0.0.1", 80 },
        .{ "[::1]:4000", "::1", 4000 },
        .{ "node-7.example:0", "node-7.example", 0 },
        .{ ":65535", "", 65535 },
    };
    for (good) |case| {
        const endpoint = try Endpoint.parse(case[0]);
        try std.testing.expectEqualStrings(case[1], endpoint.host);
        try std.testing.expectEqual(case[2], endpoint.port);
        var text: [limits.address_bytes_max]u8 = undefined;
        const again = try std.fmt.bufPrint(&text, "{f}", .{endpoint});
        try std.testing.expectEqualStrings(case[0], again);
        const kept = try Endpoint.Text.of("{f}", .{endpoint});
        try std.testing.expectEqualStrings(case[0], kept.slice());
    }
    const too_long = "h" ** limits.address_bytes_max;
    _ = try Endpoint.Text.of("{s}", .{too_long});
    try std.testing.expectError(error.BadAddress, Endpoint.Text.of("{s}:1", .{too_long}));
    const bad = [_][]const u8{
        "",      "host",  "host:", "host:65536", "host:-1",  "host:+1",
        "[::1]", "[::1",  "[]:1",  "::1",        "[::1]x:1", "h\x00:1",
        "a b:1", "[[]:1", "a]:1",
    };
    for (bad) |text| try std.testing.expectError(error.BadAddress, Endpoint.parse(text));
    try std.testing.expectEqualStrings("::1", (try Endpoint.parse_with_port("::1", 7)).host);
    try std.testing.expectEqual(7, (try Endpoint.parse_with_port("host", 7)).port);
    try std.testing.expectEqual(7, (try Endpoint.parse_to_dial("host", 7)).port);
    try std.testing.expectError(error.BadAddress, Endpoint.parse_to_dial(":80", 7));
    try std.testing.expectError(error.BadAddress, Endpoint.parse_to_dial("host:0", 7));
}

test "a host that is a number is one source, however it is written, and a name is none" {
    const expectEqual = std.testing.expectEqual;
    const plain = (try Endpoint.parse("10.1.2.3:80")).source().?;
    try expectEqual(plain, (try Endpoint.parse("[::ffff:10.1.2.3]:81")).source().?);
    try std.testing.expect(!std.meta.eql(plain, (try Endpoint.parse("10.1.2.4:80")).source().?));
    const link_local = (try Endpoint.parse("[fe80::7%eth0]:1")).source().?;
    try expectEqual(0xfe, link_local[0]);
    try expectEqual(7, link_local[15]);
    for ([_][]const u8{ "localhost:1", "node-7.example:1", "127.1:1" }) |name| {
        const endpoint = try Endpoint.parse(name);
        try expectEqual(null, endpoint.source());
        try expectEqual(endpoint.host[0] == 'l', endpoint.is_loopback());
    }
    try std.testing.expect((try Endpoint.parse("127.0.1.1:1")).is_loopback());
}

test "a peer may tell others of one host and a port, and of nothing else" {
    for ([_][]const u8{
        "10.0.0.1:80",        "127.0.0.1:1",          "[::1]:4000",  "[fe80::1%eth0]:7",
        "node-7.example:400", "[::ffff:10.1.2.3]:80", "localhost:1", "a.1b2.example.:9",
        "223.255.255.255:1",  "[2001:db8::7]:1",      "a_b:65535",   "3f2a9c1b7d4e:1",
        "3node:1",            "10-0-0-5:1",           "0xgreen:1",
    }) |text| {
        var room: [limits.address_bytes_max]u8 = undefined;
        const told = try Endpoint.parse_told(text);
        try std.testing.expectEqualStrings(text, try std.fmt.bufPrint(&room, "{f}", .{told}));
    }
    for ([_][]const u8{
        "10.0.0.1",           "10.0.0.1:0",            ":80",         "[/red]:1",
        "0.0.0.0:1",          "0.1.2.3:1",             "[::]:1",      "255.255.255.255:1",
        "224.0.0.1:1",        "240.0.0.1:1",           "[ff02::1]:1", "[::ffff:224.0.0.1]:1",
        "[::ffff:0.0.0.0]:1", "3758096385:1",          "127.1:1",     "0xe0000001:1",
        "0xe0.0.0.1:1",       "010.0.0.1:1",           "1.2.3.4.5:1", "a..b:1",
        "host\n:1",           "h\x1b[2J:1",
        "größe:1",
        "[fe80::1%]:1",       "[fe80::1%a/b]:1",       "-x:1",        ".x:1",
        "a/b:1",              "[::1]x:1",              "",            "[g::1]:1",
        "<b>:1",              "[::ffff:3758096385]:1",
    }) |text| try std.testing.expectError(error.BadAddress, Endpoint.parse_told(text));
    // The zone is longer than an interface name may be.
    const zone = Endpoint.parse_told("[fe80::1%zzzzzzzzzzzzzzzz]:1");
    try std.testing.expectError(error.BadAddress, zone);
}
