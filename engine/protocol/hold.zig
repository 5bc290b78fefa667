//! Hold: what a coordinator has said on one connection and nobody may hear yet, because what it
//! relies on is not on the disk. Each message waits for its own record, in the order of its group,
//! and nothing else does: other groups, epochs that the record does not name, signs of life. Which
//! records there are, and when they are on the disk: recovery.zig. Who sends: coordinator.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const control = wire.control;

/// What a message tells about.
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
    bytes: std.ArrayList(u8) = .empty,
    entries: std.ArrayList(Entry) = .empty,

    /// The last record that anything here has waited for; that an answer to a join without a number
    /// has; and that what was said of each group as a whole has. Those that are on the disk since
    /// hold up nothing, so nothing is ever taken back.
    until: u64 = 0,
    order_until: u64 = 0,
    group_until: [base.limits.groups_max]u64 = @splat(0),

    const Entry = struct { until: u64, length: usize };

    pub fn deinit(hold: *Hold, gpa: Allocator) void {
        hold.bytes.deinit(gpa);
        hold.entries.deinit(gpa);
    }

    /// The record that what is said next of this subject has to wait for, because it must not
    /// overtake what waits already. What is said of a group as a whole waits for all of its records
    /// anyway, and what is said of an epoch for no fewer than before.
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

    /// Keeps a message; its bytes stay where they are until the hold is used again.
    pub fn keep(
        hold: *Hold,
        gpa: Allocator,
        until: u64,
        message: *const control.Message,
        encoded: ?[]const u8,
    ) Allocator.Error![]const u8 {
        try hold.entries.ensureUnusedCapacity(gpa, 1);
        const before = hold.bytes.items.len;
        if (encoded) |bytes|
            try hold.bytes.appendSlice(gpa, bytes)
        else
            _ = try wire.Stream.encode_into(gpa, &hold.bytes, message);
        const kept = hold.bytes.items[before..];
        hold.entries.appendAssumeCapacity(.{ .until = until, .length = kept.len });
        hold.note(.of(message), until);
        return kept;
    }

    /// Moves what waits for nothing beyond `settled` to the stream; true if that was anything.
    /// After an error nothing here is of use any more.
    pub fn release(
        hold: *Hold,
        gpa: Allocator,
        settled: u64,
        stream: *wire.Stream,
    ) Allocator.Error!bool {
        var taken: usize = 0;
        var kept_entries: usize = 0;
        var kept_bytes: usize = 0;
        for (hold.entries.items) |entry| {
            const bytes = hold.bytes.items[taken..][0..entry.length];
            taken += entry.length;
            if (entry.until <= settled) {
                try stream.append_encoded(bytes);
                continue;
            }
            std.mem.copyForwards(u8, hold.bytes.items[kept_bytes..][0..bytes.len], bytes);
            hold.entries.items[kept_entries] = entry;
            kept_entries += 1;
            kept_bytes += entry.length;
        }
        const any = kept_entries < hold.entries.items.len;
        hold.entries.shrinkRetainingCapacity(kept_entries);
        hold.bytes.shrinkRetainingCapacity(kept_bytes);
        // Rarely used, and then perhaps by hundreds of connections at once.
        if (kept_entries == 0) {
            hold.entries.clearAndFree(gpa);
            hold.bytes.clearAndFree(gpa);
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
    const encoded = try hold.keep(gpa_of_tests, 5, &closing, null);
    const length = encoded.len;
    // It holds up neither another epoch, nor another group, nor signs of life.
    try std.testing.expectEqual(0, hold.behind(.{ .epoch = .{ .group = 1, .number = 6 } }));
    try std.testing.expectEqual(0, hold.behind(.{ .group = 2 }));
    try std.testing.expectEqual(0, hold.behind(.of(&.{ .heartbeat_ack = .{ .number = 1 } })));
    _ = try hold.keep(gpa_of_tests, 3, &joined, null);
    try std.testing.expectEqual(3, hold.behind(.{ .epoch = .{ .group = 2, .number = 1 } }));
    try std.testing.expectEqual(0, hold.behind(.{ .epoch = .{ .group = 1, .number = 6 } }));
    const refused: control.Message = .{ .refused = .{ .name = .of("x"), .why = .of("y") } };
    try std.testing.expectEqual(5, hold.behind(.of(&refused)));
    _ = try hold.keep(gpa_of_tests, 5, &refused, null);
    try std.testing.expectEqual(5, hold.behind(.{ .group = 2 }));
    _ = try hold.keep(gpa_of_tests, 5, &closing, null);

    try std.testing.expect(!try hold.release(gpa_of_tests, 2, &stream));
    try std.testing.expect(try hold.release(gpa_of_tests, 3, &stream));
    const first = try control.decode(stream.send_slice());
    try std.testing.expectEqual(2, first.joined.group);
    stream.sent(stream.send_slice().len);
    try std.testing.expect(try hold.release(gpa_of_tests, 5, &stream));
    const rest = stream.send_slice();
    const last = rest.len - length;
    for ([_][]const u8{ rest[0..length], rest[last..] }) |bytes| {
        const message = try control.decode(bytes);
        try std.testing.expectEqual(7, message.resume_all.epoch);
    }
    const middle = try control.decode(rest[length..last]);
    try std.testing.expectEqualStrings("y", middle.refused.why.data);
    try std.testing.expect(!try hold.release(gpa_of_tests, 9, &stream));
}
