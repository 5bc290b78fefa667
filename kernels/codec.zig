//! Encoded pieces: cuts a piece into tiles that stay in the first-level cache, and runs on each
//! tile the kernels that it needs, from the table of the best CPU level. codec_scalar.zig specifies
//! the results; the kernels are in block.zig, rotate.zig, half.zig and range.zig.
//!
//! All tiles but the last have whole blocks. f32 without a residual are read where they lie, all
//! whole blocks as one tile; otherwise a tile is first converted and given its residual, in memory
//! of this call.

const std = @import("std");
const base = @import("base");
const scalar = @import("codec_scalar.zig");
const dispatch = @import("dispatch.zig");
const table = @import("table.zig");
const assert = std.debug.assert;

const Codec = base.Codec;
const Kind = base.codec.Kind;

pub const Piece = scalar.Piece;
pub const Residual = scalar.Residual;

const tile_max = 2048;
const Floats = [tile_max]f32;

/// out := the encoded elements. `out` has `piece.bytes()`, and does not overlap the input.
pub fn encode(piece: Piece, out: [*]u8, input: [*]const u8, residual: ?Residual) void {
    with_call(piece, .{ .own = input, .residual = residual }, Call.encode, out);
}

/// The step of a ring: out := the encoding of (partial + own) / divisor. `out` may be exactly
/// `partial`, unless there is a residual, which is added to `own`.
pub fn accumulate_encode(
    piece: Piece,
    out: [*]u8,
    partial: [*]const u8,
    own: [*]const u8,
    residual: ?Residual,
    divisor: u32,
) void {
    reduce_encode(piece, out, own, 1, &.{partial}, residual, divisor);
}

/// The step of an owner: out := the encoding of the sum of all inputs over `divisor`, where `own`,
/// which was never encoded, is added after `position` of them. `out` may be exactly an input,
/// unless there is a residual: that is then what the encoding of the sum loses, times `divisor`.
pub fn reduce_encode(
    piece: Piece,
    out: [*]u8,
    own: [*]const u8,
    position: usize,
    inputs: []const [*]const u8,
    residual: ?Residual,
    divisor: u32,
) void {
    assert(position <= inputs.len and divisor > 0);
    with_call(piece, .{
        .own = own,
        .position = position,
        .inputs = inputs,
        .residual = residual,
        .divisor = divisor,
    }, Call.encode, out);
}

/// The step of an owner that alone has the result: out := the sum of all inputs and `own`, which
/// was never encoded, over `divisor`. `own` is added after `position` of them, or where blocks are
/// rotated last, and a residual with it, of which nothing is left. `out` may be exactly `own`.
pub fn reduce_decode(
    piece: Piece,
    out: [*]u8,
    own: [*]const u8,
    position: usize,
    inputs: []const [*]const u8,
    residual: ?Residual,
    divisor: u32,
) void {
    assert(position <= inputs.len and inputs.len > 0 and divisor > 0);
    with_call(piece, .{
        .own = own,
        .position = if (piece.codec.rotate) inputs.len else position,
        .inputs = inputs,
        .residual = residual,
        .divisor = divisor,
    }, Call.reduce_decode, out);
}

/// out := the elements of an encoded piece.
pub fn decode(piece: Piece, out: [*]u8, encoded: [*]const u8) void {
    with_call(piece, .{ .inputs = &.{encoded} }, Call.decode, out);
}

/// Never inlined, since its caller does other things, too, for which it needs no such stack.
///
/// With safety, memory that is declared is filled with 0xaa first: here the tiles, 24 KiB, with
/// every piece. Computing and indexing is in `init` and `work`, which keep theirs; here are a
/// declaration and two calls, of which nothing can overflow or be out of bounds. Nothing reads what
/// was not written: each tile is filled by the kernel that its reader follows.
noinline fn with_call(
    piece: Piece,
    sources: Call.Sources,
    comptime work: fn (*Call, [*]u8) void,
    out: [*]u8,
) void {
    @setRuntimeSafety(false);
    var call: Call = undefined;
    call.init(piece, sources);
    work(&call, out);
}

/// sum := sum + the values of an encoded piece as they are, in the rotated domain: f32, of whole
/// blocks.
pub fn add_encoded(piece: Piece, sum: [*]u8, encoded: [*]const u8) void {
    assert(piece.codec.kind.family() == .block);
    assert(piece.count % piece.codec.block.elements() == 0);
    const head = piece.codec.head_bytes(piece.count);
    const kernels = &dispatch.table().add_blocks[block_number(piece.codec)];
    const blocks = piece.codec.blocks(piece.count);
    kernels[@intFromEnum(piece.codec.block)](sum, sum, encoded, encoded + head, blocks);
}

