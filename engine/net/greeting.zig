//! greeting: how a peer begins, on the thread of the user: it listens, connects to the coordinator,
//! names the address where others dial it, and is welcomed or refused. Free functions on
//! PeerEngine, which has no thread yet. The way to the coordinator: dial.zig; what its answer
//! means: session/control.zig; connections later: peer_engine.zig, dial.zig.

const std = @import("std");
const base = @import("base");
const session = @import("session");
const address = @import("address.zig");
const clock = @import("clock.zig");
const dial = @import("dial.zig");
const lock = @import("lock.zig");
const poller = @import("poller.zig");
const socket = @import("socket.zig");
const PeerEngine = @import("peer_engine.zig").PeerEngine;
const Options = PeerEngine.Options;

/// How long something that accepted our connection may take to answer as a coordinator does.
const greeting_ns_max = base.limits.stranger_ns_max;
const greeting_pause_ms_max = 400;

pub const GreetError = error{
    /// It accepts connections, but does not answer, or not as a coordinator does.
    NotPccl,
    NoAnswer,
    /// It closed the connection without an answer.
    Closed,
    VersionMismatch,
    WrongRun,
    /// It has a peer of this id already.
    TurnedAway,
    /// There was no room in the run until the deadline.
    RunFull,
    /// The id was that of a member that might come back, until the deadline.
    IdHeld,
};

pub const ListenError = socket.RangeError || poller.Error || error{ListenNameNotFound};

pub const Error = error{OutOfMemory} || ListenError || dial.ConnectError || GreetError;

/// A coordinator that closes without an answer may have too many strangers at its door, or
/// be down behind a tunnel that is up; one that does not answer may be frozen; a full run may
/// get room. All of that may pass, as a closed port may open.
pub fn greet_patiently(engine: *PeerEngine, options: Options) Error!void {
    var before: ?Error = null;
    while (true) {
        return greet(engine, options) catch |err| {
            switch (err) {
                // One that the deadline has cut short says less than the one before.
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

fn greet(engine: *PeerEngine, options: Options) Error!void {
    const fd = try dial.connect(options.coordinator, .{
        .deadline = options.connect_deadline,
        .interrupt = options.interrupt,
        .seed = engine.session.prng.next(),
    });
    {
        errdefer socket.close(fd);
        if (engine.connections.listener < 0) try listen_beside(engine, fd, options);
        try name_address(engine, fd, options);
        session.control.opened(engine.session, clock.now());
        try exchange_greetings(engine, fd, options);
    }
    engine.control = try engine.connections.add(fd, PeerEngine.control_owner);
}

/// On a free port of the interface that leads to the coordinator: no other network is let in.
/// Where that is the loopback interface, though the token names another host (Debian's hosts
/// file has 127.0.1.1 for this machine), peers come from elsewhere: on all interfaces.
fn listen_beside(engine: *PeerEngine, control: socket.Fd, options: Options) Error!void {
    var local = socket.local_address(control) orelse return error.Closed;
    // The port is in the same place in both.
    local.v4.port = 0;
    var to_bind: address.AddressList = .{ .count = 1 };
    to_bind.items[0] = local;
    const leads_home = base.source.is_loopback(local.source());
    if (leads_home and !options.coordinator.is_loopback()) to_bind = address.every_interface(0);
    try listen(engine, &to_bind, options.ports);
}

pub fn listen(
    engine: *PeerEngine,
    to_bind: *const address.AddressList,
    ports: ?socket.PortRange,
) Error!void {
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
    options: Options,
) Error!void {
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
            session.control.received(s, clock.now());
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
        .welcome => unreachable, // then control_state is open
    };
}

/// Where others reach this peer: what the user says, else the interface it listens on, else
/// the one that leads to the coordinator.
fn name_address(engine: *PeerEngine, control: socket.Fd, options: Options) Error!void {
    const bound = socket.local_address(engine.connections.listener) orelse return error.SystemLimit;
    const local = socket.local_address(control) orelse return error.Closed;
    var host_text: [address.Address.text_bytes_max]u8 = undefined;
    const host_name = if (bound.is_any()) local.host(&host_text) else bound.host(&host_text);
    var endpoint: address.Endpoint = .{ .host = host_name, .port = bound.port() };
    if (options.advertise) |text| endpoint = try .parse_to_dial(text, bound.port());
    engine.session.advertised = options.advertise != null;
    var text: [base.limits.address_bytes_max]u8 = undefined;
    const whole = std.fmt.bufPrint(&text, "{f}", .{endpoint}) catch return error.BadAddress;
    try session.driver.set_address(engine.session, whole);
}
