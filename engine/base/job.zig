//! Job: a small part of an operation's work on memory (add, encode, copy, hash), which any thread
//! may do. collective decides what a job does. A runner decides who runs it, and when: the threads
//! of net/worker.zig, or the simulator in an order drawn from a seed.

pub const Job = struct {
    /// Does the job. Meanwhile nothing else uses the job's memory, and the job uses no other
    /// memory.
    run: *const fn (job: *Job) void,
    /// The operation or transfer that the job belongs to. A fence waits for all jobs of one owner.
    owner: *const anyopaque,
    /// For the runner's lists, from `post` until the owner has been told or the fence has returned.
    next: ?*Job = null,
};

/// Does jobs that their makers hand over. Its functions are called under the lock of a session.
pub const Runner = struct {
    ctx: *anyopaque,
    vtable: *const VTable,
    /// Jobs of fewer bytes are done at once by their maker, because handing them over costs more.
    bytes_min: usize,

    pub const VTable = struct {
        /// Hands a job to some thread, and tells the session once when the job is done
        /// (session/driver.zig: job_done).
        post: *const fn (ctx: *anyopaque, job: *Job) void,
        /// Waits until all jobs of this owner are done. The session is not told of these jobs.
        fence: *const fn (ctx: *anyopaque, owner: *const anyopaque) void,
    };

    pub fn post(runner: *const Runner, job: *Job) void {
        runner.vtable.post(runner.ctx, job);
    }

    pub fn fence(runner: *const Runner, owner: *const anyopaque) void {
        runner.vtable.fence(runner.ctx, owner);
    }
};
