//! Ledger: the chunks and pieces that one operation has and lacks. By chunk: source and audience,
//! whether members keep it or it is void, the attempt that reduced it, and its digest. By piece:
//! whether the piece has come, and whether it is settled. The ledger outlives attempts, and tells
//! when the result is complete. The ledger knows no address; ring.zig, direct.zig and message.zig
//! choose the order in which pieces move.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const job_file = @import("job.zig");
const Assembly = @import("assembly.zig").Assembly;
const Partition = @import("partition.zig").Partition;
const Roles = @import("roles.zig").Roles;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const Descriptor = wire.control.Descriptor;
const KeptRange = wire.control.KeptRange;
const nobody = job_file.nobody;

pub const Ledger = struct {
    descriptor: Descriptor,
    partition: Partition,
    roles: Roles,
    /// The number of arrays of the call; each part (roles.zig) has a shard of each array.
    arrays: usize,
    /// All ranks contribute to each part (`is_from_all`); all ranks want each part (`is_for_all`).
    is_from_all: bool,
    is_for_all: bool,

    // By chunk: the attempt that reduced the chunk, 0 while it is not settled (`reduced`); the
    // attempt that reduced the pieces which have come (`arriving`); the number of pieces not yet
    // settled (`left`).
    reduced: []u32,
    arriving: []u32,
    left: []u32,
    digests: []u128,
    settled_count: u32 = 0,
    /// The number of chunks of this peer's result in this attempt.
    wanted_count: u32 = 0,
    kept: BitSet,
    /// Chunks that no rank waits for in this attempt, because their source or audience is lost.
    voided: BitSet,

    // By piece.
    /// Pieces of which this peer is the source, and which are still to be copied to its result.
    own_left: BitSet,
    settled: BitSet,
    final_seen: BitSet,
    /// The fragments of each piece's final bytes that have come.
    assemblies: []Assembly,

    pub fn init(
        arena: Allocator,
        descriptor: *const Descriptor,
        partition: Partition,
        roles: Roles,
        arrays: usize,
    ) Allocator.Error!Ledger {
        const chunks = partition.chunks;
        const pieces: usize = @intCast(partition.pieces);
        var ledger: Ledger = .{
            .descriptor = descriptor.*,
            .partition = partition,
            .roles = roles,
            .arrays = arrays,
            // Either all parts have a source or none has; the same holds for audiences.
            .is_from_all = roles.source(0) == null,
            .is_for_all = roles.audience(0) == null,
            .reduced = try base.unfilled.list(arena, u32, chunks),
            .arriving = try base.unfilled.list(arena, u32, chunks),
            .left = try base.unfilled.list(arena, u32, chunks),
            .digests = try base.unfilled.list(arena, u128, chunks),
            .kept = try .in_arena(arena, chunks),
            .voided = try .in_arena(arena, chunks),
            .own_left = try .in_arena(arena, pieces),
            .settled = try .in_arena(arena, pieces),
            .final_seen = try .in_arena(arena, pieces),
            .assemblies = try base.unfilled.list(arena, Assembly, pieces),
        };
        for (0..chunks) |chunk| ledger.reset(@intCast(chunk));
        return ledger;
    }

    // ---- whose a chunk is

    /// The rank that alone contributes to a chunk; null: all ranks do.
    pub inline fn source(l: *const Ledger, chunk: usize) ?u16 {
        return if (l.is_from_all) null else l.roles.source(l.part_of(chunk));
    }

    /// The rank that alone wants a chunk; null: all ranks do.
    pub inline fn audience(l: *const Ledger, chunk: usize) ?u16 {
        return if (l.is_for_all) null else l.roles.audience(l.part_of(chunk));
    }

    /// The part of a chunk (roles.zig): the number of its shard among the shards of its array.
    fn part_of(l: *const Ledger, chunk: usize) usize {
        return l.partition.shard_of_chunk(chunk) / l.arrays;
    }

    /// Whether a chunk is a part of this peer's result in this attempt.
    pub fn wants(l: *const Ledger, chunk: usize) bool {
        if (l.voided.has(chunk)) return false;
        const rank = l.audience(chunk) orelse return true;
        return rank == l.roles.rank;
    }

    /// Whether a chunk is a part of what this peer receives, void or not.
    pub fn has_target(l: *const Ledger, chunk: u32) bool {
        return l.roles.is_received(l.part_of(chunk));
    }

    pub fn has_elements(l: *const Ledger, chunk: u32) bool {
        return l.has_target(chunk) and l.partition.pieces_of(chunk) > 0;
    }

    /// Whether a chunk is kept or void, so that nothing but final bytes moves for it, if anything.
    pub fn is_done(l: *const Ledger, chunk: usize) bool {
        return l.kept.has(chunk) or l.voided.has(chunk);
    }

    /// Whether this peer wants a piece and no other rank is its source. If another rank is the
    /// source, and a false report names this peer as a holder, the piece can be had from nobody.
    pub fn is_own_result(l: *const Ledger, piece: usize) bool {
        const chunk = l.partition.chunk_of(piece);
        return l.wants(chunk) and (l.source(chunk) orelse l.roles.rank) == l.roles.rank;
    }

    pub fn encodes(l: *const Ledger) bool {
        return l.partition.codec.kind != .none;
    }

    pub fn piece_count(l: *const Ledger) usize {
        return @intCast(l.partition.pieces);
    }

    pub const Pieces = struct { first: usize, end: usize };

    pub fn pieces_of(l: *const Ledger, chunk: u32) Pieces {
        const first: usize = @intCast(l.partition.first_piece(chunk));
        return .{ .first = first, .end = first + l.partition.pieces_of(chunk) };
    }

    // ---- attempts

    /// Begins an attempt: kept chunks stay settled, all others are redone. `positions` has each
    /// rank's position, or `nobody`. `mover.held_by` is told which members hold a kept chunk.
    pub fn begin(
        l: *Ledger,
        attempt: u32,
        positions: []const u16,
        kept: []const KeptRange,
        mover: anytype,
    ) void {
        l.kept.clear();
        l.voided.clear();
        for (kept) |range| {
            // Reports of members made the range, so it may name chunks that this operation does not
            // have.
            const end = @min(range.end, l.partition.chunks);
            for (@min(range.begin, end)..end) |chunk| {
                // Only the audience can hold a chunk; any other rank that is reported as its holder
                // is not.
                if (l.audience(chunk)) |rank| if (!range.holders.has(rank)) continue;
                // A source that is alive holds its chunk, whatever the reports say.
                if (l.is_not_held_by_source(chunk, positions, &range.holders)) continue;
                l.kept.set_bit(chunk);
                mover.held_by(chunk, &range.holders);
                // If only other members hold the chunk, this peer's own result of it differs from
                // theirs: the peer drops its own and gets the kept one.
                if (!range.holders.has(l.roles.rank)) l.discard(@intCast(chunk));
            }
        }
        l.give_from_source(positions, mover);
        l.wanted_count = 0;
        for (0..l.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (l.audience(chunk)) |rank| if (positions[rank] == nobody) l.voided.set_bit(chunk);
            if (!l.kept.has(chunk) or l.reduced[chunk] == 0) l.discard(chunk);
            if (!l.wants(chunk)) continue;
            l.wanted_count += 1;
            if (l.left[chunk] == 0 and l.reduced[chunk] == 0) l.settle_chunk(chunk, attempt);
        }
        @memset(l.assemblies, .{});
        l.final_seen.clear();
        for (l.final_seen.words, l.settled.words) |*seen, settled| seen.* = settled;
        l.final_seen.count = l.settled.count;
    }

    /// A chunk that no other member holds comes from its source. If the source is lost, the chunk
    /// is void; without `resume`, all chunks of its shard are void too, so that a shard is complete
    /// or void.
    fn give_from_source(l: *Ledger, positions: []const u16, mover: anytype) void {
        if (l.is_from_all) return;
        for (0..l.partition.chunks) |chunk| {
            if (l.kept.has(chunk)) continue;
            const rank = l.source(chunk).?;
            if (positions[rank] == nobody) {
                l.voided.set_bit(chunk);
                continue;
            }
            // A carried chunk is held by its audience alone, so from the start only if that is its
            // source.
            if (l.descriptor.kind.carries() and l.audience(chunk).? != rank) continue;
            var holder: base.Mask = .empty;
            holder.set(rank);
            l.kept.set_bit(chunk);
            mover.held_by(chunk, &holder);
        }
        if (l.voided.count == 0 or l.descriptor.recovery == .resume_chunks) return;
        l.give_up_shards();
    }

    fn give_up_shards(l: *Ledger) void {
        const shards = l.partition.shards;
        var index: usize = 0;
        while (index < shards.len) : (index += l.arrays) {
            const first = shards[index].first_chunk;
            const next = index + l.arrays;
            const end = if (next < shards.len) shards[next].first_chunk else l.partition.chunks;
            const is_void = for (first..end) |chunk| {
                if (l.voided.has(chunk)) break true;
            } else false;
            if (is_void) for (first..end) |chunk| {
                l.kept.unset_bit(chunk);
                l.voided.set_bit(chunk);
            };
        }
    }

    fn is_not_held_by_source(
        l: *const Ledger,
        chunk: usize,
        positions: []const u16,
        holders: *const base.Mask,
    ) bool {
        if (l.descriptor.kind.carries()) return false; // only its audience can hold a carried chunk
        const rank = l.source(chunk) orelse return false;
        return positions[rank] != nobody and !holders.has(rank);
    }

    fn reset(l: *Ledger, chunk: u32) void {
        l.reduced[chunk] = 0;
        l.arriving[chunk] = 0;
        l.left[chunk] = l.partition.pieces_of(chunk);
        l.digests[chunk] = 0;
    }

    fn discard(l: *Ledger, chunk: u32) void {
        if (l.reduced[chunk] != 0) l.settled_count -= 1;
        l.reset(chunk);
        const pieces = l.pieces_of(chunk);
        for (pieces.first..pieces.end) |piece| l.settled.unset_bit(piece);
    }

    // ---- what comes

    /// Settles the pieces of this peer's result of which it is the source; their bytes are copied
    /// later.
    pub fn settle_own(l: *Ledger) void {
        if (l.is_from_all) return;
        for (0..l.piece_count()) |piece| {
            const chunk = l.partition.chunk_of(piece);
            if (l.source(chunk).? != l.roles.rank or !l.wants(chunk)) continue;
            l.own_left.set_bit(piece);
            l.settle(piece, 1, 1);
        }
    }

    pub fn settle(l: *Ledger, piece: usize, reduced_attempt: u32, attempt: u32) void {
        const chunk = l.partition.chunk_of(piece);
        l.settled.set_bit(piece);
        l.final_seen.set_bit(piece);
        l.arriving[chunk] = reduced_attempt;
        l.left[chunk] -= 1;
        if (l.left[chunk] == 0) l.settle_chunk(chunk, attempt);
    }

    fn settle_chunk(l: *Ledger, chunk: u32, attempt: u32) void {
        // A chunk without pieces counts as reduced in this attempt.
        if (l.arriving[chunk] == 0) l.arriving[chunk] = attempt;
        l.reduced[chunk] = l.arriving[chunk];
        l.settled_count += 1;
    }

    /// Adds a piece to the digest of its chunk: the bytes as they travel, or the result in a world
    /// of one.
    pub fn add_digest(l: *Ledger, piece: usize, part: u128) void {
        l.digests[l.partition.chunk_of(piece)] +%= part;
    }

    /// Whether this peer has its whole result.
    pub fn is_complete(l: *const Ledger) bool {
        return l.settled_count == l.wanted_count and l.own_left.count == 0;
    }

    /// The digest of the result that all members have, whatever the order of pieces; 0 for private
    /// results.
    pub fn digest(l: *const Ledger) u128 {
        if (l.descriptor.kind.is_private()) return 0;
        var total: u128 = 0;
        for (l.digests) |part| total +%= part;
        return total;
    }

    /// The number of elements that this peer sends to a rank, and wants from it, in an uneven
    /// all_to_all.
    pub fn exchanged_with(l: *const Ledger, rank: u16) struct { u64, u64 } {
        const shards = l.partition.shards;
        const ranks: usize = l.roles.world_size;
        const to = &shards[l.roles.rank * ranks + rank];
        const from = &shards[rank * ranks + l.roles.rank];
        return .{ to.elements, from.elements };
    }

    /// The bytes that the operation moves between the members `alive`; parts of lost members do not
    /// move. `widens`: partial sums travel in their own width.
    pub fn volume(ledger: *const Ledger, alive: plan.matrix.Side, widens: bool) plan.Volume {
        var found: plan.Volume = .{};
        const partition = &ledger.partition;
        const roles = &ledger.roles;
        const arrays = partition.shards.len / roles.parts();
        var results: f64 = 0;
        var sums: f64 = 0;
        for (partition.shards, 0..) |*shard, index| {
            const encoded = ledger.encodes();
            const bytes: f64 =
                @floatFromInt(if (encoded) partition.encoded_bytes(shard) else shard.bytes());
            const part = index / arrays;
            found.add(bytes, roles.source(part), roles.audience(part), alive);
            results += bytes;
            const sum_bytes: f64 = @floatFromInt(shard.elements * shard.partial_bytes);
            sums += if (widens and !encoded) sum_bytes else bytes;
        }
        if (results > 0) found.widening = sums / results;
        return found;
    }
};
