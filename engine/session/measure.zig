//! Measure: takes the counters of each lane in every interval, and decides from them: the rate of a
//! link (pace.zig), the number of its lanes (flow.zig), and how many bytes the system may hold
//! unsent. Bytes that the system holds cannot move to another lane any more. The fewer bytes the
//! system holds, the sooner a slow lane is noticed, and the sooner a small call gets past a large
//! call. Links whose rate is not known are probed. The driver (`Host` in session.zig) reads the
//! counters, and carries out the decisions.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const filler = @import("session.zig").filler;
const pace = @import("pace.zig");
const per_second = @import("pace.zig").per_second;
const Group = @import("group.zig").Group;
const Host = @import("session.zig").Host;
const Interval = @import("pace.zig").Interval;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Moved = @import("pace.zig").Moved;
const Node = @import("pace.zig").Node;
const Operation = @import("operation.zig").Operation;
const Pace = @import("flow.zig").Pace;
const Sample = @import("flow.zig").Sample;
const Session = @import("session.zig").Session;
const Together = @import("pace.zig").Together;
const Header = wire.frame.Header;
const Side = plan.matrix.Side;
const bit = plan.matrix.bit;
const lesser = plan.matrix.lesser;
const limits = base.limits;
const members_max = plan.matrix.members_max;

/// The time from one measurement to the next, while bytes move.
pub const every_ns = 100 * std.time.ns_per_ms;
/// If more than this many intervals have passed without a measurement, the process stood still.
const late = 5;

/// A lane has opened: notes the round trip, from the lane's counters or from how long the connect
/// took, and tells the driver the first pace of the lane. `all`: the user's limit for all links,
/// bytes per second; 0: none.
pub fn opened(host: Host, links: []const *Link, link: *Link, lane: *Lane, all: u64) void {
    const flow = &link.flow;
    const ceiling = lesser(idle_part(links, all), flow.ceiling);
    const sample = host.vtable.lane_sample(host.ctx, lane) orelse
        return tell(host, lane, .{ .rate = part_of(ceiling, flow.lanes()) });
    lane.sample = sample;
    flow.note_distance(if (sample.base_ns > 0) sample.base_ns else lane.connect_ns);
    flow.is_within = sample.is_within;
    // The coordinator plans by the round trips of links that carry nothing yet, too.
    if (flow.is_far()) link.is_asked = true;
    tell(host, lane, .{
        .rate = part_of(ceiling, flow.lanes()),
        .unsent_max = if (flow.is_far() or ceiling > 0) Pace.unsent_first else 0,
        .held_max = if (flow.is_within) held_max(host, links) else 0,
        .control = flow.control(.starting, false),
    });
}

/// Measures all links over `ns`, the time since the last measurement, and sets their paces. `node`:
/// the highest rates of all links together. `ceiling`: the user's limit for all links together,
/// bytes per second; 0: none. Returns whether any link moves bytes.
pub fn run_measure(host: Host, links: []const *Link, node: *Node, ns: u64, ceiling: u64) bool {
    // The counters of a process that stood still do not show the rate of a link.
    const is_late = ns > late * every_ns;
    var busy: u64 = 0;
    var moves = false;
    for (links) |link| {
        busy += @intFromBool(is_busy(link));
        moves = moves or takes(link);
    }
    const idle = idle_part(links, ceiling);
    const part = busy_part(links, ceiling, busy);
    const held = held_max(host, links);
    var moved: Moved = .{};
    for (links) |link| if (link.open_count > 0) look(host, link, ns, is_late, &moved);
    node.note(&moved, ns);
    const together = &node.together;
    var sum: Together.Sum = .{};
    for (links) |link| if (is_counted(link)) sum.note(&link.flow.last);
    together.begin(sum);
    for (links) |link| if (is_counted(link)) {
        const flow = &link.flow;
        together.add(&flow.last, flow.carries(), flow.lanes_open, flow.lanes_busy);
    };
    together.step(ns, is_late);
    for (links) |link| if (is_counted(link)) {
        const flow = &link.flow;
        together.note_slow(&flow.last);
        if (together.is_own(&flow.last)) flow.alone.sent(flow.last.acked, ns) //
        else flow.alone.pause();
    };
    for (links) |link| if (link.open_count > 0) {
        const most = lesser(if (is_busy(link)) part else idle, link.flow.ceiling);
        pace_link(host, link, together, most, if (link.flow.is_within) held else 0);
    };
    begin_measure(links);
    return moves or busy > 0;
}

