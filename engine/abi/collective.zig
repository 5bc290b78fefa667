//! collective: the calls that move data. Arguments are checked here, before anything is sent; the
//! session checks those that depend on the membership. A call that has begun is a work: work.zig.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const net = @import("net");
const session = @import("session");
const wire = @import("wire");
const failure = @import("failure.zig");
const sized = @import("sized.zig");
const status = @import("status.zig");
const comm_file = @import("comm.zig");
const work_file = @import("work.zig");
const Comm = comm_file.Comm;
const Status = status.Status;
const Work = net.Work;

const gpa = std.heap.c_allocator;

pub const CollectiveOptions = extern struct {
    size: usize,
    tag: u64,
    deadline_ns: u64,
    op: c_uint,
    recovery: c_uint,
    plan: c_uint,
    codec: c_uint,
    codec_block: u32,
    codec_rotate: c_uint,
    codec_rounding: c_uint,
    reserved: u32,
    residual_in: ?[*]const u8,
    residual_out: ?[*]u8,
    form: u64,
};

pub const ArrayOfCaller = extern struct {
    send_buffer: ?[*]const u8,
    recv_buffer: ?[*]u8,
    count: u64,
    dtype: c_uint,
    reserved: u32,
};

/// The common arguments of the header's functions.
const Arguments = struct {
    kind: wire.control.OpKind,
    send: ?[*]const u8 = null,
    recv: ?[*]u8 = null,
    /// Where ranks have shards: of each, if `counts` does not say otherwise.
    count: u64 = 0,
    counts: ?Counts = null,
    exchanged: ?Exchanged = null,
    dtype: c_uint = 0,
    root: u32 = 0,
    /// In a message: this peer's part, and the other's rank.
    part: session.Session.Call.Part = .send,
    partner: u32 = 0,
    /// Several arrays, instead of the one.
    arrays: ?List = null,
    options: ?*const CollectiveOptions,

    const List = struct { first: ?[*]const ArrayOfCaller, count: u64 };
    const Counts = struct { first: ?[*]const u64, ranks: u32 };
    const Exchanged = struct { send: Counts, recv: Counts };
};

// ---- blocking

