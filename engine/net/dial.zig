//! dial: how this process connects to the coordinator and to other peers: it looks a name up, on a
//! thread of its own, and tries one address after the other.
//!
//! `connect` runs on the thread of the user that waits for the connection (create, status).
//! `connect` tries again, with growing pauses, until a deadline; the user may interrupt it at any
//! time. A `Carrier` never blocks: it belongs to an engine, which acts on the result
//! (peer_engine.zig), and dials each address once. The coordinator tells the addresses of peers in
//! numbers, so names of peers are not looked up.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const session = @import("session");
const address = @import("address.zig");
const clock = @import("clock.zig");
const descriptor = @import("descriptor.zig");
const lock = @import("lock.zig");
const log = @import("log.zig");
const socket = @import("socket.zig");
const tcp = @import("tcp.zig");
const thread = @import("thread.zig");
const Connection = @import("connection.zig").Connection;
const Connections = @import("connection.zig").Connections;
const HeldPort = @import("fixture.zig").HeldPort;
const Interrupt = lock.Interrupt;
const Instant = base.Instant;
const c = std.c;
const assert = std.debug.assert;
const ms = std.time.ns_per_ms;

// ---- names

/// Looks a name up on a thread of its own, because a lookup may block for many seconds and cannot
/// be stopped. The asker may lose interest at any time, so the thread and the asker both hold the
/// lookup: the last of them to release the lookup frees it. A lookup is allocated from libc,
/// because no engine owns it.
const Lookup = struct {
    references: std.atomic.Value(u32) = .init(2),
    host_storage: [base.limits.address_bytes_max]u8,
    host_length: usize,
    port: u16,
    /// A copy of the descriptor that wakes the engine that asked, or -1.
    wake_fd: c.fd_t,
    done: lock.Signal = .{},
    /// The addresses of the name, valid once `done` is set.
    result: address.LookUpError!address.AddressList = error.NameLookupFailed,

    const Error = error{ OutOfMemory, ThreadLimit, BadAddress };

    /// Starts a lookup. `wake_fd` (an eventfd or the writing end of a pipe) is written to when the
    /// answer is there; -1: no descriptor.
    fn start(endpoint: address.Endpoint, wake_fd: c.fd_t) Error!*Lookup {
        const host = endpoint.host;
        if (host.len > base.limits.address_bytes_max) return error.BadAddress;
        const lookup = try std.heap.c_allocator.create(Lookup);
        errdefer std.heap.c_allocator.destroy(lookup);
        lookup.* = .{
            .host_storage = undefined,
            .host_length = host.len,
            .port = endpoint.port,
            .wake_fd = if (wake_fd < 0) -1 else descriptor.duplicate(wake_fd),
        };
        errdefer lookup.close_wake();
        @memcpy(lookup.host_storage[0..host.len], host);
        (try thread.spawn("pccl-resolver", lookup, run)).detach();
        return lookup;
    }

    fn release(lookup: *Lookup) void {
        if (lookup.references.fetchSub(1, .acq_rel) > 1) return;
        lookup.close_wake();
        std.heap.c_allocator.destroy(lookup);
    }

    fn run(lookup: *Lookup) void {
        const host = lookup.host_storage[0..lookup.host_length];
        lookup.result = address.look_up(.{ .host = host, .port = lookup.port }, .{});
        lookup.done.set();
        if (lookup.wake_fd >= 0) {
            const one: u64 = 1;
            _ = c.write(lookup.wake_fd, std.mem.asBytes(&one), @sizeOf(u64));
        }
        lookup.release();
    }

    fn close_wake(lookup: *Lookup) void {
        if (lookup.wake_fd >= 0) socket.close(lookup.wake_fd);
        lookup.wake_fd = -1;
    }
};

// ---- on the user's thread

pub const ConnectError = address.LookUpError || Lookup.Error || socket.ConnectError ||
    socket.OpenError || error{Interrupted};

pub const ConnectOptions = struct {
    deadline: Instant,
    interrupt: Interrupt = .{},
    /// The seed of the pauses, which spread the attempts of many peers that start at once.
    seed: u64,
};

