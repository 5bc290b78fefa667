//! Excused: demands that the checkers drop in a world with adversaries, because the protocol
//! without keys cannot meet them (docs/internals/PROMISE.md, "Byzantine members"; docs/ROADMAP.md).
//! Each rule says what it leaves out, and why; the statistics print how often it was needed.
//! Everything that no rule leaves out is demanded as ever: P1 to P9 of all honest peers, and
//! memory.

const calls = @import("calls.zig");
const checkers = @import("checkers.zig");
const Class = @import("swarm.zig").Class;
const World = @import("world.zig").World;

pub const Rule = enum {
    /// The insider's own view, results and messages: promises are among honest peers. Only that
    /// its process lives is asked for, as of everybody.
    own_experience,
    /// Results of an operation in which a member has a part that lies about data (payloads, or
    /// whose they are, or what of a result it holds): a sum with a lie in it is a wrong sum.
    /// Nothing authenticates data. That all honest peers hold the same is asked for.
    lies_about_data,
    /// The calls of an insider, as others know them: it says something else than it has called.
    lies_about_calls,
    /// Failures of calls, and places that are lost, without another fault: a member can withdraw or
    /// contradict every operation, and say that its links are broken.
    withdraws,
    /// Failures of calls, and places that are lost, where somebody cuts connections or takes them
    /// over: lanes and hellos carry no key.
    cuts,
};

// Two more rules are in what adversaries never do, and not in what checkers leave out:
//
//   - names: nobody opens a lane in the name of another with anything but what that other one has
//     sent itself, and nobody inserts into a connection of others. A lane belongs to an id that
//     anybody can say, so its frames would be taken for those of the other: a wrong result.
//   - presence: insiders are gone when progress is asked for. One that is there can stop every
//     operation for as long as it is a member. Strangers stay, and go on.

/// Whether an operation that this honest peer has called may have a result that a lie went into.
pub fn has_lies(work: *const calls.Work) bool {
    const world = work.node.world;
    const insiders = world.insiders orelse return false;
    if (!insiders.lies_about_data) return false;
    for (work.op.?.member_ids()) |id| {
        const digit = calls.digit_of(world, id) orelse continue;
        if (!world.nodes[digit + 1].was_insider) continue;
        world.statistics.excused.getPtr(.lies_about_data).* += 1;
        return true;
    }
    return false;
}

/// Whether what this call asked for says nothing about what others were told of it.
pub fn is_untold(world: *World, call: *const checkers.Call) bool {
    if (!call.of_insider) return false;
    world.statistics.excused.getPtr(.lies_about_calls).* += 1;
    return true;
}

/// A call failed. In a world that were calm without its adversaries, these are the reason.
pub fn note_failure(world: *World) void {
    const config = &world.config;
    if (!config.has(.insider) and !config.has(.eavesdropper)) return;
    var without = config.*;
    for ([_]Class{ .insider, .eavesdropper }) |class| without.levels.set(class, .off);
    if (!without.is_calm()) return;
    const rule: Rule = if (config.has(.insider)) .withdraws else .cuts;
    world.statistics.excused.getPtr(rule).* += 1;
}
