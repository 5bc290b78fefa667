//! SharedState: a shared state as a user's threads see it: they hash it, sync it with other members
//! and close it, perhaps at the same time. The caller's thread hashes the tensors, with a few
//! helpers, and writes them after a commit; it never does so under the engine's lock. The sync
//! itself: session/sync.zig. Called by abi/state.zig.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const session = @import("session");
const wire = @import("wire");
const clock = @import("clock.zig");
const lock = @import("lock.zig");
const log = @import("log.zig");
const thread = @import("thread.zig");
const Membership = @import("membership.zig").Membership;
const Work = @import("work.zig").Work;
const Allocator = std.mem.Allocator;
const Instant = base.Instant;
const Interrupt = lock.Interrupt;
const State = session.State;
const user = session.user;

pub const SharedState = struct {
    gpa: Allocator,
    membership: *Membership,
    state: *State,
    lock: lock.FairLock = .{},
    /// `lock` guards this field and all fields below. True while a thread is in `sync`.
    busy: bool = false,
    /// The state is closed: no thread may begin a sync any more.
    ended: bool = false,
    work: ?*Work = null,
    /// Set while no thread is in `sync`.
    idle: lock.Signal = .{},

    pub const CreateError = State.Error || error{ Closed, NameInUse };

    /// Makes a shared state of a group. `at`: the index of the tensor that an error is about.
    pub fn create(
        gpa: Allocator,
        membership: *Membership,
        options: State.Options,
        at: *usize,
    ) CreateError!*SharedState {
        const shared = try gpa.create(SharedState);
        errdefer gpa.destroy(shared);
        const state = try State.create(gpa, options, at);
        errdefer state.destroy();
        shared.* = .{ .gpa = gpa, .membership = membership, .state = state };
        shared.idle.set();
        if (try shared.add() and options.prefetch) shared.begin_prefetch();
        return shared;
    }

    /// Adds the state to the session. Returns whether this peer is a newcomer.
    fn add(shared: *SharedState) CreateError!bool {
        const engine = shared.membership.engine;
        const mode = engine.enter();
        defer engine.leave(mode);
        if (shared.membership.left) return error.Closed;
        try user.state_add(engine.session, shared.membership.group, shared.state);
        return shared.membership.group.epoch() == 0;
    }

    /// Fetches the leaves that it can before this peer enters; the first sync fetches the rest.
    fn begin_prefetch(shared: *SharedState) void {
        shared.hash();
        const engine = shared.membership.engine;
        const mode = engine.enter();
        defer engine.leave(mode);
        const group = shared.membership.group;
        user.prefetch_begin(engine.session, clock.now(), group, shared.state) catch
            log.put(.warning, "no memory to fetch shared state in the background");
    }

    /// Closes the state: a sync under way on another thread is withdrawn, and nothing touches the
    /// tensors afterwards. A second `close` does nothing.
    pub fn close(shared: *SharedState) void {
        shared.lock.lock();
        shared.ended = true;
        if (shared.work) |work| work.cancel();
        shared.lock.unlock();
        _ = shared.idle.wait(base.never);
        const engine = shared.membership.engine;
        const mode = engine.enter();
        user.state_remove(engine.session, shared.membership.group, shared.state);
        engine.leave(mode);
    }

    /// Closes the state if it is open, and frees it. No thread is in `sync` any more.
    pub fn destroy(shared: *SharedState) void {
        shared.close();
        shared.state.destroy();
        shared.gpa.destroy(shared);
    }

    pub fn revision(shared: *SharedState) u64 {
        const engine = shared.membership.engine;
        engine.lock.lock();
        defer engine.lock.unlock();
        return shared.state.revision;
    }

    // ---- a sync

    pub const Options = struct {
        strategy: wire.control.Strategy,
        /// The revision of the content in this call; null: the state's own.
        revision: ?u64,
        deadline: Instant,
        interrupt: Interrupt,
        /// The ids of the members of the sync's epoch are written here.
        ids: *[base.limits.peers_max]base.PeerId,
    };

    pub const Outcome = struct {
        revision: u64,
        elected_revision: u64,
        /// Ranks of the members that took part (`contributors`), and of those that held the elected
        /// content (`holders`).
        contributors: base.Mask,
        holders: base.Mask,
        epoch: u64,
        sequence: u64,
        attempts: u32,
        leaves: u32,
        leaves_moved: u32,
        leaves_early: u32,
        sources: u32,
        bytes_sent: u64,
        bytes_received: u64,
        hash_bytes_sent: u64,
        hash_bytes_received: u64,
        duration_ns: u64,
        hash_ns: u64,
    };

    pub const SyncError = session.user.SyncError || error{
        /// Another thread is in `sync` of this state.
        Busy,
        /// The state is closed, perhaps since the call began.
        Ended,
        /// The sync failed; `failed` was told why.
        Failed,
    };

    /// Blocks until all members hold the same content, or the sync fails; `failed` is told why
    /// before the operation is gone. Tensors are written only after a success.
    pub fn sync(
        shared: *SharedState,
        options: Options,
        failed: *const fn (*const session.Operation) void,
    ) SyncError!Outcome {
        try shared.occupy();
        defer shared.vacate();
        const began = clock.now();
        shared.hash();
        const hashed = clock.now();
        var work: Work = undefined;
        try shared.begin(&work, options);
        _ = options.interrupt.wait(&work.finished, base.never) catch work.cancel();
        const status = work.wait(base.never).?; // the session ends it at the deadline
        const ids = work.operation.member_ids();
        @memcpy(options.ids[0..ids.len], ids);
        const hash_ns = hashed - began;
        const outcome = if (status == .ok) shared.outcome_of(&work, began, hash_ns) else null;
        if (outcome == null) failed(work.operation);
        shared.lock.lock();
        shared.work = null;
        shared.lock.unlock();
        work.deinit();
        const done = outcome orelse return error.Failed;
        shared.state.apply();
        return done;
    }

    fn occupy(shared: *SharedState) SyncError!void {
        shared.lock.lock();
        defer shared.lock.unlock();
        if (shared.ended) return error.Ended;
        if (shared.busy) return error.Busy;
        shared.busy = true;
        shared.idle.clear();
    }

    fn vacate(shared: *SharedState) void {
        shared.lock.lock();
        defer shared.lock.unlock();
        shared.busy = false;
        // `idle` is set under the lock: otherwise it could be set after another thread has begun a
        // sync, and a close would not wait for that thread.
        shared.idle.set();
    }

    fn begin(shared: *SharedState, work: *Work, options: Options) SyncError!void {
        shared.lock.lock();
        defer shared.lock.unlock();
        if (shared.ended) return error.Ended;
        try work.begin_sync(shared.membership, .{
            .group = shared.membership.group,
            .state = shared.state,
            .strategy = options.strategy,
            .revision = options.revision,
            .deadline = options.deadline,
        });
        shared.work = work;
    }

    fn outcome_of(shared: *SharedState, work: *Work, began: Instant, hash_ns: u64) Outcome {
        const operation = work.operation;
        const moved = operation.work.sync;
        return .{
            .revision = moved.revision_after(),
            .elected_revision = moved.revision,
            .contributors = session.sync.contributors(operation).*,
            .holders = session.sync.holders(operation).*,
            .epoch = operation.op.epoch,
            .sequence = operation.op.id.sequence,
            .attempts = operation.op.attempts,
            .leaves = shared.state.leaf_count(),
            .leaves_moved = moved.leaves_moved,
            .leaves_early = moved.leaves_early,
            .sources = moved.sources.count(),
            .bytes_sent = moved.bytes_sent,
            .bytes_received = moved.bytes_received,
            .hash_bytes_sent = moved.hash_bytes_sent,
            .hash_bytes_received = moved.hash_bytes_received,
            .duration_ns = operation.finished_at - began,
            .hash_ns = hash_ns,
        };
    }

    // ---- hashing

    /// The least leaves for a thread: for fewer, starting the thread costs more than it saves.
    const leaves_per_thread_min = 32;
    const threads_max = 8;
    /// The number of leaves that a thread takes at a time.
    const leaves_per_turn = 8;

    const Hashing = struct {
        state: *State,
        next: std.atomic.Value(u32) = .init(0),

        fn run(hashing: *Hashing) void {
            const count = hashing.state.leaf_count();
            while (true) {
                const first = hashing.next.fetchAdd(leaves_per_turn, .monotonic);
                if (first >= count) return;
                hashing.state.hash_leaves(first, @min(count, first + leaves_per_turn));
            }
        }
    };

    fn hash(shared: *SharedState) void {
        var hashing: Hashing = .{ .state = shared.state };
        const by_work = shared.state.leaf_count() / leaves_per_thread_min;
        const cores = std.Thread.getCpuCount() catch 1;
        const wanted = @min(by_work, cores, threads_max);
        var helpers: [threads_max]std.Thread = undefined;
        var started: usize = 0;
        while (started + 1 < wanted) : (started += 1) {
            // Without more threads, hashing takes longer.
            helpers[started] = thread.spawn("pccl-hash", &hashing, Hashing.run) catch break;
        }
        hashing.run();
        for (helpers[0..started]) |helper| helper.join();
        shared.state.hash_root();
    }
};

