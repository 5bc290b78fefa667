//! Tests of the C ABI under many threads of the user: on one communicator they call, wait, cancel,
//! ask, close and join other groups at the same time (docs/internals/HACKING.md, "Threads"). A seed
//! draws the actions; the machine decides their times. Every result is judged: the values, the
//! statuses that a state allows, that members agree, and that nothing is left.
//!
//! PCCL_STRESS_SEED and PCCL_STRESS_ROUNDS set the seed and the number of rounds.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const net = @import("net");
const collective = @import("collective.zig");
const comm_file = @import("comm.zig");
const coordinator_file = @import("coordinator.zig");
const state_file = @import("state.zig");
const work_file = @import("work.zig");
const c = std.c;
const Comm = comm_file.Comm;
const FairLock = net.lock.FairLock;
const PeerIdBytes = comm_file.PeerIdBytes;
const Prng = base.Prng;
const Signal = net.lock.Signal;
const Status = @import("status.zig").Status;
const Work = net.Work;
const gpa = std.testing.allocator;
const seconds = std.time.ns_per_s;

// As a program in C sees them.
extern fn pccl_coordinator_create(
    ?*const coordinator_file.CoordinatorOptions,
    *?*coordinator_file.Coordinator,
) Status;
extern fn pccl_coordinator_token(?*const coordinator_file.Coordinator) [*:0]const u8;
extern fn pccl_coordinator_destroy(?*coordinator_file.Coordinator) void;
extern fn pccl_run_status([*:0]const u8, u64, [*]u8, usize, *usize) Status;
extern fn pccl_comm_create([*:0]const u8, *const comm_file.CommOptions, *?*Comm) Status;
extern fn pccl_comm_join(*Comm, *const comm_file.CommOptions, *?*Comm) Status;
extern fn pccl_comm_close(*Comm) Status;
extern fn pccl_comm_destroy(?*Comm) void;
extern fn pccl_comm_admit(*Comm, u64, *comm_file.Admission) Status;
extern fn pccl_comm_info(*Comm, *comm_file.CommInfo) Status;
extern fn pccl_comm_members(*Comm, [*]PeerIdBytes, u32) u32;
extern fn pccl_comm_joined(*Comm, [*]PeerIdBytes, u32) u32;
extern fn pccl_comm_left(*Comm, [*]PeerIdBytes, u32) u32;
const AllReduce = fn (
    *Comm,
    [*]const u64,
    [*]u64,
    u64,
    c_uint,
    *const collective.CollectiveOptions,
    *?*Work,
) callconv(.c) Status;
const pccl_all_reduce = @extern(*const AllReduce, .{ .name = "pccl_all_reduce" });
const pccl_all_reduce_async = @extern(*const AllReduce, .{ .name = "pccl_all_reduce_async" });
extern fn pccl_work_wait(*Work, u64) Status;
extern fn pccl_work_poll(*Work, *c_int) Status;
extern fn pccl_work_notify(*Work, *const fn (?*anyopaque) callconv(.c) void, ?*anyopaque) Status;
extern fn pccl_work_fd(*Work, *c_int) Status;
extern fn pccl_work_cancel(*Work) Status;
extern fn pccl_work_resolve(*Work, u64, c_int) Status;
extern fn pccl_work_destroy(?*Work) void;
extern fn pccl_work_outcome(*Work, *work_file.Outcome) Status;
extern fn pccl_work_range(*Work, u32, *work_file.OutcomeRange, [*]PeerIdBytes, u32) Status;
extern fn pccl_state_create(*Comm, *const state_file.StateOptions, *?*State) Status;
extern fn pccl_state_sync(*State, ?*const anyopaque, ?*anyopaque) Status;
extern fn pccl_state_revision(*State, *u64) Status;
extern fn pccl_state_close(*State) Status;
extern fn pccl_state_destroy(?*State) void;
extern fn pccl_log_next(*c_int, [*]u8, usize) Status;
extern fn pccl_last_error() [*:0]const u8;
const State = opaque {};

