//! addresses: where peers say that others can dial them, and what is found out about that. The
//! coordinator finds it out in door.zig, with the help of its driver (net/finder.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Instant = base.Instant;

/// The claim of one peer.
pub const Claim = struct {
    /// As the peer says it.
    text: []u8 = &.{},
    /// By which it is found.
    key: wire.hello.Key = @splat(0),
    /// Its user has named it, and wants to hear if it is wrong.
    advertised: bool = false,
    state: State = .unknown,
    /// In the order in which they wait; another one each time.
    number: u64 = 0,
    /// Not asked about before.
    not_before: Instant = 0,
    /// A member was not found: nobody waits for the next answer.
    failed: bool = false,
    /// Groups that it enters when the answer is there.
    waiting: std.ArrayList(Waiting) = .empty,

    const Waiting = struct { group: u16, initial_world_size: u32 };

    pub const State = enum {
        unknown,
        /// The driver is to be asked, and was asked.
        queued,
        asked,
        /// Peer.address is where it is dialed.
        known,
        /// It is not where it believes to be: it dials the others.
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

    /// Where it is dialed is known, or that nobody can, though it may be looked for again.
    pub fn is_settled(claim: *const Claim) bool {
        return claim.state == .known or claim.state == .nowhere or claim.failed;
    }

    /// Its connection is gone: who waits asks anew, and answers under way are not for it any more.
    pub fn disconnected(claim: *Claim) void {
        claim.waiting.clearRetainingCapacity();
        if (claim.state != .known) claim.state = .unknown;
    }
};

/// A question to the driver.
pub const Question = struct {
    number: u64,
    peer: base.PeerId,
    /// Where its connection comes from.
    source: base.Source,
    /// Somebody from there was not found lately.
    is_doubtful: bool = false,
    /// Read with Endpoint.parse_told already. Valid during the call.
    address: []const u8,
    /// Where its connection comes from, at the port of `address`: to be tried last, and only if the
    /// peer proves to be there. Empty: not to be tried. Valid during the call.
    seen: []const u8 = "",
    key: wire.hello.Key,
};

pub const Answer = union(enum) {
    /// Where the peer is, in numbers. Valid during the call.
    found: []const u8,
    not_found: wire.Dialed,
};

pub const Reply = union(enum) {
    answer: Answer,
    /// `Coordinator.answered` will be called.
    later,
    /// There is no room for a question from this source: it is asked again.
    busy,
};

/// The queue of all peers' claims.
pub const Queue = struct {
    last_number: u64 = 0,
    next_at: Instant = 0,
    /// Some claim is queued.
    any: bool = false,
    not_found: NotFound = .{},
};

/// The networks of those who were not found lately: they come after the others.
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

    /// Where there is no room, the one that lies back furthest is forgotten.
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

/// For an address in numbers.
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
    // The second lies back furthest then: others were not found again.
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
