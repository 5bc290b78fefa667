//! Order: the members of an attempt in the order of their ring, by position. It is rank order
//! unless links are broken. Paths: that order, and the members that reach everybody.
//! protocol/path.zig decides them; collective/ring.zig and direct.zig move data along them.

const std = @import("std");
const limits = @import("limits.zig");
const Mask = @import("ids.zig").Mask;
const Pair = @import("pair.zig").Pair;
const assert = std.debug.assert;

pub const Order = struct {
    ranks: [limits.peers_max]u16 = undefined,
    count: u16 = 0,

    /// Rank order.
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

    /// The rank at this position, counted round the ring.
    pub fn at(order: *const Order, wanted: usize) u16 {
        return order.ranks[wanted % order.count];
    }

    /// Asserts that the rank is in it.
    pub fn position(order: *const Order, rank: usize) u16 {
        for (order.slice(), 0..) |other, index| if (other == rank) return @intCast(index);
        unreachable;
    }

    /// True for ranks that rise, as `of` makes them.
    pub fn is_rank_order(order: *const Order) bool {
        return std.sort.isSorted(u16, order.slice(), {}, std.sort.asc(u16));
    }

    pub fn eql(a: *const Order, b: *const Order) bool {
        return std.mem.eql(u16, a.slice(), b.slice());
    }
};

/// Whether those at positions a and b of `count` keep a link. `world_size` is that of the epoch,
/// lost members included: few who are left of a large one go on in a ring (Paths).
pub fn reaches(a: usize, b: usize, count: usize, world_size: usize) bool {
    if (a == b) return false;
    if (world_size <= limits.full_mesh_max) return true;
    const distance = if (a > b) a - b else b - a;
    return @min(distance, count - distance) <= limits.ring_reach;
}

/// A call's wish for its schedule (collective/board.zig). Broken links may leave no choice.
pub const Plan = enum(u8) {
    /// By kind and codec.
    auto = 0,
    /// From each to the next (collective/ring.zig).
    ring = 1,
    /// From everybody to the owners, from the owners to everybody (collective/direct.zig).
    direct = 2,

    pub fn from_int(number: u8) ?Plan {
        return std.enums.fromInt(Plan, number);
    }
};

/// The paths for the data of an attempt, as far as links are known to be broken.
pub const Paths = struct {
    /// The order of the ring; that of the ranks if there is none.
    order: Order,
    has_ring: bool = true,
    /// Ranks that reach all others. They may own chunks of a direct schedule.
    hubs: Mask,

    /// With all links that there are: in a large world no member has links to all others, also
    /// when few are left of it. `world_size` is that of the epoch, lost members included.
    pub fn all(alive: *const Mask, world_size: usize) Paths {
        const hubs: Mask = if (world_size > limits.full_mesh_max) .empty else alive.*;
        return .{ .order = .of(alive), .hubs = hubs };
    }

    /// From one to the other, and to nobody else.
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
    // So few that their neighbours are all.
    for (0..7) |a| for (0..7) |b| try expect(reaches(a, b, 7, 40) == (a != b));
}
