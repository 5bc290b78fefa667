//! Sparse pieces: of each chunk of an array the elements of greatest magnitude, with their places,
//! as 2-bit codes or as they are; for SparseLoCo (arXiv 2508.15706), whose pieces are gathered by
//! all and added up. The same code for every CPU level; the kernel top_k chooses the elements.
//!
//! A piece has, chunk by chunk:
//!
//! - two magnitudes, bf16, where codes have 2 bits: the smaller and the greater one;
//! - places: 12 bits each, ascending, the first in the low bits; not there where all are kept;
//! - values: codes of 2 bits (bit 0 says that the greater magnitude is meant, bit 1 that the value
//!   is negative), or f32.
//!
//! Kept elements whose magnitude is above the mean of the kept magnitudes get the greater code; a
//! code stands for the mean of the magnitudes that have it, as the bins of the paper do. Sums are
//! in f64 in the order of the places, rounded once.

const std = @import("std");
const base = @import("base");
const kernels = @import("root.zig");
const scalar = @import("scalar.zig");
const assert = std.debug.assert;

const chunk_max = kernels.top_k_chunk_max;

/// The rule by which a piece keeps elements.
pub const Sparse = struct {
    /// Elements of a chunk; the last one of an array has what is left.
    chunk: u16 = chunk_max,
    /// Elements kept of each chunk, or all of a shorter one.
    kept: u16,
    values: enum { codes, floats } = .codes,

    /// Null if it can be used, else what is wrong.
    pub fn problem(sparse: Sparse) ?[]const u8 {
        if (sparse.chunk > chunk_max) return "a chunk has 1 to 4096 elements";
        if (sparse.kept == 0 or sparse.kept > sparse.chunk)
            return "of each chunk at least one element is kept, and at most all";
        return null;
    }

    /// Bytes of the piece of an array of so many elements.
    pub fn bytes(sparse: Sparse, count: usize) usize {
        const whole = count / sparse.chunk;
        return whole * sparse.chunk_bytes(sparse.chunk) + sparse.chunk_bytes(count % sparse.chunk);
    }

    fn chunk_bytes(sparse: Sparse, elements: usize) usize {
        if (elements == 0) return 0;
        const k = sparse.kept_of(elements);
        return sparse.magnitude_bytes() + sparse.place_bytes(elements) + switch (sparse.values) {
            .codes => (k + 3) / 4,
            .floats => 4 * k,
        };
    }

    fn magnitude_bytes(sparse: Sparse) usize {
        return if (sparse.values == .codes) 4 else 0;
    }

    fn place_bytes(sparse: Sparse, elements: usize) usize {
        const k = sparse.kept_of(elements);
        return if (k == elements) 0 else (k * 12 + 7) / 8;
    }

    fn kept_of(sparse: Sparse, elements: usize) usize {
        return @min(sparse.kept, elements);
    }
};

/// The parts of one chunk's piece.
const Parts = struct {
    elements: usize,
    kept: usize,
    magnitudes: []u8,
    places: []u8,
    values: []u8,

    fn place(parts: *const Parts, index: usize) usize {
        if (parts.places.len == 0) return index;
        const bit = index * 12;
        const low: u16 = parts.places[bit / 8];
        const high: u16 = parts.places[bit / 8 + 1];
        const both = low | high << 8;
        return if (bit % 8 == 0) both & 0xfff else both >> 4;
    }

    /// The value of each code; unused where values are floats.
    fn levels(parts: *const Parts) [4]f32 {
        if (parts.magnitudes.len == 0) return @splat(0);
        const small = scalar.load(.bf16, f32, parts.magnitudes.ptr, 0);
        const great = scalar.load(.bf16, f32, parts.magnitudes.ptr, 1);
        return .{ small, great, -small, -great };
    }

    fn value(parts: *const Parts, levels_of: *const [4]f32, index: usize) f32 {
        if (parts.magnitudes.len == 0) return scalar.load(.f32, f32, parts.values.ptr, index);
        const shift: u3 = @intCast(index % 4 * 2);
        return levels_of[parts.values[index / 4] >> shift & 3];
    }
};

/// The chunks of a piece, in their order.
const Chunks = struct {
    sparse: Sparse,
    piece: []u8,
    count: usize,
    first: usize = 0,

    fn next(chunks: *Chunks) ?Parts {
        const left = chunks.count - chunks.first;
        if (left == 0) return null;
        const sparse = chunks.sparse;
        const elements = @min(left, sparse.chunk);
        const all = chunks.piece[0..sparse.chunk_bytes(elements)];
        chunks.piece = chunks.piece[all.len..];
        chunks.first += elements;
        const magnitudes = sparse.magnitude_bytes();
        const places = sparse.place_bytes(elements);
        return .{
            .elements = elements,
            .kept = sparse.kept_of(elements),
            .magnitudes = all[0..magnitudes],
            .places = all[magnitudes..][0..places],
            .values = all[magnitudes + places ..],
        };
    }
};

