//! Holdings: which chunks of an operation the members hold, by their reports of one attempt. It
//! keeps ranges, not chunks, so it holds about as much as was said, and the budget of all queues
//! counts it (queues.zig). The reports, and the choice of chunks to keep: reports.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const KeptRange = wire.control.KeptRange;
const SettledRange = wire.control.SettledRange;

pub const Holdings = struct {
    /// In order, none empty. A chunk that is in none of them is held by nobody.
    ranges: []KeptRange = &.{},

    /// A member's report of ranges that are in order.
    pub const Report = struct {
        rank: u16,
        /// It has voted for what it holds.
        done: bool,
        /// All who have.
        voted: *const Mask,
        settled: wire.codec.List(SettledRange),
    };

    pub fn bytes(holdings: *const Holdings) usize {
        return holdings.ranges.len * @sizeOf(KeptRange);
    }

    pub fn clear(holdings: *Holdings, gpa: Allocator, budget: *wire.Budget) void {
        budget.bytes -= holdings.bytes();
        gpa.free(holdings.ranges);
        holdings.ranges = &.{};
    }

    /// Whether somebody holds each of so many chunks.
    pub fn has_all(holdings: *const Holdings, chunks: u32) bool {
        var held: u32 = 0;
        for (holdings.ranges) |*range| held += range.end - range.begin;
        return held == chunks;
    }

    /// One pass over both, so that many ranges cost no more than they are.
    pub fn add(
        holdings: *Holdings,
        gpa: Allocator,
        budget: *wire.Budget,
        report: *const Report,
    ) Allocator.Error!void {
        if (report.settled.count == 0) return;
        var merged: Merged = .{ .gpa = gpa, .rest = holdings.ranges };
        defer merged.list.deinit(gpa);
        var it = report.settled.iterator();
        while (it.next()) |told| {
            try merged.copy_to(told.begin);
            var at = told.begin;
            while (merged.next(told.end)) |piece| {
                var range = piece;
                try merged.append(new(report, at, range.begin, told.reduced_attempt));
                tell(&range, report, told.reduced_attempt);
                try merged.append(range);
                at = range.end;
            }
            try merged.append(new(report, at, told.end, told.reduced_attempt));
        }
        try merged.copy_to(std.math.maxInt(u32));
        const ranges = try merged.list.toOwnedSlice(gpa);
        holdings.clear(gpa, budget);
        holdings.ranges = ranges;
        budget.bytes += holdings.bytes();
    }

    fn new(report: *const Report, begin: u32, end: u32, reduced_attempt: u32) KeptRange {
        var range: KeptRange = .{
            .begin = begin,
            .end = end,
            .reduced_attempt = reduced_attempt,
            .holders = .empty,
        };
        range.holders.set(report.rank);
        return range;
    }

    fn tell(range: *KeptRange, report: *const Report, reduced_attempt: u32) void {
        if (range.reduced_attempt == reduced_attempt) return range.holders.set(report.rank);
        // A result that somebody has voted for outranks what others have settled.
        if (range.holders.meets(report.voted)) return;
        if (!report.done and reduced_attempt < range.reduced_attempt) return;
        range.* = new(report, range.begin, range.end, reduced_attempt);
    }
};

/// The ranges so far, and those of before that are still to come.
const Merged = struct {
    gpa: Allocator,
    list: std.ArrayList(KeptRange) = .empty,
    rest: []const KeptRange,
    /// Where the first of the rest begins, if it was cut.
    cut: u32 = 0,

    /// The next one of before, as far as it lies before `end`.
    fn next(merged: *Merged, end: u32) ?KeptRange {
        if (merged.rest.len == 0) return null;
        var range = merged.rest[0];
        range.begin = @max(range.begin, merged.cut);
        if (range.begin >= end) return null;
        if (range.end > end) {
            range.end = end;
            merged.cut = end;
        } else merged.rest = merged.rest[1..];
        return range;
    }

    fn copy_to(merged: *Merged, end: u32) Allocator.Error!void {
        while (merged.next(end)) |range| try merged.append(range);
    }

    fn append(merged: *Merged, range: KeptRange) Allocator.Error!void {
        if (range.begin == range.end) return;
        if (merged.list.items.len > 0) {
            const last = &merged.list.items[merged.list.items.len - 1];
            if (last.end == range.begin and last.reduced_attempt == range.reduced_attempt and
                last.holders.eql(&range.holders))
            {
                last.end = range.end;
                return;
            }
        }
        try merged.list.append(merged.gpa, range);
    }
};

