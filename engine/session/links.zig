//! links: which peers this one keeps lanes to, and how those lanes come and go: dialing, breaking,
//! dialing again, and what the coordinator is told of it. Free functions on Session. How a
//! connection becomes a lane: greeting.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Session = @import("session.zig").Session;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Group = @import("group.zig").Group;
const labels = @import("labels.zig");
const measure = @import("measure.zig");
const operations = @import("operations.zig");
const prefetch = @import("prefetch.zig");
const probing = @import("probing.zig");
const resend = @import("resend.zig");
const rounds = @import("rounds.zig");
const surplus = @import("surplus.zig");
const syncing = @import("syncing.zig");
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const limits = base.limits;

/// A connection must be made and greeted within this time.
pub const greet_ns_max = limits.stranger_ns_max;
const retry_ns_min: u64 = 20 * std.time.ns_per_ms;
const retry_ns_max: u64 = 2 * std.time.ns_per_s;
/// The side that does not lead waits for this part of the silence limit before it dials.
const stands_by_parts = 10;
/// Where a peer is dialed is asked for no more often.
const ask_ns: u64 = std.time.ns_per_s;
const retries_before_asking = 6;

pub fn obtain(s: *Session, id: PeerId) Allocator.Error!*Link {
    if (s.link_to(id)) |link| return link;
    try s.links.ensureUnusedCapacity(s.gpa, 1);
    const link = try s.gpa.create(Link);
    link.* = .{
        .gpa = s.gpa,
        .peer = id,
        .wins = id.less_than(s.self),
        .leads = id.less_than(s.self),
        .expires_at = s.now + Session.linger_ns,
        .early = .{ .gpa = s.gpa },
        .flow = .init(s.settings.lanes),
        .down_since = s.now,
    };
    stand_by(s, link);
    s.links.appendAssumeCapacity(link);
    return link;
}

/// The other side, which leads, may make the lanes that are missing.
fn stand_by(s: *Session, link: *Link) void {
    if (link.leads) return;
    link.retry_at = @max(link.retry_at, s.now +| s.settings.silence_ns / stands_by_parts);
}

/// Finds out which links are wanted now, opens those and lets the others expire.
pub fn review(s: *Session) void {
    for (s.links.items) |link| {
        // Nobody dials what is not wanted, so only from now on it can be down.
        if (link.wanted) link.expires_at = s.now + Session.linger_ns else link.down_since = s.now;
        if (!link.wanted) stand_by(s, link);
        link.wanted = false;
        link.borrowed = false;
    }
    for (s.groups.items) |group| {
        if (group.state != .joined) continue;
        for (group.round_peers.items) |id| want(s, id);
        for (group.states.items) |*shared| {
            const fetching = shared.prefetch orelse continue;
            for (fetching.peers) |*peer| want(s, peer.id);
        }
        for (group.member.epochs) |slot| {
            const epoch = slot orelse continue;
            // Links in rank order are kept as well: they serve again once broken links are well.
            for ([_]base.Order{ epoch.paths.order, .of(&epoch.alive) }) |order| {
                const own = order.position(epoch.rank);
                for (order.slice(), 0..) |rank, position| {
                    if (base.reaches(own, position, order.count, epoch.world_size()))
                        want(s, epoch.ids[rank]);
                }
            }
        }
    }
    for (s.operations.items) |operation| if (operation.op.state != .finished) {
        const id = operation.partner() orelse continue;
        if (s.link_to(id)) |link| mark_borrowed(link);
    };
    // Links that nobody uses are not reported, and how they will be next time is not known.
    for (s.links.items) |link| if (!link.wanted) tell(s, link, .up);
    dial_missing(s);
}

/// A message needs this link, whether others do or not.
pub fn borrow(s: *Session, link: *Link) void {
    if (link.wanted) return;
    mark_borrowed(link);
    link.down_since = s.now;
    stand_by(s, link);
    dial_missing(s);
}

fn mark_borrowed(link: *Link) void {
    if (link.wanted) return;
    link.wanted = true;
    link.borrowed = true;
}

/// A message is over.
pub fn give_back(s: *Session, id: PeerId) void {
    const link = s.link_to(id) orelse return;
    if (link.borrowed) s.links_stale = true;
}

fn want(s: *Session, id: PeerId) void {
    if (id.eql(s.self)) return;
    const link = obtain(s, id) catch {
        return s.log(.err, "out of memory for the link to peer {f}", .{labels.named(s, id)});
    };
    link.wanted = true;
}

/// The settings of the run are known; lanes need no coordinator.
pub fn is_in_run(s: *const Session) bool {
    return s.knows_settings() and s.control_state != .lost;
}

