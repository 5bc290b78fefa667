//! door: how strangers become peers, and how peers ask for groups. A stranger is a connection whose
//! first bytes (the hello) have not come. Strangers have few places: when all are taken, a drawn
//! stranger is disconnected (base/places.zig). A peer that joins a group tells the epochs that it
//! is a member of, and is looked for at the address that it claims. Later messages of a peer:
//! coordinator.zig; the way of a newcomer into its group: membership.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const attempt = @import("attempt.zig");
const copy_founders = @import("group.zig").copy_founders;
const fault_of = @import("peer.zig").fault_of;
const free_founders = @import("group.zig").free_founders;
const join_price = @import("peer.zig").join_price;
const log = @import("log.zig");
const membership = @import("membership.zig");
const network_join_price = @import("peer.zig").network_join_price;
const operation = @import("operation.zig");
const turn_order = @import("group.zig").turn_order;
const Answer = @import("address.zig").Answer;
const Arrivals = @import("peer.zig").Arrivals;
const Connection = @import("peer.zig").Connection;
const Founding = @import("group.zig").Founding;
const Group = @import("group.zig").Group;
const Lobby = @import("run.zig").Lobby;
const NewcomerTurn = @import("group.zig").NewcomerTurn;
const Peer = @import("peer.zig").Peer;
const ProtocolError = @import("peer.zig").ProtocolError;
const Room = @import("address.zig").Room;
const Run = @import("run.zig").Run;
const Told = @import("run.zig").Told;
const Aim = Arrivals.Aim;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// Takes an incoming connection as a stranger. Null: there is no memory or no place for the
/// connection, and the driver closes it.
pub fn accept(run: *Run, now: Instant, source: base.Source) ?*Connection {
    if (!make_place(run, now, source)) {
        run.strangers_refused += 1;
        return null;
    }
    run.connections.ensureUnusedCapacity(run.gpa, 1) catch return null;
    const connection = run.gpa.create(Connection) catch return null;
    connection.* = .{
        .stream = .init_bounded(run.gpa, &run.memory),
        .since = now,
        .source = source,
        .shared = &run.shared,
    };
    run.connections.appendAssumeCapacity(connection);
    return connection;
}

/// Makes a place for a stranger, if need be by disconnecting another. There are `strangers_max`
/// places and one more for each member that is away, since a member comes back as a stranger
/// (base/places.zig). False: the stranger is turned away.
fn make_place(run: *Run, now: Instant, source: base.Source) bool {
    run.shared.door_at = now;
    run.due_at = @min(run.due_at, now +| limits.stranger_ns_max);
    var taken: usize = 0;
    for (run.connections.items) |item| taken += @intFromBool(item.stranger() != null);
    var door: base.places.Door = .{ .places = limits.strangers_max };
    for (run.peers.items) |peer| door.expected += @intFromBool(peer.connection == null);
    const is_known = for (run.peers.items) |peer| {
        if (base.places.same_network(peer.source, source)) break true;
    } else false;
    switch (door.answer(&run.prng, taken, is_known)) {
        .enter => return true,
        .turn_away => return false,
        .make_room => {},
    }
    while (taken >= door.places + door.expected) : (taken -= 1) {
        const items = run.connections.items;
        const guest = base.places.draw(Connection, items, Connection.stranger, &run.prng) orelse
            return false;
        run.strangers_refused += 1;
        guest.doom("others wait for its place");
    }
    membership.sweep(run, now);
    return true;
}

/// Gives a place to a connection that asks for the status; if all are taken, a drawn one of them is
/// disconnected. The connection keeps its place for `status_ns_max`, to read the answer.
fn ask_places(run: *Run, now: Instant, connection: *Connection) void {
    var taken: usize = 0;
    for (run.connections.items) |item| taken += @intFromBool(item.asker() != null);
    if (taken >= limits.statuses_max) {
        const items = run.connections.items;
        const guest = base.places.draw(Connection, items, Connection.asker, &run.prng).?;
        run.strangers_refused += 1;
        guest.doom("others ask for the status");
    }
    connection.state = .status;
    connection.since = now;
    run.due_at = @min(run.due_at, now +| limits.status_ns_max);
}

