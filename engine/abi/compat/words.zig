//! words: enumerations and results of include/compat/pccl.h, and the result that a status of
//! include/pccl.h becomes. The functions are in comm.zig, reduce.zig, state.zig and master.zig.

const std = @import("std");
const base = @import("base");
const status = @import("../status.zig");

/// pcclResult_t
pub const Result = enum(c_uint) {
    success = 0,
    not_initialized = 1,
    internal_error = 2,
    invalid_argument = 3,
    invalid_usage = 4,
    too_few_peers = 5,
    master_connection_failed = 6,
    rank_connection_failed = 7,
    rank_connection_lost = 8,
    no_shared_state_available = 9,
    pending_async_ops = 10,
    update_topology_failed = 11,
    topology_optimization_failed = 12,
};

/// Every result that a call can end with but success.
pub const Error = error{
    NotInitialized,
    InternalError,
    InvalidArgument,
    InvalidUsage,
    TooFewPeers,
    MasterConnectionFailed,
    RankConnectionLost,
    NoSharedStateAvailable,
    PendingAsyncOps,
    UpdateTopologyFailed,
};

pub fn code(done: Error!void) Result {
    done catch |err| return switch (err) {
        error.NotInitialized => .not_initialized,
        error.InternalError => .internal_error,
        error.InvalidArgument => .invalid_argument,
        error.InvalidUsage => .invalid_usage,
        error.TooFewPeers => .too_few_peers,
        error.MasterConnectionFailed => .master_connection_failed,
        error.RankConnectionLost => .rank_connection_lost,
        error.NoSharedStateAvailable => .no_shared_state_available,
        error.PendingAsyncOps => .pending_async_ops,
        error.UpdateTopologyFailed => .update_topology_failed,
    };
    return .success;
}

/// The function of PCCL 1.0 that does what `function` does.
pub fn C(comptime function: anytype) type {
    return status.Function(code, function);
}

/// The error of a status, whose sentence is there already. `lost` stands for the loss of peers and
/// for a deadline.
pub fn check(got: status.Status, lost: Error) Error!void {
    return switch (got) {
        .ok => {},
        .invalid_argument, .mismatch => error.InvalidArgument,
        .invalid_usage => error.InvalidUsage,
        .too_few_peers => error.TooFewPeers,
        .expelled,
        .coordinator_unreachable,
        .authentication_failed,
        .version_mismatch,
        => error.MasterConnectionFailed,
        .state_unavailable => error.NoSharedStateAvailable,
        .out_of_memory, .system_error => error.InternalError,
        .timeout, .aborted, .in_doubt, .deadline_exceeded, .cancelled => lost,
    };
}

/// Keeps the sentence of a call that is refused here.
pub fn refuse(err: Error, comptime format: []const u8, arguments: anytype) Error {
    status.fail(.invalid_usage, format, arguments) catch {};
    return err;
}

pub fn is_null(comptime what: []const u8) Error {
    return refuse(error.InvalidArgument, what ++ " is NULL", .{});
}

pub fn out_of_memory() Error {
    return refuse(error.InternalError, "there is not enough memory for this call", .{});
}

/// pcclDataType_t by number
const dtypes = [_]base.DType{
    .u8, .i8, .i16, .u16, .u32, .i32, .u64, .i64, .f16, .bf16, .f32, .f64,
};

/// pcclRedOp_t by number
const ops = [_]base.ReduceOp{ .sum, .avg, .prod, .max, .min };

/// A pcclDataType_t as a pccl_dtype_t.
pub fn dtype_of(number: c_uint) Error!c_uint {
    if (number < dtypes.len) return @intFromEnum(dtypes[number]);
    return refuse(error.InvalidArgument, "there are no elements of pcclDataType_t {d}", .{number});
}

/// A pcclRedOp_t as a pccl_reduce_op_t.
pub fn op_of(number: c_uint) Error!c_uint {
    if (number < ops.len) return @intFromEnum(ops[number]);
    return refuse(error.InvalidArgument, "there is no pcclRedOp_t {d}", .{number});
}

test "types and operations are those of pccl.h, and other numbers are refused" {
    const expect = std.testing.expectEqual;
    try expect(@as(c_uint, @intFromEnum(base.DType.f32)), try dtype_of(10));
    try expect(@as(c_uint, @intFromEnum(base.ReduceOp.max)), try op_of(3));
    for ([_]c_uint{ 12, 13, std.math.maxInt(c_uint) }) |number| {
        try std.testing.expectError(error.InvalidArgument, dtype_of(number));
    }
    try std.testing.expectError(error.InvalidArgument, op_of(5));
}
