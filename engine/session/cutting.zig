//! cutting: a piece, or a leaf of a shared state, goes out as several frames where its link has
//! several lanes that would each take long for it. All idle lanes take fragments of it, each as
//! many bytes as it sends in a fiftieth of a second. So the piece is there as soon as the link can
//! bring it, and the next hop begins. That counts where nothing else is on the way: while the pipe
//! fills, on the last hop of an operation, and twice in a direct schedule; and at the end of a
//! sync. Free functions on Session. Which piece is next: collective/movement.zig; which leaf:
//! requests.zig; which lane asks: outgoing.zig; what a fragment is: wire/fragment.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const requests = @import("requests.zig");
const Session = @import("session.zig").Session;
const Fragment = wire.Fragment;

/// A lane gets so many bytes as it sends in this part of a second.
const part_of_second = 50;

/// Puts the next data frame for a neighbour on a lane that has room for it: the rest of the piece
/// that was begun, or the next piece, or as much of either as the lane should take. False: there is
/// nothing.
pub fn next(
    s: *const Session,
    lane: *Lane,
    operation: *Operation,
    neighbour: *Operation.Neighbour,
) bool {
    const x = operation.work.movement;
    const cut = rest(operation, neighbour) orelse return false;
    const piece = x.payload(&cut.move);
    const fragment: Fragment = .next(cut.done, bytes_for(s, lane, neighbour.link), piece.len);
    const is_last = fragment.end() == Fragment.most;
    neighbour.cut = if (is_last) null else .{ .move = cut.move, .done = fragment.end() };
    operation.put_data(lane, .{
        .operation = operation,
        .move = cut.move,
        .fragment = fragment,
    }, piece);
    lane.had_turn = true;
    return true;
}

fn rest(operation: *Operation, neighbour: *const Operation.Neighbour) ?Operation.Cut {
    const x = operation.work.movement;
    const cut = neighbour.cut orelse {
        const out = x.next(neighbour.position) orelse return null;
        return .{ .move = out.move, .done = 0 };
    };
    // Else its memory is its caller's again: a new attempt comes (resend.zig).
    const is_there = x.ending == null and x.is_repeatable(&cut.move);
    return if (is_there) cut else null;
}

/// An answer, or a part of one, and its bytes.
pub const Answer = struct { item: requests.Requests.Item, bytes: []const u8 };

/// The next answer that goes on a lane that has room for it, of those that were asked for, or as
/// much of it as the lane should take. `payload`: of the first. One that goes again is not cut in
/// another way.
pub fn take_answer(
    s: *const Session,
    lane: *Lane,
    asked: *requests.Requests,
    payload: []const u8,
) Answer {
    const link = lane.link.?;
    const first = asked.first().?;
    const is_cut = first.class == requests.class_leaf and first.again == 0;
    const part: Fragment = if (is_cut)
        .next(first.part.before, bytes_for(s, lane, link), payload.len)
    else
        first.part;
    lane.had_turn = true;
    const range = part.range(payload.len);
    return .{ .item = asked.take(s.gpa, part), .bytes = payload[range.first..range.end] };
}

/// A lane with many frames under way is faster than was known, and gets large ones.
fn bytes_for(s: *const Session, lane: *const Lane, link: *const Link) usize {
    if (!is_shared(link) or lane.unacked.is_short()) return std.math.maxInt(usize);
    const flow = &link.flow;
    const carried = flow.carries() / flow.spread.lanes;
    const rate = if (lane.pace.rate > 0) lane.pace.rate else carried;
    return @intCast(@max(s.fragment_bytes_min, rate / part_of_second));
}

fn is_shared(link: *const Link) bool {
    return link.flow.is_far() and link.flow.spread.lanes > 1;
}

/// A lane that has been given something lets the others go first, which are woken: the system
/// would take more of it from the first lane than that can send.
pub fn gives_way(s: *Session, lane: *Lane, link: *Link) bool {
    if (!lane.had_turn) return false;
    lane.had_turn = false;
    if (!is_shared(link)) return false;
    var is_alone = true;
    for (link.lanes[0..link.lanes_end]) |place| {
        const other = place orelse continue;
        if (other == lane or other.state != .open or other.out_busy or other.is_kept) continue;
        s.host.vtable.lane_wake(s.host.ctx, other);
        is_alone = false;
    }
    // Behind them.
    if (!is_alone) s.host.vtable.lane_wake(s.host.ctx, lane);
    return !is_alone;
}

comptime {
    std.debug.assert(base.limits.fragment_bytes_min <= base.limits.frame_payload_bytes_max);
}
