//! direct: the schedule in which everybody sends its contribution to a chunk straight to the
//! chunk's owner. The owner reduces all contributions in rank order, in one pass, and sends the
//! final bytes to all: two hops, whatever the world size, and with a codec each contribution is
//! encoded once.
//!
//! Positions are ranks of those alive, in their order. Owners are *hubs*: members that reach all
//! others; so a group in which not everybody reaches everybody goes on as long as somebody does.
//! Chunks that survivors of a loss hold, and all chunks of a broadcast, have a *giver*: a hub that
//! holds it, or one that gets it first, from a holder, the *feeder*.
//!
//! Every contributor has slots of its own at every owner and sends in ascending order of pieces, so
//! the lowest piece that an owner waits for always has a place. Called by executor.zig, which has
//! the memory. Steps and bytes: docs/ALGORITHMS.md.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const Executor = @import("executor.zig").Executor;
const Partition = @import("partition.zig").Partition;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const assert = std.debug.assert;
const no_slot = Executor.no_slot;

/// Links to all members are there up to this world size.
pub const members_max = base.limits.full_mesh_max;

/// Positions, a bit each.
const Set = std.meta.Int(.unsigned, members_max);

comptime {
    assert(members_max <= kernels.reduce_inputs_max);
}

/// What an attempt in a direct schedule has under way. Empty in a world that is too large for one.
pub const State = struct {
    hubs: Set = 0,
    /// Per chunk: who has it from the start.
    holders: []Set = &.{},
    /// Per position.
    lanes: []Lane = &.{},
    /// Pieces of which some contributions are there.
    pending: std.ArrayList(Pending) = .empty,
    /// Per piece: its place in `pending`, or no_place.
    places: []u16 = &.{},

    const no_place = std.math.maxInt(u16);

    comptime {
        assert(no_slot <= no_place); // there are no more pending ones than slots
    }

    /// What goes to one position.
    const Lane = struct {
        ready: BitSet = .{},
        cursor: usize = 0,
        /// The next piece that this peer contributes to there.
        contribute_next: u64 = 0,
    };

    const Pending = struct {
        piece: usize,
        arrived: u16 = 0,
        slots: [members_max]u16 = @splat(no_slot),
    };

    /// `arena` gives all of it back.
    pub fn init(
        arena: Allocator,
        partition: *const Partition,
        options: Executor.Options,
        slots: usize,
    ) Allocator.Error!State {
        if (options.world_size > members_max) return .{};
        const lanes = try arena.alloc(Lane, options.world_size);
        for (lanes) |*lane| lane.* = .{ .ready = try .init(arena, @intCast(partition.pieces)) };
        const places = try arena.alloc(u16, @intCast(partition.pieces));
        @memset(places, no_place);
        return .{
            .places = places,
            .holders = try arena.alloc(Set, partition.chunks),
            .lanes = lanes,
            .pending = try .initCapacity(arena, slots),
        };
    }

    pub fn reset(state: *State) void {
        state.hubs = 0;
        @memset(state.holders, 0);
        for (state.lanes) |*lane| {
            lane.ready.clear();
            lane.cursor = 0;
        }
        for (state.pending.items) |*pending| state.places[pending.piece] = no_place;
        state.pending.clearRetainingCapacity();
    }

    fn find(state: *State, piece: usize) ?*Pending {
        const place = state.places[piece];
        return if (place == no_place) null else &state.pending.items[place];
    }

    fn add(state: *State, piece: usize) *Pending {
        state.places[piece] = @intCast(state.pending.items.len);
        const new = state.pending.addOneAssumeCapacity(); // each holds a slot at least
        new.* = .{ .piece = piece };
        return new;
    }

    /// The last one takes its place.
    fn remove(state: *State, piece: usize) void {
        const place = state.places[piece];
        _ = state.pending.swapRemove(place);
        state.places[piece] = no_place;
        if (place == state.pending.items.len) return;
        state.places[state.pending.items[place].piece] = place;
    }
};

fn bit(position: usize) Set {
    return @as(Set, 1) << @intCast(position);
}

/// The position at `wanted`, counted round the set.
fn at(set: Set, wanted: usize) u16 {
    var rest = set;
    for (0..wanted % @popCount(set)) |_| rest &= rest - 1;
    return @ctz(rest);
}

// ---- attempts

/// A kept chunk, or one of a broadcast.
pub fn held_by(
    x: *Executor,
    chunk: usize,
    ranks: *const base.Mask,
    order: *const base.Order,
) void {
    for (order.slice(), 0..) |rank, position| {
        if (ranks.has(rank)) x.direct.holders[chunk] |= bit(position);
    }
}

pub fn begin(x: *Executor, order: *const base.Order, hubs: *const base.Mask) void {
    assert(order.is_rank_order());
    for (order.slice(), 0..) |rank, position| {
        if (hubs.has(rank)) x.direct.hubs |= bit(position);
    }
    assert(x.direct.hubs != 0);
    for (0..x.partition.chunks) |chunk| {
        if (!x.kept.has(chunk) or x.chunk_reduced[chunk] == 0) continue;
        const first: usize = @intCast(x.partition.first_piece(chunk));
        const count = x.partition.pieces_of(@intCast(chunk));
        for (first..first + count) |piece| forward_final(x, piece);
    }
    for (x.direct.lanes[0..x.members], 0..) |*lane, to| {
        lane.contribute_next = next_contributed(x, @intCast(to), 0);
    }
}

