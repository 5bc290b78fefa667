//! sentence_test: sentences of sentence.zig name the peers, the cause and the remedy.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const protocol = @import("protocol");
const wire = @import("wire");
const session = @import("session");
const sentence = @import("sentence.zig");
const status = @import("status.zig");
const Descriptor = wire.control.Descriptor;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const second = std.time.ns_per_s;

const differ_in_form = "differ in name, in structure or in the kind of their elements. ";
const differ_in_shape = "differ in shape: pass arrays of one shape, or flatten them. ";

/// The last sentence is of this error, and has all these parts.
fn expect_says(code: status.Status, err: status.Error, parts: []const []const u8) !void {
    try expectEqual(code, status.code(err));
    for (parts) |part| if (!said(part)) try std.testing.expectEqualStrings(part, last());
}

fn said(part: []const u8) bool {
    return std.mem.indexOf(u8, last(), part) != null;
}

fn last() []const u8 {
    return std.mem.span(status.pccl_last_error());
}

/// An operation that moves nothing, knows no names, and has failed.
fn fail(op: *session.Operation, descriptor: Descriptor, failure: protocol.Failure) void {
    op.names = .{};
    op.work = .{ .movement = &op.room };
    op.room.memory.arrays = .{
        .list = &.{},
        .places = &.{},
        .is_kept = &.{},
        .result_bytes = 0,
        .encoded_bytes = 0,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1 };
    op.status = failure.status;
    op.failure = failure;
}

/// A call of this kind, of 6 elements.
fn called(kind: wire.control.OpKind) Descriptor {
    return .{
        .kind = kind,
        .dtype = .f32,
        .op = .sum,
        .recovery = .restart,
        .count = 6,
        .safe_points = 3,
    };
}

test "no sentence about a group or an operation has a word that only C knows" {
    var group: session.Group = undefined;
    group.removed("it was away");
    for (std.enums.values(session.Status)) |value| {
        try expect_words_of_both_languages(sentence.membership(value, "it was away"));
        if (value == .ok) continue;
        var op: session.Operation = undefined;
        fail(&op, called(.barrier), .{ .status = value });
        op.group = &group;
        try expect_words_of_both_languages(sentence.operation(&op));
    }
    const call: session.Call = .{ .kind = .barrier, .deadline = 0 };
    try expect_words_of_both_languages(sentence.admit(error.Busy));
    try expect_words_of_both_languages(sentence.begin(error.NotAdmitted, &call));
}

fn expect_words_of_both_languages(err: status.Error) !void {
    try expect(status.code(err) != .ok);
    for ([_][]const u8{ "pccl_", "_ns", "NULL" }) |word| try expect(!said(word));
}

test "a peer that the coordinator removed is told why, in its words" {
    var group: session.Group = undefined;
    group.removed("it was away\x1b");
    var op: session.Operation = undefined;
    op.group = &group;
    fail(&op, called(.barrier), .{ .status = .expelled });
    const wanted = "this peer is no longer a member of the group: it was away\\x1b. ";
    try expect_says(.expelled, sentence.operation(&op), &.{wanted});
    try expect_says(.expelled, sentence.membership(.expelled, group.why_removed()), &.{wanted});
    // A newcomer's call, refused.
    const why = "it called all_gather(999 f32) where the members called all_gather(1000 f32)";
    group.removed(why);
    fail(&op, called(.all_gather), .{ .status = .mismatch });
    try expect_says(.mismatch, sentence.operation(&op), &.{"go on without it: " ++ why});
}

