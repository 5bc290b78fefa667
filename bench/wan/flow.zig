//! Flows: what is kept of each connection that crosses a pair of nodes: the queue of its own, where
//! a pair caps each flow, and whether it was made a bad one. It owns no packets. A flow whose queue
//! is empty, and which is not bad, is not worth remembering, so nothing here grows for ever.

const std = @import("std");
const Queue = @import("queue.zig").Queue;

pub const flows_max = 1 << 14;

pub const Flow = struct {
    queue: Queue = .{},
    /// Loss on top of that of the pair.
    loss_ppm: u32 = 0,
};

pub const Flows = struct {
    by_key: std.AutoHashMapUnmanaged(u64, Flow) = .empty,

    /// The flow with this key, which may be a new one. The pointer holds until the next call.
    pub fn find(flows: *Flows, gpa: std.mem.Allocator, key: u64, now_ns: u64) !*Flow {
        if (flows.by_key.getPtr(key)) |known| return known;
        if (flows.by_key.count() >= flows_max) try flows.forget_idle(gpa, now_ns);
        const entry = try flows.by_key.getOrPutValue(gpa, key, .{});
        return entry.value_ptr;
    }

    /// Whether a flow is known, without making it so.
    pub fn look(flows: *const Flows, key: u64) ?Flow {
        return flows.by_key.get(key);
    }

    fn forget_idle(flows: *Flows, gpa: std.mem.Allocator, now_ns: u64) !void {
        var kept: std.AutoHashMapUnmanaged(u64, Flow) = .empty;
        errdefer kept.deinit(gpa);
        var all = flows.by_key.iterator();
        while (all.next()) |entry| {
            const flow = entry.value_ptr;
            if (flow.loss_ppm > 0 or !flow.queue.is_idle(now_ns)) {
                try kept.put(gpa, entry.key_ptr.*, flow.*);
            }
        }
        flows.by_key.deinit(gpa);
        flows.by_key = kept;
    }

    pub fn deinit(flows: *Flows, gpa: std.mem.Allocator) void {
        flows.by_key.deinit(gpa);
    }
};

test "flows that are idle are forgotten when there are too many, and others are not" {
    const gpa = std.testing.allocator;
    var flows: Flows = .{};
    defer flows.deinit(gpa);
    const busy = try flows.find(gpa, 1, 0);
    busy.queue.rate_kbit = 8;
    _ = busy.queue.accept(0, 1_000_000);
    (try flows.find(gpa, 2, 0)).loss_ppm = 50_000;
    for (3..flows_max + 1) |key| _ = try flows.find(gpa, key, 0);
    try std.testing.expectEqual(flows_max, flows.by_key.count());

    _ = try flows.find(gpa, flows_max + 1, 1);
    try std.testing.expectEqual(3, flows.by_key.count());
    try std.testing.expect(flows.look(1).?.queue.empty_at_ns > 0);
    try std.testing.expectEqual(50_000, flows.look(2).?.loss_ppm);
    try std.testing.expectEqual(null, flows.look(3));
}
