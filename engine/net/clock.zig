//! clock: the monotonic clock, read once per round of an engine loop. The layers below net are told
//! the time (base.Instant) and never ask. The protocol relies on a time that never goes back.
//! Hypervisors have been seen to break that, so this file makes it true: after a step back the
//! clock stands still until the machine's clock has come past it again. The simulator's clocks
//! stand still and leap ahead (tests/sim/faults.zig). Next: peer_engine.zig, the loop that asks.

const std = @import("std");
const base = @import("base");
const c = std.c;
const assert = std.debug.assert;

/// Nanoseconds since some start of this machine; the time never goes back, whichever thread asks.
pub fn now() base.Instant {
    var time: c.timespec = undefined;
    const result = c.clock_gettime(.MONOTONIC, &time);
    assert(result == 0); // the clock id is a constant that every supported system has
    return latest.not_before(nanoseconds(time));
}

fn nanoseconds(time: c.timespec) base.Instant {
    // No number is negative or too large: the clock counts from 0 since some start of the machine,
    // and 64 bits of nanoseconds are 584 years.
    @setRuntimeSafety(false);
    return @as(u64, @intCast(time.sec)) * std.time.ns_per_s + @as(u64, @intCast(time.nsec));
}

/// Nanoseconds since 1970, as the user of this machine has set its clock. Only people use it: they
/// compare the logs of several machines by it.
pub fn wall() u64 {
    var time: c.timespec = undefined;
    const result = c.clock_gettime(.REALTIME, &time);
    assert(result == 0); // as in `now`
    const seconds: u64 = @intCast(@max(time.sec, 0));
    return seconds *| std.time.ns_per_s +| @as(u64, @intCast(time.nsec));
}

var latest: Latest = .{};

/// The latest time that any thread was told.
const Latest = struct {
    instant: std.atomic.Value(base.Instant) = .init(0),

    fn not_before(told: *Latest, reading: base.Instant) base.Instant {
        return @max(told.instant.fetchMax(reading, .monotonic), reading);
    }
};

/// The instant `duration_ns` from now; `base.never` if that is beyond the end of time.
pub fn after(duration_ns: u64) base.Instant {
    return now() +| duration_ns;
}

test "the clock moves forward, and a far deadline is never" {
    const first = now();
    try std.testing.expect(now() >= first);
    try std.testing.expectEqual(base.never, after(base.never));
    try std.testing.expect(wall() > 1_700_000_000 * @as(u64, std.time.ns_per_s));
}

test "after a step back the clock stands still, until the machine's has come past it" {
    var told: Latest = .{};
    try std.testing.expectEqual(100, told.not_before(100));
    for ([_]base.Instant{ 99, 0, 40, 100 }) |reading| {
        try std.testing.expectEqual(100, told.not_before(reading));
    }
    try std.testing.expectEqual(101, told.not_before(101));
}
