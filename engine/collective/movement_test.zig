//! The promises of movement.zig, with its movers, ledger and memory: whole operations over perfect
//! links, with losses, halves of frames, doubts and failures, with jobs done at once and in a drawn
//! order, and with values in which every contribution shows.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const board_file = @import("board.zig");
const movement_file = @import("movement.zig");
const Options = @import("options.zig").Options;
const Pool = @import("pool.zig").Pool;
const arrays_file = @import("arrays.zig");
const Roles = @import("roles.zig").Roles;
const Allocator = std.mem.Allocator;
const Descriptor = wire.control.Descriptor;
const Fragment = wire.Fragment;
const Movement = movement_file.Movement;
const KeptRange = wire.control.KeptRange;
const Schedule = @import("schedule.zig").Schedule;

/// A runner in one thread: it does jobs, and tells of them, in an order that it draws.
const Shop = struct {
    prng: base.Prng,
    waiting: std.ArrayList(*base.Job) = .empty,
    done: std.ArrayList(*base.Job) = .empty,
    runner: base.Runner = undefined,

    fn open(shop: *Shop) void {
        shop.runner = .{
            .ctx = shop,
            .vtable = &.{ .post = post, .fence = fence },
            .bytes_min = 1,
        };
    }

    fn deinit(shop: *Shop) void {
        shop.waiting.deinit(std.testing.allocator);
        shop.done.deinit(std.testing.allocator);
    }

    fn post(ctx: *anyopaque, job: *base.Job) void {
        const shop: *Shop = @ptrCast(@alignCast(ctx));
        shop.waiting.append(std.testing.allocator, job) catch @panic("out of memory");
    }

    fn fence(ctx: *anyopaque, owner: *const anyopaque) void {
        const shop: *Shop = @ptrCast(@alignCast(ctx));
        while (find(&shop.waiting, owner)) |at| {
            const job = shop.waiting.swapRemove(at);
            job.run(job);
        }
        while (find(&shop.done, owner)) |at| _ = shop.done.swapRemove(at);
    }

    fn find(list: *const std.ArrayList(*base.Job), owner: *const anyopaque) ?usize {
        for (list.items, 0..) |job, index| if (job.owner == owner) return index;
        return null;
    }

    /// False: there is nothing to do.
    fn step(shop: *Shop) bool {
        const tells = shop.waiting.items.len == 0 or shop.prng.chance(2);
        if (tells and shop.done.items.len > 0) {
            const job = shop.done.swapRemove(shop.prng.below(shop.done.items.len));
            const owner: *Movement = @ptrCast(@alignCast(@constCast(job.owner)));
            _ = owner.done(job);
            return true;
        }
        if (shop.waiting.items.len == 0) return false;
        const job = shop.waiting.swapRemove(shop.prng.below(shop.waiting.items.len));
        job.run(job);
        shop.done.append(std.testing.allocator, job) catch @panic("out of memory");
        return true;
    }
};

/// Drives n movements over perfect links until nothing moves.
const Bench = struct {
    movements: []Movement,
    alive: base.Mask,
    /// In the attempt under way.
    order: base.Order = .{},
    /// In the attempt under way; a hub reaches everybody.
    hubs: base.Mask = .empty,
    /// Draws schedule, order and hubs for each attempt; null: `schedule`, rank order, all hubs.
    draws: ?*base.Prng = null,
    schedule: Schedule,
    shop: ?*Shop = null,
    /// Pieces that were cut so far.
    cuts: usize = 0,

    fn step(bench: *Bench) !bool {
        var moved = false;
        const n = bench.order.count;
        if (bench.shop) |shop| for (0..shop.prng.below(4)) |_| {
            if (shop.step()) moved = true;
        };
        for (bench.movements) |*x| if (x.has_work()) {
            x.work();
            moved = true;
        };
        for (0..n) |from| for (1..n) |distance| {
            const to = (from + distance) % n;
            if (try bench.move(@intCast(from), @intCast(to))) moved = true;
        };
        return moved;
    }

    /// No job is left that could make something move.
    fn is_at_rest(bench: *const Bench) bool {
        const shop = bench.shop orelse return true;
        return shop.waiting.items.len == 0 and shop.done.items.len == 0;
    }

    fn move(bench: *Bench, from: u16, to: u16) !bool {
        const x = &bench.movements[bench.order.at(from)];
        const y = &bench.movements[bench.order.at(to)];
        try std.testing.expectEqual(x.sends_to(to), y.receives_from(from));
        if (!x.sends_to(to)) return false;
        while (y.next_grant(from)) |grant| try x.credited(to, grant.class, grant.allowed);
        const out = x.next(to) orelse return false;
        try bench.check_reach(from, to);
        var room: [Fragment.most]Fragment = undefined;
        const fragments = bench.cut(out.payload.len, &room);
        for (fragments) |fragment| {
            const header = header_of(x, &out, fragment);
            try check_refused(y, &header, from);
            // A lane may break before all has come in.
            const lost = try y.place(&header, from);
            y.unplace(&header, from, lost.slot);
        }
        for (fragments, 0..) |fragment, index| {
            const header = header_of(x, &out, fragment);
            const spot = try y.place(&header, from);
            // Nothing counts twice, neither while it comes in nor afterwards.
            try std.testing.expectError(error.Twice, y.place(&header, from));
            const range = fragment.range(out.payload.len);
            @memcpy(spot.bytes, out.payload[range.first..range.end]);
            x.sent(fragment);
            const moves_on = y.arrived(&header, spot.slot);
            if (index + 1 < fragments.len) try std.testing.expect(!moves_on);
            for (fragments[0 .. index + 1]) |it| try std.testing.expectError(
                error.Twice,
                y.place(&header_of(x, &out, it), from),
            );
            try std.testing.expectEqualSlices(u8, out.payload, x.payload(&out.move));
            _ = x.acknowledged(&out.move, fragment);
        }
        return true;
    }

    /// Whole, or from its end in fragments of some size, each time another.
    fn cut(bench: *Bench, bytes: usize, room: *[Fragment.most]Fragment) []Fragment {
        bench.cuts += 1;
        const each = bytes / (1 + bench.cuts % 7);
        var first: usize = room.len;
        var done: Fragment.Count = 0;
        while (done < Fragment.most) {
            first -= 1;
            room[first] = .next(done, each, bytes);
            done = room[first].end();
        }
        return room[first..];
    }

    /// A frame that is right but for one number is refused, and leaves nothing behind.
    fn check_refused(y: *Movement, right: *const wire.frame.Header, from: u16) !void {
        var wrong = right.*;
        wrong.payload_bytes += 1;
        try std.testing.expectError(error.WrongLength, y.place(&wrong, from));
        wrong = right.*;
        wrong.index = std.math.maxInt(u64);
        try std.testing.expectError(error.UnknownPiece, y.place(&wrong, from));
        if (right.kind != .final) return;
        for ([_]u32{ 0, y.board.attempt + 1 }) |attempt| {
            wrong = right.*;
            wrong.reduced_attempt = attempt;
            try std.testing.expectError(error.WrongPhase, y.place(&wrong, from));
        }
    }

    /// Only hubs can be sure to reach the others.
    fn check_reach(bench: *const Bench, from: u16, to: u16) !void {
        const is_uneven = bench.movements[0].board.ledger.partition.is_uneven; // goes where it must
        if (bench.schedule == .ring or is_uneven) return;
        const a = bench.hubs.has(bench.order.at(from));
        const b = bench.hubs.has(bench.order.at(to));
        try std.testing.expect(a or b);
    }

    fn header_of(
        x: *const Movement,
        out: *const Movement.Out,
        fragment: Fragment,
    ) wire.frame.Header {
        return .{
            .epoch = 1,
            .tag = 0,
            .sequence = 0,
            .index = x.board.ledger.partition.number(out.move.piece),
            .attempt = x.board.attempt,
            .payload_bytes = @intCast(fragment.range(out.payload.len).len()),
            .reduced_attempt = out.move.reduced_attempt,
            .fragment = fragment,
            .group = 0,
            .class = out.move.class,
            .kind = out.move.kind,
        };
    }

    /// A frame of some member comes half, and the rest of it never.
    fn step_half(bench: *Bench, from: u16) !void {
        const n = bench.order.count;
        if (from >= n) return;
        const x = &bench.movements[bench.order.at(from)];
        for (0..n) |position| {
            const to: u16 = @intCast(position);
            if (!x.sends_to(to)) continue;
            const out = x.next(to) orelse continue;
            const header = header_of(x, &out, .whole);
            const spot = try bench.movements[bench.order.at(to)].place(&header, from);
            @memset(spot.bytes[0 .. spot.bytes.len / 2], 0xee);
        }
    }

    fn begin(bench: *Bench, attempt: u32, kept: []const KeptRange) void {
        bench.order = .of(&bench.alive);
        bench.hubs = bench.alive;
        if (bench.movements[0].board.ledger.partition.is_uneven) {
            bench.schedule = .direct;
            bench.hubs = .empty;
        } else if (bench.draws) |prng| bench.draw(prng);
        for (bench.order.slice()) |rank| bench.movements[rank].begin(.{
            .attempt = attempt,
            .schedule = bench.schedule,
            .order = &bench.order,
            .hubs = &bench.hubs,
            .kept = kept,
        });
        for (bench.order.slice()) |rank| {
            const x = &bench.movements[rank];
            for (bench.order.slice(), 0..) |other, to| {
                if (x.sends_to(@intCast(to)))
                    x.opened(@intCast(to), bench.movements[other].initial_credit());
            }
        }
    }

    fn draw(bench: *Bench, prng: *base.Prng) void {
        const n = bench.order.count;
        bench.schedule = if (prng.chance(2)) .ring else .direct;
        if (bench.schedule == .ring) {
            const ranks = &bench.order.ranks;
            for (0..n) |position| std.mem.swap(u16, &ranks[position], &ranks[prng.below(n)]);
            return;
        }
        for (0..n) |position| if (prng.chance(3)) bench.hubs.unset(bench.order.at(position));
        bench.hubs.set(bench.order.at(prng.below(n)));
    }
};

