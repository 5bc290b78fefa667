//! Record: what the coordinator knows of one operation of an epoch until the operation is decided:
//! the members that have called it, the votes and reports that have come, and the chunks that
//! members hold; and the decision. operation.zig makes and decides records, attempt.zig fills them
//! from reports after a loss, and debt.zig tells which members are waited for.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Election = @import("election.zig").Election;
const Allocator = std.mem.Allocator;
const Descriptor = control.Descriptor;
const Instant = base.Instant;
const KeptRange = wire.control.KeptRange;
const Mask = base.Mask;
const OpId = control.OpId;
const PeerId = base.PeerId;
const SettledRange = wire.control.SettledRange;
const control = wire.control;
const testing = std.testing;

/// The coordinator's knowledge of one operation that is not decided.
pub const Record = struct {
    id: OpId,
    descriptor: Descriptor,
    /// The rank whose call gave `descriptor`.
    from: u16,
    /// Ranks that have voted in the current attempt.
    done: Mask = .empty,
    digest: u128 = 0,
    digest_from: u16 = 0,
    /// When the ranks in `done` called the operation.
    calls: CallTimes = .{},
    /// The earliest attempt in which a member called the operation, according to the reports.
    begun_attempt: u32 = std.math.maxInt(u32),
    // `reported`, `done_reported` and `holdings` are filled by the reports of the current attempt.
    reported: Mask = .empty,
    done_reported: Mask = .empty,
    holdings: Holdings = .{},
    chunks: u32 = 0,
    /// The rank whose report gave `chunks`; null before the first report.
    chunks_from: ?u16 = null,
    /// The ranks that have called the operation, and since when the other ranks are waited for.
    stall: Stall = .{},
    vote_owed: VoteOwed = .{},
    /// Newcomers that have called another operation under this id.
    misfits: Misfits = .{},
    /// The offers of a sync; null: no offer has come, or the operation is no sync.
    election: ?*Election = null,

    /// The name of the shared state of a sync; empty: no offer has come, or the operation is no
    /// sync.
    pub fn state(record: *const Record) []const u8 {
        return if (record.election) |election| election.name.slice() else "";
    }

    /// The verdict on an operation whose root is lost.
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

    /// The verdict that an `abort` message tells members.
    pub fn of(abort: *const control.Abort) Verdict {
        const differ = abort.reason == .mismatch;
        return .{
            .reason = abort.reason,
            .peer = abort.peer,
            .other = abort.other,
            .descriptor = if (differ) abort.descriptor else null,
            .other_descriptor = if (differ) abort.other_descriptor else null,
        };
    }
};

/// How an operation was decided: committed or aborted.
pub const Outcome = union(enum) {
    commit: Committed,
    abort: Verdict,

    pub const Committed = struct { attempt: u32, digest: u128 };
};

pub const Decision = struct {
    /// Decisions of an epoch are numbered from 1.
    number: u64,
    id: OpId,
    /// The rank that alone caused the decision; null if the coordinator did, or two members that
    /// contradict each other.
    maker: ?u16,
    outcome: Outcome,

    /// Stands for the number of a decision that is made while members come back after a restart.
    /// The decision is numbered when all are back, because they may know decisions that the log
    /// lacks.
    pub const unnumbered = std.math.maxInt(u64);

    /// The message that tells members of the decision.
    pub fn message(decision: *const Decision, group: u16, epoch: u64) control.Message {
        return switch (decision.outcome) {
            .commit => |committed| .{ .commit = .{
                .group = group,
                .epoch = epoch,
                .op = decision.id,
                .attempt = committed.attempt,
                .digest = committed.digest,
                .decision = decision.number,
            } },
            .abort => |verdict| .{ .abort = .{
                .group = group,
                .epoch = epoch,
                .op = decision.id,
                .reason = verdict.reason,
                .peer = verdict.peer,
                .other = verdict.other,
                .descriptor = verdict.descriptor orelse .blank,
                .other_descriptor = verdict.other_descriptor orelse .blank,
                .decision = decision.number,
            } },
        };
    }
};

