//! descriptors: how many sockets all engines of this process may have. The program has descriptors
//! of its own, so a quarter of those that the process may open stays the program's, whoever
//! connects. The limit is read each time, because a program may change it. connections.zig holds
//! the sockets.

const std = @import("std");
const base = @import("base");
const c = std.c;

var held: std.atomic.Value(usize) = .init(0);

/// Whether another connection may come in.
pub fn has_room() bool {
    return held.load(.monotonic) < share_of(limit());
}

/// Counts one; false if it is too many.
pub fn take() bool {
    if (held.fetchAdd(1, .monotonic) < share_of(limit())) return true;
    give_back();
    return false;
}

pub fn give_back() void {
    _ = held.fetchSub(1, .monotonic);
}

/// How many connections of strangers one engine keeps: most of the share is for lanes.
pub fn strangers_max() u32 {
    return strangers_of(limit());
}

fn limit() usize {
    var found: c.rlimit = undefined;
    if (c.getrlimit(.NOFILE, &found) != 0) return std.math.maxInt(usize);
    return std.math.cast(usize, found.cur) orelse std.math.maxInt(usize);
}

fn share_of(most: usize) usize {
    return most - most / 4;
}

fn strangers_of(most: usize) u32 {
    return @intCast(@max(1, @min(base.limits.strangers_max, most / 8)));
}

test "a quarter of the descriptors is the program's, and strangers have an eighth at most" {
    const expectEqual = std.testing.expectEqual;
    try expectEqual(768, share_of(1024));
    try expectEqual(48, share_of(64));
    try expectEqual(base.limits.strangers_max, strangers_of(1024));
    try expectEqual(32, strangers_of(256));
    try expectEqual(8, strangers_of(64));
    try expectEqual(1, strangers_of(4));
    try expectEqual(base.limits.strangers_max, strangers_of(std.math.maxInt(usize)));
}

test "there is room for three quarters of the limit, and again when some are given back" {
    const before = limit();
    var now: c.rlimit = undefined;
    try std.testing.expectEqual(0, c.getrlimit(.NOFILE, &now));
    const restore = now;
    defer _ = c.setrlimit(.NOFILE, &restore);
    now.cur = @intCast(@min(before, 100));
    try std.testing.expectEqual(0, c.setrlimit(.NOFILE, &now));
    const others = held.load(.monotonic); // engines of other tests
    var taken: usize = 0;
    while (take()) taken += 1;
    try std.testing.expectEqual(share_of(limit()), others + taken);
    try std.testing.expect(!has_room());
    give_back();
    try std.testing.expect(has_room());
    for (1..taken) |_| give_back();
    try std.testing.expectEqual(others, held.load(.monotonic));
}
