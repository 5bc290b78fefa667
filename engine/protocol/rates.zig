//! rates: how much one peer, and one address, may ask of the coordinator in a time. A bucket is
//! paid with time: a request that costs a second can be made once a second, and a burst ahead of
//! that. A peer that takes more is not read for a while, so that TCP slows it down; it loses
//! nothing by that, and is not let go for it. Used by hearing.zig. The numbers: base/limits.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const limits = base.limits;
const Instant = base.Instant;
const Source = base.Source;

pub const Bucket = struct {
    /// When all that was taken is paid for.
    paid_at: Instant = 0,

    /// The cost of one thing, and how much may be taken ahead of time.
    pub const Price = struct {
        cost_ns: u64,
        burst_ns: u64,

        pub fn per_second(count: u64, burst: u64) Price {
            const cost_ns = std.time.ns_per_s / count;
            return .{ .cost_ns = cost_ns, .burst_ns = cost_ns * burst };
        }
    };

    pub fn take(bucket: *Bucket, now: Instant, price: Price, count: u64) void {
        bucket.paid_at = @max(bucket.paid_at, now) +| price.cost_ns *| count;
    }

    /// How long it is until something may be taken; 0: it may be now.
    pub fn wait_ns(bucket: *const Bucket, now: Instant, price: Price) u64 {
        return bucket.paid_at -| (now +| price.burst_ns);
    }
};

pub const messages: Bucket.Price = .per_second(
    limits.peer_messages_per_s_max,
    limits.peer_messages_burst,
);
pub const bytes: Bucket.Price = .per_second(limits.peer_bytes_per_s_max, limits.peer_bytes_burst);
pub const joins: Bucket.Price = .per_second(limits.joins_per_s_max, limits.peer_joins_burst);
pub const joins_of_network: Bucket.Price = .per_second(
    limits.joins_per_s_max,
    limits.network_joins_burst,
);
pub const attempts: Bucket.Price = .per_second(
    limits.peer_attempts_per_s_max,
    limits.peer_attempts_burst,
);

/// One peer's.
pub const Rates = struct {
    messages: Bucket = .{},
    bytes: Bucket = .{},
    joins: Bucket = .{},
    attempts: Bucket = .{},

    /// It has said this, in so many bytes. How long nothing is read from it.
    pub fn heard(
        rates: *Rates,
        now: Instant,
        message: *const wire.control.Message,
        size: usize,
    ) u64 {
        rates.bytes.take(now, bytes, size);
        if (!is_of_operation(message)) rates.messages.take(now, messages, 1);
        const wait_ns = @max(
            rates.bytes.wait_ns(now, bytes),
            rates.messages.wait_ns(now, messages),
        );
        if (wait_ns == 0) return 0;
        // Rarely and long: each pause costs a turn of the loop.
        return std.math.clamp(wait_ns, limits.pause_ns_min, limits.pause_ns_max);
    }

    /// These are as many as the calls of the program, which have no limit: their bytes have one.
    fn is_of_operation(message: *const wire.control.Message) bool {
        return switch (message.*) {
            .done,
            .gave_up,
            .mismatch_seen,
            .report_op,
            .decisions_seen,
            .knows_commit,
            .knows_abort,
            .state_offer,
            .state_tensors,
            => true,
            else => false,
        };
    }

    /// An attempt begins because of it.
    pub fn cost_attempt(rates: *Rates, now: Instant) void {
        rates.attempts.take(now, attempts, 1);
    }

    /// How much later than it asks for the next one begins.
    pub fn attempt_wait_ns(rates: *const Rates, now: Instant) u64 {
        return @min(rates.attempts.wait_ns(now, attempts), limits.pause_ns_max);
    }
};

/// Joins of newcomers, by the network they come from. Those that begin a group are counted apart:
/// whoever makes groups without end keeps nobody behind the same address out of one that works.
pub const Arrivals = struct {
    origins: std.AutoArrayHashMapUnmanaged(Origin, Bucket) = .empty,
    /// For all without a place in the table.
    others: Bucket = .{},

    pub const Aim = enum { begins_group, enters_group };
    const Origin = struct { network: Source, aim: Aim };

    pub fn deinit(arrivals: *Arrivals, gpa: std.mem.Allocator) void {
        arrivals.origins.deinit(gpa);
    }

    /// The bucket of those who come from there for this; valid until the next call.
    pub fn of(
        arrivals: *Arrivals,
        gpa: std.mem.Allocator,
        now: Instant,
        source: Source,
        aim: Aim,
    ) *Bucket {
        const origin: Origin = .{ .network = base.places.network_of(source), .aim = aim };
        if (arrivals.origins.getPtr(origin)) |bucket| return bucket;
        if (arrivals.origins.count() >= limits.sources_kept_max) arrivals.forget_paid(now);
        if (arrivals.origins.count() >= limits.sources_kept_max) return &arrivals.others;
        const entry = arrivals.origins.getOrPut(gpa, origin) catch return &arrivals.others;
        entry.value_ptr.* = .{};
        return entry.value_ptr;
    }

    fn forget_paid(arrivals: *Arrivals, now: Instant) void {
        var index = arrivals.origins.count();
        while (index > 0) {
            index -= 1;
            if (arrivals.origins.values()[index].paid_at > now) continue;
            arrivals.origins.swapRemoveAt(index);
        }
    }
};

