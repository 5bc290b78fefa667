//! Scenario: a world that follows a transcript instead of draws. One directive per line says what
//! users and the network do, and what must then be true; the checkers run as ever. Every bug that a
//! seed finds leaves a transcript behind in scenarios/, because seeds die with the next change of
//! the code. The language: docs/internals/SIMULATOR.md.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const session_layer = @import("session");
const Borrowed = @import("borrowed.zig").Borrowed;
const Config = @import("swarm.zig").Config;
const Statistics = @import("statistics.zig").Statistics;
const Trace = @import("trace.zig").Trace;
const calls = @import("calls.zig");
const checkers_file = @import("checkers.zig");
const copies = @import("copies.zig");
const faults = @import("faults.zig");
const program = @import("program.zig");
const splits = @import("splits.zig");
const users = @import("users.zig");
const insider = @import("insider.zig");
const stranger = @import("stranger.zig");
const wire = @import("wire");
const world_file = @import("world.zig");
const Message = wire.control.Message;
const World = world_file.World;
const ms = world_file.ms;

pub const all = .{
    "abort_retold_halfway",
    "activate_lost_across_two_restarts",
    "activate_reaches_one",
    "barrier",
    "broadcast_root_lost",
    "called_by_the_lost_alone",
    "seen_without_a_decision",
    "closed_links_told_again",
    "codecs_through_a_hub",
    "commit_known_by_one",
    "commit_to_one_then_both_lost",
    "coordinator_frozen",
    "coordinator_isolated",
    "cut_inside_an_operation",
    "cut_two_at_one_peer",
    "cut_the_only_link",
    "cut_of_three",
    "coordinator_never_answers",
    "coordinator_restarts_in_a_round",
    "credit_overtakes_open",
    "deadline_after_the_vote",
    "decided_before_the_call",
    "dies_inside_an_encoded_sum",
    "dies_inside_bits",
    "dies_writing_a_removal",
    "dies_writing_an_activation",
    "doubt_about_a_private_result",
    "doubt_then_expelled",
    "doubt_while_the_coordinator_is_away",
    "empty_shard_of_two_sizes",
    "expelled_in_doubt",
    "give_up_before_all_are_back",
    "frames_of_a_passed_attempt",
    "give_up_races_done",
    "gives_up_while_nobody_hears",
    "groups_of_newcomers_that_go",
    "half_open_lane",
    "hears_no_coordinator",
    "holder_lost_after_its_report",
    "join_during_operation",
    "journal_damaged_after_compaction",
    "journal_flipped",
    "lane_reset",
    "last_one_leaves_in_a_round",
    "link_expires_inside_a_sync",
    "late_vote_of_an_older_attempt",
    "leave",
    "leave_before_the_answer",
    "left_while_it_came_back",
    "left_while_the_coordinator_was_away",
    "lone_member_killed",
    "loss_during_recovery",
    "loss_in_the_next_epoch",
    "message",
    "message_link_down",
    "message_received_then_sender_lost",
    "message_receiver_lost",
    "message_sender_lost",
    "message_sent_while_nobody_hears",
    "message_third_lost",
    "mismatch",
    "mismatch_then_dies",
    "newcomer_behind_a_broken_link",
    "newcomer_never_prepared",
    "newcomer_refused",
    "newcomers_that_read_nothing",
    "newcomers_without_lanes",
    "one_never_calls",
    "one_never_calls_and_is_let_go",
    "one_way",
    "two_wait_for_each_other",
    "opposite_order",
    "passed_together",
    "passed_without_a_call",
    "passed_across_a_restart",
    "passed_together_across_a_restart",
    "peer_dies",
    "peers_that_never_join",
    "power_lost_after_a_restart",
    "complete",
    "complete_to_one_then_both_lost",
    "complete_beside_restart",
    "complete_told_before_the_next",
    "raise",
    "refused_across_a_restart",
    "restart",
    "root_dies_as_ranks_shift",
    "root_without_a_result",
    "rules_of_a_state",
    "sender_beside_a_newcomer",
    "a_latecomer_of_a_high_revision",
    "sender_dies_in_a_frame",
    "statuses_keep_nobody_out",
    "sub_groups",
    "sub_groups_across_a_restart",
    "structures_asked_in_a_passed_attempt",
    "votes_for_a_private_result",
    "withdrawn_unheard",
    "a_member_that_never_reports",
    "a_member_that_never_votes",
    "a_stranger_at_every_door",
    "an_insider_far_ahead",
    "an_insider_that_never_votes",
    "sync_lane_reset",
    "copies_cross_an_attempt",
    "world_of_64",
    "world_of_128",
    "world_of_512",
};

pub fn text_of(comptime name: []const u8) []const u8 {
    return @embedFile("scenarios/" ++ name ++ ".txt");
}

/// A transcript by its name; null: there is none.
pub fn find(wanted: []const u8) ?[]const u8 {
    inline for (all) |name| if (std.mem.eql(u8, name, wanted)) return text_of(name);
    return null;
}

const Error = error{ Syntax, Failed, OutOfMemory };

const labels_max = 32;

const Script = struct {
    world: *World,
    gpa: std.mem.Allocator,
    started: bool = false,
    peers: world_file.NodeIndex = 0,
    labels: [labels_max][]const u8 = undefined,
    label_count: u32 = 0,
    /// By label and node.
    works: [labels_max][]?*calls.Work = @splat(&.{}),
    /// How often all of a label was called: it is another operation each time.
    turns: [labels_max]u32 = @splat(0),
    line: usize = 0,
    why_bytes: [300]u8 = undefined,
    why: []const u8 = "",

    fn fail(script: *Script, comptime format: []const u8, args: anytype) Error {
        script.why = std.fmt.bufPrint(&script.why_bytes, format, args) catch &script.why_bytes;
        return error.Failed;
    }

    fn syntax(script: *Script, word: []const u8) Error {
        script.why = std.fmt.bufPrint(
            &script.why_bytes,
            "does not understand \"{s}\"",
            .{word},
        ) catch
            &script.why_bytes;
        return error.Syntax;
    }
};

