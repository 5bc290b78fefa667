//! attempt: how the operations of an epoch go on after a loss, a broken link, or a restart of the
//! coordinator. All members stop and report which chunks of the operations in flight they hold.
//! When all members have reported, they are told which chunks are kept, and go on along the paths
//! of the new attempt; an operation that cannot go on is aborted. Which chunks are kept: record.zig
//! (Holdings). The paths: plan/planner.zig.

const std = @import("std");
const base = @import("base");
const planner = @import("plan").planner;
const wire = @import("wire");
const court_file = @import("court_test.zig");
const log = @import("log.zig");
const operation = @import("operation.zig");
const measurement = @import("measurement.zig");
const Circular = @import("run.zig").Circular;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const OpId = control.OpId;
const Pair = base.Pair;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;
const testing = std.testing;

/// Begins an attempt: all members of the epoch stop and report. After their reports the members go
/// on with the chunks that are kept, along paths around broken links.
pub fn begin(run: *Run, group: *const Group, epoch: *Epoch) ProtocolError!void {
    if (epoch.alive.is_empty() or epoch.recovering) return;
    if (epoch.attempt + 1 >= base.limits.attempts_max) return end_attempts(epoch);
    const paths = paths_for(run, group, epoch);
    if (!paths.eql(&epoch.paths))
        run.log(.info, "group {s}: data of epoch {d} goes by {f}", .{
            group.name, epoch.number, paths,
        });
    epoch.attempt += 1;
    epoch.paths = paths;
    epoch.running = false;
    epoch.replan_at = base.never;
    epoch.planned.since = base.never; // these are the best paths that are known
    epoch.planned.seen = epoch.measured.changes;
    epoch.reported = .empty;
    begin_records(epoch);
    forget_reports(epoch);
    log.add(run, epoch.attempt_record());
    var shares: [limits.full_mesh_max]u16 = undefined;
    for (&shares, paths.shares.of) |*told, share| told.* = share;
    run.broadcast(epoch, .{ .view = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
        .alive = epoch.alive,
        .order = .of(if (paths.order.is_rank_order()) &.{} else paths.order.slice()),
        .has_ring = paths.has_ring,
        .hubs = paths.hubs,
        .shares = .of(if (paths.shares.is_even()) &.{} else &shares),
        .plan = paths.plan,
        .small_bytes = paths.small_bytes,
    } });
    try check_reported(run, epoch);
}

fn begin_records(epoch: *Epoch) void {
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (!operation.is_called(epoch, known)) {
            epoch.record_free(index);
            continue;
        }
        known.done = .empty;
        known.reported = .empty;
        known.done_reported = .empty;
        known.stall.begin_attempt();
        if (known.election) |election| election.reset();
    }
}

/// Frees the reports of an attempt that is over, or whose members have been told which chunks are
/// kept.
fn forget_reports(epoch: *Epoch) void {
    for (epoch.records.items) |known| known.holdings.clear(epoch.gpa, epoch.budget);
    for (epoch.members) |*member| member.held_bytes = 0;
}

/// Whether reports of this attempt are taken. After a restart no report is taken before all members
/// are back.
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
    const known = try operation.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    if (known.chunks_from == null) {
        known.chunks = message.chunks;
        known.chunks_from = rank;
    }
    if (known.chunks != message.chunks) {
        const first = known.chunks_from.?;
        if (first == rank) return error.Unexpected;
        // One of the two reports is wrong, and the coordinator cannot tell which.
        return operation.abort(run, epoch, message.op, .{
            .reason = .contradiction,
            .peer = epoch.members[first].id,
            .other = epoch.members[rank].id,
        }, operation.spendthrift(epoch, rank));
    }
    if (known.reported.has(rank)) return error.Unexpected; // a member reports an operation once
    epoch.members[rank].report.parts +%= 1;
    known.reported.set(rank);
    known.stall.called.set(rank);
    known.begun_attempt = @min(known.begun_attempt, message.begun_attempt);
    if (message.state == .done) known.done_reported.set(rank);
    const before = known.holdings.bytes();
    try known.holdings.add(epoch.gpa, epoch.budget, &.{
        .rank = rank,
        .done = message.state == .done,
        .voted = &known.done_reported,
        .settled = message.settled,
    });
    epoch.members[rank].held_bytes += known.holdings.bytes() -| before;
}

