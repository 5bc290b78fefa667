//! Tests of the engines over real loopback sockets: a coordinator and its peers as threads of one
//! process. tests/sim holds the promises of the protocol under every order of events; these tests
//! show that sockets, threads and clocks carry it. Failures of processes, not threads, are
//! tests/chaos.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const session = @import("session");
const net = @import("root.zig");
const clock = net.clock;
const CoordinatorEngine = net.CoordinatorEngine;
const secret = @import("secret.zig");
const cores_of_machine = @import("thread.zig").cores_of_machine;
const HeldPort = @import("fixture.zig").HeldPort;
const Carrier = @import("dial.zig").Carrier;
const Membership = net.Membership;
const PeerEngine = net.PeerEngine;
const Work = net.Work;
const gpa = std.testing.allocator;
const seconds = std.time.ns_per_s;

const run_id: base.RunId = @splat(0x5a);
/// Nothing here takes so long; a test that hangs fails instead.
const patience_ns = 60 * seconds;

const Backend = net.poller.Backend;

fn start_coordinator(backend: Backend) !*CoordinatorEngine {
    return CoordinatorEngine.create(gpa, .{
        .backend = backend,
        .protocol = .{
            .run_id = run_id,
            .lanes = 2,
            .chunk_bytes = 4096,
            .window_bytes = 64 * 1024,
            .heartbeat_ns = seconds / 10,
            .silence_ns = 10 * seconds,
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
        /// So that the sanitizer sees them at work.
        workers: u32 = 2,
        rate: u64 = 0,
        is_bare: bool = builtin.os.tag != .linux,
    };

    fn join(coordinator: *const CoordinatorEngine, options: Options) !Peer {
        const engine = try PeerEngine.create(gpa, .{
            .coordinator = try .parse(coordinator.reached_at()),
            .run_id = run_id,
            .connect_deadline = clock.after(patience_ns),
            .bind = .{ .host = "127.0.0.1", .port = 0 },
            .backend = options.backend,
            .workers = options.workers,
            .rates = .{ .all = options.rate },
            .system = .{ .is_bare = options.is_bare },
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
        return switch (try peer.membership.admit(.alone, clock.after(patience_ns), .{})) {
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
        recovery: @FieldType(session.Call, "recovery") = null,
        deadline_ns: u64 = patience_ns,
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
            .recovery = call.recovery,
            .deadline = clock.after(call.deadline_ns),
        });
    }

    fn all_reduce(peer: *const Peer, values: anytype) !void {
        var work: Work = undefined;
        try peer.begin(&work, values, .{});
        defer work.deinit();
        try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
    }
};

/// Runs `body(rank-ish index, context)` on a thread of its own for each peer and returns the
/// first error.
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

test "the run id that a peer's engine keeps is in no core file" {
    if (builtin.os.tag != .linux) return error.SkipZigTest;
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const peer = try Peer.join(coordinator, .{ .world_size = 1 });
    defer peer.leave();
    try std.testing.expect(try secret.is_left_out(&peer.engine.session.run_id[0]));
}

test "one to four peers reduce u64 and f32, with either poller" {
    inline for (.{ 1, 2, 3, 4 }) |world_size| for ([_]Backend{ .default, .poll }) |backend| {
        const coordinator = try start_coordinator(backend);
        defer coordinator.destroy();
        const Case = struct {
            coordinator: *const CoordinatorEngine,
            backend: Backend,

            fn run(case: @This(), _: usize) !void {
                const peer = try Peer.join(case.coordinator, .{
                    .world_size = world_size,
                    .backend = case.backend,
                    .workers = if (case.backend == .poll) 0 else 2,
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
        const case: Case = .{ .coordinator = coordinator, .backend = backend };
        try in_parallel(world_size, case, Case.run);
    };
}

test "on a system that keeps to no rate the engine does, and lanes that wait go on" {
    // Goal: the user's rate holds on every system. Method: two peers that take this one for such a
    // system; the lanes go through their buckets, many times over. Where the system keeps to the
    // rate, no lane has a bucket.
    for ([_]bool{ true, false }) |is_bare| {
        if (!is_bare and builtin.os.tag != .linux) continue;
        const coordinator = try start_coordinator(.default);
        defer coordinator.destroy();
        const Case = struct {
            coordinator: *const CoordinatorEngine,
            is_bare: bool,

            fn run(case: @This(), _: usize) !void {
                const peer = try Peer.join(case.coordinator, .{
                    .world_size = 2,
                    .rate = 50_000_000,
                    .is_bare = case.is_bare,
                });
                defer peer.leave();
                const admission = try peer.admit();
                const values = try gpa.alloc(u64, 500_000);
                defer gpa.free(values);
                digits(values, admission.rank);
                try peer.all_reduce(values);
                try expect_sum(values, &.{ 0, 1 });
                const held = held_back(peer.engine);
                try peer.all_reduce(values); // the other closes its lanes after it has looked, too
                const sent = values.len * @sizeOf(u64) / 2;
                if (case.is_bare) try std.testing.expect(held >= sent) //
                else try std.testing.expectEqual(0, held);
            }

            /// Bytes that lanes with a bucket have sent.
            fn held_back(engine: *PeerEngine) u64 {
                const mode = engine.enter();
                defer engine.leave(mode);
                var held: u64 = 0;
                for (engine.connections.all.items) |connection| {
                    if (connection.owner == PeerEngine.control_owner) continue;
                    const out = @as(*Carrier, @ptrFromInt(connection.owner)).out;
                    if (out.bucket.full_at > 0) held += out.taken;
                }
                return held;
            }
        };
        try in_parallel(2, Case{ .coordinator = coordinator, .is_bare = is_bare }, Case.run);
    }
}

test "lanes within the machine hold as much as each peer with a core is to have" {
    if (builtin.os.tag != .linux) return;
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 2 });
            defer peer.leave();
            _ = try peer.admit();
            var values: [8]u64 = @splat(1);
            try peer.all_reduce(&values);
            try expect_held(peer.engine, session.Pace.held(cores_of_machine() >= 2));
            try peer.all_reduce(&values); // the other closes its lanes after it has looked, too
        }

        fn expect_held(engine: *PeerEngine, wanted: u32) !void {
            const mode = engine.enter();
            defer engine.leave(mode);
            var lanes: usize = 0;
            for (engine.connections.all.items) |connection| {
                if (connection.owner == PeerEngine.control_owner) continue;
                var bytes: c_int = 0;
                var length: std.c.socklen_t = @sizeOf(c_int);
                const sol = std.c.SOL.SOCKET;
                const got = std.c.getsockopt(connection.fd, sol, std.c.SO.SNDBUF, &bytes, &length);
                try std.testing.expectEqual(0, got);
                // The administrator may allow less, and Linux doubles it.
                try std.testing.expect(bytes == 2 * wanted or bytes < 512 * base.limits.KiB);
                lanes += 1;
            }
            try std.testing.expect(lanes > 0);
        }
    };
    try in_parallel(2, coordinator, Case.run);
}

test "sixteen tags at once, begun in another order on each peer" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, index: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 3 });
            defer peer.leave();
            const admission = try peer.admit();
            const tags = 16;
            const count = 5000;
            const values = try gpa.alloc(u64, tags * count);
            defer gpa.free(values);
            var works: [tags]Work = undefined;
            for (0..tags) |step| {
                const tag = (step * 5 + index * 7) % tags;
                const part = values[tag * count ..][0..count];
                digits(part, admission.rank);
                for (part) |*value| value.* += tag << 32;
                try peer.begin(&works[tag], part, .{ .tag = tag });
            }
            for (&works, 0..) |*work, tag| {
                try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
                work.deinit();
                const part = values[tag * count ..][0..count];
                for (part) |*value| value.* -= 3 * (tag << 32);
                try expect_sum(part, &.{ 0, 1, 2 });
            }
        }
    };
    try in_parallel(3, coordinator, Case.run);
}

