//! operation: how the coordinator decides the operations of an epoch. The first message about an
//! operation makes its record. All members must make the same call; a newcomer whose call differs
//! is refused alone. When all voters have voted for one result, the operation is committed. It is
//! aborted when a member gives it up, or when members contradict each other. Each decision is sent
//! to all members, and kept until all have acknowledged it. After a loss: attempt.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const late_ns_min = @import("record.zig").late_ns_min;
const log = @import("log.zig");
const Circular = @import("run.zig").Circular;
const Decision = @import("record.zig").Decision;
const Election = @import("election.zig").Election;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Misfits = @import("record.zig").Misfits;
const Outcome = @import("record.zig").Outcome;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const Allocator = std.mem.Allocator;
const Descriptor = control.Descriptor;
const Instant = base.Instant;
const Mask = base.Mask;
const OpId = control.OpId;
const Pair = base.Pair;
const PeerId = base.PeerId;
const Turns = base.Turns;
const control = wire.control;
const limits = base.limits;
const testing = std.testing;

/// The record of an operation, made if there is none. Null: this call differs from the recorded
/// one, and the operation is aborted, or the newcomer that made this call is to be refused.
pub fn record_of(
    run: *Run,
    epoch: *Epoch,
    id: OpId,
    descriptor: *const Descriptor,
    rank: u16,
) ProtocolError!?*Record {
    if ((descriptor.kind == .send_recv) != (Pair.of(id.tag) != null)) return error.Unexpected;
    try epoch.check_party(id, rank);
    if (epoch.find(id)) |index| {
        const known = epoch.records.items[index];
        switch (try hear_call(run, epoch, known, descriptor, rank)) {
            .fits => return known,
            .misfit => return null,
            .contradicts => {},
        }
        if (known.from == rank) return error.Unexpected; // a member calls an operation once
        try abort(run, epoch, id, .{
            .reason = .mismatch,
            .peer = epoch.members[known.from].id,
            .other = epoch.members[rank].id,
            .descriptor = known.descriptor,
            .other_descriptor = descriptor.*,
        }, spendthrift(epoch, rank));
        return null;
    }
    var begun: usize = 0;
    const turns: Turns = .of(id.tag, rank);
    for (epoch.records.items) |known| {
        begun += @intFromBool(known.from == rank and Turns.of(known.id.tag, rank) == turns);
    }
    if (begun >= base.limits.operations_in_flight_max) return error.Unexpected;
    const new = try epoch.gpa.create(Record);
    errdefer epoch.gpa.destroy(new);
    new.* = .{ .id = id, .descriptor = descriptor.*, .from = rank };
    try epoch.records.append(epoch.gpa, new);
    return new;
}

// ---- decisions
//
// Each operation is committed or aborted once, and all members are told. A decision is kept until
// all members have acknowledged it.

pub fn commit(run: *Run, epoch: *Epoch, id: OpId, committed: Outcome.Committed) ProtocolError!void {
    // A message between two ranks does not show how many safe points other members have passed.
    const called = if (Pair.of(id.tag) != null) 0 //
        else if (epoch.find(id)) |index| epoch.records.items[index].descriptor.safe_points //
        else 0;
    try decide(run, epoch, id, .{ .commit = committed }, null);
    if (id.tag < base.limits.pending_tag) epoch.committed += 1;
    epoch.committed_at = @max(epoch.committed_at, called);
}

/// Aborts an operation that is not decided. `maker`: the rank that alone causes the abort, perhaps
/// of an operation that no member ever calls; the abort counts against that member until all have
/// seen it. error.Unexpected: the maker has caused more aborts than an honest member can.
pub fn abort(run: *Run, epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
    if (epoch.is_decided(id)) return;
    if (maker) |rank| if (epoch.members[rank].caused >= base.limits.decisions_kept_max)
        return error.Unexpected;
    try decide(run, epoch, id, .{ .abort = verdict }, maker);
}

fn decide(run: *Run, epoch: *Epoch, id: OpId, outcome: Outcome, maker: ?u16) ProtocolError!void {
    var decision: Decision = .{
        .number = Decision.unnumbered,
        .id = id,
        .maker = maker,
        .outcome = outcome,
    };
    if (!epoch.recovering) decision.number = epoch.decisions + 1;
    try epoch.keep(decision);
    if (maker) |rank| epoch.members[rank].caused += 1;
    if (!epoch.recovering) {
        epoch.decisions += 1;
        const message = decision.message(epoch.group, epoch.number);
        log.decided(run, &message);
        run.broadcast(epoch, message);
    }
    const index = epoch.find(id) orelse return;
    if (outcome == .commit) epoch.fitted.merge(&epoch.records.items[index].stall.called);
    epoch.record_free(index);
}

/// Called when all members are back after a restart: numbers and logs the decisions that were made
/// while they came back.
pub fn number_decided(run: *Run, epoch: *Epoch) void {
    for (epoch.decided.items[epoch.decided_first..]) |*decision| {
        if (decision.number != Decision.unnumbered) continue;
        epoch.decisions += 1;
        decision.number = epoch.decisions;
        log.decided(run, &decision.message(epoch.group, epoch.number));
    }
}

