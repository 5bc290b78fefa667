//! sync: the call that makes a shared state equal on all members. A sync offers the content that
//! this peer holds. If the coordinator elects another content, the sync fetches the leaves that
//! differ, from all members that hold the elected content. Those members send leaves from the
//! user's memory meanwhile. Fetched leaves wait in the state (state.zig) until the commit, so a
//! failed sync has changed nothing in the user's memory. The election is in protocol/election.zig.
//!
//! A member asks for the hashes of all leaves first and compares them with the elected root, so
//! each leaf is checked as it arrives, whichever peer sends it. A newcomer also fetches leaves
//! before it enters the group (prefetch). All functions are free functions on Session.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const protocol = @import("protocol");
const wire = @import("wire");
const detach_all = @import("session.zig").detach_all;
const give_up = @import("session.zig").give_up;
const label_named = @import("session.zig").label_named;
const link_file = @import("link.zig");
const state_file = @import("state.zig");
const wake_later = @import("session.zig").wake_later;
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Requests = @import("link.zig").Requests;
const Sent = @import("link.zig").Sent;
const Session = @import("session.zig").Session;
const State = @import("state.zig").State;
const Sync = @import("state.zig").Sync;
const Allocator = std.mem.Allocator;
const AskError = state_file.TransferError;
const Fragment = wire.Fragment;
const Header = wire.frame.Header;
const Mask = base.Mask;
const Place = state_file.Place;
const Shared = Group.Shared;
const Transfer = state_file.Transfer;
const control = wire.control;
const limits = base.limits;

// ---- standing

/// The group at the root of a sub-group. Null if `group` is no sub-group, or if this peer has left
/// the root group.
fn root_of(s: *Session, group: *Group) ?*Group {
    const founding = if (group.founding) |*it| it else return null;
    for (s.groups.items) |other| if (other.number == founding.root) return other;
    return null;
}

/// Reserves memory to remember the syncs of a group's states, so that note_synced cannot fail.
pub fn reserve_synced(s: *Session, group: *Group) Allocator.Error!void {
    try group.synced.reserve(s.gpa);
    if (root_of(s, group)) |root| try root.synced_below.reserve(s.gpa);
}

fn note_synced(s: *Session, group: *Group, state: *const State) void {
    group.synced.note(state.tag, state.revision);
    if (root_of(s, group)) |root| root.synced_below.note(state.tag, state.revision);
}

/// The standing of this member in a sync of the state with this tag.
pub fn standing(s: *Session, group: *Group, tag: u64) control.Standing {
    if (group.synced.expected(tag) > 0) return .synced;
    if (root_of(s, group)) |root| {
        if (root.synced.expected(tag) > 0 or root.synced_below.expected(tag) > 0) return .synced;
    }
    return if (group.is_newcomer()) .newcomer else .member;
}

// ---- attempts

/// Begins an attempt of a sync. The offer follows in `step`.
pub fn start(s: *Session, operation: *Operation) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const epoch = operation.group.member.epoch_of(operation.op.epoch).?;
    sync.attempt = epoch.attempt;
    sync.page_patience_ns = s.settings.silence_ns / 4;
    t.owner = operation.owner();
    t.phase = .begun;
    t.hashing.runner = if (s.runner) |*runner| runner else null;
    t.hashes_from = null;
    // Each member tries the sources from its own place in the ring on, so members ask different
    // sources first.
    t.first = epoch.paths.order.position(epoch.rank);
    for (t.peers, epoch.ids, 0..) |*peer, id, rank| {
        const is_other = rank != epoch.rank and epoch.alive.has(rank);
        const is_linked = is_other and s.link_to(id) != null;
        peer.become(t.gpa, .{ .id = id, .is_linked = is_linked, .gave_at = s.now });
    }
}

/// Takes a peer out of a sync when the link to the peer closes because nothing has wanted the link
/// for a while. In a large group, the sync may have begun while a message or an earlier epoch's
/// ring order still wanted the link.
pub fn link_gone(s: *Session, operation: *Operation, link: *const Link) void {
    const sync = operation.sync() orelse return;
    const t = &sync.transfer;
    const rank = t.find(link.peer) orelse return;
    t.peers[rank].become(t.gpa, .{});
    if (t.hashes_from == rank) t.hashes_from = null;
    if (t.is_fetching()) t.fetch.forget(rank);
    wake_later(s, operation);
}

/// Ends an attempt. Waits for hashing jobs, so that no job uses the state's memory afterwards.
pub fn stop(operation: *Operation) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    if (t.state) |state| {
        const found = t.hashing.fence(state);
        sync.leaves_moved += found.leaves;
        sync.sources.merge(&found.sources);
    }
    t.phase = .stopped;
    for (t.peers) |*peer| peer.become(t.gpa, .{});
}

/// Does the next step of a sync: the offer, requests, or the vote. Member must not call this
/// function, which itself calls Member.
pub fn step(s: *Session, operation: *Operation) void {
    const sync = operation.work.sync;
    if (operation.op.state == .finished) return;
    switch (sync.transfer.phase) {
        .stopped, .offered => {},
        .begun => offer(s, operation),
        .hashes, .leaves => fetch_more(s, operation),
        .complete => {
            const digest = Sync.digest_of(&sync.root, sync.revision);
            const voted = operation.op.voted_attempt;
            operation.group.member.completed(&operation.op, digest);
            if (operation.op.voted_attempt != voted) s.sync_point(operation, .sync_voted, 0);
        },
    }
}

