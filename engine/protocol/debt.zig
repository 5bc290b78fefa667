//! debt: who waits for whom, why, and since when. A member can owe its call of an operation, its
//! vote, its report after a loss, and its next safe point; a newcomer can owe its `admit`. The
//! coordinator names the debtors to the members that wait, in the log and in the status. The
//! coordinator removes a debtor only if the run has the option `--stall`, or if no part of a report
//! comes.
//!
//! The evidence of a member's call is its vote, offer or report, or the message `called`, which
//! members send for operations that take long. The coordinator blames no member that has called,
//! however slow it is, and takes only the member's own word for its call. A member that has not
//! called an operation is removed only if over half of the members have called it. An operation
//! that a member cannot call any more, because it has left the epoch, is aborted. If all members
//! have called an operation and links move nothing of it, the coordinator names these links, as the
//! members at their ends report them (session/membership.zig), and blames no member. The member's
//! half: member.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const operation = @import("operation.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Overdue = @import("operation.zig").Overdue;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Told = @import("record.zig").Told;
const Waits = @import("operation.zig").Waits;
const Instant = base.Instant;
const Mask = base.Mask;
const control = wire.control;
const limits = base.limits;

/// Callers are told again when the missing members wait in other operations than before, at most
/// this many times in a warning time: a member can change its operation at will.
const again_part = 2;

/// A call near its deadline is reviewed after an eighth of the time that is left, and after 10 ms
/// at the earliest, together with calls that come meanwhile.
const looks_per_rest = 8;
const look_ns_min = 10 * std.time.ns_per_ms;

/// Whether an operation stands still: over half of the members have called it and some have not. If
/// fewer than half wait, the call may be their mistake. A message between two members stands still
/// with one call.
fn stands_still(needed: u32, missing: u32) bool {
    if (missing == 0) return false;
    return 2 * missing < needed or (needed == 2 and missing == 1);
}

pub fn on_called(
    run: *Run,
    epoch: *Epoch,
    now: Instant,
    rank: u16,
    message: *const control.Called,
) ProtocolError!void {
    if (message.attempt > epoch.attempt) return error.Unexpected;
    // The member's report has told its calls of an attempt that is over: `called` adds nothing.
    if (message.attempt < epoch.attempt or !epoch.running) return;
    if (epoch.is_decided(message.op)) return;
    const known = try operation.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
        return;
    const stall = &known.stall;
    try note_stuck(epoch, known, rank, &message.stuck);
    const is_news = !stall.called.has(rank);
    stall.called.set(rank);
    const until = now +| message.left_ns;
    const is_sooner = until < stall.until;
    stall.until = @min(stall.until, until);
    if (!stall.is_urgent(now) or !(is_news or is_sooner)) return;
    const soon_ns = @max((stall.until - now) / looks_per_rest, look_ns_min);
    epoch.stall_at = @min(epoch.stall_at, now +| soon_ns);
}

/// Notes the ranks (`stuck`) with which a member exchanges no data of an operation. If `stuck` is
/// empty, data moves again.
fn note_stuck(epoch: *const Epoch, known: *Record, rank: u16, stuck: *const Mask) !void {
    const told = &known.stall.stuck;
    told.forget(rank);
    if (stuck.is_empty()) return;
    if (!Mask.full(epoch.members.len).covers(stuck) or stuck.has(rank)) return error.Unexpected;
    if (told.count < told.items.len) told.add(.{
        .rank = rank,
        .op = known.id,
        .kind = known.descriptor.kind,
        .waits_for = @intCast(stuck.at(0)),
        .count = @intCast(stuck.count()),
    });
}

/// At a tick: aborts operations that some member cannot call any more, because it has left the
/// epoch. The abort counts as caused by the first caller.
pub fn end_passed(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (!epoch.running or epoch.closed.is_empty()) return;
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        const passed = epoch.missing_of(known).intersect(&epoch.closed);
        if (passed.is_empty()) continue;
        if (epoch.members[known.from].caused >= base.limits.decisions_kept_max) continue;
        try operation.abort(run, epoch, known.id, .{
            .reason = .passed,
            .peer = epoch.members[passed.at(0)].id,
            .other = epoch.members[known.from].id,
        }, known.from);
    }
}

