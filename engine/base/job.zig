//! job: a small part of an operation's work on memory, which any thread may do: add, encode, copy,
//! hash. Whoever makes jobs decides what is done (collective); who runs them, and when, is a
//! runner's: the threads of net/worker.zig, or the simulator in an order drawn from a seed.

pub const Job = struct {
    /// Does it. Nothing else touches its memory meanwhile, and it touches nothing else.
    run: *const fn (job: *Job) void,
    /// Whose it is. Jobs of one owner are fenced together.
    owner: *const anyopaque,
    /// The runner's, from `post` until the owner has been told or the fence has returned.
    next: ?*Job = null,
};

/// Where jobs go that are not done at once. All of it is called under the lock of a session.
pub const Runner = struct {
    ctx: *anyopaque,
    vtable: *const VTable,
    /// Smaller ones are done at once, by whoever makes them: to hand them over costs more.
    bytes_min: usize,

    pub const VTable = struct {
        /// Some thread will run it. Then the session is told, once: session/driver.zig: job_done.
        post: *const fn (ctx: *anyopaque, job: *Job) void,
        /// Returns when all jobs of this owner have been run. The session is told of none of them
        /// any more.
        fence: *const fn (ctx: *anyopaque, owner: *const anyopaque) void,
    };

    pub fn post(runner: *const Runner, job: *Job) void {
        runner.vtable.post(runner.ctx, job);
    }

    pub fn fence(runner: *const Runner, owner: *const anyopaque) void {
        runner.vtable.fence(runner.ctx, owner);
    }
};
