//! Transfer: the leaves of a shared state on their way from other peers to this one, in a sync
//! (sync.zig) and in the background (prefetch.zig) alike: what is asked of whom, and what has come.
//! One peer gives the hashes of all leaves, page by page; then all are asked for the leaves that
//! this one lacks. How it asks, and where the answers go: asking.zig; which leaf is asked of whom:
//! collective/fetch.zig; where leaves wait until they count: state.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const collective = @import("collective");
const requests = @import("requests.zig");
const Hashing = @import("hashing.zig").Hashing;
const Lane = @import("link.zig").Lane;
const Requests = requests.Requests;
const State = @import("state.zig").State;
const Allocator = std.mem.Allocator;
const Item = Requests.Item;

/// Another peer: what is asked of it, and by it.
pub const Peer = struct {
    id: base.PeerId = .none,
    /// There is a link to it; for a sync, since the attempt began.
    is_linked: bool = false,
    /// The page of hashes that it is still to be asked for. Leaves: Fetch.
    wants_page: ?u32 = null,
    /// It has been asked for a page of hashes, and nothing has come.
    owes_page: bool = false,
    /// When it last gave something that it had been asked for, or was not asked for anything.
    gave_at: base.Instant = 0,

    // In a sync alone.
    /// Asked for by it.
    asked: Requests = .{},
    /// Something went to it, or was asked for, in this attempt. Whoever has sent an answer on
    /// a lane that the other has left already is the only one to notice that it is lost.
    used: bool = false,
    /// It says that it has everything.
    gives: bool = false,
    /// It is to be told that this peer has everything, and has been told.
    tell: bool = false,
    told: bool = false,

    pub fn become(peer: *Peer, gpa: Allocator, fresh: Peer) void {
        peer.asked.clear(gpa);
        peer.* = fresh;
    }
};

/// For a payload, and whose it is.
pub const Place = struct { []u8, Lane.Owner };

pub const Error = error{ OutOfMemory, UnknownLeaf, UnknownPage, WrongLength, Overlap };

