//! Stages: the ways of packets between nodes, from queue to queue. It owns nodes, paths, flows and
//! all packets that are under way; it is told the time, and never asks. Packets come from and go
//! to main.zig.
//!
//!     cap of the flow -> uplink of its node -> path (rate, loss, delay) -> downlink of its node
//!
//! A packet goes on at the instant that its queue has computed, not when somebody came around to
//! looking: being late once delays one packet, and does not add up.

const std = @import("std");
const Pool = @import("pool.zig").Pool;
const Packet = @import("packet.zig").Packet;
const Path = @import("path.zig").Path;
const Queue = @import("queue.zig").Queue;
const Drop = @import("counters.zig").Drop;
const flow = @import("flow.zig");
const packets = @import("packet.zig");
const assert = std.debug.assert;

pub const nodes_max = 32;
/// The network of all nodes: 10.88.0.0/24; node 0 is 10.88.0.1.
pub const network_address = 0x0a58_0000;

/// A packet of several segments that takes longer than this at the slowest stage is cut, as it
/// would hold up the packets of others.
const piece_ns_max = std.time.ns_per_ms;

pub const Node = struct {
    up: Queue = .{},
    down: Queue = .{},
    /// Packets to it and from it vanish.
    is_hole: bool = false,
};

/// Takes a packet to its node. False: it was refused.
pub const Deliver = *const fn (packet: *Packet, due_ns: u64) bool;

const Event = struct {
    due_ns: u64,
    order: u64, // among those of one instant
    packet: *Packet,

    fn compare(_: void, one: Event, other: Event) std.math.Order {
        const by_time = std.math.order(one.due_ns, other.due_ns);
        return if (by_time != .eq) by_time else std.math.order(one.order, other.order);
    }
};