/// Runs a transcript from beginning to end. Returns null, or the line and what was wrong there.
pub fn run(gpa: std.mem.Allocator, text: []const u8, trace: Trace.Text) !?Failure {
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    var statistics: Statistics = .{};
    const world = try arena.allocator().create(World);
    var config = Config.plain();
    var segment_max: u32 = 4096;
    var lines = std.mem.splitScalar(u8, text, '\n');
    const skipped = try settings(&lines, &config, &segment_max);
    var borrowed = try Borrowed.init(gpa, @as(usize, config.processes_max()) << 16, 0);
    defer borrowed.deinit(gpa);
    world.init(.{
        .arena = arena.allocator(),
        .backing = gpa,
        .borrowed = &borrowed,
        .statistics = &statistics,
        .config = config,
        .text = trace,
        .scripted = true,
    });
    world.script_segment_max = segment_max;
    var script: Script = .{ .world = world, .gpa = arena.allocator(), .line = skipped };
    const outcome = follow(&script, &lines);
    if (outcome) |_| {
        world.checkers.check_atomicity();
    } else |_| {}
    world.deinit();
    outcome catch return Failure.init(script.line, script.why);
    if (world.checkers.violation) |*violation| {
        var buffer: [500]u8 = undefined;
        const why = std.fmt.bufPrint(
            &buffer,
            "{t}: {s}",
            .{ violation.check, violation.text() },
        ) catch
            &buffer;
        return Failure.init(script.line, why);
    }
    return null;
}

pub const Failure = struct {
    line: usize,
    bytes: [300]u8 = undefined,
    length: usize = 0,

    fn init(line: usize, text: []const u8) Failure {
        var failure: Failure = .{ .line = line };
        failure.length = @min(text.len, failure.bytes.len);
        @memcpy(failure.bytes[0..failure.length], text[0..failure.length]);
        return failure;
    }

    pub fn why(failure: *const Failure) []const u8 {
        return failure.bytes[0..failure.length];
    }
};

/// `set NAME VALUE` lines come before everything else, because a world cannot change its settings.
fn settings(
    lines: *std.mem.SplitIterator(u8, .scalar),
    config: *Config,
    segment_max: *u32,
) !usize {
    var count: usize = 0;
    while (true) {
        const before = lines.*;
        const line = lines.next() orelse return count;
        var words = std.mem.tokenizeAny(u8, line, " \t");
        const first = words.next() orelse "#";
        if (first[0] == '#') {
            count += 1;
            continue;
        }
        if (!std.mem.eql(u8, first, "set")) {
            lines.* = before;
            return count;
        }
        count += 1;
        const name = words.next() orelse return error.Syntax;
        const value = words.next() orelse return error.Syntax;
        const amount = try std.fmt.parseInt(u32, value, 10);
        if (std.mem.eql(u8, name, "has_journal")) {
            config.has_journal = amount > 0;
        } else if (std.mem.eql(u8, name, "lanes")) {
            config.lanes = @intCast(amount);
        } else if (std.mem.eql(u8, name, "chunk_bytes")) {
            config.chunk_bytes = amount;
        } else if (std.mem.eql(u8, name, "window_bytes")) {
            config.window_bytes = amount;
        } else if (std.mem.eql(u8, name, "min_world_size")) {
            config.min_world_size = @intCast(amount);
        } else if (std.mem.eql(u8, name, "stall_warning_ms")) {
            config.stall_warning_ns = @as(u64, amount) * std.time.ns_per_ms;
        } else if (std.mem.eql(u8, name, "stall_ms")) {
            config.stall_ns = @as(u64, amount) * std.time.ns_per_ms;
        } else if (std.mem.eql(u8, name, "heartbeat_ms")) {
            config.heartbeat_ns = @as(u64, amount) * std.time.ns_per_ms;
        } else if (std.mem.eql(u8, name, "silence_ms")) {
            config.silence_ns = @as(u64, amount) * std.time.ns_per_ms;
        } else if (std.mem.eql(u8, name, "prepare_ms")) {
            config.prepare_ns = @as(u64, amount) * std.time.ns_per_ms;
        } else if (std.mem.eql(u8, name, "peers_max")) {
            if (amount < 1 or amount > base.limits.peers_max) return error.Syntax;
            config.peers_max = @intCast(amount);
        } else if (std.mem.eql(u8, name, "segment_bytes")) {
            segment_max.* = amount;
        } else return error.Syntax;
    }
}

const Lines = std.mem.SplitIterator(u8, .scalar);

fn follow(script: *Script, lines: *Lines) Error!void {
    while (lines.next()) |line| {
        script.line += 1;
        var words = words_of(line);
        const verb = words.next() orelse continue;
        script.world.note("> {s}", .{std.mem.trim(u8, line, " ")});
        if (std.mem.eql(u8, verb, "repeat")) try repeat(script, &words, lines) //
        else try obey(script, verb, &words);
        if (script.world.checkers.violation) |*violation| {
            return script.fail("{t}: {s}", .{ violation.check, violation.text() });
        }
    }
}

/// Up to a comment.
fn words_of(line: []const u8) Words {
    const code = line[0 .. std.mem.indexOfScalar(u8, line, '#') orelse line.len];
    return std.mem.tokenizeAny(u8, code, " \t");
}

/// repeat N: the lines that follow and begin with a space, so many times.
fn repeat(script: *Script, words: *Words, lines: *Lines) Error!void {
    const times = try number(script, words);
    const first = lines.*;
    const line_before = script.line;
    for (0..times) |_| {
        lines.* = first;
        script.line = line_before;
        while (lines.peek()) |line| {
            if (!std.mem.startsWith(u8, line, " ")) break;
            _ = lines.next();
            script.line += 1;
            var inner = words_of(line);
            try obey(script, try take_word(script, &inner), &inner);
            if (script.world.failed()) return;
        }
    }
    if (script.line == line_before) return script.fail("repeat has no lines", .{});
}

const Words = std.mem.TokenIterator(u8, .any);