/// Refuses a report whose ranges of chunks overlap, are out of order or do not exist, or whose
/// attempts have not begun.
fn check_settled(epoch: *const Epoch, message: *const control.ReportOp) ProtocolError!void {
    var it = message.settled.iterator();
    var after: u32 = 0; // ascending ranges: a report costs no more than its chunks
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
    try operation.acknowledge(epoch, rank, message.decisions_seen);
    epoch.reported.set(rank);
    try check_reported(run, epoch);
}

/// A member has left this epoch for the next and has nothing in flight here. The member owes no
/// report of this epoch.
pub fn on_closed(run: *Run, epoch: *Epoch, rank: u16) ProtocolError!void {
    epoch.closed.set(rank);
    epoch.least_seen_by = 0;
    try check_reported(run, epoch);
}

fn check_reported(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (epoch.running or epoch.recovering) return;
    if (epoch.reported.covers(&epoch.inside())) try go_on(run, epoch);
}

/// All members have reported: tells them which chunks are kept, and lets data move again.
fn go_on(run: *Run, epoch: *Epoch) ProtocolError!void {
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (known.reported.is_empty()) {
            // No member has reported this operation. If its calls are known to differ, some member
            // may have voted for another call, so the operation is aborted.
            if (operation.contradiction(epoch, known)) |verdict|
                try operation.abort(run, epoch, known.id, verdict, null)
            else
                epoch.record_free(index);
        } else if (verdict_on(epoch, known)) |verdict| {
            try operation.abort(run, epoch, known.id, verdict, null);
        } else try send_kept(run, epoch, known);
    }
    forget_reports(epoch);
    epoch.running = true;
    run.broadcast(epoch, .{ .resume_all = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
    } });
}

/// The verdict on an operation that cannot go on; null: the operation goes on.
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

/// A member that was alive in `attempt` and is lost now; null: there is none.
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
        // All chunks must have the same contributors: a voted result is kept as it is, otherwise
        // the chunks that exactly the present members reduced. A member that has voted for a
        // private result cannot give that result to others.
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
        const fits = !operation.is_one(known, @intCast(rank));
        (if (fits) &circular else &from_nothing).send(run, epoch.group, member.peer.?);
    }
}

// ---- members that come back
//
// At the beginning of each connection a member tells the attempt that it knows and the last
// decision that it has seen. A coordinator that has started again has both in its log (log.zig).
// The coordinator waits until all members are back or lost, and begins the next attempt. If its
// machine has lost power, the end of the log may be missing, and members know more than the log.

/// Takes the report of a member that names this epoch on a new connection.
pub fn hear_return(
    epoch: *Epoch,
    rank: u16,
    report: *const control.EpochReport,
) ProtocolError!void {
    const member = &epoch.members[rank];
    if (member.named or epoch.closed.has(rank)) return error.Unexpected;
    if (report.members.count != epoch.members.len) return error.Unexpected;
    var it = report.members.iterator();
    for (epoch.members) |*other| if (!it.next().?.eql(other.id)) return error.Unexpected;
    if (report.attempt > epoch.attempt) return error.Unexpected;
    if (epoch.recovering) {
        if (report.decisions_seen > epoch.decisions +| limits.decisions_unlogged_max)
            return error.Unexpected;
        // After a restart the callers of decided operations are not known, so all members count as
        // callers.
        if (report.decisions_seen > 0) epoch.fitted = .full(epoch.members.len);
    }
    try operation.acknowledge(epoch, rank, report.decisions_seen);
    member.report.asked_anew(epoch.attempt);
    member.named = true;
    if (report.entered) epoch.activated.set(rank);
}

/// Called when all members are back or lost after a restart. Members that have seen decisions which
/// the log lacks know more than the coordinator, and perhaps more than other members. The largest
/// number of members with the same last decision stays: a member that has seen less is told the
/// decisions in the log, and counts as having seen them. The other members are removed. False: some
/// members must go first.
pub fn settle_seen(group: *const Group, epoch: *Epoch) bool {
    var buffer: [limits.peers_max]?u64 = undefined;
    const all = buffer[0..epoch.members.len];
    for (all, 0..) |*known, rank| known.* = known_by(group, epoch, rank);
    var most: usize = 0;
    var kept = epoch.decisions;
    for (all) |maybe| {
        const known = maybe orelse continue;
        const count = std.mem.countScalar(?u64, all, known);
        if (count < most or (count == most and known >= kept)) continue;
        most = count;
        kept = known;
    }
    var is_settled = true;
    for (epoch.members, all) |*member, maybe| {
        const known = maybe orelse continue;
        if (known == kept) continue;
        member.peer.?.doom(knows_more);
        is_settled = false;
    }
    if (is_settled) epoch.decisions = kept;
    return is_settled;
}

