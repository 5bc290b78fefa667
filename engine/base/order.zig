//! Order: the members of an attempt in the order of their ring, by position. It is rank order
//! unless links are broken, or another order is faster. Paths: an order, the hubs (the members that
//! reach all others), and the calls that go by each. plan/planner.zig chooses paths;
//! collective/ring.zig and direct.zig move data along them.

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
    /// The schedule follows from kind and codec, and from the paths of the attempt.
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

/// How many of the chunks of a direct schedule each hub owns, in parts of the sum.
pub const Shares = struct {
    /// By rank; all 0: the hubs own equally many.
    of: [limits.full_mesh_max]u8 = @splat(0),

    pub const sum_max = 64;
    pub const owners_max = @max(sum_max, limits.full_mesh_max);

    pub fn sum(shares: *const Shares) u32 {
        var all: u32 = 0;
        for (shares.of) |share| all += share;
        return all;
    }

    pub fn is_even(shares: *const Shares) bool {
        return shares.sum() == 0;
    }

    /// Fills `room` with the ranks of the owners of the first chunks; further chunks have the same
    /// owners in turn. Each run of chunks is divided by the shares as well as it can be: a hub
    /// gains its share with each chunk, and pays the sum of all for a chunk of its own.
    pub fn owners(shares: *const Shares, hubs: *const Mask, room: *[owners_max]u8) []u8 {
        const all = shares.sum();
        if (all == 0) {
            var count: usize = 0;
            for (0..limits.full_mesh_max) |rank| if (hubs.has(rank)) {
                room[count] = @intCast(rank);
                count += 1;
            };
            return room[0..count];
        }
        var gained: [limits.full_mesh_max]i32 = @splat(0);
        for (room[0..all]) |*owner| {
            for (&gained, shares.of) |*it, share| it.* += share;
            const richest = std.mem.findMax(i32, &gained);
            gained[richest] -= @intCast(all);
            owner.* = @intCast(richest);
        }
        return room[0..all];
    }
};

test "owners have their shares of all chunks, and nearly of each run of chunks" {
    const expectEqualSlices = std.testing.expectEqualSlices;
    var room: [Shares.owners_max]u8 = undefined;
    var shares: Shares = .{};
    var hubs: Mask = .empty;
    for ([_]usize{ 1, 4, 6 }) |rank| hubs.set(rank);
    try expectEqualSlices(u8, &.{ 1, 4, 6 }, shares.owners(&hubs, &room));
    shares.of[1] = 3;
    shares.of[6] = 1;
    try expectEqualSlices(u8, &.{ 1, 1, 6, 1 }, shares.owners(&hubs, &room));
    shares.of[4] = 60;
    const owners = shares.owners(&hubs, &room);
    for ([_]u8{ 1, 4, 6 }) |rank| for (1..owners.len + 1) |length| {
        const found: f64 = @floatFromInt(std.mem.countScalar(u8, owners[0..length], rank));
        const share: f64 = @floatFromInt(shares.of[rank]);
        const due = share * @as(f64, @floatFromInt(length)) / 64;
        try std.testing.expect(@abs(found - due) <= 1);
    };
}

/// The paths for the data of an attempt, which avoid links that are known to be broken. Kind and
/// size of a call say which of the paths it takes (collective/schedule.zig).
pub const Paths = struct {
    /// The order of the ring; rank order if there is no ring.
    order: Order,
    has_ring: bool = true,
    /// Members that reach all others. Hubs may own chunks of a direct schedule.
    hubs: Mask,
    shares: Shares = .{},
    /// The schedule of calls that leave it open; never `auto`.
    plan: Plan = .ring,
    /// A call that leaves its schedule open and has fewer bytes is direct, and all hubs own equally
    /// much of its data.
    small_bytes: u64 = 0,

    /// The paths if no link is broken and no rate is known. In a large epoch no member has links to
    /// all others, even when few members survive. `world_size`: members of the epoch, including
    /// lost ones.
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
        return a.has_ring == b.has_ring and a.order.eql(&b.order) and a.hubs.eql(&b.hubs) and
            std.meta.eql(a.shares, b.shares) and a.plan == b.plan and
            a.small_bytes == b.small_bytes;
    }

    /// For people: "ring 0 2 1 3, direct below 64 KiB".
    pub fn format(paths: Paths, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (paths.has_ring and paths.plan == .ring) {
            try writer.writeAll("ring");
            const named_max = 32;
            for (paths.order.slice(), 0..) |rank, index| {
                if (index == named_max) break try writer.writeAll(" ...");
                try writer.print(" {d}", .{rank});
            }
        } else {
            try writer.writeAll("direct by ranks");
            const shares = &paths.shares;
            for (0..limits.full_mesh_max) |rank| if (paths.hubs.has(rank)) {
                if (shares.is_even()) try writer.print(" {d}", .{rank}) //
                else if (shares.of[rank] > 0)
                    try writer.print(" {d}:{d}", .{ rank, shares.of[rank] });
            };
        }
        if (paths.small_bytes == 0) return;
        try writer.print(", direct below {d} KiB", .{paths.small_bytes / limits.KiB});
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
