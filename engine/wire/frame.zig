//! frame: the 64-byte header of everything that travels on a lane between two peers. It says to
//! which operation and attempt the payload belongs and where the payload goes, so frames of
//! different lanes may arrive in any order. session/frame.zig acts on the kinds;
//! docs/internals/PROTOCOL.md has the layout.

const std = @import("std");
const base = @import("base");
const codec = @import("codec.zig");
const Fragment = @import("fragment.zig").Fragment;
const limits = base.limits;
const assert = std.debug.assert;

pub const header_bytes = 64;

pub const Kind = enum(u8) {
    /// The sender has called this operation and can receive. Payload: its Descriptor (control.zig).
    open = 1,
    /// `index`: how many partial sums the receiver may send for `class` in this attempt, in total.
    credit = 2,
    /// Payload: the partial sum of piece `index`, on its way to its owner.
    partial = 3,
    /// Payload: the final bytes of piece `index`, on their way from the piece's owner.
    final = 4,
    /// A sign of life after a heartbeat without other frames, or an acknowledgement. `index`: the
    /// number of lanes that the sender would like this link to have.
    ping = 5,
    /// Requests leaf `index` of a shared state (class 0), or page `index` of its leaf hashes (class
    /// 1).
    want = 6,
    /// Payload: leaf `index` of a shared state, or a fragment of the leaf.
    leaf = 7,
    /// Payload: page `index` of the leaf hashes of a shared state.
    hashes = 8,
    /// Answers a newcomer's `want` (epoch 0): the sender does not give this leaf or page.
    lack = 9,
    /// Payload: meaningless bytes with which the sender measures the link. Without a payload: the
    /// sender declines probes, because it has other data to receive.
    probe = 10,

    /// Whether the payload is a piece of an operation, or a fragment of a piece.
    pub fn is_data(kind: Kind) bool {
        return kind == .partial or kind == .final;
    }

    /// Whether the payload may be a fragment.
    pub fn comes_in_parts(kind: Kind) bool {
        return kind.is_data() or kind == .leaf;
    }

    /// Whether frames of this kind are acknowledged, and sent again if their lane breaks: pieces of
    /// operations, and requests and answers of shared states.
    pub fn is_acknowledged(kind: Kind) bool {
        return switch (kind) {
            .partial, .final, .want, .leaf, .hashes, .lack => true,
            .open, .credit, .ping, .probe => false,
        };
    }
};

pub const Header = struct {
    epoch: u64,
    tag: u64,
    sequence: u64,
    /// The number of the piece, leaf, page, credits or lanes, as `kind` says.
    index: u64,
    attempt: u32,
    payload_bytes: u32,
    /// In a final piece: the attempt whose members have contributed to it. In a leaf: the number of
    /// the answer, as its sender counts answers.
    reduced_attempt: u32,
    /// The fingerprint of the sender's descriptor. A receiver that called something else takes no
    /// data.
    fingerprint: u32 = 0,
    /// Acknowledged frames that the sender has received on this lane since it opened, modulo 2^32.
    acked: Count = 0,
    /// The sender of this frame waits for an acknowledgement.
    asks: bool = false,
    /// How often this piece, leaf or page was sent before, on lanes that broke or are late.
    again: u8 = 0,
    /// The part of the piece or leaf that this frame brings.
    fragment: Fragment = .whole,
    group: u16,
    /// In a credit or partial sum: the position of the piece's owner. In a request: leaf or page.
    class: u16,
    kind: Kind,

    pub const Count = u32;

    /// Whether both frames bring the same bytes: of a piece on the same way, or of a leaf in the
    /// same answer. Both must be frames of one attempt of an operation.
    pub fn is_same(one: *const Header, other: *const Header) bool {
        return one.kind == other.kind and one.index == other.index and
            one.fragment == other.fragment and one.class == other.class and
            one.payload_bytes == other.payload_bytes and
            one.reduced_attempt == other.reduced_attempt;
    }
};

pub const Error = error{ UnknownKind, BadChecksum, BadReserved, TooLong, OutOfRange };

comptime {
    // The checksum is at the end of the header.
    assert(@sizeOf(Header) <= header_bytes);
}

pub fn encode(header: Header) [header_bytes]u8 {
    var bytes: [header_bytes]u8 = undefined;
    encode_into(&bytes, &header);
    return bytes;
}

pub fn encode_into(bytes: *[header_bytes]u8, header: *const Header) void {
    bytes.* = @splat(0);
    std.mem.writeInt(u64, bytes[0..8], header.epoch, .little);
    std.mem.writeInt(u64, bytes[8..16], header.tag, .little);
    std.mem.writeInt(u64, bytes[16..24], header.sequence, .little);
    std.mem.writeInt(u64, bytes[24..32], header.index, .little);
    std.mem.writeInt(u32, bytes[32..36], header.attempt, .little);
    std.mem.writeInt(u32, bytes[36..40], header.payload_bytes, .little);
    std.mem.writeInt(u32, bytes[40..44], header.reduced_attempt, .little);
    std.mem.writeInt(u16, bytes[44..46], header.group, .little);
    std.mem.writeInt(u16, bytes[46..48], header.class, .little);
    bytes[48] = @intFromEnum(header.kind);
    bytes[49] = @intFromBool(header.asks);
    bytes[50] = header.again;
    bytes[51] = @bitCast(header.fragment);
    std.mem.writeInt(u32, bytes[52..56], header.fingerprint, .little);
    std.mem.writeInt(u32, bytes[56..60], header.acked, .little);
    std.mem.writeInt(u32, bytes[60..64], checksum(bytes), .little);
}

