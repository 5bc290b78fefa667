//! Workers: the threads that run jobs (base/job.zig) for one engine, and the queues between them
//! and the engine (peer_engine.zig). A worker knows of a job only the address of its owner.
//! `PCCL_WORKERS` sets how many workers there are; if it is unset, the cores do (thread.zig).
//! worker_bench.zig measures the cost of a hand-over, which decides which jobs are worth it.
//!
//! A job goes from `waiting`, in the order of posts, to the worker that runs it, then to `done`,
//! then to `taken`, from which the engine takes it. The mutex guards `waiting` and `done`; the
//! engine's lock guards `taken`. A fence looks at all four places.

const std = @import("std");
const base = @import("base");
const lock = @import("lock.zig");
const socket = @import("socket.zig");
const thread = @import("thread.zig");
const Waker = @import("poller.zig").Waker;
const Job = base.Job;
const Owner = *const anyopaque;
const assert = std.debug.assert;

/// `post`, `fence`, `take`, `rest`, `rise` and `stop` are called under the lock of the engine.
/// Workers must not move from the first post on.
pub const Workers = struct {
    /// Wakes the engine's thread.
    waker: *Waker,
    /// The most threads; fewer once a thread could not be started.
    threads_max: u32,
    threads: [threads_limit]std.Thread = undefined,
    started: u32 = 0,
    taken: Queue = .{},

    mutex: lock.Mutex = .{},
    /// Tells the threads that a job waits, or that the end has come.
    posted: lock.Condition = .{},
    /// Tells a fence that a job has been run.
    ran: lock.Condition = .{},
    waiting: Queue = .{},
    waiting_count: u32 = 0,
    done: Queue = .{},
    /// The owner of the job that each thread runs now.
    running: [threads_limit]?Owner = @splat(null),
    /// The number of threads that wait for a job.
    idle: u32 = 0,
    ending: bool = false,
    /// The engine sleeps and has not been woken for a job; `mutex` guards this field.
    engine_rests: bool = false,

    pub const threads_limit = 64;

    /// The least size of a job that is handed over. A hand-over takes the engine 0.7 us, and 3 us
    /// if the worker sleeps (workers-bench). A sum of these bytes takes 1.7 us if they are in the
    /// cache, and three times as long if not.
    pub const bytes_min = 64 * base.limits.KiB;

    pub fn init(waker: *Waker, threads_max: u32) Workers {
        assert(threads_max <= threads_limit);
        return .{ .waker = waker, .threads_max = threads_max };
    }

    /// Null if there are no threads: then the threads that make jobs do them at once.
    pub fn runner(w: *Workers) ?base.Runner {
        if (w.threads_max == 0) return null;
        return .{ .ctx = w, .vtable = &vtable, .bytes_min = bytes_min };
    }

    const vtable: base.Runner.VTable = .{ .post = runner_post, .fence = runner_fence };

    fn runner_post(ctx: *anyopaque, job: *Job) void {
        post(@ptrCast(@alignCast(ctx)), job);
    }

    fn runner_fence(ctx: *anyopaque, owner: Owner) void {
        fence(@ptrCast(@alignCast(ctx)), owner);
    }

    // ---- the engine's side

    pub fn post(w: *Workers, job: *Job) void {
        w.mutex.lock();
        if (w.waiting_count >= w.idle and w.started < w.threads_max and !w.ending) {
            w.mutex.unlock();
            w.start_thread();
            w.mutex.lock();
        }
        if (w.started == 0 or w.ending) {
            w.mutex.unlock();
            job.run(job);
            return w.finish(job, null);
        }
        w.waiting.push(job);
        w.waiting_count += 1;
        w.mutex.unlock();
        w.posted.wake_one();
    }

    /// Starts one more thread. A failure is no error: the threads that run do the work.
    fn start_thread(w: *Workers) void {
        const index = w.started;
        const context: Context = .{ .workers = w, .index = index };
        w.threads[index] = thread.spawn("pccl-worker", context, run) catch {
            w.threads_max = w.started;
            return;
        };
        w.started += 1;
    }

    /// Takes the next job that has been run, so that its session is told. Jobs are taken one by
    /// one, because a session that is told of a job may fence the next job.
    pub fn take(w: *Workers) ?*Job {
        if (w.taken.pop()) |job| return job;
        w.mutex.lock();
        w.taken = w.done;
        w.done = .{};
        w.mutex.unlock();
        return w.taken.pop();
    }

    /// Takes all jobs of an owner back. The fence runs those that wait, so it takes no longer than
    /// they and the few that workers are running.
    pub fn fence(w: *Workers, owner: Owner) void {
        w.mutex.lock();
        while (w.waiting.remove(owner)) |job| {
            w.waiting_count -= 1;
            w.mutex.unlock();
            job.run(job);
            w.mutex.lock();
        }
        while (w.is_running(owner)) w.ran.wait(&w.mutex);
        while (w.done.remove(owner)) |_| {}
        w.mutex.unlock();
        while (w.taken.remove(owner)) |_| {}
    }

    /// Whether a thread runs a job of the owner; asked under the mutex.
    fn is_running(w: *const Workers, owner: Owner) bool {
        for (w.running[0..w.started]) |now| if (now == owner) return true;
        return false;
    }

    /// Called before the engine sleeps; false if it must not, because it has not taken a job that
    /// has been run. Until `rise`, the next job that is run wakes the engine.
    pub fn rest(w: *Workers) bool {
        if (!w.taken.is_empty()) return false;
        w.mutex.lock();
        defer w.mutex.unlock();
        w.engine_rests = w.done.is_empty();
        return w.engine_rests;
    }

    /// Called after the engine's sleep; until the next `rest` no worker wakes the engine.
    pub fn rise(w: *Workers) void {
        w.mutex.lock();
        w.engine_rests = false;
        w.mutex.unlock();
    }

    /// Ends the threads, which first run the jobs that wait. Jobs that are posted after `stop` run
    /// at once. A second `stop` does nothing.
    pub fn stop(w: *Workers) void {
        w.mutex.lock();
        w.ending = true;
        w.mutex.unlock();
        w.posted.wake_all();
        for (w.threads[0..w.started]) |item| item.join();
        w.started = 0;
        assert(w.waiting.is_empty());
    }

    /// Called after `stop`, when every owner has taken its jobs back by a fence.
    pub fn deinit(w: *Workers) void {
        assert(w.started == 0);
        assert(w.done.is_empty() and w.taken.is_empty());
        w.* = undefined;
    }

    // ---- the threads

    const Context = struct { workers: *Workers, index: u32 };

    fn run(context: Context) void {
        const w = context.workers;
        while (w.next(context.index)) |job| {
            job.run(job);
            w.finish(job, context.index);
        }
    }

    /// Waits for the next job to run; null: the end has come.
    fn next(w: *Workers, index: u32) ?*Job {
        w.mutex.lock();
        defer w.mutex.unlock();
        while (true) {
            if (w.waiting.pop()) |job| {
                w.waiting_count -= 1;
                w.running[index] = job.owner;
                return job;
            }
            if (w.ending) return null;
            w.idle += 1;
            w.posted.wait(&w.mutex);
            w.idle -= 1;
        }
    }

    /// `index`: the thread that has run the job; null: the engine's thread, or a user's.
    fn finish(w: *Workers, job: *Job, index: ?u32) void {
        w.mutex.lock();
        if (index) |at| w.running[at] = null;
        w.done.push(job);
        // The wake is under the mutex: once the engine has risen, its waker may be closed.
        if (w.engine_rests) w.waker.wake();
        w.engine_rests = false;
        w.mutex.unlock();
        w.ran.wake_all();
    }

    // ---- how many

    pub const ParseError = error{BadWorkers};

    pub fn parse(text: []const u8) ParseError!u32 {
        const count = std.fmt.parseInt(u32, text, 10) catch return error.BadWorkers;
        // parseInt alone would accept signs and underscores.
        for (text) |byte| if (!std.ascii.isDigit(byte)) return error.BadWorkers;
        return if (count <= threads_limit) count else error.BadWorkers;
    }

    /// The value of `PCCL_WORKERS`; unset or empty: by the cores that this process may use.
    pub fn count_from_environment() ParseError!u32 {
        const value = std.mem.span(std.c.getenv("PCCL_WORKERS") orelse "");
        return if (value.len > 0) parse(value) else count_for(thread.cores_usable());
    }

    /// One core is for the engine, which moves the bytes. On a machine with two cores the second is
    /// for the user: workers would not win back the cost of hand-overs. Eight threads do more than
    /// one engine can move.
    fn count_for(core_count: u32) u32 {
        return if (core_count <= 2) 0 else @min(core_count - 1, 8);
    }
};

