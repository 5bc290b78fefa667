//! World: one simulated run. It has a virtual clock, a queue of instants, a coordinator and peers
//! that are the real state machines, and the connections between them. It is the driver that
//! engine/net is for real sockets: it moves bytes, calls tick in time, and tells who opened and who
//! closed.
//!
//! Users and their calls are users.zig's, faults are faults.zig's, the conditions that must hold
//! are checkers.zig's. Everything is drawn from the seed; nothing here reads a real clock.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const session_layer = @import("session");
const Borrowed = @import("borrowed.zig").Borrowed;
const Checkers = @import("checkers.zig").Checkers;
const Config = @import("swarm.zig").Config;
const Disk = @import("disk.zig").Disk;
const Insiders = @import("insider.zig").Insiders;
const Memory = @import("memory.zig").Memory;
const Mouth = @import("insider.zig").Mouth;
const Overheard = @import("overheard.zig").Overheard;
const Trace = @import("trace.zig").Trace;
const Workshop = @import("jobs.zig").Workshop;
const Tap = @import("tap.zig").Tap;
const Told = @import("told.zig").Told;
const Units = @import("units.zig").Units;
const calls = @import("calls.zig");
const copies = @import("copies.zig");
const ending = @import("ending.zig");
const faults = @import("faults.zig");
const finder = @import("finder.zig");
const fuzz = @import("fuzz.zig");
const insider = @import("insider.zig");
const network = @import("network.zig");
const paths = @import("paths.zig");
const rules = @import("rules.zig");
const splits = @import("splits.zig");
const stranger = @import("stranger.zig");
const swarm = @import("swarm.zig");
const syncs = @import("syncs.zig");
const users = @import("users.zig");
const control = session_layer.control;
const driver = session_layer.driver;
const Allocator = std.mem.Allocator;
const Coordinator = protocol.Coordinator;
const Instant = base.Instant;
const Lane = session_layer.Lane;
const Prng = base.Prng;
const Session = session_layer.Session;
const assert = std.debug.assert;

pub const ms = std.time.ns_per_ms;
/// Node 0 is the coordinator; peer with digit d is node d + 1.
pub const NodeIndex = u16;
pub const coordinator_index = 0;
pub const run_id: base.RunId = @splat(0x5a);
/// The memory that a process may hold, whoever sends it what: in a small world six times what the
/// busiest of thousands of them has ever held.
const node_bytes_max = 16 << 20;
const node_bytes_max_large = 64 << 20;
/// One probe, where links are far (paths.zig), is some frames.
const probe_bytes_max = 512;

/// One end of a connection.
pub const Ref = struct { connection: u32, side: u1 };

pub const End = struct {
    /// The node; `nobody` for a stranger's side.
    node: NodeIndex,
    state: State = .pending,
    what: Handle = .nothing,
    woken: bool = false,

    pub const State = enum {
        /// Its node has not been told that the connection is up.
        pending,
        open,
        closed,
    };
    pub const Handle = union(enum) {
        nothing,
        lane: *Lane,
        control,
        accepted: *protocol.Connection,
        stranger,
    };
};

pub const nobody: NodeIndex = std.math.maxInt(NodeIndex);

pub const Connection = struct {
    index: u32,
    is_control: bool,
    ends: [2]End,
    /// pipes[side] carries what ends[side] sends.
    pipes: [2]network.Pipe,
    /// Fate of the dial: the acceptor sees a connection that the dialer believes failed.
    stray: bool = false,
    /// It is a stranger's, which a peer may not keep for long.
    is_looked_after: bool = false,
    taps: [2]Tap = .{ .{}, .{} },
    /// The coordinator's messages on it.
    told: Told = .{},
    /// The units that adversaries have heard of it, and the words of an insider on it.
    ears: [2]Units = .{ .{}, .{} },
    mouths: [2]Mouth = .{ .{}, .{} },
};

pub const Node = struct {
    world: *World,
    index: NodeIndex,
    state: State = .absent,
    /// Its process breaks the rules (insider.zig); one that had this place did.
    is_insider: bool = false,
    was_insider: bool = false,
    /// Processes that have had this place before.
    generation: u32 = 0,
    memory: Memory = undefined,
    /// The bytes that it has said to others.
    said_bytes: u64 = 0,
    id: base.PeerId = .none,
    session: ?*Session = null,
    /// The workers of its process, if it has some.
    workshop: Workshop = undefined,
    control: ?Ref = null,
    /// The engine has asked for a connection to the coordinator.
    wants_control: bool = false,
    /// Its own clock: offset + t * rate / 65536, but standing still until an instant of the world.
    clock_offset: i64 = 0,
    clock_rate: u64 = 65536,
    clock_goes_at: Instant = 0,
    frozen_until: Instant = 0,
    thawed_at: Instant = 0,
    tick_at: Instant = base.never,
    tick_version: u32 = 0,
    ticks_in_a_row: u32 = 0,
    last_tick_at: Instant = 0,
    worked_before: u64 = 0,
    /// A fault point asked for its end; it happens when the call into the engine returns.
    dies: bool = false,
    dies_how: EndOfNode = .killed,
    /// It is being taken down: what the engine says is not listened to.
    dying: bool = false,
    woken: std.ArrayList(Ref) = .empty,
    /// The connections that its process has had.
    connections: std.ArrayList(*Connection) = .empty,
    /// Calls of this process that its users have not done with.
    open_works: std.ArrayList(*calls.Work) = .empty,
    /// Shared states that its users have not destroyed.
    states: std.ArrayList(*session_layer.State) = .empty,
    /// One for each group, once it has started.
    users: []users.User = &.{},

    pub const State = enum { absent, up, down };

    /// Grows with each tick that does something for an operation, which takes no time here.
    fn worked(node: *const Node) u64 {
        const s = node.session orelse return 0;
        var pieces: u64 = 0;
        for (s.operations.items) |operation| {
            const x = operation.moves() orelse continue;
            pieces +%= x.work_next +% x.ending_next;
        }
        return pieces;
    }

    pub fn digit(node: *const Node) u16 {
        return node.index - 1;
    }

    pub fn local(node: *const Node, at: Instant) Instant {
        const scaled = @as(u128, @max(at, node.clock_goes_at)) * node.clock_rate >> 16;
        return @intCast(node.clock_offset + @as(i128, @intCast(scaled)));
    }

    /// The first instant at which the node's clock shows at least this.
    pub fn global(node: *const Node, at: Instant) Instant {
        const ahead = @as(i128, at) - node.clock_offset;
        if (ahead <= 0) return 0;
        const scaled = (@as(u128, @intCast(ahead)) << 16) + node.clock_rate - 1;
        const instant = std.math.cast(u64, scaled / node.clock_rate) orelse base.never;
        return if (at <= node.here()) @min(instant, node.world.now) else instant;
    }

    /// The clock stands still for so long, and then goes on from where it stood.
    pub fn stop_clock(node: *Node, length: u64) void {
        const shown = node.here();
        node.clock_goes_at = @max(node.clock_goes_at, node.world.now + length);
        const goes_at = @as(u128, node.clock_goes_at) * node.clock_rate >> 16;
        node.clock_offset = @intCast(@as(i128, shown) - @as(i128, @intCast(goes_at)));
        node.thawed_at = @max(node.thawed_at, node.clock_goes_at);
    }

    pub fn advance_clock(node: *Node, length: u64) void {
        node.clock_offset += @intCast(length);
    }

    pub fn is_frozen(node: *const Node) bool {
        return node.frozen_until > node.world.now;
    }

    pub fn here(node: *const Node) Instant {
        return node.local(node.world.now);
    }
};

