//! Call: the description of one call, from its caller to the end of the operation. This file checks
//! the arguments that depend on the membership. It derives the call's roles and sizes, the memory
//! that the call uses, and the descriptor, which is the part that other members see. A call is
//! built once, as it begins (user.zig); data movement gets its options from here.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const kernels = @import("kernels");
const protocol = @import("protocol");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Descriptor = wire.control.Descriptor;
const Instant = base.Instant;
const Outline = wire.control.Outline;
const assert = std.debug.assert;
const control = wire.control;
const limits = base.limits;

pub const Array = struct {
    /// The memory to send from and to receive into. Null if this rank sends or receives nothing.
    send: ?[*]const u8 = null,
    recv: ?[*]u8 = null,
    /// Elements of the array, or of one shard in calls where each rank has a shard.
    count: u64 = 0,
    dtype: base.DType = .u8,
};

pub const Call = struct {
    kind: control.OpKind,
    /// The one array of the call, with the fields of Array; unused if `arrays` has several.
    send: ?[*]const u8 = null,
    recv: ?[*]u8 = null,
    count: u64 = 0,
    /// Elements of each rank's shard of the one array, if the shards differ in size.
    counts: ?[]const u64 = null,
    /// Elements of the shards to each rank and from each rank, for an all_to_all whose shards
    /// differ in size.
    exchanged: ?collective.Exchanged = null,
    dtype: base.DType = .u8,
    /// The arrays of a call of several arrays; empty for a call of one array.
    arrays: []const Array = &.{},
    /// A hash of what the arrays are to the caller, such as names and shapes, which all members
    /// must have in common. 0: no check. Messages and an all_to_all with `exchanged` have 0.
    form: u64 = 0,
    op: base.ReduceOp = .sum,
    root_rank: u32 = 0,
    /// In a message: whether this peer sends or receives, and the rank of the other peer.
    part: Part = .send,
    partner_rank: u32 = 0,
    recovery: ?control.Recovery = null,
    codec: base.Codec = .none,
    residual: ?kernels.Residual = null,
    plan: base.Plan = .auto,
    /// In a sync: the rules of the shared state.
    rules: control.StateRules = .{},
    tag: u64 = 0,
    purpose: Purpose = .data,
    deadline: Instant,

    /// The purpose of a call: to move the user's data, or to make members agree (membership.zig).
    pub const Purpose = enum { data, safe_point, pending };
    pub const Part = enum { send, recv };

    fn list(call: *const Call, one: *Array) []const Array {
        if (call.arrays.len > 0) return call.arrays;
        one.* = .{
            .send = call.send,
            .recv = call.recv,
            .count = call.count,
            .dtype = call.dtype,
        };
        return one[0..1];
    }

    pub fn is_even(call: *const Call) bool {
        return call.counts == null and call.exchanged == null;
    }

    fn elements(call: *const Call, array: *const Array) collective.Elements {
        if (call.counts) |counts| return .{ .of_ranks = counts };
        if (call.exchanged) |exchanged| return .{ .exchanged = exchanged };
        return .{ .each = array.count };
    }

    /// The two ranks of a message. The caller must have checked `partner_rank`.
    fn pair(call: *const Call, own: u16) base.Pair {
        const other: u16 = @intCast(call.partner_rank);
        return switch (call.part) {
            .send => .{ .src = own, .dst = other },
            .recv => .{ .src = other, .dst = own },
        };
    }
};

pub const CallError = protocol.Member.StartError || error{
    Left,
    RootOutOfRange,
    /// The other peer of a message is no rank of the epoch.
    PartnerOutOfRange,
    PartnerIsSelf,
    /// The tag of a message is limits.pair_user_tags or more.
    TagTooLarge,
    /// The number of counts differs from the number of ranks.
    CountsOfAnotherWorld,
    /// An all_to_all has one shard for each pair of ranks, which would be more shards than an
    /// operation may have chunks.
    TooManyRanks,
    /// An all_to_all sends to its own rank a different number of elements than it receives from it.
    OwnCountsDiffer,
    /// All shards together have more elements than an operation may have.
    TooManyElements,
    /// The arrays and ranks make more shards than an operation may have chunks.
    TooManyArrays,
    /// This rank needs a buffer that the call does not give.
    SendMissing,
    RecvMissing,
    BeyondMemory,
    /// The sent and received elements overlap, without starting at the same address.
    BuffersOverlap,
    /// A buffer that the call writes overlaps a buffer of another array.
    ArraysOverlap,
    /// The new residual overlaps another buffer of the call.
    ResidualOverlaps,
    /// The old residual overlaps a buffer that the result is written to.
    ResidualInWritten,
    /// The tag is reserved for messages and shared states: it is limits.pair_tags_first or more.
    TagReserved,
    /// An operation in flight writes a buffer of this call, or uses a buffer that this call would
    /// write.
    BufferInUse,
};