// ---- the world

/// Peers that stay; one more visits every second round, and goes while its threads are inside.
const residents = 3;
const visitor = residents;
const slots = residents + 1;
/// A thread of each peer calls under each.
const tags = 3;
const steps = 8;
const bystanders = 2;
const elements_max = 40_000;
/// No call takes so long, with the sanitizer on a busy machine too.
const patience_ns = 60 * seconds;
/// The whole test ends before, or the process does.
const round_ns_max = 120 * seconds;

const u64_dtype = 11;

/// A call as the seed draws it, the same for all members. Whoever cancels or drops one leaves the
/// group with it, so only the visitor does; the residents go on.
const Plan = struct {
    count: u32,
    recovery: c_uint,
    trouble: Trouble,
    /// The member that makes the trouble.
    by: u32,

    const Trouble = enum { none, cancel, drop, deadline };

    fn of(world: *const World, tag: u64, step: usize) Plan {
        var prng = world.draw(&.{ tag, step });
        const trouble: Trouble = switch (prng.below(10)) {
            0, 1 => .deadline,
            2 => if (world.visited()) .cancel else .none,
            3 => if (world.visited()) .drop else .none,
            else => .none,
        };
        const leaves = trouble == .cancel or trouble == .drop;
        return .{
            .count = ([_]u32{ 1, 1000, elements_max })[prng.below(3)],
            .recovery = @intCast(1 + prng.below(2)), // resume or restart
            .trouble = trouble,
            .by = if (leaves) visitor else @intCast(prng.below(residents)),
        };
    }
};

/// The end of a call on one member.
const Verdict = enum { not_called, unknown, committed, failed };

const World = struct {
    seed: u64,
    round: u64 = 0,
    token: [*:0]const u8,
    comms: [slots]?*Comm = @splat(null),
    busy: [slots]std.atomic.Value(bool) = @splat(.init(false)),
    shelves: [slots][tags]Shelf = @splat(@splat(.{})),
    verdicts: [tags][steps][slots]Verdict = undefined,

    fn draw(world: *const World, words: []const u64) Prng {
        const mixed = std.hash.Wyhash.hash(world.seed, std.mem.sliceAsBytes(words));
        return .init(mixed ^ world.round *% 0x9e3779b97f4a7c15);
    }

    fn visited(world: *const World) bool {
        return world.round % 2 == 1;
    }

    fn peers(world: *const World) usize {
        return if (world.visited()) slots else residents;
    }
};

/// Where a work lies while threads other than its owner may use it.
const Shelf = struct {
    lock: FairLock = .{},
    work: ?*Work = null,
    cancel_wanted: bool = false,

    fn put(shelf: *Shelf, work: ?*Work, cancel_wanted: bool) void {
        shelf.lock.lock();
        defer shelf.lock.unlock();
        shelf.work = work;
        shelf.cancel_wanted = cancel_wanted;
    }
};

/// One status of a list is what must come; a failed call says why.
fn expect_one(status: Status, allowed: []const Status) !void {
    for (allowed) |good| if (status == good) return;
    std.debug.print("{t} is none of {any}: {s}\n", .{ status, allowed, pccl_last_error() });
    return error.WrongStatus;
}

fn expect_ok(status: Status) !void {
    try expect_one(status, &.{.ok});
}

/// Runs `body(world, index)` on `count` threads and returns the first error.
fn in_parallel(
    world: *World,
    count: usize,
    comptime body: fn (world: *World, index: usize) anyerror!void,
) !void {
    const Thread = struct {
        fn run(of: *World, index: usize, result: *anyerror!void) void {
            result.* = body(of, index);
            result.* catch |err| {
                std.debug.print("thread {d} failed in round {d}: {t}\n", .{ index, of.round, err });
                if (@errorReturnTrace()) |trace| std.debug.dumpErrorReturnTrace(trace);
            };
        }
    };
    var threads: [32]std.Thread = undefined;
    var results: [32]anyerror!void = undefined;
    for (threads[0..count], results[0..count], 0..) |*thread, *result, index| {
        thread.* = try std.Thread.spawn(.{}, Thread.run, .{ world, index, result });
    }
    for (threads[0..count]) |thread| thread.join();
    for (results[0..count]) |result| try result;
}

