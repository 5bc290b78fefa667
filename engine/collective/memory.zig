//! Memory: where the bytes of one operation are: the caller's arrays, the undo log, slots, encoded
//! results. Memory turns places into addresses and does jobs. In this layer only memory.zig calls
//! kernels, and only memory.zig and arrays.zig (the caller's arrays) have addresses.
//!
//! The result grows in the caller's buffer. In place, each piece of the input is saved in `shadow`
//! before its first byte is overwritten, in the step that reads it anyway, so that a failed call
//! gives the input back (docs/internals/PROMISE.md, P3). In a separate result buffer nothing is
//! saved: its contents after a failure are unspecified.
//!
//! Only the engine's thread calls `prepare`. Any thread may call `run`, if no other job is at the
//! piece.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const arrays_file = @import("arrays.zig");
const job_file = @import("job.zig");
const Arrays = arrays_file.Arrays;
const Job = job_file.Job;
const Ledger = @import("ledger.zig").Ledger;
const Partition = @import("partition.zig").Partition;
const Pool = @import("pool.zig").Pool;
const Allocator = std.mem.Allocator;
const assert = std.debug.assert;
const no_slot = job_file.no_slot;

pub const Memory = struct {
    pool: *Pool,
    partition: Partition,
    rank: u16,
    op: base.ReduceOp,
    /// No other peer has this result, so it has no digest and is passed to no peer.
    is_private: bool,
    /// The number of the operation, the same on all peers; codecs derive random signs and roundings
    /// from it.
    operation: u64,
    /// The caller's arrays: this peer's contribution, until the peer has voted, and the buffers in
    /// which the result grows.
    arrays: Arrays,
    /// The caller's error feedback, an f32 for each element: the loss of earlier encodings comes
    /// in, the loss of this operation goes out.
    residual: ?kernels.Residual,
    /// The result is set aside: the caller has its arrays back, and `shadow` has this peer's result
    /// for other members.
    is_aside: bool = false,
    /// The undo log: bytes of the caller's arrays that the result overwrites in place; while
    /// `is_aside`, the result itself.
    shadow: Pool.Buffer = &.{},
    /// With a codec: the encoded final bytes of all pieces, and room for one piece more (`aside`).
    /// Each holder of a chunk, its owner too, decodes these bytes, and passes them on in later
    /// attempts as well.
    encoded: Pool.Buffer = &.{},
    slots: Pool.Buffer = &.{},
    slot_bytes: usize,
    // By piece: the undo log has its old bytes (`saved`); the result was written over it (`dirty`).
    saved: base.BitSet,
    dirty: base.BitSet,

    /// Makes the bookkeeping, whose lists are in `arena`; `reserve` takes the large buffers.
    pub fn init(
        arena: Allocator,
        pool: *Pool,
        ledger: *const Ledger,
        arrays: Arrays,
        operation: u64,
        residual: ?kernels.Residual,
    ) Allocator.Error!Memory {
        const pieces = ledger.piece_count();
        return .{
            .pool = pool,
            .partition = ledger.partition,
            .rank = ledger.roles.rank,
            .op = ledger.descriptor.op,
            .is_private = ledger.descriptor.kind.is_private(),
            .operation = operation,
            .arrays = arrays,
            .residual = residual,
            .slot_bytes = ledger.partition.slot_bytes(),
            .saved = try .in_arena(arena, pieces),
            .dirty = try .in_arena(arena, pieces),
        };
    }

    /// Takes the large buffers from the pool; an error takes none.
    pub fn reserve(m: *Memory, slot_count: usize) Allocator.Error!void {
        const room = if (m.encodes()) m.arrays.encoded_bytes + m.slot_bytes else 0;
        const shadow = try m.pool.take(m.arrays.result_bytes);
        errdefer m.pool.give(shadow);
        const slots = try m.pool.take(slot_count * m.slot_bytes);
        errdefer m.pool.give(slots);
        m.encoded = try m.pool.take(room);
        m.shadow = shadow;
        m.slots = slots;
        // Without a codec no piece loses anything, so every residual stays as it is.
        if (!m.encodes()) for (0..@intCast(m.partition.pieces)) |piece| m.keep_residual(piece);
    }

    pub fn release(m: *Memory) void {
        m.pool.give(m.shadow);
        m.pool.give(m.slots);
        m.pool.give(m.encoded);
    }

    // ---- places

    fn encodes(m: *const Memory) bool {
        return m.partition.codec.kind != .none;
    }

    fn dtype_of(m: *const Memory, piece: usize) base.DType {
        return m.partition.shards[m.partition.shard_of(piece)].dtype;
    }

    pub fn slot(m: *const Memory, index: u16) []u8 {
        return m.slots[index * m.slot_bytes ..][0..m.slot_bytes];
    }

    /// Whether the result of a piece overwrites its contribution; an overwritten contribution is
    /// read from `shadow`.
    fn in_place(m: *const Memory, piece: usize) bool {
        return m.arrays.in_place(m.partition.shard_of(piece));
    }

    fn is_own_in_shadow(m: *const Memory, piece: usize) bool {
        return m.is_aside or (m.dirty.has(piece) and m.in_place(piece));
    }

    /// Returns where this peer's contribution to a piece begins.
    fn own(m: *const Memory, piece: usize, in_shadow: bool) [*]const u8 {
        const place = m.place_of(piece);
        if (in_shadow) return m.shadow.ptr + m.arrays.places[place.shard].shadow + place.start;
        return m.arrays.send(place.shard) + place.start;
    }

    /// This peer's contribution to a piece, unconverted.
    pub fn own_piece(m: *const Memory, piece: usize) []const u8 {
        return m.own(piece, m.is_own_in_shadow(piece))[0..m.place_of(piece).len];
    }

    /// The bytes of a piece in this peer's result, wherever the result is now.
    pub fn target_piece(m: *const Memory, piece: usize) []u8 {
        return if (m.is_aside) m.shadow_piece(piece) else m.caller_piece(piece);
    }

    fn caller_piece(m: *const Memory, piece: usize) []u8 {
        const place = m.place_of(piece);
        return m.arrays.recv(place.shard)[place.start..][0..place.len];
    }

    fn shadow_piece(m: *const Memory, piece: usize) []u8 {
        const place = m.place_of(piece);
        return m.shadow[m.arrays.places[place.shard].shadow + place.start ..][0..place.len];
    }

    /// The shard of a piece, and the bytes of the piece within that shard.
    fn place_of(m: *const Memory, piece: usize) struct { shard: usize, start: usize, len: usize } {
        const found = m.partition.place_of(piece);
        const start = found.before * found.dtype.size();
        return .{ .shard = found.shard, .start = start, .len = found.bytes() };
    }

    /// The final bytes of a piece as they travel: encoded if there is a codec.
    pub fn final_piece(m: *const Memory, piece: usize) []u8 {
        return if (m.encodes()) m.encoded_piece(piece) else m.target_piece(piece);
    }

    fn encoded_piece(m: *const Memory, piece: usize) []u8 {
        const index = m.partition.shard_of(piece);
        const shard = &m.partition.shards[index];
        const codec = m.partition.codec;
        const before = (piece - shard.first_piece) * codec.encoded_bytes(shard.piece_elements);
        const start = m.arrays.places[index].encoded + before;
        return m.encoded[start..][0..m.encoded_bytes(piece)];
    }

    /// The one room of the operation for an encoded piece that must not overwrite its inputs.
    fn aside(m: *const Memory, piece: usize) []u8 {
        return m.encoded[m.arrays.encoded_bytes..][0..m.encoded_bytes(piece)];
    }

    fn encoded_bytes(m: *const Memory, piece: usize) usize {
        return m.partition.codec.encoded_bytes(m.partition.elements(piece));
    }

    pub fn residual_of(m: *const Memory, piece: usize) ?kernels.Residual {
        const whole = m.residual orelse return null;
        const found = m.partition.place_of(piece);
        const first: usize = @intCast(m.arrays.places[found.shard].residual);
        const start = (first + found.before) * @sizeOf(f32);
        return .{ .in = whole.in + start, .out = whole.out + start };
    }

    /// Copies the residual of a piece unchanged: no peer gets an encoding of this piece, so nothing
    /// is repaid and nothing is lost.
    pub fn keep_residual(m: *const Memory, piece: usize) void {
        const rest = m.residual_of(piece) orelse return;
        @memmove(rest.out, rest.in[0 .. m.partition.elements(piece) * @sizeOf(f32)]);
    }

    // ---- the undo log

    /// Returns the bytes into which the final bytes of a piece are read; saves the old bytes first.
    pub fn receive(m: *Memory, piece: usize) []u8 {
        if (m.encodes()) return m.encoded_piece(piece);
        if (m.overwrite(piece)) m.save(piece);
        return m.target_piece(piece);
    }

    /// Notes that a piece of the result is about to be written. Returns whether its old bytes must
    /// be saved first.
    fn overwrite(m: *Memory, piece: usize) bool {
        m.dirty.set_bit(piece);
        return m.must_save(piece);
    }

    /// Returns whether to save a contribution, which is about to be read for the last time before
    /// the result may overwrite it.
    fn read_last(m: *Memory, piece: usize) bool {
        return m.in_place(piece) and m.must_save(piece);
    }

    /// Whether the old bytes of a piece must be saved for a call that fails: true at most once for
    /// a piece.
    fn must_save(m: *Memory, piece: usize) bool {
        const place = &m.arrays.places[m.partition.shard_of(piece)];
        if (m.saved.has(piece) or !m.arrays.is_kept[place.array]) return false;
        m.saved.set_bit(piece);
        return true;
    }

    fn save(m: *const Memory, piece: usize) void {
        m.copy_unread(m.shadow_piece(piece), m.target_piece(piece));
    }

    /// Copies bytes that are not read again soon, such as a large undo log, past the caches.
    fn copy_unread(m: *const Memory, to: []u8, from: []const u8) void {
        if (m.shadow.len >= large_bytes) kernels.copy_past(to.ptr, from.ptr, from.len) //
        else @memcpy(to, from);
    }

    const large_bytes = base.limits.MiB;

    pub fn is_received(m: *const Memory, piece: usize) bool {
        return m.arrays.is_received(m.partition.shard_of(piece));
    }

    /// Whether a call that fails must give the old bytes of a piece back.
    pub fn is_overwritten(m: *const Memory, piece: usize) bool {
        return m.dirty.has(piece) and m.saved.has(piece);
    }

    /// Notes that all pieces are set aside. From now on this peer contributes nothing more: it
    /// gives only the result that it voted for.
    pub fn is_set_aside(m: *Memory) void {
        for (0..@intCast(m.partition.pieces)) |piece| {
            // `shadow` has the result, so no old bytes may be saved over it.
            if (m.is_received(piece)) m.saved.set_bit(piece);
        }
        m.is_aside = true;
        m.residual = null;
        m.dirty.clear();
    }

    /// Copies a result that was set aside to the caller's arrays, once its operation is committed.
    pub fn hand_over(m: *const Memory) void {
        assert(m.is_aside);
        for (m.arrays.places, m.partition.shards, 0..) |*from, *shard, index| {
            const bytes = shard.bytes();
            if (!m.arrays.is_received(index) or bytes == 0) continue;
            kernels.copy_past(m.arrays.recv(index), m.shadow.ptr + from.shadow, bytes);
        }
    }

    // ---- jobs

    /// The choices of `prepare` that `run` needs for a job.
    pub const Access = struct {
        /// The job first saves the old bytes of its piece in the undo log.
        saves: bool = false,
        own_in_shadow: bool = false,
        /// The job has nothing to do, and counts as done at once.
        is_needless: bool = false,
        /// The job uses `aside`, the one room of the operation, so no other thread may do it.
        needs_aside: bool = false,
    };

    pub fn prepare(m: *Memory, job: *const Job) Access {
        const piece = job.piece;
        var access: Access = .{ .own_in_shadow = m.is_own_in_shadow(piece) };
        switch (job.kind) {
            .contribute => {
                access.saves = m.read_last(piece);
                access.is_needless = !access.saves and job.slot == no_slot;
            },
            .add => {
                access.saves = m.read_last(piece);
                access.needs_aside = m.encodes() and m.residual != null;
            },
            .add_last, .take, .alone, .clear => access.saves = m.overwrite(piece),
            .reduce => {
                access.saves = m.overwrite(piece);
                access.own_in_shadow = m.is_own_in_shadow(piece);
            },
            .reduce_for_another => access.needs_aside = m.encodes(),
            .finish => if (m.encodes()) {
                access.saves = m.overwrite(piece);
            } else {
                access.is_needless = m.is_private;
            },
            .bring => if (m.encodes() and !m.is_private) {
                access.saves = m.overwrite(piece);
            } else if (!m.in_place(piece)) {
                access.saves = m.overwrite(piece);
            } else {
                access.is_needless = m.is_private;
            },
            .restore, .set_aside => {},
        }
        return access;
    }

    /// Does the job, and returns the digest of its final bytes; 0 if the job leaves none or the
    /// result is private.
    pub fn run(m: *const Memory, job: *const Job, access: Access) u128 {
        const piece = job.piece;
        if (access.saves and job.kind != .add) m.save(piece);
        const mine: Own = .{ .memory = m, .in_shadow = access.own_in_shadow };
        switch (job.kind) {
            .contribute => if (job.slot != no_slot) mine.contribute(job),
            .add => mine.add(job),
            .add_last => mine.add_last(job),
            .reduce => mine.reduce(job, m.target_piece(piece).ptr),
            .reduce_for_another => mine.reduce(job, m.slot(job.slot).ptr),
            .take => m.take(job),
            .finish => if (m.encodes()) m.decode(piece),
            .bring => mine.bring(piece),
            .alone => mine.finish_alone(job),
            .clear => @memset(m.target_piece(piece), 0),
            .restore => @memcpy(m.target_piece(piece), m.shadow_piece(piece)),
            .set_aside => m.set_aside(piece),
        }
        if (access.saves and job.kind == .add) m.save(piece);
        if (m.is_private or !job.kind.ends_in_result()) return 0;
        const bytes = if (job.kind == .alone) m.target_piece(piece) else m.final_piece(piece);
        return kernels.digest(bytes, m.partition.offset(piece));
    }

    const Stage = enum { contribution, result };

    /// The kernels' description of a piece that this peer encodes.
    fn encoding(m: *const Memory, piece: usize, stage: Stage) kernels.Piece {
        return .{
            .codec = m.partition.codec,
            .dtype = m.dtype_of(piece),
            .count = m.partition.elements(piece),
            .seed = 0,
            .operation = m.operation,
            .origin = @as(u32, m.rank) << 1 | @intFromEnum(stage),
            .first = m.partition.coded_offset(piece),
        };
    }

    /// The kernels' description of a contribution to a sum, or of a sum: `encoding` and the job's
    /// shift.
    fn encoding_in(m: *const Memory, job: *const Job, stage: Stage) kernels.Piece {
        var what = m.encoding(job.piece, stage);
        what.shift = job.shift;
        return what;
    }

    /// Decodes the encoded result of a piece. All peers decode the same bytes, so all get the same
    /// values.
    fn decode(m: *const Memory, piece: usize) void {
        const out = m.target_piece(piece).ptr;
        kernels.decode(m.encoding(piece, .result), out, m.encoded_piece(piece).ptr);
    }

    fn take(m: *const Memory, job: *const Job) void {
        const out = m.target_piece(job.piece);
        const bytes = m.slot(job.slot);
        if (m.encodes()) kernels.decode(m.encoding(job.piece, .result), out.ptr, bytes.ptr) //
        else @memcpy(out, bytes[0..out.len]);
    }

    fn set_aside(m: *const Memory, piece: usize) void {
        const result = m.caller_piece(piece);
        const before = m.shadow_piece(piece);
        if (m.is_overwritten(piece)) swap(result, before) else @memcpy(before, result);
    }
};

