//! collective: the calls that move data. The table has a row for each function of the header: its
//! name, the operation, and its shape, which has the arguments in their order. `begin` checks what
//! a program in C may get wrong: numbers, pointers and options; the session checks what depends on
//! the membership. Nothing is sent before the session and `begin` have checked a call. A call that
//! has begun is a work: work.zig.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const net = @import("net");
const session = @import("session");
const wire = @import("wire");
const argument = @import("argument.zig");
const comm_file = @import("comm.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const Call = session.Call;
const Comm = comm_file.Comm;
const OpKind = wire.control.OpKind;
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

/// The arguments of C that a Call has in other types; a Call has all other arguments from the
/// start.
const Given = struct {
    options: ?*const CollectiveOptions,
    dtype: c_uint = 0,
    /// The number of elements of each rank's shard, if these differ.
    counts: union(enum) {
        alike,
        each: ?[*]const u64,
        exchanged: struct { send: ?[*]const u64, recv: ?[*]const u64 },
    } = .alike,
    /// The number of ranks for which the caller gives counts.
    ranks: u32 = 0,
    /// The arrays of a coalesced call; null: the call has one array.
    arrays: ?struct { first: ?[*]const ArrayOfCaller, count: u64 } = null,
};

// ---- the table

const Shape = fn (comptime OpKind, comptime Run) type;
const Row = struct { name: []const u8, kind: OpKind, shape: Shape };

/// Each row is two exported functions: pccl_NAME blocks, pccl_NAME_async returns at once.
const table = [_]Row{
    .{ .name = "all_reduce", .kind = .all_reduce, .shape = SendRecv },
    .{ .name = "broadcast", .kind = .broadcast, .shape = BufferRoot },
    .{ .name = "reduce", .kind = .reduce, .shape = SendRecvRoot },
    .{ .name = "reduce_scatter", .kind = .reduce_scatter, .shape = SendRecv },
    .{ .name = "reduce_scatter_v", .kind = .reduce_scatter, .shape = SendRecvCounts },
    .{ .name = "all_gather", .kind = .all_gather, .shape = SendRecv },
    .{ .name = "all_gather_v", .kind = .all_gather, .shape = SendRecvCounts },
    .{ .name = "scatter", .kind = .scatter, .shape = SendRecvRoot },
    .{ .name = "scatter_v", .kind = .scatter, .shape = SendRecvCountsRoot },
    .{ .name = "gather", .kind = .gather, .shape = SendRecvRoot },
    .{ .name = "gather_v", .kind = .gather, .shape = SendRecvCountsRoot },
    .{ .name = "all_to_all", .kind = .all_to_all, .shape = SendRecv },
    .{ .name = "all_to_all_v", .kind = .all_to_all, .shape = SendRecvBothCounts },
    // The kind of a coalesced call is an argument of the function.
    .{ .name = "coalesced", .kind = undefined, .shape = Arrays },
    .{ .name = "send", .kind = .send_recv, .shape = BufferDst },
    .{ .name = "recv", .kind = .send_recv, .shape = BufferSrc },
    .{ .name = "barrier", .kind = .barrier, .shape = Nothing },
};

comptime {
    for (table) |row| {
        @export(&row.shape(row.kind, block).function, .{ .name = "pccl_" ++ row.name });
        @export(&row.shape(row.kind, start).function, .{ .name = "pccl_" ++ row.name ++ "_async" });
    }
}

/// A function of the table, for callers in Zig: `Named("pccl_barrier").function`.
pub fn Named(comptime name: []const u8) type {
    for (table) |row| {
        if (std.mem.eql(u8, name, "pccl_" ++ row.name)) return row.shape(row.kind, block);
        if (std.mem.eql(u8, name, "pccl_" ++ row.name ++ "_async"))
            return row.shape(row.kind, start);
    }
    @compileError("no collective is named " ++ name);
}

// ---- the shapes: the arguments between `comm` and `work`, in the header's order

const Run = fn (?*Comm, ?*?*Work, Given, Call) status.Error!void;
const Sent = ?[*]const u8;
const Received = ?[*]u8;
const Counts = ?[*]const u64;

fn SendRecv(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            send: Sent,
            recv: Received,
            count: u64,
            dtype: c_uint,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = of(kind, send, recv, count, 0);
            return status.code(run(comm, work, even(options, dtype), asked));
        }
    };
}

fn SendRecvRoot(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            send: Sent,
            recv: Received,
            count: u64,
            dtype: c_uint,
            root: u32,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = of(kind, send, recv, count, root);
            return status.code(run(comm, work, even(options, dtype), asked));
        }
    };
}

