//! vote: safe points that all members pass together. Before one is passed, members agree in an
//! operation of their own, the least of one number each, whether a new epoch begins there: it does
//! if all know of it. So `admit` returns when all have called it, all say the same, and nobody
//! waits on the word of one. Losses, restarts and doubts are those of any operation; one that is in
//! doubt is kept, and the next call waits for its answer. A newcomer has no part in the operation:
//! it enters after all members from before (protocol/member.zig). The question without a safe
//! point: Session.ask_pending. Free functions on Session.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Group = @import("group.zig").Group;
const labels = @import("labels.zig");
const waits = @import("waits.zig");

pub const Vote = struct {
    /// Whether this peer knows of an epoch that begins at this safe point, and whether all do.
    own: u32 = 0,
    all: u32 = 0,
    operation: ?*Operation = null,
    /// The user waits for what all agree on.
    is_wanted: bool = false,
    /// The operation has come to something.
    is_news: bool = false,
    /// Agreed: a new epoch begins at the safe point, which is not passed yet, or it does not.
    agreed: ?bool = null,
    /// For whom a call that ran out of time has waited.
    late_storage: [late_bytes_max]u8 = undefined,
    late_length: usize = 0,

    const late_bytes_max = 400;

    /// Half a sentence, or nothing.
    pub fn why_late(vote: *const Vote) []const u8 {
        return vote.late_storage[0..vote.late_length];
    }

    /// An earlier call has run out of time, and others may have passed the safe point.
    pub fn is_open(vote: *const Vote) bool {
        return vote.operation != null or vote.agreed != null;
    }
};

pub fn begin(s: *Session, group: *Group, deadline: base.Instant) Session.CallError!void {
    const vote = &group.vote;
    vote.late_length = 0;
    if (!vote.is_open()) {
        vote.own = @intFromBool(group.member.epoch_to_enter() != null);
        vote.operation = try agree(s, group, .safe_point, &vote.own, &vote.all, deadline);
    }
    resume_call(s, group);
}

/// Begins the operation in which the members agree on the least of one number each. Both numbers
/// are kept until it is over; they may be one.
pub fn agree(
    s: *Session,
    group: *Group,
    purpose: Session.Call.Purpose,
    own: *const u32,
    all: *u32,
    deadline: base.Instant,
) Session.CallError!*Operation {
    return s.begin(s.now, group, .{
        .kind = .all_reduce,
        .send = @ptrCast(own),
        .recv = @ptrCast(all),
        .count = 1,
        .dtype = .u32,
        .op = .min,
        .recovery = .resume_chunks,
        .purpose = purpose,
        .deadline = deadline,
    });
}

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
pub fn note(operation: *Operation) void {
    operation.group.vote.is_news = true;
    operation.group.session.votes_changed = true;
}

/// Does what a vote that has come to something is for.
pub fn go_on(s: *Session, group: *Group) void {
    const vote = &group.vote;
    const operation = vote.operation orelse return;
    if (!vote.is_news) return;
    vote.is_news = false;
    if (operation.op.state == .in_doubt) return fail(s, group, .deadline_exceeded);
    const status = operation.status;
    const is_agreed = status == .ok or operation.committed == true;
    if (is_agreed and status != .ok) operation.copy_result();
    vote.operation = null;
    s.release(operation);
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
pub fn withdraw(group: *Group, reason: wire.control.AbortReason) void {
    group.vote.is_wanted = false;
    const operation = group.vote.operation orelse return;
    if (!operation.finished) group.member.give_up(&operation.op, reason);
    if (operation.op.missing.is_empty()) return;
    const names: labels.Names = .of_missing(group.session, operation);
    var writer: std.Io.Writer = .fixed(&group.vote.late_storage);
    const missing: waits.Missing = .{ .names = &names, .operation = operation };
    writer.print("{f} must come to it first", .{missing}) catch {}; // cut
    group.vote.late_length = writer.end;
}