/// The last decision that a member has seen, or that the log has, if that is later. Null: the
/// member is lost, or has left the epoch for a later one.
fn known_by(group: *const Group, epoch: *const Epoch, rank: usize) ?u64 {
    const member = &epoch.members[rank];
    const peer = member.peer orelse return null;
    if (!member.named) for (group.epochs.items) |later| {
        if (later.number <= epoch.number) continue;
        const place = later.rank_of(peer) orelse continue;
        if (later.members[place].named) return null;
    };
    return @max(epoch.decisions, member.decisions_seen);
}

/// The reason told to a member that is removed because it knows epochs, removals or decisions that
/// the coordinator has lost.
pub const knows_more = "it knows other things than the coordinator, which has started again " ++
    "without its journal, or with one that had failed, or after its machine lost power";

/// Removes all members of an epoch that has used up its attempt numbers. The members may join again
/// and begin another epoch.
pub fn end_attempts(epoch: *Epoch) void {
    for (epoch.members) |*member| {
        if (member.peer) |peer| peer.doom("its epoch has had all attempts that there may be");
    }
}

// ---- paths
//
// The paths of an attempt (plan/planner.zig), around the broken links of a group (path.zig) and by
// the measured rates (measurement.zig), and the member that must leave because there is no way
// around broken links. Better paths come with an attempt of the same members, so what is settled
// stays, and what is on its way is sent again. So they wait for a moment in which no member has a
// call, at most a pause, unless they take half of the time. A liar that reports other rates again
// and again causes one attempt in each pause (`plan_pause_ns`; the first three pauses of an epoch
// are shorter, because the first plans know little).

/// The least time between two searches for better paths. A search among 32 members takes tens of
/// milliseconds.
const look_pause_ns = std.time.ns_per_s;

/// At a tick: makes an attempt due if rates have changed, and other paths are better by them.
/// Members that wait for the best paths get them without a wait for a quiet moment.
pub fn review_plan(run: *Run, group: *const Group, epoch: *Epoch, now: base.Instant) void {
    const planned = &epoch.planned;
    const pause_ns = run.options.plan_pause_ns;
    planned.asked = planned.asked.intersect(&epoch.alive);
    const is_waited_for = !planned.asked.is_empty();
    if (is_waited_for) run.due_at = @min(run.due_at, now +| asked_look_ns);
    if (!epoch.running or epoch.recovering) return;
    if (pause_ns == base.never) return answer(run, epoch);
    const is_asked = is_waited_for and !measurement.is_probing(run, epoch, now);
    // A liar that has every plan replaced holds nobody up.
    if (is_asked and planned.changes > planned.changes_before) answer(run, epoch);
    const is_due = now >= planned.not_before and now >= planned.look_at;
    if (is_due and planned.seen != epoch.measured.changes) look(run, group, epoch, now);
    if (planned.since == base.never) {
        if (is_asked and planned.seen == epoch.measured.changes) answer(run, epoch);
        return;
    }
    const has_waited = now - planned.since >= pause_ns;
    const is_urgent = is_asked or planned.is_urgent or has_waited;
    if (!is_urgent and !measurement.is_idle(epoch)) return;
    planned.since = base.never;
    planned.changes +|= 1;
    planned.not_before = now +| pause_ns / 4 *| @min(planned.changes, 4);
    epoch.replan_at = @min(epoch.replan_at, now);
}

/// Looks for better paths by the rates of now.
fn look(run: *const Run, group: *const Group, epoch: *Epoch, now: base.Instant) void {
    const planned = &epoch.planned;
    planned.look_at = now +| look_pause_ns;
    planned.seen = epoch.measured.changes;
    var better = paths_for(run, group, epoch);
    better.hubs = epoch.paths.hubs; // a link that is well again is no reason
    const is_better = !better.eql(&epoch.paths);
    planned.since = if (is_better) @min(planned.since, now) else base.never;
    const matrix = measurement.matrix_of(epoch) orelse return;
    planned.is_urgent = is_better and planner.halves(run.gpa, &matrix, &epoch.paths, &better);
}

// ---- paths that members ask for
//
// A member may wait for the best paths (`optimize`): links whose rates are not known are probed
// (measurement.zig: is_probing), and the member is answered when no better paths are known, or when
// better paths have begun since it asked.

/// The time between two reviews while a member waits.
const asked_look_ns = 100 * std.time.ns_per_ms;

