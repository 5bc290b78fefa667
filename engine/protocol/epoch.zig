//! Epoch, as the coordinator keeps it: the members, which of them are alive, the attempt, the
//! operations that are not decided (record.zig), and the decisions that some member has not seen.
//! The functions of Epoch answer questions and change the Epoch alone: they send nothing.
//! operation.zig decides operations; attempt.zig begins attempts after a loss or a restart;
//! membership.zig makes epochs. The member's view of an epoch: member.zig.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const journal = @import("journal.zig");
const ranks_of = @import("peer.zig").ranks_of;
const record_file = @import("record.zig");
const Asked = @import("peer.zig").Asked;
const Peer = @import("peer.zig").Peer;
const Probes = @import("matrix.zig").Probes;
const ProtocolError = @import("peer.zig").ProtocolError;
const Ranks = @import("peer.zig").Ranks;
const Record = @import("record.zig").Record;
const ReportOwed = @import("record.zig").ReportOwed;
const Told = @import("matrix.zig").Told;
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const OpId = control.OpId;
const Pair = base.Pair;
const PeerId = base.PeerId;
const control = wire.control;

pub const MemberState = struct {
    id: PeerId,
    /// The process of the member; null if the member is lost.
    peer: ?*Peer,
    /// The label of a lost member. The label of a member that is alive is in `peer`.
    lost_label: base.Label = .{},
    /// A number that distinguishes the member's process from other processes with the same id.
    instance: u64,
    /// The member has named this epoch (`epoch_report`) on its present connection.
    named: bool = false,
    /// The number of the last decision that the member has acknowledged.
    decisions_seen: u64 = 0,
    /// The number of aborts that this member alone caused, and that some member has not seen.
    caused: u32 = 0,
    /// Bytes that the member's reports of this attempt take in the coordinator's memory.
    held_bytes: usize = 0,
    /// The value that `decisions_seen` must reach, and since when the member is asked for that.
    seen_wanted: u64 = 0,
    seen_asked: Asked = .{},
    /// The number of votes that the member has cast since it fell far behind in acknowledging
    /// decisions (operation.zig: is_behind).
    votes_behind: u32 = 0,
    /// The coordinator's log has a warning that other members wait for this one (debt.zig).
    waited_for: bool = false,
    /// The member was told all link rates in `Epoch.measured` (measurement.zig).
    knows_measured: bool = false,
    /// The report of settled chunks that the member owes after a `view`.
    report: ReportOwed = .{},
    /// When the round under way began to wait for the member's answer: first `prepared`, then
    /// `safe_points` (membership.zig).
    round_asked: Asked = .{},
    /// The number of safe points that the member has passed, by its own `safe_points` message.
    safe_points: u64 = 0,

    /// The member's label, a name for people.
    pub fn label(member: *const MemberState) *const base.Label {
        return if (member.peer) |peer| &peer.label else &member.lost_label;
    }

    /// The member as the log shows it: "7f3a01c2 (node7:4242, rank 3)".
    pub fn shown(member: *const MemberState, rank: usize) Shown {
        return .{ .member = member, .rank = rank };
    }

    /// The member as an error shows it: "rank 3 (node7:4242, 7f3a01c2)".
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

pub const Epoch = struct {
    gpa: Allocator,
    group: u16,
    number: u64,
    attempt: u32 = 1,
    /// False from a `view`, at which members stop, until `resume_all`, at which data moves again.
    running: bool = true,
    /// The coordinator has restarted, and not all members are back or lost: decisions are kept, and
    /// not sent.
    recovering: bool = false,
    min_world_size: u32,
    /// The coordinator's budget of memory, shared by all its queues and all reports.
    budget: *wire.Budget,
    members: []MemberState,
    /// Maps the id of each member to its rank, lost members included.
    ranks: Ranks = .empty,
    /// The round, safe point, newcomers and lost members with which the epoch began.
    began: Began,
    /// The number of the last record of the journal that names the epoch (log.zig).
    recorded: u64 = 0,
    alive: Mask,
    /// Ranks that have called an operation that was committed, or may have done so before a
    /// restart.
    fitted: Mask = .empty,
    /// Ranks that have entered the epoch: they have passed the safe point at which it begins.
    activated: Mask = .empty,
    /// Ranks that have not entered the epoch, as the members were last told (debt.zig). A Member
    /// assumes all ranks until it is told.
    missing_told: Mask,
    /// The number of newcomers that wait outside while this epoch only closes the gap of a loss,
    /// and the number that the members were last told.
    waiting: u16 = 0,
    waiting_told: u16 = 0,
    /// Ranks that have entered the next epoch and have nothing in flight in this one.
    closed: Mask = .empty,
    /// Ranks whose reports of the current attempt are complete (`report_end`).
    reported: Mask = .empty,
    /// Ranks that have told the round under way how many safe points they have passed
    /// (membership.zig).
    stopping: Mask = .empty,
    /// The paths of the current attempt (attempt.zig).
    paths: base.Paths,
    /// The link rates that the members were last told.
    measured: Told = .{},
    /// The links that members are asked to probe, and when (measurement.zig).
    probes: Probes = .{},
    /// Better paths that the measured rates would allow (attempt.zig).
    planned: Planned = .{},
    history: History = .{},
    records: std.ArrayList(*Record) = .empty,
    /// Decisions that some member may not have seen, oldest first. All members have seen the
    /// decisions before index `decided_first`.
    decided: std.ArrayList(record_file.Decision) = .empty,
    decided_first: usize = 0,
    /// The ids of the operations in `decided[decided_first..]`.
    decided_ids: std.AutoHashMapUnmanaged(OpId, void) = .empty,
    /// The number of the epoch's last decision; 0: none was made.
    decisions: u64 = 0,
    /// The smallest `decisions_seen` of the members in `inside()`, and how many of them have that
    /// value. If `least_seen_by` is 0, `seen_by_all` computes both anew.
    least_seen: u64 = 0,
    least_seen_by: usize = 0,
    /// The number of committed operations, without the agreements on safe points.
    committed: u64 = 0,
    /// The largest number of safe points that members had passed when they called a collective that
    /// was committed.
    committed_at: u64 = 0,
    /// When the next attempt with the same members begins, because lanes broke or the ring must go
    /// around a broken link; `never`: none is due.
    replan_at: base.Instant = base.never,
    /// When the coordinator next reviews calls whose deadlines are near (debt.zig); `never`: there
    /// are none.
    stall_at: base.Instant = base.never,
    /// When the log last warned of links that move nothing of an operation; 0: never.
    stuck_said_at: base.Instant = 0,

    pub const Planned = struct {
        /// `measured.changes` when paths were last looked for.
        seen: u64 = 0,
        /// When better paths became known; `never`: no better paths are known.
        since: base.Instant = base.never,
        /// The better paths take half of the time, or less.
        is_urgent: bool = false,
        /// The earliest time at which paths may change again because of rates, and how often they
        /// have changed because of them.
        not_before: base.Instant = 0,
        changes: u32 = 0,
        /// The earliest time of the next search.
        look_at: base.Instant = 0,
        /// The ways that the last search compared.
        tried: plan.planner.Tried = .{},
        /// Ranks that wait for the best paths (`optimize`), when the first of them asked, and
        /// `changes` when the last of them did.
        asked: Mask = .empty,
        asked_at: base.Instant = 0,
        changes_before: u32 = 0,
    };

    pub const Began = struct { round: u64, safe_point: u64, joined: u32, left: []const PeerId };

    pub const Options = struct {
        group: u16,
        number: u64,
        min_world_size: u32,
        budget: *wire.Budget,
        /// The members in rank order.
        peers: []const *Peer,
        /// `create` copies `began.left`.
        began: Began,
    };

    pub fn create(gpa: Allocator, options: Options) Allocator.Error!*Epoch {
        const peers = options.peers;
        const epoch = try gpa.create(Epoch);
        errdefer gpa.destroy(epoch);
        const members = try gpa.alloc(MemberState, peers.len);
        errdefer gpa.free(members);
        for (members, peers) |*member, peer| {
            member.* = .{ .id = peer.id, .peer = peer, .instance = peer.instance };
        }
        var ranks: Ranks = try ranks_of(gpa, peers);
        errdefer ranks.deinit(gpa);
        const left = try gpa.dupe(PeerId, options.began.left);
        errdefer gpa.free(left);
        epoch.* = .{
            .gpa = gpa,
            .group = options.group,
            .number = options.number,
            .min_world_size = options.min_world_size,
            .budget = options.budget,
            .members = members,
            .ranks = ranks,
            .began = options.began,
            .alive = .full(peers.len),
            .missing_told = .full(peers.len),
            .paths = .all(&.full(peers.len), peers.len),
        };
        epoch.began.left = left;
        // Members only leave, so `history` never needs more entries, and a loss allocates no
        // memory.
        try epoch.history.reserve(gpa, peers.len + 1); // the last entry has no members
        epoch.history.note(1, &epoch.alive);
        return epoch;
    }

    pub fn destroy(epoch: *Epoch) void {
        const gpa = epoch.gpa;
        while (epoch.records.items.len > 0) epoch.record_free(0);
        epoch.records.deinit(gpa);
        epoch.decided.deinit(gpa);
        epoch.decided_ids.deinit(gpa);
        epoch.history.deinit(gpa);
        gpa.free(epoch.began.left);
        gpa.free(epoch.members);
        epoch.measured.deinit(gpa);
        epoch.probes.deinit(gpa);
        epoch.ranks.deinit(gpa);
        gpa.destroy(epoch);
    }

    pub fn rank_of(epoch: *const Epoch, peer: *const Peer) ?u16 {
        const rank = epoch.ranks.get(peer.id) orelse return null;
        // A new process may have the id of a lost member.
        return if (epoch.members[rank].peer == peer) rank else null;
    }

    /// Members that are alive and have not closed the epoch.
    pub fn inside(epoch: *const Epoch) Mask {
        return epoch.alive.without(&epoch.closed);
    }

    /// Members that are alive and have not entered the epoch.
    pub fn not_entered(epoch: *const Epoch) Mask {
        return epoch.alive.without(&epoch.activated);
    }

    /// The `activate` message of the epoch. `ids`: all its members in rank order.
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

    /// The journal's record of the epoch. The record refers to `ids` and `buffer`.
    pub fn record(
        epoch: *const Epoch,
        ids: []const PeerId,
        buffer: *[base.limits.peers_max]u64,
    ) journal.Record {
        for (buffer[0..ids.len], epoch.members) |*to, *member| to.* = member.instance;
        return .{ .activation = .{
            .told = epoch.activation(ids),
            .instances = .of(buffer[0..ids.len]),
            .attempt = epoch.attempt,
        } };
    }

    /// The log's record of the epoch's current attempt and last decision.
    pub fn attempt_record(epoch: *const Epoch) journal.Record {
        return .{ .attempt = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .decision = epoch.decisions,
        } };
    }

    /// The ids of all members in rank order, lost members included.
    pub fn member_ids(epoch: *const Epoch, buffer: *[base.limits.peers_max]PeerId) []const PeerId {
        for (buffer[0..epoch.members.len], epoch.members) |*id, *member| id.* = member.id;
        return buffer[0..epoch.members.len];
    }

    /// Names the epoch's members in error texts, for wire.Described.
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

    /// Whether too few members are left for this operation. Agreements on a safe point are exempt,
    /// because newcomers enter by them.
    pub fn is_starved(epoch: *const Epoch, id: OpId) bool {
        if (id.tag >= base.limits.pending_tag) return false;
        return epoch.alive.count() < epoch.min_world_size;
    }

    // ---- records

    pub fn find(epoch: *const Epoch, id: OpId) ?usize {
        for (epoch.records.items, 0..) |item, index| if (item.id.eql(id)) return index;
        return null;
    }

    pub fn is_decided(epoch: *const Epoch, id: OpId) bool {
        return epoch.decided_ids.contains(id);
    }

    pub fn outstanding(epoch: *const Epoch) []const record_file.Decision {
        return epoch.decided.items[epoch.decided_first..];
    }

    /// Keeps a decision until all members have seen it.
    pub fn keep(epoch: *Epoch, decision: record_file.Decision) Allocator.Error!void {
        try epoch.decided_ids.ensureUnusedCapacity(epoch.gpa, 1);
        try epoch.decided.append(epoch.gpa, decision);
        epoch.decided_ids.putAssumeCapacity(decision.id, {});
    }

    /// Members that are alive and must call the operation, and have not called it.
    pub fn missing_of(epoch: *const Epoch, known: *const Record) Mask {
        return epoch.voters(known.id).without(&known.stall.called);
    }

    /// Ranks whose votes a commit needs: all that are alive, or, for a message, those of its two
    /// ranks that are alive.
    pub fn voters(epoch: *const Epoch, id: OpId) Mask {
        const pair = Pair.of(id.tag) orelse return epoch.alive;
        var both: Mask = .empty;
        for (pair.ranks()) |rank| if (epoch.alive.has(rank)) both.set(rank);
        return both;
    }

    /// error.Unexpected: the operation is a message of two ranks, and `rank` is not one of them.
    pub fn check_party(epoch: *const Epoch, id: OpId, rank: u16) ProtocolError!void {
        const pair = Pair.of(id.tag) orelse return;
        if (!pair.has(rank) or pair.src == pair.dst) return error.Unexpected;
        for (pair.ranks()) |either| if (either >= epoch.members.len) return error.Unexpected;
    }

    pub fn record_free(epoch: *Epoch, index: usize) void {
        const gone = epoch.records.orderedRemove(index);
        gone.holdings.clear(epoch.gpa, epoch.budget);
        gone.misfits.deinit(epoch.gpa);
        if (gone.election) |election| election.destroy();
        epoch.gpa.destroy(gone);
    }

    // ---- the next epoch

    /// The last safe point that members pass in this epoch; null until all have told their counts
    /// of safe points. The result is the largest count, but no member is believed alone: the result
    /// is at most `safe_points_ahead_max` above the second largest count, the safe point where the
    /// epoch began, or `committed_at`, whichever is largest. A member with a higher count goes back
    /// to the result: no collective that it called since then was committed.
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
        // Counts, `began.safe_point` and `committed_at` are bounded where they are decoded, so the
        // sum is below `safe_points_max`.
        return @min(largest, vouched + base.limits.safe_points_ahead_max);
    }

    // ---- losses

    /// Marks a member as lost: nothing is sent to it any more. The caller must begin attempt
    /// `from`, the first without that member.
    pub fn detach(epoch: *Epoch, rank: u16, from: u32) void {
        const member = &epoch.members[rank];
        if (member.peer) |peer| member.lost_label = peer.label;
        member.peer = null;
        epoch.alive.unset(rank);
        epoch.least_seen_by = 0;
        epoch.history.note(from, &epoch.alive);
    }

    pub fn any_lost(epoch: *const Epoch) ?PeerId {
        for (epoch.members, 0..) |*member, rank| if (!epoch.alive.has(rank)) return member.id;
        return null;
    }

    /// The verdict on a message that names its lost rank; null while both ranks are alive.
    pub fn party_lost(epoch: *const Epoch, pair: Pair) ?record_file.Verdict {
        for (pair.ranks()) |rank| if (!epoch.alive.has(rank))
            return .{ .reason = .peer_lost, .peer = epoch.members[rank].id };
        return null;
    }
};

