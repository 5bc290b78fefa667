//! outgoing: from moves of an operation to bytes on a lane: which frame an idle lane sends next,
//! and what follows once it has left. Free functions on Session. The way in, and when an operation
//! is complete: frames.zig; what moves next: collective/movement.zig; how a frame is put on a lane:
//! operation.zig; how a piece is cut: cutting.zig; frames of shared states: syncing.zig,
//! prefetch.zig.
//!
//! Opens, credits and small operations go before large ones, so that a small operation beside a
//! large one takes hardly longer than alone. Large ones are not held up for it: for each whole
//! frame that small ones have put before them, they have one. Over a long link a small frame would
//! still wait for bytes that the system has taken; so there one lane of several is left to small
//! ones for a while.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const cutting = @import("cutting.zig");
const frames = @import("frames.zig");
const links = @import("links.zig");
const prefetch = @import("prefetch.zig");
const probing = @import("probing.zig");
const resend = @import("resend.zig");
const syncing = @import("syncing.zig");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const WayBack = @import("way_back.zig").WayBack;
const Header = wire.frame.Header;
const control = wire.control;
const limits = base.limits;

/// Puts the next frame on a lane that is idle, if there is one.
pub fn next(s: *Session, lane: *Lane) void {
    if (lane.state != .open) return;
    const link = lane.link.?;
    // The other side may be the one that dials.
    if (link.flow.is_news()) return put_ping(s, lane, link);
    const says = lane.ping_due or lane.ack_due;
    if (!link.serves(lane)) return if (says) put_ping(s, lane, link);
    lane.is_kept = link.keeps(lane, s.now);
    if (cutting.gives_way(s, lane, link)) return;
    if (resend.next(lane, link)) return;
    if (next_of_all(s, lane, link)) return;
    if (!lane.is_kept and prefetch.next(s, lane, link)) return;
    if (says) return put_ping(s, lane, link);
    probing.next(s, lane, link);
}

/// A sign of life, what has come in, how many lanes this side would like, how far it is, and when
/// that leaves this side.
fn put_ping(s: *const Session, lane: *Lane, link: *Link) void {
    const index = link.flow.spread.lanes;
    link.flow.told = index;
    lane.put_head(&wire.frame.encode(std.mem.zeroInit(Header, .{
        .kind = .ping,
        .index = index,
        .tag = @min(link.flow.base_ns, limits.link_rtt_ns_told_max),
        .sequence = if (leaves_at_once(s, lane, link)) WayBack.stamp(s.now) else WayBack.none,
        .acked = lane.answer(),
    })));
    lane.out_busy = true;
}

/// The system sends what it is given now, and nothing before that. Nobody asks near by.
fn leaves_at_once(s: *const Session, lane: *Lane, link: *const Link) bool {
    if (!link.flow.is_far()) return false;
    const sample = s.host.vtable.lane_sample(s.host.ctx, lane) orelse return false;
    return sample.unsent == 0;
}

/// First opens, credits and requests of each operation and data of small ones, in turn; then data
/// of large ones, in turn. One that is alone is asked once.
fn next_of_all(s: *Session, lane: *Lane, link: *Link) bool {
    const count = s.operations.items.len;
    const is_alone = count == 1 and !lane.is_kept;
    var room: ?bool = null;
    if (!lane.is_kept and link.overtaken >= s.settings.chunk_bytes) {
        link.overtaken = 0;
        if (next_of_large(s, lane, link, &room)) return true;
    }
    var waits = false;
    for (0..count) |step| {
        const index = (link.turn + step) % count;
        const operation = s.operations.items[index];
        const part: Part = if (is_alone or operation.is_small) .all else .said;
        waits = waits or part == .said;
        if (!next_of(s, lane, link, operation, part, &room)) continue;
        link.turn = index + 1;
        if (operation.is_small and lane.out_payload.len > 0) overtook(s, lane, link);
        return true;
    }
    return waits and !lane.is_kept and next_of_large(s, lane, link, &room);
}