/// At a tick: tells callers which members they wait for, and warns in the log. `late`: the
/// coordinator was frozen, so all waits are counted from now.
pub fn review_calls(run: *Run, group: *Group, epoch: *Epoch, now: Instant, late: bool) void {
    const warning_ns = run.options.stall_warning_ns;
    const told_ns = base.limits.wait_told_ns(warning_ns);
    var waited_for: Mask = .empty;
    epoch.stall_at = base.never;
    const elsewhere: Elsewhere = .of(epoch, now, warning_ns);
    for (epoch.records.items) |known| {
        const stall = &known.stall;
        const needed = epoch.voters(known.id);
        const missing = epoch.missing_of(known);
        if (!stands_still(needed.count(), missing.count())) {
            stall.since = base.never;
        } else if (late or stall.since == base.never) stall.since = now;
        const is_due = now -| stall.since >= warning_ns;
        stall.note_wait(&needed, &missing, now, late);
        if (epoch.running) {
            const is_urgent = !late and stall.is_urgent(now);
            const has_stalled = stall.since != base.never or stall.has_waited(now, told_ns / 2);
            const is_asked = has_stalled or is_urgent;
            if (is_asked) operation.ask_missing(run, epoch, known, &missing);
            const is_long = is_due or stall.has_waited(now, told_ns);
            if (is_long and !stall.is_long) stall.told = .empty; // callers are told again
            stall.is_long = is_long;
            const named: *const Mask = if (is_long or is_urgent) &missing else &.empty;
            const why = if (missing.is_empty()) stall.stuck else elsewhere.told(named);
            tell_callers(run, epoch, known, named, &why, now);
            if (missing.is_empty()) warn_of_links(run, group, epoch, known, now);
        }
        if (!is_due) continue;
        warn(run, group, known, &missing, &elsewhere, now);
        waited_for.merge(&missing);
    }
    review_debtors(run, group, epoch, now, late, &waited_for);
    for (epoch.members, 0..) |*member, rank| {
        if (!member.waited_for or waited_for.has(rank)) continue;
        member.waited_for = false;
        // The log has another line for the loss of a member.
        if (epoch.alive.has(rank)) run.log(
            .warning,
            "peer {f} of epoch {d} is not waited for any more; group {s}",
            .{ member.shown(rank), epoch.number, group.name },
        );
    }
}

/// Tells the callers of an operation which members are missing, and in which operations the missing
/// members wait.
fn tell_callers(
    run: *Run,
    epoch: *Epoch,
    known: *Record,
    missing: *const Mask,
    why: *const Told,
    now: Instant,
) void {
    if (known.stall.told.eql(missing)) {
        if (known.stall.told_elsewhere.eql(why)) return;
        if (now -| known.stall.told_at < run.options.stall_warning_ns / again_part) return;
    }
    known.stall.told = missing.*;
    known.stall.told_elsewhere = why.*;
    known.stall.told_at = now;
    operation.send_stalled(run, epoch, known, &known.stall.called, missing, why.slice());
}

/// Warns of links that move nothing of an operation that all members have called: one line for each
/// link. Many operations may stand on one link, and members may report stuck links at will, so the
/// log warns of links at most twice in a warning time.
fn warn_of_links(
    run: *Run,
    group: *const Group,
    epoch: *Epoch,
    known: *Record,
    now: Instant,
) void {
    const stuck = &known.stall.stuck;
    defer known.stall.stuck_said = stuck.count > 0;
    if (stuck.count == 0 or known.stall.stuck_said) return;
    const pause_ns = run.options.stall_warning_ns / again_part;
    if (epoch.stuck_said_at > 0 and now -| epoch.stuck_said_at < pause_ns) return;
    epoch.stuck_said_at = now;
    for (stuck.slice(), 0..) |*link, index| if (stuck.is_new(index)) run.log(
        .warning,
        "{f} stands, though all have called it: nothing of it moves between {f} and {f}; group {s}",
        .{
            known.named(epoch.number),
            epoch.members[link.rank].ranked(link.rank),
            epoch.members[link.waits_for].ranked(link.waits_for),
            group.name,
        },
    );
}