/// A queue of jobs: first in, first out.
const Queue = struct {
    first: ?*Job = null,
    last: ?*Job = null,

    fn is_empty(queue: *const Queue) bool {
        return queue.first == null;
    }

    fn push(queue: *Queue, job: *Job) void {
        job.next = null;
        if (queue.last) |last| last.next = job else queue.first = job;
        queue.last = job;
    }

    fn pop(queue: *Queue) ?*Job {
        const job = queue.first orelse return null;
        queue.first = job.next;
        if (queue.first == null) queue.last = null;
        job.next = null;
        return job;
    }

    /// Removes the first job of an owner.
    fn remove(queue: *Queue, owner: Owner) ?*Job {
        var before: ?*Job = null;
        var at = queue.first;
        while (at) |job| : (at = job.next) {
            if (job.owner == owner) break;
            before = job;
        }
        const job = at orelse return null;
        if (before) |item| item.next = job.next else queue.first = job.next;
        if (queue.last == job) queue.last = before;
        job.next = null;
        return job;
    }
};

// ---- tests

/// Jobs that note when they began and that they ran, and a gate that holds the threads at gated
/// jobs.
const Bench = struct {
    waker: Waker,
    workers: Workers = undefined,
    clock: std.atomic.Value(u32) = .init(0),
    gate: lock.Signal = .{},

    const Item = struct {
        job: Job,
        bench: *Bench,
        /// The job holds its thread until the gate is open.
        gated: bool = false,
        entered: lock.Signal = .{},
        /// The place of the job in the order of starts, from 1.
        began: u32 = 0,
        runs: u32 = 0,

        fn run(job: *Job) void {
            const item: *Item = @fieldParentPtr("job", job);
            item.began = item.bench.clock.fetchAdd(1, .monotonic) + 1;
            item.entered.set();
            if (item.gated) _ = item.bench.gate.wait(base.never);
            item.runs += 1;
        }
    };

    fn init(bench: *Bench, threads: u32) !void {
        bench.* = .{ .waker = try .init() };
        bench.workers = .init(&bench.waker, threads);
    }

    fn deinit(bench: *Bench) void {
        bench.workers.stop();
        bench.workers.deinit();
        bench.waker.deinit();
    }

    fn post(bench: *Bench, item: *Item, owner: Owner, gated: bool) void {
        item.* = .{ .job = .{ .run = Item.run, .owner = owner }, .bench = bench, .gated = gated };
        bench.workers.post(&item.job);
    }

    /// Takes a job as the engine does, asleep until a job has been run.
    fn take(bench: *Bench) !*Item {
        while (true) {
            if (bench.workers.take()) |job| return @fieldParentPtr("job", job);
            if (bench.workers.rest()) {
                try std.testing.expect(socket.wait_for(bench.waker.read_fd, .read, 60_000));
                bench.waker.drain();
            }
            bench.workers.rise();
        }
    }
};

