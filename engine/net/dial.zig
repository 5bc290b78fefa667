//! dial: a socket on its way to another peer, or to the coordinator again (a name to look up, one
//! address after the other), or connected. The coordinator tells the addresses of peers in numbers.
//! peer_engine.zig acts on the result.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const session = @import("session");
const address = @import("address.zig");
const clock = @import("clock.zig");
const resolver = @import("resolver.zig");
const socket = @import("socket.zig");
const tcp = @import("tcp.zig");
const Connection = @import("connection.zig").Connection;
const Connections = @import("connection.zig").Connections;
const HeldPort = @import("fixture.zig").HeldPort;
const Instant = base.Instant;

/// Belongs to a session.Lane from dial or accept until it is closed; lane.driver is its address.
/// One to the coordinator lasts until it is connected.
pub const Carrier = struct {
    /// Null: the coordinator.
    lane: ?*session.Lane,
    /// The socket; null while there is none.
    connection: ?*Connection = null,
    state: State,
    lookup: ?*resolver.Lookup = null,
    addresses: address.AddressList = .{},
    tried: usize = 0,
    /// When the address under way is given up for the next one.
    deadline: Instant = base.never,
    /// How much of its bytes may leave.
    out: tcp.Pacer = .{},
    before: tcp.CongestionBefore = .{},
    /// Both ends are on this machine; null: nobody has looked.
    is_within: ?bool = null,
    /// Why the last address has come to nothing.
    why: wire.Dialed = .no_address,

    pub const State = enum { resolving, connecting, open };

    /// In a connection, in the place of a carrier: the connection to the coordinator.
    pub const control_owner = 0;

    /// Gives a turn to the lanes that wait for their buckets (tcp.Pacer).
    pub fn go_on_paced(connections: *Connections) void {
        for (connections.all.items) |connection| {
            if (connection.owner == control_owner) continue;
            const carrier: *Carrier = @ptrFromInt(connection.owner);
            if (carrier.out.waits) connections.queue(connection);
            carrier.out.waits = false;
        }
    }

    pub const Step = enum { pending, failed };

    /// Begins to connect. `failed`: there is no way.
    pub fn start(carrier: *Carrier, now: Instant, connections: *Connections, to: []const u8) Step {
        const endpoint = address.Endpoint.parse(to) catch return .failed;
        if (address.numeric(endpoint)) |list| {
            carrier.addresses = list;
            return carrier.connect_next(now, connections);
        }
        // A coordinator that names another host for a peer has it looked up by nobody here.
        if (carrier.lane != null) return .failed;
        const wake_fd = connections.poller.waker.write_fd;
        carrier.lookup = resolver.Lookup.start(endpoint, wake_fd) catch return .failed;
        return .pending;
    }

    /// Looks whether a name is found or an address takes too long.
    pub fn step(carrier: *Carrier, now: Instant, connections: *Connections) Step {
        switch (carrier.state) {
            .resolving => {
                const lookup = carrier.lookup orelse return .failed;
                if (!lookup.done.is_set()) return .pending;
                const result = lookup.result;
                carrier.forget_lookup();
                carrier.addresses = result catch return .failed;
                return carrier.connect_next(now, connections);
            },
            .connecting => {
                if (now < carrier.deadline) return .pending;
                if (carrier.connection != null) carrier.why = .no_answer;
                return carrier.connect_next(now, connections);
            },
            .open => return .pending,
        }
    }

    pub const Connected = enum { open, pending, failed };

    /// The socket has something to say.
    pub fn connected(carrier: *Carrier, now: Instant, connections: *Connections) Connected {
        const connection = carrier.connection.?;
        if (!connection.writable) return .pending;
        socket.connect_finish(connection.fd) catch |err| {
            carrier.why = why_of(err);
            return switch (carrier.connect_next(now, connections)) {
                .pending => .pending,
                .failed => .failed,
            };
        };
        carrier.state = .open;
        carrier.deadline = base.never;
        return .open;
    }

    fn connect_next(carrier: *Carrier, now: Instant, connections: *Connections) Step {
        carrier.hang_up(connections);
        while (carrier.tried < carrier.addresses.count) {
            const to = &carrier.addresses.items[carrier.tried];
            carrier.tried += 1;
            const fd = socket.connect_start(to) catch |err| {
                carrier.why = why_of(err);
                continue;
            };
            if (carrier.lane) |lane| if (socket.local_address(fd)) |from|
                session.lanes.dials_from(lane, from.source());
            carrier.why = .no_sockets;
            carrier.connection = connections.add(fd, @intFromPtr(carrier)) catch return .failed;
            carrier.state = .connecting;
            carrier.deadline = now + base.limits.dial_ns_max;
            return .pending;
        }
        return .failed;
    }

    const Failure = socket.OpenError || socket.ConnectError;

    fn why_of(err: Failure) wire.Dialed {
        return switch (err) {
            error.Refused => .refused,
            error.Unreachable, error.FamilyUnsupported => .unreachable_host,
            error.SystemLimit => .no_sockets,
        };
    }

    /// Lets go of everything but the memory.
    pub fn end(carrier: *Carrier, connections: *Connections) void {
        carrier.forget_lookup();
        carrier.hang_up(connections);
    }

    fn hang_up(carrier: *Carrier, connections: *Connections) void {
        if (carrier.connection) |connection| connections.close(connection);
        carrier.connection = null;
    }

    fn forget_lookup(carrier: *Carrier) void {
        if (carrier.lookup) |lookup| lookup.release();
        carrier.lookup = null;
    }
};

test "each address has its time, one after the other, and one that is open has no end" {
    var connections = try Connections.init(std.testing.allocator, .default);
    defer connections.deinit();
    const held = try HeldPort.init();
    defer held.deinit();
    try held.listen();
    var carrier: Carrier = .{ .lane = null, .state = .resolving };
    defer carrier.end(&connections);
    carrier.addresses = .{ .count = 2 };
    for (carrier.addresses.items[0..2]) |*item| item.* = held.at;
    for (0..2) |tried| {
        try std.testing.expectEqual(.pending, carrier.connect_next(100, &connections));
        try std.testing.expectEqual(tried + 1, carrier.tried);
        try std.testing.expectEqual(100 + base.limits.dial_ns_max, carrier.deadline);
    }
    const connection = carrier.connection.?;
    while (!connection.writable) {
        try connections.poller.prepare();
        connections.note(connections.poller.wait(base.never));
        connections.bury();
    }
    try std.testing.expectEqual(.open, carrier.connected(200, &connections));
    try std.testing.expectEqual(base.never, carrier.deadline);
    // One that has waited for its bucket gets a turn, once.
    while (connections.next_ready()) |_| {}
    carrier.out.waits = true;
    for (0..2) |_| Carrier.go_on_paced(&connections);
    try std.testing.expectEqual(connection, connections.next_ready().?);
    try std.testing.expectEqual(null, connections.next_ready());
    try std.testing.expectEqual(.failed, carrier.connect_next(300, &connections));
}

test "the name of a peer is looked up by nobody" {
    var connections = try Connections.init(std.testing.allocator, .default);
    defer connections.deinit();
    var lane: session.Lane = undefined;
    var carrier: Carrier = .{ .lane = &lane, .state = .resolving };
    try std.testing.expectEqual(.failed, carrier.start(0, &connections, "localhost:1"));
    try std.testing.expectEqual(null, carrier.lookup);
}
