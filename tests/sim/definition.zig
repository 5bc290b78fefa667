//! Definition: the result that a collective of floats must give, to the bit, and the losses that
//! each contributor must have: docs/internals/ALGORITHMS.md and docs/internals/KERNELS.md once
//! more, without frames, slots, credits and losses of peers. From the attempt that reduced a chunk
//! follow its contributors, their order and its owner, and from these its bits; a chunk with one
//! source depends on that source alone. The arithmetic is that of the kernels, which have tests of
//! their own. This file decides who adds what to what, when it is rounded, and what is carried on.
//!
//! `unaccounted` guards against an error that definition and engine share. It knows neither plan
//! nor order nor codec: the inputs must equal the result plus the losses. Called by floats.zig.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const kernels = @import("kernels");
const wire = @import("wire");
const oracle = @import("oracle.zig");
const Allocator = std.mem.Allocator;
const Partition = collective.Partition;
const assert = std.debug.assert;

/// The contribution of one member to a chunk. Residuals are of the whole operation.
pub const Contributor = struct {
    rank: u16,
    /// It reaches all others, and may own chunks of a direct schedule.
    is_hub: bool = false,
    values: []const u8,
    /// Elements of the operation before these.
    values_first: u64 = 0,
    /// Carried over, and lost now.
    residual: []const f32,
    lost: []f32,

    fn own(contributor: *const Contributor, span: Span, dtype: base.DType) [*]const u8 {
        return contributor.values.ptr + contributor.place(span.first) * dtype.size();
    }

    fn place(contributor: *const Contributor, element: usize) usize {
        return element - @as(usize, @intCast(contributor.values_first));
    }

    fn keep_residual(contributor: *const Contributor, span: Span) void {
        const kept = contributor.residual[span.first..][0..span.count];
        @memcpy(contributor.lost[span.first..][0..span.count], kept);
    }

    fn residuals(contributor: *const Contributor, span: Span) kernels.Residual {
        return .{
            .in = @ptrCast(contributor.residual.ptr + span.first),
            .out = @ptrCast(contributor.lost.ptr + span.first),
        };
    }
};

/// Elements of one piece.
const Span = struct {
    first: usize,
    count: usize,
    /// As codecs count.
    coded_first: u64,
};