pub const Stages = struct {
    gpa: std.mem.Allocator,
    deliver: Deliver,
    count: u8,
    nodes: [nodes_max]Node = @splat(.{}),
    paths: [nodes_max][nodes_max]Path,
    flows: flow.Flows = .{},
    pool: Pool,
    waiting: std.PriorityQueue(Event, void, Event.compare) = .empty,
    events: u64 = 0,
    /// Packets that are no IPv4, or for nobody here.
    strays: u64 = 0,

    pub fn init(stages: *Stages, gpa: std.mem.Allocator, count: u8, seed: u64, d: Deliver) void {
        assert(count > 0 and count <= nodes_max);
        stages.* = .{
            .gpa = gpa,
            .deliver = d,
            .count = count,
            .paths = undefined,
            .pool = .{ .gpa = gpa },
        };
        for (&stages.paths, 0..) |*row, source| for (row, 0..) |*path, target| {
            path.* = .{};
            path.random = .init(seed *% 1_000_003 + source * nodes_max + target);
        };
    }

    pub fn deinit(stages: *Stages) void {
        while (stages.waiting.pop()) |event| stages.pool.give(event.packet);
        stages.waiting.deinit(stages.gpa);
        stages.flows.deinit(stages.gpa);
        stages.pool.deinit();
    }

    /// The instant of the next event; null: nothing is under way.
    pub fn next_ns(stages: *const Stages) ?u64 {
        return if (stages.waiting.peek()) |event| event.due_ns else null;
    }

    /// All that is due.
    pub fn run(stages: *Stages, now_ns: u64) !void {
        while (stages.waiting.peek()) |event| {
            if (event.due_ns > now_ns) return;
            _ = stages.waiting.pop();
            try stages.advance(event.packet, event.due_ns);
        }
    }

    /// A packet that a node has sent.
    pub fn enter(stages: *Stages, source: u8, content: []const u8, now_ns: u64) !void {
        var parsed = packets.parse(content) orelse {
            stages.strays += 1;
            return;
        };
        const target = packets.target_address(content) -% network_address -% 1;
        if (target >= stages.count or target == source) {
            stages.strays += 1;
            return;
        }
        parsed.source = source;
        parsed.target = @intCast(target);
        const whole = try stages.pool.take(@sizeOf(Packet) + content.len);
        whole.* = parsed;
        whole.memory_bytes = @intCast(@sizeOf(Packet) + content.len);
        @memcpy(whole.content(), content);
        const path = stages.path_of(whole);
        path.counted.entered(whole.segments, whole.wire_bytes());
        if (stages.is_closed(whole)) return stages.drop(whole, .cut);
        if (whole.is_tcp_data) try stages.mark(path, whole, now_ns);

        const step = stages.segments_per_piece(whole);
        if (step >= whole.segments) return stages.advance(whole, now_ns);
        defer stages.pool.give(whole);
        var first: u32 = 0;
        while (first < whole.segments) : (first += step) {
            const piece = try stages.part(whole, first, @min(step, whole.segments - first));
            try stages.advance(piece, now_ns);
        }
    }

    /// Whatever the packet was chosen for.
    fn mark(stages: *Stages, path: *Path, packet: *Packet, now_ns: u64) !void {
        switch (path.mark) {
            .none => return,
            .reset => packet.make_reset(),
            .loss_ppm => |ppm| {
                (try stages.flows.find(stages.gpa, key_of(packet), now_ns)).loss_ppm = ppm;
            },
        }
        path.mark = .none;
    }

    /// Moves a packet from stage to stage, until it must wait or is gone.
    fn advance(stages: *Stages, packet: *Packet, now_ns: u64) std.mem.Allocator.Error!void {
        const path = stages.path_of(packet);
        switch (packet.stage) {
            .flow => {
                packet.stage = .up;
                if (path.flow_kbit == 0) return stages.advance(packet, now_ns);
                const known = try stages.flows.find(stages.gpa, key_of(packet), now_ns);
                known.queue.rate_kbit = path.flow_kbit;
                known.queue.limit_bytes = path.flow_queue_bytes;
                try stages.through(&known.queue, packet, now_ns, .flow_queue);
            },
            .up => {
                packet.stage = .path;
                const queue = &stages.nodes[packet.source].up;
                try stages.through(queue, packet, now_ns, .up_queue);
            },
            .path => {
                packet.stage = .down;
                const fitting = try stages.fit(&path.queue, packet, now_ns, .path_queue) orelse
                    return;
                const left_ns = path.queue.accept(now_ns, fitting.wire_bytes());
                try stages.lose(path, fitting, path.exit_ns(left_ns));
            },
            .down => {
                packet.stage = .deliver;
                const queue = &stages.nodes[packet.target].down;
                try stages.through(queue, packet, now_ns, .down_queue);
            },
            .deliver => {
                if (stages.is_closed(packet)) return stages.drop(packet, .cut);
                if (!stages.deliver(packet, now_ns)) return stages.drop(packet, .device);
                path.counted.left(packet.segments, packet.wire_bytes());
                stages.pool.give(packet);
            },
        }
    }

    /// A queue, and then the next stage.
    fn through(stages: *Stages, queue: *Queue, packet: *Packet, now_ns: u64, why: Drop) !void {
        const fitting = try stages.fit(queue, packet, now_ns, why) orelse return;
        const left_ns = queue.accept(now_ns, fitting.wire_bytes());
        if (left_ns <= now_ns) return stages.advance(fitting, now_ns);
        try stages.later(fitting, left_ns);
    }

    /// As many segments as the queue has room for; the others are dropped. Null: none.
    fn fit(
        stages: *Stages,
        queue: *const Queue,
        packet: *Packet,
        now_ns: u64,
        why: Drop,
    ) !?*Packet {
        const room_bytes = queue.room_bytes(now_ns) orelse return packet;
        if (packet.wire_bytes() <= room_bytes) return packet;
        const fitting: u32 = if (packet.segments > 1)
            @intCast(@min(packet.segments - 1, room_bytes / packet.step_bytes()))
        else
            0;
        if (fitting == 0) {
            stages.drop(packet, why);
            return null;
        }
        const kept = try stages.part(packet, 0, fitting);
        const lost_bytes = packet.wire_bytes() - kept.wire_bytes();
        stages.path_of(packet).counted.lost(why, packet.segments - fitting, lost_bytes);
        stages.pool.give(packet);
        return kept;
    }

    /// Drops segments by chance, one by one; each row of those that are left goes on.
    fn lose(stages: *Stages, path: *Path, packet: *Packet, exit_ns: u64) !void {
        const extra_ppm = if (stages.flows.look(key_of(packet))) |known| known.loss_ppm else 0;
        if (path.loss_ppm == 0 and extra_ppm == 0) return stages.later(packet, exit_ns);
        var begin: u32 = 0; // of the segments that are kept, and not yet sent on
        var is_whole = true;
        for (0..packet.segments) |index| {
            if (!path.loses(extra_ppm)) continue;
            is_whole = false;
            const segment: u32 = @intCast(index);
            try stages.send_part(packet, begin, segment - begin, exit_ns);
            begin = segment + 1;
            const is_last = begin == packet.segments;
            const bytes = if (is_last)
                packet.wire_bytes() - segment * packet.step_bytes()
            else
                packet.step_bytes();
            path.counted.lost(.loss, 1, bytes);
        }
        if (is_whole) return stages.later(packet, exit_ns);
        try stages.send_part(packet, begin, packet.segments - begin, exit_ns);
        stages.pool.give(packet);
    }

    fn send_part(stages: *Stages, packet: *Packet, first: u32, count: u32, exit_ns: u64) !void {
        if (count > 0) try stages.later(try stages.part(packet, first, count), exit_ns);
    }

    fn part(stages: *Stages, packet: *Packet, first: u32, count: u32) !*Packet {
        const into = try stages.pool.take(packet.part_bytes(first, count));
        packet.copy_part(into, first, count);
        return into;
    }

    fn later(stages: *Stages, packet: *Packet, due_ns: u64) !void {
        stages.events += 1;
        const event: Event = .{ .due_ns = due_ns, .order = stages.events, .packet = packet };
        try stages.waiting.push(stages.gpa, event);
    }

    fn drop(stages: *Stages, packet: *Packet, why: Drop) void {
        stages.path_of(packet).counted.lost(why, packet.segments, packet.wire_bytes());
        stages.pool.give(packet);
    }

    fn path_of(stages: *Stages, packet: *const Packet) *Path {
        return &stages.paths[packet.source][packet.target];
    }

    fn is_closed(stages: *Stages, packet: *const Packet) bool {
        const nodes = &stages.nodes;
        return stages.path_of(packet).is_cut or
            nodes[packet.source].is_hole or nodes[packet.target].is_hole;
    }

    fn segments_per_piece(stages: *Stages, packet: *const Packet) u32 {
        if (packet.segments == 1) return 1;
        const path = stages.path_of(packet);
        var slowest_kbit: u64 = std.math.maxInt(u64);
        for ([_]u64{
            path.flow_kbit,
            path.queue.rate_kbit,
            stages.nodes[packet.source].up.rate_kbit,
            stages.nodes[packet.target].down.rate_kbit,
        }) |kbit| {
            if (kbit > 0) slowest_kbit = @min(slowest_kbit, kbit);
        }
        if (slowest_kbit == std.math.maxInt(u64)) return packet.segments;
        const slowest: Queue = .{ .rate_kbit = slowest_kbit };
        return @intCast(@max(1, piece_ns_max / @max(1, slowest.duration_ns(packet.step_bytes()))));
    }

    fn key_of(packet: *const Packet) u64 {
        const pair = @as(u64, packet.source) * nodes_max + packet.target;
        return packet.flow +% pair *% 0x9e37_79b9_7f4a_7c15;
    }
};