fn yield_some(times: u64) !void {
    for (0..times) |_| try std.Thread.yield();
}

// ---- membership

fn connect(world: *World, slot: usize) anyerror!void {
    var id: [16]u8 = @splat(0);
    std.mem.writeInt(u64, id[0..8], world.round, .little);
    id[15] = @intCast(slot + 1);
    var options = std.mem.zeroes(comm_file.CommOptions);
    options.size = @sizeOf(comm_file.CommOptions);
    options.bind = "127.0.0.1:0";
    options.initial_world_size = residents;
    options.deadline_ns = patience_ns;
    options.peer_id = &id;
    try expect_ok(pccl_comm_create(world.token, &options, &world.comms[slot]));
}

/// All members pass safe points until those are in that should be. The visitor enters at its first.
fn enter(world: *World, slot: usize) anyerror!void {
    if (slot == visitor) try connect(world, slot);
    var admission = std.mem.zeroes(comm_file.Admission);
    admission.size = @sizeOf(comm_file.Admission);
    while (admission.world_size != world.peers()) {
        try expect_ok(pccl_comm_admit(world.comms[slot].?, patience_ns, &admission));
    }
}

// ---- calls

/// Digit `slot` of every value tells what a peer contributed.
fn digits(values: []u64, slot: usize) void {
    for (values, 0..) |*value, index| value.* = (index % 7 + 1) << @intCast(4 * slot);
}

/// The values are those of the contributors that the outcome names, the residents among them.
fn judge_values(work: *Work, values: []const u64, slot: usize) !void {
    var outcome = std.mem.zeroes(work_file.Outcome);
    outcome.size = @sizeOf(work_file.Outcome);
    try expect_ok(pccl_work_outcome(work, &outcome));
    var at: u64 = 0;
    for (0..outcome.range_count) |number| {
        var range = std.mem.zeroes(work_file.OutcomeRange);
        range.size = @sizeOf(work_file.OutcomeRange);
        var ids: [slots]PeerIdBytes = undefined;
        try expect_ok(pccl_work_range(work, @intCast(number), &range, &ids, slots));
        try std.testing.expectEqual(at, range.begin);
        at = range.end;
        var unit: u64 = 0;
        for (ids[0..range.contributor_count]) |id| {
            unit += @as(u64, 1) << @intCast(4 * (id.bytes[15] - 1));
        }
        const must = @as(u64, 1) << @intCast(4 * slot);
        try std.testing.expectEqual(must, unit & must);
        for (values[range.begin..range.end], range.begin..) |value, index| {
            try std.testing.expectEqual((index % 7 + 1) * unit, value);
        }
    }
    try std.testing.expectEqual(values.len, at);
}

