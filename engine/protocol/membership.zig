//! membership: peers become members of a group in rounds, and leave the group.
//!
//! A round has the phases prepare, ask and activate. prepare: members and newcomers open lanes to
//! each other while calls go on; once some newcomers could enter, the others have a little more
//! time, and then the round begins again without those (group.zig: Roster, Patience). ask: members
//! tell how many safe points they have passed, and stop at their next one. activate: the epoch
//! begins one safe point after the largest count that is believed (epoch.zig: last_safe_point).
//! When all members have entered the epoch, the next round may start. A loss is followed by a round
//! as well, even without newcomers: from the next safe point on ranks are dense again.

const std = @import("std");
const base = @import("base");
const planner = @import("plan").planner;
const wire = @import("wire");
const addresses = @import("address.zig");
const attempt = @import("attempt.zig");
const debt = @import("debt.zig");
const future_members = @import("group.zig").future_members;
const journal = @import("journal.zig");
const leaves_some_out = @import("group.zig").leaves_some_out;
const log = @import("log.zig");
const measurement = @import("measurement.zig");
const open_to_all = @import("group.zig").open_to_all;
const operation = @import("operation.zig");
const ranks_of = @import("peer.zig").ranks_of;
const take_newcomers = @import("group.zig").take_newcomers;
const take_nobody = @import("group.zig").take_nobody;
const Circular = @import("run.zig").Circular;
const Connection = @import("peer.zig").Connection;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Roster = @import("group.zig").Roster;
const Rounds = @import("peer.zig").Rounds;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;

const doublings_max = 4;

pub fn add_newcomer(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *Peer,
    initial: u32,
) Allocator.Error!void {
    if (initial > 0) group.initial_world_size = initial;
    try group.newcomers.append(group.gpa, .{ .peer = peer });
    if (group.phase == .prepare) switch (group.waits_for) {
        .rest, .users => {},
        // The round waits for the first `admit` of any newcomer: it ends, so that the next round
        // takes this newcomer, too.
        .any_user => release_round(run, group),
        // No newcomer can enter yet, and only the next round takes this one: the round ends sooner.
        .lanes => group.round_deadline = @min(
            group.round_deadline,
            @max(now, group.round_began +| patience_ns(group)),
        ),
    };
    advance_round(run, group, now);
}

/// Starts a round if one is due, and moves the round on. Each step takes all its memory before it
/// changes anything, so that the next tick can repeat a step that ran out of memory.
pub fn advance_round(run: *Run, group: *Group, now: base.Instant) void {
    step_round(run, group, now) catch {
        group.out_of_memory = true; // the next tick logs it and tries again
    };
}

fn step_round(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    try start_round(run, group, now);
    try evaluate_round(run, group, now);
}

/// Starts a round if none is under way, and a newcomer waits or a rank is empty.
fn start_round(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    if (group.phase != .idle or group.epochs.items.len > 1 or group.recovering) return;
    if (awaits_address(group)) return;
    if (now < group.round_due() or !take_newcomers(group, now)) return;
    errdefer take_nobody(group);
    const peers = try future_members(group);
    defer group.gpa.free(peers);
    const epoch = group.current();
    try group.roster.begin(group.gpa, peers, .{
        .members = if (epoch) |it| it.alive.count() else 0,
        .members_meet = epoch == null or
            epoch.?.members.len <= base.limits.full_mesh_max,
    });
    group.round += 1;
    send_prepare(run, group, peers);
    if (epoch) |it| it.stopping = .empty;
    ask_members(group, now);
    // Newcomers of the round open their lanes anew, so their reports of broken links are out of
    // date.
    for (group.newcomers.items) |*newcomer| {
        if (newcomer.in_round) group.broken.forget(newcomer.peer.id);
    }
    group.phase = .prepare;
    group.waits_for = .lanes;
    group.round_began = now;
    const doublings = @min(group.fruitless, doublings_max);
    // Before the first epoch each fruitless round doubles the time for lanes: there are no members
    // yet that a long round could hold up.
    const is_first = group.roster.members == 0;
    group.round_deadline = now +| (group.prepare_ns <<| if (is_first) doublings else 0);
    group.lost_member = false;
    // Newcomers that the round leaves out wait for its end, so the round is short, as in
    // `add_newcomer`.
    if (!is_first and !group.narrow and leaves_some_out(group, now))
        group.round_deadline = now +| patience_ns(group);
    group.next_round_at = now +| (Group.interval_ns << doublings);
    group.fruitless +|= 1;
}

/// Sends `prepare` to all peers of a round. Members are told the ids of the newcomers, newcomers
/// the ids of all peers, and each peer the addresses of the peers to which it must open lanes.
fn send_prepare(run: *Run, group: *Group, peers: []const *Peer) void {
    var places: [base.limits.full_mesh_max]usize = undefined;
    var entries: [base.limits.full_mesh_max]control.MemberEntry = undefined;
    var rooms: [base.limits.full_mesh_max]addresses.Room = undefined;
    var buffer: [base.limits.peers_max]PeerId = undefined;
    for (peers, 0..) |peer, index| {
        const linked = group.roster.linked(index, &places);
        for (linked, entries[0..linked.len], rooms[0..linked.len]) |place, *entry, *room| {
            const other = peers[place];
            entry.* = .{ .id = other.id, .address = .of(peer.told_to(other, room)) };
        }
        const is_member = index < group.roster.members;
        const known = if (is_member) group.roster.members else 0;
        run.send(peer, group.id, .{ .prepare = .{
            .group = group.id,
            .round = group.round,
            .members = .of(group.roster.ids_from(known, &buffer)),
            .links = .of(entries[0..linked.len]),
        } });
    }
    tell_labels(run, group.id, peers, group.roster.members);
}

