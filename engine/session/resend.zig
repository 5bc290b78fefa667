//! resend: what happens when a lane breaks whose link has another one: what the other side has not
//! acknowledged goes again, and what had not come in whole is awaited anew. So a lane that breaks
//! costs no attempt. Opens and credits are said again, because they say what is, and not what is
//! new. Free functions on Session. What waits for acknowledgements: unacked.zig; the frames:
//! outgoing.zig, frames.zig; how a lane ends: links.zig; why: docs/PROTOCOL.md.
//!
//! A frame may come twice: its lane broke after it had been delivered. The second is thrown away.
//! It may also come while the first is still coming in, on a lane that only the sender knows to be
//! broken: then the second takes the place of the first.

const outgoing = @import("outgoing.zig");
const operations = @import("operations.zig");
const collective = @import("collective");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Sent = @import("unacked.zig").Sent;
const Session = @import("session.zig").Session;

fn operation_of(sent: *const Sent) ?*Operation {
    return @ptrCast(@alignCast(sent.operation orelse return null));
}

// ---- while the lane is well

/// A frame has come in whole, or what was left of it: one of data is acknowledged with the next
/// frame that goes out. Always true: the lane is there.
pub fn taken(s: *Session, lane: *Lane) bool {
    if (!lane.incoming.kind.is_data()) return true;
    lane.taken +%= 1;
    if (!lane.incoming.asks) return true;
    lane.ack_due = true;
    if (!lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
    return true;
}

/// A frame has come in, which says how many the other side has.
pub fn acknowledged(s: *Session, lane: *Lane) error{AcknowledgedTooMany}!void {
    for (0..try lane.unacked.acknowledged(lane.incoming.acked)) |_| {
        const sent = lane.unacked.pop();
        const operation = operation_of(&sent) orelse continue;
        operation.work.movement.acknowledged(&sent.move);
        // A slot that is free again may be a credit, or what another frame waits for.
        if (sent.move.slot != collective.no_slot) operations.wake_all(s, operation);
    }
    if (!lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// The attempt is over: nothing of it goes again.
pub fn forget(link: *Link, operation: *const Operation) void {
    for (link.lanes[0..link.lanes_end]) |place| if (place) |lane| lane.unacked.forget(operation);
    var index = link.again.items.len;
    while (index > 0) {
        index -= 1;
        if (link.again.items[index].operation == @as(*const anyopaque, operation))
            _ = link.again.orderedRemove(index);
    }
}

/// Puts the next frame that goes again on a lane that is idle, if there is one.
pub fn next(s: *Session, lane: *Lane, link: *Link) bool {
    _ = s;
    if (link.again.items.len == 0 or !lane.unacked.has_room()) return false;
    for (link.again.items, 0..) |sent, index| {
        const operation = operation_of(&sent).?;
        const x = operation.work.movement;
        if (x.ending != null) continue; // its memory is being given back
        _ = link.again.orderedRemove(index);
        outgoing.put_data(lane, operation, sent, x.payload(&sent.move));
        return true;
    }
    return false;
}

// ---- when it breaks

/// A lane is gone, and others of its link are there: they do what was left to do. False: they
/// cannot, and the attempt is lost.
pub fn lane_gone(s: *Session, lane: *Lane, link: *Link) bool {
    take_back(lane, link);
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        const operation = operation_of(sent) orelse continue;
        if (!operation.work.movement.is_repeatable(&sent.move)) return false;
        link.again.append(link.gpa, sent.*) catch return false;
    }
    for (s.operations.items) |operation| {
        const neighbour = operation.neighbour(link) orelse continue;
        const x = operation.work.movement;
        if (!x.receives_from(neighbour.position)) continue;
        neighbour.open_pending = true;
        x.grant_again(neighbour.position);
    }
    return true;
}

/// What was coming in on it is awaited anew.
fn take_back(lane: *Lane, link: *const Link) void {
    const operation = Operation.from_owner(lane.into_owner orelse return) orelse return;
    if (!lane.incoming.kind.is_data() or lane.into == null) return;
    const neighbour = operation.neighbour(link) orelse return;
    operation.work.movement.unplace(&lane.incoming, neighbour.position, lane.into_slot);
    lane.drop_into();
}

/// Data has a place already. If it is still coming in on another lane, this one takes the place:
/// whoever sends it again knows that the other lane is broken. Else it is not needed.
pub fn take_over(lane: *Lane, operation: *Operation) bool {
    const link = lane.link.?;
    for (link.lanes[0..link.lanes_end]) |place| {
        const other = place orelse continue;
        if (other == lane or other.into == null or !other.brings(operation.owner())) continue;
        if (!other.incoming.is_same(&lane.incoming)) continue;
        const bytes = other.place();
        other.drop_into();
        lane.expect(bytes, operation.owner(), other.into_slot);
        return true;
    }
    return false;
}