const Caller = struct {
    world: *World,
    comm: *Comm,
    slot: usize,
    tag: u64,
    /// Another thread may close the communicator, or withdraw a call.
    closes: bool,
    prng: Prng,
    values: []u64,

    fn init(world: *World, comm: *Comm, slot: usize, tag: u64, closes: bool) !Caller {
        return .{
            .world = world,
            .comm = comm,
            .slot = slot,
            .tag = tag,
            .closes = closes,
            .prng = world.draw(&.{ tag, slot, 77 }),
            .values = try gpa.alloc(u64, elements_max),
        };
    }

    fn deinit(caller: *Caller) void {
        gpa.free(caller.values);
    }

    /// Makes the call of a plan and answers what became of it. Null: the communicator is closed.
    fn call(caller: *Caller, plan: Plan, shelf: ?*Shelf) !?Verdict {
        const values = caller.values[0..plan.count];
        digits(values, caller.slot);
        var options = std.mem.zeroes(collective.CollectiveOptions);
        options.size = @sizeOf(collective.CollectiveOptions);
        options.tag = caller.tag;
        options.recovery = plan.recovery;
        options.deadline_ns = if (plan.trouble == .deadline)
            std.time.ns_per_ms * caller.prng.between(1, 20)
        else
            patience_ns;
        const mine = plan.by == caller.slot;
        const cancels = mine and plan.trouble == .cancel;
        const drops = mine and plan.trouble == .drop;
        const blocks = !cancels and !drops and caller.prng.below(4) == 0;
        const function = if (blocks) pccl_all_reduce else pccl_all_reduce_async;
        var made: ?*Work = null;
        const data = values.ptr;
        const begun = function(caller.comm, data, data, plan.count, u64_dtype, &options, &made);
        const work = made orelse return caller.without_work(plan, begun, values);
        defer pccl_work_destroy(work);
        if (blocks) return try caller.judge(plan, work, begun, values);
        try expect_ok(begun);
        if (shelf) |place| place.put(work, cancels);
        // Before it is destroyed, nobody else has it any more.
        defer if (shelf) |place| place.put(null, false);
        try yield_some(caller.prng.below(20));
        if (drops) return .unknown;
        if (cancels and caller.prng.below(2) == 0) try expect_ok(pccl_work_cancel(work));
        return try caller.judge(plan, work, try caller.wait(work), values);
    }

    /// A call that left no work: refused, or one that blocked and failed.
    fn without_work(caller: *Caller, plan: Plan, status: Status, values: []u64) !?Verdict {
        try caller.expect_kept(values);
        if (caller.closes and (status == .invalid_usage or status == .expelled)) return null;
        try caller.expect_failure(plan, status);
        return .failed;
    }

    fn expect_kept(caller: *Caller, values: []const u64) !void {
        for (values, 0..) |value, index| {
            try std.testing.expectEqual((index % 7 + 1) << @intCast(4 * caller.slot), value);
        }
    }

    fn expect_failure(caller: *Caller, plan: Plan, status: Status) !void {
        if (caller.closes and status == .cancelled) return;
        switch (plan.trouble) {
            .none, .cancel, .drop => return expect_ok(status),
            .deadline => try expect_one(status, &.{ .deadline_exceeded, .aborted }),
        }
    }

    fn judge(
        caller: *Caller,
        plan: Plan,
        work: *Work,
        status: Status,
        values: []u64,
    ) !Verdict {
        var known = status;
        if (status == .in_doubt) {
            const own = plan.trouble == .cancel and plan.by == caller.slot;
            try std.testing.expect(own or plan.trouble == .deadline or caller.closes);
            known = pccl_work_resolve(work, patience_ns, 1);
            if (known == .coordinator_unreachable and caller.closes) return .unknown;
            try expect_one(known, &.{ .ok, .aborted });
        } else if (status != .ok) try caller.expect_failure(plan, status);
        if (known != .ok) {
            try caller.expect_kept(values);
            return .failed;
        }
        try judge_values(work, values, caller.slot);
        return .committed;
    }

    fn wait(caller: *Caller, work: *Work) !Status {
        switch (caller.prng.below(4)) {
            0 => {},
            1 => while (true) {
                var finished: c_int = 0;
                try expect_ok(pccl_work_poll(work, &finished));
                if (finished == 1) break;
                const status = pccl_work_wait(work, std.time.ns_per_ms);
                if (status != .timeout) break;
            },
            2 => {
                var told: Told = .{};
                try expect_ok(pccl_work_notify(work, Told.tell, &told));
                try std.testing.expect(told.signal.wait(net.clock.after(patience_ns)));
                const status = pccl_work_wait(work, 0);
                try std.testing.expect(status != .timeout);
                try std.testing.expectEqual(1, told.count.load(.acquire));
            },
            else => {
                var fd: c_int = -1;
                try expect_ok(pccl_work_fd(work, &fd));
                var polled = [_]c.pollfd{.{ .fd = fd, .events = c.POLL.IN, .revents = 0 }};
                const ms: c_int = patience_ns / std.time.ns_per_ms;
                while (c.poll(&polled, 1, ms) < 0) {}
                try std.testing.expect(pccl_work_wait(work, 0) != .timeout);
            },
        }
        const status = pccl_work_wait(work, patience_ns);
        try std.testing.expect(status != .timeout);
        return status;
    }
};

