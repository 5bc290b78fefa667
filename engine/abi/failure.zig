//! failure: what the errors and outcomes of the engine mean to a caller: a status code, and a
//! sentence that names the peer, the expectation and the remedy. Errors become codes and sentences
//! only here and in its neighbours: each switch names every error, so a new error does not compile
//! until it has both. Here are calls that were refused; failure_operation.zig has operations that
//! have failed, failure_coordinator.zig what fails at a coordinator or on the way to it.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const session = @import("session");
const status = @import("status.zig");
const Error = status.Error;
const fail = status.fail;

// ---- any call

pub fn closed() Error {
    return fail(.invalid_usage, "this communicator is closed: connect again", .{});
}

pub fn forked() Error {
    return fail(
        .invalid_usage,
        "this handle belongs to the parent of this process: after fork() a child must create " ++
            "its own",
        .{},
    );
}

pub fn interrupted() Error {
    return fail(.cancelled, "the call was withdrawn by its `interrupted` function", .{});
}

pub fn system_limit() Error {
    return fail(
        .system_error,
        "the operating system has no more descriptors for this process: raise its limit of open " ++
            "files (ulimit -n)",
        .{},
    );
}

pub fn thread_limit() Error {
    return fail(.system_error, "the operating system gives this process no more threads", .{});
}

// ---- groups

pub fn join(
    err: net.Membership.JoinError,
    failure: *const net.Membership.Failure,
    name: []const u8,
) Error {
    if (err == error.DeadlineExceeded) if (failure.attendance) |*count|
        return too_few_came(name, count);
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.AlreadyJoined => fail(
            .invalid_usage,
            "this peer is in group \"{s}\" already: use the communicator it has, or close it first",
            .{name},
        ),
        error.NotReady => fail(
            .invalid_usage,
            "sub-group \"{s}\" is made of members of an epoch: call admit on this communicator " ++
                "first",
            .{name},
        ),
        error.BadFounders => fail(
            .invalid_argument,
            "the founders of sub-group \"{s}\" must be members of the communicator's epoch, " ++
                "this peer among them, each named once",
            .{name},
        ),
        error.Closed => closed(),
        error.DeadlineExceeded => if (failure.why().len > 0) fail(
            .deadline_exceeded,
            "group \"{s}\" timed out before it was ready: {s}",
            .{ name, failure.why() },
        ) else fail(
            .deadline_exceeded,
            "group \"{s}\" timed out before it was ready: fewer than initial_world_size peers " ++
                "came, or no connection to one of them could be made; check that peers can " ++
                "reach each other",
            .{name},
        ),
        error.Interrupted => interrupted(),
        error.Failed => switch (failure.status orelse return refused(name, failure.why())) {
            .mismatch => fail(.mismatch, "the sub-group was not made: {s}", .{failure.why()}),
            .ok,
            .aborted,
            .expelled,
            .in_doubt,
            .deadline_exceeded,
            .too_few_peers,
            .coordinator_unreachable,
            .cancelled,
            .state_unavailable,
            => |ended| membership(ended, failure.why()),
        },
    };
}

/// Not the end of a membership: there never was one.
fn refused(name: []const u8, why: []const u8) Error {
    return fail(.invalid_usage, "the coordinator refused group \"{s}\": {s}", .{ name, why });
}

/// A group without members has not begun.
pub fn too_few_came(name: []const u8, count: *const session.Group.Attendance) Error {
    return fail(
        .deadline_exceeded,
        "group \"{s}\" timed out before it began: {d} of {d} peers are here, counting this " ++
            "one{s}. It begins when {d} are: initial_world_size says so, or the variable " ++
            "PCCL_INITIAL_WORLD_SIZE, which pccl run -n N sets to N",
        .{
            name,
            count.here,
            count.needed,
            if (count.emptied) ", and all that were in it before are gone" else "",
            count.needed,
        },
    );
}

