//! Control: the connection to the coordinator, which is opened, lost and opened again. Each message
//! of the coordinator goes to the file that it concerns. Without the connection, data still moves.
//! The file also carries out the actions that protocol/member.zig decides on. membership.zig adds
//! and ends groups when the coordinator says so. All functions are free functions on Session.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const account_of_traffic = @import("session.zig").account_of_traffic;
const dial = @import("dial.zig");
const frame = @import("frame.zig");
const free_operation = @import("session.zig").free_operation;
const label_named = @import("session.zig").label_named;
const measure = @import("measure.zig");
const membership = @import("membership.zig");
const names_of_failure = @import("session.zig").names_of_failure;
const on_labels = @import("session.zig").on_labels;
const queue_leave = @import("session.zig").queue_leave;
const step_queue = @import("session.zig").step_queue;
const sync_file = @import("sync.zig");
const wake_all = @import("session.zig").wake_all;
const Early = @import("link.zig").Early;
const Group = @import("group.zig").Group;
const GroupEvent = @import("session.zig").GroupEvent;
const LinkMoved = @import("session.zig").LinkMoved;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const TrafficRoom = @import("session.zig").TrafficRoom;
const Failure = protocol.Failure;
const Instant = base.Instant;
const Status = protocol.Status;
const assert = std.debug.assert;
const control = wire.control;
const limits = base.limits;

const Error = error{ OutOfMemory, Unexpected };

const reconnect_ns_min: u64 = 10 * std.time.ns_per_ms;
const reconnect_ns_max: u64 = 400 * std.time.ns_per_ms;

/// The connection to the coordinator is open: sends the hello. `address` must be set by now.
pub fn opened(s: *Session, now: Instant) void {
    s.reach(now);
    // The session gave the coordinator up while the driver was still dialing.
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

/// The driver has appended bytes to `control`: reads the messages in these bytes.
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
    dial.greet_waiting(s);
    run_deferred(s);
}

/// The connection to the coordinator has closed, or could not be opened.
pub fn closed(s: *Session, now: Instant) void {
    s.reach(now);
    coordinator_away(s, "the connection to the coordinator closed");
    run_deferred(s);
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
    for (s.groups.items) |group| membership.present_group(s, group);
}

/// The coordinator refuses this peer because another process has its id. The coordinator has
/// removed this peer, so all memberships are lost.
fn lose_place(s: *Session, verdict: wire.hello.Verdict) void {
    switch (verdict) {
        .refused, .held => {},
        .welcome, .version_mismatch, .wrong_run, .wrong_peer, .full => return,
    }
    for (s.groups.items) |group| {
        if (group.state == .left or group.member.current == null) continue;
        const why = "another process has taken its place, under its peer_id";
        membership.lose_membership(s, group, why);
    }
}

/// Ends the connection to the coordinator. The session opens another one later.
pub fn hang_up(s: *Session, why: []const u8) void {
    s.host.vtable.control_close(s.host.ctx);
    coordinator_away(s, why);
}

/// The connection to the coordinator is gone: plans the next one. Data still moves; only decisions
/// wait.
fn coordinator_away(s: *Session, why: []const u8) void {
    if (s.control_state == .lost or s.control_state == .away) return;
    const wanted = is_in_groups(s);
    if (s.control_state == .open) {
        const blank = if (s.coordinator_at.len > 0) " " else "";
        // Names this peer, because a process may have several.
        const text = "peer {f} has lost the coordinator: {s}; trying{s}{s} again";
        const self = label_named(s, s.self);
        if (wanted) s.log(.warning, text, .{ self, why, blank, s.coordinator_at });
        membership.disconnected(s);
        s.away_since = s.now;
    }
    s.control_state = .away;
    const back_off = @min(reconnect_ns_min << @min(s.reconnects, 6), reconnect_ns_max);
    const pause_ns = back_off / 2 + s.prng.below(back_off / 2 + 1);
    // A coordinator disconnects a peer without groups after a while. Such a peer dials again only
    // to join.
    s.reconnect_at = if (wanted) s.now + pause_ns else base.never;
    s.reconnects +|= 1;
}

fn is_in_groups(s: *const Session) bool {
    for (s.groups.items) |group| if (group.state != .left) return true;
    return false;
}

