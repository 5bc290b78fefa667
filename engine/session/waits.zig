//! waits: for whom this peer waits, as the coordinator says it: a line in the log while it lasts.
//! A call that fails says it too (abi/failure.zig); who is missing: protocol/stall.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const labels = @import("labels.zig");
const control = wire.control;

/// Many calls may wait for one member: one line in such a time.
const said_ns = 5 * std.time.ns_per_s;

pub fn on_stalled(s: *Session, body: *const control.Stalled) protocol.Member.EpochError!void {
    const group = s.group_of(body.group) orelse return;
    try group.member.on_stalled(body);
    const operation = for (s.operations.items) |item| {
        if (item.group != group or item.finished or item.op.epoch != body.epoch) continue;
        if (item.op.id.eql(body.op)) break item;
    } else return;
    if (operation.op.missing.is_empty()) return;
    if (group.wait_said_at != 0 and s.now -| group.wait_said_at < said_ns) return;
    group.wait_said_at = s.now;
    s.log(.warning, "{f} has been waiting {d} s for {f}; group {s}", .{
        operation.named(),
        (s.now -| operation.started_at) / std.time.ns_per_s,
        Missing{ .s = s, .operation = operation },
        group.name,
    });
}

/// "rank 1 (node7:4242, 7f3a01c2) and rank 2 (this peer)"
const Missing = struct {
    s: *const Session,
    operation: *const Operation,

    pub fn format(missing: Missing, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const names: labels.Names = .of_missing(missing.s, missing.operation);
        const mask = &missing.operation.op.missing;
        const most = labels.Names.missing_max;
        for (0..@min(mask.count(), most)) |index| {
            if (index > 0) try writer.writeAll(" and ");
            try writer.print("{f}", .{names.who(missing.operation.ids[mask.at(index)])});
        }
        if (mask.count() > most) try writer.print(" and {d} more", .{mask.count() - most});
    }
};

/// Too few have come for the group to begin.
pub fn on_waiting(s: *Session, body: *const control.Waiting) void {
    const group = s.group_of(body.group) orelse return;
    group.attendance = .{ .here = body.here, .needed = body.needed, .emptied = body.emptied };
    const emptied = if (body.emptied) "; all that were in it before are gone" else "";
    s.log(.info, "{d} of {d} peers are here{s}; group {s}", .{
        body.here,
        body.needed,
        emptied,
        group.name,
    });
}