test "jobs begin in the order of their posts, and each is told once" {
    // With 0 threads it is as if no thread could be started.
    for ([_]u32{ 0, 1, 3 }) |threads| {
        var bench: Bench = undefined;
        try bench.init(threads);
        defer bench.deinit();
        try std.testing.expectEqual(0, bench.workers.started); // no job, so no thread yet
        var items: [200]Bench.Item = undefined;
        const owner: u8 = 0;
        for (&items) |*item| bench.post(item, &owner, false);
        for (items) |_| _ = try bench.take();
        try std.testing.expectEqual(null, bench.workers.take());
        try std.testing.expect(bench.workers.started <= threads);
        for (&items, 1..) |*item, place| {
            try std.testing.expectEqual(1, item.runs);
            // With more threads two jobs can begin at once.
            if (threads <= 1) try std.testing.expectEqual(place, item.began);
        }
    }
}

test "a thread that waits for a job takes the next one, and no other is started" {
    var bench: Bench = undefined;
    try bench.init(2);
    defer bench.deinit();
    const w = &bench.workers;
    var item: Bench.Item = undefined;
    const owner: u8 = 0;
    for (0..3) |_| {
        bench.post(&item, &owner, false);
        _ = try bench.take();
        // The thread that ran the job is on its way back.
        while (true) : (std.Thread.yield() catch {}) {
            w.mutex.lock();
            defer w.mutex.unlock();
            if (w.idle > 0) break;
        }
    }
    try std.testing.expectEqual(1, w.started);
}

