//! Packet: what a TUN device gives, a header of virtio_net and an IPv4 packet behind it. The TCP of
//! the kernel hands over up to 64 KiB at once, to be cut into segments by a network card: this is
//! that card. It owns reading such a packet, cutting it, and making a reset of one; never where it
//! goes (network.zig) nor when (stages.zig).

const std = @import("std");
const assert = std.debug.assert;

pub const ip_bytes_max = 65535;
pub const content_bytes_max = @sizeOf(Offload) + ip_bytes_max;
const ip_header_bytes = 20;
const tcp_header_bytes = 20;
const tcp = 6;
const udp = 17;

/// struct virtio_net_hdr, in the byte order of this machine.
pub const Offload = extern struct {
    flags: u8,
    segmentation: u8,
    header_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,

    /// The checksum holds only that of the pseudo header: whoever delivers it adds the rest.
    const needs_checksum = 1;
    const none = 0;
};

comptime {
    assert(@sizeOf(Offload) == 10);
}

/// The flags of TCP, in one byte of its header.
const fin = 0x01;
const reset = 0x04;
const push = 0x08;
const acknowledges = 0x10;
const window_reduced = 0x80;

pub const Packet = struct {
    /// A packet lies in one piece of memory of the pool, its content behind this.
    content_bytes: u32,
    /// All of it that was asked for (pool.zig).
    memory_bytes: u32 = 0,
    /// As how many packets it counts, which the wire would carry one by one.
    segments: u32,
    /// Payload of each of them but for the last one, and the headers of each.
    segment_bytes: u32,
    headers_bytes: u32,
    /// The bytes that the sender and the receiver of TCP or UDP share; of other protocols too.
    flow: u64,
    /// TCP with a payload: a lane that works, and not the acknowledgements of another one.
    is_tcp_data: bool,
    source: u8,
    target: u8,
    stage: Stage = .flow,

    pub const Stage = enum { flow, up, path, down, deliver };

    pub fn content(packet: *Packet) []u8 {
        const memory: [*]u8 = @ptrCast(packet);
        return memory[@sizeOf(Packet)..][0..packet.content_bytes];
    }

    /// Bytes that all its segments take, headers of IP included.
    pub fn wire_bytes(packet: *const Packet) u32 {
        const ip_bytes = packet.content_bytes - @sizeOf(Offload);
        return ip_bytes + (packet.segments - 1) * packet.headers_bytes;
    }

    /// Bytes of one whole segment.
    pub fn step_bytes(packet: *const Packet) u32 {
        return packet.segment_bytes + packet.headers_bytes;
    }

    /// How much memory the segments from `first` on need.
    pub fn part_bytes(packet: *const Packet, first: u32, count: u32) usize {
        return @sizeOf(Packet) + @sizeOf(Offload) + packet.headers_bytes +
            packet.payload_of(first, count).len;
    }

    const Span = struct { begin: u32, len: u32 };

    fn payload_of(packet: *const Packet, first: u32, count: u32) Span {
        assert(count > 0 and first + count <= packet.segments);
        const all = packet.content_bytes - @sizeOf(Offload) - packet.headers_bytes;
        const begin = first * packet.segment_bytes;
        const end = if (first + count == packet.segments)
            all
        else
            (first + count) * packet.segment_bytes;
        return .{ .begin = begin, .len = end - begin };
    }

    /// The segments from `first` on, in other memory, with headers of their own.
    pub fn copy_part(packet: *Packet, into: *Packet, first: u32, count: u32) void {
        const span = packet.payload_of(first, count);
        const headers = @sizeOf(Offload) + packet.headers_bytes;
        into.* = packet.*;
        into.memory_bytes = @intCast(packet.part_bytes(first, count));
        into.segments = count;
        into.content_bytes = headers + span.len;
        const from = packet.content();
        const to = into.content();
        @memcpy(to[0..headers], from[0..headers]);
        @memcpy(to[headers..], from[headers + span.begin ..][0..span.len]);
        if (count < packet.segments) into.rewrite(first, first + count == packet.segments, span);
    }

    fn rewrite(packet: *Packet, first: u32, is_last: bool, span: Span) void {
        const ip = packet.content()[@sizeOf(Offload)..];
        const transport = ip[header_bytes_of(ip)..];
        put(u16, ip[4..6], get(u16, ip[4..6]) +% @as(u16, @truncate(first)));
        put(u32, transport[4..8], get(u32, transport[4..8]) +% span.begin);
        if (!is_last) transport[13] &= ~@as(u8, fin | push);
        if (first > 0) transport[13] &= ~@as(u8, window_reduced);
        if (packet.segments == 1) packet.no_longer_segmented();
        packet.lengths_changed();
    }

    /// Turns TCP data into a reset of its connection: the receiver, which waits for exactly this
    /// sequence number, gives the connection up, and answers what comes next with a reset.
    pub fn make_reset(packet: *Packet) void {
        assert(packet.is_tcp_data);
        packet.content_bytes = @sizeOf(Offload) + packet.headers_bytes;
        packet.segments = 1;
        packet.is_tcp_data = false;
        const ip = packet.content()[@sizeOf(Offload)..];
        ip[header_bytes_of(ip)..][13] = reset | acknowledges;
        packet.no_longer_segmented();
        packet.lengths_changed();
    }

    fn no_longer_segmented(packet: *Packet) void {
        packet.offload().segmentation = Offload.none;
        packet.offload().segment_bytes = 0;
    }

    fn offload(packet: *Packet) *align(1) Offload {
        return @ptrCast(packet.content()[0..@sizeOf(Offload)]);
    }

    fn lengths_changed(packet: *Packet) void {
        const ip = packet.content()[@sizeOf(Offload)..];
        const header_bytes = header_bytes_of(ip);
        put(u16, ip[2..4], @intCast(ip.len));
        put(u16, ip[10..12], 0);
        put(u16, ip[10..12], ~folded(sum(ip[0..header_bytes])));
        const pseudo = sum(ip[12..20]) + tcp + @as(u32, @intCast(ip.len - header_bytes));
        put(u16, ip[header_bytes..][16..18], folded(pseudo));
    }
};

