//! Misfit: a newcomer whose first call of a tag differs from that of the members that were there
//! before it, or whose shared state does not fit theirs. It alone is refused and told both calls;
//! the others go on as after a death. If the members from before differ among themselves, or there
//! are none, the operation is aborted for all (calls.zig).
//!
//! The evidence is each member's own word about its call. When some member sees a call that is not
//! its own, all are asked for theirs (waits.zig). A newcomer is refused when all members from
//! before have named the same call, and the newcomer another. So a member that lies about a
//! newcomer has it refused only where no other member was there before. A message belongs to two
//! members alone: nobody is refused for one. Only its two ranks know a shard of an uneven
//! all_to_all, so the word of one is enough there: a newcomer is refused when it and a member
//! disagree, whichever of them says so.
//!
//! The rules of a shared state may also have members from before refused, at any of its syncs
//! (election.zig).
//!
//! A newcomer may make its first call on a tag, or of a shared state, that nobody else uses. It is
//! refused, too, when all members from before have waited for it in their first call elsewhere, and
//! it in its own, for the time of the stall warning.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const decisions = @import("decisions.zig");
const waits = @import("waits.zig");
const Election = @import("election.zig").Election;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Overdue = @import("overdue.zig").Overdue;
const ProtocolError = @import("peer.zig").ProtocolError;
const Record = @import("record.zig").Record;
const Run = @import("run.zig").Run;
const Verdict = @import("record.zig").Verdict;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Mask = base.Mask;
const control = wire.control;
const Descriptor = control.Descriptor;
const Described = wire.Described(Epoch.Names);

pub fn is_newcomer(epoch: *const Epoch, rank: usize) bool {
    return rank >= epoch.members.len - epoch.began.joined;
}

/// Those who are alive and were there before the newcomers of this epoch.
fn elders(epoch: *const Epoch) Mask {
    const before: Mask = .full(epoch.members.len - epoch.began.joined);
    return epoch.alive.intersect(&before);
}

/// Whether a newcomer can be refused for this operation.
pub fn may_be(epoch: *const Epoch, id: control.OpId) bool {
    if (id.sequence != 0 or base.Pair.of(id.tag) != null) return false;
    return !elders(epoch).is_empty();
}

// ---- calls

/// A member says what it has called. `contradicts`: there is nobody to refuse.
pub fn hear(
    run: *Run,
    epoch: *Epoch,
    known: *Record,
    descriptor: *const Descriptor,
    rank: u16,
) ProtocolError!enum { fits, misfit, contradicts } {
    const misfits = &known.misfits;
    if (misfits.of(rank)) |said| // nobody calls one thing twice
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
    open(run, epoch, known);
    return if (misfits.of(rank) == null) .fits else .misfit;
}

/// Only newcomers have spoken so far, and the first of the others calls something else. Their votes
/// and reports are of no use: one of them will be refused, and all begin anew.
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

/// All say what they have called: at once, or as soon as they have.
pub fn open(run: *Run, epoch: *Epoch, known: *Record) void {
    known.misfits.is_open = true;
    if (epoch.running) waits.ask(run, epoch, known, &epoch.missing_of(known));
}

/// At a tick.
pub fn review(run: *Run, epoch: *Epoch) ProtocolError!void {
    if (!epoch.running) return;
    var index = epoch.records.items.len;
    while (index > 0) {
        index -= 1;
        const known = epoch.records.items[index];
        if (!known.misfits.is_open) continue;
        forget_lost(epoch, known);
        // Nobody is left whose word would count for more.
        const verdict = if (elders(epoch).is_empty()) contradiction(epoch, known) else null;
        if (verdict) |it|
            try decisions.abort(run, epoch, known.id, it, null)
        else
            open(run, epoch, known);
    }
}

/// Null: nobody has called anything else.
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

/// Whether anybody is left who has called what the record says. If not, those who are left and have
/// called something else, and may have voted for it, say so in their reports.
pub fn is_called(epoch: *const Epoch, known: *const Record) bool {
    const inside = epoch.inside();
    var callers = inside.intersect(&known.stall.called);
    for (known.misfits.said.items) |*said| callers.unset(said.rank);
    return !callers.is_empty();
}

/// Whether this member is to start an operation from nothing in the next attempt, because what
/// others keep is of another call.
pub fn is_one(known: *const Record, rank: u16) bool {
    return known.misfits.of(rank) != null;
}

// ---- shared states

/// Two members contradict each other about a shared state. The second is refused if it is a
/// newcomer or the state's rules say so, with those who hold the same structure; where it is not
/// about structures, also if the first is a newcomer, too.
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

/// Newcomers that wait in a call that no member makes, while all members wait for theirs.
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
        // It may have called meanwhile, and cannot be heard.
        if (now -| peer.last_heard > 2 *| run.options.heartbeat_ns) continue;
        overdue.add(peer);
        overdue.say("it waits in {f}, which no member has called, and the members have waited " ++
            "{d} s for its {f}", .{
            Call{ .record = own },
            (now -| known.stall.called_at) / std.time.ns_per_s,
            Call{ .record = known },
        });
        return; // what the next one waits in may be another call
    }
}

/// The first call of a newcomer, which has waited in it for others as long as they for it.
fn lonely_call(epoch: *const Epoch, rank: u16, now: Instant, warning_ns: u64) ?*const Record {
    if (epoch.fitted.has(rank)) return null;
    const before = elders(epoch);
    var own: ?*const Record = null;
    for (epoch.records.items) |record| {
        const called = &record.stall.called;
        if (!called.has(rank)) continue;
        if (called.meets(&before)) return null; // it has a call in common with them
        if (may_be(epoch, record.id)) own = record;
    }
    const record = own orelse return null;
    return if (record.stall.all_have_waited(now, warning_ns)) record else null;
}

/// "all_reduce (tag 5)"
const Call = struct {
    record: *const Record,

    pub fn format(call: Call, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const kind = call.record.descriptor.kind;
        // The tag of a sync says nothing to a person: it follows from the name of the state.
        if (kind == .sync) return writer.print("sync of \"{s}\"", .{call.record.state()});
        try writer.print("{t} (tag {d})", .{ kind, call.record.id.tag });
    }
};

// ---- letting go

/// Members that must leave, and why: of one operation, those who have called the same.
pub fn find(group: *const Group, overdue: *Overdue) bool {
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

/// A newcomer whose shards do not fit those of a member, if both are still there.
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