/// Looks at what all lanes have moved since the last time, for as long as they move anything.
pub fn measure_all(s: *Session) void {
    const ns = s.now -| s.measured_at;
    s.measured_at = s.now;
    for (s.links.items) |link| labels.limit(s, link);
    const moves = measure.run(s.host, s.links.items, &s.node, ns, s.rates.all);
    s.measure_at = if (moves) s.now +| measure.every_ns else base.never;
    // The coordinator hears at once that there is a moment for a probe.
    if (probing.may_begin(s)) s.heartbeat_at = @min(s.heartbeat_at, s.now);
    for (s.links.items) |link| if (link.flow.is_news()) {
        stand_by(s, link);
        s.wake(link);
    };
    dial_missing(s);
}

/// So many lanes the other side would like, and so far it takes this one to be, which only the side
/// that dials finds out where the system does not say.
pub fn on_ping(
    s: *Session,
    link: *Link,
    header: *const wire.frame.Header,
) error{ TooMany, TooFar }!void {
    const count, const rtt_ns = .{ header.index, header.tag };
    if (count > limits.lanes_per_link_max) return error.TooMany;
    if (rtt_ns > limits.link_rtt_ns_told_max) return error.TooFar;
    if (link.flow.base_ns == 0) link.flow.note_distance(rtt_ns);
    link.flow.theirs = @intCast(count);
    link.flow.way_back.heard(header.sequence, s.now);
    if (lacks_lanes(link)) dial_missing(s);
}

fn dial_missing(s: *Session) void {
    if (!is_in_run(s)) return;
    for (s.links.items) |link| {
        if (!link.wanted or link.retry_at > s.now or !lacks_lanes(link)) continue;
        const address = s.addresses.get(link.peer.bytes) orelse {
            link.dialed = .no_address;
            ask_address(s, link);
            continue;
        };
        // It may have another one by now.
        if (link.retries >= retries_before_asking) ask_address(s, link);
        link.set_address(address) catch continue; // tried again at the next review
        for (link.places(), 0..) |place, number| {
            if (place != null) continue;
            const lane = s.gpa.create(Lane) catch break;
            lane.* = .dialed(s.gpa, link, @intCast(number), s.now + greet_ns_max);
            link.put(lane);
            s.host.vtable.dial(s.host.ctx, lane, link.address);
        }
    }
}

fn lacks_lanes(link: *Link) bool {
    for (link.places()) |place| if (place == null) return true;
    return false;
}

/// A round tells the addresses of those to whom lanes are opened for it, and no others.
fn ask_address(s: *Session, link: *Link) void {
    if (link.asked_at) |at| if (s.now < at +| ask_ns) return;
    for (s.groups.items) |group| {
        const id = group.id orelse continue;
        if (group.state != .joined or !group.member.connected or !group.knows(link.peer)) continue;
        link.asked_at = s.now;
        return s.send(.{ .ask_address = .{ .group = id, .peer = link.peer } });
    }
}

pub fn on_address(s: *Session, entry: *const wire.control.MemberEntry) Allocator.Error!void {
    const link = s.link_to(entry.id) orelse return; // it has expired since
    if (link.asked_at == null) return; // nor has it asked
    try s.remember_address(entry.id, entry.address.data);
    dial_missing(s);
}

// ---- a lane's life

/// This side ends the connection. The lane is invalid afterwards.
pub fn fail(s: *Session, lane: *Lane, why: []const u8) void {
    if (lane.link) |link| {
        s.log(
            .info,
            "lane {d} to peer {f} is closed: {s}",
            .{ lane.number, labels.named(s, link.peer), why },
        );
    }
    s.host.vtable.lane_close(s.host.ctx, lane);
    lane_gone(s, lane);
}

/// How a dial of this peer has ended.
pub fn note_dialed(s: *Session, lane: *const Lane, why: wire.Dialed) void {
    const place = if (lane.link) |link| &link.dialed else &s.dial_back.?.dialed;
    place.* = why;
}

/// The connection is gone. The lane is invalid afterwards.
pub fn lane_gone(s: *Session, lane: *Lane) void {
    if (lane.link) |link|
        detach(s, lane, link)
    else if (lane.is_ours)
        dial_back_over(s)
    else
        stranger_forget(s, lane);
    lane_free(s, lane);
}

/// The coordinator hears how a dial that it has asked for has ended.
fn dial_back_over(s: *Session) void {
    const ended = s.dial_back.?;
    s.dial_back = null;
    s.send(.{ .dialed_back = .{
        .nonce = ended.nonce,
        .dialed = ended.dialed,
        .proof = ended.proof,
    } });
}