/// Warns of members that have not called an operation: one line for each member and not for each
/// operation, so that callers of many operations cannot push other lines out of the log.
fn warn(
    run: *Run,
    group: *Group,
    known: *const Record,
    missing: *const Mask,
    elsewhere: *const Elsewhere,
    now: Instant,
) void {
    const epoch = elsewhere.epoch;
    for (epoch.members, 0..) |*member, rank| {
        if (!missing.has(rank) or member.waited_for) continue;
        member.waited_for = true;
        run.log(.warning, "peer {f} {f}{f}; group {s}", .{
            member.shown(rank),
            Waits{ .epoch = epoch, .known = known, .waited_ns = now -| known.stall.since },
            elsewhere.words(rank),
            group.name,
        });
    }
}

/// Finds the members whose missing call has held up an operation for `stall_ns`, if over half of
/// all members have called the operation. A message between two members, or a group of two, never
/// has that half. One operation is taken at a time: without the found members other operations may
/// go on, so the waits of all operations are counted from now.
pub fn find_stalled(group: *const Group, now: Instant, stall_ns: u64, overdue: *Overdue) bool {
    for (group.epochs.items) |epoch| {
        if (!epoch.running) continue; // members may be about to report their calls
        for (epoch.records.items) |known| {
            if (now -| known.stall.since < stall_ns) continue;
            const missing = epoch.missing_of(known);
            const callers = epoch.alive.intersect(&known.stall.called).count();
            if (missing.is_empty() or 2 * callers <= epoch.alive.count()) continue;
            take_missing(epoch, known, &missing, now, overdue);
            if (overdue.count == 0) continue;
            for (epoch.records.items) |other| {
                if (other.stall.since != base.never) other.stall.since = now;
            }
            return true;
        }
    }
    return false;
}

/// Adds the missing members that are connected to `overdue`. A member that is away cannot say that
/// it has called, and has the silence limit to come back.
fn take_missing(
    epoch: *const Epoch,
    known: *const Record,
    missing: *const Mask,
    now: Instant,
    overdue: *Overdue,
) void {
    overdue.count = 0;
    for (epoch.members, 0..) |*member, rank| {
        const peer = member.peer orelse continue;
        if (!missing.has(rank) or !peer.is_present(epoch.group)) continue;
        overdue.add(peer);
    }
    const waited_ns = now -| known.stall.since;
    overdue.say("it {f}", .{Waits{ .epoch = epoch, .known = known, .waited_ns = waited_ns }});
}

// ---- reports and votes
//
// Members that owe a report or a vote, which their engines give and not their users (record.zig).
// The log names a member that owes a report or a vote like a member whose call is missing.
//
// A report is the engine's own step, so a member that is heard and does not report is broken or
// hostile. A member that owes a report is removed after the time `--stall`, if the run has that
// option. The member is removed in any case if no part of its report has come for twelve silence
// limits after all messages to it had left. If only a vote is missing, the member's neighbours may
// be to blame, by not sending the data that they have: the member is named, but no member is
// removed for a missing vote.

/// The longest time without a new part of a report, in silence limits. A long report takes time on
/// a thin link, and so do the messages that the member must read before it reports.
const silences_max = 12;

/// At a tick: warns of members that owe a report or a vote, and adds these members to `waited_for`.
pub fn review_debtors(
    run: *Run,
    group: *Group,
    epoch: *Epoch,
    now: Instant,
    late: bool,
    waited_for: *Mask,
) void {
    review_reports(run, group, epoch, now, late, waited_for);
    for (epoch.records.items) |known| review_vote(run, group, epoch, known, now, late, waited_for);
}

