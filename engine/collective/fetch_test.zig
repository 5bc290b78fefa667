//! Tests of Fetch (fetch.zig): who is asked for what, what has come, and what is asked for again.

const std = @import("std");
const base = @import("base");
const Fetch = @import("fetch.zig").Fetch;
const Fragment = @import("wire").Fragment;
const Mask = base.Mask;
const limits = base.limits;

fn test_fetch(leaves: u32, ranks: u16) !Fetch {
    var fetch = try Fetch.init(std.testing.allocator, leaves, ranks);
    fetch.begin(&Mask.full(ranks));
    for (0..leaves) |leaf| fetch.need(@intCast(leaf));
    return fetch;
}

fn test_delivered(fetch: *Fetch, rank: u16, leaf: u32) !void {
    if (try test_came(fetch, rank, leaf)) fetch.passed(leaf);
}

/// It comes whole, if it is wanted.
fn test_came(fetch: *Fetch, rank: u16, leaf: u32) !bool {
    if (!fetch.wants(rank, leaf)) {
        fetch.delivered(rank, leaf);
        return false;
    }
    try std.testing.expect(try fetch.place(rank, leaf, 1, .whole));
    return fetch.came(rank, leaf, .whole);
}

fn expect_unsaid(fetch: *const Fetch, rank: u16, expected: []const u32) !void {
    const source = &fetch.sources[rank];
    const unsaid = source.asked[source.count - source.unsaid .. source.count];
    try std.testing.expectEqual(expected.len, unsaid.len);
    for (expected, unsaid) |leaf, asked| try std.testing.expectEqual(leaf, asked.leaf);
}

test "all sources are asked at once, each for as much as its link has in the air" {
    var fetch = try test_fetch(3000, 4);
    defer fetch.deinit();
    fetch.make_room(1, 100 * limits.state_leaf_bytes);
    fetch.make_room(2, std.math.maxInt(u64));
    fetch.make_room(3, 0);
    var counts: [4]u32 = @splat(0);
    while (fetch.next()) |request| counts[request.rank] += 1;
    const first = limits.state_asked_first;
    try std.testing.expectEqual([4]u32{ first, 100, limits.state_asked_max, first }, counts);
}

test "a source whose link carries less is asked again once less of it is on request" {
    var fetch = try test_fetch(1000, 1);
    defer fetch.deinit();
    fetch.make_room(0, 100 * limits.state_leaf_bytes);
    while (fetch.next()) |_| {}
    fetch.make_room(0, 50 * limits.state_leaf_bytes);
    for (0..50) |leaf| {
        try test_delivered(&fetch, 0, @intCast(leaf));
        try std.testing.expectEqual(null, fetch.next());
    }
    try test_delivered(&fetch, 0, 50);
    try std.testing.expect(fetch.next() != null and fetch.next() == null);
}

test "requests are said one after the other, and none that has been taken back" {
    var fetch = try test_fetch(5, 1);
    defer fetch.deinit();
    while (fetch.next()) |_| {}
    for (0..3) |leaf| try std.testing.expectEqual(leaf, fetch.say(0).?);
    try test_delivered(&fetch, 0, 1); // whatever comes in does not change what is still to be said
    try expect_unsaid(&fetch, 0, &.{ 3, 4 });
    fetch.take_back(0);
    try std.testing.expectEqual(null, fetch.say(0));
}

test "a request that may be lost is said once more, and only if it is wanted" {
    var fetch = try test_fetch(5, 2);
    defer fetch.deinit();
    fetch.sources[1].usable = false;
    while (fetch.next()) |_| {}
    for (0..4) |leaf| try std.testing.expectEqual(leaf, fetch.say(0).?);
    try test_delivered(&fetch, 0, 0);
    fetch.unsay(0, 0); // it has come
    fetch.unsay(0, 4); // it has not been said
    fetch.unsay(0, 1);
    fetch.unsay(0, 1);
    try expect_unsaid(&fetch, 0, &.{ 4, 1 });
    // Another source was asked, too, and has brought it.
    fetch.add_source(1);
    try std.testing.expectEqual(1, fetch.next().?.leaf);
    try test_delivered(&fetch, 1, 1);
    try std.testing.expectEqual(4, fetch.say(0).?);
    try std.testing.expectEqual(1, fetch.say(0).?);
    fetch.unsay(0, 1);
    try std.testing.expectEqual(null, fetch.say(0));
    try std.testing.expectEqual(3, fetch.sources[0].count);
}

