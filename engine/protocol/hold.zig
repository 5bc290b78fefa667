//! Hold: messages of a coordinator on one connection that nobody may hear yet, because they rely on
//! a record that is not on the disk. Each message waits for its own record, in the order of its
//! group, and nothing else waits: other groups, epochs that the record does not name, signs of
//! life. Which records there are, and when they are on the disk: journaling.zig. post.zig sends the
//! messages.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const control = wire.control;

/// The subject of a message.
pub const Subject = union(enum) {
    /// It relies on no record: signs of life, settings, the status.
    nothing,
    /// An answer that must not overtake any other, because it names no group by number.
    order,
    /// All of a group: it relies on every record of it.
    group: u16,
    /// It relies on the records that name this epoch, and on those of what was said of its group as
    /// a whole before.
    epoch: struct { group: u16, number: u64 },

    pub fn of(message: *const control.Message) Subject {
        return switch (message.*) {
            .refused => .order,
            inline else => |*body| {
                const Body = @TypeOf(body.*);
                if (!@hasField(Body, "group")) return .nothing;
                if (!@hasField(Body, "epoch")) return .{ .group = body.group };
                return .{ .epoch = .{ .group = body.group, .number = body.epoch } };
            },
        };
    }
};

pub const Hold = struct {
    entries: std.ArrayList(Entry) = .empty,
    /// The size of all messages here, and of those among them that are bulk (wire/stream.zig).
    bytes: usize = 0,
    bulk: usize = 0,

    /// The last record that anything here has waited for; that an answer to a join without a number
    /// has; and that what was said of each group as a whole has. Those that are on the disk since
    /// hold up nothing, so nothing is ever taken back.
    until: u64 = 0,
    order_until: u64 = 0,
    group_until: [base.limits.groups_max]u64 = @splat(0),

    /// One message, in a queue of its own, which others that are told the same may share.
    const Entry = struct {
        until: u64,
        /// When it came here.
        since: base.Instant,
        load: wire.Stream.Load,
        queue: wire.Queue,
    };

    pub fn deinit(hold: *Hold, gpa: Allocator) void {
        for (hold.entries.items) |*entry| entry.queue.clear();
        hold.entries.deinit(gpa);
    }

    /// Memory that would come back without it.
    pub fn memory(hold: *const Hold) usize {
        var bytes = hold.entries.capacity * @sizeOf(Entry);
        for (hold.entries.items) |*entry| bytes += entry.queue.memory();
        return bytes;
    }

    /// Since when the message has waited that has waited longest; null: nothing waits.
    pub fn waits_since(hold: *const Hold) ?base.Instant {
        return if (hold.entries.items.len > 0) hold.entries.items[0].since else null;
    }

    /// Whether more than may wait for a side that reads nothing waits here and in its stream.
    pub fn is_full(hold: *const Hold, stream: *const wire.Stream, load: wire.Stream.Load) bool {
        return stream.is_full_with(load, hold.bytes, hold.bulk);
    }

    /// The record that what is said next of this subject has to wait for, because it must not
    /// overtake what waits already. A message about a group as a whole waits for all of its records
    /// anyway, and one about an epoch for no fewer than before.
    pub fn behind(hold: *const Hold, subject: Subject) u64 {
        return switch (subject) {
            .nothing => 0,
            .order => hold.until,
            .group => hold.order_until,
            .epoch => |epoch| hold.group_until[epoch.group],
        };
    }

    fn note(hold: *Hold, subject: Subject, until: u64) void {
        hold.until = @max(hold.until, until);
        switch (subject) {
            .nothing, .epoch => {},
            .order => hold.order_until = @max(hold.order_until, until),
            .group => |group| if (group < hold.group_until.len) {
                hold.group_until[group] = @max(hold.group_until[group], until);
            },
        }
    }

    /// Keeps a message, which `encoded` has already, if it is not null; the message as it waits,
    /// for others until it leaves.
    pub fn keep(
        hold: *Hold,
        stream: *const wire.Stream,
        now: base.Instant,
        until: u64,
        message: *const control.Message,
        load: wire.Stream.Load,
        encoded: ?wire.Queue.Encoded,
    ) Allocator.Error!wire.Queue.Encoded {
        try hold.entries.ensureUnusedCapacity(stream.gpa, 1);
        var queue: wire.Queue = .{ .gpa = stream.gpa, .budget = stream.out.budget };
        if (encoded) |*other| try queue.share(other) else _ = try queue.encode(message);
        hold.entries.appendAssumeCapacity(.{
            .until = until,
            .since = now,
            .load = load,
            .queue = queue,
        });
        hold.bytes += queue.length;
        if (load == .bulk) hold.bulk += queue.length;
        hold.note(.of(message), until);
        return queue.only();
    }

    /// Moves what waits for nothing beyond `settled` to the stream; true if that was anything.
    /// After an error nothing here is of use any more.
    pub fn release(hold: *Hold, settled: u64, stream: *wire.Stream) Allocator.Error!bool {
        var kept: usize = 0;
        var index: usize = 0;
        // Also after an error each message is here once.
        defer {
            for (hold.entries.items[index..]) |entry| {
                hold.entries.items[kept] = entry;
                kept += 1;
            }
            hold.entries.shrinkRetainingCapacity(kept);
            // Rarely used, and then perhaps by hundreds of connections at once.
            if (kept == 0) hold.entries.clearAndFree(stream.gpa);
        }
        var any = false;
        while (index < hold.entries.items.len) : (index += 1) {
            const entry = &hold.entries.items[index];
            if (entry.until > settled) {
                hold.entries.items[kept] = entry.*;
                kept += 1;
                continue;
            }
            const only = entry.queue.only();
            // There was room for what is there already.
            try stream.out.share(&only);
            if (entry.load == .bulk) {
                stream.out_bulk += only.bytes.len;
                hold.bulk -= only.bytes.len;
            }
            hold.bytes -= only.bytes.len;
            entry.queue.clear();
            any = true;
        }
        return any;
    }
};

