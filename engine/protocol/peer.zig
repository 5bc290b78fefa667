//! Peer and Connection: what a coordinator knows of a process in the run, and of one TCP connection
//! to it. Nothing here sends: post.zig does. Peers come in through door.zig, and go in losses.zig.
//! The state of a member in its group: epoch.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const rates = @import("rates.zig");
const Claim = @import("addresses.zig").Claim;
const Hold = @import("hold.zig").Hold;
const Late = @import("late.zig").Late;
const Room = @import("addresses.zig").Room;
const Row = @import("matrix.zig").Row;
const Traffic = @import("traffic.zig").Traffic;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const limits = base.limits;
const assert = std.debug.assert;

/// The faults of a message, besides those of its bytes.
pub const ProtocolError = error{ OutOfMemory, Unexpected };

const Fault = wire.control.Error || ProtocolError;

/// Why its connection is closed then.
pub fn fault_of(err: Fault) []const u8 {
    return switch (err) {
        error.OutOfMemory => "the coordinator has no memory for its messages",
        inline else => |fault| "it broke the protocol (" ++ @errorName(fault) ++ ")",
    };
}

/// The state that all connections of a coordinator share.
pub const Shared = struct {
    /// Some of them is doomed.
    any_doomed: bool = false,
    /// When the last one came in.
    door_at: Instant = 0,
};

/// One TCP connection to the coordinator. The driver owns the socket and moves bytes of `stream`.
pub const Connection = struct {
    stream: wire.Stream,
    /// The messages that wait for the disk to have what they rely on; lost if it ends before.
    hold: Hold = .{},
    /// The driver's to use.
    driver: usize = 0,
    state: State = .stranger,
    /// When it came in, or said that it asks for the status.
    since: Instant,
    /// Where it comes from.
    source: base.Source,
    /// The host at which it has reached the coordinator, as it seems here; unknown: zeros.
    here: base.Source = @splat(0),
    peer: ?*Peer = null,
    /// It said something after the answer to its hello, so it hears us.
    has_answered: bool = false,
    /// The driver reads nothing from it before that: it has said too much.
    paused_until: Instant = 0,
    /// When its peer may come back, with all that it is in; and that it has.
    returns_at: ?Instant = null,
    has_returned: bool = false,
    /// Something went wrong with it inside a call; it is closed before that call returns, and its
    /// peer is out.
    doomed: ?[]const u8 = null,
    shared: *Shared,

    pub const State = enum { stranger, peer, status, answered, refused };

    /// Whether it has a place at the door.
    pub fn stranger(connection: *const Connection) ?base.places.Guest {
        if (connection.state != .stranger or connection.doomed != null) return null;
        return .{
            .source = connection.source,
            .silent = connection.stream.in.items.len == 0,
            .fresh = connection.since == connection.shared.door_at,
        };
    }

    pub fn asker(connection: *const Connection) ?base.places.Guest {
        const asks = connection.state == .status or connection.state == .answered;
        if (!asks or connection.doomed != null) return null;
        return .{ .source = connection.source, .silent = connection.state == .status };
    }

    pub fn is_paused(connection: *const Connection, now: Instant) bool {
        return connection.paused_until > now;
    }

    /// Bytes of its queues, which are free again once it is gone.
    pub fn memory(connection: *const Connection) usize {
        return connection.stream.memory() + connection.hold.memory();
    }

    /// It is closed before the call under way returns, and its peer is out.
    pub fn doom(connection: *Connection, why: []const u8) void {
        connection.doomed = why;
        connection.shared.any_doomed = true;
    }

    pub fn destroy(connection: *Connection, gpa: Allocator) void {
        connection.hold.deinit(gpa);
        connection.stream.deinit();
        gpa.destroy(connection);
    }
};

/// Rounds whose end a member waits for; 0: none.
pub const Rounds = struct { preparing: u64, stopping: u64 };

