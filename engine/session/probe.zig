//! probe: the bytes by which a peer finds what a link carries, of which nobody knows that yet, and
//! how many of them it may send: plain data. Each link has so many for nothing, and all links
//! together some; beyond, probes are one byte in a hundred. When a peer probes: probing.zig.

const std = @import("std");
const base = @import("base");
const Instant = base.Instant;
const PeerId = base.PeerId;
const limits = base.limits;

/// Those of one peer.
pub const Probe = struct {
    /// A probe has no more; 0: this peer takes part in none.
    bytes_max: u32,
    budget: Budget,
    under_way: ?UnderWay = null,

    pub const UnderWay = struct {
        to: PeerId,
        left: u64,
        until: Instant,

        pub fn is_whole(it: *const UnderWay, now: Instant) bool {
            return it.left == 0 or it.until <= now;
        }
    };

    pub fn init(bytes_max: u32) Probe {
        return .{ .bytes_max = bytes_max, .budget = .{ .floor = links_max * bytes_max } };
    }

    /// So many that it is several frames, also where it is short.
    pub fn frame_bytes(probe: *const Probe) u64 {
        return std.math.clamp(probe.bytes_max / 16, 1, limits.probe_frame_bytes_max);
    }

    pub fn is_under_way(probe: *const Probe, now: Instant) bool {
        return if (probe.under_way) |*it| it.until > now else false;
    }

    /// To this link, which has so many bytes for nothing; 0: none now.
    pub fn allowed(probe: *const Probe, link_left: u64) u64 {
        return @min(probe.bytes_max, probe.budget.allows(link_left));
    }

    /// All links of a peer in an epoch in which links are probed.
    const links_max: u64 = limits.measured_max - 1;
};

pub const Budget = struct {
    /// For links of which nothing is known: one probe of each. Another one comes back each minute,
    /// so no crowd of newcomers has this peer send more than that.
    floor: u64,
    /// The hundredth part of the bytes of the minute before that is left in this one.
    share: u64 = 0,
    /// The minute under way: when it began, and all bytes that had been sent then.
    began: Instant = 0,
    sent_then: u64 = 0,

    const minute_ns = std.time.ns_per_min;
    const part = 100;

    /// At heartbeats. `sent`: all that this peer has ever sent on its links.
    pub fn pass(budget: *Budget, now: Instant, sent: u64, probe: u64) void {
        const taken_ns = now -| budget.began;
        const is_first = budget.began == 0;
        if (taken_ns < minute_ns and !is_first) return;
        // A process that stood still does not know what it has sent in the last minute.
        const is_late = is_first or taken_ns >= 2 * minute_ns;
        budget.share = if (is_late) 0 else (sent - budget.sent_then) / part;
        if (!is_first) budget.floor = @min(budget.floor + probe, Probe.links_max * probe);
        budget.began = now;
        budget.sent_then = sent;
    }

    fn allows(budget: *const Budget, link_left: u64) u64 {
        return @min(link_left, budget.floor) + budget.share;
    }

    /// So much of it was sent.
    pub fn spend(budget: *Budget, link_left: *u32, bytes: u64) void {
        const free = @min(bytes, link_left.*, budget.floor);
        link_left.* -= @intCast(free);
        budget.floor -= free;
        budget.share -|= bytes - free;
    }
};

/// Bytes that no network can make fewer.
pub const filler: [limits.probe_frame_bytes_max]u8 = filler: {
    @setEvalBranchQuota(10_000);
    var words: [limits.probe_frame_bytes_max / 8]u64 = undefined;
    var word: u64 = 0x9e3779b97f4a7c15;
    for (&words) |*each| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        each.* = word;
    }
    break :filler @bitCast(words);
};

const expectEqual = std.testing.expectEqual;
const second = std.time.ns_per_s;

test "each link has one probe for nothing, and beyond, probes are one byte in a hundred" {
    var probe: Probe = .init(1000);
    var left: u32 = 1000;
    const budget = &probe.budget;
    budget.pass(100 * second, 5000, 1000);
    try expectEqual(1000, probe.allowed(left));
    // It was cut short.
    budget.spend(&left, 300);
    try expectEqual(700, probe.allowed(left));
    budget.spend(&left, 700);
    try expectEqual(0, probe.allowed(left));
    budget.pass(159 * second, 95_000, 1000); // the minute is not over
    try expectEqual(0, probe.allowed(left));
    budget.pass(161 * second, 105_000, 1000);
    try expectEqual(1000, probe.allowed(left));
    budget.spend(&left, 400);
    try expectEqual(600, probe.allowed(left));
    // The rest of a minute's share is not of the next one.
    budget.pass(222 * second, 135_000, 1000);
    try expectEqual(300, probe.allowed(left));
    budget.pass(283 * second, 135_000, 1000);
    try expectEqual(0, probe.allowed(left));
    // Nobody knows of which minute these are.
    budget.pass(500 * second, 1_000_000, 1000);
    try expectEqual(0, probe.allowed(left));
}

test "no crowd of links has a peer send more than one probe to each at first, then one a minute" {
    const each = 1000;
    var probe: Probe = .init(each);
    var sent: u64 = 0;
    probe.budget.pass(second, 0, each);
    for (0..1000) |_| {
        var left: u32 = each;
        const bytes = probe.allowed(left);
        probe.budget.spend(&left, bytes);
        sent += bytes;
    }
    try expectEqual((limits.measured_max - 1) * each, sent);
    for (1..4) |minute| {
        probe.budget.pass(second + minute * std.time.ns_per_min, 0, each);
        var left: u32 = each;
        try expectEqual(each, probe.allowed(left));
        probe.budget.spend(&left, each);
        left = each;
        try expectEqual(0, probe.allowed(left));
    }
}

test "a probe is of several frames, and one that is off has none" {
    try expectEqual(limits.probe_frame_bytes_max, Probe.init(limits.probe_bytes_max).frame_bytes());
    try expectEqual(32, Probe.init(512).frame_bytes());
    try expectEqual(0, Probe.init(0).allowed(limits.probe_bytes_max));
}
