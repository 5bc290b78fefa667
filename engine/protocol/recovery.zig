//! recovery: what a coordinator puts into its journal, which of its messages wait until that is on
//! the disk, and how it begins again from the journal: with the settings, the groups, the epochs
//! that were alive, their members, and the calls that were refused (refusals.zig). Its members tell
//! everything else when they come back (group.zig: come_back). The format: journal.zig. Where
//! messages wait: hold.zig.

const std = @import("std");
const base = @import("base");
const journal = @import("journal.zig");
const coordinator = @import("coordinator.zig");
const Connection = coordinator.Connection;
const Coordinator = coordinator.Coordinator;
const Peer = coordinator.Peer;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const refusals = @import("refusals.zig");
const Subject = @import("hold.zig").Subject;
const control = @import("wire").control;
const PeerId = base.PeerId;
const limits = base.limits;

pub const Error = error{
    OutOfMemory,
    /// Its records are whole, and make no sense together.
    BadRecord,
    /// It cannot be written at the start: without that the next start would take this one's numbers
    /// for its own.
    JournalFailed,
} || journal.Error;

/// Written as a whole again when so much was appended.
const compact_bytes = limits.MiB;

// ---- writing

/// The records given to the journal, by number.
pub const Progress = struct {
    /// Given to it.
    given: u64 = 0,
    /// On the disk, with all before.
    settled: u64 = 0,
    /// The last that was all of it.
    replaced: u64 = 0,
    /// The last that is known to have failed.
    failed: u64 = 0,
    /// Calls were refused while the disk was busy: the next record, whose number messages wait for
    /// already, is about them.
    refusals_wait: bool = false,
    /// The size of the journal when it was last written as a whole.
    whole_bytes: usize = 0,
    /// Since when, at a tick, something has been waited for, and whether that was said.
    waits_since: ?base.Instant = null,
    said: bool = false,
};

/// How long the disk may take before it is said.
const slow_ns = 2 * std.time.ns_per_s;

/// Gives a record to the journal. Messages that rely on it wait until the number that is returned
/// is settled. A coordinator that cannot write goes on, and says so.
pub fn record(c: *Coordinator, entry: journal.Record) u64 {
    if (c.journal_progress.refusals_wait) _ = record_refusals(c);
    if (!takes_more(c)) return c.journal_progress.given;
    var image: journal.Image = .{};
    defer image.deinit(c.gpa);
    return give(c, &image, image.add(c.gpa, entry));
}

/// The same for all refusals that it has not been given.
pub fn record_refusals(c: *Coordinator) u64 {
    const progress = &c.journal_progress;
    progress.refusals_wait = false;
    if (!takes_more(c)) return progress.given;
    var image: journal.Image = .{};
    defer image.deinit(c.gpa);
    const added = refusals.add_new(c, &image);
    if (std.meta.isError(added) or image.bytes().len > 0) return give(c, &image, added);
    // All have seen them, or are out of the epoch. Messages may wait for the number all the same.
    if (progress.given == progress.settled) {
        progress.given += 1;
        progress.settled = progress.given;
    }
    return progress.given;
}

/// Whether what the journal is given is written. Behind a whole journal that is being written it
/// has a place; with one that has failed it is in the next one.
fn takes_more(c: *const Coordinator) bool {
    return switch (c.journal_state) {
        .off => false,
        .ok => true,
        .failed => c.journal_progress.replaced > c.journal_progress.failed,
    };
}

/// Appends them, and returns their number.
fn give(c: *Coordinator, image: *const journal.Image, added: anyerror!void) u64 {
    const progress = &c.journal_progress;
    progress.given += 1;
    append(c, image, added) catch {
        progress.failed = progress.given;
        failed(c, c.last_tick);
    };
    return progress.given;
}

fn append(c: *Coordinator, image: *const journal.Image, added: anyerror!void) !void {
    try added;
    try c.options.journal.?.append(c.journal_progress.given, image.bytes());
    c.journal_bytes += image.bytes().len;
    // However large the whole is, each byte is written again only a few times.
    if (c.journal_bytes >= @max(compact_bytes, c.journal_progress.whole_bytes))
        c.journal_due = true;
}

/// Whether a peer may not hear yet of what relies on this record. With a journal that has failed
/// nothing waits.
pub fn waits(c: *const Coordinator, number: u64) bool {
    return c.journal_state == .ok and number > c.journal_progress.settled;
}

/// The record that a message has to wait for on this connection; null if it may leave.
pub fn held_until(connection: *const Connection, message: *const control.Message) ?u64 {
    const c = connection.coordinator;
    const subject: Subject = .of(message);
    const recorded = switch (subject) {
        .nothing, .order => 0,
        .group => |id| c.recorded_of(id, null),
        .epoch => |epoch| c.recorded_of(epoch.group, epoch.number),
    };
    const until = @max(recorded, connection.hold.behind(subject));
    return if (waits(c, until)) until else null;
}

