//! reports: the attempts of an epoch. After a loss everybody stops and reports what it holds of the
//! operations in flight. When all have reported, they hear what is kept and go on; what cannot go
//! on is aborted. Whose data is kept: holdings.zig. Which way it takes then: path_search.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const attempts = @import("attempts.zig");
const calls = @import("calls.zig");
const claims = @import("claims.zig");
const decisions = @import("decisions.zig");
const misfit = @import("misfit.zig");
const post = @import("post.zig");
const Circular = @import("post.zig").Circular;
const Epoch = @import("epoch.zig").Epoch;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const Pair = base.Pair;
const PeerId = base.PeerId;
const control = wire.control;

/// Everybody stops, reports, and goes on along these paths with what the reports say.
pub fn new_attempt(run: *Run, epoch: *Epoch, paths: base.Paths) ProtocolError!void {
    if (epoch.alive.is_empty() or epoch.recovering) return;
    if (epoch.attempt + 1 >= base.limits.attempts_max) return attempts.end(epoch);
    epoch.attempt += 1;
    epoch.paths = paths;
    epoch.running = false;
    epoch.replan_at = base.never;
    epoch.reported = .empty;
    begin_records(epoch);
    forget_reports(epoch);
    post.broadcast(run, epoch, .{ .view = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
        .alive = epoch.alive,
        .order = .of(if (paths.order.is_rank_order()) &.{} else paths.order.slice()),
        .has_ring = paths.has_ring,
        .hubs = paths.hubs,
    } });
    try check_reported(run, epoch);
}

fn begin_records(epoch: *Epoch) void {
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (!misfit.is_called(epoch, known)) {
            epoch.record_free(index);
            continue;
        }
        known.done = .empty;
        known.reported = .empty;
        known.done_reported = .empty;
        known.stall.begin_attempt();
        if (known.election) |election| election.reset();
        known.vote = null;
        known.votes_differ = false;
    }
}

/// They are of a passed attempt, or what is kept by them is told.
fn forget_reports(epoch: *Epoch) void {
    for (epoch.records.items) |known| known.holdings.clear(epoch.gpa, epoch.budget);
    for (epoch.members) |*member| member.held_bytes = 0;
}

/// Reports of a passed attempt are not wanted, and none was asked for before all are back.
fn hears_reports_of(epoch: *const Epoch, attempt: u32) bool {
    return attempt == epoch.attempt and !epoch.running and !epoch.recovering;
}

pub fn on_report_op(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.ReportOp,
) ProtocolError!void {
    if (!hears_reports_of(epoch, message.attempt)) return;
    if (epoch.reported.has(rank)) return error.Unexpected;
    if (message.begun_attempt == 0 or message.begun_attempt > epoch.attempt)
        return error.Unexpected;
    if (message.voted_attempt > epoch.attempt) return error.Unexpected;
    if ((message.state == .done) != (message.voted_attempt > 0)) return error.Unexpected;
    try check_settled(epoch, message);
    if (epoch.is_decided(message.op)) return;
    const known = try calls.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    if (known.chunks_from == null) {
        known.chunks = message.chunks;
        known.chunks_from = rank;
    }
    if (known.chunks != message.chunks) {
        const first = known.chunks_from.?;
        if (first == rank) return error.Unexpected;
        // One of the two is wrong, and nobody can tell which.
        return decisions.abort(run, epoch, message.op, .{
            .reason = .contradiction,
            .peer = epoch.members[first].id,
            .other = epoch.members[rank].id,
        }, decisions.spendthrift(epoch, rank));
    }
    if (known.reported.has(rank)) return error.Unexpected; // nobody reports one thing twice
    epoch.members[rank].report.parts +%= 1;
    known.reported.set(rank);
    known.stall.called.set(rank);
    known.begun_attempt = @min(known.begun_attempt, message.begun_attempt);
    if (message.state == .done) {
        known.done_reported.set(rank);
        const vote: Record.Vote = .{
            .attempt = message.voted_attempt,
            .digest = message.digest,
        };
        if (known.vote) |first| {
            if (!std.meta.eql(first, vote)) known.votes_differ = true;
        } else known.vote = vote;
    }
    const before = known.holdings.bytes();
    try known.holdings.add(epoch.gpa, epoch.budget, &.{
        .rank = rank,
        .done = message.state == .done,
        .voted = &known.done_reported,
        .settled = message.settled,
    });
    epoch.members[rank].held_bytes += known.holdings.bytes() -| before;
}

/// Whether a report makes sense by itself.
fn check_settled(epoch: *const Epoch, message: *const control.ReportOp) ProtocolError!void {
    var it = message.settled.iterator();
    var after: u32 = 0; // in order, so that a report costs no more than its chunks
    while (it.next()) |range| : (after = range.end) {
        if (range.begin < after) return error.Unexpected;
        if (range.begin >= range.end or range.end > message.chunks) return error.Unexpected;
        if (range.reduced_attempt == 0 or range.reduced_attempt > epoch.attempt)
            return error.Unexpected;
    }
}

pub fn on_report_end(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.ReportEnd,
) ProtocolError!void {
    epoch.members[rank].report.ended(message.attempt, epoch.attempt);
    if (!hears_reports_of(epoch, message.attempt)) return;
    try decisions.acknowledge(epoch, rank, message.decisions_seen);
    epoch.reported.set(rank);
    try check_reported(run, epoch);
}

