//! late: which member calls last. A vote says how long ago the call was, so the coordinator knows
//! when each member called, on its own clock. The last one held up all others from the second last
//! call on. That time is counted for the status, over all groups of a peer; no decision depends on
//! it. A member that lies about its call can hide, or blame itself.

const std = @import("std");
const base = @import("base");
const Instant = base.Instant;

/// Less is the noise of networks and machines.
pub const margin_ns_min = std.time.ns_per_ms;

/// The calls of one operation, in the current attempt.
pub const Calls = struct {
    last: Instant = 0,
    second_last: Instant = 0,
    /// Whose is the last.
    rank: u16 = 0,
    count: u32 = 0,

    pub fn note(calls: *Calls, rank: u16, now: Instant, age_ns: u64) void {
        const at = now -| age_ns;
        calls.count += 1;
        if (at < calls.last) {
            calls.second_last = @max(calls.second_last, at);
            return;
        }
        calls.second_last = calls.last;
        calls.last = at;
        calls.rank = rank;
    }
};

/// The account of a peer.
pub const Late = struct {
    /// Operations that it has called, and in which it was the last by more than noise.
    calls: u64 = 0,
    last: u64 = 0,
    /// The time that others have waited for it alone, in all of these.
    ns: u64 = 0,
};

test "the last call is found in any order of the votes, and by how much it was late" {
    const orders = [_][3]u16{ .{ 0, 1, 2 }, .{ 2, 1, 0 }, .{ 1, 2, 0 }, .{ 0, 2, 1 } };
    const at = [_]u64{ 100, 130, 120 };
    for (orders) |order| {
        var calls: Calls = .{};
        for (order) |rank| calls.note(rank, 1000, 1000 - at[rank]);
        try std.testing.expectEqual(1, calls.rank);
        try std.testing.expectEqual(10, calls.last - calls.second_last);
    }
    var old: Calls = .{};
    old.note(0, 1000, std.math.maxInt(u64)); // older than the clock
    try std.testing.expectEqual(0, old.last);
}
