//! comm: a peer of PCCL 1.0 (include/compat/pccl.h), by the functions of include/pccl.h.
//!
//! Every peer is in one group, the run, whose safe points all pass together: pcclUpdateTopology.
//! There all tell their peer groups, and make a sub-group for each, unless there is only one. World
//! sizes change where all members learn of it alike: there, and in the outcome of a reduction
//! (reduce.zig). The Python package for PCCL 1.0, frontends/compat, does the same.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const collective = @import("../collective.zig");
const comm_file = @import("../comm.zig");
const coordinator_file = @import("../coordinator.zig");
const status = @import("../status.zig");
const work_file = @import("../work.zig");
const environment = @import("environment.zig");
const master = @import("master.zig");
const reduce = @import("reduce.zig");
const words = @import("words.zig");
const Error = words.Error;
const Group = comm_file.Comm;
const PeerIdBytes = comm_file.PeerIdBytes;
const Result = words.Result;
const pccl_all_gather_async = collective.Named("pccl_all_gather_async").function;
const pccl_all_reduce_async = collective.Named("pccl_all_reduce_async").function;

const gpa = std.heap.c_allocator;
/// Where nothing else is said, peers listen where those of PCCL 1.0 do.
const ports_default = "48149-49148";
const connect_ns = std.time.ns_per_s;
/// Without PCCL_RECONNECT_TIMEOUT: a master that is gone fails calls after this time.
const reconnect_timeout_ns = 5 * std.time.ns_per_s;
/// Tags that no program has.
const split_tag = 1 << 62;
const pending_tag = split_tag + 1;

/// pcclCommCreateParams_t
pub const CreateParams = extern struct {
    master_address: master.SocketAddress,
    peer_group: u32,
    p2p_connection_pool_size: u32,
};

/// pcclComm_t
pub const Comm = struct {
    token: [token_bytes_max:0]u8,
    peer_group: u32,
    /// Guards `sizes` and `flying`, which threads that reduce share with the one of the calls.
    lock: net.lock.FairLock = .{},
    sizes: Sizes = .{},
    flying: std.ArrayList(reduce.Flying) = .empty,
    run: ?*Group = null,
    /// The peer group; null before pcclConnect, and after an update that has failed half way.
    group: ?*Group = null,

    const token_bytes_max = 512;

    pub fn size(comm: *Comm) u32 {
        comm.lock.lock();
        defer comm.lock.unlock();
        return comm.sizes.own;
    }

    /// Ends what is in the peer group, and leaves it.
    fn drop_group(comm: *Comm) void {
        reduce.settle_all(comm);
        if (comm.group != comm.run) comm_file.pccl_comm_destroy(comm.group);
        comm.group = null;
    }
};

/// Members of each peer group, as all members know them.
const Sizes = struct {
    own: u32 = 0,
    others: u32 = 0,
    groups: u32 = 0,
    largest_other: u32 = 0,

    /// `said` has the peer groups of all members.
    fn count(said: []const Said, peer_group: u32) Sizes {
        var sizes: Sizes = .{};
        for (said, 0..) |one, rank| {
            if (one.is_lost) continue;
            var members: u32 = 0;
            const is_counted = for (said, 0..) |other, at| {
                if (other.is_lost or other.peer_group != one.peer_group) continue;
                if (at < rank) break true;
                members += 1;
            } else false;
            if (is_counted) continue;
            sizes.groups += 1;
            if (one.peer_group == peer_group) {
                sizes.own = members;
            } else {
                sizes.others += members;
                sizes.largest_other = @max(sizes.largest_other, members);
            }
        }
        return sizes;
    }
};

/// A member's word at the safe point. It travels, so its fields are checked nowhere: any is right.
const Said = packed struct(u64) {
    peer_group: u32,
    /// It is in no peer group yet, so all are made anew.
    is_groupless: bool,
    is_lost: bool = false,
    padding: u30 = 0,
};

var is_initialized: std.atomic.Value(bool) = .init(false);

pub fn pcclInit() callconv(.c) Result {
    is_initialized.store(true, .release);
    return .success;
}

pub fn usable(handle: ?*Comm) Error!*Comm {
    if (!is_initialized.load(.acquire))
        return words.refuse(error.NotInitialized, "call pcclInit first", .{});
    return handle orelse words.is_null("communicator");
}

/// The handle of a call for which pcclConnect comes first.
pub fn connected(handle: ?*Comm) Error!*Comm {
    const comm = try usable(handle);
    if (comm.run == null)
        return words.refuse(error.InvalidUsage, "call pcclConnect first", .{});
    if (comm.group == null) return words.refuse(
        error.InvalidUsage,
        "pcclUpdateTopology has failed half way: call it again first",
        .{},
    );
    return comm;
}