test "a vote leaves at once, however many bytes lanes have to move" {
    // Goal: the coordinator hears a vote before lanes go on. Method: small calls beside a large one
    // whose bytes fill the sockets, on eight lanes; the engine counts what lanes move while a
    // message waits that could leave. Here and not on a simulated network, because this order is
    // that of the loop in peer_engine.zig.
    const coordinator = try CoordinatorEngine.create(gpa, .{ .protocol = .{
        .run_id = run_id,
        .lanes = 8,
    } });
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 2 });
            defer peer.leave();
            const admission = try peer.admit();
            const large = try gpa.alloc(u64, 4 * 1024 * 1024);
            defer gpa.free(large);
            digits(large, admission.rank);
            var bulk: Work = undefined;
            try peer.begin(&bulk, large, .{});
            defer bulk.deinit();
            var small: [100]u64 = undefined;
            for (0..50) |_| {
                digits(&small, admission.rank);
                var work: Work = undefined;
                try peer.begin(&work, @as([]u64, &small), .{ .tag = 1 });
                defer work.deinit();
                try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
                try expect_sum(&small, &.{ 0, 1 });
            }
            try std.testing.expectEqual(session.Status.ok, bulk.wait(base.never).?);
            try expect_sum(large, &.{ 0, 1 });
            peer.engine.lock.lock();
            defer peer.engine.lock.unlock();
            // A part of a turn, read and written; without the flush it is tens of MiB.
            const most = 4 * base.limits.frame_payload_bytes_max + 64 * base.limits.KiB;
            try std.testing.expect(peer.engine.behind.most <= most);
        }
    };
    try in_parallel(2, coordinator, Case.run);
}

