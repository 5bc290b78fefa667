//! A session under fuzz: a peer whose coordinator says anything in any order, and to whose lanes
//! anybody sends frames, while its user joins, calls, cancels and leaves. It may not crash, leak,
//! or hold more than its budget; buffers are sent from, and received into, only while they are
//! lent, which canaries around them show.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const session = @import("session");
const words_file = @import("words.zig");
const control = session.control;
const driver = session.driver;
const user = session.user;
const Group = session.Group;
const Lane = session.Lane;
const Operation = session.Operation;
const Session = session.Session;
const Words = words_file.Words;

const lanes_max = 12;
const calls_max = 4;
const second = std.time.ns_per_s;
/// In the middle of the others, so that it dials some and is dialed by some.
const self = 2;
const canary = 0xc5;
const margin_bytes = 64;
const buffer_bytes = 256;

/// A buffer of one call, in the middle of what nobody may touch.
const Lent = struct {
    bytes: [margin_bytes + buffer_bytes + margin_bytes]u8 = @splat(canary),
    op: ?*Operation = null,

    fn middle(lent: *Lent) [*]u8 {
        return lent.bytes[margin_bytes..].ptr;
    }

    fn is_whole(lent: *const Lent) bool {
        return std.mem.allEqual(u8, lent.bytes[0..margin_bytes], canary) and
            std.mem.allEqual(u8, lent.bytes[margin_bytes + buffer_bytes ..], canary);
    }
};

const Booth = struct {
    s: *Session,
    now: u64 = second,
    group: ?*Group = null,
    is_gone: bool = false,
    dials_control: bool = false,
    lanes: [lanes_max]?*Lane = @splat(null),
    is_up: [lanes_max]bool = @splat(false),
    lent: [calls_max]Lent = @splat(.{}),

    fn of(ctx: *anyopaque) *Booth {
        return @ptrCast(@alignCast(ctx));
    }

    fn add(booth: *Booth, lane: *Lane, is_up: bool) bool {
        for (&booth.lanes, &booth.is_up) |*place, *up| if (place.* == null) {
            place.* = lane;
            up.* = is_up;
            return true;
        };
        return false;
    }

    fn dial(ctx: *anyopaque, lane: *Lane, address: []const u8) void {
        const booth = of(ctx);
        _ = base.Endpoint.parse_told(address) catch @panic("an address that nobody can dial");
        // One without a place never comes up.
        _ = booth.add(lane, false);
    }

    fn lane_close(ctx: *anyopaque, lane: *Lane) void {
        for (&of(ctx).lanes) |*place| if (place.* == lane) {
            place.* = null;
        };
    }
    fn lane_wake(_: *anyopaque, _: *Lane) void {}
    fn lane_sample(_: *anyopaque, _: *Lane) ?session.Sample {
        return null;
    }
    fn lane_pace(_: *anyopaque, _: *Lane, _: session.Pace) void {}
    fn control_dial(ctx: *anyopaque) void {
        of(ctx).dials_control = true;
    }
    fn control_close(_: *anyopaque) void {}
    fn group_event(ctx: *anyopaque, group: *Group, event: session.GroupEvent) void {
        const booth = of(ctx);
        if (group == booth.group) switch (event) {
            .refused, .join_failed, .gone => booth.is_gone = true,
            .ready, .admitted, .admit_failed, .optimized => {},
        };
    }
    fn operation_finished(_: *anyopaque, _: *Operation) void {}
    fn operation_resolved(_: *anyopaque, _: *Operation) void {}
    fn fault_point(_: *anyopaque, _: session.FaultPoint, _: u64, _: u64, _: u64) void {}
    fn log(_: *anyopaque, _: session.LogLevel, _: []const u8) void {}

    const host: session.Host.VTable = .{
        .dial = dial,
        .lane_close = lane_close,
        .lane_wake = lane_wake,
        .lane_sample = lane_sample,
        .lane_pace = lane_pace,
        .control_dial = control_dial,
        .control_close = control_close,
        .group_event = group_event,
        .operation_finished = operation_finished,
        .operation_resolved = operation_resolved,
        .fault_point = fault_point,
        .log = log,
    };

    /// Bytes of the coordinator.
    fn hear(booth: *Booth, bytes: []const u8) !void {
        if (booth.s.control_state != .open) return;
        var rest = bytes;
        while (rest.len > 0 and booth.s.control_state == .open) {
            const room = try booth.s.control.recv_slice();
            const count = @min(room.len, rest.len);
            @memcpy(room[0..count], rest[0..count]);
            booth.s.control.received(count);
            rest = rest[count..];
            control.received(booth.s, booth.now);
        }
    }

    fn tell(booth: *Booth, message: wire.control.Message) !void {
        var bytes: [4096]u8 = undefined;
        try booth.hear(try wire.control.encode(message, &bytes));
    }

    /// Bytes of whoever is at the other end of a lane, which may be closed for them.
    fn feed(booth: *Booth, place: usize, bytes: []const u8) void {
        const lane = booth.lanes[place] orelse return;
        if (!booth.is_up[place]) return;
        var rest = bytes;
        while (rest.len > 0 and booth.lanes[place] == lane) {
            var slices: [2][]u8 = undefined;
            const count = driver.recv_slices(booth.s, lane, &slices);
            std.debug.assert(count > 0 and slices[0].len > 0);
            const taken = @min(slices[0].len, rest.len);
            @memcpy(slices[0][0..taken], rest[0..taken]);
            rest = rest[taken..];
            driver.received(booth.s, booth.now, lane, taken);
        }
    }

    /// All that it has to say leaves.
    fn drain(booth: *Booth) void {
        booth.s.control.sent(booth.s.control.send_slice().len);
        for (&booth.lanes, &booth.is_up) |*place, up| {
            const lane = place.* orelse continue;
            if (!up) continue;
            var turns: usize = 0;
            while (place.* == lane and turns < 100) : (turns += 1) {
                var slices: [2][]const u8 = undefined;
                const count = driver.send_slices(booth.s, booth.now, lane, &slices);
                if (count == 0 or place.* != lane) break;
                var total: usize = 0;
                for (slices[0..count]) |slice| total += slice.len;
                driver.sent(booth.s, booth.now, lane, total);
            }
        }
    }
};

