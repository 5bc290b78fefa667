//! control: the connection to the coordinator: it is made, lost and made again, and what it brings
//! goes to whoever it is for. Data moves on without it. Free functions on Session; groups, which
//! come and go by the coordinator's word: groups.zig; what is decided: protocol/member.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const deferred = @import("deferred.zig");
const figures = @import("figures.zig");
const dial_back = @import("dial_back.zig");
const groups = @import("groups.zig");
const labels = @import("labels.zig");
const greeting = @import("greeting.zig");
const links = @import("links.zig");
const probing = @import("probing.zig");
const rounds = @import("rounds.zig");
const syncing = @import("syncing.zig");
const traffic = @import("traffic.zig");
const waits = @import("waits.zig");
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;

const Error = error{ OutOfMemory, Unexpected };

const reconnect_ns_min: u64 = 10 * std.time.ns_per_ms;
const reconnect_ns_max: u64 = 400 * std.time.ns_per_ms;

/// The connection is made; `address` must be set by now.
pub fn opened(s: *Session, now: Instant) void {
    s.reach(now);
    // It was given up while the driver still tried.
    if (s.control_state == .lost) return s.host.vtable.control_close(s.host.ctx);
    s.control.reset();
    s.control_state = .greeting;
    s.welcomed = false;
    s.control_failed = false;
    s.refusal = null;
    s.last_heard = now;
    s.last_tick = now;
    const hello = wire.hello.encode(.{
        .purpose = .control,
        .run_id = s.run_id,
        .from = s.self,
        .instance = s.instance,
    });
    s.control.send_raw(&hello) catch hang_up(s, "out of memory");
}

/// Bytes were appended to `control`.
pub fn received(s: *Session, now: Instant) void {
    s.reach(now);
    s.last_heard = now;
    if (s.control_state == .greeting) control_greeted(s);
    while (s.control_state == .open) {
        const message = s.control.take() catch |err| {
            s.log(.err, "the coordinator sent bytes that make no sense: {t}", .{err});
            hang_up(s, "the coordinator sent bytes that make no sense");
            break;
        } orelse break;
        s.last_message = s.now;
        dispatch(s, &message) catch |err| {
            s.log(.err, "the coordinator broke the protocol: {t}", .{err});
            hang_up(s, "the coordinator broke the protocol");
        };
    }
    greeting.greet_waiting(s);
    deferred.run(s);
}

/// The connection ended, or could not be made.
pub fn closed(s: *Session, now: Instant) void {
    s.reach(now);
    coordinator_away(s, "the connection to the coordinator closed");
    deferred.run(s);
}

fn control_greeted(s: *Session) void {
    const bytes = s.control.take_raw(wire.hello.answer_bytes) orelse return;
    const verdict = wire.hello.decode_answer(bytes) catch |err| {
        s.not_pccl = err == error.NotPccl;
        s.refusal = .version_mismatch;
        return hang_up(s, "what answers does not speak this version of PCCL");
    };
    if (verdict != .welcome) {
        s.refusal = verdict;
        const of_another_run = verdict == .wrong_run or verdict == .version_mismatch;
        if (s.knows_settings() and of_another_run)
            return lose_coordinator(s, "its address belongs to another run now");
        if (s.knows_settings()) lose_place(s, verdict);
        return hang_up(s, "the coordinator refused this peer");
    }
    s.control_state = .open;
    s.away_since = base.never;
    s.reconnects = 0;
    s.heartbeat_at = s.now;
    if (s.knows_settings()) s.log(.info, "connected to the coordinator again", .{});
    for (s.groups.items) |group| groups.present(s, group);
}

/// The coordinator knows another process by the id of this one, so it has removed this one.
fn lose_place(s: *Session, verdict: wire.hello.Verdict) void {
    switch (verdict) {
        .refused, .held => {},
        .welcome, .version_mismatch, .wrong_run, .wrong_peer, .full => return,
    }
    for (s.groups.items) |group| {
        if (group.state == .left or group.member.current == null) continue;
        groups.lose_membership(s, group, "another process has taken its place, under its peer_id");
    }
}

/// Ends the connection; another one is tried.
pub fn hang_up(s: *Session, why: []const u8) void {
    s.host.vtable.control_close(s.host.ctx);
    coordinator_away(s, why);
}

