//! Ending: from the end of the faults to the end of the world. First every user must make progress
//! (P6). Then users stop at one place of the program, and a world at rest must hold nothing that
//! only work explains. Then all leave. P2 is judged finally here, when nothing is in flight any
//! more.

const std = @import("std");
const base = @import("base");
const calls = @import("calls.zig");
const checkers_file = @import("checkers.zig");
const splits = @import("splits.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const fmt_key = checkers_file.fmt_key;
const User = users.User;
const World = world_file.World;
const ms = world_file.ms;

/// A lane of somebody whom nobody knows is kept so long, because a member may be told of it first.
const link_lingers_ns = 11 * std.time.ns_per_s;

/// From the end of the faults until everybody has got on.
pub const progress_ns = 100 * std.time.ns_per_s;

pub fn healed(world: *World) void {
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        for (node.users) |*user| {
            // Whoever has left for good may stay away; somebody must be there.
            if (user.state == .left) {
                user.state = .outside;
                users.wake_after(user, 0);
            }
        }
    }
    world.after(50 * ms, .check_progress);
}

/// Has every user of every live peer got on since all is well?
pub fn check_progress(world: *World) void {
    if (world.phase != .healing) return;
    var waiting: ?*User = null;
    for (world.nodes[1..]) |*node| {
        if (node.state == .absent and node.index <= world.peers_started)
            return world.after(50 * ms, .check_progress);
        if (node.state != .up) continue;
        for (node.users) |*user| {
            if (user.clean_rounds == 0 or user.waits_for_paths) waiting = user;
        }
    }
    const user = waiting orelse {
        world.phase = .ending;
        world.note("everybody has got on; users come to an end", .{});
        return step(world);
    };
    if (world.now > world.healed_at + progress_ns) return world.checkers.fail(
        .p6_progress,
        "p{d} group {d} has not got on: it is {t}, in epoch {d}, with {d} calls in flight, " ++
            "waits for paths: {}",
        .{
            user.node.index, user.index,       user.state,
            user.epoch,      user.in_flight(), user.waits_for_paths,
        },
    );
    world.after(50 * ms, .check_progress);
}

/// True at the furthest place of the program that any member has reached.
pub fn reached(user: *const User) bool {
    for (user.world().nodes[1..]) |*node| {
        if (node.state != .up) continue;
        const other = &node.users[user.index];
        if (waits_for(other, user)) return false;
        if (other.epoch == 0 or other.group == null) continue;
        if (other.epoch > user.epoch) return false;
        if (other.epoch == user.epoch and other.round_number > user.round_number) return false;
    }
    return true;
}

/// Whether one waits to pass a safe point together with the other.
fn waits_for(other: *const User, user: *const User) bool {
    if (other == user or other.state != .admitting or !other.is_together) return false;
    if (other.epoch == 0) return true;
    return other.epoch == user.epoch and other.round_number == user.round_number;
}

/// Users stop one by one; when all have, they leave, and when all have left, the world is over.
pub fn step(world: *World) void {
    if (world.phase != .ending) return;
    var busy: ?*User = null;
    var inside: ?*User = null;
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        for (node.users) |*user| switch (user.state) {
            .stopped => inside = user,
            .left => {},
            .outside => user.state = .left,
            // Others may never come to it: they stop at different places.
            .splitting => {
                splits.give_up(user);
                busy = user;
            },
            .joining, .admitting => if (user.epoch > 0) {
                busy = user;
            } else users.come_again(user), // it had got on, and was refused since
            .between, .running => busy = user,
        };
    }
    if (busy) |user| {
        if (world.now > world.healed_at + 2 * progress_ns) return world.checkers.fail(
            .p6_progress,
            "p{d} group {d} does not come to an end: it is {t}, with {d} calls in flight",
            .{ user.node.index, user.index, user.state, user.in_flight() },
        );
        const waits = user.state == .admitting and user.is_together;
        if (waits or user.state == .running or user.state == .between) restart_stopped(world);
        return world.after(50 * ms, .ending);
    }
    if (inside) |user| {
        if (rest(world)) |wait_ns| return world.after(wait_ns, .ending);
        users.leave(user);
        return world.after(world.prng_users.below(20 * ms), .ending);
    }
    world.checkers.check_atomicity();
    for (world.works.items) |work| {
        if (work.node.state == .up and work.state == .running) return world.checkers.fail(
            .p7_bounded_wait,
            "p{d}: {f} never returned",
            .{ work.node.index, work.name() },
        );
    }
    world.after(2 * world.config.heartbeat_ns, .over);
}

/// Stages of a world in which users have stopped and nobody has left.
pub const Rest = struct {
    stage: enum { none, settling, measuring, over } = .none,
    connections: usize = 0,
    open_ends: u64 = 0,
    bytes: u64 = 0,
    began: u64 = 0,
};

/// In one world of three: what a run without work holds and says. How long to wait for the next
/// stage.
fn rest(world: *World) ?u64 {
    const state = &world.rest;
    const silence_ns = world.config.silence_ns;
    switch (state.stage) {
        .none => {
            if (world.fuzz != null or !world.prng_users.chance(3)) {
                state.stage = .over;
                return null;
            }
            state.stage = .settling;
            // Until what is dead has been found, and what was closed has been made again.
            const strangers_ns: u64 = if (world.config.has_adversaries()) link_lingers_ns else 0;
            return 4 * silence_ns + 5 * std.time.ns_per_s + strangers_ns;
        },
        .settling => {
            state.* = .{
                .stage = .measuring,
                .connections = world.connections.items.len,
                .open_ends = count_open_ends(world),
                .bytes = world.statistics.bytes,
                .began = world.now,
            };
            return 2 * silence_ns;
        },
        .measuring => {
            state.stage = .over;
            world.statistics.rests += 1;
            check_quiet(world);
            check_at_rest(world);
            return null;
        },
        .over => return null,
    }
}