pub fn on_prepared(
    run: *Run,
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
    prepared(run, group, now, peer, &body.missing);
    if (newcomer) |item| {
        item.prepared = body.missing.count == 0;
        item.entering = body.entering;
    }
    advance_round(run, group, now);
}

pub fn on_safe_points(
    run: *Run,
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
    advance_round(run, group, now);
}

pub fn on_activated(run: *Run, group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
    const epoch = group.epoch_of(number) orelse return;
    const rank = epoch.rank_of(peer) orelse return;
    epoch.activated.set(rank);
    debt.entered(run, epoch, rank);
    advance_round(run, group, now);
}

/// Moves the round on if all peers that it waits for have answered.
fn evaluate_round(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    if (group.phase == .prepare) {
        if (group.roster.waits()) return hurry(group, now);
        // Newcomers have left, and other peers lack lanes to them or would have other neighbours:
        // the round begins again.
        if (!group.roster.is_whole()) return begin_again(run, group, now, .lanes);
        const is_left_out = try leave_out_unreachable(run, group, now) orelse return;
        if (is_left_out) return start_round(run, group, now);
        const some = count_entering(group);
        if (some < group.roster.newcomers()) {
            // All lanes are open: the round waits for users of newcomers to call `admit`. Founders
            // of a sub-group enter together or not at all.
            const others_wait = group.has_gaps() or (some > 0 and group.founding == null);
            return wait_for(group, now, if (others_wait) .users else .any_user);
        }
        group.phase = .ask;
        group.round_deadline = now +| run.options.silence_ns;
        if (group.current()) |epoch| run.broadcast(epoch, .{ .ask_safe_points = .{
            .group = group.id,
            .round = group.round,
        } });
        ask_members(group, now);
    }
    if (group.phase == .ask) {
        const last = if (group.current()) |epoch| epoch.last_safe_point() orelse return else 0;
        try activate(run, group, now, last + 1);
    }
    if (group.phase == .activate) {
        const epoch = group.current().?;
        if (!epoch.activated.covers(&epoch.alive)) return;
        group.phase = .idle;
        try start_round(run, group, now);
    }
}

/// Shortens the time for missing lanes once some newcomers could enter without the others, or
/// members could go on by themselves.
fn hurry(group: *Group, now: base.Instant) void {
    if (group.roster.silent_members > 0) return;
    const found = fit(group);
    const all_fit = found.count == group.roster.newcomers();
    if (all_fit or (found.count < group.least() and !group.has_gaps())) return;
    wait_for(group, now, .rest);
}

