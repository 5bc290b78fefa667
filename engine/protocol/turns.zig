//! Turns: in which order newcomers are taken into rounds that have no room for all. Newcomers that
//! have not failed come before those that have. Within both kinds networks take turns, so that a
//! crowd from one network, which never opens a lane, keeps nobody from elsewhere out. Within a
//! network the order is that in which they came. Asked by candidates.zig.

const std = @import("std");
const base = @import("base");

pub const Candidate = struct {
    /// Its place among those who have come.
    index: u32,
    source: base.Source,
    has_failed: bool,
    /// Before it there are so many of its kind from its network.
    turn: u32 = 0,

    fn less_than(_: void, a: Candidate, b: Candidate) bool {
        if (a.has_failed != b.has_failed) return b.has_failed;
        if (a.turn != b.turn) return a.turn < b.turn;
        return a.index < b.index;
    }
};

/// They are given in the order in which they came.
pub fn order(candidates: []Candidate) void {
    for (candidates, 0..) |*candidate, count| {
        for (candidates[0..count]) |*earlier| {
            if (earlier.has_failed != candidate.has_failed) continue;
            const together = base.places.same_network(earlier.source, candidate.source);
            candidate.turn += @intFromBool(together);
        }
    }
    std.mem.sort(Candidate, candidates, {}, Candidate.less_than);
}

test "networks take turns, and those who have failed come last" {
    const crowd: base.Source = @splat(1);
    const other: base.Source = @splat(2);
    var candidates = [_]Candidate{
        .{ .index = 0, .source = crowd, .has_failed = true },
        .{ .index = 1, .source = crowd, .has_failed = false },
        .{ .index = 2, .source = crowd, .has_failed = false },
        .{ .index = 3, .source = other, .has_failed = true },
        .{ .index = 4, .source = crowd, .has_failed = false },
        .{ .index = 5, .source = other, .has_failed = false },
    };
    order(&candidates);
    for ([_]u32{ 1, 5, 2, 4, 0, 3 }, candidates) |index, candidate| {
        try std.testing.expectEqual(index, candidate.index);
    }
    // One of the crowd that has failed takes no turn of another one.
    var few = [_]Candidate{
        .{ .index = 0, .source = crowd, .has_failed = true },
        .{ .index = 1, .source = crowd, .has_failed = false },
        .{ .index = 2, .source = other, .has_failed = false },
    };
    order(&few);
    for ([_]u32{ 1, 2, 0 }, few) |index, candidate| {
        try std.testing.expectEqual(index, candidate.index);
    }
}
