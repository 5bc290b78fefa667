//! Queue: the bytes that one stream has still to send, in segments that are freed once they are
//! sent. So sending copies nothing, and an empty queue holds almost no memory. A long message has a
//! segment of its own, which the queues of all its receivers share. stream.zig has the limits.

const std = @import("std");
const base = @import("base");
const control = @import("control.zig");
const Allocator = std.mem.Allocator;
const assert = std.debug.assert;

/// The memory of many streams together. Streams count it; their owner acts when `is_over` is true.
pub const Budget = struct {
    bytes: usize = 0,
    bytes_max: usize = std.math.maxInt(usize),

    pub fn is_over(budget: *const Budget) bool {
        return budget.bytes > budget.bytes_max;
    }
};

pub const Queue = struct {
    gpa: Allocator,
    budget: ?*Budget = null,
    first: ?*Piece = null,
    last: ?*Piece = null,
    /// Bytes that wait to be sent.
    length: usize = 0,

    /// Bytes of the first segment of an empty queue, which is kept after its bytes are sent.
    const first_bytes = 1 * base.limits.KiB;
    const segment_bytes = 16 * base.limits.KiB;

    /// A segment as a part of one queue.
    const Piece = struct { segment: *Segment, start: usize = 0, next: ?*Piece = null };

    const Segment = struct {
        bytes: []u8,
        length: usize = 0,
        /// Number of queues that the segment is in.
        users: usize = 1,
        /// The segment holds one long message, and no message is added to it.
        is_sealed: bool = false,
        /// The piece for the queue that made the segment.
        own: Piece,

        fn free_room(segment: *const Segment) []u8 {
            return if (segment.is_sealed) &.{} else segment.bytes[segment.length..];
        }
    };

    /// A message as it was encoded into a queue.
    pub const Encoded = struct { bytes: []const u8, segment: *Segment };

    pub fn clear(queue: *Queue) void {
        while (queue.first != null) queue.drop_first();
        queue.length = 0;
    }

    /// Drops all segments except for the last one, whose message other queues may be about to
    /// share.
    pub fn clear_to_last(queue: *Queue) void {
        while (queue.first != queue.last) {
            queue.length -= queue.first.?.segment.length - queue.first.?.start;
            queue.drop_first();
        }
    }

    /// The next contiguous bytes to send; empty if nothing waits.
    pub fn front(queue: *const Queue) []const u8 {
        const piece = queue.first orelse return &.{};
        return piece.segment.bytes[piece.start..piece.segment.length];
    }

    pub fn sent(queue: *Queue, count: usize) void {
        var left = count;
        queue.length -= count;
        while (queue.first) |piece| {
            const here = piece.segment.length - piece.start;
            if (left < here) {
                piece.start += left;
                return;
            }
            left -= here;
            if (queue.keep_first(piece)) break;
            queue.drop_first();
        }
        assert(left == 0);
    }

    pub fn put(queue: *Queue, bytes: []const u8) Allocator.Error!void {
        const room = try queue.room_for(bytes.len);
        @memcpy(room[0..bytes.len], bytes);
        queue.take_up(bytes.len);
    }

    /// Encodes a message at the end of the queue. error.OutOfMemory: no memory, or the message
    /// exceeds the limit of all messages.
    pub fn encode(queue: *Queue, message: *const control.Message) Allocator.Error!Encoded {
        if (queue.last) |piece| {
            if (control.encode(message.*, piece.segment.free_room())) |bytes| {
                queue.take_up(bytes.len);
                return .{ .bytes = bytes, .segment = piece.segment };
            } else |_| {}
        }
        var wanted = queue.next_bytes();
        while (true) : (wanted *= 4) {
            const segment = try queue.create(wanted);
            const bytes = control.encode(message.*, segment.bytes) catch {
                release(queue.gpa, queue.budget, segment);
                if (wanted > 2 * base.limits.control_message_bytes_max) return error.OutOfMemory;
                continue;
            };
            if (wanted > segment_bytes) queue.seal(segment, bytes.len);
            queue.push(&segment.own);
            queue.take_up(bytes.len);
            return .{ .bytes = segment.bytes[0..bytes.len], .segment = segment };
        }
    }

    /// Adds a message that another queue of the same owner has encoded.
    pub fn share(queue: *Queue, encoded: *const Encoded) Allocator.Error!void {
        if (!encoded.segment.is_sealed) return queue.put(encoded.bytes);
        const piece = try queue.gpa.create(Piece);
        piece.* = .{ .segment = encoded.segment };
        encoded.segment.users += 1;
        queue.push(piece);
        queue.length += encoded.bytes.len;
    }

    /// The message in a queue that holds exactly one message.
    pub fn only(queue: *const Queue) Encoded {
        return .{ .bytes = queue.front(), .segment = queue.first.?.segment };
    }

    /// Bytes of memory that would be freed without this queue, with its part of shared segments.
    pub fn memory(queue: *const Queue) usize {
        var bytes: usize = 0;
        var next = queue.first;
        while (next) |piece| : (next = piece.next) {
            bytes += piece.segment.bytes.len / piece.segment.users;
        }
        return bytes;
    }

    fn next_bytes(queue: *const Queue) usize {
        return if (queue.first == null) first_bytes else segment_bytes;
    }

    /// Room at the end of the queue, which `take_up` adds to the queue once it is filled.
    fn room_for(queue: *Queue, count: usize) Allocator.Error![]u8 {
        if (queue.last) |piece| {
            const room = piece.segment.free_room();
            if (room.len >= count) return room;
        }
        const segment = try queue.create(@max(count, queue.next_bytes()));
        queue.push(&segment.own);
        return segment.bytes;
    }

    fn take_up(queue: *Queue, count: usize) void {
        queue.last.?.segment.length += count;
        queue.length += count;
    }

    fn create(queue: *Queue, bytes: usize) Allocator.Error!*Segment {
        const segment = try queue.gpa.create(Segment);
        errdefer queue.gpa.destroy(segment);
        segment.* = .{ .bytes = try queue.gpa.alloc(u8, bytes), .own = .{ .segment = segment } };
        if (queue.budget) |budget| budget.bytes += bytes;
        return segment;
    }

    /// Frees what a long message leaves unused of its segment. If that fails, the rest stays
    /// unused.
    fn seal(queue: *Queue, segment: *Segment, length: usize) void {
        segment.is_sealed = true;
        const before = segment.bytes.len;
        segment.bytes = queue.gpa.realloc(segment.bytes, length) catch return;
        if (queue.budget) |budget| budget.bytes -= before - length;
    }

    fn push(queue: *Queue, piece: *Piece) void {
        // An empty segment that was kept for short messages would hide the segments behind it.
        if (queue.length == 0 and queue.first != null) queue.drop_first();
        if (queue.last) |last| last.next = piece else queue.first = piece;
        queue.last = piece;
    }

    fn keep_first(queue: *Queue, piece: *Piece) bool {
        const segment = piece.segment;
        const is_usual = segment.bytes.len == first_bytes and !segment.is_sealed;
        if (piece != queue.last or !is_usual) return false;
        segment.length = 0;
        piece.start = 0;
        return true;
    }

    fn drop_first(queue: *Queue) void {
        const piece = queue.first.?;
        const segment = piece.segment;
        queue.first = piece.next;
        if (queue.first == null) queue.last = null;
        if (piece != &segment.own) queue.gpa.destroy(piece);
        release(queue.gpa, queue.budget, segment);
    }

    fn release(gpa: Allocator, budget: ?*Budget, segment: *Segment) void {
        segment.users -= 1;
        if (segment.users > 0) return;
        if (budget) |of_all| of_all.bytes -= segment.bytes.len;
        gpa.free(segment.bytes);
        gpa.destroy(segment);
    }
};