fn wait_for(group: *Group, now: base.Instant, whom: Group.WaitsFor) void {
    if (group.waits_for == whom) return;
    group.waits_for = whom;
    if (whom == .any_user) open_to_all(group);
    group.round_deadline = switch (whom) {
        .lanes => unreachable, // a round begins with `lanes`
        .rest => @min(group.round_deadline, now +| patience_ns(group)),
        .users => now +| patience_ns(group),
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

/// Begins the round again with the newcomers whose lanes are open and, with `users`, whose users
/// have called `admit`. Newcomers whose lanes are not open must wait before another round takes
/// them (Patience).
fn begin_again(
    run: *Run,
    group: *Group,
    now: base.Instant,
    by: enum { lanes, users },
) Allocator.Error!void {
    const found = fit(group);
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
    release_round(run, group);
    try start_round(run, group, now);
}

/// The time of a preparation is over: the round begins again without the newcomers that are not
/// ready. If all newcomers are ready, only members keep the round waiting, and the preparation goes
/// on.
pub fn end_preparation(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    if (group.waits_for == .users) return begin_again(run, group, now, .users);
    if (fit(group).count < group.roster.newcomers()) return begin_again(run, group, now, .lanes);
    group.round_deadline = now +| group.prepare_ns;
}

/// Leaves out the newcomer that reaches fewest peers, if broken links leave no paths for all
/// members and newcomers of the round. True: a newcomer was left out. Null: it is too early to
/// search for paths, and the round waits.
fn leave_out_unreachable(run: *Run, group: *Group, now: base.Instant) Allocator.Error!?bool {
    if (group.broken.claims.items.len == 0) return false;
    const found: Group.Found = .{
        .round = group.round,
        .gone = group.roster.gone.count(),
        .changes = group.broken.changes,
    };
    if (std.meta.eql(found, group.found)) return false;
    if (now < group.look.not_before) return null;
    const peers = try future_members(group);
    defer group.gpa.free(peers);
    group.look.pause(now, peers.len);
    var ranks = try ranks_of(group.gpa, peers);
    defer ranks.deinit(group.gpa);
    var newcomers: base.Mask = .empty;
    for (peers, 0..) |peer, index| {
        if (group.newcomer_of(peer) != null) newcomers.set(index);
    }
    const edges = group.broken.edges(&ranks, true);
    const all: base.Mask = .full(peers.len);
    group.found = found;
    if (planner.has_paths(&all, peers.len, &edges)) return false;
    const index = edges.worst(&all, &newcomers) orelse return false;
    run.log(.warning, "peer {f} is not let in now: it and others of group {s} " ++
        "cannot reach each other", .{ peers[index].named(), group.name });
    group.patience.lose(group.gpa, peers[index].id, now);
    group.newcomer_of(peers[index]).?.chosen = false;
    release_round(run, group);
    return true;
}

/// Ends a round in phase prepare or ask without an epoch, and tells its members and newcomers.
pub fn release_round(run: *Run, group: *Group) void {
    if (group.phase != .prepare and group.phase != .ask) return;
    const message: control.Message = .{ .release = .{
        .group = group.id,
        .round = group.round,
    } };
    if (group.current()) |epoch| run.broadcast(epoch, message);
    for (group.newcomers.items) |*newcomer| {
        if (!newcomer.in_round) continue;
        run.send(newcomer.peer, group.id, message);
        newcomer.in_round = false;
    }
    group.phase = .idle;
    group.round_deadline = base.never;
}

/// How long newcomers that can enter wait for newcomers that cannot yet.
fn patience_ns(group: *const Group) u64 {
    return group.prepare_ns / 5;
}

/// Whether the coordinator still searches for the address of a member, which newcomers could not
/// dial before.
fn awaits_address(group: *const Group) bool {
    const epoch = group.current() orelse return false;
    for (epoch.members) |*member| if (member.peer) |peer| {
        if (peer.is_address_awaited()) return true;
    };
    return false;
}

fn count_entering(group: *const Group) u32 {
    var count: u32 = 0;
    for (group.newcomers.items) |*newcomer| {
        count += @intFromBool(newcomer.in_round and newcomer.entering);
    }
    return count;
}

fn ask_members(group: *Group, now: base.Instant) void {
    const epoch = group.current() orelse return;
    for (epoch.members) |*member| {
        if (member.peer) |peer| member.round_asked.ask(peer, now);
    }
}

/// Lets members go that do not answer the round within the silence limit. An engine tells its lanes
/// and its safe points at once, whatever its user does. Without the answer newcomers wait, and
/// members stop at their next safe point.
pub fn let_go_mute(run: *Run, group: *Group, now: base.Instant, silence_ns: u64, late: bool) void {
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
        const pardons = late or run.holds_up(peer);
        if (!member.round_asked.is_overdue(peer, now, silence_ns, pardons)) continue;
        peer.doom(if (prepares)
            "it does not say which lanes it has"
        else
            "it does not say how many safe points it has passed");
    }
}

// ---- the epoch begins
//
// A round ends in an epoch: `activate` puts the epoch into the journal, and tells all members that
// it begins.

pub fn activate(run: *Run, group: *Group, now: base.Instant, safe_point: u64) Allocator.Error!void {
    const peers = try future_members(group);
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
    const number = @max(group.last_epoch + 1, run.first_epoch());
    const epoch = try Epoch.create(group.gpa, .{
        .group = group.id,
        .number = number,
        .min_world_size = group.min_world_size,
        .budget = &run.memory,
        .peers = peers,
        .began = .{
            .round = group.round,
            .safe_point = safe_point,
            .joined = @intCast(peers.len - incumbents),
            .left = left.items,
        },
    });
    var instances: [base.limits.peers_max]u64 = undefined;
    epoch.recorded = log.note(run, group, epoch.record(ids.items, &instances));
    if (before) |old| attempt.pass_askers(old, epoch);
    group.epochs.appendAssumeCapacity(epoch);
    group.last_epoch = number;
    group.had_members = true;
    group.phase = .activate;
    group.round_deadline = base.never;
    open_to_all(group);
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
    announce_to_all(run, epoch, ids.items, if (before) |old| old.number else 0);
    // The group's name comes last: it may be long, and the end of a long line is cut.
    const begins = "epoch {d} begins with world size {d} (joined: {f}; left: {f}) in group {s}";
    run.log(.info, begins, .{
        number,
        peers.len,
        Listed{ .run = run, .group = group, .ids = ids.items[incumbents..] },
        Listed{ .run = run, .group = group, .ids = left.items },
        group.name,
    });
    group.drop_empty();
    attempt.look_soon(group, now);
}

/// Tells all members that the epoch has begun. `before`: the number of the previous epoch, whose
/// members are told only the changes; 0: there was none.
fn announce_to_all(run: *Run, epoch: *Epoch, ids: []const PeerId, before: u64) void {
    const message = epoch.activation(ids);
    const first = ids.len - message.joined;
    var difference = message;
    difference.base = before;
    difference.members = .of(ids[first..]);
    var to_members: Circular = .{ .message = &.{ .activate = difference } };
    var to_newcomers: Circular = .{ .message = &.{ .activate = message } };
    for (epoch.members, 0..) |*member, rank| {
        const circular = if (rank < first) &to_members else &to_newcomers;
        circular.send(run, epoch.group, member.peer.?);
    }
}

/// Tells a member that the epoch has begun.
pub fn announce(run: *Run, epoch: *Epoch, rank: u16) void {
    var buffer: [base.limits.peers_max]PeerId = undefined;
    const peer = epoch.members[rank].peer orelse return;
    run.send(peer, epoch.group, .{ .activate = epoch.activation(epoch.member_ids(&buffer)) });
}

/// A list of peers in a line of the log.
const Listed = struct {
    run: *const Run,
    group: *const Group,
    ids: []const PeerId,

    const shown_max = 6;

    pub fn format(listed: Listed, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (listed.ids.len == 0) return writer.writeAll("nobody");
        for (listed.ids[0..@min(listed.ids.len, shown_max)], 0..) |id, index| {
            if (index > 0) try writer.writeAll(", ");
            try writer.print("{f}", .{listed.run.named(listed.group, id)});
        }
        if (listed.ids.len <= shown_max) return;
        try writer.print(" and {d} more", .{listed.ids.len - shown_max});
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
    const listed: Listed = .{ .run = &court.c.run, .group = court.group(), .ids = &ids };
    const shown = try std.fmt.bufPrint(&text, "{f}", .{listed});
    try std.testing.expectEqualStrings("01000000, " ** 5 ++ "01000000 and 2 more", shown);
}

// ---- dials that came to nothing
//
// Peers tell the coordinator of dials that failed. The status shows a failed dial, the log warns of
// it, and the dialed peer is told, for each pair of peers at most every `tell_ns` (group.zig). No
// decision depends on a failed dial: open lanes decide which newcomers enter (group.zig), and
// working links decide the paths of data (plan/planner.zig).

/// The most failed dials of one peer that are told and logged in a period of `tell_ns` (group.zig).
const tells_max = base.limits.full_mesh_max;

/// Tells and logs the failed dials to peers to which a peer says it lacks lanes. `Roster.hear` must
/// have taken the message before.
pub fn prepared(
    run: *Run,
    group: *Group,
    now: Instant,
    from: *Peer,
    missing: *const wire.codec.List(control.Missing),
) void {
    for (group.unreached.claims.items) |*claim| {
        if (!claim.from.eql(from.id) or group.roster.lacks(from.id, claim.to)) continue;
        // The dial has succeeded or is not wanted any more, unless the link is known to be broken:
        // rounds do not ask for broken links between members.
        if (!group.broken.has(from.id, claim.to)) claim.dialed = .pending;
    }
    var it = missing.iterator();
    var lacks_away = false;
    while (it.next()) |entry| {
        if (entry.dialed == .pending or !group.roster.lacks(from.id, entry.peer)) continue;
        const other = run.peer_of(entry.peer) orelse continue;
        lacks_away = lacks_away or other.connection == null;
        say_unreached(run, group, now, from, entry);
    }
    if (lacks_away and group.newcomer_of(from) != null) debt.tell_of_away(run, group, from);
}

/// Notes, by a peer's own word, that its link to another peer is up, or that its dial of that peer
/// failed.
pub fn link_told(
    run: *Run,
    group: *Group,
    now: Instant,
    from: *Peer,
    body: *const control.LinkTold,
) void {
    if (body.health == .down and body.dialed != .pending)
        return say_unreached(run, group, now, from, .{
            .peer = body.other,
            .dialed = body.dialed,
            .source = body.source,
        });
    if (body.health != .up) return;
    if (group.unreached.find(from.id, body.other)) |claim| claim.dialed = .pending;
}

/// Notes a failed dial, and tells the log and the dialed peer if that is due. Nothing is told of a
/// peer that is away, because it may be dead and its ports not at fault; newcomers are told that
/// they wait for that peer (debt.zig).
fn say_unreached(
    run: *Run,
    group: *Group,
    now: Instant,
    from: *Peer,
    missing: control.Missing,
) void {
    const other = run.peer_of(missing.peer) orelse return;
    const known = group.unreached.find(from.id, other.id);
    const is_due = if (known) |claim| claim.is_due(now) else true;
    const is_here = other.connection != null;
    const is_new = is_here and is_due and group.unreached.told_by(from.id, now) < tells_max;
    if (known) |claim| {
        claim.dialed = missing.dialed;
        claim.source = missing.source;
        if (is_new) claim.told_at = now;
    } else group.unreached.claims.append(group.gpa, .{
        .from = from.id,
        .to = other.id,
        .dialed = missing.dialed,
        .source = missing.source,
        .told_at = if (is_new) now else null,
    }) catch return; // the peer tells it again
    if (!is_new) return;
    var room: addresses.Room = undefined;
    const address = from.told_to(other, &room);
    var host: [base.source.text_bytes_max]u8 = undefined;
    const source = base.source.write_host(missing.source, &host);
    run.log(.warning, "peer {f} cannot dial peer {f}{s}{s}{s}{s}: {s}; " ++ wire.dialed.remedy, .{
        from.named(),
        other.named(),
        if (address.len > 0) " at " else "",
        address,
        if (source.len > 0) " from " else "",
        source,
        missing.dialed.why(),
    });
    run.send(other, group.id, .{ .unreached = .{
        .group = group.id,
        .peer = from.id,
        .dialed = missing.dialed,
        .source = missing.source,
        .address = .of(address),
    } });
}

// ---- names for people
//
// Each round tells its peers the labels of the others, which are names for people. A peer tells its
// own label in `join`, and the coordinator keeps the label as long as the peer, so no label is in
// the journal.

/// Sends the labels of a round's peers after `prepare`: members are told the labels of newcomers,
/// newcomers the labels of all peers.
pub fn tell_labels(run: *Run, group: u16, peers: []const *Peer, members: usize) void {
    var buffer: [base.limits.peers_max]control.LabelEntry = undefined;
    tell_some_labels(run, group, peers[members..], label_entries(peers, &buffer));
    tell_some_labels(run, group, peers[0..members], label_entries(peers[members..], &buffer));
}

fn tell_some_labels(
    run: *Run,
    group: u16,
    peers: []const *Peer,
    told: []const control.LabelEntry,
) void {
    if (told.len == 0) return;
    const message: control.Message = .{ .labels = .{ .group = group, .peers = .of(told) } };
    var circular: Circular = .{ .message = &message };
    for (peers) |peer| circular.send(run, group, peer);
}

/// An entry for each peer that has a label.
fn label_entries(
    peers: []const *Peer,
    buffer: *[base.limits.peers_max]control.LabelEntry,
) []const control.LabelEntry {
    var count: usize = 0;
    for (peers) |peer| if (peer.label.length > 0) {
        buffer[count] = .{ .id = peer.id, .label = .of(peer.label.slice()) };
        count += 1;
    };
    return buffer[0..count];
}

// ---- members that come back
//
// A member that comes back has told its epochs on a new connection (attempt.zig). The coordinator
// tells the member what it missed, and begins another attempt of its epochs. After a restart the
// coordinator does so once all members of the group are back. Members that close an epoch are here,
// too.

/// A peer begins to tell its epochs on a new connection: its earlier word on epochs and links is
/// forgotten.
pub fn begin_report(group: *Group, peer: *const Peer) void {
    group.broken.forget_from(peer.id);
    for (group.epochs.items) |epoch| {
        if (epoch.rank_of(peer)) |rank| epoch.members[rank].named = false;
    }
}

/// A member has told all its epochs on a new connection. A coordinator that has restarted answers
/// only when all members have told theirs, so that one new attempt is enough.
pub fn come_back(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *Peer,
    waited_for: Rounds,
) ProtocolError!void {
    if (group.recovering) {
        try group.returned.append(group.gpa, .{ .peer = peer, .rounds = waited_for });
        return check_recovered(run, group, now);
    }
    // The round under way asked this member on its earlier connection, so the round ends.
    release_round(run, group);
    try answer_return(run, group, peer, waited_for);
    for (group.epochs.items) |epoch| {
        const rank = epoch.rank_of(peer) orelse continue;
        if (!epoch.closed.has(rank)) try attempt.begin(run, group, epoch);
    }
    group.drop_empty();
    advance_round(run, group, now);
}

/// Tells a member that is back what it missed: epochs, ends of rounds, decisions, and which members
/// have not entered.
fn answer_return(run: *Run, group: *Group, peer: *Peer, waited_for: Rounds) ProtocolError!void {
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
            try attempt.on_closed(run, epoch, rank); // the member has closed this epoch
        } else if (epoch.activated.has(rank)) {
            return peer.doom("it has forgotten what it is a member of");
        } else {
            announce(run, epoch, rank);
            told = true;
        }
    }
    // The rounds that the member waits for are over, so it may go on. A member that was told an
    // epoch here must stay at its safe point to enter.
    if (!told) for ([_]u64{ waited_for.preparing, waited_for.stopping }) |round| {
        if (round == 0) continue;
        run.send(peer, group.id, .{ .release = .{ .group = group.id, .round = round } });
    };
    for (group.epochs.items) |epoch| {
        const rank = epoch.rank_of(peer) orelse continue;
        if (!epoch.closed.has(rank)) operation.tell_missed(run, epoch, rank);
        debt.tell_entering(run, epoch, rank);
        measurement.forget(epoch, rank);
    }
}

