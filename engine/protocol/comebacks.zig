//! comebacks: a member has a connection again and has told everything (claims.zig). It hears what
//! it has missed, and its epoch begins another attempt. After a restart that is so when all members
//! of the group are back. A member that has left an epoch behind is here, too.

const base = @import("base");
const activation = @import("activation.zig");
const attempts = @import("attempts.zig");
const decisions = @import("decisions.zig");
const detours = @import("detours.zig");
const entering = @import("entering.zig");
const measured = @import("measured.zig");
const post = @import("post.zig");
const reports = @import("reports.zig");
const rounds = @import("rounds.zig");
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Rounds = @import("peer.zig").Rounds;
const Run = @import("run.zig").Run;

/// A peer begins to tell what it is a member of.
pub fn begin_report(group: *Group, peer: *const Peer) void {
    group.broken.forget_from(peer.id);
    for (group.epochs.items) |epoch| {
        if (epoch.rank_of(peer)) |rank| epoch.members[rank].named = false;
    }
}

/// A member has told everything. A coordinator that has started again answers when all have,
/// because what one knows may change the answer to another.
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
    // The round under way asked it on a connection that is gone.
    rounds.release(run, group);
    try answer(run, group, peer, waited_for);
    for (group.epochs.items) |epoch| {
        const rank = epoch.rank_of(peer) orelse continue;
        if (!epoch.closed.has(rank)) try detours.new_attempt(run, group, epoch);
    }
    group.drop_empty();
    rounds.advance(run, group, now);
}

/// Tells a member what it does not know.
fn answer(run: *Run, group: *Group, peer: *Peer, waited_for: Rounds) ProtocolError!void {
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
            try reports.on_closed(run, epoch, rank); // it is in a later one, and not in this
        } else if (epoch.activated.has(rank)) {
            return peer.doom("it has forgotten what it is a member of");
        } else {
            activation.announce(run, epoch, rank);
            told = true;
        }
    }
    // Whatever it waits for will not come. A peer that is let into an epoch stays where it
    // stopped.
    if (!told) for ([_]u64{ waited_for.preparing, waited_for.stopping }) |round| {
        if (round == 0) continue;
        post.send(run, peer, group.id, .{ .release = .{ .group = group.id, .round = round } });
    };
    for (group.epochs.items) |epoch| {
        const rank = epoch.rank_of(peer) orelse continue;
        if (!epoch.closed.has(rank)) decisions.tell_missed(run, epoch, rank);
        entering.tell(run, epoch, rank);
        measured.forget(epoch, rank);
    }
}

/// After a restart: goes on when every member is back or lost.
pub fn check_recovered(run: *Run, group: *Group, now: base.Instant) ProtocolError!void {
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
    for (group.returned.items) |item| try answer(run, group, item.peer, item.rounds);
    group.returned.clearAndFree(group.gpa);
    group.drop_empty();
    for (group.epochs.items) |epoch| try detours.new_attempt(run, group, epoch);
    detours.look_soon(group, now);
    if (group.current() != null) group.phase = .activate; // until all have entered
    run.log(.info, "group {s} goes on after a restart", .{group.name});
    rounds.advance(run, group, now);
}

pub fn on_closed(run: *Run, group: *Group, now: base.Instant, peer: *Peer, number: u64) !void {
    const epoch = group.epoch_of(number) orelse return;
    const rank = epoch.rank_of(peer) orelse return;
    // One that has entered no later one has closed nothing.
    const later = group.current().?;
    const place = later.rank_of(peer) orelse return;
    if (epoch == later or !later.activated.has(place)) return error.Unexpected;
    try reports.on_closed(run, epoch, rank);
    group.drop_empty();
    rounds.advance(run, group, now);
}
