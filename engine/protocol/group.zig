//! Group, as the coordinator keeps it: its live epochs, the newcomers, and the round that lets them
//! in.
//!
//! A round has four phases. prepare: members and newcomers open lanes to each other while they
//! work; when the first can go on, the others have a little time, and then the round begins again
//! without them (roster.zig, patience.zig). ask: members tell how many safe points they have
//! passed, and stop at their next one. activate: the epoch begins at the largest count plus one, as
//! far as that can be believed (epoch.zig: last_safe_point). Then every member says that it has
//! entered, and the next round may start. A loss is followed by such a round too, without
//! newcomers: ranks are dense again from the next safe point on. Events inside an epoch are
//! epoch.zig's.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const attempts = @import("attempts.zig");
const attendance = @import("attendance.zig");
const awaited_file = @import("awaited.zig");
const entering_file = @import("entering.zig");
const founding_file = @import("founding.zig");
const journal = @import("journal.zig");
const labels = @import("labels.zig");
const misfit = @import("misfit.zig");
const plan = @import("plan.zig");
const recovery = @import("recovery.zig");
const stall = @import("stall.zig");
const turns = @import("turns.zig");
const Broken = @import("broken.zig").Broken;
const Epoch = @import("epoch.zig").Epoch;
const Look = @import("look.zig").Look;
const ProtocolError = @import("epoch.zig").ProtocolError;
const Circular = @import("coordinator.zig").Circular;
const Founding = founding_file.Founding;
const Patience = @import("patience.zig").Patience;
const Peer = @import("coordinator.zig").Peer;
const Removals = @import("removals.zig").Removals;
const Roster = @import("roster.zig").Roster;
const unreached_file = @import("unreached.zig");
const Coordinator = @import("coordinator.zig").Coordinator;
const Allocator = std.mem.Allocator;
const control = wire.control;
const PeerId = base.PeerId;

pub const Newcomer = struct {
    peer: *Peer,
    in_round: bool = false,
    /// It has its lanes.
    prepared: bool = false,
    /// Its user waits to enter.
    entering: bool = false,
    /// The same over all rounds, and that it had its lanes in one of them (awaited.zig).
    wants: bool = false,
    was_ready: bool = false,
    /// Others would not wait for it any more: it is left out until its user comes, or it is alone.
    dawdles: bool = false,
    /// The next round is for those who could go on when this one ended.
    chosen: bool = false,
    /// How many it was told are there (attendance.zig); 0: it was not.
    here_told: u32 = 0,
};

/// Some peers in a line of the log.
const Listed = struct {
    group: *const Group,
    ids: []const PeerId,

    const shown_max = 6;

    pub fn format(listed: Listed, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (listed.ids.len == 0) return writer.writeAll("nobody");
        for (listed.ids[0..@min(listed.ids.len, shown_max)], 0..) |id, index| {
            if (index > 0) try writer.writeAll(", ");
            try writer.print("{f}", .{listed.group.named(id)});
        }
        if (listed.ids.len <= shown_max) return;
        try writer.print(" and {d} more", .{listed.ids.len - shown_max});
    }
};

