//! failure_operation: what an operation that has failed means to its caller: who was waited for,
//! what differed, what the memory holds now (failure.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const session = @import("session");
const failure = @import("failure.zig");
const status = @import("status.zig");
const Error = status.Error;
const Descriptor = wire.control.Descriptor;
const fail = status.fail;

/// The status of a finished operation that is not ok.
pub fn operation(op: *const session.Operation) Error {
    var text: [128 + base.limits.label_bytes_max]u8 = undefined;
    // Four numbers, some words, and the name of a state as far as `Names` has it.
    const name = std.fmt.bufPrint(&text, "{f}", .{op.named(&op.names)}) catch unreachable;
    return switch (op.status) {
        .ok => unreachable, // asked only of failures
        .mismatch => mismatch(op, name),
        .aborted => aborted(op, name),
        .expelled => fail(
            .expelled,
            "{s}: " ++ failure.removed ++ "{s}. {s}. Close this communicator and connect again",
            .{ name, op.group.why_removed(), kept(op) },
        ),
        .in_doubt => if (op.sync() != null) fail(
            .in_doubt,
            "{s} ended without an answer of the coordinator{f}, so the others may have " ++
                "committed it. The tensors are as they were; sync again, which brings this peer " ++
                "to the state of the others",
            .{ name, Coordinator{ .failure = &op.failure } },
        ) else fail(
            .in_doubt,
            "{s}{s}{f} after this peer had voted, so the others may have committed it; " ++
                "resolve its work to know. {s}",
            .{
                name,
                if (op.failure.reason) |reason| switch (reason) {
                    .deadline => timed_out,
                    else => " was withdrawn here",
                } else ": the connection to the coordinator was lost",
                WaitedFor{ .op = op },
                kept(op),
            },
        ),
        .deadline_exceeded => if (op.op.descriptor.kind == .send_recv) fail(
            .deadline_exceeded,
            "{s}" ++ timed_out ++ "{f}. {s}",
            .{ name, WaitedFor{ .op = op }, kept(op) },
        ) else fail(
            .deadline_exceeded,
            "{s}" ++ timed_out ++ "{f}. The operation is aborted on every member. {s}",
            .{ name, WaitedFor{ .op = op }, kept(op) },
        ),
        .too_few_peers => fail(
            .too_few_peers,
            "{s}: fewer than min_world_size peers are left in the group. {s}",
            .{ name, kept(op) },
        ),
        .coordinator_unreachable => fail(
            .coordinator_unreachable,
            "{s}: {f}. {s}. " ++ failure.start_again,
            .{ name, Lost{ .away_ns = op.failure.coordinator_away_ns }, kept(op) },
        ),
        .state_unavailable => fail(
            .state_unavailable,
            "{s}: nobody holds the shared state: all members that are left only receive, or " ++
                "a holder sent other bytes than it offered (do not write to tensors during a " ++
                "sync){f}. The tensors are as they were",
            .{ name, OutOfRule{ .op = op } },
        ),
        .cancelled => withdrawn(op, name),
    };
}

/// Programs look for "timed out", as errors of PyTorch say it.
const timed_out = " timed out: the deadline passed";

fn withdrawn(op: *const session.Operation, name: []const u8) Error {
    return if (op.group.why_removed().len > 0) fail(
        .cancelled,
        "{s} was withdrawn here, and the others go on without this peer. {s}. Close this " ++
            "communicator and connect again",
        .{ name, kept(op) },
    ) else fail(
        .cancelled,
        "{s} was withdrawn here, by a cancellation, a close, or for lack of memory. {s}",
        .{ name, kept(op) },
    );
}

/// The state of the memory that the caller gave (docs/PROMISE.md, P3).
fn kept(op: *const session.Operation) []const u8 {
    // Leaves of a state wait apart until the commit.
    if (op.sync() != null) return "The input is as it was";
    const arrays = &op.work.movement.memory.arrays;
    if (!arrays.has_apart()) return "The input is as it was";
    if (op.op.descriptor.kind == .send_recv) return "Its array may hold a part of the message";
    if (!arrays.has_input()) return "The output may hold a part of the result";
    return "The input is as it was; an output apart from it may hold a part of the result";
}

/// "the connection to the coordinator was lost 12 s ago"
const Lost = struct {
    /// Null: just now.
    away_ns: ?u64,

    pub fn format(lost: Lost, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll("the connection to the coordinator was lost");
        const away_ns = lost.away_ns orelse return;
        try writer.print(" {d} s ago", .{away_ns / std.time.ns_per_s});
    }
};

