//! figures: what the coordinator tells of the links of an epoch is kept for its group, and when an
//! attempt of an operation begins, its figures follow from that (collective/figures.zig): how long
//! it takes, and at least. They are for people; nothing else depends on them. Free functions on
//! Session.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const collective = @import("collective");
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Side = collective.matrix.Side;
const Volume = collective.Volume;
const bit = collective.matrix.bit;

const members_max = collective.matrix.members_max;

const Error = error{ OutOfMemory, Unexpected };

/// One member's row. It may be of an epoch that is over, or of one that this peer is not in yet.
pub fn on_measured(s: *Session, group: *Group, body: *const wire.control.Measured) Error!void {
    const epoch = group.member.epoch_of(body.epoch) orelse return;
    if (epoch.ids.len > members_max or body.rank >= epoch.ids.len) return error.Unexpected;
    const measured = try place(s, group, body.epoch) orelse return;
    const matrix = &measured.matrix;
    matrix.clear_row(body.rank);
    matrix.up[body.rank] = body.up;
    matrix.down[body.rank] = body.down;
    var it = body.links.iterator();
    while (it.next()) |link| {
        if (link.rank >= epoch.ids.len) return error.Unexpected;
        matrix.rates[body.rank][link.rank] = link.rate;
        matrix.rtts_ns[body.rank][link.rank] = link.rtt_ns;
    }
}

/// Null: it is of an epoch before.
fn place(s: *Session, group: *Group, epoch: u64) Error!?*Group.Measured {
    if (group.measured == null) {
        group.measured = try s.gpa.create(Group.Measured);
        group.measured.?.* = .{ .epoch = epoch };
    }
    const measured = group.measured.?;
    if (measured.epoch > epoch) return null;
    if (measured.epoch < epoch) measured.* = .{ .epoch = epoch };
    return measured;
}

/// An attempt has begun. Not inlined: its frame is large, and most groups know no rates.
pub fn note(s: *const Session, operation: *Operation) void {
    const x = operation.moves() orelse return;
    operation.figures = .{ .way = x.movers.active };
    const measured = operation.group.measured orelse return;
    if (measured.epoch != operation.op.epoch or x.board.members < 2) return;
    fill_in(s, operation, &measured.matrix);
}

noinline fn fill_in(s: *const Session, operation: *Operation, matrix: *collective.Matrix) void {
    const x = operation.work.movement;
    // Only two know the shards of an uneven exchange; and through hubs goes what others send.
    if (operation.op.descriptor.uneven or goes_through_hubs(operation)) return;
    var order: [members_max]u16 = undefined;
    var alive: Side = 0;
    for (x.board.positions, 0..) |position, rank| {
        if (position >= x.board.members) continue;
        order[position] = @intCast(rank);
        alive |= bit(rank);
    }
    const volume: Volume = .of(&x.board.ledger, alive, x.movers.active == .ring);
    operation.figures = collective.figures.of(matrix, &volume, &.{
        .way = x.movers.active,
        .order = order[0..x.board.members],
        .is_rooted = operation.op.descriptor.kind.has_root(),
        .commit_ns = s.round_trip_ns,
    });
}

fn goes_through_hubs(operation: *const Operation) bool {
    if (operation.work.movement.movers.active != .direct) return false;
    const epoch = operation.group.member.epoch_of(operation.op.epoch).?;
    return !epoch.paths.hubs.covers(&epoch.alive);
}
