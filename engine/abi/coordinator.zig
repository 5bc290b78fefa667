//! coordinator: a coordinator in this process (net/coordinator_engine.zig), and the request for the
//! status of a run.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const protocol = @import("protocol");
const argument = @import("argument.zig");
const sentence = @import("sentence.zig");
const StateDir = @import("state_dir.zig").StateDir;
const status = @import("status.zig");
const token = @import("token.zig");
const Status = status.Status;
const limits = base.limits;

const gpa = std.heap.c_allocator;

pub const CoordinatorOptions = extern struct {
    size: usize,
    bind: ?[*:0]const u8,
    advertise: ?[*:0]const u8,
    run_id: ?*const [16]u8,
    min_world_size: u32,
    initial_world_size: u32,
    lanes_per_link: u32,
    chunk_bytes: u32,
    window_bytes: u64,
    heartbeat_ns: u64,
    silence_ns: u64,
    prepare_ns: u64,
    state_dir: ?[*:0]const u8,
    stall_warning_ns: u64,
    stall_ns: u64,
    memory_bytes: u64,
    probe: c_uint,
    reserved: u32,
};

/// pccl_coordinator_t
pub const Coordinator = struct {
    engine: *net.CoordinatorEngine,
    pid: std.c.pid_t,
    token: [token_bytes_max:0]u8,

    const token_bytes_max = 512;
};

pub const pccl_coordinator_create = status.Secret(create).call;

noinline fn create(
    options: ?*const CoordinatorOptions,
    coordinator: ?**Coordinator,
) status.Error!void {
    const out = coordinator orelse return status.is_null("coordinator");
    var given = try argument.sized(CoordinatorOptions, "pccl_coordinator_options_t", options);
    const bind = try argument.optional_address(given.bind, "bind");
    const advertise = try argument.optional_address(given.advertise, "advertise");
    var place: sentence.Start = .{
        .own = .{ .bind = bind orelse "127.0.0.1:0", .advertise = advertise },
    };
    // Without a port, any free one.
    var endpoint = net.address.Endpoint.parse_with_port(place.own.bind, 0) catch
        return sentence.start_coordinator(error.BadAddress, &place);
    const state = try StateDir.open(given.state_dir);
    // The engine takes it over.
    var journal: ?*net.JournalFile = if (state) |*dir| dir.file else null;
    defer if (journal) |file| file.close();
    var run_id = if (given.run_id) |id| id.* else net.random.array(16);
    if (state) |*dir| {
        place.path = dir.path;
        place.settings = if (dir.settings) |*of_run| of_run else null;
        try dir.settle(&given, &run_id, &endpoint, &place.own);
    }

    const self = net.secret.allocator.create(Coordinator) catch return status.out_of_memory();
    errdefer net.secret.allocator.destroy(self); // it has the token
    self.pid = std.c.getpid();
    self.engine = net.CoordinatorEngine.create(gpa, .{
        .bind = endpoint,
        .advertise = place.own.advertise,
        .journal = journal,
        .trouble = &place.trouble,
        .disk = net.fault.Disk.from_environment() catch return status.fail(
            .invalid_argument,
            "PCCL_FAULT_DISK is \"{s}\"; it must be seconds[:writes], for example 2.5:3",
            .{std.mem.span(std.c.getenv("PCCL_FAULT_DISK").?)},
        ),
        .protocol = try protocol_options(&given, run_id),
    }) catch |err| return sentence.start_coordinator(err, &place);
    journal = null;
    errdefer self.engine.destroy();
    try token.put(run_id, self.engine.reached_at(), &self.token, self.token.len);
    out.* = self;
}

