//! state: shared states, which the members of a group want to be equal (net/shared_state.zig).

const std = @import("std");
const base = @import("base");
const net = @import("net");
const session = @import("session");
const wire = @import("wire");
const argument = @import("argument.zig");
const comm_file = @import("comm.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const Comm = comm_file.Comm;

const gpa = std.heap.c_allocator;

/// The type pccl_tensor_t of pccl.h.
pub const Tensor = extern struct {
    name: ?[*:0]const u8,
    data: ?[*]u8,
    shape: ?[*]const u64,
    dimensions: u32,
    dtype: c_uint,
    flags: u32,
    reserved: u32,

    const may_differ: u32 = 1;
};

pub const StateOptions = extern struct {
    size: usize,
    name: ?[*:0]const u8,
    tensors: ?[*]const Tensor,
    tensor_count: u64,
    revision: u64,
    flags: u32,
    reserved: u32,

    const prefetch: u32 = 1;
    const successive: u32 = 2;
    const refuse: u32 = 4;
    const one_sender: u32 = 8;
    const highest_revision: u32 = 16;
    const known = prefetch | successive | refuse | one_sender | highest_revision;
};

pub const SyncOptions = extern struct {
    size: usize,
    strategy: c_uint,
    deadline_ns: u64,
    revision: u64,
    contributors: ?[*]comm_file.PeerIdBytes,
    holders: ?[*]u8,
    capacity: u32,
    flags: u32,

    const at_revision: u32 = 1;
};

pub const SyncOutcome = extern struct {
    size: usize,
    revision: u64,
    epoch: u64,
    sequence: u64,
    attempts: u32,
    sources: u32,
    leaves: u64,
    leaves_moved: u64,
    bytes_sent: u64,
    bytes_received: u64,
    duration_ns: u64,
    hash_ns: u64,
    leaves_early: u64,
    elected_revision: u64,
    hash_bytes_sent: u64,
    hash_bytes_received: u64,
    contributor_count: u32,
    holder_count: u32,
};

/// The type pccl_state_t of pccl.h.
pub const State = struct {
    comm: *Comm,
    shared: *net.SharedState,
};

fn usable(handle: ?*State) status.Error!*State {
    const state = handle orelse return status.is_null("state");
    if (state.comm.membership.engine.forked()) return sentence.forked();
    return state;
}

// ---- create and destroy

pub const pccl_state_create = status.C(create).call;

fn create(handle: ?*Comm, options: ?*const StateOptions, out: ?**State) status.Error!void {
    const comm = try comm_file.usable(handle);
    const to = out orelse return status.is_null("state");
    const given = try argument.sized(StateOptions, "pccl_state_options_t", options);
    if (given.flags & ~StateOptions.known != 0 or given.reserved != 0) return status.bad_argument(
        "the options of the state have flags that this library does not know, or were not zeroed",
        .{},
    );
    const limit = base.limits.name_bytes_max;
    const name = argument.bounded(given.name orelse "state", limit) catch
        return status.bad_argument("the state's name has more than {d} bytes", .{limit});
    if (given.tensor_count > base.limits.state_tensors_max)
        return sentence.state(error.TooManyTensors, name, given.tensor_count);
    const tensors = gpa.alloc(session.Tensor, @intCast(given.tensor_count)) catch
        return status.out_of_memory();
    defer gpa.free(tensors);
    if (tensors.len > 0 and given.tensors == null) return status.is_null("tensors");
    for (tensors, 0..) |*tensor, index| tensor.* = try read_tensor(&given.tensors.?[index], index);
    const state = gpa.create(State) catch return status.out_of_memory();
    errdefer gpa.destroy(state);
    var at: usize = 0;
    const shared = net.SharedState.create(gpa, comm.membership, .{
        .name = name,
        .tensors = tensors,
        .revision = given.revision,
        .rules = .{
            .successive = given.flags & StateOptions.successive != 0,
            .refuse = given.flags & StateOptions.refuse != 0,
            .one_sender = given.flags & StateOptions.one_sender != 0,
            .highest_revision = given.flags & StateOptions.highest_revision != 0,
        },
        .prefetch = given.flags & StateOptions.prefetch != 0,
    }, &at) catch |err| {
        const about = if (at < tensors.len) tensors[at].name else name;
        if (err == error.Closed) if (comm.lost()) |failed| return failed;
        return sentence.state(err, if (err == error.NameInUse) name else about, tensors.len);
    };
    state.* = .{ .comm = comm, .shared = shared };
    to.* = state;
}

fn read_tensor(given: *const Tensor, index: usize) status.Error!session.Tensor {
    const name = given.name orelse return status.bad_argument(
        "the name of tensor {d} is missing",
        .{index},
    );
    const limit = base.limits.name_bytes_max;
    const bounded = argument.bounded(name, limit) catch return status.bad_argument(
        "the name of tensor {d} has more than {d} bytes",
        .{ index, limit },
    );
    const dtype = std.enums.fromInt(base.DType, given.dtype) orelse return status.bad_argument(
        "dtype {d} of tensor \"{s}\" is unknown; see pccl_dtype_t",
        .{ given.dtype, bounded },
    );
    if (given.flags & ~Tensor.may_differ != 0 or given.reserved != 0) return status.bad_argument(
        "tensor \"{s}\" has flags that this library does not know, or was not zeroed",
        .{bounded},
    );
    if (given.dimensions > base.limits.state_dimensions_max)
        return sentence.state(error.TooManyDimensions, bounded, 0);
    if (given.dimensions > 0 and given.shape == null) return status.bad_argument(
        "the shape of tensor \"{s}\" is missing",
        .{bounded},
    );
    return .{
        .name = bounded,
        .dtype = dtype,
        .shape = if (given.shape) |shape| shape[0..given.dimensions] else &.{},
        .data = given.data,
        .may_differ = given.flags & Tensor.may_differ != 0,
    };
}

pub fn pccl_state_destroy(handle: ?*State) callconv(.c) void {
    const state = handle orelse return;
    // A forked child has no engine: the memory is left to the end of the process.
    if (state.comm.membership.engine.forked()) return;
    state.shared.destroy();
    gpa.destroy(state);
}

pub const pccl_state_close = status.C(close).call;

fn close(handle: ?*State) status.Error!void {
    (try usable(handle)).shared.close();
}

pub const pccl_state_revision = status.C(read_revision).call;

fn read_revision(handle: ?*State, revision: ?*u64) status.Error!void {
    const state = try usable(handle);
    const to = revision orelse return status.is_null("revision");
    to.* = state.shared.revision();
}

// ---- sync

pub const pccl_state_sync = status.C(sync).call;

fn sync(
    handle: ?*State,
    options: ?*const SyncOptions,
    outcome: ?*SyncOutcome,
) status.Error!void {
    const state = try usable(handle);
    const given = try argument.sized(SyncOptions, "pccl_sync_options_t", options);
    const wanted = given.strategy;
    const strategy =
        try argument.word(wire.control.Strategy, wanted, "strategy", "pccl_strategy_t");
    const at_revision = given.flags & SyncOptions.at_revision != 0;
    if (given.flags & ~SyncOptions.at_revision != 0 or (given.revision != 0 and !at_revision))
        return status.bad_argument(
            "the options of the sync have flags that this library does not know, or a revision " ++
                "without the flag for it, or were not zeroed",
            .{},
        );
    // Checked before anything moves: afterwards a bad argument could not be repaired.
    if (outcome) |to| try argument.check_size(SyncOutcome, "pccl_sync_outcome_t", to);
    const comm = state.comm;
    var ids: [base.limits.peers_max]base.PeerId = undefined;
    const done = state.shared.sync(.{
        .strategy = strategy,
        .revision = if (at_revision) given.revision else null,
        .deadline = comm.deadline(given.deadline_ns),
        .interrupt = comm.interrupt,
        .ids = &ids,
    }, tell) catch |err| {
        if (err == error.Left) if (comm.lost()) |failed| return failed;
        return sentence.sync(err);
    };
    put_contributors(&given, &done, &ids);
    if (outcome) |to| argument.write(SyncOutcome, "pccl_sync_outcome_t", to, .{
        .size = undefined,
        .revision = done.revision,
        .epoch = done.epoch,
        .sequence = done.sequence,
        .attempts = done.attempts,
        .sources = done.sources,
        .leaves = done.leaves,
        .leaves_moved = done.leaves_moved,
        .bytes_sent = done.bytes_sent,
        .bytes_received = done.bytes_received,
        .duration_ns = done.duration_ns,
        .hash_ns = done.hash_ns,
        .leaves_early = done.leaves_early,
        .elected_revision = done.elected_revision,
        .hash_bytes_sent = done.hash_bytes_sent,
        .hash_bytes_received = done.hash_bytes_received,
        .contributor_count = done.contributors.count(),
        .holder_count = done.holders.count(),
    }) catch unreachable; // `check_size` has checked it
}

/// Writes as many contributors as the caller has room for.
fn put_contributors(
    options: *const SyncOptions,
    done: *const net.SharedState.Outcome,
    ids: *const [base.limits.peers_max]base.PeerId,
) void {
    const count = @min(options.capacity, done.contributors.count());
    for (0..count) |position| {
        const rank = done.contributors.at(position);
        if (options.contributors) |to| to[position] = .{ .bytes = ids[rank].bytes };
        if (options.holders) |to| to[position] = @intFromBool(done.holders.has(rank));
    }
}

/// Keeps status and sentence of a sync that failed, which `sentence.sync` finds again.
fn tell(operation: *const session.Operation) void {
    sentence.operation(operation) catch {};
}