fn owing(epoch: *const Epoch) Mask {
    if (epoch.running or epoch.recovering) return .empty;
    return epoch.inside().without(&epoch.reported);
}

fn review_reports(
    run: *Run,
    group: *Group,
    epoch: *Epoch,
    now: Instant,
    late: bool,
    waited_for: *Mask,
) void {
    const owe = owing(epoch);
    for (epoch.members, 0..) |*member, rank| {
        const report = &member.report;
        if (!owe.has(rank)) {
            report.since = base.never;
            continue;
        }
        const is_new = report.since == base.never;
        // A member whose messages wait for the disk may not have heard that it must report.
        if (late or is_new or run.holds_up(member.peer.?)) report.since = now;
        if (report.since == now or report.parts != report.parts_seen) report.part_at = now;
        report.parts_seen = report.parts;
        if (now -| report.since < run.options.stall_warning_ns) continue;
        waited_for.set(rank);
        if (member.waited_for) continue;
        member.waited_for = true;
        run.log(.warning, "peer {f} {f}; group {s}", .{
            member.shown(rank),
            Silent{ .epoch = epoch, .waited_ns = now -| report.since },
            group.name,
        });
    }
}

fn review_vote(
    run: *Run,
    group: *Group,
    epoch: *Epoch,
    known: *Record,
    now: Instant,
    late: bool,
    waited_for: *Mask,
) void {
    const vote = &known.vote_owed;
    const needed = epoch.voters(known.id);
    const missing = needed.without(&known.done);
    // The debt lasts until the member votes: in a new attempt all members vote again, and a missing
    // vote says nothing.
    if (vote.rank) |rank| if (known.done.has(rank) or !needed.has(rank)) {
        vote.* = .{};
    };
    const is_alone = missing.count() == 1 and needed.count() > 1;
    if (epoch.running and is_alone and epoch.missing_of(known).is_empty()) {
        const rank = missing.at(0);
        if (vote.rank != rank) vote.* = .{ .rank = rank, .since = now };
    }
    const rank = vote.rank orelse return;
    if (late) vote.since = now;
    if (now -| vote.since < run.options.stall_warning_ns) return;
    waited_for.set(rank);
    const member = &epoch.members[rank];
    if (member.waited_for) return;
    member.waited_for = true;
    run.log(.warning, "peer {f} {f}; group {s}", .{
        member.shown(rank),
        Waits{ .epoch = epoch, .known = known, .waited_ns = now -| vote.since, .lacks = .vote },
        group.name,
    });
}

/// Finds the members of one epoch whose report is overdue. `stall_ns` 0: a member is overdue only
/// if no part of its report comes. A member that is away has the silence limit in addition to
/// `stall_ns`.
pub fn find_overdue(
    run: *const Run,
    group: *const Group,
    now: Instant,
    stall_ns: u64,
    silence_ns: u64,
    overdue: *Overdue,
) bool {
    for (group.epochs.items) |epoch| {
        const owe = owing(epoch);
        overdue.count = 0;
        var waited_ns: u64 = 0;
        for (epoch.members, 0..) |*member, rank| {
            const report = &member.report;
            if (!owe.has(rank) or report.since == base.never) continue;
            const peer = member.peer.?;
            const is_here = peer.is_present(epoch.group);
            const more_ns = if (is_here) 0 else silence_ns;
            const is_stalled = stall_ns > 0 and now -| report.since >= stall_ns +| more_ns;
            const is_mute = is_here and has_left_for(run, peer) and
                now -| report.part_at >= silences_max *| silence_ns;
            if (!is_stalled and !is_mute) continue;
            overdue.add(peer);
            waited_ns = @max(waited_ns, now -| report.since);
        }
        if (overdue.count == 0) continue;
        overdue.say("it {f}", .{Silent{ .epoch = epoch, .waited_ns = waited_ns }});
        return true;
    }
    return false;
}