pub fn greet(run: *Run, now: Instant, connection: *Connection) void {
    const bytes = connection.stream.take_raw(wire.hello.hello_bytes) orelse return;
    const hello = wire.hello.decode(bytes) catch |err| switch (err) {
        error.VersionMismatch => return refuse(run, connection, .version_mismatch),
        // A client that does not speak PCCL gets no answer.
        error.NotPccl, error.BadValue => {
            run.strangers_refused += 1;
            connection.doom("it does not speak PCCL");
            return;
        },
    };
    // In constant time, which does not tell how many bytes of the run id were right.
    if (!std.crypto.timing_safe.eql(base.RunId, hello.run_id, run.options.run_id))
        return refuse(run, connection, .wrong_run);
    switch (hello.purpose) {
        .lane, .probe => return refuse(run, connection, .wrong_peer),
        .status => ask_places(run, now, connection),
        .control => {
            // The id `none` stands for "no peer", so no peer may have it.
            if (hello.from.eql(.none)) return refuse(run, connection, .refused);
            // No process has instance 0: a journal that names it is refused.
            if (hello.instance == 0) return refuse(run, connection, .refused);
            const known = run.peer_of(hello.from);
            if (known) |peer| {
                // A peer that is away is known only if it is a member, and only the member's own
                // process may come back as it.
                if (peer.instance != hello.instance) {
                    const taken = peer.connection != null;
                    return refuse(run, connection, if (taken) .refused else .held);
                }
                comes_back(run, now, peer, connection);
            } else {
                const room = run.peers.items.len < limits.peers_max;
                if (!room) return refuse(run, connection, .full);
                peer_add(run, now, connection, &hello) catch return refuse(run, connection, .full);
            }
        },
    }
    connection.stream.send_raw(&wire.hello.encode_answer(.welcome)) catch {
        connection.doom("out of memory");
        return;
    };
    if (connection.state == .peer) run.send_on(connection, .{ .welcome = .{
        .heartbeat_ns = run.options.heartbeat_ns,
        .silence_ns = run.options.silence_ns,
        .window_bytes = run.options.window_bytes,
        .windows_bytes = run.options.windows_bytes,
        .chunk_bytes = run.options.chunk_bytes,
        .lanes = run.options.lanes,
        .stall_warning_ns = run.options.stall_warning_ns,
    } });
}

fn refuse(run: *Run, connection: *Connection, verdict: wire.hello.Verdict) void {
    run.strangers_refused += 1;
    connection.state = .refused;
    // Without memory for the answer the connection is closed unanswered.
    connection.stream.send_raw(&wire.hello.encode_answer(verdict)) catch {};
    connection.doom(@tagName(verdict));
}

fn peer_add(
    run: *Run,
    now: Instant,
    connection: *Connection,
    hello: *const wire.hello.Hello,
) !void {
    try run.peers.ensureUnusedCapacity(run.gpa, 1);
    const peer = try run.gpa.create(Peer);
    peer.* = .{
        .id = hello.from,
        .instance = hello.instance,
        .connection = connection,
        .source = connection.source,
        .last_heard = now,
        .idle_since = now,
    };
    run.peers.appendAssumeCapacity(peer);
    connection.peer = peer;
    connection.state = .peer;
    run.due_at = @min(run.due_at, now +| limits.idle_ns_max);
    // The peer's label is not known before its first `join`.
    run.log(.info, "peer {s} is connected", .{hello.from.short()});
}

/// Gives a known peer its new connection. The old connection is closed: it is dead, even if its end
/// was not seen.
fn comes_back(
    run: *Run,
    now: Instant,
    peer: *Peer,
    connection: *Connection,
) void {
    if (peer.connection) |old| {
        const why = "its peer has another one";
        if (old.has_answered) peer.away_since = now;
        membership.disconnect(run, peer);
        for (run.groups.items) |group| membership.peer_away(run, group, now, peer, why);
        old.doom(why);
    }
    peer.connection = connection;
    peer.source = connection.source;
    peer.last_heard = now;
    peer.idle_since = now;
    peer.forget_witnesses(std.math.maxInt(Instant));
    connection.peer = peer;
    connection.state = .peer;
    run.log(.info, "peer {f} is connected again", .{peer.named()});
}

/// Finds or makes the peer of a member that the journal names. The peer is away until it connects.
pub fn away_peer(
    run: *Run,
    now: Instant,
    id: PeerId,
    instance: u64,
) Allocator.Error!*Peer {
    if (run.peer_of(id)) |peer| {
        peer.instance = instance; // the process with the earlier instance is lost
        return peer;
    }
    try run.peers.ensureUnusedCapacity(run.gpa, 1);
    const peer = try run.gpa.create(Peer);
    peer.* = .{
        .id = id,
        .instance = instance,
        .connection = null,
        .last_heard = now,
        .away_since = now +| run.options.silence_ns,
    };
    run.peers.appendAssumeCapacity(peer);
    return peer;
}

// ---- joins
//
// A peer asks for a group with `join`, an `epoch_report` for each epoch that it knows, and
// `join_end`. After `join_end` the peer is a newcomer or a member that has come back
// (membership.zig), or is told that it was removed.

