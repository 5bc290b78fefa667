//! Newcomers whose first calls differ from those of the members: who is refused, on whose word, and
//! what the others see of it. The rules: operation.zig. The harness: court_test.zig; its three
//! peers are members from before here, and the places behind them newcomers. Shared states:
//! session/sync_test.zig. Under every order of events: tests/sim.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Op = @import("member.zig").Op;
const Witness = @import("hostile_test.zig").Witness;
const Court = court_file.Court;
const control = wire.control;
const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const id_of = court_file.id_of;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

const tag = 5;
const newcomer = peers_max;
const members_only = 0b0111;
const with_newcomer = 0b1111;

fn form_with_misfit(court: *Court, newcomers: usize) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form_with(newcomers);
}

/// The call of the members of a test, with another count.
fn counting(count: u64) control.Descriptor {
    var other = court_file.descriptor;
    other.count = count;
    return other;
}

fn vote(court: *Court, index: usize, count: u64) !void {
    var said = court.vote(tag, 0);
    said.descriptor = counting(count);
    try court.say(index, .{ .done = said });
}

fn call(court: *Court, index: usize, count: u64) !void {
    try court.say(index, .{ .called = .{
        .group = 0,
        .epoch = court.epoch,
        .attempt = court.attempt,
        .op = .{ .tag = tag, .sequence = 0 },
        .descriptor = counting(count),
    } });
}

/// A member sees that another's call is not its own.
fn see(court: *Court, index: usize, other: usize, mine: u64, theirs: u64) !void {
    try court.say(index, .{ .mismatch_seen = .{
        .group = 0,
        .epoch = court.epoch,
        .op = .{ .tag = tag, .sequence = 0 },
        .mine = counting(mine),
        .other = id_of(other),
        .theirs = counting(theirs),
    } });
}

fn total(counts: []const u32) u32 {
    var sum: u32 = 0;
    for (counts) |count| sum += count;
    return sum;
}

/// The newcomer is out, may come again, and is told all of these; the members stay.
fn expect_refused(court: *const Court, says: []const []const u8) !void {
    try expectEqual(members_only, court.members_alive());
    try expect(court.expelled[newcomer] and court.expelled_refused);
    for (says) |part| try expect(std.mem.indexOf(u8, court.why_expelled(), part) != null);
    try expectEqual(0, total(&court.aborts));
}

fn tick(court: *Court) !void {
    try court.pass(500 * ms);
    try court.listen();
}

test "a newcomer that calls something else is refused alone, whoever speaks first" {
    for (0..peers_max + 1) |turn| {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        for (0..peers_max) |index| {
            if (index == turn) try vote(&court, newcomer, 99);
            try vote(&court, index, 100);
        }
        if (turn == peers_max) try vote(&court, newcomer, 99);
        try tick(&court);
        const says = [_][]const u8{ "it called all_reduce(sum, 99", "members called all_reduce" };
        try expect_refused(&court, &says);
        try expect(court.peers[newcomer] != null); // it may join again
        for (court.commits[0..peers_max]) |commits| try expectEqual(1, commits);
        for (court.expelled[0..peers_max]) |expelled| try expect(!expelled);
    }
}

test "a newcomer is told with names whose call it should have made, and what that was" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    court.peers[1].?.peer.?.label = .shown("node7:42");
    for (0..peers_max + 1) |index| {
        var said = court.vote(tag, 0);
        said.descriptor.kind = .reduce;
        said.descriptor.root = id_of(if (index == newcomer) newcomer else 1);
        try court.say(index, .{ .done = said });
    }
    try tick(&court);
    const why = court.why_expelled();
    var line: [60]u8 = undefined;
    const named = try std.fmt.bufPrint(&line, " to rank 1 (node7:42, {s}))", .{id_of(1).short()});
    try expect(std.mem.indexOf(u8, why, named) != null);
    const told = court.last_expelled;
    try expectEqual(tag, told.op.tag);
    try expect(told.peer.eql(id_of(0)));
    try expect(told.descriptor.kind == .reduce and told.descriptor.root.eql(id_of(1)));
}

test "when one sees another's call all are asked for theirs, and a newcomer alone is refused" {
    // Method: either of the two sees it; nobody has voted.
    for ([_][2]usize{ .{ 0, newcomer }, .{ newcomer, 0 } }) |pair| {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        const mine: u64 = if (pair[0] == newcomer) 99 else 100;
        try see(&court, pair[0], pair[1], mine, 199 - mine);
        try court.listen();
        for (0..peers_max + 1) |index| {
            const is_asked = court.stalled[index] != null;
            try expectEqual(index != pair[0], is_asked);
            if (is_asked) try call(&court, index, if (index == newcomer) 99 else 100);
        }
        try tick(&court);
        try expect_refused(&court, &.{});
    }
}