/// Whether all messages to the peer have gone to its socket.
fn has_left_for(run: *const Run, peer: *const Peer) bool {
    const connection = peer.connection orelse return false;
    return connection.stream.send_slice().len == 0 and !run.holds_up(peer);
}

/// In the log: "has not said what it holds of the calls of epoch 3, for which the others have
/// waited 10 s"
const Silent = struct {
    epoch: *const Epoch,
    waited_ns: u64,

    pub fn format(silent: Silent, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const text = "has not said what it holds of the calls of epoch {d}, for which the " ++
            "others have waited {d} s";
        try writer.print(text, .{ silent.epoch.number, silent.waited_ns / std.time.ns_per_s });
    }
};

// ---- what a debtor waits for itself
//
// A debtor may itself wait, in another operation, which it has called and other members have not.
// Two members that wait for each other in this way have called different operations: with different
// tags, or of states with different names. To refuse one of the two would be wrong, because another
// thread of it may be about to call; so each is told in which operation the other waits, and both
// calls have their deadlines. If a debtor has not entered the epoch, callers are told just that. No
// decision depends on what a debtor waits for.

/// A member counts as waiting in a call after the warning time divided by this number.
pub const counts_part = 10;

/// For each member the operation in which it has waited for the longest time.
pub const Elsewhere = struct {
    epoch: *const Epoch,
    by_rank: [limits.peers_max]?*const Record = @splat(null),

    pub fn of(epoch: *const Epoch, now: Instant, warning_ns: u64) Elsewhere {
        var found: Elsewhere = .{ .epoch = epoch };
        for (epoch.records.items) |known| {
            if (!known.stall.has_waited(now, warning_ns / counts_part)) continue;
            for (0..epoch.members.len) |rank| {
                if (!known.stall.called.has(rank)) continue;
                const other = found.by_rank[rank];
                if (other) |it| if (it.stall.waits_since <= known.stall.waits_since) continue;
                found.by_rank[rank] = known;
            }
        }
        return found;
    }

    /// The operation in which a rank waits; null: the rank is not known to wait.
    pub fn get(elsewhere: *const Elsewhere, rank: usize) ?control.Elsewhere {
        const known = elsewhere.by_rank[rank] orelse return null;
        const missing = elsewhere.epoch.missing_of(known);
        if (missing.is_empty()) return null;
        return .{
            .rank = @intCast(rank),
            .op = known.id,
            .kind = known.descriptor.kind,
            .waits_for = missing.at(0),
            .count = @intCast(missing.count()),
        };
    }

    /// The operations in which the missing ranks wait; at most `elsewhere_told_max` of them.
    pub fn told(elsewhere: *const Elsewhere, missing: *const Mask) Told {
        var list: Told = .{};
        for (0..missing.count()) |index| {
            if (list.count == list.items.len) break;
            list.add(elsewhere.get(missing.at(index)) orelse continue);
        }
        return list;
    }

    /// The wait of a rank in the words of the log: "; it waits in all_reduce (tag 5, sequence 0 of
    /// epoch 1) for rank 0 (7f3a01c2)" or "; it has not entered the epoch, as a member from before
    /// does when its program calls …"
    pub fn words(elsewhere: *const Elsewhere, rank: usize) Words {
        return .{ .elsewhere = elsewhere, .rank = rank };
    }

    const Words = struct {
        elsewhere: *const Elsewhere,
        rank: usize,

        pub fn format(it: Words, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const epoch = it.elsewhere.epoch;
            if (epoch.not_entered().has(it.rank))
                return writer.writeAll("; it has not entered the epoch, as a member from before " ++
                    "does when its program calls admit");
            const waits = it.elsewhere.get(it.rank) orelse return;
            try writer.print("; it waits in {f} for {f}", .{
                it.elsewhere.by_rank[it.rank].?.named(epoch.number),
                epoch.members[waits.waits_for].ranked(waits.waits_for),
            });
            if (waits.count > 1) try writer.print(" and {d} more", .{waits.count - 1});
        }
    };
};

