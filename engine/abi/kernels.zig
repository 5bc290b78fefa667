//! kernels: measures the kernels through the C ABI, for `pccl bench kernels` and bench/kernels.py.
//! It owns the clock and the checks; the kernels, and the loops that they are compared with, are in
//! kernels/measure.zig.

const std = @import("std");
const builtin = @import("builtin");
const kernels = @import("kernels");
const status = @import("status.zig");
const version = @import("version.zig");
const measure = kernels.measure;
const Status = status.Status;

/// As in include/pccl.h.
const What = enum(c_int) { prepare = 0, kernel = 1, skeleton = 2 };

const names: [measure.cases.len][:0]const u8 = blk: {
    @setEvalBranchQuota(100_000);
    var list: [measure.cases.len][:0]const u8 = undefined;
    for (&list, measure.cases) |*name, case| name.* = case.name ++ "";
    break :blk list;
};

pub fn pccl_kernel_name(index: usize) callconv(.c) ?[*:0]const u8 {
    return if (index < names.len) names[index] else null;
}

pub fn pccl_kernel_memory(count: usize) callconv(.c) usize {
    if (count == 0 or count % measure.granule != 0 or count > count_max) return 0;
    return measure.memory_bytes(count);
}

/// 4 GiB of f32.
const count_max = 1 << 30;

pub const pccl_kernel_run = status.C(run).call;

fn run(
    name: ?[*:0]const u8,
    number: c_int,
    memory: ?[*]u8,
    count: usize,
    repeats: u32,
    duration_ns: ?*u64,
) status.Error!void {
    const wanted = std.mem.span(name orelse return status.is_null("name"));
    const bytes = memory orelse return status.is_null("memory");
    const duration = duration_ns orelse return status.is_null("duration_ns");
    const case = measure.find(wanted) orelse return status.fail(
        .invalid_argument,
        "there is no kernel \"{s}\"; pccl_kernel_name lists them",
        .{wanted},
    );
    const what = std.enums.fromInt(What, number) orelse return status.fail(
        .invalid_argument,
        "what is {d}; it must be one of pccl_kernel_what_t",
        .{number},
    );
    const size = pccl_kernel_memory(count);
    if (size == 0) return status.fail(
        .invalid_argument,
        "a kernel is measured with a multiple of {d} elements, {d} at most; count is {d}",
        .{ measure.granule, count_max, count },
    );
    const mode: version.KernelMode = try .begin();
    defer mode.end();
    const begin = now();
    switch (what) {
        .prepare => _ = measure.Bench.init(case, bytes[0..size], count),
        .kernel, .skeleton => {
            const memory_all = bytes[0..size];
            const bench: measure.Bench = .{ .case = case, .memory = memory_all, .count = count };
            for (0..repeats) |_| if (what == .kernel) bench.run() else bench.run_skeleton();
        },
    }
    duration.* = now() - begin;
}

/// Processor time of this thread: others may use the machine too.
fn now() u64 {
    var ts: std.c.timespec = undefined;
    _ = std.c.clock_gettime(.THREAD_CPUTIME_ID, &ts);
    return @as(u64, @intCast(ts.sec)) * std.time.ns_per_s + @as(u64, @intCast(ts.nsec));
}

test "a kernel is measured, and bad arguments are refused with a sentence" {
    const gpa = std.testing.allocator;
    const count = measure.granule;
    const memory = try gpa.alloc(u8, pccl_kernel_memory(count));
    defer gpa.free(memory);
    var duration: u64 = 0;
    const name = pccl_kernel_name(0).?;
    const expect_equal = std.testing.expectEqual;
    // The float mode of the caller's thread stays.
    const mode = kernels.float_mode.standard();
    defer kernels.float_mode.restore(mode);
    const flushes = kernels.float_mode.read() | 1 << 15;
    if (builtin.cpu.arch == .x86_64) kernels.float_mode.write(flushes);
    defer if (builtin.cpu.arch == .x86_64) expect_equal(flushes, kernels.float_mode.read()) catch
        @panic("the float mode has changed");
    for (0..3) |what| {
        const number: c_int = @intCast(what);
        try expect_equal(.ok, pccl_kernel_run(name, number, memory.ptr, count, 100, &duration));
        try std.testing.expect(duration > 0);
    }
    try expect_equal(null, pccl_kernel_name(names.len));
    for ([_]usize{ 0, 1, count_max + count }) |wrong|
        try expect_equal(0, pccl_kernel_memory(wrong));
    const bad = Status.invalid_argument;
    try expect_equal(bad, pccl_kernel_run("none", 1, memory.ptr, count, 1, &duration));
    try expect_equal(bad, pccl_kernel_run(name, 3, memory.ptr, count, 1, &duration));
    try expect_equal(bad, pccl_kernel_run(name, 1, memory.ptr, 7, 1, &duration));
    try expect_equal(bad, pccl_kernel_run(name, 1, null, count, 1, &duration));
}