pub fn decode(bytes: *const [header_bytes]u8) Error!Header {
    if (std.mem.readInt(u32, bytes[60..64], .little) != checksum(bytes)) return error.BadChecksum;
    if (bytes[49] > 1) return error.BadReserved;
    const payload_bytes = std.mem.readInt(u32, bytes[36..40], .little);
    if (payload_bytes > limits.frame_payload_bytes_max) return error.TooLong;
    const header: Header = .{
        .epoch = std.mem.readInt(u64, bytes[0..8], .little),
        .tag = std.mem.readInt(u64, bytes[8..16], .little),
        .sequence = std.mem.readInt(u64, bytes[16..24], .little),
        .index = std.mem.readInt(u64, bytes[24..32], .little),
        .attempt = std.mem.readInt(u32, bytes[32..36], .little),
        .payload_bytes = payload_bytes,
        .reduced_attempt = std.mem.readInt(u32, bytes[40..44], .little),
        .fingerprint = std.mem.readInt(u32, bytes[52..56], .little),
        .acked = std.mem.readInt(u32, bytes[56..60], .little),
        .asks = bytes[49] == 1,
        .again = bytes[50],
        .fragment = Fragment.parse(bytes[51]) orelse return error.OutOfRange,
        .group = std.mem.readInt(u16, bytes[44..46], .little),
        .class = std.mem.readInt(u16, bytes[46..48], .little),
        .kind = std.enums.fromInt(Kind, bytes[48]) orelse return error.UnknownKind,
    };
    // Epoch, tag, attempts and fingerprint need no bound: the receiver only compares them with its
    // own.
    const within = header.sequence <= limits.sequences_max and
        header.index <= limits.frame_index_max and
        header.group < limits.groups_max and header.class < limits.peers_max;
    if (!header.kind.comes_in_parts() and !header.fragment.is_whole()) return error.BadReserved;
    return if (within) header else error.OutOfRange;
}

/// Detects a stream that has lost its place, or a flipped bit in a header. It does not detect a
/// forged header.
fn checksum(bytes: *const [header_bytes]u8) u32 {
    var sum: u64 = 0x9e3779b97f4a7c15;
    for (0..7) |index| {
        const word = std.mem.readInt(u64, bytes[index * 8 ..][0..8], .little);
        sum = std.math.rotl(u64, (sum ^ word) *% 0xbf58476d1ce4e5b9, 31);
    }
    sum = (sum ^ std.mem.readInt(u32, bytes[56..60], .little)) *% 0x94d049bb133111eb;
    return @truncate(sum >> 32);
}

test "a header survives the round trip, and any flipped bit is seen" {
    const header: Header = .{
        .epoch = 3,
        .tag = 1 << 63,
        .sequence = 9,
        .index = 77,
        .attempt = 2,
        .payload_bytes = 4096,
        .reduced_attempt = 1,
        .fingerprint = 0xdeadbeef,
        .acked = 77,
        .asks = true,
        .again = 3,
        .fragment = .{ .before = 4, .after = 11 },
        .group = 5,
        .class = 2,
        .kind = .final,
    };
    const bytes = encode(header);
    try std.testing.expectEqual(header, try decode(&bytes));
    for (0..header_bytes * 8) |bit| {
        var broken = bytes;
        broken[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        try std.testing.expect(std.meta.isError(decode(&broken)));
    }
}

test "a number of a header that no honest sender reaches is an error" {
    const most: Header = std.mem.zeroInit(Header, .{
        .kind = .credit,
        .sequence = limits.sequences_max,
        .index = limits.frame_index_max,
        .group = limits.groups_max - 1,
        .class = limits.peers_max - 1,
    });
    _ = try decode(&encode(most));
    inline for (.{ "sequence", "index", "group", "class" }) |name| {
        var more = most;
        @field(more, name) += 1;
        try std.testing.expectError(error.OutOfRange, decode(&encode(more)));
    }
}

test "only pieces and leaves come in fragments, and none is empty" {
    var data: Header = std.mem.zeroInit(Header, .{
        .kind = .partial,
        .fragment = Fragment{ .before = 15 },
    });
    for (std.enums.values(Kind)) |kind| {
        data.kind = kind;
        switch (kind) {
            .partial, .final, .leaf => try std.testing.expectEqual(data, try decode(&encode(data))),
            else => try std.testing.expectError(error.BadReserved, decode(&encode(data))),
        }
    }
    data.kind = .leaf;
    var empty = data;
    empty.fragment.after = 1;
    try std.testing.expectError(error.OutOfRange, decode(&encode(empty)));
}