/// " (the connection to the coordinator was lost 12 s ago)"; nothing while it answers.
const Coordinator = struct {
    failure: *const protocol.Failure,

    fn is_away(it: Coordinator) bool {
        return it.failure.coordinator_away_ns != null or it.failure.coordinator_silent_ns > 0;
    }

    pub fn format(it: Coordinator, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (it.failure.coordinator_away_ns) |away_ns|
            return writer.print(" ({f})", .{Lost{ .away_ns = away_ns }});
        const silent_ns = it.failure.coordinator_silent_ns;
        if (silent_ns > 0) try writer.print(
            " (nothing was heard from the coordinator for {d} s)",
            .{silent_ns / std.time.ns_per_s},
        );
    }
};

const Elsewhere = session.membership.Elsewhere;

/// For a call whose deadline passed: " (waiting for rank 3, 7f3a01c2, which has not called it)"
const WaitedFor = struct {
    op: *const session.Operation,

    pub fn format(waited: WaitedFor, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const op = waited.op;
        if (op.failure.reason != .deadline) return;
        const missing = &op.failure.missing;
        const count = missing.count();
        // Others cannot be blamed: what they have done, the coordinator alone would tell.
        const coordinator: Coordinator = .{ .failure = &op.failure };
        if (coordinator.is_away()) return writer.print("{f}", .{coordinator});
        if (op.ended_queued) return writer.print(
            " before its turn came: {d} operations of this kind were in flight in the group, " ++
                "and beyond that members must call them in one order",
            .{base.limits.operations_in_flight_max},
        );
        if (count == 0 and op.failure.elsewhere.count > 0) return writer.print(
            " (all have called it, but {f})",
            .{session.membership.Stuck{
                .names = &op.names,
                .operation = op,
                .told = &op.failure.elsewhere,
            }},
        );
        if (count == 0) return writer.print(" (probably {s} has not called {s}, or is stuck)", .{
            if (op.op.descriptor.kind == .send_recv) "that rank" else "another member",
            called(op),
        });
        const waited_ns = op.finished_at -| op.started_at;
        if (waited_ns < std.time.ns_per_s)
            try writer.print(" (waiting for {d} ms for ", .{waited_ns / std.time.ns_per_ms})
        else
            try writer.print(" (waiting for {d} s for ", .{waited_ns / std.time.ns_per_s});
        const names = &op.names;
        try writer.print("{f}, which {s} not called {s}{f}{f})", .{
            session.membership.Ranks{ .names = names, .operation = op, .ranks = missing },
            if (count == 1) "has" else "have",
            called(op),
            session.membership.Outside{ .names = names, .operation = op, .ranks = &op.failure.outside },
            Elsewhere{
                .names = names,
                .operation = op,
                .missing = missing,
                .told = &op.failure.elsewhere,
            },
        });
    }

    fn called(op: *const session.Operation) []const u8 {
        if (op.op.descriptor.kind != .send_recv) return "it";
        return switch (part_of(op)) {
            .send => "recv",
            .recv => "send",
        };
    }
};

/// This peer's part in a message.
fn part_of(op: *const session.Operation) session.Call.Part {
    const roles = &op.work.movement.board.ledger.roles;
    return if (roles.rank == roles.pair.src) .send else .recv;
}