pub fn admit(err: net.Membership.AdmitError) Error {
    return switch (err) {
        error.Closed => closed(),
        error.Busy => fail(
            .invalid_usage,
            "another thread is in admit of this communicator: one call at a time",
            .{},
        ),
        error.Interrupted => interrupted(),
        else => |other| agreement(other),
    };
}

pub fn pending(err: session.CallError) Error {
    return switch (err) {
        error.TagInUse => fail(
            .invalid_usage,
            "another thread is in pending_agreed of this communicator: one call at a time",
            .{},
        ),
        else => agreement(err),
    };
}

/// Why members cannot agree on a safe point: the operation for that is one of their operations.
fn agreement(err: session.CallError) Error {
    return begin(err, &.{ .kind = .all_reduce, .deadline = 0 });
}

/// The reason follows, in the coordinator's words if it has removed this peer.
pub const removed = "this peer is no longer a member of the group: ";

/// A coordinator with its state is the one that was there; any other begins another run.
pub const start_again = "If it has ended, start it again on the same address (`pccl coordinator " ++
    "--state DIR` goes on with the run) and call again; for another run, or once " ++
    "reconnect_timeout has passed, close this communicator and connect again";

/// Why a peer is not a member any more, or did not pass a safe point. `said`: by the coordinator,
/// if it has removed this peer.
pub fn membership(why: session.Status, said: []const u8) Error {
    return switch (why) {
        .coordinator_unreachable => fail(
            .coordinator_unreachable,
            "the connection to the coordinator was lost. " ++ start_again,
            .{},
        ),
        .expelled => fail(
            .expelled,
            removed ++ "{s}. Close this communicator and connect again",
            .{said},
        ),
        .deadline_exceeded => if (said.len > 0) fail(
            .deadline_exceeded,
            "timed out: the deadline passed before this safe point, which was not passed: {s}. " ++
                "Then call admit again",
            .{said},
        ) else fail(
            .deadline_exceeded,
            "timed out: the deadline passed before all members had come to this safe point: " ++
                "every member must call admit equally often. The safe point was not passed; " ++
                "call admit again",
            .{},
        ),
        .too_few_peers => fail(
            .too_few_peers,
            "fewer than min_world_size peers are left in the group",
            .{},
        ),
        .cancelled => fail(.cancelled, "the communicator was closed meanwhile", .{}),
        .mismatch => fail(
            .mismatch,
            "a member has passed another number of safe points than this one: every member must " ++
                "call admit equally often. Close this communicator and connect again",
            .{},
        ),
        .aborted => fail(
            .aborted,
            "another member gave up this safe point, which nobody has passed: call admit again",
            .{},
        ),
        .ok, .in_doubt, .state_unavailable => fail(.aborted, "the safe point failed: {t}", .{why}),
    };
}

// ---- operations

/// How many elements a call names.
const Counted = struct {
    call: *const session.Call,

    pub fn format(counted: Counted, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        var total: u64 = 0;
        if (counted.call.exchanged) |*exchanged| {
            for (exchanged.send, exchanged.recv) |send, recv| total +|= send +| recv;
        } else if (counted.call.counts) |counts| {
            for (counts) |count| total +|= count;
        } else if (counted.call.arrays.len > 0) {
            for (counted.call.arrays) |*array| total +|= array.count;
            return writer.print("counts are {d} together, of each rank's shard if there are any", .{
                total,
            });
        } else return writer.print("count is {d}", .{counted.call.count});
        return writer.print("counts are {d} together", .{total});
    }
};

