//! net: the only code that talks to the operating system: sockets, threads, clocks, signals. net
//! drives the sans-I/O layers: session.Session in a peer (peer_engine.zig), protocol.Coordinator
//! (coordinator_engine.zig). This layer decides nothing about membership or data. Next:
//! abi/root.zig, the C interface on top.

pub const address = @import("address.zig");
pub const clock = @import("clock.zig");
pub const CoordinatorEngine = @import("coordinator_engine.zig").CoordinatorEngine;
pub const fault = @import("fault.zig");
pub const journal = @import("journal.zig");
pub const lock = @import("lock.zig");
pub const log = @import("log.zig");
pub const Membership = @import("membership.zig").Membership;
pub const PeerEngine = @import("peer_engine.zig").PeerEngine;
pub const poller = @import("poller.zig");
pub const random = @import("random.zig");
pub const secret = @import("secret.zig");
pub const SharedState = @import("shared_state.zig").SharedState;
pub const socket = @import("socket.zig");
pub const status_client = @import("status_client.zig");
pub const tcp = @import("tcp.zig");
pub const Work = @import("work.zig").Work;
pub const Workers = @import("worker.zig").Workers;

test {
    _ = @import("address.zig");
    _ = @import("clock.zig");
    _ = @import("connection.zig");
    _ = @import("coordinator_engine.zig");
    _ = @import("descriptor.zig");
    _ = @import("dial.zig");
    _ = @import("fault.zig");
    _ = @import("finder.zig");
    _ = @import("fixture.zig");
    _ = @import("journal.zig");
    _ = @import("lock.zig");
    _ = @import("log.zig");
    _ = @import("loopback_test.zig");
    _ = @import("membership.zig");
    _ = @import("peer_engine.zig");
    _ = @import("poller.zig");
    _ = @import("private.zig");
    _ = @import("random.zig");
    _ = @import("secret.zig");
    _ = @import("shared_state.zig");
    _ = @import("socket.zig");
    _ = @import("status_client.zig");
    _ = @import("tcp.zig");
    _ = @import("thread.zig");
    _ = @import("work.zig");
    _ = @import("worker.zig");
}