const gpa_of_tests = std.testing.allocator;

test "what waits leaves in the order of its group, and nothing overtakes what it must not" {
    var hold: Hold = .{};
    defer hold.deinit(gpa_of_tests);
    var stream: wire.Stream = .init(gpa_of_tests);
    defer stream.deinit();
    const activate: Subject = .{ .epoch = .{ .group = 1, .number = 7 } };
    const closing: control.Message = .{ .resume_all = .{ .group = 1, .epoch = 7, .attempt = 1 } };
    const joined: control.Message = .{ .joined = .{ .name = .of("name"), .group = 2 } };
    try std.testing.expectEqual(activate, Subject.of(&closing));
    const length = (try hold.keep(&stream, 0, 5, &closing, .usual, null)).bytes.len;
    // It holds up neither another epoch, nor another group, nor signs of life.
    try std.testing.expectEqual(0, hold.behind(.{ .epoch = .{ .group = 1, .number = 6 } }));
    try std.testing.expectEqual(0, hold.behind(.{ .group = 2 }));
    try std.testing.expectEqual(0, hold.behind(.of(&.{ .heartbeat_ack = .{ .number = 1 } })));
    _ = try hold.keep(&stream, 0, 3, &joined, .usual, null);
    try std.testing.expectEqual(3, hold.behind(.{ .epoch = .{ .group = 2, .number = 1 } }));
    try std.testing.expectEqual(0, hold.behind(.{ .epoch = .{ .group = 1, .number = 6 } }));
    const refused: control.Message = .{ .refused = .{ .name = .of("x"), .why = .of("y") } };
    try std.testing.expectEqual(5, hold.behind(.of(&refused)));
    _ = try hold.keep(&stream, 0, 5, &refused, .usual, null);
    try std.testing.expectEqual(5, hold.behind(.{ .group = 2 }));
    _ = try hold.keep(&stream, 0, 5, &closing, .usual, null);

    try std.testing.expect(!try hold.release(2, &stream));
    try std.testing.expect(try hold.release(3, &stream));
    const first = try control.decode(stream.send_slice());
    try std.testing.expectEqual(2, first.joined.group);
    stream.sent(stream.send_slice().len);
    try std.testing.expect(try hold.release(5, &stream));
    const rest = stream.send_slice();
    const last = rest.len - length;
    for ([_][]const u8{ rest[0..length], rest[last..] }) |bytes| {
        const message = try control.decode(bytes);
        try std.testing.expectEqual(7, message.resume_all.epoch);
    }
    const middle = try control.decode(rest[length..last]);
    try std.testing.expectEqualStrings("y", middle.refused.why.data);
    try std.testing.expect(!try hold.release(9, &stream));
}

test "what leaves in bulk is bulk in the stream, and not in the hold any more" {
    var hold: Hold = .{};
    defer hold.deinit(gpa_of_tests);
    var stream: wire.Stream = .init(gpa_of_tests);
    defer stream.deinit();
    const message: control.Message = .{ .resume_all = .{ .group = 1, .epoch = 7, .attempt = 1 } };
    const length = (try hold.keep(&stream, 0, 5, &message, .bulk, null)).bytes.len;
    _ = try hold.keep(&stream, 0, 5, &message, .usual, null);
    try std.testing.expectEqual([_]usize{ 2 * length, length }, [_]usize{ hold.bytes, hold.bulk });
    try std.testing.expect(try hold.release(5, &stream));
    try std.testing.expectEqual([_]usize{ 0, 0 }, [_]usize{ hold.bytes, hold.bulk });
    try std.testing.expectEqual(length, stream.out_bulk);
}