const Told = struct {
    signal: Signal = .{},
    count: std.atomic.Value(u32) = .init(0),

    fn tell(context: ?*anyopaque) callconv(.c) void {
        const told: *Told = @ptrCast(@alignCast(context));
        _ = told.count.fetchAdd(1, .acq_rel);
        told.signal.set();
    }
};

// ---- the threads of one peer

/// All of a round: those that call, those that look on, and what happens to the peer itself.
fn live(world: *World, index: usize) anyerror!void {
    const per_peer = tags + bystanders + 2;
    const slot = index / per_peer;
    const role = index % per_peer;
    if (role < tags) return work_on(world, slot, role);
    if (role < tags + bystanders) return look_on(world, slot, role);
    if (role == tags + bystanders)
        return if (slot == visitor) go(world) else side_group(world, slot);
    if (slot != visitor) return alone(world, slot);
}

fn work_on(world: *World, slot: usize, tag: usize) !void {
    const comm = world.comms[slot].?;
    var caller: Caller = try .init(world, comm, slot, tag, slot == visitor);
    defer caller.deinit();
    defer if (tag == 0) world.busy[slot].store(false, .release);
    for (0..steps) |step| {
        const plan: Plan = .of(world, tag, step);
        const verdict = try caller.call(plan, &world.shelves[slot][tag]) orelse return;
        world.verdicts[tag][step][slot] = verdict;
    }
}

/// Does what any thread may do at any time to a communicator and to the works of other threads.
fn look_on(world: *World, slot: usize, role: usize) !void {
    const comm = world.comms[slot].?;
    var prng = world.draw(&.{ slot, role, 78 });
    while (world.busy[slot].load(.acquire)) {
        switch (prng.below(16)) {
            0 => {
                var json: [64 * 1024]u8 = undefined;
                var length: usize = 0;
                const status = pccl_run_status(world.token, patience_ns, &json, json.len, &length);
                try expect_ok(status);
            },
            1, 2, 3 => try look_at(world, comm, slot),
            4 => {
                var level: c_int = 0;
                var line: [300]u8 = undefined;
                try expect_one(pccl_log_next(&level, &line, line.len), &.{ .ok, .timeout });
            },
            else => try meddle(&world.shelves[slot][prng.below(tags)], &prng),
        }
        try std.Thread.yield();
    }
}

fn look_at(world: *World, comm: *Comm, slot: usize) !void {
    var info = std.mem.zeroes(comm_file.CommInfo);
    info.size = @sizeOf(comm_file.CommInfo);
    const status = pccl_comm_info(comm, &info);
    var ids: [slots]PeerIdBytes = undefined;
    const member_count = pccl_comm_members(comm, &ids, slots);
    const joined = pccl_comm_joined(comm, &ids, slots);
    const left = pccl_comm_left(comm, &ids, slots);
    try std.testing.expect(joined <= slots and left <= slots);
    if (slot == visitor and status == .invalid_usage) return; // it is gone
    try expect_ok(status);
    try std.testing.expectEqual(world.peers(), info.world_size);
    try std.testing.expect(info.rank < info.world_size);
    try std.testing.expect(info.alive >= residents and info.alive <= info.world_size);
    // Those among them that are in doubt go on while their tags are used again.
    try std.testing.expect(info.operations_in_flight <= tags * steps);
    try std.testing.expect(member_count == world.peers() or slot == visitor);
}

