//! Partition: how the elements of an operation are cut. A piece is the unit of movement, sent whole
//! or in fragments; a chunk is the unit of recovery, one piece unless the operation is huge. The
//! cut follows from the descriptor and the epoch alone, never from the attempt, so a chunk means
//! the same after a loss (docs/internals/ALGORITHMS.md). No piece has elements of two ranks'
//! shards, or of two arrays of one call.

const std = @import("std");
const base = @import("base");
const limits = base.limits;
const assert = std.debug.assert;

/// Elements of one array that belong to one rank, or to all ranks.
pub const Shard = struct {
    first: u64 = 0,
    elements: u64,
    dtype: base.DType,
    /// The size in bytes of an element as a partial sum on the wire.
    partial_bytes: u8,
    piece_elements: u32 = 0,
    pieces: u64 = 0,
    /// The number of the shard's first element as codecs count: each shard begins with a whole
    /// block.
    coded_first: u64 = 0,
    first_piece: u64 = 0,
    first_chunk: u32 = 0,

    pub fn bytes(shard: *const Shard) usize {
        return @intCast(shard.elements * shard.dtype.size());
    }
};

pub const Partition = struct {
    /// The shards, in the order of their elements; at least one.
    shards: []const Shard,
    count: u64,
    pieces_per_chunk: u32,
    /// Each shard is one chunk, even if it is empty, so that members who know different sizes
    /// number the chunks alike.
    is_uneven: bool,
    pieces: u64,
    chunks: u32,
    /// The size in bytes of all elements as partial sums.
    bytes: u64,
    /// The encoding of pieces on the wire; `none`: pieces are not encoded.
    codec: base.Codec,

    pub const Options = struct {
        /// The caller sets the fields without a default, `init` sets the others. The caller keeps
        /// the list as long as the partition.
        shards: []Shard,
        /// The number of members of the epoch.
        world_size: u32,
        chunk_bytes_max: u32,
        window_bytes: u64,
        codec: base.Codec = .none,
        is_uneven: bool = false,
    };

    pub fn init(options: Options) Partition {
        const shards = options.shards;
        assert(shards.len > 0 and shards.len <= limits.chunks_max);
        var count: u64 = 0;
        var coded: u64 = 0;
        const granule = options.codec.granule();
        var total: u64 = 0;
        for (shards, 0..) |*shard, index| {
            shard.first = count;
            // In an uneven exchange a member does not know all sizes, so each shard has the
            // greatest room.
            shard.coded_first = if (options.is_uneven) index * limits.elements_max else coded;
            count += shard.elements;
            coded += std.mem.alignForward(u64, shard.elements, granule);
            total += shard.elements * shard.partial_bytes;
        }
        assert(count <= limits.elements_max);
        const largest: u64 = @min(options.chunk_bytes_max, limits.frame_payload_bytes_max);
        const smallest: u64 = @min(limits.chunk_bytes_min, largest);
        // A ring is busy if each owner has four chunks; all members share the window.
        const wanted = total / (4 * @as(u64, options.world_size));
        const share = options.window_bytes / (2 * @as(u64, options.world_size));
        // In an uneven exchange a member does not know the total, so no size may follow from it.
        const fitting = if (options.is_uneven) share else @min(wanted, share);
        const bytes = std.math.clamp(fitting, smallest, largest);

        var pieces: u64 = 0;
        for (shards) |*shard| {
            shard.piece_elements = piece_elements_of(bytes, shard.partial_bytes, options.codec);
            shard.first_piece = pieces;
            shard.pieces = div_ceil(shard.elements, shard.piece_elements);
            pieces += shard.pieces;
        }
        // Each shard but one may end in a chunk that is not full.
        const per_chunk = if (options.is_uneven)
            std.math.maxInt(u32)
        else
            @max(1, div_ceil(pieces, limits.chunks_max - (shards.len - 1)));
        var chunks: u64 = 0;
        for (shards) |*shard| {
            shard.first_chunk = @intCast(chunks);
            chunks += if (options.is_uneven) 1 else div_ceil(shard.pieces, per_chunk);
        }
        return .{
            .shards = shards,
            .count = count,
            .pieces_per_chunk = @intCast(per_chunk),
            .is_uneven = options.is_uneven,
            .pieces = pieces,
            .bytes = total,
            .codec = options.codec,
            .chunks = @intCast(chunks),
        };
    }

    fn piece_elements_of(bytes: u64, partial_bytes: u8, codec: base.Codec) u32 {
        var elements_of = @max(1, bytes / partial_bytes);
        // A piece has whole cache lines, so it starts aligned if the buffer does.
        if (elements_of > 64) elements_of -= elements_of % 64;
        // A piece has whole blocks, so no block is cut in two.
        if (codec.kind != .none)
            elements_of = std.mem.alignForward(u64, elements_of, codec.granule());
        return @intCast(elements_of);
    }

    // The functions below run several times for each frame, so they turn safety checks off, except
    // for one assertion each. This assertion and `init` prove that no check can fail. The first
    // shard begins at 0, so there is a last shard that begins at the piece (chunk) or before it.
    // The last such shard is not empty, because an empty shard begins where its successor does. The
    // next shard begins behind the piece, or there is none and the number of all pieces is the
    // bound. Therefore the number of the piece within its shard is below the shard's number of
    // pieces (chunks), and the elements before the piece are fewer than the shard's elements: no
    // difference is negative or too large. An uneven shard may have a chunk without pieces, but
    // then has no other chunk, so no piece is before it. All products are below 2^40, the most
    // elements of an operation; the two divisors are at least 1.

    /// The shard of the piece or chunk `at`: the last shard that begins there or before it.
    inline fn shard_at(
        partition: *const Partition,
        comptime field: std.meta.FieldEnum(Shard),
        at: u64,
    ) usize {
        @setRuntimeSafety(false);
        // Invariant of the search: low < high <= shards.len.
        var low: usize = 0;
        var high = partition.shards.len;
        while (high - low > 1) {
            const middle = low + (high - low) / 2;
            if (@field(partition.shards[middle], @tagName(field)) <= at) low = middle //
            else high = middle;
        }
        return low;
    }

    pub fn shard_of_chunk(partition: *const Partition, chunk: u64) usize {
        return partition.shard_at(.first_chunk, chunk);
    }

    pub fn shard_of(partition: *const Partition, piece: u64) usize {
        return partition.shard_at(.first_piece, piece);
    }

    pub fn chunk_of(partition: *const Partition, piece: u64) u32 {
        assert(piece < partition.pieces);
        @setRuntimeSafety(false);
        const shard = &partition.shards[partition.shard_of(piece)];
        const within: u32 = @intCast((piece - shard.first_piece) / partition.pieces_per_chunk);
        return shard.first_chunk + within;
    }

    pub fn first_piece(partition: *const Partition, chunk: u64) u64 {
        if (chunk >= partition.chunks) return partition.pieces;
        const shard = &partition.shards[partition.shard_of_chunk(chunk)];
        return shard.first_piece + (chunk - shard.first_chunk) * partition.pieces_per_chunk;
    }

    pub fn pieces_of(partition: *const Partition, chunk: u32) u32 {
        assert(chunk < partition.chunks);
        @setRuntimeSafety(false);
        const shard = &partition.shards[partition.shard_of_chunk(chunk)];
        const before = @as(u64, chunk - shard.first_chunk) * partition.pieces_per_chunk;
        return @intCast(@min(shard.pieces - before, partition.pieces_per_chunk));
    }

    /// The number of a piece on the wire, the same on all ranks that know its shard.
    pub fn number(partition: *const Partition, piece: u64) u64 {
        if (!partition.is_uneven) return piece;
        const index = partition.shard_of(piece);
        return @as(u64, index) << 32 | (piece - partition.shards[index].first_piece);
    }

    /// The piece with the number `wanted` of a frame; null if there is no such piece.
    pub fn numbered(partition: *const Partition, wanted: u64) ?usize {
        if (!partition.is_uneven)
            return if (wanted < partition.pieces) @intCast(wanted) else null;
        const index: usize = @intCast(wanted >> 32);
        if (index >= partition.shards.len) return null;
        const shard = &partition.shards[index];
        const within = wanted & std.math.maxInt(u32);
        return if (within < shard.pieces) @intCast(shard.first_piece + within) else null;
    }

    /// The first element of a piece; for `pieces`, the number of all elements.
    pub fn offset(partition: *const Partition, piece: u64) u64 {
        if (piece >= partition.pieces) return partition.count;
        const shard = &partition.shards[partition.shard_of(piece)];
        return shard.first + (piece - shard.first_piece) * shard.piece_elements;
    }

    /// The first element of a piece as codecs count: a whole block begins there, and no other piece
    /// has the number.
    pub fn coded_offset(partition: *const Partition, piece: u64) u64 {
        const shard = &partition.shards[partition.shard_of(piece)];
        return shard.coded_first + (piece - shard.first_piece) * shard.piece_elements;
    }

    pub fn elements(partition: *const Partition, piece: u64) usize {
        return partition.place_of(piece).elements;
    }

    /// Where a piece is: its shard, the number of elements of the shard before it, and its own
    /// elements.
    pub fn place_of(partition: *const Partition, piece: u64) Place {
        assert(piece < partition.pieces);
        @setRuntimeSafety(false);
        const index = partition.shard_of(piece);
        const shard = &partition.shards[index];
        const before = (piece - shard.first_piece) * shard.piece_elements;
        return .{
            .shard = index,
            .dtype = shard.dtype,
            .before = @intCast(before),
            .elements = @intCast(@min(shard.elements - before, shard.piece_elements)),
        };
    }

    pub const Place = struct {
        shard: usize,
        dtype: base.DType,
        before: usize,
        elements: usize,

        pub fn bytes(place: *const Place) usize {
            return place.elements * place.dtype.size();
        }
    };

    /// The size in bytes of the longest piece as it lies in the caller's memory.
    pub fn piece_bytes_max(partition: *const Partition) usize {
        var most: usize = 0;
        for (partition.shards) |*shard| {
            const whole: usize = @intCast(@min(shard.elements, shard.piece_elements));
            most = @max(most, whole * shard.dtype.size());
        }
        return most;
    }

    /// The first element of a chunk; for `chunks`, the number of all elements.
    pub fn chunk_offset(partition: *const Partition, chunk: u64) u64 {
        return partition.offset(partition.first_piece(chunk));
    }

    /// The size in bytes of the largest partial sum, which is the size of a slot.
    pub fn slot_bytes(partition: *const Partition) usize {
        var most: usize = 0;
        for (partition.shards) |*shard| {
            const bytes = if (partition.codec.kind != .none)
                partition.codec.encoded_bytes(shard.piece_elements)
            else
                @as(usize, shard.piece_elements) * shard.partial_bytes;
            most = @max(most, bytes);
        }
        return most;
    }

    /// The size in bytes of all encoded pieces of a shard.
    pub fn encoded_bytes(partition: *const Partition, shard: *const Shard) usize {
        const whole: usize = @intCast(shard.elements / shard.piece_elements);
        const rest: usize = @intCast(shard.elements % shard.piece_elements);
        const last = if (rest > 0) partition.codec.encoded_bytes(rest) else 0;
        return whole * partition.codec.encoded_bytes(shard.piece_elements) + last;
    }
};