/// With all its memory.
fn make(gpa: Allocator, pool: *Pool, options: Options) Allocator.Error!Movement {
    var movement: Movement = try .prepare(gpa, pool, options);
    errdefer movement.deinit();
    try movement.reserve();
    return movement;
}

fn test_descriptor(kind: wire.control.OpKind, count: u64) Descriptor {
    return .{
        .kind = kind,
        .dtype = .u64,
        .op = .sum,
        .recovery = .resume_chunks,
        .count = count,
        .safe_points = 0,
    };
}

/// In place.
fn test_array(memory: anytype, dtype: base.DType, count: usize) arrays_file.Array {
    return .{
        .send = @ptrCast(memory),
        .recv = @ptrCast(memory),
        .dtype = dtype,
        .count = count,
    };
}

/// With values in place, in pieces of eight.
fn test_movement(
    pool: *Pool,
    descriptor: Descriptor,
    values: []u64,
    world_size: u32,
    rank: u16,
) !Movement {
    return make(std.testing.allocator, pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(values.ptr, .u64, values.len)},
        .roles = .{
            .kind = descriptor.kind,
            .world_size = world_size,
            .rank = rank,
        },
        .chunk_bytes = 64,
        .window_bytes = 1024,
    });
}

const Head = struct {
    kind: wire.frame.Kind,
    index: u64,
    attempt: u32,
    payload_bytes: u32,
    reduced_attempt: u32 = 0,
    class: u16 = 0,
};

/// The header of a frame of the first operation of an epoch.
fn test_header(head: Head) wire.frame.Header {
    return .{
        .epoch = 1,
        .tag = 0,
        .sequence = 0,
        .group = 0,
        .kind = head.kind,
        .index = head.index,
        .attempt = head.attempt,
        .payload_bytes = head.payload_bytes,
        .reduced_attempt = head.reduced_attempt,
        .class = head.class,
    };
}

/// For rank 0 in a ring.
fn test_begin(attempt: u32, order: *const base.Order, kept: []const KeptRange) board_file.Begin {
    return .{
        .attempt = attempt,
        .schedule = .ring,
        .order = order,
        .hubs = &base.Mask.empty,
        .kept = kept,
    };
}

const schedules = [_]Schedule{ .ring, .direct };

const Case = struct {
    n: u16,
    count: usize,
    kind: wire.control.OpKind,
    schedule: Schedule,
    lose: ?u16 = null,
    chunk_bytes: u32 = 64,
    window_bytes: u64 = 1024,
    is_far: bool = false,
};

fn test_case(case: Case) !void {
    const n = case.n;
    const count = case.count;
    const kind = case.kind;
    const lose = case.lose;
    const gpa = std.testing.allocator;
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var movements: [8]Movement = undefined;
    for (0..n) |rank| {
        const input = try arena.allocator().alloc(u64, count + 1);
        for (input, 0..) |*value, index| value.* = (index % 7 + 1) << @intCast(4 * rank);
        movements[rank] = try make(gpa, &pool, .{
            .descriptor = test_descriptor(kind, count),
            .arrays = &.{test_array(input.ptr, .u64, count)},
            .roles = .{
                .kind = kind,
                .world_size = n,
                .rank = @intCast(rank),
            },
            .chunk_bytes = case.chunk_bytes,
            .window_bytes = case.window_bytes,
            .is_far = case.is_far,
        });
    }
    defer for (movements[0..n]) |*x| x.deinit();
    var bench: Bench = .{
        .movements = movements[0..n],
        .alive = .full(n),
        .schedule = case.schedule,
    };
    bench.begin(1, &.{});
    if (lose) |rank| {
        for (0..@max(1, count / 16)) |_| _ = try bench.step();
        for (movements[0..n]) |*x| x.halt();
        bench.alive.unset(rank);
        const kept = try kept_by_any(arena.allocator(), movements[0..n], &bench.alive);
        bench.begin(2, kept);
    }
    while (try bench.step()) {}
    for (0..bench.alive.count()) |position| {
        const x = &movements[bench.alive.at(position)];
        try std.testing.expect(x.complete());
        const first = &movements[bench.alive.at(0)];
        try std.testing.expectEqual(first.board.ledger.digest(), x.board.ledger.digest());
        const result: [*]align(1) const u64 = @ptrCast(x.memory.arrays.recv(0));
        for (result[0..count], 0..) |value, index| {
            const partition = &x.board.ledger.partition;
            const chunk = partition.chunk_of(index / partition.shards[0].piece_elements);
            const lost_here = x.board.ledger.reduced[chunk] == 2;
            var expected: u64 = 0;
            for (0..n) |rank| {
                if (kind == .broadcast and rank > 0) continue;
                if (lost_here and rank == lose.?) continue;
                expected += (index % 7 + 1) << @intCast(4 * rank);
            }
            try std.testing.expectEqual(expected, value);
        }
    }
}

test "every rank ends with the sum of all, for any world and count" {
    for (1..9) |n| for ([_]usize{ 0, 1, 7, 8, 9, 64, 299 }) |count| for (schedules) |schedule| {
        for ([_]wire.control.OpKind{ .all_reduce, .broadcast }) |kind| try test_case(.{
            .n = @intCast(n),
            .count = count,
            .kind = kind,
            .schedule = schedule,
        });
    };
}

test "far members end with the sum of all, with every window from one slot up" {
    for (2..6) |n| for (schedules) |schedule| for (0..6) |slots| for ([_]?u16{ null, 1 }) |lose| {
        try test_case(.{
            .n = @intCast(n),
            .count = 40 * n,
            .kind = .all_reduce,
            .schedule = schedule,
            .lose = lose,
            .window_bytes = @max(1, 64 * slots * (n - 1)),
            .is_far = true,
        });
    };
}

test "chunks of several pieces, as in operations of many gigabytes" {
    const count = 2 * base.limits.chunks_max + 5; // pieces of one element, three to a chunk
    for (schedules) |schedule| for ([_]?u16{ null, 1 }) |lose| {
        for ([_]wire.control.OpKind{ .all_reduce, .broadcast }) |kind| try test_case(.{
            .n = 3,
            .count = count,
            .kind = kind,
            .schedule = schedule,
            .lose = lose,
            .chunk_bytes = 8,
        });
    };
}

test "a large world of one is worked off in steps" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const window = 256 * 1024;
    const input = try gpa.alloc(u64, window / 4 + 7); // twice the step and more
    defer gpa.free(input);
    for (input, 0..) |*value, index| value.* = index;
    var x = try make(gpa, &pool, .{
        .descriptor = test_descriptor(.all_reduce, input.len),
        .arrays = &.{test_array(input.ptr, .u64, input.len)},
        .roles = .{
            .kind = .all_reduce,
            .world_size = 1,
            .rank = 0,
        },
        .chunk_bytes = 256 * 1024,
        .window_bytes = window,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(1));
    x.begin(test_begin(1, &order, &.{}));
    for (0..2) |_| {
        try std.testing.expect(x.has_work());
        x.work();
    }
    try std.testing.expect(x.complete() and !x.has_work());
    for (input, 0..) |value, index| try std.testing.expectEqual(index, value);
}

