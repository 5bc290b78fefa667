//! status_client: asks a coordinator for the status of the run, and waits for the answer on the
//! thread of the user. protocol/status.zig makes the answer.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const address = @import("address.zig");
const clock = @import("clock.zig");
const dial = @import("dial.zig");
const lock = @import("lock.zig");
const socket = @import("socket.zig");
const Allocator = std.mem.Allocator;
const ms = std.time.ns_per_ms;

pub const Error = dial.ConnectError || error{
    OutOfMemory,
    /// The coordinator had not answered by the deadline.
    TimedOut,
    /// The coordinator closed the connection without an answer.
    Closed,
    NotPccl,
    VersionMismatch,
    WrongRun,
    TurnedAway,
    /// The coordinator has answered this host too often, even a second later.
    AskedTooOften,
};

pub const Options = struct {
    endpoint: address.Endpoint,
    run_id: base.RunId,
    deadline: base.Instant,
    seed: u64,
    /// The peer that members are to dial, which must be connected from this host; `none`: no peer.
    dial_back: base.PeerId = .none,
};

/// Returns the status as JSON text, which the caller frees. A coordinator that has answered too
/// often is asked once more, a second later.
pub fn ask(gpa: Allocator, options: Options) Error![]u8 {
    return ask_once(gpa, options) catch |err| {
        const again = clock.after(std.time.ns_per_s);
        if (err != error.AskedTooOften or again >= options.deadline) return err;
        var nobody: lock.Signal = .{};
        _ = nobody.wait(again);
        return ask_once(gpa, options);
    };
}

fn ask_once(gpa: Allocator, options: Options) Error![]u8 {
    const fd = try dial.connect(options.endpoint, .{
        .deadline = options.deadline,
        .seed = options.seed,
    });
    defer socket.close(fd);
    var stream = wire.Stream.init(gpa);
    defer stream.deinit();
    try send_question(&stream, options.run_id, options.dial_back);
    return exchange(gpa, fd, &stream, options.deadline);
}

fn send_question(
    stream: *wire.Stream,
    run_id: base.RunId,
    dial_back: base.PeerId,
) Allocator.Error!void {
    try stream.send_raw(&wire.hello.encode(.{
        .purpose = .status,
        .run_id = run_id,
        .from = .none,
    }));
    try stream.send(.{ .status_request = .{ .dial_back = dial_back } });
}

fn exchange(
    gpa: Allocator,
    fd: socket.Fd,
    stream: *wire.Stream,
    deadline: base.Instant,
) Error![]u8 {
    while (stream.send_slice().len > 0) {
        try wait(fd, .write, deadline);
        const count = socket.send(fd, &.{stream.send_slice()}) catch |err| switch (err) {
            error.WouldBlock => continue,
            error.Broken => return error.Closed,
        };
        stream.sent(count);
    }
    var greeted = false;
    while (true) {
        if (!greeted) if (stream.take_raw(wire.hello.answer_bytes)) |bytes| {
            try judge(bytes);
            greeted = true;
        };
        if (greeted) if (stream.take() catch return error.NotPccl) |message| switch (message) {
            .status_reply => |reply| return checked(gpa, reply.json.data),
            .refused => return error.AskedTooOften,
            else => return error.NotPccl,
        };
        try wait(fd, .read, deadline);
        const room = try stream.recv_slice();
        const count = socket.receive(fd, &.{room}) catch |err| switch (err) {
            error.WouldBlock => continue,
            error.Broken => return error.Closed,
        };
        if (count == 0) return error.Closed;
        stream.received(count);
    }
}

/// Copies the answer, if it is JSON in UTF-8, as the caller expects it to be.
fn checked(gpa: Allocator, json: []const u8) Error![]u8 {
    if (!std.unicode.utf8ValidateSlice(json)) return error.NotPccl;
    if (!try std.json.validate(gpa, json)) return error.NotPccl;
    return gpa.dupe(u8, json);
}

fn judge(bytes: *const [wire.hello.answer_bytes]u8) Error!void {
    const verdict = wire.hello.decode_answer(bytes) catch |err| return switch (err) {
        error.NotPccl, error.BadValue => error.NotPccl,
        error.VersionMismatch => error.VersionMismatch,
    };
    return switch (verdict) {
        .welcome => {},
        .version_mismatch => error.VersionMismatch,
        .wrong_run => error.WrongRun,
        .wrong_peer, .refused, .full, .held => error.TurnedAway,
    };
}

fn wait(fd: socket.Fd, direction: socket.Direction, deadline: base.Instant) Error!void {
    if (!try dial.wait_socket(fd, direction, deadline, .{})) return error.TimedOut;
}