/// Elements that are worked on together; `padded` are the elements of their whole blocks.
const Tile = struct { begin: usize, count: usize, padded: usize };

const Call = struct {
    kernels: *const table.Table,
    piece: Piece,
    sources: Sources,
    factor: f32,
    /// By what own elements are multiplied before they are added.
    own_factor: f32,
    key: u64,
    /// The signs of an encoding, and those of a decoding.
    down: table.Signs,
    up: table.Signs,
    /// Own elements as f32, with their residual.
    own: Floats align(64),
    values: Floats align(64),
    others: Floats align(64),

    const Sources = struct {
        own: [*]const u8 = undefined,
        position: usize = 0,
        inputs: []const [*]const u8 = &.{},
        residual: ?Residual = null,
        divisor: u32 = 1,
    };

    /// Leaves the tiles as they are: they are as large as a small piece.
    fn init(call: *Call, piece: Piece, sources: Sources) void {
        assert(piece.first % piece.codec.granule() == 0);
        assert(piece.dtype.is_float());
        call.kernels = dispatch.table();
        call.piece = piece;
        call.sources = sources;
        const alone = sources.inputs.len == 0;
        call.factor = if (alone) piece.down() else piece.factor(sources.divisor);
        call.own_factor = if (alone) 1 else piece.down();
        call.key = scalar.noise_key(piece.seed, piece.operation, piece.origin);
    }

    fn signs(call: *const Call, way: Way) table.Signs {
        return signs_of(call.piece.codec.block, call.piece.seed, call.piece.operation, way);
    }

    /// The tile that begins there: all whole blocks, where there is a limit of memory a few.
    fn tile(call: *const Call, begin: usize, whole: bool) Tile {
        const rest = call.piece.count - begin;
        const block = switch (call.piece.codec.kind.family()) {
            .none => unreachable,
            .block => call.piece.codec.block.elements(),
            .half, .range => 1,
        };
        const limit = if (whole) rest else @min(rest, tile_max);
        const count = if (limit >= block) limit / block * block else limit;
        const padded = std.mem.alignForward(usize, count, block);
        return .{ .begin = begin, .count = count, .padded = padded };
    }

    fn reduce_decode(call: *Call, out: [*]u8) void {
        const piece = call.piece;
        if (piece.codec.rotate) call.up = call.signs(.up);
        const size = piece.dtype.size();
        var begin: usize = 0;
        while (begin < piece.count) {
            const part = call.tile(begin, false);
            const to = out + begin * size;
            if (piece.dtype == .f32) {
                call.total(part, to);
            } else {
                const values = bytes_of(&call.values);
                call.total(part, values);
                call.kernels.from_f32[@intFromEnum(piece.dtype)].?(to, values, part.count);
            }
            if (call.sources.residual) |rest|
                @memset(rest.out[begin * 4 ..][0 .. part.count * 4], 0);
            begin += part.count;
        }
    }

    /// Decodes the one input.
    fn decode(call: *Call, out: [*]u8) void {
        const piece = call.piece;
        const encoded = call.sources.inputs[0];
        if (piece.codec.rotate) call.up = call.signs(.up);
        const size = piece.dtype.size();
        const whole = piece.dtype == .f32;
        var begin: usize = 0;
        while (begin < piece.count) {
            const part = call.tile(begin, whole);
            const to = out + begin * size;
            if (piece.dtype == .f32 and part.count == part.padded) {
                call.decode_tile(part, to, encoded);
            } else {
                const values = bytes_of(&call.values);
                call.decode_tile(part, values, encoded);
                call.kernels.from_f32[@intFromEnum(piece.dtype)].?(to, values, part.count);
            }
            begin += part.count;
        }
    }

    fn encode(call: *Call, out: [*]u8) void {
        const piece = call.piece;
        const sources = &call.sources;
        const family = piece.codec.kind.family();
        if (piece.codec.rotate) {
            call.down = call.signs(.down);
            if (sources.residual != null) call.up = call.signs(.up);
        }
        const steps: Steps = if (family == .range) call.measured() else undefined;
        const head = out[0..base.codec.range_bytes];
        const head_first = sources.inputs.len == 0 or sources.residual != null;
        if (family == .range and head_first) head.* = @bitCast(steps.head);
        const direct =
            piece.dtype == .f32 and sources.residual == null and call.own_factor == 1;
        const whole = direct and (family != .range or sources.inputs.len == 0);
        var begin: usize = 0;
        while (begin < piece.count) {
            const part = call.tile(begin, whole);
            switch (family) {
                .none => unreachable,
                .block => call.encode_blocks(part, out),
                .half => call.encode_half(part, out),
                .range => call.encode_range(part, out, &steps.codes),
            }
            if (sources.residual) |residual| call.put_residual(part, out, residual);
            begin += part.count;
        }
        // Last, since `out` may be an input.
        if (family == .range and !head_first) head.* = @bitCast(steps.head);
    }

    const Steps = struct { head: [2]f32, codes: table.Steps };

    /// Own elements as f32, padded with zeros, with their residual.
    fn contribution(call: *Call, part: Tile) [*]const u8 {
        const piece = call.piece;
        const from = call.sources.own + part.begin * piece.dtype.size();
        const own = bytes_of(&call.own);
        const whole = part.count == part.padded;
        var at: [*]const u8 = from;
        if (piece.dtype != .f32 or !whole) {
            call.kernels.to_f32[@intFromEnum(piece.dtype)].?(own, from, part.count);
            if (!whole) @memset(call.own[part.count..part.padded], 0);
            at = own;
        }
        if (call.sources.residual) |residual| {
            call.add_f32(own, at, residual.in + part.begin * 4, part.count);
            at = own;
        }
        if (call.own_factor != 1) {
            if (at != own) @memcpy(own[0 .. part.count * 4], at);
            multiply(call.own[0..part.padded], call.own_factor);
            at = own;
        }
        return at;
    }

    /// The sum of all sources, for the codecs with a range.
    fn sum(call: *Call, part: Tile) [*]const u8 {
        const inputs = call.sources.inputs;
        const mine = call.contribution(part);
        if (inputs.len == 0) return mine;
        const values = bytes_of(&call.values);
        const other = bytes_of(&call.others);
        for (0..inputs.len + 1) |turn| {
            const position = call.sources.position;
            var next = mine;
            if (turn != position) {
                const input = inputs[if (turn < position) turn else turn - 1];
                const to = if (turn == 0) values else other;
                call.read_tile(part, to, input);
                next = to;
            }
            if (turn == 0) {
                if (position == 0) @memcpy(values[0 .. part.count * 4], mine);
            } else {
                call.add_f32(values, values, next, part.count);
            }
        }
        return values;
    }

    /// out := the tile of the sum of all sources over the divisor, f32 and rotated back. `out` may
    /// be own elements, or `values`.
    fn total(call: *Call, part: Tile, out: [*]u8) void {
        const codec = call.piece.codec;
        const inputs = call.sources.inputs;
        const position = call.sources.position;
        const values = bytes_of(&call.values);
        const others = bytes_of(&call.others);
        // One alone is rotated back as it is decoded.
        const rotates_back = codec.rotate and inputs.len > 1;
        const mine = call.contribution(part);
        var so_far = mine;
        for (0..inputs.len + 1) |turn| {
            const is_last = turn == inputs.len;
            var next = mine;
            if (turn == position) {
                if (rotates_back) {
                    const kernel = call.kernels.rotate_back[@intFromEnum(codec.block)];
                    kernel(values, so_far, &call.up, call.blocks_of(part));
                }
            } else {
                const input = inputs[if (turn < position) turn else turn - 1];
                if (turn > 0 and !is_last and codec.kind.family() == .block) {
                    call.add_tile(part, values, so_far, input);
                    so_far = values;
                    continue;
                }
                const to = if (turn == 0) values else others;
                call.values_of(part, to, input, codec.rotate and !rotates_back);
                next = to;
            }
            if (turn == 0) {
                so_far = next;
            } else if (is_last and call.sources.divisor > 1) {
                const kernel = call.kernels.accumulate_mean_last[@intFromEnum(base.DType.f32)].?;
                const divisor = call.piece.divisor_of(call.sources.divisor);
                const how: table.Mean = .{ .up = 1, .down = 1, .divisor = divisor };
                kernel(out, so_far, next, &how, part.count);
            } else {
                call.add_f32(if (is_last) out else values, so_far, next, part.count);
                so_far = values;
            }
        }
    }

    /// out := a + the values of the tile, of a codec with blocks, as they are.
    fn add_tile(
        call: *Call,
        part: Tile,
        out: [*]u8,
        a: [*]const u8,
        encoded: [*]const u8,
    ) void {
        const codec = call.piece.codec;
        const at = call.place(part);
        const kernel = call.kernels.add_blocks[block_number(codec)][@intFromEnum(codec.block)];
        kernel(out, a, encoded + at.scales, encoded + at.codes, call.blocks_of(part));
    }

    fn add_f32(call: *Call, out: [*]u8, a: [*]const u8, b: [*]const u8, count: usize) void {
        const kernels = &call.kernels.accumulate[@intFromEnum(base.ReduceOp.sum)];
        kernels[@intFromEnum(base.DType.f32)].?(out, a, b, count);
    }

    fn put_residual(call: *Call, part: Tile, out: [*]const u8, residual: Residual) void {
        const to = residual.out + part.begin * 4;
        const own = bytes_of(&call.own);
        const got = bytes_of(&call.others);
        for (call.sources.inputs) |input| {
            call.decode_tile(part, got, input);
            call.add_f32(own, own, got, part.count);
        }
        call.decode_tile(part, got, out);
        const up = call.piece.up();
        const is_sum = call.sources.inputs.len > 0;
        const others = call.others[0..part.count];
        multiply(others, if (is_sum) call.piece.divisor_of(call.sources.divisor) else up);
        const vectors = std.math.divCeil(usize, part.count, 16) catch unreachable;
        call.kernels.lost(got, bytes_of(&call.own), got, vectors);
        if (is_sum) multiply(others, up);
        @memcpy(to[0 .. part.count * 4], got);
    }

    /// out := the padded tile.
    fn decode_tile(call: *Call, part: Tile, out: [*]u8, encoded: [*]const u8) void {
        call.values_of(part, out, encoded, call.piece.codec.rotate);
    }

    /// The same, rotated back or as the values are.
    fn values_of(
        call: *Call,
        part: Tile,
        out: [*]u8,
        encoded: [*]const u8,
        back: bool,
    ) void {
        const codec = call.piece.codec;
        if (codec.kind.family() != .block) return call.read_tile(part, out, encoded);
        const kernel = call.kernels.decode_blocks[block_number(codec)][@intFromEnum(codec.block)];
        const at = call.place(part);
        const turns = if (back) &call.up else null;
        kernel(out, encoded + at.scales, encoded + at.codes, turns, call.blocks_of(part));
    }

    /// out := the tile, of a codec without blocks.
    fn read_tile(call: *Call, part: Tile, out: [*]u8, encoded: [*]const u8) void {
        const codec = call.piece.codec;
        switch (codec.kind.family()) {
            .none, .block => unreachable,
            .half => {
                const d: base.DType = if (codec.kind == .bf16) .bf16 else .f16;
                const convert = call.kernels.to_f32[@intFromEnum(d)].?;
                convert(out, encoded + part.begin * 2, part.count);
            },
            .range => {
                const codes = encoded + base.codec.range_bytes + part.begin;
                const head = head_of(encoded);
                const kernel = call.kernels.decode_range[range_number(codec)];
                kernel(out, codes, part.count, &head);
            },
        }
    }

    fn encode_blocks(call: *Call, part: Tile, out: [*]u8) void {
        const codec = call.piece.codec;
        const at = call.place(part);
        const job: table.EncodeJob = .{
            .scales = out + at.scales,
            .codes = out + at.codes,
            .own = call.contribution(part),
            .signs = if (codec.rotate) &call.down else null,
            .inputs = call.sources.inputs.ptr,
            .input_count = call.sources.inputs.len,
            .position = call.sources.position,
            .scales_at = at.scales,
            .codes_at = at.codes,
            .count = call.blocks_of(part),
            .factor = call.factor,
            .key = call.key,
            .first = call.piece.first + part.begin,
        };
        const kernels = &call.kernels.encode_blocks[block_number(codec)];
        kernels[@intFromEnum(codec.block)][@intFromEnum(codec.rounding)](&job);
    }

    fn encode_half(call: *Call, part: Tile, out: [*]u8) void {
        const codec = call.piece.codec;
        const number = @intFromEnum(codec.kind) - @intFromEnum(Kind.bf16);
        const job: table.EncodeJob = .{
            .scales = undefined,
            .codes = out + part.begin * 2,
            .own = call.contribution(part),
            .signs = null,
            .inputs = call.sources.inputs.ptr,
            .input_count = call.sources.inputs.len,
            .position = call.sources.position,
            .scales_at = 0,
            .codes_at = part.begin * 2,
            .count = part.count,
            .factor = call.factor,
            .key = call.key,
            .first = call.piece.first + part.begin,
        };
        call.kernels.encode_half[number][@intFromEnum(codec.rounding)](&job);
    }

    fn encode_range(call: *Call, part: Tile, out: [*]u8, steps: *const table.Steps) void {
        const codes = out + base.codec.range_bytes + part.begin;
        const values = call.sum(part);
        if (steps.inverse == 0) return @memset(codes[0..part.count], 0);
        const kernel = call.kernels.encode_range[range_number(call.piece.codec)];
        kernel(codes, values, part.count, steps);
    }

    /// The first of two passes over a piece with a range: what its elements are measured by.
    fn measured(call: *Call) Steps {
        const zero_point = call.piece.codec.kind == .zero_point_u8;
        var range: table.Range = .{ .least = 0, .greatest = 0, .magnitude = 0 };
        var begin: usize = 0;
        while (begin < call.piece.count) {
            const part = call.tile(begin, false);
            const values = call.sum(part);
            if (begin == 0 and !zero_point) {
                range.least = std.mem.bytesToValue(f32, values[0..4]);
                range.greatest = range.least;
            }
            call.kernels.widen_range(&range, values, part.count);
            begin += part.count;
        }
        var codes: table.Steps = .{ .least = 0, .inverse = 0, .zero = 0 };
        if (range.magnitude >= scalar.escape_bits) {
            return .{ .head = @splat(std.math.nan(f32)), .codes = codes };
        }
        codes.least = range.least + 0.0; // -0 is 0
        const step = (range.greatest + 0.0 - codes.least) / 255;
        const scale = step * call.factor;
        if (step >= scalar.range_min) codes.inverse = 1 / step;
        if (!zero_point) return .{ .head = .{ codes.least * call.factor, scale }, .codes = codes };
        codes.zero = scalar.fixed_point(-codes.least * codes.inverse, 0);
        return .{ .head = .{ scale, @floatFromInt(codes.zero) }, .codes = codes };
    }

    /// Where the blocks of a tile lie in an encoded piece.
    fn place(call: *const Call, part: Tile) struct { scales: usize, codes: usize } {
        const codec = call.piece.codec;
        const head = codec.head_bytes(call.piece.count);
        return .{
            .scales = part.begin / codec.block.elements() * base.codec.scale_bytes,
            .codes = head + part.begin * codec.kind.bits() / 8,
        };
    }

    fn blocks_of(call: *const Call, part: Tile) usize {
        return part.padded / call.piece.codec.block.elements();
    }
};

