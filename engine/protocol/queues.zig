//! queues: how much all connections of a coordinator may hold together. Each has limits of its own
//! (wire/stream.zig), and many that read nothing still add up; then the longest queue goes, never
//! the peer that asked last.

const std = @import("std");
const Connection = @import("peer.zig").Connection;
const Run = @import("run.zig").Run;

/// Closes connections before the call under way returns, until what the others hold fits. Their
/// memory is free at once, but for what they have said.
pub fn keep_budget(run: *Run) void {
    while (run.memory.is_over()) {
        var leaving: usize = 0;
        var longest: ?*Connection = null;
        var longest_bytes: usize = 0;
        for (run.connections.items) |connection| {
            const bytes = connection.memory() + held_for(run, connection);
            if (connection.doomed != null) {
                leaving += bytes;
            } else if (bytes > longest_bytes) {
                longest = connection;
                longest_bytes = bytes;
            }
        }
        if (run.memory.bytes -| leaving <= run.memory.bytes_max) return;
        const victim = longest orelse return;
        run.log(.warning, "all queues hold {d} MiB, more than the option memory: {f} must go, " ++
            "whose queue is the longest, {d} KiB", .{
            run.memory.bytes >> 20,
            Who{ .connection = victim },
            longest_bytes >> 10,
        });
        victim.doom("its queue was the longest when the memory for all queues was used up");
        victim.stream.drop();
    }
}

/// The bytes that are held of the reports of its peer, which come back when that is gone.
fn held_for(run: *const Run, connection: *const Connection) usize {
    const peer = connection.peer orelse return 0;
    if (peer.present == 0) return 0;
    var bytes: usize = 0;
    for (run.groups.items) |group| if (peer.is_present(group.id)) for (group.epochs.items) |epoch| {
        const rank = epoch.rank_of(peer) orelse continue;
        bytes += epoch.members[rank].held_bytes;
    };
    return bytes;
}

const Who = struct {
    connection: *const Connection,

    pub fn format(who: Who, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const peer = who.connection.peer orelse return writer.writeAll("some stranger");
        try writer.print("peer {f}", .{peer.named()});
    }
};
