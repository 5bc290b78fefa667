//! finding: where peers say that others can dial them, and the findings about that. Others are told
//! an address only if the peer's connection comes from its host, or if the driver has found this
//! very peer there (net/finder.zig). So no peer can make all others dial somebody outside the run,
//! or ask a name server: the driver looks names up, once, and members get numbers.
//!
//! A peer whose user names no address claims that of its interface. Where that leads nowhere, it is
//! looked for at the host that its connection comes from, at the same port: clouds give a machine a
//! public address that the machine itself does not know, and keep the ports (1:1 NAT). It must
//! prove that it is there, because most NATs lead to somebody else, or to nobody.
//!
//! A newcomer waits for the answer outside its group. A member stays one whatever the answer is.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const founders = @import("founders.zig");
const groups = @import("groups.zig");
const networks = @import("turns.zig");
const post = @import("post.zig");
const rounds = @import("rounds.zig");
const Answer = @import("addresses.zig").Answer;
const Group = @import("group.zig").Group;
const Peer = @import("peer.zig").Peer;
const Room = @import("addresses.zig").Room;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;

/// Between two questions that take time: whoever is named for many newcomers is not flooded.
const pace_ns = std.time.ns_per_s / 20;
/// A member that was not found is looked for again.
const again_ns = 10 * std.time.ns_per_s;

/// A peer says where it is dialed. Its former address holds until this is found, too.
pub fn claim_told(
    run: *Run,
    peer: *Peer,
    text: []const u8,
    key: wire.hello.Key,
) Allocator.Error!void {
    const claim = &peer.claim;
    claim.key = key;
    if (std.mem.eql(u8, claim.text, text)) {
        if (claim.state == .known and !is_still_seen(peer)) claim.state = .unknown;
        return;
    }
    const copy = try run.gpa.dupe(u8, text);
    const is_other = claim.text.len > 0;
    run.gpa.free(claim.text);
    claim.text = copy;
    // An answer to what was asked before is not one to this.
    claim.state = if (claim.waiting.items.len > 0) .queued else .unknown;
    if (claim.state == .queued) queue(run, peer, 0);
    // Rounds wait for what a member said first, and not for as long as it goes on to change that.
    claim.failed = is_other and run.is_member(peer) and peer.address.len == 0;
}

/// A peer that was found where its connection came from may come from elsewhere by now.
fn is_still_seen(peer: *const Peer) bool {
    if (peer.claim.advertised) return true;
    const connection = peer.connection orelse return true;
    const at = base.Endpoint.parse(peer.address) catch return true; // it is empty
    const claimed = base.Endpoint.parse(peer.claim.text) catch return true;
    const source = at.source() orelse return true;
    const own = claimed.source() orelse return true;
    return std.mem.eql(u8, &source, &own) or std.mem.eql(u8, &source, &connection.source);
}

/// The peer has told everything: it is looked for, unless that is known.
pub fn settle(run: *Run, now: Instant, peer: *Peer) Allocator.Error!void {
    const claim = &peer.claim;
    if (claim.state != .unknown) return;
    const connection = peer.connection orelse return;
    const endpoint = base.Endpoint.parse(claim.text) catch unreachable; // read at `join`
    const from_there = if (endpoint.source()) |source|
        std.mem.eql(u8, &source, &connection.source)
    else
        false;
    if (from_there) return known(run, peer, claim.text);
    run.log(.debug, "peer {f} is looked for at {s}", .{ peer.named(), claim.text });
    queue(run, peer, 0);
    try ask(run, now);
}

/// A newcomer enters the group, now or when it is found.
pub fn admit(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    initial_world_size: u32,
) Allocator.Error!void {
    // First, because the answer may come at once.
    try peer.claim.waiting.append(run.gpa, .{
        .group = group.id,
        .initial_world_size = initial_world_size,
    });
    try settle(run, now, peer);
    switch (peer.claim.state) {
        .known, .nowhere => enter(run, now, peer),
        .unknown, .queued, .asked => {},
    }
}

fn enter(run: *Run, now: Instant, peer: *Peer) void {
    var waiting = peer.claim.waiting;
    peer.claim.waiting = .empty;
    defer waiting.deinit(run.gpa);
    for (waiting.items) |item| {
        add(run, now, run.group_at(item.group).?, peer, item.initial_world_size) catch
            return peer.doom("the coordinator has no memory to let it in");
    }
}

