//! tcp: what the library learns from the system about a connection, and what it asks for. The
//! system tells how bytes move (TCP_INFO). The system is told how fast to send
//! (SO_MAX_PACING_RATE), how many bytes it may hold unsent (TCP_NOTSENT_LOWAT) and in all
//! (SO_SNDBUF), and which congestion control a lane has (TCP_CONGESTION). Only some congestion
//! controls need a right. Only Linux has all of these options. Elsewhere a lane is known by the
//! bytes that its socket took, and a Pacer limits its rate. session/measure.zig draws conclusions
//! from the samples, and session/flow.zig says what each lane needs.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const session = @import("session");
const log = @import("log.zig");
const socket = @import("socket.zig");
const Pair = @import("fixture.zig").Pair;
const c = std.c;
const Fd = socket.Fd;
const Instant = base.Instant;
const Pace = session.Pace;
const Sample = session.Sample;

const on_linux = builtin.os.tag == .linux;

/// struct tcp_info as of Linux 4.19. An older kernel fills in less of it; a newer kernel fills in
/// no more.
const Info = extern struct {
    states: [8]u8,
    rto_us: u32,
    ato_us: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_ms: [4]u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt_us: u32,
    rtt_var_us: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt_us: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt_us: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_us: u64,
    rwnd_limited_us: u64,
    sndbuf_limited_us: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,

    comptime {
        std.debug.assert(@offsetOf(Info, "bytes_acked") == 120);
        std.debug.assert(@offsetOf(Info, "min_rtt_us") == 148);
        std.debug.assert(@sizeOf(Info) == 216);
    }
};

/// The abilities of the system, as the lanes of a peer find them.
pub const System = struct {
    /// The system has neither TCP_INFO nor SO_MAX_PACING_RATE.
    is_bare: bool = !on_linux,
    /// The log has said that the system is bare.
    was_said: bool = false,

    pub const EnvironmentError = error{Unknown};

    /// Reads PCCL_FAULT_TCP: with the value "bare", for tests, this system is taken for a bare one.
    pub fn from_environment() EnvironmentError!System {
        const said = std.mem.span(c.getenv("PCCL_FAULT_TCP") orelse return .{});
        if (said.len == 0) return .{};
        return if (std.mem.eql(u8, said, "bare")) .{ .is_bare = true } else error.Unknown;
    }

    /// Samples a connection. `taken` is the number of bytes that its socket has taken. Null means
    /// that the system knows nothing of the connection.
    pub fn sample(system: *System, fd: Fd, taken: u64) ?Sample {
        if (!system.is_bare) if (whole_sample(fd)) |found| return found;
        if (!system.was_said) log.put(.info, bare);
        system.was_said = true;
        const acked = taken -| (unsent(fd) orelse return null);
        return .{ .acked = acked };
    }

    const bare = "this system does not say how connections carry bytes (TCP_INFO): links are " ++
        "known by the bytes that they take, and by how long it took to connect";

    /// Tells the system the pace of a connection. Returns whether the system keeps to the rate. A
    /// setting that the system refuses stays as it was.
    pub fn pace(system: *const System, fd: Fd, wanted: Pace) bool {
        if (system.is_bare or !on_linux) return false;
        const rate: u64 = if (wanted.rate == 0) std.math.maxInt(u64) else wanted.rate;
        const keeps = c.setsockopt(fd, c.SOL.SOCKET, c.SO.MAX_PACING_RATE, &rate, @sizeOf(u64));
        const most: c_int = if (wanted.unsent_max == 0) -1 else @intCast(wanted.unsent_max);
        _ = c.setsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.NOTSENT_LOWAT, &most, @sizeOf(c_int));
        // Linux doubles the size, because it counts headers, too. Without this limit Linux lets
        // over 2 MiB pile up on each lane, and both copies go through memory
        // (docs/internals/BENCHMARKS.md).
        const held: c_int = @intCast(wanted.held_max);
        if (held > 0) _ = c.setsockopt(fd, c.SOL.SOCKET, c.SO.SNDBUF, &held, @sizeOf(c_int));
        return keeps == 0;
    }
};

