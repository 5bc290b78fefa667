//! Coordinator: the part of a run that decides, as its driver (net/ or tests/sim) sees it. The
//! driver has the sockets, the clock and the disk; it passes in received bytes and the time.
//!
//! The state of the run is in run.zig: connections and peers (peer.zig), groups (group.zig), and
//! their epochs (epoch.zig). This file cuts received bytes into messages and gives each message to
//! the function that is named after it (`on_done` takes `done`), acts at ticks, and restores a run
//! from a journal. This file calls:
//!   - door.zig: strangers become peers, and ask for groups;
//!   - membership.zig: newcomers become members, and peers go;
//!   - operation.zig, attempt.zig: operations are decided, or go on after a loss;
//!   - debt.zig: who waits for whom;
//!   - log.zig: the run outlives the coordinator.
//!
//! A member whose connection ends has the silence limit to come back, unless other members say that
//! their lanes to it are closed as well. Facts that a coordinator must know after it was killed are
//! in its journal (journal.zig) before any peer is told them (peer.zig). After a restart all
//! members are away.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("address.zig");
const attempt = @import("attempt.zig");
const debt = @import("debt.zig");
const door = @import("door.zig");
const fault_of = @import("peer.zig").fault_of;
const journal = @import("journal.zig");
const log = @import("log.zig");
const measurement = @import("measurement.zig");
const membership = @import("membership.zig");
const operation = @import("operation.zig");
const keep_budget = @import("run.zig").keep_budget;
const status = @import("status.zig");
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Overdue = @import("operation.zig").Overdue;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

pub const Connection = @import("peer.zig").Connection;
pub const LogLevel = @import("run.zig").LogLevel;

pub const Coordinator = struct {
    run: Run,

    pub const Options = Run.Options;
    pub const Host = Run.Host;

    /// `seed` must be random: it decides which strangers are let in at the door.
    pub fn create(
        gpa: Allocator,
        options: Options,
        host: Host,
        seed: u64,
    ) Allocator.Error!*Coordinator {
        const c = try (options.secrets orelse gpa).create(Coordinator);
        c.run = .{
            .gpa = gpa,
            .options = options,
            .host = host,
            .memory = .{ .bytes_max = options.memory },
            .prng = .init(seed),
        };
        return c;
    }

    /// Frees the coordinator, after the driver has closed all sockets.
    pub fn destroy(c: *Coordinator) void {
        c.run.deinit();
        (c.run.options.secrets orelse c.run.gpa).destroy(c);
    }

    /// Restores the run of a journal and its log of decisions, or begins a new run if they are
    /// empty. Called once, before the first connection. After an error the coordinator can only be
    /// destroyed.
    pub fn restore(
        c: *Coordinator,
        now: Instant,
        journal_bytes: []const u8,
        log_bytes: []const u8,
    ) Error!void {
        return restore_run(&c.run, now, journal_bytes, log_bytes);
    }

    /// Takes an incoming connection as a stranger. Null: there is no memory or no place for the
    /// connection, and the driver closes it.
    pub fn accept(c: *Coordinator, now: Instant, source: base.Source) ?*Connection {
        return door.accept(&c.run, now, source);
    }

    /// Takes the bytes that the driver has appended to `connection.stream`.
    pub fn received(c: *Coordinator, now: Instant, connection: *Connection) void {
        hear_bytes(&c.run, now, connection);
        membership.sweep(&c.run, now);
    }

    /// Takes the messages that wait from a peer whose pause is over, as far as its rates allow.
    /// Called before the driver reads more from the peer, so that nothing piles up.
    pub fn take_said(c: *Coordinator, now: Instant, connection: *Connection) void {
        take_heard(&c.run, now, connection);
        membership.sweep(&c.run, now);
    }

    /// Takes the end of a connection; `connection` is invalid afterwards.
    pub fn closed(c: *Coordinator, now: Instant, connection: *Connection) void {
        membership.closed(&c.run, now, connection);
        membership.sweep(&c.run, now);
    }

    /// Takes the result of search `number`, which `Host.find` began. The driver may answer after
    /// the peer has gone.
    pub fn answered(c: *Coordinator, now: Instant, number: u64, answer: addresses.Answer) void {
        door.answered(&c.run, now, number, answer);
        membership.sweep(&c.run, now);
    }

    /// All journal records up to `number` are on the disk: sends the messages that waited for them.
    pub fn journal_written(c: *Coordinator, now: Instant, number: u64) void {
        log.written(&c.run, number);
        membership.sweep(&c.run, now);
    }

    /// The journal could not write record `number`, and writes no later record until it is written
    /// anew as a whole.
    pub fn journal_failed(c: *Coordinator, now: Instant, number: u64) void {
        log.not_written(&c.run, now, number);
        membership.sweep(&c.run, now);
    }

    pub fn tick(c: *Coordinator, now: Instant) void {
        tick_run(&c.run, now);
    }

    /// Ends the coordinator in order, before the driver closes all sockets: without a journal,
    /// newcomers are told that the run is over.
    pub fn end(c: *Coordinator, now: Instant) void {
        membership.end_newcomers(&c.run, now);
    }

    pub fn next_deadline(c: *const Coordinator) Instant {
        return next_deadline_of_run(&c.run);
    }
};