pub const EndOfNode = enum {
    /// The kernel closes its sockets: what was sent arrives, then the end.
    killed,
    /// As `killed`, but what was under way is lost.
    reset,
    /// The machine is gone: nobody is told.
    vanished,
    /// The session is over and the process ends.
    graceful,
};

pub const What = union(enum) {
    deliver: Ref,
    /// This end may send again.
    writable: Ref,
    opened: u32,
    accepted: u32,
    ended: Ref,
    tick: struct { node: NodeIndex, version: u32 },
    thawed: NodeIndex,
    start_coordinator,
    /// The disk has done what this start of the coordinator gave it first.
    written: u32,
    dial_control: NodeIndex,
    start: NodeIndex,
    user: struct { node: NodeIndex, user: u8, version: u32 },
    cancel: u32,
    scribble: u32,
    watchdog: u32,
    admit_watchdog: struct { node: NodeIndex, user: u8, count: u32 },
    split_due: struct { node: NodeIndex, user: u8, count: u32 },
    stop: NodeIndex,
    heal,
    check_progress,
    ending,
    over,
    searched: finder.Search,
    stranger_beats: u32,
    stranger_due: stranger.Due,
    /// One of a node's jobs is due.
    job: NodeIndex,
    /// The memory of a call that was cancelled.
    given_back: u32,

    /// Whose freeze holds it up.
    fn node(what: What, world: *const World) ?NodeIndex {
        return switch (what) {
            .deliver => |ref| world.connections.items[ref.connection].ends[1 - ref.side].node,
            .writable, .ended => |ref| world.end(ref).node,
            .opened => |index| world.connections.items[index].ends[0].node,
            .accepted => |index| world.connections.items[index].ends[1].node,
            .tick => |body| body.node,
            .thawed, .job => |index| index,
            .user => |body| body.node,
            .admit_watchdog => |body| body.node,
            .split_due => |body| body.node,
            .dial_control => |index| index,
            .written => coordinator_index,
            .cancel,
            .scribble,
            .watchdog,
            .given_back,
            => |index| world.works.items[index].node.index,
            .searched => coordinator_index,
            .start_coordinator, .start, .stop, .heal, .check_progress, .ending, .over => null,
            .stranger_beats, .stranger_due => null,
        };
    }
};

const Event = struct {
    at: Instant,
    order: u64,
    what: What,

    fn compare(_: void, a: Event, b: Event) std.math.Order {
        const by_time = std.math.order(a.at, b.at);
        return if (by_time == .eq) std.math.order(a.order, b.order) else by_time;
    }
};

/// A scenario's: this peer ends when it passes the point with at least so many chunks settled.
pub const Trap = struct {
    node: NodeIndex,
    point: session_layer.FaultPoint,
    done: u64,
    how: EndOfNode,
};

pub const PairCut = struct { nodes: [2]NodeIndex, until: Instant };

/// Bytes from one node to another vanish, on connections to come as well.
pub const Deafness = struct { from: NodeIndex, to: NodeIndex, until: Instant };

/// A scenario's: a lane between two peers is reset when so many more bytes have passed, or the
/// first of them dies.
pub const Cut = struct { nodes: [2]NodeIndex, bytes: u64, dies: bool = false };

pub const Phase = enum {
    /// Everything goes; only safety is asked for.
    safety,
    /// Nothing new goes wrong; everybody must get on.
    healing,
    /// Users stop at one place of the program, and leave.
    ending,
    over,
};

pub const Statistics = @import("statistics.zig").Statistics;

