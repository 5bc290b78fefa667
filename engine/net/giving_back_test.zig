//! How long a user's thread waits for the lock of an engine while a failed call gives its input
//! back (docs/ARCHITECTURE.md, "Threads"). It prints that where it is asked for a size, by
//! `zig build test-net -Dtest-filter=overwritten -Dstress-mib=1024`, and asserts nothing about
//! it: times are the machine's. Without, it shows with a few MiB that the input is as it was.

const std = @import("std");
const base = @import("base");
const session = @import("session");
const net = @import("root.zig");
const clock = net.clock;
const Membership = net.Membership;
const PeerEngine = net.PeerEngine;
const Work = net.Work;
const gpa = std.testing.allocator;
const seconds = std.time.ns_per_s;

const run_id: base.RunId = @splat(0x5b);
const patience_ns = 60 * seconds;
const mib_default = 8;
const workers = 2;

/// Waits, by their length.
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

/// A thread of the user that asks again and again.
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

fn join(coordinator: *const net.CoordinatorEngine) !*Membership {
    const engine = try PeerEngine.create(gpa, .{
        .coordinator = try .parse(coordinator.reached_at()),
        .run_id = run_id,
        .connect_deadline = clock.after(patience_ns),
        .bind = .{ .host = "127.0.0.1", .port = 0 },
        .workers = workers,
    });
    defer engine.unreference(); // the membership holds it from now on
    var failure: Membership.Failure = undefined;
    return try Membership.join(engine, .{
        .name = "train",
        .initial_world_size = 2,
        .deadline = clock.after(patience_ns),
    }, &failure);
}

const Case = struct {
    coordinator: *const net.CoordinatorEngine,
    count: usize,
    waits: [2]Histogram = @splat(.{}),

    fn run(case: *Case, index: usize, result: *anyerror!void) void {
        result.* = case.one_peer(index);
    }

    fn one_peer(case: *Case, index: usize) !void {
        const membership = try join(case.coordinator);
        defer membership.release();
        const rank = switch (try membership.admit(.alone, clock.after(patience_ns), .{})) {
            .passed => |admission| admission.rank,
            .failed => return error.AdmitFailed,
        };
        const values = try gpa.alloc(u64, case.count);
        defer gpa.free(values);
        // The call may be over before it is withdrawn; that is seen by both, who call again.
        for (0..100) |_| {
            for (values, 0..) |*value, at| value.* = at * (rank + 1);
            if (!try case.withdrawn(membership, values, rank, &case.waits[index])) continue;
            for (values, 0..) |value, at| try std.testing.expectEqual(at * (rank + 1), value);
            return;
        }
        return error.AlwaysTooLate;
    }

    /// Rank 1 withdraws its call in the middle. False if that was too late.
    fn withdrawn(
        case: *const Case,
        membership: *Membership,
        values: []u64,
        rank: u32,
        waits: *Histogram,
    ) !bool {
        const before = (try membership.info()).bytes_received;
        var work: Work = undefined;
        try work.begin(membership, .{
            .kind = .all_reduce,
            .send = @ptrCast(values.ptr),
            .recv = @ptrCast(values.ptr),
            .count = values.len,
            .dtype = .u64,
            .op = .sum,
            .tag = 0,
            .recovery = null,
            .deadline = clock.after(patience_ns),
        });
        defer work.deinit();
        // When three quarters have come in, a part of the result has overwritten its input.
        while ((try membership.info()).bytes_received - before < case.count * 6) {
            if (work.finished.is_set()) break;
            try std.Thread.yield();
        }
        var prober: Prober = .{ .engine = membership.engine };
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
    const asked = std.c.getenv("PCCL_STRESS_MIB");
    const mib = if (asked) |text|
        try std.fmt.parseInt(usize, std.mem.span(text), 10)
    else
        mib_default;
    const coordinator = try net.CoordinatorEngine.create(gpa, .{ .protocol = .{
        .run_id = run_id,
        .silence_ns = patience_ns,
    } });
    defer coordinator.destroy();
    var case: Case = .{ .coordinator = coordinator, .count = mib * 1024 * 1024 / @sizeOf(u64) };
    var threads: [2]std.Thread = undefined;
    var results: [2]anyerror!void = undefined;
    for (&threads, &results, 0..) |*thread, *result, index| {
        thread.* = try std.Thread.spawn(.{}, Case.run, .{ &case, index, result });
    }
    for (threads) |thread| thread.join();
    for (results) |result| try result;
    if (asked == null) return;
    for (&case.waits) |*waits| waits.print("a peer");
}
