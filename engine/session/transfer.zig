//! Transfer: the leaves of a shared state on their way from other peers to this one, in a sync
//! (sync.zig) and in the background (prefetch.zig) alike. It asks one peer for the hashes of all
//! leaves, page by page, then all of them for the leaves that this one lacks, and says where the
//! answers go. Why a content is wanted, and what follows when it is there or when nobody gives it,
//! is up to those two. Which leaf is asked of whom: collective/fetch.zig; where leaves wait until
//! they count: state.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const collective = @import("collective");
const requests = @import("requests.zig");
const outgoing = @import("outgoing.zig");
const links = @import("links.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Requests = requests.Requests;
const Session = @import("session.zig").Session;
const State = @import("state.zig").State;
const Allocator = std.mem.Allocator;
const Header = wire.frame.Header;
const Item = Requests.Item;
const assert = std.debug.assert;

/// Another peer: what is asked of it, and by it.
pub const Peer = struct {
    id: base.PeerId = .none,
    /// There is a link to it; for a sync, since the attempt began.
    is_linked: bool = false,
    /// To be asked of it.
    wants: Requests = .{},
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
    /// It is to be told that this peer has everything.
    tell: bool = false,
};

/// For a payload, and whose it is.
pub const Place = struct { []u8, Lane.Owner };

pub const Error = error{ OutOfMemory, UnknownLeaf, UnknownPage, WrongLength, NotAsked };

pub const Transfer = struct {
    gpa: Allocator,
    /// Null: it is the user's again.
    state: ?*State,
    /// As lanes know whose leaves they bring.
    owner: Lane.Owner,
    phase: Phase,
    fetch: collective.Fetch,
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
    /// Requests that are lost with a lane are made again, so an answer may be one to the first.
    repeats: bool = false,
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
        t.fetch.deinit();
        t.gpa.free(t.peers);
    }

    pub fn find(t: *const Transfer, id: base.PeerId) ?u16 {
        for (t.peers, 0..) |*peer, rank| {
            if (peer.is_linked and peer.id.eql(id)) return @intCast(rank);
        }
        return null;
    }

    pub fn link_to(t: *const Transfer, s: *const Session, rank: usize) ?*Link {
        const peer = &t.peers[rank];
        return if (peer.is_linked) links.find(s, peer.id) else null;
    }

    /// Leaves and their hashes are coming in.
    pub fn is_fetching(t: *const Transfer) bool {
        return t.phase == .hashes or t.phase == .leaves;
    }

    // ---- asking

    fn ask(t: *Transfer, s: *Session, rank: u16, class: u16, index: u32) void {
        const link = t.link_to(s, rank) orelse return;
        const peer = &t.peers[rank];
        // At most a page and the leaves that Fetch allows are on request.
        assert(peer.wants.push(.{ .class = class, .index = index }));
        peer.used = true;
        outgoing.wake(s, link);
    }

    /// Asks this peer for all pages, one after the other.
    pub fn ask_for_hashes(t: *Transfer, s: *Session, rank: u16) void {
        t.hashes_from = rank;
        t.pages_got = 0;
        t.ask_for_page(s);
    }

    /// Asks a source that owes none already.
    pub fn ask_another_for_hashes(t: *Transfer, s: *Session) void {
        for (0..t.peers.len) |distance| {
            const rank: u16 = @intCast((t.first + distance) % t.peers.len);
            if (!t.fetch.is_usable(rank) or t.peers[rank].owes_page) continue;
            return t.ask_for_hashes(s, rank);
        }
    }

    fn ask_for_page(t: *Transfer, s: *Session) void {
        const rank = t.hashes_from.?;
        t.peers[rank].owes_page = true;
        t.page_moved_at = s.now;
        t.ask(s, rank, requests.class_hashes, t.pages_got);
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

    pub fn ask_for_leaves(t: *Transfer, s: *Session) void {
        while (t.fetch.next()) |request|
            t.ask(s, request.rank, requests.class_leaf, request.leaf);
    }

    /// Nothing more is asked of this peer.
    pub fn discard(t: *Transfer, rank: u16) void {
        t.fetch.discard(rank);
        t.peers[rank].wants = .{};
        t.peers[rank].owes_page = false;
        if (t.hashes_from == rank) t.hashes_from = null;
    }

    /// A source whose lanes are well and that gives nothing for so long is not waited for. A lane
    /// that is not well, or on which a request was lost, is closed before. Slow data counts as
    /// well, and whether a lane still moves is its own affair.
    pub fn is_mute(t: *Transfer, s: *const Session, rank: u16, late: bool) bool {
        const link = t.link_to(s, rank) orelse return false;
        const peer = &t.peers[rank];
        const owes = t.fetch.owes(rank) or peer.owes_page;
        const waits = owes and peer.wants.count == 0 and link.open_count > 0;
        if (late or !waits or link.brings(t.owner)) peer.gave_at = s.now;
        return s.now -| peer.gave_at >= 2 *| s.settings.silence_ns;
    }

    // ---- what comes in

    /// Where the payload of an answer goes; null: it is not wanted any more.
    pub fn place(t: *Transfer, s: *Session, lane: *Lane, header: *const Header) Error!?Place {
        const state = t.state orelse return null;
        const rank = t.find(lane.link.?.peer) orelse return null;
        const peer = &t.peers[rank];
        const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
        if (header.kind == .hashes) {
            if (index >= state.page_count()) return error.UnknownPage;
            if (peer.wants.has(requests.class_hashes, null)) return t.not_asked();
            if (t.phase != .hashes or t.hashes_from != rank) {
                peer.owes_page = false;
                return null;
            }
            if (index != t.pages_got) return if (t.repeats) null else error.UnknownPage;
            const page = State.page_of(state.wanted, index);
            if (header.payload_bytes != page.len) return error.WrongLength;
            // One at a time: nobody may write to a page that has been checked.
            t.take_over(s, lane, rank, header);
            return .{ page, t.owner };
        }
        if (peer.wants.has(requests.class_leaf, index)) return t.not_asked();
        if (index >= state.leaf_count()) return error.UnknownLeaf;
        if (header.payload_bytes != state.leaf(index).len) return error.WrongLength;
        if (t.phase != .leaves or !t.fetch.wants(rank, index)) {
            peer.gave_at = s.now;
            if (t.phase == .leaves) t.fetch.delivered(rank, index);
            return null;
        }
        // Asked of two, and the other one is still sending: whoever began later is faster.
        t.take_over(s, lane, rank, header);
        return .{ try state.stage(index), t.owner };
    }

    /// It is still to be asked for.
    fn not_asked(t: *const Transfer) error{NotAsked}!?Place {
        return if (t.repeats) null else error.NotAsked;
    }

    /// No other lane brings the same any more.
    fn take_over(t: *Transfer, s: *Session, lane: *Lane, rank: u16, header: *const Header) void {
        for (s.links.items) |link| for (link.lanes) |other_place| {
            const other = other_place orelse continue;
            if (other == lane or !other.brings(t.owner)) continue;
            if (other.incoming.kind != header.kind) continue;
            if (header.kind == .leaf and other.incoming.index != header.index) continue;
            other.detach(t.owner);
            const slower = t.find(link.peer) orelse continue;
            if (header.kind == .hashes) {
                t.peers[slower].owes_page = false;
            } else if (slower != rank) { // else it sends the same twice
                t.fetch.cancel(slower, @intCast(header.index));
            }
        };
    }

    /// The payload of a placed frame is complete: the peer that has given it.
    pub fn arrived(t: *Transfer, s: *const Session, lane: *const Lane) ?u16 {
        if (t.state == null) return null;
        const rank = t.find(lane.link.?.peer) orelse return null;
        t.peers[rank].gave_at = s.now;
        return rank;
    }

    /// It was a page: whether it was the last one.
    pub fn page_arrived(t: *Transfer, s: *Session, rank: u16, header: *const Header) bool {
        t.peers[rank].owes_page = false;
        const is_next = t.hashes_from == rank and header.index == t.pages_got;
        if (t.phase != .hashes or !is_next) return false;
        t.pages_got += 1;
        if (t.pages_got == t.state.?.page_count()) return true;
        t.ask_for_page(s);
        return false;
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