// ---- holdings of members
//
// Which chunks of an operation members hold, according to their reports of one attempt. Ranges are
// kept instead of chunks, so they take about as many bytes as the reports; the budget of all queues
// counts these bytes (run.zig).

pub const Holdings = struct {
    /// Ranges of chunks in ascending order, none empty. No member holds a chunk outside of these
    /// ranges.
    ranges: []KeptRange = &.{},

    /// A member's report; its ranges are in ascending order.
    pub const Report = struct {
        rank: u16,
        /// The member has voted for the chunks that it holds.
        done: bool,
        /// The ranks that have voted, according to the reports so far.
        voted: *const Mask,
        settled: wire.codec.List(SettledRange),
    };

    pub fn bytes(holdings: *const Holdings) usize {
        return holdings.ranges.len * @sizeOf(KeptRange);
    }

    pub fn clear(holdings: *Holdings, gpa: Allocator, budget: *wire.Budget) void {
        budget.bytes -= holdings.bytes();
        gpa.free(holdings.ranges);
        holdings.ranges = &.{};
    }

    /// Whether each of `chunks` chunks has a holder.
    pub fn has_all(holdings: *const Holdings, chunks: u32) bool {
        var held: u32 = 0;
        for (holdings.ranges) |*range| held += range.end - range.begin;
        return held == chunks;
    }

    /// Merges a report into `ranges`, in one pass over the ranges of both.
    pub fn add(
        holdings: *Holdings,
        gpa: Allocator,
        budget: *wire.Budget,
        report: *const Report,
    ) Allocator.Error!void {
        if (report.settled.count == 0) return;
        var merged: Merged = .{ .gpa = gpa, .rest = holdings.ranges };
        defer merged.list.deinit(gpa);
        var it = report.settled.iterator();
        while (it.next()) |told| {
            try merged.copy_to(told.begin);
            var at = told.begin;
            while (merged.next(told.end)) |piece| {
                var range = piece;
                try merged.append(new(report, at, range.begin, told.reduced_attempt));
                tell(&range, report, told.reduced_attempt);
                try merged.append(range);
                at = range.end;
            }
            try merged.append(new(report, at, told.end, told.reduced_attempt));
        }
        try merged.copy_to(std.math.maxInt(u32));
        const ranges = try merged.list.toOwnedSlice(gpa);
        holdings.clear(gpa, budget);
        holdings.ranges = ranges;
        budget.bytes += holdings.bytes();
    }

    fn new(report: *const Report, begin: u32, end: u32, reduced_attempt: u32) KeptRange {
        var range: KeptRange = .{
            .begin = begin,
            .end = end,
            .reduced_attempt = reduced_attempt,
            .holders = .empty,
        };
        range.holders.set(report.rank);
        return range;
    }

    fn tell(range: *KeptRange, report: *const Report, reduced_attempt: u32) void {
        if (range.reduced_attempt == reduced_attempt) return range.holders.set(report.rank);
        // A result that a member has voted for outranks chunks that other members have settled.
        if (range.holders.meets(report.voted)) return;
        if (!report.done and reduced_attempt < range.reduced_attempt) return;
        range.* = new(report, range.begin, range.end, reduced_attempt);
    }
};

/// A merge of ranges under way: the merged ranges, and the old ranges that are not merged yet.
const Merged = struct {
    gpa: Allocator,
    list: std.ArrayList(KeptRange) = .empty,
    rest: []const KeptRange,
    /// The first chunk of `rest[0]` that is not merged yet, if that range was cut.
    cut: u32 = 0,

    /// Takes the next old range, as far as it lies before chunk `end`; null: no old range does.
    fn next(merged: *Merged, end: u32) ?KeptRange {
        if (merged.rest.len == 0) return null;
        var range = merged.rest[0];
        range.begin = @max(range.begin, merged.cut);
        if (range.begin >= end) return null;
        if (range.end > end) {
            range.end = end;
            merged.cut = end;
        } else merged.rest = merged.rest[1..];
        return range;
    }

    fn copy_to(merged: *Merged, end: u32) Allocator.Error!void {
        while (merged.next(end)) |range| try merged.append(range);
    }

    fn append(merged: *Merged, range: KeptRange) Allocator.Error!void {
        if (range.begin == range.end) return;
        if (merged.list.items.len > 0) {
            const last = &merged.list.items[merged.list.items.len - 1];
            if (last.end == range.begin and last.reduced_attempt == range.reduced_attempt and
                last.holders.eql(&range.holders))
            {
                last.end = range.end;
                return;
            }
        }
        try merged.list.append(merged.gpa, range);
    }
};