pub const World = struct {
    gpa: Allocator,
    /// Nodes allocate from this.
    backing: Allocator,
    config: Config,
    trace: Trace,
    checkers: Checkers,
    statistics: *Statistics,
    borrowed: *Borrowed,
    /// A scenario says what users and the network do (scenario.zig); nothing is drawn.
    scripted: bool = false,
    script_segment_max: u32 = 4096,
    /// Set in a fuzzed world: what is sent may be changed on its way (fuzz.zig).
    fuzz: ?*fuzz.Fuzz = null,
    insiders: ?Insiders = null,
    /// In a world with adversaries.
    overheard: ?*Overheard = null,
    traps: std.ArrayList(Trap) = .empty,
    cuts: std.ArrayList(Cut) = .empty,
    /// Peers that cannot reach each other.
    pair_cuts: std.ArrayList(PairCut) = .empty,
    deafness: std.ArrayList(Deafness) = .empty,
    /// The first cannot dial the second, in a transcript.
    walls: std.ArrayList([2]NodeIndex) = .empty,

    now: Instant = std.time.ns_per_s,
    order: u64 = 0,
    steps: u64 = 0,
    steps_max: u64,
    stamp: u64 = 0,
    phase: Phase = .safety,
    healed_at: Instant = 0,
    healed_step: u64 = 0,
    queue: Queue,

    nodes: []Node,
    /// The digit of every process that has ever started.
    digits: std.AutoHashMapUnmanaged(base.PeerId, u16) = .empty,
    /// While its node is up.
    coordinator: *Coordinator = undefined,
    disk: Disk,
    /// Starts of the coordinator so far.
    incarnations: u32 = 0,
    connections: std.ArrayList(*Connection) = .empty,
    works: std.ArrayList(*calls.Work) = .empty,
    calls_finished: u32 = 0,
    peers_started: NodeIndex = 0,
    rest: ending.Rest = .{},
    subs_seen: splits.Seen = .empty,
    starved: rules.Starved = .{},
    copies: copies.Copies = .{},

    prng_network: Prng,
    prng_users: Prng,
    prng_paths: Prng,
    faults: faults.Faults,

    const Queue = std.PriorityQueue(Event, void, Event.compare);

    pub const Options = struct {
        /// Freed as a whole after the world.
        arena: Allocator,
        backing: Allocator,
        borrowed: *Borrowed,
        statistics: *Statistics,
        config: Config,
        text: Trace.Text = .off,
        scripted: bool = false,
    };

    /// The world must not move afterwards.
    pub fn init(world: *World, options: Options) void {
        const config = options.config;
        world.* = .{
            .gpa = options.arena,
            .backing = options.backing,
            .config = config,
            .trace = .{ .text = options.text },
            .checkers = .init(options.arena, config.processes_max()),
            .statistics = options.statistics,
            .borrowed = options.borrowed,
            .scripted = options.scripted,
            .steps_max = config.events_max(),
            .queue = .initContext({}),
            .nodes = options.arena.alloc(Node, 1 + config.processes_max()) catch
                @panic("out of memory"),
            .prng_network = swarm.stream(config.seed, "network"),
            .prng_users = swarm.stream(config.seed, "users"),
            .prng_paths = swarm.stream(config.seed, "paths"),
            .faults = .init(&config),
            .disk = .{ .world = world, .prng = swarm.stream(config.seed, "disk") },
            .insiders = .init(&config),
        };
        if (config.has_adversaries()) {
            world.overheard = options.arena.create(Overheard) catch @panic("out of memory");
            world.overheard.?.* = .{};
        }
        options.borrowed.reset();
        for (world.nodes, 0..) |*node, index| {
            node.* = .{ .world = world, .index = @intCast(index) };
        }
        world.start_coordinator();
    }

    fn start_coordinator(world: *World) void {
        world.open_coordinator() catch |err| switch (err) {
            // Until there is room again.
            error.JournalFailed => world.after(100 * ms, .start_coordinator),
            else => {
                if (!world.disk.mend()) return world.checkers.fail(
                    .p8_restart,
                    "the coordinator cannot read its journal: {t}",
                    .{err},
                );
                world.note("the coordinator refuses its journal: {t}; it is mended", .{err});
                world.after(100 * ms, .start_coordinator);
            },
        };
    }

    /// Starts the coordinator with the journal that is there. It is down again if it fails.
    pub fn open_coordinator(world: *World) !void {
        const config = &world.config;
        const node = &world.nodes[coordinator_index];
        assert(node.state != .up);
        node.memory = .init(world.backing, world.budget_bytes());
        node.state = .up;
        node.dying = false;
        node.dies = false;
        node.tick_at = base.never;
        node.tick_version += 1;
        world.disk.full = false;
        world.draw_clock(node);
        const host: Coordinator.Host = .{ .ctx = node, .vtable = &coordinator_host };
        world.coordinator = Coordinator.create(node.memory.allocator(), .{
            .run_id = run_id,
            .min_world_size = config.min_world_size,
            .initial_world_size = config.initial_world_size,
            .lanes = config.lanes,
            .chunk_bytes = config.chunk_bytes,
            .window_bytes = config.window_bytes,
            .windows_bytes = @max(config.window_bytes, config.windows_bytes),
            .heartbeat_ns = config.heartbeat_ns,
            .silence_ns = config.silence_ns,
            .prepare_ns = config.prepare_ns,
            .stall_warning_ns = config.stall_warning_ns,
            .stall_ns = config.stall_ns,
            .journal = if (config.has_journal) world.disk.journal_of() else null,
            .journal_retry_ns = config.silence_ns / 2,
            .plan_pause_ns = 4 * config.heartbeat_ns,
        }, host, world.incarnations) catch @panic("out of memory");
        world.incarnations += 1;
        if (world.incarnations > 1) world.note("the coordinator starts again", .{});
        const journal = world.gpa.dupe(u8, world.disk.bytes.items) catch @panic("out of memory");
        errdefer world.take_down_coordinator(.killed, null);
        world.disk.check_flips();
        const log = world.gpa.dupe(u8, world.disk.log.items) catch @panic("out of memory");
        if (config.has_journal) try world.coordinator.restore(node.here(), journal, log);
        world.settle(node);
    }

    /// The coordinator's process ends; another one starts after a while. Null: when somebody says.
    pub fn take_down_coordinator(world: *World, how: EndOfNode, back_after_ns: ?u64) void {
        const node = &world.nodes[coordinator_index];
        if (node.state != .up) return;
        world.note("the coordinator is {t}", .{how});
        if (world.coordinator.run.journal_state == .failed) world.checkers.forgetful = true;
        node.dying = true;
        for (node.connections.items) |connection| for (&connection.ends, 0..) |*e, side| {
            if (e.node != node.index or e.state == .closed) continue;
            e.what = .nothing;
            world.lose_end(connection, @intCast(side), how);
        };
        node.connections.clearRetainingCapacity();
        world.coordinator.destroy();
        world.disk.crash();
        node.state = .down;
        node.frozen_until = 0;
        node.woken.clearRetainingCapacity();
        world.check_memory(node);
        if (back_after_ns) |ns| world.after(ns, .start_coordinator);
    }

    pub fn has_workshops(world: *const World) bool {
        return !world.scripted and Workshop.is_open(&world.config);
    }

    fn budget_bytes(world: *const World) usize {
        const is_small = world.config.processes_max() <= swarm.small_max and !world.scripted;
        return if (is_small) node_bytes_max else node_bytes_max_large;
    }

    fn check_memory(world: *World, node: *const Node) void {
        const peak = &world.statistics.peak_bytes;
        peak.* = @max(peak.*, node.memory.peak_bytes);
        if (node.memory.blocks != 0) world.checkers.fail(
            .leak,
            "node {d} ended and still holds {d} blocks, {d} bytes",
            .{ node.index, node.memory.blocks, node.memory.bytes },
        );
    }

    fn draw_clock(world: *World, node: *Node) void {
        if (world.scripted) return;
        node.clock_offset = @intCast(world.prng_network.below(1 << 40));
        node.clock_goes_at = 0;
        if (world.config.has(.drift)) {
            // Up to 10 % either way.
            node.clock_rate = 65536 - 6553 + world.prng_network.below(2 * 6553);
            world.statistics.fault(.drift);
        }
    }

    // ---- the clock

    pub fn at(world: *World, instant: Instant, what: What) void {
        world.queue.push(world.gpa, .{
            .at = @max(instant, world.now),
            .order = world.order,
            .what = what,
        }) catch @panic("out of memory");
        world.order += 1;
    }

    pub fn after(world: *World, ns: u64, what: What) void {
        world.at(world.now + ns, what);
    }

    /// Nobody has, or will have, another coordinator than the first.
    pub fn keeps_coordinator(world: *const World) bool {
        for (world.config.strikes) |maybe| if (maybe) |strike| if (strike.node == 0) return false;
        return !world.scripted and !world.config.loses_coordinator();
    }

    pub fn failed(world: *const World) bool {
        return world.checkers.violation != null;
    }

    /// Runs until the world is over or a promise is broken.
    pub fn run(world: *World) void {
        while (!world.failed() and world.phase != .over) {
            if (!world.step()) {
                world.checkers.fail(
                    .p6_progress,
                    "nothing is left to happen, and it is not over",
                    .{},
                );
                world.phase = .over;
            }
        }
    }

    /// One event; false if there is none.
    pub fn step(world: *World) bool {
        const event = world.queue.pop() orelse return false;
        assert(event.at >= world.now);
        world.now = event.at;
        world.steps += 1;
        if (world.steps > world.steps_max) {
            world.checkers.fail(.storm, "{d} events, and it is not over", .{world.steps});
            world.phase = .over;
            return true;
        }
        if (event.what.node(world)) |index| if (index != nobody) {
            const node = &world.nodes[index];
            if (node.state != .up) return true;
            if (node.is_frozen()) {
                world.at(node.frozen_until, event.what);
                return true;
            }
        };
        world.trace.mix(world.now);
        world.trace.mix(@intFromEnum(event.what));
        const index = event.what.node(world) orelse coordinator_index;
        world.checkers.of_insider = index != nobody and world.nodes[index].is_insider;
        world.dispatch(event.what);
        world.checkers.of_insider = false;
        if (world.scripted) return true;
        if (world.phase == .safety) faults.maybe(world);
        if (world.phase == .healing) faults.strangers_go_on(world);
        return true;
    }

    fn dispatch(world: *World, what: What) void {
        switch (what) {
            .deliver => |ref| world.deliver(ref),
            .writable => |ref| {
                const node = &world.nodes[world.end(ref).node];
                world.wake(node, ref);
                world.settle(node);
            },
            .opened => |index| world.opened(index),
            .accepted => |index| world.accepted(index),
            .ended => |ref| world.ended(ref),
            .tick => |body| world.tick(&world.nodes[body.node], body.version),
            .thawed => |index| world.settle(&world.nodes[index]),
            .job => |index| {
                world.nodes[index].workshop.step();
                world.settle(&world.nodes[index]);
            },
            .dial_control => |index| world.dial_control(&world.nodes[index]),
            .start_coordinator => world.start_coordinator(),
            .written => |incarnation| world.disk.written(incarnation),
            .start => |index| world.start_peer(&world.nodes[index]),
            .user => |body| users.woken(
                &world.nodes[body.node].users[body.user],
                body.version,
            ),
            .cancel => |index| calls.cancel(world.works.items[index]),
            .scribble => |index| syncs.scribble(world.works.items[index]),
            .watchdog => |index| calls.watchdog(world.works.items[index]),
            .given_back => |index| calls.given_back(world.works.items[index]),
            .admit_watchdog => |body| users.admit_watchdog(
                &world.nodes[body.node].users[body.user],
                body.count,
            ),
            .split_due => |body| splits.due(
                &world.nodes[body.node].users[body.user],
                body.count,
            ),
            .stop => |index| world.take_down(&world.nodes[index], .graceful),
            .heal => faults.heal(world),
            .check_progress => ending.check_progress(world),
            .ending => ending.step(world),
            .over => world.phase = .over,
            .searched => |search| finder.found(world, search),
            .stranger_beats => |index| stranger.beat(world, index),
            .stranger_due => |body| stranger.due(world, body),
        }
    }

    // ---- nodes

    /// The next node that has never run; null if all have.
    pub fn add_peer(world: *World, delay_ns: u64) ?NodeIndex {
        if (1 + world.peers_started >= world.nodes.len) return null;
        world.peers_started += 1;
        world.after(delay_ns, .{ .start = world.peers_started });
        return world.peers_started;
    }

    /// Another process takes the place of one that has ended, with an id of its own. The
    /// contributions of the two have one digit: the new one enters an epoch that begins after the
    /// end of the old, so no operation has both.
    pub fn revive(world: *World, node: *Node, delay_ns: u64) void {
        assert(node.state == .down and node.index != coordinator_index);
        node.state = .absent;
        node.generation += 1;
        node.tick_at = base.never;
        node.tick_version += 1;
        node.frozen_until = 0;
        node.dying = false;
        node.dies = false;
        world.after(delay_ns, .{ .start = node.index });
    }

    fn start_peer(world: *World, node: *Node) void {
        assert(node.state == .absent);
        // Ids in an order of their own, so that rank order is not the order of arrival.
        const generation = @as(u64, node.generation) << 32;
        var prng = swarm.stream(world.config.seed ^ node.index ^ generation, "id");
        const high = if (world.scripted) @as(u64, node.index) << 48 else prng.next();
        node.id = .from_int(@as(u128, high) << 64 | generation | node.index);
        world.digits.put(world.gpa, node.id, node.digit()) catch @panic("out of memory");
        node.memory = .init(world.backing, world.budget_bytes());
        node.state = .up;
        const breaks_rules = if (world.insiders) |*all| all.has(node.index) else false;
        node.is_insider = breaks_rules and world.phase == .safety;
        node.was_insider = node.was_insider or node.is_insider;
        world.draw_clock(node);
        world.note("p{d} starts, id {s}", .{ node.index, node.id.short() });
        node.workshop = .init(node, &world.config);
        node.session = driver.create(node.memory.allocator(), .{
            .peer_id = node.id,
            .run_id = run_id,
            .seed = prng.next(),
            .address_key = @splat(@truncate(prng.next())),
            .label = .shown(&.{ 'p', '0' + @as(u8, @intCast(node.index % 10)) }),
            .in_flight_max = world.config.in_flight_max,
            .fragment_bytes_min = world.config.fragment_bytes_min,
            .runner = if (world.has_workshops()) node.workshop.runner() else null,
            .probe_bytes_max = probe_bytes_max,
            .host = .{ .ctx = node, .vtable = &session_host },
        }) catch @panic("out of memory");
        var address: [finder.text_bytes_max]u8 = undefined;
        const here = finder.name_of(node.index, &address);
        driver.set_address(node.session.?, here) catch @panic("out of memory");
        if (node.generation == 0) {
            node.users = world.gpa.alloc(users.User, world.config.groups) catch
                @panic("out of memory");
            for (node.users, 0..) |*user, index| user.* = .init(node, @intCast(index));
        } else for (node.users) |*user| user.reset();
        node.wants_control = true;
        world.dial_control(node);
        if (world.scripted) return users.join(&node.users[0]);
        for (node.users) |*user| users.start(user);
    }

    pub fn take_down(world: *World, node: *Node, how: EndOfNode) void {
        if (node.state != .up) return;
        assert(node.index != coordinator_index);
        world.note("p{d} is {t}", .{ node.index, how });
        node.dying = true;
        // First the network, all at once; then the engine learns of it, one lane after the other,
        // and may itself close or dial more.
        for (node.connections.items) |connection| {
            for (&connection.ends, 0..) |*e, side| {
                if (e.node != node.index or e.state == .closed) continue;
                world.lose_end(connection, @intCast(side), how);
            }
        }
        const s = node.session.?;
        for (s.links.items) |link|
            world.statistics.probed_bytes += base.limits.probe_bytes_max - link.probe_left;
        var index: usize = 0;
        while (index < node.connections.items.len) : (index += 1) {
            for (&node.connections.items[index].ends) |*e| {
                if (e.node != node.index or e.what != .lane) continue;
                const lane = e.what.lane;
                e.what = .nothing;
                driver.closed(s, node.here(), lane);
            }
        }
        if (node.control != null) {
            node.control = null;
            control.closed(s, node.here());
        }
        node.connections.clearRetainingCapacity();
        driver.destroy(s);
        node.workshop.close();
        node.session = null;
        node.state = .down;
        users.node_down(node);
        node.woken.clearRetainingCapacity();
        world.check_memory(node);
    }

    fn lose_end(world: *World, connection: *Connection, side: u1, how: EndOfNode) void {
        connection.ends[side].state = .closed;
        switch (how) {
            .killed, .graceful => world.finish_pipe(.{
                .connection = connection.index,
                .side = side,
            }),
            .reset => world.reset(connection),
            .vanished => for (&connection.pipes) |*pipe| {
                pipe.swallows = true;
                pipe.discard();
            },
        }
    }

    /// After every call into a node: move what it wants to send, listen to what it said, plan its
    /// tick.
    pub fn settle(world: *World, node: *Node) void {
        while (node.state == .up) {
            if (node.dies) {
                node.dies = false;
                faults.died_at_point(world, node);
                return;
            }
            if (node.is_frozen()) return;
            if (world.pump(node)) continue;
            if (node.index != coordinator_index and users.listen(node)) continue;
            break;
        }
        if (node.state != .up) return;
        if (node.index != coordinator_index) users.observe(node) else world.observe_epochs();
        // Memory that changed bytes ask for, as a fuzzed coordinator's windows, may be refused.
        if (node.memory.refused) world.checkers.lives(
            .memory,
            "node {d} holds {d} bytes and wants more than its budget",
            .{ node.index, node.memory.bytes },
        );
        world.plan_tick(node);
    }

    fn observe_epochs(world: *World) void {
        for (world.coordinator.run.groups.items) |group| for (group.epochs.items) |epoch| {
            world.checkers.epoch_begun(group.name, epoch.number, epoch.began.round);
        };
        world.starved.observe(world);
    }

    fn plan_tick(world: *World, node: *Node) void {
        const wanted = if (node.session) |s|
            driver.next_deadline(s)
        else
            world.coordinator.next_deadline();
        if (wanted == base.never) return;
        var instant = @max(world.now, node.global(wanted));
        if (instant >= node.tick_at) return;
        instant += faults.tick_lateness(world);
        node.tick_at = instant;
        node.tick_version += 1;
        world.at(instant, .{ .tick = .{ .node = node.index, .version = node.tick_version } });
    }

    fn tick(world: *World, node: *Node, version: u32) void {
        if (version != node.tick_version) return;
        node.tick_at = base.never;
        const now = node.here();
        const wanted = if (node.session) |s|
            driver.next_deadline(s)
        else
            world.coordinator.next_deadline();
        if (wanted <= now) {
            const worked = node.worked();
            const again = node.last_tick_at == world.now and worked == node.worked_before;
            node.worked_before = worked;
            node.ticks_in_a_row = if (again) node.ticks_in_a_row + 1 else 0;
            node.last_tick_at = world.now;
            if (node.ticks_in_a_row > 100) return world.checkers.fail(
                .storm,
                "node {d}: tick leaves a deadline in the past again and again",
                .{node.index},
            );
            if (node.session) |s| driver.tick(s, now) else world.coordinator.tick(now);
        }
        world.settle(node);
    }

    // ---- connections

    pub fn end(world: *const World, ref: Ref) *End {
        return &world.connections.items[ref.connection].ends[ref.side];
    }

    fn other_end(world: *const World, ref: Ref) *End {
        return world.end(.{ .connection = ref.connection, .side = 1 - ref.side });
    }

    pub fn connect(world: *World, from: NodeIndex, to: NodeIndex, is_control: bool) *Connection {
        const shape = faults.draw_shape(world);
        const connection = world.gpa.create(Connection) catch @panic("out of memory");
        connection.* = .{
            .index = @intCast(world.connections.items.len),
            .is_control = is_control,
            .ends = .{ .{ .node = from }, .{ .node = to } },
            .pipes = .{
                network.Pipe.init(world.gpa, shape[0]) catch @panic("out of memory"),
                network.Pipe.init(world.gpa, shape[1]) catch @panic("out of memory"),
            },
        };
        world.connections.append(world.gpa, connection) catch @panic("out of memory");
        for ([_]NodeIndex{ from, to }) |index| if (index != nobody) {
            world.nodes[index].connections.append(world.gpa, connection) catch
                @panic("out of memory");
        };
        for (world.deafness.items) |item| {
            if (item.until > world.now) faults.swallow(connection, item.from, item.to);
        }
        return connection;
    }

    fn dial_control(world: *World, node: *Node) void {
        if (node.state != .up or node.control != null or !node.wants_control) return;
        node.wants_control = false;
        const connection = world.connect(node.index, coordinator_index, true);
        world.note("p{d} dials the coordinator: connection {d}", .{ node.index, connection.index });
        connection.ends[0].what = .control;
        node.control = .{ .connection = connection.index, .side = 0 };
        faults.fate_of_dial(world, connection);
    }

    fn dial_lane(world: *World, node: *Node, lane: *Lane, address: []const u8) void {
        const to = finder.told_of(world, address) orelse nobody;
        if (to == nobody and !(world.scripted and finder.is_stranger(address))) {
            world.checkers.lives(.interface, "a dial to \"{s}\"", .{address});
        }
        const connection = world.connect(node.index, to, false);
        connection.ends[0].what = .{ .lane = lane };
        lane.driver = connection.index * 2;
        if (node.dying) { // never leaves; take_down ends it
            connection.ends[0].state = .closed;
            return;
        }
        world.note("p{d} dials p{d}: connection {d}", .{ node.index, to, connection.index });
        faults.fate_of_dial(world, connection);
    }

    fn opened(world: *World, index: u32) void {
        const connection = world.connections.items[index];
        const e = &connection.ends[0];
        if (e.state != .pending) return;
        e.state = .open;
        const node = &world.nodes[e.node];
        const ref: Ref = .{ .connection = index, .side = 0 };
        switch (e.what) {
            .lane => |lane| driver.opened(node.session.?, node.here(), lane),
            .control => control.opened(node.session.?, node.here()),
            .nothing, .accepted, .stranger => unreachable,
        }
        world.schedule_delivery(connection, 1);
        world.wake(node, ref);
        world.settle(node);
    }

    /// Every node is a host of its own.
    fn source_of(node: NodeIndex) base.Source {
        var source: base.Source = @splat(0);
        source[0] = 0xfd;
        std.mem.writeInt(u32, source[4..8], node, .big);
        return source;
    }

    fn accepted(world: *World, index: u32) void {
        const connection = world.connections.items[index];
        const e = &connection.ends[1];
        if (e.state != .pending) return;
        const node = &world.nodes[e.node];
        const ref: Ref = .{ .connection = index, .side = 1 };
        const source = source_of(connection.ends[0].node);
        if (node.index == coordinator_index) {
            if (world.coordinator.accept(node.here(), source)) |accepted_connection| {
                accepted_connection.driver = index * 2 + 1;
                e.what = .{ .accepted = accepted_connection };
            }
        } else if (driver.accept(node.session.?, node.here(), source)) |lane| {
            lane.driver = index * 2 + 1;
            e.what = .{ .lane = lane };
        }
        if (e.what == .nothing) {
            e.state = .closed;
            world.finish_pipe(ref);
        } else {
            e.state = .open;
            if (connection.is_looked_after) stranger.let_in(world, connection);
            world.schedule_delivery(connection, 0);
            world.wake(node, ref);
        }
        world.settle(node);
    }

    /// The node learns that a connection is gone (closed by the other end, reset, or a dial that
    /// failed).
    fn ended(world: *World, ref: Ref) void {
        const connection = world.connections.items[ref.connection];
        const e = &connection.ends[ref.side];
        if (e.state == .closed) return;
        const what = e.what;
        const never_was = e.state == .pending and ref.side == 0;
        e.state = .closed;
        e.what = .nothing;
        world.finish_pipe(ref);
        if (e.node == nobody) return;
        const node = &world.nodes[e.node];
        const now = node.here();
        world.note("{d} learns that connection {d} ended", .{ node.index, ref.connection });
        switch (what) {
            .lane => |lane| if (never_was)
                driver.failed(node.session.?, now, lane, .refused)
            else
                driver.closed(node.session.?, now, lane),
            .control => {
                node.control = null;
                control.closed(node.session.?, now);
            },
            .accepted => |accepted_connection| world.coordinator.closed(now, accepted_connection),
            .nothing, .stranger => {},
        }
        world.settle(node);
    }

    /// This end sends nothing more; the other learns it after what is under way.
    pub fn finish_pipe(world: *World, ref: Ref) void {
        const connection = world.connections.items[ref.connection];
        const pipe = &connection.pipes[ref.side];
        if (!pipe.finished) {
            pipe.finished = true;
            pipe.last_arrival = @max(pipe.last_arrival, world.now + pipe.shape.delay_ns);
        }
        world.schedule_delivery(connection, ref.side);
    }

    /// Both ends lose it; what is under way is lost.
    pub fn reset(world: *World, connection: *Connection) void {
        for (&connection.pipes, 0..) |*pipe, side| {
            pipe.discard();
            pipe.swallows = true;
            const e = &connection.ends[side];
            if (e.state == .closed) continue;
            const delay = world.prng_network.below(pipe.shape.delay_ns + ms);
            world.after(delay, .{ .ended = .{
                .connection = connection.index,
                .side = @intCast(side),
            } });
        }
    }

    pub fn schedule_delivery(world: *World, connection: *Connection, side: u1) void {
        const pipe = &connection.pipes[side];
        if (pipe.scheduled) return;
        const next = pipe.next_arrival() orelse return;
        pipe.scheduled = true;
        world.at(next, .{ .deliver = .{ .connection = connection.index, .side = side } });
    }

    fn deliver(world: *World, ref: Ref) void {
        const connection = world.connections.items[ref.connection];
        const pipe = &connection.pipes[ref.side];
        pipe.scheduled = false;
        const receiver: Ref = .{ .connection = ref.connection, .side = 1 - ref.side };
        const e = world.end(receiver);
        if (e.state == .pending) return; // delivered once it is open
        var pieces: [2][]const u8 = undefined;
        var moved = false;
        while (pipe.read(world.now, &pieces)) |_| {
            moved = true;
            if (e.state == .closed) break;
            if (faults.cut(world, connection, pieces[0].len + pieces[1].len)) break;
            for (pieces) |piece| if (piece.len > 0 and e.state == .open) world.feed(
                receiver,
                piece,
            );
        }
        if (e.state == .closed) {
            // Bytes for an end that is closed are answered with a reset.
            pipe.discard();
            pipe.swallows = true;
            if (moved and world.end(ref).state != .closed) {
                world.after(pipe.shape.delay_ns, .{ .ended = ref });
            }
        } else if (pipe.length == 0 and pipe.finished and !pipe.swallows and
            pipe.last_arrival <= world.now and pipe.stalled_until <= world.now)
        {
            world.ended(receiver);
        } else {
            world.schedule_delivery(connection, ref.side);
        }
        if (pipe.blocked and pipe.room() > 0) {
            pipe.blocked = false;
            if (world.end(ref).state != .closed and world.end(ref).node != nobody)
                world.after(0, .{ .writable = ref });
        }
        if (e.node != nobody) world.settle(&world.nodes[e.node]);
    }

    /// Bytes arrive at a node.
    fn feed(world: *World, ref: Ref, bytes: []const u8) void {
        const e = world.end(ref);
        world.statistics.bytes += bytes.len;
        switch (e.what) {
            .lane => world.feed_lane(ref, bytes),
            .control => {
                const node = &world.nodes[e.node];
                const s = node.session.?;
                var rest = bytes;
                while (rest.len > 0) {
                    const room = s.control.recv_slice() catch return world.out_of_memory(node);
                    const count = @min(room.len, rest.len);
                    @memcpy(room[0..count], rest[0..count]);
                    s.control.received(count);
                    rest = rest[count..];
                }
                control.received(s, node.here());
            },
            .accepted => |connection| {
                const node = &world.nodes[coordinator_index];
                var rest = bytes;
                while (rest.len > 0) {
                    const room = connection.stream.recv_slice() catch
                        return world.out_of_memory(node);
                    const count = @min(room.len, rest.len);
                    @memcpy(room[0..count], rest[0..count]);
                    connection.stream.received(count);
                    rest = rest[count..];
                }
                world.coordinator.received(node.here(), connection);
            },
            .stranger => {},
            .nothing => unreachable,
        }
    }

    fn out_of_memory(world: *World, node: *const Node) void {
        world.checkers.fail(.leak, "node {d} holds {d} bytes and wants more", .{
            node.index, node.memory.bytes,
        });
    }

    fn feed_lane(world: *World, ref: Ref, bytes: []const u8) void {
        const e = world.end(ref);
        const node = &world.nodes[e.node];
        const s = node.session.?;
        var rest = bytes;
        // The engine may close the lane in the middle.
        while (rest.len > 0 and e.state == .open) {
            const lane = e.what.lane;
            var slices: [2][]u8 = undefined;
            const count = driver.recv_slices(s, lane, &slices);
            if (count < 1 or count > 2 or slices[0].len == 0) return world.checkers.fail(
                .interface,
                "p{d}: lane_recv_slices gives {d} slices",
                .{ node.index, count },
            );
            var taken: usize = 0;
            for (slices[0..count]) |slice| {
                const length = @min(slice.len, rest.len);
                if (length > 0) calls.check_received_place(node, slice);
                @memcpy(slice[0..length], rest[0..length]);
                rest = rest[length..];
                taken += length;
            }
            if (lane.discard > 0 and taken >= lane.discard)
                copies.thrown_away(world, lane, world.other_end(ref).node, node.index);
            driver.received(s, node.here(), lane, taken);
        }
    }

    pub fn wake(world: *World, node: *Node, ref: Ref) void {
        const e = world.end(ref);
        if (e.woken or e.state == .closed) return;
        e.woken = true;
        node.woken.append(world.gpa, ref) catch @panic("out of memory");
    }

    /// Sends for all ends that were woken; true if there was any.
    fn pump(world: *World, node: *Node) bool {
        if (node.control) |ref| {
            if (node.session.?.control.send_slice().len > 0) world.pump_control(node, ref);
        }
        if (node.woken.items.len == 0) return false;
        // Pumping wakes others; they wait for the next round.
        var index: usize = 0;
        while (index < node.woken.items.len) : (index += 1) {
            const ref = node.woken.items[index];
            const e = world.end(ref);
            e.woken = false;
            if (e.state != .open) continue;
            if (node.is_insider) insider.drain(world, ref);
            switch (e.what) {
                .lane => world.pump_lane(node, ref),
                .control => world.pump_control(node, ref),
                .accepted => |connection| world.pump_stream(ref, &connection.stream),
                .stranger => {},
                .nothing => unreachable,
            }
            if (index > 10_000) {
                world.checkers.fail(
                    .storm,
                    "node {d}: lanes wake each other for ever",
                    .{node.index},
                );
                return false;
            }
        }
        node.woken.clearRetainingCapacity();
        return true;
    }

    fn pump_control(world: *World, node: *Node, ref: Ref) void {
        if (world.end(ref).state != .open) return;
        world.pump_stream(ref, &node.session.?.control);
    }

    fn pump_stream(world: *World, ref: Ref, stream: *wire.Stream) void {
        const pipe = &world.connections.items[ref.connection].pipes[ref.side];
        while (stream.send_slice().len > 0) {
            if (pipe.room() == 0) {
                pipe.blocked = true;
                break;
            }
            const taken = world.push_bytes(ref, stream.send_slice());
            stream.sent(taken);
        }
        world.schedule_delivery(world.connections.items[ref.connection], ref.side);
    }

    fn pump_lane(world: *World, node: *Node, ref: Ref) void {
        const e = world.end(ref);
        const pipe = &world.connections.items[ref.connection].pipes[ref.side];
        const s = node.session.?;
        while (e.state == .open) {
            if (pipe.room() == 0) {
                pipe.blocked = true;
                break;
            }
            const lane = e.what.lane;
            var slices: [2][]const u8 = undefined;
            const count = driver.send_slices(s, node.here(), lane, &slices);
            if (count == 0) break;
            copies.leaves(world, lane, node.index, world.other_end(ref).node);
            syncs.check_given(node, lane);
            var total: usize = 0;
            for (slices[0..count]) |slice| {
                calls.check_sent_place(node, slice);
                const taken = world.push_bytes(ref, slice);
                total += taken;
                if (taken < slice.len) break;
            }
            if (e.state != .open) break;
            driver.sent(s, node.here(), lane, total);
        }
        world.schedule_delivery(world.connections.items[ref.connection], ref.side);
    }

    /// The coordinator's messages so far leave before it goes on.
    pub fn flush_coordinator(world: *World) void {
        const node = &world.nodes[coordinator_index];
        for (node.woken.items) |ref| {
            const e = world.end(ref);
            if (e.state == .open and e.what == .accepted) {
                world.pump_stream(ref, &e.what.accepted.stream);
            }
        }
    }

    fn push_bytes(world: *World, ref: Ref, bytes: []const u8) u32 {
        const sender = world.end(ref).node;
        if (sender != nobody and world.nodes[sender].is_insider) {
            insider.say(world, ref, bytes);
            return @intCast(bytes.len);
        }
        const taken = world.write(ref, if (world.fuzz) |f| f.change(bytes) else bytes);
        const connection = world.connections.items[ref.connection];
        switch (connection.ends[ref.side].what) {
            .accepted => |heard_as| {
                const to = connection.ends[1 - ref.side].node;
                connection.told.hear(world, to, heard_as, bytes[0..taken]);
            },
            else => {},
        }
        return taken;
    }

    /// As much as there is room for leaves this end.
    pub fn write(world: *World, ref: Ref, bytes: []const u8) u32 {
        const connection = world.connections.items[ref.connection];
        const taken = connection.pipes[ref.side].write(world.now, &world.prng_network, bytes);
        const sender = connection.ends[ref.side].node;
        if (sender != nobody) world.nodes[sender].said_bytes += taken;
        if (world.trace.text != .off) {
            connection.taps[ref.side].feed(world, connection, ref.side, bytes[0..taken]);
        }
        if (world.overheard) |o| o.listen(world, connection, ref.side, bytes[0..taken]);
        return taken;
    }

    pub fn note(world: *World, comptime format: []const u8, args: anytype) void {
        world.trace.note(world.now, format, args);
    }

    /// Ends the world's processes; what they still hold afterwards is a leak.
    pub fn deinit(world: *World) void {
        world.trace.text = .off;
        for (world.nodes[1..]) |*node| world.take_down(node, .killed);
        const node = &world.nodes[coordinator_index];
        if (node.state == .up) {
            node.dying = true;
            world.coordinator.destroy();
            node.state = .down;
            world.check_memory(node);
        }
        calls.check_borrowed(world);
    }
};

