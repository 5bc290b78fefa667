//! Rules: what a success must satisfy beyond its values. The group must have been large enough to
//! commit (`min_world_size`), the contributors must be those that the recovery allows, and a sync
//! must give the content that its offers elect. Each rule is worked out here a second time, from
//! what members called and were told, and from how many the coordinator knows to be alive. Values
//! are calls.zig's, the other checks are checkers.zig's.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const calls = @import("calls.zig");
const checkers_file = @import("checkers.zig");
const session_layer = @import("session");
const Call = checkers_file.Call;
const Config = @import("swarm.zig").Config;
const StateRules = wire.control.StateRules;
const Descriptor = wire.control.Descriptor;
const Mask = base.Mask;
const Work = calls.Work;
const World = @import("world.zig").World;
const fmt_key = checkers_file.fmt_key;

/// After a success whose values are as they must be.
pub fn check(work: *Work) void {
    const world = work.node.world;
    if (world.checkers.forgetful) return; // members that were removed may be back
    check_large_enough(work);
    if (work.step.kind == .sync) check_election(work);
    if (work.step.kind.reduces()) check_recovery(work);
    if (work.step.recovery == .complete) check_complete(work);
}

/// Those who had a part in the attempt of the vote, as this member was told.
fn voters(work: *const Work) *const Mask {
    const op = work.op.?;
    return op.history.members(op.op.voted_attempt);
}

// ---- min_world_size

fn check_large_enough(work: *Work) void {
    const world = work.node.world;
    const count = voters(work).count();
    if (count >= world.config.min_world_size) return;
    world.checkers.fail(.least, "p{d}: {f} was committed by {d} members, and {d} is the least", .{
        work.node.index, fmt_key(work.step.key), count, world.config.min_world_size,
    });
}

/// Epochs that have fallen below the least world size, and how much was committed in them by then:
/// what a coordinator has begun itself must stay at that.
pub const Starved = struct {
    committed: std.AutoHashMapUnmanaged(Key, u64) = .empty,

    const Key = struct { group: u16, epoch: u64 };

    /// Between any two steps of the coordinator: a loss is logged before anything follows from it.
    pub fn observe(starved: *Starved, world: *World) void {
        const run = &world.coordinator.run;
        for (run.groups.items) |group| for (group.epochs.items) |epoch| {
            if (epoch.alive.count() >= epoch.min_world_size) continue;
            // It decides again what the coordinator before it has decided.
            if (epoch.number < run.first_epoch()) continue;
            const key: Key = .{ .group = group.id, .epoch = epoch.number };
            const known = starved.committed.getOrPut(world.gpa, key) catch @panic("out of memory");
            if (!known.found_existing) known.value_ptr.* = epoch.committed;
            if (known.value_ptr.* == epoch.committed) continue;
            return world.checkers.fail(
                .least,
                "epoch {d} of group {s} has committed with {d} members, and {d} is the least",
                .{ epoch.number, group.name, epoch.alive.count(), epoch.min_world_size },
            );
        };
    }
};

// ---- newcomers that are refused

/// Failures that come of the loss of a member that is refused although it has made no mistake: its
/// content is ahead, as may be that of a newcomer.
pub fn may_refuse(config: *const Config, op: *const session_layer.Operation) bool {
    if (!config.state_rules.refuse or !config.state_rules.successive) return false;
    const reason = op.failure.reason orelse return op.status == .mismatch;
    return reason == .peer_lost or reason == .root_lost or reason == .too_few_peers;
}