pub fn on_join(run: *Run, now: Instant, peer: *Peer, body: *const control.Join) !void {
    const name = body.name.data;
    if (name.len == 0) return error.Unexpected;
    if (peer.telling != null or peer.refused) return error.Unexpected;
    // The name is shown to people, and the address is dialed by other peers.
    if (!base.text.is_name(name)) return refuse_group(
        run,
        peer,
        name,
        "its name cannot be shown: it must be UTF-8 without control characters, line ends " ++
            "and marks that turn the writing",
    );
    _ = base.Endpoint.parse_told(body.address.data) catch return refuse_group(
        run,
        peer,
        name,
        "the address of this peer is not that of one host, with a port",
    );
    peer.claim.advertised = body.advertised;
    peer.label = base.Label.read(body.label.data) orelse return refuse_group(
        run,
        peer,
        name,
        "the label of this peer cannot be shown: it must be UTF-8 without control " ++
            "characters, line ends and marks that turn the writing",
    );
    try claim_told(run, peer, body.address.data, body.address_key);
    const known = run.group_named(name);
    // A peer may ask for a group again only when it has the answer to its last `join`.
    if (run.lobby.holds(peer, name)) return error.Unexpected;
    if (known) |group| if (peer.claim.waits_for(group.id)) return error.Unexpected;
    const own = if (known) |group| Peer.bit(group.id) else 0;
    const others = @popCount(peer.present & ~own) + peer.claim.waiting.items.len +
        peer.joins_waiting;
    if (others >= limits.groups_per_peer_max)
        return refuse_group(run, peer, name, "this peer is in 8 groups already; leave one first");
    const told: Told = .of(body);
    // The join of a member that comes back is not set aside: the member loses each group whose
    // epochs it has not told within the silence limit.
    const is_member_here = if (known) |group| group.contains(peer) else false;
    if (!is_member_here and try set_aside(run, now, peer, body)) {
        peer.telling = telling_of(null, &told);
    } else try begin_telling(run, peer, name, &told);
}

fn begin_telling(
    run: *Run,
    peer: *Peer,
    name: []const u8,
    told: *const Told,
) Allocator.Error!void {
    if (objection(run, name, peer, &told.founders)) |why|
        return refuse_group(run, peer, name, why);
    const group = run.group_named(name) orelse
        try make_group(run, name, peer, &told.founders) orelse
        return refuse_group(run, peer, name, "the run has 64 groups already; use one of them");
    if (group.contains(peer) and peer.is_present(group.id))
        return refuse_group(run, peer, name, "this peer is in the group already");
    peer.present &= ~Peer.bit(group.id);
    peer.telling = telling_of(group, told);
    membership.begin_report(group, peer);
}

fn telling_of(group: ?*const Group, told: *const Told) Peer.Telling {
    return .{
        .group = if (group) |known| known.id else null,
        .rounds = told.rounds,
        .initial_world_size = told.initial_world_size,
        .named = told.newest > 0,
        .newest = told.newest,
        .beyond = told.newest > if (group) |known| known.last_epoch else 0,
    };
}

/// Makes a group. Null: the run has 64 groups already.
fn make_group(
    run: *Run,
    name: []const u8,
    peer: *const Peer,
    told: *const control.Founders,
) Allocator.Error!?*Group {
    if (run.groups.items.len >= limits.groups_max) membership.end_groups(run);
    if (run.groups.items.len >= limits.groups_max) return null;
    try run.groups.ensureUnusedCapacity(run.gpa, 1);
    var id = run.next_group;
    while (run.group_at(id) != null) id = (id + 1) % limits.groups_max;
    var founded = try founders_of(run, peer, told);
    errdefer if (founded) |*it| it.deinit(run.gpa);
    const is_founded = founded != null;
    const group = try Group.create(run.gpa, .{
        .id = id,
        .name = name,
        .initial_world_size = if (is_founded) 1 else run.options.initial_world_size,
        .min_world_size = if (is_founded) 1 else run.options.min_world_size,
        .prepare_ns = run.options.prepare_ns,
        .round = run.first_round(),
        .founding = founded,
    });
    run.next_group = (id + 1) % limits.groups_max;
    // Epoch and round numbers go on after those of ended groups, which may have had this name or
    // group number.
    group.last_epoch = @max(group.last_epoch, run.ended.epoch);
    group.round = @max(group.round, run.ended.round);
    run.groups.appendAssumeCapacity(group);
    _ = log.note(run, group, .{ .group = group.record() });
    return group;
}

fn refuse_group(run: *Run, peer: *Peer, name: []const u8, why: []const u8) void {
    peer.refused = true;
    run.say(peer, .{ .refused = .{ .name = .of(name), .why = .of(why) } });
}

pub fn on_epoch_report(
    run: *const Run,
    peer: *Peer,
    body: *const control.EpochReport,
) ProtocolError!void {
    if (peer.refused) return;
    const telling = if (peer.telling) |*telling| telling else return error.Unexpected;
    telling.named = true;
    telling.newest = @max(telling.newest, body.epoch);
    const group = run.group_at(telling.group orelse return).?;
    if (body.epoch > group.last_epoch) telling.beyond = true;
    const epoch = group.epoch_of(body.epoch) orelse return; // the epoch is over
    const rank = epoch.rank_of(peer) orelse return;
    // The peer knows of a removal that the journal has lost.
    if (!body.alive.covers(&epoch.alive)) telling.beyond = true;
    try attempt.hear_return(epoch, rank, body);
}

