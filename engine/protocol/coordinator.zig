//! Coordinator: every connection, peer and group of a run. It tells strangers from peers, notices
//! silence, and hands messages to the group they are for (group.zig, epoch.zig). Driven by net/ and
//! by tests/sim.
//!
//! A member whose connection ends has the silence limit to come back, unless another member says
//! that its lanes to it are closed as well. Facts that a coordinator must know after it was killed
//! are in its journal (journal.zig) before anybody is told (hold.zig); after a restart all members
//! are away.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const dial_back = @import("dial_back.zig");
const Epoch = @import("epoch.zig").Epoch;
const founding = @import("founding.zig");
const Group = @import("group.zig").Group;
const Hold = @import("hold.zig").Hold;
const journal_file = @import("journal.zig");
const Late = @import("late.zig").Late;
const misfit = @import("misfit.zig");
const owed = @import("owed.zig");
const Journal = journal_file.Journal;
const lobby = @import("lobby.zig");
const queues = @import("queues.zig");
const recovery = @import("recovery.zig");
const seal = @import("seal.zig");
const stall = @import("stall.zig");
const Status = @import("status.zig").Status;
const StatusRates = @import("status_rates.zig").StatusRates;
const Traffic = @import("traffic.zig").Traffic;
const unreached = @import("unreached.zig");
const unseen = @import("unseen.zig");
const ProtocolError = @import("epoch.zig").ProtocolError;
const rates = @import("rates.zig");
const Allocator = std.mem.Allocator;
const assert = std.debug.assert;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

pub const LogLevel = enum(u8) { debug = 0, info = 1, warning = 2, err = 3 };

/// One TCP connection to the coordinator. The driver owns the socket and moves bytes of `stream`.
pub const Connection = struct {
    stream: wire.Stream,
    /// The messages that wait for the disk to have what they rely on; lost if it ends before.
    hold: Hold = .{},
    /// The driver's to use.
    driver: usize = 0,
    state: State = .stranger,
    /// When it came in, or said that it asks for the status.
    since: Instant,
    /// Where it comes from.
    source: base.Source,
    /// The host at which it has reached the coordinator, as it seems here; unknown: zeros.
    here: base.Source = @splat(0),
    peer: ?*Peer = null,
    /// It said something after the answer to its hello, so it hears us.
    has_answered: bool = false,
    /// The driver reads nothing from it before that: it has said too much.
    paused_until: Instant = 0,
    /// When its peer may come back, with all that it is in; and that it has.
    returns_at: ?Instant = null,
    has_returned: bool = false,
    /// Something went wrong with it inside a call; it is closed before that call returns, and its
    /// peer is out.
    doomed: ?[]const u8 = null,
    coordinator: *Coordinator,

    pub const State = enum { stranger, peer, status, answered, refused };

    /// Whether it has a place at the door.
    fn stranger(connection: *const Connection) ?base.places.Guest {
        if (connection.state != .stranger or connection.doomed != null) return null;
        return .{
            .source = connection.source,
            .silent = connection.stream.in.items.len == 0,
            .fresh = connection.since == connection.coordinator.door_at,
        };
    }

    fn asker(connection: *const Connection) ?base.places.Guest {
        const asks = connection.state == .status or connection.state == .answered;
        if (!asks or connection.doomed != null) return null;
        return .{ .source = connection.source, .silent = connection.state == .status };
    }

    pub fn is_paused(connection: *const Connection, now: Instant) bool {
        return connection.paused_until > now;
    }

    fn send(connection: *Connection, message: control.Message) void {
        var once: Circular = .{ .message = &message };
        once.send_on(connection);
    }

    /// That would come back without it.
    pub fn memory(connection: *const Connection) usize {
        return connection.stream.memory() + connection.hold.memory();
    }

    /// Messages that waited for this record, or an earlier one, may be heard.
    pub fn release(connection: *Connection, settled: u64) void {
        const c = connection.coordinator;
        const any = connection.hold.release(settled, &connection.stream) catch
            return connection.doom(no_room);
        if (any) c.host.vtable.wake(c.host.ctx, connection);
    }

    const no_room = "its messages do not fit into memory any more";

    /// It is closed before the call under way returns, and its peer is out.
    pub fn doom(connection: *Connection, why: []const u8) void {
        connection.doomed = why;
        connection.coordinator.any_doomed = true;
    }
};

/// One message to several peers, encoded for the first of them only.
pub const Circular = struct {
    message: *const control.Message,
    load: wire.Stream.Load = .usual,
    /// In the stream, or the hold, of the first, which is told nothing else meanwhile.
    encoded: ?wire.Queue.Encoded = null,

    /// A peer that is away is told everything when it comes back.
    pub fn send(circular: *Circular, group: u16, peer: *const Peer) void {
        if (!peer.is_present(group)) return;
        if (peer.connection) |connection| circular.send_on(connection);
    }

    fn send_on(circular: *Circular, connection: *Connection) void {
        if (connection.doomed != null) return; // it would hear the end of something
        const c = connection.coordinator;
        circular.put(connection) catch
            return connection.doom(if (connection.hold.is_full(&connection.stream, circular.load))
                "it does not read what it is told, and more does not wait for it"
            else
                Connection.no_room);
        c.host.vtable.wake(c.host.ctx, connection);
        queues.keep_budget(c);
    }

    fn put(circular: *Circular, connection: *Connection) Allocator.Error!void {
        const stream = &connection.stream;
        const hold = &connection.hold;
        const load = circular.load;
        if (hold.is_full(stream, load)) return error.OutOfMemory;
        if (recovery.held_until(connection, circular.message)) |until| {
            const now = connection.coordinator.last_tick;
            circular.encoded =
                try hold.keep(stream, now, until, circular.message, load, circular.encoded);
        } else if (circular.encoded) |*encoded| {
            try stream.append_encoded(encoded, load);
        } else {
            circular.encoded = try stream.append(circular.message, load);
        }
    }
};

