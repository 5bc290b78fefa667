//! hearing: what connections bring is cut into messages, and each goes to the function that is
//! named after it. Whoever says too much is not read for a while (rates.zig, unseen.zig).

const base = @import("base");
const wire = @import("wire");
const arrivals = @import("arrivals.zig");
const comebacks = @import("comebacks.zig");
const decisions = @import("decisions.zig");
const doctor = @import("doctor.zig");
const door = @import("door.zig");
const joining = @import("joining.zig");
const links = @import("links.zig");
const measured = @import("measured.zig");
const post = @import("post.zig");
const probes = @import("probes.zig");
const queues = @import("queues.zig");
const reports = @import("reports.zig");
const rounds = @import("rounds.zig");
const stalls = @import("stalls.zig");
const status = @import("status.zig");
const syncs = @import("syncs.zig");
const unseen = @import("unseen.zig");
const votes = @import("votes.zig");
const Connection = @import("peer.zig").Connection;
const fault_of = @import("peer.zig").fault_of;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;

/// Bytes were appended to connection.stream.
pub fn received(run: *Run, now: Instant, connection: *Connection) void {
    if (connection.state == .stranger) door.greet(run, now, connection);
    if (connection.peer) |peer| peer.last_heard = @max(peer.last_heard, now);
    // One question each: answers cost more than questions.
    if (connection.state == .answered) connection.doom("it goes on after its answer");
    hear(run, now, connection);
}

/// Takes the messages that are there, as far as its rates go.
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
    queues.keep_budget(run);
}

/// Nothing is read from it for a while, and that is no silence of its.
pub fn pause(run: *Run, now: Instant, connection: *Connection, wait_ns: u64) void {
    connection.paused_until = now +| wait_ns;
    run.due_at = @min(run.due_at, connection.paused_until);
    const peer = connection.peer orelse return;
    peer.last_heard = @max(peer.last_heard, connection.paused_until);
}

/// How long a message, and what is behind it, is left where it is.
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
            return if (unseen.must_wait(epoch, rank)) unseen.wait_ns else null;
        },
        else => return null,
    }
}

/// A member that comes back costs its groups an attempt each. Whoever does so all the time
/// waits, for all its groups together, and for so little that it loses none by that.
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

/// Those who have waited for long enough are read again.
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

/// Before more is read from somebody who was paused: what it has said is taken first, for as
/// long as its rates go, so that it does not pile up here.
pub fn take_said(run: *Run, now: Instant, connection: *Connection) void {
    if (connection.paused_until == 0 or connection.is_paused(now)) return;
    connection.paused_until = 0;
    hear(run, now, connection);
}

/// A member may say more at once than somebody who only wants to become one.
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
            doctor.ask(run, now, connection.source, body.dial_back);
            reply_status(run, now, connection);
        },
        else => error.Unexpected,
    };
    const peer = connection.peer.?;
    if (arrivals.is_void(peer, message)) return;
    switch (message.*) {
        .join => |*body| try joining.on_join(run, now, peer, body),
        .epoch_report => |*body| try joining.on_epoch_report(run, peer, body),
        .knows_commit => |*body| try joining.on_known(run, peer, .{ .commit = body }),
        .knows_abort => |*body| try joining.on_known(run, peer, .{ .abort = body }),
        .gave_up => |*body| try joining.on_gave_up(run, peer, body),
        .join_end => try joining.on_join_end(run, now, peer),
        .leave => |body| joining.on_leave(run, now, peer, body.group),
        .heartbeat => |body| {
            peer.bytes_sent = body.bytes_sent;
            peer.bytes_received = body.bytes_received;
            if (body.may_probe and !peer.may_probe) probes.gather(run, now);
            peer.may_probe = body.may_probe;
            post.say(run, peer, .{ .heartbeat_ack = .{ .number = body.number } });
        },
        .traffic => |*body| try measured.on_traffic(run, now, peer, body),
        .prepared => |*body| {
            const group = try run.group_of(peer, body.group);
            rounds.on_prepared(run, group, now, peer, body);
        },
        .ask_address => |body| try links.on_ask_address(run, peer, body),
        .safe_points => |body| {
            const group = try run.group_of(peer, body.group);
            try rounds.on_safe_points(run, group, now, peer, body.round, body.count);
        },
        .activated => |body| {
            const group = try run.group_of(peer, body.group);
            try rounds.on_activated(run, group, now, peer, body.epoch);
        },
        .epoch_closed => |body| {
            const group = try run.group_of(peer, body.group);
            try comebacks.on_closed(run, group, now, peer, body.epoch);
        },
        .link_lost => |*body| try links.on_link_lost(run, now, peer, body),
        .link_told => |body| try links.on_link_told(run, now, peer, body),
        .dialed_back => |*body| doctor.told(run, peer, body),
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
            const epoch = group.epoch_of(body.epoch) orelse return; // it is over
            const rank = epoch.rank_of(peer) orelse return;
            switch (tag) {
                .done => try votes.on_done(run, epoch, now, rank, body),
                .mismatch_seen => try votes.on_mismatch(run, epoch, rank, body),
                .report_op => try reports.on_report_op(run, epoch, rank, body),
                .report_end => try reports.on_report_end(run, epoch, rank, body),
                .decisions_seen => try decisions.acknowledge(epoch, rank, body.count),
                .state_offer => try syncs.on_state_offer(run, epoch, rank, body),
                .state_tensors => try syncs.on_state_tensors(run, epoch, rank, body),
                .called => try stalls.on_called(run, epoch, now, rank, body),
                else => comptime unreachable,
            }
        },
        // Messages of coordinators alone, or of those who are no peers.
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
        .dial_back,
        => return error.Unexpected,
    }
}

fn reply_status(run: *Run, now: Instant, connection: *Connection) void {
    const source = connection.source;
    const too_often = "its host has asked too often; the next answer is ready in a second";
    if (!run.status_rates.may_ask(source, now)) return post.send_on(run, connection, .{
        .refused = .{ .name = .of(""), .why = .of(too_often) },
    });
    const json = status.get(run, now) catch {
        connection.doom("out of memory");
        return;
    };
    run.status_rates.charge(source, now, json.len);
    post.send_on(run, connection, .{ .status_reply = .{ .json = .of(json) } });
}
