//! Driver: the functions of a session for its driver, which makes the session, tells it the time,
//! hands back jobs, moves the bytes of lanes and ends the session. All functions are free functions
//! on Session. control.zig has the bytes of the coordinator, link.zig a connection as bytes,
//! dial.zig how a connection becomes a lane, and frame.zig what the bytes of lanes mean.
//! session.zig lists a driver's duties.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const control = @import("control.zig");
const destroy_queue = @import("session.zig").destroy_queue;
const dial = @import("dial.zig");
const frame = @import("frame.zig");
const measure = @import("measure.zig");
const membership = @import("membership.zig");
const sync_file = @import("sync.zig");
const tick_queue = @import("session.zig").tick_queue;
const user = @import("user.zig");
const Lane = @import("link.zig").Lane;
const Session = @import("session.zig").Session;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;

pub fn create(gpa: Allocator, options: Session.Options) Allocator.Error!*Session {
    const s = try (options.secrets orelse gpa).create(Session);
    s.* = .{
        .gpa = gpa,
        .home = options.secrets orelse gpa,
        .self = options.peer_id,
        .run_id = options.run_id,
        .host = options.host,
        .prng = .init(options.seed),
        .pool = .init(gpa),
        .runner = options.runner,
        .control = .init(gpa),
        .instance = undefined,
        .address_key = options.address_key,
        .label = options.label,
        .strangers_max = options.strangers_max,
        .in_flight_max = options.in_flight_max,
        .fragment_bytes_min = options.fragment_bytes_min,
        .reconnect_timeout_ns = options.reconnect_timeout_ns,
        .rates = options.rates,
        .probe = .init(options.probe_bytes_max),
    };
    s.instance = s.prng.next() | 1;
    return s;
}

/// Frees the session. The driver must have closed all connections, and must not use lanes, groups
/// or operations afterwards.
pub fn destroy(s: *Session) void {
    for (s.operations.items) |operation| operation.destroy();
    destroy_queue(s);
    s.operations.deinit(s.gpa);
    for (s.groups.items) |group| membership.group_free(s, group);
    s.groups.deinit(s.gpa);
    for (s.links.items) |link| dial.link_free(s, link);
    s.links.deinit(s.gpa);
    for (s.strangers.items) |lane| dial.lane_free(s, lane);
    s.strangers.deinit(s.gpa);
    if (s.dial_back) |under_way| dial.lane_free(s, under_way.lane);
    for (s.addresses.values()) |address| s.gpa.free(address);
    s.addresses.deinit(s.gpa);
    s.labels.deinit(s.gpa);
    s.deferred.deinit(s.gpa);
    s.control.deinit();
    s.pool.deinit();
    s.gpa.free(s.address);
    s.home.destroy(s);
}

/// Sets the address at which other peers dial this peer.
pub fn set_address(s: *Session, address: []const u8) Allocator.Error!void {
    const copy = try s.gpa.dupe(u8, address);
    s.gpa.free(s.address);
    s.address = copy;
}

/// A runner has done a job, which no fence has waited for.
pub fn job_done(s: *Session, now: Instant, job: *base.Job) void {
    s.reach(now);
    for (s.operations.items) |operation| switch (operation.work) {
        .movement => |x| if (@as(*const anyopaque, x) == job.owner) {
            frame.job_done(s, operation, job);
            break;
        },
        .sync => |it| if (it.transfer.hashing.owns(job)) {
            sync_file.job_done(s, operation, job);
            break;
        },
    } else sync_file.prefetch_job_done(s, job);
    control.run_deferred(s);
}

/// Does all work of a session that is due at `now`. Not inlined, because the stack frame is large
/// and calls are rare.
pub noinline fn tick(s: *Session, now: Instant) void {
    s.reach(now);
    // A late tick means that this process was frozen and heard no peer, so silence timers restart.
    const late = s.knows_settings() and now -| s.last_tick > 2 *| s.settings.heartbeat_ns;
    s.last_tick = now;
    if (now >= control.reconnect_until(s))
        control.lose_coordinator(s, "it was away for longer than reconnect_timeout");
    switch (s.control_state) {
        .greeting, .open => control.tick_control(s, late),
        .away => if (now >= s.reconnect_at) {
            s.control_state = .dialing;
            s.host.vtable.control_dial(s.host.ctx);
        },
        .closed, .dialing, .lost => {},
    }
    for (s.groups.items) |group| {
        if (group.admit_deadline > now) continue;
        user.admit_withdraw(s, group, .deadline);
        s.host.vtable.group_event(s.host.ctx, group, .{ .admit_failed = .deadline_exceeded });
    }
    var index: usize = 0;
    while (index < s.operations.items.len) : (index += 1) {
        const operation = s.operations.items[index];
        if (!operation.is_over()) membership.say_called(s, operation);
        membership.review_waits(s, operation, late);
        if (!operation.is_over() and operation.deadline <= now) {
            operation.group.member.give_up(&operation.op, .deadline);
            // A sync that has voted waits for the coordinator's answer for a silence limit longer.
            if (!operation.is_over()) operation.deadline = now +| s.settings.silence_ns;
        } else if (operation.sync() != null) {
            sync_file.tick(s, operation, late);
        } else if (operation.has_work()) {
            operation.work.movement.work();
            if (operation.op.state != .finished) frame.check_complete(s, operation);
        }
    }
    tick_queue(s);
    sync_file.tick_prefetch(s, late);
    if (now >= s.measure_at) dial.measure_all(s);
    dial.tick_links(s, late);
    dial.tick_round(s);
    control.run_deferred(s);
}