pub const Definition = struct {
    kind: wire.control.OpKind,
    /// A rank.
    root: u16,
    world_size: usize,
    dtype: base.DType,
    op: base.ReduceOp,
    partition: Partition,
    /// Signs and random bits follow from it.
    operation: u64,
    /// The result.
    bytes: []u8,
    /// Pieces on their way.
    travelling: []u8,

    pub const Options = struct {
        kind: wire.control.OpKind = .all_reduce,
        root: u16 = 0,
        world_size: usize,
        dtype: base.DType,
        op: base.ReduceOp,
        partition: Partition,
        operation: u64,
    };

    /// Memory is never given back: `arena` goes as a whole.
    pub fn init(arena: Allocator, options: Options) Allocator.Error!Definition {
        const partition = options.partition;
        var bytes: usize = 0;
        for (partition.shards) |*shard| bytes += shard.bytes();
        return .{
            .kind = options.kind,
            .root = options.root,
            .world_size = options.world_size,
            .dtype = options.dtype,
            .op = options.op,
            .partition = partition,
            .operation = options.operation,
            .bytes = try arena.alloc(u8, bytes),
            .travelling = try arena.alloc(u8, collective.direct_members_max * room(&partition)),
        };
    }

    fn room(partition: *const Partition) usize {
        return partition.slot_bytes();
    }

    /// The rank whose elements a chunk has, where they come from one.
    pub fn source(d: *const Definition, chunk: u32) ?u16 {
        const shard = d.partition.shard_of_chunk(chunk);
        return switch (d.kind) {
            .all_reduce, .reduce, .reduce_scatter => null,
            .all_gather, .gather => @intCast(shard),
            .scatter => d.root,
            .all_to_all => @intCast(shard / d.world_size),
            .broadcast, .barrier, .sync, .send_recv => unreachable, // none of floats
        };
    }

    /// The rank that gets a chunk, where one alone does.
    pub fn audience(d: *const Definition, chunk: u32) ?u16 {
        const shard = d.partition.shard_of_chunk(chunk);
        return switch (d.kind) {
            .all_reduce, .all_gather => null,
            .reduce, .gather => d.root,
            .reduce_scatter, .scatter => @intCast(shard),
            .all_to_all => @intCast(shard % d.world_size),
            .broadcast, .barrier, .sync, .send_recv => unreachable,
        };
    }

    fn span_of(d: *const Definition, piece: u64) Span {
        const first = d.partition.offset(piece);
        return .{
            .first = @intCast(first),
            .count = d.partition.elements(piece),
            .coded_first = d.number_of(first),
        };
    }

    /// Elements from one rank are what their encoding decodes to, at the source too where others
    /// have it as well; what a rank has for itself is as it was.
    pub fn carry(d: *const Definition, chunk: u32, from: *const Contributor) void {
        const first = d.partition.first_piece(chunk);
        const travels = d.audience(chunk) != from.rank and d.world_size > 1;
        for (0..d.partition.pieces_of(chunk)) |index| {
            const span = d.span_of(first + index);
            const out = d.result(span);
            const mine = from.own(span, d.dtype);
            if (travels and d.encodes()) {
                const encoding = d.encoding_of(span, from.rank, false);
                kernels.encode(encoding, d.slot(0), mine, null);
                kernels.decode(encoding, out, d.slot(0));
            } else @memcpy(out[0 .. span.count * d.dtype.size()], mine);
        }
    }

    /// `contributors` by position: in the order of the ring, or of the ranks.
    pub fn reduce(
        d: *const Definition,
        chunk: u32,
        taken: collective.Schedule.Taken,
        contributors: []const Contributor,
    ) void {
        const schedule = taken.schedule;
        const first = d.partition.first_piece(chunk);
        const wanted = d.audience(chunk);
        var owner = switch (schedule) {
            .ring => chunk % contributors.len,
            .direct => owner_of(chunk, contributors, &taken.shares),
        };
        // Whoever wants it owns it. A hub does for one that is none.
        for (contributors, 0..) |*who, position| {
            if (who.rank == wanted and (schedule == .ring or who.is_hub)) owner = position;
        }
        const way: Way = .{ .owner = owner, .keeps = contributors[owner].rank == wanted };
        for (0..d.partition.pieces_of(chunk)) |index| {
            const span = d.span_of(first + index);
            if (contributors.len == 1) d.alone(span, &contributors[0]) //
            else switch (schedule) {
                .ring => d.around(span, way, contributors),
                .direct => d.at_once(span, way, contributors),
            }
        }
    }

    /// The rank that adds up, and whether nobody else gets the sum, which is then not encoded.
    const Way = struct { owner: usize, keeps: bool };

    fn result(d: *const Definition, span: Span) [*]u8 {
        return d.bytes.ptr + span.first * d.dtype.size();
    }

    fn encodes(d: *const Definition) bool {
        return d.partition.codec.kind != .none;
    }

    fn divisor(d: *const Definition, contributors: usize) u32 {
        return if (d.op == .avg) @intCast(contributors) else 1;
    }

    /// Contributions to an average are encoded as 2^-shift of what they are.
    fn shift(d: *const Definition, contributors: usize) u6 {
        return if (d.op == .avg) std.math.log2_int_ceil(u32, @intCast(contributors)) else 0;
    }

    fn slot(d: *const Definition, index: usize) [*]u8 {
        return d.travelling.ptr + index * room(&d.partition);
    }

    fn encoding_of(d: *const Definition, span: Span, rank: u16, is_result: bool) kernels.Piece {
        return .{
            .codec = d.partition.codec,
            .dtype = d.dtype,
            .count = span.count,
            .seed = 0,
            .operation = d.operation,
            .origin = @as(u32, rank) << 1 | @intFromBool(is_result),
            .first = span.coded_first,
        };
    }

    /// Random bits are counted in whole granules of each shard; where only two know a shard, each
    /// has room for the largest.
    fn number_of(d: *const Definition, element: u64) u64 {
        var before: u64 = 0;
        var number: u64 = 0;
        for (d.partition.shards, 0..) |*shard, index| {
            if (d.partition.is_uneven) number = base.limits.elements_max * @as(u64, index);
            if (element < before + shard.elements) return number + (element - before);
            before += shard.elements;
            number += std.mem.alignForward(u64, shard.elements, d.partition.codec.granule());
        }
        unreachable;
    }

    /// Nothing is encoded, and nothing lost.
    fn alone(d: *const Definition, span: Span, only: *const Contributor) void {
        const mine = only.own(span, d.dtype);
        kernels.finish_one(d.op, d.dtype, d.result(span), mine, span.count);
        only.keep_residual(span);
    }

    /// From behind the owner all the way round to it, and each adds its own.
    fn around(
        d: *const Definition,
        span: Span,
        way: Way,
        contributors: []const Contributor,
    ) void {
        const n = contributors.len;
        var partial = d.slot(0);
        var next = d.slot(1);
        for (1..n + 1) |distance| {
            const who = &contributors[(way.owner + distance) % n];
            const mine = who.own(span, d.dtype);
            const is_last = distance == n;
            if (!d.encodes()) {
                who.keep_residual(span);
                if (distance == 1) {
                    kernels.first(d.op, d.dtype, partial, mine, span.count);
                } else if (!is_last) {
                    const all: u32 = @intCast(distance);
                    kernels.accumulate(d.op, d.dtype, partial, partial, mine, all, span.count);
                } else kernels.accumulate_last(
                    d.op,
                    d.dtype,
                    d.result(span),
                    partial,
                    mine,
                    @intCast(n),
                    span.count,
                );
                continue;
            }
            var encoding = d.encoding_of(span, who.rank, is_last);
            encoding.shift = d.shift(n);
            const residuals = who.residuals(span);
            const by = if (is_last) d.divisor(n) else 1;
            if (is_last and way.keeps) {
                const out = d.result(span);
                const sum = [_][*]const u8{partial};
                kernels.reduce_decode(encoding, out, mine, 1, &sum, residuals, by);
                continue;
            }
            if (distance == 1) kernels.encode(encoding, next, mine, residuals) //
            else kernels.accumulate_encode(encoding, next, partial, mine, residuals, by);
            std.mem.swap([*]u8, &partial, &next);
            if (is_last) kernels.decode(encoding, d.result(span), partial);
        }
    }

    fn owner_of(chunk: u32, contributors: []const Contributor, shares: *const base.Shares) usize {
        var hubs: base.Mask = .empty;
        for (contributors) |*who| if (who.is_hub) hubs.set(who.rank);
        var ranks: [base.Shares.owners_max]u8 = undefined;
        const owners = shares.owners(&hubs, &ranks);
        const rank = owners[chunk % owners.len];
        for (contributors, 0..) |*who, position| if (who.rank == rank) return position;
        unreachable;
    }

    /// All contributions at the owner, in rank order, of which its own was never encoded.
    fn at_once(
        d: *const Definition,
        span: Span,
        way: Way,
        contributors: []const Contributor,
    ) void {
        const n = contributors.len;
        const owner = way.owner;
        var inputs: [collective.direct_members_max][*]const u8 = undefined;
        if (!d.encodes()) {
            for (contributors, inputs[0..n]) |*who, *input| input.* = who.own(span, d.dtype);
            const out = d.result(span);
            return kernels.reduce_k(d.op, d.dtype, out, inputs[0..n], @intCast(n), span.count);
        }
        // In f32 there is room for all that travels as f16.
        const smaller: u6 = if (d.partition.codec.kind == .f16) 0 else d.shift(n);
        var count: usize = 0;
        for (contributors, 0..) |*who, position| {
            if (position == owner) continue;
            var encoding = d.encoding_of(span, who.rank, false);
            encoding.shift = smaller;
            const encoded = d.slot(count);
            kernels.encode(encoding, encoded, who.own(span, d.dtype), who.residuals(span));
            inputs[count] = encoded;
            count += 1;
        }
        const who = &contributors[owner];
        var encoding = d.encoding_of(span, who.rank, true);
        encoding.shift = smaller;
        const mine = who.own(span, d.dtype);
        const rest = who.residuals(span);
        const by = d.divisor(n);
        const result_place = d.result(span);
        const others = inputs[0..count];
        if (way.keeps)
            return kernels.reduce_decode(encoding, result_place, mine, owner, others, rest, by);
        const out = d.slot(count);
        kernels.reduce_encode(encoding, out, mine, owner, others, rest, by);
        kernels.decode(encoding, result_place, out);
    }

    // ---- what needs no definition

    /// An element of which more, or less, came out than went in.
    pub const Unaccounted = struct { element: usize, went_in: f64, came_out: f64 };

    /// All that went into a chunk is in the result or in what was lost, but for roundings that are
    /// far below any contribution. Values must be integers, and not zero.
    pub fn unaccounted(
        d: *const Definition,
        chunk: u32,
        contributors: []const Contributor,
    ) ?Unaccounted {
        const begin: usize = @intCast(d.partition.chunk_offset(chunk));
        const end: usize = @intCast(d.partition.chunk_offset(@as(u64, chunk) + 1));
        var greatest: f64 = 0;
        for (begin..end) |element| {
            var magnitude: f64 = 0;
            for (contributors) |*who| magnitude += @abs(d.given(who, element));
            greatest = @max(greatest, magnitude);
        }
        const by: f64 = @floatFromInt(d.divisor(contributors.len));
        for (begin..end) |element| {
            var went_in: f64 = 0;
            var lost: f64 = 0;
            for (contributors) |*who| {
                went_in += d.given(who, element);
                lost += if (d.encodes()) who.lost[element] else 0;
            }
            const got = value_at(d.dtype, d.bytes, element) * by;
            const slack = greatest * d.rounding() + @abs(got) * epsilon(d.dtype);
            const differs = @abs(got + lost - went_in) > slack;
            if (differs or (d.is_exact(contributors, element) and got != went_in)) return .{
                .element = element,
                .went_in = went_in,
                .came_out = got + lost,
            };
        }
        return null;
    }

    /// Integers whose sum is small, and that travel as they are or as 16-bit floats, lose nothing.
    fn is_exact(d: *const Definition, contributors: []const Contributor, element: usize) bool {
        var magnitude: f64 = 0;
        for (contributors) |*who| magnitude += @abs(d.given(who, element));
        if (!(magnitude <= oracle.floats_exact_max)) return false;
        if (d.op == .avg) return false;
        switch (d.partition.codec.kind.family()) {
            .none => return true,
            .half => {},
            .block, .range => return false,
        }
        for (contributors) |*who| if (who.residual[element] != 0) return false;
        return true;
    }

    fn given(d: *const Definition, who: *const Contributor, element: usize) f64 {
        const residual = if (d.encodes()) who.residual[element] else 0;
        return value_at(d.dtype, who.values, who.place(element)) + residual;
    }

    /// The rounding of f32 on the way through a block, relative to the greatest sum.
    fn rounding(d: *const Definition) f64 {
        const codec = d.partition.codec;
        const elements = if (codec.rotate) codec.block.elements() else 1;
        return 0x1p-20 * @as(f64, @floatFromInt(elements));
    }

    /// The rounding of a result.
    fn epsilon(dtype: base.DType) f64 {
        return switch (dtype) {
            .f32, .f64 => 0x1p-22,
            .f16 => 0x1p-11,
            .bf16 => 0x1p-8,
            else => unreachable,
        };
    }
};

