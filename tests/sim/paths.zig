//! Paths: what a simulated system says of lanes when a peer asks (session/measure.zig), in worlds
//! where links choose how many they have. The numbers are drawn, and no truer than those of a real
//! system would be to a liar: whatever they are, links must work. Used by world.zig.

const std = @import("std");
const session_layer = @import("session");
const Config = @import("swarm.zig").Config;
const Prng = @import("base").Prng;
const ms = std.time.ns_per_ms;
/// So many samples of a link's lanes come between two changes of its mind.
const samples_between = 64;
const lanes_max = 6;

pub fn are_open(config: *const Config) bool {
    return config.lanes == 0;
}

/// Now and then a link would like another number of lanes: fewer leave some over, which close. Then
/// it and its peer have also carried more or less than before, so that plans change.
pub fn wish(prng: *Prng, session: *session_layer.Session, link: *session_layer.Link) void {
    if (!prng.chance(samples_between)) return;
    link.flow.spread.lanes = @intCast(prng.between(1, lanes_max));
    session.node.up.rate = rate(prng);
    session.node.down.rate = rate(prng);
    link.flow.brought.rate = rate(prng);
    link.flow.carried.rate = rate(prng);
    link.flow.alone.rate = if (prng.chance(2)) link.flow.carried.rate else 0;
}

/// From 1 MB/s to 128 MB/s, each as likely as its double.
fn rate(prng: *Prng) u64 {
    return @as(u64, 1_000_000) << @intCast(prng.below(8));
}

/// Counters never go back; now and then they jump.
pub fn sample(prng: *Prng, before: ?session_layer.Sample) session_layer.Sample {
    const last: session_layer.Sample = before orelse .{ .acked = 0 };
    const moved = prng.below(if (prng.chance(64)) 1 << 40 else 1 << 12);
    const base_ns = prng.below(40 * ms);
    return .{
        .acked = last.acked +| moved,
        .retransmitted = last.retransmitted +| (if (prng.chance(3)) prng.below(moved + 1) else 0),
        .rtt_ns = base_ns + (if (prng.chance(3)) prng.below(100 * ms) else 0),
        .base_ns = base_ns,
    };
}