fn div_ceil(a: u64, b: u64) u64 {
    return std.math.divCeil(u64, a, b) catch unreachable;
}

test "pieces tile the shards, and chunks the pieces, within the limits" {
    const counts = [_]u64{ 0, 1, 63, 64, 65, 1000, 4097, 1 << 20, (1 << 26) + 1, 1 << 33, 1 << 40 };
    const kinds = [_]base.codec.Kind{ .none, .int8, .min_max_u8 };
    for (counts) |count| for ([_]u32{ 1, 2, 3, 16, 512 }) |world_size| for (kinds) |kind| {
        const size: Size = .{ .world_size = world_size, .kind = kind };
        var one = [_]Shard{.{ .elements = count, .dtype = .f32, .partial_bytes = 4 }};
        try test_partition(size, &one);
        // Some shards are empty, also the first and the last.
        var many: [7]Shard = undefined;
        for (&many, 0..) |*shard, index| shard.* = .{
            .elements = if (index % 3 == 0) 0 else count / (2 * index),
            .dtype = if (index % 2 == 0) .f32 else .f16,
            .partial_bytes = if (index == 1) 2 else 4,
        };
        try test_partition(size, &many);
    };
}

test "no number behind the last piece of an uneven shard is a piece" {
    var shards = [_]Shard{
        .{ .elements = 1 << 20, .dtype = .f32, .partial_bytes = 4 },
        .{ .elements = 0, .dtype = .f32, .partial_bytes = 4 },
        .{ .elements = 1 << 20, .dtype = .f32, .partial_bytes = 4 },
    };
    const partition = Partition.init(.{
        .shards = &shards,
        .world_size = 2,
        .chunk_bytes_max = 256 * 1024,
        .window_bytes = 16 << 20,
        .is_uneven = true,
    });
    for (0..partition.pieces) |piece|
        try std.testing.expectEqual(piece, partition.numbered(partition.number(piece)));
    for (&shards, 0..) |*shard, index| {
        const behind = @as(u64, index) << 32 | shard.pieces;
        try std.testing.expectEqual(null, partition.numbered(behind));
    }
    try std.testing.expectEqual(null, partition.numbered(@as(u64, shards.len) << 32));
}

