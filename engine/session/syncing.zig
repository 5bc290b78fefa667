//! syncing: what happens in a sync (sync.zig), the call that makes a shared state equal on all
//! members. It offers the content that this peer holds. If another content is elected, it fetches
//! the leaves that differ from all members that hold that content, while those serve from the
//! user's memory. Fetched leaves wait in the state (state.zig) until the commit, so a failed call
//! has changed nothing. Free functions on Session. The election: protocol/election.zig; how leaves
//! come in: asking.zig; other operations: frames.zig.
//!
//! A member asks for the hashes of all leaves first and compares them with the elected root, so
//! each leaf is checked as it arrives, no matter which peer sends it.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const protocol = @import("protocol");
const asking = @import("asking.zig");
const cutting = @import("cutting.zig");
const labels = @import("labels.zig");
const operations = @import("operations.zig");
const transfers = @import("transfer.zig");
const Group = @import("group.zig").Group;
const Session = @import("session.zig").Session;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Requests = @import("requests.zig").Requests;
const Sent = @import("unacked.zig").Sent;
const State = @import("state.zig").State;
const Sync = @import("sync.zig").Sync;
const Place = transfers.Place;
const Transfer = transfers.Transfer;
const Header = wire.frame.Header;
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const control = wire.control;
const limits = base.limits;

// ---- standing

/// The group that a sub-group comes from; null: this peer has left it.
fn root_of(s: *Session, group: *Group) ?*Group {
    const founding = if (group.founding) |*it| it else return null;
    for (s.groups.items) |other| if (other.number == founding.root) return other;
    return null;
}

/// Makes room for what is remembered of a state's syncs.
pub fn reserve_synced(s: *Session, group: *Group) Allocator.Error!void {
    try group.synced.reserve(s.gpa);
    if (root_of(s, group)) |root| try root.synced_below.reserve(s.gpa);
}

fn note_synced(s: *Session, group: *Group, state: *const State) void {
    group.synced.note(state.tag, state.revision);
    if (root_of(s, group)) |root| root.synced_below.note(state.tag, state.revision);
}

/// The standing of this peer, which is a member, in a sync of the state with this tag.
pub fn standing(s: *Session, group: *Group, tag: u64) control.Standing {
    if (group.synced.expected(tag) > 0) return .synced;
    if (root_of(s, group)) |root| {
        if (root.synced.expected(tag) > 0 or root.synced_below.expected(tag) > 0) return .synced;
    }
    return if (group.is_newcomer()) .newcomer else .member;
}

// ---- attempts

/// An attempt begins; the offer follows in `step`.
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
    // Members spread over the sources: each begins behind itself.
    t.first = epoch.paths.order.position(epoch.rank);
    for (t.peers, epoch.ids, 0..) |*peer, id, rank| {
        const is_other = rank != epoch.rank and epoch.alive.has(rank);
        const is_linked = is_other and s.link_to(id) != null;
        peer.become(t.gpa, .{ .id = id, .is_linked = is_linked, .gave_at = s.now });
    }
}

/// The link ends, because nobody has wanted it for a while: in a large group a sync may have begun
/// while it was still there for a message, or for an order of another epoch.
pub fn link_gone(s: *Session, operation: *Operation, link: *const Link) void {
    const sync = operation.sync() orelse return;
    const t = &sync.transfer;
    const rank = t.find(link.peer) orelse return;
    t.peers[rank].become(t.gpa, .{});
    if (t.hashes_from == rank) t.hashes_from = null;
    if (t.is_fetching()) t.fetch.forget(rank);
    operations.later(s, operation);
}

/// No lane reads or writes memory of the state any more, and no job does afterwards.
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

/// Sends what is due and can only be said outside of the member.
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
    // In doubt it has let go of the state, and offers nothing.
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

/// The call returns, committed or not: the caller has its memory back. An attempt that is under way
/// goes on without.
pub fn over(s: *Session, operation: *Operation, committed: bool) void {
    const sync = operation.work.sync;
    const is_under_way = sync.is_under_way();
    stop(operation);
    if (is_under_way) sync.transfer.phase = .begun;
    const state = sync.transfer.state orelse return;
    sync.transfer.state = null;
    state.in_call = false;
    if (!committed) return; // what is staged serves the next call
    state.revision = sync.revision_after();
    note_synced(s, operation.group, state);
    // The difference is complete in `wanted` and `staged`; the caller applies it.
    if (std.mem.eql(u8, &sync.root, &state.root)) return state.forget_staged();
    const replaced: Replaced = .{ .s = s, .operation = operation, .state = state };
    // Its user may have loaded a newer checkpoint than the others have.
    if (sync.brought > sync.revision and sync.strategy != .receive_only)
        s.log(.warning, "{f}", .{replaced})
    else
        s.log(.info, "{f}", .{replaced});
}

