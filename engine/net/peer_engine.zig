//! PeerEngine: one peer of a run in this process: the connection to the coordinator, the listener
//! and the lanes to other peers, and the one thread that moves bytes between them and
//! session.Session, which decides everything.
//!
//! A peer begins on the thread of its user, which listens, connects to the coordinator, names the
//! address where other peers dial it, and waits until it is welcomed or refused. Then the engine's
//! thread holds the lock except while it waits for sockets, and lets waiting threads of the user
//! pass between two turns of connections (Turn). A thread of the user calls enter() to talk to the
//! session, and leave() to wake the engine's thread. Threads of the user wait in membership.zig,
//! work.zig.
//!
//! The session calls the host functions under the lock, and no host function calls it back
//! (session/session.zig): the loop tells the session later what went wrong. How a lane is dialed:
//! dial.zig. Sockets in general: connection.zig. Threads that do a part of the work: worker.zig.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const kernels = @import("kernels");
const session = @import("session");
const address = @import("address.zig");
const clock = @import("clock.zig");
const descriptor = @import("descriptor.zig");
const dial = @import("dial.zig");
const lock = @import("lock.zig");
const log = @import("log.zig");
const poller = @import("poller.zig");
const random = @import("random.zig");
const secret = @import("secret.zig");
const socket = @import("socket.zig");
const thread = @import("thread.zig");
const Congestion = @import("tcp.zig").Congestion;
const CongestionChoice = @import("tcp.zig").CongestionChoice;
const System = @import("tcp.zig").System;
const Fault = @import("fault.zig").Fault;
const Connections = @import("connection.zig").Connections;
const Connection = @import("connection.zig").Connection;
const Membership = @import("membership.zig").Membership;
const Work = @import("work.zig").Work;
const Workers = @import("worker.zig").Workers;
const assert = std.debug.assert;
const control = session.control;
const driver = session.driver;
const limits = base.limits;
const Allocator = std.mem.Allocator;
const Carrier = dial.Carrier;
const Instant = base.Instant;
const Session = session.Session;

