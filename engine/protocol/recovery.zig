//! recovery: what a coordinator puts into its journal, and how it begins again with what it finds
//! there: the settings, the groups, the epochs that were alive and who is in them. Everything else
//! its members tell when they come back (group.zig: come_back). The format: journal.zig.

const std = @import("std");
const base = @import("base");
const journal = @import("journal.zig");
const coordinator = @import("coordinator.zig");
const Coordinator = coordinator.Coordinator;
const Peer = coordinator.Peer;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
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

/// Puts a record on disk before anybody learns of it. A coordinator that cannot write goes on, and
/// says so.
pub fn record(c: *Coordinator, entry: journal.Record) void {
    if (c.journal_state != .ok) return;
    const file = c.options.journal.?;
    var image: journal.Image = .{};
    defer image.deinit(c.gpa);
    image.add(c.gpa, entry) catch return failed(c, c.last_tick);
    file.append(image.bytes()) catch return failed(c, c.last_tick);
    c.journal_bytes += image.bytes().len;
    if (c.journal_bytes >= compact_bytes) c.journal_due = true;
}

/// Between two calls, when nothing is half done: writes the whole run as one file when much was
/// appended, or when a journal that has failed may work again, because there is room on its disk.
pub fn tend(c: *Coordinator, now: base.Instant) void {
    const due = switch (c.journal_state) {
        .off => false,
        .ok => c.journal_due,
        .failed => now >= c.journal_retry_at,
    };
    if (!due) return;
    c.journal_due = false;
    replace(c) catch return failed(c, now);
    if (c.journal_state == .failed) c.log(.warning, "the journal is written again: from now on " ++
        "the run survives the end of this coordinator", .{});
    c.journal_state = .ok;
}

fn replace(c: *Coordinator) !void {
    const gpa = c.options.secrets orelse c.gpa; // it has run id and key
    var image: journal.Image = .{};
    defer image.deinit(gpa);
    try write_all(c, gpa, &image);
    try c.options.journal.?.replace(image.bytes());
    c.journal_bytes = 0;
}

fn failed(c: *Coordinator, now: base.Instant) void {
    c.journal_retry_at = now +| c.options.journal_retry_ns;
    if (c.journal_state == .failed) return; // it was said
    c.journal_state = .failed;
    c.log(.err, "the run goes on, and does not survive the end of this coordinator before its " ++
        "journal can be written again, which is tried every {d} s: {s}", .{
        c.options.journal_retry_ns / std.time.ns_per_s,
        c.options.journal.?.why(),
    });
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
        .min_world_size = options.min_world_size,
        .initial_world_size = options.initial_world_size,
        .address = .of(options.address),
    } });
    try image.add(gpa, .{ .start = .{ .incarnation = c.incarnation } });
    for (c.groups.items) |group| {
        try image.add(gpa, .{ .group = group.record() });
        for (group.epochs.items) |epoch| {
            var buffer: [limits.peers_max]PeerId = undefined;
            const ids = epoch.member_ids(&buffer);
            try image.add(gpa, .{ .activation = epoch.activation(ids) });
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
    }
}

// ---- reading

pub fn restore(c: *Coordinator, now: base.Instant, bytes: []const u8) Error!void {
    var replay: journal.Replay = .init(bytes);
    var last_incarnation: u32 = 0;
    while (try replay.next()) |entry| switch (entry) {
        // The driver has read the others: they are the options.
        .settings => |*body| c.seal_key = body.seal_key,
        .start => |body| last_incarnation = @max(last_incarnation, body.incarnation),
        .group => |*body| try restore_group(c, body),
        .activation => |*body| try restore_epoch(c, now, body),
        .removal => |*body| {
            if (body.group >= c.groups.items.len) return error.BadRecord;
            try restore_removal(c, c.groups.items[body.group], body);
        },
    };
    if (last_incarnation == limits.incarnations_max) return error.BadRecord;
    c.incarnation = last_incarnation + 1;
    for (c.groups.items) |group| group.restored();
    c.forget_idle();
    replace(c) catch |err| return switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        error.JournalFailed => error.JournalFailed,
        else => error.BadRecord, // larger than any record may be
    };
    c.journal_state = .ok;
}

fn restore_group(c: *Coordinator, body: *const journal.GroupMade) Error!void {
    if (body.id != c.groups.items.len or body.id >= limits.groups_max) return error.BadRecord;
    try c.groups.ensureUnusedCapacity(c.gpa, 1);
    const group = try Group.create(c.gpa, .{
        .coordinator = c,
        .id = body.id,
        .name = body.name.data,
        .initial_world_size = body.initial_world_size,
        .min_world_size = c.options.min_world_size,
        .prepare_ns = c.options.prepare_ns,
    });
    group.last_epoch = body.last_epoch;
    c.groups.appendAssumeCapacity(group);
}

fn restore_epoch(c: *Coordinator, now: base.Instant, body: *const journal.Activation) Error!void {
    if (body.group >= c.groups.items.len) return error.BadRecord;
    const group = c.groups.items[body.group];
    if (group.epoch_of(body.epoch) != null) return error.BadRecord;
    if (body.members.count == 0 or body.members.count > limits.peers_max) return error.BadRecord;
    // With a third epoch the first one was over.
    while (group.epochs.items.len > 1) group.epochs.orderedRemove(0).destroy();
    try group.epochs.ensureUnusedCapacity(c.gpa, 1);
    const peers = try c.gpa.alloc(*Peer, body.members.count);
    defer c.gpa.free(peers);
    var it = body.members.iterator();
    for (peers) |*peer| peer.* = try c.away_peer(now, it.next().?);
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
    const peer = c.peer_of(body.peer) orelse return error.BadRecord;
    var it = body.epochs.iterator();
    while (it.next()) |from| {
        // Of an epoch that is over it interests nobody any more.
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
