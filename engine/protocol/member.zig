//! Member: one peer's membership of one group. A Member joins, passes safe points, stops at a view
//! and goes on at a resume, votes for finished operations, and takes the coordinator's decisions. A
//! Member never sees the data of operations: by `Actions` it tells the session what to move.
//!
//! A Member keeps these rules (docs/internals/PROMISE.md has the reasons):
//!   - A vote (`done`) is irrevocable: a call that has voted ends as committed, aborted or in
//!     doubt, and is never withdrawn.
//!   - At a view the member first stops all data, and then sends its report; data moves again after
//!     the resume.
//!   - A member takes a commit or an abort in any attempt; a vote counts only in its own attempt.
//!   - On each new connection to the coordinator the member tells all its epochs and the calls that
//!     it gave up, so nothing relies on an earlier connection. Without a connection data moves on,
//!     and the member casts no vote.
//! The coordinator's half: coordinator.zig. session/control.zig passes messages to a Member and
//! carries out its actions.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Told = @import("record.zig").Told;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Mask = base.Mask;
const Pair = base.Pair;
const Turns = base.Turns;
const Sequences = @import("sequence.zig").Sequences;
const control = wire.control;
const OpId = control.OpId;
const Descriptor = control.Descriptor;
const KeptRange = control.KeptRange;
const assert = std.debug.assert;

/// The most operations, of all members, that an honest coordinator names in one attempt.
const told_max = base.limits.operations_in_flight_total_max * base.limits.peers_max;

pub const Status = enum {
    ok,
    mismatch,
    aborted,
    expelled,
    in_doubt,
    deadline_exceeded,
    too_few_peers,
    coordinator_unreachable,
    cancelled,
    state_unavailable,
};

/// Why a call failed, with all that a sentence about it names.
pub const Failure = struct {
    status: Status,
    reason: ?control.AbortReason = null,
    /// The peer that gave up, was lost, or made a call that differs.
    peer: PeerId = .none,
    other: PeerId = .none,
    /// The calls of `peer` and `other` in a mismatch; null for other reasons.
    descriptor: ?Descriptor = null,
    other_descriptor: ?Descriptor = null,
    /// Ranks whose calls the failed call waited for, as far as the coordinator has said so.
    missing: Mask = .empty,
    /// Ranks among `missing` that had not entered the operation's epoch, and so could not call it.
    outside: Mask = .empty,
    /// The operations in which the ranks in `missing` waited.
    elsewhere: Told = .{},
    /// Nanoseconds for which the coordinator had been silent when the call failed, if more than a
    /// heartbeat allows; else 0.
    coordinator_silent_ns: u64 = 0,
    /// Nanoseconds without a connection to the coordinator; null: it was connected.
    coordinator_away_ns: ?u64 = null,
};

/// One operation as a Member knows it, from its call to its decision; a part of session's
/// Operation.
pub const Op = struct {
    id: OpId = .{ .tag = 0, .sequence = 0 },
    epoch: u64 = 0,
    descriptor: Descriptor,
    chunks: u32,
    state: State = .new,
    /// All chunks are settled in the current attempt; `digest` is then the digest of the result.
    complete: bool = false,
    digest: u128 = 0,
    /// The attempt in which `done` was last sent; 0 before the vote.
    voted_attempt: u32 = 0,
    /// The attempt in which the operation was called.
    begun_attempt: u32 = 0,
    attempts: u32 = 0,
    /// Why the coordinator was asked to abort an operation that was given up after its vote; null:
    /// it was not asked.
    abort_asked: ?control.AbortReason = null,
    /// Nanoseconds from the call to the vote.
    age_ns: u64 = 0,
    /// The coordinator was told (`called`) that this member has called the operation.
    is_told: bool = false,
    /// The coordinator was told that the deadline of the call is near.
    is_left_told: bool = false,
    /// Ranks that have not called the operation, as the coordinator says, and the operations that
    /// they wait in.
    missing: Mask = .empty,
    elsewhere: Told = .{},
    /// Ranks with which nothing of the operation moves, as the coordinator was told last.
    stuck: Mask = .empty,

    pub const State = enum {
        new,
        /// Called while too many operations were in flight. The call waits for its turn, and no
        /// other peer is told of it before.
        queued,
        /// In flight, and this member has not voted for it.
        running,
        /// The member has voted: `done` is sent.
        voted,
        /// The call has returned InDoubt after its vote; the member still waits for the decision.
        in_doubt,
        /// Decided or given up: the operation is in no list of the Member any more.
        finished,
    };
};

/// The actions that a Member has the session do. A function of Member calls them, and they must not
/// call Member.
pub const Actions = struct {
    ctx: *anyopaque,
    vtable: *const VTable,

    pub const VTable = struct {
        send: *const fn (ctx: *anyopaque, message: control.Message) void,
        /// Stops the data of this epoch: once it returns, nothing may read or write buffers of the
        /// epoch's operations.
        stop: *const fn (ctx: *anyopaque, epoch: u64) void,
        /// For each chunk of a stopped operation, the attempt that reduced it; 0: it is not
        /// settled.
        chunks: *const fn (ctx: *anyopaque, op: *Op) []const u32,
        /// Starts to move data of this operation in the current attempt. `kept`: the chunks that
        /// members hold already.
        start: *const fn (ctx: *anyopaque, op: *Op, kept: []const KeptRange) void,
        /// The call returns to the user. `failure` null: the operation is committed. After in_doubt
        /// the operation stays in flight until `resolved`.
        finished: *const fn (ctx: *anyopaque, op: *Op, failure: ?Failure) void,
        /// An operation whose call returned InDoubt is decided. `committed` null: this peer will
        /// never learn the decision.
        resolved: *const fn (ctx: *anyopaque, op: *Op, committed: ?bool) void,
        /// The pending admit() returns. `failure` null: the member has passed the safe point.
        admitted: *const fn (ctx: *anyopaque, failure: ?Status) void,
        /// This member has closed an epoch: frames of that epoch can be dropped.
        closed: *const fn (ctx: *anyopaque, epoch: u64) void,
    };
};

