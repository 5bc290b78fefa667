//! peer_options: what the engine of a peer is told when it is made (peer_engine.zig).

const base = @import("base");
const session = @import("session");
const address = @import("address.zig");
const lock = @import("lock.zig");
const poller = @import("poller.zig");
const Congestion = @import("tcp.zig").Congestion;
const Fault = @import("fault.zig").Fault;
const PortRange = @import("socket.zig").PortRange;
const System = @import("tcp.zig").System;
const Instant = base.Instant;

pub const Options = struct {
    coordinator: address.Endpoint,
    run_id: base.RunId,
    peer_id: ?base.PeerId = null,
    /// The name of this peer for people.
    label: base.Label = .{},
    /// Where other peers connect to. An empty host is every interface, port 0 a free one. Null:
    /// the interface that leads to the coordinator; every one if `advertise` says that others
    /// come another way.
    bind: ?address.Endpoint = null,
    /// Where the port comes from if `bind` names none; null: any free one.
    ports: ?PortRange = null,
    /// Session.Options.reconnect_timeout_ns.
    reconnect_timeout_ns: u64 = base.never,
    rates: session.Rates = .{},
    congestion: Congestion = .auto,
    /// It takes part in probes of links.
    probes: bool = true,
    system: System = .{},
    /// The address that other peers dial, "host" or "host:port"; null: see greeting.zig.
    advertise: ?[]const u8 = null,
    /// Until when the coordinator must have answered.
    connect_deadline: Instant,
    interrupt: lock.Interrupt = .{},
    /// Threads that run jobs; 0: the engine's and the users' do what there is.
    workers: u32 = 0,
    fault: ?Fault = null,
    backend: poller.Backend = .default,
};
