//! ring: the schedule in which each position sends to the next. The owner of chunk c is position c
//! mod n, or its audience. Its partial sum starts behind the owner and travels all the way round to
//! it while everybody adds its own part, and is finished there. The final bytes travel on from the
//! owner until every member that wants them has them.
//!
//! The functions that choose the next frame are inlined. They are asked for each frame and each
//! lane that wakes, and mostly have nothing; to pass a frame on by value costs more than that.
//! Every owner has slots of its own at every position, so partial sums of one owner never wait for
//! those of another. Called by executor.zig, which has the memory. Order of the positions:
//! protocol/plan.zig. Steps and bytes: docs/ALGORITHMS.md.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const Executor = @import("executor.zig").Executor;
const Partition = @import("partition.zig").Partition;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const no_slot = Executor.no_slot;

/// The state of an attempt in a ring.
pub const State = struct {
    /// Per chunk.
    successor_holds: BitSet,
    // Per piece.
    partial_seen: BitSet,
    final_ready: BitSet,
    final_cursor: usize = 0,
    /// Sums that go on to the successor.
    ready: std.ArrayList(Partial),
    /// The piece whose sum starts here next.
    origin_next: u64 = 0,

    const Partial = struct { piece: usize, slot: u16 };

    /// `arena` gives all of it back.
    pub fn init(arena: Allocator, partition: *const Partition, slots: usize) Allocator.Error!State {
        const pieces: usize = @intCast(partition.pieces);
        return .{
            .successor_holds = try .in_arena(arena, partition.chunks),
            .partial_seen = try .in_arena(arena, pieces),
            .final_ready = try .in_arena(arena, pieces),
            .ready = try .initCapacity(arena, slots),
        };
    }

    pub fn reset(state: *State) void {
        state.successor_holds.clear();
        state.partial_seen.clear();
        state.final_ready.clear();
        state.final_cursor = 0;
        state.ready.clearRetainingCapacity();
    }
};

// ---- attempts

/// A kept chunk, or one of a broadcast.
pub fn held_by(
    x: *Executor,
    chunk: usize,
    ranks: *const base.Mask,
    order: *const base.Order,
) void {
    if (ranks.has(order.at(x.position + 1))) x.ring.successor_holds.set_bit(chunk);
}

pub fn begin(x: *Executor) void {
    if (!x.descriptor.kind.is_private()) for (0..x.partition.chunks) |chunk| {
        if (!x.kept.has(chunk) or x.chunk_reduced[chunk] == 0) continue;
        if (x.ring.successor_holds.has(chunk)) continue;
        const first: usize = @intCast(x.partition.first_piece(chunk));
        const count = x.partition.pieces_of(@intCast(chunk));
        for (first..first + count) |piece| x.ring.final_ready.set_bit(piece);
    };
    x.ring.origin_next = next_origin(x, 0);
}

// ---- who owns what

pub inline fn owner(x: *const Executor, piece: u64) u16 {
    return chunk_owner(x, x.partition.chunk_of(piece));
}

/// The position that forms its result; the chunk is not void.
pub inline fn chunk_owner(x: *const Executor, chunk: u32) u16 {
    return x.audience_position(chunk) orelse @intCast(chunk % x.members);
}

/// Whether the pieces of a chunk set out from here, to its owner.
pub fn is_origin(x: *const Executor, chunk: u32) bool {
    const source = x.source_position(chunk) orelse
        return chunk_owner(x, chunk) == predecessor(x);
    return source == x.position;
}

/// Whether what the owner of a chunk gets goes on from here: all sums do, what is carried only on
/// its way from its source.
pub fn passes_here(x: *const Executor, chunk: u32) bool {
    const n = x.members;
    const to = chunk_owner(x, chunk);
    const source = x.source_position(chunk) orelse return to != x.position;
    return (x.position + n - source) % n < (to + n - source) % n;
}

/// Whether the final bytes of this chunk come from the predecessor.
pub fn gives(x: *const Executor, chunk: u32) bool {
    if (x.descriptor.kind.is_private()) return false;
    return x.kept.has(chunk) or chunk_owner(x, chunk) != x.position;
}

pub fn predecessor(x: *const Executor) u16 {
    return if (x.position == 0) x.members - 1 else x.position - 1;
}

pub fn successor(x: *const Executor) u16 {
    return if (x.position + 1 == x.members) 0 else x.position + 1;
}

/// The first piece at or after `from` that sets out here.
fn next_origin(x: *const Executor, from: u64) u64 {
    if (!has_partials(x)) return x.partition.pieces;
    var piece = from;
    while (piece < x.partition.pieces) {
        const chunk = x.partition.chunk_of(piece);
        const waits = !x.is_done(chunk) and passes_here(x, chunk);
        if (waits and is_origin(x, chunk)) return piece;
        piece = x.partition.first_piece(@as(u64, chunk) + 1);
    }
    return piece;
}