// ---- what the engine asks of its driver

const session_host: session_layer.Host.VTable = .{
    .dial = host_dial,
    .lane_close = host_lane_close,
    .lane_wake = host_lane_wake,
    .lane_sample = host_lane_sample,
    .lane_pace = host_lane_pace,
    .control_dial = host_control_dial,
    .control_close = host_control_close,
    .group_event = host_group_event,
    .operation_finished = host_operation_finished,
    .operation_resolved = host_operation_resolved,
    .fault_point = host_fault_point,
    .log = host_log,
};

const coordinator_host: Coordinator.Host.VTable = .{
    .close = host_connection_close,
    .wake = host_connection_wake,
    .find = host_find,
    .log = host_coordinator_log,
};

fn node_of(ctx: *anyopaque) *Node {
    return @ptrCast(@alignCast(ctx));
}

fn host_dial(ctx: *anyopaque, lane: *Lane, address: []const u8) void {
    const node = node_of(ctx);
    node.world.dial_lane(node, lane, address);
}

fn ref_of(number: usize) Ref {
    return .{ .connection = @intCast(number / 2), .side = @intCast(number % 2) };
}

fn host_lane_close(ctx: *anyopaque, lane: *Lane) void {
    const node = node_of(ctx);
    const ref = ref_of(lane.driver);
    const e = node.world.end(ref);
    if (e.what != .lane or e.what.lane != lane) {
        return node.world.checkers.fail(.interface, "p{d} closes a lane twice", .{node.index});
    }
    if (node.dying) {
        e.what = .nothing;
        return;
    }
    node.world.note("p{d} closes connection {d}", .{ node.index, ref.connection });
    e.state = .closed;
    e.what = .nothing;
    node.world.finish_pipe(ref);
}

