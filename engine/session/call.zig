//! Call: one description of a call, from its caller to the end of the operation: what it asks for,
//! the checks of what depends on the membership, and what follows from it: roles and sizes, the
//! memory that it uses, and the descriptor, which is the part that other members see. Built once,
//! as the call begins (calls.zig); data movement gets its options from here.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const collective = @import("collective");
const kernels = @import("kernels");
const outline = @import("outline.zig");
const Span = @import("uses.zig").Span;
const Uses = @import("uses.zig").Uses;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;
const assert = std.debug.assert;

pub const Array = struct {
    /// Null where nothing is sent, or received.
    send: ?[*]const u8 = null,
    recv: ?[*]u8 = null,
    /// Where ranks have shards: of one shard.
    count: u64 = 0,
    dtype: base.DType = .u8,
};

pub const Call = struct {
    kind: control.OpKind,
    /// For the one array, as in Array.
    send: ?[*]const u8 = null,
    recv: ?[*]u8 = null,
    count: u64 = 0,
    /// For each rank's shard of the one array, where they differ.
    counts: ?[]const u64 = null,
    /// For an all_to_all whose shards differ: those for each rank, and from each rank.
    exchanged: ?collective.Exchanged = null,
    dtype: base.DType = .u8,
    /// Several arrays, instead of the one.
    arrays: []const Array = &.{},
    /// 0, or a hash of what the arrays are to the caller, in which all members must agree. A
    /// message and an exchange of shards that differ have none.
    form: u64 = 0,
    op: base.ReduceOp = .sum,
    root_rank: u32 = 0,
    /// In a message: which part of it this is, and the rank that has the other.
    part: Part = .send,
    partner_rank: u32 = 0,
    recovery: ?control.Recovery = null,
    codec: base.Codec = .none,
    residual: ?kernels.Residual = null,
    plan: base.Plan = .auto,
    /// The rules of the state, in a sync.
    rules: control.StateRules = .{},
    tag: u64 = 0,
    purpose: Purpose = .data,
    deadline: Instant,

    /// The user's data, or an agreement of the members (vote.zig).
    pub const Purpose = enum { data, safe_point, pending };
    pub const Part = enum { send, recv };

    fn list(call: *const Call, one: *Array) []const Array {
        if (call.arrays.len > 0) return call.arrays;
        one.* = .{
            .send = call.send,
            .recv = call.recv,
            .count = call.count,
            .dtype = call.dtype,
        };
        return one[0..1];
    }

    pub fn is_even(call: *const Call) bool {
        return call.counts == null and call.exchanged == null;
    }

    fn elements(call: *const Call, array: *const Array) collective.Elements {
        if (call.counts) |counts| return .{ .of_ranks = counts };
        if (call.exchanged) |exchanged| return .{ .exchanged = exchanged };
        return .{ .each = array.count };
    }

    /// For a message whose partner_rank has been checked.
    fn pair(call: *const Call, own: u16) base.Pair {
        const other: u16 = @intCast(call.partner_rank);
        return switch (call.part) {
            .send => .{ .src = own, .dst = other },
            .recv => .{ .src = other, .dst = own },
        };
    }
};

pub const CallError = protocol.Member.StartError || error{
    Left,
    RootOutOfRange,
    /// In a message.
    PartnerOutOfRange,
    PartnerIsSelf,
    /// In a message, whose tag has less room.
    TagTooLarge,
    /// Not one count for each rank.
    CountsOfAnotherWorld,
    /// An all_to_all has a shard for each two ranks, and no more shards than chunks.
    TooManyRanks,
    /// An all_to_all has one number for what this rank sends itself, and another for what it
    /// receives.
    OwnCountsDiffer,
    /// All shards together have more elements than an operation may have.
    TooManyElements,
    /// No more shards, of all arrays and ranks, than chunks.
    TooManyArrays,
    /// This rank needs a buffer that is not there.
    SendMissing,
    RecvMissing,
    BeyondMemory,
    /// The sent and received elements are neither apart nor the same.
    BuffersOverlap,
    /// One array's place is that of another, and written.
    ArraysOverlap,
    /// The residual to come lies in another buffer.
    ResidualOverlaps,
    /// The residual of before lies where the result is written.
    ResidualInWritten,
    /// Tags from limits.pair_tags_first on are those of messages and of shared states.
    TagReserved,
    /// An operation in flight writes a buffer of this call, or uses one that it would write.
    BufferInUse,
};