/// The packet that `content` is, without where it comes from; null: none that we carry. A reader of
/// a device trusts nobody: programs in a namespace may send any bytes.
pub fn parse(content: []const u8) ?Packet {
    if (content.len < @sizeOf(Offload) + ip_header_bytes) return null;
    const offload: *align(1) const Offload = @ptrCast(content[0..@sizeOf(Offload)]);
    const ip = content[@sizeOf(Offload)..];
    const header_bytes = header_bytes_of(ip);
    if (ip[0] >> 4 != 4 or header_bytes < ip_header_bytes or header_bytes > ip.len) return null;
    var packet: Packet = .{
        .content_bytes = @intCast(content.len),
        .segments = 1,
        .segment_bytes = 0,
        .headers_bytes = @intCast(header_bytes),
        .flow = 0,
        .is_tcp_data = false,
        .source = undefined,
        .target = undefined,
    };
    const transport = ip[header_bytes..];
    const is_first_fragment = get(u16, ip[6..8]) & 0x1fff == 0;
    if (ip[9] == tcp and is_first_fragment and transport.len >= tcp_header_bytes) {
        const both = header_bytes + (transport[12] >> 4) * @as(usize, 4);
        if (both > ip.len) return null;
        packet.headers_bytes = @intCast(both);
        packet.is_tcp_data = both < ip.len and offload.flags & Offload.needs_checksum != 0;
    }
    packet.flow = flow_of(ip, transport, is_first_fragment);
    if (offload.segmentation == Offload.none) return packet;
    if (!packet.is_tcp_data or offload.segment_bytes == 0) return null;
    packet.segment_bytes = offload.segment_bytes;
    const payload: u32 = @intCast(ip.len - packet.headers_bytes);
    packet.segments = (payload + packet.segment_bytes - 1) / packet.segment_bytes;
    return packet;
}

/// Its target, as the number in its address.
pub fn target_address(content: []const u8) u32 {
    return get(u32, content[@sizeOf(Offload) + 16 ..][0..4]);
}

fn flow_of(ip: []const u8, transport: []const u8, has_ports: bool) u64 {
    var hash = std.hash.Wyhash.init(ip[9]);
    hash.update(ip[12..20]);
    const is_known = ip[9] == tcp or ip[9] == udp;
    if (is_known and has_ports and transport.len >= 4) hash.update(transport[0..4]);
    return hash.final();
}

fn header_bytes_of(ip: []const u8) usize {
    return (ip[0] & 15) * @as(usize, 4);
}

fn get(comptime T: type, bytes: *const [@sizeOf(T)]u8) T {
    return std.mem.readInt(T, bytes, .big);
}

fn put(comptime T: type, bytes: *[@sizeOf(T)]u8, value: T) void {
    std.mem.writeInt(T, bytes, value, .big);
}

/// The sum of the 16-bit words, of an even number of bytes.
fn sum(bytes: []const u8) u32 {
    assert(bytes.len % 2 == 0);
    var total: u32 = 0;
    var index: usize = 0;
    while (index < bytes.len) : (index += 2) total += get(u16, bytes[index..][0..2]);
    return total;
}

fn folded(total: u32) u16 {
    const once = (total & 0xffff) + (total >> 16);
    return @truncate((once & 0xffff) + (once >> 16));
}

const testing = std.testing;

/// A packet of TCP as the kernel hands it over: 1000 bytes at a time, with a timestamp option.
pub fn example(memory: []align(@alignOf(Packet)) u8, payload_bytes: u32) *Packet {
    var content: [content_bytes_max]u8 = @splat(0);
    const bytes = example_content(&content, payload_bytes);
    const packet: *Packet = @ptrCast(memory);
    packet.* = parse(bytes).?;
    packet.source = 0;
    packet.target = 1;
    @memcpy(packet.content(), bytes);
    return packet;
}