fn obey(script: *Script, verb: []const u8, words: *Words) Error!void {
    const world = script.world;
    const Verb = enum {
        peers,
        join,
        rejoin,
        admit,
        admit_together,
        found,
        call,
        cancel,
        crash,
        start,
        flip,
        lose,
        compact,
        claim,
        cut,
        freeze,
        leave,
        mend,
        reset,
        swallow,
        stall,
        sever,
        wall,
        insider,
        never,
        say,
        stranger,
        run,
        expect,
    };
    switch (std.meta.stringToEnum(Verb, verb) orelse return script.syntax(verb)) {
        .peers => try start_peers(script, try number(script, words)),
        .join => {
            script.peers += 1;
            world.config.initial_world_size = 1;
            _ = world.add_peer(0) orelse return script.fail("no more peers", .{});
        },
        .rejoin => {
            const user = try user_of(script, words);
            users.join(user);
            world.settle(user.node);
        },
        .admit => {
            var peers = try peer_list(script, words);
            while (peers.next()) |node| {
                users.admit(&node.users[0]);
                world.settle(node);
            }
        },
        .admit_together => {
            var peers = try peer_list(script, words);
            while (peers.next()) |node| {
                users.admit_together(&node.users[0]);
                world.settle(node);
            }
        },
        .found => try found_sub(script, words),
        .call => try call(script, words),
        .cancel => {
            const work = try work_of(script, words);
            calls.cancel(work);
        },
        .crash => try crash(script, words),
        .start => try start_coordinator(script, words),
        .flip => try flip(script, words),
        .lose => {
            try expect_word(script, words, "log");
            const node = &world.nodes[world_file.coordinator_index];
            if (node.state == .up) return script.fail("the coordinator is up", .{});
            world.disk.lose_end_of_log(0);
        },
        .compact => {
            try expect_word(script, words, "journal");
            const node = &world.nodes[world_file.coordinator_index];
            if (node.state != .up) return script.fail("the coordinator is down", .{});
            world.coordinator.run.journal_due = true; // at its next tick
        },
        .claim => try claim(script, words),
        .sever => try sever(script, words),
        // The first cannot dial the second, which may have to start yet.
        .wall => try world.walls.append(script.gpa, .{
            @intCast(try number(script, words)),
            @intCast(try number(script, words)),
        }),
        .insider => insider.mark(world, (try user_of(script, words)).node),
        .never => {
            const text = try take_word(script, words);
            const kind = std.meta.stringToEnum(std.meta.Tag(Message), text) orelse
                return script.syntax(text);
            const insiders = if (world.insiders) |*all_of_them| all_of_them else //
                return script.fail("nobody is an insider", .{});
            insiders.never.insert(kind);
        },
        .say => try say(script, words),
        .stranger => try strangers(script, words),
        .mend => {
            const a = (try any_node_of(script, words)).index;
            const b = (try any_node_of(script, words)).index;
            var deaf = world.deafness.items.len;
            while (deaf > 0) {
                deaf -= 1;
                const item = world.deafness.items[deaf];
                const same = (item.from == a and item.to == b) or (item.from == b and item.to == a);
                if (same) _ = world.deafness.swapRemove(deaf);
            }
            var index = world.pair_cuts.items.len;
            while (index > 0) {
                index -= 1;
                const nodes = world.pair_cuts.items[index].nodes;
                const same = (nodes[0] == a and nodes[1] == b) or (nodes[0] == b and nodes[1] == a);
                if (same) _ = world.pair_cuts.swapRemove(index);
            }
        },
        .freeze => {
            const node = try any_node_of(script, words);
            faults.freeze_for(world, node, try duration_after(script, words, "for"));
        },
        .leave => users.leave(try user_of(script, words)),
        .reset => try reset(script, words),
        .swallow, .stall => try impede(script, verb, words),
        .cut => try cut(script, words),
        .run => try run_directive(script, words),
        .expect => try expect(script, words),
    }
}

// ---- words

fn take_word(script: *Script, words: *Words) Error![]const u8 {
    return words.next() orelse script.syntax("end of line");
}

fn number(script: *Script, words: *Words) Error!u32 {
    const text = try take_word(script, words);
    return std.fmt.parseInt(u32, text, 10) catch script.syntax(text);
}

/// "20ms" or "3s".
fn duration(script: *Script, words: *Words) Error!u64 {
    return duration_of(script, try take_word(script, words));
}

fn duration_of(script: *Script, text: []const u8) Error!u64 {
    if (std.mem.endsWith(u8, text, "us")) {
        return 1000 * (std.fmt.parseInt(
            u64,
            text[0 .. text.len - 2],
            10,
        ) catch return script.syntax(text));
    }
    if (std.mem.endsWith(u8, text, "ms")) {
        return ms * (std.fmt.parseInt(
            u64,
            text[0 .. text.len - 2],
            10,
        ) catch return script.syntax(text));
    }
    if (!std.mem.endsWith(u8, text, "s")) return script.syntax(text);
    return 1000 * ms * (std.fmt.parseInt(u64, text[0 .. text.len - 1], 10) catch
        return script.syntax(text));
}

fn node_of(script: *Script, text: []const u8) Error!*world_file.Node {
    const index = std.fmt.parseInt(world_file.NodeIndex, text, 10) catch
        return script.syntax(text);
    if (index < 1 or index > script.peers) return script.syntax(text);
    return &script.world.nodes[index];
}

/// A peer, or "coordinator".
fn any_node_of(script: *Script, words: *Words) Error!*world_file.Node {
    const text = try take_word(script, words);
    if (!std.mem.eql(u8, text, "coordinator")) return node_of(script, text);
    return &script.world.nodes[world_file.coordinator_index];
}

fn expect_word(script: *Script, words: *Words, wanted: []const u8) Error!void {
    const text = try take_word(script, words);
    if (!std.mem.eql(u8, text, wanted)) return script.syntax(text);
}

/// "for 20ms"
fn duration_after(script: *Script, words: *Words, wanted: []const u8) Error!u64 {
    try expect_word(script, words, wanted);
    return duration(script, words);
}

fn user_of(script: *Script, words: *Words) Error!*users.User {
    const node = try node_of(script, try take_word(script, words));
    return &node.users[0];
}

const PeerList = struct {
    script: *Script,
    everybody: bool,
    parts: std.mem.SplitIterator(u8, .scalar),
    /// In `everybody`, or in a part such as 3-9.
    next_index: world_file.NodeIndex = 1,
    last_index: world_file.NodeIndex = 0,
    bad: bool = false,

    fn next(list: *PeerList) ?*world_file.Node {
        const world = list.script.world;
        if (!list.everybody) {
            if (list.next_index > list.last_index) list.next_part() catch {
                list.bad = true;
                return null;
            };
            if (list.next_index > list.last_index) return null;
            defer list.next_index += 1;
            return &world.nodes[list.next_index];
        }
        while (list.next_index <= list.script.peers) {
            const node = &world.nodes[list.next_index];
            list.next_index += 1;
            if (node.state == .up) return node;
        }
        return null;
    }

    fn next_part(list: *PeerList) Error!void {
        const part = list.parts.next() orelse return;
        const dash = std.mem.indexOfScalar(u8, part, '-');
        const last = if (dash) |place| part[place + 1 ..] else part;
        list.next_index = (try node_of(list.script, part[0 .. dash orelse part.len])).index;
        list.last_index = (try node_of(list.script, last)).index;
    }
};

