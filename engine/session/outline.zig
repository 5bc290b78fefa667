//! outline: finds the array of a list that differs, when two members have called with other arrays,
//! or with other shards. A descriptor has a hash of all counts and dtypes, and beside it a few sums
//! over them. From the sums and this peer's own list, the one that differs is found, like a wrong
//! digit from check digits. The hash of the list with that change then confirms it. Several that
//! differ are not told apart, except two in each other's place. The hash covers the form as well,
//! which says what the arrays are to the caller, as by the names of a tree's leaves: where sums are
//! equal and hashes are not, forms differ. The upper half of a form is the shape of the arrays. It
//! stays in the upper half of the hash, so that arrays that differ in shape alone can be told.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const Descriptor = wire.control.Descriptor;
const Outline = wire.control.Outline;

/// An array of a list, or the shard of a rank.
pub const Item = struct { count: u64, dtype: base.DType };

pub const Sums = struct {
    outline: Outline = .{},
    number: u32 = 0,

    pub fn add(sums: *Sums, item: Item) void {
        sums.number += 1; // so that the first one counts, too
        const code = code_of(item.dtype);
        sums.outline.counts_at +%= sums.number *% item.count;
        sums.outline.dtypes +%= code;
        sums.outline.dtypes_at +%= sums.number *% code;
    }
};

fn code_of(dtype: base.DType) u32 {
    return @as(u32, @intFromEnum(dtype)) + 1;
}

/// `form`: 0, or a hash of what the arrays are to the caller.
pub fn hash(items: anytype, form: u64, changes: []const Change) u64 {
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

/// Whether two forms, or hashes of the same items, differ in the shape at most.
fn alike_but_for_shape(one: u64, other: u64) bool {
    return shape_of(one ^ other) == one ^ other;
}

/// Whether it stands for several arrays, or for shards that differ.
pub fn has_list(descriptor: *const Descriptor) bool {
    return descriptor.outline.dtypes != 0;
}

/// Whether the arrays of two calls that differ are alike, and only what they are to their callers
/// is not.
pub fn differ_in_form(one: *const Descriptor, other: *const Descriptor) bool {
    if (one.kind != other.kind or one.uneven or one.arrays != other.arrays) return false;
    if (one.count != other.count or one.counts == other.counts) return false;
    return std.meta.eql(one.outline, other.outline);
}

/// Whether the shape is all that differs between two calls that differ in form.
pub fn differ_in_shape(one: *const Descriptor, other: *const Descriptor) bool {
    return differ_in_form(one, other) and alike_but_for_shape(one.counts, other.counts);
}

/// The other one has this instead.
pub const Change = struct { index: usize, item: Item };

pub const Difference = struct {
    /// Whether this peer has called as `peer` of the failure did, or as `other`.
    is_peer: bool,
    own: Item,
    change: Change,
    /// Two are in each other's place: the second of them.
    swapped: ?usize = null,
};

/// `items`: of this peer's call. Null: it has called something else than both, or more than one
/// differ.
pub fn find(
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

/// Lists that are longer are not searched for two in each other's place.
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
        // Both are bounded (limits.elements_max).
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
    // An array of another size has another shape as well, which this peer does not know.
    if (!alike_but_for_shape(hash(items, form, &.{change}), other.counts)) return null;
    return .{ .is_peer = is_peer, .own = items.at(change.index), .change = change };
}

/// The sums of the other one, less those of this one.
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
    // The counts of descriptors are those of all parts together.
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
        if (!alike_but_for_shape(hash(items, form, &changes), counts)) continue;
        return .{ .is_peer = is_peer, .own = one, .change = changes[0], .swapped = b };
    };
    return null;
}

// ---- tests

const Listed = struct {
    items: []const Item,

    pub fn len(listed: Listed) usize {
        return listed.items.len;
    }
    pub fn at(listed: Listed, index: usize) Item {
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
        .counts = hash(Listed{ .items = items }, test_form, &.{}),
        .arrays = @intCast(items.len),
        .outline = sums.outline,
        .safe_points = 1,
    };
}

