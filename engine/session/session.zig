//! Session: the state of one peer process without its sockets, clock and threads, and the functions
//! that all its parts share. The parts are files of free functions on Session. A file imports files
//! below it in this list, and none above it:
//!
//!     driver, user                        functions for drivers, and for users
//!     control                             the coordinator's connection, and members' decisions
//!     membership                          groups that come and go
//!     frame                               frames of data
//!     dial                                lanes that come and go
//!     sync                                shared states
//!     measure                             rates, numbers of lanes, and probes
//!     session                             the state of one peer
//!     operation, group, call, state       its operations, groups, calls and shared states
//!     link, flow, pace                    the lanes to one other peer, and their rates
//!
//! For drivers (net/, tests/sim): all functions of one Session run under one lock. The driver owns
//! a connection to the coordinator (bytes in and out of `control`) and one connection for each
//! Lane. The driver tells the session which bytes arrived, and asks the session which bytes to
//! send. `Host` has the functions that the session calls in the driver. After each call of the
//! session, the driver sends `control.send_slice()` if that is not empty. The driver calls
//! driver.tick at or after driver.next_deadline. Host functions must not call back into the
//! session.
//!
//! protocol/member.zig makes the decisions, and collective/movement.zig says what data moves.

const std = @import("std");
const base = @import("base");
const assert = @import("std").debug.assert;
const collective = @import("collective");
const protocol = @import("protocol");
const wire = @import("wire");
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Names = @import("operation.zig").Names;
const Node = @import("pace.zig").Node;
const Operation = @import("operation.zig").Operation;
const Pace = @import("flow.zig").Pace;
const Sample = @import("flow.zig").Sample;
const Uses = @import("call.zig").Uses;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const Status = protocol.Status;
const Traffic = wire.control.LinkTraffic;
const control = wire.control;
const expectEqual = std.testing.expectEqual;
const limits = base.limits;
const second = std.time.ns_per_s;

