//! Floats: all_reduces of floats, with codecs and without: what users contribute, what they carry
//! on of what a codec has lost, and what must come out: the bits that definition.zig says, on all
//! members, and the residuals that it says, of calls that succeeded only. Other calls, and what all
//! have in common: calls.zig.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const kernels = @import("kernels");
const calls = @import("calls.zig");
const checkers_file = @import("checkers.zig");
const definition = @import("definition.zig");
const oracle = @import("oracle.zig");
const program = @import("program.zig");
const fmt_key = checkers_file.fmt_key;
const Definition = definition.Definition;
const Node = @import("world.zig").Node;
const User = @import("users.zig").User;
const Work = calls.Work;

/// What a user carries on: for each tag, the residual of the last call of it that succeeded.
pub const Residuals = struct {
    by_tag: [tags_max]?*Values = @splat(null),

    const tags_max = 4;
    /// A user that is mistaken about the count may call with one more.
    const Values = [program.floats_max + 1]f32;

    fn of(residuals: *Residuals, arena: std.mem.Allocator, tag: u64) *Values {
        const place = &residuals.by_tag[tag % tags_max];
        if (place.* == null) {
            place.* = arena.create(Values) catch @panic("out of memory");
            @memset(place.*.?, 0);
        }
        return place.*.?;
    }
};

pub fn fill(step: *const program.Step, digit: u8, buffer: []u8) void {
    const dtype = step.dtype();
    for (0..step.count) |element| {
        const value = oracle.float_value(step.key, digit, element);
        const place = buffer.ptr + element * dtype.size();
        kernels.from_f32(dtype, place, std.mem.asBytes(&value), 1);
    }
}

/// What a call lends for its residuals.
pub const Lent = struct {
    in: []u8,
    out: []u8,
    in_before: []const u8,

    pub fn native(lent: *const Lent) kernels.Residual {
        return .{ .in = lent.in.ptr, .out = lent.out.ptr };
    }
};

/// Null: this call does without, because of its step, because the user likes it so, or because a
/// call of this tag is in doubt.
pub fn lend(user: *User, step: *const program.Step, owner: u32) ?Lent {
    const floats = step.floats orelse return null;
    if (!floats.feedback or floats.codec.kind == .none or step.count == 0) return null;
    const world = user.world();
    // Members need not agree about it.
    if (!world.scripted and world.prng_users.chance(4)) return null;
    for (user.node.open_works.items) |work| {
        const in_doubt = work.state == .in_doubt or work.state == .resolved;
        const same = work.user == user and work.step.tag == step.tag;
        if (same and in_doubt and work.residual != null) return null;
    }
    const bytes = step.count * @sizeOf(f32);
    const in = world.borrowed.lend(owner, bytes, 0) orelse return null;
    const out = world.borrowed.lend(owner, bytes, 4) orelse return null;
    const carried = user.residuals.of(world.gpa, step.tag);
    @memcpy(in, std.mem.sliceAsBytes(carried[0..step.count]));
    @memset(out, 0xab);
    const before = world.gpa.dupe(u8, in) catch @panic("out of memory");
    return .{ .in = in, .out = out, .in_before = before };
}

/// What is carried on is read, and never written, whatever becomes of the call.
pub fn check_input(work: *const Work) void {
    const lent = work.residual orelse return;
    if (std.mem.eql(u8, lent.in, lent.in_before)) return;
    work.node.world.checkers.fail(.p3_input_kept, "p{d}: the residual of {f} changed", .{
        work.node.index, work.name(),
    });
}

/// A result by its definition.
pub const Known = struct {
    /// Which attempt has reduced each chunk.
    reduced: []const u32,
    bytes: []const u8,
    /// By digit; empty of whom did not contribute.
    lost: [oracle.digits][]f32 = @splat(&.{}),
};

/// The call has succeeded.
pub fn check(work: *Work) void {
    const checkers = &work.node.world.checkers;
    const x = &work.op.?.executor;
    const known = work.record.known orelse blk: {
        const made = define(work) orelse return;
        work.record.known = made;
        break :blk made;
    };
    if (!std.mem.eql(u32, known.reduced, x.chunk_reduced)) return checkers.fail(
        .p1_agreement,
        "p{d}: {f}: its chunks were reduced in other attempts than another says",
        .{ work.node.index, work.name() },
    );
    count(work);
    // Others who succeed are compared with the first.
    if (work.record.won == null and !std.mem.eql(u8, known.bytes, work.recv)) {
        const dtype = work.step.dtype();
        const element = differing(known.bytes, work.recv, dtype.size());
        return checkers.fail(.p5_same_bits, "p{d}: {f} element {d} is {d}, by definition {d}", .{
            work.node.index,
            work.name(),
            element,
            definition.value_at(dtype, work.recv, element),
            definition.value_at(dtype, known.bytes, element),
        });
    }
    const lent = work.residual orelse return;
    const lost = std.mem.sliceAsBytes(known.lost[work.node.digit()]);
    if (!std.mem.eql(u8, lost, lent.out)) {
        const element = differing(lost, lent.out, @sizeOf(f32));
        return checkers.fail(.residuals, "p{d}: {f} element {d} has lost {d}, by definition {d}", .{
            work.node.index,
            work.name(),
            element,
            definition.value_at(.f32, lent.out, element),
            definition.value_at(.f32, lost, element),
        });
    }
    const carried = work.user.residuals.of(work.node.world.gpa, work.step.tag);
    @memcpy(std.mem.sliceAsBytes(carried[0..work.step.count]), lent.out);
}