/// A call of a member, checked, and what follows from it.
pub const Built = struct {
    call: *const Call,
    arrays: []const Array,
    roles: collective.Roles,
    /// Elements of all arrays.
    count: u64,
    /// The tag that the operation is numbered under.
    tag: u64,
    /// The caller's memory. Whoever has it built gives it back, if there is no operation of it.
    uses: Uses,
    descriptor: control.Descriptor,

    /// `one` is the list of a call that has one array. The arguments have been checked, except for
    /// what depends on the membership.
    pub fn init(
        gpa: Allocator,
        member: *const protocol.Member,
        call: *const Call,
        tag: u64,
        one: *Array,
    ) CallError!Built {
        const epoch = member.current.?;
        if (call.root_rank >= epoch.world_size()) return error.RootOutOfRange;
        const arrays = call.list(one);
        const roles = roles_of(epoch, call);
        assert(call.codec.kind == .none or call.kind.has_codecs());
        if (call.kind.reduces()) for (arrays) |*array| assert(call.op.takes(array.dtype));
        assert(call.residual == null or (call.codec.kind != .none and call.kind.reduces()));
        const count = try count_of(call, &roles, arrays);
        return .{
            .call = call,
            .arrays = arrays,
            .roles = roles,
            .count = count,
            .tag = tag,
            .uses = try uses_of(gpa, call, &roles, arrays, count),
            .descriptor = descriptor_of(member, call, arrays, count),
        };
    }

    /// A sync of a state, which uses this memory.
    pub fn sync(member: *const protocol.Member, call: *const Call, uses: Uses) Built {
        return .{
            .call = call,
            .arrays = &.{.{}},
            .roles = roles_of(member.current.?, call),
            .count = 0,
            .tag = call.tag,
            .uses = uses,
            .descriptor = descriptor_of(member, call, &.{.{}}, 0),
        };
    }

    /// `moved` is room for the arrays; `nothing` stands for one that is not there.
    pub fn options(
        built: *const Built,
        member: *const protocol.Member,
        settings: *const control.Welcome,
        moved: []collective.Array,
        nothing: [*]u8,
    ) collective.Options {
        const call = built.call;
        for (moved, built.arrays) |*to, *array| to.* = .{
            .send = array.send orelse nothing,
            .recv = array.recv orelse nothing,
            .dtype = array.dtype,
            .count = if (call.counts == null) array.count * built.roles.parts() else built.count,
        };
        return .{
            .descriptor = built.descriptor,
            .arrays = moved,
            .residual = call.residual,
            .elements = if (call.is_even()) null else call.elements(&built.arrays[0]),
            .operation = number_of(member.current.?.number, member.next_id(built.tag)),
            .roles = built.roles,
            .chunk_bytes = settings.chunk_bytes,
            .window_bytes = settings.window_bytes,
        };
    }
};

fn descriptor_of(
    member: *const protocol.Member,
    call: *const Call,
    arrays: []const Array,
    count: u64,
) control.Descriptor {
    const listed = Listed.of(call, arrays);
    return .{
        .kind = call.kind,
        .dtype = arrays[0].dtype,
        .op = call.op,
        .recovery = call.recovery orelse .default(call.kind, call.op),
        .codec = call.codec,
        .plan = call.plan,
        .uneven = call.exchanged != null,
        .count = if (call.exchanged == null) count else 0,
        .arrays = if (arrays.len > 1) @intCast(arrays.len) else 0,
        .counts = if (listed) |items|
            outline.hash(items, call.form, &.{})
        else
            call.form,
        .outline = if (listed) |items| items.sums().outline else .{},
        .root = if (call.kind.has_root()) member.current.?.ids[call.root_rank] else .none,
        .rules = call.rules,
        .safe_points = member.safe_points,
    };
}

/// The tag that the operation is numbered under.
pub fn tag_of(member: *const protocol.Member, call: *const Call) CallError!u64 {
    switch (call.purpose) {
        .data => {},
        .safe_point => return limits.admit_tag,
        .pending => return limits.pending_tag,
    }
    if (call.kind != .send_recv) {
        if (call.tag >= limits.pair_tags_first) return error.TagReserved;
        return call.tag;
    }
    if (call.tag >= limits.pair_user_tags) return error.TagTooLarge;
    const epoch = member.current orelse return error.NotAdmitted;
    if (call.partner_rank >= epoch.world_size()) return error.PartnerOutOfRange;
    if (call.partner_rank == epoch.rank) return error.PartnerIsSelf;
    return call.pair(epoch.rank).tag(call.tag);
}

/// As many chunks are wanted as there are pairs; and what is uneven goes straight to its rank.
pub fn all_to_all_ranks_max(uneven: bool) u32 {
    return if (uneven) collective.direct_members_max else std.math.sqrt(limits.chunks_max);
}

fn roles_of(epoch: anytype, call: *const Call) collective.Roles {
    return .{
        .kind = call.kind,
        .world_size = epoch.world_size(),
        .rank = epoch.rank,
        .root = @intCast(call.root_rank),
        .pair = if (call.kind == .send_recv) call.pair(epoch.rank) else .{ .src = 0, .dst = 0 },
    };
}

