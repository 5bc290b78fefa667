//! Group, as the coordinator keeps it: its live epochs, the newcomers, and the round that lets them
//! in.
//!
//! A round has four phases. prepare: members and newcomers open lanes to each other while they
//! work. ask: members tell how many safe points they have passed, and stop at their next one.
//! activate: the epoch begins at the largest count plus one, as far as that can be believed
//! (epoch.zig: last_safe_point). Then every member says that it has entered, and the next round may
//! start. A loss is followed by such a round too, without newcomers: ranks are dense again from the
//! next safe point on. What happens inside an epoch is epoch.zig's.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const journal = @import("journal.zig");
const plan = @import("plan.zig");
const Broken = @import("broken.zig").Broken;
const Epoch = @import("epoch.zig").Epoch;
const ProtocolError = @import("epoch.zig").ProtocolError;
const Circular = @import("coordinator.zig").Circular;
const Peer = @import("coordinator.zig").Peer;
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
    /// Others would not wait for it any more: it is left out until its user comes, or it is alone.
    dawdles: bool = false,
    /// After a preparation that failed because of it, it waits before the next one.
    not_before: base.Instant = 0,
    failures: u6 = 0,

    /// It is tried again after a while, twice as long each time.
    fn wait(newcomer: *Newcomer, now: base.Instant) void {
        newcomer.not_before = now + (Group.back_off_ns << @min(newcomer.failures, 5));
        newcomer.failures +|= 1;
    }

    /// `prompt`: dawdlers do not count.
    fn is_ready(newcomer: *const Newcomer, now: base.Instant, prompt: bool) bool {
        return newcomer.not_before <= now and !(prompt and newcomer.dawdles);
    }
};

