//! Requests: what another peer asks this one for of a shared state, leaves and pages of their
//! hashes, from when it asks until they are answered, first in first out. A request that comes
//! again while it waits is one, because a lane that breaks has things said twice (resend.zig). A
//! leaf may go out as several fragments (cutting.zig): the rest of it waits as the first request.
//! Requests of this peer are in transfer.zig; how they are said, and where the answers go:
//! asking.zig.

const std = @import("std");
const limits = @import("base").limits;
const Fragment = @import("wire").Fragment;
const Allocator = std.mem.Allocator;

/// Classes of requests, as they travel: `index` is a leaf, or a page of hashes.
pub const class_leaf = 0;
pub const class_hashes = 1;

/// Each peer may ask at any time, and few do: nothing is kept for those that do not.
pub const Requests = struct {
    waiting: std.Deque(Item) = .empty,
    /// Answers that have begun. Each has its number, so that nobody takes a fragment of one for
    /// that of another, which may be cut in another way.
    begun: u32 = 0,

    pub const Item = struct {
        class: u16,
        index: u32,
        // Where the answer belongs; of requests in the background only (prefetch.zig).
        group: u16 = 0,
        tag: u64 = 0,
        number: u32 = 0,
        fingerprint: u32 = 0,
        /// How often it was answered before, on lanes that broke.
        again: u8 = 0,
        /// The number of the answer; 0: it has not begun.
        answer: u32 = 0,
        /// This part of it is still to go, or goes again.
        part: Fragment = .whole,

        fn asks_the_same(one: Item, other: Item) bool {
            var same = other;
            same.again = one.again;
            same.answer = one.answer;
            same.part = one.part;
            return std.meta.eql(one, same);
        }
    };

    /// A page, and the leaves that may be on request at the same time; and as many that were asked
    /// for, or answered, on lanes that broke.
    pub const most = 2 * (limits.state_asked_max + 1);

    pub const Error = error{ OutOfMemory, TooManyRequests };

    /// Where the answer has begun it begins anew: the other side may have thrown away what went.
    pub fn push(requests: *Requests, gpa: Allocator, item: Item) Error!void {
        var count: usize = 0;
        for (0..requests.waiting.len) |index| {
            const waiting = requests.waiting.atPtr(index);
            if (waiting.asks_the_same(item)) {
                waiting.* = item;
                return;
            }
            count += @intFromBool(waiting.again == 0);
        }
        if (count >= most) return error.TooManyRequests;
        try requests.waiting.pushBack(gpa, item);
    }

    /// One whose answer was lost with its lane goes first, unless all of it is to go anyway. The
    /// other side did not ask twice, so there is no limit to it: a lane holds few answers.
    pub fn put_back(requests: *Requests, gpa: Allocator, item: Item) error{OutOfMemory}!void {
        for (0..requests.waiting.len) |index| {
            const waiting = requests.waiting.atPtr(index);
            if (waiting.answer > 0 or !waiting.asks_the_same(item)) continue;
            waiting.again = @max(waiting.again, item.again);
            return;
        }
        try requests.waiting.pushFront(gpa, item);
    }

    /// The one to answer next.
    pub fn first(requests: *const Requests) ?*const Item {
        return if (requests.waiting.len > 0) requests.waiting.atPtr(0) else null;
    }

    /// This part of the first one goes now. The rest, if there is one, stays first.
    pub fn take(requests: *Requests, gpa: Allocator, part: Fragment) Item {
        const waiting = requests.waiting.atPtr(0);
        if (waiting.answer == 0) {
            requests.begun +%= 1;
            waiting.answer = requests.begun;
        }
        var item = waiting.*;
        item.part = part;
        if (part.after > waiting.part.after) {
            waiting.part.before = @intCast(part.end());
            return item;
        }
        _ = requests.waiting.popFront();
        if (requests.waiting.len == 0) requests.clear(gpa);
        return item;
    }

    pub fn clear(requests: *Requests, gpa: Allocator) void {
        requests.waiting.deinit(gpa);
        requests.waiting = .empty;
    }
};

