//! log: which records a coordinator writes into its journal and its log of decisions, when, and how
//! it reports failures.
//!
//! Groups, epochs and removals go into the journal, and messages that rely on a record wait until
//! the record is on the disk (run.zig). Attempts and decisions go into the log, and members are
//! told right after: a coordinator that is killed and started again knows all that it has told any
//! member. A removal goes into both files, because the log must have it before the decisions that
//! rely on it. The log may have decisions that no member has heard. The end of the log is missing
//! if the machine lost power, or if the log could not be written; then the reports of members show
//! which decisions are missing (attempt.zig: settle_seen). How a run is restored: coordinator.zig;
//! the format of both files: journal.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const journal = @import("journal.zig");
const Decision = @import("record.zig").Decision;
const Group = @import("group.zig").Group;
const Run = @import("run.zig").Run;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// The journal, or the log, is written anew as a whole when this many bytes were appended to it, or
/// as many as the whole had, if that is more.
const compact_bytes = limits.MiB;

/// How long a journal record may take to reach the disk before the coordinator warns.
const slow_ns = 2 * std.time.ns_per_s;

// ---- the journal

/// Gives a record to the journal, and returns its number. Messages that rely on the record wait
/// until that number is on the disk. A coordinator that cannot write the record goes on, and warns.
pub fn record(run: *Run, entry: journal.Record) u64 {
    const progress = &run.journal_progress;
    if (!takes_more(run)) return progress.given;
    progress.given += 1;
    append(run, entry) catch {
        progress.failed = progress.given;
        failed(run, run.last_tick);
    };
    return progress.given;
}

/// Gives the journal a record about a group. Later messages about the group wait until the record
/// is on the disk.
pub fn note(run: *Run, group: *Group, entry: journal.Record) u64 {
    group.recorded = record(run, entry);
    return group.recorded;
}

/// Whether a new record is given to the journal or the log. A failed journal takes records again
/// once it is being written anew as a whole; earlier records are part of that whole.
fn takes_more(run: *const Run) bool {
    return switch (run.journal_state) {
        .off => false,
        .ok => true,
        .failed => run.journal_progress.replaced > run.journal_progress.failed,
    };
}

fn append(run: *Run, entry: journal.Record) !void {
    var image: journal.Image = .{};
    defer image.deinit(run.gpa);
    try image.add(run.gpa, entry);
    try run.options.journal.?.append(run.journal_progress.given, image.bytes());
    run.journal_bytes += image.bytes().len;
    // The threshold grows with the journal, so each byte is written again only a few times.
    if (run.journal_bytes >= @max(compact_bytes, run.journal_progress.whole_bytes))
        run.journal_due = true;
}

/// All records up to `number` are on the disk: sends the messages that waited for them.
pub fn written(run: *Run, number: u64) void {
    const progress = &run.journal_progress;
    progress.settled = @max(progress.settled, number);
    progress.waits_since = null;
    progress.said = false;
    if (run.journal_state == .failed) {
        // The failed journal works again if it was written as a whole after the failure, and all
        // its records are on the disk.
        if (number < progress.given or progress.replaced <= progress.failed) return;
        run.journal_state = .ok;
        run.log(.warning, "the journal is written again: from now on " ++
            "the run survives the end of this coordinator", .{});
    }
    release(run);
}

/// The journal could not write record `number`, and writes no later record until it is written anew
/// as a whole.
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

/// Called at a tick, when no change of the run is half done: writes the journal anew as a whole if
/// much was appended, or tries that again after a failure.
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
    const gpa = run.options.secrets orelse run.gpa; // the image has the run id
    progress.given += 1;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(run, gpa, &image);
    if (run.journal_state == .failed) try log_anew(run); // the log may lack records
    try run.options.journal.?.replace(progress.given, image.bytes());
    progress.replaced = progress.given;
    progress.whole_bytes = image.bytes().len;
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
        "or lose a member wait for it; all else goes on", .{slow_ns / std.time.ns_per_s});
}

/// Notes that the journal has failed: the run goes on, and no message waits for the disk any more.
fn failed(run: *Run, now: base.Instant) void {
    run.journal_retry_at = now +| run.options.journal_retry_ns;
    if (run.journal_state == .failed) return; // the failure was logged before
    run.journal_state = .failed;
    run.log(.err, "the run continues, but will end with this coordinator until its " ++
        "journal can be written again, which is tried every {d} s: {s}", .{
        run.options.journal_retry_ns / std.time.ns_per_s,
        run.options.journal.?.why(),
    });
    release(run);
}

