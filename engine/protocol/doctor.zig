//! doctor: members dial a peer that wants to know whether they can reach it, and report the result,
//! before it matters (`pccl doctor`). They dial the address that rounds would tell them
//! (finding.zig): the peer's connection comes from that host, or the peer was found there, so
//! nobody can make members dial a third party. The question must come from the peer's own network.
//! One peer is dialed at a time, each member dials it once, and so few members do that the peer's
//! places for strangers last. No decision depends on it. The member's half: session/dial_back.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const post = @import("post.zig");
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const hello = wire.hello;

/// Somebody from `source` asks for it. Where it may not begin, the status shows the last one.
pub fn ask(run: *Run, now: Instant, source: base.Source, id: PeerId) void {
    const peer = run.peer_of(id) orelse return;
    const connection = peer.connection orelse return;
    if (!base.places.same_network(connection.source, source)) return;
    if (!peer.claim.is_settled() or !run.dial_back.may_begin(now, id)) return;
    run.dial_back = .{ .peer = id, .began_at = now };
    for (std.mem.bytesAsSlice(u64, &run.dial_back.nonce)) |*part| part.* = run.prng.next();
    for (run.groups.items) |group| for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        const other = member.peer orelse continue;
        if (other != peer and other.connection != null) ask_member(run, other, peer);
    };
}

fn ask_member(run: *Run, member: *Peer, peer: *const Peer) void {
    const asked = &run.dial_back;
    // It may be in several groups, and epochs.
    for (asked.slice()) |*entry| if (entry.id.eql(member.id)) return;
    if (asked.count == asked.entries.len) {
        asked.left_out += 1;
        return;
    }
    var room: addresses.Room = undefined;
    const address = member.told_to(peer, &room);
    asked.entries[asked.count] = .{
        .id = member.id,
        .answer = if (address.len == 0) .no_address else null,
    };
    asked.count += 1;
    if (address.len > 0) post.say(run, member, .{ .dial_back = .{
        .peer = peer.id,
        .nonce = asked.nonce,
        .address = .of(address),
    } });
}

/// A member says how it went. It could make up a failure, and no proof.
pub fn told(run: *Run, member: *const Peer, body: *const control.DialedBack) void {
    const asked = &run.dial_back;
    if (!std.mem.eql(u8, &asked.nonce, &body.nonce)) return; // of one before
    for (asked.entries[0..asked.count]) |*entry| {
        if (!entry.id.eql(member.id) or entry.answer != null) continue;
        const is_found = body.dialed == .pending and is_proof(run, &body.proof);
        entry.answer = if (body.dialed == .pending and !is_found) .other_answers else body.dialed;
    }
}

fn is_proof(run: *const Run, proof: *const hello.Proof) bool {
    const peer = run.peer_of(run.dial_back.peer) orelse return false; // it has gone
    const wanted = hello.proof(&peer.claim.key, run.options.run_id, peer.id, run.dial_back.nonce);
    return std.crypto.timing_safe.eql(hello.Proof, proof.*, wanted);
}