test "a source brings its shard to the result in steps, but what it sends as it sends it" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const window = 64 * 1024;
    for (schedules) |schedule| {
        const own: [5 * window / 8]u64 = @splat(7);
        var result: [2 * own.len]u64 = @splat(0);
        var x = try make(gpa, &pool, .{
            .descriptor = test_descriptor(.all_gather, result.len),
            .arrays = &.{.{
                .send = @ptrCast(&own),
                .recv = @ptrCast(&result),
                .dtype = .u64,
                .count = result.len,
            }},
            .roles = .{
                .kind = .all_gather,
                .world_size = 2,
                .rank = 0,
            },
            .chunk_bytes = 16 * 1024,
            .window_bytes = window,
        });
        defer x.deinit();
        // In the call no more than one step.
        const step = window / @sizeOf(u64);
        try expect_filled(&result, step);

        const order: base.Order = .of(&.full(2));
        var begin = test_begin(1, &order, &.{});
        begin.schedule = schedule;
        begin.hubs = &.full(2);
        x.begin(begin);
        x.opened(1, 0);
        while (x.has_work()) x.work();
        try expect_filled(&result, step); // all of it is due to be sent
        var filled: usize = 0;
        while (x.next(1)) |out| : (_ = x.acknowledged(&out.move, .whole)) {
            const values: []align(1) const u64 = @ptrCast(out.payload);
            try std.testing.expect(std.mem.allEqual(u64, @alignCast(values), 7));
            filled += values.len;
            try expect_filled(&result, @max(step, filled));
        }
        try std.testing.expectEqual(own.len, filled);
        x.halt();

        // Nobody is there any more to send it to.
        const alone: base.Order = .of(&.full(1));
        x.begin(test_begin(2, &alone, &.{}));
        while (x.has_work()) x.work();
        try std.testing.expect(x.complete());
        try expect_filled(&result, own.len);
    }
}

test "what is not sent is brought to the result between other things" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const window = 64 * 1024;
    const given: [6 * window / 8]u64 = @splat(7);
    var result: [given.len]u64 = @splat(0);
    var x = try make(gpa, &pool, .{
        .descriptor = test_descriptor(.all_to_all, 2 * given.len),
        .arrays = &.{.{
            .send = @ptrCast(&given),
            .recv = @ptrCast(&result),
            .dtype = .u64,
            .count = 2 * given.len,
        }},
        .roles = .{
            .kind = .all_to_all,
            .world_size = 2,
            .rank = 0,
        },
        .chunk_bytes = 16 * 1024,
        .window_bytes = window,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(2));
    x.begin(test_begin(1, &order, &.{}));
    const step = window / @sizeOf(u64);
    for (1..given.len / 2 / step + 1) |steps| {
        try expect_filled(&result, steps * step);
        const is_left = x.board.ledger.own_left.count > 0;
        try std.testing.expectEqual(steps < given.len / 2 / step, is_left);
        x.work();
    }
    x.work();
    try std.testing.expect(!x.has_work() and !x.complete());
}

fn expect_filled(result: []const u64, count: usize) !void {
    try std.testing.expect(std.mem.allEqual(u64, result[0..count], 7));
    try std.testing.expect(std.mem.allEqual(u64, result[count..], 0));
}

test "a kept range of chunks that the operation does not have is ignored" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [300]u64 = @splat(1);
    var x = try test_movement(&pool, test_descriptor(.all_reduce, 300), &input, 2, 0);
    defer x.deinit();
    const chunks = x.board.ledger.partition.chunks;
    const order: base.Order = .of(&.full(2));
    const kept = [_]KeptRange{
        .{ .begin = chunks - 1, .end = chunks + 5, .reduced_attempt = 1, .holders = .full(2) },
        .{ .begin = chunks + 2, .end = chunks + 3, .reduced_attempt = 1, .holders = .full(2) },
    };
    x.begin(test_begin(2, &order, &kept));
    try std.testing.expectEqual(1, x.board.ledger.kept.count);
}

test "what a member holds that is not listed as a holder is taken from those who are" {
    // Goal: one that lies about which attempt has reduced its chunks makes no two others reject
    // each other's data. Method: all hold everything, and one of them alone is believed.
    for (schedules) |schedule| for (0..3) |believed| {
        const gpa = std.testing.allocator;
        var pool = Pool.init(gpa);
        defer pool.deinit();
        var input: [3][300]u64 = @splat(@splat(1));
        var movements: [3]Movement = undefined;
        for (&movements, &input, 0..) |*x, *values, rank| {
            const descriptor = test_descriptor(.all_reduce, values.len);
            x.* = try test_movement(&pool, descriptor, values, movements.len, @intCast(rank));
        }
        defer for (&movements) |*x| x.deinit();
        var bench: Bench = .{
            .movements = &movements,
            .alive = .full(movements.len),
            .schedule = schedule,
        };
        bench.begin(1, &.{});
        while (try bench.step()) {}
        for (&movements) |*x| x.halt();
        var holders: base.Mask = .empty;
        holders.set(believed);
        const all = movements[0].board.ledger.partition.chunks;
        bench.begin(2, &.{
            .{ .begin = 0, .end = all, .reduced_attempt = 1, .holders = holders },
        });
        while (try bench.step()) {}
        for (&movements, &input) |*x, *values| {
            try std.testing.expect(x.complete());
            for (values) |value| try std.testing.expectEqual(3, value);
        }
    };
}

test "widened contributions on their way out leave the slots that were promised" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [4096]i32 = @splat(1);
    var descriptor = test_descriptor(.all_reduce, input.len);
    descriptor.dtype = .i32;
    descriptor.op = .avg;
    var x = try make(gpa, &pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(&input, descriptor.dtype, input.len)},
        .roles = .{
            .kind = descriptor.kind,
            .world_size = 2,
            .rank = 0,
        },
        .chunk_bytes = 64,
        .window_bytes = 4096,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(2));
    x.begin(test_begin(1, &order, &.{}));
    x.opened(1, x.initial_credit() + 1);
    var room: [64]Movement.Out = undefined;
    const out = room[0..x.board.origin_slots];
    for (out) |*item| item.* = x.next(1).?;
    try std.testing.expectEqual(null, x.next(1));
    try std.testing.expect(x.board.free_count >= x.initial_credit());
    try std.testing.expect(x.acknowledged(&out[0].move, .whole));
    try std.testing.expect(x.next(1) != null);
    // A slot is free when the other side has all of it, in any order.
    const slot = out[1].move.slot;
    try std.testing.expect(!x.acknowledged(&out[1].move, .{ .before = 12 }));
    try std.testing.expect(!x.acknowledged(&out[1].move, .{ .before = 4, .after = 4 }));
    try std.testing.expectEqual(null, x.next(1));
    // All of them are on their way again. The next attempt knows nothing of that.
    x.halt();
    x.begin(test_begin(2, &order, &.{}));
    x.opened(1, x.initial_credit());
    for (out) |*item| item.* = x.next(1).?;
    const again = for (out) |*item| {
        if (item.move.slot == slot) break &item.move;
    } else unreachable;
    try std.testing.expect(!x.acknowledged(again, .{ .after = 12 }));
    try std.testing.expect(x.acknowledged(again, .{ .before = 4 }));
}

test "a sender fills no more slots than it was promised, though others are free" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [900]u64 = @splat(1);
    var x = try test_movement(&pool, test_descriptor(.all_reduce, input.len), &input, 3, 1);
    defer x.deinit();
    const order: base.Order = .of(&.full(3));
    x.begin(test_begin(1, &order, &.{}));
    // Sums that this rank owns, none of which has arrived whole.
    var taken: u32 = 0;
    var piece: u64 = 1;
    while (taken <= x.board.free_slots.len) : (piece += 3) {
        const header: wire.frame.Header = test_header(.{
            .kind = .partial,
            .index = piece,
            .attempt = 1,
            .payload_bytes = @intCast(x.piece_bytes(@intCast(piece))),
            .class = 1,
        });
        _ = x.place(&header, 0) catch |err| {
            try std.testing.expectEqual(error.NoCredit, err);
            break;
        };
        taken += 1;
    }
    try std.testing.expectEqual(x.board.slots_each, taken);
    try std.testing.expect(x.board.free_count > 0);
}

test "of credits that come in any order, before or after the open, the largest counts" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [900]u64 = @splat(1);
    var x = try test_movement(&pool, test_descriptor(.all_reduce, input.len), &input, 2, 0);
    defer x.deinit();
    const order: base.Order = .of(&.full(2));
    x.begin(test_begin(1, &order, &.{}));
    try x.credited(1, 0, 70);
    try x.credited(1, 0, 60);
    x.opened(1, 50);
    try std.testing.expectEqual(70, x.board.credits[0].allowed);
    try std.testing.expectEqual(50, x.board.credits[1].allowed);
    try x.credited(1, 0, 80);
    try x.credited(1, 0, 75);
    try std.testing.expectEqual(80, x.board.credits[0].allowed);
}