fn meddle(shelf: *Shelf, prng: *Prng) !void {
    shelf.lock.lock();
    defer shelf.lock.unlock();
    const work = shelf.work orelse return;
    if (shelf.cancel_wanted) try expect_ok(pccl_work_cancel(work));
    switch (prng.below(4)) {
        0 => _ = pccl_work_wait(work, prng.below(2) * std.time.ns_per_ms),
        1 => {
            var finished: c_int = 0;
            try expect_ok(pccl_work_poll(work, &finished));
        },
        2 => {
            var fd: c_int = -1;
            try expect_ok(pccl_work_fd(work, &fd));
        },
        else => {
            var outcome = std.mem.zeroes(work_file.Outcome);
            outcome.size = @sizeOf(work_file.Outcome);
            const status = pccl_work_outcome(work, &outcome);
            try expect_one(status, &.{ .ok, .invalid_usage });
        },
    }
}

/// The visitor leaves while its other threads are inside.
fn go(world: *World) !void {
    var prng = world.draw(&.{79});
    const comm = world.comms[visitor].?;
    const twice = prng.below(2) == 0;
    var bytes: u64 = 0;
    // Not before it has taken part, and at any moment after that.
    const wanted = prng.below(400_000);
    while (bytes < wanted and world.busy[visitor].load(.acquire)) : (try std.Thread.yield()) {
        var info = std.mem.zeroes(comm_file.CommInfo);
        info.size = @sizeOf(comm_file.CommInfo);
        try expect_ok(pccl_comm_info(comm, &info));
        bytes = info.bytes_received;
    }
    try expect_ok(pccl_comm_close(comm));
    if (twice) try expect_ok(pccl_comm_close(comm));
}

// ---- groups joined and left

fn join(world: *World, slot: usize, name: [:0]const u8, size: u32) !*Comm {
    var options = std.mem.zeroes(comm_file.CommOptions);
    options.size = @sizeOf(comm_file.CommOptions);
    options.group = name;
    options.initial_world_size = size;
    var joined: ?*Comm = null;
    try expect_ok(pccl_comm_join(world.comms[slot].?, &options, &joined));
    var admission = std.mem.zeroes(comm_file.Admission);
    admission.size = @sizeOf(comm_file.Admission);
    try expect_ok(pccl_comm_admit(joined.?, patience_ns, &admission));
    // One may have closed it again before another has entered.
    try std.testing.expect(admission.world_size == size or admission.world_size + 1 == size);
    return joined.?;
}

/// A group of the residents that one of them closes while its threads call.
fn side_group(world: *World, slot: usize) !void {
    var name: [32]u8 = undefined;
    const text = try std.fmt.bufPrintZ(&name, "side {d}", .{world.round});
    const comm = try join(world, slot, text, residents);
    defer pccl_comm_destroy(comm);
    var prng = world.draw(&.{80});
    const closes = prng.below(residents) == slot;
    var results: [2]anyerror!void = undefined;
    var threads: [2]std.Thread = undefined;
    for (&threads, &results, 0..) |*thread, *result, tag| {
        thread.* = try std.Thread.spawn(.{}, side_calls, .{
            world, comm, slot, tag, closes, result,
        });
    }
    if (closes) {
        try yield_some(prng.below(2000));
        try expect_ok(pccl_comm_close(comm));
    }
    for (threads) |thread| thread.join();
    for (results) |result| try result;
}

fn side_calls(
    world: *World,
    comm: *Comm,
    slot: usize,
    tag: u64,
    closes: bool,
    result: *anyerror!void,
) void {
    result.* = side_calls_all(world, comm, slot, tag, closes);
}

fn side_calls_all(world: *World, comm: *Comm, slot: usize, tag: u64, closes: bool) !void {
    var caller: Caller = try .init(world, comm, slot, tag, closes);
    defer caller.deinit();
    for (0..steps) |step| {
        var plan: Plan = .of(world, 100 + tag, step);
        plan.trouble = .none;
        const verdict = try caller.call(plan, null) orelse return;
        try std.testing.expect(verdict == .committed or closes);
    }
}

