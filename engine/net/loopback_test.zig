//! Tests of the engines over real loopback sockets: a coordinator and its peers as threads of one process. What the
//! protocol promises under every order of events is tests/sim's; here it is that sockets, threads and clocks carry
//! it. Failures of processes, not threads, are tests/chaos.

const std = @import("std");
const base = @import("base");
const session = @import("session");
const net = @import("root.zig");
const clock = net.clock;
const CoordinatorEngine = net.CoordinatorEngine;
const Membership = net.Membership;
const PeerEngine = net.PeerEngine;
const Work = net.Work;
const gpa = std.testing.allocator;
const seconds = std.time.ns_per_s;

const run_id: base.RunId = @splat(0x5a);
/// Nothing here takes so long; a test that hangs fails instead.
const patience_ns = 60 * seconds;

const Backend = net.poller.Backend;

fn start_coordinator(options: struct { lanes: u8 = 2, backend: Backend = .default }) !*CoordinatorEngine {
    return CoordinatorEngine.create(gpa, .{
        .backend = options.backend,
        .protocol = .{
            .run_id = run_id,
            .lanes = options.lanes,
            .chunk_bytes = 4096,
            .window_bytes = 64 * 1024,
            .heartbeat_ns = seconds / 10,
            .silence_ns = 2 * seconds,
        },
    });
}

/// One peer in one group.
const Peer = struct {
    engine: *PeerEngine,
    membership: *Membership,

    const Options = struct {
        world_size: u32,
        backend: Backend = .default,
    };

    fn join(coordinator: *const CoordinatorEngine, options: Options) !Peer {
        const engine = try PeerEngine.create(gpa, .{
            .coordinator = try .parse(coordinator.reached_at()),
            .run_id = run_id,
            .connect_deadline = clock.after(patience_ns),
            .bind = .{ .host = "127.0.0.1", .port = 0 },
            .backend = options.backend,
        });
        defer engine.unreference(); // the membership holds it from now on
        var failure: Membership.Failure = undefined;
        const membership = try Membership.join(engine, .{
            .name = "train",
            .initial_world_size = options.world_size,
            .deadline = clock.after(patience_ns),
        }, &failure);
        return .{ .engine = engine, .membership = membership };
    }

    fn admit(peer: *const Peer) !Membership.Admission {
        return switch (try peer.membership.admit(clock.after(patience_ns), .{})) {
            .passed => |admission| admission,
            .failed => error.AdmitFailed,
        };
    }

    fn leave(peer: *const Peer) void {
        peer.membership.release();
    }

    fn begin(peer: *const Peer, work: *Work, values: anytype, call: struct {
        op: base.ReduceOp = .sum,
        tag: u64 = 0,
        recovery: ?@FieldType(session.Session.Call, "recovery") = null,
    }) !void {
        const Element = std.meta.Elem(@TypeOf(values));
        try work.begin(peer.membership, .{
            .kind = .all_reduce,
            .send = @ptrCast(values.ptr),
            .recv = @ptrCast(values.ptr),
            .count = values.len,
            .dtype = if (Element == f32) .f32 else .u64,
            .op = call.op,
            .tag = call.tag,
            .recovery = call.recovery orelse null,
            .deadline = clock.after(patience_ns),
        });
    }

    fn all_reduce(peer: *const Peer, values: anytype) !void {
        var work: Work = undefined;
        try peer.begin(&work, values, .{});
        defer work.deinit();
        try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
    }
};

/// Runs `body(rank-ish index, context)` on a thread of its own for each peer and returns the first error.
fn in_parallel(comptime count: usize, context: anytype, comptime body: anytype) !void {
    const Thread = struct {
        fn run(of: @TypeOf(context), index: usize, result: *anyerror!void) void {
            result.* = body(of, index);
        }
    };
    var threads: [count]std.Thread = undefined;
    var results: [count]anyerror!void = undefined;
    for (&threads, &results, 0..) |*thread, *result, index| {
        thread.* = try std.Thread.spawn(.{}, Thread.run, .{ context, index, result });
    }
    for (threads) |thread| thread.join();
    for (results) |result| try result;
}

/// Digit r of every value tells what rank r contributed.
fn digits(values: []u64, rank: usize) void {
    for (values, 0..) |*value, index| value.* = (index % 7 + 1) << @intCast(4 * rank);
}

fn expect_sum(values: []const u64, ranks: []const usize) !void {
    for (values, 0..) |value, index| {
        var expected: u64 = 0;
        for (ranks) |rank| expected += (index % 7 + 1) << @intCast(4 * rank);
        try std.testing.expectEqual(expected, value);
    }
}

test "one to four peers reduce u64 and f32, with either poller" {
    inline for (.{ 1, 2, 3, 4 }) |world_size| for ([_]Backend{ .default, .poll }) |backend| {
        const coordinator = try start_coordinator(.{ .backend = backend });
        defer coordinator.destroy();
        const Case = struct {
            coordinator: *const CoordinatorEngine,
            backend: Backend,

            fn run(case: @This(), _: usize) !void {
                const peer = try Peer.join(case.coordinator, .{
                    .world_size = world_size,
                    .backend = case.backend,
                });
                defer peer.leave();
                const admission = try peer.admit();
                try std.testing.expectEqual(world_size, admission.world_size);
                try std.testing.expect(admission.changed);
                for ([_]usize{ 0, 1, 1000, 100_003 }) |count| {
                    const values = try gpa.alloc(u64, count);
                    defer gpa.free(values);
                    digits(values, admission.rank);
                    try peer.all_reduce(values);
                    try expect_sum(values, ([_]usize{ 0, 1, 2, 3 })[0..world_size]);
                }
                const floats = try gpa.alloc(f32, 77_777);
                defer gpa.free(floats);
                for (floats, 0..) |*value, index| {
                    value.* = @floatFromInt((index % 100) * (admission.rank + 1));
                }
                try peer.all_reduce(floats);
                const factor = world_size * (world_size + 1) / 2;
                for (floats, 0..) |value, index| {
                    const expected: f32 = @floatFromInt((index % 100) * factor);
                    try std.testing.expectEqual(expected, value);
                }
            }
        };
        try in_parallel(world_size, Case{ .coordinator = coordinator, .backend = backend }, Case.run);
    };
}
