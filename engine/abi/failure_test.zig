//! failure_test: the sentences about operations that have failed (failure_operation.zig), and what
//! holds for those of failure.zig, too.

const std = @import("std");
const base = @import("base");
const collective = @import("collective");
const net = @import("net");
const wire = @import("wire");
const session = @import("session");
const failure = @import("failure.zig");
const failure_operation = @import("failure_operation.zig");
const status = @import("status.zig");
const Descriptor = wire.control.Descriptor;
const Error = status.Error;
const describe = failure_operation.describe;
const description_bytes_max = failure_operation.description_bytes_max;
const differ_in_form = failure_operation.differ_in_form;
const differ_in_shape = failure_operation.differ_in_shape;
const membership = failure.membership;
const operation = failure_operation.operation;

fn expect_words_of_both_languages(err: Error) !void {
    try std.testing.expect(status.code(err) != .ok);
    const sentence = std.mem.span(status.pccl_last_error());
    for ([_][]const u8{ "pccl_", "_ns", "NULL" }) |word| {
        try std.testing.expectEqual(null, std.mem.indexOf(u8, sentence, word));
    }
}

/// A collective without memory, and that knows no names.
fn moves_nothing(op: *session.Operation) void {
    op.names = .{};
    op.work = .{ .movement = &op.room };
    op.room.memory.arrays = .{
        .list = &.{},
        .places = &.{},
        .is_kept = &.{},
        .result_bytes = 0,
        .encoded_bytes = 0,
    };
}

test "no sentence about a group or an operation has a word that only C knows" {
    var group: session.Group = undefined;
    group.removed("it was away");
    for (std.enums.values(session.Status)) |value| {
        try expect_words_of_both_languages(membership(value, "it was away"));
        if (value == .ok) continue;
        var op: session.Operation = undefined;
        moves_nothing(&op);
        op.op = .{ .descriptor = undefined, .chunks = 1 };
        op.op.descriptor.kind = .barrier;
        op.status = value;
        op.failure = .{ .status = value };
        op.group = &group;
        try expect_words_of_both_languages(operation(&op));
    }
    try expect_words_of_both_languages(failure.admit(error.Busy));
    try expect_words_of_both_languages(failure.begin(error.NotAdmitted, &.{
        .kind = .barrier,
        .deadline = 0,
    }));
}

test "an operation and a safe point say the same of why the coordinator removed this peer" {
    const why = "it was away\x1b";
    var group: session.Group = undefined;
    group.removed(why);
    var op: session.Operation = undefined;
    op.group = &group;
    moves_nothing(&op);
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .barrier;
    op.status = .expelled;
    for ([_]bool{ true, false }) |is_operation| {
        const err = if (is_operation) operation(&op) else //
            membership(.expelled, group.why_removed());
        try std.testing.expectEqual(.expelled, status.code(err));
        const sentence = std.mem.span(status.pccl_last_error());
        const wanted = failure.removed ++ "it was away\\x1b. ";
        try std.testing.expect(std.mem.indexOf(u8, sentence, wanted) != null);
    }
}

test "a call of a newcomer that was refused says what it called, and what the members did" {
    const why = "it called all_gather(999 f32) where the members called all_gather(1000 f32)";
    var group: session.Group = undefined;
    group.removed(why);
    var op: session.Operation = undefined;
    op.group = &group;
    moves_nothing(&op);
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .all_gather;
    op.status = .mismatch;
    op.failure = .{ .status = .mismatch };
    try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, sentence, "go on without it: " ++ why) != null);
}

test "a call whose deadline passed names those it waited for, or says what is probable" {
    var ids: [6]base.PeerId = undefined;
    for (&ids, 0..) |*id, rank| id.* = .from_int(@as(u128, 0x7f3a0100 + rank) << 96);
    var op: session.Operation = undefined;
    op.ids = &ids;
    moves_nothing(&op);
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .barrier;
    op.started_at = 5 * std.time.ns_per_s;
    op.finished_at = 12 * std.time.ns_per_s;
    op.names = .{ .self = ids[0], .count = 4 };
    for (op.names.items[0..4], ids[0..4], 0..) |*name, id, rank|
        name.* = .{ .id = id, .rank = @intCast(rank), .label = .{} };
    op.names.items[3].label = .shown("node7:42");
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
    }) |case| {
        for ([_]session.Status{ .deadline_exceeded, .aborted, .in_doubt }) |value| {
            op.status = value;
            op.failure = .{
                .status = value,
                .reason = .deadline,
                .missing = case.missing,
                .outside = case.outside,
            };
            try std.testing.expect(status.code(operation(&op)) != .ok);
            const sentence = std.mem.span(status.pccl_last_error());
            try std.testing.expect(std.mem.indexOf(u8, sentence, case.wanted) != null);
            try std.testing.expect(std.mem.indexOf(u8, sentence, " timed out: ") != null);
        }
    }
}

