//! ring: the schedule in which each position sends to the next. The owner of chunk c is the chunk's
//! audience, or position c mod n. The partial sum of a chunk starts behind the owner and travels
//! all the way round to it; each member adds its own part, and the owner finishes the sum. The
//! final bytes travel on from the owner until every member that wants them has them.
//!
//! The functions that choose the next frame are inlined: they run for each frame and each lane that
//! wakes, and mostly find nothing; returning a frame by value costs more than that. Every owner has
//! slots of its own at every position, so the partial sums of two owners never wait for each other.
//! Called by movement.zig. Order of the positions: plan/planner.zig. Steps and bytes:
//! docs/internals/ALGORITHMS.md.

const std = @import("std");
const base = @import("base");
const board_file = @import("board.zig");
const job_file = @import("job.zig");
const Answer = job_file.Answer;
const Board = board_file.Board;
const Begin = board_file.Begin;
const Job = job_file.Job;
const Move = job_file.Move;
const Partition = @import("partition.zig").Partition;
const PlaceError = board_file.PlaceError;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const Header = @import("wire").frame.Header;

pub const Ring = struct {
    /// By chunk: the successor holds it since the attempt began.
    successor_holds: BitSet,
    // By piece: its partial sum has come or is coming in (`partial_seen`); its final bytes are due
    // to the successor (`final_ready`).
    partial_seen: BitSet,
    final_ready: BitSet,
    final_cursor: usize = 0,
    /// Partial sums that come in as several fragments.
    coming: std.ArrayList(Partial),
    /// Partial sums that are ready to go on to the successor.
    ready: std.ArrayList(Partial),
    /// The next piece whose partial sum starts here.
    origin_next: u64 = 0,

    const Partial = struct { piece: usize, slot: u16 };

    /// Makes the mover, whose lists are in `arena`.
    pub fn init(arena: Allocator, partition: *const Partition, slots: usize) Allocator.Error!Ring {
        const pieces: usize = @intCast(partition.pieces);
        return .{
            .successor_holds = try .in_arena(arena, partition.chunks),
            .partial_seen = try .in_arena(arena, pieces),
            .final_ready = try .in_arena(arena, pieces),
            .coming = try .initCapacity(arena, slots),
            .ready = try .initCapacity(arena, slots),
        };
    }

    // ---- attempts

    pub fn reset(ring: *Ring) void {
        ring.successor_holds.clear();
        ring.partial_seen.clear();
        ring.final_ready.clear();
        ring.final_cursor = 0;
        ring.coming.clearRetainingCapacity();
        ring.ready.clearRetainingCapacity();
    }

    /// Notes whether the successor is among the holders of a chunk that is final from the start.
    pub fn held_by(
        ring: *Ring,
        b: *const Board,
        chunk: usize,
        ranks: *const base.Mask,
        order: *const base.Order,
    ) void {
        if (ranks.has(order.at(b.position + 1))) ring.successor_holds.set_bit(chunk);
    }

    pub fn begin(ring: *Ring, b: *Board, _: *const Begin) void {
        const ledger = &b.ledger;
        if (!ledger.descriptor.kind.is_private()) for (0..ledger.partition.chunks) |chunk| {
            if (!ledger.kept.has(chunk) or ledger.reduced[chunk] == 0) continue;
            if (ring.successor_holds.has(chunk)) continue;
            const pieces = ledger.pieces_of(@intCast(chunk));
            for (pieces.first..pieces.end) |piece| ring.final_ready.set_bit(piece);
        };
        ring.origin_next = next_origin(b, 0);
    }

    pub fn receives_from(_: *const Ring, b: *const Board, from: u16) bool {
        return from == predecessor(b);
    }

    pub fn sends_to(_: *const Ring, b: *const Board, to: u16) bool {
        return to == successor(b);
    }

    /// A neighbour's partial sums count under the credit of each sum's owner.
    pub fn classes(_: *const Ring, b: *const Board, _: u16) Board.Classes {
        return .{ .first = 0, .count = b.members };
    }

    /// Whether something for a private chunk goes on from here: a partial sum everywhere but at the
    /// owner, a carried piece only between its source and its audience.
    pub fn passes_here(_: *const Ring, b: *const Board, chunk: u32) bool {
        return is_on_the_way(b, chunk);
    }

    /// Whether the final bytes of a chunk come from the predecessor.
    pub fn gives(_: *const Ring, b: *const Board, chunk: u32, _: u16) bool {
        if (b.ledger.descriptor.kind.is_private()) return false;
        return b.ledger.kept.has(chunk) or chunk_owner(b, chunk) != b.position;
    }

    /// Whether the final bytes of a piece are due to the successor.
    pub fn is_due(ring: *const Ring, _: *const Board, piece: usize) bool {
        return ring.final_ready.has(piece);
    }

    // ---- from the predecessor

    pub fn place_partial(
        ring: *Ring,
        b: *Board,
        header: *const Header,
        piece: usize,
        _: u16,
    ) PlaceError!u16 {
        const chunk = b.ledger.partition.chunk_of(piece);
        if (!has_partials(b) or b.ledger.is_done(chunk)) return error.WrongPhase;
        const class = chunk_owner(b, chunk);
        if (is_origin(b, chunk)) return error.WrongPhase;
        if (class != b.position and !is_on_the_way(b, chunk)) return error.WrongPhase;
        if (ring.partial_seen.has(piece)) {
            const at = ring.find(piece) orelse return error.Twice;
            return b.place_beside(header, piece, ring.coming.items[at].slot);
        }
        const slot = try b.place_in_slot(header, piece, &b.credits[class]);
        ring.partial_seen.set_bit(piece);
        if (!header.fragment.is_whole())
            ring.coming.appendAssumeCapacity(.{ .piece = piece, .slot = slot });
        return slot;
    }

    /// The index of a piece in `coming`; null: the piece is not there.
    fn find(ring: *const Ring, piece: usize) ?usize {
        for (ring.coming.items, 0..) |*partial, at| if (partial.piece == piece) return at;
        return null;
    }

    /// Removes a piece from `coming`, because all of its fragments are there, or none.
    fn forget(ring: *Ring, piece: usize) void {
        if (ring.find(piece)) |at| _ = ring.coming.swapRemove(at);
    }

    /// Frees the slot of a partial sum, because lanes broke before any fragment of it was complete;
    /// the sender sends the sum again.
    pub fn unplace(ring: *Ring, b: *Board, piece: usize, _: u16, slot: u16) void {
        ring.forget(piece);
        ring.partial_seen.unset_bit(piece);
        b.slot_unplaced(&b.credits[owner(b, piece)], slot);
    }

    /// A partial sum is complete: this peer adds its part, then the sum goes on, or is finished at
    /// the owner. A carried piece goes on unchanged.
    pub fn arrived(ring: *Ring, b: *Board, piece: usize, slot: u16) ?Job {
        ring.forget(piece);
        const is_mine = owner(b, piece) == b.position;
        const carries = b.ledger.descriptor.kind.carries();
        if (carries and !is_mine) {
            ring.ready.appendAssumeCapacity(.{ .piece = piece, .slot = slot });
            return null;
        }
        var job = b.job_of(if (carries) .take else if (is_mine) .add_last else .add, piece);
        job.slot = slot;
        // The sum is the one input, and this peer's part is added after it, at every position.
        job.position = 1;
        job.before = @intCast((@as(u32, b.position) + b.members - 1 - owner(b, piece)) % b.members);
        return job;
    }

    /// Notes a job that is done. Returns whether this peer has finished the job's piece.
    pub fn done(ring: *Ring, b: *Board, job: *const Job) bool {
        switch (job.kind) {
            .contribute => b.contributed(job, .partial, owner(b, job.piece)),
            .add => ring.ready.appendAssumeCapacity(.{ .piece = job.piece, .slot = job.slot }),
            else => {
                b.slot_free(&b.credits[b.position], job.slot);
                return true;
            },
        }
        return false;
    }

    pub fn forward_final(ring: *Ring, b: *const Board, piece: usize) void {
        const chunk = b.ledger.partition.chunk_of(piece);
        const stops = if (b.ledger.kept.has(chunk))
            ring.successor_holds.has(chunk)
        else
            chunk_owner(b, chunk) == successor(b);
        if (!stops) ring.final_ready.set_bit(piece);
    }

    /// After a piece was finished here or went on, something may always go to the successor.
    pub fn moves_on(_: *const Ring, _: *const Board, _: usize, _: bool) bool {
        return true;
    }

    // ---- to the successor

    /// Between far members, frames with the longest way go first: new sums, then sums on their way,
    /// those with the furthest owner first, then finished bytes. By this order the last bytes to
    /// leave are nearly there, and the links are busy to the end. Sums go as long as they have
    /// credit. Finished bytes need no credit, and go whenever no sum may. Between near members
    /// finished bytes go first, because they are still in the cache, and new sums last.
    pub inline fn next(ring: *Ring, b: *Board, to: u16, is_eager: bool) Answer {
        if (!b.is_far) {
            if (!is_eager) switch (ring.next_final(b)) {
                .nothing => {},
                else => |answer| return answer,
            };
            if (ring.next_forward(b)) |move| return .{ .move = move };
        }
        if (b.targets[to].pop()) |move| return .{ .move = move };
        if (ring.prepare(b, to)) |job| return .{ .job = job };
        if (!b.is_far) return .nothing;
        if (ring.next_forward(b)) |move| return .{ .move = move };
        return if (is_eager) .nothing else ring.next_final(b);
    }

    inline fn next_final(ring: *Ring, b: *Board) Answer {
        return b.next_final(&ring.final_ready, &ring.final_cursor);
    }

    inline fn next_forward(ring: *Ring, b: *Board) ?Move {
        var found: ?usize = null;
        var longest: u16 = 0;
        for (ring.ready.items, 0..) |partial, index| {
            const class = owner(b, partial.piece);
            if (!b.credits[class].has_left()) continue;
            const way = hops(b, class);
            if (way <= longest) continue;
            longest = way;
            found = index;
        }
        const partial = ring.ready.orderedRemove(found orelse return null);
        const class = owner(b, partial.piece);
        b.credits[class].used += 1;
        return .{
            .kind = .partial,
            .piece = partial.piece,
            .class = class,
            .place = .slot,
            .slot = partial.slot,
            .holder = class,
        };
    }

    /// The job for the next contribution that sets out from here; null if none may set out now.
    pub inline fn prepare(ring: *Ring, b: *Board, to: u16) ?Job {
        if (ring.origin_next >= b.ledger.partition.pieces) return null;
        const piece: usize = @intCast(ring.origin_next);
        const credit = &b.credits[owner(b, piece)];
        if (!credit.has_left()) return null;
        const job = b.contribution(piece, to) orelse return null;
        credit.used += 1;
        ring.origin_next = next_origin(b, piece + 1);
        return job;
    }
};