fn BufferRoot(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            buffer: Received,
            count: u64,
            dtype: c_uint,
            root: u32,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = of(kind, buffer, buffer, count, root);
            return status.code(run(comm, work, even(options, dtype), asked));
        }
    };
}

fn SendRecvCounts(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            send: Sent,
            recv: Received,
            counts: Counts,
            ranks: u32,
            dtype: c_uint,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const given = uneven(options, dtype, counts, ranks);
            return status.code(run(comm, work, given, of(kind, send, recv, 0, 0)));
        }
    };
}

fn SendRecvCountsRoot(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            send: Sent,
            recv: Received,
            counts: Counts,
            ranks: u32,
            dtype: c_uint,
            root: u32,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const given = uneven(options, dtype, counts, ranks);
            return status.code(run(comm, work, given, of(kind, send, recv, 0, root)));
        }
    };
}

fn SendRecvBothCounts(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            send: Sent,
            recv: Received,
            send_counts: Counts,
            recv_counts: Counts,
            ranks: u32,
            dtype: c_uint,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            return status.code(run(comm, work, .{
                .options = options,
                .dtype = dtype,
                .counts = .{ .exchanged = .{ .send = send_counts, .recv = recv_counts } },
                .ranks = ranks,
            }, of(kind, send, recv, 0, 0)));
        }
    };
}

fn Arrays(comptime _: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            collective: c_uint,
            arrays: ?[*]const ArrayOfCaller,
            array_count: u64,
            root: u32,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const kind = kind_of(collective) catch |err| return status.code(err);
            return status.code(run(comm, work, .{
                .options = options,
                .arrays = .{ .first = arrays, .count = array_count },
            }, of(kind, null, null, 0, root)));
        }
    };
}

fn BufferDst(comptime _: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            buffer: Sent,
            count: u64,
            dtype: c_uint,
            dst: u32,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = message(.send, buffer, null, count, dst);
            return status.code(run(comm, work, even(options, dtype), asked));
        }
    };
}

fn BufferSrc(comptime _: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            buffer: Received,
            count: u64,
            dtype: c_uint,
            src: u32,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = message(.recv, null, buffer, count, src);
            return status.code(run(comm, work, even(options, dtype), asked));
        }
    };
}

fn Nothing(comptime kind: OpKind, comptime run: Run) type {
    return struct {
        pub fn function(
            comm: ?*Comm,
            options: ?*const CollectiveOptions,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = of(kind, null, null, 0, 0);
            return status.code(run(comm, work, .{ .options = options }, asked));
        }
    };
}

/// A call with the session's defaults for all other fields; `begin` fills in the options.
fn of(kind: OpKind, send: Sent, recv: Received, count: u64, root: u32) Call {
    return .{
        .kind = kind,
        .send = send,
        .recv = recv,
        .count = count,
        .root_rank = root,
        .deadline = undefined,
    };
}

fn even(options: ?*const CollectiveOptions, dtype: c_uint) Given {
    return .{ .options = options, .dtype = dtype };
}

fn uneven(options: ?*const CollectiveOptions, dtype: c_uint, counts: Counts, ranks: u32) Given {
    return .{
        .options = options,
        .dtype = dtype,
        .counts = .{ .each = counts },
        .ranks = ranks,
    };
}

fn message(part: Call.Part, send: Sent, recv: Received, count: u64, partner: u32) Call {
    var made = of(.send_recv, send, recv, count, 0);
    made.part = part;
    made.partner_rank = partner;
    return made;
}

// ---- the two ways to run a call

fn block(handle: ?*Comm, out: ?*?*Work, given: Given, asked: Call) status.Error!void {
    var local: Work = undefined;
    const work = if (out == null) &local else gpa.create(Work) catch return status.out_of_memory();
    begin(work, handle, given, asked) catch |err| {
        if (out != null) gpa.destroy(work);
        return err;
    };
    const outcome = work.wait(base.never).?; // the session ends it at the deadline
    const result = if (outcome == .ok) {} else sentence.operation(work.operation);
    if (out != null and (outcome == .ok or outcome == .in_doubt)) {
        out.?.* = work;
        return result;
    }
    work.deinit();
    if (out != null) gpa.destroy(work);
    return result;
}

fn start(handle: ?*Comm, out: ?*?*Work, given: Given, asked: Call) status.Error!void {
    const to = out orelse return status.is_null("work");
    const work = gpa.create(Work) catch return status.out_of_memory();
    errdefer gpa.destroy(work);
    try begin(work, handle, given, asked);
    to.* = work;
}

// ---- the checks

