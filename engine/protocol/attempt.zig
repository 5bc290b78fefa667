//! attempt: how the operations of an epoch go on after a loss, a broken link, or a restart of the
//! coordinator. All members stop and report what they hold of the operations in flight. When all
//! have reported, they hear what is kept, and go on along the paths of the new attempt; what cannot
//! go on is aborted. Which chunks are kept: record.zig (Holdings). The paths: path.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const journal = @import("journal.zig");
const operation = @import("operation.zig");
const paths_of = @import("path.zig").paths_of;
const start_bits = @import("epoch.zig").start_bits;
const uses_broken = @import("path.zig").uses_broken;
const Circular = @import("run.zig").Circular;
const Claim = @import("record.zig").Claim;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Outcome = @import("record.zig").Outcome;
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

/// All members of an epoch stop, report, and go on around the links that are broken, with what the
/// reports say.
pub fn begin(run: *Run, group: *const Group, epoch: *Epoch) ProtocolError!void {
    if (epoch.alive.is_empty() or epoch.recovering) return;
    if (epoch.attempt + 1 >= base.limits.attempts_max) return end_attempts(epoch);
    const paths = paths_for(group, epoch);
    epoch.attempt += 1;
    epoch.paths = paths;
    epoch.running = false;
    epoch.replan_at = base.never;
    epoch.reported = .empty;
    begin_records(epoch);
    forget_reports(epoch);
    run.broadcast(epoch, .{ .view = .{
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
        if (!operation.is_called(epoch, known)) {
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
    const known = try operation.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    if (known.chunks_from == null) {
        known.chunks = message.chunks;
        known.chunks_from = rank;
    }
    if (known.chunks != message.chunks) {
        const first = known.chunks_from.?;
        if (first == rank) return error.Unexpected;
        // One of the two is wrong, and nobody can tell which.
        return operation.abort(run, epoch, message.op, .{
            .reason = .contradiction,
            .peer = epoch.members[first].id,
            .other = epoch.members[rank].id,
        }, operation.spendthrift(epoch, rank));
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
    try operation.acknowledge(epoch, rank, message.decisions_seen);
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
    try settle_claims(run, epoch);
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (known.reported.is_empty()) {
            // Members that had called the operation do not say so again, and another may have
            // voted.
            if (operation.contradiction(epoch, known)) |verdict|
                try operation.abort_now(run, epoch, known.id, verdict, null)
            else
                epoch.record_free(index);
        } else if (epoch.forgetful and is_unanimous(epoch, known)) {
            // Somebody who is lost may have been told so by the coordinator before this one.
            const vote = known.vote.?;
            try operation.commit(run, epoch, known.id, .{
                .attempt = vote.attempt,
                .digest = vote.digest,
            });
        } else if (verdict_on(epoch, known)) |verdict| {
            try operation.abort_now(run, epoch, known.id, verdict, null);
        } else try send_kept(run, epoch, known);
    }
    forget_reports(epoch);
    epoch.running = true;
    epoch.forgetful = false;
    run.broadcast(epoch, .{ .resume_all = .{
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
        const fits = !operation.is_one(known, @intCast(rank));
        (if (fits) &circular else &from_nothing).send(run, epoch.group, member.peer.?);
    }
}

// ---- attempts after a restart
//
// With which attempt an epoch goes on after a restart. The coordinator before may have begun more
// attempts than are set aside for a start (coordinator.zig), and the members tell of them. A member
// that lies must not use up the attempts that an epoch has.

/// A member tells of an attempt before all are back.
pub fn hear_attempt(epoch: *Epoch, rank: u16, attempt: u32) void {
    epoch.members[rank].attempt_told = attempt;
    const believed = @min(attempt, epoch.first_attempt +| limits.attempts_ahead_max);
    epoch.attempt = @max(epoch.attempt, believed);
}

/// All are back or lost. A member that is far ahead of the attempts of this start, and of what over
/// half have reached, is let go: they would have reached more.
pub fn settle_attempts(epoch: *Epoch) void {
    var told: [limits.peers_max]u32 = undefined;
    var count: usize = 0;
    for (epoch.members) |*member| if (member.peer != null and member.named) {
        told[count] = member.attempt_told;
        count += 1;
    };
    if (count == 0) return;
    std.mem.sort(u32, told[0..count], {}, std.sort.desc(u32));
    const vouched = told[count / 2];
    const most = @max(epoch.first_attempt, vouched) +| limits.attempts_ahead_max;
    for (epoch.members) |*member| {
        const peer = member.peer orelse continue;
        if (!member.named) continue;
        if (member.attempt_told > most) {
            peer.doom("it tells of attempts that there cannot have been");
            continue;
        }
        epoch.attempt = @max(epoch.attempt, member.attempt_told);
    }
}

/// The last one has begun: a member could not tell of another. Its members may begin an epoch
/// anew. Only if over half of them lie does it come to that.
pub fn end_attempts(epoch: *Epoch) void {
    for (epoch.members) |*member| {
        if (member.peer) |peer| peer.doom("its epoch has had all attempts that there may be");
    }
}

const Court = court_file.Court;
const Shelf = court_file.Shelf;
const peers_max = court_file.peers_max;

/// The members come back to a coordinator that has started again, the last one first.
fn come_back(court: *Court, told: [peers_max]u32) !void {
    for (0..peers_max) |behind| {
        const index = peers_max - 1 - behind;
        try court.come_back(index, told[index]);
        try court.say(index, .{ .join_end = .{} });
    }
    try court.listen();
}

fn is_last_there(court: *const Court) bool {
    return court.peers[peers_max - 1] != null;
}

test "one that lies about attempts after a restart costs the others nothing when they come back" {
    const ahead = limits.attempts_ahead_max;
    for ([_]u32{ limits.attempts_max, limits.attempts_max - 1, 3 * ahead, ahead, 5 }) |lie| {
        var shelf: Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart(&shelf, &court);
        defer court.c.destroy();
        try come_back(&court, .{ 1, 1, lie });
        // A lie that may be true is believed.
        try testing.expectEqual(lie <= ahead, is_last_there(&court));
        try testing.expect(court.attempt <= 2 * ahead);
        for (0..peers_max) |index| try court.report_end(index);
        try testing.expect(court.group().current().?.running);
        court.hang_up(0);
        try court.come_back(0, court.attempt);
        try court.say(0, .{ .join_end = .{} });
        try court.listen();
        for (0..peers_max) |index| try court.report_end(index);
        for (court.peers[0 .. peers_max - 1]) |place| try testing.expect(place != null);
        try testing.expect(court.group().current().?.running);
    }
}

test "attempts that over half tell of are believed, however many" {
    const many = 100 * limits.attempts_ahead_max;
    var shelf: Shelf = .{};
    defer shelf.deinit();
    var court: Court = undefined;
    try court_file.restart(&shelf, &court);
    defer court.c.destroy();
    try come_back(&court, .{ many, many - 2, many - 1 });
    try testing.expectEqual(many + 1, court.attempt);
    try testing.expectEqual(0b111, court.members_alive());
    try court_file.report_nothing(&court);
}

test "an epoch that has had all attempts ends, and its members may begin another" {
    var court: Court = undefined;
    try court.init(testing.allocator);
    defer court.c.destroy();
    try court.form();
    court.attempt = limits.attempts_max - 2;
    court.group().current().?.attempt = court.attempt;
    try court.stumble();
    try testing.expectEqual(limits.attempts_max - 1, court.attempt);
    for (0..peers_max) |index| try court.report_end(index);
    try court.say_closed(0, 1);
    try court.pass(500 * court_file.ms);
    for (court.peers[0..peers_max]) |place| try testing.expectEqual(null, place);
    court.c.run.next_group = 0;
    try court.form();
    try testing.expectEqual(1, court.group().current().?.attempt);
    try testing.expectEqual(0b111, court.members_alive());
}

// ---- decisions of the coordinator before
//
// Members that come back tell of their epoch, and of the decisions of a coordinator that was
// killed. The next coordinator does not know these decisions: it takes them from the members, by
// their seals (journal.zig), and makes them again when all members are back.

pub const KnownDecision = union(enum) {
    commit: *const control.Commit,
    abort: *const control.Abort,
};

/// A member tells of this epoch at the beginning of a connection.
pub fn hear_claims(
    epoch: *Epoch,
    rank: u16,
    report: *const control.EpochReport,
) ProtocolError!void {
    const member = &epoch.members[rank];
    if (member.named or epoch.closed.has(rank)) return error.Unexpected;
    if (report.members.count != epoch.members.len) return error.Unexpected;
    var it = report.members.iterator();
    for (epoch.members) |*other| if (!it.next().?.eql(other.id)) return error.Unexpected;
    if (report.attempt >= base.limits.attempts_max) return error.Unexpected; // nobody was there
    if (epoch.recovering) {
        hear_attempt(epoch, rank, report.attempt);
        // The operations of these decisions, and their callers, are forgotten: all may have called.
        if (report.decisions_seen > 0) epoch.fitted = .full(epoch.members.len);
    } else if (report.attempt > epoch.attempt) return error.Unexpected;
    member.report.asked_anew(epoch.attempt);
    try operation.acknowledge(epoch, rank, report.decisions_seen);
    member.seen_before = report.decisions_seen;
    member.named = true;
    if (report.entered) epoch.activated.set(rank);
}

/// A member tells of a decision. Only a coordinator that has started again does not know it;
/// that it is one is shown by its seal.
pub fn on_known(epoch: *Epoch, rank: u16, message: KnownDecision) ProtocolError!void {
    if (!epoch.recovering) return;
    const genuine = switch (message) {
        .commit => |body| journal.is_seal(body.seal, journal.commit_seal(epoch.seal_key, body)),
        .abort => |body| journal.is_seal(body.seal, journal.abort_seal(epoch.seal_key, body)),
    };
    if (!genuine) return error.Unexpected;
    switch (message) {
        inline else => |body| {
            if (body.group != epoch.group) return error.Unexpected;
            // A member that says it has not seen what it tells makes others keep it for ever.
            const member = &epoch.members[rank];
            if (member.named and body.decision > member.seen_before) return error.Unexpected;
        },
    }
    switch (message) {
        .commit => |body| try claim(epoch, rank, body.op, body.decision, .{ .commit = .{
            .attempt = body.attempt,
            .digest = body.digest,
        } }),
        .abort => |body| {
            const differ = body.reason == .mismatch;
            try claim(epoch, rank, body.op, body.decision, .{ .abort = .{
                .reason = body.reason,
                .peer = body.peer,
                .other = body.other,
                .descriptor = if (differ) body.descriptor else null,
                .other_descriptor = if (differ) body.other_descriptor else null,
            } });
        },
    }
}

fn claim(
    epoch: *Epoch,
    rank: u16,
    id: OpId,
    number: u64,
    outcome: Outcome,
) ProtocolError!void {
    // Decisions of one operation never differ, and outweigh that somebody gives it up now.
    if (epoch.claims.get(id)) |known| if (known.number != null) return;
    const member = &epoch.members[rank];
    if (member.claims >= base.limits.decisions_known_max) return error.Unexpected;
    member.claims += 1;
    try epoch.claims.put(epoch.gpa, id, .{
        .number = number,
        .maker = null,
        .outcome = outcome,
    });
}

/// All have reported: what any of them knows, and somebody does not, is decided again, under a
/// number of its own. No maker has more of these than it may cause (`withdraw` counts them), so
/// nothing here is the fault of whoever reports last.
pub fn settle_claims(run: *Run, epoch: *Epoch) ProtocolError!void {
    epoch.settling = true;
    defer epoch.settling = false;
    var last_seen: LastSeen = .{};
    const inside_now = epoch.inside();
    for (epoch.members, 0..) |*member, rank| {
        if (inside_now.has(rank)) last_seen.note(member.seen_before);
    }
    for (epoch.claims.keys(), epoch.claims.values()) |id, *known| {
        const called = epoch.find(id) != null;
        switch (known.outcome) {
            .commit => |committed| if (called) try operation.commit(run, epoch, id, committed),
            .abort => |verdict| {
                if (!called and !is_worth_telling(epoch, known, &last_seen)) continue;
                try operation.abort_now(run, epoch, id, verdict, known.maker);
            },
        }
    }
    epoch.claims.clearAndFree(epoch.gpa);
    if (epoch.forgetful) epoch.retold = epoch.decisions;
}

/// Whether an abort may be news to a member that has not called the operation.
fn is_worth_telling(epoch: *const Epoch, known: *const Claim, last_seen: *const LastSeen) bool {
    const number = known.number orelse return true; // it is given up now
    if (last_seen.covers(number)) return false;
    // A liar may have hoarded those that all have seen long ago.
    return epoch.outstanding().len < base.limits.contradictions_kept_max;
}

/// The last decision that each member has seen, as far as it says what all have seen. Members see
/// the decisions of one coordinator in their order; who has seen some of a later one may have
/// missed others of an earlier one, because that may have died while it told them again.
const LastSeen = struct {
    least: u64 = std.math.maxInt(u64),
    most: u64 = 0,

    fn note(last: *LastSeen, number: u64) void {
        last.least = @min(last.least, number);
        last.most = @max(last.most, number);
    }

    fn covers(last: *const LastSeen, number: u64) bool {
        const start = number >> start_bits;
        if (last.least >> start_bits != start or last.most >> start_bits != start) return false;
        return number <= last.least;
    }
};

// ---- ways around broken links
//
// Ways around the broken links of a group (path.zig), and the member that must leave because there
// is none.

/// Paths that use no broken link; else none that has been broken for long; else all, until
/// somebody leaves.
fn paths_for(group: *const Group, epoch: *const Epoch) base.Paths {
    const world_size = epoch.members.len;
    for ([_]bool{ false, true }) |lasting| {
        const edges = group.broken.edges(&epoch.ranks, lasting);
        if (paths_of(&epoch.alive, world_size, &edges)) |paths| return paths;
    }
    return .all(&epoch.alive, world_size);
}

/// Members have come or gone.
pub fn look_soon(group: *Group, now: base.Instant) void {
    if (group.broken.claims.items.len > 0) group.look.ask(now, .none);
}

/// An epoch whose paths use a broken link gets a new attempt now, if there are others. True:
/// there is one that would have gone on as it is. Only for a look that is due: others come
/// later, because one member says too often that links are broken.
pub fn go_around(group: *Group, now: base.Instant) bool {
    var any = false;
    if (group.broken.claims.items.len == 0) return any;
    for (group.epochs.items) |epoch| {
        if (epoch.alive.is_empty() or epoch.recovering) continue;
        if (epoch.replan_at <= now) continue;
        const edges = group.broken.edges(&epoch.ranks, false);
        if (!uses_broken(&epoch.paths, &epoch.alive, &edges)) continue;
        if (paths_for(group, epoch).eql(&epoch.paths)) continue;
        epoch.replan_at = now;
        any = true;
    }
    return any;
}

/// The peer that must leave because no ring goes around the links that have been broken for
/// long, and nobody reaches all others.
pub fn stranded(group: *const Group) ?*Peer {
    if (group.broken.claims.items.len == 0) return null;
    for (group.epochs.items) |epoch| {
        if (epoch.recovering) continue;
        const edges = group.broken.edges(&epoch.ranks, true);
        if (paths_of(&epoch.alive, epoch.members.len, &edges) != null) continue;
        const rank = edges.worst(&epoch.alive, &epoch.alive) orelse continue;
        return epoch.members[rank].peer;
    }
    return null;
}

/// How many other members could notice that their lanes to this one close: those who are there
/// and whose links to it are well, or who say that they have noticed: what one says of its own
/// link must not make its word weigh more. After a restart nobody is there at first, so all
/// count.
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