/// A member's checked call, and everything that is derived from it.
pub const Built = struct {
    call: *const Call,
    arrays: []const Array,
    roles: collective.Roles,
    /// Elements of all arrays together.
    count: u64,
    /// The tag whose sequence numbers the operation.
    tag: u64,
    /// The user's memory that the call uses. The builder of the call frees the list, unless an
    /// operation takes the list over.
    uses: Uses,
    descriptor: control.Descriptor,

    /// Builds a call. `one`: room for the list of a call of one array. The arguments must have been
    /// checked, except for what depends on the membership.
    pub fn init(
        gpa: Allocator,
        member: *const protocol.Member,
        call: *const Call,
        tag: u64,
        one: *Array,
    ) CallError!Built {
        const epoch = member.current.?;
        if (call.root_rank >= epoch.world_size()) return error.RootOutOfRange;
        const arrays = call.list(one);
        const roles = roles_of(epoch, call);
        assert(call.codec.kind == .none or call.kind.has_codecs());
        if (call.kind.reduces()) for (arrays) |*array| assert(call.op.takes(array.dtype));
        assert(call.residual == null or (call.codec.kind != .none and call.kind.reduces()));
        const count = try count_of(call, &roles, arrays);
        return .{
            .call = call,
            .arrays = arrays,
            .roles = roles,
            .count = count,
            .tag = tag,
            .uses = try uses_of(gpa, call, &roles, arrays, count),
            .descriptor = descriptor_of(member, call, arrays, count),
        };
    }

    /// Builds a sync of a shared state. `uses`: the state's memory.
    pub fn sync(member: *const protocol.Member, call: *const Call, uses: Uses) Built {
        return .{
            .call = call,
            .arrays = &.{.{}},
            .roles = roles_of(member.current.?, call),
            .count = 0,
            .tag = call.tag,
            .uses = uses,
            .descriptor = descriptor_of(member, call, &.{.{}}, 0),
        };
    }

    /// The options of the data movement. `moved`: room for the arrays of the options. `nothing`: an
    /// address that replaces the address of a missing buffer.
    pub fn options(
        built: *const Built,
        member: *const protocol.Member,
        settings: *const control.Welcome,
        moved: []collective.Array,
        nothing: [*]u8,
    ) collective.Options {
        const call = built.call;
        for (moved, built.arrays) |*to, *array| to.* = .{
            .send = array.send orelse nothing,
            .recv = array.recv orelse nothing,
            .dtype = array.dtype,
            .count = if (call.counts == null) array.count * built.roles.parts() else built.count,
        };
        return .{
            .descriptor = built.descriptor,
            .arrays = moved,
            .residual = call.residual,
            .elements = if (call.is_even()) null else call.elements(&built.arrays[0]),
            .operation = number_of(member.current.?.number, member.next_id(built.tag)),
            .roles = built.roles,
            .chunk_bytes = settings.chunk_bytes,
            .window_bytes = settings.window_bytes,
        };
    }
};

fn descriptor_of(
    member: *const protocol.Member,
    call: *const Call,
    arrays: []const Array,
    count: u64,
) control.Descriptor {
    const listed = Listed.of(call, arrays);
    return .{
        .kind = call.kind,
        .dtype = arrays[0].dtype,
        .op = call.op,
        .recovery = call.recovery orelse .default(call.kind, call.op),
        .codec = call.codec,
        .plan = call.plan,
        .uneven = call.exchanged != null,
        .count = if (call.exchanged == null) count else 0,
        .arrays = if (arrays.len > 1) @intCast(arrays.len) else 0,
        .counts = if (listed) |items|
            outline_hash(items, call.form, &.{})
        else
            call.form,
        .outline = if (listed) |items| items.sums().outline else .{},
        .root = if (call.kind.has_root()) member.current.?.ids[call.root_rank] else .none,
        .rules = call.rules,
        .safe_points = member.safe_points,
    };
}

