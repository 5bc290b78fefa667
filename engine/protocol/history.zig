//! History: which members each attempt of an epoch had. A chunk remembers the attempt that reduced
//! it, and the history tells who contributed. The coordinator keeps one for an epoch (epoch.zig), a
//! peer one for each of its calls (session/operation.zig).

const std = @import("std");
const base = @import("base");
const Allocator = std.mem.Allocator;
const Mask = base.Mask;

pub const History = struct {
    entries: std.ArrayList(Entry) = .empty,

    const Entry = struct { attempt: u32, members: Mask };

    pub fn deinit(history: *History, gpa: Allocator) void {
        history.entries.deinit(gpa);
    }

    /// Makes room for so many entries: one for each number of members that there may be.
    pub fn reserve(history: *History, gpa: Allocator, entries_max: usize) Allocator.Error!void {
        try history.entries.ensureTotalCapacityPrecise(gpa, entries_max);
    }

    /// Attempts rise and members only go; attempts with equal members share an entry. Asserts that
    /// room was reserved.
    pub fn note(history: *History, attempt: u32, alive: *const Mask) void {
        if (history.entries.getLastOrNull()) |last| if (last.members.eql(alive)) return;
        history.entries.appendAssumeCapacity(.{ .attempt = attempt, .members = alive.* });
    }

    /// Members of the given attempt. Asserts that the first attempt is noted.
    pub fn members(history: *const History, attempt: u32) *const Mask {
        var index = history.entries.items.len;
        while (index > 1) : (index -= 1) {
            if (history.entries.items[index - 1].attempt <= attempt) break;
        }
        return &history.entries.items[index - 1].members;
    }
};

test "an attempt has the members of the last change before it" {
    const gpa = std.testing.allocator;
    var history: History = .{};
    defer history.deinit(gpa);
    try history.reserve(gpa, 3);
    history.note(1, &Mask.full(3));
    history.note(2, &Mask.full(3));
    history.note(5, &Mask.full(2));
    try std.testing.expectEqual(3, history.members(1).count());
    try std.testing.expectEqual(3, history.members(4).count());
    try std.testing.expectEqual(2, history.members(9).count());
}
