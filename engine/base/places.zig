//! places: which new connections get a place, and which lose theirs, before they have sent a valid
//! first message. Any stranger can take places, so places are few, and a guest from the network
//! that has taken most of them goes first: a crowd from one network keeps no other network out. The
//! coordinator (protocol/door.zig) and each peer (session/dial.zig) have a door.

const std = @import("std");
const limits = @import("limits.zig");
const Prng = @import("prng.zig").Prng;
const Source = @import("ids.zig").Source;

/// A connection that has a place.
pub const Guest = struct {
    source: Source,
    /// No byte of the guest's first message has arrived.
    silent: bool,
    /// The guest has just connected; its first message may have arrived unread.
    fresh: bool = false,
};

pub const Door = struct {
    places: usize,
    /// Extra places, one for each expected connection that has not identified itself. Which guests
    /// these are is not known, so all guests share the extra places.
    expected: usize = 0,

    pub const Answer = enum {
        enter,
        /// Another guest must go first.
        make_room,
        /// The connection is refused this time.
        turn_away,
    };

    /// Decides about a new connection. When more than half of the places are taken, some
    /// connections are refused at random before guests are pushed out: none at half, every second
    /// when all places are taken. `is_known`: a known peer is in the same network, so the
    /// connection is not refused.
    pub fn answer(door: Door, prng: *Prng, taken: usize, is_known: bool) Answer {
        const room = door.places + door.expected;
        const half = door.expected + door.places / 2;
        if (!is_known and taken > half and
            prng.below(door.places) < @min(taken, room) - half) return .turn_away;
        return if (taken < room) .enter else .make_room;
    }
};

/// Guests of one door or of one kind that can be counted together.
pub const guests_max = limits.strangers_max + limits.peers_max;

/// The guest that must go: drawn among guests of the network that has most, of these a silent one
/// if there is one. Null: all guests have just connected. `guest_of` returns null for connections
/// that are no guests.
pub fn draw(
    comptime T: type,
    items: []const *T,
    comptime guest_of: fn (item: *const T) ?Guest,
    prng: *Prng,
) ?*T {
    var census: Census = .{ .seed = prng.next() };
    for (items) |item| if (guest_of(item)) |guest| census.add(guest.source);
    var most: u32 = 0;
    for (items) |item| if (guest_of(item)) |guest| {
        if (!guest.fresh) most = @max(most, census.count(guest.source));
    };
    var chosen: ?*T = null;
    var chosen_silent = false;
    var drawn: u64 = 0;
    for (items) |item| {
        const guest = guest_of(item) orelse continue;
        if (guest.fresh or census.count(guest.source) < most) continue;
        if (chosen_silent and !guest.silent) continue;
        if (guest.silent and !chosen_silent) drawn = 0;
        chosen_silent = guest.silent;
        drawn += 1;
        if (prng.chance(drawn)) chosen = item;
    }
    return chosen;
}

/// The network of an address: the first 64 bits of an IPv6 address, because a stranger may have as
/// many addresses as it likes in there. An IPv4 address is a network of its own.
pub fn network_of(source: Source) Source {
    if (std.mem.startsWith(u8, &source, &mapped_prefix)) return source;
    var network: Source = @splat(0);
    network[0..8].* = source[0..8].*;
    return network;
}

const mapped_prefix = [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff };

pub fn same_network(one: Source, other: Source) bool {
    return std.mem.eql(u8, &network_of(one), &network_of(other));
}

