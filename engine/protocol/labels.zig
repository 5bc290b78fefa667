//! labels: who hears the names of peers for people, with a round of the group (rounds.zig). A peer
//! says its own in `join`; the coordinator keeps it as long as the peer, so no label is in the
//! journal.

const base = @import("base");
const wire = @import("wire");
const Circular = @import("post.zig").Circular;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const control = wire.control;

/// The peers of a round: first the members, who hear the names of those who are new, then these,
/// who hear all. Comes behind `prepare`.
pub fn tell(run: *Run, group: u16, peers: []const *Peer, members: usize) void {
    var buffer: [base.limits.peers_max]control.LabelEntry = undefined;
    tell_some(run, group, peers[members..], entries(peers, &buffer));
    tell_some(run, group, peers[0..members], entries(peers[members..], &buffer));
}

fn tell_some(run: *Run, group: u16, peers: []const *Peer, told: []const control.LabelEntry) void {
    if (told.len == 0) return;
    const message: control.Message = .{ .labels = .{ .group = group, .peers = .of(told) } };
    var circular: Circular = .{ .message = &message };
    for (peers) |peer| circular.send(run, group, peer);
}

/// An entry for each of them that has a name.
fn entries(
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
