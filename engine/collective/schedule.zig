//! schedule: the way that the data of one attempt takes, as a call asks for it. Broken links may
//! give an attempt another schedule: session/frame.zig. The schedules themselves: ring.zig,
//! direct.zig.

const std = @import("std");
const control = @import("wire").control;

/// The way that the data of one attempt takes: from each member to the next, or to the owners and
/// back.
pub const Schedule = enum {
    ring,
    direct,

    /// The schedule that a call asks for. With the plan `auto`, encoded contributions go straight
    /// to their owners, so that each is encoded once. An average with the codec f16 is always
    /// direct, because sums of a ring have no room in f16 (board.zig: shift).
    pub fn of(descriptor: *const control.Descriptor) Schedule {
        const is_average = descriptor.kind.reduces() and descriptor.op == .avg;
        if (is_average and descriptor.codec.kind == .f16) return .direct;
        return switch (descriptor.plan) {
            .auto => if (descriptor.codec.kind != .none or descriptor.kind.carries()) .direct //
            else .ring,
            .ring => .ring,
            .direct => .direct,
        };
    }
};

test "an average with the codec f16 goes directly, whatever the plan; others go as they are asked" {
    const base = @import("base");
    for (std.enums.values(base.codec.Kind)) |kind| for (std.enums.values(base.ReduceOp)) |op| {
        const descriptor: control.Descriptor = .{
            .kind = .all_reduce,
            .dtype = .f32,
            .op = op,
            .recovery = .restart,
            .codec = .of(kind),
            .plan = .ring,
            .count = 1,
            .safe_points = 0,
        };
        const is_direct = kind == .f16 and op == .avg;
        try std.testing.expectEqual(is_direct, Schedule.of(&descriptor) == .direct);
    };
}