export fn pccl_all_reduce(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .all_reduce,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_broadcast(
    comm: ?*Comm,
    buffer: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .broadcast,
        .send = buffer,
        .recv = buffer,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_reduce(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .reduce,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_reduce_scatter(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .reduce_scatter,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_reduce_scatter_v(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .reduce_scatter,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_all_gather(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .all_gather,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_all_gather_v(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .all_gather,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_scatter(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .scatter,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_scatter_v(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .scatter,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_gather(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .gather,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_gather_v(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .gather,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_all_to_all(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .all_to_all,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_send(
    comm: ?*Comm,
    buffer: ?[*]const u8,
    count: u64,
    dtype: c_uint,
    dst: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .send_recv,
        .part = .send,
        .send = buffer,
        .count = count,
        .dtype = dtype,
        .partner = dst,
        .options = options,
    }));
}

export fn pccl_recv(
    comm: ?*Comm,
    buffer: ?[*]u8,
    count: u64,
    dtype: c_uint,
    src: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .send_recv,
        .part = .recv,
        .recv = buffer,
        .count = count,
        .dtype = dtype,
        .partner = src,
        .options = options,
    }));
}

export fn pccl_all_to_all_v(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    send_counts: ?[*]const u64,
    recv_counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{
        .kind = .all_to_all,
        .send = send,
        .recv = recv,
        .exchanged = .{
            .send = .{ .first = send_counts, .ranks = ranks },
            .recv = .{ .first = recv_counts, .ranks = ranks },
        },
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_coalesced(
    comm: ?*Comm,
    collective: c_uint,
    arrays: ?[*]const ArrayOfCaller,
    array_count: u64,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(coalesced(block, comm, collective, .{
        .first = arrays,
        .count = array_count,
    }, root, options, work));
}

fn coalesced(
    comptime run: fn (?*Comm, ?*?*Work, Arguments) status.Error!void,
    comm: ?*Comm,
    collective: c_uint,
    arrays: Arguments.List,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) status.Error!void {
    return run(comm, work, .{
        .kind = try kind_of(collective),
        .arrays = arrays,
        .root = root,
        .options = options,
    });
}

fn kind_of(number: c_uint) status.Error!wire.control.OpKind {
    const kinds = std.enums.values(wire.control.OpKind);
    for (kinds) |kind| if (@intFromEnum(kind) == number) switch (kind) {
        .barrier, .sync, .send_recv => break,
        else => return kind,
    };
    return status.fail(
        .invalid_argument,
        "collective {d} is unknown; see pccl_collective_t",
        .{number},
    );
}

export fn pccl_barrier(
    comm: ?*Comm,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(block(comm, work, .{ .kind = .barrier, .options = options }));
}

fn block(handle: ?*Comm, out: ?*?*Work, arguments: Arguments) status.Error!void {
    var local: Work = undefined;
    const work = if (out == null) &local else gpa.create(Work) catch return status.out_of_memory();
    begin(work, handle, arguments) catch |err| {
        if (out != null) gpa.destroy(work);
        return err;
    };
    const outcome = work.wait(base.never).?; // the session keeps the deadline
    const result = if (outcome == .ok) {} else failure.operation(work.operation);
    if (out != null and (outcome == .ok or outcome == .in_doubt)) {
        out.?.* = work;
        return result;
    }
    work.deinit();
    if (out != null) gpa.destroy(work);
    return result;
}

// ---- asynchronous

pub export fn pccl_all_reduce_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .all_reduce,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_broadcast_async(
    comm: ?*Comm,
    buffer: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .broadcast,
        .send = buffer,
        .recv = buffer,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_reduce_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .reduce,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_reduce_scatter_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .reduce_scatter,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_reduce_scatter_v_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .reduce_scatter,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .options = options,
    }));
}

pub export fn pccl_all_gather_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .all_gather,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_all_gather_v_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .all_gather,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_scatter_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .scatter,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_scatter_v_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .scatter,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_gather_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .gather,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_gather_v_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .gather,
        .send = send,
        .recv = recv,
        .counts = .{ .first = counts, .ranks = ranks },
        .dtype = dtype,
        .root = root,
        .options = options,
    }));
}

export fn pccl_all_to_all_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    count: u64,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .all_to_all,
        .send = send,
        .recv = recv,
        .count = count,
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_send_async(
    comm: ?*Comm,
    buffer: ?[*]const u8,
    count: u64,
    dtype: c_uint,
    dst: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .send_recv,
        .part = .send,
        .send = buffer,
        .count = count,
        .dtype = dtype,
        .partner = dst,
        .options = options,
    }));
}

export fn pccl_recv_async(
    comm: ?*Comm,
    buffer: ?[*]u8,
    count: u64,
    dtype: c_uint,
    src: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .send_recv,
        .part = .recv,
        .recv = buffer,
        .count = count,
        .dtype = dtype,
        .partner = src,
        .options = options,
    }));
}

export fn pccl_all_to_all_v_async(
    comm: ?*Comm,
    send: ?[*]const u8,
    recv: ?[*]u8,
    send_counts: ?[*]const u64,
    recv_counts: ?[*]const u64,
    ranks: u32,
    dtype: c_uint,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{
        .kind = .all_to_all,
        .send = send,
        .recv = recv,
        .exchanged = .{
            .send = .{ .first = send_counts, .ranks = ranks },
            .recv = .{ .first = recv_counts, .ranks = ranks },
        },
        .dtype = dtype,
        .options = options,
    }));
}

export fn pccl_coalesced_async(
    comm: ?*Comm,
    collective: c_uint,
    arrays: ?[*]const ArrayOfCaller,
    array_count: u64,
    root: u32,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(coalesced(start, comm, collective, .{
        .first = arrays,
        .count = array_count,
    }, root, options, work));
}

export fn pccl_barrier_async(
    comm: ?*Comm,
    options: ?*const CollectiveOptions,
    work: ?*?*Work,
) Status {
    return status.code(start(comm, work, .{ .kind = .barrier, .options = options }));
}

fn start(handle: ?*Comm, out: ?*?*Work, arguments: Arguments) status.Error!void {
    const to = out orelse return status.is_null("work");
    const work = gpa.create(Work) catch return status.out_of_memory();
    errdefer gpa.destroy(work);
    try begin(work, handle, arguments);
    to.* = work;
}

// ---- checks