/// A member is refused only if it has called something else than another, and, unless the rules of
/// states refuse members from before, if it is a newcomer. Where members from before have called
/// the same, no newcomer has them see a mismatch.
pub fn check_mismatch(work: *const Work) void {
    const world = work.node.world;
    const op = work.op.?;
    const is_refused = op.failure.reason == null;
    world.statistics.refused += @intFromBool(is_refused);
    if (world.scripted or world.config.has(.insider) or world.checkers.forgetful) return;
    const epoch = work.group.member.epoch_of(op.op.epoch) orelse return;
    const elders = epoch.ids.len - epoch.joined;
    if (is_refused) {
        // All its calls end with it, those of the other epoch, too.
        for (work.group.member.epochs) |slot| {
            const in = slot orelse continue;
            const before = in.ids.len - in.joined;
            const is_newcomer = in.rank >= before and before > 0;
            const may_be = is_newcomer or work.rules.refuse;
            if (may_be and has_deviated(work, in.number)) return;
            if (!is_newcomer) continue;
            if (has_strayed(work, in.number, in.ids[0..before], &in.alive)) return;
        }
        const why = "p{d} is refused for {f}, and has called what all others have";
        return world.checkers.fail(.place, why, .{ work.node.index, fmt_key(work.step.key) });
    }
    if (work.rules.refuse and op.failure.reason == .structure) check_tie(work, epoch, elders);
    if (op.op.id.sequence != 0 or work.step.pair != null or epoch.rank >= elders) return;
    if (op.failure.reason == .contradiction) return;
    // All hear of two strategies that do not go together.
    if (op.failure.reason == .state_strategy) return;
    // Nobody else can compare what two newcomers are to each other.
    const described = [_]?Descriptor{ op.failure.descriptor, op.failure.other_descriptor };
    const is_uneven = for (described) |maybe| {
        if (maybe) |descriptor| if (descriptor.uneven) break true;
    } else false;
    if (is_uneven) for (epoch.ids[0..elders]) |id| {
        if (id.eql(op.failure.peer) or id.eql(op.failure.other)) break;
    } else return;
    for (epoch.ids[0..elders]) |id| {
        const digit = calls.digit_of(world, id) orelse return;
        const call = &work.record.calls[digit];
        const insists = call.strategy == .send_only and op.failure.reason == .state_conflict;
        if (call.state != .none and (call.asked != work.call().asked or insists)) return;
    }
    const why = "p{d}: {f} is a mismatch, and only newcomers have called something else";
    world.checkers.fail(.place, why, .{ work.node.index, fmt_key(work.step.key) });
}

/// Where all get the mismatch although outliers are refused, no structure has most judges.
fn check_tie(work: *const Work, epoch: anytype, elders: usize) void {
    const world = work.node.world;
    var judges = epoch.alive.intersect(&.full(elders));
    if (judges.is_empty()) judges = epoch.alive;
    // The members of that attempt, if all of these are there still.
    if (!judges.eql(&.full(if (elders > 0) elders else epoch.ids.len))) return;
    var most: usize = 0;
    var tied = false;
    for (0..judges.count()) |rank| {
        const asked = asked_by(work, epoch.ids[rank]) orelse return;
        var same: usize = 0;
        var is_first = true;
        for (0..judges.count()) |other| {
            const is_same = (asked_by(work, epoch.ids[other]) orelse return) == asked;
            if (is_same and other < rank) is_first = false;
            same += @intFromBool(is_same);
        }
        if (same < most or !is_first) continue;
        tied = same == most;
        most = same;
    }
    if (tied) return;
    world.checkers.fail(.election, "p{d}: {f} fails for all, and {d} of {d} agree", .{
        work.node.index, fmt_key(work.step.key), most, judges.count(),
    });
}

fn asked_by(work: *const Work, id: base.PeerId) ?u64 {
    const digit = calls.digit_of(work.node.world, id) orelse return null;
    const call = &work.record.calls[digit];
    return if (call.state == .none) null else call.asked;
}

/// In this epoch it has called something else than another, or insisted on its content, or was
/// ahead of another.
fn has_deviated(work: *const Work, epoch: u64) bool {
    const key = work.step.key;
    const digit = work.node.digit();
    for (work.node.world.checkers.records.values()) |record| {
        if (record.key.group != key.group or record.key.epoch != epoch) continue;
        const mine = &record.calls[digit];
        if (mine.state == .none) continue;
        if (mine.strategy == .send_only) return true;
        for (record.calls) |*call| {
            if (call.state == .none) continue;
            if (call.asked != mine.asked) return true;
            const is_ahead = mine.revision > call.expected and call.expected > 0;
            if (work.rules.successive and work.rules.refuse and is_ahead) return true;
            // Both give, and one of them sends.
            const sends = call.strategy == .send_only and mine.strategy != .receive_only;
            if (work.rules.one_sender and sends) return true;
        }
    }
    return false;
}