/// The maker of an abort because two members contradict each other: null, because either may be
/// honest. Once `contradictions_kept_max` decisions are kept the maker is `rank`, the member that
/// spoke later.
pub fn spendthrift(epoch: *const Epoch, rank: u16) ?u16 {
    return if (epoch.outstanding().len < base.limits.contradictions_kept_max) null else rank;
}

/// Notes the last decision that a member has seen, and drops the decisions that all have seen.
/// After a restart members may have seen decisions that the log lacks, so none is dropped before
/// all are back (attempt.zig: settle_seen).
pub fn acknowledge(epoch: *Epoch, rank: u16, seen: u64) ProtocolError!void {
    const member = &epoch.members[rank];
    if (epoch.recovering) {
        member.decisions_seen = @max(member.decisions_seen, seen);
        return;
    }
    if (seen > epoch.decisions) return error.Unexpected;
    if (seen > member.decisions_seen) {
        if (member.decisions_seen == epoch.least_seen and !epoch.closed.has(rank))
            epoch.least_seen_by -|= 1;
        member.decisions_seen = seen;
    }
    const all = seen_by_all(epoch);
    for (epoch.outstanding()) |*known| {
        if (known.number > all) break;
        _ = epoch.decided_ids.remove(known.id);
        if (known.maker) |maker| epoch.members[maker].caused -= 1;
        epoch.decided_first += 1;
    }
    // The list is compacted when half of it is dropped, so that each decision is moved only a few
    // times.
    if (epoch.decided_first * 2 < epoch.decided.items.len) return;
    epoch.decided.replaceRangeAssumeCapacity(0, epoch.decided_first, &.{});
    epoch.decided_first = 0;
}

/// The last decision that all members in the epoch have seen. The result is computed anew only when
/// no member is left that has seen `least_seen` and no more.
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

/// Lets a member go that does not acknowledge decisions within the silence limit. Otherwise ever
/// more decisions would be kept for it, and count against honest members that cause aborts.
pub fn check_seen(
    run: *const Run,
    epoch: *Epoch,
    now: base.Instant,
    silence_ns: u64,
    late: bool,
) void {
    if (epoch.recovering) return; // decisions are sent when all are back
    for (epoch.members, 0..) |*member, rank| {
        const peer = member.peer orelse continue;
        if (epoch.closed.has(rank)) continue;
        const pardons = late or run.holds_up(peer);
        if (!peer.is_present(epoch.group) or member.decisions_seen >= member.seen_wanted) {
            member.seen_wanted = (epoch.decisions + 1) -| base.limits.decisions_untold_max;
            member.seen_asked = .{}; // the member has answered, or is away
            member.seen_asked.ask(peer, now);
        } else if (member.seen_asked.is_overdue(peer, now, silence_ns, pardons)) {
            peer.doom("it does not say which decisions it has seen");
        }
    }
}

/// Tells a member the decisions that it has not seen.
pub fn tell_missed(run: *Run, epoch: *Epoch, rank: u16) void {
    const member = &epoch.members[rank];
    const peer = member.peer orelse return;
    for (epoch.outstanding()) |*decision| {
        if (decision.number <= member.decisions_seen) continue;
        const message = decision.message(epoch.group, epoch.number);
        var once: Circular = .{ .message = &message, .load = .bulk };
        once.send(run, epoch.group, peer);
    }
    member.seen_wanted = 0; // check_seen asks again, after these decisions
}

// ---- decisions that some member has not seen
//
// Votes cause decisions, and decisions are kept until all members have seen them. So a vote is left
// unread while some other member is far behind in acknowledging decisions; that member does so
// within the silence limit, or is let go. A member that is far behind itself may vote
// `decisions_kept_max` times more, and is let go after that.

/// How long a vote is left unread until the coordinator tries again, in ns.
pub const wait_ns = 10 * std.time.ns_per_ms;

/// Whether a vote of this member is left unread, because another member is far behind in
/// acknowledging decisions.
pub fn must_wait(epoch: *const Epoch, rank: u16) bool {
    return epoch.outstanding().len >= limits.decisions_unseen_max and !is_behind(epoch, rank);
}

/// Counts a vote, or an offer, of a member that is far behind in acknowledging decisions.
/// error.Unexpected: the member has sent too many.
pub fn count_vote(epoch: *Epoch, rank: u16) ProtocolError!void {
    const member = &epoch.members[rank];
    if (!is_behind(epoch, rank)) {
        member.votes_behind = 0;
        return;
    }
    if (member.votes_behind >= limits.decisions_kept_max) return error.Unexpected;
    member.votes_behind += 1;
}

fn is_behind(epoch: *const Epoch, rank: u16) bool {
    const unseen = epoch.decisions -| epoch.members[rank].decisions_seen;
    return @min(unseen, epoch.outstanding().len) >= limits.decisions_unseen_max;
}

const Court = court_file.Court;

/// All members vote for `count` operations with tags from `first`. Members with `tell` acknowledge
/// all earlier decisions.
fn decide_all(court: *Court, first: u64, count: u64, tell: [court_file.peers_max]bool) !void {
    for (first..first + count) |tag| {
        for (tell, 0..) |tells, index| try court.done(index, tag, if (tells) tag else 0);
        try court.listen();
    }
}