test "a sum is refused where it does not belong" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const order: base.Order = .of(&.full(3));
    for (schedules) |schedule| {
        var input: [900]u64 = @splat(1);
        var x = try test_movement(&pool, test_descriptor(.all_reduce, input.len), &input, 3, 1);
        defer x.deinit();
        var begin = test_begin(1, &order, &.{});
        begin.schedule = schedule;
        begin.hubs = &.full(3);
        x.begin(begin);
        // Chunk n is added up by member n: in a ring it sets out behind that, where nothing comes
        // back to; all others send their contributions straight to it.
        const pieces = [_]u64{ 0, 1, 2 };
        for (pieces) |piece| {
            const header: wire.frame.Header = test_header(.{
                .kind = .partial,
                .index = piece,
                .attempt = 1,
                .payload_bytes = @intCast(x.piece_bytes(@intCast(piece))),
                .class = if (schedule == .ring) @intCast(piece) else 0,
            });
            const is_mine = switch (schedule) {
                .ring => piece != 0,
                .direct => piece == 1,
            };
            if (is_mine) _ = try x.place(&header, 0) else {
                try std.testing.expectError(error.WrongPhase, x.place(&header, 0));
            }
        }
    }
}

test "little is sent to a member that has not called, however much it would take" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [32 * 1024]u64 = @splat(1);
    for (schedules) |schedule| {
        var x = try make(gpa, &pool, .{
            .descriptor = test_descriptor(.all_reduce, input.len),
            .arrays = &.{test_array(&input, .u64, input.len)},
            .roles = .{
                .kind = .all_reduce,
                .world_size = 2,
                .rank = 0,
            },
            .chunk_bytes = 1024,
            .window_bytes = base.limits.MiB,
        });
        defer x.deinit();
        const order: base.Order = .of(&.full(2));
        var begin = test_begin(1, &order, &.{});
        begin.schedule = schedule;
        begin.hubs = &.full(2);
        x.begin(begin);
        var bytes: usize = 0;
        while (x.next(1)) |out| bytes += out.payload.len;
        try std.testing.expectEqual(base.limits.eager_bytes_max, bytes);
        x.opened(1, x.initial_credit());
        try std.testing.expect(x.next(1) != null);
    }
}

test "a call that is in doubt has given its residual back" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [64]f32 = @splat(1);
    var before: [64]f32 = @splat(2);
    var after: [64]f32 = @splat(3);
    var descriptor = test_descriptor(.all_reduce, input.len);
    descriptor.dtype = .f32;
    descriptor.codec = .of(.bf16);
    var x = try make(gpa, &pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(&input, .f32, input.len)},
        .residual = .{ .in = @ptrCast(&before), .out = @ptrCast(&after) },
        .roles = .{
            .kind = descriptor.kind,
            .world_size = 2,
            .rank = 0,
        },
        .chunk_bytes = 64,
        .window_bytes = 1024,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(2));
    x.begin(test_begin(1, &order, &.{}));
    try std.testing.expect(x.memory.residual_of(0) != null);
    x.halt();
    try std.testing.expect(x.set_aside());
    try std.testing.expectEqual(null, x.memory.residual_of(0));
}

test "in a large direct schedule no owner waits for what is on its way to another" {
    const n = 12;
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var input: [n * 256]f32 = @splat(1);
    var descriptor = test_descriptor(.all_reduce, input.len);
    descriptor.dtype = .f32;
    descriptor.codec = .of(.int8);
    var x = try make(gpa, &pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(&input, descriptor.dtype, input.len)},
        .roles = .{
            .kind = descriptor.kind,
            .world_size = n,
            .rank = 0,
        },
        .chunk_bytes = 512,
        .window_bytes = 1 << 16,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(n));
    var begin = test_begin(1, &order, &.{});
    begin.schedule = .direct;
    begin.hubs = &.full(n);
    x.begin(begin);
    for (1..n) |to| {
        x.opened(@intCast(to), x.initial_credit());
        try std.testing.expect(x.next(@intCast(to)) != null);
    }
    try std.testing.expect(x.board.free_count >= (n - 1) * x.initial_credit());
}

const Room = struct { window: u64 = 1 << 16, window_here: u64 = 0, is_far: bool = false };

/// Rank 0 of four, in a direct schedule, whose contributions are encoded.
fn test_encoded(pool: *Pool, input: []f32, room: Room) !Movement {
    var descriptor = test_descriptor(.all_reduce, input.len);
    descriptor.dtype = .f32;
    descriptor.codec = .of(.int8);
    var x = try make(std.testing.allocator, pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(input.ptr, descriptor.dtype, input.len)},
        .roles = .{
            .kind = descriptor.kind,
            .world_size = 4,
            .rank = 0,
        },
        .chunk_bytes = 512,
        .window_bytes = room.window,
        .window_here = room.window_here,
        .is_far = room.is_far,
    });
    const order: base.Order = .of(&.full(4));
    var begin = test_begin(1, &order, &.{});
    begin.schedule = .direct;
    begin.hubs = &.full(4);
    x.begin(begin);
    return x;
}

test "a neighbour that takes all it can get leaves the others their part of what is in slots" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    var input: [4 * 2048]f32 = @splat(1);
    var x = try test_encoded(&pool, &input, .{ .window = 1 << 12 });
    defer x.deinit();
    const share = x.board.origin_slots / 3;
    try std.testing.expect(share < x.board.ledger.partition.pieces / 4);
    for (1..4) |to| {
        x.opened(@intCast(to), x.initial_credit());
        try x.credited(@intCast(to), 0, 2 * share);
        var last: Movement.Out = undefined;
        for (0..share) |_| last = x.next(@intCast(to)).?;
        try std.testing.expectEqual(null, x.next(@intCast(to)));
        _ = x.acknowledged(&last.move, .whole);
        try std.testing.expect(x.next(@intCast(to)) != null);
    }
}

test "a first measurement takes no room away from contributions" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    var input: [4 * 2048]f32 = @splat(1);
    var unknown = try test_encoded(&pool, &input, .{});
    defer unknown.deinit();
    // Half of the pieces, of which there is one for each 512 bytes.
    try std.testing.expectEqual(32, unknown.board.origin_slots);
    var slow = try test_encoded(&pool, &input, .{ .window_here = 1 });
    defer slow.deinit();
    try std.testing.expectEqual(32, slow.board.origin_slots);
}

test "among far members all contributions may be on their way at once" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    var input: [4 * 2048]f32 = @splat(1);
    var x = try test_encoded(&pool, &input, .{ .is_far = true });
    defer x.deinit();
    try std.testing.expectEqual(64, x.board.origin_slots);
}

test "in a direct schedule contributions go before finished bytes between far members alone" {
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    for ([_]bool{ false, true }) |is_far| {
        var input: [64]u64 = @splat(1);
        const descriptor = test_descriptor(.all_reduce, input.len);
        var x = try make(std.testing.allocator, &pool, .{
            .descriptor = descriptor,
            .arrays = &.{test_array(&input, .u64, input.len)},
            .roles = .{ .kind = descriptor.kind, .world_size = 2, .rank = 0 },
            .chunk_bytes = 64,
            .window_bytes = 1024,
            .is_far = is_far,
        });
        defer x.deinit();
        const order: base.Order = .of(&.full(2));
        var begin = test_begin(1, &order, &.{});
        begin.schedule = .direct;
        begin.hubs = &.full(2);
        x.begin(begin);
        x.opened(1, x.initial_credit());
        // The other's contribution to a piece of this peer: the result of that goes to the other.
        const header: wire.frame.Header = test_header(.{
            .kind = .partial,
            .index = 0,
            .attempt = 1,
            .payload_bytes = 64,
        });
        const place = try x.place(&header, 1);
        @memset(place.bytes, 0);
        _ = x.arrived(&header, place.slot);
        var finals_before: usize = 0;
        while (x.next(1)) |out| {
            if (out.move.kind != .final) break;
            finals_before += 1;
        }
        try std.testing.expectEqual(@as(usize, if (is_far) 0 else 1), finals_before);
    }
}

test "after a loss, kept chunks keep the lost contribution and the others do without" {
    for (2..7) |n| for (0..n) |lost| for (schedules) |schedule| {
        for ([_]wire.control.OpKind{ .all_reduce, .broadcast }) |kind| {
            if (kind == .broadcast and lost == 0) continue;
            try test_case(.{
                .n = @intCast(n),
                .count = 299,
                .kind = kind,
                .schedule = schedule,
                .lose = @intCast(lost),
            });
        }
    };
}