// ---- create and destroy

pub const pcclCreateCommunicator = words.C(create).call;

fn create(params: ?*const CreateParams, comm_out: ?**Comm) Error!void {
    if (!is_initialized.load(.acquire))
        return words.refuse(error.NotInitialized, "call pcclInit first", .{});
    const given = params orelse return words.is_null("params");
    const out = comm_out orelse return words.is_null("comm_out");
    const comm = gpa.create(Comm) catch return words.out_of_memory();
    errdefer gpa.destroy(comm);
    comm.* = .{ .token = @splat(0), .peer_group = given.peer_group };
    if (environment.text_of("PCCL_TOKEN")) |own| {
        _ = coordinator_file.read_token(own) catch return error.InvalidArgument;
        // Read, so it is no longer than this.
        const text = std.mem.trim(u8, std.mem.span(own), " \t\r\n");
        @memcpy(comm.token[0..text.len], text);
    } else {
        var room: master.AddressText = undefined;
        const address = try given.master_address.write(&room);
        const make = coordinator_file.pccl_token_create;
        const made = make(address, master.run_id, &comm.token, comm.token.len);
        try words.check(made, error.InvalidArgument);
    }
    out.* = comm;
}

pub const pcclDestroyCommunicator = words.C(destroy).call;

fn destroy(handle: ?*Comm) Error!void {
    const comm = try usable(handle);
    reduce.withdraw_all(comm);
    comm.drop_group();
    comm_file.pccl_comm_destroy(comm.run);
    gpa.destroy(comm);
}

// ---- the run

pub const pcclConnect = words.C(connect).call;

fn connect(handle: ?*Comm) Error!void {
    const lost = error.MasterConnectionFailed;
    const comm = try usable(handle);
    if (comm.run != null) return words.refuse(error.InvalidUsage, "it is connected", .{});
    var options = try options_of_environment();
    var label: [environment.label_bytes_max:0]u8 = undefined;
    if (options.label) |pattern| options.label = environment.filled_in(pattern, &label);
    var run: *Group = undefined;
    try words.check(comm_file.pccl_comm_create(&comm.token, &options, &run), lost);
    errdefer comm_file.pccl_comm_destroy(run);
    // The members of the run may come to their safe point after any time.
    var got: status.Status = .deadline_exceeded;
    while (got == .deadline_exceeded) got = comm_file.pccl_comm_admit_together(run, 0, null);
    try check(run, got, lost);
    try split(comm, run, lost);
    comm.run = run;
}

fn options_of_environment() Error!comm_file.CommOptions {
    var options = try environment.options(comm_file.CommOptions, "PCCL_");
    if (options.ports == null) options.ports = ports_default;
    options.connect_ns = connect_ns;
    // In PCCL 1.0 peers may be as late as they like, and a master that is gone fails all calls.
    if (options.deadline_ns == 0) options.deadline_ns = base.never;
    if (options.reconnect_timeout_ns == 0) options.reconnect_timeout_ns = reconnect_timeout_ns;
    return options;
}

pub const pcclUpdateTopology = words.C(update).call;

fn update(handle: ?*Comm) Error!void {
    const lost = error.UpdateTopologyFailed;
    const comm = try usable(handle);
    const run = comm.run orelse
        return words.refuse(error.InvalidUsage, "call pcclConnect first", .{});
    try expect_rest(run, lost);
    if (comm.group) |group| try expect_rest(group, lost);
    try check(run, comm_file.pccl_comm_admit_together(run, 0, null), lost);
    try split(comm, run, lost);
}

/// The error of a status of a call that all members of the group make. A failure after which this
/// peer is out of the group, such as the mismatch of a newcomer, is MasterConnectionFailed.
pub fn check(group: *Group, got: status.Status, lost: Error) Error!void {
    if (got == .ok) return;
    var now = sized(comm_file.CommInfo);
    // It succeeds on a group that is open, so the sentence of the failure stays.
    try words.check(comm_file.pccl_comm_info(group, &now), lost);
    return if (now.lost != .ok) error.MasterConnectionFailed else words.check(got, lost);
}

/// PendingAsyncOps unless nothing is in flight.
pub fn expect_rest(group: *Group, lost: Error) Error!void {
    var now = sized(comm_file.CommInfo);
    try words.check(comm_file.pccl_comm_info(group, &now), lost);
    if (now.operations_in_flight > 0) return words.refuse(
        error.PendingAsyncOps,
        "{d} reductions are in flight: await them first",
        .{now.operations_in_flight},
    );
}