pub fn begin(err: session.CallError, call: *const session.Call) Error {
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.TagInUse => fail(
            .invalid_usage,
            "{s} with tag {d} is in flight on this communicator: wait for it, or use another tag",
            .{
                switch (call.kind) {
                    .send_recv => switch (call.part) {
                        .send => "a message to this rank",
                        .recv => "a message from this rank",
                    },
                    else => "an operation",
                },
                call.tag,
            },
        ),
        error.TooManyOperations => fail(
            .invalid_usage,
            "{d} operations of this kind are in flight in this group and {d} calls wait for " ++
                "their turn, which is the limit: wait for some of them",
            .{ base.limits.operations_in_flight_max, base.limits.operations_queued_max },
        ),
        error.TooManyGivenUp => fail(
            .coordinator_unreachable,
            "{d} operations that this peer gave up wait for an answer of the coordinator, which " ++
                "is the limit: call again when it is back",
            .{base.limits.given_up_max},
        ),
        error.TooManyTags => fail(
            .invalid_usage,
            "{d} tags far from each other were used since the last new epoch, which is the " ++
                "limit: use tags again, or take the next number for a new one",
            .{base.limits.tag_runs_max},
        ),
        error.NotAdmitted => fail(
            .invalid_usage,
            "this peer has not entered the group yet: call admit first",
            .{},
        ),
        error.Left => closed(),
        error.BufferInUse => fail(
            .invalid_usage,
            "an operation in flight uses a buffer of this call: wait for it first, or give each " ++
                "its own memory",
            .{},
        ),
        error.TagReserved => fail(
            .invalid_argument,
            "tag {d} belongs to messages or shared states: use one below 254 * 2**56",
            .{call.tag},
        ),
        error.TagTooLarge => fail(
            .invalid_argument,
            "tag {d} is too large for {t}: use one below 2**38",
            .{ call.tag, call.part },
        ),
        error.PartnerOutOfRange => fail(
            .invalid_argument,
            "there is no rank {d} to {s} in this epoch: it must be below world_size",
            .{ call.partner_rank, way(call.part) },
        ),
        error.PartnerIsSelf => fail(
            .invalid_argument,
            "rank {d} is this peer itself, and there is nobody to {s}: copy the array instead",
            .{ call.partner_rank, way(call.part) },
        ),
        error.RootOutOfRange => fail(
            .invalid_argument,
            "root {d} is not a rank of this epoch: it must be below world_size",
            .{call.root_rank},
        ),
        error.CountsOfAnotherWorld => fail(
            .invalid_argument,
            "there are {d} counts: there must be one for each rank of this epoch",
            .{if (call.exchanged) |*exchanged| exchanged.send.len else call.counts.?.len},
        ),
        error.OwnCountsDiffer => fail(
            .invalid_argument,
            "this rank would send itself another number of elements than it would receive from " ++
                "itself: send_counts and recv_counts must agree there",
            .{},
        ),
        error.TooManyRanks => fail(
            .invalid_usage,
            "{s} works in a world of at most {d}: use smaller groups",
            .{
                if (call.exchanged == null) "all_to_all" else "all_to_all with counts",
                session.all_to_all_ranks_max(call.exchanged != null),
            },
        ),
        error.TooManyElements => fail(
            .invalid_argument,
            "{f}; one operation has at most {d} elements, over all ranks",
            .{ Counted{ .call = call }, @as(u64, base.limits.elements_max) },
        ),
        error.TooManyArrays => fail(
            .invalid_argument,
            "{d} arrays have too many shards for one operation, which has at most {d} of all " ++
                "arrays and ranks: call several times, with different tags",
            .{ call.arrays.len, base.limits.chunks_max },
        ),
        error.ArraysOverlap => fail(
            .invalid_argument,
            "two buffers of this call overlap, and one of them is written: each must lie apart " ++
                "from all others, save an array and its own result in place",
            .{},
        ),
        error.SendMissing => status.is_null("the buffer to send"),
        error.RecvMissing => status.is_null("the buffer to receive"),
        error.BeyondMemory => fail(
            .invalid_argument,
            "{f}, and so many {s} do not fit into memory behind the buffer",
            .{ Counted{ .call = call }, call.dtype.name() },
        ),
        error.BuffersOverlap => fail(
            .invalid_argument,
            "send_buffer and recv_buffer overlap: {s}",
            .{switch (call.kind) {
                .all_gather => "send_buffer must be this rank's part of recv_buffer, or lie apart",
                .reduce_scatter => "recv_buffer must be this rank's part of send_buffer, or lie " ++
                    "apart",
                .scatter => "recv_buffer must be the root's part of send_buffer, or lie apart",
                .gather => "send_buffer must be the root's part of recv_buffer, or lie apart",
                .all_to_all => "they must lie apart",
                else => "they must be the same, or lie apart",
            }},
        ),
        error.ResidualOverlaps => fail(
            .invalid_argument,
            "residual_out overlaps another buffer of the call: what it holds counts only once " ++
                "the operation has succeeded, so it must lie apart",
            .{},
        ),
        error.ResidualInWritten => fail(
            .invalid_argument,
            "residual_in overlaps recv_buffer, which is written",
            .{},
        ),
    };
}