/// One live epoch as a member sees it.
pub const Epoch = struct {
    number: u64,
    attempt: u32 = 1,
    /// False from a view until its resume: no data of the epoch moves.
    running: bool = true,
    entered: bool = false,
    rank: u16,
    ids: []PeerId,
    joined: u32,
    left: []PeerId,
    safe_point: u64,
    alive: Mask,
    /// Ranks that have not entered the epoch, as far as this member knows.
    missing: Mask,
    /// The number of newcomers outside the epoch that wait until all its members have entered it.
    waiting: u32 = 0,
    /// The order of the ring and the hubs in the current attempt.
    paths: base.Paths,
    ops: std.ArrayList(*Op) = .empty,
    /// Operations that wait for their turn because too many are in flight, in the order of the
    /// calls.
    queued: std.ArrayList(*Op) = .empty,
    sequences: Sequences = .{},
    /// A call of this epoch has failed at this member alone, without an abort (fail_alone).
    has_failed_alone: bool = false,
    /// Aborts of operations that this member has not called yet, oldest first.
    aborts: std.ArrayList(Stored) = .empty,
    /// The `resume_op` messages of the current attempt whose operations this member has not begun
    /// in it.
    resumes: std.ArrayList(StoredResume) = .empty,
    /// Operations that this member has not called, and that the coordinator has asked for
    /// (`stalled`) in this attempt.
    asked: std.AutoHashMapUnmanaged(OpId, void) = .empty,
    /// The number of the last decision that this member has received.
    decisions_seen: u64 = 0,
    /// The value of `decisions_seen` that the coordinator was told last.
    decisions_told: u64 = 0,

    /// Aborts of the sequences [first, end) of a tag. Aborts of successive calls for one reason
    /// share an entry.
    const Stored = struct {
        tag: u64,
        first: u64,
        end: u64,
        /// The rank that caused the aborts, or `unknown_maker`.
        maker: u16,
        failure: Failure,

        fn has(stored: *const Stored, id: OpId) bool {
            if (stored.tag != id.tag) return false;
            return stored.first <= id.sequence and id.sequence < stored.end;
        }
    };
    const StoredResume = struct { id: OpId, kept: []KeptRange };

    pub fn world_size(epoch: *const Epoch) u32 {
        return @intCast(epoch.ids.len);
    }

    /// Whether this member takes part in operations with this tag.
    fn has_part_in(epoch: *const Epoch, tag: u64) bool {
        const pair = Pair.of(tag) orelse return true;
        return pair.has(epoch.rank);
    }

    /// The rank with which this member exchanges a message; null for an operation of all.
    fn partner(epoch: *const Epoch, tag: u64) ?u16 {
        const pair = Pair.of(tag) orelse return null;
        return pair.other(epoch.rank);
    }

    fn any_lost(epoch: *const Epoch) ?PeerId {
        for (epoch.ids, 0..) |id, rank| if (!epoch.alive.has(rank)) return id;
        return null;
    }

    /// Members that are alive and have not entered the epoch, as far as this member knows.
    pub fn not_entered(epoch: *const Epoch) Mask {
        return epoch.alive.intersect(&epoch.missing);
    }

    fn newcomers(epoch: *const Epoch) u32 {
        return if (epoch.joined > 0) epoch.joined else epoch.waiting;
    }

    /// Whether some member of the previous epoch has not entered this one.
    fn awaits_incumbents(epoch: *const Epoch) bool {
        return epoch.not_entered().meets(&.full(epoch.ids.len - epoch.joined));
    }

    pub fn rank_of(epoch: *const Epoch, id: PeerId) ?u16 {
        for (epoch.ids, 0..) |member, rank| if (member.eql(id)) return @intCast(rank);
        return null;
    }

    fn deinit(epoch: *Epoch, gpa: Allocator) void {
        epoch.resumes_clear(gpa);
        epoch.resumes.deinit(gpa);
        gpa.free(epoch.ids);
        gpa.free(epoch.left);
        epoch.ops.deinit(gpa);
        epoch.queued.deinit(gpa);
        epoch.sequences.deinit(gpa);
        epoch.aborts.deinit(gpa);
        epoch.asked.deinit(gpa);
    }

    fn resumes_clear(epoch: *Epoch, gpa: Allocator) void {
        for (epoch.resumes.items) |item| gpa.free(item.kept);
        epoch.resumes.clearRetainingCapacity();
    }

    /// Whether a `resume_op` of the current attempt names this operation.
    fn goes_on(epoch: *const Epoch, id: OpId) bool {
        for (epoch.resumes.items) |*stored| if (stored.id.eql(id)) return true;
        return false;
    }

    fn find(epoch: *const Epoch, id: OpId) ?*Op {
        for (epoch.ops.items) |op| if (op.id.eql(id)) return op;
        return null;
    }

    /// Finds an operation in flight or in the queue.
    fn find_called(epoch: *const Epoch, id: OpId) ?*Op {
        if (epoch.find(id)) |op| return op;
        for (epoch.queued.items) |op| if (op.id.eql(id)) return op;
        return null;
    }

    pub fn is_queued(epoch: *const Epoch, id: OpId) bool {
        for (epoch.queued.items) |op| if (op.id.eql(id)) return true;
        return false;
    }

    /// Counts operations in flight by kind of turn: collectives, sends, receives.
    fn in_flight(epoch: *const Epoch) std.EnumArray(Turns, usize) {
        var found: std.EnumArray(Turns, usize) = .initFill(0);
        for (epoch.ops.items) |op| found.getPtr(.of(op.id.tag, epoch.rank)).* += 1;
        return found;
    }

    /// Whether a call of this kind (collective, send or receive) is in the queue.
    fn has_queued(epoch: *const Epoch, turns: Turns) bool {
        for (epoch.queued.items) |op| if (Turns.of(op.id.tag, epoch.rank) == turns) return true;
        return false;
    }

    fn is_tag_in_use(epoch: *const Epoch, tag: u64) bool {
        for (epoch.ops.items) |op| if (op.id.tag == tag and op.state != .in_doubt) return true;
        for (epoch.queued.items) |op| if (op.id.tag == tag) return true;
        return false;
    }

    /// Keeps an abort until this member makes the call. If too many are kept, the oldest abort of
    /// the member that caused most is dropped, because a member may have operations aborted that no
    /// member ever calls. A call whose abort was dropped ends at its deadline.
    fn store(epoch: *Epoch, gpa: Allocator, id: OpId, failure: Failure) Allocator.Error!void {
        for (epoch.aborts.items) |*stored| {
            if (stored.has(id)) return;
            if (stored.tag != id.tag or stored.end != id.sequence) continue;
            if (!std.meta.eql(stored.failure, failure)) continue;
            stored.end += 1;
            return;
        }
        if (epoch.aborts.items.len >= base.limits.decisions_kept_max) epoch.make_room();
        const maker = if (failure.reason == .passed) failure.other else failure.peer;
        try epoch.aborts.append(gpa, .{
            .tag = id.tag,
            .first = id.sequence,
            .end = id.sequence + 1,
            .maker = epoch.rank_of(maker) orelse unknown_maker,
            .failure = failure,
        });
    }

    const unknown_maker = base.limits.peers_max;

    fn make_room(epoch: *Epoch) void {
        var counts: [unknown_maker + 1]u32 = @splat(0);
        for (epoch.aborts.items) |*stored| counts[stored.maker] += 1;
        const most = std.mem.findMax(u32, &counts);
        for (epoch.aborts.items, 0..) |*stored, index| if (stored.maker == most) {
            _ = epoch.aborts.orderedRemove(index);
            return;
        };
    }

    /// Whether an abort is stored for this operation, which this member has not called.
    pub fn is_aborted(epoch: *const Epoch, id: OpId) bool {
        for (epoch.aborts.items) |*stored| if (stored.has(id)) return true;
        return false;
    }

    /// Takes out the abort stored for this operation. Aborts of lower sequences in the same entry
    /// are dropped, because those calls were made.
    fn recall(epoch: *Epoch, id: OpId) ?Failure {
        for (epoch.aborts.items, 0..) |*stored, index| {
            if (!stored.has(id)) continue;
            const failure = stored.failure;
            stored.first = id.sequence + 1;
            if (stored.first == stored.end) _ = epoch.aborts.orderedRemove(index);
            return failure;
        }
        return null;
    }
};

