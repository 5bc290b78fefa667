//! reduce: reductions of PCCL 1.0 (include/compat/pccl.h), by pccl_all_reduce_async. One goes on
//! among its survivors (PCCL_RECOVERY_RESTART), and has failed only where nobody else is left. Each
//! one in flight is known by its tag; one that has ended meanwhile is kept until it is awaited.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const collective = @import("../collective.zig");
const status = @import("../status.zig");
const work_file = @import("../work.zig");
const comm_file = @import("comm.zig");
const words = @import("words.zig");
const Comm = comm_file.Comm;
const Error = words.Error;
const Result = words.Result;
const Status = status.Status;
const Work = net.Work;
const pccl_all_reduce_async = collective.Named("pccl_all_reduce_async").function;

const gpa = std.heap.c_allocator;
/// PCCL_RECOVERY_RESTART: one set of contributors for the whole result.
pub const recovery_restart = 2;
/// For a decision about a call whose coordinator is away.
const doubt_ns = std.time.ns_per_min;
/// An abort is of all members, so all repeat the same.
const tries_max = 4;
const forever = std.math.maxInt(u64);

/// pcclReduceDescriptor_t
const Descriptor = extern struct {
    count: usize,
    op: c_uint,
    tag: u64,
    datatype: c_uint,
    distribution_hint: c_uint,
    quantized_datatype: c_uint,
    algorithm: c_uint,

    const min_max = 1;
    const zero_point_scale = 2;
    const uint8 = 0;

    fn codec(descriptor: *const Descriptor) Error!base.codec.Kind {
        const is_byte = descriptor.quantized_datatype == uint8;
        switch (descriptor.algorithm) {
            0 => return .none,
            min_max => if (is_byte) return .min_max_u8,
            zero_point_scale => if (is_byte) return .zero_point_u8,
            else => {},
        }
        return words.refuse(
            error.InvalidArgument,
            "there is no pcclQuantizationAlgorithm_t {d} to pcclDataType_t {d}: take pcclUint8 " ++
                "and one of pcclQuantMinMax, pcclQuantZeroPointScale",
            .{ descriptor.algorithm, descriptor.quantized_datatype },
        );
    }
};

/// pcclReduceOpDescriptor_t
const OpDescriptor = extern struct {
    send: ?[*]const u8,
    recv: ?[*]u8,
    descriptor: Descriptor,
};

/// pcclReduceInfo_t
const Info = extern struct { local_world_size: u32 = 0, tx_bytes: u64 = 0, rx_bytes: u64 = 0 };

/// pcclAsyncReduceOp_t
const Handle = extern struct { comm: ?*Comm, tag: u64 };

/// A reduction that was begun and not awaited yet.
pub const Flying = struct {
    tag: u64,
    state: union(enum) { work: *Work, over: Error!Info },
};

// ---- one

pub const pcclAllReduce = words.C(block).call;

fn block(
    send: ?[*]const u8,
    recv: ?[*]u8,
    descriptor: ?*const Descriptor,
    handle: ?*Comm,
    info_out: ?*Info,
) Error!void {
    const comm = try comm_file.connected(handle);
    const given = descriptor orelse return words.is_null("descriptor");
    try expect_others(comm);
    const info = try finish(comm, try begin(comm, send, recv, given));
    if (info_out) |to| to.* = info;
}

pub const pcclAllReduceAsync = words.C(start).call;

fn start(
    send: ?[*]const u8,
    recv: ?[*]u8,
    descriptor: ?*const Descriptor,
    handle: ?*Comm,
    handle_out: ?*Handle,
) Error!void {
    const comm = try comm_file.connected(handle);
    const given = descriptor orelse return words.is_null("descriptor");
    const out = handle_out orelse return words.is_null("reduce_handle_out");
    try expect_others(comm);
    comm.lock.lock();
    defer comm.lock.unlock();
    comm.flying.ensureUnusedCapacity(gpa, 1) catch return words.out_of_memory();
    const work = try begin(comm, send, recv, given);
    // One with this tag that nobody has awaited is over, else the tag would have been refused.
    if (take(comm, given.tag)) |old| switch (old.state) {
        .work => |over| work_file.pccl_work_destroy(over),
        .over => {},
    };
    comm.flying.appendAssumeCapacity(.{ .tag = given.tag, .state = .{ .work = work } });
    out.* = .{ .comm = comm, .tag = given.tag };
}

