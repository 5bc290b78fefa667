//! Run: all that a coordinator knows of its run: settings, connections, peers, groups, and how far
//! the journal is. The functions of Run answer questions and send messages to peers; they decide
//! nothing. A message goes into the queue of the peer's connection, or waits there until the
//! journal record that it relies on is on the disk (peer.zig: Hold). Nothing is sent to a peer that
//! is away: it is told everything when it comes back. coordinator.zig lists the files that change
//! the run.

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
    /// The last record that is on the disk, with all records before it.
    settled: u64 = 0,
    /// The last record that replaced the whole journal.
    replaced: u64 = 0,
    /// The last record that is known to have failed.
    failed: u64 = 0,
    /// The size of the journal in bytes when it was last written as a whole.
    whole_bytes: usize = 0,
    /// The tick since which a record is not on the disk yet (null: all are), and whether the log
    /// has warned of that.
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
    /// The largest epoch and round numbers of groups that have ended. Later groups use larger
    /// numbers.
    ended: struct { epoch: u64 = 0, round: u64 = 0 } = .{},
    /// The number at which the search for a free group number begins, so that numbers freed last
    /// are taken last.
    next_group: u16 = 0,
    arrivals: Arrivals = .{},
    lobby: Lobby = .{},
    /// Decides which strangers are let in at the door and which lose their places, and makes
    /// nonces.
    prng: base.Prng,
    /// The time at which a tick is needed before the next heartbeat; `never`: it is not needed.
    due_at: Instant = base.never,
    started_at: Instant = 0,
    last_tick: Instant = 0,
    /// The coordinator hears no peer, so its own network may be gone.
    deaf: bool = false,
    /// The bytes that all connections hold in their queues, and the limit of these bytes.
    memory: wire.Budget,
    status: Status = .{},
    status_rates: StatusRates = .{},
    /// How often members have told the rates of their links (measurement.zig).
    measurements: u64 = 0,
    /// The peer that members were last asked to dial.
    dial_back: DialBack = .{},
    /// The nanoseconds by which the time of day is ahead of `Instant`; for the status alone.
    wall_ahead_ns: u64 = 0,
    /// The number of connections that were refused or lost their place at the door, for the status.
    strangers_refused: u64 = 0,
    /// Searches for peers at the addresses that they claim (door.zig).
    questions: addresses.Queue = .{},
    shared: Shared = .{},
    /// The number of starts of a coordinator with this journal. Epoch and round numbers of
    /// different starts differ by it.
    incarnation: u32 = 1,
    journal_state: JournalState = .off,
    journal_progress: Progress = .{},
    /// Bytes appended to the journal since it was last written as a whole.
    journal_bytes: usize = 0,
    /// The journal is to be written anew as a whole.
    journal_due: bool = false,
    /// The time at which a journal that has failed is tried again.
    journal_retry_at: Instant = 0,
    /// The bytes of the log of decisions when it was last written as a whole, and the bytes added
    /// since.
    log_whole_bytes: usize = 0,
    log_bytes: usize = 0,

    pub const JournalState = enum {
        off,
        ok,
        /// The journal or the log of decisions could not be written. The run goes on, but does not
        /// survive this coordinator unless a later try succeeds.
        failed,
    };

    pub const Options = struct {
        run_id: base.RunId,
        min_world_size: u32 = 1,
        initial_world_size: u32 = 1,
        /// Lanes of each link; 0: each link has as many lanes as raise its rate (session/flow.zig).
        lanes: u8 = 0,
        /// Whether members are asked to probe links whose rate is not known (measurement.zig).
        probes: bool = true,
        /// The least time between two attempts because of rates; `never`: paths follow no rates, so
        /// data goes in rank order, around broken links.
        plan_pause_ns: u64 = 10 * std.time.ns_per_s,
        chunk_bytes: u32 = 256 * limits.KiB,
        /// Bytes for partial sums at a peer: those that each operation has (`window_bytes`), and
        /// those up to which all operations together may grow (`windows_bytes`).
        window_bytes: u64 = limits.window_bytes_first,
        windows_bytes: u64 = limits.windows_bytes_default,
        heartbeat_ns: u64 = std.time.ns_per_s / 2,
        silence_ns: u64 = 5 * std.time.ns_per_s,
        prepare_ns: u64 = 10 * std.time.ns_per_s,
        /// How long other members wait for a member's call before the log names that member.
        stall_warning_ns: u64 = 10 * std.time.ns_per_s,
        /// How long other members wait for a member's call or report before that member is removed;
        /// 0: for ever.
        stall_ns: u64 = 0,
        /// The addresses at which the coordinator listens, which it advertises, and at which it is
        /// reached. All go into the journal, and the last also into the status.
        bind: []const u8 = "",
        advertise: []const u8 = "",
        address: []const u8 = "",
        /// Bytes that the queues of all connections may hold together. Beyond that the peer with
        /// the longest queue is removed.
        memory: u64 = limits.queues_bytes_default,
        /// The journal and the log of decisions; null: the run ends with this coordinator.
        journal: ?Journal = null,
        /// The pause after a failure before the journal is tried again.
        journal_retry_ns: u64 = std.time.ns_per_min,
        /// The allocator of memory that has the run id, such as the coordinator itself; null: the
        /// usual allocator.
        secrets: ?Allocator = null,
    };

    pub const Host = struct {
        ctx: *anyopaque,
        vtable: *const VTable,

        pub const VTable = struct {
            /// Sends the bytes of the stream as far as the socket takes them, and closes the
            /// connection. `connection` is invalid afterwards.
            close: *const fn (ctx: *anyopaque, connection: *Connection) void,
            /// Tells the driver that the stream has bytes to send. The bytes of the stream stay
            /// where they are until the current call into the coordinator returns.
            wake: *const fn (ctx: *anyopaque, connection: *Connection) void,
            /// Looks for a peer at the address that it claims. Does not block.
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

    /// The group of this number. error.Unexpected: the peer has not joined it on its connection.
    pub fn group_of(run: *const Run, peer: *const Peer, id: u16) ProtocolError!*Group {
        if (!peer.is_present(id)) return error.Unexpected;
        return run.group_at(id).?; // a group does not end while a peer is present in it
    }

    pub fn group_named(run: *const Run, name: []const u8) ?*Group {
        for (run.groups.items) |group| if (std.mem.eql(u8, group.name, name)) return group;
        return null;
    }

    /// The name of a peer of a group for a line of the log; the peer may be lost.
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

    /// The last journal record about a group, or with `number` the last one that names this epoch
    /// of the group.
    pub fn recorded_of(run: *const Run, id: u16, number: ?u64) u64 {
        // A group that has ended waits for the last record of all groups.
        const group = run.group_at(id) orelse return run.journal_progress.given;
        const epoch = group.epoch_of(number orelse return group.recorded) orelse
            return group.recorded;
        return epoch.recorded;
    }

    /// Whether messages that rely on this record must wait. With a failed journal no message waits.
    pub fn waits(run: *const Run, number: u64) bool {
        return run.journal_state == .ok and number > run.journal_progress.settled;
    }

    /// Whether the disk has held up messages to the peer for two heartbeats (peer.zig: Hold). A
    /// shorter wait excuses no member, because members can cause records all the time.
    pub fn holds_up(run: *const Run, peer: *const Peer) bool {
        const connection = peer.connection orelse return false;
        const since = connection.hold.waits_since() orelse return false;
        return run.last_tick -| since >= 2 *| run.options.heartbeat_ns;
    }

    // ---- telling peers

    /// Sends a message about a group, if the peer has joined the group on its connection.
    pub fn send(run: *Run, peer: *const Peer, group: u16, message: control.Message) void {
        if (peer.is_present(group)) run.say(peer, message);
    }

    /// Sends a message to a peer, whether or not it has joined a group; drops the message if the
    /// peer is away.
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

    /// Sends the held messages of a connection that waited for record `settled` or an earlier
    /// record.
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
    /// The encoded message in the stream or the hold of the first peer; null: it was sent to no
    /// peer yet.
    encoded: ?wire.Queue.Encoded = null,

    pub fn send(circular: *Circular, run: *Run, group: u16, peer: *const Peer) void {
        if (!peer.is_present(group)) return;
        if (peer.connection) |connection| circular.send_on(run, connection);
    }

    fn send_on(circular: *Circular, run: *Run, connection: *Connection) void {
        if (connection.doomed != null) return; // an earlier message may not have fitted
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

/// The journal record for which a message must wait on this connection; null: the message may
/// leave.
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
// The limit of the bytes that all connections of a coordinator hold together. Each connection has
// limits of its own (wire/stream.zig), but many connections that read nothing add up. Beyond the
// limit the connection with the longest queue is closed, and not the one that was sent the last
// message.

/// Dooms connections, the longest queue first, until the other queues fit into the budget. The
/// queue of a doomed connection is freed at once, the reports of its peer when it closes.
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
// The peer that members were last asked to dial (`pccl doctor`), and their answers.

pub const DialBack = struct {
    /// The peer that members were asked to dial; none: no peer has asked yet.
    peer: PeerId = .none,
    nonce: hello.Nonce = @splat(0),
    began_at: Instant = 0,
    entries: [members_max]Entry = undefined,
    count: usize = 0,
    /// The number of members that were not asked, because there are too many.
    left_out: usize = 0,

    /// Half of a peer's places for strangers, so that the peer turns none of these members away.
    pub const members_max = base.limits.strangers_max / 2;
    /// The pause between the dials of two different peers, if all members have answered.
    const pace_ns = std.time.ns_per_s;
    /// How long the coordinator waits for the members' answers, which is longer than a dial may
    /// take.
    const answer_ns = 8 * std.time.ns_per_s;
    /// How long the status shows the members' answers. A peer is not dialed again while its answers
    /// are shown.
    const keep_ns = std.time.ns_per_min;

    pub const Entry = struct {
        id: PeerId,
        /// The member's answer. Null: it has not answered; `pending`: it has found the peer.
        answer: ?wire.Dialed = null,
    };

    pub fn slice(asked: *const DialBack) []const Entry {
        return asked.entries[0..asked.count];
    }

    /// Whether all members have answered, or the time for their answers is over.
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
// How often a host may ask for the status. An answer of 256 KiB or more costs the host 1 s, a
// shorter answer proportionally less, at least 2 ms. A host may spend 8 s ahead of time, and earns
// a second each second: in the end it gets one large answer a second, or hundreds of small ones.

pub const StatusRates = struct {
    hosts: [hosts_max]Host = @splat(.{}),

    /// The number of accounts. Each account but the last belongs to one host, and further hosts
    /// share the last.
    const hosts_max = 256;
    const ahead_ns = 8 * std.time.ns_per_s;
    const cost_ns_max = std.time.ns_per_s;
    const cost_ns_min = 2 * std.time.ns_per_ms;
    /// A status of this many bytes or more costs its host a second.
    const large_bytes = 256 * base.limits.KiB;

    const Host = struct {
        source: base.Source = @splat(0),
        /// The time at which all answers to the host are paid for.
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

    /// The key of a host in the accounts. A host of IPv6 has 2^64 addresses, so its key is the
    /// upper half of the address.
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
    // Small answers cost so little that a host gets 1000 at once, and is refused only in a loop.
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
// Joins of newcomers that wait because they exceed the rate of their peer or network (door.zig).

pub const Lobby = struct {
    /// Joins in order of arrival. A peer has at most `groups_per_peer_max` joins here.
    waiting: std.ArrayList(Waiting) = .empty,

    pub const Waiting = struct {
        peer: *Peer,
        name: []u8,
        /// The rate that the join waits for; null for the join of a founder, which waits for the
        /// peer's own rate alone.
        aim: ?Aim,
        told: Told,
        /// The peer has told all its epochs for this join.
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

    /// Drops the joins of a peer whose connection is gone. The peer joins again on its next
    /// connection.
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

/// A `join`, and the newest epoch that the peer has named after it (`newest`; 0: none).
pub const Told = struct {
    rounds: Rounds,
    initial_world_size: u32,
    /// The founders that the join names: in the bytes of the message, or in a copy that the lobby
    /// owns.
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
