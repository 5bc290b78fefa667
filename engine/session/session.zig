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
//! Lane. It tells the session which bytes arrived, and asks the session which bytes to send. `Host`
//! has the functions that the session calls in the driver. After each call of the session, the
//! driver sends `control.send_slice()` if that is not empty. It calls driver.tick at or after
//! driver.next_deadline. Host functions must not call back into the session.
//!
//! The decisions are made in protocol/member.zig. collective/movement.zig says what data moves.

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
    /// The coordinator's settings of the run; zeros before the first welcome. They never change.
    settings: control.Welcome = std.mem.zeroes(control.Welcome),
    /// The coordinator's welcome has come on the present connection.
    welcomed: bool = false,
    /// When the next connection to the coordinator is tried, and how many tries have failed in a
    /// row.
    reconnect_at: Instant = base.never,
    reconnects: u6 = 0,
    /// A random number that tells this process from others with the same id; never 0.
    instance: u64,
    /// When bytes of the present connection to the coordinator last came, or when it was made.
    last_heard: Instant = 0,
    /// When the coordinator's last message came, on whichever connection.
    last_message: Instant = 0,
    /// When the coordinator was lost, after it had accepted a connection; `never` while it is not
    /// lost.
    away_since: Instant = base.never,
    last_tick: Instant = 0,
    /// When the next heartbeat is due, and how many were sent.
    heartbeat_at: Instant = 0,
    heartbeats: u64 = 0,
    /// When the last heartbeat left, and the shortest time of late until the coordinator answered
    /// one; 0: no answer has come.
    beat_at: Instant = 0,
    round_trip_ns: u64 = 0,
    /// The last message about traffic that the coordinator was sent.
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
    /// Options of the session.
    strangers_max: u32,
    in_flight_max: u32,
    fragment_bytes_min: u32,
    reconnect_timeout_ns: u64,
    /// The coordinator's last refusal of a connection, for the calls that fail because of it.
    refusal: ?wire.hello.Verdict = null,
    /// The last answer to a greeting was not PCCL.
    not_pccl: bool = false,
    /// Memory ran out for a message to the coordinator. The coordinator's picture of this peer is
    /// wrong from then on, so the next tick ends the connection.
    control_failed: bool = false,

    groups: std.ArrayList(*Group) = .empty,
    /// How many groups were ever opened: the source of `Group.number`.
    groups_opened: u64 = 0,
    /// Operations of all groups that have begun, or have ended, and are not freed.
    operations: std.ArrayList(*Operation) = .empty,
    queue: Queue = .{},
    links: std.ArrayList(*Link) = .empty,
    strangers: std.ArrayList(*Lane) = .empty,
    /// The addresses at which members of epochs and rounds are dialed, by their ids.
    addresses: std.AutoArrayHashMapUnmanaged([16]u8, []u8) = .empty,
    /// The peers that this peer could not dial, and the peers that could not dial it; for errors.
    unreached: Unreached = .{},
    /// The dial under way that the coordinator asked for; null: there is none.
    dial_back: ?DialBack = null,
    /// A vote on a safe point has ended: run_deferred lets membership.zig act on it.
    votes_changed: bool = false,
    /// Some lane may be `broken`: run_deferred closes such lanes.
    lanes_broken: bool = false,
    /// A place of a lane in some link is free again: run_deferred greets hellos that have waited.
    places_freed: bool = false,
    /// A link may not be wanted any more: run_deferred looks again which links are.
    links_stale: bool = false,
    /// Operations at which run_deferred looks: their data may be complete, or they are to be given
    /// up, and their member must be told.
    deferred: std.ArrayList(*Operation) = .empty,
    /// Operations that are over, and whose callers do not have their memory back.
    giving_back: usize = 0,
    /// When the lanes are measured next, and when they were measured last (measure.zig).
    measure_at: Instant = base.never,
    measured_at: Instant = 0,
    /// The rates at which the user lets this peer send.
    rates: Rates,
    /// The most that all links of this peer have carried together.
    node: Node = .{},
    /// The probe of a link that is under way, and the bytes that probes may send.
    probe: Probe,
    /// Bytes on all lanes since the session began.
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// How many fetches of states in the background were begun: the source of their numbers
    /// (sync.zig).
    prefetches: u32 = 0,
    /// Bytes that lanes throw away are read into this.
    sink: [sink_bytes]u8 = undefined,

    const sink_bytes = 64 * limits.KiB;

    /// An unwanted link is closed after this time, because the other side may want it sooner.
    pub const linger_ns = 10 * std.time.ns_per_s;

    pub const ControlState = enum {
        /// No connection was made yet.
        closed,
        /// The connection is made, and the coordinator has not answered the hello.
        greeting,
        open,
        /// The connection is gone; the next one is tried at `reconnect_at`.
        away,
        /// The driver is connecting.
        dialing,
        /// The coordinator is given up: no connection is tried again.
        lost,
    };

    /// Operations that wait for their turn, in all groups.
    pub const Queue = struct {
        /// How many operations wait. They come into `operations` with their turn, or when they end.
        count: usize = 0,
        /// No operation that waits has an earlier deadline.
        deadline: Instant = base.never,
    };

    /// A dial that the coordinator asks this peer to make, for another peer (dial.zig).
    pub const DialBack = struct {
        lane: *Lane,
        peer: base.PeerId,
        nonce: wire.hello.Nonce,
        /// The result that the coordinator would be told if the lane ended now.
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
        /// Connections that may wait at once without having said which peer they come from.
        strangers_max: u32 = limits.strangers_max,
        /// Operations of one group that may be in flight at once; fewer in tests.
        in_flight_max: u32 = limits.operations_in_flight_max,
        /// A piece is not cut into fewer bytes than this, where its link has several lanes; less in
        /// tests.
        fragment_bytes_min: u32 = limits.fragment_bytes_min,
        /// After this time without a coordinator the session gives it up; `never`: calls wait for
        /// the coordinator until their deadlines.
        reconnect_timeout_ns: u64 = base.never,
        host: Host,
        /// Does large jobs, and lives longer than the session; null: the session's caller does
        /// them.
        runner: ?base.Runner = null,
        rates: Rates = .{},
        /// The most bytes of one probe; 0: this peer takes part in no probe. Fewer in tests.
        probe_bytes_max: u32 = limits.probe_bytes_max,
        /// The allocator of the Session itself, which holds the run id; null: the one of everything
        /// else.
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

    /// Moves the session's time on. A thread reads the time before it has the lock, so another
    /// thread may have come first with a later time: the session's time never goes back.
    pub fn reach(s: *Session, now: Instant) void {
        s.now = @max(s.now, now);
    }

    pub fn send(s: *Session, message: control.Message) void {
        if (s.control_state != .open) return;
        // Ended in the next tick: here the members that are being told something would be told
        // more.
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

    /// The link to another peer.
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
        // The coordinator does not know the address; it may be known here from before.
        if (address.len == 0) return;
        const entry = try s.addresses.getOrPut(s.gpa, id.bytes);
        if (!entry.found_existing) entry.value_ptr.* = &.{};
        if (std.mem.eql(u8, entry.value_ptr.*, address)) return;
        const copy = try s.gpa.dupe(u8, address);
        s.gpa.free(entry.value_ptr.*);
        entry.value_ptr.* = copy;
    }

    /// How long ago an operation was called, at the time when the coordinator hears of it.
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

    /// `done`: how many leaves; 0 at points that count none.
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
    /// This peer is not a member any more.
    gone: Status,
};