const pause_ns_first = 20 * ms;
const pause_ns_max = 400 * ms;

/// Connects to `endpoint`, and returns the socket. An unknown name fails at once. A host that
/// refuses or does not answer is tried again until the deadline, and the log says so once; then the
/// last failure is returned.
pub fn connect(endpoint: address.Endpoint, options: ConnectOptions) ConnectError!socket.Fd {
    const addresses = address.numeric(endpoint) orelse try look_up(endpoint, options);
    var prng = base.Prng.init(options.seed);
    var pause_ns: u64 = pause_ns_first;
    var is_told = false;
    while (true) {
        var failure: ConnectError = error.Unreachable;
        for (addresses.slice()) |*to| {
            if (connect_once(to, options)) |fd| return fd else |err| failure = err;
            if (failure != error.Refused and failure != error.Unreachable) return failure;
        }
        if (clock.now() >= options.deadline) return failure;
        if (!is_told) tell(endpoint, failure);
        is_told = true;
        const until = clock.after(prng.between(pause_ns / 2, pause_ns));
        var nobody: lock.Signal = .{};
        _ = try options.interrupt.wait(&nobody, @min(until, options.deadline));
        pause_ns = @min(pause_ns * 2, pause_ns_max);
    }
}

fn tell(endpoint: address.Endpoint, failure: ConnectError) void {
    log.print(.info, "the coordinator at {f} is not reached: {s}; trying again", .{
        endpoint,
        switch (failure) {
            error.Refused => "the connection was refused",
            else => "no answer, or no route",
        },
    });
}

fn look_up(endpoint: address.Endpoint, options: ConnectOptions) ConnectError!address.AddressList {
    const lookup = try Lookup.start(endpoint, -1);
    defer lookup.release();
    if (!try options.interrupt.wait(&lookup.done, options.deadline)) return error.NameLookupFailed;
    return lookup.result;
}

fn connect_once(to: *const address.Address, options: ConnectOptions) ConnectError!socket.Fd {
    const fd = try socket.connect_start(to);
    errdefer socket.close(fd);
    const deadline = @min(options.deadline, clock.after(base.limits.dial_ns_max));
    if (!try wait_socket(fd, .write, deadline, options.interrupt)) return error.Unreachable;
    try socket.connect_finish(fd);
    return fd;
}

/// Waits until the socket is ready; false if the deadline passed first.
pub fn wait_socket(
    fd: socket.Fd,
    direction: socket.Direction,
    deadline: Instant,
    interrupt: Interrupt,
) error{Interrupted}!bool {
    while (true) {
        const now = clock.now();
        const wait_ns = @min(interrupt.next_look(now, deadline) -| now, std.time.ns_per_hour);
        const wait_ms = std.math.divCeil(u64, wait_ns, ms) catch unreachable;
        if (socket.wait_for(fd, direction, @intCast(wait_ms))) return true;
        if (interrupt.asked()) return error.Interrupted;
        if (clock.now() >= deadline) return false;
    }
}

// ---- on the engine's thread