/// The tag whose sequence numbers the operation of this call.
pub fn tag_of(member: *const protocol.Member, call: *const Call) CallError!u64 {
    switch (call.purpose) {
        .data => {},
        .safe_point => return limits.admit_tag,
        .pending => return limits.pending_tag,
    }
    if (call.kind != .send_recv) {
        if (call.tag >= limits.pair_tags_first) return error.TagReserved;
        return call.tag;
    }
    if (call.tag >= limits.pair_user_tags) return error.TagTooLarge;
    const epoch = member.current orelse return error.NotAdmitted;
    if (call.partner_rank >= epoch.world_size()) return error.PartnerOutOfRange;
    if (call.partner_rank == epoch.rank) return error.PartnerIsSelf;
    return call.pair(epoch.rank).tag(call.tag);
}

/// The most ranks of an all_to_all. It needs a chunk for each pair of ranks, and uneven shards go
/// straight from rank to rank.
pub fn all_to_all_ranks_max(uneven: bool) u32 {
    return if (uneven) collective.direct_members_max else std.math.sqrt(limits.chunks_max);
}

fn roles_of(epoch: anytype, call: *const Call) collective.Roles {
    return .{
        .kind = call.kind,
        .world_size = epoch.world_size(),
        .rank = epoch.rank,
        .root = @intCast(call.root_rank),
        .pair = if (call.kind == .send_recv) call.pair(epoch.rank) else .{ .src = 0, .dst = 0 },
    };
}

/// Elements of all arrays together. Fails if there are too many, or if counts do not fit the epoch.
fn count_of(
    call: *const Call,
    roles: *const collective.Roles,
    arrays: []const Array,
) CallError!u64 {
    if (call.counts) |counts| try check_counts(counts, roles);
    if (call.exchanged) |*exchanged| {
        try check_counts(exchanged.send, roles);
        try check_counts(exchanged.recv, roles);
        if (exchanged.send[roles.rank] != exchanged.recv[roles.rank])
            return error.OwnCountsDiffer;
    }
    assert(call.counts == null or (call.kind != .all_to_all and arrays.len == 1));
    assert(call.exchanged == null or (call.kind == .all_to_all and arrays.len == 1));
    const ranks_max = all_to_all_ranks_max(call.exchanged != null);
    if (call.kind == .all_to_all and roles.world_size > ranks_max) return error.TooManyRanks;
    if (arrays.len * roles.parts() > limits.chunks_max) return error.TooManyArrays;
    var total: u64 = 0;
    for (arrays) |*array| total +|= call.elements(array).total(roles);
    if (total > limits.elements_max) return error.TooManyElements;
    return total;
}

fn check_counts(counts: []const u64, roles: *const collective.Roles) CallError!void {
    if (counts.len != roles.world_size) return error.CountsOfAnotherWorld;
}

/// The memory that a call reads and writes, listed array by array.
fn uses_of(
    gpa: Allocator,
    call: *const Call,
    roles: *const collective.Roles,
    arrays: []const Array,
    count: u64,
) CallError!Uses {
    var uses: Uses = .{};
    errdefer uses.deinit(gpa);
    try uses.reserve(gpa, 3 * arrays.len + 2);
    var before: Span = .{};
    var after: Span = .{};
    if (call.residual) |residual| {
        const bytes: usize = @intCast(count * @sizeOf(f32));
        before = .{ .start = @intFromPtr(residual.in), .bytes = bytes };
        after = .{ .start = @intFromPtr(residual.out), .bytes = bytes };
        for ([_]Span{ before, after }) |span|
            _ = std.math.add(usize, span.start, span.bytes) catch return error.BeyondMemory;
        if (before.meets(after)) return error.ResidualOverlaps;
    }
    for (arrays) |*array| {
        const elements = call.elements(array);
        const sizes: collective.Sizes = .of(&elements, roles);
        const width = array.dtype.size();
        const send_bytes: usize = @intCast(sizes.send * width);
        const recv_bytes: usize = @intCast(sizes.recv * width);
        if (sizes.send > 0 and array.send == null) return error.SendMissing;
        if (sizes.recv > 0 and array.recv == null) return error.RecvMissing;
        const from: Span = .{ .start = @intFromPtr(array.send), .bytes = send_bytes };
        const to: Span = .{ .start = @intFromPtr(array.recv), .bytes = recv_bytes };
        for ([_]Span{ from, to }) |span|
            _ = std.math.add(usize, span.start, span.bytes) catch return error.BeyondMemory;
        if (after.meets(from) or after.meets(to)) return error.ResidualOverlaps;
        if (before.meets(to)) return error.ResidualInWritten;
        const from_both = from.start +% @as(usize, @intCast(sizes.send_skip * width));
        const to_both = to.start +% @as(usize, @intCast(sizes.recv_skip * width));
        const same = from_both == to_both;
        const is_in_place = same and call.kind != .all_to_all and to.bytes > 0;
        if (!is_in_place and from.meets(to)) return error.BuffersOverlap;
        const only_reads = call.kind == .broadcast and roles.root == roles.rank;
        if (only_reads or !is_in_place) {
            uses.reads(from);
        } else if (from.bytes > to.bytes) {
            // The result overwrites a part of the sent elements; the other parts are only read.
            uses.reads(.{ .start = from.start, .bytes = to.start - from.start });
            uses.reads(.{ .start = to.end(), .bytes = from.end() - to.end() });
        }
        if (!only_reads) uses.writes(to);
    }
    uses.reads(before);
    uses.writes(after);
    uses.sort();
    return uses;
}