/// Bytes per second for each busy link, after the busy links that the user limits to less than an
/// even part have taken their limits.
fn busy_part(links: []const *Link, ceiling: u64, busy: u64) u64 {
    const even = part_of(ceiling, busy);
    var left = ceiling;
    var others = busy;
    for (links) |link| if (is_busy(link) and link.flow.ceiling > 0 and link.flow.ceiling < even) {
        left -= link.flow.ceiling;
        others -= 1;
    };
    return if (others == 0) even else part_of(left, others);
}

/// Bytes per second for a link that was idle: all other links may begin at the same moment.
fn idle_part(links: []const *Link, ceiling: u64) u64 {
    var open: u64 = 0;
    for (links) |link| open += @intFromBool(link.open_count > 0);
    return part_of(ceiling, open);
}

/// An even part of a limit, and never 0, because 0 means no limit.
fn part_of(ceiling: u64, count: u64) u64 {
    return if (ceiling == 0) 0 else @max(1, ceiling / @max(1, count));
}

fn is_busy(link: *const Link) bool {
    for (link.lanes) |place| if (place) |lane| if (lane.out_busy) return true;
    return false;
}

/// Whether a payload is coming in on a lane of the link.
fn takes(link: *const Link) bool {
    for (link.lanes) |place| if (place) |lane| if (lane.takes()) return true;
    return false;
}

/// Whether a link counts among the links that share the uplink. A near link does not count, because
/// its queue is too short to be measured. A probed link does not count, because a probe is not the
/// user's traffic.
fn is_counted(link: *const Link) bool {
    return link.open_count > 0 and link.flow.is_far() and !link.flow.is_probed;
}

/// Fills in the link's interval from the counters of its lanes, and adds the interval to `all`.
fn look(host: Host, link: *Link, ns: u64, is_late: bool, all: *Moved) void {
    const flow = &link.flow;
    flow.lanes_open = 0;
    flow.lanes_busy = 0;
    var i: Interval = .{
        .ns = ns,
        .given = link.sent - flow.sent,
        .rtt_ns = 0,
        .base_ns = std.math.maxInt(u64),
        .saturated = !is_late,
    };
    var weighted: u64 = 0;
    for (link.lanes) |place| {
        const lane = place orelse continue;
        if (lane.state != .open) continue;
        if (!link.serves(lane)) {
            lane.sample = null;
            lane.was_busy = false;
            continue;
        }
        const before = lane.sample;
        const sample = host.vtable.lane_sample(host.ctx, lane) orelse continue;
        lane.sample = sample;
        const since = if (before) |its| sample.acked -| its.acked else 0;
        const again = if (before) |its| sample.retransmitted -| its.retransmitted else 0;
        const busy = lane.is_kept or (lane.was_busy and lane.out_busy);
        if (!busy) i.saturated = false;
        flow.lanes_busy += @intFromBool(busy);
        lane.was_busy = lane.out_busy;
        i.acked += since;
        i.retransmitted += again;
        i.base_ns = @min(i.base_ns, sample.base_ns);
        weighted +|= sample.rtt_ns / std.time.ns_per_us *| since;
        lane.moved = per_second(since, ns);
        flow.lanes_open += 1;
    }
    flow.last = .{};
    if (flow.lanes_open == 0) return;
    // If the system tells no round trip, the round trip noted when a lane opened is used, and the
    // link never seems full.
    if (i.base_ns > 0) flow.base_ns = i.base_ns else i.base_ns = flow.base_ns;
    i.known = flow.carried.rate;
    i.rtt_ns = if (weighted == 0) i.base_ns else weighted / i.acked *| std.time.ns_per_us;
    i.back_ns = flow.way_back.step(ns, i.round());
    flow.last = i;
    all.acked +|= i.acked;
    all.received +|= link.received - flow.received;
    all.saturated = all.saturated or i.is_telling();
    flow.note_moved(i.acked +| (link.received - flow.received), ns);
    flow.note_arrived(link.received, ns);
    flow.note(&i);
}

