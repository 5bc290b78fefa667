//! links: what peers say of the links to each other, and where they ask for an address. A link that
//! broke begins another attempt, or shows that a member is dead (losses.zig); the ring goes around
//! one that stays broken (detours.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const dials = @import("dials.zig");
const losses = @import("losses.zig");
const post = @import("post.zig");
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const control = wire.control;

/// Lanes that broke may mean that a peer died; its closed control connection tells within this
/// time.
const replan_ns = 20 * std.time.ns_per_ms;

/// Lanes between two members broke: a new attempt with the same members, unless one of the two
/// turns out to be dead.
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
    // Whoever says so all the time does not make others wait who have reason to say so.
    const at = now + replan_ns + peer.rates.attempt_wait_ns(now);
    const is_put_off = epoch.replan_at > now + losses.second_witness_ns;
    if (is_news and is_put_off and at < epoch.replan_at) {
        epoch.replan_at = at;
        peer.rates.cost_attempt(now);
    }
    if (body.state != .closed) return;
    other.witness(peer.id, now);
    losses.hear_witnesses(run, now, other);
}

/// It had lanes to a member, for the round that lets it in.
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
    losses.hear_witnesses(run, now, other);
}

/// How a link of this peer is: the ring goes around those that are broken, and who is left with
/// too few of them for any ring leaves the group.
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
    dials.link_told(run, group, now, peer, &body);
    // Whoever says it as often as it likes must not push other lines out of the log; what
    // follows from it is a line of its own, and the status shows how links are now.
    run.log(.debug, "peer {f} says of its link to peer {f}: {t}", .{
        peer.named(),
        other.named(),
        body.health,
    });
    if (!is_news) return;
    group.look.ask(now + replan_ns + peer.rates.attempt_wait_ns(now), peer.id);
}

/// Rounds tell only what is new in them: whoever needs another address asks.
pub fn on_ask_address(run: *Run, peer: *Peer, body: control.AskAddress) ProtocolError!void {
    const group = try run.group_of(peer, body.group);
    const other = run.peer_of(body.peer) orelse return;
    if (!group.contains(peer) or !group.contains(other)) return;
    var room: addresses.Room = undefined;
    const address = peer.told_to(other, &room);
    if (address.len == 0) return;
    post.send(run, peer, group.id, .{ .address_told = .{
        .peer = .{ .id = other.id, .address = .of(address) },
    } });
}