/// Data moves on without the coordinator; only decisions wait.
fn coordinator_away(s: *Session, why: []const u8) void {
    if (s.control_state == .lost or s.control_state == .away) return;
    const wanted = is_in_groups(s);
    if (s.control_state == .open) {
        const blank = if (s.coordinator_at.len > 0) " " else "";
        // A process may have several peers.
        const text = "peer {f} has lost the coordinator: {s}; trying{s}{s} again";
        const self = labels.named(s, s.self);
        if (wanted) s.log(.warning, text, .{ self, why, blank, s.coordinator_at });
        groups.disconnected(s);
        s.away_since = s.now;
    }
    s.control_state = .away;
    const back_off = @min(reconnect_ns_min << @min(s.reconnects, 6), reconnect_ns_max);
    const pause_ns = back_off / 2 + s.prng.below(back_off / 2 + 1);
    // A peer in no group has nothing to say and is let go after a while: it dials to join.
    s.reconnect_at = if (wanted) s.now + pause_ns else base.never;
    s.reconnects +|= 1;
}

fn is_in_groups(s: *const Session) bool {
    for (s.groups.items) |group| if (group.state != .left) return true;
    return false;
}

/// There will be no other connection.
pub fn lose_coordinator(s: *Session, why: []const u8) void {
    s.host.vtable.control_close(s.host.ctx);
    s.log(.warning, "the coordinator is lost: {s}", .{why});
    end_groups(s, why);
}

/// The driver ends: what still waits for the coordinator waits in vain.
pub fn abandon(s: *Session, now: Instant) void {
    s.reach(now);
    if (s.control_state != .lost) end_groups(s, "this peer ends");
    for (s.operations.items) |operation| if (operation.moves()) |x| x.end_now();
    deferred.run(s);
}

/// When a coordinator that is away is given up.
pub fn reconnect_until(s: *const Session) Instant {
    if (s.control_state == .lost or s.away_since == base.never) return base.never;
    return s.away_since +| s.reconnect_timeout_ns;
}

fn end_groups(s: *Session, why: []const u8) void {
    s.control_state = .lost;
    const status: protocol.Status = .coordinator_unreachable;
    for (s.groups.items) |group| {
        group.member.coordinator_lost();
        groups.group_gone(s, group, status, why);
    }
}

fn dispatch(s: *Session, message: *const control.Message) Error!void {
    // Everything else relies on the settings of the run, which never change.
    if ((message.* == .welcome) == s.welcomed) return error.Unexpected;
    switch (message.*) {
        .welcome => |body| try on_welcome(s, body),
        .joined => |*body| try groups.on_joined(s, body),
        .refused => |*body| try groups.on_refused(s, body),
        .heartbeat_ack => |body| note_round_trip(s, body.number),
        .prepare => |*body| try groups.on_prepare(s, body),
        .release => |body| {
            const group = s.group_of(body.group) orelse return;
            group.member.on_release(body.round);
            groups.round_over(s, group);
        },
        .ask_safe_points => |body| {
            if (s.group_of(body.group)) |group| group.member.on_ask(body.round);
        },
        .activate => |*body| {
            const group = s.group_of(body.group) orelse return;
            try group.member.on_activate(body);
            groups.round_over(s, group);
        },
        .view => |*body| {
            const group = s.group_of(body.group) orelse return;
            try group.member.on_view(body);
            for (s.links.items) |link| link.early.prune(body.group, body.epoch, body.attempt);
            links.review(s);
        },
        .resume_op => |*body| if (s.group_of(body.group)) |group| {
            try group.member.on_resume_op(body);
        },
        .resume_all => |*body| if (s.group_of(body.group)) |group| {
            try group.member.on_resume(body);
        },
        .commit => |*body| if (s.group_of(body.group)) |group| {
            try group.member.on_commit(body);
        },
        .abort => |*body| if (s.group_of(body.group)) |group| {
            try group.member.on_abort(body);
            for (s.links.items) |link| {
                link.early.forget(.of_operation(body.group, body.epoch, body.op));
            }
        },
        .expelled => |*body| groups.on_expelled(s, body),
        .address_told => |*body| try links.on_address(s, &body.peer),
        .labels => |*body| try labels.on_labels(s, body),
        .state_elected => |*body| if (s.group_of(body.group)) |group| {
            const op = try group.member.on_elected(body) orelse return;
            syncing.elected(s, .from_op(op), body);
        },
        .state_ask => |*body| if (s.group_of(body.group)) |group| {
            const op = group.member.find_sync(body.epoch, body.op) orelse return;
            try syncing.describe(.from_op(op), body.first);
        },
        .state_differs => |*body| if (s.group_of(body.group)) |group| {
            const op = group.member.find_sync(body.epoch, body.op) orelse return;
            Operation.from_op(op).work.sync.note_differs(body.text.data);
        },
        .stalled => |*body| try waits.on_stalled(s, body),
        .waiting => |*body| waits.on_waiting(s, body),
        .awaited => |*body| try waits.on_awaited(s, body),
        .entered => |*body| if (s.group_of(body.group)) |group| {
            try group.member.on_entered(body);
        },
        .measured => |*body| if (s.group_of(body.group)) |group| {
            try figures.on_measured(s, group, body);
        },
        .probe => |*body| if (s.group_of(body.group)) |group| {
            try probing.on_probe(s, group, body);
        },
        .unreached => |*body| if (s.group_of(body.group) != null) rounds.say_unreached(
            s,
            .of(labels.named(s, body.peer), true, body.dialed, body.source, body.address.data),
        ),
        .dial_back => |*body| try dial_back.begin(s, body),
        // Messages that only a peer sends.
        .join,
        .epoch_report,
        .knows_commit,
        .knows_abort,
        .join_end,
        .leave,
        .heartbeat,
        .prepared,
        .safe_points,
        .activated,
        .epoch_closed,
        .done,
        .gave_up,
        .mismatch_seen,
        .report_op,
        .report_end,
        .decisions_seen,
        .link_lost,
        .link_told,
        .status_request,
        .status_reply,
        .state_offer,
        .state_tensors,
        .ask_address,
        .called,
        .traffic,
        .dialed_back,
        => return error.Unexpected,
    }
}

