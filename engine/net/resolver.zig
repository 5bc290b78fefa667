//! resolver: looks a host name up on a thread of its own, because a lookup may block for many
//! seconds and cannot be stopped. The caller may lose interest at any time. Numeric addresses never
//! come here (address.zig).

const std = @import("std");
const base = @import("base");
const address = @import("address.zig");
const descriptor = @import("descriptor.zig");
const lock = @import("lock.zig");
const socket = @import("socket.zig");
const thread = @import("thread.zig");
const c = std.c;
const assert = std.debug.assert;

/// It outlives both sides: the last to release frees it. Allocated from libc, which has no owner.
pub const Lookup = struct {
    references: std.atomic.Value(u32) = .init(2),
    host_storage: [base.limits.address_bytes_max]u8,
    host_length: usize,
    port: u16,
    /// A copy of the descriptor that wakes the engine that asked, or -1.
    wake_fd: c.fd_t,
    done: lock.Signal = .{},
    /// Valid once `done` is set.
    result: address.LookUpError!address.AddressList = error.NameLookupFailed,

    pub const Error = error{ OutOfMemory, ThreadLimit, BadAddress };

    /// `wake_fd` (an eventfd or the writing end of a pipe) is written to when the answer is
    /// there; -1: none.
    pub fn start(endpoint: address.Endpoint, wake_fd: c.fd_t) Error!*Lookup {
        const host = endpoint.host;
        if (host.len > base.limits.address_bytes_max) return error.BadAddress;
        const lookup = try std.heap.c_allocator.create(Lookup);
        errdefer std.heap.c_allocator.destroy(lookup);
        lookup.* = .{
            .host_storage = undefined,
            .host_length = host.len,
            .port = endpoint.port,
            .wake_fd = if (wake_fd < 0) -1 else descriptor.duplicate(wake_fd),
        };
        errdefer lookup.close_wake();
        @memcpy(lookup.host_storage[0..host.len], host);
        (try thread.spawn("pccl-resolver", lookup, run)).detach();
        return lookup;
    }

    pub fn release(lookup: *Lookup) void {
        if (lookup.references.fetchSub(1, .acq_rel) > 1) return;
        lookup.close_wake();
        std.heap.c_allocator.destroy(lookup);
    }

    fn run(lookup: *Lookup) void {
        const host = lookup.host_storage[0..lookup.host_length];
        lookup.result = address.look_up(.{ .host = host, .port = lookup.port }, .{});
        lookup.done.set();
        if (lookup.wake_fd >= 0) {
            const one: u64 = 1;
            _ = c.write(lookup.wake_fd, std.mem.asBytes(&one), @sizeOf(u64));
        }
        lookup.release();
    }

    fn close_wake(lookup: *Lookup) void {
        if (lookup.wake_fd >= 0) socket.close(lookup.wake_fd);
        lookup.wake_fd = -1;
    }
};

test "localhost is found, and a reserved name is not" {
    const good = try Lookup.start(.{ .host = "localhost", .port = 5 }, -1);
    defer good.release();
    assert(good.done.wait(base.never));
    const list = try good.result;
    try std.testing.expectEqual(5, list.slice()[0].port());

    const bad = try Lookup.start(.{ .host = "no-such-host.invalid", .port = 5 }, -1);
    defer bad.release();
    assert(bad.done.wait(base.never));
    try std.testing.expect(std.meta.isError(bad.result));
}

test "whoever asks may go before the answer comes" {
    const lookup = try Lookup.start(.{ .host = "localhost", .port = 5 }, -1);
    lookup.release();
}
