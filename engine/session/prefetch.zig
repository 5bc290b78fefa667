//! Prefetch: the part of a shared state that a newcomer fetches in the background, before it
//! enters, from members that have opted in and train meanwhile. They send their memory as it is at
//! that moment, perhaps torn. Each leaf is kept with the hash of the bytes that came, and the first
//! sync (sync.zig) takes it only if that hash was elected; so only leaves that have changed since
//! move then.
//!
//! Nothing here is an operation: there is no vote and no attempt, and a leaf that fails is simply
//! not there. Frames name epoch 0, the tag of the state, and in `attempt` the fetch that they
//! belong to. They go when no operation has anything to send.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const collective = @import("collective");
const frames = @import("frames.zig");
const labels = @import("labels.zig");
const links = @import("links.zig");
const sync = @import("sync.zig");
const Group = @import("group.zig").Group;
const Lane = @import("lane.zig").Lane;
const Link = @import("link.zig").Link;
const Session = @import("session.zig").Session;
const State = @import("state.zig").State;
const Allocator = std.mem.Allocator;
const Header = wire.frame.Header;
const Hash = wire.control.Hash;
const Mask = base.Mask;
const PeerId = base.PeerId;
const limits = base.limits;

pub const class_leaf = 0;
pub const class_hashes = 1;

/// A request that is still to be sent, or to be answered. A page and a few leaves at most are on
/// request at the same time.
pub const Queue = struct {
    items: [limits.state_asked_max + 1]Item = undefined,
    first: u32 = 0,
    count: u32 = 0,

    pub const Item = struct {
        class: u16,
        index: u32,
        // Where the answer belongs; of requests of others only.
        group: u16 = 0,
        tag: u64 = 0,
        number: u32 = 0,
        fingerprint: u32 = 0,
    };

    pub fn push(queue: *Queue, item: Item) bool {
        if (queue.count == queue.items.len) return false;
        queue.items[(queue.first + queue.count) % queue.items.len] = item;
        queue.count += 1;
        return true;
    }

    pub fn pop(queue: *Queue) ?Item {
        if (queue.count == 0) return null;
        defer queue.first = @intCast((queue.first + 1) % queue.items.len);
        queue.count -= 1;
        return queue.items[queue.first];
    }

    pub fn asks_for_page(queue: *const Queue) bool {
        for (0..queue.count) |offset| {
            const item = &queue.items[(queue.first + offset) % queue.items.len];
            if (item.class == class_hashes) return true;
        }
        return false;
    }

    pub fn has(queue: *const Queue, class: u16, index: u32) bool {
        for (0..queue.count) |offset| {
            const item = &queue.items[(queue.first + offset) % queue.items.len];
            if (item.class == class and item.index == index) return true;
        }
        return false;
    }
};

/// For one state of this peer, which is not a member yet.
pub const Prefetch = struct {
    gpa: Allocator,
    state: *State,
    /// Tells answers to this fetch from those to one before.
    number: u32,
    sources: []Source,
    fetch: collective.Fetch,
    /// The source that is asked for the hashes; null once they are there.
    hashes_from: ?u16 = null,
    pages_got: u32 = 0,
    leaves_kept: u32 = 0,

    const Source = struct {
        peer: PeerId,
        wants: Queue = .{},
        /// When it last gave something, or was not asked for anything.
        gave_at: base.Instant,
    };

    fn destroy(prefetch: *Prefetch) void {
        prefetch.fetch.deinit();
        prefetch.gpa.free(prefetch.sources);
        prefetch.gpa.destroy(prefetch);
    }

    pub fn find(prefetch: *const Prefetch, peer: PeerId) ?u16 {
        for (prefetch.sources, 0..) |*source, index| {
            if (source.peer.eql(peer)) return @intCast(index);
        }
        return null;
    }
};

/// Answers of another structure are of no use.
fn fingerprint(state: *const State) u32 {
    return std.mem.readInt(u32, state.structure()[0..4], .little);
}

// ---- the newcomer