fn alive_of(court: *const Court) u64 {
    return court.group().current().?.alive.words[0];
}

test "a member that votes on and never says what it has seen is let go" {
    // Members 0 and 1 are lost, so that the vote of member 2 alone decides.
    var court: Court = undefined;
    try court.init(testing.allocator);
    defer court.c.destroy();
    try court.form();
    for (0..2) |index| court.hang_up(index);
    try court.pass(10 * std.time.ns_per_s);
    try court.listen();
    try court.report_end(2);
    try court.listen();
    const enough = limits.decisions_unseen_max + limits.decisions_kept_max;
    for (0..enough) |tag| try court.done(2, tag, 0);
    try testing.expect(court.peers[2] != null);
    try testing.expectEqual(enough, court.group().current().?.decisions);
    try court.done(2, enough, 0);
    try testing.expectEqual(null, court.peers[2]);
}

test "a vote waits for a member that is far behind, and is taken when that has said more" {
    var court: Court = undefined;
    try court.init(testing.allocator);
    defer court.c.destroy();
    try court.form();
    const most = limits.decisions_unseen_max;
    try decide_all(&court, 0, most, .{ true, true, false });
    const epoch = court.group().current().?;
    try testing.expectEqual(most, epoch.decisions);
    // Member 2, which is behind, may vote; the votes of members 0 and 1 are left unread.
    try court.done(2, most, 0);
    try court.done(0, most, most);
    try court.done(1, most, most);
    try testing.expectEqual(most, epoch.decisions);
    try testing.expect(court.peers[0].?.is_paused(court.now));
    try testing.expectEqual(court.now + wait_ns, court.peers[0].?.peer.?.unread_until);
    try testing.expect(!court.peers[2].?.is_paused(court.now));
    try court.say_seen(2, most);
    court.now += wait_ns;
    court.c.tick(court.now);
    for (0..2) |index| court.c.received(court.now, court.peers[index].?);
    try testing.expectEqual(most + 1, epoch.decisions);
    try testing.expectEqual(0b111, alive_of(&court));
}

// ---- members that are waited for
//
// Some members wait for the calls or votes of others: how those are asked for them, and how the log
// and errors name them.

/// Asks the missing members whether they have called the operation. A member that has called
/// answers at once, any other member as soon as it calls.
pub fn ask_missing(run: *Run, epoch: *Epoch, known: *Record, missing: *const Mask) void {
    const asked = missing.without(&known.stall.asked);
    if (asked.is_empty()) return;
    known.stall.asked.merge(&asked);
    send_stalled(run, epoch, known, &asked, missing, &.{});
}

pub fn send_stalled(
    run: *Run,
    epoch: *Epoch,
    known: *const Record,
    to: *const Mask,
    missing: *const Mask,
    elsewhere: []const control.Elsewhere,
) void {
    const message: control.Message = .{ .stalled = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .attempt = epoch.attempt,
        .op = known.id,
        .missing = missing.*,
        .elsewhere = .of(elsewhere),
    } };
    for (epoch.members, 0..) |*member, rank| {
        if (!to.has(rank)) continue;
        if (member.peer) |peer| run.send(peer, epoch.group, message);
    }
}

/// A member's debt in words: "has not called all_reduce (tag 0, sequence 12 of epoch 3), for which
/// 2 of 3 have waited 10 s".
pub const Waits = struct {
    epoch: *const Epoch,
    known: *const Record,
    waited_ns: u64,
    lacks: enum { call, vote } = .call,

    pub fn format(waits: Waits, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const known = waits.known;
        const voters = waits.epoch.voters(known.id);
        const needed = voters.count();
        const missing = switch (waits.lacks) {
            .call => waits.epoch.missing_of(known),
            .vote => voters.without(&known.done),
        };
        const has = if (waits.lacks == .call) "has not called " else "alone has not finished ";
        try writer.writeAll(has);
        if (Pair.of(known.id.tag)) |pair| {
            try writer.print("its part of a message from {f} to {f} (", .{
                waits.epoch.members[pair.src].ranked(pair.src),
                waits.epoch.members[pair.dst].ranked(pair.dst),
            });
        } else {
            try writer.print("{t}", .{known.descriptor.kind});
            if (known.state().len > 0) try writer.print(" of \"{s}\"", .{known.state()});
            try writer.writeAll(" (");
        }
        // The tag of a sync follows from the state's name, and means nothing to people.
        if (known.descriptor.kind != .sync)
            try writer.print("tag {d}, ", .{Pair.user_tag_of(known.id.tag)});
        try writer.print("sequence {d} of epoch {d}), for which {d} of {d} have waited {d} s", .{
            known.id.sequence,
            waits.epoch.number,
            needed - missing.count(),
            needed,
            waits.waited_ns / std.time.ns_per_s,
        });
    }
};

// ---- votes
//
// Members vote for an operation (`done`), or give it up. When all voters have voted for one result,
// the operation is committed.

