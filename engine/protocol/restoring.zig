//! restoring: how a coordinator begins again from its journal: with the settings, the groups, the
//! epochs that were alive, their members, and the calls that were refused (refusals.zig). Its
//! members tell everything else when they come back (comebacks.zig, claims.zig). How it gets into
//! the journal: journaling.zig; the format: journal.zig.

const std = @import("std");
const base = @import("base");
const door = @import("door.zig");
const groups = @import("groups.zig");
const journal = @import("journal.zig");
const journaling = @import("journaling.zig");
const losses = @import("losses.zig");
const refusals = @import("refusals.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const start_bits = @import("epoch.zig").start_bits;
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

pub fn restore(run: *Run, now: base.Instant, bytes: []const u8) Error!void {
    var replay: journal.Replay = .init(bytes);
    var last_incarnation: u32 = 0;
    while (try replay.next()) |entry| switch (entry) {
        // The driver has read the others: they are the options.
        .settings => |*body| run.seal_key = body.seal_key,
        .start => |body| {
            last_incarnation = @max(last_incarnation, body.incarnation);
            run.ended.epoch = @max(run.ended.epoch, body.ended_epoch);
        },
        .group => |*body| try restore_group(run, body),
        .activation => |*body| try restore_epoch(run, now, body),
        .removal => |*body| {
            const group = run.group_at(body.group) orelse return error.BadRecord;
            try restore_removal(run, group, body);
        },
        .refusals => |*body| {
            const group = run.group_at(body.group) orelse return error.BadRecord;
            try refusals.restore(group, body);
        },
    };
    if (last_incarnation == limits.incarnations_max) return error.BadRecord;
    run.incarnation = last_incarnation + 1;
    for (run.groups.items) |group| group_restored(run, group);
    // An id may have been that of another process in an epoch that is over.
    for (run.groups.items) |group| for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        if (member.peer) |peer| peer.instance = member.instance;
    };
    losses.forget_idle(run);
    groups.end_groups(run);
    journaling.begin(run) catch |err| return switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        error.JournalFailed => error.JournalFailed,
        else => error.BadRecord, // larger than any record may be
    };
    run.journal_state = .ok;
}

fn restore_group(run: *Run, body: *const journal.GroupMade) Error!void {
    // The first of two with one number has ended.
    if (run.group_at(body.id)) |before| {
        before.drop_empty();
        if (before.epochs.items.len > 0) return error.BadRecord;
        groups.end_group(run, before);
    }
    try run.groups.ensureUnusedCapacity(run.gpa, 1);
    const group = try Group.create(run.gpa, .{
        .id = body.id,
        .name = body.name.data,
        .initial_world_size = body.initial_world_size,
        .min_world_size = if (body.is_founded) 1 else run.options.min_world_size,
        .prepare_ns = run.options.prepare_ns,
        .round = run.first_round(),
        .founding = if (body.is_founded) .{} else null,
    });
    group.last_epoch = body.last_epoch;
    run.groups.appendAssumeCapacity(group);
}

fn restore_epoch(run: *Run, now: base.Instant, entry: *const journal.Activation) Error!void {
    const body = &entry.told;
    const group = run.group_at(body.group) orelse return error.BadRecord;
    if (group.epoch_of(body.epoch) != null) return error.BadRecord;
    if (body.members.count == 0 or body.members.count > limits.peers_max) return error.BadRecord;
    // With a third epoch the first one was over.
    while (group.epochs.items.len > 1) group.epochs.orderedRemove(0).destroy();
    try group.epochs.ensureUnusedCapacity(run.gpa, 1);
    const peers = try run.gpa.alloc(*Peer, body.members.count);
    defer run.gpa.free(peers);
    var it = body.members.iterator();
    var instances = entry.instances.iterator();
    for (peers) |*peer| {
        const instance = instances.next().?;
        if (instance == 0) return error.BadRecord;
        peer.* = try door.away_peer(run, now, it.next().?, instance);
    }
    const left = try run.gpa.alloc(PeerId, body.left.count);
    defer run.gpa.free(left);
    var gone = body.left.iterator();
    for (left) |*id| id.* = gone.next().?;
    const epoch = try Epoch.create(run.gpa, .{
        .group = group.id,
        .number = body.epoch,
        .min_world_size = group.min_world_size,
        .seal_key = &run.seal_key,
        .budget = &run.memory,
        .peers = peers,
        .began = .{
            .round = body.round,
            .safe_point = body.safe_point,
            .joined = body.joined,
            .left = left,
        },
    });
    errdefer epoch.destroy();
    if (epoch.ranks.count() != peers.len) return error.BadRecord; // one is named twice
    group.epochs.appendAssumeCapacity(epoch);
    group.last_epoch = @max(group.last_epoch, body.epoch);
}

fn restore_removal(run: *Run, group: *Group, body: *const journal.Removal) Error!void {
    if (body.why.data.len > 0) group.removals.note(body.peer, body.why.data);
    if (body.epochs.count == 0) return;
    const peer = run.peer_of(body.peer) orelse return error.BadRecord;
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

/// It was made from a journal: whoever is a member has to come back first.
fn group_restored(run: *Run, group: *Group) void {
    group.round = run.first_round();
    group.had_members = group.current() != null;
    group.drop_empty();
    group.recovering = group.epochs.items.len > 0;
    for (group.epochs.items) |epoch| epoch_restored(epoch, run.incarnation - 1);
}

/// It was made from a journal. Attempts and decisions go on where no coordinator before this
/// one can have been, so members' own numbers are irrelevant.
fn epoch_restored(epoch: *Epoch, starts: u32) void {
    epoch.recovering = true;
    epoch.forgetful = true;
    epoch.running = false;
    const removed = epoch.history.entries.getLast().attempt;
    epoch.first_attempt = @max(removed, @as(u32, @min(starts, starts_max)) << 16);
    epoch.attempt = epoch.first_attempt;
    epoch.decisions = @as(u64, starts) << start_bits;
    epoch.retold = std.math.maxInt(u64);
    for (epoch.members) |*member| member.decisions_seen = epoch.decisions;
    epoch.least_seen_by = 0;
    refusals.restored(epoch);
}

/// After that many, attempts of different starts are not told apart any more.
const starts_max = std.math.maxInt(u32) >> 17;
