//! Decoders under fuzz: any bytes give a value or a named error, what decodes encodes to the same
//! bytes again, and a number that came through is within its bounds. Checksums are made right where
//! a decoder has one, so that what lies behind them is reached.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const Words = @import("words.zig").Words;
const Allocator = std.mem.Allocator;
const limits = base.limits;
const expect = std.testing.expect;
const expectEqualSlices = std.testing.expectEqualSlices;

pub fn frame(_: Allocator, bytes: []const u8) !void {
    if (bytes.len < wire.frame.header_bytes) return;
    const head = bytes[0..wire.frame.header_bytes];
    const header = wire.frame.decode(head) catch return;
    try expectEqualSlices(u8, head, &wire.frame.encode(header));
}

/// The sum is right.
pub fn frame_signed(gpa: Allocator, bytes: []const u8) !void {
    var words: Words = .{ .rest = bytes, .arena = gpa };
    const sent = try words.value(wire.frame.Header, "");
    const head = wire.frame.encode(sent);
    const header = wire.frame.decode(&head) catch return;
    try std.testing.expectEqual(sent, header);
    try expect(header.payload_bytes <= limits.frame_payload_bytes_max);
    try expect(header.group < limits.groups_max and header.class < limits.peers_max);
    try expect(header.sequence <= limits.sequences_max);
}

pub fn hello(_: Allocator, bytes: []const u8) !void {
    if (bytes.len < wire.hello.hello_bytes) return;
    const head = bytes[0..wire.hello.hello_bytes];
    const decoded = wire.hello.decode(head) catch return;
    try expectEqualSlices(u8, head, &wire.hello.encode(decoded));
}

pub fn answer(_: Allocator, bytes: []const u8) !void {
    if (bytes.len < wire.hello.answer_bytes) return;
    const head = bytes[0..wire.hello.answer_bytes];
    const verdict = wire.hello.decode_answer(head) catch return;
    try expectEqualSlices(u8, head, &wire.hello.encode_answer(verdict));
}

pub fn control(gpa: Allocator, bytes: []const u8) !void {
    const message = wire.control.decode(bytes) catch return;
    const room = try gpa.alloc(u8, bytes.len);
    defer gpa.free(room);
    try expectEqualSlices(u8, bytes, try wire.control.encode(message, room));
}

/// A message of any kind with the rest for its body.
pub fn control_body(gpa: Allocator, bytes: []const u8) !void {
    if (bytes.len == 0) return;
    const whole = try gpa.alloc(u8, wire.control.header_bytes + bytes.len - 1);
    defer gpa.free(whole);
    const kinds: u16 = @typeInfo(wire.control.Message).@"union".fields.len;
    std.mem.writeInt(u32, whole[0..4], @intCast(bytes.len - 1), .little);
    std.mem.writeInt(u16, whole[4..6], 1 + bytes[0] % kinds, .little);
    whole[6..8].* = .{ 0, 0 };
    @memcpy(whole[8..], bytes[1..]);
    try control(gpa, whole);
}

/// Through a connection, in pieces, as it comes from a socket.
pub fn stream(gpa: Allocator, bytes: []const u8) !void {
    var s: wire.Stream = .init(gpa);
    defer s.deinit();
    var rest = bytes;
    while (rest.len > 0) {
        const room = try s.recv_slice();
        const count = @min(1 + rest[0] % 37, rest.len, room.len);
        @memcpy(room[0..count], rest[0..count]);
        s.received(count);
        rest = rest[count..];
        while (s.take() catch return) |_| {}
    }
    try expect(s.in.items.len <= bytes.len);
}

pub fn descriptor(_: Allocator, bytes: []const u8) !void {
    if (bytes.len < wire.control.descriptor_bytes) return;
    const head = bytes[0..wire.control.descriptor_bytes];
    const decoded = wire.control.decode_descriptor(head) catch return;
    try expectEqualSlices(u8, head, &wire.control.encode_descriptor(decoded));
    try expect(decoded.count <= limits.elements_max);
}

