//! Epoch, as the coordinator keeps it: who is alive in one admitted membership, its attempts, and
//! the votes and reports of the operations in it. Decides commit, abort and what a resume keeps.
//! What a sync ends up with is election.zig's. Joining is group.zig's; connections are
//! coordinator.zig's; the member's half is member.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const History = @import("history.zig").History;
const Election = @import("election.zig").Election;
const Structures = @import("structure.zig").Structures;
const Peer = @import("coordinator.zig").Peer;
const Allocator = std.mem.Allocator;
const PeerId = base.PeerId;
const Mask = base.Mask;
const control = wire.control;
const OpId = control.OpId;
const Descriptor = control.Descriptor;
const assert = std.debug.assert;

pub const MemberState = struct {
    id: PeerId,
    /// Null once lost.
    peer: ?*Peer,
    reported: bool = false,
    activated: bool = false,
    closed: bool = false,
    decisions_seen: u64 = 0,
    /// What `decisions_seen` must reach, and since when it must.
    seen_wanted: u64 = 0,
    seen_wanted_at: base.Instant = 0,
    // The round under way (group.zig).
    prepared: bool = false,
    safe_points: ?u64 = null,
};

/// What the coordinator knows of one operation that is not decided.
pub const Record = struct {
    id: OpId,
    descriptor: Descriptor,
    /// Whose descriptor it is.
    from: u16,
    /// Votes of the current attempt.
    done: Mask = .empty,
    digest: u128 = 0,
    digest_from: u16 = 0,
    // Filled by the reports of the current attempt.
    reported: Mask = .empty,
    done_reported: Mask = .empty,
    chunks: []Chunk = &.{},
    /// Whose count of chunks it is; null before the first report.
    chunks_from: ?u16 = null,
    /// Of a sync, from the first offer on.
    election: ?*Election = null,

    const Chunk = struct { reduced_attempt: u32, holders: Mask };
};

pub const Verdict = struct {
    reason: control.AbortReason,
    peer: PeerId = .none,
    other: PeerId = .none,
    descriptor: ?Descriptor = null,
    other_descriptor: ?Descriptor = null,
};

pub const ProtocolError = error{ OutOfMemory, Unexpected };