pub const PeerEngine = struct {
    gpa: Allocator,
    session: *Session,
    connections: Connections,
    workers: Workers,
    lock: lock.FairLock = .{},
    thread: std.Thread,
    /// The process that may use this engine: a forked child has the memory, but not the thread.
    pid: std.c.pid_t,
    state: State = .running,
    /// The engine's thread waits for sockets: a thread that changes something for it wakes it.
    asleep: bool = false,
    /// When a graceful end stops waiting for the coordinator.
    farewell_deadline: Instant = base.never,

    control: ?*Connection = null,
    /// The address where the coordinator is dialed again, "host:port".
    coordinator_storage: [limits.address_bytes_max]u8 = undefined,
    coordinator_length: usize = 0,
    /// There was no memory to dial the coordinator; the next round tells the session.
    redial_failed: bool = false,
    /// The carriers whose dials are under way.
    dials: std.ArrayList(*Carrier) = .empty,
    fault: ?Fault,
    congestion: CongestionChoice,
    system: System,
    /// When the first of the lanes that wait for their buckets (tcp.Pacer) may send again, or
    /// earlier.
    paced_at: Instant = base.never,
    /// For tests: how far messages to the coordinator fall behind.
    behind: if (builtin.is_test) Behind else void = if (builtin.is_test) .{} else {},

    /// The number of handles that refer to the engine; the last one frees it.
    references: std.atomic.Value(u32) = .init(1),
    /// The number of groups that are joined and not left; leaving the last one ends the thread.
    communicators: u32 = 0,

    const State = enum { running, farewell, stopped };

    pub const control_owner = Carrier.control_owner;
    /// The number of turns before the poller is asked again.
    const turns_per_round = 64;
    const farewell_ns = std.time.ns_per_s;
    pub const Error = error{ OutOfMemory, ListenNameNotFound } || thread.Error || poller.Error ||
        socket.RangeError || dial.ConnectError || GreetError;

    pub const Options = struct {
        coordinator: address.Endpoint,
        run_id: base.RunId,
        peer_id: ?base.PeerId = null,
        /// The name of this peer for people.
        label: base.Label = .{},
        /// The address to listen on, where other peers connect to. An empty host is every
        /// interface, port 0 is a free port. Null: the interface that leads to the coordinator, or
        /// every interface if `advertise` says that other peers come another way.
        bind: ?address.Endpoint = null,
        /// The range to take the port from if `bind` names no port; null: any free port.
        ports: ?socket.PortRange = null,
        /// How long this peer tries to reach its coordinator again
        /// (Session.Options.reconnect_timeout_ns).
        reconnect_timeout_ns: u64 = base.never,
        rates: session.Rates = .{},
        congestion: Congestion = .auto,
        /// Whether this peer takes part in probes of links.
        probes: bool = true,
        system: System = .{},
        /// The address that other peers dial, "host" or "host:port"; null: see `name_address`.
        advertise: ?[]const u8 = null,
        /// The deadline by which the coordinator must have answered the first greeting.
        connect_deadline: Instant,
        interrupt: lock.Interrupt = .{},
        /// The number of threads that run jobs; 0: the threads of the engine and of the users run
        /// them.
        workers: u32 = 0,
        fault: ?Fault = null,
        backend: poller.Backend = .default,
    };

    /// Listens, greets the coordinator and starts the thread. The caller of `create` holds one
    /// reference.
    pub fn create(gpa: Allocator, options: Options) Error!*PeerEngine {
        const engine = try gpa.create(PeerEngine);
        errdefer gpa.destroy(engine);
        engine.* = .{
            .gpa = gpa,
            .session = undefined,
            .thread = undefined,
            .connections = try .init(gpa, options.backend),
            .workers = .init(&engine.connections.poller.waker, options.workers),
            .pid = std.c.getpid(),
            .fault = options.fault,
            .congestion = .{ .congestion = options.congestion },
            .system = options.system,
        };
        errdefer engine.connections.deinit();
        const every: address.Endpoint = .{ .host = "", .port = 0 };
        const told = options.bind orelse if (options.advertise != null) every else null;
        if (told) |endpoint| {
            const to_bind = address.to_bind(endpoint) catch return error.ListenNameNotFound;
            try listen(engine, &to_bind, options.ports);
        }
        engine.session = try driver.create(gpa, .{
            .peer_id = options.peer_id orelse .{ .bytes = random.array(16) },
            .run_id = options.run_id,
            .seed = random.seed(),
            .address_key = random.array(16),
            .label = options.label,
            .strangers_max = descriptor.strangers_max(),
            .reconnect_timeout_ns = options.reconnect_timeout_ns,
            .rates = options.rates,
            .probe_bytes_max = if (options.probes) limits.probe_bytes_max else 0,
            .host = .{
                .ctx = engine,
                .vtable = &host_vtable,
                .cores = thread.cores_of_machine(),
            },
            .runner = engine.workers.runner(),
            .secrets = secret.allocator,
        });
        errdefer driver.destroy(engine.session);
        const room = &engine.coordinator_storage;
        const text = std.fmt.bufPrint(room, "{f}", .{options.coordinator}) catch
            return error.BadAddress;
        engine.coordinator_length = text.len;
        engine.session.coordinator_at = text;
        try greet_patiently(engine, options);
        engine.thread = try thread.spawn("pccl-peer", engine, run);
        return engine;
    }

    // ---- the end

    pub fn reference(engine: *PeerEngine) void {
        _ = engine.references.fetchAdd(1, .monotonic);
    }

    /// Gives a reference back; giving the last one back ends the thread, if it still runs, and
    /// frees the engine.
    pub fn unreference(engine: *PeerEngine) void {
        if (engine.references.fetchSub(1, .acq_rel) > 1) return;
        engine.stop(.abrupt);
        driver.destroy(engine.session);
        engine.workers.deinit();
        engine.gpa.destroy(engine);
    }

    pub const Manner = enum {
        /// Sends the messages to the coordinator that wait, for at most a second.
        graceful,
        /// Ends like a process that is killed.
        abrupt,
    };

    /// Ends the thread and closes every connection, which ends calls in flight. A second `stop`
    /// does nothing.
    pub fn stop(engine: *PeerEngine, manner: Manner) void {
        engine.lock.lock();
        const first = engine.state == .running;
        if (first) {
            engine.state = .farewell;
            engine.farewell_deadline = if (manner == .graceful) clock.after(farewell_ns) else 0;
            engine.connections.poller.wake(); // under the lock: afterwards the thread may be gone
        }
        engine.lock.unlock();
        if (first) engine.thread.join();
    }

    /// Whether the engine has ended, or is about to: asked under the lock, or where no other thread
    /// can stop the engine.
    pub fn stopped(engine: *const PeerEngine) bool {
        return engine.state != .running;
    }

    /// True in a child of fork(), which can only forget its handles.
    pub fn forked(engine: *const PeerEngine) bool {
        return engine.pid != std.c.getpid();
    }

    // ---- threads of the user

    pub const FloatMode = u64;

    /// Takes the lock, and sets the floating-point mode of the library: results must not depend on
    /// the user's mode.
    pub fn enter(engine: *PeerEngine) FloatMode {
        engine.lock.lock();
        return kernels.float_mode.standard();
    }

    /// Gives the lock back, and wakes the engine's thread, which looks at what has changed.
    pub fn leave(engine: *PeerEngine, mode: FloatMode) void {
        if (engine.asleep) {
            engine.asleep = false;
            engine.connections.poller.wake();
        }
        engine.leave_quietly(mode);
    }

    /// Gives the lock back if nothing has changed that the engine's thread must see.
    pub fn leave_quietly(engine: *PeerEngine, mode: FloatMode) void {
        kernels.float_mode.restore(mode);
        engine.lock.unlock();
    }

    // ---- the loop; rare functions are not inlined, so that the stack frame of a round stays small

    fn run(engine: *PeerEngine) void {
        engine.lock.lock();
        defer engine.lock.unlock();
        while (engine.state == .running or !engine.farewell_said()) engine.round();
        engine.state = .stopped;
        for (engine.dials.items) |carrier| engine.carrier_free(carrier);
        engine.dials.deinit(engine.gpa);
        engine.dials = .empty;
        engine.control = null;
        engine.carriers_free();
        engine.workers.stop(); // workers may wake the poller, which ends next
        engine.connections.deinit();
        control.abandon(engine.session, clock.now());
    }

    fn round(engine: *PeerEngine) void {
        const connections = &engine.connections;
        engine.send_control();
        const lanes_due = @min(engine.dials_deadline(), engine.paced_at);
        const due = @min(driver.next_deadline(engine.session), lanes_due, engine.farewell_deadline);
        const deadline = if (connections.has_turns()) 0 else due;
        // Without memory for a new table of poll(), the wait uses the sockets of the last table, so
        // closed connections are not freed.
        if (connections.poller.prepare()) connections.bury() else |_| {}
        const works = engine.session.runner != null;
        const rests = deadline > 0 and (!works or engine.workers.rest());
        const left_ns = deadline -| clock.now();
        const patience_ns = if (rests) @min(driver.patience_ns(engine.session), left_ns) else 0;
        engine.asleep = true;
        engine.lock.unlock();
        if (patience_ns > 0) connections.poller.gather(patience_ns);
        const events = connections.poller.wait(if (rests) deadline else 0);
        engine.lock.lock();
        engine.asleep = false;
        if (works) engine.workers.rise();
        const now = clock.now();
        connections.note(events);
        engine.tell_jobs(now);
        if (engine.paced_at <= now) {
            engine.paced_at = base.never;
            Carrier.go_on_paced(&engine.connections);
        }
        if (engine.dials.items.len > 0) engine.advance_dials(now);
        if (engine.redial_failed) {
            engine.redial_failed = false;
            log.put(.err, "out of memory for a connection to the coordinator");
            control.closed(engine.session, now);
        }
        for (0..turns_per_round) |_| {
            const tcp = connections.next_ready() orelse break;
            if (tcp.owner == control_owner) engine.serve_control(now) else engine.serve(now, tcp);
            if (engine.lock.contended()) engine.lock.pass();
            engine.tell_jobs(now);
            engine.send_control();
        }
        // New connections are accepted last: a stranger that has said something is heard before
        // another takes its place.
        var left: usize = Connections.accepts_per_round;
        while (connections.accept(&left)) |fd| engine.accepted(now, fd);
        if (now < driver.next_deadline(engine.session)) return;
        // Accepting may have stopped for want of descriptors; it begins again.
        connections.accepting = connections.listener >= 0;
        driver.tick(engine.session, now);
    }

    /// Tells the session of the jobs that workers have run since the last call.
    fn tell_jobs(engine: *PeerEngine, now: Instant) void {
        if (engine.session.runner == null) return;
        while (engine.workers.take()) |job| driver.job_done(engine.session, now, job);
    }

    /// Whether the coordinator has read the last messages of this peer, or will not.
    fn farewell_said(engine: *PeerEngine) bool {
        const connection = engine.control orelse return true;
        if (clock.now() >= engine.farewell_deadline) return true;
        // The coordinator closes its side when it has read everything; until then the engine stays.
        // No event wakes this thread when the last message has left.
        engine.send_control();
        if (engine.session.control.send_slice().len == 0) socket.end_sending(connection.fd);
        return false;
    }

    // ---- the coordinator

    /// Sends waiting messages to the coordinator: after every turn, and within a long turn. All
    /// members wait for a vote, so a vote does not wait for the bytes of lanes. Sending after every
    /// transfer would be too often: at 4 KiB the coordinator would wake before the neighbour has
    /// its bytes, and a call would take a fifth longer.
    fn send_control(engine: *PeerEngine) void {
        const connection = engine.control orelse return;
        connection.send_stream(&engine.connections, &engine.session.control) catch {
            // Reading first hears what the coordinator has said, and then finds the end.
            connection.writable = false;
            connection.readable = true;
            connection.hangup = true;
            engine.connections.queue(connection);
        };
    }

    fn note_moved(engine: *PeerEngine, count: usize) void {
        if (!builtin.is_test) return;
        const connection = engine.control;
        const waits = connection != null and connection.?.writable and
            engine.session.control.send_slice().len > 0;
        engine.behind.note(count, waits);
    }

    fn serve_control(engine: *PeerEngine, now: Instant) void {
        const connection = engine.control.?;
        var turn: Turn = .{ .lock = &engine.lock };
        while (connection.readable and !turn.is_over()) {
            const count = connection.receive_stream(&engine.session.control) catch
                return engine.control_ended();
            if (count == 0) break;
            turn.moved(count);
            control.received(engine.session, now);
            if (connection.closed) return;
        }
        if (connection.readable) engine.connections.queue(connection);
    }

    fn control_ended(engine: *PeerEngine) void {
        engine.connections.close(engine.control.?);
        engine.control = null;
        control.closed(engine.session, clock.now());
    }

    /// Makes the socket of the carrier the connection to the coordinator.
    fn control_connected(engine: *PeerEngine, now: Instant, carrier: *Carrier) void {
        const connection = carrier.connection.?;
        connection.owner = control_owner;
        engine.control = connection;
        engine.gpa.destroy(carrier);
        control.opened(engine.session, now);
    }

    // ---- lanes

    noinline fn accepted(engine: *PeerEngine, now: Instant, fd: socket.Fd) void {
        const carrier = engine.gpa.create(Carrier) catch return socket.close(fd);
        const lane = driver.accept(engine.session, now, socket.source_of(fd)) orelse {
            engine.gpa.destroy(carrier);
            return socket.close(fd);
        };
        carrier.* = .{ .lane = lane, .state = .open };
        lane.driver = @intFromPtr(carrier);
        carrier.connection = engine.connections.add(fd, @intFromPtr(carrier)) catch
            return engine.lane_ended(now, carrier);
        engine.congestion.apply(fd, engine.connections.listener);
    }

    fn serve(engine: *PeerEngine, now: Instant, connection: *Connection) void {
        const carrier: *Carrier = @ptrFromInt(connection.owner);
        if (carrier.state == .connecting) switch (carrier.connected(now, &engine.connections)) {
            .pending => return,
            .failed => return engine.dial_failed(now, carrier),
            .open => {
                engine.forget_dial(carrier);
                const lane = carrier.lane orelse return engine.control_connected(now, carrier);
                engine.congestion.apply(connection.fd, engine.connections.listener);
                driver.opened(engine.session, now, lane);
                if (connection.closed) return;
            },
        };
        engine.receive(now, carrier, connection) catch return engine.lane_ended(now, carrier);
        if (connection.closed) return;
        engine.send(now, carrier, connection) catch return engine.lane_ended(now, carrier);
    }

    const Ended = error{Ended};

    fn receive(engine: *PeerEngine, now: Instant, carrier: *Carrier, tcp: *Connection) Ended!void {
        var turn: Turn = .{ .lock = &engine.lock };
        while (tcp.readable) {
            if (turn.is_over()) return engine.connections.queue(tcp);
            if (turn.is_long()) engine.send_control();
            if (tcp.closed) return;
            var slices: [2][]u8 = undefined;
            const slice_count = driver.recv_slices(engine.session, carrier.lane.?, &slices);
            const count = tcp.receive(slices[0..slice_count]) catch |err| switch (err) {
                error.WouldBlock => return,
                error.Broken => return error.Ended,
            };
            if (count == 0) return error.Ended;
            driver.received(engine.session, now, carrier.lane.?, count);
            engine.note_moved(count);
            if (tcp.closed) return;
            turn.moved(count);
        }
    }

    fn send(engine: *PeerEngine, now: Instant, carrier: *Carrier, tcp: *Connection) Ended!void {
        var turn: Turn = .{ .lock = &engine.lock };
        while (tcp.writable) {
            if (turn.is_over()) return engine.connections.queue(tcp);
            if (turn.is_long()) engine.send_control();
            if (tcp.closed) return;
            if (!carrier.out.is_open(now, &engine.paced_at)) return;
            var slices: [2][]const u8 = undefined;
            const slice_count = driver.send_slices(engine.session, now, carrier.lane.?, &slices);
            if (tcp.closed or slice_count == 0) return;
            const bytes = carrier.out.cut(now, slices[0..slice_count]);
            const count = tcp.send(&engine.connections, bytes) catch |err| switch (err) {
                error.WouldBlock => return,
                error.Broken => return error.Ended,
            };
            carrier.out.took(now, count);
            driver.sent(engine.session, now, carrier.lane.?, count);
            engine.note_moved(count);
            if (tcp.closed) return;
            turn.moved(count);
        }
    }

    fn lane_ended(engine: *PeerEngine, now: Instant, carrier: *Carrier) void {
        const lane = carrier.lane;
        engine.carrier_free(carrier);
        if (lane) |item|
            driver.closed(engine.session, now, item)
        else
            control.closed(engine.session, now);
    }

    fn carrier_free(engine: *PeerEngine, carrier: *Carrier) void {
        carrier.end(&engine.connections);
        engine.gpa.destroy(carrier);
    }

    /// Frees the carriers of all connections, at the end, when the session is told nothing more.
    fn carriers_free(engine: *PeerEngine) void {
        for (engine.connections.all.items) |connection| {
            if (connection.owner == control_owner) continue;
            engine.gpa.destroy(@as(*Carrier, @ptrFromInt(connection.owner)));
        }
    }

    // ---- dialing

    fn begin_dial(engine: *PeerEngine, lane: ?*session.Lane, to: []const u8) Allocator.Error!void {
        try engine.dials.ensureUnusedCapacity(engine.gpa, 1);
        const carrier = try engine.gpa.create(Carrier);
        carrier.* = .{ .lane = lane, .state = .resolving };
        if (lane) |item| item.driver = @intFromPtr(carrier);
        engine.dials.appendAssumeCapacity(carrier);
        // The next round tells of a failure: the session expects no call from inside a host
        // function.
        if (carrier.start(clock.now(), &engine.connections, to) == .failed) carrier.deadline = 0;
    }

    /// Goes on with dials whose name was found, or whose address takes too long, and tells the
    /// session of dials that failed.
    noinline fn advance_dials(engine: *PeerEngine, now: Instant) void {
        var index: usize = 0;
        while (index < engine.dials.items.len) {
            const carrier = engine.dials.items[index];
            if (carrier.step(now, &engine.connections) == .pending) {
                index += 1;
                continue;
            }
            engine.dial_failed(now, carrier);
            index = 0; // the session may have begun or ended other dials
        }
    }

    fn dials_deadline(engine: *const PeerEngine) Instant {
        var next: Instant = base.never;
        for (engine.dials.items) |carrier| next = @min(next, carrier.deadline);
        return next;
    }

    fn dial_failed(engine: *PeerEngine, now: Instant, carrier: *Carrier) void {
        engine.forget_dial(carrier);
        const lane = carrier.lane orelse return engine.lane_ended(now, carrier);
        const why = carrier.why;
        engine.carrier_free(carrier);
        driver.failed(engine.session, now, lane, why);
    }

    fn forget_dial(engine: *PeerEngine, carrier: *Carrier) void {
        for (engine.dials.items, 0..) |item, index| if (item == carrier) {
            _ = engine.dials.swapRemove(index);
            return;
        };
    }
};

