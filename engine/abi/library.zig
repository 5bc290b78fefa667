//! library: what a program may ask of the library itself: its versions, its CPU level, the sizes of
//! its dtypes, the lines of its log (net/log.zig), and how fast its kernels are, for `pccl bench
//! kernels` and bench/kernels.py. The clock and the checks are here; the kernels, and the loops
//! that they are compared with, are in kernels/measure.zig.

const std = @import("std");
const builtin = @import("builtin");
const base = @import("base");
const kernels = @import("kernels");
const net = @import("net");
const wire = @import("wire");
const status = @import("status.zig");
const measure = kernels.measure;
const Status = status.Status;

const major = 0;
const minor = 1;
const patch = 0;

pub fn pccl_version() callconv(.c) u32 {
    return major * 10000 + minor * 100 + patch;
}

pub fn pccl_version_string() callconv(.c) [*:0]const u8 {
    return std.fmt.comptimePrint("{d}.{d}.{d}", .{ major, minor, patch });
}

pub fn pccl_wire_version() callconv(.c) u32 {
    return wire.version;
}

pub fn pccl_cpu_level() callconv(.c) [*:0]const u8 {
    // A level of PCCL_CPU_LEVEL counts from the first question on; the first create reports a bad
    // level.
    choose_cpu_level() catch {};
    return kernels.level_name();
}

pub const LevelError = error{BadCpuLevel};

/// Chooses the CPU level that PCCL_CPU_LEVEL names, if it is set and not empty.
pub fn choose_cpu_level() LevelError!void {
    const wanted = std.mem.span(std.c.getenv("PCCL_CPU_LEVEL") orelse return);
    if (wanted.len > 0 and !kernels.force(wanted)) return error.BadCpuLevel;
}

/// Runs kernels on a thread of the caller: at the chosen level, in the standard float mode.
pub const KernelMode = struct {
    before: u64,

    pub fn begin() status.Error!KernelMode {
        choose_cpu_level() catch return status.bad_argument(
            "PCCL_CPU_LEVEL names no level that this CPU can run",
            .{},
        );
        return .{ .before = kernels.float_mode.standard() };
    }

    pub fn end(mode: KernelMode) void {
        kernels.float_mode.restore(mode.before);
    }
};

pub fn pccl_dtype_size(number: c_int) callconv(.c) usize {
    const dtype = std.enums.fromInt(base.DType, number) orelse return 0;
    return dtype.size();
}

// ---- the log

pub const pccl_log_next = status.C(next).call;

fn next(level: ?*c_int, message: ?[*]u8, capacity: usize) status.Error!void {
    const level_to = level orelse return status.is_null("level");
    const to = message orelse return status.is_null("message");
    if (capacity == 0) return status.bad_argument("capacity is 0", .{});
    var text: [net.log.line_bytes_max]u8 = undefined;
    const line = net.log.process.take(&text) orelse
        return status.fail(.timeout, "there is no log line", .{});
    to[base.text.show(line.text, to[0 .. capacity - 1]).len] = 0; // cut between letters
    level_to.* = @intFromEnum(line.level);
}

// ---- the speed of kernels

/// The values of pccl_kernel_what_t in include/pccl.h.
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

/// The most elements of a measurement: 4 GiB of f32.
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
    const case = measure.find(wanted) orelse return status.bad_argument(
        "there is no kernel \"{s}\"; pccl_kernel_name lists them",
        .{wanted},
    );
    const what = std.enums.fromInt(What, number) orelse return status.bad_argument(
        "what is {d}; it must be one of pccl_kernel_what_t",
        .{number},
    );
    const size = pccl_kernel_memory(count);
    if (size == 0) return status.bad_argument(
        "a kernel is measured with a multiple of {d} elements, {d} at most; count is {d}",
        .{ measure.granule, count_max, count },
    );
    const mode: KernelMode = try .begin();
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

/// The processor time of this thread in nanoseconds: other programs may use the machine too.
fn now() u64 {
    var ts: std.c.timespec = undefined;
    _ = std.c.clock_gettime(.THREAD_CPUTIME_ID, &ts);
    return @as(u64, @intCast(ts.sec)) * std.time.ns_per_s + @as(u64, @intCast(ts.nsec));
}

// ---- the stack

// `probe` is the function that the compiler calls at the beginning of a function with a frame of
// more than a page. `probe` touches each page of the frame, so that a stack that is too small ends
// in its guard page and not in the memory beyond. Only x86-64 needs `probe`, in a build with
// safety.
//
// Zig's compiler_rt has such a function as well, but brings along its memset, which goes byte by
// byte, and its memcpy; both would be used instead of those of libc. build.zig links without
// compiler_rt where this function suffices, so nothing brings the two back unnoticed.

comptime {
    if (builtin.cpu.arch == .x86_64 and builtin.os.tag == .linux and builtin.mode != .Debug) {
        @export(&probe, .{ .name = "__zig_probe_stack", .visibility = .hidden });
    }
}

/// Touches each page of a frame. The length of the frame is in rax, and every register stays as it
/// is. The caller of `probe` moves the stack pointer.
fn probe() callconv(.naked) void {
    @setRuntimeSafety(false);
    asm volatile (
        \\    push   %%rcx
        \\    mov    %%rax, %%rcx
        \\    cmp    $0x1000, %%rcx
        \\    jb     2f
        \\ 1:
        \\    sub    $0x1000, %%rsp
        \\    orl    $0, 16(%%rsp)
        \\    sub    $0x1000, %%rcx
        \\    cmp    $0x1000, %%rcx
        \\    ja     1b
        \\ 2:
        \\    sub    %%rcx, %%rsp
        \\    orl    $0, 16(%%rsp)
        \\    add    %%rax, %%rsp
        \\    pop    %%rcx
        \\    ret
    );
}

// ---- tests

test "sizes of dtypes, and of what is none" {
    try std.testing.expectEqual(4, pccl_dtype_size(0));
    try std.testing.expectEqual(8, pccl_dtype_size(11));
    for ([_]c_int{ 12, -1, 256, std.math.maxInt(c_int) }) |number| {
        try std.testing.expectEqual(0, pccl_dtype_size(number));
    }
    try std.testing.expectEqualStrings("0.1.0", std.mem.span(pccl_version_string()));
}

test "lines come out, cut to the room there is" {
    net.log.put(.warning, "peer 0a1b2c3d is gone");
    var level: c_int = -1;
    var text: [8]u8 = undefined;
    // Other tests of this process may have logged before.
    while (pccl_log_next(&level, &text, text.len) == .ok) {
        if (std.mem.eql(u8, std.mem.sliceTo(&text, 0), "peer 0a")) break;
    } else return error.TestUnexpectedResult;
    try std.testing.expectEqual(2, level);
    try std.testing.expectEqual(.invalid_argument, pccl_log_next(null, &text, text.len));
    try std.testing.expectEqual(.invalid_argument, pccl_log_next(&level, &text, 0));
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