/// Each step begins with a byte that says what happens, and the rest says the details.
pub fn run(allocator: std.mem.Allocator, bytes: []const u8) !void {
    var arena: std.heap.ArenaAllocator = .init(std.heap.page_allocator);
    defer arena.deinit();
    var words: Words = .{ .rest = bytes, .arena = arena.allocator() };
    var booth: Booth = .{ .s = undefined };
    booth.s = try driver.create(allocator, .{
        .peer_id = words_file.id_of(self),
        .run_id = words_file.run_id,
        .seed = 1,
        .address_key = @splat(1),
        .host = .{ .ctx = &booth, .vtable = &Booth.host },
    });
    defer driver.destroy(booth.s);
    try driver.set_address(booth.s, "n0:1");
    try connect(&booth);
    booth.group = try user.join(booth.s, booth.now, "g", 0);
    // Most inputs begin as a member, where most code is.
    if (words.byte() % 8 != 0) try become_member(&booth);
    while (words.rest.len > 0) {
        try step(&booth, &words);
        for (&booth.lent) |*lent| try std.testing.expect(lent.is_whole());
    }
}

fn connect(booth: *Booth) !void {
    booth.dials_control = false;
    control.opened(booth.s, booth.now);
    try booth.hear(&wire.hello.encode_answer(.welcome));
    try booth.tell(.{ .welcome = .{
        .heartbeat_ns = second / 2,
        .silence_ns = 5 * second,
        .window_bytes = 512,
        .windows_bytes = 1 << 28,
        .chunk_bytes = 64,
        .lanes = 1,
        .stall_warning_ns = 10 * second,
    } });
}

fn become_member(booth: *Booth) !void {
    try booth.tell(.{ .joined = .{ .name = .of("g"), .group = 0 } });
    const members = [_]wire.control.MemberEntry{
        .{ .id = words_file.id_of(1), .address = .of("n1:1") },
        .{ .id = words_file.id_of(self), .address = .of("n2:1") },
        .{ .id = words_file.id_of(3), .address = .of("n3:1") },
    };
    const ids = [_]base.PeerId{ members[0].id, members[1].id, members[2].id };
    try booth.tell(.{ .prepare = .{
        .group = 0,
        .round = 1,
        .members = .of(&ids),
        .links = .of(&members),
    } });
    open_lanes(booth);
    if (booth.group) |group|
        user.admit(booth.s, booth.now, group, booth.now + 60 * second) catch {};
    try booth.tell(.{ .ask_safe_points = .{ .group = 0, .round = 1 } });
    try booth.tell(.{ .activate = .{
        .group = 0,
        .round = 1,
        .epoch = 1,
        .safe_point = 0,
        .members = .of(&ids),
        .joined = 3,
        .left = .{},
    } });
    booth.drain();
}

