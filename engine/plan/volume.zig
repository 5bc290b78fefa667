//! Volume: how many bytes an operation has, as they travel, by the rank that has them and the rank
//! that wants them (collective/roles.zig: source and audience). Bytes with one source and one
//! audience belong to a pair of ranks. figures.zig computes how long the bytes take.

const std = @import("std");
const matrix_file = @import("matrix.zig");
const Side = matrix_file.Side;
const bit = matrix_file.bit;

const members_max = matrix_file.members_max;

pub const Volume = struct {
    /// Bytes to which all ranks contribute, and which all want.
    all: f64 = 0,
    /// By rank: bytes that this rank alone has, and all want.
    from: [members_max]f64 = @splat(0),
    /// By rank: bytes to which all contribute, and which this rank alone wants.
    to: [members_max]f64 = @splat(0),
    /// Bytes by the rank that has them, then by the rank that wants them.
    pairs: [members_max][members_max]f64 = @splat(@splat(0)),
    has_pairs: bool = false,
    /// The factor by which partial sums are wider than results.
    widening: f64 = 1,

    /// Adds the bytes of a part, unless its source or its audience is not among `alive`.
    pub fn add(volume: *Volume, bytes: f64, source: ?u16, audience: ?u16, alive: Side) void {
        for ([_]?u16{ source, audience }) |rank| {
            if (rank) |it| if (alive & bit(it) == 0) return;
        }
        const s = source orelse {
            if (audience) |t| volume.to[t] += bytes else volume.all += bytes;
            return;
        };
        const t = audience orelse {
            volume.from[s] += bytes;
            return;
        };
        if (s == t) return;
        volume.pairs[s][t] += bytes;
        volume.has_pairs = true;
    }

    /// Bytes that must go from the ranks of `side` to all others, whatever the schedule: the sum of
    /// a side's contributions is as large as one contribution.
    pub fn crossing(volume: *const Volume, side: Side, alive: Side) f64 {
        var bytes = volume.all;
        var left = side;
        while (left != 0) : (left &= left - 1) bytes += volume.from[@ctz(left)];
        left = alive & ~side;
        while (left != 0) : (left &= left - 1) bytes += volume.to[@ctz(left)];
        if (!volume.has_pairs) return bytes;
        var sources = side;
        while (sources != 0) : (sources &= sources - 1) {
            left = alive & ~side;
            while (left != 0) : (left &= left - 1) bytes += volume.pairs[@ctz(sources)][@ctz(left)];
        }
        return bytes;
    }

    /// The least number of bytes that all members send together: each byte of `all` is added n - 1
    /// times, and told n - 1 times.
    pub fn total(volume: *const Volume, alive: Side) f64 {
        const others: f64 = @floatFromInt(@popCount(alive) - 1);
        var bytes = 2 * others * volume.all;
        var left = alive;
        while (left != 0) : (left &= left - 1) {
            const rank = @ctz(left);
            bytes += others * (volume.from[rank] + volume.to[rank]);
            if (volume.has_pairs) for (volume.pairs[rank]) |pair| {
                bytes += pair;
            };
        }
        return bytes;
    }
};

test "parts of members that are lost, and what a member keeps, are not moved" {
    const alive = bit(0) | bit(1);
    const Part = struct { source: ?u16, audience: ?u16, moves: bool };
    for ([_]Part{
        .{ .source = 0, .audience = 1, .moves = true },
        .{ .source = 0, .audience = 0, .moves = false },
        .{ .source = 0, .audience = 2, .moves = false },
        .{ .source = 2, .audience = 1, .moves = false },
        .{ .source = 2, .audience = null, .moves = false },
        .{ .source = null, .audience = 2, .moves = false },
        .{ .source = null, .audience = 1, .moves = true },
    }) |part| {
        var volume: Volume = .{};
        volume.add(10, part.source, part.audience, alive);
        try std.testing.expectEqual(part.moves, volume.total(alive) > 0);
        var bytes: f64 = 0;
        for (volume.from, volume.to) |from, to| bytes += from + to;
        try std.testing.expectEqual(part.moves, bytes > 0 or volume.has_pairs);
    }
}