fn offer(s: *Session, operation: *Operation) void {
    const sync = operation.work.sync;
    sync.transfer.phase = .offered;
    sync.holders = .empty;
    // A sync in doubt has given the state back to the user, and offers an empty name.
    const state = sync.transfer.state;
    operation.group.member.offer(&operation.op, .{
        .digest = Sync.digest_of(&sync.root, sync.revision),
        .revision = sync.revision,
        .expected = sync.expected,
        .structure = if (state) |it| it.structure() else sync.root,
        .root = sync.root,
        .strategy = sync.strategy,
        .standing = sync.standing,
        .voted = sync.voted,
        .name = if (state) |it| .shown(it.name) else .{},
    });
    s.sync_point(operation, .sync_offered, 0);
}

/// The call returns, committed or not, and the user has the state's memory back. An attempt under
/// way goes on without the state.
pub fn over(s: *Session, operation: *Operation, committed: bool) void {
    const sync = operation.work.sync;
    const is_under_way = sync.is_under_way();
    stop(operation);
    if (is_under_way) sync.transfer.phase = .begun;
    const state = sync.transfer.state orelse return;
    sync.transfer.state = null;
    state.in_call = false;
    if (!committed) return; // staged leaves serve the next sync
    state.revision = sync.revision_after();
    note_synced(s, operation.group, state);
    // The leaves that differ are complete in `wanted` and `staged`; the caller applies them.
    if (std.mem.eql(u8, &sync.root, &state.root)) return state.forget_staged();
    const replaced: Replaced = .{ .s = s, .operation = operation, .state = state };
    // The user may have loaded a newer checkpoint, which an older revision now replaces.
    if (sync.brought > sync.revision and sync.strategy != .receive_only)
        s.log(.warning, "{f}", .{replaced})
    else
        s.log(.info, "{f}", .{replaced});
}

/// The log line for a sync that replaces this peer's content.
const Replaced = struct {
    s: *const Session,
    operation: *const Operation,
    state: *const State,

    pub fn format(it: Replaced, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const sync = it.operation.work.sync;
        const given = if (sync.sources.is_empty()) &sync.holders else &sync.sources;
        try writer.print(
            "shared state \"{s}\": content of revision {d} replaces revision {d} of this peer",
            .{ it.state.name, sync.revision, sync.brought },
        );
        if (given.is_empty()) return;
        const first = it.operation.ids[given.at(0)];
        try writer.print("; it came from peer {f}", .{label_named(it.s, first)});
        const others = given.count() - 1;
        if (others > 0) try writer.print(" and {d} more", .{others});
    }
};

/// The coordinator has elected a content for a sync whose offers differ. A peer that holds this
/// content completes the sync; any other peer begins to fetch it.
pub fn elected(s: *Session, operation: *Operation, message: *const control.StateElected) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const state = t.state orelse return;
    if (t.phase != .offered) return; // the offer of this attempt is not sent yet
    sync.elected_revision = message.revision;
    sync.elected_root = message.root;
    sync.holders = message.holders;
    if (std.mem.eql(u8, &sync.root, &message.root)) {
        completed(s, operation);
        return step(s, operation);
    }
    // If some links are broken, only members with an open lane are asked. If all links are broken,
    // requests wait for the first link that opens again.
    var sources: Mask = .empty;
    var working: Mask = .empty;
    for (t.peers, 0..) |*peer, rank| {
        const link = link_to(s, t, rank) orelse continue;
        if (!peer.gives and !message.holders.has(rank)) continue;
        sources.set(rank);
        if (link.open_count > 0) working.set(rank);
    }
    t.fetch.begin(if (working.is_empty()) &sources else &working);
    const known = if (state.wanted_root) |*root| std.mem.eql(u8, root, &message.root) else false;
    if (known) begin_leaves(operation) else {
        state.wanted_root = null;
        t.phase = .hashes;
    }
    step(s, operation);
}

/// This peer now has the elected content, and offers only this content from now on. It tells the
/// members that lacked the content, because they may have no link to any of the first holders.
fn completed(s: *Session, operation: *Operation) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const held = std.mem.eql(u8, &sync.root, &sync.elected_root);
    if (!held) for (t.peers, 0..) |*peer, rank| {
        const link = link_to(s, t, rank) orelse continue;
        peer.tell = !sync.holders.has(rank);
        s.wake(link);
    };
    t.phase = .complete;
    sync.revision = sync.elected_revision;
    sync.root = sync.elected_root;
    sync.voted = true;
}

fn begin_leaves(operation: *Operation) void {
    const sync = operation.work.sync;
    sync.leaves_early = sync.transfer.begin_leaves() -| sync.leaves_moved;
}

fn fetch_more(s: *Session, operation: *Operation) void {
    const t = &operation.work.sync.transfer;
    if (t.phase == .leaves and t.fetch.left == 0) {
        completed(s, operation);
        return step(s, operation);
    }
    if (!t.fetch.has_sources()) {
        // In a large group this peer has links only to its neighbours, which may get the content
        // later.
        if (t.fetch.may_wait() or !t.hashing.is_idle()) return;
        s.log(.err, "no member gives the elected content of {f}", .{Of{ .transfer = t }});
        return operation.group.member.give_up(&operation.op, .state_unavailable);
    }
    if (t.phase == .leaves) return ask_for_leaves(s, t);
    if (t.hashes_from == null) ask_another_for_hashes(s, t);
}