/// One operation from its call to what each peer is left with: peers are lost, frames come half,
/// calls return in doubt while the others still need what they hold, and at last some fail.
fn Life(comptime T: type) type {
    return struct {
        const Self = @This();
        prng: base.Prng,
        n: u16,
        /// In all shards together.
        count: usize,
        /// In each rank's shard, where ranks have shards.
        counts: [5]u64 = @splat(0),
        kind: wire.control.OpKind,
        arrays: usize = 1,
        /// For an all_to_all whose shards differ: for each rank, and from each; by rank.
        exchanged: bool = false,
        sent: [5][5]u64 = @splat(@splat(0)),
        received: [5][5]u64 = @splat(@splat(0)),
        /// Elements of each array, or of each rank's shard of it.
        sizes: [arrays_max]usize = @splat(0),
        root: u16 = 0,
        /// One set of contributors for the whole result.
        restart: bool,
        /// Schedule, order and hubs are others in each attempt.
        draws: bool,
        /// Does the jobs, if not whoever makes them.
        shop: ?*Shop,
        movements: [5]Movement = undefined,
        send: [5][]T = undefined,
        recv: [5][]T = undefined,
        send_before: [5][]T = undefined,
        voted: base.Mask = .empty,
        aside: base.Mask = .empty,
        /// Members of each attempt.
        attempts: [5]base.Mask = undefined,

        const arrays_max = 3;
        const scribble: T = if (T == u64) 0x5c5c_5c5c_5c5c_5c5c else 12345;

        fn init(life: *Self, arena: Allocator, pool: *Pool, chunk_bytes: u32) !void {
            life.draw_arrays();
            if (life.is_uneven()) life.draw_counts();
            if (life.exchanged) life.draw_exchanged();
            for (0..life.n) |rank| {
                const only_receives = life.kind == .scatter and rank != life.root;
                const in_place = life.kind != .all_to_all and !only_receives and
                    (life.kind == .broadcast or life.prng.chance(2));
                const before: T = if (T == u64) 0xabab + rank else 678;
                const send = try arena.alloc(T, life.count);
                @memset(send, before);
                for (0..life.count) |index| {
                    if (life.sends(rank, index)) send[life.spot(index)] = contribution(rank, index);
                }
                const recv = if (in_place) send else try arena.alloc(T, life.count);
                if (!in_place) @memset(recv, before);
                life.send[rank] = send;
                life.recv[rank] = recv;
                life.send_before[rank] = try arena.dupe(T, send);
                var arrays: [arrays_max]arrays_file.Array = undefined;
                for (arrays[0..life.arrays], 0..) |*array, number| array.* = .{
                    .send = @ptrCast(send.ptr + life.start(number, life.first_sent(rank))),
                    .recv = @ptrCast(recv.ptr + life.start(number, life.first_received(rank))),
                    .dtype = life.descriptor().dtype,
                    .count = if (life.is_uneven())
                        life.count
                    else
                        life.sizes[number] * life.parts(),
                };
                life.movements[rank] = try make(arena, pool, .{
                    .descriptor = life.descriptor(),
                    .arrays = arrays[0..life.arrays],
                    .elements = if (life.is_uneven())
                        .{ .of_ranks = life.counts[0..life.n] }
                    else if (life.exchanged) .{ .exchanged = .{
                        .send = life.sent[rank][0..life.n],
                        .recv = life.received[rank][0..life.n],
                    } } else null,
                    .roles = .{
                        .kind = life.kind,
                        .world_size = life.n,
                        .rank = @intCast(rank),
                        .root = life.root,
                    },
                    .runner = if (life.shop) |shop| &shop.runner else null,
                    .chunk_bytes = chunk_bytes,
                    .window_bytes = 1024,
                });
            }
        }

        fn parts(life: *const Self) usize {
            return (Roles{ .kind = life.kind, .world_size = life.n, .rank = 0 }).parts();
        }

        fn is_uneven(life: *const Self) bool {
            return life.arrays == 1 and life.kind.has_shards() and life.kind != .all_to_all;
        }

        fn draw_arrays(life: *Self) void {
            life.arrays = life.prng.between(1, arrays_max);
            life.exchanged = life.kind == .all_to_all and life.arrays == 1 and life.prng.chance(2);
            if (life.is_uneven() or life.exchanged) return;
            const each = life.count / life.parts();
            var left = each;
            for (life.sizes[0 .. life.arrays - 1]) |*size| {
                size.* = if (life.prng.chance(4)) 0 else life.prng.below(@intCast(left + 1));
                left -= size.*;
            }
            life.sizes[life.arrays - 1] = left;
            life.count = each * life.parts();
        }

        fn draw_exchanged(life: *Self) void {
            const most = 2 * life.count / life.parts();
            life.count = 0;
            for (0..life.n) |from| for (0..life.n) |to| {
                const count = if (life.prng.chance(4)) 0 else life.prng.below(most + 1);
                life.sent[from][to] = count;
                life.received[to][from] = count;
                life.count += @intCast(count);
            };
        }

        /// Which array, which of its parts, and where in it an element is.
        const Spot = struct { array: usize = 0, part: usize = 0, within: usize = 0 };

        fn find(life: *const Self, index: usize) Spot {
            var found: Spot = .{ .within = index };
            if (life.is_uneven() or life.exchanged) {
                while (found.within >= life.uneven_count(found.part)) : (found.part += 1)
                    found.within -= life.uneven_count(found.part);
                return found;
            }
            const each = life.count / life.parts();
            found.part = index / each;
            found.within = index % each;
            while (found.within >= life.sizes[found.array]) : (found.array += 1)
                found.within -= life.sizes[found.array];
            return found;
        }

        /// Where a part of an array begins: arrays lie one behind the other.
        fn start(life: *const Self, array: usize, part: usize) usize {
            if (life.is_uneven() or life.exchanged) return life.uneven_start(part);
            var before: usize = 0;
            for (life.sizes[0..array]) |size| before += size * life.parts();
            return before + part * life.sizes[array];
        }

        fn spot(life: *const Self, index: usize) usize {
            const found = life.find(index);
            return life.start(found.array, found.part) + found.within;
        }

        /// Where an element of the result is.
        fn result_spot(life: *const Self, index: usize) usize {
            var found = life.find(index);
            if (life.exchanged) {
                const column = life.received[found.part % life.n][0 .. found.part / life.n];
                for (column) |count| found.within += @intCast(count);
                return found.within;
            }
            if (life.kind == .all_to_all) found.part /= life.n;
            return life.start(found.array, found.part) + found.within;
        }

        fn sends(life: *const Self, rank: usize, index: usize) bool {
            const part = life.find(index).part;
            return switch (life.kind) {
                .all_gather, .gather => part == rank,
                .scatter => rank == life.root,
                .all_to_all => part / life.n == rank,
                else => true,
            };
        }

        fn first_sent(life: *const Self, rank: usize) usize {
            return switch (life.kind) {
                .all_gather, .gather => rank,
                .all_to_all => rank * life.n,
                else => 0,
            };
        }

        fn first_received(life: *const Self, rank: usize) usize {
            return switch (life.kind) {
                .reduce_scatter, .scatter => rank,
                else => 0,
            };
        }

        fn draw_counts(life: *Self) void {
            var left = life.count;
            for (life.counts[0..life.n]) |*count| {
                count.* = if (life.prng.chance(4)) 0 else life.prng.below(left + 1);
                left -= @intCast(count.*);
            }
            life.count -= left;
        }

        /// Elements before a part, where they are uneven.
        fn uneven_start(life: *const Self, part: usize) usize {
            var first: usize = 0;
            for (0..part) |before| first += life.uneven_count(before);
            return first;
        }

        fn uneven_count(life: *const Self, part: usize) usize {
            const count = if (life.exchanged)
                life.sent[part / life.n][part % life.n]
            else
                life.counts[part];
            return @intCast(count);
        }

        /// Digits, or numbers that a codec with 16 bits has exactly: one from one rank.
        fn contribution(rank: usize, index: usize) T {
            if (T == u64) return (index % 7 + 1) << @intCast(4 * rank);
            return @floatFromInt(@intFromBool(index % 5 == rank));
        }

        fn descriptor(life: *const Self) Descriptor {
            var made = test_descriptor(life.kind, life.count);
            if (life.restart) made.recovery = .restart;
            if (T == u64) return made;
            made.dtype = .f32;
            if (life.kind != .broadcast) made.codec = .of(.bf16);
            return made;
        }

        fn run(life: *Self, arena: Allocator) !void {
            var bench: Bench = .{
                .movements = life.movements[0..life.n],
                .alive = .full(life.n),
                .schedule = if (life.prng.chance(2)) .ring else .direct,
                .draws = if (life.draws) &life.prng else null,
                .shop = life.shop,
            };
            const last = life.prng.between(1, 4);
            var kept: []const KeptRange = &.{};
            for (1..last + 1) |attempt| {
                life.attempts[attempt] = bench.alive;
                const is_last = attempt == last;
                bench.begin(@intCast(attempt), kept);
                // A private result is voted for again in each attempt.
                if (life.kind.is_private()) life.voted = .empty;
                try life.votes(&bench, is_last);
                // A sixteenth of it, or half, or all.
                const steps = life.count * life.prng.between(1, 8) / 16;
                var step: usize = 0;
                while (is_last or step < steps) : (step += 1) {
                    if (!try bench.step() and bench.is_at_rest()) break;
                    try life.votes(&bench, is_last);
                }
                if (is_last) return life.check(&bench);
                for (0..life.prng.below(3)) |position| try bench.step_half(@intCast(position));
                for (bench.movements) |*x| x.halt();
                life.lose(&bench);
                kept = try life.kept_by(arena, &bench.alive);
            }
        }

        fn votes(life: *Self, bench: *Bench, is_last: bool) !void {
            for (bench.movements, 0..) |*x, rank| {
                if (life.voted.has(rank) or !bench.alive.has(rank) or !x.complete()) continue;
                life.voted.set(rank);
                // A private result needs the inputs to be made again: it would be aborted.
                if (life.kind.is_private() and !is_last) continue;
                if (!life.prng.chance(3)) continue;
                if (!x.set_aside()) x.end_now();
                life.aside.set(rank);
                // The caller has its memory back, and uses it.
                try life.returned(rank);
                @memset(life.send[rank], scribble);
                @memset(life.recv[rank], scribble);
            }
        }

        fn lose(life: *Self, bench: *Bench) void {
            const rank = life.prng.below(life.n);
            const root = life.kind.has_root() and rank == life.root;
            const several = bench.alive.count() > 1;
            if (bench.alive.has(rank) and !root and several) bench.alive.unset(rank);
        }

        /// The ranges that the coordinator would keep (protocol/attempt.zig).
        fn kept_by(life: *Self, arena: Allocator, alive: *const base.Mask) ![]const KeptRange {
            var kept: std.ArrayList(KeptRange) = .empty;
            var any_voted = false;
            for (0..life.n) |rank| {
                if (alive.has(rank) and life.voted.has(rank)) any_voted = true;
            }
            for (0..life.movements[0].board.ledger.partition.chunks) |chunk| {
                var range: KeptRange = .{
                    .begin = @intCast(chunk),
                    .end = @intCast(chunk + 1),
                    .reduced_attempt = 0,
                    .holders = .empty,
                };
                for (life.movements[0..life.n], 0..) |*x, rank| {
                    const reduced = x.board.ledger.reduced[chunk];
                    if (!alive.has(rank) or reduced == 0) continue;
                    if (range.reduced_attempt != 0 and life.kind.reduces())
                        try std.testing.expectEqual(range.reduced_attempt, reduced);
                    range.reduced_attempt = reduced;
                    range.holders.set(rank);
                }
                if (range.holders.is_empty()) continue;
                const whole = any_voted and !life.kind.is_private();
                const mixed = life.restart and life.kind.reduces() and !whole and
                    !life.attempts[range.reduced_attempt].eql(alive);
                if (!mixed) try kept.append(arena, range);
            }
            return kept.items;
        }

        /// A call without a result leaves what it was given to send as it was, and all of an array
        /// that goes both ways.
        fn returned(life: *const Self, rank: usize) !void {
            try std.testing.expectEqualSlices(T, life.send_before[rank], life.send[rank]);
        }

        fn check(life: *Self, bench: *Bench) !void {
            const first = &life.movements[bench.alive.at(0)];
            for (life.movements[0..life.n], 0..) |*x, rank| {
                if (bench.alive.has(rank)) {
                    try std.testing.expect(x.complete());
                    const digest = x.board.ledger.digest();
                    try std.testing.expectEqual(first.board.ledger.digest(), digest);
                    try life.check_values(x);
                }
                x.halt();
                if (life.aside.has(rank)) {
                    try std.testing.expect(std.mem.allEqual(T, life.send[rank], scribble));
                    try std.testing.expect(std.mem.allEqual(T, life.recv[rank], scribble));
                } else if (!bench.alive.has(rank) or life.prng.chance(2)) {
                    if (!x.restore()) x.end_now();
                    try life.returned(rank);
                } else if (life.send[rank].ptr != life.recv[rank].ptr) {
                    const before = life.send_before[rank];
                    try std.testing.expectEqualSlices(T, before, life.send[rank]);
                }
            }
        }

        fn check_values(life: *const Self, x: *const Movement) !void {
            for (0..@intCast(x.board.ledger.partition.pieces)) |piece| {
                const chunk = x.board.ledger.partition.chunk_of(piece);
                const first = life.first_of(x, piece);
                if (!x.board.ledger.has_target(chunk)) continue;
                const lost = !x.board.ledger.wants(chunk);
                const result: []align(1) const T = @ptrCast(x.memory.target_piece(piece));
                for (result, first..) |*value, index| {
                    const wanted = if (lost) 0 else life.expected(x, chunk, index);
                    try std.testing.expectEqual(wanted, value.*);
                    if (life.aside.has(x.board.ledger.roles.rank)) continue;
                    const place = &life.recv[x.board.ledger.roles.rank][life.result_spot(index)];
                    try std.testing.expectEqual(@intFromPtr(place), @intFromPtr(value));
                }
                if (!lost) continue;
                const members = &life.attempts[x.board.attempt];
                try std.testing.expect(!members.has(x.board.ledger.source(chunk).?));
            }
        }

        /// The first element of a piece, among those of all ranks.
        fn first_of(life: *const Self, x: *const Movement, piece: usize) usize {
            const first: usize = @intCast(x.board.ledger.partition.offset(piece));
            if (!life.exchanged) return first;
            const part = x.board.ledger.partition.shard_of(piece);
            const shard = &x.board.ledger.partition.shards[part];
            const within = first - @as(usize, @intCast(shard.first));
            return life.uneven_start(part) + within;
        }

        fn expected(life: *const Self, x: *const Movement, chunk: u32, index: usize) T {
            if (x.board.ledger.source(chunk)) |rank| return contribution(rank, index);
            var sum: T = 0;
            for (0..life.n) |rank| {
                const counts = life.attempts[x.board.ledger.reduced[chunk]].has(rank);
                if (counts) sum += contribution(rank, index);
            }
            return sum;
        }
    };
}

