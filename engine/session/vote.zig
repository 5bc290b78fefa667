//! vote: safe points that all members pass together. Before one is passed, members agree in an
//! operation of their own, the least of one number each, whether a new epoch begins there: it does
//! if all know of it. So `admit` returns when all have called it, all say the same, and nobody
//! waits on the word of one. Losses, restarts and doubts are those of any operation; one that is in
//! doubt is kept, and the next call waits for its answer. A newcomer has no part in the operation:
//! it enters after all members from before (protocol/member.zig). The question without a safe
//! point: joining.ask_pending; it begins there, too. Free functions on Session.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Group = @import("group.zig").Group;
const labels = @import("labels.zig");
const operations = @import("operations.zig");
const waits = @import("waits.zig");

/// Goes on where an earlier call of the user ended.
pub fn resume_call(s: *Session, group: *Group) void {
    group.vote.is_wanted = true;
    if (group.vote.agreed) |enters| return pass(group, enters);
    go_on(s, group);
}

fn pass(group: *Group, enters: bool) void {
    group.vote.is_wanted = false;
    group.member.admit_agreed(enters);
}

/// The safe point is passed.
pub fn passed(group: *Group) void {
    group.vote.agreed = null;
}

/// Inside a member's action, in which nothing can be done about it.
pub fn note(s: *Session, operation: *Operation) void {
    operation.group.vote.is_news = true;
    s.votes_changed = true;
}

/// Does what a vote that has come to something is for.
pub fn go_on(s: *Session, group: *Group) void {
    const vote = &group.vote;
    const operation: *Operation = .from_op(vote.op orelse return);
    if (!vote.is_news) return;
    vote.is_news = false;
    if (operation.op.state == .in_doubt) return fail(s, group, .deadline_exceeded);
    const status = operation.status;
    const is_agreed = status == .ok or operation.committed == true;
    if (is_agreed and status != .ok) operation.copy_result();
    vote.op = null;
    operations.release(s, operation);
    if (!is_agreed) return fail(s, group, if (status == .in_doubt) .aborted else status);
    // Members that lie could have agreed on an epoch that this one does not know.
    const enters = vote.all != 0 and group.member.epoch_to_enter() != null;
    vote.agreed = enters;
    if (vote.is_wanted) pass(group, enters);
}

fn fail(s: *Session, group: *Group, status: protocol.Status) void {
    if (!group.vote.is_wanted) return;
    group.vote.is_wanted = false;
    group.admit_deadline = base.never;
    s.host.vtable.group_event(s.host.ctx, group, .{ .admit_failed = status });
}

/// The user does not wait any more.
pub fn withdraw(s: *Session, group: *Group, reason: wire.control.AbortReason) void {
    group.vote.is_wanted = false;
    const operation: *Operation = .from_op(group.vote.op orelse return);
    if (!operation.finished) group.member.give_up(&operation.op, reason);
    if (operation.op.missing.is_empty()) return;
    const names = labels.names_of_missing(s, operation);
    var writer: std.Io.Writer = .fixed(&group.vote.late_storage);
    const missing: waits.Ranks = .{
        .names = &names,
        .operation = operation,
        .ranks = &operation.op.missing,
    };
    writer.print("{f} must come to it first", .{missing}) catch {}; // cut
    group.vote.late_length = writer.end;
}
