//! matrix: the rates of the links of a run, and of each peer on all its links together, as plain
//! data. A Row has the rates that one peer reports of its own links; Told has the rows that the
//! members of an epoch were told. The matrix is only in memory: after a restart members report
//! their rates again. measurement.zig fills the matrix in and decides which numbers are believed.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const control = wire.control;
const differ = wire.control.differ;
const limits = base.limits;

/// The rates that one peer has reported. A rate of 0 is not known.
pub const Row = struct {
    /// Bytes per second that the peer moved on all links in the span of its last report, and when
    /// it reported them. For the status alone.
    sent: u64 = 0,
    received: u64 = 0,
    span_ns: u64 = 0,
    told_at: base.Instant = 0,
    /// The most bytes per second that the peer has sent, and received, on all its links together.
    up: u64 = 0,
    down: u64 = 0,
    /// The peer's uplink was found to carry no more.
    is_full: bool = false,
    /// The peer's links; the list takes memory from the peer's first report on.
    links: std.ArrayList(Link) = .empty,
    /// The kinds of impossible numbers for which the log has named the peer.
    said: std.EnumSet(Fault) = .initEmpty(),

    pub fn deinit(row: *Row, gpa: Allocator) void {
        row.links.deinit(gpa);
    }

    /// A report older than this does not say what moves now: a peer reports every two seconds while
    /// any data moves.
    const stale_ns = 10 * std.time.ns_per_s;

    /// Whether the peer's last report says what moves now.
    pub fn is_fresh(row: *const Row, now: base.Instant) bool {
        return now -| row.told_at <= stale_ns;
    }

    pub fn find(row: *const Row, peer: PeerId) ?*Link {
        for (row.links.items) |*link| if (link.peer.eql(peer)) return link;
        return null;
    }

    /// Finds or makes the entry of the link to `peer`; a full table drops its oldest entry.
    pub fn place(row: *Row, gpa: Allocator, peer: PeerId) Allocator.Error!*Link {
        if (row.find(peer)) |link| return link;
        if (row.links.items.len == limits.links_measured_max) _ = row.links.orderedRemove(0);
        const link = try row.links.addOne(gpa);
        link.* = .{ .peer = peer };
        return link;
    }
};

/// The link to one other peer.
pub const Link = struct {
    peer: PeerId,
    /// Bytes per second to the other peer (`rate`), and from it (`brought`).
    rate: u64 = 0,
    brought: u64 = 0,
    /// The rate at which the link itself is full; 0: not known.
    limit: u64 = 0,
    rtt_ns: u64 = 0,
    /// Bytes sent a second time, in millionths of the bytes sent.
    again_ppm: u32 = 0,
    /// Bytes per second in the span of the last report that named the link; open lanes; and when
    /// that report came.
    sent: u64 = 0,
    received: u64 = 0,
    lanes: u8 = 0,
    told_at: base.Instant = 0,
};

/// Why a number that a peer reports is not believed.
pub const Fault = enum {
    rate,
    round_trip,
    loss,
    stranger,

    pub fn why(fault: Fault) []const u8 {
        return switch (fault) {
            .rate => "a rate above 10 Tbit/s",
            .round_trip => "a round trip above 60 s",
            .loss => "more bytes sent again than there are",
            .stranger => "a link to nobody of this run",
        };
    }
};

/// The rows that the members of an epoch were told, by rank.
pub const Told = struct {
    /// The run's count of measurements when the rows were made.
    version: u64 = 0,
    /// A counter that grows with each row that is told.
    changes: u64 = 0,
    /// A row for each member, by rank; empty: members were told no rates yet.
    rows: []Line = &.{},

    pub fn deinit(told: *Told, gpa: Allocator) void {
        gpa.free(told.rows);
    }

    pub const Line = struct {
        up: u64 = 0,
        down: u64 = 0,
        is_full: bool = false,
        rates: [limits.measured_max]u64 = @splat(0),
        /// As Link.limit; members are told neither this nor `is_full`.
        limits: [limits.measured_max]u64 = @splat(0),
        rtts_ns: [limits.measured_max]u64 = @splat(0),

        /// Smaller changes of a round trip than this are not told: short round trips always vary.
        const rtt_ns_min = 100 * std.time.ns_per_us;

        pub fn differs(line: *const Line, now: *const Line) bool {
            if (differ(line.up, now.up) or differ(line.down, now.down)) return true;
            for (line.rates, now.rates) |told, rate| if (differ(told, rate)) return true;
            for (line.rtts_ns, now.rtts_ns) |told, rtt_ns| {
                if (@max(told, rtt_ns) - @min(told, rtt_ns) < rtt_ns_min) continue;
                if (differ(told, rtt_ns)) return true;
            }
            return false;
        }

        /// Whether numbers have changed that only plans use.
        pub fn plans_differ(line: *const Line, now: *const Line) bool {
            for (line.limits, now.limits) |before, limit| if (differ(before, limit)) return true;
            return line.is_full != now.is_full;
        }

        pub fn is_known(line: *const Line) bool {
            return line.differs(&.{});
        }
    };
};

/// The links of an epoch that are to be probed (measurement.zig).
pub const Probes = struct {
    /// An entry for each pair of ranks, at low * size + high; empty: no pair was looked for yet.
    pairs: []Pair = &.{},

    /// When the pair is asked next, when it was asked first, and how often it was asked.
    pub const Pair = struct { due: base.Instant = 0, first_at: base.Instant = 0, asked: u8 = 0 };

    pub fn deinit(probes: *Probes, gpa: Allocator) void {
        gpa.free(probes.pairs);
    }
};

test "a peer has a place for each link up to a limit, then the oldest makes room" {
    const gpa = std.testing.allocator;
    var row: Row = .{};
    defer row.deinit(gpa);
    const most = limits.links_measured_max;
    for (0..most + 1) |number| {
        const link = try row.place(gpa, .from_int(number));
        link.rate = number + 1;
    }
    try std.testing.expectEqual(most, row.links.items.len);
    try std.testing.expectEqual(null, row.find(.from_int(0)));
    for (1..most + 1) |number| {
        const link = try row.place(gpa, .from_int(number));
        try std.testing.expectEqual(number + 1, link.rate);
    }
}

test "what has changed by more than a tenth is told, and round trips only where they are long" {
    var line: Told.Line = .{ .up = 1000, .rtts_ns = @splat(50_000) };
    var now = line;
    try std.testing.expect(!line.differs(&now));
    now.rtts_ns[3] = 149_000;
    try std.testing.expect(!line.differs(&now));
    now.rtts_ns[3] = 151_000;
    try std.testing.expect(line.differs(&now));
    now = line;
    now.rates[31] = 1;
    try std.testing.expect(line.differs(&now));
    try std.testing.expect(line.is_known());
    try std.testing.expect(!(Told.Line{}).is_known());
}