/// How many guests come from each network.
const Census = struct {
    seed: u64,
    networks: [slots]Source = undefined,
    counts: [slots]u16 = @splat(0),

    const slots = std.math.ceilPowerOfTwoAssert(usize, guests_max + 1);

    fn slot(census: *const Census, network: *const Source) usize {
        var index = std.hash.Wyhash.hash(census.seed, network) % slots;
        for (0..slots) |_| {
            if (census.counts[index] == 0) break;
            if (std.mem.eql(u8, &census.networks[index], network)) break;
            index = (index + 1) % slots;
        }
        return index;
    }

    fn add(census: *Census, source: Source) void {
        const network = network_of(source);
        const index = census.slot(&network);
        census.networks[index] = network;
        census.counts[index] +|= 1;
    }

    fn count(census: *const Census, source: Source) u32 {
        return census.counts[census.slot(&network_of(source))];
    }
};

const testing = std.testing;

fn guest_itself(guest: *const Guest) ?Guest {
    return guest.*;
}

fn source_of(number: u8) Source {
    return mapped_prefix ++ [4]u8{ 10, 0, 0, number };
}

fn draw_of(guests: []Guest, prng: *Prng) ?*Guest {
    var items: [8]*Guest = undefined;
    for (items[0..guests.len], guests) |*item, *guest| item.* = guest;
    return draw(Guest, items[0..guests.len], guest_itself, prng);
}

test "who goes comes from where most are, is silent if any of those is, and has not just come" {
    var prng: Prng = .init(1);
    var seen: [4]u32 = @splat(0);
    for (0..1000) |_| {
        var guests = [_]Guest{
            .{ .source = source_of(1), .silent = true },
            .{ .source = source_of(2), .silent = false },
            .{ .source = source_of(2), .silent = true },
            .{ .source = source_of(2), .silent = true },
        };
        const chosen = draw_of(&guests, &prng).?;
        seen[chosen - &guests[0]] += 1;
    }
    try testing.expect(seen[0] == 0 and seen[1] == 0);
    try testing.expect(seen[2] > 400 and seen[3] > 400);
    var guests = [_]Guest{
        .{ .source = source_of(1), .silent = false },
        .{ .source = source_of(2), .silent = true, .fresh = true },
        .{ .source = source_of(2), .silent = true, .fresh = true },
    };
    try testing.expectEqual(&guests[0], draw_of(&guests, &prng).?);
    try testing.expectEqual(null, draw_of(guests[1..], &prng));
}

test "all addresses of one network are one source" {
    var prng: Prng = .init(1);
    var guests: [4]Guest = @splat(.{ .source = @splat(7), .silent = true });
    for (guests[0..3], 0..) |*guest, index| guest.source[15] = @intCast(index);
    guests[3].source = source_of(1);
    for (0..100) |_| try testing.expect(draw_of(&guests, &prng).? != &guests[3]);
    try testing.expect(same_network(guests[0].source, guests[1].source));
    try testing.expect(!same_network(source_of(1), source_of(2)));
}

test "few are turned away while half of the places are free, half when none is, and none known" {
    var prng: Prng = .init(1);
    const door: Door = .{ .places = 64, .expected = 10 };
    const Case = struct { taken: usize, known: bool, turned: [2]u32, otherwise: Door.Answer };
    for ([_]Case{
        .{ .taken = 42, .known = false, .turned = .{ 0, 0 }, .otherwise = .enter },
        .{ .taken = 58, .known = false, .turned = .{ 200, 300 }, .otherwise = .enter },
        .{ .taken = 74, .known = false, .turned = .{ 450, 550 }, .otherwise = .make_room },
        .{ .taken = 900, .known = false, .turned = .{ 450, 550 }, .otherwise = .make_room },
        .{ .taken = 73, .known = true, .turned = .{ 0, 0 }, .otherwise = .enter },
        .{ .taken = 74, .known = true, .turned = .{ 0, 0 }, .otherwise = .make_room },
    }) |case| {
        var turned: u32 = 0;
        for (0..1000) |_| switch (door.answer(&prng, case.taken, case.known)) {
            .turn_away => turned += 1,
            else => |answer| try testing.expectEqual(case.otherwise, answer),
        };
        try testing.expect(turned >= case.turned[0] and turned <= case.turned[1]);
    }
}
