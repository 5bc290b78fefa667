//! State: named tensors of the user that all members of a group keep equal, with a revision. This
//! file cuts them into leaves and keeps the hash of each leaf. Leaves of another content wait here
//! until that content is committed. It also keeps what a sync has offered, and what a transfer has
//! asked of other peers. The tensors stay in the user's memory. sync.zig makes them equal;
//! net/shared_state.zig decides which threads hash.
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
    /// content, and a sync never changes it.
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
    /// hashes[0] is the hash of the structure. After it come the hashes of the leaves, as they were
    /// last hashed.
    hashes: []Hash,
    /// The hash of `hashes`.
    root: Hash,
    /// As `hashes`, for the content that a sync has elected.
    wanted: []Hash,
    /// The hash of `wanted`, once all of it has come; null: it has not.
    wanted_root: ?Hash = null,
    /// Leaves of another content than the user's, with their hashes; null: the leaf is not here.
    staged: []?[]u8,
    staged_hashes: []Hash,
    /// A sync of the state is under way.
    in_call: bool = false,
    /// The user lets newcomers read the user's memory at any time.
    serves: bool,

    pub const Entry = struct { tensor: Tensor, bytes: usize, first_leaf: u32, leaves: u32 };

    pub const Options = struct {
        name: []const u8,
        tensors: []const Tensor,
        revision: u64 = 0,
        rules: wire.control.StateRules = .{},
        leaf_bytes: u32 = limits.state_leaf_bytes,
        /// Give leaves to newcomers, and fetch them as a newcomer, in the background.
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

    /// Makes a state. `at`: the tensor that an error is about.
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

    /// Frees a state that no operation uses any more.
    pub fn destroy(state: *State) void {
        assert(!state.in_call);
        state.forget_staged();
        const gpa = state.gpa;
        state.arena.deinit();
        gpa.destroy(state);
    }

    /// The tag of a name. All members name a state alike, so they agree on the tag without a
    /// message.
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
            if (dimension == 0) return 0; // whatever the other dimensions are
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
        // The last tensor that begins there: a tensor without leaves begins where the next one
        // does.
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

    /// Hashes leaves [first, end) as they are now. Any thread may call it, but for each leaf only
    /// one at a time.
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

    /// Memory for a leaf that is about to come in. The leaf counts as not here until it is whole.
    pub fn stage(state: *State, index: u32) Allocator.Error![]u8 {
        if (state.staged[index] == null) {
            const bytes = state.leaf(index).len;
            state.staged[index] = try base.unfilled.alloc(state.gpa, .@"1", bytes);
        }
        state.staged_hashes[index] = @splat(0); // the hash of nothing, until the leaf is whole
        return state.staged[index].?;
    }

    /// A staged leaf is whole and has this hash: keeps it if it is wanted. False: it is not.
    pub fn check_staged(state: *State, index: u32, hash: *const Hash) bool {
        const wanted = &state.wanted[index + 1];
        if (!std.mem.eql(u8, hash, wanted)) return false;
        state.staged_hashes[index] = wanted.*;
        return true;
    }

    /// The bytes of a leaf of the wanted content, which must be complete.
    pub fn wanted_leaf(state: *const State, index: u32) []const u8 {
        const wanted = &state.wanted[index + 1];
        if (std.mem.eql(u8, wanted, &state.hashes[index + 1])) return state.leaf(index);
        return state.staged[index].?;
    }

    /// Copies the wanted content, which is committed, to the user's memory. Called on the thread of
    /// the call, outside the engine's lock; nothing else may use the state meanwhile.
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
// Leaves that have come in may be hashed by a runner. There are places for a few leaves at a time.
// A leaf that finds no place, or is small, or has no runner, is hashed at once. A part of a
// transfer.
//
// Nothing writes to a leaf while it is hashed: it counts as here, and no peer is asked for it
// (collective/fetch.zig). Before a transfer or its attempt ends, it waits for the jobs.

pub const Hashing = struct {
    runner: ?*const base.Runner = null,
    posts: [most]Post = undefined,
    /// The places that the runner has.
    taken: Places = .initEmpty(),

    const most = 16;
    const Places = std.bit_set.IntegerBitSet(most);

    /// A leaf that is being hashed, the rank that has given it, and its hash.
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

    /// Hands a leaf to the runner. False: the caller is to hash it at once.
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

    /// Takes a job that is done, and frees its place.
    pub fn take_back(h: *Hashing, job: *base.Job) Post {
        const post: *Post = @alignCast(@fieldParentPtr("base", job));
        for (&h.posts, 0..) |*place, index| if (place == post) h.taken.unset(index);
        return post.*;
    }

    /// The leaves that a fence has found to have the wanted hash, and the ranks that gave them.
    pub const Found = struct { leaves: u32 = 0, sources: Mask = .empty };

    /// Waits until no leaf is being hashed. The state keeps the hashes.
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
// background alike (sync.zig): what is asked of each peer, and what has come. One peer gives the
// hashes of all leaves, page by page. Then all peers are asked for the leaves that this peer lacks.

/// Another peer in a transfer: what is asked of it, and what it asks.
pub const Peer = struct {
    id: base.PeerId = .none,
    /// There is a link to the peer; in a sync, since the attempt began.
    is_linked: bool = false,
    /// The page of hashes that the peer is still to be asked for. collective/fetch.zig has the
    /// leaves.
    wants_page: ?u32 = null,
    /// The peer has been asked for a page of hashes, and has not given it.
    owes_page: bool = false,
    /// When the peer last gave something, or nothing was asked of it.
    gave_at: base.Instant = 0,

    // In a sync alone.
    /// The peer's requests to this peer.
    asked: Requests = .{},
    /// In this attempt an answer or a request went to the peer, or a request came from it. If a
    /// lane breaks, only the sender of an answer notices that it may be lost.
    used: bool = false,
    /// The peer says that it has all leaves.
    gives: bool = false,
    /// The peer is to be told that this peer has all leaves.
    tell: bool = false,
    /// The peer has been told so.
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
    /// Null: the state is the user's again.
    state: ?*State,
    /// The owner of the payloads, as lanes know it.
    owner: Lane.Owner,
    phase: Phase,
    fetch: collective.Fetch,
    /// Leaves that have come in, and whose hashes are not known yet.
    hashing: Hashing = .{},
    /// The peers of the transfer; in a sync, by rank.
    peers: []Peer,
    /// The peer that is asked for hashes first; the others follow in a circle.
    first: usize = 0,
    /// The peer that was last asked for the hashes; null: none is, or all hashes have come.
    hashes_from: ?u16 = null,
    /// How many pages have come: the number of the next page.
    pages_got: u32 = 0,
    /// When the next page was asked for, or bytes of it last came.
    page_moved_at: base.Instant = 0,

    // In the background alone.
    /// The number by which answers to this fetch are told from answers to earlier ones.
    number: u32 = 0,
    /// How many leaves were fetched.
    leaves_kept: u32 = 0,

    pub const Phase = enum {
        /// No attempt is under way.
        stopped,
        /// An attempt of a sync has begun, and the offer is not sent.
        begun,
        /// The offer of the sync is sent.
        offered,
        /// The hashes of the leaves are asked for.
        hashes,
        /// The leaves that differ are asked for.
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

    /// All hashes have come: plans to ask for the leaves that this peer lacks. Returns how many
    /// leaves of the content are staged and not in the user's memory.
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

    /// The next request to this peer; null: all have been sent.
    pub fn next_want(t: *Transfer, rank: u16) ?Item {
        if (t.peers[rank].wants_page) |page| {
            t.peers[rank].wants_page = null;
            return .{ .class = link_file.class_hashes, .index = page };
        }
        if (t.phase != .leaves) return null;
        const leaf = t.fetch.say(rank) orelse return null;
        return .{ .class = link_file.class_leaf, .index = leaf };
    }

    /// Whether this peer has been sent all requests that are planned for it.
    pub fn has_said_all(t: *const Transfer, rank: u16) bool {
        if (t.peers[rank].wants_page != null) return false;
        return t.phase != .leaves or t.fetch.has_said_all(rank);
    }

    /// Whether this peer has been asked for something that it has not given.
    pub fn owes(t: *const Transfer, rank: u16) bool {
        return t.fetch.owes(rank) or t.peers[rank].owes_page;
    }

    /// A lane broke, so this peer may not have heard a request: it is sent again, unless the answer
    /// has come.
    pub fn say_again(t: *Transfer, rank: u16, item: Item) void {
        if (item.class == link_file.class_leaf) return t.fetch.unsay(rank, item.index);
        const peer = &t.peers[rank];
        const is_next = t.hashes_from == rank and t.pages_got == item.index;
        if (is_next and peer.owes_page) peer.wants_page = item.index;
    }

    /// A lane broke in the middle of a frame that this peer gives: its fragment is awaited anew.
    pub fn broke_off(t: *Transfer, rank: u16, header: *const wire.frame.Header) void {
        if (header.kind != .leaf) return;
        t.fetch.unplace(rank, @intCast(header.index), header.reduced_attempt, header.fragment);
    }

    /// Asks nothing more of this peer.
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

/// The bytes of a leaf or a page, which must exist. `wanted`: of the elected content, otherwise of
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
    /// The transfer has the state until the call returns. Its peers are by rank of the epoch.
    transfer: Transfer,
    strategy: control.Strategy,
    /// The number of the attempt under way, or of the last one.
    attempt: u32 = 0,
    /// The revision of this peer's content when it called.
    brought: u64,
    /// This peer's offer: its own content, or the content that it has staged in an earlier attempt.
    revision: u64,
    root: Hash,
    /// This peer has once had the elected content, and offers it since then.
    voted: bool = false,
    /// The revision that this peer expects, and its standing (wire StateOffer).
    expected: u64,
    standing: control.Standing,
    /// The content that the attempt under way has elected, and the members that had it then. An
    /// empty set: all members had it.
    elected_revision: u64 = 0,
    elected_root: Hash = undefined,
    holders: Mask = .empty,
    /// Bytes still to come of the page of hashes that is coming in, at the last tick.
    page_bytes_left: usize = 0,
    /// How long bytes of the page may fail to come until another peer is asked for it.
    page_patience_ns: u64 = 0,

    /// Bytes in all attempts, of leaves and of their hashes.
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    hash_bytes_sent: u64 = 0,
    hash_bytes_received: u64 = 0,
    leaves_given: u32 = 0,
    leaves_moved: u32 = 0,
    /// Leaves that differ from the user's memory and had been fetched before the call.
    leaves_early: u32 = 0,
    /// The ranks that have given leaves.
    sources: Mask = .empty,
    /// The words in which the coordinator says how structures differ.
    differs_storage: [limits.state_differs_bytes_max]u8 = undefined,
    differs_length: usize = 0,

    pub const Options = struct {
        state: *State,
        strategy: control.Strategy,
        /// The revision of the content; null: the state's own.
        revision: ?u64,
        expected: u64,
        standing: control.Standing,
        ranks: usize,
    };

    /// Makes a sync, with all its memory except for the leaves that will come in.
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

    /// The revision after a commit. A liar may have brought it to the limit; then it stays there.
    pub fn revision_after(sync: *const Sync) u64 {
        return @min(sync.revision + 1, limits.state_revisions_max);
    }

    /// How the structures of members differ, in words; empty: they do not.
    pub fn differs(sync: *const Sync) []const u8 {
        return sync.differs_storage[0..sync.differs_length];
    }

    pub fn note_differs(sync: *Sync, text: []const u8) void {
        if (!std.unicode.utf8ValidateSlice(text)) return; // the words go into a sentence
        sync.differs_length = @min(text.len, sync.differs_storage.len);
        @memcpy(sync.differs_storage[0..sync.differs_length], text[0..sync.differs_length]);
    }

    /// Whether the last lane of this link costs the attempt when it breaks.
    pub fn uses(sync: *const Sync, link: *const Link) bool {
        const rank = sync.transfer.find(link.peer) orelse return false;
        return sync.transfer.peers[rank].used;
    }

    /// Whether this peer offers staged content, and not the user's memory alone.
    pub fn offers_staged(sync: *const Sync) bool {
        const state = sync.transfer.state orelse return false; // in doubt: the sync gives nothing
        return !std.mem.eql(u8, &sync.root, &state.root);
    }
};