test "a group and a safe point whose deadline passed say that they timed out" {
    const count: session.Group.Attendance = .{ .here = 1, .needed = 2, .emptied = false };
    try expect_timed_out(membership(.deadline_exceeded, ""));
    try expect_timed_out(membership(.deadline_exceeded, "rank 1 must call admit first"));
    try expect_timed_out(failure.too_few_came("g", &count));
    const sentence = std.mem.span(status.pccl_last_error());
    const wanted = "It begins when 2 are: initial_world_size says so, or the variable " ++
        "PCCL_INITIAL_WORLD_SIZE";
    try std.testing.expect(std.mem.indexOf(u8, sentence, wanted) != null);
    for ([_]?session.Group.Attendance{ null, count }) |attendance| {
        const why: net.Membership.Failure = .{
            .status = .deadline_exceeded,
            .attendance = attendance,
        };
        try expect_timed_out(failure.join(error.DeadlineExceeded, &why, "g"));
    }
}

fn expect_timed_out(err: Error) !void {
    try std.testing.expectEqual(.deadline_exceeded, status.code(err));
    const sentence = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, sentence, "timed out") != null);
}

test "a call whose deadline passed says what those it waited for waited in themselves" {
    var ids: [3]base.PeerId = undefined;
    for (&ids, 0..) |*id, rank| id.* = .from_int(@as(u128, 0x7f3a0100 + rank) << 96);
    var op: session.Operation = undefined;
    op.ids = &ids;
    moves_nothing(&op);
    op.op = .{ .descriptor = undefined, .chunks = 1, .epoch = 4 };
    op.op.descriptor.kind = .barrier;
    op.started_at = 0;
    op.finished_at = 7 * std.time.ns_per_s;
    op.names = .{ .self = ids[0], .count = 3 };
    for (op.names.items[0..3], ids, 0..) |*name, id, rank|
        name.* = .{ .id = id, .rank = @intCast(rank), .label = .shown("n") };
    op.status = .deadline_exceeded;
    op.failure = .{ .status = .deadline_exceeded, .reason = .deadline };
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 2; // of which one is not missing any more
    for (op.failure.elsewhere.items[0..2], 1..) |*waits, rank| waits.* = .{
        .rank = @intCast(rank),
        .kind = .all_gather,
        .op = .{ .tag = 9, .sequence = 2 },
        .waits_for = 0,
        .count = 2,
    };
    try std.testing.expect(status.code(operation(&op)) != .ok);
    const sentence = std.mem.span(status.pccl_last_error());
    const wanted = "for rank 1 (n, 7f3a0101), which has not called it; rank 1 (n, 7f3a0101) " ++
        "waits in all_gather (tag 9, sequence 2 of epoch 4) for rank 0 (this peer) and 1 more)";
    try std.testing.expect(std.mem.indexOf(u8, sentence, wanted) != null);
}

