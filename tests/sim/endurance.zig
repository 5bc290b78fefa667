//! Endurance: one world that lives long: a hundred thousand calls, with thousands of joins, losses
//! and starts of the coordinator; the memory of each process must stay flat. Other worlds are
//! short, so memory that grows a little with each call does not show in them. Two peers live
//! through all of it; the coordinator is killed again and again in the first part, and then lives
//! on.
//!
//! Memory is compared by its floor. The floor is the least that a process held in a window of many
//! calls, when none of its operations was in flight and as many peers as ever were up, less the
//! buffers that are kept for later and have bounds of their own (collective/pool.zig,
//! wire/stream.zig). Worlds: world.zig; their faults: faults.zig. Members that give up thousands of
//! operations in one epoch: forgiven.zig.

const std = @import("std");
const base = @import("base");
const Borrowed = @import("borrowed.zig").Borrowed;
const Class = swarm.Class;
const Config = swarm.Config;
const Statistics = @import("statistics.zig").Statistics;
const Node = world_file.Node;
const World = world_file.World;
const runner = @import("runner.zig");
const swarm = @import("swarm.zig");
const world_file = @import("world.zig");
const Allocator = std.mem.Allocator;
const limits = base.limits;
const ms = world_file.ms;
const out = std.debug.print;

pub const calls_default = 100_000;

/// The world's calls are divided into so many windows.
const windows = 20;
/// In those before this one the coordinator is killed.
const windows_of_restarts = 8;
/// A process grows if its floors at the end of a part lie above all those at its beginning by more
/// than this. The coordinator remembers the peers that came in the last minutes, which takes 25 to
/// 50 KiB, and the first floors after its last start come before it remembers as many. Peers keep
/// links to the dead for a while, and more of them when more have died.
const slack_bytes: Floors = .{ 16 * limits.KiB, 32 * limits.KiB, 32 * limits.KiB };
/// Memory that users lend for one call, at most on average.
const borrowed_bytes_per_call = 2 * limits.KiB;
/// A journal is written anew when this much was appended (protocol/log.zig).
const journal_bytes_max = 2 * limits.MiB;

/// Peers with these numbers are never killed and never leave.
pub const survivors = 2;

const Process = enum { coordinator, peer_1, peer_2 };
const processes = std.enums.values(Process).len;
const Floors = [processes]usize;

pub const Options = struct {
    calls: u32 = calls_default,
    seed: u64 = 0,
    quiet: bool = false,
};

fn config_of(options: Options) Config {
    var config = Config.plain();
    config.seed = options.seed;
    config.profile = .endurance;
    config.calls = options.calls;
    config.peers_start = 4;
    config.peers_max = 8;
    config.initial_world_size = 3;
    config.lanes = 2;
    config.count_max = 16;
    config.tags = 3;
    config.delay_ns_max = ms;
    config.keeps_state = options.seed % 2 == 0;
    const classes = [_]Class{
        .crash,         .vanish, .crash_coordinator, .leave,    .reset_lane,
        .reset_control, .freeze, .cancel,            .mismatch, .tiny_deadline,
    };
    for (classes) |class| config.levels.set(class, .rare);
    return config;
}

/// 0 if the world kept all promises and its processes stayed flat.
pub fn run(gpa: Allocator, options: Options) !u8 {
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var borrowed = try Borrowed.init(gpa, borrowed_bytes_per_call * (options.calls + 1000), 0);
    defer borrowed.deinit(gpa);
    var statistics: Statistics = .{};
    const world = try arena.allocator().create(World);
    const config = config_of(options);
    runner.config_under_way = config;
    defer runner.config_under_way = null;
    world.init(.{
        .arena = arena.allocator(),
        .backing = gpa,
        .borrowed = &borrowed,
        .statistics = &statistics,
        .config = config,
    });
    for (0..config.peers_start) |_| _ = world.add_peer(0);
    var watch: Watch = .{ .world = world, .quiet = options.quiet };
    watch.run();
    world.deinit();
    if (world.checkers.violation) |*violation| {
        out("endurance, seed {d}, FAILS after {d} calls: {t}: {s}\n", .{
            options.seed, world.calls_finished, violation.check, violation.text(),
        });
        return 1;
    }
    return if (watch.is_flat()) 0 else 1;
}

