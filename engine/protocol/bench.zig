//! coordinator-bench: a program that measures the cost of a decision to the coordinator, without
//! sockets and without a journal (`zig build coordinator-bench`). bench/coordinator.py makes table
//! rows of the output. Only calls into the Coordinator are timed. The members are scripted: they
//! send the messages that real members send in each case. Every answer to a member is decoded and
//! checked between the timed parts.
//!
//!     coordinator-bench ROUNDS PEERS...
//!
//! The output has a line for each case and number of peers: case, peers, messages to the
//! coordinator for one decision, and the median of the nanoseconds for all these messages together.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const control = wire.control;
const limits = base.limits;
const Connection = protocol.Connection;
const Coordinator = protocol.Coordinator;
const assert = std.debug.assert;

/// The allocator that the library uses, too (engine/abi/coordinator.zig).
const gpa = std.heap.c_allocator;
const run_id: base.RunId = @splat(1);
const ms = std.time.ns_per_ms;

const Case = enum {
    /// All members vote, and all are told the commit.
    decision,
    /// A member dies in the middle of an all_reduce of 64 KiB: members with links to the dead one
    /// say that their lanes are closed, all report, and the operation is resumed, voted for and
    /// committed.
    loss,
    /// As `loss`, and one in sixteen links of the ring breaks at the same time: the ring of the
    /// next attempt avoids the broken links.
    loss_and_links,
    /// As `loss`, in an all_reduce of 64 MiB, whose number of chunks grows with the number of
    /// members.
    loss_64MiB,
    /// A shared state that differs at all members: all offer, one content is elected, and all vote
    /// for it.
    sync,
    /// A newcomer enters: all prepare, tell their safe points, enter, and close the epoch before.
    join,
};

const Sample = struct { messages: usize, ns: u64 };

pub fn main(init: std.process.Init) !void {
    var buffer: [4096]u8 = undefined;
    var stdout = std.Io.File.stdout().writerStreaming(init.io, &buffer);
    const out = &stdout.interface;
    var args = init.minimal.args.iterate();
    _ = args.skip();
    const rounds = try std.fmt.parseInt(usize, args.next() orelse return error.NoRounds, 10);
    var sizes: std.ArrayList(usize) = .empty;
    defer sizes.deinit(gpa);
    while (args.next()) |text| {
        const peers = try std.fmt.parseInt(usize, text, 10);
        if (peers < peers_min or peers > limits.peers_max) return error.PeersOutOfRange;
        try sizes.append(gpa, peers);
    }
    if (rounds == 0 or sizes.items.len == 0) return error.NothingToMeasure;
    const cases = std.enums.values(Case);
    const samples = try gpa.alloc(Sample, rounds * sizes.items.len * cases.len);
    defer gpa.free(samples);
    // Cases and sizes take turns. The first round warms up, and the next overwrites its samples.
    for (0..rounds + 1) |round| for (sizes.items, 0..) |peers, index| for (cases) |case| {
        const first = (index * cases.len + @intFromEnum(case)) * rounds;
        samples[first + (round -| 1)] = try measure(case, peers);
    };
    for (sizes.items, 0..) |peers, index| for (cases) |case| {
        const first = (index * cases.len + @intFromEnum(case)) * rounds;
        const sample = median(samples[first..][0..rounds]);
        try out.print("{t} {d} {d} {d}\n", .{ case, peers, sample.messages, sample.ns });
    };
    try out.flush();
}

const peers_min = 8;
/// Decisions in one sample of the case `decision`: a single decision is too short for the clock.
const decisions = 10;

fn median(samples: []Sample) Sample {
    std.mem.sort(Sample, samples, {}, struct {
        fn before(_: void, a: Sample, b: Sample) bool {
            return a.ns < b.ns;
        }
    }.before);
    return samples[samples.len / 2];
}

/// Takes one sample, in a run of its own, because a loss leaves one member less.
fn measure(case: Case, peers: usize) !Sample {
    const run = try gpa.create(Run);
    defer gpa.destroy(run);
    try run.init(peers, if (case == .join) peers - 1 else peers);
    defer run.deinit();
    const small = 64 * limits.KiB;
    for (0..3) |_| try run.decide(); // grows buffers, warms caches
    run.sample = .{ .messages = 0, .ns = 0 };
    switch (case) {
        .decision => {
            for (0..decisions) |_| try run.decide();
            run.sample.messages /= decisions;
            run.sample.ns /= decisions;
        },
        .loss => try run.lose(small, 0),
        .loss_and_links => try run.lose(small, @max(1, peers / 16)),
        .loss_64MiB => try run.lose(64 * limits.MiB, 0),
        .sync => try run.sync(),
        .join => try run.join(),
    }
    return run.sample;
}