const testing = std.testing;
const ms = std.time.ns_per_ms;

test "a bucket gives its burst at once, then what time has paid for" {
    const price: Bucket.Price = .per_second(10, 3);
    var bucket: Bucket = .{};
    var now: Instant = 1000 * ms;
    for (0..4) |_| {
        try testing.expectEqual(0, bucket.wait_ns(now, price));
        bucket.take(now, price, 1);
    }
    try testing.expectEqual(100 * ms, bucket.wait_ns(now, price));
    now += 99 * ms;
    try testing.expectEqual(1 * ms, bucket.wait_ns(now, price));
    now += 1 * ms;
    try testing.expectEqual(0, bucket.wait_ns(now, price));
    // Time that was not taken is not kept beyond the burst.
    now += 3600 * 1000 * ms;
    for (0..4) |_| bucket.take(now, price, 1);
    try testing.expectEqual(100 * ms, bucket.wait_ns(now, price));
}

test "a pause is bounded, whatever was said, and a vote costs its bytes alone" {
    var rates: Rates = .{};
    const beat: wire.control.Message = .{ .heartbeat = .{
        .number = 1,
        .bytes_sent = 0,
        .bytes_received = 0,
    } };
    try testing.expectEqual(0, rates.heard(1, &beat, 40));
    try testing.expectEqual(limits.pause_ns_max, rates.heard(1, &beat, 1 << 40));
    rates = .{};
    const vote: wire.control.Message = .{ .done = std.mem.zeroInit(wire.control.Done, .{
        .descriptor = std.mem.zeroInit(wire.control.Descriptor, .{
            .kind = .all_reduce,
            .dtype = .f32,
            .op = .sum,
            .recovery = .raise,
        }),
    }) };
    for (0..2 * limits.peer_messages_burst) |_| {
        try testing.expectEqual(0, rates.heard(1, &vote, 100));
    }
    for (0..limits.peer_messages_burst) |_| {
        try testing.expectEqual(0, rates.heard(1, &beat, 40));
    }
    try testing.expectEqual(limits.pause_ns_min, rates.heard(1, &beat, 40));
}

test "beyond the burst a peer may say four mebibytes a second, whatever the size of what it says" {
    const seconds = 10;
    for ([_]usize{ 1000, 100_000, limits.control_message_bytes_max }) |size| {
        var rates: Rates = .{};
        const vote = std.mem.zeroes(wire.control.Commit);
        var now: Instant = 1000 * ms;
        const end = now + seconds * std.time.ns_per_s;
        const most = limits.peer_bytes_burst + seconds * 4 * 1024 * 1024;
        var said: u64 = 0;
        while (now < end and said < 2 * most) : (said += size) {
            now += rates.heard(now, &.{ .knows_commit = vote }, size);
        }
        try testing.expect(said > most - most / 50 and said < most + most / 50 + size);
    }
}

test "attempts beyond the burst come later, each when time has paid for the one before" {
    var rates: Rates = .{};
    const now: Instant = 1000 * ms;
    for (0..limits.peer_attempts_burst + 1) |_| {
        try testing.expectEqual(0, rates.attempt_wait_ns(now));
        rates.cost_attempt(now);
    }
    const first = std.time.ns_per_s / limits.peer_attempts_per_s_max;
    try testing.expectEqual(first, rates.attempt_wait_ns(now));
    rates.cost_attempt(now);
    try testing.expectEqual(2 * first, rates.attempt_wait_ns(now));
    for (0..100) |_| rates.cost_attempt(now);
    try testing.expectEqual(limits.pause_ns_max, rates.attempt_wait_ns(now));
    try testing.expectEqual(0, rates.attempt_wait_ns(now + 3600 * 1000 * ms));
}

test "sources beyond the table share one bucket, and those that have paid make room" {
    var arrivals: Arrivals = .{};
    defer arrivals.deinit(testing.allocator);
    const now: Instant = 1000 * ms;
    for (0..limits.sources_kept_max) |index| {
        var source: Source = @splat(0);
        std.mem.writeInt(u32, source[0..4], @intCast(index + 1), .little);
        arrivals.of(testing.allocator, now, source, .enters_group).take(now, joins_of_network, 1);
    }
    const another: Source = @splat(0xff);
    const shared = arrivals.of(testing.allocator, now, another, .enters_group);
    try testing.expectEqual(&arrivals.others, shared);
    const later = now + 1000 * ms;
    const own = arrivals.of(testing.allocator, later, another, .enters_group);
    try testing.expect(own != &arrivals.others);
    try testing.expectEqual(1, arrivals.origins.count());
}