test "one operation at a time per tag, and none before the first safe point or after leaving" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 2 });
            defer peer.leave();
            var values: [10]u64 = @splat(1);
            var first: Work = undefined;
            var second: Work = undefined;
            const all: []u64 = &values;
            try std.testing.expectError(error.NotAdmitted, peer.begin(&first, all, .{}));
            const admission = try peer.admit();
            // Rank 1 calls only once rank 0 has seen what it came for.
            if (admission.rank == 0) {
                try peer.begin(&first, all, .{});
                try std.testing.expectError(error.TagInUse, peer.begin(&second, all, .{}));
                var other: [10]u64 = @splat(1);
                const others: []u64 = &other;
                try peer.begin(&second, others, .{ .tag = 1 });
            } else {
                try peer.begin(&second, all, .{ .tag = 1 });
                try std.testing.expectEqual(session.Status.ok, second.wait(base.never).?);
                var other: [10]u64 = @splat(1);
                const others: []u64 = &other;
                try peer.begin(&first, others, .{});
                try std.testing.expectEqual(session.Status.ok, first.wait(base.never).?);
            }
            for ([_]*Work{ &first, &second }) |work| {
                try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
                work.deinit();
            }
            peer.membership.leave();
            try std.testing.expectError(error.Left, peer.begin(&first, all, .{}));
            try std.testing.expectError(error.Closed, peer.membership.info());
        }
    };
    try in_parallel(2, coordinator, Case.run);
}

/// Ends every open lane of a peer as a broken network would.
fn break_lanes(peer: *const Peer) usize {
    const engine = peer.engine;
    engine.lock.lock();
    defer engine.lock.unlock();
    var broken: usize = 0;
    for (engine.connections.all.items) |connection| {
        if (connection == engine.control) continue;
        _ = std.c.shutdown(connection.fd, std.c.SHUT.RDWR);
        broken += 1;
    }
    return broken;
}

test "lanes that break in the middle of an operation are dialed again, and it still commits" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 3 });
            defer peer.leave();
            const admission = try peer.admit();
            const values = try gpa.alloc(u64, 1_000_000);
            defer gpa.free(values);
            for (0..5) |_| {
                digits(values, admission.rank);
                const before = (try peer.membership.info()).attempt;
                var work: Work = undefined;
                try peer.begin(&work, values, .{ .recovery = .resume_chunks });
                defer work.deinit();
                if (admission.rank == 1) {
                    // Not before data flows, so that something is in the air.
                    const start = (try peer.membership.info()).bytes_received;
                    while ((try peer.membership.info()).bytes_received == start) {
                        if (work.finished.is_set()) break;
                        try std.Thread.yield();
                    }
                    try std.testing.expect(break_lanes(&peer) > 0);
                }
                try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
                try expect_sum(values, &.{ 0, 1, 2 });
                try std.testing.expect((try peer.membership.info()).attempt >= before);
            }
            // The lanes were in use at least once when they broke.
            try std.testing.expect((try peer.membership.info()).attempt > 1);
        }
    };
    try in_parallel(3, coordinator, Case.run);
}

