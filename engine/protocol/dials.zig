//! dials: what peers say of dials that came to nothing. The status has it, and the log and the
//! peer that was dialed hear of it, at most once in a while for each pair. No decision depends on
//! it: lanes decide who is let in (roster.zig), and links the way of data (broken.zig).

const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const awaited = @import("awaited.zig");
const post = @import("post.zig");
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const control = wire.control;

/// The others and the log hear of so many pairs of one peer in that time (unreached.zig).
const tells_max = base.limits.full_mesh_max;

/// A peer has said which lanes it lacks; the roster has heard it.
pub fn prepared(
    run: *Run,
    group: *Group,
    now: Instant,
    from: *Peer,
    missing: *const wire.codec.List(control.Missing),
) void {
    for (group.unreached.claims.items) |*claim| {
        if (!claim.from.eql(from.id) or group.roster.lacks(from.id, claim.to)) continue;
        // A round does not wait for a link that is down, and does not name it.
        if (!group.broken.has(from.id, claim.to)) claim.dialed = .pending;
    }
    var it = missing.iterator();
    var lacks_away = false;
    while (it.next()) |entry| {
        if (entry.dialed == .pending or !group.roster.lacks(from.id, entry.peer)) continue;
        const other = run.peer_of(entry.peer) orelse continue;
        lacks_away = lacks_away or other.connection == null;
        say(run, group, now, from, entry);
    }
    if (lacks_away and group.newcomer_of(from) != null) awaited.tell_of_away(run, group, from);
}

/// A peer has said how a link of its is; both are of the group.
pub fn link_told(
    run: *Run,
    group: *Group,
    now: Instant,
    from: *Peer,
    body: *const control.LinkTold,
) void {
    if (body.health == .down and body.dialed != .pending)
        return say(run, group, now, from, .{
            .peer = body.other,
            .dialed = body.dialed,
            .source = body.source,
        });
    if (body.health != .up) return;
    if (group.unreached.find(from.id, body.other)) |claim| claim.dialed = .pending;
}

/// A peer that is away may be dead: if nobody can dial it, its ports need not be at fault.
/// Newcomers hear that they wait for it (awaited.zig); nobody else hears anything.
fn say(run: *Run, group: *Group, now: Instant, from: *Peer, missing: control.Missing) void {
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
    }) catch return; // it is said again
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
    post.send(run, other, group.id, .{ .unreached = .{
        .group = group.id,
        .peer = from.id,
        .dialed = missing.dialed,
        .source = missing.source,
        .address = .of(address),
    } });
}
