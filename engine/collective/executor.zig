//! Executor: one operation's memory and its state: its chunks, its undo log, its result. The data
//! moves one attempt at a time, round the ring (ring.zig) or straight to the owners and back
//! (direct.zig).
//!
//! Members that are alive have positions 0..n-1. Every chunk has an owner, which forms its result;
//! partial sums or contributions travel to the owner, and the final bytes from there to everybody.
//! Other collectives are a part of that. A chunk may have a *source*, the one rank that contributes
//! to it, and is then final there from the start, as in a broadcast and an all_gather. It may have
//! an *audience*, the one rank that wants its result, as in a reduce and a reduce_scatter. A chunk
//! with both is *carried*, unchanged, from one to the other: in a scatter, a gather, an all_to_all.
//! A message, a send and its recv, is carried too; only its two ends are members here. After a
//! loss, chunks that some survivors hold travel on from them in the same way. Chunks whose source
//! or audience is lost are *void*: nobody waits for them, and they are zeros.
//!
//! The result grows in the caller's buffer. In place, each piece of the input is saved in `shadow`
//! before its first byte is overwritten, in the step that reads it anyway, so that a failed call
//! gives the input back (docs/PROMISE.md, P3). In a separate result buffer nothing is saved: its
//! contents after a failure are unspecified. Partial sums wait in slots. Each member that may send
//! some has slots of its own here, so no member's sums wait for those of another, and no cycle of
//! full buffers can form.
//!
//! Called by session/frames.zig. Steps and bytes: docs/ALGORITHMS.md. Tests: executor_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const ring = @import("ring.zig");
const direct = @import("direct.zig");
const Partition = @import("partition.zig").Partition;
const Shard = @import("partition.zig").Shard;
const arrays_file = @import("arrays.zig");
const Arrays = arrays_file.Arrays;
const Roles = @import("roles.zig").Roles;
const Elements = @import("roles.zig").Elements;
const Pool = @import("pool.zig").Pool;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const Descriptor = wire.control.Descriptor;
const KeptRange = wire.control.KeptRange;
const assert = std.debug.assert;

pub const Schedule = enum {
    ring,
    direct,

    /// The schedule that the call asks for. By default encoded contributions go straight to their
    /// owners, so that each is encoded once.
    pub fn of(descriptor: *const Descriptor) Schedule {
        return switch (descriptor.plan) {
            .auto => if (descriptor.codec.kind != .none or descriptor.kind.carries()) .direct //
            else .ring,
            .ring => .ring,
            .direct => .direct,
        };
    }
};

