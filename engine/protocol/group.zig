//! Group, as the coordinator keeps it: its live epochs, the newcomers, and the round that lets them
//! in. It answers questions and changes nothing else. Rounds: rounds.zig; members that go:
//! departures.zig; members that come back: comebacks.zig; ways around broken links: detours.zig.
//! Events inside an epoch: epoch.zig shows the way.

const std = @import("std");
const base = @import("base");
const journal = @import("journal.zig");
const Broken = @import("broken.zig").Broken;
const Epoch = @import("epoch.zig").Epoch;
const Founding = @import("founding.zig").Founding;
const Look = @import("look.zig").Look;
const Newcomer = @import("newcomer.zig").Newcomer;
const Patience = @import("patience.zig").Patience;
const Peer = @import("peer.zig").Peer;
const Removals = @import("removals.zig").Removals;
const Roster = @import("roster.zig").Roster;
const Rounds = @import("peer.zig").Rounds;
const Unreached = @import("unreached.zig").Unreached;
const Allocator = std.mem.Allocator;

/// Since when newcomers wait for somebody's `admit`, and what was said of it (awaited.zig).
pub const Awaited = struct {
    /// Since when somebody waits; `never` while nobody does.
    since: base.Instant = base.never,
    told_at: base.Instant = 0,
    is_logged: bool = false,
};

/// The part of the log about how many are there (attendance.zig).
pub const Said = struct {
    /// So many are here; 0: nothing is to be said.
    here: u32 = 0,
    since: base.Instant = 0,
    /// The log says that they wait for long, perhaps for somebody who has ended.
    waits: bool = false,
};

