//! Link: the lanes to one other peer, and what it has said ahead of time. The peer with the larger id dials;
//! a lane that breaks is dialed again. Which links are wanted is session.zig's.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Lane = @import("lane.zig").Lane;
const Allocator = std.mem.Allocator;
const OpId = wire.control.OpId;

pub const Link = struct {
    gpa: Allocator,
    peer: base.PeerId,
    address: []u8 = &.{},
    /// This side makes the connections.
    dials: bool,
    lanes: [base.limits.lanes_per_link_max]?*Lane = @splat(null),
    open_count: u32 = 0,
    wanted: bool = false,
    /// When an unwanted link is closed.
    expires_at: base.Instant,
    retry_at: base.Instant = 0,
    retries: u6 = 0,
    /// Since when no lane is open.
    down_since: base.Instant,
    /// Where round robin goes on.
    turn: usize = 0,
    /// Opens of operations that this peer has not reached yet.
    early: std.ArrayList(Early) = .empty,

    pub const Early = struct {
        group: u16,
        epoch: u64,
        attempt: u32,
        id: OpId,
        credit: u64,
        descriptor: wire.control.Descriptor,
    };

    /// More opens than any honest peer can have in flight.
    pub const early_max = 8192;

    pub fn deinit(link: *Link) void {
        link.gpa.free(link.address);
        link.early.deinit(link.gpa);
        link.* = undefined;
    }

    pub fn set_address(link: *Link, address: []const u8) Allocator.Error!void {
        if (std.mem.eql(u8, link.address, address)) return;
        const copy = try link.gpa.dupe(u8, address);
        link.gpa.free(link.address);
        link.address = copy;
    }

    /// Keeps an open until the operation is called here in that attempt.
    pub fn remember(link: *Link, early: Early) error{ OutOfMemory, TooMany }!void {
        for (link.early.items) |*item| {
            if (item.group != early.group or item.epoch != early.epoch) continue;
            if (!item.id.eql(early.id)) continue;
            if (item.attempt <= early.attempt) item.* = early;
            return;
        }
        if (link.early.items.len >= early_max) return error.TooMany;
        try link.early.append(link.gpa, early);
    }

    /// The open that waits for this operation and attempt, if any; it is forgotten.
    pub fn recall(link: *Link, group: u16, epoch: u64, attempt: u32, id: OpId) ?Early {
        for (link.early.items, 0..) |item, index| {
            if (item.group != group or item.epoch != epoch or !item.id.eql(id)) continue;
            if (item.attempt > attempt) return null;
            _ = link.early.swapRemove(index);
            return if (item.attempt == attempt) item else null;
        }
        return null;
    }

    /// Forgets opens of passed attempts; attempt maxInt forgets the whole epoch.
    pub fn prune(link: *Link, group: u16, epoch: u64, attempt: u32) void {
        var kept: usize = 0;
        for (link.early.items) |item| {
            if (item.group == group and item.epoch == epoch and item.attempt < attempt) continue;
            link.early.items[kept] = item;
            kept += 1;
        }
        link.early.shrinkRetainingCapacity(kept);
    }
};