test "with the coordinator gone, no member is blamed, and the error says since when" {
    var op: session.Operation = undefined;
    moves_nothing(&op);
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .barrier;
    const second = std.time.ns_per_s;
    const Case = struct { away_ns: ?u64, silent_ns: u64, wanted: []const u8 };
    for ([_]Case{
        .{
            .away_ns = 12 * second,
            .silent_ns = 15 * second,
            .wanted = "the connection to the coordinator was lost 12 s ago",
        },
        .{
            .away_ns = null,
            .silent_ns = 15 * second,
            .wanted = "nothing was heard from the coordinator for 15 s",
        },
    }) |case| for ([_]session.Status{ .in_doubt, .deadline_exceeded }) |value| {
        op.status = value;
        op.failure = .{
            .status = value,
            .reason = .deadline,
            .missing = .full(3),
            .coordinator_away_ns = case.away_ns,
            .coordinator_silent_ns = case.silent_ns,
        };
        try std.testing.expect(status.code(operation(&op)) != .ok);
        const sentence = std.mem.span(status.pccl_last_error());
        try std.testing.expect(std.mem.indexOf(u8, sentence, case.wanted) != null);
        try std.testing.expectEqual(null, std.mem.indexOf(u8, sentence, "has not called"));
    };
    op.status = .coordinator_unreachable;
    op.failure = .{ .status = op.status, .coordinator_away_ns = 7 * second };
    try std.testing.expectEqual(.coordinator_unreachable, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    try std.testing.expect(std.mem.indexOf(u8, sentence, "was lost 7 s ago. ") != null);
}

test "a sync is named by its state, also where others wait in one" {
    var ids: [2]base.PeerId = .{ .from_int(1 << 120), .from_int(2 << 120) };
    var op: session.Operation = undefined;
    op.ids = &ids;
    var moved: session.Sync = undefined;
    op.work = .{ .sync = &moved };
    op.op = .{ .descriptor = undefined, .chunks = 1, .epoch = 4 };
    op.op.id = .{ .tag = 7, .sequence = 2 };
    op.op.descriptor.kind = .sync;
    op.started_at = 0;
    op.finished_at = std.time.ns_per_s;
    op.names = .{ .self = ids[0], .states_count = 2 };
    op.names.states[0] = .{ .tag = 7, .name = .shown("weights") };
    op.names.states[1] = .{ .tag = 9, .name = .shown("x" ** base.limits.label_bytes_max) };
    op.status = .deadline_exceeded;
    op.failure = .{ .status = .deadline_exceeded, .reason = .deadline };
    op.failure.missing.set(1);
    op.failure.elsewhere.count = 1;
    op.failure.elsewhere.items[0] = .{
        .rank = 1,
        .kind = .sync,
        .op = .{ .tag = 9, .sequence = 0 },
        .waits_for = 0,
        .count = 1,
    };
    const long = "waits in sync of \"" ++ "x" ** base.limits.label_bytes_max ++ "\" (sequence 0 ";
    const short = "sync of \"weights\" (sequence 2 of epoch 4) timed out: the";
    for ([_][]const u8{ short, long }) |part| {
        try std.testing.expect(status.code(operation(&op)) != .ok);
        const sentence = std.mem.span(status.pccl_last_error());
        try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
        op.names.states[0].name = op.names.states[1].name; // the longest takes no more room
    }
}

test "a contradiction about chunks names both peers" {
    var op: session.Operation = undefined;
    moves_nothing(&op);
    op.op = .{ .descriptor = undefined, .chunks = 1 };
    op.op.descriptor.kind = .all_reduce;
    op.status = .mismatch;
    op.failure = .{
        .status = .mismatch,
        .reason = .contradiction,
        .peer = .from_int(0xaabbccdd << 96),
        .other = .from_int(0x11223344 << 96),
    };
    try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    for ([_][]const u8{ "aabbccdd", "11223344", "chunks" }) |part| {
        try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
    }
}

test "a mismatch names both peers and both calls" {
    var op: session.Operation = undefined;
    moves_nothing(&op);
    var descriptor: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f32,
        .op = .sum,
        .recovery = .restart,
        .count = 1000,
        .safe_points = 3,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1, .epoch = 2 };
    op.op.id = .{ .tag = 5, .sequence = 7 };
    op.status = .mismatch;
    op.failure = .{
        .status = .mismatch,
        .reason = .mismatch,
        .peer = .from_int(0xaabbccdd << 96),
        .other = .from_int(0x11223344 << 96),
        .descriptor = descriptor,
    };
    descriptor.count = 999;
    op.failure.other_descriptor = descriptor;
    try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
    const sentence = std.mem.span(status.pccl_last_error());
    for ([_][]const u8{ "tag 5", "aabbccdd", "11223344", "1000 f32", "999 f32" }) |part| {
        try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
    }
}

