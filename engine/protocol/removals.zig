//! Removals: why peers are out of a group, for peers that come back and do not know it. A peer that
//! is there hears it at once; a peer that was away asks when the others have long gone on, perhaps
//! after the coordinator has started again. So the reasons are in the journal, too (restoring.zig).

const std = @import("std");
const base = @import("base");
const PeerId = base.PeerId;

pub const Removals = struct {
    /// Oldest first. Room for all of them from the beginning: a group's memory stays flat.
    entries: [entries_max]Entry = undefined,
    count: usize = 0,

    pub const Entry = struct {
        id: PeerId,
        length: usize,
        text: [why_bytes_max]u8,

        pub fn why(entry: *const Entry) []const u8 {
            return entry.text[0..entry.length];
        }
    };
    const entries_max = 32;
    const why_bytes_max = base.limits.removal_why_bytes_max;

    pub fn note(removals: *Removals, id: PeerId, why: []const u8) void {
        for (removals.known(), 0..) |*entry, index| if (entry.id.eql(id)) {
            removals.forget(index);
            break;
        };
        if (removals.count == entries_max) removals.forget(0);
        const entry = &removals.entries[removals.count];
        removals.count += 1;
        entry.id = id;
        entry.length = @min(why.len, why_bytes_max);
        @memcpy(entry.text[0..entry.length], why[0..entry.length]);
    }

    fn forget(removals: *Removals, index: usize) void {
        const rest = removals.entries[index + 1 .. removals.count];
        @memmove(removals.entries[index..][0..rest.len], rest);
        removals.count -= 1;
    }

    pub fn known(removals: *const Removals) []const Entry {
        return removals.entries[0..removals.count];
    }

    pub fn why_of(removals: *const Removals, id: PeerId) ?[]const u8 {
        for (removals.known()) |*entry| {
            if (entry.id.eql(id)) return entry.why();
        }
        return null;
    }
};

test "the last reason of each of the last peers that were removed is known, and no others" {
    var removals: Removals = .{};
    const most = Removals.entries_max;
    for (0..most) |index| removals.note(.from_int(index + 1), "it was silent");
    removals.note(.from_int(1), "it left" ++ " and left" ** 40);
    try std.testing.expectEqual(most, removals.count);
    removals.note(.from_int(most + 1), "it broke the protocol");
    try std.testing.expectEqual(most, removals.count);
    try std.testing.expectEqual(null, removals.why_of(.from_int(2)));
    try std.testing.expectEqualStrings("it was silent", removals.why_of(.from_int(3)).?);
    try std.testing.expect(std.mem.startsWith(u8, removals.why_of(.from_int(1)).?, "it left and"));
    try std.testing.expectEqualStrings(
        "it broke the protocol",
        removals.why_of(.from_int(most + 1)).?,
    );
}

test "a peer that is removed again has one place and the last reason" {
    var removals: Removals = .{};
    removals.note(.from_int(1), "it was silent");
    removals.note(.from_int(2), "it was silent");
    removals.note(.from_int(1), "it left");
    try std.testing.expectEqual(2, removals.count);
    try std.testing.expectEqualStrings("it left", removals.why_of(.from_int(1)).?);
}