/// A peer gives up an operation. A peer that is telling its epochs may not know the group's number
/// yet, so its message is about the group that it tells of.
pub fn on_gave_up(run: *Run, peer: *Peer, body: *const control.GaveUp) ProtocolError!void {
    if (peer.refused) return;
    const group = if (peer.telling) |*telling|
        run.group_at(telling.group orelse return).?
    else
        try run.group_of(peer, body.group);
    const epoch = group.epoch_of(body.epoch) orelse return; // the epoch is over
    const rank = epoch.rank_of(peer) orelse return;
    try operation.on_gave_up(run, epoch, rank, body);
}

/// A peer has told all its epochs: admits a newcomer, takes a member back, and tells a removed
/// member why it was removed.
pub fn on_join_end(run: *Run, now: Instant, peer: *Peer) ProtocolError!void {
    if (peer.refused) {
        peer.refused = false;
        return;
    }
    const telling = peer.telling orelse return error.Unexpected;
    peer.telling = null;
    const id = telling.group orelse return is_whole(run, peer, telling.newest);
    const group = run.group_at(id).?;
    const knows = telling.named or group.was_let_in(peer, telling.rounds.preparing);
    if (!knows) membership.take_out(run, now, group, peer, "it left while it was away");
    // The peer knows an epoch or a removal that the journal has lost, so it cannot stay.
    if (telling.beyond) membership.take_out(run, now, group, peer, attempt.knows_more);
    const is_member_here = group.contains(peer);
    if (!is_member_here and !telling.named)
        return admit(run, now, group, peer, telling.initial_world_size);
    membership.welcome_to(run, group, peer);
    if (is_member_here) {
        try settle(run, now, peer);
        return membership.come_back(run, group, now, peer, telling.rounds);
    }
    run.send(peer, group.id, .{ .expelled = .{
        .group = group.id,
        .why = .of(if (telling.beyond) attempt.knows_more else group.removals.why_of(peer.id) orelse
            "it was removed, so long ago that the coordinator does not know why any more"),
    } });
}

/// A peer leaves a group, perhaps after an `expelled`. Later messages of the peer with this group
/// number are about another group.
pub fn on_leave(run: *Run, now: Instant, peer: *Peer, id: u16) void {
    // A peer may send `leave` twice for a group whose number it did not know yet.
    if (!peer.is_present(id)) return;
    membership.take_out(run, now, run.group_at(id).?, peer, "it left");
    peer.present &= ~Peer.bit(id);
    peer.idle_since = now;
    run.due_at = @min(run.due_at, now +| limits.idle_ns_max);
}

/// At a tick: lets in the waiting joins whose rate allows it. The joins of a peer that is telling
/// its epochs wait for a later tick.
pub fn let_in(run: *Run, now: Instant) void {
    var index: usize = 0;
    while (index < run.lobby.waiting.items.len) {
        const item = &run.lobby.waiting.items[index];
        const peer = item.peer;
        const may_enter = item.is_whole and peer.telling == null and !peer.refused;
        const wait_ns = if (may_enter)
            pay(run, now, peer, aim_of(run, item.name, &item.told.founders))
        else
            limits.pause_ns_max;
        if (wait_ns > 0) {
            look_again(run, now, wait_ns);
            index += 1;
            continue;
        }
        const gone = run.lobby.remove(index);
        defer Lobby.free(run.gpa, &gone);
        peer.idle_since = now;
        enter_group(run, now, &gone) catch |err| peer.doom(fault_of(err));
    }
}

fn enter_group(run: *Run, now: Instant, item: *const Lobby.Waiting) ProtocolError!void {
    const peer = item.peer;
    try begin_telling(run, peer, item.name, &item.told);
    if (peer.telling != null) return on_join_end(run, now, peer);
    peer.refused = false; // the `join_end` of this join has come already
}

// ---- founders of a sub-group
//
// A sub-group is made of members of one epoch of another group, its parent. Each founder names the
// same peers, in rank order. The sub-group begins when all founders have asked for it, except those
// that left the parent or were lost to it. No other peer ever enters a sub-group. The founders are
// not in the journal: after a restart, founders that wait ask again, and a sub-group that has begun
// is only known to be closed.

/// The founders that a peer names in its `join`; null: it names none. Asserts that `objection` has
/// found nothing against these founders.
pub fn founders_of(
    run: *const Run,
    peer: *const Peer,
    told: *const control.Founders,
) Allocator.Error!?Founding {
    if (told.members.count == 0) return null;
    var founding: Founding = .{
        .parent = run.group_named(told.parent.data).?.id,
        .epoch = told.epoch,
        .members = try run.gpa.alloc(PeerId, told.members.count),
    };
    errdefer founding.deinit(run.gpa);
    try founding.places.ensureTotalCapacity(run.gpa, told.members.count);
    var it = told.members.iterator();
    for (founding.members, 0..) |*id, place| {
        id.* = it.next().?;
        founding.places.putAssumeCapacity(id.*, @intCast(place));
    }
    founding.asked.set(founding.place_of(peer.id).?);
    const epoch = run.group_at(founding.parent).?.epoch_of(told.epoch).?;
    for (founding.members, 0..) |id, place| {
        if (!epoch.alive.has(epoch.ranks.get(id).?)) founding.gone.set(place);
    }
    return founding;
}

