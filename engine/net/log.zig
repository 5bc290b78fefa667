//! log: the events of the library, kept until the program asks for them (pccl_log_next). The
//! library never prints. There is one queue per process; when the program reads no lines, the
//! oldest are dropped. The engines write to the queue.

const std = @import("std");
const base = @import("base");
const lock = @import("lock.zig");
const assert = std.debug.assert;

pub const Level = enum(u8) { debug = 0, info = 1, warning = 2, err = 3 };

/// The most bytes of a line; a longer line is cut.
pub const line_bytes_max = base.limits.log_line_bytes_max;
const lines_max = 1024;

const Line = struct {
    level: Level,
    length: u16,
    text: [line_bytes_max]u8,
};

pub const Queue = struct {
    lock: lock.FairLock = .{},
    lines: [lines_max]Line = undefined,
    first: usize = 0,
    count: usize = 0,
    /// The number of lines dropped since the last take.
    lost: u64 = 0,

    pub fn put(queue: *Queue, level: Level, text: []const u8) void {
        queue.lock.lock();
        defer queue.lock.unlock();
        if (queue.count == lines_max) {
            queue.first = (queue.first + 1) % lines_max;
            queue.count -= 1;
            queue.lost += 1;
        }
        const line = &queue.lines[(queue.first + queue.count) % lines_max];
        line.level = level;
        line.length = @intCast(base.text.show(text, &line.text).len);
        queue.count += 1;
    }

    pub const Taken = struct { level: Level, text: []const u8 };

    /// Takes the oldest line. A gap is reported as a line of its own. Null means that there is no
    /// line.
    pub fn take(queue: *Queue, text: *[line_bytes_max]u8) ?Taken {
        queue.lock.lock();
        defer queue.lock.unlock();
        if (queue.lost > 0) {
            defer queue.lost = 0;
            const sentence = "{d} log lines were lost because nobody read them";
            const gap = std.fmt.bufPrint(text, sentence, .{queue.lost}) catch unreachable;
            return .{ .level = .warning, .text = gap };
        }
        if (queue.count == 0) return null;
        const line = &queue.lines[queue.first];
        queue.first = (queue.first + 1) % lines_max;
        queue.count -= 1;
        @memcpy(text[0..line.length], line.text[0..line.length]);
        return .{ .level = line.level, .text = text[0..line.length] };
    }
};

pub var process: Queue = .{};

/// Called in a child of fork(): a thread that the child does not have may have held the lock. Every
/// step of put and take leaves the queue usable.
pub fn forked() void {
    process.lock = .{};
}

pub fn put(level: Level, text: []const u8) void {
    process.put(level, text);
}

pub fn print(level: Level, comptime format: []const u8, arguments: anytype) void {
    var text: [line_bytes_max]u8 = undefined;
    var writer: std.Io.Writer = .fixed(&text);
    // A line that does not fit is cut, as in `put`.
    writer.print(format, arguments) catch assert(writer.end == text.len);
    put(level, writer.buffered());
}

test "lines come out in order, long ones cut, and a gap says how long it is" {
    const queue = try std.testing.allocator.create(Queue);
    defer std.testing.allocator.destroy(queue);
    queue.* = .{};
    var text: [line_bytes_max]u8 = undefined;
    try std.testing.expectEqual(null, queue.take(&text));
    queue.put(.info, "x" ** (line_bytes_max + 1));
    try std.testing.expectEqual(line_bytes_max, queue.take(&text).?.text.len);
    for (0..lines_max + 7) |index| {
        var number: [8]u8 = undefined;
        queue.put(.debug, std.fmt.bufPrint(&number, "{d}", .{index}) catch unreachable);
    }
    try std.testing.expect(std.mem.startsWith(u8, queue.take(&text).?.text, "7 log lines"));
    for (7..lines_max + 7) |index| {
        const taken = queue.take(&text).?;
        try std.testing.expectEqual(.debug, taken.level);
        try std.testing.expectEqual(index, try std.fmt.parseInt(usize, taken.text, 10));
    }
    try std.testing.expectEqual(null, queue.take(&text));
}