pub fn on_done(
    run: *Run,
    epoch: *Epoch,
    now: base.Instant,
    rank: u16,
    message: *const control.Done,
) ProtocolError!void {
    try acknowledge(epoch, rank, message.decisions_seen);
    try count_vote(epoch, rank);
    if (message.attempt > epoch.attempt) return error.Unexpected;
    // A vote of a passed attempt is given again after the resume.
    if (message.attempt < epoch.attempt or !epoch.running) return;
    if (epoch.is_decided(message.op)) return;
    const known = try record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    known.stall.called.set(rank);
    known.stall.stuck.forget(rank); // the member has all data
    if (known.done.is_empty()) {
        known.digest = message.digest;
        known.digest_from = rank;
        known.calls = .{};
    } else if (known.digest != message.digest) {
        return abort(run, epoch, message.op, .{
            .reason = .digest,
            .peer = epoch.members[known.digest_from].id,
            .other = epoch.members[rank].id,
        }, spendthrift(epoch, rank));
    }
    if (!known.done.has(rank)) known.calls.note(rank, now, message.age_ns);
    known.done.set(rank);
    try evaluate(run, epoch, known);
}

pub fn evaluate(run: *Run, epoch: *Epoch, known: *Record) ProtocolError!void {
    const needed = epoch.voters(known.id);
    // If both ranks of a message are lost, `needed` is empty and no member waits.
    if (!epoch.running or needed.is_empty() or !known.done.covers(&needed)) return;
    if (epoch.is_starved(known.id))
        return abort(run, epoch, known.id, .{ .reason = .too_few_peers }, null);
    if (known.descriptor.kind.ends_at_root() and !has_root_voted(epoch, known))
        return abort(run, epoch, known.id, known.root_lost(), null);
    if (Pair.of(known.id.tag)) |pair| if (!known.done.has(pair.dst))
        return abort(run, epoch, known.id, epoch.party_lost(pair).?, null);
    const has_all = known.done.count() == epoch.members.len;
    if (known.descriptor.recovery == .complete and !has_all) if (epoch.any_lost()) |lost|
        return abort(run, epoch, known.id, .{ .reason = .peer_lost, .peer = lost }, null);
    judge(epoch, known);
    try commit(run, epoch, known.id, .{
        .attempt = epoch.attempt,
        .digest = known.digest,
    });
}

/// Whether the root has voted. Called for operations whose result the root alone has: without the
/// root's vote no other counts.
fn has_root_voted(epoch: *const Epoch, known: *const Record) bool {
    for (epoch.members, 0..) |*member, rank| {
        if (member.id.eql(known.descriptor.root)) return known.done.has(rank);
    }
    return false;
}

/// After a loss, commits the operations that all members that are left have voted for.
pub fn commit_voted(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (epoch.alive.is_empty()) return;
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (!known.done.is_empty()) try evaluate(run, epoch, known);
    }
}

pub fn on_gave_up(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.GaveUp,
) ProtocolError!void {
    switch (message.reason) {
        .deadline, .cancelled, .root_lost, .state_unavailable, .link_broken => {},
        .mismatch,
        .digest,
        .peer_lost,
        .too_few_peers,
        .contradiction,
        .structure,
        .state_conflict,
        .state_strategy,
        .passed,
        => return error.Unexpected,
    }
    try epoch.check_party(message.op, rank);
    try abort(run, epoch, message.op, .{
        .reason = message.reason,
        .peer = epoch.members[rank].id,
    }, rank);
}

pub fn on_mismatch(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.MismatchSeen,
) ProtocolError!void {
    try epoch.check_party(message.op, rank);
    if (try on_seen(run, epoch, rank, message)) return;
    try abort(run, epoch, message.op, .{
        .reason = .mismatch,
        .peer = epoch.members[rank].id,
        .other = message.other,
        .descriptor = message.mine,
        .other_descriptor = message.theirs,
    }, rank);
}

/// Takes a member's word that another member's call differs. False: neither of the two can be
/// refused, so the operation must be aborted.
fn on_seen(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.MismatchSeen,
) ProtocolError!bool {
    const other = epoch.ranks.get(message.other) orelse return false;
    if (!may_be(epoch, message.op)) return false;
    const from_newcomer = is_newcomer(epoch, rank);
    if (!from_newcomer and !is_newcomer(epoch, other)) return false;
    const mine = message.mine.of_all();
    const is_of_two = mine.uneven and mine.eql(&message.theirs.of_all());
    if (is_of_two and from_newcomer == is_newcomer(epoch, other)) return false;
    // Until the resume nothing is done: reports tell all calls, and members tell mismatches again
    // in the new attempt.
    if (!epoch.running or epoch.is_decided(message.op)) return true;
    const known = try record_of(run, epoch, message.op, &mine, rank) orelse return true;
    known.stall.called.set(rank);
    if (is_of_two) {
        const one: Misfits.Said = .{ .rank = rank, .descriptor = message.mine };
        const two: Misfits.Said = .{ .rank = other, .descriptor = message.theirs };
        known.misfits.apart = if (from_newcomer)
            .{ .newcomer = one, .member = two }
        else
            .{ .newcomer = two, .member = one };
    } else open_misfit(run, epoch, known);
    return true;
}

