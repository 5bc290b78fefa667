//! prefetch: the part of a shared state that a newcomer fetches in the background, before it
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
const asking = @import("asking.zig");
const cutting = @import("cutting.zig");
const labels = @import("labels.zig");
const operations = @import("operations.zig");
const transfers = @import("transfer.zig");
const Group = @import("group.zig").Group;
const Shared = Group.Shared;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Requests = @import("requests.zig").Requests;
const Sent = @import("unacked.zig").Sent;
const Session = @import("session.zig").Session;
const State = @import("state.zig").State;
const Allocator = std.mem.Allocator;
const Header = wire.frame.Header;
const Transfer = transfers.Transfer;

/// Answers of another structure are of no use.
fn fingerprint(state: *const State) u32 {
    return std.mem.readInt(u32, state.structure()[0..4], .little);
}

// ---- the newcomer

/// Begins to fetch, if this peer is a newcomer whose lanes are open. The state's leaves are hashed.
pub fn begin(s: *Session, shared: *Shared) Allocator.Error!void {
    const group = shared.group;
    const state = shared.state;
    if (group.state != .joined or group.member.current != null or !group.ready_told) return;
    if (shared.prefetch != null or state.leaf_count() == 0) return;
    var count: usize = 0;
    for (s.links.items) |link| count += @intFromBool(may_give(group, link));
    if (count == 0) return;
    const t = try s.gpa.create(Transfer);
    errdefer s.gpa.destroy(t);
    t.* = try .init(s.gpa, state, count);
    s.prefetches +%= 1;
    t.number = s.prefetches;
    count = 0;
    for (s.links.items) |link| if (may_give(group, link)) {
        t.peers[count] = .{ .id = link.peer, .is_linked = true, .gave_at = s.now };
        count += 1;
    };
    t.hashing.runner = if (s.runner) |*runner| runner else null;
    t.phase = .hashes;
    t.fetch.begin(&.full(count));
    shared.prefetch = t;
    state.wanted_root = null;
    // Newcomers spread over the members.
    asking.ask_for_hashes(s, t, @intCast(s.prng.below(count)));
}

fn may_give(group: *const Group, link: *const Link) bool {
    return link.open_count > 0 and group.knows(link.peer);
}

/// Whatever is still on its way is not wanted; what has come stays.
pub fn stop(s: *Session, shared: *Shared) void {
    if (shared.prefetch == null) return;
    operations.detach_all(s, .{ .state = shared.state });
    forget(shared);
    s.links_stale = true; // perhaps nothing else wants those to the sources
    entry_may_go_on(shared.group);
}

/// The process ends.
pub fn forget(shared: *Shared) void {
    const t = shared.prefetch orelse return;
    shared.prefetch = null;
    const gpa = t.gpa;
    t.deinit();
    gpa.destroy(t);
}

/// A newcomer that asked to be admitted waits for its fetches.
fn entry_may_go_on(group: *Group) void {
    if (!group.admit_waits or group.is_fetching()) return;
    group.admit_waits = false;
    group.member.admit();
}

fn ask_more(s: *Session, shared: *Shared) void {
    const t = shared.prefetch.?;
    if (t.hashes_from != null) return;
    if (t.fetch.left == 0) return over(s, shared);
    if (!t.fetch.has_sources()) return if (t.hashing.is_idle()) over(s, shared);
    asking.ask_for_leaves(s, t);
}

fn over(s: *Session, shared: *Shared) void {
    const t = shared.prefetch.?;
    s.log(.info, "shared state \"{s}\": {d} leaves fetched in the background, {d} missing", .{
        shared.state.name, t.leaves_kept, t.fetch.left,
    });
    stop(s, shared);
}

/// This source gives nothing any more.
fn discard(s: *Session, shared: *Shared, source: u16) void {
    const t = shared.prefetch.?;
    const gives_hashes = t.hashes_from == source;
    t.discard(source);
    if (gives_hashes) asking.ask_another_for_hashes(s, t);
    ask_more(s, shared); // perhaps nobody is left
}

