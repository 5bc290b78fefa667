//! Requests: what another peer asks this one for of a shared state, leaves and pages of their
//! hashes, from when it asks until they are answered, first in first out. Requests of this peer are
//! in transfer.zig; how they are said, and where the answers go: asking.zig.

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
    };

    /// A page, and the leaves that may be on request at the same time.
    pub const most = limits.state_asked_max + 1;

    pub const Error = error{ OutOfMemory, TooManyRequests };

    pub fn push(requests: *Requests, gpa: Allocator, item: Item) Error!void {
        if (requests.waiting.len == most) return error.TooManyRequests;
        try requests.waiting.pushBack(gpa, item);
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
