//! schedule: the way that the data of a call takes in an attempt, from what the call asks for and
//! the paths of the attempt (base.Paths). The schedules themselves: ring.zig, direct.zig.

const std = @import("std");
const base = @import("base");
const control = @import("wire").control;
const Paths = base.Paths;
const Shares = base.Shares;

/// The way that the data of one attempt takes: from each member to the next, or to the owners and
/// back.
pub const Schedule = enum {
    ring,
    direct,

    pub const Taken = struct {
        schedule: Schedule,
        /// The chunks that each hub owns in a direct schedule.
        shares: Shares = .{},
    };

    /// Chooses the way of a call of `bytes`. All members choose alike, because they know the same
    /// paths in an attempt, and have made the same call.
    pub fn along(paths: *const Paths, descriptor: *const control.Descriptor, bytes: u64) Taken {
        if (descriptor.uneven) return .{ .schedule = .direct };
        const wanted = asked(descriptor);
        if (wanted == .auto and bytes < paths.small_bytes) return .{ .schedule = .direct };
        if (!paths.has_ring) return .{ .schedule = .direct, .shares = paths.shares };
        if (paths.hubs.is_empty()) return .{ .schedule = .ring };
        // The plan is one for an all_reduce. Shares do not apply to chunks that one rank has, or
        // wants, and from a root straight to all one link would carry everything.
        const fits = descriptor.kind == .all_reduce or
            (!descriptor.kind.has_root() and paths.shares.is_even());
        const plan = if (wanted != .auto) wanted else if (fits) paths.plan else .ring;
        return switch (plan) {
            .auto => unreachable,
            .ring => .{ .schedule = .ring },
            .direct => .{ .schedule = .direct, .shares = paths.shares },
        };
    }

    /// The schedule that a call asks for; `auto` if it leaves the schedule to the paths. Encoded
    /// contributions go straight to their owners, so that each is encoded once. An average with the
    /// codec f16 is always direct, because sums of a ring have no room in f16 (board.zig: shift).
    fn asked(descriptor: *const control.Descriptor) base.Plan {
        const is_average = descriptor.kind.reduces() and descriptor.op == .avg;
        if (is_average and descriptor.codec.kind == .f16) return .direct;
        if (descriptor.plan != .auto) return descriptor.plan;
        const goes_straight = descriptor.codec.kind != .none or descriptor.kind.carries();
        return if (goes_straight) .direct else .auto;
    }
};

const test_descriptor: control.Descriptor = .{
    .kind = .all_reduce,
    .dtype = .f32,
    .op = .sum,
    .recovery = .restart,
    .count = 1,
    .safe_points = 0,
};

test "an average with the codec f16 goes directly, whatever the plan; others go as they are asked" {
    const paths: Paths = .all(&.full(4), 4);
    for (std.enums.values(base.codec.Kind)) |kind| for (std.enums.values(base.ReduceOp)) |op| {
        var descriptor = test_descriptor;
        descriptor.op = op;
        descriptor.codec = .of(kind);
        descriptor.plan = .ring;
        const is_direct = kind == .f16 and op == .avg;
        const taken = Schedule.along(&paths, &descriptor, 1 << 20);
        try std.testing.expectEqual(is_direct, taken.schedule == .direct);
    };
}

test "what a call leaves open follows from the paths: its size, its root, and the plan" {
    const expectEqual = std.testing.expectEqual;
    var paths: Paths = .all(&.full(4), 4);
    paths.small_bytes = 1000;
    paths.shares.of[1] = 3;
    var descriptor = test_descriptor;
    const small: Schedule.Taken = .{ .schedule = .direct };
    try expectEqual(small, Schedule.along(&paths, &descriptor, 999));
    try expectEqual(.ring, Schedule.along(&paths, &descriptor, 1000).schedule);
    paths.plan = .direct;
    const large: Schedule.Taken = .{ .schedule = .direct, .shares = paths.shares };
    try expectEqual(large, Schedule.along(&paths, &descriptor, 1000));
    for ([_]control.OpKind{ .broadcast, .reduce, .all_gather, .reduce_scatter }) |kind| {
        descriptor.kind = kind;
        try expectEqual(.ring, Schedule.along(&paths, &descriptor, 1000).schedule);
    }
    var even = paths;
    even.shares = .{};
    try expectEqual(.direct, Schedule.along(&even, &descriptor, 1000).schedule);
    descriptor.kind = .all_reduce;
    descriptor.codec = .of(.int8);
    try expectEqual(large, Schedule.along(&paths, &descriptor, 999));
    descriptor.plan = .ring;
    try expectEqual(.ring, Schedule.along(&paths, &descriptor, 999).schedule);
    descriptor.plan = .direct;
    paths.hubs = .empty;
    try expectEqual(.ring, Schedule.along(&paths, &descriptor, 999).schedule);
}
