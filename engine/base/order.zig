//! Order: the members of an attempt in the order of their ring, by position. It is rank order
//! unless links are broken. Paths: an order, and the hubs, members that reach all others.
//! protocol/path.zig decides both; collective/ring.zig and direct.zig move data along them.

const std = @import("std");
const limits = @import("limits.zig");
const Mask = @import("ids.zig").Mask;
const Pair = @import("pair.zig").Pair;
const assert = std.debug.assert;

pub const Order = struct {
    ranks: [limits.peers_max]u16 = undefined,
    count: u16 = 0,

    /// The ranks of `alive` in rank order.
    pub fn of(alive: *const Mask) Order {
        var order: Order = .{};
        for (0..limits.peers_max) |rank| if (alive.has(rank)) order.append(@intCast(rank));
        return order;
    }

    pub fn append(order: *Order, rank: u16) void {
        assert(order.count < limits.peers_max);
        order.ranks[order.count] = rank;
        order.count += 1;
    }

    pub fn slice(order: *const Order) []const u16 {
        return order.ranks[0..order.count];
    }

    /// The rank at position `wanted`, which is counted on round the ring if it exceeds `count`.
    pub fn at(order: *const Order, wanted: usize) u16 {
        return order.ranks[wanted % order.count];
    }

    /// The position of a rank. Asserts that the rank is in the order.
    pub fn position(order: *const Order, rank: usize) u16 {
        for (order.slice(), 0..) |other, index| if (other == rank) return @intCast(index);
        unreachable;
    }

    /// Whether the ranks rise, as in an order that `of` makes.
    pub fn is_rank_order(order: *const Order) bool {
        return std.sort.isSorted(u16, order.slice(), {}, std.sort.asc(u16));
    }

    pub fn eql(a: *const Order, b: *const Order) bool {
        return std.mem.eql(u16, a.slice(), b.slice());
    }
};

/// Whether the members at positions a and b of `count` keep a link. `world_size`: members of the
/// epoch, including lost ones. The few survivors of a large epoch still go on in a ring (Paths).
pub fn reaches(a: usize, b: usize, count: usize, world_size: usize) bool {
    if (a == b) return false;
    if (world_size <= limits.full_mesh_max) return true;
    const distance = if (a > b) a - b else b - a;
    return @min(distance, count - distance) <= limits.ring_reach;
}

/// A call's wish for its schedule (collective/board.zig), which broken links may overrule.
pub const Plan = enum(u8) {
    /// The schedule follows from kind and codec.
    auto = 0,
    /// Data goes from each member to the next (collective/ring.zig).
    ring = 1,
    /// Data goes from all members to the owners, and from these to all members
    /// (collective/direct.zig).
    direct = 2,

    pub fn from_int(number: u8) ?Plan {
        return std.enums.fromInt(Plan, number);
    }
};

/// The paths for the data of an attempt, avoiding links that are known to be broken.
pub const Paths = struct {
    /// The order of the ring; rank order if there is no ring.
    order: Order,
    has_ring: bool = true,
    /// Members that reach all others. Hubs may own chunks of a direct schedule.
    hubs: Mask,

    /// The paths if no link is broken. In a large epoch no member has links to all others, even
    /// when few members survive. `world_size`: members of the epoch, including lost ones.
    pub fn all(alive: *const Mask, world_size: usize) Paths {
        const hubs: Mask = if (world_size > limits.full_mesh_max) .empty else alive.*;
        return .{ .order = .of(alive), .hubs = hubs };
    }

    /// The paths of a message: only its two ranks exchange data.
    pub fn between(pair: Pair) Paths {
        var both: Mask = .empty;
        for (pair.ranks()) |rank| both.set(rank);
        return .{ .order = .of(&both), .has_ring = false, .hubs = both };
    }

    pub fn eql(a: *const Paths, b: *const Paths) bool {
        return a.has_ring == b.has_ring and a.order.eql(&b.order) and a.hubs.eql(&b.hubs);
    }
};

test "an order counts round the ring, and knows whether it is that of the ranks" {
    var mask: Mask = .empty;
    for ([_]usize{ 1, 4, 200 }) |rank| mask.set(rank);
    const order: Order = .of(&mask);
    try std.testing.expectEqualSlices(u16, &.{ 1, 4, 200 }, order.slice());
    try std.testing.expectEqual(1, order.at(3));
    try std.testing.expectEqual(2, order.position(200));
    try std.testing.expect(order.is_rank_order());
    var other: Order = .{};
    for ([_]u16{ 1, 200, 4 }) |rank| other.append(rank);
    try std.testing.expect(!other.is_rank_order());
    try std.testing.expect(!other.eql(&order));
}

test "those who are left of a large world keep links to neighbours only, as they move in a ring" {
    const expect = std.testing.expect;
    try expect(reaches(0, 16, 32, 32));
    try expect(!reaches(0, 16, 32, 33));
    try expect(reaches(0, limits.ring_reach, 32, 33) and reaches(31, 1, 32, 33));
    try expect(!reaches(0, limits.ring_reach + 1, 32, 33));
    // Every survivor is a neighbour of every other.
    for (0..7) |a| for (0..7) |b| try expect(reaches(a, b, 7, 40) == (a != b));
}