test "a call whose deadline passed names those it waited for, or says what is probable" {
    var ids: [6]base.PeerId = undefined;
    for (&ids, 0..) |*id, rank| id.* = .from_int(@as(u128, 0x7f3a0100 + rank) << 96);
    var op: session.Operation = undefined;
    op.ids = &ids;
    op.started_at = 5 * second;
    op.finished_at = 12 * second;
    const Case = struct {
        missing: base.Mask,
        outside: base.Mask = .empty,
        wanted: []const u8,
    };
    var one: base.Mask = .empty;
    one.set(3);
    for ([_]Case{
        .{
            .missing = .empty,
            .wanted = "(probably another member has not called it, or is stuck)",
        },
        .{
            .missing = one,
            .wanted = "(waiting for 7 s for rank 3 (node7:42, 7f3a0103), which has not called it)",
        },
        .{
            .missing = .full(6),
            .wanted = "(waiting for 7 s for rank 0 (this peer) and rank 1 (7f3a0101) and rank 2 " ++
                "(7f3a0102) and rank 3 (node7:42, 7f3a0103) and 2 more, which have not called it)",
        },
        .{
            .missing = .full(6),
            .outside = one,
            .wanted = "which have not called it; rank 3 (node7:42, 7f3a0103) has not " ++
                "entered the epoch, as a member from before does when its program calls admit)",
        },
    }) |case| for ([_]session.Status{ .deadline_exceeded, .aborted, .in_doubt }) |value| {
        fail(&op, called(.barrier), .{
            .status = value,
            .reason = .deadline,
            .missing = case.missing,
            .outside = case.outside,
        });
        name_all(&op, ids[0..4]);
        op.names.items[3].label = .shown("node7:42");
        const parts = [_][]const u8{ case.wanted, " timed out: " };
        try expect_says(status.of(value), sentence.operation(&op), &parts);
    };
    // The members it waited for waited in another call.
    fail(&op, called(.barrier), .{ .status = .deadline_exceeded, .reason = .deadline });
    name_all(&op, ids[0..3]);
    op.op.epoch = 4;
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 2; // of which one is not missing any more
    for (op.failure.elsewhere.items[0..2], 1..) |*waits, rank| waits.* = .{
        .rank = @intCast(rank),
        .kind = .all_gather,
        .op = .{ .tag = 9, .sequence = 2 },
        .waits_for = 0,
        .count = 2,
    };
    try expect_says(.deadline_exceeded, sentence.operation(&op), &.{"for rank 1 (7f3a0101), " ++
        "which has not called it; rank 1 (7f3a0101) waits in all_gather (tag 9, sequence 2 of " ++
        "epoch 4) for rank 0 (this peer) and 1 more)"});
}

fn name_all(op: *session.Operation, ids: []const base.PeerId) void {
    op.names.self = ids[0];
    op.names.count = ids.len;
    for (op.names.items[0..ids.len], ids, 0..) |*name, id, rank|
        name.* = .{ .id = id, .rank = @intCast(rank), .label = .{} };
}

test "a group and a safe point whose deadline passed say that they timed out" {
    const late = status.Status.deadline_exceeded;
    const words = [_][]const u8{"timed out"};
    const count: session.Group.Attendance = .{ .here = 1, .needed = 2, .emptied = false };
    try expect_says(late, sentence.membership(late_member, ""), &words);
    try expect_says(late, sentence.membership(late_member, "rank 1 must call admit"), &words);
    try expect_says(late, sentence.too_few_came("g", &count), &.{ "timed out", "It begins when " ++
        "2 are: initial_world_size says so, or the variable PCCL_INITIAL_WORLD_SIZE" });
    for ([_]?session.Group.Attendance{ null, count }) |attendance| {
        const why: net.Membership.Failure = .{ .status = late_member, .attendance = attendance };
        try expect_says(late, sentence.join(error.DeadlineExceeded, &why, "g"), &words);
    }
}

const late_member = session.Status.deadline_exceeded;

test "with the coordinator gone, no member is blamed, and the error says since when" {
    var op: session.Operation = undefined;
    const Case = struct { away_ns: ?u64, wanted: []const u8 };
    for ([_]Case{
        .{ .away_ns = 12 * second, .wanted = "connection to the coordinator was lost 12 s ago" },
        .{ .away_ns = null, .wanted = "nothing was heard from the coordinator for 15 s" },
    }) |case| for ([_]session.Status{ .in_doubt, .deadline_exceeded }) |value| {
        fail(&op, called(.barrier), .{
            .status = value,
            .reason = .deadline,
            .missing = .full(3),
            .coordinator_away_ns = case.away_ns,
            .coordinator_silent_ns = 15 * second,
        });
        try expect_says(status.of(value), sentence.operation(&op), &.{case.wanted});
        try expect(!said("has not called"));
    };
    const gone = session.Status.coordinator_unreachable;
    fail(&op, called(.barrier), .{ .status = gone, .coordinator_away_ns = 7 * second });
    try expect_says(status.of(gone), sentence.operation(&op), &.{"was lost 7 s ago. "});
}

