//! addresses: the addresses at which peers claim that others can dial them, and the search for the
//! peers there. door.zig searches, with the help of the driver (net/finder.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Instant = base.Instant;

/// The address that one peer claims, and the search for the peer there.
pub const Claim = struct {
    /// The claimed address, as the peer has written it.
    text: []u8 = &.{},
    /// The key by which the peer proves itself at its address.
    key: wire.hello.Key = @splat(0),
    /// The peer's user has named the address, and is told if it is wrong.
    advertised: bool = false,
    state: State = .unknown,
    /// The number of the last search, new for each search. Searches wait in the order of their
    /// numbers.
    number: u64 = 0,
    /// The earliest time at which the queued search may begin.
    not_before: Instant = 0,
    /// The peer is a member that was not found before, or has changed its address: no round waits
    /// for this search.
    failed: bool = false,
    /// Groups that the peer enters when the search has ended.
    waiting: std.ArrayList(Waiting) = .empty,

    const Waiting = struct { group: u16, initial_world_size: u32 };

    pub const State = enum {
        unknown,
        /// The search waits until the driver is asked.
        queued,
        /// The driver searches.
        asked,
        /// The peer was found, and others dial it at Peer.address.
        known,
        /// The peer was not found at the address of its interface: others cannot dial it, so it
        /// dials them.
        nowhere,
    };

    pub fn deinit(claim: *Claim, gpa: Allocator) void {
        gpa.free(claim.text);
        claim.waiting.deinit(gpa);
    }

    pub fn waits_for(claim: *const Claim, group: u16) bool {
        return for (claim.waiting.items) |*item| {
            if (item.group == group) break true;
        } else false;
    }

    pub fn is_open(claim: *const Claim) bool {
        return claim.state == .queued or claim.state == .asked;
    }

    /// Whether the search has ended: others can dial the peer, or it is known that they cannot.
    pub fn is_settled(claim: *const Claim) bool {
        return claim.state == .known or claim.state == .nowhere or claim.failed;
    }

    /// The peer's connection is gone: ends the search and forgets the groups that waited for the
    /// search.
    pub fn disconnected(claim: *Claim) void {
        claim.waiting.clearRetainingCapacity();
        if (claim.state != .known) claim.state = .unknown;
    }
};

/// The driver is asked to look for a peer.
pub const Question = struct {
    number: u64,
    peer: base.PeerId,
    /// The host that the peer's connection comes from.
    source: base.Source,
    /// A peer from the network of `source` was not found lately.
    is_doubtful: bool = false,
    /// The address to dial, as Endpoint.parse_told takes it. Valid during the call.
    address: []const u8,
    /// A second address to dial if `address` fails: the host of the peer's connection with the port
    /// of `address`. The peer must prove itself there. Empty: there is no second address. Valid
    /// during the call.
    seen: []const u8 = "",
    key: wire.hello.Key,
};

pub const Answer = union(enum) {
    /// The numeric address at which the peer was found. Valid during the call.
    found: []const u8,
    not_found: wire.Dialed,
};

pub const Reply = union(enum) {
    answer: Answer,
    /// The driver will give the answer to `Coordinator.answered`.
    later,
    /// The driver has no room for a question from this source, and is asked again later.
    busy,
};

/// The queue of searches for all peers.
pub const Queue = struct {
    last_number: u64 = 0,
    next_at: Instant = 0,
    /// Whether a search is queued.
    any: bool = false,
    not_found: NotFound = .{},
};

/// The networks of peers that were not found lately. Searches for peers from these networks come
/// last.
const NotFound = struct {
    places: [places_max]struct { network: base.Source, at: Instant } = undefined,
    count: usize = 0,

    const places_max = 64;
    const lately_ns = 60 * std.time.ns_per_s;

    fn find(lost: *const NotFound, source: base.Source) ?usize {
        for (lost.places[0..lost.count], 0..) |*place, index| {
            if (base.places.same_network(place.network, source)) return index;
        }
        return null;
    }

    pub fn has(lost: *const NotFound, source: base.Source, now: Instant) bool {
        const index = lost.find(source) orelse return false;
        return now -| lost.places[index].at < lately_ns;
    }

    /// Notes the network of `source`. If there is no room, the network takes the place of the
    /// oldest.
    pub fn add(lost: *NotFound, source: base.Source, now: Instant) void {
        const is_full = lost.count == places_max;
        const index = lost.find(source) orelse if (is_full) lost.oldest() else lost.count;
        lost.count = @max(lost.count, index + 1);
        lost.places[index] = .{ .network = source, .at = now };
    }

    fn oldest(lost: *const NotFound) usize {
        var found: usize = 0;
        for (lost.places[0..lost.count], 0..) |*place, index| {
            if (place.at < lost.places[found].at) found = index;
        }
        return found;
    }
};

/// A buffer for a numeric address as text.
pub const Room = [base.source.text_bytes_max]u8;

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

test "a connection that is gone leaves of a claim only where the peer was found" {
    const gpa = std.testing.allocator;
    for ([_]Claim.State{ .unknown, .queued, .asked, .known, .nowhere }) |state| {
        var claim: Claim = .{ .state = state };
        defer claim.deinit(gpa);
        try claim.waiting.append(gpa, .{ .group = 3, .initial_world_size = 0 });
        claim.disconnected();
        try expectEqual(0, claim.waiting.items.len);
        try expectEqual(if (state == .known) .known else Claim.State.unknown, claim.state);
    }
}

test "the network that was not found longest ago makes room, and each has one place" {
    var lost: NotFound = .{};
    const most = NotFound.places_max;
    for (0..most) |index| lost.add(test_network(index), index);
    // Network 1 was noted longest ago then, because 0 and 2 are noted again.
    for ([_]usize{ 0, 2 }) |index| lost.add(test_network(index), most);
    for (0..most) |index| try expect(lost.has(test_network(index), most));
    lost.add(test_network(most), most + 1);
    for (0..most + 1) |index| try expectEqual(index != 1, lost.has(test_network(index), most + 1));
}

fn test_network(index: usize) base.Source {
    var source: base.Source = @splat(0);
    source[0] = 0x20;
    source[1] = @intCast(index);
    return source;
}
