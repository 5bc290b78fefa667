//! tcp: what the system knows of a connection (TCP_INFO), and what it is told of it: how fast to
//! send (SO_MAX_PACING_RATE), how much it may hold without sending it (TCP_NOTSENT_LOWAT), and in
//! all (SO_SNDBUF). None of it needs a right. Linux alone has all of it. Elsewhere a lane is known
//! by the bytes that its socket took, and paced.zig holds it back. Which congestion control it has:
//! congestion.zig. For what follows from samples, see session/measure.zig.

const std = @import("std");
const builtin = @import("builtin");
const session = @import("session");
const log = @import("log.zig");
const socket = @import("socket.zig");
const c = std.c;
const Fd = socket.Fd;
const Pace = session.Pace;
const Sample = session.Sample;

const on_linux = builtin.os.tag == .linux;

/// struct tcp_info as of Linux 4.19. A kernel that is older fills less of it; one that is newer
/// cuts it off.
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

/// The system, as the lanes of a peer have it.
pub const System = struct {
    /// It has neither TCP_INFO nor SO_MAX_PACING_RATE.
    is_bare: bool = !on_linux,
    was_said: bool = false,

    pub const EnvironmentError = error{Unknown};

    /// PCCL_FAULT_TCP=bare has tests take this system for one that is.
    pub fn from_environment() EnvironmentError!System {
        const said = std.mem.span(std.c.getenv("PCCL_FAULT_TCP") orelse return .{});
        if (said.len == 0) return .{};
        return if (std.mem.eql(u8, said, "bare")) .{ .is_bare = true } else error.Unknown;
    }

    /// `taken`: the bytes that the socket has taken. Null: nothing is known.
    pub fn sample(system: *System, fd: Fd, taken: u64) ?Sample {
        if (!system.is_bare) if (whole_sample(fd)) |found| return found;
        if (!system.was_said) log.put(.info, bare);
        system.was_said = true;
        const acked = taken -| (unsent(fd) orelse return null);
        return .{ .acked = acked };
    }

    const bare = "this system does not say how connections carry bytes (TCP_INFO): links are " ++
        "known by the bytes that they take, and by how long it took to connect";

    /// Whether it keeps to the rate. It is left as it is where it refuses the rest.
    pub fn pace(system: *const System, fd: Fd, wanted: Pace) bool {
        if (system.is_bare or !on_linux) return false;
        const rate: u64 = if (wanted.rate == 0) std.math.maxInt(u64) else wanted.rate;
        const keeps = c.setsockopt(fd, c.SOL.SOCKET, c.SO.MAX_PACING_RATE, &rate, @sizeOf(u64));
        const most: c_int = if (wanted.unsent_max == 0) -1 else @intCast(wanted.unsent_max);
        _ = c.setsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.NOTSENT_LOWAT, &most, @sizeOf(c_int));
        // Linux doubles it, because it counts headers, too. By itself it lets over 2 MiB pile up on
        // each lane, and both copies go through memory (docs/BENCHMARKS.md).
        const held: c_int = @intCast(wanted.held_max);
        if (held > 0) _ = c.setsockopt(fd, c.SOL.SOCKET, c.SO.SNDBUF, &held, @sizeOf(c_int));
        return keeps == 0;
    }
};

/// Bytes that the socket has taken and the other side has not acknowledged.
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

/// std.c does not know these.
const siocoutq = 0x5411;
const so_nwrite = 0x1024;

/// Null where the system does not say how much was acknowledged.
fn whole_sample(fd: Fd) ?Sample {
    if (!on_linux) return null;
    var info: Info = std.mem.zeroes(Info);
    var length: c.socklen_t = @sizeOf(Info);
    if (c.getsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.INFO, &info, &length) != 0) return null;
    return told(&info, length);
}

/// As far as the kernel has filled it in. Times are 32 bits of microseconds, so no product is too
/// large.
fn told(info: *const Info, length: usize) ?Sample {
    if (length < @offsetOf(Info, "data_segs_in")) return null;
    const whole = length >= @sizeOf(Info);
    const again = if (whole) info.bytes_retrans else @as(u64, info.total_retrans) * info.snd_mss;
    const base_us = if (info.min_rtt_us == no_rtt) info.rtt_us else info.min_rtt_us;
    return .{
        // Packets after a gap have arrived as well. Without them one that is lost would look like
        // a pause and then a burst.
        .acked = info.bytes_acked +| @as(u64, info.sacked) * info.snd_mss,
        .retransmitted = again,
        .unsent = info.notsent_bytes,
        .rtt_ns = @as(u64, info.rtt_us) * std.time.ns_per_us,
        .base_ns = @as(u64, base_us) * std.time.ns_per_us,
    };
}

const no_rtt = std.math.maxInt(u32);

pub const ControlName = [16]u8;

/// Null where the system does not say.
pub fn congestion_of(fd: Fd, room: *ControlName) ?[]const u8 {
    if (!on_linux) return null;
    room.* = @splat(0);
    var length: c.socklen_t = room.len;
    if (c.getsockopt(fd, c.IPPROTO.TCP, std.os.linux.TCP.CONGESTION, room, &length) != 0)
        return null;
    return std.mem.sliceTo(room, 0);
}

test "a connection that has moved bytes says so, and takes a pace" {
    if (!on_linux) return;
    const pair = try @import("fixture.zig").Pair.init();
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
    try std.testing.expectEqual(1000, try socket.send(server, &.{&bytes})); // acknowledges as well
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
    const pair = try @import("fixture.zig").Pair.init();
    defer pair.deinit();
    var text: [log.line_bytes_max]u8 = undefined;
    while (log.process.take(&text)) |_| {}
    var system: System = .{ .is_bare = true };
    const bytes: [1000]u8 = @splat(1);
    try std.testing.expectEqual(1000, try socket.send(pair.client, &.{&bytes}));
    try std.testing.expect(socket.wait_for(pair.server, .read, 5000));
    var room: [1000]u8 = undefined;
    try std.testing.expectEqual(1000, try socket.receive(pair.server, &.{&room}));
    try std.testing.expectEqual(1, try socket.send(pair.server, &.{"x"})); // acknowledges as well
    try std.testing.expect(socket.wait_for(pair.client, .read, 5000));
    const known = system.sample(pair.client, 1000).?;
    try std.testing.expectEqual(Sample{ .acked = 1000 }, known);
    // More than a connection takes: what it holds does not count.
    var taken: u64 = 1000;
    const much: [64 << 10]u8 = @splat(1);
    while (socket.send(pair.client, &.{&much})) |count| taken += count else |_| {}
    try std.testing.expect(system.sample(pair.client, taken).?.acked < taken);
    try std.testing.expect(!system.pace(pair.client, .{ .rate = 1 << 30 }));
    const line = log.process.take(&text).?;
    try std.testing.expect(std.mem.indexOf(u8, line.text, "TCP_INFO") != null);
    try std.testing.expectEqual(null, log.process.take(&text)); // once
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