/// Begins a call, whose shape has set the fields that need no check.
fn begin(
    work: *Work,
    handle: ?*Comm,
    given: Given,
    asked: Call,
) status.Error!void {
    const comm = try comm_file.usable(handle);
    var call = asked;
    const name = "pccl_collective_options_t";
    const options = try argument.sized(CollectiveOptions, name, given.options);
    call.op = try argument.word(base.ReduceOp, options.op, "op", "pccl_reduce_op_t");
    call.dtype = try dtype_of(given.dtype);
    call.arrays = try arrays_of(call.kind, &given);
    defer gpa.free(call.arrays);
    switch (given.counts) {
        .alike => {},
        .each => |counts| call.counts = try counts_of(counts, given.ranks, "counts"),
        .exchanged => |counts| call.exchanged = .{
            .send = try counts_of(counts.send, given.ranks, "send_counts"),
            .recv = try counts_of(counts.recv, given.ranks, "recv_counts"),
        },
    }
    const dtype = if (call.arrays.len > 0) call.arrays[0].dtype else call.dtype;
    call.codec = try codec_of(&options, &call, dtype);
    try check_op(&call, dtype);
    for (call.arrays) |*array| {
        _ = try codec_of(&options, &call, array.dtype);
        try check_op(&call, array.dtype);
    }
    const Recovery = wire.control.Recovery;
    if (options.recovery != 0) call.recovery =
        try argument.word(Recovery, options.recovery, "recovery", "pccl_recovery_t");
    call.plan = try argument.word(base.Plan, options.plan, "plan", "pccl_plan_t");
    call.residual = try residual_of(&options, &call);
    call.form = options.form;
    call.tag = options.tag;
    call.deadline = comm.deadline(options.deadline_ns);
    if (call.exchanged != null or call.kind == .send_recv or call.kind == .barrier) call.form = 0;
    // A message has no choice of op, recovery and plan.
    if (call.kind == .send_recv) {
        call.op = .sum;
        call.recovery = null;
        call.plan = .auto;
    }
    work.begin(comm.membership, call) catch |err| {
        if (err == error.Left) if (comm.lost()) |failed| return failed;
        return sentence.begin(err, &call);
    };
}

/// The kind of a coalesced call, from its number in C.
fn kind_of(value: c_uint) status.Error!OpKind {
    for (std.enums.values(OpKind)) |kind| if (@intFromEnum(kind) == value) switch (kind) {
        .barrier, .sync, .send_recv => break,
        else => return kind,
    };
    return status.bad_argument("collective {d} is unknown; see pccl_collective_t", .{value});
}

fn dtype_of(value: c_uint) status.Error!base.DType {
    return argument.word(base.DType, value, "dtype", "pccl_dtype_t");
}

/// Reads the arrays of a coalesced call; the caller frees the result.
fn arrays_of(kind: OpKind, given: *const Given) status.Error![]session.Array {
    const list = given.arrays orelse return &.{};
    if (list.count == 0) return status.bad_argument(
        "array_count is 0: a coalesced call has at least one array",
        .{},
    );
    const first = list.first orelse return status.is_null("arrays");
    if (list.count > base.limits.chunks_max) return status.bad_argument(
        "{d} arrays are too many for one operation, which has at most {d}",
        .{ list.count, base.limits.chunks_max },
    );
    const arrays = gpa.alloc(session.Array, @intCast(list.count)) catch
        return status.out_of_memory();
    errdefer gpa.free(arrays);
    for (arrays, first[0..arrays.len], 0..) |*array, *from, index| {
        if (from.reserved != 0) return status.bad_argument(
            "the reserved field of array {d} is {d}: zero the struct first",
            .{ index, from.reserved },
        );
        array.* = .{
            .send = if (kind == .broadcast) from.recv_buffer else from.send_buffer,
            .recv = from.recv_buffer,
            .count = from.count,
            .dtype = try dtype_of(from.dtype),
        };
    }
    return arrays;
}

fn check_op(call: *const Call, dtype: base.DType) status.Error!void {
    const op = call.op;
    if (!call.kind.reduces() or op.takes(dtype)) return;
    return status.bad_argument(
        "op {s} is of integers, and dtype is {s}: floats have no {s}",
        .{ op.name(), dtype.name(), op.name() },
    );
}