test "a fence waits for what runs, does what waits, and forgets what is done" {
    var bench: Bench = undefined;
    try bench.init(2);
    defer bench.deinit();
    const owners: [2]u8 = undefined;
    const mine = &owners[0];
    const others = &owners[1];
    var done: [2]Bench.Item = undefined;
    bench.post(&done[0], mine, false);
    bench.post(&done[1], others, false);
    for (&done) |*item| try std.testing.expect(item.entered.wait(base.never));
    var running: [2]Bench.Item = undefined;
    bench.post(&running[0], mine, true);
    bench.post(&running[1], others, true);
    for (&running) |*item| try std.testing.expect(item.entered.wait(base.never));
    var waiting: [6]Bench.Item = undefined;
    for (&waiting, 0..) |*item, index| {
        bench.post(item, if (index % 2 == 0) mine else others, false);
    }
    // The gate opens only once the fence does the owner's last job that waits.
    const Opener = struct {
        fn open(last: *Bench.Item) void {
            _ = last.entered.wait(base.never);
            last.bench.gate.set();
        }
    };
    const opener = try std.Thread.spawn(.{}, Opener.open, .{&waiting[4]});
    bench.workers.fence(mine);
    opener.join();
    for ([_]*Bench.Item{ &done[0], &running[0], &waiting[0], &waiting[2], &waiting[4] }) |item| {
        try std.testing.expectEqual(1, item.runs);
        item.* = undefined; // its owner may use the memory again
    }
    for (0..5) |_| try std.testing.expectEqual(
        @as(Owner, others),
        (try bench.take()).job.owner,
    );
    try std.testing.expectEqual(null, bench.workers.take());
}

test "a fence takes back what the engine has taken in but not told yet" {
    var bench: Bench = undefined;
    try bench.init(1);
    defer bench.deinit();
    const owners: [3]u8 = undefined;
    var items: [3]Bench.Item = undefined;
    for (&items, &owners) |*item, *owner| bench.post(item, owner, false);
    bench.workers.stop();
    const first = try bench.take();
    try std.testing.expectEqual(@as(Owner, &owners[0]), first.job.owner);
    bench.workers.fence(&owners[1]);
    try std.testing.expectEqual(@as(Owner, &owners[2]), (try bench.take()).job.owner);
    try std.testing.expectEqual(null, bench.workers.take());
}

