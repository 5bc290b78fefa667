//! Faults: which faults strike the network and processes, when, and whom. Each class counts down
//! events of the world to its next strike, so faults fall where there is activity. The classes and
//! how often they are on: swarm.zig. Mistakes of users: users.zig.

const std = @import("std");
const base = @import("base");
const session_layer = @import("session");
const ending = @import("ending.zig");
const endurance = @import("endurance.zig");
const insider = @import("insider.zig");
const network = @import("network.zig");
const plan = @import("plan");
const stranger = @import("stranger.zig");
const swarm = @import("swarm.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const Class = swarm.Class;
const Config = swarm.Config;
const Connection = world_file.Connection;
const Instant = base.Instant;
const Node = world_file.Node;
const NodeIndex = world_file.NodeIndex;
const Prng = base.Prng;
const World = world_file.World;
const ms = world_file.ms;
const nobody = world_file.nobody;

/// Classes that strike by themselves; the others decide when something happens (a dial, a call).
const striking = [_]Class{
    .stall,
    .reset_lane,
    .reset_control,
    .half_open,
    .deafen,
    .cut_pair,
    .strangers,
    .crash,
    .vanish,
    .freeze,
    .freeze_coordinator,
    .freeze_machine,
    .crash_coordinator,
    .flip_journal,
    .clock_jump,
    .clock_stop,
    .late_join,
    .leave,
    .eavesdropper,
    .insider,
};

pub const Faults = struct {
    streams: [swarm.class_count]Prng,
    /// The world's step of the next strike.
    next: [swarm.class_count]u64 = @splat(std.math.maxInt(u64)),
    soonest: u64 = std.math.maxInt(u64),
    /// The ones of config.strikes that came.
    struck: [2]bool = .{ false, false },

    pub fn init(config: *const Config) Faults {
        var faults: Faults = .{ .streams = undefined };
        for (std.enums.values(Class)) |class| {
            faults.streams[@intFromEnum(class)] = swarm.stream(config.seed ^ 1, @tagName(class));
        }
        for (striking) |class| faults.plan(config, 0, class);
        return faults;
    }

    fn plan(faults: *Faults, config: *const Config, step: u64, class: Class) void {
        const mean: u64 = switch (config.levels.get(class)) {
            .off => return,
            .rare => 2500,
            .heavy => 300,
        };
        const scale: u64 = switch (class) {
            // They cost a peer, or everybody's time.
            .crash, .vanish, .reset_control, .leave, .freeze_coordinator, .cut_pair, .deafen => 3,
            .freeze_machine, .clock_jump, .clock_stop => 3,
            .crash_coordinator => 2,
            else => 1,
        };
        const hurry: u64 = switch (class) {
            .crash, .vanish, .crash_coordinator => switch (config.profile) {
                .drawn => 1,
                .crashes => 4,
                .endurance => 20, // of what is rare
            },
            else => 1,
        };
        // The cost of a collective grows with the square of its members.
        const peers: u64 = config.peers_start;
        const size = if (peers > swarm.small_max) peers * peers / 256 else 1;
        const index = @intFromEnum(class);
        const span = 2 * mean * scale * size / hurry;
        faults.next[index] = step + faults.streams[index].between(1, span);
        faults.soonest = std.mem.min(u64, &faults.next);
    }

    /// This class strikes no more.
    pub fn stop(faults: *Faults, class: Class) void {
        faults.next[@intFromEnum(class)] = std.math.maxInt(u64);
        faults.soonest = std.mem.min(u64, &faults.next);
    }

    pub fn stream(faults: *Faults, class: Class) *Prng {
        return &faults.streams[@intFromEnum(class)];
    }
};

/// True if this class strikes now: one in `heavy` draws, or one in ten times as many when rare.
pub fn chance(world: *World, class: Class, heavy: u64) bool {
    if (world.scripted or world.phase != .safety) return false;
    const one_in = switch (world.config.levels.get(class)) {
        .off => return false,
        .rare => heavy * 10,
        .heavy => heavy,
    };
    return world.faults.stream(class).chance(one_in);
}

/// After each event of the safety phase. Strangers go on while all else is well again.
pub fn maybe(world: *World) void {
    while (world.faults.soonest <= world.steps) {
        for (striking) |class| {
            if (world.faults.next[@intFromEnum(class)] > world.steps) continue;
            if (strike(world, class)) world.statistics.fault(class);
            world.faults.plan(&world.config, world.steps, class);
        }
    }
    for (world.config.strikes, &world.faults.struck) |maybe_strike, *came| {
        const chosen = maybe_strike orelse continue;
        // Events of a node that is down or frozen do not come here: later is soon enough.
        if (came.* or chosen.step > world.steps) continue;
        came.* = true;
        strike_chosen(world, chosen);
    }
    if (world.calls_finished >= world.config.calls or
        world.now >= world.config.safety_ns) heal(world);
}

/// After each event while all is well: strangers do not go away.
pub fn strangers_go_on(world: *World) void {
    const next = &world.faults.next[@intFromEnum(Class.strangers)];
    if (next.* > world.steps) return;
    stranger.strike(world, world.faults.stream(.strangers));
    world.statistics.fault(.strangers);
    world.faults.plan(&world.config, world.steps, .strangers);
}

fn strike_chosen(world: *World, chosen: swarm.Strike) void {
    const node = &world.nodes[chosen.node];
    if (node.state != .up or node.is_frozen()) return;
    world.note("strike {f}", .{chosen});
    const heartbeat_ns = world.config.heartbeat_ns;
    if (node.index == world_file.coordinator_index) switch (chosen.how) {
        .freeze => return freeze_for(world, node, heartbeat_ns),
        .freeze_long => return freeze_for(world, node, 2 * world.config.silence_ns),
        .kill => return world.take_down_coordinator(.killed, world.config.heartbeat_ns / 2),
        .reset => return world.take_down_coordinator(.reset, 0),
        .vanish => return world.take_down_coordinator(.vanished, world.config.heartbeat_ns),
        else => return,
    };
    switch (chosen.how) {
        .kill, .reset, .vanish => {
            if (!can_spare_one(world)) _ = world.add_peer(0);
            world.take_down(node, switch (chosen.how) {
                .kill => .killed,
                .reset => .reset,
                else => .vanished,
            });
        },
        .freeze => freeze_for(world, node, heartbeat_ns),
        .freeze_long => freeze_for(world, node, 2 * world.config.silence_ns),
        .reset_control => if (node.control) |ref| {
            world.reset(world.connections.items[ref.connection]);
        },
        .reset_lanes, .swallow_lanes => for (world.connections.items) |connection| {
            const here = connection.ends[0].node == node.index or
                connection.ends[1].node == node.index;
            if (connection.is_control or !here) continue;
            if (chosen.how == .reset_lanes) {
                world.reset(connection);
            } else for (&connection.pipes) |*pipe| {
                pipe.swallows = true;
                pipe.discard();
            }
        },
        .leave => users.leave(&node.users[0]),
    }
}

/// It comes back at once, or only after a while.
pub fn crash_coordinator(world: *World, prng: *Prng) void {
    const hows = [_]world_file.EndOfNode{ .killed, .reset, .vanished };
    const how = hows[prng.below(hows.len)];
    world.take_down_coordinator(how, draw_time(prng, 3000));
}

/// False if there was nobody to strike.
fn strike(world: *World, class: Class) bool {
    const prng = world.faults.stream(class);
    switch (class) {
        .stall => {
            const connection = pick_connection(world, prng, null) orelse return false;
            const until = world.now + draw_time(prng, 3000);
            world.note("connection {d} stalls", .{connection.index});
            for (&connection.pipes) |*pipe| if (prng.chance(2)) {
                pipe.stalled_until = until;
            };
        },
        .reset_lane => {
            const connection = pick_connection(world, prng, false) orelse return false;
            world.note("connection {d} is reset", .{connection.index});
            world.reset(connection);
        },
        .reset_control => {
            const connection = pick_connection(world, prng, true) orelse return false;
            world.note("control connection {d} is reset", .{connection.index});
            world.reset(connection);
        },
        .half_open => {
            const connection = pick_connection(world, prng, null) orelse return false;
            const which = prng.between(1, 3);
            world.note("connection {d} swallows ({d})", .{ connection.index, which });
            for (&connection.pipes, 0..) |*pipe, side| if (which >> @intCast(side) & 1 == 1) {
                pipe.swallows = true;
                pipe.discard();
            };
        },
        .deafen => return deafen_one(world, prng),
        .cut_pair => return cut_pair(world, prng),
        .strangers => stranger.strike(world, prng),
        .eavesdropper => return stranger.eavesdrop(world, prng),
        .insider => return insider.strike(world, prng),
        .crash => {
            const node = pick_victim(world, prng) orelse return false;
            world.take_down(node, if (prng.chance(2)) .killed else .reset);
            replace(world, prng);
        },
        .vanish => {
            const node = pick_victim(world, prng) orelse return false;
            world.take_down(node, .vanished);
            replace(world, prng);
        },
        .freeze => freeze(world, pick_peer(world, prng) orelse return false, prng),
        .freeze_coordinator => {
            if (world.nodes[0].state != .up) return false;
            freeze(world, &world.nodes[0], prng);
        },
        .freeze_machine => return freeze_machine(world, prng),
        .flip_journal => return world.disk.flip(prng),
        .clock_jump, .clock_stop => return disturb_clock(world, class, prng),
        .crash_coordinator => {
            if (world.nodes[0].state != .up) return false;
            crash_coordinator(world, prng);
        },
        .late_join => {
            if (world.peers_started >= world.config.peers_max) return false;
            _ = world.add_peer(draw_time(prng, 100)) orelse return false;
        },
        .leave => return leave(world, prng),
        else => unreachable,
    }
    return true;
}

/// The user of one group leaves it, or all of its process ends.
fn leave(world: *World, prng: *Prng) bool {
    const node = pick_victim(world, prng) orelse return false;
    if (prng.chance(3)) {
        world.note("p{d} ends its process", .{node.index});
        world.take_down(node, .graceful);
        replace(world, prng);
    } else users.leave(&node.users[@intCast(prng.below(node.users.len))]);
    return true;
}

/// Two peers cannot reach each other for a while, though both reach the coordinator.
fn cut_pair(world: *World, prng: *Prng) bool {
    const a = (pick_peer(world, prng) orelse return false).index;
    const b = (pick_peer(world, prng) orelse return false).index;
    if (a == b) return false;
    if (world.config.only_cuts and !is_ring_left(world, .{ a, b })) return false;
    const until = world.now + if (world.config.only_cuts)
        prng.between(1, 8000 * ms)
    else
        draw_time(prng, 4000);
    const lasts = (until - world.now) / ms;
    world.note("p{d} and p{d} cannot reach each other for {d} ms", .{ a, b, lasts });
    world.pair_cuts.append(world.gpa, .{ .nodes = .{ a, b }, .until = until }) catch
        @panic("out of memory");
    break_lanes(world, .{ a, b }, prng.chance(2));
    return true;
}

/// Whether all who are up could still form a ring without this pair, and without those that have
/// found together again only just now.
fn is_ring_left(world: *const World, pair: [2]NodeIndex) bool {
    var edges: plan.Edges = .{};
    edges.add(pair[0] - 1, pair[1] - 1);
    const lasting_ns = 4 * world.config.silence_ns;
    for (world.pair_cuts.items) |item| {
        if (item.until + lasting_ns > world.now) edges.add(item.nodes[0] - 1, item.nodes[1] - 1);
    }
    var up: base.Mask = .empty;
    for (world.nodes[1..]) |*node| if (node.state == .up) up.set(node.digit());
    return plan.cycle.search(&up, &edges, null) != null;
}

/// The lanes between two peers are reset, or take everything and deliver nothing.
pub fn break_lanes(world: *World, pair: [2]NodeIndex, silently: bool) void {
    for (world.connections.items) |connection| {
        if (connection.is_control or !joins(connection, pair)) continue;
        if (!silently) {
            world.reset(connection);
            continue;
        }
        for (&connection.pipes) |*pipe| {
            pipe.swallows = true;
            pipe.discard();
        }
    }
}

/// A direction between a peer and another node is dead for a while, whoever connects.
fn deafen_one(world: *World, prng: *Prng) bool {
    const a = (pick_peer(world, prng) orelse return false).index;
    const b = if (prng.chance(2)) (pick_peer(world, prng) orelse return false).index else 0;
    if (a == b) return false;
    const until = world.now + draw_time(prng, 8000);
    const from, const to = if (prng.chance(2)) .{ a, b } else .{ b, a };
    world.note("p{d} hears nothing of p{d} for {d} ms", .{ to, from, (until - world.now) / ms });
    deafen(world, from, to, until);
    return true;
}

pub fn deafen(world: *World, from: NodeIndex, to: NodeIndex, until: Instant) void {
    world.deafness.append(world.gpa, .{ .from = from, .to = to, .until = until }) catch
        @panic("out of memory");
    for (world.connections.items) |connection| swallow(connection, from, to);
}

/// All that is on its way from the one to the other vanishes, and all that follows.
pub fn swallow(connection: *Connection, from: NodeIndex, to: NodeIndex) void {
    for (&connection.pipes, 0..) |*pipe, side| {
        if (connection.ends[side].node != from or connection.ends[1 - side].node != to) continue;
        pipe.swallows = true;
        pipe.discard();
    }
}

fn joins(connection: *const Connection, nodes: [2]NodeIndex) bool {
    const a, const b = .{ connection.ends[0].node, connection.ends[1].node };
    return (nodes[0] == a and nodes[1] == b) or (nodes[0] == b and nodes[1] == a);
}

fn is_cut(world: *const World, connection: *const Connection) bool {
    for (world.pair_cuts.items) |item| {
        if (item.until > world.now and joins(connection, item.nodes)) return true;
    }
    return false;
}

/// Between a few microseconds and `most` milliseconds, all magnitudes alike.
pub fn draw_time(prng: *Prng, most: u64) u64 {
    const bits = std.math.log2_int(u64, most * ms);
    return prng.below(@as(u64, 1) << @intCast(prng.between(10, bits)));
}

fn freeze(world: *World, node: *Node, prng: *Prng) void {
    if (node.is_frozen()) return;
    freeze_for(world, node, draw_time(prng, 4000));
}

pub fn freeze_for(world: *World, node: *Node, length: u64) void {
    node.frozen_until = world.now + length;
    node.thawed_at = @max(node.thawed_at, node.frozen_until);
    world.note("node {d} freezes for {d} ms", .{ node.index, length / ms });
    world.at(node.frozen_until, .{ .thawed = node.index });
}

/// A machine stops with all that runs on it, the coordinator perhaps, and goes on as if no time
/// had passed.
fn freeze_machine(world: *World, prng: *Prng) bool {
    const nodes = world.gpa.alloc(*Node, world.nodes.len) catch @panic("out of memory");
    var count: usize = 0;
    for (world.nodes) |*node| {
        if (node.state != .up or node.is_frozen() or !prng.chance(2)) continue;
        nodes[count] = node;
        count += 1;
    }
    if (count < 2) return false;
    const length = draw_time(prng, 8000);
    for (nodes[0..count]) |node| freeze_for(world, node, length);
    return true;
}

/// A clock that never goes back (net/clock.zig) may do this: it leaps ahead, by hours perhaps, as
/// after a machine has slept, or stands still while everything else goes on.
fn disturb_clock(world: *World, class: Class, prng: *Prng) bool {
    const peer = pick_peer(world, prng) orelse return false;
    const node = if (prng.chance(4)) &world.nodes[0] else peer;
    if (node.state != .up or node.is_frozen()) return false;
    if (class == .clock_jump) {
        const length = draw_time(prng, 8 * std.time.ms_per_hour);
        world.note("the clock of node {d} leaps ahead by {d} ms", .{ node.index, length / ms });
        node.advance_clock(length);
    } else {
        const length = draw_time(prng, 8000);
        world.note("the clock of node {d} stands still for {d} ms", .{ node.index, length / ms });
        node.stop_clock(length);
    }
    world.settle(node);
    return true;
}

/// Another process takes the place of one that died, sometimes.
fn replace(world: *World, prng: *Prng) void {
    if (world.config.profile != .drawn) return start_another(world, prng);
    if (world.peers_started >= world.config.peers_max or prng.chance(3)) return;
    _ = world.add_peer(draw_time(prng, 500));
}

/// At a new place, or at one of those that have ended.
fn start_another(world: *World, prng: *Prng) void {
    const delay_ns = draw_time(prng, 500);
    if (world.peers_started < world.config.peers_max) {
        _ = world.add_peer(delay_ns);
        return;
    }
    const places = world.nodes[1 .. 1 + world.peers_started];
    const first = prng.below(places.len);
    for (0..places.len) |offset| {
        const node = &places[(first + offset) % places.len];
        if (node.state == .down) return world.revive(node, delay_ns);
    }
}

pub fn pick_peer(world: *World, prng: *Prng) ?*Node {
    var count: usize = 0;
    for (world.nodes[1..]) |*node| count += @intFromBool(node.state == .up);
    if (count == 0) return null;
    var left = prng.below(count);
    for (world.nodes[1..]) |*node| {
        if (node.state != .up) continue;
        if (left == 0) return node;
        left -= 1;
    }
    unreachable;
}

/// A peer whose process may end: with those that can still start, enough are left for the end of
/// the world.
fn pick_victim(world: *World, prng: *Prng) ?*Node {
    if (!can_spare_one(world)) return null;
    const node = pick_peer(world, prng) orelse return null;
    const stays = world.config.profile == .endurance and node.index <= endurance.survivors;
    return if (stays) null else node;
}

fn can_spare_one(world: *const World) bool {
    if (world.config.profile != .drawn) return true; // another one starts
    var there: usize = world.nodes.len - 1 - world.peers_started;
    for (world.nodes[1 .. 1 + world.peers_started]) |*node| {
        if (node.state != .down) there += 1;
    }
    return there > @max(world.config.initial_world_size, world.config.min_world_size);
}

/// An open connection; `is_control` narrows it.
fn pick_connection(world: *World, prng: *Prng, is_control: ?bool) ?*Connection {
    const all = world.connections.items;
    if (all.len == 0) return null;
    const start = prng.below(all.len);
    for (0..all.len) |offset| {
        const connection = all[(start + offset) % all.len];
        if (is_control) |wanted| if (connection.is_control != wanted) continue;
        if (connection.ends[0].state != .open or connection.ends[1].state != .open) continue;
        if (connection.ends[0].node == nobody) continue;
        return connection;
    }
    return null;
}

// ---- dials

pub fn draw_shape(world: *World) [2]network.Shape {
    const config = &world.config;
    if (world.scripted) return @splat(.{
        .delay_ns = ms,
        .jitter_ns = 0,
        .ns_per_byte = 0,
        .capacity = 4096,
        .segment_max = world.script_segment_max,
    });
    const prng = &world.prng_network;
    const delay_ns = prng.below(config.delay_ns_max);
    // Links that are made when all is well are well.
    const slow = config.has(.slow_links) and world.phase == .safety and
        world.faults.stream(.slow_links).chance(
            if (config.levels.get(.slow_links) == .heavy) 2 else 8,
        );
    const tiny = config.has(.tiny_segments) and
        world.faults.stream(.tiny_segments).chance(
            if (config.levels.get(.tiny_segments) == .heavy) 2 else 8,
        );
    var shapes: [2]network.Shape = undefined;
    for (&shapes) |*shape| shape.* = .{
        .delay_ns = delay_ns,
        .jitter_ns = if (prng.chance(2)) 0 else delay_ns / 2,
        .ns_per_byte = if (slow) prng.between(100, 20_000) else prng.below(4),
        .capacity = @as(u32, 1) << @intCast(if (slow) prng.between(4, 9) else prng.between(8, 13)),
        .segment_max = if (tiny) @intCast(prng.between(1, 4)) else 1 << 20,
    };
    if (slow) world.statistics.fault(.slow_links);
    if (tiny) world.statistics.fault(.tiny_segments);
    return shapes;
}

/// The fate of a dial: up at both ends, refused, never answered, or up at the other end only.
pub fn fate_of_dial(world: *World, connection: *Connection) void {
    const delay = connection.pipes[0].shape.delay_ns;
    const dialer: world_file.Ref = .{ .connection = connection.index, .side = 0 };
    if (connection.ends[1].node == nobody) return world.after(delay, .{ .ended = dialer });
    const there = &world.nodes[connection.ends[1].node];
    const timeout = 4 * world.config.heartbeat_ns;
    if (there.state != .up) return world.after(2 * delay, .{ .ended = dialer });
    if (is_cut(world, connection)) return world.after(timeout, .{ .ended = dialer });
    if (is_walled(world, connection)) |wall| {
        world.statistics.fault(.one_way);
        return world.after(if (wall == .drops) timeout else 2 * delay, .{ .ended = dialer });
    }
    if (chance(world, .dial_fail, 3)) {
        world.statistics.fault(.dial_fail);
        const slow = world.faults.stream(.dial_fail).chance(2);
        return world.after(if (slow) timeout else 2 * delay, .{ .ended = dialer });
    }
    const late = lateness_of_dial(world, connection);
    world.after(delay + late, .{ .accepted = connection.index });
    if (chance(world, .dial_stray, 4)) {
        world.statistics.fault(.dial_stray);
        connection.ends[0].state = .pending;
        return world.after(timeout, .{ .ended = dialer });
    }
    world.after(2 * delay + late, .{ .opened = connection.index });
}

const Wall = enum { refuses, drops };

/// Between some peers connections are made in one direction only, for as long as the world lasts,
/// as where one of them is behind NAT. In one there is always a way.
fn is_walled(world: *World, connection: *const Connection) ?Wall {
    if (connection.is_control) return null;
    const from, const to = .{ connection.ends[0].node, connection.ends[1].node };
    if (world.scripted) {
        for (world.walls.items) |wall| if (wall[0] == from and wall[1] == to) return .refuses;
        return null;
    }
    const one_in: u64 = switch (world.config.levels.get(.one_way)) {
        .off => return null,
        .rare => 4,
        .heavy => 1,
    };
    const seed = world.config.seed ^ @as(u64, @min(from, to)) << 32 ^ @as(u64, @max(from, to));
    var prng = swarm.stream(seed, "one_way");
    if (!prng.chance(one_in) or prng.chance(2) != (from < to)) return null;
    return if (prng.chance(2)) .refuses else .drops;
}

/// Where both sides dial, often at the same time: the one that waits for the other may be done
/// first.
fn lateness_of_dial(world: *World, connection: *const Connection) u64 {
    if (connection.is_control or world.scripted or !world.config.has(.one_way)) return 0;
    const prng = world.faults.stream(.one_way);
    return if (prng.chance(4)) prng.below(world.config.silence_ns / 4) else 0;
}

// ---- time

/// A loaded machine ticks late.
pub fn tick_lateness(world: *World) u64 {
    if (world.scripted or !world.config.has(.late_tick)) return 0;
    const prng = world.faults.stream(.late_tick);
    if (!prng.chance(if (world.config.levels.get(.late_tick) == .heavy) 3 else 30)) return 0;
    world.statistics.fault(.late_tick);
    return draw_time(prng, 150);
}

// ---- fault points

pub fn at_point(
    world: *World,
    node: *Node,
    point: session_layer.FaultPoint,
    sequence: u64,
    done: u64,
    total: u64,
) void {
    for (world.traps.items, 0..) |trap, index| {
        if (trap.node != node.index or trap.point != point or done < trap.done) continue;
        world.note(
            "p{d} dies at {t}, {d} of {d} chunks settled",
            .{ node.index, point, done, total },
        );
        node.dies = true;
        node.dies_how = trap.how;
        _ = world.traps.swapRemove(index);
        return;
    }
    if (node.dies or !chance(world, .crash_at_point, 120) or !can_spare_one(world)) return;
    world.note("p{d} dies at {t}, sequence {d}, {d} of {d}", .{
        node.index, point, sequence, done, total,
    });
    node.dies = true;
    node.dies_how = if (world.faults.stream(.crash_at_point).chance(2)) .killed else .reset;
}

pub fn died_at_point(world: *World, node: *Node) void {
    if (node.index == world_file.coordinator_index) {
        if (world.scripted) return world.take_down_coordinator(.killed, null);
        const prng = world.faults.stream(.torn_journal);
        return world.take_down_coordinator(.killed, draw_time(prng, 3000));
    }
    world.take_down(node, node.dies_how);
    if (world.scripted) return;
    world.statistics.fault(.crash_at_point);
    replace(world, world.faults.stream(.crash_at_point));
}

/// Counts bytes that arrive on lanes between two peers; true if that made a scenario's cut fall.
pub fn cut(world: *World, connection: *Connection, bytes: usize) bool {
    if (connection.is_control) return false;
    for (world.cuts.items, 0..) |*item, index| {
        if (!joins(connection, item.nodes)) continue;
        if (item.bytes > bytes) {
            item.bytes -= bytes;
            continue;
        }
        const fallen = world.cuts.swapRemove(index);
        world.note("connection {d} is cut", .{connection.index});
        if (fallen.dies) world.take_down(&world.nodes[fallen.nodes[0]], .reset);
        world.reset(connection);
        return true;
    }
    return false;
}

// ---- the end of faults

/// Nothing new goes wrong from now on, and enough peers are there to go on.
pub fn heal(world: *World) void {
    if (world.phase != .safety) return;
    world.phase = .healing;
    world.borrowed.open_reserve();
    world.healed_step = world.steps;
    var well_at = world.now;
    for (world.connections.items) |connection| for (&connection.pipes) |*pipe| {
        pipe.stalled_until = @min(pipe.stalled_until, world.now);
        pipe.shape.ns_per_byte = @min(pipe.shape.ns_per_byte, 200);
        // A small window bounds the rate by the delay: what many groups say must pass.
        const well_ns = @as(u64, 20_000) * pipe.shape.capacity;
        pipe.shape.delay_ns = @min(pipe.shape.delay_ns, well_ns);
        pipe.shape.jitter_ns = @min(pipe.shape.jitter_ns, well_ns);
    };
    world.pair_cuts.clearRetainingCapacity();
    world.deafness.clearRetainingCapacity();
    insider.end(world);
    var up: u32 = 0;
    if (world.nodes[0].state == .down) well_at += 3000 * ms; // it starts again by then
    for (world.nodes) |*node| {
        if (node.state != .up) continue;
        well_at = @max(well_at, @max(node.frozen_until, node.clock_goes_at));
        if (node.index > 0) up += 1;
    }
    const needed = @max(world.config.initial_world_size, world.config.min_world_size);
    while (up < needed) : (up += 1) if (world.add_peer(0) == null) {
        const free = for (world.nodes[1..]) |*node| {
            if (node.state == .down) break node;
        } else break;
        world.revive(free, 0);
    };
    world.healed_at = well_at;
    world.note("the network is well from here on", .{});
    ending.healed(world);
}