/// Some peers in a line of the log.
const Listed = struct {
    ids: []const PeerId,

    const shown_max = 6;

    pub fn format(listed: Listed, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (listed.ids.len == 0) return writer.writeAll("nobody");
        for (listed.ids[0..@min(listed.ids.len, shown_max)], 0..) |id, index| {
            if (index > 0) try writer.writeAll(", ");
            try writer.print("{s}", .{id.short()});
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
    newcomers: std.ArrayList(Newcomer) = .empty,
    phase: Phase = .idle,
    /// Never used again, so that late answers are told apart.
    round: u64 = 0,
    round_deadline: base.Instant = base.never,
    /// Its deadline is that of users who dawdle.
    hurries: bool = false,
    /// A step of the round waits for memory.
    out_of_memory: bool = false,
    /// From a restart until all members are back or lost.
    recovering: bool = false,
    /// Members that are back already, and are answered when all are.
    returned: std.ArrayList(Returned) = .empty,
    /// Links between its peers that do not work.
    broken: Broken = .{},

    pub const Phase = enum { idle, prepare, ask, activate };
    const back_off_ns: u64 = std.time.ns_per_s;
    /// How long those who could enter wait for newcomers whose users are not ready.
    const dawdle_ns: u64 = std.time.ns_per_s;

    /// Rounds whose end a member waits for; 0: none.
    pub const Rounds = struct { preparing: u64, stopping: u64 };
    const Returned = struct { peer: *Peer, rounds: Rounds };

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
    };

    pub fn destroy(group: *Group) void {
        for (group.epochs.items) |epoch| epoch.destroy();
        group.epochs.deinit(group.gpa);
        group.newcomers.deinit(group.gpa);
        group.returned.deinit(group.gpa);
        group.broken.deinit(group.gpa);
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

    fn newcomer_of(group: *const Group, peer: *const Peer) ?*Newcomer {
        for (group.newcomers.items) |*newcomer| if (newcomer.peer == peer) return newcomer;
        return null;
    }

    pub fn contains(group: *const Group, peer: *const Peer) bool {
        if (group.newcomer_of(peer) != null) return true;
        for (group.epochs.items) |epoch| if (epoch.rank_of(peer) != null) return true;
        return false;
    }

    // ---- restarts

    /// What a journal keeps of it.
    pub fn record(group: *const Group) journal.GroupMade {
        return .{
            .id = group.id,
            .name = .of(group.name),
            .initial_world_size = group.initial_world_size,
            .last_epoch = group.last_epoch,
        };
    }

    /// It was made from a journal: whoever is a member has to come back first.
    pub fn restored(group: *Group) void {
        group.round = group.coordinator.first_round();
        group.drop_empty();
        group.recovering = group.epochs.items.len > 0;
        for (group.epochs.items) |epoch| epoch.restored(group.coordinator.incarnation - 1);
    }

    // ---- rounds

    pub fn add(group: *Group, now: base.Instant, peer: *Peer, initial: u32) Allocator.Error!void {
        if (initial > 0) group.initial_world_size = initial;
        try group.newcomers.append(group.gpa, .{ .peer = peer });
        // A round that only waits for users lets it in.
        if (group.is_linked()) group.release(now, false);
        group.advance(now);
    }

    /// Starts a round if one is due, and moves it on. Each step first has all its memory: without
    /// it nothing has changed, and the next tick tries again.
    fn advance(group: *Group, now: base.Instant) void {
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
        const all = group.ready(now, false);
        const prompt = group.ready(now, true);
        const incumbents = if (group.current()) |epoch| epoch.alive.count() else 0;
        const gaps = group.has_gaps();
        const least = if (incumbents > 0) 1 else @max(
            group.initial_world_size,
            group.min_world_size,
        );
        // Dawdlers come along only where there is nothing else to do.
        const with_dawdlers = prompt < least and !gaps;
        if (with_dawdlers and all < least) return;

        group.round += 1;
        const room = base.limits.peers_max - incumbents;
        var taken: u32 = 0;
        for (group.newcomers.items) |*newcomer| {
            newcomer.in_round = newcomer.is_ready(now, !with_dawdlers) and taken < room;
            newcomer.prepared = false;
            newcomer.entering = false;
            taken += @intFromBool(newcomer.in_round);
        }
        if (group.current()) |epoch| {
            epoch.prepared = .empty;
            epoch.stopping = .empty;
        }
        try group.send_prepare();
        // They open lanes anew, and what comes of that is said then.
        for (group.newcomers.items) |*newcomer| {
            if (newcomer.in_round) group.broken.forget(newcomer.peer.id);
        }
        group.phase = .prepare;
        group.round_deadline = now +| group.prepare_ns;
        group.hurries = false;
    }

    /// A rank is empty, and somebody is left.
    fn has_gaps(group: *const Group) bool {
        const epoch = group.current() orelse return false;
        return !epoch.alive.is_empty() and epoch.alive.count() < epoch.members.len;
    }

    fn ready(group: *const Group, now: base.Instant, prompt: bool) u32 {
        var count: u32 = 0;
        for (group.newcomers.items) |*newcomer| {
            count += @intFromBool(newcomer.is_ready(now, prompt));
        }
        return count;
    }

    /// All lanes of the round are open, and it waits for users.
    fn is_linked(group: *const Group) bool {
        if (group.phase != .prepare) return false;
        for (group.newcomers.items) |*newcomer| {
            if (newcomer.in_round and !newcomer.prepared) return false;
        }
        const epoch = group.current() orelse return true;
        return epoch.prepared.covers(&epoch.alive);
    }

    fn entering(group: *const Group) u32 {
        var count: u32 = 0;
        for (group.newcomers.items) |*newcomer| {
            count += @intFromBool(newcomer.in_round and newcomer.entering);
        }
        return count;
    }

    fn send_prepare(group: *Group) Allocator.Error!void {
        var entries: std.ArrayList(control.MemberEntry) = .empty;
        defer entries.deinit(group.gpa);
        const peers = try group.future_members();
        defer group.gpa.free(peers);
        for (peers) |peer| {
            try entries.append(group.gpa, .{ .id = peer.id, .address = .of(peer.address) });
        }
        var circular: Circular = .{ .message = &.{ .prepare = .{
            .group = group.id,
            .round = group.round,
            .members = .of(entries.items),
        } } };
        for (peers) |peer| circular.send(group.id, peer);
    }

    /// Members of the next epoch in rank order: incumbents as they are, then newcomers by id.
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
        std.mem.sort(*Peer, peers.items[incumbents..], {}, Peer.less_than);
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
        round: u64,
        enters: bool,
    ) !void {
        const newcomer = group.newcomer_of(peer);
        if (newcomer) |item| if (enters) {
            item.dawdles = false;
        };
        if (round != group.round or group.phase != .prepare) return;
        if (newcomer) |item| {
            item.prepared = true;
            item.entering = enters;
        }
        if (group.current()) |epoch| if (epoch.rank_of(peer)) |rank| {
            epoch.prepared.set(rank);
        };
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
            if (!group.is_linked()) return;
            if (try group.leave_out_unreachable(now)) return group.start_round(now);
            var taken: u32 = 0;
            for (group.newcomers.items) |*newcomer| taken += @intFromBool(newcomer.in_round);
            const some = group.entering();
            if (some < taken) {
                // Lanes are open: from here on it is their users who take their time. Others wait
                // a little for them.
                const waiting = some > 0 or group.has_gaps();
                if (!waiting) {
                    group.round_deadline = base.never;
                } else if (!group.hurries) {
                    group.hurries = true;
                    group.round_deadline = now +| dawdle_ns;
                }
                return;
            }
            group.phase = .ask;
            group.round_deadline = now +| group.coordinator.options.silence_ns;
            if (group.current()) |epoch| epoch.broadcast(.{ .ask_safe_points = .{
                .group = group.id,
                .round = group.round,
            } });
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

    fn activate(group: *Group, now: base.Instant, safe_point: u64) Allocator.Error!void {
        const peers = try group.future_members();
        defer group.gpa.free(peers);
        var ids: std.ArrayList(PeerId) = .empty;
        defer ids.deinit(group.gpa);
        for (peers) |peer| try ids.append(group.gpa, peer.id);
        var left: std.ArrayList(PeerId) = .empty;
        defer left.deinit(group.gpa);
        var incumbents: u32 = 0;
        if (group.current()) |epoch| for (epoch.members) |*member| {
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
        group.coordinator.record(epoch.record(ids.items, &instances));
        group.epochs.appendAssumeCapacity(epoch);
        group.last_epoch = number;
        group.phase = .activate;
        group.round_deadline = base.never;
        var kept: usize = 0;
        for (group.newcomers.items) |newcomer| {
            if (newcomer.in_round) continue;
            group.newcomers.items[kept] = newcomer;
            kept += 1;
        }
        group.newcomers.shrinkRetainingCapacity(kept);
        epoch.broadcast(.{ .activate = epoch.activation(ids.items) });
        // The name comes last: it may be long, and the end of a long line is cut.
        const begins = "epoch {d} begins with world size {d} (joined: {f}; left: {f}) in group {s}";
        group.coordinator.log(.info, begins, .{
            number,
            peers.len,
            Listed{ .ids = ids.items[incumbents..] },
            Listed{ .ids = left.items },
            group.name,
        });
        group.drop_empty();
        _ = group.go_around(now);
    }

    pub fn on_activated(group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
        const epoch = group.epoch_of(number) orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        epoch.activated.set(rank);
        group.advance(now);
    }

    pub fn on_closed(group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
        const epoch = group.epoch_of(number) orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        if (epoch == group.current()) return error.Unexpected; // nobody has a later one to be in
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

    /// Safe points are told at once, whatever the user does: while they are not, all others stop.
    fn let_go_mute(group: *Group) void {
        const epoch = group.current() orelse return;
        for (epoch.members, 0..) |*member, rank| {
            const peer = member.peer orelse continue;
            if (epoch.stopping.has(rank) or !peer.is_present(group.id)) continue;
            peer.doom("it does not say how many safe points it has passed");
        }
    }

    /// Ends a preparation; `blamed` newcomers wait before they are tried again.
    fn release(group: *Group, now: base.Instant, blame: bool) void {
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
            if (!blame) continue;
            if (newcomer.prepared) {
                newcomer.dawdles = !newcomer.entering;
                continue;
            }
            newcomer.wait(now);
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
        group.coordinator.log(.info, "peer {s} does not wait any more: {s}; group {s}", .{
            peer.id.short(),
            why,
            group.name,
        });
        group.broken.forget(peer.id);
        const gone = group.newcomers.orderedRemove(index);
        if (gone.in_round) group.release(now, false);
        group.advance(now);
    }

    /// The peer is gone from this group: lost, or it left. `why`, for the log.
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
        group.broken.forget(peer.id);
        group.coordinator.record(.{ .removal = .{
            .group = group.id,
            .peer = peer.id,
            .epochs = .of(from[0..lost_count]),
        } });
        const epoch = lost[lost_count - 1];
        const out = "peer {s} is out of epoch {d}: {s}; {d} of {d} members remain in group {s}";
        group.coordinator.log(.info, out, .{
            peer.id.short(),
            epoch.number,
            why,
            epoch.alive.count(),
            epoch.members.len,
            group.name,
        });
        // Nobody can open lanes to who is gone: the round begins again, without it.
        if (group.phase == .prepare) group.release(now, false);
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

    /// An epoch whose paths use a broken link gets a new attempt at that time, if there are others.
    /// True: there is one that would have gone on as it is.
    pub fn go_around(group: *Group, at: base.Instant) bool {
        var any = false;
        if (group.broken.claims.items.len == 0) return any;
        for (group.epochs.items) |epoch| {
            if (epoch.alive.is_empty() or epoch.recovering) continue;
            if (epoch.replan_at <= at) continue; // not later, whatever is broken
            const edges = group.broken.edges(&epoch.ranks, false);
            if (!plan.uses_broken(&epoch.paths, &epoch.alive, &edges)) continue;
            if (group.paths_for(epoch).eql(&epoch.paths)) continue;
            epoch.replan_at = at;
            any = true;
        }
        return any;
    }

    /// Who must leave because no ring goes around the links that have been broken for long, and
    /// nobody reaches all others.
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
            const rank = epoch.rank_of(peer) orelse continue;
            const edges = group.broken.edges(&epoch.ranks, false);
            var count: usize = 0;
            for (epoch.members, 0..) |*member, other| {
                const neighbour = member.peer orelse continue;
                const could_notice = !edges.has(rank, other) or peer.has_word_of(neighbour.id);
                if (neighbour == peer or !could_notice) continue;
                count += @intFromBool(neighbour.connection != null or group.recovering);
            }
            most = @max(most, count);
        }
        return most;
    }

    /// With all newcomers of the round there would be no way around broken links: the one that
    /// reaches fewest is not let in now.
    fn leave_out_unreachable(group: *Group, now: base.Instant) Allocator.Error!bool {
        if (group.broken.claims.items.len == 0) return false;
        const peers = try group.future_members();
        defer group.gpa.free(peers);
        var ranks = try Epoch.ranks_of(group.gpa, peers);
        defer ranks.deinit(group.gpa);
        var newcomers: base.Mask = .empty;
        for (peers, 0..) |peer, index| {
            if (group.newcomer_of(peer) != null) newcomers.set(index);
        }
        const edges = group.broken.edges(&ranks, true);
        const all: base.Mask = .full(peers.len);
        if (plan.paths(&all, peers.len, &edges) != null) return false;
        const index = edges.worst(&all, &newcomers) orelse return false;
        group.coordinator.log(.warning, "peer {s} is not let in now: it and others of group {s} " ++
            "cannot reach each other", .{ peers[index].id.short(), group.name });
        group.newcomer_of(peers[index]).?.wait(now);
        group.release(now, false);
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
        group.release(now, false);
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
        // Whatever it waits for will not come. Who is let into an epoch stays where it stopped.
        if (!told) for ([_]u64{ rounds.preparing, rounds.stopping }) |round| {
            if (round == 0) continue;
            peer.send(group.id, .{ .release = .{ .group = group.id, .round = round } });
        };
        for (group.epochs.items) |epoch| {
            const rank = epoch.rank_of(peer) orelse continue;
            if (!epoch.closed.has(rank)) epoch.tell_missed(rank);
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
        for (group.epochs.items) |epoch| epoch.recovering = false;
        for (group.returned.items) |item| try group.answer(item.peer, item.rounds);
        group.returned.clearAndFree(group.gpa);
        group.drop_empty();
        for (group.epochs.items) |epoch| try group.new_attempt(epoch);
        if (group.current() != null) group.phase = .activate; // until all have entered
        group.coordinator.log(.info, "group {s} goes on after a restart", .{group.name});
        group.advance(now);
    }

    // ---- time

    /// `late`: the coordinator was frozen, and judges nobody by the time that passed.
    pub fn tick(group: *Group, now: base.Instant, silence_ns: u64, late: bool) !void {
        if (late and group.phase == .ask) group.round_deadline = now +| silence_ns;
        if (group.round_deadline <= now) {
            if (group.phase == .ask) group.let_go_mute();
            group.release(now, true);
        }
        _ = group.go_around(now);
        for (group.epochs.items) |epoch| {
            if (epoch.replan_at <= now and epoch.running) try group.new_attempt(epoch);
            epoch.check_seen(now, silence_ns, late);
        }
        group.advance(now);
    }

    pub fn next_deadline(group: *const Group, now: base.Instant) base.Instant {
        var next = group.round_deadline;
        for (group.epochs.items) |epoch| if (epoch.running) {
            next = @min(next, epoch.replan_at);
        };
        for (group.newcomers.items) |*newcomer| {
            // Those whose time has come wait for company, and company is an event.
            if (newcomer.not_before > now) next = @min(next, newcomer.not_before);
        }
        return next;
    }
};

test "a long list of peers is cut in a line of the log" {
    const ids: [8]PeerId = @splat(.from_int(1 << 120));
    var text: [100]u8 = undefined;
    const shown = try std.fmt.bufPrint(&text, "{f}", .{Listed{ .ids = &ids }});
    try std.testing.expectEqualStrings("01000000, " ** 5 ++ "01000000 and 2 more", shown);
}