test "a member that lies about a newcomer has nobody refused while another was there before" {
    // The newcomer's own word counts for its call.
    {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        try see(&court, 0, newcomer, 100, 99);
        for (0..peers_max + 1) |index| try vote(&court, index, 100);
        try tick(&court);
        try expectEqual(with_newcomer, court.members_alive());
        for (court.commits[0 .. peers_max + 1]) |commits| try expectEqual(1, commits);
    }
    // The words of all members count for theirs.
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    try see(&court, 0, newcomer, 99, 100);
    try call(&court, newcomer, 100);
    try tick(&court);
    try expectEqual(with_newcomer, court.members_alive());
    try call(&court, 1, 100);
    try court.listen();
    for (court.aborts[0 .. peers_max + 1]) |aborts| try expectEqual(1, aborts);
    try expectEqual(.mismatch, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(0)) and court.last_abort.?.other.eql(id_of(1)));
    try tick(&court);
    try expectEqual(with_newcomer, court.members_alive());
}

/// In an uneven all_to_all: the elements that one has for another, and wants of it.
fn exchanging(sends: u64, wants: u64) control.Descriptor {
    var own = counting(sends);
    own.kind = .all_to_all;
    own.uneven = true;
    own.counts = wants;
    return own;
}

fn see_shards(
    court: *Court,
    index: usize,
    other: usize,
    mine: control.Descriptor,
    theirs: control.Descriptor,
) !void {
    try court.say(index, .{ .mismatch_seen = .{
        .group = 0,
        .epoch = court.epoch,
        .op = .{ .tag = tag, .sequence = 0 },
        .mine = mine,
        .other = id_of(other),
        .theirs = theirs,
    } });
}

test "a newcomer whose shards do not fit those of a member is refused, on the word of either" {
    for ([_]usize{ 1, newcomer }) |from| {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        const member, const new = .{ exchanging(2, 3), exchanging(4, 2) };
        if (from == newcomer)
            try see_shards(&court, newcomer, 1, new, member)
        else
            try see_shards(&court, 1, newcomer, member, new);
        // Their votes, which have no sizes, are those of one call.
        for (0..peers_max) |index| {
            var said = court.vote(tag, 0);
            said.descriptor = exchanging(0, 0);
            try court.say(index, .{ .done = said });
        }
        try tick(&court);
        try expect_refused(&court, &.{
            "it called all_to_all(f32, 4 elements for the other and 2 from it) where rank 1 (",
            " called all_to_all(f32, 2 elements for the other and 3 from it) (tag 5",
        });
        try expect(court.last_expelled.peer.eql(id_of(1)));
    }
}

test "where two members, or two newcomers, have other shards for each other all hear of it" {
    for ([_][2]usize{ .{ 0, 1 }, .{ newcomer + 1, newcomer } }) |pair| {
        var court: Court = undefined;
        try form_with_misfit(&court, 2);
        defer court.c.destroy();
        try see_shards(&court, pair[0], pair[1], exchanging(2, 3), exchanging(4, 2));
        try court.listen();
        for (court.aborts[0 .. peers_max + 2]) |aborts| try expectEqual(1, aborts);
        try expectEqual(.mismatch, court.last_abort.?.reason);
        try expectEqual(3, court.last_abort.?.descriptor.counts);
        try tick(&court);
        try expectEqual(0b11111, court.members_alive());
    }
}

test "a newcomer that exchanges unevenly where members do not is refused for what all say" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    var even = exchanging(0, 0);
    even.uneven = false;
    even.count = 100;
    try see_shards(&court, newcomer, 1, exchanging(2, 3), even);
    try tick(&court);
    try expectEqual(with_newcomer, court.members_alive());
    for (0..peers_max) |index| {
        var said = court.vote(tag, 0);
        said.descriptor = even;
        try court.say(index, .{ .done = said });
    }
    try tick(&court);
    try expectEqual(members_only, court.members_alive());
    try expectEqual(0, total(&court.aborts));
}

test "newcomers that agree with the members stay, and the others go at once" {
    // Method: of four newcomers two call the same wrong thing, one another, one the right one; all
    // before any of the members has spoken.
    const counts = [_]u64{ 99, 100, 98, 99 };
    var court: Court = undefined;
    try form_with_misfit(&court, counts.len);
    defer court.c.destroy();
    for (counts, newcomer..) |count, index| try vote(&court, index, count);
    for (0..peers_max) |index| try vote(&court, index, 100);
    try tick(&court);
    for (counts, newcomer..) |count, index| try expectEqual(count != 100, court.expelled[index]);
    try expectEqual(members_only | 1 << newcomer + 1, court.members_alive());
    court.attempt = court.group().current().?.attempt; // others were told of the ones between
    // The vote of the one that agrees came before that of a member, and is asked for again.
    try expectEqual(0, total(&court.commits));
    for (0..newcomer + 2) |index| {
        if (court.expelled[index]) continue;
        var said = court.running(tag, 1);
        said.state = .done;
        said.voted_attempt = 1;
        try court.say(index, .{ .report_op = said });
        try court.report_end(index);
    }
    for (0..newcomer + 2) |index| if (!court.expelled[index]) try vote(&court, index, 100);
    try court.listen();
    try expectEqual(0, total(&court.aborts));
    try expectEqual(peers_max + 1, total(&court.commits));
}