/// Notes which member called a committed collective last (record.zig: Lateness). Messages are
/// exempt because neither rank need call first, and syncs because the votes for them have no ages.
fn judge(epoch: *const Epoch, known: *const Record) void {
    const kind = known.descriptor.kind;
    if (kind == .send_recv or kind == .sync or known.calls.count < 2) return;
    for (epoch.members, 0..) |*member, rank| if (known.done.has(rank)) {
        if (member.peer) |peer| peer.late.calls += 1;
    };
    const margin_ns = known.calls.last - known.calls.second_last;
    if (margin_ns < late_ns_min) return;
    const peer = epoch.members[known.calls.rank].peer orelse return;
    peer.late.last += 1;
    peer.late.ns +|= margin_ns;
}

// ---- shared states
//
// Members offer their shared states. When all have offered, one content is elected (election.zig),
// or the sync is aborted, or some members are refused. After an election members vote for the sync
// as for any operation.

pub fn on_state_offer(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.StateOffer,
) ProtocolError!void {
    try acknowledge(epoch, rank, message.decisions_seen);
    try count_vote(epoch, rank);
    if (message.descriptor.kind != .sync or message.attempt > epoch.attempt)
        return error.Unexpected;
    const name = base.Label.read(message.name.data) orelse return error.Unexpected;
    if (message.attempt < epoch.attempt or !epoch.running) return; // the member offers anew
    if (epoch.is_decided(message.op)) return;
    const known = try record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    const election = known.election orelse try Election.create(epoch.gpa, epoch.members.len);
    known.election = election;
    if (election.name.length == 0) election.name = name;
    known.stall.called.set(rank);
    if (!election.take(rank, .{
        .digest = message.digest,
        .revision = message.revision,
        .expected = message.expected,
        .structure = message.structure,
        .root = message.root,
        .strategy = message.strategy,
        .standing = message.standing,
        .voted = message.voted,
        .is_vote = message.is_vote(),
    })) return error.Unexpected;
    try elect(run, epoch, known);
}

fn elect(run: *Run, epoch: *Epoch, known: *Record) ProtocolError!void {
    const election = known.election.?;
    if (!election.offered.covers(&epoch.alive)) return;
    var buffer: [base.limits.peers_max]PeerId = undefined;
    const ids = epoch.member_ids(&buffer);
    const verdict = election.decide(.{
        .ids = ids,
        .alive = &epoch.alive,
        .incumbents = epoch.members.len - epoch.began.joined,
        .rules = known.descriptor.rules,
    }) orelse return;
    switch (verdict) {
        .equal => |digest| {
            known.done = epoch.alive;
            known.digest = digest;
            known.digest_from = epoch.alive.at(0);
            try evaluate(run, epoch, known);
        },
        .elected => |*elected| run.broadcast(epoch, .{ .state_elected = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = known.id,
            .revision = elected.revision,
            .root = elected.root,
            .holders = elected.holders,
        } }),
        .structure => |differ| {
            const ranks = differ.ranks;
            election.refuses = differ.refuses;
            election.structures = .init(.{
                epoch.members[ranks[0]].ranked(ranks[0]),
                epoch.members[ranks[1]].ranked(ranks[1]),
            });
            try compare_structures(run, epoch, known);
        },
        .conflict => |ranks| if (!blames(epoch, known, ranks, .content))
            try abort(run, epoch, known.id, .{
                .reason = .state_conflict,
                .peer = ids[ranks[0]],
                .other = ids[ranks[1]],
            }, null),
        // Each call chooses its strategy anew, so the sync is aborted for all, and no member is
        // refused.
        .givers => |ranks| try abort(run, epoch, known.id, .{
            .reason = .state_strategy,
            .peer = ids[ranks[0]],
            .other = ids[ranks[1]],
        }, null),
        .ahead => |*ahead| {
            election.misfits = ahead.ranks;
            election.blame = .{ .revision = ahead.expected };
        },
        .unavailable => try abort(run, epoch, known.id, .{
            .reason = .state_unavailable,
        }, null),
    }
}

pub fn on_state_tensors(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.StateTensors,
) ProtocolError!void {
    if (message.attempt != epoch.attempt or !epoch.running) return;
    const index = epoch.find(message.op) orelse return; // the sync is decided
    const known = epoch.records.items[index];
    const election = known.election orelse return error.Unexpected;
    if (election.structures == null) return error.Unexpected;
    try election.structures.?.page(epoch.gpa, rank, message);
    try compare_structures(run, epoch, known);
}

/// Compares two structures that differ, as far as their tensors have arrived. At the end a newcomer
/// or a minority is refused, or all members are told the differences and the sync is aborted.
fn compare_structures(run: *Run, epoch: *Epoch, known: *Record) ProtocolError!void {
    const structures = &known.election.?.structures.?;
    switch (structures.next()) {
        .wait => {},
        // A member that is asked has offered in this attempt, so it is alive.
        .ask => |ask| run.send(epoch.members[ask.rank].peer.?, epoch.group, .{ .state_ask = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = known.id,
            .first = ask.first,
        } }),
        .over => {
            if (blames(epoch, known, structures.ranks, .structure)) return;
            run.broadcast(epoch, .{ .state_differs = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .op = known.id,
                .text = .of(structures.text()),
            } });
            try abort(run, epoch, known.id, .{
                .reason = .structure,
                .peer = epoch.members[structures.ranks[0]].id,
                .other = epoch.members[structures.ranks[1]].id,
            }, null);
        },
    }
}