/// Learns who is in which peer group. If one of them is in none yet, all are made anew.
fn split(comm: *Comm, run: *Group, lost: Error) Error!void {
    var said: [base.limits.peers_max]Said = undefined;
    var members: [base.limits.peers_max]PeerIdBytes = undefined;
    const count = @min(comm_file.pccl_comm_members(run, &members, members.len), members.len);
    const asked = try ask(run, &.{
        .peer_group = comm.peer_group,
        .is_groupless = comm.group == null,
    }, said[0..count], lost);

    const sizes: Sizes = .count(said[0..count], comm.peer_group);
    comm.lock.lock();
    comm.sizes = sizes;
    comm.lock.unlock();
    for (said[0..count]) |one| {
        if (!one.is_lost and one.is_groupless) break;
    } else return;

    comm.drop_group();
    if (sizes.groups == 1) {
        comm.group = run;
        return;
    }
    var founders: u32 = 0;
    for (said[0..count], members[0..count]) |one, member| {
        if (one.is_lost or one.peer_group != comm.peer_group) continue;
        members[founders] = member;
        founders += 1;
    }
    var name: [base.limits.name_bytes_max + 1]u8 = undefined;
    var options = sized(comm_file.CommOptions);
    options.group = try name_of(&name, comm.peer_group, &asked);
    var group: *Group = undefined;
    try words.check(
        comm_file.pccl_comm_subgroup(run, &members, founders, &options, &group),
        lost,
    );
    errdefer comm_file.pccl_comm_destroy(group);
    try words.check(comm_file.pccl_comm_admit(group, 0, null), lost);
    comm.group = group;
}

/// The name of a peer group's sub-group; peers in Python make the same one.
fn name_of(room: []u8, peer_group: u32, asked: *const work_file.Outcome) Error![*:0]const u8 {
    const run_name = std.mem.span(environment.text_of("PCCL_GROUP") orelse "default");
    const parts = .{ run_name, asked.epoch, peer_group, asked.sequence };
    return std.fmt.bufPrintZ(room, "{s}@{d}:{d}.{d}", parts) catch words.refuse(
        error.InvalidArgument,
        "PCCL_GROUP is too long for a run with several peer groups",
        .{},
    );
}

/// Gathers what all members say, and returns the outcome of this operation.
fn ask(run: *Group, own: *const Said, said: []Said, lost: Error) Error!work_file.Outcome {
    var options = sized(collective.CollectiveOptions);
    options.tag = split_tag;
    options.recovery = reduce.recovery_restart;
    const dtype = @intFromEnum(base.DType.u64);
    var begun: ?*net.Work = null;
    try words.check(pccl_all_gather_async(
        run,
        @ptrCast(own),
        @ptrCast(said.ptr),
        1,
        dtype,
        &options,
        &begun,
    ), lost);
    const work = begun.?;
    defer work_file.pccl_work_destroy(work);
    try check(run, reduce.end_of(work), lost);
    var outcome = sized(work_file.Outcome);
    try words.check(work_file.pccl_work_outcome(work, &outcome), lost);
    for (0..outcome.range_count) |index| {
        var range = sized(work_file.OutcomeRange);
        const number: u32 = @intCast(index);
        try words.check(work_file.pccl_work_range(work, number, &range, null, 0), lost);
        const is_lost = range.contributor_count == 0;
        for (said[@intCast(range.begin)..@intCast(range.end)]) |*one| one.is_lost = is_lost;
    }
    return outcome;
}

/// A zeroed struct of pccl.h that says its size.
pub fn sized(comptime T: type) T {
    var made = std.mem.zeroes(T);
    made.size = @sizeOf(T);
    return made;
}

// ---- looking

pub const pcclGetAttribute = words.C(get).call;

fn get(handle: ?*Comm, attribute: c_uint, out: ?*c_int) Error!void {
    const comm = try usable(handle);
    const to = out orelse return words.is_null("p_attribute_out");
    _ = try connected(comm);
    comm.lock.lock();
    const sizes = comm.sizes;
    comm.lock.unlock();
    to.* = @intCast(switch (attribute) {
        1 => sizes.own + sizes.others,
        2 => sizes.own,
        3 => sizes.groups,
        4 => @max(sizes.own, sizes.largest_other),
        else => return words.refuse(
            error.InvalidArgument,
            "there is no pcclAttribute_t {d}",
            .{attribute},
        ),
    });
}

pub const pcclArePeersPending = words.C(ask_pending).call;

