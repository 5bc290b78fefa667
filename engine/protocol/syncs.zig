//! syncs: members offer their shared states. When all have, one content is elected (election.zig),
//! or the reason is found why there is none (election.zig). Afterwards a sync is voted for like
//! any operation (votes.zig).

const base = @import("base");
const wire = @import("wire");
const calls = @import("calls.zig");
const decisions = @import("decisions.zig");
const misfit = @import("misfit.zig");
const post = @import("post.zig");
const unseen = @import("unseen.zig");
const votes = @import("votes.zig");
const Election = @import("election.zig").Election;
const Epoch = @import("epoch.zig").Epoch;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const PeerId = base.PeerId;
const control = wire.control;

pub fn on_state_offer(
    run: *Run,
    epoch: *Epoch,
    rank: u16,
    message: *const control.StateOffer,
) ProtocolError!void {
    try decisions.acknowledge(epoch, rank, message.decisions_seen);
    try unseen.count_vote(epoch, rank);
    if (message.descriptor.kind != .sync or message.attempt > epoch.attempt)
        return error.Unexpected;
    const name = base.Label.read(message.name.data) orelse return error.Unexpected;
    if (message.attempt < epoch.attempt or !epoch.running) return; // it offers again
    if (epoch.is_decided(message.op)) return;
    const known = try calls.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
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
            try votes.evaluate(run, epoch, known);
        },
        .elected => |*elected| post.broadcast(run, epoch, .{ .state_elected = .{
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
        .conflict => |ranks| if (!misfit.blames(epoch, known, ranks, .content))
            try decisions.abort(run, epoch, known.id, .{
                .reason = .state_conflict,
                .peer = ids[ranks[0]],
                .other = ids[ranks[1]],
            }, null),
        // A strategy is chosen anew for each call, so all members hear of it and nobody is refused.
        .givers => |ranks| try decisions.abort(run, epoch, known.id, .{
            .reason = .state_strategy,
            .peer = ids[ranks[0]],
            .other = ids[ranks[1]],
        }, null),
        .ahead => |*ahead| {
            election.misfits = ahead.ranks;
            election.blame = .{ .revision = ahead.expected };
        },
        .unavailable => try decisions.abort(run, epoch, known.id, .{
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
    const index = epoch.find(message.op) orelse return; // decided meanwhile
    const known = epoch.records.items[index];
    const election = known.election orelse return error.Unexpected;
    if (election.structures == null) return error.Unexpected;
    try election.structures.?.page(epoch.gpa, rank, message);
    try compare_structures(run, epoch, known);
}

/// Finds out how two structures differ. Then a newcomer, or one of few, is refused; or all hear
/// it, and the operation is aborted.
fn compare_structures(run: *Run, epoch: *Epoch, known: *Record) ProtocolError!void {
    const structures = &known.election.?.structures.?;
    switch (structures.next()) {
        .wait => {},
        // Whoever is asked has offered in this attempt, so it is alive.
        .ask => |ask| post.send(run, epoch.members[ask.rank].peer.?, epoch.group, .{ .state_ask = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = known.id,
            .first = ask.first,
        } }),
        .over => {
            if (misfit.blames(epoch, known, structures.ranks, .structure)) return;
            post.broadcast(run, epoch, .{ .state_differs = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .op = known.id,
                .text = .of(structures.text()),
            } });
            try decisions.abort(run, epoch, known.id, .{
                .reason = .structure,
                .peer = epoch.members[structures.ranks[0]].id,
                .other = epoch.members[structures.ranks[1]].id,
            }, null);
        },
    }
}
