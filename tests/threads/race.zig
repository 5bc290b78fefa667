//! race: a program with one data race in engine/net, the control of `zig build test-net -Dtsan`. A
//! thread ends a peer's engine, which writes `state` under the lock; the main thread reads it
//! without, until it sees that: the read that sees it is one that nothing orders. The step fails
//! unless ThreadSanitizer reports the race: a sanitizer that misses it would miss everything. The
//! tests that must be without a report: engine/net, engine/abi.

const std = @import("std");
const net = @import("net");

const run_id: [16]u8 = @splat(0x5a);

pub fn main() !void {
    const gpa = std.heap.c_allocator;
    const coordinator = try net.CoordinatorEngine.create(gpa, .{
        .protocol = .{ .run_id = run_id },
    });
    defer coordinator.destroy();
    const engine = try net.PeerEngine.create(gpa, .{
        .coordinator = try .parse(coordinator.reached_at()),
        .run_id = run_id,
        .bind = .{ .host = "127.0.0.1", .port = 0 },
        .connect_deadline = net.clock.after(60 * std.time.ns_per_s),
    });
    defer engine.unreference();
    const ending = try std.Thread.spawn(.{}, net.PeerEngine.stop, .{ engine, .abrupt });
    defer ending.join();
    // The race: `stopped` is to be asked under the lock.
    while (!engine.stopped()) try std.Thread.yield();
}