/// A sync replaces what this peer had.
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
        try writer.print("; it came from peer {f}", .{labels.named(it.s, first)});
        const others = given.count() - 1;
        if (others > 0) try writer.print(" and {d} more", .{others});
    }
};

/// Offers differ, and this was elected.
pub fn elected(s: *Session, operation: *Operation, message: *const control.StateElected) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const state = t.state orelse return;
    if (t.phase != .offered) return; // the offer of this attempt is still to be sent
    sync.elected_revision = message.revision;
    sync.elected_root = message.root;
    sync.holders = message.holders;
    if (std.mem.eql(u8, &sync.root, &message.root)) {
        completed(s, operation);
        return step(s, operation);
    }
    // Links may be broken while the members are well: then the others give. If all are broken, what
    // is asked for waits for the first that is open again.
    var sources: Mask = .empty;
    var working: Mask = .empty;
    for (t.peers, 0..) |*peer, rank| {
        const link = asking.link_to(s, t, rank) orelse continue;
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

/// This peer has what was elected: from now on it offers that, and nothing else. Others may have no
/// link to any who had it before.
fn completed(s: *Session, operation: *Operation) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const held = std.mem.eql(u8, &sync.root, &sync.elected_root);
    if (!held) for (t.peers, 0..) |*peer, rank| {
        const link = asking.link_to(s, t, rank) orelse continue;
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
        // It has no link to those who hold it: in a large group only to neighbours, who will.
        if (t.fetch.may_wait() or !t.hashing.is_idle()) return;
        s.log(.err, "no member gives the elected content of {f}", .{Of{ .transfer = t }});
        return operation.group.member.give_up(&operation.op, .state_unavailable);
    }
    if (t.phase == .leaves) return asking.ask_for_leaves(s, t);
    if (t.hashes_from == null) asking.ask_another_for_hashes(s, t);
}

/// "shared state "weights"", or "a shared state" when the caller has it back.
const Of = struct {
    transfer: *const Transfer,

    pub fn format(it: Of, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const state = it.transfer.state orelse return writer.writeAll("a shared state");
        try writer.print("shared state \"{s}\"", .{state.name});
    }
};

/// Nothing more is asked of this source.
fn discard(s: *Session, operation: *Operation, rank: u16, why: []const u8) void {
    const t = &operation.work.sync.transfer;
    s.log(.warning, "nothing more of {f} is asked of peer {f}: {s}", .{
        Of{ .transfer = t }, labels.named(s, operation.ids[rank]), why,
    });
    t.discard(rank);
    operations.later(s, operation);
}

const not_elected = "what it sent is not the elected content";

pub fn tick(s: *Session, operation: *Operation, late: bool) void {
    const t = &operation.work.sync.transfer;
    for (0..t.peers.len) |index| {
        const rank: u16 = @intCast(index);
        if (asking.is_mute(s, t, rank, late)) discard(s, operation, rank, "it gives nothing");
    }
    if (t.phase == .hashes) tick_hashes(s, operation, late);
}

/// Nothing can be asked for without the hashes, so another one is asked for them long before that:
/// whoever owes them may be frozen, and not be lost yet. If all are slow, each is given more time.
fn tick_hashes(s: *Session, operation: *Operation, late: bool) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    // All who are left owe one already, or did so before.
    const rank = t.hashes_from orelse return asking.ask_another_for_hashes(s, t);
    // Slow data counts, but not data that has begun and stands still.
    const left = if (asking.link_to(s, t, rank)) |link| link.bytes_left(t.owner) else 0;
    if (late or left != sync.page_bytes_left) t.page_moved_at = s.now;
    sync.page_bytes_left = left;
    if (s.now -| t.page_moved_at < sync.page_patience_ns) return;
    asking.ask_another_for_hashes(s, t);
    if (t.hashes_from != rank) sync.page_patience_ns *|= 2;
}

// ---- outgoing

