//! Overdue: members that must leave a group, and why, as the files say that find them: stalls.zig,
//! debtors.zig, misfit.zig. They are let go at ticks (tick.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Peer = @import("peer.zig").Peer;
const control = wire.control;

pub const Overdue = struct {
    peers: [base.limits.peers_max]*Peer = undefined,
    count: usize = 0,
    why_storage: [why_bytes_max]u8 = undefined,
    why_length: usize = 0,
    /// The call that they should have made, where that is why, and who has made it.
    call: ?Call = null,

    const Call = struct { op: control.OpId, peer: base.PeerId, descriptor: control.Descriptor };
    const why_bytes_max = base.limits.expelled_bytes_max;

    pub fn why(overdue: *const Overdue) []const u8 {
        return overdue.why_storage[0..overdue.why_length];
    }

    pub fn add(overdue: *Overdue, peer: *Peer) void {
        overdue.peers[overdue.count] = peer;
        overdue.count += 1;
    }

    pub fn say(overdue: *Overdue, comptime format: []const u8, args: anytype) void {
        const text = std.fmt.bufPrint(&overdue.why_storage, format, args) catch
            &overdue.why_storage;
        overdue.why_length = text.len;
    }
};