/// How long the engine serves one connection before it serves others. The engine holds its lock
/// during a turn, which ends early if another thread waits for the lock.
const Turn = struct {
    /// The engine's lock, which is held.
    lock: *const lock.FairLock,
    left: usize = bytes_max,

    /// The bytes that a connection moves before other connections get their turn.
    const bytes_max = 1024 * limits.KiB;
    /// A turn that moves more bytes than this sends messages to the coordinator in between.
    const told_bytes = 256 * limits.KiB;

    fn moved(turn: *Turn, count: usize) void {
        turn.left -|= count;
    }

    /// Whether the turn is over. A turn is never over before a byte has moved, so that users that
    /// ask for the lock all the time do not stop the bytes.
    fn is_over(turn: *const Turn) bool {
        return turn.left == 0 or (turn.left < bytes_max and turn.lock.contended());
    }

    fn is_long(turn: *const Turn) bool {
        return turn.left <= bytes_max - told_bytes;
    }
};

/// For tests: bytes that lanes have moved while a message to the coordinator could have left.
const Behind = struct {
    now: usize = 0,
    most: usize = 0,

    fn note(behind: *Behind, count: usize, waits: bool) void {
        behind.now = if (waits) behind.now + count else 0;
        behind.most = @max(behind.most, behind.now);
    }
};