const Size = struct { world_size: u32, kind: base.codec.Kind };

fn test_partition(size: Size, shards: []Shard) !void {
    const partition = Partition.init(.{
        .shards = shards,
        .world_size = size.world_size,
        .chunk_bytes_max = 256 * 1024,
        .window_bytes = 16 << 20,
        .codec = .of(size.kind),
    });
    try std.testing.expect(partition.chunks <= limits.chunks_max);
    try std.testing.expect(partition.slot_bytes() <= limits.frame_payload_bytes_max);
    try std.testing.expectEqual(partition.count, partition.offset(partition.pieces));
    try std.testing.expectEqual(partition.count, partition.chunk_offset(partition.chunks));
    var count: u64 = 0;
    for (shards, 0..) |*shard, index| {
        try std.testing.expectEqual(count, shard.first);
        count += shard.elements;
        if (shard.elements == 0) continue;
        try std.testing.expectEqual(count - shard.elements, partition.offset(shard.first_piece));
        const end = if (index + 1 < shards.len) shards[index + 1] else Shard{
            .elements = 0,
            .dtype = .f32,
            .partial_bytes = 4,
            .first_piece = partition.pieces,
            .first_chunk = partition.chunks,
        };
        try std.testing.expect(end.first_piece > shard.first_piece);
        const last = end.first_chunk - 1;
        try std.testing.expectEqual(index, partition.shard_of_chunk(shard.first_chunk));
        try std.testing.expectEqual(index, partition.shard_of_chunk(last));
        try std.testing.expectEqual(last, partition.chunk_of(end.first_piece - 1));
        try std.testing.expectEqual(shard.first_chunk, partition.chunk_of(shard.first_piece));
        try std.testing.expect(partition.elements(end.first_piece - 1) > 0);
        try std.testing.expect(partition.pieces_of(last) > 0);
        const granule = partition.codec.granule();
        try std.testing.expectEqual(0, partition.coded_offset(end.first_piece - 1) % granule);
        if (index + 1 < shards.len and end.elements > 0) try std.testing.expect(
            partition.coded_offset(end.first_piece) >= shard.coded_first + shard.elements,
        );
        if (size.kind != .none and end.first_piece - shard.first_piece > 1) {
            const first = partition.elements(shard.first_piece);
            try std.testing.expectEqual(0, first % partition.codec.granule());
        }
    }
    try std.testing.expectEqual(count, partition.count);
}
