//! Shards: which elements of a call this peer lends: all of them, those of its own rank alone, or
//! none; and what must be in shards that each come from one rank. Other calls, and the common part
//! of all calls: calls.zig.

const std = @import("std");
const base = @import("base");
const calls = @import("calls.zig");
const checkers_file = @import("checkers.zig");
const oracle = @import("oracle.zig");
const program = @import("program.zig");
const fmt_key = checkers_file.fmt_key;
const Step = program.Step;
const Work = calls.Work;

/// Elements [first, first + count) of the operation.
pub const Part = struct {
    first: u64 = 0,
    count: u64 = 0,

    fn end(part: Part) u64 {
        return part.first + part.count;
    }
};

/// The memory that a peer lends to a call.
pub const Layout = struct {
    send: Part,
    /// In an all_to_all, the first of the elements; the others are not behind it.
    recv: Part,
    rank: u16,
    /// Elements of each rank's shard, or of each two ranks' where they differ in an all_to_all; one
    /// entry for a call without shards.
    counts: []const u64,
    /// For each of those, so many.
    times: usize = 1,

    pub fn total(layout: *const Layout) u64 {
        var sum: u64 = 0;
        for (layout.counts) |count| sum += count;
        return sum * layout.times;
    }

    pub fn shard(layout: *const Layout, rank: usize) Part {
        var first: u64 = 0;
        for (layout.counts[0..rank]) |count| first += count;
        return .{ .first = first, .count = layout.counts[rank] };
    }

    pub fn of(gpa: std.mem.Allocator, step: *const Step, rank: u16, world_size: usize) Layout {
        if (step.kind == .all_to_all and step.uneven) return of_pairs(gpa, step, rank, world_size);
        const ranks = if (step.kind.has_shards()) world_size else 1;
        const counts = gpa.alloc(u64, ranks) catch @panic("out of memory");
        for (counts, 0..) |*count, index| count.* = count_of(step, index);
        var layout: Layout = .{ .send = .{}, .recv = .{}, .rank = rank, .counts = counts };
        if (step.kind == .all_to_all) layout.times = world_size;
        const all: Part = .{ .count = layout.total() };
        const at_root = if (rank == step.root_rank) all else Part{};
        const row = all.count / world_size;
        layout.send = switch (step.kind) {
            .all_gather, .gather => layout.shard(rank),
            .scatter => at_root,
            .all_to_all => .{ .first = row * rank, .count = row },
            .send_recv => if (rank == step.pair.?.src) all else .{},
            else => all,
        };
        layout.recv = switch (step.kind) {
            .reduce_scatter, .scatter => layout.shard(rank),
            .reduce, .gather => at_root,
            .all_to_all => .{ .first = step.count * @as(u64, rank), .count = row },
            .send_recv => if (rank == step.pair.?.dst) all else .{},
            else => all,
        };
        return layout;
    }

    fn of_pairs(gpa: std.mem.Allocator, step: *const Step, rank: u16, ranks: usize) Layout {
        const counts = gpa.alloc(u64, ranks * ranks) catch @panic("out of memory");
        var layout: Layout = .{ .send = .{}, .recv = .{}, .rank = rank, .counts = counts };
        for (counts, 0..) |*count, index| {
            const from = index / ranks;
            const to = index % ranks;
            count.* = count_of_pair(step, from, to);
            if (from < rank) layout.send.first += count.*;
            if (from == rank) layout.send.count += count.*;
            if (to == rank) layout.recv.count += count.*;
        }
        return layout;
    }

    /// The elements that an uneven all_to_all sends to each rank and wants of each.
    pub fn exchanged(layout: *const Layout, to: []u64, from: []u64) void {
        const ranks = to.len;
        for (to, from, 0..) |*sent, *received, rank| {
            sent.* = layout.counts[layout.rank * ranks + rank];
            received.* = layout.counts[rank * ranks + layout.rank];
        }
    }

    /// Where an element of the result of an uneven all_to_all comes from.
    fn origin_of_pair(layout: *const Layout, index: u64) Origin {
        const ranks = std.math.sqrt(layout.counts.len);
        var left = index;
        for (0..ranks) |rank| {
            const pair = rank * ranks + layout.rank;
            if (left < layout.counts[pair])
                return .{ .rank = @intCast(rank), .element = layout.shard(pair).first + left };
            left -= layout.counts[pair];
        }
        unreachable;
    }

    /// From which rank an element comes that this peer receives, and which one of all it is.
    fn origin(layout: *const Layout, step: *const Step, index: u64) Origin {
        switch (step.kind) {
            .all_gather, .gather => return .{ .rank = layout.rank_at(index), .element = index },
            .scatter => return .{
                .rank = @intCast(step.root_rank),
                .element = layout.recv.first + index,
            },
            .all_to_all => {
                if (step.uneven) return layout.origin_of_pair(index);
                const rank = index / step.count;
                const row = rank * layout.recv.count;
                return .{
                    .rank = @intCast(rank),
                    .element = row + layout.recv.first + index % step.count,
                };
            },
            .send_recv => return .{ .rank = step.pair.?.src, .element = index },
            else => unreachable,
        }
    }

    const Origin = struct { rank: u16, element: u64 };

    /// Where this peer receives an element of the operation.
    pub fn place_of(layout: *const Layout, step: *const Step, element: u64) u64 {
        if (step.kind != .all_to_all) return element - layout.recv.first;
        if (step.uneven) return layout.place_of_pair(element);
        return element / layout.recv.count * step.count + element % step.count;
    }

    fn place_of_pair(layout: *const Layout, element: u64) u64 {
        const ranks = std.math.sqrt(layout.counts.len);
        const pair = layout.rank_at(element);
        var place = element - layout.shard(pair).first;
        for (0..pair / ranks) |rank| place += layout.counts[rank * ranks + layout.rank];
        return place;
    }

    fn rank_at(layout: *const Layout, element: u64) u16 {
        var end: u64 = 0;
        for (layout.counts, 0..) |count, rank| {
            end += count;
            if (element < end) return @intCast(rank);
        }
        unreachable;
    }

    /// Elements of the two buffers, or of both together.
    pub fn lent(layout: *const Layout, in_place: bool) [2]u64 {
        if (!in_place) return .{ layout.send.count, layout.recv.count };
        const first = @min(layout.send.first, layout.recv.first);
        return @splat(@max(layout.send.end(), layout.recv.end()) - first);
    }

    /// Bytes of the buffers when one of them lies in the other.
    pub fn together(layout: *const Layout, memory: []u8, width: usize) [2][]u8 {
        const first = @min(layout.send.first, layout.recv.first);
        var parts: [2][]u8 = undefined;
        for (&parts, [2]Part{ layout.send, layout.recv }) |*part, place| {
            const start: usize = @intCast((place.first - first) * width);
            part.* = memory[start..][0..@intCast(place.count * width)];
        }
        return parts;
    }
};