/// The number of bytes that the socket has taken and the other side has not acknowledged.
fn unsent(fd: Fd) ?u64 {
    var bytes: c_int = 0;
    var length: c.socklen_t = @sizeOf(c_int);
    const failed = if (on_linux)
        c.ioctl(fd, siocoutq, &bytes)
    else if (builtin.os.tag.isDarwin())
        c.getsockopt(fd, c.SOL.SOCKET, so_nwrite, &bytes, &length)
    else
        return null;
    return if (failed == 0 and bytes >= 0) @intCast(bytes) else null;
}

/// SIOCOUTQ and SO_NWRITE, which std.c lacks.
const siocoutq = 0x5411;
const so_nwrite = 0x1024;

/// A sample from TCP_INFO; null if the system does not say how much was acknowledged.
fn whole_sample(fd: Fd) ?Sample {
    if (!on_linux) return null;
    var info: Info = std.mem.zeroes(Info);
    var length: c.socklen_t = @sizeOf(Info);
    if (c.getsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.INFO, &info, &length) != 0) return null;
    return told(&info, length);
}

/// Makes a sample of the fields that the kernel has filled in. Times are 32 bits of microseconds,
/// so no product is too large.
fn told(info: *const Info, length: usize) ?Sample {
    if (length < @offsetOf(Info, "data_segs_in")) return null;
    const whole = length >= @sizeOf(Info);
    const again = if (whole) info.bytes_retrans else @as(u64, info.total_retrans) * info.snd_mss;
    const base_us = if (info.min_rtt_us == no_rtt) info.rtt_us else info.min_rtt_us;
    return .{
        // Packets behind a gap have arrived as well: if they did not count, a lost packet would
        // look like a pause and then a burst.
        .acked = info.bytes_acked +| @as(u64, info.sacked) * info.snd_mss,
        .retransmitted = again,
        .unsent = info.notsent_bytes,
        .rtt_ns = @as(u64, info.rtt_us) * std.time.ns_per_us,
        .base_ns = @as(u64, base_us) * std.time.ns_per_us,
    };
}

const no_rtt = std.math.maxInt(u32);

// ---- congestion control

/// The type pccl_congestion_t of pccl.h.
pub const Congestion = enum(c_uint) { auto = 0, system = 1, bbr = 2, cubic = 3 };

/// The user's choice of a congestion control, for all lanes of a peer. Where the user leaves it to
/// the library (`auto`), session/flow.zig says what each lane needs.
pub const CongestionChoice = struct {
    congestion: Congestion = .auto,
    /// The system has refused the choice, and the log has said so.
    was_refused: bool = false,

    /// Sets the choice on a lane that is connected. `listener`: a socket that has the system's
    /// congestion control.
    pub fn apply(choice: *CongestionChoice, fd: Fd, listener: Fd) void {
        var room: ControlName = undefined;
        const name = switch (choice.congestion) {
            .auto => return,
            // Within a machine a connection has reno (socket.zig: tune_within_machine).
            .system => congestion_of(listener, &room) orelse return,
            .bbr, .cubic => |wanted| @tagName(wanted),
        };
        if (socket.control_congestion(fd, name) or choice.was_refused) return;
        choice.was_refused = true;
        log.print(.warning, refusal, .{ name, name, name });
    }

    /// Gives a lane the congestion control that the library wants for it, if the user has left the
    /// choice to the library.
    pub fn change(
        choice: *const CongestionChoice,
        fd: Fd,
        wanted: Pace.Control,
        before: *CongestionBefore,
    ) void {
        if (choice.congestion != .auto) return;
        switch (wanted) {
            .system => before.restore(fd),
            // Only cubic has HyStart, so only cubic is replaced. Every Linux has reno and lets
            // every process use it. If this process may not choose cubic, which the route to a host
            // may have set, the lane could not go back to it.
            .starting => if (is_of(fd, "cubic") and socket.may_control_congestion("cubic"))
                before.replace(fd, "reno"),
            .loss_tolerant => before.replace(fd, "bbr"),
        }
    }

    /// Restarts the bbr of a lane. Otherwise bbr would stop sending for a moment, ten seconds after
    /// it began or last saw the shortest round trip. `listener` has the system's congestion
    /// control.
    pub fn renew(choice: *const CongestionChoice, fd: Fd, listener: Fd) void {
        if (choice.congestion == .system or !is_of(fd, "bbr")) return;
        if (!socket.control_congestion(fd, "reno") or socket.control_congestion(fd, "bbr")) return;
        // This process has meanwhile lost the permission to use bbr.
        var room: ControlName = undefined;
        const system = congestion_of(listener, &room) orelse return;
        _ = socket.control_congestion(fd, system);
    }

    fn is_of(fd: Fd, name: []const u8) bool {
        var room: ControlName = undefined;
        return std.mem.eql(u8, congestion_of(fd, &room) orelse return false, name);
    }

    const refusal = "this system does not let this process use the congestion control {s}, so " ++
        "lanes keep the system's: an administrator can load it (modprobe tcp_{s}) and add it to " ++
        "net.ipv4.tcp_allowed_congestion_control (sysctl), or connect without congestion={s}";
};