/// It waits where none of the members from before has called, and all of them wait for it
/// elsewhere. Users that think for long may call in other orders, which looks like a mistake. A
/// call of the last moment may be younger than the refusal, which has been on its way since.
fn has_strayed(
    work: *const Work,
    epoch: u64,
    before: []const base.PeerId,
    alive: *const Mask,
) bool {
    const world = work.node.world;
    var elders: Mask = .empty;
    for (before, 0..) |id, rank| {
        if (alive.has(rank)) elders.set(calls.digit_of(world, id) orelse return false);
    }
    var is_lonely = false;
    var is_awaited = false;
    for (world.checkers.records.values()) |record| {
        if (record.key.group != work.step.key.group or record.key.epoch != epoch) continue;
        const mine = &record.calls[work.node.digit()];
        var waiting: usize = 0;
        for (0..elders.count()) |position| {
            const call = &record.calls[elders.at(position)];
            waiting += @intFromBool(has_waited(world, call));
        }
        is_lonely = is_lonely or waiting == 0 and has_waited(world, mine);
        is_awaited = is_awaited or !has_waited(world, mine) and waiting == elders.count();
    }
    return is_lonely and is_awaited;
}

/// For the time of the stall warning; clocks may be slow, and words take time.
fn has_waited(world: *const World, call: *const Call) bool {
    return call.state != .none and world.now -| call.called_at > world.config.stall_warning_ns / 2;
}

// ---- what a call's recovery allows

fn check_recovery(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    const at_call = op.history.members(op.op.begun_attempt);
    const everybody = work.op.?.member_ids().len;
    var it = op.ranges();
    while (it.next()) |range| {
        const set = &range.contributors;
        // Whoever is lost may still be in a sum; whoever voted for it is.
        if (!set.covers(voters(work))) return world.checkers.fail(
            .recovery,
            "p{d}: members voted for {f} that have no part in it",
            .{ work.node.index, fmt_key(work.step.key) },
        );
        const allowed = switch (work.step.recovery) {
            .resume_chunks => true,
            .restart => is_of_one_attempt(op, set),
            .raise => set.eql(at_call),
            .complete => set.eql(&.full(everybody)),
        };
        if (!allowed) return world.checkers.fail(
            .recovery,
            "p{d}: {f} ({t}) has other contributors than its recovery allows",
            .{ work.node.index, fmt_key(work.step.key), work.step.recovery },
        );
    }
}

/// Nobody of the epoch is missing among those who had a part in the attempt of the vote, and all
/// have called it.
fn check_complete(work: *Work) void {
    const world = work.node.world;
    const ids = work.op.?.member_ids();
    if (!voters(work).eql(&.full(ids.len))) return world.checkers.fail(
        .recovery,
        "p{d}: {f} is complete without some member",
        .{ work.node.index, fmt_key(work.step.key) },
    );
    if (world.config.has(.insider)) return; // it votes as it likes
    // One that has started again commits what all but the lost have voted for.
    if (world.nodes[0].state != .up) return;
    if (work.op.?.op.epoch < world.coordinator.run.first_epoch()) return;
    for (ids) |id| {
        const digit = calls.digit_of(world, id) orelse return;
        if (work.record.calls[digit].state == .none) return world.checkers.fail(
            .recovery,
            "p{d}: {f} is complete, and p{d} has not called it",
            .{ work.node.index, fmt_key(work.step.key), digit + 1 },
        );
    }
}

/// A call that needs every member and fails for a loss names one that is lost.
pub fn check_lost(work: *const Work) void {
    const world = work.node.world;
    const op = work.op.?;
    if (work.step.recovery != .complete or op.failure.reason != .peer_lost) return;
    if (world.checkers.forgetful or world.config.has(.insider)) return;
    if (world.nodes[0].state != .up) return;
    const lost = op.failure.peer;
    // A group that everybody has left is over, and so may the epoch be.
    const group = for (world.coordinator.run.groups.items) |group| {
        if (group.id == work.group.member.group) break group;
    } else return;
    const epoch = group.epoch_of(op.op.epoch) orelse return;
    const is_lost = for (epoch.members, 0..) |*member, rank| {
        if (member.id.eql(lost)) break !epoch.alive.has(rank);
    } else false;
    if (!is_lost) world.checkers.fail(
        .recovery,
        "p{d}: {f} fails for the loss of peer {s}, which is not lost",
        .{ work.node.index, fmt_key(work.step.key), lost.short() },
    );
}

