//! Executor: the moves of one operation over a chunked, pipelined ring, one attempt at a time.
//!
//! Positions 0..n-1 are the members that are alive, in rank order unless broken links demand
//! another (protocol/plan.zig); each sends to the next.
//! Chunk c is owned by position c mod n. Its partial
//! sum starts behind the owner, travels all the way round to it while everybody adds its own part,
//! and is finished there; the final bytes travel on from the owner until everybody has them. A
//! broadcast is the second half alone: all chunks are final at the root. After a loss, chunks that
//! some survivors hold travel on from them in the same way.
//!
//! The result grows in the caller's buffer. Each piece of it is saved in `shadow` before its first
//! byte is overwritten, so that a call that fails gives back what was there (docs/PROMISE.md, P3);
//! an in-place call saves it in the step that reads it anyway. Partial sums wait in slots. Every
//! owner has slots of its own at every rank, so partial sums of one owner never wait for those of
//! another and no cycle of full buffers can form.
//!
//! Who calls: session/session.zig. Steps and bytes: docs/ALGORITHMS.md.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const Partition = @import("partition.zig").Partition;
const Pool = @import("pool.zig").Pool;
const Allocator = std.mem.Allocator;
const BitSet = base.BitSet;
const Descriptor = wire.control.Descriptor;
const KeptRange = wire.control.KeptRange;
const assert = std.debug.assert;