fn begin(work: *Work, handle: ?*Comm, arguments: Arguments) status.Error!void {
    const comm = try comm_file.usable(handle);
    const options = sized.read(CollectiveOptions, arguments.options) catch
        return status.bad_size("pccl_collective_options_t");
    const op = small_enum(base.ReduceOp, options.op) orelse return status.fail(
        .invalid_argument,
        "op {d} is unknown; see pccl_reduce_op_t",
        .{options.op},
    );
    const dtype = try dtype_of(arguments.dtype);
    const arrays = try arrays_of(&arguments);
    defer gpa.free(arrays);
    const counts = if (arguments.counts) |*counts| try counts_of(counts, "counts") else null;
    const first_dtype = if (arrays.len > 0) arrays[0].dtype else dtype;
    const codec = try codec_of(&options, &arguments, op, first_dtype);
    try check_op(arguments.kind, op, first_dtype);
    for (arrays) |*array| {
        _ = try codec_of(&options, &arguments, op, array.dtype);
        try check_op(arguments.kind, op, array.dtype);
    }
    var call: session.Session.Call = .{
        .kind = arguments.kind,
        .send = arguments.send,
        .recv = arguments.recv,
        .count = arguments.count,
        .counts = counts,
        .exchanged = if (arguments.exchanged) |*exchanged| .{
            .send = try counts_of(&exchanged.send, "send_counts"),
            .recv = try counts_of(&exchanged.recv, "recv_counts"),
        } else null,
        .dtype = dtype,
        .arrays = arrays,
        .op = op,
        .root_rank = arguments.root,
        .part = arguments.part,
        .partner_rank = arguments.partner,
        .recovery = try recovery(options.recovery),
        .plan = small_enum(base.Plan, options.plan) orelse return status.fail(
            .invalid_argument,
            "plan {d} is unknown; see pccl_plan_t",
            .{options.plan},
        ),
        .codec = codec,
        .residual = try residual_of(&options, &arguments, codec),
        .form = options.form,
        .tag = options.tag,
        .deadline = comm.deadline(options.deadline_ns),
    };
    if (call.exchanged != null or call.kind == .send_recv or call.kind == .barrier) call.form = 0;
    // A message has no choice of these.
    if (call.kind == .send_recv) {
        call.op = .sum;
        call.recovery = null;
        call.plan = .auto;
    }
    work.begin(comm.membership, call) catch |err| {
        if (err == error.Left) if (comm.membership.lost()) |why|
            return failure.membership(why, comm.membership.why_removed());
        return failure.begin(err, &call);
    };
}

fn dtype_of(number: c_uint) status.Error!base.DType {
    return small_enum(base.DType, number) orelse status.fail(
        .invalid_argument,
        "dtype {d} is unknown; see pccl_dtype_t",
        .{number},
    );
}

/// The caller frees them.
fn arrays_of(arguments: *const Arguments) status.Error![]session.Session.Array {
    const list = arguments.arrays orelse return &.{};
    if (list.count == 0) return status.fail(
        .invalid_argument,
        "array_count is 0: a coalesced call has at least one array",
        .{},
    );
    const first = list.first orelse return status.is_null("arrays");
    if (list.count > base.limits.chunks_max) return status.fail(
        .invalid_argument,
        "{d} arrays are too many for one operation, which has at most {d}",
        .{ list.count, base.limits.chunks_max },
    );
    const arrays = gpa.alloc(session.Session.Array, @intCast(list.count)) catch
        return status.out_of_memory();
    errdefer gpa.free(arrays);
    for (arrays, first[0..arrays.len], 0..) |*array, *from, number| {
        if (from.reserved != 0) return status.fail(
            .invalid_argument,
            "the reserved field of array {d} is {d}: zero the struct first",
            .{ number, from.reserved },
        );
        array.* = .{
            .send = if (arguments.kind == .broadcast) from.recv_buffer else from.send_buffer,
            .recv = from.recv_buffer,
            .count = from.count,
            .dtype = try dtype_of(from.dtype),
        };
    }
    return arrays;
}

fn small_enum(comptime E: type, number: c_uint) ?E {
    return E.from_int(std.math.cast(u8, number) orelse return null);
}