test "ranges say of each chunk what a list of all chunks would" {
    const gpa = testing.allocator;
    const chunks = 40;
    const Chunk = struct { reduced_attempt: u32 = 0, holders: Mask = .empty };
    for (0..200) |seed| {
        var prng: std.Random.DefaultPrng = .init(seed);
        const random = prng.random();
        var budget: wire.Budget = .{};
        var holdings: Holdings = .{};
        defer holdings.clear(gpa, &budget);
        var model: [chunks]Chunk = @splat(.{});
        var voted: Mask = .empty;
        for (0..6) |rank| {
            const done = random.uintLessThan(u8, 3) == 0;
            if (done) voted.set(rank);
            var settled: std.ArrayList(SettledRange) = .empty;
            defer settled.deinit(gpa);
            var at: u32 = 0;
            while (at < chunks) {
                const end = @min(chunks, at + random.intRangeAtMost(u32, 1, 9));
                const attempt = random.uintLessThan(u32, 4);
                if (attempt > 0) try settled.append(gpa, .{
                    .begin = at,
                    .end = end,
                    .reduced_attempt = attempt,
                });
                at = end;
            }
            try holdings.add(gpa, &budget, &.{
                .rank = @intCast(rank),
                .done = done,
                .voted = &voted,
                .settled = .of(settled.items),
            });
            for (settled.items) |range| for (model[range.begin..range.end]) |*chunk| {
                if (chunk.holders.is_empty() or chunk.reduced_attempt == range.reduced_attempt) {
                    chunk.reduced_attempt = range.reduced_attempt;
                } else {
                    if (chunk.holders.meets(&voted)) continue;
                    if (!done and range.reduced_attempt < chunk.reduced_attempt) continue;
                    chunk.* = .{ .reduced_attempt = range.reduced_attempt };
                }
                chunk.holders.set(rank);
            };
            try expect_equal(chunks, Chunk, &model, &holdings);
            try testing.expectEqual(holdings.bytes(), budget.bytes);
        }
    }
}

fn expect_equal(
    comptime chunks: u32,
    comptime Chunk: type,
    model: *const [chunks]Chunk,
    holdings: *const Holdings,
) !void {
    var held: [chunks]Chunk = @splat(.{});
    var after: u32 = 0;
    for (holdings.ranges) |*range| {
        try testing.expect(range.begin >= after and range.end > range.begin);
        after = range.end;
        for (held[range.begin..range.end]) |*chunk| chunk.* = .{
            .reduced_attempt = range.reduced_attempt,
            .holders = range.holders,
        };
    }
    try testing.expectEqualSlices(Chunk, model, &held);
    for (model) |*chunk| {
        if (chunk.holders.is_empty()) return testing.expect(!holdings.has_all(chunks));
    }
    try testing.expect(holdings.has_all(chunks));
}

test "members that have settled the same chunks share their ranges" {
    const gpa = testing.allocator;
    var budget: wire.Budget = .{};
    var holdings: Holdings = .{};
    defer holdings.clear(gpa, &budget);
    var voted: Mask = .empty;
    for (0..base.limits.peers_max) |rank| {
        voted.set(rank);
        try holdings.add(gpa, &budget, &.{
            .rank = @intCast(rank),
            .done = true,
            .voted = &voted,
            .settled = .of(&.{.{
                .begin = 0,
                .end = base.limits.chunks_max,
                .reduced_attempt = 1,
            }}),
        });
        try testing.expectEqual(1, holdings.ranges.len);
    }
}

// ---- misfits
//
// Calls of an operation that differ from the call in its record, and the ranks that made them.

