//! direct: the schedule in which everybody sends its contribution to a chunk straight to the
//! chunk's owner. The owner reduces all contributions in rank order, in one pass, and sends the
//! final bytes to all: two hops, whatever the world size, and with a codec each contribution is
//! encoded once.
//!
//! Positions are ranks of those alive, in their order. Owners are *hubs*: members that reach all
//! others. So a group in which not everybody reaches everybody goes on as long as some member does.
//! Chunks that survivors of a loss hold, and all chunks of a broadcast, have a *giver*: a hub that
//! holds the chunk, or one that gets it first, from a holder, the *feeder*.
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

/// The state of an attempt in a direct schedule. Empty in a world that is too large for one.
pub const State = struct {
    hubs: Set = 0,
    /// Per chunk: who has it from the start.
    holders: []Set = &.{},
    /// Per position.
    lanes: []Lane = &.{},
    /// Pieces of which some contributions are there.
    pending: std.ArrayList(Pending) = .empty,
    /// Results for others that can only have them from here, each in the slot of a contribution.
    passing: std.ArrayList(Passing) = .empty,
    /// Per piece: its place in `pending`, or no_place.
    places: []u16 = &.{},

    const no_place = std.math.maxInt(u16);

    comptime {
        assert(no_slot <= no_place); // there are no more pending ones than slots
    }

    /// The pieces on their way to one position.
    const Lane = struct {
        ready: BitSet = .{},
        cursor: usize = 0,
        /// The next piece that this peer contributes to there.
        contribute_next: u64 = 0,
    };

    const Passing = struct { piece: usize, slot: u16, from: u16 };

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
        const members = options.members_max();
        if (members > members_max) return .{};
        const lanes = try base.unfilled.list(arena, Lane, members);
        for (lanes) |*lane| lane.* = .{ .ready = try .in_arena(arena, @intCast(partition.pieces)) };
        const places = try base.unfilled.list(arena, u16, @intCast(partition.pieces));
        @memset(places, no_place);
        return .{
            .places = places,
            .holders = try base.unfilled.list(arena, Set, partition.chunks),
            .lanes = lanes,
            .pending = try .initCapacity(arena, slots),
            .passing = try .initCapacity(arena, slots),
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
        state.passing.clearRetainingCapacity();
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
    assert(x.direct.hubs != 0 or x.partition.is_uneven);
    if (x.descriptor.kind.carries()) {
        set_out(x);
    } else if (!x.descriptor.kind.is_private()) for (0..x.partition.chunks) |chunk| {
        if (!x.kept.has(chunk) or x.chunk_reduced[chunk] == 0) continue;
        const first: usize = @intCast(x.partition.first_piece(chunk));
        const count = x.partition.pieces_of(@intCast(chunk));
        for (first..first + count) |piece| forward_final(x, piece);
    };
    for (x.direct.lanes[0..x.members], 0..) |*lane, to| {
        lane.contribute_next = next_contributed(x, @intCast(to), 0);
    }
}

/// A chunk that is carried from here goes straight to its audience, if it can.
fn set_out(x: *Executor) void {
    for (0..x.partition.chunks) |index| {
        const chunk: u32 = @intCast(index);
        if (x.is_done(chunk) or x.source_position(chunk) != x.position) continue;
        const to = x.audience_position(chunk).?;
        if (to == x.position or relay(x, chunk) != null) continue;
        const first: usize = @intCast(x.partition.first_piece(chunk));
        const lane = &x.direct.lanes[to];
        for (first..first + x.partition.pieces_of(chunk)) |piece| lane.ready.set_bit(piece);
    }
}

// ---- who gives what to whom

/// The hub that carries a chunk on, if neither its source nor its audience is one. No hub knows
/// enough of an uneven exchange.
fn relay(x: *const Executor, chunk: usize) ?u16 {
    if (x.partition.is_uneven) return null;
    const source = x.source_position(chunk).?;
    const audience = x.audience_position(chunk).?;
    if (source == audience) return null;
    if (x.direct.hubs & (bit(source) | bit(audience)) != 0) return null;
    return at(x.direct.hubs, chunk);
}

/// Whether a private chunk, which is not void, goes on from here.
pub fn passes_here(x: *const Executor, chunk: usize) bool {
    if (x.wants(chunk)) return x.source(chunk) == null and giver(x, chunk) != x.position;
    if (x.source_position(chunk)) |source|
        return source == x.position or relay(x, chunk) == x.position;
    return true;
}

/// The owner of a chunk, or who gives a kept one to those that lack it. The chunk is not void.
pub fn giver(x: *const Executor, chunk: usize) u16 {
    if (x.descriptor.kind.carries()) return relay(x, chunk) orelse x.source_position(chunk).?;
    if (x.audience_position(chunk)) |position| {
        const able = x.direct.hubs & bit(position) != 0;
        return if (able) position else at(x.direct.hubs, chunk);
    }
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
    if (from == to or x.voided.has(chunk)) return false;
    if (x.direct.holders[chunk] & bit(to) != 0) return false;
    const giving = giver(x, chunk);
    return from == giving or (to == giving and from == feeder(x, chunk));
}

/// The first piece at or after `from` to which that position wants this peer's contribution.
fn next_contributed(x: *const Executor, to: u16, from: u64) u64 {
    if (to == x.position or x.free_slots.len == 0) return x.partition.pieces;
    var piece = from;
    while (piece < x.partition.pieces) {
        const chunk = x.partition.chunk_of(piece);
        if (contributes(x, chunk, x.position) and giver(x, chunk) == to) return piece;
        piece = x.partition.first_piece(@as(u64, chunk) + 1);
    }
    return piece;
}

/// Whether the giver of a chunk gets something for it from that position.
fn contributes(x: *const Executor, chunk: usize, from: u16) bool {
    if (x.is_done(chunk)) return false;
    if (x.descriptor.kind.reduces()) return true;
    return x.source_position(chunk) == from and relay(x, chunk) != null;
}

// ---- what comes in

pub fn place_partial(
    x: *Executor,
    header: *const wire.frame.Header,
    piece: usize,
    from: u16,
) Executor.PlaceError!Executor.Place {
    const chunk = x.partition.chunk_of(piece);
    if (!contributes(x, chunk, from) or giver(x, chunk) != x.position) return error.WrongPhase;
    if (x.final_seen.has(piece)) return error.Twice;
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
    if (pending.arrived < x.members - 1 and !x.descriptor.kind.carries()) return;
    const on_the_way = !x.wants(x.partition.chunk_of(piece));
    if (on_the_way) pass_on(x, pending) //
    else if (x.encodes()) {
        var inputs: [members_max][*]const u8 = undefined;
        x.reduce_encoded(piece, x.position, encoded_of(x, pending, &inputs));
    } else reduce_plain(x, pending, x.overwrite(piece).ptr);
    for (pending.slots[0..x.members], 0..) |slot, position| {
        if (slot != no_slot) x.slot_free(&x.credits[position], slot);
    }
    x.direct.remove(piece);
    if (!on_the_way) x.finish(piece, x.attempt);
}

/// A result for another peer that can only have it from here stays in a slot until it has left.
fn pass_on(x: *Executor, pending: *State.Pending) void {
    const source = x.source_position(x.partition.chunk_of(pending.piece));
    const from: u16 = source orelse if (x.position == 0) 1 else 0;
    const slot = pending.slots[from];
    if (source == null) {
        const into = x.slot(slot);
        if (!x.encodes()) {
            reduce_plain(x, pending, into.ptr);
        } else {
            var inputs: [members_max][*]const u8 = undefined;
            const bytes = x.aside(pending.piece);
            x.encode_sum(pending.piece, bytes.ptr, x.position, encoded_of(x, pending, &inputs));
            @memcpy(into[0..bytes.len], bytes);
        }
    }
    pending.slots[from] = no_slot;
    x.final_seen.set_bit(pending.piece);
    x.direct.passing.appendAssumeCapacity(.{ .piece = pending.piece, .slot = slot, .from = from });
}

fn reduce_plain(x: *Executor, pending: *const State.Pending, out: [*]u8) void {
    const piece = pending.piece;
    var inputs: [members_max][*]const u8 = undefined;
    for (inputs[0..x.members], pending.slots[0..x.members], 0..) |*input, slot, position| {
        input.* = if (position == x.position) x.own(piece) else x.slot(slot).ptr;
    }
    kernels.reduce_k(
        x.descriptor.op,
        x.dtype_of(piece),
        out,
        inputs[0..x.members],
        x.members,
        x.partition.elements(piece),
    );
}

fn encoded_of(
    x: *const Executor,
    pending: *const State.Pending,
    inputs: *[members_max][*]const u8,
) []const [*]const u8 {
    var count: usize = 0;
    for (pending.slots[0..x.members]) |slot| {
        if (slot == no_slot) continue; // this peer's own, which is never encoded
        inputs[count] = x.slot(slot).ptr;
        count += 1;
    }
    return inputs[0..count];
}

/// The final bytes of a piece are here: all wait for them whom this peer gives them to.
pub fn forward_final(x: *Executor, piece: usize) void {
    const chunk = x.partition.chunk_of(piece);
    for (x.direct.lanes[0..x.members], 0..) |*lane, to| {
        if (hands_over(x, chunk, x.position, @intCast(to))) lane.ready.set_bit(piece);
    }
}

/// Whether its final bytes are to go to anybody.
pub fn is_due(x: *const Executor, piece: usize) bool {
    for (x.direct.lanes[0..x.members]) |*lane| if (lane.ready.has(piece)) return true;
    return false;
}

// ---- what goes out

/// Finished bytes first, then contributions.
pub fn next(x: *Executor, to: u16, is_eager: bool) ?Executor.Out {
    const lane = &x.direct.lanes[to];
    if (!is_eager) {
        if (next_final(x, lane)) |out| return out;
        if (next_passing(x, to)) |out| return out;
    }
    if (lane.contribute_next >= x.partition.pieces) return null;
    const credit = &x.credits[to];
    if (!credit.has_left()) return null;
    const piece: usize = @intCast(lane.contribute_next);
    const contributed = x.contribution(piece) orelse return null;
    credit.used += 1;
    lane.contribute_next = next_contributed(x, to, piece + 1);
    return Executor.partial_out(piece, 0, contributed);
}

fn next_final(x: *Executor, lane: *State.Lane) ?Executor.Out {
    const piece = lane.ready.next(lane.cursor) orelse return null;
    const out = x.final_out(piece) orelse return null;
    lane.ready.unset_bit(piece);
    lane.cursor = piece + 1;
    return out;
}

fn next_passing(x: *Executor, to: u16) ?Executor.Out {
    for (x.direct.passing.items, 0..) |item, index| {
        const chunk = x.partition.chunk_of(item.piece);
        if (x.audience_position(chunk) != to) continue;
        _ = x.direct.passing.orderedRemove(index);
        return .{
            .kind = .final,
            .piece = item.piece,
            .class = 0,
            .reduced_attempt = x.attempt,
            .slot = item.slot,
            .from = item.from,
            .payload = x.slot(item.slot)[0..x.partial_piece_bytes(item.piece)],
        };
    }
    return null;
}
