//! Record: the coordinator's knowledge of one operation of an epoch until it is decided, and the
//! decision. The parts of it have files of their own: stall.zig, owed.zig, misfits.zig, late.zig,
//! holdings.zig, election.zig. It is made in calls.zig; votes.zig and reports.zig fill it.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const owed = @import("owed.zig");
const Calls = @import("late.zig").Calls;
const Election = @import("election.zig").Election;
const Holdings = @import("holdings.zig").Holdings;
const Misfits = @import("misfits.zig").Misfits;
const Stall = @import("stall.zig").Stall;
const Mask = base.Mask;
const PeerId = base.PeerId;
const control = wire.control;
const Descriptor = control.Descriptor;
const OpId = control.OpId;

/// The coordinator's knowledge of one operation that is not decided.
pub const Record = struct {
    id: OpId,
    descriptor: Descriptor,
    /// Whose descriptor it is.
    from: u16,
    /// Votes of the current attempt.
    done: Mask = .empty,
    digest: u128 = 0,
    digest_from: u16 = 0,
    /// When those have called who have voted.
    calls: Calls = .{},
    /// The earliest attempt in which a member called it, as reports have said.
    begun_attempt: u32 = std.math.maxInt(u32),
    // Filled by the reports of the current attempt.
    reported: Mask = .empty,
    done_reported: Mask = .empty,
    /// The vote of those who have voted, and whether votes differ.
    vote: ?Vote = null,
    votes_differ: bool = false,
    holdings: Holdings = .{},
    chunks: u32 = 0,
    /// Whose count of chunks it is; null before the first report.
    chunks_from: ?u16 = null,
    /// The members that have called it, and since when the others are waited for.
    stall: Stall = .{},
    vote_owed: owed.Vote = .{},
    /// Newcomers that have called something else.
    misfits: Misfits = .{},
    /// For a sync, from the first offer on.
    election: ?*Election = null,

    pub const Vote = struct { attempt: u32, digest: u128 };

    /// The name of the state that a sync is of; empty for other operations, and before it is known.
    pub fn state(record: *const Record) []const u8 {
        return if (record.election) |election| election.name.slice() else "";
    }

    /// Why it ends if the root is lost.
    pub fn root_lost(record: *const Record) Verdict {
        return .{ .reason = .root_lost, .peer = record.descriptor.root };
    }

    pub fn named(record: *const Record, epoch: u64) wire.NamedCall {
        return .{
            .kind = record.descriptor.kind,
            .op = record.id,
            .epoch = epoch,
            .state = record.state(),
            .is_object = wire.is_object(&record.descriptor),
        };
    }
};

pub const Verdict = struct {
    reason: control.AbortReason,
    peer: PeerId = .none,
    other: PeerId = .none,
    descriptor: ?Descriptor = null,
    other_descriptor: ?Descriptor = null,
};

/// The decision on an operation.
pub const Outcome = union(enum) {
    commit: Committed,
    abort: Verdict,

    pub const Committed = struct { attempt: u32, digest: u128 };
};

pub const Decision = struct {
    number: u64,
    id: OpId,
    /// The member that caused it alone; null if the coordinator did, or two members who
    /// contradict each other.
    maker: ?u16,
    outcome: Outcome,
};

pub const Claim = struct {
    /// Its number then; null if it is not decided.
    number: ?u64,
    /// The member that gives up; null as in a decision.
    maker: ?u16,
    outcome: Outcome,
};
