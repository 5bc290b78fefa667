//! refusals: the part of the journal about calls that were refused. The members that have heard of
//! one may have gone on, and left, when the coordinator dies: the next one refuses it, too. A
//! refusal is written at once if the disk has nothing to do; those that come meanwhile share the
//! next write. The decisions: decisions.zig; who waits for the disk: hold.zig; the format:
//! journal.zig.

const std = @import("std");
const wire = @import("wire");
const journal = @import("journal.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const Allocator = std.mem.Allocator;
const control = wire.control;
const OpId = control.OpId;
const assert = std.debug.assert;

// ---- writing

/// Adds the refusals that the journal has not been given.
pub fn add_new(run: *Run, image: *journal.Image) !void {
    for (run.groups.items) |group| for (group.epochs.items) |epoch| {
        const from = epoch.refusals_given;
        epoch.refusals_given = epoch.decisions;
        try add_decided(epoch, from, run.gpa, image);
    };
}

/// The journal was given all refusals that there are.
pub fn all_given(run: *Run) void {
    for (run.groups.items) |group| for (group.epochs.items) |epoch| {
        epoch.refusals_given = epoch.decisions;
    };
}

/// Those that some member may not have heard of: of this coordinator, and until they are decided
/// again, of those before.
pub fn add_all(epoch: *const Epoch, gpa: Allocator, image: *journal.Image) !void {
    try add_decided(epoch, 0, gpa, image);
    if (epoch.claims.count() == 0) return;
    var batch: Batch = .{ .epoch = epoch, .gpa = gpa, .image = image };
    for (epoch.claims.keys(), epoch.claims.values()) |id, *known| switch (known.outcome) {
        .commit => {},
        // One without a number is not decided.
        .abort => |*verdict| if (known.number) |number| try batch.add(id, number, verdict),
    };
    try batch.end();
}

fn add_decided(epoch: *const Epoch, from: u64, gpa: Allocator, image: *journal.Image) !void {
    const all = epoch.outstanding();
    if (all.len == 0 or all[all.len - 1].number <= from) return;
    const known = (from + 1) -| all[0].number; // they are numbered one after the other
    var batch: Batch = .{ .epoch = epoch, .gpa = gpa, .image = image };
    for (all[known..]) |*decision| switch (decision.outcome) {
        .commit => {},
        .abort => |*verdict| try batch.add(decision.id, decision.number, verdict),
    };
    try batch.end();
}

/// Refusals on their way into records.
const Batch = struct {
    epoch: *const Epoch,
    gpa: Allocator,
    image: *journal.Image,
    calls: [journal.refusals_max]journal.Refusal = undefined,
    count: usize = 0,

    fn add(batch: *Batch, id: OpId, number: u64, verdict: *const Verdict) !void {
        assert(number > batch.epoch.acknowledged); // else nobody reads it
        if (batch.count == batch.calls.len) try batch.end();
        batch.calls[batch.count] = .{
            .op = id,
            .reason = verdict.reason,
            .peer = verdict.peer,
            .other = verdict.other,
            .descriptor = verdict.descriptor orelse .blank,
            .other_descriptor = verdict.other_descriptor orelse .blank,
            .decision = number,
        };
        batch.count += 1;
    }

    fn end(batch: *Batch) !void {
        if (batch.count == 0) return;
        try batch.image.add(batch.gpa, .{ .refusals = .{
            .group = batch.epoch.group,
            .epoch = batch.epoch.number,
            .acknowledged = batch.epoch.acknowledged,
            .calls = .of(batch.calls[0..batch.count]),
        } });
        batch.count = 0;
    }
};

// ---- reading

/// They count as if a member told of them (claims.zig).
pub fn restore(group: *Group, body: *const journal.Refusals) Allocator.Error!void {
    const epoch = group.epoch_of(body.epoch) orelse return; // it was over
    epoch.acknowledged_then = @max(epoch.acknowledged_then, body.acknowledged);
    var it = body.calls.iterator();
    while (it.next()) |call| {
        const differ = call.reason == .mismatch;
        // A later one of the same call is the same, decided again.
        try epoch.claims.put(epoch.gpa, call.op, .{
            .number = call.decision,
            .maker = null,
            .outcome = .{ .abort = .{
                .reason = call.reason,
                .peer = call.peer,
                .other = call.other,
                .descriptor = if (differ) call.descriptor else null,
                .other_descriptor = if (differ) call.other_descriptor else null,
            } },
        });
    }
}

/// All is read. A refusal that all members had seen before the coordinator died is no news.
pub fn restored(epoch: *Epoch) void {
    var index = epoch.claims.count();
    while (index > 0) {
        index -= 1;
        if (epoch.claims.values()[index].number.? > epoch.acknowledged_then) continue;
        epoch.claims.swapRemoveAt(index);
    }
}