fn swap(a: []u8, b: []u8) void {
    var between: [4096]u8 = undefined;
    var start: usize = 0;
    while (start < a.len) : (start += between.len) {
        const kept = between[0..@min(between.len, a.len - start)];
        @memcpy(kept, a[start..][0..kept.len]);
        @memcpy(a[start..][0..kept.len], b[start..][0..kept.len]);
        @memcpy(b[start..][0..kept.len], kept);
    }
}

/// The jobs that read this peer's contribution.
const Own = struct {
    memory: *const Memory,
    in_shadow: bool,

    fn ptr(mine: Own, piece: usize) [*]const u8 {
        return mine.memory.own(piece, mine.in_shadow);
    }

    fn contribute(mine: Own, job: *const Job) void {
        const m = mine.memory;
        const piece = job.piece;
        const into = m.slot(job.slot).ptr;
        if (m.encodes()) {
            const residual = m.residual_of(piece);
            const what = m.encoding_in(job, .contribution);
            return kernels.encode(what, into, mine.ptr(piece), residual);
        }
        const count = m.partition.elements(piece);
        kernels.first(m.op, m.dtype_of(piece), into, mine.ptr(piece), count);
    }

    fn add(mine: Own, job: *const Job) void {
        const m = mine.memory;
        const piece = job.piece;
        const sum = m.slot(job.slot);
        const own = mine.ptr(piece);
        if (!m.encodes()) {
            const count = m.partition.elements(piece);
            const dtype = m.dtype_of(piece);
            const all = job.before + 1;
            return kernels.accumulate(m.op, dtype, sum.ptr, sum.ptr, own, all, count);
        }
        const what = m.encoding_in(job, .contribution);
        const residual = m.residual_of(piece) orelse
            return kernels.accumulate_encode(what, sum.ptr, sum.ptr, own, null, 1);
        // The kernel computes the residual from its inputs at the end, so the output must not
        // overwrite them.
        const aside = m.aside(piece);
        kernels.accumulate_encode(what, aside.ptr, sum.ptr, own, residual, 1);
        @memcpy(sum[0..aside.len], aside);
    }

    fn add_last(mine: Own, job: *const Job) void {
        const m = mine.memory;
        const piece = job.piece;
        const sum = m.slot(job.slot).ptr;
        if (m.encodes()) return mine.reduce_encoded(job, m.target_piece(piece).ptr, &.{sum});
        kernels.accumulate_last(
            m.op,
            m.dtype_of(piece),
            m.target_piece(piece).ptr,
            sum,
            mine.ptr(piece),
            job.members,
            m.partition.elements(piece),
        );
    }

    fn reduce(mine: Own, job: *const Job, out: [*]u8) void {
        const m = mine.memory;
        var inputs: [base.limits.full_mesh_max][*]const u8 = undefined;
        var count: usize = 0;
        for (job.inputs[0..job.members], 0..) |index, position| {
            const is_own = position == job.position;
            if (index == no_slot and (!is_own or m.encodes())) continue;
            inputs[count] = if (is_own) mine.ptr(job.piece) else m.slot(index).ptr;
            count += 1;
        }
        if (m.encodes()) return mine.reduce_encoded(job, out, inputs[0..count]);
        const dtype = m.dtype_of(job.piece);
        const elements = m.partition.elements(job.piece);
        kernels.reduce_k(m.op, dtype, out, inputs[0..count], job.members, elements);
    }

    /// Reduces a piece of which all contributions are here, all but this peer's encoded. This
    /// peer's contribution is added after `job.position` others. A result that other members want
    /// is encoded again; a result that only this peer wants is not.
    fn reduce_encoded(mine: Own, job: *const Job, out: [*]u8, inputs: []const [*]const u8) void {
        const m = mine.memory;
        const piece = job.piece;
        const what = m.encoding_in(job, .result);
        const rest = m.residual_of(piece);
        const own = mine.ptr(piece);
        const at = job.position;
        // This job adds the last contribution, so it divides an average.
        const divisor: u32 = if (m.op == .avg) job.members else 1;
        if (job.kind == .reduce_for_another) {
            const aside = m.aside(piece);
            kernels.reduce_encode(what, aside.ptr, own, at, inputs, rest, divisor);
            @memcpy(out[0..aside.len], aside);
        } else if (m.is_private) {
            kernels.reduce_decode(what, out, own, at, inputs, rest, divisor);
        } else {
            const encoded = m.encoded_piece(piece).ptr;
            kernels.reduce_encode(what, encoded, own, at, inputs, rest, divisor);
            m.decode(piece);
        }
    }

    fn bring(mine: Own, piece: usize) void {
        const m = mine.memory;
        if (m.encodes() and !m.is_private) {
            // All members get the decoded values, so this peer decodes its own encoding as well.
            const out = m.encoded_piece(piece).ptr;
            kernels.encode(m.encoding(piece, .contribution), out, mine.ptr(piece), null);
            return m.decode(piece);
        }
        if (m.in_place(piece)) return;
        const out = m.target_piece(piece);
        const own = mine.ptr(piece)[0..out.len];
        if (m.is_private) m.copy_unread(out, own) else @memcpy(out, own);
    }

    fn finish_alone(mine: Own, job: *const Job) void {
        const m = mine.memory;
        const count = m.partition.elements(job.piece);
        const out = m.target_piece(job.piece).ptr;
        kernels.finish_one(m.op, m.dtype_of(job.piece), out, mine.ptr(job.piece), count);
        m.keep_residual(job.piece);
    }
};