/// Null: the default.
fn recovery(number: c_uint) status.Error!?wire.control.Recovery {
    return switch (number) {
        0 => null,
        1 => .resume_chunks,
        2 => .restart,
        3 => .raise,
        4 => .complete,
        else => status.fail(
            .invalid_argument,
            "recovery {d} is unknown; see pccl_recovery_t",
            .{number},
        ),
    };
}

fn check_op(kind: wire.control.OpKind, op: base.ReduceOp, dtype: base.DType) status.Error!void {
    if (!kind.reduces() or op.takes(dtype)) return;
    return status.fail(
        .invalid_argument,
        "op {s} is of integers, and dtype is {s}: floats have no {s}",
        .{ op.name(), dtype.name(), op.name() },
    );
}

fn codec_of(
    options: *const CollectiveOptions,
    arguments: *const Arguments,
    op: base.ReduceOp,
    dtype: base.DType,
) status.Error!base.Codec {
    if (options.reserved != 0) return status.fail(
        .invalid_argument,
        "the reserved field of pccl_collective_options_t is {d}: begin with " ++
            "PCCL_COLLECTIVE_OPTIONS_INIT",
        .{options.reserved},
    );
    const kind = small_enum(base.codec.Kind, options.codec) orelse return status.fail(
        .invalid_argument,
        "codec {d} is unknown; see pccl_codec_t",
        .{options.codec},
    );
    var codec: base.Codec = .of(kind);
    if (options.codec_block != 0) codec.block =
        base.codec.Block.from_elements(options.codec_block) orelse
        return status.fail(
            .invalid_argument,
            "codec_block is {d}; it must be 32, 64, 128 or 256",
            .{options.codec_block},
        );
    switch (options.codec_rotate) {
        0 => {},
        1 => codec.rotate = true,
        2 => codec.rotate = false,
        else => return status.fail(
            .invalid_argument,
            "codec_rotate {d} is unknown; see pccl_rotate_t",
            .{options.codec_rotate},
        ),
    }
    codec.rounding = small_enum(base.codec.Rounding, options.codec_rounding) orelse
        return status.fail(
            .invalid_argument,
            "codec_rounding {d} is unknown; see pccl_rounding_t",
            .{options.codec_rounding},
        );
    if (codec.problem()) |why|
        return status.fail(.invalid_argument, "codec {s}: {s}", .{ kind.name(), why });
    if (kind == .none) return codec;
    if (!arguments.kind.has_codecs()) return status.fail(
        .invalid_argument,
        "codec {s}: {s}",
        .{ kind.name(), switch (arguments.kind) {
            .broadcast => "a broadcast has none, because the root's buffer is only read and " ++
                "would differ from what the others decode",
            .send_recv => "a message travels as it is",
            else => "nothing travels that could be encoded",
        } },
    );
    if (!dtype.is_float()) return status.fail(
        .invalid_argument,
        "codec {s} is for floats, and dtype is {s}: {s} integers without a codec",
        .{ kind.name(), dtype.name(), if (arguments.kind.reduces()) "reduce" else "send" },
    );
    if (arguments.kind.reduces() and op != .sum and op != .avg) return status.fail(
        .invalid_argument,
        "codec {s} is for sum and avg, and op is {s}: use them, or no codec",
        .{ kind.name(), op.name() },
    );
    return codec;
}

/// Where it lies is checked by the session, which knows how many elements there are.
fn residual_of(
    options: *const CollectiveOptions,
    arguments: *const Arguments,
    codec: base.Codec,
) status.Error!?kernels.Residual {
    if (options.residual_in == null and options.residual_out == null) return null;
    const in = options.residual_in orelse return status.is_null("residual_in");
    const out = options.residual_out orelse return status.is_null("residual_out");
    if (codec.kind == .none) return status.fail(
        .invalid_argument,
        "residual_in and residual_out are for a codec: without one nothing is lost",
        .{},
    );
    if (!arguments.kind.reduces()) return status.fail(
        .invalid_argument,
        "residual_in and residual_out are for all_reduce, reduce and reduce_scatter: in {s} " ++
            "nothing is added up that could be given back later",
        .{@tagName(arguments.kind)},
    );
    return .{ .in = in, .out = out };
}

fn counts_of(counts: *const Arguments.Counts, comptime name: []const u8) status.Error![]const u64 {
    if (counts.ranks == 0) return &.{};
    const first = counts.first orelse return status.is_null(name);
    return first[0..counts.ranks];
}
