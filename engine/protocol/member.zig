//! Member: one peer's membership of one group. It joins, passes safe points, follows views and
//! resumes, votes for finished operations and learns their outcome. It never sees the data:
//! `Actions` says what to move.
//!
//! It keeps these rules (docs/internals/PROMISE.md says why):
//!   - `done` is irrevocable: after it a call can end as committed, aborted or in doubt, not by
//!     giving up.
//!   - A view stops everything first; only then the report is sent; nothing moves before `resume`.
//!   - Decisions are taken whenever they come; only `done` is judged by its attempt.
//!   - Every connection to the coordinator begins with a full report; nothing relies on an earlier
//!     connection. While there is none, data moves on and no vote is cast.
//! The other side: coordinator.zig. Driven by session/driver.zig; what it wants is done in
//! session/control.zig.

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
    /// The peer that gave up, was lost, or called something else.
    peer: PeerId = .none,
    other: PeerId = .none,
    /// The calls of `peer` and `other` in a mismatch; null for other reasons.
    descriptor: ?Descriptor = null,
    other_descriptor: ?Descriptor = null,
    /// Ranks whose calls the failed call waited for, as far as the coordinator has said so.
    missing: Mask = .empty,
    /// Ranks among `missing` that had not entered the operation's epoch, and so could not call it.
    outside: Mask = .empty,
    /// The operations that the missing ranks waited in.
    elsewhere: Told = .{},
    /// How long the coordinator had been silent, if longer than a heartbeat allows; else 0.
    coordinator_silent_ns: u64 = 0,
    /// How long there had been no connection to the coordinator; null: there was one.
    coordinator_away_ns: ?u64 = null,
};

/// The protocol's knowledge of one operation; the session's Operation contains it.
pub const Op = struct {
    id: OpId = .{ .tag = 0, .sequence = 0 },
    epoch: u64 = 0,
    descriptor: Descriptor,
    chunks: u32,
    state: State = .new,
    /// All chunks are settled in the current attempt; `digest` is then that of the result.
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
    /// The coordinator was told that the call takes long.
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
        /// Called while too many operations were in flight. No peer is told of it before its turn.
        queued,
        /// Called, and not voted for.
        running,
        /// The member has voted: `done` is sent.
        voted,
        /// Voted, and the call has returned InDoubt; the outcome is still wanted.
        in_doubt,
        /// Decided or given up: no list of the member has it.
        finished,
    };
};

/// Actions that the member wants done. Called from inside its functions; must not call back into
/// it.
pub const Actions = struct {
    ctx: *anyopaque,
    vtable: *const VTable,

    pub const VTable = struct {
        send: *const fn (ctx: *anyopaque, message: control.Message) void,
        /// Stop moving data of this epoch: nothing may read or write buffers of its operations
        /// afterwards.
        stop: *const fn (ctx: *anyopaque, epoch: u64) void,
        /// Settled chunks of a stopped operation: the attempt that reduced each, or 0.
        chunks: *const fn (ctx: *anyopaque, op: *Op) []const u32,
        /// Move data of this operation in the current attempt of its epoch.
        start: *const fn (ctx: *anyopaque, op: *Op, kept: []const KeptRange) void,
        /// The call returns. On in_doubt the operation goes on.
        finished: *const fn (ctx: *anyopaque, op: *Op, failure: ?Failure) void,
        /// An operation in doubt is decided. Null: this peer will never be told.
        resolved: *const fn (ctx: *anyopaque, op: *Op, committed: ?bool) void,
        /// The pending admit() is over. Null: it has passed the safe point.
        admitted: *const fn (ctx: *anyopaque, failure: ?Status) void,
        /// An epoch is over; its frames are not wanted any more.
        closed: *const fn (ctx: *anyopaque, epoch: u64) void,
    };
};