/// Dials come up and are welcome, and the one that this peer waits for comes.
fn open_lanes(booth: *Booth) void {
    for (0..lanes_max) |place| {
        const lane = booth.lanes[place] orelse continue;
        if (booth.is_up[place]) continue;
        booth.is_up[place] = true;
        driver.opened(booth.s, booth.now, lane);
        booth.feed(place, &wire.hello.encode_answer(.welcome));
    }
    accept(booth, .{
        .purpose = .lane,
        .run_id = words_file.run_id,
        .from = words_file.id_of(3),
        .to = words_file.id_of(self),
    });
}

fn accept(booth: *Booth, hello: wire.hello.Hello) void {
    const lane = driver.accept(booth.s, booth.now, @splat(1)) orelse return;
    if (!booth.add(lane, true)) return driver.closed(booth.s, booth.now, lane);
    for (&booth.lanes, 0..) |place, index| if (place == lane) {
        return booth.feed(index, &wire.hello.encode(hello));
    };
}

fn step(booth: *Booth, words: *Words) !void {
    const place = words.below(lanes_max);
    switch (words.below(20)) {
        0 => accept(booth, .{
            .purpose = std.enums.values(wire.hello.Purpose)[words.below(3)],
            .lane = @intCast(words.below(3)),
            .run_id = words_file.run_id,
            .from = words.id(),
            .to = words_file.id_of(self),
        }),
        1 => booth.feed(place, words.bytes(words.byte())),
        2, 3, 4, 5 => try feed_frame(booth, place, words),
        6 => if (booth.lanes[place]) |lane| {
            booth.lanes[place] = null;
            driver.closed(booth.s, booth.now, lane);
        },
        7 => open_lanes(booth),
        8 => try booth.hear(words.bytes(words.byte())),
        9 => {
            booth.now += @as(u64, std.time.ns_per_ms) << @intCast(words.below(14));
            driver.tick(booth.s, booth.now);
            if (booth.dials_control) try connect(booth);
        },
        10 => booth.drain(),
        11, 12 => call(booth, words),
        13 => end_call(booth, words),
        14 => if (booth.group) |group|
            user.admit(booth.s, booth.now, group, booth.now + second) catch {},
        15 => if (booth.is_gone or words.below(8) == 0) try join_again(booth),
        else => try booth.tell(try words.message()),
    }
}

/// A frame whose sum is right, of the epoch that there is, more often than not.
fn feed_frame(booth: *Booth, place: usize, words: *Words) !void {
    var header = try words.value(wire.frame.Header, "");
    if (words.byte() % 4 != 0) if (booth.group) |group| {
        header.group = group.id orelse 0;
        header.epoch = group.epoch();
        header.attempt = group.attempt();
    };
    const payload = words.bytes(words.byte());
    if (words.byte() % 8 != 0) header.payload_bytes = @intCast(payload.len);
    for (&booth.lent) |*lent| if (lent.op) |op| {
        if (words.byte() % 2 == 0) continue;
        header.tag = op.op.id.tag;
        header.sequence = op.op.id.sequence;
        header.fingerprint = op.fingerprint;
    };
    booth.feed(place, &wire.frame.encode(header));
    booth.feed(place, payload);
}

fn call(booth: *Booth, words: *Words) void {
    const group = booth.group orelse return;
    const lent = &booth.lent[words.below(calls_max)];
    if (lent.op != null) return;
    const kinds = [_]wire.control.OpKind{
        .all_reduce, .broadcast, .barrier,    .reduce, .reduce_scatter,
        .all_gather, .gather,    .all_reduce,
    };
    const kind = kinds[words.below(kinds.len)];
    const is_barrier = kind == .barrier;
    const count = if (is_barrier) 0 else words.below(16);
    lent.op = user.begin(booth.s, booth.now, group, .{
        .kind = kind,
        .send = lent.middle(),
        .recv = lent.middle() + buffer_bytes / 2,
        .count = count,
        .dtype = .i32,
        .tag = words.below(4),
        .deadline = booth.now + second,
    }) catch null; // not a member, or the tag is in use
}

fn end_call(booth: *Booth, words: *Words) void {
    const lent = &booth.lent[words.below(calls_max)];
    const op = lent.op orelse return;
    if (!op.finished) user.cancel(booth.s, booth.now, op);
    if (!op.finished) return;
    lent.op = null;
    user.release(booth.s, op);
}

fn join_again(booth: *Booth) !void {
    if (booth.group) |group| user.leave(booth.s, booth.now, group);
    for (&booth.lent) |*lent| if (lent.op) |op| if (op.finished) {
        lent.op = null;
        user.release(booth.s, op);
    };
    booth.is_gone = false;
    booth.group = user.join(booth.s, booth.now, "g", 0) catch |err| switch (err) {
        error.AlreadyJoined => null,
        error.OutOfMemory => return error.OutOfMemory,
    };
}