fn way(part: session.Call.Part) []const u8 {
    return switch (part) {
        .send => "send to",
        .recv => "receive from",
    };
}

// ---- shared states

/// `name`: of the tensor that it is about, or of the state.
pub fn state(err: net.SharedState.CreateError, name: []const u8, count: usize) Error {
    const limits = base.limits;
    return switch (err) {
        error.OutOfMemory => status.out_of_memory(),
        error.Closed => closed(),
        error.NameInUse => fail(
            .invalid_usage,
            "this peer has a shared state named \"{s}\" in this group: close it first, or give " ++
                "this one another name, the same on every peer",
            .{name},
        ),
        error.TooManyTensors => fail(
            .invalid_argument,
            "a shared state has at most {d} tensors, not {d}",
            .{ limits.state_tensors_max, count },
        ),
        error.TooManyLeaves => fail(
            .invalid_argument,
            "the tensors of a shared state have at most {d} leaves of {d} bytes together",
            .{ limits.state_leaves_max, limits.state_leaf_bytes },
        ),
        error.BadName => fail(
            .invalid_argument,
            "the name of a tensor must be 1 to {d} bytes of UTF-8, without control characters, " ++
                "line ends and marks that turn the writing",
            .{limits.name_bytes_max},
        ),
        error.DuplicateName => fail(
            .invalid_argument,
            "two tensors have the name \"{s}\"",
            .{name},
        ),
        error.TooManyDimensions => fail(
            .invalid_argument,
            "tensor \"{s}\" has more than {d} dimensions",
            .{ name, limits.state_dimensions_max },
        ),
        error.TooLarge => fail(
            .invalid_argument,
            "the shape of tensor \"{s}\" is larger than memory can be",
            .{name},
        ),
        error.NoData => fail(
            .invalid_argument,
            "tensor \"{s}\" has elements, but no memory",
            .{name},
        ),
        error.RevisionTooLarge => fail(
            .invalid_argument,
            "the revision of a shared state must be below 2**62",
            .{},
        ),
        error.Overlap => fail(
            .invalid_argument,
            "tensor \"{s}\" overlaps another one in memory: each needs its own",
            .{name},
        ),
    };
}

pub fn sync(err: net.SharedState.SyncError) Error {
    return switch (err) {
        error.Failed => error.Failed, // `operation` has said why
        error.Busy => fail(
            .invalid_usage,
            "another thread is in sync of this shared state: one call at a time",
            .{},
        ),
        error.Ended => fail(.cancelled, "the shared state is closed: make a new one", .{}),
        error.RevisionTooLarge => state(error.RevisionTooLarge, "", 0),
        error.TagInUse => fail(
            .invalid_usage,
            "a sync of a shared state of this name is under way on this communicator",
            .{},
        ),
        error.OutOfMemory,
        error.TooManyOperations,
        error.TooManyGivenUp,
        error.TooManyTags,
        error.NotAdmitted,
        error.Left,
        error.BufferInUse,
        => |common| begin(common, &.{ .kind = .sync, .deadline = 0 }),
    };
}
