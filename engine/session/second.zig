//! second: when a link has nothing else to send, above all near the end of an operation, all wait
//! for the frames that slow lanes still hold. Other lanes then send these a second time. The one
//! that comes first counts, and the other is thrown away. Free functions on Session. How the other
//! side takes two of them: resend.zig, which also sends once more what a broken lane held; why:
//! docs/PROTOCOL.md.
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
    const oldest = first_out(lane) orelse return null;
    const after_ns = late_after_ns(lane, link);
    if (s.now -| oldest.put_at < after_ns) return null;
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

/// The other side has called the operation: it keeps little of what comes before that.
fn may_go(sent: *const Sent, link: *const Link) bool {
    const operation: *Operation = @ptrCast(@alignCast(sent.operation.?));
    const x = operation.work.movement;
    const neighbour = operation.neighbour(link) orelse return false;
    const is_wanted = x.ending == null and x.is_repeatable(&sent.move);
    return is_wanted and x.board.targets[neighbour.position].open;
}

/// Twice as long as a frame takes on a lane that has an even part of what the link carries, and
/// waits behind as much as the system holds unsent; and twice the time until that is seen.
fn late_after_ns(lane: *const Lane, link: *const Link) u64 {
    const flow = &link.flow;
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