/// Why a peer may not ask for a group as one of its founders; null: it may, or it names no
/// founders. A peer that names no founders may be a member that comes back, so `turns_away` judges
/// it after it has told its epochs.
pub noinline fn objection(
    run: *Run,
    name: []const u8,
    peer: *const Peer,
    told: *const control.Founders,
) ?[]const u8 {
    if (told.members.count == 0) return null;
    membership.end_groups(run); // an earlier group of this name may be over
    const parent = run.group_named(told.parent.data);
    const group = run.group_named(name) orelse return problem(parent, peer, told);
    if (group.contains(peer)) return null; // the peer is a member that has not heard so
    const known = if (group.founding) |*it| it else return other_kind;
    if (group.had_members) return has_begun;
    const maybe = known.place_of(peer.id);
    if (maybe) |place| if (parent != null and known.says(parent.?.id, told)) {
        known.asked.set(place);
        return null;
    };
    if (problem(parent, peer, told)) |why| return why;
    if (maybe == null) known.outsider = peer.id else known.differs = peer.id;
    return null;
}

const other_kind = "there is a group of this name that takes whoever comes; take another name " ++
    "for one of founders";
const not_named = "it is made of founders, and this peer has named none";
const not_one = "it is made of founders, and this peer is not one of them";
const has_begun = "it has begun without this peer, and nobody enters a group of founders " ++
    "afterwards; take another name for another one";
const has_gone = "this peer is no longer in the group that its founders are in";

fn problem(
    parent: ?*const Group,
    peer: *const Peer,
    told: *const control.Founders,
) ?[]const u8 {
    const group = parent orelse return "the group that its founders are in does not exist";
    const epoch = group.epoch_of(told.epoch) orelse
        return "the epoch that its founders are in is over";
    const own = epoch.rank_of(peer) orelse
        return "this peer is not a member of the epoch that its founders are in";
    var named: Mask = .empty;
    var it = told.members.iterator();
    while (it.next()) |id| {
        const rank = epoch.ranks.get(id) orelse
            return "one of its founders is not a member of the epoch that they are to be in";
        if (named.has(rank)) return "one of its founders is named twice";
        named.set(rank);
    }
    return if (named.has(own)) null else "this peer is not one of the founders that it names";
}

/// Refuses a newcomer that may not enter a sub-group, and tells it why. If two founders name
/// different lists, all founders are refused. True: the newcomer was refused.
pub fn turns_away(run: *Run, now: Instant, group: *Group, peer: *Peer) bool {
    const founding = if (group.founding) |*it| it else return false;
    if (group.had_members) return refuse_founder(run, group, peer, has_begun);
    const place = founding.place_of(peer.id) orelse {
        if (!founding.outsider.eql(peer.id)) return refuse_founder(run, group, peer, not_one);
        expel_founder(run, now, group, peer, peer.id);
        return true;
    };
    if (!founding.differs.eql(.none)) {
        expel_founder(run, now, group, peer, founding.differs);
        while (group.newcomers.items.len > 0)
            expel_founder(run, now, group, group.newcomers.items[0].peer, founding.differs);
        return true;
    }
    if (founding.gone.has(place)) return refuse_founder(run, group, peer, has_gone);
    if (!founding.asked.has(place))
        return refuse_founder(run, group, peer, not_named);
    return false;
}

fn refuse_founder(run: *Run, group: *const Group, peer: *Peer, why: []const u8) bool {
    run.say(peer, .{ .refused = .{ .name = .of(group.name), .why = .of(why) } });
    return true;
}

/// Removes a newcomer from a sub-group whose founders name different lists. The newcomer's error
/// (Mismatch) names the peer `differs` and the first founder that asked.
fn expel_founder(run: *Run, now: Instant, group: *Group, peer: *Peer, differs: PeerId) void {
    const founding = &group.founding.?;
    const first = founding.members[founding.asked.at(0)];
    var room: [limits.expelled_bytes_max]u8 = undefined;
    const why = std.fmt.bufPrint(&room, "peer {f} names other founders of group {s} than peer " ++
        "{f}, or in another order: all founders must name the same", .{
        run.named(group, differs),
        group.name,
        run.named(group, first),
    }) catch &room; // the sentence is cut
    if (!peer.is_present(group.id)) membership.welcome_to(run, group, peer);
    membership.expel_as(run, now, group, peer, .{
        .group = group.id,
        .refused = true,
        .why = .of(why),
    });
}

