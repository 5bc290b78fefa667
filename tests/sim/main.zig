//! pccl-sim: runs seeds of the deterministic simulator. How to read its output and how to work with
//! it: docs/internals/SIMULATOR.md. The world is world.zig; this file is the command line and the
//! workers.

const std = @import("std");
const mutant = @import("mutant");
const Config = @import("swarm.zig").Config;
const Statistics = @import("statistics.zig").Statistics;
const Violation = @import("checkers.zig").Violation;
const canaries = @import("canaries.zig");
const endurance = @import("endurance.zig");
const fuzz = @import("fuzz.zig");
const narrow = @import("narrow.zig");
const runner = @import("runner.zig");
const scenario = @import("scenario.zig");
const sweep = @import("sweep.zig");
const targets = @import("fuzz");
const out = std.debug.print;

const usage =
    \\usage: pccl-sim [--seeds N] [--start S] [--seconds T] [--workers W]   run seeds
    \\       pccl-sim --seed X [--trace]                                    replay one
    \\       pccl-sim --shrink X        what of a failing seed can be left out
    \\       pccl-sim fuzz [--seeds N] [--start S]   worlds whose bytes are changed on their way;
    \\                                               --seconds T: first those that once failed
    \\       pccl-sim sweep [--seeds N] [--start S]  a fault at every event of small worlds
    \\       pccl-sim endurance [--calls N]          one long life, whose memory stays flat
    \\       pccl-sim scenario NAME     one transcript of tests/sim/scenarios, with its trace; also
    \\                                  one that is still being written, FILE.txt
    \\       pccl-sim transcripts [N]   all of them, or those from number N on
    \\
    \\Of the build with mutations (zig build mutants):
    \\       pccl-sim mutants           what they are, in lines of JSON
    \\       pccl-sim canaries          those with a named catcher must be caught by it
    \\       pccl-sim --mutant NAME ... any of the above, with this one on
    \\
    \\  --seeds N     so many seeds (default 1000), from --start S (default 0)
    \\  --seconds T   as many seeds as fit into T seconds
    \\  --fresh       from a start that the clock draws, and that is printed, instead of --start
    \\  --workers W   threads (default: as many as there are cores, at most 2)
    \\  --failures N  stop after so many seeds that fail (default 5)
    \\  --trace       print every line of the replay
    \\  --restarts    leave out seeds that do not lose the coordinator
    \\  --sweep-base  the small calm world that sweep makes of the seed
    \\
    \\To narrow a failure down, on top of what the seed draws (`shrink` finds these by itself):
    \\
++ narrow.usage;

const Options = struct {
    seeds: u64 = 1000,
    start: u64 = 0,
    seconds: ?f64 = null,
    fresh: bool = false,
    seed: ?u64 = null,
    shrink: bool = false,
    fuzz: bool = false,
    sweep: bool = false,
    endurance: bool = false,
    sweep_base: bool = false,
    trace: bool = false,
    restarts: bool = false,
    workers: usize = 0,
    /// Stop after so many seeds that fail.
    failures: u32 = 5,
    changes: narrow.Changes = .empty,

    fn config(options: *const Options, seed: u64) Config {
        return narrow.config_of(seed, options.changes.items);
    }

    fn given(options: *const Options, gpa: std.mem.Allocator) ![]const u8 {
        var text: std.Io.Writer.Allocating = .init(gpa);
        if (options.sweep_base) try text.writer.writeAll(" --sweep-base");
        for (options.changes.items) |change| try text.writer.print(" {f}", .{change});
        for (mutant.list, 1..) |*item, number| {
            if (number == mutant.active) try text.writer.print(" --mutant {s}", .{item.name});
        }
        return text.toOwnedSlice();
    }

    fn check(options: *const Options, why: *std.Io.Writer) !void {
        try narrow.check_all(options.changes.items, why);
        const verb = if (options.fuzz) "fuzz" else if (options.sweep) "sweep" else return;
        if (options.changes.items.len == 0) return;
        try why.print("{f}: {s} draws its worlds from their seeds alone", .{
            options.changes.items[0], verb,
        });
        return error.Usage;
    }
};

