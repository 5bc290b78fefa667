//! fault: faults that a test can cause. A first variable ends or freezes this process at a named
//! point of the engine:
//!
//!     PCCL_FAULT_POINT=[stop=|panic=]<name>[:<sequence>[:<fraction>]]
//!
//! for example operation.settled:5:0.5: SIGKILL when half of the chunks of an all_reduce with
//! sequence number 5 are settled. stop= sends SIGSTOP instead; panic= does what a bug of the engine
//! would do. An empty sequence is any. The fault happens once. session/session.zig names the
//! points. A second variable slows the disk of a coordinator down:
//!
//!     PCCL_FAULT_DISK=<seconds>[:<writes>]
//!
//! for each write of the journal, except the first <writes> and the one of the start. Without the
//! variables this file does nothing.

const std = @import("std");
const session = @import("session");
const c = std.c;
const Point = session.FaultPoint;

pub const Fault = struct {
    point: Point,
    sequence: ?u64 = null,
    /// The part of the chunks that must be settled before the fault happens.
    fraction: f64 = 0,
    action: Action = .kill,

    const Action = enum { kill, stop, panic };

    pub const ParseError = error{BadFaultPoint};

    pub fn parse(text: []const u8) ParseError!Fault {
        var action: Action = .kill;
        var rest = text;
        if (std.mem.findScalar(u8, text, '=')) |end| {
            action = std.meta.stringToEnum(Action, text[0..end]) orelse return error.BadFaultPoint;
            rest = text[end + 1 ..];
        }
        var parts = std.mem.splitScalar(u8, rest, ':');
        var fault: Fault = .{
            .point = point_named(parts.first()) orelse return error.BadFaultPoint,
            .action = action,
        };
        if (parts.next()) |sequence| if (sequence.len > 0) {
            fault.sequence = std.fmt.parseInt(u64, sequence, 10) catch return error.BadFaultPoint;
        };
        if (parts.next()) |fraction| {
            fault.fraction = std.fmt.parseFloat(f64, fraction) catch return error.BadFaultPoint;
            if (!(fault.fraction >= 0 and fault.fraction <= 1)) return error.BadFaultPoint;
        }
        if (parts.next() != null) return error.BadFaultPoint;
        return fault;
    }

    /// Reads PCCL_FAULT_POINT; null if it is unset or empty.
    pub fn from_environment() ParseError!?Fault {
        const value = std.mem.span(c.getenv("PCCL_FAULT_POINT") orelse return null);
        return if (value.len > 0) try parse(value) else null;
    }

    pub fn matches(fault: *const Fault, point: Point, sequence: u64, done: u64, total: u64) bool {
        if (point != fault.point) return false;
        if (fault.sequence) |wanted| if (sequence != wanted) return false;
        return @as(f64, @floatFromInt(done)) >= fault.fraction * @as(f64, @floatFromInt(total));
    }

    /// Causes the fault; does not return when the process is to die. The signal goes to this
    /// thread, which stops here and now: any thread could take a signal to the process, and this
    /// thread would go on for a while.
    pub fn strike(fault: *const Fault) void {
        switch (fault.action) {
            .kill => _ = c.raise(.KILL),
            .stop => _ = c.raise(.STOP),
            .panic => overflow(),
        }
    }

    /// Overflows an integer, which ends the process only in a library that checks itself.
    fn overflow() void {
        var count: u8 = std.math.maxInt(u8);
        std.mem.doNotOptimizeAway(&count);
        count += 1;
        std.mem.doNotOptimizeAway(&count);
    }

    /// The point of a name: .operation_settled for "operation.settled".
    fn point_named(wanted: []const u8) ?Point {
        inline for (comptime std.enums.values(Point)) |point| {
            const tag = @tagName(point);
            const split = comptime std.mem.lastIndexOfScalar(u8, tag, '_').?;
            const name = tag[0..split] ++ "." ++ tag[split + 1 ..];
            if (std.mem.eql(u8, wanted, name)) return point;
        }
        return null;
    }
};