/// A process in the run: while it is connected, and as long as it is a member of anything.
pub const Peer = struct {
    id: PeerId,
    /// Null while it is away.
    connection: ?*Connection,
    /// Which process has the id.
    instance: u64,
    /// Where other peers dial it, in numbers; empty while that is not known.
    address: []u8 = &.{},
    /// Where it says that they do.
    claim: Claim = .{},
    last_heard: Instant,
    /// Where it was connected from last.
    source: base.Source = @splat(0),
    /// When its last connection ended on which it had answered, or will have, as far as the peer
    /// knows. Another one on which it answers nothing is no return: it may not hear us.
    away_since: Instant = 0,
    /// Other members that have said that their lanes to this one are closed, the last two.
    witnesses: [2]Witness = @splat(.{}),
    /// The last newcomer that has said so.
    bystander: Witness = .{},
    /// Groups in which it has told, on this connection, what it is a member of; a bit each.
    present: u64 = 0,
    /// Its account of the group that it is telling about.
    telling: ?Telling = null,
    /// The group that it asks for was refused: what it still tells of that one is passed over.
    refused: bool = false,
    /// Its joins that were too many (arrivals.zig).
    joins_waiting: u32 = 0,
    /// Since when it is connected, or has left the last group that it left.
    idle_since: Instant = 0,
    /// Until when a message of its, and what is behind it, was left where it is.
    unread_until: Instant = 0,
    rates: rates.Rates = .{},
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// Its name for people.
    label: base.Label = .{},
    /// For the status.
    traffic: Traffic = .{},
    /// Its own account of its links.
    row: Row = .{},
    /// It has a moment for a probe, as its last heartbeat says; and until when it is in one.
    may_probe: bool = false,
    probes_until: Instant = 0,
    late: Late = .{},

    const Witness = struct { id: PeerId = .none, at: Instant = 0 };

    pub const Telling = struct {
        /// The number of the group; null: its join waits.
        group: ?u16,
        rounds: Rounds,
        initial_world_size: u32,
        /// It names an epoch, so it is, or was, a member.
        named: bool = false,
        newest: u64 = 0,
        /// It has seen what the journal has lost: it belongs to another history.
        beyond: bool = false,
    };

    pub fn destroy(peer: *Peer, gpa: Allocator) void {
        gpa.free(peer.address);
        peer.claim.deinit(gpa);
        peer.traffic.deinit(gpa);
        peer.row.deinit(gpa);
        gpa.destroy(peer);
    }

    pub fn witness(peer: *Peer, by: PeerId, now: Instant) void {
        const older = @intFromBool(peer.witnesses[1].at < peer.witnesses[0].at);
        const place = for (&peer.witnesses) |*known| {
            if (known.id.eql(by)) break known;
        } else &peer.witnesses[older];
        place.* = .{ .id = by, .at = now };
    }

    pub fn has_witness(peer: *const Peer) bool {
        for (&peer.witnesses) |*known| if (!known.id.eql(.none)) return true;
        return false;
    }

    pub fn has_bystander(peer: *const Peer) bool {
        return !peer.bystander.id.eql(.none);
    }

    pub fn has_word_of(peer: *const Peer, by: PeerId) bool {
        for (&peer.witnesses) |*known| if (known.id.eql(by)) return true;
        return false;
    }

    pub fn forget_witnesses(peer: *Peer, before: Instant) void {
        for (&peer.witnesses) |*known| if (known.at < before) {
            known.* = .{};
        };
        if (peer.bystander.at < before) peer.bystander = .{};
    }

    pub fn is_present(peer: *const Peer, group: u16) bool {
        return group < limits.groups_max and peer.present & bit(group) != 0;
    }

    pub fn bit(group: u16) u64 {
        return @as(u64, 1) << @intCast(group);
    }

    /// It is out of the run before the call under way returns.
    pub fn doom(peer: *Peer, why: []const u8) void {
        if (peer.connection) |connection| connection.doom(why);
    }

    /// A member whose address is being looked for since a restart: newcomers could not dial it yet.
    pub fn is_address_awaited(peer: *const Peer) bool {
        return peer.address.len == 0 and peer.claim.is_open() and !peer.claim.failed;
    }

    /// Where `listener` dials `other`; nothing if that is not known. A peer of the coordinator's
    /// own machine that has come over its loopback interface is, for those of other machines, where
    /// they have reached the coordinator: its loopback address would lead them to themselves.
    pub fn told_to(listener: *const Peer, other: *const Peer, room: *Room) []const u8 {
        const connection = listener.connection orelse return other.address;
        const endpoint = base.Endpoint.parse(other.address) catch return other.address;
        const is_local = base.source.is_loopback(connection.source) or
            base.source.is_unknown(connection.source);
        if (is_local or !endpoint.is_loopback()) return other.address;
        const here = connection.here;
        if (base.source.is_unknown(here) or base.source.is_loopback(here)) return "";
        return base.source.write(here, endpoint.port, room);
    }

    /// As the log shows it: "7f3a01c2 (node7:4242)".
    pub fn named(peer: *const Peer) base.Named {
        return .{ .id = peer.id, .label = peer.label };
    }

    pub fn less_than(_: void, a: *Peer, b: *Peer) bool {
        return a.id.less_than(b.id);
    }
};

/// Ranks of the members of an epoch.
pub const Ranks = std.AutoHashMapUnmanaged(PeerId, u16);

pub fn ranks_of(gpa: Allocator, peers: []const *Peer) Allocator.Error!Ranks {
    var ranks: Ranks = .empty;
    try ranks.ensureTotalCapacity(gpa, @intCast(peers.len));
    for (peers, 0..) |peer, rank| ranks.putAssumeCapacity(peer.id, @intCast(rank));
    return ranks;
}

comptime {
    assert(limits.groups_max <= 64); // Peer.present
}