/// A number that all members compute alike, and that differs from operation to operation.
fn number_of(epoch: u64, id: control.OpId) u64 {
    const words = [_]u64{ epoch, id.tag, id.sequence };
    return std.hash.Wyhash.hash(0, std.mem.asBytes(&words));
}

/// The list of which other members see only a hash: several arrays, or shards of different sizes.
const Listed = struct {
    arrays: []const Array,
    counts: ?[]const u64,

    fn of(call: *const Call, arrays: []const Array) ?Listed {
        if (arrays.len > 1) return .{ .arrays = arrays, .counts = null };
        const counts = call.counts orelse return null;
        // Equal counts are described as one count.
        if (std.mem.allEqual(u64, counts, counts[0])) return null;
        return .{ .arrays = arrays, .counts = counts };
    }

    pub fn len(listed: Listed) usize {
        return if (listed.counts) |counts| counts.len else listed.arrays.len;
    }

    pub fn at(listed: Listed, index: usize) Item {
        const array = &listed.arrays[if (listed.counts == null) index else 0];
        const count = if (listed.counts) |counts| counts[index] else array.count;
        return .{ .count = count, .dtype = array.dtype };
    }

    fn sums(listed: Listed) Sums {
        var result: Sums = .{};
        for (0..listed.len()) |index| result.add(listed.at(index));
        return result;
    }
};

// ---- which array differs
//
// Two members have called with different arrays or shards: finds the array that differs. A
// descriptor has a hash of all counts and dtypes, and a few sums over them. From the sums and this
// peer's own list follows the array that differs, like a wrong digit from check digits. The hash of
// the list with that change confirms the result. If several arrays differ, none is named, unless
// two arrays have changed places. The hash also covers the form, which says what the arrays are to
// the caller, such as the names of a tree's leaves: if the sums are equal and the hashes are not,
// the forms differ. The upper half of a form describes the shapes. It stays in the upper half of
// the list's hash, so that a difference in shape alone can be recognized.

/// An array of a list of arrays, or one rank's shard.
pub const Item = struct { count: u64, dtype: base.DType };

/// Sums over the items of a list, in some of which an item is multiplied by its number.
pub const Sums = struct {
    outline: Outline = .{},
    number: u32 = 0,

    pub fn add(sums: *Sums, item: Item) void {
        sums.number += 1; // numbers begin with 1, so that the first item counts
        const code = code_of(item.dtype);
        sums.outline.counts_at +%= sums.number *% item.count;
        sums.outline.dtypes +%= code;
        sums.outline.dtypes_at +%= sums.number *% code;
    }
};

fn code_of(dtype: base.DType) u32 {
    return @as(u32, @intFromEnum(dtype)) + 1;
}

/// The hash of a list with `changes` applied. `form`: a hash of what the arrays are to the caller,
/// or 0.
pub fn outline_hash(items: anytype, form: u64, changes: []const Change) u64 {
    var state: std.hash.Wyhash = .init(items.len());
    const named: u32 = @truncate(form);
    if (named != 0) state.update(std.mem.asBytes(&std.mem.nativeToLittle(u32, named)));
    for (0..items.len()) |index| {
        var item: Item = items.at(index);
        for (changes) |*change| if (change.index == index) {
            item = change.item;
        };
        state.update(std.mem.asBytes(&std.mem.nativeToLittle(u64, item.count)));
        state.update(&.{@intFromEnum(item.dtype)});
    }
    return (state.final() ^ shape_of(form)) | 1;
}