test "a mismatch tells bool arrays from those of u8, and says no more where that is all" {
    var op: session.Operation = undefined;
    moves_nothing(&op);
    var descriptor: Descriptor = .{
        .kind = .broadcast,
        .dtype = .u8,
        .op = .sum,
        .recovery = .restart,
        .count = 10,
        .safe_points = 3,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1 };
    op.status = .mismatch;
    op.failure = .{ .status = .mismatch, .reason = .mismatch, .descriptor = descriptor };
    const Case = struct { form: u64, words: []const u8, is_all: bool };
    for ([_]Case{
        .{ .form = wire.form_bool, .words = "broadcast(10 bool from", .is_all = true },
        .{ .form = 7, .words = "broadcast(10 u8 from", .is_all = false },
    }) |case| {
        descriptor.counts = case.form;
        op.failure.other_descriptor = descriptor;
        try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
        const sentence = std.mem.span(status.pccl_last_error());
        for ([_][]const u8{ "broadcast(10 u8 from", case.words }) |part|
            try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
        const more = std.mem.indexOf(u8, sentence, differ_in_form);
        try std.testing.expectEqual(case.is_all, more == null);
    }
}

test "a mismatch of shapes says what each has, as far as the form tells it" {
    var op: session.Operation = undefined;
    moves_nothing(&op);
    var descriptor: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f32,
        .op = .sum,
        .recovery = .restart,
        .count = 6,
        .counts = 3 << 32,
        .safe_points = 3,
    };
    op.op = .{ .descriptor = descriptor, .chunks = 1 };
    op.status = .mismatch;
    op.failure = .{ .status = .mismatch, .reason = .mismatch, .descriptor = descriptor };
    const Case = struct { form: u64, words: []const u8, is_named: bool = false };
    for ([_]Case{
        .{ .form = 2 << 32, .words = "all_reduce(sum, 6 f32, rows of 2)" },
        .{ .form = 0, .words = "all_reduce(sum, 6 f32, one dimension)" },
        .{ .form = 9 << 60, .words = "all_reduce(sum, 6 f32, three or more dimensions)" },
        .{ .form = 3 << 32 | 7, .words = "all_reduce(sum, 6 f32)", .is_named = true },
        .{ .form = 2 << 32 | 7, .words = "all_reduce(sum, 6 f32)", .is_named = true },
    }) |case| {
        descriptor.counts = case.form;
        op.failure.other_descriptor = descriptor;
        try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
        const sentence = std.mem.span(status.pccl_last_error());
        // Names may lie over a shape.
        const shown = if (case.form >> 32 == 3) "(sum, 6 f32)" else "(sum, 6 f32, rows of 3)";
        const more = if (case.is_named) differ_in_form else differ_in_shape;
        for ([_][]const u8{ shown, case.words, more }) |part|
            try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
    }
}

test "a mismatch of objects names the call that their user made, and none of its bytes" {
    var op: session.Operation = undefined;
    moves_nothing(&op);
    op.names.ranks = 2;
    op.form = wire.form_object;
    var descriptor: Descriptor = .{
        .kind = .broadcast,
        .dtype = .u8,
        .op = .sum,
        .recovery = .restart,
        .count = 256,
        .root = .from_int(1 << 120),
        .safe_points = 3,
    };
    const Case = struct { kind: wire.control.OpKind, form: u64, words: []const u8 };
    for ([_]Case{
        .{ .kind = .broadcast, .form = 0, .words = "broadcast(256 u8 from peer 01000000)" },
        .{
            .kind = .all_gather,
            .form = wire.form_object,
            .words = "all_gather_object()",
        },
        .{ .kind = .barrier, .form = wire.form_object, .words = "barrier()" },
    }) |case| {
        op.op = .{ .descriptor = descriptor, .chunks = 1 };
        op.op.descriptor.counts = wire.form_object;
        op.status = .mismatch;
        op.failure = .{ .status = .mismatch, .reason = .mismatch };
        op.failure.descriptor = op.op.descriptor;
        descriptor.kind = case.kind;
        descriptor.counts = case.form;
        op.failure.other_descriptor = descriptor;
        descriptor.kind = .broadcast;
        try std.testing.expectEqual(.mismatch, status.code(operation(&op)));
        const sentence = std.mem.span(status.pccl_last_error());
        for ([_][]const u8{
            "broadcast_object (tag 0, ",
            "broadcast_object(from peer 01000000)",
            case.words,
        }) |part| try std.testing.expect(std.mem.indexOf(u8, sentence, part) != null);
        try std.testing.expectEqual(null, std.mem.indexOf(u8, sentence, differ_in_form));
    }
}

