//! actions: what a group's member (protocol/member.zig) wants done as it decides: messages to send,
//! data to move or to stop, calls that are over and callers to be told. It calls the functions of
//! the table from inside, so whatever would ask it again waits for Session.run_deferred. How calls
//! begin: calls.zig; how their data moves: frames.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const calls = @import("calls.zig");
const frames = @import("frames.zig");
const groups = @import("groups.zig");
const host = @import("host.zig");
const links = @import("links.zig");
const outgoing = @import("outgoing.zig");
const queue = @import("queue.zig");
const sync = @import("sync.zig");
const vote = @import("vote.zig");
const Group = @import("group.zig").Group;
const Early = @import("early.zig").Early;
const Link = @import("link.zig").Link;
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

pub fn operation_from(op: *protocol.Op) *Operation {
    return @fieldParentPtr("op", op);
}

fn action_send(ctx: *anyopaque, message: control.Message) void {
    group_from(ctx).session.send(message);
}

fn action_stop(ctx: *anyopaque, epoch: u64) void {
    const group = group_from(ctx);
    for (group.session.operations.items) |operation| {
        if (operation.group != group or operation.op.epoch != epoch) continue;
        frames.stop(group.session, operation);
    }
}

fn action_chunks(_: *anyopaque, op: *protocol.Op) []const u32 {
    const x = operation_from(op).moves() orelse return &.{};
    return x.board.ledger.reduced;
}

fn action_start(ctx: *anyopaque, op: *protocol.Op, kept: []const control.KeptRange) void {
    frames.start(group_from(ctx).session, operation_from(op), kept);
}

fn action_finished(ctx: *anyopaque, op: *protocol.Op, failure: ?Failure) void {
    const s = group_from(ctx).session;
    const operation = operation_from(op);
    assert(!operation.is_over);
    operation.is_over = true;
    operation.ended_queued = operation.is_queued;
    if (operation.is_queued) queue.leave(s, operation);
    if (failure) |why| {
        operation.failure = why;
        operation.failure.coordinator_silent_ns = coordinator_silent_ns(s);
        if (s.away_since != base.never)
            operation.failure.coordinator_away_ns = s.now -| s.away_since;
        operation.status = why.status;
        operation.note_wanted();
        operation.names = .of_failure(s, operation);
    } else if (operation.sync() != null) s.sync_point(operation, .sync_committed, 0) //
    else s.fault_point(operation, .all_reduce_committed);
    var is_back = true;
    if (operation.status == .in_doubt and op.state == .in_doubt) {
        is_back = frames.set_aside(s, operation);
    } else {
        frames.stop(s, operation);
        if (operation.sync() != null) sync.over(operation, operation.status == .ok) //
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
    if (operation.purpose == .safe_point) return vote.note(operation);
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
        outgoing.wake_all(s, operation);
        tell_finished(s, operation);
        if (operation.is_decided) calls.resolve(s, operation, operation.committed);
    }
}

fn action_resolved(ctx: *anyopaque, op: *protocol.Op, committed: ?bool) void {
    const s = group_from(ctx).session;
    const operation = operation_from(op);
    frames.stop(s, operation);
    if (operation.partner()) |id| links.give_back(s, id);
    if (operation.finished) return calls.resolve(s, operation, committed);
    // Its arrays are still being given back: tell_back says both.
    operation.is_decided = true;
    operation.committed = committed;
}

fn action_admitted(ctx: *anyopaque, failure: ?Status) void {
    const group = group_from(ctx);
    const s = group.session;
    group.admit_deadline = base.never;
    if (failure == null) {
        vote.passed(group);
        group.tell_entry();
    }
    const event: host.GroupEvent = if (failure) |status|
        .{ .admit_failed = status }
    else
        .admitted;
    s.host.vtable.group_event(s.host.ctx, group, event);
}

fn action_closed(ctx: *anyopaque, epoch: u64) void {
    const group = group_from(ctx);
    for (group.session.links.items) |link| link.early.prune_epochs(group.id.?, epoch);
    groups.prune_addresses(group.session);
    links.review(group.session);
}

/// The coordinator answers each heartbeat, so this is 0 while it does.
fn coordinator_silent_ns(s: *const Session) u64 {
    const silent_ns = s.now -| s.last_message;
    return if (silent_ns > 3 *| s.settings.heartbeat_ns) silent_ns else 0;
}