fn shape_of(form: u64) u64 {
    return form & ~@as(u64, std.math.maxInt(u32));
}

/// Whether two forms, or two hashes of equal lists, are equal except for the shape half.
fn alike_but_for_shape(one: u64, other: u64) bool {
    return shape_of(one ^ other) == one ^ other;
}

/// Whether a descriptor describes several arrays, or shards of different sizes.
pub fn has_list(descriptor: *const Descriptor) bool {
    return descriptor.outline.dtypes != 0;
}

/// Whether two calls have equal counts and dtypes, and differ only in their forms.
pub fn differ_in_form(one: *const Descriptor, other: *const Descriptor) bool {
    if (one.kind != other.kind or one.uneven or one.arrays != other.arrays) return false;
    if (one.count != other.count or one.counts == other.counts) return false;
    return std.meta.eql(one.outline, other.outline);
}

/// Whether two calls differ only in the shapes of their arrays.
pub fn differ_in_shape(one: *const Descriptor, other: *const Descriptor) bool {
    return differ_in_form(one, other) and alike_but_for_shape(one.counts, other.counts);
}

/// Another member's list has `item` at `index`, where this peer's list has another item.
pub const Change = struct { index: usize, item: Item };

pub const Difference = struct {
    /// This peer called like `peer` of the failure; false: it called like `other` of the failure.
    is_peer: bool,
    own: Item,
    change: Change,
    /// The index of the second item if two items have changed places; null if one item differs.
    swapped: ?usize = null,
};

/// Finds the item in which this peer's call differs from the other call in the failure. `items`:
/// the list of this peer's call. Null: this peer called like neither of the two, or several items
/// differ.
pub fn find_difference(
    items: anytype,
    failure: *const protocol.Failure,
    own: *const Descriptor,
    form: u64,
) ?Difference {
    const first = if (failure.descriptor) |*it| it else return null;
    const second = if (failure.other_descriptor) |*it| it else return null;
    if (first.kind != second.kind or first.arrays != second.arrays) return null;
    for ([_]*const Descriptor{ first, second, own }) |it| if (!has_list(it)) return null;
    const is_peer = own.counts == first.counts;
    if (!is_peer and own.counts != second.counts) return null;
    return find_in(items, form, is_peer, own, if (is_peer) second else first);
}

/// The longest list in which two items that have changed places are searched for.
const swaps_searched_max = 1024;

fn find_in(
    items: anytype,
    form: u64,
    is_peer: bool,
    own: *const Descriptor,
    other: *const Descriptor,
) ?Difference {
    const sums = difference_of(items, own, other) orelse return null;
    if (sums.is_order()) return find_swap(items, form, is_peer, &sums, other.counts);
    var changed: ?Change = null;
    if (sums.count != 0) {
        const index = place_of(sums.counts_at, sums.count, items.len()) orelse return null;
        var item = items.at(index);
        // limits.elements_max bounds both counts
        const count = @as(i64, @intCast(item.count)) + sums.count;
        item.count = std.math.cast(u64, count) orelse return null;
        changed = .{ .index = index, .item = item };
    }
    if (sums.dtypes != 0) {
        const index = place_of(sums.dtypes_at, sums.dtypes, items.len()) orelse return null;
        var change: Change = changed orelse .{ .index = index, .item = items.at(index) };
        if (change.index != index) return null;
        const code = @as(i64, @intFromEnum(change.item.dtype)) + sums.dtypes;
        const number = std.math.cast(u8, code) orelse return null;
        change.item.dtype = std.enums.fromInt(base.DType, number) orelse return null;
        changed = change;
    }
    const change = changed orelse return null;
    // An array of another size also has another shape, and the changed form is unknown here.
    if (!alike_but_for_shape(outline_hash(items, form, &.{change}), other.counts)) return null;
    return .{ .is_peer = is_peer, .own = items.at(change.index), .change = change };
}

/// The sums over the other member's list, minus the sums over this peer's list.
const Delta = struct {
    count: i64,
    counts_at: i64,
    dtypes: i64,
    dtypes_at: i64,

    fn is_order(delta: *const Delta) bool {
        return delta.count == 0 and delta.dtypes == 0;
    }
};

