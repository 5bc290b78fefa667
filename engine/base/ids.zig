//! Identities of peers and runs, and sets of ranks. They are plain bytes, equal on every platform.

const std = @import("std");
const limits = @import("limits.zig");
const assert = std.debug.assert;

pub const RunId = [16]u8;

/// The host that a connection comes from: an IPv6 address, or an IPv4 address mapped to IPv6. All
/// zeros: unknown.
pub const Source = [16]u8;
/// The first bytes of a run id, which errors and tables show: enough to tell runs apart, too few to
/// join.
pub fn short_run(id: *const RunId) [8]u8 {
    return std.fmt.bytesToHex(id[0..4].*, .lower);
}

/// The id of a peer, which is a process in the run. It is drawn at random when the peer connects.
pub const PeerId = struct {
    bytes: [16]u8,

    pub const none: PeerId = .{ .bytes = @splat(0) };

    pub fn from_int(value: u128) PeerId {
        var id: PeerId = undefined;
        std.mem.writeInt(u128, &id.bytes, value, .big);
        return id;
    }

    pub fn eql(a: PeerId, b: PeerId) bool {
        return @as(u128, @bitCast(a.bytes)) == @as(u128, @bitCast(b.bytes));
    }

    pub fn less_than(a: PeerId, b: PeerId) bool {
        return std.mem.order(u8, &a.bytes, &b.bytes) == .lt;
    }

    /// The first eight hex digits of the id, as errors and tables show it.
    pub fn short(id: PeerId) [8]u8 {
        return std.fmt.bytesToHex(id.bytes[0..4].*, .lower);
    }

    pub fn hex(id: PeerId) [32]u8 {
        return std.fmt.bytesToHex(id.bytes, .lower);
    }
};

/// A set of ranks of one epoch.
pub const Mask = struct {
    words: [limits.peers_max / 64]u64 = @splat(0),

    pub const empty: Mask = .{};

    /// The ranks 0 to `ranks` - 1.
    pub fn full(ranks: usize) Mask {
        var mask: Mask = .{};
        for (0..ranks) |rank| mask.set(rank);
        return mask;
    }

    pub fn has(mask: *const Mask, rank: usize) bool {
        return mask.words[rank / 64] >> @intCast(rank % 64) & 1 == 1;
    }

    pub fn set(mask: *Mask, rank: usize) void {
        mask.words[rank / 64] |= @as(u64, 1) << @intCast(rank % 64);
    }

    pub fn unset(mask: *Mask, rank: usize) void {
        mask.words[rank / 64] &= ~(@as(u64, 1) << @intCast(rank % 64));
    }

    pub fn merge(mask: *Mask, other: *const Mask) void {
        for (&mask.words, other.words) |*a, b| a.* |= b;
    }

    /// The ranks of `mask` that are not in `other`.
    pub fn without(mask: *const Mask, other: *const Mask) Mask {
        var left = mask.*;
        for (&left.words, other.words) |*a, b| a.* &= ~b;
        return left;
    }

    /// The ranks that are in both masks.
    pub fn intersect(mask: *const Mask, other: *const Mask) Mask {
        var both = mask.*;
        for (&both.words, other.words) |*a, b| a.* &= b;
        return both;
    }

    pub fn meets(mask: *const Mask, other: *const Mask) bool {
        for (mask.words, other.words) |a, b| if (a & b != 0) return true;
        return false;
    }

    pub fn count(mask: *const Mask) u32 {
        var total: u32 = 0;
        for (mask.words) |word| total += @popCount(word);
        return total;
    }

    pub fn is_empty(mask: *const Mask) bool {
        for (mask.words) |word| if (word != 0) return false;
        return true;
    }

    pub fn eql(a: *const Mask, b: *const Mask) bool {
        return std.mem.eql(u64, &a.words, &b.words);
    }

    /// Whether every rank of `part` is in `mask`.
    pub fn covers(mask: *const Mask, part: *const Mask) bool {
        for (mask.words, part.words) |a, b| if (b & ~a != 0) return false;
        return true;
    }

    /// Position of `rank` among the ranks of the mask, in rank order.
    pub fn position(mask: *const Mask, rank: usize) u32 {
        var total: u32 = 0;
        for (mask.words[0 .. rank / 64]) |word| total += @popCount(word);
        const below = (@as(u64, 1) << @intCast(rank % 64)) - 1;
        return total + @popCount(mask.words[rank / 64] & below);
    }

    /// The rank at position `wanted` among the ranks of the mask. Asserts that the position exists.
    pub fn at(mask: *const Mask, wanted: usize) u16 {
        var left = wanted;
        for (mask.words, 0..) |word_start, index| {
            var word = word_start;
            if (left >= @popCount(word)) {
                left -= @popCount(word);
                continue;
            }
            while (left > 0) : (left -= 1) word &= word - 1;
            return @intCast(index * 64 + @ctz(word));
        }
        unreachable;
    }
};

test "positions and ranks of a mask are inverse" {
    var mask: Mask = .empty;
    for ([_]usize{ 0, 3, 63, 64, 200, 511 }) |rank| mask.set(rank);
    for (0..mask.count()) |position| {
        try std.testing.expectEqual(position, mask.position(mask.at(position)));
    }
    try std.testing.expect(Mask.full(512).covers(&mask));
    try std.testing.expect(!mask.covers(&Mask.full(2)));
    const left = mask.without(&.full(64));
    try std.testing.expect(left.count() == 3 and !left.has(63) and left.has(64));
    const both = mask.intersect(&.full(64));
    try std.testing.expect(both.count() == 3 and both.has(63) and !both.has(64));
    try std.testing.expect(mask.meets(&both) and !left.meets(&both));
    assert(mask.at(4) == 200);
}
