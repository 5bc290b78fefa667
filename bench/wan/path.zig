//! Path: the way from one node to another: a rate with its queue, loss, delay and jitter. It owns
//! the settings of that way, its random numbers, and what it has counted; the ways of a packet
//! through all the paths are in stages.zig.

const std = @import("std");
const Queue = @import("queue.zig").Queue;
const counters = @import("counters.zig");
const ms = std.time.ns_per_ms;

pub const Path = struct {
    queue: Queue = .{},
    delay_ns: u64 = 0,
    jitter_ns: u64 = 0,
    loss_ppm: u32 = 0,
    /// The cap of each flow by itself.
    flow_kbit: u64 = 0,
    flow_queue_bytes: u64 = 0,
    is_cut: bool = false,
    /// The fate of the flow that the next TCP data belongs to.
    mark: Mark = .none,
    random: std.Random.DefaultPrng = .init(0),
    wander: Wander = .{},
    last_exit_ns: u64 = 0,
    counted: counters.Counters = .{},

    pub const Mark = union(enum) { none, reset, loss_ppm: u32 };

    /// When something that enters at an instant comes out. Nothing overtakes, also when the delay
    /// was made shorter meanwhile.
    pub fn exit_ns(path: *Path, now_ns: u64) u64 {
        const shaken = path.wander.at(path.random.random(), now_ns, path.jitter_ns);
        path.last_exit_ns = @max(path.last_exit_ns, now_ns + path.delay_ns + shaken);
        return path.last_exit_ns;
    }

    pub fn loses(path: *Path, extra_ppm: u32) bool {
        const ppm = @max(path.loss_ppm, extra_ppm);
        return ppm > 0 and path.random.random().uintLessThan(u32, 1_000_000) < ppm;
    }
};

/// A delay that goes up and down between 0 and a limit: from one random value to the next, in a
/// straight line that takes twice the limit or longer. So it never falls as fast as time goes on,
/// and packets stay in order without being held up.
pub const Wander = struct {
    from: f64 = 0,
    to: f64 = 0,
    until_ns: u64 = 0,

    const leg_ns_min = 10 * ms;

    fn at(wander: *Wander, random: std.Random, now_ns: u64, limit_ns: u64) u64 {
        if (limit_ns == 0) return 0;
        const leg_ns = @max(leg_ns_min, 2 * limit_ns);
        if (now_ns > wander.until_ns + leg_ns) { // idle: where it has gone to does not matter
            wander.to = random.float(f64);
            wander.until_ns = now_ns;
        }
        while (now_ns >= wander.until_ns) {
            wander.from = wander.to;
            wander.to = random.float(f64);
            wander.until_ns += leg_ns;
        }
        const left_ns: f64 = @floatFromInt(@min(leg_ns, wander.until_ns - now_ns));
        const left = left_ns / @as(f64, @floatFromInt(leg_ns));
        const share = wander.to + (wander.from - wander.to) * left;
        return @intFromFloat(share * @as(f64, @floatFromInt(limit_ns)));
    }
};

test "a delay is added, and jitter on top keeps the order, the limit and the mean" {
    var path: Path = .{ .delay_ns = 50 * ms };
    try std.testing.expectEqual(51 * ms, path.exit_ns(1 * ms));
    path.jitter_ns = 20 * ms;
    var before: u64 = 0;
    var total: f64 = 0;
    const count = 200_000;
    for (1..count + 1) |index| {
        const now_ns = index * ms / 10;
        const out_ns = path.exit_ns(now_ns);
        try std.testing.expect(out_ns >= before);
        before = out_ns;
        const extra_ns = out_ns - now_ns - path.delay_ns;
        try std.testing.expect(extra_ns <= path.jitter_ns + ms);
        total += @floatFromInt(extra_ns);
    }
    try std.testing.expectApproxEqRel(10.0 * ms, total / count, 0.1);
}

test "a shorter delay lets nothing overtake" {
    var path: Path = .{ .delay_ns = 50 * ms };
    const first = path.exit_ns(0);
    path.delay_ns = 1 * ms;
    try std.testing.expectEqual(first, path.exit_ns(1));
    try std.testing.expectEqual(101 * ms, path.exit_ns(100 * ms));
}

test "loss is as often as asked for, and the larger of both counts" {
    var path: Path = .{ .loss_ppm = 10_000 };
    var lost: [2]u32 = .{ 0, 0 };
    for (0..200_000) |_| {
        lost[0] += @intFromBool(path.loses(0));
        lost[1] += @intFromBool(path.loses(50_000));
    }
    try std.testing.expectApproxEqRel(2_000.0, @as(f64, @floatFromInt(lost[0])), 0.1);
    try std.testing.expectApproxEqRel(10_000.0, @as(f64, @floatFromInt(lost[1])), 0.1);
    path.loss_ppm = 0;
    for (0..1000) |_| try std.testing.expect(!path.loses(0));
}
