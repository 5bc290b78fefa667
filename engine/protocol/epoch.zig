//! Epoch, as the coordinator keeps it: who is alive in one admitted membership, its attempts, and
//! the votes and reports of its operations. It decides commit, abort and what a resume keeps.
//! election.zig elects the content of a sync; stall.zig finds missing calls; group.zig lets peers
//! in; coordinator.zig has the connections; member.zig is the member's half.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const History = @import("history.zig").History;
const Holdings = @import("holdings.zig").Holdings;
const Election = @import("election.zig").Election;
const Structures = @import("structure.zig").Structures;
const attempts = @import("attempts.zig");
const misfit = @import("misfit.zig");
const journal = @import("journal.zig");
const lateness = @import("late.zig");
const owed = @import("owed.zig");
const refusals = @import("refusals.zig");
const seal = @import("seal.zig");
const Stall = @import("stall.zig").Stall;
const unseen = @import("unseen.zig");
const Asked = @import("asked.zig").Asked;
const Group = @import("group.zig").Group;
const Circular = @import("coordinator.zig").Circular;
const Coordinator = @import("coordinator.zig").Coordinator;
const Peer = @import("coordinator.zig").Peer;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Mask = base.Mask;
const Pair = base.Pair;
const Turns = base.Turns;
const control = wire.control;
const OpId = control.OpId;
const Descriptor = control.Descriptor;
const assert = std.debug.assert;

/// Ranks of the members of an epoch.
pub const Ranks = std.AutoHashMapUnmanaged(PeerId, u16);

pub const MemberState = struct {
    id: PeerId,
    /// Null once lost.
    peer: ?*Peer,
    /// The label of a lost one; of any other see `peer`.
    lost_label: base.Label = .{},
    /// Which process it is.
    instance: u64,
    /// Its report of the connection under way names this epoch.
    named: bool = false,
    decisions_seen: u64 = 0,
    /// Aborts that it has caused and some other has not seen yet.
    caused: u32 = 0,
    /// After a restart: what it has told of the decisions of the coordinator before, the last of
    /// them that it has seen, the attempt that it knows, and how many operations it gives up
    /// meanwhile.
    claims: u32 = 0,
    attempt_told: u32 = 0,
    seen_before: u64 = 0,
    withdrawn: u32 = 0,
    /// The coordinator holds so many bytes of what its reports of this attempt say.
    held_bytes: usize = 0,
    /// The number that `decisions_seen` must reach, and since when it must.
    seen_wanted: u64 = 0,
    seen_asked: Asked = .{},
    /// Votes since it has been far behind (unseen.zig).
    votes_behind: u32 = 0,
    /// Others have waited for it for long, and the log says so (stall.zig).
    waited_for: bool = false,
    /// The report that it owes after a view.
    report: owed.Report = .{},
    /// In the round under way (group.zig): the answer that is wanted of it, and once it is
    /// `stopping`, another one.
    round_asked: Asked = .{},
    safe_points: u64 = 0,

    /// Its name for people.
    pub fn label(member: *const MemberState) *const base.Label {
        return if (member.peer) |peer| &peer.label else &member.lost_label;
    }

    /// As the log shows it: "7f3a01c2 (node7:4242, rank 3)".
    pub fn shown(member: *const MemberState, rank: usize) Shown {
        return .{ .member = member, .rank = rank };
    }

    /// As an error shows it: "rank 3 (node7:4242, 7f3a01c2)".
    pub fn ranked(member: *const MemberState, rank: usize) base.Ranked {
        return .{ .rank = rank, .id = member.id, .label = member.label().* };
    }

    const Shown = struct {
        member: *const MemberState,
        rank: usize,

        pub fn format(it: Shown, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const name = it.member.label().slice();
            const comma = if (name.len > 0) ", " else "";
            try writer.print("{s} ({s}{s}rank {d})", .{
                it.member.id.short(),
                name,
                comma,
                it.rank,
            });
        }
    };
};

/// The coordinator's knowledge of one operation that is not decided.
pub const Record = struct {
    id: OpId,
    descriptor: Descriptor,
    /// Whose descriptor it is.
    from: u16,
    /// Votes of the current attempt.
    done: Mask = .empty,
    digest: u128 = 0,
    digest_from: u16 = 0,
    /// When those have called who have voted.
    calls: lateness.Calls = .{},
    // Filled by the reports of the current attempt.
    reported: Mask = .empty,
    done_reported: Mask = .empty,
    /// The earliest attempt in which a member called it.
    begun_attempt: u32 = std.math.maxInt(u32),
    /// The vote of those who have voted, and whether votes differ.
    vote: ?Vote = null,
    votes_differ: bool = false,
    holdings: Holdings = .{},
    chunks: u32 = 0,
    /// Whose count of chunks it is; null before the first report.
    chunks_from: ?u16 = null,
    /// The members that have called it, and since when the others are waited for.
    stall: Stall = .{},
    vote_owed: owed.Vote = .{},
    /// Newcomers that have called something else.
    misfits: misfit.Misfits = .{},
    /// For a sync, from the first offer on.
    election: ?*Election = null,

    const Vote = struct { attempt: u32, digest: u128 };

    /// The name of the state that a sync is of; empty for other operations, and before it is known.
    pub fn state(record: *const Record) []const u8 {
        return if (record.election) |election| election.name.slice() else "";
    }

    pub fn named(record: *const Record, epoch: u64) wire.NamedCall {
        return .{
            .kind = record.descriptor.kind,
            .op = record.id,
            .epoch = epoch,
            .state = record.state(),
            .is_object = wire.is_object(&record.descriptor),
        };
    }
};

pub const Verdict = struct {
    reason: control.AbortReason,
    peer: PeerId = .none,
    other: PeerId = .none,
    descriptor: ?Descriptor = null,
    other_descriptor: ?Descriptor = null,
};

pub const ProtocolError = error{ OutOfMemory, Unexpected };

/// The decision on an operation.
const Outcome = union(enum) {
    commit: Committed,
    abort: Verdict,

    const Committed = struct { attempt: u32, digest: u128 };
};