// ---- newcomers that differ
//
// A newcomer is refused if its first call of a tag differs from the call of the elders, which are
// the members of the previous epoch, or if its shared state does not fit the elders'. The newcomer
// is told both calls; the others go on as after a loss. If elders differ among themselves, or there
// are none, the operation is aborted for all.
//
// The evidence is each member's own word about its call. When a member sees a call that differs
// from its own, all members are asked for theirs. A newcomer is refused when all elders have named
// one call, and the newcomer another. So a member that lies about a newcomer has it refused only if
// the liar is the only elder. No newcomer is refused for a message, which concerns two members
// alone. The size of a shard of an uneven all_to_all is known to two ranks alone: there a newcomer
// is refused when it and an elder disagree, whichever of the two says so.
//
// By the rules of a shared state elders may be refused, too, at any sync of the state
// (election.zig).
//
// A newcomer may make its first call on a tag, or of a shared state, that no other member uses. A
// newcomer that waits in such a call is refused once it has waited there, and all elders have
// waited for it in another call, for the time of the stall warning.

const Described = wire.Described(Epoch.Names);

pub fn is_newcomer(epoch: *const Epoch, rank: usize) bool {
    return rank >= epoch.members.len - epoch.began.joined;
}

/// Ranks that are alive and were members of the previous epoch.
fn elders(epoch: *const Epoch) Mask {
    const before: Mask = .full(epoch.members.len - epoch.began.joined);
    return epoch.alive.intersect(&before);
}

/// Whether a newcomer can be refused for this operation.
pub fn may_be(epoch: *const Epoch, id: control.OpId) bool {
    if (id.sequence != 0 or base.Pair.of(id.tag) != null) return false;
    return !elders(epoch).is_empty();
}

/// Takes a member's word on its call. `misfit`: the call differs, and this newcomer may be refused.
/// `contradicts`: the call differs, and no newcomer can be refused for it.
pub fn hear_call(
    run: *Run,
    epoch: *Epoch,
    known: *Record,
    descriptor: *const Descriptor,
    rank: u16,
) ProtocolError!enum { fits, misfit, contradicts } {
    const misfits = &known.misfits;
    if (misfits.of(rank)) |said| // a member calls an operation once
        return if (said.descriptor.eql(descriptor)) .misfit else error.Unexpected;
    const is_first_elder = !is_newcomer(epoch, rank) and is_newcomer(epoch, known.from);
    if (known.descriptor.eql(descriptor)) {
        if (is_first_elder) known.from = rank;
        return .fits;
    }
    if (known.from == rank or !may_be(epoch, known.id)) return .contradicts;
    if (is_first_elder) {
        try overrule(epoch, known, descriptor, rank);
    } else if (is_newcomer(epoch, rank)) {
        try misfits.said.append(epoch.gpa, .{ .rank = rank, .descriptor = descriptor.* });
        known.stall.called.set(rank);
    } else return .contradicts;
    open_misfit(run, epoch, known);
    return if (misfits.of(rank) == null) .fits else .misfit;
}

/// Gives the record the call of the first elder, after only newcomers with another call have
/// spoken. The votes and reports of the newcomers are dropped: one of them will be refused, which
/// begins a new attempt.
fn overrule(
    epoch: *Epoch,
    known: *Record,
    descriptor: *const Descriptor,
    rank: u16,
) Allocator.Error!void {
    const gpa = epoch.gpa;
    const said = &known.misfits.said;
    const called = &known.stall.called;
    try said.ensureUnusedCapacity(gpa, called.count());
    for (0..called.count()) |position| {
        const newcomer = called.at(position);
        if (known.misfits.of(newcomer) != null) continue;
        said.appendAssumeCapacity(.{ .rank = newcomer, .descriptor = known.descriptor });
    }
    var index = said.items.len;
    while (index > 0) {
        index -= 1;
        if (said.items[index].descriptor.eql(descriptor)) _ = said.orderedRemove(index);
    }
    known.holdings.clear(gpa, epoch.budget);
    if (known.election) |election| election.destroy();
    known.* = .{
        .id = known.id,
        .descriptor = descriptor.*,
        .from = rank,
        .stall = known.stall,
        .misfits = known.misfits,
    };
}

/// Marks an operation whose callers differ, and asks the members that have not told their calls.
pub fn open_misfit(run: *Run, epoch: *Epoch, known: *Record) void {
    known.misfits.is_open = true;
    if (epoch.running) ask_missing(run, epoch, known, &epoch.missing_of(known));
}

/// At each tick: asks on for the calls of operations whose callers differ, and aborts those
/// operations if no elder is left.
pub fn review_misfits(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (!epoch.running) return;
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (!known.misfits.is_open) continue;
        forget_lost(epoch, known);
        // Without elders no member's call counts more than another's.
        const verdict = if (elders(epoch).is_empty()) contradiction(epoch, known) else null;
        if (verdict) |it|
            try abort(run, epoch, known.id, it, null)
        else
            open_misfit(run, epoch, known);
    }
}