// ---- greeting the coordinator, on the thread of the user

const GreetError = error{
    /// The program at the address does not answer as a coordinator does.
    NotPccl,
    /// The program at the address accepts connections, but does not answer.
    NoAnswer,
    /// The coordinator closed the connection without an answer.
    Closed,
    VersionMismatch,
    WrongRun,
    /// The coordinator has a peer of this id already.
    TurnedAway,
    /// The run had no room for this peer until the deadline.
    RunFull,
    /// The id of this peer was that of a member that might come back, until the deadline.
    IdHeld,
};

/// How long a coordinator that has accepted the connection may take to answer.
const greeting_ns_max = limits.stranger_ns_max;
const greeting_pause_ms_max = 400;

/// Greets the coordinator again until the deadline if the refusal may pass, as a closed port may
/// open. A coordinator that closes without an answer may have too many strangers, or be down behind
/// a tunnel that is up; a coordinator that does not answer may be frozen; a full run may get room.
fn greet_patiently(engine: *PeerEngine, options: PeerEngine.Options) PeerEngine.Error!void {
    var before: ?PeerEngine.Error = null;
    while (true) {
        return greet(engine, options) catch |err| {
            switch (err) {
                // An attempt that the deadline has cut short tells less than the attempt before.
                error.NoAnswer => if (clock.now() >= options.connect_deadline)
                    return before orelse err,
                error.Closed, error.RunFull, error.IdHeld => {},
                else => return err,
            }
            before = err;
            const pause_ms = engine.session.prng.between(10, greeting_pause_ms_max);
            const until = clock.after(pause_ms * std.time.ns_per_ms);
            if (until >= options.connect_deadline) return err;
            var nobody: lock.Signal = .{};
            _ = try options.interrupt.wait(&nobody, until);
            continue;
        };
    }
}

