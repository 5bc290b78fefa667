//! Partition: how the elements of an operation are cut. A piece is what one frame carries; a chunk
//! is the unit of recovery, one piece unless the operation is huge. It follows from the descriptor
//! and the epoch alone, never from the attempt, so a chunk means the same after a loss
//! (docs/ALGORITHMS.md).

const std = @import("std");
const base = @import("base");
const limits = base.limits;
const assert = std.debug.assert;

pub const Partition = struct {
    count: u64,
    /// Bytes of an element of the result, and of a partial sum on the wire.
    element_bytes: u8,
    partial_bytes: u8,
    piece_elements: u32,
    pieces_per_chunk: u32,
    pieces: u64,
    chunks: u32,
    /// What travels is encoded so; with `none` it is not.
    codec: base.Codec,

    pub const Options = struct {
        count: u64,
        element_bytes: usize,
        partial_bytes: usize,
        /// Members of the epoch.
        world_size: u32,
        chunk_bytes_max: u32,
        window_bytes: u64,
        codec: base.Codec = .none,
    };

    pub fn init(options: Options) Partition {
        assert(options.count <= limits.elements_max);
        const largest: u64 = @min(options.chunk_bytes_max, limits.frame_payload_bytes_max);
        const smallest: u64 = @min(limits.chunk_bytes_min, largest);
        const total = options.count * options.partial_bytes;
        // Four chunks for each owner keep a ring busy; more members share the window.
        const wanted = total / (4 * @as(u64, options.world_size));
        const share = options.window_bytes / (2 * @as(u64, options.world_size));
        const bytes = std.math.clamp(@min(wanted, share), smallest, largest);
        var piece_elements = @max(1, bytes / options.partial_bytes);
        // Whole cache lines, so that pieces start aligned when the buffer does.
        if (piece_elements > 64) piece_elements -= piece_elements % 64;
        // And whole blocks, so that a block means the same in whichever piece it comes.
        if (options.codec.kind != .none)
            piece_elements = std.mem.alignForward(u64, piece_elements, options.codec.granule());

        const pieces = std.math.divCeil(u64, options.count, piece_elements) catch unreachable;
        const per_chunk = @max(
            1,
            std.math.divCeil(u64, pieces, limits.chunks_max) catch unreachable,
        );
        return .{
            .count = options.count,
            .element_bytes = @intCast(options.element_bytes),
            .partial_bytes = @intCast(options.partial_bytes),
            .piece_elements = @intCast(piece_elements),
            .pieces_per_chunk = @intCast(per_chunk),
            .pieces = pieces,
            .codec = options.codec,
            .chunks = @intCast(std.math.divCeil(u64, pieces, per_chunk) catch unreachable),
        };
    }

    pub fn chunk_of(partition: *const Partition, piece: u64) u32 {
        return @intCast(piece / partition.pieces_per_chunk);
    }

    pub fn first_piece(partition: *const Partition, chunk: u64) u64 {
        return @min(chunk * partition.pieces_per_chunk, partition.pieces);
    }

    pub fn pieces_of(partition: *const Partition, chunk: u32) u32 {
        const begin = partition.first_piece(chunk);
        return @intCast(partition.first_piece(@as(u64, chunk) + 1) - begin);
    }

    /// First element of a piece; `pieces` gives the count.
    pub fn offset(partition: *const Partition, piece: u64) u64 {
        return @min(piece * partition.piece_elements, partition.count);
    }

    pub fn elements(partition: *const Partition, piece: u64) usize {
        return @intCast(partition.offset(piece + 1) - partition.offset(piece));
    }

    /// First element of a chunk; `chunks` gives the count.
    pub fn chunk_offset(partition: *const Partition, chunk: u64) u64 {
        return partition.offset(partition.first_piece(chunk));
    }

    /// Room for one partial sum.
    pub fn slot_bytes(partition: *const Partition) usize {
        if (partition.codec.kind != .none)
            return partition.codec.encoded_bytes(partition.piece_elements);
        return @as(usize, partition.piece_elements) * partition.partial_bytes;
    }
};

test "pieces tile the elements, and chunks the pieces, within the limits" {
    const counts = [_]u64{ 0, 1, 63, 64, 65, 1000, 4097, 1 << 20, (1 << 26) + 1, 1 << 33, 1 << 40 };
    const kinds = [_]base.codec.Kind{ .none, .int8, .min_max_u8 };
    for (counts) |count| for ([_]u32{ 1, 2, 3, 16, 512 }) |world_size| for (kinds) |kind| {
        const partition = Partition.init(.{
            .count = count,
            .element_bytes = 4,
            .partial_bytes = 4,
            .world_size = world_size,
            .chunk_bytes_max = 256 * 1024,
            .window_bytes = 16 << 20,
            .codec = .of(kind),
        });
        try std.testing.expect(partition.chunks <= limits.chunks_max);
        try std.testing.expect(partition.slot_bytes() <= limits.frame_payload_bytes_max);
        try std.testing.expectEqual(count, partition.offset(partition.pieces));
        try std.testing.expectEqual(count, partition.chunk_offset(partition.chunks));
        if (kind != .none and partition.pieces > 1)
            try std.testing.expectEqual(0, partition.offset(1) % partition.codec.granule());
        if (count == 0) continue;
        try std.testing.expect(partition.elements(partition.pieces - 1) > 0);
        try std.testing.expect(partition.pieces_of(partition.chunks - 1) > 0);
        try std.testing.expectEqual(
            partition.chunks - 1,
            partition.chunk_of(partition.pieces - 1),
        );
    };
}
