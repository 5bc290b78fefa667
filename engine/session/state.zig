//! State: named tensors of the user that all members of a group keep equal, with a revision. This
//! file cuts the tensors into leaves and keeps the hash of each leaf. Fetched leaves of another
//! content wait here until that content is committed. The file also has what a sync has offered,
//! and what a transfer has asked of other peers. The tensors stay in the user's memory. sync.zig
//! makes states equal; net/shared_state.zig decides which threads hash.
//!
//! Each tensor is cut separately, so a leaf never spans two tensors. The root is the hash of the
//! structure (names, types, shapes, flags) and of all leaf hashes, so equal roots are equal
//! contents.

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
    /// Null only if the tensor has no elements.
    data: ?[*]u8,
    /// Members may have different values. The tensor counts in the structure but not in the
    /// content, and a sync never changes its values.
    may_differ: bool = false,
};

pub const State = struct {
    gpa: Allocator,
    arena: std.heap.ArenaAllocator,
    name: []const u8,
    /// The tag of the state's operations, which follows from the name.
    tag: u64,
    /// The revision of the content in the user's memory.
    revision: u64,
    /// The rules that all syncs of the state keep.
    rules: wire.control.StateRules,
    /// The tensors in the order of their names.
    entries: []Entry,
    leaf_bytes: u32,
    /// hashes[0] is the hash of the structure. hashes[i + 1] is the hash of leaf i when it was last
    /// hashed.
    hashes: []Hash,
    /// The hash of `hashes`.
    root: Hash,
    /// Like `hashes`, for the content that a sync has elected.
    wanted: []Hash,
    /// The hash of `wanted`, once all hashes in `wanted` have arrived; null before that.
    wanted_root: ?Hash = null,
    /// Leaves of another content than the user's, by number; null: the leaf is not staged.
    staged: []?[]u8,
    staged_hashes: []Hash,
    /// A sync of the state is under way.
    in_call: bool = false,
    /// Newcomers may read the state's memory at any time, even while the user changes it.
    serves: bool,

    pub const Entry = struct { tensor: Tensor, bytes: usize, first_leaf: u32, leaves: u32 };

    pub const Options = struct {
        name: []const u8,
        tensors: []const Tensor,
        revision: u64 = 0,
        rules: wire.control.StateRules = .{},
        leaf_bytes: u32 = limits.state_leaf_bytes,
        /// Lets newcomers fetch leaves in the background; as a newcomer, this peer fetches them.
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

    /// Makes a state. `at`: on an error, the index of the tensor that caused it.
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

    /// Frees a state that no operation uses.
    pub fn destroy(state: *State) void {
        assert(!state.in_call);
        state.forget_staged();
        const gpa = state.gpa;
        state.arena.deinit();
        gpa.destroy(state);
    }

    /// The tag that belongs to a state's name. All members give a state the same name, so they
    /// agree on the tag without a message.
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
            // a tensor with a dimension of 0 has no bytes, whatever its other dimensions
            if (dimension == 0) return 0;
            elements = std.math.mul(u64, elements, dimension) catch return error.TooLarge;
        }
        if (elements > limits.elements_max) return error.TooLarge;
        return std.math.cast(usize, elements * tensor.dtype.size()) orelse error.TooLarge;
    }

    /// Fails if two tensors share bytes, because a commit writes to each of them.
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

    /// The bytes of a leaf in the user's memory.
    pub fn leaf(state: *const State, index: u32) []u8 {
        // Finds the last tensor whose `first_leaf` is at most `index`. A tensor without leaves has
        // the same `first_leaf` as the tensor after it.
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

    /// Hashes leaves [first, end) of the user's memory. Several threads may hash at once, each its
    /// own leaves.
    pub fn hash_leaves(state: *State, first: u32, end: u32) void {
        for (first..end) |index| {
            state.hashes[index + 1] = kernels.blake3(state.leaf(@intCast(index)));
        }
    }

    /// Computes the root. All leaves must be hashed.
    pub fn hash_root(state: *State) void {
        state.root = kernels.blake3(std.mem.sliceAsBytes(state.hashes));
    }

    /// Hashes travel in pages that fill a frame.
    const page_hashes = limits.frame_payload_bytes_max / @sizeOf(Hash);

    pub fn page_count(state: *const State) u32 {
        return std.math.divCeil(u32, state.leaf_count(), page_hashes) catch unreachable;
    }

    /// The bytes of a page of `hashes` or `wanted`.
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

    /// Memory for a leaf that is about to arrive. The leaf counts as missing until it is complete.
    pub fn stage(state: *State, index: u32) Allocator.Error![]u8 {
        if (state.staged[index] == null) {
            const bytes = state.leaf(index).len;
            state.staged[index] = try base.unfilled.alloc(state.gpa, .@"1", bytes);
        }
        state.staged_hashes[index] = @splat(0); // no hash matches until the leaf is complete
        return state.staged[index].?;
    }

    /// Accepts a complete staged leaf with this hash. Returns false if the hash is not the wanted
    /// one.
    pub fn check_staged(state: *State, index: u32, hash: *const Hash) bool {
        const wanted = &state.wanted[index + 1];
        if (!std.mem.eql(u8, hash, wanted)) return false;
        state.staged_hashes[index] = wanted.*;
        return true;
    }

    /// The bytes of a leaf of the wanted content, which must be in the user's memory or staged.
    pub fn wanted_leaf(state: *const State, index: u32) []const u8 {
        const wanted = &state.wanted[index + 1];
        if (std.mem.eql(u8, wanted, &state.hashes[index + 1])) return state.leaf(index);
        return state.staged[index].?;
    }

    /// Copies the wanted content to the user's memory after the commit. The call's own thread runs
    /// this, outside the engine's lock; nothing else may use the state meanwhile.
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

    /// Frees all staged leaves.
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
    b[0] = 9; // tensor "m" may differ
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
    // A leaf that arrives a second time counts as missing until it is complete.
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
// Part of a transfer: a runner may hash the leaves that have arrived, `most` of them at a time. A
// leaf is hashed at once instead if it is small, if all places are taken, or if there is no runner.
//
// Nothing writes to a leaf while it is being hashed: the leaf counts as here, and no peer is asked
// for it (collective/fetch.zig). Before a transfer or its attempt ends, it waits for the jobs.

pub const Hashing = struct {
    runner: ?*const base.Runner = null,
    posts: [most]Post = undefined,
    /// The indices in `posts` of jobs that the runner has.
    taken: Places = .initEmpty(),

    const most = 16;
    const Places = std.bit_set.IntegerBitSet(most);

    /// A job that hashes a leaf: the leaf, the rank that sent it, and the hash when the job is
    /// done.
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

    /// Hands a leaf to the runner. Returns false if the caller is to hash the leaf at once.
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

    /// Returns a job that the runner has done, and frees its place.
    pub fn take_back(h: *Hashing, job: *base.Job) Post {
        const post: *Post = @alignCast(@fieldParentPtr("base", job));
        for (&h.posts, 0..) |*place, index| if (place == post) h.taken.unset(index);
        return post.*;
    }

    /// The number of leaves that a fence has found to have the wanted hash, and the ranks that sent
    /// them.
    pub const Found = struct { leaves: u32 = 0, sources: Mask = .empty };

    /// Waits until no leaf is being hashed. The state keeps the computed hashes.
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
// A transfer fetches leaves of a shared state from other peers, in a sync or in the background
// (sync.zig). It has what is asked of each peer, and what has arrived. One peer sends the hashes of
// all leaves, page by page. Then all peers are asked for the leaves that this peer lacks.

/// Another peer in a transfer: what this peer asks of it, and what it asks of this peer.
pub const Peer = struct {
    id: base.PeerId = .none,
    /// This peer has a link to the other peer; in a sync, it had the link when the attempt began.
    is_linked: bool = false,
    /// The page of hashes that is to be requested from the peer; null: none. collective/fetch.zig
    /// has the leaves to request.
    wants_page: ?u32 = null,
    /// The peer has been asked for a page of hashes, and has not sent the page.
    owes_page: bool = false,
    /// When the peer last sent a leaf or page, or last owed nothing.
    gave_at: base.Instant = 0,

    // Used in a sync only:
    /// The peer's requests to this peer that are not answered yet.
    asked: Requests = .{},
    /// In this attempt an answer or a request was sent to the peer, or a request came from it. If a
    /// lane breaks, only the sender of an answer notices that the answer may be lost.
    used: bool = false,
    /// The peer has said that it has all leaves of the elected content.
    gives: bool = false,
    /// The peer is to be told that this peer has all leaves.
    tell: bool = false,
    /// The peer has been told that this peer has all leaves.
    told: bool = false,

    pub fn become(peer: *Peer, gpa: Allocator, fresh: Peer) void {
        peer.asked.clear(gpa);
        peer.* = fresh;
    }
};

/// The memory for a payload, and its owner.
pub const Place = struct { []u8, Lane.Owner };

pub const TransferError = error{ OutOfMemory, UnknownLeaf, UnknownPage, WrongLength, Overlap };

pub const Transfer = struct {
    gpa: Allocator,
    /// The state whose leaves are fetched; null once the user has the state back.
    state: ?*State,
    /// The name under which lanes know the receivers of this transfer's payloads.
    owner: Lane.Owner,
    phase: Phase,
    fetch: collective.Fetch,
    /// Leaves that have arrived and are being hashed by a runner.
    hashing: Hashing = .{},
    /// The peers of the transfer; in a sync, indexed by rank.
    peers: []Peer,
    /// The index of the peer that is asked for hashes first; after it, the peers follow in a
    /// circle.
    first: usize = 0,
    /// The peer that was last asked for hashes; null: no peer is being asked, or all hashes are
    /// here.
    hashes_from: ?u16 = null,
    /// How many pages of hashes have arrived, which is the number of the next page.
    pages_got: u32 = 0,
    /// When the next page of hashes was requested, or when bytes of that page last arrived.
    page_moved_at: base.Instant = 0,

    // Used in a prefetch only:
    /// Tells answers to this prefetch from answers to earlier prefetches.
    number: u32 = 0,
    /// How many leaves this prefetch has fetched.
    leaves_kept: u32 = 0,

    pub const Phase = enum {
        /// No attempt is under way.
        stopped,
        /// An attempt of a sync has begun, and its offer has not been sent.
        begun,
        /// The offer of the sync has been sent.
        offered,
        /// The hashes of the leaves are being fetched.
        hashes,
        /// The leaves that differ are being fetched.
        leaves,
        /// This peer has the elected content.
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

    /// Whether leaves or their hashes are coming in.
    pub fn is_fetching(t: *const Transfer) bool {
        return t.phase == .hashes or t.phase == .leaves;
    }

    /// Begins to fetch leaves after all hashes have arrived: plans requests for the leaves that
    /// this peer lacks. Returns how many leaves of the elected content are staged already.
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

    /// The next request to send to peer `rank`. Null: all planned requests have been sent.
    pub fn next_want(t: *Transfer, rank: u16) ?Item {
        if (t.peers[rank].wants_page) |page| {
            t.peers[rank].wants_page = null;
            return .{ .class = link_file.class_hashes, .index = page };
        }
        if (t.phase != .leaves) return null;
        const leaf = t.fetch.say(rank) orelse return null;
        return .{ .class = link_file.class_leaf, .index = leaf };
    }

    /// Whether all requests that are planned for peer `rank` have been sent.
    pub fn has_said_all(t: *const Transfer, rank: u16) bool {
        if (t.peers[rank].wants_page != null) return false;
        return t.phase != .leaves or t.fetch.has_said_all(rank);
    }

    /// Whether peer `rank` has been asked for a leaf or page that it has not sent.
    pub fn owes(t: *const Transfer, rank: u16) bool {
        return t.fetch.owes(rank) or t.peers[rank].owes_page;
    }

    /// Sends a request to peer `rank` again that a broken lane may have lost, unless the answer has
    /// arrived.
    pub fn say_again(t: *Transfer, rank: u16, item: Item) void {
        if (item.class == link_file.class_leaf) return t.fetch.unsay(rank, item.index);
        const peer = &t.peers[rank];
        const is_next = t.hashes_from == rank and t.pages_got == item.index;
        if (is_next and peer.owes_page) peer.wants_page = item.index;
    }

    /// Awaits a fragment anew that was arriving from peer `rank` when its lane broke.
    pub fn broke_off(t: *Transfer, rank: u16, header: *const wire.frame.Header) void {
        if (header.kind != .leaf) return;
        t.fetch.unplace(rank, @intCast(header.index), header.reduced_attempt, header.fragment);
    }

    /// Asks peer `rank` for nothing more.
    pub fn discard(t: *Transfer, rank: u16) void {
        t.fetch.discard(rank);
        t.peers[rank].wants_page = null;
        t.peers[rank].owes_page = false;
        if (t.hashes_from == rank) t.hashes_from = null;
    }
};

// ---- what goes out

/// Whether the state has the leaf or page that a request names.
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

/// The bytes of a leaf or a page, which must exist. `wanted`: take the elected content instead of
/// the user's memory.
pub fn payload_of(state: *State, item: Item, wanted: bool) []const u8 {
    if (item.class != link_file.class_leaf)
        return State.page_of(if (wanted) state.wanted else state.hashes, item.index);
    return if (wanted) state.wanted_leaf(item.index) else state.leaf(item.index);
}

// ---- the call
//
// A sync is one call that makes a shared state equal on all members: its offer, the elected
// content, and what has moved.

pub const Sync = struct {
    /// The fetch of leaves that differ. The transfer has the state until the call returns.
    transfer: Transfer,
    strategy: control.Strategy,
    /// The number of the attempt under way, or of the last one.
    attempt: u32 = 0,
    /// The revision of this peer's content when the user called.
    brought: u64,
    /// The revision and root hash that this peer offers: of the user's content, or of the content
    /// that an earlier attempt elected and this peer completed.
    revision: u64,
    root: Hash,
    /// This peer has once held the elected content, and offers that content ever since.
    voted: bool = false,
    /// One more than the last revision of this state that this peer committed; 0 if it committed
    /// none. `standing` tells newcomers from members (both as in wire StateOffer).
    expected: u64,
    standing: control.Standing,
    /// The revision and root hash of the content that the current attempt elected, and the ranks
    /// that held it at the election. Empty `holders`: all members held it.
    elected_revision: u64 = 0,
    elected_root: Hash = undefined,
    holders: Mask = .empty,
    /// Bytes that were missing of the arriving page of hashes at the last tick.
    page_bytes_left: usize = 0,
    /// Nanoseconds without bytes of the awaited page of hashes after which another peer is asked
    /// for it.
    page_patience_ns: u64 = 0,

    /// Bytes of leaves, and bytes of pages of hashes, that all attempts of this sync have moved.
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    hash_bytes_sent: u64 = 0,
    hash_bytes_received: u64 = 0,
    leaves_given: u32 = 0,
    leaves_moved: u32 = 0,
    /// Leaves that differed from the user's memory and were fetched before the call.
    leaves_early: u32 = 0,
    /// The ranks that have sent leaves to this peer.
    sources: Mask = .empty,
    /// The coordinator's sentence on how the members' structures differ.
    differs_storage: [limits.state_differs_bytes_max]u8 = undefined,
    differs_length: usize = 0,

    pub const Options = struct {
        state: *State,
        strategy: control.Strategy,
        /// The revision of this peer's content; null: `state.revision`.
        revision: ?u64,
        expected: u64,
        standing: control.Standing,
        ranks: usize,
    };

    /// Makes a sync with all its memory, except for the leaves that will arrive.
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

    /// Whether an attempt is under way.
    pub fn is_under_way(sync: *const Sync) bool {
        return sync.transfer.phase != .stopped;
    }

    pub fn digest_of(root: *const Hash, revision: u64) u128 {
        return kernels.digest(root, revision);
    }

    /// The revision after a commit. At its limit, which a lying member may have offered, it stays.
    pub fn revision_after(sync: *const Sync) u64 {
        return @min(sync.revision + 1, limits.state_revisions_max);
    }

    /// How the structures of members differ, in words; empty if they are equal.
    pub fn differs(sync: *const Sync) []const u8 {
        return sync.differs_storage[0..sync.differs_length];
    }

    pub fn note_differs(sync: *Sync, text: []const u8) void {
        // error messages contain the text, so it must be UTF-8
        if (!std.unicode.utf8ValidateSlice(text)) return;
        sync.differs_length = @min(text.len, sync.differs_storage.len);
        @memcpy(sync.differs_storage[0..sync.differs_length], text[0..sync.differs_length]);
    }

    /// Whether the attempt fails if the last lane of this link breaks.
    pub fn uses(sync: *const Sync, link: *const Link) bool {
        const rank = sync.transfer.find(link.peer) orelse return false;
        return sync.transfer.peers[rank].used;
    }

    /// Whether this peer offers content with staged leaves instead of the user's memory.
    pub fn offers_staged(sync: *const Sync) bool {
        const state = sync.transfer.state orelse return false; // in doubt: the sync offers nothing
        return !std.mem.eql(u8, &sync.root, &state.root);
    }
};
