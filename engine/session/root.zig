//! session: one peer process without its sockets: protocol and collective put together, with links,
//! lanes and the calls of the user. net/ drives it with real connections, tests/sim with simulated
//! ones. The duties of a driver: session.zig, "for drivers". Next: net/root.zig.

const call = @import("call.zig");
const host = @import("host.zig");
const session = @import("session.zig");

pub const Session = session.Session;
pub const Host = host.Host;
pub const GroupEvent = host.GroupEvent;
pub const FaultPoint = host.FaultPoint;
pub const LogLevel = host.LogLevel;
pub const Lane = @import("link.zig").Lane;
pub const Link = @import("link.zig").Link;
pub const Pace = @import("flow.zig").Pace;
pub const Rates = @import("rates.zig").Rates;
pub const Sample = @import("flow.zig").Sample;
pub const Group = @import("group.zig").Group;
pub const Names = @import("names.zig").Names;
pub const Call = call.Call;
pub const CallError = call.CallError;
pub const Array = call.Array;
pub const all_to_all_ranks_max = call.all_to_all_ranks_max;
pub const calls = @import("calls.zig");
pub const control = @import("control.zig");
pub const driver = @import("driver.zig");
pub const labels = @import("labels.zig");
pub const lanes = @import("lanes.zig");
pub const joining = @import("joining.zig");
pub const syncing = @import("syncing.zig");
pub const waits = @import("waits.zig");
pub const outline = @import("outline.zig");
pub const Operation = @import("operation.zig").Operation;
pub const Span = @import("uses.zig").Span;
pub const State = @import("state.zig").State;
pub const Sync = @import("sync.zig").Sync;
pub const Transfer = @import("transfer.zig").Transfer;
pub const Tensor = @import("state.zig").Tensor;
pub const Status = @import("protocol").Status;
pub const How = @import("protocol").Member.How;

test {
    _ = @import("driver.zig");
    _ = @import("session.zig");
    _ = @import("early.zig");
    _ = @import("figures_test.zig");
    _ = @import("aging.zig");
    _ = @import("flow.zig");
    _ = @import("measure.zig");
    _ = @import("pace.zig");
    _ = @import("peak.zig");
    _ = @import("probe.zig");
    _ = @import("probing_test.zig");
    _ = @import("rates.zig");
    _ = @import("spread.zig");
    _ = @import("together.zig");
    _ = @import("link.zig");
    _ = @import("dial_back_test.zig");
    _ = @import("founding_test.zig");
    _ = @import("measure_test.zig");
    _ = @import("names.zig");
    _ = @import("links.zig");
    _ = @import("outline.zig");
    _ = @import("group.zig");
    _ = @import("operation.zig");
    _ = @import("state.zig");
    _ = @import("unreached.zig");
    _ = @import("uses.zig");
    _ = @import("vote.zig");
    _ = @import("vote_test.zig");
    _ = @import("waits.zig");
    _ = @import("waits_test.zig");
    _ = @import("sync.zig");
    _ = @import("prefetch.zig");
    _ = @import("requests.zig");
    _ = @import("transfer.zig");
    _ = @import("sync_test.zig");
    _ = @import("sync_lanes_test.zig");
    _ = @import("surplus_test.zig");
    _ = @import("hashing_test.zig");
    _ = @import("traffic.zig");
    _ = @import("world_test.zig");
    _ = @import("hostile_test.zig");
    _ = @import("outgoing_test.zig");
    _ = @import("queue_test.zig");
    _ = @import("rules_test.zig");
}