/// The state in a log line: "shared state "weights"", or "a shared state" once the user has the
/// state back.
const Of = struct {
    transfer: *const Transfer,

    pub fn format(it: Of, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const state = it.transfer.state orelse return writer.writeAll("a shared state");
        try writer.print("shared state \"{s}\"", .{state.name});
    }
};

/// Asks source `rank` for nothing more, and warns with the reason `why`.
fn discard(s: *Session, operation: *Operation, rank: u16, why: []const u8) void {
    const t = &operation.work.sync.transfer;
    s.log(.warning, "nothing more of {f} is asked of peer {f}: {s}", .{
        Of{ .transfer = t }, label_named(s, operation.ids[rank]), why,
    });
    t.discard(rank);
    wake_later(s, operation);
}

const not_elected = "what it sent is not the elected content";

pub fn tick(s: *Session, operation: *Operation, late: bool) void {
    const t = &operation.work.sync.transfer;
    for (0..t.peers.len) |index| {
        const rank: u16 = @intCast(index);
        if (is_mute(s, t, rank, late)) discard(s, operation, rank, "it gives nothing");
    }
    if (t.phase == .hashes) tick_hashes(s, operation, late);
}

/// Asks another source for hashes when the source that owes them sends nothing for a while. No leaf
/// can be requested before the hashes are here, and a frozen source is not lost yet. If all sources
/// are slow, the patience doubles.
fn tick_hashes(s: *Session, operation: *Operation, late: bool) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    // No source is being asked: all usable sources already owe a page of hashes.
    const rank = t.hashes_from orelse return ask_another_for_hashes(s, t);
    // A page that arrives slowly counts as given; a page that has begun and stands still does not.
    const left = if (link_to(s, t, rank)) |link| link.bytes_left(t.owner) else 0;
    if (late or left != sync.page_bytes_left) t.page_moved_at = s.now;
    sync.page_bytes_left = left;
    if (s.now -| t.page_moved_at < sync.page_patience_ns) return;
    ask_another_for_hashes(s, t);
    if (t.hashes_from != rank) sync.page_patience_ns *|= 2;
}

// ---- outgoing

/// Puts the next `open` or `want` frame of a sync on an idle lane. Returns false if nothing is to
/// be said.
pub fn says_next(lane: *Lane, link: *Link, operation: *Operation) bool {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    if (t.phase == .begun) return false; // this peer has not sent its offer
    const rank = t.find(link.peer) orelse return false;
    const peer = &t.peers[rank];
    if (peer.tell) {
        peer.tell = false;
        peer.told = true;
        peer.used = true;
        const descriptor = control.encode_descriptor(operation.op.descriptor);
        operation.put(lane, .{ .kind = .open, .index = 0 }, &descriptor);
        return true;
    }
    if (!lane.unacked.has_room()) return false;
    if (t.next_want(rank)) |item| {
        note(lane, operation, item, false);
        operation.put(lane, .{
            .kind = .want,
            .index = item.index,
            .class = item.class,
            .asks = lane.unacked.is_short(),
        }, "");
        return true;
    }
    return false;
}

/// Puts the next leaf or page that another member has requested on an idle lane. Returns false if
/// no answer can be sent now.
pub fn gives_next(s: *const Session, lane: *Lane, link: *Link, operation: *Operation) bool {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    if (t.phase == .begun) return false; // this peer has not sent its offer
    if (!lane.unacked.has_room()) return false;
    const peer = &t.peers[t.find(link.peer) orelse return false];
    const staged = sync.offers_staged();
    // An elected content that this peer has not voted for is a sign of members that lie about
    // votes. While that content comes in, the staged leaves belong to neither content.
    if (staged and t.is_fetching()) return false;
    const first = peer.asked.first() orelse return false;
    const payload = state_file.payload_of(t.state.?, first.*, staged);
    const answer = take_answer(s, lane, &peer.asked, payload);
    const item = answer.item;
    note(lane, operation, item, true);
    operation.put(lane, .{
        .kind = state_file.frame_kind_of(item),
        .index = item.index,
        .reduced_attempt = item.answer,
        .payload_bytes = @intCast(answer.bytes.len),
        .asks = lane.unacked.is_short(),
        .again = item.again,
        .fragment = item.part,
    }, "");
    lane.put_payload(answer.bytes, t.owner);
    return true;
}

/// Keeps a frame until it is acknowledged, because the frame is sent again if its lane breaks.
fn note(lane: *Lane, operation: *Operation, item: Requests.Item, is_answer: bool) void {
    lane.unacked.push(.{
        .operation = operation,
        .request = .{ .item = item, .is_answer = is_answer },
    });
}

// ---- a lane that breaks

/// Sends a frame again that a broken lane may not have delivered (dial.zig). Returns false if the
/// frame cannot be sent again.
pub fn say_again(
    operation: *Operation,
    link: *const Link,
    request: *const Sent.Request,
) bool {
    const t = &operation.work.sync.transfer;
    return ask_again(t, t.find(link.peer) orelse return true, request);
}

/// Takes back the fragment that a lane was receiving when it broke, so that the fragment is awaited
/// anew.
pub fn broke_off(operation: *Operation, link: *const Link, header: *const Header) void {
    const t = &operation.work.sync.transfer;
    t.broke_off(t.find(link.peer) orelse return, header);
}

