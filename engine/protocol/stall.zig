//! Stall: operations that over half of the members have called, and some have not. The coordinator
//! finds the missing members, tells the others, the log and the status, and lets the missing go if
//! the run says so. Its evidence is a vote, an offer, a report, or `called`, which members say of
//! operations that take long. It blames no member that has called, however slow it is, and takes
//! only the member's own word that it has. The member's half: member.zig. Debts that are not calls
//! of users: owed.zig. A call that a member can make no more, because it has left the epoch, is
//! aborted here, too.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Elsewhere = @import("elsewhere.zig").Elsewhere;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const owed = @import("owed.zig");
const Peer = @import("coordinator.zig").Peer;
const Told = @import("elsewhere.zig").Told;
const ProtocolError = @import("epoch.zig").ProtocolError;
const Record = @import("epoch.zig").Record;
const Instant = base.Instant;
const Mask = base.Mask;
const Pair = base.Pair;
const control = wire.control;

/// The calls of one operation.
pub const Stall = struct {
    /// They have said that they have called it, whatever the attempt.
    called: Mask = .empty,
    /// Since when it stands still; `never` while it does not.
    since: Instant = base.never,
    /// Since when anybody is known to wait for the call of another one; `never` while nobody is.
    waits_since: Instant = base.never,
    /// How many have called it, and when the last of them had.
    callers: u32 = 0,
    called_at: Instant = base.never,
    /// The first deadline of those that are near; `never` while none is.
    until: Instant = base.never,
    /// In the current attempt: those who were told that others wait for their call.
    asked: Mask = .empty,
    /// In the current attempt: whom the callers were told that they wait for.
    told: Mask = .empty,
    /// They have waited for so long that their logs say it, too.
    is_long: bool = false,
    /// The operations that they were told those wait in themselves, and when.
    told_elsewhere: Told = .{},
    told_at: Instant = 0,

    fn note_wait(
        stall: *Stall,
        needed: *const Mask,
        missing: *const Mask,
        now: Instant,
        late: bool,
    ) void {
        const waits = !missing.is_empty() and !missing.covers(needed);
        if (!waits) stall.waits_since = base.never //
        else if (late or stall.waits_since == base.never) stall.waits_since = now;
        const callers = stall.called.count();
        if (!late and callers == stall.callers) return;
        stall.callers = callers;
        stall.called_at = now;
    }

    /// Somebody's call ends before those who wait are told as a rule.
    fn is_urgent(stall: *const Stall, now: Instant) bool {
        return stall.until != base.never and now < stall.until;
    }

    pub fn has_waited(stall: *const Stall, now: Instant, for_ns: u64) bool {
        return stall.waits_since != base.never and now -| stall.waits_since >= for_ns;
    }

    /// The same of each of those who have called it.
    pub fn all_have_waited(stall: *const Stall, now: Instant, for_ns: u64) bool {
        return stall.has_waited(now, for_ns) and now -| stall.called_at >= for_ns;
    }

    /// All say anew what they have called, so they are told anew.
    pub fn begin_attempt(stall: *Stall) void {
        stall.asked = .empty;
        stall.told = .empty;
    }
};

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

/// Those who have a part in an operation, are alive, and have not called it.
pub fn missing_of(epoch: *const Epoch, known: *const Record) Mask {
    return epoch.voters(known.id).without(&known.stall.called);
}

pub fn on_called(
    epoch: *Epoch,
    now: Instant,
    rank: u16,
    message: *const control.Called,
) ProtocolError!void {
    if (message.attempt > epoch.attempt) return error.Unexpected;
    // The report says it of a passed attempt, too.
    if (message.attempt < epoch.attempt or !epoch.running) return;
    if (epoch.is_decided(message.op)) return;
    const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
    const stall = &known.stall;
    const is_news = !stall.called.has(rank);
    stall.called.set(rank);
    const until = now +| message.left_ns;
    const is_sooner = until < stall.until;
    stall.until = @min(stall.until, until);
    if (!stall.is_urgent(now) or !(is_news or is_sooner)) return;
    const soon_ns = @max((stall.until - now) / looks_per_rest, look_ns_min);
    epoch.stall_at = @min(epoch.stall_at, now +| soon_ns);
}

/// At a tick: calls that a member has left behind unmade can come to nothing. An abort counts
/// against the first that has called.
pub fn end_passed(epoch: *Epoch) ProtocolError!void {
    if (!epoch.running or epoch.closed.is_empty()) return;
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        const passed = missing_of(epoch, known).intersect(&epoch.closed);
        if (passed.is_empty()) continue;
        if (epoch.members[known.from].caused >= base.limits.decisions_kept_max) continue;
        try epoch.abort(known.id, .{
            .reason = .passed,
            .peer = epoch.members[passed.at(0)].id,
            .other = epoch.members[known.from].id,
        }, known.from);
    }
}