/// How long the driver may let received bytes gather before it reads them.
pub fn patience_ns(s: *const Session) u64 {
    return if (s.measure_at == base.never) 0 else measure.patience_ns(s.links.items);
}

/// When the driver must call tick. Once a coordinator has sent its settings, this is at most a
/// heartbeat after the last tick, so a later tick means that the process was frozen.
pub fn next_deadline(s: *const Session) Instant {
    var next: Instant = switch (s.control_state) {
        .closed, .dialing, .lost => base.never,
        .away => s.reconnect_at,
        .greeting => control.silent_at(s),
        .open => if (control.is_welcome(s)) @max(s.heartbeat_at, s.last_tick) //
        else control.silent_at(s),
    };
    if (s.knows_settings() and s.control_state != .lost)
        next = @min(next, s.last_tick +| s.settings.heartbeat_ns);
    for (s.groups.items) |group| next = @min(next, group.admit_deadline);
    next = @min(next, s.measure_at, s.queue.deadline, control.reconnect_until(s));
    for (s.operations.items) |operation| {
        if (!operation.is_over())
            next = @min(next, operation.deadline, membership.says_called_at(s, operation));
        if (operation.has_work() or operation.is_back()) next = @min(next, s.now);
    }
    return @min(next, dial.next_link_deadline(s), dial.next_round_deadline(s));
}

/// Takes an inbound connection. Null: there is no memory or no place for the connection, and the
/// driver closes it.
pub fn accept(s: *Session, now: Instant, source: base.Source) ?*Lane {
    s.reach(now);
    return dial.accept(s, source);
}

/// A connection that the driver dialed is open.
pub fn opened(s: *Session, now: Instant, lane: *Lane) void {
    s.reach(now);
    dial.lane_dialed(s, lane);
}

/// A connection of a lane has ended, or could not be opened. The lane is invalid afterwards.
pub fn closed(s: *Session, now: Instant, lane: *Lane) void {
    s.reach(now);
    // A process that closes the connection before greeting is no peer of this run.
    if (lane.state == .greeting) dial.note_dialed(s, lane, .other_answers);
    dial.lane_gone(s, lane);
    control.run_deferred(s);
}

/// Notes the local address from which a lane is dialed. A dial on the coordinator's behalf has no
/// link, and its address is not noted.
pub fn dials_from(lane: *Lane, source: base.Source) void {
    if (lane.link) |link| link.dialed_from = source;
}

/// A lane could not be dialed. The lane is invalid afterwards.
pub fn failed(s: *Session, now: Instant, lane: *Lane, why: wire.Dialed) void {
    dial.note_dialed(s, lane, why);
    closed(s, now, lane);
}

/// The memory into which the driver reads the next bytes of this lane.
pub fn recv_slices(s: *Session, lane: *Lane, slices: *[2][]u8) usize {
    return lane.recv_slices(&s.sink, slices);
}

/// The driver has read `count` bytes into the slices of recv_slices, in order. The lane may close.
pub fn received(s: *Session, now: Instant, lane: *Lane, count: usize) void {
    s.reach(now);
    s.bytes_received += count;
    if (lane.link) |link| link.received += count;
    lane.heard_at = now;
    if (lane.takes()) begin_measuring(s);
    frame.received(s, lane, count);
    control.run_deferred(s);
}

/// The bytes to send on this lane now. Returns the number of slices; 0: nothing to send.
pub fn send_slices(
    s: *Session,
    now: Instant,
    lane: *Lane,
    slices: *[2][]const u8,
) usize {
    s.reach(now);
    if (!lane.out_busy) frame.next_outgoing(s, lane);
    return lane.send_slices(slices);
}

/// The driver has sent `count` bytes of the slices of send_slices.
pub fn sent(s: *Session, now: Instant, lane: *Lane, count: usize) void {
    s.reach(now);
    s.bytes_sent += count;
    if (lane.link) |link| link.sent += count;
    lane.spoke_at = now;
    if (lane.out_payload.len > 0) begin_measuring(s);
    if (lane.sent(count)) frame.outgoing_sent(s, lane);
}

/// A payload moves: begins to measure links. Pings alone are too few bytes to measure.
fn begin_measuring(s: *Session) void {
    if (s.measure_at != base.never) return;
    measure.begin_after(s.links.items, &s.node, s.now -| s.measured_at);
    s.measured_at = s.now;
    s.measure_at = s.now +| measure.every_ns;
}
