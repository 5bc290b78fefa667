//! Group: this peer's place in one group of the run, as the user's calls see it. The protocol is
//! protocol/member.zig's; the session fills this in.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const protocol = @import("protocol");
const wire = @import("wire");
const SharedState = @import("state.zig").State;
const Transfer = @import("state.zig").Transfer;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// The states of which a member has committed a sync, by the tags that follow from their names. A
/// state that is made anew under its name is the same one. The last of them are kept.
pub const Synced = struct {
    /// The one that was synced last is at the end.
    items: std.ArrayList(Item) = .empty,

    const Item = struct { tag: u64, expected: u64 };

    /// Makes room for all that are kept.
    pub fn reserve(synced: *Synced, gpa: Allocator) Allocator.Error!void {
        try synced.items.ensureTotalCapacityPrecise(gpa, limits.states_synced_max);
    }

    pub fn deinit(synced: *Synced, gpa: Allocator) void {
        synced.items.deinit(gpa);
    }

    /// The revision that follows the last commit; 0: there was none.
    pub fn expected(synced: *const Synced, tag: u64) u64 {
        return synced.items.items[synced.find(tag) orelse return 0].expected;
    }

    /// A sync is committed; there is room.
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
    /// Its Session, which is made of groups: the actions of the member find it here (control.zig).
    session: *anyopaque,
    /// No other group of the session has it.
    number: u64,
    /// The caller's to use.
    user: usize = 0,
    name: []u8,
    initial_world_size: u32,
    /// The peers that it is made of, where it does not take whoever comes.
    founding: ?Founding = null,
    /// Given by the coordinator.
    id: ?u16 = null,
    member: protocol.Member,
    state: State = .joining,
    /// The answer to its join has not come on this connection (membership.zig: present).
    asks: bool = false,
    /// The user holds the group no more: it stays until that answer has come.
    is_released: bool = false,
    admit_deadline: base.Instant = base.never,
    /// Members of the epoch that the round under way makes: they may begin it before this peer is
    /// told.
    round_members: std.ArrayList(PeerId) = .empty,
    /// Peers whose lanes the round under way waits for.
    round_peers: std.ArrayList(PeerId) = .empty,
    /// The peers among them whose lanes are not open, as the coordinator was told; room for all.
    missing_told: std.ArrayList(wire.control.Missing) = .empty,
    /// When it is told next, if anything is missing then.
    report_at: base.Instant = base.never,
    ready_told: bool = false,
    /// The last that the coordinator has said of a group that waits for more peers to begin.
    attendance: ?Attendance = null,
    /// The epoch that the log last said this peer is in.
    entry_said: u64 = 0,
    /// Peers for which this one, a newcomer, waits, as the coordinator has said last.
    awaited: Awaited = .{},
    /// When the log last said for whom a call waits.
    wait_said_at: base.Instant = 0,
    /// The user wants to enter, and waits for what is fetched before (sync.zig).
    admit_waits: bool = false,
    vote: Vote = .{},
    /// Why the coordinator has let this peer go; see `why_removed`.
    removed_storage: [removed_bytes_max]u8 = undefined,
    removed_length: usize = 0,
    /// The call that this peer, which is new, should have made, and who has made it.
    wanted: ?Wanted = null,
    /// The rates of the links of its newest epoch, once any was told.
    measured: ?*Measured = null,
    /// The user's, who destroys them before the group is released.
    states: std.ArrayList(Shared) = .empty,
    /// States that this peer has synced here, and in sub-groups of this group.
    synced: Synced = .{},
    synced_below: Synced = .{},

    pub const State = enum { joining, joined, left };
    pub const Measured = struct { epoch: u64, matrix: collective.Matrix = .{} };
    pub const Wanted = struct {
        op: wire.control.OpId,
        peer: PeerId,
        descriptor: wire.control.Descriptor,
    };
    /// Members of an epoch of another group.
    pub const Founding = struct {
        parent: []u8,
        epoch: u64,
        /// In rank order.
        members: []PeerId,
        /// The number of the group that the parent comes from, or of the parent.
        root: u64,
        /// This peer was new in the parent.
        is_new: bool,
    };
    pub const Attendance = struct { here: u32, needed: u32, emptied: bool };
    /// A state that the user shares with the group.
    pub const Shared = struct {
        group: *Group,
        state: *SharedState,
        /// The fetch of this peer before it enters (sync.zig).
        prefetch: ?*Transfer = null,
    };
    const removed_bytes_max = limits.expelled_bytes_max;

    /// A safe point that all members pass together (membership.zig).
    pub const Vote = struct {
        /// Whether this peer knows of an epoch that begins at this safe point, and whether all do.
        own: u32 = 0,
        all: u32 = 0,
        /// The operation of the members, while there is one.
        op: ?*protocol.Op = null,
        /// The user waits for what all agree on.
        is_wanted: bool = false,
        /// It has come to something.
        is_news: bool = false,
        /// Agreed: a new epoch begins at the safe point, which is not passed yet, or it does not.
        agreed: ?bool = null,
        /// For whom a call that ran out of time has waited.
        late_storage: [late_bytes_max]u8 = undefined,
        late_length: usize = 0,

        const late_bytes_max = 400;

        /// Half a sentence, or nothing.
        pub fn why_late(vote: *const Vote) []const u8 {
            return vote.late_storage[0..vote.late_length];
        }

        /// An earlier call has run out of time, and others may have passed the safe point.
        pub fn is_open(vote: *const Vote) bool {
            return vote.op != null or vote.agreed != null;
        }
    };

    /// As a newcomer tells them: a member is one, whoever the founders were.
    pub fn founders(group: *const Group) wire.control.Founders {
        const founding = if (group.founding) |*it| it else return .{};
        if (group.member.newest() > 0) return .{};
        return .{
            .parent = .of(founding.parent),
            .epoch = founding.epoch,
            .members = .of(founding.members),
        };
    }

    /// In the coordinator's words, as they can be shown. Set once, before anybody is told that the
    /// membership is over.
    pub fn removed(group: *Group, why: []const u8) void {
        group.removed_length = base.text.show(why, &group.removed_storage).len;
    }

    pub fn why_removed(group: *const Group) []const u8 {
        return group.removed_storage[0..group.removed_length];
    }

    /// Another round begins, or this peer is in: who is away now is told anew.
    pub fn forget_away(group: *Group) void {
        if (group.awaited.why == .away) group.awaited = .{};
    }

    /// Whether this peer, which is a member, has come with the current epoch; in a sub-group,
    /// whether it had come to the parent so when it named the founders.
    pub fn is_newcomer(group: *const Group) bool {
        if (group.founding) |*founding| return founding.is_new;
        const current = group.member.current.?;
        return current.rank >= current.ids.len - current.joined;
    }

    /// Whether a peer is in an epoch of this one or in the round under way.
    pub fn knows(group: *const Group, id: PeerId) bool {
        for (group.round_members.items) |member| if (member.eql(id)) return true;
        for (group.member.epochs) |slot| if (slot) |item| {
            if (item.rank_of(id) != null) return true;
        };
        return false;
    }

    /// Whether it must stay known where this peer is dialed, and what it is called.
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

    /// The user waits in an admit.
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

    /// Peers that are new in the current epoch.
    pub fn joined(group: *const Group) []const PeerId {
        const current = group.member.current orelse return &.{};
        return current.ids[current.ids.len - current.joined ..];
    }

    /// Peers of the epoch before that are gone.
    pub fn left(group: *const Group) []const PeerId {
        return if (group.member.current) |current| current.left else &.{};
    }

    /// Members of the current epoch that have not come to its safe point, as far as this peer
    /// knows.
    pub fn not_entered(group: *const Group) base.Mask {
        return if (group.member.current) |current| current.not_entered() else .empty;
    }

    /// Newcomers that wait for the next safe point.
    pub fn pending(group: *const Group) u32 {
        return group.member.newcomers_waiting();
    }

    /// Those that wait for their turn included.
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

// ---- peers that a newcomer waits for
//
// Peers for which this one, a newcomer, waits, by the coordinator's word: for an error and for the
// log. membership.zig takes it; protocol/debt.zig finds the peers.

pub const Awaited = struct {
    why: control.Awaited.Why = .begin,
    count: u32 = 0,
    named: [limits.awaited_told_max]Named = undefined,
    named_count: usize = 0,
    at: base.Instant = 0,

    const Named = struct {
        id: base.PeerId,
        label: base.Label,
        /// Null: it is in no epoch.
        rank: ?u16,

        pub fn format(it: *const Named, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const rank = it.rank orelse
                return writer.print("peer {s}{f}", .{ it.id.short(), &it.label });
            const ranked: base.Ranked = .{ .rank = rank, .id = it.id, .label = it.label };
            try ranked.format(writer);
        }
    };

    /// The coordinator has lost this peer's connection.
    pub fn is_away(awaited: *const Awaited, id: base.PeerId) bool {
        if (awaited.why != .away) return false;
        for (awaited.named[0..awaited.named_count]) |*peer| if (peer.id.eql(id)) return true;
        return awaited.count > awaited.named_count; // it may be one that is not named
    }

    pub fn eql(a: *const Awaited, b: *const Awaited) bool {
        if (a.why != b.why) return false;
        if (a.count != b.count or a.named_count != b.named_count) return false;
        for (a.named[0..a.named_count], b.named[0..a.named_count]) |*one, *other|
            if (!one.id.eql(other.id)) return false;
        return true;
    }

    /// For an error; nothing where it was long ago: it is said again and again while it lasts.
    pub fn text(awaited: *const Awaited, now: base.Instant, buffer: []u8) []const u8 {
        const is_old = now -| awaited.at >= 3 * limits.wait_told_ns_max;
        if (awaited.count == 0 or is_old) return "";
        var writer: std.Io.Writer = .fixed(buffer);
        writer.print("{f}", .{awaited}) catch {}; // cut
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