test "a peer that vanishes in the middle of an operation costs the others nothing but its part" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 3 });
            defer peer.leave();
            const admission = try peer.admit();
            const values = try gpa.alloc(u64, 2_000_000);
            defer gpa.free(values);
            digits(values, admission.rank);
            const start = (try peer.membership.info()).bytes_received;
            var work: Work = undefined;
            try peer.begin(&work, values, .{ .recovery = .resume_chunks });
            defer work.deinit();
            if (admission.rank == 1) {
                while ((try peer.membership.info()).bytes_received < start + 1_000_000) {
                    try std.Thread.yield();
                }
                peer.engine.stop(.abrupt);
                // Its own call has ended too, and its buffer is as it was.
                const status = work.wait(clock.after(patience_ns)).?;
                try std.testing.expect(status == .coordinator_unreachable or status == .in_doubt);
                try expect_sum(values, &.{1});
                return;
            }
            try std.testing.expectEqual(session.Status.ok, work.wait(base.never).?);
            const operation = work.operation;
            var ranges = operation.ranges();
            var at_element: u64 = 0;
            while (ranges.next()) |range| {
                try std.testing.expectEqual(at_element, range.begin);
                at_element = range.end;
                const with_it = range.contributors.has(1);
                for (values[range.begin..range.end], range.begin..) |value, index| {
                    const unit: u64 = index % 7 + 1;
                    const expected = unit + (unit << 8) + if (with_it) unit << 4 else 0;
                    try std.testing.expectEqual(expected, value);
                }
            }
            try std.testing.expectEqual(values.len, at_element);
            const info = try peer.membership.info();
            try std.testing.expect(info.alive < 3); // the other one may have left since
            try std.testing.expectEqual(3, info.world_size);
        }
    };
    try in_parallel(3, coordinator, Case.run);
}

test "a newcomer enters at a safe point while the others work" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        coordinator: *const CoordinatorEngine,
        running: net.lock.Signal = .{},
        entered: std.atomic.Value(u32) = .init(0),

        fn run(case: *@This(), index: usize) !void {
            if (index == 2) _ = case.running.wait(base.never);
            const peer = try Peer.join(case.coordinator, .{ .world_size = 2 });
            defer peer.leave();
            var world_size: u32 = 0;
            var rounds: usize = 0;
            // Five steps together; the vote to stop is itself an all_reduce.
            while (true) : (rounds += 1) {
                const admission = try peer.admit();
                if (index == 2 and rounds == 0) try std.testing.expect(admission.changed);
                world_size = admission.world_size;
                if (world_size == 3) _ = case.entered.fetchAdd(1, .monotonic);
                var values: [100]u64 = @splat(@as(u64, 1) << @intCast(8 * admission.rank));
                const all: []u64 = &values;
                try peer.all_reduce(all);
                const expected: u64 = if (world_size == 3) 0x10101 else 0x101;
                for (values) |value| try std.testing.expectEqual(expected, value);
                case.running.set();
                var stop: [1]u64 = .{@intFromBool(case.entered.load(.monotonic) >= 15)};
                const vote: []u64 = &stop;
                try peer.all_reduce(vote);
                if (stop[0] > 0) break;
            }
            try std.testing.expectEqual(3, world_size);
        }
    };
    var case: Case = .{ .coordinator = coordinator };
    try in_parallel(3, &case, Case.run);
}

test "a deadline ends a call that another peer never makes, on both sides of it" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 2 });
            defer peer.leave();
            const admission = try peer.admit();
            var values: [1000]u64 = undefined;
            const all: []u64 = &values;
            digits(all, admission.rank);
            if (admission.rank == 0) {
                const short_ns = seconds / 10;
                var work: Work = undefined;
                try peer.begin(&work, all, .{ .deadline_ns = short_ns });
                defer work.deinit();
                try std.testing.expectEqual(null, work.wait(0));
                const status = work.wait(base.never).?;
                try std.testing.expectEqual(session.Status.deadline_exceeded, status);
                try expect_sum(all, &.{0});
            }
            // On a tag of its own, so that both come here after the deadline.
            var meeting: Work = undefined;
            var nothing: [1]u64 = .{0};
            const empty: []u64 = &nothing;
            try peer.begin(&meeting, empty, .{ .tag = 9 });
            defer meeting.deinit();
            try std.testing.expectEqual(session.Status.ok, meeting.wait(base.never).?);
            if (admission.rank == 1) {
                var late: Work = undefined;
                try peer.begin(&late, all, .{});
                defer late.deinit();
                try std.testing.expectEqual(session.Status.aborted, late.wait(base.never).?);
                try std.testing.expectEqual(.deadline, late.operation.failure.reason.?);
                try expect_sum(all, &.{1});
            }
        }
    };
    try in_parallel(2, coordinator, Case.run);
}

