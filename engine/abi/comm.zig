//! comm: communicators: connecting, joining, safe points, leaving, information
//! (net/membership.zig). Collectives on them: collective.zig.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const net = @import("net");
const session = @import("session");
const argument = @import("argument.zig");
const coordinator_file = @import("coordinator.zig");
const library = @import("library.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const Status = status.Status;
const PeerId = base.PeerId;

const gpa = std.heap.c_allocator;
const deadline_ns_default = 10 * std.time.ns_per_min;
const connect_ns_default = 30 * std.time.ns_per_s;
const workers = std.fmt.comptimePrint("{d}", .{net.Workers.threads_limit});

pub const CommOptions = extern struct {
    size: usize,
    group: ?[*:0]const u8,
    bind: ?[*:0]const u8,
    advertise: ?[*:0]const u8,
    initial_world_size: u32,
    deadline_ns: u64,
    connect_ns: u64,
    peer_id: ?*const [16]u8,
    interrupted: ?*const fn (?*anyopaque) callconv(.c) c_int,
    interrupted_context: ?*anyopaque,
    ports: ?[*:0]const u8,
    label: ?[*:0]const u8,
    reconnect_timeout_ns: u64,
    send_rate: u64,
    congestion: c_uint,
    probe: c_uint,
    send_rates: ?[*:0]const u8,
};

pub const Admission = extern struct {
    size: usize,
    epoch: u64,
    rank: u32,
    world_size: u32,
    joined_count: u32,
    left_count: u32,
    changed: u32,
};

pub const CommInfo = extern struct {
    size: usize,
    epoch: u64,
    attempt: u32,
    rank: u32,
    world_size: u32,
    alive: u32,
    pending: u32,
    operations_in_flight: u32,
    peer_id: [16]u8,
    bytes_sent: u64,
    bytes_received: u64,
    lost: Status,
    reserved: u32,
};

pub const Limit = extern struct { from: u32, to: u32 };
/// The end of a limit that stands for all links of the other end, PCCL_PLAN_ALL_LINKS of pccl.h.
const all_links = std.math.maxInt(u32);

pub const CommPlan = extern struct {
    size: usize,
    epoch: u64,
    attempt: u32,
    kind: u32,
    small_bytes: u64,
    predicted_ns: u64,
    bound_ns: u64,
    world_size: u32,
    order_count: u32,
    limit_count: u32,
    reserved: u32,
    limits: [8]Limit,
    shares: [base.limits.full_mesh_max]u8,
    order: [base.limits.peers_max]u16,
};

/// The type pccl_comm_t of pccl.h.
pub const Comm = struct {
    membership: *net.Membership,
    /// The deadline in nanoseconds of calls that name none; any thread may set it.
    deadline_ns: std.atomic.Value(u64),
    interrupt: net.lock.Interrupt,

    /// The instant of a call's deadline, which is relative; 0 stands for the communicator's
    /// default.
    pub fn deadline(comm: *const Comm, deadline_ns: u64) base.Instant {
        const default_ns = comm.deadline_ns.load(.monotonic);
        return net.clock.after(if (deadline_ns == 0) default_ns else deadline_ns);
    }

    /// Why this peer is no member any more; null: it is a member, or has closed the communicator
    /// itself.
    pub fn lost(comm: *const Comm) ?status.Error {
        const why = comm.membership.lost() orelse return null;
        return sentence.membership(why, comm.membership.why_removed());
    }
};

/// Checks the handle of a call; a forked child may not use its parent's handle.
pub fn usable(handle: ?*Comm) status.Error!*Comm {
    const comm = handle orelse return status.is_null("comm");
    if (comm.membership.engine.forked()) return sentence.forked();
    return comm;
}

// ---- create and join

pub const pccl_comm_create = status.Secret(create).call;

noinline fn create(
    token_text: ?[*:0]const u8,
    options: ?*const CommOptions,
    comm: ?**Comm,
) status.Error!void {
    const out = comm orelse return status.is_null("comm");
    const value = try coordinator_file.read_token(token_text);
    const given = try argument.sized(CommOptions, "pccl_comm_options_t", options);
    const group = try group_name(&given);
    const bind = try argument.optional_address(given.bind, "bind");
    const advertise = try argument.optional_address(given.advertise, "advertise");
    const ports = try port_range(&given);
    library.choose_cpu_level() catch return status.bad_argument(
        "PCCL_CPU_LEVEL is \"{s}\", which this library does not know or this CPU cannot do",
        .{std.mem.span(std.c.getenv("PCCL_CPU_LEVEL").?)},
    );
    const interrupt: net.lock.Interrupt = .{
        .function = given.interrupted,
        .context = given.interrupted_context,
    };
    const connect_ns = if (given.connect_ns == 0) connect_ns_default else given.connect_ns;
    const place: sentence.Place = .{
        .at = value.address(),
        .own = .{ .bind = bind orelse ":0", .advertise = advertise, .ports = ports },
    };
    const engine = net.PeerEngine.create(gpa, .{
        // read_token has parsed the address before.
        .coordinator = net.address.Endpoint.parse(value.address()) catch unreachable,
        .run_id = value.run_id,
        .peer_id = try peer_id(&given),
        .label = try argument.peer_label(given.label),
        .bind = if (bind) |where| net.address.Endpoint.parse_with_port(where, 0) catch
            return sentence.create(error.BadAddress, place) else null,
        .ports = ports,
        .reconnect_timeout_ns = switch (given.reconnect_timeout_ns) {
            0 => base.never,
            else => |ns| ns,
        },
        .rates = try rates_of(&given),
        .congestion = try argument.word(
            net.tcp.Congestion,
            given.congestion,
            "congestion",
            "pccl_congestion_t",
        ),
        .probes = try argument.word(argument.Probe, given.probe, "probe", "pccl_probe_t") == .auto,
        .advertise = advertise,
        .connect_deadline = net.clock.after(connect_ns),
        .interrupt = interrupt,
        .workers = net.Workers.count_from_environment() catch
            return argument.bad_variable("PCCL_WORKERS", "a number of threads, 0 to " ++ workers),
        .fault = net.fault.Fault.from_environment() catch return argument.bad_variable(
            "PCCL_FAULT_POINT",
            "[stop=|panic=]<name>[:sequence[:fraction]], for example operation.settled:5:0.5",
        ),
        .system = net.tcp.System.from_environment() catch
            return argument.bad_variable("PCCL_FAULT_TCP", "bare, or not set"),
    }) catch |err| return sentence.create(err, place);
    defer engine.unreference(); // the membership holds the engine from now on
    out.* = try join_engine(engine, &given, .{
        .group = group,
        .interrupt = interrupt,
        .deadline_ns = if (given.deadline_ns == 0) deadline_ns_default else given.deadline_ns,
    });
}

fn port_range(options: *const CommOptions) status.Error!?net.socket.PortRange {
    const given = options.ports orelse return null;
    const longest = "65535-65535".len;
    const range = argument.bounded(given, longest) catch given[0..longest];
    return net.socket.PortRange.parse(range) catch return status.bad_argument(
        "ports is \"{s}\"; it must be a port or a range of them, 1 to 65535, as in 29400-29500",
        .{range},
    );
}

fn rates_of(options: *const CommOptions) status.Error!session.Rates {
    const rate = options.send_rate;
    const least = base.limits.send_rate_min;
    const most = base.limits.send_rate_max;
    if (rate != 0 and (rate < least or rate > most)) return status.bad_argument(
        "send_rate is {d}; it must be {d} to {d} bytes per second (25000000 is 200 Mbit/s), or " ++
            "0 for no limit",
        .{ rate, least, most },
    );
    var given: session.Rates = if (options.send_rates) |words|
        try argument.send_rates(words, "send_rates")
    else
        .{};
    if (rate != 0 and given.all != 0) return status.bad_argument(
        "send_rate is {d}, and send_rates has another rate for all peers together: give one",
        .{rate},
    );
    given.all = @max(given.all, rate);
    return given;
}

fn peer_id(options: *const CommOptions) status.Error!?base.PeerId {
    const id: base.PeerId = .{ .bytes = (options.peer_id orelse return null).* };
    if (id.eql(.none)) return status.bad_argument(
        "peer_id is all zeros, which stands for nobody: take random bytes, or NULL",
        .{},
    );
    return id;
}

fn group_name(options: *const CommOptions) status.Error![]const u8 {
    const given = options.group orelse return "default";
    const limit = base.limits.name_bytes_max;
    const name = argument.bounded(given, limit) catch
        return status.bad_argument("the group's name has more than {d} bytes", .{limit});
    if (name.len == 0) return status.bad_argument(
        "the name of the group is empty; it must have 1 to {d} bytes",
        .{limit},
    );
    if (!base.text.is_name(name)) return status.bad_argument(
        "the name of the group, \"{s}\", cannot be shown: it must be UTF-8 without control " ++
            "characters, line ends and marks that turn the writing",
        .{name},
    );
    return name;
}

const Join = struct {
    group: []const u8,
    interrupt: net.lock.Interrupt,
    deadline_ns: u64,
    founders: ?net.Membership.Founders = null,
};

fn join_engine(engine: *net.PeerEngine, options: *const CommOptions, how: Join) status.Error!*Comm {
    if (options.initial_world_size > base.limits.peers_max) return status.bad_argument(
        "initial_world_size is {d}; a run has at most {d} peers",
        .{ options.initial_world_size, base.limits.peers_max },
    );
    const comm = gpa.create(Comm) catch return status.out_of_memory();
    errdefer gpa.destroy(comm);
    var details: net.Membership.Failure = .{ .status = .ok };
    const membership = net.Membership.join(engine, .{
        .name = how.group,
        .initial_world_size = options.initial_world_size,
        .founders = how.founders,
        .deadline = net.clock.after(how.deadline_ns),
        .interrupt = how.interrupt,
    }, &details) catch |err| return sentence.join(err, &details, how.group);
    comm.* = .{
        .membership = membership,
        .deadline_ns = .init(how.deadline_ns),
        .interrupt = how.interrupt,
    };
    return comm;
}

pub const pccl_comm_join = status.C(join).call;

fn join(handle: ?*Comm, options: ?*const CommOptions, joined: ?**Comm) status.Error!void {
    const parent = try usable(handle);
    const out = joined orelse return status.is_null("joined");
    out.* = try join_beside(parent, options, null);
}

/// Joins a group of the run that the communicator `parent` is in.
fn join_beside(
    parent: *Comm,
    options: ?*const CommOptions,
    founders: ?net.Membership.Founders,
) status.Error!*Comm {
    const given = try argument.sized(CommOptions, "pccl_comm_options_t", options);
    _ = parent.membership.info() catch return sentence.closed();
    const own: net.lock.Interrupt = .{
        .function = given.interrupted,
        .context = given.interrupted_context,
    };
    return join_engine(parent.membership.engine, &given, .{
        .group = try group_name(&given),
        .interrupt = if (given.interrupted == null) parent.interrupt else own,
        .deadline_ns = switch (given.deadline_ns) {
            0 => parent.deadline_ns.load(.monotonic),
            else => |ns| ns,
        },
        .founders = founders,
    });
}

pub const pccl_comm_subgroup = status.C(make_subgroup).call;

fn make_subgroup(
    handle: ?*Comm,
    founders: ?[*]const PeerIdBytes,
    count: u32,
    options: ?*const CommOptions,
    subgroup: ?**Comm,
) status.Error!void {
    const parent = try usable(handle);
    const given = founders orelse return status.is_null("founders");
    const out = subgroup orelse return status.is_null("subgroup");
    if (count == 0 or count > base.limits.peers_max) return status.bad_argument(
        "count is {d}; a sub-group has 1 to {d} founders",
        .{ count, base.limits.peers_max },
    );
    var ids: [base.limits.peers_max]PeerId = undefined;
    for (given[0..count], ids[0..count]) |*id, *to| to.* = .{ .bytes = id.bytes };
    out.* = try join_beside(parent, options, .{
        .parent = parent.membership,
        .ids = ids[0..count],
    });
}

pub const pccl_comm_set_deadline = status.C(set_deadline).call;

fn set_deadline(handle: ?*Comm, deadline_ns: u64) status.Error!void {
    const comm = try usable(handle);
    const ns = if (deadline_ns == 0) deadline_ns_default else deadline_ns;
    comm.deadline_ns.store(ns, .monotonic);
}

// ---- leaving

pub const pccl_comm_close = status.C(close).call;

fn close(handle: ?*Comm) status.Error!void {
    const comm = try usable(handle);
    comm.membership.leave();
}

pub fn pccl_comm_destroy(handle: ?*Comm) callconv(.c) void {
    const comm = handle orelse return;
    // A forked child has no thread and no connections to close: the memory is left to the end of
    // the process.
    if (comm.membership.engine.forked()) return;
    comm.membership.release();
    gpa.destroy(comm);
}

// ---- safe points

pub const pccl_comm_admit = Admit(.alone).call;
pub const pccl_comm_admit_together = Admit(.together).call;

fn Admit(comptime how: session.How) type {
    return struct {
        fn call(comm: ?*Comm, deadline_ns: u64, admission: ?*Admission) callconv(.c) Status {
            return status.code(admit(comm, how, deadline_ns, admission));
        }
    };
}

fn admit(
    handle: ?*Comm,
    how: session.How,
    deadline_ns: u64,
    admission: ?*Admission,
) status.Error!void {
    const comm = try usable(handle);
    // Checked before the safe point is passed: afterwards a bad argument could not be repaired.
    if (admission) |to| try argument.check_size(Admission, "pccl_admission_t", to);
    const deadline = comm.deadline(deadline_ns);
    const result = comm.membership.admit(how, deadline, comm.interrupt) catch |err|
        return sentence.admit(err);
    const passed = switch (result) {
        .passed => |passed| passed,
        .failed => |why| {
            const late = why == .deadline_exceeded;
            if (late) if (comm.membership.attendance()) |count|
                return sentence.too_few_came(comm.membership.group.name, &count);
            var room: [800]u8 = undefined;
            return sentence.membership(why, if (late)
                comm.membership.why_late(&room)
            else
                comm.membership.why_removed());
        },
    };
    if (admission) |to| argument.write(Admission, "pccl_admission_t", to, .{
        .size = undefined,
        .epoch = passed.epoch,
        .rank = passed.rank,
        .world_size = passed.world_size,
        .joined_count = passed.joined,
        .left_count = passed.left,
        .changed = @intFromBool(passed.changed),
    }) catch unreachable; // `check_size` has checked it
}

pub const pccl_comm_pending_agreed = status.C(pending_agreed).call;

fn pending_agreed(handle: ?*Comm, deadline_ns: u64, pending: ?*u32) status.Error!void {
    const comm = try usable(handle);
    const to = pending orelse return status.is_null("pending");
    var work: net.Work = undefined;
    var answer: u32 = 0;
    work.begin_pending(comm.membership, &answer, comm.deadline(deadline_ns)) catch |err|
        return sentence.pending(err);
    defer work.deinit();
    // The session ends the wait at the deadline.
    _ = comm.interrupt.wait(&work.finished, base.never) catch work.withdraw();
    if (work.operation.status != .ok) return sentence.operation(work.operation);
    to.* = answer;
}

// ---- looking

pub const pccl_comm_info = status.C(look).call;

fn look(handle: ?*Comm, info: ?*CommInfo) status.Error!void {
    const comm = try usable(handle);
    const to = info orelse return status.is_null("info");
    const now = comm.membership.info() catch return sentence.closed();
    try argument.write(CommInfo, "pccl_comm_info_t", to, .{
        .size = undefined,
        .epoch = now.epoch,
        .attempt = now.attempt,
        .rank = now.rank,
        .world_size = now.world_size,
        .alive = now.alive,
        .pending = now.pending,
        .operations_in_flight = now.in_flight,
        .peer_id = comm.membership.engine.session.self.bytes,
        .bytes_sent = now.bytes_sent,
        .bytes_received = now.bytes_received,
        .lost = if (now.lost) |why| status.of(why) else .ok,
        .reserved = 0,
    });
}

pub const pccl_comm_plan = status.C(look_at_plan).call;

fn look_at_plan(handle: ?*Comm, plan: ?*CommPlan) status.Error!void {
    const comm = try usable(handle);
    const to = plan orelse return status.is_null("plan");
    const now = comm.membership.paths_now() catch return sentence.closed();
    const told = if (now) |*it| plan_of(it) else std.mem.zeroes(CommPlan);
    try argument.write(CommPlan, "pccl_comm_plan_t", to, told);
}

pub const pccl_comm_optimize_topology = status.C(optimize_topology).call;

fn optimize_topology(handle: ?*Comm, deadline_ns: u64, plan: ?*CommPlan) status.Error!void {
    const comm = try usable(handle);
    if (plan) |to| try argument.check_size(CommPlan, "pccl_comm_plan_t", to);
    const over = comm.membership.optimize(comm.deadline(deadline_ns), comm.interrupt) catch |err|
        return sentence.optimize(err);
    if (over != .ok) return sentence.membership(over, comm.membership.why_removed());
    if (plan) |to| try look_at_plan(comm, to);
}

fn plan_of(now: *const session.PathsNow) CommPlan {
    const paths = &now.paths;
    const ranks = if (paths.has_ring) paths.order.slice() else &.{};
    const is_ring = paths.has_ring and paths.plan == .ring;
    const limits = now.explained.limited_by();
    var told = std.mem.zeroes(CommPlan);
    told.epoch = now.epoch;
    told.attempt = now.attempt;
    told.kind = @intFromEnum(if (is_ring) base.Plan.ring else .direct);
    told.small_bytes = paths.small_bytes;
    told.predicted_ns = now.explained.figures.predicted_ns;
    told.bound_ns = now.explained.figures.bound_ns;
    told.world_size = now.world_size;
    told.limit_count = @intCast(limits.len);
    for (limits, told.limits[0..limits.len]) |limit, *to|
        to.* = .{ .from = limit.from orelse all_links, .to = limit.to orelse all_links };
    told.order_count = @intCast(ranks.len);
    @memcpy(told.order[0..ranks.len], ranks);
    told.shares = paths.shares.of;
    return told;
}

pub const pccl_comm_members = Listed(.members).call;
pub const pccl_comm_joined = Listed(.joined).call;
pub const pccl_comm_left = Listed(.left).call;
pub const pccl_comm_not_entered = Listed(.not_entered).call;
pub const pccl_comm_label = status.C(name_of).call;

fn name_of(
    handle: ?*Comm,
    peer: ?*const PeerIdBytes,
    to: ?[*]u8,
    capacity: usize,
) status.Error!void {
    const comm = try usable(handle);
    const id = peer orelse return status.is_null("peer");
    const room = to orelse return status.is_null("label");
    const found = comm.membership.label(.{ .bytes = id.bytes });
    if (!argument.copy(found.slice(), room, capacity)) return status.bad_argument(
        "the label has {d} bytes and a terminating zero, and there is room for {d}",
        .{ found.length, capacity },
    );
}

/// The type pccl_peer_id_t of pccl.h.
pub const PeerIdBytes = extern struct { bytes: [16]u8 };

fn Listed(comptime which: net.Membership.List) type {
    return struct {
        fn call(handle: ?*Comm, ids: ?[*]PeerIdBytes, capacity: u32) callconv(.c) u32 {
            const comm = usable(handle) catch return 0;
            const room = if (ids == null) 0 else capacity;
            var found: [base.limits.peers_max]PeerId = undefined;
            const total = comm.membership.list(which, &found);
            for (found[0..@min(total, room)], 0..) |id, index| ids.?[index].bytes = id.bytes;
            return @intCast(total);
        }
    };
}
