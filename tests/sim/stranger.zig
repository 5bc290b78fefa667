//! Stranger: an attacker that is not a peer of this run, and its actions. Class `strangers`
//! connects and talks, which must cost nobody anything, not even a call: worlds with nothing else
//! are calm. Class `eavesdropper` is on the path, too: it cuts connections where that hurts, and
//! plays recorded bytes again. excused.zig says what it never does, because keys alone could
//! prevent it.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const faults = @import("faults.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const Connection = world_file.Connection;
const NodeIndex = world_file.NodeIndex;
const Prng = base.Prng;
const World = world_file.World;
const nobody = world_file.nobody;

const words_max = 4096;
/// Longest address that a newcomer may have. It is found there, and nobody answers who dials it.
pub const long_address = "a" ** (base.limits.address_bytes_max - 2) ++ ":1";

/// The words of one that has the run id, or not.
pub const Words = enum {
    noise,
    /// The first words of a hello, then noise.
    magic,
    /// A part of a hello, and no more.
    half,
    /// A hello of another run.
    foreign,
    /// Asks for the status, perhaps many times.
    status,
    /// As a peer of an id that nobody knows, then noise.
    control,
    /// A lane under an id that nobody knows, then frames that others have sent.
    lane,
    nothing,
    // Only transcripts say these: who says them has the token, and may make others wait.
    /// A hello as of a peer, which joins nothing.
    greet,
    /// As a newcomer with a long address, which opens no lane.
    join,
    /// The same to a group that nobody else is in.
    begin_group,
};

/// The words of strangers who harm nobody.
const drawn = [_]Words{ .noise, .magic, .half, .foreign, .status, .control, .lane, .nothing };

pub const Manner = enum {
    drawn,
    hangs_up,
    stays,
    reads_nothing,
    /// They stay, and heartbeats say so; the second reads nothing.
    beats,
    beats_unread,
};

/// Somebody connects and talks.
pub fn strike(world: *World, prng: *Prng) void {
    const somebody = if (prng.chance(2)) null else faults.pick_peer(world, prng);
    const to: NodeIndex = if (somebody) |node| node.index else world_file.coordinator_index;
    call_on(world, prng, to, drawn[prng.below(drawn.len)], .drawn);
}

/// A stranger connects to a node, says these words, and then hangs up, stays, or stops reading.
pub fn call_on(world: *World, prng: *Prng, to: NodeIndex, words: Words, manner: Manner) void {
    var bytes: [words_max]u8 = undefined;
    world.note("a stranger calls on {d}: {t}", .{ to, words });
    const connection = connect(world, prng, to, say(world, prng, to, words, &bytes), manner);
    connection.is_looked_after = to != world_file.coordinator_index;
}

/// How long a peer may keep somebody who has not said who it is, and a tick or two.
const stays_ns_max = base.limits.stranger_ns_max + 2 * std.time.ns_per_s;

/// A peer has let it in: it must be gone in time, on the clock of the peer.
pub fn let_in(world: *World, connection: *const Connection) void {
    look_after(world, connection, stays_ns_max);
}

fn look_after(world: *World, connection: *const Connection, ns: u64) void {
    const node = &world.nodes[connection.ends[1].node];
    const until = node.here() + ns;
    world.at(node.global(until), .{ .stranger_due = .{
        .connection = connection.index,
        .until = until,
    } });
}

pub const Due = struct { connection: u32, until: base.Instant };

pub fn due(world: *World, body: Due) void {
    const connection = world.connections.items[body.connection];
    const there = &connection.ends[1];
    if (there.state != .open) return;
    const node = &world.nodes[there.node];
    // One that was stopped a moment ago has not looked yet.
    const ago_ns = std.time.ns_per_s;
    const is_early = node.here() < body.until; // its clock has stood still
    if (is_early or node.is_frozen() or node.thawed_at + ago_ns > world.now)
        return look_after(world, connection, 5 * ago_ns);
    world.checkers.fail(.leak, "p{d} still has a stranger's connection {d}", .{
        node.index,
        connection.index,
    });
}

