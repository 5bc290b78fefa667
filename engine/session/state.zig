//! State: named tensors of the user that all members of a group want to be equal, with a revision.
//! It knows how they are cut into leaves, the hash of each leaf, and where leaves of another
//! content wait until they are committed; and it keeps what a sync has offered, and what a transfer
//! has asked of whom. The tensors stay in the user's memory. sync.zig makes them equal;
//! net/shared_state.zig decides which threads hash.
//!
//! Each tensor is cut separately, so a leaf never spans two. The root is the hash of the structure
//! (names, types, shapes, flags) and of all leaf hashes, so equal roots are equal contents.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const kernels = @import("kernels");
const wire = @import("wire");
const link_file = @import("link.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Span = @import("call.zig").Span;
const Allocator = std.mem.Allocator;
const Hash = wire.control.Hash;
const Item = Requests.Item;
const Mask = base.Mask;
const Requests = link_file.Requests;
const assert = std.debug.assert;
const control = wire.control;
const limits = base.limits;

pub const Tensor = struct {
    name: []const u8,
    dtype: base.DType,
    shape: []const u64,
    /// Null only if it has no elements.
    data: ?[*]u8,
    /// It counts in the structure, but not in the content, and never changes here.
    may_differ: bool = false,
};

pub const State = struct {
    gpa: Allocator,
    arena: std.heap.ArenaAllocator,
    name: []const u8,
    /// The tag of its operations; follows from the name.
    tag: u64,
    revision: u64,
    /// All its syncs keep them.
    rules: wire.control.StateRules,
    /// In order of their names.
    entries: []Entry,
    leaf_bytes: u32,
    /// hashes[0] is that of the structure, then those of the leaves as they were last hashed.
    hashes: []Hash,
    root: Hash,
    /// The same for the content that a sync has elected.
    wanted: []Hash,
    wanted_root: ?Hash = null,
    /// Leaves of another content, with their hashes; null: none.
    staged: []?[]u8,
    staged_hashes: []Hash,
    /// A sync of it is under way.
    in_call: bool = false,
    /// Newcomers may read the user's memory at any time.
    serves: bool,

    pub const Entry = struct { tensor: Tensor, bytes: usize, first_leaf: u32, leaves: u32 };

    pub const Options = struct {
        name: []const u8,
        tensors: []const Tensor,
        revision: u64 = 0,
        rules: wire.control.StateRules = .{},
        leaf_bytes: u32 = limits.state_leaf_bytes,
        /// Give to newcomers, and fetch as one, in the background.
        prefetch: bool = false,
    };

    pub const Error = error{
        OutOfMemory,
        TooManyTensors,
        TooManyLeaves,
        BadName,
        DuplicateName,
        TooManyDimensions,
        TooLarge,
        NoData,
        Overlap,
        RevisionTooLarge,
    };

    /// `at`: the tensor that an error is about.
    pub fn create(gpa: Allocator, options: Options, at: *usize) Error!*State {
        at.* = 0;
        if (options.tensors.len > limits.state_tensors_max) return error.TooManyTensors;
        if (options.revision >= limits.state_revisions_max) return error.RevisionTooLarge;
        const state = try gpa.create(State);
        errdefer gpa.destroy(state);
        state.* = .{
            .gpa = gpa,
            .arena = .init(gpa),
            .name = "",
            .tag = tag_of(options.name),
            .revision = options.revision,
            .rules = options.rules,
            .entries = &.{},
            .leaf_bytes = options.leaf_bytes,
            .hashes = &.{},
            .root = undefined,
            .wanted = &.{},
            .staged = &.{},
            .staged_hashes = &.{},
            .serves = options.prefetch,
        };
        errdefer state.arena.deinit();
        const arena = state.arena.allocator();
        state.name = try arena.dupe(u8, options.name);
        try state.take(options.tensors, at);
        const count = state.leaf_count();
        state.hashes = try arena.alloc(Hash, count + 1);
        state.wanted = try arena.alloc(Hash, count + 1);
        state.staged = try arena.alloc(?[]u8, count);
        state.staged_hashes = try arena.alloc(Hash, count);
        @memset(state.staged, null);
        @memset(state.hashes, @splat(0));
        state.hashes[0] = try state.structure_hash();
        state.wanted[0] = state.hashes[0];
        return state;
    }

    /// No operation uses it any more.
    pub fn destroy(state: *State) void {
        assert(!state.in_call);
        state.forget_staged();
        const gpa = state.gpa;
        state.arena.deinit();
        gpa.destroy(state);
    }

    /// All members name a state alike, so its operations need no other agreement.
    fn tag_of(name: []const u8) u64 {
        const digest: u64 = @truncate(kernels.digest(name, 0));
        return limits.state_tags_first | digest >> 8;
    }

    fn take(state: *State, tensors: []const Tensor, at: *usize) Error!void {
        const arena = state.arena.allocator();
        state.entries = try arena.alloc(Entry, tensors.len);
        for (state.entries, tensors, 0..) |*entry, tensor, index| {
            at.* = index;
            if (!base.text.is_name(tensor.name)) return error.BadName;
            if (tensor.shape.len > limits.state_dimensions_max) return error.TooManyDimensions;
            const bytes = try size_of(&tensor);
            if (bytes > 0 and tensor.data == null) return error.NoData;
            entry.* = .{ .tensor = tensor, .bytes = bytes, .first_leaf = 0, .leaves = 0 };
            entry.tensor.name = try arena.dupe(u8, tensor.name);
            entry.tensor.shape = try arena.dupe(u64, tensor.shape);
        }
        try check_overlap(arena, state.entries, tensors, at);
        std.mem.sortUnstable(Entry, state.entries, {}, by_name);
        for (state.entries[0..state.entries.len -| 1], 1..) |*entry, next| {
            if (!std.mem.eql(u8, entry.tensor.name, state.entries[next].tensor.name)) continue;
            at.* = index_of(tensors, entry.tensor.name);
            return error.DuplicateName;
        }
        var leaves: u64 = 0;
        for (state.entries) |*entry| {
            entry.first_leaf = @intCast(leaves);
            if (entry.tensor.may_differ) continue;
            const count = std.math.divCeil(u64, entry.bytes, state.leaf_bytes) catch unreachable;
            if (leaves + count > limits.state_leaves_max) return error.TooManyLeaves;
            entry.leaves = @intCast(count);
            leaves += count;
        }
    }

    fn by_name(_: void, a: Entry, b: Entry) bool {
        return std.mem.order(u8, a.tensor.name, b.tensor.name) == .lt;
    }

    fn index_of(tensors: []const Tensor, name: []const u8) usize {
        for (tensors, 0..) |*tensor, index| if (std.mem.eql(u8, tensor.name, name)) return index;
        unreachable;
    }

    fn size_of(tensor: *const Tensor) error{TooLarge}!usize {
        var elements: u64 = 1;
        for (tensor.shape) |dimension| {
            if (dimension == 0) return 0; // whatever the others are
            elements = std.math.mul(u64, elements, dimension) catch return error.TooLarge;
        }
        if (elements > limits.elements_max) return error.TooLarge;
        return std.math.cast(usize, elements * tensor.dtype.size()) orelse error.TooLarge;
    }

    /// Bytes that a commit writes must be of one tensor only.
    fn check_overlap(
        arena: Allocator,
        entries: []const Entry,
        tensors: []const Tensor,
        at: *usize,
    ) Error!void {
        const order = try arena.alloc(u32, entries.len);
        for (order, 0..) |*place, index| place.* = @intCast(index);
        std.mem.sortUnstable(u32, order, entries, by_address);
        var end: usize = 0;
        for (order) |index| {
            const entry = &entries[index];
            if (entry.bytes == 0) continue;
            const start = @intFromPtr(tensors[index].data.?);
            at.* = index;
            if (std.math.maxInt(usize) - start < entry.bytes) return error.TooLarge;
            if (start < end) return error.Overlap;
            end = start + entry.bytes;
        }
    }

    fn by_address(entries: []const Entry, a: u32, b: u32) bool {
        return @intFromPtr(entries[a].tensor.data) < @intFromPtr(entries[b].tensor.data);
    }

    fn structure_hash(state: *State) Allocator.Error!Hash {
        var bytes: std.ArrayList(u8) = .empty;
        defer bytes.deinit(state.gpa);
        const gpa = state.gpa;
        try append_int(&bytes, gpa, state.leaf_bytes);
        for (state.entries) |*entry| {
            const tensor = &entry.tensor;
            try append_int(&bytes, gpa, tensor.name.len);
            try bytes.appendSlice(gpa, tensor.name);
            const flags = @as(u64, @intFromEnum(tensor.dtype)) << 1;
            try append_int(&bytes, gpa, flags | @intFromBool(tensor.may_differ));
            try append_int(&bytes, gpa, tensor.shape.len);
            for (tensor.shape) |dimension| try append_int(&bytes, gpa, dimension);
        }
        return kernels.blake3(bytes.items);
    }

    fn append_int(bytes: *std.ArrayList(u8), gpa: Allocator, value: u64) Allocator.Error!void {
        var encoded: [8]u8 = undefined;
        std.mem.writeInt(u64, &encoded, value, .little);
        try bytes.appendSlice(gpa, &encoded);
    }

    // ---- leaves

    pub fn leaf_count(state: *const State) u32 {
        if (state.entries.len == 0) return 0;
        const last = &state.entries[state.entries.len - 1];
        return last.first_leaf + last.leaves;
    }

    /// A leaf in the user's memory.
    pub fn leaf(state: *const State, index: u32) []u8 {
        // The last tensor that begins there: those without leaves begin where the next one does.
        var low: usize = 0;
        var high = state.entries.len;
        while (high - low > 1) {
            const middle = (low + high) / 2;
            if (state.entries[middle].first_leaf <= index) low = middle else high = middle;
        }
        const entry = &state.entries[low];
        assert(index - entry.first_leaf < entry.leaves);
        const start = @as(usize, index - entry.first_leaf) * state.leaf_bytes;
        const end = @min(entry.bytes, start + state.leaf_bytes);
        return entry.tensor.data.?[start..end];
    }

    /// Hashes leaves [first, end) as they are now. Any thread, but each leaf only one at a time.
    pub fn hash_leaves(state: *State, first: u32, end: u32) void {
        for (first..end) |index| {
            state.hashes[index + 1] = kernels.blake3(state.leaf(@intCast(index)));
        }
    }

    /// All leaves are hashed.
    pub fn hash_root(state: *State) void {
        state.root = kernels.blake3(std.mem.sliceAsBytes(state.hashes));
    }

    /// Hashes travel in pages of the size of a frame.
    const page_hashes = limits.frame_payload_bytes_max / @sizeOf(Hash);

    pub fn page_count(state: *const State) u32 {
        return std.math.divCeil(u32, state.leaf_count(), page_hashes) catch unreachable;
    }

    /// A page of `hashes` or `wanted`.
    pub fn page_of(hashes: []Hash, page: u32) []u8 {
        const leaves = hashes[1..];
        const first = @as(usize, page) * page_hashes;
        return std.mem.sliceAsBytes(leaves[first..@min(leaves.len, first + page_hashes)]);
    }

    pub fn structure(state: *const State) Hash {
        return state.hashes[0];
    }

    pub fn span_of(entry: *const Entry) Span {
        if (entry.leaves == 0) return .{ .start = 0, .bytes = 0 };
        return .{ .start = @intFromPtr(entry.tensor.data), .bytes = entry.bytes };
    }

    // ---- another content

    /// Whether a leaf of the wanted content is neither in the user's memory nor staged.
    pub fn lacks(state: *const State, index: u32) bool {
        const hash = &state.wanted[index + 1];
        if (std.mem.eql(u8, hash, &state.hashes[index + 1])) return false;
        return state.staged[index] == null or
            !std.mem.eql(u8, hash, &state.staged_hashes[index]);
    }

    /// Memory for a leaf that is about to come in.
    pub fn stage(state: *State, index: u32) Allocator.Error![]u8 {
        if (state.staged[index] == null) {
            const bytes = state.leaf(index).len;
            state.staged[index] = try base.unfilled.alloc(state.gpa, .@"1", bytes);
        }
        state.staged_hashes[index] = @splat(0); // of nothing, until it is whole
        return state.staged[index].?;
    }

    /// A staged leaf is whole, with this hash: whether it is the wanted one.
    pub fn check_staged(state: *State, index: u32, hash: *const Hash) bool {
        const wanted = &state.wanted[index + 1];
        if (!std.mem.eql(u8, hash, wanted)) return false;
        state.staged_hashes[index] = wanted.*;
        return true;
    }

    /// A leaf of the wanted content, which is complete.
    pub fn wanted_leaf(state: *const State, index: u32) []const u8 {
        const wanted = &state.wanted[index + 1];
        if (std.mem.eql(u8, wanted, &state.hashes[index + 1])) return state.leaf(index);
        return state.staged[index].?;
    }

    /// The wanted content is committed: it becomes the user's. Outside the engine's lock, on the
    /// thread of the call, which nothing else may use the state beside.
    pub fn apply(state: *State) void {
        const wanted = state.wanted_root orelse return;
        for (0..state.leaf_count()) |index| {
            const own = &state.hashes[index + 1];
            if (std.mem.eql(u8, own, &state.wanted[index + 1])) continue;
            @memcpy(state.leaf(@intCast(index)), state.staged[index].?);
            own.* = state.wanted[index + 1];
        }
        state.root = wanted;
        state.forget_staged();
    }

    /// Forgets staged leaves, which are of no use any more.
    pub fn forget_staged(state: *State) void {
        state.wanted_root = null;
        for (state.staged) |*place| {
            base.unfilled.free(state.gpa, .@"1", place.* orelse continue);
            place.* = null;
        }
    }
};

// ---- tests

const test_lengths = lengths: {
    var lengths: [32]u64 = undefined;
    for (&lengths, 0..) |*length, index| length.* = index;
    break :lengths lengths;
};

fn test_tensor(name: []const u8, data: []u8) Tensor {
    const shape = test_lengths[data.len..][0..1];
    return .{ .name = name, .dtype = .u8, .shape = shape, .data = data.ptr };
}

fn test_create(tensors: []const Tensor) State.Error!*State {
    var at: usize = 0;
    const options: State.Options = .{ .name = "test", .tensors = tensors, .leaf_bytes = 8 };
    return State.create(std.testing.allocator, options, &at);
}

fn test_staged(state: *State, index: u32) bool {
    return state.check_staged(index, &kernels.blake3(state.staged[index].?));
}

fn test_root(state: *State) Hash {
    state.hash_leaves(0, state.leaf_count());
    state.hash_root();
    return state.root;
}

test "leaves are cut in order of names, and tensors without content have none" {
    var a: [20]u8 = @splat(1);
    var b: [8]u8 = @splat(2);
    var c: [9]u8 = @splat(3);
    var tensors = [_]Tensor{
        test_tensor("z", &c),
        test_tensor("empty", a[0..0]),
        test_tensor("a", &a),
        test_tensor("m", &b),
    };
    tensors[3].may_differ = true;
    const state = try test_create(&tensors);
    defer state.destroy();
    try std.testing.expectEqual(5, state.leaf_count());
    const expected = [_][]u8{ a[0..8], a[8..16], a[16..20], c[0..8], c[8..9] };
    for (expected, 0..) |bytes, index| {
        const leaf = state.leaf(@intCast(index));
        try std.testing.expectEqual(bytes.ptr, leaf.ptr);
        try std.testing.expectEqual(bytes.len, leaf.len);
    }
    const before = test_root(state);
    b[0] = 9; // may differ
    try std.testing.expectEqual(before, test_root(state));
    c[8] = 9;
    try std.testing.expect(!std.mem.eql(u8, &before, &test_root(state)));
}

test "names, types, shapes and flags are the structure, the order in which they are given is not" {
    var a: [12]u8 = @splat(1);
    var b: [12]u8 = @splat(1);
    const first = [_]Tensor{ test_tensor("a", &a), test_tensor("b", &b) };
    const one = try test_create(&first);
    defer one.destroy();
    const second = [_]Tensor{ first[1], first[0] };
    const two = try test_create(&second);
    defer two.destroy();
    try std.testing.expectEqual(test_root(one), test_root(two));
    for (0..4) |change| {
        var changed = first;
        switch (change) {
            0 => changed[0].name = "c",
            1 => changed[0].dtype = .i8,
            2 => changed[0].shape = &.{ 3, 4 },
            else => changed[0].may_differ = true,
        }
        const other = try test_create(&changed);
        defer other.destroy();
        try std.testing.expect(!std.mem.eql(u8, &one.structure(), &other.structure()));
    }
}

test "tensors that cannot be shared are refused by name" {
    var a: [12]u8 = @splat(1);
    const good = test_tensor("a", &a);
    var bad = good;
    bad.name = "";
    try std.testing.expectError(error.BadName, test_create(&.{bad}));
    bad.name = "\xff";
    try std.testing.expectError(error.BadName, test_create(&.{bad}));
    bad = good;
    bad.data = null;
    try std.testing.expectError(error.NoData, test_create(&.{bad}));
    bad.shape = &.{ 1 << 40, 1 << 40 };
    try std.testing.expectError(error.TooLarge, test_create(&.{bad}));
    bad.shape = &([1]u64{1} ** 33);
    try std.testing.expectError(error.TooManyDimensions, test_create(&.{bad}));
    try std.testing.expectError(error.DuplicateName, test_create(&.{
        test_tensor("a", a[0..4]), test_tensor("a", a[4..8]),
    }));
    try std.testing.expectError(error.Overlap, test_create(&.{
        test_tensor("a", a[0..5]), test_tensor("b", a[4..8]),
    }));
}

test "a staged leaf counts only if its hash is the wanted one, and is applied at the commit" {
    var a: [12]u8 = @splat(1);
    var b: [12]u8 = @splat(1);
    b[9] = 2;
    const mine = try test_create(&.{test_tensor("a", &a)});
    defer mine.destroy();
    const theirs = try test_create(&.{test_tensor("a", &b)});
    defer theirs.destroy();
    _ = test_root(mine);
    mine.wanted_root = test_root(theirs);
    @memcpy(mine.wanted, theirs.hashes);
    try std.testing.expect(!mine.lacks(0));
    try std.testing.expect(mine.lacks(1));
    @memset(try mine.stage(1), 7);
    try std.testing.expect(!test_staged(mine, 1));
    try std.testing.expect(mine.lacks(1));
    @memcpy(try mine.stage(1), b[8..]);
    try std.testing.expect(test_staged(mine, 1));
    try std.testing.expect(!mine.lacks(1));
    // A leaf that comes in again counts for nothing until it is whole.
    const place = try mine.stage(1);
    try std.testing.expect(mine.lacks(1));
    @memcpy(place, b[8..]);
    try std.testing.expect(test_staged(mine, 1));
    try std.testing.expectEqual(1, a[9]);
    mine.apply();
    try std.testing.expectEqualSlices(u8, &b, &a);
    try std.testing.expectEqual(theirs.root, mine.root);
    try std.testing.expectEqual(theirs.root, test_root(mine));
}

// ---- leaves that are hashed
//
// Leaves of a shared state that have come in, and whose hashes a runner computes: places for a few
// of them. A leaf that finds none, or is small, or has no runner, is hashed at once. A part of a
// transfer.
//
// Nothing writes to a leaf meanwhile: it counts as here, and is asked of nobody
// (collective/fetch.zig). Whatever ends a transfer, or its attempt, first waits for the jobs.

pub const Hashing = struct {
    runner: ?*const base.Runner = null,
    posts: [most]Post = undefined,
    /// Those in the hands of the runner.
    taken: Places = .initEmpty(),

    const most = 16;
    const Places = std.bit_set.IntegerBitSet(most);

    /// A leaf, who has given it, and what has come of it.
    pub const Post = struct {
        base: base.Job,
        bytes: []const u8,
        rank: u16,
        leaf: u32,
        hash: Hash,

        fn run(job: *base.Job) void {
            const post: *Post = @alignCast(@fieldParentPtr("base", job));
            post.hash = kernels.blake3(post.bytes);
        }
    };

    pub fn is_idle(h: *const Hashing) bool {
        return h.taken.mask == 0;
    }

    /// False: it is to be hashed at once.
    pub fn give(h: *Hashing, bytes: []const u8, rank: u16, leaf: u32) bool {
        const runner = h.runner orelse return false;
        const place = h.taken.complement().findFirstSet() orelse return false;
        if (bytes.len < runner.bytes_min) return false;
        h.taken.set(place);
        const post = &h.posts[place];
        post.* = .{
            .base = .{ .run = Post.run, .owner = h },
            .bytes = bytes,
            .rank = rank,
            .leaf = leaf,
            .hash = undefined,
        };
        runner.post(&post.base);
        return true;
    }

    pub fn owns(h: *const Hashing, job: *const base.Job) bool {
        return @as(*const anyopaque, h) == job.owner;
    }

    /// A leaf is hashed: its place is free.
    pub fn take_back(h: *Hashing, job: *base.Job) Post {
        const post: *Post = @alignCast(@fieldParentPtr("base", job));
        for (&h.posts, 0..) |*place, index| if (place == post) h.taken.unset(index);
        return post.*;
    }

    /// The leaves of which a fence has found that they are as they must be, and who gave them.
    pub const Found = struct { leaves: u32 = 0, sources: Mask = .empty };

    /// Returns when no leaf is being hashed. The hashes are kept in the state.
    pub fn fence(h: *Hashing, state: *State) Found {
        var found: Found = .{};
        if (h.is_idle()) return found;
        h.runner.?.fence(h);
        var places = h.taken.iterator(.{});
        while (places.next()) |place| {
            const post = &h.posts[place];
            state.staged_hashes[post.leaf] = post.hash;
            if (!state.check_staged(post.leaf, &post.hash)) continue;
            found.leaves += 1;
            found.sources.set(post.rank);
        }
        h.taken = .initEmpty();
        return found;
    }
};

// ---- transfers
//
// The leaves of a shared state on their way from other peers to this one, in a sync and in the
// background (sync.zig) alike: what is asked of whom, and what has come. One peer gives the hashes
// of all leaves, page by page; then all are asked for the leaves that this one lacks.

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

pub const TransferError = error{ OutOfMemory, UnknownLeaf, UnknownPage, WrongLength, Overlap };

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
            return .{ .class = link_file.class_hashes, .index = page };
        }
        if (t.phase != .leaves) return null;
        const leaf = t.fetch.say(rank) orelse return null;
        return .{ .class = link_file.class_leaf, .index = leaf };
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
        if (item.class == link_file.class_leaf) return t.fetch.unsay(rank, item.index);
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
        link_file.class_leaf => state.leaf_count(),
        link_file.class_hashes => state.page_count(),
        else => 0,
    };
}

pub fn frame_kind_of(item: Item) wire.frame.Kind {
    return if (item.class == link_file.class_leaf) .leaf else .hashes;
}

/// A leaf or a page that there is. `wanted`: of the content that was elected, and not of the one in
/// the user's memory.
pub fn payload_of(state: *State, item: Item, wanted: bool) []const u8 {
    if (item.class != link_file.class_leaf)
        return State.page_of(if (wanted) state.wanted else state.hashes, item.index);
    return if (wanted) state.wanted_leaf(item.index) else state.leaf(item.index);
}

// ---- the call
//
// One call that makes a shared state equal on all members: what it has offered, what was elected,
// and what has moved.

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
