//! Link: the lanes to one other peer, and what it has said ahead of time. The peer with the larger
//! id dials; a lane that breaks is dialed again. Which links are wanted is session.zig's.

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
    /// Opens of operations that this peer has not reached yet, and data sent ahead of time.
    early: std.ArrayList(Early) = .empty,
    early_data: std.ArrayList(EarlyData) = .empty,
    early_bytes: usize = 0,

    pub const Early = struct {
        group: u16,
        epoch: u64,
        attempt: u32,
        id: OpId,
        credit: u64,
        descriptor: wire.control.Descriptor,
    };

    pub const EarlyData = struct { header: wire.frame.Header, payload: []u8 };

    /// More opens than any honest peer can have in flight.
    pub const early_max = 8192;

    pub fn deinit(link: *Link) void {
        link.gpa.free(link.address);
        link.early.deinit(link.gpa);
        for (link.early_data.items) |item| link.gpa.free(item.payload);
        link.early_data.deinit(link.gpa);
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

    /// Room for data that was sent ahead of time; `keep_data` follows when it is there.
    pub fn reserve_data(link: *Link, bytes: usize) error{ OutOfMemory, TooMany }![]u8 {
        const cost = early_cost(bytes);
        if (link.early_bytes + cost > base.limits.early_bytes_max) return error.TooMany;
        try link.early_data.ensureUnusedCapacity(link.gpa, 1);
        const payload = try link.gpa.alloc(u8, bytes);
        link.early_bytes += cost;
        return payload;
    }

    /// Small payloads count with what it takes to keep them.
    fn early_cost(bytes: usize) usize {
        return bytes + @sizeOf(EarlyData);
    }

    pub fn forget_data(link: *Link, payload: []u8) void {
        link.early_bytes -= early_cost(payload.len);
        link.gpa.free(payload);
    }

    pub fn keep_data(
        link: *Link,
        header: wire.frame.Header,
        payload: []u8,
    ) error{OutOfMemory}!void {
        errdefer link.forget_data(payload);
        try link.early_data.append(link.gpa, .{ .header = header, .payload = payload });
    }

    /// Data of this operation and attempt that came ahead of time, one by one; the caller forgets
    /// it. Of older attempts it is forgotten here.
    pub fn recall_data(
        link: *Link,
        group: u16,
        epoch: u64,
        attempt: u32,
        id: OpId,
    ) ?EarlyData {
        var index: usize = 0;
        while (index < link.early_data.items.len) {
            const item = link.early_data.items[index];
            const header = &item.header;
            const fits = header.group == group and header.epoch == epoch and
                header.tag == id.tag and header.sequence == id.sequence and
                header.attempt <= attempt;
            if (!fits) {
                index += 1;
                continue;
            }
            _ = link.early_data.swapRemove(index);
            if (header.attempt == attempt) return item;
            link.forget_data(item.payload);
        }
        return null;
    }

    /// An operation is over: whatever was kept for it is not wanted.
    pub fn forget(link: *Link, group: u16, epoch: u64, id: OpId) void {
        const all = std.math.maxInt(u32);
        while (link.recall_data(group, epoch, all, id)) |item| link.forget_data(item.payload);
        _ = link.recall(group, epoch, all, id);
    }

    /// Forgets what is of passed attempts; attempt maxInt forgets the whole epoch.
    pub fn prune(link: *Link, group: u16, epoch: u64, attempt: u32) void {
        var kept: usize = 0;
        for (link.early.items) |item| {
            if (item.group == group and item.epoch == epoch and item.attempt < attempt) continue;
            link.early.items[kept] = item;
            kept += 1;
        }
        link.early.shrinkRetainingCapacity(kept);
        kept = 0;
        for (link.early_data.items) |item| {
            const header = &item.header;
            if (header.group == group and header.epoch == epoch and header.attempt < attempt) {
                link.forget_data(item.payload);
                continue;
            }
            link.early_data.items[kept] = item;
            kept += 1;
        }
        link.early_data.shrinkRetainingCapacity(kept);
    }
};

test "what is kept ahead of time is counted with its cost, and given back" {
    const gpa = std.testing.allocator;
    var link: Link = .{
        .gpa = gpa,
        .peer = .from_int(1),
        .dials = false,
        .expires_at = 0,
        .down_since = 0,
    };
    defer link.deinit();
    const header = std.mem.zeroInit(wire.frame.Header, .{ .kind = .partial, .attempt = 1 });
    for (0..3) |_| try link.keep_data(header, try link.reserve_data(1));
    try std.testing.expect(link.early_bytes > 3 * @sizeOf(Link.EarlyData));
    link.prune(0, 0, 2);
    try std.testing.expectEqual(0, link.early_bytes);
    link.early_bytes = base.limits.early_bytes_max - 1;
    try std.testing.expectError(error.TooMany, link.reserve_data(1));
    link.early_bytes = 0;
}