// ---- messages of peers
//
// The bytes of a connection are cut into messages, and each message goes to the function that is
// named after it. The connection of a peer that exceeds its rates (peer.zig), or whose vote must
// wait (operation.zig), is not read for a while.

/// Takes the bytes that were appended to `connection.stream`.
pub fn hear_bytes(run: *Run, now: Instant, connection: *Connection) void {
    if (connection.state == .stranger) door.greet(run, now, connection);
    if (connection.peer) |peer| peer.last_heard = @max(peer.last_heard, now);
    // A connection may ask for one status only, because an answer costs more than its question.
    if (connection.state == .answered) connection.doom("it goes on after its answer");
    hear(run, now, connection);
}

/// Takes the whole messages in the connection's stream, as far as the peer's rates allow.
fn hear(run: *Run, now: Instant, connection: *Connection) void {
    while (connection.doomed == null and !connection.is_paused(now) and
        (connection.state == .peer or connection.state == .status))
    {
        const stream = &connection.stream;
        const at = stream.in_start;
        const message = stream.take() catch |err| {
            if (err == error.TooLong and hears_more_of(run, connection)) continue;
            connection.doom(fault_of(err));
            break;
        } orelse break;
        const size = stream.in_start - at;
        connection.has_answered = true;
        if (must_wait(run, now, connection, &message)) |wait_ns| {
            stream.in_start = at;
            pause(run, now, connection, wait_ns);
            if (connection.peer) |peer| peer.unread_until = connection.paused_until;
            break;
        }
        dispatch(run, now, connection, &message) catch |err| {
            connection.doom(fault_of(err));
        };
        const peer = connection.peer orelse continue;
        const wait_ns = peer.rates.heard(now, &message, size);
        if (wait_ns > 0) pause(run, now, connection, wait_ns);
    }
    keep_budget(run);
}

/// Stops reading from a connection for `wait_ns`. The peer does not count as silent meanwhile.
pub fn pause(run: *Run, now: Instant, connection: *Connection, wait_ns: u64) void {
    connection.paused_until = now +| wait_ns;
    run.due_at = @min(run.due_at, connection.paused_until);
    const peer = connection.peer orelse return;
    peer.last_heard = @max(peer.last_heard, connection.paused_until);
}

/// For how many nanoseconds a message, and all messages behind it, are left unread; null: the
/// message is read now.
fn must_wait(
    run: *const Run,
    now: Instant,
    connection: *Connection,
    message: *const control.Message,
) ?u64 {
    const peer = connection.peer orelse return null;
    switch (message.*) {
        .join_end => return return_wait(run, now, connection),
        inline .done, .state_offer => |*body| {
            const group = run.group_of(peer, body.group) catch return null;
            const epoch = group.epoch_of(body.epoch) orelse return null;
            const rank = epoch.rank_of(peer) orelse return null;
            return if (operation.must_wait(epoch, rank)) operation.wait_ns else null;
        },
        else => return null,
    }
}

