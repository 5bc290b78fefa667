//! Run: all that a coordinator knows of its run: the settings, the connections, peers and groups,
//! and how far the journal is. It answers questions, tells peers, and decides nothing. A message
//! goes into the queue of the peer's connection, or waits there for the record that it relies on
//! (peer.zig: Hold). A peer that is away is told nothing: it hears everything when it comes back.
//! coordinator.zig lists the files that change the run.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("address.zig");
const free_founders = @import("group.zig").free_founders;
const Arrivals = @import("peer.zig").Arrivals;
const Connection = @import("peer.zig").Connection;
const Epoch = @import("epoch.zig").Epoch;
const Group = @import("group.zig").Group;
const Journal = @import("journal.zig").Journal;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Rounds = @import("peer.zig").Rounds;
const Shared = @import("peer.zig").Shared;
const Subject = @import("peer.zig").Subject;
const Aim = Arrivals.Aim;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const hello = wire.hello;
const limits = base.limits;
const s = std.time.ns_per_s;

pub const LogLevel = enum(u8) { debug = 0, info = 1, warning = 2, err = 3 };

/// The records given to the journal, by number (log.zig).
pub const Progress = struct {
    /// The last record given to the journal.
    given: u64 = 0,
    /// The last record on the disk; all before are there, too.
    settled: u64 = 0,
    /// The last record that replaced the whole journal.
    replaced: u64 = 0,
    /// The last record that is known to have failed.
    failed: u64 = 0,
    /// The size of the journal when it was last written as a whole.
    whole_bytes: usize = 0,
    /// Since which tick a record is waited for, and whether the log says so.
    waits_since: ?Instant = null,
    said: bool = false,
};

/// The last status that was made (status.zig).
const Status = struct { text: []u8 = &.{}, made_at: Instant = 0 };