// ---- who owns what

inline fn owner(b: *const Board, piece: u64) u16 {
    return chunk_owner(b, b.ledger.partition.chunk_of(piece));
}

/// The position that forms the result of a chunk; the chunk is not void.
inline fn chunk_owner(b: *const Board, chunk: u32) u16 {
    return b.audience_position(chunk) orelse @intCast(chunk % b.members);
}

/// Whether the pieces of a chunk set out from this peer to the chunk's owner.
fn is_origin(b: *const Board, chunk: u32) bool {
    const source = b.source_position(chunk) orelse return chunk_owner(b, chunk) == predecessor(b);
    return source == b.position;
}

fn is_on_the_way(b: *const Board, chunk: u32) bool {
    const n = b.members;
    const to = chunk_owner(b, chunk);
    const source = b.source_position(chunk) orelse return to != b.position;
    return (b.position + n - source) % n < (to + n - source) % n;
}

fn predecessor(b: *const Board) u16 {
    return if (b.position == 0) b.members - 1 else b.position - 1;
}

/// The number of hops from this peer to position `to`.
fn hops(b: *const Board, to: u16) u16 {
    return (to + b.members - b.position) % b.members;
}

fn successor(b: *const Board) u16 {
    return if (b.position + 1 == b.members) 0 else b.position + 1;
}

/// The first piece at or after `from` that sets out from this peer.
fn next_origin(b: *const Board, from: u64) u64 {
    const partition = &b.ledger.partition;
    if (!has_partials(b)) return partition.pieces;
    var piece = from;
    while (piece < partition.pieces) {
        const chunk = partition.chunk_of(piece);
        const waits = !b.ledger.is_done(chunk) and is_on_the_way(b, chunk);
        if (waits and is_origin(b, chunk)) return piece;
        piece = partition.first_piece(@as(u64, chunk) + 1);
    }
    return piece;
}

fn has_partials(b: *const Board) bool {
    return b.ledger.descriptor.kind.reduces() or b.ledger.descriptor.kind.carries();
}
