//! Source: the host that a connection comes from, as a number: whether it is this machine, and how
//! it is written. endpoint.zig has addresses as text, also with host names.

const std = @import("std");
const Endpoint = @import("endpoint.zig").Endpoint;
const Source = @import("ids.zig").Source;

/// The first bytes of an IPv4 address that is written as an IPv6 address.
const mapped_prefix = [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff };
const loopback_v6 = [_]u8{0} ** 15 ++ [_]u8{1};

/// Whether the address leads every machine to itself.
pub fn is_loopback(source: Source) bool {
    const in_v4 = mapped_prefix ++ [_]u8{127};
    return std.mem.startsWith(u8, &source, &in_v4) or std.mem.eql(u8, &source, &loopback_v6);
}

pub fn is_unknown(source: Source) bool {
    return std.mem.allEqual(u8, &source, 0);
}

/// Bytes of the longest "[v6]:port".
pub const text_bytes_max = 8 * 5 + 2 + 6;

/// Writes "host:port", which Endpoint.parse_told reads back if the source is one host.
pub fn write(source: Source, port: u16, text: *[text_bytes_max]u8) []const u8 {
    var writer: std.Io.Writer = .fixed(text);
    put(source, port, &writer) catch unreachable; // the buffer has room for the longest
    return writer.buffered();
}

/// Writes the host without a port: "10.1.2.3", "[2001:db8:0:0:0:0:0:7]"; nothing if it is unknown.
pub fn write_host(source: Source, text: *[text_bytes_max]u8) []const u8 {
    if (is_unknown(source)) return "";
    const whole = write(source, 0, text);
    return whole[0 .. whole.len - ":0".len];
}

fn put(source: Source, port: u16, writer: *std.Io.Writer) std.Io.Writer.Error!void {
    if (std.mem.startsWith(u8, &source, &mapped_prefix)) {
        const v4 = source[12..];
        return writer.print("{d}.{d}.{d}.{d}:{d}", .{ v4[0], v4[1], v4[2], v4[3], port });
    }
    for (0..8) |index| {
        const group = std.mem.readInt(u16, source[2 * index ..][0..2], .big);
        try writer.print("{s}{x}", .{ if (index == 0) "[" else ":", group });
    }
    try writer.print("]:{d}", .{port});
}

test "a source is written as it is read" {
    for ([_][]const u8{ "10.1.2.3:80", "[2001:db8::7]:65535", "[::1]:1", "127.0.1.1:9" }) |given| {
        const endpoint = try Endpoint.parse(given);
        var text: [text_bytes_max]u8 = undefined;
        const again = try Endpoint.parse_told(write(endpoint.source().?, endpoint.port, &text));
        try std.testing.expectEqual(endpoint.source(), again.source());
        try std.testing.expectEqual(endpoint.port, again.port);
    }
    var host: [text_bytes_max]u8 = undefined;
    const v4 = (try Endpoint.parse("10.1.2.3:80")).source().?;
    try std.testing.expectEqualStrings("10.1.2.3", write_host(v4, &host));
    try std.testing.expectEqualStrings("", write_host(@splat(0), &host));
    var longest: [text_bytes_max]u8 = undefined;
    try std.testing.expectEqual(longest.len - 1, write(@splat(0xff), 65535, &longest).len);
}

test "all of 127/8 and ::1 are loopback, and nothing else is" {
    for ([_][]const u8{ "127.0.0.1:1", "127.0.1.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1" }) |text|
        try std.testing.expect(is_loopback((try Endpoint.parse(text)).source().?));
    for ([_][]const u8{ "126.0.0.1:1", "128.0.0.1:1", "[::2]:1", "[::]:1", "10.0.0.1:1" }) |text|
        try std.testing.expect(!is_loopback((try Endpoint.parse(text)).source().?));
    try std.testing.expect(is_unknown(@splat(0)) and !is_loopback(@splat(0)));
}
