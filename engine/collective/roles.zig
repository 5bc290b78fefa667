//! roles: which rank has which part of an operation's elements. A part is all elements, the shard
//! of one rank, or the elements that one rank has for another. A part has a source, an audience,
//! both of them or neither. Everything else that depends on the kind of a collective follows from
//! these two: what moves (movement.zig), how much a rank gives and gets (`Sizes`), and where it
//! lies (arrays.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const OpKind = wire.control.OpKind;

pub const Roles = struct {
    kind: OpKind,
    world_size: u32,
    rank: u16,
    root: u16 = 0,
    /// The sender and the receiver of a message.
    pair: base.Pair = .{ .src = 0, .dst = 0 },

    pub fn parts(roles: *const Roles) usize {
        const ranks: usize = roles.world_size;
        if (roles.kind == .all_to_all) return ranks * ranks;
        return if (roles.kind.has_shards()) ranks else 1;
    }

    /// The rank that alone contributes to a part; null: all ranks do.
    pub fn source(roles: *const Roles, part: usize) ?u16 {
        return switch (roles.kind) {
            .broadcast, .scatter => roles.root,
            .all_gather, .gather => @intCast(part),
            .all_to_all => @intCast(part / roles.world_size),
            .send_recv => roles.pair.src,
            .all_reduce, .barrier, .sync, .reduce, .reduce_scatter => null,
        };
    }

    /// The rank that alone wants a part; null: all ranks do.
    pub fn audience(roles: *const Roles, part: usize) ?u16 {
        return switch (roles.kind) {
            .reduce, .gather => roles.root,
            .reduce_scatter, .scatter => @intCast(part),
            .all_to_all => @intCast(part % roles.world_size),
            .send_recv => roles.pair.dst,
            .all_reduce, .broadcast, .barrier, .sync, .all_gather => null,
        };
    }

    /// Whether this rank's send buffer has a part. A broadcast has one buffer, so every rank has
    /// the part there.
    pub fn is_sent(roles: *const Roles, part: usize) bool {
        if (roles.kind == .broadcast) return true;
        const rank = roles.source(part) orelse return true;
        return rank == roles.rank;
    }

    /// Whether this rank's result has a part.
    pub fn is_received(roles: *const Roles, part: usize) bool {
        const rank = roles.audience(part) orelse return true;
        return rank == roles.rank;
    }
};

pub const Exchanged = struct { send: []const u64, recv: []const u64 };

/// The number of elements in each part of an array.
pub const Elements = union(enum) {
    /// Every part has this number of elements.
    each: u64,
    /// By rank: the number of elements in that rank's part.
    of_ranks: []const u64,
    /// In an all_to_all, by rank: the number of elements that this rank sends to that rank, and
    /// gets from it. Exchanges between other ranks are not known at this rank, and do not pass
    /// through it.
    exchanged: Exchanged,

    pub fn of(elements: *const Elements, roles: *const Roles, part: usize) u64 {
        return switch (elements.*) {
            .each => |count| count,
            .of_ranks => |counts| counts[part],
            .exchanged => |*counts| {
                const from = part / roles.world_size;
                const to = part % roles.world_size;
                if (from == roles.rank) return counts.send[to];
                return if (to == roles.rank) counts.recv[from] else 0;
            },
        };
    }

    pub fn total(elements: *const Elements, roles: *const Roles) u64 {
        if (elements.* == .each) return elements.each *| roles.parts();
        var count: u64 = 0;
        for (0..roles.parts()) |part| count +|= elements.of(roles, part);
        return count;
    }
};

/// The number of elements that a rank sends and receives.
pub const Sizes = struct {
    send: u64 = 0,
    recv: u64 = 0,
    /// The number of elements before the part that both buffers have, in the send buffer and in the
    /// receive buffer. At most one part is in both buffers.
    send_skip: u64 = 0,
    recv_skip: u64 = 0,

    /// No sum overflows: the caller has checked that all elements together are few enough.
    pub fn of(elements: *const Elements, roles: *const Roles) Sizes {
        var sizes: Sizes = .{};
        for (0..roles.parts()) |part| {
            const count = elements.of(roles, part);
            const is_sent = roles.is_sent(part);
            const is_received = roles.is_received(part);
            if (is_sent and is_received) {
                sizes.send_skip = sizes.send;
                sizes.recv_skip = sizes.recv;
            }
            if (is_sent) sizes.send += count;
            if (is_received) sizes.recv += count;
        }
        return sizes;
    }
};

test "what a rank of three sends and receives" {
    const expectEqual = std.testing.expectEqual;
    const counts: Elements = .{ .of_ranks = &.{ 5, 0, 7 } };
    const Case = struct { OpKind, u16, Sizes };
    for ([_]Case{
        .{ .reduce_scatter, 2, .{ .send = 12, .recv = 7, .send_skip = 5 } },
        .{ .all_gather, 2, .{ .send = 7, .recv = 12, .recv_skip = 5 } },
        .{ .scatter, 1, .{ .send = 12, .recv = 0, .send_skip = 5 } },
        .{ .scatter, 0, .{ .recv = 5 } },
        .{ .gather, 1, .{ .send = 0, .recv = 12, .recv_skip = 5 } },
        .{ .gather, 2, .{ .send = 7 } },
    }) |case| {
        const kind, const rank, const sizes = case;
        const roles: Roles = .{ .kind = kind, .world_size = 3, .rank = rank, .root = 1 };
        try expectEqual(sizes, Sizes.of(&counts, &roles));
        try expectEqual(12, counts.total(&roles));
    }
    const each: Elements = .{ .each = 4 };
    for ([_]Case{
        .{ .all_reduce, 0, .{ .send = 4, .recv = 4 } },
        .{ .broadcast, 0, .{ .send = 4, .recv = 4 } },
        .{ .broadcast, 1, .{ .send = 4, .recv = 4 } },
        .{ .reduce, 0, .{ .send = 4 } },
        .{ .reduce, 1, .{ .send = 4, .recv = 4 } },
        .{ .send_recv, 0, .{ .send = 4 } },
        .{ .send_recv, 2, .{ .recv = 4 } },
    }) |case| {
        const kind, const rank, const sizes = case;
        const roles: Roles = .{
            .kind = kind,
            .world_size = 3,
            .rank = rank,
            .root = 1,
            .pair = .{ .src = 0, .dst = 2 },
        };
        try expectEqual(sizes, Sizes.of(&each, &roles));
        try expectEqual(4, each.total(&roles));
    }
    const pairs: Elements = .{ .exchanged = .{ .send = &.{ 1, 2, 3 }, .recv = &.{ 4, 2, 0 } } };
    const roles: Roles = .{ .kind = .all_to_all, .world_size = 3, .rank = 1 };
    const sizes: Sizes = .of(&pairs, &roles);
    try expectEqual(.{ 6, 6 }, .{ sizes.send, sizes.recv });
    try expectEqual(1 + 2 + 3 + 4, pairs.total(&roles));
    try expectEqual(9 * 4, each.total(&roles));
}

test "what others exchange has no elements here" {
    const counts: Elements = .{ .exchanged = .{ .send = &.{ 1, 2, 3 }, .recv = &.{ 4, 2, 5 } } };
    const roles: Roles = .{ .kind = .all_to_all, .world_size = 3, .rank = 1 };
    // The parts are ordered by sender, then by receiver.
    for ([_]u64{ 0, 4, 0, 1, 2, 3, 0, 5, 0 }, 0..) |elements, part|
        try std.testing.expectEqual(elements, counts.of(&roles, part));
}
