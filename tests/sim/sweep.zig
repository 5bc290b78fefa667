//! Sweep: a fault at every single event of a small calm world, for every peer and every way to
//! fail, and then pairs of faults at drawn events. Seeds find likely failures; this finds narrow
//! ones, at the one event between a vote and its commit. `pccl-sim sweep`; one base world runs with
//! the unit tests. Strikes are in faults.zig.

const std = @import("std");
const Config = @import("swarm.zig").Config;
const Strike = @import("swarm.zig").Strike;
const Violation = @import("checkers.zig").Violation;
const narrow = @import("narrow.zig");
const runner = @import("runner.zig");
const swarm = @import("swarm.zig");
const Rig = runner.Rig;
const out = std.debug.print;

/// The small world of a seed, as changes of what it draws, so that a failure can be replayed.
fn base_changes(gpa: std.mem.Allocator, seed: u64) !narrow.Changes {
    var changes: narrow.Changes = .empty;
    for (std.enums.values(swarm.Class)) |class| {
        try changes.append(gpa, .{ .set = .{ .class = class, .level = .off } });
    }
    var prng = swarm.stream(seed, "sweep");
    const peers: u32 = @intCast(prng.between(2, 4));
    try changes.append(gpa, .{ .groups = 1 });
    try changes.append(gpa, .{ .peers = peers });
    try changes.append(gpa, .{ .calls = peers * @as(u32, @intCast(prng.between(2, 4))) });
    return changes;
}

/// Base worlds of the given seeds; `doubles` pairs of faults each. 0 if all held.
pub fn run(gpa: std.mem.Allocator, rig: *Rig, start: u64, seeds: u64, doubles: u64) !u8 {
    var worlds: u64 = 0;
    for (start..start + seeds) |seed| {
        var changes = try base_changes(gpa, seed);
        defer changes.deinit(gpa);
        const config = narrow.config_of(seed, changes.items);
        const calm = rig.run(config, .off);
        if (calm.violation) |*violation| return fail(rig, config, violation);
        const steps = calm.events_of_safety;
        for (std.enums.values(Strike.How)) |how| {
            for (0..config.peers_start + 1) |node| {
                if (node == 0 and !how.strikes_coordinator()) continue;
                for (1..steps) |step| {
                    var struck = config;
                    struck.strikes[0] = .{ .how = how, .node = @intCast(node), .step = step };
                    worlds += 1;
                    const result = rig.run(struck, .off);
                    if (result.violation) |*violation| return fail(rig, struck, violation);
                }
            }
        }
        var prng = swarm.stream(seed, "doubles");
        for (0..doubles) |_| {
            var struck = config;
            for (&struck.strikes) |*strike| strike.* = .{
                .how = std.enums.values(Strike.How)[prng.below(std.enums.values(Strike.How).len)],
                .node = @intCast(prng.between(0, config.peers_start)),
                .step = prng.between(1, steps * 3 / 2),
            };
            worlds += 1;
            const result = rig.run(struck, .off);
            if (result.violation) |*violation| return fail(rig, struck, violation);
        }
    }
    if (!rig.quiet) out("{d} worlds of {d} bases held\n", .{ worlds, seeds });
    return 0;
}

fn fail(rig: *Rig, config: Config, violation: *const Violation) u8 {
    rig.explain(config, violation);
    runner.print_replay(&config);
    return 1;
}

/// The changes behind --sweep-base.
pub fn add_base(gpa: std.mem.Allocator, seed: u64, changes: *narrow.Changes) !void {
    var given = try base_changes(gpa, seed);
    defer given.deinit(gpa);
    try changes.insertSlice(gpa, 0, given.items);
}

test "a fault at every event of a small world breaks no promise" {
    var rig = try Rig.init(std.heap.smp_allocator);
    defer rig.deinit();
    rig.quiet = true;
    try std.testing.expectEqual(0, try run(std.testing.allocator, &rig, 0, 1, 500));
}