/// The verdict on an operation that names two calls which differ; null if all calls are the same.
pub fn contradiction(epoch: *const Epoch, known: *const Record) ?Verdict {
    const said = known.misfits.said.items;
    if (said.len == 0) return null;
    return .{
        .reason = .mismatch,
        .peer = epoch.members[known.from].id,
        .other = epoch.members[said[0].rank].id,
        .descriptor = known.descriptor,
        .other_descriptor = said[0].descriptor,
    };
}

fn forget_lost(epoch: *const Epoch, known: *Record) void {
    const said = &known.misfits.said;
    var index = said.items.len;
    while (index > 0) {
        index -= 1;
        if (!epoch.alive.has(said.items[index].rank)) _ = said.orderedRemove(index);
    }
}

/// Whether a member in the epoch has made the call that the record describes. If none has, the next
/// attempt drops the record: members that made another call report that call anew, and may have
/// voted for it.
pub fn is_called(epoch: *const Epoch, known: *const Record) bool {
    const inside = epoch.inside();
    var callers = inside.intersect(&known.stall.called);
    for (known.misfits.said.items) |*said| callers.unset(said.rank);
    return !callers.is_empty();
}

/// Whether a rank's call differs from the record's. In the next attempt such a rank starts from
/// nothing, because the chunks that others keep belong to another call.
pub fn is_one(known: *const Record, rank: u16) bool {
    return known.misfits.of(rank) != null;
}

// ---- shared states

/// Two members contradict each other about a shared state. Marks the second to be refused if the
/// state's rules say so or if it is a newcomer, and returns whether it did. Neither of two
/// newcomers with different structures is refused. All members with a refused structure are marked.
pub fn blames(
    epoch: *const Epoch,
    known: *Record,
    ranks: [2]u16,
    blame: Election.Blame,
) bool {
    const election = known.election.?;
    if (!election.refuses) {
        if (!may_be(epoch, known.id) or !is_newcomer(epoch, ranks[1])) return false;
        if (is_newcomer(epoch, ranks[0]) and blame == .structure) return false;
    }
    election.blame = blame;
    election.misfits.set(ranks[1]);
    if (blame != .structure) return true;
    const wrong = &election.offers[ranks[1]].?.structure;
    for (0..epoch.alive.count()) |position| {
        const rank = epoch.alive.at(position);
        const offer = &(election.offers[rank] orelse continue);
        if (std.mem.eql(u8, &offer.structure, wrong)) election.misfits.set(rank);
    }
    return true;
}

// ---- calls that nobody else makes

/// Finds a newcomer that waits in a call which no elder has made, while all elders wait for the
/// newcomer in another call.
pub fn find_stranded(run: *Run, group: *const Group, now: Instant, overdue: *Overdue) bool {
    const warning_ns = run.options.stall_warning_ns;
    for (group.epochs.items) |epoch| {
        if (!epoch.running) continue;
        const before = elders(epoch);
        for (epoch.records.items) |known| {
            const missing = epoch.missing_of(known);
            if (!may_be(epoch, known.id) or !known.stall.called.covers(&before)) continue;
            if (missing.is_empty() or !known.stall.all_have_waited(now, warning_ns))
                continue;
            overdue.count = 0;
            overdue.call = null;
            take_stranded(run, epoch, known, &missing, now, overdue);
            if (overdue.count > 0) return true;
        }
    }
    return false;
}

fn take_stranded(
    run: *Run,
    epoch: *const Epoch,
    known: *const Record,
    missing: *const Mask,
    now: Instant,
    overdue: *Overdue,
) void {
    const warning_ns = run.options.stall_warning_ns;
    for (0..missing.count()) |position| {
        const rank = missing.at(position);
        const own = lonely_call(epoch, rank, now, warning_ns) orelse continue;
        const peer = epoch.members[rank].peer orelse continue;
        if (!peer.is_present(epoch.group)) continue;
        // A peer that was not heard for two heartbeats may have called meanwhile.
        if (now -| peer.last_heard > 2 *| run.options.heartbeat_ns) continue;
        overdue.add(peer);
        overdue.say("it waits in {f}, which no member has called, and the members have waited " ++
            "{d} s for its {f}", .{
            MisfitCall{ .record = own },
            (now -| known.stall.called_at) / std.time.ns_per_s,
            MisfitCall{ .record = known },
        });
        return; // the next newcomer may wait in another call
    }
}

/// The first call of a newcomer, if no elder has made it and its callers have waited for the
/// warning time.
fn lonely_call(epoch: *const Epoch, rank: u16, now: Instant, warning_ns: u64) ?*const Record {
    if (epoch.fitted.has(rank)) return null;
    const before = elders(epoch);
    var own: ?*const Record = null;
    for (epoch.records.items) |record| {
        const called = &record.stall.called;
        if (!called.has(rank)) continue;
        if (called.meets(&before)) return null; // an elder has made this call
        if (may_be(epoch, record.id)) own = record;
    }
    const record = own orelse return null;
    return if (record.stall.all_have_waited(now, warning_ns)) record else null;
}