fn protocol_options(
    given: *const CoordinatorOptions,
    run_id: base.RunId,
) status.Error!protocol.Coordinator.Options {
    var options: protocol.Coordinator.Options = .{ .run_id = run_id };
    const world_range = .{ 1, limits.peers_max };
    options.min_world_size = try within(given, "min_world_size", 1, world_range);
    options.initial_world_size = try within(given, "initial_world_size", 1, world_range);
    if (given.lanes_per_link > limits.lanes_per_link_max) return status.fail(
        .invalid_argument,
        "lanes_per_link is {d}; it must be 1 to {d}, or 0 for auto",
        .{ given.lanes_per_link, limits.lanes_per_link_max },
    );
    options.lanes = @intCast(given.lanes_per_link);
    const chunk_range = .{ limits.chunk_bytes_min, limits.frame_payload_bytes_max };
    options.chunk_bytes = try within(given, "chunk_bytes", options.chunk_bytes, chunk_range);
    if (!std.math.isPowerOfTwo(options.chunk_bytes)) return status.fail(
        .invalid_argument,
        "chunk_bytes is {d}; it must be a power of two",
        .{options.chunk_bytes},
    );
    if (given.window_bytes != 0) options.windows_bytes = given.window_bytes;
    if (options.windows_bytes > limits.windows_bytes_max) return status.fail(
        .invalid_argument,
        "window_bytes is {d}; it must be 1 to {d}",
        .{ options.windows_bytes, limits.windows_bytes_max },
    );
    options.window_bytes = @min(options.windows_bytes, limits.window_bytes_first);
    if (given.memory_bytes != 0) options.memory = given.memory_bytes;
    if (options.memory < limits.queues_bytes_min) return status.fail(
        .invalid_argument,
        "memory_bytes is {d}; it must be at least {d} MiB",
        .{ options.memory, limits.queues_bytes_min / limits.MiB },
    );
    if (given.reserved != 0) return status.fail(
        .invalid_argument,
        "the reserved field of pccl_coordinator_options_t is {d}: begin with " ++
            "PCCL_COORDINATOR_OPTIONS_INIT",
        .{given.reserved},
    );
    const probe = try argument.word(argument.Probe, given.probe, "probe", "pccl_probe_t");
    options.probes = probe == .auto;
    try take_times(given, &options);
    return options;
}

fn take_times(
    given: *const CoordinatorOptions,
    options: *protocol.Coordinator.Options,
) status.Error!void {
    if (given.heartbeat_ns != 0) options.heartbeat_ns = given.heartbeat_ns;
    if (given.silence_ns != 0) options.silence_ns = given.silence_ns;
    if (given.prepare_ns != 0) options.prepare_ns = given.prepare_ns;
    // No shorter than the coordinator can tell.
    options.stall_warning_ns = @max(options.stall_warning_ns, options.heartbeat_ns);
    if (given.stall_warning_ns != 0) options.stall_warning_ns = given.stall_warning_ns;
    options.stall_ns = given.stall_ns;
    inline for (.{
        "heartbeat_ns",
        "silence_ns",
        "prepare_ns",
        "stall_warning_ns",
        "stall_ns",
    }) |name| {
        if (@field(options, name) > limits.interval_ns_max) return status.fail(
            .invalid_argument,
            name ++ " is {d}; it must be at most seven days, {d}",
            .{ @field(options, name), limits.interval_ns_max },
        );
    }
    if (options.heartbeat_ns < limits.heartbeat_ns_min) return status.fail(
        .invalid_argument,
        "heartbeat_ns is {d}; it must be at least a millisecond, {d}",
        .{ options.heartbeat_ns, limits.heartbeat_ns_min },
    );
    if (options.silence_ns / 3 < options.heartbeat_ns) return status.fail(
        .invalid_argument,
        "silence ({d} s) must be at least three times heartbeat ({d} s)",
        .{ seconds(options.silence_ns), seconds(options.heartbeat_ns) },
    );
    if (options.stall_warning_ns < options.heartbeat_ns) return status.fail(
        .invalid_argument,
        "stall_warning ({d} s) must be at least a heartbeat ({d} s)",
        .{ seconds(options.stall_warning_ns), seconds(options.heartbeat_ns) },
    );
    if (options.stall_ns != 0 and options.stall_ns < options.stall_warning_ns) return status.fail(
        .invalid_argument,
        "stall ({d} s) must be at least stall_warning ({d} s), so that nobody is let go unnamed",
        .{ seconds(options.stall_ns), seconds(options.stall_warning_ns) },
    );
}

fn seconds(duration_ns: u64) f64 {
    return @as(f64, @floatFromInt(duration_ns)) / std.time.ns_per_s;
}

/// 0 stands for the default.
fn within(
    given: *const CoordinatorOptions,
    comptime name: []const u8,
    default: u32,
    range: [2]u32,
) status.Error!u32 {
    const value = @field(given, name);
    if (value == 0) return default;
    if (value >= range[0] and value <= range[1]) return value;
    return status.fail(
        .invalid_argument,
        name ++ " is {d}; it must be {d} to {d}",
        .{ value, range[0], range[1] },
    );
}

pub fn pccl_coordinator_token(coordinator: ?*const Coordinator) callconv(.c) ?[*:0]const u8 {
    return if (coordinator) |self| &self.token else null;
}

pub fn pccl_coordinator_port(coordinator: ?*const Coordinator) callconv(.c) u16 {
    return if (coordinator) |self| self.engine.port else 0;
}

pub fn pccl_coordinator_destroy(coordinator: ?*Coordinator) callconv(.c) void {
    const self = coordinator orelse return;
    // In a forked child the thread does not exist: the memory is left to the end of the process.
    if (self.pid != std.c.getpid()) return;
    self.engine.destroy();
    net.secret.allocator.destroy(self);
}