// ---- where peers can be dialed
//
// The addresses at which peers claim that others can dial them, and the search for the peers there.
// An address is told to other peers only if the peer's connection comes from the host of that
// address, or if the driver has found the peer there (net/finder.zig). So no peer can make other
// peers dial a host outside the run. The driver resolves a host name once and members get numeric
// addresses, so no peer can make members ask a name server.
//
// A peer whose user names no address claims the address of its interface. If it is not found there,
// the peer is looked for at the host that its connection comes from, at the same port: clouds give
// a machine a public address that the machine itself does not know, and keep the ports (1:1 NAT).
// At the host of its connection the peer must prove itself, because most NATs lead to another
// machine or to none.
//
// A newcomer waits outside its group until the search has ended. A member stays a member, even if
// it is not found.

/// The pause after a search that the driver does not answer at once, so that a host named by many
/// newcomers is not flooded.
const pace_ns = std.time.ns_per_s / 20;
/// The pause before a member that was not found is looked for again.
const again_ns = 10 * std.time.ns_per_s;

/// A peer tells the address at which it can be dialed. Its former address stays valid until the
/// peer is found at the new one.
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
    // Drops the search for the former address, whose answer says nothing about the new one.
    claim.state = if (claim.waiting.items.len > 0) .queued else .unknown;
    if (claim.state == .queued) queue_question(run, peer, 0);
    // Rounds wait for a search at a member's first address only, so a member that keeps changing
    // its address delays no round.
    claim.failed = is_other and run.is_member(peer) and peer.address.len == 0;
}

/// Whether the address at which a peer was found still fits its connection. An address at the host
/// of an earlier connection does not, if the peer connects from another host by now.
fn is_still_seen(peer: *const Peer) bool {
    if (peer.claim.advertised) return true;
    const connection = peer.connection orelse return true;
    const at = base.Endpoint.parse(peer.address) catch return true; // the address is empty
    const claimed = base.Endpoint.parse(peer.claim.text) catch return true;
    const source = at.source() orelse return true;
    const own = claimed.source() orelse return true;
    return std.mem.eql(u8, &source, &own) or std.mem.eql(u8, &source, &connection.source);
}

/// Looks for a peer that has told its epochs at the address that it claims. No search is needed if
/// the peer was found there or its connection comes from that host.
pub fn settle(run: *Run, now: Instant, peer: *Peer) Allocator.Error!void {
    const claim = &peer.claim;
    if (claim.state != .unknown) return;
    const connection = peer.connection orelse return;
    const endpoint = base.Endpoint.parse(claim.text) catch unreachable; // `on_join` checks it
    const from_there = if (endpoint.source()) |source|
        std.mem.eql(u8, &source, &connection.source)
    else
        false;
    if (from_there) return known_address(run, peer, claim.text);
    run.log(.debug, "peer {f} is looked for at {s}", .{ peer.named(), claim.text });
    queue_question(run, peer, 0);
    try ask_question(run, now);
}

/// Lets a newcomer into the group, at once or when the search at its address has ended.
pub fn admit(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    initial_world_size: u32,
) Allocator.Error!void {
    // Before `settle`, within which the driver may answer.
    try peer.claim.waiting.append(run.gpa, .{
        .group = group.id,
        .initial_world_size = initial_world_size,
    });
    try settle(run, now, peer);
    switch (peer.claim.state) {
        .known, .nowhere => enter_found(run, now, peer),
        .unknown, .queued, .asked => {},
    }
}

fn enter_found(run: *Run, now: Instant, peer: *Peer) void {
    var waiting = peer.claim.waiting;
    peer.claim.waiting = .empty;
    defer waiting.deinit(run.gpa);
    for (waiting.items) |item| {
        add_question(run, now, run.group_at(item.group).?, peer, item.initial_world_size) catch
            return peer.doom("the coordinator has no memory to let it in");
    }
}

/// Makes a peer a newcomer of the group; rounds tell its address to other peers.
fn add_question(
    run: *Run,
    now: Instant,
    group: *Group,
    peer: *Peer,
    initial_world_size: u32,
) Allocator.Error!void {
    if (turns_away(run, now, group, peer)) return;
    membership.welcome_to(run, group, peer);
    run.log(.info, "peer {f} asks to join group {s}", .{ peer.named(), group.name });
    try membership.add_newcomer(run, group, now, peer, initial_world_size);
}

fn known_address(run: *Run, peer: *Peer, address: []const u8) Allocator.Error!void {
    const copy = try run.gpa.dupe(u8, address);
    run.gpa.free(peer.address);
    peer.address = copy;
    peer.claim.state = .known;
    peer.claim.failed = false;
}

fn queue_question(run: *Run, peer: *Peer, not_before: Instant) void {
    run.questions.last_number += 1;
    run.questions.any = true;
    peer.claim.state = .queued;
    peer.claim.number = run.questions.last_number;
    peer.claim.not_before = not_before;
}