/// Named points at which tests may end the process (net/fault.zig). The points of `operation_` are
/// of operations that move data, but not of broadcasts and barriers.
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
        /// Starts connecting. The driver answers later with driver.opened, driver.failed or
        /// driver.closed.
        dial: *const fn (ctx: *anyopaque, lane: *Lane, address: []const u8) void,
        /// Closes the connection now. The lane is invalid afterwards; the driver does not call
        /// driver.closed.
        lane_close: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// Something may be there to send on this lane: the driver calls driver.send_slices soon,
        /// but not from here.
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
        /// The session does not touch the caller's memory any more.
        operation_finished: *const fn (ctx: *anyopaque, operation: *Operation) void,
        /// `operation.committed` is known now; null: it will never be.
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
// The peers that this peer could not dial, and the peers that could not dial it, by the
// coordinator's word. Errors name them, where they could otherwise say only that time has passed.
// No decision depends on them.

pub const Unreached = struct {
    entries: [entries_max]Entry = undefined,
    count: usize = 0,

    /// More entries than one sentence names.
    const entries_max = 8;
    const shown_max = 3;
    /// A dial that failed before this time does not explain a failure of now.
    const fresh_ns = 2 * std.time.ns_per_min;

    pub const Entry = struct {
        /// `none`: the coordinator.
        peer: PeerId,
        label: base.Label,
        /// `peer` has dialed this peer; otherwise this peer has dialed `peer`.
        is_theirs: bool,
        dialed: wire.Dialed,
        /// The address that the dial came from; zeros: it is not known.
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

    /// Remembers a failed dial. False: it was noted less than `fresh_ns` ago, with the same result.
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

    /// Forgets the failed dials of a peer, which has a lane now.
    pub fn forget(u: *Unreached, peer: PeerId) void {
        var index = u.count;
        while (index > 0) {
            index -= 1;
            if (!u.entries[index].peer.eql(peer)) continue;
            u.count -= 1;
            u.entries[index] = u.entries[u.count];
        }
    }

    /// A sentence about the failed dials of late, without its end; empty if there are none.
    pub fn text(u: *const Unreached, now: Instant, buffer: []u8) []const u8 {
        var writer: std.Io.Writer = .fixed(buffer);
        u.write(now, &writer) catch {}; // cut
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
    // The first has failed again, after all others.
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
// user names. Plain data: engine/abi/argument.zig reads it from a text, and measure.zig keeps to
// it.

pub const Rates = struct {
    /// Bytes per second over all links together; 0: no limit.
    all: u64 = 0,
    single: [limits.send_rates_max]Single = undefined,
    count: usize = 0,

    pub const Single = struct { name: base.Label, rate: u64 };

    pub fn slice(rates: *const Rates) []const Single {
        return rates.single[0..rates.count];
    }

    /// False: the list is full.
    pub fn add(rates: *Rates, item: Single) bool {
        if (rates.count == rates.single.len) return false;
        rates.single[rates.count] = item;
        rates.count += 1;
        return true;
    }

    /// Bytes per second to this peer, by the first name in the list that matches it; 0: no limit.
    pub fn of(rates: *const Rates, id: PeerId, label: *const base.Label) u64 {
        for (rates.slice()) |*item|
            if (names(item.name.slice(), id, label.slice())) return item.rate;
        return 0;
    }

    /// Whether a name means this peer: its label, the beginning of its label before a `*`, or its
    /// id, whole or as errors show it.
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
// A peer sends probes to find out what a link carries, when nobody knows that yet. Here is counted
// how many bytes it may spend on them. Each link has a few bytes free of charge, and so have all
// links together. Beyond that, probes are one byte in a hundred that the peer sends. Plain data.

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

    /// Bytes of one frame of a probe: a short probe has several frames, too.
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

    /// The other members of the largest epoch in which links are probed.
    const links_max: u64 = limits.measured_max - 1;
};

pub const Budget = struct {
    /// Bytes free of charge, for links of which nothing is known: at first one probe for each. Each
    /// minute gives back one probe, so a crowd of newcomers cannot make this peer send more.
    floor: u64,
    /// Bytes left of the hundredth part of the bytes sent in the minute before.
    share: u64 = 0,
    /// When the minute under way began, and the bytes that this peer had sent by then.
    began: Instant = 0,
    sent_then: u64 = 0,

    const minute_ns = std.time.ns_per_min;
    const part = 100;

    /// Begins a new minute when one has passed; called at heartbeats. `sent`: all bytes that this
    /// peer has ever sent on its links.
    pub fn pass(budget: *Budget, now: Instant, sent: u64, probe: u64) void {
        const taken_ns = now -| budget.began;
        const is_first = budget.began == 0;
        if (taken_ns < minute_ns and !is_first) return;
        // A process that stood still does not know what it has sent in the last minute.
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

/// Bytes that no network can compress.
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
    // It was cut short.
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
    // The rest of a minute's share is not of the next one.
    budget.pass(222 * second, 135_000, 1000);
    try expectEqual(300, probe.allowed(left));
    budget.pass(283 * second, 135_000, 1000);
    try expectEqual(0, probe.allowed(left));
    // Nobody knows of which minute these are.
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
// move on each link. It also tells how each link carries what is sent, and the most that all links
// together have carried (pace.zig). All numbers of one message are of the same time.

pub const traffic_every_ns = 2 * std.time.ns_per_s;

/// The last message about traffic.
pub const TrafficTold = struct {
    /// When it was made, and whether it named any link.
    at: base.Instant = 0,
    any: bool = false,
    /// The session's counters at that time.
    sent: u64 = 0,
    received: u64 = 0,
};

pub const LinkMoved = struct { sent: u64, received: u64 };

/// Room for the links of one message.
pub const TrafficRoom = [limits.links_told_max]Traffic;

/// The message about traffic since the last one, at a heartbeat; null: there is nothing to tell.
/// `moved`: all bytes that have ever moved on links. `ceiling`: the user's limit for all links,
/// bytes per second, or 0. Connections that begin exceed the limit for a moment, and the message
/// does not.
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
    if (before.at == 0) return null; // the time since which bytes have moved is not known
    // When traffic stops, this is told once.
    if (!told.any and !before.any) return null;
    const rate_max = base.limits.link_rate_told_max;
    return .{
        .span_ns = span_ns,
        .sent = per_second(moved.sent - before.sent, span_ns),
        .received = per_second(moved.received - before.received, span_ns),
        .up = @min(sum_within(node.up.rate, ceiling), rate_max),
        .down = @min(node.down.rate, rate_max),
        .links = .of(room[0..count]),
    };
}

/// The traffic of one link since the last message, and how the link carries it. The system measures
/// some of the numbers, so each is cut to what a message may say.
fn traffic_of_link(link: *const Link, span_ns: u64, ceiling: u64) Traffic {
    const flow = &link.flow;
    const rate = sum_within(sum_within(flow.carries(), flow.ceiling), ceiling);
    return .{
        .peer = link.peer,
        .sent = per_second(link.sent - link.sent_told, span_ns),
        .received = per_second(link.received - link.received_told, span_ns),
        .rate = @min(rate, base.limits.link_rate_told_max),
        .brought = @min(flow.brought.rate, base.limits.link_rate_told_max),
        .rtt_ns = @min(flow.base_ns, base.limits.link_rtt_ns_told_max),
        .again_ppm = @min(flow.again_ppm, base.limits.link_again_ppm_max),
        .lanes = @intCast(@min(link.open_count, base.limits.lanes_per_link_max)),
    };
}

/// The smaller of a rate and a limit; a limit of 0 is none.
fn sum_within(rate: u64, limit: u64) u64 {
    return if (limit == 0) rate else @min(rate, limit);
}

/// The link in `found` with the least traffic, if it has less than `than`; else null. The busiest
/// links are told.
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
    link.flow.brought.rate = 700;
    link.flow.base_ns = 90 * std.time.ns_per_ms;
    link.flow.again_ppm = 1_500;
    link.open_count = 4;
    expected.rate = 800;
    expected.brought = 700;
    expected.rtt_ns = 90 * std.time.ns_per_ms;
    expected.again_ppm = 1_500;
    expected.lanes = 4;
    try std.testing.expectEqual(expected, try told_of(&link));
    link.flow.pacer.found = 600;
    link.flow.pacer.rate = 590;
    expected.rate = 600;
    try std.testing.expectEqual(expected, try told_of(&link));
    // Somebody else's queue: there is no limit.
    link.flow.pacer.rate = 0;
    expected.rate = 800;
    try std.testing.expectEqual(expected, try told_of(&link));
    // The user's limits, of all links and of this one.
    expected.rate = 700;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
    link.flow.ceiling = 500;
    expected.rate = 500;
    try std.testing.expectEqual(expected, try told_within(&link, 700));
}

test "whatever the system measures, the coordinator can read what it is told" {
    var link = link_for_test();
    defer link.deinit();
    link.flow.carried.rate = std.math.maxInt(u64);
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
// The labels of other peers. The coordinator tells them with a round (protocol/membership.zig). A
// label is kept as long as an error may name the peer: while it is in an epoch or a round of this
// peer, gives leaves of its state, or has left with the last epoch. Only one decision depends on
// labels: the rate at which the user lets this peer send to another.

/// The label of a peer; empty if it is not known.
pub fn label_of(s: *const Session, id: PeerId) base.Label {
    if (id.eql(s.self)) return s.label;
    return s.labels.get(id.bytes) orelse .{};
}

/// The peer as log lines show it: "7f3a01c2 (node7:4242)".
pub fn label_named(s: *const Session, id: PeerId) base.Named {
    return .{ .id = id, .label = label_of(s, id) };
}

/// Sets the user's limit for this link, because the name of its peer may have become known.
pub fn label_limit(s: *const Session, link: *Link) void {
    if (s.rates.count > 0) link.flow.ceiling = s.rates.of(link.peer, &label_of(s, link.peer));
}

pub const LabelError = error{ OutOfMemory, Unexpected };

pub fn on_labels(s: *Session, body: *const wire.control.Labels) LabelError!void {
    const group = s.group_of(body.group) orelse return;
    var entries = body.peers.iterator();
    while (entries.next()) |entry| {
        const label = base.Label.read(entry.label.data) orelse return error.Unexpected;
        // Only labels that `prune_labels` will forget are kept.
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

/// Adds the name that this peer's own state has under the tag; other members name it alike.
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
// Steps that many files take with an operation: look at it later, give it up, wake its lanes, let
// go of its memory, free it. Free functions on Session, none of which calls a member.

/// Notes the operation for run_deferred (control.zig), which may call its member.
pub fn wake_later(s: *Session, operation: *Operation) void {
    for (s.deferred.items) |item| if (item == operation) return;
    s.deferred.appendAssumeCapacity(operation); // room was made when it was created
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

/// Makes all lanes let go of the memory of this owner.
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
    // An operation in doubt goes on, because the others may need what it holds.
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
// others end. So a program need not count its calls. A call that waits has its number, its deadline
// and its arrays like any other. The other members are not told of it, and the large buffers of its
// operation are reserved when its turn comes.
//
// Collectives, sends and receives wait in separate queues (base/pair.zig), so many receives called
// before the sends hold up neither the sends nor a collective. Beyond the number in flight, all
// members must call the operations of one queue in the same order. Otherwise two members wait for
// operations that the other has not begun, until their deadlines.

/// Frees the operations that wait, when the session ends.
pub fn destroy_queue(s: *Session) void {
    for (s.groups.items) |group| for (group.member.epochs) |slot| if (slot) |epoch| {
        for (epoch.queued.items) |op| Operation.from_op(op).destroy();
    };
}

/// Notes a call that has to wait.
pub fn queue_put(s: *Session, operation: *Operation) void {
    operation.is_queued = true;
    s.queue.count += 1;
    s.queue.deadline = @min(s.queue.deadline, operation.deadline);
}

/// Takes an operation out of the queue, with its turn or at its end. `operations` has room for it.
pub fn queue_leave(s: *Session, operation: *Operation) void {
    operation.is_queued = false;
    s.queue.count -= 1;
    s.operations.appendAssumeCapacity(operation);
}

/// Begins the operations whose turn has come; false: there are none. Never called inside a member's
/// action.
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

/// Gives up operations that wait and whose deadlines have passed. A deadline runs from the call.
pub fn tick_queue(s: *Session) void {
    if (s.now < s.queue.deadline) return;
    s.queue.deadline = base.never;
    for (s.groups.items) |group| while (queue_due(s, group)) |operation| {
        group.member.give_up(&operation.op, .deadline);
    };
}

/// The first operation of a group that waits and whose deadline has passed. Without one, notes the
/// next deadline.
fn queue_due(s: *Session, group: *Group) ?*Operation {
    for (group.member.epochs) |slot| if (slot) |epoch| for (epoch.queued.items) |op| {
        const operation = Operation.from_op(op);
        if (operation.deadline <= s.now) return operation;
        s.queue.deadline = @min(s.queue.deadline, operation.deadline);
    };
    return null;
}

/// Whether a call would write memory that an operation in the queue needs, or needs memory that one
/// writes.
pub fn queue_clashes(s: *const Session, uses: *const Uses) bool {
    if (s.queue.count == 0) return false;
    for (s.groups.items) |group| {
        for (group.member.epochs) |slot| if (slot) |epoch| for (epoch.queued.items) |op| {
            if (Operation.from_op(op).clashes(uses)) return true;
        };
    }
    return false;
}