/// Elements of all arrays, if they are not too many.
fn count_of(
    call: *const Call,
    roles: *const collective.Roles,
    arrays: []const Array,
) CallError!u64 {
    if (call.counts) |counts| try check_counts(counts, roles);
    if (call.exchanged) |*exchanged| {
        try check_counts(exchanged.send, roles);
        try check_counts(exchanged.recv, roles);
        if (exchanged.send[roles.rank] != exchanged.recv[roles.rank])
            return error.OwnCountsDiffer;
    }
    assert(call.counts == null or (call.kind != .all_to_all and arrays.len == 1));
    assert(call.exchanged == null or (call.kind == .all_to_all and arrays.len == 1));
    const ranks_max = all_to_all_ranks_max(call.exchanged != null);
    if (call.kind == .all_to_all and roles.world_size > ranks_max) return error.TooManyRanks;
    if (arrays.len * roles.parts() > limits.chunks_max) return error.TooManyArrays;
    var total: u64 = 0;
    for (arrays) |*array| total +|= call.elements(array).total(roles);
    if (total > limits.elements_max) return error.TooManyElements;
    return total;
}

fn check_counts(counts: []const u64, roles: *const collective.Roles) CallError!void {
    if (counts.len != roles.world_size) return error.CountsOfAnotherWorld;
}

/// The memory that a call reads and writes, array by array.
fn uses_of(
    gpa: Allocator,
    call: *const Call,
    roles: *const collective.Roles,
    arrays: []const Array,
    count: u64,
) CallError!Uses {
    var uses: Uses = .{};
    errdefer uses.deinit(gpa);
    try uses.reserve(gpa, 3 * arrays.len + 2);
    var before: Span = .{};
    var after: Span = .{};
    if (call.residual) |residual| {
        const bytes: usize = @intCast(count * @sizeOf(f32));
        before = .{ .start = @intFromPtr(residual.in), .bytes = bytes };
        after = .{ .start = @intFromPtr(residual.out), .bytes = bytes };
        for ([_]Span{ before, after }) |span|
            _ = std.math.add(usize, span.start, span.bytes) catch return error.BeyondMemory;
        if (before.meets(after)) return error.ResidualOverlaps;
    }
    for (arrays) |*array| {
        const elements = call.elements(array);
        const sizes: collective.Sizes = .of(&elements, roles);
        const width = array.dtype.size();
        const send_bytes: usize = @intCast(sizes.send * width);
        const recv_bytes: usize = @intCast(sizes.recv * width);
        if (sizes.send > 0 and array.send == null) return error.SendMissing;
        if (sizes.recv > 0 and array.recv == null) return error.RecvMissing;
        const from: Span = .{ .start = @intFromPtr(array.send), .bytes = send_bytes };
        const to: Span = .{ .start = @intFromPtr(array.recv), .bytes = recv_bytes };
        for ([_]Span{ from, to }) |span|
            _ = std.math.add(usize, span.start, span.bytes) catch return error.BeyondMemory;
        if (after.meets(from) or after.meets(to)) return error.ResidualOverlaps;
        if (before.meets(to)) return error.ResidualInWritten;
        const from_both = from.start +% @as(usize, @intCast(sizes.send_skip * width));
        const to_both = to.start +% @as(usize, @intCast(sizes.recv_skip * width));
        const same = from_both == to_both;
        const is_in_place = same and call.kind != .all_to_all and to.bytes > 0;
        if (!is_in_place and from.meets(to)) return error.BuffersOverlap;
        const only_reads = call.kind == .broadcast and roles.root == roles.rank;
        if (only_reads or !is_in_place) {
            uses.reads(from);
        } else if (from.bytes > to.bytes) {
            // The result takes the place of a part of what is sent.
            uses.reads(.{ .start = from.start, .bytes = to.start - from.start });
            uses.reads(.{ .start = to.end(), .bytes = from.end() - to.end() });
        }
        if (!only_reads) uses.writes(to);
    }
    uses.reads(before);
    uses.writes(after);
    uses.sort();
    return uses;
}

/// The same on all members, and another one for each operation.
fn number_of(epoch: u64, id: control.OpId) u64 {
    const words = [_]u64{ epoch, id.tag, id.sequence };
    return std.hash.Wyhash.hash(0, std.mem.asBytes(&words));
}

/// The part of a call that only a hash tells the others: several arrays, or shards that differ.
const Listed = struct {
    arrays: []const Array,
    counts: ?[]const u64,

    fn of(call: *const Call, arrays: []const Array) ?Listed {
        if (arrays.len > 1) return .{ .arrays = arrays, .counts = null };
        const counts = call.counts orelse return null;
        // As if there were one count.
        if (std.mem.allEqual(u64, counts, counts[0])) return null;
        return .{ .arrays = arrays, .counts = counts };
    }

    pub fn len(listed: Listed) usize {
        return if (listed.counts) |counts| counts.len else listed.arrays.len;
    }

    pub fn at(listed: Listed, index: usize) outline.Item {
        const array = &listed.arrays[if (listed.counts == null) index else 0];
        const count = if (listed.counts) |counts| counts[index] else array.count;
        return .{ .count = count, .dtype = array.dtype };
    }

    fn sums(listed: Listed) outline.Sums {
        var result: outline.Sums = .{};
        for (0..listed.len()) |index| result.add(listed.at(index));
        return result;
    }
};