pub const Executor = struct {
    gpa: Allocator,
    pool: *Pool,
    descriptor: Descriptor,
    partition: Partition,
    /// The caller's contribution; read until this peer has voted.
    send: [*]const u8,
    /// Where the result grows: the caller's buffer, or `shadow` once it was set aside.
    target: [*]u8,
    /// What `target` held before it was written: the undo log.
    shadow: Pool.Buffer,

    slots: Pool.Buffer,
    slot_bytes: usize,
    free_slots: []u16,
    free_count: u16,
    /// Slots that hold a widened contribution of this peer on its way out; at most origin_slots.
    origin_held: u16 = 0,

    // Per chunk; chunk_reduced is the attempt that reduced a settled chunk, 0 while it is not
    // settled.
    chunk_reduced: []u32,
    chunk_arriving: []u32,
    chunk_left: []u32,
    chunk_digest: []u128,
    chunks_settled: u32 = 0,
    kept: BitSet,
    successor_holds: BitSet,

    // Per piece.
    saved: BitSet,
    dirty: BitSet,
    settled: BitSet,
    final_seen: BitSet,
    final_ready: BitSet,
    partial_seen: BitSet,
    final_cursor: usize = 0,

    // The attempt under way; `members` 0 while stopped.
    attempt: u32 = 0,
    position: u16 = 0,
    members: u16 = 0,
    successor_open: bool = false,
    /// Payload sent in this attempt before the successor opened.
    eager_bytes: usize = 0,
    /// Partial sums per owner that may still come in, and the piece to start next.
    credits: []Credit,
    ready: std.ArrayList(Partial),
    origin_next: u64 = 0,
    /// The piece that a world of one does next.
    alone_next: usize = 0,

    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,

    const Credit = struct {
        /// As receiver: slots of this owner in use, and how many have been freed in this attempt.
        held: u32 = 0,
        freed: u64 = 0,
        announced: u64 = 0,
        /// As sender: what the successor allows, and what was used.
        allowed: u64 = 0,
        /// The part of `allowed` that was said, not guessed: a credit may overtake the open on
        /// another lane.
        granted: u64 = 0,
        used: u64 = 0,
    };
    const Partial = struct { piece: u64, slot: u16 };

    pub const no_slot: u16 = std.math.maxInt(u16);
    /// Slots for contributions that must be widened before they travel.
    const origin_slots = 8;

    pub const Options = struct {
        descriptor: Descriptor,
        send: [*]const u8,
        /// The caller's buffer: `send` itself, or apart from it.
        recv: [*]u8,
        world_size: u32,
        chunk_bytes: u32,
        window_bytes: u64,
        is_root: bool,
    };

    pub fn partition_of(
        descriptor: Descriptor,
        world_size: u32,
        chunk_bytes: u32,
        window: u64,
    ) Partition {
        return Partition.init(.{
            .count = if (descriptor.kind == .barrier) 0 else descriptor.count,
            .element_bytes = descriptor.dtype.size(),
            .partial_bytes = partial_bytes(descriptor),
            .world_size = world_size,
            .chunk_bytes_max = chunk_bytes,
            .window_bytes = window,
        });
    }

    fn partial_bytes(descriptor: Descriptor) usize {
        if (descriptor.kind != .all_reduce) return descriptor.dtype.size();
        return base.dtype.partial_size(descriptor.op, descriptor.dtype);
    }

    /// Reserves everything the operation needs, so that nothing can fail for want of memory later.
    pub fn init(gpa: Allocator, pool: *Pool, options: Options) Allocator.Error!Executor {
        const descriptor = options.descriptor;
        const partition = partition_of(
            descriptor,
            options.world_size,
            options.chunk_bytes,
            options.window_bytes,
        );
        const slot_count = slots_needed(&partition, descriptor, options);
        const slot_bytes = partition.slot_bytes();

        const shadow = try pool.take(@intCast(partition.count * partition.element_bytes));
        errdefer pool.give(shadow);
        const slots = try pool.take(slot_count * slot_bytes);
        errdefer pool.give(slots);
        const free_slots = try gpa.alloc(u16, slot_count);
        errdefer gpa.free(free_slots);
        const chunk_reduced = try gpa.alloc(u32, partition.chunks);
        errdefer gpa.free(chunk_reduced);
        const chunk_arriving = try gpa.alloc(u32, partition.chunks);
        errdefer gpa.free(chunk_arriving);
        const chunk_left = try gpa.alloc(u32, partition.chunks);
        errdefer gpa.free(chunk_left);
        const chunk_digest = try gpa.alloc(u128, partition.chunks);
        errdefer gpa.free(chunk_digest);
        const credits = try gpa.alloc(Credit, options.world_size);
        errdefer gpa.free(credits);
        var kept = try BitSet.init(gpa, partition.chunks);
        errdefer kept.deinit(gpa);
        var successor_holds = try BitSet.init(gpa, partition.chunks);
        errdefer successor_holds.deinit(gpa);
        var saved = try BitSet.init(gpa, @intCast(partition.pieces));
        errdefer saved.deinit(gpa);
        var dirty = try BitSet.init(gpa, @intCast(partition.pieces));
        errdefer dirty.deinit(gpa);
        var settled = try BitSet.init(gpa, @intCast(partition.pieces));
        errdefer settled.deinit(gpa);
        var final_seen = try BitSet.init(gpa, @intCast(partition.pieces));
        errdefer final_seen.deinit(gpa);
        var final_ready = try BitSet.init(gpa, @intCast(partition.pieces));
        errdefer final_ready.deinit(gpa);
        var partial_seen = try BitSet.init(gpa, @intCast(partition.pieces));
        errdefer partial_seen.deinit(gpa);
        var ready: std.ArrayList(Partial) = .empty;
        try ready.ensureTotalCapacity(gpa, slot_count);

        var executor: Executor = .{
            .gpa = gpa,
            .pool = pool,
            .descriptor = descriptor,
            .partition = partition,
            .send = options.send,
            .target = options.recv,
            .shadow = shadow,
            .slots = slots,
            .slot_bytes = slot_bytes,
            .free_slots = free_slots,
            .free_count = 0,
            .chunk_reduced = chunk_reduced,
            .chunk_arriving = chunk_arriving,
            .chunk_left = chunk_left,
            .chunk_digest = chunk_digest,
            .kept = kept,
            .successor_holds = successor_holds,
            .saved = saved,
            .dirty = dirty,
            .settled = settled,
            .final_seen = final_seen,
            .final_ready = final_ready,
            .partial_seen = partial_seen,
            .credits = credits,
            .ready = ready,
        };
        for (0..partition.chunks) |chunk| executor.chunk_reset(@intCast(chunk));
        if (descriptor.kind == .broadcast and options.is_root) executor.settle_all_from_input();
        return executor;
    }

    pub fn deinit(x: *Executor) void {
        x.pool.give(x.shadow);
        x.pool.give(x.slots);
        const gpa = x.gpa;
        gpa.free(x.free_slots);
        gpa.free(x.chunk_reduced);
        gpa.free(x.chunk_arriving);
        gpa.free(x.chunk_left);
        gpa.free(x.chunk_digest);
        gpa.free(x.credits);
        x.kept.deinit(gpa);
        x.successor_holds.deinit(gpa);
        x.saved.deinit(gpa);
        x.dirty.deinit(gpa);
        x.settled.deinit(gpa);
        x.final_seen.deinit(gpa);
        x.final_ready.deinit(gpa);
        x.partial_seen.deinit(gpa);
        x.ready.deinit(gpa);
        x.* = undefined;
    }

    fn slots_needed(partition: *const Partition, descriptor: Descriptor, options: Options) usize {
        if (descriptor.kind != .all_reduce or options.world_size < 2) return 0;
        const owners = options.world_size - 1;
        const slot_bytes = @max(1, partition.slot_bytes());
        const by_window = @max(1, options.window_bytes / (slot_bytes * owners));
        // After a loss fewer owners share the same pieces, hence the factor.
        const by_work = @max(1, std.math.divCeil(u64, partition.pieces, 2) catch unreachable);
        const widening: usize = if (partition.partial_bytes > partition.element_bytes)
            origin_slots
        else
            0;
        const per_owner = @min(by_window, by_work, 4096);
        return @intCast(@min(per_owner * owners + widening, no_slot - 1));
    }

    // ---- attempts

    pub const Begin = struct {
        attempt: u32,
        /// Members alive, in the order of the ring, and the rank of this peer.
        order: *const base.Order,
        rank: u16,
        /// Ranges that some members hold; null for a first attempt.
        kept: []const KeptRange,
        /// The root's rank, for a broadcast.
        root: u16,
    };

    /// Starts the next attempt. Chunks that are kept stay settled, all others are redone.
    pub fn begin(x: *Executor, options: Begin) void {
        assert(x.members == 0);
        const n = options.order.count;
        x.attempt = options.attempt;
        x.members = n;
        x.position = options.order.position(options.rank);
        x.successor_open = false;
        x.eager_bytes = 0;
        x.reset_movement();
        // Before the successor says what it allows, it is taken to have the same window as this
        // peer.
        for (x.credits) |*credit| credit.allowed = x.slots_per_owner();

        const successor = options.order.at(x.position + 1);
        x.kept.clear();
        x.successor_holds.clear();
        for (options.kept) |range| {
            // Reports of others made it: it may name chunks that this operation does not have.
            const end = @min(range.end, x.partition.chunks);
            for (@min(range.begin, end)..end) |chunk| {
                x.kept.set_bit(chunk);
                if (range.holders.has(successor)) x.successor_holds.set_bit(chunk);
                if (base.canary.on(.keep_without_attempt)) x.forget_attempt(@intCast(chunk));
            }
        }
        // A chunk of a broadcast that nobody else holds is still held by the root.
        if (x.descriptor.kind == .broadcast) for (0..x.partition.chunks) |chunk| {
            if (x.kept.has(chunk)) continue;
            x.kept.set_bit(chunk);
            if (successor == options.root) x.successor_holds.set_bit(chunk);
        };
        for (0..x.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            if (!x.kept.has(chunk) or x.chunk_reduced[chunk] == 0) x.chunk_discard(chunk);
        }
        x.final_seen.clear();
        for (x.final_seen.words, x.settled.words) |*seen, settled| seen.* = settled;
        x.final_seen.count = x.settled.count;

        x.alone_next = 0;
        if (n == 1) return x.work_alone();
        for (0..x.partition.chunks) |chunk| {
            if (!x.kept.has(chunk) or x.chunk_reduced[chunk] == 0) continue;
            if (!x.successor_holds.has(chunk)) x.chunk_ready(@intCast(chunk));
        }
        x.origin_next = x.next_origin(0);
    }

    /// Ends the attempt: nothing moves until the next begin. The caller has made sure that no lane
    /// still reads or writes slots and results.
    pub fn halt(x: *Executor) void {
        x.members = 0;
    }

    fn reset_movement(x: *Executor) void {
        x.free_count = @intCast(x.free_slots.len);
        x.origin_held = 0;
        // The lowest slots are handed out first and so stay in cache.
        for (x.free_slots, 0..) |*entry, index| {
            entry.* = @intCast(x.free_slots.len - 1 - index);
        }
        @memset(x.credits, .{});
        x.ready.clearRetainingCapacity();
        x.final_ready.clear();
        x.partial_seen.clear();
        x.final_cursor = 0;
    }

    /// Only a canary does this (base/canary.zig): a kept chunk is listed with the present members.
    fn forget_attempt(x: *Executor, chunk: u32) void {
        if (x.chunk_reduced[chunk] == 0) return;
        x.chunk_reduced[chunk] = x.attempt;
        x.chunk_arriving[chunk] = x.attempt;
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

    fn chunk_ready(x: *Executor, chunk: u32) void {
        const first = x.partition.first_piece(chunk);
        for (0..x.partition.pieces_of(chunk)) |index| {
            x.final_ready.set_bit(@intCast(first + index));
        }
    }

    /// A world of one has something to do before `complete`.
    pub fn is_alone(x: *const Executor) bool {
        return x.members == 1 and !x.complete();
    }

    /// Some of it, so that whoever shares the thread is not kept waiting by gigabytes.
    pub fn work_alone(x: *Executor) void {
        var bytes: usize = 0;
        while (x.alone_next < x.partition.pieces and bytes < alone_bytes_max) {
            const piece = x.alone_next;
            x.alone_next += 1;
            if (x.settled.has(piece)) continue;
            bytes += x.piece_bytes(piece);
            const count = x.partition.elements(piece);
            const mine = x.own(piece);
            const out = x.overwrite(piece);
            kernels.finish_one(x.descriptor.op, x.descriptor.dtype, out.ptr, mine, count);
            x.settle(piece, x.attempt);
        }
    }

    const alone_bytes_max = 8 * base.limits.MiB;

    /// The root of a broadcast has its result from the start.
    fn settle_all_from_input(x: *Executor) void {
        assert(x.in_place());
        for (0..@intCast(x.partition.pieces)) |piece| x.settle(piece, 1);
    }

    // ---- who owns what

    fn owner(x: *const Executor, piece: u64) u16 {
        return @intCast(x.partition.chunk_of(piece) % x.members);
    }

    fn predecessor(x: *const Executor) u16 {
        return (x.position + x.members - 1) % x.members;
    }

    fn successor_position(x: *const Executor) u16 {
        return (x.position + 1) % x.members;
    }

    /// The first piece at or after `from` whose partial sum starts here.
    fn next_origin(x: *const Executor, from: u64) u64 {
        if (x.descriptor.kind != .all_reduce) return x.partition.pieces;
        var piece = from;
        while (piece < x.partition.pieces) {
            const chunk = x.partition.chunk_of(piece);
            if (chunk % x.members == x.predecessor() and !x.kept.has(chunk)) return piece;
            piece = x.partition.first_piece(@as(u64, chunk) + 1);
        }
        return piece;
    }

    /// The result grows over the contribution: what was overwritten is read from `shadow`.
    fn in_place(x: *const Executor) bool {
        return x.send == x.target;
    }

    /// This peer's contribution.
    fn own(x: *const Executor, piece: usize) [*]const u8 {
        const start = x.piece_start(piece);
        if (x.in_place() and x.dirty.has(piece)) return x.shadow.ptr + start;
        return x.send + start;
    }

    fn piece_start(x: *const Executor, piece: usize) usize {
        return @intCast(x.partition.offset(piece) * x.partition.element_bytes);
    }

    fn target_piece(x: *const Executor, piece: usize) []u8 {
        return x.target[x.piece_start(piece)..][0..x.piece_bytes(piece)];
    }

    fn shadow_piece(x: *const Executor, piece: usize) []u8 {
        return x.shadow[x.piece_start(piece)..][0..x.piece_bytes(piece)];
    }

    fn piece_bytes(x: *const Executor, piece: usize) usize {
        return x.partition.elements(piece) * x.partition.element_bytes;
    }

    // ---- the undo log

    /// Where a piece of the result is about to be written.
    fn overwrite(x: *Executor, piece: usize) []u8 {
        x.save(piece);
        x.dirty.set_bit(piece);
        return x.target_piece(piece);
    }

    fn save(x: *Executor, piece: usize) void {
        if (x.saved.has(piece) or base.canary.on(.forget_shadow)) return;
        x.saved.set_bit(piece);
        const from = x.target_piece(piece);
        const to = x.shadow_piece(piece);
        // Most of a large operation's undo log is never read again.
        if (x.shadow.len >= large_bytes) kernels.copy_past(to.ptr, from.ptr, from.len) //
        else @memcpy(to, from);
    }

    const large_bytes = base.limits.MiB;

    /// The call has failed: the caller's buffer is as it was. No lane uses it any more.
    pub fn restore(x: *Executor) void {
        assert(x.members == 0);
        for (0..@intCast(x.partition.pieces)) |piece| {
            if (!x.dirty.has(piece) or !x.saved.has(piece)) continue;
            @memcpy(x.target_piece(piece), x.shadow_piece(piece));
        }
        x.dirty.clear();
    }

    /// The call returns in doubt: the caller's buffer is as it was, and the result, which others
    /// may still need, is in `shadow`. No lane uses either.
    pub fn set_aside(x: *Executor) void {
        for (0..@intCast(x.partition.pieces)) |piece| {
            const in_target = x.target_piece(piece);
            const in_shadow = x.shadow_piece(piece);
            if (x.dirty.has(piece) and x.saved.has(piece)) swap(in_target, in_shadow) //
            else @memcpy(in_shadow, in_target);
            x.saved.set_bit(piece); // nothing of the caller's is left here
        }
        x.target = x.shadow.ptr;
        x.send = x.shadow.ptr;
        x.dirty.clear();
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

    fn slot(x: *const Executor, index: u16) []u8 {
        const bytes = if (base.canary.on(.shared_slots)) &shared_slots else x.slots;
        const number = if (base.canary.on(.shared_slots)) index % 16 else index;
        return bytes[number * x.slot_bytes ..][0..x.slot_bytes];
    }

    var shared_slots: [1 << 20]u8 align(64) = undefined; // canary only; see base/canary.zig

    /// Slots each owner may fill here in this attempt.
    fn slots_per_owner(x: *const Executor) u32 {
        if (x.members < 2 or x.free_slots.len == 0) return 0;
        const reserved: usize = if (x.widens()) origin_slots else 0;
        const owners = x.members - 1;
        return @intCast(@max(1, (x.free_slots.len - reserved) / owners));
    }

    fn widens(x: *const Executor) bool {
        return x.partition.partial_bytes > x.partition.element_bytes;
    }

    // ---- from the predecessor

    pub const Place = struct { bytes: []u8, slot: u16 };
    pub const PlaceError = error{ UnknownPiece, WrongLength, Twice, NoCredit, WrongPhase };

    /// Where the payload of this frame goes. Errors are breaches of the protocol by the sender.
    pub fn place(x: *Executor, header: *const wire.frame.Header) PlaceError!Place {
        assert(x.members > 1);
        if (header.index >= x.partition.pieces) return error.UnknownPiece;
        const piece: usize = @intCast(header.index);
        return switch (header.kind) {
            .partial => x.place_partial(header, piece),
            .final => x.place_final(header, piece),
            .open, .credit, .ping, .want, .leaf, .hashes, .lack => error.WrongPhase,
        };
    }

    fn place_partial(
        x: *Executor,
        header: *const wire.frame.Header,
        piece: usize,
    ) PlaceError!Place {
        const class = x.owner(piece);
        if (x.descriptor.kind != .all_reduce or x.kept.has(x.partition.chunk_of(piece)))
            return error.WrongPhase;
        if (class == x.predecessor()) return error.WrongPhase; // its sums start here
        if (x.partial_seen.has(piece)) return error.Twice;
        const bytes = x.partition.elements(piece) * x.partition.partial_bytes;
        if (header.payload_bytes != bytes) return error.WrongLength;
        const credit = &x.credits[class];
        if (credit.held >= x.slots_per_owner() or x.free_count == 0) return error.NoCredit;
        credit.held += 1;
        x.partial_seen.set_bit(piece);
        x.free_count -= 1;
        const index = x.free_slots[x.free_count];
        return .{ .bytes = x.slot(index)[0..bytes], .slot = index };
    }

    fn place_final(x: *Executor, header: *const wire.frame.Header, piece: usize) PlaceError!Place {
        if (x.final_seen.has(piece)) return error.Twice;
        const chunk = x.partition.chunk_of(piece);
        if (!x.kept.has(chunk) and x.owner(piece) == x.position) return error.WrongPhase;
        if (header.payload_bytes != x.piece_bytes(piece)) return error.WrongLength;
        if (header.reduced_attempt == 0 or header.reduced_attempt > x.attempt)
            return error.WrongPhase;
        x.final_seen.set_bit(piece);
        return .{ .bytes = x.overwrite(piece), .slot = no_slot };
    }

    /// The payload of a placed frame is complete.
    pub fn arrived(x: *Executor, header: *const wire.frame.Header, slot_index: u16) void {
        assert(x.members > 1);
        const piece: usize = @intCast(header.index);
        x.bytes_received += header.payload_bytes;
        if (header.kind == .final) {
            x.settle(piece, header.reduced_attempt);
            return x.forward_final(piece);
        }
        const op = x.descriptor.op;
        const dtype = x.descriptor.dtype;
        const count = x.partition.elements(piece);
        const partial = x.slot(slot_index);
        if (x.owner(piece) == x.position) {
            const mine = x.own(piece);
            const out = x.overwrite(piece);
            kernels.accumulate_last(op, dtype, out.ptr, partial.ptr, mine, x.members, count);
            x.slot_free(x.position, slot_index);
            x.settle(piece, x.attempt);
            return x.forward_final(piece);
        }
        kernels.accumulate(op, dtype, partial.ptr, partial.ptr, x.own(piece), count);
        if (x.in_place()) x.save(piece);
        x.ready.appendAssumeCapacity(.{ .piece = piece, .slot = slot_index });
    }

    fn slot_free(x: *Executor, class: u16, index: u16) void {
        x.free_slots[x.free_count] = index;
        x.free_count += 1;
        const credit = &x.credits[class];
        credit.held -= 1;
        credit.freed += 1;
    }

    fn settle(x: *Executor, piece: usize, reduced_attempt: u32) void {
        const chunk = x.partition.chunk_of(piece);
        x.settled.set_bit(piece);
        x.final_seen.set_bit(piece);
        const seed = x.partition.offset(piece);
        x.chunk_digest[chunk] +%= kernels.digest(x.target_piece(piece), seed);
        x.chunk_arriving[chunk] = reduced_attempt;
        x.chunk_left[chunk] -= 1;
        if (x.chunk_left[chunk] > 0) return;
        x.chunk_reduced[chunk] = x.chunk_arriving[chunk];
        x.chunks_settled += 1;
    }

    fn forward_final(x: *Executor, piece: usize) void {
        const chunk = x.partition.chunk_of(piece);
        const stops = if (x.kept.has(chunk))
            x.successor_holds.has(chunk)
        else
            x.owner(piece) == x.successor_position();
        if (!stops) x.final_ready.set_bit(piece);
    }

    // ---- to the predecessor

    pub const Grant = struct { class: u16, allowed: u64 };

    /// What the predecessor may send once it knows that this peer has called: told in the open
    /// frame.
    pub fn initial_credit(x: *const Executor) u64 {
        return x.slots_per_owner();
    }

    /// The next owner for whom the predecessor should be told of freed slots; null if none. Told in
    /// quarters of the window, so that credits cost little.
    pub fn next_grant(x: *Executor) ?Grant {
        if (x.members < 2) return null;
        const window = x.slots_per_owner();
        for (x.credits[0..x.members], 0..) |*credit, class| {
            if (credit.freed - credit.announced < @max(1, window / 4)) continue;
            credit.announced = credit.freed;
            return .{ .class = @intCast(class), .allowed = credit.freed + window };
        }
        return null;
    }

    // ---- from the successor

    pub fn successor_opened(x: *Executor, credit: u64) void {
        if (x.successor_open) return;
        x.successor_open = true;
        for (x.credits) |*entry| entry.allowed = @max(entry.used, credit, entry.granted);
    }

    pub fn credited(x: *Executor, class: u16, allowed: u64) error{UnknownPiece}!void {
        if (class >= x.members) return error.UnknownPiece;
        const entry = &x.credits[class];
        entry.granted = @max(entry.granted, allowed);
        entry.allowed = @max(entry.allowed, allowed);
    }

    // ---- to the successor

    pub const Out = struct {
        kind: wire.frame.Kind,
        piece: u64,
        class: u16,
        reduced_attempt: u32,
        slot: u16,
        payload: []const u8,
    };

    /// The next frame for the successor; null if nothing can be sent now. Finished bytes first,
    /// then sums that hold a slot, then new ones.
    pub fn next(x: *Executor) ?Out {
        if (x.members < 2) return null;
        const out = if (x.successor_open)
            x.next_final() orelse x.next_forward() orelse x.next_own() orelse return null
        else
            x.next_eager() orelse return null;
        x.bytes_sent += out.payload.len;
        return out;
    }

    /// The successor has not called yet, as far as is known: only little may be sent (limits.zig).
    fn next_eager(x: *Executor) ?Out {
        if (x.eager_bytes + x.slot_bytes > base.limits.eager_bytes_max) return null;
        const out = x.next_forward() orelse x.next_own() orelse return null;
        x.eager_bytes += out.payload.len;
        return out;
    }

    fn next_final(x: *Executor) ?Out {
        const piece = x.final_ready.next(x.final_cursor) orelse return null;
        x.final_ready.unset_bit(piece);
        x.final_cursor = piece + 1;
        const chunk = x.partition.chunk_of(piece);
        return .{
            .kind = .final,
            .piece = piece,
            .class = 0,
            .reduced_attempt = x.chunk_arriving[chunk],
            .slot = no_slot,
            .payload = x.target_piece(piece),
        };
    }

    fn next_forward(x: *Executor) ?Out {
        for (x.ready.items, 0..) |partial, index| {
            const class = x.owner(partial.piece);
            const credit = &x.credits[class];
            if (credit.used >= credit.allowed) continue;
            credit.used += 1;
            _ = x.ready.orderedRemove(index);
            return x.partial_out(partial.piece, class, partial.slot);
        }
        return null;
    }

    fn next_own(x: *Executor) ?Out {
        if (x.origin_next >= x.partition.pieces) return null;
        const class = x.predecessor();
        const credit = &x.credits[class];
        if (credit.used >= credit.allowed) return null;
        var index = no_slot;
        const piece: usize = @intCast(x.origin_next);
        if (x.in_place()) x.save(piece);
        if (x.widens()) {
            // More would take slots that the predecessor has been promised.
            if (x.free_count == 0 or x.origin_held == origin_slots) return null;
            x.origin_held += 1;
            x.free_count -= 1;
            index = x.free_slots[x.free_count];
            const count = x.partition.elements(piece);
            kernels.first(
                x.descriptor.op,
                x.descriptor.dtype,
                x.slot(index).ptr,
                x.own(piece),
                count,
            );
        }
        credit.used += 1;
        x.origin_next = x.next_origin(piece + 1);
        return x.partial_out(piece, class, index);
    }

    fn partial_out(x: *const Executor, piece: u64, class: u16, index: u16) Out {
        const bytes = x.partition.elements(piece) * x.partition.partial_bytes;
        return .{
            .kind = .partial,
            .piece = piece,
            .class = class,
            .reduced_attempt = 0,
            .slot = index,
            .payload = if (index == no_slot) x.own(piece)[0..bytes] else x.slot(index)[0..bytes],
        };
    }

    /// A frame of `next` has left: its slot is free again.
    pub fn sent(x: *Executor, out: *const Out) void {
        assert(x.members > 1);
        if (out.slot == no_slot) return;
        if (out.class == x.predecessor()) { // widened here, never came in
            x.origin_held -= 1;
            x.free_slots[x.free_count] = out.slot;
            x.free_count += 1;
        } else x.slot_free(out.class, out.slot);
    }

    // ---- results

    pub fn complete(x: *const Executor) bool {
        return x.chunks_settled == x.partition.chunks;
    }

    /// Order-independent digest of the whole result.
    pub fn digest(x: *const Executor) u128 {
        var total: u128 = 0;
        for (x.chunk_digest) |part| total +%= part;
        return total;
    }
};

/// Drives n executors over perfect links until nothing moves.
const Bench = struct {
    executors: []Executor,
    alive: base.Mask,
    /// Of the attempt under way.
    order: base.Order = .{},
    /// Draws another order for each attempt; null: rank order.
    shuffles: ?*base.Prng = null,

    fn step(bench: *Bench) !bool {
        var moved = false;
        for (0..bench.order.count) |position| {
            const x = &bench.executors[bench.order.at(position)];
            const to = &bench.executors[bench.order.at(position + 1)];
            while (to.next_grant()) |grant| try x.credited(grant.class, grant.allowed);
            const out = x.next() orelse continue;
            moved = true;
            const header = header_of(x, &out);
            const spot = try to.place(&header);
            @memcpy(spot.bytes, out.payload);
            x.sent(&out);
            to.arrived(&header, spot.slot);
        }
        return moved;
    }

    fn header_of(x: *const Executor, out: *const Executor.Out) wire.frame.Header {
        return .{
            .epoch = 1,
            .tag = 0,
            .sequence = 0,
            .index = out.piece,
            .attempt = x.attempt,
            .payload_bytes = @intCast(out.payload.len),
            .reduced_attempt = out.reduced_attempt,
            .group = 0,
            .class = out.class,
            .kind = out.kind,
        };
    }

    /// A frame of some member comes half, and the rest of it never.
    fn step_half(bench: *Bench, position: usize) !void {
        if (bench.order.count < 2) return;
        const x = &bench.executors[bench.order.at(position)];
        const to = &bench.executors[bench.order.at(position + 1)];
        const out = x.next() orelse return;
        const spot = try to.place(&header_of(x, &out));
        @memset(spot.bytes[0 .. spot.bytes.len / 2], 0xee);
    }

    fn begin(bench: *Bench, attempt: u32, kept: []const KeptRange) void {
        bench.order = .of(&bench.alive);
        if (bench.shuffles) |prng| for (0..bench.order.count) |position| {
            const ranks = &bench.order.ranks;
            std.mem.swap(u16, &ranks[position], &ranks[prng.below(bench.order.count)]);
        };
        for (bench.order.slice()) |rank| {
            bench.executors[rank].begin(.{
                .attempt = attempt,
                .order = &bench.order,
                .rank = rank,
                .kept = kept,
                .root = 0,
            });
        }
        for (bench.order.slice(), 1..) |rank, after| {
            const to = &bench.executors[bench.order.at(after)];
            bench.executors[rank].successor_opened(to.initial_credit());
        }
    }
};

fn test_descriptor(kind: wire.control.OpKind, count: u64) Descriptor {
    return .{
        .kind = kind,
        .dtype = .u64,
        .op = .sum,
        .recovery = .resume_chunks,
        .count = count,
        .safe_points = 0,
    };
}

fn test_ring(n: u16, count: usize, kind: wire.control.OpKind, lose: ?u16) !void {
    return test_ring_cut(n, count, kind, lose, 64);
}

fn test_ring_cut(
    n: u16,
    count: usize,
    kind: wire.control.OpKind,
    lose: ?u16,
    chunk_bytes: u32,
) !void {
    const gpa = std.testing.allocator;
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var executors: [8]Executor = undefined;
    for (0..n) |rank| {
        const input = try arena.allocator().alloc(u64, count + 1);
        for (input, 0..) |*value, index| value.* = (index % 7 + 1) << @intCast(4 * rank);
        executors[rank] = try Executor.init(gpa, &pool, .{
            .descriptor = test_descriptor(kind, count),
            .send = @ptrCast(input.ptr),
            .recv = @ptrCast(input.ptr),
            .world_size = n,
            .chunk_bytes = chunk_bytes,
            .window_bytes = 1024,
            .is_root = rank == 0,
        });
    }
    defer for (executors[0..n]) |*x| x.deinit();
    var bench: Bench = .{ .executors = executors[0..n], .alive = .full(n) };
    bench.begin(1, &.{});
    if (lose) |rank| {
        for (0..@max(1, count / 16)) |_| _ = try bench.step();
        for (executors[0..n]) |*x| x.halt();
        bench.alive.unset(rank);
        const kept = try arena.allocator().alloc(KeptRange, executors[0].partition.chunks);
        var kept_count: usize = 0;
        for (0..executors[0].partition.chunks) |chunk| {
            var range: KeptRange = .{
                .begin = @intCast(chunk),
                .end = @intCast(chunk + 1),
                .reduced_attempt = 1,
                .holders = .empty,
            };
            for (0..n) |r| if (bench.alive.has(r) and executors[r].chunk_reduced[chunk] > 0)
                range.holders.set(r);
            if (range.holders.is_empty()) continue;
            kept[kept_count] = range;
            kept_count += 1;
        }
        bench.begin(2, kept[0..kept_count]);
    }
    while (try bench.step()) {}
    for (0..bench.alive.count()) |position| {
        const x = &executors[bench.alive.at(position)];
        try std.testing.expect(x.complete());
        try std.testing.expectEqual(executors[bench.alive.at(0)].digest(), x.digest());
        const result: [*]align(1) const u64 = @ptrCast(x.target);
        for (result[0..count], 0..) |value, index| {
            const chunk = x.partition.chunk_of(index / x.partition.piece_elements);
            const lost_here = x.chunk_reduced[chunk] == 2;
            var expected: u64 = 0;
            for (0..n) |rank| {
                if (kind == .broadcast and rank > 0) continue;
                if (lost_here and rank == lose.?) continue;
                expected += (index % 7 + 1) << @intCast(4 * rank);
            }
            try std.testing.expectEqual(expected, value);
        }
    }
}

test "every rank ends with the sum of all, for any world and count" {
    for (1..9) |n| for ([_]usize{ 0, 1, 7, 8, 9, 64, 299 }) |count| {
        try test_ring(@intCast(n), count, .all_reduce, null);
        try test_ring(@intCast(n), count, .broadcast, null);
    };
}

test "chunks of several pieces, as in operations of many gigabytes" {
    const count = 2 * base.limits.chunks_max + 5; // pieces of one element, three to a chunk
    try test_ring_cut(3, count, .all_reduce, null, 8);
    try test_ring_cut(3, count, .broadcast, null, 8);
    try test_ring_cut(3, count, .all_reduce, 1, 8);
    try test_ring_cut(3, count, .broadcast, 2, 8);
}

test "a large world of one is worked off in steps" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const input = try gpa.alloc(u64, Executor.alone_bytes_max / 4 + 7); // twice the step and more
    defer gpa.free(input);
    for (input, 0..) |*value, index| value.* = index;
    var x = try Executor.init(gpa, &pool, .{
        .descriptor = test_descriptor(.all_reduce, input.len),
        .send = @ptrCast(input.ptr),
        .recv = @ptrCast(input.ptr),
        .world_size = 1,
        .chunk_bytes = 256 * 1024,
        .window_bytes = 1024,
        .is_root = true,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(1));
    x.begin(.{ .attempt = 1, .order = &order, .rank = 0, .kept = &.{}, .root = 0 });
    for (0..2) |_| {
        try std.testing.expect(x.is_alone());
        x.work_alone();
    }
    try std.testing.expect(x.complete() and !x.is_alone());
    for (input, 0..) |value, index| try std.testing.expectEqual(index, value);
}

test "a kept range of chunks that the operation does not have is ignored" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [300]u64 = @splat(1);
    var x = try Executor.init(gpa, &pool, .{
        .descriptor = test_descriptor(.all_reduce, 300),
        .send = @ptrCast(&input),
        .recv = @ptrCast(&input),
        .world_size = 2,
        .chunk_bytes = 64,
        .window_bytes = 1024,
        .is_root = true,
    });
    defer x.deinit();
    const chunks = x.partition.chunks;
    const order: base.Order = .of(&.full(2));
    const kept = [_]KeptRange{
        .{ .begin = chunks - 1, .end = chunks + 5, .reduced_attempt = 1, .holders = .full(2) },
        .{ .begin = chunks + 2, .end = chunks + 3, .reduced_attempt = 1, .holders = .full(2) },
    };
    x.begin(.{ .attempt = 2, .order = &order, .rank = 0, .kept = &kept, .root = 0 });
    try std.testing.expectEqual(1, x.kept.count);
}

test "widened contributions on their way out leave the slots that were promised" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [4096]i32 = @splat(1);
    var descriptor = test_descriptor(.all_reduce, input.len);
    descriptor.dtype = .i32;
    descriptor.op = .avg;
    var x = try Executor.init(gpa, &pool, .{
        .descriptor = descriptor,
        .send = @ptrCast(&input),
        .recv = @ptrCast(&input),
        .world_size = 2,
        .chunk_bytes = 64,
        .window_bytes = 4096,
        .is_root = true,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(2));
    x.begin(.{ .attempt = 1, .order = &order, .rank = 0, .kept = &.{}, .root = 0 });
    x.successor_opened(x.initial_credit());
    var out: [Executor.origin_slots]Executor.Out = undefined;
    for (&out) |*item| item.* = x.next().?;
    try std.testing.expectEqual(null, x.next());
    try std.testing.expect(x.free_count >= x.initial_credit());
    x.sent(&out[0]);
    try std.testing.expect(x.next() != null);
}

test "after a loss, kept chunks keep the lost contribution and the others do without" {
    for (2..7) |n| for (0..n) |lost| {
        try test_ring(@intCast(n), 299, .all_reduce, @intCast(lost));
        if (lost != 0) try test_ring(@intCast(n), 299, .broadcast, @intCast(lost));
    };
}

/// One operation from its call to what each peer is left with: peers are lost, frames come half,
/// calls return in doubt while the others still need what they hold, and at last some fail.
const Life = struct {
    prng: base.Prng,
    n: u16,
    count: usize,
    kind: wire.control.OpKind,
    /// One set of contributors for the whole result.
    restart: bool,
    /// The ring has another order in each attempt.
    reorders: bool,
    executors: [5]Executor = undefined,
    send: [5][]u64 = undefined,
    recv: [5][]u64 = undefined,
    send_before: [5][]u64 = undefined,
    recv_before: [5][]u64 = undefined,
    voted: base.Mask = .empty,
    aside: base.Mask = .empty,
    /// Members of each attempt.
    attempts: [5]base.Mask = undefined,

    const scribble: u64 = 0x5c5c_5c5c_5c5c_5c5c;

    fn init(life: *Life, arena: Allocator, pool: *Pool, chunk_bytes: u32) !void {
        for (0..life.n) |rank| {
            const send = try arena.alloc(u64, life.count);
            for (send, 0..) |*value, index| value.* = contribution(rank, index);
            const in_place = life.kind == .broadcast or life.prng.chance(2);
            const recv = if (in_place) send else try arena.alloc(u64, life.count);
            if (!in_place) @memset(recv, 0xabab + rank);
            life.send[rank] = send;
            life.recv[rank] = recv;
            life.send_before[rank] = try arena.dupe(u64, send);
            life.recv_before[rank] = try arena.dupe(u64, recv);
            life.executors[rank] = try Executor.init(arena, pool, .{
                .descriptor = test_descriptor(life.kind, life.count),
                .send = @ptrCast(send.ptr),
                .recv = @ptrCast(recv.ptr),
                .world_size = life.n,
                .chunk_bytes = chunk_bytes,
                .window_bytes = 1024,
                .is_root = rank == 0,
            });
        }
    }

    fn contribution(rank: usize, index: usize) u64 {
        return (index % 7 + 1) << @intCast(4 * rank);
    }

    fn run(life: *Life, arena: Allocator) !void {
        var bench: Bench = .{
            .executors = life.executors[0..life.n],
            .alive = .full(life.n),
            .shuffles = if (life.reorders) &life.prng else null,
        };
        const last = life.prng.between(1, 4);
        var kept: []const KeptRange = &.{};
        for (1..last + 1) |attempt| {
            life.attempts[attempt] = bench.alive;
            bench.begin(@intCast(attempt), kept);
            try life.votes(&bench);
            // A sixteenth of it, or half, or all.
            const steps = life.count * life.prng.between(1, 8) / 16;
            var step: usize = 0;
            while (attempt == last or step < steps) : (step += 1) {
                if (!try bench.step()) break;
                try life.votes(&bench);
            }
            if (attempt == last) return life.check(&bench);
            for (0..life.prng.below(3)) |position| try bench.step_half(position);
            for (bench.executors) |*x| x.halt();
            life.lose(&bench);
            kept = try life.kept_by(arena, &bench.alive);
        }
    }

    fn votes(life: *Life, bench: *Bench) !void {
        for (bench.executors, 0..) |*x, rank| {
            if (life.voted.has(rank) or !bench.alive.has(rank) or !x.complete()) continue;
            life.voted.set(rank);
            if (!life.prng.chance(3)) continue;
            x.set_aside();
            life.aside.set(rank);
            // The caller has its memory back, and uses it.
            try life.returned(rank);
            @memset(life.send[rank], scribble);
            @memset(life.recv[rank], scribble);
        }
    }

    fn lose(life: *Life, bench: *Bench) void {
        const rank = life.prng.below(life.n);
        const root = life.kind == .broadcast and rank == 0;
        if (bench.alive.has(rank) and !root and bench.alive.count() > 1) bench.alive.unset(rank);
    }

    /// What the coordinator would keep (protocol/epoch.zig).
    fn kept_by(life: *Life, arena: Allocator, alive: *const base.Mask) ![]const KeptRange {
        var kept: std.ArrayList(KeptRange) = .empty;
        var any_voted = false;
        for (0..life.n) |rank| any_voted = any_voted or (alive.has(rank) and life.voted.has(rank));
        for (0..life.executors[0].partition.chunks) |chunk| {
            var range: KeptRange = .{
                .begin = @intCast(chunk),
                .end = @intCast(chunk + 1),
                .reduced_attempt = 0,
                .holders = .empty,
            };
            for (life.executors[0..life.n], 0..) |*x, rank| {
                const reduced = x.chunk_reduced[chunk];
                if (!alive.has(rank) or reduced == 0) continue;
                if (range.reduced_attempt != 0 and life.kind != .broadcast)
                    try std.testing.expectEqual(range.reduced_attempt, reduced);
                range.reduced_attempt = reduced;
                range.holders.set(rank);
            }
            if (range.holders.is_empty()) continue;
            const mixed = life.restart and life.kind != .broadcast and !any_voted and
                !life.attempts[range.reduced_attempt].eql(alive);
            if (!mixed) try kept.append(arena, range);
        }
        return kept.items;
    }

    /// The buffers of a call that has no result are as they were.
    fn returned(life: *const Life, rank: usize) !void {
        try std.testing.expectEqualSlices(u64, life.send_before[rank], life.send[rank]);
        try std.testing.expectEqualSlices(u64, life.recv_before[rank], life.recv[rank]);
    }

    fn check(life: *Life, bench: *Bench) !void {
        const first = &life.executors[bench.alive.at(0)];
        for (life.executors[0..life.n], 0..) |*x, rank| {
            if (bench.alive.has(rank)) {
                try std.testing.expect(x.complete());
                try std.testing.expectEqual(first.digest(), x.digest());
                try life.check_values(x);
            }
            x.halt();
            if (life.aside.has(rank)) {
                try std.testing.expect(std.mem.allEqual(u64, life.send[rank], scribble));
                try std.testing.expect(std.mem.allEqual(u64, life.recv[rank], scribble));
            } else if (!bench.alive.has(rank) or life.prng.chance(2)) {
                x.restore();
                try life.returned(rank);
            } else if (life.send[rank].ptr != life.recv[rank].ptr) {
                const before = life.send_before[rank];
                try std.testing.expectEqualSlices(u64, before, life.send[rank]);
            }
        }
    }

    fn check_values(life: *const Life, x: *const Executor) !void {
        const result: [*]align(1) const u64 = @ptrCast(x.target);
        for (result[0..life.count], 0..) |value, index| {
            const chunk = x.partition.chunk_of(index / x.partition.piece_elements);
            var expected: u64 = 0;
            for (0..life.n) |rank| {
                const counts = if (life.kind == .broadcast)
                    rank == 0
                else
                    life.attempts[x.chunk_reduced[chunk]].has(rank);
                if (counts) expected += contribution(rank, index);
            }
            try std.testing.expectEqual(expected, value);
        }
    }
};

fn test_life(seed: u64, count: usize, chunk_bytes: u32) !void {
    test_one_life(seed, count, chunk_bytes) catch |err| {
        try std.testing.expectEqual(null, @as(?u64, seed)); // says which
        return err;
    };
}

fn test_one_life(seed: u64, count: usize, chunk_bytes: u32) !void {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var pool = Pool.init(arena.allocator());
    var prng: base.Prng = .init(seed);
    var life: Life = .{
        .n = @intCast(prng.between(1, 5)),
        .count = count,
        .kind = if (prng.chance(4)) .broadcast else .all_reduce,
        .restart = prng.chance(2),
        .reorders = prng.chance(2),
        .prng = prng,
    };
    try life.init(arena.allocator(), &pool, chunk_bytes);
    try life.run(arena.allocator());
}

test "whatever happens on the way, a call gives its result or what was there before" {
    for (0..2000) |seed| try test_life(seed, seed * 7 % 300, 64);
    for (0..6) |seed| try test_life(seed, 2 * base.limits.chunks_max + 5, 8);
}