fn detach(s: *Session, lane: *Lane, link: *Link) void {
    link.lanes[lane.number] = null;
    s.places_freed = true;
    if (lane.number < link.flow.lanes()) dial_later(s, link);
    if (lane.state != .open) return;
    link.open_count -= 1;
    if (link.open_count == 0) link.down_since = s.now;
    const is_mended = link.open_count > 0 and resend.lane_gone(s, lane, link);
    // One that nobody wants is closed because of that.
    const state: wire.control.LinkState =
        if (link.open_count == 0 and link.wanted) .closed else .broken;
    for (s.groups.items) |group| report(s, group, link, state, is_mended);
    prefetch.lane_gone(s, lane, link);
    s.wake(link); // another lane may serve in its place
}

/// A lane is missing that there is to be.
fn dial_later(s: *Session, link: *Link) void {
    const back_off = @min(retry_ns_min << @min(link.retries, 8), retry_ns_max);
    link.retry_at = s.now + back_off / 2 + s.prng.below(back_off);
    link.retries +|= 1;
    stand_by(s, link);
}

/// Closes the lanes that broke while somebody was using them.
pub fn close_broken(s: *Session) void {
    for (s.links.items) |link| for (link.lanes) |place| {
        const lane = place orelse continue;
        if (lane.broken) fail(s, lane, "out of memory");
    };
}

/// A lane that breaks takes along what was in the air on it. Operations that use it need a new
/// attempt, unless others do what was left to do; one that was the last says that the other peer
/// may be dead.
fn report(
    s: *Session,
    group: *Group,
    link: *const Link,
    state: wire.control.LinkState,
    is_mended: bool,
) void {
    if (group.state != .joined or !group.member.connected) return;
    // It is in no epoch yet, and may be the only one left to notice.
    if (state == .closed and group.member.newest() == 0 and group.knows(link.peer))
        s.send(.{ .link_lost = .{
            .other = link.peer,
            .group = group.id.?,
            .epoch = 0,
            .attempt = 0,
            .state = state,
        } });
    for (group.member.epochs) |slot| {
        const epoch = slot orelse continue;
        const is_harmed = !is_mended and in_use(s, link, group, epoch.number);
        if (state == .broken and !is_harmed) continue;
        const rank = epoch.rank_of(link.peer) orelse continue;
        if (!epoch.alive.has(rank)) continue;
        s.send(.{ .link_lost = .{
            .other = link.peer,
            .group = group.id.?,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .state = state,
        } });
    }
}

/// A lane of it broke, and what it had not delivered cannot go again any more.
pub fn cut_short(s: *Session, link: *const Link) void {
    for (s.groups.items) |group| report(s, group, link, .broken, false);
}

/// Reports to a coordinator that was away when these lanes closed. News that it may know already
/// are no sign that the other is dead.
pub fn report_closed(s: *Session, group: *Group) void {
    for (s.links.items) |link| {
        // One that was never open says nothing of the other side either.
        const closed = link.wanted and link.was_open and link.open_count == 0;
        if (closed and link.told == .up) report(s, group, link, .closed, false);
    }
    say_broken(s, group);
}

/// Reports the links that the coordinator does not know of, or may have forgotten.
pub fn say_broken(s: *Session, group: *const Group) void {
    for (s.links.items) |link| if (link.told != .up) say(s, group, link);
}

/// Tells all groups of both how the link is, if that is news.
pub fn tell(s: *Session, link: *Link, health: wire.control.LinkHealth) void {
    const news = link.told != health;
    link.told = health;
    if (!news) return;
    for (s.groups.items) |group| say(s, group, link);
    if (health == .down and link.dialed != .pending and !is_away(s, link.peer))
        rounds.note_unreached(s, link);
    if (health == .down) operations.link_down(s, link);
    rounds.check_ready(s);
}

/// By the coordinator's word.
fn is_away(s: *const Session, id: PeerId) bool {
    for (s.groups.items) |group| if (group.awaited.is_away(id)) return true;
    return false;
}

fn say(s: *Session, group: *const Group, link: *const Link) void {
    if (group.state != .joined or !group.member.connected) return;
    if (!group.knows(link.peer)) return;
    s.send(.{ .link_told = .{
        .other = link.peer,
        .group = group.id.?,
        .health = link.told,
        .dialed = link.dialed,
        .source = link.dialed_from,
    } });
}