pub const Member = struct {
    gpa: Allocator,
    group: u16,
    self: PeerId,
    actions: Actions,
    /// The most operations of an epoch in flight of each kind (collectives, sends, receives); tests
    /// set fewer.
    in_flight_max: u32 = base.limits.operations_in_flight_max,
    state: State = .joining,
    safe_points: u64 = 0,
    /// The prepare round whose lanes are being opened; 0 if none.
    round: u64 = 0,
    /// The round that asked this member to stop at its next safe point; 0 if none.
    stop_round: u64 = 0,
    admitting: bool = false,
    how: How = .alone,
    /// In `admit_agreed`: whether the next epoch begins at the safe point under way. Null: the safe
    /// point is not an agreed one.
    agreed: ?bool = null,
    /// At most two: the epoch that this member leaves, and the epoch that it enters.
    epochs: [2]?*Epoch = .{ null, null },
    current: ?*Epoch = null,
    /// The number of newcomers in the round under way, to tell the user.
    pending: u32 = 0,
    /// The round whose lanes are all open, for which `prepared` was sent; 0 if none.
    linked_round: u64 = 0,
    /// The last round that was neither released nor ended in an epoch. The next `join` names it,
    /// because the round may have let this member in.
    unanswered_round: u64 = 0,
    /// The coordinator is connected, and has answered for this group.
    connected: bool = false,
    /// Operations that this peer gave up, or that failed here alone, until the coordinator aborts
    /// them. The list has memory for all operations in flight.
    withdrawn: std.ArrayList(Withdrawn) = .empty,

    const Withdrawn = struct {
        epoch: u64,
        id: OpId,
        reason: control.AbortReason,
        /// The coordinator was told that the operation is given up. False for a call that failed
        /// alone, until `say_failed_alone`.
        is_said: bool = true,
    };

    pub const ActionsTable = Actions.VTable;
    pub const State = enum { joining, ready, active, gone };
    /// How a newcomer enters its first epoch: `alone`, at once, or `together`, after all members of
    /// the previous epoch.
    pub const How = enum { alone, together };

    pub fn init(gpa: Allocator, group: u16, self: PeerId, actions: Actions) Member {
        return .{ .gpa = gpa, .group = group, .self = self, .actions = actions };
    }

    pub fn deinit(m: *Member) void {
        for (&m.epochs) |*slot| m.epoch_free(slot);
        m.withdrawn.deinit(m.gpa);
    }

    fn epoch_free(m: *Member, slot: *?*Epoch) void {
        const epoch = slot.* orelse return;
        if (m.current == epoch) m.current = null;
        epoch.deinit(m.gpa);
        m.gpa.destroy(epoch);
        slot.* = null;
    }

    pub fn epoch_of(m: *const Member, number: u64) ?*Epoch {
        for (m.epochs) |slot| if (slot) |epoch| if (epoch.number == number) return epoch;
        return null;
    }

    /// The number of the newest epoch that this member was told of and still has; 0: none.
    pub fn newest(m: *const Member) u64 {
        var number: u64 = 0;
        for (m.epochs) |slot| if (slot) |epoch| {
            number = @max(number, epoch.number);
        };
        return number;
    }

    fn send(m: *Member, message: control.Message) void {
        m.actions.vtable.send(m.actions.ctx, message);
    }

    // ---- connections

    /// The connection to the coordinator ended. The session makes another one.
    pub fn disconnected(m: *Member) void {
        m.connected = false;
    }

    /// Tells the coordinator on a new connection the epochs of this member, and the operations that
    /// it has given up. The coordinator takes an epoch that is not named as closed by this member;
    /// the operations that it gave up there must not pass for voted ones.
    pub fn present(m: *Member) void {
        for (m.epochs) |slot| if (slot) |epoch| m.send(.{ .epoch_report = .{
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .entered = epoch.entered,
            .decisions_seen = epoch.decisions_seen,
            .alive = epoch.alive,
            .members = .of(epoch.ids),
        } });
        for (m.withdrawn.items) |*given_up| m.send_gave_up(given_up);
        for (m.withdrawn.items) |*given_up| given_up.is_said = true;
        m.send(.{ .join_end = .{} });
    }

    /// The coordinator has answered the join of this group with the group's number.
    pub fn welcomed(m: *Member, group: u16) void {
        m.group = group;
        m.connected = true;
    }

    /// Sends `gave_up` for a call that has failed at this member alone, and that other members wait
    /// for.
    fn say_gave_up(m: *Member, epoch: *const Epoch, id: OpId) void {
        m.send_gave_up(&.{ .epoch = epoch.number, .id = id, .reason = .cancelled });
    }

    fn send_gave_up(m: *Member, given_up: *const Withdrawn) void {
        m.send(.{ .gave_up = .{
            .group = m.group,
            .epoch = given_up.epoch,
            .op = given_up.id,
            .reason = given_up.reason,
        } });
    }

    // ---- joining

    /// The coordinator begins a round: the session opens lanes to the peers of the round.
    pub fn on_prepare(m: *Member, round: u64, newcomers: u32) void {
        m.round = round;
        m.unanswered_round = round;
        m.pending = newcomers;
    }

    /// All lanes that the round asked for are open.
    pub fn links_ready(m: *Member) void {
        if (m.round == 0) return;
        m.linked_round = m.round;
        m.round = 0;
        if (m.state == .joining) m.state = .ready;
        m.send_prepared();
    }

    /// Tells the coordinator which lanes of the round are still missing, so that the round can go
    /// on without them.
    pub fn links_missing(m: *Member, missing: []const control.Missing) void {
        m.say_prepared(m.round, missing);
    }

    /// Sends `prepared` for the round whose lanes are open. A newcomer sends `prepared` again when
    /// its user calls `admit`; until then the round need not wait for the newcomer.
    fn send_prepared(m: *Member) void {
        m.say_prepared(m.linked_round, &.{});
    }

    fn say_prepared(m: *Member, round: u64, missing: []const control.Missing) void {
        if (round == 0) return;
        m.send(.{ .prepared = .{
            .group = m.group,
            .round = round,
            .entering = m.current != null or m.admitting,
            .missing = .of(missing),
        } });
    }

    /// Forgets the round of a newcomer that has a new connection, because the round went on without
    /// it or is over. `unanswered_round` stays, because the round may have let the newcomer in.
    pub fn forget_round(m: *Member) void {
        m.round = 0;
        m.linked_round = 0;
        m.pending = 0;
    }

    pub fn on_release(m: *Member, round: u64) void {
        if (m.round == round) m.round = 0;
        if (m.linked_round == round) m.linked_round = 0;
        if (m.unanswered_round == round) m.unanswered_round = 0;
        m.pending = 0;
        if (m.stop_round != round) return;
        m.stop_round = 0;
        m.admit_continue();
    }

    /// Tells the coordinator at once how many safe points this member has passed. From now on the
    /// member stops at its next safe point.
    pub fn on_ask(m: *Member, round: u64) void {
        m.stop_round = round;
        m.send(.{ .safe_points = .{ .group = m.group, .round = round, .count = m.safe_points } });
    }

    pub const EpochError = error{ OutOfMemory, Unexpected };

    pub fn on_activate(m: *Member, message: *const control.Activate) EpochError!void {
        if (m.epoch_of(message.epoch) != null) return;
        const slot = for (&m.epochs) |*slot| {
            if (slot.* == null) break slot;
        } else return error.Unexpected;
        const epoch = try epoch_create(m, message);
        m.forget_older();
        slot.* = epoch;
        m.stop_round = 0;
        m.round = 0;
        m.linked_round = 0;
        m.unanswered_round = 0;
        m.pending = 0;
        m.admit_continue();
    }

    fn epoch_create(m: *Member, message: *const control.Activate) EpochError!*Epoch {
        const gpa = m.gpa;
        const ids = try m.members_of(message);
        errdefer gpa.free(ids);
        if (ids.len == 0 or message.joined > ids.len) return error.Unexpected;
        const rank = for (ids, 0..) |id, index| {
            if (id.eql(m.self)) break index;
        } else return error.Unexpected;
        const left = try ids_copy(gpa, &message.left);
        errdefer gpa.free(left);
        const epoch = try gpa.create(Epoch);
        errdefer gpa.destroy(epoch);
        epoch.* = .{
            .number = message.epoch,
            .rank = @intCast(rank),
            .ids = ids,
            .joined = message.joined,
            .left = left,
            .safe_point = message.safe_point,
            .alive = .full(ids.len),
            .missing = .full(ids.len),
            .paths = .all(&.full(ids.len), ids.len),
        };
        return epoch;
    }

    /// Drops the `withdrawn` operations of epochs that this member has closed. When a new epoch
    /// begins, all members have closed those.
    fn forget_older(m: *Member) void {
        var kept: usize = 0;
        for (m.withdrawn.items) |given_up| if (m.epoch_of(given_up.epoch) != null) {
            m.withdrawn.items[kept] = given_up;
            kept += 1;
        };
        m.withdrawn.shrinkRetainingCapacity(kept);
    }

    /// The members of a new epoch in rank order. With `base` the message has only the changes to
    /// that earlier epoch.
    fn members_of(m: *const Member, message: *const control.Activate) EpochError![]PeerId {
        if (message.base == 0) return ids_copy(m.gpa, &message.members);
        const before = m.epoch_of(message.base) orelse return error.Unexpected;
        var ids: std.ArrayList(PeerId) = .empty;
        errdefer ids.deinit(m.gpa);
        for (before.ids) |id| {
            var left = message.left.iterator();
            const has_left = while (left.next()) |other| {
                if (other.eql(id)) break true;
            } else false;
            if (!has_left) try ids.append(m.gpa, id);
        }
        if (ids.items.len + message.members.count > base.limits.peers_max)
            return error.Unexpected;
        var new = message.members.iterator();
        while (new.next()) |id| try ids.append(m.gpa, id);
        return ids.toOwnedSlice(m.gpa);
    }

    fn ids_copy(gpa: Allocator, list: *const wire.codec.List(PeerId)) ![]PeerId {
        const ids = try gpa.alloc(PeerId, list.count);
        var it = list.iterator();
        for (ids) |*id| id.* = it.next().?;
        return ids;
    }

    // ---- safe points

    /// The number of newcomers that wait for the user's next admit(). If an epoch has begun that
    /// this member has not entered: the newcomers of that epoch, or, if that epoch only closes the
    /// gap of a loss, the newcomers outside it. Otherwise: the newcomers of the round under way.
    pub fn newcomers_waiting(m: *const Member) u32 {
        if (m.current == null) return m.pending;
        return if (m.activation()) |epoch| epoch.newcomers() else m.pending;
    }

    /// The number of newcomers that enter if all members now pass a safe point together
    /// (`admit_agreed`).
    pub fn newcomers_waiting_together(m: *const Member) u32 {
        return if (m.epoch_to_enter()) |epoch| epoch.newcomers() else 0;
    }

    /// The user calls admit(). The action `admitted` follows, at once if neither a round nor an
    /// epoch is pending.
    pub fn admit(m: *Member) void {
        assert(!m.admitting);
        m.admitting = true;
        if (m.current == null) m.send_prepared();
        m.admit_continue();
    }

    /// Passes a safe point that all members have agreed on. With `enters` all members enter the
    /// epoch of `epoch_to_enter` there. Without it no member stops there, even if a round asks for
    /// it, so that all have passed equally many safe points afterwards.
    pub fn admit_agreed(m: *Member, enters: bool) void {
        assert(!m.admitting and m.current != null);
        assert(!enters or m.epoch_to_enter() != null);
        m.admitting = true;
        m.agreed = enters;
        m.admit_continue();
    }

    /// The user's admit() has reached its deadline: the member does not pass the safe point.
    pub fn admit_give_up(m: *Member) void {
        m.admitting = false;
        m.agreed = null;
        if (m.current == null) m.send_prepared();
    }

    fn admit_continue(m: *Member) void {
        if (!m.admitting) return;
        const next = m.activation();
        if (m.current == null) {
            // A newcomer need not reach the epoch's safe point: `enter` sets its count of safe
            // points.
            const epoch = next orelse return;
            if (m.how == .together and epoch.awaits_incumbents()) return;
            return m.enter(epoch);
        }
        if (m.agreed) |enters| return if (enters) m.enter(next.?) else m.pass();
        if (next) |epoch| {
            // This member enters at its next safe point, even if the epoch begins at an earlier
            // one: no collective that it called in between was committed (epoch.zig:
            // last_safe_point).
            if (epoch.safe_point <= m.safe_points + 1) return m.enter(epoch);
        } else if (m.stop_round != 0) return;
        m.pass();
    }

    fn pass(m: *Member) void {
        m.safe_points += 1;
        m.admit_end(null);
    }

    fn admit_end(m: *Member, failure: ?Status) void {
        m.admitting = false;
        m.agreed = null;
        m.actions.vtable.admitted(m.actions.ctx, failure);
    }

    /// The epoch that has begun and that this member has not entered; null if there is none.
    fn activation(m: *const Member) ?*Epoch {
        for (m.epochs) |slot| if (slot) |epoch| if (!epoch.entered) return epoch;
        return null;
    }

    /// The coordinator tells which members have not entered an epoch, and how many newcomers wait
    /// outside.
    pub fn on_entered(m: *Member, message: *const control.Entered) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (!Mask.full(epoch.ids.len).covers(&message.missing)) return error.Unexpected;
        epoch.missing = message.missing;
        epoch.waiting = message.waiting;
        // The coordinator may not have heard yet that this member has entered.
        if (epoch.entered) epoch.missing.unset(epoch.rank);
        m.admit_continue();
    }

    /// The epoch that this member enters at its next safe point; null if it enters none.
    pub fn epoch_to_enter(m: *const Member) ?*const Epoch {
        if (m.current == null) return null;
        const epoch = m.activation() orelse return null;
        return if (epoch.safe_point <= m.safe_points + 1) epoch else null;
    }

    fn enter(m: *Member, epoch: *Epoch) void {
        epoch.entered = true;
        epoch.missing.unset(epoch.rank);
        m.safe_points = epoch.safe_point;
        m.current = epoch;
        m.state = .active;
        m.say_failed_alone();
        m.send(.{ .activated = .{ .group = m.group, .epoch = epoch.number } });
        m.close_drained();
        m.admit_end(null);
    }

    /// Closes epochs that this member has left and that have nothing in flight.
    fn close_drained(m: *Member) void {
        for (&m.epochs) |*slot| {
            const epoch = slot.* orelse continue;
            if (!epoch.entered or epoch == m.current) continue;
            if (epoch.ops.items.len + epoch.queued.items.len > 0) continue;
            const number = epoch.number;
            m.say_failed_alone();
            m.send(.{ .epoch_closed = .{ .group = m.group, .epoch = number } });
            m.epoch_free(slot);
            m.actions.vtable.closed(m.actions.ctx, number);
        }
    }

    // ---- operations

    pub const StartError = error{
        OutOfMemory,
        TagInUse,
        /// Too many calls wait for their turn.
        TooManyOperations,
        /// Too many operations were given up that the coordinator has not aborted yet.
        TooManyGivenUp,
        TooManyTags,
        NotAdmitted,
    };

    /// Checks that a call with this tag may start now or be queued, and reserves memory for it.
    pub fn check_start(m: *Member, tag: u64) StartError!void {
        const epoch = m.current orelse return error.NotAdmitted;
        const waits = m.is_full(tag);
        if (waits and m.queued_count() >= base.limits.operations_queued_max)
            return error.TooManyOperations;
        if (m.withdrawn.items.len >= base.limits.given_up_max) return error.TooManyGivenUp;
        if (epoch.is_tag_in_use(tag)) return error.TagInUse;
        try epoch.sequences.reserve(m.gpa, tag);
        if (waits) {
            try epoch.queued.ensureUnusedCapacity(m.gpa, 1);
            // Reserves a place in `ops` for the call's turn, however many operations have begun by
            // then.
            try epoch.ops.ensureTotalCapacity(m.gpa, base.limits.operations_in_flight_total_max);
        } else try epoch.ops.ensureUnusedCapacity(m.gpa, 1);
        try m.withdrawn.ensureUnusedCapacity(m.gpa, m.in_flight() + 1);
    }

    /// Whether a call of the current epoch with this tag has to wait for its turn.
    pub fn is_full(m: *const Member, tag: u64) bool {
        const epoch = m.current orelse return false;
        if (epoch.ops.items.len < m.in_flight_max and epoch.queued.items.len == 0) return false;
        const turns: Turns = .of(tag, epoch.rank);
        return epoch.has_queued(turns) or epoch.in_flight().get(turns) >= m.in_flight_max;
    }

    /// How many operations were called and are not decided, over all epochs.
    pub fn in_flight(m: *const Member) usize {
        var count = m.queued_count();
        for (m.epochs) |slot| if (slot) |epoch| {
            count += epoch.ops.items.len;
        };
        return count;
    }

    fn queued_count(m: *const Member) usize {
        var count: usize = 0;
        for (m.epochs) |slot| if (slot) |epoch| {
            count += epoch.queued.items.len;
        };
        return count;
    }

    /// The id of the next call of this tag.
    pub fn next_id(m: *const Member, tag: u64) OpId {
        return .{ .tag = tag, .sequence = m.current.?.sequences.next(tag) };
    }

    /// Starts a call that `check_start` has passed: gives it its sequence number, and fails it at
    /// once if an abort is stored for it. The call is queued if too many are in flight.
    pub fn start(m: *Member, op: *Op, tag: u64) void {
        const epoch = m.current.?;
        const waits = m.is_full(tag);
        op.id = m.next_id(tag);
        epoch.sequences.count(tag);
        op.epoch = epoch.number;
        if (epoch.recall(op.id)) |failure| {
            op.state = .finished;
            // A `cancelled` abort may come from a member whose call failed alone because a peer is
            // lost; this call then fails for the same loss.
            var why = failure;
            if (failure.reason == .cancelled and op.descriptor.recovery == .complete)
                if (epoch.any_lost()) |lost| {
                    why = failure_of_lost(lost);
                };
            return m.actions.vtable.finished(m.actions.ctx, op, why);
        }
        if (waits) {
            op.state = .queued;
            epoch.queued.appendAssumeCapacity(op);
        } else m.take_up(epoch, op);
        // A queued call counts as called, so that this member is not blamed for its absence.
        const is_called = op.state == .running or op.state == .queued;
        if (!epoch.asked.remove(op.id)) return;
        if (is_called) return m.say_called(epoch, op, far);
        m.say_gave_up(epoch, op.id);
    }

    fn take_up(m: *Member, epoch: *Epoch, op: *Op) void {
        op.begun_attempt = epoch.attempt;
        op.state = .running;
        epoch.ops.appendAssumeCapacity(op);
        if (epoch.running) m.begin(epoch, op);
    }

    /// The queued call whose turn it is; null if none is queued or too many are in flight.
    pub fn next_queued(m: *const Member) ?*Op {
        for (m.epochs) |slot| if (slot) |epoch| {
            if (epoch.queued.items.len == 0) continue;
            const at_once = epoch.in_flight();
            for (epoch.queued.items) |op| {
                const turns: Turns = .of(op.id.tag, epoch.rank);
                if (at_once.get(turns) < m.in_flight_max) return op;
            }
        };
        return null;
    }

    /// Starts the queued call that `next_queued` has returned.
    pub fn start_queued(m: *Member, op: *Op) void {
        const epoch = m.epoch_of(op.epoch).?;
        const index = std.mem.findScalar(*Op, epoch.queued.items, op).?;
        _ = epoch.queued.orderedRemove(index);
        m.take_up(epoch, op);
        m.close_drained(); // the call may have failed alone
    }

    fn begin(m: *Member, epoch: *Epoch, op: *Op) void {
        op.attempts += 1;
        // In a new attempt even a complete result may have to be sent to others, and this member
        // votes anew.
        op.complete = false;
        // An operation that is resumed was not committed. A private result may have to be formed
        // anew, so this member's vote for the old result is void.
        if (op.descriptor.kind.is_private() and op.state == .voted) {
            op.state = .running;
            op.voted_attempt = 0;
        }
        if (op.state == .running) if (epoch.partner(op.id.tag)) |rank| if (!epoch.alive.has(rank))
            return m.fail_alone(epoch, op, epoch.ids[rank]);
        if (op.state == .running and op.descriptor.recovery == .complete)
            if (epoch.any_lost()) |lost| return m.fail_alone(epoch, op, lost);
        const is_lost = root_lost(epoch, op);
        for (epoch.resumes.items, 0..) |stored, index| {
            if (!stored.id.eql(op.id)) continue;
            _ = epoch.resumes.swapRemove(index);
            defer m.gpa.free(stored.kept);
            // The resume keeps no chunk of this call: none was settled, or members resume a
            // different call under the same id.
            const is_foreign = stored.kept.len == 0 and op.state == .running;
            if (is_foreign and is_lost) break;
            return m.actions.vtable.start(m.actions.ctx, op, stored.kept);
        }
        if (is_lost) return m.withdraw(epoch, op, .root_lost, op.descriptor.root);
        m.actions.vtable.start(m.actions.ctx, op, &.{});
    }

    /// Fails a call that needs a member which was lost before the call: the other rank of a
    /// message, or any member with recovery `complete`. The coordinator is not told of a failed
    /// message, which concerns no third member. With `complete` all members learn of the loss
    /// before they go on, so all fail alike. But a member may have called the operation with
    /// another recovery, and its call must not succeed after this member has gone on. So the
    /// coordinator is told before this member shows that it has gone on (say_failed_alone), or at
    /// once if the coordinator knows of the call.
    fn fail_alone(m: *Member, epoch: *Epoch, op: *Op, lost: PeerId) void {
        epoch.has_failed_alone = true;
        if (op.is_told)
            m.take_back(op, .cancelled)
        else if (epoch.partner(op.id.tag) == null)
            m.take_back_later(op);
        m.forget(epoch, op);
        m.actions.vtable.finished(m.actions.ctx, op, failure_of_lost(lost));
    }

    fn failure_of_lost(lost: PeerId) Failure {
        return .{ .status = .aborted, .reason = .peer_lost, .peer = lost };
    }

    /// Notes a call that failed alone, to tell the coordinator later (say_failed_alone). A program
    /// may repeat failing calls as fast as it can, so only the first `failed_alone_max` are noted.
    fn take_back_later(m: *Member, op: *const Op) void {
        if (m.withdrawn.items.len >= base.limits.failed_alone_max) return;
        m.withdrawn.appendAssumeCapacity(.{
            .epoch = op.epoch,
            .id = op.id,
            .reason = .cancelled,
            .is_said = false,
        });
    }

    /// Tells the coordinator of the calls that failed at this member alone. Called before each vote
    /// and report, and before this member enters or closes an epoch, because these show other
    /// members that it has gone on (P2).
    fn say_failed_alone(m: *Member) void {
        if (!m.connected) return; // `present` tells them on the next connection
        for (m.withdrawn.items) |*given_up| {
            if (given_up.is_said) continue;
            given_up.is_said = true;
            m.send_gave_up(given_up);
        }
    }

    /// Whether the operation has data and its root is lost.
    fn root_lost(epoch: *const Epoch, op: *const Op) bool {
        if (!op.descriptor.kind.has_root() or op.chunks == 0) return false;
        const root = epoch.rank_of(op.descriptor.root) orelse return true;
        return !epoch.alive.has(root);
    }

    /// Asks the coordinator to abort the operation for all members, and fails the call.
    fn withdraw(
        m: *Member,
        epoch: *Epoch,
        op: *Op,
        reason: control.AbortReason,
        peer: PeerId,
    ) void {
        m.take_back(op, reason);
        m.forget(epoch, op);
        const status: Status = switch (reason) {
            .deadline => if (m.connected) .deadline_exceeded else .coordinator_unreachable,
            .cancelled => .cancelled,
            .root_lost, .link_broken => .aborted,
            .state_unavailable => .state_unavailable,
            .mismatch,
            .digest,
            .peer_lost,
            .too_few_peers,
            .contradiction,
            .structure,
            .state_conflict,
            .state_strategy,
            .passed,
            => unreachable,
        };
        var failure: Failure = .{ .status = status, .reason = reason, .peer = peer };
        m.note_missing(op, &failure);
        m.actions.vtable.finished(m.actions.ctx, op, failure);
    }

    /// Sends `gave_up` for an operation. Each new connection repeats that until the coordinator's
    /// abort comes.
    fn take_back(m: *Member, op: *const Op, reason: control.AbortReason) void {
        m.withdrawn.appendAssumeCapacity(.{ .epoch = op.epoch, .id = op.id, .reason = reason });
        m.send_gave_up(&m.withdrawn.items[m.withdrawn.items.len - 1]);
    }

    // ---- calls that others wait for

    /// Tells the coordinator, once, that this member has made a call which takes long, perhaps
    /// because others have not made it. `left_ns`: nanoseconds until a deadline that is near; a
    /// near deadline is told once, even if the coordinator knows of the call.
    pub fn takes_long(m: *Member, op: *Op, left_ns: ?u64) void {
        if (!m.may_say_called(op, left_ns != null)) return;
        if (left_ns != null) op.is_left_told = true;
        m.say_called(m.epoch_of(op.epoch).?, op, left_ns orelse far);
    }

    /// Tells the coordinator the ranks with which nothing of the operation moves, if they have
    /// changed.
    pub fn say_stuck(m: *Member, op: *Op, stuck: *const Mask) void {
        if (op.state != .running or !m.connected or op.stuck.eql(stuck)) return;
        const epoch = m.epoch_of(op.epoch) orelse return;
        if (!epoch.running) return;
        op.stuck = stuck.*;
        m.say_called(epoch, op, far);
    }

    const far = std.math.maxInt(u64);

    pub fn may_say_called(m: *const Member, op: *const Op, is_urgent: bool) bool {
        const waits = op.state == .running or (is_urgent and op.state == .voted);
        const is_known = if (is_urgent) op.is_left_told else op.is_told;
        if (is_known or !waits or !m.connected) return false;
        const epoch = m.epoch_of(op.epoch) orelse return false;
        return epoch.running;
    }

    fn say_called(m: *Member, epoch: *const Epoch, op: *Op, left_ns: u64) void {
        op.is_told = true;
        m.send(.{ .called = .{
            .group = m.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = op.id,
            .descriptor = op.descriptor,
            .left_ns = left_ns,
            .stuck = op.stuck,
        } });
    }

    /// The coordinator tells that some members have called an operation and others have not, or
    /// that all have called it and links move nothing of it.
    pub fn on_stalled(m: *Member, message: *const control.Stalled) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (message.attempt != epoch.attempt or !epoch.running) return;
        if (!Mask.full(epoch.ids.len).covers(&message.missing)) return error.Unexpected;
        const elsewhere: Told = try .read(&message.elsewhere, epoch.ids.len);
        const is_missing = message.missing.has(epoch.rank);
        if (epoch.find_called(message.op)) |op| {
            // This member has called the operation meanwhile.
            if (is_missing) return m.say_called(epoch, op, far);
            op.missing = message.missing;
            op.elsewhere = elsewhere;
            return;
        }
        const next = epoch.sequences.next(message.op.tag);
        if (!is_missing) return;
        if (message.op.sequence < next) { // the call has ended here
            if (epoch.has_failed_alone) m.say_gave_up(epoch, message.op);
            return;
        }
        if (epoch.asked.count() >= told_max) return error.Unexpected;
        try epoch.asked.put(m.gpa, message.op, {});
    }

    /// Writes into `failure` the ranks that the failed call waited for, and the operations that
    /// those waited in.
    fn note_missing(m: *const Member, op: *const Op, failure: *Failure) void {
        failure.outside = m.outside_of(op);
        failure.elsewhere = op.elsewhere;
        const epoch = m.epoch_of(op.epoch) orelse return;
        failure.missing = epoch.alive.intersect(&op.missing);
    }

    /// Ranks that a call waits for and that have not entered its epoch.
    pub fn outside_of(m: *const Member, op: *const Op) Mask {
        const epoch = m.epoch_of(op.epoch) orelse return .empty;
        return epoch.not_entered().intersect(&op.missing);
    }

    /// All chunks of the operation are settled in the current attempt: casts this member's vote.
    pub fn completed(m: *Member, op: *Op, digest: u128) void {
        const epoch = m.epoch_of(op.epoch) orelse return;
        if (op.state == .finished or !epoch.running) return;
        op.complete = true;
        op.digest = digest;
        // Without a connection no vote is cast: once the coordinator is back a new attempt begins,
        // in which this member votes.
        if (!m.connected or op.voted_attempt == epoch.attempt) return;
        op.voted_attempt = epoch.attempt;
        if (op.state == .running) op.state = .voted;
        m.say_failed_alone();
        m.send(.{ .done = .{
            .group = m.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = op.id,
            .descriptor = op.descriptor,
            .digest = digest,
            .decisions_seen = epoch.decisions_seen,
            .age_ns = op.age_ns,
        } });
        epoch.decisions_told = epoch.decisions_seen;
    }

    /// Gives up a call whose deadline passed, or that the user cancelled. Before the vote the
    /// operation is withdrawn for all members; after the vote the call returns in doubt, or, for a
    /// sync, asks for an abort first (give_up_sync).
    pub fn give_up(m: *Member, op: *Op, reason: control.AbortReason) void {
        switch (op.state) {
            .queued, .running => {
                m.withdraw(m.epoch_of(op.epoch).?, op, reason, m.self);
                m.close_drained();
            },
            // The link broke after this rank's vote: the other rank knows whether the message
            // arrived.
            .voted => if (reason == .link_broken) return //
            else if (op.descriptor.kind == .sync) {
                m.give_up_sync(op, reason);
            } else {
                op.abort_asked = reason;
                m.doubt(op, reason);
            },
            .new, .in_doubt, .finished => {},
        }
    }

    // ---- syncs

    /// The fields of `state_offer` that the session supplies to the Member.
    pub const Offer = struct {
        digest: u128,
        revision: u64,
        expected: u64,
        structure: control.Hash,
        root: control.Hash,
        strategy: control.Strategy,
        standing: control.Standing,
        voted: bool,
        name: base.Label,
    };

    /// Offers this member's content for a sync in the current attempt. Equal offers of all members
    /// are their votes, so the operation counts as voted until `state_elected` says that the offers
    /// differ.
    pub fn offer(m: *Member, op: *Op, what: Offer) void {
        const epoch = m.epoch_of(op.epoch) orelse return;
        if (!epoch.running) return;
        // Without a connection nothing is offered: once the coordinator is back a new attempt
        // begins, in which this member offers.
        if (!m.connected) return;
        const message: control.StateOffer = .{
            .group = m.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = op.id,
            .descriptor = op.descriptor,
            .digest = what.digest,
            .revision = what.revision,
            .expected = what.expected,
            .structure = what.structure,
            .root = what.root,
            .strategy = what.strategy,
            .standing = what.standing,
            .voted = what.voted,
            .decisions_seen = epoch.decisions_seen,
            .name = .of(what.name.slice()),
        };
        const votes = message.is_vote();
        switch (op.state) {
            .running, .voted => op.state = if (votes) .voted else .running,
            // A call in doubt sends no `state_offer` any more, so this member asks for the abort
            // again: the other members would wait for its offer.
            .in_doubt => return m.ask_to_abort(op),
            .new, .queued, .finished => return,
        }
        op.voted_attempt = if (votes) epoch.attempt else 0;
        op.complete = false;
        op.digest = what.digest;
        m.say_failed_alone();
        m.send(.{ .state_offer = message });
        epoch.decisions_told = epoch.decisions_seen;
        m.ask_to_abort(op);
    }

    /// The coordinator has elected a content because the offers of a sync differ: this member's
    /// offer was no vote. Returns the sync; null if it is not under way at this member.
    pub fn on_elected(m: *Member, message: *const control.StateElected) EpochError!?*Op {
        const epoch = m.epoch_of(message.epoch) orelse return null;
        if (message.attempt != epoch.attempt or !epoch.running) return null;
        const op = epoch.find(message.op) orelse return null;
        if (op.descriptor.kind != .sync) return error.Unexpected;
        if (op.state == .in_doubt) return null;
        if (op.complete) return error.Unexpected;
        op.state = .running;
        op.voted_attempt = 0;
        return op;
    }

    /// The sync with this id in this epoch; null: this peer has none in flight.
    pub fn find_sync(m: *Member, number: u64, id: OpId) ?*Op {
        const epoch = m.epoch_of(number) orelse return null;
        const op = epoch.find(id) orelse return null;
        return if (op.descriptor.kind == .sync) op else null;
    }

    pub fn describe(
        m: *Member,
        op: *const Op,
        tensors: []const control.StateTensor,
        first: u32,
        total: u32,
    ) void {
        const epoch = m.epoch_of(op.epoch) orelse return;
        m.send(.{ .state_tensors = .{
            .group = m.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = op.id,
            .first = first,
            .total = total,
            .tensors = .of(tensors),
        } });
    }

    /// Asks the coordinator to abort a sync after this member's vote. No buffer changes before the
    /// commit, so at its deadline the call waits for the coordinator's decision. The call returns
    /// in doubt if it is cancelled, or given up a second time.
    fn give_up_sync(m: *Member, op: *Op, reason: control.AbortReason) void {
        const again = op.abort_asked != null;
        op.abort_asked = reason;
        if (!again) m.ask_to_abort(op);
        if (reason != .deadline or again) m.doubt(op, reason);
    }

    /// Asks the coordinator to abort an operation that this member gave up after its vote. Each
    /// later attempt repeats that, so that no member waits for this one.
    pub fn ask_to_abort(m: *Member, op: *const Op) void {
        m.send(.{ .gave_up = .{
            .group = m.group,
            .epoch = op.epoch,
            .op = op.id,
            .reason = op.abort_asked orelse return,
        } });
    }

    fn doubt(m: *Member, op: *Op, reason: control.AbortReason) void {
        op.state = .in_doubt;
        var failure: Failure = .{ .status = .in_doubt, .reason = reason };
        m.note_missing(op, &failure);
        m.actions.vtable.finished(m.actions.ctx, op, failure);
    }

    /// Tells the coordinator that a neighbour called the operation differently.
    pub fn mismatch(
        m: *Member,
        op: *Op,
        mine: Descriptor,
        other: PeerId,
        theirs: Descriptor,
    ) void {
        m.send(.{ .mismatch_seen = .{
            .group = m.group,
            .epoch = op.epoch,
            .op = op.id,
            .mine = mine,
            .other = other,
            .theirs = theirs,
        } });
    }

    fn forget(m: *Member, epoch: *Epoch, op: *Op) void {
        _ = m;
        op.state = .finished;
        for ([_]*std.ArrayList(*Op){ &epoch.ops, &epoch.queued }) |list| {
            const index = std.mem.findScalar(*Op, list.items, op) orelse continue;
            _ = list.orderedRemove(index);
            return;
        }
    }

    // ---- decisions

    pub fn on_commit(m: *Member, message: *const control.Commit) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        m.saw(epoch, message.decision);
        const op = epoch.find(message.op) orelse return;
        // A commit needs this peer's vote; without one the coordinator breaks the protocol.
        if (op.state == .running) return error.Unexpected;
        const was = op.state;
        m.forget(epoch, op);
        switch (was) {
            .voted => m.actions.vtable.finished(m.actions.ctx, op, null),
            .in_doubt => m.actions.vtable.resolved(m.actions.ctx, op, true),
            .new, .queued, .running, .finished => unreachable,
        }
        m.close_drained();
    }

    pub fn on_abort(m: *Member, message: *const control.Abort) EpochError!void {
        m.withdrawal_answered(message);
        const epoch = m.epoch_of(message.epoch) orelse return;
        m.saw(epoch, message.decision);
        var failure = failure_from(message);
        _ = epoch.asked.remove(message.op);
        if (epoch.find_called(message.op)) |op| {
            m.note_missing(op, &failure);
            const was = op.state;
            const own = message.reason == .deadline and message.peer.eql(m.self);
            if (own) failure.status = .deadline_exceeded; // give_up_sync asked for this abort
            m.forget(epoch, op);
            if (was == .in_doubt)
                m.actions.vtable.resolved(m.actions.ctx, op, false)
            else
                m.actions.vtable.finished(m.actions.ctx, op, failure);
            return m.close_drained();
        }
        if (!epoch.has_part_in(message.op.tag)) return;
        const next = epoch.sequences.next(message.op.tag);
        if (message.op.sequence < next) return; // the call has ended here
        try epoch.store(m.gpa, message.op, failure);
    }

    fn withdrawal_answered(m: *Member, message: *const control.Abort) void {
        for (m.withdrawn.items, 0..) |*given_up, index| {
            if (given_up.epoch != message.epoch or !given_up.id.eql(message.op)) continue;
            _ = m.withdrawn.swapRemove(index);
            return;
        }
    }

    /// Notes a decision as seen. Votes and reports tell the coordinator which decisions were seen;
    /// after `decisions_untold_max` decisions without either, the message `decisions_seen` does.
    fn saw(m: *Member, epoch: *Epoch, decision: u64) void {
        epoch.decisions_seen = @max(epoch.decisions_seen, decision);
        if (epoch.decisions_seen - epoch.decisions_told < base.limits.decisions_untold_max) return;
        epoch.decisions_told = epoch.decisions_seen;
        m.send(.{ .decisions_seen = .{
            .group = m.group,
            .epoch = epoch.number,
            .count = epoch.decisions_seen,
        } });
    }

    fn failure_from(message: *const control.Abort) Failure {
        const mismatched = message.reason == .mismatch;
        return .{
            .status = switch (message.reason) {
                .mismatch, .contradiction, .structure, .state_conflict => .mismatch,
                .state_strategy => .mismatch,
                .state_unavailable => .state_unavailable,
                .too_few_peers => .too_few_peers,
                .deadline, .cancelled, .digest, .peer_lost, .root_lost, .link_broken => .aborted,
                .passed => .aborted,
            },
            .reason = message.reason,
            .peer = message.peer,
            .other = message.other,
            .descriptor = if (mismatched) message.descriptor else null,
            .other_descriptor = if (mismatched) message.other_descriptor else null,
        };
    }

    // ---- views

    /// A new attempt begins: stops all data, reports the settled chunks, and waits for the resume.
    pub fn on_view(m: *Member, message: *const control.View) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (message.attempt <= epoch.attempt) return;
        if (!epoch.alive.covers(&message.alive)) return error.Unexpected;
        if (!message.alive.has(epoch.rank)) return error.Unexpected;
        const paths = try paths_of(message, epoch.world_size());
        m.actions.vtable.stop(m.actions.ctx, epoch.number);
        epoch.attempt = message.attempt;
        epoch.alive = message.alive;
        epoch.paths = paths;
        epoch.running = false;
        epoch.asked.clearRetainingCapacity();
        epoch.resumes_clear(m.gpa);
        m.say_failed_alone();
        for (epoch.ops.items) |op| {
            op.missing = .empty;
            op.elsewhere = .{};
            op.stuck = .empty;
            try m.report(epoch, op);
        }
        m.send(.{ .report_end = .{
            .group = m.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .decisions_seen = epoch.decisions_seen,
        } });
        epoch.decisions_told = epoch.decisions_seen;
    }

    fn paths_of(message: *const control.View, world_size: u32) error{Unexpected}!base.Paths {
        const possible: base.Paths = .all(&message.alive, world_size);
        if (!possible.hubs.covers(&message.hubs)) return error.Unexpected;
        if (!message.has_ring and message.hubs.is_empty()) return error.Unexpected;
        if (message.plan == .auto) return error.Unexpected;
        return .{
            .order = try order_of(message),
            .has_ring = message.has_ring,
            .hubs = message.hubs,
            .shares = try shares_of(message),
            .plan = message.plan,
            .small_bytes = message.small_bytes,
        };
    }

    /// Reads the shares of the hubs. No other member may own a chunk.
    fn shares_of(message: *const control.View) error{Unexpected}!base.Shares {
        var shares: base.Shares = .{};
        var it = message.shares.iterator();
        var rank: usize = 0;
        var sum: u32 = 0;
        while (it.next()) |share| : (rank += 1) {
            if (share > 0 and !message.hubs.has(rank)) return error.Unexpected;
            sum += share;
            if (sum > base.Shares.sum_max) return error.Unexpected;
            shares.of[rank] = @intCast(share);
        }
        return shares;
    }

    /// Reads the order of the ring, which must have each rank that is alive once.
    fn order_of(message: *const control.View) error{Unexpected}!base.Order {
        if (message.order.count == 0) return .of(&message.alive);
        if (message.order.count != message.alive.count()) return error.Unexpected;
        var order: base.Order = .{};
        var left = message.alive;
        var it = message.order.iterator();
        while (it.next()) |rank| {
            if (rank >= base.limits.peers_max or !left.has(rank)) return error.Unexpected;
            left.unset(rank);
            order.append(rank);
        }
        return order;
    }

    fn report(m: *Member, epoch: *Epoch, op: *Op) EpochError!void {
        const chunks = m.actions.vtable.chunks(m.actions.ctx, op);
        var ranges: std.ArrayList(control.SettledRange) = .empty;
        defer ranges.deinit(m.gpa);
        var first: usize = 0;
        while (first < chunks.len) {
            const reduced = chunks[first];
            var after = first + 1;
            while (after < chunks.len and chunks[after] == reduced) after += 1;
            if (reduced != 0) try ranges.append(m.gpa, .{
                .begin = @intCast(first),
                .end = @intCast(after),
                .reduced_attempt = reduced,
            });
            first = after;
        }
        m.send(.{ .report_op = .{
            .group = m.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = op.id,
            .descriptor = op.descriptor,
            .state = if (op.state == .running) .running else .done,
            .begun_attempt = op.begun_attempt,
            .voted_attempt = if (op.state == .running) 0 else op.voted_attempt,
            .chunks = op.chunks,
            .settled = .of(ranges.items),
        } });
    }

    pub fn on_resume_op(m: *Member, message: *const control.ResumeOp) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (message.attempt != epoch.attempt or epoch.running) return;
        if (epoch.resumes.items.len >= told_max) return error.Unexpected;
        const kept = try m.gpa.alloc(KeptRange, message.kept.count);
        errdefer m.gpa.free(kept);
        var it = message.kept.iterator();
        for (kept) |*range| {
            range.* = it.next().?;
            if (range.begin >= range.end) return error.Unexpected;
        }
        try epoch.resumes.append(m.gpa, .{ .id = message.op, .kept = kept });
    }

    pub fn on_resume(m: *Member, message: *const control.Resume) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (message.attempt != epoch.attempt or epoch.running) return;
        // The coordinator has decided or resumed each operation in the reports, and all that this
        // member voted for were reported.
        for (epoch.ops.items) |op| {
            if (op.state != .running and !epoch.goes_on(op.id)) return error.Unexpected;
        }
        epoch.running = true;
        var index = epoch.ops.items.len;
        while (index > 0) { // `begin` may take the operation from the list
            index -= 1;
            m.begin(epoch, epoch.ops.items[index]);
        }
        m.close_drained();
    }

    // ---- the end

    /// The session has given up the coordinator: calls fail, and calls that have voted are in
    /// doubt.
    pub fn coordinator_lost(m: *Member) void {
        m.end(.coordinator_unreachable, .in_doubt);
    }

    /// The coordinator has removed this peer. `refused`: this peer's calls differ from those of the
    /// members, and end as mismatches.
    pub fn on_expelled(m: *Member, refused: bool) void {
        const status: Status = if (refused) .mismatch else .expelled;
        m.end(status, status);
    }

    /// Whether other members go on with the operation if this peer is lost before it votes.
    pub fn others_take_part(m: *Member, op: *const Op) bool {
        if (op.state != .running and op.state != .queued) return false;
        const epoch = m.epoch_of(op.epoch) orelse return false;
        return epoch.partner(op.id.tag) == null and epoch.alive.count() > 1;
    }

    /// The user leaves the group; the other members go on without this peer.
    pub fn leave(m: *Member) void {
        if (m.state == .gone) return;
        m.send(.{ .leave = .{ .group = m.group } });
        m.end(.cancelled, .cancelled);
    }

    fn end(m: *Member, status: Status, voted: Status) void {
        if (m.state == .gone) return;
        m.state = .gone;
        m.withdrawn.clearRetainingCapacity();
        for (m.epochs) |slot| {
            const epoch = slot orelse continue;
            m.actions.vtable.stop(m.actions.ctx, epoch.number);
            while (epoch.queued.pop()) |op| {
                op.state = .finished;
                m.actions.vtable.finished(m.actions.ctx, op, .{ .status = status });
            }
            while (epoch.ops.items.len > 0) {
                const op = epoch.ops.items[epoch.ops.items.len - 1];
                const was = op.state;
                m.forget(epoch, op);
                switch (was) {
                    .running => m.actions.vtable.finished(m.actions.ctx, op, .{ .status = status }),
                    .voted => {
                        m.actions.vtable.finished(m.actions.ctx, op, .{ .status = voted });
                        if (voted == .in_doubt) m.actions.vtable.resolved(m.actions.ctx, op, null);
                    },
                    .in_doubt => m.actions.vtable.resolved(m.actions.ctx, op, null),
                    .new, .queued, .finished => unreachable,
                }
            }
        }
        if (m.admitting) m.admit_end(if (status == .mismatch) .expelled else status);
    }
};
