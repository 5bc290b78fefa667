//! Addresses: where peers say that others can dial them, and the findings about that. Others are
//! told an address only if the peer's connection comes from its host, or if the driver has found
//! this very peer there (net/finder.zig). So no peer can make all others dial somebody outside the
//! run, or ask a name server: the driver looks names up, once, and members get numbers.
//!
//! A peer whose user names no address claims that of its interface. Where that leads nowhere, it is
//! looked for at the host that its connection comes from, at the same port: clouds give a machine a
//! public address that the machine itself does not know, and keep the ports (1:1 NAT). It must
//! prove that it is there, because most NATs lead to somebody else, or to nobody.
//!
//! A newcomer waits for the answer outside its group. A member stays one whatever the answer is.
//! Free functions on Coordinator, so that coordinator.zig stays readable.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const networks = @import("turns.zig");
const Coordinator = @import("coordinator.zig").Coordinator;
const Group = @import("group.zig").Group;
const Peer = @import("coordinator.zig").Peer;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;

/// The claim of one peer.
pub const Claim = struct {
    /// As the peer says it.
    text: []u8 = &.{},
    /// By which it is found.
    key: wire.hello.Key = @splat(0),
    /// Its user has named it, and wants to hear if it is wrong.
    advertised: bool = false,
    state: State = .unknown,
    /// In the order in which they wait; another one each time.
    number: u64 = 0,
    /// Not asked about before.
    not_before: Instant = 0,
    /// A member was not found: nobody waits for the next answer.
    failed: bool = false,
    /// Groups that it enters when the answer is there.
    waiting: std.ArrayList(Waiting) = .empty,

    const Waiting = struct { group: *Group, initial_world_size: u32 };

    pub const State = enum {
        unknown,
        /// The driver is to be asked, and was asked.
        queued,
        asked,
        /// Peer.address is where it is dialed.
        known,
        /// It is not where it believes to be: it dials the others.
        nowhere,
    };

    pub fn deinit(claim: *Claim, gpa: Allocator) void {
        gpa.free(claim.text);
        claim.waiting.deinit(gpa);
    }

    fn is_open(claim: *const Claim) bool {
        return claim.state == .queued or claim.state == .asked;
    }
};

/// A question to the driver.
pub const Question = struct {
    number: u64,
    peer: base.PeerId,
    /// Where its connection comes from.
    source: base.Source,
    /// Somebody from there was not found lately.
    is_doubtful: bool = false,
    /// Read with Endpoint.parse_told already. Valid during the call.
    address: []const u8,
    /// Where its connection comes from, at the port of `address`: to be tried last, and only if the
    /// peer proves to be there. Empty: not to be tried. Valid during the call.
    seen: []const u8 = "",
    key: wire.hello.Key,
};

pub const Answer = union(enum) {
    /// Where the peer is, in numbers. Valid during the call.
    found: []const u8,
    not_found: wire.Dialed,
};

pub const Reply = union(enum) {
    answer: Answer,
    /// `Coordinator.answered` will be called.
    later,
    /// There is no room for a question from this source: it is asked again.
    busy,
};

/// Between two questions that take time: whoever is named for many newcomers is not flooded.
const pace_ns = std.time.ns_per_s / 20;
/// A member that was not found is looked for again.
const again_ns = 10 * std.time.ns_per_s;

/// The queue of all peers' claims.
pub const Queue = struct {
    last_number: u64 = 0,
    next_at: Instant = 0,
    /// Some claim is queued.
    any: bool = false,
    not_found: NotFound = .{},
};

