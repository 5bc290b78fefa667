//! Removals: why peers are out of a group, for those that come back and do not know it. One that is
//! there hears it at once; one that was away asks when others have long gone on.

const std = @import("std");
const base = @import("base");
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;

pub const Removals = struct {
    /// Oldest first.
    entries: std.ArrayList(Entry) = .empty,

    const Entry = struct {
        id: PeerId,
        length: usize,
        why: [why_bytes_max]u8,
    };
    const entries_max = base.limits.peers_max;
    /// A longer one is cut.
    const why_bytes_max = 240;

    pub fn deinit(removals: *Removals, gpa: Allocator) void {
        removals.entries.deinit(gpa);
    }

    /// Without memory it is not kept: whoever asks hears less.
    pub fn note(removals: *Removals, gpa: Allocator, id: PeerId, why: []const u8) void {
        for (removals.entries.items, 0..) |*entry, index| if (entry.id.eql(id)) {
            _ = removals.entries.orderedRemove(index);
            break;
        };
        if (removals.entries.items.len >= entries_max) _ = removals.entries.orderedRemove(0);
        const entry = removals.entries.addOne(gpa) catch return;
        entry.id = id;
        entry.length = @min(why.len, why_bytes_max);
        @memcpy(entry.why[0..entry.length], why[0..entry.length]);
    }

    pub fn why_of(removals: *const Removals, id: PeerId) ?[]const u8 {
        for (removals.entries.items) |*entry| {
            if (entry.id.eql(id)) return entry.why[0..entry.length];
        }
        return null;
    }
};

test "the last reason of each of the last peers that were removed is known, and no others" {
    const gpa = std.testing.allocator;
    var removals: Removals = .{};
    defer removals.deinit(gpa);
    const most = Removals.entries_max;
    for (0..most) |index| removals.note(gpa, .from_int(index + 1), "it was silent");
    removals.note(gpa, .from_int(1), "it left" ++ " and left" ** 40);
    try std.testing.expectEqual(most, removals.entries.items.len);
    removals.note(gpa, .from_int(most + 1), "it broke the protocol");
    try std.testing.expectEqual(most, removals.entries.items.len);
    try std.testing.expectEqual(null, removals.why_of(.from_int(2)));
    try std.testing.expectEqualStrings("it was silent", removals.why_of(.from_int(3)).?);
    try std.testing.expect(std.mem.startsWith(u8, removals.why_of(.from_int(1)).?, "it left and"));
    try std.testing.expectEqualStrings(
        "it broke the protocol",
        removals.why_of(.from_int(most + 1)).?,
    );
}
