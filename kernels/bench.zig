//! A program that measures the kernels on a machine without Python: `zig build kernel-bench`, with
//! `-Dtarget=x86_64-linux-musl` for one file that runs anywhere. Each line is a kernel, its rate in
//! GB/s of f32 and, measured in turns with it, that of the loop with the same loads and stores. The
//! kernels are listed in measure.zig. The benchmark beside other libraries: bench/kernels.py.
//!
//!     kernel-bench [level [bytes [part of a name]]]

const std = @import("std");
const kernels = @import("kernels");
const measure = kernels.measure;

const rounds = 15;
const round_ns = 2 * std.time.ns_per_ms;

pub fn main(init: std.process.Init) !void {
    var buffer: [4096]u8 = undefined;
    var stdout = std.Io.File.stdout().writerStreaming(init.io, &buffer);
    const out = &stdout.interface;
    var args = init.minimal.args.iterate();
    _ = args.skip();
    if (args.next()) |level| {
        if (!kernels.force(level)) return error.LevelIsUnknownOrThisCpuLacksIt;
    }
    const only_bytes = if (args.next()) |text| try std.fmt.parseInt(usize, text, 10) else null;
    const part = args.next() orelse "";
    _ = kernels.float_mode.standard();
    for ([_]usize{ 1 << 20, 64 << 20 }) |standard_bytes| {
        const bytes = only_bytes orelse standard_bytes;
        const count = bytes / 4;
        const memory = try std.heap.page_allocator.alloc(u8, measure.memory_bytes(count));
        defer std.heap.page_allocator.free(memory);
        _ = std.os.linux.madvise(memory.ptr, memory.len, std.os.linux.MADV.HUGEPAGE);
        try out.print("level {s}, {d} bytes of f32\n", .{ kernels.level_name(), bytes });
        for (&measure.cases) |*c| {
            if (std.mem.indexOf(u8, c.name, part) == null) continue;
            const bench: measure.Bench = .init(c, memory, count);
            try line(out, &bench);
            try out.flush();
        }
        if (only_bytes != null) break;
    }
}

fn line(out: *std.Io.Writer, bench: *const measure.Bench) !void {
    const repeats = @max(1, round_ns / @max(1, time(bench, .kernel, 1)));
    var ours: [rounds]u64 = undefined;
    var skeletons: [rounds]u64 = undefined;
    for (&ours, &skeletons) |*a, *b| {
        a.* = time(bench, .kernel, repeats);
        b.* = time(bench, .skeleton, repeats);
    }
    const bytes: f64 = @floatFromInt(bench.count * 4 * repeats);
    const rate = bytes / median(&ours);
    const limit = bytes / median(&skeletons);
    try out.print("{s:<34} {d:>7.1} of {d:>6.1}  {d:.2}\n", .{
        bench.case.name, rate, limit, rate / limit,
    });
}

fn time(bench: *const measure.Bench, what: enum { kernel, skeleton }, repeats: u64) u64 {
    const begin = now();
    for (0..repeats) |_| switch (what) {
        .kernel => bench.run(),
        .skeleton => bench.run_skeleton(),
    };
    return now() - begin;
}

fn median(times: *[rounds]u64) f64 {
    std.mem.sort(u64, times, {}, std.sort.asc(u64));
    return @floatFromInt(times[rounds / 2]);
}

/// Processor time of this thread: others may use the machine too.
fn now() u64 {
    var ts: std.c.timespec = undefined;
    _ = std.c.clock_gettime(.THREAD_CPUTIME_ID, &ts);
    return @as(u64, @intCast(ts.sec)) * std.time.ns_per_s + @as(u64, @intCast(ts.nsec));
}
