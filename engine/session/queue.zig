//! queue: calls beyond those that a group may have in flight. They wait here in the order of the
//! calls and begin as others end, so a program need not count what it has in flight. Such a call
//! has its number, its deadline and its arrays like any other; the others are not told of it, and
//! the large buffers of its operation are reserved when its turn comes. Whose turn it is:
//! protocol/member.zig.
//!
//! Collectives, sends and receives take turns apart from each other (base/pair.zig): many receives
//! called before the sends hold up neither these nor a collective. Beyond what is in flight members
//! must call each of the three in one order: where two wait for what is in flight at the other,
//! both wait for their deadlines.

const base = @import("base");
const Group = @import("group.zig").Group;
const Operation = @import("operation.zig").Operation;
const Session = @import("session.zig").Session;
const Uses = @import("uses.zig").Uses;

/// With the session: operations are not used any more.
pub fn destroy(s: *Session) void {
    for (s.groups.items) |group| for (group.member.epochs) |slot| if (slot) |epoch| {
        for (epoch.queued.items) |op| Operation.from_op(op).destroy();
    };
}

/// A call is made that has to wait.
pub fn put(s: *Session, operation: *Operation) void {
    operation.is_queued = true;
    s.queue.count += 1;
    s.queue.deadline = @min(s.queue.deadline, operation.deadline);
}

/// It has its turn, or is over without one. Room was made when it was created.
pub fn leave(s: *Session, operation: *Operation) void {
    operation.is_queued = false;
    s.queue.count -= 1;
    s.operations.appendAssumeCapacity(operation);
}

/// Begins what has its turn; false if that is nothing. Not from inside a member's action.
pub fn step(s: *Session) bool {
    if (s.queue.count == 0) return false;
    var any = false;
    for (s.groups.items) |group| while (group.member.next_queued()) |op| {
        any = true;
        const operation = Operation.from_op(op);
        if (operation.moves()) |x| x.reserve() catch {
            s.log(.err, "no memory for {f}, which has waited for its turn: it is withdrawn", .{
                operation.named(&operation.names),
            });
            group.member.give_up(op, .cancelled);
            continue;
        };
        leave(s, operation);
        group.member.start_queued(op);
    };
    return any;
}

/// A deadline runs from the call.
pub fn tick(s: *Session) void {
    if (s.now < s.queue.deadline) return;
    s.queue.deadline = base.never;
    for (s.groups.items) |group| while (due(s, group)) |operation| {
        group.member.give_up(&operation.op, .deadline);
    };
}

/// The first whose deadline has passed; else notes when the next one does.
fn due(s: *Session, group: *Group) ?*Operation {
    for (group.member.epochs) |slot| if (slot) |epoch| for (epoch.queued.items) |op| {
        const operation = Operation.from_op(op);
        if (operation.deadline <= s.now) return operation;
        s.queue.deadline = @min(s.queue.deadline, operation.deadline);
    };
    return null;
}

/// Whether one of them needs memory that a call would write, or would write what that one uses.
pub fn clashes(s: *const Session, uses: *const Uses) bool {
    if (s.queue.count == 0) return false;
    for (s.groups.items) |group| {
        for (group.member.epochs) |slot| if (slot) |epoch| for (epoch.queued.items) |op| {
            if (Operation.from_op(op).clashes(uses)) return true;
        };
    }
    return false;
}