// ---- status

pub fn pccl_run_status(
    token_text: ?[*:0]const u8,
    timeout_ns: u64,
    json: ?[*]u8,
    capacity: usize,
    length: ?*usize,
) callconv(.c) Status {
    return status.cleared(ask(token_text, .none, timeout_ns, json, capacity, length));
}

pub fn pccl_run_dial_back(
    token_text: ?[*:0]const u8,
    peer: ?*const [16]u8,
    timeout_ns: u64,
    json: ?[*]u8,
    capacity: usize,
    length: ?*usize,
) callconv(.c) Status {
    const id = peer orelse return status.code(status.fail(.invalid_argument, "peer is NULL", .{}));
    return status.cleared(ask(token_text, .{ .bytes = id.* }, timeout_ns, json, capacity, length));
}

noinline fn ask(
    token_text: ?[*:0]const u8,
    dial_back: base.PeerId,
    timeout_ns: u64,
    json: ?[*]u8,
    capacity: usize,
    length: ?*usize,
) status.Error!void {
    const value = try token.read(token_text);
    const default_ns = 5 * std.time.ns_per_s;
    const answer = net.status_client.ask(gpa, .{
        .endpoint = net.address.Endpoint.parse(value.address()) catch unreachable, // token.read has
        .run_id = value.run_id,
        .deadline = net.clock.after(if (timeout_ns == 0) default_ns else timeout_ns),
        .seed = net.random.seed(),
        .dial_back = dial_back,
    }) catch |err| return sentence.ask_status(err, value.address());
    defer gpa.free(answer);
    if (length) |to| to.* = answer.len;
    const fits = if (json) |to| argument.copy(answer, to, capacity) else false;
    if (!fits) return status.fail(
        .invalid_argument,
        "the status has {d} bytes with its terminating zero, and capacity is {d}: ask again " ++
            "with more",
        .{ answer.len + 1, if (json == null) 0 else capacity },
    );
}

test "a coordinator starts, tells how it is, and refuses bad options" {
    var coordinator: *Coordinator = undefined;
    try std.testing.expectEqual(.ok, pccl_coordinator_create(null, &coordinator));
    defer pccl_coordinator_destroy(coordinator);
    try std.testing.expect(pccl_coordinator_port(coordinator) != 0);
    const run_token = pccl_coordinator_token(coordinator);
    var length: usize = 0;
    var json: [4096]u8 = undefined;
    try std.testing.expectEqual(.ok, pccl_run_status(run_token, 0, &json, json.len, &length));
    try std.testing.expectEqual(std.mem.indexOfScalar(u8, &json, 0).?, length);
    const cut = pccl_run_status(run_token, 0, &json, 4, &length);
    try std.testing.expectEqual(.invalid_argument, cut);
    try std.testing.expect(length > 4);

    var options = std.mem.zeroes(CoordinatorOptions);
    options.size = @sizeOf(CoordinatorOptions);
    var other: *Coordinator = undefined;
    const Case = struct { field: []const u8, value: u64 };
    inline for ([_]Case{
        .{ .field = "lanes_per_link", .value = 65 },
        .{ .field = "chunk_bytes", .value = 3000 },
        .{ .field = "chunk_bytes", .value = 1 << 20 },
        .{ .field = "min_world_size", .value = 513 },
        .{ .field = "silence_ns", .value = 1 },
        .{ .field = "window_bytes", .value = 1 << 40 },
        .{ .field = "prepare_ns", .value = 8 * std.time.ns_per_day },
        .{ .field = "memory_bytes", .value = limits.queues_bytes_min - 1 },
        .{ .field = "stall_warning_ns", .value = 1 },
        .{ .field = "stall_ns", .value = 1 },
        .{ .field = "stall_ns", .value = 8 * std.time.ns_per_day },
        .{ .field = "probe", .value = 2 },
        .{ .field = "reserved", .value = 1 },
        .{ .field = "size", .value = 3 },
    }) |case| {
        var bad = options;
        @field(bad, case.field) = case.value;
        try std.testing.expectEqual(.invalid_argument, pccl_coordinator_create(&bad, &other));
    }
    var bind: [32]u8 = undefined;
    const taken = try std.fmt.bufPrintZ(&bind, "127.0.0.1:{d}", .{coordinator.engine.port});
    options.bind = taken.ptr;
    try std.testing.expectEqual(.system_error, pccl_coordinator_create(&options, &other));
    options.bind = "no port";
    try std.testing.expectEqual(.invalid_argument, pccl_coordinator_create(&options, &other));
}