/// Some attempt since the call had just these members.
fn is_of_one_attempt(op: anytype, set: *const Mask) bool {
    for (op.history.entries.items) |*entry| if (entry.members.eql(set)) return true;
    return false;
}

// ---- elections

/// One of those who offered.
const Candidate = struct { rank: usize, id: base.PeerId, call: *const Call };

/// The first attempt in which this member takes part is the one that elects, and nothing was voted
/// for before: so what is elected follows from the offers alone.
fn check_election(work: *Work) void {
    const world = work.node.world;
    const op = work.op.?;
    if (op.op.attempts != 1 or world.incarnations != 1) return;
    const ids = op.member_ids();
    const epoch = work.group.member.epoch_of(op.op.epoch) orelse return;
    const incumbents = ids.len - epoch.joined;
    var buffer: [base.limits.peers_max]Candidate = undefined;
    var candidates: std.ArrayList(Candidate) = .initBuffer(&buffer);
    for (ids, 0..) |id, rank| {
        if (!voters(work).has(rank)) continue;
        const digit = calls.digit_of(world, id) orelse return;
        const call = &work.record.calls[digit];
        if (call.state == .none) return world.checkers.fail(
            .election,
            "{f} was elected before p{d} had called",
            .{ fmt_key(work.step.key), digit + 1 },
        );
        candidates.appendAssumeCapacity(.{ .rank = rank, .id = id, .call = call });
    }
    check_offers(work, candidates.items, incumbents);
    const elected = elect(candidates.items, incumbents, work.rules);
    const winner = elected orelse return world.checkers.fail(
        .election,
        "{f} has succeeded, and nobody offers what may be taken",
        .{fmt_key(work.step.key)},
    );
    const mine = work.shared.?;
    const same = mine.revision == winner.revision + 1 and
        calls.shared_hash(work) == winner.content;
    if (same) return;
    world.checkers.fail(
        .election,
        "p{d}: {f} gave revision {d}, and the offers elect content {x} of revision {d}",
        .{
            work.node.index, fmt_key(work.step.key), mine.revision - 1,
            winner.content,  winner.revision,
        },
    );
}

/// Some offers let nobody be elected, by the rules of the state.
fn check_offers(work: *const Work, candidates: []const Candidate, incumbents: usize) void {
    const world = work.node.world;
    const next = expected(candidates, incumbents, work.rules);
    var senders: usize = 0;
    var receivers: usize = 0;
    for (candidates) |*one| {
        senders += @intFromBool(one.call.strategy == .send_only);
        receivers += @intFromBool(one.call.strategy == .receive_only);
        const is_ahead = next > 0 and one.call.revision > next;
        if (work.rules.refuse and is_ahead and one.call.strategy != .receive_only)
            return world.checkers.fail(
                .election,
                "{f} was elected beside revision {d}, and {d} was expected",
                .{ fmt_key(work.step.key), one.call.revision, next },
            );
    }
    if (!work.rules.one_sender or senders == 0 or senders + receivers == candidates.len) {
        if (!work.rules.one_sender or senders < 2) return;
    }
    world.checkers.fail(.election, "{f} was elected with {d} that send and {d} that receive", .{
        fmt_key(work.step.key), senders, receivers,
    });
}

/// The revision that the rules let be elected; 0: any.
fn expected(candidates: []const Candidate, incumbents: usize, rules: StateRules) u64 {
    if (!rules.successive) return 0;
    var of_old: ?u64 = null;
    var of_all: u64 = 0;
    for (candidates) |*one| {
        if (one.rank < incumbents) of_old = @max(of_old orelse 0, one.call.expected);
        of_all = @max(of_all, one.call.expected);
    }
    return of_old orelse of_all;
}

