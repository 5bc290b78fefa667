//! CoordinatorEngine: a coordinator as a thread of this process: the listener, the sockets of its
//! peers, and the loop that moves bytes between them and protocol.Coordinator, which decides
//! everything. The other side of each connection: peer_engine.zig. A second thread writes its
//! journal: journal.zig.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const address = @import("address.zig");
const clock = @import("clock.zig");
const fault = @import("fault.zig");
const lock = @import("lock.zig");
const log = @import("log.zig");
const poller = @import("poller.zig");
const random = @import("random.zig");
const secret = @import("secret.zig");
const socket = @import("socket.zig");
const thread = @import("thread.zig");
const JournalFile = @import("journal.zig").JournalFile;
const JournalWriter = @import("journal.zig").JournalWriter;
const Trouble = @import("journal.zig").Trouble;
const TestDir = @import("fixture.zig").TestDir;
const Finder = @import("finder.zig").Finder;
const Connections = @import("connection.zig").Connections;
const TcpConnection = @import("connection.zig").Connection;
const Allocator = std.mem.Allocator;
const Coordinator = protocol.Coordinator;
const Connection = protocol.Connection;

pub const CoordinatorEngine = struct {
    gpa: Allocator,
    coordinator: *Coordinator,
    journal: ?*JournalFile,
    writer: ?*JournalWriter = null,
    connections: Connections,
    finder: Finder,
    lock: lock.FairLock = .{},
    stopping: bool = false,
    thread: std.Thread,
    port: u16,
    /// The address that the coordinator listens on, the address that it was told to advertise, and
    /// "host:port" of the token.
    bind: address.Endpoint.Text,
    advertise: address.Endpoint.Text,
    reached: address.Endpoint.Text,

    pub const Options = struct {
        /// The address to listen on. An empty host is every interface, port 0 a free port.
        bind: address.Endpoint = .{ .host = "127.0.0.1", .port = 0 },
        /// The address at which peers reach the coordinator, "host" or "host:port"; null: where it
        /// listens.
        advertise: ?[]const u8 = null,
        /// The journal, which a successful `create` takes over. `bind` and `protocol` already have
        /// the settings of the run in the journal.
        journal: ?*JournalFile = null,
        /// Where details of an error about the journal are written.
        trouble: ?*Trouble = null,
        /// How slow the disk is made, for tests.
        disk: fault.Disk = .{},
        protocol: Coordinator.Options,
        backend: poller.Backend = .default,
    };

    const JournalError = error{ OutOfMemory, JournalFailed, JournalRefused, JournalMoved };
    pub const Error = JournalError || socket.ListenError || address.LookUpError || thread.Error ||
        poller.Error;

    /// The number of reads at one connection before other connections get their turn.
    const reads_per_turn = 8;

    /// Listens, and starts the thread.
    pub fn create(gpa: Allocator, options: Options) Error!*CoordinatorEngine {
        const engine = try gpa.create(CoordinatorEngine);
        errdefer gpa.destroy(engine);
        engine.* = .{
            .gpa = gpa,
            .coordinator = undefined,
            .journal = options.journal,
            .connections = try .init(gpa, options.backend),
            .finder = .{ .run_id = undefined },
            .thread = undefined,
            .port = undefined,
            .bind = undefined,
            .advertise = undefined,
            .reached = undefined,
        };
        errdefer engine.connections.deinit();
        const listener = try socket.listen(&try address.to_bind(options.bind));
        try engine.connections.listen(listener);
        try engine.name_address(options.bind.host, options.advertise, listener);

        var protocol_options = options.protocol;
        protocol_options.bind = engine.bind.slice();
        protocol_options.advertise = engine.advertise.slice();
        protocol_options.address = engine.reached_at();
        if (options.journal) |file| {
            engine.writer = try .create(gpa, file, &engine.connections.poller.waker, options.disk);
            protocol_options.journal = engine.writer.?.seam();
        }
        errdefer if (engine.writer) |writer| writer.destroy();
        protocol_options.secrets = secret.allocator;
        engine.coordinator = try Coordinator.create(gpa, protocol_options, .{
            .ctx = engine,
            .vtable = &.{
                .close = host_close,
                .wake = host_wake,
                .find = host_find,
                .log = host_log,
            },
        }, random.seed());
        errdefer engine.coordinator.destroy();
        engine.finder.run_id = &engine.coordinator.run.options.run_id;
        if (options.journal) |file| try engine.take_up(file, options.trouble);
        if (engine.writer) |writer| try writer.start();
        engine.thread = try thread.spawn("pccl-coord", engine, run);
        return engine;
    }

    /// Closes every connection and ends the thread.
    pub fn destroy(engine: *CoordinatorEngine) void {
        engine.lock.lock();
        engine.stopping = true;
        engine.lock.unlock();
        engine.connections.poller.wake();
        engine.thread.join();
        // Waits for the disk: all records are kept, whether or not a peer has heard of them.
        if (engine.writer) |writer| writer.destroy();
        engine.finder.deinit();
        engine.connections.deinit();
        engine.coordinator.destroy();
        if (engine.journal) |file| file.close();
        engine.gpa.destroy(engine);
    }

    /// Goes on with the run of a journal, or begins a run, before any peer is heard.
    fn take_up(
        engine: *CoordinatorEngine,
        file: *JournalFile,
        trouble: ?*Trouble,
    ) JournalError!void {
        const content = file.content();
        const before = protocol.journal.settings_of(content) catch unreachable; // `open` checked it
        const is_unused = protocol.journal.is_unused(content) catch unreachable;
        if (before) |settings| if (!is_unused and
            !std.mem.eql(u8, settings.address.data, engine.reached_at()))
        {
            if (trouble) |into| into.* = .{ .moved = engine.reached };
            return error.JournalMoved;
        };
        const restored = engine.coordinator.restore(clock.now(), content, file.log.content);
        restored catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            error.JournalFailed => {
                const failure = file.failure orelse file.log.failure;
                if (trouble) |into| into.* = .{ .system = failure.? };
                return error.JournalFailed;
            },
            else => |why| {
                if (trouble) |into| into.* = .{ .refused = .{ .why = why, .offset = null } };
                return error.JournalRefused;
            },
        };
        file.forget_content();
    }

    /// The address for the token, "host:port".
    pub fn reached_at(engine: *const CoordinatorEngine) []const u8 {
        return engine.reached.slice();
    }

    fn name_address(
        engine: *CoordinatorEngine,
        bind_host: []const u8,
        advertise: ?[]const u8,
        listener: socket.Fd,
    ) address.LookUpError!void {
        const bound = socket.local_address(listener) orelse return error.BadAddress;
        engine.port = bound.port();
        const bind: address.Endpoint = .{ .host = bind_host, .port = engine.port };
        engine.bind = try .of("{f}", .{bind});
        engine.advertise = try .of("{s}", .{advertise orelse ""});
        var host_text: [address.Address.text_bytes_max]u8 = undefined;
        // No peer can dial "every interface".
        const host = if (bound.is_any())
            socket.outward_address(bound.family()).host(&host_text)
        else
            bound.host(&host_text);
        var endpoint: address.Endpoint = .{ .host = host, .port = engine.port };
        if (advertise) |text| endpoint = try .parse_to_dial(text, engine.port);
        // A coordinator that listens on every interface is not meant for this machine alone.
        if (bound.is_any() and advertise == null and endpoint.is_loopback()) log.put(.warning, //
            "this machine has no way to others, so the token says " ++ nowhere);
        engine.reached = try .of("{f}", .{endpoint});
    }

    const nowhere = "127.0.0.1, which leads every other machine to itself: give the coordinator " ++
        "the address that peers reach it at (advertise)";

    // ---- the loop; rare functions are not inlined, so that the stack frame of a round stays small

    fn run(engine: *CoordinatorEngine) void {
        engine.lock.lock();
        defer engine.lock.unlock();
        while (!engine.stopping) engine.round();
        engine.coordinator.end(clock.now());
    }

    fn round(engine: *CoordinatorEngine) void {
        const connections = &engine.connections;
        const deadline = if (connections.has_turns()) 0 else engine.coordinator.next_deadline();
        // Without memory for a new table of poll(), the wait uses the sockets of the last table, so
        // closed connections are not freed.
        if (connections.poller.prepare()) connections.bury() else |_| {}
        engine.lock.unlock();
        const events = connections.poller.wait(deadline);
        engine.lock.lock();
        const now = clock.now();
        engine.coordinator.run.wall_ahead_ns = clock.wall() -| now;
        connections.note(events);
        if (engine.writer) |writer| engine.hear(now, writer.take());
        for (0..connections.ready_count) |_| {
            const tcp = connections.next_ready() orelse break;
            engine.serve(now, tcp);
        }
        while (engine.finder.next(now)) |found|
            engine.coordinator.answered(now, found.number, found.answer);
        // New connections are accepted last: a stranger that has said something is heard before
        // another takes its place.
        var left: usize = Connections.accepts_per_round;
        while (connections.accept(&left)) |fd| engine.accepted(now, fd);
        if (now < engine.coordinator.next_deadline()) return;
        connections.accepting = true; // accepting may have stopped for want of descriptors
        engine.coordinator.tick(now);
    }

    /// Tells the coordinator what the disk has done, in the order of the records.
    noinline fn hear(engine: *CoordinatorEngine, now: base.Instant, news: JournalWriter.News) void {
        const c = engine.coordinator;
        const fails_last = news.failed > news.written;
        if (news.failed > 0 and !fails_last) c.journal_failed(now, news.failed);
        if (news.written > 0) c.journal_written(now, news.written);
        if (fails_last) c.journal_failed(now, news.failed);
    }

    noinline fn accepted(engine: *CoordinatorEngine, now: base.Instant, fd: socket.Fd) void {
        const remote = socket.remote_address(fd);
        const source: base.Source = if (remote) |*at| at.source() else @splat(0);
        const connection = engine.coordinator.accept(now, source) orelse return socket.close(fd);
        if (socket.local_address(fd)) |local| connection.here = local.source();
        const tcp = engine.connections.add(fd, @intFromPtr(connection)) catch {
            return engine.coordinator.closed(now, connection);
        };
        connection.driver = @intFromPtr(tcp);
    }

    fn serve(engine: *CoordinatorEngine, now: base.Instant, tcp: *TcpConnection) void {
        const connection: *Connection = @ptrFromInt(tcp.owner);
        var turns: usize = reads_per_turn;
        while (tcp.readable and turns > 0) : (turns -= 1) {
            engine.coordinator.take_said(now, connection);
            if (tcp.closed) return;
            if (connection.is_paused(now)) break;
            const count = tcp.receive_stream(&connection.stream) catch
                return engine.ended(now, tcp);
            if (count == 0) break;
            engine.coordinator.received(now, connection);
            if (tcp.closed) return;
        }
        tcp.send_stream(&engine.connections, &connection.stream) catch
            return engine.ended(now, tcp);
        // A connection that has said too much is read again when the coordinator wakes it.
        const is_paused = connection.is_paused(now);
        engine.connections.poller.want_read(tcp.fd, !is_paused);
        if (tcp.readable and !is_paused) engine.connections.queue(tcp);
    }

    fn ended(engine: *CoordinatorEngine, now: base.Instant, tcp: *TcpConnection) void {
        const connection: *Connection = @ptrFromInt(tcp.owner);
        engine.connections.close(tcp);
        engine.coordinator.closed(now, connection);
    }

    // ---- the host functions, which the coordinator calls

    fn host_close(context: *anyopaque, connection: *Connection) void {
        const engine: *CoordinatorEngine = @ptrCast(@alignCast(context));
        const tcp: *TcpConnection = @ptrFromInt(connection.driver);
        // Sends the last words of a refusal; a connection that is broken already does not get them.
        tcp.send_stream(&engine.connections, &connection.stream) catch {};
        engine.connections.close(tcp);
    }

    fn host_wake(context: *anyopaque, connection: *Connection) void {
        const engine: *CoordinatorEngine = @ptrCast(@alignCast(context));
        engine.connections.queue(@ptrFromInt(connection.driver));
    }

    fn host_find(
        context: *anyopaque,
        question: *const protocol.addresses.Question,
    ) protocol.addresses.Reply {
        const engine: *CoordinatorEngine = @ptrCast(@alignCast(context));
        engine.finder.start(question, engine.connections.poller.waker.write_fd) catch return .busy;
        return .later;
    }

    fn host_log(_: *anyopaque, level: protocol.LogLevel, message: []const u8) void {
        log.put(@enumFromInt(@intFromEnum(level)), message);
    }
};