/// Elements of a rank's shard: `count`, or some of that many, perhaps none.
fn count_of(step: *const Step, rank: usize) u64 {
    if (!step.uneven) return step.count;
    var prng = base.Prng.init(step.key.hash() ^ rank);
    return if (prng.chance(4)) 0 else prng.between(0, step.count);
}

/// Elements of the shard that one rank has for another. Whoever is mistaken about `count` is so
/// about each of these that is not always empty, and of those between two ranks one is not.
fn count_of_pair(step: *const Step, from: usize, to: usize) u64 {
    var prng = base.Prng.init(step.key.hash() ^ (from << 8 | to));
    if (from < to and prng.chance(3)) return 0;
    return step.count * prng.between(1, 2);
}

/// The request of a peer, if nothing else differs.
pub fn hash_into(hash: *std.hash.Wyhash, layout: *const Layout) void {
    hash.update(std.mem.sliceAsBytes(layout.counts));
}

/// Every shard is its source's, or was lost with it: then it is zeros.
pub fn check_gathered(work: *const Work) void {
    const world = work.node.world;
    const checkers = &world.checkers;
    const key = work.step.key;
    const ids = work.op.?.member_ids();
    var seen: [base.limits.peers_max]Seen = @splat(.{});
    var at: u64 = 0;
    var it = work.op.?.ranges();
    while (it.next()) |range| {
        if (range.begin != at or range.end <= range.begin) return checkers.fail(
            .p4_contributors,
            "p{d}: ranges of {f} do not tile the elements",
            .{ work.node.index, fmt_key(key) },
        );
        at = range.end;
        for (range.begin..range.end) |element| {
            const origin = work.layout.origin(&work.step, element);
            const rank = origin.rank;
            const listed = range.contributors.has(rank);
            if (listed) seen[rank].there = true else seen[rank].missing = true;
            if (work.step.floats != null) continue; // looked at as a whole
            const wanted = if (listed) blk: {
                const digit = calls.digit_of(world, ids[rank]) orelse return checkers.fail(
                    .p4_contributors,
                    "{f}: rank {d} is no peer",
                    .{ fmt_key(key), rank },
                );
                break :blk oracle.broadcast_value(key, digit, origin.element);
            } else 0;
            const value = std.mem.readInt(u64, work.recv[element * 8 ..][0..8], .little);
            if (value != wanted) return checkers.fail(
                .p4_contributors,
                "p{d}: {f} element {d} is {x}, not {x} of rank {d}",
                .{ work.node.index, fmt_key(key), element, value, wanted, rank },
            );
        }
    }
    if (at != work.layout.recv.count) return checkers.fail(
        .p4_contributors,
        "p{d}: ranges of {f} end at {d} of {d}",
        .{ work.node.index, fmt_key(key), at, work.layout.recv.count },
    );
    const alive = work.op.?.history.members(work.op.?.work.movement.board.attempt);
    for (seen[0..ids.len], 0..) |*shard, rank| {
        if (!shard.missing) continue;
        const whole = !shard.there or work.step.recovery == .resume_chunks;
        const may_miss = work.step.kind != .send_recv and work.step.recovery != .complete;
        if (may_miss and whole and !alive.has(rank)) continue;
        return checkers.fail(.p4_contributors, "p{d}: {f}: the shard of rank {d} is missing{s}", .{
            work.node.index, work.name(), rank, if (whole) "" else " in part",
        });
    }
}

/// The parts seen of a rank's shard.
const Seen = struct { there: bool = false, missing: bool = false };
