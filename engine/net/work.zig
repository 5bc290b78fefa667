//! Work: one operation in the hands of the user's threads: waiting, withdrawing, taking the result.
//! The operation itself belongs to the session, and moves on the engine's thread (peer_engine.zig).
//! Called by abi/work.zig.

const std = @import("std");
const base = @import("base");
const session = @import("session");
const clock = @import("clock.zig");
const lock = @import("lock.zig");
const socket = @import("socket.zig");
const PeerEngine = @import("peer_engine.zig").PeerEngine;
const Membership = @import("membership.zig").Membership;
const Waker = @import("poller.zig").Waker;
const user = session.user;
const Operation = session.Operation;
const Instant = base.Instant;

/// Any thread may call any function, but none during or after `deinit`. A Work must not move once
/// it has begun.
pub const Work = struct {
    engine: *PeerEngine,
    operation: *Operation,
    finished: lock.Signal = .{},
    /// Set when the decision about an operation in doubt is known, or never will be.
    resolved: lock.Signal = .{},
    /// Held while a result that was in doubt is copied, which happens once.
    result_lock: lock.FairLock = .{},
    result_taken: bool = false,
    /// The function to call once the work is finished, guarded by the engine's lock.
    callback: ?Callback = null,
    /// Wakes the user's own event loop; null until the user asks for it; guarded by the engine's
    /// lock.
    waker: ?Waker = null,

    pub const Callback = struct {
        function: *const fn (?*anyopaque) callconv(.c) void,
        context: ?*anyopaque,
    };

    /// Starts an operation of a group. On an error no operation has begun, and `work` is unchanged.
    pub fn begin(
        work: *Work,
        membership: *Membership,
        call: session.Call,
    ) session.CallError!void {
        const engine = membership.engine;
        const mode = engine.enter();
        defer engine.leave(mode);
        if (membership.left) return error.Left;
        const operation = try user.begin(engine.session, clock.now(), membership.group, call);
        work.of_operation(engine, operation);
    }

    /// Starts a sync of a shared state. On an error no operation has begun, and `work` is
    /// unchanged.
    pub fn begin_sync(
        work: *Work,
        membership: *Membership,
        call: session.user.SyncCall,
    ) session.user.SyncError!void {
        const engine = membership.engine;
        const mode = engine.enter();
        defer engine.leave(mode);
        if (membership.left) return error.Left;
        work.of_operation(engine, try user.begin_sync(engine.session, clock.now(), call));
    }

    /// Asks how many peers would enter at the next safe point; the answer goes to `pending`. On an
    /// error no operation has begun, and `work` is unchanged.
    pub fn begin_pending(
        work: *Work,
        membership: *Membership,
        pending: *u32,
        deadline: Instant,
    ) session.CallError!void {
        const engine = membership.engine;
        const mode = engine.enter();
        defer engine.leave(mode);
        if (membership.left) return error.Left;
        const now = clock.now();
        const operation =
            try user.ask_pending(engine.session, now, membership.group, pending, deadline);
        work.of_operation(engine, operation);
    }

    fn of_operation(work: *Work, engine: *PeerEngine, operation: *Operation) void {
        work.* = .{ .engine = engine, .operation = operation };
        operation.user = @intFromPtr(work);
        // The operation may have finished before this work was there to be told.
        if (operation.finished) work.finished.set();
    }

    pub fn of(operation: *Operation) ?*Work {
        return if (operation.user == 0) null else @ptrFromInt(operation.user);
    }

    /// Called by the engine, under its lock, when the operation is finished.
    pub fn tell_finished(work: *Work) void {
        work.finished.set();
        if (work.waker) |*waker| waker.wake();
        if (work.callback) |callback| {
            work.callback = null;
            callback.function(callback.context);
        }
    }

    /// The status of the operation; null: it is not finished by `deadline`. On .ok the result is in
    /// the caller's buffer.
    pub fn wait(work: *Work, deadline: Instant) ?session.Status {
        return if (work.finished.wait(deadline)) work.operation.status else null;
    }

    fn take_result(work: *Work) void {
        work.result_lock.lock();
        defer work.result_lock.unlock();
        if (work.result_taken) return;
        work.operation.copy_result();
        work.result_taken = true;
    }

    pub const Resolution = enum { committed, aborted, unknown, pending };

    /// The outcome of an operation in doubt. `copy`: a committed result is copied to the caller's
    /// buffer.
    pub fn resolve(work: *Work, deadline: Instant, copy: bool) Resolution {
        if (!work.resolved.wait(deadline)) return .pending;
        const committed = work.operation.committed orelse return .unknown;
        if (!committed) return .aborted;
        if (copy) work.take_result();
        return .committed;
    }

    /// Calls `callback` once: now if the work is finished, else when it is.
    pub fn notify(work: *Work, callback: Callback) void {
        const mode = work.engine.enter();
        defer work.engine.leave_quietly(mode);
        if (work.finished.is_set()) return callback.function(callback.context);
        work.callback = callback;
    }

    /// A descriptor that is readable once the work is finished, and that `deinit` closes.
    pub fn descriptor(work: *Work) error{SystemLimit}!socket.Fd {
        const mode = work.engine.enter();
        defer work.engine.leave_quietly(mode);
        if (work.waker == null) {
            work.waker = try .init();
            if (work.finished.is_set()) work.waker.?.wake();
        }
        return work.waker.?.read_fd;
    }

    /// Withdraws this peer from the operation; the other members go on without it
    /// (session/user.zig: desert).
    pub fn cancel(work: *Work) void {
        const mode = work.engine.enter();
        defer work.engine.leave(mode);
        user.desert(work.engine.session, clock.now(), work.operation);
    }

    /// Ends this operation alone, for all members: members that call it again stay in step.
    pub fn withdraw(work: *Work) void {
        const mode = work.engine.enter();
        defer work.engine.leave(mode);
        user.cancel(work.engine.session, clock.now(), work.operation);
    }

    /// Cancels the operation if it is not finished; afterwards nothing touches the caller's memory.
    pub fn deinit(work: *Work) void {
        const engine = work.engine;
        var mode = engine.enter();
        work.callback = null;
        user.desert(engine.session, clock.now(), work.operation);
        if (!work.operation.finished) {
            // The call has ended, perhaps in doubt. Large arrays are given back in several steps,
            // each of them a turn of the engine.
            engine.leave(mode);
            _ = work.finished.wait(base.never);
            mode = engine.enter();
        }
        defer engine.leave(mode);
        work.operation.user = 0;
        user.release(engine.session, work.operation);
        if (work.waker) |*waker| waker.deinit();
        work.* = undefined;
    }
};
