//! Fetch: which leaf of a shared state is asked of which member, and which fragments have come.
//! Every member that holds the elected content is a source. Each source has as many leaves on
//! request as its link has in the air, and is asked for the next leaf as soon as a leaf arrives, so
//! a faster source gives more leaves. When no leaf is left to ask for, an idle source is also asked
//! for leaves that a slow source has not brought yet. A leaf may come as several fragments, all of
//! one answer of one source: if another answer with the leaf begins later, the leaf begins anew. A
//! leaf that has come in is `here`, and is asked of no source until its hash is checked. Fetch
//! knows ranks and numbers of leaves; session/state.zig has their bytes. Tests: fetch_test.zig.

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
    /// By rank: the member as a source.
    sources: []Source,
    /// The memory for the `asked` lists of all sources.
    requests: []Asked,
    /// The number of leaves that are not present yet.
    left: u32 = 0,
    /// No leaf before this number is missing.
    cursor: u32 = 0,
    turn: usize = 0,

    const Leaf = enum(u8) { present, missing, asked, asked_twice, here };

    /// A leaf that a source was asked for.
    const Asked = struct {
        leaf: u32,
        /// Answers of the source up to this number belong to earlier requests.
        after: u32,
        /// The source's last answer with this leaf that has begun; `assembly` has the fragments
        /// that came with it.
        answer: u32 = 0,
        assembly: Assembly = .{},
    };

    const Source = struct {
        usable: bool = false,
        /// The source sent something wrong, and is not asked again in this attempt.
        discarded: bool = false,
        /// Leaves on request, in the order of requests; the last `unsaid` requests have not been
        /// sent yet.
        asked: []Asked,
        count: u32 = 0,
        unsaid: u32 = 0,
        /// The most leaves that may be on request.
        room: u32 = limits.state_asked_first,
        /// The highest number of the source's answers of which something has come.
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

    /// The most leaves that an idle source takes over from slow ones at a time.
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

    /// An attempt begins: no leaf is on request, and the members in `sources` can be asked.
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

    /// Another member has all leaves by now, and becomes a source.
    pub fn add_source(fetch: *Fetch, rank: u16) void {
        const source = &fetch.sources[rank];
        if (!source.discarded) source.usable = true;
    }

    /// Whether to wait for further sources: a member may still come to have all leaves, as long as
    /// no source has sent something wrong.
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

    /// Sets how much may be on request of a source: `bytes`, which is what its link has in the air.
    pub fn make_room(fetch: *Fetch, rank: u16, bytes: u64) void {
        const room = std.math.clamp(
            bytes / limits.state_leaf_bytes,
            limits.state_asked_first,
            limits.state_asked_max,
        );
        fetch.sources[rank].room = @intCast(room);
    }

    pub const Request = struct { rank: u16, leaf: u32 };

    /// Makes the next request, which `say` then sends; null if there is none now. Sources take
    /// turns in being asked.
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

    /// The leaf that an idle source takes over: the last of the leaves asked of one source alone,
    /// of the source that has most of these.
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

    /// Counts the next request of a source as sent, and returns its leaf; null: all requests are
    /// sent.
    pub fn say(fetch: *Fetch, rank: u16) ?u32 {
        const source = &fetch.sources[rank];
        if (source.unsaid == 0) return null;
        defer source.unsaid -= 1;
        return source.asked[source.count - source.unsaid].leaf;
    }

    /// The source may not have heard this request: it is sent again, unless the leaf is here. If
    /// the source has heard the request, the fragments that have come still count.
    pub fn unsay(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        const index = source.find(leaf) orelse return;
        if (index >= source.count - source.unsaid) return;
        const asked = source.asked[index];
        source.remove(index);
        if (fetch.has(leaf)) return;
        source.append(asked);
    }

    /// Whether all requests to this source have been sent.
    pub fn has_said_all(fetch: *const Fetch, rank: u16) bool {
        return fetch.sources[rank].unsaid == 0;
    }

    /// Whether the source was asked for a leaf that it has not brought.
    pub fn owes(fetch: *const Fetch, rank: u16) bool {
        return fetch.sources[rank].count > 0;
    }

    /// Whether this source was asked for a leaf that is not here yet.
    pub fn wants(fetch: *const Fetch, rank: u16, leaf: u32) bool {
        return fetch.sources[rank].find(leaf) != null and !fetch.has(leaf);
    }

    fn has(fetch: *const Fetch, leaf: u32) bool {
        return fetch.leaves[leaf] == .present or fetch.leaves[leaf] == .here;
    }

    /// Notes that a part of the answer with the number `answer` comes in from a source.
    pub fn hear(fetch: *Fetch, rank: u16, answer: u32) void {
        const source = &fetch.sources[rank];
        source.heard = @max(source.heard, answer);
    }

    /// The source has delivered a leaf that is not wanted any more: ends the request.
    pub fn delivered(fetch: *Fetch, rank: u16, leaf: u32) void {
        const source = &fetch.sources[rank];
        source.remove(source.find(leaf) orelse return);
    }

    /// A fragment of a leaf on request of this source comes in, in the answer with the number
    /// `answer`. Returns whether the answer begins with this fragment; then the leaf's fragments of
    /// other answers do not count any more. A source is asked for a newer answer after a part of
    /// the older answer was thrown away; of two sources, the slower one's answer is dropped.
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

    /// Withdraws the requests for a leaf from other sources that have begun to bring it.
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

    /// A fragment that had a place did not come in whole: frees the place.
    pub fn unplace(fetch: *Fetch, rank: u16, leaf: u32, answer: u32, fragment: Fragment) void {
        const source = &fetch.sources[rank];
        const asked = &source.asked[source.find(leaf) orelse return];
        if (asked.answer == answer) _ = asked.assembly.unplace(fragment);
    }

    /// Notes that a fragment has arrived whole. Returns whether its leaf is complete and must be
    /// checked now; until the check, the leaf is asked of no source.
    pub fn came(fetch: *Fetch, rank: u16, leaf: u32, fragment: Fragment) bool {
        const source = &fetch.sources[rank];
        const index = source.find(leaf) orelse return false;
        if (!source.asked[index].assembly.arrived(fragment)) return false;
        source.remove(index);
        if (fetch.has(leaf)) return false;
        fetch.leaves[leaf] = .here;
        return true;
    }

    /// Notes that a leaf has the right hash, and so is present.
    pub fn passed(fetch: *Fetch, leaf: u32) void {
        if (fetch.leaves[leaf] != .here) return;
        fetch.leaves[leaf] = .present;
        fetch.left -= 1;
    }

    /// The leaf has a wrong hash: it is wanted again, also from another source that was already
    /// asked for it.
    pub fn failed(fetch: *Fetch, leaf: u32) void {
        if (fetch.leaves[leaf] != .here) return;
        fetch.leaves[leaf] = for (fetch.sources) |*source| {
            if (source.find(leaf) != null) break .asked;
        } else .missing;
        if (fetch.leaves[leaf] == .missing) fetch.cursor = @min(fetch.cursor, leaf);
    }

    /// The source sent something wrong: it is not asked again in this attempt, and its leaves are
    /// asked of others.
    pub fn discard(fetch: *Fetch, rank: u16) void {
        fetch.sources[rank].discarded = true;
        fetch.forget(rank);
    }

    /// The source is out of reach, through no fault of its own: its leaves are asked of sources
    /// that are there, or come later.
    pub fn forget(fetch: *Fetch, rank: u16) void {
        fetch.sources[rank].usable = false;
        fetch.take_back(rank);
    }

    /// The source's answers may be lost on their way: its leaves are asked again, of any source.
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
                .missing => unreachable, // a leaf on request is not missing
            }
        }
        source.count = 0;
        source.unsaid = 0;
        source.heard = 0; // the source may number its answers anew
    }
};