fn greet(engine: *PeerEngine, options: PeerEngine.Options) PeerEngine.Error!void {
    const fd = try dial.connect(options.coordinator, .{
        .deadline = options.connect_deadline,
        .interrupt = options.interrupt,
        .seed = engine.session.prng.next(),
    });
    {
        errdefer socket.close(fd);
        if (engine.connections.listener < 0) try listen_beside(engine, fd, options);
        try name_address(engine, fd, options);
        control.opened(engine.session, clock.now());
        try exchange_greetings(engine, fd, options);
    }
    engine.control = try engine.connections.add(fd, PeerEngine.control_owner);
}

/// Listens on a free port of the interface that leads to the coordinator, so that no other network
/// is let in. If the interface is the loopback, though the token names another host (Debian's hosts
/// file has 127.0.1.1 for this machine), other peers come from elsewhere, so the engine listens on
/// all interfaces.
fn listen_beside(
    engine: *PeerEngine,
    fd: socket.Fd,
    options: PeerEngine.Options,
) PeerEngine.Error!void {
    var local = socket.local_address(fd) orelse return error.Closed;
    // IPv4 and IPv6 addresses have the port in the same place.
    local.v4.port = 0;
    var to_bind: address.AddressList = .{ .count = 1 };
    to_bind.items[0] = local;
    const leads_home = base.source.is_loopback(local.source());
    if (leads_home and !options.coordinator.is_loopback()) to_bind = address.every_interface(0);
    try listen(engine, &to_bind, options.ports);
}

