//! Floats: collectives of floats, with codecs and without: the contributions of users, the losses
//! of a codec that they carry on, and the results that must come out. All members must have the
//! bits that definition.zig gives. Residuals must be those that it gives, and only for calls that
//! succeeded. Other calls, and the common part of all calls: calls.zig.

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
const assert = std.debug.assert;

/// The residuals that a user carries on: for each tag, the residual of the last call of it that
/// succeeded.
pub const Residuals = struct {
    by_tag: [tags_max]?*Values = @splat(null),

    const tags_max = 4;
    /// Ranks have equal shards, and a user that is mistaken about the count calls with one more.
    const Values = [program.floats_max + 2 * base.limits.peers_max]f32;

    fn of(residuals: *Residuals, arena: std.mem.Allocator, tag: u64) *Values {
        const place = &residuals.by_tag[tag % tags_max];
        if (place.* == null) {
            place.* = arena.create(Values) catch @panic("out of memory");
            @memset(place.*.?, 0);
        }
        return place.*.?;
    }
};

/// `buffer` begins with element `first` of the operation.
pub fn fill(user: *const User, step: *const program.Step, first: u64, buffer: []u8) void {
    const dtype = step.dtype();
    const processes = user.world().config.processes_max();
    const digit = user.node.digit();
    const times = greatness(step);
    for (0..buffer.len / dtype.size()) |index| {
        const value = times * oracle.float_value(processes, step.key, digit, first + index);
        const place = buffer.ptr + index * dtype.size();
        kernels.from_f32(dtype, place, std.mem.asBytes(&value), 1);
    }
}

/// Some averages are of numbers whose sum is infinite: of a dtype, of a codec, or of f32.
fn greatness(step: *const program.Step) f32 {
    const floats = step.floats.?;
    if (step.op() != .avg or floats.feedback or oracle.has_specials(step.key)) return 1;
    if (step.key.hash() % 4 != 0) return 1;
    // Values are at most 15 of these. Decoded values may be greater than those that were encoded.
    const is_f16 = floats.dtype == .f16 or floats.codec.kind == .f16;
    if (is_f16) return if (floats.codec.kind.family() == .block) 0x1p10 else 0x1p12;
    return 0x1p122;
}

/// The buffers that a call lends for its residuals.
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
pub fn lend(user: *User, step: *const program.Step, elements: u64, owner: u32) ?Lent {
    const floats = step.floats orelse return null;
    if (!floats.feedback or floats.codec.kind == .none or elements == 0) return null;
    if (!step.kind.reduces()) return null;
    const world = user.world();
    // Members need not agree about it.
    if (!world.scripted and world.prng_users.chance(4)) return null;
    for (user.node.open_works.items) |work| {
        const in_doubt = work.state == .in_doubt or work.state == .resolved;
        const same = work.user == user and work.step.tag == step.tag;
        if (same and in_doubt and work.residual != null) return null;
    }
    const bytes: usize = @intCast(elements * @sizeOf(f32));
    const in = world.borrowed.lend(owner, bytes, 0) orelse return null;
    const out = world.borrowed.lend(owner, bytes, 4) orelse return null;
    const carried = user.residuals.of(world.gpa, step.tag);
    @memcpy(in, std.mem.sliceAsBytes(carried[0..@intCast(elements)]));
    @memset(out, 0xab);
    const before = world.gpa.dupe(u8, in) catch @panic("out of memory");
    return .{ .in = in, .out = out, .in_before = before };
}

/// The residual carried on is read, and never written, whatever becomes of the call.
pub fn check_input(work: *const Work) void {
    const lent = work.residual orelse return;
    if (std.mem.eql(u8, lent.in, lent.in_before)) return;
    work.node.world.checkers.fail(.p3_input_kept, "p{d}: the residual of {f} changed", .{
        work.node.index, work.name(),
    });
}

/// A result by its definition, as far as somebody has it.
pub const Known = struct {
    definition: Definition,
    /// Which attempt has reduced each chunk; 0 while nobody is known to have it.
    reduced: []u32,
    /// By digit; empty of whom did not contribute.
    lost: [][]f32,

    fn of(work: *Work) *Known {
        if (work.record.known) |known| return known;
        const gpa = work.node.world.gpa;
        const x = work.op.?.work.movement;
        const l = &x.board.ledger;
        const known = gpa.create(Known) catch @panic("out of memory");
        known.* = .{
            .definition = Definition.init(gpa, .{
                .kind = work.step.kind,
                .root = @intCast(work.step.root_rank),
                .world_size = work.op.?.member_ids().len,
                .dtype = work.step.dtype(),
                .op = work.step.op(),
                .partition = if (l.partition.is_uneven) whole(work) else l.partition,
                .operation = x.memory.operation,
            }) catch @panic("out of memory"),
            .reduced = gpa.alloc(u32, l.partition.chunks) catch @panic("out of memory"),
            .lost = gpa.alloc([]f32, work.record.calls.len) catch @panic("out of memory"),
        };
        // The movement's are gone with it.
        const partition = &known.definition.partition;
        partition.shards = gpa.dupe(collective.Shard, partition.shards) catch
            @panic("out of memory");
        assert(partition.chunks == x.board.ledger.partition.chunks);
        @memset(known.reduced, 0);
        @memset(known.lost, &.{});
        work.record.known = known;
        return known;
    }
};

