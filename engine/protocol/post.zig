//! post: how peers are told something. A message goes into the queue of the peer's connection, or
//! waits on it for the record that it relies on (hold.zig). A peer that is away is told nothing: it
//! hears everything when it comes back. The limit on all queues together: queues.zig.

const std = @import("std");
const wire = @import("wire");
const queues = @import("queues.zig");
const Connection = @import("peer.zig").Connection;
const Epoch = @import("epoch.zig").Epoch;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Subject = @import("hold.zig").Subject;
const Allocator = std.mem.Allocator;
const control = wire.control;

/// Sends what is about a group, if the peer has named that on its connection.
pub fn send(run: *Run, peer: *const Peer, group: u16, message: control.Message) void {
    if (peer.is_present(group)) say(run, peer, message);
}

/// Sends what is not about a group that the peer has named.
pub fn say(run: *Run, peer: *const Peer, message: control.Message) void {
    if (peer.connection) |connection| send_on(run, connection, message);
}

pub fn send_on(run: *Run, connection: *Connection, message: control.Message) void {
    var once: Circular = .{ .message = &message };
    once.send_on(run, connection);
}

/// All members of an epoch.
pub fn broadcast(run: *Run, epoch: *const Epoch, message: control.Message) void {
    const load: wire.Stream.Load = if (epoch.settling) .bulk else .usual;
    var circular: Circular = .{ .message = &message, .load = load };
    for (epoch.members) |*member| {
        if (member.peer) |peer| circular.send(run, epoch.group, peer);
    }
}

/// One message to several peers, encoded for the first of them only.
pub const Circular = struct {
    message: *const control.Message,
    load: wire.Stream.Load = .usual,
    /// In the stream, or the hold, of the first, which is told nothing else meanwhile.
    encoded: ?wire.Queue.Encoded = null,

    pub fn send(circular: *Circular, run: *Run, group: u16, peer: *const Peer) void {
        if (!peer.is_present(group)) return;
        if (peer.connection) |connection| circular.send_on(run, connection);
    }

    fn send_on(circular: *Circular, run: *Run, connection: *Connection) void {
        if (connection.doomed != null) return; // it would hear the end of something
        circular.put(run, connection) catch
            return connection.doom(if (connection.hold.is_full(&connection.stream, circular.load))
                "it does not read what it is told, and more does not wait for it"
            else
                no_room);
        run.host.vtable.wake(run.host.ctx, connection);
        queues.keep_budget(run);
    }

    fn put(circular: *Circular, run: *const Run, connection: *Connection) Allocator.Error!void {
        const stream = &connection.stream;
        const hold = &connection.hold;
        const load = circular.load;
        if (hold.is_full(stream, load)) return error.OutOfMemory;
        if (held_until(run, connection, circular.message)) |until| {
            const now = run.last_tick;
            circular.encoded =
                try hold.keep(stream, now, until, circular.message, load, circular.encoded);
        } else if (circular.encoded) |*encoded| {
            try stream.append_encoded(encoded, load);
        } else {
            circular.encoded = try stream.append(circular.message, load);
        }
    }
};

const no_room = "its messages do not fit into memory any more";

/// The record that a message has to wait for on this connection; null if it may leave.
fn held_until(
    run: *const Run,
    connection: *const Connection,
    message: *const control.Message,
) ?u64 {
    const subject: Subject = .of(message);
    const recorded = switch (subject) {
        .nothing, .order => 0,
        .group => |id| run.recorded_of(id, null),
        .epoch => |epoch| run.recorded_of(epoch.group, epoch.number),
    };
    const until = @max(recorded, connection.hold.behind(subject));
    return if (run.waits(until)) until else null;
}

/// Messages that waited for this record, or an earlier one, may be heard.
pub fn release(run: *Run, connection: *Connection, settled: u64) void {
    const any = connection.hold.release(settled, &connection.stream) catch
        return connection.doom(no_room);
    if (any) run.host.vtable.wake(run.host.ctx, connection);
}