/// Lets a group go on after a restart, once every member is back or lost.
pub fn check_recovered(run: *Run, group: *Group, now: base.Instant) ProtocolError!void {
    if (!group.recovering) return;
    for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        const peer = member.peer orelse continue;
        if (!peer.is_present(group.id)) return;
    };
    var is_settled = true;
    for (group.epochs.items) |epoch| is_settled = attempt.settle_seen(group, epoch) and is_settled;
    if (!is_settled) return;
    group.recovering = false;
    for (group.epochs.items) |epoch| {
        epoch.recovering = false;
        operation.number_decided(run, epoch);
    }
    for (group.returned.items) |item| try answer_return(run, group, item.peer, item.rounds);
    group.returned.clearAndFree(group.gpa);
    group.drop_empty();
    for (group.epochs.items) |epoch| try attempt.begin(run, group, epoch);
    attempt.look_soon(group, now);
    if (group.current() != null) group.phase = .activate; // until all members have entered
    run.log(.info, "group {s} goes on after a restart", .{group.name});
    advance_round(run, group, now);
}

pub fn on_closed(run: *Run, group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
    const epoch = group.epoch_of(number) orelse return;
    const rank = epoch.rank_of(peer) orelse return;
    // A member can close an epoch only after it has entered a later one.
    const later = group.current().?;
    const place = later.rank_of(peer) orelse return;
    if (epoch == later or !later.activated.has(place)) return error.Unexpected;
    try attempt.on_closed(run, epoch, rank);
    group.drop_empty();
    advance_round(run, group, now);
}