fn listen(
    engine: *PeerEngine,
    to_bind: *const address.AddressList,
    ports: ?socket.PortRange,
) PeerEngine.Error!void {
    const any_port = to_bind.items[0].port() == 0;
    const within = if (any_port) ports else null;
    const fd = if (within) |range|
        try socket.listen_within(range, to_bind)
    else
        try socket.listen(to_bind);
    try engine.connections.listen(fd);
}

fn exchange_greetings(
    engine: *PeerEngine,
    fd: socket.Fd,
    options: PeerEngine.Options,
) PeerEngine.Error!void {
    const s = engine.session;
    const deadline = @min(options.connect_deadline, clock.after(greeting_ns_max));
    while (s.control_state == .greeting) {
        const bytes = s.control.send_slice();
        const direction: socket.Direction = if (bytes.len > 0) .write else .read;
        if (!try dial.wait_socket(fd, direction, deadline, options.interrupt))
            return error.NoAnswer;
        if (bytes.len > 0) {
            const count = socket.send(fd, &.{bytes}) catch |err| switch (err) {
                error.WouldBlock => continue,
                error.Broken => return error.Closed,
            };
            s.control.sent(count);
        } else {
            const room = try s.control.recv_slice();
            const count = socket.receive(fd, &.{room}) catch |err| switch (err) {
                error.WouldBlock => continue,
                error.Broken => return error.Closed,
            };
            if (count == 0) return error.Closed;
            s.control.received(count);
            control.received(s, clock.now());
        }
    }
    if (s.control_state == .open) return;
    if (s.not_pccl) return error.NotPccl;
    return switch (s.refusal orelse return error.NotPccl) {
        .wrong_run => error.WrongRun,
        .refused, .wrong_peer => error.TurnedAway,
        .version_mismatch => error.VersionMismatch,
        .full => error.RunFull,
        .held => error.IdHeld,
        .welcome => unreachable, // a welcome makes control_state open
    };
}