pub fn token(_: Allocator, bytes: []const u8) !void {
    const decoded = wire.token.decode(bytes) catch return;
    var room: [wire.token.text_bytes_max]u8 = undefined;
    const again = try wire.token.decode(wire.token.encode(&decoded, &room));
    try std.testing.expectEqualStrings(decoded.address(), again.address());
}

pub fn endpoint(_: Allocator, bytes: []const u8) !void {
    for ([_]base.Endpoint.ParseError!base.Endpoint{
        base.Endpoint.parse(bytes),
        base.Endpoint.parse_with_port(bytes, 1),
        base.Endpoint.parse_to_dial(bytes, 1),
        base.Endpoint.parse_told(bytes),
    }) |result| {
        const parsed = result catch continue;
        // With a port it would be too long.
        if (parsed.host.len + "[]:65535".len > limits.address_bytes_max) continue;
        for (parsed.host) |letter| try expect(letter > ' ' and letter < 0x7f);
        var room: [limits.address_bytes_max + 16]u8 = undefined;
        const again = try base.Endpoint.parse(try std.fmt.bufPrint(&room, "{f}", .{parsed}));
        try std.testing.expectEqualStrings(parsed.host, again.host);
        try std.testing.expectEqual(parsed.port, again.port);
    }
}

/// Shown text has nothing that a terminal obeys, whatever it was.
pub fn text(_: Allocator, bytes: []const u8) !void {
    var room: [300]u8 = undefined;
    const shown = base.text.show(bytes, room[0 .. 20 + bytes.len % 280]);
    if (shown.len > 0) {
        for (shown) |letter| try expect(letter >= ' ' and letter != 0x7f);
        try expect(std.unicode.utf8ValidateSlice(shown));
    }
    if (!base.text.is_name(bytes)) return;
    try expect(bytes.len <= limits.name_bytes_max and std.unicode.utf8ValidateSlice(bytes));
    var whole: [limits.name_bytes_max]u8 = undefined;
    try std.testing.expectEqualStrings(bytes, base.text.show(bytes, &whole));
}

pub fn journal(_: Allocator, bytes: []const u8) !void {
    var replay: protocol.journal.Replay = .init(bytes);
    while (true) {
        const before = replay.good_bytes;
        const record = replay.next() catch break orelse break;
        try expect(replay.good_bytes > before and replay.good_bytes <= bytes.len);
        var again: [protocol.journal.record_bytes_max]u8 = undefined;
        const written = try protocol.journal.encode(record, &again);
        try expect(std.mem.endsWith(u8, bytes[0..replay.good_bytes], written));
    }
    try expect(replay.good_bytes <= bytes.len);
    _ = protocol.journal.settings_of(bytes) catch {};
    _ = protocol.journal.is_unused(bytes) catch {};
}

/// Records of any number and body whose sums are right (docs/internals/PROTOCOL.md, the journal).
pub fn journal_signed(gpa: Allocator, bytes: []const u8) !void {
    var image: std.ArrayList(u8) = .empty;
    defer image.deinit(gpa);
    try image.appendSlice(gpa, &protocol.journal.header);
    var words: Words = .{ .rest = bytes, .arena = gpa };
    while (words.rest.len > 0) {
        const number: u16 = @intCast(words.below(8));
        const body = words.bytes(words.byte());
        const begin = image.items.len;
        try image.append(gpa, 0xd7);
        try append_int(gpa, &image, u16, number);
        try append_int(gpa, &image, u32, @intCast(body.len));
        try append_int(gpa, &image, u32, std.hash.Crc32.hash(image.items[begin..]));
        try image.appendSlice(gpa, body);
        try append_int(gpa, &image, u32, std.hash.Crc32.hash(image.items[begin..]));
        try image.append(gpa, 0x9b);
    }
    try journal(gpa, image.items);
}

fn append_int(
    gpa: Allocator,
    image: *std.ArrayList(u8),
    comptime T: type,
    value: T,
) !void {
    var bytes: [@sizeOf(T)]u8 = undefined;
    std.mem.writeInt(T, &bytes, value, .little);
    try image.appendSlice(gpa, &bytes);
}
