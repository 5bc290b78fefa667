//! Codec: how elements are encoded on their way between peers: the kinds, their options, and how
//! many bytes a piece takes. Descriptors, frames and kernels use it, so it is in base.
//! kernels/codec_scalar.zig defines the encoded bytes; docs/internals/KERNELS.md explains the
//! formats.

const std = @import("std");
const assert = std.debug.assert;

/// The kind of a codec. Numbers are those of include/pccl.h and of the wire.
pub const Kind = enum(u8) {
    /// Elements are not encoded.
    none = 0,
    bf16 = 1,
    f16 = 2,
    /// int8, int6, int5 and int4: signed integers of 8, 6, 5 and 4 bits with one scale per block.
    int8 = 3,
    int6 = 4,
    int5 = 5,
    int4 = 6,
    /// Sign and three bits of exponent, with one scale per block.
    e3m0 = 7,
    fp8_e4m3 = 8,
    /// 256 equal steps from the least to the greatest element of a piece.
    min_max_u8 = 9,
    /// Like min_max_u8, with zero exactly on a step.
    zero_point_u8 = 10,

    pub fn name(kind: Kind) [:0]const u8 {
        return @tagName(kind);
    }

    /// The kind with this number, which may come from a stranger. Null if no kind has it.
    pub fn from_int(number: u8) ?Kind {
        return std.enums.fromInt(Kind, number);
    }

    pub fn family(kind: Kind) Family {
        return switch (kind) {
            .none => .none,
            .bf16, .f16 => .half,
            .int8, .int6, .int5, .int4, .e3m0, .fp8_e4m3 => .block,
            .min_max_u8, .zero_point_u8 => .range,
        };
    }

    /// Bits of the code of one element, without scales.
    pub fn bits(kind: Kind) usize {
        return switch (kind) {
            .none => unreachable, // without a codec the dtype sets the size
            .bf16, .f16 => 16,
            .int8, .fp8_e4m3, .min_max_u8, .zero_point_u8 => 8,
            .int6 => 6,
            .int5 => 5,
            .int4, .e3m0 => 4,
        };
    }
};

/// The reference of a code: none (`half`), the scale of its block, or the range of its piece.
pub const Family = enum { none, half, block, range };

pub const Block = enum(u8) {
    b32 = 0,
    b64 = 1,
    b128 = 2,
    b256 = 3,

    pub fn elements(block: Block) usize {
        return @as(usize, 32) << @intCast(@intFromEnum(block));
    }

    /// The block size with this number of elements. Null if no block has that many.
    pub fn from_elements(count: usize) ?Block {
        for (std.enums.values(Block)) |block| if (block.elements() == count) return block;
        return null;
    }
};

pub const Rounding = enum(u8) {
    nearest = 0,
    stochastic = 1,

    pub fn from_int(number: u8) ?Rounding {
        return std.enums.fromInt(Rounding, number);
    }
};

pub const block_elements_max = 256;

