//! turn: how long the engine of a peer serves one connection before it looks at others
//! (peer_engine.zig). It holds its lock meanwhile, so a turn ends early where somebody waits for
//! that.

const std = @import("std");
const base = @import("base");
const FairLock = @import("lock.zig").FairLock;
const limits = base.limits;

pub const Turn = struct {
    /// Held.
    lock: *const FairLock,
    left: usize = bytes_max,

    /// A connection moves so much before the others get their turn.
    const bytes_max = 1024 * limits.KiB;
    /// In a turn that moves more, messages to the coordinator go between.
    const told_bytes = 256 * limits.KiB;

    pub fn moved(turn: *Turn, count: usize) void {
        turn.left -|= count;
    }

    /// Never before something has moved: users that ask all the time must not stop it.
    pub fn is_over(turn: *const Turn) bool {
        return turn.left == 0 or (turn.left < bytes_max and turn.lock.contended());
    }

    pub fn is_long(turn: *const Turn) bool {
        return turn.left <= bytes_max - told_bytes;
    }
};

/// For tests: bytes that lanes have moved while a message to the coordinator could have left.
pub const Behind = struct {
    now: usize = 0,
    most: usize = 0,

    pub fn note(behind: *Behind, count: usize, waits: bool) void {
        behind.now = if (waits) behind.now + count else 0;
        behind.most = @max(behind.most, behind.now);
    }
};

test "a turn ends after so many bytes, or when somebody waits for the lock" {
    var lock: FairLock = .{};
    lock.lock();
    var turn: Turn = .{ .lock = &lock };
    turn.moved(Turn.told_bytes);
    try std.testing.expect(turn.is_long() and !turn.is_over());
    turn.moved(Turn.bytes_max);
    try std.testing.expect(turn.is_over());

    const Waiter = struct {
        fn run(wanted: *FairLock) void {
            wanted.lock();
            wanted.unlock();
        }
    };
    const waiter = try std.Thread.spawn(.{}, Waiter.run, .{&lock});
    while (!lock.contended()) try std.Thread.yield();
    turn = .{ .lock = &lock };
    try std.testing.expect(!turn.is_over());
    turn.moved(1);
    try std.testing.expect(turn.is_over());
    lock.unlock();
    waiter.join();
}