// ---- newcomers that wait
//
// Peers that newcomers wait for. A group without members begins when the users of its newcomers
// have called `admit`; a sub-group begins when all its founders have asked for it. In a group with
// members, newcomers wait while some member has not passed the safe point at which the newest epoch
// begins, as after a loss, or has calls of the epoch before in flight. If an awaited member is
// away, newcomers are told so, because the member may be dead; while a round prepares, newcomers
// are told of every member that is away. The log and the status name the awaited peers, too. No
// decision depends on which peers are awaited.

pub const Why = control.Awaited.Why;

pub const Missing = struct {
    why: Why = .begin,
    items: [limits.peers_max]Item = undefined,
    count: usize = 0,

    pub const Item = struct {
        peer: *const Peer,
        /// The peer's rank; null: the peer is in no epoch.
        rank: ?u16 = null,

        /// Writes the peer as the log shows it.
        pub fn format(item: Item, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const peer = item.peer;
            const rank = item.rank orelse return writer.print("peer {f}", .{peer.named()});
            const ranked: base.Ranked = .{ .rank = rank, .id = peer.id, .label = peer.label };
            try ranked.format(writer);
        }
    };

    fn add(missing: *Missing, item: Item) void {
        missing.items[missing.count] = item;
        missing.count += 1;
    }

    fn add_ranks(missing: *Missing, why: Why, epoch: *const Epoch, ranks: *const base.Mask) void {
        missing.why = why;
        for (epoch.members, 0..) |*member, rank| if (ranks.has(rank)) {
            if (member.peer) |peer| missing.add(.{ .peer = peer, .rank = @intCast(rank) });
        };
    }

    /// Adds the members of `ranks` that are away, or all of `ranks` if none is: a member that is
    /// away must come back before it can do anything else, and may be dead.
    fn add_held_up(missing: *Missing, why: Why, epoch: *const Epoch, ranks: *const base.Mask) void {
        const absent = ranks.intersect(&away(epoch));
        if (absent.is_empty())
            missing.add_ranks(why, epoch, ranks)
        else
            missing.add_ranks(.away, epoch, &absent);
    }

    pub fn slice(missing: *const Missing) []const Item {
        return missing.items[0..missing.count];
    }
};

/// Finds the peers that newcomers wait for; none if there are no newcomers.
pub fn find_awaited(run: *const Run, group: *const Group, missing: *Missing) void {
    missing.count = 0;
    if (group.newcomers.items.len == 0) return;
    if (group.current()) |epoch| if (!epoch.alive.is_empty()) {
        if (group.phase == .activate)
            missing.add_held_up(.safe_point, epoch, &epoch.not_entered())
        else if (group.epochs.items.len > 1)
            missing.add_held_up(.in_flight, group.epochs.items[0], &group.epochs.items[0].inside())
        else if (group.phase == .prepare)
            missing.add_ranks(.away, epoch, &away(epoch));
        return;
    };
    if (group.founding) |*founding| {
        const awaited = founding.awaited(group.newcomers.items);
        missing.why = .founders;
        for (founding.members, 0..) |id, place| if (awaited.has(place)) {
            if (run.peer_of(id)) |peer| missing.add(.{ .peer = peer });
        };
        if (missing.count > 0) return;
    }
    missing.why = .begin;
    var waits = false;
    for (group.newcomers.items) |*newcomer| {
        waits = waits or newcomer.wants;
        if (newcomer.was_ready and !newcomer.wants) missing.add(.{ .peer = newcomer.peer });
    }
    if (!waits) missing.count = 0;
}

fn away(epoch: *const Epoch) base.Mask {
    var found: base.Mask = .empty;
    for (epoch.members, 0..) |*member, rank| if (member.peer) |peer| {
        if (peer.connection == null) found.set(rank);
    };
    return found;
}

