//! tick: what time brings. The coordinator notices silence, lets go those who owe something for too
//! long, draws the consequences of broken links, and moves each group on. It judges nobody by a
//! time in which it was frozen itself, or heard nobody at all.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const attendance = @import("attendance.zig");
const awaited = @import("awaited.zig");
const debtors = @import("debtors.zig");
const decisions = @import("decisions.zig");
const detours = @import("detours.zig");
const entering = @import("entering.zig");
const finding = @import("finding.zig");
const groups = @import("groups.zig");
const hearing = @import("hearing.zig");
const joining = @import("joining.zig");
const journaling = @import("journaling.zig");
const losses = @import("losses.zig");
const measured = @import("measured.zig");
const misfit = @import("misfit.zig");
const post = @import("post.zig");
const probes = @import("probes.zig");
const rounds = @import("rounds.zig");
const stalls = @import("stalls.zig");
const Group = @import("group.zig").Group;
const Overdue = @import("overdue.zig").Overdue;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// A connection that a peer tries to make is tried again by its kernel after 2 s at most, and
/// by itself soon after that.
const dial_repeat_ns = 3 * std.time.ns_per_s;

/// Not inlined, and rare: its frame is large.
pub noinline fn tick(run: *Run, now: Instant) void {
    if (run.started_at == 0) run.started_at = now;
    const since = run.last_tick;
    journaling.tend(run, now);
    // A loop that was late by more than a heartbeat was frozen: it has heard nobody, so it
    // judges nobody. Nor does one that hears nobody at all: its own network may be gone.
    const frozen = run.last_tick != 0 and now -| run.last_tick > 2 *| run.options.heartbeat_ns;
    const deaf = hears_nobody(run, now);
    const late = frozen or deaf;
    run.last_tick = now;
    run.due_at = base.never;
    hearing.resume_reading(run, now);
    joining.let_in(run, now);
    for (run.connections.items) |connection| {
        if (connection.peer) |peer| {
            if (frozen) peer.last_heard = @max(peer.last_heard, now);
            if (deaf or now -| peer.last_heard < run.options.silence_ns) {
                let_go_idle(run, now, peer, frozen);
                continue;
            }
            // With a journal it hears so when it comes back and the removal is on the disk.
            if (run.journal_state != .ok) post.say(run, peer, .{ .expelled = .{
                .group = std.math.maxInt(u16),
                .why = .of("the coordinator heard nothing of it for the silence limit"),
            } });
            connection.doom("it was silent for longer than the silence limit");
        } else {
            const stays_ns: u64 = if (connection.asker() == null)
                limits.stranger_ns_max
            else
                limits.status_ns_max;
            const until = connection.since +| stays_ns;
            if (now >= until) connection.doom("it did not say who it is, or ask, in time");
            run.due_at = @min(run.due_at, @max(until, now + 1));
        }
    }
    losses.sweep(run, now);
    finding.ask_now(run, now);
    judge_absent(run, now, late);
    look_around(run, now);
    for (run.groups.items) |group| {
        // Nobody answers what waits for the disk.
        const waits = run.waits(group.recorded);
        if (waits) group.round_deadline +|= now -| since;
        const pardons = late or waits or waits_for_disk(run, group);
        tick_group(run, group, now, run.options.silence_ns, pardons) catch |err| {
            run.log(.err, "group {s}: {t}", .{ group.name, err });
        };
        if (!group.out_of_memory) continue;
        group.out_of_memory = false;
        run.log(.err, "group {s}: no memory to let members in; tried again soon", .{group.name});
    }
    let_go_overdue(run, now);
    refuse_misfits(run, now);
    losses.sweep(run, now);
    groups.end_groups(run);
}