/// A lane is gone: what it may not have delivered goes again, on another one or when there is one.
/// A source whose last lane it was is done without.
pub fn lane_gone(s: *Session, lane: *Lane, link: *Link) void {
    take_back(s, lane, link);
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        if (sent.operation != null) continue;
        // If memory is out it stays lost: the source is mute, or this peer is.
        if (sent.request) |*request| _ = say_again(s, link, request);
    }
    if (link.open_count > 0) return;
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        discard(s, shared, t.find(link.peer) orelse continue);
    };
}

/// A fragment of a leaf that was coming in on it is awaited anew.
fn take_back(s: *Session, lane: *const Lane, link: *const Link) void {
    if (std.meta.activeTag(lane.into_owner orelse return) != .state) return;
    const shared = fetch_of(s, &lane.incoming) orelse return;
    const t = shared.prefetch.?;
    t.broke_off(t.find(link.peer) orelse return, &lane.incoming);
}

fn say_again(s: *Session, link: *Link, request: *const Sent.Request) bool {
    if (request.is_answer) return asking.answer_again(&link.asked, link.gpa, request);
    const item = &request.item;
    const shared = find_fetch(s, item.group, item.tag, item.number) orelse return true;
    const t = shared.prefetch.?;
    return asking.say_again(t, t.find(link.peer) orelse return true, request);
}

/// As in a sync: whoever gives nothing is not waited for.
pub fn tick(s: *Session, late: bool) void {
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        var mute: ?u16 = null;
        for (0..t.peers.len) |index| {
            if (asking.is_mute(s, t, @intCast(index), late)) mute = @intCast(index);
        }
        const source = mute orelse continue; // another one at the next tick
        s.log(.info, "peer {f} gives nothing of shared state \"{s}\"", .{
            labels.named(s, t.peers[source].id), shared.state.name,
        });
        discard(s, shared, source);
    };
}

fn find(s: *const Session, group_id: u16, tag: u64) ?*Shared {
    for (s.groups.items) |group| {
        if (group.state != .joined or group.id != group_id) continue;
        for (group.states.items) |*shared| if (shared.state.tag == tag) return shared;
    }
    return null;
}

/// The one that is fetched, if it is this fetch.
fn find_fetch(s: *const Session, group_id: u16, tag: u64, number: u32) ?*Shared {
    const shared = find(s, group_id, tag) orelse return null;
    const t = shared.prefetch orelse return null;
    return if (t.number == number) shared else null;
}

fn fetch_of(s: *const Session, header: *const Header) ?*Shared {
    return find_fetch(s, header.group, header.tag, header.attempt);
}

/// Where the payload of an answer goes; null: it is not wanted any more.
pub fn place(s: *Session, lane: *Lane, header: *const Header) transfers.Error!?transfers.Place {
    const shared = fetch_of(s, header) orelse return null;
    return asking.place(s, shared.prefetch.?, lane, header) catch |err| {
        if (err != error.OutOfMemory) return err;
        over(s, shared); // what there is memory for
        return null;
    };
}

/// The payload of a placed frame is complete.
pub fn arrived(s: *Session, lane: *Lane, header: *const Header) void {
    const shared = fetch_of(s, header) orelse return;
    const t = shared.prefetch.?;
    const source = asking.arrived(s, t, lane) orelse return;
    if (header.kind == .leaf) {
        const bytes = asking.leaf_arrived(t, source, header) orelse return;
        return hashed(s, shared, @intCast(header.index), &kernels.blake3(bytes));
    } else {
        if (!asking.page_arrived(s, t, source, header)) return;
        // Leaves that this peer has as the members had them after their last sync are not worth
        // fetching.
        _ = t.begin_leaves();
    }
    ask_more(s, shared);
}

