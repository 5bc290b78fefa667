//! fault: lets a test end or freeze this process at a named point of the engine:
//!
//!     PCCL_FAULT_POINT=[stop=|panic=]<name>[:<sequence>[:<fraction>]]
//!
//! for example all_reduce.settled:5:0.5: SIGKILL when half of the chunks of an all_reduce with
//! sequence number 5 are settled; with stop= it is SIGSTOP, with panic= what a bug of the engine
//! would bring about. An empty sequence is any. It happens once. Without the variable nothing here
//! does anything. The points are named in session/session.zig.

const std = @import("std");
const session = @import("session");
const c = std.c;
const Point = session.FaultPoint;

pub const Fault = struct {
    point: Point,
    sequence: ?u64 = null,
    /// Of the chunks, settled before it happens.
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

    /// Of the environment. An empty value counts as unset.
    pub fn from_environment() ParseError!?Fault {
        const value = std.mem.span(c.getenv("PCCL_FAULT_POINT") orelse return null);
        return if (value.len > 0) try parse(value) else null;
    }

    pub fn matches(fault: *const Fault, point: Point, sequence: u64, done: u64, total: u64) bool {
        if (point != fault.point) return false;
        if (fault.sequence) |wanted| if (sequence != wanted) return false;
        return @as(f64, @floatFromInt(done)) >= fault.fraction * @as(f64, @floatFromInt(total));
    }

    /// Does not return when the process is to die. The signal goes to this thread, which stops
    /// here and now; one to the process would be taken by any thread, and this one would go on
    /// for a while.
    pub fn strike(fault: *const Fault) void {
        switch (fault.action) {
            .kill => _ = c.raise(.KILL),
            .stop => _ = c.raise(.STOP),
            .panic => @panic("the fault point was reached"),
        }
    }

    /// "all_reduce.settled" for .all_reduce_settled.
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

test "fault points are read, and a mistyped one is an error" {
    const full = try Fault.parse("all_reduce.settled:5:0.5");
    try std.testing.expectEqual(Fault{
        .point = .all_reduce_settled,
        .sequence = 5,
        .fraction = 0.5,
    }, full);
    try std.testing.expect(full.matches(.all_reduce_settled, 5, 4, 8));
    try std.testing.expect(!full.matches(.all_reduce_settled, 5, 3, 8));
    try std.testing.expect(!full.matches(.all_reduce_settled, 4, 8, 8));
    try std.testing.expect(!full.matches(.all_reduce_voted, 5, 8, 8));
    const any = try Fault.parse("stop=all_reduce.called");
    try std.testing.expectEqual(.stop, any.action);
    try std.testing.expectEqual(.panic, (try Fault.parse("panic=sync.given")).action);
    try std.testing.expect(any.matches(.all_reduce_called, 77, 0, 0));
    try std.testing.expectEqual(0.25, (try Fault.parse("all_reduce.partial::0.25")).fraction);
    try std.testing.expectEqual(.sync_given, (try Fault.parse("sync.given::0.5")).point);
    const bad = [_][]const u8{
        "",                        "settled",                  "all_reduce",
        "all_reduce_settled",      "all_reduce.settled:x",     "all_reduce.settled:5:2",
        "all_reduce.settled:5:-1", "all_reduce.settled:-5",    "all_reduce.settled:5:0.5:1",
        "end=all_reduce.settled",  "all_reduce.settled:0:nan",
    };
    for (bad) |text| try std.testing.expectError(error.BadFaultPoint, Fault.parse(text));
}