/// Tells a peer again that this peer has all leaves, because a broken lane may have lost the first
/// `open` frame.
pub fn open_again(operation: *Operation, link: *const Link) void {
    const t = &operation.work.sync.transfer;
    const peer = &t.peers[t.find(link.peer) orelse return];
    peer.tell = peer.tell or peer.told;
}

/// Counts a leaf, a fragment of a leaf or a page of hashes that a lane has sent.
pub fn sent(s: *Session, lane: *const Lane, operation: *Operation) void {
    const sync = operation.work.sync;
    const header = lane.outgoing();
    if (header.kind != .leaf) {
        sync.hash_bytes_sent += header.payload_bytes;
        return;
    }
    sync.bytes_sent += header.payload_bytes;
    if (header.fragment.after > 0) return;
    sync.leaves_given += 1;
    s.sync_point(operation, .sync_given, sync.leaves_given);
}

// ---- incoming

pub const Error = state_file.TransferError || Requests.Error || error{WrongPhase};

/// Another member says that it now has all leaves of the elected content: adds it to the sources.
pub fn on_open(s: *Session, link: *Link, operation: *Operation) void {
    const t = &operation.work.sync.transfer;
    const rank = t.find(link.peer) orelse return;
    t.peers[rank].gives = true;
    if (!t.is_fetching()) return; // `elected` looks at `gives` when a fetch begins later
    t.fetch.add_source(rank);
    wake_later(s, operation);
}

/// Queues another member's request for a leaf or a page of hashes.
pub fn on_want(s: *Session, link: *Link, operation: *Operation, header: *const Header) Error!void {
    const sync = operation.sync() orelse return error.WrongPhase;
    const state = sync.transfer.state orelse return; // a sync in doubt gives nothing any more
    const rank = sync.transfer.find(link.peer) orelse return;
    const peer = &sync.transfer.peers[rank];
    if (!state_file.has(state, header.class, header.index)) return error.UnknownLeaf;
    try peer.asked.push(sync.transfer.gpa, .{
        .class = header.class,
        .index = @intCast(header.index),
    });
    peer.used = true;
    s.wake(link);
}

/// Memory for the payload of a leaf or a page of hashes. Null: the payload is not wanted any more.
pub fn place(s: *Session, lane: *Lane, operation: *Operation, header: *const Header) Error!?Place {
    const sync = operation.sync() orelse return error.WrongPhase;
    return place_asked(s, &sync.transfer, lane, header) catch |err| {
        if (err != error.OutOfMemory) return err;
        give_up(s, operation);
        wake_later(s, operation);
        return null;
    };
}

/// The payload of a leaf or a page of hashes has come in completely.
pub fn arrived(s: *Session, lane: *Lane, operation: *Operation, header: *const Header) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const rank = asked_arrived(s, t, lane) orelse return;
    if (header.kind == .hashes) {
        sync.hash_bytes_received += header.payload_bytes;
        if (page_arrived(s, t, rank, header)) hashes_arrived(s, operation, rank);
    } else {
        sync.bytes_received += header.payload_bytes;
        const bytes = leaf_arrived(t, rank, header) orelse return;
        return hashed(s, operation, rank, @intCast(header.index), &kernels.blake3(bytes));
    }
    wake_later(s, operation);
}

/// A runner has hashed a leaf.
pub fn job_done(s: *Session, operation: *Operation, job: *base.Job) void {
    const post = operation.work.sync.transfer.hashing.take_back(job);
    hashed(s, operation, post.rank, post.leaf, &post.hash);
}

fn hashed(
    s: *Session,
    operation: *Operation,
    rank: u16,
    leaf: u32,
    hash: *const control.Hash,
) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    if (!t.state.?.check_staged(leaf, hash)) {
        t.fetch.failed(leaf);
        return discard(s, operation, rank, not_elected);
    }
    t.fetch.passed(leaf);
    sync.leaves_moved += 1;
    sync.sources.set(rank);
    s.sync_point(operation, .sync_taken, sync.leaves_moved);
    wake_later(s, operation);
}

fn hashes_arrived(s: *Session, operation: *Operation, rank: u16) void {
    const sync = operation.work.sync;
    const state = sync.transfer.state.?;
    const root = kernels.blake3(std.mem.sliceAsBytes(state.wanted));
    if (!std.mem.eql(u8, &root, &sync.elected_root))
        return discard(s, operation, rank, not_elected);
    state.wanted_root = root;
    begin_leaves(operation);
}

// ---- structures

/// The coordinator asks for the structure of this state, from tensor `first` on: sends it one page
/// of tensors.
pub fn describe(operation: *Operation, first: u32) protocol.Member.EpochError!void {
    const sync = operation.work.sync;
    const state = sync.transfer.state orelse return;
    if (first > state.entries.len) return error.Unexpected;
    var tensors: std.ArrayList(control.StateTensor) = .empty;
    defer tensors.deinit(sync.transfer.gpa);
    var bytes: usize = 0;
    for (state.entries[first..]) |*entry| {
        const tensor = &entry.tensor;
        bytes += 16 + tensor.name.len + 8 * tensor.shape.len;
        if (bytes > limits.state_page_bytes and tensors.items.len > 0) break;
        try tensors.append(sync.transfer.gpa, .{
            .name = .of(tensor.name),
            .dtype = tensor.dtype,
            .may_differ = tensor.may_differ,
            .shape = .of(tensor.shape),
        });
    }
    const total: u32 = @intCast(state.entries.len);
    operation.group.member.describe(&operation.op, tensors.items, first, total);
}

