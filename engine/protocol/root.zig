//! protocol: the sans-I/O state machines that decide membership and outcomes. One is the
//! coordinator; the other is each peer's membership of a group (Member). They receive messages and
//! the time, and answer with messages; they have no sockets, clocks, threads or randomness of their
//! own. Why these rules: docs/PROMISE.md; the messages: wire/control.zig. Next: session/root.zig.

pub const Coordinator = @import("coordinator.zig").Coordinator;
pub const Phase = @import("group.zig").Group.Phase;
pub const Connection = @import("coordinator.zig").Connection;
pub const Member = @import("member.zig").Member;
pub const Op = @import("member.zig").Op;
pub const Failure = @import("member.zig").Failure;
pub const Status = @import("member.zig").Status;
pub const addresses = @import("addresses.zig");
pub const LogLevel = @import("coordinator.zig").LogLevel;
pub const Elsewhere = @import("told_elsewhere.zig").Told;
pub const History = @import("history.zig").History;
pub const journal = @import("journal.zig");
pub const path_search = @import("path_search.zig");

test {
    _ = @import("activation.zig");
    _ = @import("addresses.zig");
    _ = @import("addresses_test.zig");
    _ = @import("attempts.zig");
    _ = @import("attendance.zig");
    _ = @import("attendance_test.zig");
    _ = @import("awaited.zig");
    _ = @import("awaited_test.zig");
    _ = @import("entering.zig");
    _ = @import("entering_test.zig");
    _ = @import("coordinator.zig");
    _ = @import("founding.zig");
    _ = @import("founding_test.zig");
    _ = @import("group.zig");
    _ = @import("epoch.zig");
    _ = @import("election.zig");
    _ = @import("elsewhere.zig");
    _ = @import("path_search.zig");
    _ = @import("asked.zig");
    _ = @import("asked_test.zig");
    _ = @import("broken.zig");
    _ = @import("look.zig");
    _ = @import("patience.zig");
    _ = @import("roster.zig");
    _ = @import("misfit.zig");
    _ = @import("misfit_test.zig");
    _ = @import("removals.zig");
    _ = @import("member.zig");
    _ = @import("dial_back_test.zig");
    _ = @import("history.zig");
    _ = @import("journal.zig");
    _ = @import("labels_test.zig");
    _ = @import("late.zig");
    _ = @import("matrix.zig");
    _ = @import("measured_test.zig");
    _ = @import("probes_test.zig");
    _ = @import("traffic.zig");
    _ = @import("hold.zig");
    _ = @import("lobby.zig");
    _ = @import("lobby_test.zig");
    _ = @import("holdings.zig");
    _ = @import("seal.zig");
    _ = @import("sequences.zig");
    _ = @import("disk_test.zig");
    _ = @import("status_rates.zig");
    _ = @import("queues_test.zig");
    _ = @import("complete_test.zig");
    _ = @import("hostile_test.zig");
    _ = @import("newcomers_test.zig");
    _ = @import("rounds_test.zig");
    _ = @import("door_test.zig");
    _ = @import("rates.zig");
    _ = @import("refusals_test.zig");
    _ = @import("rules_test.zig");
    _ = @import("silence_test.zig");
    _ = @import("owed_test.zig");
    _ = @import("stall_test.zig");
    _ = @import("turns.zig");
    _ = @import("standing_test.zig");
    _ = @import("unreached_test.zig");
    _ = @import("unseen.zig");
}
