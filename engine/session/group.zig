//! Group: this peer's place in one group of the run, as the user's calls see it. The protocol of a
//! group is in protocol/member.zig; membership.zig fills in what the coordinator says.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const protocol = @import("protocol");
const wire = @import("wire");
const SharedState = @import("state.zig").State;
const Transfer = @import("state.zig").Transfer;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// The states whose syncs this peer has committed, by their tags, which follow from their names. A
/// state that is made again under its old name counts as the same state. Only the most recently
/// synced states are kept.
pub const Synced = struct {
    /// The states, ordered by their last sync; the most recent sync is at the end.
    items: std.ArrayList(Item) = .empty,

    /// `expected`: the revision of the state after its last commit at this peer.
    const Item = struct { tag: u64, expected: u64 };

    /// Reserves room for all states that may be kept, so that `note` cannot fail.
    pub fn reserve(synced: *Synced, gpa: Allocator) Allocator.Error!void {
        try synced.items.ensureTotalCapacityPrecise(gpa, limits.states_synced_max);
    }

    pub fn deinit(synced: *Synced, gpa: Allocator) void {
        synced.items.deinit(gpa);
    }

    /// The revision of a state after its last committed sync; 0 if this peer has committed no sync
    /// of it.
    pub fn expected(synced: *const Synced, tag: u64) u64 {
        return synced.items.items[synced.find(tag) orelse return 0].expected;
    }

    /// Notes that a sync of a state is committed. Forgets the state with the oldest sync if the
    /// list is full.
    pub fn note(synced: *Synced, tag: u64, revision: u64) void {
        const items = &synced.items;
        if (synced.find(tag)) |index| _ = items.orderedRemove(index);
        if (items.items.len == limits.states_synced_max) _ = items.orderedRemove(0);
        items.appendAssumeCapacity(.{ .tag = tag, .expected = revision });
    }

    fn find(synced: *const Synced, tag: u64) ?usize {
        for (synced.items.items, 0..) |*item, index| if (item.tag == tag) return index;
        return null;
    }
};

