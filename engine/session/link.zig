//! Link: the lanes to one other peer, and the frames that it has sent ahead of time. Either side
//! dials, one of them first; a lane that breaks is dialed again. Which links are wanted is
//! links.zig's; frames.zig decides who may send what ahead of time.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Lane = @import("lane.zig").Lane;
const Requests = @import("requests.zig").Requests;
const Allocator = std.mem.Allocator;
const OpId = wire.control.OpId;
const Header = wire.frame.Header;
const limits = base.limits;

pub const Link = struct {
    gpa: Allocator,
    peer: base.PeerId,
    address: []u8 = &.{},
    /// Where both sides dial at once, the connections of this one stay: its id is larger.
    wins: bool,
    /// This side dials at once, and the other when that seems to lead nowhere. At first it is the
    /// one that wins, then the one that has made the last lane.
    leads: bool,
    lanes: [base.limits.lanes_per_link_max]?*Lane = @splat(null),
    open_count: u32 = 0,
    /// There was a lane at some time.
    was_open: bool = false,
    wanted: bool = false,
    /// Wanted for the messages of this peer alone: the other side may not know of them yet.
    borrowed: bool = false,
    /// When an unwanted link is closed.
    expires_at: base.Instant,
    /// The end of the last dial; `pending` again once there is a lane.
    dialed: wire.Dialed = .pending,
    /// The address of this machine that it came from; zeros before there was one.
    dialed_from: base.Source = @splat(0),
    retry_at: base.Instant = 0,
    retries: u6 = 0,
    /// When the coordinator was last asked where the peer is dialed.
    asked_at: ?base.Instant = null,
    /// Since when no lane is open.
    down_since: base.Instant,
    /// The health that coordinators were told, or will be when one is there.
    told: wire.control.LinkHealth = .up,
    /// Bytes on its lanes, and those that the coordinator has been told of (traffic.zig).
    sent: u64 = 0,
    received: u64 = 0,
    sent_told: u64 = 0,
    received_told: u64 = 0,
    /// Where round robin goes on.
    turn: usize = 0,
    /// Frames of operations that this peer has not reached yet.
    early: std.AutoArrayHashMapUnmanaged(Key, Early) = .empty,
    /// The memory of the data among them, with that which is still coming in.
    early_bytes: usize = 0,
    /// Requests of the peer, a newcomer, in the background.
    asked: Requests = .{},
    /// The group of which it was a newcomer when it asked first: others may overtake it meanwhile.
    asks_in: ?u16 = null,

    pub const Key = struct {
        /// A whole word, so that a key is hashed at once and not field by field.
        group: u64,
        epoch: u64,
        tag: u64,
        sequence: u64,

        pub fn of(header: *const Header) Key {
            return .{
                .group = header.group,
                .epoch = header.epoch,
                .tag = header.tag,
                .sequence = header.sequence,
            };
        }

        pub fn of_operation(group: u16, epoch: u64, id: OpId) Key {
            return .{ .group = group, .epoch = epoch, .tag = id.tag, .sequence = id.sequence };
        }
    };

    /// For one operation, in one attempt: the latest.
    const Early = struct {
        attempt: u32,
        open: ?Open = null,
        data: std.ArrayList(Data) = .empty,
        data_bytes: usize = 0,
    };

    pub const Open = struct { credit: u64, descriptor: wire.control.Descriptor };
    pub const Data = struct { header: Header, payload: []u8 };
    pub const EarlyError = error{ OutOfMemory, TooMuchAhead };

    pub fn deinit(link: *Link) void {
        link.gpa.free(link.address);
        while (link.early.count() > 0) link.forget_at(link.early.count() - 1);
        link.early.deinit(link.gpa);
        link.* = undefined;
    }

    pub fn set_address(link: *Link, address: []const u8) Allocator.Error!void {
        if (std.mem.eql(u8, link.address, address)) return;
        const copy = try link.gpa.dupe(u8, address);
        link.gpa.free(link.address);
        link.address = copy;
    }

    /// When it is closed because nobody wants it: not while the peer waits for calls of this one.
    pub fn ends_at(link: *const Link) base.Instant {
        return if (link.wanted or link.early.count() > 0) base.never else link.expires_at;
    }

    // ---- ahead of time

    /// Keeps an open until the operation is called here in that attempt.
    pub fn remember(link: *Link, key: Key, attempt: u32, open: Open) EarlyError!void {
        const early = try link.obtain(key, attempt) orelse return;
        early.open = open;
    }

    /// The place for what is said of an operation in an attempt; null if a later one has begun.
    fn obtain(link: *Link, key: Key, attempt: u32) EarlyError!?*Early {
        if (link.early.getIndex(key)) |index| {
            const early = &link.early.values()[index];
            if (early.attempt == attempt) return early;
            if (early.attempt > attempt) return null;
            link.forget_at(index);
        }
        if (link.early.count() >= limits.early_operations_max) return error.TooMuchAhead;
        const entry = try link.early.getOrPutValue(link.gpa, key, .{ .attempt = attempt });
        return entry.value_ptr;
    }

    /// The frames that wait for this operation in this attempt. Those of an older one are
    /// forgotten.
    fn find(link: *Link, key: Key, attempt: u32) ?*Early {
        if (link.early.count() == 0) return null; // most often: no hash of the key is needed
        const index = link.early.getIndex(key) orelse return null;
        const early = &link.early.values()[index];
        if (early.attempt == attempt) return early;
        if (early.attempt < attempt) link.forget_at(index);
        return null;
    }

    /// The open that waits for this operation and attempt, if any; it is forgotten.
    pub fn recall(link: *Link, key: Key, attempt: u32) ?Open {
        const early = link.find(key, attempt) orelse return null;
        defer early.open = null;
        return early.open;
    }

    /// Room for data that was sent ahead of time; `keep_data` follows when it is there.
    pub fn reserve_data(link: *Link, header: *const Header) EarlyError![]u8 {
        const bytes = header.payload_bytes;
        const before = if (link.find(.of(header), header.attempt)) |early| early.data_bytes else 0;
        if (before + bytes > limits.eager_bytes_max) return error.TooMuchAhead;
        if (link.early_bytes + cost(bytes) > limits.early_bytes_max) return error.TooMuchAhead;
        const payload = try link.gpa.alloc(u8, bytes);
        link.early_bytes += cost(bytes);
        return payload;
    }

    /// Small payloads count with what it takes to keep them.
    fn cost(bytes: usize) usize {
        return bytes + @sizeOf(Data);
    }

    pub fn forget_data(link: *Link, payload: []u8) void {
        link.early_bytes -= cost(payload.len);
        link.gpa.free(payload);
    }

    /// Takes over the payload, also when it fails.
    pub fn keep_data(link: *Link, header: *const Header, payload: []u8) EarlyError!void {
        errdefer link.forget_data(payload);
        const early = try link.obtain(.of(header), header.attempt) orelse
            return link.forget_data(payload);
        // Several lanes may have brought some at the same time.
        if (early.data_bytes + payload.len > limits.eager_bytes_max) return error.TooMuchAhead;
        try early.data.append(link.gpa, .{ .header = header.*, .payload = payload });
        early.data_bytes += payload.len;
    }

    /// Data of this operation and attempt that came ahead of time, one by one; the caller forgets
    /// it.
    pub fn recall_data(link: *Link, key: Key, attempt: u32) ?Data {
        const early = link.find(key, attempt) orelse return null;
        const data = early.data.pop() orelse return null;
        early.data_bytes -= data.payload.len;
        return data;
    }

    /// An operation is over: whatever was kept for it is not wanted.
    pub fn forget(link: *Link, key: Key) void {
        if (link.early.count() == 0) return;
        if (link.early.getIndex(key)) |index| link.forget_at(index);
    }

    fn forget_at(link: *Link, index: usize) void {
        const early = &link.early.values()[index];
        for (early.data.items) |data| link.forget_data(data.payload);
        early.data.deinit(link.gpa);
        link.early.swapRemoveAt(index);
    }

    /// Forgets what is of passed attempts of this epoch.
    pub fn prune(link: *Link, group: u16, epoch: u64, attempt: u32) void {
        var index = link.early.count();
        while (index > 0) {
            index -= 1;
            const key = &link.early.keys()[index];
            if (key.group != group or key.epoch != epoch) continue;
            if (link.early.values()[index].attempt < attempt) link.forget_at(index);
        }
    }

    /// Whether something of this owner is coming in.
    pub fn brings(link: *const Link, owner: Lane.Owner) bool {
        for (link.lanes) |place| if (place) |lane| if (lane.brings(owner)) return true;
        return false;
    }

    /// The bytes still to come of the payloads that have begun, on all lanes.
    pub fn bytes_left(link: *const Link, owner: Lane.Owner) usize {
        var left: usize = 0;
        for (link.lanes) |place| if (place) |lane| {
            if (lane.brings(owner)) left += lane.into.?.len;
        };
        return left;
    }

    /// Forgets what is of this epoch and those before it; maxInt: the whole group.
    pub fn prune_epochs(link: *Link, group: u16, epoch: u64) void {
        var index = link.early.count();
        while (index > 0) {
            index -= 1;
            const key = &link.early.keys()[index];
            if (key.group == group and key.epoch <= epoch) link.forget_at(index);
        }
    }
};

