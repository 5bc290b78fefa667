//! Run: all that a coordinator knows of its run: the settings, the connections, peers and groups,
//! and how far the journal is. It has the questions that many files ask of it, and decides nothing.
//! The files that change it: coordinator.zig lists them.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("addresses.zig");
const rates = @import("rates.zig");
const seal = @import("seal.zig");
const Connection = @import("peer.zig").Connection;
const DialBack = @import("dial_back.zig").DialBack;
const Group = @import("group.zig").Group;
const Journal = @import("journal.zig").Journal;
const Lobby = @import("lobby.zig").Lobby;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Shared = @import("peer.zig").Shared;
const StatusRates = @import("status_rates.zig").StatusRates;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const limits = base.limits;

pub const LogLevel = enum(u8) { debug = 0, info = 1, warning = 2, err = 3 };

/// The records given to the journal, by number (journaling.zig).
pub const Progress = struct {
    /// Given to it.
    given: u64 = 0,
    /// On the disk, with all before.
    settled: u64 = 0,
    /// The last that was all of it.
    replaced: u64 = 0,
    /// The last that is known to have failed.
    failed: u64 = 0,
    /// Calls were refused while the disk was busy: the next record, whose number messages wait for
    /// already, is about them.
    refusals_wait: bool = false,
    /// The size of the journal when it was last written as a whole.
    whole_bytes: usize = 0,
    /// Since when, at a tick, something has been waited for, and whether that was said.
    waits_since: ?Instant = null,
    said: bool = false,
};

/// The last status that was made (status.zig).
const Status = struct { text: []u8 = &.{}, made_at: Instant = 0 };

pub const Run = struct {
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
    lobby: Lobby = .{},
    /// Draws who is let in at the door, and who must go.
    prng: base.Prng,
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
    /// So often has somebody told what its links carry (measured.zig).
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
        /// So many has each link; 0: as many as bring something (session/spread.zig).
        lanes: u8 = 0,
        /// Members may probe links of which nothing is known (probes.zig).
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
        /// And before it is let go; 0: it never is.
        stall_ns: u64 = 0,
        /// Where it listens and what it advertises, for the journal; where it is reached, for the
        /// status, too.
        bind: []const u8 = "",
        advertise: []const u8 = "",
        address: []const u8 = "",
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

    /// A peer of a group, perhaps one that is gone, in a line of the log.
    pub fn named(run: *const Run, group: *const Group, id: PeerId) base.Named {
        if (run.peer_of(id)) |peer| return peer.named();
        for (group.epochs.items) |epoch| if (epoch.ranks.get(id)) |rank|
            return .{ .id = id, .label = epoch.members[rank].label().* };
        return .{ .id = id, .label = .{} };
    }

    // ---- the journal

    /// No coordinator before this one has used this number or a later one, even if it could not
    /// write its journal any more.
    pub fn first_epoch(run: *const Run) u64 {
        return @as(u64, run.incarnation - 1) * epochs_per_start + 1;
    }

    /// The same for rounds: this one no group has had, and those from here on.
    pub fn first_round(run: *const Run) u64 {
        return @as(u64, run.incarnation) << 32;
    }

    const epochs_per_start = 1 << 20;

    /// The last record of a group, or of those that name one of its epochs.
    pub fn recorded_of(run: *const Run, id: u16, number: ?u64) u64 {
        const group = run.group_at(id) orelse return run.journal_progress.given; // of all groups
        const epoch = group.epoch_of(number orelse return group.recorded) orelse
            return group.recorded;
        return epoch.recorded;
    }

    /// Whether a peer may not hear yet of what relies on this record. With a journal that has
    /// failed nothing waits.
    pub fn waits(run: *const Run, number: u64) bool {
        return run.journal_state == .ok and number > run.journal_progress.settled;
    }

    /// The disk has held up for a while what the peer is told (hold.zig). Members can have
    /// something written all the time, and must not keep others from being judged by that.
    pub fn holds_up(run: *const Run, peer: *const Peer) bool {
        const connection = peer.connection orelse return false;
        const since = connection.hold.waits_since() orelse return false;
        return run.last_tick -| since >= 2 *| run.options.heartbeat_ns;
    }
};
