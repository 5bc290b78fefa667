//! Lobby: joins of newcomers that wait because there were too many, of one peer or from one network
//! (rates.zig). The coordinator reads on: it hears and answers everything else that the peer says,
//! since the peer may be a member of other groups. Joins of one network are let in in the order in
//! which they came. Members that come back and name their epochs do not wait here. Founders of a
//! group (founding.zig) are members of another: they wait for themselves alone.
//!
//! Free functions on Coordinator, so that coordinator.zig stays readable.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const founding = @import("founding.zig");
const rates = @import("rates.zig");
const Coordinator = @import("coordinator.zig").Coordinator;
const Group = @import("group.zig").Group;
const Peer = @import("coordinator.zig").Peer;
const ProtocolError = @import("epoch.zig").ProtocolError;
const Aim = rates.Arrivals.Aim;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;

pub const Lobby = struct {
    /// In the order in which they came. Each peer has as many as it may have groups.
    waiting: std.ArrayList(Waiting) = .empty,

    const Waiting = struct {
        peer: *Peer,
        name: []u8,
        /// When it came; null for one of a founder, who is a member elsewhere: it keeps to its own
        /// rate alone.
        aim: ?Aim,
        told: Told,
        /// The peer has told everything.
        is_whole: bool = false,
    };

    pub fn deinit(lobby: *Lobby, gpa: Allocator) void {
        for (lobby.waiting.items) |*item| free(gpa, item);
        lobby.waiting.deinit(gpa);
    }

    fn free(gpa: Allocator, item: *const Waiting) void {
        gpa.free(item.name);
        founding.free(gpa, &item.told.founders);
    }

    fn find(lobby: *const Lobby, peer: *const Peer, name: []const u8) ?*Waiting {
        for (lobby.waiting.items) |*item| {
            if (item.peer == peer and std.mem.eql(u8, item.name, name)) return item;
        }
        return null;
    }

    fn remove(lobby: *Lobby, index: usize) Waiting {
        const item = lobby.waiting.orderedRemove(index);
        item.peer.joins_waiting -= 1;
        return item;
    }
};

/// A `join`, and the newest epoch that was named after it; 0: none.
pub const Told = struct {
    rounds: Group.Rounds,
    initial_world_size: u32,
    /// In the bytes of the message, or in the lobby's.
    founders: control.Founders,
    newest: u64 = 0,

    pub fn of(body: *const control.Join) Told {
        return .{
            .rounds = .{ .preparing = body.round, .stopping = body.stop_round },
            .initial_world_size = body.initial_world_size,
            .founders = body.founders,
        };
    }
};

/// Takes a join that must wait; false if it need not.
pub fn set_aside(
    c: *Coordinator,
    now: Instant,
    peer: *Peer,
    body: *const control.Join,
) Allocator.Error!bool {
    const name = body.name.data;
    // One whose user has given up and tries again has one answer.
    if (c.lobby.find(peer, name)) |item| {
        const founders = try founding.copy(c.gpa, &body.founders);
        founding.free(c.gpa, &item.told.founders);
        item.told = .of(body);
        item.told.founders = founders;
        item.is_whole = false;
        return true;
    }
    const aim = aim_of(c, name, &body.founders);
    const wait_ns = if (is_behind(c, peer, aim)) limits.pause_ns_min else pay(c, now, peer, aim);
    if (wait_ns == 0) return false;
    try c.lobby.waiting.ensureUnusedCapacity(c.gpa, 1);
    var told: Told = .of(body);
    told.founders = try founding.copy(c.gpa, &body.founders);
    errdefer founding.free(c.gpa, &told.founders);
    c.lobby.waiting.appendAssumeCapacity(.{
        .peer = peer,
        .name = try c.gpa.dupe(u8, name),
        .aim = aim,
        .told = told,
    });
    peer.joins_waiting += 1;
    look_again(c, now, wait_ns);
    return true;
}