test "a port in use is an error, and every interface is advertised as one that can be dialed" {
    const gpa = std.testing.allocator;
    const first = try CoordinatorEngine.create(gpa, .{ .protocol = .{ .run_id = @splat(1) } });
    defer first.destroy();
    try std.testing.expectError(error.AddressInUse, CoordinatorEngine.create(gpa, .{
        .bind = .{ .host = "127.0.0.1", .port = first.port },
        .protocol = .{ .run_id = @splat(1) },
    }));
    const open = try CoordinatorEngine.create(gpa, .{
        .bind = .{ .host = "", .port = 0 },
        .protocol = .{ .run_id = @splat(1) },
    });
    defer open.destroy();
    const endpoint = try address.Endpoint.parse(open.reached_at());
    try std.testing.expectEqual(open.port, endpoint.port);
    try std.testing.expect(!address.numeric(endpoint).?.slice()[0].is_any());
    const named = try CoordinatorEngine.create(gpa, .{
        .advertise = "coordinator.example",
        .protocol = .{ .run_id = @splat(1) },
    });
    defer named.destroy();
    try std.testing.expect(std.mem.startsWith(u8, named.reached_at(), "coordinator.example:"));
}

test "a coordinator begins again where its journal says, or not at all" {
    const gpa = std.testing.allocator;
    var directory: TestDir = undefined;
    try directory.init();
    defer directory.deinit();
    const state = directory.path;
    var trouble: Trouble = undefined;
    var port: u16 = 0;
    for (1..4) |incarnation| {
        const engine = try CoordinatorEngine.create(gpa, .{
            .bind = .{ .host = "127.0.0.1", .port = port },
            .journal = try JournalFile.open(gpa, state, &trouble),
            .protocol = .{ .run_id = @splat(1) },
        });
        defer engine.destroy();
        try std.testing.expectEqual(incarnation, engine.coordinator.run.incarnation);
        port = engine.port;
    }
    // Until the first epoch begins, the run may move.
    const moved = try CoordinatorEngine.create(gpa, .{
        .advertise = "elsewhere",
        .journal = try JournalFile.open(gpa, state, &trouble),
        .protocol = .{ .run_id = @splat(1) },
    });
    try std.testing.expect(std.mem.startsWith(u8, moved.reached_at(), "elsewhere:"));
    moved.destroy();
    var image: protocol.journal.Image = .{};
    defer image.deinit(gpa);
    try image.add(gpa, .{ .group = .{
        .id = 0,
        .name = .of("g"),
        .initial_world_size = 1,
        .last_epoch = 1,
    } });
    const begun = try JournalFile.open(gpa, state, &trouble);
    try begun.append(image.bytes());
    begun.close();
    const file = try JournalFile.open(gpa, state, &trouble);
    defer file.close(); // a create that fails leaves the file to its caller
    const content = file.content();
    const settings = (try protocol.journal.settings_of(content)).?;
    try std.testing.expectEqualStrings("elsewhere", settings.advertise.data);
    try std.testing.expect(std.mem.startsWith(u8, settings.bind.data, "127.0.0.1:"));
    try std.testing.expectError(error.JournalMoved, CoordinatorEngine.create(gpa, .{
        .advertise = "nowhere",
        .journal = file,
        .trouble = &trouble,
        .protocol = .{ .run_id = @splat(1) },
    }));
    try std.testing.expect(std.mem.startsWith(u8, trouble.moved.slice(), "nowhere:"));
}