fn difference_of(items: anytype, own: *const Descriptor, other: *const Descriptor) ?Delta {
    var total: u64 = 0;
    for (0..items.len()) |index| total +|= items.at(index).count;
    // A descriptor's count is the total of the list times the number of its parts.
    const parts: i64 = if (total == 0) 1 else @intCast(own.count / total);
    const more = @as(i64, @intCast(other.count)) - @as(i64, @intCast(own.count));
    if (parts == 0 or @rem(more, parts) != 0) return null;
    return .{
        .count = @divExact(more, parts),
        .counts_at = @bitCast(other.outline.counts_at -% own.outline.counts_at),
        .dtypes = @as(i64, other.outline.dtypes) - own.outline.dtypes,
        .dtypes_at = @as(i64, other.outline.dtypes_at) - own.outline.dtypes_at,
    };
}

fn place_of(at: i64, by: i64, count: usize) ?usize {
    if (by == -1 and at == std.math.minInt(i64)) return null;
    if (@rem(at, by) != 0) return null;
    const number = @divTrunc(at, by);
    if (number < 1 or number > count) return null;
    return @intCast(number - 1);
}

fn find_swap(
    items: anytype,
    form: u64,
    is_peer: bool,
    delta: *const Delta,
    counts: u64,
) ?Difference {
    if (items.len() > swaps_searched_max) return null;
    for (0..items.len()) |a| for (a + 1..items.len()) |b| {
        const one, const two = .{ items.at(a), items.at(b) };
        const apart: i64 = @intCast(b - a);
        const fewer = @as(i64, @intCast(one.count)) - @as(i64, @intCast(two.count));
        const moved = apart * fewer;
        const turned = apart * (@as(i64, code_of(one.dtype)) - code_of(two.dtype));
        if (moved != delta.counts_at or turned != delta.dtypes_at) continue;
        const changes = [_]Change{ .{ .index = a, .item = two }, .{ .index = b, .item = one } };
        if (!alike_but_for_shape(outline_hash(items, form, &changes), counts)) continue;
        return .{ .is_peer = is_peer, .own = one, .change = changes[0], .swapped = b };
    };
    return null;
}

// ---- tests

const ListedArrays = struct {
    items: []const Item,

    pub fn len(listed: ListedArrays) usize {
        return listed.items.len;
    }
    pub fn at(listed: ListedArrays, index: usize) Item {
        return listed.items[index];
    }
};

const test_form = 7;

fn described(items: []const Item, parts: u64) Descriptor {
    var sums: Sums = .{};
    var total: u64 = 0;
    for (items) |item| {
        sums.add(item);
        total += item.count;
    }
    return .{
        .kind = .all_reduce,
        .dtype = items[0].dtype,
        .op = .sum,
        .recovery = .restart,
        .count = total * parts,
        .counts = outline_hash(ListedArrays{ .items = items }, test_form, &.{}),
        .arrays = @intCast(items.len),
        .outline = sums.outline,
        .safe_points = 1,
    };
}

fn search_outline(mine: []const Item, theirs: []const Item, parts: u64) ?Difference {
    const own = described(mine, parts);
    return find_in(ListedArrays{ .items = mine }, test_form, true, &own, &described(theirs, parts));
}

test "the one array that differs is found wherever it is, in its count, its dtype or both" {
    const expectEqual = std.testing.expectEqual;
    var prng: base.Prng = .init(1);
    for (0..200) |round| {
        var mine: [40]Item = undefined;
        for (&mine) |*item| item.* = .{
            .count = prng.below(1 << 30),
            .dtype = @enumFromInt(prng.below(12)),
        };
        const used = mine[0 .. 2 + prng.below(38)];
        var theirs = mine;
        const index = prng.below(used.len);
        if (round % 3 != 0) theirs[index].count += 1 + prng.below(1000);
        if (round % 3 != 1) theirs[index].dtype =
            @enumFromInt((@intFromEnum(mine[index].dtype) + 1) % 12);
        const parts = 1 + round % 5;
        const there = search_outline(used, theirs[0..used.len], parts).?;
        try expectEqual(index, there.change.index);
        try expectEqual(theirs[index], there.change.item);
        try expectEqual(mine[index], there.own);
        // as the other member sees the difference
        const back = search_outline(theirs[0..used.len], used, parts).?;
        try expectEqual(index, back.change.index);
        try expectEqual(mine[index], back.change.item);
    }
}

