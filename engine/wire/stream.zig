//! Stream: one control connection as bytes in and bytes out, without a socket. The driver moves
//! bytes; the owner of the stream sends messages and takes whole ones out. Sending never blocks:
//! bytes wait here, within the limits of their stream (limits.zig). How they wait: queue.zig.

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
    /// Start of what has not been taken yet.
    in_start: usize = 0,
    /// A message whose body is longer is an error, before it is all there.
    in_bytes_max: usize = limits.control_message_bytes_max,
    out: Queue,
    /// The most bytes that wait when a message is added: a side that reads nothing cannot make the
    /// other hold more. And the waiting bulk, which adds to it.
    out_bytes_max: usize = limits.report_queue_bytes_max,
    out_bulk: usize = 0,
    /// All bytes that have gone to the driver.
    sent_bytes: u64 = 0,
    /// Nothing is sent any more.
    is_dropped: bool = false,

    const read_bytes = 16 * limits.KiB;
    /// A larger buffer goes once it is empty.
    const kept_bytes = 2 * read_bytes;

    /// Everything that a member must be told at once, however much it is, is bulk: it has a limit
    /// of its own.
    pub const Load = enum { usual, bulk };

    pub fn init(gpa: Allocator) Stream {
        return .{ .gpa = gpa, .out = .{ .gpa = gpa } };
    }

    /// For a coordinator and somebody who need not be a member.
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

    /// Memory that would come back without this stream.
    pub fn memory(stream: *const Stream) usize {
        return stream.in.capacity + stream.out.memory();
    }

    /// Where the driver puts bytes from the socket.
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
            // Twice as much each time, until the longest message fits with the next read.
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

    /// Fixed-size bytes before the messages (a hello); null until all are there.
    pub fn take_raw(stream: *Stream, comptime count: usize) ?*const [count]u8 {
        if (stream.in.items.len - stream.in_start < count) return null;
        defer stream.in_start += count;
        return stream.in.items[stream.in_start..][0..count];
    }

    /// The next whole message; null until one is there. It refers to the stream's memory and is
    /// valid until the next recv_slice. error.TooLong takes nothing.
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

    /// error.OutOfMemory also when the other side has stopped reading (out_bytes_max), or when the
    /// message is larger than any may be.
    pub fn send(stream: *Stream, message: control.Message) Allocator.Error!void {
        _ = try stream.append(&message, .usual);
    }

    /// The same; the message as it waits, for other streams of the same owner until this one is
    /// used again.
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

    /// The same with what `append` has made of a message for another stream.
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

    /// With so many bytes that wait elsewhere, as bulk or not.
    pub fn is_full_with(stream: *const Stream, load: Load, bytes: usize, bulk: usize) bool {
        return stream.out.length + bytes > stream.out_bytes_max + switch (load) {
            .usual => stream.out_bulk + bulk,
            .bulk => limits.control_bulk_bytes_max,
        };
    }

    /// The bytes to be sent next; there may be more behind it.
    pub fn send_slice(stream: *const Stream) []const u8 {
        return if (stream.is_dropped) &.{} else stream.out.front();
    }

    pub fn sent(stream: *Stream, count: usize) void {
        stream.out.sent(count);
        stream.sent_bytes += count;
        stream.out_bulk = @min(stream.out_bulk, stream.out.length);
    }

    /// The bytes that will have gone when all that waits now has.
    pub fn told_bytes(stream: *const Stream) u64 {
        return stream.sent_bytes + stream.out.length;
    }

    /// Gives up what waits, but for the last message, which others may still be told.
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
    streams[1].sent(3); // on its way
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
    // A resume goes on top, and what comes behind it is measured without it.
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
    // A member may say that much; its buffer is no larger than needed, and goes when it is empty.
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