pub const Group = struct {
    /// The group's Session; untyped because Session imports this file. The member's actions find
    /// the session here (control.zig).
    session: *anyopaque,
    /// The group's number in this session, which is never used for another group.
    number: u64,
    /// A number for the owner of the session, which the session does not read.
    user: usize = 0,
    name: []u8,
    initial_world_size: u32,
    /// The founders of a sub-group; null: the group admits any peer that asks.
    founding: ?Founding = null,
    /// The number that the coordinator has given to the group; null before the coordinator has.
    id: ?u16 = null,
    member: protocol.Member,
    state: State = .joining,
    /// A join was sent on the present connection, and the coordinator has not answered it
    /// (membership.zig: present_group).
    asks: bool = false,
    /// The user has released the group. It is freed once its join is answered.
    is_released: bool = false,
    /// When the user's admit() fails because its time is up.
    admit_deadline: base.Instant = base.never,
    /// Members of the epoch that the current round prepares. These members may begin the epoch
    /// before this peer hears of it.
    round_members: std.ArrayList(PeerId) = .empty,
    /// Peers to which the current round wants lanes.
    round_peers: std.ArrayList(PeerId) = .empty,
    /// The peers of `round_peers` without an open lane, as last told to the coordinator. Memory for
    /// all of `round_peers` is reserved.
    missing_told: std.ArrayList(wire.control.Missing) = .empty,
    /// The user waits for the best paths, which the coordinator is asked for on each connection
    /// (membership.zig: ask_for_paths).
    waits_for_paths: bool = false,
    /// When this peer next reports lanes that are still missing to the coordinator.
    report_at: base.Instant = base.never,
    /// The user has been told that the group is ready.
    ready_told: bool = false,
    /// How many peers have arrived, and how many the group needs to begin, by the coordinator's
    /// last message.
    attendance: ?Attendance = null,
    /// The last epoch whose entry has been logged.
    entry_said: u64 = 0,
    /// The peers that this newcomer waits for, by the coordinator's last message.
    awaited: Awaited = .{},
    /// When the log last named the members that a call waits for, or with which no bytes move.
    wait_said_at: base.Instant = 0,
    /// The user has called admit(), which begins when all prefetches are over (sync.zig).
    admit_waits: bool = false,
    /// The agreement of all members on the next safe point.
    vote: Vote = .{},
    /// The reason why this peer is not a member any more, in `removed_length` bytes (why_removed).
    removed_storage: [removed_bytes_max]u8 = undefined,
    removed_length: usize = 0,
    /// The call that an older member has made, if this newcomer was refused because its own call
    /// differs.
    wanted: ?Wanted = null,
    /// The rates of links in the newest epoch for which the coordinator told any.
    measured: ?*Measured = null,
    /// Shared states of the group, which the user destroys before it releases the group.
    states: std.ArrayList(Shared) = .empty,
    /// The states that this peer has synced in this group, and in sub-groups of this group.
    synced: Synced = .{},
    synced_below: Synced = .{},

    pub const State = enum { joining, joined, left };
    pub const Measured = struct { epoch: u64, matrix: plan.Matrix = .{} };
    pub const Wanted = struct {
        op: wire.control.OpId,
        peer: PeerId,
        descriptor: wire.control.Descriptor,
    };
    /// The founders of a sub-group, which are members of an epoch of its parent group.
    pub const Founding = struct {
        parent: []u8,
        epoch: u64,
        /// The founders in the order of their ranks in the sub-group.
        members: []PeerId,
        /// `Group.number` of the root group: the parent, or the root group of the parent.
        root: u64,
        /// This peer was a newcomer in the parent when it founded the sub-group.
        is_new: bool,
    };
    pub const Attendance = struct { here: u32, needed: u32, emptied: bool };
    /// A shared state of a group.
    pub const Shared = struct {
        group: *Group,
        state: *SharedState,
        /// The prefetch of this state before this peer enters (sync.zig); null: no prefetch is
        /// under way.
        prefetch: ?*Transfer = null,
    };
    const removed_bytes_max = limits.expelled_bytes_max;

    /// The agreement of all members on whether a new epoch begins at the next safe point
    /// (membership.zig).
    pub const Vote = struct {
        /// 1 if this peer knows an epoch that begins at the safe point, else 0. `all`: the minimum
        /// over all members, once they have agreed.
        own: u32 = 0,
        all: u32 = 0,
        /// The operation in which the members agree; null: no agreement is under way.
        op: ?*protocol.Op = null,
        /// The user waits for the agreement in an admit().
        is_wanted: bool = false,
        /// The agreement has ended or is in doubt, and membership.zig has not acted on it.
        is_news: bool = false,
        /// True: the members have agreed to begin a new epoch at the safe point, which this peer
        /// has not passed yet. False: the members have agreed to begin no epoch. Null: there is no
        /// unused agreement.
        agreed: ?bool = null,
        /// The end of the error text of an admit() whose time was up: the members it waited for.
        late_storage: [late_bytes_max]u8 = undefined,
        late_length: usize = 0,

        const late_bytes_max = 400;

        /// The members that the last admit() waited for in vain, as the end of an error text; empty
        /// if no members are known.
        pub fn why_late(vote: *const Vote) []const u8 {
            return vote.late_storage[0..vote.late_length];
        }

        /// Whether an earlier admit() has begun an agreement that is not used yet. Other members
        /// may have passed the safe point of that agreement.
        pub fn is_open(vote: *const Vote) bool {
            return vote.op != null or vote.agreed != null;
        }
    };

    /// The founders that a newcomer names in its join of a sub-group. Empty if this peer has been
    /// in an epoch of the group, because then it is a member, whichever founders it named.
    pub fn founders(group: *const Group) wire.control.Founders {
        const founding = if (group.founding) |*it| it else return .{};
        if (group.member.newest() > 0) return .{};
        return .{
            .parent = .of(founding.parent),
            .epoch = founding.epoch,
            .members = .of(founding.members),
        };
    }

    /// Keeps a printable reason why this peer is not a member any more. Called once, before the
    /// user is told that the membership is over.
    pub fn removed(group: *Group, why: []const u8) void {
        group.removed_length = base.text.show(why, &group.removed_storage).len;
    }

    pub fn why_removed(group: *const Group) []const u8 {
        return group.removed_storage[0..group.removed_length];
    }

    /// Forgets which peers are away when a round begins or ends; the coordinator names them again.
    pub fn forget_away(group: *Group) void {
        if (group.awaited.why == .away) group.awaited = .{};
    }

    /// Whether this member entered with the current epoch. In a sub-group: whether it was a
    /// newcomer in the parent when it founded the sub-group.
    pub fn is_newcomer(group: *const Group) bool {
        if (group.founding) |*founding| return founding.is_new;
        const current = group.member.current.?;
        return current.rank >= current.ids.len - current.joined;
    }

    /// Whether a peer is in an epoch of this peer, or in the current round.
    pub fn knows(group: *const Group, id: PeerId) bool {
        for (group.round_members.items) |member| if (member.eql(id)) return true;
        for (group.member.epochs) |slot| if (slot) |item| {
            if (item.rank_of(id) != null) return true;
        };
        return false;
    }

    /// Whether the session must keep the address and the label of a peer.
    pub fn needs(group: *const Group, id: PeerId) bool {
        if (group.knows(id)) return true;
        for (group.states.items) |item| if (item.prefetch) |fetching| {
            if (fetching.find(id) != null) return true;
        };
        return false;
    }

    pub fn shared(group: *const Group, state: *const SharedState) ?*Shared {
        for (group.states.items) |*item| if (item.state == state) return item;
        return null;
    }

    /// Whether the user waits in an admit() of this group.
    pub fn is_admitting(group: *const Group) bool {
        return group.member.admitting or group.vote.is_wanted or group.admit_waits;
    }

    pub fn is_fetching(group: *const Group) bool {
        for (group.states.items) |item| if (item.prefetch != null) return true;
        return false;
    }

    pub fn epoch(group: *const Group) u64 {
        return if (group.member.current) |current| current.number else 0;
    }

    pub fn attempt(group: *const Group) u32 {
        return if (group.member.current) |current| current.attempt else 0;
    }

    pub fn rank(group: *const Group) u32 {
        return if (group.member.current) |current| current.rank else 0;
    }

    pub fn world_size(group: *const Group) u32 {
        return if (group.member.current) |current| current.world_size() else 0;
    }

    pub fn alive(group: *const Group) u32 {
        return if (group.member.current) |current| current.alive.count() else 0;
    }

    pub fn alive_mask(group: *const Group) base.Mask {
        return if (group.member.current) |current| current.alive else .empty;
    }

    pub fn members(group: *const Group) []const PeerId {
        return if (group.member.current) |current| current.ids else &.{};
    }

    /// The newcomers of the current epoch.
    pub fn joined(group: *const Group) []const PeerId {
        const current = group.member.current orelse return &.{};
        return current.ids[current.ids.len - current.joined ..];
    }

    /// Peers of the previous epoch that are not in the current epoch.
    pub fn left(group: *const Group) []const PeerId {
        return if (group.member.current) |current| current.left else &.{};
    }

    /// Members of the current epoch that have not passed the safe point at which it begins, as far
    /// as this peer knows.
    pub fn not_entered(group: *const Group) base.Mask {
        return if (group.member.current) |current| current.not_entered() else .empty;
    }

    /// How many newcomers wait for the next safe point.
    pub fn pending(group: *const Group) u32 {
        return group.member.newcomers_waiting();
    }

    /// How many operations are in flight or wait for their turn.
    pub fn in_flight(group: *const Group) u32 {
        return @intCast(group.member.in_flight());
    }
};

