//! resend: a lane breaks whose link has another one: frames that the other side has not
//! acknowledged go again, and those that had not come in whole are awaited anew. So a lane that
//! breaks costs no attempt. Opens and credits are said again, because they say what is, and not
//! what is new. Free functions on Session. Frames that wait for acknowledgements: unacked.zig;
//! other frames: outgoing.zig, frames.zig; those of shared states: asking.zig; how a lane ends:
//! links.zig; why: docs/PROTOCOL.md.
//!
//! A frame may come twice: its lane broke after it had been delivered. The second is thrown away.
//! It may also come while another is still coming in: the one that was sent later gets the place,
//! because its sender knows that the lane of the other is broken. Lanes have no order among each
//! other, so each frame says how often it was sent before.

const std = @import("std");
const operations = @import("operations.zig");
const syncing = @import("syncing.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Sent = @import("unacked.zig").Sent;
const Session = @import("session.zig").Session;

fn operation_of(sent: *const Sent) ?*Operation {
    return @ptrCast(@alignCast(sent.operation orelse return null));
}

// ---- while the lane is well

/// A frame has come in whole, or what was left of it: if it is one to acknowledge, that goes with
/// the next frame out. Always true: the lane is there.
pub fn taken(s: *Session, lane: *Lane) bool {
    if (!lane.incoming.kind.is_acknowledged()) return true;
    lane.taken +%= 1;
    if (!lane.incoming.asks) return true;
    lane.ack_due = true;
    if (!lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
    return true;
}

/// A frame has come in, which says how many the other side has.
pub fn acknowledged(s: *Session, lane: *Lane) error{AcknowledgedTooMany}!void {
    const was_full = !lane.unacked.has_room();
    for (0..try lane.unacked.acknowledged(lane.incoming.acked)) |_| {
        lane.link.?.moved_at = s.now;
        const sent = lane.unacked.pop();
        const operation = operation_of(&sent) orelse continue;
        if (sent.request != null) continue;
        delivered(s, operation, &sent);
    }
    const has_room_again = was_full and lane.unacked.has_room();
    if (has_room_again and !lane.out_busy) s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// A slot that is free again may be a credit, or what another frame waits for.
fn delivered(s: *Session, operation: *Operation, sent: *const Sent) void {
    const is_free = operation.work.movement.acknowledged(&sent.move, sent.fragment);
    if (is_free) operations.wake_all(s, operation);
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
pub fn next(lane: *Lane, link: *Link) bool {
    if (link.again.items.len == 0 or !lane.unacked.has_room()) return false;
    for (link.again.items, 0..) |sent, index| {
        const operation = operation_of(&sent).?;
        const x = operation.work.movement;
        // Else its memory is its caller's again, or will be: a new attempt comes.
        if (x.ending != null or !x.is_repeatable(&sent.move)) continue;
        _ = link.again.orderedRemove(index);
        operation.put_data(lane, sent, x.payload(&sent.move));
        return true;
    }
    return false;
}

// ---- when it breaks

/// A lane is gone, and others of its link are there: they do what was left to do. False: they
/// cannot, and the attempt is lost.
pub fn lane_gone(s: *Session, lane: *Lane, link: *Link) bool {
    take_back(lane, link);
    var are_all_kept = true;
    for (0..lane.unacked.count) |index| {
        const sent = lane.unacked.at(@intCast(index));
        const operation = operation_of(sent) orelse continue;
        const is_kept = if (sent.request) |*request|
            syncing.say_again(operation, link, request)
        else
            operation.work.movement.is_repeatable(&sent.move) and keep(link, sent);
        are_all_kept = are_all_kept and is_kept;
    }
    for (s.operations.items) |operation| {
        if (operation.sync() != null) syncing.open_again(operation, link);
        const neighbour = operation.neighbour(link) orelse continue;
        const x = operation.work.movement;
        if (!x.receives_from(neighbour.position)) continue;
        neighbour.open_pending = true;
        x.grant_again(neighbour.position);
    }
    return are_all_kept;
}

fn keep(link: *Link, sent: *const Sent) bool {
    var once_more = sent.*;
    once_more.again = std.math.add(u8, sent.again, 1) catch return false;
    link.again.append(link.gpa, once_more) catch return false;
    return true;
}

/// The operation's memory is its caller's again: whether something of that was still to go again.
pub fn is_cut_short(link: *const Link, operation: *const Operation) bool {
    if (operation.neighbour(link)) |neighbour| if (neighbour.cut) |*cut|
        if (!operation.work.movement.is_repeatable(&cut.move)) return true;
    for (link.again.items) |*sent| {
        const is_its = sent.operation == @as(*const anyopaque, operation);
        if (is_its and !operation.work.movement.is_repeatable(&sent.move)) return true;
    }
    return false;
}

/// A payload that was coming in on it is awaited anew.
fn take_back(lane: *Lane, link: *const Link) void {
    const operation = Operation.from_owner(lane.into_owner orelse return) orelse return;
    if (operation.sync() != null) return syncing.broke_off(operation, link, &lane.incoming);
    if (!lane.incoming.kind.is_data() or lane.into == null) return;
    const neighbour = operation.neighbour(link) orelse return;
    operation.work.movement.unplace(&lane.incoming, neighbour.position, lane.into_slot);
    lane.drop_into();
}