test "where nobody was there before, or it is no first call, all hear of the mismatch" {
    const Case = enum { later_call, message, first_epoch };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try court.init(gpa);
        defer court.c.destroy();
        if (case == .first_epoch) try court.form() else try court.form_with(1);
        const other: usize = if (case == .first_epoch) 2 else newcomer;
        for ([_]usize{ 0, other }) |index| {
            var said = court.vote(tag, 0);
            if (case == .later_call) said.op.sequence = 1;
            if (case == .message) {
                said.op.tag = (base.Pair{ .src = 0, .dst = newcomer }).tag(tag);
                said.descriptor.kind = .send_recv;
            }
            if (index != 0) said.descriptor.count = 99;
            try court.say(index, .{ .done = said });
        }
        try court.listen();
        try expectEqual(.mismatch, court.last_abort.?.reason);
        try tick(&court);
        try expectEqual(court.group().current().?.members.len, @popCount(court.members_alive()));
    }
}

test "newcomers that contradict each other when all others have gone end the operation" {
    var court: Court = undefined;
    try form_with_misfit(&court, 2);
    defer court.c.destroy();
    try vote(&court, newcomer, 99);
    try vote(&court, newcomer + 1, 98);
    for (0..peers_max) |index| try court.say(index, .{ .leave = .{ .group = 0 } });
    try court.listen();
    for (newcomer..newcomer + 2, [_]u64{ 99, 98 }) |index, count| {
        var said = court.running(tag, 1);
        said.descriptor = counting(count);
        try court.say(index, .{ .report_op = said });
        try court.report_end(index);
    }
    try tick(&court);
    for (court.aborts[newcomer .. newcomer + 2]) |aborts| try expectEqual(1, aborts);
    try expectEqual(.mismatch, court.last_abort.?.reason);
    try expectEqual(0b11000, court.members_alive());
}

test "once all whose call differed have left, a newcomer goes on with what it has voted for" {
    for ([_]control.Recovery{ .resume_chunks, .raise, .complete }) |recovery| {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        var said = court.vote(tag, 0);
        said.descriptor.recovery = recovery;
        said.descriptor.count = 99;
        try vote(&court, 0, 100);
        try court.say(newcomer, .{ .done = said });
        try court.say(0, .{ .leave = .{ .group = 0 } });
        try court.listen();
        try report_voted(&court, newcomer, &said.descriptor);
        for (1..peers_max + 1) |index| try court.report_end(index);
        const bytes = try court.unread(newcomer);
        defer gpa.free(bytes);
        if (recovery == .resume_chunks) try expectEqual(1, try kept_ranges(bytes));
        try court.listen();
        if (recovery == .resume_chunks) continue;
        try expectEqual(1, court.aborts[newcomer]);
        try expectEqual(.peer_lost, court.last_abort.?.reason);
    }
}

test "a member that takes back its call ends the one that a newcomer has voted for" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    try vote(&court, 0, 100);
    try vote(&court, newcomer, 99);
    try court.stumble();
    try report_voted(&court, newcomer, &counting(99));
    for (0..peers_max + 1) |index| try court.report_end(index);
    try court.listen();
    try expectEqual(1, court.aborts[newcomer]);
    try expectEqual(.mismatch, court.last_abort.?.reason);
}

/// The report of one that has voted, in the attempt before.
fn report_voted(court: *Court, index: usize, called: *const control.Descriptor) !void {
    var said = court.running(tag, 1);
    said.descriptor = called.*;
    said.state = .done;
    said.voted_attempt = court.attempt - 1;
    said.settled = .of(&.{.{ .begin = 0, .end = 1, .reduced_attempt = said.voted_attempt }});
    try court.say(index, .{ .report_op = said });
}

test "in an attempt that begins before a newcomer is refused it keeps nothing of what others hold" {
    // Method: lanes break while not all members have called. The members report chunks, of which
    // the newcomer, whose call has fewer, must not be told.
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    try vote(&court, 0, 100);
    try vote(&court, newcomer, 99);
    try court.stumble();
    for ([_]usize{ 0, newcomer }) |index| {
        var said = court.running(tag, if (index == 0) 4 else 2);
        said.descriptor = counting(if (index == 0) 100 else 99);
        said.settled = .of(&.{.{ .begin = 0, .end = said.chunks, .reduced_attempt = 1 }});
        try court.say(index, .{ .report_op = said });
    }
    for (0..peers_max + 1) |index| try court.report_end(index);
    for ([_]usize{ 0, newcomer }, [_]u32{ 1, 0 }) |index, ranges| {
        const bytes = try court.told(index);
        defer gpa.free(bytes);
        try expectEqual(ranges, try kept_ranges(bytes));
    }
    for (0..peers_max) |index| try call(&court, index, 100);
    try tick(&court);
    try expectEqual(members_only, court.members_alive());
    try expectEqual(0, total(&court.aborts));
}

