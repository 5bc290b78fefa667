//! actions: what a group's member (protocol/member.zig) wants done as it decides: messages to send,
//! data to move or to stop, calls that are over and callers to be told. It calls the functions of
//! the table from inside, so whatever would ask it again waits for deferred.zig. How calls
//! begin: calls.zig; how their data moves: frames.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const figures = @import("figures.zig");
const frames = @import("frames.zig");
const groups = @import("groups.zig");
const host = @import("host.zig");
const labels = @import("labels.zig");
const links = @import("links.zig");
const operations = @import("operations.zig");
const queue = @import("queue.zig");
const syncing = @import("syncing.zig");
const vote = @import("vote.zig");
const Group = @import("group.zig").Group;
const Early = @import("early.zig").Early;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Failure = protocol.Failure;
const Status = protocol.Status;
const control = wire.control;
const assert = std.debug.assert;

pub const member_actions: protocol.Member.ActionsTable = .{
    .send = action_send,
    .stop = action_stop,
    .chunks = action_chunks,
    .start = action_start,
    .finished = action_finished,
    .resolved = action_resolved,
    .admitted = action_admitted,
    .closed = action_closed,
};

fn group_from(ctx: *anyopaque) *Group {
    return @ptrCast(@alignCast(ctx));
}

fn session_of(group: *const Group) *Session {
    return @ptrCast(@alignCast(group.session));
}

fn action_send(ctx: *anyopaque, message: control.Message) void {
    session_of(group_from(ctx)).send(message);
}

fn action_stop(ctx: *anyopaque, epoch: u64) void {
    const group = group_from(ctx);
    const s = session_of(group);
    for (s.operations.items) |operation| {
        if (operation.group != group or operation.op.epoch != epoch) continue;
        frames.stop(s, operation);
    }
}

fn action_chunks(_: *anyopaque, op: *protocol.Op) []const u32 {
    const x = Operation.from_op(op).moves() orelse return &.{};
    return x.board.ledger.reduced;
}

fn action_start(ctx: *anyopaque, op: *protocol.Op, kept: []const control.KeptRange) void {
    const s = session_of(group_from(ctx));
    frames.start(s, Operation.from_op(op), kept);
    figures.note(s, Operation.from_op(op));
}

fn action_finished(ctx: *anyopaque, op: *protocol.Op, failure: ?Failure) void {
    const s = session_of(group_from(ctx));
    const operation = Operation.from_op(op);
    assert(operation.is_over() and !operation.finished);
    operation.ended_queued = operation.is_queued;
    if (operation.is_queued) queue.leave(s, operation);
    if (failure) |why| {
        operation.failure = why;
        operation.failure.coordinator_silent_ns = coordinator_silent_ns(s);
        if (s.away_since != base.never)
            operation.failure.coordinator_away_ns = s.now -| s.away_since;
        operation.status = why.status;
        operation.note_wanted(s.self);
        operation.names = labels.names_of_failure(s, operation);
    } else if (operation.sync() != null) s.sync_point(operation, .sync_committed, 0) //
    else s.fault_point(operation, .operation_committed);
    var is_back = true;
    if (operation.status == .in_doubt and op.state == .in_doubt) {
        is_back = frames.set_aside(s, operation);
    } else {
        frames.stop(s, operation);
        if (operation.sync() != null) syncing.over(s, operation, operation.status == .ok) //
        else if (operation.status != .ok) is_back = operation.work.movement.restore();
        const key: Early.Key = .of_operation(operation.group.id.?, op.epoch, op.id);
        for (s.links.items) |link| link.early.forget(key);
    }
    if (operation.partner()) |id| links.give_back(s, id);
    if (is_back) return tell_finished(s, operation);
    s.giving_back += 1;
    if (operation.purpose == .data) return;
    operation.work.movement.end_now();
    tell_back(s);
}

/// The caller has its memory back.
fn tell_finished(s: *Session, operation: *Operation) void {
    operation.finished = true;
    operation.finished_at = s.now;
    if (operation.purpose == .safe_point) return vote.note(s, operation);
    s.host.vtable.operation_finished(s.host.ctx, operation);
}

/// Tells the callers whose memory has been given back meanwhile.
pub fn tell_back(s: *Session) void {
    if (s.giving_back == 0) return;
    var index: usize = 0;
    while (index < s.operations.items.len) : (index += 1) {
        const operation = s.operations.items[index];
        if (!operation.is_back()) continue;
        s.giving_back -= 1;
        // One in doubt had nothing to send meanwhile; others may wait for the rest of it.
        operations.wake_all(s, operation);
        tell_finished(s, operation);
        if (operation.is_decided) resolve(s, operation, operation.committed);
    }
}

pub fn resolve(s: *Session, operation: *Operation, committed: ?bool) void {
    operation.committed = committed;
    if (operation.purpose == .safe_point and !operation.released) return vote.note(s, operation);
    if (!operation.released) return s.host.vtable.operation_resolved(s.host.ctx, operation);
    operations.free(s, operation);
}

fn action_resolved(ctx: *anyopaque, op: *protocol.Op, committed: ?bool) void {
    const s = session_of(group_from(ctx));
    const operation = Operation.from_op(op);
    frames.stop(s, operation);
    if (operation.partner()) |id| links.give_back(s, id);
    if (operation.finished) return resolve(s, operation, committed);
    // Its arrays are still being given back: tell_back says both.
    operation.is_decided = true;
    operation.committed = committed;
}

fn action_admitted(ctx: *anyopaque, failure: ?Status) void {
    const group = group_from(ctx);
    const s = session_of(group);
    group.admit_deadline = base.never;
    if (failure == null) {
        vote.passed(group);
        tell_entry(s, group);
    }
    const event: host.GroupEvent = if (failure) |status|
        .{ .admit_failed = status }
    else
        .admitted;
    s.host.vtable.group_event(s.host.ctx, group, event);
}

/// To the log, once for each epoch: a peer with which all is well says this and little else.
fn tell_entry(s: *Session, group: *Group) void {
    const current = group.member.current orelse return;
    if (group.entry_said == current.number) return;
    group.entry_said = current.number;
    s.log(.info, "entered epoch {d} of group {s} as rank {d} of {d}", .{
        current.number,
        group.name,
        current.rank,
        current.world_size(),
    });
}

fn action_closed(ctx: *anyopaque, epoch: u64) void {
    const group = group_from(ctx);
    const s = session_of(group);
    for (s.links.items) |link| link.early.prune_epochs(group.id.?, epoch);
    groups.prune_addresses(s);
    links.review(s);
}

/// The coordinator answers each heartbeat, so this is 0 while it does.
fn coordinator_silent_ns(s: *const Session) u64 {
    const silent_ns = s.now -| s.last_message;
    return if (silent_ns > 3 *| s.settings.heartbeat_ns) silent_ns else 0;
}