fn aborted(op: *const session.Operation, name: []const u8) Error {
    const peer = op.names.who(op.failure.peer);
    const other = op.names.who(op.failure.other);
    const reason = op.failure.reason orelse
        return fail(.aborted, "{s} was aborted. {s}", .{ name, kept(op) });
    return switch (reason) {
        .deadline => fail(
            .aborted,
            "{s} was aborted, because it timed out: the deadline of {f} passed{f}; it may " ++
                "be called again. {s}",
            .{ name, peer, WaitedFor{ .op = op }, kept(op) },
        ),
        .cancelled => fail(
            .aborted,
            "{s} was aborted, because {f} withdrew it; it may be called again. {s}",
            .{ name, peer, kept(op) },
        ),
        .mismatch, .contradiction => mismatch(op, name),
        .structure, .state_conflict, .state_strategy => mismatch(op, name),
        .state_unavailable => fail(.state_unavailable, "{s}: nobody holds the state", .{name}),
        .digest => fail(
            .aborted,
            "{s} was aborted, because {f} and {f} hold different results: its buffer was " ++
                "written while the call ran (by another call in flight?), or one of them has " ++
                "faulty memory or another build of this library. {s}",
            .{ name, peer, other, kept(op) },
        ),
        .peer_lost => if (op.op.descriptor.kind == .send_recv) fail(
            .aborted,
            "{s} was aborted, because {f} has left or was lost: call admit, as all members " ++
                "must, and then name a rank that is still there. Until then each call that " ++
                "names that one fails. {s}",
            .{ name, peer, kept(op) },
        ) else if (op.op.descriptor.recovery == .complete) fail(
            .aborted,
            "{s} was aborted, because {f} has left or was lost and it needs every member " ++
                "(recovery \"complete\"): call admit, as all members must, and then repeat the " ++
                "call. Until then each such call fails; one with recovery \"restart\" needs the " ++
                "survivors alone. {s}",
            .{ name, peer, kept(op) },
        ) else fail(
            .aborted,
            "{s} was aborted, because {f} has left or was lost, and its recovery is \"raise\"; " ++
                "if you call it again, it runs among the other members. {s}",
            .{ name, peer, kept(op) },
        ),
        // The reporter may be another member, which called it later.
        .root_lost => fail(
            .aborted,
            "{s} was aborted, because its root, {f}, has left or was lost{s}: call admit, as " ++
                "all members must, and then name a root that is still there. Until then each " ++
                "call with that one fails. {s}",
            .{
                name,
                op.names.who(op.op.descriptor.root),
                switch (op.op.descriptor.kind) {
                    .broadcast => " and nobody else holds all of its data",
                    else => "",
                },
                kept(op),
            },
        ),
        .passed => fail(
            .aborted,
            "{s} was aborted, because {f} has passed the next safe point without it: call admit " ++
                "and go on from there. Until then each such call fails; between two calls of " ++
                "admit all ranks must make the same calls. {s}",
            .{ name, peer, kept(op) },
        ),
        .link_broken => fail(
            .aborted,
            "{s} was aborted, because {s} {f} is broken: nothing came through for the " ++
                "silence limit, and this kind of operation takes no other way (others go around " ++
                "such a link). {s}",
            .{
                name,
                if (unreachable_peer(op) != null) "the link between this peer and" //
                else "a link of",
                if (unreachable_peer(op)) |id| op.names.who(id) else peer,
                kept(op),
            },
        ),
        .too_few_peers => fail(
            .too_few_peers,
            "{s}: fewer than min_world_size peers are left. {s}",
            .{ name, kept(op) },
        ),
    };
}

/// ", or none brings the revision that is expected (rule successive); this peer brought 10 and ..."
const OutOfRule = struct {
    op: *const session.Operation,

    pub fn format(it: OutOfRule, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (!it.op.op.descriptor.rules.successive) return;
        try writer.writeAll(", or none brings the revision that is expected (rule successive)");
        const moved = it.op.sync() orelse return;
        if (moved.expected == 0) return;
        try writer.print("; this peer brought {d} and expected {d}", .{
            moved.brought,
            moved.expected,
        });
    }
};

/// Whose link to this peer is broken, where it is one of this peer's.
fn unreachable_peer(op: *const session.Operation) ?base.PeerId {
    if (!op.unreachable_peer.eql(.none)) return op.unreachable_peer;
    return op.partner();
}

fn mismatch(op: *const session.Operation, name: []const u8) Error {
    var first: [description_bytes_max]u8 = undefined;
    var second: [description_bytes_max]u8 = undefined;
    const peer = op.names.who(op.failure.peer);
    const other = op.names.who(op.failure.other);
    // Decisions have a reason: this peer alone was told. Which call it was stands in the words.
    if (op.failure.reason == null) return fail(
        .mismatch,
        "{s}: this peer was refused, and is no member any more; the members go on without it: " ++
            "{s}. {f}{s}. Correct that, then connect again",
        .{ word_of(op), op.group.why_removed(), Arrays{ .op = op }, kept(op) },
    );
    if (op.failure.reason == .structure) return fail(
        .mismatch,
        "{s}: the shared states of the members differ in structure: {s}. All members must share " ++
            "the same names, shapes and dtypes",
        .{ name, if (op.sync()) |moved| moved.differs() else "" },
    );
    if (op.failure.reason == .state_conflict) return fail(
        .mismatch,
        "{s}: {f} and {f} both insist on their content (send_only), and it differs: at " ++
            "most one content can be sent. The tensors are as they were",
        .{ name, peer, other },
    );
    if (op.failure.reason == .state_strategy) return fail(
        .mismatch,
        "{s}: {f} and {f} both give their content, and one of them sends it (send_only): by the " ++
            "rule one_sender all others must only receive (receive_only). The tensors are as " ++
            "they were",
        .{ name, peer, other },
    );
    if (op.failure.reason == .contradiction) return fail(
        .mismatch,
        "{s}: {f} and {f} made the same call, but cut it into different numbers of " ++
            "chunks: one of them has another build of this library or other settings than this " ++
            "run. {s}",
        .{ name, peer, other, kept(op) },
    );
    if (op.op.descriptor.kind == .send_recv) return fail(
        .mismatch,
        "{s}: the two called different things: {f} {s}, {f} {s}. Both must name as " ++
            "many elements of one dtype, after equally many calls of admit. {s}",
        .{
            name,
            peer,
            describe(op.failure.descriptor, op.failure.other_descriptor, &op.names, &first),
            other,
            describe(op.failure.other_descriptor, op.failure.descriptor, &op.names, &second),
            kept(op),
        },
    );
    return fail(
        .mismatch,
        "{s}: the members called different things: {f} {s}, {f} {s}. {f}All members must " ++
            "make the same calls in the same order on each tag. {s}",
        .{
            name,
            peer,
            describe(op.failure.descriptor, op.failure.other_descriptor, &op.names, &first),
            other,
            describe(op.failure.other_descriptor, op.failure.descriptor, &op.names, &second),
            Arrays{ .op = op },
            kept(op),
        },
    );
}