fn test_link() Link {
    return .{
        .gpa = std.testing.allocator,
        .peer = .from_int(1),
        .wins = false,
        .leads = false,
        .expires_at = 0,
        .down_since = 0,
    };
}

fn test_header(sequence: u64, attempt: u32, payload_bytes: u32) Header {
    return std.mem.zeroInit(Header, .{
        .kind = .partial,
        .sequence = sequence,
        .attempt = attempt,
        .payload_bytes = payload_bytes,
    });
}

fn test_keep(link: *Link, header: Header) Link.EarlyError!void {
    try link.keep_data(&header, try link.reserve_data(&header));
}

test "what is kept ahead of time is counted with its cost, and given back" {
    var link = test_link();
    defer link.deinit();
    for (0..3) |_| try test_keep(&link, test_header(0, 1, 1));
    try std.testing.expect(link.early_bytes > 3 * @sizeOf(Link.Data));
    link.prune(0, 0, 2);
    try std.testing.expectEqual(0, link.early_bytes);
    try test_keep(&link, test_header(0, 2, 1));
    try test_keep(&link, test_header(0, 3, 1)); // a later attempt takes the place
    try test_keep(&link, test_header(0, 2, 1)); // an earlier one does not
    link.prune(0, 0, 3);
    const key: Link.Key = .of(&test_header(0, 3, 1));
    try std.testing.expectEqual(null, link.recall_data(key, 2));
    link.forget_data(link.recall_data(key, 3).?.payload);
    try std.testing.expectEqual(0, link.early_bytes);
}

