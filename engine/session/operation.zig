//! Operation: one call of the user, from its begin to its release, with its protocol state, data
//! movement and outcome. The session owns an operation until it is finished; then the user's thread
//! reads it.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const plan = @import("plan");
const protocol = @import("protocol");
const wire = @import("wire");
const call_file = @import("call.zig");
const Call = @import("call.zig").Call;
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Sent = @import("link.zig").Sent;
const Sync = @import("state.zig").Sync;
const Uses = @import("call.zig").Uses;
const Allocator = std.mem.Allocator;
const Descriptor = wire.control.Descriptor;
const Instant = base.Instant;
const Mask = base.Mask;
const PeerId = base.PeerId;
const assert = std.debug.assert;

pub const Operation = struct {
    gpa: Allocator,
    /// A number for the owner of the session, which the session does not read.
    user: usize = 0,
    group: *Group,
    /// The operation's state in the protocol (protocol/member.zig).
    op: protocol.Op,
    work: Work,
    /// Memory for the movement, if `work` is one.
    room: collective.Movement = undefined,
    /// The user's memory that the operation reads and writes.
    uses: Uses = .{},
    /// This peer is the root of a broadcast, so the operation writes nothing to the user's memory.
    only_reads: bool = false,
    /// When the call fails because its time is up.
    deadline: Instant,
    started_at: Instant,
    finished_at: Instant = 0,

    // Valid once the operation is finished.
    /// The caller has its memory back, and has been told that the operation is finished.
    finished: bool = false,
    status: protocol.Status = .ok,
    failure: protocol.Failure = .{ .status = .ok },
    /// The names of the peers and states in `failure`.
    names: Names = .{},
    /// After a call ended in doubt: the coordinator's decision; null while the decision is unknown.
    committed: ?bool = null,
    /// The coordinator's decision is known, but the caller's memory is still being given back.
    is_decided: bool = false,
    /// The user has let go of the operation.
    released: bool = false,
    /// The operation waits for its turn, beyond the operations in flight (session.zig).
    is_queued: bool = false,
    /// The operation ended while it waited for its turn.
    ended_queued: bool = false,
    /// The peer at the other end of the broken link because of which the operation is withdrawn.
    unreachable_peer: base.PeerId = .none,

    /// The operation has so few bytes that its frames go before large operations' on each link
    /// (frame.zig).
    is_small: bool = false,

    /// The schedule of the last attempt, and how long an operation is expected to take with it.
    figures: plan.Figures = .{},

    // State of the current attempt:
    /// The members that this peer exchanges data with.
    neighbours: []Neighbour = &.{},
    /// Memory for the neighbours of any attempt.
    neighbours_room: []Neighbour,
    /// A hash of the operation's descriptor, which each frame carries.
    fingerprint: u32,
    /// In this attempt, the coordinator has been told that a neighbour called something else.
    mismatch_told: bool = false,
    /// Bytes that had been sent and received at the last tick, and when a tick last saw progress
    /// (membership.zig).
    exchanged: u64 = 0,
    exchanged_at: Instant = 0,
    /// The reason why the operation will be withdrawn: memory ran out inside it, or a link that it
    /// needs is down. Null: it will not be withdrawn.
    withdraws: ?wire.control.AbortReason = null,

    purpose: Call.Purpose,
    /// Call.form: a hash of what the arrays are to the caller.
    form: u64,
    /// The members of the operation's epoch in rank order.
    ids: []base.PeerId,
    /// The members of each attempt in which the operation took part. All memory for `history` is
    /// reserved at the call.
    history: protocol.History,

    /// The work of an operation: moving data, or a sync. A barrier is a movement without data.
    pub const Work = union(enum) {
        movement: *collective.Movement,
        /// A sync, which moves leaves of a shared state.
        sync: *Sync,
    };

    pub const Neighbour = struct {
        link: *Link,
        /// The neighbour's position in the attempt's order of members.
        position: u16,
        /// An `open` frame is still to be sent, which tells the neighbour that this peer has called
        /// and can receive.
        open_pending: bool,
        /// The piece of which only some fragments have been sent; null: there is no such piece.
        cut: ?Cut = null,
    };

    /// The rest of a piece that is sent in fragments (sync.zig). `done`: the end of the fragments
    /// that have been sent.
    pub const Cut = struct { move: collective.Move, done: wire.Fragment.Count };

    pub fn from_op(op: *protocol.Op) *Operation {
        return @fieldParentPtr("op", op);
    }

    /// Whether this peer exchanges frames in a current attempt of this operation.
    pub fn is_under_way(operation: *const Operation) bool {
        return switch (operation.work) {
            .movement => |x| x.board.members > 0,
            .sync => |it| it.is_under_way(),
        };
    }

    /// Whether the call has ended. The caller may not have its memory back yet.
    pub fn is_over(operation: *const Operation) bool {
        return switch (operation.op.state) {
            .new, .queued, .running, .voted => false,
            .in_doubt, .finished => true,
        };
    }

    /// Whether the next tick has work to do for this operation.
    pub fn has_work(operation: *const Operation) bool {
        return switch (operation.work) {
            .movement => |x| x.has_work(),
            .sync => false,
        };
    }

    pub fn sync(operation: *const Operation) ?*Sync {
        return switch (operation.work) {
            .movement => null,
            .sync => |it| it,
        };
    }

    /// The operation's data movement. Null for a sync.
    pub fn moves(operation: *Operation) ?*collective.Movement {
        return switch (operation.work) {
            .movement => |x| x,
            .sync => null,
        };
    }

    /// The number of the current attempt, or of the last attempt.
    pub fn attempt(operation: *const Operation) u32 {
        return switch (operation.work) {
            .movement => |x| x.board.attempt,
            .sync => |it| it.attempt,
        };
    }

    /// The name under which lanes know this operation.
    pub fn owner(operation: *Operation) Lane.Owner {
        return .{ .operation = operation };
    }

    pub fn from_owner(of: Lane.Owner) ?*Operation {
        return switch (of) {
            .operation => |operation| @ptrCast(@alignCast(operation)),
            .state => null,
        };
    }

    pub const Put = struct {
        kind: wire.frame.Kind,
        index: u64,
        class: u16 = 0,
        reduced_attempt: u32 = 0,
        payload_bytes: u32 = 0,
        asks: bool = false,
        again: u8 = 0,
        fragment: wire.Fragment = .whole,
    };

    /// Puts the header of a frame of this operation on a lane. `inline_payload` is copied behind
    /// the header.
    pub fn put(
        operation: *const Operation,
        lane: *Lane,
        what: Put,
        inline_payload: []const u8,
    ) void {
        const head = lane.head_room(wire.frame.header_bytes + inline_payload.len);
        wire.frame.encode_into(head[0..wire.frame.header_bytes], &.{
            .epoch = operation.op.epoch,
            .tag = operation.op.id.tag,
            .sequence = operation.op.id.sequence,
            .index = what.index,
            .attempt = operation.attempt(),
            .payload_bytes = what.payload_bytes + @as(u32, @intCast(inline_payload.len)),
            .reduced_attempt = what.reduced_attempt,
            .fingerprint = operation.fingerprint,
            .acked = lane.answer(),
            .asks = what.asks,
            .again = what.again,
            .fragment = what.fragment,
            .group = operation.group.id.?,
            .class = what.class,
            .kind = what.kind,
        });
        if (inline_payload.len > 0) @memcpy(head[wire.frame.header_bytes..], inline_payload);
        lane.out_busy = true;
    }

    /// Puts a data frame on a lane that has room for one more unacknowledged frame. `piece`: all
    /// bytes of the piece; the frame carries `what.fragment` of them.
    pub fn put_data(
        operation: *Operation,
        lane: *Lane,
        what: Sent,
        piece: []const u8,
    ) void {
        const x = operation.work.movement;
        const move = &what.move;
        const bytes = what.fragment.range(piece.len);
        lane.unacked.push(what);
        operation.put(lane, .{
            .kind = move.kind,
            .index = x.board.ledger.partition.number(move.piece),
            .class = move.class,
            .reduced_attempt = move.reduced_attempt,
            .payload_bytes = @intCast(bytes.len()),
            .asks = x.is_short(move) or lane.unacked.is_short(),
            .again = what.again,
            .fragment = what.fragment,
        }, "");
        lane.put_payload(piece[bytes.first..bytes.end], operation.owner());
    }

    pub fn neighbour(operation: *const Operation, link: *const Link) ?*Neighbour {
        for (operation.neighbours) |*item| if (item.link == link) return item;
        return null;
    }

    /// The other peer of a message. Null for other operations.
    pub fn partner(operation: *const Operation) ?base.PeerId {
        if (operation.op.descriptor.kind != .send_recv) return null;
        const x = operation.work.movement;
        return operation.ids[x.board.ledger.roles.pair.other(x.board.ledger.roles.rank)];
    }

    /// Notes that a link of this operation is broken for good, so that the operation will be
    /// withdrawn.
    pub fn withdraw_from(operation: *Operation, link: *const Link) void {
        operation.withdraws = .link_broken;
        operation.unreachable_peer = link.peer;
    }

    /// Elements [begin, end) and the ranks whose contributions they hold.
    pub const Range = struct { begin: u64, end: u64, contributors: Mask };

    /// The descriptor in the `open` frame to a neighbour. In an uneven all_to_all it has the shard
    /// sizes between this peer and that neighbour.
    pub fn descriptor_for(operation: *const Operation, position: u16) Descriptor {
        var descriptor = operation.op.descriptor;
        if (!descriptor.uneven) return descriptor;
        const x = operation.work.movement;
        const rank = x.board.rank_at(position);
        descriptor.count, descriptor.counts = x.board.ledger.exchanged_with(rank);
        return descriptor;
    }

    pub fn destroy(operation: *Operation) void {
        const gpa = operation.gpa;
        switch (operation.work) {
            .movement => |x| x.deinit(),
            .sync => |it| it.destroy(),
        }
        operation.history.deinit(gpa);
        operation.uses.deinit(gpa);
        base.unfilled.free_list(gpa, base.PeerId, operation.ids);
        base.unfilled.free_list(gpa, Neighbour, operation.neighbours_room);
        gpa.destroy(operation);
    }

    /// Whether a new call with these uses would write memory that this operation uses, or use
    /// memory that this operation writes.
    pub fn clashes(operation: *const Operation, uses: *const Uses) bool {
        if (operation.finished) return false; // the caller has all of the memory back
        if (operation.sync()) |it| if (it.transfer.state == null) return false;
        return operation.uses.clash(uses);
    }

    /// Completes the failure of a newcomer that was refused because of this call: adds the expected
    /// call beside the call that the newcomer made.
    pub fn note_wanted(operation: *Operation, self: base.PeerId) void {
        const failure = &operation.failure;
        if (failure.status != .mismatch or failure.reason != null) return;
        const wanted = &(operation.group.wanted orelse return);
        if (!wanted.op.eql(operation.op.id)) return;
        failure.peer = wanted.peer;
        failure.descriptor = wanted.descriptor;
        failure.other = self;
        failure.other_descriptor = operation.op.descriptor;
    }

    /// The operation as in error texts: "all_reduce (tag 5, sequence 7 of epoch 2)", "send to rank
    /// 1 (tag 0, sequence 3 of epoch 2)".
    pub fn named(operation: *const Operation, names: *const Names) Named {
        return .{ .operation = operation, .names = names };
    }

    pub const Named = struct {
        operation: *const Operation,
        names: *const Names,

        pub fn format(it: Named, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const op = &it.operation.op;
            const call: wire.NamedCall = .{
                .kind = op.descriptor.kind,
                .op = op.id,
                .epoch = op.epoch,
                .state = it.names.state(op.id.tag),
                .is_object = it.operation.form == wire.form_object,
            };
            if (call.kind != .send_recv) return call.format(writer);
            const roles = &it.operation.work.movement.board.ledger.roles;
            const way = if (roles.rank == roles.pair.src) "send to" else "recv from";
            try writer.print("{s} rank {d}", .{ way, roles.pair.other(roles.rank) });
            try call.place(writer);
        }
    };

    pub fn member_ids(operation: *const Operation) []const base.PeerId {
        return operation.ids;
    }

    /// Whether the caller's memory has been given back, and the caller has not been told yet.
    pub fn is_back(operation: *const Operation) bool {
        if (!operation.is_over() or operation.finished) return false;
        return switch (operation.work) {
            .movement => |x| x.ending == null,
            .sync => true,
        };
    }

    /// Writes the result to the caller's memory when an operation in doubt turns out to be
    /// committed. Called once. The root of a broadcast only reads its memory, which may be
    /// read-only.
    pub fn copy_result(operation: *const Operation) void {
        assert(operation.committed == true);
        if (operation.only_reads or operation.sync() != null) return;
        operation.work.movement.memory.hand_over();
    }

    pub fn digest(operation: *const Operation) u128 {
        return operation.op.digest;
    }

    pub fn range_count(operation: *const Operation) u32 {
        var it = operation.ranges();
        var count: u32 = 0;
        while (it.next() != null) count += 1;
        return count;
    }

    pub fn range(operation: *const Operation, wanted: u32) ?Range {
        var it = operation.ranges();
        for (0..wanted) |_| _ = it.next() orelse return null;
        return it.next();
    }

    pub fn ranges(operation: *const Operation) RangeIterator {
        return .{ .operation = operation };
    }

    /// Iterates over the elements of this peer's result, in ranges with the same contributors.
    pub const RangeIterator = struct {
        operation: *const Operation,
        chunk: u32 = 0,

        pub fn next(it: *RangeIterator) ?Range {
            if (it.operation.sync() != null) return null;
            const x = it.operation.work.movement;
            const partition = &x.board.ledger.partition;
            const l = &x.board.ledger;
            while (it.chunk < partition.chunks and !l.has_elements(it.chunk)) it.chunk += 1;
            const first = it.chunk;
            if (first == partition.chunks) return null;
            const who = it.operation.contributors(first);
            while (it.chunk < partition.chunks and l.has_elements(it.chunk)) : (it.chunk += 1) {
                if (!it.operation.contributors(it.chunk).eql(&who)) break;
            }
            const last = partition.chunk_offset(it.chunk) - partition.chunk_offset(it.chunk - 1);
            return .{
                .begin = x.memory.arrays.result_first(partition, first),
                .end = x.memory.arrays.result_first(partition, it.chunk - 1) + last,
                .contributors = who,
            };
        }
    };

    /// The array or shard in which this peer's call differs from another member's (call.zig). Null
    /// if the difference is not known.
    pub fn difference(operation: *const Operation) ?call_file.Difference {
        const own = &operation.op.descriptor;
        const list: Own = .{ .operation = operation };
        return call_file.find_difference(list, &operation.failure, own, operation.form);
    }

    fn contributors(operation: *const Operation, chunk: u32) Mask {
        var mask: Mask = .empty;
        const x = operation.work.movement;
        const reduced = x.board.ledger.reduced[chunk];
        if (x.board.ledger.source(chunk)) |rank| {
            if (reduced != 0 or x.board.ledger.descriptor.kind == .broadcast) mask.set(rank);
            return mask;
        }
        if (reduced == 0) return mask; // the chunk is not settled
        return operation.history.members(reduced).*;
    }
};