pub const Codec = struct {
    kind: Kind = .none,
    block: Block = .b128,
    /// Each block is multiplied by random signs and a Hadamard matrix before it is encoded, which
    /// spreads outliers over the block.
    rotate: bool = false,
    rounding: Rounding = .nearest,

    pub const none: Codec = .{};

    /// A kind with its default options.
    pub fn of(kind: Kind) Codec {
        return .{ .kind = kind, .rotate = kind.family() == .block };
    }

    /// Why no piece can be encoded with this codec; null if pieces can. Options that a kind does
    /// not have must be at their defaults, so that one codec has one description.
    pub fn problem(codec: Codec) ?[]const u8 {
        const has_blocks = codec.kind.family() == .block;
        if (!has_blocks and codec.block != .b128) return "only int8, int6, int5, int4, e3m0 " ++
            "and fp8_e4m3 have blocks: leave `block` out";
        if (!has_blocks and codec.rotate) return "only int8, int6, int5, int4, e3m0 " ++
            "and fp8_e4m3 can be rotated: leave `rotate` out";
        if (codec.rounding == .stochastic) switch (codec.kind.family()) {
            .half, .block => {},
            .none => return "without a codec nothing is rounded: leave `rounding` out",
            .range => return "min_max_u8 and zero_point_u8 round to nearest only",
        };
        return null;
    }

    /// Writes the kind, and the options that differ from the kind's defaults.
    pub fn format(codec: Codec, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const default: Codec = .of(codec.kind);
        try writer.writeAll(codec.kind.name());
        if (codec.block != default.block) try writer.print(" block {d}", .{codec.block.elements()});
        if (codec.rotate != default.rotate)
            try writer.writeAll(if (codec.rotate) " rotated" else " not rotated");
        if (codec.rounding != default.rounding) try writer.print(" {t}", .{codec.rounding});
    }

    /// Elements between possible beginnings of a piece, counted from the start of the whole array.
    /// Because pieces begin only there, blocks and random bits do not depend on how the array is
    /// cut.
    pub fn granule(codec: Codec) usize {
        return switch (codec.kind.family()) {
            .none, .range => 1,
            .half => half_granule,
            .block => codec.block.elements(),
        };
    }

    /// Bytes of an encoded piece of `count` elements. Not for kind `none`, which encodes nothing.
    pub fn encoded_bytes(codec: Codec, count: usize) usize {
        return codec.head_bytes(count) + codec.code_bytes(count);
    }

    /// Bytes before the codes: a bf16 scale for each block, or the two f32 of the range.
    pub fn head_bytes(codec: Codec, count: usize) usize {
        return switch (codec.kind.family()) {
            .none => unreachable,
            .half => 0,
            .block => scale_bytes * codec.blocks(count),
            .range => range_bytes,
        };
    }

    /// Bytes of the codes of a piece. A last block that is not full is padded with zeros.
    fn code_bytes(codec: Codec, count: usize) usize {
        const elements = switch (codec.kind.family()) {
            .none => unreachable,
            .half, .range => count,
            .block => codec.blocks(count) * codec.block.elements(),
        };
        return elements * codec.kind.bits() / 8;
    }

    pub fn blocks(codec: Codec, count: usize) usize {
        assert(codec.kind.family() == .block);
        return std.math.divCeil(usize, count, codec.block.elements()) catch unreachable;
    }
};

/// Elements that share their random words when 16-bit floats are rounded stochastically.
pub const half_granule = 32;
pub const scale_bytes = 2;
pub const range_bytes = 8;

test "a piece has the bytes that the documents promise" {
    const expect_equal = std.testing.expectEqual;
    try expect_equal(20, Codec.of(.bf16).encoded_bytes(10));
    try expect_equal(0, Codec.of(.int8).encoded_bytes(0));
    try expect_equal(130, Codec.of(.int8).encoded_bytes(1));
    try expect_equal(2 * 130, Codec.of(.fp8_e4m3).encoded_bytes(129));
    try expect_equal(98, Codec.of(.int6).encoded_bytes(128));
    try expect_equal(82, Codec.of(.int5).encoded_bytes(128));
    try expect_equal(66, Codec.of(.e3m0).encoded_bytes(128));
    const narrow: Codec = .{ .kind = .int4, .block = .b32 };
    try expect_equal(4 * 18, narrow.encoded_bytes(128));
    try expect_equal(8 + 3, Codec.of(.zero_point_u8).encoded_bytes(3));
}

test "every kind has defaults that work, and only those rotate that have blocks" {
    for (std.enums.values(Kind)) |kind| {
        const codec: Codec = .of(kind);
        try std.testing.expectEqual(@as(?[]const u8, null), codec.problem());
        var other = codec;
        other.block = .b64;
        try std.testing.expectEqual(codec.rotate, other.problem() == null);
        other = codec;
        other.rotate = true;
        try std.testing.expectEqual(codec.rotate, other.problem() == null);
        other = codec;
        other.rounding = .stochastic;
        const rounds = codec.rotate or kind == .bf16 or kind == .f16;
        try std.testing.expectEqual(rounds, other.problem() == null);
        try std.testing.expectEqual(kind, Kind.from_int(@intFromEnum(kind)).?);
    }
    try std.testing.expectEqual(@as(?Kind, null), Kind.from_int(11));
    try std.testing.expectEqual(Block.b256, Block.from_elements(256).?);
    try std.testing.expectEqual(@as(?Block, null), Block.from_elements(100));
}