fn on_welcome(s: *Session, body: control.Welcome) Error!void {
    // Decoding has bounded them from above.
    const sane = body.chunk_bytes >= 1 and body.window_bytes >= 1 and
        body.windows_bytes >= body.window_bytes and
        body.heartbeat_ns >= limits.heartbeat_ns_min and
        body.silence_ns / 3 >= body.heartbeat_ns and
        body.stall_warning_ns >= body.heartbeat_ns;
    if (!sane) return error.Unexpected;
    s.welcomed = true;
    if (s.knows_settings() and !std.meta.eql(s.settings, body))
        return lose_coordinator(s, "it has other settings than before");
    s.settings = body;
}

pub fn tick(s: *Session, late: bool) void {
    if (late) s.last_heard = s.now;
    if (s.control_failed) return hang_up(s, "out of memory for a control message");
    if (s.now >= silent_at(s)) return hang_up(s, "the coordinator was silent for too long");
    if (!is_welcome(s) or s.now < s.heartbeat_at) return;
    s.heartbeats += 1;
    s.heartbeat_at = s.now +| s.settings.heartbeat_ns;
    s.probe.budget.pass(s.now, s.bytes_sent, s.probe.bytes_max);
    s.send(.{ .heartbeat = .{
        .number = s.heartbeats,
        .bytes_sent = s.bytes_sent,
        .bytes_received = s.bytes_received,
        .may_probe = probing.may_begin(s),
    } });
    s.beat_at = s.now;
    var room: traffic.Room = undefined;
    const moved: traffic.Moved = .{ .sent = s.bytes_sent, .received = s.bytes_received };
    const account =
        traffic.account(&s.traffic, s.now, s.links.items, &s.node, moved, s.rates.all, &room);
    if (account) |told| s.send(.{ .traffic = told });
}

/// The way to the coordinator and back. A machine that is busy answers later, so the shortest
/// counts, and is forgotten slowly: the way may have become longer.
fn note_round_trip(s: *Session, number: u64) void {
    if (number != s.heartbeats) return;
    const taken_ns = s.now -| s.beat_at;
    const known_ns = s.round_trip_ns;
    s.round_trip_ns = if (known_ns == 0) taken_ns else @min(taken_ns, known_ns + known_ns / 8);
}

/// Whether the coordinator has said how this run beats.
pub fn is_welcome(s: *const Session) bool {
    return s.control_state == .open and s.welcomed;
}

/// When a coordinator that says nothing more is given up.
pub fn silent_at(s: *const Session) Instant {
    if (!s.knows_settings()) return s.last_heard +| limits.stranger_ns_max;
    // Early enough to come back, on another connection, before the coordinator gives this peer
    // up: if one that both believe in swallows what is said, both hear nothing.
    const patience_ns = @max(s.settings.silence_ns / 2, 2 *| s.settings.heartbeat_ns);
    return s.last_heard +| patience_ns;
}