/// piece := what is kept of `count` f32. `piece` has `sparse.bytes(count)` bytes.
pub fn encode(sparse: Sparse, piece: []u8, input: [*]const u8, count: usize) void {
    assert(sparse.problem() == null and piece.len == sparse.bytes(count));
    var chunks: Chunks = .{ .sparse = sparse, .piece = piece, .count = count };
    var at = input;
    while (chunks.next()) |parts| : (at += parts.elements * 4) {
        var kept: [chunk_max * 4]u8 = undefined;
        if (parts.places.len == 0) {
            @memcpy(kept[0 .. parts.kept * 4], at);
        } else {
            var places: [chunk_max * 3 / 2]u8 = undefined;
            kernels.top_k(&kept, &places, at, parts.elements, parts.kept);
            @memcpy(parts.places, places[0..parts.places.len]);
        }
        switch (sparse.values) {
            .floats => @memcpy(parts.values, kept[0..parts.values.len]),
            .codes => encode_values(&parts, &kept),
        }
    }
}

fn encode_values(parts: *const Parts, kept: [*]const u8) void {
    var total: f64 = 0;
    for (0..parts.kept) |index| total += @abs(scalar.load(.f32, f32, kept, index));
    const mean: f32 = @floatCast(total / @as(f64, @floatFromInt(parts.kept)));
    var sums: [2]f64 = @splat(0);
    var counts: [2]f64 = @splat(0);
    @memset(parts.values, 0);
    for (0..parts.kept) |index| {
        const number = scalar.load(.f32, f32, kept, index);
        const is_great = @abs(number) > mean;
        sums[@intFromBool(is_great)] += @abs(number);
        counts[@intFromBool(is_great)] += 1;
        const code = @as(u8, @intFromBool(is_great)) | @as(u8, @intFromBool(number < 0)) << 1;
        parts.values[index / 4] |= code << @intCast(index % 4 * 2);
    }
    for (sums, counts, 0..) |sum, number, index| {
        const magnitude: f32 = if (number == 0) 0 else @floatCast(sum / number);
        scalar.store(.bf16, f32, parts.magnitudes.ptr, index, magnitude);
    }
}

/// into += scale * what the piece holds, for `count` f32; and weights += scale where it holds
/// something. Nothing is added if the piece names a place that its chunk has not; a remote made it.
pub fn add(
    sparse: Sparse,
    into: [*]u8,
    weights: ?[*]u8,
    piece: []const u8,
    scale: f32,
    count: usize,
) error{PlaceBeyondChunk}!void {
    assert(sparse.problem() == null and piece.len == sparse.bytes(count));
    // Nothing here writes to it.
    const readable = @constCast(piece);
    var checked: Chunks = .{ .sparse = sparse, .piece = readable, .count = count };
    while (checked.next()) |parts| for (0..parts.kept) |index| {
        if (parts.place(index) >= parts.elements) return error.PlaceBeyondChunk;
    };
    var chunks: Chunks = .{ .sparse = sparse, .piece = readable, .count = count };
    var first: usize = 0;
    while (chunks.next()) |parts| : (first += parts.elements) {
        const levels = parts.levels();
        for (0..parts.kept) |index| {
            const place = first + parts.place(index);
            const sum = scalar.load(.f32, f32, into, place) + scale * parts.value(&levels, index);
            scalar.store(.f32, f32, into, place, sum);
            const all = weights orelse continue;
            scalar.store(.f32, f32, all, place, scalar.load(.f32, f32, all, place) + scale);
        }
    }
}

const testing = std.testing;

fn numbers(comptime count: usize, seed: u64) [count]f32 {
    var prng: std.Random.DefaultPrng = .init(seed);
    var list: [count]f32 = undefined;
    for (&list) |*number| number.* = prng.random().floatNorm(f32);
    return list;
}

fn expect_decoded(sparse: Sparse, input: []const f32, wanted: []const f32) !void {
    const piece = try testing.allocator.alloc(u8, sparse.bytes(input.len));
    defer testing.allocator.free(piece);
    encode(sparse, piece, @ptrCast(input.ptr), input.len);
    const sum = try testing.allocator.alloc(f32, input.len);
    defer testing.allocator.free(sum);
    @memset(sum, 0);
    try add(sparse, @ptrCast(sum.ptr), null, piece, 1, input.len);
    try testing.expectEqualSlices(f32, wanted, sum);
}

test "a chunk has 1 to 4096 elements, of which at least one and at most all are kept" {
    for ([_]Sparse{
        .{ .chunk = 4097, .kept = 1 },
        .{ .chunk = 0, .kept = 0 },
        .{ .chunk = 0, .kept = 1 },
        .{ .chunk = 9, .kept = 10 },
        .{ .kept = 0 },
    }) |bad| try testing.expect(bad.problem() != null);
    try testing.expectEqual(null, (Sparse{ .chunk = 9, .kept = 9 }).problem());
}

