//! Runner: one seed from its first event to its verdict, and again with text when it failed. A Rig
//! holds the memory that worlds use one after the other. Used by main.zig, sweep.zig, canaries.zig,
//! narrow.zig.

const std = @import("std");
const Borrowed = @import("borrowed.zig").Borrowed;
const Config = @import("swarm.zig").Config;
const Fuzz = @import("fuzz.zig").Fuzz;
const Statistics = @import("statistics.zig").Statistics;
const Trace = @import("trace.zig").Trace;
const Violation = @import("checkers.zig").Violation;
const World = @import("world.zig").World;
const Allocator = std.mem.Allocator;

/// The world under way, for a panic's message (main.zig).
pub threadlocal var config_under_way: ?Config = null;
pub threadlocal var is_fuzzing: bool = false;

pub const Result = struct {
    violation: ?Violation,
    hash: u64,
    events: u64,
    /// Events before all was well.
    events_of_safety: u64,
};

/// The options behind all worlds of this process, each after a space (main.zig).
pub var options_given: []const u8 = "";

/// The command that runs one world again.
pub fn print_replay(config: *const Config) void {
    std.debug.print("  replay: pccl-sim --seed {d}{s}", .{ config.seed, options_given });
    if (options_given.len > 0) return std.debug.print(" --trace\n", .{});
    if (config.profile != .drawn) std.debug.print(" --profile {t}", .{config.profile});
    if (config.strikes[0] != null) std.debug.print(" --sweep-base", .{});
    for (config.strikes) |maybe| if (maybe) |strike| {
        std.debug.print(" --strike {f}", .{strike});
    };
    std.debug.print(" --trace\n", .{});
}

pub const Rig = struct {
    backing: Allocator,
    arena: std.heap.ArenaAllocator,
    borrowed: Borrowed,
    statistics: Statistics = .{},
    /// Only failures are printed.
    quiet: bool = false,

    const borrowed_bytes = 4 << 20;

    pub fn init(backing: Allocator) !Rig {
        return .{
            .backing = backing,
            .arena = .init(backing),
            .borrowed = try .init(backing, borrowed_bytes),
        };
    }

    pub fn deinit(rig: *Rig) void {
        rig.arena.deinit();
        rig.borrowed.deinit(rig.backing);
    }

    pub fn run(rig: *Rig, config: Config, text: Trace.Text) Result {
        var last: Trace = undefined;
        return rig.run_traced(config, text, null, &last);
    }

    /// Only what breaks a process counts (fuzz.zig).
    pub fn run_fuzzed(rig: *Rig, config: Config, fuzz: *Fuzz, text: Trace.Text) Result {
        var last: Trace = undefined;
        return rig.run_traced(config, text, fuzz, &last);
    }

    fn run_traced(
        rig: *Rig,
        config: Config,
        text: Trace.Text,
        fuzz: ?*Fuzz,
        trace: *Trace,
    ) Result {
        config_under_way = config;
        is_fuzzing = fuzz != null;
        defer config_under_way = null;
        _ = rig.arena.reset(.retain_capacity);
        const arena = rig.arena.allocator();
        const world = arena.create(World) catch @panic("out of memory");
        world.init(.{
            .arena = arena,
            .backing = rig.backing,
            .borrowed = &rig.borrowed,
            .statistics = &rig.statistics,
            .config = config,
            .text = text,
        });
        if (fuzz) |f| {
            world.fuzz = f;
            world.checkers.lives_only = true;
            world.steps_max = 30_000;
        }
        for (0..config.peers_start) |_| {
            _ = world.add_peer(world.prng_users.below(20_000_000));
        }
        world.run();
        world.deinit();
        rig.count(world);
        trace.* = world.trace;
        return .{
            .violation = world.checkers.violation,
            .hash = world.trace.hash,
            .events = world.steps,
            .events_of_safety = world.healed_step,
        };
    }

    fn count(rig: *Rig, world: *const World) void {
        const statistics = &rig.statistics;
        statistics.seeds += 1;
        if (world.config.is_calm()) statistics.calm_seeds += 1;
        statistics.events += world.steps;
        statistics.virtual_ns += world.now;
        statistics.excused.getPtr(.own_experience).* += world.checkers.excused;
        statistics.peers += world.digits.count();
        statistics.connections += world.connections.items.len;
    }

    /// Runs a seed again and prints its last lines. The second run must fail like the first.
    pub fn explain(rig: *Rig, config: Config, first: *const Violation) void {
        var trace: Trace = undefined;
        const again = rig.run_traced(config, .keep_last, null, &trace);
        const out = std.debug.print;
        out("\nseed {d} FAILS: {t}: {s}\n", .{ config.seed, first.check, first.text() });
        out("  {f}\n", .{config});
        out(
            "  the last {d} of {d} lines:\n",
            .{ @min(trace.count, Trace.lines_kept), trace.count },
        );
        trace.print_last();
        const same = again.violation != null and again.violation.?.check == first.check;
        if (!same) out(
            "  NOT DETERMINISTIC: the second run of this seed did not fail alike\n",
            .{},
        );
    }
};
