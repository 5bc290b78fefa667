//! reach: the way to a coordinator: look its name up, connect, try again with growing pauses until
//! a deadline. It runs on the thread of the user that waits for it (create, status); the user may
//! withdraw at any time. The messages on the connection then: greeting.zig, status_client.zig.

const std = @import("std");
const base = @import("base");
const address = @import("address.zig");
const clock = @import("clock.zig");
const lock = @import("lock.zig");
const log = @import("log.zig");
const resolver = @import("resolver.zig");
const socket = @import("socket.zig");
const HeldPort = @import("fixture.zig").HeldPort;
const Instant = base.Instant;
const ms = std.time.ns_per_ms;

/// Asked by a blocked thread of the user; true withdraws what it waits for.
pub const Interrupt = struct {
    function: ?*const fn (?*anyopaque) callconv(.c) c_int = null,
    context: ?*anyopaque = null,

    /// How long a thread waits between two questions.
    pub const period_ns = 50 * ms;

    pub fn asked(interrupt: Interrupt) bool {
        const function = interrupt.function orelse return false;
        return function(interrupt.context) != 0;
    }

    /// When a thread that waits until `deadline` must look up.
    pub fn next_look(interrupt: Interrupt, now: Instant, deadline: Instant) Instant {
        if (interrupt.function == null) return deadline;
        return @min(deadline, now + period_ns);
    }

    /// Waits for the signal. False: the deadline has passed.
    pub fn wait(
        interrupt: Interrupt,
        signal: *lock.Signal,
        deadline: Instant,
    ) error{Interrupted}!bool {
        while (true) {
            const now = clock.now();
            if (signal.wait(interrupt.next_look(now, deadline))) return true;
            if (interrupt.asked()) return error.Interrupted;
            if (clock.now() >= deadline) return false;
        }
    }
};

pub const Error = address.LookUpError || resolver.Lookup.Error || socket.ConnectError ||
    socket.OpenError || error{Interrupted};

pub const Options = struct {
    deadline: Instant,
    interrupt: Interrupt = .{},
    /// Spreads the attempts of many peers that start at once.
    seed: u64,
};

const pause_ns_first = 20 * ms;
const pause_ns_max = 400 * ms;

/// A connected socket. A name that is unknown fails at once; a host that refuses or does not
/// answer is tried again until the deadline, which the log says once, and then gives the last
/// failure.
pub fn connect(endpoint: address.Endpoint, options: Options) Error!socket.Fd {
    const addresses = address.numeric(endpoint) orelse try look_up(endpoint, options);
    var prng = base.Prng.init(options.seed);
    var pause_ns: u64 = pause_ns_first;
    var is_told = false;
    while (true) {
        var failure: Error = error.Unreachable;
        for (addresses.slice()) |*to| {
            if (connect_once(to, options)) |fd| return fd else |err| failure = err;
            if (failure != error.Refused and failure != error.Unreachable) return failure;
        }
        if (clock.now() >= options.deadline) return failure;
        if (!is_told) tell(endpoint, failure);
        is_told = true;
        const until = clock.after(prng.between(pause_ns / 2, pause_ns));
        var nobody: lock.Signal = .{};
        _ = try options.interrupt.wait(&nobody, @min(until, options.deadline));
        pause_ns = @min(pause_ns * 2, pause_ns_max);
    }
}

fn tell(endpoint: address.Endpoint, failure: Error) void {
    log.print(.info, "the coordinator at {f} is not reached: {s}; trying again", .{
        endpoint,
        switch (failure) {
            error.Refused => "the connection was refused",
            else => "no answer, or no route",
        },
    });
}

fn look_up(endpoint: address.Endpoint, options: Options) Error!address.AddressList {
    const lookup = try resolver.Lookup.start(endpoint, -1);
    defer lookup.release();
    if (!try options.interrupt.wait(&lookup.done, options.deadline)) return error.NameLookupFailed;
    return lookup.result;
}

fn connect_once(to: *const address.Address, options: Options) Error!socket.Fd {
    const fd = try socket.connect_start(to);
    errdefer socket.close(fd);
    const deadline = @min(options.deadline, clock.after(base.limits.dial_ns_max));
    if (!try wait_socket(fd, .write, deadline, options.interrupt)) return error.Unreachable;
    try socket.connect_finish(fd);
    return fd;
}

/// Waits until the socket is ready. False: the deadline has passed.
pub fn wait_socket(
    fd: socket.Fd,
    direction: socket.Direction,
    deadline: Instant,
    interrupt: Interrupt,
) error{Interrupted}!bool {
    while (true) {
        const now = clock.now();
        const wait_ns = @min(interrupt.next_look(now, deadline) -| now, std.time.ns_per_hour);
        const wait_ms = std.math.divCeil(u64, wait_ns, ms) catch unreachable;
        if (socket.wait_for(fd, direction, @intCast(wait_ms))) return true;
        if (interrupt.asked()) return error.Interrupted;
        if (clock.now() >= deadline) return false;
    }
}

test "a port where nothing listens is tried until the deadline, and then refused" {
    const held = try HeldPort.init();
    defer held.deinit();
    const deadline = clock.after(60 * ms);
    const result = connect(held.endpoint(), .{ .deadline = deadline, .seed = 1 });
    try std.testing.expectError(error.Refused, result);
    try std.testing.expect(clock.now() >= deadline);
}

test "an unknown name fails at once, and a listener that comes late is found" {
    const unknown: address.Endpoint = .{ .host = "no-such-host.invalid", .port = 1 };
    const far = clock.after(30 * std.time.ns_per_s);
    const failed = connect(unknown, .{ .deadline = far, .seed = 1 });
    try std.testing.expect(failed == error.NameNotFound or failed == error.NameLookupFailed);

    const Late = struct {
        asked: u32 = 0,
        held: HeldPort,

        // The interrupt is asked between attempts: after some of them, somebody listens.
        fn look(context: ?*anyopaque) callconv(.c) c_int {
            const late: *@This() = @ptrCast(@alignCast(context));
            late.asked += 1;
            if (late.asked == 2) late.held.listen() catch return 1;
            return 0;
        }
    };
    var late: Late = .{ .held = try .init() };
    defer late.held.deinit();
    const fd = try connect(late.held.endpoint(), .{
        .deadline = far,
        .seed = 1,
        .interrupt = .{ .function = Late.look, .context = &late },
    });
    socket.close(fd);
    try std.testing.expect(late.asked >= 2);
}

test "whoever waits may withdraw" {
    const Ask = struct {
        fn now(_: ?*anyopaque) callconv(.c) c_int {
            return 1;
        }
    };
    const held = try HeldPort.init();
    defer held.deinit();
    const result = connect(held.endpoint(), .{
        .deadline = clock.after(30 * std.time.ns_per_s),
        .seed = 1,
        .interrupt = .{ .function = Ask.now },
    });
    try std.testing.expectError(error.Interrupted, result);
    // It is asked long before the wait would end.
    const interrupt: Interrupt = .{ .function = Ask.now };
    const far = clock.after(20 * std.time.ns_per_s);
    var nobody: lock.Signal = .{};
    try std.testing.expectError(error.Interrupted, interrupt.wait(&nobody, far));
    try std.testing.expect(clock.now() < far);
}
