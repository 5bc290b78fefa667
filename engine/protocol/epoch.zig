//! Epoch, as the coordinator keeps it: one admitted membership, which of its members are alive, its
//! attempts, the operations that are not decided (record.zig), and the decisions that some member
//! has not seen. It answers questions and changes nothing else. Operations are decided in
//! operation.zig; attempt.zig goes on after a loss and after a restart. Peers become members in
//! membership.zig. The member's half: member.zig.

const std = @import("std");
const base = @import("base");
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
    /// Null: the member is lost.
    peer: ?*Peer,
    /// The label of a lost member; a member that is not lost has it in `peer`.
    lost_label: base.Label = .{},
    /// The number that tells the member's process from others with the same id.
    instance: u64,
    /// The member has named this epoch on the connection that it has now.
    named: bool = false,
    /// The last decision that the member says it has seen.
    decisions_seen: u64 = 0,
    /// Aborts that the member has caused alone, and that some other member has not seen.
    caused: u32 = 0,
    /// Bytes that the coordinator holds of the member's reports in this attempt.
    held_bytes: usize = 0,
    /// The number that `decisions_seen` must reach, and since when it must.
    seen_wanted: u64 = 0,
    seen_asked: Asked = .{},
    /// Votes of the member since it has been far behind with decisions (operation.zig).
    votes_behind: u32 = 0,
    /// The log says that other members have waited for this member (debt.zig).
    waited_for: bool = false,
    /// The member has heard the rates of links that its epoch was told (measurement.zig).
    knows_measured: bool = false,
    /// The report that the member owes after a view.
    report: ReportOwed = .{},
    /// The answer that the round under way wants of the member: its lanes, then its safe points
    /// (membership.zig).
    round_asked: Asked = .{},
    /// How many safe points the member has passed, as it says.
    safe_points: u64 = 0,

    /// The member's name for people.
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
    /// False from a view until its resume.
    running: bool = true,
    /// From a restart until the members are back: they are told nothing.
    recovering: bool = false,
    min_world_size: u32,
    /// The budget of all queues of the coordinator.
    budget: *wire.Budget,
    members: []MemberState,
    /// The rank of each id, lost members included.
    ranks: Ranks = .empty,
    /// How the epoch began, for members that have not been told.
    began: Began,
    /// The number of the last record of the journal that names the epoch (log.zig).
    recorded: u64 = 0,
    alive: Mask,
    /// Ranks that have called a committed operation, or may have before a restart.
    fitted: Mask = .empty,
    /// Ranks that have passed the safe point at which the epoch begins.
    activated: Mask = .empty,
    /// Ranks that have not, as members were told last (debt.zig). Members begin with all ranks.
    missing_told: Mask,
    /// Newcomers that wait outside while this epoch only closes a gap, and the count that members
    /// were told last.
    waiting: u16 = 0,
    waiting_told: u16 = 0,
    /// Ranks that are in the next epoch and have nothing in flight here.
    closed: Mask = .empty,
    /// Ranks that have reported in the current attempt.
    reported: Mask = .empty,
    /// Ranks that have told the round under way how many safe points they have passed
    /// (membership.zig).
    stopping: Mask = .empty,
    /// The paths in the current attempt (path.zig).
    paths: base.Paths,
    /// The rates of links that members were told.
    measured: Told = .{},
    /// The links that members are asked to probe, and when (measurement.zig).
    probes: Probes = .{},
    history: History = .{},
    records: std.ArrayList(*Record) = .empty,
    /// Decisions that some member may not have seen, oldest first. All members have seen the
    /// decisions before index `decided_first`.
    decided: std.ArrayList(record_file.Decision) = .empty,
    decided_first: usize = 0,
    /// The operations of the decisions from `decided_first` on.
    decided_ids: std.AutoHashMapUnmanaged(OpId, void) = .empty,
    /// The number of the last decision.
    decisions: u64 = 0,
    /// The smallest `decisions_seen` of the members in the epoch, and how many of them have that.
    /// With a count of 0 `seen_by_all` finds both anew.
    least_seen: u64 = 0,
    least_seen_by: usize = 0,
    /// Committed operations of users.
    committed: u64 = 0,
    /// The last safe point after which a committed operation was called.
    committed_at: u64 = 0,
    /// When a new attempt with the same members is due, because lanes broke or the ring must go
    /// around a link.
    replan_at: base.Instant = base.never,
    /// When calls whose deadlines are near are looked at (debt.zig).
    stall_at: base.Instant = base.never,
    /// When the log last named links that move nothing; 0: never.
    stuck_said_at: base.Instant = 0,

    pub const Began = struct { round: u64, safe_point: u64, joined: u32, left: []const PeerId };

    pub const Options = struct {
        group: u16,
        number: u64,
        min_world_size: u32,
        budget: *wire.Budget,
        /// In rank order.
        peers: []const *Peer,
        /// `left` is copied.
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
        // Another process may have the id of one that is lost.
        return if (epoch.members[rank].peer == peer) rank else null;
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
            .attempt = epoch.attempt,
        } };
    }

    /// The log's record of the attempt.
    pub fn attempt_record(epoch: *const Epoch) journal.Record {
        return .{ .attempt = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .decision = epoch.decisions,
        } };
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

    /// Those who have a part in an operation, are alive, and have not called it.
    pub fn missing_of(epoch: *const Epoch, known: *const Record) Mask {
        return epoch.voters(known.id).without(&known.stall.called);
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

    pub fn any_lost(epoch: *const Epoch) ?PeerId {
        for (epoch.members, 0..) |*member, rank| if (!epoch.alive.has(rank)) return member.id;
        return null;
    }

    /// Null while both who have a part in a message are alive.
    pub fn party_lost(epoch: *const Epoch, pair: Pair) ?record_file.Verdict {
        for (pair.ranks()) |rank| if (!epoch.alive.has(rank))
            return .{ .reason = .peer_lost, .peer = epoch.members[rank].id };
        return null;
    }
};

// ---- history
//
// Which members each attempt of an epoch had. A chunk remembers the attempt that reduced it, and
// the history tells who contributed. The coordinator keeps one for an epoch, a peer one for each of
// its calls (session/operation.zig).

pub const History = struct {
    entries: std.ArrayList(Entry) = .empty,

    const Entry = struct { attempt: u32, members: Mask };

    pub fn deinit(history: *History, gpa: Allocator) void {
        history.entries.deinit(gpa);
    }

    /// Makes room for so many entries: one for each number of members that there may be.
    pub fn reserve(history: *History, gpa: Allocator, entries_max: usize) Allocator.Error!void {
        try history.entries.ensureTotalCapacityPrecise(gpa, entries_max);
    }

    /// Attempts rise and members only go; attempts with equal members share an entry. Asserts that
    /// room was reserved.
    pub fn note(history: *History, attempt: u32, alive: *const Mask) void {
        if (history.entries.getLastOrNull()) |last| if (last.members.eql(alive)) return;
        history.entries.appendAssumeCapacity(.{ .attempt = attempt, .members = alive.* });
    }

    /// Members of the given attempt. Asserts that the first attempt is noted.
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
