//! Peer and Connection: what a coordinator knows of a process of the run, and of its TCP
//! connection: the rates of its messages (Rates), messages to it that wait for the disk (Hold), and
//! questions that a member must answer (Asked). run.zig sends messages. Peers come in through
//! door.zig, and go in membership.zig. The state of a member in its group: epoch.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Claim = @import("address.zig").Claim;
const Late = @import("record.zig").Lateness;
const Room = @import("address.zig").Room;
const Row = @import("matrix.zig").Row;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const Source = base.Source;
const assert = std.debug.assert;
const control = wire.control;
const gpa_of_tests = std.testing.allocator;
const limits = base.limits;
const ms = std.time.ns_per_ms;
const testing = std.testing;

/// The faults of a decoded message; those of its bytes are in wire.control.Error.
pub const ProtocolError = error{ OutOfMemory, Unexpected };

const Fault = wire.control.Error || ProtocolError;

/// The reason, in words, for closing the connection of a peer whose message had this fault.
pub fn fault_of(err: Fault) []const u8 {
    return switch (err) {
        error.OutOfMemory => "the coordinator has no memory for its messages",
        inline else => |fault| "it broke the protocol (" ++ @errorName(fault) ++ ")",
    };
}

/// The state that all connections of a coordinator share.
pub const Shared = struct {
    /// At least one connection is doomed, so `sweep` must close it (membership.zig).
    any_doomed: bool = false,
    /// The time at which the last connection came in.
    door_at: Instant = 0,
};