const gpa_of_tests = std.testing.allocator;

test "memory comes back as bytes are sent, and the order of bytes is that of the messages" {
    var budget: Budget = .{};
    var queue: Queue = .{ .gpa = gpa_of_tests, .budget = &budget };
    defer queue.clear();
    var bytes: [100]u8 = undefined;
    const count = 10_000;
    for (0..count) |index| {
        @memset(&bytes, @truncate(index));
        try queue.put(&bytes);
    }
    try std.testing.expectEqual(count * bytes.len, queue.length);
    const full = budget.bytes;
    try std.testing.expect(full < queue.length + queue.length / 8);
    try std.testing.expectEqual(full, queue.memory());
    var offset: usize = 0;
    while (queue.length > 0) {
        const front = queue.front();
        try std.testing.expect(front.len > 0);
        const part = @min(front.len, 77);
        for (front[0..part], offset..) |byte, at| {
            try std.testing.expectEqual(@as(u8, @truncate(at / bytes.len)), byte);
        }
        queue.sent(part);
        offset += part;
        // Sent bytes are freed, except for the segment that is being sent.
        try std.testing.expect(budget.bytes <= queue.length + queue.length / 8 + 2 * 16 * 1024);
    }
    try std.testing.expectEqual(count * bytes.len, offset);
    try std.testing.expectEqual(0, budget.bytes);
    // Short messages come and go in one kept segment.
    for (0..100) |index| {
        try queue.put(bytes[0 .. 10 + index % 7]);
        queue.sent(queue.front().len);
        try std.testing.expectEqual(Queue.first_bytes, budget.bytes);
    }
    const long: [Queue.first_bytes + 1]u8 = @splat('l');
    try queue.put(&long);
    try std.testing.expectEqualStrings(&long, queue.front());
    queue.sent(long.len);
}

test "a long message is in memory once for all queues that it is in, until the last has sent it" {
    var budget: Budget = .{};
    var queues: [3]Queue = @splat(.{ .gpa = gpa_of_tests, .budget = &budget });
    defer for (&queues) |*queue| queue.clear();
    const json: [100 * 1024]u8 = @splat('j');
    const encoded = try queues[0].encode(&.{ .status_reply = .{ .json = .of(&json) } });
    for (queues[1..]) |*queue| {
        try queue.put("before");
        try queue.share(&encoded);
        try queue.put("after");
    }
    try std.testing.expect(budget.bytes < encoded.bytes.len + 3 * 17 * 1024);
    try std.testing.expect(queues[1].memory() < encoded.bytes.len * 2 / 3);
    const length = queues[0].length;
    queues[0].sent(length);
    for (queues[1..]) |*queue| {
        queue.sent("before".len);
        try std.testing.expectEqual(length, queue.front().len);
        try std.testing.expectEqualSlices(u8, &json, queue.front()[length - json.len ..]);
        queue.sent(length);
        try std.testing.expectEqualStrings("after", queue.front());
        queue.sent("after".len);
    }
    try std.testing.expectEqual(0, budget.bytes);
    for (&queues) |*queue| try std.testing.expectEqual(0, queue.memory());
}

test "a queue that is cleared holds no more than the end that others may look at" {
    var budget: Budget = .{};
    var queue: Queue = .{ .gpa = gpa_of_tests, .budget = &budget };
    const bytes: [10 * 1024]u8 = @splat(1);
    for (0..100) |_| try queue.put(&bytes);
    queue.clear_to_last();
    try std.testing.expect(queue.length <= 16 * 1024 and budget.bytes <= 16 * 1024);
    queue.clear();
    try std.testing.expectEqual(0, budget.bytes);
    try std.testing.expectEqual(0, queue.length);
}
