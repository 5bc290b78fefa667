//! Sync: one call that makes a shared state equal on all members: what it has offered, what was
//! elected, and what has moved. The steps of the call: syncing.zig; the election:
//! protocol/election.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const Link = @import("link.zig").Link;
const State = @import("state.zig").State;
const Transfer = @import("transfer.zig").Transfer;
const Allocator = std.mem.Allocator;
const Hash = wire.control.Hash;
const Mask = base.Mask;
const control = wire.control;
const limits = base.limits;

pub const Sync = struct {
    /// With the state, until the call returns. Ranks are those of the epoch.
    transfer: Transfer,
    strategy: control.Strategy,
    /// The number of the attempt under way, or of the last one.
    attempt: u32 = 0,
    /// The revision of the content that this peer has called with.
    brought: u64,
    /// The offer of this peer: its own content, or what it has staged in an earlier attempt.
    revision: u64,
    root: Hash,
    voted: bool = false,
    /// The revision that this peer expects, and its standing (StateOffer).
    expected: u64,
    standing: control.Standing,
    /// The content that the attempt under way has elected, and who had it then; nobody: all did.
    elected_revision: u64 = 0,
    elected_root: Hash = undefined,
    holders: Mask = .empty,
    /// Still to come of the page of hashes that is coming in, at the last tick.
    page_bytes_left: usize = 0,
    /// How long to wait for something of it, until another one is asked.
    page_patience_ns: u64 = 0,

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

    pub const Options = struct {
        state: *State,
        strategy: control.Strategy,
        /// The revision of the state's content; null: the state's own.
        revision: ?u64,
        expected: u64,
        standing: control.Standing,
        ranks: usize,
    };

    /// Reserves all that it needs but the leaves that will come in.
    pub fn create(gpa: Allocator, options: Options) Allocator.Error!*Sync {
        const state = options.state;
        const sync = try gpa.create(Sync);
        errdefer gpa.destroy(sync);
        const revision = options.revision orelse state.revision;
        sync.* = .{
            .transfer = try .init(gpa, state, options.ranks),
            .strategy = options.strategy,
            .brought = revision,
            .revision = revision,
            .root = state.root,
            .expected = options.expected,
            .standing = options.standing,
        };
        return sync;
    }

    pub fn destroy(sync: *Sync) void {
        if (sync.transfer.state) |state| state.in_call = false;
        const gpa = sync.transfer.gpa;
        sync.transfer.deinit();
        gpa.destroy(sync);
    }

    /// Between the begin of an attempt and its stop.
    pub fn is_under_way(sync: *const Sync) bool {
        return sync.transfer.phase != .stopped;
    }

    pub fn digest_of(root: *const Hash, revision: u64) u128 {
        return kernels.digest(root, revision);
    }

    /// The revision after the commit. A liar may have brought it to the limit: it stays there.
    pub fn revision_after(sync: *const Sync) u64 {
        return @min(sync.revision + 1, limits.state_revisions_max);
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

    /// Whether the last lane of this link costs the attempt.
    pub fn uses(sync: *const Sync, link: *const Link) bool {
        const rank = sync.transfer.find(link.peer) orelse return false;
        return sync.transfer.peers[rank].used;
    }

    /// This peer's offer rests on what it has staged, not on the user's memory alone.
    pub fn offers_staged(sync: *const Sync) bool {
        const state = sync.transfer.state orelse return false; // it gives nothing any more
        return !std.mem.eql(u8, &sync.root, &state.root);
    }
};
