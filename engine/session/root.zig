//! session: one peer process without its sockets. It joins protocol and collective with links,
//! lanes and the user's calls. net/ drives a session with real connections, tests/sim with
//! simulated ones. session.zig lists the duties of a driver ("for drivers"). Next: net/root.zig.

pub const call = @import("call.zig");

pub const Session = @import("session.zig").Session;
pub const Host = @import("session.zig").Host;
pub const GroupEvent = @import("session.zig").GroupEvent;
pub const FaultPoint = @import("session.zig").FaultPoint;
pub const LogLevel = @import("session.zig").LogLevel;
pub const Lane = @import("link.zig").Lane;
pub const Link = @import("link.zig").Link;
pub const Pace = @import("flow.zig").Pace;
pub const Rates = @import("session.zig").Rates;
pub const Sample = @import("flow.zig").Sample;
pub const Group = @import("group.zig").Group;
pub const PathsNow = @import("measure.zig").PathsNow;
pub const Names = @import("operation.zig").Names;
pub const Call = call.Call;
pub const CallError = call.CallError;
pub const Array = call.Array;
pub const all_to_all_ranks_max = call.all_to_all_ranks_max;
pub const control = @import("control.zig");
pub const driver = @import("driver.zig");
pub const user = @import("user.zig");
pub const sync = @import("sync.zig");
pub const label_of = @import("session.zig").label_of;
pub const membership = @import("membership.zig");
pub const Operation = @import("operation.zig").Operation;
pub const Span = @import("call.zig").Span;
pub const State = @import("state.zig").State;
pub const Sync = @import("state.zig").Sync;
pub const Transfer = @import("state.zig").Transfer;
pub const Tensor = @import("state.zig").Tensor;
pub const Status = @import("protocol").Status;
pub const How = @import("protocol").Member.How;

test {
    _ = @import("driver.zig");
    _ = @import("session.zig");
    _ = @import("link.zig");
    _ = @import("measure_test.zig");
    _ = @import("pace.zig");
    _ = @import("flow.zig");
    _ = @import("measure.zig");
    _ = @import("pace_test.zig");
    _ = @import("state_test.zig");
    _ = @import("dial_test.zig");
    _ = @import("membership_test.zig");
    _ = @import("operation.zig");
    _ = @import("dial.zig");
    _ = @import("call.zig");
    _ = @import("group.zig");
    _ = @import("state.zig");
    _ = @import("membership.zig");
    _ = @import("sync.zig");
    _ = @import("sync_test.zig");
    _ = @import("world_test.zig");
    _ = @import("hostile_test.zig");
    _ = @import("session_test.zig");
    _ = @import("frame_test.zig");
    _ = @import("rules_test.zig");
}