/// The ranges in the one resume among these messages.
fn kept_ranges(bytes: []const u8) !u32 {
    var rest = bytes;
    while (rest.len > 0) {
        const length = try control.body_length(rest[0..control.header_bytes]);
        const size = control.header_bytes + length;
        switch (try control.decode(rest[0..size])) {
            .resume_op => |body| return body.kept.count,
            else => rest = rest[size..],
        }
    }
    return error.NoResume;
}

const Offer = struct {
    root: u8 = 1,
    strategy: control.Strategy = .popular,
    revision: u64 = 0,
    expected: u64 = 0,
    rules: control.StateRules = .{},
    name: []const u8 = "weights",
};

fn offer(court: *Court, index: usize, what: Offer) !void {
    try court.say(index, .{ .state_offer = .{
        .group = 0,
        .epoch = court.epoch,
        .attempt = court.attempt,
        .op = .{ .tag = base.limits.state_tags_first, .sequence = 0 },
        .descriptor = std.mem.zeroInit(control.Descriptor, .{
            .kind = .sync,
            .dtype = .u8,
            .op = .sum,
            .recovery = .resume_chunks,
            .rules = what.rules,
        }),
        .digest = what.root,
        .revision = what.revision,
        .expected = what.expected,
        .structure = @splat(1),
        .root = @splat(what.root),
        .strategy = what.strategy,
        .voted = false,
        .decisions_seen = 0,
        .name = .of(what.name),
    } });
}

test "an offer of an attempt that is over counts in no other" {
    var court: Court = undefined;
    try form_with_misfit(&court, 0);
    defer court.c.destroy();
    try court.stumble();
    for (0..peers_max) |index| try court.report_end(index);
    const now = court.attempt;
    court.attempt = now - 1;
    try offer(&court, 0, .{});
    try expectEqual(0, court.group().current().?.records.items.len);
    court.attempt = now;
    try offer(&court, 0, .{});
    try expectEqual(1, court.group().current().?.records.items.len);
}

test "a state is named as the first member says it, and one that cannot be shown ends its member" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    for ([_][]const u8{ "", "weights", "other", "a\x1b[2Jb" }, 0..) |name, index| {
        try offer(&court, index, .{ .name = name });
        try expectEqual(index < 3, court.peers[index] != null);
        const known = court.group().current().?.records.items[0];
        try std.testing.expectEqualStrings(if (index == 0) "" else "weights", known.state());
    }
}

test "of two newcomers that insist on different contents the second is refused, and nobody else" {
    var court: Court = undefined;
    try form_with_misfit(&court, 2);
    defer court.c.destroy();
    for (0..newcomer + 2) |index| {
        const insists = index >= newcomer;
        try offer(&court, index, .{
            .root = if (insists) @intCast(index) else 1,
            .strategy = if (insists) .send_only else .popular,
        });
    }
    try tick(&court);
    try expectEqual(0, total(&court.aborts));
    try expectEqual(members_only | 1 << newcomer, court.members_alive());
    try expect(court.expelled[newcomer + 1] and court.expelled_refused);
    try expect(std.mem.indexOf(u8, court.why_expelled(), "insists on its content") != null);
}

test "refuse: a member from before leaves that is ahead, and nobody else" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    for (0..newcomer + 1) |index| try offer(&court, index, .{
        .revision = ([_]u64{ 11, 1000, 10, 0 })[index],
        .expected = ([_]u64{ 11, 11, 10, 0 })[index],
        .rules = .{ .successive = true, .refuse = true },
    });
    try tick(&court);
    try expectEqual(0, total(&court.aborts));
    try expectEqual(with_newcomer & ~@as(u64, 1 << 1), court.members_alive());
    try expect(court.expelled[1] and court.expelled_refused);
    for ([_][]const u8{ "\"weights\"", "is above 11", "successive" }) |part|
        try expect(std.mem.indexOf(u8, court.why_expelled(), part) != null);
}

test "one_sender: of two that give all hear, whichever of them came last" {
    const rules: control.StateRules = .{ .one_sender = true };
    for (0..newcomer + 1) |sender| {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        for (0..newcomer + 1) |index| try offer(&court, index, .{
            .strategy = if (index == sender) .send_only else .popular,
            .rules = rules,
        });
        try tick(&court);
        try expectEqual(newcomer + 1, total(&court.aborts));
        try expectEqual(with_newcomer, court.members_alive());
        try expect(!court.expelled[newcomer]);
    }
}