/// Tells a newcomer that could not dial a member that the member is away. The newcomer is told at
/// once, because its user would look for the reason in the network.
pub fn tell_of_away(run: *Run, group: *const Group, newcomer: *Peer) void {
    var missing: Missing = .{};
    find_awaited(run, group, &missing);
    if (missing.count == 0 or missing.why != .away) return;
    var entries: Entries = undefined;
    run.send(newcomer, group.id, awaited_message(group, &missing, &entries));
}

/// At a tick: tells newcomers which peers they wait for, and warns in the log. `late`: the
/// coordinator was frozen, so the wait is counted from now.
pub fn review_awaited(run: *Run, group: *Group, now: Instant, late: bool) void {
    const it = &group.awaited;
    var missing: Missing = .{};
    find_awaited(run, group, &missing);
    if (missing.count == 0) {
        it.* = .{};
        return;
    }
    if (late or it.since == base.never) it.since = now;
    const warning_ns = run.options.stall_warning_ns;
    const told_ns = limits.wait_told_ns(warning_ns);
    const waited_ns = now -| it.since;
    if (waited_ns < told_ns or now -| it.told_at < told_ns) return;
    it.told_at = now;
    tell_newcomers(run, group, &missing);
    if (waited_ns < warning_ns or it.is_logged) return;
    it.is_logged = true;
    run.log(.warning, "newcomers have waited {d} s for {f} to {s}{s}; group {s}", .{
        waited_ns / std.time.ns_per_s,
        missing.items[0],
        what(missing.why),
        if (missing.count > 1) ", and for others" else "",
        group.name,
    });
}

fn what(why: Why) []const u8 {
    return switch (why) {
        .begin => "call admit",
        .safe_point => "pass its next safe point (admit)",
        .in_flight => "finish its calls of the epoch before",
        .founders => "ask for the group, of which it is a founder",
        .away => "come back, or to be lost",
    };
}

/// Tells newcomers which peers they wait for. If the users of other newcomers have not called
/// `admit`, only newcomers whose users have called it are told.
fn tell_newcomers(run: *Run, group: *Group, missing: *const Missing) void {
    var entries: Entries = undefined;
    for (group.newcomers.items) |*newcomer| {
        if (missing.why == .begin and !newcomer.wants) continue;
        run.send(newcomer.peer, group.id, awaited_message(group, missing, &entries));
    }
}

const Entries = [limits.awaited_told_max]control.AwaitedEntry;

fn awaited_message(
    group: *const Group,
    missing: *const Missing,
    entries: *Entries,
) control.Message {
    const shown = @min(missing.count, entries.len);
    for (missing.items[0..shown], entries[0..shown]) |*item, *entry| entry.* = .{
        .id = item.peer.id,
        .label = .of(item.peer.label.slice()),
        .rank = item.rank orelse limits.peers_max,
    };
    return .{ .awaited = .{
        .group = group.id,
        .why = missing.why,
        .count = @intCast(missing.count),
        .peers = .of(entries[0..shown]),
    } };
}

// ---- groups that have too few peers
//
// A group without members begins when enough peers have come. While too few have come, these peers
// are told their number, and the log and the status show it.

pub const Attendance = struct {
    here: u32,
    needed: u32,
    /// The group has had members, and all of them are gone.
    emptied: bool,
};

/// How many peers of a group have come, and how many it needs to begin; null: none or enough have
/// come. A group with members needs no more peers.
pub fn attendance_of(run: *const Run, group: *const Group) ?Attendance {
    if (group.founding != null) return null; // a sub-group waits for its founders by name
    const needed = group.least();
    var here: usize = group.newcomers.items.len;
    // Peers that are still looked for at their addresses count, too (door.zig).
    for (run.peers.items) |peer| for (peer.claim.waiting.items) |*item| {
        here += @intFromBool(item.group == group.id);
    };
    if (here == 0 or here >= needed) return null;
    return .{ .here = @intCast(here), .needed = needed, .emptied = group.had_members };
}