/// All up to this number is on the disk.
pub fn written(c: *Coordinator, number: u64) void {
    const progress = &c.journal_progress;
    progress.settled = @max(progress.settled, number);
    progress.waits_since = null;
    progress.said = false;
    if (c.journal_state == .failed) {
        // Nothing was left out since it was given all of it, and nobody has heard of what is not
        // on the disk.
        if (number < progress.given or progress.replaced <= progress.failed) return;
        c.journal_state = .ok;
        c.log(.warning, "the journal is written again: from now on " ++
            "the run survives the end of this coordinator", .{});
    }
    if (progress.refusals_wait and progress.settled == progress.given) _ = record_refusals(c);
    release(c);
}

/// This was not written, nor what is appended until all of it is written anew.
pub fn not_written(c: *Coordinator, now: base.Instant, number: u64) void {
    const progress = &c.journal_progress;
    progress.failed = @max(progress.failed, number);
    failed(c, now);
}

fn release(c: *Coordinator) void {
    const all = c.journal_state != .ok;
    const settled = if (all) std.math.maxInt(u64) else c.journal_progress.settled;
    for (c.connections.items) |connection| connection.release(settled);
}

/// Between two calls, when nothing is half done: writes the whole run as one file when much was
/// appended, or when a journal that has failed may work again, because there is room on its disk.
pub fn tend(c: *Coordinator, now: base.Instant) void {
    say_slow(c, now);
    const due = switch (c.journal_state) {
        .off => false,
        .ok => c.journal_due,
        .failed => now >= c.journal_retry_at,
    };
    if (!due) return;
    c.journal_due = false;
    c.journal_retry_at = now +| c.options.journal_retry_ns;
    replace(c) catch {
        c.journal_progress.failed = c.journal_progress.given;
        failed(c, now);
    };
}

fn replace(c: *Coordinator) !void {
    const progress = &c.journal_progress;
    const gpa = c.options.secrets orelse c.gpa; // it has run id and key
    progress.given += 1;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(c, gpa, &image);
    try c.options.journal.?.replace(progress.given, image.bytes());
    progress.replaced = progress.given;
    progress.whole_bytes = image.bytes().len;
    progress.refusals_wait = false;
    refusals.all_given(c);
    c.journal_bytes = 0;
}

fn say_slow(c: *Coordinator, now: base.Instant) void {
    const progress = &c.journal_progress;
    if (c.journal_state != .ok or progress.given == progress.settled) return;
    const since = progress.waits_since orelse {
        progress.waits_since = now;
        return;
    };
    if (progress.said or now -| since < slow_ns) return;
    progress.said = true;
    c.log(.warning, "the disk of the journal takes more than {d} s: groups that begin, gain or " ++
        "lose a member, and those in which a call fails, wait for it; all else goes on", .{
        slow_ns / std.time.ns_per_s,
    });
}

/// The run goes on, and nothing waits for this journal any more.
fn failed(c: *Coordinator, now: base.Instant) void {
    c.journal_retry_at = now +| c.options.journal_retry_ns;
    if (c.journal_state == .failed) return; // it was said
    c.journal_state = .failed;
    c.journal_progress.refusals_wait = false; // they are in the next whole one
    c.log(.err, "the run continues, but will end with this coordinator until its " ++
        "journal can be written again, which is tried every {d} s: {s}", .{
        c.options.journal_retry_ns / std.time.ns_per_s,
        c.options.journal.?.why(),
    });
    release(c);
}