/// A panic in the engine is a failure of the seed under way: say which.
pub const panic = std.debug.FullPanic(struct {
    fn report(message: []const u8, address: ?usize) noreturn {
        if (targets.under_way) |target| {
            out("\nfuzz seed {d} FAILS: {t}: panic: {s}\n", .{ fuzz.seed, target, message });
            fuzz.print_replay(fuzz.seed);
        } else if (runner.config_under_way) |*config| {
            out("\nseed {d} FAILS: panic: {s}\n", .{ config.seed, message });
            if (runner.is_fuzzing)
                fuzz.print_replay(config.seed)
            else
                runner.print_replay(config);
        }
        std.debug.defaultPanic(message, address);
    }
}.report);

pub fn main(init: std.process.Init) !u8 {
    const gpa = std.heap.smp_allocator;
    var args = try init.minimal.args.iterateAllocator(gpa);
    defer args.deinit();
    _ = args.skip();
    var options: Options = .{};
    var why_bytes: [1000]u8 = undefined;
    var why: std.Io.Writer = .fixed(&why_bytes);
    while (args.next()) |arg| {
        if (std.mem.eql(u8, arg, "canaries")) return run_canaries(gpa);
        if (std.mem.eql(u8, arg, "mutants")) {
            try canaries.print_list(init.io);
            return 0;
        }
        if (std.mem.eql(u8, arg, "transcripts")) {
            const first = std.fmt.parseInt(usize, args.next() orelse "0", 10) catch return 2;
            return canaries.run_transcripts(gpa, first);
        }
        if (std.mem.eql(u8, arg, "sweep")) {
            options.sweep = true;
            continue;
        }
        if (std.mem.eql(u8, arg, "endurance")) {
            options.endurance = true;
            continue;
        }
        if (std.mem.eql(u8, arg, "--sweep-base")) {
            options.sweep_base = true;
            continue;
        }
        if (std.mem.eql(u8, arg, "fuzz")) {
            options.fuzz = true;
            continue;
        }
        if (std.mem.eql(u8, arg, "scenario"))
            return run_scenario(gpa, init.io, args.next() orelse "");
        parse(gpa, &options, arg, &args, &why) catch return refuse(&why);
    }
    options.check(&why) catch return refuse(&why);
    runner.options_given = try options.given(gpa);
    if (options.fresh) options.start = draw_start(init.io);
    if (options.fuzz) return run_fuzz(gpa, init.io, &options);
    if (options.endurance) return run_endurance(gpa, &options);
    if (options.sweep) return run_sweep(gpa, &options);
    if (options.sweep_base) try sweep.add_base(gpa, options.seed orelse 0, &options.changes);
    if (options.seed) |seed| return replay(gpa, seed, &options);
    return run_seeds(gpa, init.io, &options);
}

fn parse(
    gpa: std.mem.Allocator,
    options: *Options,
    arg: []const u8,
    args: *std.process.Args.Iterator,
    why: *std.Io.Writer,
) !void {
    if (std.mem.eql(u8, arg, "--trace")) {
        options.trace = true;
        return;
    }
    if (std.mem.eql(u8, arg, "--fresh")) {
        options.fresh = true;
        return;
    }
    if (std.mem.eql(u8, arg, "--restarts")) {
        options.restarts = true;
        return;
    }
    if (!std.mem.startsWith(u8, arg, "--")) {
        try why.print("there is no command {s}", .{arg});
        return error.Usage;
    }
    const value = args.next() orelse {
        try why.print("{s} needs a value", .{arg});
        return error.Usage;
    };
    const name = arg[2..];
    const number = narrow.parse_number;
    const any: narrow.Bounds = .{ .low = 0, .high = std.math.maxInt(u64) };
    if (std.mem.eql(u8, name, "seeds")) {
        options.seeds = try number(u64, name, value, any, why);
    } else if (std.mem.eql(u8, name, "start")) {
        options.start = try number(u64, name, value, any, why);
    } else if (std.mem.eql(u8, name, "seed")) {
        options.seed = try number(u64, name, value, any, why);
    } else if (std.mem.eql(u8, name, "shrink")) {
        options.seed = try number(u64, name, value, any, why);
        options.shrink = true;
    } else if (std.mem.eql(u8, name, "seconds")) {
        options.seconds = try parse_seconds(value, why);
    } else if (std.mem.eql(u8, name, "failures")) {
        options.failures = try number(u32, name, value, .{ .low = 1, .high = 1_000_000 }, why);
    } else if (std.mem.eql(u8, name, "mutant")) {
        mutant.active = mutant.number_of(value) orelse {
            try why.print("--mutant {s}: it must be one that `pccl-sim mutants` lists, " ++
                "in a build of `zig build mutants`", .{value});
            return error.Usage;
        };
    } else if (std.mem.eql(u8, name, "workers")) {
        options.workers = try number(usize, name, value, .{ .low = 1, .high = 1024 }, why);
    } else {
        try options.changes.append(gpa, try .parse(name, value, why));
    }
}