/// Gives the coordinator up: the session does not dial it again, and all groups end.
pub fn lose_coordinator(s: *Session, why: []const u8) void {
    s.host.vtable.control_close(s.host.ctx);
    s.log(.warning, "the coordinator is lost: {s}", .{why});
    end_groups(s, why);
}

/// The driver ends: all calls that wait for the coordinator fail now.
pub fn abandon(s: *Session, now: Instant) void {
    s.reach(now);
    if (s.control_state != .lost) end_groups(s, "this peer ends");
    for (s.operations.items) |operation| if (operation.moves()) |x| x.end_now();
    run_deferred(s);
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
        membership.group_gone(s, group, status, why);
    }
}

fn dispatch(s: *Session, message: *const control.Message) Error!void {
    // The welcome comes first on each connection, because all other messages rely on its settings.
    if ((message.* == .welcome) == s.welcomed) return error.Unexpected;
    switch (message.*) {
        .welcome => |body| try on_welcome(s, body),
        .joined => |*body| try membership.on_joined(s, body),
        .refused => |*body| try membership.on_refused(s, body),
        .heartbeat_ack => |body| note_round_trip(s, body.number),
        .prepare => |*body| try membership.on_prepare(s, body),
        .release => |body| {
            const group = s.group_of(body.group) orelse return;
            group.member.on_release(body.round);
            membership.round_over(s, group);
        },
        .ask_safe_points => |body| {
            if (s.group_of(body.group)) |group| group.member.on_ask(body.round);
        },
        .activate => |*body| {
            const group = s.group_of(body.group) orelse return;
            try group.member.on_activate(body);
            membership.round_over(s, group);
        },
        .view => |*body| {
            const group = s.group_of(body.group) orelse return;
            try group.member.on_view(body);
            for (s.links.items) |link| link.early.prune(body.group, body.epoch, body.attempt);
            dial.review(s);
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
        .expelled => |*body| membership.on_expelled(s, body),
        .address_told => |*body| try dial.on_address(s, &body.peer),
        .labels => |*body| try on_labels(s, body),
        .state_elected => |*body| if (s.group_of(body.group)) |group| {
            const op = try group.member.on_elected(body) orelse return;
            sync_file.elected(s, .from_op(op), body);
        },
        .state_ask => |*body| if (s.group_of(body.group)) |group| {
            const op = group.member.find_sync(body.epoch, body.op) orelse return;
            try sync_file.describe(.from_op(op), body.first);
        },
        .state_differs => |*body| if (s.group_of(body.group)) |group| {
            const op = group.member.find_sync(body.epoch, body.op) orelse return;
            Operation.from_op(op).work.sync.note_differs(body.text.data);
        },
        .stalled => |*body| try membership.on_stalled(s, body),
        .waiting => |*body| membership.on_waiting(s, body),
        .awaited => |*body| try membership.on_awaited(s, body),
        .entered => |*body| if (s.group_of(body.group)) |group| {
            try group.member.on_entered(body);
        },
        .measured => |*body| if (s.group_of(body.group)) |group| {
            try measure.on_measured(s, group, body);
        },
        .probe => |*body| if (s.group_of(body.group)) |group| {
            try measure.on_probe(s, group, body);
        },
        .optimized => |body| if (s.group_of(body.group)) |group| membership.on_optimized(s, group),
        .unreached => |*body| if (s.group_of(body.group) != null) dial.say_unreached(
            s,
            .of(label_named(s, body.peer), true, body.dialed, body.source, body.address.data),
        ),
        .dial_back => |*body| try dial.begin_dial_back(s, body),
        // Only peers send these messages.
        .join,
        .epoch_report,
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
        .optimize,
        => return error.Unexpected,
    }
}

fn on_welcome(s: *Session, body: control.Welcome) Error!void {
    // Decoding has checked the upper bounds of these settings.
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

pub fn tick_control(s: *Session, late: bool) void {
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
        .may_probe = measure.may_begin(s),
        .is_idle = measure.is_idle(s),
    } });
    s.beat_at = s.now;
    var room: TrafficRoom = undefined;
    const moved: LinkMoved = .{ .sent = s.bytes_sent, .received = s.bytes_received };
    const account =
        account_of_traffic(&s.traffic, s.now, s.links.items, &s.node, moved, s.rates.all, &room);
    if (account) |told| s.send(.{ .traffic = told });
}