/// The processor time of this thread in nanoseconds: time of other processes does not count.
fn processor_ns() u64 {
    var ts: std.c.timespec = undefined;
    _ = std.c.clock_gettime(.THREAD_CPUTIME_ID, &ts);
    return @as(u64, @intCast(ts.sec)) * std.time.ns_per_s + @as(u64, @intCast(ts.nsec));
}

/// The coordinator of one run, and its scripted peers. The index of a peer is its rank in the first
/// epoch.
const Run = struct {
    c: *Coordinator,
    now: u64 = 1000 * ms,
    peers: usize,
    connections: [limits.peers_max]?*Connection = @splat(null),
    /// The peers whose messages the coordinator has not received, in the order in which they spoke.
    queue: std.ArrayList(usize) = .empty,
    /// The bytes of the messages to one peer.
    heard: std.ArrayList(u8) = .empty,
    scratch: [64 * limits.KiB]u8 = undefined,
    sample: Sample = .{ .messages = 0, .ns = 0 },
    sequence: u64 = 0,

    // The number of messages of each kind to each peer since the last `expect_all`, and what the
    // last of these messages said.
    told: [limits.peers_max]Told = @splat(.{}),
    epoch: u64 = 0,
    attempt: u32 = 1,
    round: u64 = 0,
    decisions: u64 = 0,
    root: control.Hash = @splat(0),

    const Told = struct {
        prepare: u32 = 0,
        ask: u32 = 0,
        activate: u32 = 0,
        view: u32 = 0,
        resume_op: u32 = 0,
        resume_all: u32 = 0,
        elected: u32 = 0,
        commit: u32 = 0,
    };

    fn init(run: *Run, peers: usize, members: usize) !void {
        const host: Coordinator.Host = .{ .ctx = run, .vtable = &.{
            .close = on_close,
            .wake = on_wake,
            .find = on_find,
            .log = on_log,
        } };
        run.* = .{ .peers = peers, .c = try Coordinator.create(gpa, .{
            .run_id = run_id,
            .initial_world_size = @intCast(members),
        }, host, 1) };
        run.c.tick(run.now);
        for (0..members) |index| try run.connect(index);
        try run.receive();
        try run.enter();
    }

    fn deinit(run: *Run) void {
        run.queue.deinit(gpa);
        run.heard.deinit(gpa);
        run.c.destroy();
    }

    fn on_close(ctx: *anyopaque, connection: *Connection) void {
        const run: *Run = @ptrCast(@alignCast(ctx));
        run.connections[connection.driver] = null;
    }
    fn on_wake(_: *anyopaque, _: *Connection) void {}
    fn on_find(
        _: *anyopaque,
        question: *const protocol.addresses.Question,
    ) protocol.addresses.Reply {
        return .{ .answer = .{ .found = question.address } };
    }
    fn on_log(_: *anyopaque, _: protocol.LogLevel, _: []const u8) void {}

    // ---- what peers say

    fn id_of(index: usize) base.PeerId {
        return .from_int(index + 1);
    }

    fn connect(run: *Run, index: usize) !void {
        const begin = processor_ns();
        const connection = run.c.accept(run.now, @splat(0)) orelse return error.NotAccepted;
        run.sample.ns += processor_ns() - begin;
        connection.driver = index;
        run.connections[index] = connection;
        try run.put(index, &wire.hello.encode(.{
            .purpose = .control,
            .run_id = run_id,
            .from = id_of(index),
            .instance = 1,
        }));
        try run.say(index, .{ .join = .{
            .name = .of("g"),
            .address = .of("192.0.2.255:29400"),
            .address_key = @splat(0),
            .initial_world_size = 0,
            .round = 0,
            .stop_round = 0,
        } });
        try run.say(index, .{ .join_end = .{} });
        // Received at once, because strangers have few places.
        try run.receive();
    }

    /// A round lets in the peers that have joined.
    fn enter(run: *Run) !void {
        const before = run.epoch;
        try run.expect_all("prepare", 1);
        for (0..run.peers) |index| try run.say(index, .{ .prepared = .{
            .group = 0,
            .round = run.round,
            .entering = true,
            .missing = .of(&.{}),
        } });
        try run.receive();
        for (0..run.peers) |index| if (run.told[index].ask == 1) {
            run.told[index].ask = 0;
            try run.say(index, .{ .safe_points = .{ .group = 0, .round = run.round, .count = 1 } });
        };
        try run.receive();
        try run.expect_all("activate", 1);
        for (0..run.peers) |index| {
            try run.say(index, .{ .activated = .{ .group = 0, .epoch = run.epoch } });
        }
        // The newcomer, which is the last peer, was not in the epoch before.
        if (before > 0) for (0..run.peers - 1) |index| {
            try run.say(index, .{ .epoch_closed = .{ .group = 0, .epoch = before } });
        };
        try run.receive();
        run.attempt = 1;
        run.decisions = 0;
    }

    fn descriptor_of(bytes: u64) control.Descriptor {
        return .{
            .kind = .all_reduce,
            .dtype = .f32,
            .op = .sum,
            .recovery = .resume_chunks,
            .count = bytes / 4,
            .safe_points = 1,
        };
    }

    fn op(run: *const Run) control.OpId {
        return .{ .tag = 0, .sequence = run.sequence };
    }

    fn vote(run: *Run, descriptor: control.Descriptor) !void {
        for (0..run.peers) |index| try run.say(index, .{ .done = .{
            .group = 0,
            .epoch = run.epoch,
            .attempt = run.attempt,
            .op = run.op(),
            .descriptor = descriptor,
            .digest = 7,
            .decisions_seen = run.decisions,
        } });
        try run.receive();
        try run.expect_all("commit", 1);
        run.sequence += 1;
    }

    fn decide(run: *Run) !void {
        try run.vote(descriptor_of(64 * limits.KiB));
    }

    fn join(run: *Run) !void {
        try run.connect(run.peers - 1);
        try run.enter();
    }

    fn sync(run: *Run) !void {
        var descriptor = descriptor_of(0);
        descriptor.kind = .sync;
        for (0..run.peers) |index| {
            var root: control.Hash = @splat(1);
            std.mem.writeInt(u64, root[0..8], index, .little);
            try run.say(index, .{ .state_offer = .{
                .group = 0,
                .epoch = run.epoch,
                .attempt = run.attempt,
                .op = run.op(),
                .descriptor = descriptor,
                .digest = index,
                .revision = 1,
                .structure = @splat(2),
                .root = root,
                .strategy = .popular,
                .voted = false,
                .decisions_seen = run.decisions,
                .name = .of("weights"),
            } });
        }
        try run.receive();
        try run.expect_all("elected", 1);
        // All members are newcomers, and no content has two holders: that of the smallest id is
        // elected.
        if (std.mem.readInt(u64, run.root[0..8], .little) != 0) return error.WrongElection;
        try run.vote(descriptor);
    }

    // ---- a loss

    /// The member in the middle dies while an all_reduce of `bytes` is half done, and `broken`
    /// links of the ring break.
    fn lose(run: *Run, bytes: u64, broken: usize) !void {
        const lost = run.peers / 2;
        for (0..broken) |number| {
            const index = number * (run.peers / broken) + 2;
            try run.say(index, .{ .link_told = .{
                .other = id_of(index + 1),
                .group = 0,
                .health = .silent,
            } });
        }
        try run.receive();
        const begin = processor_ns();
        run.c.closed(run.now, run.connections[lost].?);
        run.sample.ns += processor_ns() - begin;
        run.connections[lost] = null;
        // All members with links to the lost member say that their lanes to it are closed.
        const reach = if (run.peers > limits.full_mesh_max) limits.ring_reach else run.peers / 2;
        for (lost - reach..@min(lost + reach + 1, run.peers)) |index| {
            try run.say(index, .{ .link_lost = .{
                .other = id_of(lost),
                .group = 0,
                .epoch = run.epoch,
                .attempt = run.attempt,
                .state = .closed,
            } });
        }
        try run.receive();
        try run.expect_all("view", 1);
        const descriptor = descriptor_of(bytes);
        for (0..run.peers) |index| try run.report(index, descriptor);
        try run.receive();
        try run.expect_all("resume_op", 1);
        try run.expect_all("resume_all", 1);
        try run.vote(descriptor);
        if (run.attempt != 2) return error.WrongAttempt;
    }

    /// Reports the state half way round the ring: a rank has settled the chunks of the owners in
    /// the half of the ring behind it.
    fn report(run: *Run, index: usize, descriptor: control.Descriptor) !void {
        const chunks = chunks_of(descriptor.count * 4, run.peers);
        var ranges: std.ArrayList(control.SettledRange) = .empty;
        defer ranges.deinit(gpa);
        for (0..chunks) |chunk| {
            const owner = chunk * run.peers / chunks;
            if ((index + run.peers - owner) % run.peers >= run.peers / 2) continue;
            const at: u32 = @intCast(chunk);
            if (ranges.items.len > 0 and ranges.items[ranges.items.len - 1].end == at) {
                ranges.items[ranges.items.len - 1].end += 1;
            } else try ranges.append(gpa, .{ .begin = at, .end = at + 1, .reduced_attempt = 1 });
        }
        try run.say(index, .{ .report_op = .{
            .group = 0,
            .epoch = run.epoch,
            .attempt = run.attempt,
            .op = run.op(),
            .descriptor = descriptor,
            .state = .running,
            .begun_attempt = 1,
            .voted_attempt = 0,
            .chunks = @intCast(chunks),
            .settled = .of(ranges.items),
        } });
        try run.say(index, .{ .report_end = .{
            .group = 0,
            .epoch = run.epoch,
            .attempt = run.attempt,
            .decisions_seen = run.decisions,
        } });
    }

    /// The number of chunks into which collective/partition.zig cuts an operation, with the
    /// defaults of a run.
    fn chunks_of(bytes: u64, peers: usize) usize {
        const options: Coordinator.Options = .{ .run_id = run_id };
        const wanted = @min(bytes / (4 * peers), options.window_bytes / (2 * peers));
        const chunk_bytes = std.math.clamp(wanted, limits.chunk_bytes_min, options.chunk_bytes);
        return std.math.divCeil(u64, bytes, chunk_bytes) catch unreachable;
    }

    // ---- what moves the bytes

    /// Sends a message of a peer to the coordinator; does nothing if the peer is lost.
    fn say(run: *Run, index: usize, message: control.Message) !void {
        if (run.connections[index] == null) return;
        try run.put(index, try control.encode(message, &run.scratch));
        run.sample.messages += 1;
    }

    fn put(run: *Run, index: usize, bytes: []const u8) !void {
        const stream = &run.connections[index].?.stream;
        // Takes away the peer's rate limit, because no time passes here and the cost of messages is
        // measured.
        if (run.connections[index].?.peer) |peer| peer.rates = .{};
        // A peer whose earlier bytes still wait is in the queue already.
        const waits = for (run.queue.items) |other| {
            if (other == index) break true;
        } else false;
        if (!waits) try run.queue.append(gpa, index);
        var rest = bytes;
        while (rest.len > 0) {
            const room = try stream.recv_slice();
            const count = @min(room.len, rest.len);
            @memcpy(room[0..count], rest[0..count]);
            stream.received(count);
            rest = rest[count..];
        }
    }

    /// The coordinator receives the waiting bytes, one connection after the other, as with a real
    /// driver. Then the peers read its answers.
    fn receive(run: *Run) !void {
        run.now += 100 * ms; // the pause between two rounds
        const begin = processor_ns();
        for (run.queue.items) |index| {
            run.c.received(run.now, run.connections[index] orelse return error.LetGo);
        }
        run.sample.ns += processor_ns() - begin;
        run.queue.clearRetainingCapacity();
        for (0..run.peers) |index| try run.listen(index);
    }

    fn listen(run: *Run, index: usize) !void {
        const connection = run.connections[index] orelse return;
        run.heard.clearRetainingCapacity();
        while (connection.stream.send_slice().len > 0) {
            try run.heard.appendSlice(gpa, connection.stream.send_slice());
            connection.stream.sent(connection.stream.send_slice().len);
        }
        var rest: []const u8 = run.heard.items;
        if (std.mem.startsWith(u8, rest, &wire.hello.encode_answer(.welcome)))
            rest = rest[wire.hello.answer_bytes..];
        while (rest.len > 0) {
            const length = try control.body_length(rest[0..control.header_bytes]);
            const total = control.header_bytes + length;
            try run.hear(&run.told[index], try control.decode(rest[0..total]));
            rest = rest[total..];
        }
    }

    fn hear(run: *Run, told: *Told, message: control.Message) !void {
        switch (message) {
            .welcome, .joined => {},
            .prepare => |body| {
                run.round = body.round;
                told.prepare += 1;
            },
            .ask_safe_points => told.ask += 1,
            .activate => |body| {
                run.epoch = body.epoch;
                told.activate += 1;
            },
            .view => |body| {
                run.attempt = body.attempt;
                if (!body.has_ring) return error.NoRing;
                told.view += 1;
            },
            .resume_op => |body| {
                if (body.kept.count == 0) return error.NothingKept;
                told.resume_op += 1;
            },
            .resume_all => told.resume_all += 1,
            .state_elected => |body| {
                run.root = body.root;
                told.elected += 1;
            },
            .commit => |body| {
                if (!body.op.eql(run.op()) or body.attempt != run.attempt)
                    return error.WrongCommit;
                run.decisions = body.decision;
                told.commit += 1;
            },
            .entered => {}, // members do not answer `entered`
            else => return error.UnexpectedAnswer,
        }
    }

    /// Checks that all peers that are left were told message `what` exactly `count` times.
    fn expect_all(run: *Run, comptime what: []const u8, count: u32) !void {
        for (run.connections[0..run.peers], run.told[0..run.peers]) |connection, *told| {
            if (connection == null) continue;
            if (@field(told, what) != count) return error.NotToldOnce;
            @field(told, what) = 0;
        }
    }
};

comptime {
    // The lost member has neighbours on both sides, and the links that break are those of other
    // members.
    assert(peers_min / 2 > limits.ring_reach);
}
