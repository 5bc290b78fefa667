//! measurement: the rates and round trips that members report of their links (matrix.zig), and how
//! far the coordinator believes them. An impossible number is logged and left out. If a peer claims
//! a higher rate of a link than the other end has seen, the rate of the other end is believed. At
//! ticks, members of an epoch are told the numbers that have changed by more than a tenth. From
//! these follow the figures of an operation's outcome (plan/figures.zig) and the paths of data
//! (attempt.zig): a member that lies makes operations slow, and never wrong.

const std = @import("std");
const base = @import("base");
const plan = @import("plan");
const wire = @import("wire");
const matrix = @import("matrix.zig");
const Epoch = @import("epoch.zig").Epoch;
const LogLevel = @import("run.zig").LogLevel;
const Pair = @import("matrix.zig").Probes.Pair;
const Peer = @import("peer.zig").Peer;
const Run = @import("run.zig").Run;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Mask = base.Mask;
const control = wire.control;
const limits = base.limits;

pub fn on_traffic(
    run: *Run,
    now: Instant,
    peer: *Peer,
    body: *const control.Traffic,
) Allocator.Error!void {
    const row = &peer.row;
    row.sent = body.sent;
    row.received = body.received;
    row.span_ns = body.span_ns;
    row.told_at = now;
    if (@max(body.up, body.down) <= limits.link_rate_told_max) {
        if (body.up > 0) row.up = body.up;
        if (body.down > 0) row.down = body.down;
        row.is_full = body.is_full;
    } else say(run, peer, .rate);
    var it = body.links.iterator();
    while (it.next()) |link| {
        if (fault_of(run, peer, &link)) |fault| {
            say(run, peer, fault);
            continue;
        }
        const kept = try row.place(run.gpa, link.peer);
        if (link.rate > 0) kept.rate = link.rate;
        if (link.brought > 0) kept.brought = link.brought;
        if (link.limit > 0) kept.limit = link.limit;
        if (link.rtt_ns > 0) kept.rtt_ns = link.rtt_ns;
        kept.again_ppm = link.again_ppm;
        kept.sent = link.sent;
        kept.received = link.received;
        kept.lanes = link.lanes;
        kept.told_at = now;
    }
    run.measurements += 1;
}

fn fault_of(run: *const Run, peer: *const Peer, link: *const control.LinkTraffic) ?matrix.Fault {
    if (@max(link.rate, link.limit, link.brought) > limits.link_rate_told_max) return .rate;
    if (link.rtt_ns > limits.link_rtt_ns_told_max) return .round_trip;
    if (link.again_ppm > limits.link_again_ppm_max) return .loss;
    if (link.peer.eql(peer.id) or !is_known(run, link.peer)) return .stranger;
    return null;
}

/// Whether an id is that of a peer of the run, or of a lost member of a live epoch.
fn is_known(run: *const Run, id: base.PeerId) bool {
    if (run.peer_of(id) != null) return true;
    for (run.groups.items) |group| for (group.epochs.items) |epoch|
        if (epoch.ranks.contains(id)) return true;
    return false;
}

/// Logs an impossible number of a peer, once for each kind of fault, so that a liar does not fill
/// the log. A link to a stranger is no warning, because the other member may have just gone.
fn say(run: *Run, peer: *Peer, fault: matrix.Fault) void {
    if (peer.row.said.contains(fault)) return;
    peer.row.said.insert(fault);
    const format = "peer {f} tells of {s}; that is not believed";
    const level: LogLevel = if (fault == .stranger) .info else .warning;
    run.log(level, format, .{ peer.named(), fault.why() });
}

/// The link from one peer to another as `from` reports it, with a rate and a limit no higher than
/// `to` reports to receive.
pub fn believed(from: *const Peer, to: *const Peer) matrix.Link {
    var link = (from.row.find(to.id) orelse return .{ .peer = to.id }).*;
    const seen = to.row.find(from.id) orelse return link;
    if (seen.brought == 0) return link;
    link.rate = @min(link.rate, seen.brought);
    link.limit = @min(link.limit, seen.brought);
    return link;
}

/// At a tick: tells the members of a small epoch (`measured_max`) the rates that have changed.
pub fn tell_measured(run: *Run, epoch: *Epoch) Allocator.Error!void {
    if (epoch.members.len > limits.measured_max) return;
    const told = &epoch.measured;
    tell_latecomers(run, epoch);
    if (told.version == run.measurements) return;
    if (told.rows.len == 0) {
        told.rows = try run.gpa.alloc(matrix.Told.Line, epoch.members.len);
        @memset(told.rows, .{});
    }
    told.version = run.measurements;
    for (epoch.members, told.rows, 0..) |*member, *row, rank| {
        const line = line_of(epoch, member.peer orelse continue);
        const is_told = row.differs(&line);
        if (!is_told and !row.plans_differ(&line)) continue;
        row.* = line;
        told.changes += 1;
        var room: Room = undefined;
        if (is_told) run.broadcast(epoch, message(epoch, rank, &room));
    }
}