// ---- who gives what to whom

/// The owner of a chunk, or who gives a kept one to those that lack it.
fn giver(x: *const Executor, chunk: usize) u16 {
    const able = x.direct.holders[chunk] & x.direct.hubs;
    return at(if (able != 0) able else x.direct.hubs, chunk);
}

/// From whom the giver of a kept chunk gets it, if it does not hold it.
fn feeder(x: *const Executor, chunk: usize) ?u16 {
    const holders = x.direct.holders[chunk];
    if (holders == 0 or holders & x.direct.hubs != 0) return null;
    return @ctz(holders);
}

/// Whether the final bytes of this chunk come here from that position.
pub fn gives(x: *const Executor, chunk: usize, from: u16) bool {
    return hands_over(x, chunk, from, x.position);
}

fn hands_over(x: *const Executor, chunk: usize, from: u16, to: u16) bool {
    if (from == to or x.direct.holders[chunk] & bit(to) != 0) return false;
    const giving = giver(x, chunk);
    return from == giving or (to == giving and from == feeder(x, chunk));
}

/// The first piece at or after `from` to which that position wants this peer's contribution.
fn next_contributed(x: *const Executor, to: u16, from: u64) u64 {
    if (x.descriptor.kind != .all_reduce or to == x.position) return x.partition.pieces;
    var piece = from;
    while (piece < x.partition.pieces) {
        const chunk = x.partition.chunk_of(piece);
        if (!x.kept.has(chunk) and giver(x, chunk) == to) return piece;
        piece = x.partition.first_piece(@as(u64, chunk) + 1);
    }
    return piece;
}

// ---- what comes in

pub fn place_partial(
    x: *Executor,
    header: *const wire.frame.Header,
    piece: usize,
    from: u16,
) Executor.PlaceError!Executor.Place {
    const chunk = x.partition.chunk_of(piece);
    if (x.descriptor.kind != .all_reduce or x.kept.has(chunk) or giver(x, chunk) != x.position)
        return error.WrongPhase;
    if (x.settled.has(piece)) return error.Twice;
    const known = x.direct.find(piece);
    if (known) |pending| if (pending.slots[from] != no_slot) return error.Twice;
    const place = try x.place_in_slot(header, piece, &x.credits[from]);
    const pending = known orelse x.direct.add(piece);
    pending.slots[from] = place.slot;
    return place;
}

/// A contribution is there; with the last one the piece is reduced, in rank order.
pub fn arrived(x: *Executor, piece: usize) void {
    const pending = x.direct.find(piece).?;
    pending.arrived += 1;
    if (pending.arrived < x.members - 1) return;
    if (x.encodes()) reduce_encoded(x, pending) else reduce_plain(x, pending);
    for (pending.slots[0..x.members], 0..) |slot, position| {
        if (position != x.position) x.slot_free(&x.credits[position], slot);
    }
    x.direct.remove(piece);
    x.finish(piece, x.attempt);
}

fn reduce_plain(x: *Executor, pending: *const State.Pending) void {
    const piece = pending.piece;
    var inputs: [members_max][*]const u8 = undefined;
    for (inputs[0..x.members], pending.slots[0..x.members], 0..) |*input, slot, position| {
        input.* = if (position == x.position) x.own(piece) else x.slot(slot).ptr;
    }
    const out = x.overwrite(piece);
    kernels.reduce_k(
        x.descriptor.op,
        x.descriptor.dtype,
        out.ptr,
        inputs[0..x.members],
        x.members,
        x.partition.elements(piece),
    );
}

fn reduce_encoded(x: *Executor, pending: *const State.Pending) void {
    const piece = pending.piece;
    var inputs: [members_max][*]const u8 = undefined;
    var count: usize = 0;
    for (pending.slots[0..x.members]) |slot| {
        if (slot == no_slot) continue; // this peer's own, which is never encoded
        inputs[count] = x.slot(slot).ptr;
        count += 1;
    }
    kernels.reduce_encode(
        x.encoding(piece, .result),
        x.encoded_piece(piece).ptr,
        x.own(piece),
        x.position,
        inputs[0..count],
        x.residual_of(piece),
        x.divisor(),
    );
    x.decode(piece);
}

/// The final bytes of a piece are here: all wait for them whom this peer gives them to.
pub fn forward_final(x: *Executor, piece: usize) void {
    const chunk = x.partition.chunk_of(piece);
    for (x.direct.lanes[0..x.members], 0..) |*lane, to| {
        if (hands_over(x, chunk, x.position, @intCast(to))) lane.ready.set_bit(piece);
    }
}

// ---- what goes out

/// Finished bytes first, then contributions.
pub fn next(x: *Executor, to: u16, is_eager: bool) ?Executor.Out {
    const lane = &x.direct.lanes[to];
    if (!is_eager) if (lane.ready.next(lane.cursor)) |piece| {
        lane.ready.unset_bit(piece);
        lane.cursor = piece + 1;
        return x.final_out(piece);
    };
    if (lane.contribute_next >= x.partition.pieces) return null;
    const credit = &x.credits[to];
    if (!credit.has_left()) return null;
    const piece: usize = @intCast(lane.contribute_next);
    const contributed = x.contribution(piece) orelse return null;
    credit.used += 1;
    lane.contribute_next = next_contributed(x, to, piece + 1);
    return Executor.partial_out(piece, 0, contributed);
}
