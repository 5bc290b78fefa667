//! Canaries: proves that the checkers see. Each mutation for which tests/mutants names a checker or
//! a transcript is switched on in turn. The checker must catch the mutation within `seeds_max`
//! seeds, and the transcript must fail; the unmutated code must pass the first `seeds_clean` seeds.
//! `make simulator` runs `pccl-sim canaries`. tests/mutants/run.py runs all mutations, also those
//! that may end the process, by the commands `mutants` and `transcripts` of this file.

const std = @import("std");
const mutant = @import("mutant");
const Check = @import("checkers.zig").Check;
const Config = @import("swarm.zig").Config;
const Rig = @import("runner.zig").Rig;
const scenario = @import("scenario.zig");
const out = std.debug.print;

/// Until a mutation is caught.
const seeds_max = 2000;
/// Which the unmutated code must pass.
const seeds_clean = 500;
/// The unit test takes the first of these, because a debug build is slow.
const seeds_unit = 100;

/// True if every mutation with a catcher was caught by it, and nothing else fails.
pub fn run(rig: *Rig) bool {
    if (mutant.list.len == 0) {
        out("this build has no mutations: zig build mutants, then zig-out/mutants/pccl-sim\n", .{});
        return false;
    }
    var all = true;
    for (mutant.list, 1..) |*item, number| {
        mutant.active = @intCast(number);
        defer mutant.active = 0;
        if (!item.panics) for (item.transcripts) |name| {
            all = fails(rig, item, name) and all;
        };
        if (item.checker) |name| all = hunt(rig, item, name) and all;
    }
    rig.statistics = .{};
    for (0..seeds_clean) |seed| {
        const config = Config.draw(seed);
        const result = rig.run(config, .off);
        if (result.violation) |*violation| {
            rig.explain(config, violation);
            all = false;
        }
    }
    if (!rig.statistics.has_copies()) {
        out("in {d} seeds no data, or no shared state, went again, or no copy was thrown away\n", .{
            seeds_clean,
        });
        all = false;
    }
    if (all and !rig.quiet) out("unmutated: passes seeds 0..{d}\n", .{seeds_clean - 1});
    return all;
}

fn fails(rig: *Rig, item: *const mutant.Mutant, name: []const u8) bool {
    const text = scenario.find(name) orelse {
        out("{s}: there is no transcript {s}\n", .{ item.name, name });
        return false;
    };
    const failure = scenario.run(rig.backing, text, .off) catch @panic("out of memory");
    if (failure) |*found| {
        if (!rig.quiet) out("{s}: caught by line {d} of {s}: {s}\n", .{
            item.name, found.line, name, found.why(),
        });
        return true;
    }
    out("{s}: NOT CAUGHT by the transcript {s}\n", .{ item.name, name });
    return false;
}

fn hunt(rig: *Rig, item: *const mutant.Mutant, name: []const u8) bool {
    const check = std.meta.stringToEnum(Check, name) orelse {
        out("{s}: there is no checker {s}\n", .{ item.name, name });
        return false;
    };
    var others: u32 = 0;
    for (0..seeds_max) |seed| {
        const config = Config.draw(seed);
        if (item.restarts and !config.loses_coordinator()) continue;
        const result = rig.run(config, .off);
        const violation = result.violation orelse continue;
        if (violation.check != check) {
            others += 1;
            continue;
        }
        if (!rig.quiet) out("{s}: caught by {t} in seed {d} ({d} failed otherwise): {s}\n", .{
            item.name, check, seed, others, violation.text(),
        });
        return true;
    }
    out("{s}: NOT CAUGHT by {t} in {d} seeds ({d} failed otherwise): the rig is blind\n", .{
        item.name, check, seeds_max, others,
    });
    return false;
}

/// The list of all mutations, a line of JSON each.
pub fn print_list(io: std.Io) !void {
    var buffer: [4096]u8 = undefined;
    var file = std.Io.File.stdout().writer(io, &buffer);
    for (mutant.list) |*item| {
        try std.json.Stringify.value(item.*, .{}, &file.interface);
        try file.interface.writeByte('\n');
    }
    try file.interface.flush();
}

/// All transcripts from this one on. Says which it is at before it begins, so that whoever watches
/// the process knows which one has ended it, or never came back.
pub fn run_transcripts(gpa: std.mem.Allocator, first: usize) !u8 {
    var failed = false;
    inline for (scenario.all, 0..) |name, index| if (index >= first) {
        out("at {d} {s}\n", .{ index, name });
        if (try scenario.run(gpa, scenario.text_of(name), .off)) |*failure| {
            out("  fails: line {d}: {s}\n", .{ failure.line, failure.why() });
            failed = true;
        }
    };
    out("end\n", .{});
    return @intFromBool(failed);
}

test "the first seeds pass" {
    var rig = try Rig.init(std.heap.smp_allocator);
    defer rig.deinit();
    rig.quiet = true;
    for (0..seeds_unit) |seed| {
        const result = rig.run(Config.draw(seed), .off);
        if (result.violation) |*violation| {
            out("seed {d}: {t}: {s}\n", .{ seed, violation.check, violation.text() });
            return error.SeedFails;
        }
    }
}
