//! Finder: finds out whether a peer is at the address that it names. A search looks the name up.
//! Unless the peer's connection comes from that address, the search dials it and asks for a proof
//! (wire/hello.zig): the program that answers must be this very peer, not a host that the peer has
//! named. Each search has a thread of its own, because a lookup may block for many seconds. There
//! are few threads of searches, so that peers with addresses that do not answer cost little. When a
//! search is asked for: protocol/door.zig. The peer's half: session/dial.zig.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const address = @import("address.zig");
const clock = @import("clock.zig");
const descriptor = @import("descriptor.zig");
const dial = @import("dial.zig");
const lock = @import("lock.zig");
const random = @import("random.zig");
const secret = @import("secret.zig");
const socket = @import("socket.zig");
const thread = @import("thread.zig");
const HeldPort = @import("fixture.zig").HeldPort;
const Address = address.Address;
const Instant = base.Instant;
const Question = protocol.addresses.Question;
const Answer = protocol.addresses.Answer;
const hello = wire.hello;

pub const Finder = struct {
    /// The run id of the owner, so that no other copy lives long.
    run_id: *const base.RunId,
    searches: [searches_max]?*Search = @splat(null),
    text: [base.limits.address_bytes_max]u8 = undefined,

    const searches_max = 4;
    /// The most searches for one network, and for all networks from which a peer was not found
    /// lately: peers with addresses that do not answer must not hold up peers of other networks.
    const per_network_max = 2;
    const doubtful_max = 2;

    pub const Found = struct { number: u64, answer: Answer };

    /// Releases the searches under way, whose threads then end alone.
    pub fn deinit(finder: *Finder) void {
        for (finder.searches) |place| if (place) |search| search.release();
    }

    /// Starts a search. `wake_fd` is written to when there is an answer; -1: no descriptor.
    pub fn start(
        finder: *Finder,
        question: *const Question,
        wake_fd: socket.Fd,
    ) error{Busy}!void {
        var of_network: usize = 0;
        var doubtful: usize = 0;
        var free: usize = 0;
        var last: ?*?*Search = null;
        for (&finder.searches) |*place| if (place.*) |search| {
            const is_same = base.places.same_network(search.source, question.source);
            of_network += @intFromBool(is_same);
            doubtful += @intFromBool(search.is_doubtful);
        } else {
            free += 1;
            last = place;
        };
        const place = last orelse return error.Busy;
        if (of_network >= per_network_max) return error.Busy;
        // The last free place is for a network that has no search.
        if (of_network > 0 and free == 1) return error.Busy;
        if (question.is_doubtful and doubtful >= doubtful_max) return error.Busy;
        place.* = Search.start(finder.run_id.*, question, wake_fd) catch return error.Busy;
    }

    /// The answer of a search that has ended, or is late, valid until the next call; null: none.
    pub fn next(finder: *Finder, now: Instant) ?Found {
        for (&finder.searches) |*place| {
            const search = place.* orelse continue;
            const done = search.done.is_set();
            if (!done and (search.is_late or now < search.deadline)) continue;
            const was_late = search.is_late;
            const number = search.number;
            var answer: Answer = .{ .not_found = .no_answer_soon };
            if (done) {
                answer = .{ .not_found = search.why };
                if (search.found) |*at| {
                    if (told_as(at, &finder.text)) |text| answer = .{ .found = text };
                }
                search.release();
                place.* = null;
            } else search.is_late = true; // its thread still runs, so it keeps its place
            if (!was_late) return .{ .number = number, .answer = answer };
        }
        return null;
    }
};