fn has_partials(x: *const Executor) bool {
    return x.descriptor.kind.reduces() or x.descriptor.kind.carries();
}

// ---- from the predecessor

pub fn place_partial(
    x: *Executor,
    header: *const wire.frame.Header,
    piece: usize,
) Executor.PlaceError!Executor.Place {
    const chunk = x.partition.chunk_of(piece);
    if (!has_partials(x) or x.is_done(chunk)) return error.WrongPhase;
    const class = chunk_owner(x, chunk);
    if (is_origin(x, chunk)) return error.WrongPhase;
    if (class != x.position and !passes_here(x, chunk)) return error.WrongPhase;
    if (x.ring.partial_seen.has(piece)) return error.Twice;
    const place = try x.place_in_slot(header, piece, &x.credits[class]);
    x.ring.partial_seen.set_bit(piece);
    return place;
}

/// A partial sum is there: this peer's part is added, and it goes on or is finished.
pub fn arrived(x: *Executor, piece: usize, slot: u16) void {
    const op = x.descriptor.op;
    const dtype = x.dtype_of(piece);
    const count = x.partition.elements(piece);
    const partial = x.slot(slot);
    if (x.descriptor.kind.carries()) return carried(x, piece, slot);
    const mine = x.own(piece);
    if (owner(x, piece) == x.position) {
        if (x.encodes()) {
            x.reduce_encoded(piece, 1, &.{partial.ptr});
        } else {
            const out = x.overwrite(piece);
            kernels.accumulate_last(op, dtype, out.ptr, partial.ptr, mine, x.members, count);
        }
        x.slot_free(&x.credits[x.position], slot);
        return x.finish(piece, x.attempt);
    }
    if (x.encodes()) {
        const encoding = x.encoding(piece, .contribution);
        if (x.residual_of(piece)) |residual| {
            // Losses are found in the end from the inputs, so these must still be there then.
            const aside = x.aside(piece);
            kernels.accumulate_encode(encoding, aside.ptr, partial.ptr, mine, residual, 1);
            @memcpy(partial[0..aside.len], aside);
        } else kernels.accumulate_encode(encoding, partial.ptr, partial.ptr, mine, null, 1);
    } else kernels.accumulate(op, dtype, partial.ptr, partial.ptr, mine, count);
    x.save_own(piece);
    x.ring.ready.appendAssumeCapacity(.{ .piece = piece, .slot = slot });
}

fn carried(x: *Executor, piece: usize, slot: u16) void {
    if (owner(x, piece) != x.position)
        return x.ring.ready.appendAssumeCapacity(.{ .piece = piece, .slot = slot });
    const out = x.overwrite(piece);
    const bytes = x.slot(slot);
    if (x.encodes()) kernels.decode(x.encoding(piece, .result), out.ptr, bytes.ptr) //
    else @memcpy(out, bytes[0..out.len]);
    x.slot_free(&x.credits[x.position], slot);
    x.finish(piece, x.attempt);
}

pub fn forward_final(x: *Executor, piece: usize) void {
    const chunk = x.partition.chunk_of(piece);
    const stops = if (x.kept.has(chunk))
        x.ring.successor_holds.has(chunk)
    else
        chunk_owner(x, chunk) == successor(x);
    if (!stops) x.ring.final_ready.set_bit(piece);
}

// ---- to the successor

/// Finished bytes first, then sums that hold a slot, then new ones.
pub inline fn next(x: *Executor, is_eager: bool) ?Executor.Out {
    if (!is_eager) if (next_final(x)) |out| return out;
    return next_forward(x) orelse next_own(x);
}

inline fn next_final(x: *Executor) ?Executor.Out {
    const piece = x.ring.final_ready.next(x.ring.final_cursor) orelse return null;
    const out = x.final_out(piece) orelse return null;
    x.ring.final_ready.unset_bit(piece);
    x.ring.final_cursor = piece + 1;
    return out;
}

inline fn next_forward(x: *Executor) ?Executor.Out {
    for (x.ring.ready.items, 0..) |partial, index| {
        const class = owner(x, partial.piece);
        const credit = &x.credits[class];
        if (!credit.has_left()) continue;
        credit.used += 1;
        _ = x.ring.ready.orderedRemove(index);
        return Executor.partial_out(partial.piece, class, .{
            .slot = partial.slot,
            .bytes = x.slot(partial.slot)[0..x.partial_piece_bytes(partial.piece)],
        });
    }
    return null;
}

inline fn next_own(x: *Executor) ?Executor.Out {
    if (x.ring.origin_next >= x.partition.pieces) return null;
    const piece: usize = @intCast(x.ring.origin_next);
    const class = owner(x, piece);
    const credit = &x.credits[class];
    if (!credit.has_left()) return null;
    const contributed = x.contribution(piece) orelse return null;
    credit.used += 1;
    x.ring.origin_next = next_origin(x, piece + 1);
    return Executor.partial_out(piece, class, contributed);
}