/// For how many nanoseconds a member that comes back waits before it returns to its groups; null:
/// it does not wait. A return costs each group an attempt, so a member that returns again and again
/// must wait. The silence limit of the member begins after the wait.
fn return_wait(run: *const Run, now: Instant, connection: *Connection) ?u64 {
    const peer = connection.peer.?;
    const telling = peer.telling orelse return null;
    const group = run.group_at(telling.group orelse return null).?;
    if (connection.has_returned or group.recovering or !group.contains(peer)) return null;
    const at = connection.returns_at orelse now +| peer.rates.attempt_wait_ns(now);
    connection.returns_at = at;
    if (now < at) {
        peer.away_since = @max(peer.away_since, at);
        return at - now;
    }
    connection.has_returned = true;
    peer.rates.cost_attempt(now);
    return null;
}

/// Takes the messages that wait on connections whose pause is over, and has the driver read from
/// these connections again.
pub fn resume_reading(run: *Run, now: Instant) void {
    for (run.connections.items) |connection| {
        const until = connection.paused_until;
        if (until == 0 or until > now) {
            if (until > now) run.due_at = @min(run.due_at, until);
            continue;
        }
        connection.paused_until = 0;
        hear(run, now, connection);
        run.host.vtable.wake(run.host.ctx, connection);
    }
}

/// Takes the messages that wait from a peer whose pause is over, before the driver reads more from
/// it.
pub fn take_heard(run: *Run, now: Instant, connection: *Connection) void {
    if (connection.paused_until == 0 or connection.is_paused(now)) return;
    connection.paused_until = 0;
    hear(run, now, connection);
}

/// Allows a member longer messages than other peers. True: the member was not allowed them before.
fn hears_more_of(run: *const Run, connection: *Connection) bool {
    const peer = connection.peer orelse return false;
    const known = connection.stream.in_bytes_max == limits.control_message_bytes_max;
    if (known or !run.is_member(peer)) return false;
    connection.stream.in_bytes_max = limits.control_message_bytes_max;
    return true;
}

fn dispatch(
    run: *Run,
    now: Instant,
    connection: *Connection,
    message: *const control.Message,
) ProtocolError!void {
    if (connection.state == .status) return switch (message.*) {
        .status_request => |body| {
            connection.state = .answered;
            status.ask_doctor(run, now, connection.source, body.dial_back);
            reply_status(run, now, connection);
        },
        else => error.Unexpected,
    };
    const peer = connection.peer.?;
    if (door.is_void(peer, message)) return;
    switch (message.*) {
        .join => |*body| try door.on_join(run, now, peer, body),
        .epoch_report => |*body| try door.on_epoch_report(run, peer, body),
        .gave_up => |*body| try door.on_gave_up(run, peer, body),
        .join_end => try door.on_join_end(run, now, peer),
        .leave => |body| door.on_leave(run, now, peer, body.group),
        .heartbeat => |body| {
            peer.bytes_sent = body.bytes_sent;
            peer.bytes_received = body.bytes_received;
            if (body.may_probe and !peer.may_probe) measurement.gather(run, now);
            peer.may_probe = body.may_probe;
            peer.is_idle = body.is_idle;
            run.say(peer, .{ .heartbeat_ack = .{ .number = body.number } });
        },
        .traffic => |*body| try measurement.on_traffic(run, now, peer, body),
        .prepared => |*body| {
            const group = try run.group_of(peer, body.group);
            membership.on_prepared(run, group, now, peer, body);
        },
        .ask_address => |body| try membership.on_ask_address(run, peer, body),
        .optimize => |body| {
            const group = try run.group_of(peer, body.group);
            attempt.on_optimize(run, group, peer, now);
        },
        .safe_points => |body| {
            const group = try run.group_of(peer, body.group);
            try membership.on_safe_points(run, group, now, peer, body.round, body.count);
        },
        .activated => |body| {
            const group = try run.group_of(peer, body.group);
            try membership.on_activated(run, group, now, peer, body.epoch);
        },
        .epoch_closed => |body| {
            const group = try run.group_of(peer, body.group);
            try membership.on_closed(run, group, now, peer, body.epoch);
        },
        .link_lost => |*body| try membership.on_link_lost(run, now, peer, body),
        .link_told => |body| try membership.on_link_told(run, now, peer, body),
        .dialed_back => |*body| status.doctor_told(run, peer, body),
        inline .done,
        .mismatch_seen,
        .report_op,
        .report_end,
        .decisions_seen,
        .state_offer,
        .state_tensors,
        .called,
        => |*body, tag| {
            const group = try run.group_of(peer, body.group);
            const epoch = group.epoch_of(body.epoch) orelse return; // the epoch is over
            const rank = epoch.rank_of(peer) orelse return;
            switch (tag) {
                .done => try operation.on_done(run, epoch, now, rank, body),
                .mismatch_seen => try operation.on_mismatch(run, epoch, rank, body),
                .report_op => try attempt.on_report_op(run, epoch, rank, body),
                .report_end => try attempt.on_report_end(run, epoch, rank, body),
                .decisions_seen => try operation.acknowledge(epoch, rank, body.count),
                .state_offer => try operation.on_state_offer(run, epoch, rank, body),
                .state_tensors => try operation.on_state_tensors(run, epoch, rank, body),
                .called => try debt.on_called(run, epoch, now, rank, body),
                else => comptime unreachable,
            }
        },
        // Messages that only a coordinator sends, or only a connection that asks for the status.
        .status_request,
        .heartbeat_ack,
        .welcome,
        .joined,
        .refused,
        .prepare,
        .release,
        .ask_safe_points,
        .activate,
        .view,
        .resume_op,
        .resume_all,
        .commit,
        .abort,
        .expelled,
        .status_reply,
        .state_elected,
        .state_ask,
        .state_differs,
        .address_told,
        .unreached,
        .stalled,
        .labels,
        .waiting,
        .awaited,
        .entered,
        .measured,
        .probe,
        .optimized,
        .dial_back,
        => return error.Unexpected,
    }
}