/// "all" (who is up) or "1,2,3" or "1-32,40".
fn peer_list(script: *Script, words: *Words) Error!PeerList {
    const text = try take_word(script, words);
    return .{
        .script = script,
        .everybody = std.mem.eql(u8, text, "all"),
        .parts = std.mem.splitScalar(u8, text, ','),
    };
}

fn label_of(script: *Script, text: []const u8) Error!u32 {
    for (script.labels[0..script.label_count], 0..) |known, index| {
        if (std.mem.eql(u8, known, text)) return @intCast(index);
    }
    if (script.label_count == labels_max) return script.fail("too many labels", .{});
    script.labels[script.label_count] = text;
    const works = try script.gpa.alloc(?*calls.Work, script.world.nodes.len);
    @memset(works, null);
    script.works[script.label_count] = works;
    script.label_count += 1;
    return script.label_count - 1;
}

/// "LABEL PEER"
fn work_of(script: *Script, words: *Words) Error!*calls.Work {
    const label = try take_word(script, words);
    const node = try node_of(script, try take_word(script, words));
    return script.works[try label_of(script, label)][node.index] orelse
        script.fail("p{d} has not called {s}", .{ node.index, label });
}

// ---- what happens

/// "PEERS NAME FOUNDERS": these ask for a sub-group of those, in that order.
fn found_sub(script: *Script, words: *Words) Error!void {
    var peers = try peer_list(script, words);
    const name = try take_word(script, words);
    var founders: std.ArrayList(base.PeerId) = .empty;
    var listed = try peer_list(script, words);
    while (listed.next()) |node| try founders.append(script.gpa, node.id);
    while (peers.next()) |node| {
        splits.found_scripted(&node.users[0], name, founders.items) catch |err|
            return script.fail("p{d} cannot ask for {s}: {t}", .{ node.index, name, err });
        script.world.settle(node);
    }
}

/// "PEERS FOUNDERS|none": the members of the sub-group that these are in.
fn expect_sub(script: *Script, words: *Words) Error!void {
    var peers = try peer_list(script, words);
    const rest = words.rest();
    while (peers.next()) |node| {
        const sub = &node.users[0].sub;
        const members = if (sub.state == .inside) sub.group.?.members() else &.{};
        var again = words_of(rest);
        if (std.mem.eql(u8, std.mem.trim(u8, rest, " "), "none")) {
            if (members.len == 0) continue;
            return script.fail("p{d} is in a sub-group", .{node.index});
        }
        var wanted = try peer_list(script, &again);
        var rank: usize = 0;
        while (wanted.next()) |other| : (rank += 1) {
            if (rank < members.len and members[rank].eql(other.id)) continue;
            return script.fail("p{d} has not p{d} as rank {d}, of {d}", .{
                node.index, other.index, rank, members.len,
            });
        }
        if (rank != members.len)
            return script.fail("p{d} is one of {d}", .{ node.index, members.len });
    }
}

/// N peers that have all entered the first epoch, with ranks in their order.
fn start_peers(script: *Script, count: u32) Error!void {
    const world = script.world;
    const most = world.nodes.len - 1;
    if (script.started or count < 1 or count > most)
        return script.fail("peers: once, 1 to {d}", .{most});
    script.started = true;
    script.peers = @intCast(count);
    world.config.initial_world_size = @intCast(count);
    for (0..count) |_| _ = world.add_peer(0);
    try run_until(script, 5000 * ms, .all_between);
    for (world.nodes[1 .. 1 + count]) |*node| {
        users.admit(&node.users[0]);
        world.settle(node);
    }
    try run_until(script, 5000 * ms, .all_between);
    for (world.nodes[1 .. 1 + count]) |*node| {
        const group = node.users[0].group orelse
            return script.fail("p{d} is in no group", .{node.index});
        if (group.world_size() != count) {
            return script.fail("p{d} is in a world of {d}", .{ node.index, group.world_size() });
        }
    }
}

/// call PEERS KIND COUNT LABEL [tag=T] [recovery=R] [deadline=D] [root=RANK] [src=RANK] [dst=RANK]
/// [in_place] [average] [uneven] [bits=OP] [plan=P]
/// [codec=K|feedback=K]: of f32, whose losses are carried on or not
/// [strategy=S] [revision=N] [rules=RULE+RULE]: of a sync
fn call(script: *Script, words: *Words) Error!void {
    var peers = try peer_list(script, words);
    const kind_text = try take_word(script, words);
    const kind = std.meta.stringToEnum(program.OpKind, kind_text) orelse
        return script.syntax(kind_text);
    const count = try number(script, words);
    const label = try label_of(script, try take_word(script, words));
    var step: program.Step = .{
        .key = .{ .group = 0, .epoch = 0, .round = label, .index = 0 },
        .kind = kind,
        .count = count,
        .recovery = .resume_chunks,
        .tag = 0,
        .root_rank = 0,
        .in_place = false,
        .average = false,
        .plan = .ring,
        .batch = 0,
        .waits = false,
    };
    var deadline_ns: u64 = 60_000 * ms;
    var src: u16 = 0;
    var dst: u16 = 1;
    var sync: SyncOptions = .{};
    while (words.next()) |option| {
        const equals = std.mem.indexOfScalar(u8, option, '=') orelse option.len;
        const name = option[0..equals];
        const value = option[@min(equals + 1, option.len)..];
        if (std.mem.eql(u8, name, "in_place")) {
            step.in_place = true;
        } else if (std.mem.eql(u8, name, "uneven")) {
            step.uneven = true;
        } else if (std.mem.eql(u8, name, "average")) {
            step.average = true;
        } else if (std.mem.eql(u8, name, "bits")) {
            step.bits = std.meta.stringToEnum(base.ReduceOp, value) orelse
                return script.syntax(option);
            if (!step.bits.?.is_bitwise()) return script.syntax(option);
        } else if (std.mem.eql(u8, name, "tag")) {
            step.tag = std.fmt.parseInt(u64, value, 10) catch return script.syntax(option);
        } else if (std.mem.eql(u8, name, "root")) {
            step.root_rank = std.fmt.parseInt(u32, value, 10) catch return script.syntax(option);
        } else if (std.mem.eql(u8, name, "src")) {
            src = std.fmt.parseInt(u16, value, 10) catch return script.syntax(option);
        } else if (std.mem.eql(u8, name, "dst")) {
            dst = std.fmt.parseInt(u16, value, 10) catch return script.syntax(option);
        } else if (std.mem.eql(u8, name, "deadline")) {
            deadline_ns = try duration_of(script, value);
        } else if (std.mem.eql(u8, name, "plan")) {
            step.plan = std.meta.stringToEnum(base.Plan, value) orelse return script.syntax(option);
        } else if (std.mem.eql(u8, name, "codec") or std.mem.eql(u8, name, "feedback")) {
            const kind_of = std.meta.stringToEnum(base.codec.Kind, value) orelse
                return script.syntax(option);
            step.floats = .{ .codec = .of(kind_of), .feedback = name.len == "feedback".len };
        } else if (std.mem.eql(u8, name, "recovery")) {
            step.recovery = if (std.mem.eql(u8, value, "resume"))
                .resume_chunks
            else
                std.meta.stringToEnum(program.Recovery, value) orelse return script.syntax(option);
        } else if (!sync.take(name, value)) return script.syntax(option);
    }
    if (kind == .send_recv) {
        const pair: base.Pair = .{ .src = src, .dst = dst };
        step.pair = pair;
        step.tag = pair.tag(step.tag);
    }
    if (step.floats != null and count > program.floats_max) return script.fail(
        "at most {d} floats",
        .{program.floats_max},
    );
    while (peers.next()) |node| {
        if (script.works[label][node.index]) |before| if (is_over(before)) {
            script.turns[label] += 1;
            @memset(script.works[label], null);
        };
        step.key.round = label + labels_max * script.turns[label];
        const user = &node.users[0];
        const deadline = node.here() + deadline_ns;
        const work = calls.lend(user, step, deadline, true) orelse
            return script.fail("no more memory to lend", .{});
        script.works[label][node.index] = work;
        work.strategy, work.revision, work.rules = .{ sync.strategy, sync.revision, sync.rules };
        calls.call(work) catch |err| return script.fail(
            "p{d} cannot call: {t}",
            .{ node.index, err },
        );
        script.world.settle(node);
    }
    if (peers.bad) return script.syntax("peers");
}