pub fn on_optimize(run: *Run, group: *const Group, peer: *const Peer, now: base.Instant) void {
    const epoch = group.current() orelse return;
    const rank = epoch.rank_of(peer) orelse return;
    const planned = &epoch.planned;
    if (planned.asked.is_empty()) planned.asked_at = now;
    if (!planned.asked.has(rank)) planned.changes_before = planned.changes;
    planned.asked.set(rank);
    run.due_at = @min(run.due_at, now);
}

/// Members that wait for the best paths of an epoch wait for those of the next epoch from now on.
pub fn pass_askers(before: *Epoch, next: *Epoch) void {
    for (next.members, 0..) |*member, rank| {
        const earlier = before.rank_of(member.peer.?) orelse continue;
        if (before.planned.asked.has(earlier)) next.planned.asked.set(rank);
    }
    next.planned.asked_at = before.planned.asked_at;
    before.planned.asked = .empty;
}

fn answer(run: *Run, epoch: *Epoch) void {
    for (epoch.members, 0..) |*member, rank| {
        const peer = member.peer orelse continue;
        if (!epoch.planned.asked.has(rank)) continue;
        run.send(peer, epoch.group, .{ .optimized = .{ .group = epoch.group } });
    }
    epoch.planned.asked = .empty;
}

/// Paths without broken links; if there are none, paths without links that have been broken for
/// long; if there are none, all paths, until a member leaves.
/// Not inlined, because its stack frame is large.
noinline fn paths_for(run: *const Run, group: *const Group, epoch: *Epoch) base.Paths {
    const is_planned = run.options.plan_pause_ns != base.never;
    const matrix = if (is_planned) measurement.matrix_of(epoch) else null;
    for ([_]bool{ false, true }) |lasting| {
        if (planner.paths_of(run.gpa, &.{
            .alive = &epoch.alive,
            .world_size = epoch.members.len,
            .broken = &group.broken.edges(&epoch.ranks, lasting),
            .matrix = if (matrix) |*known| known else null,
            .now = &epoch.paths,
            .tried = &epoch.planned.tried,
        })) |paths| return paths;
    }
    return .all(&epoch.alive, epoch.members.len);
}

/// Has other paths looked for soon, because members have come or gone.
pub fn look_soon(group: *Group, now: base.Instant) void {
    if (group.broken.claims.items.len > 0) group.look.ask(now, .none);
}

/// Makes an attempt due for each epoch whose paths use a broken link, if there are other paths.
/// True: at least one attempt became due. Called only for a look that is due, because members may
/// report broken links too often.
pub fn go_around(run: *const Run, group: *Group, now: base.Instant) bool {
    var any = false;
    if (group.broken.claims.items.len == 0) return any;
    for (group.epochs.items) |epoch| {
        if (epoch.alive.is_empty() or epoch.recovering) continue;
        if (epoch.replan_at <= now) continue;
        const edges = group.broken.edges(&epoch.ranks, false);
        if (!planner.uses_broken(&epoch.paths, &epoch.alive, &edges)) continue;
        if (paths_for(run, group, epoch).eql(&epoch.paths)) continue;
        epoch.replan_at = now;
        any = true;
    }
    return any;
}

/// The peer that must leave, because no ring goes around the links that have been broken for long
/// and no member reaches all others; null: no peer must leave.
pub fn stranded(group: *const Group) ?*Peer {
    if (group.broken.claims.items.len == 0) return null;
    for (group.epochs.items) |epoch| {
        if (epoch.recovering) continue;
        const edges = group.broken.edges(&epoch.ranks, true);
        const world_size = epoch.members.len;
        if (planner.has_paths(&epoch.alive, world_size, &edges)) continue;
        const rank = edges.worst(&epoch.alive, &epoch.alive) orelse continue;
        return epoch.members[rank].peer;
    }
    return null;
}

/// The number of other members that could notice that their lanes to this peer close: members that
/// are connected and have a working link to it, and members that have reported closed lanes. A
/// member that calls its own link broken must not thereby give its report more weight. After a
/// restart all members count, because none is connected at first.
pub fn neighbours_of(group: *const Group, peer: *const Peer) usize {
    var most: usize = 0;
    for (group.epochs.items) |epoch| {
        if (epoch.rank_of(peer) == null) continue;
        const broken = group.broken.edges_of(&epoch.ranks, peer.id);
        var count: usize = 0;
        for (epoch.members, 0..) |*member, other| {
            const neighbour = member.peer orelse continue;
            const could_notice = !broken.has(other) or peer.has_word_of(neighbour.id);
            if (neighbour == peer or !could_notice) continue;
            count += @intFromBool(neighbour.connection != null or group.recovering);
        }
        most = @max(most, count);
    }
    return most;
}