fn test_life(comptime T: type, seed: u64, count: usize, chunk_bytes: u32) !void {
    test_one_life(T, seed, count, chunk_bytes) catch |err| {
        try std.testing.expectEqual(null, @as(?u64, seed)); // says which
        return err;
    };
}

fn test_one_life(comptime T: type, seed: u64, count: usize, chunk_bytes: u32) !void {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var pool = Pool.init(arena.allocator());
    var prng: base.Prng = .init(seed);
    const kinds = [_]wire.control.OpKind{
        .all_reduce,     .all_reduce, .broadcast, .reduce,
        .reduce_scatter, .all_gather, .scatter,   .gather,
        .all_to_all,
    };
    var shop: Shop = .{ .prng = .init(seed ^ 1) };
    shop.open();
    defer shop.deinit();
    var life: Life(T) = .{
        .n = @intCast(prng.between(1, 5)),
        .count = count,
        .kind = kinds[prng.below(if (T == u64) kinds.len else 3)],
        .restart = prng.chance(2),
        .draws = prng.chance(2),
        .shop = if (shop.prng.chance(2)) &shop else null,
        .prng = prng,
    };
    try life.init(arena.allocator(), &pool, chunk_bytes);
    try life.run(arena.allocator());
}

test "whatever happens on the way, a call gives its result or what was there before" {
    for (0..2000) |seed| try test_life(u64, seed, seed * 7 % 300, 64);
    for (0..6) |seed| try test_life(u64, seed, 2 * base.limits.chunks_max + 5, 8);
    // Encoded: what is passed on in later attempts is what came.
    for (0..2000) |seed| try test_life(f32, seed, seed * 7 % 3000, 512);
}

/// Element i holds 1 from rank i mod n and 0 from the others: so a result says who contributed, as
/// long as what the codec loses is less than a half.
fn test_codec(codec: base.Codec, op: base.ReduceOp, case: Case) !void {
    const gpa = std.testing.allocator;
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var descriptor = test_descriptor(case.kind, case.count);
    descriptor.dtype = .f32;
    descriptor.op = op;
    descriptor.codec = codec;
    var movements: [8]Movement = undefined;
    var inputs: [8][]f32 = undefined;
    for (movements[0..case.n], inputs[0..case.n], 0..) |*x, *input, rank| {
        input.* = try arena.allocator().alloc(f32, case.count + 1);
        for (input.*, 0..) |*value, index| value.* = @floatFromInt(@intFromBool(
            index % case.n == rank,
        ));
        x.* = try make(gpa, &pool, .{
            .descriptor = descriptor,
            .arrays = &.{test_array(input.ptr, descriptor.dtype, case.count)},
            .roles = .{
                .kind = descriptor.kind,
                .world_size = case.n,
                .rank = @intCast(rank),
            },
            .chunk_bytes = case.chunk_bytes,
            .window_bytes = 4096,
        });
    }
    defer for (movements[0..case.n]) |*x| x.deinit();
    var bench: Bench = .{
        .movements = movements[0..case.n],
        .alive = .full(case.n),
        .schedule = case.schedule,
    };
    bench.begin(1, &.{});
    if (case.lose) |rank| {
        for (0..3) |_| _ = try bench.step();
        for (movements[0..case.n]) |*x| x.halt();
        bench.alive.unset(rank);
        const kept = try kept_by_any(arena.allocator(), movements[0..case.n], &bench.alive);
        // Survivors pass on what they hold as they got it.
        bench.schedule = if (case.schedule == .ring) .direct else .ring;
        bench.begin(2, kept);
    }
    while (try bench.step()) {}

    const first = &movements[bench.alive.at(0)];
    for (0..bench.alive.count()) |position| {
        const x = &movements[bench.alive.at(position)];
        try std.testing.expect(x.complete());
        try std.testing.expectEqual(first.board.ledger.digest(), x.board.ledger.digest());
        const bytes = case.count * @sizeOf(f32);
        const result: [*]align(1) const f32 = @ptrCast(x.memory.arrays.recv(0));
        try std.testing.expectEqualSlices(
            u8,
            first.memory.arrays.recv(0)[0..bytes],
            x.memory.arrays.recv(0)[0..bytes],
        );
        for (result[0..case.count], 0..) |value, index| {
            const partition = &x.board.ledger.partition;
            const chunk = partition.chunk_of(index / partition.shards[0].piece_elements);
            const from = index % case.n;
            const counts = x.board.ledger.reduced[chunk] == 1 or from != case.lose.?;
            const expected: f32 = @floatFromInt(@intFromBool(counts));
            const all = x.board.ledger.reduced[chunk] == 1;
            const members: f32 = @floatFromInt(if (all) case.n else x.board.members);
            const scaled = if (op == .avg) value * members else value;
            try std.testing.expectApproxEqAbs(expected, scaled, 0.49);
        }
    }
}