/// A newcomer that may be told to others.
fn add(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    initial_world_size: u32,
) Allocator.Error!void {
    if (founders.turns_away(run, now, group, peer)) return;
    groups.welcome_to(run, group, peer);
    run.log(.info, "peer {f} asks to join group {s}", .{ peer.named(), group.name });
    try rounds.add(run, group, now, peer, initial_world_size);
}

fn known(run: *Run, peer: *Peer, address: []const u8) Allocator.Error!void {
    const copy = try run.gpa.dupe(u8, address);
    run.gpa.free(peer.address);
    peer.address = copy;
    peer.claim.state = .known;
    peer.claim.failed = false;
}

fn queue(run: *Run, peer: *Peer, not_before: Instant) void {
    run.questions.last_number += 1;
    run.questions.any = true;
    peer.claim.state = .queued;
    peer.claim.number = run.questions.last_number;
    peer.claim.not_before = not_before;
}

/// Asks about those who wait, members first: newcomers wait for them, too. Networks take turns.
fn ask(run: *Run, now: Instant) Allocator.Error!void {
    if (!run.questions.any) return;
    // In order once, however many of them there is no room for.
    var buffer: [base.limits.peers_max]Turn = undefined;
    for (turns(run, now, &buffer)) |turn| {
        if (now < run.questions.next_at) break;
        const peer = turn.peer;
        const claim = &peer.claim;
        var room: Room = undefined;
        const reply = run.host.vtable.find(run.host.ctx, &.{
            .number = claim.number,
            .peer = peer.id,
            .source = peer.connection.?.source,
            .is_doubtful = run.questions.not_found.has(peer.connection.?.source, now),
            .address = claim.text,
            .seen = seen_at(peer, &room),
            .key = claim.key,
        });
        if (reply == .busy) continue; // others may come from elsewhere
        claim.state = .asked;
        if (reply == .answer) try take(run, now, peer, reply.answer) else run.questions.next_at =
            now +| pace_ns;
    }
    run.questions.any = for (run.peers.items) |peer| {
        if (peer.claim.state == .queued) break true;
    } else false;
}

/// An address that the user has named is meant so. The loopback interface is no way for others.
fn seen_at(peer: *const Peer, room: *Room) []const u8 {
    const source = peer.connection.?.source;
    if (peer.claim.advertised or base.source.is_unknown(source)) return "";
    if (base.source.is_loopback(source)) return "";
    const endpoint = base.Endpoint.parse(peer.claim.text) catch unreachable; // read at `join`
    return base.source.write(source, endpoint.port, room);
}

const Turn = struct {
    peer: *Peer,
    is_newcomer: bool,

    fn less_than(_: void, a: Turn, b: Turn) bool {
        if (a.is_newcomer != b.is_newcomer) return b.is_newcomer;
        return a.peer.claim.number < b.peer.claim.number;
    }
};

/// Those who may be asked about now, in their order.
fn turns(
    run: *const Run,
    now: Instant,
    buffer: *[base.limits.peers_max]Turn,
) []const Turn {
    var count: usize = 0;
    if (now < run.questions.next_at) return buffer[0..count];
    for (run.peers.items) |peer| {
        if (peer.claim.state != .queued or peer.claim.not_before > now) continue;
        if (peer.connection == null or count == buffer.len) continue;
        buffer[count] = .{ .peer = peer, .is_newcomer = !run.is_member(peer) };
        count += 1;
    }
    std.mem.sort(Turn, buffer[0..count], {}, Turn.less_than);
    const members = for (buffer[0..count], 0..) |turn, index| {
        if (turn.is_newcomer) break index;
    } else count;
    take_turns(run, now, buffer[0..members]);
    take_turns(run, now, buffer[members..count]);
    return buffer[0..count];
}

/// Among those who wait alike, a network of which nobody is being looked for comes before one of
/// which somebody is, and those from which somebody was not found lately come last.
fn take_turns(run: *const Run, now: Instant, waiting: []Turn) void {
    var candidates: [base.limits.peers_max]networks.Candidate = undefined;
    var before: [base.limits.peers_max]Turn = undefined;
    @memcpy(before[0..waiting.len], waiting);
    for (waiting, candidates[0..waiting.len], 0..) |turn, *candidate, index| {
        const source = turn.peer.connection.?.source;
        candidate.* = .{
            .index = @intCast(index),
            .source = source,
            .has_failed = run.questions.not_found.has(source, now),
        };
        for (run.peers.items) |peer| {
            if (peer.claim.state != .asked or peer.connection == null) continue;
            const is_same = base.places.same_network(peer.connection.?.source, source);
            candidate.turn += @intFromBool(is_same);
        }
    }
    networks.order(candidates[0..waiting.len]);
    for (waiting, candidates[0..waiting.len]) |*turn, *candidate| turn.* = before[candidate.index];
}