// ---- history
//
// Which members each attempt of an epoch had. A chunk has the number of the attempt that reduced
// it, and the history gives the members of that attempt, which contributed. The coordinator keeps a
// History for each epoch, a peer for each of its calls (session/operation.zig).

pub const History = struct {
    entries: std.ArrayList(Entry) = .empty,

    const Entry = struct { attempt: u32, members: Mask };

    pub fn deinit(history: *History, gpa: Allocator) void {
        history.entries.deinit(gpa);
    }

    /// Reserves memory for `entries_max` entries: one for each number of members that an attempt
    /// may have.
    pub fn reserve(history: *History, gpa: Allocator, entries_max: usize) Allocator.Error!void {
        try history.entries.ensureTotalCapacityPrecise(gpa, entries_max);
    }

    /// Notes the members of an attempt. Attempts must ascend, and members only leave; attempts with
    /// equal members share an entry. Asserts that `reserve` has made room.
    pub fn note(history: *History, attempt: u32, alive: *const Mask) void {
        if (history.entries.getLastOrNull()) |last| if (last.members.eql(alive)) return;
        history.entries.appendAssumeCapacity(.{ .attempt = attempt, .members = alive.* });
    }

    /// The members of an attempt. Asserts that the first attempt was noted.
    pub fn members(history: *const History, attempt: u32) *const Mask {
        var index = history.entries.items.len;
        while (index > 1) : (index -= 1) {
            if (history.entries.items[index - 1].attempt <= attempt) break;
        }
        return &history.entries.items[index - 1].members;
    }
};

test "an attempt has the members of the last change before it" {
    const gpa = std.testing.allocator;
    var history: History = .{};
    defer history.deinit(gpa);
    try history.reserve(gpa, 3);
    history.note(1, &Mask.full(3));
    history.note(2, &Mask.full(3));
    history.note(5, &Mask.full(2));
    try std.testing.expectEqual(3, history.members(1).count());
    try std.testing.expectEqual(3, history.members(4).count());
    try std.testing.expectEqual(2, history.members(9).count());
}