/// A member that insists wins; else incumbents, of these the members that have committed a sync of
/// the state, then the highest revision, then what most hold, then the smallest id
/// (docs/internals/ALGORITHMS.md). By the rule highest_revision, revisions come first. Revisions
/// out of the rule successive are as if nobody had them.
fn elect(everybody: []const Candidate, incumbents: usize, rules: StateRules) ?*const Call {
    var buffer: [base.limits.peers_max]Candidate = undefined;
    var allowed: std.ArrayList(Candidate) = .initBuffer(&buffer);
    const next = expected(everybody, incumbents, rules);
    for (everybody) |one| if (next == 0 or one.call.revision == next)
        allowed.appendAssumeCapacity(one);
    const candidates = allowed.items;
    var insists: ?*const Call = null;
    for (candidates) |*one| if (one.call.strategy == .send_only) {
        if (insists == null or one.call.revision > insists.?.revision) insists = one.call;
    };
    if (insists) |call| return call;
    var winner: ?*const Candidate = null;
    for (candidates) |*one| {
        if (one.call.strategy != .popular) continue;
        if (winner == null or outvotes(candidates, incumbents, rules, one, winner.?)) winner = one;
    }
    return if (winner) |one| one.call else null;
}

fn outvotes(
    candidates: []const Candidate,
    incumbents: usize,
    rules: StateRules,
    a: *const Candidate,
    b: *const Candidate,
) bool {
    const standing = .{ standing_of(a, incumbents), standing_of(b, incumbents) };
    const is_equal = a.call.revision == b.call.revision;
    if (standing[0] != standing[1] and (is_equal or !rules.highest_revision))
        return standing[0] > standing[1];
    if (!is_equal) return a.call.revision > b.call.revision;
    const votes = .{ holders(candidates, a), holders(candidates, b) };
    if (votes[0] != votes[1]) return votes[0] > votes[1];
    return a.id.less_than(b.id);
}

/// A newcomer, a member from before, or one that has committed a sync of the state.
fn standing_of(one: *const Candidate, incumbents: usize) u2 {
    if (incumbents > 0 and one.rank >= incumbents) return 0;
    if (one.call.expected > 0) return 2;
    return if (one.rank < incumbents) 1 else 0;
}

fn holders(candidates: []const Candidate, of: *const Candidate) usize {
    var count: usize = 0;
    for (candidates) |*one| {
        if (one.call.strategy != .popular) continue;
        count += @intFromBool(one.call.content == of.call.content);
    }
    return count;
}

test "who insists wins, then incumbents, revisions, numbers and ids" {
    const expectEqual = std.testing.expectEqual;
    var offers: [4]Call = @splat(.{ .state = .ok });
    var candidates: [4]Candidate = undefined;
    for (&candidates, &offers, 0..) |*one, *call, rank| {
        call.content = rank;
        one.* = .{ .rank = rank, .id = .from_int(9 - rank), .call = call };
    }
    try expectEqual(&offers[3], elect(&candidates, 4, .{})); // the smallest id
    offers[1].content = offers[0].content;
    // The content that most hold, of these the smaller id.
    try expectEqual(&offers[1], elect(&candidates, 4, .{}));
    try expectEqual(&offers[2], elect(candidates[2..], 3, .{})); // the only incumbent
    offers[3].revision = 1;
    try expectEqual(&offers[3], elect(&candidates, 0, .{}));
    try expectEqual(&offers[3], elect(&candidates, 4, .{}));
    try expectEqual(&offers[1], elect(&candidates, 3, .{}));
    offers[2].expected = 1;
    try expectEqual(&offers[2], elect(&candidates, 3, .{}));
    try expectEqual(&offers[2], elect(&candidates, 4, .{}));
    try expectEqual(&offers[3], elect(&candidates, 1, .{ .highest_revision = true }));
    offers[2].expected = 0;
    offers[0].strategy = .send_only;
    try expectEqual(&offers[0], elect(&candidates, 1, .{}));
    for (&offers) |*call| call.strategy = .receive_only;
    try expectEqual(null, elect(&candidates, 1, .{}));
    // By the rule, the revision that the incumbents expect, or else that of any.
    const rules: StateRules = .{ .successive = true };
    for (&offers, 0..) |*call, rank| {
        call.strategy = .popular;
        call.revision = rank + 5;
    }
    try expectEqual(&offers[3], elect(&candidates, 4, rules));
    offers[1].expected = 7;
    offers[3].expected = 6;
    try expectEqual(&offers[2], elect(&candidates, 3, rules));
    try expectEqual(&offers[2], elect(&candidates, 0, rules));
    offers[1].expected = 99;
    try expectEqual(null, elect(&candidates, 2, rules));
}