const CoordinatorEngine = @import("coordinator_engine.zig").CoordinatorEngine;
const poller = @import("poller.zig");

fn endpoint_of(engine: *const CoordinatorEngine) address.Endpoint {
    return .{ .host = "127.0.0.1", .port = engine.port };
}

test "a question that is there is answered, however many connect behind it" {
    const gpa = std.testing.allocator;
    const engine = try CoordinatorEngine.create(gpa, .{ .protocol = .{ .run_id = @splat(3) } });
    defer engine.destroy();
    const at: address.Address = .v4_from(.{ 127, 0, 0, 1 }, engine.port);
    const deadline = clock.after(10 * std.time.ns_per_s);
    var stream = wire.Stream.init(gpa);
    defer stream.deinit();
    try send_question(&stream, @splat(3), .none);
    var fds: [4 * base.limits.strangers_max]socket.Fd = undefined;
    defer for (fds) |fd| socket.close(fd);
    {
        // The engine finds all connections in one round.
        engine.lock.lock();
        defer engine.lock.unlock();
        for (&fds, 0..) |*fd, index| {
            fd.* = try socket.connect_start(&at);
            try wait(fd.*, .write, deadline);
            if (index > 0) continue;
            stream.sent(try socket.send(fd.*, &.{stream.send_slice()}));
        }
    }
    const json = try exchange(gpa, fds[0], &stream, deadline);
    gpa.free(json);
}

test "a coordinator tells how its run is, and refuses another run" {
    const gpa = std.testing.allocator;
    for ([_]poller.Backend{ .default, .poll }) |backend| {
        const engine = try CoordinatorEngine.create(gpa, .{
            .backend = backend,
            .protocol = .{ .run_id = @splat(3) },
        });
        defer engine.destroy();
        const options: Options = .{
            .endpoint = endpoint_of(engine),
            .run_id = @splat(3),
            .deadline = clock.after(10 * std.time.ns_per_s),
            .seed = 1,
        };
        const json = try ask(gpa, options);
        defer gpa.free(json);
        const parsed = try std.json.parseFromSlice(std.json.Value, gpa, json, .{});
        defer parsed.deinit();
        const at = parsed.value.object.get("address").?.string;
        try std.testing.expectEqualStrings(engine.reached_at(), at);

        var other = options;
        other.run_id = @splat(4);
        try std.testing.expectError(error.WrongRun, ask(gpa, other));
    }
}

test "whoever gives no status is told apart" {
    // The listeners: a coordinator that was asked too often, a program that is something else, one
    // that says too little in time, one that hangs up.
    const any_port = try address.to_bind(.{ .host = "127.0.0.1", .port = 0 });
    const Other = struct {
        listener: socket.Fd,
        says: []const u8,

        fn run(other: *@This()) void {
            if (!socket.wait_for(other.listener, .read, 10_000)) return;
            const fd = socket.accept(other.listener) catch return;
            defer socket.close(fd);
            var question: [256]u8 = undefined;
            if (!socket.wait_for(fd, .read, 10_000)) return;
            _ = socket.receive(fd, &.{&question}) catch return;
            _ = socket.send(fd, &.{other.says}) catch return;
            // Waits until the client has seen enough.
            if (other.says.len > 0) _ = socket.wait_for(fd, .read, 10_000);
        }
    };
    var bytes: [256]u8 = undefined;
    const welcome = wire.hello.encode_answer(.welcome);
    bytes[0..welcome.len].* = welcome;
    const refusal = try wire.control.encode(.{ .refused = .{
        .name = .of(""),
        .why = .of("too often"),
    } }, bytes[welcome.len..]);
    const cases = [_]struct { []const u8, Error }{
        .{ bytes[0 .. welcome.len + refusal.len], error.AskedTooOften },
        .{ "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n", error.NotPccl },
        .{ "?", error.TimedOut },
        .{ "", error.Closed },
    };
    for (cases) |case| {
        const listener = try socket.listen(&any_port);
        defer socket.close(listener);
        var other: Other = .{ .listener = listener, .says = case[0] };
        const thread = try std.Thread.spawn(.{}, Other.run, .{&other});
        defer thread.join();
        const port = socket.local_address(listener).?.port();
        const patience_ns: u64 = if (case[1] == error.TimedOut) 100 * ms else 10_000 * ms;
        try std.testing.expectError(case[1], ask_once(std.testing.allocator, .{
            .endpoint = .{ .host = "127.0.0.1", .port = port },
            .run_id = @splat(3),
            .deadline = clock.after(patience_ns),
            .seed = 1,
        }));
    }
}
