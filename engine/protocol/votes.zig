//! votes: members say that they are done with an operation, or give it up. When all whose votes
//! count have voted for one result, it is committed. The consequences of a decision: decisions.zig.

const base = @import("base");
const wire = @import("wire");
const calls = @import("calls.zig");
const decisions = @import("decisions.zig");
const late = @import("late.zig");
const misfit = @import("misfit.zig");
const unseen = @import("unseen.zig");
const Epoch = @import("epoch.zig").Epoch;
const Misfits = @import("misfits.zig").Misfits;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Pair = base.Pair;
const control = wire.control;

pub fn on_done(
    run: *Run,
    epoch: *Epoch,
    now: base.Instant,
    rank: u16,
    message: *const control.Done,
) ProtocolError!void {
    try decisions.acknowledge(epoch, rank, message.decisions_seen);
    try unseen.count_vote(epoch, rank);
    if (message.attempt > epoch.attempt) return error.Unexpected;
    // A vote of a passed attempt is given again after the resume.
    if (message.attempt < epoch.attempt or !epoch.running) return;
    if (epoch.is_decided(message.op)) return;
    const known = try calls.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    known.stall.called.set(rank);
    known.stall.stuck.forget(rank); // it has all of it
    if (known.done.is_empty()) {
        known.digest = message.digest;
        known.digest_from = rank;
        known.calls = .{};
    } else if (known.digest != message.digest) {
        return decisions.abort(run, epoch, message.op, .{
            .reason = .digest,
            .peer = epoch.members[known.digest_from].id,
            .other = epoch.members[rank].id,
        }, decisions.spendthrift(epoch, rank));
    }
    if (!known.done.has(rank)) known.calls.note(rank, now, message.age_ns);
    known.done.set(rank);
    try evaluate(run, epoch, known);
}

pub fn evaluate(run: *Run, epoch: *Epoch, known: *Record) ProtocolError!void {
    const needed = epoch.voters(known.id);
    // Nobody may be left in a message, and then nobody waits for it.
    if (!epoch.running or needed.is_empty() or !known.done.covers(&needed)) return;
    if (epoch.is_starved(known.id))
        return decisions.abort(run, epoch, known.id, .{ .reason = .too_few_peers }, null);
    if (known.descriptor.kind.ends_at_root() and !has_root_voted(epoch, known))
        return decisions.abort(run, epoch, known.id, known.root_lost(), null);
    if (Pair.of(known.id.tag)) |pair| if (!known.done.has(pair.dst))
        return decisions.abort(run, epoch, known.id, epoch.party_lost(pair).?, null);
    const has_all = known.done.count() == epoch.members.len;
    if (known.descriptor.recovery == .complete and !has_all) if (epoch.any_lost()) |lost|
        return decisions.abort(run, epoch, known.id, .{ .reason = .peer_lost, .peer = lost }, null);
    judge(epoch, known);
    try decisions.commit(run, epoch, known.id, .{
        .attempt = epoch.attempt,
        .digest = known.digest,
    });
}

/// The votes of all others count for nothing if the root, which alone has a result, is lost
/// without a vote.
fn has_root_voted(epoch: *const Epoch, known: *const Record) bool {
    for (epoch.members, 0..) |*member, rank| {
        if (member.id.eql(known.descriptor.root)) return known.done.has(rank);
    }
    return false;
}

/// After a loss: what all others have voted for is committed.
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
    try decisions.abort(run, epoch, message.op, .{
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
    try decisions.abort(run, epoch, message.op, .{
        .reason = .mismatch,
        .peer = epoch.members[rank].id,
        .other = message.other,
        .descriptor = message.mine,
        .other_descriptor = message.theirs,
    }, rank);
}

/// A member has seen that another calls something else. False: two contradict each other of whom
/// none can be refused.
fn on_seen(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.MismatchSeen,
) ProtocolError!bool {
    const other = epoch.ranks.get(message.other) orelse return false;
    if (!misfit.may_be(epoch, message.op)) return false;
    const from_newcomer = misfit.is_newcomer(epoch, rank);
    if (!from_newcomer and !misfit.is_newcomer(epoch, other)) return false;
    const mine = message.mine.of_all();
    const is_of_two = mine.uneven and mine.eql(&message.theirs.of_all());
    if (is_of_two and from_newcomer == misfit.is_newcomer(epoch, other)) return false;
    // In a new attempt the reports say what all have called, and what two see they say again.
    if (!epoch.running or epoch.is_decided(message.op)) return true;
    const known = try calls.record_of(run, epoch, message.op, &mine, rank) orelse return true;
    known.stall.called.set(rank);
    if (is_of_two) {
        const one: Misfits.Said = .{ .rank = rank, .descriptor = message.mine };
        const two: Misfits.Said = .{ .rank = other, .descriptor = message.theirs };
        known.misfits.apart = if (from_newcomer)
            .{ .newcomer = one, .member = two }
        else
            .{ .newcomer = two, .member = one };
    } else misfit.open(run, epoch, known);
    return true;
}

/// An operation of all is committed. Nobody can say who was to come first in a message, and the
/// votes of a sync have no ages.
fn judge(epoch: *const Epoch, known: *const Record) void {
    const kind = known.descriptor.kind;
    if (kind == .send_recv or kind == .sync or known.calls.count < 2) return;
    for (epoch.members, 0..) |*member, rank| if (known.done.has(rank)) {
        if (member.peer) |peer| peer.late.calls += 1;
    };
    const margin_ns = known.calls.last - known.calls.second_last;
    if (margin_ns < late.margin_ns_min) return;
    const peer = epoch.members[known.calls.rank].peer orelse return;
    peer.late.last += 1;
    peer.late.ns +|= margin_ns;
}