test "rules that differ are a mismatch that shows them" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    for (0..newcomer + 1) |index| try offer(&court, index, .{
        .rules = if (index == newcomer) .{ .refuse = true, .successive = true } else .{},
    });
    try tick(&court);
    try expectEqual(members_only, court.members_alive());
    const words = "it called sync(rules successive and refuse) where the members called sync()";
    try expect(std.mem.indexOf(u8, court.why_expelled(), words) != null);
}

// ---- calls that nobody else makes

const lonely_tag = 6;
const warning_ns = 10_000 * ms;

/// Time passes and everybody gives signs of life.
fn wait(court: *Court, duration_ns: u64) !void {
    try court.pass_answering(duration_ns, &.{ 0, 1, 2, newcomer });
    try court.listen();
}

test "a newcomer that waits where nobody calls, while all members wait for it, is refused" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    try court.called(newcomer, lonely_tag);
    for (0..peers_max) |index| try court.called(index, tag);
    try wait(&court, warning_ns - 1000 * ms);
    try expectEqual(with_newcomer, court.members_alive());
    try wait(&court, 2000 * ms);
    try expect_refused(&court, &.{
        "it waits in all_reduce (tag 6), which no member has called",
        "the members have waited 10 s for its all_reduce (tag 5)",
    });
}

test "a newcomer that may be late, and no stray, is not refused" {
    // Method: each case takes away one thing that makes it a stray.
    const Case = enum {
        has_met_a_member,
        a_member_has_called_it,
        a_member_has_not_called,
        has_called_nothing,
        has_waited_shortly,
    };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try form_with_misfit(&court, 1);
        defer court.c.destroy();
        if (case == .has_met_a_member) {
            for (0..peers_max + 1) |index| try court.done(index, 8, 0);
            try court.listen();
        }
        const is_lonely = case != .has_called_nothing and case != .has_waited_shortly;
        if (is_lonely) try court.called(newcomer, lonely_tag);
        if (case == .a_member_has_called_it) try court.called(0, lonely_tag);
        for (0..peers_max) |index| {
            if (index == 2 and case == .a_member_has_not_called) continue;
            try court.called(index, tag);
        }
        try wait(&court, warning_ns / 2);
        if (case == .has_waited_shortly) try court.called(newcomer, lonely_tag);
        try wait(&court, warning_ns / 2 + 1000 * ms);
        try expectEqual(with_newcomer, court.members_alive());
    }
}

test "a newcomer that is not heard is not refused for what it has not said" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    try court.called(newcomer, lonely_tag);
    for (0..peers_max) |index| try court.called(index, tag);
    try wait(&court, warning_ns - 1500 * ms);
    court.silent = newcomer;
    try court.pass_answering(3000 * ms, &.{ 0, 1, 2 });
    court.silent = null;
    try court.called(newcomer, tag); // it had called in time
    try wait(&court, 2000 * ms);
    try expectEqual(with_newcomer, court.members_alive());
}

test "the time that one newcomer has waited is not that of another, nor of the members" {
    // Method: one newcomer waits in both calls, and the others make theirs late.
    const Case = enum { newcomer_is_late, members_are_late };
    for (std.enums.values(Case)) |case| {
        var court: Court = undefined;
        try form_with_misfit(&court, 2);
        defer court.c.destroy();
        const is_late = case == .newcomer_is_late;
        try court.called(newcomer + 1, lonely_tag);
        try court.called(newcomer + 1, tag);
        if (is_late) for (0..peers_max) |index| try court.called(index, tag);
        if (!is_late) try court.called(newcomer, lonely_tag);
        try wait_all(&court, warning_ns - 1000 * ms);
        if (!is_late) for (0..peers_max) |index| try court.called(index, tag);
        if (is_late) try court.called(newcomer, lonely_tag);
        try wait_all(&court, warning_ns - 1000 * ms);
        for (court.expelled) |expelled| try expect(!expelled);
        try wait_all(&court, 2000 * ms);
        try expect(court.expelled[newcomer] and !court.expelled[newcomer + 1]);
    }
}

fn wait_all(court: *Court, duration_ns: u64) !void {
    try court.pass_answering(duration_ns, &.{ 0, 1, 2, newcomer, newcomer + 1 });
    try court.listen();
}

test "a coordinator that was frozen does not take its own time for a newcomer's" {
    var court: Court = undefined;
    try form_with_misfit(&court, 1);
    defer court.c.destroy();
    try court.called(newcomer, lonely_tag);
    for (0..peers_max) |index| try court.called(index, tag);
    try wait(&court, 1000 * ms);
    court.now += 10 * warning_ns;
    try wait(&court, 1000 * ms);
    try expectEqual(with_newcomer, court.members_alive());
}

fn grow(court: *Court) !void {
    return court.grow(1);
}

