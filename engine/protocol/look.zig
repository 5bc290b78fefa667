//! Look: when the coordinator looks again for ways around the broken links of a group, and for
//! members that no way leads to (path_search.zig). A look takes long where there are many members,
//! and a member can cause one with a few bytes. So it follows a little later, once for everything
//! that was said until then, and the next one only after a pause. The consequences: detours.zig,
//! tick.zig.

const std = @import("std");
const base = @import("base");
const Instant = base.Instant;
const PeerId = base.PeerId;

pub const Look = struct {
    /// When it is due; `never` while nothing has changed.
    at: Instant = base.never,
    /// The attempt that may follow is at the expense of this member, which has said what hastened
    /// it.
    by: PeerId = .none,
    /// No look before that.
    not_before: Instant = 0,

    /// For each member that there is. A look at 256 members takes a few milliseconds.
    const pause_ns = 2 * std.time.ns_per_ms;

    pub fn ask(look: *Look, at: Instant, by: PeerId) void {
        const when = @max(at, look.not_before);
        if (when >= look.at) return;
        look.at = when;
        look.by = by;
    }

    /// Null: it is not due. Else it is done now, at the expense of this member.
    pub fn take(look: *Look, now: Instant, members: usize) ?PeerId {
        if (now < look.at) return null;
        look.at = base.never;
        look.pause(now, members);
        return look.by;
    }

    /// Somebody has looked.
    pub fn pause(look: *Look, now: Instant, members: usize) void {
        look.not_before = now +| pause_ns *| members;
    }

    /// The next look, or the end of the pause, when a round that waits for it goes on.
    pub fn next_deadline(look: *const Look, now: Instant) Instant {
        return if (look.not_before > now) @min(look.at, look.not_before) else look.at;
    }
};

test "however often it is asked for, a look comes once, and again only after a pause" {
    const expectEqual = std.testing.expectEqual;
    const ms = std.time.ns_per_ms;
    var look: Look = .{};
    try expectEqual(null, look.take(5 * ms, 256));
    look.ask(20 * ms, .from_int(1));
    look.ask(30 * ms, .from_int(2));
    try expectEqual(null, look.take(20 * ms - 1, 256));
    try expectEqual(PeerId.from_int(1), look.take(20 * ms, 256).?);
    try expectEqual(null, look.take(20 * ms, 256));
    look.ask(40 * ms, .from_int(2));
    look.ask(20 * ms, .from_int(1)); // no earlier: who asked first pays
    try expectEqual(532 * ms, look.next_deadline(20 * ms));
    try expectEqual(null, look.take(532 * ms - 1, 256));
    try expectEqual(PeerId.from_int(2), look.take(532 * ms, 3).?);
    try expectEqual(538 * ms, look.next_deadline(532 * ms));
    try expectEqual(base.never, look.next_deadline(538 * ms));
}