/// Begins to fetch, if this peer is a newcomer whose lanes are open. The state's leaves are hashed.
pub fn begin(s: *Session, state: *State) Allocator.Error!void {
    const group = state.group;
    if (group.state != .joined or group.member.current != null or !group.ready_told) return;
    if (state.prefetch != null or state.leaf_count() == 0) return;
    var sources: std.ArrayList(Prefetch.Source) = .empty;
    defer sources.deinit(s.gpa);
    for (s.links.items) |link| {
        if (link.open_count == 0 or !group.knows(link.peer)) continue;
        try sources.append(s.gpa, .{ .peer = link.peer, .gave_at = s.now });
    }
    if (sources.items.len == 0) return;
    const prefetch = try s.gpa.create(Prefetch);
    errdefer s.gpa.destroy(prefetch);
    var fetch = try collective.Fetch.init(s.gpa, state.leaf_count(), sources.items.len);
    errdefer fetch.deinit();
    fetch.begin(&Mask.full(sources.items.len));
    s.prefetches +%= 1;
    prefetch.* = .{
        .gpa = s.gpa,
        .state = state,
        .number = s.prefetches,
        .sources = try sources.toOwnedSlice(s.gpa),
        .fetch = fetch,
    };
    state.prefetch = prefetch;
    state.wanted_root = null;
    // Newcomers spread over the members.
    const first = s.prng.below(prefetch.sources.len);
    ask_for_hashes(s, prefetch, @intCast(first));
}

/// Whatever is still on its way is not wanted; what has come stays.
pub fn stop(s: *Session, state: *State) void {
    const prefetch = state.prefetch orelse return;
    state.prefetch = null;
    detach(s, state);
    prefetch.destroy();
    s.links_stale = true; // perhaps nothing else wants those to the sources
    entry_may_go_on(state.group);
}

/// The process ends.
pub fn forget(state: *State) void {
    const prefetch = state.prefetch orelse return;
    state.prefetch = null;
    prefetch.destroy();
}

/// No lane reads or writes memory of this state any more.
pub fn detach(s: *Session, state: *State) void {
    for (s.links.items) |link| for (link.lanes) |maybe| if (maybe) |lane| {
        lane.detach_state(state);
        if (lane.broken) s.lanes_broken = true;
    };
}

/// A newcomer that asked to be admitted waits for its fetches.
fn entry_may_go_on(group: *Group) void {
    if (!group.admit_waits or group.is_fetching()) return;
    group.admit_waits = false;
    group.member.admit();
}

fn ask(s: *Session, prefetch: *Prefetch, source: u16, item: Queue.Item) void {
    const link = links.find(s, prefetch.sources[source].peer) orelse return;
    if (prefetch.sources[source].wants.push(item)) frames.wake(s, link);
}

fn ask_for_hashes(s: *Session, prefetch: *Prefetch, source: u16) void {
    prefetch.hashes_from = source;
    prefetch.pages_got = 0;
    ask(s, prefetch, source, .{ .class = class_hashes, .index = 0 });
}

fn ask_more(s: *Session, prefetch: *Prefetch) void {
    if (prefetch.hashes_from != null) return;
    if (prefetch.fetch.left == 0 or !prefetch.fetch.has_sources()) return over(s, prefetch);
    while (prefetch.fetch.next()) |request| {
        ask(s, prefetch, request.rank, .{ .class = class_leaf, .index = request.leaf });
    }
}

fn over(s: *Session, prefetch: *Prefetch) void {
    s.log(.info, "shared state \"{s}\": {d} leaves fetched in the background, {d} missing", .{
        prefetch.state.name, prefetch.leaves_kept, prefetch.fetch.left,
    });
    stop(s, prefetch.state);
}

/// This source gives nothing any more.
fn discard(s: *Session, prefetch: *Prefetch, source: u16) void {
    prefetch.fetch.discard(source);
    prefetch.sources[source].wants = .{};
    if (prefetch.hashes_from == source) {
        for (prefetch.sources, 0..) |_, other| {
            if (!prefetch.fetch.is_usable(@intCast(other))) continue;
            return ask_for_hashes(s, prefetch, @intCast(other));
        }
        prefetch.hashes_from = null; // ask_more finds that nobody is left
    }
    ask_more(s, prefetch);
}

/// A lane to this peer is gone, with whatever was on it.
pub fn lane_gone(s: *Session, peer: PeerId) void {
    for (s.groups.items) |group| for (group.states.items) |state| {
        const prefetch = state.prefetch orelse continue;
        discard(s, prefetch, prefetch.find(peer) orelse continue);
    };
}

