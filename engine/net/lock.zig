//! lock: how threads of one process wait for each other: a fair lock around a session, a signal
//! that one thread sets and others wait for, a way for the user to end such a wait, and a mutex
//! with its condition for a few instructions at a time. Futexes on Linux, pthread elsewhere. A
//! waiting thread sleeps in the kernel. These locks are used by peer_engine.zig, work.zig,
//! worker.zig.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const clock = @import("clock.zig");
const c = std.c;
const linux = std.os.linux;
const assert = std.debug.assert;

const Word = std.atomic.Value(u32);
const on_linux = builtin.os.tag == .linux;

/// A lock that serves threads in the order in which they come: an engine thread that takes the lock
/// round after round cannot starve the thread of a user.
pub const FairLock = struct {
    tickets: Word = .init(0),
    serving: Word = .init(0),
    sleep: Sleep = .{},

    pub fn lock(l: *FairLock) void {
        // The order of this operation and the two in unlock() is total, so either unlock() sees the
        // ticket and wakes this thread, or the load below sees its turn.
        const ticket = l.tickets.fetchAdd(1, .seq_cst);
        while (true) {
            const serving = l.serving.load(.seq_cst);
            if (serving == ticket) return;
            _ = l.sleep.wait(&l.serving, serving, ticket, base.never);
        }
    }

    pub fn unlock(l: *FairLock) void {
        const next = l.serving.load(.monotonic) +% 1;
        l.serving.store(next, .seq_cst);
        if (l.tickets.load(.seq_cst) != next) l.sleep.wake(&l.serving, next);
    }

    /// Whether another thread waits for the lock: its holder may then let that thread in with
    /// `pass`.
    pub fn contended(l: *const FairLock) bool {
        return l.tickets.load(.monotonic) -% l.serving.load(.monotonic) > 1;
    }

    /// Lets every thread that waits have a turn first.
    pub fn pass(l: *FairLock) void {
        l.unlock();
        l.lock();
    }
};

/// A flag that one thread sets, and that any number of other threads wait for.
pub const Signal = struct {
    state: Word = .init(0),
    sleep: Sleep = .{},

    pub fn set(signal: *Signal) void {
        if (signal.state.swap(1, .seq_cst) == 1) return;
        signal.sleep.wake_all(&signal.state);
    }

    pub fn clear(signal: *Signal) void {
        signal.state.store(0, .seq_cst);
    }

    pub fn is_set(signal: *const Signal) bool {
        return signal.state.load(.acquire) == 1;
    }

    /// Waits until the signal is set; false if `deadline` passed first.
    pub fn wait(signal: *Signal, deadline: base.Instant) bool {
        while (!signal.is_set()) {
            if (!signal.sleep.wait(&signal.state, 0, 0, deadline)) return signal.is_set();
        }
        return true;
    }
};

/// A function of the user that a blocked thread of the user asks now and then. If the function
/// answers other than 0, the thread withdraws its call.
pub const Interrupt = struct {
    function: ?*const fn (?*anyopaque) callconv(.c) c_int = null,
    context: ?*anyopaque = null,

    /// How long a thread waits between two calls of the function.
    const period_ns = 50 * std.time.ns_per_ms;

    pub fn asked(interrupt: Interrupt) bool {
        const function = interrupt.function orelse return false;
        return function(interrupt.context) != 0;
    }

    /// When a thread that waits until `deadline` must call the function next.
    pub fn next_look(interrupt: Interrupt, now: base.Instant, deadline: base.Instant) base.Instant {
        if (interrupt.function == null) return deadline;
        return @min(deadline, now + period_ns);
    }

    /// Waits for the signal, and asks the user's function meanwhile; false if `deadline` passed
    /// first.
    pub fn wait(
        interrupt: Interrupt,
        signal: *Signal,
        deadline: base.Instant,
    ) error{Interrupted}!bool {
        while (true) {
            const now = clock.now();
            if (signal.wait(interrupt.next_look(now, deadline))) return true;
            if (interrupt.asked()) return error.Interrupted;
            if (clock.now() >= deadline) return false;
        }
    }
};

