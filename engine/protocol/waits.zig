//! waits: members whose call, or vote, others wait for: how they are asked for it, and how the log
//! and errors name them. When that is done: stalls.zig, debtors.zig, misfit.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const post = @import("post.zig");
const Epoch = @import("epoch.zig").Epoch;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Mask = base.Mask;
const Pair = base.Pair;
const control = wire.control;

/// Whoever has called it answers at once, and another one as soon as it calls.
pub fn ask(run: *Run, epoch: *Epoch, known: *Record, missing: *const Mask) void {
    const asked = missing.without(&known.stall.asked);
    if (asked.is_empty()) return;
    known.stall.asked.merge(&asked);
    send(run, epoch, known, &asked, missing, &.{});
}

pub fn send(
    run: *Run,
    epoch: *Epoch,
    known: *const Record,
    to: *const Mask,
    missing: *const Mask,
    elsewhere: []const control.Elsewhere,
) void {
    const message: control.Message = .{ .stalled = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
        .op = known.id,
        .missing = missing.*,
        .elsewhere = .of(elsewhere),
    } };
    for (epoch.members, 0..) |*member, rank| {
        if (!to.has(rank)) continue;
        if (member.peer) |peer| post.send(run, peer, epoch.group, message);
    }
}

/// "has not called all_reduce (tag 0, sequence 12 of epoch 3), for which 2 of 3 have waited 10 s"
pub const Waits = struct {
    epoch: *const Epoch,
    known: *const Record,
    waited_ns: u64,
    lacks: enum { call, vote } = .call,

    pub fn format(waits: Waits, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const known = waits.known;
        const voters = waits.epoch.voters(known.id);
        const needed = voters.count();
        const missing = switch (waits.lacks) {
            .call => waits.epoch.missing_of(known),
            .vote => voters.without(&known.done),
        };
        const has = if (waits.lacks == .call) "has not called " else "alone has not finished ";
        try writer.writeAll(has);
        if (Pair.of(known.id.tag)) |pair| {
            try writer.print("its part of a message from {f} to {f} (", .{
                waits.epoch.members[pair.src].ranked(pair.src),
                waits.epoch.members[pair.dst].ranked(pair.dst),
            });
        } else {
            try writer.print("{t}", .{known.descriptor.kind});
            if (known.state().len > 0) try writer.print(" of \"{s}\"", .{known.state()});
            try writer.writeAll(" (");
        }
        // The tag of a sync says nothing to a person.
        if (known.descriptor.kind != .sync)
            try writer.print("tag {d}, ", .{Pair.user_tag_of(known.id.tag)});
        try writer.print("sequence {d} of epoch {d}), for which {d} of {d} have waited {d} s", .{
            known.id.sequence,
            waits.epoch.number,
            needed - missing.count(),
            needed,
            waits.waited_ns / std.time.ns_per_s,
        });
    }
};
