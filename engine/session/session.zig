//! Session: everything one peer process does, without its sockets, clock and threads.
//!
//! For drivers (net/, tests/sim): all functions of one Session run under one lock. The driver owns
//! a connection to the coordinator (bytes in and out of `control`) and one per Lane. It tells the
//! session which bytes arrived and asks it which to send. `Host` (host.zig) has the functions that
//! the session needs from the driver. After any call: if `control.send_slice()` is not empty, send
//! it; call `tick` at or after `next_deadline()`. Host functions must not call back into the
//! session.
//!
//! Data moves in frames.zig, links are kept in links.zig, the coordinator speaks in control.zig,
//! groups come and go in groups.zig, protocol/member.zig decides, and collective/movement.zig
//! says what moves.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const collective = @import("collective");
const kernels = @import("kernels");
const host = @import("host.zig");
const Lane = @import("lane.zig").Lane;
const Link = @import("link.zig").Link;
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const State = @import("state.zig").State;
const Built = call_file.Built;
const Uses = @import("uses.zig").Uses;
const Sync = @import("sync.zig").Sync;
const connection = @import("control.zig");
const call_file = @import("call.zig");
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

    /// Starts an operation; operation_finished follows, perhaps before this returns. The arguments
    /// have been checked, except for what depends on the membership.
    pub fn begin(s: *Session, now: Instant, group: *Group, call: Call) CallError!*Operation {
        s.reach(now);
        if (group.state != .joined) return error.Left;
        const member = &group.member;
        const tag = try call_file.tag_of(member, &call);
        try member.check_start(tag);
        var one: call_file.Array = undefined;
        var built: Built = try .init(s.gpa, member, &call, tag, &one);
        errdefer built.uses.deinit(s.gpa);
        if (s.is_in_use(&built.uses)) return error.BufferInUse;
        if (built.uses.clashes_itself()) return error.ArraysOverlap;
        const operation = try s.operation_create(group, &built, null);
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
        frames.detach_all(s, .{ .state = state });
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
        const operation =
            try s.operation_create(group, &.sync(&group.member, &call, uses), made);
        state.operation = operation;
        s.start(operation, state.tag);
        s.run_deferred();
        return operation;
    }

    /// Takes over what is built. `sync`: what it does, if it moves the leaves of a state.
    fn operation_create(
        s: *Session,
        group: *Group,
        built: *const Built,
        made: ?*Sync,
    ) Allocator.Error!*Operation {
        const epoch = group.member.current.?;
        const call = built.call;
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
        operation.* = .{
            .gpa = s.gpa,
            .group = group,
            .op = .{ .descriptor = built.descriptor, .chunks = 0 },
            .work = if (made) |sync_made| .{ .sync = sync_made } else .{ .movement = undefined },
            .uses = built.uses,
            .only_reads = call.kind == .broadcast and call.root_rank == epoch.rank,
            .neighbours_room = neighbours,
            .schedule = .of(&built.descriptor),
            .deadline = call.deadline,
            .started_at = s.now,
            .fingerprint = built.descriptor.fingerprint(),
            .form = call.form,
            .purpose = call.purpose,
            .ids = ids,
            .history = history,
        };
        if (operation.moves()) |movement| try s.movement_create(group, built, movement);
        if (operation.moves()) |x| operation.op.chunks = x.board.ledger.partition.chunks;
        return operation;
    }

    fn movement_create(
        s: *Session,
        group: *const Group,
        built: *const Built,
        movement: *collective.Movement,
    ) Allocator.Error!void {
        const arrays = try base.unfilled.list(s.gpa, collective.Array, built.arrays.len);
        defer base.unfilled.free_list(s.gpa, collective.Array, arrays);
        var options = built.options(&group.member, &s.settings, arrays, &s.sink);
        if (s.runner) |*runner| options.runner = runner;
        movement.* = try .prepare(s.gpa, &s.pool, options);
        errdefer movement.deinit();
        // One that waits for its turn holds no large buffers meanwhile.
        if (!group.member.is_full(built.tag)) try movement.reserve();
    }

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
        if (operation.is_over or !group.member.others_take_part(&operation.op))
            return s.cancel(now, operation);
        const why = "it withdrew an operation in which others take part";
        s.log(.warning, "this peer leaves group \"{s}\": {s}", .{ group.name, why });
        group.removed(why);
        group.member.leave();
        groups.group_gone(s, group, .expelled, why);
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

    pub fn resolve(s: *Session, operation: *Operation, committed: ?bool) void {
        operation.committed = committed;
        if (operation.purpose == .safe_point and !operation.released) return vote.note(operation);
        if (!operation.released) return s.host.vtable.operation_resolved(s.host.ctx, operation);
        s.operation_free(operation);
    }

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
        const x = &operation.work.movement;
        const sequence = operation.op.id.sequence;
        const l = &x.board.ledger;
        s.host.vtable.fault_point(s.host.ctx, point, sequence, l.settled_count, l.wanted_count);
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
            s.tell_back();
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

    // ---- what members want done

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
        const x = operation_from(op).moves() orelse return &.{};
        return x.board.ledger.reduced;
    }

    fn action_start(ctx: *anyopaque, op: *protocol.Op, kept: []const control.KeptRange) void {
        frames.start(group_from(ctx).session, operation_from(op), kept);
    }

    fn action_finished(ctx: *anyopaque, op: *protocol.Op, failure: ?Failure) void {
        const s = group_from(ctx).session;
        const operation = operation_from(op);
        assert(!operation.is_over);
        operation.is_over = true;
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
        } else if (operation.sync() != null) s.sync_point(operation, .sync_committed, 0) //
        else s.fault_point(operation, .all_reduce_committed);
        var is_back = true;
        if (operation.status == .in_doubt and op.state == .in_doubt) {
            is_back = frames.set_aside(s, operation);
        } else {
            frames.stop(s, operation);
            if (operation.sync() != null) sync.over(operation, operation.status == .ok) //
            else if (operation.status != .ok) is_back = operation.work.movement.restore();
            const key: Link.Key = .of_operation(operation.group.id.?, op.epoch, op.id);
            for (s.links.items) |link| link.forget(key);
        }
        if (operation.partner()) |id| links.give_back(s, id);
        if (is_back) return s.tell_finished(operation);
        s.giving_back += 1;
        if (operation.purpose == .data) return;
        operation.work.movement.end_now();
        s.tell_back();
    }

    /// The caller has its memory back.
    fn tell_finished(s: *Session, operation: *Operation) void {
        operation.finished = true;
        operation.finished_at = s.now;
        if (operation.purpose == .safe_point) return vote.note(operation);
        s.host.vtable.operation_finished(s.host.ctx, operation);
    }

    /// Tells the callers whose memory has been given back meanwhile.
    fn tell_back(s: *Session) void {
        if (s.giving_back == 0) return;
        var index: usize = 0;
        while (index < s.operations.items.len) : (index += 1) {
            const operation = s.operations.items[index];
            if (!operation.is_back()) continue;
            s.giving_back -= 1;
            s.tell_finished(operation);
        }
    }

    fn action_resolved(ctx: *anyopaque, op: *protocol.Op, committed: ?bool) void {
        const s = group_from(ctx).session;
        const operation = operation_from(op);
        frames.stop(s, operation);
        if (operation.partner()) |id| links.give_back(s, id);
        if (operation.moves()) |x| x.end_now();
        s.tell_back();
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
        const event: host.GroupEvent = if (failure) |status|
            .{ .admit_failed = status }
        else
            .admitted;
        s.host.vtable.group_event(s.host.ctx, group, event);
    }

    fn action_closed(ctx: *anyopaque, epoch: u64) void {
        const group = group_from(ctx);
        for (group.session.links.items) |link| link.prune_epochs(group.id.?, epoch);
        groups.prune_addresses(group.session);
        links.review(group.session);
    }

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

    /// It answers each heartbeat, so 0 while it does.
    fn coordinator_silent_ns(s: *const Session) u64 {
        const silent_ns = s.now -| s.last_message;
        return if (silent_ns > 3 *| s.settings.heartbeat_ns) silent_ns else 0;
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