/// A lock held for a few instructions, and not fair: any waiting thread may get it next.
pub const Mutex = struct {
    state: Word = .init(free),
    sleep: Sleep = .{},

    const free = 0;
    const held = 1;
    /// The mutex is held, and another thread may sleep.
    const contended = 2;

    pub fn lock(m: *Mutex) void {
        if (m.state.cmpxchgStrong(free, held, .acquire, .monotonic) == null) return;
        // A thread that has slept cannot know whether other threads still sleep, so it leaves
        // `contended`.
        while (m.state.swap(contended, .acquire) != free) {
            _ = m.sleep.wait(&m.state, contended, 0, base.never);
        }
    }

    pub fn unlock(m: *Mutex) void {
        if (m.state.swap(free, .release) == contended) m.sleep.wake_one(&m.state);
    }
};

/// Waits for changes that threads make under a Mutex.
pub const Condition = struct {
    /// The number of calls of `wake_one` and `wake_all`.
    changes: Word = .init(0),
    sleepers: Word = .init(0),
    sleep: Sleep = .{},

    /// Waits for a change, under the mutex, which is unlocked meanwhile; may return without a
    /// change.
    pub fn wait(condition: *Condition, mutex: *Mutex) void {
        const seen = condition.changes.load(.seq_cst);
        _ = condition.sleepers.fetchAdd(1, .seq_cst);
        mutex.unlock();
        _ = condition.sleep.wait(&condition.changes, seen, 0, base.never);
        _ = condition.sleepers.fetchSub(1, .seq_cst);
        mutex.lock();
    }

    /// Wakes one sleeper after a change, best when the mutex has been unlocked. A thread that saw
    /// the state before the change is among the sleepers: it either sees another count or is woken.
    pub fn wake_one(condition: *Condition) void {
        _ = condition.changes.fetchAdd(1, .seq_cst);
        if (condition.sleepers.load(.seq_cst) > 0) condition.sleep.wake_one(&condition.changes);
    }

    pub fn wake_all(condition: *Condition) void {
        _ = condition.changes.fetchAdd(1, .seq_cst);
        if (condition.sleepers.load(.seq_cst) > 0) condition.sleep.wake_all(&condition.changes);
    }
};

/// Sleeps on a word of memory. A ticket says which sleepers a wake is for; a few others may wake as
/// well.
const Sleep = if (on_linux) FutexSleep else PthreadSleep;

const FutexSleep = struct {
    /// Sleeps while `word` is `expected`; false once `deadline` has passed. The thread may wake
    /// without a cause.
    fn wait(_: *FutexSleep, word: *Word, expected: u32, ticket: u32, deadline: base.Instant) bool {
        var until: linux.timespec = undefined;
        if (deadline != base.never) until = .{
            .sec = @intCast(deadline / std.time.ns_per_s),
            .nsec = @intCast(deadline % std.time.ns_per_s),
        };
        const timeout: ?*const linux.timespec = if (deadline == base.never) null else &until;
        // A bitset wait takes an absolute time of the monotonic clock.
        const result = linux.futex(
            word,
            .{ .cmd = .WAIT_BITSET, .private = true },
            expected,
            .{ .timeout = timeout },
            null,
            bit(ticket),
        );
        return linux.errno(result) != .TIMEDOUT;
    }

    const everyone = std.math.maxInt(i32);
    const every_bit = std.math.maxInt(u32);

    fn wake(_: *FutexSleep, word: *Word, ticket: u32) void {
        wake_bits(word, everyone, bit(ticket));
    }

    fn wake_one(_: *FutexSleep, word: *Word) void {
        wake_bits(word, 1, every_bit);
    }

    fn wake_all(_: *FutexSleep, word: *Word) void {
        wake_bits(word, everyone, every_bit);
    }

    fn wake_bits(word: *Word, count: u32, bits: u32) void {
        const operation: linux.FUTEX_OP = .{ .cmd = .WAKE_BITSET, .private = true };
        _ = linux.futex(word, operation, count, .{ .timeout = null }, null, bits);
    }

    fn bit(ticket: u32) u32 {
        return @as(u32, 1) << @intCast(ticket % 32);
    }
};

