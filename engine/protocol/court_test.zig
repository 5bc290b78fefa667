//! Court: a coordinator without sockets, and peers that say anything that a test wants. A test
//! reads the coordinator's answers and its log. So tests can show messages that honest members
//! never send. It also has a shelf for the journal, and a way to start the coordinator again. Used
//! by hostile_test.zig, operation_test.zig, membership_test.zig, coordinator_test.zig,
//! membership_test.zig, debt_test.zig and coordinator_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const addresses = @import("address.zig");
const coordinator = @import("coordinator.zig");
const journal = @import("journal.zig");
const journal_file = @import("journal.zig");
const status_file = @import("status.zig");
const Group = @import("group.zig").Group;
const Told = @import("record.zig").Told;
const Connection = coordinator.Connection;
const Coordinator = coordinator.Coordinator;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const limits = base.limits;

pub const ms = std.time.ns_per_ms;
pub const peers_max = 3;
/// With newcomers.
pub const places_max = 64;

pub const descriptor: control.Descriptor = .{
    .kind = .all_reduce,
    .dtype = .f32,
    .op = .sum,
    .recovery = .resume_chunks,
    .count = 100,
    .safe_points = 1,
};

/// The log shows 01000000, 02000000, and so on.
pub fn id_of(index: usize) base.PeerId {
    return .from_int(@as(u128, index + 1) << 120);
}

