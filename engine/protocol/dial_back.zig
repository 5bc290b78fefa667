//! DialBack: members dial a peer that wants to know whether they can reach it, and report the
//! result, before it matters (`pccl doctor`). They dial the address that rounds would tell them
//! (addresses.zig): the peer's connection comes from that host, or the peer was found there, so
//! nobody can make members dial a third party. The question must come from the peer's own network.
//! One peer is dialed at a time, each member dials it once, and so few members do that the peer's
//! places for strangers last. No decision depends on it. The member's half: session/dial_back.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const Coordinator = @import("coordinator.zig").Coordinator;
const Peer = @import("coordinator.zig").Peer;
const control = wire.control;
const hello = wire.hello;
const Instant = base.Instant;
const PeerId = base.PeerId;

pub const DialBack = struct {
    /// None: nobody has asked yet.
    peer: PeerId = .none,
    nonce: hello.Nonce = @splat(0),
    began_at: Instant = 0,
    entries: [members_max]Entry = undefined,
    count: usize = 0,
    /// Members that were not asked, because there are so many.
    left_out: usize = 0,

    /// Half of a peer's places for strangers: none of them is turned away.
    pub const members_max = base.limits.strangers_max / 2;
    /// Between two peers, if all have answered.
    const pace_ns = std.time.ns_per_s;
    /// Longer than a dial may take; nobody waits for an answer after that.
    const answer_ns = 8 * std.time.ns_per_s;
    /// The answers hold for so long, and a peer that has them is not dialed again.
    const keep_ns = std.time.ns_per_min;

    pub const Entry = struct {
        id: PeerId,
        /// Null: it has not said yet; `pending`: it has found the peer.
        answer: ?wire.Dialed = null,
    };

    pub fn slice(asked: *const DialBack) []const Entry {
        return asked.entries[0..asked.count];
    }

    /// Nobody is waited for any more.
    pub fn is_over(asked: *const DialBack, now: Instant) bool {
        if (now -| asked.began_at >= answer_ns) return true;
        for (asked.slice()) |*entry| if (entry.answer == null) return false;
        return true;
    }

    pub fn is_shown(asked: *const DialBack, now: Instant) bool {
        return !asked.peer.eql(.none) and now -| asked.began_at < keep_ns;
    }

    fn may_begin(asked: *const DialBack, now: Instant, peer: PeerId) bool {
        if (!asked.is_shown(now)) return true;
        if (asked.peer.eql(peer)) return false;
        return now -| asked.began_at >= pace_ns and asked.is_over(now);
    }
};

/// Somebody from `source` asks for it. Where it may not begin, the status shows the last one.
pub fn ask(c: *Coordinator, now: Instant, source: base.Source, id: PeerId) void {
    const peer = c.peer_of(id) orelse return;
    const connection = peer.connection orelse return;
    if (!base.places.same_network(connection.source, source)) return;
    if (!addresses.is_settled(peer) or !c.dial_back.may_begin(now, id)) return;
    c.dial_back = .{ .peer = id, .began_at = now };
    for (std.mem.bytesAsSlice(u64, &c.dial_back.nonce)) |*part| part.* = c.prng.next();
    for (c.groups.items) |group| for (group.epochs.items) |epoch| for (epoch.members) |*member| {
        const other = member.peer orelse continue;
        if (other != peer and other.connection != null) ask_member(c, other, peer);
    };
}

fn ask_member(c: *Coordinator, member: *Peer, peer: *const Peer) void {
    const asked = &c.dial_back;
    // It may be in several groups, and epochs.
    for (asked.slice()) |*entry| if (entry.id.eql(member.id)) return;
    if (asked.count == asked.entries.len) {
        asked.left_out += 1;
        return;
    }
    var room: addresses.Room = undefined;
    const address = addresses.told_to(member, peer, &room);
    asked.entries[asked.count] = .{
        .id = member.id,
        .answer = if (address.len == 0) .no_address else null,
    };
    asked.count += 1;
    if (address.len > 0) member.say(.{ .dial_back = .{
        .peer = peer.id,
        .nonce = asked.nonce,
        .address = .of(address),
    } });
}

/// A member says how it went. It could make up a failure, and no proof.
pub fn told(c: *Coordinator, member: *const Peer, body: *const control.DialedBack) void {
    const asked = &c.dial_back;
    if (!std.mem.eql(u8, &asked.nonce, &body.nonce)) return; // of one before
    for (asked.entries[0..asked.count]) |*entry| {
        if (!entry.id.eql(member.id) or entry.answer != null) continue;
        const is_found = body.dialed == .pending and is_proof(c, &body.proof);
        entry.answer = if (body.dialed == .pending and !is_found) .other_answers else body.dialed;
    }
}

fn is_proof(c: *const Coordinator, proof: *const hello.Proof) bool {
    const peer = c.peer_of(c.dial_back.peer) orelse return false; // it has gone
    const wanted = hello.proof(&peer.claim.key, c.options.run_id, peer.id, c.dial_back.nonce);
    return std.crypto.timing_safe.eql(hello.Proof, proof.*, wanted);
}