/// The congestion control that a lane had before the library changed it; empty: no change yet.
pub const CongestionBefore = struct {
    room: ControlName = @splat(0),

    fn replace(before: *CongestionBefore, fd: Fd, name: []const u8) void {
        var room: ControlName = undefined;
        const own = congestion_of(fd, &room) orelse return;
        if (!socket.control_congestion(fd, name)) return before.restore(fd);
        if (before.room[0] == 0) @memcpy(before.room[0..own.len], own);
    }

    fn restore(before: *CongestionBefore, fd: Fd) void {
        if (before.room[0] == 0) return;
        _ = socket.control_congestion(fd, std.mem.sliceTo(&before.room, 0));
        before.room = @splat(0);
    }
};

const ControlName = [16]u8;

/// The congestion control of a socket; null if the system does not say.
fn congestion_of(fd: Fd, room: *ControlName) ?[]const u8 {
    if (!on_linux) return null;
    room.* = @splat(0);
    var length: c.socklen_t = room.len;
    if (c.getsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.CONGESTION, room, &length) != 0)
        return null;
    return std.mem.sliceTo(room, 0);
}

// ---- pacing

/// How many bytes of a lane may leave now, if the system does not keep to a rate by itself: a
/// bucket that fills with time, and that sending empties. The engine asks the lane for no more
/// bytes than the bucket holds, and wakes when the bucket holds a step's worth again. If the system
/// keeps to the rate, or there is no rate, everything may leave. A Pacer uses no socket and no
/// clock.
pub const Pacer = struct {
    bucket: Bucket = .{},
    /// Bytes that the socket has taken since it was opened.
    taken: u64 = 0,
    /// The lane waits until its bucket has filled, when the engine gives it a turn.
    waits: bool = false,

    /// Whether bytes of the lane may leave now. If no byte may, `wake_at` becomes the time when the
    /// bucket opens, unless `wake_at` is earlier.
    pub fn is_open(out: *Pacer, now: Instant, wake_at: *Instant) bool {
        if (out.bucket.is_open(now)) return true;
        out.waits = true;
        wake_at.* = @min(wake_at.*, out.bucket.opens_at());
        return false;
    }

    /// Cuts the slices to the bytes that may leave now.
    pub fn cut(out: *const Pacer, now: Instant, slices: [][]const u8) []const []const u8 {
        var room = out.bucket.room(now);
        for (slices, 0..) |*slice, index| {
            if (slice.len >= room) {
                slice.* = slice.*[0..@intCast(room)];
                return slices[0 .. index + 1];
            }
            room -= slice.len;
        }
        return slices;
    }

    pub fn took(out: *Pacer, now: Instant, count: usize) void {
        out.taken += count;
        out.bucket.take(now, count);
    }
};

const Bucket = struct {
    /// The rate of the lane in bytes per second; 0: no limit.
    rate: u64 = 0,
    /// When the bucket will be full, if nothing more is taken.
    full_at: Instant = 0,

    /// The least step; less is not worth a wake.
    const step_ns_min = 1 * std.time.ns_per_ms;
    const step_bytes_min = 1448;
    /// The number of steps that a full bucket holds, so that an engine that wakes late can catch
    /// up.
    const steps = 4;

    /// The number of bytes that may leave now without exceeding the rate.
    fn room(bucket: *const Bucket, now: Instant) u64 {
        if (bucket.rate == 0) return std.math.maxInt(u64);
        const held_ns = steps * bucket.step_ns() -| (bucket.full_at -| now);
        return bucket.rate *| held_ns / std.time.ns_per_s;
    }

    /// Whether the bucket holds the bytes of a step, so that the lane may send.
    fn is_open(bucket: *const Bucket, now: Instant) bool {
        return bucket.rate == 0 or bucket.opens_at() <= now;
    }

    fn opens_at(bucket: *const Bucket) Instant {
        return bucket.full_at -| (steps - 1) * bucket.step_ns();
    }

    fn take(bucket: *Bucket, now: Instant, count: usize) void {
        if (bucket.rate > 0) bucket.full_at = @max(bucket.full_at, now) +| bucket.ns_of(count);
    }

    fn step_ns(bucket: *const Bucket) u64 {
        return @max(step_ns_min, bucket.ns_of(step_bytes_min));
    }

    fn ns_of(bucket: *const Bucket, bytes: u64) u64 {
        return bytes *| std.time.ns_per_s / bucket.rate;
    }
};

