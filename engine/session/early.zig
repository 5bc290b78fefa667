//! Early: the frames that a peer has sent ahead of time, for operations that this peer has not
//! reached yet. They are bounded for each operation, and for the link that they came on (link.zig).
//! Which frames these are: frames.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const OpId = wire.control.OpId;
const Header = wire.frame.Header;
const limits = base.limits;

pub const Early = struct {
    gpa: Allocator,
    kept: std.AutoArrayHashMapUnmanaged(Key, Kept) = .empty,
    /// The memory of the data among it, with that which is still coming in.
    bytes: usize = 0,

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
    const Kept = struct {
        attempt: u32,
        open: ?Open = null,
        data: std.ArrayList(Data) = .empty,
        data_bytes: usize = 0,

        /// Whether a data frame of this place is among it.
        fn has(kept: *const Kept, header: *const Header) bool {
            for (kept.data.items) |*item| if (item.header.is_same(header)) return true;
            return false;
        }
    };

    pub const Open = struct { credit: u64, descriptor: wire.control.Descriptor };
    pub const Data = struct { header: Header, payload: []u8 };
    pub const Error = error{ OutOfMemory, TooMuchAhead };

    pub fn deinit(early: *Early) void {
        while (early.count() > 0) early.forget_at(early.count() - 1);
        early.kept.deinit(early.gpa);
        early.* = undefined;
    }

    /// Operations of which there is something.
    pub fn count(early: *const Early) usize {
        return early.kept.count();
    }

    /// Keeps an open until the operation is called here in that attempt.
    pub fn remember(early: *Early, key: Key, attempt: u32, open: Open) Error!void {
        const kept = try early.obtain(key, attempt) orelse return;
        kept.open = open;
    }

    /// The place for what is said of an operation in an attempt; null if a later one has begun.
    fn obtain(early: *Early, key: Key, attempt: u32) Error!?*Kept {
        if (early.kept.getIndex(key)) |index| {
            const kept = &early.kept.values()[index];
            if (kept.attempt == attempt) return kept;
            if (kept.attempt > attempt) return null;
            early.forget_at(index);
        }
        if (early.count() >= limits.early_operations_max) return error.TooMuchAhead;
        const entry = try early.kept.getOrPutValue(early.gpa, key, .{ .attempt = attempt });
        return entry.value_ptr;
    }

    /// The frames that wait for this operation in this attempt. Those of an older one are
    /// forgotten.
    fn find(early: *Early, key: Key, attempt: u32) ?*Kept {
        if (early.count() == 0) return null; // most often: no hash of the key is needed
        const index = early.kept.getIndex(key) orelse return null;
        const kept = &early.kept.values()[index];
        if (kept.attempt == attempt) return kept;
        if (kept.attempt < attempt) early.forget_at(index);
        return null;
    }

    /// The open that waits for this operation and attempt, if any; it is forgotten.
    pub fn recall(early: *Early, key: Key, attempt: u32) ?Open {
        const kept = early.find(key, attempt) orelse return null;
        defer kept.open = null;
        return kept.open;
    }

    /// Whether a data frame of this place is kept already.
    pub fn has_data(early: *Early, header: *const Header) bool {
        const kept = early.find(.of(header), header.attempt) orelse return false;
        return kept.has(header);
    }

    /// Room for data that was sent ahead of time; `keep_data` follows when it is there.
    pub fn reserve_data(early: *Early, header: *const Header) Error![]u8 {
        const bytes = header.payload_bytes;
        const before = if (early.find(.of(header), header.attempt)) |kept| kept.data_bytes else 0;
        if (before + bytes > limits.eager_bytes_max) return error.TooMuchAhead;
        if (early.bytes + cost(bytes) > limits.early_bytes_max) return error.TooMuchAhead;
        const payload = try early.gpa.alloc(u8, bytes);
        early.bytes += cost(bytes);
        return payload;
    }

    /// Small payloads count with what it takes to keep them.
    fn cost(bytes: usize) usize {
        return bytes + @sizeOf(Data);
    }

    pub fn forget_data(early: *Early, payload: []u8) void {
        early.bytes -= cost(payload.len);
        early.gpa.free(payload);
    }

    /// Takes over the payload, also when it fails.
    pub fn keep_data(early: *Early, header: *const Header, payload: []u8) Error!void {
        errdefer early.forget_data(payload);
        const kept = try early.obtain(.of(header), header.attempt) orelse
            return early.forget_data(payload);
        // Several lanes may have brought some at the same time, and the same.
        if (kept.has(header)) return early.forget_data(payload);
        if (kept.data_bytes + payload.len > limits.eager_bytes_max) return error.TooMuchAhead;
        try kept.data.append(early.gpa, .{ .header = header.*, .payload = payload });
        kept.data_bytes += payload.len;
    }

    /// Data of this operation and attempt that came ahead of time, one by one; the caller forgets
    /// it.
    pub fn recall_data(early: *Early, key: Key, attempt: u32) ?Data {
        const kept = early.find(key, attempt) orelse return null;
        const data = kept.data.pop() orelse return null;
        kept.data_bytes -= data.payload.len;
        return data;
    }

    /// An operation is over: whatever was kept for it is not wanted.
    pub fn forget(early: *Early, key: Key) void {
        if (early.count() == 0) return;
        if (early.kept.getIndex(key)) |index| early.forget_at(index);
    }

    fn forget_at(early: *Early, index: usize) void {
        const kept = &early.kept.values()[index];
        for (kept.data.items) |data| early.forget_data(data.payload);
        kept.data.deinit(early.gpa);
        early.kept.swapRemoveAt(index);
    }

    /// Forgets what is of passed attempts of this epoch.
    pub fn prune(early: *Early, group: u16, epoch: u64, attempt: u32) void {
        var index = early.count();
        while (index > 0) {
            index -= 1;
            const key = &early.kept.keys()[index];
            if (key.group != group or key.epoch != epoch) continue;
            if (early.kept.values()[index].attempt < attempt) early.forget_at(index);
        }
    }

    /// Forgets what is of this epoch and those before it; maxInt: the whole group.
    pub fn prune_epochs(early: *Early, group: u16, epoch: u64) void {
        var index = early.count();
        while (index > 0) {
            index -= 1;
            const key = &early.kept.keys()[index];
            if (key.group == group and key.epoch <= epoch) early.forget_at(index);
        }
    }
};