fn in_use(s: *const Session, link: *const Link, group: *const Group, epoch: u64) bool {
    for (s.operations.items) |operation| {
        if (operation.group != group or operation.op.epoch != epoch) continue;
        if (operation.neighbour(link) != null) return true;
        if (operation.sync()) |shared| if (shared.uses(link)) return true;
    }
    return false;
}

pub fn stranger_forget(s: *Session, lane: *Lane) void {
    for (s.strangers.items, 0..) |item, index| if (item == lane) {
        _ = s.strangers.swapRemove(index);
        return;
    };
}

pub fn lane_free(s: *Session, lane: *Lane) void {
    lane.deinit();
    s.gpa.destroy(lane);
}

pub fn free(s: *Session, link: *Link) void {
    for (link.lanes) |place| if (place) |lane| lane_free(s, lane);
    link.deinit();
    s.gpa.destroy(link);
}

// ---- time

pub fn tick(s: *Session, late: bool) void {
    var index: usize = s.strangers.items.len;
    while (index > 0) {
        index -= 1;
        const lane = s.strangers.items[index];
        if (lane.deadline <= s.now) fail(s, lane, "it did not say who it is in time");
    }
    if (s.dial_back) |under_way| tick_lane(s, under_way.lane, late);
    index = s.links.items.len;
    while (index > 0) {
        index -= 1;
        const link = s.links.items[index];
        if (late) link.down_since = s.now;
        for (link.lanes) |place| if (place) |lane| tick_lane(s, lane, late);
        if (link.ends_at() <= s.now) {
            close(s, link);
            for (s.operations.items) |operation| syncing.link_gone(s, operation, link);
            _ = s.links.orderedRemove(index);
            free(s, link);
        } else if (is_down(s, link)) {
            tell(s, link, .down);
        }
    }
    dial_missing(s);
}

/// An open lane says something every heartbeat, so that one whose bytes are swallowed is noticed,
/// and one that takes none any more.
fn tick_lane(s: *Session, lane: *Lane, late: bool) void {
    if (lane.deadline <= s.now) {
        const why: wire.Dialed = if (lane.state == .dialing) .no_answer else .silent;
        if (lane.is_ours) note_dialed(s, lane, why);
        return fail(s, lane, "it was not greeted in time");
    }
    if (lane.state != .open) return;
    if (late) {
        lane.heard_at = s.now;
        lane.spoke_at = s.now;
    }
    if (s.now -| lane.heard_at >= s.settings.silence_ns)
        return fail_still(s, lane, "nothing was heard on it for the silence limit");
    if (s.now -| lane.spoke_at >= s.settings.silence_ns)
        return fail_still(s, lane, "it has taken nothing for the silence limit");
    if (surplus.is_over(s, lane, late)) return fail(s, lane, "the link needs fewer lanes");
    if (s.now -| lane.spoke_at < s.settings.heartbeat_ns / 2 or lane.out_busy) return;
    lane.ping_due = true;
    s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// Nothing moves on a lane. If it was the last, others need not wait until it is known whether a
/// new one works.
fn fail_still(s: *Session, lane: *Lane, why: []const u8) void {
    const link = lane.link.?;
    fail(s, lane, why);
    if (link.open_count == 0 and link.told == .up) tell(s, link, .silent);
}

fn is_down(s: *const Session, link: *const Link) bool {
    const may_be = link.wanted and link.told != .down and link.open_count == 0;
    return may_be and !waits_for_call(link) and s.knows_settings() and
        s.now -| link.down_since >= s.settings.silence_ns;
}

/// A link that is only for a message, and that this side cannot make, may be there when the other
/// side has called, too. One of the two finds out that it is broken.
fn waits_for_call(link: *const Link) bool {
    return link.borrowed and !link.wins;
}

fn close(s: *Session, link: *Link) void {
    for (link.lanes) |place| if (place) |lane| fail(s, lane, "it is not needed any more");
}

pub fn next_deadline(s: *const Session) base.Instant {
    var next: base.Instant = base.never;
    for (s.strangers.items) |lane| next = @min(next, lane.deadline);
    if (s.dial_back) |under_way| next = @min(next, under_way.lane.deadline);
    for (s.links.items) |link| {
        if (!link.wanted) {
            next = @min(next, link.ends_at());
            continue;
        }
        if (link.open_count == 0 and link.told != .down and !waits_for_call(link))
            next = @min(next, link.down_since +| s.settings.silence_ns);
        for (link.places()) |place| {
            const lane = place orelse {
                const dialable = is_in_run(s) and s.addresses.contains(link.peer.bytes);
                if (dialable) next = @min(next, @max(link.retry_at, s.last_tick + 1));
                continue;
            };
            next = @min(next, lane.deadline);
        }
    }
    return next;
}