test "a work that is destroyed in flight lets go of its buffer at once" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 2 });
            defer peer.leave();
            const admission = try peer.admit();
            if (admission.rank == 0) {
                const values = try gpa.alloc(u64, 100_000);
                var work: Work = undefined;
                {
                    defer gpa.free(values);
                    try peer.begin(&work, values, .{});
                    work.deinit();
                }
            }
            // It has left the group with that, and the other one goes on.
            var next: Work = undefined;
            var one: [1]u64 = .{1};
            const all: []u64 = &one;
            if (admission.rank == 0)
                return std.testing.expectError(error.Left, peer.begin(&next, all, .{ .tag = 9 }));
            try peer.begin(&next, all, .{ .tag = 9 });
            defer next.deinit();
            try std.testing.expectEqual(session.Status.ok, next.wait(base.never).?);
            try std.testing.expectEqual(1, one[0]);
        }
    };
    try in_parallel(2, coordinator, Case.run);
}

fn create_error(options: PeerEngine.Options) PeerEngine.Error!void {
    (try PeerEngine.create(gpa, options)).unreference();
}

test "no coordinator, another run, a port in use, a second peer of one id" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const good: PeerEngine.Options = .{
        .coordinator = try .parse(coordinator.reached_at()),
        .run_id = run_id,
        .connect_deadline = clock.after(patience_ns),
        .bind = .{ .host = "127.0.0.1", .port = 0 },
    };
    var options = good;
    options.run_id = @splat(1);
    try std.testing.expectError(error.WrongRun, create_error(options));
    options = good;
    options.bind.?.port = coordinator.port;
    try std.testing.expectError(error.AddressInUse, create_error(options));
    options = good;
    options.bind.?.host = "no-such-host.invalid";
    try std.testing.expectError(error.ListenNameNotFound, create_error(options));

    const silent = try HeldPort.init();
    defer silent.deinit();
    options = good;
    options.coordinator = silent.endpoint();
    options.connect_deadline = clock.after(seconds / 20);
    try std.testing.expectError(error.Refused, create_error(options));

    options = good;
    options.peer_id = .from_int(77);
    const first = try PeerEngine.create(gpa, options);
    defer first.unreference();
    try std.testing.expectError(error.TurnedAway, create_error(options));
}

test "what listens there is not a coordinator" {
    const Other = struct {
        listener: net.socket.Fd,
        says: []const u8,

        fn run(other: *@This()) void {
            while (net.socket.wait_for(other.listener, .read, 20_000)) {
                const fd = net.socket.accept(other.listener) catch return;
                defer net.socket.close(fd);
                var question: [256]u8 = undefined;
                if (!net.socket.wait_for(fd, .read, 10_000)) return;
                const count = net.socket.receive(fd, &.{&question}) catch return;
                if (count == 0) return; // the end of the test
                _ = net.socket.send(fd, &.{other.says}) catch return;
            }
        }
    };
    const any_port = try net.address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    // A server that closes without a word is tried until the deadline: it may be about to be a
    // coordinator.
    const cases = [_]struct { []const u8, PeerEngine.Error, u64 }{
        .{ "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", error.NotPccl, patience_ns },
        .{ "", error.Closed, std.time.ns_per_s },
    };
    for (cases) |case| {
        const listener = try net.socket.listen(&any_port);
        defer net.socket.close(listener);
        const at = net.socket.local_address(listener).?;
        var other: Other = .{ .listener = listener, .says = case[0] };
        const thread = try std.Thread.spawn(.{}, Other.run, .{&other});
        const result = create_error(.{
            .coordinator = .{ .host = "127.0.0.1", .port = at.port() },
            .run_id = run_id,
            .connect_deadline = clock.after(case[2]),
        });
        // An empty visit ends the other side.
        const farewell = try net.socket.connect_start(&at);
        net.socket.close(farewell);
        thread.join();
        try std.testing.expectError(case[1], result);
    }
}

test "while the coordinator is away a call ends at its deadline, and gives back its buffer" {
    const coordinator = try start_coordinator(.default);
    const Case = struct {
        coordinator: *CoordinatorEngine,
        entered: net.lock.Signal = .{},
        called: net.lock.Signal = .{},
        over: net.lock.Signal = .{},

        fn run(case: *@This(), index: usize) !void {
            if (index == 2) {
                _ = case.called.wait(base.never);
                case.coordinator.destroy();
                return case.over.set();
            }
            const peer = try Peer.join(case.coordinator, .{ .world_size = 2 });
            defer peer.leave();
            const admission = try peer.admit();
            // Rank 1 never calls.
            if (admission.rank == 1) {
                case.entered.set();
                _ = case.over.wait(base.never);
                _ = try peer.admit(); // with nothing pending that asks nobody
                return;
            }
            var values: [1000]u64 = undefined;
            const all: []u64 = &values;
            digits(all, 0);
            var work: Work = undefined;
            try peer.begin(&work, all, .{ .deadline_ns = 2 * seconds });
            defer work.deinit();
            _ = case.entered.wait(base.never);
            case.called.set();
            const status = work.wait(base.never).?;
            try std.testing.expectEqual(session.Status.coordinator_unreachable, status);
            try expect_sum(all, &.{0});
        }
    };
    var case: Case = .{ .coordinator = coordinator };
    try in_parallel(3, &case, Case.run);
}