/// One TCP connection to the coordinator. The driver owns the socket and moves the bytes of
/// `stream`.
pub const Connection = struct {
    stream: wire.Stream,
    /// Messages that wait until the journal records that they rely on are on the disk. A message
    /// that still waits when the connection ends is lost.
    hold: Hold = .{},
    /// A number of the driver's own, which leads it to the connection's socket.
    driver: usize = 0,
    state: State = .stranger,
    /// The time at which the connection came in, or later asked for the status.
    since: Instant,
    /// The host that the connection comes from.
    source: base.Source,
    /// The coordinator's own address on this connection; zeros: unknown.
    here: base.Source = @splat(0),
    peer: ?*Peer = null,
    /// The peer said something after the answer to its hello, so it hears the coordinator.
    has_answered: bool = false,
    /// The driver reads nothing from the connection before this time, because the peer exceeds its
    /// rates or its vote must wait.
    paused_until: Instant = 0,
    /// The time at which a member that comes back may return to its groups (null: not set yet), and
    /// whether it has returned.
    returns_at: ?Instant = null,
    has_returned: bool = false,
    /// Why the connection will be closed, and its peer removed, before the current call into the
    /// coordinator returns; null: the connection stays.
    doomed: ?[]const u8 = null,
    shared: *Shared,

    pub const State = enum { stranger, peer, status, answered, refused };

    /// The connection as a guest among strangers; null: it has no stranger's place (door.zig).
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

    /// Bytes of the connection's queues, which are freed with the connection.
    pub fn memory(connection: *const Connection) usize {
        return connection.stream.memory() + connection.hold.memory();
    }

    /// Marks the connection: it is closed, and its peer removed, before the current call into the
    /// coordinator returns.
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

/// The rounds whose end a member waits for: the one that it prepares for, and the one for which it
/// stops at a safe point; 0: none.
pub const Rounds = struct { preparing: u64, stopping: u64 };

/// A process of the run. The coordinator keeps it while it is connected or a member of a group.
pub const Peer = struct {
    id: PeerId,
    /// The peer's connection; null: the peer is away.
    connection: ?*Connection,
    /// The number that tells the peer's process from others with the same id.
    instance: u64,
    /// The numeric address at which other peers dial this peer; empty: it is not known.
    address: []u8 = &.{},
    /// The address that the peer claims, and the search for the peer there.
    claim: Claim = .{},
    last_heard: Instant,
    /// The host of the peer's last connection.
    source: base.Source = @splat(0),
    /// The time since which the peer is away: the end of its last connection on which it had
    /// answered. A connection on which the peer answers nothing is no return, because the peer may
    /// not hear the coordinator.
    away_since: Instant = 0,
    /// The last two members that have said that their lanes to this peer are closed.
    witnesses: [2]Witness = @splat(.{}),
    /// The last newcomer that has said that its lanes to this peer are closed.
    bystander: Witness = .{},
    /// A bit for each group in which the peer has told its epochs on this connection.
    present: u64 = 0,
    /// The join under way, from `join` to `join_end`, with what the peer has told so far; null: no
    /// join is under way.
    telling: ?Telling = null,
    /// The join under way was refused: its messages up to `join_end` are ignored.
    refused: bool = false,
    /// The number of the peer's joins in the lobby (door.zig).
    joins_waiting: u32 = 0,
    /// The time at which the peer last connected, left a group, or came from the lobby into a
    /// group.
    idle_since: Instant = 0,
    /// The end of the last pause for which a message of the peer, and all messages behind it, were
    /// left unread.
    unread_until: Instant = 0,
    rates: Rates = .{},
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// The peer's name for people.
    label: base.Label = .{},
    /// The rates and round trips of links that the peer has reported.
    row: Row = .{},
    /// The peer's last heartbeat says that it may probe a link; and the time until which the peer
    /// is probing.
    may_probe: bool = false,
    is_idle: bool = false,
    probes_until: Instant = 0,
    late: Late = .{},

    const Witness = struct { id: PeerId = .none, at: Instant = 0 };

    pub const Telling = struct {
        /// The number of the group that the peer asks for; null: the join waits in the lobby.
        group: ?u16,
        rounds: Rounds,
        initial_world_size: u32,
        /// The peer has named an epoch, so it is or was a member.
        named: bool = false,
        newest: u64 = 0,
        /// The peer knows an epoch or a removal that the journal has lost.
        beyond: bool = false,
    };

    pub fn destroy(peer: *Peer, gpa: Allocator) void {
        gpa.free(peer.address);
        peer.claim.deinit(gpa);
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

    /// Marks the peer: it is removed before the current call into the coordinator returns.
    pub fn doom(peer: *Peer, why: []const u8) void {
        if (peer.connection) |connection| connection.doom(why);
    }

    /// Whether the search for a member's address is under way, as after a restart: newcomers could
    /// not dial the member yet.
    pub fn is_address_awaited(peer: *const Peer) bool {
        return peer.address.len == 0 and peer.claim.is_open() and !peer.claim.failed;
    }

    /// The address at which `listener` dials `other`; empty: it is not known. If `other` has a
    /// loopback address and `listener` is on another machine, it is the address at which `listener`
    /// reached the coordinator, with the port of `other`: the loopback address would lead
    /// `listener` to itself.
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

    /// The peer as the log shows it: "7f3a01c2 (node7:4242)".
    pub fn named(peer: *const Peer) base.Named {
        return .{ .id = peer.id, .label = peer.label };
    }

    pub fn less_than(_: void, a: *Peer, b: *Peer) bool {
        return a.id.less_than(b.id);
    }
};

/// The rank of each member of an epoch, by peer id.
pub const Ranks = std.AutoHashMapUnmanaged(PeerId, u16);

pub fn ranks_of(gpa: Allocator, peers: []const *Peer) Allocator.Error!Ranks {
    var ranks: Ranks = .empty;
    try ranks.ensureTotalCapacity(gpa, @intCast(peers.len));
    for (peers, 0..) |peer, rank| ranks.putAssumeCapacity(peer.id, @intCast(rank));
    return ranks;
}

comptime {
    assert(limits.groups_max <= 64); // Peer.present has a bit for each group
}

// ---- messages that wait for the disk
//
// A Hold has the messages of one connection that the peer may not hear yet, because they rely on a
// journal record that is not on the disk. Each message waits for its own record, and messages about
// one group keep their order. Messages about other groups, about epochs that the record does not
// name, and signs of life do not wait. The records, and when they are on the disk: log.zig. run.zig
// sends the messages.

/// The journal records that a message relies on.
pub const Subject = union(enum) {
    /// The message relies on no record: signs of life, settings, the status.
    nothing,
    /// The message relies on no record, but must not overtake other messages: it names no group by
    /// number.
    order,
    /// The message relies on every record of a group.
    group: u16,
    /// The message relies on the records that name this epoch, and on those of earlier messages
    /// about its whole group.
    epoch: struct { group: u16, number: u64 },

    pub fn of(message: *const control.Message) Subject {
        return switch (message.*) {
            .refused => .order,
            inline else => |*body| {
                const Body = @TypeOf(body.*);
                if (!@hasField(Body, "group")) return .nothing;
                if (!@hasField(Body, "epoch")) return .{ .group = body.group };
                return .{ .epoch = .{ .group = body.group, .number = body.epoch } };
            },
        };
    }
};

pub const Hold = struct {
    entries: std.ArrayList(Entry) = .empty,
    /// Bytes of all held messages, and of the bulk among them (wire/stream.zig).
    bytes: usize = 0,
    bulk: usize = 0,

    /// The number of the last record that any message has waited for (`until`), that a `refused`
    /// has (`order_until`), and that a message about each whole group has (`group_until`). `until`,
    /// `order_until` and `group_until` never shrink: a record that is on the disk holds up no
    /// message.
    until: u64 = 0,
    order_until: u64 = 0,
    group_until: [base.limits.groups_max]u64 = @splat(0),

    /// One held message, in a queue of its own. Other connections that are sent the same message
    /// share its bytes.
    const Entry = struct {
        until: u64,
        /// When the message began to wait.
        since: base.Instant,
        load: wire.Stream.Load,
        queue: wire.Queue,
    };

    pub fn deinit(hold: *Hold, gpa: Allocator) void {
        for (hold.entries.items) |*entry| entry.queue.clear();
        hold.entries.deinit(gpa);
    }

    /// Bytes of the held messages and of their list, which are freed with the hold.
    pub fn memory(hold: *const Hold) usize {
        var bytes = hold.entries.capacity * @sizeOf(Entry);
        for (hold.entries.items) |*entry| bytes += entry.queue.memory();
        return bytes;
    }

    /// The time since which the oldest held message waits; null: no message waits.
    pub fn waits_since(hold: *const Hold) ?base.Instant {
        return if (hold.entries.items.len > 0) hold.entries.items[0].since else null;
    }

    /// Whether hold and stream together have as many bytes as may wait for one peer.
    pub fn is_full(hold: *const Hold, stream: *const wire.Stream, load: wire.Stream.Load) bool {
        return stream.is_full_with(load, hold.bytes, hold.bulk);
    }

    /// The record for which the next message of this subject must wait, so that it does not
    /// overtake a held message. A message about a whole group waits for all records of the group
    /// anyway, and a message about an epoch waits for no fewer records than the one before it.
    pub fn behind(hold: *const Hold, subject: Subject) u64 {
        return switch (subject) {
            .nothing => 0,
            .order => hold.until,
            .group => hold.order_until,
            .epoch => |epoch| hold.group_until[epoch.group],
        };
    }

    fn note(hold: *Hold, subject: Subject, until: u64) void {
        hold.until = @max(hold.until, until);
        switch (subject) {
            .nothing, .epoch => {},
            .order => hold.order_until = @max(hold.order_until, until),
            .group => |group| if (group < hold.group_until.len) {
                hold.group_until[group] = @max(hold.group_until[group], until);
            },
        }
    }

    /// Holds a message until record `until` is on the disk. `encoded`: the message as encoded for
    /// another connection, or null. Returns the encoded message, which other connections may share
    /// until it leaves.
    pub fn keep(
        hold: *Hold,
        stream: *const wire.Stream,
        now: base.Instant,
        until: u64,
        message: *const control.Message,
        load: wire.Stream.Load,
        encoded: ?wire.Queue.Encoded,
    ) Allocator.Error!wire.Queue.Encoded {
        try hold.entries.ensureUnusedCapacity(stream.gpa, 1);
        var queue: wire.Queue = .{ .gpa = stream.gpa, .budget = stream.out.budget };
        if (encoded) |*other| try queue.share(other) else _ = try queue.encode(message);
        hold.entries.appendAssumeCapacity(.{
            .until = until,
            .since = now,
            .load = load,
            .queue = queue,
        });
        hold.bytes += queue.length;
        if (load == .bulk) hold.bulk += queue.length;
        hold.note(.of(message), until);
        return queue.only();
    }

    /// Moves the messages whose records are on the disk to the stream. True: at least one has
    /// moved. After an error the hold can only be freed.
    pub fn release(hold: *Hold, settled: u64, stream: *wire.Stream) Allocator.Error!bool {
        var kept: usize = 0;
        var index: usize = 0;
        // Even after an error `entries` has each message that is left once.
        defer {
            for (hold.entries.items[index..]) |entry| {
                hold.entries.items[kept] = entry;
                kept += 1;
            }
            hold.entries.shrinkRetainingCapacity(kept);
            // Holds are rarely used, but then perhaps by hundreds of connections at once: frees the
            // list.
            if (kept == 0) hold.entries.clearAndFree(stream.gpa);
        }
        var any = false;
        while (index < hold.entries.items.len) : (index += 1) {
            const entry = &hold.entries.items[index];
            if (entry.until > settled) {
                hold.entries.items[kept] = entry.*;
                kept += 1;
                continue;
            }
            const only = entry.queue.only();
            // No limit is checked here: `is_full` was checked when the message was held.
            try stream.out.share(&only);
            if (entry.load == .bulk) {
                stream.out_bulk += only.bytes.len;
                hold.bulk -= only.bytes.len;
            }
            hold.bytes -= only.bytes.len;
            entry.queue.clear();
            any = true;
        }
        return any;
    }
};

test "what waits leaves in the order of its group, and nothing overtakes what it must not" {
    var hold: Hold = .{};
    defer hold.deinit(gpa_of_tests);
    var stream: wire.Stream = .init(gpa_of_tests);
    defer stream.deinit();
    const activate: Subject = .{ .epoch = .{ .group = 1, .number = 7 } };
    const closing: control.Message = .{ .resume_all = .{ .group = 1, .epoch = 7, .attempt = 1 } };
    const joined: control.Message = .{ .joined = .{ .name = .of("name"), .group = 2 } };
    try std.testing.expectEqual(activate, Subject.of(&closing));
    const length = (try hold.keep(&stream, 0, 5, &closing, .usual, null)).bytes.len;
    // The held message holds up neither another epoch, nor another group, nor signs of life.
    try std.testing.expectEqual(0, hold.behind(.{ .epoch = .{ .group = 1, .number = 6 } }));
    try std.testing.expectEqual(0, hold.behind(.{ .group = 2 }));
    try std.testing.expectEqual(0, hold.behind(.of(&.{ .heartbeat_ack = .{ .number = 1 } })));
    _ = try hold.keep(&stream, 0, 3, &joined, .usual, null);
    try std.testing.expectEqual(3, hold.behind(.{ .epoch = .{ .group = 2, .number = 1 } }));
    try std.testing.expectEqual(0, hold.behind(.{ .epoch = .{ .group = 1, .number = 6 } }));
    const refused: control.Message = .{ .refused = .{ .name = .of("x"), .why = .of("y") } };
    try std.testing.expectEqual(5, hold.behind(.of(&refused)));
    _ = try hold.keep(&stream, 0, 5, &refused, .usual, null);
    try std.testing.expectEqual(5, hold.behind(.{ .group = 2 }));
    _ = try hold.keep(&stream, 0, 5, &closing, .usual, null);

    try std.testing.expect(!try hold.release(2, &stream));
    try std.testing.expect(try hold.release(3, &stream));
    const first = try control.decode(stream.send_slice());
    try std.testing.expectEqual(2, first.joined.group);
    stream.sent(stream.send_slice().len);
    try std.testing.expect(try hold.release(5, &stream));
    const rest = stream.send_slice();
    const last = rest.len - length;
    for ([_][]const u8{ rest[0..length], rest[last..] }) |bytes| {
        const message = try control.decode(bytes);
        try std.testing.expectEqual(7, message.resume_all.epoch);
    }
    const middle = try control.decode(rest[length..last]);
    try std.testing.expectEqualStrings("y", middle.refused.why.data);
    try std.testing.expect(!try hold.release(9, &stream));
}

test "what leaves in bulk is bulk in the stream, and not in the hold any more" {
    var hold: Hold = .{};
    defer hold.deinit(gpa_of_tests);
    var stream: wire.Stream = .init(gpa_of_tests);
    defer stream.deinit();
    const message: control.Message = .{ .resume_all = .{ .group = 1, .epoch = 7, .attempt = 1 } };
    const length = (try hold.keep(&stream, 0, 5, &message, .bulk, null)).bytes.len;
    _ = try hold.keep(&stream, 0, 5, &message, .usual, null);
    try std.testing.expectEqual([_]usize{ 2 * length, length }, [_]usize{ hold.bytes, hold.bulk });
    try std.testing.expect(try hold.release(5, &stream));
    try std.testing.expectEqual([_]usize{ 0, 0 }, [_]usize{ hold.bytes, hold.bulk });
    try std.testing.expectEqual(length, stream.out_bulk);
}

// ---- rates
//
// The rates at which one peer, and one network, may make requests of the coordinator. A bucket is
// paid with time: a request that costs a second can be made once a second, and a burst of requests
// ahead of time. The connection of a peer beyond its rate is not read for a while, so that TCP
// slows the peer down: no message is lost, and the peer is not removed for it.

pub const Bucket = struct {
    /// The time at which all requests so far are paid for; in the past: the whole burst is left.
    paid_at: Instant = 0,

    /// The cost of one request, and how far ahead of time requests may be made, in nanoseconds.
    pub const Price = struct {
        cost_ns: u64,
        burst_ns: u64,

        pub fn per_second(count: u64, burst: u64) Price {
            const cost_ns = std.time.ns_per_s / count;
            return .{ .cost_ns = cost_ns, .burst_ns = cost_ns * burst };
        }
    };

    pub fn take(bucket: *Bucket, now: Instant, price: Price, count: u64) void {
        bucket.paid_at = @max(bucket.paid_at, now) +| price.cost_ns *| count;
    }

    /// Nanoseconds until the next request may be made; 0: now.
    pub fn wait_ns(bucket: *const Bucket, now: Instant, price: Price) u64 {
        return bucket.paid_at -| (now +| price.burst_ns);
    }
};

pub const message_price: Bucket.Price = .per_second(
    limits.peer_messages_per_s_max,
    limits.peer_messages_burst,
);
pub const byte_price: Bucket.Price = .per_second(
    limits.peer_bytes_per_s_max,
    limits.peer_bytes_burst,
);
pub const join_price: Bucket.Price = .per_second(limits.joins_per_s_max, limits.peer_joins_burst);
pub const network_join_price: Bucket.Price = .per_second(
    limits.joins_per_s_max,
    limits.network_joins_burst,
);
pub const attempt_price: Bucket.Price = .per_second(
    limits.peer_attempts_per_s_max,
    limits.peer_attempts_burst,
);

/// The rates of one peer.
pub const Rates = struct {
    messages: Bucket = .{},
    bytes: Bucket = .{},
    joins: Bucket = .{},
    attempts: Bucket = .{},

    /// Charges the peer for a message of `size` bytes. Returns for how many nanoseconds nothing is
    /// read from the peer.
    pub fn heard(
        rates: *Rates,
        now: Instant,
        message: *const wire.control.Message,
        size: usize,
    ) u64 {
        rates.bytes.take(now, byte_price, size);
        if (!is_of_operation(message)) rates.messages.take(now, message_price, 1);
        const wait_ns = @max(
            rates.bytes.wait_ns(now, byte_price),
            rates.messages.wait_ns(now, message_price),
        );
        if (wait_ns == 0) return 0;
        // Pauses are rare and long, because each costs a turn of the loop.
        return std.math.clamp(wait_ns, limits.pause_ns_min, limits.pause_ns_max);
    }

    /// Whether a message belongs to a call of the program. Calls have no rate limit, so only the
    /// bytes of the message are charged.
    fn is_of_operation(message: *const wire.control.Message) bool {
        return switch (message.*) {
            .done,
            .gave_up,
            .mismatch_seen,
            .report_op,
            .decisions_seen,
            .state_offer,
            .state_tensors,
            => true,
            else => false,
        };
    }

    /// Charges an attempt that begins because of the peer.
    pub fn cost_attempt(rates: *Rates, now: Instant) void {
        rates.attempts.take(now, attempt_price, 1);
    }

    /// For how many nanoseconds an attempt that the peer causes now is put off.
    pub fn attempt_wait_ns(rates: *const Rates, now: Instant) u64 {
        return @min(rates.attempts.wait_ns(now, attempt_price), limits.pause_ns_max);
    }
};

/// The rates of joins, by network. Joins that begin a group are counted apart, so that a peer that
/// makes groups without end does not keep other peers of its network out of a running group.
pub const Arrivals = struct {
    origins: std.AutoArrayHashMapUnmanaged(Origin, Bucket) = .empty,
    /// The rate shared by networks without a place in the table.
    others: Bucket = .{},

    pub const Aim = enum { begins_group, enters_group };
    const Origin = struct { network: Source, aim: Aim };

    pub fn deinit(arrivals: *Arrivals, gpa: std.mem.Allocator) void {
        arrivals.origins.deinit(gpa);
    }

    /// The bucket for joins with this aim from a network; valid until the next call.
    pub fn of(
        arrivals: *Arrivals,
        gpa: std.mem.Allocator,
        now: Instant,
        source: Source,
        aim: Aim,
    ) *Bucket {
        const origin: Origin = .{ .network = base.places.network_of(source), .aim = aim };
        if (arrivals.origins.getPtr(origin)) |bucket| return bucket;
        if (arrivals.origins.count() >= limits.sources_kept_max) arrivals.forget_paid(now);
        if (arrivals.origins.count() >= limits.sources_kept_max) return &arrivals.others;
        const entry = arrivals.origins.getOrPut(gpa, origin) catch return &arrivals.others;
        entry.value_ptr.* = .{};
        return entry.value_ptr;
    }

    fn forget_paid(arrivals: *Arrivals, now: Instant) void {
        var index = arrivals.origins.count();
        while (index > 0) {
            index -= 1;
            if (arrivals.origins.values()[index].paid_at > now) continue;
            arrivals.origins.swapRemoveAt(index);
        }
    }
};

test "a bucket gives its burst at once, then what time has paid for" {
    const price: Bucket.Price = .per_second(10, 3);
    var bucket: Bucket = .{};
    var now: Instant = 1000 * ms;
    for (0..4) |_| {
        try testing.expectEqual(0, bucket.wait_ns(now, price));
        bucket.take(now, price, 1);
    }
    try testing.expectEqual(100 * ms, bucket.wait_ns(now, price));
    now += 99 * ms;
    try testing.expectEqual(1 * ms, bucket.wait_ns(now, price));
    now += 1 * ms;
    try testing.expectEqual(0, bucket.wait_ns(now, price));
    // An idle hour saves up no more than the burst.
    now += 3600 * 1000 * ms;
    for (0..4) |_| bucket.take(now, price, 1);
    try testing.expectEqual(100 * ms, bucket.wait_ns(now, price));
}

test "a pause is bounded, whatever was said, and a vote costs its bytes alone" {
    var rates: Rates = .{};
    const beat: wire.control.Message = .{ .heartbeat = .{
        .number = 1,
        .bytes_sent = 0,
        .bytes_received = 0,
    } };
    try testing.expectEqual(0, rates.heard(1, &beat, 40));
    try testing.expectEqual(limits.pause_ns_max, rates.heard(1, &beat, 1 << 40));
    rates = .{};
    const vote: wire.control.Message = .{ .done = std.mem.zeroInit(wire.control.Done, .{
        .descriptor = std.mem.zeroInit(wire.control.Descriptor, .{
            .kind = .all_reduce,
            .dtype = .f32,
            .op = .sum,
            .recovery = .raise,
        }),
    }) };
    for (0..2 * limits.peer_messages_burst) |_| {
        try testing.expectEqual(0, rates.heard(1, &vote, 100));
    }
    for (0..limits.peer_messages_burst) |_| {
        try testing.expectEqual(0, rates.heard(1, &beat, 40));
    }
    try testing.expectEqual(limits.pause_ns_min, rates.heard(1, &beat, 40));
}

test "beyond the burst a peer may say four mebibytes a second, whatever the size of what it says" {
    const seconds = 10;
    for ([_]usize{ 1000, 100_000, limits.control_message_bytes_max }) |size| {
        var rates: Rates = .{};
        const gave_up: wire.control.GaveUp = .{
            .group = 0,
            .epoch = 1,
            .op = .{ .tag = 5, .sequence = 0 },
            .reason = .cancelled,
        };
        var now: Instant = 1000 * ms;
        const end = now + seconds * std.time.ns_per_s;
        const most = limits.peer_bytes_burst + seconds * 4 * 1024 * 1024;
        var said: u64 = 0;
        while (now < end and said < 2 * most) : (said += size) {
            now += rates.heard(now, &.{ .gave_up = gave_up }, size);
        }
        try testing.expect(said > most - most / 50 and said < most + most / 50 + size);
    }
}

test "attempts beyond the burst come later, each when time has paid for the one before" {
    var rates: Rates = .{};
    const now: Instant = 1000 * ms;
    for (0..limits.peer_attempts_burst + 1) |_| {
        try testing.expectEqual(0, rates.attempt_wait_ns(now));
        rates.cost_attempt(now);
    }
    const first = std.time.ns_per_s / limits.peer_attempts_per_s_max;
    try testing.expectEqual(first, rates.attempt_wait_ns(now));
    rates.cost_attempt(now);
    try testing.expectEqual(2 * first, rates.attempt_wait_ns(now));
    for (0..100) |_| rates.cost_attempt(now);
    try testing.expectEqual(limits.pause_ns_max, rates.attempt_wait_ns(now));
    try testing.expectEqual(0, rates.attempt_wait_ns(now + 3600 * 1000 * ms));
}

test "sources beyond the table share one bucket, and those that have paid make room" {
    var arrivals: Arrivals = .{};
    defer arrivals.deinit(testing.allocator);
    const now: Instant = 1000 * ms;
    for (0..limits.sources_kept_max) |index| {
        var source: Source = @splat(0);
        std.mem.writeInt(u32, source[0..4], @intCast(index + 1), .little);
        arrivals.of(testing.allocator, now, source, .enters_group).take(now, network_join_price, 1);
    }
    const another: Source = @splat(0xff);
    const shared = arrivals.of(testing.allocator, now, another, .enters_group);
    try testing.expectEqual(&arrivals.others, shared);
    const later = now + 1000 * ms;
    const own = arrivals.of(testing.allocator, later, another, .enters_group);
    try testing.expect(own != &arrivals.others);
    try testing.expectEqual(1, arrivals.origins.count());
}

// ---- questions
//
// Questions that a member's engine must answer without its user: about the lanes and safe points of
// a round (membership.zig), and about the decisions that the member has seen (operation.zig). A
// question may lie behind many other messages, which other members can cause; so the member's time
// begins when the question has left the coordinator. A healthy engine answers at once: a member
// that does not answer within the silence limit is removed. A member that has not answered after
// twelve silence limits is removed even if the question has not left.

/// Silence limits after which a member that has not answered is removed, even if the question has
/// not left or the answer lies unread at the coordinator.
const asked_silences_max = 12;

pub const Asked = struct {
    /// The time at which the question was asked; of several questions that have not left, that of
    /// the first.
    at: Instant = 0,
    /// The last time at which the question had not left for the peer.
    since: Instant = 0,
    /// The question has left when the connection has sent this many bytes.
    mark: u64 = 0,
    has_left: bool = true,

    /// Notes that a question is asked. A question asked before the last one has left gives the peer
    /// no more time.
    pub fn ask(asked: *Asked, peer: *const Peer, now: Instant) void {
        asked.look(peer, now);
        if (asked.has_left) asked.at = now;
        asked.put(peer, now);
    }

    fn put(asked: *Asked, peer: *const Peer, now: Instant) void {
        asked.since = now;
        asked.mark = if (peer.connection) |connection| connection.stream.told_bytes() else 0;
        asked.has_left = false;
    }

    /// At a tick: whether the answer is overdue, so that the member must go. `late`: the
    /// coordinator was frozen or the disk holds up the question, so the member's time begins anew.
    pub fn is_overdue(
        asked: *Asked,
        peer: *const Peer,
        now: Instant,
        silence_ns: u64,
        late: bool,
    ) bool {
        if (late) {
            asked.at = now;
            asked.put(peer, now);
        }
        asked.look(peer, now);
        if (now -| asked.at >= asked_silences_max *| silence_ns) return true;
        // The answer may lie behind a message that the coordinator has left unread for a while.
        const could_answer = @max(asked.since, peer.unread_until);
        return asked.has_left and now -| could_answer >= silence_ns;
    }

    fn look(asked: *Asked, peer: *const Peer, now: Instant) void {
        if (asked.has_left) return;
        const connection = peer.connection orelse return;
        // A new connection counts its bytes anew, so `mark` may be beyond its last byte.
        asked.mark = @min(asked.mark, connection.stream.told_bytes());
        asked.has_left = connection.stream.sent_bytes >= asked.mark;
        if (!asked.has_left) asked.since = now;
    }
};

test "a question that does not leave is overdue after twelve silence limits, asked anew or not" {
    const silence_ns = 1000;
    var peer: Peer = .{ .id = .from_int(1), .connection = null, .instance = 0, .last_heard = 0 };
    var asked: Asked = .{};
    asked.ask(&peer, 500);
    for (1..12) |count| {
        asked.ask(&peer, 500 + count * silence_ns);
        try std.testing.expect(!asked.is_overdue(
            &peer,
            500 + count * silence_ns,
            silence_ns,
            false,
        ));
    }
    const last = 500 + asked_silences_max * silence_ns;
    try std.testing.expect(!asked.is_overdue(&peer, last - 1, silence_ns, false));
    try std.testing.expect(asked.is_overdue(&peer, last, silence_ns, false));
}