/// The driver has an answer. It may be late: nobody need wait.
pub fn answered(run: *Run, now: Instant, number: u64, answer: Answer) void {
    take_answer(run, now, number, answer) catch |err| not_asked(run, err);
}

/// At a tick.
pub fn ask_now(run: *Run, now: Instant) void {
    ask(run, now) catch |err| not_asked(run, err);
}

/// Those who wait are asked about again at the next tick.
fn not_asked(run: *Run, err: Allocator.Error) void {
    run.log(.err, "{t} while peers were looked for where they say they are", .{err});
}

/// One to who is gone, or has said something else since, is for nobody.
fn take_answer(run: *Run, now: Instant, number: u64, answer: Answer) Allocator.Error!void {
    const peer = for (run.peers.items) |peer| {
        if (peer.claim.state == .asked and peer.claim.number == number) break peer;
    } else null;
    if (peer) |item| try take(run, now, item, answer);
    try ask(run, now);
}

fn take(run: *Run, now: Instant, peer: *Peer, answer: Answer) Allocator.Error!void {
    const claim = &peer.claim;
    switch (answer) {
        .found => |address| {
            known(run, peer, address) catch |err| {
                queue(run, peer, now +| again_ns);
                return err;
            };
            enter(run, now, peer);
        },
        .not_found => |dialed| {
            claim.state = .unknown;
            if (peer.connection) |connection|
                run.questions.not_found.add(connection.source, now);
            const is_told = claim.failed or claim.waiting.items.len > 0;
            if (claim.advertised) refuse(run, peer, dialed) else do_without(run, now, peer, dialed);
            if (run.is_member(peer)) {
                const why = "peer {f} is not found at {s}: newcomers are not told where it is";
                // Behind NAT nothing is wrong with it: only what its user has named needs mending.
                if (!is_told) run.log(if (claim.advertised) .warning else .info, why, .{
                    peer.named(),
                    claim.text,
                });
                claim.failed = true;
                queue(run, peer, now +| again_ns);
            }
        },
    }
    // Rounds wait for a member's.
    for (run.groups.items) |group| if (group.contains(peer)) rounds.advance(run, group, now);
}

/// Its user has named no address, and the one that it has found leads nowhere, as behind NAT: it
/// enters all the same, and dials the others.
fn do_without(run: *Run, now: Instant, peer: *Peer, why: wire.Dialed) void {
    peer.claim.state = .nowhere;
    const is_news = peer.claim.waiting.items.len > 0;
    enter(run, now, peer);
    if (!is_news) return;
    run.log(.info, "peer {f} is not found at {s} ({s}): it can dial the others, but " ++
        "nobody can dial it", .{
        peer.named(),
        peer.claim.text,
        why.why(),
    });
    for (run.groups.items) |group| post.send(run, peer, group.id, .{ .unreached = .{
        .group = group.id,
        .peer = .none,
        .dialed = why,
        .address = .of(peer.claim.text),
    } });
}

/// It is told what to do, and loses nothing else.
fn refuse(run: *Run, peer: *Peer, dialed: wire.Dialed) void {
    var waiting = peer.claim.waiting;
    peer.claim.waiting = .empty;
    defer waiting.deinit(run.gpa);
    var room: [why_bytes_max]u8 = undefined;
    const why = std.fmt.bufPrint(&room, why_format, .{ peer.claim.text, dialed.why() }) catch
        unreachable; // why() is short
    for (waiting.items) |item| {
        const name = run.group_at(item.group).?.name;
        run.log(.info, "peer {f} may not join group {s}: it is not found at {s}", .{
            peer.named(),
            name,
            peer.claim.text,
        });
        post.say(run, peer, .{ .refused = .{ .name = .of(name), .why = .of(why) } });
    }
}

const why_format = "the coordinator cannot reach this peer at {s} ({s}), and its connection " ++
    "comes from another host: advertise an address that leads here";
const why_bytes_max = why_format.len + base.limits.address_bytes_max + wire.dialed.why_bytes_max;

pub fn next_deadline(run: *const Run, now: Instant) Instant {
    if (!run.questions.any) return base.never;
    // Those for whom there was no room wait for an answer, or for the next tick.
    return if (run.questions.next_at > now) run.questions.next_at else base.never;
}