test "a source that brings faster is asked for more" {
    var fetch = try test_fetch(1000, 2);
    defer fetch.deinit();
    var brought: [2]u32 = @splat(0);
    var round: u32 = 0;
    while (fetch.left > 0) : (round += 1) {
        while (fetch.next()) |_| {}
        for (0..2) |index| {
            const rank: u16 = @intCast(index);
            if (rank == 1 and round % 5 != 0) continue; // the slow one
            const source = &fetch.sources[rank];
            if (source.count == 0) continue;
            brought[rank] += @intFromBool(fetch.wants(rank, source.asked[0].leaf));
            try test_delivered(&fetch, rank, source.asked[0].leaf);
        }
    }
    try std.testing.expectEqual(1000, brought[0] + brought[1]);
    try std.testing.expect(brought[0] > 4 * brought[1]);
}

test "what a frozen source holds back at the end is asked of another" {
    var fetch = try test_fetch(40, 2);
    defer fetch.deinit();
    var rounds: u32 = 0;
    while (fetch.left > 0) : (rounds += 1) {
        try std.testing.expect(rounds < 100);
        while (fetch.next()) |_| {}
        const source = &fetch.sources[0];
        while (source.count > 0) try test_delivered(&fetch, 0, source.asked[0].leaf);
    }
    // The leaf that the frozen one brings at last is not wanted, and no harm.
    const late = fetch.sources[1].asked[0].leaf;
    try std.testing.expect(!fetch.wants(1, late));
    try test_delivered(&fetch, 1, late);
    try std.testing.expectEqual(0, fetch.left);
}

test "what two frozen sources hold back is asked of the third" {
    var fetch = try test_fetch(60, 3);
    defer fetch.deinit();
    var rounds: u32 = 0;
    while (fetch.left > 0) : (rounds += 1) {
        try std.testing.expect(rounds < 100);
        while (fetch.next()) |_| {}
        const source = &fetch.sources[0];
        while (source.count > 0) try test_delivered(&fetch, 0, source.asked[0].leaf);
    }
}

test "what was lost on its way is asked for again, of the same source as well" {
    var fetch = try test_fetch(10, 1);
    defer fetch.deinit();
    while (fetch.next()) |_| {}
    fetch.take_back(0);
    try std.testing.expect(!fetch.wants(0, 3));
    var asked: u32 = 0;
    while (fetch.next()) |_| asked += 1;
    try std.testing.expectEqual(10, asked);
}

test "a discarded source gives back what it has not brought; nothing is asked of it again" {
    var fetch = try test_fetch(100, 2);
    defer fetch.deinit();
    while (fetch.next()) |_| {}
    fetch.discard(0);
    try std.testing.expect(!fetch.wants(0, 0));
    while (fetch.left > 0) {
        while (fetch.next()) |request| try std.testing.expectEqual(1, request.rank);
        try test_delivered(&fetch, 1, fetch.sources[1].asked[0].leaf);
    }
    fetch.discard(1);
    fetch.add_source(1); // no more than once
    try std.testing.expect(!fetch.has_sources() and !fetch.may_wait());
}

test "a leaf that has come is asked of nobody until it is known, and again if it is not right" {
    var fetch = try test_fetch(2, 2);
    defer fetch.deinit();
    fetch.sources[1].usable = false;
    while (fetch.next()) |_| {} // both of the first
    fetch.add_source(1);
    try std.testing.expectEqual(1, fetch.next().?.leaf); // and this one of the second, too
    try std.testing.expect(try test_came(&fetch, 0, 1));
    try std.testing.expect(!fetch.wants(1, 1)); // nobody may write to it now
    try std.testing.expectEqual(2, fetch.left);
    fetch.failed(1);
    try std.testing.expect(fetch.wants(1, 1));
    fetch.discard(0);
    try std.testing.expect(try test_came(&fetch, 1, 1));
    fetch.take_back(1); // it is here all the same
    try std.testing.expectEqual(0, fetch.next().?.leaf);
    try std.testing.expectEqual(null, fetch.next());
    fetch.passed(1);
    try test_delivered(&fetch, 1, 0);
    try std.testing.expectEqual(0, fetch.left);
}

test "a leaf that is not right is wanted again, also when those behind it have been asked for" {
    var fetch = try test_fetch(2, 1);
    defer fetch.deinit();
    while (fetch.next()) |_| {}
    try std.testing.expect(try test_came(&fetch, 0, 0));
    try std.testing.expectEqual(null, fetch.next());
    fetch.failed(0);
    try std.testing.expectEqual(0, fetch.next().?.leaf);
}

// ---- fragments

/// Leaf 0 is on request of so many sources.
fn test_asked(ranks: u16) !Fetch {
    var fetch = try test_fetch(1, ranks);
    for (0..ranks) |rank| try std.testing.expectEqual(rank, fetch.next().?.rank);
    return fetch;
}

const halves = [_]Fragment{ .{ .after = 8 }, .{ .before = 8 } };

