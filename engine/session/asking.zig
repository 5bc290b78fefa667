//! asking: how a transfer (transfer.zig) asks other peers for hashes and leaves, and takes what
//! they give. Free functions on Session. Why, and what follows: syncing.zig, prefetch.zig.

const std = @import("std");
const wire = @import("wire");
const transfers = @import("transfer.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Requests = @import("requests.zig").Requests;
const Sent = @import("unacked.zig").Sent;
const Session = @import("session.zig").Session;
const State = @import("state.zig").State;
const Allocator = std.mem.Allocator;
const Error = transfers.Error;
const Header = wire.frame.Header;
const Place = transfers.Place;
const Transfer = transfers.Transfer;

pub fn link_to(s: *const Session, t: *const Transfer, rank: usize) ?*Link {
    const peer = &t.peers[rank];
    return if (peer.is_linked) s.link_to(peer.id) else null;
}

/// Something is wanted of this peer.
fn ask(s: *Session, t: *Transfer, rank: u16) void {
    const link = link_to(s, t, rank) orelse return;
    t.peers[rank].used = true;
    s.wake(link);
}

/// Asks this peer for all pages, one after the other.
pub fn ask_for_hashes(s: *Session, t: *Transfer, rank: u16) void {
    t.hashes_from = rank;
    t.pages_got = 0;
    ask_for_page(s, t);
}

/// Asks a source that owes none already.
pub fn ask_another_for_hashes(s: *Session, t: *Transfer) void {
    for (0..t.peers.len) |distance| {
        const rank: u16 = @intCast((t.first + distance) % t.peers.len);
        if (!t.fetch.is_usable(rank) or t.peers[rank].owes_page) continue;
        return ask_for_hashes(s, t, rank);
    }
}

fn ask_for_page(s: *Session, t: *Transfer) void {
    const rank = t.hashes_from.?;
    t.peers[rank].owes_page = true;
    t.peers[rank].wants_page = t.pages_got;
    t.page_moved_at = s.now;
    ask(s, t, rank);
}

/// As many of each source as its link has in the air.
pub fn ask_for_leaves(s: *Session, t: *Transfer) void {
    for (0..t.peers.len) |index| {
        const rank: u16 = @intCast(index);
        const link = link_to(s, t, rank) orelse continue;
        t.fetch.make_room(rank, @min(link.flow.in_air(), s.settings.windows_bytes));
    }
    while (t.fetch.next()) |request| ask(s, t, request.rank);
}

/// A source whose lanes are well and that gives nothing for so long is not waited for. A lane
/// that is not well, or on which a request was lost, is closed before. Slow data counts as
/// well, and whether a lane still moves is its own affair.
pub fn is_mute(s: *const Session, t: *Transfer, rank: u16, late: bool) bool {
    const link = link_to(s, t, rank) orelse return false;
    const peer = &t.peers[rank];
    const waits = t.owes(rank) and t.has_said_all(rank) and link.open_count > 0;
    if (late or !waits or link.brings(t.owner)) peer.gave_at = s.now;
    return s.now -| peer.gave_at >= 2 *| s.settings.silence_ns;
}

// ---- a lane that breaks

/// The other side may not have what went out on it (unacked.zig): what was asked for is asked for
/// once more, and what was given is given once more. False: it cannot be.
pub fn say_again(t: *Transfer, rank: u16, request: *const Sent.Request) bool {
    if (request.is_answer) return answer_again(&t.peers[rank].asked, t.gpa, request);
    t.say_again(rank, request.item);
    return true;
}

/// `asked`: whatever the other side has asked for.
pub fn answer_again(asked: *Requests, gpa: Allocator, request: *const Sent.Request) bool {
    var item = request.item;
    item.again = std.math.add(u8, item.again, 1) catch return false;
    asked.put_back(gpa, item) catch return false;
    return true;
}

// ---- what comes in

/// Where the payload of an answer goes; null: it is not wanted any more.
pub fn place(s: *Session, t: *Transfer, lane: *Lane, header: *const Header) Error!?Place {
    const state = t.state orelse return null;
    const rank = t.find(lane.link.?.peer) orelse return null;
    const peer = &t.peers[rank];
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    if (header.kind == .hashes) {
        if (index >= state.page_count()) return error.UnknownPage;
        if (t.phase != .hashes or t.hashes_from != rank) {
            peer.owes_page = false;
            return null;
        }
        if (index != t.pages_got) return null; // one that came before, with a lane that broke
        const page = State.page_of(state.wanted, index);
        if (header.payload_bytes != page.len) return error.WrongLength;
        // One at a time: nobody may write to a page that has been checked.
        return if (take_over_page(s, t, rank, header)) .{ page, t.owner } else null;
    }
    return place_leaf(s, t, lane, rank, header);
}

/// The same, where it is a leaf or a fragment of one.
fn place_leaf(
    s: *Session,
    t: *Transfer,
    lane: *const Lane,
    rank: u16,
    header: *const Header,
) Error!?Place {
    const state = t.state.?;
    const peer = &t.peers[rank];
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    if (index >= state.leaf_count()) return error.UnknownLeaf;
    const part = header.fragment.range(state.leaf(index).len);
    if (header.payload_bytes != part.len()) return error.WrongLength;
    t.fetch.hear(rank, header.reduced_attempt);
    if (t.phase != .leaves or !t.fetch.wants(rank, index)) {
        peer.gave_at = s.now;
        if (t.phase == .leaves) t.fetch.delivered(rank, index);
        return null;
    }
    const leaf = try state.stage(index);
    const begins = t.fetch.place(
        rank,
        index,
        header.reduced_attempt,
        header.fragment,
    ) catch |err| switch (err) {
        error.Older => return null,
        error.Twice => {
            const taken = lane.link.?.take_over(t.owner, header) orelse return null;
            return .{ taken.bytes, t.owner };
        },
        error.Overlap => return error.Overlap,
    };
    if (begins) drop_leaf(s, t, index);
    return .{ leaf[part.first..part.end], t.owner };
}

/// No lane brings anything of this leaf any more.
fn drop_leaf(s: *Session, t: *const Transfer, leaf: u32) void {
    for (s.links.items) |link| for (link.lanes[0..link.lanes_end]) |place_of| {
        const lane = place_of orelse continue;
        if (!lane.brings(t.owner) or lane.incoming.kind != .leaf) continue;
        if (lane.incoming.index == leaf) lane.drop_into();
    };
}

/// No other lane brings a page any more. False: this one is not needed, because another one is of
/// the same source and was not sent before this (resend.zig).
fn take_over_page(s: *Session, t: *Transfer, rank: u16, header: *const Header) bool {
    for (s.links.items) |link| for (link.lanes[0..link.lanes_end]) |place_of| {
        const other = place_of orelse continue;
        if (!other.brings(t.owner) or other.incoming.kind != .hashes) continue;
        const slower = t.find(link.peer);
        const is_same = slower == rank and other.incoming.index == header.index;
        if (is_same and other.incoming.again >= header.again) return false;
        other.drop_into();
        if (slower) |it| t.peers[it].owes_page = it == rank;
    };
    return true;
}

/// The payload of a placed frame is complete: the peer that has given it.
pub fn arrived(s: *const Session, t: *Transfer, lane: *const Lane) ?u16 {
    if (t.state == null) return null;
    const rank = t.find(lane.link.?.peer) orelse return null;
    t.peers[rank].gave_at = s.now;
    return rank;
}

/// It was a leaf, or a part of one: its bytes, if they are to be hashed now. Null: it is not whole,
/// or a runner hashes it.
pub fn leaf_arrived(t: *Transfer, rank: u16, header: *const Header) ?[]const u8 {
    const leaf: u32 = @intCast(header.index);
    if (!t.fetch.came(rank, leaf, header.fragment)) return null;
    const bytes = t.state.?.staged[leaf].?;
    return if (t.hashing.give(bytes, rank, leaf)) null else bytes;
}

/// It was a page: whether it was the last one.
pub fn page_arrived(s: *Session, t: *Transfer, rank: u16, header: *const Header) bool {
    t.peers[rank].owes_page = false;
    t.peers[rank].wants_page = null;
    const is_next = t.hashes_from == rank and header.index == t.pages_got;
    if (t.phase != .hashes or !is_next) return false;
    t.pages_got += 1;
    if (t.pages_got == t.state.?.page_count()) return true;
    ask_for_page(s, t);
    return false;
}
