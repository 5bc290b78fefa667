//! Founding: the founders of a group (a sub-group), as they have named each other. The rules for
//! them, and when the group begins: founders.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Newcomer = @import("newcomer.zig").Newcomer;
const Peer = @import("peer.zig").Peer;
const Ranks = @import("peer.zig").Ranks;
const Allocator = std.mem.Allocator;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// The founders of a group; nobody where it comes from the journal.
pub const Founding = struct {
    /// The number of the parent, and its epoch.
    parent: u16 = limits.groups_max,
    epoch: u64 = 0,
    /// In rank order.
    members: []PeerId = &.{},
    places: Ranks = .empty,
    /// Those that have named the same founders.
    asked: Mask = .empty,
    /// The parent has lost them since: nobody waits for them.
    gone: Mask = .empty,
    /// The founder that has named others. It is the end of the group.
    differs: PeerId = .none,
    /// The last that has named others and is no founder: it is turned away alone.
    outsider: PeerId = .none,

    pub fn deinit(founding: *Founding, gpa: Allocator) void {
        gpa.free(founding.members);
        founding.places.deinit(gpa);
    }

    pub fn place_of(founding: *const Founding, id: PeerId) ?u16 {
        return founding.places.get(id);
    }

    /// Founders that the others wait for.
    pub fn awaited(founding: *const Founding, newcomers: []const Newcomer) Mask {
        var here: Mask = founding.gone;
        for (newcomers) |*newcomer| {
            if (founding.place_of(newcomer.peer.id)) |place| here.set(place);
        }
        return Mask.full(founding.members.len).without(&here);
    }

    /// Newcomers that the first epoch needs: those who are there, and all others that may come.
    pub fn least(founding: *const Founding, newcomers: []const Newcomer) u32 {
        const rest = founding.awaited(newcomers).count();
        return @max(1, @as(u32, @intCast(newcomers.len)) + rest);
    }

    pub fn less_than(founding: *const Founding, a: *Peer, b: *Peer) bool {
        const none = limits.peers_max;
        return (founding.place_of(a.id) orelse none) < (founding.place_of(b.id) orelse none);
    }

    pub fn says(founding: *const Founding, parent: u16, told: *const control.Founders) bool {
        if (founding.parent != parent or founding.epoch != told.epoch) return false;
        if (founding.members.len != told.members.count) return false;
        var it = told.members.iterator();
        for (founding.members) |id| if (!id.eql(it.next().?)) return false;
        return true;
    }
};

/// A copy that outlives the message.
pub fn copy(gpa: Allocator, told: *const control.Founders) Allocator.Error!control.Founders {
    var founders = told.*;
    founders.parent.data = try gpa.dupe(u8, told.parent.data);
    errdefer gpa.free(founders.parent.data);
    founders.members.encoded = try gpa.dupe(u8, told.members.encoded);
    return founders;
}

pub fn free(gpa: Allocator, founders: *const control.Founders) void {
    gpa.free(founders.parent.data);
    gpa.free(founders.members.encoded);
}
