//! Session: all that one peer process knows, without its sockets, clock and threads, and the few
//! functions that all its parts need. The parts are files of free functions on Session. A file
//! imports those below it in this list and none above:
//!
//!     driver, joining, calls, control, lanes       what drivers and users call
//!     deferred                                     what waits until nobody is inside a member
//!     actions, groups, vote                        what follows when members decide
//!     outgoing, frames                             data moves
//!     greeting, dial_back, links, rounds           lanes come and go
//!     prefetch, syncing, asking                    shared states move
//!     probing                                      what goes where nothing else does
//!     operations, queue, waits, labels, figures    what many of these need
//!     session                                      all things of one peer
//!     host, operation, group, sync, state, link    each of these things
//!
//! For drivers (net/, tests/sim): all functions of one Session run under one lock. The driver owns
//! a connection to the coordinator (bytes in and out of `control`) and one per Lane. It tells the
//! session which bytes arrived and asks it which to send. `Host` (host.zig) has the functions that
//! the session needs from the driver. After any call: if `control.send_slice()` is not empty, send
//! it; call driver.tick at or after driver.next_deadline. Host functions must not call back into
//! the session.
//!
//! protocol/member.zig decides, and collective/movement.zig says what moves.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const collective = @import("collective");
const host = @import("host.zig");
const Node = @import("node.zig").Node;
const probe = @import("probe.zig");
const traffic = @import("traffic.zig");
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Rates = @import("rates.zig").Rates;
const Unreached = @import("unreached.zig").Unreached;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