const testing = std.testing;

/// The network of the tests below: what it delivers is only counted.
const Delivered = struct {
    var segments: u32 = 0;
    var last_due_ns: u64 = 0;

    fn take(packet: *Packet, due_ns: u64) bool {
        assert(due_ns >= last_due_ns);
        segments += packet.segments;
        last_due_ns = due_ns;
        return true;
    }

    fn network(count: u8) Stages {
        segments = 0;
        last_due_ns = 0;
        var stages: Stages = undefined;
        stages.init(testing.allocator, count, 1, take);
        return stages;
    }

    /// From node 0 to node 1.
    fn send(stages: *Stages, payload_bytes: u32, now_ns: u64) !void {
        var content: [packets.content_bytes_max]u8 = @splat(0);
        try stages.enter(0, packets.example_content(&content, payload_bytes), now_ns);
    }
};

test "a packet takes the time of each stage, one after the other" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    const path = &stages.paths[0][1];
    path.delay_ns = 30_000_000;
    for ([_]*Queue{ &stages.nodes[0].up, &path.queue, &stages.nodes[1].down }) |queue| {
        queue.rate_kbit = 8_000; // a byte in a microsecond
    }
    try Delivered.send(&stages, 948, 5_000_000); // 1000 bytes with headers
    try stages.run(5_000_000);
    while (stages.next_ns()) |due_ns| try stages.run(due_ns);
    try testing.expectEqual(38_000_000, Delivered.last_due_ns);
    try testing.expectEqual(1, path.counted.out_packets);
    try testing.expectEqual(1000, path.counted.out_bytes);
}