test "a mismatch of shards that are alike says how large one is, as their callers do" {
    const Kind = wire.control.OpKind;
    const Case = struct { kind: Kind, count: u64, dtypes: u32 = 0, words: []const u8 };
    for ([_]Case{
        .{ .kind = .all_gather, .count = 6, .words = "all_gather(3 f32 of each rank)" },
        .{ .kind = .gather, .count = 6, .words = "gather(3 f32 of each rank to peer 01000000)" },
        .{ .kind = .scatter, .count = 6, .words = "scatter(3 f32 for each rank from peer " ++
            "01000000)" },
        .{ .kind = .all_to_all, .count = 12, .words = "all_to_all(3 f32 for each rank)" },
        .{ .kind = .reduce_scatter, .count = 6, .words = "reduce_scatter(sum, 6 f32)" },
        .{
            .kind = .all_gather,
            .count = 6,
            .dtypes = 2,
            .words = "all_gather(6 f32 together, shards of different sizes)",
        },
    }) |case| {
        var descriptor: Descriptor = .{
            .kind = case.kind,
            .dtype = .f32,
            .op = .sum,
            .recovery = .restart,
            .count = case.count,
            .root = .from_int(1 << 120),
            .safe_points = 3,
        };
        descriptor.outline.dtypes = case.dtypes;
        var text: [description_bytes_max]u8 = undefined;
        const shown = describe(descriptor, descriptor, &.{ .ranks = 2 }, &text);
        try std.testing.expectEqualStrings(case.words, shown);
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
    var text: [description_bytes_max]u8 = undefined;
    const whole = "all_reduce(prod, 1099511627776 bf16, recovery resume, codec fp8_e4m3 block " ++
        "256 not rotated stochastic, plan direct, after 18446744073709551615 safe points)";
    try std.testing.expectEqualStrings(whole, describe(full, null, &.{}, &text));
    var other: [description_bytes_max]u8 = undefined;
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
        const one = describe(full, differs, &.{}, &text);
        try std.testing.expect(!std.mem.eql(u8, one, describe(differs, full, &.{}, &other)));
    }
    for (std.enums.values(wire.control.OpKind)) |kind| {
        if (kind == full.kind) continue;
        var differs = full;
        differs.kind = kind;
        const one = describe(differs, null, &.{}, &text);
        try std.testing.expect(std.mem.endsWith(u8, one, "safe points)"));
    }
}

test "a mismatch names only the options that its caller has chosen and in which the calls differ" {
    const Case = struct { own: Descriptor, other: Descriptor, words: []const u8 };
    const plain: Descriptor = .{
        .kind = .all_reduce,
        .dtype = .f64,
        .op = .sum,
        .recovery = .restart,
        .count = 1000,
        .safe_points = 25,
    };
    var mean = plain;
    mean.op = .avg;
    mean.recovery = .resume_chunks;
    var careful = plain;
    careful.recovery = .raise;
    var ahead = careful;
    ahead.safe_points = 26;
    var meeting = careful;
    meeting.kind = .barrier;
    var text: [description_bytes_max]u8 = undefined;
    for ([_]Case{
        .{ .own = plain, .other = mean, .words = "all_reduce(sum, 1000 f64)" },
        .{ .own = mean, .other = plain, .words = "all_reduce(avg, 1000 f64)" },
        .{ .own = plain, .other = careful, .words = "all_reduce(sum, 1000 f64)" },
        .{ .own = careful, .other = plain, .words = "all_reduce(sum, 1000 f64, recovery raise)" },
        .{
            .own = ahead,
            .other = careful,
            .words = "all_reduce(sum, 1000 f64, after 26 safe points)",
        },
        .{ .own = meeting, .other = plain, .words = "barrier(recovery raise)" },
        .{ .own = meeting, .other = careful, .words = "barrier()" },
    }) |case| {
        const said = describe(case.own, case.other, &.{}, &text);
        try std.testing.expectEqualStrings(case.words, said);
    }
}