const SyncOptions = struct {
    strategy: wire.control.Strategy = .popular,
    revision: ?u64 = null,
    rules: wire.control.StateRules = .{},

    /// False: it is none.
    fn take(options: *SyncOptions, name: []const u8, value: []const u8) bool {
        if (std.mem.eql(u8, name, "strategy")) {
            options.strategy = std.meta.stringToEnum(wire.control.Strategy, value) orelse
                return false;
        } else if (std.mem.eql(u8, name, "revision")) {
            options.revision = std.fmt.parseInt(u64, value, 10) catch return false;
        } else if (std.mem.eql(u8, name, "rules")) {
            var it = std.mem.splitScalar(u8, value, '+');
            while (it.next()) |word| if (!options.rule(word)) return false;
        } else return false;
        return true;
    }

    fn rule(options: *SyncOptions, word: []const u8) bool {
        inline for (std.meta.fields(wire.control.StateRules)) |field| {
            if (std.mem.eql(u8, word, field.name)) {
                @field(options.rules, field.name) = true;
                return true;
            }
        }
        return false;
    }
};

/// crash PEER [killed|reset|vanished] [at POINT [CHUNKS]]
/// crash PEER after BYTES PEER: when so many bytes have passed between the two, in either direction
/// crash coordinator [killed|reset|vanished] | in write N
fn crash(script: *Script, words: *Words) Error!void {
    const node = try any_node_of(script, words);
    var how: world_file.EndOfNode = .killed;
    var next = words.next();
    if (next) |text| if (std.meta.stringToEnum(world_file.EndOfNode, text)) |given| {
        how = given;
        next = words.next();
    };
    if (node.index == world_file.coordinator_index) {
        return crash_coordinator(script, words, how, next);
    }
    const at = next orelse return script.world.take_down(node, how);
    if (std.mem.eql(u8, at, "after")) {
        const bytes = try number(script, words);
        const other = (try user_of(script, words)).node.index;
        return script.world.cuts.append(script.gpa, .{
            .nodes = .{ node.index, other },
            .bytes = bytes,
            .dies = true,
        });
    }
    if (!std.mem.eql(u8, at, "at")) return script.syntax(at);
    const point_text = try take_word(script, words);
    var name_bytes: [64]u8 = undefined;
    const name = std.fmt.bufPrint(&name_bytes, "operation_{s}", .{point_text}) catch
        return script.syntax(point_text);
    const point = std.meta.stringToEnum(session_layer.FaultPoint, name) orelse
        return script.syntax(point_text);
    const done = if (words.next()) |text|
        std.fmt.parseInt(u64, text, 10) catch return script.syntax(text)
    else
        0;
    try script.world.traps.append(script.gpa, .{
        .node = node.index,
        .point = point,
        .done = done,
        .how = how,
    });
}

/// It stays away until it is started again.
fn crash_coordinator(
    script: *Script,
    words: *Words,
    how: world_file.EndOfNode,
    next: ?[]const u8,
) Error!void {
    const in = next orelse return script.world.take_down_coordinator(how, null);
    if (!std.mem.eql(u8, in, "in")) return script.syntax(in);
    try expect_word(script, words, "write");
    const write = try number(script, words);
    if (write == 0) return script.syntax("0");
    script.world.disk.dies_after = write - 1;
}

/// start coordinator [refused]: it goes on with its journal, or says that it cannot.
fn start_coordinator(script: *Script, words: *Words) Error!void {
    const world = script.world;
    try expect_word(script, words, "coordinator");
    const refused = words.next() != null;
    if (world.nodes[world_file.coordinator_index].state == .up) {
        return script.fail("the coordinator is up", .{});
    }
    world.open_coordinator() catch |err| {
        world.note("the coordinator does not start: {t}", .{err});
        return if (refused) {} else script.fail("the coordinator does not start: {t}", .{err});
    };
    if (refused) return script.fail("the coordinator has started", .{});
}

/// flip journal OFFSET: one bit of that byte. The second time mends it.
fn flip(script: *Script, words: *Words) Error!void {
    try expect_word(script, words, "journal");
    const offset = try number(script, words);
    const bytes = script.world.disk.bytes.items;
    if (offset >= bytes.len) return script.fail("it has {d} bytes", .{bytes.len});
    bytes[offset] ^= 0x10;
}