/// Tells the session where other peers reach this one: at the address that the user gives, else at
/// the interface that the engine listens on, else at the interface that leads to the coordinator.
fn name_address(
    engine: *PeerEngine,
    fd: socket.Fd,
    options: PeerEngine.Options,
) PeerEngine.Error!void {
    const bound = socket.local_address(engine.connections.listener) orelse return error.SystemLimit;
    const local = socket.local_address(fd) orelse return error.Closed;
    var host_text: [address.Address.text_bytes_max]u8 = undefined;
    const host_name = if (bound.is_any()) local.host(&host_text) else bound.host(&host_text);
    var endpoint: address.Endpoint = .{ .host = host_name, .port = bound.port() };
    if (options.advertise) |text| endpoint = try .parse_to_dial(text, bound.port());
    engine.session.advertised = options.advertise != null;
    var text: [limits.address_bytes_max]u8 = undefined;
    const whole = std.fmt.bufPrint(&text, "{f}", .{endpoint}) catch return error.BadAddress;
    try driver.set_address(engine.session, whole);
}

// ---- the host functions, which the session calls

const host_vtable: session.Host.VTable = .{
    .dial = host_dial,
    .lane_close = host_lane_close,
    .lane_wake = host_lane_wake,
    .lane_sample = host_lane_sample,
    .lane_pace = host_lane_pace,
    .control_dial = host_control_dial,
    .control_close = host_control_close,
    .group_event = host_group_event,
    .operation_finished = host_operation_finished,
    .operation_resolved = host_operation_resolved,
    .fault_point = host_fault_point,
    .log = host_log,
};

fn engine_of(context: *anyopaque) *PeerEngine {
    return @ptrCast(@alignCast(context));
}

fn host_dial(context: *anyopaque, lane: *session.Lane, to: []const u8) void {
    const engine = engine_of(context);
    lane.driver = 0;
    if (engine.state == .stopped) return;
    engine.begin_dial(lane, to) catch {
        // Without memory for a socket this peer cannot keep its promises: it ends as if it were
        // killed.
        log.put(.err, "out of memory for a connection to another peer");
        if (engine.control) |connection| socket.end_sending(connection.fd);
    };
}

fn host_lane_close(context: *anyopaque, lane: *session.Lane) void {
    const engine = engine_of(context);
    if (engine.state == .stopped or lane.driver == 0) return;
    const carrier: *Carrier = @ptrFromInt(lane.driver);
    engine.forget_dial(carrier);
    engine.carrier_free(carrier);
}

