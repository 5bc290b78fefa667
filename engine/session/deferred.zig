//! deferred: what could not be done inside a member's action or in the midst of a lane's bytes, and
//! is done before a call of the driver or the user returns. Session says what there is to do.

const actions = @import("actions.zig");
const frames = @import("frames.zig");
const greeting = @import("greeting.zig");
const links = @import("links.zig");
const queue = @import("queue.zig");
const vote = @import("vote.zig");
const Session = @import("session.zig").Session;

pub fn run(s: *Session) void {
    while (true) {
        if (s.votes_changed) {
            s.votes_changed = false;
            for (s.groups.items) |group| vote.go_on(s, group);
        }
        actions.tell_back(s);
        while (s.deferred.pop()) |operation| {
            if (operation.op.state == .finished) continue;
            frames.check_complete(s, operation);
        }
        if (!queue.step(s) and !s.votes_changed) break;
    }
    if (s.links_stale) {
        s.links_stale = false;
        links.review(s);
    }
    if (s.lanes_broken) {
        s.lanes_broken = false;
        links.close_broken(s);
    }
    if (!s.places_freed) return;
    s.places_freed = false;
    greeting.greet_waiting(s);
}