test "a thread that waits for a group or a safe point can be interrupted" {
    const Ask = struct {
        fn always(_: ?*anyopaque) callconv(.c) c_int {
            return 1;
        }
    };
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const peer = try Peer.join(coordinator, .{ .world_size = 1 });
    defer peer.leave();
    _ = try peer.admit();
    // A group of two that nobody else comes to.
    var failure: Membership.Failure = undefined;
    try std.testing.expectError(error.Interrupted, Membership.join(peer.engine, .{
        .name = "other",
        .initial_world_size = 2,
        .deadline = clock.after(patience_ns),
        .interrupt = .{ .function = Ask.always },
    }, &failure));
    try std.testing.expectError(error.DeadlineExceeded, Membership.join(peer.engine, .{
        .name = "other",
        .initial_world_size = 2,
        .deadline = clock.after(seconds / 20),
    }, &failure));
    try std.testing.expectError(error.AlreadyJoined, Membership.join(peer.engine, .{
        .name = "train",
        .deadline = clock.after(seconds),
    }, &failure));
}

test "an admit that waits for another peer can be interrupted, and has not passed the safe point" {
    // Peer B is stopped after it has said that it is prepared for newcomer C, so the question at
    // which safe point C enters is open for as long as B is. A has answered and waits.
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        coordinator: *const CoordinatorEngine,
        a_stopped: net.lock.Signal = .{},
        b_stopped: net.lock.Signal = .{},
        b_may_go: net.lock.Signal = .{},

        fn run(case: *@This(), index: usize) !void {
            if (index == 2) {
                try await(&case.a_stopped);
                const peer = try Peer.join(case.coordinator, .{ .world_size = 2 });
                defer peer.leave();
                return std.testing.expectEqual(3, (try peer.admit()).world_size);
            }
            const peer = try Peer.join(case.coordinator, .{ .world_size = 2 });
            defer peer.leave();
            _ = try peer.admit();
            if (index == 0) try case.a(&peer) else try case.b(&peer);
            // B may pass one safe point before it hears the question; then C enters at the next
            // one.
            while ((try peer.admit()).world_size < 3) {}
        }

        fn await(signal: *net.lock.Signal) !void {
            try std.testing.expect(signal.wait(clock.after(patience_ns)));
        }

        fn a(case: *@This(), peer: *const Peer) !void {
            {
                peer.engine.lock.lock();
                defer peer.engine.lock.unlock();
                // The coordinator must know that this epoch is entered, before it prepares the
                // next one.
                const control = &peer.engine.session.control;
                while (control.send_slice().len > 0) peer.engine.lock.pass();
                case.a_stopped.set();
                try await(&case.b_stopped);
            }
            while (!question_asked(peer)) try std.Thread.yield();
            defer case.b_may_go.set();
            const impatient: net.lock.Interrupt = .{ .function = always };
            for (0..2) |_| {
                const admitted = peer.membership.admit(.alone, clock.after(patience_ns), impatient);
                try std.testing.expectError(error.Interrupted, admitted);
            }
            const late = try peer.membership.admit(.alone, clock.after(seconds / 20), .{});
            try std.testing.expectEqual(session.Status.deadline_exceeded, late.failed);
            try std.testing.expectEqual(2, (try peer.membership.info()).world_size);
        }

        fn always(_: ?*anyopaque) callconv(.c) c_int {
            return 1;
        }

        fn question_asked(peer: *const Peer) bool {
            peer.engine.lock.lock();
            defer peer.engine.lock.unlock();
            return peer.membership.group.member.stop_round != 0;
        }

        fn b(case: *@This(), peer: *const Peer) !void {
            try await(&case.a_stopped);
            peer.engine.lock.lock();
            defer peer.engine.lock.unlock();
            while (!prepared(peer)) peer.engine.lock.pass();
            case.b_stopped.set();
            try await(&case.b_may_go);
        }

        /// Its lanes to the newcomer are open, and the coordinator has been told.
        fn prepared(peer: *const Peer) bool {
            const member = &peer.membership.group.member;
            const answered = member.pending > 0 and member.round == 0;
            return answered and peer.engine.session.control.send_slice().len == 0;
        }
    };
    var case: Case = .{ .coordinator = coordinator };
    try in_parallel(3, &case, Case.run);
}