/// The socket of a session.Lane, from dial or accept until the lane is closed; lane.driver is the
/// address of the carrier. The carrier of a dial to the coordinator lasts until it is connected.
pub const Carrier = struct {
    /// The lane of the socket; null: the carrier dials the coordinator.
    lane: ?*session.Lane,
    /// The socket; null while there is none.
    connection: ?*Connection = null,
    state: State,
    lookup: ?*Lookup = null,
    addresses: address.AddressList = .{},
    tried: usize = 0,
    /// When the address being dialed is given up for the next address.
    deadline: Instant = base.never,
    /// Limits how many bytes of the lane may leave now.
    out: tcp.Pacer = .{},
    before: tcp.CongestionBefore = .{},
    /// Whether both ends are on this machine; null: not looked at yet.
    is_within: ?bool = null,
    /// Why the dial of the last address failed.
    why: wire.Dialed = .no_address,

    pub const State = enum { resolving, connecting, open };

    /// The value of `Connection.owner` for the connection to the coordinator; the connection of a
    /// lane has the address of its carrier there.
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

    /// Begins to dial the address `to`; `failed` if no address is left to try.
    pub fn start(carrier: *Carrier, now: Instant, connections: *Connections, to: []const u8) Step {
        const endpoint = address.Endpoint.parse(to) catch return .failed;
        if (address.numeric(endpoint)) |list| {
            carrier.addresses = list;
            return carrier.connect_next(now, connections);
        }
        // A coordinator may not make this process look up a name of its choice for a peer.
        if (carrier.lane != null) return .failed;
        const wake_fd = connections.poller.waker.write_fd;
        carrier.lookup = Lookup.start(endpoint, wake_fd) catch return .failed;
        return .pending;
    }

    /// Goes on when the name was found, or with the next address when this one takes too long.
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

    /// Finds out how the dial ended, after an event of the socket.
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
                session.driver.dials_from(lane, from.source());
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

    /// Releases the lookup and closes the socket; the memory of the carrier stays.
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

// ---- tests

test "localhost is found, and a reserved name is not" {
    const good = try Lookup.start(.{ .host = "localhost", .port = 5 }, -1);
    defer good.release();
    assert(good.done.wait(base.never));
    const list = try good.result;
    try std.testing.expectEqual(5, list.slice()[0].port());

    const bad = try Lookup.start(.{ .host = "no-such-host.invalid", .port = 5 }, -1);
    defer bad.release();
    assert(bad.done.wait(base.never));
    try std.testing.expect(std.meta.isError(bad.result));
}

test "whoever asks may go before the answer comes" {
    const lookup = try Lookup.start(.{ .host = "localhost", .port = 5 }, -1);
    lookup.release();
}

test "a port where nothing listens is tried until the deadline, and then refused" {
    const held = try HeldPort.init();
    defer held.deinit();
    const deadline = clock.after(60 * ms);
    const result = connect(held.endpoint(), .{ .deadline = deadline, .seed = 1 });
    try std.testing.expectError(error.Refused, result);
    try std.testing.expect(clock.now() >= deadline);
}

test "an unknown name fails at once, and a listener that comes late is found" {
    const unknown: address.Endpoint = .{ .host = "no-such-host.invalid", .port = 1 };
    const far = clock.after(30 * std.time.ns_per_s);
    const failed = connect(unknown, .{ .deadline = far, .seed = 1 });
    try std.testing.expect(failed == error.NameNotFound or failed == error.NameLookupFailed);

    const Late = struct {
        asked: u32 = 0,
        held: HeldPort,

        // The interrupt is asked between attempts: at the second question, the port begins to
        // listen.
        fn look(context: ?*anyopaque) callconv(.c) c_int {
            const late: *@This() = @ptrCast(@alignCast(context));
            late.asked += 1;
            if (late.asked == 2) late.held.listen() catch return 1;
            return 0;
        }
    };
    var late: Late = .{ .held = try .init() };
    defer late.held.deinit();
    const fd = try connect(late.held.endpoint(), .{
        .deadline = far,
        .seed = 1,
        .interrupt = .{ .function = Late.look, .context = &late },
    });
    socket.close(fd);
    try std.testing.expect(late.asked >= 2);
}

test "whoever waits may withdraw" {
    const Ask = struct {
        fn now(_: ?*anyopaque) callconv(.c) c_int {
            return 1;
        }
    };
    const held = try HeldPort.init();
    defer held.deinit();
    const result = connect(held.endpoint(), .{
        .deadline = clock.after(30 * std.time.ns_per_s),
        .seed = 1,
        .interrupt = .{ .function = Ask.now },
    });
    try std.testing.expectError(error.Interrupted, result);
    // The interrupt is asked long before the wait would end.
    const interrupt: Interrupt = .{ .function = Ask.now };
    const far = clock.after(20 * std.time.ns_per_s);
    var nobody: lock.Signal = .{};
    try std.testing.expectError(error.Interrupted, interrupt.wait(&nobody, far));
    try std.testing.expect(clock.now() < far);
}

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
    // A carrier that has waited for its bucket gets one turn.
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
