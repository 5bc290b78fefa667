//! Memory: where the bytes of one operation are: the caller's arrays, the undo log, slots, encoded
//! results. It turns places into bytes and does jobs. No other file of this layer calls a kernel or
//! has an address, but for arrays.zig, which has the caller's.
//!
//! The result grows in the caller's buffer. In place, each piece of the input is saved in `shadow`
//! before its first byte is overwritten, in the step that reads it anyway, so that a failed call
//! gives the input back (docs/internals/PROMISE.md, P3). In a separate result buffer nothing is
//! saved: its contents after a failure are unspecified.
//!
//! `prepare` is the engine's thread's; `run` any thread's, for pieces that nothing else is at.

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
    /// Nobody else has this result, so it has no digest, and travels no further.
    is_private: bool,
    /// Random signs and roundings follow from it; the same on all peers.
    operation: u64,
    /// The caller's: what it contributes, until this peer has voted, and where the result grows.
    arrays: Arrays,
    /// The caller's: for each element an f32 that former encodings lost, and what this one loses.
    residual: ?kernels.Residual,
    /// The caller has its arrays back: what this peer has for others is in `shadow`.
    is_aside: bool = false,
    /// The undo log: what the caller's arrays had in place. Later the result that is set aside.
    shadow: Pool.Buffer = &.{},
    /// With a codec: the final bytes as they travel, and room for a piece more. Whoever holds a
    /// chunk decodes these, its owner too, and passes on these, in later attempts as well.
    encoded: Pool.Buffer = &.{},
    slots: Pool.Buffer = &.{},
    slot_bytes: usize,
    // Per piece: the undo log has it; the result was written over it.
    saved: base.BitSet,
    dirty: base.BitSet,

    /// `arena` gives all of it back. The large buffers come with `reserve`.
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

    /// The large buffers. A failure changes nothing.
    pub fn reserve(m: *Memory, slot_count: usize) Allocator.Error!void {
        const room = if (m.encodes()) m.arrays.encoded_bytes + m.slot_bytes else 0;
        const shadow = try m.pool.take(m.arrays.result_bytes);
        errdefer m.pool.give(shadow);
        const slots = try m.pool.take(slot_count * m.slot_bytes);
        errdefer m.pool.give(slots);
        m.encoded = try m.pool.take(room);
        m.shadow = shadow;
        m.slots = slots;
        // A piece that is not encoded loses nothing.
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

    /// The result grows over the contribution: what was overwritten is read from `shadow`.
    fn in_place(m: *const Memory, piece: usize) bool {
        return m.arrays.in_place(m.partition.shard_of(piece));
    }

    fn is_own_in_shadow(m: *const Memory, piece: usize) bool {
        return m.is_aside or (m.dirty.has(piece) and m.in_place(piece));
    }

    /// This peer's contribution.
    fn own(m: *const Memory, piece: usize, in_shadow: bool) [*]const u8 {
        const place = m.place_of(piece);
        if (in_shadow) return m.shadow.ptr + m.arrays.places[place.shard].shadow + place.start;
        return m.arrays.send(place.shard) + place.start;
    }

    /// The contribution of this peer, which travels as it is.
    pub fn own_piece(m: *const Memory, piece: usize) []const u8 {
        return m.own(piece, m.is_own_in_shadow(piece))[0..m.place_of(piece).len];
    }

    /// Where it is in the result, which has it.
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

    /// Its bytes in its shard.
    fn place_of(m: *const Memory, piece: usize) struct { shard: usize, start: usize, len: usize } {
        const found = m.partition.place_of(piece);
        const start = found.before * found.dtype.size();
        return .{ .shard = found.shard, .start = start, .len = found.bytes() };
    }

    /// The final bytes of a piece of the result as they travel.
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

    /// For bytes that may not go where they will be just yet. There is one such place.
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

    /// Nobody gets anything of it, so nothing is given back and nothing is lost.
    pub fn keep_residual(m: *const Memory, piece: usize) void {
        const rest = m.residual_of(piece) orelse return;
        @memmove(rest.out, rest.in[0 .. m.partition.elements(piece) * @sizeOf(f32)]);
    }

    // ---- the undo log

    /// Where the final bytes of a piece come in.
    pub fn receive(m: *Memory, piece: usize) []u8 {
        if (m.encodes()) return m.encoded_piece(piece);
        if (m.overwrite(piece)) m.save(piece);
        return m.target_piece(piece);
    }

    /// A piece of the result is about to be written. Whether what is there must be saved first.
    fn overwrite(m: *Memory, piece: usize) bool {
        m.dirty.set_bit(piece);
        return m.must_save(piece);
    }

    /// A contribution is read for the last time before it may be overwritten. Whether to save it.
    fn read_last(m: *Memory, piece: usize) bool {
        return m.in_place(piece) and m.must_save(piece);
    }

    /// The caller has it back as it was, if the call fails.
    fn must_save(m: *Memory, piece: usize) bool {
        const place = &m.arrays.places[m.partition.shard_of(piece)];
        if (m.saved.has(piece) or !m.arrays.is_kept[place.array]) return false;
        m.saved.set_bit(piece);
        return true;
    }

    fn save(m: *const Memory, piece: usize) void {
        m.copy_unread(m.shadow_piece(piece), m.target_piece(piece));
    }

    /// For bytes that are not read again soon: most of a large undo log is never read.
    fn copy_unread(m: *const Memory, to: []u8, from: []const u8) void {
        if (m.shadow.len >= large_bytes) kernels.copy_past(to.ptr, from.ptr, from.len) //
        else @memcpy(to, from);
    }

    const large_bytes = base.limits.MiB;

    pub fn is_received(m: *const Memory, piece: usize) bool {
        return m.arrays.is_received(m.partition.shard_of(piece));
    }

    /// Whether a call that fails must give a piece back.
    pub fn is_overwritten(m: *const Memory, piece: usize) bool {
        return m.dirty.has(piece) and m.saved.has(piece);
    }

    /// All pieces are set aside. Nothing is contributed any more: what this peer has voted for is
    /// all it gives.
    pub fn is_set_aside(m: *Memory) void {
        for (0..@intCast(m.partition.pieces)) |piece| {
            // Nothing of the caller's is left here.
            if (m.is_received(piece)) m.saved.set_bit(piece);
        }
        m.is_aside = true;
        m.residual = null;
        m.dirty.clear();
    }

    /// After it was set aside and committed: the result goes to the caller after all, once.
    pub fn hand_over(m: *const Memory) void {
        assert(m.is_aside);
        for (m.arrays.places, m.partition.shards, 0..) |*from, *shard, index| {
            const bytes = shard.bytes();
            if (!m.arrays.is_received(index) or bytes == 0) continue;
            kernels.copy_past(m.arrays.recv(index), m.shadow.ptr + from.shadow, bytes);
        }
    }

    // ---- jobs

    /// The places of a job, settled when it is made.
    pub const Access = struct {
        /// The bytes that it overwrites are saved.
        saves: bool = false,
        own_in_shadow: bool = false,
        /// It has nothing to do.
        is_needless: bool = false,
        /// It uses the one place aside.
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

    /// Does it; the digest of what all members have, if it ends in that.
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

    /// The same for a contribution to a sum, or for a sum.
    fn encoding_in(m: *const Memory, job: *const Job, stage: Stage) kernels.Piece {
        var what = m.encoding(job.piece, stage);
        what.shift = job.shift;
        return what;
    }

    /// The encoded result of a piece is there: decoded, everybody has the same.
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

/// Jobs that read this peer's contribution.
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
        // Losses are found in the end from the inputs, so these must still be there then.
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

    /// All contributions to a piece are here, all but this peer's encoded: it is added after
    /// `position` of them. A result that others want too is encoded once more; one that this peer
    /// alone wants is not.
    fn reduce_encoded(mine: Own, job: *const Job, out: [*]u8, inputs: []const [*]const u8) void {
        const m = mine.memory;
        const piece = job.piece;
        const what = m.encoding_in(job, .result);
        const rest = m.residual_of(piece);
        const own = mine.ptr(piece);
        const at = job.position;
        // The last contribution to an average is added now.
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
            // All have the decoded values, this peer as well.
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