/// One that joins nothing takes up a place that others may wait for.
fn let_go_idle(run: *Run, now: Instant, peer: *Peer, frozen: bool) void {
    if (peer.present != 0 or peer.claim.waiting.items.len > 0 or run.is_member(peer)) return;
    if (peer.joins_waiting > 0 and peer.telling == null) return;
    if (frozen) peer.idle_since = now;
    // One that tells what it is a member of may take as long as a member that is silent.
    const tells = peer.telling != null or peer.refused;
    const more_ns = if (tells) run.options.silence_ns else 0;
    const until = peer.idle_since +| limits.idle_ns_max +| more_ns;
    if (now >= until) return peer.doom("it has joined nothing for too long");
    run.due_at = @min(run.due_at, until);
}

/// Peers were connected, and none of them has been heard for half of what they may be silent.
/// Once that is so, also those whose connections have ended are waited for until somebody is
/// heard again.
fn hears_nobody(run: *Run, now: Instant) bool {
    var connected = false;
    for (run.peers.items) |peer| {
        if (peer.connection == null) continue;
        connected = true;
        if (now -| peer.last_heard >= run.options.silence_ns / 2) continue;
        if (run.deaf) wait_for_all(run, now);
        run.deaf = false;
        return false;
    }
    run.deaf = run.deaf or connected;
    return run.deaf;
}

/// Somebody is heard again, so the others have the silence limit from now on. Unlike after a
/// restart that is enough: they have heard no answer for half of it already, so they have given
/// up their connections and try to make new ones (session/control.zig: silent_at). Only what they
/// try may take a while to be repeated, so a limit that is short is taken twice.
fn wait_for_all(run: *Run, now: Instant) void {
    const silence_ns = run.options.silence_ns;
    const since = now +| @min(silence_ns, dial_repeat_ns -| silence_ns);
    for (run.peers.items) |peer| {
        if (now -| peer.last_heard < silence_ns / 2) continue;
        peer.last_heard = since;
        peer.away_since = since;
    }
}

/// Members that did not come back in time are lost. After a restart they have longer: they may
/// find out about it only by silence.
fn judge_absent(run: *Run, now: Instant, late: bool) void {
    var index: usize = 0;
    while (index < run.peers.items.len) {
        const peer = run.peers.items[index];
        index += 1;
        if (late) peer.away_since = @max(peer.away_since, now);
        if (now < peer.away_since +| run.options.silence_ns) continue;
        const why = "it did not come back within the silence limit";
        if (peer.connection == null) {
            losses.lose(run, now, peer, why);
            index = 0;
        } else for (run.groups.items) |group| {
            // It has a connection, and does not say on it that it is still a member.
            if (peer.is_present(group.id) or !group.contains(peer)) continue;
            losses.take_out(run, now, group, peer, why);
            index = 0;
        }
    }
}

/// Members for whose reports, or calls, the others have waited for too long.
fn let_go_overdue(run: *Run, now: Instant) void {
    const stall_ns = run.options.stall_ns;
    var overdue: Overdue = .{};
    for (run.groups.items) |group| {
        while (debtors.find_overdue(run, group, now, stall_ns, run.options.silence_ns, &overdue) or
            (stall_ns > 0 and stalls.find_overdue(group, now, stall_ns, &overdue)))
        {
            for (overdue.peers[0..overdue.count]) |peer|
                losses.expel(run, now, group, peer, overdue.why());
        }
    }
}

/// Members whose calls, or shared states, are not those of the others: newcomers as a rule.
fn refuse_misfits(run: *Run, now: Instant) void {
    var misfits: Overdue = .{};
    for (run.groups.items) |group| while (misfit.find(group, &misfits) or
        misfit.find_stranded(run, group, now, &misfits))
    {
        var told: control.Expelled = .{
            .group = group.id,
            .refused = true,
            .why = .of(misfits.why()),
        };
        if (misfits.call) |*call| {
            told.op = call.op;
            told.peer = call.peer;
            told.descriptor = call.descriptor;
        }
        for (misfits.peers[0..misfits.count]) |peer| losses.expel_as(run, now, group, peer, told);
    };
}