pub const Run = struct {
    gpa: Allocator,
    options: Options,
    host: Host,
    connections: std.ArrayList(*Connection) = .empty,
    peers: std.ArrayList(*Peer) = .empty,
    groups: std.ArrayList(*Group) = .empty,
    /// The largest numbers of groups that have ended: none of them is used again.
    ended: struct { epoch: u64 = 0, round: u64 = 0 } = .{},
    /// The number at which the search for a free group number begins, so that numbers freed last
    /// are taken last.
    next_group: u16 = 0,
    arrivals: Arrivals = .{},
    lobby: Lobby = .{},
    /// Draws who is let in at the door, and who must go.
    prng: base.Prng,
    /// When something is due before the next heartbeat.
    due_at: Instant = base.never,
    started_at: Instant = 0,
    last_tick: Instant = 0,
    /// The coordinator hears no peer, so its own network may be gone.
    deaf: bool = false,
    /// The budget of all connections.
    memory: wire.Budget,
    status: Status = .{},
    status_rates: StatusRates = .{},
    /// How often members have told the rates of their links (measurement.zig).
    measurements: u64 = 0,
    /// The peer that members were last asked to dial.
    dial_back: DialBack = .{},
    /// The time of day is so far ahead of `Instant`; for the status alone.
    wall_ahead_ns: u64 = 0,
    /// Connections that were not of this run, for the status.
    strangers_refused: u64 = 0,
    /// Peers that are looked for where they say they are.
    questions: addresses.Queue = .{},
    shared: Shared = .{},
    /// How often a coordinator has begun to use the journal; rounds are told apart by it.
    incarnation: u32 = 1,
    journal_state: JournalState = .off,
    journal_progress: Progress = .{},
    /// Since the journal was last written as a whole.
    journal_bytes: usize = 0,
    /// It is time for that.
    journal_due: bool = false,
    /// When one that has failed is tried again.
    journal_retry_at: Instant = 0,
    /// The size of the log when it was last written as a whole, and what was added since.
    log_whole_bytes: usize = 0,
    log_bytes: usize = 0,

    pub const JournalState = enum {
        off,
        ok,
        /// The journal or the log could not be written. The run goes on, and does not survive this
        /// coordinator before a later try succeeds.
        failed,
    };

    pub const Options = struct {
        run_id: base.RunId,
        min_world_size: u32 = 1,
        initial_world_size: u32 = 1,
        /// Lanes of each link; 0: each link has as many as bring something (session/flow.zig).
        lanes: u8 = 0,
        /// Members are asked to probe links whose rate is not known (measurement.zig).
        probes: bool = true,
        chunk_bytes: u32 = 256 * limits.KiB,
        /// Room for partial sums of one operation at each peer, and of all operations of a peer
        /// together, as far as that is more.
        window_bytes: u64 = limits.window_bytes_first,
        windows_bytes: u64 = limits.windows_bytes_default,
        heartbeat_ns: u64 = std.time.ns_per_s / 2,
        silence_ns: u64 = 5 * std.time.ns_per_s,
        prepare_ns: u64 = 10 * std.time.ns_per_s,
        /// How long others may have waited for a member's call before it is named.
        stall_warning_ns: u64 = 10 * std.time.ns_per_s,
        /// How long before it is let go; 0: it never is.
        stall_ns: u64 = 0,
        /// Where it listens and what it advertises, for the journal; where it is reached, for the
        /// status, too.
        bind: []const u8 = "",
        advertise: []const u8 = "",
        address: []const u8 = "",
        /// Bytes that all queues may hold together. Beyond, the peer with the longest queue is let
        /// go.
        memory: u64 = limits.queues_bytes_default,
        /// Null: nothing survives this coordinator.
        journal: ?Journal = null,
        /// How long after a failure the journal is written again.
        journal_retry_ns: u64 = std.time.ns_per_min,
        /// The allocator of the coordinator itself, which has the run id; null: that of the rest.
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
            /// Looks for the peer where it says it is. Does not block.
            find: *const fn (
                ctx: *anyopaque,
                question: *const addresses.Question,
            ) addresses.Reply,
            log: *const fn (ctx: *anyopaque, level: LogLevel, message: []const u8) void,
        };
    };

    pub fn deinit(run: *Run) void {
        for (run.groups.items) |group| group.destroy();
        run.groups.deinit(run.gpa);
        for (run.peers.items) |peer| peer.destroy(run.gpa);
        run.peers.deinit(run.gpa);
        for (run.connections.items) |connection| connection.destroy(run.gpa);
        run.connections.deinit(run.gpa);
        run.arrivals.deinit(run.gpa);
        run.lobby.deinit(run.gpa);
        run.gpa.free(run.status.text);
    }

    pub fn log(run: *Run, level: LogLevel, comptime format: []const u8, args: anytype) void {
        var buffer: [limits.log_line_bytes_max]u8 = undefined;
        const text = std.fmt.bufPrint(&buffer, format, args) catch &buffer;
        run.host.vtable.log(run.host.ctx, level, text);
    }

    pub fn peer_of(run: *const Run, id: PeerId) ?*Peer {
        for (run.peers.items) |peer| if (peer.id.eql(id)) return peer;
        return null;
    }

    pub fn is_in_epoch(run: *const Run, peer: *const Peer) bool {
        for (run.groups.items) |group| for (group.epochs.items) |epoch|
            if (epoch.rank_of(peer) != null) return true;
        return false;
    }

    pub fn is_member(run: *const Run, peer: *const Peer) bool {
        for (run.groups.items) |group| if (group.contains(peer)) return true;
        return false;
    }

    pub fn group_at(run: *const Run, id: u16) ?*Group {
        for (run.groups.items) |group| if (group.id == id) return group;
        return null;
    }

    /// A group that the peer has named on this connection.
    pub fn group_of(run: *const Run, peer: *const Peer, id: u16) ProtocolError!*Group {
        if (!peer.is_present(id)) return error.Unexpected;
        return run.group_at(id).?; // it does not end while a peer is present
    }

    pub fn group_named(run: *const Run, name: []const u8) ?*Group {
        for (run.groups.items) |group| if (std.mem.eql(u8, group.name, name)) return group;
        return null;
    }

    /// The name of a peer of a group, perhaps a lost one, for a line of the log.
    pub fn named(run: *const Run, group: *const Group, id: PeerId) base.Named {
        if (run.peer_of(id)) |peer| return peer.named();
        for (group.epochs.items) |epoch| if (epoch.ranks.get(id)) |rank|
            return .{ .id = id, .label = epoch.members[rank].label().* };
        return .{ .id = id, .label = .{} };
    }

    // ---- the journal

    /// The first epoch number that no earlier coordinator can have used, even without its journal.
    pub fn first_epoch(run: *const Run) u64 {
        return @as(u64, run.incarnation - 1) * epochs_per_start + 1;
    }

    /// The first round number that no earlier coordinator can have used.
    pub fn first_round(run: *const Run) u64 {
        return @as(u64, run.incarnation) << 32;
    }

    const epochs_per_start = 1 << 20;

    /// The last record about a group, or that names one of its epochs.
    pub fn recorded_of(run: *const Run, id: u16, number: ?u64) u64 {
        const group = run.group_at(id) orelse return run.journal_progress.given; // of all groups
        const epoch = group.epoch_of(number orelse return group.recorded) orelse
            return group.recorded;
        return epoch.recorded;
    }

    /// Whether messages that rely on this record have to wait. With a journal that has failed none
    /// do.
    pub fn waits(run: *const Run, number: u64) bool {
        return run.journal_state == .ok and number > run.journal_progress.settled;
    }

    /// Whether the disk has held up messages to the peer for a while (peer.zig). A shorter wait is
    /// no excuse: members can have records written all the time.
    pub fn holds_up(run: *const Run, peer: *const Peer) bool {
        const connection = peer.connection orelse return false;
        const since = connection.hold.waits_since() orelse return false;
        return run.last_tick -| since >= 2 *| run.options.heartbeat_ns;
    }

    // ---- telling peers

    /// Sends a message about a group, if the peer has named the group on its connection.
    pub fn send(run: *Run, peer: *const Peer, group: u16, message: control.Message) void {
        if (peer.is_present(group)) run.say(peer, message);
    }

    /// Sends a message that is not about a group which the peer has named.
    pub fn say(run: *Run, peer: *const Peer, message: control.Message) void {
        if (peer.connection) |connection| run.send_on(connection, message);
    }

    pub fn send_on(run: *Run, connection: *Connection, message: control.Message) void {
        var once: Circular = .{ .message = &message };
        once.send_on(run, connection);
    }

    /// Sends a message to all members of an epoch.
    pub fn broadcast(run: *Run, epoch: *const Epoch, message: control.Message) void {
        var circular: Circular = .{ .message = &message };
        for (epoch.members) |*member| {
            if (member.peer) |peer| circular.send(run, epoch.group, peer);
        }
    }

    /// Sends the messages that waited for this record or an earlier one.
    pub fn release(run: *Run, connection: *Connection, settled: u64) void {
        const any = connection.hold.release(settled, &connection.stream) catch
            return connection.doom(no_room);
        if (any) run.host.vtable.wake(run.host.ctx, connection);
    }
};

