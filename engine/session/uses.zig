//! uses: which memory of its caller an operation reads and writes, and whether two operations get
//! in each other's way. Lists are in the order of addresses, so that calls of thousands of arrays
//! are compared in one pass. calls.zig compares, as a call begins.

const std = @import("std");
const Allocator = std.mem.Allocator;

/// A place in memory.
pub const Span = struct {
    start: usize = 0,
    bytes: usize = 0,

    pub fn meets(a: Span, b: Span) bool {
        if (a.bytes == 0 or b.bytes == 0) return false;
        return a.start < b.end() and b.start < a.end();
    }

    pub fn end(span: Span) usize {
        return span.start + span.bytes;
    }
};

pub const Uses = struct {
    items: std.ArrayList(Use) = .empty,

    const Use = struct { span: Span, writes: bool };

    pub fn deinit(uses: *Uses, gpa: Allocator) void {
        uses.items.deinit(gpa);
    }

    pub fn reserve(uses: *Uses, gpa: Allocator, count: usize) Allocator.Error!void {
        try uses.items.ensureTotalCapacity(gpa, count);
    }

    pub fn reads(uses: *Uses, span: Span) void {
        uses.add(span, false);
    }

    pub fn writes(uses: *Uses, span: Span) void {
        uses.add(span, true);
    }

    fn add(uses: *Uses, span: Span, is_written: bool) void {
        if (span.bytes == 0) return;
        uses.items.appendAssumeCapacity(.{ .span = span, .writes = is_written });
    }

    /// To be done once all are there. Most calls have few, and do without the other's stack.
    pub fn sort(uses: *Uses) void {
        const items = uses.items.items;
        if (items.len <= few) std.sort.insertion(Use, items, {}, starts_before) //
        else std.mem.sortUnstable(Use, items, {}, starts_before);
    }

    const few = 8;

    fn starts_before(_: void, a: Use, b: Use) bool {
        return a.span.start < b.span.start;
    }

    /// How far those that were looked at reach.
    const Reach = struct {
        any: usize = 0,
        written: usize = 0,

        fn meets(reach: *const Reach, use: *const Use) bool {
            return use.span.start < if (use.writes) reach.any else reach.written;
        }

        fn add(reach: *Reach, use: *const Use) void {
            reach.any = @max(reach.any, use.span.end());
            if (use.writes) reach.written = @max(reach.written, use.span.end());
        }
    };

    /// One writes what the other reads or writes.
    pub fn clash(a: *const Uses, b: *const Uses) bool {
        const lists = [2][]const Use{ a.items.items, b.items.items };
        var reach: [2]Reach = @splat(.{});
        var at: [2]usize = @splat(0);
        while (at[0] < lists[0].len or at[1] < lists[1].len) {
            const which: usize = if (at[0] == lists[0].len)
                1
            else if (at[1] == lists[1].len)
                0
            else
                @intFromBool(starts_before({}, lists[1][at[1]], lists[0][at[0]]));
            const use = &lists[which][at[which]];
            if (reach[1 - which].meets(use)) return true;
            reach[which].add(use);
            at[which] += 1;
        }
        return false;
    }

    /// It writes something that it also reads, or writes twice.
    pub fn clashes_itself(uses: *const Uses) bool {
        var reach: Reach = .{};
        for (uses.items.items) |*use| {
            if (reach.meets(use)) return true;
            reach.add(use);
        }
        return false;
    }
};

test "lists clash where one of two spans that meet is written" {
    // Goal: the pass over sorted lists says what comparing every two spans says. Method: random
    // short lists in little memory.
    const gpa = std.testing.allocator;
    var random: std.Random.DefaultPrng = .init(7);
    const draw = random.random();
    var clashes: [2]u32 = @splat(0);
    for (0..4000) |_| {
        var lists: [2]Uses = @splat(.{});
        defer for (&lists) |*list| list.deinit(gpa);
        for (&lists) |*list| {
            const count = draw.uintLessThan(usize, 4);
            try list.reserve(gpa, count);
            for (0..count) |_| list.add(.{
                .start = 1 + draw.uintLessThan(usize, 40),
                .bytes = draw.uintLessThan(usize, 9),
            }, draw.boolean());
            list.sort();
        }
        var expected = false;
        for (lists[0].items.items) |a| for (lists[1].items.items) |b| {
            if ((a.writes or b.writes) and a.span.meets(b.span)) expected = true;
        };
        try std.testing.expectEqual(expected, lists[0].clash(&lists[1]));
        try std.testing.expectEqual(expected, lists[1].clash(&lists[0]));
        clashes[@intFromBool(expected)] += 1;

        var itself = false;
        const items = lists[0].items.items;
        for (items, 0..) |a, index| for (items[index + 1 ..]) |b| {
            if ((a.writes or b.writes) and a.span.meets(b.span)) itself = true;
        };
        try std.testing.expectEqual(itself, lists[0].clashes_itself());
    }
    for (clashes) |count| try std.testing.expect(count > 400);
}
