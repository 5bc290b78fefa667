//! decisions: an operation ends as committed or aborted, once, and all members hear it. Decisions
//! are kept until every member has said that it has seen them (unseen.zig). The reasons to decide:
//! votes.zig, syncs.zig, reports.zig.

const base = @import("base");
const wire = @import("wire");
const journaling = @import("journaling.zig");
const post = @import("post.zig");
const seal = @import("seal.zig");
const Circular = @import("post.zig").Circular;
const Decision = @import("record.zig").Decision;
const Epoch = @import("epoch.zig").Epoch;
const Outcome = @import("record.zig").Outcome;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const Pair = base.Pair;
const control = wire.control;
const OpId = control.OpId;

pub fn commit(run: *Run, epoch: *Epoch, id: OpId, committed: Outcome.Committed) ProtocolError!void {
    // A message of two says nothing of how far the others are.
    const called = if (Pair.of(id.tag) != null) 0 //
        else if (epoch.find(id)) |index| epoch.records.items[index].descriptor.safe_points //
        else 0;
    try decide(run, epoch, id, .{ .commit = committed }, null);
    if (id.tag < base.limits.pending_tag) epoch.committed += 1;
    epoch.committed_at = @max(epoch.committed_at, called);
}

/// Decides against an operation, once; nothing happens if it is decided already. A `maker` has
/// caused it alone, perhaps for an operation that nobody will ever call: it is counted against
/// that member, and error.Unexpected when that is more than any honest one can have caused.
pub fn abort(run: *Run, epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
    // Not all have told what they know, and somebody may know that it was committed.
    if (epoch.recovering or epoch.forgetful) return withdraw(epoch, id, verdict, maker);
    try abort_now(run, epoch, id, verdict, maker);
}

pub fn abort_now(
    run: *Run,
    epoch: *Epoch,
    id: OpId,
    verdict: Verdict,
    maker: ?u16,
) ProtocolError!void {
    if (epoch.is_decided(id)) return;
    if (maker) |rank| if (epoch.members[rank].caused >= base.limits.decisions_kept_max)
        return error.Unexpected;
    try decide(run, epoch, id, .{ .abort = verdict }, maker);
}

fn decide(run: *Run, epoch: *Epoch, id: OpId, outcome: Outcome, maker: ?u16) ProtocolError!void {
    try epoch.decided_ids.ensureUnusedCapacity(epoch.gpa, 1);
    try epoch.decided.append(epoch.gpa, .{
        .number = epoch.decisions + 1,
        .id = id,
        .maker = maker,
        .outcome = outcome,
    });
    epoch.decided_ids.putAssumeCapacity(id, {});
    if (maker) |rank| epoch.members[rank].caused += 1;
    epoch.decisions += 1;
    // A member that hears it may go on, and leave before this coordinator dies.
    if (outcome == .abort) journaling.note_refusal(run, epoch);
    const decided = epoch.decided.items;
    post.broadcast(run, epoch, message_of(epoch, &decided[decided.len - 1]));
    const index = epoch.find(id) orelse return;
    if (outcome == .commit) epoch.fitted.merge(&epoch.records.items[index].stall.called);
    epoch.record_free(index);
}

fn message_of(epoch: *const Epoch, decision: *const Decision) control.Message {
    var message: control.Message = switch (decision.outcome) {
        .commit => |committed| .{ .commit = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .op = decision.id,
            .attempt = committed.attempt,
            .digest = committed.digest,
            .decision = decision.number,
            .acknowledged = epoch.acknowledged,
            .seal = 0,
        } },
        .abort => |verdict| .{ .abort = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .op = decision.id,
            .reason = verdict.reason,
            .peer = verdict.peer,
            .other = verdict.other,
            .descriptor = verdict.descriptor orelse .blank,
            .other_descriptor = verdict.other_descriptor orelse .blank,
            .decision = decision.number,
            .acknowledged = epoch.acknowledged,
            .seal = 0,
        } },
    };
    switch (message) {
        .commit => |*body| body.seal = seal.of_commit(epoch.seal_key, body),
        .abort => |*body| body.seal = seal.of_abort(epoch.seal_key, body),
        else => unreachable,
    }
    return message;
}