/// The networks of those who were not found lately: they come after the others.
const NotFound = struct {
    places: [places_max]struct { network: base.Source, at: Instant } = undefined,
    count: usize = 0,

    const places_max = 64;
    const lately_ns = 60 * std.time.ns_per_s;

    fn find(lost: *const NotFound, source: base.Source) ?usize {
        for (lost.places[0..lost.count], 0..) |*place, index| {
            if (base.places.same_network(place.network, source)) return index;
        }
        return null;
    }

    fn has(lost: *const NotFound, source: base.Source, now: Instant) bool {
        const index = lost.find(source) orelse return false;
        return now -| lost.places[index].at < lately_ns;
    }

    /// Where there is no room, the one that lies back furthest is forgotten.
    fn add(lost: *NotFound, source: base.Source, now: Instant) void {
        const is_full = lost.count == places_max;
        const index = lost.find(source) orelse if (is_full) lost.oldest() else lost.count;
        lost.count = @max(lost.count, index + 1);
        lost.places[index] = .{ .network = source, .at = now };
    }

    fn oldest(lost: *const NotFound) usize {
        var found: usize = 0;
        for (lost.places[0..lost.count], 0..) |*place, index| {
            if (place.at < lost.places[found].at) found = index;
        }
        return found;
    }
};