/// claim LABEL PEER: when a coordinator has started again, this peer will say that it has seen a
/// decision on its call, which is a lie.
fn claim(script: *Script, words: *Words) Error!void {
    const work = try work_of(script, words);
    const node = work.node;
    const group = node.users[0].group orelse return script.fail("p{d} is gone", .{node.index});
    const op = &(work.op orelse return script.fail("its call has returned", .{})).op;
    group.member.epoch_of(op.epoch).?.decisions_seen += 1;
}

/// say PEER KIND [FIELD=VALUE ...]: an insider tells the coordinator this, besides what its engine
/// says. Fields are numbers, names of enumerations, `peer2` for an id, and those of a struct within
/// it after a dot; group, epoch and attempt are its own where they are not given, the rest zero.
fn say(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const node = (try user_of(script, words)).node;
    if (!node.is_insider) return script.fail("p{d} is no insider", .{node.index});
    const text = try take_word(script, words);
    const kind = std.meta.stringToEnum(std.meta.Tag(Message), text) orelse
        return script.syntax(text);
    var bytes: [4096]u8 = undefined;
    switch (kind) {
        inline else => |tag| {
            var body = zero(@FieldType(Message, @tagName(tag)));
            const group = node.users[0].group;
            inline for (.{ "group", "epoch", "attempt" }) |name| {
                if (@hasField(@TypeOf(body), name)) if (group) |g| {
                    @field(body, name) = if (comptime std.mem.eql(u8, name, "group"))
                        g.id orelse 0
                    else
                        @intCast(@field(session_layer.Group, name)(g));
                };
            }
            while (words.next()) |word| {
                const equals = std.mem.indexOfScalar(u8, word, '=') orelse
                    return script.syntax(word);
                try set_field(script, &body, word[0..equals], word[equals + 1 ..]);
            }
            const message = @unionInit(Message, @tagName(tag), body);
            const encoded = wire.control.encode(message, &bytes) catch
                return script.fail("it is too long", .{});
            insider.say_besides(world, node, encoded) catch
                return script.fail("p{d} has no coordinator", .{node.index});
        },
    }
}

/// All zero, and the first of enumerations.
fn zero(comptime T: type) T {
    switch (@typeInfo(T)) {
        .int => return 0,
        .bool => return false,
        .@"enum" => |info| return @field(T, info.fields[0].name),
        .array => |info| return @splat(zero(info.child)),
        .@"struct" => |info| {
            if (@hasDecl(T, "is_wire_bytes") or @hasDecl(T, "wire_item")) return .{};
            var body: T = undefined;
            inline for (info.fields) |field| @field(body, field.name) = zero(field.type);
            return body;
        },
        else => comptime unreachable,
    }
}

fn set_field(script: *Script, body: anytype, name: []const u8, text: []const u8) Error!void {
    const dot = std.mem.indexOfScalar(u8, name, '.');
    const first = name[0 .. dot orelse name.len];
    inline for (@typeInfo(@TypeOf(body.*)).@"struct".fields) |field| {
        if (std.mem.eql(u8, field.name, first)) {
            const value = &@field(body, field.name);
            if (dot) |at| {
                const is_plain = @typeInfo(field.type) == .@"struct";
                if (!is_plain) return script.syntax(name);
                return set_field(script, value, name[at + 1 ..], text);
            }
            return set_value(script, field.type, value, text);
        }
    }
    return script.syntax(name);
}

fn set_value(script: *Script, comptime T: type, value: *T, text: []const u8) Error!void {
    if (T == base.PeerId) {
        if (!std.mem.startsWith(u8, text, "peer")) return script.syntax(text);
        value.* = (try node_of(script, text[4..])).id;
        return;
    }
    switch (@typeInfo(T)) {
        .int => value.* = std.fmt.parseInt(T, text, 0) catch return script.syntax(text),
        .bool => value.* = std.mem.eql(u8, text, "true"),
        .@"enum" => value.* = std.meta.stringToEnum(T, text) orelse return script.syntax(text),
        else => return script.syntax(text),
    }
}

/// stranger WORDS NODE [MANNER] [times N]: so many connect to it and say this (stranger.zig).
/// stranger gone [N]: all hang up, or those that came first.
fn strangers(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const text = try take_word(script, words);
    if (std.mem.eql(u8, text, "gone")) return stranger.hang_up(
        world,
        if (words.peek() == null) std.math.maxInt(u32) else try number(script, words),
    );
    const said = std.meta.stringToEnum(stranger.Words, text) orelse return script.syntax(text);
    const node = try any_node_of(script, words);
    var manner: stranger.Manner = .stays;
    var times: u32 = 1;
    while (words.next()) |word| {
        if (std.mem.eql(u8, word, "times")) {
            times = try number(script, words);
        } else manner = std.meta.stringToEnum(stranger.Manner, word) orelse
            return script.syntax(word);
    }
    const prng = world.faults.stream(.strangers);
    for (0..times) |_| stranger.call_on(world, prng, node.index, said, manner);
}

/// sever PEER PEER [silently]: they cannot reach each other any more; lanes that they have are
/// reset, or deliver nothing.
fn sever(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const a = (try user_of(script, words)).node.index;
    const b = (try user_of(script, words)).node.index;
    const silently = if (words.next()) |text|
        std.mem.eql(u8, text, "silently") or return script.syntax(text)
    else
        false;
    try world.pair_cuts.append(script.gpa, .{ .nodes = .{ a, b }, .until = base.never });
    faults.break_lanes(world, .{ a, b }, silently);
}

/// reset A B [after BYTES]: all connections between the two, or one of their lanes once so many
/// bytes have passed.
fn reset(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const a = (try any_node_of(script, words)).index;
    const b = (try any_node_of(script, words)).index;
    if (words.next()) |text| {
        if (!std.mem.eql(u8, text, "after")) return script.syntax(text);
        const bytes = try number(script, words);
        return world.cuts.append(script.gpa, .{ .nodes = .{ a, b }, .bytes = bytes });
    }
    var any = false;
    for (world.connections.items) |connection| {
        if (connection.ends[0].state != .open) continue;
        const from, const to = .{ connection.ends[0].node, connection.ends[1].node };
        if (!(from == a and to == b) and !(from == b and to == a)) continue;
        world.reset(connection);
        any = true;
    }
    if (!any) return script.fail("nothing connects {d} and {d}", .{ a, b });
}