// ---- a peer leaves a group
//
// A peer leaves one group: a newcomer waits no more, or a member is out of its epochs. Operations
// in flight go on among the other members.

/// Removes a peer that is away or out from the group's newcomers, and from the members that wait
/// for an answer after a restart.
pub fn peer_away(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *const Peer,
    why: []const u8,
) void {
    for (group.returned.items, 0..) |item, index| if (item.peer == peer) {
        _ = group.returned.swapRemove(index);
        break;
    };
    remove_newcomer(run, group, now, peer, why);
}

/// Removes a peer from the newcomers of a group.
fn remove_newcomer(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *const Peer,
    why: []const u8,
) void {
    const index = for (group.newcomers.items, 0..) |*newcomer, index| {
        if (newcomer.peer == peer) break index;
    } else return;
    run.log(.info, "peer {f} does not wait any more: {s}; group {s}", .{
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
        if (!can_go_on(group)) release_round(run, group);
    }
    advance_round(run, group, now);
}

/// Whether the round goes on after a newcomer has left: enough peers remain, and, in the phase ask
/// of a large world, no peer would get other neighbours. Peers that come and go must not restart
/// the round each time.
fn can_go_on(group: *const Group) bool {
    const places = group.roster.places.items.len;
    if (group.phase == .ask and places > base.limits.full_mesh_max) return false;
    return group.roster.newcomers() >= group.least() or group.has_gaps();
}

/// Removes a peer from a group that it left, or in which it is lost. `why` is for the log, and for
/// the peer if it comes back.
pub fn remove_member(
    run: *Run,
    group: *Group,
    now: base.Instant,
    peer: *Peer,
    why: []const u8,
) !void {
    peer_away(run, group, now, peer, why);
    var lost: [2]*Epoch = undefined;
    var from: [2]journal.From = undefined;
    var lost_count: usize = 0;
    // The peer is detached from all epochs before anything may fail, because the caller frees it.
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
    lose_founder(run, now, group, peer.id);
    const entry: journal.Record = .{ .removal = .{
        .group = group.id,
        .peer = peer.id,
        .epochs = .of(from[0..lost_count]),
        .why = .of(group.removals.why_of(peer.id).?),
    } };
    const recorded = log.note(run, group, entry);
    for (lost[0..lost_count]) |item| item.recorded = recorded;
    log.add(run, entry); // before decisions that rely on the removal
    const epoch = lost[lost_count - 1];
    const out = "peer {f} is out of epoch {d}: {s}; {d} of {d} members remain in group {s}";
    run.log(.info, out, .{
        peer.named(),
        epoch.number,
        why,
        epoch.alive.count(),
        epoch.members.len,
        group.name,
    });
    // No peer can open lanes to the lost member: the round begins again without it.
    if (group.phase == .prepare) release_round(run, group);
    attempt.look_soon(group, now);
    for (lost[0..lost_count]) |item| {
        try operation.commit_voted(run, item);
        try attempt.begin(run, group, item);
    }
    try check_recovered(run, group, now);
    group.drop_empty();
    if (group.phase != .idle and !group.has_candidates()) {
        group.phase = .idle;
        group.round_deadline = base.never;
    }
    advance_round(run, group, now);
}

/// A peer has left a parent group: sub-groups that wait for this founder begin without it.
fn lose_founder(run: *Run, now: Instant, parent: *const Group, id: PeerId) void {
    for (run.groups.items) |group| {
        const founding = if (group.founding) |*it| it else continue;
        if (founding.parent != parent.id or group.had_members) continue;
        founding.gone.set(founding.place_of(id) orelse continue);
        advance_round(run, group, now);
    }
}

// ---- a peer is lost
//
// A peer is lost because its connection ended, or because the coordinator lets it go. A member that
// is away may come back within the silence limit (coordinator.zig), unless other members have seen
// its lanes close.

/// After a first member has seen a peer's lanes close, how long a second one may take to say so, in
/// ns.
pub const second_witness_ns = 100 * std.time.ns_per_ms;

/// A connection ended. `connection` is invalid afterwards.
pub fn closed(run: *Run, now: Instant, connection: *Connection) void {
    if (connection.peer) |peer| member_away(run, now, peer);
    forget_connection(run, connection);
}

fn forget_connection(run: *Run, connection: *Connection) void {
    for (run.connections.items, 0..) |item, index| if (item == connection) {
        _ = run.connections.swapRemove(index);
        break;
    };
    connection.destroy(run.gpa);
}

/// Closes doomed connections and loses their peers, until no further connection is doomed by that.
pub fn sweep(run: *Run, now: Instant) void {
    if (!run.shared.any_doomed) return;
    var index: usize = 0;
    while (index < run.connections.items.len) {
        const connection = run.connections.items[index];
        const why = connection.doomed orelse {
            index += 1;
            continue;
        };
        if (connection.peer) |peer| {
            disconnect(run, peer);
            lose(run, now, peer, why);
        }
        run.host.vtable.close(run.host.ctx, connection);
        forget_connection(run, connection);
        index = 0; // the loss of a peer may doom others
    }
    run.shared.any_doomed = false;
}

/// A coordinator without a journal ends: tells newcomers that the run is over. Members are told
/// nothing, because their calls may be in doubt; these end at their deadlines.
pub fn end_newcomers(run: *Run, now: Instant) void {
    if (run.journal_state != .off) return;
    for (run.connections.items) |connection| {
        const peer = connection.peer orelse continue;
        if (run.is_in_epoch(peer)) continue;
        run.say(peer, .{ .expelled = .{
            .group = std.math.maxInt(u16),
            .why = .of("the coordinator has ended, and without a journal the run ends with it"),
        } });
        connection.doom("the coordinator ends");
    }
    sweep(run, now);
}

pub fn disconnect(run: *Run, peer: *Peer) void {
    if (peer.connection) |connection| {
        run.lobby.disconnected(run.gpa, peer);
        connection.peer = null;
    }
    peer.connection = null;
    peer.present = 0;
    peer.may_probe = false;
    peer.telling = null;
    peer.refused = false;
    peer.claim.disconnected();
}

/// A peer's connection ended. A member may come back within the silence limit; any other peer is
/// lost, and may join again.
fn member_away(run: *Run, now: Instant, peer: *Peer) void {
    const why = "its connection to the coordinator closed";
    if (peer.connection.?.has_answered) peer.away_since = now;
    disconnect(run, peer);
    for (run.groups.items) |group| peer_away(run, group, now, peer, why);
    if (!run.is_member(peer)) return lose(run, now, peer, why);
    run.log(.info, "peer {f} is away: {s}", .{ peer.named(), why });
    peer.forget_witnesses(now -| run.options.heartbeat_ns);
    hear_witnesses(run, now, peer);
}

pub fn hear_witnesses(run: *Run, now: Instant, peer: *Peer) void {
    // A witness suggests that the peer is dead, and an attempt with a dead peer is in vain:
    // attempts wait for a second witness.
    if (peer.connection == null and peer.has_witness()) {
        for (run.groups.items) |group| for (group.epochs.items) |epoch| {
            if (epoch.replan_at == base.never or epoch.rank_of(peer) == null) continue;
            epoch.replan_at = @max(epoch.replan_at, now + second_witness_ns);
        };
    }
    lose_abandoned(run, now);
}

/// Loses members that are away and whose lanes others have seen close: their processes are dead. A
/// member that is away cannot object, so if two other members could have noticed, two must say so.
fn lose_abandoned(run: *Run, now: Instant) void {
    var index: usize = 0;
    while (index < run.peers.items.len) {
        const peer = run.peers.items[index];
        index += 1;
        if (peer.connection != null or !is_abandoned(run, peer)) continue;
        lose(run, now, peer, "it is away, and its lanes to other members are closed");
        index = 0; // other peers may now need fewer witnesses
    }
}

fn is_abandoned(run: *const Run, peer: *const Peer) bool {
    if (!peer.has_witness()) {
        // A newcomer's word counts only if no member is left that could have noticed.
        if (!peer.has_bystander()) return false;
        for (run.groups.items) |group| if (attempt.neighbours_of(group, peer) > 0) return false;
        return true;
    }
    for (&peer.witnesses) |*known| if (known.id.eql(.none)) {
        for (run.groups.items) |group| if (attempt.neighbours_of(group, peer) > 1) return false;
    };
    return true;
}

/// Takes a peer out of all groups and out of the run. `peer` is invalid afterwards.
pub fn lose(run: *Run, now: Instant, peer: *Peer, why: []const u8) void {
    run.log(.info, "peer {f} is gone: {s}", .{ peer.named(), why });
    disconnect(run, peer);
    for (run.groups.items) |group| take_out(run, now, group, peer, why);
    forget_peer(run, peer);
}

fn forget_peer(run: *Run, peer: *Peer) void {
    for (run.peers.items, 0..) |item, index| if (item == peer) {
        _ = run.peers.orderedRemove(index);
        break;
    };
    peer.destroy(run.gpa);
}

/// Forgets peers that are away and in no group.
pub fn forget_idle(run: *Run) void {
    var index = run.peers.items.len;
    while (index > 0) {
        index -= 1;
        const peer = run.peers.items[index];
        if (peer.connection == null and !run.is_member(peer)) forget_peer(run, peer);
    }
}

/// Removes a peer from one group, and tells the peer once the journal has the removal. A peer that
/// is away and in no other group is forgotten.
pub fn expel(run: *Run, now: Instant, group: *Group, peer: *Peer, why: []const u8) void {
    expel_as(run, now, group, peer, .{ .group = group.id, .why = .of(why) });
}

pub fn expel_as(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    told: control.Expelled,
) void {
    const why = told.why.data;
    run.log(.warning, "peer {f} must leave group {s}: {s}", .{
        peer.named(),
        group.name,
        why,
    });
    take_out(run, now, group, peer, why);
    run.send(peer, group.id, .{ .expelled = told });
    if (peer.connection == null and !run.is_member(peer)) forget_peer(run, peer);
}

pub fn take_out(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    why: []const u8,
) void {
    remove_member(run, group, now, peer, why) catch |err| {
        // Without memory the coordinator cannot keep its promises to the group, so it lets all
        // members go.
        run.log(.err, "group {s}: {t} while removing a peer", .{ group.name, err });
        for (run.peers.items) |other| {
            if (group.contains(other)) other.doom("the coordinator ran out of memory");
        }
    };
}

// ---- groups that end
//
// The end of groups without peers, and the welcome of a peer to a group. door.zig makes groups.

/// Ends groups that have no member, no newcomer, and no peer that asks for them.
pub fn end_groups(run: *Run) void {
    var index = run.groups.items.len;
    while (index > 0) {
        index -= 1;
        const group = run.groups.items[index];
        if (!is_over(run, group)) continue;
        run.log(.info, "group {s} has ended: nobody is in it", .{group.name});
        end_group(run, group);
    }
}

fn is_over(run: *const Run, group: *const Group) bool {
    if (group.epochs.items.len > 0 or group.newcomers.items.len > 0) return false;
    for (run.peers.items) |peer| {
        if (peer.is_present(group.id)) return false;
        if (peer.telling) |*telling| if (telling.group == group.id) return false;
        for (peer.claim.waiting.items) |*item| if (item.group == group.id) return false;
    }
    return true;
}

pub fn end_group(run: *Run, group: *Group) void {
    run.ended.epoch = @max(run.ended.epoch, group.last_epoch);
    run.ended.round = @max(run.ended.round, group.round);
    for (run.groups.items, 0..) |item, index| if (item == group) {
        _ = run.groups.orderedRemove(index);
        break;
    };
    group.destroy();
}

pub fn welcome_to(run: *Run, group: *const Group, peer: *Peer) void {
    peer.present |= @as(u64, 1) << @intCast(group.id);
    run.send(peer, group.id, .{ .joined = .{ .name = .of(group.name), .group = group.id } });
}

// ---- links between members
//
// Peers tell the health of their links, and ask for addresses. A link that broke begins another
// attempt, or shows that a member is dead. The ring goes around a link that stays broken
// (attempt.zig).

/// The delay from a broken link to a new attempt, in ns: if a peer's death broke the link, its
/// connection to the coordinator closes within this time.
const replan_ns = 20 * std.time.ns_per_ms;

/// A member says that lanes to another member broke: begins an attempt with the same members,
/// unless one of the two turns out to be dead.
pub fn on_link_lost(
    run: *Run,
    now: Instant,
    peer: *Peer,
    body: *const control.LinkLost,
) !void {
    const group = try run.group_of(peer, body.group);
    if (body.epoch == 0) return on_link_lost_to_newcomer(run, now, group, peer, body);
    const epoch = group.epoch_of(body.epoch) orelse return;
    if (epoch.rank_of(peer) == null) return;
    const rank = epoch.ranks.get(body.other) orelse return;
    const other = epoch.members[rank].peer orelse return;
    if (other == peer) return error.Unexpected;
    const is_news = body.attempt == epoch.attempt and epoch.running;
    // Reports of a member that tells broken links too often count later (`attempt_wait_ns`), but
    // another member's report may bring the attempt forward.
    const at = now + replan_ns + peer.rates.attempt_wait_ns(now);
    const is_put_off = epoch.replan_at > now + second_witness_ns;
    if (is_news and is_put_off and at < epoch.replan_at) {
        epoch.replan_at = at;
        peer.rates.cost_attempt(now);
    }
    if (body.state != .closed) return;
    other.witness(peer.id, now);
    hear_witnesses(run, now, other);
}

/// A newcomer of the round says that its lanes to a member closed: notes its word (`bystander`),
/// which may show that the member is dead.
fn on_link_lost_to_newcomer(
    run: *Run,
    now: Instant,
    group: *const Group,
    peer: *const Peer,
    body: *const control.LinkLost,
) void {
    const other = run.peer_of(body.other) orelse return;
    if (body.state != .closed or !group.is_in_round(peer) or !group.contains(other)) return;
    other.bystander = .{ .id = peer.id, .at = now };
    hear_witnesses(run, now, other);
}

/// A peer tells the health of a link: rings go around broken links, and a member with too few links
/// for any ring leaves the group.
pub fn on_link_told(
    run: *Run,
    now: Instant,
    peer: *Peer,
    body: control.LinkTold,
) ProtocolError!void {
    const group = try run.group_of(peer, body.group);
    const other = run.peer_of(body.other) orelse return;
    if (other == peer) return error.Unexpected;
    if (!group.contains(peer) or !group.contains(other)) return;
    const is_news = try group.broken.tell(run.gpa, peer.id, other.id, body.health);
    link_told(run, group, now, peer, &body);
    // At level debug, because a peer that tells this often must not push other lines out of the
    // log. Consequences have log lines of their own, and the status shows the health of links.
    run.log(.debug, "peer {f} says of its link to peer {f}: {t}", .{
        peer.named(),
        other.named(),
        body.health,
    });
    if (!is_news) return;
    group.look.ask(now + replan_ns + peer.rates.attempt_wait_ns(now), peer.id);
}

/// Tells a peer the address of another peer of the group, which it asked for.
pub fn on_ask_address(run: *Run, peer: *Peer, body: control.AskAddress) ProtocolError!void {
    const group = try run.group_of(peer, body.group);
    const other = run.peer_of(body.peer) orelse return;
    if (!group.contains(peer) or !group.contains(other)) return;
    var room: addresses.Room = undefined;
    const address = peer.told_to(other, &room);
    if (address.len == 0) return;
    run.send(peer, group.id, .{ .address_told = .{
        .peer = .{ .id = other.id, .address = .of(address) },
    } });
}
