//! DialBack: the peer that members were asked to dial last, and what they have said of it. The
//! rules of that: doctor.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Instant = base.Instant;
const PeerId = base.PeerId;
const hello = wire.hello;

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

    pub fn may_begin(asked: *const DialBack, now: Instant, peer: PeerId) bool {
        if (!asked.is_shown(now)) return true;
        if (asked.peer.eql(peer)) return false;
        return now -| asked.began_at >= pace_ns and asked.is_over(now);
    }
};