pub const Group = struct {
    gpa: Allocator,
    /// Says what happens here.
    coordinator: *Coordinator,
    id: u16,
    name: []u8,
    initial_world_size: u32,
    min_world_size: u32,
    prepare_ns: u64,
    /// Older epoch first; the last is the one that newcomers are added to.
    epochs: std.ArrayList(*Epoch) = .empty,
    last_epoch: u64 = 0,
    /// The last record about it (recovery.zig).
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
    unreached: unreached_file.Unreached = .{},
    /// Whose `admit` newcomers wait for.
    awaited: awaited_file.Awaited = .{},
    /// The part of the log about how many are there.
    attendance_said: attendance.Said = .{},
    /// It has had an epoch.
    had_members: bool = false,
    /// Those it is made of, where it does not take whoever comes.
    founding: ?Founding = null,

    pub const Phase = enum { idle, prepare, ask, activate };
    const WaitsFor = enum {
        /// All lanes; nobody could enter without the others.
        lanes,
        /// Lanes of the rest: some newcomers could enter without them.
        rest,
        /// Users: all lanes are open, and some wait to enter.
        users,
        /// Any user: all lanes are open.
        any_user,
    };

    /// Newcomers of one round, where members must open lanes to them.
    const newcomers_per_round = 32;
    const interval_ns: u64 = 100 * std.time.ns_per_ms;
    const doublings_max = 4;

    /// Rounds whose end a member waits for; 0: none.
    pub const Rounds = struct { preparing: u64, stopping: u64 };
    const Returned = struct { peer: *Peer, rounds: Rounds };
    const Found = struct { round: u64 = 0, gone: u32 = 0, changes: u64 = 0 };

    pub fn create(gpa: Allocator, options: Options) Allocator.Error!*Group {
        const group = try gpa.create(Group);
        errdefer gpa.destroy(group);
        group.* = .{
            .gpa = gpa,
            .coordinator = options.coordinator,
            .id = options.id,
            .name = try gpa.dupe(u8, options.name),
            .initial_world_size = options.initial_world_size,
            .min_world_size = options.min_world_size,
            .prepare_ns = options.prepare_ns,
            .round = options.coordinator.first_round(),
            .founding = options.founding,
        };
        return group;
    }

    pub const Options = struct {
        coordinator: *Coordinator,
        id: u16,
        name: []const u8,
        initial_world_size: u32,
        min_world_size: u32,
        prepare_ns: u64,
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

    /// A peer, perhaps one that is gone, in a line of the log.
    pub fn named(group: *const Group, id: PeerId) base.Named {
        if (group.coordinator.peer_of(id)) |peer| return peer.named();
        for (group.epochs.items) |epoch| if (epoch.ranks.get(id)) |rank|
            return .{ .id = id, .label = epoch.members[rank].label().* };
        return .{ .id = id, .label = .{} };
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

    // ---- restarts

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

    /// Gives the journal a record about it: what is said of the group waits for that.
    pub fn note(group: *Group, entry: journal.Record) u64 {
        group.recorded = group.coordinator.record(entry);
        return group.recorded;
    }

    /// It was made from a journal: whoever is a member has to come back first.
    pub fn restored(group: *Group) void {
        group.round = group.coordinator.first_round();
        group.had_members = group.current() != null;
        group.drop_empty();
        group.recovering = group.epochs.items.len > 0;
        for (group.epochs.items) |epoch| epoch.restored(group.coordinator.incarnation - 1);
    }

    // ---- rounds

    pub fn add(group: *Group, now: base.Instant, peer: *Peer, initial: u32) Allocator.Error!void {
        if (initial > 0) group.initial_world_size = initial;
        try group.newcomers.append(group.gpa, .{ .peer = peer });
        if (group.phase == .prepare) switch (group.waits_for) {
            .rest, .users => {},
            // It waits for nobody in particular, so it lets this one in.
            .any_user => group.release(),
            // Nobody can enter yet: the next round has this one, so it must not be long in coming.
            .lanes => group.round_deadline = @min(
                group.round_deadline,
                @max(now, group.round_began +| group.patience_ns()),
            ),
        };
        group.advance(now);
    }

    /// How long those who can enter wait for those who can not yet.
    fn patience_ns(group: *const Group) u64 {
        return group.prepare_ns / 5;
    }

    /// Starts a round if one is due, and moves it on. Each step first has all its memory: without
    /// it nothing has changed, and the next tick tries again.
    pub fn advance(group: *Group, now: base.Instant) void {
        group.step(now) catch {
            group.out_of_memory = true; // the coordinator says so at its tick
        };
    }

    fn step(group: *Group, now: base.Instant) Allocator.Error!void {
        try group.start_round(now);
        try group.evaluate(now);
    }

    /// Starts a round if nothing is under way and somebody waits, or a rank is empty.
    fn start_round(group: *Group, now: base.Instant) Allocator.Error!void {
        if (group.phase != .idle or group.epochs.items.len > 1 or group.recovering) return;
        if (group.awaits_address()) return;
        if (now < group.round_due() or !group.take_newcomers(now)) return;
        errdefer group.take_nobody();
        const peers = try group.future_members();
        defer group.gpa.free(peers);
        const epoch = group.current();
        try group.roster.begin(group.gpa, peers, .{
            .members = if (epoch) |it| it.alive.count() else 0,
            .members_meet = epoch == null or
                epoch.?.members.len <= base.limits.full_mesh_max,
        });
        group.round += 1;
        group.send_prepare(peers);
        if (epoch) |it| it.stopping = .empty;
        group.ask_members(now);
        // They open lanes anew, and what comes of that is said then.
        for (group.newcomers.items) |*newcomer| {
            if (newcomer.in_round) group.broken.forget(newcomer.peer.id);
        }
        group.phase = .prepare;
        group.waits_for = .lanes;
        group.round_began = now;
        const doublings = @min(group.fruitless, doublings_max);
        // Where it was too short for the first epoch, it is longer the next time: nobody waits who
        // could do without.
        const is_first = group.roster.members == 0;
        group.round_deadline = now +| (group.prepare_ns <<| if (is_first) doublings else 0);
        group.lost_member = false;
        // As in `add`: others wait for it to end.
        if (!is_first and !group.narrow and group.leaves_some_out(now))
            group.round_deadline = now +| group.patience_ns();
        group.next_round_at = now +| (interval_ns << doublings);
        group.fruitless +|= 1;
    }

    /// When the next round may begin, if there is one to begin. A loss begins one at once: members
    /// whose operation went on without the lost one find the new epoch at their next safe point.
    pub fn round_due(group: *const Group) base.Instant {
        if (group.lost_member) return 0;
        return if (group.narrow) group.round_began +| interval_ns else group.next_round_at;
    }

    /// Marks the newcomers of the next round. False: there is none to begin.
    fn take_newcomers(group: *Group, now: base.Instant) bool {
        const members = if (group.current()) |epoch| epoch.alive.count() else 0;
        const gaps = group.has_gaps();
        const needed = group.least();
        if (group.narrow) {
            const chosen = group.mark(now, .chosen, base.limits.peers_max);
            if (chosen >= needed or gaps) return true;
            group.forget_chosen();
        }
        // In the first round of a large world nobody has an epoch that its size could hold up.
        const most: u32 = if (members == 0) base.limits.peers_max else @min(
            newcomers_per_round,
            base.limits.peers_max - members,
        );
        if (group.mark(now, .prompt, most) >= needed or gaps) return true;
        // Dawdlers come along only where there is nothing else to do.
        if (group.mark(now, .all, most) >= needed) return true;
        // Nothing can begin without those who have failed: only they have to wait for it.
        if (members == 0 and group.mark(now, .waiting, most) >= needed) return true;
        group.take_nobody();
        return false;
    }

    fn take_nobody(group: *Group) void {
        for (group.newcomers.items) |*newcomer| newcomer.in_round = false;
    }

    const Which = enum { chosen, prompt, all, waiting };

    fn mark(group: *Group, now: base.Instant, which: Which, most: u32) u32 {
        var buffer: [base.limits.peers_max]turns.Candidate = undefined;
        var count: u32 = 0;
        for (group.newcomers.items, 0..) |*newcomer, index| {
            newcomer.prepared = false;
            newcomer.entering = false;
            newcomer.in_round = false;
            if (!switch (which) {
                .chosen => newcomer.chosen,
                .prompt => !newcomer.dawdles and group.is_due(newcomer, now),
                .all => group.is_due(newcomer, now),
                .waiting => true,
            }) continue;
            buffer[count] = .{
                .index = @intCast(index),
                .source = newcomer.peer.source,
                .has_failed = group.patience.until(newcomer.peer.id) > 0,
            };
            count += 1;
        }
        const candidates = buffer[0..count];
        if (count > most) turns.order(candidates);
        const taken = @min(count, most);
        for (candidates[0..taken]) |*candidate|
            group.newcomers.items[candidate.index].in_round = true;
        return taken;
    }

    /// Some who could be in the round under way are not, because it has not room for them.
    fn leaves_some_out(group: *const Group, now: base.Instant) bool {
        for (group.newcomers.items) |*newcomer| {
            const is_out = !newcomer.in_round and !newcomer.dawdles;
            if (is_out and group.is_due(newcomer, now)) return true;
        }
        return false;
    }

    fn is_due(group: *const Group, newcomer: *const Newcomer, now: base.Instant) bool {
        return group.patience.until(newcomer.peer.id) <= now;
    }

    /// The next round is for all who have come by then, and soon.
    fn open_to_all(group: *Group) void {
        group.fruitless = 0;
        group.next_round_at = group.round_began +| interval_ns;
        group.forget_chosen();
    }

    fn forget_chosen(group: *Group) void {
        group.narrow = false;
        for (group.newcomers.items) |*newcomer| newcomer.chosen = false;
    }

    /// Newcomers that a round needs, unless it closes gaps.
    pub fn least(group: *const Group) u32 {
        if (group.current()) |epoch| if (!epoch.alive.is_empty()) return 1;
        if (group.founding) |*founding| return founding.least(group.newcomers.items);
        return @max(group.initial_world_size, group.min_world_size);
    }

    /// Newcomers could not dial some member yet.
    fn awaits_address(group: *const Group) bool {
        const epoch = group.current() orelse return false;
        for (epoch.members) |*member| if (member.peer) |peer| {
            if (addresses.is_awaited(peer)) return true;
        };
        return false;
    }

    /// A rank is empty, and somebody is left.
    fn has_gaps(group: *const Group) bool {
        const epoch = group.current() orelse return false;
        return !epoch.alive.is_empty() and epoch.alive.count() < epoch.members.len;
    }

    fn entering(group: *const Group) u32 {
        var count: u32 = 0;
        for (group.newcomers.items) |*newcomer| {
            count += @intFromBool(newcomer.in_round and newcomer.entering);
        }
        return count;
    }

    /// Members hear who is new, newcomers who all are, and each the addresses of those to which it
    /// is to have lanes.
    fn send_prepare(group: *Group, peers: []const *Peer) void {
        var places: [base.limits.full_mesh_max]usize = undefined;
        var entries: [base.limits.full_mesh_max]control.MemberEntry = undefined;
        var rooms: [base.limits.full_mesh_max]addresses.Room = undefined;
        var buffer: [base.limits.peers_max]PeerId = undefined;
        for (peers, 0..) |peer, index| {
            const linked = group.roster.linked(index, &places);
            for (linked, entries[0..linked.len], rooms[0..linked.len]) |place, *entry, *room| {
                const other = peers[place];
                entry.* = .{ .id = other.id, .address = .of(addresses.told_to(peer, other, room)) };
            }
            const is_member = index < group.roster.members;
            const known = if (is_member) group.roster.members else 0;
            peer.send(group.id, .{ .prepare = .{
                .group = group.id,
                .round = group.round,
                .members = .of(group.roster.ids_from(known, &buffer)),
                .links = .of(entries[0..linked.len]),
            } });
        }
        labels.tell(group.id, peers, group.roster.members);
    }

    /// Members of the next epoch in rank order: incumbents as they are, then newcomers by id, or
    /// founders as they are named.
    fn future_members(group: *Group) Allocator.Error![]*Peer {
        var peers: std.ArrayList(*Peer) = .empty;
        errdefer peers.deinit(group.gpa);
        if (group.current()) |epoch| for (epoch.members) |*member| {
            if (member.peer) |peer| try peers.append(group.gpa, peer);
        };
        const incumbents = peers.items.len;
        for (group.newcomers.items) |*newcomer| {
            if (newcomer.in_round) try peers.append(group.gpa, newcomer.peer);
        }
        if (group.founding) |*founding| {
            const order: *const Founding = founding;
            std.mem.sort(*Peer, peers.items[incumbents..], order, Founding.less_than);
        } else std.mem.sort(*Peer, peers.items[incumbents..], {}, Peer.less_than);
        return peers.toOwnedSlice(group.gpa);
    }

    /// Whether the round under way has anybody left to enter an epoch.
    fn has_candidates(group: *const Group) bool {
        if (group.current() != null) return true;
        for (group.newcomers.items) |*newcomer| if (newcomer.in_round) return true;
        return false;
    }

    pub fn on_prepared(
        group: *Group,
        now: base.Instant,
        peer: *Peer,
        body: *const control.Prepared,
    ) void {
        const newcomer = group.newcomer_of(peer);
        if (newcomer) |item| {
            if (body.entering) item.dawdles = false;
            item.wants = body.entering;
            item.was_ready = item.was_ready or body.missing.count == 0;
        }
        if (body.round != group.round or group.phase != .prepare) return;
        group.roster.hear(peer.id, &body.missing);
        unreached_file.prepared(group, now, peer, &body.missing);
        if (newcomer) |item| {
            item.prepared = body.missing.count == 0;
            item.entering = body.entering;
        }
        group.advance(now);
    }

    pub fn on_safe_points(
        group: *Group,
        now: base.Instant,
        peer: *Peer,
        round: u64,
        count: u64,
    ) !void {
        if (round != group.round or group.phase != .ask) return;
        const epoch = group.current() orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        epoch.members[rank].safe_points = count;
        epoch.stopping.set(rank);
        group.advance(now);
    }

    /// Moves the round on if everybody it waits for has answered.
    fn evaluate(group: *Group, now: base.Instant) Allocator.Error!void {
        if (group.phase == .prepare) {
            if (group.roster.waits()) return group.hurry(now);
            // Only those who have gone since are missed.
            if (!group.roster.is_whole()) return group.begin_again(now, .lanes);
            const is_left_out = try group.leave_out_unreachable(now) orelse return;
            if (is_left_out) return group.start_round(now);
            const some = group.entering();
            if (some < group.roster.newcomers()) {
                // Lanes are open: from here on it is their users who take their time.
                // Founders enter together or not at all.
                const others_wait = group.has_gaps() or (some > 0 and group.founding == null);
                return group.wait_for(now, if (others_wait) .users else .any_user);
            }
            group.phase = .ask;
            group.round_deadline = now +| group.coordinator.options.silence_ns;
            if (group.current()) |epoch| epoch.broadcast(.{ .ask_safe_points = .{
                .group = group.id,
                .round = group.round,
            } });
            group.ask_members(now);
        }
        if (group.phase == .ask) {
            const last = if (group.current()) |epoch| epoch.last_safe_point() orelse return else 0;
            try group.activate(now, last + 1);
        }
        if (group.phase == .activate) {
            const epoch = group.current().?;
            if (!epoch.activated.covers(&epoch.alive)) return;
            group.phase = .idle;
            try group.start_round(now);
        }
    }

    /// Lanes are missing. Once some newcomers could enter without the others, or members go on by
    /// themselves, the rest has little time.
    fn hurry(group: *Group, now: base.Instant) void {
        if (group.roster.silent_members > 0) return;
        const found = group.fit();
        const all_fit = found.count == group.roster.newcomers();
        if (all_fit or (found.count < group.least() and !group.has_gaps())) return;
        group.wait_for(now, .rest);
    }

    fn wait_for(group: *Group, now: base.Instant, whom: WaitsFor) void {
        if (group.waits_for == whom) return;
        group.waits_for = whom;
        if (whom == .any_user) group.open_to_all();
        group.round_deadline = switch (whom) {
            .lanes => unreachable, // that is how a round begins
            .rest => @min(group.round_deadline, now +| group.patience_ns()),
            .users => now +| group.patience_ns(),
            .any_user => base.never,
        };
    }

    fn fit(group: *const Group) Roster.Fit {
        var buffer: [base.limits.peers_max]PeerId = undefined;
        var count: usize = 0;
        for (group.newcomers.items) |*newcomer| if (newcomer.in_round) {
            buffer[count] = newcomer.peer.id;
            count += 1;
        };
        return group.roster.fit(buffer[0..count]);
    }

    /// The round begins again with those who are ready. By their lanes alone, or by their users as
    /// well: those whose lanes are not open wait before they are tried again.
    fn begin_again(
        group: *Group,
        now: base.Instant,
        by: enum { lanes, users },
    ) Allocator.Error!void {
        const found = group.fit();
        for (group.newcomers.items) |*newcomer| {
            if (!newcomer.in_round) continue;
            newcomer.chosen = group.roster.has(&found, newcomer.peer.id);
            if (!newcomer.chosen) {
                group.patience.lose(group.gpa, newcomer.peer.id, now);
            } else if (by == .users and !newcomer.entering) {
                newcomer.chosen = false;
                newcomer.dawdles = true;
            }
        }
        group.narrow = true;
        group.release();
        try group.start_round(now);
    }

    /// The time of a preparation is over. If nobody can be left out, it goes on: members have to
    /// find out what has become of their own links.
    fn end_preparation(group: *Group, now: base.Instant) Allocator.Error!void {
        if (group.waits_for == .users) return group.begin_again(now, .users);
        if (group.fit().count < group.roster.newcomers()) return group.begin_again(now, .lanes);
        group.round_deadline = now +| group.prepare_ns;
    }

    fn activate(group: *Group, now: base.Instant, safe_point: u64) Allocator.Error!void {
        const peers = try group.future_members();
        defer group.gpa.free(peers);
        var ids: std.ArrayList(PeerId) = .empty;
        defer ids.deinit(group.gpa);
        for (peers) |peer| try ids.append(group.gpa, peer.id);
        var left: std.ArrayList(PeerId) = .empty;
        defer left.deinit(group.gpa);
        var incumbents: u32 = 0;
        const before = group.current();
        if (before) |epoch| for (epoch.members) |*member| {
            if (member.peer == null) try left.append(group.gpa, member.id) else incumbents += 1;
        };
        try group.epochs.ensureUnusedCapacity(group.gpa, 1);
        const number = @max(group.last_epoch + 1, group.coordinator.first_epoch());
        const epoch = try Epoch.create(group, number, peers, .{
            .round = group.round,
            .safe_point = safe_point,
            .joined = @intCast(peers.len - incumbents),
            .left = left.items,
        });
        var instances: [base.limits.peers_max]u64 = undefined;
        epoch.recorded = group.note(epoch.record(ids.items, &instances));
        group.epochs.appendAssumeCapacity(epoch);
        group.last_epoch = number;
        group.had_members = true;
        group.phase = .activate;
        group.round_deadline = base.never;
        group.open_to_all();
        var kept: usize = 0;
        for (group.newcomers.items) |newcomer| {
            if (newcomer.in_round) {
                group.patience.forget(newcomer.peer.id);
                continue;
            }
            group.newcomers.items[kept] = newcomer;
            kept += 1;
        }
        group.newcomers.shrinkRetainingCapacity(kept);
        epoch.announce_to_all(ids.items, if (before) |old| old.number else 0);
        // The name comes last: it may be long, and the end of a long line is cut.
        const begins = "epoch {d} begins with world size {d} (joined: {f}; left: {f}) in group {s}";
        group.coordinator.log(.info, begins, .{
            number,
            peers.len,
            Listed{ .group = group, .ids = ids.items[incumbents..] },
            Listed{ .group = group, .ids = left.items },
            group.name,
        });
        group.drop_empty();
        group.look_soon(now);
    }

    pub fn on_activated(group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
        const epoch = group.epoch_of(number) orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        epoch.activated.set(rank);
        entering_file.entered(epoch, rank);
        group.advance(now);
    }

    pub fn on_closed(group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
        const epoch = group.epoch_of(number) orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        // One that has entered no later one has closed nothing.
        const later = group.current().?;
        const place = later.rank_of(peer) orelse return;
        if (epoch == later or !later.activated.has(place)) return error.Unexpected;
        try epoch.on_closed(rank);
        group.drop_empty();
        group.advance(now);
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

    fn ask_members(group: *Group, now: base.Instant) void {
        const epoch = group.current() orelse return;
        for (epoch.members) |*member| {
            if (member.peer) |peer| member.round_asked.ask(peer, now);
        }
    }

    /// Lanes that are there or missing, and safe points, are told at once, whatever the user does:
    /// while they are not, newcomers wait, and in the end all others stop.
    fn let_go_mute(group: *Group, now: base.Instant, silence_ns: u64, late: bool) void {
        const epoch = group.current() orelse return;
        const prepares = group.phase == .prepare;
        if (!prepares and group.phase != .ask) return;
        for (epoch.members, 0..) |*member, rank| {
            const peer = member.peer orelse continue;
            const has_answered = if (prepares)
                group.roster.has_spoken(peer.id)
            else
                epoch.stopping.has(rank);
            if (has_answered or !peer.is_present(group.id)) continue;
            if (!member.round_asked.is_overdue(peer, now, silence_ns, late)) continue;
            peer.doom(if (prepares)
                "it does not say which lanes it has"
            else
                "it does not say how many safe points it has passed");
        }
    }

    /// Ends a preparation.
    fn release(group: *Group) void {
        if (group.phase != .prepare and group.phase != .ask) return;
        const message: control.Message = .{ .release = .{
            .group = group.id,
            .round = group.round,
        } };
        if (group.current()) |epoch| epoch.broadcast(message);
        for (group.newcomers.items) |*newcomer| {
            if (!newcomer.in_round) continue;
            newcomer.peer.send(group.id, message);
            newcomer.in_round = false;
        }
        group.phase = .idle;
        group.round_deadline = base.never;
    }

    // ---- losses

    /// The peer's connection ended: it is told nothing more until it comes back.
    pub fn gone_away(group: *Group, now: base.Instant, peer: *const Peer, why: []const u8) void {
        for (group.returned.items, 0..) |item, index| if (item.peer == peer) {
            _ = group.returned.swapRemove(index);
            break;
        };
        group.remove_newcomer(now, peer, why);
    }

    /// It waits no more to become a member.
    fn remove_newcomer(
        group: *Group,
        now: base.Instant,
        peer: *const Peer,
        why: []const u8,
    ) void {
        const index = for (group.newcomers.items, 0..) |*newcomer, index| {
            if (newcomer.peer == peer) break index;
        } else return;
        group.coordinator.log(.info, "peer {f} does not wait any more: {s}; group {s}", .{
            peer.named(),
            why,
            group.name,
        });
        group.broken.forget(peer.id);
        group.unreached.forget(peer.id);
        const gone = group.newcomers.orderedRemove(index);
        if (gone.in_round) {
            group.patience.lose(group.gpa, peer.id, now);
            group.roster.leave(peer.id);
            if (!group.can_go_on()) group.release();
        }
        group.advance(now);
    }

    /// A newcomer has gone from the round under way. Whoever comes and goes must not have the
    /// others begin anew each time: they go on, if enough are left, and none has stopped for an
    /// epoch in which it would have other neighbours.
    fn can_go_on(group: *const Group) bool {
        const places = group.roster.places.items.len;
        if (group.phase == .ask and places > base.limits.full_mesh_max) return false;
        return group.roster.newcomers() >= group.least() or group.has_gaps();
    }

    /// The peer is gone from this group: lost, or it left. `why`, for the log, and for the peer if
    /// it comes back.
    pub fn remove(group: *Group, now: base.Instant, peer: *Peer, why: []const u8) !void {
        group.gone_away(now, peer, why);
        var lost: [2]*Epoch = undefined;
        var from: [2]journal.From = undefined;
        var lost_count: usize = 0;
        // Everywhere at once, before anything that may fail: the peer's memory goes away.
        for (group.epochs.items) |epoch| if (epoch.rank_of(peer)) |rank| {
            from[lost_count] = .{ .epoch = epoch.number, .attempt = epoch.attempt + 1 };
            epoch.detach(rank, epoch.attempt + 1);
            lost[lost_count] = epoch;
            lost_count += 1;
        };
        if (lost_count == 0) return;
        group.lost_member = true;
        group.removals.note(peer.id, why);
        group.broken.forget(peer.id);
        group.unreached.forget(peer.id);
        founding_file.lose(now, group, peer.id);
        const recorded = group.note(.{ .removal = .{
            .group = group.id,
            .peer = peer.id,
            .epochs = .of(from[0..lost_count]),
            .why = .of(group.removals.why_of(peer.id).?),
        } });
        for (lost[0..lost_count]) |item| item.recorded = recorded;
        const epoch = lost[lost_count - 1];
        const out = "peer {f} is out of epoch {d}: {s}; {d} of {d} members remain in group {s}";
        group.coordinator.log(.info, out, .{
            peer.named(),
            epoch.number,
            why,
            epoch.alive.count(),
            epoch.members.len,
            group.name,
        });
        // Nobody can open lanes to who is gone: the round begins again, without it.
        if (group.phase == .prepare) group.release();
        group.look_soon(now);
        for (lost[0..lost_count]) |item| {
            try item.commit_voted();
            try group.new_attempt(item);
        }
        try group.check_recovered(now);
        group.drop_empty();
        if (group.phase != .idle and !group.has_candidates()) {
            group.phase = .idle;
            group.round_deadline = base.never;
        }
        group.advance(now);
    }

    // ---- broken links

    /// Members of an epoch stop, and go on around the links that are broken.
    fn new_attempt(group: *Group, epoch: *Epoch) ProtocolError!void {
        try epoch.new_attempt(group.paths_for(epoch));
    }

    /// Paths that use no broken link; else none that has been broken for long; else all, until
    /// somebody leaves.
    fn paths_for(group: *const Group, epoch: *const Epoch) base.Paths {
        const world_size = epoch.members.len;
        for ([_]bool{ false, true }) |lasting| {
            const edges = group.broken.edges(&epoch.ranks, lasting);
            if (plan.paths(&epoch.alive, world_size, &edges)) |paths| return paths;
        }
        return .all(&epoch.alive, world_size);
    }

    /// Members have come or gone.
    fn look_soon(group: *Group, now: base.Instant) void {
        if (group.broken.claims.items.len > 0) group.look.ask(now, .none);
    }

    /// Whether ways around broken links are to be looked for now, and at whose expense.
    pub fn take_look(group: *Group, now: base.Instant) ?PeerId {
        // A round may wait for the end of the same pause, and its own look comes first: otherwise
        // it would wait for as long as anybody has news of links.
        if (group.look.at <= now) group.advance(now);
        var members: usize = 0;
        for (group.epochs.items) |epoch| members += epoch.members.len;
        return group.look.take(now, members);
    }

    /// An epoch whose paths use a broken link gets a new attempt now, if there are others. True:
    /// there is one that would have gone on as it is. Only for a look that is due: others come
    /// later, because one member says too often that links are broken.
    pub fn go_around(group: *Group, now: base.Instant) bool {
        var any = false;
        if (group.broken.claims.items.len == 0) return any;
        for (group.epochs.items) |epoch| {
            if (epoch.alive.is_empty() or epoch.recovering) continue;
            if (epoch.replan_at <= now) continue;
            const edges = group.broken.edges(&epoch.ranks, false);
            if (!plan.uses_broken(&epoch.paths, &epoch.alive, &edges)) continue;
            if (group.paths_for(epoch).eql(&epoch.paths)) continue;
            epoch.replan_at = now;
            any = true;
        }
        return any;
    }

    /// The peer that must leave because no ring goes around the links that have been broken for
    /// long, and nobody reaches all others.
    pub fn stranded(group: *const Group) ?*Peer {
        if (group.broken.claims.items.len == 0) return null;
        for (group.epochs.items) |epoch| {
            if (epoch.recovering) continue;
            const edges = group.broken.edges(&epoch.ranks, true);
            if (plan.paths(&epoch.alive, epoch.members.len, &edges) != null) continue;
            const rank = edges.worst(&epoch.alive, &epoch.alive) orelse continue;
            return epoch.members[rank].peer;
        }
        return null;
    }

    /// How many other members could notice that their lanes to this one close: those who are there
    /// and whose links to it are well, or who say that they have noticed: what one says of its own
    /// link must not make its word weigh more. After a restart nobody is there at first, so all
    /// count.
    pub fn neighbours_of(group: *const Group, peer: *const Peer) usize {
        var most: usize = 0;
        for (group.epochs.items) |epoch| {
            if (epoch.rank_of(peer) == null) continue;
            const broken = group.broken.edges_of(&epoch.ranks, peer.id);
            var count: usize = 0;
            for (epoch.members, 0..) |*member, other| {
                const neighbour = member.peer orelse continue;
                const could_notice = !broken.has(other) or peer.has_word_of(neighbour.id);
                if (neighbour == peer or !could_notice) continue;
                count += @intFromBool(neighbour.connection != null or group.recovering);
            }
            most = @max(most, count);
        }
        return most;
    }

    /// With all newcomers of the round there would be no way around broken links: the one that
    /// reaches fewest is not let in now. Null: it is too early to look, and the round waits.
    fn leave_out_unreachable(group: *Group, now: base.Instant) Allocator.Error!?bool {
        if (group.broken.claims.items.len == 0) return false;
        const found: Found = .{
            .round = group.round,
            .gone = group.roster.gone.count(),
            .changes = group.broken.changes,
        };
        if (std.meta.eql(found, group.found)) return false;
        if (now < group.look.not_before) return null;
        const peers = try group.future_members();
        defer group.gpa.free(peers);
        group.look.pause(now, peers.len);
        var ranks = try Epoch.ranks_of(group.gpa, peers);
        defer ranks.deinit(group.gpa);
        var newcomers: base.Mask = .empty;
        for (peers, 0..) |peer, index| {
            if (group.newcomer_of(peer) != null) newcomers.set(index);
        }
        const edges = group.broken.edges(&ranks, true);
        const all: base.Mask = .full(peers.len);
        group.found = found;
        if (plan.paths(&all, peers.len, &edges) != null) return false;
        const index = edges.worst(&all, &newcomers) orelse return false;
        group.coordinator.log(.warning, "peer {f} is not let in now: it and others of group {s} " ++
            "cannot reach each other", .{ peers[index].named(), group.name });
        group.patience.lose(group.gpa, peers[index].id, now);
        group.newcomer_of(peers[index]).?.chosen = false;
        group.release();
        return true;
    }

    // ---- members that come back

    /// A peer begins to tell what it is a member of.
    pub fn begin_report(group: *Group, peer: *const Peer) void {
        group.broken.forget_from(peer.id);
        for (group.epochs.items) |epoch| {
            if (epoch.rank_of(peer)) |rank| epoch.members[rank].named = false;
        }
    }

    /// Whether this round, whose end the peer has not heard of, made it a member.
    pub fn was_let_in(group: *const Group, peer: *const Peer, round: u64) bool {
        for (group.epochs.items) |epoch| {
            if (epoch.began.round == round and epoch.rank_of(peer) != null) return true;
        }
        return false;
    }

    /// A member has told everything. A coordinator that has started again answers when all have,
    /// because what one knows may change the answer to another.
    pub fn come_back(
        group: *Group,
        now: base.Instant,
        peer: *Peer,
        rounds: Rounds,
    ) ProtocolError!void {
        if (group.recovering) {
            try group.returned.append(group.gpa, .{ .peer = peer, .rounds = rounds });
            return group.check_recovered(now);
        }
        // The round under way asked it on a connection that is gone.
        group.release();
        try group.answer(peer, rounds);
        for (group.epochs.items) |epoch| {
            const rank = epoch.rank_of(peer) orelse continue;
            if (!epoch.closed.has(rank)) try group.new_attempt(epoch);
        }
        group.drop_empty();
        group.advance(now);
    }

    /// Tells a member what it does not know.
    fn answer(group: *Group, peer: *Peer, rounds: Rounds) ProtocolError!void {
        var told = false;
        var newer_named = false;
        var index = group.epochs.items.len;
        while (index > 0) {
            index -= 1;
            const epoch = group.epochs.items[index];
            const rank = epoch.rank_of(peer) orelse continue;
            const member = &epoch.members[rank];
            if (member.named) {
                newer_named = true;
            } else if (newer_named) {
                try epoch.on_closed(rank); // it is in a later one, and not in this
            } else if (epoch.activated.has(rank)) {
                return peer.doom("it has forgotten what it is a member of");
            } else {
                epoch.announce(rank);
                told = true;
            }
        }
        // Whatever it waits for will not come. A peer that is let into an epoch stays where it
        // stopped.
        if (!told) for ([_]u64{ rounds.preparing, rounds.stopping }) |round| {
            if (round == 0) continue;
            peer.send(group.id, .{ .release = .{ .group = group.id, .round = round } });
        };
        for (group.epochs.items) |epoch| {
            const rank = epoch.rank_of(peer) orelse continue;
            if (!epoch.closed.has(rank)) epoch.tell_missed(rank);
            entering_file.tell(epoch, rank);
        }
    }

    /// After a restart: goes on when every member is back or lost.
    pub fn check_recovered(group: *Group, now: base.Instant) ProtocolError!void {
        if (!group.recovering) return;
        for (group.epochs.items) |epoch| for (epoch.members) |*member| {
            const peer = member.peer orelse continue;
            if (!peer.is_present(group.id)) return;
        };
        group.recovering = false;
        for (group.epochs.items) |epoch| {
            attempts.settle(epoch);
            epoch.recovering = false;
        }
        for (group.returned.items) |item| try group.answer(item.peer, item.rounds);
        group.returned.clearAndFree(group.gpa);
        group.drop_empty();
        for (group.epochs.items) |epoch| try group.new_attempt(epoch);
        group.look_soon(now);
        if (group.current() != null) group.phase = .activate; // until all have entered
        group.coordinator.log(.info, "group {s} goes on after a restart", .{group.name});
        group.advance(now);
    }

    // ---- time

    /// The disk takes long, and keeps some member from hearing what is said of its epoch.
    pub fn waits_for_disk(group: *const Group) bool {
        for (group.epochs.items) |epoch| {
            if (!recovery.waits(group.coordinator, epoch.recorded)) continue;
            for (epoch.members) |*member| {
                const peer = member.peer orelse continue;
                if (peer.waits_for_disk()) return true;
            }
        }
        return false;
    }

    /// `late`: the coordinator was frozen, and judges nobody by the time that passed.
    pub fn tick(group: *Group, now: base.Instant, silence_ns: u64, late: bool) !void {
        if (late and group.phase == .ask) group.round_deadline = now +| silence_ns;
        group.let_go_mute(now, silence_ns, late);
        if (group.round_deadline <= now) switch (group.phase) {
            .prepare => group.end_preparation(now) catch {
                group.out_of_memory = true;
            },
            .ask => group.release(),
            .idle, .activate => unreachable, // they have no deadline
        };
        for (group.epochs.items) |epoch| {
            if (epoch.replan_at <= now and epoch.running) try group.new_attempt(epoch);
            epoch.check_seen(now, silence_ns, late);
            try stall.end_passed(epoch);
            stall.review(group, epoch, now, late);
            const outside = if (epoch == group.current()) group.newcomers.items.len else 0;
            entering_file.review(epoch, outside);
            try misfit.review(epoch);
        }
        group.advance(now);
        attendance.review(group, now);
        awaited_file.review(group, now, late);
    }

    pub fn next_deadline(group: *const Group, now: base.Instant) base.Instant {
        var next = @min(group.round_deadline, group.look.next_deadline(now));
        next = @min(next, group.attendance_said.next_deadline(group));
        for (group.epochs.items) |epoch| if (epoch.running) {
            next = @min(next, epoch.replan_at, epoch.stall_at);
        };
        if (group.phase != .idle) return next;
        // Those whose time has come wait for company, and company is an event.
        for (group.newcomers.items) |*newcomer| {
            const until = group.patience.until(newcomer.peer.id);
            if (until > now) next = @min(next, until);
        }
        if (group.round_due() > now) next = @min(next, group.round_due());
        return next;
    }
};

test "a long list of peers is cut in a line of the log" {
    const court_file = @import("court_test.zig");
    var court: court_file.Court = undefined;
    try court.init(std.testing.allocator);
    defer court.c.destroy();
    try court.form();
    const ids: [8]PeerId = @splat(court_file.id_of(0));
    var text: [100]u8 = undefined;
    const listed: Listed = .{ .group = court.group(), .ids = &ids };
    const shown = try std.fmt.bufPrint(&text, "{f}", .{listed});
    try std.testing.expectEqualStrings("01000000, " ** 5 ++ "01000000 and 2 more", shown);
}