/// Puts the next open or request of a sync on a lane that is idle, if there is one.
pub fn says_next(lane: *Lane, link: *Link, operation: *Operation) bool {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    if (t.phase == .begun) return false; // it has offered nothing
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

/// Puts the next leaf or page that was asked for on a lane that is idle, if there is one.
pub fn gives_next(s: *const Session, lane: *Lane, link: *Link, operation: *Operation) bool {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    if (t.phase == .begun) return false; // it has offered nothing
    if (!lane.unacked.has_room()) return false;
    const peer = &t.peers[t.find(link.peer) orelse return false];
    const staged = sync.offers_staged();
    // Members lie about votes if another content is elected than the one that this peer has voted
    // for. While that comes in, what is staged is neither the one nor the other.
    if (staged and t.is_fetching()) return false;
    const first = peer.asked.first() orelse return false;
    const payload = transfers.payload_of(t.state.?, first.*, staged);
    const answer = cutting.take_answer(s, lane, &peer.asked, payload);
    const item = answer.item;
    note(lane, operation, item, true);
    operation.put(lane, .{
        .kind = transfers.kind_of(item),
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

/// It is acknowledged, or goes again.
fn note(lane: *Lane, operation: *Operation, item: Requests.Item, is_answer: bool) void {
    lane.unacked.push(.{
        .operation = operation,
        .request = .{ .item = item, .is_answer = is_answer },
    });
}

// ---- a lane that breaks

/// A frame that it may not have delivered goes again (resend.zig). False: it cannot.
pub fn say_again(
    operation: *Operation,
    link: *const Link,
    request: *const Sent.Request,
) bool {
    const t = &operation.work.sync.transfer;
    return asking.say_again(t, t.find(link.peer) orelse return true, request);
}

/// A frame was still coming in on it.
pub fn broke_off(operation: *Operation, link: *const Link, header: *const Header) void {
    const t = &operation.work.sync.transfer;
    t.broke_off(t.find(link.peer) orelse return, header);
}

/// The other side may not have heard that this peer has everything.
pub fn open_again(operation: *Operation, link: *const Link) void {
    const t = &operation.work.sync.transfer;
    const peer = &t.peers[t.find(link.peer) orelse return];
    peer.tell = peer.tell or peer.told;
}

/// A leaf, or a part of one, or a page has gone.
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

pub const Error = transfers.Error || Requests.Error || error{WrongPhase};

/// Another member has everything by now.
pub fn on_open(s: *Session, link: *Link, operation: *Operation) void {
    const t = &operation.work.sync.transfer;
    const rank = t.find(link.peer) orelse return;
    t.peers[rank].gives = true;
    if (!t.is_fetching()) return; // `elected` looks at it
    t.fetch.add_source(rank);
    operations.later(s, operation);
}

/// Another member wants a leaf, or a page of hashes.
pub fn on_want(s: *Session, link: *Link, operation: *Operation, header: *const Header) Error!void {
    const sync = operation.sync() orelse return error.WrongPhase;
    const state = sync.transfer.state orelse return; // in doubt: it gives nothing any more
    const rank = sync.transfer.find(link.peer) orelse return;
    const peer = &sync.transfer.peers[rank];
    if (!transfers.has(state, header.class, header.index)) return error.UnknownLeaf;
    try peer.asked.push(sync.transfer.gpa, .{
        .class = header.class,
        .index = @intCast(header.index),
    });
    peer.used = true;
    s.wake(link);
}

/// Where the payload of a leaf or a page goes; null: it is not wanted any more.
pub fn place(s: *Session, lane: *Lane, operation: *Operation, header: *const Header) Error!?Place {
    const sync = operation.sync() orelse return error.WrongPhase;
    return asking.place(s, &sync.transfer, lane, header) catch |err| {
        if (err != error.OutOfMemory) return err;
        operations.give_up(s, operation);
        operations.later(s, operation);
        return null;
    };
}

/// The payload of a placed frame is complete.
pub fn arrived(s: *Session, lane: *Lane, operation: *Operation, header: *const Header) void {
    const sync = operation.work.sync;
    const t = &sync.transfer;
    const rank = asking.arrived(s, t, lane) orelse return;
    if (header.kind == .hashes) {
        sync.hash_bytes_received += header.payload_bytes;
        if (asking.page_arrived(s, t, rank, header)) hashes_arrived(s, operation, rank);
    } else {
        sync.bytes_received += header.payload_bytes;
        const bytes = asking.leaf_arrived(t, rank, header) orelse return;
        return hashed(s, operation, rank, @intCast(header.index), &kernels.blake3(bytes));
    }
    operations.later(s, operation);
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
    operations.later(s, operation);
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

/// The coordinator asks what this state is made of, from some tensor on.
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

/// The members whose offers the committed content was elected from: those of that attempt.
pub fn contributors(operation: *const Operation) *const Mask {
    return operation.history.members(operation.op.voted_attempt);
}

/// The contributors that held the content when it was elected.
pub fn holders(operation: *const Operation) *const Mask {
    const sync = operation.work.sync;
    return if (sync.holders.is_empty()) contributors(operation) else &sync.holders;
}
