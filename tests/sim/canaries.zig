//! Canaries: proves that the checkers see. Each mutation of the protocol (engine/base/canary.zig)
//! is switched on in turn and must be caught by the checker named here within `seeds_max` seeds, by
//! the transcript that is about its rule, or by both; the unmutated code must pass the first seeds.
//! `pccl-sim canaries`; run by the tests.

const std = @import("std");
const base = @import("base");
const Canary = base.canary.Canary;
const Check = @import("checkers.zig").Check;
const Config = @import("swarm.zig").Config;
const Rig = @import("runner.zig").Rig;
const scenario = @import("scenario.zig");
const out = std.debug.print;

/// Until a mutation is caught.
const seeds_max = 10_000;
/// Which the unmutated code must pass.
const seeds_clean = 2000;

/// Who must catch it in some seed. No else: a new canary needs a checker, or a transcript.
fn catcher(canary: Canary) ?Check {
    return switch (canary) {
        .none => null,
        .publish_before_commit => .p2_atomicity,
        .forget_shadow => .p3_input_kept,
        // A frame must be late by an attempt, and fit into the next one.
        .accept_older_attempt => null,
        .skip_fingerprint => .descriptors,
        .keep_without_attempt => .p4_contributors,
        .shared_slots => .p4_contributors,
        .keep_own_values => .p1_agreement,
        .spend_residual => .p3_input_kept,
        .residual_of_last_attempt => .p5_same_bits,
        .ignore_revision => .election,
        .skip_leaf_hash => .election,
        .trust_staged => .election,
        .write_before_commit => .p3_input_kept,
        .leave_for_a_link => .place,
        // Only a member that lies makes a difference, and members of seeds do not.
        .believe_any_commit => null,
        .forget_claims => .p6_progress,
        .answer_early => .p6_progress,
        .reuse_epochs, .reuse_rounds => .views,
        // One call must vote, lose the coordinator, and run out of time before it is back.
        .withdraw_vote => null,
        // The coordinator must die in the write of a removal, and whom it removed must come back.
        .view_before_removal => null,
    };
}

/// The transcript that must fail, where one is about the rule that is broken.
fn transcript(canary: Canary) ?[]const u8 {
    return switch (canary) {
        .accept_older_attempt => scenario.text_of("frames_of_a_passed_attempt"),
        .believe_any_commit => scenario.text_of("claim_without_votes"),
        .forget_claims => scenario.text_of("withdrawn_unheard"),
        .answer_early => scenario.text_of("commit_known_by_one"),
        .view_before_removal => scenario.text_of("dies_writing_a_removal"),
        .leave_for_a_link => scenario.text_of("cut_inside_an_operation"),
        .withdraw_vote => scenario.text_of("doubt_while_the_coordinator_is_away"),
        else => null,
    };
}

fn needs_restart(canary: Canary) bool {
    return switch (canary) {
        .forget_claims, .answer_early, .reuse_epochs, .reuse_rounds => true,
        else => false,
    };
}

/// True if every canary was caught, and nothing else fails.
pub fn run(rig: *Rig) bool {
    var all = true;
    for (std.enums.values(Canary)) |canary| {
        if (transcript(canary)) |text| all = fails(rig, canary, text) and all;
        if (catcher(canary)) |check| all = hunt(rig, canary, check) and all;
    }
    base.canary.active = .none;
    for (0..seeds_clean) |seed| {
        const config = Config.draw(seed);
        const result = rig.run(config, .off);
        if (result.violation) |*violation| {
            rig.explain(config, violation);
            all = false;
        }
    }
    if (all and !rig.quiet) out("unmutated: passes seeds 0..{d}\n", .{seeds_clean - 1});
    return all;
}

fn fails(rig: *Rig, canary: Canary, text: []const u8) bool {
    base.canary.active = canary;
    defer base.canary.active = .none;
    const failure = scenario.run(rig.backing, text, .off) catch @panic("out of memory");
    if (failure) |*found| {
        if (!rig.quiet) out("{t}: caught by line {d} of its transcript: {s}\n", .{
            canary, found.line, found.why(),
        });
        return true;
    }
    out("{t}: NOT CAUGHT by its transcript\n", .{canary});
    return false;
}

fn hunt(rig: *Rig, canary: Canary, check: Check) bool {
    base.canary.active = canary;
    defer base.canary.active = .none;
    var others: u32 = 0;
    for (0..seeds_max) |seed| {
        const config = Config.draw(seed);
        if (needs_restart(canary) and !config.loses_coordinator()) continue;
        const result = rig.run(config, .off);
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