/// A process in the run: while it is connected, and as long as it is a member of anything.
pub const Peer = struct {
    id: PeerId,
    /// Null while it is away.
    connection: ?*Connection,
    /// Which process has the id.
    instance: u64,
    /// Where other peers dial it, in numbers; empty while that is not known.
    address: []u8 = &.{},
    /// Where it says that they do.
    claim: addresses.Claim = .{},
    last_heard: Instant,
    /// Where it was connected from last.
    source: base.Source = @splat(0),
    /// When its last connection ended on which it had answered, or will have, as far as the peer
    /// knows. Another one on which it answers nothing is no return: it may not hear us.
    away_since: Instant = 0,
    /// Other members that have said that their lanes to this one are closed, the last two.
    witnesses: [2]Witness = @splat(.{}),
    /// The last newcomer that has said so.
    bystander: Witness = .{},
    /// Groups in which it has told, on this connection, what it is a member of; a bit each.
    present: u64 = 0,
    /// Its account of the group that it is telling about.
    telling: ?Telling = null,
    /// The group that it asks for was refused: what it still tells of that one is passed over.
    refused: bool = false,
    /// Its joins that were too many (lobby.zig).
    joins_waiting: u32 = 0,
    /// Since when it is connected, or has left the last group that it left.
    idle_since: Instant = 0,
    /// Until when a message of its, and what is behind it, was left where it is.
    unread_until: Instant = 0,
    rates: rates.Rates = .{},
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,
    /// Its name for people.
    label: base.Label = .{},
    /// For the status.
    traffic: Traffic = .{},
    late: Late = .{},

    const Witness = struct { id: PeerId = .none, at: Instant = 0 };

    fn witness(peer: *Peer, by: PeerId, now: Instant) void {
        const older = @intFromBool(peer.witnesses[1].at < peer.witnesses[0].at);
        const place = for (&peer.witnesses) |*known| {
            if (known.id.eql(by)) break known;
        } else &peer.witnesses[older];
        place.* = .{ .id = by, .at = now };
    }

    fn has_witness(peer: *const Peer) bool {
        for (&peer.witnesses) |*known| if (!known.id.eql(.none)) return true;
        return false;
    }

    fn has_bystander(peer: *const Peer) bool {
        return !peer.bystander.id.eql(.none);
    }

    pub fn has_word_of(peer: *const Peer, by: PeerId) bool {
        for (&peer.witnesses) |*known| if (known.id.eql(by)) return true;
        return false;
    }

    fn forget_witnesses(peer: *Peer, before: Instant) void {
        for (&peer.witnesses) |*known| if (known.at < before) {
            known.* = .{};
        };
        if (peer.bystander.at < before) peer.bystander = .{};
    }

    const Telling = struct {
        /// Null: its join waits.
        group: ?*Group,
        rounds: Group.Rounds,
        initial_world_size: u32,
        /// It names an epoch, so it is, or was, a member.
        named: bool = false,
        newest: u64 = 0,
        /// It has seen what the journal has lost: it belongs to another history.
        beyond: bool = false,

        fn of(group: ?*Group, told: *const lobby.Told) Telling {
            return .{
                .group = group,
                .rounds = told.rounds,
                .initial_world_size = told.initial_world_size,
                .named = told.newest > 0,
                .newest = told.newest,
                .beyond = told.newest > if (group) |known| known.last_epoch else 0,
            };
        }
    };

    /// Sends, if the peer is there: one that is away is told everything when it comes back.
    pub fn send(peer: *Peer, group: u16, message: control.Message) void {
        if (peer.is_present(group)) peer.say(message);
    }

    /// Sends what is not about a group that the peer has named.
    pub fn say(peer: *Peer, message: control.Message) void {
        if (peer.connection) |connection| connection.send(message);
    }

    /// The disk has held up for a while what it is told (hold.zig). Members can have something
    /// written all the time, and must not keep others from being judged by that.
    pub fn waits_for_disk(peer: *const Peer) bool {
        const connection = peer.connection orelse return false;
        const c = connection.coordinator;
        const since = connection.hold.waits_since() orelse return false;
        return c.last_tick -| since >= 2 *| c.options.heartbeat_ns;
    }

    pub fn is_present(peer: *const Peer, group: u16) bool {
        return group < limits.groups_max and peer.present & bit(group) != 0;
    }

    fn bit(group: u16) u64 {
        return @as(u64, 1) << @intCast(group);
    }

    /// It is out of the run before the call under way returns.
    pub fn doom(peer: *Peer, why: []const u8) void {
        if (peer.connection) |connection| connection.doom(why);
    }

    /// As the log shows it: "7f3a01c2 (node7:4242)".
    pub fn named(peer: *const Peer) base.Named {
        return .{ .id = peer.id, .label = peer.label };
    }

    pub fn less_than(_: void, a: *Peer, b: *Peer) bool {
        return a.id.less_than(b.id);
    }
};

comptime {
    assert(limits.groups_max <= 64); // Peer.present
}

