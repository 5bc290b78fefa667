//! collective: the calls that move data. The table has a row for each function of the header: its
//! name, the operation, and its shape, which has the arguments in their order. call.zig checks them
//! before anything is sent. A call that has begun is a work: work.zig.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const call = @import("call.zig");
const comm_file = @import("comm.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const Array = call.ArrayOfCaller;
const Call = call.Call;
const Comm = comm_file.Comm;
const Given = call.Given;
const OpKind = call.OpKind;
const Options = call.CollectiveOptions;
const Status = status.Status;
const Work = net.Work;

const gpa = std.heap.c_allocator;

pub const CollectiveOptions = Options;

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
    // Its kind is its first argument.
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

/// A function of the table, for those who call it from here: `Named("pccl_barrier").function`.
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
            options: ?*const Options,
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
            options: ?*const Options,
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
            options: ?*const Options,
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
            options: ?*const Options,
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
            options: ?*const Options,
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
            options: ?*const Options,
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
            arrays: ?[*]const Array,
            array_count: u64,
            root: u32,
            options: ?*const Options,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const kind = call.kind_of(collective) catch |err| return status.code(err);
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
            options: ?*const Options,
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
            options: ?*const Options,
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
            options: ?*const Options,
            work: ?*?*Work,
        ) callconv(.c) Status {
            const asked = of(kind, null, null, 0, 0);
            return status.code(run(comm, work, .{ .options = options }, asked));
        }
    };
}

/// A call with the session's defaults for what it does not have; call.zig fills in the options.
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

fn even(options: ?*const Options, dtype: c_uint) Given {
    return .{ .options = options, .dtype = dtype };
}

fn uneven(options: ?*const Options, dtype: c_uint, counts: Counts, ranks: u32) Given {
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

// ---- the two ways to run one

fn block(handle: ?*Comm, out: ?*?*Work, given: Given, asked: Call) status.Error!void {
    var local: Work = undefined;
    const work = if (out == null) &local else gpa.create(Work) catch return status.out_of_memory();
    call.begin(work, handle, given, asked) catch |err| {
        if (out != null) gpa.destroy(work);
        return err;
    };
    const outcome = work.wait(base.never).?; // the session keeps the deadline
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
    try call.begin(work, handle, given, asked);
    to.* = work;
}