fn ask_pending(handle: ?*Comm, pending_out: ?*bool) Error!void {
    const lost = error.RankConnectionLost;
    const comm = try usable(handle);
    const to = pending_out orelse return words.is_null("pending_out");
    const run = (try connected(comm)).run.?;
    var now = sized(comm_file.CommInfo);
    try words.check(comm_file.pccl_comm_info(run, &now), lost);
    var flag: [1]u8 = .{@intFromBool(now.pending > 0 or now.alive < now.world_size)};
    var options = sized(collective.CollectiveOptions);
    options.tag = pending_tag;
    options.op = @intFromEnum(base.ReduceOp.max);
    options.recovery = reduce.recovery_restart;
    const dtype = @intFromEnum(base.DType.u8);
    var work: ?*net.Work = null;
    try words.check(
        pccl_all_reduce_async(run, &flag, &flag, 1, dtype, &options, &work),
        lost,
    );
    defer work_file.pccl_work_destroy(work);
    try check(run, reduce.end_of(work.?), lost);
    to.* = flag[0] != 0;
}

pub const pcclOptimizeTopology = words.C(optimize).call;

/// Nothing moves: the ring is that of the ranks until there are others.
fn optimize(handle: ?*Comm) Error!void {
    const comm = try connected(handle);
    comm.lock.lock();
    defer comm.lock.unlock();
    if (comm.sizes.own + comm.sizes.others < 2)
        return words.refuse(error.InvalidUsage, "there is one peer", .{});
}

/// pcclBuildInfo_t
const BuildInfo = extern struct { has_cuda_support: bool, has_hip_support: bool };

pub fn pcclGetBuildInfo(info: ?*BuildInfo) callconv(.c) Result {
    const to = info orelse return words.code(words.is_null("info"));
    to.* = .{ .has_cuda_support = false, .has_hip_support = false };
    return .success;
}

test "sizes of peer groups, without those that are lost" {
    const said = [_]Said{
        .{ .peer_group = 7, .is_groupless = false },
        .{ .peer_group = 1, .is_groupless = false },
        .{ .peer_group = 7, .is_groupless = false, .is_lost = true },
        .{ .peer_group = 1, .is_groupless = true },
        .{ .peer_group = 3, .is_groupless = false },
        .{ .peer_group = 5, .is_groupless = false, .is_lost = true },
    };
    const sizes: Sizes = .count(&said, 7);
    try std.testing.expectEqual(
        Sizes{ .own = 1, .others = 3, .groups = 3, .largest_other = 2 },
        sizes,
    );
}

test "peers wait for each other without a limit, and for a master that is gone for 5 s" {
    const options = try options_of_environment();
    try std.testing.expectEqual(base.never, options.deadline_ns);
    try std.testing.expectEqual(5 * std.time.ns_per_s, options.reconnect_timeout_ns);
    try std.testing.expectEqual(std.time.ns_per_s, options.connect_ns);
    try std.testing.expectEqualStrings("48149-49148", std.mem.span(options.ports.?));
}

test "before pcclInit and before pcclConnect calls are refused" {
    is_initialized.store(false, .release);
    const expect = std.testing.expectEqual;
    var made: *Comm = undefined;
    const params: CreateParams = .{
        .master_address = .{
            .inet = .{ .protocol = 0, .ipv4 = .{ 127, 0, 0, 1 }, .ipv6 = @splat(0) },
            .port = 1,
        },
        .peer_group = 0,
        .p2p_connection_pool_size = 0,
    };
    try expect(.not_initialized, pcclCreateCommunicator(&params, &made));
    try expect(.not_initialized, pcclConnect(null));
    try expect(.success, pcclInit());
    try expect(.invalid_argument, pcclConnect(null));
    try expect(.invalid_argument, pcclCreateCommunicator(null, &made));
    try expect(.invalid_argument, pcclCreateCommunicator(&params, null));
    var portless = params;
    portless.master_address.port = 0;
    try expect(.invalid_argument, pcclCreateCommunicator(&portless, &made));
    portless.master_address.inet.protocol = 2;
    try expect(.invalid_argument, pcclCreateCommunicator(&portless, &made));
    try expect(.success, pcclCreateCommunicator(&params, &made));
    var number: c_int = 0;
    try expect(.invalid_usage, pcclGetAttribute(made, 1, &number));
    try expect(.invalid_argument, pcclGetAttribute(made, 1, null));
    try expect(.invalid_usage, pcclUpdateTopology(made));
    try expect(.invalid_usage, pcclOptimizeTopology(made));
    try expect(.success, pcclDestroyCommunicator(made));
}