fn test_header(sequence: u64, attempt: u32, payload_bytes: u32) Header {
    return std.mem.zeroInit(Header, .{
        .kind = .partial,
        .sequence = sequence,
        .attempt = attempt,
        .payload_bytes = payload_bytes,
    });
}

/// Each is another piece.
fn test_keep(early: *Early, like: Header) Early.Error!void {
    var header = like;
    const kept = early.kept.getPtr(.of(&header));
    header.index = if (kept) |it| it.data.items.len else 0;
    try early.keep_data(&header, try early.reserve_data(&header));
}

test "what is kept ahead of time is counted with its cost, and given back" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    for (0..3) |_| try test_keep(&early, test_header(0, 1, 1));
    try std.testing.expect(early.bytes > 3 * @sizeOf(Early.Data));
    early.prune(0, 0, 2);
    try std.testing.expectEqual(0, early.bytes);
    try test_keep(&early, test_header(0, 2, 1));
    try test_keep(&early, test_header(0, 3, 1)); // a later attempt takes the place
    try test_keep(&early, test_header(0, 2, 1)); // an earlier one does not
    early.prune(0, 0, 3);
    const key: Early.Key = .of(&test_header(0, 3, 1));
    try std.testing.expectEqual(null, early.recall_data(key, 2));
    early.forget_data(early.recall_data(key, 3).?.payload);
    try std.testing.expectEqual(0, early.bytes);
}

test "data ahead of time is bounded for each operation, and for the link" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    const half = limits.eager_bytes_max / 2;
    for (0..2) |_| try test_keep(&early, test_header(0, 1, half));
    try std.testing.expectError(error.TooMuchAhead, test_keep(&early, test_header(0, 1, 1)));
    // Two lanes bring the last half at the same time: the second finds no place.
    var last = test_header(1, 1, half);
    try test_keep(&early, last);
    const payloads = .{ try early.reserve_data(&last), try early.reserve_data(&last) };
    last.index = 1;
    try early.keep_data(&last, payloads[0]);
    last.index = 2;
    try std.testing.expectError(error.TooMuchAhead, early.keep_data(&last, payloads[1]));
    var operations: u64 = 2;
    while (test_keep(&early, test_header(operations, 1, limits.eager_bytes_max))) {
        operations += 1;
    } else |err| try std.testing.expectEqual(error.TooMuchAhead, err);
    try std.testing.expect(operations >= limits.eager_operations_max);
    try std.testing.expect(early.bytes <= limits.early_bytes_max);
    early.prune_epochs(0, 0);
    try std.testing.expectEqual(0, early.bytes);
    try std.testing.expectEqual(0, early.count());
}

test "the same data on two lanes is kept once" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    const header = test_header(0, 1, 100);
    try std.testing.expect(!early.has_data(&header));
    const payloads = .{ try early.reserve_data(&header), try early.reserve_data(&header) };
    inline for (payloads) |payload| try early.keep_data(&header, payload);
    try std.testing.expect(early.has_data(&header));
    var later = header;
    later.attempt = 2;
    try std.testing.expect(!early.has_data(&later));
    const key: Early.Key = .of(&header);
    try std.testing.expectEqual(null, early.recall_data(key, 1)); // a later attempt was asked for
    try std.testing.expectEqual(0, early.bytes);
}

test "opens ahead of time are bounded" {
    var early: Early = .{ .gpa = std.testing.allocator };
    defer early.deinit();
    const open: Early.Open = .{ .credit = 1, .descriptor = undefined };
    for (0..limits.early_operations_max) |sequence| {
        try early.remember(.of(&test_header(sequence, 1, 0)), 1, open);
    }
    const more: Early.Key = .of(&test_header(limits.early_operations_max, 1, 0));
    try std.testing.expectError(error.TooMuchAhead, early.remember(more, 1, open));
    early.prune_epochs(1, std.math.maxInt(u64)); // another group
    try std.testing.expectEqual(limits.early_operations_max, early.count());
    early.prune_epochs(0, std.math.maxInt(u64));
    try early.remember(more, 1, open);
}