/// A group of this peer alone: two threads sync one state, which a third closes.
fn alone(world: *World, slot: usize) !void {
    var name: [32]u8 = undefined;
    const text = try std.fmt.bufPrintZ(&name, "alone {d} {d}", .{ world.round, slot });
    const comm = try join(world, slot, text, 1);
    defer pccl_comm_destroy(comm);
    var bytes: [300_000]u8 = @splat(7);
    const shape = [_]u64{bytes.len};
    const tensors = [_]state_file.Tensor{.{
        .name = "bytes",
        .data = &bytes,
        .shape = &shape,
        .dimensions = 1,
        .dtype = 5, // u8
        .flags = 0,
        .reserved = 0,
    }};
    var options = std.mem.zeroes(state_file.StateOptions);
    options.size = @sizeOf(state_file.StateOptions);
    options.tensors = &tensors;
    options.tensor_count = tensors.len;
    var made: ?*State = null;
    try expect_ok(pccl_state_create(comm, &options, &made));
    const state = made.?;
    defer pccl_state_destroy(state);
    var rivals: [2]std.Thread = undefined;
    var results: [2]anyerror!u64 = undefined;
    for (&rivals, &results) |*rival, *result| {
        rival.* = try std.Thread.spawn(.{}, sync_on, .{ state, result });
    }
    var prng = world.draw(&.{ slot, 81 });
    try yield_some(prng.below(3000));
    try expect_ok(pccl_state_close(state));
    // Out of the tensors: what is written now, nobody reads.
    @memset(&bytes, 8);
    for (rivals) |rival| rival.join();
    var synced: u64 = 0;
    for (results) |result| synced += try result;
    var revision: u64 = 0;
    try expect_ok(pccl_state_revision(state, &revision));
    try std.testing.expect(revision >= synced and revision <= synced + 1);
}

fn sync_on(state: *State, result: *anyerror!u64) void {
    result.* = sync_until_closed(state);
}

/// How many succeeded.
fn sync_until_closed(state: *State) !u64 {
    var synced: u64 = 0;
    while (true) {
        const status = pccl_state_sync(state, null, null);
        switch (status) {
            .ok => synced += 1,
            .invalid_usage => {}, // the other one is in it
            .cancelled, .in_doubt => return synced,
            else => try expect_ok(status),
        }
        try std.Thread.yield();
    }
}

// ---- the whole

/// Agreement: what one member knows to be committed, no other knows to have failed.
fn judge_agreement(world: *const World) !void {
    for (world.verdicts, 0..) |of_tag, tag| for (of_tag, 0..) |verdicts, step| {
        var committed = false;
        var failed = false;
        for (verdicts[0..residents]) |verdict| {
            try std.testing.expect(verdict != .not_called);
        }
        for (verdicts) |verdict| {
            committed = committed or verdict == .committed;
            failed = failed or verdict == .failed;
        }
        // A visitor that has closed fails for itself.
        if (verdicts[visitor] == .failed and committed) {
            failed = false;
            for (verdicts[0..residents]) |verdict| failed = failed or verdict == .failed;
        }
        if (!committed or !failed) continue;
        std.debug.print("tag {d}, step {d}: {any}\n", .{ tag, step, verdicts });
        return error.Disagreement;
    };
}

fn play_round(world: *World) !void {
    world.verdicts = @splat(@splat(@splat(.not_called)));
    try in_parallel(world, world.peers(), enter);
    for (&world.busy) |*busy| busy.store(true, .release);
    const per_peer = tags + bystanders + 2;
    try in_parallel(world, world.peers() * per_peer, live);
    try judge_agreement(world);
    pccl_comm_destroy(world.comms[visitor]);
    world.comms[visitor] = null;
}

