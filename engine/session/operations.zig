//! operations: what many files do to an operation: it is looked at later, or given up; it wakes its
//! lanes, lets go of them, and is freed. Free functions on Session, none of which calls a member.
//! How operations move their data: frames.zig; how they end: actions.zig.

const Session = @import("session.zig").Session;
const Lane = @import("link.zig").Lane;
const Link = @import("link.zig").Link;
const Operation = @import("operation.zig").Operation;
const assert = @import("std").debug.assert;

/// Completion is looked at outside of the member (deferred.zig).
pub fn later(s: *Session, operation: *Operation) void {
    for (s.deferred.items) |item| if (item == operation) return;
    s.deferred.appendAssumeCapacity(operation); // room was made when it was created
}

pub fn give_up(s: *Session, operation: *Operation) void {
    s.log(.err, "out of memory inside an operation: it is withdrawn", .{});
    operation.withdraws = .cancelled;
}

/// Nothing goes around a link between the two of a message, or of an uneven exchange.
pub fn link_down(s: *Session, link: *const Link) void {
    for (s.operations.items) |operation| {
        if (operation.is_over() or !operation.op.descriptor.is_between_two()) continue;
        if (operation.neighbour(link) == null) continue;
        operation.withdraw_from(link);
        later(s, operation);
    }
}

/// There may be something to send to any neighbour.
pub fn wake_all(s: *Session, operation: *const Operation) void {
    for (operation.neighbours) |*neighbour| s.wake(neighbour.link);
}

/// No lane reads or writes memory of this owner any more.
pub fn detach_all(s: *Session, owner: Lane.Owner) void {
    for (s.links.items) |link| detach_link(s, link, owner);
}

pub fn detach_link(s: *Session, link: *Link, owner: Lane.Owner) void {
    for (link.lanes) |place| if (place) |lane| {
        lane.detach(owner);
        if (lane.broken) s.lanes_broken = true;
    };
}

/// The user is done with a finished operation.
pub fn release(s: *Session, operation: *Operation) void {
    assert(operation.finished);
    operation.released = true;
    // One that is in doubt goes on, because the others may need what it holds.
    if (operation.op.state == .finished) free(s, operation);
}

pub fn free(s: *Session, operation: *Operation) void {
    for (s.operations.items, 0..) |item, index| if (item == operation) {
        _ = s.operations.swapRemove(index);
        break;
    };
    for (s.deferred.items, 0..) |item, index| if (item == operation) {
        _ = s.deferred.swapRemove(index);
        break;
    };
    operation.destroy();
}
