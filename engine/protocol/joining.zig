//! joining: a peer asks for a group and tells what it is a member of: `join`, the epochs and
//! decisions that it knows, `join_end`. Then it is a newcomer (finding.zig), a member that has come
//! back (comebacks.zig), or it hears that it is no member any more.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const arrivals = @import("arrivals.zig");
const claims = @import("claims.zig");
const comebacks = @import("comebacks.zig");
const finding = @import("finding.zig");
const founders = @import("founders.zig");
const groups = @import("groups.zig");
const journaling = @import("journaling.zig");
const losses = @import("losses.zig");
const post = @import("post.zig");
const votes = @import("votes.zig");
const fault_of = @import("peer.zig").fault_of;
const Group = @import("group.zig").Group;
const Lobby = @import("lobby.zig").Lobby;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;
const Told = @import("lobby.zig").Told;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;

const knows_more = "it knows more than the coordinator, which has started again without its " ++
    "journal, or with one that had failed";

pub fn on_join(run: *Run, now: Instant, peer: *Peer, body: *const control.Join) !void {
    const name = body.name.data;
    if (name.len == 0) return error.Unexpected;
    if (peer.telling != null or peer.refused) return error.Unexpected;
    // Both are shown to people, and the address is dialed by others.
    if (!base.text.is_name(name)) return refuse_group(
        run,
        peer,
        name,
        "its name cannot be shown: it must be UTF-8 without control characters, line ends " ++
            "and marks that turn the writing",
    );
    _ = base.Endpoint.parse_told(body.address.data) catch return refuse_group(
        run,
        peer,
        name,
        "the address of this peer is not that of one host, with a port",
    );
    peer.claim.advertised = body.advertised;
    peer.label = base.Label.read(body.label.data) orelse return refuse_group(
        run,
        peer,
        name,
        "the label of this peer cannot be shown: it must be UTF-8 without control " ++
            "characters, line ends and marks that turn the writing",
    );
    try finding.claim_told(run, peer, body.address.data, body.address_key);
    const known = run.group_named(name);
    // A peer asks again when it has the answer.
    if (run.lobby.holds(peer, name)) return error.Unexpected;
    if (known) |group| if (peer.claim.waits_for(group.id)) return error.Unexpected;
    const own = if (known) |group| Peer.bit(group.id) else 0;
    const others = @popCount(peer.present & ~own) + peer.claim.waiting.items.len +
        peer.joins_waiting;
    if (others >= limits.groups_per_peer_max)
        return refuse_group(run, peer, name, "this peer is in 8 groups already; leave one first");
    const told: Told = .of(body);
    // A member that comes back tells all its groups again, and loses those that it cannot tell
    // within the silence limit.
    const is_member_here = if (known) |group| group.contains(peer) else false;
    if (!is_member_here and try arrivals.set_aside(run, now, peer, body)) {
        peer.telling = telling_of(null, &told);
    } else try begin_telling(run, peer, name, &told);
}

fn begin_telling(
    run: *Run,
    peer: *Peer,
    name: []const u8,
    told: *const Told,
) Allocator.Error!void {
    if (founders.objection(run, name, peer, &told.founders)) |why|
        return refuse_group(run, peer, name, why);
    const group = run.group_named(name) orelse
        try make_group(run, name, peer, &told.founders) orelse
        return refuse_group(run, peer, name, "the run has 64 groups already; use one of them");
    if (group.contains(peer) and peer.is_present(group.id))
        return refuse_group(run, peer, name, "this peer is in the group already");
    peer.present &= ~Peer.bit(group.id);
    peer.telling = telling_of(group, told);
    comebacks.begin_report(group, peer);
}

fn telling_of(group: ?*const Group, told: *const Told) Peer.Telling {
    return .{
        .group = if (group) |known| known.id else null,
        .rounds = told.rounds,
        .initial_world_size = told.initial_world_size,
        .named = told.newest > 0,
        .newest = told.newest,
        .beyond = told.newest > if (group) |known| known.last_epoch else 0,
    };
}

/// Null: there are too many.
fn make_group(
    run: *Run,
    name: []const u8,
    peer: *const Peer,
    told: *const control.Founders,
) Allocator.Error!?*Group {
    if (run.groups.items.len >= limits.groups_max) groups.end_groups(run);
    if (run.groups.items.len >= limits.groups_max) return null;
    try run.groups.ensureUnusedCapacity(run.gpa, 1);
    var id = run.next_group;
    while (run.group_at(id) != null) id = (id + 1) % limits.groups_max;
    var founded = try founders.of(run, peer, told);
    errdefer if (founded) |*it| it.deinit(run.gpa);
    const is_founded = founded != null;
    const group = try Group.create(run.gpa, .{
        .id = id,
        .name = name,
        .initial_world_size = if (is_founded) 1 else run.options.initial_world_size,
        .min_world_size = if (is_founded) 1 else run.options.min_world_size,
        .prepare_ns = run.options.prepare_ns,
        .round = run.first_round(),
        .founding = founded,
    });
    run.next_group = (id + 1) % limits.groups_max;
    // A group of this name, or of this number, may have been there before.
    group.last_epoch = @max(group.last_epoch, run.ended.epoch);
    group.round = @max(group.round, run.ended.round);
    run.groups.appendAssumeCapacity(group);
    _ = journaling.note(run, group, .{ .group = group.record() });
    return group;
}