/// A runner has hashed a leaf.
pub fn job_done(s: *Session, job: *base.Job) void {
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        if (!t.hashing.owns(job)) continue;
        const post = t.hashing.take_back(job);
        return hashed(s, shared, post.leaf, &post.hash);
    };
    unreachable; // whatever ends a transfer, or an operation, waits for its jobs
}

fn hashed(s: *Session, shared: *Shared, leaf: u32, hash: *const wire.control.Hash) void {
    const t = shared.prefetch.?;
    t.state.?.staged_hashes[leaf] = hash.*;
    t.fetch.passed(leaf);
    t.leaves_kept += 1;
    ask_more(s, shared);
}

/// The other has nothing to give.
pub fn on_lack(s: *Session, link: *Link, header: *const Header) void {
    const shared = fetch_of(s, header) orelse return;
    discard(s, shared, shared.prefetch.?.find(link.peer) orelse return);
}

// ---- the members

pub const WantError = Requests.Error || error{UnknownLeaf};

/// A newcomer wants a leaf, or a page of hashes.
pub fn on_want(s: *Session, link: *Link, header: *const Header) WantError!void {
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    for (s.groups.items) |group| {
        if (group.state != .joined or group.id != header.group) continue;
        if (group.knows(link.peer)) link.asks_in = header.group;
    }
    // Nothing else may keep the link, when others have entered before the one that asks.
    if (!link.wanted) link.expires_at = s.now + Session.linger_ns;
    try link.asked.push(link.gpa, .{
        .class = header.class,
        .index = index,
        .group = header.group,
        .tag = header.tag,
        .number = header.attempt,
        .fingerprint = header.fingerprint,
    });
    s.wake(link);
}

/// Puts the next frame on a lane that is idle and that no operation needs, if there is one.
pub fn next(s: *Session, lane: *Lane, link: *Link) bool {
    if (!lane.unacked.has_room()) return false;
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        const source = t.find(link.peer) orelse continue;
        var item = t.next_want(source) orelse continue;
        item.group = group.id.?;
        item.tag = shared.state.tag;
        item.number = t.number;
        item.fingerprint = fingerprint(shared.state);
        put(lane, .want, item, 0);
        return true;
    };
    const first = link.asked.first() orelse return false;
    const state = giver(s, link, first) orelse {
        put(lane, .lack, link.asked.take(link.gpa, first.part), 0);
        return true;
    };
    const payload = transfers.payload_of(state, first.*, false);
    const answer = cutting.take_answer(s, lane, &link.asked, payload);
    put(lane, transfers.kind_of(answer.item), answer.item, answer.bytes.len);
    lane.put_payload(answer.bytes, .{ .state = state });
    return true;
}

/// The state that answers: of a member that has opted in, and of the structure that is asked for.
fn giver(s: *const Session, link: *const Link, item: *const Requests.Item) ?*State {
    const shared = find(s, item.group, item.tag) orelse return null;
    const state = shared.state;
    if (link.asks_in != item.group) return null; // it was in no round that this peer was told of
    if (!state.serves or shared.group.member.current == null) return null;
    if (fingerprint(state) != item.fingerprint) return null;
    return if (transfers.has(state, item.class, item.index)) state else null;
}

fn put(lane: *Lane, kind: wire.frame.Kind, item: Requests.Item, payload_bytes: usize) void {
    lane.unacked.push(.{
        .operation = null,
        .request = .{ .item = item, .is_answer = kind != .want },
    });
    lane.put_head(&wire.frame.encode(std.mem.zeroInit(Header, .{
        .kind = kind,
        .tag = item.tag,
        .group = item.group,
        .index = item.index,
        .attempt = item.number,
        .class = item.class,
        .fingerprint = item.fingerprint,
        .acked = lane.answer(),
        .asks = lane.unacked.is_short(),
        .again = item.again,
        .reduced_attempt = item.answer,
        .fragment = if (kind == .leaf) item.part else wire.Fragment.whole,
        .payload_bytes = @as(u32, @intCast(payload_bytes)),
    })));
    lane.out_busy = true;
}