/// One live epoch as a member sees it.
pub const Epoch = struct {
    number: u64,
    attempt: u32 = 1,
    /// False between a view and its resume.
    running: bool = true,
    entered: bool = false,
    rank: u16,
    ids: []PeerId,
    joined: u32,
    left: []PeerId,
    safe_point: u64,
    alive: Mask,
    /// Members that have not passed the safe point at which the epoch begins, as far as this member
    /// knows.
    missing: Mask,
    /// Newcomers that wait outside until all members have passed that safe point.
    waiting: u32 = 0,
    /// The paths in the current attempt.
    paths: base.Paths,
    ops: std.ArrayList(*Op) = .empty,
    /// Operations that were called while `ops` had no room, in the order of the calls.
    queued: std.ArrayList(*Op) = .empty,
    sequences: Sequences = .{},
    /// A call has failed at this member alone, and no peer was told (fail_alone).
    has_failed_alone: bool = false,
    /// Aborts of operations that were not called yet, oldest first.
    aborts: std.ArrayList(Stored) = .empty,
    /// The current attempt's resumes of operations that were not called yet.
    resumes: std.ArrayList(StoredResume) = .empty,
    /// Operations that others have called, and that the coordinator has asked for in this attempt.
    asked: std.AutoHashMapUnmanaged(OpId, void) = .empty,
    /// The last decision that this member has taken in.
    decisions_seen: u64 = 0,
    /// The value of `decisions_seen` that the coordinator was told last.
    decisions_told: u64 = 0,

    /// The abort of sequences [first, end) of a tag: a member that gives up a row of calls costs
    /// one entry.
    const Stored = struct {
        tag: u64,
        first: u64,
        end: u64,
        /// The rank that caused the aborts, if it is known.
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

    /// Members that are alive and have not entered, as far as this member knows.
    pub fn not_entered(epoch: *const Epoch) Mask {
        return epoch.alive.intersect(&epoch.missing);
    }

    fn newcomers(epoch: *const Epoch) u32 {
        return if (epoch.joined > 0) epoch.joined else epoch.waiting;
    }

    /// Whether members from before have not entered.
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

    /// Whether the resume that is coming in names this operation.
    fn goes_on(epoch: *const Epoch, id: OpId) bool {
        for (epoch.resumes.items) |*stored| if (stored.id.eql(id)) return true;
        return false;
    }

    fn find(epoch: *const Epoch, id: OpId) ?*Op {
        for (epoch.ops.items) |op| if (op.id.eql(id)) return op;
        return null;
    }

    /// Finds a call in flight, or one that waits for its turn.
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

    /// Whether a call of this kind of turn waits.
    fn has_queued(epoch: *const Epoch, turns: Turns) bool {
        for (epoch.queued.items) |op| if (Turns.of(op.id.tag, epoch.rank) == turns) return true;
        return false;
    }

    fn is_tag_in_use(epoch: *const Epoch, tag: u64) bool {
        for (epoch.ops.items) |op| if (op.id.tag == tag and op.state != .in_doubt) return true;
        for (epoch.queued.items) |op| if (op.id.tag == tag) return true;
        return false;
    }

    /// Keeps an abort until this member makes the call. Members may have operations aborted that
    /// nobody ever calls: the oldest abort of the member that caused most makes room. A call whose
    /// abort was dropped ends at its deadline.
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

    /// Whether an abort waits for the call of this operation.
    pub fn is_aborted(epoch: *const Epoch, id: OpId) bool {
        for (epoch.aborts.items) |*stored| if (stored.has(id)) return true;
        return false;
    }

    /// The abort that was stored for this operation; calls come in the order of their sequences.
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
    /// The most operations of one epoch in flight for each kind of turn; fewer in tests.
    in_flight_max: u32 = base.limits.operations_in_flight_max,
    state: State = .joining,
    safe_points: u64 = 0,
    /// The prepare round whose lanes are being opened; 0 if none.
    round: u64 = 0,
    /// The round that asked this member to stop at its next safe point; 0 if none.
    stop_round: u64 = 0,
    admitting: bool = false,
    how: How = .alone,
    /// Whether a new epoch begins at the safe point under way, where all members have agreed on it.
    agreed: ?bool = null,
    /// At most two: the epoch that this member leaves, and the epoch that it enters.
    epochs: [2]?*Epoch = .{ null, null },
    current: ?*Epoch = null,
    /// How many newcomers the round under way has, for the user.
    pending: u32 = 0,
    /// The round for which `prepared` was said; 0 if none.
    linked_round: u64 = 0,
    /// The last round that was neither released nor ended in an epoch. The next coordinator is
    /// told, because the round may have let this member in.
    unanswered_round: u64 = 0,
    /// The coordinator is connected, and has answered for this group.
    connected: bool = false,
    /// Operations that this peer gave up, or that failed here alone, until the coordinator aborts
    /// them. Room is reserved for all in flight.
    withdrawn: std.ArrayList(Withdrawn) = .empty,

    const Withdrawn = struct {
        epoch: u64,
        id: OpId,
        reason: control.AbortReason,
        /// The coordinator was told. False until `say_failed_alone` for a call that failed alone.
        is_said: bool = true,
    };

    pub const ActionsTable = Actions.VTable;
    pub const State = enum { joining, ready, active, gone };
    /// `together`: a newcomer waits until the members from before have entered.
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

    /// The connection to the coordinator is gone; another one will come.
    pub fn disconnected(m: *Member) void {
        m.connected = false;
    }

    /// Tells the coordinator on a new connection the epochs of this member, and the operations that
    /// it has given up. The member has finished with an epoch that it does not name, and the
    /// operations that it gave up there must not pass for votes.
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

    /// The coordinator answers with the number of the group.
    pub fn welcomed(m: *Member, group: u16) void {
        m.group = group;
        m.connected = true;
    }

    /// Gives up a call that failed here alone, because others wait in a call that differs from it.
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

    /// The coordinator wants lanes to the members of this round; the session is opening them.
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

    /// Some lanes of the round are still missing: the others need not wait for them.
    pub fn links_missing(m: *Member, missing: []const control.Missing) void {
        m.say_prepared(m.round, missing);
    }

    /// A newcomer sends it again when its user calls `admit`. Until then the others need not wait.
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

    /// A newcomer has a new connection: its round went on without it, or is over. Only
    /// `unanswered_round` stays, because the round may have let the newcomer in.
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

    /// Tells the round how many safe points this member has passed, without waiting for the user.
    /// The member stops at its next safe point from now on.
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

    /// Drops what was given up in the epoch before the last. All members have closed that epoch
    /// when a new one begins.
    fn forget_older(m: *Member) void {
        var kept: usize = 0;
        for (m.withdrawn.items) |given_up| if (m.epoch_of(given_up.epoch) != null) {
            m.withdrawn.items[kept] = given_up;
            kept += 1;
        };
        m.withdrawn.shrinkRetainingCapacity(kept);
    }

    /// All members of a new epoch, in rank order.
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

    /// Newcomers that wait for the user's next admit(): those of the epoch that is not entered yet,
    /// or, if that only closes the gap of a loss, those that it keeps outside; or else those of the
    /// round under way.
    pub fn newcomers_waiting(m: *const Member) u32 {
        if (m.current == null) return m.pending;
        return if (m.activation()) |epoch| epoch.newcomers() else m.pending;
    }

    /// Newcomers that wait for a safe point that all members pass together.
    pub fn newcomers_waiting_together(m: *const Member) u32 {
        return if (m.epoch_to_enter()) |epoch| epoch.newcomers() else 0;
    }

    /// The user calls admit(). `admitted` follows, at once if nothing is pending.
    pub fn admit(m: *Member) void {
        assert(!m.admitting);
        m.admitting = true;
        if (m.current == null) m.send_prepared();
        m.admit_continue();
    }

    /// Passes a safe point that all members have agreed on. `enters`: the epoch of `epoch_to_enter`
    /// begins there. Otherwise no member stops there for the round under way, so that all are at
    /// the same place afterwards.
    pub fn admit_agreed(m: *Member, enters: bool) void {
        assert(!m.admitting and m.current != null);
        assert(!enters or m.epoch_to_enter() != null);
        m.admitting = true;
        m.agreed = enters;
        m.admit_continue();
    }

    /// The deadline of the user's admit() has passed. The safe point was not.
    pub fn admit_give_up(m: *Member) void {
        m.admitting = false;
        m.agreed = null;
        if (m.current == null) m.send_prepared();
    }

    fn admit_continue(m: *Member) void {
        if (!m.admitting) return;
        const next = m.activation();
        if (m.current == null) {
            // A newcomer enters where the others do, and takes over their count.
            const epoch = next orelse return;
            if (m.how == .together and epoch.awaits_incumbents()) return;
            return m.enter(epoch);
        }
        if (m.agreed) |enters| return if (enters) m.enter(next.?) else m.pass();
        if (next) |epoch| {
            // The others do not come as far as this peer: nothing that it has called is missing.
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

    /// The coordinator says who has not come to the safe point at which an epoch begins.
    pub fn on_entered(m: *Member, message: *const control.Entered) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (!Mask.full(epoch.ids.len).covers(&message.missing)) return error.Unexpected;
        epoch.missing = message.missing;
        epoch.waiting = message.waiting;
        // It may not have heard of this one yet.
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

    /// Whether a call with this tag may start now, or wait for its turn.
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
            // For its turn, whatever has begun by then.
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

    /// Starts a checked call: gives it its sequence number, and ends it if its abort is known. The
    /// call waits in the queue if too many are in flight.
    pub fn start(m: *Member, op: *Op, tag: u64) void {
        const epoch = m.current.?;
        const waits = m.is_full(tag);
        op.id = m.next_id(tag);
        epoch.sequences.count(tag);
        op.epoch = epoch.number;
        if (epoch.recall(op.id)) |failure| {
            op.state = .finished;
            // Another may have failed alone, for the same reason.
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
        // One that waits was called, too: nobody shall be blamed for it.
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

    /// The waiting call whose turn it is; null if none waits or there is no room.
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

    /// Starts the call that `next_queued` has given.
    pub fn start_queued(m: *Member, op: *Op) void {
        const epoch = m.epoch_of(op.epoch).?;
        const index = std.mem.findScalar(*Op, epoch.queued.items, op).?;
        _ = epoch.queued.orderedRemove(index);
        m.take_up(epoch, op);
        m.close_drained(); // it may have failed alone
    }

    fn begin(m: *Member, epoch: *Epoch, op: *Op) void {
        op.attempts += 1;
        // A result that was complete, and perhaps unheard, may have to be sent again.
        op.complete = false;
        // It goes on, so nobody was told that it was committed; and a private result may have to be
        // formed again, which makes the vote for it void.
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
            // Another call under this number goes on, and nobody holds anything of this one.
            const is_foreign = stored.kept.len == 0 and op.state == .running;
            if (is_foreign and is_lost) break;
            return m.actions.vtable.start(m.actions.ctx, op, stored.kept);
        }
        if (is_lost) return m.withdraw(epoch, op, .root_lost, op.descriptor.root);
        m.actions.vtable.start(m.actions.ctx, op, &.{});
    }

    /// Fails a call that needs a member which was lost before the call. In a message no other
    /// member waits. Where all members are needed, all know the loss before they go on, so all fail
    /// alike and need not be told. But a member may have called the same operation with another
    /// recovery, and must not succeed after this member has gone on: so the coordinator is told
    /// before anything shows that it has. If the coordinator knows of the call it is told at once.
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

    /// Notes a call that failed alone, to be given up later. A program may repeat such calls as
    /// fast as it can, so only the first are kept: others may wait in them with another recovery.
    fn take_back_later(m: *Member, op: *const Op) void {
        if (m.withdrawn.items.len >= base.limits.failed_alone_max) return;
        m.withdrawn.appendAssumeCapacity(.{
            .epoch = op.epoch,
            .id = op.id,
            .reason = .cancelled,
            .is_said = false,
        });
    }

    /// Gives up the calls that failed alone. Called before each vote and report, and before this
    /// member enters or closes an epoch, because those show others that it has gone on (P2).
    fn say_failed_alone(m: *Member) void {
        if (!m.connected) return; // the next connection begins with them
        for (m.withdrawn.items) |*given_up| {
            if (given_up.is_said) continue;
            given_up.is_said = true;
            m.send_gave_up(given_up);
        }
    }

    /// Whether the operation was called after its root was lost, so that no member holds any of it.
    fn root_lost(epoch: *const Epoch, op: *const Op) bool {
        if (!op.descriptor.kind.has_root() or op.chunks == 0) return false;
        const root = epoch.rank_of(op.descriptor.root) orelse return true;
        return !epoch.alive.has(root);
    }

    /// Tells the coordinator that the operation must abort for all, and returns the call.
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

    /// Gives an operation up. The coordinator is told again on each new connection, until it
    /// aborts.
    fn take_back(m: *Member, op: *const Op, reason: control.AbortReason) void {
        m.withdrawn.appendAssumeCapacity(.{ .epoch = op.epoch, .id = op.id, .reason = reason });
        m.send_gave_up(&m.withdrawn.items[m.withdrawn.items.len - 1]);
    }

    // ---- calls that others wait for

    /// Tells the coordinator, once, that a call takes long, perhaps because others have not made
    /// it. A vote and a report say so, too. `left_ns`: the time until a deadline that is near,
    /// which they do not say.
    pub fn takes_long(m: *Member, op: *Op, left_ns: ?u64) void {
        if (!m.may_say_called(op, left_ns != null)) return;
        if (left_ns != null) op.is_left_told = true;
        m.say_called(m.epoch_of(op.epoch).?, op, left_ns orelse far);
    }

    /// Tells the coordinator the members with which nothing of the operation moves, when they
    /// change.
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

    /// The coordinator says that most members have called an operation and some have not, or that
    /// all have and links move nothing of it.
    pub fn on_stalled(m: *Member, message: *const control.Stalled) EpochError!void {
        const epoch = m.epoch_of(message.epoch) orelse return;
        if (message.attempt != epoch.attempt or !epoch.running) return;
        if (!Mask.full(epoch.ids.len).covers(&message.missing)) return error.Unexpected;
        const elsewhere: Told = try .read(&message.elsewhere, epoch.ids.len);
        const is_missing = message.missing.has(epoch.rank);
        if (epoch.find_called(message.op)) |op| {
            // It has called meanwhile.
            if (is_missing) return m.say_called(epoch, op, far);
            op.missing = message.missing;
            op.elsewhere = elsewhere;
            return;
        }
        const next = epoch.sequences.next(message.op.tag);
        if (!is_missing) return;
        if (message.op.sequence < next) { // it is over here
            if (epoch.has_failed_alone) m.say_gave_up(epoch, message.op);
            return;
        }
        if (epoch.asked.count() >= told_max) return error.Unexpected;
        try epoch.asked.put(m.gpa, message.op, {});
    }

    /// Writes into `failure` the ranks that the failed call waited for at its end, and why.
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

    /// All chunks of the operation are settled in the current attempt: vote.
    pub fn completed(m: *Member, op: *Op, digest: u128) void {
        const epoch = m.epoch_of(op.epoch) orelse return;
        if (op.state == .finished or !epoch.running) return;
        op.complete = true;
        op.digest = digest;
        // Nobody would hear the vote. The coordinator that comes back begins a new attempt.
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
    /// operation is withdrawn for all members; after the vote the call returns in doubt.
    pub fn give_up(m: *Member, op: *Op, reason: control.AbortReason) void {
        switch (op.state) {
            .queued, .running => {
                m.withdraw(m.epoch_of(op.epoch).?, op, reason, m.self);
                m.close_drained();
            },
            // The message may have arrived; the other one knows.
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

    /// The part of a sync's offer that the member does not know.
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

    /// Offers the content of a sync in the current attempt. The offer counts as a vote, because
    /// equal offers of all members are one, until the coordinator says that another content was
    /// elected.
    pub fn offer(m: *Member, op: *Op, what: Offer) void {
        const epoch = m.epoch_of(op.epoch) orelse return;
        if (!epoch.running) return;
        // Nobody would hear it. The coordinator that comes back begins a new attempt.
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
            // Others would wait for an offer that cannot come any more.
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

    /// The offers of a sync differ, so none was a vote. Null: the sync is not under way here.
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

    /// The sync that a message is about; null: this peer has not called it.
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

    /// Asks the coordinator to abort a sync after the vote. No buffer changes before the commit, so
    /// a deadline need not end in doubt while the coordinator answers; its decision counts.
    fn give_up_sync(m: *Member, op: *Op, reason: control.AbortReason) void {
        const again = op.abort_asked != null;
        op.abort_asked = reason;
        if (!again) m.ask_to_abort(op);
        if (reason != .deadline or again) m.doubt(op, reason);
    }

    /// Repeats in each later attempt that this member has given up, so that no member waits for it.
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
        // A commit needs this peer's vote, so anything else is a coordinator that lies.
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
            if (own) failure.status = .deadline_exceeded; // as give_up_sync has asked
            m.forget(epoch, op);
            if (was == .in_doubt)
                m.actions.vtable.resolved(m.actions.ctx, op, false)
            else
                m.actions.vtable.finished(m.actions.ctx, op, failure);
            return m.close_drained();
        }
        if (!epoch.has_part_in(message.op.tag)) return;
        const next = epoch.sequences.next(message.op.tag);
        if (message.op.sequence < next) return; // this peer gave up itself
        try epoch.store(m.gpa, message.op, failure);
    }

    fn withdrawal_answered(m: *Member, message: *const control.Abort) void {
        for (m.withdrawn.items, 0..) |*given_up, index| {
            if (given_up.epoch != message.epoch or !given_up.id.eql(message.op)) continue;
            _ = m.withdrawn.swapRemove(index);
            return;
        }
    }

    /// Notes a decision as seen. Votes and reports tell the coordinator; after 64 decisions without
    /// either, a message of its own does.
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

    /// A new attempt begins: stops data, reports what is settled, and waits for the resume.
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
        return .{
            .order = try order_of(message),
            .has_ring = message.has_ring,
            .hubs = message.hubs,
        };
    }

    /// The order of a ring: each rank that is alive, once.
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
            .digest = op.digest,
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
        // All that was reported is decided by now, or goes on; what was voted for was reported.
        for (epoch.ops.items) |op| {
            if (op.state != .running and !epoch.goes_on(op.id)) return error.Unexpected;
        }
        epoch.running = true;
        var index = epoch.ops.items.len;
        while (index > 0) { // one that is withdrawn leaves the list
            index -= 1;
            m.begin(epoch, epoch.ops.items[index]);
        }
        m.close_drained();
    }

    // ---- the end

    /// The coordinator is given up: calls fail, and calls that have voted are in doubt.
    pub fn coordinator_lost(m: *Member) void {
        m.end(.coordinator_unreachable, .in_doubt);
    }

    /// The coordinator has removed this peer. `refused`: its calls do not fit, and end as
    /// mismatches.
    pub fn on_expelled(m: *Member, refused: bool) void {
        const status: Status = if (refused) .mismatch else .expelled;
        m.end(status, status);
    }

    /// Whether the others go on with an operation if this peer, which has not voted, is lost.
    pub fn others_take_part(m: *Member, op: *const Op) bool {
        if (op.state != .running and op.state != .queued) return false;
        const epoch = m.epoch_of(op.epoch) orelse return false;
        return epoch.partner(op.id.tag) == null and epoch.alive.count() > 1;
    }

    /// The user leaves the group; the others go on without this peer.
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
