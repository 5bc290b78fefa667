//! log: what a coordinator puts into its journal, when, and what is said if that fails. Messages
//! that rely on a record wait for it (run.zig). How a run begins again from the journal:
//! coordinator.zig; the format: journal.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const journal = @import("journal.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const Allocator = std.mem.Allocator;
const OpId = control.OpId;
const PeerId = base.PeerId;
const assert = std.debug.assert;
const control = wire.control;
const limits = base.limits;

/// Written as a whole again when so much was appended.
const compact_bytes = limits.MiB;

/// How long the disk may take before it is said.
const slow_ns = 2 * std.time.ns_per_s;

/// Gives a record to the journal. Messages that rely on it wait until the number that is returned
/// is settled. A coordinator that cannot write goes on, and says so.
pub fn record(run: *Run, entry: journal.Record) u64 {
    if (run.journal_progress.refusals_wait) _ = record_refusals(run);
    if (!takes_more(run)) return run.journal_progress.given;
    var image: journal.Image = .{};
    defer image.deinit(run.gpa);
    return give(run, &image, image.add(run.gpa, entry));
}

/// The same for all refusals that it has not been given.
fn record_refusals(run: *Run) u64 {
    const progress = &run.journal_progress;
    progress.refusals_wait = false;
    if (!takes_more(run)) return progress.given;
    var image: journal.Image = .{};
    defer image.deinit(run.gpa);
    const added = add_new(run, &image);
    if (std.meta.isError(added) or image.bytes().len > 0) return give(run, &image, added);
    // All have seen them, or are out of the epoch. Messages may wait for the number all the same.
    if (progress.given == progress.settled) {
        progress.given += 1;
        progress.settled = progress.given;
    }
    return progress.given;
}

/// The last decision of the epoch is an abort, and nobody has heard of it. Messages about the epoch
/// wait for the disk from here on.
pub noinline fn note_refusal(run: *Run, epoch: *Epoch) void {
    const progress = &run.journal_progress;
    if (run.journal_state == .ok and progress.given > progress.settled) {
        progress.refusals_wait = true;
        epoch.recorded = progress.given + 1;
    } else epoch.recorded = record_refusals(run);
}

/// Gives the journal a record about a group: what is said of the group waits for that.
pub fn note(run: *Run, group: *Group, entry: journal.Record) u64 {
    group.recorded = record(run, entry);
    return group.recorded;
}

/// Whether what the journal is given is written. Behind a whole journal that is being written it
/// has a place; with one that has failed it is in the next one.
fn takes_more(run: *const Run) bool {
    return switch (run.journal_state) {
        .off => false,
        .ok => true,
        .failed => run.journal_progress.replaced > run.journal_progress.failed,
    };
}

/// Appends them, and returns their number.
fn give(run: *Run, image: *const journal.Image, added: anyerror!void) u64 {
    const progress = &run.journal_progress;
    progress.given += 1;
    append(run, image, added) catch {
        progress.failed = progress.given;
        failed(run, run.last_tick);
    };
    return progress.given;
}

fn append(run: *Run, image: *const journal.Image, added: anyerror!void) !void {
    try added;
    try run.options.journal.?.append(run.journal_progress.given, image.bytes());
    run.journal_bytes += image.bytes().len;
    // However large the whole is, each byte is written again only a few times.
    if (run.journal_bytes >= @max(compact_bytes, run.journal_progress.whole_bytes))
        run.journal_due = true;
}

/// All up to this number is on the disk.
pub fn written(run: *Run, number: u64) void {
    const progress = &run.journal_progress;
    progress.settled = @max(progress.settled, number);
    progress.waits_since = null;
    progress.said = false;
    if (run.journal_state == .failed) {
        // Nothing was left out since it was given all of it, and nobody has heard of what is not
        // on the disk.
        if (number < progress.given or progress.replaced <= progress.failed) return;
        run.journal_state = .ok;
        run.log(.warning, "the journal is written again: from now on " ++
            "the run survives the end of this coordinator", .{});
    }
    if (progress.refusals_wait and progress.settled == progress.given) _ = record_refusals(run);
    release(run);
}

/// This was not written, nor what is appended until all of it is written anew.
pub fn not_written(run: *Run, now: base.Instant, number: u64) void {
    const progress = &run.journal_progress;
    progress.failed = @max(progress.failed, number);
    failed(run, now);
}

fn release(run: *Run) void {
    const all = run.journal_state != .ok;
    const settled = if (all) std.math.maxInt(u64) else run.journal_progress.settled;
    for (run.connections.items) |connection| run.release(connection, settled);
}

/// Between two calls, when nothing is half done: writes the whole run as one file when much was
/// appended, or when a journal that has failed may work again, because there is room on its disk.
pub fn tend(run: *Run, now: base.Instant) void {
    say_slow(run, now);
    const due = switch (run.journal_state) {
        .off => false,
        .ok => run.journal_due,
        .failed => now >= run.journal_retry_at,
    };
    if (!due) return;
    run.journal_due = false;
    run.journal_retry_at = now +| run.options.journal_retry_ns;
    replace(run) catch {
        run.journal_progress.failed = run.journal_progress.given;
        failed(run, now);
    };
}