/// All contribute one number, which is its average too.
fn test_average(
    comptime T: type,
    dtype: base.DType,
    kind: base.codec.Kind,
    schedule: Schedule,
    value: T,
    room: f64,
) !void {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const n = 5;
    var descriptor = test_descriptor(.all_reduce, 300);
    descriptor.dtype = dtype;
    descriptor.op = .avg;
    descriptor.codec = .of(kind);
    var values: [n][300]T = @splat(@splat(value));
    var movements: [n]Movement = undefined;
    for (&movements, &values, 0..) |*x, *mine, rank| x.* = try make(gpa, &pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(mine, dtype, mine.len)},
        .roles = .{ .kind = .all_reduce, .world_size = n, .rank = @intCast(rank) },
        .chunk_bytes = 64,
        .window_bytes = 1024,
    });
    defer for (&movements) |*x| x.deinit();
    var bench: Bench = .{ .movements = &movements, .alive = .full(n), .schedule = schedule };
    bench.begin(1, &.{});
    while (try bench.step()) {}
    for (&movements, &values) |*x, *mine| {
        try std.testing.expect(x.complete());
        for (mine) |result| switch (@typeInfo(T)) {
            .float => {
                try std.testing.expect(std.math.isFinite(result)); // infinity is near any number
                try std.testing.expectApproxEqRel(@as(f64, value), @as(f64, result), room);
            },
            else => try std.testing.expectEqual(value, result),
        };
    }
}

test "the average of equal numbers is that number, be it the greatest or the least" {
    for (schedules) |schedule| {
        for ([_]f16{ std.math.floatMax(f16), std.math.floatTrueMin(f16), -3e-7 }) |value|
            try test_average(f16, .f16, .none, schedule, value, 1e-9);
        for ([_]f32{ std.math.floatMax(f32), -1e-38, 3 }) |value|
            try test_average(f32, .f32, .none, schedule, value, 1e-6);
        try test_average(i32, .i32, .none, schedule, std.math.minInt(i32), 1e-9);
        try test_average(i64, .i64, .none, schedule, std.math.maxInt(i64), 1e-9);
        for ([_]f32{ 0x1p127, -1e-30, 3 }) |value|
            try test_average(f32, .f32, .bf16, schedule, value, 0.02);
        for ([_]f32{ 60000, 3 }) |value|
            try test_average(f32, .f32, .f16, schedule, value, 0.002);
    }
    try test_average(f32, .f32, .f16, .direct, 0x1p-24, 1e-9);
}

test "among 33 members an average with the codec f16 keeps small numbers, and all residuals" {
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    const n = base.limits.full_mesh_max + 1;
    const value: f32 = 1e-6;
    var descriptor = test_descriptor(.all_reduce, 300);
    descriptor.dtype = .f32;
    descriptor.op = .avg;
    descriptor.codec = .of(.f16);
    var values: [n][300]f32 = @splat(@splat(value));
    const before: [300]f32 = @splat(3e-8);
    var after: [n][300]f32 = @splat(@splat(1));
    var movements: [n]Movement = undefined;
    for (&movements, &values, &after, 0..) |*x, *mine, *lost, rank| x.* = try make(gpa, &pool, .{
        .descriptor = descriptor,
        .arrays = &.{test_array(mine, .f32, mine.len)},
        .residual = .{ .in = @ptrCast(&before), .out = @ptrCast(lost) },
        .roles = .{ .kind = .all_reduce, .world_size = n, .rank = @intCast(rank) },
        .chunk_bytes = 64,
        .window_bytes = 1024,
    });
    defer for (&movements) |*x| x.deinit();
    var bench: Bench = .{ .movements = &movements, .alive = .full(n), .schedule = .ring };
    bench.begin(1, &.{});
    while (try bench.step()) {}
    for (&movements, &values, &after) |*x, *mine, *lost| {
        try std.testing.expect(x.complete());
        for (mine) |result| try std.testing.expectApproxEqRel(value, result, 1e-5);
        try std.testing.expectEqualSlices(f32, &before, lost);
    }
}

fn kept_by_any(
    arena: Allocator,
    movements: []const Movement,
    alive: *const base.Mask,
) ![]const KeptRange {
    var kept: std.ArrayList(KeptRange) = .empty;
    for (0..movements[0].board.ledger.partition.chunks) |chunk| {
        var range: KeptRange = .{
            .begin = @intCast(chunk),
            .end = @intCast(chunk + 1),
            .reduced_attempt = 1,
            .holders = .empty,
        };
        for (movements, 0..) |*x, rank| {
            if (alive.has(rank) and x.board.ledger.reduced[chunk] > 0) range.holders.set(rank);
        }
        if (!range.holders.is_empty()) try kept.append(arena, range);
    }
    return kept.items;
}

test "without resume the shard of a lost source is there whole, or is zeros" {
    // Method: a source of several chunks is lost after each number of steps of an all_gather.
    const gpa = std.testing.allocator;
    var partly: u32 = 0;
    for (schedules) |schedule| for (1..60) |steps| {
        var arena: std.heap.ArenaAllocator = .init(gpa);
        defer arena.deinit();
        var pool = Pool.init(gpa);
        defer pool.deinit();
        var memory: [3][150]u64 = undefined;
        var movements: [3]Movement = undefined;
        for (&movements, &memory, 0..) |*x, *values, rank| {
            values.* = @splat(rank + 1);
            var descriptor = test_descriptor(.all_gather, values.len);
            descriptor.recovery = .restart;
            x.* = try test_movement(&pool, descriptor, values, movements.len, @intCast(rank));
        }
        defer for (&movements) |*x| x.deinit();
        var bench: Bench = .{ .movements = &movements, .alive = .full(3), .schedule = schedule };
        bench.begin(1, &.{});
        for (0..steps) |_| _ = try bench.step();
        for (&movements) |*x| x.halt();
        bench.alive.unset(2);
        const kept = try kept_by_any(arena.allocator(), &movements, &bench.alive);
        bench.begin(2, kept);
        while (try bench.step()) {}
        var held: u32 = 0;
        const partition = &movements[0].board.ledger.partition;
        for (kept) |range| held += @intFromBool(partition.shard_of_chunk(range.begin) == 2);
        partly += @intFromBool(held > 0 and held < partition.chunks / 3);
        for (movements[0..2], memory[0..2]) |*x, *values| {
            try std.testing.expect(x.complete());
            for (values[100..]) |value| try std.testing.expectEqual(values[100], value);
            try std.testing.expect(values[100] == 3 or values[100] == 0);
        }
    };
    try std.testing.expect(partly > 0);
}

test "encoded pieces give everybody the same bytes, with every contribution in them" {
    // Not those of four bits, whose errors after five hops are too large to see anything.
    const kinds = [_]base.codec.Kind{ .bf16, .f16, .int8, .int6, .fp8_e4m3, .min_max_u8 };
    for (kinds) |kind| for ([_]u16{ 1, 2, 3, 5 }) |n| for (schedules) |schedule| {
        for ([_]usize{ 0, 1, 255, 256, 257, 2000 }) |count| {
            for ([_]?u16{ null, 0 }) |lose| {
                if (lose != null and n < 3) continue;
                for ([_]base.ReduceOp{ .sum, .avg }) |op| try test_codec(.of(kind), op, .{
                    .n = n,
                    .count = count,
                    .kind = .all_reduce,
                    .schedule = schedule,
                    .lose = lose,
                    .chunk_bytes = 1024,
                });
            }
        }
    };
}