/// A search outlives its finder or its thread: the last of the two to release it frees it. A search
/// has the run id, so it is on pages of its own (secret.zig), which belong to no engine.
const Search = struct {
    references: std.atomic.Value(u32) = .init(2),
    number: u64,
    run_id: base.RunId,
    peer: base.PeerId,
    source: base.Source,
    is_doubtful: bool,
    key: hello.Key,
    endpoint_storage: [base.limits.address_bytes_max]u8 = undefined,
    endpoint_length: usize,
    /// The address that the peer's connection comes from (Question.seen).
    seen_storage: protocol.addresses.Room = undefined,
    seen_length: usize,
    deadline: Instant,
    /// The question was answered as late: nobody waits for the answer any more.
    is_late: bool = false,
    /// A copy of the descriptor that wakes the asking thread, or -1.
    wake_fd: socket.Fd,
    done: lock.Signal = .{},
    /// The address at which the peer was found. `found` and `why` are valid once `done` is set.
    found: ?Address = null,
    /// How the last dial ended.
    why: wire.Dialed = .no_address,

    /// The longest time from the question to the answer.
    const answer_ns_max = 5 * std.time.ns_per_s;

    fn start(run_id: base.RunId, question: *const Question, wake_fd: socket.Fd) !*Search {
        const search = try secret.allocator.create(Search);
        errdefer secret.allocator.destroy(search);
        search.* = .{
            .number = question.number,
            .run_id = run_id,
            .peer = question.peer,
            .source = question.source,
            .is_doubtful = question.is_doubtful,
            .key = question.key,
            .endpoint_length = question.address.len,
            .seen_length = question.seen.len,
            .deadline = clock.after(answer_ns_max),
            .wake_fd = if (wake_fd < 0) -1 else descriptor.duplicate(wake_fd),
        };
        errdefer search.close_wake();
        @memcpy(search.endpoint_storage[0..question.address.len], question.address);
        @memcpy(search.seen_storage[0..question.seen.len], question.seen);
        (try thread.spawn("pccl-finder", search, run)).detach();
        return search;
    }

    fn release(search: *Search) void {
        if (search.references.fetchSub(1, .acq_rel) > 1) return;
        search.close_wake();
        secret.allocator.destroy(search);
    }

    fn close_wake(search: *Search) void {
        if (search.wake_fd >= 0) socket.close(search.wake_fd);
        search.wake_fd = -1;
    }

    fn run(search: *Search) void {
        search.found = search.find() orelse search.find_seen();
        search.done.set();
        if (search.wake_fd >= 0) {
            const one: u64 = 1;
            _ = std.c.write(search.wake_fd, std.mem.asBytes(&one), @sizeOf(u64));
        }
        search.release();
    }

    fn find(search: *Search) ?Address {
        const text = search.endpoint_storage[0..search.endpoint_length];
        const endpoint = address.Endpoint.parse(text) catch return null;
        search.why = .name_unknown;
        const list = address.look_up(endpoint, .{}) catch return null;
        search.why = .unreachable_host;
        for (list.slice()) |*at| {
            if (std.mem.eql(u8, &at.source(), &search.source)) return at.*;
        }
        // A name may have many addresses: one of each family is dialed.
        for ([_]c_uint{ std.c.AF.INET, std.c.AF.INET6 }) |family| {
            const at = for (list.slice()) |*at| {
                if (at.family() == family) break at;
            } else continue;
            if (search.may_dial(at) and search.answers(at)) return at.*;
        }
        return null;
    }

    /// Dials the address that the peer's connection comes from. The peer must prove itself there;
    /// otherwise `why` still tells about the address that the peer names.
    fn find_seen(search: *Search) ?Address {
        if (search.seen_length == 0) return null;
        const text = search.seen_storage[0..search.seen_length];
        const endpoint = address.Endpoint.parse(text) catch return null;
        const list = address.numeric(endpoint) orelse return null;
        const why = search.why;
        for (list.slice()) |*at| if (search.answers(at)) return at.*;
        search.why = why;
        return null;
    }

    fn may_dial(search: *const Search, at: *const Address) bool {
        // A peer of another machine may not have this machine ask what listens on its own loopback
        // interface.
        const is_loopback = base.source.is_loopback;
        if (is_loopback(at.source()) and !is_loopback(search.source)) return false;
        var text: [base.limits.address_bytes_max]u8 = undefined;
        return told_as(at, &text) != null;
    }

    fn refused(search: *Search, err: anyerror) bool {
        search.why = if (err == error.Refused) .refused else .unreachable_host;
        return false;
    }

    /// Whether this very peer answers at the address.
    fn answers(search: *Search, at: *const Address) bool {
        const fd = socket.connect_start(at) catch |err| return search.refused(err);
        defer socket.close(fd);
        const deadline = @min(search.deadline, clock.after(base.limits.find_dial_ns_max));
        search.why = .no_answer_soon;
        const connected = dial.wait_socket(fd, .write, deadline, .{}) catch return false;
        if (!connected) return false;
        socket.connect_finish(fd) catch |err| return search.refused(err);
        search.why = .other_answers;
        const nonce: hello.Nonce = random.array(16);
        // The probe has no run id: a stranger that answers learns nothing of the run.
        const probe = hello.encode(.{
            .purpose = .probe,
            .run_id = @splat(0),
            .from = .none,
            .to = search.peer,
            .nonce = nonce,
        });
        const sent = socket.send(fd, &.{&probe}) catch return false;
        if (sent < probe.len) return false;
        var answer: [hello.answer_bytes]u8 = undefined;
        var got: usize = 0;
        while (got < answer.len) {
            const readable = dial.wait_socket(fd, .read, deadline, .{}) catch return false;
            if (!readable) search.why = .silent;
            if (!readable) return false;
            const count = socket.receive(fd, &.{answer[got..]}) catch |err| switch (err) {
                error.WouldBlock => continue,
                error.Broken => return false,
            };
            if (count == 0) return false;
            got += count;
        }
        const proof = hello.proof(&search.key, search.run_id, search.peer, nonce);
        return hello.is_proof(&answer, proof);
    }
};