test "a state is known by its name until as many others as are kept were synced after it" {
    const gpa = std.testing.allocator;
    var synced: Synced = .{};
    defer synced.deinit(gpa);
    try std.testing.expectEqual(0, synced.expected(7));
    try synced.reserve(gpa);
    synced.note(7, 1);
    synced.note(8, 40);
    synced.note(7, 2);
    try std.testing.expectEqual(2, synced.expected(7));
    for (100..100 + limits.states_synced_max - 1) |tag| synced.note(tag, 1);
    try std.testing.expectEqual(2, synced.expected(7));
    try std.testing.expectEqual(0, synced.expected(8));
    synced.note(99, 1);
    try std.testing.expectEqual(0, synced.expected(7));
}

// The peers that this newcomer waits for, for an error text and for the log. membership.zig fills
// them in from the coordinator's messages; protocol/debt.zig finds the peers.

pub const Awaited = struct {
    why: control.Awaited.Why = .begin,
    /// How many peers the newcomer waits for in total.
    count: u32 = 0,
    /// The first of the awaited peers, as many as the coordinator named.
    named: [limits.awaited_told_max]Named = undefined,
    named_count: usize = 0,
    /// When the coordinator last named the awaited peers.
    at: base.Instant = 0,

    const Named = struct {
        id: base.PeerId,
        label: base.Label,
        /// The peer's rank in the epoch; null: the peer is in no epoch.
        rank: ?u16,

        pub fn format(it: *const Named, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const rank = it.rank orelse
                return writer.print("peer {s}{f}", .{ it.id.short(), &it.label });
            const ranked: base.Ranked = .{ .rank = rank, .id = it.id, .label = it.label };
            try ranked.format(writer);
        }
    };

    /// Whether the coordinator may have lost its connection to this peer.
    pub fn is_away(awaited: *const Awaited, id: base.PeerId) bool {
        if (awaited.why != .away) return false;
        for (awaited.named[0..awaited.named_count]) |*peer| if (peer.id.eql(id)) return true;
        return awaited.count > awaited.named_count; // `id` may be a peer that is not named
    }

    pub fn eql(a: *const Awaited, b: *const Awaited) bool {
        if (a.why != b.why) return false;
        if (a.count != b.count or a.named_count != b.named_count) return false;
        for (a.named[0..a.named_count], b.named[0..a.named_count]) |*one, *other|
            if (!one.id.eql(other.id)) return false;
        return true;
    }

    /// An error text that names the awaited peers. Empty if the coordinator's message is old,
    /// because the coordinator repeats it while the newcomer waits.
    pub fn text(awaited: *const Awaited, now: base.Instant, buffer: []u8) []const u8 {
        const is_old = now -| awaited.at >= 3 * limits.wait_told_ns_max;
        if (awaited.count == 0 or is_old) return "";
        var writer: std.Io.Writer = .fixed(buffer);
        writer.print("{f}", .{awaited}) catch {}; // a text that is too long is cut
        return writer.buffered();
    }

    pub fn format(awaited: *const Awaited, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        for (awaited.named[0..awaited.named_count], 0..) |*peer, index| {
            if (index > 0) try writer.writeAll(" and ");
            try peer.format(writer);
        }
        const more = awaited.count -| awaited.named_count;
        if (more > 0) try writer.print(" and {d} more", .{more});
        try writer.writeAll(switch (awaited.why) {
            .begin => " must call admit first: every peer must call it equally often",
            .safe_point => " must pass the next safe point (call admit) first: newcomers enter " ++
                "after all members have",
            .founders => " must ask for the group first: it begins when all its founders have",
            .in_flight => " must finish calls of the epoch before first: newcomers enter then",
            .away => " must come back to the coordinator first, or be lost at the silence " ++
                "limit: the connection to it has closed",
        });
    }
};

test "a peer is away by the coordinator's word alone, also where that has not named it" {
    const expect = std.testing.expect;
    var awaited: Awaited = .{ .why = .away, .count = 1, .named_count = 1 };
    awaited.named[0] = .{ .id = .from_int(1), .label = .{}, .rank = 0 };
    try expect(awaited.is_away(.from_int(1)));
    try expect(!awaited.is_away(.from_int(2)));
    awaited.count = 2;
    try expect(awaited.is_away(.from_int(2)));
    awaited.why = .begin;
    for (1..3) |id| try expect(!awaited.is_away(.from_int(id)));
}
