//! descriptor: the file descriptors that the library opens. Each descriptor is noted here, so that
//! a forked child closes its copies at once. Each connection is counted: the program has
//! descriptors of its own, so all engines together use three quarters of what the process may open.
//! The limit of the process is read each time, because a program may change it. Used by each file
//! that opens a descriptor: socket.zig, poller.zig, journal.zig.

const std = @import("std");
const base = @import("base");
const log = @import("log.zig");
const c = std.c;

pub const Fd = c.fd_t;

// ---- forks

/// The descriptors of the library, one bit each. A child of fork() inherits all descriptors. If the
/// child kept them, the connections of a parent that dies would stay open, and no peer would notice
/// the death. exec() closes the descriptors by itself.
const Owned = struct {
    var bits: [fds_max / 64]std.atomic.Value(u64) = @splat(.init(0));
    var registered: std.atomic.Value(bool) = .init(false);
    /// Held for reading while a descriptor exists without its bit, for writing by a fork.
    var births: c.pthread_rwlock_t = .{};

    /// A descriptor from this number on is used but not noted: a child keeps it until it ends.
    const fds_max = 64 * 1024;

    fn hold() void {
        if (!registered.swap(true, .acq_rel)) {
            // Without memory for the handlers a child keeps the descriptors; nothing else is lost.
            _ = c.pthread_atfork(before_fork, after_fork, close_in_child);
        }
        _ = c.pthread_rwlock_rdlock(&births);
    }

    fn allow() void {
        _ = c.pthread_rwlock_unlock(&births);
    }

    fn before_fork() callconv(.c) void {
        _ = c.pthread_rwlock_wrlock(&births);
    }

    fn after_fork() callconv(.c) void {
        _ = c.pthread_rwlock_unlock(&births);
    }

    fn note(fd: Fd) void {
        if (place(fd)) |index| _ = bits[index / 64].fetchOr(mask(index), .acq_rel);
    }

    fn forget(fd: Fd) void {
        if (place(fd)) |index| _ = bits[index / 64].fetchAnd(~mask(index), .acq_rel);
    }

    fn place(fd: Fd) ?usize {
        return if (fd >= 0 and fd < fds_max) @intCast(fd) else null;
    }

    fn mask(index: usize) u64 {
        return @as(u64, 1) << @intCast(index % 64);
    }

    fn close_in_child() callconv(.c) void {
        births = .{}; // a thread of the parent had locked it
        log.forked();
        for (&bits, 0..) |*word, index| {
            var left = word.swap(0, .acq_rel);
            while (left != 0) : (left &= left - 1) {
                _ = c.close(@intCast(index * 64 + @ctz(left)));
            }
        }
    }
};

/// No fork happens between `hold_forks` and `allow_forks`, so that a descriptor is opened and noted
/// in one step. Code between `hold_forks` and `allow_forks` must not block and must not hold forks
/// again.
pub const hold_forks = Owned.hold;
pub const allow_forks = Owned.allow;

/// Notes a descriptor of the library, under `hold_forks`.
pub fn adopt(fd: Fd) Fd {
    Owned.note(fd);
    return fd;
}

/// Copies a descriptor; -1 if the process has too many.
pub fn duplicate(fd: Fd) Fd {
    hold_forks();
    defer allow_forks();
    const copy = c.fcntl(fd, c.F.DUPFD_CLOEXEC, @as(c_int, 0));
    return if (copy < 0) copy else adopt(copy);
}

pub fn close(fd: Fd) void {
    hold_forks();
    defer allow_forks();
    // The bit is cleared first: once closed, the number may belong to other code.
    Owned.forget(fd);
    _ = c.close(fd);
}

// ---- the share of the engines

var held: std.atomic.Value(usize) = .init(0);

/// Whether the share of the engines has room for another connection.
pub fn has_room() bool {
    return held.load(.monotonic) < share_of(limit());
}

/// Counts a connection, for all engines together; false if their share has no room for it.
pub fn take() bool {
    if (held.fetchAdd(1, .monotonic) < share_of(limit())) return true;
    give_back();
    return false;
}

pub fn give_back() void {
    _ = held.fetchSub(1, .monotonic);
}

/// How many connections of strangers one engine keeps, so that most of the share is for lanes.
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

// ---- tests

const address = @import("address.zig");
const socket = @import("socket.zig");

test "a forked child lets go of every descriptor of ours" {
    const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const listener = try socket.listen(&any_port);
    defer socket.close(listener);
    const child = c.fork();
    if (child == 0) {
        const still_open = c.fcntl(listener, c.F.GETFD) != -1;
        c._exit(if (still_open) 1 else 0);
    }
    var status: c_int = -1;
    try std.testing.expectEqual(child, c.waitpid(child, &status, 0));
    try std.testing.expectEqual(0, status);
    try std.testing.expect(c.fcntl(listener, c.F.GETFD) != -1);
}

test "a child that is forked while sockets come and go inherits none of them" {
    // Goal: at no moment a descriptor is open and not noted. Method: threads connect, accept and
    // close as fast as they can; children look which descriptors they have.
    const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const listener = try socket.listen(&any_port);
    defer socket.close(listener);
    const Busy = struct {
        listener: Fd,
        over: std.atomic.Value(bool) = .init(false),

        fn run(busy: *@This()) void {
            const at = socket.local_address(busy.listener).?;
            while (!busy.over.load(.acquire)) {
                const client = socket.connect_start(&at) catch continue;
                if (socket.wait_for(busy.listener, .read, 100)) {
                    if (socket.accept(busy.listener)) |server| socket.close(server) else |_| {}
                }
                socket.close(client);
            }
        }
    };
    const looked_at = 256;
    var before: [looked_at]bool = undefined;
    for (&before, 0..) |*open_before, fd| {
        open_before.* = c.fcntl(@intCast(fd), c.F.GETFD) != -1 and fd != listener;
    }
    var busy: Busy = .{ .listener = listener };
    var threads: [2]std.Thread = undefined;
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Busy.run, .{&busy});
    defer for (threads) |thread| thread.join();
    defer busy.over.store(true, .release);
    for (0..300) |_| {
        const child = c.fork();
        if (child == 0) {
            for (before, 0..) |open_before, fd| {
                const is_open = c.fcntl(@intCast(fd), c.F.GETFD) != -1;
                if (is_open and !open_before) c._exit(1);
            }
            c._exit(0);
        }
        var status: c_int = -1;
        try std.testing.expectEqual(child, c.waitpid(child, &status, 0));
        try std.testing.expectEqual(0, status);
    }
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
    const others = held.load(.monotonic); // held by engines of other tests
    var taken: usize = 0;
    while (take()) taken += 1;
    try std.testing.expectEqual(share_of(limit()), others + taken);
    try std.testing.expect(!has_room());
    give_back();
    try std.testing.expect(has_room());
    for (1..taken) |_| give_back();
    try std.testing.expectEqual(others, held.load(.monotonic));
}