fn refuse_group(run: *Run, peer: *Peer, name: []const u8, why: []const u8) void {
    peer.refused = true;
    post.say(run, peer, .{ .refused = .{ .name = .of(name), .why = .of(why) } });
}

pub fn on_epoch_report(
    run: *const Run,
    peer: *Peer,
    body: *const control.EpochReport,
) ProtocolError!void {
    if (peer.refused) return;
    const telling = if (peer.telling) |*telling| telling else return error.Unexpected;
    telling.named = true;
    telling.newest = @max(telling.newest, body.epoch);
    const group = run.group_at(telling.group orelse return).?;
    if (body.epoch > group.last_epoch) telling.beyond = true;
    const epoch = group.epoch_of(body.epoch) orelse return; // it is over
    const rank = epoch.rank_of(peer) orelse return;
    // It knows of a removal that this coordinator does not: the journal has lost it.
    if (!body.alive.covers(&epoch.alive)) telling.beyond = true;
    try claims.on_report(epoch, rank, body);
}

pub fn on_known(run: *const Run, peer: *Peer, message: claims.Known) ProtocolError!void {
    if (peer.refused) return;
    const telling = peer.telling orelse return error.Unexpected;
    const number = switch (message) {
        inline else => |body| body.epoch,
    };
    const group = run.group_at(telling.group orelse return).?;
    const epoch = group.epoch_of(number) orelse return;
    const rank = epoch.rank_of(peer) orelse return;
    try claims.on_known(epoch, rank, message);
}

/// While it tells, it is the group that it tells of, whose number it may not know yet.
pub fn on_gave_up(run: *Run, peer: *Peer, body: *const control.GaveUp) ProtocolError!void {
    if (peer.refused) return;
    const group = if (peer.telling) |*telling|
        run.group_at(telling.group orelse return).?
    else
        try run.group_of(peer, body.group);
    const epoch = group.epoch_of(body.epoch) orelse return; // it is over
    const rank = epoch.rank_of(peer) orelse return;
    try votes.on_gave_up(run, epoch, rank, body);
}

/// Everything is told: the peer is a newcomer, a member that came back, or was let go.
pub fn on_join_end(run: *Run, now: Instant, peer: *Peer) ProtocolError!void {
    if (peer.refused) {
        peer.refused = false;
        return;
    }
    const telling = peer.telling orelse return error.Unexpected;
    peer.telling = null;
    const id = telling.group orelse return arrivals.is_whole(run, peer, telling.newest);
    const group = run.group_at(id).?;
    const knows = telling.named or group.was_let_in(peer, telling.rounds.preparing);
    if (!knows) losses.take_out(run, now, group, peer, "it left while it was away");
    // The journal could not be written then, and the coordinator has died since.
    if (telling.beyond) losses.take_out(run, now, group, peer, knows_more);
    const is_member_here = group.contains(peer);
    if (!is_member_here and !telling.named)
        return finding.admit(run, now, group, peer, telling.initial_world_size);
    groups.welcome_to(run, group, peer);
    if (is_member_here) {
        try finding.settle(run, now, peer);
        return comebacks.come_back(run, group, now, peer, telling.rounds);
    }
    post.send(run, peer, group.id, .{ .expelled = .{
        .group = group.id,
        .why = .of(if (telling.beyond) knows_more else group.removals.why_of(peer.id) orelse
            "it was removed, so long ago that the coordinator does not know why any more"),
    } });
}

/// The last that the peer says of the group, after an `expelled` as well; whatever it says of
/// the number from now on is of another group.
pub fn on_leave(run: *Run, now: Instant, peer: *Peer, id: u16) void {
    // It may say so twice of a group whose number it did not know yet.
    if (!peer.is_present(id)) return;
    losses.take_out(run, now, run.group_at(id).?, peer, "it left");
    peer.present &= ~Peer.bit(id);
    peer.idle_since = now;
    run.due_at = @min(run.due_at, now +| limits.idle_ns_max);
}

/// At a tick: lets those in whose time has come. A peer that is telling something is asked the next
/// time.
pub fn let_in(run: *Run, now: Instant) void {
    var index: usize = 0;
    while (index < run.lobby.waiting.items.len) {
        const item = &run.lobby.waiting.items[index];
        const peer = item.peer;
        const may_enter = item.is_whole and peer.telling == null and !peer.refused;
        const wait_ns = if (may_enter)
            arrivals.pay(run, now, peer, arrivals.aim_of(run, item.name, &item.told.founders))
        else
            limits.pause_ns_max;
        if (wait_ns > 0) {
            arrivals.look_again(run, now, wait_ns);
            index += 1;
            continue;
        }
        const gone = run.lobby.remove(index);
        defer Lobby.free(run.gpa, &gone);
        peer.idle_since = now;
        enter(run, now, &gone) catch |err| peer.doom(fault_of(err));
    }
}

fn enter(run: *Run, now: Instant, item: *const Lobby.Waiting) ProtocolError!void {
    const peer = item.peer;
    try begin_telling(run, peer, item.name, &item.told);
    if (peer.telling != null) return on_join_end(run, now, peer);
    peer.refused = false; // it has told everything already
}