/// A state of one tensor, and what becomes of it.
const Shared = struct {
    peer: *const Peer,
    bytes: []u8,
    state: *net.SharedState,

    const leaves = 200;

    fn init(shared: *Shared, peer: *const Peer, value: u8, prefetch: bool) !void {
        const bytes = try gpa.alloc(u8, leaves * base.limits.state_leaf_bytes);
        errdefer gpa.free(bytes);
        @memset(bytes, value);
        const shape = [_]u64{bytes.len};
        var at: usize = 0;
        shared.* = .{ .peer = peer, .bytes = bytes, .state = undefined };
        shared.state = try net.SharedState.create(gpa, peer.membership, .{
            .name = "state",
            .tensors = &.{.{ .name = "x", .dtype = .u8, .shape = &shape, .data = bytes.ptr }},
            .prefetch = prefetch,
        }, &at);
    }

    fn deinit(shared: *Shared) void {
        shared.state.destroy();
        gpa.free(shared.bytes);
    }

    fn sync(shared: *Shared, deadline_ns: u64) !net.SharedState.Outcome {
        var ids: [base.limits.peers_max]base.PeerId = undefined;
        const options: net.SharedState.Options = .{
            .strategy = .popular,
            .revision = null,
            .deadline = clock.after(deadline_ns),
            .interrupt = .{},
            .ids = &ids,
        };
        return shared.state.sync(options, ignore);
    }

    fn ignore(_: *const session.Operation) void {}
};

test "three peers sync what differs, hashed on several threads, and once more without moving any" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 3 });
            defer peer.leave();
            const rank = (try peer.admit()).rank;
            var shared: Shared = undefined;
            try shared.init(&peer, if (rank < 2) 7 else 1, true);
            defer shared.deinit();
            const first = try shared.sync(patience_ns);
            try std.testing.expectEqual(1, first.revision);
            const differing: u32 = if (rank < 2) 0 else Shared.leaves;
            try std.testing.expectEqual(differing, first.leaves_moved);
            try std.testing.expect(std.mem.allEqual(u8, shared.bytes, 7));
            const second = try shared.sync(patience_ns);
            try std.testing.expectEqual(2, second.revision);
            try std.testing.expectEqual(0, second.bytes_received + second.bytes_sent);
        }
    };
    try in_parallel(3, coordinator, Case.run);
}

test "a state that is closed on another thread ends its sync, and nothing is left of it" {
    const coordinator = try start_coordinator(.default);
    defer coordinator.destroy();
    const Case = struct {
        fn run(at: *const CoordinatorEngine, _: usize) !void {
            const peer = try Peer.join(at, .{ .world_size = 2 });
            defer peer.leave();
            const rank = (try peer.admit()).rank;
            var shared: Shared = undefined;
            try shared.init(&peer, 7, false);
            defer shared.deinit();
            if (rank == 0) {
                // The other one never calls; whenever the close comes, it ends the call.
                const closer = try std.Thread.spawn(.{}, net.SharedState.close, .{shared.state});
                defer closer.join();
                if (shared.sync(patience_ns)) |_| return error.TestUnexpectedResult else |err| {
                    try std.testing.expect(err == error.Failed or err == error.Ended);
                }
            }
            var values: [10]u64 = undefined;
            digits(&values, rank);
            const all: []u64 = &values;
            try peer.all_reduce(all);
            try expect_sum(&values, &.{ 0, 1 });
        }
    };
    try in_parallel(2, coordinator, Case.run);
}