pub fn example_content(content: *[content_bytes_max]u8, payload_bytes: u32) []u8 {
    const bytes = content[0 .. @sizeOf(Offload) + 52 + payload_bytes];
    const offload: *align(1) Offload = @ptrCast(bytes[0..@sizeOf(Offload)]);
    offload.* = std.mem.zeroes(Offload);
    offload.flags = Offload.needs_checksum;
    if (payload_bytes > 1000) {
        offload.segmentation = 1;
        offload.segment_bytes = 1000;
    }
    const ip = bytes[@sizeOf(Offload)..];
    ip[0] = 0x45;
    put(u16, ip[2..4], @intCast(ip.len));
    put(u16, ip[4..6], 0xffff);
    ip[9] = tcp;
    put(u32, ip[12..16], 0x0a580001);
    put(u32, ip[16..20], 0x0a580002);
    put(u32, ip[24..28], 0xffff_ff00); // the sequence number
    ip[32] = 8 << 4;
    ip[33] = acknowledges | push | fin | window_reduced;
    for (ip[52..], 0..) |*byte, index| byte.* = @truncate(index / 1000);
    return bytes;
}

test "a large packet counts as the segments that it stands for" {
    var memory: [1 << 17]u8 align(@alignOf(Packet)) = undefined;
    const packet = example(&memory, 2500);
    try testing.expectEqual(3, packet.segments);
    try testing.expectEqual(2500 + 3 * 52, packet.wire_bytes());
    try testing.expect(packet.is_tcp_data);
    try testing.expectEqual(0x0a580002, target_address(packet.content()));
}

test "a part has the headers and the bytes that its segments would have had" {
    var memory: [1 << 17]u8 align(@alignOf(Packet)) = undefined;
    var other: [1 << 17]u8 align(@alignOf(Packet)) = undefined;
    const packet = example(&memory, 2500);
    const part: *Packet = @ptrCast(&other);

    packet.copy_part(part, 1, 1);
    var ip = part.content()[@sizeOf(Offload)..];
    try testing.expectEqual(1052, ip.len);
    try testing.expectEqual(1052, get(u16, ip[2..4]));
    try testing.expectEqual(0, get(u16, ip[4..6])); // 0xffff + 1
    try testing.expectEqual(@as(u32, 0xffff_ff00) +% 1000, get(u32, ip[24..28]));
    try testing.expectEqual(acknowledges, ip[33]);
    try testing.expectEqual(0xffff, folded(sum(ip[0..20])));
    try testing.expectEqual(0, part.offload().segmentation);
    for (ip[52..]) |byte| try testing.expectEqual(1, byte);

    packet.copy_part(part, 1, 2);
    ip = part.content()[@sizeOf(Offload)..];
    try testing.expectEqual(1552, ip.len);
    try testing.expectEqual(acknowledges | push | fin, ip[33]);
    try testing.expectEqual(1, part.offload().segmentation);
    try testing.expectEqual(2, part.segments);

    packet.copy_part(part, 0, 3);
    try testing.expectEqualSlices(u8, packet.content(), part.content());
}

test "a reset has no payload, and the sequence number of what it was" {
    var memory: [1 << 17]u8 align(@alignOf(Packet)) = undefined;
    const packet = example(&memory, 2500);
    packet.make_reset();
    const ip = packet.content()[@sizeOf(Offload)..];
    try testing.expectEqual(52, ip.len);
    try testing.expectEqual(0xffff_ff00, get(u32, ip[24..28]));
    try testing.expectEqual(reset | acknowledges, ip[33]);
    try testing.expectEqual(0xffff, folded(sum(ip[0..20])));
}

test "a flow is told by addresses and ports" {
    var content: [content_bytes_max]u8 = @splat(0);
    const bytes = example_content(&content, 100);
    const before = parse(bytes).?.flow;
    bytes[@sizeOf(Offload) + 60] ^= 1; // payload
    try testing.expectEqual(before, parse(bytes).?.flow);
    bytes[@sizeOf(Offload) + 21] ^= 1; // a port
    try testing.expect(parse(bytes).?.flow != before);
}

test "bytes that are no packet are none, whatever they are" {
    // Goal: no crash. Method: shortened and changed packets, each parsed.
    var content: [content_bytes_max]u8 = @splat(0);
    var random = std.Random.DefaultPrng.init(1);
    for (0..2000) |_| {
        const bytes = example_content(&content, 3000);
        for (0..4) |_| bytes[random.random().uintLessThan(usize, 70)] = random.random().int(u8);
        const length = random.random().uintAtMost(usize, 120);
        if (parse(bytes[0..length])) |packet| {
            try testing.expect(packet.headers_bytes <= length - @sizeOf(Offload));
            try testing.expect(packet.segments > 0);
        }
    }
}
