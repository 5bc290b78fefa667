//! Unreached: which peers of a group could not dial which others, by their own words. The peers
//! that hear of it: dials.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const Dialed = wire.Dialed;

/// The other side and the log hear of one pair no more often.
const tell_ns = 30 * std.time.ns_per_s;

pub const Unreached = struct {
    /// About peers that a round has asked for lanes to each other.
    claims: std.ArrayList(Claim) = .empty,

    pub const Claim = struct {
        from: PeerId,
        to: PeerId,
        /// `pending` once it can, or need not any more.
        dialed: Dialed,
        source: base.Source,
        /// Null: the other side and the log have not heard of it.
        told_at: ?Instant,

        pub fn is_due(claim: *const Claim, now: Instant) bool {
            return now -| (claim.told_at orelse return true) >= tell_ns;
        }
    };

    pub fn deinit(unreached: *Unreached, gpa: Allocator) void {
        unreached.claims.deinit(gpa);
    }

    pub fn find(unreached: *const Unreached, from: PeerId, to: PeerId) ?*Claim {
        for (unreached.claims.items) |*claim| {
            if (claim.from.eql(from) and claim.to.eql(to)) return claim;
        }
        return null;
    }

    /// Pairs of this peer that were told lately.
    pub fn told_by(unreached: *const Unreached, from: PeerId, now: Instant) usize {
        var count: usize = 0;
        for (unreached.claims.items) |*claim| {
            count += @intFromBool(claim.from.eql(from) and !claim.is_due(now));
        }
        return count;
    }

    /// The peer is gone.
    pub fn forget(unreached: *Unreached, id: PeerId) void {
        var index = unreached.claims.items.len;
        while (index > 0) {
            index -= 1;
            const claim = &unreached.claims.items[index];
            if (claim.from.eql(id) or claim.to.eql(id)) _ = unreached.claims.swapRemove(index);
        }
    }
};