/// It is to be aborted, if nobody knows that it was committed.
fn withdraw(epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
    if (epoch.claims.contains(id)) return;
    if (maker) |rank| {
        const member = &epoch.members[rank];
        if (member.withdrawn >= base.limits.decisions_kept_max) return error.Unexpected;
        member.withdrawn += 1;
    }
    try epoch.claims.put(epoch.gpa, id, .{
        .number = null,
        .maker = maker,
        .outcome = .{ .abort = verdict },
    });
}

/// The maker when two members contradict each other: nobody, because either may be the
/// honest one. Only beyond what honest members can reach (accomplices, then) is it the later.
pub fn spendthrift(epoch: *const Epoch, rank: u16) ?u16 {
    return if (epoch.outstanding().len < base.limits.contradictions_kept_max) null else rank;
}

pub fn acknowledge(epoch: *Epoch, rank: u16, seen: u64) ProtocolError!void {
    if (seen > epoch.decisions) return error.Unexpected;
    const member = &epoch.members[rank];
    if (seen > member.decisions_seen) {
        if (member.decisions_seen == epoch.least_seen and !epoch.closed.has(rank))
            epoch.least_seen_by -|= 1;
        member.decisions_seen = seen;
    }
    const all = seen_by_all(epoch);
    if (all >= epoch.retold) epoch.acknowledged = all;
    for (epoch.outstanding()) |*known| {
        if (known.number > all) break;
        _ = epoch.decided_ids.remove(known.id);
        if (known.maker) |maker| epoch.members[maker].caused -= 1;
        epoch.decided_first += 1;
    }
    // Now and then, so that each is moved but a few times.
    if (epoch.decided_first * 2 < epoch.decided.items.len) return;
    epoch.decided.replaceRangeAssumeCapacity(0, epoch.decided_first, &.{});
    epoch.decided_first = 0;
}

/// Members are asked one by one only when the last of those that had seen least goes on.
fn seen_by_all(epoch: *Epoch) u64 {
    if (epoch.least_seen_by > 0) return epoch.least_seen;
    const inside_now = epoch.inside();
    epoch.least_seen = epoch.decisions;
    for (epoch.members, 0..) |*member, rank| if (inside_now.has(rank)) {
        if (member.decisions_seen < epoch.least_seen) {
            epoch.least_seen = member.decisions_seen;
            epoch.least_seen_by = 0;
        }
        epoch.least_seen_by += @intFromBool(member.decisions_seen == epoch.least_seen);
    };
    return epoch.least_seen;
}

/// A member must say what it has seen within the silence limit: else what is kept for it grows,
/// and would in the end be counted against those who cause aborts honestly.
pub fn check_seen(
    run: *const Run,
    epoch: *Epoch,
    now: base.Instant,
    silence_ns: u64,
    late: bool,
) void {
    for (epoch.members, 0..) |*member, rank| {
        const peer = member.peer orelse continue;
        if (epoch.closed.has(rank)) continue;
        const pardons = late or run.holds_up(peer);
        if (!peer.is_present(epoch.group) or member.decisions_seen >= member.seen_wanted) {
            member.seen_wanted = (epoch.decisions + 1) -| base.limits.decisions_untold_max;
            member.seen_asked = .{}; // it has answered the one before, or cannot
            member.seen_asked.ask(peer, now);
        } else if (member.seen_asked.is_overdue(peer, now, silence_ns, pardons)) {
            peer.doom("it does not say which decisions it has seen");
        }
    }
}

/// Tells what was decided while the member was away.
pub fn tell_missed(run: *Run, epoch: *Epoch, rank: u16) void {
    const member = &epoch.members[rank];
    const peer = member.peer orelse return;
    for (epoch.outstanding()) |*decision| {
        if (decision.number <= member.decisions_seen) continue;
        const message = message_of(epoch, decision);
        var once: Circular = .{ .message = &message, .load = .bulk };
        once.send(run, epoch.group, peer);
    }
    member.seen_wanted = 0; // what it has seen is asked anew, behind all that
}