/// Sets the link's rate and the number of its lanes, and tells each lane its pace.
fn pace_link(host: Host, link: *Link, together: *const Together, ceiling: u64, held: u32) void {
    const flow = &link.flow;
    if (flow.lanes_open == 0) return;
    const i = &flow.last;
    const part = if (flow.is_far()) together.part(i) else 0;
    const is_shared = flow.is_far() and together.shares(i);
    const pacer = if (is_shared) &flow.shared else &flow.pacer;
    const other = if (is_shared) &flow.pacer else &flow.shared;
    other.pause();
    // A probe runs on new connections, so it shows only how much they have carried, and no limit.
    const learns = !flow.is_probed;
    if (learns) {
        if (together.is_common() and together.is_one(i)) pacer.pause() else pacer.step(i);
    }
    const rate = lesser(lesser(pacer.rate, part), ceiling);
    if (learns) flow.spread.step(i, pace.is_full(rate, i), flow.way_loses);
    var lanes: [limits.lanes_per_link_max]*Lane = undefined;
    var moved: [limits.lanes_per_link_max]u64 = undefined;
    var shares: [limits.lanes_per_link_max]u64 = undefined;
    var count: usize = 0;
    for (link.lanes) |place| {
        const lane = place orelse continue;
        if (lane.state != .open or lane.sample == null or !link.serves(lane)) continue;
        lanes[count] = lane;
        moved[count] = lane.moved;
        count += 1;
    }
    pace.share(rate, moved[0..count], shares[0..count]);
    // A near link that the user limits holds few bytes unsent in the system, so that it stays busy
    // for as long as it has something to send.
    const near: u32 = if (ceiling > 0) Pace.unsent_first else 0;
    flow.take_turn(rate);
    for (lanes[0..count], moved[0..count], shares[0..count], 0..) |lane, each, given, index| {
        const control = if (lane.restarted_ns == 0) .starting else lane.pace.control;
        if (lane.restarted_ns) |*since| since.* +|= i.ns;
        const has_lost = lane.sample.?.retransmitted > lane.lost_before;
        const has_grown = (lane.restarted_ns orelse 0) > restart_most_ns;
        tell(host, lane, .{
            .rate = given,
            .unsent_max = @max(Pace.unsent(i.base_ns, lesser(given, each)), near),
            .held_max = held,
            .control = flow.control(control, has_lost or has_grown),
            .renews = flow.renews(index),
        });
    }
}

/// How long arriving packets may gather before the driver reads them, while bytes move; 0 if any
/// link is short. Reading many packets at once costs less CPU, and over long links the delay is
/// small beside the round trip.
pub fn patience_ns(links: []const *Link) u64 {
    var shortest: u64 = std.math.maxInt(u64);
    for (links) |link| {
        if (link.open_count > 0) shortest = @min(shortest, link.flow.base_ns);
    }
    if (shortest < patience_from_ns or shortest == std.math.maxInt(u64)) return 0;
    return @min(shortest / patience_part, patience_most_ns);
}

/// Below this shortest round trip, the wait of `patience_ns` would not be worth a timer.
const patience_from_ns = 10 * std.time.ns_per_ms;
const patience_most_ns = 1 * std.time.ns_per_ms;
const patience_part = 64;

/// Bytes in flight on the link that has the most bytes in flight. An operation reserves slots for
/// these bytes, but for no more than half of its own size (collective/board.zig).
pub fn window(links: []const *Link) u64 {
    var most: u64 = 0;
    for (links) |link| most = @max(most, link.flow.in_air());
    return most;
}

/// Bytes that the system may hold for a lane within the machine.
fn held_max(host: Host, links: []const *Link) u32 {
    var peers: u32 = 1;
    for (links) |link| peers += @intFromBool(link.flow.is_within and link.open_count > 0);
    return Pace.held(peers <= host.cores);
}

/// Whether the peer of any link is far away (`Flow.is_far`).
pub fn any_far(links: []const *Link) bool {
    for (links) |link| if (link.flow.is_far()) return true;
    return false;
}

/// Begins an interval: bytes that moved until now do not count in it.
fn begin_measure(links: []const *Link) void {
    for (links) |link| {
        link.flow.received = link.received;
        link.flow.sent = link.sent;
    }
}

/// TCP begins with few packets again on a connection that has been idle for this time.
const restart_ns = 500 * std.time.ns_per_ms;
/// After this time a restarted connection has grown back, and takes the system's congestion
/// control, because cubic then grows faster than reno.
const restart_most_ns = 1 * std.time.ns_per_s;