test "after a restart a newcomer that may have taken part before is no stray" {
    const ids = [_]base.PeerId{ id_of(0), id_of(1), id_of(2), id_of(newcomer) };
    for ([_]u64{ 0, 1 }) |decisions_seen| {
        var shelf: court_file.Shelf = .{};
        defer shelf.deinit();
        var court: Court = undefined;
        try court_file.restart_after(&shelf, &court, grow);
        defer court.c.destroy();
        court.epoch = 2;
        for (0..ids.len) |index| {
            try court.open(index);
            try court.say(index, .{ .epoch_report = .{
                .epoch = court.epoch,
                .attempt = 1,
                .entered = true,
                .decisions_seen = decisions_seen,
                .alive = .full(ids.len),
                .members = .of(&ids),
            } });
            try court.say(index, .{ .join_end = .{} });
        }
        try court.listen();
        for (0..ids.len) |index| try court.report_end(index);
        try court.called(newcomer, lonely_tag);
        for (0..peers_max) |index| try court.called(index, tag);
        try wait(&court, warning_ns + 1000 * ms);
        const left: u64 = if (decisions_seen > 0) with_newcomer else members_only;
        try expectEqual(left, court.members_alive());
    }
}

// ---- questions
//
// Questions that members answer by themselves: which member is let go for want of an answer, and
// which has more time. The rules: peer.zig.

const second = 1000 * ms;

fn form_of_three(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.listen();
    court.now += second;
    court.c.tick(court.now);
}

test "a member that beats and never answers a round is let go, and newcomers get in" {
    var court: Court = undefined;
    try form_of_three(&court);
    defer court.c.destroy();
    try court.connect(3);
    try court.pass_answering(court.c.run.options.silence_ns - 500 * ms, &.{ 0, 1, 3 });
    try expectEqual(.prepare, court.group().phase);
    try expectEqual(0b111, court.members_alive());
    try court.pass_answering(1500 * ms, &.{ 0, 1, 3 });
    try expectEqual(null, court.peers[2]);
    try court.expect_said("info peer 03000000 is gone: it does not say which lanes it has");
    try court.pass_answering(second, &.{ 0, 1, 3 });
    try expectEqual(2, court.group().last_epoch);
    try expectEqual(0b111, court.members_alive());
}

test "a member that beats and never answers a round keeps no gap open" {
    var court: Court = undefined;
    try form_of_three(&court);
    defer court.c.destroy();
    try court.say(1, .{ .leave = .{ .group = 0 } });
    try court.pass_answering(court.c.run.options.silence_ns + 2 * second, &.{0});
    try expectEqual(null, court.peers[2]);
    try expectEqual(2, court.group().last_epoch);
    try expectEqual(0b001, court.members_alive());
}

/// Time passes, and one member takes so many bytes in half a second; the others read.
fn pass_thin(court: *Court, duration_ns: u64, thin: usize, bytes: usize) !void {
    const until = court.now + duration_ns;
    while (court.now < until) {
        try court.pass(500 * ms);
        const connection = court.peers[thin] orelse return;
        var left = bytes;
        while (left > 0 and connection.stream.send_slice().len > 0) {
            const count = @min(left, connection.stream.send_slice().len);
            connection.stream.sent(count);
            left -= count;
        }
        court.peers[thin] = null; // its queue is left alone
        try court.listen();
        court.peers[thin] = connection;
    }
}

const all = std.math.maxInt(usize);

/// Much waits for a member on a thin line before it is asked.
fn burden(court: *Court, index: usize) !void {
    const stream = &court.peers[index].?.stream;
    for (0..2000) |_| try stream.send(.{ .heartbeat_ack = .{ .number = 1 } });
}

test "a member has its time from when a question has left for it, up to a minute" {
    for ([_]bool{ true, false }) |reads| {
        var court: Court = undefined;
        try form_of_three(&court);
        defer court.c.destroy();
        const silence_ns = court.c.run.options.silence_ns;
        try burden(&court, 2);
        try court.connect(3);
        try court.pass_answering(0, &.{});
        try expectEqual(.prepare, court.group().phase);
        for ([_]usize{ 0, 1, 3 }) |index| try court.prepare(index, court.group().round, true);
        try pass_thin(&court, 50 * second, 2, 10);
        try expectEqual(0b111, court.members_alive());
        if (reads) {
            try pass_thin(&court, silence_ns, 2, all);
        } else try pass_thin(&court, 9500 * ms, 2, 10);
        try expectEqual(0b111, court.members_alive());
        try pass_thin(&court, second, 2, 10);
        try expectEqual(null, court.peers[2]);
    }
}

