//! Dial: which links are wanted, and how their lanes are dialed, greeted, broken and dialed again.
//! This file tells the coordinator of broken links, and sends frames of a broken lane again on
//! another lane. All functions are free functions on Session.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const label_limit = @import("session.zig").label_limit;
const label_named = @import("session.zig").label_named;
const link_down = @import("session.zig").link_down;
const measure = @import("measure.zig");
const sync_file = @import("sync.zig");
const wake_all = @import("session.zig").wake_all;
const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Sent = @import("link.zig").Sent;
const Session = @import("session.zig").Session;
const Spread = @import("flow.zig").Spread;
const Unreached = @import("session.zig").Unreached;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const control = wire.control;
const limits = base.limits;

/// A connection must be made and greeted within this time.
pub const greet_ns_max = limits.stranger_ns_max;
const retry_ns_min: u64 = 20 * std.time.ns_per_ms;
const retry_ns_max: u64 = 2 * std.time.ns_per_s;
/// The side that does not lead waits for one part in `stands_by_parts` of the silence limit before
/// it dials.
const stands_by_parts = 10;
/// The coordinator is asked for the address of a peer at most once in this time.
const ask_ns: u64 = std.time.ns_per_s;
const retries_before_asking = 6;

/// Returns the link to a peer; makes the link if it does not exist.
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

/// If the other side leads, delays this side's dials, because the other side may dial the missing
/// lanes.
fn stand_by(s: *Session, link: *Link) void {
    if (link.leads) return;
    link.retry_at = @max(link.retry_at, s.now +| s.settings.silence_ns / stands_by_parts);
}

