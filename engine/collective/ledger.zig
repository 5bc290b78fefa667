//! Ledger: what one operation has and lacks. By chunk: whose it is, whether members keep it or
//! nobody waits for it, in which attempt it was reduced, and the digest of it. By piece: what has
//! come, and what is settled. It outlives attempts, and says when all is there. It knows no
//! address; the order in which things move is ring.zig's, direct.zig's and message.zig's.

const std = @import("std");
const base = @import("base");
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
    /// Each part has a shard of each array.
    arrays: usize,
    /// All contribute to each part; all want each.
    is_from_all: bool,
    is_for_all: bool,

    // Per chunk. The attempt that reduced a settled chunk, 0 while it is not settled; and that of
    // the pieces which have come.
    reduced: []u32,
    arriving: []u32,
    left: []u32,
    digests: []u128,
    settled_count: u32 = 0,
    /// Chunks that are this peer's result in this attempt.
    wanted_count: u32 = 0,
    kept: BitSet,
    /// Chunks that nobody waits for in this attempt: their source or audience is lost.
    voided: BitSet,

    // Per piece.
    /// Those of which this peer is the source, and which are still to be brought to its result.
    own_left: BitSet,
    settled: BitSet,
    final_seen: BitSet,
    /// Final bytes that come in fragments.
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
            // All parts are alike in this.
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

    /// The rank that alone contributes to it; null: all do.
    pub inline fn source(l: *const Ledger, chunk: usize) ?u16 {
        return if (l.is_from_all) null else l.roles.source(l.part_of(chunk));
    }

    /// The rank that alone wants it; null: all do.
    pub inline fn audience(l: *const Ledger, chunk: usize) ?u16 {
        return if (l.is_for_all) null else l.roles.audience(l.part_of(chunk));
    }

    /// The number of its shard, among those of its array.
    fn part_of(l: *const Ledger, chunk: usize) usize {
        return l.partition.shard_of_chunk(chunk) / l.arrays;
    }

    /// Whether it is a part of this peer's result.
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

    /// Whether nothing moves for it but final bytes, if anything.
    pub fn is_done(l: *const Ledger, chunk: usize) bool {
        return l.kept.has(chunk) or l.voided.has(chunk);
    }

    /// Whether nobody else contributes to it. One that comes from another member, and of which
    /// somebody has said that this peer holds it, can be had from nobody.
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

    /// Chunks that are kept stay settled, all others are redone. `positions`: by rank.
    /// `mover.held_by` is told who has a kept chunk.
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
            // Reports of others made it: it may name chunks that this operation does not have.
            const end = @min(range.end, l.partition.chunks);
            for (@min(range.begin, end)..end) |chunk| {
                // Only the audience can hold it; who else says so lies.
                if (l.audience(chunk)) |rank| if (!range.holders.has(rank)) continue;
                // And a source that is there holds what it has, whatever others say.
                if (l.is_not_held_by_source(chunk, positions, &range.holders)) continue;
                l.kept.set_bit(chunk);
                mover.held_by(chunk, &range.holders);
                // If others said so, this peer holds another result than the kept one, and gets
                // that.
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

    /// A chunk that nobody else holds comes from its source. If that is lost, the chunk is void;
    /// without `resume`, so is all of its shard, so that a shard is there or is not.
    fn give_from_source(l: *Ledger, positions: []const u16, mover: anytype) void {
        if (l.is_from_all) return;
        for (0..l.partition.chunks) |chunk| {
            if (l.kept.has(chunk)) continue;
            const rank = l.source(chunk).?;
            if (positions[rank] == nobody) {
                l.voided.set_bit(chunk);
                continue;
            }
            // A carried chunk is held by its audience alone, which may be its source.
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
        if (l.descriptor.kind.carries()) return false; // its audience has it
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

    /// A source has its own chunks of the result from the start; their bytes come later.
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
        // One without pieces has been done in this attempt.
        if (l.arriving[chunk] == 0) l.arriving[chunk] = attempt;
        l.reduced[chunk] = l.arriving[chunk];
        l.settled_count += 1;
    }

    /// Counts a piece as all members have it: as it travels, or as it is if finished alone.
    pub fn add_digest(l: *Ledger, piece: usize, part: u128) void {
        l.digests[l.partition.chunk_of(piece)] +%= part;
    }

    /// This peer has its result.
    pub fn is_complete(l: *const Ledger) bool {
        return l.settled_count == l.wanted_count and l.own_left.count == 0;
    }

    /// Order-independent digest of what all members have; 0 where results are private.
    pub fn digest(l: *const Ledger) u128 {
        if (l.descriptor.kind.is_private()) return 0;
        var total: u128 = 0;
        for (l.digests) |part| total +%= part;
        return total;
    }

    /// Elements that this peer sends to a rank and wants of it, in an uneven all_to_all.
    pub fn exchanged_with(l: *const Ledger, rank: u16) struct { u64, u64 } {
        const shards = l.partition.shards;
        const ranks: usize = l.roles.world_size;
        const to = &shards[l.roles.rank * ranks + rank];
        const from = &shards[rank * ranks + l.roles.rank];
        return .{ to.elements, from.elements };
    }
};