/// The member has left this epoch for the next and has nothing in flight here: nobody waits for
/// it.
pub fn on_closed(run: *Run, epoch: *Epoch, rank: u16) ProtocolError!void {
    epoch.closed.set(rank);
    epoch.least_seen_by = 0;
    try check_reported(run, epoch);
}

fn check_reported(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (epoch.running or epoch.recovering) return;
    if (epoch.reported.covers(&epoch.inside())) try go_on(run, epoch);
}

/// All have reported: say what is kept, and let everybody move again.
fn go_on(run: *Run, epoch: *Epoch) ProtocolError!void {
    try claims.settle_claims(run, epoch);
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (known.reported.is_empty()) {
            // Those who had called it do not say so again, and another may have voted.
            if (misfit.contradiction(epoch, known)) |verdict|
                try decisions.abort_now(run, epoch, known.id, verdict, null)
            else
                epoch.record_free(index);
        } else if (epoch.forgetful and is_unanimous(epoch, known)) {
            // Somebody who is lost may have been told so by the coordinator before this one.
            const vote = known.vote.?;
            try decisions.commit(run, epoch, known.id, .{
                .attempt = vote.attempt,
                .digest = vote.digest,
            });
        } else if (verdict_on(epoch, known)) |verdict| {
            try decisions.abort_now(run, epoch, known.id, verdict, null);
        } else try send_kept(run, epoch, known);
    }
    forget_reports(epoch);
    epoch.running = true;
    epoch.forgetful = false;
    post.broadcast(run, epoch, .{ .resume_all = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
    } });
}

/// Why an operation cannot go on; null if it can.
fn verdict_on(epoch: *const Epoch, known: *const Record) ?Verdict {
    if (epoch.is_starved(known.id)) return .{ .reason = .too_few_peers };
    if (Pair.of(known.id.tag)) |pair| return epoch.party_lost(pair);
    if (known.descriptor.recovery == .raise) if (lost_since(epoch, known.begun_attempt)) |lost|
        return .{ .reason = .peer_lost, .peer = lost };
    if (known.descriptor.recovery == .complete) if (epoch.any_lost()) |lost|
        return .{ .reason = .peer_lost, .peer = lost };
    if (known.descriptor.kind.has_root() and !root_alive(epoch, known)) {
        const verdict = known.root_lost();
        if (known.descriptor.kind.is_private()) return verdict;
        if (!known.holdings.has_all(known.chunks)) return verdict;
    }
    return null;
}

/// Every member that has a vote has voted, in one attempt, for one result.
fn is_unanimous(epoch: *const Epoch, known: *const Record) bool {
    if (known.votes_differ) return false;
    const vote = known.vote orelse return false;
    const needed = epoch.voters(known.id);
    for (0..epoch.members.len) |rank| {
        if (!needed.has(rank)) continue;
        if (!known.done_reported.has(rank)) return false;
    }
    return epoch.history.members(vote.attempt).count() >= epoch.min_world_size;
}

/// A member of that attempt that is not alive any more.
fn lost_since(epoch: *const Epoch, attempt: u32) ?PeerId {
    const then = epoch.history.members(attempt);
    for (epoch.members, 0..) |*member, rank| {
        if (then.has(rank) and !epoch.alive.has(rank)) return member.id;
    }
    return null;
}

fn root_alive(epoch: *const Epoch, known: *const Record) bool {
    for (epoch.members) |*member| {
        if (member.peer != null and member.id.eql(known.descriptor.root)) return true;
    }
    return false;
}

fn is_kept(epoch: *const Epoch, known: *const Record, range: *const control.KeptRange) bool {
    const kind = known.descriptor.kind;
    if (!kind.reduces()) return true;
    return switch (known.descriptor.recovery) {
        .resume_chunks => true,
        // One contributor set for all: a voted result as it is, else what the present members
        // reduced. One that has voted for a private result cannot give it to others.
        .restart, .raise, .complete => (!kind.is_private() and
            !known.done_reported.is_empty()) or
            epoch.history.members(range.reduced_attempt).eql(&epoch.alive),
    };
}

fn send_kept(run: *Run, epoch: *Epoch, known: *const Record) ProtocolError!void {
    var kept: std.ArrayList(control.KeptRange) = .empty;
    defer kept.deinit(epoch.gpa);
    for (known.holdings.ranges) |*range| {
        if (is_kept(epoch, known, range)) try kept.append(epoch.gpa, range.*);
    }
    const needed = epoch.voters(known.id);
    var message: control.ResumeOp = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
        .op = known.id,
        .kept = .of(kept.items),
    };
    var circular: Circular = .{ .load = .bulk, .message = &.{ .resume_op = message } };
    message.kept = .of(&.{});
    var from_nothing: Circular = .{ .load = .bulk, .message = &.{ .resume_op = message } };
    for (epoch.members, 0..) |*member, rank| {
        if (!needed.has(rank)) continue;
        const fits = !misfit.is_one(known, @intCast(rank));
        (if (fits) &circular else &from_nothing).send(run, epoch.group, member.peer.?);
    }
}