/// The time at which the log warns that the peers of a group have waited long; `never`: no warning
/// is due.
pub fn next_deadline(run: *const Run, group: *const Group) base.Instant {
    const said = &group.attendance_said;
    if (said.here == 0 or said.waits) return base.never;
    return said.since +| run.options.stall_warning_ns;
}

/// At a tick: tells newcomers how many peers have come, and logs the number. Peers that come
/// between two ticks share one line of the log.
pub fn review_attendance(run: *Run, group: *Group, now: base.Instant) void {
    const said = &group.attendance_said;
    const count = attendance_of(run, group) orelse {
        said.* = .{};
        return;
    };
    for (group.newcomers.items) |*newcomer| {
        if (newcomer.here_told == count.here) continue;
        newcomer.here_told = count.here;
        run.send(newcomer.peer, group.id, .{ .waiting = .{
            .group = group.id,
            .here = count.here,
            .needed = count.needed,
            .emptied = count.emptied,
        } });
    }
    const emptied = if (count.emptied) "; all that were in it are gone" else "";
    if (said.here != count.here) {
        said.* = .{ .here = count.here, .since = now };
        run.log(.info, "{d} of {d} peers are here{s}; group {s}", .{
            count.here,
            count.needed,
            emptied,
            group.name,
        });
    }
    if (now < next_deadline(run, group)) return;
    said.waits = true;
    run.log(.warning, "only {d} of {d} peers are here after {d} s, and the " ++
        "others may have ended{s}; group {s}", .{
        count.here,
        count.needed,
        (now -| said.since) / std.time.ns_per_s,
        emptied,
        group.name,
    });
}

// ---- members that have not entered
//
// Members that have not passed the safe point at which their epoch begins. A member passes that
// safe point when its user calls `admit`, so a member that has entered may be alone for a while.
// All members are told which members are missing: at ticks, and at once when the last member from
// the epoch before has entered, because newcomers may wait for that (member.zig). If the epoch only
// closes the gap of a loss, members are also told how many newcomers wait outside: a program that
// passes safe points only for newcomers must pass this safe point, too. No decision depends on
// which members have been named as missing.

/// At a tick: tells members which members have not entered the epoch. `outside`: the number of
/// newcomers, which are in no epoch.
pub fn review_entering(run: *Run, epoch: *Epoch, outside: usize) void {
    const missing = epoch.not_entered();
    const closes_a_gap = epoch.began.joined == 0 and !missing.is_empty();
    epoch.waiting = if (closes_a_gap) @min(outside, base.limits.peers_max) else 0;
    tell_all(run, epoch, missing);
}

fn tell_all(run: *Run, epoch: *Epoch, missing: base.Mask) void {
    if (missing.eql(&epoch.missing_told) and epoch.waiting == epoch.waiting_told) return;
    epoch.missing_told = missing;
    epoch.waiting_told = epoch.waiting;
    run.broadcast(epoch, entered_message(epoch, missing));
}

/// A member has entered the epoch: tells all members, if it was the last to enter or the last from
/// the epoch before.
pub fn entered(run: *Run, epoch: *Epoch, rank: u16) void {
    const missing = epoch.not_entered();
    const newcomers_begin = epoch.members.len - epoch.began.joined;
    const is_last = rank < newcomers_begin and !missing.meets(&.full(newcomers_begin));
    if (is_last or missing.is_empty()) tell_all(run, epoch, missing);
}

/// Tells a member that has come back which members have not entered the epoch.
pub fn tell_entering(run: *Run, epoch: *Epoch, rank: u16) void {
    const peer = epoch.members[rank].peer orelse return;
    run.send(peer, epoch.group, entered_message(epoch, epoch.not_entered()));
}

fn entered_message(epoch: *const Epoch, missing: base.Mask) wire.control.Message {
    return .{ .entered = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .missing = missing,
        .waiting = epoch.waiting,
    } };
}