test "a sync is named by its state, also where others wait in one" {
    var ids: [2]base.PeerId = .{ .from_int(1 << 120), .from_int(2 << 120) };
    var op: session.Operation = undefined;
    op.ids = &ids;
    var moved: session.Sync = undefined;
    op.started_at = 0;
    op.finished_at = second;
    fail(&op, called(.sync), .{ .status = .deadline_exceeded, .reason = .deadline });
    op.work = .{ .sync = &moved };
    op.op.epoch = 4;
    op.op.id = .{ .tag = 7, .sequence = 2 };
    const longest = "x" ** base.limits.label_bytes_max;
    op.names = .{ .self = ids[0], .states_count = 2 };
    op.names.states[0] = .{ .tag = 7, .name = .shown("weights") };
    op.names.states[1] = .{ .tag = 9, .name = .shown(longest) };
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 1;
    op.failure.elsewhere.items[0] = .{
        .rank = 1,
        .kind = .sync,
        .op = .{ .tag = 9, .sequence = 0 },
        .waits_for = 0,
        .count = 1,
    };
    try expect_says(.deadline_exceeded, sentence.operation(&op), &.{
        "sync of \"weights\" (sequence 2 of epoch 4) timed out: the",
        "waits in sync of \"" ++ longest ++ "\" (sequence 0 ",
    });
}

test "a mismatch names both peers and both calls" {
    var op: session.Operation = undefined;
    fail(&op, called(.all_reduce), .{
        .status = .mismatch,
        .reason = .mismatch,
        .peer = .from_int(0xaabbccdd << 96),
        .other = .from_int(0x11223344 << 96),
        .descriptor = called(.all_reduce),
        .other_descriptor = called(.all_reduce),
    });
    op.failure.other_descriptor.?.count = 999;
    op.op.id = .{ .tag = 5, .sequence = 7 };
    const parts = [_][]const u8{ "tag 5", "aabbccdd", "11223344", "6 f32", "999 f32" };
    try expect_says(.mismatch, sentence.operation(&op), &parts);
    // They agree about the call, and not about its chunks.
    op.failure.reason = .contradiction;
    const chunks = [_][]const u8{ "aabbccdd", "11223344", "chunks" };
    try expect_says(.mismatch, sentence.operation(&op), &chunks);
}

test "a mismatch of kinds and shapes says what each has, as far as the form tells it" {
    const Case = struct { form: u64, other: []const u8, more: []const u8 = differ_in_shape };
    for ([_]Case{
        .{ .form = 2 << 32, .other = "all_reduce(sum, 6 f32, rows of 2)" },
        .{ .form = 0, .other = "all_reduce(sum, 6 f32, one dimension)" },
        .{ .form = 9 << 60, .other = "all_reduce(sum, 6 f32, three or more dimensions)" },
        .{ .form = 3 << 32 | 7, .other = "all_reduce(sum, 6 f32)", .more = differ_in_form },
        .{ .form = 2 << 32 | 7, .other = "all_reduce(sum, 6 f32)", .more = differ_in_form },
    }) |case| {
        var own = called(.all_reduce);
        own.counts = 3 << 32;
        // Names may lie over a shape.
        const shown = if (case.form >> 32 == 3) "(sum, 6 f32)" else "(sum, 6 f32, rows of 3)";
        try expect_mismatch(own, case.form, &.{ shown, case.other, case.more });
    }
    var bytes = called(.broadcast);
    bytes.dtype = .u8;
    try expect_mismatch(bytes, 7, &.{ "broadcast(6 u8 from", differ_in_form });
    // The element type says it all.
    try expect_mismatch(bytes, wire.form_bool, &.{ "(6 u8 from", "broadcast(6 bool from" });
    try expect(!said(differ_in_form));
}

fn expect_mismatch(own: Descriptor, other_form: u64, parts: []const []const u8) !void {
    var op: session.Operation = undefined;
    fail(&op, own, .{ .status = .mismatch, .reason = .mismatch, .descriptor = own });
    op.failure.other_descriptor = own;
    op.failure.other_descriptor.?.counts = other_form;
    try expect_says(.mismatch, sentence.operation(&op), parts);
}

test "a mismatch of objects names the call that their user made, and none of its bytes" {
    const Case = struct { kind: wire.control.OpKind, form: u64, words: []const u8 };
    for ([_]Case{
        .{ .kind = .broadcast, .form = 0, .words = "broadcast(6 u8 from peer 01000000)" },
        .{ .kind = .all_gather, .form = wire.form_object, .words = "all_gather_object()" },
        .{ .kind = .barrier, .form = wire.form_object, .words = "barrier()" },
    }) |case| {
        var op: session.Operation = undefined;
        var own = called(.broadcast);
        own.dtype = .u8;
        own.root = .from_int(1 << 120);
        var other = own;
        own.counts = wire.form_object;
        other.kind = case.kind;
        other.counts = case.form;
        fail(&op, own, .{
            .status = .mismatch,
            .reason = .mismatch,
            .descriptor = own,
            .other_descriptor = other,
        });
        op.names.ranks = 2;
        op.form = wire.form_object;
        try expect_says(.mismatch, sentence.operation(&op), &.{
            "broadcast_object (tag 0, ",
            "broadcast_object(from peer 01000000)",
            case.words,
        });
        try expect(!said(differ_in_form));
    }
}