pub const Executor = struct {
    /// Memory of the lists below; all of it is reserved at the start.
    region: base.Region,
    pool: *Pool,
    descriptor: Descriptor,
    partition: Partition,
    /// The caller's: what it contributes, read until this peer has voted, and where the result
    /// grows.
    arrays: Arrays,
    /// The caller has its arrays back: what this peer has for others is in `shadow`.
    is_aside: bool = false,
    /// The former contents of the caller's arrays in place: the undo log. Later, of all
    /// of them, the result that is set aside.
    shadow: Pool.Buffer,
    /// With a codec: the final bytes as they travel, of all pieces of the result, and room for one
    /// more. Whoever holds a chunk decodes these, its owner too, and passes on these, in later
    /// attempts as well. A result that one peer alone wants is only received here.
    encoded: Pool.Buffer,
    /// Random signs and roundings follow from it; the same on all peers.
    operation: u64,
    roles: Roles,
    /// All contribute to each part; all want each.
    is_from_all: bool,
    is_for_all: bool,
    /// The caller's, for error feedback: f32 for each element, what its former encodings lost and
    /// what this one loses.
    residual: ?kernels.Residual,

    slots: Pool.Buffer,
    slot_bytes: usize,
    free_slots: []u16,
    free_count: u16,
    /// Slots that hold a contribution of this peer on its way out, and how many may.
    origin_held: u16 = 0,
    origin_slots: u16,
    /// That each sender of partial sums, an owner's neighbour in the ring or a contributor, may
    /// fill here in this attempt.
    slots_each: u32 = 0,

    // Per chunk; chunk_reduced is the attempt that reduced a settled chunk, 0 while it is not
    // settled.
    chunk_reduced: []u32,
    chunk_arriving: []u32,
    chunk_left: []u32,
    chunk_digest: []u128,
    chunks_settled: u32 = 0,
    kept: BitSet,
    /// Chunks that nobody waits for in this attempt: their source or audience is lost.
    voided: BitSet,
    /// Pieces of which this peer is the source, and which are still to be brought to its result.
    own_left: BitSet,

    // Per piece.
    saved: BitSet,
    dirty: BitSet,
    settled: BitSet,
    final_seen: BitSet,

    // The attempt under way; `members` 0 while stopped.
    attempt: u32 = 0,
    position: u16 = 0,
    members: u16 = 0,
    schedule: Schedule = .ring,
    /// By rank, where ranks have shards: its position in this attempt, or `nobody`.
    positions: []u16,
    /// Chunks that are this peer's result in this attempt.
    chunks_wanted: u32 = 0,
    /// With private results: frames that this peer has still to send for others to have theirs.
    frames_owed: u64 = 0,
    /// By position.
    targets: []Target,
    /// By position of the owner in a ring, of the sender or receiver in a direct schedule.
    credits: []Credit,
    ring: ring.State,
    direct: direct.State,
    /// The piece that `work` looks at next, and how much it does in one go.
    work_next: usize = 0,
    work_bytes: usize,

    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,

    /// A member that this one sends to.
    pub const Target = struct {
        /// It has called, and can receive.
        open: bool = false,
        /// Payload sent in this attempt before that.
        eager_bytes: usize = 0,
    };

    pub const Credit = struct {
        /// As receiver: slots in use, and how many have been freed in this attempt.
        held: u32 = 0,
        freed: u64 = 0,
        announced: u64 = 0,
        /// As sender: what the receiver allows, and what was used.
        allowed: u64 = 0,
        /// The part of `allowed` that was said, not guessed: a credit may overtake the open on
        /// another lane.
        granted: u64 = 0,
        used: u64 = 0,

        pub fn has_left(credit: *const Credit) bool {
            return credit.used < credit.allowed;
        }
    };

    pub const no_slot: u16 = std.math.maxInt(u16);
    pub const nobody: u16 = std.math.maxInt(u16);
    /// Slots for contributions that must be converted before they travel.
    const origin_slots_min = 8;

    pub const Options = struct {
        descriptor: Descriptor,
        arrays: []const arrays_file.Array,
        residual: ?kernels.Residual = null,
        /// The sizes of the one array's parts, where they differ.
        elements: ?Elements = null,
        /// A number of the operation, the same on all peers.
        operation: u64 = 0,
        rank: u16,
        root: u16 = 0,
        pair: base.Pair = .{ .src = 0, .dst = 0 },
        world_size: u32,
        chunk_bytes: u32,
        window_bytes: u64,

        fn roles(options: *const Options) Roles {
            return .{
                .kind = options.descriptor.kind,
                .world_size = options.world_size,
                .rank = options.rank,
                .root = options.root,
                .pair = options.pair,
            };
        }

        /// The most members that may have a part in the operation.
        pub fn members_max(options: *const Options) u32 {
            return if (options.descriptor.kind == .send_recv) 2 else options.world_size;
        }
    };

    fn partition_of(
        arena: Allocator,
        options: *const Options,
        roles: *const Roles,
    ) Allocator.Error!Partition {
        const descriptor = &options.descriptor;
        const arrays = options.arrays;
        assert(arrays.len == 1 or options.elements == null);
        const parts = roles.parts();
        const shards = try base.unfilled.list(arena, Shard, parts * arrays.len);
        for (shards, 0..) |*shard, index| {
            const array = &arrays[index % arrays.len];
            const elements: Elements = options.elements orelse .{ .each = array.count / parts };
            shard.* = .{
                .elements = elements.of(roles, index / arrays.len),
                .dtype = array.dtype,
                .partial_bytes = @intCast(partial_bytes(descriptor, array.dtype)),
            };
        }
        return Partition.init(.{
            .shards = shards,
            .world_size = options.members_max(),
            .chunk_bytes_max = options.chunk_bytes,
            .window_bytes = options.window_bytes,
            // A peer alone encodes nothing.
            .codec = if (options.world_size == 1) .none else descriptor.codec,
            .is_uneven = if (options.elements) |elements| elements == .exchanged else false,
        });
    }

    fn partial_bytes(descriptor: *const Descriptor, dtype: base.DType) usize {
        if (!descriptor.kind.reduces()) return dtype.size();
        return base.dtype.partial_size(descriptor.op, dtype);
    }

    /// Reserves everything the operation needs, so that nothing can fail for want of memory later.
    pub fn init(gpa: Allocator, pool: *Pool, options: Options) Allocator.Error!Executor {
        var executor = try prepare(gpa, pool, options);
        errdefer executor.deinit();
        try executor.reserve();
        return executor;
    }

    /// The bookkeeping alone: it may be long until the operation moves anything.
    pub fn prepare(gpa: Allocator, pool: *Pool, options: Options) Allocator.Error!Executor {
        var region: base.Region = .init(gpa);
        errdefer region.deinit();
        const memory = region.allocator();
        const descriptor = options.descriptor;
        const roles = options.roles();
        const partition = try partition_of(memory, &options, &roles);
        const slot_count = slots_needed(&partition, &options);
        const slot_bytes = partition.slot_bytes();
        const pieces: usize = @intCast(partition.pieces);
        const arrays: Arrays = try .init(memory, &partition, options.arrays, &roles);

        var executor: Executor = .{
            .pool = pool,
            .descriptor = descriptor,
            .partition = partition,
            .arrays = arrays,
            .roles = roles,
            // All parts are alike in this.
            .is_from_all = roles.source(0) == null,
            .is_for_all = roles.audience(0) == null,
            .shadow = &.{},
            .encoded = &.{},
            .operation = options.operation,
            .work_bytes = @intCast(@min(options.window_bytes, work_bytes_max)),
            .residual = options.residual,
            .slots = &.{},
            .slot_bytes = slot_bytes,
            .origin_slots = origin_slots_of(options.world_size),
            .free_slots = try base.unfilled.list(memory, u16, slot_count),
            .free_count = 0,
            .chunk_reduced = try base.unfilled.list(memory, u32, partition.chunks),
            .chunk_arriving = try base.unfilled.list(memory, u32, partition.chunks),
            .chunk_left = try base.unfilled.list(memory, u32, partition.chunks),
            .chunk_digest = try base.unfilled.list(memory, u128, partition.chunks),
            .kept = try .in_arena(memory, partition.chunks),
            .voided = try .in_arena(memory, partition.chunks),
            .own_left = try .in_arena(memory, pieces),
            .positions = try base.unfilled.list(memory, u16, options.world_size),
            .saved = try .in_arena(memory, pieces),
            .dirty = try .in_arena(memory, pieces),
            .settled = try .in_arena(memory, pieces),
            .final_seen = try .in_arena(memory, pieces),
            .targets = try base.unfilled.list(memory, Target, options.members_max()),
            .credits = try base.unfilled.list(memory, Credit, options.members_max()),
            // Both, whatever the call asks for: links that break may change the schedule, and then
            // it must not be memory that is missing.
            .ring = try .init(memory, &partition, slot_count),
            .direct = try .init(memory, &partition, options, slot_count),
            .region = undefined,
        };
        executor.region = region;
        for (0..partition.chunks) |chunk| executor.chunk_reset(@intCast(chunk));
        return executor;
    }

    /// The large buffers, once, before the first attempt. A failure changes nothing.
    pub fn reserve(x: *Executor) Allocator.Error!void {
        const encodes_any = x.partition.codec.kind != .none;
        const room = if (encodes_any) x.arrays.encoded_bytes + x.slot_bytes else 0;
        const shadow = try x.pool.take(x.arrays.result_bytes);
        errdefer x.pool.give(shadow);
        const slots = try x.pool.take(x.free_slots.len * x.slot_bytes);
        errdefer x.pool.give(slots);
        x.encoded = try x.pool.take(room);
        x.shadow = shadow;
        x.slots = slots;
        x.settle_own();
        // All that is small, so that it costs no round of the loop.
        if (x.own_left.count > 0) x.work();
    }

    pub fn deinit(x: *Executor) void {
        x.pool.give(x.shadow);
        x.pool.give(x.slots);
        x.pool.give(x.encoded);
        x.region.deinit();
        x.* = undefined;
    }

    fn slots_needed(partition: *const Partition, options: *const Options) usize {
        const descriptor = &options.descriptor;
        const kind = descriptor.kind;
        if (!(kind.reduces() or kind.carries()) or options.world_size < 2) return 0;
        if (kind == .send_recv) return 0; // from memory to memory
        const senders = options.world_size - 1;
        const slot_bytes = @max(1, partition.slot_bytes());
        const by_window = @max(1, options.window_bytes / (slot_bytes * senders));
        // After a loss fewer senders share the same pieces, hence the factor.
        const by_work = @max(1, std.math.divCeil(u64, partition.pieces, 2) catch unreachable);
        const converting: usize =
            if (converts_any(partition)) origin_slots_of(options.world_size) else 0;
        const per_sender = @min(by_window, by_work, 4096);
        return @intCast(@min(per_sender * senders + converting, no_slot - 1));
    }

    /// Some contributions do not travel as they lie in the caller's array.
    fn converts_any(partition: *const Partition) bool {
        if (partition.codec.kind != .none) return true;
        for (partition.shards) |*shard| if (shard.partial_bytes > shard.dtype.size()) return true;
        return false;
    }

    /// One at least on its way to each owner of a direct schedule, so that none waits for another.
    fn origin_slots_of(world_size: u32) u16 {
        if (world_size > direct.members_max) return origin_slots_min;
        return @intCast(@max(origin_slots_min, world_size -| 1));
    }

    // ---- attempts

    pub const Begin = struct {
        attempt: u32,
        schedule: Schedule,
        /// Members alive: in the order of the ring, or of the ranks.
        order: *const base.Order,
        /// Ranks of members that reach all others; they own the chunks of a direct schedule.
        hubs: *const base.Mask,
        /// Ranges that some members hold; null for a first attempt.
        kept: []const KeptRange,
    };

    /// Starts the next attempt. Chunks that are kept stay settled, all others are redone.
    pub fn begin(x: *Executor, options: Begin) void {
        assert(x.members == 0);
        x.attempt = options.attempt;
        x.members = options.order.count;
        x.schedule = options.schedule;
        x.position = options.order.position(x.roles.rank);
        @memset(x.positions, nobody);
        for (options.order.slice(), 0..) |rank, position| x.positions[rank] = @intCast(position);
        x.reset_movement();
        // Before a receiver says what it allows, it is taken to have the same window as this peer.
        x.slots_each = x.slots_per_sender();
        for (x.credits) |*credit| credit.allowed = x.slots_each;

        x.kept.clear();
        x.voided.clear();
        for (options.kept) |range| {
            // Reports of others made it: it may name chunks that this operation does not have.
            const end = @min(range.end, x.partition.chunks);
            for (@min(range.begin, end)..end) |chunk| {
                // Only the audience can hold it; who else says so lies.
                if (x.audience(chunk)) |rank| if (!range.holders.has(rank)) continue;
                // And a source that is there holds what it has, whatever others say.
                if (x.is_not_held_by_source(chunk, &range.holders)) continue;
                x.kept.set_bit(chunk);
                x.held_by(chunk, &range.holders, options.order);
                // If others said so, this peer holds another result than the kept one, and gets
                // that.
                if (!range.holders.has(x.roles.rank)) x.chunk_discard(@intCast(chunk));
            }
        }
        x.give_from_source(options.order);
        x.chunks_wanted = 0;
        for (0..x.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (x.audience(chunk)) |rank| if (x.positions[rank] == nobody) x.voided.set_bit(chunk);
            if (!x.kept.has(chunk) or x.chunk_reduced[chunk] == 0) x.chunk_discard(chunk);
            if (x.voided.has(chunk)) x.keep_residual(chunk);
            if (!x.wants(chunk)) continue;
            x.chunks_wanted += 1;
            if (x.chunk_left[chunk] == 0 and x.chunk_reduced[chunk] == 0) x.chunk_settled(chunk);
        }
        x.final_seen.clear();
        for (x.final_seen.words, x.settled.words) |*seen, settled| seen.* = settled;
        x.final_seen.count = x.settled.count;

        x.frames_owed = 0;
        x.work_next = if (x.members == 1 or x.own_left.count > 0) 0 else x.piece_count();
        if (x.members == 1) return x.work();
        switch (x.schedule) {
            .ring => ring.begin(x),
            .direct => direct.begin(x, options.order, options.hubs),
        }
        if (x.descriptor.kind.is_private()) x.frames_owed = x.owed();
    }

    // ---- whose a chunk is

    /// The rank that alone contributes to it; null: all do.
    pub inline fn source(x: *const Executor, chunk: usize) ?u16 {
        return if (x.is_from_all) null else x.roles.source(x.part_of(chunk));
    }

    /// The rank that alone wants it; null: all do.
    pub inline fn audience(x: *const Executor, chunk: usize) ?u16 {
        return if (x.is_for_all) null else x.roles.audience(x.part_of(chunk));
    }

    /// The number of its shard, among those of its array.
    fn part_of(x: *const Executor, chunk: usize) usize {
        return x.partition.shard_of_chunk(chunk) / x.arrays.list.len;
    }

    pub fn rank_at(x: *const Executor, wanted: u16) u16 {
        for (x.positions, 0..) |position, rank| if (position == wanted) return @intCast(rank);
        unreachable;
    }

    /// Elements that this peer sends to a rank and wants of it, in an uneven all_to_all.
    pub fn exchanged_with(x: *const Executor, rank: u16) struct { u64, u64 } {
        const shards = x.partition.shards;
        const ranks = x.positions.len;
        const to = &shards[x.roles.rank * ranks + rank];
        const from = &shards[rank * ranks + x.roles.rank];
        return .{ to.elements, from.elements };
    }

    /// The audience's position; the chunk is not void.
    pub inline fn audience_position(x: *const Executor, chunk: usize) ?u16 {
        return x.positions[x.audience(chunk) orelse return null];
    }

    pub inline fn source_position(x: *const Executor, chunk: usize) ?u16 {
        return x.positions[x.source(chunk) orelse return null];
    }

    /// Whether it is a part of this peer's result.
    pub fn wants(x: *const Executor, chunk: usize) bool {
        if (x.voided.has(chunk)) return false;
        const rank = x.audience(chunk) orelse return true;
        return rank == x.roles.rank;
    }

    /// Whether nothing moves for it but final bytes, if anything.
    pub fn is_done(x: *const Executor, chunk: usize) bool {
        return x.kept.has(chunk) or x.voided.has(chunk);
    }

    /// A chunk that nobody else holds comes from its source. If that is lost, the chunk is void;
    /// without `resume`, so is all of its shard, so that a shard is there or is not.
    fn give_from_source(x: *Executor, order: *const base.Order) void {
        const chunks = x.partition.chunks;
        if (x.is_from_all) return;
        for (0..chunks) |chunk| {
            if (x.kept.has(chunk)) continue;
            const rank = x.source(chunk).?;
            if (x.positions[rank] == nobody) {
                x.give_up_chunk(@intCast(chunk));
                continue;
            }
            // A carried chunk is held by its audience alone, which may be its source.
            if (x.descriptor.kind.carries() and x.audience(chunk).? != rank) continue;
            var holder: base.Mask = .empty;
            holder.set(rank);
            x.kept.set_bit(chunk);
            x.held_by(chunk, &holder, order);
        }
        if (x.voided.count == 0 or x.descriptor.recovery == .resume_chunks) return;
        const shards = x.partition.shards;
        var index: usize = 0;
        while (index < shards.len) : (index += x.arrays.list.len) {
            const first = shards[index].first_chunk;
            const next_index = index + x.arrays.list.len;
            const end = if (next_index < shards.len) shards[next_index].first_chunk else chunks;
            const is_void = for (first..end) |chunk| {
                if (x.voided.has(chunk)) break true;
            } else false;
            if (is_void) for (first..end) |chunk| x.give_up_chunk(@intCast(chunk));
        }
    }

    /// It is zeros for everybody who would have received it.
    fn give_up_chunk(x: *Executor, chunk: u32) void {
        x.kept.unset_bit(chunk);
        x.voided.set_bit(chunk);
        if (!x.has_target(chunk)) return;
        const first: usize = @intCast(x.partition.first_piece(chunk));
        for (first..first + x.partition.pieces_of(chunk)) |piece| @memset(x.overwrite(piece), 0);
    }

    /// Nobody gets anything of it, so nothing is given back and nothing is lost.
    fn keep_residual(x: *Executor, chunk: u32) void {
        const first: usize = @intCast(x.partition.first_piece(chunk));
        for (first..first + x.partition.pieces_of(chunk)) |piece| {
            const rest = x.residual_of(piece) orelse return;
            @memmove(rest.out, rest.in[0 .. x.partition.elements(piece) * @sizeOf(f32)]);
        }
    }

    /// The frames that others wait for, of private results: one for each piece that goes on.
    fn owed(x: *const Executor) u64 {
        var frames: u64 = 0;
        for (0..x.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (x.is_done(chunk)) continue;
            const passes = switch (x.schedule) {
                .ring => ring.passes_here(x, chunk),
                .direct => direct.passes_here(x, chunk),
            };
            if (passes) frames += x.partition.pieces_of(chunk);
        }
        return frames;
    }

    fn is_not_held_by_source(x: *const Executor, chunk: usize, holders: *const base.Mask) bool {
        if (x.descriptor.kind.carries()) return false; // its audience has it
        const rank = x.source(chunk) orelse return false;
        return x.positions[rank] != nobody and !holders.has(rank);
    }

    fn held_by(x: *Executor, chunk: usize, ranks: *const base.Mask, order: *const base.Order) void {
        switch (x.schedule) {
            .ring => ring.held_by(x, chunk, ranks, order),
            .direct => direct.held_by(x, chunk, ranks, order),
        }
    }

    /// Ends the attempt: nothing moves until the next begin. The caller has made sure that no lane
    /// still reads or writes slots and results.
    pub fn halt(x: *Executor) void {
        x.members = 0;
        x.slots_each = 0;
    }

    fn reset_movement(x: *Executor) void {
        x.free_count = @intCast(x.free_slots.len);
        x.origin_held = 0;
        // The lowest slots are handed out first and so stay in cache.
        for (x.free_slots, 0..) |*entry, index| {
            entry.* = @intCast(x.free_slots.len - 1 - index);
        }
        @memset(x.credits, .{});
        @memset(x.targets, .{});
        x.ring.reset();
        x.direct.reset();
    }

    fn chunk_reset(x: *Executor, chunk: u32) void {
        x.chunk_reduced[chunk] = 0;
        x.chunk_arriving[chunk] = 0;
        x.chunk_left[chunk] = x.partition.pieces_of(chunk);
        x.chunk_digest[chunk] = 0;
    }

    fn chunk_discard(x: *Executor, chunk: u32) void {
        if (x.chunk_reduced[chunk] != 0) x.chunks_settled -= 1;
        x.chunk_reset(chunk);
        const first = x.partition.first_piece(chunk);
        for (0..x.partition.pieces_of(chunk)) |index| x.settled.unset_bit(@intCast(first + index));
    }

    /// Something is to be done here before `complete` that no frame brings about.
    pub fn has_work(x: *const Executor) bool {
        return x.members > 0 and x.work_next < x.piece_count();
    }

    /// Some of it, so that whoever shares the thread is not kept waiting by gigabytes: what a world
    /// of one does, and what this peer is the source of.
    pub fn work(x: *Executor) void {
        var bytes: usize = 0;
        while (x.work_next < x.piece_count() and bytes < x.work_bytes) {
            const piece = x.work_next;
            x.work_next += 1;
            if (x.own_left.has(piece)) {
                // Just before it is sent, or else now.
                if (x.is_due(piece)) continue;
                x.bring_own(piece);
            } else if (x.members == 1 and !x.settled.has(piece) and x.is_own_result(piece)) {
                x.finish_alone(piece);
            } else continue;
            bytes += x.piece_bytes(piece);
        }
    }

    pub const work_bytes_max = 2 * base.limits.MiB;

    /// Whether nobody else contributes to it. One that comes from another member, and of which
    /// somebody has said that this peer holds it, can be had from nobody.
    fn is_own_result(x: *const Executor, piece: usize) bool {
        const chunk = x.partition.chunk_of(piece);
        return x.wants(chunk) and (x.source(chunk) orelse x.roles.rank) == x.roles.rank;
    }

    fn finish_alone(x: *Executor, piece: usize) void {
        const count = x.partition.elements(piece);
        const mine = x.own(piece);
        const out = x.overwrite(piece);
        kernels.finish_one(x.descriptor.op, x.dtype_of(piece), out.ptr, mine, count);
        // Nothing was encoded, so nothing is given back and nothing is lost.
        if (x.residual_of(piece)) |rest| @memmove(rest.out, rest.in[0 .. count * @sizeOf(f32)]);
        x.add_digest(piece, out);
        x.settle(piece, x.attempt);
    }

    /// A source has its own chunks of the result from the start; their bytes come later.
    fn settle_own(x: *Executor) void {
        if (x.is_from_all) return;
        for (0..x.piece_count()) |piece| {
            const chunk = x.partition.chunk_of(piece);
            if (x.source(chunk).? != x.roles.rank or !x.wants(chunk)) continue;
            x.own_left.set_bit(piece);
            x.settle(piece, 1);
        }
    }

    /// Brings a piece of which this peer is the source to its result.
    fn bring_own(x: *Executor, piece: usize) void {
        if (!x.own_left.has(piece)) return;
        x.own_left.unset_bit(piece);
        if (x.encodes() and !x.descriptor.kind.is_private()) {
            // All have the decoded values, this peer as well.
            const out = x.encoded_piece(piece).ptr;
            kernels.encode(x.encoding(piece, .contribution), out, x.own(piece), null);
            x.decode(piece);
        } else if (!x.in_place(piece)) {
            const out = x.overwrite(piece);
            const mine = x.own(piece)[0..out.len];
            if (x.descriptor.kind.is_private()) x.copy_unread(out, mine) else @memcpy(out, mine);
        }
        x.add_digest(piece, x.final_piece(piece));
    }

    /// Its final bytes will go out from here.
    fn is_due(x: *const Executor, piece: usize) bool {
        if (x.members < 2) return false;
        return switch (x.schedule) {
            .ring => x.ring.final_ready.has(piece),
            .direct => direct.is_due(x, piece),
        };
    }

    // ---- pieces

    pub fn dtype_of(x: *const Executor, piece: usize) base.DType {
        return x.partition.shards[x.partition.shard_of(piece)].dtype;
    }

    fn at(x: *const Executor, piece: usize) *const Arrays.Place {
        return &x.arrays.places[x.partition.shard_of(piece)];
    }

    /// The result grows over the contribution: what was overwritten is read from `shadow`.
    fn in_place(x: *const Executor, piece: usize) bool {
        return x.arrays.in_place(x.partition.shard_of(piece));
    }

    /// This peer's contribution.
    pub fn own(x: *const Executor, piece: usize) [*]const u8 {
        if (x.is_aside or (x.dirty.has(piece) and x.in_place(piece)))
            return x.shadow_piece(piece).ptr;
        const found = x.partition.place_of(piece);
        return x.arrays.send(found.shard) + found.before * found.dtype.size();
    }

    /// Where it is in the result, which has it.
    pub fn target_piece(x: *const Executor, piece: usize) []u8 {
        if (x.is_aside) return x.shadow_piece(piece);
        const found = x.partition.place_of(piece);
        const size = found.dtype.size();
        const start = x.arrays.recv(found.shard) + found.before * size;
        return start[0 .. found.elements * size];
    }

    /// The caller has it back as it was, if the call fails.
    fn is_kept(x: *const Executor, piece: usize) bool {
        return x.arrays.is_kept[x.at(piece).array];
    }

    fn shadow_piece(x: *const Executor, piece: usize) []u8 {
        const found = x.partition.place_of(piece);
        const size = found.dtype.size();
        const start = x.arrays.places[found.shard].shadow + found.before * size;
        return x.shadow[start..][0 .. found.elements * size];
    }

    fn in_target(x: *const Executor, piece: usize) bool {
        return x.at(piece).recv != Arrays.nowhere;
    }

    /// Whether a chunk is a part of what this peer receives, void or not.
    pub fn has_target(x: *const Executor, chunk: u32) bool {
        return x.arrays.places[x.partition.shard_of_chunk(chunk)].recv != Arrays.nowhere;
    }

    pub fn has_elements(x: *const Executor, chunk: u32) bool {
        return x.has_target(chunk) and x.partition.pieces_of(chunk) > 0;
    }

    /// The elements of this peer's result before a chunk of it: its arrays one after the other,
    /// for each rank's shard in turn.
    pub fn result_first(x: *const Executor, chunk: u32) u64 {
        const index = x.partition.shard_of_chunk(chunk);
        const within = x.partition.chunk_offset(chunk) - x.partition.shards[index].first;
        return x.arrays.places[index].result + within;
    }

    fn piece_count(x: *const Executor) usize {
        return @intCast(x.partition.pieces);
    }

    pub fn piece_bytes(x: *const Executor, piece: usize) usize {
        const found = x.partition.place_of(piece);
        return found.elements * found.dtype.size();
    }

    // ---- codecs

    pub fn encodes(x: *const Executor) bool {
        return x.partition.codec.kind != .none;
    }

    pub const Stage = enum { contribution, result };

    /// The kernels' description of a piece that this peer encodes.
    pub fn encoding(x: *const Executor, piece: usize, stage: Stage) kernels.Piece {
        return .{
            .codec = x.partition.codec,
            .dtype = x.dtype_of(piece),
            .count = x.partition.elements(piece),
            .seed = 0,
            .operation = x.operation,
            .origin = @as(u32, x.roles.rank) << 1 | @intFromEnum(stage),
            .first = x.partition.coded_offset(piece),
        };
    }

    pub fn residual_of(x: *const Executor, piece: usize) ?kernels.Residual {
        const whole = x.residual orelse return null;
        const found = x.partition.place_of(piece);
        const first: usize = @intCast(x.arrays.places[found.shard].residual);
        const start = (first + found.before) * @sizeOf(f32);
        return .{ .in = whole.in + start, .out = whole.out + start };
    }

    /// The final bytes of a piece of the result as they travel.
    pub fn encoded_piece(x: *const Executor, piece: usize) []u8 {
        const index = x.partition.shard_of(piece);
        const shard = &x.partition.shards[index];
        const codec = x.partition.codec;
        const before = (piece - shard.first_piece) * codec.encoded_bytes(shard.piece_elements);
        return x.encoded[x.arrays.places[index].encoded + before ..][0..x.encoded_bytes(piece)];
    }

    /// For bytes that may not go where they will be just yet.
    pub fn aside(x: *const Executor, piece: usize) []u8 {
        return x.encoded[x.arrays.encoded_bytes..][0..x.encoded_bytes(piece)];
    }

    fn encoded_bytes(x: *const Executor, piece: usize) usize {
        return x.partition.codec.encoded_bytes(x.partition.elements(piece));
    }

    fn final_piece(x: *const Executor, piece: usize) []u8 {
        return if (x.encodes()) x.encoded_piece(piece) else x.target_piece(piece);
    }

    /// The divisor of an average whose last contribution is added now.
    pub fn divisor(x: *const Executor) u32 {
        return if (x.descriptor.op == .avg) x.members else 1;
    }

    /// The encoded result of a piece is there: decoded, everybody has the same.
    pub fn decode(x: *Executor, piece: usize) void {
        const out = x.overwrite(piece);
        kernels.decode(x.encoding(piece, .result), out.ptr, x.encoded_piece(piece).ptr);
    }

    /// All contributions to a piece of the result are here, all but this peer's encoded: it is
    /// added after `position` of them. A result that others want too is encoded once more; one that
    /// this peer alone wants is not.
    pub fn reduce_encoded(
        x: *Executor,
        piece: usize,
        position: usize,
        inputs: []const [*]const u8,
    ) void {
        if (!x.descriptor.kind.is_private()) {
            x.encode_sum(piece, x.encoded_piece(piece).ptr, position, inputs);
            return x.decode(piece);
        }
        const out = x.overwrite(piece).ptr;
        const what = x.encoding(piece, .result);
        const rest = x.residual_of(piece);
        kernels.reduce_decode(what, out, x.own(piece), position, inputs, rest, x.divisor());
    }

    pub fn encode_sum(
        x: *Executor,
        piece: usize,
        out: [*]u8,
        position: usize,
        inputs: []const [*]const u8,
    ) void {
        const what = x.encoding(piece, .result);
        const rest = x.residual_of(piece);
        kernels.reduce_encode(what, out, x.own(piece), position, inputs, rest, x.divisor());
    }

    // ---- the undo log

    /// Where a piece of the result is about to be written.
    pub fn overwrite(x: *Executor, piece: usize) []u8 {
        x.save(piece);
        x.dirty.set_bit(piece);
        return x.target_piece(piece);
    }

    /// A contribution is read for the last time before it may be overwritten.
    pub fn save_own(x: *Executor, piece: usize) void {
        if (x.in_place(piece)) x.save(piece);
    }

    fn save(x: *Executor, piece: usize) void {
        if (x.saved.has(piece) or !x.is_kept(piece)) return;
        x.saved.set_bit(piece);
        const from = x.target_piece(piece);
        const to = x.shadow_piece(piece);
        x.copy_unread(to, from);
    }

    /// For bytes that are not read again soon: most of a large undo log is never read.
    fn copy_unread(x: *const Executor, to: []u8, from: []const u8) void {
        if (x.shadow.len >= large_bytes) kernels.copy_past(to.ptr, from.ptr, from.len) //
        else @memcpy(to, from);
    }

    const large_bytes = base.limits.MiB;

    /// The call has failed: what was in place is as it was. No lane uses it any more.
    pub fn restore(x: *Executor) void {
        assert(x.members == 0);
        for (0..x.piece_count()) |piece| {
            if (!x.dirty.has(piece) or !x.saved.has(piece)) continue;
            @memcpy(x.target_piece(piece), x.shadow_piece(piece));
        }
        x.dirty.clear();
    }

    /// The call returns in doubt: what was in place is as it was, and the result, which others may
    /// still need, is in `shadow`. No lane uses either.
    pub fn set_aside(x: *Executor) void {
        for (0..x.piece_count()) |piece| {
            if (!x.in_target(piece)) continue;
            const result = x.target_piece(piece);
            const before = x.shadow_piece(piece);
            if (x.dirty.has(piece) and x.saved.has(piece)) swap(result, before) //
            else @memcpy(before, result);
            x.saved.set_bit(piece); // nothing of the caller's is left here
        }
        // Nothing is contributed any more: what this peer has voted for is all it gives.
        x.is_aside = true;
        x.residual = null;
        x.dirty.clear();
    }

    /// After it was set aside and committed: the result goes to the caller after all, once.
    pub fn hand_over(x: *const Executor) void {
        assert(x.is_aside);
        for (x.arrays.places, x.partition.shards, 0..) |*from, *shard, index| {
            const bytes = shard.bytes();
            if (from.recv == Arrays.nowhere or bytes == 0) continue;
            kernels.copy_past(x.arrays.recv(index), x.shadow.ptr + from.shadow, bytes);
        }
    }

    fn swap(a: []u8, b: []u8) void {
        var between: [4096]u8 = undefined;
        var start: usize = 0;
        while (start < a.len) {
            const bytes = @min(between.len, a.len - start);
            @memcpy(between[0..bytes], a[start..][0..bytes]);
            @memcpy(a[start..][0..bytes], b[start..][0..bytes]);
            @memcpy(b[start..][0..bytes], between[0..bytes]);
            start += bytes;
        }
    }

    // ---- slots

    pub fn slot(x: *const Executor, index: u16) []u8 {
        return x.slots[index * x.slot_bytes ..][0..x.slot_bytes];
    }

    /// The value of `slots_each`, from the beginning of an attempt on.
    fn slots_per_sender(x: *const Executor) u32 {
        if (x.members < 2 or x.free_slots.len == 0) return 0;
        const reserved: usize = if (converts_any(&x.partition)) x.origin_slots else 0;
        // Round the ring, what comes in is for the root alone.
        const one_owner = x.schedule == .ring and x.descriptor.kind.ends_at_root();
        const senders = if (one_owner) 1 else x.members - 1;
        return @intCast(@max(1, (x.free_slots.len - reserved) / senders));
    }

    /// Contributions of this peer do not travel as they lie in its buffer.
    fn converts(x: *const Executor, piece: usize) bool {
        if (x.encodes()) return true;
        if (x.schedule == .direct) return false;
        const shard = &x.partition.shards[x.partition.shard_of(piece)];
        return shard.partial_bytes > shard.dtype.size();
    }

    pub fn slot_take(x: *Executor) u16 {
        x.free_count -= 1;
        return x.free_slots[x.free_count];
    }

    pub fn slot_give(x: *Executor, index: u16) void {
        x.free_slots[x.free_count] = index;
        x.free_count += 1;
    }

    /// A slot for a sum or contribution that comes in, of those that its sender was promised.
    pub fn place_in_slot(
        x: *Executor,
        header: *const wire.frame.Header,
        piece: usize,
        credit: *Credit,
    ) PlaceError!Place {
        const bytes = x.partial_piece_bytes(piece);
        if (header.payload_bytes != bytes) return error.WrongLength;
        if (credit.held >= x.slots_each or x.free_count == 0) return error.NoCredit;
        credit.held += 1;
        const index = x.slot_take();
        return .{ .bytes = x.slot(index)[0..bytes], .slot = index };
    }

    /// A slot that came in is free again: its sender may fill it once more.
    pub fn slot_free(x: *Executor, credit: *Credit, index: u16) void {
        x.slot_give(index);
        credit.held -= 1;
        credit.freed += 1;
    }

    /// This peer's contribution as it travels, for a piece whose sum starts with it. Null: no slot
    /// is free for it.
    pub fn contribution(x: *Executor, piece: usize) ?Contribution {
        x.save_own(piece);
        const count = x.partition.elements(piece);
        const mine = x.own(piece);
        if (!x.converts(piece)) return .{ .slot = no_slot, .bytes = mine[0..x.piece_bytes(piece)] };
        // More would take slots that others have been promised.
        if (x.free_count == 0 or x.origin_held == x.origin_slots) return null;
        x.origin_held += 1;
        const index = x.slot_take();
        const into = x.slot(index);
        if (x.encodes()) {
            const residual = x.residual_of(piece);
            kernels.encode(x.encoding(piece, .contribution), into.ptr, mine, residual);
        } else kernels.first(x.descriptor.op, x.dtype_of(piece), into.ptr, mine, count);
        return .{ .slot = index, .bytes = into[0..x.partial_piece_bytes(piece)] };
    }

    pub const Contribution = struct { slot: u16, bytes: []const u8 };

    pub fn partial_piece_bytes(x: *const Executor, piece: usize) usize {
        if (x.encodes()) return x.encoded_bytes(piece);
        const shard = &x.partition.shards[x.partition.shard_of(piece)];
        const bytes = switch (x.schedule) {
            .ring => shard.partial_bytes,
            .direct => shard.dtype.size(),
        };
        return x.partition.elements(piece) * bytes;
    }

    // ---- what comes in

    pub const Place = struct { bytes: []u8, slot: u16 };
    pub const PlaceError = error{ UnknownPiece, WrongLength, Twice, NoCredit, WrongPhase };

    /// Whether frames of this attempt may come from that position.
    pub fn receives_from(x: *const Executor, from: u16) bool {
        if (from >= x.members or from == x.position) return false;
        return switch (x.schedule) {
            .ring => from == ring.predecessor(x),
            .direct => true,
        };
    }

    /// Where the payload of this frame goes. Errors are breaches of the protocol by the sender.
    pub fn place(x: *Executor, header: *const wire.frame.Header, from: u16) PlaceError!Place {
        assert(x.members > 1 and x.receives_from(from));
        const piece = x.partition.numbered(header.index) orelse return error.UnknownPiece;
        return switch (header.kind) {
            .partial => switch (x.schedule) {
                .ring => ring.place_partial(x, header, piece),
                .direct => direct.place_partial(x, header, piece, from),
            },
            .final => x.place_final(header, piece, from),
            .open, .credit, .ping, .want, .leaf, .hashes, .lack => error.WrongPhase,
        };
    }

    fn place_final(
        x: *Executor,
        header: *const wire.frame.Header,
        piece: usize,
        from: u16,
    ) PlaceError!Place {
        if (x.final_seen.has(piece)) return error.Twice;
        const chunk = x.partition.chunk_of(piece);
        if (!x.wants(chunk)) return error.WrongPhase;
        const expected = switch (x.schedule) {
            .ring => ring.gives(x, chunk),
            .direct => direct.gives(x, chunk, from),
        };
        if (!expected) return error.WrongPhase;
        if (header.payload_bytes != x.final_piece(piece).len) return error.WrongLength;
        if (header.reduced_attempt == 0 or header.reduced_attempt > x.attempt)
            return error.WrongPhase;
        x.final_seen.set_bit(piece);
        const bytes = if (x.encodes()) x.encoded_piece(piece) else x.overwrite(piece);
        return .{ .bytes = bytes, .slot = no_slot };
    }

    /// The payload of a placed frame is complete. Whether there may be more to send now.
    pub fn arrived(x: *Executor, header: *const wire.frame.Header, slot_index: u16) bool {
        assert(x.members > 1);
        const piece = x.partition.numbered(header.index).?;
        x.bytes_received += header.payload_bytes;
        if (header.kind == .final) {
            if (x.encodes()) x.decode(piece);
            x.finish(piece, header.reduced_attempt);
            // From the owner of a direct schedule, everybody has had it.
            return x.schedule == .ring or x.kept.has(x.partition.chunk_of(piece));
        }
        switch (x.schedule) {
            .ring => ring.arrived(x, piece, slot_index),
            .direct => direct.arrived(x, piece),
        }
        return x.schedule == .ring or x.final_seen.has(piece);
    }

    /// The final bytes of a piece are in the result: they go on to whoever waits for them here.
    pub fn finish(x: *Executor, piece: usize, reduced_attempt: u32) void {
        x.add_digest(piece, x.final_piece(piece));
        x.settle(piece, reduced_attempt);
        if (x.descriptor.kind.is_private()) return;
        switch (x.schedule) {
            .ring => ring.forward_final(x, piece),
            .direct => direct.forward_final(x, piece),
        }
    }

    /// Counts a piece as all members have it: as it travels, or as it is if finished alone.
    fn add_digest(x: *Executor, piece: usize, bytes: []const u8) void {
        if (x.descriptor.kind.is_private()) return;
        const chunk = x.partition.chunk_of(piece);
        x.chunk_digest[chunk] +%= kernels.digest(bytes, x.partition.offset(piece));
    }

    fn settle(x: *Executor, piece: usize, reduced_attempt: u32) void {
        const chunk = x.partition.chunk_of(piece);
        x.settled.set_bit(piece);
        x.final_seen.set_bit(piece);
        x.chunk_arriving[chunk] = reduced_attempt;
        x.chunk_left[chunk] -= 1;
        if (x.chunk_left[chunk] > 0) return;
        x.chunk_settled(chunk);
    }

    fn chunk_settled(x: *Executor, chunk: u32) void {
        // One without pieces has been done in this attempt.
        if (x.chunk_arriving[chunk] == 0) x.chunk_arriving[chunk] = x.attempt;
        x.chunk_reduced[chunk] = x.chunk_arriving[chunk];
        x.chunks_settled += 1;
    }

    // ---- to those who send here

    pub const Grant = struct { class: u16, allowed: u64 };

    /// The credit of a sender once it knows that this peer has called: told in the open frame.
    pub fn initial_credit(x: *const Executor) u64 {
        return x.slots_each;
    }

    /// The freed slots to tell this sender of; null if none. Told in quarters of the
    /// window, so that credits cost little.
    pub fn next_grant(x: *Executor, from: u16) ?Grant {
        if (x.members < 2) return null;
        return switch (x.schedule) {
            .ring => for (0..x.members) |class| {
                if (x.grant(class)) |allowed|
                    break .{ .class = @intCast(class), .allowed = allowed };
            } else null,
            .direct => .{ .class = 0, .allowed = x.grant(from) orelse return null },
        };
    }

    fn grant(x: *Executor, index: usize) ?u64 {
        const credit = &x.credits[index];
        const window = x.slots_each;
        if (credit.freed - credit.announced < @max(1, window / 4)) return null;
        credit.announced = credit.freed;
        return credit.freed + window;
    }

    // ---- from those whom this peer sends to

    pub fn opened(x: *Executor, to: u16, credit: u64) void {
        if (x.targets[to].open) return;
        x.targets[to].open = true;
        switch (x.schedule) {
            .ring => for (x.credits) |*entry| open_credit(entry, credit),
            .direct => open_credit(&x.credits[to], credit),
        }
    }

    fn open_credit(entry: *Credit, credit: u64) void {
        entry.allowed = @max(entry.used, credit, entry.granted);
    }

    pub fn credited(
        x: *Executor,
        to: u16,
        class: u16,
        allowed: u64,
    ) error{UnknownPiece}!void {
        const index = switch (x.schedule) {
            .ring => class,
            .direct => if (class == 0) to else return error.UnknownPiece,
        };
        if (index >= x.members) return error.UnknownPiece;
        const entry = &x.credits[index];
        entry.granted = @max(entry.granted, allowed);
        entry.allowed = @max(entry.allowed, allowed);
    }

    // ---- what goes out

    pub const Out = struct {
        kind: wire.frame.Kind,
        piece: u64,
        class: u16,
        reduced_attempt: u32,
        slot: u16,
        /// Whose slot it is, if this peer has added up what another wants.
        from: u16 = nobody,
        payload: []const u8,
    };

    pub fn sends_to(x: *const Executor, to: u16) bool {
        if (to >= x.members or to == x.position) return false;
        return switch (x.schedule) {
            .ring => to == ring.successor(x),
            .direct => true,
        };
    }

    /// The next frame for this position; null if nothing can be sent now.
    pub fn next(x: *Executor, to: u16) ?Out {
        if (x.members < 2) return null;
        const target = &x.targets[to];
        // A peer that, as far as is known, has not called yet is sent only little (limits.zig).
        const is_eager = !target.open;
        if (is_eager and target.eager_bytes + x.slot_bytes > base.limits.eager_bytes_max)
            return null;
        const out = switch (x.schedule) {
            .ring => ring.next(x, is_eager),
            .direct => direct.next(x, to, is_eager),
        } orelse return null;
        if (is_eager) target.eager_bytes += out.payload.len;
        x.bytes_sent += out.payload.len;
        return out;
    }

    /// Null: no slot is free for what is carried from here.
    pub fn final_out(x: *Executor, piece: usize) ?Out {
        var out: Out = .{
            .kind = .final,
            .piece = piece,
            .class = 0,
            .reduced_attempt = x.chunk_arriving[x.partition.chunk_of(piece)],
            .slot = no_slot,
            .payload = undefined,
        };
        if (x.descriptor.kind.carries()) {
            const contributed = x.contribution(piece) orelse return null;
            out.reduced_attempt = x.attempt;
            out.slot = contributed.slot;
            out.payload = contributed.bytes;
        } else {
            x.bring_own(piece);
            out.payload = x.final_piece(piece);
        }
        return out;
    }

    pub fn partial_out(piece: u64, class: u16, contributed: Contribution) Out {
        return .{
            .kind = .partial,
            .piece = piece,
            .class = class,
            .reduced_attempt = 0,
            .slot = contributed.slot,
            .payload = contributed.bytes,
        };
    }

    /// A frame of `next` has left: its slot is free again.
    pub fn sent(x: *Executor, out: *const Out) void {
        assert(x.members > 1);
        x.frames_owed -|= 1;
        if (out.slot == no_slot) return;
        if (x.credit_of(out)) |credit| return x.slot_free(credit, out.slot);
        x.origin_held -= 1;
        x.slot_give(out.slot);
    }

    /// Whose slot it was that has left: a neighbour's, or null for this peer's contribution.
    fn credit_of(x: *Executor, out: *const Out) ?*Credit {
        const chunk = x.partition.chunk_of(out.piece);
        return switch (x.schedule) {
            .ring => if (ring.is_origin(x, chunk)) null else &x.credits[out.class],
            .direct => if (out.from == nobody) null else &x.credits[out.from],
        };
    }

    // ---- results

    /// This peer has its result, and others have from it what they need for a private one.
    pub fn complete(x: *const Executor) bool {
        if (x.chunks_settled != x.chunks_wanted or x.frames_owed > 0) return false;
        if (x.own_left.count > 0) return false;
        // The other side of a message must have called, also where there is nothing to move.
        return x.descriptor.kind != .send_recv or x.targets[1 - x.position].open;
    }

    /// Order-independent digest of what all members have; 0 where results are private.
    pub fn digest(x: *const Executor) u128 {
        if (x.descriptor.kind.is_private()) return 0;
        var total: u128 = 0;
        for (x.chunk_digest) |part| total +%= part;
        return total;
    }
};