test "two arrays in each other's place are found, and several that differ are not made up" {
    const a: Item = .{ .count = 10, .dtype = .f32 };
    const b: Item = .{ .count = 20, .dtype = .f32 };
    const c: Item = .{ .count = 10, .dtype = .i64 };
    const swapped = search_outline(&.{ a, b, c }, &.{ c, b, a }, 1).?;
    try std.testing.expectEqual(0, swapped.change.index);
    try std.testing.expectEqual(2, swapped.swapped.?);
    // The first and last items differ; the sums look as if only the middle item differed.
    const more: Item = .{ .count = 15, .dtype = .f32 };
    try std.testing.expectEqual(null, search_outline(&.{ a, a, a }, &.{ more, a, more }, 1));
    try std.testing.expectEqual(null, search_outline(&.{ a, b, c }, &.{ b, c, a }, 1));
    try std.testing.expectEqual(null, search_outline(&.{ a, b }, &.{ b, c }, 1));
    // Both items differ; the sums look as if an item behind the end of the list differed.
    const less: Item = .{ .count = 9, .dtype = .f32 };
    const greater: Item = .{ .count = 12, .dtype = .f32 };
    try std.testing.expectEqual(null, search_outline(&.{ a, a }, &.{ less, greater }, 1));
    // Several pairs of neighbours would change the sums equally if they changed places.
    const d: Item = .{ .count = 30, .dtype = .f32 };
    const e: Item = .{ .count = 40, .dtype = .f32 };
    const last = search_outline(&.{ a, b, d, e }, &.{ a, b, e, d }, 1).?;
    try std.testing.expectEqual(2, last.change.index);
    try std.testing.expectEqual(3, last.swapped.?);
}

test "an array of another size is found whatever its shape, and shapes that differ are told" {
    const mine = [_]Item{ .{ .count = 6, .dtype = .f32 }, .{ .count = 8, .dtype = .f32 } };
    var theirs = mine;
    theirs[1].count = 10;
    const own = described(&mine, 1);
    const listed: ListedArrays = .{ .items = &mine };
    for ([_]u64{ test_form, test_form | 5 << 32 }) |form| {
        var other = described(&theirs, 1);
        other.counts = outline_hash(ListedArrays{ .items = &theirs }, form, &.{});
        const there = find_in(listed, test_form, true, &own, &other).?;
        try std.testing.expectEqual(1, there.change.index);
        try std.testing.expectEqual(10, there.change.item.count);
        try std.testing.expect(!differ_in_shape(&own, &other));

        other = described(&mine, 1);
        other.counts = outline_hash(listed, form, &.{});
        try std.testing.expectEqual(form != test_form, differ_in_shape(&own, &other));
        other.counts = outline_hash(listed, form + 1, &.{}); // the names differ as well
        try std.testing.expect(!differ_in_shape(&own, &other));
    }
}

test "calls whose arrays are alike and called otherwise differ in form, and in nothing else" {
    const items: ListedArrays = .{ .items = &.{
        .{ .count = 10, .dtype = .f32 },
        .{ .count = 20, .dtype = .i64 },
    } };
    const named = described(items.items, 1);
    var renamed = named;
    for ([_]u64{ 0, test_form + 1 }) |form| {
        renamed.counts = outline_hash(items, form, &.{});
        try std.testing.expect(differ_in_form(&named, &renamed));
        try std.testing.expectEqual(null, find_in(items, test_form, true, &named, &renamed));
    }
    try std.testing.expect(!differ_in_form(&named, &named));
    // A call of one array has no sums, but may have a form.
    var one = named;
    one.arrays = 0;
    one.outline = .{};
    one.counts = 0;
    var other = one;
    other.counts = test_form;
    try std.testing.expect(differ_in_form(&one, &other));
    try std.testing.expect(!differ_in_shape(&one, &other));
    other.counts = 3 << 32; // rows of 3
    try std.testing.expect(differ_in_shape(&one, &other));
    other.outline = named.outline; // shards of different sizes
    try std.testing.expect(!differ_in_form(&one, &other));
    other = described(&.{ .{ .count = 11, .dtype = .f32 }, .{ .count = 20, .dtype = .i64 } }, 1);
    try std.testing.expect(!differ_in_form(&named, &other));
}

// ---- memory of the caller
//
// The user's memory that an operation reads and writes, and whether two operations conflict in it.
// Lists are sorted by address, so that calls of thousands of arrays are compared in one pass.
// user.zig compares the lists when a call begins.

/// A range of bytes in memory.
pub const Span = struct {
    start: usize = 0,
    bytes: usize = 0,

    pub fn meets(a: Span, b: Span) bool {
        if (a.bytes == 0 or b.bytes == 0) return false;
        return a.start < b.end() and b.start < a.end();
    }

    pub fn end(span: Span) usize {
        return span.start + span.bytes;
    }
};

