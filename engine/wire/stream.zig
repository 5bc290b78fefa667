//! Stream: one control connection as bytes in and bytes out, without a socket. The driver moves the
//! bytes; the owner of the stream sends messages and takes received messages out. Sending never
//! blocks: bytes wait here, within the stream's limits (limits.zig). queue.zig has the waiting
//! bytes.

const std = @import("std");
const base = @import("base");
const control = @import("control.zig");
const queue_file = @import("queue.zig");
const Budget = queue_file.Budget;
const Queue = queue_file.Queue;
const Allocator = std.mem.Allocator;
const limits = base.limits;

pub const Stream = struct {
    gpa: Allocator,
    in: std.ArrayList(u8) = .empty,
    /// Offset in `in` of the first byte that has not been taken.
    in_start: usize = 0,
    /// Longest body of a received message; a longer body is an error as soon as its header is here.
    in_bytes_max: usize = limits.control_message_bytes_max,
    out: Queue,
    /// Bytes that may wait when a message is added, so that a receiver that reads nothing cannot
    /// make the sender hold more. `out_bulk`: bulk bytes that wait, which may exceed this limit.
    out_bytes_max: usize = limits.report_queue_bytes_max,
    out_bulk: usize = 0,
    /// All bytes that the driver has sent.
    sent_bytes: u64 = 0,
    /// The stream is dropped: nothing is sent any more.
    is_dropped: bool = false,

    const read_bytes = 16 * limits.KiB;
    /// Largest input buffer that is kept when it is empty.
    const kept_bytes = 2 * read_bytes;

    /// Whether a message is bulk: what a member must be told at once, however much it is. Bulk has
    /// a limit of its own.
    pub const Load = enum { usual, bulk };

    pub fn init(gpa: Allocator) Stream {
        return .{ .gpa = gpa, .out = .{ .gpa = gpa } };
    }

    /// A coordinator's stream to a process that may be no member.
    pub fn init_bounded(gpa: Allocator, budget: *Budget) Stream {
        return .{
            .gpa = gpa,
            .in_bytes_max = limits.newcomer_message_bytes_max,
            .out = .{ .gpa = gpa, .budget = budget },
            .out_bytes_max = limits.control_queue_bytes_max,
        };
    }

    pub fn deinit(stream: *Stream) void {
        stream.in_resize(0) catch unreachable; // freeing needs no memory
        stream.out.clear();
    }

    pub fn reset(stream: *Stream) void {
        stream.in.clearRetainingCapacity();
        stream.in_start = 0;
        stream.out.clear();
        stream.out_bulk = 0;
        stream.sent_bytes = 0;
    }

    /// Bytes of memory that would be freed without this stream.
    pub fn memory(stream: *const Stream) usize {
        return stream.in.capacity + stream.out.memory();
    }

    /// Where the driver puts bytes that it reads from the socket.
    pub fn recv_slice(stream: *Stream) Allocator.Error![]u8 {
        if (stream.in_start > 0) {
            const rest = stream.in.items[stream.in_start..];
            std.mem.copyForwards(u8, stream.in.items[0..rest.len], rest);
            stream.in.shrinkRetainingCapacity(rest.len);
            stream.in_start = 0;
        }
        const held = stream.in.items.len;
        if (held == 0 and stream.in.capacity > kept_bytes) try stream.in_resize(0);
        if (stream.in.capacity - held < read_bytes) {
            // The buffer doubles each time, until the longest message and the next read fit in it.
            const most = control.header_bytes + stream.in_bytes_max + read_bytes;
            const wanted = @max(held + read_bytes, @min(2 * stream.in.capacity, most));
            try stream.in_resize(wanted);
        }
        return stream.in.unusedCapacitySlice();
    }

    fn in_resize(stream: *Stream, capacity: usize) Allocator.Error!void {
        const before = stream.in.capacity;
        if (capacity > 0)
            try stream.in.ensureTotalCapacityPrecise(stream.gpa, capacity)
        else
            stream.in.clearAndFree(stream.gpa);
        const budget = stream.out.budget orelse return;
        budget.bytes = budget.bytes - before + stream.in.capacity;
    }

    pub fn received(stream: *Stream, count: usize) void {
        stream.in.items.len += count;
    }

    /// Takes bytes before the first message, such as a hello. Null until all bytes are here.
    pub fn take_raw(stream: *Stream, comptime count: usize) ?*const [count]u8 {
        if (stream.in.items.len - stream.in_start < count) return null;
        defer stream.in_start += count;
        return stream.in.items[stream.in_start..][0..count];
    }

    /// Takes the next complete message; null until there is one. The message refers to the stream's
    /// memory, and is valid until the next recv_slice. error.TooLong takes nothing.
    pub fn take(stream: *Stream) control.Error!?control.Message {
        const rest = stream.in.items[stream.in_start..];
        if (rest.len < control.header_bytes) return null;
        const body = try control.body_length(rest[0..control.header_bytes]);
        if (body > stream.in_bytes_max) return error.TooLong;
        const total = control.header_bytes + body;
        if (rest.len < total) return null;
        stream.in_start += total;
        return try control.decode(rest[0..total]);
    }

    pub fn send_raw(stream: *Stream, bytes: []const u8) Allocator.Error!void {
        try stream.out.put(bytes);
    }

    /// Adds a message to send. error.OutOfMemory: no memory, the other side has stopped reading
    /// (out_bytes_max), or the message is longer than any may be.
    pub fn send(stream: *Stream, message: control.Message) Allocator.Error!void {
        _ = try stream.append(&message, .usual);
    }

    /// Like `send`. Returns the encoded message, which other streams of the same owner may send
    /// until this stream is used again.
    pub fn append(
        stream: *Stream,
        message: *const control.Message,
        load: Load,
    ) Allocator.Error!Queue.Encoded {
        if (stream.is_full(load)) return error.OutOfMemory;
        const encoded = try stream.out.encode(message);
        if (load == .bulk) stream.out_bulk += encoded.bytes.len;
        return encoded;
    }

    /// Adds a message that `append` has encoded for another stream.
    pub fn append_encoded(
        stream: *Stream,
        encoded: *const Queue.Encoded,
        load: Load,
    ) Allocator.Error!void {
        if (stream.is_full(load)) return error.OutOfMemory;
        try stream.out.share(encoded);
        if (load == .bulk) stream.out_bulk += encoded.bytes.len;
    }

    pub fn is_full(stream: *const Stream, load: Load) bool {
        return stream.is_full_with(load, 0, 0);
    }

    /// Whether no message may be added if `bytes` wait elsewhere, of which `bulk` are bulk.
    pub fn is_full_with(stream: *const Stream, load: Load, bytes: usize, bulk: usize) bool {
        return stream.out.length + bytes > stream.out_bytes_max + switch (load) {
            .usual => stream.out_bulk + bulk,
            .bulk => limits.control_bulk_bytes_max,
        };
    }

    /// The next bytes to send, after which more may wait.
    pub fn send_slice(stream: *const Stream) []const u8 {
        return if (stream.is_dropped) &.{} else stream.out.front();
    }

    pub fn sent(stream: *Stream, count: usize) void {
        stream.out.sent(count);
        stream.sent_bytes += count;
        stream.out_bulk = @min(stream.out_bulk, stream.out.length);
    }

    /// The value of `sent_bytes` once all bytes that wait now are sent.
    pub fn told_bytes(stream: *const Stream) u64 {
        return stream.sent_bytes + stream.out.length;
    }

    /// Drops the waiting bytes, except for the last message, which other streams may still share.
    pub fn drop(stream: *Stream) void {
        stream.is_dropped = true;
        stream.out.clear_to_last();
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
    streams[1].sent(3); // the rest of the message is on its way
    const joined: control.Message = .{ .joined = .{ .name = .of("name"), .group = 1 } };
    const encoded = try streams[0].append(&joined, .usual);
    try streams[1].append_encoded(&encoded, .usual);
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

test "a side that reads nothing is told no more than the limit, and bulk has one of its own" {
    const gpa = std.testing.allocator;
    var budget: Budget = .{};
    var stream: Stream = .init_bounded(gpa, &budget);
    defer stream.deinit();
    const ack: control.Message = .{ .heartbeat_ack = .{ .number = 1 } };
    while (true) stream.send(ack) catch break;
    const full = stream.out.length;
    try std.testing.expect(full <= limits.control_queue_bytes_max + 64);
    try std.testing.expect(budget.bytes < full + full / 8);
    // A resume_op waits beyond the limit, and later messages are measured without it.
    const kept: [limits.chunks_max]control.KeptRange = @splat(.{
        .begin = 0,
        .end = 1,
        .reduced_attempt = 1,
        .holders = .empty,
    });
    const again: control.Message = .{ .resume_op = .{
        .group = 0,
        .epoch = 1,
        .attempt = 1,
        .op = .{ .tag = 0, .sequence = 0 },
        .kept = .of(&kept),
    } };
    const encoded = try stream.append(&again, .bulk);
    for (1..limits.operations_in_flight_max) |_| try stream.append_encoded(&encoded, .bulk);
    const bulk = stream.out.length - full;
    try std.testing.expectEqual(bulk, stream.out_bulk);
    try std.testing.expect(bulk <= limits.control_bulk_bytes_max);
    try std.testing.expectError(error.OutOfMemory, stream.send(ack));
    var left: usize = full / 2;
    while (left > 0) {
        const count = @min(left, stream.send_slice().len);
        stream.sent(count);
        left -= count;
    }
    try stream.send(ack);
    while (stream.send_slice().len > 0) stream.sent(stream.send_slice().len);
    try std.testing.expectEqual(0, stream.out_bulk);
    try std.testing.expectEqual(0, budget.bytes);
}

test "a newcomer's long message is an error at its header, and what came in is given back" {
    const gpa = std.testing.allocator;
    var budget: Budget = .{};
    var stream: Stream = .init_bounded(gpa, &budget);
    defer stream.deinit();
    const length = limits.newcomer_message_bytes_max + 1;
    var header: [control.header_bytes]u8 = @splat(0);
    std.mem.writeInt(u32, header[0..4], length, .little);
    std.mem.writeInt(u16, header[4..6], @intFromEnum(control.Message.join), .little);
    @memcpy((try stream.recv_slice())[0..header.len], &header);
    stream.received(header.len);
    try std.testing.expectError(error.TooLong, stream.take());
    // A member's message may be as long; its buffer is no larger than needed, and is freed when
    // empty.
    stream.in_bytes_max = limits.control_message_bytes_max;
    var left: usize = length;
    while (left > 0) {
        try std.testing.expectEqual(null, try stream.take());
        const room = try stream.recv_slice();
        const count = @min(room.len, left);
        @memset(room[0..count], 0);
        stream.received(count);
        left -= count;
    }
    try std.testing.expect(budget.bytes >= length);
    try std.testing.expect(std.meta.isError(stream.take())); // zeros are no join
    _ = try stream.recv_slice();
    try std.testing.expectEqual(Stream.read_bytes, budget.bytes);
}
