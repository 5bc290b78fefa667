//! work: operations in flight and finished: waiting, withdrawing, reading the outcome
//! (net/work.zig).

const std = @import("std");
const base = @import("base");
const net = @import("net");
const argument = @import("argument.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const PeerIdBytes = @import("comm.zig").PeerIdBytes;
const Work = net.Work;

const gpa = std.heap.c_allocator;

pub const Outcome = extern struct {
    size: usize,
    epoch: u64,
    tag: u64,
    sequence: u64,
    attempts: u32,
    range_count: u32,
    digest: [16]u8,
    bytes_sent: u64,
    bytes_received: u64,
    duration_ns: u64,
    predicted_ns: u64,
    bound_ns: u64,
    plan: c_uint,
    reserved: u32,
};

pub const OutcomeRange = extern struct {
    size: usize,
    begin: u64,
    end: u64,
    contributor_count: u32,
};

fn usable(handle: ?*Work) status.Error!*Work {
    const work = handle orelse return status.is_null("work");
    if (work.engine.forked()) return sentence.forked();
    return work;
}

// ---- waiting

pub const pccl_work_wait = status.C(wait).call;

fn wait(handle: ?*Work, timeout_ns: u64) status.Error!void {
    const work = try usable(handle);
    const deadline = if (timeout_ns == 0) 0 else net.clock.after(timeout_ns);
    const outcome = work.wait(deadline) orelse
        return status.fail(.timeout, "the operation is not finished; it goes on", .{});
    if (outcome != .ok) return sentence.operation(work.operation);
}

pub const pccl_work_poll = status.C(poll).call;

fn poll(handle: ?*Work, finished: ?*c_int) status.Error!void {
    const work = try usable(handle);
    const to = finished orelse return status.is_null("finished");
    to.* = @intFromBool(work.finished.is_set());
}

pub const pccl_work_notify = status.C(notify).call;

fn notify(
    handle: ?*Work,
    finished: ?*const fn (?*anyopaque) callconv(.c) void,
    context: ?*anyopaque,
) status.Error!void {
    const work = try usable(handle);
    const function = finished orelse return status.is_null("finished");
    work.notify(.{ .function = function, .context = context });
}

pub const pccl_work_fd = status.C(descriptor).call;

fn descriptor(handle: ?*Work, fd: ?*c_int) status.Error!void {
    const work = try usable(handle);
    const to = fd orelse return status.is_null("fd");
    to.* = work.descriptor() catch |err| switch (err) {
        error.SystemLimit => return sentence.system_limit(),
    };
}

pub const pccl_work_cancel = status.C(cancel).call;

fn cancel(handle: ?*Work) status.Error!void {
    (try usable(handle)).cancel();
}

pub const pccl_work_resolve = status.C(resolve).call;

fn resolve(handle: ?*Work, timeout_ns: u64, copy: c_int) status.Error!void {
    const work = try usable(handle);
    if (!work.finished.is_set()) return status.fail(
        .invalid_usage,
        "the operation is not finished: only one that ended with PCCL_IN_DOUBT can be resolved",
        .{},
    );
    switch (work.operation.status) {
        .in_doubt => {},
        .ok => return,
        else => return sentence.operation(work.operation),
    }
    const deadline = if (timeout_ns == 0) 0 else net.clock.after(timeout_ns);
    return switch (work.resolve(deadline, copy != 0)) {
        .committed => {},
        .aborted => status.fail(
            .aborted,
            "the operation was aborted on every member. The input is as it was",
            .{},
        ),
        .pending => status.fail(.timeout, "the coordinator has not decided yet; ask again", .{}),
        .unknown => status.fail(
            .coordinator_unreachable,
            "the connection to the coordinator was lost or closed before the decision was " ++
                "known, so it never will be here; the other members know it",
            .{},
        ),
    };
}

pub fn pccl_work_destroy(handle: ?*Work) callconv(.c) void {
    const work = handle orelse return;
    // A forked child has no engine: the memory is left to the end of the process.
    if (work.engine.forked()) return;
    work.deinit();
    gpa.destroy(work);
}

// ---- the outcome

/// Returns a work that has a result, because it is finished and ok, or in doubt and found to be
/// committed; any other work is an error.
fn committed(handle: ?*Work) status.Error!*Work {
    const work = try usable(handle);
    if (work.finished.is_set()) switch (work.operation.status) {
        .ok => return work,
        .in_doubt => if (work.resolved.is_set() and work.operation.committed == true) return work,
        else => {},
    };
    return status.fail(
        .invalid_usage,
        "there is no outcome: the operation is not finished, or it failed",
        .{},
    );
}

pub const pccl_work_outcome = status.C(read_outcome).call;

fn read_outcome(handle: ?*Work, outcome: ?*Outcome) status.Error!void {
    const operation = (try committed(handle)).operation;
    const to = outcome orelse return status.is_null("outcome");
    var digest: [16]u8 = undefined;
    std.mem.writeInt(u128, &digest, operation.digest(), .little);
    try argument.write(Outcome, "pccl_outcome_t", to, .{
        .size = undefined,
        .epoch = operation.op.epoch,
        .tag = base.Pair.user_tag_of(operation.op.id.tag),
        .sequence = operation.op.id.sequence,
        .attempts = operation.op.attempts,
        .range_count = operation.range_count(),
        .digest = digest,
        .bytes_sent = if (operation.moves()) |x| x.bytes_sent else 0,
        .bytes_received = if (operation.moves()) |x| x.bytes_received else 0,
        .duration_ns = operation.finished_at - operation.started_at,
        .predicted_ns = operation.figures.predicted_ns,
        .bound_ns = operation.figures.bound_ns,
        .plan = @intFromEnum(operation.figures.way),
        .reserved = 0,
    });
}

pub const pccl_work_range = status.C(read_range).call;

fn read_range(
    handle: ?*Work,
    index: u32,
    range: ?*OutcomeRange,
    contributors: ?[*]PeerIdBytes,
    capacity: u32,
) status.Error!void {
    const operation = (try committed(handle)).operation;
    const to = range orelse return status.is_null("range");
    if (contributors == null and capacity > 0) return status.is_null("contributors");
    const found = operation.range(index) orelse return status.bad_argument(
        "range {d} does not exist; the outcome has {d}",
        .{ index, operation.range_count() },
    );
    try argument.write(OutcomeRange, "pccl_outcome_range_t", to, .{
        .size = undefined,
        .begin = found.begin,
        .end = found.end,
        .contributor_count = found.contributors.count(),
    });
    var written: u32 = 0;
    for (operation.member_ids(), 0..) |id, rank| {
        if (!found.contributors.has(rank)) continue;
        if (written == capacity) return;
        contributors.?[written].bytes = id.bytes;
        written += 1;
    }
}

// ---- waiting, reading and destroying in one call

pub const pccl_work_finish = status.C(finish).call;

fn finish(
    handle: ?*?*Work,
    timeout_ns: u64,
    outcome: ?*Outcome,
    range: ?*OutcomeRange,
    contributors: ?[*]PeerIdBytes,
    capacity: u32,
) status.Error!void {
    const to = handle orelse return status.is_null("work");
    const work = try usable(to.*);
    const part = range orelse return status.is_null("range");
    try wait(work, timeout_ns);
    try read_outcome(work, outcome);
    const count = work.operation.range_count();
    if (count == 0) {
        const none = std.mem.zeroes(OutcomeRange);
        try argument.write(OutcomeRange, "pccl_outcome_range_t", part, none);
    } else {
        try read_range(work, 0, part, contributors, capacity);
        const all = work.operation.range(0).?.contributors.count();
        if (count > 1 or all > capacity) return; // the work stays, because there is more to read
    }
    pccl_work_destroy(work);
    to.* = null;
}