// ---- for the user

/// The members whose offers took part in the election of the committed content: the members of the
/// last attempt in which this peer voted.
pub fn contributors(operation: *const Operation) *const Mask {
    return operation.history.members(operation.op.voted_attempt);
}

/// The contributors that held the content when it was elected.
pub fn holders(operation: *const Operation) *const Mask {
    const sync = operation.work.sync;
    return if (sync.holders.is_empty()) contributors(operation) else &sync.holders;
}

// ---- prefetch
//
// Before a newcomer enters, it fetches leaves of a shared state in the background, from members
// that have opted in and train meanwhile. These members send their memory as it is at that moment,
// perhaps while it changes. Each leaf is kept with the hash of the bytes that arrived. The
// newcomer's first sync (state.zig) uses a prefetched leaf only if its hash is in the elected
// content, so that sync moves only the leaves that have changed since.
//
// A prefetch is no operation: it has no vote and no attempt, and a leaf that fails is simply not
// staged. Frames of a prefetch name epoch 0, the tag of the state, and the number of the prefetch
// in `attempt`. Frames of a prefetch are sent when no operation has anything to send.

/// A number for the structure of a state. A prefetch cannot use leaves of a state of another
/// structure.
fn fingerprint(state: *const State) u32 {
    return std.mem.readInt(u32, state.structure()[0..4], .little);
}

// ---- the newcomer

/// Begins to prefetch a state, if this peer is a newcomer whose lanes are open. All leaves of the
/// state must be hashed.
pub fn begin_prefetch(s: *Session, shared: *Shared) Allocator.Error!void {
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
    // A random first source spreads newcomers over the members.
    ask_for_hashes(s, t, @intCast(s.prng.below(count)));
}

fn may_give(group: *const Group, link: *const Link) bool {
    return link.open_count > 0 and group.knows(link.peer);
}

/// Ends a prefetch. Leaves that have arrived stay staged; leaves on their way are thrown away.
pub fn stop_prefetch(s: *Session, shared: *Shared) void {
    if (shared.prefetch == null) return;
    detach_all(s, .{ .state = shared.state });
    forget_prefetch(shared);
    s.links_stale = true; // the links to the sources may close if nothing else wants them
    entry_may_go_on(shared.group);
}

/// Frees a prefetch without waking anything, when the group or the process ends.
pub fn forget_prefetch(shared: *Shared) void {
    const t = shared.prefetch orelse return;
    shared.prefetch = null;
    const gpa = t.gpa;
    t.deinit();
    gpa.destroy(t);
}

/// Passes the safe point of a newcomer whose admit() has waited for its prefetches, once all
/// prefetches are over.
fn entry_may_go_on(group: *Group) void {
    if (!group.admit_waits or group.is_fetching()) return;
    group.admit_waits = false;
    group.member.admit();
}

fn ask_more(s: *Session, shared: *Shared) void {
    const t = shared.prefetch.?;
    if (t.hashes_from != null) return;
    if (t.fetch.left == 0) return prefetch_over(s, shared);
    if (!t.fetch.has_sources()) return if (t.hashing.is_idle()) prefetch_over(s, shared);
    ask_for_leaves(s, t);
}

fn prefetch_over(s: *Session, shared: *Shared) void {
    const t = shared.prefetch.?;
    s.log(.info, "shared state \"{s}\": {d} leaves fetched in the background, {d} missing", .{
        shared.state.name, t.leaves_kept, t.fetch.left,
    });
    stop_prefetch(s, shared);
}

/// Asks a source of a prefetch for nothing more.
fn discard_prefetch(s: *Session, shared: *Shared, source: u16) void {
    const t = shared.prefetch.?;
    const gives_hashes = t.hashes_from == source;
    t.discard(source);
    if (gives_hashes) ask_another_for_hashes(s, t);
    ask_more(s, shared); // perhaps no source is left, and the prefetch is over
}

/// Sends the prefetch requests and answers of a broken lane again, on another lane or once a lane
/// opens. A prefetch gives up a source that has lost its last lane.
pub fn prefetch_lane_gone(s: *Session, lane: *Lane, link: *Link) void {
    take_back_prefetch(s, lane, link);
    for (0..lane.unacked.count) |index| {
        const frame = lane.unacked.at(@intCast(index));
        if (frame.operation != null) continue;
        // Without memory the frame stays lost: the request or answer is missing until a time limit.
        if (frame.request) |*request| _ = say_prefetch_again(s, link, request);
    }
    if (link.open_count > 0) return;
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        discard_prefetch(s, shared, t.find(link.peer) orelse continue);
    };
}

/// Awaits anew the fragment of a prefetched leaf that was arriving on a broken lane.
fn take_back_prefetch(s: *Session, lane: *const Lane, link: *const Link) void {
    if (std.meta.activeTag(lane.into_owner orelse return) != .state) return;
    const shared = fetch_of(s, &lane.incoming) orelse return;
    const t = shared.prefetch.?;
    t.broke_off(t.find(link.peer) orelse return, &lane.incoming);
}