fn codec_of(
    options: *const CollectiveOptions,
    call: *const Call,
    dtype: base.DType,
) status.Error!base.Codec {
    try argument.check_reserved(options.reserved, "collective_options");
    const kind = try argument.word(base.codec.Kind, options.codec, "codec", "pccl_codec_t");
    var codec: base.Codec = .of(kind);
    if (options.codec_block != 0) codec.block =
        base.codec.Block.from_elements(options.codec_block) orelse
        return status.bad_argument(
            "codec_block is {d}; it must be 32, 64, 128 or 256",
            .{options.codec_block},
        );
    switch (options.codec_rotate) {
        0 => {},
        1 => codec.rotate = true,
        2 => codec.rotate = false,
        else => return status.bad_argument(
            "codec_rotate {d} is unknown; see pccl_rotate_t",
            .{options.codec_rotate},
        ),
    }
    const rounding = options.codec_rounding;
    codec.rounding =
        try argument.word(base.codec.Rounding, rounding, "codec_rounding", "pccl_rounding_t");
    if (codec.problem()) |why|
        return status.bad_argument("codec {s}: {s}", .{ kind.name(), why });
    if (kind == .none) return codec;
    if (!call.kind.has_codecs()) return status.bad_argument(
        "codec {s}: {s}",
        .{ kind.name(), switch (call.kind) {
            .broadcast => "a broadcast has none, because the root's buffer is only read and " ++
                "would differ from what the others decode",
            .send_recv => "a message travels as it is",
            else => "nothing travels that could be encoded",
        } },
    );
    if (!dtype.is_float()) return status.bad_argument(
        "codec {s} is for floats, and dtype is {s}: {s} integers without a codec",
        .{ kind.name(), dtype.name(), if (call.kind.reduces()) "reduce" else "send" },
    );
    if (call.kind.reduces() and call.op != .sum and call.op != .avg) return status.bad_argument(
        "codec {s} is for sum and avg, and op is {s}: use them, or no codec",
        .{ kind.name(), call.op.name() },
    );
    return codec;
}

/// Reads the residual of a call. The session checks where the buffers of the residual lie, because
/// it knows how many elements there are.
fn residual_of(
    options: *const CollectiveOptions,
    call: *const Call,
) status.Error!?kernels.Residual {
    if (options.residual_in == null and options.residual_out == null) return null;
    const in = options.residual_in orelse return status.is_null("residual_in");
    const out = options.residual_out orelse return status.is_null("residual_out");
    if (call.codec.kind == .none) return status.bad_argument(
        "residual_in and residual_out are for a codec: without one nothing is lost",
        .{},
    );
    if (!call.kind.reduces()) return status.bad_argument(
        "residual_in and residual_out are for all_reduce, reduce and reduce_scatter: in {s} " ++
            "nothing is added up that could be given back later",
        .{@tagName(call.kind)},
    );
    return .{ .in = in, .out = out };
}

fn counts_of(
    counts: ?[*]const u64,
    ranks: u32,
    comptime name: []const u8,
) status.Error![]const u64 {
    if (ranks == 0) return &.{};
    const first = counts orelse return status.is_null(name);
    return first[0..ranks];
}

test "arrays of a call that cannot be are refused" {
    const kinds = [_]OpKind{ .all_reduce, .broadcast };
    var bytes: [8]u8 = @splat(0);
    var one: ArrayOfCaller =
        .{ .send_buffer = null, .recv_buffer = &bytes, .count = 2, .dtype = 0, .reserved = 0 };
    const list = @as([*]const ArrayOfCaller, @ptrCast(&one));
    for (kinds) |kind| {
        const given: Given = .{ .options = null, .arrays = .{ .first = list, .count = 1 } };
        const arrays = try arrays_of(kind, &given);
        defer gpa.free(arrays);
        // A broadcast has one buffer.
        const wanted: ?[*]const u8 = if (kind == .broadcast) &bytes else null;
        try std.testing.expectEqual(wanted, arrays[0].send);
    }
    one.reserved = 1;
    for ([_]u64{ 0, 1, base.limits.chunks_max + 1 }) |count| {
        const given: Given = .{ .options = null, .arrays = .{ .first = list, .count = count } };
        const result = status.code(if (arrays_of(.all_reduce, &given)) |_| {} else |err| err);
        try std.testing.expectEqual(.invalid_argument, result);
        const why = std.mem.span(status.pccl_last_error());
        const word = if (count == 0) "array_count" else if (count == 1) "reserved" else "too many";
        try std.testing.expect(std.mem.indexOf(u8, why, word) != null);
    }
}

test "a residual is for sums with a codec, and has two buffers" {
    var bytes: [8]u8 = @splat(0);
    var options = std.mem.zeroes(CollectiveOptions);
    var call: Call = .{ .kind = .all_reduce, .codec = .of(.int8), .deadline = undefined };
    try std.testing.expectEqual(null, try residual_of(&options, &call));
    options.residual_in = &bytes;
    options.residual_out = &bytes;
    try std.testing.expect((try residual_of(&options, &call)).?.out == &bytes);
    call.kind = .all_gather;
    try std.testing.expectError(error.Failed, residual_of(&options, &call));
    call.kind = .all_reduce;
    call.codec = .none;
    try std.testing.expectError(error.Failed, residual_of(&options, &call));
    call.codec = .of(.int8);
    options.residual_out = null;
    try std.testing.expectError(error.Failed, residual_of(&options, &call));
}