/// A coordinator and peers that say what a test wants.
pub const Court = struct {
    c: *Coordinator,
    now: u64 = 1000 * ms,
    /// It gives no signs of life while time passes.
    silent: ?usize = null,
    peers: [places_max]?*Connection = @splat(null),
    /// Time stands still in most tests, so peers may say as much as they like.
    keeps_rates: bool = false,
    /// Where connections come from.
    source: base.Source = @splat(0),
    /// They name the address that they are to be found at.
    advertises: bool = true,
    shelf: ?*Shelf = null,
    /// Messages of the coordinator to each peer, counted as they are read.
    aborts: [places_max]u32 = @splat(0),
    commits: [places_max]u32 = @splat(0),
    prepares: [places_max]u32 = @splat(0),
    /// All that it has said.
    told_bytes: usize = 0,
    last_abort: ?control.Abort = null,
    last_commit: ?control.Commit = null,
    attempt: u32 = 1,
    epoch: u64 = 0,
    safe_point: u64 = 0,
    round: u64 = 0,
    refused: bool = false,
    /// The last message to each peer about calls that others wait for.
    stalled: [places_max]?control.Stalled = @splat(null),
    /// The part of that about those who are missing.
    elsewhere: [places_max]Told = @splat(.{}),
    expelled: [places_max]bool = @splat(false),
    /// The last `expelled` that was read.
    last_expelled: control.Expelled = undefined,
    expelled_refused: bool = false,
    expelled_why: [limits.expelled_bytes_max]u8 = undefined,
    expelled_why_bytes: usize = 0,
    /// The answer to the last hello whose connection was closed with it.
    verdict: ?wire.hello.Verdict = null,
    /// The answer about addresses; null: each is found as it was said. For so many questions.
    reply: ?addresses.Reply = null,
    room: usize = std.math.maxInt(usize),
    asked: usize = 0,
    last_question: u64 = 0,
    /// Question.seen of it.
    last_seen: addresses.Room = undefined,
    last_seen_bytes: usize = 0,
    /// The last round that was released for each peer.
    released: [places_max]u64 = @splat(0),
    /// Lines of the log; a full one shows in a test as a line that is missing.
    said: [4096]u8 = undefined,
    said_bytes: usize = 0,
    /// Members that have a moment for a probe.
    may_probe: base.Mask = .empty,
    /// The address that failed dials came from.
    dialed_from: base.Source = @splat(0),

    pub fn init(court: *Court, allocator: std.mem.Allocator) !void {
        const host: Coordinator.Host = .{
            .ctx = court,
            .vtable = &.{ .close = close, .wake = wake, .find = find, .log = log },
        };
        court.* = .{ .c = try Coordinator.create(allocator, .{
            .run_id = @splat(1),
            .initial_world_size = peers_max,
        }, host, 1) };
        court.c.tick(court.now);
    }

    fn close(ctx: *anyopaque, connection: *Connection) void {
        const court: *Court = @ptrCast(@alignCast(ctx));
        const said = connection.stream.send_slice();
        if (said.len == wire.hello.answer_bytes)
            court.verdict = wire.hello.decode_answer(said[0..wire.hello.answer_bytes]) catch null;
        const place = &court.peers[connection.driver];
        if (place.* == connection) place.* = null; // else its peer has another one
    }
    fn wake(_: *anyopaque, _: *Connection) void {}
    fn find(ctx: *anyopaque, question: *const addresses.Question) addresses.Reply {
        const court: *Court = @ptrCast(@alignCast(ctx));
        if (court.room == 0) return .busy;
        court.room -|= 1;
        court.asked += 1;
        court.last_question = question.number;
        court.last_seen_bytes = question.seen.len;
        @memcpy(court.last_seen[0..question.seen.len], question.seen);
        return court.reply orelse .{ .answer = .{ .found = question.address } };
    }
    fn log(ctx: *anyopaque, level: coordinator.LogLevel, message: []const u8) void {
        const court: *Court = @ptrCast(@alignCast(ctx));
        const room = court.said[court.said_bytes..];
        const line = std.fmt.bufPrint(room, "{t} {s}\n", .{ level, message }) catch return;
        court.said_bytes += line.len;
    }

    /// Valid until it is asked for again.
    pub fn status(court: *const Court) ![]const u8 {
        return status_file.get(&court.c.run, court.now);
    }

    pub fn expect_said(court: *const Court, line: []const u8) !void {
        var lines = std.mem.splitScalar(u8, court.said[0..court.said_bytes], '\n');
        while (lines.next()) |said| if (std.mem.eql(u8, said, line)) return;
        std.debug.print("missing: {s}\nsaid:\n{s}", .{ line, court.said[0..court.said_bytes] });
        return error.NotSaid;
    }

    /// All peers are members of epoch 1.
    pub fn form(court: *Court) !void {
        for (0..peers_max) |index| try court.connect(index);
        try court.listen();
        for (0..peers_max) |index| try court.prepare(index, court.round, true);
        try court.listen();
        for (0..peers_max) |index| try court.enter(index);
    }

    pub fn connect(court: *Court, index: usize) !void {
        try court.open(index);
        try court.say(index, .{ .join_end = .{} });
    }

    /// A connection, on which the group is named.
    pub fn open(court: *Court, index: usize) !void {
        try court.knock(index, .{
            .purpose = .control,
            .run_id = @splat(1),
            .from = id_of(index),
            .instance = 1 + index,
        });
        try court.say(index, .{ .join = .{
            .name = .of("g"),
            .address = .of("a:1"),
            .address_key = @splat(0),
            .advertised = court.advertises,
            .initial_world_size = 0,
            .round = 0,
            .stop_round = 0,
        } });
    }

    /// A new connection in this place; the hello says whose.
    pub fn knock(court: *Court, place: usize, hello: wire.hello.Hello) !void {
        const connection = court.c.accept(court.now, court.source) orelse
            return error.OutOfMemory;
        connection.driver = place;
        court.peers[place] = connection;
        try court.put(place, &wire.hello.encode(hello));
    }

    /// The three are members, and so many are newcomers of the next epoch.
    pub fn form_with(court: *Court, newcomers: usize) !void {
        try court.form();
        try court.grow(newcomers);
    }

    pub fn grow(court: *Court, newcomers: usize) !void {
        const all = peers_max + newcomers;
        for (peers_max..all) |index| try court.connect(index);
        try court.next_round();
        for (0..all) |index| try court.prepare(index, court.round, true);
        for (0..peers_max) |index| try court.say(index, .{ .safe_points = .{
            .group = 0,
            .round = court.round,
            .count = 1,
        } });
        try court.listen();
        for (0..all) |index| try court.enter(index);
        for (0..peers_max) |index| try court.say(index, .{ .epoch_closed = .{
            .group = 0,
            .epoch = court.epoch - 1,
        } });
        try court.listen();
        try expectEqual(all, court.group().current().?.members.len);
    }

    /// All lanes of this peer are open, and its user waits to enter, or does not.
    pub fn prepare(court: *Court, index: usize, round: u64, entering: bool) !void {
        try court.say(index, .{ .prepared = .{
            .group = 0,
            .round = round,
            .entering = entering,
            .missing = .of(&.{}),
        } });
    }

    /// It has no lanes to these yet.
    pub fn lack(court: *Court, index: usize, missing: []const base.PeerId) !void {
        return court.lack_dialed(index, missing, .pending);
    }

    /// And this is what became of its dials.
    pub fn lack_dialed(
        court: *Court,
        index: usize,
        ids: []const base.PeerId,
        dialed: wire.Dialed,
    ) !void {
        var missing: [places_max]control.Missing = undefined;
        for (ids, missing[0..ids.len]) |id, *entry| entry.* = .{
            .peer = id,
            .dialed = dialed,
            .source = court.dialed_from,
        };
        try court.say(index, .{ .prepared = .{
            .group = 0,
            .round = court.round,
            .entering = index < peers_max,
            .missing = .of(missing[0..ids.len]),
        } });
    }

    /// A member has a connection again, and tells of its epoch; `join_end` is still to be said.
    pub fn come_back(court: *Court, index: usize, attempt: u32) !void {
        return court.come_back_seen(index, attempt, 0);
    }

    pub fn come_back_seen(court: *Court, index: usize, attempt: u32, seen: u64) !void {
        try court.open(index);
        try court.report_epoch(index, attempt, seen, .full(peers_max));
    }

    /// The same where some are lost.
    pub fn come_back_alive(court: *Court, index: usize, attempt: u32, alive: base.Mask) !void {
        try court.open(index);
        try court.report_epoch(index, attempt, 0, alive);
    }

    pub fn report_epoch(
        court: *Court,
        index: usize,
        attempt: u32,
        seen: u64,
        alive: base.Mask,
    ) !void {
        const ids = [peers_max]base.PeerId{ id_of(0), id_of(1), id_of(2) };
        try court.say(index, .{ .epoch_report = .{
            .epoch = court.epoch,
            .attempt = attempt,
            .entered = true,
            .decisions_seen = seen,
            .alive = alive,
            .members = .of(&ids),
        } });
    }

    pub fn enter(court: *Court, index: usize) !void {
        try court.say(index, .{ .activated = .{ .group = 0, .epoch = court.epoch } });
    }

    pub fn put(court: *Court, index: usize, bytes: []const u8) !void {
        const connection = court.peers[index].?;
        if (!court.keeps_rates) if (connection.peer) |peer| {
            peer.rates = .{};
        };
        var rest = bytes;
        while (rest.len > 0) {
            const room = try connection.stream.recv_slice();
            const count = @min(room.len, rest.len);
            @memcpy(room[0..count], rest[0..count]);
            connection.stream.received(count);
            rest = rest[count..];
        }
        court.c.received(court.now, connection);
        try court.write();
    }

    fn write(court: *Court) !void {
        const shelf = court.shelf orelse return;
        // A record that is on the disk may bring another.
        while (!shelf.slow and shelf.number > 0) try shelf.write(court);
    }

    pub fn say(court: *Court, index: usize, message: control.Message) !void {
        if (court.peers[index] == null) return;
        var bytes: [4096]u8 = undefined;
        try court.put(index, try control.encode(message, &bytes));
    }

    /// All that the peer in this place was told and has not read.
    pub fn unread(court: *const Court, index: usize) ![]u8 {
        var bytes: std.ArrayList(u8) = .empty;
        errdefer bytes.deinit(gpa);
        const connection = court.peers[index] orelse return error.Gone;
        var next = connection.stream.out.first;
        while (next) |piece| : (next = piece.next) {
            try bytes.appendSlice(gpa, piece.segment.bytes[piece.start..piece.segment.length]);
        }
        return bytes.toOwnedSlice(gpa);
    }

    /// The messages to the peer in this place, which it reads by that.
    pub fn told(court: *Court, index: usize) ![]u8 {
        var bytes: std.ArrayList(u8) = .empty;
        errdefer bytes.deinit(gpa);
        const stream = &(court.peers[index] orelse return bytes.toOwnedSlice(gpa)).stream;
        while (stream.send_slice().len > 0) {
            try bytes.appendSlice(gpa, stream.send_slice());
            stream.sent(stream.send_slice().len);
        }
        return bytes.toOwnedSlice(gpa);
    }

    /// Reads what every peer was told.
    pub fn listen(court: *Court) !void {
        for (0..court.peers.len) |index| {
            const bytes = try court.told(index);
            defer gpa.free(bytes);
            var rest: []const u8 = bytes;
            court.told_bytes += bytes.len;
            while (try next_of(&rest)) |message| court.hear(index, message);
        }
    }

    pub fn hear(court: *Court, index: usize, message: control.Message) void {
        switch (message) {
            .prepare => |body| {
                court.round = body.round;
                court.prepares[index] += 1;
            },
            .activate => |body| {
                court.epoch = body.epoch;
                court.safe_point = body.safe_point;
            },
            .view => |body| court.attempt = body.attempt,
            .abort => |body| {
                court.aborts[index] += 1;
                court.last_abort = body;
            },
            .commit => |body| {
                court.commits[index] += 1;
                court.last_commit = body;
            },
            .release => |body| court.released[index] = body.round,
            .refused => court.refused = true,
            .stalled => |body| {
                court.stalled[index] = body;
                court.elsewhere[index] = Told.read(&body.elsewhere, places_max) catch unreachable;
            },
            .expelled => |body| {
                court.expelled[index] = true;
                court.expelled_refused = body.refused;
                court.last_expelled = body;
                court.last_expelled.why = .{}; // its bytes go away
                court.expelled_why_bytes = body.why.data.len;
                @memcpy(court.expelled_why[0..body.why.data.len], body.why.data);
            },
            else => {},
        }
    }

    pub fn why_expelled(court: *const Court) []const u8 {
        return court.expelled_why[0..court.expelled_why_bytes];
    }

    /// The connection of a peer ends.
    pub fn hang_up(court: *Court, index: usize) void {
        const lost = court.peers[index].?;
        court.peers[index] = null;
        court.c.closed(court.now, lost);
    }

    /// A member says that its lanes to another are closed.
    pub fn say_closed(court: *Court, index: usize, other: usize) !void {
        try court.say(index, .{ .link_lost = .{
            .other = id_of(other),
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .state = .closed,
        } });
    }

    /// The first group; all of these tests but a few have no other.
    pub fn group(court: *const Court) *Group {
        return court.c.run.groups.items[0];
    }

    pub fn members_alive(court: *const Court) u64 {
        return court.group().current().?.alive.words[0];
    }

    /// Time passes, with everybody alive.
    pub fn pass(court: *Court, duration_ns: u64) !void {
        const until = court.now + duration_ns;
        while (court.now < until) {
            court.now += 500 * ms;
            for (0..places_max) |index| if (index != court.silent) try court.beat(index);
            court.c.tick(court.now);
            try court.write();
        }
    }

    /// The same. All read what they are told, and these do what rounds ask of members.
    pub fn pass_answering(court: *Court, duration_ns: u64, answering: []const usize) !void {
        const until = court.now + duration_ns;
        while (court.now < until) {
            try court.pass(500 * ms);
            for (0..places_max) |index| {
                const bytes = try court.told(index);
                defer gpa.free(bytes);
                const answers = std.mem.indexOfScalar(usize, answering, index) != null;
                var rest: []const u8 = bytes;
                while (try next_of(&rest)) |message| {
                    court.hear(index, message);
                    if (answers) try court.obey(index, message);
                }
            }
        }
    }

    /// Takes one message of what a peer was told.
    pub fn next_of(rest: *[]const u8) !?control.Message {
        const welcome = wire.hello.encode_answer(.welcome);
        if (std.mem.startsWith(u8, rest.*, &welcome)) rest.* = rest.*[welcome.len..];
        if (rest.len == 0) return null;
        const length = try control.body_length(rest.*[0..control.header_bytes]);
        const total = control.header_bytes + length;
        defer rest.* = rest.*[total..];
        return try control.decode(rest.*[0..total]);
    }

    /// A round that is due soon begins, and is listened to.
    pub fn next_round(court: *Court) !void {
        court.now = @max(court.now, court.group().round_due());
        court.c.tick(court.now);
        try court.listen();
    }

    pub fn beat(court: *Court, index: usize) !void {
        try court.say(index, .{ .heartbeat = .{
            .number = 1,
            .bytes_sent = 0,
            .bytes_received = 0,
            .may_probe = court.may_probe.has(index),
            .is_idle = court.may_probe.has(index),
        } });
    }

    /// The answers of a member without calls.
    pub fn obey(court: *Court, index: usize, message: control.Message) !void {
        switch (message) {
            .prepare => |body| try court.prepare(index, body.round, true),
            .ask_safe_points => |body| try court.say(index, .{ .safe_points = .{
                .group = 0,
                .round = body.round,
                .count = court.epoch,
            } }),
            .activate => |body| {
                try court.say(index, .{ .activated = .{ .group = 0, .epoch = body.epoch } });
                if (body.epoch > 1) try court.say(index, .{ .epoch_closed = .{
                    .group = 0,
                    .epoch = body.epoch - 1,
                } });
            },
            .view => |body| try court.say(index, .{ .report_end = .{
                .group = 0,
                .epoch = body.epoch,
                .attempt = body.attempt,
                .decisions_seen = 0,
            } }),
            else => {},
        }
    }

    pub fn done(court: *Court, index: usize, tag: u64, seen: u64) !void {
        try court.say(index, .{ .done = court.vote(tag, seen) });
    }

    pub fn vote(court: *const Court, tag: u64, seen: u64) control.Done {
        return .{
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .op = .{ .tag = tag, .sequence = 0 },
            .descriptor = descriptor,
            .digest = 7,
            .decisions_seen = seen,
        };
    }

    /// A member says that it has called, without a vote.
    pub fn called(court: *Court, index: usize, tag: u64) !void {
        try court.called_with(index, tag, .empty);
    }

    pub fn called_with(court: *Court, index: usize, tag: u64, stuck: base.Mask) !void {
        const said = court.running(tag, 1);
        try court.say(index, .{ .called = .{
            .group = 0,
            .epoch = said.epoch,
            .attempt = said.attempt,
            .op = said.op,
            .descriptor = said.descriptor,
            .stuck = stuck,
        } });
    }

    pub fn give_up(court: *Court, index: usize, tag: u64) !void {
        try court.say(index, .{ .gave_up = .{
            .group = 0,
            .epoch = court.epoch,
            .op = .{ .tag = tag, .sequence = 0 },
            .reason = .cancelled,
        } });
    }

    pub fn say_seen(court: *Court, index: usize, count: u64) !void {
        try court.say(index, .{ .decisions_seen = .{
            .group = 0,
            .epoch = court.epoch,
            .count = count,
        } });
    }

    /// A lane between the first two broke: a new attempt with the same members.
    pub fn stumble(court: *Court) !void {
        try court.say(0, .{ .link_lost = .{
            .other = id_of(1),
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .state = .broken,
        } });
        const before = court.attempt;
        try court.pass(500 * ms);
        try court.listen();
        try expectEqual(before + 1, court.attempt);
    }

    pub fn report(court: *Court, index: usize, tag: u64, chunks: u32) !void {
        return court.report_vote(index, tag, chunks, 0);
    }

    /// `voted_attempt`: 0 if it has not voted.
    pub fn report_vote(
        court: *Court,
        index: usize,
        tag: u64,
        chunks: u32,
        voted_attempt: u32,
    ) !void {
        var said = court.running(tag, chunks);
        if (voted_attempt > 0) {
            said.state = .done;
            said.voted_attempt = voted_attempt;
        }
        try court.say(index, .{ .report_op = said });
    }

    /// The report of an operation that nobody has voted on and of which no chunk is settled.
    pub fn running(court: *const Court, tag: u64, chunks: u32) control.ReportOp {
        return .{
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .op = .{ .tag = tag, .sequence = 0 },
            .descriptor = descriptor,
            .state = .running,
            .begun_attempt = 1,
            .voted_attempt = 0,
            .chunks = chunks,
            .settled = .of(&.{}),
        };
    }

    pub fn report_end(court: *Court, index: usize) !void {
        try court.say(index, .{ .report_end = .{
            .group = 0,
            .epoch = court.epoch,
            .attempt = court.attempt,
            .decisions_seen = 0,
        } });
    }
};