test "an engine sleeps only when it has told every job, and wakes when one ends" {
    var bench: Bench = undefined;
    try bench.init(1);
    defer bench.deinit();
    const w = &bench.workers;
    const owner: u8 = 0;
    var items: [2]Bench.Item = undefined;
    // First the job ends while the engine sleeps, then when the engine has risen.
    for ([_]bool{ true, false }) |sleeps| {
        bench.post(&items[0], &owner, true);
        try std.testing.expect(items[0].entered.wait(base.never));
        try std.testing.expect(w.rest());
        if (!sleeps) w.rise();
        bench.gate.set();
        if (sleeps) {
            try std.testing.expect(socket.wait_for(bench.waker.read_fd, .read, 60_000));
            bench.waker.drain();
            w.rise();
        }
        w.fence(&owner);
        try std.testing.expect(!socket.wait_for(bench.waker.read_fd, .read, 0));
        bench.gate.clear();
    }
    // Both jobs end after the engine has looked for jobs and before it sleeps.
    try std.testing.expectEqual(null, w.take());
    for (&items) |*item| bench.post(item, &owner, false);
    w.stop();
    try std.testing.expect(!w.rest());
    for (0..2) |index| {
        try std.testing.expectEqual(&items[index].job, w.take().?);
        try std.testing.expectEqual(index == 1, w.rest());
    }
}

test "many owners, fenced and told at random, by few and by many threads" {
    // Goal: no job is lost, run twice or told after a fence. Method: the engine's side posts, takes
    // and fences by a seed.
    for ([_]u32{ 1, 2, 7 }) |threads| {
        var bench: Bench = undefined;
        try bench.init(threads);
        defer bench.deinit();
        var prng: base.Prng = .init(threads);
        const owners: [5]u8 = undefined;
        var items: [64]Bench.Item = undefined;
        var in_flight: [items.len]bool = @splat(false);
        for (0..20_000) |_| {
            const place = prng.below(items.len);
            const owner = &owners[place % owners.len];
            if (prng.below(50) == 0) {
                bench.workers.fence(owner);
                for (&items, &in_flight, 0..) |*item, *is_in_flight, at| {
                    if (at % owners.len != place % owners.len) continue;
                    if (is_in_flight.*) try std.testing.expectEqual(1, item.runs);
                    is_in_flight.* = false;
                    item.* = undefined;
                }
            } else if (in_flight[place]) {
                const item = try bench.take();
                const at = item - &items[0];
                try std.testing.expect(in_flight[at] and item.runs == 1);
                in_flight[at] = false;
                item.* = undefined;
            } else {
                in_flight[place] = true;
                bench.post(&items[place], owner, false);
            }
        }
        for (&owners) |*owner| bench.workers.fence(owner);
        try std.testing.expectEqual(null, bench.workers.take());
        try std.testing.expectEqual(0, bench.workers.waiting_count);
    }
}

test "the end runs what waits, and what is posted later runs at once" {
    var bench: Bench = undefined;
    try bench.init(1);
    defer bench.deinit();
    const owner: u8 = 0;
    var items: [10]Bench.Item = undefined;
    for (items[0..9]) |*item| bench.post(item, &owner, false);
    bench.workers.stop();
    bench.post(&items[9], &owner, false);
    for (&items) |*item| try std.testing.expectEqual(1, item.runs);
    bench.workers.fence(&owner);
}

test "the number of workers is read, and what is mistyped is an error" {
    try std.testing.expectEqual(0, try Workers.parse("0"));
    try std.testing.expectEqual(64, try Workers.parse("64"));
    for ([_][]const u8{ "65", "-1", "+1", "1_0", "x", " 2", "2 ", "99999999999" }) |text| {
        try std.testing.expectError(error.BadWorkers, Workers.parse(text));
    }
    for ([_]u32{ 0, 0, 2, 3, 7, 8, 8 }, [_]u32{ 1, 2, 3, 4, 8, 9, 128 }) |count, core_count| {
        try std.testing.expectEqual(count, Workers.count_for(core_count));
    }
}
