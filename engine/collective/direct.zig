//! direct: the schedule in which each member sends its contribution to a chunk straight to the
//! chunk's owner. The owner reduces all contributions in rank order, in one pass, and sends the
//! final bytes to all members: two hops, whatever the world size. With a codec each contribution is
//! encoded once.
//!
//! Positions are the ranks of the members alive, in order. Owners are *hubs*: members that reach
//! all others. A group with broken links goes on as long as it has a hub. Chunks that survivors of
//! a loss hold, and all chunks of a broadcast, have a *giver*: a hub that holds the chunk, or else
//! a hub that first gets it from a holder, the *feeder*.
//!
//! Every contributor has slots of its own at every owner and sends pieces in ascending order, so
//! the lowest piece that an owner waits for always has a place. Called by movement.zig. Steps and
//! bytes: docs/internals/ALGORITHMS.md.

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
const assert = std.debug.assert;
const no_slot = job_file.no_slot;
const nobody = job_file.nobody;

/// The largest world size in which all members have links to each other.
pub const members_max = base.limits.full_mesh_max;

/// A set of positions, a bit each.
const Set = std.meta.Int(.unsigned, members_max);

/// The state of an attempt; empty if the world is too large for the direct schedule.
pub const Direct = struct {
    hubs: Set = 0,
    /// By chunk, counted round the list: the position of the hub that owns it.
    owners: [base.Shares.owners_max]u8 = undefined,
    owner_count: usize = 0,
    /// By chunk: the positions of the members that hold it since the attempt began.
    holders: []Set = &.{},
    /// By position: the pieces on their way to that member.
    ways: []Way = &.{},
    /// Pieces of which some contributions have come or are coming in.
    pending: std.ArrayList(Pending) = .empty,
    /// Results that other members can get only from this peer, each in the slot that held a
    /// contribution.
    passing: std.ArrayList(Passing) = .empty,
    /// By piece: its index in `pending`, or `no_place`.
    places: []u16 = &.{},

    const no_place = std.math.maxInt(u16);

    comptime {
        assert(no_slot <= no_place); // each pending piece holds a slot
    }

    /// The pieces on their way to one position.
    const Way = struct {
        /// Pieces whose final bytes are due to the position.
        due: BitSet = .{},
        cursor: usize = 0,
        /// The next piece to which this peer contributes at the position.
        contribute_next: u64 = 0,
    };

    const Passing = struct { piece: usize, slot: u16, from: u16 };

    const Pending = struct {
        piece: usize,
        arrived: u16 = 0,
        slots: [members_max]u16 = @splat(no_slot),
    };

    /// Makes the mover, whose lists are in `arena`.
    pub fn init(
        arena: Allocator,
        partition: *const Partition,
        members: u32,
        slots: usize,
    ) Allocator.Error!Direct {
        if (members > members_max) return .{};
        const ways = try base.unfilled.list(arena, Way, members);
        for (ways) |*way| way.* = .{ .due = try .in_arena(arena, @intCast(partition.pieces)) };
        const places = try base.unfilled.list(arena, u16, @intCast(partition.pieces));
        @memset(places, no_place);
        return .{
            .places = places,
            .holders = try base.unfilled.list(arena, Set, partition.chunks),
            .ways = ways,
            .pending = try .initCapacity(arena, slots),
            .passing = try .initCapacity(arena, slots),
        };
    }

    pub fn reset(direct: *Direct) void {
        direct.hubs = 0;
        @memset(direct.holders, 0);
        for (direct.ways) |*way| {
            way.due.clear();
            way.cursor = 0;
        }
        for (direct.pending.items) |*pending| direct.places[pending.piece] = no_place;
        direct.pending.clearRetainingCapacity();
        direct.passing.clearRetainingCapacity();
    }

    fn find(direct: *Direct, piece: usize) ?*Pending {
        const place = direct.places[piece];
        return if (place == no_place) null else &direct.pending.items[place];
    }

    fn add(direct: *Direct, piece: usize) *Pending {
        direct.places[piece] = @intCast(direct.pending.items.len);
        const new = direct.pending.addOneAssumeCapacity(); // each entry holds a slot at least
        new.* = .{ .piece = piece };
        return new;
    }

    /// Removes a piece from `pending`; the last entry takes its place.
    fn remove(direct: *Direct, piece: usize) void {
        const place = direct.places[piece];
        _ = direct.pending.swapRemove(place);
        direct.places[piece] = no_place;
        if (place == direct.pending.items.len) return;
        direct.places[direct.pending.items[place].piece] = place;
    }

    // ---- attempts

    /// Notes the holders of a chunk that is final from the start.
    pub fn held_by(
        direct: *Direct,
        _: *const Board,
        chunk: usize,
        ranks: *const base.Mask,
        order: *const base.Order,
    ) void {
        for (order.slice(), 0..) |rank, position| {
            if (ranks.has(rank)) direct.holders[chunk] |= bit(position);
        }
    }

    pub fn begin(direct: *Direct, b: *Board, options: *const Begin) void {
        assert(options.order.is_rank_order());
        for (options.order.slice(), 0..) |rank, position| {
            if (options.hubs.has(rank)) direct.hubs |= bit(position);
        }
        const ranks = options.shares.owners(options.hubs, &direct.owners);
        for (ranks) |*rank| rank.* = @intCast(options.order.position(rank.*));
        direct.owner_count = ranks.len;
        const ledger = &b.ledger;
        assert(direct.hubs != 0 or ledger.partition.is_uneven);
        if (ledger.descriptor.kind.carries()) {
            direct.set_out(b);
        } else if (!ledger.descriptor.kind.is_private()) for (0..ledger.partition.chunks) |chunk| {
            if (!ledger.kept.has(chunk) or ledger.reduced[chunk] == 0) continue;
            const pieces = ledger.pieces_of(@intCast(chunk));
            for (pieces.first..pieces.end) |piece| direct.forward_final(b, piece);
        };
        for (direct.ways[0..b.members], 0..) |*way, to| {
            way.contribute_next = direct.next_contributed(b, @intCast(to), 0);
        }
    }

    /// Makes the carried chunks of which this peer is the source due to their audience, unless they
    /// need a relay.
    fn set_out(direct: *Direct, b: *const Board) void {
        for (0..b.ledger.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (b.ledger.is_done(chunk) or b.source_position(chunk) != b.position) continue;
            const to = b.audience_position(chunk).?;
            if (to == b.position or direct.relay(b, chunk) != null) continue;
            const pieces = b.ledger.pieces_of(chunk);
            for (pieces.first..pieces.end) |piece| direct.ways[to].due.set_bit(piece);
        }
    }

    pub fn receives_from(_: *const Direct, _: *const Board, _: u16) bool {
        return true;
    }

    pub fn sends_to(_: *const Direct, _: *const Board, _: u16) bool {
        return true;
    }

    /// A neighbour's contributions count under the credit of that neighbour.
    pub fn classes(_: *const Direct, _: *const Board, neighbour: u16) Board.Classes {
        return .{ .first = neighbour, .count = 1 };
    }

    // ---- who gives what to whom

    /// The hub that owns a chunk without an audience.
    fn owner(direct: *const Direct, chunk: usize) u16 {
        return direct.owners[chunk % direct.owner_count];
    }

    /// The hub that passes a carried chunk on, if neither its source nor its audience is a hub;
    /// else null. In an uneven exchange no hub knows enough to pass chunks on.
    fn relay(direct: *const Direct, b: *const Board, chunk: usize) ?u16 {
        if (b.ledger.partition.is_uneven) return null;
        const source = b.source_position(chunk).?;
        const audience = b.audience_position(chunk).?;
        if (source == audience) return null;
        if (direct.hubs & (bit(source) | bit(audience)) != 0) return null;
        return direct.owner(chunk);
    }

    /// Whether this peer sends something for a private chunk that is not void.
    pub fn passes_here(direct: *const Direct, b: *const Board, chunk: usize) bool {
        if (b.ledger.wants(chunk))
            return b.ledger.source(chunk) == null and direct.giver(b, chunk) != b.position;
        if (b.source_position(chunk)) |source|
            return source == b.position or direct.relay(b, chunk) == b.position;
        return true;
    }

    /// The owner of a chunk that is not void, or the member that gives a kept chunk to those that
    /// lack it.
    fn giver(direct: *const Direct, b: *const Board, chunk: usize) u16 {
        if (b.ledger.descriptor.kind.carries())
            return direct.relay(b, chunk) orelse b.source_position(chunk).?;
        if (b.audience_position(chunk)) |position| {
            const able = direct.hubs & bit(position) != 0;
            return if (able) position else direct.owner(chunk);
        }
        const able = direct.holders[chunk] & direct.hubs;
        return if (able != 0) at(able, chunk) else direct.owner(chunk);
    }

    /// The member from which the giver of a kept chunk gets it; null if the giver holds it.
    fn feeder(direct: *const Direct, chunk: usize) ?u16 {
        const holders = direct.holders[chunk];
        if (holders == 0 or holders & direct.hubs != 0) return null;
        return @ctz(holders);
    }

    /// Whether the final bytes of a chunk come to this peer from position `from`.
    pub fn gives(direct: *const Direct, b: *const Board, chunk: u32, from: u16) bool {
        return direct.hands_over(b, chunk, from, b.position);
    }

    fn hands_over(direct: *const Direct, b: *const Board, chunk: usize, from: u16, to: u16) bool {
        if (from == to or b.ledger.voided.has(chunk)) return false;
        if (direct.holders[chunk] & bit(to) != 0) return false;
        const giving = direct.giver(b, chunk);
        return from == giving or (to == giving and from == direct.feeder(chunk));
    }

    /// The first piece at or after `from` to which this peer contributes at position `to`.
    fn next_contributed(direct: *const Direct, b: *const Board, to: u16, from: u64) u64 {
        const partition = &b.ledger.partition;
        if (to == b.position or b.free_slots.len == 0) return partition.pieces;
        var piece = from;
        while (piece < partition.pieces) {
            const chunk = partition.chunk_of(piece);
            if (direct.contributes(b, chunk, b.position) and direct.giver(b, chunk) == to)
                return piece;
            piece = partition.first_piece(@as(u64, chunk) + 1);
        }
        return piece;
    }

    /// Whether the giver of a chunk gets a contribution to it from position `from`.
    fn contributes(direct: *const Direct, b: *const Board, chunk: usize, from: u16) bool {
        if (b.ledger.is_done(chunk)) return false;
        if (b.ledger.descriptor.kind.reduces()) return true;
        return b.source_position(chunk) == from and direct.relay(b, chunk) != null;
    }

    // ---- what comes in

    pub fn place_partial(
        direct: *Direct,
        b: *Board,
        header: *const Header,
        piece: usize,
        from: u16,
    ) PlaceError!u16 {
        const chunk = b.ledger.partition.chunk_of(piece);
        if (!direct.contributes(b, chunk, from) or direct.giver(b, chunk) != b.position)
            return error.WrongPhase;
        if (b.ledger.final_seen.has(piece)) return error.Twice;
        const known = direct.find(piece);
        if (known) |pending| if (pending.slots[from] != no_slot)
            return b.place_beside(header, piece, pending.slots[from]);
        const slot = try b.place_in_slot(header, piece, &b.credits[from]);
        const pending = known orelse direct.add(piece);
        pending.slots[from] = slot;
        return slot;
    }

    /// Frees the slot of a contribution, because lanes broke before any fragment of it was
    /// complete; the sender sends the contribution again.
    pub fn unplace(direct: *Direct, b: *Board, piece: usize, from: u16, slot: u16) void {
        const pending = direct.find(piece).?;
        pending.slots[from] = no_slot;
        b.slot_unplaced(&b.credits[from], slot);
        for (pending.slots[0..b.members]) |each| if (each != no_slot) return;
        direct.remove(piece);
    }

    /// A contribution is complete; with the last contribution the piece is reduced, in rank order.
    pub fn arrived(direct: *Direct, b: *Board, piece: usize, _: u16) ?Job {
        const pending = direct.find(piece).?;
        pending.arrived += 1;
        const carries = b.ledger.descriptor.kind.carries();
        if (pending.arrived < b.members - 1 and !carries) return null;
        const chunk = b.ledger.partition.chunk_of(piece);
        const is_mine = b.ledger.wants(chunk);
        const source = b.source_position(chunk);
        if (!is_mine and source != null) {
            direct.pass_on(b, pending, source.?);
            return null;
        }
        var job = b.job_of(if (is_mine) .reduce else .reduce_for_another, piece);
        job.inputs = pending.slots;
        if (!is_mine) job.slot = pending.slots[other_than(b.position)];
        return job;
    }

    /// Keeps a result in the slot of a contribution until it has left for its audience, which can
    /// get it only from here.
    fn pass_on(direct: *Direct, b: *Board, pending: *Pending, from: u16) void {
        direct.passing.appendAssumeCapacity(.{
            .piece = pending.piece,
            .slot = pending.slots[from],
            .from = from,
        });
        pending.slots[from] = no_slot;
        b.ledger.final_seen.set_bit(pending.piece);
        direct.let_go(b, pending);
    }

    fn let_go(direct: *Direct, b: *Board, pending: *Pending) void {
        for (pending.slots[0..b.members], 0..) |slot, position| {
            if (slot != no_slot) b.slot_free(&b.credits[position], slot);
        }
        direct.remove(pending.piece);
    }

    /// Notes a job that is done. Returns whether this peer has finished the job's piece.
    pub fn done(direct: *Direct, b: *Board, job: *const Job) bool {
        if (job.kind == .contribute) {
            const chunk = b.ledger.partition.chunk_of(job.piece);
            const kind: @FieldType(Move, "kind") =
                if (direct.contributes(b, chunk, b.position)) .partial else .final;
            b.contributed(job, kind, 0);
            return false;
        }
        const pending = direct.find(job.piece).?;
        if (job.kind == .reduce_for_another) {
            direct.pass_on(b, pending, other_than(b.position));
            return false;
        }
        direct.let_go(b, pending);
        return true;
    }

    /// The final bytes of a piece are here: makes them due to all members that get them from this
    /// peer.
    pub fn forward_final(direct: *Direct, b: *const Board, piece: usize) void {
        const chunk = b.ledger.partition.chunk_of(piece);
        for (direct.ways[0..b.members], 0..) |*way, to| {
            if (direct.hands_over(b, chunk, b.position, @intCast(to))) way.due.set_bit(piece);
        }
    }

    /// Whether something may go out now that this piece was finished or passed on here. Final bytes
    /// of a chunk that is not kept come from its owner, which sends them to all members, so they go
    /// no further.
    pub fn moves_on(_: *const Direct, b: *const Board, piece: usize, is_final: bool) bool {
        if (is_final) return b.ledger.kept.has(b.ledger.partition.chunk_of(piece));
        return b.ledger.final_seen.has(piece);
    }

    /// Whether the final bytes of a piece are due to any member.
    pub fn is_due(direct: *const Direct, b: *const Board, piece: usize) bool {
        for (direct.ways[0..b.members]) |*way| if (way.due.has(piece)) return true;
        return false;
    }

    // ---- what goes out

    /// Between far members contributions go first, because two hops are left for them; between near
    /// members finished bytes go first, because they are still in the cache.
    pub fn next(direct: *Direct, b: *Board, to: u16, is_eager: bool) Answer {
        if (!is_eager and !b.is_far) switch (direct.next_finished(b, to)) {
            .nothing => {},
            else => |answer| return answer,
        };
        if (b.targets[to].pop()) |move| return .{ .move = move };
        if (direct.prepare(b, to)) |job| return .{ .job = job };
        return if (is_eager) .nothing else direct.next_finished(b, to);
    }

    fn next_finished(direct: *Direct, b: *Board, to: u16) Answer {
        const target = &b.targets[to];
        if (target.ready_count > 0 and target.ready[0].kind == .final)
            return .{ .move = target.pop().? };
        switch (direct.next_final(b, to)) {
            .nothing => {},
            else => |answer| return answer,
        }
        return if (direct.next_passing(b, to)) |move| .{ .move = move } else .nothing;
    }

    fn next_final(direct: *Direct, b: *Board, to: u16) Answer {
        const way = &direct.ways[to];
        if (!b.ledger.descriptor.kind.carries()) return b.next_final(&way.due, &way.cursor);
        const piece = way.due.next(way.cursor) orelse return .nothing;
        const job = b.contribution(piece, to) orelse return .nothing;
        way.due.unset_bit(piece);
        way.cursor = piece + 1;
        return .{ .job = job };
    }

    fn next_passing(direct: *Direct, b: *const Board, to: u16) ?Move {
        for (direct.passing.items, 0..) |item, index| {
            const chunk = b.ledger.partition.chunk_of(item.piece);
            if (b.audience_position(chunk) != to) continue;
            _ = direct.passing.orderedRemove(index);
            return .{
                .kind = .final,
                .piece = item.piece,
                .reduced_attempt = b.attempt,
                .place = .slot,
                .slot = item.slot,
                .holder = item.from,
            };
        }
        return null;
    }

    /// The job for the next contribution to the owner at position `to`; null if none may set out
    /// now.
    pub fn prepare(direct: *Direct, b: *Board, to: u16) ?Job {
        const way = &direct.ways[to];
        if (way.contribute_next >= b.ledger.partition.pieces) return null;
        const credit = &b.credits[to];
        if (!credit.has_left()) return null;
        const piece: usize = @intCast(way.contribute_next);
        const job = b.contribution(piece, to) orelse return null;
        credit.used += 1;
        way.contribute_next = direct.next_contributed(b, to, piece + 1);
        return job;
    }
};

fn bit(position: usize) Set {
    return @as(Set, 1) << @intCast(position);
}

/// The member number `wanted` of a set, counted round it.
fn at(set: Set, wanted: usize) u16 {
    var rest = set;
    for (0..wanted % @popCount(set)) |_| rest &= rest - 1;
    return @ctz(rest);
}

fn other_than(position: u16) u16 {
    return if (position == 0) 1 else 0;
}