fn host_lane_wake(ctx: *anyopaque, lane: *Lane) void {
    const node = node_of(ctx);
    if (node.dying) return;
    const ref = ref_of(lane.driver);
    const e = node.world.end(ref);
    if (e.state == .closed or e.what != .lane or e.what.lane != lane) {
        return node.world.checkers.fail(.interface, "p{d} wakes a closed lane", .{node.index});
    }
    node.world.wake(node, ref);
}

fn host_control_close(ctx: *anyopaque) void {
    const node = node_of(ctx);
    if (node.dying) return;
    const ref = node.control orelse return;
    node.world.note("p{d} closes its control connection", .{node.index});
    node.control = null;
    const e = node.world.end(ref);
    e.state = .closed;
    e.what = .nothing;
    node.world.finish_pipe(ref);
}

fn host_lane_sample(ctx: *anyopaque, lane: *Lane) ?session_layer.Sample {
    const world = node_of(ctx).world;
    if (!paths.are_open(&world.config)) return null;
    // At rest nobody may dial, and an opened lane is not measured yet: what it asks for would wait.
    const is_measured = world.phase == .safety and lane.sample != null;
    const session = node_of(ctx).session.?;
    if (is_measured) if (lane.link) |link| paths.wish(&world.prng_paths, session, link);
    return paths.sample(&world.prng_paths, lane.sample);
}