test "the greatest elements of each chunk are kept, as the mean of those of their code" {
    const input = [_]f32{ 0.1, -4, 0.2, 1, 2, 0, -0.5, 0.25, 3 };
    // The kept ones of the first chunk are -4 and 1, of the second 2 and -0.5, then 3 alone.
    try expect_decoded(.{ .chunk = 4, .kept = 2 }, &input, &.{ 0, -4, 0, 1, 2, 0, -0.5, 0, 3 });
    const four: Sparse = .{ .chunk = 8, .kept = 4 };
    // 4 and 2 are above the mean, 1.875, and 3 is theirs; that of 1 and 0.5 is 0.75.
    try expect_decoded(four, input[0..8], &.{ 0, -3, 0, 0.75, 3, 0, -0.75, 0 });
}

test "equal magnitudes have the smaller code, and the greater one stands for zero" {
    const input = [_]f32{ 2, -2 };
    var piece: [5]u8 = undefined;
    encode(.{ .chunk = 2, .kept = 2 }, &piece, @ptrCast(&input), input.len);
    try testing.expectEqualSlices(u8, &.{ 0, 0x40, 0, 0, 0b1000 }, &piece);
}

test "floats that are all kept are the array" {
    const input = numbers(9000, 1);
    try expect_decoded(.{ .kept = chunk_max, .values = .floats }, &input, &input);
    try testing.expectEqual(4 * 9000, (Sparse{ .kept = chunk_max, .values = .floats }).bytes(9000));
}

test "a chunk of 4096 elements, of which 64 are kept, has 116 bytes" {
    const sparse: Sparse = .{ .kept = 64 };
    try testing.expectEqual(116, sparse.bytes(4096));
    try testing.expectEqual(116 + 4 + 2 + 1, sparse.bytes(4097) + 2);
    try testing.expectEqual(0, sparse.bytes(0));
}

test "every place of an odd and an even index is found again" {
    const input = numbers(4096, 2);
    for ([_]u16{ 1, 2, 63, 64, 4095 }) |kept| {
        const sparse: Sparse = .{ .kept = kept, .values = .floats };
        var wanted: [4096]f32 = @splat(0);
        var magnitudes: [4096]f32 = undefined;
        for (&magnitudes, input) |*magnitude, number| magnitude.* = @abs(number);
        std.mem.sortUnstable(f32, &magnitudes, {}, std.sort.desc(f32));
        const least = magnitudes[kept - 1];
        for (&wanted, input) |*to, number| if (@abs(number) >= least) {
            to.* = number;
        };
        try expect_decoded(sparse, &input, &wanted);
    }
}

test "weights count the pieces that hold an element, chunk by chunk" {
    const sparse: Sparse = .{ .chunk = 3, .kept = 1, .values = .floats };
    var sum: [5]f32 = @splat(0);
    var weights: [5]f32 = @splat(0);
    for ([_][5]f32{ .{ 0, 2, 1, 0, 3 }, .{ 4, 0, 0, 1, 5 } }) |input| {
        var piece: [2 * (4 + 2)]u8 = undefined;
        encode(sparse, &piece, @ptrCast(&input), input.len);
        try add(sparse, @ptrCast(&sum), @ptrCast(&weights), &piece, 0.5, input.len);
    }
    try testing.expectEqual([_]f32{ 2, 1, 0, 0, 4 }, sum);
    try testing.expectEqual([_]f32{ 0.5, 0.5, 0, 0, 1 }, weights);
}

test "a forged place is refused, and nothing is added" {
    const sparse: Sparse = .{ .chunk = 100, .kept = 3, .values = .floats };
    const input = numbers(250, 3);
    var piece: [3 * (5 + 12)]u8 = undefined;
    try testing.expectEqual(piece.len, sparse.bytes(input.len));
    encode(sparse, &piece, @ptrCast(&input), input.len);
    piece[17 + 3] = 0xff; // the last place of the second chunk
    piece[17 + 4] = 0xff;
    var sum: [250]f32 = @splat(7);
    const refusal = add(sparse, @ptrCast(&sum), null, &piece, 1, input.len);
    try testing.expectError(error.PlaceBeyondChunk, refusal);
    for (sum) |number| try testing.expectEqual(7, number);
}

test "what is taken away again leaves what was not kept" {
    var left = numbers(5000, 4);
    const input = left;
    const sparse: Sparse = .{ .kept = 128, .values = .floats };
    var piece: [3000]u8 = undefined;
    const made = piece[0..sparse.bytes(left.len)];
    encode(sparse, made, @ptrCast(&left), left.len);
    try add(sparse, @ptrCast(&left), null, made, -1, left.len);
    var zeros: usize = 0;
    for (left, input) |now, before| {
        if (now == 0) zeros += 1 else try testing.expectEqual(before, now);
    }
    try testing.expectEqual(2 * 128, zeros);
}