pub const pcclAwaitAsyncReduce = words.C(await_one).call;

fn await_one(reduce_handle: ?*const Handle, info_out: ?*Info) Error!void {
    const given = reduce_handle orelse return words.is_null("reduce_handle");
    const comm = try comm_file.usable(given.comm);
    comm.lock.lock();
    const found = take(comm, given.tag);
    comm.lock.unlock();
    const flying = found orelse return words.refuse(
        error.InvalidUsage,
        "no reduction with tag {d} is to be awaited: each is awaited once",
        .{given.tag},
    );
    const info = switch (flying.state) {
        .work => |work| try finish(comm, work),
        .over => |over| try over,
    };
    if (info_out) |to| to.* = info;
}

// ---- many

pub const pcclAllReduceMultipleWithRetry = words.C(make_many).call;

fn make_many(
    descriptors: ?[*]const OpDescriptor,
    count: usize,
    handle: ?*Comm,
    info_out: ?*Info,
    max_in_flight: c_int,
) Error!void {
    const comm = try comm_file.connected(handle);
    const first = descriptors orelse return words.is_null("descriptors");
    if (count == 0 or max_in_flight < 1) return words.refuse(
        error.InvalidArgument,
        "count is {d} and max_in_flight {d}; both must be 1 or more",
        .{ count, max_in_flight },
    );
    try expect_others(comm);
    const wanted: usize = @intCast(max_in_flight);
    const in_flight = @min(base.limits.operations_in_flight_max, wanted);
    const parts = gpa.alloc(Part, count) catch return words.out_of_memory();
    defer gpa.free(parts);
    for (parts, first[0..count]) |*part, *given| part.* = .{ .given = given };

    // All members begin in one order, and each waits for the first that is not over, so all have
    // begun that one.
    var total: Info = .{};
    var failed: ?Error = null;
    var begun: usize = 0;
    for (parts, 0..) |*part, index| {
        while (begun < @min(count, index + in_flight)) : (begun += 1) parts[begun].launch(comm);
        if (part.end(comm)) |info| {
            total.tx_bytes += info.tx_bytes;
            total.rx_bytes += info.rx_bytes;
        } else |err| if (failed == null) {
            failed = err;
        }
    }
    if (failed) |err| return err;
    total.local_world_size = comm.size();
    if (info_out) |to| to.* = total;
    try expect_others(comm);
}

/// One of several reductions.
const Part = struct {
    given: *const OpDescriptor,
    state: Error!*Work = undefined,

    fn launch(part: *Part, comm: *Comm) void {
        const given = part.given;
        part.state = begin(comm, given.send, given.recv, &given.descriptor);
    }

    /// Begins again what was aborted.
    fn end(part: *Part, comm: *Comm) Error!Info {
        for (1..tries_max) |_| {
            const work = try part.state;
            if (end_of(work) != .aborted) break;
            work_file.pccl_work_destroy(work);
            part.launch(comm);
        }
        return finish(comm, try part.state);
    }
};

// ---- what they are made of

fn expect_others(comm: *Comm) Error!void {
    if (comm.size() < 2)
        return words.refuse(error.TooFewPeers, "this peer is alone in its peer group", .{});
}

fn begin(
    comm: *Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    given: *const Descriptor,
) Error!*Work {
    if (given.count == 0)
        return words.refuse(error.InvalidArgument, "count is 0; it must be at least 1", .{});
    var options = comm_file.sized(collective.CollectiveOptions);
    options.tag = given.tag;
    options.op = try words.op_of(given.op);
    options.recovery = recovery_restart;
    options.codec = @intFromEnum(try given.codec());
    const dtype = try words.dtype_of(given.datatype);
    var work: ?*Work = null;
    try words.check(pccl_all_reduce_async(
        comm.group,
        send,
        recv,
        given.count,
        dtype,
        &options,
        &work,
    ), error.RankConnectionLost);
    return work.?;
}