test "a source that is there keeps what it has, whoever says that it alone holds it" {
    // Goal: nobody makes a source overwrite its own input. Method: rank 2 claims all chunks of an
    // all_gather, and sends the source's own.
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var memory: [3][90]u64 = @splat(@splat(7));
    for (schedules) |schedule| {
        var x = try test_movement(&pool, test_descriptor(.all_gather, 90), &memory[0], 3, 0);
        defer x.deinit();
        var holders: base.Mask = .empty;
        holders.set(2);
        const order: base.Order = .of(&.full(3));
        var begin = test_begin(2, &order, &.{.{
            .begin = 0,
            .end = x.board.ledger.partition.chunks,
            .reduced_attempt = 2,
            .holders = holders,
        }});
        begin.schedule = schedule;
        begin.hubs = &.full(3);
        x.begin(begin);
        try std.testing.expect(x.board.ledger.settled.has(0) and x.board.ledger.reduced[0] == 1);
        const header: wire.frame.Header = test_header(.{
            .kind = .final,
            .index = 0,
            .attempt = 2,
            .payload_bytes = @intCast(x.piece_bytes(0)),
            .reduced_attempt = 2,
        });
        try std.testing.expectError(error.Twice, x.place(&header, 2));
    }
}

test "one that is said to hold what it never had, and is alone, waits for it" {
    // Goal: nothing is read where this peer contributes nothing. Method: the root of a gather is
    // left alone, and a coordinator says that it holds the shard of the lost one.
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var memory: [2][90]u64 = @splat(@splat(7));
    var x = try test_movement(&pool, test_descriptor(.gather, 90), &memory[0], 2, 0);
    defer x.deinit();
    const order: base.Order = .of(&.full(1));
    x.begin(test_begin(2, &order, &.{.{
        .begin = 0,
        .end = x.board.ledger.partition.chunks,
        .reduced_attempt = 1,
        .holders = .full(1),
    }}));
    while (x.has_work()) x.work();
    const last: usize = @intCast(x.board.ledger.partition.pieces - 1);
    try std.testing.expect(x.board.ledger.settled.has(0) and !x.board.ledger.settled.has(last));
    for (memory) |shard| for (shard) |value| try std.testing.expectEqual(7, value);
}

test "no final bytes come in where a job is at work" {
    // Goal: one that sends the result before it can have it does not spoil what is given back.
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var shop: Shop = .{ .prng = .init(1) };
    shop.open();
    defer shop.deinit();
    var input: [24]u64 = @splat(1);
    const order: base.Order = .of(&.full(3));
    // Rank 2 owns the sum that begins at rank 0 and passes here.
    var x = try make(gpa, &pool, .{
        .descriptor = test_descriptor(.all_reduce, input.len),
        .arrays = &.{test_array(&input, .u64, input.len)},
        .roles = .{ .kind = .all_reduce, .world_size = 3, .rank = 1 },
        .chunk_bytes = 64,
        .window_bytes = 1024,
        .runner = &shop.runner,
    });
    defer x.deinit();
    x.begin(test_begin(1, &order, &.{}));
    var header: wire.frame.Header = test_header(.{
        .kind = .partial,
        .index = 2,
        .attempt = 1,
        .payload_bytes = 64,
        .class = 2,
    });
    const sum = try x.place(&header, 0);
    @memset(sum.bytes, 0);
    _ = x.arrived(&header, sum.slot);
    header.kind = .final;
    header.reduced_attempt = 1;
    try std.testing.expectError(error.WrongPhase, x.place(&header, 0));
    while (shop.step()) {}
    _ = try x.place(&header, 0);
    x.halt();
    if (!x.restore()) x.end_now();
    for (input) |value| try std.testing.expectEqual(1, value);
}

test "a frame that comes twice does not hurry what is being set aside" {
    // Goal: whoever sends twice cannot keep the engine busy with gigabytes. Method: jobs of the
    // exchange are under way when the frame comes again.
    const gpa = std.testing.allocator;
    var pool = Pool.init(gpa);
    defer pool.deinit();
    var shop: Shop = .{ .prng = .init(1) };
    shop.open();
    defer shop.deinit();
    var input: [16]u64 = @splat(1);
    var x = try make(gpa, &pool, .{
        .descriptor = test_descriptor(.all_reduce, input.len),
        .arrays = &.{test_array(&input, .u64, input.len)},
        .roles = .{ .kind = .all_reduce, .world_size = 2, .rank = 0 },
        .chunk_bytes = 64,
        .window_bytes = 1024,
        .runner = &shop.runner,
    });
    defer x.deinit();
    const order: base.Order = .of(&.full(2));
    x.begin(test_begin(1, &order, &.{}));
    var header: wire.frame.Header = test_header(.{
        .kind = .final,
        .index = 1, // its owner is the other one
        .attempt = 1,
        .payload_bytes = 64,
        .reduced_attempt = 1,
    });
    const place = try x.place(&header, 1);
    @memset(place.bytes, 0);
    _ = x.arrived(&header, place.slot);
    while (shop.step()) {}
    try std.testing.expect(!x.set_aside());
    for ([_]u64{ 1, 2 }, [_]anyerror{ error.Twice, error.UnknownPiece }) |index, why| {
        header.index = index;
        try std.testing.expectError(why, x.place(&header, 1));
    }
    try std.testing.expect(x.ending != null);
    while (shop.step()) {}
    try std.testing.expectEqual(null, x.ending);
    for (input) |value| try std.testing.expectEqual(1, value);
}

test "jobs of one piece follow each other, whatever comes in between" {
    // Goal: a liar that sends encoded final bytes before it can have them brings about two jobs
    // for one piece. Arrays that are given back are not spoilt, and nothing is read that was not
    // written.
    // Method: the final bytes have their place before the sum sets out here, and are whole, or not,
    // before the job is done; all orders are drawn.
    const gpa = std.testing.allocator;
    for (0..32) |seed| for ([_]bool{ false, true }) |is_first| {
        var pool = Pool.init(gpa);
        defer pool.deinit();
        var shop: Shop = .{ .prng = .init(seed) };
        shop.open();
        defer shop.deinit();
        var input: [128]f32 = @splat(1);
        var descriptor = test_descriptor(.all_reduce, input.len);
        descriptor.dtype = .f32;
        descriptor.codec = .of(.bf16);
        var x = try make(gpa, &pool, .{
            .descriptor = descriptor,
            .arrays = &.{test_array(&input, .f32, input.len)},
            .roles = .{ .kind = .all_reduce, .world_size = 2, .rank = 0 },
            .chunk_bytes = 256,
            .window_bytes = 4096,
            .runner = &shop.runner,
        });
        defer x.deinit();
        @memset(x.memory.shadow, 0xee);
        const order: base.Order = .of(&.full(2));
        x.begin(test_begin(1, &order, &.{}));
        x.opened(1, x.initial_credit());
        const header: wire.frame.Header = test_header(.{
            .kind = .final,
            .index = 1, // its sum begins here, and its owner is the other one
            .attempt = 1,
            .payload_bytes = 128,
            .reduced_attempt = 1,
        });
        const place = try x.place(&header, 1);
        @memset(place.bytes, 0x40);
        if (is_first) _ = x.arrived(&header, place.slot);
        var out = x.next(1);
        if (!is_first) _ = x.arrived(&header, place.slot);
        for (0..64) |_| {
            _ = shop.step();
            out = out orelse x.next(1);
        }
        while (shop.step()) {}
        try std.testing.expectEqual(1, (out orelse return error.Stuck).move.piece);
        const sent: []align(1) const u16 = @ptrCast(out.?.payload);
        for (sent) |value| try std.testing.expectEqual(0x3f80, value); // 1 as bf16
        x.halt();
        if (!x.restore()) x.end_now();
        for (input) |value| try std.testing.expectEqual(1, value);
    };
}

test "a small call reserves no places for jobs, which are done at once" {
    var shop: Shop = .{ .prng = .init(1) };
    shop.open();
    defer shop.deinit();
    shop.runner.bytes_min = 65 * 8;
    var pool = Pool.init(std.testing.allocator);
    defer pool.deinit();
    var input: [2000]u64 = @splat(1);
    for ([_]usize{ 64, 65, 2000 }, [_]usize{ 0, 1, 11 }, [_]u16{ 1, 1, 8 }) |count, places, ahead| {
        var x = try make(std.testing.allocator, &pool, .{
            .descriptor = test_descriptor(.broadcast, count),
            .arrays = &.{test_array(&input, .u64, count)},
            .roles = .{ .kind = .broadcast, .world_size = 2, .rank = 0 },
            .chunk_bytes = 256 * 1024,
            .window_bytes = 4 * 1024 * 1024,
            .runner = &shop.runner,
        });
        defer x.deinit();
        try std.testing.expectEqual(places, x.posts.all.len);
        try std.testing.expectEqual(ahead, x.board.ahead);
    }
}
