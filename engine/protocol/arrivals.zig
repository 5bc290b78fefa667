//! arrivals: joins of newcomers that wait because there were too many, of one peer or from one
//! network (rates.zig). The coordinator reads on: it hears and answers everything else that the
//! peer says, since the peer may be a member of other groups. Joins of one network are let in in
//! the order in which they came. Members that come back and name their epochs do not wait here.
//! Founders of a group (founders.zig) are members of another: they wait for themselves alone.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const founding = @import("founding.zig");
const rates = @import("rates.zig");
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Told = @import("lobby.zig").Told;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const control = wire.control;
const limits = base.limits;
const Aim = rates.Arrivals.Aim;

/// Takes a join that must wait; false if it need not.
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
    told.founders = try founding.copy(run.gpa, &body.founders);
    errdefer founding.free(run.gpa, &told.founders);
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

/// Others from there, who want the like, were first.
fn is_behind(run: *const Run, peer: *const Peer, aim: ?Aim) bool {
    for (run.lobby.waiting.items) |*item| {
        if (aim == null and item.peer != peer) continue;
        if (item.aim == aim and base.places.same_network(item.peer.source, peer.source))
            return true;
    }
    return false;
}

/// How long the join has to wait; 0: it is paid for.
pub fn pay(run: *Run, now: Instant, peer: *Peer, aim: ?Aim) u64 {
    const own = &peer.rates.joins;
    const own_ns = own.wait_ns(now, rates.joins);
    if (own_ns > 0) return own_ns;
    const arrives = aim orelse {
        own.take(now, rates.joins, 1);
        return 0;
    };
    const shared = run.arrivals.of(run.gpa, now, peer.source, arrives);
    const shared_ns = shared.wait_ns(now, rates.joins_of_network);
    if (shared_ns > 0) return shared_ns;
    own.take(now, rates.joins, 1);
    shared.take(now, rates.joins_of_network, 1);
    return 0;
}

pub fn look_again(run: *Run, now: Instant, wait_ns: u64) void {
    const soon = std.math.clamp(wait_ns, limits.pause_ns_min, limits.pause_ns_max);
    run.due_at = @min(run.due_at, now +| soon);
}

/// The peer has told everything of the join that was set aside last.
pub fn is_whole(run: *Run, peer: *const Peer, newest: u64) void {
    for (run.lobby.waiting.items) |*item| if (item.peer == peer and !item.is_whole) {
        item.told.newest = newest;
        item.is_whole = true;
    };
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
