//! attendance: a group without members begins when enough peers have come. While there are too few,
//! the peers that are there are told how many they are, and so are the log and the status. The
//! round that lets them in: rounds.zig.

const std = @import("std");
const base = @import("base");
const post = @import("post.zig");
const Group = @import("group.zig").Group;
const Run = @import("run.zig").Run;

pub const Count = struct {
    here: u32,
    needed: u32,
    /// It has had members, and all of them are gone.
    emptied: bool,
};

/// Null: enough have come, as they have where the group has members, who wait for nobody.
pub fn of(run: *const Run, group: *const Group) ?Count {
    if (group.founding != null) return null; // it waits for these peers by name (awaited.zig)
    const needed = group.least();
    var here: usize = group.newcomers.items.len;
    // They are looked for where they say they are (finding.zig).
    for (run.peers.items) |peer| for (peer.claim.waiting.items) |*item| {
        here += @intFromBool(item.group == group.id);
    };
    if (here == 0 or here >= needed) return null;
    return .{ .here = @intCast(here), .needed = needed, .emptied = group.had_members };
}

/// When the log says that they wait for long.
pub fn next_deadline(run: *const Run, group: *const Group) base.Instant {
    const said = &group.attendance_said;
    if (said.here == 0 or said.waits) return base.never;
    return said.since +| run.options.stall_warning_ns;
}

/// At a tick, so that those who come together are one line of the log.
pub fn review(run: *Run, group: *Group, now: base.Instant) void {
    const said = &group.attendance_said;
    const count = of(run, group) orelse {
        said.* = .{};
        return;
    };
    for (group.newcomers.items) |*newcomer| {
        if (newcomer.here_told == count.here) continue;
        newcomer.here_told = count.here;
        post.send(run, newcomer.peer, group.id, .{ .waiting = .{
            .group = group.id,
            .here = count.here,
            .needed = count.needed,
            .emptied = count.emptied,
        } });
    }
    const emptied = if (count.emptied) "; all that were in it are gone" else "";
    if (said.here != count.here) {
        said.* = .{ .here = count.here, .since = now };
        run.log(.info, "{d} of {d} peers are here{s}; group {s}", .{
            count.here,
            count.needed,
            emptied,
            group.name,
        });
    }
    if (now < next_deadline(run, group)) return;
    said.waits = true;
    run.log(.warning, "only {d} of {d} peers are here after {d} s, and the " ++
        "others may have ended{s}; group {s}", .{
        count.here,
        count.needed,
        (now -| said.since) / std.time.ns_per_s,
        emptied,
        group.name,
    });
}