test "a leaf is here when all fragments of one answer are" {
    var fetch = try test_asked(1);
    defer fetch.deinit();
    try std.testing.expect(try fetch.place(0, 0, 1, halves[1]));
    try std.testing.expect(!fetch.came(0, 0, halves[1]));
    // A fragment that comes twice has its place, and no byte has two.
    try std.testing.expectError(error.Twice, fetch.place(0, 0, 1, halves[1]));
    try std.testing.expectError(error.Overlap, fetch.place(0, 0, 1, .whole));
    // A later answer may be cut in another way.
    try std.testing.expect(try fetch.place(0, 0, 3, .{ .after = 4 }));
    try std.testing.expectError(error.Older, fetch.place(0, 0, 1, halves[0]));
    try std.testing.expectError(error.Older, fetch.place(0, 0, 2, .whole));
    try std.testing.expect(!fetch.came(0, 0, .{ .after = 4 }));
    try std.testing.expect(!try fetch.place(0, 0, 3, .{ .before = 12 }));
    try std.testing.expect(fetch.came(0, 0, .{ .before = 12 }));
    try std.testing.expect(!fetch.wants(0, 0));
    fetch.passed(0);
    try std.testing.expectEqual(0, fetch.left);
}

test "a fragment that did not come in whole is awaited anew, unless another answer brings it" {
    var fetch = try test_asked(1);
    defer fetch.deinit();
    for (halves) |half| _ = try fetch.place(0, 0, 2, half);
    try std.testing.expect(!fetch.came(0, 0, halves[0]));
    fetch.unplace(0, 0, 1, halves[1]);
    try std.testing.expectError(error.Twice, fetch.place(0, 0, 2, halves[1]));
    fetch.unplace(0, 0, 2, halves[1]);
    try std.testing.expect(!try fetch.place(0, 0, 2, halves[1]));
    try std.testing.expect(fetch.came(0, 0, halves[1]));
    fetch.unplace(0, 0, 2, halves[1]); // it is here
    fetch.passed(0);
    try std.testing.expectEqual(0, fetch.left);
}

test "a source that begins later takes over a leaf, with all that another has brought of it" {
    // Goal: a leaf is of one source. Method: the first one has brought nothing, or a half.
    for ([_]bool{ false, true }) |has_begun| {
        var fetch = try test_fetch(2, 2);
        defer fetch.deinit();
        fetch.sources[1].usable = false;
        while (fetch.next()) |_| {}
        fetch.add_source(1);
        const leaf = fetch.next().?.leaf;
        if (has_begun) {
            _ = try fetch.place(0, leaf, 1, halves[0]);
            try std.testing.expect(!fetch.came(0, leaf, halves[0]));
        }
        try std.testing.expect(try fetch.place(1, leaf, 1, halves[1]));
        try std.testing.expect(!fetch.came(1, leaf, halves[1]));
        try std.testing.expectEqual(!has_begun, fetch.wants(0, leaf));
        try std.testing.expect(!try fetch.place(1, leaf, 1, halves[0]));
        try std.testing.expect(fetch.came(1, leaf, halves[0]));
    }
}

test "the rest of an answer that was taken over is none to a later request of the same source" {
    var fetch = try test_asked(2);
    defer fetch.deinit();
    for ([_]u16{ 0, 1 }, [_]Fragment{ halves[0], .{ .after = 1 } }) |rank, fragment| {
        fetch.hear(rank, 5);
        try std.testing.expect(try fetch.place(rank, 0, 5, fragment));
        try std.testing.expect(!fetch.came(rank, 0, fragment));
    }
    // The slow one is idle now, and is asked again.
    try std.testing.expectEqual(0, fetch.next().?.rank);
    try std.testing.expectError(error.Older, fetch.place(0, 0, 5, halves[1]));
    try std.testing.expect(fetch.wants(1, 0));
    try std.testing.expect(try fetch.place(0, 0, 6, halves[1]));
}

test "what has come of a leaf counts when its request is said again, not when it is asked anew" {
    var fetch = try test_asked(1);
    defer fetch.deinit();
    _ = fetch.say(0);
    _ = try fetch.place(0, 0, 7, halves[0]);
    try std.testing.expect(!fetch.came(0, 0, halves[0]));
    fetch.unsay(0, 0);
    try std.testing.expectError(error.Twice, fetch.place(0, 0, 7, halves[0]));
    // Its link was gone, and its answers are counted anew.
    fetch.take_back(0);
    try std.testing.expect(fetch.next() != null);
    try std.testing.expect(try fetch.place(0, 0, 1, halves[1]));
    try std.testing.expect(!fetch.came(0, 0, halves[1]));
}