fn count_open_ends(world: *const World) u64 {
    var ends: u64 = 0;
    for (world.connections.items) |connection| {
        for (&connection.ends) |*end| ends += @intFromBool(end.state == .open);
    }
    return ends;
}

/// Nothing but signs of life is sent, and nobody dials.
fn check_quiet(world: *World) void {
    const new = world.connections.items.len - world.rest.connections;
    if (new > 0) return world.checkers.fail(
        .storm,
        "{d} connections were made although nothing was wrong",
        .{new},
    );
    // Lanes that nobody needs any more are closed meanwhile.
    const ends = @max(world.rest.open_ends, count_open_ends(world));
    const beats = 2 + 12 * (world.now - world.rest.began) / (10 * world.config.heartbeat_ns);
    // A ping is sent every half heartbeat, a heartbeat and its answer every one.
    const most = ends * beats * 2 * 64;
    const bytes = world.statistics.bytes - world.rest.bytes;
    if (bytes > most) world.checkers.fail(
        .storm,
        "{d} bytes moved in {d} heartbeats over {d} open ends, at rest",
        .{ bytes, beats, ends },
    );
}

/// Nothing is held that only work explains.
fn check_at_rest(world: *World) void {
    for (world.works.items) |work| {
        if (work.state == .in_doubt) world.checkers.fail(
            .p6_progress,
            "p{d}: {f} is in doubt, and nobody tells",
            .{ work.node.index, work.name() },
        );
    }
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        const held = node.session.?.operations.items.len;
        if (held > 0) world.checkers.fail(
            .leak,
            "p{d} holds {d} operations at rest",
            .{ node.index, held },
        );
        for (node.users) |*user| check_view(world, user);
        check_lanes(world, node.index);
    }
    // A record that outlives its call counts against its member's calls in flight.
    for (world.coordinator.run.groups.items) |group| for (group.epochs.items) |epoch| {
        for (epoch.records.items) |record| world.checkers.fail(
            .leak,
            "the coordinator holds a record of tag {d}, sequence {d} at rest",
            .{ record.id.tag, record.id.sequence },
        );
    };
}

/// All members see the same, and nobody who is gone.
fn check_view(world: *World, user: *const User) void {
    const group = user.group orelse return;
    for (world.nodes[1..]) |*node| {
        const other = if (node.state == .up) node.users[user.index].group else null;
        const there = other orelse continue;
        if (there.epoch() == group.epoch() and there.attempt() == group.attempt()) continue;
        return world.checkers.fail(.views, "p{d} rests in {d}, attempt {d}, p{d} in {d}, {d}", .{
            user.node.index, group.epoch(), group.attempt(),
            node.index,      there.epoch(), there.attempt(),
        });
    }
    for (group.members(), 0..) |id, rank| {
        if (!group.alive_mask().has(rank)) continue;
        const member = for (world.nodes[1..]) |*node| {
            if (node.state == .up and node.id.eql(id)) break node;
        } else return world.checkers.fail(.views, "at rest p{d} counts peer {s}, which is gone", .{
            user.node.index, id.short(),
        });
        if (member.users[user.index].group == null) world.checkers.fail(
            .views,
            "at rest p{d} counts p{d}, which has left",
            .{ user.node.index, member.index },
        );
    }
}

/// At most the agreed number of lanes to each peer, and none to where nobody is.
fn check_lanes(world: *World, index: world_file.NodeIndex) void {
    const lanes = world.gpa.alloc(u32, world.nodes.len) catch @panic("out of memory");
    @memset(lanes, 0);
    for (world.connections.items) |connection| {
        if (connection.is_control) continue;
        for (&connection.ends, 0..) |*end, side| {
            const other = &connection.ends[1 - side];
            if (end.node != index or end.state != .open) continue;
            if (other.node == world_file.nobody) {
                world.checkers.fail(.leak, "at rest p{d} holds a stranger's connection {d}", .{
                    index, connection.index,
                });
                continue;
            }
            if (other.state != .open and !is_told(connection, side)) world.checkers.fail(
                .leak,
                "at rest p{d} holds connection {d}, which is dead",
                .{ index, connection.index },
            );
            lanes[other.node] += 1;
        }
    }
    for (lanes, 0..) |count, other| {
        const auto = world.config.lanes == 0;
        const most = if (auto) base.limits.lanes_per_link_max else world.config.lanes;
        if (count > most) world.checkers.fail(
            .leak,
            "at rest p{d} holds {d} lanes to p{d}",
            .{ index, count, other },
        );
    }
}

/// Whether the other end has said that it closes, as an end does whose link needs fewer lanes, and
/// the word is under way to this side.
fn is_told(connection: *const world_file.Connection, side: usize) bool {
    const pipe = &connection.pipes[1 - side];
    return pipe.finished and !pipe.swallows and pipe.scheduled;
}

/// Somebody went past the place where others have stopped: they go on.
fn restart_stopped(world: *World) void {
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        for (node.users) |*user| {
            if (user.state != .stopped or reached(user)) continue;
            user.state = .between;
            users.wake_after(user, 0);
        }
    }
}