pub const Coordinator = struct {
    gpa: Allocator,
    options: Options,
    host: Host,
    /// The key of the journal, where there is one.
    seal_key: seal.Key,
    connections: std.ArrayList(*Connection) = .empty,
    peers: std.ArrayList(*Peer) = .empty,
    groups: std.ArrayList(*Group) = .empty,
    /// The largest numbers of groups that have ended: none of them is used again.
    ended: struct { epoch: u64 = 0, round: u64 = 0 } = .{},
    /// Where the search for a free number of a group begins: those freed last come last.
    next_group: u16 = 0,
    arrivals: rates.Arrivals = .{},
    lobby: lobby.Lobby = .{},
    /// Draws who is let in at the door, and who must go.
    prng: base.Prng,
    /// When somebody last came to it.
    door_at: Instant = 0,
    /// When something is due before the next heartbeat.
    due_at: Instant = base.never,
    started_at: Instant = 0,
    last_tick: Instant = 0,
    /// It hears nobody, so its own network may be gone.
    deaf: bool = false,
    /// The budget of all connections.
    memory: wire.Budget,
    status: Status = .{},
    status_rates: StatusRates = .{},
    /// The peer that members were last asked to dial.
    dial_back: dial_back.DialBack = .{},
    /// The time of day is so far ahead of `Instant`; for the status alone.
    wall_ahead_ns: u64 = 0,
    /// Connections that were not of this run, for the status.
    strangers_refused: u64 = 0,
    /// Peers that are looked for where they say they are.
    questions: addresses.Queue = .{},
    /// Some connection is doomed.
    any_doomed: bool = false,
    /// How often a coordinator has begun to use the journal; rounds are told apart by it.
    incarnation: u32 = 1,
    journal_state: JournalState = .off,
    journal_progress: recovery.Progress = .{},
    /// Since the journal was last written as a whole.
    journal_bytes: usize = 0,
    /// It is time for that.
    journal_due: bool = false,
    /// When one that has failed is tried again.
    journal_retry_at: Instant = 0,

    pub const JournalState = enum {
        off,
        ok,
        /// It could not be written: the run goes on, and would not survive this coordinator until
        /// a later try succeeds.
        failed,
    };

    pub const Options = struct {
        run_id: base.RunId,
        min_world_size: u32 = 1,
        initial_world_size: u32 = 1,
        lanes: u8 = 2,
        chunk_bytes: u32 = 256 * limits.KiB,
        window_bytes: u64 = 16 * limits.MiB,
        heartbeat_ns: u64 = std.time.ns_per_s / 2,
        silence_ns: u64 = 5 * std.time.ns_per_s,
        prepare_ns: u64 = 10 * std.time.ns_per_s,
        /// How long others may have waited for a member's call before it is named.
        stall_warning_ns: u64 = 10 * std.time.ns_per_s,
        /// And before it is let go; 0: it never is.
        stall_ns: u64 = 0,
        /// Where it is reached, for the status and the journal.
        address: []const u8 = "",
        port: u16 = 0,
        /// The bytes that all its queues may hold. Beyond, the longest goes.
        memory: u64 = limits.queues_bytes_default,
        /// Null: nothing survives this coordinator.
        journal: ?Journal = null,
        /// How long a journal that could not be written is left alone.
        journal_retry_ns: u64 = std.time.ns_per_min,
        /// Where the coordinator itself lies, which knows run id and key; null: like the rest.
        secrets: ?Allocator = null,
    };

    pub const Host = struct {
        ctx: *anyopaque,
        vtable: *const VTable,

        pub const VTable = struct {
            /// Send what is in the stream as far as it goes, then close. `connection` is invalid
            /// afterwards.
            close: *const fn (ctx: *anyopaque, connection: *Connection) void,
            /// The stream has bytes to send, which stay where they are until the call into the
            /// coordinator returns.
            wake: *const fn (ctx: *anyopaque, connection: *Connection) void,
            /// Whether the peer is where it says. It may block nobody.
            find: *const fn (
                ctx: *anyopaque,
                question: *const addresses.Question,
            ) addresses.Reply,
            log: *const fn (ctx: *anyopaque, level: LogLevel, message: []const u8) void,
        };
    };

    /// Lanes that broke may mean that a peer died; its closed control connection tells within this
    /// time.
    const replan_ns = 20 * std.time.ns_per_ms;
    /// A connection that a peer tries to make is tried again by its kernel after 2 s at most, and
    /// by itself soon after that.
    const dial_repeat_ns = 3 * std.time.ns_per_s;
    /// The word of a second member on a machine that is busy.
    const second_witness_ns = 100 * std.time.ns_per_ms;

    /// `seal_key` is random; a run that goes on keeps the one of its first start.
    pub fn create(
        gpa: Allocator,
        options: Options,
        host: Host,
        seal_key: seal.Key,
    ) Allocator.Error!*Coordinator {
        const coordinator = try (options.secrets orelse gpa).create(Coordinator);
        coordinator.* = .{
            .gpa = gpa,
            .options = options,
            .host = host,
            .seal_key = seal_key,
            .memory = .{ .bytes_max = options.memory },
            .prng = .init(seal.seed(&seal_key)),
        };
        return coordinator;
    }

    /// The driver has closed all sockets.
    pub fn destroy(c: *Coordinator) void {
        for (c.groups.items) |group| group.destroy();
        c.groups.deinit(c.gpa);
        for (c.peers.items) |peer| c.peer_free(peer);
        c.peers.deinit(c.gpa);
        for (c.connections.items) |connection| c.connection_free(connection);
        c.connections.deinit(c.gpa);
        c.arrivals.deinit(c.gpa);
        c.lobby.deinit(c.gpa);
        c.status.deinit(c.gpa);
        (c.options.secrets orelse c.gpa).destroy(c);
    }

    /// Takes up the run that a journal holds, or begins one. Called once, before the first
    /// connection; afterwards the coordinator is of no use if it fails.
    pub fn restore(c: *Coordinator, now: Instant, bytes: []const u8) recovery.Error!void {
        return recovery.restore(c, now, bytes);
    }

    /// No coordinator before this one has used this number or a later one, even if it could not
    /// write its journal any more.
    pub fn first_epoch(c: *const Coordinator) u64 {
        return @as(u64, c.incarnation - 1) * epochs_per_start + 1;
    }

    /// The same for rounds: this one no group has had, and those from here on.
    pub fn first_round(c: *const Coordinator) u64 {
        return @as(u64, c.incarnation) << 32;
    }

    const epochs_per_start = 1 << 20;

    /// Puts on disk what must be known after a restart. Messages that rely on it wait for the
    /// number that is returned.
    pub fn record(c: *Coordinator, entry: journal_file.Record) u64 {
        return recovery.record(c, entry);
    }

    /// The last record of a group, or of those that name one of its epochs.
    pub fn recorded_of(c: *const Coordinator, id: u16, number: ?u64) u64 {
        const group = c.group_at(id) orelse return c.journal_progress.given; // of all groups
        const epoch = group.epoch_of(number orelse return group.recorded) orelse
            return group.recorded;
        return epoch.recorded;
    }

    /// The journal has all that it was given up to this number on the disk.
    pub fn journal_written(c: *Coordinator, now: Instant, number: u64) void {
        recovery.written(c, number);
        c.sweep(now);
    }

    /// It has not, and takes no more before it is written anew.
    pub fn journal_failed(c: *Coordinator, now: Instant, number: u64) void {
        recovery.not_written(c, now, number);
        c.sweep(now);
    }

    fn connection_free(c: *Coordinator, connection: *Connection) void {
        connection.hold.deinit(c.gpa);
        connection.stream.deinit();
        c.gpa.destroy(connection);
    }

    fn peer_free(c: *Coordinator, peer: *Peer) void {
        c.gpa.free(peer.address);
        peer.claim.deinit(c.gpa);
        c.gpa.destroy(peer);
    }

    pub fn log(c: *Coordinator, level: LogLevel, comptime format: []const u8, args: anytype) void {
        var buffer: [limits.log_line_bytes_max]u8 = undefined;
        const text = std.fmt.bufPrint(&buffer, format, args) catch &buffer;
        c.host.vtable.log(c.host.ctx, level, text);
    }

    // ---- connections

    /// A connection came in. Null: no memory, or no place that could be made; the driver closes it.
    pub fn accept(c: *Coordinator, now: Instant, source: base.Source) ?*Connection {
        if (!c.make_place(now, source)) {
            c.strangers_refused += 1;
            return null;
        }
        c.connections.ensureUnusedCapacity(c.gpa, 1) catch return null;
        const connection = c.gpa.create(Connection) catch return null;
        connection.* = .{
            .stream = .init_bounded(c.gpa, &c.memory),
            .since = now,
            .source = source,
            .coordinator = c,
        };
        c.connections.appendAssumeCapacity(connection);
        return connection;
    }

    /// Strangers have few places, and each member that is away has one besides: that of a member is
    /// never a stranger's (base/places.zig).
    fn make_place(c: *Coordinator, now: Instant, source: base.Source) bool {
        c.door_at = now;
        c.due_at = @min(c.due_at, now +| limits.stranger_ns_max);
        var taken: usize = 0;
        for (c.connections.items) |item| taken += @intFromBool(item.stranger() != null);
        var door: base.places.Door = .{ .places = limits.strangers_max };
        for (c.peers.items) |peer| door.expected += @intFromBool(peer.connection == null);
        const is_known = for (c.peers.items) |peer| {
            if (base.places.same_network(peer.source, source)) break true;
        } else false;
        switch (door.answer(&c.prng, taken, is_known)) {
            .enter => return true,
            .turn_away => return false,
            .make_room => {},
        }
        while (taken >= door.places + door.expected) : (taken -= 1) {
            const items = c.connections.items;
            const guest = base.places.draw(Connection, items, Connection.stranger, &c.prng) orelse
                return false;
            c.strangers_refused += 1;
            guest.doom("others wait for its place");
        }
        c.sweep(now);
        return true;
    }

    /// The answer to a question is worth a place for a moment.
    fn ask(c: *Coordinator, now: Instant, connection: *Connection) void {
        var taken: usize = 0;
        for (c.connections.items) |item| taken += @intFromBool(item.asker() != null);
        if (taken >= limits.statuses_max) {
            const items = c.connections.items;
            const guest = base.places.draw(Connection, items, Connection.asker, &c.prng).?;
            c.strangers_refused += 1;
            guest.doom("others ask for the status");
        }
        connection.state = .status;
        connection.since = now;
        c.due_at = @min(c.due_at, now +| limits.status_ns_max);
    }

    /// Bytes were appended to connection.stream.
    pub fn received(c: *Coordinator, now: Instant, connection: *Connection) void {
        if (connection.state == .stranger) c.greet(now, connection);
        if (connection.peer) |peer| peer.last_heard = @max(peer.last_heard, now);
        // One question each: answers cost more than questions.
        if (connection.state == .answered) connection.doom("it goes on after its answer");
        c.hear(now, connection);
        c.sweep(now);
    }

    /// Takes the messages that are there, as far as its rates go.
    fn hear(c: *Coordinator, now: Instant, connection: *Connection) void {
        while (connection.doomed == null and !connection.is_paused(now) and
            (connection.state == .peer or connection.state == .status))
        {
            const stream = &connection.stream;
            const at = stream.in_start;
            const message = stream.take() catch |err| {
                if (err == error.TooLong and c.hears_more_of(connection)) continue;
                connection.doom(fault_of(err));
                break;
            } orelse break;
            const size = stream.in_start - at;
            connection.has_answered = true;
            if (c.must_wait(now, connection, &message)) |wait_ns| {
                stream.in_start = at;
                c.pause(now, connection, wait_ns);
                if (connection.peer) |peer| peer.unread_until = connection.paused_until;
                break;
            }
            c.dispatch(now, connection, &message) catch |err| {
                connection.doom(fault_of(err));
            };
            const peer = connection.peer orelse continue;
            const wait_ns = peer.rates.heard(now, &message, size);
            if (wait_ns > 0) c.pause(now, connection, wait_ns);
        }
        queues.keep_budget(c);
    }

    /// Nothing is read from it for a while, and that is no silence of its.
    pub fn pause(c: *Coordinator, now: Instant, connection: *Connection, wait_ns: u64) void {
        connection.paused_until = now +| wait_ns;
        c.due_at = @min(c.due_at, connection.paused_until);
        const peer = connection.peer orelse return;
        peer.last_heard = @max(peer.last_heard, connection.paused_until);
    }

    /// How long a message, and what is behind it, is left where it is.
    fn must_wait(
        c: *const Coordinator,
        now: Instant,
        connection: *Connection,
        message: *const control.Message,
    ) ?u64 {
        const peer = connection.peer orelse return null;
        switch (message.*) {
            .join_end => return return_wait(now, connection),
            inline .done, .state_offer => |*body| {
                const group = c.group_of(peer, body.group) catch return null;
                const epoch = group.epoch_of(body.epoch) orelse return null;
                const rank = epoch.rank_of(peer) orelse return null;
                return if (unseen.must_wait(epoch, rank)) unseen.wait_ns else null;
            },
            else => return null,
        }
    }

    /// A member that comes back costs its groups an attempt each. Whoever does so all the time
    /// waits, for all its groups together, and for so little that it loses none by that.
    fn return_wait(now: Instant, connection: *Connection) ?u64 {
        const peer = connection.peer.?;
        const telling = peer.telling orelse return null;
        const group = telling.group orelse return null;
        if (connection.has_returned or group.recovering or !group.contains(peer)) return null;
        const at = connection.returns_at orelse now +| peer.rates.attempt_wait_ns(now);
        connection.returns_at = at;
        if (now < at) {
            peer.away_since = @max(peer.away_since, at);
            return at - now;
        }
        connection.has_returned = true;
        peer.rates.cost_attempt(now);
        return null;
    }

    /// Those who have waited for long enough are read again.
    fn resume_reading(c: *Coordinator, now: Instant) void {
        for (c.connections.items) |connection| {
            const until = connection.paused_until;
            if (until == 0 or until > now) {
                if (until > now) c.due_at = @min(c.due_at, until);
                continue;
            }
            connection.paused_until = 0;
            c.hear(now, connection);
            c.host.vtable.wake(c.host.ctx, connection);
        }
    }

    /// Before more is read from somebody who was paused: what it has said is taken first, for as
    /// long as its rates go, so that it does not pile up here.
    pub fn take_said(c: *Coordinator, now: Instant, connection: *Connection) void {
        if (connection.paused_until == 0 or connection.is_paused(now)) return;
        connection.paused_until = 0;
        c.hear(now, connection);
        c.sweep(now);
    }

    /// A member may say more at once than somebody who only wants to become one.
    fn hears_more_of(c: *const Coordinator, connection: *Connection) bool {
        const peer = connection.peer orelse return false;
        const known = connection.stream.in_bytes_max == limits.control_message_bytes_max;
        if (known or !c.is_member(peer)) return false;
        connection.stream.in_bytes_max = limits.control_message_bytes_max;
        return true;
    }

    const Fault = control.Error || ProtocolError;

    pub fn fault_of(err: Fault) []const u8 {
        return switch (err) {
            error.OutOfMemory => "the coordinator has no memory for its messages",
            inline else => |fault| "it broke the protocol (" ++ @errorName(fault) ++ ")",
        };
    }

    /// The connection ended; it is invalid afterwards.
    pub fn closed(c: *Coordinator, now: Instant, connection: *Connection) void {
        if (connection.peer) |peer| c.gone_away(now, peer);
        c.forget(connection);
        c.sweep(now);
    }

    fn forget(c: *Coordinator, connection: *Connection) void {
        for (c.connections.items, 0..) |item, index| if (item == connection) {
            _ = c.connections.swapRemove(index);
            break;
        };
        c.connection_free(connection);
    }

    /// Closes what has been doomed, until nothing more follows from it.
    fn sweep(c: *Coordinator, now: Instant) void {
        if (!c.any_doomed) return;
        var index: usize = 0;
        while (index < c.connections.items.len) {
            const connection = c.connections.items[index];
            const why = connection.doomed orelse {
                index += 1;
                continue;
            };
            if (connection.peer) |peer| {
                disconnect(peer);
                c.lose(now, peer, why);
            }
            c.host.vtable.close(c.host.ctx, connection);
            c.forget(connection);
            index = 0; // a removal may doom others
        }
        c.any_doomed = false;
    }

    fn disconnect(peer: *Peer) void {
        if (peer.connection) |connection| {
            lobby.disconnected(connection.coordinator, peer);
            connection.peer = null;
        }
        peer.connection = null;
        peer.present = 0;
        peer.telling = null;
        peer.refused = false;
        addresses.disconnected(peer);
    }

    /// Its connection ended. A member may come back; who only waited to become one asks again.
    fn gone_away(c: *Coordinator, now: Instant, peer: *Peer) void {
        const why = "its connection to the coordinator closed";
        if (peer.connection.?.has_answered) peer.away_since = now;
        disconnect(peer);
        for (c.groups.items) |group| group.gone_away(now, peer, why);
        if (!c.is_member(peer)) return c.lose(now, peer, why);
        c.log(.info, "peer {f} is away: {s}", .{ peer.named(), why });
        peer.forget_witnesses(now -| c.options.heartbeat_ns);
        c.hear_witnesses(now, peer);
    }

    fn hear_witnesses(c: *Coordinator, now: Instant, peer: *Peer) void {
        // If it is dead, another one will say so soon: an attempt with it would be in vain.
        if (peer.connection == null and peer.has_witness()) {
            for (c.groups.items) |group| for (group.epochs.items) |epoch| {
                if (epoch.replan_at == base.never or epoch.rank_of(peer) == null) continue;
                epoch.replan_at = @max(epoch.replan_at, now + second_witness_ns);
            };
        }
        c.lose_abandoned(now);
    }

    /// Members that are away, and whose lanes are closed as well: their processes are dead. One
    /// that is away cannot object, so where two others could have noticed, two must say so.
    fn lose_abandoned(c: *Coordinator, now: Instant) void {
        var index: usize = 0;
        while (index < c.peers.items.len) {
            const peer = c.peers.items[index];
            index += 1;
            if (peer.connection != null or !c.is_abandoned(peer)) continue;
            c.lose(now, peer, "it is away, and its lanes to other members are closed");
            index = 0; // with it, others may have one less who could notice
        }
    }

    fn is_abandoned(c: *const Coordinator, peer: *const Peer) bool {
        if (!peer.has_witness()) {
            // A newcomer is heard where no member is left that could have noticed.
            if (!peer.has_bystander()) return false;
            for (c.groups.items) |group| if (group.neighbours_of(peer) > 0) return false;
            return true;
        }
        for (&peer.witnesses) |*known| if (known.id.eql(.none)) {
            for (c.groups.items) |group| if (group.neighbours_of(peer) > 1) return false;
        };
        return true;
    }

    pub fn is_member(c: *const Coordinator, peer: *const Peer) bool {
        for (c.groups.items) |group| if (group.contains(peer)) return true;
        return false;
    }

    /// Takes a peer out of the run.
    fn lose(c: *Coordinator, now: Instant, peer: *Peer, why: []const u8) void {
        c.log(.info, "peer {f} is gone: {s}", .{ peer.named(), why });
        disconnect(peer);
        for (c.groups.items) |group| c.take_out(now, group, peer, why);
        c.forget_peer(peer);
    }

    fn forget_peer(c: *Coordinator, peer: *Peer) void {
        for (c.peers.items, 0..) |item, index| if (item == peer) {
            _ = c.peers.orderedRemove(index);
            break;
        };
        c.peer_free(peer);
    }

    /// Takes a peer out of one group and tells it, after that is recorded. A peer that is neither
    /// there nor a member anywhere is forgotten.
    fn expel(c: *Coordinator, now: Instant, group: *Group, peer: *Peer, why: []const u8) void {
        c.expel_as(now, group, peer, .{ .group = group.id, .why = .of(why) });
    }

    pub fn expel_as(
        c: *Coordinator,
        now: Instant,
        group: *Group,
        peer: *Peer,
        told: control.Expelled,
    ) void {
        const why = told.why.data;
        c.log(.warning, "peer {f} must leave group {s}: {s}", .{
            peer.named(),
            group.name,
            why,
        });
        c.take_out(now, group, peer, why);
        peer.send(group.id, .{ .expelled = told });
        if (peer.connection == null and !c.is_member(peer)) c.forget_peer(peer);
    }

    fn take_out(
        c: *Coordinator,
        now: Instant,
        group: *Group,
        peer: *Peer,
        why: []const u8,
    ) void {
        group.remove(now, peer, why) catch |err| {
            // Out of memory: the group's promises cannot be kept, so its members are let go, not
            // misled.
            c.log(.err, "group {s}: {t} while removing a peer", .{ group.name, err });
            for (c.peers.items) |other| {
                if (group.contains(other)) other.doom("the coordinator ran out of memory");
            }
        };
    }

    // ---- strangers

    fn greet(c: *Coordinator, now: Instant, connection: *Connection) void {
        const bytes = connection.stream.take_raw(wire.hello.hello_bytes) orelse return;
        const hello = wire.hello.decode(bytes) catch |err| switch (err) {
            error.VersionMismatch => return c.refuse(connection, .version_mismatch),
            // Whoever does not speak PCCL gets no answer.
            error.NotPccl, error.BadValue => {
                c.strangers_refused += 1;
                connection.doom("it does not speak PCCL");
                return;
            },
        };
        // In a time that does not tell how much of it was right.
        if (!std.crypto.timing_safe.eql(base.RunId, hello.run_id, c.options.run_id))
            return c.refuse(connection, .wrong_run);
        switch (hello.purpose) {
            .lane, .probe => return c.refuse(connection, .wrong_peer),
            .status => c.ask(now, connection),
            .control => {
                // It stands for nobody, so nobody can be it.
                if (hello.from.eql(.none)) return c.refuse(connection, .refused);
                // The same of processes; a journal relies on it, too.
                if (hello.instance == 0) return c.refuse(connection, .refused);
                const known = c.peer_of(hello.from);
                if (known) |peer| {
                    // Only members are known while they are away, and only their processes come
                    // back as them.
                    if (peer.instance != hello.instance) {
                        const taken = peer.connection != null;
                        return c.refuse(connection, if (taken) .refused else .held);
                    }
                    c.come_back(now, peer, connection);
                } else {
                    const room = c.peers.items.len < limits.peers_max;
                    if (!room) return c.refuse(connection, .full);
                    c.peer_add(now, connection, &hello) catch return c.refuse(connection, .full);
                }
            },
        }
        connection.stream.send_raw(&wire.hello.encode_answer(.welcome)) catch {
            connection.doom("out of memory");
            return;
        };
        if (connection.state == .peer) connection.send(.{ .welcome = .{
            .heartbeat_ns = c.options.heartbeat_ns,
            .silence_ns = c.options.silence_ns,
            .window_bytes = c.options.window_bytes,
            .chunk_bytes = c.options.chunk_bytes,
            .lanes = c.options.lanes,
            .stall_warning_ns = c.options.stall_warning_ns,
        } });
    }

    pub fn peer_of(c: *const Coordinator, id: PeerId) ?*Peer {
        for (c.peers.items) |peer| if (peer.id.eql(id)) return peer;
        return null;
    }

    /// A member that a journal names.
    pub fn away_peer(
        c: *Coordinator,
        now: Instant,
        id: PeerId,
        instance: u64,
    ) Allocator.Error!*Peer {
        if (c.peer_of(id)) |peer| {
            peer.instance = instance; // another one has been lost before
            return peer;
        }
        try c.peers.ensureUnusedCapacity(c.gpa, 1);
        const peer = try c.gpa.create(Peer);
        peer.* = .{
            .id = id,
            .instance = instance,
            .connection = null,
            .last_heard = now,
            .away_since = now +| c.options.silence_ns,
        };
        c.peers.appendAssumeCapacity(peer);
        return peer;
    }

    /// Those who are away and members of nothing.
    pub fn forget_idle(c: *Coordinator) void {
        var index = c.peers.items.len;
        while (index > 0) {
            index -= 1;
            const peer = c.peers.items[index];
            if (peer.connection == null and !c.is_member(peer)) c.forget_peer(peer);
        }
    }

    fn peer_add(
        c: *Coordinator,
        now: Instant,
        connection: *Connection,
        hello: *const wire.hello.Hello,
    ) !void {
        try c.peers.ensureUnusedCapacity(c.gpa, 1);
        const peer = try c.gpa.create(Peer);
        peer.* = .{
            .id = hello.from,
            .instance = hello.instance,
            .connection = connection,
            .source = connection.source,
            .last_heard = now,
            .idle_since = now,
        };
        c.peers.appendAssumeCapacity(peer);
        connection.peer = peer;
        connection.state = .peer;
        c.due_at = @min(c.due_at, now +| limits.idle_ns_max);
        // Its label comes with its first wish.
        c.log(.info, "peer {s} is connected", .{hello.from.short()});
    }

    /// A peer has a new connection; it knows that the old one is dead, if we do not.
    fn come_back(
        c: *Coordinator,
        now: Instant,
        peer: *Peer,
        connection: *Connection,
    ) void {
        if (peer.connection) |old| {
            const why = "its peer has another one";
            if (old.has_answered) peer.away_since = now;
            disconnect(peer);
            for (c.groups.items) |group| group.gone_away(now, peer, why);
            old.doom(why);
        }
        peer.connection = connection;
        peer.source = connection.source;
        peer.last_heard = now;
        peer.idle_since = now;
        peer.forget_witnesses(std.math.maxInt(Instant));
        connection.peer = peer;
        connection.state = .peer;
        c.log(.info, "peer {f} is connected again", .{peer.named()});
    }

    fn refuse(c: *Coordinator, connection: *Connection, verdict: wire.hello.Verdict) void {
        c.strangers_refused += 1;
        connection.state = .refused;
        // Without memory for the answer it is closed without one.
        connection.stream.send_raw(&wire.hello.encode_answer(verdict)) catch {};
        connection.doom(@tagName(verdict));
    }

    // ---- messages

    fn dispatch(
        c: *Coordinator,
        now: Instant,
        connection: *Connection,
        message: *const control.Message,
    ) ProtocolError!void {
        if (connection.state == .status) return switch (message.*) {
            .status_request => |body| {
                connection.state = .answered;
                dial_back.ask(c, now, connection.source, body.dial_back);
                c.reply_status(now, connection);
            },
            else => error.Unexpected,
        };
        const peer = connection.peer.?;
        if (lobby.is_void(peer, message)) return;
        switch (message.*) {
            .join => |*body| try c.on_join(now, peer, body),
            .epoch_report => |*body| try c.on_epoch_report(peer, body),
            .knows_commit => |*body| try c.on_known(peer, .{ .commit = body }),
            .knows_abort => |*body| try c.on_known(peer, .{ .abort = body }),
            .gave_up => |*body| try c.on_gave_up(peer, body),
            .join_end => try c.on_join_end(now, peer),
            .leave => |body| c.on_leave(now, peer, body.group),
            .heartbeat => |body| {
                peer.bytes_sent = body.bytes_sent;
                peer.bytes_received = body.bytes_received;
                peer.say(.{ .heartbeat_ack = .{ .number = body.number } });
            },
            .traffic => |*body| peer.traffic.note(now, body),
            .prepared => |*body| {
                (try c.group_of(peer, body.group)).on_prepared(now, peer, body);
            },
            .ask_address => |body| try c.on_ask_address(peer, body),
            .safe_points => |body| {
                const group = try c.group_of(peer, body.group);
                try group.on_safe_points(now, peer, body.round, body.count);
            },
            .activated => |body| {
                try (try c.group_of(peer, body.group)).on_activated(now, peer, body.epoch);
            },
            .epoch_closed => |body| {
                try (try c.group_of(peer, body.group)).on_closed(now, peer, body.epoch);
            },
            .link_lost => |*body| try c.on_link_lost(now, peer, body),
            .link_told => |body| try c.on_link_told(now, peer, body),
            .dialed_back => |*body| dial_back.told(c, peer, body),
            inline .done,
            .mismatch_seen,
            .report_op,
            .report_end,
            .decisions_seen,
            .state_offer,
            .state_tensors,
            .called,
            => |*body, tag| {
                const group = try c.group_of(peer, body.group);
                const epoch = group.epoch_of(body.epoch) orelse return; // it is over
                const rank = epoch.rank_of(peer) orelse return;
                switch (tag) {
                    .done => try epoch.on_done(now, rank, body),
                    .mismatch_seen => try epoch.on_mismatch(rank, body),
                    .report_op => try epoch.on_report_op(rank, body),
                    .report_end => try epoch.on_report_end(rank, body),
                    .decisions_seen => try epoch.acknowledge(rank, body.count),
                    .state_offer => try epoch.on_state_offer(rank, body),
                    .state_tensors => try epoch.on_state_tensors(rank, body),
                    .called => try stall.on_called(epoch, now, rank, body),
                    else => comptime unreachable,
                }
            },
            // Messages of coordinators alone, or of those who are no peers.
            .status_request,
            .heartbeat_ack,
            .welcome,
            .joined,
            .refused,
            .prepare,
            .release,
            .ask_safe_points,
            .activate,
            .view,
            .resume_op,
            .resume_all,
            .commit,
            .abort,
            .expelled,
            .status_reply,
            .state_elected,
            .state_ask,
            .state_differs,
            .address_told,
            .unreached,
            .stalled,
            .labels,
            .waiting,
            .awaited,
            .entered,
            .dial_back,
            => return error.Unexpected,
        }
    }

    /// A group that the peer has named on this connection.
    fn group_of(c: *const Coordinator, peer: *const Peer, id: u16) ProtocolError!*Group {
        if (!peer.is_present(id)) return error.Unexpected;
        return c.group_at(id).?; // it does not end while a peer is present
    }

    fn on_join(c: *Coordinator, now: Instant, peer: *Peer, body: *const control.Join) !void {
        const name = body.name.data;
        if (name.len == 0) return error.Unexpected;
        if (peer.telling != null or peer.refused) return error.Unexpected;
        // Both are shown to people, and the address is dialed by others.
        if (!base.text.is_name(name)) return refuse_group(
            peer,
            name,
            "its name cannot be shown: it must be UTF-8 without control characters, line ends " ++
                "and marks that turn the writing",
        );
        _ = base.Endpoint.parse_told(body.address.data) catch return refuse_group(
            peer,
            name,
            "the address of this peer is not that of one host, with a port",
        );
        peer.claim.advertised = body.advertised;
        peer.label = base.Label.read(body.label.data) orelse return refuse_group(
            peer,
            name,
            "the label of this peer cannot be shown: it must be UTF-8 without control " ++
                "characters, line ends and marks that turn the writing",
        );
        try addresses.claim_told(c, peer, body.address.data, body.address_key);
        const known = c.group_named(name);
        const own = if (known) |group| Peer.bit(group.id) else 0;
        const others = @popCount(peer.present & ~own) + peer.claim.waiting.items.len +
            peer.joins_waiting;
        if (others >= limits.groups_per_peer_max)
            return refuse_group(peer, name, "this peer is in 8 groups already; leave one first");
        const told: lobby.Told = .of(body);
        // A member that comes back tells all its groups again, and loses those that it cannot tell
        // within the silence limit.
        const is_member_here = if (known) |group| group.contains(peer) else false;
        if (!is_member_here and try lobby.set_aside(c, now, peer, body)) {
            peer.telling = .of(null, &told);
        } else try c.begin_telling(peer, name, &told);
    }

    pub fn begin_telling(
        c: *Coordinator,
        peer: *Peer,
        name: []const u8,
        told: *const lobby.Told,
    ) Allocator.Error!void {
        if (founding.objection(c, name, peer, &told.founders)) |why|
            return refuse_group(peer, name, why);
        const group = c.group_named(name) orelse
            try c.make_group(name, peer, &told.founders) orelse
            return refuse_group(peer, name, "the run has 64 groups already; use one of them");
        if (group.contains(peer) and peer.is_present(group.id)) {
            if (group.newcomer_of(peer) == null)
                return refuse_group(peer, name, "this peer is in the group already");
            // Its user had given up, and tries again: the answer that is under way is for this.
            peer.telling = .of(null, told);
            return;
        }
        peer.present &= ~Peer.bit(group.id);
        peer.telling = .of(group, told);
        group.begin_report(peer);
    }

    /// The last that the peer says of the group, after an `expelled` as well; whatever it says of
    /// the number from now on is of another group.
    fn on_leave(c: *Coordinator, now: Instant, peer: *Peer, id: u16) void {
        // It may say so twice of a group whose number it did not know yet.
        if (!peer.is_present(id)) return;
        c.take_out(now, c.group_at(id).?, peer, "it left");
        peer.present &= ~Peer.bit(id);
        peer.idle_since = now;
        c.due_at = @min(c.due_at, now +| limits.idle_ns_max);
    }

    // ---- groups

    pub fn group_at(c: *const Coordinator, id: u16) ?*Group {
        for (c.groups.items) |group| if (group.id == id) return group;
        return null;
    }

    pub fn group_named(c: *const Coordinator, name: []const u8) ?*Group {
        for (c.groups.items) |group| if (std.mem.eql(u8, group.name, name)) return group;
        return null;
    }

    /// Null: there are too many.
    fn make_group(
        c: *Coordinator,
        name: []const u8,
        peer: *const Peer,
        founders: *const control.Founders,
    ) Allocator.Error!?*Group {
        if (c.groups.items.len >= limits.groups_max) c.end_groups();
        if (c.groups.items.len >= limits.groups_max) return null;
        try c.groups.ensureUnusedCapacity(c.gpa, 1);
        var id = c.next_group;
        while (c.group_at(id) != null) id = (id + 1) % limits.groups_max;
        var founded = try founding.of(c, peer, founders);
        errdefer if (founded) |*it| it.deinit(c.gpa);
        const is_founded = founded != null;
        const group = try Group.create(c.gpa, .{
            .coordinator = c,
            .id = id,
            .name = name,
            .initial_world_size = if (is_founded) 1 else c.options.initial_world_size,
            .min_world_size = if (is_founded) 1 else c.options.min_world_size,
            .prepare_ns = c.options.prepare_ns,
            .founding = founded,
        });
        c.next_group = (id + 1) % limits.groups_max;
        // A group of this name, or of this number, may have been there before.
        group.last_epoch = @max(group.last_epoch, c.ended.epoch);
        group.round = @max(group.round, c.ended.round);
        c.groups.appendAssumeCapacity(group);
        _ = group.note(.{ .group = group.record() });
        return group;
    }

    /// Groups that nobody is in, waits for or speaks of any more are over.
    pub fn end_groups(c: *Coordinator) void {
        var index = c.groups.items.len;
        while (index > 0) {
            index -= 1;
            const group = c.groups.items[index];
            if (!c.is_over(group)) continue;
            c.log(.info, "group {s} has ended: nobody is in it", .{group.name});
            c.end_group(group);
        }
    }

    fn is_over(c: *const Coordinator, group: *const Group) bool {
        if (group.epochs.items.len > 0 or group.newcomers.items.len > 0) return false;
        for (c.peers.items) |peer| {
            if (peer.is_present(group.id)) return false;
            if (peer.telling) |*telling| if (telling.group == group) return false;
            for (peer.claim.waiting.items) |*item| if (item.group == group) return false;
        }
        return true;
    }

    pub fn end_group(c: *Coordinator, group: *Group) void {
        c.ended.epoch = @max(c.ended.epoch, group.last_epoch);
        c.ended.round = @max(c.ended.round, group.round);
        for (c.groups.items, 0..) |item, index| if (item == group) {
            _ = c.groups.orderedRemove(index);
            break;
        };
        group.destroy();
    }

    // ---- members

    fn refuse_group(peer: *Peer, name: []const u8, why: []const u8) void {
        peer.refused = true;
        peer.say(.{ .refused = .{ .name = .of(name), .why = .of(why) } });
    }

    fn on_epoch_report(
        _: *Coordinator,
        peer: *Peer,
        body: *const control.EpochReport,
    ) ProtocolError!void {
        if (peer.refused) return;
        const telling = if (peer.telling) |*telling| telling else return error.Unexpected;
        telling.named = true;
        telling.newest = @max(telling.newest, body.epoch);
        const group = telling.group orelse return;
        if (body.epoch > group.last_epoch) telling.beyond = true;
        const epoch = group.epoch_of(body.epoch) orelse return; // it is over
        const rank = epoch.rank_of(peer) orelse return;
        // It knows of a removal that this coordinator does not: the journal has lost it.
        if (!body.alive.covers(&epoch.alive)) telling.beyond = true;
        try epoch.on_report(rank, body);
    }

    fn on_known(_: *Coordinator, peer: *Peer, message: Epoch.Known) ProtocolError!void {
        if (peer.refused) return;
        const telling = peer.telling orelse return error.Unexpected;
        const number = switch (message) {
            inline else => |body| body.epoch,
        };
        const group = telling.group orelse return;
        const epoch = group.epoch_of(number) orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        try epoch.on_known(rank, message);
    }

    /// While it tells, it is the group that it tells of, whose number it may not know yet.
    fn on_gave_up(c: *Coordinator, peer: *Peer, body: *const control.GaveUp) ProtocolError!void {
        if (peer.refused) return;
        const group = if (peer.telling) |*telling|
            telling.group orelse return
        else
            try c.group_of(peer, body.group);
        const epoch = group.epoch_of(body.epoch) orelse return; // it is over
        const rank = epoch.rank_of(peer) orelse return;
        try epoch.on_gave_up(rank, body);
    }

    /// Everything is told: the peer is a newcomer, a member that came back, or was let go.
    pub fn on_join_end(c: *Coordinator, now: Instant, peer: *Peer) ProtocolError!void {
        if (peer.refused) {
            peer.refused = false;
            return;
        }
        const telling = peer.telling orelse return error.Unexpected;
        peer.telling = null;
        const group = telling.group orelse return lobby.is_whole(c, peer, telling.newest);
        const knows = telling.named or group.was_let_in(peer, telling.rounds.preparing);
        if (!knows) c.take_out(now, group, peer, "it left while it was away");
        // The journal could not be written then, and the coordinator has died since.
        if (telling.beyond) c.take_out(now, group, peer, knows_more);
        const is_member_here = group.contains(peer);
        if (!is_member_here and !telling.named)
            return addresses.admit(c, now, group, peer, telling.initial_world_size);
        welcome_to(group, peer);
        if (is_member_here) {
            try addresses.settle(c, now, peer);
            return group.come_back(now, peer, telling.rounds);
        }
        peer.send(group.id, .{ .expelled = .{
            .group = group.id,
            .why = .of(if (telling.beyond) knows_more else group.removals.why_of(peer.id) orelse
                "it was removed, so long ago that the coordinator does not know why any more"),
        } });
    }

    const knows_more = "it knows more than the coordinator, which has started again without its " ++
        "journal, or with one that had failed";

    pub fn welcome_to(group: *const Group, peer: *Peer) void {
        peer.present |= @as(u64, 1) << @intCast(group.id);
        peer.send(group.id, .{ .joined = .{ .name = .of(group.name), .group = group.id } });
    }

    /// A newcomer that may be told to others.
    pub fn add(
        c: *Coordinator,
        now: Instant,
        group: *Group,
        peer: *Peer,
        initial_world_size: u32,
    ) Allocator.Error!void {
        if (founding.turns_away(c, now, group, peer)) return;
        welcome_to(group, peer);
        c.log(.info, "peer {f} asks to join group {s}", .{ peer.named(), group.name });
        try group.add(now, peer, initial_world_size);
    }

    /// Takes what `Host.find` was to find out. The driver may be late: nobody need wait.
    pub fn answered(c: *Coordinator, now: Instant, number: u64, answer: addresses.Answer) void {
        addresses.answered(c, now, number, answer) catch |err| c.not_asked(err);
        c.sweep(now);
    }

    /// Those who wait are asked about again at the next tick.
    fn not_asked(c: *Coordinator, err: Allocator.Error) void {
        c.log(.err, "{t} while peers were looked for where they say they are", .{err});
    }

    /// Lanes between two members broke: a new attempt with the same members, unless one of the two
    /// turns out to be dead.
    fn on_link_lost(
        c: *Coordinator,
        now: Instant,
        peer: *Peer,
        body: *const control.LinkLost,
    ) !void {
        const group = try c.group_of(peer, body.group);
        if (body.epoch == 0) return c.on_link_lost_to_newcomer(now, group, peer, body);
        const epoch = group.epoch_of(body.epoch) orelse return;
        if (epoch.rank_of(peer) == null) return;
        const rank = epoch.ranks.get(body.other) orelse return;
        const other = epoch.members[rank].peer orelse return;
        if (other == peer) return error.Unexpected;
        const is_news = body.attempt == epoch.attempt and epoch.running;
        // Whoever says so all the time does not make others wait who have reason to say so.
        const at = now + replan_ns + peer.rates.attempt_wait_ns(now);
        const is_put_off = epoch.replan_at > now + second_witness_ns;
        if (is_news and is_put_off and at < epoch.replan_at) {
            epoch.replan_at = at;
            peer.rates.cost_attempt(now);
        }
        if (body.state != .closed) return;
        other.witness(peer.id, now);
        c.hear_witnesses(now, other);
    }

    /// It had lanes to a member, for the round that lets it in.
    fn on_link_lost_to_newcomer(
        c: *Coordinator,
        now: Instant,
        group: *const Group,
        peer: *const Peer,
        body: *const control.LinkLost,
    ) void {
        const other = c.peer_of(body.other) orelse return;
        if (body.state != .closed or !group.is_in_round(peer) or !group.contains(other)) return;
        other.bystander = .{ .id = peer.id, .at = now };
        c.hear_witnesses(now, other);
    }

    /// Rounds tell only what is new in them: whoever needs another address asks.
    fn on_ask_address(c: *Coordinator, peer: *Peer, body: control.AskAddress) ProtocolError!void {
        const group = try c.group_of(peer, body.group);
        const other = c.peer_of(body.peer) orelse return;
        if (!group.contains(peer) or !group.contains(other)) return;
        var room: addresses.Room = undefined;
        const address = addresses.told_to(peer, other, &room);
        if (address.len == 0) return;
        peer.send(group.id, .{ .address_told = .{
            .peer = .{ .id = other.id, .address = .of(address) },
        } });
    }

    /// How a link of this peer is: the ring goes around those that are broken, and who is left with
    /// too few of them for any ring leaves the group.
    fn on_link_told(
        c: *Coordinator,
        now: Instant,
        peer: *Peer,
        body: control.LinkTold,
    ) ProtocolError!void {
        const group = try c.group_of(peer, body.group);
        const other = c.peer_of(body.other) orelse return;
        if (other == peer) return error.Unexpected;
        if (!group.contains(peer) or !group.contains(other)) return;
        const is_news = try group.broken.tell(c.gpa, peer.id, other.id, body.health);
        unreached.link_told(group, now, peer, &body);
        // Whoever says it as often as it likes must not push other lines out of the log; what
        // follows from it is a line of its own, and the status shows how links are now.
        c.log(.debug, "peer {f} says of its link to peer {f}: {t}", .{
            peer.named(),
            other.named(),
            body.health,
        });
        if (!is_news) return;
        group.look.ask(now + replan_ns + peer.rates.attempt_wait_ns(now), peer.id);
    }

    /// Draws the consequences of what was said of links, once others have said theirs of the same.
    fn look_around(c: *Coordinator, now: Instant) void {
        for (c.groups.items) |group| {
            const by = group.take_look(now) orelse continue;
            while (group.stranded()) |peer| {
                const why = "other members could not reach it for longer than the silence " ++
                    "limit, and nothing goes around that";
                c.expel(now, group, peer, why);
            }
            if (!group.go_around(now)) continue;
            if (c.peer_of(by)) |peer| peer.rates.cost_attempt(now);
        }
    }

    /// Members for whose reports, or calls, the others have waited for too long.
    fn let_go_overdue(c: *Coordinator, now: Instant) void {
        const stall_ns = c.options.stall_ns;
        var overdue: stall.Overdue = .{};
        for (c.groups.items) |group| {
            while (owed.find_overdue(group, now, stall_ns, c.options.silence_ns, &overdue) or
                (stall_ns > 0 and stall.find_overdue(group, now, stall_ns, &overdue)))
            {
                for (overdue.peers[0..overdue.count]) |peer|
                    c.expel(now, group, peer, overdue.why());
            }
        }
    }

    /// Members whose calls, or shared states, are not those of the others: newcomers as a rule.
    fn refuse_misfits(c: *Coordinator, now: Instant) void {
        var misfits: stall.Overdue = .{};
        for (c.groups.items) |group| while (misfit.find(group, &misfits) or
            misfit.find_stranded(group, now, &misfits))
        {
            var told: control.Expelled = .{
                .group = group.id,
                .refused = true,
                .why = .of(misfits.why()),
            };
            if (misfits.call) |*call| {
                told.op = call.op;
                told.peer = call.peer;
                told.descriptor = call.descriptor;
            }
            for (misfits.peers[0..misfits.count]) |peer| c.expel_as(now, group, peer, told);
        };
    }

    fn reply_status(c: *Coordinator, now: Instant, connection: *Connection) void {
        if (!c.status_rates.may_ask(connection.source, now)) return connection.send(.{ .refused = .{
            .name = .of(""),
            .why = .of("its host has asked too often; the next answer is ready in a second"),
        } });
        const json = c.status.get(c.gpa, c, now) catch {
            connection.doom("out of memory");
            return;
        };
        c.status_rates.charge(connection.source, now, json.len);
        connection.send(.{ .status_reply = .{ .json = .of(json) } });
    }

    // ---- time

    /// Not inlined, and rare: its frame is large.
    pub noinline fn tick(c: *Coordinator, now: Instant) void {
        if (c.started_at == 0) c.started_at = now;
        const since = c.last_tick;
        recovery.tend(c, now);
        // A loop that was late by more than a heartbeat was frozen: it has heard nobody, so it
        // judges nobody. Nor does one that hears nobody at all: its own network may be gone.
        const frozen = c.last_tick != 0 and now -| c.last_tick > 2 *| c.options.heartbeat_ns;
        const deaf = c.hears_nobody(now);
        const late = frozen or deaf;
        c.last_tick = now;
        c.due_at = base.never;
        c.resume_reading(now);
        lobby.let_in(c, now);
        for (c.connections.items) |connection| {
            if (connection.peer) |peer| {
                if (frozen) peer.last_heard = @max(peer.last_heard, now);
                if (deaf or now -| peer.last_heard < c.options.silence_ns) {
                    c.let_go_idle(now, peer, frozen);
                    continue;
                }
                // With a journal it hears so when it comes back and the removal is on the disk.
                if (c.journal_state != .ok) peer.say(.{ .expelled = .{
                    .group = std.math.maxInt(u16),
                    .why = .of("the coordinator heard nothing of it for the silence limit"),
                } });
                connection.doom("it was silent for longer than the silence limit");
            } else {
                const stays_ns: u64 = if (connection.asker() == null)
                    limits.stranger_ns_max
                else
                    limits.status_ns_max;
                const until = connection.since +| stays_ns;
                if (now >= until) connection.doom("it did not say who it is, or ask, in time");
                c.due_at = @min(c.due_at, @max(until, now + 1));
            }
        }
        c.sweep(now);
        addresses.ask(c, now) catch |err| c.not_asked(err);
        c.judge_absent(now, late);
        c.look_around(now);
        for (c.groups.items) |group| {
            // Nobody answers what waits for the disk.
            const waits = recovery.waits(c, group.recorded);
            if (waits) group.round_deadline +|= now -| since;
            const pardons = late or waits or group.waits_for_disk();
            group.tick(now, c.options.silence_ns, pardons) catch |err| {
                c.log(.err, "group {s}: {t}", .{ group.name, err });
            };
            if (!group.out_of_memory) continue;
            group.out_of_memory = false;
            c.log(.err, "group {s}: no memory to let members in; tried again soon", .{group.name});
        }
        c.let_go_overdue(now);
        c.refuse_misfits(now);
        c.sweep(now);
        c.end_groups();
    }

    /// One that joins nothing takes up a place that others may wait for.
    fn let_go_idle(c: *Coordinator, now: Instant, peer: *Peer, frozen: bool) void {
        if (peer.present != 0 or peer.claim.waiting.items.len > 0 or c.is_member(peer)) return;
        if (peer.joins_waiting > 0 and peer.telling == null) return;
        if (frozen) peer.idle_since = now;
        // One that tells what it is a member of may take as long as a member that is silent.
        const tells = peer.telling != null or peer.refused;
        const more_ns = if (tells) c.options.silence_ns else 0;
        const until = peer.idle_since +| limits.idle_ns_max +| more_ns;
        if (now >= until) return peer.doom("it has joined nothing for too long");
        c.due_at = @min(c.due_at, until);
    }

    /// Peers were connected, and none of them has been heard for half of what they may be silent.
    /// Once that is so, also those whose connections have ended are waited for until somebody is
    /// heard again.
    fn hears_nobody(c: *Coordinator, now: Instant) bool {
        var connected = false;
        for (c.peers.items) |peer| {
            if (peer.connection == null) continue;
            connected = true;
            if (now -| peer.last_heard >= c.options.silence_ns / 2) continue;
            if (c.deaf) c.wait_for_all(now);
            c.deaf = false;
            return false;
        }
        c.deaf = c.deaf or connected;
        return c.deaf;
    }

    /// Somebody is heard again, so the others have the silence limit from now on. Unlike after a
    /// restart that is enough: they have heard no answer for half of it already, so they have given
    /// up their connections and try to make new ones (session.zig: silent_at). Only what they try
    /// may take a while to be repeated, so a limit that is short is taken twice.
    fn wait_for_all(c: *Coordinator, now: Instant) void {
        const silence_ns = c.options.silence_ns;
        const since = now +| @min(silence_ns, dial_repeat_ns -| silence_ns);
        for (c.peers.items) |peer| {
            if (now -| peer.last_heard < silence_ns / 2) continue;
            peer.last_heard = since;
            peer.away_since = since;
        }
    }

    /// Members that did not come back in time are lost. After a restart they have longer: they may
    /// find out about it only by silence.
    fn judge_absent(c: *Coordinator, now: Instant, late: bool) void {
        var index: usize = 0;
        while (index < c.peers.items.len) {
            const peer = c.peers.items[index];
            index += 1;
            if (late) peer.away_since = @max(peer.away_since, now);
            if (now < peer.away_since +| c.options.silence_ns) continue;
            const why = "it did not come back within the silence limit";
            if (peer.connection == null) {
                c.lose(now, peer, why);
                index = 0;
            } else for (c.groups.items) |group| {
                // It has a connection, and does not say on it that it is still a member.
                if (peer.is_present(group.id) or !group.contains(peer)) continue;
                c.take_out(now, group, peer, why);
                index = 0;
            }
        }
    }

    /// Never later than a heartbeat from the last tick, so that lateness means something.
    pub fn next_deadline(c: *const Coordinator) Instant {
        var next = @min(c.due_at, c.last_tick +| c.options.heartbeat_ns);
        for (c.groups.items) |group| next = @min(next, group.next_deadline(c.last_tick));
        return @min(next, addresses.next_deadline(c, c.last_tick));
    }
};
