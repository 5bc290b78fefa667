//! Patience: which peers have failed to enter a group, and until when they wait before they are
//! tried again: 1, 2, 4 ... 60 s. It goes by the id, so that a peer that leaves and comes back does
//! not begin anew. Asked by candidates.zig and rounds.zig.

const std = @import("std");
const base = @import("base");
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;

pub const Patience = struct {
    /// The one that failed last comes last.
    failed: std.ArrayList(Failed) = .empty,

    const Failed = struct { id: PeerId, until: Instant, count: u6 };

    /// Beyond this many, the one whose failure lies back furthest is forgotten: it has waited.
    const failed_max = 1024;
    const wait_ns_min: u64 = std.time.ns_per_s;
    const wait_ns_max: u64 = 60 * std.time.ns_per_s;

    pub fn deinit(patience: *Patience, gpa: Allocator) void {
        patience.failed.deinit(gpa);
    }

    fn find(patience: *const Patience, id: PeerId) ?usize {
        for (patience.failed.items, 0..) |*item, index| if (item.id.eql(id)) return index;
        return null;
    }

    /// It did not get in; from now on it waits, twice as long as the last time. Without memory for
    /// that it waits for nothing, and the next round judges it anew.
    pub fn lose(patience: *Patience, gpa: Allocator, id: PeerId, now: Instant) void {
        var failed: Failed = .{ .id = id, .until = 0, .count = 0 };
        if (patience.find(id)) |index| failed = patience.failed.orderedRemove(index);
        failed.until = now +| @min(wait_ns_min << @min(failed.count, 6), wait_ns_max);
        failed.count +|= 1;
        while (patience.failed.items.len > 0) {
            if (patience.failed.items[0].until +| wait_ns_max > now) break;
            _ = patience.failed.orderedRemove(0); // it has waited, and for long
        }
        if (patience.failed.items.len >= failed_max) _ = patience.failed.orderedRemove(0);
        patience.failed.append(gpa, failed) catch return;
    }

    /// It is in.
    pub fn forget(patience: *Patience, id: PeerId) void {
        if (patience.find(id)) |index| _ = patience.failed.orderedRemove(index);
    }

    /// Until when it waits; 0: it does not.
    pub fn until(patience: *const Patience, id: PeerId) Instant {
        return if (patience.find(id)) |index| patience.failed.items[index].until else 0;
    }
};

test "who fails waits twice as long each time, up to a minute, until it gets in" {
    const gpa = std.testing.allocator;
    const expectEqual = std.testing.expectEqual;
    const second = std.time.ns_per_s;
    var patience: Patience = .{};
    defer patience.deinit(gpa);
    const id: PeerId = .from_int(7);
    for ([_]u64{ 1, 2, 4, 8, 16, 32, 60, 60 }) |seconds| {
        patience.lose(gpa, id, 100);
        try expectEqual(100 + seconds * second, patience.until(id));
    }
    try expectEqual(0, patience.until(.from_int(8)));
    patience.forget(id);
    try expectEqual(0, patience.until(id));
}

test "a peer that has waited is remembered for a minute, so that it waits longer the next time" {
    const gpa = std.testing.allocator;
    const second = std.time.ns_per_s;
    var patience: Patience = .{};
    defer patience.deinit(gpa);
    const id: PeerId = .from_int(7);
    patience.lose(gpa, id, 0);
    for ([_]u64{ 60, 180 }, [_]u64{ 2, 1 }) |after, waits| {
        patience.lose(gpa, .from_int(8), after * second);
        patience.lose(gpa, id, after * second);
        try std.testing.expectEqual((after + waits) * second, patience.until(id));
    }
}

test "of very many who have failed, those that failed last are remembered" {
    const gpa = std.testing.allocator;
    var patience: Patience = .{};
    defer patience.deinit(gpa);
    patience.lose(gpa, .from_int(1), 0);
    for (1..Patience.failed_max) |number| patience.lose(gpa, .from_int(1 + number), 0);
    patience.lose(gpa, .from_int(1), 0); // it has failed again, after the others
    patience.lose(gpa, .from_int(1 + Patience.failed_max), 0);
    try std.testing.expectEqual(Patience.failed_max, patience.failed.items.len);
    try std.testing.expect(patience.until(.from_int(1)) > 0);
    try std.testing.expectEqual(0, patience.until(.from_int(2)));
}