pub const Misfits = struct {
    said: std.ArrayList(Said) = .empty,
    /// The calls of the operation are known to differ, so all members were asked for theirs.
    is_open: bool = false,
    /// A newcomer and a member that name different sizes for the shards that they exchange; null:
    /// no such pair is known.
    apart: ?Apart = null,

    pub const Said = struct { rank: u16, descriptor: Descriptor };
    const Apart = struct { newcomer: Said, member: Said };

    pub fn deinit(misfits: *Misfits, gpa: Allocator) void {
        misfits.said.deinit(gpa);
    }

    pub fn of(misfits: *const Misfits, rank: u16) ?*const Said {
        for (misfits.said.items) |*said| if (said.rank == rank) return said;
        return null;
    }
};

// ---- reports and votes that are owed
//
// The debts of a member's engine: the report after a `view`, and the vote for an operation for
// which all other members have voted.

/// The report that a member owes after a `view`.
pub const ReportOwed = struct {
    /// The time since which the report is waited for, over all attempts; `never`: it is not waited
    /// for.
    since: Instant = base.never,
    /// The tick that saw the last new part of the report.
    part_at: Instant = 0,
    parts: u32 = 0,
    parts_seen: u32 = 0,
    /// The last attempt for which the member has reported, or for which it need not report.
    attempt: u32 = 0,

    /// Notes that a whole report has come. The report may be of a passed attempt, if another member
    /// came or went meanwhile; then the report of the newest attempt is on its way.
    pub fn ended(report: *ReportOwed, attempt: u32, newest: u32) void {
        if (attempt <= report.attempt or attempt > newest) return;
        report.attempt = attempt;
        report.since = base.never;
    }

    /// Notes that the member has a new connection, on which no report was asked for yet. The wait
    /// `since` goes on.
    pub fn asked_anew(report: *ReportOwed, newest: u32) void {
        report.attempt = @max(report.attempt, newest);
    }
};

/// The only vote that is missing for a commit: the rank that owes it (null: none), and since when.
pub const VoteOwed = struct {
    rank: ?u16 = null,
    since: Instant = base.never,
};

// ---- calls
//
// The members that have called an operation, as far as the coordinator knows, and what the callers
// were told of the missing members.

pub const Stall = struct {
    /// Ranks that have said, in any attempt, that they have called the operation.
    called: Mask = .empty,
    /// The time since which over half of the members have called and some have not; `never`: that
    /// is not so.
    since: Instant = base.never,
    /// The time since which some member waits for the call of another member; `never`: no member
    /// does.
    waits_since: Instant = base.never,
    /// How many members have called the operation, and when that number last grew.
    callers: u32 = 0,
    called_at: Instant = base.never,
    /// The earliest deadline of a call that is near its deadline; `never`: no call is.
    until: Instant = base.never,
    /// Ranks that were told in this attempt that other members wait for their call.
    asked: Mask = .empty,
    /// The missing ranks that the callers were told of in this attempt.
    told: Mask = .empty,
    /// The callers have waited so long that their own logs say so.
    is_long: bool = false,
    /// The operations in which the missing ranks wait, as the callers were told last, and when they
    /// were told.
    told_elsewhere: Told = .{},
    told_at: Instant = 0,
    /// The links that move nothing of the operation in this attempt, by their two ranks, as members
    /// report; and whether the log has warned of such links.
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

    /// Whether a call is near its deadline, so that callers are told of missing members early.
    pub fn is_urgent(stall: *const Stall, now: Instant) bool {
        return stall.until != base.never and now < stall.until;
    }

    pub fn has_waited(stall: *const Stall, now: Instant, for_ns: u64) bool {
        return stall.waits_since != base.never and now -| stall.waits_since >= for_ns;
    }

    /// Whether the last caller, too, has waited for `for_ns`.
    pub fn all_have_waited(stall: *const Stall, now: Instant, for_ns: u64) bool {
        return stall.has_waited(now, for_ns) and now -| stall.called_at >= for_ns;
    }

    /// Begins a new attempt, in which members tell their calls again, and are asked and told again.
    pub fn begin_attempt(stall: *Stall) void {
        stall.asked = .empty;
        stall.told = .empty;
        stall.stuck = .{};
    }
};

