//! stalls: operations that over half of the members have called, and some have not. The coordinator
//! finds the missing members, tells the others, the log and the status, and lets the missing go if
//! the run says so. Its evidence is a vote, an offer, a report, or `called`, which members say of
//! operations that take long (stall.zig). It blames no member that has called, however slow it is,
//! and takes only the member's own word that it has. The member's half: member.zig. Debts that are
//! not calls of users: debtors.zig. A call that a member can make no more, because it has left the
//! epoch, is aborted here, too. Where all have called, and links move nothing of the operation, the
//! coordinator names the links, by the word of the members at their ends (session/waits.zig), and
//! blames nobody.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const calls = @import("calls.zig");
const debtors = @import("debtors.zig");
const decisions = @import("decisions.zig");
const waits = @import("waits.zig");
const Elsewhere = @import("elsewhere.zig").Elsewhere;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Overdue = @import("overdue.zig").Overdue;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Told = @import("told_elsewhere.zig").Told;
const Waits = @import("waits.zig").Waits;
const Instant = base.Instant;
const Mask = base.Mask;
const control = wire.control;

/// The line is written again when the missing peers wait in something else than before, at most
/// twice in a warning time: they may change that as often as they like.
const again_part = 2;

/// Calls whose deadline is near are looked at after this part of the time that is left, together
/// with those that come meanwhile; and no sooner than after this time.
const looks_per_rest = 8;
const look_ns_min = 10 * std.time.ns_per_ms;

/// Over half have called, or one of the two of a message: what fewer wait for may be nobody's.
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
    // The report says it of a passed attempt, too.
    if (message.attempt < epoch.attempt or !epoch.running) return;
    if (epoch.is_decided(message.op)) return;
    const known = try calls.record_of(run, epoch, message.op, &message.descriptor, rank) orelse
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

/// A member says with which others nothing of the operation moves; nobody: something does again.
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

/// At a tick: calls that a member has left behind unmade can come to nothing. An abort counts
/// against the first that has called.
pub fn end_passed(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (!epoch.running or epoch.closed.is_empty()) return;
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        const passed = epoch.missing_of(known).intersect(&epoch.closed);
        if (passed.is_empty()) continue;
        if (epoch.members[known.from].caused >= base.limits.decisions_kept_max) continue;
        try decisions.abort(run, epoch, known.id, .{
            .reason = .passed,
            .peer = epoch.members[passed.at(0)].id,
            .other = epoch.members[known.from].id,
        }, known.from);
    }
}

/// At a tick. `late`: the coordinator was frozen, and judges nobody by the time that passed.
pub fn review(run: *Run, group: *Group, epoch: *Epoch, now: Instant, late: bool) void {
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
            if (is_asked) waits.ask(run, epoch, known, &missing);
            const is_long = is_due or stall.has_waited(now, told_ns);
            if (is_long and !stall.is_long) stall.told = .empty; // for their logs
            stall.is_long = is_long;
            const named: *const Mask = if (is_long or is_urgent) &missing else &.empty;
            const why = if (missing.is_empty()) stall.stuck else elsewhere.told(named);
            tell(run, epoch, known, named, &why, now);
            if (missing.is_empty()) warn_of_links(run, group, epoch, known, now);
        }
        if (!is_due) continue;
        warn(run, group, known, &missing, &elsewhere, now);
        waited_for.merge(&missing);
    }
    debtors.review(run, group, epoch, now, late, &waited_for);
    for (epoch.members, 0..) |*member, rank| {
        if (!member.waited_for or waited_for.has(rank)) continue;
        member.waited_for = false;
        // The loss of a member has a line of its own.
        if (epoch.alive.has(rank)) run.log(
            .warning,
            "peer {f} of epoch {d} is not waited for any more; group {s}",
            .{ member.shown(rank), epoch.number, group.name },
        );
    }
}

/// Those who have called it learn whom they wait for, and what those wait in.
fn tell(
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
    waits.send(run, epoch, known, &known.stall.called, missing, why.slice());
}

/// All have called it, and links move nothing of it: a line for each link, when it is news, and at
/// most twice in a warning time: many operations may stand on one link, and members may say so as
/// often as they like.
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

/// A line for each member, not for each operation: who calls many must not push other lines out of
/// the log.
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

/// Those without whom an operation has stood still for `stall_ns`, if over half of all members say
/// so: of a message, or in a group of two, it is one against one. One operation at a time: what
/// others wait for may come once these are gone, so their time begins again.
pub fn find_overdue(group: *const Group, now: Instant, stall_ns: u64, overdue: *Overdue) bool {
    for (group.epochs.items) |epoch| {
        if (!epoch.running) continue; // some may be about to report that they have called
        for (epoch.records.items) |known| {
            if (now -| known.stall.since < stall_ns) continue;
            const missing = epoch.missing_of(known);
            const callers = epoch.alive.intersect(&known.stall.called).count();
            if (missing.is_empty() or 2 * callers <= epoch.alive.count()) continue;
            take(epoch, known, &missing, now, overdue);
            if (overdue.count == 0) continue;
            for (epoch.records.items) |other| {
                if (other.stall.since != base.never) other.stall.since = now;
            }
            return true;
        }
    }
    return false;
}

/// A member that is away cannot say that it has called; that it is away has a limit of its own.
fn take(
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