test "a stranger that says nothing loses its place, and descriptors do not run out for others" {
    const gpa = std.testing.allocator;
    const engine = try CoordinatorEngine.create(gpa, .{ .protocol = .{ .run_id = @splat(1) } });
    defer engine.destroy();
    const at: address.Address = .v4_from(.{ 127, 0, 0, 1 }, engine.port);
    // Connections beyond the limit are closed at once, long before their time is over.
    const too_many = 3 * base.limits.strangers_max;
    var strangers: [too_many + base.limits.strangers_max]socket.Fd = undefined;
    for (&strangers) |*fd| fd.* = try socket.connect_start(&at);
    defer for (strangers) |fd| socket.close(fd);
    var is_closed: [strangers.len]bool = @splat(false);
    const deadline = clock.after(4 * std.time.ns_per_s);
    while (std.mem.countScalar(bool, &is_closed, true) < too_many) {
        if (clock.now() >= deadline) return error.TooManyAreLeft;
        for (strangers, &is_closed) |fd, *closed| {
            var byte: [1]u8 = undefined;
            const count = socket.receive(fd, &.{&byte}) catch |err| switch (err) {
                error.WouldBlock => continue,
                error.Broken => 0,
            };
            if (count == 0) closed.* = true;
        }
    }
}

test "a round takes in no more connections than there are places for strangers" {
    const gpa = std.testing.allocator;
    const engine = try CoordinatorEngine.create(gpa, .{ .protocol = .{ .run_id = @splat(1) } });
    defer engine.destroy();
    // The test runs the rounds of the engine itself.
    engine.lock.lock();
    engine.stopping = true;
    engine.lock.unlock();
    engine.connections.poller.wake();
    engine.thread.join();
    const at: address.Address = .v4_from(.{ 127, 0, 0, 1 }, engine.port);
    var strangers: [200]socket.Fd = undefined;
    for (&strangers) |*fd| fd.* = try socket.connect_start(&at);
    defer for (strangers) |fd| socket.close(fd);
    const run = &engine.coordinator.run;
    engine.lock.lock();
    while (run.connections.items.len + run.strangers_refused == 0) engine.round();
    engine.lock.unlock();
    engine.thread = try thread.spawn("pccl-coord", engine, run_no_more);
    // Some connections may have been turned away at the door.
    try std.testing.expect(run.connections.items.len <= Connections.accepts_per_round);
    const taken = run.connections.items.len + run.strangers_refused;
    try std.testing.expectEqual(Connections.accepts_per_round, taken);
}

/// The thread of an engine whose rounds have ended.
fn run_no_more(_: *CoordinatorEngine) void {}

test "the run id that the engine and its finder keep is in no core file" {
    if (builtin.os.tag != .linux) return error.SkipZigTest;
    const gpa = std.testing.allocator;
    const engine = try CoordinatorEngine.create(gpa, .{ .protocol = .{ .run_id = @splat(1) } });
    defer engine.destroy();
    try std.testing.expect(try secret.is_left_out(&engine.coordinator.run.options.run_id[0]));
    try std.testing.expect(try secret.is_left_out(&engine.finder.run_id[0]));
}
