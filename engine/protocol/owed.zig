//! owed: the debts of members that are not calls of their users: the report after a view, and the
//! vote for an operation that all others have voted for. The consequences: debtors.zig.

const base = @import("base");
const Instant = base.Instant;

/// The report of one member.
pub const Report = struct {
    /// Since when it is waited for, whatever the attempt; `never` while it is not.
    since: Instant = base.never,
    /// When the last new part of it was there, as far as a tick has seen.
    part_at: Instant = 0,
    parts: u32 = 0,
    parts_seen: u32 = 0,
    /// The last attempt that it has reported in, or that it need not have.
    attempt: u32 = 0,

    /// All of it is here, perhaps for an attempt that has passed meanwhile: then it is on its way,
    /// because others came back or went.
    pub fn ended(report: *Report, attempt: u32, newest: u32) void {
        if (attempt <= report.attempt or attempt > newest) return;
        report.attempt = attempt;
        report.since = base.never;
    }

    /// It has another connection, on which it was asked nothing yet: its time goes on.
    pub fn asked_anew(report: *Report, newest: u32) void {
        report.attempt = @max(report.attempt, newest);
    }
};

/// The vote that alone is missing.
pub const Vote = struct {
    rank: ?u16 = null,
    since: Instant = base.never,
};