fn word_of(op: *const session.Operation) []const u8 {
    const kind = op.op.descriptor.kind;
    const object_name = if (op.form == wire.form_object) wire.object_name(kind) else null;
    return object_name orelse @tagName(kind);
}

/// Frontends look for it, to say more (pccl_py/kit/frontend.py).
pub const differ_in_form =
    "The arrays of these two differ in name, in structure or in the kind of their elements. ";

/// Frontends add the shapes of their own arrays to it (pccl_py/words.py).
pub const differ_in_shape =
    "The arrays of these two differ in shape: pass arrays of one shape, or flatten them. ";

/// Which array of a list, or which shard, the two of a mismatch have called differently: "arrays[1]
/// has 1000 f32 at rank 0 (this peer) and 999 f32 at rank 2 (node7:4242, 7f3a01c2). "
const Arrays = struct {
    op: *const session.Operation,

    pub fn format(it: Arrays, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const op = it.op;
        const first = op.failure.descriptor orelse return;
        const second = op.failure.other_descriptor orelse return;
        // Any other difference is seen in their descriptions.
        const alike = first.kind == second.kind and first.arrays == second.arrays;
        if (!alike) return;
        if (first.uneven and second.uneven) {
            const one, const other = .{ op.failure.peer, op.failure.other };
            try it.exchanged(first.count, second.counts, one, other, writer);
            return it.exchanged(second.count, first.counts, other, one, writer);
        }
        if (first.counts == second.counts or first.uneven) return;
        if (session.outline.differ_in_form(&first, &second)) {
            // Then the kind of their elements is all that differs, and stands there already.
            if (!std.mem.eql(u8, wire.dtype_name(&first), wire.dtype_name(&second))) return;
            if (session.outline.differ_in_shape(&first, &second))
                return writer.writeAll(differ_in_shape);
            return writer.writeAll(differ_in_form);
        }
        if (!session.outline.has_list(&first) or !session.outline.has_list(&second)) return;
        const what = if (first.arrays > 0) "arrays" else "counts";
        const found = op.difference() orelse
            return writer.print("More than one of the {s} differ. ", .{what});
        if (found.swapped) |other| return writer.print(
            "{s}[{d}] and {s}[{d}] of one are in each other's place at the other. ",
            .{ what, found.change.index, what, other },
        );
        const own, const there = if (found.is_peer)
            .{ op.failure.peer, op.failure.other }
        else
            .{ op.failure.other, op.failure.peer };
        try writer.print("{s}[{d}] has {d} {s} at {f} and {d} {s} at {f}. ", .{
            what,
            found.change.index,
            found.own.count,
            found.own.dtype.name(),
            op.names.who(own),
            found.change.item.count,
            found.change.item.dtype.name(),
            op.names.who(there),
        });
    }

    /// One direction of an uneven exchange.
    fn exchanged(
        it: Arrays,
        sent: u64,
        wanted: u64,
        from: base.PeerId,
        to: base.PeerId,
        writer: *std.Io.Writer,
    ) !void {
        if (sent == wanted) return;
        try writer.print("{f} sends {d} elements to {f}, whose recv_counts say {d}. ", .{
            it.op.names.who(from),
            sent,
            it.op.names.who(to),
            wanted,
        });
    }
};

/// More than the longest takes.
pub const description_bytes_max = 320;

/// "all_reduce(sum, 1000 f32, codec int8)", beside one without a codec (engine/wire/described.zig).
pub fn describe(
    maybe: ?Descriptor,
    other: ?Descriptor,
    names: *const session.Names,
    text: *[description_bytes_max]u8,
) []const u8 {
    const descriptor = maybe orelse return "something else";
    var writer: std.Io.Writer = .fixed(text);
    writer.print("{f}", .{wire.Described(*const session.Names){
        .descriptor = &descriptor,
        .other = if (other) |*it| it else null,
        .names = names,
    }}) catch {}; // cut
    return writer.buffered();
}