/// The rates that the members of an epoch were told; null: they were told none.
pub fn matrix_of(epoch: *const Epoch) ?plan.Matrix {
    if (epoch.measured.changes == 0) return null;
    var known: plan.Matrix = .{};
    for (epoch.measured.rows, 0..) |*row, rank| {
        known.up[rank] = row.up;
        known.down[rank] = row.down;
        known.is_full[rank] = row.is_full;
        known.rates[rank] = row.rates;
        known.limits[rank] = row.limits;
        known.rtts_ns[rank] = row.rtts_ns;
    }
    return known;
}

/// Whether no member has a call under way, as their last heartbeats say.
pub fn is_idle(epoch: *const Epoch) bool {
    for (epoch.members) |*member| {
        const peer = member.peer orelse continue;
        if (!peer.is_idle) return false;
    }
    return true;
}

/// Tells all known rates to members that have just entered or come back.
fn tell_latecomers(run: *Run, epoch: *Epoch) void {
    for (epoch.members) |*member| {
        const peer = member.peer orelse continue;
        if (member.knows_measured or !peer.is_present(epoch.group)) continue;
        member.knows_measured = true;
        for (epoch.measured.rows, 0..) |*row, rank| {
            var room: Room = undefined;
            if (row.is_known()) run.send(peer, epoch.group, message(epoch, rank, &room));
        }
    }
}

/// Notes that a member has come back, so that it is told all rates again.
pub fn forget(epoch: *Epoch, rank: u16) void {
    epoch.members[rank].knows_measured = false;
}

fn line_of(epoch: *const Epoch, peer: *const Peer) matrix.Told.Line {
    const row = &peer.row;
    var line: matrix.Told.Line = .{ .up = row.up, .down = row.down, .is_full = row.is_full };
    for (epoch.members, 0..) |*other, rank| {
        const link = believed(peer, other.peer orelse continue);
        line.rates[rank] = link.rate;
        line.limits[rank] = link.limit;
        line.rtts_ns[rank] = link.rtt_ns;
    }
    return line;
}

const Room = [limits.measured_max]control.MeasuredLink;

fn message(epoch: *const Epoch, rank: usize, room: *Room) control.Message {
    const row = &epoch.measured.rows[rank];
    var count: usize = 0;
    for (row.rates, row.rtts_ns, 0..) |rate, rtt_ns, other| {
        if (rate == 0 and rtt_ns == 0) continue;
        room[count] = .{ .rank = @intCast(other), .rate = rate, .rtt_ns = rtt_ns };
        count += 1;
    }
    return .{ .measured = .{
        .group = epoch.group,
        .epoch = epoch.number,
        .rank = @intCast(rank),
        .up = row.up,
        .down = row.down,
        .links = .of(room[0..count]),
    } };
}

// ---- probes
//
// Which members of a small epoch are asked to probe a link whose rate is not known. A probe may
// move only while no other data does: members say with each heartbeat whether they may probe, and
// no member is in two pairs at a time. The pair that was due first comes first. If a probe brings
// no rate, as between members that are near each other or have begun calls, the pause before the
// pair is asked again doubles.

/// How long two members are occupied by one probe, with its beginning and its end.
pub const round_ns = limits.probe_ns_max / 2 * 3;
/// How many times the pause before a pair is asked again doubles: from `round_ns` (1.5 s) to over
/// six minutes.
const doubled_max = 8;
/// How long the coordinator waits for further members that may probe before it makes pairs.
const gather_ns = 50 * std.time.ns_per_ms;

/// A member says that it may probe: pairs are made soon.
pub fn gather(run: *Run, now: Instant) void {
    if (run.options.probes) run.due_at = @min(run.due_at, now +| gather_ns);
}

/// At a tick: asks pairs of members that may probe to probe links whose rate is not known.
pub fn review_probes(run: *Run, epoch: *Epoch, now: Instant) Allocator.Error!void {
    if (!run.options.probes or !epoch.running or epoch.members.len > limits.measured_max) return;
    var free: Mask = .empty;
    for (0..epoch.members.len) |rank| {
        if (!may_be_asked(epoch, rank)) continue;
        const peer = epoch.members[rank].peer.?;
        if (peer.may_probe and peer.probes_until <= now) free.set(rank);
    }
    if (free.count() < 2) return;
    const probes = &epoch.probes;
    if (probes.pairs.len == 0) {
        probes.pairs = try run.gpa.alloc(Pair, epoch.members.len * epoch.members.len);
        @memset(probes.pairs, .{});
    }
    while (earliest(epoch, &free, now)) |ranks| {
        for (ranks) |rank| free.unset(rank);
        ask_probes(run, epoch, now, ranks);
    }
}