// ---- tests

test "a connection that has moved bytes says so, and takes a pace" {
    if (!on_linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    const client = pair.client;
    const server = pair.server;
    var system: System = .{};
    const before = system.sample(client, 0).?;
    try std.testing.expect(system.pace(client, .{ .rate = 1 << 30, .unsent_max = 64 << 10 }));
    var rate: u64 = 0;
    var length: c.socklen_t = @sizeOf(u64);
    const got = c.getsockopt(client, c.SOL.SOCKET, c.SO.MAX_PACING_RATE, &rate, &length);
    try std.testing.expectEqual(0, got);
    try std.testing.expectEqual(1 << 30, rate);
    const held: c_int = 96 << 10;
    _ = system.pace(client, .{ .held_max = held });
    var buffer: c_int = 0;
    length = @sizeOf(c_int);
    const said = c.getsockopt(client, c.SOL.SOCKET, c.SO.SNDBUF, &buffer, &length);
    try std.testing.expectEqual(0, said);
    try std.testing.expectEqual(2 * held, buffer);
    const bytes: [1000]u8 = @splat(1);
    try std.testing.expectEqual(1000, try socket.send(client, &.{&bytes}));
    try std.testing.expect(socket.wait_for(server, .read, 5000));
    var room: [1000]u8 = undefined;
    try std.testing.expectEqual(1000, try socket.receive(server, &.{&room}));
    try std.testing.expectEqual(1000, try socket.send(server, &.{&bytes})); // brings an ACK as well
    try std.testing.expect(socket.wait_for(client, .read, 5000));
    const after = system.sample(client, 0).?;
    try std.testing.expect(!system.was_said);
    try std.testing.expectEqual(1000, after.acked - before.acked);
    const most_ns = after.rtt_ns + std.time.ns_per_ms;
    try std.testing.expect(after.base_ns > 0 and after.base_ns <= most_ns);
    try std.testing.expect(!socket.control_congestion(client, "no such"));
    try std.testing.expect(socket.control_congestion(client, "reno"));
}

test "where the system says nothing, a connection is known by what the other side has taken" {
    if (!on_linux and !builtin.os.tag.isDarwin()) return;
    const pair = try Pair.init();
    defer pair.deinit();
    var text: [log.line_bytes_max]u8 = undefined;
    while (log.process.take(&text)) |_| {}
    var system: System = .{ .is_bare = true };
    const bytes: [1000]u8 = @splat(1);
    try std.testing.expectEqual(1000, try socket.send(pair.client, &.{&bytes}));
    try std.testing.expect(socket.wait_for(pair.server, .read, 5000));
    var room: [1000]u8 = undefined;
    try std.testing.expectEqual(1000, try socket.receive(pair.server, &.{&room}));
    try std.testing.expectEqual(1, try socket.send(pair.server, &.{"x"})); // brings an ACK as well
    try std.testing.expect(socket.wait_for(pair.client, .read, 5000));
    const known = system.sample(pair.client, 1000).?;
    try std.testing.expectEqual(Sample{ .acked = 1000 }, known);
    // Bytes that the connection holds, because the other side does not read, do not count as
    // acknowledged.
    var taken: u64 = 1000;
    const much: [64 << 10]u8 = @splat(1);
    while (socket.send(pair.client, &.{&much})) |count| taken += count else |_| {}
    try std.testing.expect(system.sample(pair.client, taken).?.acked < taken);
    try std.testing.expect(!system.pace(pair.client, .{ .rate = 1 << 30 }));
    const line = log.process.take(&text).?;
    try std.testing.expect(std.mem.indexOf(u8, line.text, "TCP_INFO") != null);
    try std.testing.expectEqual(null, log.process.take(&text)); // the log says it once
}

test "an older kernel says less" {
    var info: Info = std.mem.zeroes(Info);
    info.total_retrans = 3;
    info.snd_mss = 1448;
    info.bytes_retrans = 5000;
    info.bytes_acked = 7000;
    info.sacked = 2;
    info.rtt_us = 100;
    info.min_rtt_us = no_rtt;
    try std.testing.expectEqual(null, told(&info, @offsetOf(Info, "bytes_acked")));
    const older = told(&info, @offsetOf(Info, "delivery_rate")).?;
    try std.testing.expectEqual(3 * 1448, older.retransmitted);
    try std.testing.expectEqual(7000 + 2 * 1448, older.acked);
    try std.testing.expectEqual(older.rtt_ns, older.base_ns);
    try std.testing.expectEqual(5000, told(&info, @sizeOf(Info)).?.retransmitted);
}

test "the user's choice is that of a lane, within a machine too" {
    if (!on_linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    const client = pair.client;
    var room: ControlName = undefined;
    var system: ControlName = undefined;
    var choice: CongestionChoice = .{};
    choice.apply(client, pair.listener);
    try std.testing.expectEqualStrings("reno", congestion_of(client, &room).?);
    choice.congestion = .system;
    choice.apply(client, pair.listener);
    const expected = congestion_of(pair.listener, &system).?;
    try std.testing.expectEqualStrings(expected, congestion_of(client, &room).?);
    try std.testing.expect(!choice.was_refused);
    choice.congestion = .cubic;
    choice.apply(client, pair.listener);
    if (choice.was_refused) return;
    try std.testing.expectEqualStrings("cubic", congestion_of(client, &room).?);
}

test "the library chooses for a lane, unless its user has chosen" {
    if (!on_linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    const client = pair.client;
    var room: ControlName = undefined;
    var of_system: ControlName = undefined;
    const system = congestion_of(pair.listener, &of_system).?;
    const is_cubic = std.mem.eql(u8, system, "cubic");
    var choice: CongestionChoice = .{ .congestion = .system };
    var before: CongestionBefore = .{};
    choice.apply(client, pair.listener);
    choice.change(client, .starting, &before);
    try std.testing.expectEqualStrings(system, congestion_of(client, &room).?);
    choice.congestion = .auto;
    choice.change(client, .starting, &before);
    const starting = if (is_cubic) "reno" else system;
    try std.testing.expectEqualStrings(starting, congestion_of(client, &room).?);
    choice.change(client, .loss_tolerant, &before);
    const is_bbr = std.mem.eql(u8, "bbr", congestion_of(client, &room).?);
    choice.renew(client, pair.listener);
    // Without bbr the lane gets the system's congestion control, not the one that it began with.
    const tolerant = if (is_bbr) "bbr" else system;
    try std.testing.expectEqualStrings(tolerant, congestion_of(client, &room).?);
    choice.change(client, .system, &before);
    try std.testing.expectEqualStrings(system, congestion_of(client, &room).?);
    // A congestion control that other code has chosen stays: reno within a machine.
    try std.testing.expect(socket.control_congestion(client, "reno"));
    before = .{};
    for ([_]Pace.Control{ .starting, .system }) |wanted| choice.change(client, wanted, &before);
    try std.testing.expectEqualStrings("reno", congestion_of(client, &room).?);
}

test "a lane goes back to what it had before the first change, if the library may change it" {
    if (!on_linux) return;
    const pair = try Pair.init();
    defer pair.deinit();
    var room: ControlName = undefined;
    if (!socket.control_congestion(pair.client, "cubic")) return error.SkipZigTest;
    var before: CongestionBefore = .{};
    for (0..2) |_| before.replace(pair.client, "reno");
    const user: CongestionChoice = .{ .congestion = .system };
    user.change(pair.client, .system, &before);
    try std.testing.expectEqualStrings("reno", congestion_of(pair.client, &room).?);
    const library: CongestionChoice = .{};
    library.change(pair.client, .system, &before);
    try std.testing.expectEqualStrings("cubic", congestion_of(pair.client, &room).?);
}

test "it is known what a process may choose" {
    if (!on_linux) return;
    try std.testing.expect(socket.may_control_congestion("reno"));
    try std.testing.expect(!socket.may_control_congestion("no such"));
}

test "a congestion control that the system refuses is said once, and the lane keeps its own" {
    // Goal: the log has one line about the refusal, for all lanes. Method: the socket is closed, so
    // the system refuses to set anything.
    var text: [log.line_bytes_max]u8 = undefined;
    while (log.process.take(&text)) |_| {}
    var choice: CongestionChoice = .{ .congestion = .bbr };
    for (0..3) |_| choice.apply(-1, -1);
    const line = log.process.take(&text).?;
    try std.testing.expectEqual(.warning, line.level);
    for ([_][]const u8{ "bbr", "modprobe tcp_bbr", "tcp_allowed_congestion_control" }) |word|
        try std.testing.expect(std.mem.indexOf(u8, line.text, word) != null);
    try std.testing.expectEqual(null, log.process.take(&text));
}

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

test "an engine that wakes when it should, or late, sends at the rate and never more" {
    // Goal: no more leaves in any time than the rate and a full bucket, and not much less. Method:
    // a lane that always has bytes, looked at when its bucket opens, up to three steps late.
    const ms = std.time.ns_per_ms;
    var prng: base.Prng = .init(7);
    for ([_]u64{ 1_000, 100_000, 2_500_000, 1_250_000_000, 1_250_000_000_000 }) |rate| {
        var bucket: Bucket = .{ .rate = rate };
        const begun: Instant = 1_000 * ms;
        var now = begun;
        const full = bucket.room(now);
        try expect(full >= 4 * 1447 and full >= rate / 1000 * 4);
        var sent: u64 = 0;
        for (0..1000) |_| {
            now = @max(now, bucket.opens_at()) + prng.below(3 * bucket.step_ns());
            try expect(bucket.is_open(now));
            const count = bucket.room(now);
            try expect(count > 0 and count <= full);
            sent += count;
            bucket.take(now, @intCast(count));
            const due = (now - begun) / 1000 * rate / 1_000_000;
            try expect(sent <= due + due / 1000 + full + 1000);
            try expect(sent + full >= due - due / 1000);
        }
    }
}

test "a bucket that was emptied opens after a step, and not before" {
    var bucket: Bucket = .{ .rate = 10_000_000 };
    const now: Instant = std.time.ns_per_s;
    bucket.take(now, @intCast(bucket.room(now)));
    try expectEqual(0, bucket.room(now));
    try expectEqual(now + std.time.ns_per_ms, bucket.opens_at());
    try expect(!bucket.is_open(bucket.opens_at() - 1));
    try expectEqual(10_000, bucket.room(bucket.opens_at()));
    // A time without sending fills the bucket once, not more.
    try expectEqual(40_000, bucket.room(now + std.time.ns_per_hour));
}

test "slices are cut where the bucket ends, and left alone where there is no rate" {
    var out: Pacer = .{};
    const bytes: [50_000]u8 = undefined;
    var slices = [_][]const u8{ bytes[0..1_000], &bytes };
    try expectEqual(50_000, out.cut(1, &slices)[1].len);
    out.took(1, 51_000);
    try expectEqual(51_000, out.taken);
    try expectEqual(0, out.bucket.full_at);
    out.bucket.rate = 10_000_000;
    const cut = out.cut(1, &slices);
    try expectEqual(40_000, cut[0].len + cut[1].len);
    var first = [_][]const u8{ &bytes, bytes[0..7] };
    try expectEqual(1, out.cut(1, &first).len);
}

test "a lane whose bucket is empty waits, and the engine wakes for the first that opens" {
    var out: Pacer = .{ .bucket = .{ .rate = 10_000_000 } };
    var wake_at: Instant = base.never;
    const now: Instant = std.time.ns_per_s;
    try expect(out.is_open(now, &wake_at) and !out.waits);
    try expectEqual(base.never, wake_at);
    out.took(now, 40_000);
    try expect(!out.is_open(now, &wake_at) and out.waits);
    try expectEqual(now + std.time.ns_per_ms, wake_at);
    wake_at = now; // another lane wakes the engine earlier
    try expect(!out.is_open(now, &wake_at));
    try expectEqual(now, wake_at);
}
