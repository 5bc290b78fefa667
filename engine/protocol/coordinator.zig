//! Coordinator: every connection, peer and group of a run. It tells strangers from peers, notices
//! silence, and hands messages to the group they are for (group.zig, epoch.zig). Driven by net/ and
//! by tests/sim.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Group = @import("group.zig").Group;
const status = @import("status.zig");
const ProtocolError = @import("epoch.zig").ProtocolError;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

pub const LogLevel = enum(u8) { debug = 0, info = 1, warning = 2, err = 3 };

/// One TCP connection to the coordinator. The driver owns the socket and moves bytes of `stream`.
pub const Connection = struct {
    stream: wire.Stream,
    /// The driver's to use.
    driver: usize = 0,
    state: State = .stranger,
    accepted_at: Instant,
    peer: ?*Peer = null,
    /// Something went wrong with it inside a call; it is closed before that call returns.
    doomed: ?[]const u8 = null,
    coordinator: *Coordinator,

    pub const State = enum { stranger, peer, status, answered, refused };

    fn send(connection: *Connection, message: control.Message) void {
        connection.stream.send(message) catch {
            connection.doomed = "its messages do not fit into memory any more";
            return;
        };
        const host = connection.coordinator.host;
        host.vtable.wake(host.ctx, connection);
    }
};

/// A process in the run, from its hello until its connection ends.
pub const Peer = struct {
    id: PeerId,
    connection: *Connection,
    /// Where other peers dial it.
    address: []u8 = &.{},
    last_heard: Instant,
    bytes_sent: u64 = 0,
    bytes_received: u64 = 0,

    pub fn send(peer: *Peer, message: control.Message) void {
        peer.connection.send(message);
    }

    pub fn less_than(_: void, a: *Peer, b: *Peer) bool {
        return a.id.less_than(b.id);
    }
};