fn host_lane_pace(ctx: *anyopaque, lane: *Lane, _: session_layer.Pace) void {
    const node = node_of(ctx);
    if (node.dying) return;
    const e = node.world.end(ref_of(lane.driver));
    if (e.what == .lane and e.what.lane == lane) return;
    node.world.checkers.fail(.interface, "p{d} paces a closed lane", .{node.index});
}

fn host_control_dial(ctx: *anyopaque) void {
    const node = node_of(ctx);
    if (node.dying) return;
    node.wants_control = true;
    node.world.after(0, .{ .dial_control = node.index });
}

fn host_group_event(
    ctx: *anyopaque,
    group: *session_layer.Group,
    event: session_layer.GroupEvent,
) void {
    const node = node_of(ctx);
    if (node.dying) return;
    users.group_event(node, group, event);
}

fn host_operation_finished(ctx: *anyopaque, op: *session_layer.Operation) void {
    const node = node_of(ctx);
    if (node.dying) return;
    calls.operation_finished(node, op);
}

fn host_operation_resolved(ctx: *anyopaque, op: *session_layer.Operation) void {
    const node = node_of(ctx);
    if (node.dying) return;
    calls.operation_resolved(node, op);
}

fn host_fault_point(
    ctx: *anyopaque,
    point: session_layer.FaultPoint,
    sequence: u64,
    done: u64,
    total: u64,
) void {
    const node = node_of(ctx);
    if (node.dying) return;
    node.world.trace.mix(@intFromEnum(point));
    faults.at_point(node.world, node, point, sequence, done, total);
}

