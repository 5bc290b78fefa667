//! second: near the end of an operation all wait for the frames that slow lanes still hold. Lanes
//! that have nothing else to send then send these a second time. The one that comes first counts,
//! and the other is thrown away. Free functions on Session. How the other side takes two of them:
//! resend.zig, which also sends once more what a broken lane held; why: docs/PROTOCOL.md.
//!
//! Two frames of the same are twins. Their slot is free when both are acknowledged, because the
//! other side may be taking in either.

const std = @import("std");
const base = @import("base");
const measure = @import("measure.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Sent = @import("unacked.zig").Sent;
const Session = @import("session.zig").Session;
const limits = base.limits;

/// All lanes were just looked at. Wakes those that may send something a second time. Whether frames
/// are in the air, so that they must be looked at again.
pub fn look(s: *Session) bool {
    var is_any_out = false;
    for (s.links.items) |link| {
        if (!link.flow.is_far()) continue;
        var late: usize = 0;
        for (link.lanes[0..link.lanes_end]) |place| {
            const lane = place orelse continue;
            note_arrived(s, lane, link);
            is_any_out = is_any_out or first_out(lane) != null;
            late += @intFromBool(find(s, lane, link) != null);
        }
        // Where most are late, so is the link.
        link.flow.has_late = late > 0 and late * 2 <= link.open_count;
        if (link.flow.has_late) s.wake(link);
    }
    return is_any_out;
}

/// Puts a frame that another lane of the link has held for too long on this one, which has nothing
/// else to send. False: there is none.
pub fn next(s: *Session, lane: *Lane, link: *Link) bool {
    if (!link.flow.has_late or !lane.unacked.has_room()) return false;
    for (link.lanes[0..link.lanes_end]) |place| {
        const other = place orelse continue;
        if (other == lane) continue;
        const sent = find(s, other, link) orelse continue;
        const operation: *Operation = @ptrCast(@alignCast(sent.operation.?));
        var copy = sent.*;
        copy.again += 1;
        copy.twin = .later;
        sent.twin = .earlier;
        operation.put_data(lane, s.now, copy, operation.work.movement.payload(&copy.move));
        return true;
    }
    link.flow.has_late = false; // until the lanes are looked at again
    return false;
}

/// The oldest frame of a lane that is late, that is still wanted, and that has not gone twice.
fn find(s: *const Session, lane: *Lane, link: *const Link) ?*Sent {
    const after_ns = late_after_ns(lane, link);
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        if (!is_out(lane, sent)) continue;
        if (s.now -| sent.put_at < after_ns) return null;
        if (sent.twin == .none and sent.again < std.math.maxInt(u8) and may_go(sent, link))
            return sent;
    }
    return null;
}

fn first_out(lane: *Lane) ?*Sent {
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        if (is_out(lane, sent)) return sent;
    }
    return null;
}

/// The other side's system has not all of it yet, as far as was seen when it was looked at last.
fn is_out(lane: *const Lane, sent: *const Sent) bool {
    if (sent.operation == null or sent.request != null) return false;
    const sample = lane.sample orelse return false;
    return sample.in_order < sent.end;
}

/// The operation is near its end, or waits: in the middle of it, frames that go twice would be in
/// the way of others. And the other side has called it: it keeps little of what comes before that.
fn may_go(sent: *const Sent, link: *const Link) bool {
    const operation: *Operation = @ptrCast(@alignCast(sent.operation.?));
    const x = operation.work.movement;
    const ledger = &x.board.ledger;
    const is_ending = @as(u64, ledger.settled_count) * 4 >= @as(u64, ledger.wanted_count) * 3;
    const waits = link.flow.last.goodput() <= link.flow.carries() / 8;
    if (!is_ending and !waits) return false;
    const neighbour = operation.neighbour(link) orelse return false;
    const is_wanted = x.ending == null and x.is_repeatable(&sent.move);
    return is_wanted and x.board.targets[neighbour.position].open;
}

/// Frames that have arrived since the lanes were last looked at say how long those of a link take.
fn note_arrived(s: *const Session, lane: *Lane, link: *Link) void {
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        if (sent.has_arrived or sent.operation == null or sent.request != null) continue;
        if (is_out(lane, sent)) return;
        sent.has_arrived = true;
        const took_ns = s.now -| sent.put_at;
        const flow = &link.flow;
        flow.takes_ns = if (flow.takes_ns == 0) took_ns else (flow.takes_ns * 7 + took_ns) / 8;
    }
}

/// Twice as long as the link's frames take. Where that is not known yet: as one takes on a lane
/// that has an even part of what the link carries, and waits behind as much as the system holds
/// unsent. And twice the time until it is seen.
fn late_after_ns(lane: *const Lane, link: *const Link) u64 {
    const flow = &link.flow;
    if (flow.takes_ns > 0) return 2 *| (flow.takes_ns +| measure.every_ns);
    const even = flow.carries() / @max(1, flow.lanes_open);
    const bytes = @as(u64, lane.pace.unsent_max) + limits.frame_payload_bytes_max;
    const leaves_ns = if (even == 0) unknown_ns else bytes *| std.time.ns_per_s / even;
    return 2 *| (@max(flow.last.rtt_ns, flow.base_ns) +| leaves_ns +| measure.every_ns);
}

/// Where nobody knows what the link carries.
const unknown_ns = 500 * std.time.ns_per_ms;

// ---- what becomes of twins

/// This frame has left, and counts: its twin does not.
pub fn counted(link: *Link, sent: *const Sent) void {
    if (twin_of(link, sent)) |twin| twin.is_counted = true;
}

/// This frame is acknowledged: whether its slot is still its twin's, which has not been. An earlier
/// one may have been thrown away, so the later one may go once more if it is late; the later one is
/// what the other side has.
pub fn passes_slot(link: *Link, sent: *const Sent) bool {
    const twin = twin_of(link, sent) orelse return false;
    twin.twin = if (sent.twin == .earlier) .none else .delivered;
    return true;
}

/// The lane of this frame broke: whether its twin does the rest. If that is the earlier one, the
/// other side may have taken its place away already.
pub fn is_done_by_twin(link: *Link, sent: *const Sent) bool {
    return sent.twin == .earlier and passes_slot(link, sent);
}

fn twin_of(link: *Link, sent: *const Sent) ?*Sent {
    const other: Sent.Twin = switch (sent.twin) {
        .none, .delivered => return null,
        .earlier => .later,
        .later => .earlier,
    };
    for (link.lanes[0..link.lanes_end]) |place| {
        const lane = place orelse continue;
        for (0..lane.unacked.count) |index| {
            const it = lane.unacked.at(@intCast(index));
            if (it.twin == other and it.is_same(sent)) return it;
        }
    }
    for (link.again.items) |*it| if (it.twin == other and it.is_same(sent)) return it;
    return null;
}