pub const Coordinator = struct {
    gpa: Allocator,
    options: Options,
    host: Host,
    connections: std.ArrayList(*Connection) = .empty,
    peers: std.ArrayList(*Peer) = .empty,
    groups: std.ArrayList(*Group) = .empty,
    started_at: Instant = 0,
    last_tick: Instant = 0,
    /// Connections that were not of this run, for the status.
    strangers_refused: u64 = 0,

    pub const Options = struct {
        run_id: base.RunId,
        min_world_size: u32 = 1,
        initial_world_size: u32 = 1,
        lanes: u8 = 2,
        chunk_bytes: u32 = 256 * limits.KiB,
        window_bytes: u64 = 16 * limits.MiB,
        heartbeat_ns: u64 = std.time.ns_per_s / 2,
        silence_ns: u64 = 5 * std.time.ns_per_s,
        prepare_ns: u64 = 30 * std.time.ns_per_s,
        /// Where it is reached; only shown in the status.
        address: []const u8 = "",
    };

    pub const Host = struct {
        ctx: *anyopaque,
        vtable: *const VTable,

        pub const VTable = struct {
            /// Send what is in the stream as far as it goes, then close. `connection` is invalid
            /// afterwards.
            close: *const fn (ctx: *anyopaque, connection: *Connection) void,
            /// The stream has bytes to send.
            wake: *const fn (ctx: *anyopaque, connection: *Connection) void,
            log: *const fn (ctx: *anyopaque, level: LogLevel, message: []const u8) void,
        };
    };

    /// Lanes that broke may mean that a peer died; its closed control connection tells within this
    /// time.
    const replan_ns = 20 * std.time.ns_per_ms;

    pub fn create(gpa: Allocator, options: Options, host: Host) Allocator.Error!*Coordinator {
        const coordinator = try gpa.create(Coordinator);
        coordinator.* = .{ .gpa = gpa, .options = options, .host = host };
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
        c.gpa.destroy(c);
    }

    fn connection_free(c: *Coordinator, connection: *Connection) void {
        connection.stream.deinit();
        c.gpa.destroy(connection);
    }

    fn peer_free(c: *Coordinator, peer: *Peer) void {
        c.gpa.free(peer.address);
        c.gpa.destroy(peer);
    }

    pub fn log(c: *Coordinator, level: LogLevel, comptime format: []const u8, args: anytype) void {
        var buffer: [512]u8 = undefined;
        const text = std.fmt.bufPrint(&buffer, format, args) catch &buffer;
        c.host.vtable.log(c.host.ctx, level, text);
    }

    // ---- connections

    /// A connection came in. Null: no memory, or no place that could be made; the driver closes it.
    pub fn accept(c: *Coordinator, now: Instant) ?*Connection {
        if (!c.make_place(now)) return null;
        c.connections.ensureUnusedCapacity(c.gpa, 1) catch return null;
        const connection = c.gpa.create(Connection) catch return null;
        connection.* = .{ .stream = .init(c.gpa), .accepted_at = now, .coordinator = c };
        c.connections.appendAssumeCapacity(connection);
        return connection;
    }

    /// When there are too many strangers, the one that has said nothing for longest makes room: who
    /// silently fills all places must not keep out those who speak at once.
    fn make_place(c: *Coordinator, now: Instant) bool {
        var strangers: usize = 0;
        var oldest: ?*Connection = null;
        for (c.connections.items) |connection| {
            if (connection.state == .peer) continue;
            strangers += 1;
            if (connection.state != .stranger or connection.doomed != null) continue;
            const older = oldest == null or connection.accepted_at < oldest.?.accepted_at;
            if (older) oldest = connection;
        }
        if (strangers < limits.strangers_max) return true;
        c.strangers_refused += 1;
        const silent = oldest orelse return false;
        silent.doomed = "others wait for its place";
        c.sweep(now);
        return true;
    }

    /// Bytes were appended to connection.stream.
    pub fn received(c: *Coordinator, now: Instant, connection: *Connection) void {
        if (connection.state == .stranger) c.greet(now, connection);
        if (connection.peer) |peer| peer.last_heard = now;
        // One question each: answers cost more than questions.
        if (connection.state == .answered) connection.doomed = "it goes on after its answer";
        while (connection.doomed == null and
            (connection.state == .peer or connection.state == .status))
        {
            const message = connection.stream.take() catch |err| {
                connection.doomed = fault_of(err);
                break;
            } orelse break;
            c.dispatch(now, connection, &message) catch |err| {
                connection.doomed = fault_of(err);
            };
        }
        c.sweep(now);
    }

    const Fault = control.Error || ProtocolError;

    fn fault_of(err: Fault) []const u8 {
        return switch (err) {
            error.OutOfMemory => "the coordinator has no memory for its messages",
            inline else => |fault| "it broke the protocol (" ++ @errorName(fault) ++ ")",
        };
    }

    /// The connection ended; it is invalid afterwards.
    pub fn closed(c: *Coordinator, now: Instant, connection: *Connection) void {
        c.detach(now, connection, "its connection to the coordinator closed");
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
        var index: usize = 0;
        while (index < c.connections.items.len) {
            const connection = c.connections.items[index];
            const why = connection.doomed orelse {
                index += 1;
                continue;
            };
            c.detach(now, connection, why);
            _ = c.connections.swapRemove(index);
            c.host.vtable.close(c.host.ctx, connection);
            c.connection_free(connection);
            index = 0; // a removal may doom others
        }
    }

    /// Takes the peer of a connection out of the run.
    fn detach(c: *Coordinator, now: Instant, connection: *Connection, why: []const u8) void {
        const peer = connection.peer orelse return;
        connection.peer = null;
        c.log(.info, "peer {s} is gone: {s}", .{ peer.id.short(), why });
        for (c.peers.items, 0..) |item, index| if (item == peer) {
            _ = c.peers.orderedRemove(index);
            break;
        };
        for (c.groups.items) |group| c.remove_from(now, group, peer, why);
        c.peer_free(peer);
    }

    fn remove_from(
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
                if (!group.contains(other)) continue;
                other.connection.doomed = "the coordinator ran out of memory";
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
                connection.doomed = "it does not speak PCCL";
                return;
            },
        };
        if (!std.mem.eql(u8, &hello.run_id, &c.options.run_id)) return c.refuse(
            connection,
            .wrong_run,
        );
        switch (hello.purpose) {
            .lane => return c.refuse(connection, .wrong_peer),
            .status => connection.state = .status,
            .control => {
                if (c.peers.items.len >= limits.peers_max) return c.refuse(connection, .refused);
                for (c.peers.items) |peer| {
                    if (peer.id.eql(hello.from)) return c.refuse(connection, .refused);
                }
                c.peer_add(now, connection, hello.from) catch {
                    return c.refuse(connection, .refused);
                };
            },
        }
        connection.stream.send_raw(&wire.hello.encode_answer(.welcome)) catch {
            connection.doomed = "out of memory";
            return;
        };
        if (connection.state == .peer) connection.send(.{ .welcome = .{
            .heartbeat_ns = c.options.heartbeat_ns,
            .silence_ns = c.options.silence_ns,
            .window_bytes = c.options.window_bytes,
            .chunk_bytes = c.options.chunk_bytes,
            .lanes = c.options.lanes,
        } });
    }

    fn peer_add(c: *Coordinator, now: Instant, connection: *Connection, id: PeerId) !void {
        try c.peers.ensureUnusedCapacity(c.gpa, 1);
        const peer = try c.gpa.create(Peer);
        peer.* = .{ .id = id, .connection = connection, .last_heard = now };
        c.peers.appendAssumeCapacity(peer);
        connection.peer = peer;
        connection.state = .peer;
        c.log(.info, "peer {s} is connected", .{id.short()});
    }

    fn refuse(c: *Coordinator, connection: *Connection, verdict: wire.hello.Verdict) void {
        c.strangers_refused += 1;
        connection.state = .refused;
        // Without memory for the answer it is closed without one.
        connection.stream.send_raw(&wire.hello.encode_answer(verdict)) catch {};
        connection.doomed = @tagName(verdict);
    }

    // ---- messages

    fn dispatch(
        c: *Coordinator,
        now: Instant,
        connection: *Connection,
        message: *const control.Message,
    ) ProtocolError!void {
        if (connection.state == .status) return switch (message.*) {
            .status_request => {
                connection.state = .answered;
                c.reply_status(now, connection);
            },
            else => error.Unexpected,
        };
        const peer = connection.peer.?;
        switch (message.*) {
            .join => |*body| try c.on_join(now, peer, body),
            .leave => |body| c.remove_from(now, try c.group_of(body.group), peer, "it left"),
            .heartbeat => |body| {
                peer.bytes_sent = body.bytes_sent;
                peer.bytes_received = body.bytes_received;
                peer.send(.{ .heartbeat_ack = .{ .number = body.number } });
            },
            .prepared => |body| {
                try (try c.group_of(body.group)).on_prepared(now, peer, body.round);
            },
            .safe_points => |body| {
                const group = try c.group_of(body.group);
                try group.on_safe_points(now, peer, body.round, body.count);
            },
            .activated => |body| {
                try (try c.group_of(body.group)).on_activated(now, peer, body.epoch);
            },
            .epoch_closed => |body| {
                try (try c.group_of(body.group)).on_closed(now, peer, body.epoch);
            },
            .link_lost => |*body| try c.on_link_lost(now, peer, body),
            inline .done,
            .gave_up,
            .mismatch_seen,
            .report_op,
            .report_end,
            .decisions_seen,
            .state_offer,
            .state_tensors,
            => |*body, tag| {
                const group = try c.group_of(body.group);
                const epoch = group.epoch_of(body.epoch) orelse return; // it is over
                const rank = epoch.rank_of(peer) orelse return;
                switch (tag) {
                    .done => try epoch.on_done(rank, body),
                    .gave_up => try epoch.on_gave_up(rank, body),
                    .mismatch_seen => try epoch.on_mismatch(rank, body),
                    .report_op => try epoch.on_report_op(rank, body),
                    .report_end => try epoch.on_report_end(rank, body),
                    .decisions_seen => try epoch.acknowledge(rank, body.count),
                    .state_offer => try epoch.on_state_offer(rank, body),
                    .state_tensors => try epoch.on_state_tensors(rank, body),
                    else => comptime unreachable,
                }
            },
            // What only a coordinator says, or who is no peer.
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
            => return error.Unexpected,
        }
    }

    fn group_of(c: *Coordinator, id: u16) ProtocolError!*Group {
        if (id >= c.groups.items.len) return error.Unexpected;
        return c.groups.items[id];
    }

    fn on_join(c: *Coordinator, now: Instant, peer: *Peer, body: *const control.Join) !void {
        const name = body.name.data;
        if (name.len == 0 or name.len > limits.name_bytes_max) return error.Unexpected;
        if (body.address.data.len > limits.address_bytes_max) return error.Unexpected;
        if (body.initial_world_size > limits.peers_max) return error.Unexpected;
        // Both are shown in the status, which is JSON.
        if (!std.unicode.utf8ValidateSlice(name)) return peer.send(.{ .refused = .{
            .name = .of(name),
            .why = .of("its name is not UTF-8"),
        } });
        if (!std.unicode.utf8ValidateSlice(body.address.data)) return peer.send(.{ .refused = .{
            .name = .of(name),
            .why = .of("the address of this peer is not UTF-8"),
        } });
        if (!std.mem.eql(u8, peer.address, body.address.data)) {
            const address = try c.gpa.dupe(u8, body.address.data);
            c.gpa.free(peer.address);
            peer.address = address;
        }
        const group = for (c.groups.items) |group| {
            if (std.mem.eql(u8, group.name, name)) break group;
        } else new: {
            if (c.groups.items.len >= limits.groups_max) return peer.send(.{ .refused = .{
                .name = .of(name),
                .why = .of("the run has 64 groups already; use one of them"),
            } });
            try c.groups.ensureUnusedCapacity(c.gpa, 1);
            const group = try Group.create(c.gpa, .{
                .coordinator = c,
                .id = @intCast(c.groups.items.len),
                .name = name,
                .initial_world_size = c.options.initial_world_size,
                .min_world_size = c.options.min_world_size,
                .prepare_ns = c.options.prepare_ns,
            });
            c.groups.appendAssumeCapacity(group);
            break :new group;
        };
        if (group.contains(peer)) return peer.send(.{ .refused = .{
            .name = .of(name),
            .why = .of("this peer is in the group already"),
        } });
        peer.send(.{ .joined = .{ .name = .of(name), .group = group.id } });
        c.log(.info, "peer {s} asks to join group {s}", .{ peer.id.short(), name });
        try group.add(now, peer, body.initial_world_size);
    }

    /// Lanes between two members broke while an operation used them: a new attempt with the same
    /// members, unless one of the two turns out to be dead. A link that stays down costs the later
    /// rank its place.
    fn on_link_lost(
        c: *Coordinator,
        now: Instant,
        peer: *Peer,
        body: *const control.LinkLost,
    ) !void {
        const group = try c.group_of(body.group);
        const epoch = group.epoch_of(body.epoch) orelse return;
        const rank = epoch.rank_of(peer) orelse return;
        const other = for (epoch.members, 0..) |*member, index| {
            if (member.peer != null and member.id.eql(body.other)) break index;
        } else return;
        if (body.down) {
            const loser = epoch.members[@max(rank, other)].peer.?;
            c.log(.warning, "peers {s} and {s} cannot reach each other; {s} is removed", .{
                peer.id.short(),
                body.other.short(),
                loser.id.short(),
            });
            const why = "another member could not reach it for longer than the silence limit";
            loser.send(.{ .expelled = .{ .group = body.group, .why = .of(why) } });
            return c.remove_from(now, group, loser, why);
        }
        if (body.attempt != epoch.attempt or !epoch.running) return;
        if (epoch.replan_at == base.never) epoch.replan_at = now + replan_ns;
    }

    fn reply_status(c: *Coordinator, now: Instant, connection: *Connection) void {
        const json = status.render(c.gpa, c, now) catch {
            connection.doomed = "out of memory";
            return;
        };
        defer c.gpa.free(json);
        if (json.len + 4 > limits.control_message_bytes_max) return connection.send(.{ .refused = .{
            .name = .of(""),
            .why = .of("the status of the run does not fit into a message"),
        } });
        connection.send(.{ .status_reply = .{ .json = .of(json) } });
    }

    // ---- time

    pub fn tick(c: *Coordinator, now: Instant) void {
        if (c.started_at == 0) c.started_at = now;
        // A loop that was late by more than a heartbeat was frozen: it has heard nobody, so it
        // judges nobody.
        const late = c.last_tick != 0 and now -| c.last_tick > 2 *| c.options.heartbeat_ns;
        c.last_tick = now;
        for (c.connections.items) |connection| {
            if (connection.peer) |peer| {
                if (late) peer.last_heard = now;
                if (now -| peer.last_heard < c.options.silence_ns) continue;
                peer.send(.{ .expelled = .{
                    .group = std.math.maxInt(u16),
                    .why = .of("the coordinator heard nothing of it for the silence limit"),
                } });
                connection.doomed = "it was silent for too long";
            } else if (now -| connection.accepted_at >= limits.stranger_ns_max) {
                connection.doomed = "it did not say who it is in time";
            }
        }
        c.sweep(now);
        for (c.groups.items) |group| {
            group.tick(now, c.options.silence_ns, late) catch |err| {
                c.log(.err, "group {s}: {t}", .{ group.name, err });
            };
            if (!group.out_of_memory) continue;
            group.out_of_memory = false;
            c.log(.err, "group {s}: no memory to let members in; tried again soon", .{group.name});
        }
        c.sweep(now);
    }

    /// Never later than a heartbeat from the last tick, so that lateness means something.
    pub fn next_deadline(c: *const Coordinator) Instant {
        var next = c.last_tick +| c.options.heartbeat_ns;
        for (c.groups.items) |group| next = @min(next, group.next_deadline(c.last_tick));
        return next;
    }
};
