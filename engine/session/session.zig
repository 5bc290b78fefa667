//! Session: everything one peer process does, without its sockets, clock and threads.
//!
//! For drivers (net/, tests/sim): all functions of one Session run under one lock. The driver owns
//! a connection to the coordinator (bytes in and out of `control`) and one per Lane. It tells the
//! session which bytes arrived and asks it which to send. `Host` has the functions that the session
//! needs from the driver. After any call: if `control.send_slice()` is not empty, send it; call
//! `tick` at or after `next_deadline()`. Host functions must not call back into the session.
//!
//! Data moves in frames.zig, links are kept in links.zig, protocol/member.zig decides, and
//! collective/executor.zig has the arithmetic.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const collective = @import("collective");
const kernels = @import("kernels");
const Lane = @import("lane.zig").Lane;
const Link = @import("link.zig").Link;
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const State = @import("state.zig").State;
const Span = @import("uses.zig").Span;
const Uses = @import("uses.zig").Uses;
const Sync = @import("sync.zig").Sync;
const dial_back = @import("dial_back.zig");
const frames = @import("frames.zig");
const labels = @import("labels.zig");
const links = @import("links.zig");
const outline = @import("outline.zig");
const rounds = @import("rounds.zig");
const prefetch = @import("prefetch.zig");
const queue = @import("queue.zig");
const sync = @import("sync.zig");
const traffic = @import("traffic.zig");
const Unreached = @import("unreached.zig").Unreached;
const vote = @import("vote.zig");
const waits = @import("waits.zig");
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;
const Status = protocol.Status;
const Failure = protocol.Failure;
const assert = std.debug.assert;

pub const LogLevel = protocol.LogLevel;

pub const GroupEvent = union(enum) {
    /// Lanes to all members are open: admit() may be called.
    ready,
    /// The coordinator refuses, or is gone before the group was ready.
    join_failed: struct { status: Status, why: []const u8 },
    /// The pending admit() entered an epoch or passed the safe point.
    admitted,
    admit_failed: Status,
    /// This peer is not a member any more.
    gone: Status,
};

/// Named points at which tests may end the process (net/fault.zig): of a sync, and of whatever
/// reduces, gathers, scatters or carries a message.
pub const FaultPoint = enum {
    all_reduce_called,
    all_reduce_opened,
    all_reduce_partial,
    all_reduce_settled,
    all_reduce_voted,
    all_reduce_committed,
    sync_offered,
    /// A leaf has gone to another member.
    sync_given,
    /// A leaf has come in, and is as it must be.
    sync_taken,
    sync_voted,
    sync_committed,
};

pub const Host = struct {
    ctx: *anyopaque,
    vtable: *const VTable,

    pub const VTable = struct {
        /// Start connecting; answer later with lane_opened or lane_closed.
        dial: *const fn (ctx: *anyopaque, lane: *Lane, address: []const u8) void,
        /// Close the connection now. The lane is invalid afterwards; do not call lane_closed.
        lane_close: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// There may be something to send on this lane: ask lane_send_slices soon, not from here.
        lane_wake: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// Start connecting to the coordinator; answer later with control_opened or control_closed.
        control_dial: *const fn (ctx: *anyopaque) void,
        /// Close the coordinator connection; do not call control_closed.
        control_close: *const fn (ctx: *anyopaque) void,
        group_event: *const fn (ctx: *anyopaque, group: *Group, event: GroupEvent) void,
        /// The session does not touch the caller's buffers any more.
        operation_finished: *const fn (ctx: *anyopaque, operation: *Operation) void,
        /// operation.committed is known now, or never will be (null).
        operation_resolved: *const fn (ctx: *anyopaque, operation: *Operation) void,
        fault_point: *const fn (
            ctx: *anyopaque,
            point: FaultPoint,
            sequence: u64,
            done: u64,
            total: u64,
        ) void,
        log: *const fn (ctx: *anyopaque, level: LogLevel, message: []const u8) void,
    };
};