fn differing(a: []const u8, b: []const u8, width: usize) usize {
    return (std.mem.indexOfDiff(u8, a, b) orelse 0) / width;
}

fn count(work: *const Work) void {
    const statistics = work.node.world.statistics;
    const op = work.op.?;
    statistics.floats += 1;
    if (work.step.codec().kind == .none) return;
    statistics.encoded += 1;
    if (op.op.attempts > 1) statistics.encoded_retried += 1;
    if (op.range_count() > 1) statistics.encoded_split += 1;
    if (work.residual != null) statistics.residuals += 1;
}

fn define(work: *Work) ?*const Known {
    const world = work.node.world;
    const x = &work.op.?.executor;
    const gpa = world.gpa;
    const known = gpa.create(Known) catch @panic("out of memory");
    const d = Definition.init(gpa, .{
        .dtype = work.step.dtype(),
        .op = if (work.step.average) .avg else .sum,
        .partition = x.partition,
        .operation = x.operation,
    }) catch @panic("out of memory");
    known.* = .{
        .reduced = gpa.dupe(u32, x.chunk_reduced) catch @panic("out of memory"),
        .bytes = d.bytes,
    };
    for (known.reduced, 0..) |attempt, index| {
        const chunk: u32 = @intCast(index);
        var storage: [oracle.digits]definition.Contributor = undefined;
        const found = contributors_of(work, known, attempt, &storage) orelse return null;
        d.reduce(chunk, found.schedule, found.contributors);
        // What codecs make of infinities is the kernels' to say.
        if (oracle.has_specials(work.step.key)) continue;
        const wrong = d.unaccounted(chunk, found.contributors) orelse continue;
        world.checkers.fail(.p4_contributors, "{f} element {d}: {d} went in, {d} came out", .{
            work.name(), wrong.element, wrong.went_in, wrong.came_out,
        });
        return null;
    }
    return known;
}

const Found = struct {
    schedule: collective.Schedule,
    contributors: []const definition.Contributor,
};

/// Who took part in an attempt, by position.
fn contributors_of(
    work: *const Work,
    known: *Known,
    attempt: u32,
    storage: *[oracle.digits]definition.Contributor,
) ?Found {
    const world = work.node.world;
    const key = work.step.key;
    const op = work.op.?;
    const paths = world.checkers.paths_of(key.group, op.op.epoch, attempt) orelse {
        world.checkers.fail(.views, "{f}: nobody has seen attempt {d}", .{ fmt_key(key), attempt });
        return null;
    };
    const schedule: collective.Schedule = if (!paths.has_ring)
        .direct
    else if (paths.hubs.is_empty()) .ring else op.schedule;
    var order = paths.order;
    if (schedule == .direct) std.mem.sort(u16, order.ranks[0..order.count], {}, std.sort.asc(u16));
    for (order.slice(), storage[0..order.count]) |rank, *contributor| {
        const digit = calls.digit_of(world, op.member_ids()[rank]);
        const call = if (digit) |of_it| &work.record.calls[of_it] else null;
        const other = if (call) |its| its.work else null;
        const theirs: *const Work = other orelse {
            world.checkers.fail(.p4_contributors, "{f}: rank {d} contributed, and never called", .{
                fmt_key(key), rank,
            });
            return null;
        };
        contributor.* = contributor_of(theirs, known, rank, paths.hubs.has(rank));
    }
    return .{ .schedule = schedule, .contributors = storage[0..order.count] };
}

fn contributor_of(
    work: *const Work,
    known: *Known,
    rank: u16,
    is_hub: bool,
) definition.Contributor {
    const gpa = work.node.world.gpa;
    const elements = work.step.count;
    const residual = gpa.alloc(f32, elements) catch @panic("out of memory");
    @memset(residual, -0.0); // the number that changes none when it is added
    if (work.residual) |lent| @memcpy(std.mem.sliceAsBytes(residual), lent.in_before);
    const lost = &known.lost[work.node.digit()];
    if (lost.len == 0) lost.* = gpa.alloc(f32, elements) catch @panic("out of memory");
    return .{
        .rank = rank,
        .is_hub = is_hub,
        .values = work.send_before,
        .residual = residual,
        .lost = lost.*,
    };
}

/// After every call into a node: what its operations can take now.
pub fn observe(node: *Node) void {
    for (node.open_works.items) |work| {
        if (work.step.floats == null or work.step.count == 0) continue;
        if (work.state != .running and work.state != .in_doubt) continue;
        const op = work.op orelse continue;
        const epoch = work.group.member.epoch_of(op.op.epoch) orelse continue;
        if (epoch.attempt == work.seen_attempt) continue;
        work.seen_attempt = epoch.attempt;
        node.world.checkers.paths_seen(.{
            .group = work.step.key.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
        }, &epoch.paths, node.digit());
    }
}