/// How much longer each write to the disk takes.
pub const Disk = struct {
    delay_ns: u64 = 0,
    /// The number of writes that are not delayed.
    prompt: u32 = 0,

    const seconds_max = 3600;

    pub const ParseError = error{BadFaultDisk};

    pub fn parse(text: []const u8) ParseError!Disk {
        var parts = std.mem.splitScalar(u8, text, ':');
        const seconds = std.fmt.parseFloat(f64, parts.first()) catch return error.BadFaultDisk;
        if (!(seconds >= 0 and seconds <= seconds_max)) return error.BadFaultDisk;
        const prompt = if (parts.next()) |count|
            std.fmt.parseInt(u32, count, 10) catch return error.BadFaultDisk
        else
            0;
        if (parts.next() != null) return error.BadFaultDisk;
        return .{
            .delay_ns = @intFromFloat(seconds * std.time.ns_per_s),
            .prompt = prompt,
        };
    }

    /// Reads PCCL_FAULT_DISK; no delay if it is unset or empty.
    pub fn from_environment() ParseError!Disk {
        const value = std.mem.span(c.getenv("PCCL_FAULT_DISK") orelse return .{});
        return if (value.len > 0) try parse(value) else .{};
    }

    /// Waits for the delay before a write, in the thread that writes.
    pub fn take_time(disk: *Disk) void {
        if (disk.prompt > 0) {
            disk.prompt -= 1;
            return;
        }
        var left: c.timespec = .{
            .sec = @intCast(disk.delay_ns / std.time.ns_per_s),
            .nsec = @intCast(disk.delay_ns % std.time.ns_per_s),
        };
        while (c.nanosleep(&left, &left) != 0) {}
    }
};

test "how slow the disk is is read, and what is mistyped is an error" {
    const slow = try Disk.parse("2.5:3");
    try std.testing.expectEqual(Disk{ .delay_ns = 2_500_000_000, .prompt = 3 }, slow);
    try std.testing.expectEqual(0, (try Disk.parse("5")).prompt);
    for ([_][]const u8{ "", "x", "-1", "nan", "3601", "1:", "1:-2", "1:2:3" }) |text| {
        try std.testing.expectError(error.BadFaultDisk, Disk.parse(text));
    }
}

test "fault points are read, and a mistyped one is an error" {
    const full = try Fault.parse("operation.settled:5:0.5");
    try std.testing.expectEqual(Fault{
        .point = .operation_settled,
        .sequence = 5,
        .fraction = 0.5,
    }, full);
    try std.testing.expect(full.matches(.operation_settled, 5, 4, 8));
    try std.testing.expect(!full.matches(.operation_settled, 5, 3, 8));
    try std.testing.expect(!full.matches(.operation_settled, 4, 8, 8));
    try std.testing.expect(!full.matches(.operation_voted, 5, 8, 8));
    const any = try Fault.parse("stop=operation.called");
    try std.testing.expectEqual(.stop, any.action);
    try std.testing.expectEqual(.panic, (try Fault.parse("panic=sync.given")).action);
    try std.testing.expect(any.matches(.operation_called, 77, 0, 0));
    try std.testing.expectEqual(0.25, (try Fault.parse("operation.partial::0.25")).fraction);
    try std.testing.expectEqual(.sync_given, (try Fault.parse("sync.given::0.5")).point);
    const bad = [_][]const u8{
        "",                       "settled",                 "all_reduce",
        "operation_settled",      "operation.settled:x",     "operation.settled:5:2",
        "operation.settled:5:-1", "operation.settled:-5",    "operation.settled:5:0.5:1",
        "end=operation.settled",  "operation.settled:0:nan",
    };
    for (bad) |text| try std.testing.expectError(error.BadFaultPoint, Fault.parse(text));
}