/// The remains of a coordinator that was killed. A court has it write after each call.
pub const Shelf = struct {
    bytes: std.ArrayList(u8) = .empty,
    log: std.ArrayList(u8) = .empty,
    full: bool = false,
    /// Nothing is written before `write` is called.
    slow: bool = false,
    /// The bytes still to be written, their number, and whether it takes the place of all.
    given: std.ArrayList(u8) = .empty,
    number: u64 = 0,
    replaces: bool = false,
    /// As the journal asks for it: a failed one fails until all is written anew.
    behind: bool = false,
    /// An option of the run, which each start is given anew.
    min_world_size: u32 = 1,

    pub fn deinit(shelf: *Shelf) void {
        shelf.bytes.deinit(gpa);
        shelf.log.deinit(gpa);
        shelf.given.deinit(gpa);
    }

    pub fn journal(shelf: *Shelf) journal_file.Journal {
        return .{ .ctx = shelf, .vtable = &.{
            .begin = begin,
            .append = append,
            .replace = replace,
            .log = log_more,
            .log_anew = log_anew,
        } };
    }
    fn begin(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const shelf: *Shelf = @ptrCast(@alignCast(ctx));
        if (shelf.full) return error.JournalFailed;
        shelf.bytes.clearRetainingCapacity();
        shelf.bytes.appendSlice(gpa, bytes) catch return error.JournalFailed;
    }
    fn append(ctx: *anyopaque, number: u64, bytes: []const u8) error{JournalFailed}!void {
        const shelf: *Shelf = @ptrCast(@alignCast(ctx));
        shelf.given.appendSlice(gpa, bytes) catch return error.JournalFailed;
        shelf.number = number;
    }
    fn replace(ctx: *anyopaque, number: u64, bytes: []const u8) error{JournalFailed}!void {
        const shelf: *Shelf = @ptrCast(@alignCast(ctx));
        shelf.given.clearRetainingCapacity();
        shelf.replaces = true;
        return append(ctx, number, bytes);
    }

    fn log_more(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const shelf: *Shelf = @ptrCast(@alignCast(ctx));
        if (shelf.full) return error.JournalFailed;
        shelf.log.appendSlice(gpa, bytes) catch return error.JournalFailed;
    }
    fn log_anew(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const shelf: *Shelf = @ptrCast(@alignCast(ctx));
        if (shelf.full) return error.JournalFailed;
        shelf.log.clearRetainingCapacity();
        return log_more(ctx, bytes);
    }

    /// Writes what it was given, if there is room, and says so.
    pub fn write(shelf: *Shelf, court: *Court) !void {
        const number = shelf.number;
        if (number == 0) return;
        shelf.behind = shelf.full or (shelf.behind and !shelf.replaces);
        if (!shelf.behind) {
            if (shelf.replaces) shelf.bytes.clearRetainingCapacity();
            try shelf.bytes.appendSlice(gpa, shelf.given.items);
        }
        shelf.forget(); // it may be given more at once
        if (shelf.behind) return court.c.journal_failed(court.now, number);
        court.c.journal_written(court.now, number);
    }

    fn forget(shelf: *Shelf) void {
        shelf.given.clearRetainingCapacity();
        shelf.replaces = false;
        shelf.number = 0;
    }

    /// The next coordinator, which has read it.
    pub fn start(shelf: *Shelf, court: *Court) !void {
        try court.init(gpa);
        errdefer court.c.destroy();
        court.shelf = shelf;
        shelf.forget();
        shelf.behind = false;
        court.c.run.options.journal = shelf.journal();
        court.c.run.options.min_world_size = shelf.min_world_size;
        const bytes = try gpa.dupe(u8, shelf.bytes.items);
        defer gpa.free(bytes);
        const log_bytes = try gpa.dupe(u8, shelf.log.items);
        defer gpa.free(log_bytes);
        try court.c.restore(court.now, bytes, log_bytes);
    }
};

/// All are members of epoch 1 of a coordinator that was killed and started again.
pub fn restart(shelf: *Shelf, court: *Court) !void {
    return restart_after(shelf, court, nothing);
}

pub fn nothing(_: *Court) !void {}

pub fn restart_after(shelf: *Shelf, court: *Court, before: fn (*Court) anyerror!void) !void {
    var last_commit: ?control.Commit = null;
    var last_abort: ?control.Abort = null;
    {
        try shelf.start(court);
        defer court.c.destroy();
        try court.form();
        try before(court);
        try court.listen();
        last_commit = court.last_commit;
        last_abort = court.last_abort;
    }
    try shelf.start(court);
    court.epoch = 1;
    court.last_commit = last_commit;
    court.last_abort = last_abort;
}

/// All are back, and report that they have called nothing.
pub fn report_nothing(court: *Court) !void {
    court.attempt = court.c.run.groups.items[0].current().?.attempt;
    for (0..peers_max) |index| try court.report_end(index);
    for (court.peers[0..peers_max]) |peer| try expect(peer != null);
    try expect(court.c.run.groups.items[0].current().?.running);
}