fn parse_seconds(value: []const u8, why: *std.Io.Writer) !f64 {
    const seconds_max = 1e9;
    if (std.fmt.parseFloat(f64, value)) |seconds| {
        if (seconds >= 0 and seconds <= seconds_max) return seconds;
    } else |_| {}
    try why.print("--seconds {s}: it must be a number from 0 to {d}", .{ value, seconds_max });
    return error.Usage;
}

fn refuse(why: *const std.Io.Writer) u8 {
    out("pccl-sim: {s}\n{s}", .{ why.buffered(), usage });
    return 2;
}

fn run_canaries(gpa: std.mem.Allocator) !u8 {
    var rig = try runner.Rig.init(gpa);
    defer rig.deinit();
    return if (canaries.run(&rig)) 0 else 1;
}

fn run_fuzz(gpa: std.mem.Allocator, io: std.Io, options: *const Options) !u8 {
    var rig = try runner.Rig.init(gpa);
    defer rig.deinit();
    const seconds = options.seconds orelse return fuzz.run(&rig, options.start, options.seeds);
    rig.quiet = true;
    if (fuzz.run_kept(&rig) != 0) return 1;
    const deadline_ns = monotonic_ns(io) + nanoseconds(seconds);
    const seeds_at_once = 10;
    var start = options.start;
    while (monotonic_ns(io) < deadline_ns) : (start += seeds_at_once) {
        if (fuzz.run(&rig, start, seeds_at_once) != 0) return 1;
    }
    out("{d} fuzzed worlds lived, seeds {d} to {d}\n", .{
        start - options.start, options.start, start - 1,
    });
    return 0;
}

/// Seeds that nobody has run before: far from the small numbers that people type.
fn draw_start(io: std.Io) u64 {
    const now_ns = std.Io.Clock.real.now(io).nanoseconds;
    const start = std.hash.Wyhash.hash(0, std.mem.asBytes(&now_ns)) % 1_000_000_000_000;
    out("fresh seeds from {d} on; --start {d} instead of --fresh runs them again\n", .{
        start, start,
    });
    return start;
}

fn nanoseconds(seconds: f64) i96 {
    return @intFromFloat(seconds * std.time.ns_per_s);
}

fn run_endurance(gpa: std.mem.Allocator, options: *const Options) !u8 {
    var chosen: endurance.Options = .{ .seed = options.seed orelse options.start };
    for (options.changes.items) |change| switch (change) {
        .calls => |count| chosen.calls = count,
        else => {
            out("pccl-sim endurance takes --calls and --seed, not {f}\n", .{change});
            return 2;
        },
    };
    return endurance.run(gpa, chosen);
}

fn run_sweep(gpa: std.mem.Allocator, options: *const Options) !u8 {
    var rig = try runner.Rig.init(gpa);
    defer rig.deinit();
    return sweep.run(gpa, &rig, options.start, options.seeds, 5000);
}

fn run_scenario(gpa: std.mem.Allocator, io: std.Io, wanted: []const u8) !u8 {
    const is_file = std.mem.endsWith(u8, wanted, ".txt");
    const text = if (is_file)
        try std.Io.Dir.cwd().readFileAlloc(io, wanted, gpa, .limited(1 << 20))
    else
        scenario.find(wanted) orelse {
            out("there is no scenario \"{s}\"\n", .{wanted});
            return 2;
        };
    defer if (is_file) gpa.free(text);
    const failure = try scenario.run(gpa, text, .print) orelse return 0;
    out("{s}, line {d}: {s}\n", .{ wanted, failure.line, failure.why() });
    return 1;
}

fn replay(gpa: std.mem.Allocator, seed: u64, options: *const Options) !u8 {
    var rig = try runner.Rig.init(gpa);
    defer rig.deinit();
    if (options.shrink) return narrow.shrink(gpa, &rig, seed, options.changes.items);
    const config = options.config(seed);
    out("seed {d}: {f}\n", .{ seed, config });
    const result = rig.run(config, if (options.trace) .print else .off);
    if (result.violation) |*violation| {
        if (options.trace)
            out("seed {d} FAILS: {t}: {s}\n", .{ seed, violation.check, violation.text() })
        else
            rig.explain(config, violation);
        return 1;
    }
    out("seed {d} passes: {d} events, trace {x}\n", .{ seed, result.events, result.hash });
    return 0;
}

