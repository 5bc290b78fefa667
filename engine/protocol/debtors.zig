//! debtors: members that owe what is not a call of their users (owed.zig). A debtor is named like a
//! member whose call is missing (stalls.zig).
//!
//! A report is the engine's own step, so a member that is heard and gives none is broken or
//! hostile. It is let go when the run says so. It is let go in any case when no part of its report
//! has come for twelve times the silence limit after all messages to it had left. If only a vote is
//! missing, the member's neighbours may be to blame, by not sending the data that they have; so the
//! debtor is named, and nobody is let go for it.

const std = @import("std");
const base = @import("base");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Overdue = @import("overdue.zig").Overdue;
const Peer = @import("peer.zig").Peer;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Waits = @import("waits.zig").Waits;
const Instant = base.Instant;
const Mask = base.Mask;

/// How long nothing of a report may come, in silence limits: the report of much that is in flight
/// takes its time on a thin link, and so does what the member is told before it.
const silences_max = 12;

/// At a tick. Adds to `waited_for` whom the others wait for.
pub fn review(
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
        // One that waits for the disk may not have heard that it is asked.
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
    // In a new attempt all vote again, so that says nothing.
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

/// Members of one epoch whose report has been waited for too long. `stall_ns`: 0 if the run lets
/// nobody go for that; one that is away has the silence limit besides, because it may come back.
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

/// All that it was told has gone to the socket.
fn has_left_for(run: *const Run, peer: *const Peer) bool {
    const connection = peer.connection orelse return false;
    return connection.stream.send_slice().len == 0 and !run.holds_up(peer);
}

/// "has not said what it holds of the calls of epoch 3, for which the others have waited 10 s"
const Silent = struct {
    epoch: *const Epoch,
    waited_ns: u64,

    pub fn format(silent: Silent, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const text = "has not said what it holds of the calls of epoch {d}, for which the " ++
            "others have waited {d} s";
        try writer.print(text, .{ silent.epoch.number, silent.waited_ns / std.time.ns_per_s });
    }
};