/// Counts waits by their length.
const Histogram = struct {
    counts: [bounds_us.len + 1]u32 = @splat(0),
    longest_ns: u64 = 0,

    const bounds_us = [_]u64{ 10, 100, 1000, 2000, 10_000, 100_000 };

    fn note(histogram: *Histogram, wait_ns: u64) void {
        histogram.longest_ns = @max(histogram.longest_ns, wait_ns);
        for (bounds_us, histogram.counts[0..bounds_us.len]) |bound, *count| {
            if (wait_ns >= bound * std.time.ns_per_us) continue;
            count.* += 1;
            return;
        }
        histogram.counts[bounds_us.len] += 1;
    }

    fn print(histogram: *const Histogram, who: []const u8) void {
        std.debug.print("{s}: waits for the lock", .{who});
        for (bounds_us, histogram.counts[0..bounds_us.len]) |bound, count| {
            std.debug.print(", <{d}us {d}", .{ bound, count });
        }
        const longest_us = histogram.longest_ns / std.time.ns_per_us;
        const others = histogram.counts[bounds_us.len];
        std.debug.print(", longer {d}; the longest {d}us\n", .{ others, longest_us });
    }
};

/// A thread of the user that takes the lock of an engine again and again.
const Prober = struct {
    engine: *PeerEngine,
    over: net.lock.Signal = .{},
    waits: Histogram = .{},

    fn run(prober: *Prober) void {
        // A pause between two questions, so that they do not hold up the engine themselves.
        while (!prober.over.wait(clock.after(50 * std.time.ns_per_us))) {
            const begin = clock.now();
            const mode = prober.engine.enter();
            prober.waits.note(clock.now() - begin);
            prober.engine.leave_quietly(mode);
        }
    }
};

const Withdrawal = struct {
    coordinator: *const CoordinatorEngine,
    count: usize,
    waits: [2]Histogram = @splat(.{}),

    fn run(case: *Withdrawal, index: usize) !void {
        const peer = try Peer.join(case.coordinator, .{ .world_size = 2 });
        defer peer.leave();
        const rank = (try peer.admit()).rank;
        const values = try gpa.alloc(u64, case.count);
        defer gpa.free(values);
        // The call may be over before it is withdrawn; both see that, and call again.
        for (0..100) |_| {
            for (values, 0..) |*value, at| value.* = at * (rank + 1);
            if (!try withdrawn(&peer, values, rank, &case.waits[index])) continue;
            for (values, 0..) |value, at| try std.testing.expectEqual(at * (rank + 1), value);
            return;
        }
        return error.AlwaysTooLate;
    }

    /// Rank 1 withdraws its call in the middle. False if that was too late.
    fn withdrawn(peer: *const Peer, values: []u64, rank: u32, waits: *Histogram) !bool {
        const before = (try peer.membership.info()).bytes_received;
        var work: Work = undefined;
        try peer.begin(&work, values, .{});
        defer work.deinit();
        // When three quarters have come in, a part of the result has overwritten its input.
        while ((try peer.membership.info()).bytes_received - before < values.len * 6) {
            if (work.finished.is_set()) break;
            try std.Thread.yield();
        }
        var prober: Prober = .{ .engine = peer.engine };
        const probing = try std.Thread.spawn(.{}, Prober.run, .{&prober});
        if (rank == 1) work.withdraw();
        const status = work.wait(base.never).?;
        prober.over.set();
        probing.join();
        waits.* = prober.waits;
        return switch (status) {
            .ok => false,
            .aborted, .cancelled => true,
            // It had voted already.
            .in_doubt => work.resolve(clock.after(patience_ns), false) == .aborted,
            else => {
                std.debug.print("rank {d}: {t}\n", .{ rank, status });
                return error.WrongStatus;
            },
        };
    }
};

test "what a failed call has overwritten is given back, while users go on asking" {
    // Goal: the input is as it was before the call. Method: one of two peers withdraws a call in
    // the middle, while a thread of each takes the lock of its engine again and again. With a size
    // (`zig build test-net -Dtest-filter=overwritten -Dstress-mib=1024`) the test prints how long
    // those threads waited (docs/internals/ARCHITECTURE.md, "Threads"). It asserts nothing about
    // that: times are the machine's.
    const asked = std.c.getenv("PCCL_STRESS_MIB");
    const mib = if (asked) |text| try std.fmt.parseInt(usize, std.mem.span(text), 10) else 8;
    const coordinator = try CoordinatorEngine.create(gpa, .{ .protocol = .{
        .run_id = run_id,
        .silence_ns = patience_ns,
    } });
    defer coordinator.destroy();
    const count = mib * 1024 * 1024 / @sizeOf(u64);
    var case: Withdrawal = .{ .coordinator = coordinator, .count = count };
    try in_parallel(2, &case, Withdrawal.run);
    if (asked == null) return;
    for (&case.waits) |*waits| waits.print("a peer");
}
