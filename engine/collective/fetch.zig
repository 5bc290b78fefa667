//! Fetch: which leaf of a shared state is asked of which member. Every member that holds the
//! elected content is a source. Each source has some leaves on request, as many as its link has in
//! the air, and is asked for the next as soon as one arrives, so a faster source gives more. When
//! nothing is left to ask for, an idle source is asked once more for leaves that a slow one has not
//! brought yet. A leaf that has come in is here, and asked of nobody, until its hash is known. It
//! knows ranks and numbers of leaves, never their bytes: those are session/transfer.zig's.

const std = @import("std");
const base = @import("base");
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const limits = base.limits;
const assert = std.debug.assert;

pub const Fetch = struct {
    gpa: Allocator,
    leaves: []Leaf,
    /// By rank.
    sources: []Source,
    /// Where the sources' requests are noted.
    requests: []u32,
    /// Leaves that are not there yet.
    left: u32 = 0,
    /// No leaf before this one is missing.
    cursor: u32 = 0,
    turn: usize = 0,

    const Leaf = enum(u8) { present, missing, asked, asked_twice, here };

    const Source = struct {
        usable: bool = false,
        /// It sent something wrong.
        discarded: bool = false,
        /// On request, in this order; the last `unsaid` of them have not been said yet.
        asked: []u32,
        count: u32 = 0,
        unsaid: u32 = 0,
        /// So many may be on request.
        room: u32 = limits.state_asked_first,

        fn find(source: *const Source, leaf: u32) ?usize {
            return std.mem.indexOfScalar(u32, source.asked[0..source.count], leaf);
        }

        fn remove(source: *Source, index: usize) void {
            if (index >= source.count - source.unsaid) source.unsaid -= 1;
            source.count -= 1;
            const left = source.asked[index..source.count];
            std.mem.copyForwards(u32, left, source.asked[index + 1 ..][0..left.len]);
        }

        fn is_full(source: *const Source) bool {
            return source.count >= @min(source.room, source.asked.len);
        }
    };

    /// An idle source takes over so many of the last leaves at a time.
    const second_asks_max = 4;

    pub fn init(gpa: Allocator, leaf_count: u32, ranks: usize) Allocator.Error!Fetch {
        const leaves = try gpa.alloc(Leaf, leaf_count);
        errdefer gpa.free(leaves);
        const sources = try gpa.alloc(Source, ranks);
        errdefer gpa.free(sources);
        const most = @min(leaf_count, limits.state_asked_max);
        const requests = try base.unfilled.list(gpa, u32, most * ranks);
        @memset(leaves, .present);
        for (sources, 0..) |*source, rank|
            source.* = .{ .asked = requests[rank * most ..][0..most] };
        return .{ .gpa = gpa, .leaves = leaves, .sources = sources, .requests = requests };
    }

    pub fn deinit(fetch: *Fetch) void {
        fetch.gpa.free(fetch.leaves);
        fetch.gpa.free(fetch.sources);
        base.unfilled.free_list(fetch.gpa, u32, fetch.requests);
    }

    /// An attempt begins: nothing is on request, and these members can be asked.
    pub fn begin(fetch: *Fetch, sources: *const Mask) void {
        @memset(fetch.leaves, .present);
        for (fetch.sources, 0..) |*source, rank| source.* = .{
            .usable = sources.has(rank),
            .asked = source.asked,
            .room = source.room,
        };
        fetch.left = 0;
        fetch.cursor = 0;
    }

    pub fn need(fetch: *Fetch, leaf: u32) void {
        assert(fetch.leaves[leaf] == .present);
        fetch.leaves[leaf] = .missing;
        fetch.left += 1;
        fetch.cursor = @min(fetch.cursor, leaf);
    }

    /// Another member has everything by now.
    pub fn add_source(fetch: *Fetch, rank: u16) void {
        const source = &fetch.sources[rank];
        if (!source.discarded) source.usable = true;
    }

    /// Nobody has been asked in vain: somebody may still come to have everything.
    pub fn may_wait(fetch: *const Fetch) bool {
        for (fetch.sources) |*source| if (source.discarded) return false;
        return true;
    }

    pub fn is_usable(fetch: *const Fetch, rank: u16) bool {
        return fetch.sources[rank].usable;
    }

    pub fn has_sources(fetch: *const Fetch) bool {
        for (fetch.sources) |*source| if (source.usable) return true;
        return false;
    }

    /// So many bytes may be on request of a source: what its link has in the air.
    pub fn make_room(fetch: *Fetch, rank: u16, bytes: u64) void {
        const room = std.math.clamp(
            bytes / limits.state_leaf_bytes,
            limits.state_asked_first,
            limits.state_asked_max,
        );
        fetch.sources[rank].room = @intCast(room);
    }

    pub const Request = struct { rank: u16, leaf: u32 };

    /// The next request to make, which waits to be said; null if there is none now. Sources take
    /// turns.
    pub fn next(fetch: *Fetch) ?Request {
        const missing = fetch.first_missing();
        for (0..fetch.sources.len) |step| {
            const rank = (fetch.turn + step) % fetch.sources.len;
            const source = &fetch.sources[rank];
            if (!source.usable or source.is_full()) continue;
            const leaf = missing orelse fetch.take_over(source) orelse continue;
            source.asked[source.count] = leaf;
            source.count += 1;
            source.unsaid += 1;
            fetch.leaves[leaf] = if (missing == null) .asked_twice else .asked;
            fetch.turn = rank + 1;
            return .{ .rank = @intCast(rank), .leaf = leaf };
        }
        return null;
    }

    fn first_missing(fetch: *Fetch) ?u32 {
        while (fetch.cursor < fetch.leaves.len) : (fetch.cursor += 1) {
            if (fetch.leaves[fetch.cursor] == .missing) return fetch.cursor;
        }
        return null;
    }

    /// The leaf that whoever has most on request, and of nobody else, will bring last.
    fn take_over(fetch: *const Fetch, idle: *const Source) ?u32 {
        if (idle.count >= second_asks_max) return null;
        var most: u32 = idle.count;
        var last: ?u32 = null;
        for (fetch.sources) |*source| {
            if (source == idle or source.count <= most) continue;
            var waiting: u32 = 0;
            var behind: ?u32 = null;
            for (source.asked[0..source.count]) |leaf| {
                if (fetch.leaves[leaf] != .asked) continue;
                waiting += 1;
                behind = leaf;
            }
            if (waiting <= most) continue;
            most = waiting;
            last = behind;
        }
        return last;
    }

    /// The next request of this source is said now: its leaf.
    pub fn say(fetch: *Fetch, rank: u16) ?u32 {
        const source = &fetch.sources[rank];
        if (source.unsaid == 0) return null;
        defer source.unsaid -= 1;
        return source.asked[source.count - source.unsaid];
    }

    /// The source may not have heard this request: it is said once more, unless the leaf is here.
    pub fn unsay(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        const index = source.find(leaf) orelse return;
        if (index >= source.count - source.unsaid) return;
        source.remove(index);
        if (fetch.has(leaf)) return;
        source.asked[source.count] = leaf;
        source.count += 1;
        source.unsaid += 1;
    }

    /// Requests that are still to be said to this source.
    pub fn unsaid(fetch: *const Fetch, rank: u16) []const u32 {
        const source = &fetch.sources[rank];
        return source.asked[source.count - source.unsaid .. source.count];
    }

    /// Whether it has been asked for something that it has not brought.
    pub fn owes(fetch: *const Fetch, rank: u16) bool {
        return fetch.sources[rank].count > 0;
    }

    /// Whether a leaf that this source begins to deliver is wanted: asked of it, and not there yet.
    pub fn wants(fetch: *const Fetch, rank: u16, leaf: u32) bool {
        return fetch.sources[rank].find(leaf) != null and !fetch.has(leaf);
    }

    fn has(fetch: *const Fetch, leaf: u32) bool {
        return fetch.leaves[leaf] == .present or fetch.leaves[leaf] == .here;
    }

    /// The source has delivered a leaf that is not wanted any more.
    pub fn delivered(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        source.remove(source.find(leaf) orelse return);
    }

    /// The source has delivered a leaf: whether it is one to look at. It is asked of nobody then,
    /// until it has passed or failed.
    pub fn came(fetch: *Fetch, rank: u16, leaf: u32) bool {
        const source = &fetch.sources[rank];
        source.remove(source.find(leaf) orelse return false);
        if (fetch.has(leaf)) return false;
        fetch.leaves[leaf] = .here;
        return true;
    }

    /// It is as it must be.
    pub fn passed(fetch: *Fetch, leaf: u32) void {
        if (fetch.leaves[leaf] != .here) return;
        fetch.leaves[leaf] = .present;
        fetch.left -= 1;
    }

    /// It is not: it is wanted again, perhaps of a source that has been asked for it, too.
    pub fn failed(fetch: *Fetch, leaf: u32) void {
        if (fetch.leaves[leaf] != .here) return;
        fetch.leaves[leaf] = for (fetch.sources) |*source| {
            if (source.find(leaf) != null) break .asked;
        } else .missing;
        if (fetch.leaves[leaf] == .missing) fetch.cursor = @min(fetch.cursor, leaf);
    }

    /// The leaf that this source was sending is taken from another one.
    pub fn cancel(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        source.remove(source.find(leaf) orelse return);
        assert(fetch.leaves[leaf] == .asked_twice);
        fetch.leaves[leaf] = .asked;
    }

    /// It is not asked again in this attempt; what it has not brought is asked of others.
    pub fn discard(fetch: *Fetch, rank: u16) void {
        fetch.sources[rank].discarded = true;
        fetch.forget(rank);
    }

    /// It is out of reach, through no fault of its own: others are asked, or come to have it.
    pub fn forget(fetch: *Fetch, rank: u16) void {
        fetch.sources[rank].usable = false;
        fetch.take_back(rank);
    }

    /// Its answers may be lost on their way: the leaves are asked for again, of any source.
    pub fn take_back(fetch: *Fetch, rank: u16) void {
        const source = &fetch.sources[rank];
        for (source.asked[0..source.count]) |leaf| switch (fetch.leaves[leaf]) {
            .asked_twice => fetch.leaves[leaf] = .asked,
            .asked => {
                fetch.leaves[leaf] = .missing;
                fetch.cursor = @min(fetch.cursor, leaf);
            },
            .present, .here => {},
            .missing => unreachable, // it is on request
        };
        source.count = 0;
        source.unsaid = 0;
    }
};