/// The partition of an exchange of which each member knows a part, as if one knew all.
fn whole(work: *const Work) collective.Partition {
    const counts = work.layout.counts;
    const settings = &work.node.session.?.settings;
    const dtype = work.step.dtype();
    const gpa = work.node.world.gpa;
    const shards = gpa.alloc(collective.Shard, counts.len) catch @panic("out of memory");
    for (shards, counts) |*shard, elements| shard.* = .{
        .elements = elements,
        .dtype = dtype,
        .partial_bytes = @intCast(dtype.size()),
    };
    return .init(.{
        .shards = shards,
        .world_size = @intCast(work.op.?.member_ids().len),
        .chunk_bytes_max = settings.chunk_bytes,
        .window_bytes = settings.window_bytes,
        .codec = work.op.?.work.movement.board.ledger.partition.codec,
        .is_uneven = true,
    });
}

/// The call has succeeded: the user carries on what it has lost.
pub fn take(work: *Work) void {
    const lent = work.residual orelse return;
    const gpa = work.node.world.gpa;
    work.lost = gpa.dupe(u8, lent.out) catch @panic("out of memory");
    const carried = work.user.residuals.of(gpa, work.step.tag);
    @memcpy(std.mem.sliceAsBytes(carried[0 .. lent.out.len / @sizeOf(f32)]), lent.out);
}

/// Checks what a call that has succeeded holds.
pub fn check(work: *Work) void {
    const world = work.node.world;
    const x = work.op.?.work.movement;
    const known = Known.of(work);
    const d = &known.definition;
    count(work);
    for (0..d.partition.chunks) |index| {
        const chunk: u32 = @intCast(index);
        if (d.partition.pieces_of(chunk) == 0) continue;
        const audience = d.audience(chunk);
        const wanted = audience == null or audience == work.layout.rank;
        if (wanted and !learn(work, known, chunk)) return;
        // The one that a chunk is for says what was lost of it, and the two need not agree.
        if (!wanted and world.checkers.forgetful) continue;
        // Nobody gets it, so nothing was given and nothing is lost.
        const is_void = if (audience) |rank| !is_alive(work, rank) else false;
        const lost = known.lost[work.node.digit()];
        if (is_void) check_lost(work, d, chunk, in_before(work)) //
        else if (known.reduced[chunk] != 0 and d.source(chunk) == null)
            check_lost(work, d, chunk, std.mem.sliceAsBytes(lost));
        // Others who succeed are compared with the first.
        if (wanted and (work.record.won == null or work.step.kind.is_private()))
            check_bits(work, d, chunk, x.board.ledger.reduced[chunk] != 0);
        if (world.failed()) return;
    }
}

fn in_before(work: *const Work) []const u8 {
    return if (work.residual) |lent| lent.in_before else &.{};
}

fn is_alive(work: *const Work, rank: u16) bool {
    const op = work.op.?;
    return op.history.members(op.work.movement.board.attempt).has(rank);
}

/// False if the chunk was reduced in another attempt than another says, or there is none.
fn learn(work: *Work, known: *Known, chunk: u32) bool {
    const d = &known.definition;
    const attempt = work.op.?.work.movement.board.ledger.reduced[chunk];
    if (d.source(chunk)) |rank| {
        if (attempt == 0 or known.reduced[chunk] != 0) return true;
        known.reduced[chunk] = 1;
        const theirs = work_of(work, rank) orelse return false;
        d.carry(chunk, &.{
            .rank = rank,
            .values = theirs.send_before,
            .values_first = theirs.layout.send.first,
            .residual = &.{},
            .lost = &.{},
        });
        return true;
    }
    if (known.reduced[chunk] == attempt) return true;
    if (known.reduced[chunk] != 0) {
        work.node.world.checkers.fail(
            .p1_agreement,
            "p{d}: {f}: chunk {d} was reduced in another attempt than another says",
            .{ work.node.index, work.name(), chunk },
        );
        return false;
    }
    known.reduced[chunk] = attempt;
    return define(work, known, chunk);
}