/// The text of an address as members are told it; null if it is no address of one host.
fn told_as(at: *const Address, text: *[base.limits.address_bytes_max]u8) ?[]const u8 {
    var host: [Address.text_bytes_max]u8 = undefined;
    const endpoint: address.Endpoint = .{ .host = at.host(&host), .port = at.port() };
    const whole = std.fmt.bufPrint(text, "{f}", .{endpoint}) catch return null;
    _ = address.Endpoint.parse_told(whole) catch return null;
    return whole;
}

// ---- tests

const testing = std.testing;

const test_peer: base.PeerId = .from_int(7);
const test_key: hello.Key = @splat(3);
const test_run: base.RunId = @splat(1);

fn question_of(number: u64, text: []const u8, source: []const u8) !Question {
    return .{
        .number = number,
        .peer = test_peer,
        .source = (try address.Endpoint.parse(source)).source().?,
        .address = text,
        .key = test_key,
    };
}

fn wait(finder: *Finder) !Finder.Found {
    const deadline = clock.after(30 * std.time.ns_per_s);
    while (clock.now() < deadline) {
        for (finder.searches) |place| if (place) |search| {
            _ = search.done.wait(@min(search.deadline, deadline));
        };
        if (finder.next(clock.now())) |found| return found;
    }
    return error.NoAnswer;
}

fn found_at(finder: *Finder, text: []const u8, source: []const u8) !?[]const u8 {
    try finder.start(&try question_of(9, text, source), -1);
    const found = try wait(finder);
    try testing.expectEqual(9, found.number);
    return switch (found.answer) {
        .found => |at| at,
        .not_found => null,
    };
}