pub const Session = struct {
    gpa: Allocator,
    /// The allocator that holds the Session itself.
    home: Allocator,
    self: PeerId,
    run_id: base.RunId,
    host: Host,
    prng: base.Prng,
    pool: collective.Pool,
    runner: ?base.Runner,
    now: Instant = 0,

    control: wire.Stream,
    control_state: ControlState = .closed,
    /// The coordinator's settings of the run; zeros before the first welcome, unchanged after it.
    settings: control.Welcome = std.mem.zeroes(control.Welcome),
    /// The coordinator's welcome has come on the present connection.
    welcomed: bool = false,
    /// When this peer next dials the coordinator. `reconnects`: dials in a row without a welcome.
    reconnect_at: Instant = base.never,
    reconnects: u6 = 0,
    /// A random number that tells this process from other processes with the same peer id; never 0.
    instance: u64,
    /// When bytes last came on the present connection to the coordinator, or when it was made.
    last_heard: Instant = 0,
    /// When the coordinator's last message came, on any connection.
    last_message: Instant = 0,
    /// When the coordinator was lost, after it had accepted a connection; `never` while it is not
    /// lost.
    away_since: Instant = base.never,
    last_tick: Instant = 0,
    /// When the next heartbeat to the coordinator is due. `heartbeats`: how many this peer has
    /// sent.
    heartbeat_at: Instant = 0,
    heartbeats: u64 = 0,
    /// When the last heartbeat left. `round_trip_ns`: the shortest recent time from a heartbeat to
    /// the coordinator's answer; 0: no answer yet.
    beat_at: Instant = 0,
    round_trip_ns: u64 = 0,
    /// The last message about traffic that this peer sent to the coordinator.
    traffic: TrafficTold = .{},
    /// The address at which other peers dial this peer.
    address: []u8 = &.{},
    /// The user has chosen `address`.
    advertised: bool = false,
    /// The secret with which this peer proves to the coordinator that it is at `address`.
    address_key: wire.hello.Key,
    /// This peer's name for people, and the names of other peers by their ids.
    label: base.Label,
    labels: std.AutoArrayHashMapUnmanaged([16]u8, base.Label) = .empty,
    /// The address at which the driver dials the coordinator, for log lines.
    coordinator_at: []const u8 = "",
    /// Values of the same names in `Options`.
    strangers_max: u32,
    in_flight_max: u32,
    fragment_bytes_min: u32,
    reconnect_timeout_ns: u64,
    /// The coordinator's last refusal of a connection, for the calls that fail because of it.
    refusal: ?wire.hello.Verdict = null,
    /// The process that answered this peer's last hello to the coordinator does not speak PCCL.
    not_pccl: bool = false,
    /// Memory ran out for a message to the coordinator. The coordinator never gets this message, so
    /// the next tick ends the connection.
    control_failed: bool = false,

    groups: std.ArrayList(*Group) = .empty,
    /// Number of groups ever opened, from which each `Group.number` is taken.
    groups_opened: u64 = 0,
    /// Operations of all groups that have begun, or have ended, and are not yet freed.
    operations: std.ArrayList(*Operation) = .empty,
    queue: Queue = .{},
    links: std.ArrayList(*Link) = .empty,
    strangers: std.ArrayList(*Lane) = .empty,
    /// The addresses at which members of epochs and rounds are dialed, by their ids.
    addresses: std.AutoArrayHashMapUnmanaged([16]u8, []u8) = .empty,
    /// The peers that this peer could not dial, and the peers that could not dial it; for errors.
    unreached: Unreached = .{},
    /// The dial under way that the coordinator asked for; null: no such dial.
    dial_back: ?DialBack = null,
    /// A vote on a safe point has ended: run_deferred lets membership.zig act on it.
    votes_changed: bool = false,
    /// Some lane may be `broken`: run_deferred closes such lanes.
    lanes_broken: bool = false,
    /// A lane of some link is gone: run_deferred answers hellos that waited for its place.
    places_freed: bool = false,
    /// Some link may not be wanted any more: run_deferred reviews which links are wanted.
    links_stale: bool = false,
    /// Operations that run_deferred checks: their data may be complete, or they must be withdrawn.
    deferred: std.ArrayList(*Operation) = .empty,
    /// Number of operations that are over and still restore their caller's memory.
    giving_back: usize = 0,
    /// When the lanes are measured next, and when they were measured last (measure.zig).
    measure_at: Instant = base.never,
    measured_at: Instant = 0,
    /// The rates at which the user lets this peer send.
    rates: Rates,
    /// The highest rates of all links of this peer together.
    node: Node = .{},
    /// The probe of a link that is under way, and the bytes that probes may send.
    probe: Probe,
    /// Bytes on all lanes since the session began.
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// Number of the last fetch of a shared state in the background (sync.zig), modulo 2^32.
    prefetches: u32 = 0,
    /// Buffer for received bytes that lanes throw away.
    sink: [sink_bytes]u8 = undefined,

    const sink_bytes = 64 * limits.KiB;

    /// An unwanted link stays open for this time, because it may be wanted again.
    pub const linger_ns = 10 * std.time.ns_per_s;

    pub const ControlState = enum {
        /// No connection to the coordinator was made yet.
        closed,
        /// The connection is made, but the coordinator has not answered this peer's hello.
        greeting,
        open,
        /// The connection to the coordinator is gone; this peer dials again at `reconnect_at`.
        away,
        /// The driver is connecting to the coordinator.
        dialing,
        /// The coordinator is given up: this peer does not dial it again.
        lost,
    };

    /// Calls of all groups that wait until fewer operations of their group are in flight.
    pub const Queue = struct {
        /// Number of waiting operations. An operation enters `Session.operations` at its turn or
        /// its end.
        count: usize = 0,
        /// No waiting operation has an earlier deadline than this.
        deadline: Instant = base.never,
    };

    /// A dial that the coordinator asks this peer to make, for another peer (dial.zig).
    pub const DialBack = struct {
        lane: *Lane,
        peer: base.PeerId,
        nonce: wire.hello.Nonce,
        /// The result of the dial, which the coordinator is told when the lane ends.
        dialed: wire.Dialed = .no_answer,
        proof: wire.hello.Proof = @splat(0),
    };

    pub const Options = struct {
        peer_id: PeerId,
        run_id: base.RunId,
        seed: u64,
        /// The secret with which this peer proves its address.
        address_key: wire.hello.Key,
        label: base.Label = .{},
        /// The most connections that wait at once without having said which peer they come from.
        strangers_max: u32 = limits.strangers_max,
        /// Operations of one group that may be in flight at once; fewer in tests.
        in_flight_max: u32 = limits.operations_in_flight_max,
        /// The fewest bytes of a fragment, when a piece is cut for the lanes of a link; fewer in
        /// tests.
        fragment_bytes_min: u32 = limits.fragment_bytes_min,
        /// The session gives up the coordinator after this time without a connection to it;
        /// `never`: calls wait for the coordinator until their deadlines.
        reconnect_timeout_ns: u64 = base.never,
        host: Host,
        /// The runner of large jobs, which outlives the session; null: the session's caller does
        /// all jobs.
        runner: ?base.Runner = null,
        rates: Rates = .{},
        /// The most bytes of one probe, fewer in tests; 0: this peer takes part in no probe.
        probe_bytes_max: u32 = limits.probe_bytes_max,
        /// The allocator of the Session itself, which holds the run id; null: the general
        /// allocator.
        secrets: ?Allocator = null,
    };

    /// Not inlined: the buffer would enlarge the stack frame of code that runs for every piece.
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

    /// Sets the session's time to `now`, unless the session's time is later already. A thread reads
    /// the clock before it takes the lock, so another thread may have brought a later time.
    pub fn reach(s: *Session, now: Instant) void {
        s.now = @max(s.now, now);
    }

    pub fn send(s: *Session, message: control.Message) void {
        if (s.control_state != .open) return;
        // The next tick ends the connection to the coordinator. To end the connection in `send`
        // would call members inside their own actions.
        s.control.send(message) catch {
            s.control_failed = true;
        };
    }

    /// The group with this number on the present connection. A group that this connection has not
    /// named is not found, because another coordinator may number groups anew.
    pub fn group_of(s: *Session, id: u16) ?*Group {
        for (s.groups.items) |group| {
            if (group.state != .joined or !group.member.connected) continue;
            if (group.id == id) return group;
        }
        return null;
    }

    /// The link to the peer `id`; null: no link.
    pub fn link_to(s: *const Session, id: PeerId) ?*Link {
        for (s.links.items) |link| if (link.peer.eql(id)) return link;
        return null;
    }

    /// Asks the driver to look for bytes to send on all open lanes of this link that are idle.
    pub fn wake(s: *Session, link: *Link) void {
        for (link.lanes[0..link.lanes_end]) |place| {
            const lane = place orelse continue;
            if (lane.state == .open and !lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
        }
    }

    /// The most lanes that a link may have.
    pub fn lanes_max(s: *const Session) u8 {
        return if (s.settings.lanes == 0) limits.lanes_per_link_max else s.settings.lanes;
    }

    /// Whether a coordinator has told the settings of the run.
    pub fn knows_settings(s: *const Session) bool {
        return s.settings.heartbeat_ns > 0;
    }

    pub fn remember_address(s: *Session, id: PeerId, address: []const u8) Allocator.Error!void {
        // The coordinator does not know the address: an address known from before is kept.
        if (address.len == 0) return;
        const entry = try s.addresses.getOrPut(s.gpa, id.bytes);
        if (!entry.found_existing) entry.value_ptr.* = &.{};
        if (std.mem.eql(u8, entry.value_ptr.*, address)) return;
        const copy = try s.gpa.dupe(u8, address);
        s.gpa.free(entry.value_ptr.*);
        entry.value_ptr.* = copy;
    }

    /// Nanoseconds from the call of an operation until a message that leaves now reaches the
    /// coordinator.
    pub fn age_ns(s: *const Session, operation: *const Operation) u64 {
        const here_ns = s.now -| operation.started_at;
        return @min(here_ns +| s.round_trip_ns / 2, limits.interval_ns_max);
    }

    pub fn fault_point(s: *Session, operation: *Operation, point: FaultPoint) void {
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

    /// Tells the driver that a sync has reached a fault point. `done`: leaves given or taken so
    /// far; 0 at other points.
    pub fn sync_point(s: *Session, operation: *Operation, point: FaultPoint, done: u64) void {
        const state = operation.work.sync.transfer.state orelse return;
        const sequence = operation.op.id.sequence;
        s.host.vtable.fault_point(s.host.ctx, point, sequence, done, state.leaf_count());
    }
};

// ---- the driver
//
// The functions that a session calls in its driver (net/, tests/sim), and the events and fault
// points that it names to the driver.

pub const LogLevel = protocol.LogLevel;

pub const GroupEvent = union(enum) {
    /// A lane to each member of the round is open: admit() may be called.
    ready,
    /// The coordinator refuses the join for this reason; this peer was never a member.
    refused: []const u8,
    /// The group or the coordinator was lost before the group was ready.
    join_failed: struct { status: Status, why: []const u8 },
    /// The pending admit() entered an epoch or passed the safe point.
    admitted,
    admit_failed: Status,
    /// No better paths are known than those of the current attempt (user.zig: optimize).
    optimized,
    /// This peer is not a member of the group any more.
    gone: Status,
};

/// Named points at which tests may end the process (net/fault.zig). Operations that move data reach
/// the points `operation_...`; broadcasts and barriers reach no point.
pub const FaultPoint = enum {
    operation_called,
    operation_opened,
    operation_partial,
    operation_settled,
    operation_voted,
    operation_committed,
    sync_offered,
    /// A leaf has left for another member.
    sync_given,
    /// A leaf has come in with the elected hash.
    sync_taken,
    sync_voted,
    sync_committed,
};

pub const Host = struct {
    ctx: *anyopaque,
    vtable: *const VTable,
    /// CPU cores of this machine, which all its peers share.
    cores: u32 = 1,

    pub const VTable = struct {
        /// Starts connecting a lane to `address`. The driver answers later with driver.opened,
        /// driver.failed or driver.closed.
        dial: *const fn (ctx: *anyopaque, lane: *Lane, address: []const u8) void,
        /// Closes the connection of a lane now. The lane is invalid afterwards; the driver does not
        /// call driver.closed.
        lane_close: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// The lane may have bytes to send: the driver calls driver.send_slices soon, but not
        /// inside this function.
        lane_wake: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// The system's counters of an open lane; null where the system has none.
        lane_sample: *const fn (ctx: *anyopaque, lane: *Lane) ?Sample,
        lane_pace: *const fn (ctx: *anyopaque, lane: *Lane, pace: Pace) void,
        /// Starts connecting to the coordinator. The driver answers later with control.opened or
        /// control.closed.
        control_dial: *const fn (ctx: *anyopaque) void,
        /// Closes the connection to the coordinator; the driver does not call control.closed.
        control_close: *const fn (ctx: *anyopaque) void,
        group_event: *const fn (ctx: *anyopaque, group: *Group, event: GroupEvent) void,
        /// The operation is over, and the session does not touch its caller's memory any more.
        operation_finished: *const fn (ctx: *anyopaque, operation: *Operation) void,
        /// `operation.committed` is final: true, false, or null if the outcome will never be known.
        operation_resolved: *const fn (ctx: *anyopaque, operation: *Operation) void,
        fault_point: *const fn (
            ctx: *anyopaque,
            point: FaultPoint,
            sequence: u64,
            done: u64,
            total: u64,
        ) void,
        log: *const fn (ctx: *anyopaque, level: LogLevel, message: []const u8) void,
    };
};

// ---- peers that could not be dialed
//
// The peers that this peer could not dial, and the peers that could not dial this peer, as the
// coordinator told. Errors about time that has run out name these peers. No decision depends on
// this list.

pub const Unreached = struct {
    entries: [entries_max]Entry = undefined,
    count: usize = 0,

    /// The most failed dials that are kept, of which an error names `shown_max`.
    const entries_max = 8;
    const shown_max = 3;
    /// Errors do not name a dial that failed longer ago than this.
    const fresh_ns = 2 * std.time.ns_per_min;

    pub const Entry = struct {
        /// The other side of the dial; `none`: the coordinator.
        peer: PeerId,
        label: base.Label,
        /// `peer` has dialed this peer; otherwise this peer has dialed `peer`.
        is_theirs: bool,
        dialed: wire.Dialed,
        /// The address that the dial came from; zeros: not known.
        source: base.Source,
        at: Instant,
        address_bytes: [limits.address_bytes_max]u8 = undefined,
        address_length: usize = 0,

        pub fn of(
            peer: base.Named,
            is_theirs: bool,
            dialed: wire.Dialed,
            source: base.Source,
            address: []const u8,
        ) Entry {
            var entry: Entry = .{
                .peer = peer.id,
                .label = peer.label,
                .is_theirs = is_theirs,
                .dialed = dialed,
                .source = source,
                .at = 0,
            };
            entry.address_length = @min(address.len, entry.address_bytes.len);
            @memcpy(entry.address_bytes[0..entry.address_length], address[0..entry.address_length]);
            return entry;
        }

        pub fn format(entry: *const Entry, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            if (entry.peer.eql(.none)) {
                try writer.writeAll("the coordinator");
            } else {
                const named: base.Named = .{ .id = entry.peer, .label = entry.label };
                try writer.print("peer {f}", .{named});
            }
            try writer.writeAll(if (entry.is_theirs)
                " could not dial this peer"
            else
                " could not be dialed");
            const address = entry.address_bytes[0..entry.address_length];
            if (address.len > 0) try writer.print(" at {s}", .{address});
            var room: [base.source.text_bytes_max]u8 = undefined;
            const from = base.source.write_host(entry.source, &room);
            if (from.len > 0) try writer.print(" from {s}", .{from});
            try writer.print(": {s}", .{entry.dialed.why()});
        }
    };

    /// Adds a failed dial to the list. False: the same dial was noted less than `fresh_ns` ago,
    /// with the same result.
    pub fn note(u: *Unreached, now: Instant, entry: Entry) bool {
        var noted = entry;
        noted.at = now;
        var place = &u.entries[0];
        for (u.entries[0..u.count]) |*known| {
            if (known.at < place.at) place = known;
            if (!known.peer.eql(entry.peer) or known.is_theirs != entry.is_theirs) continue;
            const is_news = known.dialed != entry.dialed or now -| known.at >= fresh_ns;
            known.* = noted;
            return is_news;
        }
        if (u.count < entries_max) {
            place = &u.entries[u.count];
            u.count += 1;
        }
        place.* = noted;
        return true;
    }

    /// Forgets the failed dials from and to a peer, because a lane to the peer is open.
    pub fn forget(u: *Unreached, peer: PeerId) void {
        var index = u.count;
        while (index > 0) {
            index -= 1;
            if (!u.entries[index].peer.eql(peer)) continue;
            u.count -= 1;
            u.entries[index] = u.entries[u.count];
        }
    }

    /// A sentence about the dials that failed within `fresh_ns`, without its full stop; empty if
    /// none.
    pub fn text(u: *const Unreached, now: Instant, buffer: []u8) []const u8 {
        var writer: std.Io.Writer = .fixed(buffer);
        u.write(now, &writer) catch {}; // a longer sentence is cut
        return writer.buffered();
    }

    fn write(u: *const Unreached, now: Instant, writer: *std.Io.Writer) !void {
        var fresh: usize = 0;
        for (u.entries[0..u.count]) |*entry| {
            if (now -| entry.at >= fresh_ns) continue;
            fresh += 1;
            if (fresh > shown_max) continue;
            if (fresh > 1) try writer.writeAll("; ");
            try entry.format(writer);
        }
        if (fresh > shown_max) try writer.print("; and {d} more", .{fresh - shown_max});
        if (fresh > 0) try writer.writeAll("; " ++ wire.dialed.remedy);
    }
};

test "what could not be dialed is told once, until it is another reason or long ago, or is over" {
    const expect = std.testing.expect;
    var u: Unreached = .{};
    var buffer: [600]u8 = undefined;
    try std.testing.expectEqualStrings("", u.text(0, &buffer));
    const first: base.Named = .{ .id = .from_int(1 << 120), .label = .shown("node7:42") };
    const coordinator: base.Named = .{ .id = .none, .label = .{} };
    const nowhere: base.Source = @splat(0);
    const here = (try base.Endpoint.parse("10.0.0.7:1")).source().?;
    try expect(u.note(5, .of(first, false, .refused, nowhere, "192.0.2.1:80")));
    try expect(!u.note(6, .of(first, false, .refused, nowhere, "192.0.2.1:80")));
    try expect(u.note(7, .of(first, false, .no_answer, here, "192.0.2.1:80")));
    try expect(u.note(7, .of(first, true, .refused, here, "")));
    try expect(u.note(7, .of(coordinator, true, .refused, nowhere, "10.0.0.1:7")));
    try std.testing.expectEqualStrings("peer 01000000 (node7:42) could not be dialed at " ++
        "192.0.2.1:80 from 10.0.0.7: no answer in 5 s (a firewall or NAT?); peer 01000000 " ++
        "(node7:42) could not dial this peer from 10.0.0.7: the connection was refused; the " ++
        "coordinator could not dial this peer at 10.0.0.1:7: the connection was refused; " ++
        wire.dialed.remedy, u.text(8, &buffer));
    u.forget(first.id);
    try std.testing.expectEqual(1, u.count);
    for (0..20) |index| {
        const other: base.Named = .{ .id = .from_int(index), .label = .{} };
        _ = u.note(9 + index, .of(other, false, .silent, nowhere, "a:1"));
    }
    try std.testing.expectEqual(8, u.count);
    try expect(std.mem.indexOf(u8, u.text(40, &buffer), "; and 5 more; one of") != null);
    try std.testing.expectEqualStrings("", u.text(40 + Unreached.fresh_ns, &buffer));
}

test "the dial that failed longest ago makes room" {
    var u: Unreached = .{};
    const nowhere: base.Source = @splat(0);
    const most = Unreached.entries_max;
    // The dial of the first peer fails again after the dials of all other peers.
    for (0..most + 1) |at| {
        const peer: base.Named = .{ .id = .from_int(1 + at % most), .label = .{} };
        _ = u.note(at, .of(peer, false, .refused, nowhere, ""));
    }
    const newest: base.Named = .{ .id = .from_int(most + 1), .label = .{} };
    try std.testing.expect(u.note(most + 1, .of(newest, false, .refused, nowhere, "")));
    try std.testing.expectEqual(most, u.count);
    for (u.entries) |entry| try std.testing.expect(!entry.peer.eql(.from_int(2)));
}

// ---- rates of the user
//
// The rates at which the user lets this peer send: over all links together, and to peers that the
// user names. engine/abi/argument.zig reads these rates from a text, and measure.zig applies them.

pub const Rates = struct {
    /// Bytes per second over all links together; 0: no limit.
    all: u64 = 0,
    single: [limits.send_rates_max]Single = undefined,
    count: usize = 0,

    pub const Single = struct { name: base.Label, rate: u64 };

    pub fn slice(rates: *const Rates) []const Single {
        return rates.single[0..rates.count];
    }

    /// Adds the rate of one peer. False: the list is full.
    pub fn add(rates: *Rates, item: Single) bool {
        if (rates.count == rates.single.len) return false;
        rates.single[rates.count] = item;
        rates.count += 1;
        return true;
    }

    /// The rate for a peer, bytes per second, by the first name in the list that matches the peer;
    /// 0: no limit.
    pub fn of(rates: *const Rates, id: PeerId, label: *const base.Label) u64 {
        for (rates.slice()) |*item|
            if (names(item.name.slice(), id, label.slice())) return item.rate;
        return 0;
    }

    /// Whether `name` names a peer: its label, the beginning of its label before a `*`, or its id,
    /// whole or as errors show it.
    fn names(name: []const u8, id: PeerId, label: []const u8) bool {
        if (std.mem.eql(u8, name, label)) return true;
        if (name.len > 0 and name[name.len - 1] == '*')
            return std.mem.startsWith(u8, label, name[0 .. name.len - 1]);
        return std.mem.eql(u8, name, &id.hex()) or std.mem.eql(u8, name, &id.short());
    }
};

test "a peer is named by its label, the beginning of that, or its id; the first name counts" {
    const expect = std.testing.expectEqual;
    var rates: Rates = .{};
    for ([_][]const u8{ "eu-1", "eu-*", "01000000", "02" ++ "0" ** 30, "*" }, 1..) |name, rate|
        try std.testing.expect(rates.add(.{ .name = .shown(name), .rate = rate }));
    const other: PeerId = .from_int(7);
    try expect(1, rates.of(other, &.shown("eu-1")));
    try expect(2, rates.of(other, &.shown("eu-12")));
    try expect(3, rates.of(.from_int(1 << 120), &.{}));
    try expect(4, rates.of(.from_int(2 << 120), &.shown("us-1")));
    try expect(5, rates.of(other, &.shown("us-1")));
    rates.count = 4;
    try expect(0, rates.of(other, &.shown("us-1")));
    while (rates.add(.{ .name = .{}, .rate = 1 })) {}
    try expect(limits.send_rates_max, rates.slice().len);
}

// ---- bytes of probes
//
// A peer sends probes on a link whose rate nobody knows. `Budget` counts the bytes that the peer
// may spend on probes: each link has some bytes free of charge, all links together have a bounded
// number, and beyond these the peer may spend 1 % of the bytes that it has sent.

/// The probes of one peer.
pub const Probe = struct {
    /// The most bytes of one probe; 0: this peer takes part in no probe.
    bytes_max: u32,
    budget: Budget,
    under_way: ?UnderWay = null,

    pub const UnderWay = struct {
        to: PeerId,
        left: u64,
        until: Instant,

        pub fn is_whole(it: *const UnderWay, now: Instant) bool {
            return it.left == 0 or it.until <= now;
        }
    };

    pub fn init(bytes_max: u32) Probe {
        return .{ .bytes_max = bytes_max, .budget = .{ .floor = links_max * bytes_max } };
    }

    /// Payload bytes of one frame of a probe. Even a short probe has several frames.
    pub fn frame_bytes(probe: *const Probe) u64 {
        return std.math.clamp(probe.bytes_max / 16, 1, limits.probe_frame_bytes_max);
    }

    pub fn is_under_way(probe: *const Probe, now: Instant) bool {
        return if (probe.under_way) |*it| it.until > now else false;
    }

    /// Bytes that a probe of a link may have now; 0: none. `link_left`: the bytes that the link
    /// still has free of charge.
    pub fn allowed(probe: *const Probe, link_left: u64) u64 {
        return @min(probe.bytes_max, probe.budget.allows(link_left));
    }

    /// The number of other members in the largest epoch in which links are probed.
    const links_max: u64 = limits.measured_max - 1;
};

pub const Budget = struct {
    /// Bytes of probes that all links together still have free of charge: at first one probe for
    /// each link. Each minute adds one probe, so a crowd of newcomers cannot make this peer send
    /// more.
    floor: u64,
    /// Bytes of probes left from 1 % of the bytes that this peer sent in the minute before.
    share: u64 = 0,
    /// When the minute under way began, and the bytes that this peer had sent by then.
    began: Instant = 0,
    sent_then: u64 = 0,

    const minute_ns = std.time.ns_per_min;
    const part = 100;

    /// Begins a new minute of the budget if the last minute has passed; called at heartbeats.
    /// `sent`: all bytes that this peer has ever sent on its links. `probe`: bytes of one probe.
    pub fn pass(budget: *Budget, now: Instant, sent: u64, probe: u64) void {
        const taken_ns = now -| budget.began;
        const is_first = budget.began == 0;
        if (taken_ns < minute_ns and !is_first) return;
        // After a pause of the process, the bytes sent in the last minute are not known.
        const is_late = is_first or taken_ns >= 2 * minute_ns;
        budget.share = if (is_late) 0 else (sent - budget.sent_then) / part;
        if (!is_first) budget.floor = @min(budget.floor + probe, Probe.links_max * probe);
        budget.began = now;
        budget.sent_then = sent;
    }

    fn allows(budget: *const Budget, link_left: u64) u64 {
        return @min(link_left, budget.floor) + budget.share;
    }

    /// Charges `bytes` of a probe: first to the link and `floor`, the rest to `share`.
    pub fn spend(budget: *Budget, link_left: *u32, bytes: u64) void {
        const free = @min(bytes, link_left.*, budget.floor);
        link_left.* -= @intCast(free);
        budget.floor -= free;
        budget.share -|= bytes - free;
    }
};

/// The payload of probes: bytes that no network can compress.
pub const filler: [limits.probe_frame_bytes_max]u8 = filler: {
    @setEvalBranchQuota(10_000);
    var words: [limits.probe_frame_bytes_max / 8]u64 = undefined;
    var word: u64 = 0x9e3779b97f4a7c15;
    for (&words) |*each| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        each.* = word;
    }
    break :filler @bitCast(words);
};

test "each link has one probe for nothing, and beyond, probes are one byte in a hundred" {
    var probe: Probe = .init(1000);
    var left: u32 = 1000;
    const budget = &probe.budget;
    budget.pass(100 * second, 5000, 1000);
    try expectEqual(1000, probe.allowed(left));
    // The probe is cut short after 300 of 1000 bytes.
    budget.spend(&left, 300);
    try expectEqual(700, probe.allowed(left));
    budget.spend(&left, 700);
    try expectEqual(0, probe.allowed(left));
    budget.pass(159 * second, 95_000, 1000); // the minute is not over
    try expectEqual(0, probe.allowed(left));
    budget.pass(161 * second, 105_000, 1000);
    try expectEqual(1000, probe.allowed(left));
    budget.spend(&left, 400);
    try expectEqual(600, probe.allowed(left));
    // The unused share of a minute is lost when the next minute begins.
    budget.pass(222 * second, 135_000, 1000);
    try expectEqual(300, probe.allowed(left));
    budget.pass(283 * second, 135_000, 1000);
    try expectEqual(0, probe.allowed(left));
    // After more than three minutes without a heartbeat, the bytes of the last minute are not
    // known.
    budget.pass(500 * second, 1_000_000, 1000);
    try expectEqual(0, probe.allowed(left));
}

test "no crowd of links has a peer send more than one probe to each at first, then one a minute" {
    const each = 1000;
    var probe: Probe = .init(each);
    var sent: u64 = 0;
    probe.budget.pass(second, 0, each);
    for (0..1000) |_| {
        var left: u32 = each;
        const bytes = probe.allowed(left);
        probe.budget.spend(&left, bytes);
        sent += bytes;
    }
    try expectEqual((limits.measured_max - 1) * each, sent);
    for (1..4) |minute| {
        probe.budget.pass(second + minute * std.time.ns_per_min, 0, each);
        var left: u32 = each;
        try expectEqual(each, probe.allowed(left));
        probe.budget.spend(&left, each);
        left = each;
        try expectEqual(0, probe.allowed(left));
    }
}

test "a probe is of several frames, and one that is off has none" {
    try expectEqual(limits.probe_frame_bytes_max, Probe.init(limits.probe_bytes_max).frame_bytes());
    try expectEqual(32, Probe.init(512).frame_bytes());
    try expectEqual(0, Probe.init(0).allowed(limits.probe_bytes_max));
}

// ---- traffic as told to the coordinator
//
// Every two seconds, while bytes move, this peer tells the coordinator how many bytes per second
// move on each link. The message also has the measured rate of each link, and the highest rates of
// all links together (pace.zig). All numbers of one message are taken at the same time.

pub const traffic_every_ns = 2 * std.time.ns_per_s;

/// When traffic was last accounted for the coordinator, and the counters at that time.
pub const TrafficTold = struct {
    /// When the traffic was last accounted; 0: never. `any`: the message named a link.
    at: base.Instant = 0,
    any: bool = false,
    /// The session's `bytes_sent` and `bytes_received` at the time `at`.
    sent: u64 = 0,
    received: u64 = 0,
};

pub const LinkMoved = struct { sent: u64, received: u64 };

/// Room for the links of one message about traffic.
pub const TrafficRoom = [limits.links_told_max]Traffic;

/// The next message about traffic, made at a heartbeat; null: there is nothing to tell. `moved`:
/// all bytes that have ever moved on links. `ceiling`: the user's limit for all links, bytes per
/// second; 0: none. New connections exceed the limit for a moment, so the rates that the message
/// tells are cut to `ceiling`.
pub fn account_of_traffic(
    told: *TrafficTold,
    now: base.Instant,
    links: []const *Link,
    node: *const Node,
    moved: LinkMoved,
    ceiling: u64,
    room: *TrafficRoom,
) ?wire.control.Traffic {
    const span_ns = now -| told.at;
    if (span_ns < traffic_every_ns) return null;
    var count: usize = 0;
    for (links) |link| {
        const on_link = traffic_of_link(link, span_ns, ceiling);
        link.sent_told = link.sent;
        link.received_told = link.received;
        if (on_link.sent + on_link.received == 0 and !link.is_asked) continue;
        link.is_asked = false;
        if (count < limits.links_told_max) {
            room[count] = on_link;
            count += 1;
        } else if (weaker(&on_link, room)) |place| place.* = on_link;
    }
    const before = told.*;
    told.* = .{
        .at = now,
        .any = count > 0 and before.at > 0,
        .sent = moved.sent,
        .received = moved.received,
    };
    if (before.at == 0) return null; // the time span of the first account is not known
    // When traffic stops, one message without links says so.
    if (!told.any and !before.any) return null;
    const rate_max = base.limits.link_rate_told_max;
    return .{
        .span_ns = span_ns,
        .sent = per_second(moved.sent - before.sent, span_ns),
        .received = per_second(moved.received - before.received, span_ns),
        .up = @min(sum_within(node.up.rate, ceiling), rate_max),
        .down = @min(node.down.rate, rate_max),
        .is_full = ceiling > 0 or node.together.pacer.rate > 0,
        .links = .of(room[0..count]),
    };
}

/// The traffic of one link since the last message, and how the link carries it. The system measures
/// some of the numbers, so each number is cut to the range of the message.
fn traffic_of_link(link: *const Link, span_ns: u64, ceiling: u64) Traffic {
    const flow = &link.flow;
    const rate = sum_within(sum_within(flow.carries(), flow.ceiling), ceiling);
    // A link that carries as much as the user allows it is full.
    const is_held = flow.ceiling > 0 and rate >= flow.ceiling / 8 * 7;
    const found = if (is_held) rate else sum_within(flow.limit(), flow.ceiling);
    const limit = sum_within(found, ceiling);
    return .{
        .peer = link.peer,
        .sent = per_second(link.sent - link.sent_told, span_ns),
        .received = per_second(link.received - link.received_told, span_ns),
        .rate = @min(rate, base.limits.link_rate_told_max),
        .limit = @min(limit, base.limits.link_rate_told_max),
        .brought = @min(flow.brought.rate, base.limits.link_rate_told_max),
        .rtt_ns = @min(flow.base_ns, base.limits.link_rtt_ns_told_max),
        .again_ppm = @min(flow.again_ppm, base.limits.link_again_ppm_max),
        .lanes = @intCast(@min(link.open_count, base.limits.lanes_per_link_max)),
    };
}

/// The smaller of a rate and a limit; limit 0: no limit.
fn sum_within(rate: u64, limit: u64) u64 {
    return if (limit == 0) rate else @min(rate, limit);
}

/// The link in `found` with the least traffic, if that is less than the traffic of `than`; else
/// null. So a full message names the busiest links.
fn weaker(than: *const Traffic, found: *TrafficRoom) ?*Traffic {
    var weakest = &found[0];
    for (found[1..]) |*item| if (sum(item) < sum(weakest)) {
        weakest = item;
    };
    return if (sum(weakest) < sum(than)) weakest else null;
}

fn sum(item: *const Traffic) u64 {
    return item.sent +| item.received;
}

fn per_second(bytes: u64, span_ns: u64) u64 {
    return bytes *| std.time.ms_per_s / (span_ns / std.time.ns_per_ms);
}

fn link_for_test() Link {
    return .{
        .gpa = std.testing.allocator,
        .peer = .from_int(7),
        .wins = true,
        .leads = true,
        .expires_at = 0,
        .early = .{ .gpa = std.testing.allocator },
        .flow = .init(0),
        .down_since = 0,
    };
}

fn told_of(link: *Link) !Traffic {
    return told_within(link, 0);
}

fn told_within(link: *Link, ceiling: u64) !Traffic {
    var told: TrafficTold = .{ .at = 1 };
    var room: TrafficRoom = undefined;
    link.sent += 4000;
    const moved: LinkMoved = .{ .sent = link.sent, .received = 0 };
    const node: Node = .{ .up = .{ .rate = 5000 }, .down = .{ .rate = std.math.maxInt(u64) } };
    const now = 1 + traffic_every_ns;
    const said = account_of_traffic(&told, now, &.{link}, &node, moved, ceiling, &room).?;
    try std.testing.expectEqual(sum_within(5000, ceiling), said.up);
    try std.testing.expectEqual(base.limits.link_rate_told_max, said.down);
    try std.testing.expectEqual(1, said.links.items.len);
    return said.links.items[0];
}

test "an account says how the link carries, by the most it has moved until it is held" {
    var link = link_for_test();
    defer link.deinit();
    var expected: Traffic = .{ .peer = .from_int(7), .sent = 2000, .received = 0 };
    try std.testing.expectEqual(expected, try told_of(&link));
    link.flow.carried.rate = 800;
    link.flow.alone.rate = 780;
    link.flow.brought.rate = 700;
    link.flow.base_ns = 90 * std.time.ns_per_ms;
    link.flow.again_ppm = 1_500;
    link.open_count = 4;
    expected.rate = 800;
    expected.limit = 780;
    expected.brought = 700;
    expected.rtt_ns = 90 * std.time.ns_per_ms;
    expected.again_ppm = 1_500;
    expected.lanes = 4;
    try std.testing.expectEqual(expected, try told_of(&link));
    link.flow.pacer.found = 600;
    link.flow.pacer.rate = 590;
    expected.rate = 600;
    expected.limit = 600;
    try std.testing.expectEqual(expected, try told_of(&link));
    // The pacer has no limit, so the link carries the most that it has moved.
    link.flow.pacer.rate = 0;
    expected.rate = 800;
    expected.limit = 780;
    try std.testing.expectEqual(expected, try told_of(&link));
    // The told rate is cut to the user's limits: of all links, then of this link.
    expected.rate = 700;
    expected.limit = 700;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
    link.flow.ceiling = 500;
    expected.rate = 500;
    expected.limit = 500;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
    link.flow.alone.rate = 0;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
    link.flow.carried.rate = 400; // it may carry more than it has
    expected.rate = 400;
    expected.limit = 0;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
}

test "whatever the system measures, the coordinator can read what it is told" {
    var link = link_for_test();
    defer link.deinit();
    link.flow.carried.rate = std.math.maxInt(u64);
    link.flow.alone.rate = std.math.maxInt(u64);
    link.flow.brought.rate = std.math.maxInt(u64);
    link.flow.base_ns = std.math.maxInt(u64);
    link.flow.again_ppm = std.math.maxInt(u32);
    link.open_count = std.math.maxInt(u32);
    const links = [_]Traffic{try told_of(&link)};
    var bytes: [160]u8 = undefined;
    const message: wire.control.Message = .{ .traffic = .{
        .span_ns = traffic_every_ns,
        .sent = 1,
        .received = 0,
        .up = 0,
        .down = 0,
        .links = .of(&links),
    } };
    _ = try wire.control.decode(try wire.control.encode(message, &bytes));
}

// ---- names for people
//
// The coordinator tells the labels of other peers with a round (protocol/membership.zig). A label
// is kept as long as an error may name the peer: while the peer is in an epoch or a round of this
// peer, gives leaves of a shared state, or left when an epoch of this peer began. Only one decision
// depends on labels: the rate at which the user lets this peer send to another.

/// The label of a peer; empty if it is not known.
pub fn label_of(s: *const Session, id: PeerId) base.Label {
    if (id.eql(s.self)) return s.label;
    return s.labels.get(id.bytes) orelse .{};
}

/// The peer as log lines show it: "7f3a01c2 (node7:4242)".
pub fn label_named(s: *const Session, id: PeerId) base.Named {
    return .{ .id = id, .label = label_of(s, id) };
}

/// Sets the user's limit for this link, because the label of the link's peer may have become known.
pub fn label_limit(s: *const Session, link: *Link) void {
    if (s.rates.count > 0) link.flow.ceiling = s.rates.of(link.peer, &label_of(s, link.peer));
}

pub const LabelError = error{ OutOfMemory, Unexpected };

pub fn on_labels(s: *Session, body: *const wire.control.Labels) LabelError!void {
    const group = s.group_of(body.group) orelse return;
    var entries = body.peers.iterator();
    while (entries.next()) |entry| {
        const label = base.Label.read(entry.label.data) orelse return error.Unexpected;
        // Drops the label of a peer that no error of this group can name.
        if (!is_kept(group, entry.id)) continue;
        try s.labels.put(s.gpa, entry.id.bytes, label);
    }
}

fn is_kept(group: *const Group, id: PeerId) bool {
    if (group.needs(id)) return true;
    for (group.member.epochs) |slot| if (slot) |epoch| {
        for (epoch.left) |other| if (other.eql(id)) return true;
    };
    return false;
}

pub fn prune_labels(s: *Session) void {
    const known = &s.labels;
    var index = known.count();
    while (index > 0) {
        index -= 1;
        const id: PeerId = .{ .bytes = known.keys()[index] };
        const wanted = for (s.groups.items) |group| {
            if (is_kept(group, id)) break true;
        } else false;
        if (!wanted) known.swapRemoveAt(index);
    }
}

// ---- for errors

/// The names of the peers and states that the error of an operation is about.
pub fn names_of_failure(s: *const Session, operation: *const Operation) Names {
    var names: Names = .{ .self = s.self, .ranks = operation.ids.len };
    const failure = &operation.failure;
    const roots = [_]PeerId{
        operation.op.descriptor.root,
        if (failure.descriptor) |*descriptor| descriptor.root else .none,
        if (failure.other_descriptor) |*descriptor| descriptor.root else .none,
    };
    for ([_]PeerId{ failure.peer, failure.other, operation.unreachable_peer } ++ roots) |id|
        add_name(&names, s, operation, id);
    add_ranks(&names, s, operation, &failure.missing);
    add_ranks(&names, s, operation, &failure.outside);
    add_elsewhere(&names, s, operation, &failure.elsewhere);
    add_state(&names, operation, operation.op.id.tag);
    return names;
}

/// The names of the first ranks whose calls are missing, and of the ranks that they wait for.
pub fn names_of_missing(s: *const Session, operation: *const Operation) Names {
    var names: Names = .{ .self = s.self };
    add_ranks(&names, s, operation, &operation.op.missing);
    add_ranks(&names, s, operation, &operation.group.member.outside_of(&operation.op));
    add_elsewhere(&names, s, operation, &operation.op.elsewhere);
    add_state(&names, operation, operation.op.id.tag);
    return names;
}

fn add_elsewhere(
    names: *Names,
    s: *const Session,
    operation: *const Operation,
    elsewhere: *const protocol.Elsewhere,
) void {
    for (elsewhere.slice()) |*waits| {
        add_name(names, s, operation, operation.ids[waits.rank]);
        add_name(names, s, operation, operation.ids[waits.waits_for]);
        add_state(names, operation, waits.op.tag);
    }
}

/// Adds the name of this peer's state with the tag `tag`; other members give the state the same
/// name.
fn add_state(names: *Names, operation: *const Operation, tag: u64) void {
    for (operation.group.states.items) |*shared| {
        const item = shared.state;
        if (item.tag != tag or names.state(tag).len > 0) continue;
        names.states[names.states_count] = .{ .tag = tag, .name = .shown(item.name) };
        names.states_count += 1;
    }
}

fn add_ranks(
    names: *Names,
    s: *const Session,
    operation: *const Operation,
    ranks: *const base.Mask,
) void {
    for (0..@min(ranks.count(), Names.missing_max)) |index|
        add_name(names, s, operation, operation.ids[ranks.at(index)]);
}

fn add_name(names: *Names, s: *const Session, operation: *const Operation, id: PeerId) void {
    if (id.eql(.none) or names.find(id) != null) return;
    const rank: ?u16 = for (operation.ids, 0..) |member, rank| {
        if (member.eql(id)) break @intCast(rank);
    } else null;
    names.items[names.count] = .{ .id = id, .rank = rank, .label = label_of(s, id) };
    names.count += 1;
}

// ---- operations
//
// Steps that many files take with an operation: note it for later, withdraw it, wake its lanes,
// detach lanes from its memory, free it. None of the functions in this section calls a member
// (protocol/member.zig).

/// Notes the operation for run_deferred (control.zig), which may call its member.
pub fn wake_later(s: *Session, operation: *Operation) void {
    for (s.deferred.items) |item| if (item == operation) return;
    s.deferred.appendAssumeCapacity(operation); // reserved by the call (user.zig)
}

/// Memory ran out inside an operation: it will be withdrawn.
pub fn give_up(s: *Session, operation: *Operation) void {
    s.log(.err, "out of memory inside an operation: it is withdrawn", .{});
    operation.withdraws = .cancelled;
}

/// A link is down for good: withdraws messages and uneven exchanges with its peer, because their
/// data cannot go around a link.
pub fn link_down(s: *Session, link: *const Link) void {
    for (s.operations.items) |operation| {
        if (operation.is_over() or !operation.op.descriptor.is_between_two()) continue;
        if (operation.neighbour(link) == null) continue;
        operation.withdraw_from(link);
        wake_later(s, operation);
    }
}

/// Wakes the lanes to all neighbours of an operation.
pub fn wake_all(s: *Session, operation: *const Operation) void {
    for (operation.neighbours) |*neighbour| s.wake(neighbour.link);
}

/// Makes all lanes stop reading and writing the memory of this owner.
pub fn detach_all(s: *Session, owner: Lane.Owner) void {
    for (s.links.items) |link| detach_link(s, link, owner);
}

pub fn detach_link(s: *Session, link: *Link, owner: Lane.Owner) void {
    for (link.lanes) |place| if (place) |lane| {
        lane.detach(owner);
        if (lane.broken) s.lanes_broken = true;
    };
}

/// The user is done with a finished operation: frees it, unless it is in doubt.
pub fn release_operation(s: *Session, operation: *Operation) void {
    assert(operation.finished);
    operation.released = true;
    // An operation in doubt goes on, because other members may need the chunks that it holds.
    if (operation.op.state == .finished) free_operation(s, operation);
}

pub fn free_operation(s: *Session, operation: *Operation) void {
    for (s.operations.items, 0..) |item, index| if (item == operation) {
        _ = s.operations.swapRemove(index);
        break;
    };
    for (s.deferred.items, 0..) |item, index| if (item == operation) {
        _ = s.deferred.swapRemove(index);
        break;
    };
    operation.destroy();
}

// ---- calls that wait for their turn
//
// Calls beyond the number that a group may have in flight wait here, in their order, and begin as
// earlier calls end. So a program need not count its calls. A waiting call has its number, its
// deadline and its arrays like a call in flight. Other members are not told of a waiting call, and
// the large buffers of its operation are reserved when its turn comes.
//
// Collectives, sends and receives wait in separate queues (base/pair.zig), so many receives called
// before the sends hold up neither the sends nor a collective. Beyond the number in flight, all
// members must call the operations of one queue in the same order. Otherwise each of two members
// waits, until its deadline, for an operation that the other member has not begun.

/// Frees the operations that still wait when the session ends.
pub fn destroy_queue(s: *Session) void {
    for (s.groups.items) |group| for (group.member.epochs) |slot| if (slot) |epoch| {
        for (epoch.queued.items) |op| Operation.from_op(op).destroy();
    };
}

/// Counts a call that has to wait for its turn.
pub fn queue_put(s: *Session, operation: *Operation) void {
    operation.is_queued = true;
    s.queue.count += 1;
    s.queue.deadline = @min(s.queue.deadline, operation.deadline);
}

/// Moves an operation from the queue to `operations`, which has room for it, at its turn or its
/// end.
pub fn queue_leave(s: *Session, operation: *Operation) void {
    operation.is_queued = false;
    s.queue.count -= 1;
    s.operations.appendAssumeCapacity(operation);
}

/// Begins the waiting operations whose turn has come; false: no operation's turn has come. Must not
/// be called inside a member's action.
pub fn step_queue(s: *Session) bool {
    if (s.queue.count == 0) return false;
    var any = false;
    for (s.groups.items) |group| while (group.member.next_queued()) |op| {
        any = true;
        const operation = Operation.from_op(op);
        if (operation.moves()) |x| x.reserve() catch {
            s.log(.err, "no memory for {f}, which has waited for its turn: it is withdrawn", .{
                operation.named(&operation.names),
            });
            group.member.give_up(op, .cancelled);
            continue;
        };
        queue_leave(s, operation);
        group.member.start_queued(op);
    };
    return any;
}

/// Withdraws waiting operations whose deadlines have passed. A deadline counts from the call, not
/// from the turn.
pub fn tick_queue(s: *Session) void {
    if (s.now < s.queue.deadline) return;
    s.queue.deadline = base.never;
    for (s.groups.items) |group| while (queue_due(s, group)) |operation| {
        group.member.give_up(&operation.op, .deadline);
    };
}

/// The first operation of a group that waits and whose deadline has passed. If no deadline has
/// passed, notes the next deadline in `Queue.deadline`.
fn queue_due(s: *Session, group: *Group) ?*Operation {
    for (group.member.epochs) |slot| if (slot) |epoch| for (epoch.queued.items) |op| {
        const operation = Operation.from_op(op);
        if (operation.deadline <= s.now) return operation;
        s.queue.deadline = @min(s.queue.deadline, operation.deadline);
    };
    return null;
}

/// Whether a call would write memory that a waiting operation needs, or needs memory that a waiting
/// operation writes.
pub fn queue_clashes(s: *const Session, uses: *const Uses) bool {
    if (s.queue.count == 0) return false;
    for (s.groups.items) |group| {
        for (group.member.epochs) |slot| if (slot) |epoch| for (epoch.queued.items) |op| {
            if (Operation.from_op(op).clashes(uses)) return true;
        };
    }
    return false;
}
