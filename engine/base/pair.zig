//! Pair: the sender and the receiver of a message, as ranks of an epoch. These two number their
//! messages between themselves, so a send and its recv have a tag that contains both ranks: the tag
//! alone tells who calls the operation. Used by protocol/epoch.zig, protocol/member.zig.

const std = @import("std");
const limits = @import("limits.zig");
const assert = std.debug.assert;

pub const Pair = struct {
    src: u16,
    dst: u16,

    const rank_bits = std.math.log2_int_ceil(u32, limits.peers_max);

    comptime {
        const bits = 2 * rank_bits + std.math.log2_int(u64, limits.pair_user_tags);
        const room = limits.state_tags_first - limits.pair_tags_first;
        assert(@as(u64, 1) << bits <= room);
        assert(limits.pair_tags_first % room == 0);
    }

    /// The tag of a message of this pair. `user_tag` must be below limits.pair_user_tags.
    pub fn tag(pair: Pair, user_tag: u64) u64 {
        assert(user_tag < limits.pair_user_tags and pair.src < limits.peers_max);
        assert(pair.dst < limits.peers_max);
        const both = @as(u64, pair.src) << rank_bits | pair.dst;
        return limits.pair_tags_first + both * limits.pair_user_tags + user_tag;
    }

    /// The pair whose messages have this tag. Null if all members call operations of this tag.
    pub fn of(any_tag: u64) ?Pair {
        if (any_tag < limits.pair_tags_first or any_tag >= limits.state_tags_first) return null;
        const both = (any_tag - limits.pair_tags_first) / limits.pair_user_tags;
        return .{
            .src = @intCast(both >> rank_bits),
            .dst = @intCast(both & ((1 << rank_bits) - 1)),
        };
    }

    /// The tag as the user named it.
    pub fn user_tag_of(any_tag: u64) u64 {
        return if (of(any_tag) == null) any_tag else any_tag % limits.pair_user_tags;
    }

    pub fn has(pair: Pair, rank: usize) bool {
        return rank == pair.src or rank == pair.dst;
    }

    /// The other rank of the pair.
    pub fn other(pair: Pair, rank: u16) u16 {
        return if (rank == pair.src) pair.dst else pair.src;
    }

    pub fn ranks(pair: Pair) [2]u16 {
        return .{ pair.src, pair.dst };
    }
};

/// The queue in which a call beyond the operations in flight waits for its turn. A message waits
/// only for messages of its direction: so a member that calls many receives before its sends does
/// not wait for itself, and its collectives wait for no message. Used by protocol/member.zig for
/// calls of a member, and by protocol/epoch.zig for what a member reports.
pub const Turns = enum {
    of_all,
    send,
    recv,

    /// The queue of an operation with this tag, at the member of this rank.
    pub fn of(any_tag: u64, rank: u16) Turns {
        const pair = Pair.of(any_tag) orelse return .of_all;
        return if (pair.src == rank) .send else .recv;
    }
};

test "a tag of a pair names both and what the caller said, and no other tag names any" {
    const expect = std.testing.expect;
    const highest = limits.peers_max - 1;
    for ([_]u16{ 0, 1, 31, 32, highest }) |src| for ([_]u16{ 0, 1, 63, highest }) |dst| {
        for ([_]u64{ 0, 1, 1 << 31, limits.pair_user_tags - 1 }) |user_tag| {
            const pair: Pair = .{ .src = src, .dst = dst };
            const tag = pair.tag(user_tag);
            try std.testing.expectEqual(pair, Pair.of(tag).?);
            try std.testing.expectEqual(user_tag, Pair.user_tag_of(tag));
            try expect(tag >= limits.pair_tags_first and tag < limits.state_tags_first);
        }
    };
    for ([_]u64{ 0, limits.pair_tags_first - 1, limits.state_tags_first }) |tag| {
        try std.testing.expectEqual(null, Pair.of(tag));
        try std.testing.expectEqual(tag, Pair.user_tag_of(tag));
    }
    const pair: Pair = .{ .src = 4, .dst = 7 };
    try expect(pair.has(4) and pair.has(7) and !pair.has(5));
    try expect(pair.other(4) == 7 and pair.other(7) == 4);
    try std.testing.expectEqual(Turns.send, Turns.of(pair.tag(3), 4));
    try std.testing.expectEqual(Turns.recv, Turns.of(pair.tag(3), 7));
    try std.testing.expectEqual(Turns.of_all, Turns.of(3, 4));
}