fn write_all(c: *Coordinator, gpa: std.mem.Allocator, image: *journal.Image) !void {
    const options = &c.options;
    try image.begin_file(gpa);
    try image.add(gpa, .{ .settings = .{
        .run_id = options.run_id,
        .seal_key = c.seal_key,
        .port = options.port,
        .lanes = options.lanes,
        .chunk_bytes = options.chunk_bytes,
        .window_bytes = options.window_bytes,
        .heartbeat_ns = options.heartbeat_ns,
        .silence_ns = options.silence_ns,
        .prepare_ns = options.prepare_ns,
        .stall_warning_ns = options.stall_warning_ns,
        .stall_ns = options.stall_ns,
        .min_world_size = options.min_world_size,
        .initial_world_size = options.initial_world_size,
        .address = .of(options.address),
    } });
    try image.add(gpa, .{ .start = .{
        .incarnation = c.incarnation,
        .ended_epoch = c.ended.epoch,
    } });
    for (c.groups.items) |group| {
        try image.add(gpa, .{ .group = group.record() });
        for (group.epochs.items) |epoch| {
            var buffer: [limits.peers_max]PeerId = undefined;
            var instances: [limits.peers_max]u64 = undefined;
            try image.add(gpa, epoch.record(epoch.member_ids(&buffer), &instances));
            try refusals.add_all(epoch, gpa, image);
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

// ---- reading

pub fn restore(c: *Coordinator, now: base.Instant, bytes: []const u8) Error!void {
    var replay: journal.Replay = .init(bytes);
    var last_incarnation: u32 = 0;
    while (try replay.next()) |entry| switch (entry) {
        // The driver has read the others: they are the options.
        .settings => |*body| c.seal_key = body.seal_key,
        .start => |body| {
            last_incarnation = @max(last_incarnation, body.incarnation);
            c.ended.epoch = @max(c.ended.epoch, body.ended_epoch);
        },
        .group => |*body| try restore_group(c, body),
        .activation => |*body| try restore_epoch(c, now, body),
        .removal => |*body| {
            const group = c.group_at(body.group) orelse return error.BadRecord;
            try restore_removal(c, group, body);
        },
        .refusals => |*body| {
            const group = c.group_at(body.group) orelse return error.BadRecord;
            try refusals.restore(group, body);
        },
    };
    if (last_incarnation == limits.incarnations_max) return error.BadRecord;
    c.incarnation = last_incarnation + 1;
    for (c.groups.items) |group| group.restored();
    // An id may have been that of another process in an epoch that is over.
    for (c.groups.items) |group| for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        if (member.peer) |peer| peer.instance = member.instance;
    };
    c.forget_idle();
    c.end_groups();
    begin(c) catch |err| return switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        error.JournalFailed => error.JournalFailed,
        else => error.BadRecord, // larger than any record may be
    };
    c.journal_state = .ok;
}

/// Waits for the disk: nobody is connected yet, and a start must be on it.
fn begin(c: *Coordinator) !void {
    const gpa = c.options.secrets orelse c.gpa;
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(c, gpa, &image);
    try c.options.journal.?.begin(image.bytes());
    c.journal_progress.whole_bytes = image.bytes().len;
}

fn restore_group(c: *Coordinator, body: *const journal.GroupMade) Error!void {
    // The first of two with one number has ended.
    if (c.group_at(body.id)) |before| {
        before.drop_empty();
        if (before.epochs.items.len > 0) return error.BadRecord;
        c.end_group(before);
    }
    try c.groups.ensureUnusedCapacity(c.gpa, 1);
    const group = try Group.create(c.gpa, .{
        .coordinator = c,
        .id = body.id,
        .name = body.name.data,
        .initial_world_size = body.initial_world_size,
        .min_world_size = if (body.is_founded) 1 else c.options.min_world_size,
        .prepare_ns = c.options.prepare_ns,
        .founding = if (body.is_founded) .{} else null,
    });
    group.last_epoch = body.last_epoch;
    c.groups.appendAssumeCapacity(group);
}

fn restore_epoch(c: *Coordinator, now: base.Instant, entry: *const journal.Activation) Error!void {
    const body = &entry.told;
    const group = c.group_at(body.group) orelse return error.BadRecord;
    if (group.epoch_of(body.epoch) != null) return error.BadRecord;
    if (body.members.count == 0 or body.members.count > limits.peers_max) return error.BadRecord;
    // With a third epoch the first one was over.
    while (group.epochs.items.len > 1) group.epochs.orderedRemove(0).destroy();
    try group.epochs.ensureUnusedCapacity(c.gpa, 1);
    const peers = try c.gpa.alloc(*Peer, body.members.count);
    defer c.gpa.free(peers);
    var it = body.members.iterator();
    var instances = entry.instances.iterator();
    for (peers) |*peer| {
        const instance = instances.next().?;
        if (instance == 0) return error.BadRecord;
        peer.* = try c.away_peer(now, it.next().?, instance);
    }
    const left = try c.gpa.alloc(PeerId, body.left.count);
    defer c.gpa.free(left);
    var gone = body.left.iterator();
    for (left) |*id| id.* = gone.next().?;
    const epoch = try Epoch.create(group, body.epoch, peers, .{
        .round = body.round,
        .safe_point = body.safe_point,
        .joined = body.joined,
        .left = left,
    });
    errdefer epoch.destroy();
    if (epoch.ranks.count() != peers.len) return error.BadRecord; // one is named twice
    group.epochs.appendAssumeCapacity(epoch);
    group.last_epoch = @max(group.last_epoch, body.epoch);
}

fn restore_removal(c: *Coordinator, group: *Group, body: *const journal.Removal) Error!void {
    if (body.why.data.len > 0) group.removals.note(body.peer, body.why.data);
    if (body.epochs.count == 0) return;
    const peer = c.peer_of(body.peer) orelse return error.BadRecord;
    var it = body.epochs.iterator();
    while (it.next()) |from| {
        // A removal from an epoch that is over interests nobody any more.
        const epoch = group.epoch_of(from.epoch) orelse continue;
        const rank = epoch.rank_of(peer) orelse return error.BadRecord;
        if (from.attempt <= 1) return error.BadRecord;
        epoch.detach(rank, from.attempt);
    }
    // It is out of every epoch that was alive: one that it still is in was over by then.
    var index = group.epochs.items.len;
    while (index > 0) {
        index -= 1;
        if (group.epochs.items[index].rank_of(peer) == null) continue;
        group.epochs.orderedRemove(index).destroy();
    }
}