/// Draws the consequences of what was said of links, once others have said theirs of the same.
fn look_around(run: *Run, now: Instant) void {
    for (run.groups.items) |group| {
        const by = take_look(run, group, now) orelse continue;
        while (detours.stranded(group)) |peer| {
            const why = "other members could not reach it for longer than the silence " ++
                "limit, and nothing goes around that";
            losses.expel(run, now, group, peer, why);
        }
        if (!detours.go_around(group, now)) continue;
        if (run.peer_of(by)) |peer| peer.rates.cost_attempt(now);
    }
}

/// Never later than a heartbeat from the last tick, so that lateness means something.
pub fn next_deadline(run: *const Run) Instant {
    var next = @min(run.due_at, run.last_tick +| run.options.heartbeat_ns);
    for (run.groups.items) |group| next = @min(next, next_deadline_of(run, group, run.last_tick));
    return @min(next, finding.next_deadline(run, run.last_tick));
}

/// `late`: the coordinator was frozen, and judges nobody by the time that passed.
fn tick_group(run: *Run, group: *Group, now: base.Instant, silence_ns: u64, late: bool) !void {
    if (late and group.phase == .ask) group.round_deadline = now +| silence_ns;
    rounds.let_go_mute(run, group, now, silence_ns, late);
    if (group.round_deadline <= now) switch (group.phase) {
        .prepare => rounds.end_preparation(run, group, now) catch {
            group.out_of_memory = true;
        },
        .ask => rounds.release(run, group),
        .idle, .activate => unreachable, // they have no deadline
    };
    for (group.epochs.items) |epoch| {
        if (epoch.replan_at <= now and epoch.running) try detours.new_attempt(run, group, epoch);
        decisions.check_seen(run, epoch, now, silence_ns, late);
        try stalls.end_passed(run, epoch);
        stalls.review(run, group, epoch, now, late);
        const outside = if (epoch == group.current()) group.newcomers.items.len else 0;
        entering.review(run, epoch, outside);
        if (epoch == group.current()) {
            try measured.tell(run, epoch);
            try probes.review(run, epoch, now);
        }
        try misfit.review(run, epoch);
    }
    rounds.advance(run, group, now);
    attendance.review(run, group, now);
    awaited.review(run, group, now, late);
}

/// The disk takes long, and keeps some member from hearing what is said of its epoch.
fn waits_for_disk(run: *Run, group: *const Group) bool {
    for (group.epochs.items) |epoch| {
        if (!run.waits(epoch.recorded)) continue;
        for (epoch.members) |*member| {
            const peer = member.peer orelse continue;
            if (run.holds_up(peer)) return true;
        }
    }
    return false;
}

/// Whether ways around broken links are to be looked for now, and at whose expense.
fn take_look(run: *Run, group: *Group, now: base.Instant) ?PeerId {
    // A round may wait for the end of the same pause, and its own look comes first: otherwise
    // it would wait for as long as anybody has news of links.
    if (group.look.at <= now) rounds.advance(run, group, now);
    var members: usize = 0;
    for (group.epochs.items) |epoch| members += epoch.members.len;
    return group.look.take(now, members);
}

fn next_deadline_of(run: *const Run, group: *const Group, now: base.Instant) base.Instant {
    var next = @min(group.round_deadline, group.look.next_deadline(now));
    next = @min(next, attendance.next_deadline(run, group));
    for (group.epochs.items) |epoch| if (epoch.running) {
        next = @min(next, epoch.replan_at, epoch.stall_at);
    };
    if (group.phase != .idle) return next;
    // Those whose time has come wait for company, and company is an event.
    for (group.newcomers.items) |*newcomer| {
        const until = group.patience.until(newcomer.peer.id);
        if (until > now) next = @min(next, until);
    }
    if (group.round_due() > now) next = @min(next, group.round_due());
    return next;
}