const PthreadSleep = struct {
    mutex: c.pthread_mutex_t = .{},
    condition: c.pthread_cond_t = .{},

    fn wait(s: *PthreadSleep, word: *Word, expected: u32, _: u32, deadline: base.Instant) bool {
        assert(c.pthread_mutex_lock(&s.mutex) == .SUCCESS);
        defer assert(c.pthread_mutex_unlock(&s.mutex) == .SUCCESS);
        if (word.load(.seq_cst) != expected) return true;
        if (deadline == base.never) {
            assert(c.pthread_cond_wait(&s.condition, &s.mutex) == .SUCCESS);
            return true;
        }
        const left_ns = deadline -| clock.now();
        if (left_ns == 0) return false;
        // On every system a condition can wait by the wall clock; if that clock is set meanwhile,
        // the caller's loop looks at the monotonic clock again.
        var until: c.timespec = undefined;
        assert(c.clock_gettime(.REALTIME, &until) == 0);
        const sleep_ns = @min(left_ns, std.time.ns_per_hour) + @as(u64, @intCast(until.nsec));
        until.sec += @intCast(sleep_ns / std.time.ns_per_s);
        until.nsec = @intCast(sleep_ns % std.time.ns_per_s);
        _ = c.pthread_cond_timedwait(&s.condition, &s.mutex, &until);
        return true;
    }

    fn wake(s: *PthreadSleep, word: *Word, _: u32) void {
        s.wake_all(word);
    }

    fn wake_one(s: *PthreadSleep, _: *Word) void {
        assert(c.pthread_mutex_lock(&s.mutex) == .SUCCESS);
        assert(c.pthread_cond_signal(&s.condition) == .SUCCESS);
        assert(c.pthread_mutex_unlock(&s.mutex) == .SUCCESS);
    }

    fn wake_all(s: *PthreadSleep, _: *Word) void {
        assert(c.pthread_mutex_lock(&s.mutex) == .SUCCESS);
        assert(c.pthread_cond_broadcast(&s.condition) == .SUCCESS);
        assert(c.pthread_mutex_unlock(&s.mutex) == .SUCCESS);
    }
};

test "the lock excludes, and every thread gets its turn" {
    const Shared = struct {
        lock: FairLock = .{},
        total: u64 = 0,

        fn work(shared: *@This()) void {
            for (0..2000) |_| {
                shared.lock.lock();
                shared.total += 1;
                if (shared.lock.contended()) shared.lock.pass();
                shared.lock.unlock();
            }
        }
    };
    var shared: Shared = .{};
    var threads: [4]std.Thread = undefined;
    shared.lock.lock();
    try std.testing.expect(!shared.lock.contended());
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Shared.work, .{&shared});
    // All threads wait from the beginning, most of them asleep: a lost wake hangs.
    while (shared.lock.tickets.load(.seq_cst) < 1 + threads.len) std.Thread.yield() catch {};
    try std.testing.expect(shared.lock.contended());
    shared.lock.unlock();
    for (threads) |thread| thread.join();
    try std.testing.expectEqual(8000, shared.total);
}

