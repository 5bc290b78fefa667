//! owed: the debts of members that are not calls of their users: the report after a view, and the
//! vote for an operation that all others have voted for. A debtor is named like a member whose call
//! is missing (stall.zig).
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
const Overdue = @import("stall.zig").Overdue;
const Peer = @import("coordinator.zig").Peer;
const Record = @import("epoch.zig").Record;
const Waits = @import("stall.zig").Waits;
const missing_of = @import("stall.zig").missing_of;
const Instant = base.Instant;
const Mask = base.Mask;

/// How long nothing of a report may come, in silence limits: the report of much that is in flight
/// takes its time on a thin link, and so does what the member is told before it.
const silences_max = 12;

/// The report of one member.
pub const Report = struct {
    /// Since when it is waited for, whatever the attempt; `never` while it is not.
    since: Instant = base.never,
    /// When the last new part of it was there, as far as a tick has seen.
    part_at: Instant = 0,
    parts: u32 = 0,
    parts_seen: u32 = 0,
    /// The last attempt that it has reported in, or that it need not have.
    attempt: u32 = 0,

    /// All of it is here, perhaps for an attempt that has passed meanwhile: then it is on its way,
    /// because others came back or went.
    pub fn ended(report: *Report, attempt: u32, newest: u32) void {
        if (attempt <= report.attempt or attempt > newest) return;
        report.attempt = attempt;
        report.since = base.never;
    }

    /// It has another connection, on which it was asked nothing yet: its time goes on.
    pub fn asked_anew(report: *Report, newest: u32) void {
        report.attempt = @max(report.attempt, newest);
    }
};

/// The vote that alone is missing.
pub const Vote = struct {
    rank: ?u16 = null,
    since: Instant = base.never,
};

/// At a tick. Adds to `waited_for` whom the others wait for.
pub fn review(
    group: *Group,
    epoch: *Epoch,
    now: Instant,
    late: bool,
    waited_for: *Mask,
) void {
    review_reports(group, epoch, now, late, waited_for);
    for (epoch.records.items) |known| review_vote(group, epoch, known, now, late, waited_for);
}

fn owing(epoch: *const Epoch) Mask {
    if (epoch.running or epoch.recovering) return .empty;
    return epoch.inside().without(&epoch.reported);
}

fn review_reports(
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
        if (late or is_new or member.peer.?.waits_for_disk()) report.since = now;
        if (report.since == now or report.parts != report.parts_seen) report.part_at = now;
        report.parts_seen = report.parts;
        if (now -| report.since < group.coordinator.options.stall_warning_ns) continue;
        waited_for.set(rank);
        if (member.waited_for) continue;
        member.waited_for = true;
        group.coordinator.log(.warning, "peer {f} {f}; group {s}", .{
            member.shown(rank),
            Silent{ .epoch = epoch, .waited_ns = now -| report.since },
            group.name,
        });
    }
}

fn review_vote(
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
    if (epoch.running and is_alone and missing_of(epoch, known).is_empty()) {
        const rank = missing.at(0);
        if (vote.rank != rank) vote.* = .{ .rank = rank, .since = now };
    }
    const rank = vote.rank orelse return;
    if (late) vote.since = now;
    if (now -| vote.since < group.coordinator.options.stall_warning_ns) return;
    waited_for.set(rank);
    const member = &epoch.members[rank];
    if (member.waited_for) return;
    member.waited_for = true;
    group.coordinator.log(.warning, "peer {f} {f}; group {s}", .{
        member.shown(rank),
        Waits{ .epoch = epoch, .known = known, .waited_ns = now -| vote.since, .lacks = .vote },
        group.name,
    });
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

/// Members of one epoch whose report has been waited for too long. `stall_ns`: 0 if the run lets
/// nobody go for that; one that is away has the silence limit besides, because it may come back.
pub fn find_overdue(
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
            const is_mute = is_here and has_left_for(peer) and
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
fn has_left_for(peer: *const Peer) bool {
    const connection = peer.connection orelse return false;
    return connection.stream.send_slice().len == 0 and !peer.waits_for_disk();
}