/// Writes the journal of this start and waits for the disk: no peer is connected yet, and the
/// record of a start must be on the disk first.
pub fn begin_journal(run: *Run) !void {
    const gpa = run.options.secrets orelse run.gpa;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(run, gpa, &image);
    try run.options.journal.?.begin(image.bytes());
    run.journal_progress.whole_bytes = image.bytes().len;
    try log_anew(run);
}

fn write_all(run: *Run, gpa: std.mem.Allocator, image: *journal.Image) !void {
    const options = &run.options;
    try image.begin_file(gpa);
    try image.add(gpa, .{ .settings = .{
        .run_id = options.run_id,
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
            // Removals are written in the order in which they happened.
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

// ---- the log

/// Logs a decision. Called before members hear of the decision.
pub fn decided(run: *Run, message: *const control.Message) void {
    add(run, record_of(message));
}

/// Logs a record before members hear of it: an attempt, a removal, or a decision.
pub fn add(run: *Run, entry: journal.Record) void {
    if (!takes_more(run)) return;
    log_one(run, entry) catch {
        run.journal_progress.failed = run.journal_progress.given;
        failed(run, run.last_tick);
    };
}

fn log_one(run: *Run, entry: journal.Record) !void {
    var bytes: [journal.log_record_bytes_max]u8 = undefined;
    const encoded = try journal.encode(entry, &bytes);
    try run.options.journal.?.log(encoded);
    run.log_bytes += encoded.len;
    // A new log has no removals, so the journal must have all removals on the disk.
    const is_journaled = run.journal_progress.given == run.journal_progress.settled;
    if (run.log_bytes >= @max(compact_bytes, run.log_whole_bytes) and is_journaled)
        try log_anew(run);
}

/// Writes the log anew as a whole: for each epoch its attempt, and the decisions that some member
/// may not have heard.
fn log_anew(run: *Run) !void {
    var image: journal.Image = .{};
    defer image.deinit(run.gpa);
    try image.begin_file(run.gpa);
    for (run.groups.items) |group| for (group.epochs.items) |epoch| {
        for (epoch.outstanding()) |*decision| {
            if (decision.number == Decision.unnumbered) continue; // no member has heard it
            const message = decision.message(epoch.group, epoch.number);
            try image.add(run.gpa, record_of(&message));
        }
        // The attempt record names the last decision, so it comes after all decisions: the end of
        // the log may be lost.
        try image.add(run.gpa, epoch.attempt_record());
    };
    try run.options.journal.?.log_anew(image.bytes());
    run.log_whole_bytes = image.bytes().len;
    run.log_bytes = 0;
}

fn record_of(message: *const control.Message) journal.Record {
    return switch (message.*) {
        .commit => |body| .{ .commit = body },
        .abort => |body| .{ .abort = body },
        else => unreachable, // not a decision
    };
}

/// Reads the records of a log into the epochs that the journal has. Records of other epochs are
/// skipped, because those epochs are over.
pub fn restore(run: *Run, bytes: []const u8) std.mem.Allocator.Error!void {
    var replay: journal.LogReplay = .init(bytes);
    defer if (replay.rest.len > 0) run.log(.warning, "the last {d} bytes of the log of " ++
        "decisions are not whole, and are ignored", .{replay.rest.len});
    while (replay.next()) |entry| switch (entry) {
        .removal => |*body| {
            const group = run.group_at(body.group) orelse continue;
            group.restore_removal(body) catch continue; // an earlier group's removal
        },
        inline .attempt, .commit, .abort => |body, tag| {
            const group = run.group_at(body.group) orelse continue;
            const epoch = group.epoch_of(body.epoch) orelse continue;
            epoch.decisions = @max(epoch.decisions, body.decision);
            if (tag == .attempt) {
                epoch.attempt = @max(epoch.attempt, body.attempt);
            } else try epoch.keep(.{
                .number = body.decision,
                .id = body.op,
                .maker = null,
                .outcome = if (tag == .commit)
                    .{ .commit = .{ .attempt = body.attempt, .digest = body.digest } }
                else
                    .{ .abort = .of(&body) },
            });
        },
        .settings, .start, .group, .activation => unreachable, // records of a journal
    };
}
