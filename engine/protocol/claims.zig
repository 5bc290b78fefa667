//! claims: what members tell of an epoch when they come back, and of decisions that a coordinator
//! has made which was killed. The next one does not know them: it takes them from the members, by
//! their seals (seal.zig), and makes them again when all members are back. The decisions of this
//! coordinator: decisions.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const attempts = @import("attempts.zig");
const decisions = @import("decisions.zig");
const seal = @import("seal.zig");
const Claim = @import("record.zig").Claim;
const Epoch = @import("epoch.zig").Epoch;
const Outcome = @import("record.zig").Outcome;
const ProtocolError = @import("peer.zig").ProtocolError;
const Run = @import("run.zig").Run;
const start_bits = @import("epoch.zig").start_bits;
const control = wire.control;
const OpId = control.OpId;

pub const Known = union(enum) { commit: *const control.Commit, abort: *const control.Abort };

/// A member tells of this epoch at the beginning of a connection.
pub fn on_report(
    epoch: *Epoch,
    rank: u16,
    report: *const control.EpochReport,
) ProtocolError!void {
    const member = &epoch.members[rank];
    if (member.named or epoch.closed.has(rank)) return error.Unexpected;
    if (report.members.count != epoch.members.len) return error.Unexpected;
    var it = report.members.iterator();
    for (epoch.members) |*other| if (!it.next().?.eql(other.id)) return error.Unexpected;
    if (report.attempt >= base.limits.attempts_max) return error.Unexpected; // nobody was there
    if (epoch.recovering) {
        attempts.hear(epoch, rank, report.attempt);
        // Nobody knows any more on what, and who had a part in it: it may have been all.
        if (report.decisions_seen > 0) epoch.fitted = .full(epoch.members.len);
    } else if (report.attempt > epoch.attempt) return error.Unexpected;
    member.report.asked_anew(epoch.attempt);
    try decisions.acknowledge(epoch, rank, report.decisions_seen);
    member.seen_before = report.decisions_seen;
    member.named = true;
    if (report.entered) epoch.activated.set(rank);
}

/// A member tells of a decision. Only a coordinator that has started again does not know it;
/// that it is one is shown by its seal.
pub fn on_known(epoch: *Epoch, rank: u16, message: Known) ProtocolError!void {
    if (!epoch.recovering) return;
    const genuine = switch (message) {
        .commit => |body| seal.equal(body.seal, seal.of_commit(epoch.seal_key, body)),
        .abort => |body| seal.equal(body.seal, seal.of_abort(epoch.seal_key, body)),
    };
    if (!genuine) return error.Unexpected;
    switch (message) {
        inline else => |body| {
            if (body.group != epoch.group) return error.Unexpected;
            // A member that says it has not seen what it tells makes others keep it for ever.
            const member = &epoch.members[rank];
            if (member.named and body.decision > member.seen_before) return error.Unexpected;
        },
    }
    switch (message) {
        .commit => |body| try claim(epoch, rank, body.op, body.decision, .{ .commit = .{
            .attempt = body.attempt,
            .digest = body.digest,
        } }),
        .abort => |body| {
            const differ = body.reason == .mismatch;
            try claim(epoch, rank, body.op, body.decision, .{ .abort = .{
                .reason = body.reason,
                .peer = body.peer,
                .other = body.other,
                .descriptor = if (differ) body.descriptor else null,
                .other_descriptor = if (differ) body.other_descriptor else null,
            } });
        },
    }
}

fn claim(
    epoch: *Epoch,
    rank: u16,
    id: OpId,
    number: u64,
    outcome: Outcome,
) ProtocolError!void {
    // Decisions of one operation never differ, and outweigh that somebody gives it up now.
    if (epoch.claims.get(id)) |known| if (known.number != null) return;
    const member = &epoch.members[rank];
    if (member.claims >= base.limits.decisions_known_max) return error.Unexpected;
    member.claims += 1;
    try epoch.claims.put(epoch.gpa, id, .{
        .number = number,
        .maker = null,
        .outcome = outcome,
    });
}

/// All have reported: what any of them knows, and somebody does not, is decided again, under a
/// number of its own. No maker has more of these than it may cause (`withdraw` counts them), so
/// nothing here is the fault of whoever reports last.
pub fn settle_claims(run: *Run, epoch: *Epoch) ProtocolError!void {
    epoch.settling = true;
    defer epoch.settling = false;
    var last_seen: LastSeen = .{};
    const inside_now = epoch.inside();
    for (epoch.members, 0..) |*member, rank| {
        if (inside_now.has(rank)) last_seen.note(member.seen_before);
    }
    for (epoch.claims.keys(), epoch.claims.values()) |id, *known| {
        const called = epoch.find(id) != null;
        switch (known.outcome) {
            .commit => |committed| if (called) try decisions.commit(run, epoch, id, committed),
            .abort => |verdict| {
                if (!called and !is_worth_telling(epoch, known, &last_seen)) continue;
                try decisions.abort_now(run, epoch, id, verdict, known.maker);
            },
        }
    }
    epoch.claims.clearAndFree(epoch.gpa);
    if (epoch.forgetful) epoch.retold = epoch.decisions;
}

/// Whether an abort may be news to a member that has not called the operation.
fn is_worth_telling(epoch: *const Epoch, known: *const Claim, last_seen: *const LastSeen) bool {
    const number = known.number orelse return true; // it is given up now
    if (last_seen.covers(number)) return false;
    // A liar may have hoarded those that all have seen long ago.
    return epoch.outstanding().len < base.limits.contradictions_kept_max;
}

/// The last decision that each member has seen, as far as it says what all have seen. Members see
/// the decisions of one coordinator in their order; who has seen some of a later one may have
/// missed others of an earlier one, because that may have died while it told them again.
const LastSeen = struct {
    least: u64 = std.math.maxInt(u64),
    most: u64 = 0,

    fn note(last: *LastSeen, number: u64) void {
        last.least = @min(last.least, number);
        last.most = @max(last.most, number);
    }

    fn covers(last: *const LastSeen, number: u64) bool {
        const start = number >> start_bits;
        if (last.least >> start_bits != start or last.most >> start_bits != start) return false;
        return number <= last.least;
    }
};