test "requests are answered in their order, up to the limit, and leave nothing behind" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    for (0..2) |_| {
        for (0..Requests.most) |index|
            try requests.push(gpa, .{ .class = class_leaf, .index = @intCast(index) });
        const beyond: Requests.Item = .{ .class = class_hashes, .index = 0 };
        try std.testing.expectError(error.TooManyRequests, requests.push(gpa, beyond));
        for (0..Requests.most) |index|
            try std.testing.expectEqual(index, requests.take(gpa, .whole).index);
        try std.testing.expectEqual(null, requests.first());
        try std.testing.expectEqual(0, requests.waiting.buffer.len);
    }
}

test "a request that waits already is one, and one whose answer was lost goes first" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.clear(gpa);
    for (0..3) |_| for (0..Requests.most) |index|
        try requests.push(gpa, .{ .class = class_leaf, .index = @intCast(index) });
    try requests.put_back(gpa, .{ .class = class_hashes, .index = 0, .again = 2 });
    // It was asked for again before its lane broke here as well.
    try requests.put_back(gpa, .{ .class = class_leaf, .index = 0, .again = 1 });
    try requests.put_back(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expectEqual(Requests.most + 1, requests.waiting.len);
    const first = requests.take(gpa, .whole);
    try std.testing.expectEqual(class_hashes, first.class);
    try std.testing.expectEqual(2, first.again);
    const second = requests.take(gpa, .whole);
    try std.testing.expectEqual(0, second.index);
    try std.testing.expectEqual(1, second.again);
}

test "the rest of an answer goes first, and each answer has its number" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.clear(gpa);
    for (0..2) |index|
        try requests.push(gpa, .{ .class = class_leaf, .index = @intCast(index) });
    const first = requests.take(gpa, .{ .after = 12 });
    try std.testing.expectEqual(Fragment{ .before = 4 }, requests.first().?.part);
    const second = requests.take(gpa, .{ .before = 4, .after = 3 });
    try std.testing.expectEqual(first.answer, second.answer);
    try std.testing.expectEqual(Fragment{ .before = 13 }, requests.first().?.part);
    try std.testing.expectEqual(0, requests.first().?.index);
    // It is asked for again: all of it goes, as another answer.
    try requests.push(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expect(requests.first().?.part.is_whole());
    const anew = requests.take(gpa, .whole);
    try std.testing.expectEqual(0, anew.index);
    try std.testing.expect(anew.answer > first.answer);
    const other = requests.take(gpa, .whole);
    try std.testing.expectEqual(1, other.index);
    try std.testing.expect(other.answer > anew.answer);
    try std.testing.expectEqual(null, requests.first());
    // The numbers go on.
    try requests.push(gpa, .{ .class = class_leaf, .index = 0 });
    try std.testing.expect(requests.take(gpa, .whole).answer > other.answer);
}

test "a fragment that was lost goes again as it was, unless all of its leaf is to go" {
    const gpa = std.testing.allocator;
    var requests: Requests = .{};
    defer requests.clear(gpa);
    const item: Requests.Item = .{ .class = class_leaf, .index = 7 };
    try requests.push(gpa, item);
    var lost = requests.take(gpa, .{ .after = 12 });
    lost.again = 1;
    try requests.put_back(gpa, lost);
    try std.testing.expectEqual(2, requests.waiting.len);
    try std.testing.expectEqual(lost, requests.take(gpa, lost.part));
    try std.testing.expectEqual(Fragment{ .before = 4 }, requests.take(gpa, .{ .before = 4 }).part);
    try requests.push(gpa, item);
    try requests.put_back(gpa, lost);
    try std.testing.expectEqual(1, requests.waiting.len);
    const whole = requests.take(gpa, .whole);
    try std.testing.expect(whole.answer > lost.answer and whole.again == 1);
    // As many go again as were lost.
    for (0..Requests.most + 1) |index| {
        lost.index = @intCast(index);
        try requests.put_back(gpa, lost);
    }
    try requests.push(gpa, .{ .class = class_hashes, .index = 0 });
}