fn reply_status(run: *Run, now: Instant, connection: *Connection) void {
    const source = connection.source;
    const too_often = "its host has asked too often; the next answer is ready in a second";
    if (!run.status_rates.may_ask(source, now)) return run.send_on(connection, .{
        .refused = .{ .name = .of(""), .why = .of(too_often) },
    });
    const json = status.get(run, now) catch {
        connection.doom("out of memory");
        return;
    };
    run.status_rates.charge(source, now, json.len);
    run.send_on(connection, .{ .status_reply = .{ .json = .of(json) } });
}

// ---- time
//
// At a tick the coordinator removes silent peers and members that owe something for too long, acts
// on broken links, and moves each group on. The coordinator judges no peer by a time in which it
// was frozen itself or heard no peer at all.

/// How long a peer may take to connect: its kernel repeats a failed connection after at most 2 s,
/// and the peer itself soon after that.
const dial_repeat_ns = 3 * std.time.ns_per_s;

/// Not inlined, because its stack frame is large and a tick is rare.
noinline fn tick_run(run: *Run, now: Instant) void {
    if (run.started_at == 0) run.started_at = now;
    const since = run.last_tick;
    log.tend(run, now);
    // If the tick is late by more than a heartbeat, the coordinator was frozen and heard no peer,
    // so it judges none. The coordinator also judges none while it hears no peer at all: its own
    // network may be gone.
    const frozen = run.last_tick != 0 and now -| run.last_tick > 2 *| run.options.heartbeat_ns;
    const deaf = hears_nobody(run, now);
    const late = frozen or deaf;
    run.last_tick = now;
    run.due_at = base.never;
    resume_reading(run, now);
    door.let_in(run, now);
    for (run.connections.items) |connection| {
        if (connection.peer) |peer| {
            if (frozen) peer.last_heard = @max(peer.last_heard, now);
            if (deaf or now -| peer.last_heard < run.options.silence_ns) {
                let_go_idle(run, now, peer, frozen);
                continue;
            }
            // With a journal the peer is told when it comes back, because the removal must be on
            // the disk first.
            if (run.journal_state != .ok) run.say(peer, .{ .expelled = .{
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
    membership.sweep(run, now);
    door.ask_now(run, now);
    judge_absent(run, now, late);
    look_around(run, now);
    for (run.groups.items) |group| {
        // The round's deadline moves on, because members cannot answer a message that waits for the
        // disk.
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
    membership.sweep(run, now);
    membership.end_groups(run);
}

/// Removes a peer that has joined no group for `idle_ns_max`, because other peers may wait for its
/// place.
fn let_go_idle(run: *Run, now: Instant, peer: *Peer, frozen: bool) void {
    if (peer.present != 0 or peer.claim.waiting.items.len > 0 or run.is_member(peer)) return;
    if (peer.joins_waiting > 0 and peer.telling == null) return;
    if (frozen) peer.idle_since = now;
    // A peer that is telling its epochs has the silence limit in addition.
    const tells = peer.telling != null or peer.refused;
    const more_ns = if (tells) run.options.silence_ns else 0;
    const until = peer.idle_since +| limits.idle_ns_max +| more_ns;
    if (now >= until) return peer.doom("it has joined nothing for too long");
    run.due_at = @min(run.due_at, until);
}

/// Whether no peer has been heard for half of the silence limit, though peers were connected. The
/// coordinator then removes no member, not even one whose connection has ended, until it hears a
/// peer again.
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

/// A peer is heard again: gives all silent peers the silence limit from now on. Silent peers need
/// no more time, unlike after a restart: a peer that has heard no answer for half of the limit has
/// given up its connection and dials already (session/control.zig: silent_at). A dial may be
/// repeated only after `dial_repeat_ns`, so a shorter limit is extended to that time, at most
/// doubled.
fn wait_for_all(run: *Run, now: Instant) void {
    const silence_ns = run.options.silence_ns;
    const since = now +| @min(silence_ns, dial_repeat_ns -| silence_ns);
    for (run.peers.items) |peer| {
        if (now -| peer.last_heard < silence_ns / 2) continue;
        peer.last_heard = since;
        peer.away_since = since;
    }
}

/// Loses members that did not come back within the silence limit. After a restart they have twice
/// the limit, because members may notice a restart only by silence.
fn judge_absent(run: *Run, now: Instant, late: bool) void {
    var index: usize = 0;
    while (index < run.peers.items.len) {
        const peer = run.peers.items[index];
        index += 1;
        if (late) peer.away_since = @max(peer.away_since, now);
        if (now < peer.away_since +| run.options.silence_ns) continue;
        const why = "it did not come back within the silence limit";
        if (peer.connection == null) {
            membership.lose(run, now, peer, why);
            index = 0;
        } else for (run.groups.items) |group| {
            // The peer is connected, but has not said on this connection that it is a member of the
            // group.
            if (peer.is_present(group.id) or !group.contains(peer)) continue;
            membership.take_out(run, now, group, peer, why);
            index = 0;
        }
    }
}

/// Removes members whose reports or calls other members have waited for too long (debt.zig).
fn let_go_overdue(run: *Run, now: Instant) void {
    const stall_ns = run.options.stall_ns;
    var overdue: Overdue = .{};
    for (run.groups.items) |group| {
        while (debt.find_overdue(run, group, now, stall_ns, run.options.silence_ns, &overdue) or
            (stall_ns > 0 and debt.find_stalled(group, now, stall_ns, &overdue)))
        {
            for (overdue.peers[0..overdue.count]) |peer|
                membership.expel(run, now, group, peer, overdue.why());
        }
    }
}

/// Removes members whose calls or shared states differ from those of the other members; as a rule
/// these are newcomers.
fn refuse_misfits(run: *Run, now: Instant) void {
    var misfits: Overdue = .{};
    for (run.groups.items) |group| while (operation.find_misfits(group, &misfits) or
        operation.find_stranded(run, group, now, &misfits))
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
        for (misfits.peers[0..misfits.count]) |peer|
            membership.expel_as(run, now, group, peer, told);
    };
}

/// Acts on the broken links that members have reported, after a delay for the reports of other
/// members: removes stranded members, and begins attempts that avoid the broken links.
fn look_around(run: *Run, now: Instant) void {
    for (run.groups.items) |group| {
        const by = take_look(run, group, now) orelse continue;
        while (attempt.stranded(group)) |peer| {
            const why = "other members could not reach it for longer than the silence " ++
                "limit, and nothing goes around that";
            membership.expel(run, now, group, peer, why);
        }
        if (!attempt.go_around(run, group, now)) continue;
        if (run.peer_of(by)) |peer| peer.rates.cost_attempt(now);
    }
}

/// The time of the next tick: at most a heartbeat after the last tick, so that a later tick shows
/// that the coordinator was frozen.
pub fn next_deadline_of_run(run: *const Run) Instant {
    var next = @min(run.due_at, run.last_tick +| run.options.heartbeat_ns);
    for (run.groups.items) |group| next = @min(next, next_deadline_of(run, group, run.last_tick));
    return @min(next, door.next_question_deadline(run, run.last_tick));
}

/// Moves a group on at a tick. `late`: the coordinator was frozen or the disk holds up messages, so
/// no member is judged by the time that passed.
fn tick_group(run: *Run, group: *Group, now: base.Instant, silence_ns: u64, late: bool) !void {
    if (late and group.phase == .ask) group.round_deadline = now +| silence_ns;
    membership.let_go_mute(run, group, now, silence_ns, late);
    if (group.round_deadline <= now) switch (group.phase) {
        .prepare => membership.end_preparation(run, group, now) catch {
            group.out_of_memory = true;
        },
        .ask => membership.release_round(run, group),
        .idle, .activate => unreachable, // these phases have no deadline
    };
    for (group.epochs.items) |epoch| {
        if (epoch.replan_at <= now and epoch.running) try attempt.begin(run, group, epoch);
        operation.check_seen(run, epoch, now, silence_ns, late);
        try debt.end_passed(run, epoch);
        debt.review_calls(run, group, epoch, now, late);
        const outside = if (epoch == group.current()) group.newcomers.items.len else 0;
        debt.review_entering(run, epoch, outside);
        if (epoch == group.current()) {
            try measurement.tell_measured(run, epoch);
            attempt.review_plan(run, group, epoch, now);
            try measurement.review_probes(run, epoch, now);
        }
        try operation.review_misfits(run, epoch);
    }
    membership.advance_round(run, group, now);
    debt.review_attendance(run, group, now);
    debt.review_awaited(run, group, now, late);
}

/// Whether the disk has held up messages about an epoch to one of its members for long.
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

/// Takes the look for ways around broken links that is due now, and returns the member to charge
/// for it; null: no look is due.
fn take_look(run: *Run, group: *Group, now: base.Instant) ?PeerId {
    // A round may wait for the end of the same pause, and its own look comes first: otherwise the
    // round would wait as long as members keep reporting links.
    if (group.look.at <= now) membership.advance_round(run, group, now);
    var members: usize = 0;
    for (group.epochs.items) |epoch| members += epoch.members.len;
    return group.look.take(now, members);
}

fn next_deadline_of(run: *const Run, group: *const Group, now: base.Instant) base.Instant {
    var next = @min(group.round_deadline, group.look.next_deadline(now));
    next = @min(next, debt.next_deadline(run, group));
    for (group.epochs.items) |epoch| if (epoch.running) {
        next = @min(next, epoch.replan_at, epoch.stall_at);
    };
    if (group.phase != .idle) return next;
    // A newcomer that rounds may take again waits only for another newcomer, whose arrival is an
    // event, so it needs no deadline.
    for (group.newcomers.items) |*newcomer| {
        const until = group.patience.until(newcomer.peer.id);
        if (until > now) next = @min(next, until);
    }
    if (group.round_due() > now) next = @min(next, group.round_due());
    return next;
}

// ---- a run goes on from its journal
//
// A run is restored from its journal and its log of decisions; its members tell everything else
// when they come back (membership.zig, attempt.zig).

pub const Error = error{
    OutOfMemory,
    /// The records of the journal are whole, but contradict each other.
    BadRecord,
    /// The journal cannot be written at the start. Without the record of this start the next
    /// coordinator would use the same epoch and round numbers.
    JournalFailed,
} || journal.Error;

pub fn restore_run(
    run: *Run,
    now: base.Instant,
    journal_bytes: []const u8,
    log_bytes: []const u8,
) Error!void {
    var replay: journal.Replay = .init(journal_bytes);
    var last_incarnation: u32 = 0;
    while (try replay.next()) |entry| switch (entry) {
        .settings => {}, // the driver has read the settings, which are the options
        .start => |body| {
            last_incarnation = @max(last_incarnation, body.incarnation);
            run.ended.epoch = @max(run.ended.epoch, body.ended_epoch);
        },
        .group => |*body| try restore_group(run, body),
        .activation => |*body| try restore_epoch(run, now, body),
        .removal => |*body| {
            const group = run.group_at(body.group) orelse return error.BadRecord;
            try group.restore_removal(body);
        },
        .attempt, .commit, .abort => unreachable, // records of the log of decisions
    };
    if (last_incarnation == limits.incarnations_max) return error.BadRecord;
    run.incarnation = last_incarnation + 1;
    try log.restore(run, log_bytes);
    for (run.groups.items) |group| group_restored(run, group);
    // In an epoch that is over, another process may have had a peer's id: takes the instances of
    // the live epochs.
    for (run.groups.items) |group| for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        if (member.peer) |peer| peer.instance = member.instance;
    };
    membership.forget_idle(run);
    membership.end_groups(run);
    log.begin_journal(run) catch |err| return switch (err) {
        error.OutOfMemory => error.OutOfMemory,
        error.JournalFailed => error.JournalFailed,
        else => error.BadRecord, // a record is too large
    };
    run.journal_state = .ok;
}

fn restore_group(run: *Run, body: *const journal.GroupMade) Error!void {
    // The first of two groups with one number has ended.
    if (run.group_at(body.id)) |before| {
        before.drop_empty();
        if (before.epochs.items.len > 0) return error.BadRecord;
        membership.end_group(run, before);
    }
    try run.groups.ensureUnusedCapacity(run.gpa, 1);
    const group = try Group.create(run.gpa, .{
        .id = body.id,
        .name = body.name.data,
        .initial_world_size = body.initial_world_size,
        .min_world_size = if (body.is_founded) 1 else run.options.min_world_size,
        .prepare_ns = run.options.prepare_ns,
        .round = run.first_round(),
        .founding = if (body.is_founded) .{} else null,
    });
    group.last_epoch = body.last_epoch;
    run.groups.appendAssumeCapacity(group);
}

fn restore_epoch(run: *Run, now: base.Instant, entry: *const journal.Activation) Error!void {
    const body = &entry.told;
    const group = run.group_at(body.group) orelse return error.BadRecord;
    if (group.epoch_of(body.epoch) != null) return error.BadRecord;
    if (body.members.count == 0 or body.members.count > limits.peers_max) return error.BadRecord;
    // A group has at most two live epochs: when a third began, the first was over.
    while (group.epochs.items.len > 1) group.epochs.orderedRemove(0).destroy();
    try group.epochs.ensureUnusedCapacity(run.gpa, 1);
    const peers = try run.gpa.alloc(*Peer, body.members.count);
    defer run.gpa.free(peers);
    var it = body.members.iterator();
    var instances = entry.instances.iterator();
    for (peers) |*peer| {
        const instance = instances.next().?;
        if (instance == 0) return error.BadRecord;
        peer.* = try door.away_peer(run, now, it.next().?, instance);
    }
    const left = try run.gpa.alloc(PeerId, body.left.count);
    defer run.gpa.free(left);
    var gone = body.left.iterator();
    for (left) |*id| id.* = gone.next().?;
    const epoch = try Epoch.create(run.gpa, .{
        .group = group.id,
        .number = body.epoch,
        .min_world_size = group.min_world_size,
        .budget = &run.memory,
        .peers = peers,
        .began = .{
            .round = body.round,
            .safe_point = body.safe_point,
            .joined = body.joined,
            .left = left,
        },
    });
    errdefer epoch.destroy();
    if (epoch.ranks.count() != peers.len) return error.BadRecord; // a member is named twice
    epoch.attempt = entry.attempt;
    group.epochs.appendAssumeCapacity(epoch);
    group.last_epoch = @max(group.last_epoch, body.epoch);
}

/// Prepares a group that was read from a journal: it goes on only when its members are back or
/// lost.
fn group_restored(run: *Run, group: *Group) void {
    group.round = run.first_round();
    group.had_members = group.current() != null;
    group.drop_empty();
    group.recovering = group.epochs.items.len > 0;
    for (group.epochs.items) |epoch| epoch_restored(epoch);
}

fn epoch_restored(epoch: *Epoch) void {
    epoch.recovering = true;
    epoch.running = false;
    const logged = @max(epoch.attempt, epoch.history.entries.getLast().attempt);
    // The lost end of the log may have had further attempts, so their numbers are skipped.
    epoch.attempt = @min(logged +| limits.attempts_unlogged_max, limits.attempts_max - 2);
}