/// Begins to measure again after `idle_ns` in which nothing moved.
pub fn begin_after(links: []const *Link, node: *Node, idle_ns: u64) void {
    begin_measure(links);
    node.rest(idle_ns);
    for (links) |link| {
        link.flow.idle_ns +|= idle_ns;
        link.flow.way_back.rest(idle_ns);
        link.flow.is_rested = true;
        if (idle_ns < restart_ns) continue;
        for (link.lanes) |place| if (place) |lane| {
            lane.restarted_ns = 0;
            lane.lost_before = if (lane.sample) |sample| sample.retransmitted else 0;
        };
    }
}

fn tell(host: Host, lane: *Lane, wanted: Pace) void {
    if (!lane.pace.differs(wanted)) return;
    var told = wanted;
    // The system is asked for a congestion control once, whether or not it grants the request.
    if (wanted.control == lane.pace.control) told.control = null;
    lane.pace = wanted;
    lane.pace.renews = false;
    host.vtable.lane_pace(host.ctx, lane, told);
}

const Told = struct {
    sample: ?Sample = null,

    fn lane_sample(ctx: *anyopaque, _: *Lane) ?Sample {
        const told: *Told = @ptrCast(@alignCast(ctx));
        return told.sample;
    }
    fn lane_pace(_: *anyopaque, _: *Lane, _: Pace) void {}
};

test "a link has its part of the user's limit, or its own limit where that is lower" {
    // Goal: what a limited link leaves of its part goes to the other links. Method: links of one
    // lane each, whose told rates are compared.
    const gpa = std.testing.allocator;
    var vtable: Host.VTable = undefined;
    vtable.lane_sample = Told.lane_sample;
    vtable.lane_pace = Told.lane_pace;
    const Case = struct { all: u64, own: [3]u64, given: [3]u64, is_busy: [3]bool = @splat(true) };
    for ([_]Case{
        .{ .all = 0, .own = .{ 0, 0, 500 }, .given = .{ 0, 0, 500 } },
        .{ .all = 900, .own = .{ 0, 0, 0 }, .given = .{ 300, 300, 300 } },
        .{ .all = 900, .own = .{ 100, 0, 800 }, .given = .{ 100, 400, 400 } },
        .{ .all = 900, .own = .{ 200, 200, 299 }, .given = .{ 200, 200, 299 } },
        .{
            .all = 900,
            .own = .{ 200, 0, 0 },
            .given = .{ 200, 900, 300 },
            .is_busy = .{ false, true, false },
        },
    }) |case| {
        var told: Told = .{};
        const host: Host = .{ .ctx = &told, .vtable = &vtable };
        var links: [3]Link = undefined;
        var lanes: [3]Lane = undefined;
        var pointers: [3]*Link = undefined;
        for (&links, &lanes, &pointers, 0..) |*link, *lane, *pointer, index| {
            link.* = .{
                .gpa = gpa,
                .peer = .from_int(index),
                .wins = true,
                .leads = true,
                .expires_at = 0,
                .early = .{ .gpa = gpa },
                .flow = .init(1),
                .down_since = 0,
            };
            link.flow.ceiling = case.own[index];
            lane.* = .dialed(gpa, link, 0, 0);
            lane.state = .open;
            lane.out_busy = case.is_busy[index];
            link.put(lane);
            link.open_count = 1;
            pointer.* = link;
        }
        told.sample = .{ .acked = 1, .retransmitted = 0, .rtt_ns = 1, .base_ns = 1 };
        var node: Node = .{};
        _ = run_measure(host, &pointers, &node, every_ns, case.all);
        for (&lanes, case.given) |*lane, given|
            try std.testing.expectEqual(given, lane.pace.rate);
        for (&links) |*link| link.deinit();
    }
}

// ---- probes
//
// The coordinator asks for probes of links whose rate nobody knows (protocol/measurement.zig). A
// probe is a series of frames without meaning, which the receiver throws away. Frames of a probe
// are sent only on lanes that have nothing else to send, and a call at either end ends the probe.

/// Whether the coordinator may ask this peer for a probe now: this peer takes part in probes,
/// nothing moves, no call is under way, and some peer is far. Near links need no probe.
pub fn may_begin(s: *const Session) bool {
    return s.probe.bytes_max > 0 and is_idle(s) and any_far(s.links.items);
}

