//! net: the only code that talks to the operating system: sockets, threads, clocks, signals. It drives the
//! sans-I/O layers: session.Session in a peer (peer_engine.zig), protocol.Coordinator (coordinator_engine.zig).
//! It decides nothing about membership or data. Next: abi/root.zig, the C interface on top.

pub const address = @import("address.zig");
pub const clock = @import("clock.zig");
pub const lock = @import("lock.zig");
pub const log = @import("log.zig");
pub const poller = @import("poller.zig");
pub const resolver = @import("resolver.zig");
pub const socket = @import("socket.zig");
pub const thread = @import("thread.zig");

test {
    _ = address;
    _ = clock;
    _ = lock;
    _ = log;
    _ = poller;
    _ = resolver;
    _ = socket;
    _ = thread;
}