fn search(mine: []const Item, theirs: []const Item, parts: u64) ?Difference {
    const own = described(mine, parts);
    return find_in(Listed{ .items = mine }, test_form, true, &own, &described(theirs, parts));
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
        const there = search(used, theirs[0..used.len], parts).?;
        try expectEqual(index, there.change.index);
        try expectEqual(theirs[index], there.change.item);
        try expectEqual(mine[index], there.own);
        const back = search(theirs[0..used.len], used, parts).?; // seen by the other one
        try expectEqual(index, back.change.index);
        try expectEqual(mine[index], back.change.item);
    }
}

test "two arrays in each other's place are found, and several that differ are not made up" {
    const a: Item = .{ .count = 10, .dtype = .f32 };
    const b: Item = .{ .count = 20, .dtype = .f32 };
    const c: Item = .{ .count = 10, .dtype = .i64 };
    const swapped = search(&.{ a, b, c }, &.{ c, b, a }, 1).?;
    try std.testing.expectEqual(0, swapped.change.index);
    try std.testing.expectEqual(2, swapped.swapped.?);
    // Two that differ by as much as if it were the one between them.
    const more: Item = .{ .count = 15, .dtype = .f32 };
    try std.testing.expectEqual(null, search(&.{ a, a, a }, &.{ more, a, more }, 1));
    try std.testing.expectEqual(null, search(&.{ a, b, c }, &.{ b, c, a }, 1));
    try std.testing.expectEqual(null, search(&.{ a, b }, &.{ b, c }, 1));
    // Two that differ by as much as one that would be behind the end of the list.
    const less: Item = .{ .count = 9, .dtype = .f32 };
    const greater: Item = .{ .count = 12, .dtype = .f32 };
    try std.testing.expectEqual(null, search(&.{ a, a }, &.{ less, greater }, 1));
    // Other neighbours would move the sums by as much as those that have changed places.
    const d: Item = .{ .count = 30, .dtype = .f32 };
    const e: Item = .{ .count = 40, .dtype = .f32 };
    const last = search(&.{ a, b, d, e }, &.{ a, b, e, d }, 1).?;
    try std.testing.expectEqual(2, last.change.index);
    try std.testing.expectEqual(3, last.swapped.?);
}

test "an array of another size is found whatever its shape, and shapes that differ are told" {
    const mine = [_]Item{ .{ .count = 6, .dtype = .f32 }, .{ .count = 8, .dtype = .f32 } };
    var theirs = mine;
    theirs[1].count = 10;
    const own = described(&mine, 1);
    const listed: Listed = .{ .items = &mine };
    for ([_]u64{ test_form, test_form | 5 << 32 }) |form| {
        var other = described(&theirs, 1);
        other.counts = hash(Listed{ .items = &theirs }, form, &.{});
        const there = find_in(listed, test_form, true, &own, &other).?;
        try std.testing.expectEqual(1, there.change.index);
        try std.testing.expectEqual(10, there.change.item.count);
        try std.testing.expect(!differ_in_shape(&own, &other));

        other = described(&mine, 1);
        other.counts = hash(listed, form, &.{});
        try std.testing.expectEqual(form != test_form, differ_in_shape(&own, &other));
        other.counts = hash(listed, form + 1, &.{}); // in name as well
        try std.testing.expect(!differ_in_shape(&own, &other));
    }
}

test "calls whose arrays are alike and called otherwise differ in form, and in nothing else" {
    const items: Listed = .{ .items = &.{
        .{ .count = 10, .dtype = .f32 },
        .{ .count = 20, .dtype = .i64 },
    } };
    const named = described(items.items, 1);
    var renamed = named;
    for ([_]u64{ 0, test_form + 1 }) |form| {
        renamed.counts = hash(items, form, &.{});
        try std.testing.expect(differ_in_form(&named, &renamed));
        try std.testing.expectEqual(null, find_in(items, test_form, true, &named, &renamed));
    }
    try std.testing.expect(!differ_in_form(&named, &named));
    // One array has no sums, and may have a form as well.
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
