//! Session: everything one peer process does, without its sockets, clock and threads.
//!
//! For drivers (net/, tests/sim): all functions of one Session run under one lock. The driver owns
//! a connection to the coordinator (bytes in and out of `control`) and one per Lane. It tells the
//! session which bytes arrived and asks it which to send. `Host` (host.zig) has the functions that
//! the session needs from the driver. After any call: if `control.send_slice()` is not empty, send
//! it; call `tick` at or after `next_deadline()`. Host functions must not call back into the
//! session.
//!
//! The user's calls begin and end in calls.zig, data moves in frames.zig, links are kept in
//! links.zig, the coordinator speaks in control.zig, groups come and go in groups.zig,
//! protocol/member.zig decides, actions.zig does what it wants, and collective/movement.zig says
//! what moves.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const collective = @import("collective");
const host = @import("host.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const State = @import("state.zig").State;
const Built = call_file.Built;
const Uses = @import("uses.zig").Uses;
const Sync = @import("sync.zig").Sync;
const actions = @import("actions.zig");
const connection = @import("control.zig");
const call_file = @import("call.zig");
const calls = @import("calls.zig");
const dial_back = @import("dial_back.zig");
const frames = @import("frames.zig");
const groups = @import("groups.zig");
const labels = @import("labels.zig");
const greeting = @import("greeting.zig");
const lanes = @import("lanes.zig");
const links = @import("links.zig");
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

pub const Session = struct {
    gpa: Allocator,
    /// Where the session itself lies.
    home: Allocator,
    self: PeerId,
    run_id: base.RunId,
    host: host.Host,
    prng: base.Prng,
    pool: collective.Pool,
    runner: ?base.Runner,
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
    /// Calls that are over, and whose callers do not have their memory back yet.
    giving_back: usize = 0,
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
        host: host.Host,
        /// It does large jobs, and lives longer than the session; null: whoever makes jobs.
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
            .prng = .init(options.seed),
            .pool = .init(gpa),
            .runner = options.runner,
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

    /// The driver has closed all connections and will not use lanes, groups or operations any more.
    pub fn destroy(s: *Session) void {
        for (s.operations.items) |operation| operation.destroy();
        queue.destroy(s);
        s.operations.deinit(s.gpa);
        for (s.groups.items) |group| groups.group_free(s, group);
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
        level: protocol.LogLevel,
        comptime format: []const u8,
        args: anytype,
    ) void {
        var buffer: [limits.log_line_bytes_max]u8 = undefined;
        const text = std.fmt.bufPrint(&buffer, format, args) catch &buffer;
        s.host.vtable.log(s.host.ctx, level, text);
    }

    /// Time is what some thread read before it had the session to itself: another one may have been
    /// here meanwhile, with a later one. It never goes back.
    pub fn reach(s: *Session, now: Instant) void {
        s.now = @max(s.now, now);
    }

    // ---- the coordinator, for the driver

    pub const control_opened = connection.opened;
    pub const control_received = connection.received;
    pub const control_closed = connection.closed;
    pub const abandon = connection.abandon;

    pub fn send(s: *Session, message: control.Message) void {
        if (s.control_state != .open) return;
        // Ended in the next tick: from here the members that are being told something would be told
        // more.
        s.control.send(message) catch {
            s.control_failed = true;
        };
    }

    /// The group that the coordinator has given this number on this connection. One from before
    /// means nothing: another coordinator may number them anew.
    pub fn group_of(s: *Session, id: u16) ?*Group {
        for (s.groups.items) |group| {
            if (group.state != .joined or !group.member.connected) continue;
            if (group.id == id) return group;
        }
        return null;
    }

    /// A coordinator has been there.
    pub fn knows_settings(s: *const Session) bool {
        return s.settings.heartbeat_ns > 0;
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

    // ---- groups

    pub const JoinError = groups.JoinError;
    pub const FoundError = groups.FoundError;
    pub const AdmitError = groups.AdmitError;
    pub const join = groups.join;
    pub const found = groups.found;
    pub const leave = groups.leave;
    pub const group_release = groups.group_release;
    pub const admit = groups.admit;
    pub const admit_together = groups.admit_together;
    pub const admit_withdraw = groups.admit_withdraw;
    pub const ask_pending = groups.ask_pending;

    // ---- operations

    pub const Array = call_file.Array;
    pub const Call = call_file.Call;
    pub const all_to_all_ranks_max = call_file.all_to_all_ranks_max;
    pub const CallError = call_file.CallError;
    pub const begin = calls.begin;
    pub const cancel = calls.cancel;
    pub const desert = calls.desert;
    pub const release = calls.release;

    // ---- shared states

    pub const StateError = calls.StateError;
    pub const SyncCall = calls.SyncCall;
    pub const SyncError = calls.SyncError;
    pub const state_add = calls.state_add;
    pub const state_remove = calls.state_remove;
    pub const prefetch_begin = calls.prefetch_begin;
    pub const begin_sync = calls.begin_sync;

    // ---- what operations report, and what waits until nobody is inside a member

    pub fn fault_point(s: *Session, operation: *Operation, point: host.FaultPoint) void {
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
        const ledger = &operation.work.movement.board.ledger;
        const sequence = operation.op.id.sequence;
        const done, const total = .{ ledger.settled_count, ledger.wanted_count };
        s.host.vtable.fault_point(s.host.ctx, point, sequence, done, total);
    }

    /// `done`: leaves, where that says something.
    pub fn sync_point(s: *Session, operation: *Operation, point: host.FaultPoint, done: u64) void {
        const state = operation.work.sync.transfer.state orelse return;
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
            actions.tell_back(s);
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
        greeting.greet_waiting(s);
    }

    pub const member_actions = actions.member_actions;
    pub const operation_from = actions.operation_from;

    // ---- lanes, for the driver

    pub const accept_lane = lanes.accept;
    pub const lane_opened = lanes.opened;
    pub const lane_closed = lanes.closed;
    pub const lane_dials_from = lanes.dials_from;
    pub const lane_failed = lanes.failed;
    pub const lane_recv_slices = lanes.recv_slices;
    pub const lane_received = lanes.received;
    pub const lane_send_slices = lanes.send_slices;
    pub const lane_sent = lanes.sent;

    // ---- jobs

    /// For a driver with a runner: a job that it has done, and that no fence has taken back.
    pub fn job_done(s: *Session, now: Instant, job: *base.Job) void {
        s.reach(now);
        for (s.operations.items) |operation| {
            const x = operation.moves() orelse continue;
            if (@as(*const anyopaque, x) != job.owner) continue;
            frames.job_done(s, operation, job);
            break;
        } else unreachable; // an operation waits for its jobs before it goes
        s.run_deferred();
    }

    // ---- time

    /// Not inlined, and rare: its frame is large.
    pub noinline fn tick(s: *Session, now: Instant) void {
        s.reach(now);
        // A loop that was late was frozen and has heard nobody: it restarts the silence timers
        // first.
        const late = s.knows_settings() and now -| s.last_tick > 2 *| s.settings.heartbeat_ns;
        s.last_tick = now;
        if (now >= connection.reconnect_until(s))
            connection.lose_coordinator(s, "it was away for longer than reconnect_timeout");
        switch (s.control_state) {
            .greeting, .open => connection.tick(s, late),
            .away => if (now >= s.reconnect_at) {
                s.control_state = .dialing;
                s.host.vtable.control_dial(s.host.ctx);
            },
            .closed, .dialing, .lost => {},
        }
        for (s.groups.items) |group| {
            if (group.admit_deadline > now) continue;
            groups.admit_withdraw(s, group, .deadline);
            s.host.vtable.group_event(s.host.ctx, group, .{ .admit_failed = .deadline_exceeded });
        }
        var index: usize = 0;
        while (index < s.operations.items.len) : (index += 1) {
            const operation = s.operations.items[index];
            if (!operation.is_over) waits.say_called(s, operation);
            if (!operation.is_over and operation.deadline <= now) {
                operation.group.member.give_up(&operation.op, .deadline);
                // A sync that has voted waits for the coordinator's answer, but not for ever.
                if (!operation.is_over) operation.deadline = now +| s.settings.silence_ns;
            } else if (operation.sync() != null) {
                sync.tick(s, operation, late);
            } else if (operation.has_work()) {
                operation.work.movement.work();
                if (operation.op.state != .finished) frames.check_complete(s, operation);
            }
        }
        queue.tick(s);
        prefetch.tick(s, late);
        links.tick(s, late);
        rounds.tick(s);
        s.run_deferred();
    }

    /// How long ago an operation was called, when the coordinator hears of it.
    pub fn age_ns(s: *const Session, operation: *const Operation) u64 {
        const here_ns = s.now -| operation.started_at;
        return @min(here_ns +| s.round_trip_ns / 2, limits.interval_ns_max);
    }

    /// Once a coordinator was there, never later than a heartbeat from the last tick: so a tick
    /// that is later than that means something.
    pub fn next_deadline(s: *const Session) Instant {
        var next: Instant = switch (s.control_state) {
            .closed, .dialing, .lost => base.never,
            .away => s.reconnect_at,
            .greeting => connection.silent_at(s),
            .open => if (connection.is_welcome(s)) @max(s.heartbeat_at, s.last_tick) //
            else connection.silent_at(s),
        };
        if (s.knows_settings() and s.control_state != .lost)
            next = @min(next, s.last_tick +| s.settings.heartbeat_ns);
        for (s.groups.items) |group| next = @min(next, group.admit_deadline);
        next = @min(next, s.queue.deadline, connection.reconnect_until(s));
        for (s.operations.items) |operation| {
            if (!operation.is_over)
                next = @min(next, operation.deadline, waits.says_called_at(s, operation));
            if (operation.has_work() or operation.is_back()) next = @min(next, s.now);
        }
        return @min(next, links.next_deadline(s), rounds.next_deadline(s));
    }
};