/// Looks at the memory of those who stay.
const Watch = struct {
    world: *World,
    quiet: bool,
    floors: [windows]Floors = @splat(@splat(std.math.maxInt(usize))),
    window: usize = 0,
    journal_bytes_most: usize = 0,

    fn run(watch: *Watch) void {
        const world = watch.world;
        watch.print_head();
        while (!world.failed() and world.phase != .over) {
            if (!world.step()) break;
            if (world.phase != .safety) continue;
            watch.look();
            const done = world.calls_finished * windows / world.config.calls;
            if (done > watch.window) watch.next_window();
        }
    }

    fn look(watch: *Watch) void {
        const world = watch.world;
        const floors = &watch.floors[watch.window];
        var up: usize = 0;
        for (world.nodes[1..]) |*node| up += @intFromBool(node.state == .up);
        if (up == world.config.peers_start) {
            for (floors, world.nodes[0..processes]) |*floor, *node| {
                if (node.state != .up) continue;
                floor.* = @min(floor.*, node.memory.bytes - kept_bytes(node));
            }
        }
        watch.journal_bytes_most = @max(watch.journal_bytes_most, world.disk.bytes.items.len);
    }

    fn kept_bytes(node: *const Node) usize {
        if (node.session) |s| return s.pool.kept_bytes + s.control.memory();
        var bytes: usize = 0;
        for (node.world.coordinator.run.connections.items) |connection|
            bytes += connection.stream.memory();
        return bytes;
    }

    fn next_window(watch: *Watch) void {
        watch.print_window();
        if (watch.window + 1 == windows) return;
        watch.window += 1;
        if (watch.window == windows_of_restarts) watch.world.faults.stop(.crash_coordinator);
    }

    fn print_head(watch: *const Watch) void {
        if (watch.quiet) return;
        out("{s:>9} {s:>8} {s:>8} {s:>8} {s:>8} {s:>12} {s:>9} {s:>9} {s:>9}\n", .{
            "calls",      "virt. s", "joins",  "losses",  "restarts",
            "coordinat.", "peer 1",  "peer 2", "journal",
        });
    }

    fn print_window(watch: *const Watch) void {
        if (watch.quiet) return;
        const world = watch.world;
        const floors = &watch.floors[watch.window];
        out("{d:>9} {d:>8} {d:>8} {d:>8} {d:>8} {d:>12} {d:>9} {d:>9} {d:>9}\n", .{
            world.calls_finished,
            world.now / std.time.ns_per_s,
            world.checkers.proofs.items.len,
            world.statistics.faults.get(.crash) + world.statistics.faults.get(.vanish),
            world.incarnations - 1,
            floors[@intFromEnum(Process.coordinator)],
            floors[@intFromEnum(Process.peer_1)],
            floors[@intFromEnum(Process.peer_2)],
            world.disk.bytes.items.len,
        });
    }

    /// Whether no process holds more in the end than in the beginning of either part.
    fn is_flat(watch: *const Watch) bool {
        var flat = true;
        for (std.enums.values(Process)) |process| {
            const during = watch.compare(process, 2, windows_of_restarts);
            const afterwards = watch.compare(process, windows_of_restarts + 1, windows);
            flat = flat and during and afterwards;
        }
        if (watch.journal_bytes_most > journal_bytes_max) {
            flat = false;
            out("the journal GROWS: {d} bytes\n", .{watch.journal_bytes_most});
        }
        return flat;
    }

    /// Windows from `first` to `end`: those at their end against those at their beginning.
    fn compare(watch: *const Watch, process: Process, first: usize, end: usize) bool {
        const place = @intFromEnum(process);
        const many = (end - first) / 3;
        var before: usize = 0;
        for (watch.floors[first..][0..many]) |*floors| before = @max(before, floors[place]);
        var after: usize = std.math.maxInt(usize);
        for (watch.floors[end - many .. end]) |*floors| after = @min(after, floors[place]);
        if (after <= before + slack_bytes[place]) return true;
        out("{t} GROWS: {d} bytes when it held least in windows {d} to {d}, {d} in {d} to {d}\n", .{
            process, before, first, first + many - 1, after, end - many, end - 1,
        });
        return false;
    }
};

test "processes stay flat over thousands of calls, with losses, joins and restarts" {
    // A short form of `pccl-sim endurance`, about a second.
    try std.testing.expectEqual(0, try run(std.heap.smp_allocator, .{
        .calls = 6000,
        .quiet = true,
    }));
}