pub const Transfer = struct {
    gpa: Allocator,
    /// Null: it is the user's again.
    state: ?*State,
    /// As lanes know whose leaves they bring.
    owner: Lane.Owner,
    phase: Phase,
    fetch: collective.Fetch,
    /// Leaves that have come in, and whose hashes are not known yet.
    hashing: Hashing = .{},
    /// By rank in a sync.
    peers: []Peer,
    /// The one before which all others are asked for hashes, in a circle.
    first: usize = 0,
    /// The peer that was asked last for the hashes, and the next page; null once they are there.
    hashes_from: ?u16 = null,
    pages_got: u32 = 0,
    /// When that page was asked for, or something of it came.
    page_moved_at: base.Instant = 0,

    // In the background alone.
    /// Tells answers to this fetch from those to one before.
    number: u32 = 0,
    leaves_kept: u32 = 0,

    pub const Phase = enum {
        /// No attempt is under way.
        stopped,
        /// In an attempt of a sync that has offered nothing.
        begun,
        offered,
        /// The hashes of the leaves are asked for.
        hashes,
        leaves,
        /// This peer has what was elected.
        complete,
    };

    pub fn init(gpa: Allocator, state: *State, peer_count: usize) Allocator.Error!Transfer {
        var fetch = try collective.Fetch.init(gpa, state.leaf_count(), peer_count);
        errdefer fetch.deinit();
        const peers = try gpa.alloc(Peer, peer_count);
        @memset(peers, .{});
        return .{
            .gpa = gpa,
            .state = state,
            .owner = .{ .state = state },
            .phase = .stopped,
            .fetch = fetch,
            .peers = peers,
        };
    }

    pub fn deinit(t: *Transfer) void {
        if (t.state) |state| _ = t.hashing.fence(state);
        t.fetch.deinit();
        for (t.peers) |*peer| peer.asked.clear(t.gpa);
        t.gpa.free(t.peers);
    }

    pub fn find(t: *const Transfer, id: base.PeerId) ?u16 {
        for (t.peers, 0..) |*peer, rank| {
            if (peer.is_linked and peer.id.eql(id)) return @intCast(rank);
        }
        return null;
    }

    /// Leaves and their hashes are coming in.
    pub fn is_fetching(t: *const Transfer) bool {
        return t.phase == .hashes or t.phase == .leaves;
    }

    /// The hashes are there: the leaves that this peer lacks are needed. Returns how many others
    /// are not in the user's memory either.
    pub fn begin_leaves(t: *Transfer) u32 {
        const state = t.state.?;
        t.phase = .leaves;
        t.hashes_from = null;
        var staged: u32 = 0;
        for (0..state.leaf_count()) |leaf| {
            const is_own = std.mem.eql(u8, &state.wanted[leaf + 1], &state.hashes[leaf + 1]);
            if (state.lacks(@intCast(leaf))) t.fetch.need(@intCast(leaf)) //
            else staged += @intFromBool(!is_own);
        }
        return staged;
    }

    /// The next request to this peer, unless all have been said.
    pub fn next_want(t: *Transfer, rank: u16) ?Item {
        if (t.peers[rank].wants_page) |page| {
            t.peers[rank].wants_page = null;
            return .{ .class = requests.class_hashes, .index = page };
        }
        if (t.phase != .leaves) return null;
        const leaf = t.fetch.say(rank) orelse return null;
        return .{ .class = requests.class_leaf, .index = leaf };
    }

    /// Whether it has been asked for all that is wanted of it.
    pub fn has_said_all(t: *const Transfer, rank: u16) bool {
        if (t.peers[rank].wants_page != null) return false;
        return t.phase != .leaves or t.fetch.has_said_all(rank);
    }

    /// Whether this peer has been asked for something that it has not brought.
    pub fn owes(t: *const Transfer, rank: u16) bool {
        return t.fetch.owes(rank) or t.peers[rank].owes_page;
    }

    /// It may not have heard of this request, because a lane broke: it is said once more, if the
    /// answer has not come.
    pub fn say_again(t: *Transfer, rank: u16, item: Item) void {
        if (item.class == requests.class_leaf) return t.fetch.unsay(rank, item.index);
        const peer = &t.peers[rank];
        const is_next = t.hashes_from == rank and t.pages_got == item.index;
        if (is_next and peer.owes_page) peer.wants_page = item.index;
    }

    /// The lane of a frame that this peer gives broke in the middle of it.
    pub fn broke_off(t: *Transfer, rank: u16, header: *const wire.frame.Header) void {
        if (header.kind != .leaf) return;
        t.fetch.unplace(rank, @intCast(header.index), header.reduced_attempt, header.fragment);
    }

    /// Nothing more is asked of this peer.
    pub fn discard(t: *Transfer, rank: u16) void {
        t.fetch.discard(rank);
        t.peers[rank].wants_page = null;
        t.peers[rank].owes_page = false;
        if (t.hashes_from == rank) t.hashes_from = null;
    }
};

// ---- what goes out

/// Whether there is what a request names.
pub fn has(state: *const State, class: u16, index: u64) bool {
    return index < switch (class) {
        requests.class_leaf => state.leaf_count(),
        requests.class_hashes => state.page_count(),
        else => 0,
    };
}

pub fn kind_of(item: Item) wire.frame.Kind {
    return if (item.class == requests.class_leaf) .leaf else .hashes;
}

/// A leaf or a page that there is. `wanted`: of the content that was elected, and not of the one in
/// the user's memory.
pub fn payload_of(state: *State, item: Item, wanted: bool) []const u8 {
    if (item.class != requests.class_leaf)
        return State.page_of(if (wanted) state.wanted else state.hashes, item.index);
    return if (wanted) state.wanted_leaf(item.index) else state.leaf(item.index);
}