test "while a thread is in a sync the state is not idle, whoever else has just left" {
    // Goal: a close waits for the thread that is inside. Method: three threads enter and leave in
    // turns, as fast as they can, and the thread inside looks whether the state is idle. An error
    // shows only if a thread is stopped between two instructions, so in about half of the runs.
    const Case = struct {
        shared: SharedState,
        wrong: std.atomic.Value(u32) = .init(0),

        fn run(case: *@This()) void {
            const turns: u32 = if (builtin.sanitize_thread) 1000 else 20_000;
            var entered: u32 = 0;
            while (entered < turns) {
                case.shared.occupy() catch {
                    std.Thread.yield() catch {};
                    continue;
                };
                entered += 1;
                for (0..1000) |_| {
                    if (case.shared.idle.is_set()) _ = case.wrong.fetchAdd(1, .monotonic);
                }
                case.shared.vacate();
            }
        }
    };
    var case: Case = .{ .shared = .{
        .gpa = undefined,
        .membership = undefined,
        .state = undefined,
    } };
    var threads: [3]std.Thread = undefined;
    for (&threads) |*item| item.* = try std.Thread.spawn(.{}, Case.run, .{&case});
    for (threads) |item| item.join();
    try std.testing.expectEqual(0, case.wrong.load(.monotonic));
}