/// swallow A B [always]: what the first sends to the second vanishes from now on, on the
/// connections that they have, or on all to come as well. stall A B [lane N] for D: it arrives only
/// after that; N: of the lanes that both ends have, in the order in which they were dialed.
fn impede(script: *Script, verb: []const u8, words: *Words) Error!void {
    const world = script.world;
    const from = (try any_node_of(script, words)).index;
    const to = (try any_node_of(script, words)).index;
    const stalls = std.mem.eql(u8, verb, "stall");
    const lane = if (stalls) try lane_number(script, words) else null;
    const until = world.now + if (stalls) try duration_after(script, words, "for") else 0;
    if (!stalls) if (words.next()) |text| {
        if (!std.mem.eql(u8, text, "always")) return script.syntax(text);
        return faults.deafen(world, from, to, base.never);
    };
    var any = false;
    var number_of_lane: u32 = 0;
    for (world.connections.items) |connection| {
        for (&connection.ends, 0..) |*end, side| {
            if (end.node != from or connection.ends[1 - side].node != to) continue;
            if (end.state == .closed) continue;
            const is_open = end.state == .open and connection.ends[1 - side].state == .open;
            number_of_lane += @intFromBool(is_open);
            if (lane) |wanted| if (!is_open or wanted != number_of_lane) continue;
            const pipe = &connection.pipes[side];
            any = true;
            if (stalls) {
                pipe.stalled_until = until;
                continue;
            }
            pipe.swallows = true;
            pipe.discard();
        }
    }
    if (!any) return script.fail("there is no connection from {d} to {d}", .{ from, to });
}

/// "lane N"; null: all of them.
fn lane_number(script: *Script, words: *Words) Error!?u32 {
    if (!std.mem.eql(u8, words.peek() orelse "", "lane")) return null;
    _ = words.next();
    const wanted = try number(script, words);
    return if (wanted == 0) script.syntax("0") else wanted;
}

/// cut P P for D: the two cannot dial each other so long. Their connections stay.
fn cut(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const a = (try any_node_of(script, words)).index;
    const b = (try any_node_of(script, words)).index;
    const until = world.now + try duration_after(script, words, "for");
    try world.pair_cuts.append(script.gpa, .{ .nodes = .{ a, b }, .until = until });
}

const Until = union(enum) {
    all_between,
    between: world_file.NodeIndex,
    finished: *calls.Work,
    /// All of these.
    all_finished: []const ?*calls.Work,
    voted: *calls.Work,
    settled: struct { work: *calls.Work, chunks: u64 },
    attempt: struct { node: world_file.NodeIndex, attempt: u32 },
    epoch: struct { node: world_file.NodeIndex, epoch: u64 },
    round: Phase,
    down: *const world_file.Node,
};
const Phase = protocol.Phase;

/// run DURATION | run until CONDITION [within DURATION]
fn run_directive(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const first = try take_word(script, words);
    if (!std.mem.eql(u8, first, "until")) {
        const end = world.now + try duration_of(script, first);
        while (world.queue.peek()) |event| {
            if (event.at > end or world.failed()) break;
            _ = world.step();
        }
        world.now = end;
        return;
    }
    const until = try condition(script, words);
    const most_ns = if (words.peek() != null)
        try duration_after(script, words, "within")
    else
        100_000 * ms;
    try run_until(script, most_ns, until);
}

fn condition(script: *Script, words: *Words) Error!Until {
    const what = try take_word(script, words);
    const Word = enum { admitted, ready, done, voted, settled, attempt, epoch, round, down };
    return switch (std.meta.stringToEnum(Word, what) orelse return script.syntax(what)) {
        .admitted => .all_between,
        .ready => .{ .between = (try node_of(script, try take_word(script, words))).index },
        .done => try done_condition(script, words),
        .voted => .{ .voted = try work_of(script, words) },
        .settled => .{ .settled = .{
            .work = try work_of(script, words),
            .chunks = try number(script, words),
        } },
        .attempt => .{ .attempt = .{
            .node = (try user_of(script, words)).node.index,
            .attempt = try number(script, words),
        } },
        .epoch => .{ .epoch = .{
            .node = (try user_of(script, words)).node.index,
            .epoch = try number(script, words),
        } },
        .round => {
            const text = try take_word(script, words);
            return .{ .round = std.meta.stringToEnum(Phase, text) orelse
                return script.syntax(text) };
        },
        .down => .{ .down = try any_node_of(script, words) },
    };
}

/// done LABEL PEER|all
fn done_condition(script: *Script, words: *Words) Error!Until {
    var after = words.*;
    const label = try take_word(script, &after);
    const who = try take_word(script, &after);
    if (!std.mem.eql(u8, who, "all")) return .{ .finished = try work_of(script, words) };
    words.* = after;
    return .{ .all_finished = script.works[try label_of(script, label)] };
}

fn is_over(work: *const calls.Work) bool {
    return work.state != .running and work.state != .finished;
}

fn run_until(script: *Script, most_ns: u64, until: Until) Error!void {
    const world = script.world;
    const end = world.now + most_ns;
    while (!holds(world, until)) {
        if (world.failed()) return;
        if (world.now > end) return script.fail(
            "waited {d} ms for {t} in vain",
            .{ most_ns / ms, until },
        );
        if (!world.step()) return script.fail("nothing is left to happen", .{});
    }
}

/// Chunks of an operation that are settled at its peer.
fn settled(operation: *session_layer.Operation) u32 {
    const x = operation.moves() orelse return 0;
    return x.board.ledger.settled_count;
}

fn holds(world: *const World, until: Until) bool {
    return switch (until) {
        .all_between => for (world.nodes[1 .. 1 + world.peers_started]) |*node| {
            if (node.state == .absent) break false;
            if (node.state == .up and node.users[0].state != .between) break false;
        } else true,
        .between => |index| world.nodes[index].state == .up and
            world.nodes[index].users[0].state == .between,
        .finished => |work| is_over(work),
        .all_finished => |works| for (works) |maybe| {
            const work = maybe orelse continue;
            if (!is_over(work)) break false;
        } else true,
        .voted => |work| work.state != .running or work.op.?.op.state == .voted,
        .settled => |body| body.work.state != .running or
            settled(body.work.op.?) >= body.chunks,
        .attempt => |body| if (world.nodes[body.node].users[0].group) |group|
            group.attempt() >= body.attempt
        else
            false,
        .epoch => |body| if (world.nodes[body.node].users[0].group) |group|
            group.epoch() >= body.epoch
        else
            false,
        .round => |phase| world.nodes[world_file.coordinator_index].state == .up and
            world.coordinator.run.groups.items.len > 0 and
            world.coordinator.run.groups.items[0].phase == phase,
        .down => |node| node.state == .down,
    };
}