fn check_bits(work: *const Work, d: *const Definition, chunk: u32, is_there: bool) void {
    const dtype = work.step.dtype();
    const width = dtype.size();
    const first = d.partition.chunk_offset(chunk);
    const end = d.partition.chunk_offset(@as(u64, chunk) + 1);
    for (@intCast(first)..@intCast(end)) |element| {
        const place: usize = @intCast(work.layout.place_of(&work.step, element));
        const got = work.recv[place * width ..][0..width];
        const wanted = d.bytes[element * width ..][0..width];
        const same = if (is_there) std.mem.eql(u8, wanted, got) else std.mem.allEqual(u8, got, 0);
        if (same) continue;
        return work.node.world.checkers.fail(
            .p5_same_bits,
            "p{d}: {f} element {d} is {d}, by definition {d}",
            .{
                work.node.index,
                work.name(),
                element,
                definition.value_at(dtype, work.recv, place),
                if (is_there) definition.value_at(dtype, d.bytes, element) else 0,
            },
        );
    }
}

/// Checks what this peer has lost of a chunk, if it has succeeded and carries that on.
fn check_lost(work: *const Work, d: *const Definition, chunk: u32, wanted: []const u8) void {
    if (work.lost.len == 0) return;
    const first: usize = @intCast(d.partition.chunk_offset(chunk) * @sizeOf(f32));
    const end: usize = @intCast(d.partition.chunk_offset(@as(u64, chunk) + 1) * @sizeOf(f32));
    const apart = std.mem.indexOfDiff(u8, wanted[first..end], work.lost[first..end]) orelse return;
    const element = (first + apart) / @sizeOf(f32);
    work.node.world.checkers.fail(
        .residuals,
        "p{d}: {f} element {d} has lost {d}, by definition {d}",
        .{
            work.node.index,
            work.name(),
            element,
            definition.value_at(.f32, work.lost, element),
            definition.value_at(.f32, wanted, element),
        },
    );
}

fn count(work: *const Work) void {
    const statistics = work.node.world.statistics;
    const op = work.op.?;
    statistics.floats += 1;
    if (work.step.codec().kind == .none) return;
    statistics.encoded += 1;
    if (work.step.kind != .all_reduce) statistics.encoded_other += 1;
    if (op.op.attempts > 1) statistics.encoded_retried += 1;
    if (op.range_count() > 1) statistics.encoded_split += 1;
    if (work.residual != null) statistics.residuals += 1;
}

fn define(work: *Work, known: *Known, chunk: u32) bool {
    const world = work.node.world;
    const d = &known.definition;
    const attempt = known.reduced[chunk];
    const found = contributors_of(work, known, attempt) orelse return false;
    d.reduce(chunk, found.taken, found.contributors);
    // For a result that one peer has, others who contributed may have succeeded before.
    for (work.record.calls, known.lost) |*call, lost| {
        const other = call.work orelse continue;
        if (lost.len > 0 and !world.checkers.forgetful)
            check_lost(other, d, chunk, std.mem.sliceAsBytes(lost));
        if (world.failed()) return false;
    }
    // The kernels say what codecs make of infinities.
    if (oracle.has_specials(work.step.key)) return true;
    const wrong = d.unaccounted(chunk, found.contributors) orelse return true;
    world.checkers.fail(.p4_contributors, "{f} element {d}: {d} went in, {d} came out", .{
        work.name(), wrong.element, wrong.went_in, wrong.came_out,
    });
    return false;
}

const Found = struct {
    taken: collective.Schedule.Taken,
    contributors: []const definition.Contributor,
};

/// The call of a rank, which must have been made.
fn work_of(work: *const Work, rank: u16) ?*const Work {
    const world = work.node.world;
    const digit = calls.digit_of(world, work.op.?.member_ids()[rank]);
    const call = if (digit) |of_it| &work.record.calls[of_it] else null;
    if (call) |its| if (its.work) |other| return other;
    world.checkers.fail(.p4_contributors, "{f}: rank {d} contributed, and never called", .{
        work.name(), rank,
    });
    return null;
}

/// The members of an attempt, by position.
fn contributors_of(work: *const Work, known: *Known, attempt: u32) ?Found {
    const world = work.node.world;
    const key = work.step.key;
    const op = work.op.?;
    const paths = world.checkers.paths_of(key.group, op.op.epoch, attempt) orelse {
        world.checkers.fail(.views, "{f}: nobody has seen attempt {d}", .{ fmt_key(key), attempt });
        return null;
    };
    const bytes = known.definition.partition.bytes;
    const taken = collective.Schedule.along(paths, &op.op.descriptor, bytes);
    var order = paths.order;
    const ranks = order.ranks[0..order.count];
    if (taken.schedule == .direct) std.mem.sort(u16, ranks, {}, std.sort.asc(u16));
    const contributors = world.gpa.alloc(definition.Contributor, order.count) catch
        @panic("out of memory");
    for (order.slice(), contributors) |rank, *contributor| {
        const theirs = work_of(work, rank) orelse return null;
        contributor.* = contributor_of(theirs, known, rank, paths.hubs.has(rank));
    }
    return .{ .taken = taken, .contributors = contributors };
}

fn contributor_of(
    work: *const Work,
    known: *Known,
    rank: u16,
    is_hub: bool,
) definition.Contributor {
    const gpa = work.node.world.gpa;
    const elements: usize = @intCast(known.definition.partition.count);
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