test "a member that has been let into a long queue by others may say later what it has seen" {
    // Method: two exchange messages without end; the third takes a few of the decisions a second.
    var court: Court = undefined;
    try form_of_three(&court);
    defer court.c.destroy();
    const thin_bytes = 8_000;
    const message_tag = (base.Pair{ .src = 0, .dst = 1 }).tag(0);
    var decisions: u64 = 0;
    var taken: u64 = 0;
    for (0..24) |_| { // 12 s
        for (0..200) |_| {
            for (0..2) |index| {
                var said = court.vote(0, decisions);
                said.op = .{ .tag = message_tag, .sequence = decisions };
                said.descriptor.kind = .send_recv;
                try court.say(index, .{ .done = said });
            }
            decisions += 1;
        }
        const before = court.peers[2].?.stream.sent_bytes;
        try pass_thin(&court, 500 * ms, 2, thin_bytes);
        try expect(court.peers[2] != null);
        taken += court.peers[2].?.stream.sent_bytes - before;
        // It says what it has seen as it reads on; each has less than so many bytes.
        try court.say_seen(2, @min(decisions, taken / 128));
    }
    try expectEqual(decisions, court.group().current().?.decisions);
    try expect(court.peers[2].?.stream.out.length > 12 * thin_bytes); // more than the limit's worth
    // One that reads and says nothing of it goes after the silence limit.
    try pass_thin(&court, court.c.run.options.silence_ns + second, 2, all);
    try expectEqual(null, court.peers[2]);
    try court.expect_said("info peer 03000000 is gone: it does not say which decisions it has " ++
        "seen");
}

test "time in which the answer of a member lies unread at the coordinator is not its own" {
    var court: Court = undefined;
    try form_of_three(&court);
    defer court.c.destroy();
    try court.connect(3);
    try court.listen();
    for ([_]usize{ 0, 1, 3 }) |index| try court.prepare(index, court.round, true);
    const until = court.now + 2 * court.c.run.options.silence_ns;
    while (court.now < until) {
        try pass_thin(&court, second, 2, all);
        court.peers[2].?.peer.?.unread_until = court.now; // as when its vote waits (operation.zig)
    }
    try expectEqual(0b111, court.members_alive());
    try pass_thin(&court, court.c.run.options.silence_ns + second, 2, all);
    try expectEqual(null, court.peers[2]);
}

/// For a while this member takes, each half a second, all but what it was told last.
fn pass_late(court: *Court, duration_ns: u64, late: usize) !void {
    const until = court.now + duration_ns;
    while (court.now < until) {
        const stream = &court.peers[late].?.stream;
        try pass_thin(court, 500 * ms, late, stream.told_bytes() - stream.sent_bytes);
    }
}

/// Decisions that the others have seen, more than a member may leave unsaid.
fn decide(court: *Court) !void {
    const count = 2 * base.limits.decisions_untold_max;
    for (0..count) |each| try court.give_up(0, each);
    for (0..2) |index| try court.say_seen(index, count);
}

test "a member whose line always has something under way has its time once it is behind" {
    var court: Court = undefined;
    try form_of_three(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    try pass_late(&court, 13 * silence_ns, 2);
    try decide(&court);
    try pass_late(&court, silence_ns, 2);
    try expectEqual(0b111, court.members_alive());
    try pass_thin(&court, 2 * second, 2, all);
    try expectEqual(null, court.peers[2]);
}

test "a member that comes back has its time from when it has been told what it missed" {
    var court: Court = undefined;
    try form_of_three(&court);
    defer court.c.destroy();
    const silence_ns = court.c.run.options.silence_ns;
    court.hang_up(2);
    try decide(&court);
    try court.pass(second);
    try court.listen();
    try court.come_back(2, 1);
    try court.say(2, .{ .join_end = .{} });
    try pass_thin(&court, 2 * silence_ns, 2, 10);
    try expectEqual(0b111, court.members_alive());
    try pass_thin(&court, silence_ns + second, 2, all);
    try expectEqual(null, court.peers[2]);
}

// ---- calls that need all members
//
// Calls that need every member of the epoch (recovery complete), and calls that a member has left
// behind unmade: what the coordinator takes from members that lie, and what a member says. The
// rules: attempt.zig, member.zig, debt.zig; in a world: tests/sim/scenarios (complete,
// complete_to_one_then_both_lost, passed_without_a_call).

const lost = 2;

/// A member has left, and the others have gone on.
fn lose_one(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.say(lost, .{ .leave = .{ .group = 0 } });
    try court.listen();
    for (0..lost) |index| try court.report_end(index);
    try court.listen();
}

test "members that only fail such calls while one is lost tell nobody" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    try fail_alone(&w, 5000);
    try expectEqual(0, w.gave_up);
    try expectEqual(0, w.called);
}

test "before its next vote a member says which such calls have failed" {
    // Found by: pccl-sim, seeds 336216 and 329713: others had called the same with another
    // recovery, and succeeded when it was gone.
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    const resumed: control.Resume = .{ .group = 0, .epoch = 1, .attempt = 2 };
    try w.member.on_resume(&resumed);
    try fail_alone(&w, base.limits.failed_alone_max + 1);
    try expectEqual(0, w.gave_up);
    var op: Op = undefined;
    try expectEqual(null, try w.call(&op, tag + 1));
    w.member.completed(&op, 9);
    try expectEqual(base.limits.failed_alone_max, w.gave_up);
    // Once, unless the connection is lost.
    try w.view(3, .full(2));
    try expectEqual(base.limits.failed_alone_max, w.gave_up);
    for (0..base.limits.failed_alone_max) |sequence| try w.abort(1, tag, sequence, 1 + sequence);
    // Before a report.
    w.gave_up = 0;
    try w.resume_op(3, op.id);
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 3 });
    try fail_alone(&w, 2);
    try w.view(4, .full(2));
    try expectEqual(2, w.gave_up);
    w.member.disconnected();
    w.member.present();
    try expectEqual(4, w.gave_up);
}