pub const Group = struct {
    gpa: Allocator,
    id: u16,
    name: []u8,
    initial_world_size: u32,
    min_world_size: u32,
    prepare_ns: u64,
    /// Older epoch first; the last is the one that newcomers are added to.
    epochs: std.ArrayList(*Epoch) = .empty,
    last_epoch: u64 = 0,
    /// The last record about it (journaling.zig).
    recorded: u64 = 0,
    newcomers: std.ArrayList(Newcomer) = .empty,
    phase: Phase = .idle,
    /// Never used again, so that late answers are told apart.
    round: u64 = 0,
    round_deadline: base.Instant = base.never,
    round_began: base.Instant = 0,
    /// No other round begins earlier, unless a member was lost since the last one began.
    next_round_at: base.Instant = 0,
    lost_member: bool = false,
    /// Rounds since the last that made an epoch: the more, the longer until the next.
    fruitless: u6 = 0,
    /// Whom the round under way waits for; its deadline is theirs.
    waits_for: WaitsFor = .lanes,
    roster: Roster = .{},
    patience: Patience = .{},
    /// The next round is for the chosen newcomers only, so that those who come meanwhile hold
    /// nobody up.
    narrow: bool = false,
    /// A step of the round waits for memory.
    out_of_memory: bool = false,
    /// From a restart until all members are back or lost.
    recovering: bool = false,
    /// Members that are back already, and are answered when all are.
    returned: std.ArrayList(Returned) = .empty,
    /// Links between its peers that do not work, and when ways around them are looked for.
    broken: Broken = .{},
    look: Look = .{},
    /// The round for which a way around them was found, and the state of both then.
    found: Found = .{},
    removals: Removals = .{},
    /// Dials among its peers that came to nothing.
    unreached: Unreached = .{},
    /// Whose `admit` newcomers wait for.
    awaited: Awaited = .{},
    /// The part of the log about how many are there.
    attendance_said: Said = .{},
    /// It has had an epoch.
    had_members: bool = false,
    /// Those it is made of, where it does not take whoever comes.
    founding: ?Founding = null,

    pub const Phase = enum { idle, prepare, ask, activate };
    pub const WaitsFor = enum {
        /// All lanes; nobody could enter without the others.
        lanes,
        /// Lanes of the rest: some newcomers could enter without them.
        rest,
        /// Users: all lanes are open, and some wait to enter.
        users,
        /// Any user: all lanes are open.
        any_user,
    };

    /// At least between two rounds.
    pub const interval_ns: u64 = 100 * std.time.ns_per_ms;

    const Returned = struct { peer: *Peer, rounds: Rounds };
    pub const Found = struct { round: u64 = 0, gone: u32 = 0, changes: u64 = 0 };

    pub fn create(gpa: Allocator, options: Options) Allocator.Error!*Group {
        const group = try gpa.create(Group);
        errdefer gpa.destroy(group);
        group.* = .{
            .gpa = gpa,
            .id = options.id,
            .name = try gpa.dupe(u8, options.name),
            .initial_world_size = options.initial_world_size,
            .min_world_size = options.min_world_size,
            .prepare_ns = options.prepare_ns,
            .round = options.round,
            .founding = options.founding,
        };
        return group;
    }

    pub const Options = struct {
        id: u16,
        name: []const u8,
        initial_world_size: u32,
        min_world_size: u32,
        prepare_ns: u64,
        /// No round before was later.
        round: u64,
        /// The group's from then on.
        founding: ?Founding = null,
    };

    pub fn destroy(group: *Group) void {
        for (group.epochs.items) |epoch| epoch.destroy();
        group.epochs.deinit(group.gpa);
        group.newcomers.deinit(group.gpa);
        group.roster.deinit(group.gpa);
        group.patience.deinit(group.gpa);
        group.returned.deinit(group.gpa);
        group.broken.deinit(group.gpa);
        group.unreached.deinit(group.gpa);
        if (group.founding) |*founding| founding.deinit(group.gpa);
        group.gpa.free(group.name);
        group.gpa.destroy(group);
    }

    pub fn current(group: *const Group) ?*Epoch {
        return group.epochs.getLastOrNull();
    }

    pub fn epoch_of(group: *const Group, number: u64) ?*Epoch {
        for (group.epochs.items) |epoch| if (epoch.number == number) return epoch;
        return null;
    }

    pub fn newcomer_of(group: *const Group, peer: *const Peer) ?*Newcomer {
        for (group.newcomers.items) |*newcomer| if (newcomer.peer == peer) return newcomer;
        return null;
    }

    pub fn is_in_round(group: *const Group, peer: *const Peer) bool {
        const newcomer = group.newcomer_of(peer) orelse return false;
        return newcomer.in_round;
    }

    pub fn contains(group: *const Group, peer: *const Peer) bool {
        if (group.newcomer_of(peer) != null) return true;
        for (group.epochs.items) |epoch| if (epoch.rank_of(peer) != null) return true;
        return false;
    }

    /// The journal's record of it.
    pub fn record(group: *const Group) journal.GroupMade {
        return .{
            .id = group.id,
            .name = .of(group.name),
            .initial_world_size = group.initial_world_size,
            .last_epoch = group.last_epoch,
            .is_founded = group.founding != null,
        };
    }

    /// When the next round may begin, if there is one to begin. A loss begins one at once: members
    /// whose operation went on without the lost one find the new epoch at their next safe point.
    pub fn round_due(group: *const Group) base.Instant {
        if (group.lost_member) return 0;
        return if (group.narrow) group.round_began +| interval_ns else group.next_round_at;
    }

    /// Newcomers that a round needs, unless it closes gaps.
    pub fn least(group: *const Group) u32 {
        if (group.current()) |epoch| if (!epoch.alive.is_empty()) return 1;
        if (group.founding) |*founding| return founding.least(group.newcomers.items);
        return @max(group.initial_world_size, group.min_world_size);
    }

    /// A rank is empty, and somebody is left.
    pub fn has_gaps(group: *const Group) bool {
        const epoch = group.current() orelse return false;
        return !epoch.alive.is_empty() and epoch.alive.count() < epoch.members.len;
    }

    /// Whether the round under way has anybody left to enter an epoch.
    pub fn has_candidates(group: *const Group) bool {
        if (group.current() != null) return true;
        for (group.newcomers.items) |*newcomer| if (newcomer.in_round) return true;
        return false;
    }

    /// Epochs that nobody is in any more are over. The newest stays while it has members.
    pub fn drop_empty(group: *Group) void {
        var index = group.epochs.items.len;
        while (index > 0) {
            index -= 1;
            if (!group.epochs.items[index].inside().is_empty()) continue;
            group.epochs.orderedRemove(index).destroy();
        }
    }

    /// Whether this round, whose end the peer has not heard of, made it a member.
    pub fn was_let_in(group: *const Group, peer: *const Peer, round: u64) bool {
        for (group.epochs.items) |epoch| {
            if (epoch.began.round == round and epoch.rank_of(peer) != null) return true;
        }
        return false;
    }
};