/// A program that takes one connection, and answers one hello as the peer does, or as something
/// else.
const Somebody = struct {
    held: HeldPort,
    says: Says,
    heard_bytes: usize = 0,
    heard: [512]u8 = undefined,
    thread: std.Thread = undefined,

    const Says = enum { proof, proof_of_another_run, proof_of_another_key, echo, welcome, nothing };

    fn start(somebody: *Somebody, says: Says) !void {
        somebody.* = .{ .held = try .init(), .says = says };
        try somebody.held.listen();
        somebody.thread = try std.Thread.spawn(.{}, run, .{somebody});
    }

    fn run(somebody: *Somebody) void {
        const fd = std.c.accept(somebody.held.fd, null, null);
        if (fd < 0) return;
        defer _ = std.c.close(fd);
        somebody.serve(fd) catch return;
    }

    fn serve(somebody: *Somebody, fd: socket.Fd) !void {
        while (somebody.heard_bytes < hello.hello_bytes) {
            const room = somebody.heard[somebody.heard_bytes..];
            const count = std.c.read(fd, room.ptr, room.len);
            if (count <= 0) return;
            somebody.heard_bytes += @intCast(count);
        }
        const probe = try hello.decode(somebody.heard[0..hello.hello_bytes]);
        const other_key: hello.Key = @splat(4);
        const answer = switch (somebody.says) {
            .proof => hello.encode_proof(hello.proof(&test_key, test_run, probe.to, probe.nonce)),
            .proof_of_another_run => hello.encode_proof(
                hello.proof(&test_key, @splat(2), probe.to, probe.nonce),
            ),
            .proof_of_another_key => hello.encode_proof(
                hello.proof(&other_key, test_run, probe.to, probe.nonce),
            ),
            .echo => somebody.heard[0..hello.answer_bytes].*,
            .welcome => hello.encode_answer(.welcome),
            .nothing => return,
        };
        _ = std.c.write(fd, &answer, answer.len);
        // The finder closes the connection, and sends no byte more.
        const count = std.c.read(fd, somebody.heard[somebody.heard_bytes..].ptr, 1);
        if (count > 0) somebody.heard_bytes += @intCast(count);
    }

    fn end(somebody: *Somebody) void {
        somebody.thread.join();
        somebody.held.deinit();
    }

    fn text(somebody: *const Somebody, host: []const u8, into: []u8) ![]const u8 {
        return std.fmt.bufPrint(into, "{s}:{d}", .{ host, somebody.held.at.port() });
    }
};

test "who proves to be the peer is found, and nobody else that answers" {
    for (std.enums.values(Somebody.Says)) |says| {
        var finder: Finder = .{ .run_id = &test_run };
        defer finder.deinit();
        var somebody: Somebody = undefined;
        try somebody.start(says);
        var room: [64]u8 = undefined;
        const text = try somebody.text("127.0.0.1", &room);
        const found = try found_at(&finder, text, "127.0.0.9:1");
        somebody.end();
        if (says == .proof)
            try testing.expectEqualStrings(text, found.?)
        else
            try testing.expectEqual(null, found);
        // The program was asked one question, and was not told the run id.
        try testing.expectEqual(hello.hello_bytes, somebody.heard_bytes);
        try testing.expect(std.mem.allEqual(u8, somebody.heard[16..48], 0));
    }
}

test "a peer that is not at its own address is found where its connection comes from, by a proof" {
    for ([_]Somebody.Says{ .proof, .proof_of_another_key }) |says| {
        var finder: Finder = .{ .run_id = &test_run };
        defer finder.deinit();
        const held: HeldPort = try .init(); // the port refuses
        defer held.deinit();
        var somebody: Somebody = undefined;
        try somebody.start(says);
        var rooms: [2][64]u8 = undefined;
        const claimed = try std.fmt.bufPrint(&rooms[0], "127.0.0.1:{d}", .{held.at.port()});
        const seen = try somebody.text("127.0.0.1", &rooms[1]);
        var question = try question_of(9, claimed, "127.0.0.9:1");
        question.seen = seen;
        try finder.start(&question, -1);
        const found = try wait(&finder);
        somebody.end();
        // A peer that does not prove itself hears why it is not at the address that it names.
        if (says == .proof) try testing.expectEqualStrings(seen, found.answer.found) //
        else try testing.expectEqual(wire.Dialed.refused, found.answer.not_found);
        try testing.expectEqual(hello.hello_bytes, somebody.heard_bytes);
    }
}

test "a name is found where its connection comes from, without a dial, and told as a number" {
    var finder: Finder = .{ .run_id = &test_run };
    defer finder.deinit();
    const held = try HeldPort.init(); // the port refuses
    defer held.deinit();
    var room: [64]u8 = undefined;
    const text = try std.fmt.bufPrint(&room, "localhost:{d}", .{held.at.port()});
    const found = (try found_at(&finder, text, "127.0.0.1:1")).?;
    var number: [64]u8 = undefined;
    const expected = try std.fmt.bufPrint(&number, "127.0.0.1:{d}", .{held.at.port()});
    try testing.expectEqualStrings(expected, found);
}