// ---- tests

fn test_fetch(leaves: u32, ranks: u16) !Fetch {
    var fetch = try Fetch.init(std.testing.allocator, leaves, ranks);
    fetch.begin(&Mask.full(ranks));
    for (0..leaves) |leaf| fetch.need(@intCast(leaf));
    return fetch;
}

fn test_delivered(fetch: *Fetch, rank: u16, leaf: u32) void {
    if (fetch.came(rank, leaf)) fetch.passed(leaf);
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
        test_delivered(&fetch, 0, @intCast(leaf));
        try std.testing.expectEqual(null, fetch.next());
    }
    test_delivered(&fetch, 0, 50);
    try std.testing.expect(fetch.next() != null and fetch.next() == null);
}

test "requests are said one after the other, and none that has been taken back" {
    var fetch = try test_fetch(5, 1);
    defer fetch.deinit();
    while (fetch.next()) |_| {}
    for (0..3) |leaf| try std.testing.expectEqual(leaf, fetch.say(0).?);
    test_delivered(&fetch, 0, 1); // whatever comes in does not change what is still to be said
    try std.testing.expectEqualSlices(u32, &.{ 3, 4 }, fetch.unsaid(0));
    fetch.take_back(0);
    try std.testing.expectEqual(null, fetch.say(0));
}