fn aim_of(c: *const Coordinator, name: []const u8, founders: *const control.Founders) ?Aim {
    if (founders.members.count > 0) return null;
    return if (c.group_named(name) == null) .begins_group else .enters_group;
}

/// Others from there, who want the like, were first.
fn is_behind(c: *const Coordinator, peer: *const Peer, aim: ?Aim) bool {
    for (c.lobby.waiting.items) |*item| {
        if (aim == null and item.peer != peer) continue;
        if (item.aim == aim and base.places.same_network(item.peer.source, peer.source))
            return true;
    }
    return false;
}

/// How long the join has to wait; 0: it is paid for.
fn pay(c: *Coordinator, now: Instant, peer: *Peer, aim: ?Aim) u64 {
    const own = &peer.rates.joins;
    const own_ns = own.wait_ns(now, rates.joins);
    if (own_ns > 0) return own_ns;
    const arrives = aim orelse {
        own.take(now, rates.joins, 1);
        return 0;
    };
    const shared = c.arrivals.of(c.gpa, now, peer.source, arrives);
    const shared_ns = shared.wait_ns(now, rates.joins_of_network);
    if (shared_ns > 0) return shared_ns;
    own.take(now, rates.joins, 1);
    shared.take(now, rates.joins_of_network, 1);
    return 0;
}

fn look_again(c: *Coordinator, now: Instant, wait_ns: u64) void {
    const soon = std.math.clamp(wait_ns, limits.pause_ns_min, limits.pause_ns_max);
    c.due_at = @min(c.due_at, now +| soon);
}

/// The peer has told everything of the join that was set aside last.
pub fn is_whole(c: *Coordinator, peer: *const Peer, newest: u64) void {
    for (c.lobby.waiting.items) |*item| if (item.peer == peer and !item.is_whole) {
        item.told.newest = newest;
        item.is_whole = true;
    };
}

/// At a tick: lets those in whose time has come. A peer that is telling something is asked the next
/// time.
pub fn let_in(c: *Coordinator, now: Instant) void {
    var index: usize = 0;
    while (index < c.lobby.waiting.items.len) {
        const item = &c.lobby.waiting.items[index];
        const peer = item.peer;
        const may_enter = item.is_whole and peer.telling == null and !peer.refused;
        const wait_ns = if (may_enter)
            pay(c, now, peer, aim_of(c, item.name, &item.told.founders))
        else
            limits.pause_ns_max;
        if (wait_ns > 0) {
            look_again(c, now, wait_ns);
            index += 1;
            continue;
        }
        const gone = c.lobby.remove(index);
        defer Lobby.free(c.gpa, &gone);
        peer.idle_since = now;
        enter(c, now, &gone) catch |err| peer.doom(Coordinator.fault_of(err));
    }
}

fn enter(c: *Coordinator, now: Instant, item: *const Lobby.Waiting) ProtocolError!void {
    const peer = item.peer;
    try c.begin_telling(peer, item.name, &item.told);
    if (peer.telling != null) return c.on_join_end(now, peer);
    peer.refused = false; // it has told everything already
}

/// Its connection is gone: it asks anew.
pub fn disconnected(c: *Coordinator, peer: *const Peer) void {
    if (peer.joins_waiting == 0) return;
    var index = c.lobby.waiting.items.len;
    while (index > 0) {
        index -= 1;
        if (c.lobby.waiting.items[index].peer != peer) continue;
        const gone = c.lobby.remove(index);
        Lobby.free(c.gpa, &gone);
    }
}

/// While a join of its waits, a peer may speak of a group by its number from before this
/// connection: the answer to the join makes that void.
pub fn is_void(peer: *const Peer, message: *const control.Message) bool {
    if (peer.joins_waiting == 0 or peer.telling != null) return false;
    switch (message.*) {
        inline else => |*body| {
            const Body = @TypeOf(body.*);
            return @hasField(Body, "group") and !peer.is_present(body.group);
        },
    }
}