/// Whether nothing moves and no call is under way.
pub fn is_idle(s: *const Session) bool {
    return s.measure_at == base.never and !is_called(s);
}

fn is_called(s: *const Session) bool {
    for (s.operations.items) |operation| if (!operation.is_over()) return true;
    return false;
}

/// The coordinator asks for the rate of the link to a member. A known rate is told with the next
/// message about traffic; otherwise a probe begins.
pub fn on_probe(
    s: *Session,
    group: *const Group,
    body: *const wire.control.Probe,
) error{Unexpected}!void {
    const epoch = group.member.epoch_of(body.epoch) orelse return; // the epoch is over
    if (body.rank >= epoch.ids.len or body.rank == epoch.rank) return error.Unexpected;
    const link = s.link_to(epoch.ids[body.rank]) orelse return;
    link.is_asked = link.flow.carries() > 0;
    if (link.is_asked or link.open_count == 0 or !link.flow.is_far()) return;
    if (is_called(s) or s.probe.is_under_way(s.now)) return;
    const left = s.probe.allowed(link.probe_left);
    if (left == 0) return;
    end_probe(s); // the probe of a link that has lost its lanes
    s.probe.under_way = .{
        .to = link.peer,
        .left = left,
        .until = s.now +| limits.probe_ns_max,
    };
    link.flow.is_probed = true;
    s.wake(link);
}

/// Ends the probe under way. A connection begins slowly, so the rate of a probe that is cut short
/// is dropped.
pub fn end_probe(s: *Session) void {
    const under_way = s.probe.under_way orelse return;
    s.probe.under_way = null;
    const link = s.link_to(under_way.to) orelse return;
    link.flow.is_probed = false;
    // Nothing else moved meanwhile, so a link that a whole probe kept busy carries no more.
    if (under_way.is_whole(s.now)) link.flow.alone = link.flow.carried else link.flow.carried = .{};
}

/// Puts the next frame of a probe, if there is one, on an idle lane that has nothing else to send.
pub fn next_probe(s: *Session, lane: *Lane, link: *Link) void {
    if (link.declines) {
        link.declines = false;
        return put_probe(lane, "");
    }
    const under_way = &(s.probe.under_way orelse return);
    if (!under_way.to.eql(link.peer)) return;
    if (under_way.is_whole(s.now) or is_called(s) or !is_fellow(s, link)) return end_probe(s);
    const count: usize = @intCast(@min(under_way.left, s.probe.frame_bytes()));
    under_way.left -= count;
    s.probe.budget.spend(&link.probe_left, count);
    put_probe(lane, filler[0..count]);
}

fn put_probe(lane: *Lane, payload: []const u8) void {
    lane.put_head(&wire.frame.encode(std.mem.zeroInit(Header, .{
        .kind = .probe,
        .payload_bytes = @as(u32, @intCast(payload.len)),
        .acked = lane.answer(),
    })));
    lane.out_payload = payload;
    lane.out_busy = true;
}

pub const ProbeError = error{ TooLong, ProbeOfNoMember };

/// A frame of a probe has come in, and its payload is thrown away. An empty frame says that the
/// other side does not take this peer's probe.
pub fn on_probe_frame(s: *Session, lane: *Lane, header: *const Header) ProbeError!void {
    const link = lane.link.?;
    if (header.payload_bytes == 0) {
        const under_way = &(s.probe.under_way orelse return);
        return if (under_way.to.eql(link.peer)) end_probe(s);
    }
    if (header.payload_bytes > limits.probe_frame_bytes_max) return error.TooLong;
    if (!is_fellow(s, link)) return error.ProbeOfNoMember;
    lane.discard = header.payload_bytes;
    if (s.probe.bytes_max > 0 and !is_called(s)) return;
    link.declines = true;
    s.wake(link);
}

/// Whether the link's peer is alive in an epoch that this peer is in.
fn is_fellow(s: *const Session, link: *const Link) bool {
    for (s.groups.items) |group| {
        if (group.state != .joined) continue;
        for (group.member.epochs) |slot| {
            const epoch = slot orelse continue;
            if (epoch.alive.has(epoch.rank_of(link.peer) orelse continue)) return true;
        }
    }
    return false;
}