/// The words of a call, beside those of another one (engine/wire/described.zig).
fn described(own: Descriptor, other: ?Descriptor, ranks: usize, room: *[320]u8) []const u8 {
    const names: session.Names = .{ .ranks = ranks };
    return std.fmt.bufPrint(room, "{f}", .{wire.Described(*const session.Names){
        .descriptor = &own,
        .other = if (other) |*it| it else null,
        .names = &names,
    }}) catch unreachable;
}

test "a mismatch of shards that are alike says how large one is, as their callers do" {
    const Case = struct { wire.control.OpKind, u64, u32, []const u8 };
    for ([_]Case{
        .{ .all_gather, 6, 0, "all_gather(3 f32 of each rank)" },
        .{ .gather, 6, 0, "gather(3 f32 of each rank to peer 01000000)" },
        .{ .scatter, 6, 0, "scatter(3 f32 for each rank from peer 01000000)" },
        .{ .all_to_all, 12, 0, "all_to_all(3 f32 for each rank)" },
        .{ .reduce_scatter, 6, 0, "reduce_scatter(sum, 6 f32)" },
        .{ .all_gather, 6, 2, "all_gather(6 f32 together, shards of different sizes)" },
    }) |case| {
        var descriptor = called(case[0]);
        descriptor.count = case[1];
        descriptor.root = .from_int(1 << 120);
        descriptor.outline.dtypes = case[2];
        var room: [320]u8 = undefined;
        try std.testing.expectEqualStrings(case[3], described(descriptor, descriptor, 2, &room));
    }
}

test "a mismatch shows every option in which calls can differ, the longest whole" {
    const full: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .bf16,
        .op = .prod,
        .recovery = .resume_chunks,
        .codec = .{ .kind = .fp8_e4m3, .block = .b256, .rounding = .stochastic },
        .plan = .direct,
        .count = base.limits.elements_max,
        .root = .from_int(std.math.maxInt(u128)),
        .safe_points = std.math.maxInt(u64),
    };
    var room: [320]u8 = undefined;
    const whole = "all_reduce(prod, 1099511627776 bf16, recovery resume, codec fp8_e4m3 block " ++
        "256 not rotated stochastic, plan direct, after 18446744073709551615 safe points)";
    try std.testing.expectEqualStrings(whole, described(full, null, 0, &room));
    var further: [320]u8 = undefined;
    inline for (.{ "recovery", "recovery", "codec", "codec", "plan", "safe_points" }, .{
        wire.control.Recovery.restart,
        wire.control.Recovery.raise,
        base.Codec.of(.int8),
        base.Codec.of(.fp8_e4m3),
        base.Plan.ring,
        0,
    }) |field, value| {
        var differs = full;
        @field(differs, field) = value;
        const one = described(full, differs, 0, &room);
        try expect(!std.mem.eql(u8, one, described(differs, full, 0, &further)));
    }
    for (std.enums.values(wire.control.OpKind)) |kind| {
        var differs = full;
        differs.kind = kind;
        try expect(std.mem.endsWith(u8, described(differs, null, 0, &room), "safe points)"));
    }
}

test "a mismatch names only the options that its caller has chosen and in which the calls differ" {
    const plain = called(.all_reduce);
    var mean = plain;
    mean.op = .avg;
    mean.recovery = .resume_chunks;
    var careful = plain;
    careful.recovery = .raise;
    var ahead = careful;
    ahead.safe_points = 26;
    var meeting = careful;
    meeting.kind = .barrier;
    var room: [320]u8 = undefined;
    for ([_]struct { Descriptor, Descriptor, []const u8 }{
        .{ plain, mean, "all_reduce(sum, 6 f32)" },
        .{ mean, plain, "all_reduce(avg, 6 f32)" },
        .{ plain, careful, "all_reduce(sum, 6 f32)" },
        .{ careful, plain, "all_reduce(sum, 6 f32, recovery raise)" },
        .{ ahead, careful, "all_reduce(sum, 6 f32, after 26 safe points)" },
        .{ meeting, plain, "barrier(recovery raise)" },
        .{ meeting, careful, "barrier()" },
    }) |case| try std.testing.expectEqualStrings(case[2], described(case[0], case[1], 0, &room));
}