test "a signal that nobody sets times out, and one that is set wakes every waiter" {
    const Shared = struct {
        signal: Signal = .{},
        woken: Word = .init(0),

        fn work(shared: *@This()) void {
            if (shared.signal.wait(base.never)) _ = shared.woken.fetchAdd(1, .monotonic);
        }
    };
    var shared: Shared = .{};
    const start = clock.now();
    try std.testing.expect(!shared.signal.wait(start + 5 * std.time.ns_per_ms));
    try std.testing.expect(clock.now() >= start + 5 * std.time.ns_per_ms);
    var threads: [3]std.Thread = undefined;
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Shared.work, .{&shared});
    shared.signal.set();
    for (threads) |thread| thread.join();
    try std.testing.expectEqual(3, shared.woken.load(.monotonic));
    try std.testing.expect(shared.signal.wait(0));
}

test "a mutex excludes, and a condition passes every item on" {
    // Goal: no item and no wake is lost. Method: two threads make items, two take them, through a
    // place for one; with a lost wake the test hangs.
    const Shared = struct {
        mutex: Mutex = .{},
        changed: Condition = .{},
        item: ?u64 = null,
        made: u64 = 0,
        taken: u64 = 0,
        sum: u64 = 0,

        const total = 4000;

        fn make(shared: *@This()) void {
            shared.mutex.lock();
            defer shared.mutex.unlock();
            while (true) {
                while (shared.item != null) shared.changed.wait(&shared.mutex);
                if (shared.made == total) return shared.changed.wake_all();
                shared.made += 1;
                shared.item = shared.made;
                shared.changed.wake_all();
            }
        }

        fn take(shared: *@This()) void {
            shared.mutex.lock();
            defer shared.mutex.unlock();
            while (shared.taken < total) {
                const item = shared.item orelse {
                    shared.changed.wait(&shared.mutex);
                    continue;
                };
                shared.item = null;
                shared.taken += 1;
                shared.sum += item;
                shared.changed.wake_all();
            }
        }
    };
    var shared: Shared = .{};
    var threads: [4]std.Thread = undefined;
    for (threads[0..2]) |*thread| thread.* = try std.Thread.spawn(.{}, Shared.make, .{&shared});
    for (threads[2..]) |*thread| thread.* = try std.Thread.spawn(.{}, Shared.take, .{&shared});
    for (threads) |thread| thread.join();
    try std.testing.expectEqual(Shared.total * (Shared.total + 1) / 2, shared.sum);
}

test "a mutex that several threads sleep for wakes one after the other" {
    const Shared = struct {
        mutex: Mutex = .{},
        come: Word = .init(0),

        fn work(shared: *@This()) void {
            for (0..200) |_| {
                _ = shared.come.fetchAdd(1, .seq_cst);
                shared.mutex.lock();
                // The other threads fall asleep meanwhile.
                for (0..3) |_| std.Thread.yield() catch {};
                shared.mutex.unlock();
            }
        }
    };
    var shared: Shared = .{};
    var threads: [3]std.Thread = undefined;
    shared.mutex.lock();
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, Shared.work, .{&shared});
    while (shared.come.load(.seq_cst) < threads.len) std.Thread.yield() catch {};
    shared.mutex.unlock();
    for (threads) |thread| thread.join();
    try std.testing.expectEqual(3 * 200, shared.come.load(.seq_cst));
}

test "sleeping with pthread wakes and times out like the futex" {
    // Other systems sleep with pthread; the test runs that on this one too.
    const Shared = struct {
        sleep: PthreadSleep = .{},
        word: Word = .init(0),

        fn work(shared: *@This()) void {
            while (shared.word.load(.seq_cst) == 0) {
                _ = shared.sleep.wait(&shared.word, 0, 0, base.never);
            }
        }
    };
    var shared: Shared = .{};
    const deadline = clock.after(2 * std.time.ns_per_ms);
    while (shared.sleep.wait(&shared.word, 0, 0, deadline)) {}
    try std.testing.expect(clock.now() >= deadline);
    const thread = try std.Thread.spawn(.{}, Shared.work, .{&shared});
    shared.word.store(1, .seq_cst);
    shared.sleep.wake_one(&shared.word);
    thread.join();
}
