//! Stall: who has called an operation, as far as the coordinator knows, and what was said of those
//! who have not. The consequences, and whose word counts: stalls.zig.

const base = @import("base");
const Told = @import("told_elsewhere.zig").Told;
const Instant = base.Instant;
const Mask = base.Mask;

pub const Stall = struct {
    /// They have said that they have called it, whatever the attempt.
    called: Mask = .empty,
    /// Since when it stands still; `never` while it does not.
    since: Instant = base.never,
    /// Since when anybody is known to wait for the call of another one; `never` while nobody is.
    waits_since: Instant = base.never,
    /// How many have called it, and when the last of them had.
    callers: u32 = 0,
    called_at: Instant = base.never,
    /// The first deadline of those that are near; `never` while none is.
    until: Instant = base.never,
    /// In the current attempt: those who were told that others wait for their call.
    asked: Mask = .empty,
    /// In the current attempt: whom the callers were told that they wait for.
    told: Mask = .empty,
    /// They have waited for so long that their logs say it, too.
    is_long: bool = false,
    /// The operations that they were told those wait in themselves, and when.
    told_elsewhere: Told = .{},
    told_at: Instant = 0,
    /// The links that move nothing of it, in the current attempt, as members say, by their two
    /// ends; and whether the log says so.
    stuck: Told = .{},
    stuck_said: bool = false,

    pub fn note_wait(
        stall: *Stall,
        needed: *const Mask,
        missing: *const Mask,
        now: Instant,
        late: bool,
    ) void {
        const waits = !missing.is_empty() and !missing.covers(needed);
        if (!waits) stall.waits_since = base.never //
        else if (late or stall.waits_since == base.never) stall.waits_since = now;
        const callers = stall.called.count();
        if (!late and callers == stall.callers) return;
        stall.callers = callers;
        stall.called_at = now;
    }

    /// Somebody's call ends before those who wait are told as a rule.
    pub fn is_urgent(stall: *const Stall, now: Instant) bool {
        return stall.until != base.never and now < stall.until;
    }

    pub fn has_waited(stall: *const Stall, now: Instant, for_ns: u64) bool {
        return stall.waits_since != base.never and now -| stall.waits_since >= for_ns;
    }

    /// The same of each of those who have called it.
    pub fn all_have_waited(stall: *const Stall, now: Instant, for_ns: u64) bool {
        return stall.has_waited(now, for_ns) and now -| stall.called_at >= for_ns;
    }

    /// All say anew what they have called, so they are told anew.
    pub fn begin_attempt(stall: *Stall) void {
        stall.asked = .empty;
        stall.told = .empty;
        stall.stuck = .{};
    }
};
