//! Fetch: which leaf of a shared state is asked of which member, and what of it has come. Every
//! member that holds the elected content is a source. Each source has some leaves on request, as
//! many as its link has in the air, and is asked for the next as soon as one arrives, so a faster
//! source gives more. When nothing is left to ask for, an idle source is asked once more for leaves
//! that a slow one has not brought yet. A leaf may come as several fragments, all of one answer of
//! one source: an answer that begins later takes it over, and begins anew. A leaf that has come in
//! is here, and asked of nobody, until its hash is known. It knows ranks and numbers of leaves,
//! never their bytes: those are session/state.zig's. Tests: fetch_test.zig.

const std = @import("std");
const base = @import("base");
const Assembly = @import("assembly.zig").Assembly;
const Fragment = @import("wire").Fragment;
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
    requests: []Asked,
    /// Leaves that are not there yet.
    left: u32 = 0,
    /// No leaf before this one is missing.
    cursor: u32 = 0,
    turn: usize = 0,

    const Leaf = enum(u8) { present, missing, asked, asked_twice, here };

    /// A leaf on request of a source.
    const Asked = struct {
        leaf: u32,
        /// Answers up to this one are to requests from before.
        after: u32,
        /// The last of its answers that has begun, and what has come of the leaf with that.
        answer: u32 = 0,
        assembly: Assembly = .{},
    };

    const Source = struct {
        usable: bool = false,
        /// It sent something wrong.
        discarded: bool = false,
        /// On request, in this order; the last `unsaid` of them have not been said yet.
        asked: []Asked,
        count: u32 = 0,
        unsaid: u32 = 0,
        /// So many may be on request.
        room: u32 = limits.state_asked_first,
        /// The latest of its answers of which something has come.
        heard: u32 = 0,

        fn find(source: *const Source, leaf: u32) ?usize {
            for (source.asked[0..source.count], 0..) |*it, index| if (it.leaf == leaf) return index;
            return null;
        }

        fn remove(source: *Source, index: usize) void {
            if (index >= source.count - source.unsaid) source.unsaid -= 1;
            source.count -= 1;
            const left = source.asked[index..source.count];
            std.mem.copyForwards(Asked, left, source.asked[index + 1 ..][0..left.len]);
        }

        fn append(source: *Source, asked: Asked) void {
            source.asked[source.count] = asked;
            source.count += 1;
            source.unsaid += 1;
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
        const requests = try base.unfilled.list(gpa, Asked, most * ranks);
        @memset(leaves, .present);
        for (sources, 0..) |*source, rank|
            source.* = .{ .asked = requests[rank * most ..][0..most] };
        return .{ .gpa = gpa, .leaves = leaves, .sources = sources, .requests = requests };
    }

    pub fn deinit(fetch: *Fetch) void {
        fetch.gpa.free(fetch.leaves);
        fetch.gpa.free(fetch.sources);
        base.unfilled.free_list(fetch.gpa, Asked, fetch.requests);
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
            source.append(.{ .leaf = leaf, .after = source.heard });
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
            for (source.asked[0..source.count]) |*it| {
                if (fetch.leaves[it.leaf] != .asked) continue;
                waiting += 1;
                behind = it.leaf;
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
        return source.asked[source.count - source.unsaid].leaf;
    }

    /// The source may not have heard this request: it is said once more, unless the leaf is here.
    /// If it has heard it, what has come counts.
    pub fn unsay(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        const index = source.find(leaf) orelse return;
        if (index >= source.count - source.unsaid) return;
        const asked = source.asked[index];
        source.remove(index);
        if (fetch.has(leaf)) return;
        source.append(asked);
    }

    /// Whether all requests have been said to this source.
    pub fn has_said_all(fetch: *const Fetch, rank: u16) bool {
        return fetch.sources[rank].unsaid == 0;
    }

    /// Whether it has been asked for something that it has not brought.
    pub fn owes(fetch: *const Fetch, rank: u16) bool {
        return fetch.sources[rank].count > 0;
    }

    /// Whether a leaf of which this source brings something is wanted: asked of it, and not there.
    pub fn wants(fetch: *const Fetch, rank: u16, leaf: u32) bool {
        return fetch.sources[rank].find(leaf) != null and !fetch.has(leaf);
    }

    fn has(fetch: *const Fetch, leaf: u32) bool {
        return fetch.leaves[leaf] == .present or fetch.leaves[leaf] == .here;
    }

    /// Something of an answer comes in. The source counts its answers.
    pub fn hear(fetch: *Fetch, rank: u16, answer: u32) void {
        const source = &fetch.sources[rank];
        source.heard = @max(source.heard, answer);
    }

    /// The source has delivered a leaf that is not wanted any more.
    pub fn delivered(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        source.remove(source.find(leaf) orelse return);
    }

    /// A fragment of a leaf that is wanted of this source comes in with this answer. True: the
    /// answer begins with it, and nothing else that comes in of the leaf counts any more. It is
    /// faster than that of another source, and a later one of the same source is asked for because
    /// something of the one before was thrown away.
    pub fn place(
        fetch: *Fetch,
        rank: u16,
        leaf: u32,
        answer: u32,
        fragment: Fragment,
    ) error{ Older, Twice, Overlap }!bool {
        const source = &fetch.sources[rank];
        const asked = &source.asked[source.find(leaf).?];
        if (answer <= asked.after or answer < asked.answer) return error.Older;
        const begins = answer > asked.answer or asked.assembly.placed == 0;
        if (begins) {
            fetch.cancel_others(rank, leaf);
            asked.answer = answer;
            asked.assembly = .{};
        }
        try asked.assembly.place(fragment);
        return begins;
    }

    /// If another source has begun to bring it, that one is asked for it no more.
    fn cancel_others(fetch: *Fetch, rank: u16, leaf: u32) void {
        if (fetch.leaves[leaf] != .asked_twice) return;
        for (fetch.sources, 0..) |*source, other| {
            if (other == rank) continue;
            const index = source.find(leaf) orelse continue;
            if (source.asked[index].assembly.placed == 0) continue;
            source.remove(index);
            fetch.leaves[leaf] = .asked;
        }
    }

    /// A fragment that had a place did not come in whole.
    pub fn unplace(fetch: *Fetch, rank: u16, leaf: u32, answer: u32, fragment: Fragment) void {
        const source = &fetch.sources[rank];
        const asked = &source.asked[source.find(leaf) orelse return];
        if (asked.answer == answer) _ = asked.assembly.unplace(fragment);
    }

    /// A fragment that had a place is there: whether its leaf is one to look at now. That is asked
    /// of nobody then, until it has passed or failed.
    pub fn came(fetch: *Fetch, rank: u16, leaf: u32, fragment: Fragment) bool {
        const source = &fetch.sources[rank];
        const index = source.find(leaf) orelse return false;
        if (!source.asked[index].assembly.arrived(fragment)) return false;
        source.remove(index);
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
        for (source.asked[0..source.count]) |*it| {
            const leaf = it.leaf;
            switch (fetch.leaves[leaf]) {
                .asked_twice => fetch.leaves[leaf] = .asked,
                .asked => {
                    fetch.leaves[leaf] = .missing;
                    fetch.cursor = @min(fetch.cursor, leaf);
                },
                .present, .here => {},
                .missing => unreachable, // it is on request
            }
        }
        source.count = 0;
        source.unsaid = 0;
        source.heard = 0; // it may count anew
    }
};