/// The arrays or shards of this peer's call, for call.zig.
const Own = struct {
    operation: *const Operation,

    pub fn len(own: Own) usize {
        const arrays = own.operation.work.movement.memory.arrays.list;
        return if (arrays.len > 1) arrays.len else own.operation.ids.len;
    }

    pub fn at(own: Own, index: usize) call_file.Item {
        const x = own.operation.work.movement;
        const arrays = x.memory.arrays.list;
        return .{
            .count = x.board.ledger.partition.shards[index].elements,
            .dtype = arrays[if (arrays.len > 1) index else 0].dtype,
        };
    }
};

// ---- names in errors
//
// The names of peers and shared states in an error, as of the moment of the error: the user reads
// the error later, when ranks and labels may have changed. session.zig fills in the names.

pub const Names = struct {
    self: PeerId = .none,
    /// The world size of the operation's epoch; 0: not known.
    ranks: usize = 0,
    items: [items_max]Name = undefined,
    count: usize = 0,
    /// The names of this peer's shared states that the error is about.
    states: [states_max]StateName = undefined,
    states_count: usize = 0,

    /// The most ranks that an error text names in one list: of missing members, or of members
    /// outside the epoch. Further ranks are only counted.
    pub const missing_max = 4;
    pub const items_max = 2 * missing_max + 2 * base.limits.elsewhere_told_max + 6;

    const states_max = 1 + base.limits.elsewhere_told_max;

    pub const Name = struct { id: PeerId, rank: ?u16, label: base.Label };
    pub const StateName = struct { tag: u64, name: base.Label };

    /// The printable name of the shared state whose syncs have this tag; empty if no state has this
    /// tag, or if its name is not known.
    pub fn state(names: *const Names, tag: u64) []const u8 {
        for (names.states[0..names.states_count]) |*item| if (item.tag == tag)
            return item.name.slice();
        return "";
    }

    pub fn find(names: *const Names, id: PeerId) ?*const Name {
        for (names.items[0..names.count]) |*name| if (name.id.eql(id)) return name;
        return null;
    }

    pub fn world_size(names: *const Names) usize {
        return names.ranks;
    }

    pub fn who(names: *const Names, id: PeerId) Who {
        return .{ .names = names, .id = id };
    }

    /// A peer in an error: "rank 3 (node7:4242, 7f3a01c2)", "rank 0 (this peer)"; shorter if its
    /// rank or label is not known.
    pub const Who = struct {
        names: *const Names,
        id: PeerId,

        pub fn format(it: Who, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const name = it.names.find(it.id) orelse
                return writer.print("peer {s}", .{it.id.short()});
            const rank = name.rank orelse
                return writer.print("peer {f}", .{base.Named{ .id = it.id, .label = name.label }});
            if (it.id.eql(it.names.self)) return writer.print("rank {d} (this peer)", .{rank});
            try writer.print("{f}", .{base.Ranked{
                .rank = rank,
                .id = it.id,
                .label = name.label,
            }});
        }
    };
};

test "an error names a peer by its rank, its label and its id, and this one as such" {
    const names: Names = .{
        .self = .from_int(1 << 120),
        .items = [_]Names.Name{
            .{ .id = .from_int(1 << 120), .rank = 2, .label = base.Label.read("me").? },
            .{ .id = .from_int(2 << 120), .rank = 0, .label = base.Label.read("node7:42").? },
            .{ .id = .from_int(3 << 120), .rank = 1, .label = .{} },
            .{ .id = .from_int(4 << 120), .rank = null, .label = base.Label.read("gone").? },
        } ++ [_]Names.Name{undefined} ** (Names.items_max - 4),
        .count = 4,
    };
    var line: [100]u8 = undefined;
    for ([_][]const u8{
        "rank 2 (this peer)",
        "rank 0 (node7:42, 02000000)",
        "rank 1 (03000000)",
        "peer 04000000 (gone)",
        "peer 05000000",
    }, 1..) |wanted, number| {
        const id: PeerId = .from_int(@as(u128, number) << 120);
        const shown = try std.fmt.bufPrint(&line, "{f}", .{names.who(id)});
        try std.testing.expectEqualStrings(wanted, shown);
    }
}