pub const Epoch = struct {
    gpa: Allocator,
    coordinator: *Coordinator,
    group: u16,
    number: u64,
    attempt: u32 = 1,
    /// The first attempt of this start of the coordinator.
    first_attempt: u32 = 1,
    /// False from a view until its resume.
    running: bool = true,
    /// From a restart until the members are back: nothing is decided yet.
    recovering: bool = false,
    /// Decisions of the coordinator before, which members know, are made again, all at once.
    settling: bool = false,
    /// From a restart until the reports after it: members may know more than this coordinator.
    forgetful: bool = false,
    min_world_size: u32,
    seal_key: *const seal.Key,
    /// The one of all queues.
    budget: *wire.Budget,
    members: []MemberState,
    /// By id, lost members included.
    ranks: Ranks = .empty,
    /// How it began, for members that have not been told.
    began: Began,
    /// The last record that names it (recovery.zig).
    recorded: u64 = 0,
    /// The journal was given the refusals among the decisions up to this one (refusals.zig).
    refusals_given: u64 = 0,
    alive: Mask,
    /// Have called an operation that was committed, or may have before a restart.
    fitted: Mask = .empty,
    /// Have passed the safe point at which it begins.
    activated: Mask = .empty,
    /// Have not, as members were told last (entering.zig); at first they take it that nobody has.
    missing_told: Mask,
    /// Newcomers outside, where this epoch only closes a gap; and as members were told last.
    waiting: u16 = 0,
    waiting_told: u16 = 0,
    /// Are in the next epoch, and have nothing in flight here.
    closed: Mask = .empty,
    /// Have reported in the current attempt.
    reported: Mask = .empty,
    /// In the round under way (group.zig): have their lanes, have told their safe points.
    stopping: Mask = .empty,
    /// The paths in the current attempt (plan.zig).
    paths: base.Paths,
    history: History = .{},
    records: std.ArrayList(*Record) = .empty,
    /// Decisions that some member may not have seen yet, oldest first; those before `decided_first`
    /// all have seen by now.
    decided: std.ArrayList(Decision) = .empty,
    decided_first: usize = 0,
    /// On which operations they are.
    decided_ids: std.AutoHashMapUnmanaged(OpId, void) = .empty,
    decisions: u64 = 0,
    /// Decisions up to this one are known to all members.
    acknowledged: u64 = 0,
    /// The fewest decisions that a member in it has seen, and how many have seen no more; with 0 of
    /// them it is to be found anew.
    least_seen: u64 = 0,
    least_seen_by: usize = 0,
    /// Operations of its users.
    committed: u64 = 0,
    /// The last safe point after which something was called that is committed.
    committed_at: u64 = 0,
    /// After a restart: the last of the decisions that were told again. Members forget those of the
    /// coordinator before only when all have seen this one.
    retold: u64 = 0,
    /// All have seen the decisions up to this one, as the journal of the coordinators before says.
    acknowledged_then: u64 = 0,
    /// Decisions of the coordinators before this one, as its journal and members tell them, and
    /// what members give up before it is known what was decided.
    claims: std.AutoArrayHashMapUnmanaged(OpId, Claim) = .empty,
    /// When a new attempt with the same members is due, because lanes broke or the ring must go
    /// around a link.
    replan_at: base.Instant = base.never,
    /// When calls whose deadlines are near are looked at (stall.zig).
    stall_at: base.Instant = base.never,

    const Decision = struct {
        number: u64,
        id: OpId,
        /// The member that caused it alone; null if the coordinator did, or two members who
        /// contradict each other.
        maker: ?u16,
        outcome: Outcome,
    };

    const Claim = struct {
        /// Its number then; null if it is not decided.
        number: ?u64,
        /// The member that gives up; null as in a decision.
        maker: ?u16,
        outcome: Outcome,
    };

    pub const Began = struct { round: u64, safe_point: u64, joined: u32, left: []const PeerId };

    /// `began.left` is copied.
    pub fn create(
        group: *const Group,
        number: u64,
        peers: []const *Peer,
        began: Began,
    ) Allocator.Error!*Epoch {
        const gpa = group.gpa;
        const epoch = try gpa.create(Epoch);
        errdefer gpa.destroy(epoch);
        const members = try gpa.alloc(MemberState, peers.len);
        errdefer gpa.free(members);
        for (members, peers) |*member, peer| {
            member.* = .{ .id = peer.id, .peer = peer, .instance = peer.instance };
        }
        var ranks: Ranks = try ranks_of(gpa, peers);
        errdefer ranks.deinit(gpa);
        const left = try gpa.dupe(PeerId, began.left);
        errdefer gpa.free(left);
        epoch.* = .{
            .gpa = gpa,
            .coordinator = group.coordinator,
            .group = group.id,
            .number = number,
            .min_world_size = group.min_world_size,
            .seal_key = &group.coordinator.seal_key,
            .budget = &group.coordinator.memory,
            .members = members,
            .ranks = ranks,
            .began = began,
            .alive = .full(peers.len),
            .missing_told = .full(peers.len),
            .paths = .all(&.full(peers.len), peers.len),
        };
        epoch.began.left = left;
        // Members only go, so this is all that it will ever hold: a loss needs no memory.
        try epoch.history.reserve(gpa, peers.len + 1); // in the end nobody is left
        epoch.history.note(1, &epoch.alive);
        return epoch;
    }

    pub fn destroy(epoch: *Epoch) void {
        const gpa = epoch.gpa;
        while (epoch.records.items.len > 0) epoch.record_free(0);
        epoch.records.deinit(gpa);
        epoch.decided.deinit(gpa);
        epoch.decided_ids.deinit(gpa);
        epoch.claims.deinit(gpa);
        epoch.history.deinit(gpa);
        gpa.free(epoch.began.left);
        gpa.free(epoch.members);
        epoch.ranks.deinit(gpa);
        gpa.destroy(epoch);
    }

    pub fn ranks_of(gpa: Allocator, peers: []const *Peer) Allocator.Error!Ranks {
        var ranks: Ranks = .empty;
        try ranks.ensureTotalCapacity(gpa, @intCast(peers.len));
        for (peers, 0..) |peer, rank| ranks.putAssumeCapacity(peer.id, @intCast(rank));
        return ranks;
    }

    pub fn rank_of(epoch: *const Epoch, peer: *const Peer) ?u16 {
        const rank = epoch.ranks.get(peer.id) orelse return null;
        // Another process may have the id of one that is lost.
        return if (epoch.members[rank].peer == peer) rank else null;
    }

    pub fn broadcast(epoch: *Epoch, message: control.Message) void {
        const load: wire.Stream.Load = if (epoch.settling) .bulk else .usual;
        var circular: Circular = .{ .message = &message, .load = load };
        for (epoch.members) |*member| if (member.peer) |peer| circular.send(epoch.group, peer);
    }

    /// Those who are neither lost nor through with it.
    pub fn inside(epoch: *const Epoch) Mask {
        return epoch.alive.without(&epoch.closed);
    }

    /// Those who are there and have not passed the safe point at which it begins.
    pub fn not_entered(epoch: *const Epoch) Mask {
        return epoch.alive.without(&epoch.activated);
    }

    /// The message that begins the epoch; `ids` are its members.
    pub fn activation(epoch: *const Epoch, ids: []const PeerId) control.Activate {
        return .{
            .group = epoch.group,
            .round = epoch.began.round,
            .epoch = epoch.number,
            .safe_point = epoch.began.safe_point,
            .members = .of(ids),
            .joined = epoch.began.joined,
            .left = .of(epoch.began.left),
        };
    }

    /// Tells all that the epoch has begun. Members of the one `before` hear what differs; 0: none.
    pub fn announce_to_all(epoch: *Epoch, ids: []const PeerId, before: u64) void {
        const message = epoch.activation(ids);
        const first = ids.len - message.joined;
        var difference = message;
        difference.base = before;
        difference.members = .of(ids[first..]);
        var to_members: Circular = .{ .message = &.{ .activate = difference } };
        var to_newcomers: Circular = .{ .message = &.{ .activate = message } };
        for (epoch.members, 0..) |*member, rank| {
            const circular = if (rank < first) &to_members else &to_newcomers;
            circular.send(epoch.group, member.peer.?);
        }
    }

    /// The journal's record of it.
    pub fn record(
        epoch: *const Epoch,
        ids: []const PeerId,
        buffer: *[base.limits.peers_max]u64,
    ) journal.Record {
        for (buffer[0..ids.len], epoch.members) |*to, *member| to.* = member.instance;
        return .{ .activation = .{
            .told = epoch.activation(ids),
            .instances = .of(buffer[0..ids.len]),
        } };
    }

    /// Tells a member that the epoch has begun.
    pub fn announce(epoch: *Epoch, rank: u16) void {
        var buffer: [base.limits.peers_max]PeerId = undefined;
        const peer = epoch.members[rank].peer orelse return;
        peer.send(epoch.group, .{ .activate = epoch.activation(epoch.member_ids(&buffer)) });
    }

    /// The members in rank order, lost ones included.
    pub fn member_ids(epoch: *const Epoch, buffer: *[base.limits.peers_max]PeerId) []const PeerId {
        for (buffer[0..epoch.members.len], epoch.members) |*id, *member| id.* = member.id;
        return buffer[0..epoch.members.len];
    }

    /// Its members in the words of an error, for wire.Described.
    pub fn names(epoch: *const Epoch) Names {
        return .{ .epoch = epoch };
    }

    pub const Names = struct {
        epoch: *const Epoch,

        pub fn world_size(it: Names) usize {
            return it.epoch.members.len;
        }

        pub fn who(it: Names, id: PeerId) Who {
            return .{ .epoch = it.epoch, .id = id };
        }
    };

    const Who = struct {
        epoch: *const Epoch,
        id: PeerId,

        pub fn format(it: Who, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const rank = it.epoch.ranks.get(it.id) orelse
                return writer.print("peer {s}", .{it.id.short()});
            try writer.print("{f}", .{it.epoch.members[rank].ranked(rank)});
        }
    };

    /// Too few members are left for this operation; those who agree on a safe point let others in.
    pub fn is_starved(epoch: *const Epoch, id: OpId) bool {
        if (id.tag >= base.limits.pending_tag) return false;
        return epoch.alive.count() < epoch.min_world_size;
    }

    // ---- records

    fn find(epoch: *const Epoch, id: OpId) ?usize {
        for (epoch.records.items, 0..) |item, index| if (item.id.eql(id)) return index;
        return null;
    }

    pub fn is_decided(epoch: *const Epoch, id: OpId) bool {
        return epoch.decided_ids.contains(id);
    }

    pub fn outstanding(epoch: *const Epoch) []const Decision {
        return epoch.decided.items[epoch.decided_first..];
    }

    /// Whose votes decide on an operation: of all who are alive, and of a message between two of
    /// those of them who are.
    pub fn voters(epoch: *const Epoch, id: OpId) Mask {
        const pair = Pair.of(id.tag) orelse return epoch.alive;
        var both: Mask = .empty;
        for (pair.ranks()) |rank| if (epoch.alive.has(rank)) both.set(rank);
        return both;
    }

    /// A message between two is nobody else's business.
    fn check_party(epoch: *const Epoch, id: OpId, rank: u16) ProtocolError!void {
        const pair = Pair.of(id.tag) orelse return;
        if (!pair.has(rank) or pair.src == pair.dst) return error.Unexpected;
        for (pair.ranks()) |either| if (either >= epoch.members.len) return error.Unexpected;
    }

    /// The record of an operation, new if need be; null if the descriptors differ: then it is
    /// aborted, or one of two is a newcomer, whose word does not count (misfit.zig).
    pub fn record_of(
        epoch: *Epoch,
        id: OpId,
        descriptor: *const Descriptor,
        rank: u16,
    ) ProtocolError!?*Record {
        if ((descriptor.kind == .send_recv) != (Pair.of(id.tag) != null)) return error.Unexpected;
        try epoch.check_party(id, rank);
        if (epoch.find(id)) |index| {
            const known = epoch.records.items[index];
            switch (try misfit.hear(epoch, known, descriptor, rank)) {
                .fits => return known,
                .misfit => return null,
                .contradicts => {},
            }
            if (known.from == rank) return error.Unexpected; // nobody calls one thing twice
            try epoch.abort(id, .{
                .reason = .mismatch,
                .peer = epoch.members[known.from].id,
                .other = epoch.members[rank].id,
                .descriptor = known.descriptor,
                .other_descriptor = descriptor.*,
            }, epoch.spendthrift(rank));
            return null;
        }
        var begun: usize = 0;
        const turns: Turns = .of(id.tag, rank);
        for (epoch.records.items) |known| {
            begun += @intFromBool(known.from == rank and Turns.of(known.id.tag, rank) == turns);
        }
        if (begun >= base.limits.operations_in_flight_max) return error.Unexpected;
        const new = try epoch.gpa.create(Record);
        errdefer epoch.gpa.destroy(new);
        new.* = .{ .id = id, .descriptor = descriptor.*, .from = rank };
        try epoch.records.append(epoch.gpa, new);
        return new;
    }

    fn record_free(epoch: *Epoch, index: usize) void {
        const gone = epoch.records.orderedRemove(index);
        gone.holdings.clear(epoch.gpa, epoch.budget);
        gone.misfits.deinit(epoch.gpa);
        if (gone.election) |election| election.destroy();
        epoch.gpa.destroy(gone);
    }

    // ---- votes and decisions

    pub fn on_done(
        epoch: *Epoch,
        now: base.Instant,
        rank: u16,
        message: *const control.Done,
    ) ProtocolError!void {
        try epoch.acknowledge(rank, message.decisions_seen);
        try unseen.count_vote(epoch, rank);
        if (message.attempt > epoch.attempt) return error.Unexpected;
        // A vote of a passed attempt is given again after the resume.
        if (message.attempt < epoch.attempt or !epoch.running) return;
        if (epoch.is_decided(message.op)) return;
        const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
        known.stall.called.set(rank);
        if (known.done.is_empty()) {
            known.digest = message.digest;
            known.digest_from = rank;
            known.calls = .{};
        } else if (known.digest != message.digest) {
            return epoch.abort(message.op, .{
                .reason = .digest,
                .peer = epoch.members[known.digest_from].id,
                .other = epoch.members[rank].id,
            }, epoch.spendthrift(rank));
        }
        if (!known.done.has(rank)) known.calls.note(rank, now, message.age_ns);
        known.done.set(rank);
        try epoch.evaluate(known);
    }

    fn evaluate(epoch: *Epoch, known: *Record) ProtocolError!void {
        const needed = epoch.voters(known.id);
        // Nobody may be left in a message, and then nobody waits for it.
        if (!epoch.running or needed.is_empty() or !known.done.covers(&needed)) return;
        if (epoch.is_starved(known.id))
            return epoch.abort(known.id, .{ .reason = .too_few_peers }, null);
        if (known.descriptor.kind.ends_at_root() and !epoch.has_root_voted(known))
            return epoch.abort(known.id, root_lost(known), null);
        if (Pair.of(known.id.tag)) |pair| if (!known.done.has(pair.dst))
            return epoch.abort(known.id, epoch.party_lost(pair).?, null);
        const has_all = known.done.count() == epoch.members.len;
        if (known.descriptor.recovery == .complete and !has_all) if (epoch.any_lost()) |lost|
            return epoch.abort(known.id, .{ .reason = .peer_lost, .peer = lost }, null);
        lateness.judge(epoch, known);
        try epoch.commit(known.id, .{ .attempt = epoch.attempt, .digest = known.digest });
    }

    fn commit(epoch: *Epoch, id: OpId, committed: Outcome.Committed) ProtocolError!void {
        // A message of two says nothing of how far the others are.
        const called = if (Pair.of(id.tag) != null) 0 //
            else if (epoch.find(id)) |index| epoch.records.items[index].descriptor.safe_points //
            else 0;
        try epoch.decide(id, .{ .commit = committed }, null);
        if (id.tag < base.limits.pending_tag) epoch.committed += 1;
        epoch.committed_at = @max(epoch.committed_at, called);
    }

    fn decide(epoch: *Epoch, id: OpId, outcome: Outcome, maker: ?u16) ProtocolError!void {
        try epoch.decided_ids.ensureUnusedCapacity(epoch.gpa, 1);
        try epoch.decided.append(epoch.gpa, .{
            .number = epoch.decisions + 1,
            .id = id,
            .maker = maker,
            .outcome = outcome,
        });
        epoch.decided_ids.putAssumeCapacity(id, {});
        if (maker) |rank| epoch.members[rank].caused += 1;
        epoch.decisions += 1;
        // A member that hears it may go on, and leave before this coordinator dies.
        if (outcome == .abort) refusals.note(epoch);
        epoch.broadcast(epoch.message_of(&epoch.decided.items[epoch.decided.items.len - 1]));
        const index = epoch.find(id) orelse return;
        if (outcome == .commit) epoch.fitted.merge(&epoch.records.items[index].stall.called);
        epoch.record_free(index);
    }

    fn message_of(epoch: *const Epoch, decision: *const Decision) control.Message {
        var message: control.Message = switch (decision.outcome) {
            .commit => |committed| .{ .commit = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .op = decision.id,
                .attempt = committed.attempt,
                .digest = committed.digest,
                .decision = decision.number,
                .acknowledged = epoch.acknowledged,
                .seal = 0,
            } },
            .abort => |verdict| .{ .abort = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .op = decision.id,
                .reason = verdict.reason,
                .peer = verdict.peer,
                .other = verdict.other,
                .descriptor = verdict.descriptor orelse .blank,
                .other_descriptor = verdict.other_descriptor orelse .blank,
                .decision = decision.number,
                .acknowledged = epoch.acknowledged,
                .seal = 0,
            } },
        };
        switch (message) {
            .commit => |*body| body.seal = seal.of_commit(epoch.seal_key, body),
            .abort => |*body| body.seal = seal.of_abort(epoch.seal_key, body),
            else => unreachable,
        }
        return message;
    }

    /// Decides against an operation, once; nothing happens if it is decided already. A `maker` has
    /// caused it alone, perhaps for an operation that nobody will ever call: it is counted against
    /// that member, and error.Unexpected when that is more than any honest one can have caused.
    pub fn abort(epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
        // Not all have told what they know, and somebody may know that it was committed.
        if (epoch.recovering or epoch.forgetful) return epoch.withdraw(id, verdict, maker);
        try epoch.abort_now(id, verdict, maker);
    }

    fn abort_now(epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
        if (epoch.is_decided(id)) return;
        if (maker) |rank| if (epoch.members[rank].caused >= base.limits.decisions_kept_max)
            return error.Unexpected;
        try epoch.decide(id, .{ .abort = verdict }, maker);
    }

    pub fn on_gave_up(epoch: *Epoch, rank: u16, message: *const control.GaveUp) ProtocolError!void {
        switch (message.reason) {
            .deadline, .cancelled, .root_lost, .state_unavailable, .link_broken => {},
            .mismatch,
            .digest,
            .peer_lost,
            .too_few_peers,
            .contradiction,
            .structure,
            .state_conflict,
            .state_strategy,
            .passed,
            => return error.Unexpected,
        }
        try epoch.check_party(message.op, rank);
        try epoch.abort(message.op, .{
            .reason = message.reason,
            .peer = epoch.members[rank].id,
        }, rank);
    }

    pub fn on_mismatch(
        epoch: *Epoch,
        rank: u16,
        message: *const control.MismatchSeen,
    ) ProtocolError!void {
        try epoch.check_party(message.op, rank);
        if (try misfit.on_seen(epoch, rank, message)) return;
        try epoch.abort(message.op, .{
            .reason = .mismatch,
            .peer = epoch.members[rank].id,
            .other = message.other,
            .descriptor = message.mine,
            .other_descriptor = message.theirs,
        }, rank);
    }

    /// The maker when two members contradict each other: nobody, because either may be the
    /// honest one. Only beyond what honest members can reach (accomplices, then) is it the later.
    fn spendthrift(epoch: *const Epoch, rank: u16) ?u16 {
        return if (epoch.outstanding().len < base.limits.contradictions_kept_max) null else rank;
    }

    /// A member must say what it has seen within the silence limit: else what is kept for it grows,
    /// and would in the end be counted against those who cause aborts honestly.
    pub fn check_seen(epoch: *Epoch, now: base.Instant, silence_ns: u64, late: bool) void {
        for (epoch.members, 0..) |*member, rank| {
            const peer = member.peer orelse continue;
            if (epoch.closed.has(rank)) continue;
            if (!peer.is_present(epoch.group) or member.decisions_seen >= member.seen_wanted) {
                member.seen_wanted = (epoch.decisions + 1) -| base.limits.decisions_untold_max;
                member.seen_asked = .{}; // it has answered the one before, or cannot
                member.seen_asked.ask(peer, now);
            } else if (member.seen_asked.is_overdue(peer, now, silence_ns, late)) {
                peer.doom("it does not say which decisions it has seen");
            }
        }
    }

    pub fn acknowledge(epoch: *Epoch, rank: u16, seen: u64) ProtocolError!void {
        if (seen > epoch.decisions) return error.Unexpected;
        const member = &epoch.members[rank];
        if (seen > member.decisions_seen) {
            if (member.decisions_seen == epoch.least_seen and !epoch.closed.has(rank))
                epoch.least_seen_by -|= 1;
            member.decisions_seen = seen;
        }
        const all = epoch.seen_by_all();
        if (all >= epoch.retold) epoch.acknowledged = all;
        for (epoch.outstanding()) |*known| {
            if (known.number > all) break;
            _ = epoch.decided_ids.remove(known.id);
            if (known.maker) |maker| epoch.members[maker].caused -= 1;
            epoch.decided_first += 1;
        }
        // Now and then, so that each is moved but a few times.
        if (epoch.decided_first * 2 < epoch.decided.items.len) return;
        epoch.decided.replaceRangeAssumeCapacity(0, epoch.decided_first, &.{});
        epoch.decided_first = 0;
    }

    /// Members are asked one by one only when the last of those that had seen least goes on.
    fn seen_by_all(epoch: *Epoch) u64 {
        if (epoch.least_seen_by > 0) return epoch.least_seen;
        const inside_now = epoch.inside();
        epoch.least_seen = epoch.decisions;
        for (epoch.members, 0..) |*member, rank| if (inside_now.has(rank)) {
            if (member.decisions_seen < epoch.least_seen) {
                epoch.least_seen = member.decisions_seen;
                epoch.least_seen_by = 0;
            }
            epoch.least_seen_by += @intFromBool(member.decisions_seen == epoch.least_seen);
        };
        return epoch.least_seen;
    }

    // ---- the next epoch

    /// The last safe point that members pass in this epoch, once all have said how many they have
    /// passed: the largest count, as far as somebody else is near it, or something that was called
    /// there was committed. Whoever is further ahead goes back to it: what it has passed since had
    /// nothing in between.
    pub fn last_safe_point(epoch: *const Epoch) ?u64 {
        if (!epoch.stopping.covers(&epoch.alive)) return null;
        var largest: u64 = 0;
        var vouched = @max(epoch.began.safe_point, epoch.committed_at);
        for (epoch.members) |*member| {
            if (member.peer == null) continue;
            const count = member.safe_points;
            vouched = @max(vouched, @min(count, largest));
            largest = @max(largest, count);
        }
        // All three have a bound where they come in, so this is below `safe_points_max`.
        return @min(largest, vouched + base.limits.safe_points_ahead_max);
    }

    // ---- members that come back

    /// A member tells of this epoch at the beginning of a connection.
    pub fn on_report(
        epoch: *Epoch,
        rank: u16,
        report: *const control.EpochReport,
    ) ProtocolError!void {
        const member = &epoch.members[rank];
        if (member.named or epoch.closed.has(rank)) return error.Unexpected;
        if (report.members.count != epoch.members.len) return error.Unexpected;
        var it = report.members.iterator();
        for (epoch.members) |*other| if (!it.next().?.eql(other.id)) return error.Unexpected;
        if (report.attempt >= base.limits.attempts_max) return error.Unexpected; // nobody was there
        if (epoch.recovering) {
            attempts.hear(epoch, rank, report.attempt);
            // Nobody knows any more on what, and who had a part in it: it may have been all.
            if (report.decisions_seen > 0) epoch.fitted = .full(epoch.members.len);
        } else if (report.attempt > epoch.attempt) return error.Unexpected;
        member.report.asked_anew(epoch.attempt);
        try epoch.acknowledge(rank, report.decisions_seen);
        member.seen_before = report.decisions_seen;
        member.named = true;
        if (report.entered) epoch.activated.set(rank);
    }

    pub const Known = union(enum) { commit: *const control.Commit, abort: *const control.Abort };

    /// A member tells of a decision. Only a coordinator that has started again does not know it;
    /// that it is one is shown by its seal.
    pub fn on_known(epoch: *Epoch, rank: u16, message: Known) ProtocolError!void {
        if (!epoch.recovering) return;
        const genuine = switch (message) {
            .commit => |body| seal.equal(body.seal, seal.of_commit(epoch.seal_key, body)),
            .abort => |body| seal.equal(body.seal, seal.of_abort(epoch.seal_key, body)),
        };
        if (!genuine) return error.Unexpected;
        switch (message) {
            inline else => |body| {
                if (body.group != epoch.group) return error.Unexpected;
                // A member that says it has not seen what it tells makes others keep it for ever.
                const member = &epoch.members[rank];
                if (member.named and body.decision > member.seen_before) return error.Unexpected;
            },
        }
        switch (message) {
            .commit => |body| try epoch.claim(rank, body.op, body.decision, .{ .commit = .{
                .attempt = body.attempt,
                .digest = body.digest,
            } }),
            .abort => |body| {
                const differ = body.reason == .mismatch;
                try epoch.claim(rank, body.op, body.decision, .{ .abort = .{
                    .reason = body.reason,
                    .peer = body.peer,
                    .other = body.other,
                    .descriptor = if (differ) body.descriptor else null,
                    .other_descriptor = if (differ) body.other_descriptor else null,
                } });
            },
        }
    }

    fn claim(
        epoch: *Epoch,
        rank: u16,
        id: OpId,
        number: u64,
        outcome: Outcome,
    ) ProtocolError!void {
        // Decisions of one operation never differ, and outweigh that somebody gives it up now.
        if (epoch.claims.get(id)) |known| if (known.number != null) return;
        const member = &epoch.members[rank];
        if (member.claims >= base.limits.decisions_known_max) return error.Unexpected;
        member.claims += 1;
        try epoch.claims.put(epoch.gpa, id, .{
            .number = number,
            .maker = null,
            .outcome = outcome,
        });
    }

    /// It is to be aborted, if nobody knows that it was committed.
    fn withdraw(epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
        if (epoch.claims.contains(id)) return;
        if (maker) |rank| {
            const member = &epoch.members[rank];
            if (member.withdrawn >= base.limits.decisions_kept_max) return error.Unexpected;
            member.withdrawn += 1;
        }
        try epoch.claims.put(epoch.gpa, id, .{
            .number = null,
            .maker = maker,
            .outcome = .{ .abort = verdict },
        });
    }

    /// All have reported: what any of them knows, and somebody does not, is decided again, under a
    /// number of its own. No maker has more of these than it may cause (`withdraw` counts them), so
    /// nothing here is the fault of whoever reports last.
    fn settle_claims(epoch: *Epoch) ProtocolError!void {
        epoch.settling = true;
        defer epoch.settling = false;
        var last_seen: LastSeen = .{};
        const inside_now = epoch.inside();
        for (epoch.members, 0..) |*member, rank| {
            if (inside_now.has(rank)) last_seen.note(member.seen_before);
        }
        for (epoch.claims.keys(), epoch.claims.values()) |id, *known| {
            const called = epoch.find(id) != null;
            switch (known.outcome) {
                .commit => |committed| if (called) try epoch.commit(id, committed),
                .abort => |verdict| {
                    if (!called and !epoch.is_worth_telling(known, &last_seen)) continue;
                    try epoch.abort_now(id, verdict, known.maker);
                },
            }
        }
        epoch.claims.clearAndFree(epoch.gpa);
        if (epoch.forgetful) epoch.retold = epoch.decisions;
    }

    /// The last decision that each member has seen, as far as it says what all have seen. Members
    /// see the decisions of one coordinator in their order; who has seen some of a later one may
    /// have missed others of an earlier one, because that may have died while it told them again.
    const LastSeen = struct {
        least: u64 = std.math.maxInt(u64),
        most: u64 = 0,

        fn note(last: *LastSeen, number: u64) void {
            last.least = @min(last.least, number);
            last.most = @max(last.most, number);
        }

        fn covers(last: *const LastSeen, number: u64) bool {
            const start = number >> start_bits;
            if (last.least >> start_bits != start or last.most >> start_bits != start) return false;
            return number <= last.least;
        }
    };

    /// Whether an abort may be news to a member that has not called the operation.
    fn is_worth_telling(epoch: *const Epoch, known: *const Claim, last_seen: *const LastSeen) bool {
        const number = known.number orelse return true; // it is given up now
        if (last_seen.covers(number)) return false;
        // A liar may have hoarded those that all have seen long ago.
        return epoch.outstanding().len < base.limits.contradictions_kept_max;
    }

    /// Tells what was decided while the member was away.
    pub fn tell_missed(epoch: *Epoch, rank: u16) void {
        const member = &epoch.members[rank];
        const peer = member.peer orelse return;
        for (epoch.outstanding()) |*decision| {
            if (decision.number <= member.decisions_seen) continue;
            const message = epoch.message_of(decision);
            var once: Circular = .{ .message = &message, .load = .bulk };
            once.send(epoch.group, peer);
        }
        member.seen_wanted = 0; // what it has seen is asked anew, behind all that
    }

    // ---- syncs

    pub fn on_state_offer(
        epoch: *Epoch,
        rank: u16,
        message: *const control.StateOffer,
    ) ProtocolError!void {
        try epoch.acknowledge(rank, message.decisions_seen);
        try unseen.count_vote(epoch, rank);
        if (message.descriptor.kind != .sync or message.attempt > epoch.attempt)
            return error.Unexpected;
        const name = base.Label.read(message.name.data) orelse return error.Unexpected;
        if (message.attempt < epoch.attempt or !epoch.running) return; // it offers again
        if (epoch.is_decided(message.op)) return;
        const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
        const election = known.election orelse try Election.create(epoch.gpa, epoch.members.len);
        known.election = election;
        if (election.name.length == 0) election.name = name;
        known.stall.called.set(rank);
        if (!election.take(rank, .{
            .digest = message.digest,
            .revision = message.revision,
            .expected = message.expected,
            .structure = message.structure,
            .root = message.root,
            .strategy = message.strategy,
            .voted = message.voted,
            .is_vote = message.is_vote(),
        })) return error.Unexpected;
        try epoch.elect(known);
    }

    fn elect(epoch: *Epoch, known: *Record) ProtocolError!void {
        const election = known.election.?;
        if (!election.offered.covers(&epoch.alive)) return;
        var buffer: [base.limits.peers_max]PeerId = undefined;
        const ids = epoch.member_ids(&buffer);
        const verdict = election.decide(.{
            .ids = ids,
            .alive = &epoch.alive,
            .incumbents = epoch.members.len - epoch.began.joined,
            .rules = known.descriptor.rules,
        }) orelse return;
        switch (verdict) {
            .equal => |digest| {
                known.done = epoch.alive;
                known.digest = digest;
                known.digest_from = epoch.alive.at(0);
                try epoch.evaluate(known);
            },
            .elected => |*elected| epoch.broadcast(.{ .state_elected = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .attempt = epoch.attempt,
                .op = known.id,
                .revision = elected.revision,
                .root = elected.root,
                .holders = elected.holders,
            } }),
            .structure => |differ| {
                const ranks = differ.ranks;
                election.refuses = differ.refuses;
                election.structures = .init(.{
                    epoch.members[ranks[0]].ranked(ranks[0]),
                    epoch.members[ranks[1]].ranked(ranks[1]),
                });
                try epoch.compare_structures(known);
            },
            .conflict => |ranks| if (!misfit.blames(epoch, known, ranks, .content))
                try epoch.abort(known.id, .{
                    .reason = .state_conflict,
                    .peer = ids[ranks[0]],
                    .other = ids[ranks[1]],
                }, null),
            .givers => |ranks| if (!misfit.blames(epoch, known, ranks, .strategy))
                try epoch.abort(known.id, .{
                    .reason = .state_strategy,
                    .peer = ids[ranks[0]],
                    .other = ids[ranks[1]],
                }, null),
            .ahead => |*ahead| {
                election.misfits = ahead.ranks;
                election.blame = .{ .revision = ahead.expected };
            },
            .unavailable => try epoch.abort(known.id, .{ .reason = .state_unavailable }, null),
        }
    }

    pub fn on_state_tensors(
        epoch: *Epoch,
        rank: u16,
        message: *const control.StateTensors,
    ) ProtocolError!void {
        if (message.attempt != epoch.attempt or !epoch.running) return;
        const index = epoch.find(message.op) orelse return; // decided meanwhile
        const known = epoch.records.items[index];
        const election = known.election orelse return error.Unexpected;
        if (election.structures == null) return error.Unexpected;
        try election.structures.?.page(epoch.gpa, rank, message);
        try epoch.compare_structures(known);
    }

    /// Finds out how two structures differ. Then a newcomer, or one of few, is refused; or all hear
    /// it, and the operation is aborted.
    fn compare_structures(epoch: *Epoch, known: *Record) ProtocolError!void {
        const structures = &known.election.?.structures.?;
        switch (structures.next()) {
            .wait => {},
            // Whoever is asked has offered in this attempt, so it is alive.
            .ask => |ask| epoch.members[ask.rank].peer.?.send(epoch.group, .{ .state_ask = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .attempt = epoch.attempt,
                .op = known.id,
                .first = ask.first,
            } }),
            .over => {
                if (misfit.blames(epoch, known, structures.ranks, .structure)) return;
                epoch.broadcast(.{ .state_differs = .{
                    .group = epoch.group,
                    .epoch = epoch.number,
                    .op = known.id,
                    .text = .of(structures.text()),
                } });
                try epoch.abort(known.id, .{
                    .reason = .structure,
                    .peer = epoch.members[structures.ranks[0]].id,
                    .other = epoch.members[structures.ranks[1]].id,
                }, null);
            },
        }
    }

    // ---- losses

    /// A member is gone: nothing is sent to it any more. Attempt `from` must follow.
    pub fn detach(epoch: *Epoch, rank: u16, from: u32) void {
        const member = &epoch.members[rank];
        if (member.peer) |peer| member.lost_label = peer.label;
        member.peer = null;
        epoch.alive.unset(rank);
        epoch.least_seen_by = 0;
        epoch.history.note(from, &epoch.alive);
    }

    /// It was made from a journal. Attempts and decisions go on where no coordinator before this
    /// one can have been, so members' own numbers are irrelevant.
    pub fn restored(epoch: *Epoch, starts: u32) void {
        epoch.recovering = true;
        epoch.forgetful = true;
        epoch.running = false;
        const removed = epoch.history.entries.getLast().attempt;
        epoch.first_attempt = @max(removed, @as(u32, @min(starts, starts_max)) << 16);
        epoch.attempt = epoch.first_attempt;
        epoch.decisions = @as(u64, starts) << start_bits;
        epoch.retold = std.math.maxInt(u64);
        for (epoch.members) |*member| member.decisions_seen = epoch.decisions;
        epoch.least_seen_by = 0;
        refusals.restored(epoch);
    }

    /// Decisions of one start.
    const start_bits = 40;
    /// After that many, attempts of different starts are not told apart any more.
    const starts_max = std.math.maxInt(u32) >> 17;

    /// After a loss: what all others have voted for is committed.
    pub fn commit_voted(epoch: *Epoch) ProtocolError!void {
        if (epoch.alive.is_empty()) return;
        var index = epoch.records.items.len;
        while (index > 0) {
            index -= 1;
            const known = epoch.records.items[index];
            if (!known.done.is_empty()) try epoch.evaluate(known);
        }
    }

    /// Everybody stops, reports, and goes on along these paths with what the reports say.
    pub fn new_attempt(epoch: *Epoch, paths: base.Paths) ProtocolError!void {
        if (epoch.alive.is_empty() or epoch.recovering) return;
        if (epoch.attempt + 1 >= base.limits.attempts_max) return attempts.end(epoch);
        epoch.attempt += 1;
        epoch.paths = paths;
        epoch.running = false;
        epoch.replan_at = base.never;
        epoch.reported = .empty;
        epoch.begin_records();
        epoch.forget_reports();
        epoch.broadcast(.{ .view = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .alive = epoch.alive,
            .order = .of(if (paths.order.is_rank_order()) &.{} else paths.order.slice()),
            .has_ring = paths.has_ring,
            .hubs = paths.hubs,
        } });
        try epoch.check_reported();
    }

    fn begin_records(epoch: *Epoch) void {
        var index = epoch.records.items.len;
        while (index > 0) {
            index -= 1;
            const known = epoch.records.items[index];
            if (!misfit.is_called(epoch, known)) {
                epoch.record_free(index);
                continue;
            }
            known.done = .empty;
            known.reported = .empty;
            known.done_reported = .empty;
            known.stall.begin_attempt();
            if (known.election) |election| election.reset();
            known.begun_attempt = std.math.maxInt(u32);
            known.vote = null;
            known.votes_differ = false;
        }
    }

    /// They are of a passed attempt, or what is kept by them is told.
    fn forget_reports(epoch: *Epoch) void {
        for (epoch.records.items) |known| known.holdings.clear(epoch.gpa, epoch.budget);
        for (epoch.members) |*member| member.held_bytes = 0;
    }

    /// Reports of a passed attempt are not wanted, and none was asked for before all are back.
    fn hears_reports_of(epoch: *const Epoch, attempt: u32) bool {
        return attempt == epoch.attempt and !epoch.running and !epoch.recovering;
    }

    pub fn on_report_op(
        epoch: *Epoch,
        rank: u16,
        message: *const control.ReportOp,
    ) ProtocolError!void {
        if (!epoch.hears_reports_of(message.attempt)) return;
        if (epoch.reported.has(rank)) return error.Unexpected;
        if (message.begun_attempt == 0 or message.begun_attempt > epoch.attempt)
            return error.Unexpected;
        if (message.voted_attempt > epoch.attempt) return error.Unexpected;
        if ((message.state == .done) != (message.voted_attempt > 0)) return error.Unexpected;
        try epoch.check_settled(message);
        if (epoch.is_decided(message.op)) return;
        const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
        if (known.chunks_from == null) {
            known.chunks = message.chunks;
            known.chunks_from = rank;
        }
        if (known.chunks != message.chunks) {
            const first = known.chunks_from.?;
            if (first == rank) return error.Unexpected;
            // One of the two is wrong, and nobody can tell which.
            return epoch.abort(message.op, .{
                .reason = .contradiction,
                .peer = epoch.members[first].id,
                .other = epoch.members[rank].id,
            }, epoch.spendthrift(rank));
        }
        if (known.reported.has(rank)) return error.Unexpected; // nobody reports one thing twice
        epoch.members[rank].report.parts +%= 1;
        known.reported.set(rank);
        known.stall.called.set(rank);
        known.begun_attempt = @min(known.begun_attempt, message.begun_attempt);
        if (message.state == .done) {
            known.done_reported.set(rank);
            const vote: Record.Vote = .{
                .attempt = message.voted_attempt,
                .digest = message.digest,
            };
            if (known.vote) |first| {
                if (!std.meta.eql(first, vote)) known.votes_differ = true;
            } else known.vote = vote;
        }
        const before = known.holdings.bytes();
        try known.holdings.add(epoch.gpa, epoch.budget, &.{
            .rank = rank,
            .done = message.state == .done,
            .voted = &known.done_reported,
            .settled = message.settled,
        });
        epoch.members[rank].held_bytes += known.holdings.bytes() -| before;
    }

    /// Whether a report makes sense by itself.
    fn check_settled(epoch: *const Epoch, message: *const control.ReportOp) ProtocolError!void {
        var it = message.settled.iterator();
        var after: u32 = 0; // in order, so that a report costs no more than its chunks
        while (it.next()) |range| : (after = range.end) {
            if (range.begin < after) return error.Unexpected;
            if (range.begin >= range.end or range.end > message.chunks) return error.Unexpected;
            if (range.reduced_attempt == 0 or range.reduced_attempt > epoch.attempt)
                return error.Unexpected;
        }
    }

    pub fn on_report_end(
        epoch: *Epoch,
        rank: u16,
        message: *const control.ReportEnd,
    ) ProtocolError!void {
        epoch.members[rank].report.ended(message.attempt, epoch.attempt);
        if (!epoch.hears_reports_of(message.attempt)) return;
        try epoch.acknowledge(rank, message.decisions_seen);
        epoch.reported.set(rank);
        try epoch.check_reported();
    }

    /// The member has left this epoch for the next and has nothing in flight here: nobody waits for
    /// it.
    pub fn on_closed(epoch: *Epoch, rank: u16) ProtocolError!void {
        epoch.closed.set(rank);
        epoch.least_seen_by = 0;
        try epoch.check_reported();
    }

    fn check_reported(epoch: *Epoch) ProtocolError!void {
        if (epoch.running or epoch.recovering) return;
        if (epoch.reported.covers(&epoch.inside())) try epoch.go_on();
    }

    /// All have reported: say what is kept, and let everybody move again.
    fn go_on(epoch: *Epoch) ProtocolError!void {
        try epoch.settle_claims();
        var index = epoch.records.items.len;
        while (index > 0) {
            index -= 1;
            const known = epoch.records.items[index];
            if (known.reported.is_empty()) {
                // Those who had called it do not say so again, and another may have voted.
                if (misfit.contradiction(epoch, known)) |verdict|
                    try epoch.abort_now(known.id, verdict, null)
                else
                    epoch.record_free(index);
            } else if (epoch.forgetful and epoch.is_unanimous(known)) {
                // Somebody who is lost may have been told so by the coordinator before this one.
                const vote = known.vote.?;
                try epoch.commit(known.id, .{ .attempt = vote.attempt, .digest = vote.digest });
            } else if (epoch.verdict_on(known)) |verdict| {
                try epoch.abort_now(known.id, verdict, null);
            } else try epoch.send_kept(known);
        }
        epoch.forget_reports();
        epoch.running = true;
        epoch.forgetful = false;
        epoch.broadcast(.{ .resume_all = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
        } });
    }

    /// Why an operation cannot go on; null if it can.
    fn verdict_on(epoch: *const Epoch, known: *const Record) ?Verdict {
        if (epoch.is_starved(known.id)) return .{ .reason = .too_few_peers };
        if (Pair.of(known.id.tag)) |pair| return epoch.party_lost(pair);
        if (known.descriptor.recovery == .raise) if (epoch.lost_since(known.begun_attempt)) |lost|
            return .{ .reason = .peer_lost, .peer = lost };
        if (known.descriptor.recovery == .complete) if (epoch.any_lost()) |lost|
            return .{ .reason = .peer_lost, .peer = lost };
        if (known.descriptor.kind.has_root() and !epoch.root_alive(known)) {
            const verdict = root_lost(known);
            if (known.descriptor.kind.is_private()) return verdict;
            if (!known.holdings.has_all(known.chunks)) return verdict;
        }
        return null;
    }

    /// Every member that has a vote has voted, in one attempt, for one result.
    fn is_unanimous(epoch: *const Epoch, known: *const Record) bool {
        if (known.votes_differ) return false;
        const vote = known.vote orelse return false;
        const needed = epoch.voters(known.id);
        for (0..epoch.members.len) |rank| {
            if (!needed.has(rank)) continue;
            if (!known.done_reported.has(rank)) return false;
        }
        return epoch.history.members(vote.attempt).count() >= epoch.min_world_size;
    }

    fn any_lost(epoch: *const Epoch) ?PeerId {
        for (epoch.members, 0..) |*member, rank| if (!epoch.alive.has(rank)) return member.id;
        return null;
    }

    /// A member of that attempt that is not alive any more.
    fn lost_since(epoch: *const Epoch, attempt: u32) ?PeerId {
        const then = epoch.history.members(attempt);
        for (epoch.members, 0..) |*member, rank| {
            if (then.has(rank) and !epoch.alive.has(rank)) return member.id;
        }
        return null;
    }

    /// Null while both who have a part in a message are alive.
    fn party_lost(epoch: *const Epoch, pair: Pair) ?Verdict {
        for (pair.ranks()) |rank| if (!epoch.alive.has(rank))
            return .{ .reason = .peer_lost, .peer = epoch.members[rank].id };
        return null;
    }

    fn root_lost(known: *const Record) Verdict {
        return .{ .reason = .root_lost, .peer = known.descriptor.root };
    }

    /// The votes of all others count for nothing if the root, which alone has a result, is lost
    /// without a vote.
    fn has_root_voted(epoch: *const Epoch, known: *const Record) bool {
        for (epoch.members, 0..) |*member, rank| {
            if (member.id.eql(known.descriptor.root)) return known.done.has(rank);
        }
        return false;
    }

    fn root_alive(epoch: *const Epoch, known: *const Record) bool {
        for (epoch.members) |*member| {
            if (member.peer != null and member.id.eql(known.descriptor.root)) return true;
        }
        return false;
    }

    fn is_kept(epoch: *const Epoch, known: *const Record, range: *const control.KeptRange) bool {
        const kind = known.descriptor.kind;
        if (!kind.reduces()) return true;
        return switch (known.descriptor.recovery) {
            .resume_chunks => true,
            // One contributor set for all: a voted result as it is, else what the present members
            // reduced. One that has voted for a private result cannot give it to others.
            .restart, .raise, .complete => (!kind.is_private() and
                !known.done_reported.is_empty()) or
                epoch.history.members(range.reduced_attempt).eql(&epoch.alive),
        };
    }

    fn send_kept(epoch: *Epoch, known: *const Record) ProtocolError!void {
        var kept: std.ArrayList(control.KeptRange) = .empty;
        defer kept.deinit(epoch.gpa);
        for (known.holdings.ranges) |*range| {
            if (epoch.is_kept(known, range)) try kept.append(epoch.gpa, range.*);
        }
        const needed = epoch.voters(known.id);
        var message: control.ResumeOp = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = known.id,
            .kept = .of(kept.items),
        };
        var circular: Circular = .{ .load = .bulk, .message = &.{ .resume_op = message } };
        message.kept = .of(&.{});
        var from_nothing: Circular = .{ .load = .bulk, .message = &.{ .resume_op = message } };
        for (epoch.members, 0..) |*member, rank| {
            if (!needed.has(rank)) continue;
            const fits = !misfit.is_one(known, @intCast(rank));
            (if (fits) &circular else &from_nothing).send(epoch.group, member.peer.?);
        }
    }
};
