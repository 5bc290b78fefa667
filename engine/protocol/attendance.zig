//! attendance: a group without members begins when enough peers have come. While there are too few,
//! the peers that are there are told how many they are, and so are the log and the status. The
//! round that lets them in: group.zig.

const std = @import("std");
const wire = @import("wire");
const Group = @import("group.zig").Group;

pub const Count = struct {
    here: u32,
    needed: u32,
    /// It has had members, and all of them are gone.
    emptied: bool,
};

/// Null: enough have come, or the group has members, who wait for nobody.
pub fn of(group: *const Group) ?Count {
    if (group.current()) |epoch| if (!epoch.alive.is_empty()) return null;
    if (group.founding != null) return null; // it waits for these peers by name (awaited.zig)
    const needed = group.least();
    var here: usize = group.newcomers.items.len;
    // They are looked for where they say they are (addresses.zig).
    for (group.coordinator.peers.items) |peer| for (peer.claim.waiting.items) |*item| {
        here += @intFromBool(item.group == group);
    };
    if (here == 0 or here >= needed) return null;
    return .{ .here = @intCast(here), .needed = needed, .emptied = group.had_members };
}

/// At a tick, so that those who come together are one line of the log.
pub fn review(group: *Group) void {
    const count = of(group) orelse {
        group.here_said = 0;
        return;
    };
    for (group.newcomers.items) |*newcomer| {
        if (newcomer.here_told == count.here) continue;
        newcomer.here_told = count.here;
        newcomer.peer.send(group.id, .{ .waiting = .{
            .group = group.id,
            .here = count.here,
            .needed = count.needed,
            .emptied = count.emptied,
        } });
    }
    if (group.here_said == count.here) return;
    group.here_said = count.here;
    const emptied = if (count.emptied) "; all that were in it are gone" else "";
    group.coordinator.log(.info, "{d} of {d} peers are here{s}; group {s}", .{
        count.here,
        count.needed,
        emptied,
        group.name,
    });
}