fn pair_of(epoch: *const Epoch, ranks: [2]u16) *Pair {
    return &epoch.probes.pairs[ranks[0] * epoch.members.len + ranks[1]];
}

/// The pair of free members with an unknown link that was due first; of several, the lowest ranks.
/// Null: no pair is due.
fn earliest(epoch: *const Epoch, free: *const Mask, now: Instant) ?[2]u16 {
    var found: ?[2]u16 = null;
    for (0..epoch.members.len) |low| for (low + 1..epoch.members.len) |high| {
        if (!free.has(low) or !free.has(high)) continue;
        const ranks: [2]u16 = .{ @intCast(low), @intCast(high) };
        const due = pair_of(epoch, ranks).due;
        if (due > now or !is_either_unknown(epoch, ranks)) continue;
        if (found) |other| if (pair_of(epoch, other).due <= due) continue;
        found = ranks;
    };
    return found;
}

/// How long members that ask for the best paths wait for a member that is busy, or that has not
/// told its round trips yet.
const busy_wait_ns = 3 * std.time.ns_per_s;
/// How long a member may take to tell what a probe has found, beside a heartbeat
/// (session.zig: traffic_every_ns).
const tell_ns = 2 * std.time.ns_per_s;

/// Whether members that ask for the best paths should wait for the first probe of a link whose rate
/// is not known. They do not wait where no probe can come, and never longer than all links need.
pub fn is_probing(run: *const Run, epoch: *const Epoch, now: Instant) bool {
    if (!run.options.probes or epoch.members.len > limits.measured_max) return false;
    const asked_at = epoch.planned.asked_at;
    const found_ns = round_ns + tell_ns + run.options.heartbeat_ns;
    if (now -| asked_at > found_ns * epoch.members.len) return false;
    for (0..epoch.members.len) |low| for (low + 1..epoch.members.len) |high| {
        if (!may_be_asked(epoch, low) or !may_be_asked(epoch, high)) continue;
        const ranks: [2]u16 = .{ @intCast(low), @intCast(high) };
        if (!is_either_unknown(epoch, ranks)) continue;
        const pair: Pair = if (epoch.probes.pairs.len > 0) pair_of(epoch, ranks).* else .{};
        if (pair.asked > 0) {
            if (now -| pair.first_at < found_ns) return true;
            continue;
        }
        const peers = peers_of(epoch, ranks);
        if (is_near(peers)) continue;
        if (peers[0].may_probe and peers[1].may_probe) return true;
        if (@max(peers[0].probes_until, peers[1].probes_until) > now) return true;
        if (now -| asked_at < busy_wait_ns) return true;
    };
    return false;
}

/// Whether the round trip of a link is known to be so short that members do not probe the link.
fn is_near(peers: [2]*const Peer) bool {
    const there = believed(peers[0], peers[1]).rtt_ns;
    const back = believed(peers[1], peers[0]).rtt_ns;
    return @max(there, back) > 0 and @max(there, back) < limits.far_ns;
}

/// Whether the coordinator may ask a member for a probe, once the member has a moment.
fn may_be_asked(epoch: *const Epoch, rank: usize) bool {
    const peer = epoch.members[rank].peer orelse return false;
    const is_inside = epoch.activated.has(rank) and !epoch.closed.has(rank);
    return is_inside and peer.is_present(epoch.group);
}

/// Whether the rate of the link between two ranks is not known in some direction.
fn is_either_unknown(epoch: *const Epoch, ranks: [2]u16) bool {
    return is_unknown(epoch, ranks) or is_unknown(epoch, .{ ranks[1], ranks[0] });
}

/// Whether the rate of the link from the first rank to the second is not known.
fn is_unknown(epoch: *const Epoch, ranks: [2]u16) bool {
    const peers = peers_of(epoch, ranks);
    return believed(peers[0], peers[1]).rate == 0;
}

fn peers_of(epoch: *const Epoch, ranks: [2]u16) [2]*Peer {
    return .{ epoch.members[ranks[0]].peer.?, epoch.members[ranks[1]].peer.? };
}

/// Asks two members to probe the link between them, in each direction whose rate is not known.
fn ask_probes(run: *Run, epoch: *Epoch, now: Instant, ranks: [2]u16) void {
    for ([_][2]u16{ ranks, .{ ranks[1], ranks[0] } }) |way| {
        const peer = peers_of(epoch, way)[0];
        peer.may_probe = false;
        peer.probes_until = now +| round_ns;
        if (!is_unknown(epoch, way)) continue;
        run.send(peer, epoch.group, .{ .probe = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .rank = way[1],
        } });
    }
    const pair = pair_of(epoch, ranks);
    if (pair.asked == 0) pair.first_at = now;
    pair.due = now +| (@as(u64, round_ns) << @intCast(@min(pair.asked, doubled_max)));
    pair.asked +|= 1;
}
