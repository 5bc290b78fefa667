//! Sync: one call that makes a shared state equal on all members. It offers the content that this
//! peer holds. If another content is elected, it fetches the leaves that differ from all members
//! that hold that content, while those serve from the user's memory. Fetched leaves wait in the
//! state (state.zig) until the commit, so a failed call has changed nothing. The election:
//! protocol/election.zig; which leaf is asked of whom: collective/fetch.zig; other operations:
//! frames.zig.
//!
//! A member asks for the hashes of all leaves first and compares them with the elected root, so
//! each leaf is checked as it arrives, no matter which peer sends it.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const protocol = @import("protocol");
const collective = @import("collective");
const frames = @import("frames.zig");
const labels = @import("labels.zig");
const links = @import("links.zig");
const prefetch = @import("prefetch.zig");
const Session = @import("session.zig").Session;
const Lane = @import("lane.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const State = @import("state.zig").State;
const Queue = prefetch.Queue;
const Allocator = std.mem.Allocator;
const Header = wire.frame.Header;
const Hash = wire.control.Hash;
const Mask = base.Mask;
const control = wire.control;
const limits = base.limits;
const assert = std.debug.assert;

pub const Sync = struct {
    gpa: Allocator,
    /// Until the call returns.
    state: ?*State,
    strategy: control.Strategy,
    phase: Phase = .idle,
    /// The offer of this peer: its own content, or what it has staged in an earlier attempt.
    revision: u64,
    root: Hash,
    voted: bool = false,
    /// The revision that this peer expects (StateOffer).
    expected: u64,
    /// The content that the attempt under way has elected, and who had it then; nobody: all did.
    elected_revision: u64 = 0,
    elected_root: Hash = undefined,
    holders: Mask = .empty,
    fetch: collective.Fetch,
    /// The rank that was asked last for the hashes of the leaves, and the next page.
    hashes_from: ?u16 = null,
    pages_got: u32 = 0,
    /// When that page was asked for, or something of it came.
    page_moved_at: base.Instant = 0,
    /// Still to come of what is coming in, at the last tick.
    page_bytes_left: usize = 0,
    /// How long to wait for something of it, until another one is asked.
    page_patience_ns: u64 = 0,
    /// By rank.
    exchanges: []Exchange,

    /// In all attempts: those of leaves, and those of their hashes.
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    hash_bytes_sent: u64 = 0,
    hash_bytes_received: u64 = 0,
    leaves_given: u32 = 0,
    leaves_moved: u32 = 0,
    /// Leaves that differ and had been fetched before the call.
    leaves_early: u32 = 0,
    sources: Mask = .empty,
    differs_storage: [limits.state_differs_bytes_max]u8 = undefined,
    differs_length: usize = 0,

    const Phase = enum {
        /// Stopped, or not begun in this attempt.
        idle,
        offered,
        /// Something else was elected; the hashes of its leaves are asked for.
        hashes,
        leaves,
        /// This peer has what was elected.
        complete,
    };

    /// The traffic between this peer and another in an attempt.
    const Exchange = struct {
        link: ?*Link = null,
        /// To be asked of it.
        wants: Queue = .{},
        /// Asked for by it.
        asked: Queue = .{},
        /// Something went to it, or was asked for, in this attempt. Whoever has sent an answer on
        /// a lane that the other has left already is the only one to notice that it is lost.
        used: bool = false,
        /// It has been asked for a page of hashes, and nothing has come.
        owes_page: bool = false,
        /// It says that it has everything.
        gives: bool = false,
        /// It is to be told that this peer has everything.
        tell: bool = false,
        /// When it last gave something that it had been asked for, or was not asked for anything.
        gave_at: base.Instant = 0,
    };

    const class_leaf = prefetch.class_leaf;
    const class_hashes = prefetch.class_hashes;

    /// Reserves all that it needs but the leaves that will come in. `revision`: that of the state's
    /// content, unless it is the state's own.
    pub fn create(
        gpa: Allocator,
        state: *State,
        strategy: control.Strategy,
        revision: ?u64,
        ranks: usize,
    ) Allocator.Error!*Sync {
        const sync = try gpa.create(Sync);
        errdefer gpa.destroy(sync);
        var fetch = try collective.Fetch.init(gpa, state.leaf_count(), ranks);
        errdefer fetch.deinit();
        const exchanges = try gpa.alloc(Exchange, ranks);
        @memset(exchanges, .{});
        sync.* = .{
            .gpa = gpa,
            .state = state,
            .strategy = strategy,
            .revision = revision orelse state.revision,
            .root = state.root,
            .expected = state.expected(),
            .fetch = fetch,
            .exchanges = exchanges,
        };
        return sync;
    }

    pub fn destroy(sync: *Sync) void {
        if (sync.state) |state| state.operation = null;
        sync.fetch.deinit();
        sync.gpa.free(sync.exchanges);
        sync.gpa.destroy(sync);
    }

    fn digest_of(root: *const Hash, revision: u64) u128 {
        return kernels.digest(root, revision);
    }

    /// The revision after the commit. A liar may have brought it to the limit: it stays there.
    pub fn revision_after(sync: *const Sync) u64 {
        return @min(sync.revision + 1, limits.state_revisions_max);
    }

    /// The members whose offers the committed content was elected from: those of that attempt.
    pub fn contributors(operation: *const Operation) *const Mask {
        return operation.history.members(operation.op.voted_attempt);
    }

    /// The contributors that held the content when it was elected.
    pub fn holders_of(operation: *const Operation) *const Mask {
        const sync = operation.sync.?;
        return if (sync.holders.is_empty()) contributors(operation) else &sync.holders;
    }

    /// Structures differ: how, in words.
    pub fn differs(sync: *const Sync) []const u8 {
        return sync.differs_storage[0..sync.differs_length];
    }

    pub fn note_differs(sync: *Sync, text: []const u8) void {
        if (!std.unicode.utf8ValidateSlice(text)) return; // it goes into a sentence
        sync.differs_length = @min(text.len, sync.differs_storage.len);
        @memcpy(sync.differs_storage[0..sync.differs_length], text[0..sync.differs_length]);
    }

    /// Whether a broken lane of this link costs the attempt.
    pub fn uses(sync: *const Sync, link: *const Link) bool {
        if (sync.phase == .idle) return false;
        const rank = sync.rank_of(link) orelse return false;
        return sync.exchanges[rank].used;
    }

    pub fn rank_of(sync: *const Sync, link: *const Link) ?u16 {
        for (sync.exchanges, 0..) |*exchange, rank| {
            if (exchange.link == link) return @intCast(rank);
        }
        return null;
    }

    /// This peer's offer rests on what it has staged, not on the user's memory alone.
    fn offers_staged(sync: *const Sync) bool {
        const state = sync.state orelse return false; // it gives nothing any more
        return !std.mem.eql(u8, &sync.root, &state.root);
    }
};

// ---- attempts

/// An attempt begins; the offer follows in `step`.
pub fn start(s: *Session, operation: *Operation) void {
    const sync = operation.sync.?;
    const epoch = operation.group.member.epoch_of(operation.op.epoch).?;
    sync.phase = .idle;
    sync.hashes_from = null;
    sync.page_patience_ns = s.settings.silence_ns / 4;
    for (sync.exchanges, 0..) |*exchange, rank| {
        exchange.* = .{ .gave_at = s.now };
        if (rank == epoch.rank or !epoch.alive.has(rank)) continue;
        exchange.link = links.find(s, epoch.ids[rank]);
    }
}

/// The link ends, because nobody has wanted it for a while: in a large group a sync may have begun
/// while it was still there for a message, or for an order of another epoch.
pub fn link_gone(s: *Session, operation: *Operation, link: *const Link) void {
    const sync = operation.sync orelse return;
    const rank = sync.rank_of(link) orelse return;
    sync.exchanges[rank] = .{};
    if (sync.hashes_from == rank) sync.hashes_from = null;
    switch (sync.phase) {
        .hashes, .leaves => sync.fetch.forget(rank),
        .idle, .offered, .complete => {},
    }
    frames.later(s, operation);
}

/// No lane reads or writes memory of the state any more.
pub fn stop(operation: *Operation) void {
    const sync = operation.sync.?;
    sync.phase = .idle;
    for (sync.exchanges) |*exchange| exchange.* = .{};
}

/// Sends what is due and can only be said outside of the member.
pub fn step(s: *Session, operation: *Operation) void {
    const sync = operation.sync.?;
    const member = &operation.group.member;
    if (operation.movement.board.members == 0 or operation.op.state == .finished) return;
    switch (sync.phase) {
        .idle => {
            // In doubt it has let go of the state, and offers nothing.
            const structure = if (sync.state) |state| state.structure() else sync.root;
            sync.phase = .offered;
            sync.holders = .empty;
            member.offer(&operation.op, .{
                .digest = Sync.digest_of(&sync.root, sync.revision),
                .revision = sync.revision,
                .expected = sync.expected,
                .structure = structure,
                .root = sync.root,
                .strategy = sync.strategy,
                .voted = sync.voted,
                .name = if (sync.state) |state| .shown(state.name) else .{},
            });
            s.sync_point(operation, .sync_offered, 0);
        },
        .offered => {},
        .hashes, .leaves => fetch_more(s, operation),
        .complete => {
            const digest = Sync.digest_of(&sync.root, sync.revision);
            const voted = operation.op.voted_attempt;
            member.completed(&operation.op, digest);
            if (operation.op.voted_attempt != voted) s.sync_point(operation, .sync_voted, 0);
        },
    }
}

/// The call returns, committed or not: the caller has its memory back.
pub fn over(operation: *Operation, committed: bool) void {
    stop(operation);
    const sync = operation.sync.?;
    const state = sync.state orelse return;
    sync.state = null;
    state.operation = null;
    if (!committed) return; // what is staged serves the next call
    state.revision = sync.revision_after();
    state.is_synced = true;
    // The difference is complete in `wanted` and `staged`; the caller applies it.
    if (std.mem.eql(u8, &sync.root, &state.root)) state.forget_staged();
}

/// Offers differ, and this was elected.
pub fn elected(s: *Session, operation: *Operation, message: *const control.StateElected) void {
    const sync = operation.sync.?;
    const state = sync.state orelse return;
    if (sync.phase != .offered) return; // the offer of this attempt is still to be sent
    sync.elected_revision = message.revision;
    sync.elected_root = message.root;
    sync.holders = message.holders;
    if (std.mem.eql(u8, &sync.root, &message.root)) {
        completed(s, operation);
        return step(s, operation);
    }
    var sources = message.holders;
    for (sync.exchanges, 0..) |*exchange, rank| {
        if (exchange.gives) sources.set(rank);
        if (exchange.link == null) sources.unset(rank);
    }
    for (sync.exchanges.len..limits.peers_max) |rank| sources.unset(rank);
    // Links may be broken while the members are well: then the others give. If all are broken, what
    // is asked for waits for the first that is open again.
    var working = sources;
    for (sync.exchanges, 0..) |*exchange, rank| {
        const link = exchange.link orelse continue;
        if (link.open_count == 0) working.unset(rank);
    }
    sync.fetch.begin(if (working.is_empty()) &sources else &working);
    const known = if (state.wanted_root) |*root| std.mem.eql(u8, root, &message.root) else false;
    if (known) begin_leaves(operation) else {
        state.wanted_root = null;
        sync.phase = .hashes;
    }
    step(s, operation);
}

/// This peer has what was elected: from now on it offers that, and nothing else. Others may have no
/// link to any who had it before.
fn completed(s: *Session, operation: *Operation) void {
    const sync = operation.sync.?;
    const held = std.mem.eql(u8, &sync.root, &sync.elected_root);
    if (!held) for (sync.exchanges, 0..) |*exchange, rank| {
        const link = exchange.link orelse continue;
        exchange.tell = !sync.holders.has(rank);
        frames.wake(s, link);
    };
    sync.phase = .complete;
    sync.revision = sync.elected_revision;
    sync.root = sync.elected_root;
    sync.voted = true;
}

fn begin_leaves(operation: *Operation) void {
    const sync = operation.sync.?;
    const state = sync.state.?;
    sync.phase = .leaves;
    var differ: u32 = 0;
    for (0..state.leaf_count()) |index| {
        if (state.lacks(@intCast(index))) sync.fetch.need(@intCast(index));
        const same = std.mem.eql(u8, &state.wanted[index + 1], &state.hashes[index + 1]);
        differ += @intFromBool(!same);
    }
    sync.leaves_early = differ -| sync.fetch.left -| sync.leaves_moved;
}

fn fetch_more(s: *Session, operation: *Operation) void {
    const sync = operation.sync.?;
    if (sync.phase == .leaves and sync.fetch.left == 0) {
        completed(s, operation);
        return step(s, operation);
    }
    if (!sync.fetch.has_sources()) {
        // It has no link to those who hold it: in a large group only to neighbours, who will.
        if (sync.fetch.may_wait()) return;
        s.log(.err, "no member gives the elected content of {f}", .{Of{ .sync = sync }});
        return operation.group.member.give_up(&operation.op, .state_unavailable);
    }
    if (sync.phase == .hashes) return ask_for_hashes(s, operation);
    while (sync.fetch.next()) |request| {
        ask(s, sync, request.rank, .{ .class = Sync.class_leaf, .index = request.leaf });
    }
}

fn ask_for_hashes(s: *Session, operation: *Operation) void {
    const sync = operation.sync.?;
    if (sync.hashes_from == null) ask_another_for_hashes(s, operation);
}

/// Asks a source that owes none already. Members spread over the sources, each begins behind
/// itself.
fn ask_another_for_hashes(s: *Session, operation: *Operation) void {
    const sync = operation.sync.?;
    const count = sync.exchanges.len;
    const own = operation.movement.board.position;
    for (0..count) |distance| {
        const rank: u16 = @intCast((own + distance) % count);
        if (!sync.fetch.is_usable(rank) or sync.exchanges[rank].owes_page) continue;
        sync.hashes_from = rank;
        sync.pages_got = 0;
        return ask_for_page(s, sync, rank);
    }
}

fn ask_for_page(s: *Session, sync: *Sync, rank: u16) void {
    sync.exchanges[rank].owes_page = true;
    sync.page_moved_at = s.now;
    ask(s, sync, rank, .{ .class = Sync.class_hashes, .index = sync.pages_got });
}

/// "shared state "weights""
const Of = struct {
    sync: *const Sync,

    pub fn format(it: Of, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const state = it.sync.state orelse return writer.writeAll("a shared state");
        try writer.print("shared state \"{s}\"", .{state.name});
    }
};

fn ask(s: *Session, sync: *Sync, rank: u16, item: Queue.Item) void {
    const exchange = &sync.exchanges[rank];
    // At most a page and the leaves that Fetch allows are on request.
    assert(exchange.wants.push(item));
    exchange.used = true;
    frames.wake(s, exchange.link.?);
}

/// Nothing more is asked of this source.
fn discard(s: *Session, operation: *Operation, rank: u16, why: []const u8) void {
    const sync = operation.sync.?;
    s.log(.warning, "nothing more of {f} is asked of peer {f}: {s}", .{
        Of{ .sync = sync }, labels.named(s, operation.ids[rank]), why,
    });
    sync.fetch.discard(rank);
    sync.exchanges[rank].wants = .{};
    sync.exchanges[rank].owes_page = false;
    if (sync.hashes_from == rank) sync.hashes_from = null;
    frames.later(s, operation);
}

const not_elected = "what it sent is not the elected content";

/// How long a source may give nothing of what it was asked for: a lane that is not well, or on
/// which the request was lost, is closed before.
pub fn patience(s: *const Session) u64 {
    return 2 *| s.settings.silence_ns;
}

/// A source whose lanes are well and that gives nothing is not waited for. Slow data counts as
/// well, and whether a lane still moves is its own affair.
pub fn tick(s: *Session, operation: *Operation, late: bool) void {
    const sync = operation.sync.?;
    for (sync.exchanges, 0..) |*exchange, index| {
        const rank: u16 = @intCast(index);
        const link = exchange.link orelse continue;
        const owes = sync.fetch.owes(rank) or exchange.owes_page;
        const waits = owes and exchange.wants.count == 0 and link.open_count > 0;
        if (late or !waits or link.brings(operation)) exchange.gave_at = s.now;
        if (s.now -| exchange.gave_at < patience(s)) continue;
        discard(s, operation, rank, "it gives nothing");
    }
    if (sync.phase == .hashes) tick_hashes(s, operation, late);
}

/// Nothing can be asked for without the hashes, so another one is asked for them long before that:
/// whoever owes them may be frozen, and not be lost yet. If all are slow, each is given more time.
fn tick_hashes(s: *Session, operation: *Operation, late: bool) void {
    const sync = operation.sync.?;
    // All who are left owe one already, or did so before.
    const rank = sync.hashes_from orelse return ask_another_for_hashes(s, operation);
    // Slow data counts, but not data that has begun and stands still.
    const left = if (sync.exchanges[rank].link) |link| link.bytes_left(operation) else 0;
    if (late or left != sync.page_bytes_left) sync.page_moved_at = s.now;
    sync.page_bytes_left = left;
    if (s.now -| sync.page_moved_at < sync.page_patience_ns) return;
    ask_another_for_hashes(s, operation);
    if (sync.hashes_from != rank) sync.page_patience_ns *|= 2;
}

// ---- outgoing

/// Puts the next frame of a sync on a lane that is idle, if there is one.
pub fn next(lane: *Lane, link: *Link, operation: *Operation) bool {
    const sync = operation.sync.?;
    if (sync.phase == .idle) return false;
    const exchange = for (sync.exchanges) |*exchange| {
        if (exchange.link == link) break exchange;
    } else return false;
    if (exchange.tell) {
        exchange.tell = false;
        exchange.used = true;
        const descriptor = control.encode_descriptor(operation.op.descriptor);
        frames.put(lane, operation, .{ .kind = .open, .index = 0 }, &descriptor);
        return true;
    }
    if (exchange.wants.pop()) |item| {
        frames.put(lane, operation, .{
            .kind = .want,
            .index = item.index,
            .class = item.class,
        }, "");
        return true;
    }
    const staged = sync.offers_staged();
    // Members lie about votes if another content is elected than the one that this peer has voted
    // for. While that comes in, what is staged is neither the one nor the other.
    if (staged and (sync.phase == .hashes or sync.phase == .leaves)) return false;
    const item = exchange.asked.pop() orelse return false;
    const state = sync.state.?;
    const kind: wire.frame.Kind = if (item.class == Sync.class_leaf) .leaf else .hashes;
    const payload = switch (item.class) {
        Sync.class_leaf => if (staged) state.wanted_leaf(item.index) else state.leaf(item.index),
        else => State.page_of(if (staged) state.wanted else state.hashes, item.index),
    };
    frames.put(lane, operation, .{
        .kind = kind,
        .index = item.index,
        .payload_bytes = @intCast(payload.len),
    }, "");
    lane.out = .{
        .move = .{ .kind = kind, .piece = item.index, .class = item.class, .place = .result },
        .payload = payload,
    };
    lane.out_payload = payload;
    lane.out_operation = operation;
    return true;
}

/// A leaf or a page has gone.
pub fn sent(s: *Session, lane: *const Lane, operation: *Operation) void {
    const sync = operation.sync.?;
    if (lane.out.move.kind != .leaf) {
        sync.hash_bytes_sent += lane.out.payload.len;
        return;
    }
    sync.bytes_sent += lane.out.payload.len;
    sync.leaves_given += 1;
    s.sync_point(operation, .sync_given, sync.leaves_given);
}

// ---- incoming

pub const Error = error{
    UnknownLeaf,
    UnknownPage,
    WrongLength,
    TooManyRequests,
    NotAsked,
    WrongPhase,
};

/// Another member has everything by now.
pub fn on_open(s: *Session, link: *Link, operation: *Operation) void {
    const sync = operation.sync.?;
    const rank = sync.rank_of(link) orelse return;
    sync.exchanges[rank].gives = true;
    switch (sync.phase) {
        .hashes, .leaves => {},
        .idle, .offered, .complete => return, // `elected` looks at it
    }
    sync.fetch.add_source(rank);
    frames.later(s, operation);
}

/// Another member wants a leaf, or a page of hashes.
pub fn on_want(s: *Session, link: *Link, operation: *Operation, header: *const Header) Error!void {
    const sync = operation.sync orelse return error.WrongPhase;
    const state = sync.state orelse return; // in doubt: it gives nothing any more
    const rank = sync.rank_of(link) orelse return;
    const known = switch (header.class) {
        Sync.class_leaf => header.index < state.leaf_count(),
        Sync.class_hashes => header.index < state.page_count(),
        else => false,
    };
    if (!known) return error.UnknownLeaf;
    const item: Queue.Item = .{ .class = header.class, .index = @intCast(header.index) };
    if (!sync.exchanges[rank].asked.push(item)) return error.TooManyRequests;
    sync.exchanges[rank].used = true;
    frames.wake(s, link);
}

/// Where the payload of a leaf or a page goes; null: it is not wanted any more.
pub fn place(s: *Session, lane: *Lane, operation: *Operation, header: *const Header) Error!?[]u8 {
    const sync = operation.sync orelse return error.WrongPhase;
    const state = sync.state orelse return null;
    const rank = sync.rank_of(lane.link.?) orelse return null;
    const class: u16 = if (header.kind == .leaf) Sync.class_leaf else Sync.class_hashes;
    const index = std.math.cast(u32, header.index) orelse return error.UnknownLeaf;
    if (sync.exchanges[rank].wants.has(class, index))
        return error.NotAsked; // it is still to be asked for
    if (header.kind == .hashes) {
        if (header.index >= state.page_count()) return error.UnknownPage;
        if (sync.exchanges[rank].wants.asks_for_page()) return error.NotAsked;
        if (sync.phase != .hashes or sync.hashes_from != rank) {
            sync.exchanges[rank].owes_page = false;
            return null;
        }
        if (header.index != sync.pages_got) return error.UnknownPage;
        const page = State.page_of(state.wanted, @intCast(header.index));
        if (header.payload_bytes != page.len) return error.WrongLength;
        // One at a time: nobody may write to a page that has been checked.
        for (s.links.items) |link| for (link.lanes) |maybe| if (maybe) |other| {
            const same = other != lane and other.into_operation == operation and
                other.incoming.kind == .hashes;
            if (!same) continue;
            other.detach(operation);
            if (sync.rank_of(link)) |slower| sync.exchanges[slower].owes_page = false;
        };
        return page;
    }
    if (index >= state.leaf_count()) return error.UnknownLeaf;
    const leaf = index;
    if (header.payload_bytes != state.leaf(leaf).len) return error.WrongLength;
    if (sync.phase != .leaves or !sync.fetch.wants(rank, leaf)) {
        sync.exchanges[rank].gave_at = s.now;
        if (sync.phase == .leaves) sync.fetch.delivered(rank, leaf);
        return null;
    }
    // Asked of two, and the other one is still sending: whoever began later is faster.
    for (s.links.items) |link| for (link.lanes) |maybe| if (maybe) |other| {
        const same = other != lane and other.into_operation == operation and
            other.incoming.kind == .leaf and other.incoming.index == leaf;
        if (!same) continue;
        other.detach(operation);
        const slower = sync.rank_of(link) orelse continue;
        if (slower != rank) sync.fetch.cancel(slower, leaf); // else it sends the same twice
    };
    return state.stage(leaf) catch {
        frames.give_up(s, operation);
        frames.later(s, operation);
        return null;
    };
}

/// The payload of a placed frame is complete.
pub fn arrived(s: *Session, lane: *Lane, operation: *Operation, header: *const Header) void {
    const sync = operation.sync.?;
    const state = sync.state orelse return;
    const rank = sync.rank_of(lane.link.?) orelse return;
    sync.exchanges[rank].gave_at = s.now;
    if (header.kind == .hashes) {
        sync.hash_bytes_received += header.payload_bytes;
        sync.exchanges[rank].owes_page = false;
        const wanted = sync.phase == .hashes and sync.hashes_from == rank and
            header.index == sync.pages_got;
        if (wanted) page_arrived(s, operation, rank);
    } else {
        sync.bytes_received += header.payload_bytes;
        const leaf: u32 = @intCast(header.index);
        if (!state.check_staged(leaf)) return discard(s, operation, rank, not_elected);
        sync.fetch.delivered(rank, leaf);
        sync.leaves_moved += 1;
        sync.sources.set(rank);
        s.sync_point(operation, .sync_taken, sync.leaves_moved);
    }
    frames.later(s, operation);
}

fn page_arrived(s: *Session, operation: *Operation, rank: u16) void {
    const sync = operation.sync.?;
    const state = sync.state.?;
    sync.pages_got += 1;
    if (sync.pages_got < state.page_count()) return ask_for_page(s, sync, rank);
    const root = kernels.blake3(std.mem.sliceAsBytes(state.wanted));
    if (!std.mem.eql(u8, &root, &sync.elected_root))
        return discard(s, operation, rank, not_elected);
    state.wanted_root = root;
    begin_leaves(operation);
}

// ---- structures

/// The coordinator asks what this state is made of, from some tensor on.
pub fn describe(operation: *Operation, first: u32) protocol.Member.EpochError!void {
    const sync = operation.sync.?;
    const state = sync.state orelse return;
    if (first > state.entries.len) return error.Unexpected;
    var tensors: std.ArrayList(control.StateTensor) = .empty;
    defer tensors.deinit(sync.gpa);
    var bytes: usize = 0;
    for (state.entries[first..]) |*entry| {
        const tensor = &entry.tensor;
        bytes += 16 + tensor.name.len + 8 * tensor.shape.len;
        if (bytes > limits.state_page_bytes and tensors.items.len > 0) break;
        try tensors.append(sync.gpa, .{
            .name = .of(tensor.name),
            .dtype = tensor.dtype,
            .may_differ = tensor.may_differ,
            .shape = .of(tensor.shape),
        });
    }
    const total: u32 = @intCast(state.entries.len);
    operation.group.member.describe(&operation.op, tensors.items, first, total);
}