pub const Epoch = struct {
    gpa: Allocator,
    group: u16,
    number: u64,
    attempt: u32 = 1,
    /// False from a view until its resume.
    running: bool = true,
    /// A member was lost since the last resume, so operations with recovery `raise` fail.
    lost: bool = false,
    lost_peer: PeerId = .none,
    min_world_size: u32,
    members: []MemberState,
    alive: Mask,
    history: History = .{},
    records: std.ArrayList(*Record) = .empty,
    /// Members below this rank were in the epoch before.
    incumbents: usize = 0,
    /// Aborts that some member may not have seen yet: late votes for them are ignored.
    aborted: std.ArrayList(Aborted) = .empty,
    /// Syncs committed that some member may not have seen yet: who gives one up has asked too late.
    synced: std.ArrayList(Synced) = .empty,
    decisions: u64 = 0,
    committed: u64 = 0,
    /// When a new attempt with the same members is due, because lanes broke.
    replan_at: base.Instant = base.never,

    const Aborted = struct {
        id: OpId,
        decision: u64,
        /// Who caused it alone; null if the coordinator did, or two members who contradict each
        /// other.
        maker: ?u16,
    };

    const Synced = struct { id: OpId, decision: u64 };

    pub fn create(
        gpa: Allocator,
        group: u16,
        number: u64,
        peers: []const *Peer,
        min_world_size: u32,
    ) Allocator.Error!*Epoch {
        const epoch = try gpa.create(Epoch);
        errdefer gpa.destroy(epoch);
        const members = try gpa.alloc(MemberState, peers.len);
        errdefer gpa.free(members);
        for (members, peers) |*member, peer| member.* = .{ .id = peer.id, .peer = peer };
        epoch.* = .{
            .gpa = gpa,
            .group = group,
            .number = number,
            .min_world_size = min_world_size,
            .members = members,
            .alive = .full(peers.len),
        };
        // Members only go, so this is all that it will ever hold: a loss needs no memory.
        try epoch.history.reserve(gpa, peers.len);
        epoch.history.note(1, &epoch.alive);
        return epoch;
    }

    pub fn destroy(epoch: *Epoch) void {
        const gpa = epoch.gpa;
        while (epoch.records.items.len > 0) epoch.record_free(0);
        epoch.records.deinit(gpa);
        epoch.aborted.deinit(gpa);
        epoch.synced.deinit(gpa);
        epoch.history.deinit(gpa);
        gpa.free(epoch.members);
        gpa.destroy(epoch);
    }

    pub fn rank_of(epoch: *const Epoch, peer: *const Peer) ?u16 {
        for (epoch.members, 0..) |*member, rank| {
            if (member.peer == peer) return @intCast(rank);
        }
        return null;
    }

    pub fn broadcast(epoch: *Epoch, message: control.Message) void {
        for (epoch.members) |*member| if (member.peer) |peer| peer.send(message);
    }

    pub fn starved(epoch: *const Epoch) bool {
        return epoch.alive.count() < epoch.min_world_size;
    }

    // ---- records

    fn find(epoch: *const Epoch, id: OpId) ?usize {
        for (epoch.records.items, 0..) |item, index| if (item.id.eql(id)) return index;
        return null;
    }

    fn is_aborted(epoch: *const Epoch, id: OpId) bool {
        for (epoch.aborted.items) |entry| if (entry.id.eql(id)) return true;
        return false;
    }

    /// The record of an operation, new if need be; null if the descriptors differ, and then it is
    /// aborted.
    fn record_of(
        epoch: *Epoch,
        id: OpId,
        descriptor: *const Descriptor,
        rank: u16,
    ) ProtocolError!?*Record {
        if (epoch.find(id)) |index| {
            const known = epoch.records.items[index];
            if (known.descriptor.eql(descriptor) or base.canary.on(.skip_fingerprint)) return known;
            if (known.from == rank) return error.Unexpected; // nobody calls one thing twice
            try epoch.abort(id, .{
                .reason = .mismatch,
                .peer = epoch.members[known.from].id,
                .other = epoch.members[rank].id,
                .descriptor = known.descriptor,
                .other_descriptor = descriptor.*,
            }, epoch.spendthrift(rank));
            return null;
        }
        var begun: usize = 0;
        for (epoch.records.items) |known| begun += @intFromBool(known.from == rank);
        if (begun >= base.limits.operations_in_flight_max) return error.Unexpected;
        const new = try epoch.gpa.create(Record);
        errdefer epoch.gpa.destroy(new);
        new.* = .{ .id = id, .descriptor = descriptor.*, .from = rank };
        try epoch.records.append(epoch.gpa, new);
        return new;
    }

    fn record_free(epoch: *Epoch, index: usize) void {
        const gone = epoch.records.orderedRemove(index);
        epoch.gpa.free(gone.chunks);
        if (gone.election) |election| election.destroy();
        epoch.gpa.destroy(gone);
    }

    // ---- votes and decisions

    pub fn on_done(epoch: *Epoch, rank: u16, message: *const control.Done) ProtocolError!void {
        try epoch.acknowledge(rank, message.decisions_seen);
        if (message.attempt > epoch.attempt) return error.Unexpected;
        // A vote of a passed attempt is given again after the resume.
        if (message.attempt < epoch.attempt or !epoch.running) return;
        if (epoch.is_aborted(message.op)) return;
        const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
        if (known.done.is_empty()) {
            known.digest = message.digest;
            known.digest_from = rank;
        } else if (known.digest != message.digest) {
            return epoch.abort(message.op, .{
                .reason = .digest,
                .peer = epoch.members[known.digest_from].id,
                .other = epoch.members[rank].id,
            }, epoch.spendthrift(rank));
        }
        known.done.set(rank);
        try epoch.evaluate(known);
    }

    fn evaluate(epoch: *Epoch, known: *Record) ProtocolError!void {
        if (!epoch.running or !known.done.covers(&epoch.alive)) return;
        if (epoch.starved()) return epoch.abort(known.id, .{ .reason = .too_few_peers }, null);
        if (known.descriptor.kind == .sync) try epoch.synced.append(epoch.gpa, .{
            .id = known.id,
            .decision = epoch.decisions + 1,
        });
        epoch.decisions += 1;
        epoch.committed += 1;
        epoch.broadcast(.{ .commit = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .op = known.id,
            .attempt = epoch.attempt,
            .digest = known.digest,
            .decision = epoch.decisions,
        } });
        epoch.record_free(epoch.find(known.id).?);
    }

    /// Decides against an operation, once; nothing happens if it is decided already. A `maker` has
    /// caused it alone, perhaps for an operation that nobody will ever call: it is counted against
    /// that member, and error.Unexpected when that is more than any honest one can have caused.
    pub fn abort(epoch: *Epoch, id: OpId, verdict: Verdict, maker: ?u16) ProtocolError!void {
        if (epoch.is_aborted(id) or epoch.is_synced(id)) return;
        if (maker) |rank| if (epoch.caused_by(rank) >= base.limits.decisions_kept_max)
            return error.Unexpected;
        try epoch.aborted.append(epoch.gpa, .{
            .id = id,
            .decision = epoch.decisions + 1,
            .maker = maker,
        });
        epoch.decisions += 1;
        const blank = std.mem.zeroInit(Descriptor, .{
            .kind = .all_reduce,
            .dtype = .f32,
            .op = .sum,
            .recovery = .raise,
        });
        epoch.broadcast(.{ .abort = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .op = id,
            .reason = verdict.reason,
            .peer = verdict.peer,
            .other = verdict.other,
            .descriptor = verdict.descriptor orelse blank,
            .other_descriptor = verdict.other_descriptor orelse blank,
            .decision = epoch.decisions,
        } });
        if (epoch.find(id)) |index| epoch.record_free(index);
    }

    pub fn on_gave_up(epoch: *Epoch, rank: u16, message: *const control.GaveUp) ProtocolError!void {
        switch (message.reason) {
            .deadline, .cancelled, .root_lost, .state_unavailable => {},
            .mismatch,
            .digest,
            .peer_lost,
            .too_few_peers,
            .contradiction,
            .structure,
            .state_conflict,
            => return error.Unexpected,
        }
        try epoch.abort(message.op, .{
            .reason = message.reason,
            .peer = epoch.members[rank].id,
        }, rank);
    }

    pub fn on_mismatch(
        epoch: *Epoch,
        rank: u16,
        message: *const control.MismatchSeen,
    ) ProtocolError!void {
        try epoch.abort(message.op, .{
            .reason = .mismatch,
            .peer = epoch.members[rank].id,
            .other = message.other,
            .descriptor = message.mine,
            .other_descriptor = message.theirs,
        }, rank);
    }

    /// Aborts of this member that some other has not seen yet.
    fn caused_by(epoch: *const Epoch, rank: u16) usize {
        var count: usize = 0;
        for (epoch.aborted.items) |entry| count += @intFromBool(entry.maker == rank);
        return count;
    }

    /// Who is the maker when two members contradict each other: nobody, because either may be the
    /// honest one. Only beyond what honest members can reach (accomplices, then) is it the later.
    fn spendthrift(epoch: *const Epoch, rank: u16) ?u16 {
        return if (epoch.aborted.items.len < base.limits.contradictions_kept_max) null else rank;
    }

    /// A member must say what it has seen within the silence limit: else what is kept for it grows,
    /// and would in the end be counted against those who cause aborts honestly.
    pub fn check_seen(epoch: *Epoch, now: base.Instant, silence_ns: u64, late: bool) void {
        for (epoch.members) |*member| {
            const peer = member.peer orelse continue;
            if (member.closed) continue;
            if (late or member.decisions_seen >= member.seen_wanted) {
                member.seen_wanted = (epoch.decisions + 1) -| base.limits.decisions_untold_max;
                member.seen_wanted_at = now;
            } else if (now -| member.seen_wanted_at >= silence_ns) {
                peer.connection.doomed = "it does not say which decisions it has seen";
            }
        }
    }

    pub fn acknowledge(epoch: *Epoch, rank: u16, seen: u64) ProtocolError!void {
        if (seen > epoch.decisions) return error.Unexpected;
        const member = &epoch.members[rank];
        member.decisions_seen = @max(member.decisions_seen, seen);
        var all = epoch.decisions;
        for (epoch.members) |*other| if (other.peer != null and !other.closed) {
            all = @min(all, other.decisions_seen);
        };
        var kept: usize = 0;
        for (epoch.aborted.items) |entry| {
            if (entry.decision <= all) continue;
            epoch.aborted.items[kept] = entry;
            kept += 1;
        }
        epoch.aborted.shrinkRetainingCapacity(kept);
        kept = 0;
        for (epoch.synced.items) |entry| {
            if (entry.decision <= all) continue;
            epoch.synced.items[kept] = entry;
            kept += 1;
        }
        epoch.synced.shrinkRetainingCapacity(kept);
    }

    fn is_synced(epoch: *const Epoch, id: OpId) bool {
        for (epoch.synced.items) |entry| if (entry.id.eql(id)) return true;
        return false;
    }

    // ---- syncs

    pub fn on_state_offer(
        epoch: *Epoch,
        rank: u16,
        message: *const control.StateOffer,
    ) ProtocolError!void {
        try epoch.acknowledge(rank, message.decisions_seen);
        if (message.descriptor.kind != .sync or message.attempt > epoch.attempt)
            return error.Unexpected;
        if (message.revision > base.limits.state_revisions_max) return error.Unexpected;
        if (message.attempt < epoch.attempt or !epoch.running) return; // it offers again
        if (epoch.is_aborted(message.op)) return;
        const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
        const election = known.election orelse try Election.create(epoch.gpa, epoch.members.len);
        known.election = election;
        if (!election.take(rank, .{
            .digest = message.digest,
            .revision = message.revision,
            .structure = message.structure,
            .root = message.root,
            .strategy = message.strategy,
            .voted = message.voted,
        })) return error.Unexpected;
        try epoch.elect(known);
    }

    fn elect(epoch: *Epoch, known: *Record) ProtocolError!void {
        const election = known.election.?;
        const ids = try epoch.gpa.alloc(PeerId, epoch.members.len);
        defer epoch.gpa.free(ids);
        for (ids, epoch.members) |*id, *member| id.* = member.id;
        const verdict = election.decide(.{
            .ids = ids,
            .alive = &epoch.alive,
            .incumbents = epoch.incumbents,
        }) orelse return;
        switch (verdict) {
            .equal => |digest| {
                known.done = epoch.alive;
                known.digest = digest;
                known.digest_from = epoch.alive.at(0);
                try epoch.evaluate(known);
            },
            .elected => |*elected| epoch.broadcast(.{ .state_elected = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .attempt = epoch.attempt,
                .op = known.id,
                .revision = elected.revision,
                .root = elected.root,
                .holders = elected.holders,
            } }),
            .structure => |ranks| {
                election.structures = .init(ranks, .{ ids[ranks[0]], ids[ranks[1]] });
                try epoch.compare_structures(known);
            },
            .conflict => |ranks| try epoch.abort(known.id, .{
                .reason = .state_conflict,
                .peer = ids[ranks[0]],
                .other = ids[ranks[1]],
            }, null),
            .unavailable => try epoch.abort(known.id, .{ .reason = .state_unavailable }, null),
        }
    }

    pub fn on_state_tensors(
        epoch: *Epoch,
        rank: u16,
        message: *const control.StateTensors,
    ) ProtocolError!void {
        if (message.attempt != epoch.attempt or !epoch.running) return;
        const index = epoch.find(message.op) orelse return; // decided meanwhile
        const known = epoch.records.items[index];
        const election = known.election orelse return error.Unexpected;
        if (election.structures == null) return error.Unexpected;
        try election.structures.?.page(epoch.gpa, rank, message);
        try epoch.compare_structures(known);
    }

    /// Says how two structures differ, then aborts.
    fn compare_structures(epoch: *Epoch, known: *Record) ProtocolError!void {
        const structures = &known.election.?.structures.?;
        switch (structures.next()) {
            .wait => {},
            // Whoever is asked has offered in this attempt, so it is alive.
            .ask => |ask| epoch.members[ask.rank].peer.?.send(.{ .state_ask = .{
                .group = epoch.group,
                .epoch = epoch.number,
                .attempt = epoch.attempt,
                .op = known.id,
                .first = ask.first,
            } }),
            .over => {
                epoch.broadcast(.{ .state_differs = .{
                    .group = epoch.group,
                    .epoch = epoch.number,
                    .op = known.id,
                    .text = .of(structures.text()),
                } });
                try epoch.abort(known.id, .{
                    .reason = .structure,
                    .peer = epoch.members[structures.ranks[0]].id,
                    .other = epoch.members[structures.ranks[1]].id,
                }, null);
            },
        }
    }

    // ---- losses

    /// A member is gone: nothing is sent to it any more. `after_loss` draws the consequences.
    pub fn detach(epoch: *Epoch, rank: u16) void {
        epoch.members[rank].peer = null;
        epoch.alive.unset(rank);
        epoch.lost = true;
        epoch.lost_peer = epoch.members[rank].id;
    }

    /// Operations that all others have voted for are committed; the rest goes on in a new attempt.
    pub fn after_loss(epoch: *Epoch) ProtocolError!void {
        if (epoch.alive.is_empty()) return;
        var index = epoch.records.items.len;
        while (index > 0) {
            index -= 1;
            if (index >= epoch.records.items.len) continue;
            const known = epoch.records.items[index];
            if (!known.done.is_empty()) try epoch.evaluate(known);
        }
        try epoch.new_attempt();
    }

    /// Everybody stops, reports, and goes on with what the reports say.
    pub fn new_attempt(epoch: *Epoch) ProtocolError!void {
        epoch.attempt += 1;
        epoch.running = false;
        epoch.replan_at = base.never;
        epoch.history.note(epoch.attempt, &epoch.alive);
        for (epoch.members) |*member| member.reported = false;
        for (epoch.records.items) |known| {
            known.done = .empty;
            known.reported = .empty;
            known.done_reported = .empty;
            if (known.election) |election| election.reset();
            for (known.chunks) |*chunk| chunk.* = .{ .reduced_attempt = 0, .holders = .empty };
        }
        epoch.broadcast(.{ .view = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .alive = epoch.alive,
        } });
        try epoch.check_reported();
    }

    pub fn on_report_op(
        epoch: *Epoch,
        rank: u16,
        message: *const control.ReportOp,
    ) ProtocolError!void {
        if (message.attempt != epoch.attempt or epoch.running) return; // of a passed attempt
        if (epoch.members[rank].reported) return error.Unexpected;
        if (message.chunks > base.limits.chunks_max) return error.Unexpected;
        try epoch.check_settled(message);
        if (epoch.is_aborted(message.op)) return;
        const known = try epoch.record_of(message.op, &message.descriptor, rank) orelse return;
        if (known.chunks_from == null) {
            known.chunks = try epoch.gpa.alloc(Record.Chunk, message.chunks);
            for (known.chunks) |*chunk| chunk.* = .{ .reduced_attempt = 0, .holders = .empty };
            known.chunks_from = rank;
        }
        if (known.chunks.len != message.chunks) {
            const first = known.chunks_from.?;
            if (first == rank) return error.Unexpected;
            // One of the two is wrong, and nobody can tell which.
            return epoch.abort(message.op, .{
                .reason = .contradiction,
                .peer = epoch.members[first].id,
                .other = epoch.members[rank].id,
            }, epoch.spendthrift(rank));
        }
        known.reported.set(rank);
        if (message.state == .done) known.done_reported.set(rank);
        var it = message.settled.iterator();
        while (it.next()) |range| {
            for (known.chunks[range.begin..range.end]) |*chunk| {
                note_holder(chunk, known, rank, message.state == .done, range.reduced_attempt);
            }
        }
    }

    /// Whether a report makes sense by itself.
    fn check_settled(epoch: *const Epoch, message: *const control.ReportOp) ProtocolError!void {
        var it = message.settled.iterator();
        while (it.next()) |range| {
            if (range.begin >= range.end or range.end > message.chunks) return error.Unexpected;
            if (range.reduced_attempt == 0 or range.reduced_attempt > epoch.attempt)
                return error.Unexpected;
        }
    }

    fn note_holder(
        chunk: *Record.Chunk,
        known: *const Record,
        rank: u16,
        done: bool,
        reduced_attempt: u32,
    ) void {
        if (chunk.holders.is_empty() or chunk.reduced_attempt == reduced_attempt) {
            chunk.reduced_attempt = reduced_attempt;
            return chunk.holders.set(rank);
        }
        // A result that somebody has voted for outranks what others have settled.
        var done_holds = false;
        for (chunk.holders.words, known.done_reported.words) |a, b| {
            if (a & b != 0) done_holds = true;
        }
        if (done_holds or (!done and reduced_attempt < chunk.reduced_attempt)) return;
        chunk.* = .{ .reduced_attempt = reduced_attempt, .holders = .empty };
        chunk.holders.set(rank);
    }

    pub fn on_report_end(
        epoch: *Epoch,
        rank: u16,
        message: *const control.ReportEnd,
    ) ProtocolError!void {
        if (message.attempt != epoch.attempt or epoch.running) return;
        try epoch.acknowledge(rank, message.decisions_seen);
        epoch.members[rank].reported = true;
        try epoch.check_reported();
    }

    /// The member has left this epoch for the next and has nothing in flight here: nobody waits for
    /// it.
    pub fn on_closed(epoch: *Epoch, rank: u16) ProtocolError!void {
        epoch.members[rank].closed = true;
        try epoch.check_reported();
    }

    fn check_reported(epoch: *Epoch) ProtocolError!void {
        if (epoch.running) return;
        for (epoch.members) |*member| {
            if (member.peer != null and !member.closed and !member.reported) return;
        }
        try epoch.go_on();
    }

    /// All have reported: say what is kept, and let everybody move again.
    fn go_on(epoch: *Epoch) ProtocolError!void {
        var index = epoch.records.items.len;
        while (index > 0) {
            index -= 1;
            const known = epoch.records.items[index];
            if (known.reported.is_empty()) {
                epoch.record_free(index); // only those who are lost had called it
            } else if (epoch.verdict_on(known)) |verdict| {
                try epoch.abort(known.id, verdict, null);
            } else try epoch.send_kept(known);
        }
        epoch.running = true;
        epoch.lost = false;
        epoch.broadcast(.{ .resume_all = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
        } });
    }

    /// Why an operation cannot go on; null if it can.
    fn verdict_on(epoch: *const Epoch, known: *const Record) ?Verdict {
        if (epoch.starved()) return .{ .reason = .too_few_peers };
        if (epoch.lost and known.descriptor.recovery == .raise)
            return .{ .reason = .peer_lost, .peer = epoch.lost_peer };
        if (known.descriptor.kind == .broadcast and !epoch.root_alive(known)) {
            for (known.chunks) |*chunk| if (chunk.holders.is_empty())
                return .{ .reason = .root_lost, .peer = known.descriptor.root };
        }
        return null;
    }

    fn root_alive(epoch: *const Epoch, known: *const Record) bool {
        for (epoch.members) |*member| {
            if (member.peer != null and member.id.eql(known.descriptor.root)) return true;
        }
        return false;
    }

    fn is_kept(epoch: *const Epoch, known: *const Record, chunk: *const Record.Chunk) bool {
        if (chunk.holders.is_empty()) return false;
        if (base.canary.on(.keep_without_attempt)) return true;
        if (known.descriptor.kind == .broadcast) return true;
        return switch (known.descriptor.recovery) {
            .resume_chunks => true,
            // One contributor set for all: a voted result as it is, else what the present members
            // reduced.
            .restart, .raise => !known.done_reported.is_empty() or
                epoch.history.members(chunk.reduced_attempt).eql(&epoch.alive),
        };
    }

    fn send_kept(epoch: *Epoch, known: *const Record) ProtocolError!void {
        var kept: std.ArrayList(control.KeptRange) = .empty;
        defer kept.deinit(epoch.gpa);
        for (known.chunks, 0..) |*chunk, index| {
            if (!epoch.is_kept(known, chunk)) continue;
            const reduced = if (base.canary.on(.keep_without_attempt))
                epoch.attempt
            else
                chunk.reduced_attempt;
            if (kept.items.len > 0) {
                const last = &kept.items[kept.items.len - 1];
                if (last.end == index and last.reduced_attempt == reduced and
                    last.holders.eql(&chunk.holders))
                {
                    last.end += 1;
                    continue;
                }
            }
            try kept.append(epoch.gpa, .{
                .begin = @intCast(index),
                .end = @intCast(index + 1),
                .reduced_attempt = reduced,
                .holders = chunk.holders,
            });
        }
        epoch.broadcast(.{ .resume_op = .{
            .group = epoch.group,
            .epoch = epoch.number,
            .attempt = epoch.attempt,
            .op = known.id,
            .kept = .of(kept.items),
        } });
    }
};