/// Finds out which links are wanted now, dials their missing lanes, and lets unwanted links expire.
pub fn review(s: *Session) void {
    for (s.links.items) |link| {
        // No side dials an unwanted link, so the time without lanes counts from now.
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
            // Links between neighbours in rank order are wanted as well: the ring uses them again
            // once no link is broken.
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
    // An unwanted link is told as up, because it may work when it is wanted next.
    for (s.links.items) |link| if (!link.wanted) tell_link(s, link, .up);
    dial_missing(s);
}

/// A message needs this link: marks the link as wanted, and dials its missing lanes.
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

/// A message is over: review looks later whether its link is still wanted.
pub fn give_back(s: *Session, id: PeerId) void {
    const link = s.link_to(id) orelse return;
    if (link.borrowed) s.links_stale = true;
}

fn want(s: *Session, id: PeerId) void {
    if (id.eql(s.self)) return;
    const link = obtain(s, id) catch {
        return s.log(.err, "out of memory for the link to peer {f}", .{label_named(s, id)});
    };
    link.wanted = true;
}

/// Whether lanes may be made: the settings of the run are known, and the coordinator is not given
/// up. Lanes need no connection to the coordinator.
pub fn is_in_run(s: *const Session) bool {
    return s.knows_settings() and s.control_state != .lost;
}

/// Measures all lanes, and plans the next measurement while any lane moves bytes.
pub fn measure_all(s: *Session) void {
    const ns = s.now -| s.measured_at;
    s.measured_at = s.now;
    for (s.links.items) |link| label_limit(s, link);
    const moves = measure.run_measure(s.host, s.links.items, &s.node, ns, s.rates.all);
    s.measure_at = if (moves) s.now +| measure.every_ns else base.never;
    // If a probe may begin, the heartbeat that tells the coordinator leaves at once.
    if (measure.may_begin(s)) s.heartbeat_at = @min(s.heartbeat_at, s.now);
    for (s.links.items) |link| if (link.flow.is_news()) {
        stand_by(s, link);
        s.wake(link);
    };
    dial_missing(s);
}

/// Takes the contents of a ping: the number of lanes that the other side wants, the round trip as
/// the other side knows it, and when the ping left. If the system tells no round trips, only the
/// side that dials can measure the round trip.
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

/// Dials the missing lanes of wanted links whose `retry_at` has passed.
fn dial_missing(s: *Session) void {
    if (!is_in_run(s)) return;
    for (s.links.items) |link| {
        if (!link.wanted or link.retry_at > s.now or !lacks_lanes(link)) continue;
        const address = s.addresses.get(link.peer.bytes) orelse {
            link.dialed = .no_address;
            ask_address(s, link);
            continue;
        };
        // The peer may have a new address, because many dials have failed.
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

/// Asks the coordinator for the address of a peer. A round tells only the addresses of peers to
/// which the round needs lanes.
fn ask_address(s: *Session, link: *Link) void {
    if (link.asked_at) |at| if (s.now < at +| ask_ns) return;
    for (s.groups.items) |group| {
        const id = group.id orelse continue;
        if (group.state != .joined or !group.member.connected or !group.knows(link.peer)) continue;
        link.asked_at = s.now;
        return s.send(.{ .ask_address = .{ .group = id, .peer = link.peer } });
    }
}

/// The coordinator has told the address of a peer.
pub fn on_address(s: *Session, entry: *const wire.control.MemberEntry) Allocator.Error!void {
    const link = s.link_to(entry.id) orelse return; // the link has expired since it asked
    if (link.asked_at == null) return; // the link has not asked
    try s.remember_address(entry.id, entry.address.data);
    dial_missing(s);
}

// ---- a lane's life

/// Ends the connection of a lane. The lane is invalid afterwards.
pub fn fail(s: *Session, lane: *Lane, why: []const u8) void {
    if (lane.link) |link| {
        s.log(
            .info,
            "lane {d} to peer {f} is closed: {s}",
            .{ lane.number, label_named(s, link.peer), why },
        );
    }
    s.host.vtable.lane_close(s.host.ctx, lane);
    lane_gone(s, lane);
}

/// Notes how a dial of this peer has ended.
pub fn note_dialed(s: *Session, lane: *const Lane, why: wire.Dialed) void {
    const place = if (lane.link) |link| &link.dialed else &s.dial_back.?.dialed;
    place.* = why;
}

/// Forgets a lane whose connection is gone. The lane is invalid afterwards.
pub fn lane_gone(s: *Session, lane: *Lane) void {
    if (lane.link) |link|
        detach(s, lane, link)
    else if (lane.is_ours)
        dial_back_over(s)
    else
        stranger_forget(s, lane);
    lane_free(s, lane);
}

/// Tells the coordinator how the dial that it has asked for has ended.
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
    const is_mended = link.open_count > 0 and resend_lane_gone(s, lane, link);
    // The lanes of an unwanted link are closed on purpose, so they are not told as closed.
    const state: wire.control.LinkState =
        if (link.open_count == 0 and link.wanted) .closed else .broken;
    for (s.groups.items) |group| report(s, group, link, state, is_mended);
    sync_file.prefetch_lane_gone(s, lane, link);
    s.wake(link); // another lane may carry the data
}

/// Plans when a missing lane of the link is dialed.
fn dial_later(s: *Session, link: *Link) void {
    const back_off = @min(retry_ns_min << @min(link.retries, 8), retry_ns_max);
    link.retry_at = s.now + back_off / 2 + s.prng.below(back_off);
    link.retries +|= 1;
    stand_by(s, link);
}

/// Closes the lanes that are marked `broken`.
pub fn close_broken(s: *Session) void {
    for (s.links.items) |link| for (link.lanes) |place| {
        const lane = place orelse continue;
        if (lane.broken) fail(s, lane, "out of memory");
    };
}

/// Tells the coordinator of a lane that broke, if a group needs to know. The lane has lost its
/// frames, so operations that use the link need a new attempt, unless other lanes send these frames
/// again (`is_mended`). If the lane was the link's last, the other peer may be dead.
fn report(
    s: *Session,
    group: *Group,
    link: *const Link,
    state: wire.control.LinkState,
    is_mended: bool,
) void {
    if (group.state != .joined or !group.member.connected) return;
    // This peer is a newcomer without an epoch, and may be the only peer left to notice the loss of
    // a member.
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

/// Tells the coordinator that a lane of the link broke, because frames that the lane had not
/// delivered cannot be sent again any more.
pub fn cut_short(s: *Session, link: *const Link) void {
    for (s.groups.items) |group| report(s, group, link, .broken, false);
}

/// Tells a coordinator that was away of the links whose lanes closed meanwhile. Links that were
/// already told as not up are left out, because old news is no sign that the other peer is dead.
pub fn report_closed(s: *Session, group: *Group) void {
    for (s.links.items) |link| {
        // A link that never had an open lane is no sign that the other peer is dead.
        const closed = link.wanted and link.was_open and link.open_count == 0;
        if (closed and link.told == .up) report(s, group, link, .closed, false);
    }
    say_broken(s, group);
}

/// Tells the coordinator of all links that are not up, because the coordinator may have forgotten
/// them.
pub fn say_broken(s: *Session, group: *const Group) void {
    for (s.links.items) |link| if (link.told != .up) say(s, group, link);
}

/// Sets the health of a link. If the health has changed, tells the coordinator in all groups that
/// both peers are in.
pub fn tell_link(s: *Session, link: *Link, health: wire.control.LinkHealth) void {
    const news = link.told != health;
    link.told = health;
    if (!news) return;
    for (s.groups.items) |group| say(s, group, link);
    if (health == .down and link.dialed != .pending and !is_away(s, link.peer))
        note_unreached(s, link);
    if (health == .down) link_down(s, link);
    check_ready(s);
}

/// Whether the coordinator has told that it lost its connection to the peer `id`.
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

pub fn link_free(s: *Session, link: *Link) void {
    for (link.lanes) |place| if (place) |lane| lane_free(s, lane);
    link.deinit();
    s.gpa.destroy(link);
}

// ---- time

pub fn tick_links(s: *Session, late: bool) void {
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
            close_lane(s, link);
            for (s.operations.items) |operation| sync_file.link_gone(s, operation, link);
            _ = s.links.orderedRemove(index);
            link_free(s, link);
        } else if (is_down(s, link)) {
            tell_link(s, link, .down);
        }
    }
    dial_missing(s);
}

/// Closes a lane on which nothing comes in or goes out for the silence limit, and plans a ping if
/// nothing has gone out for half a heartbeat.
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
    if (is_over(s, lane, late)) return fail(s, lane, "the link needs fewer lanes");
    if (s.now -| lane.spoke_at < s.settings.heartbeat_ns / 2 or lane.out_busy) return;
    lane.ping_due = true;
    s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// Closes a lane on which nothing moves. If the lane was the link's last, tells the coordinator at
/// once that the link is silent, so that other members need not wait until a new dial has failed.
fn fail_still(s: *Session, lane: *Lane, why: []const u8) void {
    const link = lane.link.?;
    fail(s, lane, why);
    if (link.open_count == 0 and link.told == .up) tell_link(s, link, .silent);
}

fn is_down(s: *const Session, link: *const Link) bool {
    const may_be = link.wanted and link.told != .down and link.open_count == 0;
    return may_be and !waits_for_call(link) and s.knows_settings() and
        s.now -| link.down_since >= s.settings.silence_ns;
}

/// Whether the link may open only once the other side calls its half of a message: nothing else
/// needs the link, and the other side wins. The other side then finds out whether the link is
/// broken.
fn waits_for_call(link: *const Link) bool {
    return link.borrowed and !link.wins;
}

fn close_lane(s: *Session, link: *Link) void {
    for (link.lanes) |place| if (place) |lane| fail(s, lane, "it is not needed any more");
}

pub fn next_link_deadline(s: *const Session) base.Instant {
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

// ---- greeting
//
// How a connection becomes a lane. An accepted connection is a stranger until its hello says which
// peer it is from, and strangers have few places. A connection that this peer has dialed becomes a
// lane when the other side welcomes it. If both sides dial the same lane, one of the two
// connections stays.

/// A connect that took longer has lost a packet: the system sends its first packet again after a
/// second.
const connect_ns_max = std.time.ns_per_s;

/// Takes an inbound connection as a stranger. Null: there is no place or no memory for it.
pub fn accept(s: *Session, source: base.Source) ?*Lane {
    if (!make_place(s, source)) return null;
    s.strangers.ensureUnusedCapacity(s.gpa, 1) catch return null;
    const lane = s.gpa.create(Lane) catch return null;
    lane.* = .accepted(s.gpa, source, s.now + greet_ns_max);
    s.strangers.appendAssumeCapacity(lane);
    return lane;
}

/// Makes a place for a stranger, as the coordinator's door does: there are `strangers_max` places,
/// and one more for each expected lane (base/places.zig). False: the connection is turned away.
fn make_place(s: *Session, source: base.Source) bool {
    const taken = s.strangers.items.len;
    var door: base.places.Door = .{ .places = s.strangers_max };
    var is_known = false;
    for (s.links.items) |link| for (link.places()) |place| {
        const is_open = if (place) |lane| lane.state == .open else false;
        if (link.wanted and !is_open and door.expected < limits.peers_max) door.expected += 1;
        const lane = place orelse continue;
        if (lane.state == .open and base.places.same_network(lane.source, source)) is_known = true;
    };
    switch (door.answer(&s.prng, taken, is_known)) {
        .enter => return true,
        .turn_away => return false,
        .make_room => {},
    }
    for (s.strangers.items) |lane| lane.is_fresh = lane.deadline == s.now + greet_ns_max;
    while (s.strangers.items.len >= door.places + door.expected) {
        const lane = base.places.draw(Lane, s.strangers.items, Lane.guest, &s.prng) orelse
            return false;
        fail(s, lane, "others wait for its place");
    }
    return true;
}

/// A dialed connection is up: sends the hello.
pub fn lane_dialed(s: *Session, lane: *Lane) void {
    const link = lane.link orelse return dialed_back(s, lane);
    lane.state = .greeting;
    const connect_ns = s.now -| (lane.deadline -| greet_ns_max);
    lane.connect_ns = if (connect_ns < connect_ns_max) connect_ns else 0;
    lane.out_busy = true;
    lane.put_head(&wire.hello.encode(.{
        .purpose = .lane,
        .lane = lane.number,
        .run_id = s.run_id,
        .from = s.self,
        .to = link.peer,
    }));
    s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// Reads the hello of a stranger and answers it. False: the lane is gone.
pub fn greet(s: *Session, lane: *Lane) bool {
    const hello = wire.hello.decode(&lane.head) catch |err| switch (err) {
        error.VersionMismatch => return refuse_lane(s, lane, .version_mismatch),
        error.NotPccl, error.BadValue => {
            fail(s, lane, "it does not speak PCCL");
            return false;
        },
    };
    if (hello.purpose == .probe) return show_lane(s, lane, &hello);
    // Run ids are compared in constant time, so that the time does not tell how much of a guess was
    // right.
    if (!std.crypto.timing_safe.eql(base.RunId, hello.run_id, s.run_id))
        return refuse_lane(s, lane, .wrong_run);
    const expected = hello.purpose == .lane and hello.to.eql(s.self) and
        !s.self.eql(hello.from) and is_in_run(s) and
        hello.lane < s.lanes_max();
    if (!expected) return refuse_lane(s, lane, .wrong_peer);
    if (must_wait(s, &hello)) {
        lane.state = .waiting;
        lane.head_need = 1;
        return true;
    }
    const link = obtain(s, hello.from) catch return refuse_lane(s, lane, .refused);
    if (link.lanes[hello.lane]) |old| fail(s, old, "the peer opened it again");
    stranger_forget(s, lane);
    lane.link = link;
    lane.number = hello.lane;
    link.put(lane);
    std.crypto.secureZero(u8, &lane.head); // the run id is in the hello
    lane.out_busy = true;
    lane.put_head(&wire.hello.encode_answer(.welcome));
    lane_opened(s, lane);
    return true;
}

/// Whether a hello must wait before it is answered.
fn must_wait(s: *const Session, hello: *const wire.hello.Hello) bool {
    // The other side may have been told of a round before this side.
    if (!is_named(s, hello.from)) return true;
    const link = s.link_to(hello.from) orelse return false;
    const lane = link.lanes[hello.lane] orelse return false;
    return !gives_way(link, lane);
}

/// Whether a new lane of the other side may replace `lane` at once. If both sides have dialed,
/// exactly one side gives way: the side that wins keeps its own lane, unless its dial fails.
fn gives_way(link: *const Link, lane: *const Lane) bool {
    // The side that does not win gives way. If the other side made the old lane, it dials again
    // because the old lane is gone.
    if (!link.wins or !lane.is_ours) return true;
    return switch (lane.state) {
        // This side's hello has not left, so no answer of the other side can be under way.
        .dialing => true,
        // The hellos of both sides may have crossed: then the other side accepts this side's lane
        // and closes its own. Otherwise this side's lane is broken, and this side notices soon.
        .greeting, .open => false,
        .stranger, .waiting, .refusing => unreachable, // lanes of no link
    };
}

/// Whether the coordinator names the peer `id` as a peer to have lanes to, or did so lately.
fn is_named(s: *const Session, id: PeerId) bool {
    if (s.link_to(id) != null) return true;
    for (s.groups.items) |group| {
        if (group.state == .joined and group.knows(id)) return true;
    }
    return false;
}

/// Answers the strangers whose hellos need not wait any more. This may close lanes, so it is not
/// called while the bytes of a lane are read.
pub fn greet_waiting(s: *Session) void {
    var index: usize = 0;
    while (index < s.strangers.items.len) {
        const lane = s.strangers.items[index];
        const is_due = lane.state == .waiting and
            !must_wait(s, &(wire.hello.decode(&lane.head) catch unreachable));
        if (!is_due) {
            index += 1;
            continue;
        }
        lane.state = .stranger;
        _ = greet(s, lane);
        index = 0; // the lane has left the list, or is being refused
    }
}

/// Answers a probe, by which the coordinator checks that this peer is at its address. The
/// coordinator closes the lane afterwards.
fn show_lane(s: *Session, lane: *Lane, hello: *const wire.hello.Hello) bool {
    if (!hello.to.eql(s.self)) return refuse_lane(s, lane, .wrong_peer);
    const proof = wire.hello.proof(&s.address_key, s.run_id, s.self, hello.nonce);
    return say_last(s, lane, &wire.hello.encode_proof(proof));
}

/// The other side has answered this side's hello. False: the lane is gone.
pub fn lane_answered(s: *Session, lane: *Lane) bool {
    const link = lane.link orelse {
        answered_dial_back(s, lane);
        return false;
    };
    const answer = lane.head[0..wire.hello.answer_bytes];
    const verdict = wire.hello.decode_answer(answer) catch .refused;
    if (verdict != .welcome) {
        link.dialed = .other_answers;
        fail(s, lane, @tagName(verdict));
        return false;
    }
    std.crypto.secureZero(u8, &lane.out_head); // the hello with the run id has left
    lane_opened(s, lane);
    return true;
}

fn lane_opened(s: *Session, lane: *Lane) void {
    const link = lane.link.?;
    lane.open(s.now);
    link.open_count += 1;
    link.was_open = true;
    link.retries = 0;
    link.leads = lane.is_ours;
    link.dialed = .pending;
    s.unreached.forget(link.peer);
    link.flow.told = Spread.near; // the other process may be new, and not know the number
    label_limit(s, link);
    measure.opened(s.host, s.links.items, link, lane, s.rates.all);
    s.host.vtable.lane_wake(s.host.ctx, lane);
    check_ready(s);
}

/// Sends a refusal, then closes the lane. Nothing more is read from the lane.
fn refuse_lane(s: *Session, lane: *Lane, verdict: wire.hello.Verdict) bool {
    return say_last(s, lane, &wire.hello.encode_answer(verdict));
}

fn say_last(s: *Session, lane: *Lane, answer: *const [wire.hello.answer_bytes]u8) bool {
    lane.state = .refusing;
    lane.head_need = 1;
    lane.out_busy = true;
    lane.put_head(answer);
    s.host.vtable.lane_wake(s.host.ctx, lane);
    return true;
}

// ---- dialed for the doctor
//
// The coordinator asks this peer to dial another peer that wants to know whether it can be reached
// (`pccl doctor`). The dial is a lane without a link, with one probe and one answer. The result
// goes to the coordinator, which alone can check the proof in it. Only one dial for the doctor is
// under way at a time: a new request of the coordinator ends the dial before.

pub const DialBackError = error{ OutOfMemory, Unexpected };

pub fn begin_dial_back(s: *Session, body: *const wire.control.DialBack) DialBackError!void {
    // The coordinator has parsed the address with the same function, so a wrong address is its
    // error.
    _ = base.Endpoint.parse_told(body.address.data) catch return error.Unexpected;
    if (s.dial_back) |before| fail(s, before.lane, "another one is to be dialed");
    const lane = try s.gpa.create(Lane);
    lane.* = .dialed(s.gpa, null, 0, s.now + greet_ns_max);
    s.dial_back = .{ .lane = lane, .peer = body.peer, .nonce = body.nonce };
    s.host.vtable.dial(s.host.ctx, lane, body.address.data);
}

/// Sends the probe, which tells the process at the dialed address nothing of the run.
pub fn dialed_back(s: *Session, lane: *Lane) void {
    lane.state = .greeting;
    lane.out_busy = true;
    lane.put_head(&wire.hello.encode(.{
        .purpose = .probe,
        .run_id = @splat(0),
        .from = .none,
        .to = s.dial_back.?.peer,
        .nonce = s.dial_back.?.nonce,
    }));
    s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// Takes the answer to the probe. The lane is gone afterwards.
pub fn answered_dial_back(s: *Session, lane: *Lane) void {
    const under_way = &s.dial_back.?;
    if (wire.hello.proof_in(lane.head[0..wire.hello.answer_bytes])) |proof| {
        under_way.proof = proof;
        under_way.dialed = .pending;
    } else |_| under_way.dialed = .other_answers;
    fail(s, lane, "it has answered");
}

// ---- frames that go again
//
// When a lane breaks and its link has another lane, frames that the other side has not acknowledged
// are sent again. Incoming frames that had not come in whole are awaited anew. So a broken lane
// costs no attempt. Opens and credits are sent again as well: their numbers are totals, so
// repeating them is harmless.
//
// If a lane breaks after it has delivered a frame, the frame comes twice, and the second copy is
// thrown away. The second copy may also begin while the first copy is still coming in. Then the
// copy that was sent later gets the memory, because its sender knows that the lane of the first
// copy is broken. Frames on different lanes have no order, so each frame says how often it was sent
// before.

fn operation_of(sent: *const Sent) ?*Operation {
    return @ptrCast(@alignCast(sent.operation orelse return null));
}

// ---- while the lane is well

/// Counts a frame that has come in whole, even if it was thrown away, so that the next outgoing
/// frame acknowledges it. Frames of kinds without acknowledgement are not counted. Returns true,
/// because the lane is still there.
pub fn frame_taken(s: *Session, lane: *Lane) bool {
    if (!lane.incoming.kind.is_acknowledged()) return true;
    lane.taken +%= 1;
    if (!lane.incoming.asks) return true;
    lane.ack_due = true;
    if (!lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
    return true;
}

/// Takes the acknowledgement in a frame that has come in: the number of frames that the other side
/// has.
pub fn acknowledged(s: *Session, lane: *Lane) error{AcknowledgedTooMany}!void {
    const was_full = !lane.unacked.has_room();
    for (0..try lane.unacked.acknowledged(lane.incoming.acked)) |_| {
        lane.link.?.moved_at = s.now;
        const sent = lane.unacked.pop();
        const operation = operation_of(&sent) orelse continue;
        if (sent.request != null) continue;
        sent_delivered(s, operation, &sent);
    }
    const has_room_again = was_full and lane.unacked.has_room();
    if (has_room_again and !lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// A frame of an operation is acknowledged. The frame's slot may be free again, so that a credit or
/// another frame can be sent.
fn sent_delivered(s: *Session, operation: *Operation, sent: *const Sent) void {
    const is_free = operation.work.movement.acknowledged(&sent.move, sent.fragment);
    if (is_free) wake_all(s, operation);
}

/// The operation's attempt is over: its frames are not sent again, and their acknowledgements have
/// no effect.
pub fn forget_sent(link: *Link, operation: *const Operation) void {
    for (link.lanes[0..link.lanes_end]) |place| if (place) |lane| lane.unacked.forget(operation);
    var index = link.again.items.len;
    while (index > 0) {
        index -= 1;
        if (link.again.items[index].operation == @as(*const anyopaque, operation))
            _ = link.again.orderedRemove(index);
    }
}

/// Puts the next frame of `link.again` on an idle lane. False: no frame can be sent again now.
pub fn next_resend(lane: *Lane, link: *Link) bool {
    if (link.again.items.len == 0 or !lane.unacked.has_room()) return false;
    for (link.again.items, 0..) |sent, index| {
        const operation = operation_of(&sent).?;
        const x = operation.work.movement;
        // A frame whose memory goes back to the caller is not sent again: a new attempt replaces
        // it.
        if (x.ending != null or !x.is_repeatable(&sent.move)) continue;
        _ = link.again.orderedRemove(index);
        operation.put_data(lane, sent, x.payload(&sent.move));
        return true;
    }
    return false;
}

// ---- when it breaks

/// A lane is gone and its link has other lanes: queues the lane's unacknowledged frames for the
/// other lanes. False: some frame cannot be sent again, so the attempt is lost.
pub fn resend_lane_gone(s: *Session, lane: *Lane, link: *Link) bool {
    take_back_sent(lane, link);
    var are_all_kept = true;
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        const operation = operation_of(sent) orelse continue;
        const is_kept = if (sent.request) |*request|
            sync_file.say_again(operation, link, request)
        else
            operation.work.movement.is_repeatable(&sent.move) and keep_sent(link, sent);
        are_all_kept = are_all_kept and is_kept;
    }
    for (s.operations.items) |operation| {
        if (operation.sync() != null) sync_file.open_again(operation, link);
        const neighbour = operation.neighbour(link) orelse continue;
        const x = operation.work.movement;
        if (!x.receives_from(neighbour.position)) continue;
        neighbour.open_pending = true;
        x.grant_again(neighbour.position);
    }
    return are_all_kept;
}

/// Keeps a frame of a broken lane to be sent again. False: memory ran out, or the frame was sent
/// too often.
fn keep_sent(link: *Link, sent: *const Sent) bool {
    var once_more = sent.*;
    once_more.again = std.math.add(u8, sent.again, 1) catch return false;
    link.again.append(link.gpa, once_more) catch return false;
    return true;
}

/// Whether frames of this operation cannot be sent again, because their memory belongs to the
/// caller again.
pub fn is_cut_short(link: *const Link, operation: *const Operation) bool {
    if (operation.neighbour(link)) |neighbour| if (neighbour.cut) |*cut|
        if (!operation.work.movement.is_repeatable(&cut.move)) return true;
    for (link.again.items) |*sent| {
        const is_its = sent.operation == @as(*const anyopaque, operation);
        if (is_its and !operation.work.movement.is_repeatable(&sent.move)) return true;
    }
    return false;
}

/// If the lane broke in the middle of an incoming payload, marks the payload as missing, so that it
/// is awaited anew.
fn take_back_sent(lane: *Lane, link: *const Link) void {
    const operation = Operation.from_owner(lane.into_owner orelse return) orelse return;
    if (operation.sync() != null) return sync_file.broke_off(operation, link, &lane.incoming);
    if (!lane.incoming.kind.is_data() or lane.into == null) return;
    const neighbour = operation.neighbour(link) orelse return;
    operation.work.movement.unplace(&lane.incoming, neighbour.position, lane.into_slot);
    lane.drop_into();
}

// ---- lanes that nobody needs
//
// Lanes beyond the larger number that the two sides want (flow.zig) are surplus and carry nothing.
// The side that has dialed a surplus lane closes it after a minute of idleness. Both sides know
// from pings how many lanes the link is to have, so neither side sends on a surplus lane or dials
// it again. A closed surplus lane loses no frames, so the other side handles it as a broken lane
// that costs no attempt.

/// A surplus lane is closed after this many silence limits without use, a minute by default. By
/// that time both sides have long heard the number of lanes, and a link whose number of lanes
/// changes does not close and dial lanes often.
pub const idle_silences = 12;

/// Whether this side closes the lane now, because the lane is surplus and has carried nothing for
/// `idle_silences`. Called at each tick.
pub fn is_over(s: *const Session, lane: *Lane, late: bool) bool {
    const unacked = &lane.unacked;
    const used = lane.taken +% unacked.acked +% unacked.count;
    const is_under_way = unacked.count > 0 or lane.into != null or lane.discard > 0;
    const is_idle = !late and !is_under_way and used == lane.used and lane.link.?.is_surplus(lane);
    lane.used = used;
    if (!is_idle) lane.used_at = s.now;
    return lane.is_ours and s.now -| lane.used_at >= idle_silences *| s.settings.silence_ns;
}

// ---- rounds
//
// This peer's answers to the coordinator about the lanes that a group's next epoch needs, and log
// lines for lanes that cannot be made. Rounds begin and end in membership.zig.

/// The time that lanes of a round may take before the coordinator hears which lanes are missing,
/// and the time between two of these messages.
pub const round_report_ns = 250 * std.time.ns_per_ms;

fn has_open_lane(s: *const Session, id: PeerId) bool {
    const link = s.link_to(id) orelse return false;
    // A link that is told as down counts as open, because the ring goes around it.
    return link.open_count > 0 or link.told == .down;
}

/// Tells the member of each group whose round has all its lanes; the first time, tells the user as
/// well.
pub fn check_ready(s: *Session) void {
    for (s.groups.items) |group| {
        if (group.state != .joined or group.member.round == 0) continue;
        const ready = for (group.round_peers.items) |id| {
            if (!has_open_lane(s, id)) break false;
        } else true;
        if (!ready) continue;
        group.member.links_ready();
        if (group.ready_told) continue;
        group.ready_told = true;
        s.host.vtable.group_event(s.host.ctx, group, .ready);
    }
}

/// Tells the coordinator which lanes of a round are missing, if `report_at` has passed and the list
/// has changed since the last message.
pub fn tick_round(s: *Session) void {
    for (s.groups.items) |group| {
        if (s.now < report_due(group)) continue;
        group.report_at = s.now +| round_report_ns;
        if (tell_missing(s, group)) group.member.links_missing(group.missing_told.items);
    }
}

/// Fills `group.missing_told` with the lanes that are missing. False: no lane is missing, or the
/// coordinator knows this list already.
fn tell_missing(s: *Session, group: *Group) bool {
    var count: usize = 0;
    var differs = false;
    for (group.round_peers.items) |id| {
        if (has_open_lane(s, id)) continue;
        const told = &group.missing_told;
        const missing: control.Missing = round_dialed(s, id);
        if (count == told.items.len)
            told.appendAssumeCapacity(.{ .peer = .none, .dialed = .pending });
        const is_news = !std.meta.eql(told.items[count], missing);
        // The coordinator knows that this lane is missing, and has had time to answer that the peer
        // is away.
        if (!is_news and missing.dialed != .pending and !group.awaited.is_away(id))
            note_unreached(s, s.link_to(id).?);
        differs = differs or is_news;
        told.items[count] = missing;
        count += 1;
    }
    differs = differs or count != group.missing_told.items.len;
    group.missing_told.shrinkRetainingCapacity(count);
    return differs and count > 0;
}

/// Why there are no lanes to the peer `id`; `pending` until the other side has had time to dial,
/// too.
fn round_dialed(s: *Session, id: PeerId) control.Missing {
    const unknown: control.Missing = .{ .peer = id, .dialed = .pending };
    const link = s.link_to(id) orelse return unknown;
    const patience_ns = s.settings.silence_ns / 10 * 3;
    if (s.now -| link.down_since < patience_ns or link.dialed == .pending) return unknown;
    return .{ .peer = id, .dialed = link.dialed, .source = link.dialed_from };
}

/// Notes, for the user's errors, that the peer of this link could not be dialed and has not dialed
/// either.
pub fn note_unreached(s: *Session, link: *const Link) void {
    const address = s.addresses.get(link.peer.bytes) orelse "";
    const peer = label_named(s, link.peer);
    say_unreached(s, .of(peer, false, link.dialed, link.dialed_from, address));
}

pub fn say_unreached(s: *Session, entry: Unreached.Entry) void {
    if (!s.unreached.note(s.now, entry)) return;
    s.log(.warning, "{f}; " ++ wire.dialed.remedy, .{&entry});
}

fn report_due(group: *const Group) base.Instant {
    const waits = group.state == .joined and group.member.connected and group.member.round != 0;
    return if (waits) group.report_at else base.never;
}

pub fn next_round_deadline(s: *const Session) base.Instant {
    var next = base.never;
    for (s.groups.items) |group| next = @min(next, report_due(group));
    return next;
}