fn host_log(ctx: *anyopaque, level: protocol.LogLevel, message: []const u8) void {
    const node = node_of(ctx);
    node.world.note("p{d} says ({t}): {s}", .{ node.index, level, message });
}

fn host_connection_close(ctx: *anyopaque, connection: *protocol.Connection) void {
    const node = node_of(ctx);
    const ref = ref_of(connection.driver);
    const e = node.world.end(ref);
    if (e.state == .closed) {
        return node.world.checkers.fail(
            .interface,
            "the coordinator closes a connection twice",
            .{},
        );
    }
    if (node.dying) {
        e.what = .nothing;
        return;
    }
    if (!node.dies) node.world.pump_stream(ref, &connection.stream);
    node.world.note("the coordinator closes connection {d}", .{ref.connection});
    e.state = .closed;
    e.what = .nothing;
    node.world.finish_pipe(ref);
}

fn host_connection_wake(ctx: *anyopaque, connection: *protocol.Connection) void {
    const node = node_of(ctx);
    if (node.dying) return;
    node.world.wake(node, ref_of(connection.driver));
}

fn host_find(
    ctx: *anyopaque,
    question: *const protocol.addresses.Question,
) protocol.addresses.Reply {
    return finder.find(node_of(ctx).world, question);
}

fn host_coordinator_log(ctx: *anyopaque, level: protocol.LogLevel, message: []const u8) void {
    const node = node_of(ctx);
    node.world.note("coordinator says ({t}): {s}", .{ level, message });
    if (!node.dying) node.world.starved.observe(node.world);
}