/// Ends the process, with what its threads do just now, if the test does not end in time.
const Watchdog = struct {
    over: Signal = .{},
    deadline: base.Instant,
    what: Printed,

    fn run(dog: *Watchdog) void {
        if (dog.over.wait(dog.deadline)) return;
        dog.what.print();
        @panic("the threads do not end");
    }
};

/// The options that begin the same run again, although its threads may meet otherwise.
const Printed = struct {
    seed: u64,
    rounds: u64,

    fn print(what: Printed) void {
        const format = "PCCL_STRESS_SEED={d} PCCL_STRESS_ROUNDS={d}\n";
        std.debug.print(format, .{ what.seed, what.rounds });
    }
};

fn nothing() void {}

/// Threads and descriptors of this process.
fn open_now() ![2]usize {
    var counts: [2]usize = undefined;
    for (&counts, [_][]const u8{ "/proc/self/task", "/proc/self/fd" }) |*count, path| {
        var dir = try std.Io.Dir.cwd().openDir(std.testing.io, path, .{ .iterate = true });
        defer dir.close(std.testing.io);
        var entries = dir.iterate();
        count.* = 0;
        while (try entries.next(std.testing.io)) |_| count.* += 1;
    }
    return counts;
}

fn number_from(comptime name: [:0]const u8, default: u64) !u64 {
    const text = c.getenv(name) orelse return default;
    return std.fmt.parseInt(u64, std.mem.span(text), 0);
}

/// Each act is a run of its own, because a run has only so many groups.
const rounds_per_act = 10;

fn play_act(world: *World, rounds: u64) !void {
    var options = std.mem.zeroes(coordinator_file.CoordinatorOptions);
    options.size = @sizeOf(coordinator_file.CoordinatorOptions);
    options.chunk_bytes = 4096;
    options.silence_ns = patience_ns;
    var coordinator: ?*coordinator_file.Coordinator = null;
    try expect_ok(pccl_coordinator_create(&options, &coordinator));
    defer pccl_coordinator_destroy(coordinator);
    world.token = pccl_coordinator_token(coordinator);
    defer for (&world.comms) |*comm| {
        pccl_comm_destroy(comm.*);
        comm.* = null;
    };
    try in_parallel(world, residents, connect);
    for (0..rounds) |_| {
        try play_round(world);
        world.round += 1;
    }
    for (world.comms[0..residents]) |comm| try expect_ok(pccl_comm_close(comm.?));
}

test "many threads call, wait, cancel, look, close and join on one communicator, and all agree" {
    // Goal: any thread may call anything at any time. Method: see the functions above; three peers
    // and a visitor in this process, eight or so threads each, on what a seed draws.
    const seed = try number_from("PCCL_STRESS_SEED", net.random.seed());
    const rounds = try number_from("PCCL_STRESS_ROUNDS", 4);
    const what: Printed = .{ .seed = seed, .rounds = rounds };
    // Zig calls a test that prints a failed one; the sanitizer ends the process without a word.
    if (builtin.sanitize_thread) what.print();
    errdefer what.print();
    // The sanitizer has a thread of its own from the first other one on.
    (try std.Thread.spawn(.{}, nothing, .{})).join();
    const before = try open_now();
    {
        var dog: Watchdog = .{
            .deadline = net.clock.after(rounds *| round_ns_max),
            .what = what,
        };
        const watching = try std.Thread.spawn(.{}, Watchdog.run, .{&dog});
        defer watching.join();
        defer dog.over.set();
        var world: World = .{ .seed = seed, .token = undefined };
        while (world.round < rounds) {
            try play_act(&world, @min(rounds - world.round, rounds_per_act));
        }
    }
    // The kernel may list a thread for a moment after it was joined.
    const until = net.clock.after(20 * seconds);
    while (true) : (try std.Thread.yield()) {
        const now = try open_now();
        if (now[0] <= before[0] and now[1] <= before[1]) break;
        if (net.clock.now() < until) continue;
        std.debug.print("threads and descriptors: {any}, before {any}\n", .{ now, before });
        return error.Leak;
    }
}