/// A lane to this peer is open again: on the one before, which only the other may have missed, an
/// answer may have been lost.
pub fn lane_back(s: *Session, peer: PeerId) void {
    for (s.groups.items) |group| for (group.states.items) |state| {
        const prefetch = state.prefetch orelse continue;
        const source = prefetch.find(peer) orelse continue;
        prefetch.sources[source].wants = .{};
        prefetch.fetch.take_back(source);
        if (prefetch.hashes_from == source) ask_for_hashes(s, prefetch, source);
        ask_more(s, prefetch);
    };
}

/// As in a sync: whoever gives nothing is not waited for.
pub fn tick(s: *Session, late: bool) void {
    for (s.groups.items) |group| for (group.states.items) |state| {
        const prefetch = state.prefetch orelse continue;
        const mute = find_mute(s, prefetch, late) orelse continue;
        s.log(.info, "peer {f} gives nothing of shared state \"{s}\"", .{
            labels.named(s, prefetch.sources[mute].peer), state.name,
        });
        discard(s, prefetch, mute); // another one at the next tick
    };
}

fn find_mute(s: *const Session, prefetch: *Prefetch, late: bool) ?u16 {
    var mute: ?u16 = null;
    for (prefetch.sources, 0..) |*source, index| {
        const rank: u16 = @intCast(index);
        const owes = prefetch.fetch.owes(rank) or prefetch.hashes_from == rank;
        const comes = if (links.find(s, source.peer)) |link|
            link.brings_state(prefetch.state)
        else
            false;
        if (late or comes or !owes or source.wants.count > 0) source.gave_at = s.now;
        if (s.now -| source.gave_at >= sync.patience(s)) mute = rank;
    }
    return mute;
}

pub const Error = error{ UnknownLeaf, WrongLength, TooManyRequests };

fn find_state(s: *const Session, group_id: u16, tag: u64) ?*State {
    for (s.groups.items) |group| {
        if (group.state != .joined or group.id != group_id) continue;
        for (group.states.items) |state| if (state.tag == tag) return state;
    }
    return null;
}

fn find_fetch(s: *const Session, header: *const Header) ?*Prefetch {
    const state = find_state(s, header.group, header.tag) orelse return null;
    const prefetch = state.prefetch orelse return null;
    return if (prefetch.number == header.attempt) prefetch else null;
}

/// Where the payload of an answer goes; null: it is not wanted any more.
pub fn place(s: *Session, lane: *Lane, header: *const Header) Error!?[]u8 {
    const prefetch = find_fetch(s, header) orelse return null;
    const state = prefetch.state;
    const source = prefetch.find(lane.link.?.peer) orelse return null;
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    const class: u16 = if (header.kind == .leaf) class_leaf else class_hashes;
    // The answer to a request before this one (lane_back), on a lane that has stayed.
    if (prefetch.sources[source].wants.has(class, index)) return null;
    if (header.kind == .hashes) {
        if (prefetch.hashes_from != source) return null;
        if (index >= state.page_count()) return error.UnknownLeaf;
        if (index != prefetch.pages_got) return null; // of an earlier request
        const page = State.page_of(state.wanted, index);
        if (header.payload_bytes != page.len) return error.WrongLength;
        // One at a time, as in a sync.
        for (s.links.items) |link| for (link.lanes) |maybe| if (maybe) |other| {
            const same = other != lane and other.into_state == state and
                other.incoming.kind == .hashes;
            if (same) other.drop_into();
        };
        lane.into_state = state;
        return page;
    }
    if (index >= state.leaf_count()) return error.UnknownLeaf;
    if (header.payload_bytes != state.leaf(index).len) return error.WrongLength;
    if (!prefetch.fetch.wants(source, index)) {
        prefetch.sources[source].gave_at = s.now;
        prefetch.fetch.delivered(source, index);
        return null;
    }
    // Asked of two, and the other one is still sending: whoever began later is faster.
    for (s.links.items) |link| for (link.lanes) |maybe| if (maybe) |other| {
        const same = other != lane and other.into_state == state and
            other.incoming.kind == .leaf and other.incoming.index == index;
        if (!same) continue;
        other.drop_into();
        const slower = prefetch.find(link.peer) orelse continue;
        if (slower != source) prefetch.fetch.cancel(slower, index);
    };
    const into = state.stage(index) catch {
        over(s, prefetch); // what there is memory for
        return null;
    };
    lane.into_state = state;
    return into;
}