pub fn value_at(dtype: base.DType, bytes: []const u8, element: usize) f64 {
    if (dtype == .f64) return @bitCast(bytes[element * 8 ..][0..8].*);
    var value: f32 = undefined;
    const at = bytes.ptr + element * dtype.size();
    kernels.to_f32(dtype, std.mem.asBytes(&value), at, 1);
    return value;
}

// ---- tests

fn test_contributors(
    arena: Allocator,
    dtype: base.DType,
    count: usize,
    n: usize,
) ![]Contributor {
    const contributors = try arena.alloc(Contributor, n);
    for (contributors, 0..) |*who, rank| {
        const values = try arena.alloc(u8, count * dtype.size());
        for (0..count) |element| {
            const drawn: f32 = @floatFromInt(1 + (element * 7 + rank * 5) % 15);
            const value = if ((element + rank) % 3 == 0) -drawn else drawn;
            const at = values.ptr + element * dtype.size();
            kernels.from_f32(dtype, at, std.mem.asBytes(&value), 1);
        }
        who.* = .{
            .rank = @intCast(rank),
            .is_hub = rank != 1 or n == 1,
            .values = values,
            .residual = try arena.alloc(f32, count),
            .lost = try arena.alloc(f32, count),
        };
        @memset(@constCast(who.residual), 0);
    }
    return contributors;
}