test "what a queue has no room for is dropped segment by segment" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    const path = &stages.paths[0][1];
    path.queue = .{ .rate_kbit = 1_000_000, .limit_bytes = 10_000 };
    try Delivered.send(&stages, 20_000, 0); // 20 segments of 1052 bytes
    try stages.run(std.math.maxInt(u64));
    try testing.expectEqual(9, Delivered.segments);
    try testing.expectEqual(11, path.counted.dropped.get(.path_queue));
    try testing.expectEqual(20 * 1052, path.counted.in_bytes);
    try testing.expectEqual(20 * 1052, path.counted.out_bytes + path.counted.dropped_bytes);
}

test "loss takes single segments, and all are counted" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    const path = &stages.paths[0][1];
    path.loss_ppm = 100_000;
    for (0..200) |round| try Delivered.send(&stages, 50_500, round);
    try stages.run(std.math.maxInt(u64));
    const lost = path.counted.dropped.get(.loss);
    try testing.expectEqual(200 * 51, Delivered.segments + lost);
    try testing.expect(lost > 800 and lost < 1250);
    const counted = path.counted;
    try testing.expectEqual(counted.in_bytes, counted.out_bytes + counted.dropped_bytes);
}

test "a cut and a hole lose what comes and what is under way" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    stages.paths[0][1].delay_ns = 1_000;
    try Delivered.send(&stages, 100, 0);
    stages.nodes[1].is_hole = true;
    try stages.run(1_000);
    stages.nodes[1].is_hole = false;
    stages.paths[0][1].is_cut = true;
    try Delivered.send(&stages, 100, 1_000);
    try testing.expectEqual(0, Delivered.segments);
    try testing.expectEqual(2, stages.paths[0][1].counted.dropped.get(.cut));
}

test "a cap of flows cuts a large packet into pieces that hold up nobody for long" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    stages.paths[0][1].flow_kbit = 50_000; // 6250 bytes in a millisecond
    try Delivered.send(&stages, 50_000, 0);
    try testing.expectEqual(10, stages.waiting.count()); // five segments each
    try stages.run(std.math.maxInt(u64));
    try testing.expectEqual(50, Delivered.segments);
    try testing.expectEqual(50 * 1052 * 160, Delivered.last_due_ns);
}

test "a marked flow gets a loss of its own, or a reset" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    const path = &stages.paths[0][1];
    path.mark = .{ .loss_ppm = 1_000_000 };
    try Delivered.send(&stages, 3_000, 0);
    try testing.expectEqual(3, path.counted.dropped.get(.loss));
    path.mark = .reset;
    try Delivered.send(&stages, 3_000, 0);
    try testing.expectEqual(4, path.counted.dropped.get(.loss)); // the reset, of the same flow
    try testing.expectEqual(Path.Mark.none, path.mark);
}

test "strays are counted, and nothing else" {
    var stages = Delivered.network(2);
    defer stages.deinit();
    try stages.enter(1, "no packet at all", 0);
    var content: [packets.content_bytes_max]u8 = @splat(0);
    try stages.enter(1, packets.example_content(&content, 10), 0); // to itself
    try testing.expectEqual(2, stages.strays);
    try testing.expectEqual(null, stages.next_ns());
}