// ---- what must be so

fn expect(script: *Script, words: *Words) Error!void {
    const world = script.world;
    const what = try take_word(script, words);
    if (std.mem.eql(u8, what, "memory")) {
        const node = try any_node_of(script, words);
        try expect_word(script, words, "below");
        const most: usize = @as(usize, try number(script, words)) << 10;
        const held = node.memory.peak_bytes;
        if (held < most) return;
        return script.fail("node {d} has held {d} KiB", .{ node.index, held >> 10 });
    }
    if (std.mem.eql(u8, what, "said")) {
        const node = try any_node_of(script, words);
        try expect_word(script, words, "below");
        const most: u64 = @as(u64, try number(script, words)) << 10;
        if (node.said_bytes < most) return;
        return script.fail("node {d} has said {d} KiB", .{ node.index, node.said_bytes >> 10 });
    }
    if (std.mem.eql(u8, what, "peers") or std.mem.eql(u8, what, "groups")) {
        const c = world.coordinator;
        const found = if (what[0] == 'p') c.run.peers.items.len else c.run.groups.items.len;
        if (found == try number(script, words)) return;
        return script.fail("the coordinator has {d} {s}", .{ found, what });
    }
    if (std.mem.eql(u8, what, "copies")) return expect_copies(script, words);
    const Number = enum { world, alive, epoch, attempt, joined, left, safe_points };
    if (std.meta.stringToEnum(Number, what)) |kind| {
        var peers = try peer_list(script, words);
        const wanted = try number(script, words);
        while (peers.next()) |node| {
            const group = node.users[0].group orelse
                return script.fail("p{d} is in no group", .{node.index});
            const found: u64 = switch (kind) {
                .world => group.world_size(),
                .alive => group.alive(),
                .epoch => group.epoch(),
                .attempt => group.attempt(),
                .joined => group.joined().len,
                .left => group.left().len,
                .safe_points => group.member.safe_points,
            };
            if (found != wanted) return script.fail(
                "{s} of p{d} is {d}",
                .{ what, node.index, found },
            );
        }
        return;
    }
    if (std.mem.eql(u8, what, "sub")) return expect_sub(script, words);
    const label = try label_of(script, what);
    var peers = try peer_list(script, words);
    const wanted = try take_word(script, words);
    while (peers.next()) |node| {
        const work = script.works[label][node.index] orelse
            return script.fail("p{d} has not called {s}", .{ node.index, what });
        var rest = words.*;
        try expect_of(script, work, wanted, &rest);
    }
}

/// "KIND N": so many of them in the whole transcript (copies.zig).
fn expect_copies(script: *Script, words: *Words) Error!void {
    const text = try take_word(script, words);
    const kind = std.meta.stringToEnum(copies.Count, text) orelse return script.syntax(text);
    const found = script.world.statistics.copies.get(kind);
    if (found == try number(script, words)) return;
    return script.fail("{d} copies are {s}", .{ found, text });
}

fn expect_of(script: *Script, work: *calls.Work, wanted: []const u8, words: *Words) Error!void {
    const record = &work.record.calls[work.node.digit()];
    const index = work.node.index;
    if (std.mem.eql(u8, wanted, "running")) {
        if (work.state != .running) return script.fail("p{d}: it is {t}", .{ index, work.state });
        return;
    }
    if (work.state == .running) return script.fail("p{d}: it has not returned", .{index});
    if (std.mem.eql(u8, wanted, "resolved")) {
        const text = try take_word(script, words);
        if (std.mem.eql(u8, text, "unknown")) {
            if (record.resolved == null and work.state == .closed) return;
            return script.fail("p{d}: resolved is {?}", .{ index, record.resolved });
        }
        const committed = std.mem.eql(u8, text, "committed");
        if (record.resolved == null or record.resolved.? != committed) {
            return script.fail("p{d}: resolved is {?}", .{ index, record.resolved });
        }
        return;
    }
    if (std.mem.eql(u8, wanted, "ranges")) return expect_ranges(script, work, words);
    if (std.mem.eql(u8, wanted, "revision")) {
        const revision = try number(script, words);
        const found = work.user.content.revision;
        if (found == revision) return;
        return script.fail("p{d}: its content has revision {d}", .{ index, found });
    }
    const status = std.meta.stringToEnum(
        protocol.Status,
        wanted,
    ) orelse return script.syntax(wanted);
    if (record.status != status) return script.fail(
        "p{d}: it returned {t}",
        .{ index, record.status },
    );
}

/// Each 0..8:1,2,3 must be there as it is; or "split" for more than one range.
fn expect_ranges(script: *Script, work: *calls.Work, words: *Words) Error!void {
    const ranges = work.ranges.items;
    const index = work.node.index;
    var position: usize = 0;
    while (words.next()) |text| : (position += 1) {
        if (std.mem.eql(u8, text, "split")) {
            if (ranges.len < 2) return script.fail("p{d}: {d} ranges", .{ index, ranges.len });
            return;
        }
        if (position >= ranges.len) return script.fail(
            "p{d}: only {d} ranges",
            .{ index, ranges.len },
        );
        const range = ranges[position];
        var buffer: [128]u8 = undefined;
        var writer: std.Io.Writer = .fixed(&buffer);
        writer.print("{d}..{d}:{f}", .{
            range.begin, range.end, checkers_file.fmt_peers(&range.contributors),
        }) catch {}; // cut, and not as expected
        const found = buffer[0..writer.end];
        if (!std.mem.eql(u8, found, text)) return script.fail("p{d}: range {s}", .{ index, found });
    }
    if (position != ranges.len) return script.fail("p{d}: {d} ranges", .{ index, ranges.len });
}

test "every scenario does what its transcript says" {
    inline for (all) |name| {
        const failure = try run(std.testing.allocator, text_of(name), .off);
        if (failure) |*found| {
            std.debug.print("scenario {s}, line {d}: {s}\n", .{ name, found.line, found.why() });
            return error.ScenarioFailed;
        }
    }
}

test "a scenario that expects what is not so fails, and says where" {
    const failure = (try run(std.testing.allocator,
        \\peers 2
        \\call all all_reduce 4 a
        \\run 100ms
        \\expect a 1 aborted
    , .off)).?;
    try std.testing.expectEqual(4, failure.line);
    try std.testing.expectEqualStrings("p1: it returned ok", failure.why());
}
