//! Membership: a group of the run as a user's threads see it: they wait here to join it, to pass
//! a safe point, to leave it. Decisions come from the session, on the engine's thread
//! (peer_engine.zig). Operations in the group: work.zig. Called by abi/comm.zig.

const std = @import("std");
const base = @import("base");
const session = @import("session");
const clock = @import("clock.zig");
const lock = @import("lock.zig");
const PeerEngine = @import("peer_engine.zig").PeerEngine;
const user = session.user;
const Instant = base.Instant;
const Interrupt = lock.Interrupt;
const PeerId = base.PeerId;
const Status = session.Status;

pub const Membership = struct {
    engine: *PeerEngine,
    group: *session.Group,
    /// The engine's lock guards this field and all fields below. Set when the join or the admit
    /// that a thread waits for is over.
    changed: lock.Signal = .{},
    joined: bool = false,
    left: bool = false,
    /// Why this peer is not a member, or no longer; null: no failure.
    failure: ?Failure = null,
    /// A thread is in `admit`, perhaps not awake yet: another thread would take its result away.
    in_admit: bool = false,
    admit_failure: ?Status = null,
    /// The threads that wait for the best paths (`optimize`).
    waiters: ?*Waiter = null,
    /// The epoch that `admit` last told the user.
    epoch_seen: u64 = 0,

    /// A thread that waits. Its signal is set once the best paths are known, or the membership is
    /// over.
    const Waiter = struct { signal: lock.Signal = .{}, next: ?*Waiter = null };

    pub const Failure = struct {
        /// The status of the failure; null: the coordinator has refused the join.
        status: ?Status,
        why_storage: [why_bytes_max]u8 = undefined,
        why_length: usize = 0,
        /// The number of peers that had come, if they were too few for the group to begin.
        attendance: ?session.Group.Attendance = null,

        const why_bytes_max = 800;

        fn init(status: ?Status, text: []const u8) Failure {
            var failure: Failure = .{ .status = status };
            failure.why_length = @min(text.len, why_bytes_max);
            @memcpy(failure.why_storage[0..failure.why_length], text[0..failure.why_length]);
            return failure;
        }

        pub fn why(failure: *const Failure) []const u8 {
            return failure.why_storage[0..failure.why_length];
        }
    };

    // ---- joining and leaving

    pub const JoinOptions = struct {
        /// The name of the group, 1 to limits.name_bytes_max bytes.
        name: []const u8,
        /// The number of peers with which the group begins; 0: the coordinator's default.
        initial_world_size: u32 = 0,
        /// The members of another group's epoch that form this sub-group, in this order; null: no
        /// sub-group.
        founders: ?Founders = null,
        deadline: Instant,
        interrupt: Interrupt = .{},
    };
    pub const Founders = struct { parent: *const Membership, ids: []const PeerId };

    pub const JoinError = error{
        OutOfMemory,
        /// This process is in the group already.
        AlreadyJoined,
        /// The parent has no epoch yet (session.user.FoundError).
        NotReady,
        BadFounders,
        Closed,
        DeadlineExceeded,
        Interrupted,
        /// The failure that `join` fills in says why.
        Failed,
    };

    /// Asks to join and waits until the lanes to all members are open. On an error of `join`
    /// nothing is left of it, and `failure` says more about error.Failed.
    pub fn join(
        engine: *PeerEngine,
        options: JoinOptions,
        failure: *Failure,
    ) JoinError!*Membership {
        const membership = try engine.gpa.create(Membership);
        errdefer engine.gpa.destroy(membership);
        {
            const mode = engine.enter();
            defer engine.leave(mode);
            if (engine.stopped()) return error.Closed;
            if (engine.session.control_state == .lost) {
                failure.* = .init(.coordinator_unreachable, "the connection to it was lost");
                return error.Failed;
            }
            const now = clock.now();
            const group = if (options.founders) |*founders| founded: {
                const parent = founders.parent;
                if (parent.left) return error.Closed;
                break :founded try user.found(
                    engine.session,
                    now,
                    options.name,
                    parent.group,
                    founders.ids,
                );
            } else try user.join(engine.session, now, options.name, options.initial_world_size);
            membership.* = .{ .engine = engine, .group = group };
            group.user = @intFromPtr(membership);
            engine.communicators += 1;
            engine.reference();
        }
        errdefer membership.destroy();
        if (!try options.interrupt.wait(&membership.changed, options.deadline)) {
            var room: [Failure.why_bytes_max]u8 = undefined;
            failure.* = .init(.deadline_exceeded, membership.why_late(&room));
            failure.attendance = membership.attendance();
            return error.DeadlineExceeded;
        }
        engine.lock.lock();
        defer engine.lock.unlock();
        if (membership.failure) |why| {
            failure.* = why;
            return error.Failed;
        }
        return membership;
    }

    /// Leaves the group; the other members go on. Leaving the engine's last group also closes its
    /// connections. A second `leave` does nothing.
    pub fn leave(membership: *Membership) void {
        const engine = membership.engine;
        const last = last: {
            const mode = engine.enter();
            defer engine.leave(mode);
            if (membership.left) return;
            membership.left = true;
            const waits = membership.group.is_admitting();
            membership.wake_waiters();
            user.leave(engine.session, clock.now(), membership.group);
            if (waits) membership.admit_over(.cancelled);
            engine.communicators -= 1;
            break :last engine.communicators == 0;
        };
        if (last) engine.stop(.graceful);
    }

    /// Leaves if this peer has not left, and frees the membership, whose works are gone by now.
    pub fn release(membership: *Membership) void {
        const gpa = membership.engine.gpa;
        membership.destroy();
        gpa.destroy(membership);
    }

    fn destroy(membership: *Membership) void {
        const engine = membership.engine;
        membership.leave();
        engine.lock.lock();
        user.release_group(engine.session, membership.group);
        engine.lock.unlock();
        engine.unreference();
    }

    // ---- safe points

    pub const Admission = struct {
        epoch: u64,
        rank: u32,
        world_size: u32,
        joined: u32,
        left: u32,
        changed: bool,
    };

    pub const AdmitResult = union(enum) { passed: Admission, failed: Status };

    pub const AdmitError = session.CallError || error{
        Closed,
        /// Another thread is in admit() of this group.
        Busy,
        /// The user withdrew; the safe point was not passed.
        Interrupted,
    };

    pub fn admit(
        membership: *Membership,
        how: session.How,
        deadline: Instant,
        interrupt: Interrupt,
    ) AdmitError!AdmitResult {
        const engine = membership.engine;
        {
            const mode = engine.enter();
            defer engine.leave(mode);
            if (membership.left) return error.Closed;
            if (membership.failure) |failure| return .{ .failed = failure.status.? };
            if (membership.in_admit) return error.Busy;
            membership.changed.clear();
            membership.admit_failure = null;
            const s = engine.session;
            const now = clock.now();
            const begun = switch (how) {
                .alone => user.admit(s, now, membership.group, deadline),
                .together => user.admit_together(s, now, membership.group, deadline),
            };
            begun catch |err| return switch (err) {
                // error.Left and error.NotReady cannot come while the group is joined and not left.
                error.Left, error.NotReady => error.Closed,
                else => |other| other,
            };
            membership.in_admit = true;
        }
        // The session ends the wait at the deadline.
        const waited = interrupt.wait(&membership.changed, base.never);
        const mode = engine.enter();
        defer engine.leave(mode);
        membership.in_admit = false;
        if (waited) |_| {} else |err| if (membership.group.is_admitting()) {
            user.admit_withdraw(engine.session, membership.group, .cancelled);
            return err;
        }
        if (membership.admit_failure) |status| return .{ .failed = status };
        return .{ .passed = membership.admission() };
    }

    fn admission(membership: *Membership) Admission {
        const group = membership.group;
        const changed = group.epoch() != membership.epoch_seen;
        membership.epoch_seen = group.epoch();
        return .{
            .epoch = group.epoch(),
            .rank = group.rank(),
            .world_size = group.world_size(),
            .joined = if (changed) @intCast(group.joined().len) else 0,
            .left = if (changed) @intCast(group.left().len) else 0,
            .changed = changed,
        };
    }

    // ---- paths

    pub const OptimizeError = error{ Closed, NotAdmitted, DeadlineExceeded, Interrupted };

    /// Waits until the coordinator knows no better paths; better ones may begin meanwhile. Any
    /// number of threads may wait. The status is .ok unless the membership is over.
    pub fn optimize(
        membership: *Membership,
        deadline: Instant,
        interrupt: Interrupt,
    ) OptimizeError!Status {
        const engine = membership.engine;
        var waiter: Waiter = .{};
        {
            const mode = engine.enter();
            defer engine.leave(mode);
            if (membership.left) return error.Closed;
            if (membership.failure) |failure| return failure.status.?;
            user.optimize(engine.session, clock.now(), membership.group) catch |err| switch (err) {
                error.Left => return error.Closed,
                error.NotAdmitted => return error.NotAdmitted,
            };
            waiter.next = membership.waiters;
            membership.waiters = &waiter;
        }
        const waited = interrupt.wait(&waiter.signal, deadline);
        // Under the lock: whoever sets the signal is done with it.
        engine.lock.lock();
        defer engine.lock.unlock();
        membership.remove_waiter(&waiter);
        if (membership.left) return error.Closed;
        if (membership.failure) |failure| return failure.status.?;
        return if (waiter.signal.is_set()) .ok else if (try waited) .ok else error.DeadlineExceeded;
    }

    fn wake_waiters(membership: *Membership) void {
        while (membership.waiters) |waiter| {
            membership.waiters = waiter.next;
            waiter.signal.set();
        }
    }

    fn remove_waiter(membership: *Membership, waiter: *Waiter) void {
        var place = &membership.waiters;
        while (place.*) |other| : (place = &other.next) {
            if (other != waiter) continue;
            place.* = waiter.next;
            return;
        }
    }

    /// The paths of the current attempt; null: this peer is in no epoch yet.
    pub fn paths_now(membership: *Membership) error{Closed}!?session.PathsNow {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        if (membership.left) return error.Closed;
        return session.PathsNow.of(engine.session, membership.group);
    }

    // ---- looking

    /// Why this peer is not a member any more although its user has not left; null: it is a member,
    /// or its user has left.
    pub fn lost(membership: *Membership) ?Status {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        if (membership.left) return null;
        return if (membership.failure) |failure| failure.status else null;
    }

    /// The number of peers that have come, as the coordinator has said last; null: enough have
    /// come.
    pub fn attendance(membership: *Membership) ?session.Group.Attendance {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        return membership.group.attendance;
    }

    /// The coordinator's reason for removing this peer; empty: this peer was not removed.
    pub fn why_removed(membership: *const Membership) []const u8 {
        return membership.group.why_removed();
    }

    /// Half a sentence that tells what a late join or safe point waits for: members that have not
    /// come to a safe point that all pass together, else dials between this peer and others that
    /// failed lately, else members that have not called `admit`. The text is empty if nothing of
    /// this is known.
    pub fn why_late(membership: *const Membership, room: []u8) []const u8 {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        const now = clock.now();
        const missing = membership.group.vote.why_late();
        if (missing.len > 0) return std.fmt.bufPrint(room, "{s}", .{missing}) catch "";
        const dials = engine.session.unreached.text(now, room);
        return if (dials.len > 0) dials else membership.group.awaited.text(now, room);
    }

    pub const Info = struct {
        epoch: u64,
        attempt: u32,
        rank: u32,
        world_size: u32,
        alive: u32,
        pending: u32,
        in_flight: u32,
        bytes_sent: u64,
        bytes_received: u64,
        /// Why this peer is not a member any more, as `lost` answers.
        lost: ?Status,
    };

    pub fn info(membership: *Membership) error{Closed}!Info {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        if (membership.left) return error.Closed;
        const group = membership.group;
        return .{
            .epoch = group.epoch(),
            .attempt = group.attempt(),
            .rank = group.rank(),
            .world_size = group.world_size(),
            .alive = group.alive(),
            .pending = group.pending(),
            .in_flight = group.in_flight(),
            .bytes_sent = engine.session.bytes_sent,
            .bytes_received = engine.session.bytes_received,
            .lost = if (membership.failure) |failure| failure.status else null,
        };
    }

    /// The name of a peer for people, as far as it is known, even after leaving.
    pub fn label(membership: *Membership, id: PeerId) base.Label {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        return session.label_of(engine.session, id);
    }

    pub const List = enum { members, joined, left, not_entered };

    /// Writes at most ids.len ids, and returns how many there are in all; 0 after leaving.
    pub fn list(membership: *Membership, which: List, ids: []PeerId) usize {
        const engine = membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        if (membership.left) return 0;
        const all = switch (which) {
            .members => membership.group.members(),
            .joined => membership.group.joined(),
            .left => membership.group.left(),
            .not_entered => return some(membership.group, ids),
        };
        const count = @min(all.len, ids.len);
        @memcpy(ids[0..count], all[0..count]);
        return all.len;
    }

    fn some(group: *const session.Group, ids: []PeerId) usize {
        const missing = group.not_entered();
        var count: usize = 0;
        for (group.members(), 0..) |id, rank| {
            if (!missing.has(rank)) continue;
            if (count < ids.len) ids[count] = id;
            count += 1;
        }
        return count;
    }

    // ---- what the session tells this group, under the engine's lock

    pub fn of(group: *session.Group) ?*Membership {
        return if (group.user == 0) null else @ptrFromInt(group.user);
    }

    pub fn tell(membership: *Membership, event: session.GroupEvent) void {
        switch (event) {
            .ready => {
                membership.joined = true;
                membership.changed.set();
            },
            .refused => |why| {
                membership.failure = .init(null, why);
                membership.changed.set();
            },
            .join_failed => |details| {
                membership.failure = .init(details.status, details.why);
                membership.changed.set();
            },
            .admitted => membership.admit_over(null),
            .admit_failed => |status| membership.admit_over(status),
            .optimized => membership.wake_waiters(),
            .gone => |status| {
                membership.failure = .init(status, "");
                membership.wake_waiters();
                if (membership.group.is_admitting()) membership.admit_over(status);
            },
        }
    }

    fn admit_over(membership: *Membership, failure: ?Status) void {
        membership.admit_failure = failure;
        membership.changed.set();
    }
};