// ---- figures
//
// The coordinator tells the rates of the links of an epoch, and the group keeps these rates as a
// matrix. When an attempt of an operation begins, plan/figures.zig computes from the matrix
// how long the operation should take, and how long it takes at least. Figures are for people;
// nothing else depends on them.

const FiguresError = error{ OutOfMemory, Unexpected };

/// The coordinator tells the rates of one member's links. The message is ignored if this peer is
/// not in the epoch yet, or not any more.
pub fn on_measured(
    s: *Session,
    group: *Group,
    body: *const wire.control.Measured,
) FiguresError!void {
    const epoch = group.member.epoch_of(body.epoch) orelse return;
    if (epoch.ids.len > members_max or body.rank >= epoch.ids.len) return error.Unexpected;
    const measured = try figures_place(s, group, body.epoch) orelse return;
    const matrix = &measured.matrix;
    matrix.clear_row(body.rank);
    matrix.up[body.rank] = body.up;
    matrix.down[body.rank] = body.down;
    var it = body.links.iterator();
    while (it.next()) |link| {
        if (link.rank >= epoch.ids.len) return error.Unexpected;
        matrix.rates[body.rank][link.rank] = link.rate;
        matrix.rtts_ns[body.rank][link.rank] = link.rtt_ns;
    }
}

/// The group's matrix for this epoch; null: the group has the matrix of a later epoch.
fn figures_place(s: *Session, group: *Group, epoch: u64) FiguresError!?*Group.Measured {
    if (group.measured == null) {
        group.measured = try s.gpa.create(Group.Measured);
        group.measured.?.* = .{ .epoch = epoch };
    }
    const measured = group.measured.?;
    if (measured.epoch > epoch) return null;
    if (measured.epoch < epoch) measured.* = .{ .epoch = epoch };
    return measured;
}

/// The paths of a group's current attempt, and their times at the rates that this peer was told.
pub const PathsNow = struct {
    epoch: u64,
    attempt: u32,
    world_size: u32,
    paths: base.Paths,
    explained: plan.planner.Explained = .{},

    /// Null: this peer is in no epoch yet.
    pub fn of(s: *const Session, group: *Group) ?PathsNow {
        const epoch = group.member.current orelse return null;
        var now: PathsNow = .{
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .world_size = epoch.world_size(),
            .paths = epoch.paths,
        };
        const measured = group.measured orelse return now;
        if (measured.epoch == epoch.number) now.explained =
            .of(&measured.matrix, &now.paths, s.round_trip_ns);
        return now;
    }
};

/// An attempt of an operation begins: notes its mover and its figures. Not inlined: the stack frame
/// of `fill_in` is large, and most groups know no rates.
pub fn note_figures(s: *const Session, operation: *Operation) void {
    const x = operation.moves() orelse return;
    operation.figures = .{ .way = x.movers.active };
    const measured = operation.group.measured orelse return;
    if (measured.epoch != operation.op.epoch or x.board.members < 2) return;
    fill_in(s, operation, &measured.matrix);
}

noinline fn fill_in(s: *const Session, operation: *Operation, matrix: *plan.Matrix) void {
    const x = operation.work.movement;
    // An uneven exchange has no figures, because only two members know each of its shards. An
    // operation through hubs has none, because hubs also carry the data of other members.
    if (operation.op.descriptor.uneven or goes_through_hubs(operation)) return;
    var order: [members_max]u16 = undefined;
    var alive: Side = 0;
    for (x.board.positions, 0..) |position, rank| {
        if (position >= x.board.members) continue;
        order[position] = @intCast(rank);
        alive |= bit(rank);
    }
    const volume = x.board.ledger.volume(alive, x.movers.active == .ring);
    operation.figures = plan.figures.of(matrix, &volume, &.{
        .way = x.movers.active,
        .order = order[0..x.board.members],
        .shares = x.board.shares,
        .is_rooted = operation.op.descriptor.kind.has_root(),
        .commit_ns = s.round_trip_ns,
    });
}

fn goes_through_hubs(operation: *const Operation) bool {
    if (operation.work.movement.movers.active != .direct) return false;
    const epoch = operation.group.member.epoch_of(operation.op.epoch).?;
    return !epoch.paths.hubs.covers(&epoch.alive);
}