test "data ahead of time is bounded for each operation, and for the link" {
    var link = test_link();
    defer link.deinit();
    const half = limits.eager_bytes_max / 2;
    for (0..2) |_| try test_keep(&link, test_header(0, 1, half));
    try std.testing.expectError(error.TooMuchAhead, test_keep(&link, test_header(0, 1, 1)));
    // Two lanes bring the last half at the same time: the second finds no place.
    const last = test_header(1, 1, half);
    try test_keep(&link, last);
    const payloads = .{ try link.reserve_data(&last), try link.reserve_data(&last) };
    try link.keep_data(&last, payloads[0]);
    try std.testing.expectError(error.TooMuchAhead, link.keep_data(&last, payloads[1]));
    var operations: u64 = 2;
    while (test_keep(&link, test_header(operations, 1, limits.eager_bytes_max))) {
        operations += 1;
    } else |err| try std.testing.expectEqual(error.TooMuchAhead, err);
    try std.testing.expect(operations >= limits.eager_operations_max);
    try std.testing.expect(link.early_bytes <= limits.early_bytes_max);
    link.prune_epochs(0, 0);
    try std.testing.expectEqual(0, link.early_bytes);
    try std.testing.expectEqual(0, link.early.count());
}

test "opens ahead of time are bounded" {
    var link = test_link();
    defer link.deinit();
    const open: Link.Open = .{ .credit = 1, .descriptor = undefined };
    for (0..limits.early_operations_max) |sequence| {
        try link.remember(.of(&test_header(sequence, 1, 0)), 1, open);
    }
    const more: Link.Key = .of(&test_header(limits.early_operations_max, 1, 0));
    try std.testing.expectError(error.TooMuchAhead, link.remember(more, 1, open));
    link.prune_epochs(1, std.math.maxInt(u64)); // another group
    try std.testing.expectEqual(limits.early_operations_max, link.early.count());
    link.prune_epochs(0, std.math.maxInt(u64));
    try link.remember(more, 1, open);
}