fn say_prefetch_again(s: *Session, link: *Link, request: *const Sent.Request) bool {
    if (request.is_answer) return answer_again(&link.asked, link.gpa, request);
    const item = &request.item;
    const shared = find_fetch(s, item.group, item.tag, item.number) orelse return true;
    const t = shared.prefetch.?;
    return ask_again(t, t.find(link.peer) orelse return true, request);
}

/// Gives up sources of prefetches that send nothing, as a sync does.
pub fn tick_prefetch(s: *Session, late: bool) void {
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        var mute: ?u16 = null;
        for (0..t.peers.len) |index| {
            if (is_mute(s, t, @intCast(index), late)) mute = @intCast(index);
        }
        const source = mute orelse continue; // each tick gives up at most one source
        s.log(.info, "peer {f} gives nothing of shared state \"{s}\"", .{
            label_named(s, t.peers[source].id), shared.state.name,
        });
        discard_prefetch(s, shared, source);
    };
}

fn find_prefetch(s: *const Session, group_id: u16, tag: u64) ?*Shared {
    for (s.groups.items) |group| {
        if (group.state != .joined or group.id != group_id) continue;
        for (group.states.items) |*shared| if (shared.state.tag == tag) return shared;
    }
    return null;
}

/// The state of the prefetch with this number. Null: the prefetch is over.
fn find_fetch(s: *const Session, group_id: u16, tag: u64, number: u32) ?*Shared {
    const shared = find_prefetch(s, group_id, tag) orelse return null;
    const t = shared.prefetch orelse return null;
    return if (t.number == number) shared else null;
}

fn fetch_of(s: *const Session, header: *const Header) ?*Shared {
    return find_fetch(s, header.group, header.tag, header.attempt);
}

/// Memory for the payload of a prefetched leaf or page. Null: the payload is not wanted any more.
pub fn place_prefetched(s: *Session, lane: *Lane, header: *const Header) AskError!?Place {
    const shared = fetch_of(s, header) orelse return null;
    return place_asked(s, shared.prefetch.?, lane, header) catch |err| {
        if (err != error.OutOfMemory) return err;
        prefetch_over(s, shared); // without memory the prefetch ends; staged leaves stay
        return null;
    };
}

/// The payload of a prefetched leaf or page has come in completely.
pub fn prefetched_arrived(s: *Session, lane: *Lane, header: *const Header) void {
    const shared = fetch_of(s, header) orelse return;
    const t = shared.prefetch.?;
    const source = asked_arrived(s, t, lane) orelse return;
    if (header.kind == .leaf) {
        const bytes = leaf_arrived(t, source, header) orelse return;
        return prefetch_hashed(s, shared, @intCast(header.index), &kernels.blake3(bytes));
    } else {
        if (!page_arrived(s, t, source, header)) return;
        // Leaves whose hash in the members' last sync equals this peer's are not fetched.
        _ = t.begin_leaves();
    }
    ask_more(s, shared);
}

/// A runner has hashed a prefetched leaf.
pub fn prefetch_job_done(s: *Session, job: *base.Job) void {
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        if (!t.hashing.owns(job)) continue;
        const post = t.hashing.take_back(job);
        return prefetch_hashed(s, shared, post.leaf, &post.hash);
    };
    unreachable; // every transfer and operation waits for its jobs before it ends
}

fn prefetch_hashed(s: *Session, shared: *Shared, leaf: u32, hash: *const wire.control.Hash) void {
    const t = shared.prefetch.?;
    t.state.?.staged_hashes[leaf] = hash.*;
    t.fetch.passed(leaf);
    t.leaves_kept += 1;
    ask_more(s, shared);
}

/// The other side does not have this state, or not this leaf: gives it up as a source.
pub fn on_lack(s: *Session, link: *Link, header: *const Header) void {
    const shared = fetch_of(s, header) orelse return;
    discard_prefetch(s, shared, shared.prefetch.?.find(link.peer) orelse return);
}

// ---- the members

pub const WantError = Requests.Error || error{UnknownLeaf};

