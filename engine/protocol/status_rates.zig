//! StatusRates: how often a host may ask for the status. An answer costs the time that it took to
//! make. A host has 8 s of it ahead, and gets back a second each second: in the end large answers
//! come once a second, small ones hundreds of times.

const std = @import("std");
const base = @import("base");
const Instant = base.Instant;

pub const StatusRates = struct {
    hosts: [hosts_max]Host = @splat(.{}),

    /// When there are more, the rest share one.
    const hosts_max = 256;
    const ahead_ns = 8 * std.time.ns_per_s;
    const cost_ns_max = std.time.ns_per_s;
    const cost_ns_min = 2 * std.time.ns_per_ms;
    /// An answer of this length, and of any above, costs a second.
    const large_bytes = 256 * base.limits.KiB;

    const Host = struct {
        source: base.Source = @splat(0),
        /// By then all that it has had is paid for.
        paid_at: Instant = 0,
    };

    pub fn may_ask(rates: *StatusRates, source: base.Source, now: Instant) bool {
        return rates.host_of(source, now).paid_at <= now +| ahead_ns;
    }

    pub fn charge(rates: *StatusRates, source: base.Source, now: Instant, bytes: usize) void {
        const host = rates.host_of(source, now);
        const share = @as(u64, @min(bytes, large_bytes)) * cost_ns_max / large_bytes;
        host.paid_at = @max(host.paid_at, now) +| @max(share, cost_ns_min);
    }

    fn host_of(rates: *StatusRates, source: base.Source, now: Instant) *Host {
        const key = network_of(source);
        var place: ?*Host = null;
        for (rates.hosts[0 .. hosts_max - 1]) |*host| {
            if (host.paid_at <= now) {
                if (place == null) place = host;
            } else if (std.mem.eql(u8, &host.source, &key)) return host;
        }
        const host = place orelse return &rates.hosts[hosts_max - 1];
        host.* = .{ .source = key };
        return host;
    }

    /// One host of IPv6 has 2^64 addresses.
    fn network_of(source: base.Source) base.Source {
        const mapped = [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff };
        if (std.mem.startsWith(u8, &source, &mapped)) return source;
        return source[0..8].* ++ @as([8]u8, @splat(0));
    }
};

const s = std.time.ns_per_s;

fn v4(number: u8) base.Source {
    return [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff, 10, 0, 0, number };
}

fn ask(rates: *StatusRates, source: base.Source, now: Instant, bytes: usize) bool {
    if (!rates.may_ask(source, now)) return false;
    rates.charge(source, now, bytes);
    return true;
}

test "a host gets one large answer a second in the end, and another host does not wait for it" {
    const expect = std.testing.expect;
    var rates: StatusRates = .{};
    const large = base.limits.control_message_bytes_max;
    var answers: usize = 0;
    var now: Instant = 100 * s;
    while (now < 160 * s) : (now += s / 10) answers += @intFromBool(ask(&rates, v4(1), now, large));
    try expect(answers >= 60 and answers <= 70);
    try expect(ask(&rates, v4(2), now, large));
    // Small ones are hardly worth counting, even when somebody asks in a loop.
    var small: usize = 0;
    for (0..1000) |_| small += @intFromBool(ask(&rates, v4(3), now, 1000));
    try expect(small == 1000);
    for (0..10_000) |_| small += @intFromBool(ask(&rates, v4(3), now, 1000));
    try expect(small < 3000);
}

test "many hosts share what is left, and addresses of one network are one host" {
    const expect = std.testing.expect;
    var rates: StatusRates = .{};
    const large = base.limits.control_message_bytes_max;
    var answers: usize = 0;
    for (0..100) |number| {
        var source: base.Source = @splat(0xfd);
        std.mem.writeInt(u64, source[8..], number, .big);
        answers += @intFromBool(ask(&rates, source, s, large));
    }
    try expect(answers <= 10);
    for (0..2 * StatusRates.hosts_max) |number| {
        var source: base.Source = @splat(0xfc);
        std.mem.writeInt(u64, source[0..8], number, .big);
        _ = ask(&rates, source, s, large);
    }
    try expect(!rates.may_ask(v4(9), s));
    try expect(rates.may_ask(v4(9), 30 * s));
}
