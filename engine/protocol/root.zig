//! protocol: the two sans-I/O state machines that decide membership and outcomes: Coordinator, and
//! Member, which is one peer's membership of a group. Both receive messages and the time, and
//! answer with messages. Neither has sockets, clocks, threads or randomness of its own. The reasons
//! of the rules: docs/internals/PROMISE.md; the messages: wire/control.zig. Read session/root.zig
//! next.

pub const Coordinator = @import("coordinator.zig").Coordinator;
pub const Phase = @import("group.zig").Group.Phase;
pub const Connection = @import("coordinator.zig").Connection;
pub const Member = @import("member.zig").Member;
pub const Op = @import("member.zig").Op;
pub const Failure = @import("member.zig").Failure;
pub const Status = @import("member.zig").Status;
pub const addresses = @import("address.zig");
pub const LogLevel = @import("coordinator.zig").LogLevel;
pub const Elsewhere = @import("record.zig").Told;
pub const History = @import("epoch.zig").History;
pub const journal = @import("journal.zig");

test {
    _ = @import("membership.zig");
    _ = @import("address.zig");
    _ = @import("address_test.zig");
    _ = @import("attempt.zig");
    _ = @import("debt.zig");
    _ = @import("debt_test.zig");
    _ = @import("coordinator.zig");
    _ = @import("group.zig");
    _ = @import("founding_test.zig");
    _ = @import("epoch.zig");
    _ = @import("election.zig");
    _ = @import("path.zig");
    _ = @import("peer.zig");
    _ = @import("operation_test.zig");
    _ = @import("operation.zig");
    _ = @import("member.zig");
    _ = @import("status_test.zig");
    _ = @import("journal.zig");
    _ = @import("membership_test.zig");
    _ = @import("record.zig");
    _ = @import("matrix.zig");
    _ = @import("measurement_test.zig");
    _ = @import("run.zig");
    _ = @import("door_test.zig");
    _ = @import("sequence.zig");
    _ = @import("log_test.zig");
    _ = @import("run_test.zig");
    _ = @import("hostile_test.zig");
    _ = @import("coordinator_test.zig");
}
