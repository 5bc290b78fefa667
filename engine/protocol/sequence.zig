//! Sequences: how often each tag of an epoch was called. Neighbouring tags that were called equally
//! often form one run. So a program that takes the next higher tag for each operation fills one
//! run, however many operations it calls. No count is ever dropped: members call different tags in
//! different orders, so they would drop a count at different calls, and then number calls
//! differently. A Member (member.zig) has one Sequences for each epoch.

const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;
const Allocator = std.mem.Allocator;

pub const Sequences = struct {
    /// Runs in ascending order of their tags. Adjacent runs differ in `next`, or tags between them
    /// were never called.
    runs: std.ArrayList(Run) = .empty,

    /// The tags from `first` to `last`, each of which was called `next` times.
    const Run = struct { first: u64, last: u64, next: u64 };

    /// When a tag is called once more, `pieces[0..len]` replace `runs[from..to]`.
    const Change = struct {
        from: usize,
        to: usize,
        pieces: [3]Run = undefined,
        len: usize = 0,

        fn add(change: *Change, run: Run) void {
            change.pieces[change.len] = run;
            change.len += 1;
        }
    };

    pub fn deinit(s: *Sequences, gpa: Allocator) void {
        s.runs.deinit(gpa);
    }

    /// The sequence number of the next call of a tag.
    pub fn next(s: *const Sequences, tag: u64) u64 {
        const index = s.place(tag);
        return if (s.holds(index, tag)) s.runs.items[index].next else 0;
    }

    /// Reserves memory to count one more call of a tag. error.TooManyTags: the call would need more
    /// than `tag_runs_max` runs.
    pub fn reserve(s: *Sequences, gpa: Allocator, tag: u64) error{ OutOfMemory, TooManyTags }!void {
        const change = s.change_of(tag);
        const len = s.runs.items.len - (change.to - change.from) + change.len;
        if (len > s.runs.items.len and len > base.limits.tag_runs_max) return error.TooManyTags;
        try s.runs.ensureTotalCapacity(gpa, len);
    }

    /// Counts a call of a tag. `reserve` must have made room for the call.
    pub fn count(s: *Sequences, tag: u64) void {
        const change = s.change_of(tag);
        const replaced = change.to - change.from;
        s.runs.replaceRangeAssumeCapacity(change.from, replaced, change.pieces[0..change.len]);
    }

    fn change_of(s: *const Sequences, tag: u64) Change {
        const runs = s.runs.items;
        const index = s.place(tag);
        const held: ?Run = if (s.holds(index, tag)) runs[index] else null;
        const called = if (held) |run| run.next else 0;
        var own: Run = .{ .first = tag, .last = tag, .next = called + 1 };
        var change: Change = .{ .from = index, .to = index + @intFromBool(held != null) };
        const splits_before = held != null and held.?.first < tag;
        const splits_behind = held != null and held.?.last > tag;
        if (!splits_before and index > 0 and tag > 0) {
            const before = runs[index - 1];
            if (before.last == tag - 1 and before.next == own.next) {
                own.first = before.first;
                change.from -= 1;
            }
        }
        if (!splits_behind and change.to < runs.len) {
            const behind = runs[change.to];
            if (behind.first == tag +| 1 and behind.next == own.next) {
                own.last = behind.last;
                change.to += 1;
            }
        }
        if (splits_before)
            change.add(.{ .first = held.?.first, .last = tag - 1, .next = called });
        change.add(own);
        if (splits_behind)
            change.add(.{ .first = tag + 1, .last = held.?.last, .next = called });
        return change;
    }

    /// The index of the first run that does not end before the tag.
    fn place(s: *const Sequences, tag: u64) usize {
        return std.sort.lowerBound(Run, s.runs.items, tag, compare);
    }

    fn compare(tag: u64, run: Run) std.math.Order {
        return std.math.order(tag, run.last);
    }

    fn holds(s: *const Sequences, index: usize, tag: u64) bool {
        return index < s.runs.items.len and s.runs.items[index].first <= tag;
    }
};

test "a new tag for each call is one run for ever" {
    const gpa = std.testing.allocator;
    var s: Sequences = .{};
    defer s.deinit(gpa);
    for (0..3 * base.limits.tag_runs_max) |tag| {
        try s.reserve(gpa, tag);
        s.count(tag);
    }
    try std.testing.expectEqual(1, s.runs.items.len);
    try std.testing.expectEqual(1, s.next(base.limits.tag_runs_max));
    try std.testing.expectEqual(0, s.next(3 * base.limits.tag_runs_max));
}

test "tags without order end at a limit, and those that were used go on" {
    const gpa = std.testing.allocator;
    var s: Sequences = .{};
    defer s.deinit(gpa);
    for (0..base.limits.tag_runs_max) |index| {
        try s.reserve(gpa, 2 * index);
        s.count(2 * index);
    }
    try std.testing.expectError(error.TooManyTags, s.reserve(gpa, std.math.maxInt(u64)));
    try s.reserve(gpa, 8);
    s.count(8);
    try std.testing.expectEqual(2, s.next(8));
    // Tags 10 and 12 were called once, so the first call of 11 makes one run of the three.
    try s.reserve(gpa, 11);
    s.count(11);
    try std.testing.expectEqual(base.limits.tag_runs_max - 1, s.runs.items.len);
}

test "counts are those of a table" {
    const gpa = std.testing.allocator;
    const last = std.math.maxInt(u64);
    const tags = [_]u64{ 0, 1, 2, 3, 4, 5, 6, 7, 100, 101, last - 2, last - 1, last };
    for (0..100) |seed| {
        var prng: std.Random.DefaultPrng = .init(seed);
        var s: Sequences = .{};
        defer s.deinit(gpa);
        var table: [tags.len]u64 = @splat(0);
        for (0..200) |_| {
            const index = prng.random().uintLessThan(usize, tags.len);
            try s.reserve(gpa, tags[index]);
            s.count(tags[index]);
            table[index] += 1;
            for (tags, table) |tag, times| try std.testing.expectEqual(times, s.next(tag));
            for (s.runs.items, 0..) |run, at| {
                try std.testing.expect(run.first <= run.last);
                if (at == 0) continue;
                const before = s.runs.items[at - 1];
                try std.testing.expect(before.last < run.first);
                try std.testing.expect(before.last + 1 < run.first or before.next != run.next);
            }
        }
    }
}
