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
//! groups come and go in groups.zig, protocol/member.zig decides, and collective/executor.zig has
//! the arithmetic.

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
const Span = @import("uses.zig").Span;
const Uses = @import("uses.zig").Uses;
const Sync = @import("sync.zig").Sync;
const connection = @import("control.zig");
const dial_back = @import("dial_back.zig");
const frames = @import("frames.zig");
const groups = @import("groups.zig");
const labels = @import("labels.zig");
const greeting = @import("greeting.zig");
const lanes = @import("lanes.zig");
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

pub const Session = struct {
    gpa: Allocator,
    /// Where the session itself lies.
    home: Allocator,
    self: PeerId,
    run_id: base.RunId,
    host: host.Host,
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
        const x = &operation.executor;
        const sequence = operation.op.id.sequence;
        s.host.vtable.fault_point(s.host.ctx, point, sequence, x.chunks_settled, x.chunks_wanted);
    }

    /// `done`: leaves, where that says something.
    pub fn sync_point(s: *Session, operation: *Operation, point: host.FaultPoint, done: u64) void {
        const state = operation.sync.?.transfer.state orelse return;
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
            if (!operation.finished)
                next = @min(next, operation.deadline, waits.says_called_at(s, operation));
            if (operation.executor.has_work()) next = @min(next, s.now);
        }
        return @min(next, links.next_deadline(s), rounds.next_deadline(s));
    }
};