/// One message to several peers, encoded for the first of them only.
pub const Circular = struct {
    message: *const control.Message,
    load: wire.Stream.Load = .usual,
    /// The message in the stream or the hold of the first peer; null before that.
    encoded: ?wire.Queue.Encoded = null,

    pub fn send(circular: *Circular, run: *Run, group: u16, peer: *const Peer) void {
        if (!peer.is_present(group)) return;
        if (peer.connection) |connection| circular.send_on(run, connection);
    }

    fn send_on(circular: *Circular, run: *Run, connection: *Connection) void {
        if (connection.doomed != null) return; // it would hear the end of something
        circular.put(run, connection) catch
            return connection.doom(if (connection.hold.is_full(&connection.stream, circular.load))
                "it does not read what it is told, and more does not wait for it"
            else
                no_room);
        run.host.vtable.wake(run.host.ctx, connection);
        keep_budget(run);
    }

    fn put(circular: *Circular, run: *const Run, connection: *Connection) Allocator.Error!void {
        const stream = &connection.stream;
        const hold = &connection.hold;
        const load = circular.load;
        if (hold.is_full(stream, load)) return error.OutOfMemory;
        if (held_until(run, connection, circular.message)) |until| {
            const now = run.last_tick;
            circular.encoded =
                try hold.keep(stream, now, until, circular.message, load, circular.encoded);
        } else if (circular.encoded) |*encoded| {
            try stream.append_encoded(encoded, load);
        } else {
            circular.encoded = try stream.append(circular.message, load);
        }
    }
};