const Shared = struct {
    options: *const Options,
    next: std.atomic.Value(u64),
    end: u64,
    deadline_ns: ?i96,
    io: std.Io,
    stop: std.atomic.Value(bool) = .init(false),
    lock: std.atomic.Value(bool) = .init(false),
    statistics: Statistics = .{},
    failures: u32 = 0,

    fn acquire(shared: *Shared) void {
        while (shared.lock.swap(true, .acquire)) std.atomic.spinLoopHint();
    }

    fn release(shared: *Shared) void {
        shared.lock.store(false, .release);
    }
};

fn monotonic_ns(io: std.Io) i96 {
    return std.Io.Clock.awake.now(io).nanoseconds;
}

fn run_seeds(gpa: std.mem.Allocator, io: std.Io, options: *const Options) !u8 {
    const started_ns = monotonic_ns(io);
    const cores = std.Thread.getCpuCount() catch 1;
    const workers = if (options.workers > 0) options.workers else @min(cores, 2);
    var shared: Shared = .{
        .next = .init(options.start),
        .end = if (options.seconds == null) options.start + options.seeds else std.math.maxInt(u64),
        .deadline_ns = null,
        .options = options,
        .io = io,
    };
    if (options.seconds) |seconds| {
        shared.deadline_ns = started_ns + nanoseconds(seconds);
    }
    const threads = try gpa.alloc(std.Thread, workers);
    defer gpa.free(threads);
    for (threads) |*thread| thread.* = try std.Thread.spawn(.{}, work, .{ gpa, &shared });
    for (threads) |thread| thread.join();
    const seconds = @as(f64, @floatFromInt(monotonic_ns(io) - started_ns)) / std.time.ns_per_s;
    shared.statistics.print(seconds, workers);
    if (shared.failures > 0) {
        out("{d} seeds failed\n", .{shared.failures});
        return 1;
    }
    return 0;
}

fn work(gpa: std.mem.Allocator, shared: *Shared) void {
    var rig = runner.Rig.init(gpa) catch @panic("out of memory");
    defer rig.deinit();
    while (!shared.stop.load(.monotonic)) {
        const seed = shared.next.fetchAdd(1, .monotonic);
        if (seed >= shared.end) break;
        if (shared.deadline_ns) |deadline| if (monotonic_ns(shared.io) >= deadline) break;
        const config = shared.options.config(seed);
        if (shared.options.restarts and !config.loses_coordinator()) continue;
        const result = rig.run(config, .off);
        var violation = result.violation;
        // Every hundredth seed runs twice: the trace must not depend on anything but the seed.
        if (violation == null and seed % 100 == 0) {
            const counted = rig.statistics;
            const again = rig.run(config, .off);
            rig.statistics = counted;
            if (again.hash != result.hash) violation = .{ .check = .determinism };
        }
        if (violation) |*found| report(&rig, shared, config, found);
    }
    shared.acquire();
    defer shared.release();
    shared.statistics.add(&rig.statistics);
}

fn report(rig: *runner.Rig, shared: *Shared, config: Config, violation: *const Violation) void {
    shared.acquire();
    defer shared.release();
    shared.failures += 1;
    if (shared.failures > shared.options.failures) return;
    rig.explain(config, violation);
    runner.print_replay(&config);
    if (shared.failures == shared.options.failures) shared.stop.store(true, .monotonic);
}

test {
    _ = @import("borrowed.zig");
    _ = @import("canaries.zig");
    _ = @import("checkers.zig");
    _ = @import("definition.zig");
    _ = @import("disk.zig");
    _ = @import("told.zig");
    _ = @import("endurance.zig");
    _ = @import("forgiven.zig");
    _ = @import("fuzz.zig");
    _ = @import("memory.zig");
    _ = @import("units.zig");
    _ = @import("narrow.zig");
    _ = @import("network.zig");
    _ = @import("oracle.zig");
    _ = @import("program.zig");
    _ = @import("rules.zig");
    _ = @import("scenario.zig");
    _ = @import("statistics.zig");
    _ = @import("swarm.zig");
    _ = @import("sweep.zig");
    _ = @import("trace.zig");
}