/// The memory that an operation reads and writes.
pub const Uses = struct {
    items: std.ArrayList(Use) = .empty,

    const Use = struct { span: Span, writes: bool };

    pub fn deinit(uses: *Uses, gpa: Allocator) void {
        uses.items.deinit(gpa);
    }

    pub fn reserve(uses: *Uses, gpa: Allocator, count: usize) Allocator.Error!void {
        try uses.items.ensureTotalCapacity(gpa, count);
    }

    pub fn reads(uses: *Uses, span: Span) void {
        uses.add(span, false);
    }

    pub fn writes(uses: *Uses, span: Span) void {
        uses.add(span, true);
    }

    fn add(uses: *Uses, span: Span, is_written: bool) void {
        if (span.bytes == 0) return;
        uses.items.appendAssumeCapacity(.{ .span = span, .writes = is_written });
    }

    /// Sorts the complete list. Most lists are short, and insertion sort needs no extra stack.
    pub fn sort(uses: *Uses) void {
        const items = uses.items.items;
        if (items.len <= few) std.sort.insertion(Use, items, {}, starts_before) //
        else std.mem.sortUnstable(Use, items, {}, starts_before);
    }

    const few = 8;

    fn starts_before(_: void, a: Use, b: Use) bool {
        return a.span.start < b.span.start;
    }

    /// The highest end of the spans passed so far: of all spans, and of the written spans.
    const Reach = struct {
        any: usize = 0,
        written: usize = 0,

        fn meets(reach: *const Reach, use: *const Use) bool {
            return use.span.start < if (use.writes) reach.any else reach.written;
        }

        fn add(reach: *Reach, use: *const Use) void {
            reach.any = @max(reach.any, use.span.end());
            if (use.writes) reach.written = @max(reach.written, use.span.end());
        }
    };

    /// Whether one list writes memory that the other list reads or writes. Both lists are sorted.
    pub fn clash(a: *const Uses, b: *const Uses) bool {
        const lists = [2][]const Use{ a.items.items, b.items.items };
        var reach: [2]Reach = @splat(.{});
        var at: [2]usize = @splat(0);
        while (at[0] < lists[0].len or at[1] < lists[1].len) {
            const which: usize = if (at[0] == lists[0].len)
                1
            else if (at[1] == lists[1].len)
                0
            else
                @intFromBool(starts_before({}, lists[1][at[1]], lists[0][at[0]]));
            const use = &lists[which][at[which]];
            if (reach[1 - which].meets(use)) return true;
            reach[which].add(use);
            at[which] += 1;
        }
        return false;
    }

    /// Whether the list writes memory that it also reads, or writes memory twice.
    pub fn clashes_itself(uses: *const Uses) bool {
        var reach: Reach = .{};
        for (uses.items.items) |*use| {
            if (reach.meets(use)) return true;
            reach.add(use);
        }
        return false;
    }
};

test "lists clash where one of two spans that meet is written" {
    // Goal: the pass over sorted lists agrees with a comparison of every two spans. Method: random
    // short lists in a small range of addresses.
    const gpa = std.testing.allocator;
    var random: std.Random.DefaultPrng = .init(7);
    const draw = random.random();
    var clashes: [2]u32 = @splat(0);
    for (0..4000) |_| {
        var lists: [2]Uses = @splat(.{});
        defer for (&lists) |*list| list.deinit(gpa);
        for (&lists) |*list| {
            const count = draw.uintLessThan(usize, 4);
            try list.reserve(gpa, count);
            for (0..count) |_| list.add(.{
                .start = 1 + draw.uintLessThan(usize, 40),
                .bytes = draw.uintLessThan(usize, 9),
            }, draw.boolean());
            list.sort();
        }
        var expected = false;
        for (lists[0].items.items) |a| for (lists[1].items.items) |b| {
            if ((a.writes or b.writes) and a.span.meets(b.span)) expected = true;
        };
        try std.testing.expectEqual(expected, lists[0].clash(&lists[1]));
        try std.testing.expectEqual(expected, lists[1].clash(&lists[0]));
        clashes[@intFromBool(expected)] += 1;

        var itself = false;
        const items = lists[0].items.items;
        for (items, 0..) |a, index| for (items[index + 1 ..]) |b| {
            if ((a.writes or b.writes) and a.span.meets(b.span)) itself = true;
        };
        try std.testing.expectEqual(itself, lists[0].clashes_itself());
    }
    for (clashes) |count| try std.testing.expect(count > 400);
}
