//! Units: cuts the bytes of one end of a connection into their units: the hello or its answer, then
//! whole messages or frames. The text of a trace (tap.zig), eavesdroppers (overheard.zig) and liars
//! (insider.zig) read connections through it. It draws nothing and changes nothing.

const std = @import("std");
const wire = @import("wire");
const Allocator = std.mem.Allocator;

pub const Unit = struct {
    kind: Kind,
    /// Valid until the next call of feed().
    bytes: []const u8,

    pub const Kind = enum {
        hello,
        answer,
        message,
        /// A header and its payload.
        frame,
        /// Bytes that follow on something that is none of these.
        noise,
    };
};

pub const Units = struct {
    bytes: std.ArrayList(u8) = .empty,
    start: usize = 0,
    greeted: bool = false,
    lost: bool = false,

    pub fn feed(units: *Units, gpa: Allocator, bytes: []const u8) void {
        const rest = units.bytes.items[units.start..];
        std.mem.copyForwards(u8, units.bytes.items[0..rest.len], rest);
        units.bytes.shrinkRetainingCapacity(rest.len);
        units.start = 0;
        units.bytes.appendSlice(gpa, bytes) catch @panic("out of memory");
    }

    /// The next whole one of what the given side of a connection sends; null until it is there.
    pub fn next(units: *Units, is_control: bool, side: u1) ?Unit {
        const rest = units.bytes.items[units.start..];
        if (rest.len == 0) return null;
        const unit = units.unit_of(rest, is_control, side) orelse return null;
        units.start += unit.bytes.len;
        return unit;
    }

    /// The bytes that have come of a unit that is not whole yet.
    pub fn unfinished(units: *const Units) usize {
        return units.bytes.items.len - units.start;
    }

    fn unit_of(units: *Units, rest: []const u8, is_control: bool, side: u1) ?Unit {
        if (units.lost) return .{ .kind = .noise, .bytes = rest };
        if (!units.greeted) {
            const hello = wire.hello;
            const length: usize = if (side == 0) hello.hello_bytes else hello.answer_bytes;
            if (rest.len < length) return null;
            units.greeted = true;
            return .{ .kind = if (side == 0) .hello else .answer, .bytes = rest[0..length] };
        }
        const total = length_of(rest, is_control) catch {
            units.lost = true;
            return .{ .kind = .noise, .bytes = rest };
        } orelse return null;
        if (rest.len < total) return null;
        return .{ .kind = if (is_control) .message else .frame, .bytes = rest[0..total] };
    }

    /// Null until its header is there.
    fn length_of(rest: []const u8, is_control: bool) !?usize {
        const message_header = wire.control.header_bytes;
        const frame_header = wire.frame.header_bytes;
        if (is_control) {
            if (rest.len < message_header) return null;
            return message_header + try wire.control.body_length(rest[0..message_header]);
        }
        if (rest.len < frame_header) return null;
        const header = try wire.frame.decode(rest[0..frame_header]);
        return frame_header + header.payload_bytes;
    }
};

test "units are found however the bytes come, and what is none of them is noise" {
    const gpa = std.testing.allocator;
    var bytes: [300]u8 = undefined;
    var writer: std.Io.Writer = .fixed(&bytes);
    try writer.writeAll(&wire.hello.encode(.{
        .purpose = .control,
        .run_id = @splat(1),
        .from = .from_int(2),
    }));
    var message: [64]u8 = undefined;
    const leave: wire.control.Message = .{ .leave = .{ .group = 3 } };
    for (0..2) |_| try writer.writeAll(try wire.control.encode(leave, &message));
    try writer.writeAll(&@as([8]u8, @splat(0xff)));
    for ([_]usize{ 1, 7, 300 }) |step| {
        var units: Units = .{};
        defer units.bytes.deinit(gpa);
        var kinds: [8]Unit.Kind = undefined;
        var count: usize = 0;
        var at: usize = 0;
        while (at < writer.end) : (at += step) {
            units.feed(gpa, bytes[at..@min(writer.end, at + step)]);
            while (units.next(true, 0)) |unit| : (count += 1) {
                if (count < kinds.len) kinds[count] = unit.kind;
            }
        }
        try std.testing.expectEqualSlices(
            Unit.Kind,
            &.{ .hello, .message, .message, .noise },
            kinds[0..4],
        );
        try std.testing.expectEqual(0, units.unfinished());
    }
}