const no_room = "its messages do not fit into memory any more";

/// The record that a message has to wait for on this connection; null if it may leave.
fn held_until(
    run: *const Run,
    connection: *const Connection,
    message: *const control.Message,
) ?u64 {
    const subject: Subject = .of(message);
    const recorded = switch (subject) {
        .nothing, .order => 0,
        .group => |id| run.recorded_of(id, null),
        .epoch => |epoch| run.recorded_of(epoch.group, epoch.number),
    };
    const until = @max(recorded, connection.hold.behind(subject));
    return if (run.waits(until)) until else null;
}

// ---- memory of all queues
//
// How much all connections of a coordinator may hold together. Each has limits of its own
// (wire/stream.zig), and many that read nothing still add up; then the longest queue goes, never
// the peer that asked last.

/// Dooms the connection with the longest queue, until the queues of the others fit into the budget.
/// Its queue is freed at once, its reports when it closes.
pub fn keep_budget(run: *Run) void {
    while (run.memory.is_over()) {
        var leaving: usize = 0;
        var longest: ?*Connection = null;
        var longest_bytes: usize = 0;
        for (run.connections.items) |connection| {
            const bytes = connection.memory() + held_for(run, connection);
            if (connection.doomed != null) {
                leaving += bytes;
            } else if (bytes > longest_bytes) {
                longest = connection;
                longest_bytes = bytes;
            }
        }
        if (run.memory.bytes -| leaving <= run.memory.bytes_max) return;
        const victim = longest orelse return;
        run.log(.warning, "all queues hold {d} MiB, more than the option memory: {f} must go, " ++
            "whose queue is the longest, {d} KiB", .{
            run.memory.bytes >> 20,
            Who{ .connection = victim },
            longest_bytes >> 10,
        });
        victim.doom("its queue was the longest when the memory for all queues was used up");
        victim.stream.drop();
    }
}

/// Bytes held of the reports of the connection's peer, which are freed with the peer.
fn held_for(run: *const Run, connection: *const Connection) usize {
    const peer = connection.peer orelse return 0;
    if (peer.present == 0) return 0;
    var bytes: usize = 0;
    for (run.groups.items) |group| if (peer.is_present(group.id)) for (group.epochs.items) |epoch| {
        const rank = epoch.rank_of(peer) orelse continue;
        bytes += epoch.members[rank].held_bytes;
    };
    return bytes;
}

const Who = struct {
    connection: *const Connection,

    pub fn format(who: Who, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const peer = who.connection.peer orelse return writer.writeAll("some stranger");
        try writer.print("peer {f}", .{peer.named()});
    }
};

// ---- the peer that is dialed back
//
// The peer that members were asked to dial last, and what they have said of it.

