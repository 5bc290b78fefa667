//! rounds: how newcomers become members of a group.
//!
//! A round has four phases. prepare: members and newcomers open lanes to each other while they
//! work; when the first can go on, the others have a little time, and then the round begins again
//! without them (roster.zig, patience.zig). ask: members tell how many safe points they have
//! passed, and stop at their next one. activate: the epoch begins at the largest count plus one, as
//! far as that can be believed (epoch.zig: last_safe_point). Then every member says that it has
//! entered, and the next round may start. A loss is followed by such a round too, without
//! newcomers: ranks are dense again from the next safe point on.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const activation = @import("activation.zig");
const addresses = @import("addresses.zig");
const candidates = @import("candidates.zig");
const dials = @import("dials.zig");
const entering = @import("entering.zig");
const labels = @import("labels.zig");
const path_search = @import("path_search.zig");
const post = @import("post.zig");
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const ranks_of = @import("peer.zig").ranks_of;
const Roster = @import("roster.zig").Roster;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const control = wire.control;

const doublings_max = 4;

pub fn add(
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
        // It waits for nobody in particular, so it lets this one in.
        .any_user => release(run, group),
        // Nobody can enter yet: the next round has this one, so it must not be long in coming.
        .lanes => group.round_deadline = @min(
            group.round_deadline,
            @max(now, group.round_began +| patience_ns(group)),
        ),
    };
    advance(run, group, now);
}

/// Starts a round if one is due, and moves it on. Each step first has all its memory: without
/// it nothing has changed, and the next tick tries again.
pub fn advance(run: *Run, group: *Group, now: base.Instant) void {
    step(run, group, now) catch {
        group.out_of_memory = true; // the coordinator says so at its tick
    };
}

fn step(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    try start_round(run, group, now);
    try evaluate(run, group, now);
}

/// Starts a round if nothing is under way and somebody waits, or a rank is empty.
fn start_round(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    if (group.phase != .idle or group.epochs.items.len > 1 or group.recovering) return;
    if (awaits_address(group)) return;
    if (now < group.round_due() or !candidates.take_newcomers(group, now)) return;
    errdefer candidates.take_nobody(group);
    const peers = try candidates.future_members(group);
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
    if (!is_first and !group.narrow and candidates.leaves_some_out(group, now))
        group.round_deadline = now +| patience_ns(group);
    group.next_round_at = now +| (Group.interval_ns << doublings);
    group.fruitless +|= 1;
}

/// Members hear who is new, newcomers who all are, and each the addresses of those to which it
/// is to have lanes.
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
        post.send(run, peer, group.id, .{ .prepare = .{
            .group = group.id,
            .round = group.round,
            .members = .of(group.roster.ids_from(known, &buffer)),
            .links = .of(entries[0..linked.len]),
        } });
    }
    labels.tell(run, group.id, peers, group.roster.members);
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
    dials.prepared(run, group, now, peer, &body.missing);
    if (newcomer) |item| {
        item.prepared = body.missing.count == 0;
        item.entering = body.entering;
    }
    advance(run, group, now);
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
    advance(run, group, now);
}

pub fn on_activated(run: *Run, group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
    const epoch = group.epoch_of(number) orelse return;
    const rank = epoch.rank_of(peer) orelse return;
    epoch.activated.set(rank);
    entering.entered(run, epoch, rank);
    advance(run, group, now);
}

/// Moves the round on if everybody it waits for has answered.
fn evaluate(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    if (group.phase == .prepare) {
        if (group.roster.waits()) return hurry(group, now);
        // Only those who have gone since are missed.
        if (!group.roster.is_whole()) return begin_again(run, group, now, .lanes);
        const is_left_out = try leave_out_unreachable(run, group, now) orelse return;
        if (is_left_out) return start_round(run, group, now);
        const some = count_entering(group);
        if (some < group.roster.newcomers()) {
            // Lanes are open: from here on it is their users who take their time.
            // Founders enter together or not at all.
            const others_wait = group.has_gaps() or (some > 0 and group.founding == null);
            return wait_for(group, now, if (others_wait) .users else .any_user);
        }
        group.phase = .ask;
        group.round_deadline = now +| run.options.silence_ns;
        if (group.current()) |epoch| post.broadcast(run, epoch, .{ .ask_safe_points = .{
            .group = group.id,
            .round = group.round,
        } });
        ask_members(group, now);
    }
    if (group.phase == .ask) {
        const last = if (group.current()) |epoch| epoch.last_safe_point() orelse return else 0;
        try activation.activate(run, group, now, last + 1);
    }
    if (group.phase == .activate) {
        const epoch = group.current().?;
        if (!epoch.activated.covers(&epoch.alive)) return;
        group.phase = .idle;
        try start_round(run, group, now);
    }
}

/// Lanes are missing. Once some newcomers could enter without the others, or members go on by
/// themselves, the rest has little time.
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
    if (whom == .any_user) candidates.open_to_all(group);
    group.round_deadline = switch (whom) {
        .lanes => unreachable, // that is how a round begins
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

/// The round begins again with those who are ready. By their lanes alone, or by their users as
/// well: those whose lanes are not open wait before they are tried again.
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
    release(run, group);
    try start_round(run, group, now);
}

/// The time of a preparation is over. If nobody can be left out, it goes on: members have to
/// find out what has become of their own links.
pub fn end_preparation(run: *Run, group: *Group, now: base.Instant) Allocator.Error!void {
    if (group.waits_for == .users) return begin_again(run, group, now, .users);
    if (fit(group).count < group.roster.newcomers()) return begin_again(run, group, now, .lanes);
    group.round_deadline = now +| group.prepare_ns;
}

/// With all newcomers of the round there would be no way around broken links: the one that
/// reaches fewest is not let in now. Null: it is too early to look, and the round waits.
fn leave_out_unreachable(run: *Run, group: *Group, now: base.Instant) Allocator.Error!?bool {
    if (group.broken.claims.items.len == 0) return false;
    const found: Group.Found = .{
        .round = group.round,
        .gone = group.roster.gone.count(),
        .changes = group.broken.changes,
    };
    if (std.meta.eql(found, group.found)) return false;
    if (now < group.look.not_before) return null;
    const peers = try candidates.future_members(group);
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
    if (path_search.paths(&all, peers.len, &edges) != null) return false;
    const index = edges.worst(&all, &newcomers) orelse return false;
    run.log(.warning, "peer {f} is not let in now: it and others of group {s} " ++
        "cannot reach each other", .{ peers[index].named(), group.name });
    group.patience.lose(group.gpa, peers[index].id, now);
    group.newcomer_of(peers[index]).?.chosen = false;
    release(run, group);
    return true;
}

/// Ends a preparation.
pub fn release(run: *Run, group: *Group) void {
    if (group.phase != .prepare and group.phase != .ask) return;
    const message: control.Message = .{ .release = .{
        .group = group.id,
        .round = group.round,
    } };
    if (group.current()) |epoch| post.broadcast(run, epoch, message);
    for (group.newcomers.items) |*newcomer| {
        if (!newcomer.in_round) continue;
        post.send(run, newcomer.peer, group.id, message);
        newcomer.in_round = false;
    }
    group.phase = .idle;
    group.round_deadline = base.never;
}

/// How long those who can enter wait for those who can not yet.
fn patience_ns(group: *const Group) u64 {
    return group.prepare_ns / 5;
}

/// Newcomers could not dial some member yet.
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

/// Lanes that are there or missing, and safe points, are told at once, whatever the user does:
/// while they are not, newcomers wait, and in the end all others stop.
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
