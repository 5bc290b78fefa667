//! activation: a round ends in an epoch. It is put into the journal, and all its members hear that
//! it begins. The choice of its safe point: epoch.zig, last_safe_point. The round before that:
//! rounds.zig.

const std = @import("std");
const base = @import("base");
const candidates = @import("candidates.zig");
const detours = @import("detours.zig");
const journaling = @import("journaling.zig");
const post = @import("post.zig");
const Circular = @import("post.zig").Circular;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;

pub fn activate(run: *Run, group: *Group, now: base.Instant, safe_point: u64) Allocator.Error!void {
    const peers = try candidates.future_members(group);
    defer group.gpa.free(peers);
    var ids: std.ArrayList(PeerId) = .empty;
    defer ids.deinit(group.gpa);
    for (peers) |peer| try ids.append(group.gpa, peer.id);
    var left: std.ArrayList(PeerId) = .empty;
    defer left.deinit(group.gpa);
    var incumbents: u32 = 0;
    const before = group.current();
    if (before) |epoch| for (epoch.members) |*member| {
        if (member.peer == null) try left.append(group.gpa, member.id) else incumbents += 1;
    };
    try group.epochs.ensureUnusedCapacity(group.gpa, 1);
    const number = @max(group.last_epoch + 1, run.first_epoch());
    const epoch = try Epoch.create(group.gpa, .{
        .group = group.id,
        .number = number,
        .min_world_size = group.min_world_size,
        .seal_key = &run.seal_key,
        .budget = &run.memory,
        .peers = peers,
        .began = .{
            .round = group.round,
            .safe_point = safe_point,
            .joined = @intCast(peers.len - incumbents),
            .left = left.items,
        },
    });
    var instances: [base.limits.peers_max]u64 = undefined;
    epoch.recorded = journaling.note(run, group, epoch.record(ids.items, &instances));
    group.epochs.appendAssumeCapacity(epoch);
    group.last_epoch = number;
    group.had_members = true;
    group.phase = .activate;
    group.round_deadline = base.never;
    candidates.open_to_all(group);
    var kept: usize = 0;
    for (group.newcomers.items) |newcomer| {
        if (newcomer.in_round) {
            group.patience.forget(newcomer.peer.id);
            continue;
        }
        group.newcomers.items[kept] = newcomer;
        kept += 1;
    }
    group.newcomers.shrinkRetainingCapacity(kept);
    announce_to_all(run, epoch, ids.items, if (before) |old| old.number else 0);
    // The name comes last: it may be long, and the end of a long line is cut.
    const begins = "epoch {d} begins with world size {d} (joined: {f}; left: {f}) in group {s}";
    run.log(.info, begins, .{
        number,
        peers.len,
        Listed{ .run = run, .group = group, .ids = ids.items[incumbents..] },
        Listed{ .run = run, .group = group, .ids = left.items },
        group.name,
    });
    group.drop_empty();
    detours.look_soon(group, now);
}

/// Tells all that the epoch has begun. Members of the one `before` hear what differs; 0: none.
fn announce_to_all(run: *Run, epoch: *Epoch, ids: []const PeerId, before: u64) void {
    const message = epoch.activation(ids);
    const first = ids.len - message.joined;
    var difference = message;
    difference.base = before;
    difference.members = .of(ids[first..]);
    var to_members: Circular = .{ .message = &.{ .activate = difference } };
    var to_newcomers: Circular = .{ .message = &.{ .activate = message } };
    for (epoch.members, 0..) |*member, rank| {
        const circular = if (rank < first) &to_members else &to_newcomers;
        circular.send(run, epoch.group, member.peer.?);
    }
}

/// Tells a member that the epoch has begun.
pub fn announce(run: *Run, epoch: *Epoch, rank: u16) void {
    var buffer: [base.limits.peers_max]PeerId = undefined;
    const peer = epoch.members[rank].peer orelse return;
    post.send(run, peer, epoch.group, .{ .activate = epoch.activation(epoch.member_ids(&buffer)) });
}

/// Some peers in a line of the log.
const Listed = struct {
    run: *const Run,
    group: *const Group,
    ids: []const PeerId,

    const shown_max = 6;

    pub fn format(listed: Listed, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (listed.ids.len == 0) return writer.writeAll("nobody");
        for (listed.ids[0..@min(listed.ids.len, shown_max)], 0..) |id, index| {
            if (index > 0) try writer.writeAll(", ");
            try writer.print("{f}", .{listed.run.named(listed.group, id)});
        }
        if (listed.ids.len <= shown_max) return;
        try writer.print(" and {d} more", .{listed.ids.len - shown_max});
    }
};

test "a long list of peers is cut in a line of the log" {
    const court_file = @import("court_test.zig");
    var court: court_file.Court = undefined;
    try court.init(std.testing.allocator);
    defer court.c.destroy();
    try court.form();
    const ids: [8]PeerId = @splat(court_file.id_of(0));
    var text: [100]u8 = undefined;
    const listed: Listed = .{ .run = &court.c.run, .group = court.group(), .ids = &ids };
    const shown = try std.fmt.bufPrint(&text, "{f}", .{listed});
    try std.testing.expectEqualStrings("01000000, " ** 5 ++ "01000000 and 2 more", shown);
}