pub const DialBack = struct {
    /// The peer that members were asked to dial; none: no peer has asked yet.
    peer: PeerId = .none,
    nonce: hello.Nonce = @splat(0),
    began_at: Instant = 0,
    entries: [members_max]Entry = undefined,
    count: usize = 0,
    /// Members that were not asked, because there are too many.
    left_out: usize = 0,

    /// Half of a peer's places for strangers: none of them is turned away.
    pub const members_max = base.limits.strangers_max / 2;
    /// The pause between two peers, if all members have answered.
    const pace_ns = std.time.ns_per_s;
    /// How long an answer is waited for, which is longer than a dial may take.
    const answer_ns = 8 * std.time.ns_per_s;
    /// How long answers are shown. The peer is not dialed again before.
    const keep_ns = std.time.ns_per_min;

    pub const Entry = struct {
        id: PeerId,
        /// Null: the member has not answered; `pending`: it has found the peer.
        answer: ?wire.Dialed = null,
    };

    pub fn slice(asked: *const DialBack) []const Entry {
        return asked.entries[0..asked.count];
    }

    /// Whether no answer is waited for.
    pub fn is_over(asked: *const DialBack, now: Instant) bool {
        if (now -| asked.began_at >= answer_ns) return true;
        for (asked.slice()) |*entry| if (entry.answer == null) return false;
        return true;
    }

    pub fn is_shown(asked: *const DialBack, now: Instant) bool {
        return !asked.peer.eql(.none) and now -| asked.began_at < keep_ns;
    }

    pub fn may_begin(asked: *const DialBack, now: Instant, peer: PeerId) bool {
        if (!asked.is_shown(now)) return true;
        if (asked.peer.eql(peer)) return false;
        return now -| asked.began_at >= pace_ns and asked.is_over(now);
    }
};

// ---- questions for the status
//
// How often a host may ask for the status. An answer costs the time that it took to make. A host
// has 8 s of it ahead, and gets back a second each second: in the end large answers come once a
// second, small ones hundreds of times.

pub const StatusRates = struct {
    hosts: [hosts_max]Host = @splat(.{}),

    /// How many hosts have an account of their own. Further hosts share one.
    const hosts_max = 256;
    const ahead_ns = 8 * std.time.ns_per_s;
    const cost_ns_max = std.time.ns_per_s;
    const cost_ns_min = 2 * std.time.ns_per_ms;
    /// An answer of this many bytes or more costs a second.
    const large_bytes = 256 * base.limits.KiB;

    const Host = struct {
        source: base.Source = @splat(0),
        /// When all answers that the host has had are paid for.
        paid_at: Instant = 0,
    };

    pub fn may_ask(rates: *StatusRates, source: base.Source, now: Instant) bool {
        return rates.host_of(source, now).paid_at <= now +| ahead_ns;
    }

    pub fn charge(rates: *StatusRates, source: base.Source, now: Instant, bytes: usize) void {
        const host = rates.host_of(source, now);
        const share = @as(u64, @min(bytes, large_bytes)) * cost_ns_max / large_bytes;
        host.paid_at = @max(host.paid_at, now) +| @max(share, cost_ns_min);
    }

    fn host_of(rates: *StatusRates, source: base.Source, now: Instant) *Host {
        const key = network_of(source);
        var place: ?*Host = null;
        for (rates.hosts[0 .. hosts_max - 1]) |*host| {
            if (host.paid_at <= now) {
                if (place == null) place = host;
            } else if (std.mem.eql(u8, &host.source, &key)) return host;
        }
        const host = place orelse return &rates.hosts[hosts_max - 1];
        host.* = .{ .source = key };
        return host;
    }

    /// The key of a host. A host of IPv6 has 2^64 addresses, so its key is the upper half.
    fn network_of(source: base.Source) base.Source {
        const mapped = [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff };
        if (std.mem.startsWith(u8, &source, &mapped)) return source;
        return source[0..8].* ++ @as([8]u8, @splat(0));
    }
};

fn v4(number: u8) base.Source {
    return [_]u8{0} ** 10 ++ [_]u8{ 0xff, 0xff, 10, 0, 0, number };
}

fn ask(rates: *StatusRates, source: base.Source, now: Instant, bytes: usize) bool {
    if (!rates.may_ask(source, now)) return false;
    rates.charge(source, now, bytes);
    return true;
}