/// The operations in which missing members wait, as the callers are told (debt.zig); or links, each
/// by its two ranks.
pub const Told = struct {
    items: [base.limits.elsewhere_told_max]control.Elsewhere = @splat(.{}),
    count: u8 = 0,

    pub fn slice(told: *const Told) []const control.Elsewhere {
        return told.items[0..told.count];
    }

    pub fn add(told: *Told, item: control.Elsewhere) void {
        told.items[told.count] = item;
        told.count += 1;
    }

    /// Whether no earlier item is the same link with its two ranks exchanged. The items must be
    /// links.
    pub fn is_new(told: *const Told, index: usize) bool {
        const link = &told.items[index];
        for (told.items[0..index]) |*other| {
            if (other.rank == link.waits_for and other.waits_for == link.rank) return false;
        }
        return true;
    }

    pub fn forget(told: *Told, rank: u16) void {
        for (told.slice(), 0..) |*item, index| if (item.rank == rank) {
            told.count -= 1;
            told.items[index] = told.items[told.count];
            told.items[told.count] = .{};
            return;
        };
    }

    pub fn eql(told: *const Told, other: *const Told) bool {
        return std.meta.eql(told.*, other.*);
    }

    /// Reads the list of a message. error.Unexpected: a rank is not below `world_size`, or a count
    /// is wrong.
    pub fn read(
        list: *const wire.codec.List(control.Elsewhere),
        world_size: usize,
    ) error{Unexpected}!Told {
        var told: Told = .{};
        var it = list.iterator();
        while (it.next()) |item| {
            if (item.rank >= world_size or item.waits_for >= world_size) return error.Unexpected;
            if (item.count == 0 or item.count > world_size) return error.Unexpected;
            told.add(item); // decoding has bounded the list
        }
        return told;
    }
};

// ---- the last caller
//
// Which member calls an operation last. A vote tells how long ago the member called, so the
// coordinator knows the time of each call on its own clock. The last caller held up all other
// members from the second last call on. The status shows the sum of this time over all groups of a
// peer; no decision depends on it. A member that lies about its call can only hide its own delay,
// or blame itself.

/// A last call with a shorter delay than this is noise of networks and machines, and is not
/// counted.
pub const late_ns_min = std.time.ns_per_ms;

/// When members called one operation, by their votes of the current attempt.
pub const CallTimes = struct {
    last: Instant = 0,
    second_last: Instant = 0,
    /// The rank that called last.
    rank: u16 = 0,
    count: u32 = 0,

    pub fn note(calls: *CallTimes, rank: u16, now: Instant, age_ns: u64) void {
        const at = now -| age_ns;
        calls.count += 1;
        if (at < calls.last) {
            calls.second_last = @max(calls.second_last, at);
            return;
        }
        calls.second_last = calls.last;
        calls.last = at;
        calls.rank = rank;
    }
};

/// How late a peer's calls were.
pub const Lateness = struct {
    /// The number of operations that the peer has called, and of those that it called last by
    /// `late_ns_min` or more.
    calls: u64 = 0,
    last: u64 = 0,
    /// Nanoseconds for which other members waited for the peer alone, over all its operations.
    ns: u64 = 0,
};

test "the last call is found in any order of the votes, and by how much it was late" {
    const orders = [_][3]u16{ .{ 0, 1, 2 }, .{ 2, 1, 0 }, .{ 1, 2, 0 }, .{ 0, 2, 1 } };
    const at = [_]u64{ 100, 130, 120 };
    for (orders) |order| {
        var calls: CallTimes = .{};
        for (order) |rank| calls.note(rank, 1000, 1000 - at[rank]);
        try std.testing.expectEqual(1, calls.rank);
        try std.testing.expectEqual(10, calls.last - calls.second_last);
    }
    var old: CallTimes = .{};
    old.note(0, 1000, std.math.maxInt(u64)); // called before the clock began
    try std.testing.expectEqual(0, old.last);
}
