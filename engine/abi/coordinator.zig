//! coordinator: a coordinator in this process (net/coordinator_engine.zig): its options, which the
//! run in its state directory completes; the token that its peers join with (wire/token.zig); and
//! the request for the status of a run.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const protocol = @import("protocol");
const wire = @import("wire");
const argument = @import("argument.zig");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const JournalFile = net.journal.JournalFile;
const Settings = protocol.journal.Settings;
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
    plans: c_uint,
};

/// The type pccl_coordinator_t of pccl.h.
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
    // An address without a port means any free port.
    var endpoint = net.address.Endpoint.parse_with_port(place.own.bind, 0) catch
        return sentence.start_coordinator(error.BadAddress, &place);
    const state = try StateDir.open(given.state_dir);
    // A successful create of the engine takes the journal over.
    var journal: ?*JournalFile = if (state) |*dir| dir.file else null;
    defer if (journal) |file| file.close();
    var run_id = if (given.run_id) |id| id.* else net.random.array(16);
    if (state) |*dir| {
        place.path = dir.path;
        place.settings = if (dir.settings) |*of_run| of_run else null;
        try dir.settle(&given, &run_id, &endpoint, &place.own);
    }

    const self = net.secret.allocator.create(Coordinator) catch return status.out_of_memory();
    errdefer net.secret.allocator.destroy(self); // `self` has the token
    self.pid = std.c.getpid();
    self.engine = net.CoordinatorEngine.create(gpa, .{
        .bind = endpoint,
        .advertise = place.own.advertise,
        .journal = journal,
        .trouble = &place.trouble,
        .disk = net.fault.Disk.from_environment() catch return argument.bad_variable(
            "PCCL_FAULT_DISK",
            "seconds[:writes], for example 2.5:3",
        ),
        .protocol = try protocol_options(&given, run_id),
    }) catch |err| return sentence.start_coordinator(err, &place);
    journal = null;
    errdefer self.engine.destroy();
    try put_token(run_id, self.engine.reached_at(), &self.token, self.token.len);
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
    if (given.lanes_per_link > limits.lanes_per_link_max) return status.bad_argument(
        "lanes_per_link is {d}; it must be 1 to {d}, or 0 for auto",
        .{ given.lanes_per_link, limits.lanes_per_link_max },
    );
    options.lanes = @intCast(given.lanes_per_link);
    const chunk_range = .{ limits.chunk_bytes_min, limits.frame_payload_bytes_max };
    options.chunk_bytes = try within(given, "chunk_bytes", options.chunk_bytes, chunk_range);
    if (!std.math.isPowerOfTwo(options.chunk_bytes)) return status.bad_argument(
        "chunk_bytes is {d}; it must be a power of two",
        .{options.chunk_bytes},
    );
    if (given.window_bytes != 0) options.windows_bytes = given.window_bytes;
    if (options.windows_bytes > limits.windows_bytes_max) return status.bad_argument(
        "window_bytes is {d}; it must be 1 to {d}",
        .{ options.windows_bytes, limits.windows_bytes_max },
    );
    options.window_bytes = @min(options.windows_bytes, limits.window_bytes_first);
    if (given.memory_bytes != 0) options.memory = given.memory_bytes;
    if (options.memory < limits.queues_bytes_min) return status.bad_argument(
        "memory_bytes is {d}; it must be at least {d} MiB",
        .{ options.memory, limits.queues_bytes_min / limits.MiB },
    );
    const probe = try argument.word(argument.Probe, given.probe, "probe", "pccl_probe_t");
    options.probes = probe == .auto;
    const plans = try argument.word(argument.Plans, given.plans, "plans", "pccl_plans_t");
    if (plans == .fixed) options.plan_pause_ns = base.never;
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
    // The default warning comes no sooner than a heartbeat, before which the coordinator cannot
    // tell.
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
        if (@field(options, name) > limits.interval_ns_max) return status.bad_argument(
            name ++ " is {d}; it must be at most seven days, {d}",
            .{ @field(options, name), limits.interval_ns_max },
        );
    }
    if (options.heartbeat_ns < limits.heartbeat_ns_min) return status.bad_argument(
        "heartbeat_ns is {d}; it must be at least a millisecond, {d}",
        .{ options.heartbeat_ns, limits.heartbeat_ns_min },
    );
    if (options.silence_ns / 3 < options.heartbeat_ns) return status.bad_argument(
        "silence ({d} s) must be at least three times heartbeat ({d} s)",
        .{ seconds(options.silence_ns), seconds(options.heartbeat_ns) },
    );
    if (options.stall_warning_ns < options.heartbeat_ns) return status.bad_argument(
        "stall_warning ({d} s) must be at least a heartbeat ({d} s)",
        .{ seconds(options.stall_warning_ns), seconds(options.heartbeat_ns) },
    );
    const is_early = options.stall_ns != 0 and options.stall_ns < options.stall_warning_ns;
    if (is_early) return status.bad_argument(
        "stall ({d} s) must be at least stall_warning ({d} s), so that nobody is let go unnamed",
        .{ seconds(options.stall_ns), seconds(options.stall_warning_ns) },
    );
}

