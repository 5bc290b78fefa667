//! forks: which descriptors are ours, so that a forked child lets go of them at once. Every
//! descriptor that the library opens is noted here. Used by socket.zig and whatever else opens one.

const std = @import("std");
const log = @import("log.zig");
const c = std.c;

pub const Fd = c.fd_t;

/// One bit per descriptor of ours. A child of fork() inherits them all; were it to keep them, the
/// connections of a parent that dies would stay open, and nobody would notice the death. exec()
/// closes them by itself.
const Owned = struct {
    var bits: [fds_max / 64]std.atomic.Value(u64) = @splat(.init(0));
    var registered: std.atomic.Value(bool) = .init(false);
    /// Held for reading while a descriptor exists without its bit, for writing by a fork.
    var births: c.pthread_rwlock_t = .{};

    /// A descriptor beyond this number is used all the same, but a child keeps it until it ends.
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
        births = .{}; // it was locked by a thread of the parent
        log.forked();
        for (&bits, 0..) |*word, index| {
            var left = word.swap(0, .acq_rel);
            while (left != 0) : (left &= left - 1) {
                _ = c.close(@intCast(index * 64 + @ctz(left)));
            }
        }
    }
};

/// Between the two no fork happens: a descriptor is opened and adopted, or closed, as one. The code
/// between must not block and not call these again.
pub const hold = Owned.hold;
pub const allow = Owned.allow;

/// Notes a descriptor, under `hold`.
pub fn adopt(fd: Fd) Fd {
    Owned.note(fd);
    return fd;
}

/// -1 if there are too many.
pub fn duplicate(fd: Fd) Fd {
    hold();
    defer allow();
    const copy = c.fcntl(fd, c.F.DUPFD_CLOEXEC, @as(c_int, 0));
    return if (copy < 0) copy else adopt(copy);
}

pub fn close(fd: Fd) void {
    hold();
    defer allow();
    // Forgotten first: afterwards the number may belong to somebody else.
    Owned.forget(fd);
    _ = c.close(fd);
}