fn next_of_large(s: *Session, lane: *Lane, link: *Link, room: *?bool) bool {
    const count = s.operations.items.len;
    for (0..count) |step| {
        const index = (link.turn_of_large + step) % count;
        const operation = s.operations.items[index];
        if (operation.is_small or !next_of(s, lane, link, operation, .all, room)) continue;
        link.turn_of_large = index + 1;
        link.overtaken = 0;
        return true;
    }
    return false;
}

/// A small operation has sent data: if a large one is under way beside it, the next small ones find
/// a lane that is free.
fn overtook(s: *Session, lane: *const Lane, link: *Link) void {
    link.overtaken += lane.out_payload.len;
    if (!link.flow.is_far()) return;
    for (s.operations.items) |operation| {
        if (operation.is_small or operation.neighbour(link) == null) continue;
        link.keeps_until = s.now +| keep_ns;
        return;
    }
}

/// Programs call small operations beside large ones again and again, in each of their steps.
const keep_ns = 60 * std.time.ns_per_s;

/// An operation may send opens, credits and requests alone, or all.
const Part = enum { said, all };

/// `room`: of room_ahead, once it is known.
fn next_of(
    s: *Session,
    lane: *Lane,
    link: *Link,
    operation: *Operation,
    part: Part,
    room: *?bool,
) bool {
    if (operation.sync() != null) {
        if (syncing.says_next(lane, link, operation)) return true;
        return part == .all and syncing.gives_next(s, lane, link, operation);
    }
    const x = operation.work.movement;
    if (x.board.members < 2) return false;
    const neighbour = operation.neighbour(link) orelse return false;
    const position = neighbour.position;
    if (x.receives_from(position)) {
        if (neighbour.open_pending) {
            neighbour.open_pending = false;
            const descriptor = control.encode_descriptor(operation.descriptor_for(position));
            operation.put(lane, .{ .kind = .open, .index = x.initial_credit() }, &descriptor);
            s.fault_point(operation, .operation_opened);
            return true;
        }
        if (x.next_grant(position)) |grant| {
            operation.put(lane, .{
                .kind = .credit,
                .index = grant.allowed,
                .class = grant.class,
            }, "");
            return true;
        }
    }
    if (part == .said or !x.sends_to(position)) return false;
    if (!x.board.targets[position].open and x.board.targets[position].eager_bytes == 0) {
        if (room.* == null) room.* = has_room_ahead(s, link);
        if (!room.*.?) return false;
    }
    if (!lane.unacked.has_room()) return false;
    return cutting.next(s, lane, operation, neighbour);
}

/// Whether another operation may send data to this peer before it has called it.
fn has_room_ahead(s: *const Session, link: *const Link) bool {
    var ahead: usize = 0;
    for (s.operations.items) |operation| {
        const neighbour = operation.neighbour(link) orelse continue;
        const target = &operation.work.movement.board.targets[neighbour.position];
        if (!target.open and target.eager_bytes > 0) ahead += 1;
    }
    return ahead < limits.eager_operations_max;
}

/// Everything that was put on the lane has left.
pub fn sent(s: *Session, lane: *Lane) void {
    lane.out_busy = false;
    lane.ping_due = false;
    lane.unacked.is_leaving = false;
    if (lane.state == .refusing) return links.fail(s, lane, "it was refused");
    const owner = lane.out_owner orelse return;
    lane.out_owner = null;
    const operation = Operation.from_owner(owner) orelse return;
    if (operation.sync() != null) return syncing.sent(s, lane, operation);
    const frame = lane.unacked.newest();
    if (frame.is_counted) return;
    frame.is_counted = true;
    operation.work.movement.sent(frame.fragment);
    if (frame.move.kind == .partial) s.fault_point(operation, .operation_partial);
    // It may have been waiting for this to leave.
    if (!operation.op.complete) frames.check_complete(s, operation);
}