test "a name that nobody knows, a port that refuses and this machine's own are not found" {
    var finder: Finder = .{ .run_id = &test_run };
    defer finder.deinit();
    try testing.expectEqual(null, try found_at(&finder, "no-such-host.invalid:1", "127.0.0.1:1"));
    const held = try HeldPort.init();
    defer held.deinit();
    var room: [64]u8 = undefined;
    const text = try std.fmt.bufPrint(&room, "127.0.0.1:{d}", .{held.at.port()});
    try testing.expectEqual(null, try found_at(&finder, text, "127.0.0.9:1"));
    // A peer of another machine names a port of this one.
    var somebody: Somebody = undefined;
    try somebody.start(.proof);
    const own = try somebody.text("127.0.0.1", &room);
    try testing.expectEqual(null, try found_at(&finder, own, "192.0.2.1:1"));
    // No search has dialed the program; this connection ends it.
    socket.close(try socket.connect_start(&somebody.held.at));
    somebody.end();
    try testing.expectEqual(0, somebody.heard_bytes);
}

test "there are at most four searches, two for one network, and the last for one without any" {
    var finder: Finder = .{ .run_id = &test_run };
    defer finder.deinit();
    const held: HeldPort = try .init();
    defer held.deinit();
    try held.listen(); // but never answer
    var room: [64]u8 = undefined;
    const text = try std.fmt.bufPrint(&room, "127.0.0.1:{d}", .{held.at.port()});
    const Case = struct { source: []const u8, has_place: bool };
    // A host of IPv6 has as many addresses as it likes, so its whole network counts.
    for ([_]Case{
        .{ .source = "[2001:db8:0:1::1]:1", .has_place = true },
        .{ .source = "[2001:db8:0:1::2]:1", .has_place = true },
        .{ .source = "[2001:db8:0:1:ffff::]:1", .has_place = false },
        .{ .source = "127.0.0.2:1", .has_place = true },
        .{ .source = "127.0.0.2:1", .has_place = false },
        .{ .source = "127.0.0.3:1", .has_place = true },
        .{ .source = "127.0.0.4:1", .has_place = false },
    }, 0..) |case, index| {
        const started = finder.start(&try question_of(index, text, case.source), -1);
        if (case.has_place) try started else try testing.expectError(error.Busy, started);
    }
    for (0..4) |_| try testing.expect((try wait(&finder)).answer == .not_found);
    try finder.start(&try question_of(5, "127.0.0.1:1", "127.0.0.4:1"), -1);
}

test "a question that is answered as late is answered once, and has its place until its end" {
    var finder: Finder = .{ .run_id = &test_run };
    defer finder.deinit();
    const held: HeldPort = try .init();
    try held.listen(); // but never answer
    var room: [64]u8 = undefined;
    const text = try std.fmt.bufPrint(&room, "127.0.0.1:{d}", .{held.at.port()});
    try finder.start(&try question_of(7, text, "127.0.0.2:1"), -1);
    const late = finder.next(base.never - 1).?;
    try testing.expectEqual(7, late.number);
    try testing.expectEqual(wire.Dialed.no_answer_soon, late.answer.not_found);
    try testing.expect(finder.searches[Finder.searches_max - 1] != null);
    held.deinit(); // this resets the connection
    while (finder.searches[Finder.searches_max - 1] != null) {
        try testing.expect(finder.next(base.never - 1) == null);
        std.Thread.yield() catch {};
    }
}

test "those from where somebody was not found lately have two places, and others the rest" {
    var finder: Finder = .{ .run_id = &test_run };
    defer finder.deinit();
    const held: HeldPort = try .init();
    defer held.deinit();
    try held.listen();
    var room: [64]u8 = undefined;
    const text = try std.fmt.bufPrint(&room, "127.0.0.1:{d}", .{held.at.port()});
    const sources = [_][]const u8{ "127.0.0.2:1", "127.0.0.3:1", "127.0.0.4:1" };
    for (sources, 0..) |source, index| {
        var question = try question_of(index, text, source);
        question.is_doubtful = true;
        const started = finder.start(&question, -1);
        if (index < 2) try started else try testing.expectError(error.Busy, started);
    }
    try finder.start(&try question_of(3, text, sources[2]), -1);
}
