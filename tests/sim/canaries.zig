//! Canaries: proves that the checkers see. Each mutation of the protocol (engine/base/canary.zig)
//! is switched on in turn and must be caught by the checker named here within `seeds_max` seeds;
//! the unmutated code must pass all those seeds. `pccl-sim canaries`; run by the tests.

const std = @import("std");
const base = @import("base");
const Canary = base.canary.Canary;
const Check = @import("checkers.zig").Check;
const Config = @import("swarm.zig").Config;
const Rig = @import("runner.zig").Rig;
const out = std.debug.print;

pub const seeds_max = 2000;

/// Who must catch it. No else: a new canary needs a checker.
fn catcher(canary: Canary) ?Check {
    return switch (canary) {
        .none => null,
        .publish_before_commit => .p2_atomicity,
        .forget_shadow => .p3_input_kept,
        .accept_older_attempt => .p4_contributors,
        .skip_fingerprint => .descriptors,
        .keep_without_attempt => .p4_contributors,
        .shared_slots => .p4_contributors,
        .ignore_revision => .election,
        .skip_leaf_hash => .election,
        .trust_staged => .election,
        .write_before_commit => .p3_input_kept,
    };
}

/// True if every canary was caught, and nothing else fails.
pub fn run(rig: *Rig) bool {
    var all = true;
    for (std.enums.values(Canary)) |canary| {
        const check = catcher(canary) orelse continue;
        all = hunt(rig, canary, check) and all;
    }
    base.canary.active = .none;
    for (0..seeds_max) |seed| {
        const config = Config.draw(seed);
        const result = rig.run(config, .off);
        if (result.violation) |*violation| {
            rig.explain(config, violation);
            all = false;
        }
    }
    if (all and !rig.quiet) out("unmutated: passes seeds 0..{d}\n", .{seeds_max - 1});
    return all;
}

fn hunt(rig: *Rig, canary: Canary, check: Check) bool {
    base.canary.active = canary;
    defer base.canary.active = .none;
    var others: u32 = 0;
    for (0..seeds_max) |seed| {
        const result = rig.run(Config.draw(seed), .off);
        const violation = result.violation orelse continue;
        if (violation.check != check) {
            others += 1;
            continue;
        }
        if (!rig.quiet) out("{t}: caught by {t} in seed {d} ({d} failed otherwise): {s}\n", .{
            canary, check, seed, others, violation.text(),
        });
        return true;
    }
    out("{t}: NOT CAUGHT by {t} in {d} seeds ({d} failed otherwise): the rig is blind\n", .{
        canary, check, seeds_max, others,
    });
    return false;
}

test "every canary is caught by its named checker, and the unmutated code passes the same seeds" {
    var rig = try Rig.init(std.heap.smp_allocator);
    defer rig.deinit();
    rig.quiet = true;
    try std.testing.expect(run(&rig));
}