test "a member that hears first that such a call has failed elsewhere knows why" {
    var w: Witness = undefined;
    try w.init();
    defer w.member.deinit();
    w.member.welcomed(0);
    try w.view(2, .full(2));
    try w.member.on_resume(&.{ .group = 0, .epoch = 1, .attempt = 2 });
    try w.abort(2, tag, 0, 1);
    try w.abort(2, tag, 1, 2);
    try fail_alone(&w, 1);
    var op: Op = undefined;
    try expectEqual(.cancelled, (try w.call(&op, tag)).?.reason); // one that needs fewer
    try expectEqual(0, w.gave_up);
}

/// Calls that need every member.
fn fail_alone(w: *Witness, count: usize) !void {
    for (0..count) |_| {
        var op: Op = .{ .descriptor = court_file.descriptor, .chunks = 1 };
        op.descriptor.recovery = .complete;
        try w.member.check_start(tag);
        w.failure = null;
        w.member.start(&op, tag);
        try expectEqual(.aborted, w.failure.?.status);
        try expectEqual(.peer_lost, w.failure.?.reason);
        try expect(w.failure.?.peer.eql(.from_int(3)));
    }
}

test "nobody may say that such a call lacks a member" {
    var court: Court = undefined;
    try lose_one(&court);
    defer court.c.destroy();
    try court.say(0, .{ .gave_up = .{
        .group = 0,
        .epoch = court.epoch,
        .op = .{ .tag = tag, .sequence = 0 },
        .reason = .peer_lost,
    } });
    try expectEqual(null, court.peers[0]);
    try expect(court.peers[1] != null);
}

test "votes of all others do not commit such a call without the lost" {
    var court: Court = undefined;
    try lose_one(&court);
    defer court.c.destroy();
    for (0..lost) |index| {
        var said = court.vote(tag, 0);
        said.descriptor.recovery = .complete;
        try court.say(index, .{ .done = said });
    }
    try court.listen();
    for (0..lost) |index| try expectEqual(1, court.aborts[index]);
    try expectEqual(.peer_lost, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(lost)));
}

// ---- calls that a member has passed by

/// The next epoch has begun, with a newcomer; nobody has entered it.
fn begin_next(court: *Court) !void {
    try court.init(gpa);
    errdefer court.c.destroy();
    try court.form();
    try court.connect(peers_max);
    try court.next_round();
    for (0..peers_max + 1) |index| try court.prepare(index, court.round, true);
    for (0..peers_max) |index| try court.say(index, .{ .safe_points = .{
        .group = 0,
        .round = court.round,
        .count = 1,
    } });
    try court.listen();
    try expectEqual(2, court.epoch);
}

fn close_first(court: *Court, index: usize) !void {
    try court.say(index, .{ .epoch_closed = .{ .group = 0, .epoch = 1 } });
}

test "a member that has not entered the next epoch closes none" {
    var court: Court = undefined;
    try begin_next(&court);
    defer court.c.destroy();
    try court.enter(0);
    try close_first(&court, 0);
    try expect(court.peers[0] != null);
    try close_first(&court, 1);
    try expectEqual(null, court.peers[1]);
}

test "calls that a member has passed by are ended up to a bound" {
    var court: Court = undefined;
    try begin_next(&court);
    defer court.c.destroy();
    try court.enter(0);
    try close_first(&court, 0);
    const at_once = base.limits.operations_in_flight_max;
    const most = base.limits.decisions_kept_max;
    for (0..most / at_once + 2) |round| {
        const first: u64 = @min(round, most / at_once);
        for (0..at_once) |number| try court.say(1, .{ .called = .{
            .group = 0,
            .epoch = 1,
            .attempt = 1,
            .op = .{ .tag = first * at_once + number, .sequence = 0 },
            .descriptor = court_file.descriptor,
            .left_ns = std.math.maxInt(u64),
        } });
        court.c.tick(court.now);
        try court.listen();
    }
    try expectEqual(most, court.aborts[1]);
    try expectEqual(.passed, court.last_abort.?.reason);
    try expect(court.last_abort.?.peer.eql(id_of(0)));
    try expect(court.last_abort.?.other.eql(id_of(1)));
    try expect(court.peers[1] != null);
    // Calls that wait are no error of the coordinator.
    const said = court.said[0..court.said_bytes];
    try expectEqual(null, std.mem.indexOf(u8, said, "Unexpected"));
}