fn host_lane_wake(context: *anyopaque, lane: *session.Lane) void {
    const engine = engine_of(context);
    if (engine.state == .stopped or lane.driver == 0) return;
    const carrier: *Carrier = @ptrFromInt(lane.driver);
    if (carrier.connection) |connection| engine.connections.queue(connection);
}

fn host_lane_sample(context: *anyopaque, lane: *session.Lane) ?session.Sample {
    const engine = engine_of(context);
    const carrier = carrier_of(engine, lane) orelse return null;
    const fd = carrier.connection.?.fd;
    var sample = engine.system.sample(fd, carrier.out.taken) orelse return null;
    sample.is_within = carrier.is_within orelse socket.is_within_machine(fd);
    carrier.is_within = sample.is_within;
    return sample;
}

fn host_lane_pace(context: *anyopaque, lane: *session.Lane, pace: session.Pace) void {
    const engine = engine_of(context);
    const carrier = carrier_of(engine, lane) orelse return;
    const fd = carrier.connection.?.fd;
    const keeps = engine.system.pace(fd, pace);
    carrier.out.bucket.rate = if (keeps) 0 else pace.rate;
    if (pace.renews) engine.congestion.renew(fd, engine.connections.listener);
    if (pace.control) |wanted| engine.congestion.change(fd, wanted, &carrier.before);
}

/// The carrier of a lane; null: the lane has no socket.
fn carrier_of(engine: *PeerEngine, lane: *session.Lane) ?*Carrier {
    if (engine.state == .stopped or lane.driver == 0) return null;
    const carrier: *Carrier = @ptrFromInt(lane.driver);
    return if (carrier.connection == null) null else carrier;
}

fn host_control_dial(context: *anyopaque) void {
    const engine = engine_of(context);
    if (engine.state != .running) return;
    const to = engine.coordinator_storage[0..engine.coordinator_length];
    engine.begin_dial(null, to) catch {
        engine.redial_failed = true; // the next round tells the session
    };
}

fn host_control_close(context: *anyopaque) void {
    const engine = engine_of(context);
    const connection = engine.control orelse return; // the coordinator is still being greeted
    engine.connections.close(connection);
    engine.control = null;
}

fn host_group_event(
    _: *anyopaque,
    group: *session.Group,
    event: session.GroupEvent,
) void {
    if (Membership.of(group)) |membership| membership.tell(event);
}

fn host_operation_finished(_: *anyopaque, operation: *session.Operation) void {
    if (Work.of(operation)) |work| work.tell_finished();
}

fn host_operation_resolved(_: *anyopaque, operation: *session.Operation) void {
    if (Work.of(operation)) |work| work.resolved.set();
}

fn host_fault_point(
    context: *anyopaque,
    point: session.FaultPoint,
    sequence: u64,
    done: u64,
    total: u64,
) void {
    const engine = engine_of(context);
    const fault = engine.fault orelse return;
    if (!fault.matches(point, sequence, done, total)) return;
    engine.fault = null; // a fault strikes once, if the process survives it
    fault.strike();
}

fn host_log(context: *anyopaque, level: session.LogLevel, message: []const u8) void {
    // Once the user has asked for the end, its effects are not logged.
    if (engine_of(context).stopped()) return;
    log.put(@enumFromInt(@intFromEnum(level)), message);
}

comptime {
    assert(@intFromEnum(session.LogLevel.err) == @intFromEnum(log.Level.err));
}

// ---- tests

test "a turn ends after so many bytes, or when somebody waits for the lock" {
    var held: lock.FairLock = .{};
    held.lock();
    var turn: Turn = .{ .lock = &held };
    turn.moved(Turn.told_bytes);
    try std.testing.expect(turn.is_long() and !turn.is_over());
    turn.moved(Turn.bytes_max);
    try std.testing.expect(turn.is_over());

    const Waiter = struct {
        fn run(wanted: *lock.FairLock) void {
            wanted.lock();
            wanted.unlock();
        }
    };
    const waiter = try std.Thread.spawn(.{}, Waiter.run, .{&held});
    while (!held.contended()) try std.Thread.yield();
    turn = .{ .lock = &held };
    try std.testing.expect(!turn.is_over());
    turn.moved(1);
    try std.testing.expect(turn.is_over());
    held.unlock();
    waiter.join();
}
