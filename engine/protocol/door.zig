//! door: connections come in, and their first bytes say who they are. Strangers have few places, so
//! some must go where many come (base/places.zig). The messages of a peer afterwards: hearing.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const departures = @import("departures.zig");
const losses = @import("losses.zig");
const post = @import("post.zig");
const Connection = @import("peer.zig").Connection;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const limits = base.limits;

/// A connection came in. Null: no memory, or no place that could be made; the driver closes it.
pub fn accept(run: *Run, now: Instant, source: base.Source) ?*Connection {
    if (!make_place(run, now, source)) {
        run.strangers_refused += 1;
        return null;
    }
    run.connections.ensureUnusedCapacity(run.gpa, 1) catch return null;
    const connection = run.gpa.create(Connection) catch return null;
    connection.* = .{
        .stream = .init_bounded(run.gpa, &run.memory),
        .since = now,
        .source = source,
        .shared = &run.shared,
    };
    run.connections.appendAssumeCapacity(connection);
    return connection;
}

/// Strangers have few places, and each member that is away has one besides: that of a member is
/// never a stranger's (base/places.zig).
fn make_place(run: *Run, now: Instant, source: base.Source) bool {
    run.shared.door_at = now;
    run.due_at = @min(run.due_at, now +| limits.stranger_ns_max);
    var taken: usize = 0;
    for (run.connections.items) |item| taken += @intFromBool(item.stranger() != null);
    var door: base.places.Door = .{ .places = limits.strangers_max };
    for (run.peers.items) |peer| door.expected += @intFromBool(peer.connection == null);
    const is_known = for (run.peers.items) |peer| {
        if (base.places.same_network(peer.source, source)) break true;
    } else false;
    switch (door.answer(&run.prng, taken, is_known)) {
        .enter => return true,
        .turn_away => return false,
        .make_room => {},
    }
    while (taken >= door.places + door.expected) : (taken -= 1) {
        const items = run.connections.items;
        const guest = base.places.draw(Connection, items, Connection.stranger, &run.prng) orelse
            return false;
        run.strangers_refused += 1;
        guest.doom("others wait for its place");
    }
    losses.sweep(run, now);
    return true;
}

/// The answer to a question is worth a place for a moment.
fn ask(run: *Run, now: Instant, connection: *Connection) void {
    var taken: usize = 0;
    for (run.connections.items) |item| taken += @intFromBool(item.asker() != null);
    if (taken >= limits.statuses_max) {
        const items = run.connections.items;
        const guest = base.places.draw(Connection, items, Connection.asker, &run.prng).?;
        run.strangers_refused += 1;
        guest.doom("others ask for the status");
    }
    connection.state = .status;
    connection.since = now;
    run.due_at = @min(run.due_at, now +| limits.status_ns_max);
}

pub fn greet(run: *Run, now: Instant, connection: *Connection) void {
    const bytes = connection.stream.take_raw(wire.hello.hello_bytes) orelse return;
    const hello = wire.hello.decode(bytes) catch |err| switch (err) {
        error.VersionMismatch => return refuse(run, connection, .version_mismatch),
        // Whoever does not speak PCCL gets no answer.
        error.NotPccl, error.BadValue => {
            run.strangers_refused += 1;
            connection.doom("it does not speak PCCL");
            return;
        },
    };
    // In a time that does not tell how much of it was right.
    if (!std.crypto.timing_safe.eql(base.RunId, hello.run_id, run.options.run_id))
        return refuse(run, connection, .wrong_run);
    switch (hello.purpose) {
        .lane, .probe => return refuse(run, connection, .wrong_peer),
        .status => ask(run, now, connection),
        .control => {
            // It stands for nobody, so nobody can be it.
            if (hello.from.eql(.none)) return refuse(run, connection, .refused);
            // The same of processes; a journal relies on it, too.
            if (hello.instance == 0) return refuse(run, connection, .refused);
            const known = run.peer_of(hello.from);
            if (known) |peer| {
                // Only members are known while they are away, and only their processes come
                // back as them.
                if (peer.instance != hello.instance) {
                    const taken = peer.connection != null;
                    return refuse(run, connection, if (taken) .refused else .held);
                }
                come_back(run, now, peer, connection);
            } else {
                const room = run.peers.items.len < limits.peers_max;
                if (!room) return refuse(run, connection, .full);
                peer_add(run, now, connection, &hello) catch return refuse(run, connection, .full);
            }
        },
    }
    connection.stream.send_raw(&wire.hello.encode_answer(.welcome)) catch {
        connection.doom("out of memory");
        return;
    };
    if (connection.state == .peer) post.send_on(run, connection, .{ .welcome = .{
        .heartbeat_ns = run.options.heartbeat_ns,
        .silence_ns = run.options.silence_ns,
        .window_bytes = run.options.window_bytes,
        .windows_bytes = run.options.windows_bytes,
        .chunk_bytes = run.options.chunk_bytes,
        .lanes = run.options.lanes,
        .stall_warning_ns = run.options.stall_warning_ns,
    } });
}

fn refuse(run: *Run, connection: *Connection, verdict: wire.hello.Verdict) void {
    run.strangers_refused += 1;
    connection.state = .refused;
    // Without memory for the answer it is closed without one.
    connection.stream.send_raw(&wire.hello.encode_answer(verdict)) catch {};
    connection.doom(@tagName(verdict));
}

fn peer_add(
    run: *Run,
    now: Instant,
    connection: *Connection,
    hello: *const wire.hello.Hello,
) !void {
    try run.peers.ensureUnusedCapacity(run.gpa, 1);
    const peer = try run.gpa.create(Peer);
    peer.* = .{
        .id = hello.from,
        .instance = hello.instance,
        .connection = connection,
        .source = connection.source,
        .last_heard = now,
        .idle_since = now,
    };
    run.peers.appendAssumeCapacity(peer);
    connection.peer = peer;
    connection.state = .peer;
    run.due_at = @min(run.due_at, now +| limits.idle_ns_max);
    // Its label comes with its first wish.
    run.log(.info, "peer {s} is connected", .{hello.from.short()});
}

/// A peer has a new connection; it knows that the old one is dead, if we do not.
fn come_back(
    run: *Run,
    now: Instant,
    peer: *Peer,
    connection: *Connection,
) void {
    if (peer.connection) |old| {
        const why = "its peer has another one";
        if (old.has_answered) peer.away_since = now;
        losses.disconnect(run, peer);
        for (run.groups.items) |group| departures.gone_away(run, group, now, peer, why);
        old.doom(why);
    }
    peer.connection = connection;
    peer.source = connection.source;
    peer.last_heard = now;
    peer.idle_since = now;
    peer.forget_witnesses(std.math.maxInt(Instant));
    connection.peer = peer;
    connection.state = .peer;
    run.log(.info, "peer {f} is connected again", .{peer.named()});
}

/// A member that a journal names.
pub fn away_peer(
    run: *Run,
    now: Instant,
    id: PeerId,
    instance: u64,
) Allocator.Error!*Peer {
    if (run.peer_of(id)) |peer| {
        peer.instance = instance; // another one has been lost before
        return peer;
    }
    try run.peers.ensureUnusedCapacity(run.gpa, 1);
    const peer = try run.gpa.create(Peer);
    peer.* = .{
        .id = id,
        .instance = instance,
        .connection = null,
        .last_heard = now,
        .away_since = now +| run.options.silence_ns,
    };
    run.peers.appendAssumeCapacity(peer);
    return peer;
}
