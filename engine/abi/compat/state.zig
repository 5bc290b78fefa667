//! state: the shared state of PCCL 1.0 (include/compat/pccl.h), by pccl_state_sync. It has no
//! handle there, so each sync makes one of its own.

const std = @import("std");
const base = @import("base");
const state_file = @import("../state.zig");
const comm_file = @import("comm.zig");
const words = @import("words.zig");
const Comm = comm_file.Comm;
const Error = words.Error;
const Tensor = state_file.Tensor;

const gpa = std.heap.c_allocator;

/// pcclTensorInfo_t
const TensorInfo = extern struct {
    name: ?[*:0]const u8,
    data: ?[*]u8,
    count: usize,
    datatype: c_uint,
    device_type: c_uint,
    allow_content_inequality: bool,
};

/// pcclSharedState_t
const SharedState = extern struct {
    revision: u64,
    count: usize,
    infos: ?[*]const TensorInfo,
};

/// pcclSharedStateSyncInfo_t
const SyncInfo = extern struct { tx_bytes: u64, rx_bytes: u64 };

/// pccl_strategy_t of a pcclSharedStateSyncStrategy_t: popular, receive only, send only.
const strategies = [_]c_uint{ 0, 2, 1 };

pub fn pcclSynchronizeSharedState(
    communicator: ?*Comm,
    shared_state: ?*SharedState,
    strategy: c_uint,
    info_out: ?*SyncInfo,
) callconv(.c) words.Result {
    return words.code(sync(communicator, shared_state, strategy, info_out));
}

fn sync(
    handle: ?*Comm,
    shared_state: ?*SharedState,
    strategy: c_uint,
    info_out: ?*SyncInfo,
) Error!void {
    const lost = error.RankConnectionLost;
    const comm = try comm_file.connected(handle);
    const shared = shared_state orelse return words.is_null("shared_state");
    if (strategy >= strategies.len) return words.refuse(
        error.InvalidArgument,
        "there is no pcclSharedStateSyncStrategy_t {d}",
        .{strategy},
    );
    try comm_file.expect_rest(comm.group.?, lost);
    const count = shared.count;
    if (count > base.limits.state_tensors_max) return words.refuse(
        error.InvalidArgument,
        "the state has {d} tensors; it may have {d}",
        .{ count, base.limits.state_tensors_max },
    );
    const infos = shared.infos orelse return words.is_null("infos");
    const tensors = gpa.alloc(Tensor, count) catch return words.out_of_memory();
    defer gpa.free(tensors);
    const shapes = gpa.alloc(u64, count) catch return words.out_of_memory();
    defer gpa.free(shapes);
    for (tensors, shapes, infos[0..count]) |*tensor, *shape, *info| {
        shape.* = info.count;
        tensor.* = try tensor_of(info, shape);
    }

    var options = comm_file.sized(state_file.StateOptions);
    options.tensors = tensors.ptr;
    options.tensor_count = count;
    options.flags = state_file.StateOptions.one_sender;
    var state: *state_file.State = undefined;
    try words.check(state_file.pccl_state_create(comm.group, &options, &state), lost);
    defer state_file.pccl_state_destroy(state);
    var how = comm_file.sized(state_file.SyncOptions);
    how.strategy = strategies[strategy];
    how.revision = shared.revision;
    how.flags = state_file.SyncOptions.at_revision;
    var outcome = comm_file.sized(state_file.SyncOutcome);
    const got = state_file.pccl_state_sync(state, &how, &outcome);
    try comm_file.check(comm.group.?, got, lost);
    shared.revision = outcome.elected_revision;
    if (info_out) |to| to.* = .{
        .tx_bytes = outcome.bytes_sent,
        .rx_bytes = outcome.bytes_received,
    };
}

fn tensor_of(info: *const TensorInfo, shape: *const u64) Error!Tensor {
    const cpu = 0;
    if (info.device_type != cpu) return words.refuse(
        error.InvalidArgument,
        "a tensor is on pcclDeviceType_t {d}: copy it to the CPU",
        .{info.device_type},
    );
    return .{
        .name = info.name,
        .data = info.data,
        .shape = @ptrCast(shape),
        .dimensions = 1,
        .dtype = try words.dtype_of(info.datatype),
        .flags = if (info.allow_content_inequality) Tensor.may_differ else 0,
        .reserved = 0,
    };
}