/// A call in words: "all_reduce (tag 5)".
const MisfitCall = struct {
    record: *const Record,

    pub fn format(call: MisfitCall, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const kind = call.record.descriptor.kind;
        // A sync is named by its state: its tag follows from the state's name.
        if (kind == .sync) return writer.print("sync of \"{s}\"", .{call.record.state()});
        try writer.print("{t} (tag {d})", .{ kind, call.record.id.tag });
    }
};

// ---- letting go

/// Finds members that must be refused, and the reason: of one operation, all that made the same
/// wrong call.
pub fn find_misfits(group: *const Group, overdue: *Overdue) bool {
    for (group.epochs.items) |epoch| {
        if (epoch.recovering) continue;
        for (epoch.records.items) |known| {
            overdue.count = 0;
            overdue.call = null;
            if (known.election) |election| if (!election.misfits.is_empty()) {
                take_state(epoch, known, overdue);
                return true;
            };
            take_apart(epoch, known, overdue);
            if (overdue.count > 0) return true;
            take_call(epoch, known, overdue);
            if (overdue.count > 0) return true;
        }
    }
    return false;
}

fn take_state(epoch: *const Epoch, known: *Record, overdue: *Overdue) void {
    const election = known.election.?;
    for (0..election.misfits.count()) |position| {
        const rank = election.misfits.at(position);
        if (epoch.members[rank].peer) |peer| overdue.add(peer);
    }
    switch (election.blame) {
        .structure => overdue.say(
            "its shared state \"{s}\" is not that of the members: {s}",
            .{ election.name.slice(), election.structures.?.text() },
        ),
        .content => overdue.say("it insists on its content of a shared state (send_only), and " ++
            "so does another member, on its own: at most one content can be sent", .{}),
        .revision => |expected| overdue.say("the revision of its content of the shared state " ++
            "\"{s}\" is above {d}, the one that follows the last sync of the members; by the " ++
            "rule successive it goes up by one", .{ election.name.slice(), expected }),
    }
    election.misfits = .empty;
}

/// Takes a newcomer whose shard sizes in an uneven all_to_all differ from an elder's, if both are
/// alive.
fn take_apart(epoch: *const Epoch, known: *Record, overdue: *Overdue) void {
    const apart = known.misfits.apart orelse return;
    known.misfits.apart = null;
    const newcomer, const member = .{ apart.newcomer.rank, apart.member.rank };
    if (!epoch.alive.has(newcomer) or !epoch.alive.has(member)) return;
    overdue.add(epoch.members[newcomer].peer orelse return);
    overdue.call = .{
        .op = known.id,
        .peer = epoch.members[member].id,
        .descriptor = apart.member.descriptor,
    };
    const own, const there = .{ &apart.newcomer.descriptor, &apart.member.descriptor };
    overdue.say("it called {f} where {f} called {f} (tag {d}, sequence {d} of epoch {d})", .{
        Described{ .descriptor = own, .other = there, .names = epoch.names() },
        epoch.members[member].ranked(member),
        Described{ .descriptor = there, .other = own, .names = epoch.names() },
        known.id.tag,
        known.id.sequence,
        epoch.number,
    });
}

fn take_call(epoch: *const Epoch, known: *const Record, overdue: *Overdue) void {
    const before = elders(epoch);
    if (before.is_empty() or !known.stall.called.covers(&before)) return;
    var wrong: ?*const Descriptor = null;
    for (known.misfits.said.items) |*said| {
        const peer = epoch.members[said.rank].peer orelse continue;
        if (wrong) |first| if (!first.eql(&said.descriptor)) continue;
        wrong = &said.descriptor;
        overdue.add(peer);
    }
    const own = wrong orelse return;
    overdue.call = .{
        .op = known.id,
        .peer = epoch.members[known.from].id,
        .descriptor = known.descriptor,
    };
    overdue.say("it called {f} where the members called {f} (tag {d}, sequence {d} of epoch " ++
        "{d})", .{
        Described{ .descriptor = own, .other = &known.descriptor, .names = epoch.names() },
        Described{ .descriptor = &known.descriptor, .other = own, .names = epoch.names() },
        known.id.tag,
        known.id.sequence,
        epoch.number,
    });
}

// ---- members that must leave
//
// Members that must leave a group, and the reason: debtors (debt.zig), and newcomers whose calls
// differ. coordinator.zig lets them go at ticks.

pub const Overdue = struct {
    peers: [base.limits.peers_max]*Peer = undefined,
    count: usize = 0,
    why_storage: [why_bytes_max]u8 = undefined,
    why_length: usize = 0,
    /// If these peers made a wrong call: the call that they should have made, and a peer that made
    /// it.
    call: ?Call = null,

    const Call = struct { op: control.OpId, peer: base.PeerId, descriptor: control.Descriptor };
    const why_bytes_max = base.limits.expelled_bytes_max;

    pub fn why(overdue: *const Overdue) []const u8 {
        return overdue.why_storage[0..overdue.why_length];
    }

    pub fn add(overdue: *Overdue, peer: *Peer) void {
        overdue.peers[overdue.count] = peer;
        overdue.count += 1;
    }

    pub fn say(overdue: *Overdue, comptime format: []const u8, args: anytype) void {
        const text = std.fmt.bufPrint(&overdue.why_storage, format, args) catch
            &overdue.why_storage;
        overdue.why_length = text.len;
    }
};
