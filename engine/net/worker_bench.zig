//! workers-bench: a program that measures the cost of handing a job to worker.zig, and so from
//! which size on a hand-over pays (`zig build workers-bench && zig-out/bin/workers-bench`).
//!
//! The program prints medians. For one job that is posted to a sleeping worker it prints the time
//! of the post, and of the way there and back. Then it prints three times for each of 64 jobs that
//! add f32: done at once by this thread; posted to one worker, until all jobs are taken; and the
//! part of the second that this thread, the engine's, spends on posting.

const std = @import("std");
const net = @import("net");
const base = @import("base");
const kernels = @import("kernels");
const Workers = net.Workers;
const clock = net.clock;
const KiB = base.limits.KiB;

const samples = 2001;
const batch = 64;

var waker: net.poller.Waker = undefined;

const Add = struct {
    job: base.Job,
    into: []f32 = &.{},
    from: []const f32 = &.{},

    fn run(job: *base.Job) void {
        const add: *Add = @fieldParentPtr("job", job);
        if (add.into.len == 0) return;
        const into: [*]u8 = @ptrCast(add.into);
        kernels.accumulate(.sum, .f32, into, into, @ptrCast(add.from), 2, add.into.len);
    }
};

/// Takes a job as the engine does: asleep in the kernel until one has been run.
fn take(workers: *Workers) void {
    while (workers.take() == null) {
        if (workers.rest()) {
            _ = net.socket.wait_for(waker.read_fd, .read, -1);
            waker.drain();
        }
        workers.rise();
    }
}

fn median(values: []u64) u64 {
    std.mem.sort(u64, values, {}, std.sort.asc(u64));
    return values[values.len / 2];
}

fn hand_over(out: *std.Io.Writer, workers: *Workers) !void {
    var post_ns: [samples]u64 = undefined;
    var way_ns: [samples]u64 = undefined;
    var add: Add = .{ .job = .{ .run = Add.run, .owner = workers } };
    for (&post_ns, &way_ns) |*post, *way| {
        const start = clock.now();
        workers.post(&add.job);
        post.* = clock.now() - start;
        take(workers);
        way.* = clock.now() - start;
    }
    try out.print("to a worker that sleeps: post {d} ns, post to taken {d} ns\n", .{
        median(&post_ns),
        median(&way_ns),
    });
}

fn sizes(out: *std.Io.Writer, workers: *Workers, memory: []f32) !void {
    const names = .{ "KiB", "inline ns", "posted ns", "handing ns" };
    try out.print("{s:>9} {s:>12} {s:>12} {s:>12}\n", names);
    var adds: [batch]Add = undefined;
    var size: usize = 4 * KiB;
    while (size <= 256 * KiB) : (size *= 2) {
        const count = size / @sizeOf(f32);
        for (&adds, 0..) |*add, index| add.* = .{
            .job = .{ .run = Add.run, .owner = workers },
            .into = memory[2 * index * count ..][0..count],
            .from = memory[(2 * index + 1) * count ..][0..count],
        };
        var inline_ns: [101]u64 = undefined;
        var posted_ns: [101]u64 = undefined;
        var handing_ns: [101]u64 = undefined;
        for (&inline_ns, &posted_ns, &handing_ns) |*alone, *posted, *handing| {
            var start = clock.now();
            for (&adds) |*add| add.job.run(&add.job);
            alone.* = (clock.now() - start) / batch;
            start = clock.now();
            for (&adds) |*add| workers.post(&add.job);
            handing.* = (clock.now() - start) / batch;
            for (adds) |_| take(workers);
            posted.* = (clock.now() - start) / batch;
        }
        try out.print("{d:>9} {d:>12} {d:>12} {d:>12}\n", .{
            size / KiB, median(&inline_ns), median(&posted_ns), median(&handing_ns),
        });
    }
}

pub fn main(init: std.process.Init) !void {
    var buffer: [4096]u8 = undefined;
    var stdout = std.Io.File.stdout().writerStreaming(init.io, &buffer);
    const out = &stdout.interface;
    const gpa = std.heap.c_allocator;
    waker = try .init();
    defer waker.deinit();
    var workers: Workers = .init(&waker, 1);
    defer workers.deinit();
    defer workers.stop();
    const memory = try gpa.alloc(f32, 2 * batch * 256 * KiB / @sizeOf(f32));
    defer gpa.free(memory);
    @memset(memory, 1);
    try hand_over(out, &workers);
    try sizes(out, &workers, memory);
    try out.flush();
}