/// Measures the time until the coordinator answered a heartbeat. A busy machine answers later, so
/// the shortest time counts. The kept time grows by at most an eighth per heartbeat, as the route
/// may become longer.
fn note_round_trip(s: *Session, number: u64) void {
    if (number != s.heartbeats) return;
    const taken_ns = s.now -| s.beat_at;
    const known_ns = s.round_trip_ns;
    s.round_trip_ns = if (known_ns == 0) taken_ns else @min(taken_ns, known_ns + known_ns / 8);
}

/// Whether the coordinator has sent its settings on the present connection.
pub fn is_welcome(s: *const Session) bool {
    return s.control_state == .open and s.welcomed;
}

/// When this peer ends a connection on which the coordinator says nothing.
pub fn silent_at(s: *const Session) Instant {
    if (!s.knows_settings()) return s.last_heard +| limits.stranger_ns_max;
    // If a connection swallows all messages, neither side hears the other. This limit is short
    // enough to reconnect before the coordinator counts this peer as lost.
    const patience_ns = @max(s.settings.silence_ns / 2, 2 *| s.settings.heartbeat_ns);
    return s.last_heard +| patience_ns;
}

// ---- what members want done
//
// A member (protocol/member.zig) decides, and calls the functions of this table to carry the
// decision out: to send messages, move or stop data, end calls, and inform users. These functions
// run inside Member, so work that would call Member again is deferred.

pub const member_actions: protocol.Member.ActionsTable = .{
    .send = action_send,
    .stop = action_stop,
    .chunks = action_chunks,
    .start = action_start,
    .finished = action_finished,
    .resolved = action_resolved,
    .admitted = action_admitted,
    .closed = action_closed,
};

fn group_from(ctx: *anyopaque) *Group {
    return @ptrCast(@alignCast(ctx));
}

fn session_of(group: *const Group) *Session {
    return @ptrCast(@alignCast(group.session));
}

fn action_send(ctx: *anyopaque, message: control.Message) void {
    session_of(group_from(ctx)).send(message);
}

fn action_stop(ctx: *anyopaque, epoch: u64) void {
    const group = group_from(ctx);
    const s = session_of(group);
    for (s.operations.items) |operation| {
        if (operation.group != group or operation.op.epoch != epoch) continue;
        frame.stop(s, operation);
    }
}

fn action_chunks(_: *anyopaque, op: *protocol.Op) []const u32 {
    const x = Operation.from_op(op).moves() orelse return &.{};
    return x.board.ledger.reduced;
}

fn action_start(ctx: *anyopaque, op: *protocol.Op, kept: []const control.KeptRange) void {
    const s = session_of(group_from(ctx));
    frame.start(s, Operation.from_op(op), kept);
    measure.note_figures(s, Operation.from_op(op));
}

fn action_finished(ctx: *anyopaque, op: *protocol.Op, failure: ?Failure) void {
    const s = session_of(group_from(ctx));
    const operation = Operation.from_op(op);
    assert(operation.is_over() and !operation.finished);
    operation.ended_queued = operation.is_queued;
    if (operation.is_queued) queue_leave(s, operation);
    if (failure) |why| {
        operation.failure = why;
        operation.failure.coordinator_silent_ns = coordinator_silent_ns(s);
        if (s.away_since != base.never)
            operation.failure.coordinator_away_ns = s.now -| s.away_since;
        operation.status = why.status;
        operation.note_wanted(s.self);
        operation.names = names_of_failure(s, operation);
    } else if (operation.sync() != null) s.sync_point(operation, .sync_committed, 0) //
    else s.fault_point(operation, .operation_committed);
    var is_back = true;
    if (operation.status == .in_doubt and op.state == .in_doubt) {
        is_back = frame.set_aside(s, operation);
    } else {
        frame.stop(s, operation);
        if (operation.sync() != null) sync_file.over(s, operation, operation.status == .ok) //
        else if (operation.status != .ok) is_back = operation.work.movement.restore();
        const key: Early.Key = .of_operation(operation.group.id.?, op.epoch, op.id);
        for (s.links.items) |link| link.early.forget(key);
    }
    if (operation.partner()) |id| dial.give_back(s, id);
    if (is_back) return tell_finished(s, operation);
    s.giving_back += 1;
    if (operation.purpose == .data) return;
    operation.work.movement.end_now();
    tell_back(s);
}