test "a request that may be lost is said once more, and only if it is wanted" {
    var fetch = try test_fetch(5, 2);
    defer fetch.deinit();
    fetch.sources[1].usable = false;
    while (fetch.next()) |_| {}
    for (0..4) |leaf| try std.testing.expectEqual(leaf, fetch.say(0).?);
    test_delivered(&fetch, 0, 0);
    fetch.unsay(0, 0); // it has come
    fetch.unsay(0, 4); // it has not been said
    fetch.unsay(0, 1);
    fetch.unsay(0, 1);
    try std.testing.expectEqualSlices(u32, &.{ 4, 1 }, fetch.unsaid(0));
    // Another source was asked, too, and has brought it.
    fetch.add_source(1);
    try std.testing.expectEqual(1, fetch.next().?.leaf);
    test_delivered(&fetch, 1, 1);
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
            brought[rank] += @intFromBool(fetch.wants(rank, source.asked[0]));
            test_delivered(&fetch, rank, source.asked[0]);
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
        while (source.count > 0) test_delivered(&fetch, 0, source.asked[0]);
    }
    // The leaf that the frozen one brings at last is not wanted, and no harm.
    const late = fetch.sources[1].asked[0];
    try std.testing.expect(!fetch.wants(1, late));
    test_delivered(&fetch, 1, late);
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
        while (source.count > 0) test_delivered(&fetch, 0, source.asked[0]);
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
        test_delivered(&fetch, 1, fetch.sources[1].asked[0]);
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
    try std.testing.expect(fetch.came(0, 1));
    try std.testing.expect(!fetch.wants(1, 1)); // nobody may write to it now
    try std.testing.expectEqual(2, fetch.left);
    fetch.failed(1);
    try std.testing.expect(fetch.wants(1, 1));
    fetch.discard(0);
    try std.testing.expect(fetch.came(1, 1));
    fetch.take_back(1); // it is here all the same
    try std.testing.expectEqual(0, fetch.next().?.leaf);
    try std.testing.expectEqual(null, fetch.next());
    fetch.passed(1);
    test_delivered(&fetch, 1, 0);
    try std.testing.expectEqual(0, fetch.left);
}

test "a leaf that is not right is wanted again, also when those behind it have been asked for" {
    var fetch = try test_fetch(2, 1);
    defer fetch.deinit();
    while (fetch.next()) |_| {}
    try std.testing.expect(fetch.came(0, 0));
    try std.testing.expectEqual(null, fetch.next());
    fetch.failed(0);
    try std.testing.expectEqual(0, fetch.next().?.leaf);
}