const testing = std.testing;

test "ranges say of each chunk what a list of all chunks would" {
    const gpa = testing.allocator;
    const chunks = 40;
    const Chunk = struct { reduced_attempt: u32 = 0, holders: Mask = .empty };
    for (0..200) |seed| {
        var prng: std.Random.DefaultPrng = .init(seed);
        const random = prng.random();
        var budget: wire.Budget = .{};
        var holdings: Holdings = .{};
        defer holdings.clear(gpa, &budget);
        var model: [chunks]Chunk = @splat(.{});
        var voted: Mask = .empty;
        for (0..6) |rank| {
            const done = random.uintLessThan(u8, 3) == 0;
            if (done) voted.set(rank);
            var settled: std.ArrayList(SettledRange) = .empty;
            defer settled.deinit(gpa);
            var at: u32 = 0;
            while (at < chunks) {
                const end = @min(chunks, at + random.intRangeAtMost(u32, 1, 9));
                const attempt = random.uintLessThan(u32, 4);
                if (attempt > 0) try settled.append(gpa, .{
                    .begin = at,
                    .end = end,
                    .reduced_attempt = attempt,
                });
                at = end;
            }
            try holdings.add(gpa, &budget, &.{
                .rank = @intCast(rank),
                .done = done,
                .voted = &voted,
                .settled = .of(settled.items),
            });
            for (settled.items) |range| for (model[range.begin..range.end]) |*chunk| {
                if (chunk.holders.is_empty() or chunk.reduced_attempt == range.reduced_attempt) {
                    chunk.reduced_attempt = range.reduced_attempt;
                } else {
                    if (chunk.holders.meets(&voted)) continue;
                    if (!done and range.reduced_attempt < chunk.reduced_attempt) continue;
                    chunk.* = .{ .reduced_attempt = range.reduced_attempt };
                }
                chunk.holders.set(rank);
            };
            try expect_equal(chunks, Chunk, &model, &holdings);
            try testing.expectEqual(holdings.bytes(), budget.bytes);
        }
    }
}

fn expect_equal(
    comptime chunks: u32,
    comptime Chunk: type,
    model: *const [chunks]Chunk,
    holdings: *const Holdings,
) !void {
    var held: [chunks]Chunk = @splat(.{});
    var after: u32 = 0;
    for (holdings.ranges) |*range| {
        try testing.expect(range.begin >= after and range.end > range.begin);
        after = range.end;
        for (held[range.begin..range.end]) |*chunk| chunk.* = .{
            .reduced_attempt = range.reduced_attempt,
            .holders = range.holders,
        };
    }
    try testing.expectEqualSlices(Chunk, model, &held);
    for (model) |*chunk| {
        if (chunk.holders.is_empty()) return testing.expect(!holdings.has_all(chunks));
    }
    try testing.expect(holdings.has_all(chunks));
}

test "members that have settled the same chunks share their ranges" {
    const gpa = testing.allocator;
    var budget: wire.Budget = .{};
    var holdings: Holdings = .{};
    defer holdings.clear(gpa, &budget);
    var voted: Mask = .empty;
    for (0..base.limits.peers_max) |rank| {
        voted.set(rank);
        try holdings.add(gpa, &budget, &.{
            .rank = @intCast(rank),
            .done = true,
            .voted = &voted,
            .settled = .of(&.{.{
                .begin = 0,
                .end = base.limits.chunks_max,
                .reduced_attempt = 1,
            }}),
        });
        try testing.expectEqual(1, holdings.ranges.len);
    }
}