/// Asks the driver for the queued searches: for members first, because newcomers wait until members
/// are found. Networks take turns.
fn ask_question(run: *Run, now: Instant) Allocator.Error!void {
    if (!run.questions.any) return;
    // The order is made once, although the driver may have no room for many of the searches.
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
        if (reply == .busy) continue; // the driver may have room for another network
        claim.state = .asked;
        if (reply == .answer) try take(run, now, peer, reply.answer) else run.questions.next_at =
            now +| pace_ns;
    }
    run.questions.any = for (run.peers.items) |peer| {
        if (peer.claim.state == .queued) break true;
    } else false;
}

/// The second address at which a peer is looked for: the host of its connection with the port of
/// its claimed address. Empty: there is none, because the user has named the address, or the
/// connection comes over the loopback interface, which other machines cannot dial.
fn seen_at(peer: *const Peer, room: *Room) []const u8 {
    const source = peer.connection.?.source;
    if (peer.claim.advertised or base.source.is_unknown(source)) return "";
    if (base.source.is_loopback(source)) return "";
    const endpoint = base.Endpoint.parse(peer.claim.text) catch unreachable; // `on_join` checks it
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

/// The peers whose searches are due, in the order in which the driver is asked.
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

/// Orders peers of one kind, members or newcomers. Networks with few searches under way come first,
/// and networks from which a peer was not found lately come last.
fn take_turns(run: *const Run, now: Instant, waiting: []Turn) void {
    var candidates: [base.limits.peers_max]NewcomerTurn = undefined;
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
    turn_order(candidates[0..waiting.len]);
    for (waiting, candidates[0..waiting.len]) |*turn, *candidate| turn.* = before[candidate.index];
}

/// Takes the driver's result of search `number`; the peer may have gone meanwhile.
pub fn answered(run: *Run, now: Instant, number: u64, answer: Answer) void {
    take_answer(run, now, number, answer) catch |err| not_asked(run, err);
}

/// At a tick: asks the driver for the searches that are due.
pub fn ask_now(run: *Run, now: Instant) void {
    ask_question(run, now) catch |err| not_asked(run, err);
}

/// Logs that memory ran out during a search; the next tick tries again.
fn not_asked(run: *Run, err: Allocator.Error) void {
    run.log(.err, "{t} while peers were looked for where they say they are", .{err});
}

/// Takes the result of a search. Drops it if the peer is gone or has told another address since.
fn take_answer(run: *Run, now: Instant, number: u64, answer: Answer) Allocator.Error!void {
    const peer = for (run.peers.items) |peer| {
        if (peer.claim.state == .asked and peer.claim.number == number) break peer;
    } else null;
    if (peer) |item| try take(run, now, item, answer);
    try ask_question(run, now);
}

fn take(run: *Run, now: Instant, peer: *Peer, answer: Answer) Allocator.Error!void {
    const claim = &peer.claim;
    switch (answer) {
        .found => |address| {
            known_address(run, peer, address) catch |err| {
                queue_question(run, peer, now +| again_ns);
                return err;
            };
            enter_found(run, now, peer);
        },
        .not_found => |dialed| {
            claim.state = .unknown;
            if (peer.connection) |connection|
                run.questions.not_found.add(connection.source, now);
            const is_told = claim.failed or claim.waiting.items.len > 0;
            if (claim.advertised)
                refuse_address(run, peer, dialed)
            else
                do_without(run, now, peer, dialed);
            if (run.is_member(peer)) {
                const why = "peer {f} is not found at {s}: newcomers are not told where it is";
                // Behind NAT this is normal: only an address that the user has named needs mending.
                if (!is_told) run.log(if (claim.advertised) .warning else .info, why, .{
                    peer.named(),
                    claim.text,
                });
                claim.failed = true;
                queue_question(run, peer, now +| again_ns);
            }
        },
    }
    // A round may wait for the end of a member's search.
    for (run.groups.items) |group| if (group.contains(peer))
        membership.advance_round(run, group, now);
}

/// Lets in a peer that was not found at the address of its own interface, as behind NAT. The peer
/// enters without an address, and dials the others.
fn do_without(run: *Run, now: Instant, peer: *Peer, why: wire.Dialed) void {
    peer.claim.state = .nowhere;
    const is_news = peer.claim.waiting.items.len > 0;
    enter_found(run, now, peer);
    if (!is_news) return;
    run.log(.info, "peer {f} is not found at {s} ({s}): it can dial the others, but " ++
        "nobody can dial it", .{
        peer.named(),
        peer.claim.text,
        why.why(),
    });
    for (run.groups.items) |group| run.send(peer, group.id, .{ .unreached = .{
        .group = group.id,
        .peer = .none,
        .dialed = why,
        .address = .of(peer.claim.text),
    } });
}

/// Refuses the pending joins of a peer that was not found at the address that its user advertises,
/// and tells the peer what to do. The peer stays in the groups that it has entered.
fn refuse_address(run: *Run, peer: *Peer, dialed: wire.Dialed) void {
    var waiting = peer.claim.waiting;
    peer.claim.waiting = .empty;
    defer waiting.deinit(run.gpa);
    var room: [why_bytes_max]u8 = undefined;
    const why = std.fmt.bufPrint(&room, why_format, .{ peer.claim.text, dialed.why() }) catch
        unreachable; // `why_bytes_max` has room for all `why()`
    for (waiting.items) |item| {
        const name = run.group_at(item.group).?.name;
        run.log(.info, "peer {f} may not join group {s}: it is not found at {s}", .{
            peer.named(),
            name,
            peer.claim.text,
        });
        run.say(peer, .{ .refused = .{ .name = .of(name), .why = .of(why) } });
    }
}

const why_format = "the coordinator cannot reach this peer at {s} ({s}), and its connection " ++
    "comes from another host: advertise an address that leads here";
const why_bytes_max = why_format.len + base.limits.address_bytes_max + wire.dialed.why_bytes_max;

pub fn next_question_deadline(run: *const Run, now: Instant) Instant {
    if (!run.questions.any) return base.never;
    // A search for which the driver had no room waits for another answer, or for the next tick.
    return if (run.questions.next_at > now) run.questions.next_at else base.never;
}

// ---- joins that wait
//
// The lobby has joins of newcomers that exceed the rate of their peer or of their network
// (peer.zig). The coordinator takes all other messages of the peer meanwhile, because the peer may
// be a member of other groups. Joins from one network enter in order of arrival. The join of a
// member that comes back does not wait. The join of a founder waits only for the rate of its own
// peer.

/// Puts a join into the lobby if it must wait. False: the join need not wait.
pub fn set_aside(
    run: *Run,
    now: Instant,
    peer: *Peer,
    body: *const control.Join,
) Allocator.Error!bool {
    const name = body.name.data;
    const aim = aim_of(run, name, &body.founders);
    const is_behind_others = is_behind(run, peer, aim);
    const wait_ns = if (is_behind_others) limits.pause_ns_min else pay(run, now, peer, aim);
    if (wait_ns == 0) return false;
    try run.lobby.waiting.ensureUnusedCapacity(run.gpa, 1);
    var told: Told = .of(body);
    told.founders = try copy_founders(run.gpa, &body.founders);
    errdefer free_founders(run.gpa, &told.founders);
    run.lobby.waiting.appendAssumeCapacity(.{
        .peer = peer,
        .name = try run.gpa.dupe(u8, name),
        .aim = aim,
        .told = told,
    });
    peer.joins_waiting += 1;
    look_again(run, now, wait_ns);
    return true;
}

pub fn aim_of(run: *const Run, name: []const u8, founders: *const control.Founders) ?Aim {
    if (founders.members.count > 0) return null;
    return if (run.group_named(name) == null) .begins_group else .enters_group;
}

/// Whether an earlier join from the same network, with the same aim, waits in the lobby.
fn is_behind(run: *const Run, peer: *const Peer, aim: ?Aim) bool {
    for (run.lobby.waiting.items) |*item| {
        if (aim == null and item.peer != peer) continue;
        if (item.aim == aim and base.places.same_network(item.peer.source, peer.source))
            return true;
    }
    return false;
}

/// Charges a join that may enter, and returns 0. Otherwise returns the nanoseconds until the join's
/// rate allows it.
pub fn pay(run: *Run, now: Instant, peer: *Peer, aim: ?Aim) u64 {
    const own = &peer.rates.joins;
    const own_ns = own.wait_ns(now, join_price);
    if (own_ns > 0) return own_ns;
    const arrives = aim orelse {
        own.take(now, join_price, 1);
        return 0;
    };
    const shared = run.arrivals.of(run.gpa, now, peer.source, arrives);
    const shared_ns = shared.wait_ns(now, network_join_price);
    if (shared_ns > 0) return shared_ns;
    own.take(now, join_price, 1);
    shared.take(now, network_join_price, 1);
    return 0;
}

pub fn look_again(run: *Run, now: Instant, wait_ns: u64) void {
    const soon = std.math.clamp(wait_ns, limits.pause_ns_min, limits.pause_ns_max);
    run.due_at = @min(run.due_at, now +| soon);
}

/// Notes that a peer has told all its epochs for its last join in the lobby, which may enter from
/// now on.
pub fn is_whole(run: *Run, peer: *const Peer, newest: u64) void {
    for (run.lobby.waiting.items) |*item| if (item.peer == peer and !item.is_whole) {
        item.told.newest = newest;
        item.is_whole = true;
    };
}

/// Whether a message is ignored. While a join of a peer waits, the peer may name its group by the
/// number that the group had on the peer's last connection.
pub fn is_void(peer: *const Peer, message: *const control.Message) bool {
    if (peer.joins_waiting == 0 or peer.telling != null) return false;
    switch (message.*) {
        inline else => |*body| {
            const Body = @TypeOf(body.*);
            return @hasField(Body, "group") and !peer.is_present(body.group);
        },
    }
}