const Way = enum { down, up };

/// By what each place in a block is multiplied before it is rotated (`down`), or after it was
/// rotated back (`up`).
pub fn signs_of(
    block: base.codec.Block,
    seed: u64,
    operation: u64,
    way: Way,
) table.Signs {
    const room = scalar.rotation_room(block);
    const factor: u32 = @bitCast(if (way == .down) 1 / room else room);
    var all: table.Signs = undefined;
    const words = std.math.divCeil(usize, block.elements(), 64) catch unreachable;
    for (0..words) |index| {
        const word = scalar.sign_word(seed, operation, index);
        for (all[index * 64 ..][0..64], 0..) |*sign, bit| {
            sign.* = @bitCast(@as(u32, @truncate(word >> @intCast(bit))) << 31 | factor);
        }
    }
    return all;
}

fn multiply(values: []f32, factor: f32) void {
    if (factor == 1) return;
    const V = @Vector(16, f32);
    var left = values;
    while (left.len >= 16) : (left = left[16..]) {
        const wide: *align(4) V = @ptrCast(left.ptr);
        wide.* *= @splat(factor);
    }
    for (left) |*value| value.* *= factor;
}

fn bytes_of(floats: *Floats) [*]u8 {
    return std.mem.asBytes(floats);
}

fn head_of(encoded: [*]const u8) [2]f32 {
    return std.mem.bytesToValue([2]f32, encoded[0..base.codec.range_bytes]);
}

fn block_number(codec: Codec) usize {
    return @intFromEnum(codec.kind) - @intFromEnum(Kind.int8);
}

fn range_number(codec: Codec) usize {
    return @intFromEnum(codec.kind) - @intFromEnum(Kind.min_max_u8);
}