pub const Session = struct {
    gpa: Allocator,
    /// Where the session itself lies.
    home: Allocator,
    self: PeerId,
    run_id: base.RunId,
    host: host.Host,
    prng: base.Prng,
    pool: collective.Pool,
    runner: ?base.Runner,
    now: Instant = 0,

    control: wire.Stream,
    control_state: ControlState = .closed,
    /// The coordinator's settings of the run, at the first connection and at each one since.
    settings: control.Welcome = std.mem.zeroes(control.Welcome),
    /// It has been said on this connection.
    welcomed: bool = false,
    /// When the next connection is tried, and how often that has failed.
    reconnect_at: Instant = base.never,
    reconnects: u6 = 0,
    /// Which process of this id connects.
    instance: u64,
    last_heard: Instant = 0,
    /// The same over all connections, also those on which nothing came.
    last_message: Instant = 0,
    /// Since when there is no connection on which it has answered; `never` while there is one.
    away_since: Instant = base.never,
    last_tick: Instant = 0,
    heartbeat_at: Instant = 0,
    heartbeats: u64 = 0,
    /// When the last heartbeat left, and how long an answer takes at best.
    beat_at: Instant = 0,
    round_trip_ns: u64 = 0,
    /// The last account of the links to the coordinator.
    traffic: traffic.Told = .{},
    /// Where other peers dial this one, and by what the coordinator finds it there.
    address: []u8 = &.{},
    /// The user has named it.
    advertised: bool = false,
    address_key: wire.hello.Key,
    /// Its name for people, and those of others.
    label: base.Label,
    labels: std.AutoArrayHashMapUnmanaged([16]u8, base.Label) = .empty,
    /// Where the driver dials the coordinator, for people.
    coordinator_at: []const u8 = "",
    strangers_max: u32,
    in_flight_max: u32,
    fragment_bytes_min: u32,
    reconnect_timeout_ns: u64,
    /// Why the coordinator is gone, for the calls that fail with it.
    refusal: ?wire.hello.Verdict = null,
    not_pccl: bool = false,
    /// A message could not be kept: what the coordinator believes of this peer is not true any
    /// more.
    control_failed: bool = false,

    groups: std.ArrayList(*Group) = .empty,
    groups_opened: u64 = 0,
    operations: std.ArrayList(*Operation) = .empty,
    queue: Queue = .{},
    links: std.ArrayList(*Link) = .empty,
    strangers: std.ArrayList(*Lane) = .empty,
    /// Where the members of epochs and rounds are dialed.
    addresses: std.AutoArrayHashMapUnmanaged([16]u8, []u8) = .empty,
    /// For people: whom this peer could not dial, and who could not dial it.
    unreached: Unreached = .{},
    /// A dial that the coordinator has asked for is under way.
    dial_back: ?DialBack = null,
    /// Members have agreed on a safe point, or have not: vote.zig looks what to do.
    votes_changed: bool = false,
    /// Some lane is `broken`.
    lanes_broken: bool = false,
    /// A place in some link is free again: a hello may have waited for it.
    places_freed: bool = false,
    /// A link was borrowed for a message that is over.
    links_stale: bool = false,
    /// Operations whose data is complete, or that must be given up, and whose member must still be
    /// told.
    deferred: std.ArrayList(*Operation) = .empty,
    /// Calls that are over, and whose callers do not have their memory back yet.
    giving_back: usize = 0,
    /// When lanes are looked at next, and were last (measure.zig).
    measure_at: Instant = base.never,
    measured_at: Instant = 0,
    /// As fast as the user lets this peer send.
    rates: Rates,
    /// The most that all its links have carried at once.
    node: Node = .{},
    /// The probe of a link that is under way, and how much probes may send.
    probe: probe.Probe,
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// Fetches in the background that were begun (prefetch.zig).
    prefetches: u32 = 0,
    sink: [sink_bytes]u8 = undefined,

    const sink_bytes = 64 * limits.KiB;

    /// An unwanted link is kept this long: the other side may have been told of this peer first.
    pub const linger_ns = 10 * std.time.ns_per_s;

    pub const ControlState = enum {
        /// There was no connection yet.
        closed,
        greeting,
        open,
        /// The connection is gone; another one is tried at `reconnect_at`.
        away,
        /// The driver tries.
        dialing,
        /// It refuses this peer for good.
        lost,
    };

    /// Calls that wait for their turn (queue.zig).
    pub const Queue = struct {
        /// In all groups. They are in `operations` from their turn on, or from their end.
        count: usize = 0,
        /// None of them is due before.
        deadline: Instant = base.never,
    };

    /// See dial_back.zig.
    pub const DialBack = struct {
        lane: *Lane,
        peer: base.PeerId,
        nonce: wire.hello.Nonce,
        /// As it would end now.
        dialed: wire.Dialed = .no_answer,
        proof: wire.hello.Proof = @splat(0),
    };

    pub const Options = struct {
        peer_id: PeerId,
        run_id: base.RunId,
        seed: u64,
        /// Random: it shows that this peer is where it says.
        address_key: wire.hello.Key,
        label: base.Label = .{},
        /// Connections that have not shown that they are of this peer's groups.
        strangers_max: u32 = limits.strangers_max,
        /// Operations of one group in flight; fewer in tests.
        in_flight_max: u32 = limits.operations_in_flight_max,
        /// A piece is cut into no less, where its link has several lanes; less in tests.
        fragment_bytes_min: u32 = limits.fragment_bytes_min,
        /// A coordinator that is away for so long is lost; `never`: calls wait for it until their
        /// deadlines.
        reconnect_timeout_ns: u64 = base.never,
        host: host.Host,
        /// It does large jobs, and lives longer than the session; null: whoever makes jobs.
        runner: ?base.Runner = null,
        rates: Rates = .{},
        /// A probe of a link has no more; 0: this peer takes part in none. Fewer in tests.
        probe_bytes_max: u32 = limits.probe_bytes_max,
        /// Where the session itself lies, which knows the run id; null: like the rest.
        secrets: ?Allocator = null,
    };

    /// Not inlined: the buffer would be a part of the frame of what runs for every piece.
    pub noinline fn log(
        s: *Session,
        level: protocol.LogLevel,
        comptime format: []const u8,
        args: anytype,
    ) void {
        var buffer: [limits.log_line_bytes_max]u8 = undefined;
        const text = std.fmt.bufPrint(&buffer, format, args) catch &buffer;
        s.host.vtable.log(s.host.ctx, level, text);
    }

    /// Time is what some thread read before it had the session to itself: another one may have been
    /// here meanwhile, with a later one. It never goes back.
    pub fn reach(s: *Session, now: Instant) void {
        s.now = @max(s.now, now);
    }

    pub fn send(s: *Session, message: control.Message) void {
        if (s.control_state != .open) return;
        // Ended in the next tick: from here the members that are being told something would be told
        // more.
        s.control.send(message) catch {
            s.control_failed = true;
        };
    }

    /// The group that the coordinator has given this number on this connection. One from before
    /// means nothing: another coordinator may number them anew.
    pub fn group_of(s: *Session, id: u16) ?*Group {
        for (s.groups.items) |group| {
            if (group.state != .joined or !group.member.connected) continue;
            if (group.id == id) return group;
        }
        return null;
    }

    /// The link to another peer.
    pub fn link_to(s: *const Session, id: PeerId) ?*Link {
        for (s.links.items) |link| if (link.peer.eql(id)) return link;
        return null;
    }

    /// There may be something to send on this link.
    pub fn wake(s: *Session, link: *Link) void {
        for (link.lanes[0..link.lanes_end]) |place| {
            const lane = place orelse continue;
            if (lane.state == .open and !lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
        }
    }

    /// A link has no more lanes than these.
    pub fn lanes_max(s: *const Session) u8 {
        return if (s.settings.lanes == 0) limits.lanes_per_link_max else s.settings.lanes;
    }

    /// A coordinator has been there.
    pub fn knows_settings(s: *const Session) bool {
        return s.settings.heartbeat_ns > 0;
    }

    pub fn remember_address(s: *Session, id: PeerId, address: []const u8) Allocator.Error!void {
        // The coordinator does not know it; perhaps it is known here from before.
        if (address.len == 0) return;
        const entry = try s.addresses.getOrPut(s.gpa, id.bytes);
        if (!entry.found_existing) entry.value_ptr.* = &.{};
        if (std.mem.eql(u8, entry.value_ptr.*, address)) return;
        const copy = try s.gpa.dupe(u8, address);
        s.gpa.free(entry.value_ptr.*);
        entry.value_ptr.* = copy;
    }

    /// How long ago an operation was called, when the coordinator hears of it.
    pub fn age_ns(s: *const Session, operation: *const Operation) u64 {
        const here_ns = s.now -| operation.started_at;
        return @min(here_ns +| s.round_trip_ns / 2, limits.interval_ns_max);
    }

    pub fn fault_point(s: *Session, operation: *Operation, point: host.FaultPoint) void {
        if (operation.purpose != .data) return;
        switch (operation.op.descriptor.kind) {
            .broadcast, .barrier, .sync => return,
            .all_reduce,
            .reduce,
            .reduce_scatter,
            .all_gather,
            .scatter,
            .gather,
            .all_to_all,
            .send_recv,
            => {},
        }
        const ledger = &operation.work.movement.board.ledger;
        const sequence = operation.op.id.sequence;
        const done, const total = .{ ledger.settled_count, ledger.wanted_count };
        s.host.vtable.fault_point(s.host.ctx, point, sequence, done, total);
    }

    /// `done`: leaves, where that says something.
    pub fn sync_point(s: *Session, operation: *Operation, point: host.FaultPoint, done: u64) void {
        const state = operation.work.sync.transfer.state orelse return;
        const sequence = operation.op.id.sequence;
        s.host.vtable.fault_point(s.host.ctx, point, sequence, done, state.leaf_count());
    }
};