/// So many are gone, those that came first.
pub fn hang_up(world: *World, count: u32) void {
    var left = count;
    for (world.connections.items) |connection| {
        if (left == 0) break;
        const here = &connection.ends[0];
        if (here.what != .stranger or here.state == .closed) continue;
        here.state = .closed;
        world.finish_pipe(.{ .connection = connection.index, .side = 0 });
        left -= 1;
    }
}

/// A heartbeat of one that stays, and the next.
pub fn beat(world: *World, index: u32) void {
    const connection = world.connections.items[index];
    if (connection.ends[0].state == .closed or connection.pipes[0].finished) return;
    const message: wire.control.Message = .{ .heartbeat = .{
        .number = 1,
        .bytes_sent = 0,
        .bytes_received = 0,
    } };
    var bytes: [64]u8 = undefined;
    const said = wire.control.encode(message, &bytes) catch unreachable;
    // A window that is closed has room for none, and nobody misses it.
    if (connection.pipes[0].room() >= said.len)
        _ = connection.pipes[0].write(world.now, &world.prng_network, said);
    world.schedule_delivery(connection, 0);
    world.after(world.config.heartbeat_ns, .{ .stranger_beats = index });
}

fn connect(
    world: *World,
    prng: *Prng,
    to: NodeIndex,
    bytes: []const u8,
    manner: Manner,
) *Connection {
    const connection = world.connect(nobody, to, to == world_file.coordinator_index);
    connection.ends[0] = .{ .node = nobody, .state = .open, .what = .stranger };
    _ = connection.pipes[0].write(world.now, &world.prng_network, bytes);
    world.after(connection.pipes[0].shape.delay_ns, .{ .accepted = connection.index });
    const drawn_manners = [_]Manner{ .hangs_up, .hangs_up, .stays, .reads_nothing };
    switch (if (manner == .drawn) drawn_manners[prng.below(drawn_manners.len)] else manner) {
        .drawn => unreachable,
        .hangs_up => world.finish_pipe(.{ .connection = connection.index, .side = 0 }),
        .stays => {},
        // The bytes sent to it stay where they are.
        .reads_nothing => connection.pipes[1].stalled_until = base.never,
        .beats, .beats_unread => |kind| {
            if (kind == .beats_unread) connection.pipes[1].stalled_until = base.never;
            world.after(world.config.heartbeat_ns, .{ .stranger_beats = connection.index });
        },
    }
    return connection;
}

/// The group of the first user, or one that nobody else names. Answers how many bytes that is.
fn ask_to_join(own_group: ?u64, bytes: []u8) usize {
    var name: [16]u8 = undefined;
    const group = if (own_group) |number|
        std.fmt.bufPrint(&name, "{x}", .{number}) catch unreachable
    else
        users.group_names[0];
    var length: usize = 0;
    for ([_]wire.control.Message{ .{ .join = .{
        .name = .of(group),
        .address = .of(long_address),
        .initial_world_size = 0,
        .round = 0,
        .stop_round = 0,
        .address_key = @splat(0),
    } }, .{ .join_end = .{} } }) |message| {
        length += (wire.control.encode(message, bytes[length..]) catch unreachable).len;
    }
    return length;
}