test "whatever a codec does, nothing goes in that is neither in the result nor lost" {
    // Goal: a contribution that is missing, or there twice, is seen in every element of every
    // codec. Method: a second operation carries on what the first has lost; then the accounts are
    // made with one contributor more, and with one less.
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    for (std.enums.values(base.codec.Kind)) |codec| for ([_]base.DType{ .f32, .bf16 }) |dtype| {
        for ([_]collective.Schedule{ .ring, .direct }) |schedule| for ([_]usize{ 1, 2, 5 }) |n| {
            for ([_]wire.control.OpKind{ .all_reduce, .reduce, .reduce_scatter }) |kind| {
                _ = arena.reset(.retain_capacity);
                try test_accounts(arena.allocator(), schedule, n, .{
                    .kind = kind,
                    .codec = .of(codec),
                    .dtype = dtype,
                    .op = if (n == 5) .avg else .sum,
                });
            }
        };
    };
}

const Account = struct {
    kind: wire.control.OpKind,
    codec: base.Codec,
    dtype: base.DType,
    op: base.ReduceOp,
};

fn test_accounts(
    arena: Allocator,
    schedule: collective.Schedule,
    n: usize,
    account: Account,
) !void {
    const count = 300;
    const dtype = account.dtype;
    var shards: [5]collective.Shard = undefined;
    const parts = if (account.kind.has_shards()) n else 1;
    for (shards[0..parts]) |*shard| shard.* = .{
        .elements = count / parts,
        .dtype = dtype,
        .partial_bytes = @intCast(base.dtype.partial_size(account.op, dtype)),
    };
    const d: Definition = try .init(arena, .{
        .kind = account.kind,
        .root = @intCast(n / 2), // of five, 1 is no hub and 2 is one
        .world_size = n,
        .dtype = dtype,
        .op = account.op,
        .operation = 77,
        .partition = .init(.{
            .shards = shards[0..parts],
            .world_size = @intCast(n),
            .chunk_bytes_max = 64,
            .window_bytes = 1024,
            .codec = account.codec,
        }),
    });
    const contributors = try test_contributors(arena, dtype, count, n);
    const twice = try std.mem.concat(arena, Contributor, &.{ contributors, contributors[0..1] });
    for (0..2) |_| {
        for (0..d.partition.chunks) |index| {
            const chunk: u32 = @intCast(index);
            d.reduce(chunk, .{ .schedule = schedule }, contributors);
            const wrong = d.unaccounted(chunk, contributors);
            try std.testing.expectEqual(@as(?Definition.Unaccounted, null), wrong);
            if (account.op == .avg) continue;
            try std.testing.expect(d.unaccounted(chunk, twice) != null);
            const less = contributors[0 .. n - 1];
            if (n > 1) try std.testing.expect(d.unaccounted(chunk, less) != null);
        }
        for (contributors) |*who| @memcpy(@constCast(who.residual), who.lost);
    }
}