fn seconds(duration_ns: u64) f64 {
    return @as(f64, @floatFromInt(duration_ns)) / std.time.ns_per_s;
}

/// The value of an option, checked against its range; 0 stands for the default.
fn within(
    given: *const CoordinatorOptions,
    comptime name: []const u8,
    default: u32,
    range: [2]u32,
) status.Error!u32 {
    const value = @field(given, name);
    if (value == 0) return default;
    if (value >= range[0] and value <= range[1]) return value;
    return status.bad_argument(
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
    // A forked child does not have the engine's thread: the memory is left to the end of the
    // process.
    if (self.pid != std.c.getpid()) return;
    self.engine.destroy();
    net.secret.allocator.destroy(self);
}

// ---- the state directory

/// The state directory, which has the journal (net/journal.zig). The run in the journal decides the
/// options that the caller left open. An option that contradicts the run is an error: peers were
/// told one value, and would meet the other.
const StateDir = struct {
    path: [:0]const u8,
    file: *JournalFile,
    /// The settings of the run in the journal, which refer to bytes of the file; null: there is no
    /// run.
    settings: ?Settings,
    /// Peers were told the settings, so no option may differ from them.
    is_used: bool,

    /// Opens the directory; null if the options name none.
    pub fn open(path: ?[*:0]const u8) status.Error!?StateDir {
        const dir = try argument.optional_path(path, "state_dir") orelse return null;
        var trouble: net.journal.Trouble = undefined;
        const file = JournalFile.open(gpa, dir, &trouble) catch |err|
            return sentence.open_journal(err, dir, &trouble);
        // JournalFile.open has checked all records.
        return .{
            .path = dir,
            .file = file,
            .settings = protocol.journal.settings_of(file.content()) catch unreachable,
            .is_used = !(protocol.journal.is_unused(file.content()) catch unreachable),
        };
    }

    /// Fills in the options that the caller left open. Refuses an option that differs from what a
    /// peer has been told.
    pub fn settle(
        state: *const StateDir,
        given: *CoordinatorOptions,
        run_id: *base.RunId,
        endpoint: *net.address.Endpoint,
        own: *sentence.Own,
    ) status.Error!void {
        const settings = &(state.settings orelse return);
        inline for (.{
            .{ "min_world_size", "min_world_size" },
            .{ "initial_world_size", "initial_world_size" },
            .{ "lanes_per_link", "lanes" },
            .{ "chunk_bytes", "chunk_bytes" },
            .{ "window_bytes", "windows_bytes" },
            .{ "heartbeat_ns", "heartbeat_ns" },
            .{ "silence_ns", "silence_ns" },
            .{ "prepare_ns", "prepare_ns" },
            .{ "stall_warning_ns", "stall_warning_ns" },
            .{ "stall_ns", "stall_ns" },
        }) |pair| {
            const option = &@field(given, pair[0]);
            const decided = @field(settings, pair[1]);
            if (option.* == 0) option.* = decided;
            if (state.is_used and option.* != decided)
                return state.differs(pair[0], option.*, decided);
        }
        const same = if (given.run_id) |id|
            std.crypto.timing_safe.eql(base.RunId, id.*, settings.run_id)
        else
            true;
        // The message shows the beginning of each id only: the whole id lets a stranger join.
        if (state.is_used and !same) return status.bad_argument(
            "run_id begins with {s}, but {s} holds the run {s}: leave run_id out to go on with " ++
                "that run, or give another directory to begin a new one",
            .{ &base.short_run(given.run_id.?), state.path, &base.short_run(&settings.run_id) },
        );
        if (given.run_id == null) run_id.* = settings.run_id;
        const before = net.address.Endpoint.parse(settings.bind.data) catch {
            const makes_no_sense: net.journal.Trouble =
                .{ .refused = .{ .why = error.BadRecord, .offset = null } };
            return sentence.open_journal(
                error.JournalRefused,
                state.path,
                &makes_no_sense,
            );
        };
        if (given.bind == null) {
            endpoint.* = before;
            own.bind = settings.bind.data;
        }
        if (endpoint.port == 0) endpoint.port = before.port;
        if (state.is_used and endpoint.port != before.port)
            return state.differs("the port of bind", endpoint.port, before.port);
        const advertised = settings.advertise.data;
        if (own.advertise == null and advertised.len > 0) own.advertise = advertised;
    }

    fn differs(
        state: *const StateDir,
        comptime name: []const u8,
        given: u64,
        decided: u64,
    ) status.Error {
        const unit = "_ns";
        if (comptime std.mem.endsWith(u8, name, unit)) return state.differs_by(
            name[0 .. name.len - unit.len],
            .{ "{d} s", "{d} s" },
            seconds(given),
            seconds(decided),
        );
        // No option is 0 here, but the run may have 0 lanes: then its links choose.
        if (comptime std.mem.eql(u8, name, "lanes_per_link")) if (decided == 0)
            return state.differs_by(name, .{ "{d}", "{s}" }, given, "auto");
        return state.differs_by(name, .{ "{d}", "{d}" }, given, decided);
    }

    fn differs_by(
        state: *const StateDir,
        comptime name: []const u8,
        comptime formats: [2][]const u8,
        given: anytype,
        decided: anytype,
    ) status.Error {
        return status.bad_argument(
            name ++ " is " ++ formats[0] ++ ", but the run in {s} was begun with " ++ formats[1] ++
                ": give the same, or leave it out; another directory begins a new run",
            .{ given, state.path, decided },
        );
    }
};

// ---- the token

pub const TokenInfo = extern struct {
    size: usize,
    address: [256]u8,
    run_id: [16]u8,
};

pub const pccl_token_create = status.Secret(create_token).call;

noinline fn create_token(
    address: ?[*:0]const u8,
    run_id: ?*const [16]u8,
    token: ?[*]u8,
    capacity: usize,
) status.Error!void {
    const slice = argument.bounded(address orelse return status.is_null("address"), 255) catch
        return status.bad_argument("the address of a token has at most 255 bytes", .{});
    const endpoint = net.address.Endpoint.parse(slice) catch return no_address(slice);
    if (endpoint.host.len == 0 or endpoint.port == 0) return no_address(slice);
    const id = if (run_id) |given| given.* else net.random.array(16);
    try put_token(id, slice, token orelse return status.is_null("token"), capacity);
}

/// Writes the token of a run whose coordinator is at `address`.
fn put_token(run_id: [16]u8, address: []const u8, to: [*]u8, capacity: usize) status.Error!void {
    const value = wire.token.Token.init(run_id, address) catch return no_address(address);
    var storage: [wire.token.text_bytes_max]u8 = undefined;
    const encoded = wire.token.encode(&value, &storage);
    if (!argument.copy(encoded, to, capacity)) return status.bad_argument(
        "the token needs {d} bytes with its terminating zero, and capacity is {d}; " ++
            "PCCL_TOKEN_BYTES_MAX is always enough",
        .{ encoded.len + 1, capacity },
    );
}

fn no_address(address: []const u8) status.Error {
    return status.bad_argument(
        "\"{s}\" is not an address; it must be host:port, 1.2.3.4:port or [v6]:port",
        .{address},
    );
}

pub const pccl_token_parse = status.Secret(parse_token).call;

noinline fn parse_token(token: ?[*:0]const u8, info: ?*TokenInfo) status.Error!void {
    const to = info orelse return status.is_null("info");
    const value = try read_token(token);
    var filled = std.mem.zeroes(TokenInfo);
    const address = value.address();
    @memcpy(filled.address[0..address.len], address);
    filled.run_id = value.run_id;
    try argument.write(TokenInfo, "pccl_token_info_t", to, filled);
}

/// Decodes the token that a caller gave.
pub fn read_token(token: ?[*:0]const u8) status.Error!wire.token.Token {
    // White space may be around the token.
    const bytes_max = wire.token.text_bytes_max + 64;
    const slice = argument.bounded(token orelse return status.is_null("token"), bytes_max) catch
        return no_token();
    const value = wire.token.decode(slice) catch |err| return switch (err) {
        error.NotAToken => if (begins_as_one(slice)) mistyped() else no_token(),
        error.BadChecksum => mistyped(),
    };
    _ = net.address.Endpoint.parse(value.address()) catch return no_token();
    return value;
}

fn begins_as_one(slice: []const u8) bool {
    const trimmed = std.mem.trim(u8, slice, " \t\r\n");
    return std.mem.startsWith(u8, trimmed, wire.token.prefix);
}

fn mistyped() status.Error {
    return status.bad_argument(
        "the token is mistyped or cut: its checksum does not fit; copy it whole",
        .{},
    );
}

fn no_token() status.Error {
    return status.bad_argument("this is not a token: one begins with \"{s}\" and " ++
        "comes from `pccl coordinator`, or from a program's coordinator", .{wire.token.prefix});
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
    const id = peer orelse return status.code(status.is_null("peer"));
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
    const value = try read_token(token_text);
    const default_ns = 5 * std.time.ns_per_s;
    const answer = net.status_client.ask(gpa, .{
        .endpoint = net.address.Endpoint.parse(value.address()) catch unreachable, // parsed before
        .run_id = value.run_id,
        .deadline = net.clock.after(if (timeout_ns == 0) default_ns else timeout_ns),
        .seed = net.random.seed(),
        .dial_back = dial_back,
    }) catch |err| return sentence.ask_status(err, value.address());
    defer gpa.free(answer);
    if (length) |to| to.* = answer.len;
    const fits = if (json) |to| argument.copy(answer, to, capacity) else false;
    if (!fits) return status.bad_argument(
        "the status has {d} bytes with its terminating zero, and capacity is {d}: ask again " ++
            "with more",
        .{ answer.len + 1, if (json == null) 0 else capacity },
    );
}

// ---- tests

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
        .{ .field = "plans", .value = 2 },
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

test "a token whose address is none is refused" {
    const made: wire.token.Token = try .init(@splat(9), "nowhere");
    var storage: [wire.token.text_bytes_max]u8 = undefined;
    const encoded = wire.token.encode(&made, &storage);
    var token: [wire.token.text_bytes_max + 1]u8 = undefined;
    try std.testing.expect(argument.copy(encoded, &token, token.len));
    const result = status.code(if (read_token(@ptrCast(&token))) |_| {} else |err| err);
    try std.testing.expectEqual(.invalid_argument, result);
}

test "a token comes back as it was made, and bad ones are refused" {
    var token: [512]u8 = undefined;
    const run_id: [16]u8 = @splat(9);
    try std.testing.expectEqual(.ok, pccl_token_create("[::1]:4000", &run_id, &token, token.len));
    var info: TokenInfo = undefined;
    info.size = @sizeOf(TokenInfo);
    try std.testing.expectEqual(.ok, pccl_token_parse(@ptrCast(&token), &info));
    try std.testing.expectEqualStrings("[::1]:4000", std.mem.sliceTo(&info.address, 0));
    try std.testing.expectEqual(run_id, info.run_id);
    const bad = [_]Status{
        pccl_token_create("nowhere", null, &token, token.len),
        pccl_token_create("host:0", null, &token, token.len),
        pccl_token_create(":4000", null, &token, token.len),
        pccl_token_create(null, null, &token, token.len),
        pccl_token_create("host:1", null, null, 0),
        pccl_token_create("host:1", null, &token, 10),
        pccl_token_parse("pccl1-abc", &info),
        pccl_token_parse(null, &info),
    };
    for (bad) |result| {
        try std.testing.expectEqual(.invalid_argument, result);
        try std.testing.expect(std.mem.len(status.pccl_last_error()) > 0);
    }
    try std.testing.expectEqual(.invalid_argument, pccl_token_parse("pccl1-abc", &info));
    const cut = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, cut, "mistyped or cut") != null);
    info.size = 0;
    try std.testing.expectEqual(.ok, pccl_token_create("host:1", null, &token, token.len));
    try std.testing.expectEqual(.invalid_argument, pccl_token_parse(@ptrCast(&token), &info));
}
