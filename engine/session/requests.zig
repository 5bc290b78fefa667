//! Requests: what another peer asks this one for of a shared state, leaves and pages of their
//! hashes, from when it asks until they are answered, first in first out. A request that comes
//! again while it waits is one, because a lane that breaks has things said twice (resend.zig).
//! Requests of this peer are in transfer.zig; how they are said, and where the answers go:
//! asking.zig.

const std = @import("std");
const limits = @import("base").limits;
const Allocator = std.mem.Allocator;

/// Classes of requests, as they travel: `index` is a leaf, or a page of hashes.
pub const class_leaf = 0;
pub const class_hashes = 1;

/// Each peer may ask at any time, and few do: nothing is kept for those that do not.
pub const Requests = struct {
    waiting: std.Deque(Item) = .empty,

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

        fn asks_the_same(one: Item, other: Item) bool {
            var same = other;
            same.again = one.again;
            return std.meta.eql(one, same);
        }
    };

    /// A page, and the leaves that may be on request at the same time; and as many that were asked
    /// for, or answered, on lanes that broke.
    pub const most = 2 * (limits.state_asked_max + 1);

    pub const Error = error{ OutOfMemory, TooManyRequests };

    pub fn push(requests: *Requests, gpa: Allocator, item: Item) Error!void {
        if (requests.find(item) != null) return;
        if (requests.waiting.len >= most) return error.TooManyRequests;
        try requests.waiting.pushBack(gpa, item);
    }

    /// One whose answer was lost with its lane goes first. The other side did not ask twice, so
    /// there is no limit to it: a lane holds few answers.
    pub fn put_back(requests: *Requests, gpa: Allocator, item: Item) error{OutOfMemory}!void {
        if (requests.find(item)) |waiting| {
            waiting.again = @max(waiting.again, item.again);
            return;
        }
        try requests.waiting.pushFront(gpa, item);
    }

    fn find(requests: *const Requests, item: Item) ?*Item {
        for (0..requests.waiting.len) |index| {
            const waiting = requests.waiting.atPtr(index);
            if (waiting.asks_the_same(item)) return waiting;
        }
        return null;
    }

    pub fn pop(requests: *Requests, gpa: Allocator) ?Item {
        const item = requests.waiting.popFront() orelse return null;
        if (requests.waiting.len == 0) requests.clear(gpa);
        return item;
    }

    pub fn clear(requests: *Requests, gpa: Allocator) void {
        requests.waiting.deinit(gpa);
        requests.* = .{};
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
            try std.testing.expectEqual(index, requests.pop(gpa).?.index);
        try std.testing.expectEqual(null, requests.pop(gpa));
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
    const first = requests.pop(gpa).?;
    try std.testing.expectEqual(class_hashes, first.class);
    try std.testing.expectEqual(2, first.again);
    const second = requests.pop(gpa).?;
    try std.testing.expectEqual(0, second.index);
    try std.testing.expectEqual(1, second.again);
}