pub const Session = struct {
    gpa: Allocator,
    /// Where the session itself lies.
    home: Allocator,
    self: PeerId,
    run_id: base.RunId,
    host: Host,
    runner: ?base.Runner,
    prng: base.Prng,
    pool: collective.Pool,
    now: Instant = 0,

    control: wire.Stream,
    control_state: ControlState = .closed,
    /// The coordinator's settings of the run, at the first connection and at each one since.
    settings: control.Welcome = std.mem.zeroes(control.Welcome),
    /// It has been said on this connection.
    welcomed: bool = false,
    /// When the next connection is tried, and how often that has failed.
    reconnect_at: Instant = base.never,
    reconnects: u6 = 0,
    /// Which process of this id connects.
    instance: u64,
    last_heard: Instant = 0,
    /// The same over all connections, also those on which nothing came.
    last_message: Instant = 0,
    /// Since when there is no connection on which it has answered; `never` while there is one.
    away_since: Instant = base.never,
    last_tick: Instant = 0,
    heartbeat_at: Instant = 0,
    heartbeats: u64 = 0,
    /// When the last heartbeat left, and how long an answer takes at best.
    beat_at: Instant = 0,
    round_trip_ns: u64 = 0,
    /// The last account of the links to the coordinator.
    traffic: traffic.Told = .{},
    /// Where other peers dial this one, and by what the coordinator finds it there.
    address: []u8 = &.{},
    /// The user has named it.
    advertised: bool = false,
    address_key: wire.hello.Key,
    /// Its name for people, and those of others.
    label: base.Label,
    /// Where the driver dials the coordinator, for people.
    coordinator_at: []const u8 = "",
    labels: labels.Labels = .{},
    strangers_max: u32,
    in_flight_max: u32,
    reconnect_timeout_ns: u64,
    /// Why the coordinator is gone, for the calls that fail with it.
    refusal: ?wire.hello.Verdict = null,
    not_pccl: bool = false,
    /// A message could not be kept: what the coordinator believes of this peer is not true any
    /// more.
    control_failed: bool = false,

    groups: std.ArrayList(*Group) = .empty,
    operations: std.ArrayList(*Operation) = .empty,
    queue: queue.Queue = .{},
    links: std.ArrayList(*Link) = .empty,
    strangers: std.ArrayList(*Lane) = .empty,
    /// Where the members of epochs and rounds are dialed.
    addresses: std.AutoArrayHashMapUnmanaged([16]u8, []u8) = .empty,
    /// For people: whom this peer could not dial, and who could not dial it.
    unreached: Unreached = .{},
    /// A dial that the coordinator has asked for is under way.
    dial_back: ?dial_back.DialBack = null,
    /// Members have agreed on a safe point, or have not: vote.zig looks what to do.
    votes_changed: bool = false,
    /// Some lane is `broken`.
    lanes_broken: bool = false,
    /// A place in some link is free again: a hello may have waited for it.
    places_freed: bool = false,
    /// A link was borrowed for a message that is over.
    links_stale: bool = false,
    /// Operations whose data is complete, or that must be given up, and whose member must still be
    /// told.
    deferred: std.ArrayList(*Operation) = .empty,
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// Fetches in the background that were begun (prefetch.zig).
    prefetches: u32 = 0,
    sink: [sink_bytes]u8 = undefined,

    const sink_bytes = 64 * limits.KiB;

    pub const ControlState = enum {
        /// There was no connection yet.
        closed,
        greeting,
        open,
        /// The connection is gone; another one is tried at `reconnect_at`.
        away,
        /// The driver tries.
        dialing,
        /// It refuses this peer for good.
        lost,
    };

    const reconnect_ns_min: u64 = 10 * std.time.ns_per_ms;
    const reconnect_ns_max: u64 = 400 * std.time.ns_per_ms;

    pub const Options = struct {
        peer_id: PeerId,
        run_id: base.RunId,
        seed: u64,
        /// Random: it shows that this peer is where it says.
        address_key: wire.hello.Key,
        label: base.Label = .{},
        /// Connections that have not shown that they are of this peer's groups.
        strangers_max: u32 = limits.strangers_max,
        /// Operations of one group in flight; fewer in tests.
        in_flight_max: u32 = limits.operations_in_flight_max,
        /// A coordinator that is away for so long is lost; `never`: calls wait for it until their
        /// deadlines.
        reconnect_timeout_ns: u64 = base.never,
        host: Host,
        /// Runs jobs; null: whoever makes them does them at once.
        runner: ?base.Runner = null,
        /// Where the session itself lies, which knows the run id; null: like the rest.
        secrets: ?Allocator = null,
    };

    pub fn create(gpa: Allocator, options: Options) Allocator.Error!*Session {
        const s = try (options.secrets orelse gpa).create(Session);
        s.* = .{
            .gpa = gpa,
            .home = options.secrets orelse gpa,
            .self = options.peer_id,
            .run_id = options.run_id,
            .host = options.host,
            .runner = options.runner,
            .prng = .init(options.seed),
            .pool = .init(gpa),
            .control = .init(gpa),
            .instance = undefined,
            .address_key = options.address_key,
            .label = options.label,
            .strangers_max = options.strangers_max,
            .in_flight_max = options.in_flight_max,
            .reconnect_timeout_ns = options.reconnect_timeout_ns,
        };
        s.instance = s.prng.next() | 1;
        return s;
    }

    /// The runner has run a job that was not fenced; called by the driver, in any order.
    pub fn job_done(s: *Session, now: Instant, job: *base.Job) void {
        s.reach(now);
        _ = job;
    }

    /// The driver has closed all connections and will not use lanes, groups or operations any more.
    pub fn destroy(s: *Session) void {
        for (s.operations.items) |operation| operation.destroy();
        queue.destroy(s);
        s.operations.deinit(s.gpa);
        for (s.groups.items) |group| s.group_free(group);
        s.groups.deinit(s.gpa);
        for (s.links.items) |link| links.free(s, link);
        s.links.deinit(s.gpa);
        for (s.strangers.items) |lane| links.lane_free(s, lane);
        s.strangers.deinit(s.gpa);
        if (s.dial_back) |under_way| links.lane_free(s, under_way.lane);
        for (s.addresses.values()) |address| s.gpa.free(address);
        s.addresses.deinit(s.gpa);
        s.labels.deinit(s.gpa);
        s.deferred.deinit(s.gpa);
        s.control.deinit();
        s.pool.deinit();
        s.gpa.free(s.address);
        s.home.destroy(s);
    }

    pub fn set_address(s: *Session, address: []const u8) Allocator.Error!void {
        const copy = try s.gpa.dupe(u8, address);
        s.gpa.free(s.address);
        s.address = copy;
    }

    /// Not inlined: the buffer would be a part of the frame of what runs for every piece.
    pub noinline fn log(
        s: *Session,
        level: LogLevel,
        comptime format: []const u8,
        args: anytype,
    ) void {
        var buffer: [limits.log_line_bytes_max]u8 = undefined;
        const text = std.fmt.bufPrint(&buffer, format, args) catch &buffer;
        s.host.vtable.log(s.host.ctx, level, text);
    }

    /// Time is what some thread read before it had the session to itself: another one may have been
    /// here meanwhile, with a later one. It never goes back.
    fn reach(s: *Session, now: Instant) void {
        s.now = @max(s.now, now);
    }

    // ---- the coordinator

    /// The connection is made; `address` must be set by now.
    pub fn control_opened(s: *Session, now: Instant) void {
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
        s.control.send_raw(&hello) catch s.hang_up("out of memory");
    }

    /// Bytes were appended to `control`.
    pub fn control_received(s: *Session, now: Instant) void {
        s.reach(now);
        s.last_heard = now;
        if (s.control_state == .greeting) s.control_greeted();
        while (s.control_state == .open) {
            const message = s.control.take() catch |err| {
                s.log(.err, "the coordinator sent bytes that make no sense: {t}", .{err});
                s.hang_up("the coordinator sent bytes that make no sense");
                break;
            } orelse break;
            s.last_message = s.now;
            s.dispatch(&message) catch |err| {
                s.log(.err, "the coordinator broke the protocol: {t}", .{err});
                s.hang_up("the coordinator broke the protocol");
            };
        }
        links.greet_waiting(s);
        s.run_deferred();
    }

    /// The connection ended, or could not be made.
    pub fn control_closed(s: *Session, now: Instant) void {
        s.reach(now);
        s.coordinator_away("the connection to the coordinator closed");
        s.run_deferred();
    }

    fn control_greeted(s: *Session) void {
        const bytes = s.control.take_raw(wire.hello.answer_bytes) orelse return;
        const verdict = wire.hello.decode_answer(bytes) catch |err| {
            s.not_pccl = err == error.NotPccl;
            s.refusal = .version_mismatch;
            return s.hang_up("what answers does not speak this version of PCCL");
        };
        if (verdict != .welcome) {
            s.refusal = verdict;
            const of_another_run = verdict == .wrong_run or verdict == .version_mismatch;
            if (s.knows_settings() and of_another_run)
                return s.lose_coordinator("its address belongs to another run now");
            if (s.knows_settings()) s.lose_place(verdict);
            return s.hang_up("the coordinator refused this peer");
        }
        s.control_state = .open;
        s.away_since = base.never;
        s.reconnects = 0;
        s.heartbeat_at = s.now;
        if (s.knows_settings()) s.log(.info, "connected to the coordinator again", .{});
        for (s.groups.items) |group| s.present(group);
    }

    /// The coordinator knows another process by the id of this one, so it has removed this one.
    fn lose_place(s: *Session, verdict: wire.hello.Verdict) void {
        switch (verdict) {
            .refused, .held => {},
            .welcome, .version_mismatch, .wrong_run, .wrong_peer, .full => return,
        }
        for (s.groups.items) |group| {
            if (group.state == .left or group.member.current == null) continue;
            s.lose_membership(group, "another process has taken its place, under its peer_id");
        }
    }

    pub fn send(s: *Session, message: control.Message) void {
        if (s.control_state != .open) return;
        // Ended in the next tick: from here the members that are being told something would be told
        // more.
        s.control.send(message) catch {
            s.control_failed = true;
        };
    }

    /// Ends the connection; another one is tried.
    fn hang_up(s: *Session, why: []const u8) void {
        s.host.vtable.control_close(s.host.ctx);
        s.coordinator_away(why);
    }

    /// Data moves on without the coordinator; only decisions wait.
    fn coordinator_away(s: *Session, why: []const u8) void {
        if (s.control_state == .lost or s.control_state == .away) return;
        const wanted = s.is_in_groups();
        if (s.control_state == .open) {
            const blank = if (s.coordinator_at.len > 0) " " else "";
            // A process may have several peers.
            const text = "peer {f} has lost the coordinator: {s}; trying{s}{s} again";
            const self = labels.named(s, s.self);
            if (wanted) s.log(.warning, text, .{ self, why, blank, s.coordinator_at });
            for (s.groups.items) |group| group.member.disconnected();
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
    fn lose_coordinator(s: *Session, why: []const u8) void {
        s.host.vtable.control_close(s.host.ctx);
        s.log(.warning, "the coordinator is lost: {s}", .{why});
        s.end_groups(why);
    }

    /// The driver ends: what still waits for the coordinator waits in vain.
    pub fn abandon(s: *Session, now: Instant) void {
        s.reach(now);
        if (s.control_state != .lost) s.end_groups("this peer ends");
        s.run_deferred();
    }

    /// When a coordinator that is away is given up.
    fn reconnect_until(s: *const Session) Instant {
        if (s.control_state == .lost or s.away_since == base.never) return base.never;
        return s.away_since +| s.reconnect_timeout_ns;
    }

    fn end_groups(s: *Session, why: []const u8) void {
        s.control_state = .lost;
        const status: Status = .coordinator_unreachable;
        for (s.groups.items) |group| {
            group.member.coordinator_lost();
            s.group_gone(group, status, why);
        }
    }

    fn group_gone(s: *Session, group: *Group, status: Status, why: []const u8) void {
        if (group.state == .left) return;
        group.state = .left;
        const event: GroupEvent = if (group.ready_told)
            .{ .gone = status }
        else
            .{ .join_failed = .{ .status = status, .why = why } };
        s.host.vtable.group_event(s.host.ctx, group, event);
        s.forget_group(group);
    }

    /// Whatever was kept for the group is not wanted any more.
    fn forget_group(s: *Session, group: *Group) void {
        group.admit_waits = false;
        group.vote.is_wanted = false;
        for (group.states.items) |state| prefetch.stop(s, state);
        if (group.id) |id| for (s.links.items) |link| link.prune_epochs(id, std.math.maxInt(u64));
        s.prune_addresses();
        links.review(s);
    }

    fn dispatch(s: *Session, message: *const control.Message) protocol_error!void {
        // Everything else relies on the settings of the run, which never change.
        if ((message.* == .welcome) == s.welcomed) return error.Unexpected;
        switch (message.*) {
            .welcome => |body| try s.on_welcome(body),
            .joined => |*body| try s.on_joined(body),
            .refused => |*body| s.on_refused(body),
            .heartbeat_ack => |body| s.note_round_trip(body.number),
            .prepare => |*body| try rounds.on_prepare(s, body),
            .release => |body| {
                const group = s.group_of(body.group) orelse return;
                group.member.on_release(body.round);
                rounds.over(s, group);
            },
            .ask_safe_points => |body| {
                if (s.group_of(body.group)) |group| group.member.on_ask(body.round);
            },
            .activate => |*body| {
                const group = s.group_of(body.group) orelse return;
                try group.member.on_activate(body);
                rounds.over(s, group);
            },
            .view => |*body| {
                const group = s.group_of(body.group) orelse return;
                try group.member.on_view(body);
                for (s.links.items) |link| link.prune(body.group, body.epoch, body.attempt);
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
                    link.forget(.of_operation(body.group, body.epoch, body.op));
                }
            },
            .expelled => |*body| s.on_expelled(body),
            .address_told => |*body| try links.on_address(s, &body.peer),
            .labels => |*body| try labels.on_labels(s, body),
            .state_elected => |*body| if (s.group_of(body.group)) |group| {
                const op = try group.member.on_elected(body) orelse return;
                sync.elected(s, operation_from(op), body);
            },
            .state_ask => |*body| if (s.group_of(body.group)) |group| {
                const op = group.member.find_sync(body.epoch, body.op) orelse return;
                try sync.describe(operation_from(op), body.first);
            },
            .state_differs => |*body| if (s.group_of(body.group)) |group| {
                const op = group.member.find_sync(body.epoch, body.op) orelse return;
                operation_from(op).sync.?.note_differs(body.text.data);
            },
            .stalled => |*body| try waits.on_stalled(s, body),
            .waiting => |*body| waits.on_waiting(s, body),
            .awaited => |*body| try waits.on_awaited(s, body),
            .entered => |*body| if (s.group_of(body.group)) |group| {
                try group.member.on_entered(body);
            },
            .unreached => |*body| if (s.group_of(body.group) != null) links.say_unreached(
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

    const protocol_error = error{ OutOfMemory, Unexpected };

    /// The group that the coordinator has given this number on this connection. One from before
    /// means nothing: another coordinator may number them anew.
    pub fn group_of(s: *Session, id: u16) ?*Group {
        for (s.groups.items) |group| {
            if (group.state != .joined or !group.member.connected) continue;
            if (group.id == id) return group;
        }
        return null;
    }

    fn on_welcome(s: *Session, body: control.Welcome) protocol_error!void {
        // Decoding has bounded them from above.
        const sane = body.lanes >= 1 and body.chunk_bytes >= 1 and body.window_bytes >= 1 and
            body.heartbeat_ns >= limits.heartbeat_ns_min and
            body.silence_ns / 3 >= body.heartbeat_ns and
            body.stall_warning_ns >= body.heartbeat_ns;
        if (!sane) return error.Unexpected;
        s.welcomed = true;
        if (s.knows_settings() and !std.meta.eql(s.settings, body))
            return s.lose_coordinator("it has other settings than before");
        s.settings = body;
    }

    /// A coordinator has been there.
    pub fn knows_settings(s: *const Session) bool {
        return s.settings.heartbeat_ns > 0;
    }

    fn on_joined(s: *Session, body: *const control.Joined) protocol_error!void {
        for (s.groups.items) |group| {
            if (group.state == .left or !std.mem.eql(u8, group.name, body.name.data)) continue;
            s.renumbered(body.group, group);
            group.state = .joined;
            group.id = body.group;
            group.member.welcomed(body.group);
            if (group.member.current == null) {
                group.member.forget_round();
                rounds.over(s, group);
            }
            return links.report_closed(s, group);
        }
        // The user left before the answer came, when the number to leave was not known yet.
        s.send(.{ .leave = .{ .group = body.group } });
    }

    /// A coordinator never gives the number of a group to another while a member of the first is in
    /// it: this peer is a member of that one no more, or the coordinator is a new one. Frames must
    /// not be taken for its.
    fn renumbered(s: *Session, number: u16, now_of: *const Group) void {
        for (s.groups.items) |group| {
            if (group == now_of or group.state != .joined or group.id != number) continue;
            s.log(.warning, "group {s} is not known to the coordinator any more", .{group.name});
            const why = "the coordinator has started without its journal";
            s.lose_membership(group, why);
        }
    }

    /// This peer is not a member any more, and finds out without being told.
    fn lose_membership(s: *Session, group: *Group, why: []const u8) void {
        group.removed(why);
        group.member.on_expelled(false);
        s.group_gone(group, .expelled, why);
    }

    fn on_refused(s: *Session, body: *const control.Refused) void {
        for (s.groups.items) |group| {
            if (!std.mem.eql(u8, group.name, body.name.data)) continue;
            if (group.state == .joining) {
                group.state = .left;
                s.host.vtable.group_event(s.host.ctx, group, .{ .join_failed = .{
                    .status = .cancelled,
                    .why = body.why.data,
                } });
            } else if (group.state == .joined and group.member.newest() == 0) {
                // It waited, and has asked anew on another connection.
                return s.lose_membership(group, body.why.data);
            }
        }
    }

    /// Forgets where peers are dialed that are in no epoch and no round of this one any more, and
    /// from which nothing is fetched; and their labels.
    pub fn prune_addresses(s: *Session) void {
        labels.prune(s);
        var index = s.addresses.count();
        while (index > 0) {
            index -= 1;
            const id: PeerId = .{ .bytes = s.addresses.keys()[index] };
            const wanted = for (s.groups.items) |group| {
                if (group.state == .joined and group.needs(id)) break true;
            } else false;
            if (wanted) continue;
            s.gpa.free(s.addresses.values()[index]);
            s.addresses.swapRemoveAt(index);
        }
    }

    pub fn remember_address(s: *Session, id: PeerId, address: []const u8) Allocator.Error!void {
        // The coordinator does not know it; perhaps it is known here from before.
        if (address.len == 0) return;
        const entry = try s.addresses.getOrPut(s.gpa, id.bytes);
        if (!entry.found_existing) entry.value_ptr.* = &.{};
        if (std.mem.eql(u8, entry.value_ptr.*, address)) return;
        const copy = try s.gpa.dupe(u8, address);
        s.gpa.free(entry.value_ptr.*);
        entry.value_ptr.* = copy;
    }

    fn on_expelled(s: *Session, body: *const control.Expelled) void {
        const everywhere = body.group == std.math.maxInt(u16);
        s.log(.warning, "the coordinator removed this peer: {s}", .{body.why.data});
        for (s.groups.items) |group| {
            if (group.state != .joined) continue;
            if (!everywhere and group != s.group_of(body.group)) continue;
            group.removed(body.why.data);
            if (body.refused and !body.peer.eql(.none)) group.wanted = .{
                .op = body.op,
                .peer = body.peer,
                .descriptor = body.descriptor,
            };
            group.member.on_expelled(body.refused);
            // The last that is said of it: then the number may be that of another group.
            if (!everywhere) s.send(.{ .leave = .{ .group = body.group } });
            // A newcomer that has called nothing differs in what it has named (founding.zig).
            const named_others = body.refused and !group.ready_told;
            s.group_gone(group, if (named_others) .mismatch else .expelled, body.why.data);
        }
    }

    // ---- groups

    pub const JoinError = error{ OutOfMemory, AlreadyJoined };

    /// Asks to join a group; `ready` or `join_failed` follows. The name has been checked.
    pub fn join(
        s: *Session,
        now: Instant,
        name: []const u8,
        initial_world_size: u32,
    ) JoinError!*Group {
        s.reach(now);
        return s.open(name, initial_world_size, null);
    }

    pub const FoundError = JoinError || error{
        /// This peer is in no epoch of the parent.
        NotReady,
        /// Not all founders are members of the epoch, or one is named twice, or this peer is none.
        BadFounders,
    };

    /// Asks for a group that is made of these members of the parent's epoch, in this order, and of
    /// nobody else; they must all ask. `ready` or `join_failed` follows when all of them have that
    /// are not lost.
    pub fn found(
        s: *Session,
        now: Instant,
        name: []const u8,
        parent: *const Group,
        founders: []const PeerId,
    ) FoundError!*Group {
        s.reach(now);
        const epoch = parent.member.current orelse return error.NotReady;
        if (parent.state != .joined) return error.NotReady;
        var named: base.Mask = .empty;
        for (founders) |id| {
            const rank = epoch.rank_of(id) orelse return error.BadFounders;
            if (named.has(rank)) return error.BadFounders;
            named.set(rank);
        }
        if (!named.has(epoch.rank)) return error.BadFounders;
        const members = try s.gpa.dupe(PeerId, founders);
        errdefer s.gpa.free(members);
        const parent_name = try s.gpa.dupe(u8, parent.name);
        errdefer s.gpa.free(parent_name);
        return s.open(name, 0, .{
            .parent = parent_name,
            .epoch = epoch.number,
            .members = members,
        });
    }

    fn open(
        s: *Session,
        name: []const u8,
        initial_world_size: u32,
        founding: ?Group.Founding,
    ) JoinError!*Group {
        for (s.groups.items) |group| {
            if (group.state != .left and std.mem.eql(u8, group.name, name))
                return error.AlreadyJoined;
        }
        try s.groups.ensureUnusedCapacity(s.gpa, 1);
        const group = try s.gpa.create(Group);
        errdefer s.gpa.destroy(group);
        group.* = .{
            .session = s,
            .name = try s.gpa.dupe(u8, name),
            .initial_world_size = initial_world_size,
            .founding = founding,
            .member = .init(s.gpa, 0, s.self, .{ .ctx = group, .vtable = &member_actions }),
        };
        group.member.in_flight_max = s.in_flight_max;
        s.groups.appendAssumeCapacity(group);
        if (s.control_state == .open) s.present(group);
        if (s.control_state == .away) s.reconnect_at = @min(s.reconnect_at, s.now);
        return group;
    }

    /// Opens a group on a connection: a newcomer's wish, or all that a member knows.
    fn present(s: *Session, group: *Group) void {
        if (group.state == .left) return;
        const member = &group.member;
        s.send(.{ .join = .{
            .name = .of(group.name),
            .address = .of(s.address),
            .address_key = s.address_key,
            .advertised = s.advertised,
            .initial_world_size = group.initial_world_size,
            .round = if (member.round != 0) member.round else member.linked_round,
            .stop_round = member.stop_round,
            .label = .of(s.label.slice()),
            .founders = group.founders(),
        } });
        member.present();
    }

    /// Leaves gracefully: the others go on without this peer, operations in flight here are
    /// cancelled.
    pub fn leave(s: *Session, now: Instant, group: *Group) void {
        s.reach(now);
        if (group.state == .joined) group.member.leave();
        group.state = .left;
        s.forget_group(group);
        s.run_deferred();
    }

    /// Frees a group that was left. No operation of it may be held any more; `leave` has let go of
    /// those of vote.zig.
    pub fn group_release(s: *Session, group: *Group) void {
        assert(group.state == .left);
        for (s.groups.items, 0..) |item, index| if (item == group) {
            _ = s.groups.orderedRemove(index);
            break;
        };
        s.group_free(group);
    }

    fn group_free(s: *Session, group: *Group) void {
        group.member.deinit();
        group.round_members.deinit(s.gpa);
        group.round_peers.deinit(s.gpa);
        group.missing_told.deinit(s.gpa);
        for (group.states.items) |state| prefetch.forget(state);
        group.states.deinit(s.gpa);
        if (group.founding) |*founding| {
            s.gpa.free(founding.parent);
            s.gpa.free(founding.members);
        }
        s.gpa.free(group.name);
        s.gpa.destroy(group);
    }

    pub const AdmitError = error{ Left, NotReady, Busy };

    /// Passes a safe point; `admitted` or `admit_failed` follows, perhaps before this returns.
    pub fn admit(s: *Session, now: Instant, group: *Group, deadline: Instant) AdmitError!void {
        s.reach(now);
        try may_admit(group);
        group.admit_deadline = deadline;
        if (group.vote.is_open()) {
            vote.resume_call(s, group);
        } else s.admit_alone(group, .alone);
        s.run_deferred();
    }

    /// The same together with all members, which must all call this: it is over when all have, and
    /// all enter a new epoch, or none does. On an error nothing was begun.
    pub fn admit_together(
        s: *Session,
        now: Instant,
        group: *Group,
        deadline: Instant,
    ) (AdmitError || CallError)!void {
        s.reach(now);
        try may_admit(group);
        if (group.member.current == null) {
            group.admit_deadline = deadline;
            s.admit_alone(group, .together);
        } else {
            try vote.begin(s, group, deadline);
            if (group.is_admitting()) group.admit_deadline = deadline;
        }
        s.run_deferred();
    }

    fn may_admit(group: *const Group) AdmitError!void {
        if (group.state != .joined) return error.Left;
        if (!group.ready_told) return error.NotReady;
        if (group.is_admitting()) return error.Busy;
    }

    /// A newcomer enters when it has fetched what it can: from then on the others wait for it.
    fn admit_alone(_: *Session, group: *Group, how: protocol.Member.How) void {
        group.member.how = how;
        if (group.member.current == null and group.is_fetching()) {
            group.admit_waits = true;
        } else group.member.admit();
    }

    /// Asks how many newcomers wait for the next safe point that all members pass together.
    /// The answer, in `pending`, is the same for all; they must all ask.
    pub fn ask_pending(
        s: *Session,
        now: Instant,
        group: *Group,
        pending: *u32,
        deadline: Instant,
    ) CallError!*Operation {
        pending.* = group.member.newcomers_waiting_together();
        s.reach(now);
        return vote.agree(s, group, .pending, pending, pending, deadline);
    }

    /// The user does not wait for its admit any more; the safe point was not passed.
    pub fn admit_withdraw(
        _: *Session,
        group: *Group,
        reason: control.AbortReason,
    ) void {
        group.admit_deadline = base.never;
        group.admit_waits = false;
        vote.withdraw(group, reason);
        group.member.admit_give_up();
    }

    // ---- operations

    pub const Array = struct {
        /// Null where nothing is sent, or received.
        send: ?[*]const u8 = null,
        recv: ?[*]u8 = null,
        /// Where ranks have shards: of one shard.
        count: u64 = 0,
        dtype: base.DType = .u8,
    };

    pub const Call = struct {
        kind: control.OpKind,
        /// For the one array, as in Array.
        send: ?[*]const u8 = null,
        recv: ?[*]u8 = null,
        count: u64 = 0,
        /// For each rank's shard of the one array, where they differ.
        counts: ?[]const u64 = null,
        /// For an all_to_all whose shards differ: those for each rank, and from each rank.
        exchanged: ?collective.Exchanged = null,
        dtype: base.DType = .u8,
        /// Several arrays, instead of the one.
        arrays: []const Array = &.{},
        /// 0, or a hash of what the arrays are to the caller, in which all members must agree. A
        /// message and an exchange of shards that differ have none.
        form: u64 = 0,
        op: base.ReduceOp = .sum,
        root_rank: u32 = 0,
        /// In a message: which part of it this is, and the rank that has the other.
        part: Part = .send,
        partner_rank: u32 = 0,
        recovery: ?control.Recovery = null,
        codec: base.Codec = .none,
        residual: ?kernels.Residual = null,
        plan: base.Plan = .auto,
        /// The rules of the state, in a sync.
        rules: control.StateRules = .{},
        tag: u64 = 0,
        purpose: Purpose = .data,
        deadline: Instant,

        /// The user's data, or an agreement of the members (vote.zig).
        pub const Purpose = enum { data, safe_point, pending };
        pub const Part = enum { send, recv };

        fn list(call: *const Call, one: *Array) []const Array {
            if (call.arrays.len > 0) return call.arrays;
            one.* = .{
                .send = call.send,
                .recv = call.recv,
                .count = call.count,
                .dtype = call.dtype,
            };
            return one[0..1];
        }

        fn is_even(call: *const Call) bool {
            return call.counts == null and call.exchanged == null;
        }

        fn elements(call: *const Call, array: *const Array) collective.Elements {
            if (call.counts) |counts| return .{ .of_ranks = counts };
            if (call.exchanged) |exchanged| return .{ .exchanged = exchanged };
            return .{ .each = array.count };
        }

        /// For a message whose partner_rank has been checked.
        fn pair(call: *const Call, own: u16) base.Pair {
            const other: u16 = @intCast(call.partner_rank);
            return switch (call.part) {
                .send => .{ .src = own, .dst = other },
                .recv => .{ .src = other, .dst = own },
            };
        }
    };

    pub const CallError = protocol.Member.StartError || error{
        Left,
        RootOutOfRange,
        /// In a message.
        PartnerOutOfRange,
        PartnerIsSelf,
        /// In a message, whose tag has less room.
        TagTooLarge,
        /// Not one count for each rank.
        CountsOfAnotherWorld,
        /// An all_to_all has a shard for each two ranks, and no more shards than chunks.
        TooManyRanks,
        /// An all_to_all has one number for what this rank sends itself, and another for what it
        /// receives.
        OwnCountsDiffer,
        /// All shards together have more elements than an operation may have.
        TooManyElements,
        /// No more shards, of all arrays and ranks, than chunks.
        TooManyArrays,
        /// This rank needs a buffer that is not there.
        SendMissing,
        RecvMissing,
        BeyondMemory,
        /// The sent and received elements are neither apart nor the same.
        BuffersOverlap,
        /// One array's place is that of another, and written.
        ArraysOverlap,
        /// The residual to come lies in another buffer.
        ResidualOverlaps,
        /// The residual of before lies where the result is written.
        ResidualInWritten,
        /// Tags from limits.pair_tags_first on are those of messages and of shared states.
        TagReserved,
        /// An operation in flight writes a buffer of this call, or uses one that it would write.
        BufferInUse,
    };

    /// Starts an operation; operation_finished follows, perhaps before this returns. The arguments
    /// have been checked, except for what depends on the membership.
    pub fn begin(s: *Session, now: Instant, group: *Group, call: Call) CallError!*Operation {
        s.reach(now);
        if (group.state != .joined) return error.Left;
        const tag = try tag_of(group, &call);
        try group.member.check_start(tag);
        const epoch = group.member.current.?;
        if (call.root_rank >= epoch.world_size()) return error.RootOutOfRange;
        var one: Array = undefined;
        const arrays = call.list(&one);
        const roles = roles_of(epoch, &call);
        assert(call.codec.kind == .none or call.kind.has_codecs());
        if (call.kind.reduces()) for (arrays) |*array| assert(call.op.takes(array.dtype));
        assert(call.residual == null or (call.codec.kind != .none and call.kind.reduces()));
        const count = try count_of(&call, &roles, arrays);
        var uses = try s.uses_of(&call, &roles, arrays, count);
        errdefer uses.deinit(s.gpa);
        if (s.is_in_use(&uses)) return error.BufferInUse;
        if (uses.clashes_itself()) return error.ArraysOverlap;
        const operation = try s.operation_create(group, epoch, &call, tag, arrays, count);
        operation.uses = uses;
        s.start(operation, tag);
        s.fault_point(operation, .all_reduce_called);
        s.run_deferred();
        return operation;
    }

    fn is_in_use(s: *const Session, uses: *const Uses) bool {
        for (s.operations.items) |other| if (other.clashes(uses)) return true;
        return queue.clashes(s, uses);
    }

    /// It begins, or waits for its turn.
    fn start(s: *Session, operation: *Operation, tag: u64) void {
        const member = &operation.group.member;
        if (member.is_full(tag)) queue.put(s, operation) //
        else s.operations.appendAssumeCapacity(operation);
        member.start(&operation.op, tag);
    }

    /// The tag that the operation is numbered under.
    fn tag_of(group: *const Group, call: *const Call) CallError!u64 {
        switch (call.purpose) {
            .data => {},
            .safe_point => return limits.admit_tag,
            .pending => return limits.pending_tag,
        }
        if (call.kind != .send_recv) {
            if (call.tag >= limits.pair_tags_first) return error.TagReserved;
            return call.tag;
        }
        if (call.tag >= limits.pair_user_tags) return error.TagTooLarge;
        const epoch = group.member.current orelse return error.NotAdmitted;
        if (call.partner_rank >= epoch.world_size()) return error.PartnerOutOfRange;
        if (call.partner_rank == epoch.rank) return error.PartnerIsSelf;
        return call.pair(epoch.rank).tag(call.tag);
    }

    /// As many chunks are wanted as there are pairs; and what is uneven goes straight to its rank.
    pub fn all_to_all_ranks_max(uneven: bool) u32 {
        return if (uneven) collective.direct_members_max else std.math.sqrt(limits.chunks_max);
    }

    fn roles_of(epoch: anytype, call: *const Call) collective.Roles {
        return .{
            .kind = call.kind,
            .world_size = epoch.world_size(),
            .rank = epoch.rank,
            .root = @intCast(call.root_rank),
            .pair = if (call.kind == .send_recv) call.pair(epoch.rank) else .{ .src = 0, .dst = 0 },
        };
    }

    /// Elements of all arrays, if they are not too many.
    fn count_of(
        call: *const Call,
        roles: *const collective.Roles,
        arrays: []const Array,
    ) CallError!u64 {
        if (call.counts) |counts| try check_counts(counts, roles);
        if (call.exchanged) |*exchanged| {
            try check_counts(exchanged.send, roles);
            try check_counts(exchanged.recv, roles);
            if (exchanged.send[roles.rank] != exchanged.recv[roles.rank])
                return error.OwnCountsDiffer;
        }
        assert(call.counts == null or (call.kind != .all_to_all and arrays.len == 1));
        assert(call.exchanged == null or (call.kind == .all_to_all and arrays.len == 1));
        const ranks_max = all_to_all_ranks_max(call.exchanged != null);
        if (call.kind == .all_to_all and roles.world_size > ranks_max) return error.TooManyRanks;
        if (arrays.len * roles.parts() > limits.chunks_max) return error.TooManyArrays;
        var total: u64 = 0;
        for (arrays) |*array| total +|= call.elements(array).total(roles);
        if (total > limits.elements_max) return error.TooManyElements;
        return total;
    }

    fn check_counts(counts: []const u64, roles: *const collective.Roles) CallError!void {
        if (counts.len != roles.world_size) return error.CountsOfAnotherWorld;
    }

    /// The memory that a call reads and writes, array by array.
    fn uses_of(
        s: *Session,
        call: *const Call,
        roles: *const collective.Roles,
        arrays: []const Array,
        count: u64,
    ) CallError!Uses {
        var uses: Uses = .{};
        errdefer uses.deinit(s.gpa);
        try uses.reserve(s.gpa, 3 * arrays.len + 2);
        var before: Span = .{};
        var after: Span = .{};
        if (call.residual) |residual| {
            const bytes: usize = @intCast(count * @sizeOf(f32));
            before = .{ .start = @intFromPtr(residual.in), .bytes = bytes };
            after = .{ .start = @intFromPtr(residual.out), .bytes = bytes };
            for ([_]Span{ before, after }) |span|
                _ = std.math.add(usize, span.start, span.bytes) catch return error.BeyondMemory;
            if (before.meets(after)) return error.ResidualOverlaps;
        }
        for (arrays) |*array| {
            const elements = call.elements(array);
            const sizes: collective.Sizes = .of(&elements, roles);
            const width = array.dtype.size();
            const send_bytes: usize = @intCast(sizes.send * width);
            const recv_bytes: usize = @intCast(sizes.recv * width);
            if (sizes.send > 0 and array.send == null) return error.SendMissing;
            if (sizes.recv > 0 and array.recv == null) return error.RecvMissing;
            const from: Span = .{ .start = @intFromPtr(array.send), .bytes = send_bytes };
            const to: Span = .{ .start = @intFromPtr(array.recv), .bytes = recv_bytes };
            for ([_]Span{ from, to }) |span|
                _ = std.math.add(usize, span.start, span.bytes) catch return error.BeyondMemory;
            if (after.meets(from) or after.meets(to)) return error.ResidualOverlaps;
            if (before.meets(to)) return error.ResidualInWritten;
            const from_both = from.start +% @as(usize, @intCast(sizes.send_skip * width));
            const to_both = to.start +% @as(usize, @intCast(sizes.recv_skip * width));
            const same = from_both == to_both;
            const is_in_place = same and call.kind != .all_to_all and to.bytes > 0;
            if (!is_in_place and from.meets(to)) return error.BuffersOverlap;
            const only_reads = call.kind == .broadcast and roles.root == roles.rank;
            if (only_reads or !is_in_place) {
                uses.reads(from);
            } else if (from.bytes > to.bytes) {
                // The result takes the place of a part of what is sent.
                uses.reads(.{ .start = from.start, .bytes = to.start - from.start });
                uses.reads(.{ .start = to.end(), .bytes = from.end() - to.end() });
            }
            if (!only_reads) uses.writes(to);
        }
        uses.reads(before);
        uses.writes(after);
        uses.sort();
        return uses;
    }

    // ---- shared states

    pub const StateError = error{ OutOfMemory, Closed, NameInUse };

    /// A state of a group that this peer is in. Its name must be its own.
    pub fn state_add(s: *Session, state: *State) StateError!void {
        const group = state.group;
        if (group.state != .joined) return error.Closed;
        for (group.states.items) |other| if (other.tag == state.tag) return error.NameInUse;
        try group.states.append(s.gpa, state);
    }

    /// No sync of it is under way.
    pub fn state_remove(s: *Session, state: *State) void {
        assert(state.operation == null);
        prefetch.stop(s, state);
        prefetch.detach(s, state);
        const states = &state.group.states;
        for (states.items, 0..) |item, index| if (item == state) {
            _ = states.swapRemove(index);
            return;
        };
    }

    /// A newcomer fetches in the background, if it can. The leaves are hashed.
    pub fn prefetch_begin(s: *Session, now: Instant, state: *State) Allocator.Error!void {
        s.reach(now);
        try prefetch.begin(s, state);
    }

    pub const SyncCall = struct {
        state: *State,
        strategy: control.Strategy,
        /// The revision of the content in this call; null: the own one of the state.
        revision: ?u64 = null,
        deadline: Instant,
    };

    pub const SyncError = protocol.Member.StartError || error{
        Left,
        BufferInUse,
        RevisionTooLarge,
    };

    /// Starts a sync of a state whose leaves and root are hashed; as `begin`. After a commit, the
    /// caller applies the state.
    pub fn begin_sync(s: *Session, now: Instant, sync_call: SyncCall) SyncError!*Operation {
        s.reach(now);
        const state = sync_call.state;
        const group = state.group;
        if (group.state != .joined) return error.Left;
        if (sync_call.revision) |revision| if (revision >= base.limits.state_revisions_max)
            return error.RevisionTooLarge;
        try group.member.check_start(state.tag);
        assert(state.operation == null);
        prefetch.stop(s, state);
        var uses: Uses = .{};
        errdefer uses.deinit(s.gpa);
        try uses.reserve(s.gpa, state.entries.len);
        for (state.entries) |*entry| uses.writes(State.span_of(entry));
        uses.sort();
        if (s.is_in_use(&uses)) return error.BufferInUse;
        const epoch = group.member.current.?;
        const revision = sync_call.revision;
        const made = try Sync.create(s.gpa, state, sync_call.strategy, revision, epoch.ids.len);
        errdefer made.destroy();
        const call: Call = .{
            .kind = .sync,
            .rules = state.rules,
            .recovery = .resume_chunks,
            .tag = state.tag,
            .deadline = sync_call.deadline,
        };
        const operation = try s.operation_create(group, epoch, &call, state.tag, &.{.{}}, 0);
        operation.uses = uses;
        operation.sync = made;
        state.operation = operation;
        s.start(operation, state.tag);
        s.run_deferred();
        return operation;
    }

    fn operation_create(
        s: *Session,
        group: *Group,
        epoch: anytype,
        call: *const Call,
        tag: u64,
        arrays: []const Array,
        count: u64,
    ) Allocator.Error!*Operation {
        const listed = Listed.of(call, arrays);
        const descriptor: control.Descriptor = .{
            .kind = call.kind,
            .dtype = arrays[0].dtype,
            .op = call.op,
            .recovery = call.recovery orelse .default(call.kind, call.op),
            .codec = call.codec,
            .plan = call.plan,
            .uneven = call.exchanged != null,
            .count = if (call.exchanged == null) count else 0,
            .arrays = if (arrays.len > 1) @intCast(arrays.len) else 0,
            .counts = if (listed) |items|
                outline.hash(items, call.form, &.{})
            else
                outline.hash_alone(call.form),
            .outline = if (listed) |items| items.sums().outline else .{},
            .root = if (call.kind.has_root()) epoch.ids[call.root_rank] else .none,
            .rules = call.rules,
            .safe_points = group.member.safe_points,
        };
        const waiting = s.queue.count;
        try s.operations.ensureUnusedCapacity(s.gpa, waiting + 1);
        try s.deferred.ensureTotalCapacity(s.gpa, s.operations.items.len + waiting + 1);
        const operation = try base.unfilled.create(s.gpa, Operation);
        errdefer s.gpa.destroy(operation);
        const ids = try base.unfilled.list(s.gpa, PeerId, epoch.ids.len);
        errdefer base.unfilled.free_list(s.gpa, PeerId, ids);
        @memcpy(ids, epoch.ids);
        var history: protocol.History = .{};
        try history.reserve(s.gpa, epoch.alive.count());
        errdefer history.deinit(s.gpa);
        const room = if (epoch.ids.len <= collective.direct_members_max) epoch.ids.len else 2;
        const neighbours = try base.unfilled.list(s.gpa, Operation.Neighbour, room);
        errdefer base.unfilled.free_list(s.gpa, Operation.Neighbour, neighbours);
        const moved = try base.unfilled.list(s.gpa, collective.Array, arrays.len);
        defer base.unfilled.free_list(s.gpa, collective.Array, moved);
        const roles = roles_of(epoch, call);
        const nothing: [*]u8 = &s.sink;
        for (moved, arrays) |*to, *array| to.* = .{
            .send = array.send orelse nothing,
            .recv = array.recv orelse nothing,
            .dtype = array.dtype,
            .count = if (call.counts == null) array.count * roles.parts() else count,
        };
        var executor = try collective.Executor.prepare(s.gpa, &s.pool, .{
            .descriptor = descriptor,
            .arrays = moved,
            .residual = call.residual,
            .elements = if (call.is_even()) null else call.elements(&arrays[0]),
            .operation = number_of(epoch.number, group.member.next_id(tag)),
            .rank = roles.rank,
            .root = roles.root,
            .pair = roles.pair,
            .world_size = epoch.world_size(),
            .chunk_bytes = s.settings.chunk_bytes,
            .window_bytes = s.settings.window_bytes,
        });
        errdefer executor.deinit();
        // One that waits for its turn holds no large buffers meanwhile.
        if (!group.member.is_full(tag)) try executor.reserve();
        operation.* = .{
            .gpa = s.gpa,
            .group = group,
            .op = .{ .descriptor = descriptor, .chunks = executor.partition.chunks },
            .executor = executor,
            .only_reads = call.kind == .broadcast and call.root_rank == epoch.rank,
            .neighbours_room = neighbours,
            .schedule = .of(&descriptor),
            .deadline = call.deadline,
            .started_at = s.now,
            .fingerprint = descriptor.fingerprint(),
            .form = call.form,
            .purpose = call.purpose,
            .ids = ids,
            .history = history,
        };
        return operation;
    }

    /// The same on all members, and another one for each operation.
    fn number_of(epoch: u64, id: control.OpId) u64 {
        const words = [_]u64{ epoch, id.tag, id.sequence };
        return std.hash.Wyhash.hash(0, std.mem.asBytes(&words));
    }

    /// The part of a call that only a hash tells the others: several arrays, or shards that differ.
    const Listed = struct {
        arrays: []const Array,
        counts: ?[]const u64,

        fn of(call: *const Call, arrays: []const Array) ?Listed {
            if (arrays.len > 1) return .{ .arrays = arrays, .counts = null };
            const counts = call.counts orelse return null;
            // As if there were one count.
            if (std.mem.allEqual(u64, counts, counts[0])) return null;
            return .{ .arrays = arrays, .counts = counts };
        }

        pub fn len(listed: Listed) usize {
            return if (listed.counts) |counts| counts.len else listed.arrays.len;
        }

        pub fn at(listed: Listed, index: usize) outline.Item {
            const array = &listed.arrays[if (listed.counts == null) index else 0];
            const count = if (listed.counts) |counts| counts[index] else array.count;
            return .{ .count = count, .dtype = array.dtype };
        }

        fn sums(listed: Listed) outline.Sums {
            var result: outline.Sums = .{};
            for (0..listed.len()) |index| result.add(listed.at(index));
            return result;
        }
    };

    /// Withdraws an operation: cancelled before the vote, in doubt after it. The others cannot have
    /// it either.
    pub fn cancel(s: *Session, now: Instant, operation: *Operation) void {
        s.reach(now);
        if (!operation.finished) operation.group.member.give_up(&operation.op, .cancelled);
        s.run_deferred();
    }

    /// The user wants no more of an operation. The others go on with it as after the death of this
    /// peer, so it leaves the group: whoever has taken part in half of a sum cannot stay for the
    /// next one. Only where nobody can go on is the operation alone withdrawn: a message, and a
    /// world of one. After the vote it ends in doubt, which costs the others nothing.
    pub fn desert(s: *Session, now: Instant, operation: *Operation) void {
        s.reach(now);
        const group = operation.group;
        if (operation.finished or !group.member.others_take_part(&operation.op))
            return s.cancel(now, operation);
        const why = "it withdrew an operation in which others take part";
        s.log(.warning, "this peer leaves group \"{s}\": {s}", .{ group.name, why });
        group.removed(why);
        group.member.leave();
        s.group_gone(group, .expelled, why);
        s.run_deferred();
    }

    /// The user is done with a finished operation.
    pub fn release(s: *Session, operation: *Operation) void {
        assert(operation.finished);
        operation.released = true;
        // One that is in doubt goes on, because the others may need what it holds.
        if (operation.op.state == .finished) s.operation_free(operation);
    }

    fn operation_free(s: *Session, operation: *Operation) void {
        for (s.operations.items, 0..) |item, index| if (item == operation) {
            _ = s.operations.swapRemove(index);
            break;
        };
        for (s.deferred.items, 0..) |item, index| if (item == operation) {
            _ = s.deferred.swapRemove(index);
            break;
        };
        operation.destroy();
    }

    fn resolve(s: *Session, operation: *Operation, committed: ?bool) void {
        operation.committed = committed;
        if (operation.purpose == .safe_point and !operation.released) return vote.note(operation);
        if (!operation.released) return s.host.vtable.operation_resolved(s.host.ctx, operation);
        s.operation_free(operation);
    }

    pub fn fault_point(s: *Session, operation: *Operation, point: FaultPoint) void {
        if (operation.purpose != .data) return;
        switch (operation.op.descriptor.kind) {
            .broadcast, .barrier, .sync => return,
            .all_reduce,
            .reduce,
            .reduce_scatter,
            .all_gather,
            .scatter,
            .gather,
            .all_to_all,
            .send_recv,
            => {},
        }
        const x = &operation.executor;
        const sequence = operation.op.id.sequence;
        s.host.vtable.fault_point(s.host.ctx, point, sequence, x.chunks_settled, x.chunks_wanted);
    }

    /// `done`: leaves, where that says something.
    pub fn sync_point(s: *Session, operation: *Operation, point: FaultPoint, done: u64) void {
        const state = operation.sync.?.state orelse return;
        const sequence = operation.op.id.sequence;
        s.host.vtable.fault_point(s.host.ctx, point, sequence, done, state.leaf_count());
    }

    /// Does now what could not be done inside a member's action.
    pub fn run_deferred(s: *Session) void {
        while (true) {
            if (s.votes_changed) {
                s.votes_changed = false;
                for (s.groups.items) |group| vote.go_on(s, group);
            }
            while (s.deferred.pop()) |operation| {
                if (operation.op.state == .finished) continue;
                frames.check_complete(s, operation);
            }
            if (!queue.step(s) and !s.votes_changed) break;
        }
        if (s.links_stale) {
            s.links_stale = false;
            links.review(s);
        }
        if (s.lanes_broken) {
            s.lanes_broken = false;
            links.close_broken(s);
        }
        if (!s.places_freed) return;
        s.places_freed = false;
        links.greet_waiting(s);
    }

    // ---- what members want done

    const member_actions: protocol.Member.ActionsTable = .{
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

    pub fn operation_from(op: *protocol.Op) *Operation {
        return @fieldParentPtr("op", op);
    }

    fn action_send(ctx: *anyopaque, message: control.Message) void {
        group_from(ctx).session.send(message);
    }

    fn action_stop(ctx: *anyopaque, epoch: u64) void {
        const group = group_from(ctx);
        for (group.session.operations.items) |operation| {
            if (operation.group != group or operation.op.epoch != epoch) continue;
            frames.stop(group.session, operation);
        }
    }

    fn action_chunks(_: *anyopaque, op: *protocol.Op) []const u32 {
        return operation_from(op).executor.chunk_reduced;
    }

    fn action_start(ctx: *anyopaque, op: *protocol.Op, kept: []const control.KeptRange) void {
        frames.start(group_from(ctx).session, operation_from(op), kept);
    }

    fn action_finished(ctx: *anyopaque, op: *protocol.Op, failure: ?Failure) void {
        const s = group_from(ctx).session;
        const operation = operation_from(op);
        assert(!operation.finished);
        operation.ended_queued = operation.is_queued;
        if (operation.is_queued) queue.leave(s, operation);
        if (failure) |why| {
            operation.failure = why;
            operation.failure.coordinator_silent_ns = s.coordinator_silent_ns();
            if (s.away_since != base.never)
                operation.failure.coordinator_away_ns = s.now -| s.away_since;
            operation.status = why.status;
            operation.note_wanted();
            operation.names = .of_failure(s, operation);
        } else if (operation.sync != null) s.sync_point(operation, .sync_committed, 0) //
        else s.fault_point(operation, .all_reduce_committed);
        if (operation.status == .in_doubt and op.state == .in_doubt) {
            frames.set_aside(s, operation);
        } else {
            frames.stop(s, operation);
            if (operation.sync != null) sync.over(operation, operation.status == .ok) //
            else if (operation.status != .ok) operation.executor.restore();
            const key: Link.Key = .of_operation(operation.group.id.?, op.epoch, op.id);
            for (s.links.items) |link| link.forget(key);
        }
        operation.finished = true;
        operation.finished_at = s.now;
        if (operation.partner()) |id| links.give_back(s, id);
        if (operation.purpose == .safe_point) return vote.note(operation);
        s.host.vtable.operation_finished(s.host.ctx, operation);
    }

    fn action_resolved(ctx: *anyopaque, op: *protocol.Op, committed: ?bool) void {
        const s = group_from(ctx).session;
        const operation = operation_from(op);
        frames.stop(s, operation);
        if (operation.partner()) |id| links.give_back(s, id);
        s.resolve(operation, committed);
    }

    fn action_admitted(ctx: *anyopaque, failure: ?Status) void {
        const group = group_from(ctx);
        const s = group.session;
        group.admit_deadline = base.never;
        if (failure == null) {
            vote.passed(group);
            group.tell_entry();
        }
        const event: GroupEvent = if (failure) |status|
            .{ .admit_failed = status }
        else
            .admitted;
        s.host.vtable.group_event(s.host.ctx, group, event);
    }

    fn action_closed(ctx: *anyopaque, epoch: u64) void {
        const group = group_from(ctx);
        for (group.session.links.items) |link| link.prune_epochs(group.id.?, epoch);
        group.session.prune_addresses();
        links.review(group.session);
    }

    // ---- lanes, for the driver

    /// An inbound connection. Null: no memory or place for it; the driver closes it.
    pub fn accept_lane(s: *Session, now: Instant, source: base.Source) ?*Lane {
        s.reach(now);
        return links.accept(s, source);
    }

    /// A dialed connection is up.
    pub fn lane_opened(s: *Session, now: Instant, lane: *Lane) void {
        s.reach(now);
        links.dialed(s, lane);
    }

    /// A connection ended, or could not be made. The lane is invalid afterwards.
    pub fn lane_closed(s: *Session, now: Instant, lane: *Lane) void {
        s.reach(now);
        // Whatever takes the connection and ends it at once is no peer of this run.
        if (lane.state == .greeting) links.note_dialed(s, lane, .other_answers);
        links.lane_gone(s, lane);
        s.run_deferred();
    }

    /// A lane is being dialed from this address of the machine; one of nobody has no link.
    pub fn lane_dials_from(lane: *Lane, source: base.Source) void {
        if (lane.link) |link| link.dialed_from = source;
    }

    /// A lane that could not be dialed. It is invalid afterwards.
    pub fn lane_failed(s: *Session, now: Instant, lane: *Lane, why: wire.Dialed) void {
        links.note_dialed(s, lane, why);
        s.lane_closed(now, lane);
    }

    /// Where the next bytes of this lane go.
    pub fn lane_recv_slices(s: *Session, lane: *Lane, slices: *[2][]u8) usize {
        return lane.recv_slices(&s.sink, slices);
    }

    /// `count` bytes were put there, in order. The lane may be closed by this.
    pub fn lane_received(s: *Session, now: Instant, lane: *Lane, count: usize) void {
        s.reach(now);
        s.bytes_received += count;
        if (lane.link) |link| link.received += count;
        lane.heard_at = now;
        frames.received(s, lane, count);
        s.run_deferred();
    }

    /// The bytes to send on this lane now; 0 slices if none.
    pub fn lane_send_slices(
        s: *Session,
        now: Instant,
        lane: *Lane,
        slices: *[2][]const u8,
    ) usize {
        s.reach(now);
        if (!lane.out_busy) frames.next(s, lane);
        return lane.send_slices(slices);
    }

    /// `count` bytes of these slices have left.
    pub fn lane_sent(s: *Session, now: Instant, lane: *Lane, count: usize) void {
        s.reach(now);
        s.bytes_sent += count;
        if (lane.link) |link| link.sent += count;
        lane.spoke_at = now;
        if (lane.sent(count)) frames.sent(s, lane);
    }

    // ---- time

    /// Not inlined, and rare: its frame is large.
    pub noinline fn tick(s: *Session, now: Instant) void {
        s.reach(now);
        // A loop that was late was frozen and has heard nobody: it restarts the silence timers
        // first.
        const late = s.knows_settings() and now -| s.last_tick > 2 *| s.settings.heartbeat_ns;
        s.last_tick = now;
        if (now >= s.reconnect_until())
            s.lose_coordinator("it was away for longer than reconnect_timeout");
        switch (s.control_state) {
            .greeting, .open => s.tick_control(late),
            .away => if (now >= s.reconnect_at) {
                s.control_state = .dialing;
                s.host.vtable.control_dial(s.host.ctx);
            },
            .closed, .dialing, .lost => {},
        }
        for (s.groups.items) |group| {
            if (group.admit_deadline > now) continue;
            s.admit_withdraw(group, .deadline);
            s.host.vtable.group_event(s.host.ctx, group, .{ .admit_failed = .deadline_exceeded });
        }
        var index: usize = 0;
        while (index < s.operations.items.len) : (index += 1) {
            const operation = s.operations.items[index];
            if (!operation.finished) waits.say_called(s, operation);
            if (!operation.finished and operation.deadline <= now) {
                operation.group.member.give_up(&operation.op, .deadline);
                // A sync that has voted waits for the coordinator's answer, but not for ever.
                if (!operation.finished) operation.deadline = now +| s.settings.silence_ns;
            } else if (operation.sync != null) {
                sync.tick(s, operation, late);
            } else if (operation.executor.has_work()) {
                operation.executor.work();
                frames.check_complete(s, operation);
            }
        }
        queue.tick(s);
        prefetch.tick(s, late);
        links.tick(s, late);
        rounds.tick(s);
        s.run_deferred();
    }

    fn tick_control(s: *Session, late: bool) void {
        if (late) s.last_heard = s.now;
        if (s.control_failed) return s.hang_up("out of memory for a control message");
        if (s.now >= s.silent_at()) return s.hang_up("the coordinator was silent for too long");
        if (!s.is_welcome() or s.now < s.heartbeat_at) return;
        s.heartbeats += 1;
        s.heartbeat_at = s.now +| s.settings.heartbeat_ns;
        s.send(.{ .heartbeat = .{
            .number = s.heartbeats,
            .bytes_sent = s.bytes_sent,
            .bytes_received = s.bytes_received,
        } });
        s.beat_at = s.now;
        traffic.tell(s);
    }

    /// The way to the coordinator and back. A machine that is busy answers later, so the shortest
    /// counts, and is forgotten slowly: the way may have become longer.
    fn note_round_trip(s: *Session, number: u64) void {
        if (number != s.heartbeats) return;
        const taken_ns = s.now -| s.beat_at;
        const known_ns = s.round_trip_ns;
        s.round_trip_ns = if (known_ns == 0) taken_ns else @min(taken_ns, known_ns + known_ns / 8);
    }

    /// How long ago an operation was called, when the coordinator hears of it.
    pub fn age_ns(s: *const Session, operation: *const Operation) u64 {
        const here_ns = s.now -| operation.started_at;
        return @min(here_ns +| s.round_trip_ns / 2, limits.interval_ns_max);
    }

    /// It answers each heartbeat, so 0 while it does.
    fn coordinator_silent_ns(s: *const Session) u64 {
        const silent_ns = s.now -| s.last_message;
        return if (silent_ns > 3 *| s.settings.heartbeat_ns) silent_ns else 0;
    }

    /// Whether the coordinator has said how this run beats.
    fn is_welcome(s: *const Session) bool {
        return s.control_state == .open and s.welcomed;
    }

    /// When a coordinator that says nothing more is given up.
    fn silent_at(s: *const Session) Instant {
        if (!s.knows_settings()) return s.last_heard +| limits.stranger_ns_max;
        // Early enough to come back, on another connection, before the coordinator gives this peer
        // up: if one that both believe in swallows what is said, both hear nothing.
        const patience_ns = @max(s.settings.silence_ns / 2, 2 *| s.settings.heartbeat_ns);
        return s.last_heard +| patience_ns;
    }

    /// Once a coordinator was there, never later than a heartbeat from the last tick: so a tick
    /// that is later than that means something.
    pub fn next_deadline(s: *const Session) Instant {
        var next: Instant = switch (s.control_state) {
            .closed, .dialing, .lost => base.never,
            .away => s.reconnect_at,
            .greeting => s.silent_at(),
            .open => if (s.is_welcome()) @max(s.heartbeat_at, s.last_tick) else s.silent_at(),
        };
        if (s.knows_settings() and s.control_state != .lost)
            next = @min(next, s.last_tick +| s.settings.heartbeat_ns);
        for (s.groups.items) |group| next = @min(next, group.admit_deadline);
        next = @min(next, s.queue.deadline, s.reconnect_until());
        for (s.operations.items) |operation| {
            if (!operation.finished)
                next = @min(next, operation.deadline, waits.says_called_at(s, operation));
            if (operation.executor.has_work()) next = @min(next, s.now);
        }
        return @min(next, links.next_deadline(s), rounds.next_deadline(s));
    }
};