/// Queues a newcomer's request for a leaf or a page of hashes.
pub fn on_prefetch_want(s: *Session, link: *Link, header: *const Header) WantError!void {
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    for (s.groups.items) |group| {
        if (group.state != .joined or group.id != header.group) continue;
        if (group.knows(link.peer)) link.asks_in = header.group;
    }
    // Keeps the link open for a while, which nothing may want if other newcomers entered first.
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

/// Puts the next request or answer of a prefetch on an idle lane that no operation needs. Returns
/// false if no request or answer can be sent.
pub fn next_prefetch(s: *Session, lane: *Lane, link: *Link) bool {
    if (!lane.unacked.has_room()) return false;
    for (s.groups.items) |group| for (group.states.items) |*shared| {
        const t = shared.prefetch orelse continue;
        const source = t.find(link.peer) orelse continue;
        var item = t.next_want(source) orelse continue;
        item.group = group.id.?;
        item.tag = shared.state.tag;
        item.number = t.number;
        item.fingerprint = fingerprint(shared.state);
        put_prefetch(lane, .want, item, 0);
        return true;
    };
    const first = link.asked.first() orelse return false;
    const state = prefetch_giver(s, link, first) orelse {
        put_prefetch(lane, .lack, link.asked.take(link.gpa, first.part), 0);
        return true;
    };
    const payload = state_file.payload_of(state, first.*, false);
    const answer = take_answer(s, lane, &link.asked, payload);
    put_prefetch(lane, state_file.frame_kind_of(answer.item), answer.item, answer.bytes.len);
    lane.put_payload(answer.bytes, .{ .state = state });
    return true;
}

/// The state to answer a newcomer's request from. Null: this member has not opted in, the
/// structures differ, or the state lacks the requested leaf or page.
fn prefetch_giver(s: *const Session, link: *const Link, item: *const Requests.Item) ?*State {
    const shared = find_prefetch(s, item.group, item.tag) orelse return null;
    const state = shared.state;
    // the coordinator has announced no round with this newcomer
    if (link.asks_in != item.group) return null;
    if (!state.serves or shared.group.member.current == null) return null;
    if (fingerprint(state) != item.fingerprint) return null;
    return if (state_file.has(state, item.class, item.index)) state else null;
}

fn put_prefetch(
    lane: *Lane,
    kind: wire.frame.Kind,
    item: Requests.Item,
    payload_bytes: usize,
) void {
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

// ---- requests and answers
//
// The requests of a transfer (state.zig) for hashes and leaves, and the answers of other peers.

pub fn link_to(s: *const Session, t: *const Transfer, rank: usize) ?*Link {
    const peer = &t.peers[rank];
    return if (peer.is_linked) s.link_to(peer.id) else null;
}

/// Wakes the link to a source that has a new request to be sent.
fn ask_source(s: *Session, t: *Transfer, rank: u16) void {
    const link = link_to(s, t, rank) orelse return;
    t.peers[rank].used = true;
    s.wake(link);
}

/// Asks source `rank` for all pages of hashes, one after the other.
pub fn ask_for_hashes(s: *Session, t: *Transfer, rank: u16) void {
    t.hashes_from = rank;
    t.pages_got = 0;
    ask_for_page(s, t);
}

/// Asks the next usable source for hashes that does not owe a page already.
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
    ask_source(s, t, rank);
}

/// Asks each source for as many leaves as its link can have in flight.
pub fn ask_for_leaves(s: *Session, t: *Transfer) void {
    for (0..t.peers.len) |index| {
        const rank: u16 = @intCast(index);
        const link = link_to(s, t, rank) orelse continue;
        t.fetch.make_room(rank, @min(link.flow.in_air(), s.settings.windows_bytes));
    }
    while (t.fetch.next()) |request| ask_source(s, t, request.rank);
}

/// Whether a source has sent nothing of what it owes for two silence limits while its lanes are
/// open. Broken and stalled lanes are closed sooner than that, so the source itself is at fault. A
/// leaf or page that arrives slowly counts as sent.
pub fn is_mute(s: *const Session, t: *Transfer, rank: u16, late: bool) bool {
    const link = link_to(s, t, rank) orelse return false;
    const peer = &t.peers[rank];
    const waits = t.owes(rank) and t.has_said_all(rank) and link.open_count > 0;
    if (late or !waits or link.brings(t.owner)) peer.gave_at = s.now;
    return s.now -| peer.gave_at >= 2 *| s.settings.silence_ns;
}

// ---- a lane that breaks

/// Repeats a request or an answer that a broken lane may not have delivered. Returns false if it
/// cannot be repeated.
pub fn ask_again(t: *Transfer, rank: u16, request: *const Sent.Request) bool {
    if (request.is_answer) return answer_again(&t.peers[rank].asked, t.gpa, request);
    t.say_again(rank, request.item);
    return true;
}

/// Puts an answer back among the answers to send. `asked`: the requests of the other side.
pub fn answer_again(asked: *Requests, gpa: Allocator, request: *const Sent.Request) bool {
    var item = request.item;
    item.again = std.math.add(u8, item.again, 1) catch return false;
    asked.put_back(gpa, item) catch return false;
    return true;
}

// ---- what comes in

/// Memory for the payload of a leaf or page. Null: the payload is not wanted any more.
pub fn place_asked(s: *Session, t: *Transfer, lane: *Lane, header: *const Header) AskError!?Place {
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
        if (index != t.pages_got) return null; // a copy of an earlier page, from a broken lane
        const page = State.page_of(state.wanted, index);
        if (header.payload_bytes != page.len) return error.WrongLength;
        // Only one lane at a time brings pages: nothing may write to a page that has been checked.
        return if (take_over_page(s, t, rank, header)) .{ page, t.owner } else null;
    }
    return place_leaf(s, t, lane, rank, header);
}