/// The status with which it ends. A doubt is resolved, if that takes no longer than a minute.
pub fn end_of(work: *Work) Status {
    const got = work_file.pccl_work_wait(work, forever);
    if (got != .in_doubt) return got;
    return work_file.pccl_work_resolve(work, doubt_ns, 1);
}

/// Waits for its end, and frees it. World sizes follow what all members learn by it alike.
fn finish(comm: *Comm, work: *Work) Error!Info {
    defer work_file.pccl_work_destroy(work);
    const lost = error.RankConnectionLost;
    try comm_file.check(comm.group.?, end_of(work), lost);
    var outcome = comm_file.sized(work_file.Outcome);
    try words.check(work_file.pccl_work_outcome(work, &outcome), lost);
    var range = comm_file.sized(work_file.OutcomeRange);
    try words.check(work_file.pccl_work_range(work, 0, &range, null, 0), lost);
    const here = range.contributor_count;
    comm.lock.lock();
    comm.sizes.own = @min(comm.sizes.own, here);
    comm.lock.unlock();
    if (here < 2)
        return words.refuse(lost, "all other peers of the group have left or were lost", .{});
    return .{
        .local_world_size = here,
        .tx_bytes = outcome.bytes_sent,
        .rx_bytes = outcome.bytes_received,
    };
}

/// Takes it out of those to be awaited. The lock is held.
fn take(comm: *Comm, tag: u64) ?Flying {
    for (comm.flying.items, 0..) |flying, index| {
        if (flying.tag == tag) return comm.flying.swapRemove(index);
    }
    return null;
}

/// Ends all that nobody has awaited, and keeps how they ended.
pub fn settle_all(comm: *Comm) void {
    for (comm.flying.items) |*flying| switch (flying.state) {
        .work => |work| flying.state = .{ .over = finish(comm, work) },
        .over => {},
    };
}

/// Withdraws all that nobody has awaited.
pub fn withdraw_all(comm: *Comm) void {
    for (comm.flying.items) |flying| switch (flying.state) {
        .work => |work| work_file.pccl_work_destroy(work),
        .over => {},
    };
    comm.flying.clearAndFree(gpa);
}

test "codecs of PCCL 1.0, and those that do not exist" {
    const Kind = base.codec.Kind;
    var given = std.mem.zeroes(Descriptor);
    try std.testing.expectEqual(Kind.none, try given.codec());
    given.quantized_datatype = Descriptor.uint8;
    given.algorithm = Descriptor.min_max;
    try std.testing.expectEqual(Kind.min_max_u8, try given.codec());
    given.algorithm = Descriptor.zero_point_scale;
    try std.testing.expectEqual(Kind.zero_point_u8, try given.codec());
    given.quantized_datatype = 1; // pcclInt8
    try std.testing.expectError(error.InvalidArgument, given.codec());
    given = std.mem.zeroes(Descriptor);
    given.algorithm = 3;
    try std.testing.expectError(error.InvalidArgument, given.codec());
}

test "without arguments reductions are refused" {
    try std.testing.expectEqual(.success, @import("comm.zig").pcclInit());
    const expect = std.testing.expectEqual;
    try expect(.invalid_argument, pcclAllReduce(null, null, null, null, null));
    try expect(.invalid_argument, pcclAllReduceAsync(null, null, null, null, null));
    try expect(.invalid_argument, pcclAwaitAsyncReduce(null, null));
    try expect(.invalid_argument, pcclAllReduceMultipleWithRetry(null, 0, null, null, 0));
    try expect(.invalid_argument, pcclAwaitAsyncReduce(&.{ .comm = null, .tag = 0 }, null));
}