/// The payload of a placed frame is complete.
pub fn arrived(s: *Session, lane: *Lane, header: *const Header) void {
    lane.into_state = null;
    const prefetch = find_fetch(s, header) orelse return;
    const state = prefetch.state;
    const source = prefetch.find(lane.link.?.peer) orelse return;
    const index: u32 = @intCast(header.index);
    prefetch.sources[source].gave_at = s.now;
    if (header.kind == .leaf) {
        state.staged_hashes[index] = kernels.blake3(state.staged[index].?);
        prefetch.fetch.delivered(source, index);
        prefetch.leaves_kept += 1;
        return ask_more(s, prefetch);
    }
    if (prefetch.hashes_from != source or index != prefetch.pages_got) return;
    prefetch.pages_got += 1;
    if (prefetch.pages_got < state.page_count()) return ask(s, prefetch, source, .{
        .class = class_hashes,
        .index = prefetch.pages_got,
    });
    prefetch.hashes_from = null;
    // Leaves that this peer has as the members had them after their last sync are not worth
    // fetching.
    for (0..state.leaf_count()) |leaf| {
        if (state.lacks(@intCast(leaf))) prefetch.fetch.need(@intCast(leaf));
    }
    ask_more(s, prefetch);
}

/// The other has nothing to give.
pub fn on_lack(s: *Session, link: *Link, header: *const Header) void {
    const prefetch = find_fetch(s, header) orelse return;
    discard(s, prefetch, prefetch.find(link.peer) orelse return);
}

// ---- the members

/// A newcomer wants a leaf, or a page of hashes.
pub fn on_want(s: *Session, link: *Link, header: *const Header) Error!void {
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    for (s.groups.items) |group| {
        if (group.state != .joined or group.id != header.group) continue;
        if (group.knows(link.peer)) link.asks_in = header.group;
    }
    // Nothing else may keep the link, when others have entered before the one that asks.
    if (!link.wanted) link.expires_at = s.now + links.linger_ns;
    if (!link.asked.push(.{
        .class = header.class,
        .index = index,
        .group = header.group,
        .tag = header.tag,
        .number = header.attempt,
        .fingerprint = header.fingerprint,
    })) return error.TooManyRequests;
    frames.wake(s, link);
}

/// Puts the next frame on a lane that is idle and that no operation needs, if there is one.
pub fn next(s: *Session, lane: *Lane, link: *Link) bool {
    for (s.groups.items) |group| for (group.states.items) |state| {
        const prefetch = state.prefetch orelse continue;
        const source = prefetch.find(link.peer) orelse continue;
        const item = prefetch.sources[source].wants.pop() orelse continue;
        put(lane, .want, .{
            .class = item.class,
            .index = item.index,
            .group = group.id.?,
            .tag = state.tag,
            .number = prefetch.number,
            .fingerprint = fingerprint(state),
        }, 0);
        return true;
    };
    const item = link.asked.pop() orelse return false;
    const state = giver(s, link, &item) orelse {
        put(lane, .lack, item, 0);
        return true;
    };
    const payload = if (item.class == class_leaf)
        state.leaf(item.index)
    else
        State.page_of(state.hashes, item.index);
    put(lane, if (item.class == class_leaf) .leaf else .hashes, item, payload.len);
    lane.out_payload = payload;
    lane.out_state = state;
    return true;
}

/// The state that answers: of a member that has opted in, and of the structure that is asked for.
fn giver(s: *const Session, link: *const Link, item: *const Queue.Item) ?*State {
    const state = find_state(s, item.group, item.tag) orelse return null;
    if (link.asks_in != item.group) return null; // it was in no round that this peer was told of
    if (!state.serves or state.group.member.current == null) return null;
    if (fingerprint(state) != item.fingerprint) return null;
    const count = switch (item.class) {
        class_leaf => state.leaf_count(),
        class_hashes => state.page_count(),
        else => return null,
    };
    return if (item.index < count) state else null;
}

fn put(lane: *Lane, kind: wire.frame.Kind, item: Queue.Item, payload_bytes: usize) void {
    lane.put_head(&wire.frame.encode(std.mem.zeroInit(Header, .{
        .kind = kind,
        .tag = item.tag,
        .group = item.group,
        .index = item.index,
        .attempt = item.number,
        .class = item.class,
        .fingerprint = item.fingerprint,
        .payload_bytes = @as(u32, @intCast(payload_bytes)),
    })));
    lane.out_busy = true;
}