/// At a tick. `late`: the coordinator was frozen, and judges nobody by the time that passed.
pub fn review(group: *Group, epoch: *Epoch, now: Instant, late: bool) void {
    const warning_ns = group.coordinator.options.stall_warning_ns;
    const told_ns = base.limits.wait_told_ns(warning_ns);
    var waited_for: Mask = .empty;
    epoch.stall_at = base.never;
    const elsewhere: Elsewhere = .of(epoch, now, warning_ns);
    for (epoch.records.items) |known| {
        const stall = &known.stall;
        const needed = epoch.voters(known.id);
        const missing = missing_of(epoch, known);
        if (!stands_still(needed.count(), missing.count())) {
            stall.since = base.never;
        } else if (late or stall.since == base.never) stall.since = now;
        const is_due = now -| stall.since >= warning_ns;
        stall.note_wait(&needed, &missing, now, late);
        if (epoch.running) {
            const is_urgent = !late and stall.is_urgent(now);
            const has_stalled = stall.since != base.never or stall.has_waited(now, told_ns / 2);
            const is_asked = has_stalled or is_urgent;
            if (is_asked) ask(epoch, known, &missing);
            const is_long = is_due or stall.has_waited(now, told_ns);
            if (is_long and !stall.is_long) stall.told = .empty; // for their logs
            stall.is_long = is_long;
            const named: *const Mask = if (is_long or is_urgent) &missing else &.empty;
            tell(epoch, known, named, &elsewhere, now, warning_ns);
        }
        if (!is_due) continue;
        warn(group, known, &missing, &elsewhere, now);
        waited_for.merge(&missing);
    }
    owed.review(group, epoch, now, late, &waited_for);
    for (epoch.members, 0..) |*member, rank| {
        if (!member.waited_for or waited_for.has(rank)) continue;
        member.waited_for = false;
        // That it is lost is a line of its own.
        if (epoch.alive.has(rank)) group.coordinator.log(
            .warning,
            "peer {f} of epoch {d} is not waited for any more; group {s}",
            .{ member.shown(rank), epoch.number, group.name },
        );
    }
}

/// Whoever has called it answers at once, and another one as soon as it calls.
pub fn ask(epoch: *Epoch, known: *Record, missing: *const Mask) void {
    const asked = missing.without(&known.stall.asked);
    if (asked.is_empty()) return;
    known.stall.asked.merge(&asked);
    send(epoch, known, &asked, missing, &.{});
}

/// Those who have called it learn whom they wait for, and what those wait in.
fn tell(
    epoch: *Epoch,
    known: *Record,
    missing: *const Mask,
    elsewhere: *const Elsewhere,
    now: Instant,
    warning_ns: u64,
) void {
    const told = elsewhere.told(missing);
    if (known.stall.told.eql(missing)) {
        if (known.stall.told_elsewhere.eql(&told)) return;
        if (now -| known.stall.told_at < warning_ns / again_part) return;
    }
    known.stall.told = missing.*;
    known.stall.told_elsewhere = told;
    known.stall.told_at = now;
    send(epoch, known, &known.stall.called, missing, told.slice());
}

fn send(
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
        if (member.peer) |peer| peer.send(epoch.group, message);
    }
}

/// A line for each member, not for each operation: who calls many must not push other lines out of
/// the log.
fn warn(
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
        group.coordinator.log(.warning, "peer {f} {f}{f}; group {s}", .{
            member.shown(rank),
            Waits{ .epoch = epoch, .known = known, .waited_ns = now -| known.stall.since },
            elsewhere.words(rank),
            group.name,
        });
    }
}

/// "has not called all_reduce (tag 0, sequence 12 of epoch 3), for which 2 of 3 have waited 10 s"
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
            .call => missing_of(waits.epoch, known),
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
        // The tag of a sync says nothing to a person.
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

// ---- letting go

/// Members that must leave a group, and why.
pub const Overdue = struct {
    peers: [base.limits.peers_max]*Peer = undefined,
    count: usize = 0,
    why_storage: [why_bytes_max]u8 = undefined,
    why_length: usize = 0,
    /// The call that they should have made, where that is why, and who has made it.
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

/// Those without whom an operation has stood still for `stall_ns`, if over half of all members say
/// so: of a message, or in a group of two, it is one against one. One operation at a time: what
/// others wait for may come once these are gone, so their time begins again.
pub fn find_overdue(group: *const Group, now: Instant, stall_ns: u64, overdue: *Overdue) bool {
    for (group.epochs.items) |epoch| {
        if (!epoch.running) continue; // some may be about to report that they have called
        for (epoch.records.items) |known| {
            if (now -| known.stall.since < stall_ns) continue;
            const missing = missing_of(epoch, known);
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