test "a host gets one large answer a second in the end, and another host does not wait for it" {
    const expect = std.testing.expect;
    var rates: StatusRates = .{};
    const large = base.limits.control_message_bytes_max;
    var answers: usize = 0;
    var now: Instant = 100 * s;
    while (now < 160 * s) : (now += s / 10) answers += @intFromBool(ask(&rates, v4(1), now, large));
    try expect(answers >= 60 and answers <= 70);
    try expect(ask(&rates, v4(2), now, large));
    // Small ones are hardly worth counting, even when somebody asks in a loop.
    var small: usize = 0;
    for (0..1000) |_| small += @intFromBool(ask(&rates, v4(3), now, 1000));
    try expect(small == 1000);
    for (0..10_000) |_| small += @intFromBool(ask(&rates, v4(3), now, 1000));
    try expect(small < 3000);
}

test "many hosts share what is left, and addresses of one network are one host" {
    const expect = std.testing.expect;
    var rates: StatusRates = .{};
    const large = base.limits.control_message_bytes_max;
    var answers: usize = 0;
    for (0..100) |number| {
        var source: base.Source = @splat(0xfd);
        std.mem.writeInt(u64, source[8..], number, .big);
        answers += @intFromBool(ask(&rates, source, s, large));
    }
    try expect(answers <= 10);
    for (0..2 * StatusRates.hosts_max) |number| {
        var source: base.Source = @splat(0xfc);
        std.mem.writeInt(u64, source[0..8], number, .big);
        _ = ask(&rates, source, s, large);
    }
    try expect(!rates.may_ask(v4(9), s));
    try expect(rates.may_ask(v4(9), 30 * s));
}

// ---- joins that wait
//
// Joins of newcomers that wait because there were too many.

pub const Lobby = struct {
    /// Joins in the order in which they came. A peer has at most as many as it may have groups.
    waiting: std.ArrayList(Waiting) = .empty,

    pub const Waiting = struct {
        peer: *Peer,
        name: []u8,
        /// The rate that the join waits for; null for the join of a founder, which waits for the
        /// peer's own rate alone.
        aim: ?Aim,
        told: Told,
        /// The peer has told all its epochs.
        is_whole: bool = false,
    };

    pub fn deinit(lobby: *Lobby, gpa: Allocator) void {
        for (lobby.waiting.items) |*item| free(gpa, item);
        lobby.waiting.deinit(gpa);
    }

    pub fn free(gpa: Allocator, item: *const Waiting) void {
        gpa.free(item.name);
        free_founders(gpa, &item.told.founders);
    }

    pub fn holds(lobby: *const Lobby, peer: *const Peer, name: []const u8) bool {
        for (lobby.waiting.items) |*item| {
            if (item.peer == peer and std.mem.eql(u8, item.name, name)) return true;
        }
        return false;
    }

    /// Drops the joins of a peer whose connection is gone. The peer asks again.
    pub fn disconnected(lobby: *Lobby, gpa: Allocator, peer: *const Peer) void {
        if (peer.joins_waiting == 0) return;
        var index = lobby.waiting.items.len;
        while (index > 0) {
            index -= 1;
            if (lobby.waiting.items[index].peer != peer) continue;
            const gone = lobby.remove(index);
            free(gpa, &gone);
        }
    }

    pub fn remove(lobby: *Lobby, index: usize) Waiting {
        const item = lobby.waiting.orderedRemove(index);
        item.peer.joins_waiting -= 1;
        return item;
    }
};

/// A `join`, and the newest epoch that was named after it; 0: none.
pub const Told = struct {
    rounds: Rounds,
    initial_world_size: u32,
    /// Refers to the bytes of the message, or to a copy that the lobby owns.
    founders: control.Founders,
    newest: u64 = 0,

    pub fn of(body: *const control.Join) Told {
        return .{
            .rounds = .{ .preparing = body.round, .stopping = body.stop_round },
            .initial_world_size = body.initial_world_size,
            .founders = body.founders,
        };
    }
};