/// Memory for the payload of a leaf or of a fragment of a leaf. Null: it is not wanted any more.
fn place_leaf(
    s: *Session,
    t: *Transfer,
    lane: *const Lane,
    rank: u16,
    header: *const Header,
) AskError!?Place {
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

/// Makes all lanes throw away frames of this leaf that they are receiving.
fn drop_leaf(s: *Session, t: *const Transfer, leaf: u32) void {
    for (s.links.items) |link| for (link.lanes[0..link.lanes_end]) |place_of| {
        const lane = place_of orelse continue;
        if (!lane.brings(t.owner) or lane.incoming.kind != .leaf) continue;
        if (lane.incoming.index == leaf) lane.drop_into();
    };
}

/// Makes all other lanes throw away the pages that they are receiving. Returns false if this page
/// is not needed: another lane is receiving the same page from the same source, and that frame was
/// not sent earlier than this one (dial.zig).
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

/// The payload of a leaf or page has come in completely. Returns the rank of the peer that sent it.
/// Null: that peer is not in the transfer any more.
pub fn asked_arrived(s: *const Session, t: *Transfer, lane: *const Lane) ?u16 {
    if (t.state == null) return null;
    const rank = t.find(lane.link.?.peer) orelse return null;
    t.peers[rank].gave_at = s.now;
    return rank;
}

/// A fragment of a leaf has come in completely. Returns the leaf's bytes if the caller is to hash
/// them now. Null: fragments are missing, or a runner hashes the leaf.
pub fn leaf_arrived(t: *Transfer, rank: u16, header: *const Header) ?[]const u8 {
    const leaf: u32 = @intCast(header.index);
    if (!t.fetch.came(rank, leaf, header.fragment)) return null;
    const bytes = t.state.?.staged[leaf].?;
    return if (t.hashing.give(bytes, rank, leaf)) null else bytes;
}

/// A page of hashes has come in completely: asks for the next page. Returns true after the last
/// page.
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

// ---- fragments
//
// A piece or a leaf is sent as several frames if its link has several lanes and each lane would
// take long for the whole. Each idle lane takes a fragment, as many bytes as the lane sends in a
// fiftieth of a second. So the piece arrives as soon as the link can bring it, and the next hop
// begins. Fragments save time when nothing else is on the way: while the pipeline fills, on the
// last hop of an operation, twice in a direct schedule, and at the end of a sync.

/// A fragment has as many bytes as its lane sends in a second divided by `part_of_second`.
const part_of_second = 50;

/// Puts the next data frame for a neighbour on a lane that has room for it: the rest of a piece
/// that is partly sent, or the next piece. If several lanes share the link, the lane gets only a
/// fragment of the piece. Returns false if nothing is to be sent.
pub fn next_cut(
    s: *const Session,
    lane: *Lane,
    operation: *Operation,
    neighbour: *Operation.Neighbour,
) bool {
    const x = operation.work.movement;
    const cut = cut_rest(operation, neighbour) orelse return false;
    const piece = x.payload(&cut.move);
    const fragment: Fragment = .next(cut.done, bytes_for(s, lane, neighbour.link), piece.len);
    const is_last = fragment.end() == Fragment.most;
    neighbour.cut = if (is_last) null else .{ .move = cut.move, .done = fragment.end() };
    operation.put_data(lane, .{
        .operation = operation,
        .move = cut.move,
        .fragment = fragment,
    }, piece);
    lane.had_turn = true;
    return true;
}

fn cut_rest(operation: *Operation, neighbour: *const Operation.Neighbour) ?Operation.Cut {
    const x = operation.work.movement;
    const cut = neighbour.cut orelse {
        const out = x.next(neighbour.position) orelse return null;
        return .{ .move = out.move, .done = 0 };
    };
    // Otherwise the user has the memory back, and a new attempt begins instead (dial.zig).
    const is_there = x.ending == null and x.is_repeatable(&cut.move);
    return if (is_there) cut else null;
}

/// A requested leaf or page, or a fragment of a leaf, and its bytes.
pub const Answer = struct { item: link_file.Requests.Item, bytes: []const u8 };

/// Takes the next answer for a lane, or the fragment of it that the lane should take. `payload`:
/// the bytes of the first answer in `asked`. A repeated answer keeps its first fragment.
pub fn take_answer(
    s: *const Session,
    lane: *Lane,
    asked: *link_file.Requests,
    payload: []const u8,
) Answer {
    const link = lane.link.?;
    const first = asked.first().?;
    const is_cut = first.class == link_file.class_leaf and first.again == 0;
    const part: Fragment = if (is_cut)
        .next(first.part.before, bytes_for(s, lane, link), payload.len)
    else
        first.part;
    lane.had_turn = true;
    const range = part.range(payload.len);
    return .{ .item = asked.take(s.gpa, part), .bytes = payload[range.first..range.end] };
}

/// The most bytes that a lane should take now. A lane with many unacknowledged frames is faster
/// than its measured rate, and gets whole pieces.
fn bytes_for(s: *const Session, lane: *const Lane, link: *const Link) usize {
    if (!is_shared(link) or lane.unacked.is_short()) return std.math.maxInt(usize);
    const flow = &link.flow;
    const carried = flow.carries() / flow.spread.lanes;
    const rate = if (lane.pace.rate > 0) lane.pace.rate else carried;
    return @intCast(@max(s.fragment_bytes_min, rate / part_of_second));
}

fn is_shared(link: *const Link) bool {
    return link.flow.is_far() and link.flow.spread.lanes > 1;
}

/// Whether a lane that has just taken data lets the other lanes send first; wakes those lanes.
/// Otherwise the operating system would take more bytes from the first lane than it can send.
pub fn gives_way(s: *Session, lane: *Lane, link: *Link) bool {
    if (!lane.had_turn) return false;
    lane.had_turn = false;
    if (!is_shared(link)) return false;
    var is_alone = true;
    for (link.lanes[0..link.lanes_end]) |slot| {
        const other = slot orelse continue;
        if (other == lane or other.state != .open or other.out_busy or other.is_kept) continue;
        s.host.vtable.lane_wake(s.host.ctx, other);
        is_alone = false;
    }
    // Queues this lane behind the others.
    if (!is_alone) s.host.vtable.lane_wake(s.host.ctx, lane);
    return !is_alone;
}

comptime {
    std.debug.assert(base.limits.fragment_bytes_min <= base.limits.frame_payload_bytes_max);
}
