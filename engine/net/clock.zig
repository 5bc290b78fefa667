//! clock: the monotonic clock, read once per round of an engine loop. Everything below net is
//! told the time (base.Instant) and never asks. Next: peer_engine.zig, the loop that asks.

const std = @import("std");
const base = @import("base");
const c = std.c;
const assert = std.debug.assert;

/// Nanoseconds since some start of this machine. Never goes back.
pub fn now() base.Instant {
    var time: c.timespec = undefined;
    const result = c.clock_gettime(.MONOTONIC, &time);
    assert(result == 0); // the clock id is a constant that every supported system has
    return @as(u64, @intCast(time.sec)) * std.time.ns_per_s + @as(u64, @intCast(time.nsec));
}

/// The instant `duration_ns` from now; `base.never` if that is beyond the end of time.
pub fn after(duration_ns: u64) base.Instant {
    return now() +| duration_ns;
}

test "the clock moves forward, and a far deadline is never" {
    const first = now();
    try std.testing.expect(now() >= first);
    try std.testing.expectEqual(base.never, after(base.never));
}
