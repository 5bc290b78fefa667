//! Stream: one control connection as bytes in and bytes out, without a socket. The driver moves
//! bytes; whoever owns the stream sends messages and takes whole ones out. Sending never blocks:
//! bytes wait here.

const std = @import("std");
const base = @import("base");
const control = @import("control.zig");
const Allocator = std.mem.Allocator;

pub const Stream = struct {
    gpa: Allocator,
    in: std.ArrayList(u8) = .empty,
    /// Start of what has not been taken yet.
    in_start: usize = 0,
    out: std.ArrayList(u8) = .empty,
    out_start: usize = 0,

    /// A side that reads nothing may not make the other hold more than this.
    pub const out_bytes_max = 64 * base.limits.MiB;
    const read_bytes = 16 * base.limits.KiB;

    pub fn init(gpa: Allocator) Stream {
        return .{ .gpa = gpa };
    }

    pub fn deinit(stream: *Stream) void {
        stream.in.deinit(stream.gpa);
        stream.out.deinit(stream.gpa);
    }

    pub fn reset(stream: *Stream) void {
        stream.in.clearRetainingCapacity();
        stream.out.clearRetainingCapacity();
        stream.in_start = 0;
        stream.out_start = 0;
    }

    /// Where the driver puts bytes from the socket.
    pub fn recv_slice(stream: *Stream) Allocator.Error![]u8 {
        if (stream.in_start > 0) {
            const rest = stream.in.items[stream.in_start..];
            std.mem.copyForwards(u8, stream.in.items[0..rest.len], rest);
            stream.in.shrinkRetainingCapacity(rest.len);
            stream.in_start = 0;
        }
        try stream.in.ensureUnusedCapacity(stream.gpa, read_bytes);
        return stream.in.unusedCapacitySlice();
    }

    pub fn received(stream: *Stream, count: usize) void {
        stream.in.items.len += count;
    }

    /// Fixed-size bytes before the messages (a hello); null until all are there.
    pub fn take_raw(stream: *Stream, comptime count: usize) ?*const [count]u8 {
        if (stream.in.items.len - stream.in_start < count) return null;
        defer stream.in_start += count;
        return stream.in.items[stream.in_start..][0..count];
    }

    /// The next whole message; null until one is there. It refers to the stream's memory and is
    /// valid until the next recv_slice.
    pub fn take(stream: *Stream) control.Error!?control.Message {
        const rest = stream.in.items[stream.in_start..];
        if (rest.len < control.header_bytes) return null;
        const total = control.header_bytes + try control.body_length(rest[0..control.header_bytes]);
        if (rest.len < total) return null;
        stream.in_start += total;
        return try control.decode(rest[0..total]);
    }

    pub fn send_raw(stream: *Stream, bytes: []const u8) Allocator.Error!void {
        stream.compact();
        try stream.out.appendSlice(stream.gpa, bytes);
    }

    /// error.OutOfMemory also when the other side has stopped reading (out_bytes_max), or when the
    /// message is larger than any may be.
    pub fn send(stream: *Stream, message: control.Message) Allocator.Error!void {
        _ = try stream.append(&message);
    }

    /// The same; the bytes of the message, valid until the stream is used again.
    pub fn append(stream: *Stream, message: *const control.Message) Allocator.Error![]const u8 {
        stream.compact();
        if (stream.out.items.len > out_bytes_max) return error.OutOfMemory;
        return encode_into(stream.gpa, &stream.out, message);
    }

    /// Appends a message to a list; the bytes of the message, valid until the list is used again.
    pub fn encode_into(
        gpa: Allocator,
        list: *std.ArrayList(u8),
        message: *const control.Message,
    ) Allocator.Error![]const u8 {
        var room: usize = 1024;
        while (true) : (room *= 4) {
            try list.ensureUnusedCapacity(gpa, room);
            const free = list.unusedCapacitySlice();
            const encoded = control.encode(message.*, free) catch {
                if (free.len > 2 * base.limits.control_message_bytes_max) return error.OutOfMemory;
                continue;
            };
            list.items.len += encoded.len;
            return encoded;
        }
    }

    /// The same with what `append` has made of a message for another stream.
    pub fn append_encoded(stream: *Stream, encoded: []const u8) Allocator.Error!void {
        stream.compact();
        if (stream.out.items.len > out_bytes_max) return error.OutOfMemory;
        try stream.out.appendSlice(stream.gpa, encoded);
    }

    pub fn send_slice(stream: *const Stream) []const u8 {
        return stream.out.items[stream.out_start..];
    }

    pub fn sent(stream: *Stream, count: usize) void {
        stream.out_start += count;
        if (stream.out_start == stream.out.items.len) stream.compact();
    }

    fn compact(stream: *Stream) void {
        if (stream.out_start == 0) return;
        const rest = stream.out.items[stream.out_start..];
        std.mem.copyForwards(u8, stream.out.items[0..rest.len], rest);
        stream.out.shrinkRetainingCapacity(rest.len);
        stream.out_start = 0;
    }
};

test "a message that is too large is an error, and the stream goes on without it" {
    const gpa = std.testing.allocator;
    var stream = Stream.init(gpa);
    defer stream.deinit();
    const json = try gpa.alloc(u8, base.limits.control_message_bytes_max);
    defer gpa.free(json);
    @memset(json, ' ');
    const too_large: control.Message = .{ .status_reply = .{ .json = .of(json) } };
    try std.testing.expectError(error.OutOfMemory, stream.send(too_large));
    try stream.send(.{ .heartbeat_ack = .{ .number = 1 } });
    try std.testing.expectEqual(control.header_bytes + 8, stream.send_slice().len);
}

test "what was made of a message for one stream is sent by another as it is" {
    const gpa = std.testing.allocator;
    var streams: [2]Stream = @splat(.init(gpa));
    defer for (&streams) |*stream| stream.deinit();
    for (&streams) |*stream| try stream.send(.{ .heartbeat_ack = .{ .number = 1 } });
    streams[1].sent(3); // on its way
    const encoded = try streams[0].append(&.{ .joined = .{ .name = .of("name"), .group = 1 } });
    try streams[1].append_encoded(encoded);
    try std.testing.expectEqualSlices(u8, streams[0].send_slice()[3..], streams[1].send_slice());
}

test "messages come out whole however the bytes arrive" {
    const gpa = std.testing.allocator;
    var a = Stream.init(gpa);
    defer a.deinit();
    var b = Stream.init(gpa);
    defer b.deinit();
    for (0..3) |index| try a.send(.{ .heartbeat_ack = .{ .number = index } });
    var seen: u64 = 0;
    while (a.send_slice().len > 0) {
        const room = try b.recv_slice();
        room[0] = a.send_slice()[0];
        b.received(1);
        a.sent(1);
        while (try b.take()) |message| {
            try std.testing.expectEqual(seen, message.heartbeat_ack.number);
            seen += 1;
        }
    }
    try std.testing.expectEqual(3, seen);
}