/// Tells the caller that the operation is finished and that the caller has its memory back.
fn tell_finished(s: *Session, operation: *Operation) void {
    operation.finished = true;
    operation.finished_at = s.now;
    if (operation.purpose == .safe_point) return membership.note_safe_points(s, operation);
    s.host.vtable.operation_finished(s.host.ctx, operation);
}

/// Tells callers that the session has finished giving their memory back.
pub fn tell_back(s: *Session) void {
    if (s.giving_back == 0) return;
    var index: usize = 0;
    while (index < s.operations.items.len) : (index += 1) {
        const operation = s.operations.items[index];
        if (!operation.is_back()) continue;
        s.giving_back -= 1;
        // While giving memory back, the operation sent nothing; other members may wait for its
        // data.
        wake_all(s, operation);
        tell_finished(s, operation);
        if (operation.is_decided) resolve_action(s, operation, operation.committed);
    }
}

pub fn resolve_action(s: *Session, operation: *Operation, committed: ?bool) void {
    operation.committed = committed;
    if (operation.purpose == .safe_point and !operation.released)
        return membership.note_safe_points(s, operation);
    if (!operation.released) return s.host.vtable.operation_resolved(s.host.ctx, operation);
    free_operation(s, operation);
}

fn action_resolved(ctx: *anyopaque, op: *protocol.Op, committed: ?bool) void {
    const s = session_of(group_from(ctx));
    const operation = Operation.from_op(op);
    frame.stop(s, operation);
    if (operation.partner()) |id| dial.give_back(s, id);
    if (operation.finished) return resolve_action(s, operation, committed);
    // The caller's memory is still being given back: tell_back reports the end and the decision.
    operation.is_decided = true;
    operation.committed = committed;
}

fn action_admitted(ctx: *anyopaque, failure: ?Status) void {
    const group = group_from(ctx);
    const s = session_of(group);
    group.admit_deadline = base.never;
    if (failure == null) {
        membership.passed_together(group);
        tell_entry(s, group);
    }
    const event: GroupEvent = if (failure) |status|
        .{ .admit_failed = status }
    else
        .admitted;
    s.host.vtable.group_event(s.host.ctx, group, event);
}

/// Logs that this peer has entered an epoch, once for each epoch.
fn tell_entry(s: *Session, group: *Group) void {
    const current = group.member.current orelse return;
    if (group.entry_said == current.number) return;
    group.entry_said = current.number;
    s.log(.info, "entered epoch {d} of group {s} as rank {d} of {d}", .{
        current.number,
        group.name,
        current.rank,
        current.world_size(),
    });
}

fn action_closed(ctx: *anyopaque, epoch: u64) void {
    const group = group_from(ctx);
    const s = session_of(group);
    for (s.links.items) |link| link.early.prune_epochs(group.id.?, epoch);
    membership.prune_addresses(s);
    dial.review(s);
}

/// How long the coordinator has sent no message; 0 while it answers heartbeats.
fn coordinator_silent_ns(s: *const Session) u64 {
    const silent_ns = s.now -| s.last_message;
    return if (silent_ns > 3 *| s.settings.heartbeat_ns) silent_ns else 0;
}

// ---- work that waits until no call is inside Member
//
// Work that is impossible inside a member's action, or while a lane's bytes are read, waits until a
// call of the driver or the user is about to return. Fields of Session say what there is to do.

/// Does all deferred work, including work that this adds.
pub fn run_deferred(s: *Session) void {
    while (true) {
        if (s.votes_changed) {
            s.votes_changed = false;
            for (s.groups.items) |group| membership.go_on_together(s, group);
        }
        tell_back(s);
        while (s.deferred.pop()) |operation| {
            if (operation.op.state == .finished) continue;
            frame.check_complete(s, operation);
        }
        if (!step_queue(s) and !s.votes_changed) break;
    }
    if (s.links_stale) {
        s.links_stale = false;
        dial.review(s);
    }
    if (s.lanes_broken) {
        s.lanes_broken = false;
        dial.close_broken(s);
    }
    if (!s.places_freed) return;
    s.places_freed = false;
    dial.greet_waiting(s);
}