/// A peer says where it is dialed. Its former address holds until this is found, too.
pub fn claim_told(
    c: *Coordinator,
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
    const copy = try c.gpa.dupe(u8, text);
    const is_other = claim.text.len > 0;
    c.gpa.free(claim.text);
    claim.text = copy;
    // An answer to what was asked before is not one to this.
    claim.state = if (claim.waiting.items.len > 0) .queued else .unknown;
    if (claim.state == .queued) queue(c, peer, 0);
    // Rounds wait for what a member said first, and not for as long as it goes on to change that.
    claim.failed = is_other and c.is_member(peer) and peer.address.len == 0;
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
pub fn settle(c: *Coordinator, now: Instant, peer: *Peer) Allocator.Error!void {
    const claim = &peer.claim;
    if (claim.state != .unknown) return;
    const connection = peer.connection orelse return;
    const endpoint = base.Endpoint.parse(claim.text) catch unreachable; // read at `join`
    const from_there = if (endpoint.source()) |source|
        std.mem.eql(u8, &source, &connection.source)
    else
        false;
    if (from_there) return known(c, peer, claim.text);
    c.log(.debug, "peer {f} is looked for at {s}", .{ peer.named(), claim.text });
    queue(c, peer, 0);
    try ask(c, now);
}

/// A newcomer enters the group, now or when it is found.
pub fn admit(
    c: *Coordinator,
    now: Instant,
    group: *Group,
    peer: *Peer,
    initial_world_size: u32,
) Allocator.Error!void {
    const waiting = &peer.claim.waiting;
    // One whose user has given up and tries again has one answer.
    for (waiting.items) |*item| if (item.group == group) {
        item.initial_world_size = initial_world_size;
        return;
    };
    // First, because the answer may come at once.
    try waiting.append(c.gpa, .{ .group = group, .initial_world_size = initial_world_size });
    try settle(c, now, peer);
    switch (peer.claim.state) {
        .known, .nowhere => enter(c, now, peer),
        .unknown, .queued, .asked => {},
    }
}

fn enter(c: *Coordinator, now: Instant, peer: *Peer) void {
    var waiting = peer.claim.waiting;
    peer.claim.waiting = .empty;
    defer waiting.deinit(c.gpa);
    for (waiting.items) |item| {
        c.add(now, item.group, peer, item.initial_world_size) catch
            return peer.doom("the coordinator has no memory to let it in");
    }
}

/// Its connection is gone: who waits asks anew, and answers under way are not for it any more.
pub fn disconnected(peer: *Peer) void {
    peer.claim.waiting.clearRetainingCapacity();
    if (peer.claim.state != .known) peer.claim.state = .unknown;
}

/// A member whose address is being looked for since a restart: newcomers could not dial it yet.
pub fn is_awaited(peer: *const Peer) bool {
    return peer.address.len == 0 and peer.claim.is_open() and !peer.claim.failed;
}

/// Where it is dialed is known, or that nobody can, though it may be looked for again.
pub fn is_settled(peer: *const Peer) bool {
    const claim = &peer.claim;
    return claim.state == .known or claim.state == .nowhere or claim.failed;
}

pub const Room = [base.source.text_bytes_max]u8;

/// Where `listener` dials `other`; nothing if that is not known. A peer of the coordinator's own
/// machine that has come over its loopback interface is, for those of other machines, where they
/// have reached the coordinator: its loopback address would lead them to themselves.
pub fn told_to(listener: *const Peer, other: *const Peer, room: *Room) []const u8 {
    const connection = listener.connection orelse return other.address;
    const endpoint = base.Endpoint.parse(other.address) catch return other.address; // it is empty
    const is_local = base.source.is_loopback(connection.source) or
        base.source.is_unknown(connection.source);
    if (is_local or !endpoint.is_loopback()) return other.address;
    const here = connection.here;
    if (base.source.is_unknown(here) or base.source.is_loopback(here)) return "";
    return base.source.write(here, endpoint.port, room);
}

fn known(c: *Coordinator, peer: *Peer, address: []const u8) Allocator.Error!void {
    const copy = try c.gpa.dupe(u8, address);
    c.gpa.free(peer.address);
    peer.address = copy;
    peer.claim.state = .known;
    peer.claim.failed = false;
}

fn queue(c: *Coordinator, peer: *Peer, not_before: Instant) void {
    c.questions.last_number += 1;
    c.questions.any = true;
    peer.claim.state = .queued;
    peer.claim.number = c.questions.last_number;
    peer.claim.not_before = not_before;
}

// ---- questions and answers

/// Asks about those who wait, members first: newcomers wait for them, too. Networks take turns.
pub fn ask(c: *Coordinator, now: Instant) Allocator.Error!void {
    if (!c.questions.any) return;
    // In order once, however many of them there is no room for.
    var buffer: [base.limits.peers_max]Turn = undefined;
    for (turns(c, now, &buffer)) |turn| {
        if (now < c.questions.next_at) break;
        const peer = turn.peer;
        const claim = &peer.claim;
        var room: Room = undefined;
        const reply = c.host.vtable.find(c.host.ctx, &.{
            .number = claim.number,
            .peer = peer.id,
            .source = peer.connection.?.source,
            .is_doubtful = c.questions.not_found.has(peer.connection.?.source, now),
            .address = claim.text,
            .seen = seen_at(peer, &room),
            .key = claim.key,
        });
        if (reply == .busy) continue; // others may come from elsewhere
        claim.state = .asked;
        if (reply == .answer) try take(c, now, peer, reply.answer) else c.questions.next_at =
            now +| pace_ns;
    }
    c.questions.any = for (c.peers.items) |peer| {
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
    c: *const Coordinator,
    now: Instant,
    buffer: *[base.limits.peers_max]Turn,
) []const Turn {
    var count: usize = 0;
    if (now < c.questions.next_at) return buffer[0..count];
    for (c.peers.items) |peer| {
        if (peer.claim.state != .queued or peer.claim.not_before > now) continue;
        if (peer.connection == null or count == buffer.len) continue;
        buffer[count] = .{ .peer = peer, .is_newcomer = !c.is_member(peer) };
        count += 1;
    }
    std.mem.sort(Turn, buffer[0..count], {}, Turn.less_than);
    const members = for (buffer[0..count], 0..) |turn, index| {
        if (turn.is_newcomer) break index;
    } else count;
    take_turns(c, now, buffer[0..members]);
    take_turns(c, now, buffer[members..count]);
    return buffer[0..count];
}

/// Among those who wait alike, a network of which nobody is being looked for comes before one of
/// which somebody is, and those from which somebody was not found lately come last.
fn take_turns(c: *const Coordinator, now: Instant, waiting: []Turn) void {
    var candidates: [base.limits.peers_max]networks.Candidate = undefined;
    var before: [base.limits.peers_max]Turn = undefined;
    @memcpy(before[0..waiting.len], waiting);
    for (waiting, candidates[0..waiting.len], 0..) |turn, *candidate, index| {
        const source = turn.peer.connection.?.source;
        candidate.* = .{
            .index = @intCast(index),
            .source = source,
            .has_failed = c.questions.not_found.has(source, now),
        };
        for (c.peers.items) |peer| {
            if (peer.claim.state != .asked or peer.connection == null) continue;
            const is_same = base.places.same_network(peer.connection.?.source, source);
            candidate.turn += @intFromBool(is_same);
        }
    }
    networks.order(candidates[0..waiting.len]);
    for (waiting, candidates[0..waiting.len]) |*turn, *candidate| turn.* = before[candidate.index];
}

/// The driver has an answer. One to who is gone, or has said something else since, is for nobody.
pub fn answered(c: *Coordinator, now: Instant, number: u64, answer: Answer) Allocator.Error!void {
    const peer = for (c.peers.items) |peer| {
        if (peer.claim.state == .asked and peer.claim.number == number) break peer;
    } else null;
    if (peer) |item| try take(c, now, item, answer);
    try ask(c, now);
}

fn take(c: *Coordinator, now: Instant, peer: *Peer, answer: Answer) Allocator.Error!void {
    const claim = &peer.claim;
    switch (answer) {
        .found => |address| {
            known(c, peer, address) catch |err| {
                queue(c, peer, now +| again_ns);
                return err;
            };
            enter(c, now, peer);
        },
        .not_found => |dialed| {
            claim.state = .unknown;
            if (peer.connection) |connection|
                c.questions.not_found.add(connection.source, now);
            const is_told = claim.failed or claim.waiting.items.len > 0;
            if (claim.advertised) refuse(c, peer, dialed) else do_without(c, now, peer, dialed);
            if (c.is_member(peer)) {
                const why = "peer {f} is not found at {s}: newcomers are not told where it is";
                // Behind NAT nothing is wrong with it: only what its user has named needs mending.
                if (!is_told) c.log(if (claim.advertised) .warning else .info, why, .{
                    peer.named(),
                    claim.text,
                });
                claim.failed = true;
                queue(c, peer, now +| again_ns);
            }
        },
    }
    // Rounds wait for a member's.
    for (c.groups.items) |group| if (group.contains(peer)) group.advance(now);
}

/// Its user has named no address, and the one that it has found leads nowhere, as behind NAT: it
/// enters all the same, and dials the others.
fn do_without(c: *Coordinator, now: Instant, peer: *Peer, why: wire.Dialed) void {
    peer.claim.state = .nowhere;
    const is_news = peer.claim.waiting.items.len > 0;
    enter(c, now, peer);
    if (!is_news) return;
    c.log(.info, "peer {f} is not found at {s} ({s}): it can dial the others, but " ++
        "nobody can dial it", .{
        peer.named(),
        peer.claim.text,
        why.why(),
    });
    for (c.groups.items) |group| peer.send(group.id, .{ .unreached = .{
        .group = group.id,
        .peer = .none,
        .dialed = why,
        .address = .of(peer.claim.text),
    } });
}

/// It is told what to do, and loses nothing else.
fn refuse(c: *Coordinator, peer: *Peer, dialed: wire.Dialed) void {
    var waiting = peer.claim.waiting;
    peer.claim.waiting = .empty;
    defer waiting.deinit(c.gpa);
    var room: [why_bytes_max]u8 = undefined;
    const why = std.fmt.bufPrint(&room, why_format, .{ peer.claim.text, dialed.why() }) catch
        unreachable; // why() is short
    for (waiting.items) |item| {
        c.log(.info, "peer {f} may not join group {s}: it is not found at {s}", .{
            peer.named(),
            item.group.name,
            peer.claim.text,
        });
        peer.say(.{ .refused = .{ .name = .of(item.group.name), .why = .of(why) } });
    }
}

const why_format = "the coordinator cannot reach this peer at {s} ({s}), and its connection " ++
    "comes from another host: advertise an address that leads here";
const why_bytes_max = why_format.len + base.limits.address_bytes_max + wire.dialed.why_bytes_max;

pub fn next_deadline(c: *const Coordinator, now: Instant) Instant {
    if (!c.questions.any) return base.never;
    // Those for whom there was no room wait for an answer, or for the next tick.
    return if (c.questions.next_at > now) c.questions.next_at else base.never;
}