fn say(world: *World, prng: *Prng, to: NodeIndex, words: Words, bytes: *[words_max]u8) []u8 {
    const noise_bytes = prng.below(300);
    for (bytes[0 .. wire.hello.hello_bytes + noise_bytes]) |*byte| byte.* = @truncate(prng.next());
    var hello: wire.hello.Hello = .{
        .purpose = .lane,
        .lane = @truncate(prng.below(4)),
        .run_id = world_file.run_id,
        .from = .from_int(@as(u128, prng.next()) << 64 | 1 << 63),
        .to = world.nodes[to].id,
        .instance = prng.next(),
    };
    const hello_bytes = wire.hello.hello_bytes;
    const rest = bytes[hello_bytes..];
    switch (words) {
        .nothing => return bytes[0..0],
        .noise => return bytes[0..noise_bytes],
        .magic, .half => {
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            return bytes[0..if (words == .half) prng.below(hello_bytes) else 8 + noise_bytes];
        },
        .foreign => {
            hello.run_id[prng.below(16)] +%= 1;
            if (to == world_file.coordinator_index) hello.purpose = .control;
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            return bytes[0 .. hello_bytes + noise_bytes];
        },
        .status => {
            hello.purpose = .status;
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            const ask: wire.control.Message = .{ .status_request = .{} };
            const request = wire.control.encode(ask, rest) catch unreachable;
            const times = if (prng.chance(2)) 1 else prng.between(2, 40);
            for (1..times) |time| @memcpy(rest[time * request.len ..][0..request.len], request);
            return bytes[0 .. hello_bytes + times * request.len];
        },
        .control => {
            hello.purpose = .control;
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            return bytes[0 .. hello_bytes + noise_bytes];
        },
        .lane => {
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            var length: usize = hello_bytes;
            for (0..prng.below(8)) |_| {
                const heard = world.overheard orelse break;
                const frame = heard.frames.pick(prng) orelse break;
                if (length + frame.len > bytes.len) break;
                @memcpy(bytes[length..][0..frame.len], frame);
                length += frame.len;
            }
            return bytes[0..length];
        },
        .greet => {
            hello.purpose = .control;
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            return bytes[0..hello_bytes];
        },
        .join, .begin_group => {
            hello.purpose = .control;
            bytes[0..hello_bytes].* = wire.hello.encode(hello);
            const own = if (words == .begin_group) hello.instance else null;
            return bytes[0 .. hello_bytes + ask_to_join(own, rest)];
        },
    }
}

/// Whoever reads along, and can cut. False if there was nothing to do it to.
pub fn eavesdrop(world: *World, prng: *Prng) bool {
    switch (prng.below(3)) {
        0 => return cut(world, prng),
        1 => return replay(world, prng),
        else => return splice(world, prng),
    }
}

/// A connection ends while a message or a frame is half there.
fn cut(world: *World, prng: *Prng) bool {
    const all = world.connections.items;
    const first = prng.below(@max(1, all.len));
    for (0..all.len) |offset| {
        const connection = all[(first + offset) % all.len];
        if (connection.ends[0].state != .open or connection.ends[1].state != .open) continue;
        if (connection.ends[0].node == nobody) continue;
        const inside = for (&connection.ears) |*ear| {
            if (ear.unfinished() > 0) break true;
        } else for (&connection.pipes) |*pipe| {
            if (pipe.length > 0) break true;
        } else false;
        if (!inside) continue;
        world.note("an eavesdropper cuts connection {d}", .{connection.index});
        world.reset(connection);
        return true;
    }
    return false;
}

/// The beginning of a connection of somebody else is sent again, hello and all.
fn replay(world: *World, prng: *Prng) bool {
    const heard = world.overheard orelse return false;
    const recording = heard.pick_recording(prng, prng.chance(2)) orelse return false;
    if (recording.to == nobody or world.nodes[recording.to].state != .up) return false;
    const bytes = recording.slice();
    world.note("connection {d} is played again", .{recording.connection});
    _ = connect(world, prng, recording.to, bytes[0..prng.between(1, bytes.len)], .drawn);
    return true;
}

/// Sends what two peers have sent to one node, one behind the other, under an id that nobody knows.
fn splice(world: *World, prng: *Prng) bool {
    const heard = world.overheard orelse return false;
    const one = heard.pick_recording(prng, false) orelse return false;
    const other = heard.pick_recording(prng, prng.chance(4)) orelse return false;
    if (one.to == nobody or world.nodes[one.to].state != .up) return false;
    var bytes: [wire.hello.hello_bytes + 2 * 2048]u8 = undefined;
    bytes[0..wire.hello.hello_bytes].* = wire.hello.encode(.{
        .purpose = .lane,
        .run_id = world_file.run_id,
        .from = .from_int(@as(u128, prng.below(100)) << 64 | 1 << 63),
        .to = world.nodes[one.to].id,
    });
    var length: usize = wire.hello.hello_bytes;
    for ([_][]const u8{ one.tail(prng), other.tail(prng) }) |tail| {
        @memcpy(bytes[length..][0..tail.len], tail);
        length += tail.len;
    }
    world.note("connections {d} and {d} are spliced", .{ one.connection, other.connection });
    _ = connect(world, prng, one.to, bytes[0..length], .drawn);
    return true;
}