fn replace(run: *Run) !void {
    const progress = &run.journal_progress;
    const gpa = run.options.secrets orelse run.gpa; // it has run id and key
    progress.given += 1;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(run, gpa, &image);
    try run.options.journal.?.replace(progress.given, image.bytes());
    progress.replaced = progress.given;
    progress.whole_bytes = image.bytes().len;
    progress.refusals_wait = false;
    all_given(run);
    run.journal_bytes = 0;
}

fn say_slow(run: *Run, now: base.Instant) void {
    const progress = &run.journal_progress;
    if (run.journal_state != .ok or progress.given == progress.settled) return;
    const since = progress.waits_since orelse {
        progress.waits_since = now;
        return;
    };
    if (progress.said or now -| since < slow_ns) return;
    progress.said = true;
    run.log(.warning, "the disk of the journal takes more than {d} s: groups that begin, gain " ++
        "or lose a member, and those in which a call fails, wait for it; all else goes on", .{
        slow_ns / std.time.ns_per_s,
    });
}

/// The run goes on, and nothing waits for this journal any more.
fn failed(run: *Run, now: base.Instant) void {
    run.journal_retry_at = now +| run.options.journal_retry_ns;
    if (run.journal_state == .failed) return; // it was said
    run.journal_state = .failed;
    run.journal_progress.refusals_wait = false; // they are in the next whole one
    run.log(.err, "the run continues, but will end with this coordinator until its " ++
        "journal can be written again, which is tried every {d} s: {s}", .{
        run.options.journal_retry_ns / std.time.ns_per_s,
        run.options.journal.?.why(),
    });
    release(run);
}

/// Waits for the disk: nobody is connected yet, and a start must be on it.
pub fn begin_journal(run: *Run) !void {
    const gpa = run.options.secrets orelse run.gpa;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(run, gpa, &image);
    try run.options.journal.?.begin(image.bytes());
    run.journal_progress.whole_bytes = image.bytes().len;
}

fn write_all(run: *Run, gpa: std.mem.Allocator, image: *journal.Image) !void {
    const options = &run.options;
    try image.begin_file(gpa);
    try image.add(gpa, .{ .settings = .{
        .run_id = options.run_id,
        .seal_key = run.seal_key,
        .lanes = options.lanes,
        .chunk_bytes = options.chunk_bytes,
        .windows_bytes = options.windows_bytes,
        .heartbeat_ns = options.heartbeat_ns,
        .silence_ns = options.silence_ns,
        .prepare_ns = options.prepare_ns,
        .stall_warning_ns = options.stall_warning_ns,
        .stall_ns = options.stall_ns,
        .min_world_size = options.min_world_size,
        .initial_world_size = options.initial_world_size,
        .bind = .of(options.bind),
        .advertise = .of(options.advertise),
        .address = .of(options.address),
    } });
    try image.add(gpa, .{ .start = .{
        .incarnation = run.incarnation,
        .ended_epoch = run.ended.epoch,
    } });
    for (run.groups.items) |group| {
        try image.add(gpa, .{ .group = group.record() });
        for (group.epochs.items) |epoch| {
            var buffer: [limits.peers_max]PeerId = undefined;
            var instances: [limits.peers_max]u64 = undefined;
            try image.add(gpa, epoch.record(epoch.member_ids(&buffer), &instances));
            try add_all(epoch, gpa, image);
            // In the order in which it happened.
            for (epoch.history.entries.items[1..], 1..) |*entry, index| {
                const before = &epoch.history.entries.items[index - 1].members;
                for (epoch.members, 0..) |*member, rank| {
                    if (!before.has(rank) or entry.members.has(rank)) continue;
                    try image.add(gpa, .{ .removal = .{
                        .group = group.id,
                        .peer = member.id,
                        .epochs = .of(&.{.{ .epoch = epoch.number, .attempt = entry.attempt }}),
                    } });
                }
            }
        }
        for (group.removals.known()) |*entry| try image.add(gpa, .{ .removal = .{
            .group = group.id,
            .peer = entry.id,
            .epochs = .{},
            .why = .of(entry.why()),
        } });
    }
}

// ---- refused calls
//
// The part of the journal about calls that were refused. The members that have heard of one may
// have gone on, and left, when the coordinator dies: the next one refuses it, too. A refusal is
// written at once if the disk has nothing to do; those that come meanwhile share the next write.

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
    var batch: RefusalBatch = .{ .epoch = epoch, .gpa = gpa, .image = image };
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
    var batch: RefusalBatch = .{ .epoch = epoch, .gpa = gpa, .image = image };
    for (all[known..]) |*decision| switch (decision.outcome) {
        .commit => {},
        .abort => |*verdict| try batch.add(decision.id, decision.number, verdict),
    };
    try batch.end();
}

/// Refusals on their way into records.
const RefusalBatch = struct {
    epoch: *const Epoch,
    gpa: Allocator,
    image: *journal.Image,
    calls: [journal.refusals_max]journal.Refusal = undefined,
    count: usize = 0,

    fn add(batch: *RefusalBatch, id: OpId, number: u64, verdict: *const Verdict) !void {
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

    fn end(batch: *RefusalBatch) !void {
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

/// They count as if a member told of them (attempt.zig).
pub fn restore_refusals(group: *Group, body: *const journal.Refusals) Allocator.Error!void {
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
pub fn refusals_restored(epoch: *Epoch) void {
    var index = epoch.claims.count();
    while (index > 0) {
        index -= 1;
        if (epoch.claims.values()[index].number.? > epoch.acknowledged_then) continue;
        epoch.claims.swapRemoveAt(index);
    }
}
