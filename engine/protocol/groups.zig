//! groups: the end of groups that nobody is in, and the welcome to one. They are made in
//! joining.zig.

const post = @import("post.zig");
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;

/// Groups that nobody is in, waits for or speaks of any more are over.
pub fn end_groups(run: *Run) void {
    var index = run.groups.items.len;
    while (index > 0) {
        index -= 1;
        const group = run.groups.items[index];
        if (!is_over(run, group)) continue;
        run.log(.info, "group {s} has ended: nobody is in it", .{group.name});
        end_group(run, group);
    }
}

fn is_over(run: *const Run, group: *const Group) bool {
    if (group.epochs.items.len > 0 or group.newcomers.items.len > 0) return false;
    for (run.peers.items) |peer| {
        if (peer.is_present(group.id)) return false;
        if (peer.telling) |*telling| if (telling.group == group.id) return false;
        for (peer.claim.waiting.items) |*item| if (item.group == group.id) return false;
    }
    return true;
}

pub fn end_group(run: *Run, group: *Group) void {
    run.ended.epoch = @max(run.ended.epoch, group.last_epoch);
    run.ended.round = @max(run.ended.round, group.round);
    for (run.groups.items, 0..) |item, index| if (item == group) {
        _ = run.groups.orderedRemove(index);
        break;
    };
    group.destroy();
}

pub fn welcome_to(run: *Run, group: *const Group, peer: *Peer) void {
    peer.present |= @as(u64, 1) << @intCast(group.id);
    post.send(run, peer, group.id, .{ .joined = .{ .name = .of(group.name), .group = group.id } });
}
