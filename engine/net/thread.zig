//! thread: how the threads of the library start, and how many cores there are for them. A thread
//! has a name, no signals, and the floating-point mode that the kernels promise
//! (docs/internals/PROMISE.md, P5). The work of the threads: peer_engine.zig,
//! coordinator_engine.zig, worker.zig, dial.zig.

const std = @import("std");
const builtin = @import("builtin");
const kernels = @import("kernels");
const c = std.c;

const on_linux = builtin.os.tag == .linux;

/// The size of a stack: a kernel with vectors of 64 bytes and a result on the stack fits many
/// times.
const stack_bytes = 1024 * 1024;

pub const Error = error{ThreadLimit};

/// Starts `run(context)`. Every signal is blocked in the new thread: handlers belong to the host
/// program.
pub fn spawn(
    comptime name: [:0]const u8,
    context: anytype,
    comptime run: fn (@TypeOf(context)) void,
) Error!std.Thread {
    comptime std.debug.assert(name.len <= 15); // Linux keeps 15 bytes
    const Start = struct {
        fn start(argument: @TypeOf(context)) void {
            set_name(name);
            _ = kernels.float_mode.standard();
            run(argument);
        }
    };
    var all: c.sigset_t = undefined;
    var before: c.sigset_t = undefined;
    _ = c.sigfillset(&all);
    // A new thread inherits the mask of the thread that starts it.
    _ = c.pthread_sigmask(c.SIG.SETMASK, &all, &before);
    defer {
        var unused: c.sigset_t = undefined;
        _ = c.pthread_sigmask(c.SIG.SETMASK, &before, &unused);
    }
    return std.Thread.spawn(.{ .stack_size = stack_bytes }, Start.start, .{context}) catch
        error.ThreadLimit;
}

fn set_name(comptime name: [:0]const u8) void {
    if (comptime builtin.os.tag.isDarwin()) {
        _ = c.pthread_setname_np(name);
    } else if (on_linux) {
        _ = c.pthread_setname_np(c.pthread_self(), name);
    }
}

// ---- cores

/// How many cores this process may use, by its affinity and by the quota of its control group
/// (version 2), which a container has; at least 1.
pub fn cores_usable() u32 {
    return within_quota(std.Thread.getCpuCount() catch 1); // on Linux the cores of the affinity
}

/// How many cores all processes of this machine, or of this container, may use together. Each
/// process may have an affinity of its own, so affinities do not count here. C libraries do not
/// agree on the number of a machine's cores.
pub fn cores_of_machine() u32 {
    if (!on_linux) return cores_usable();
    const online = listed("/sys/devices/system/cpu/online") orelse return cores_usable();
    return within_quota(@min(online, listed("/sys/fs/cgroup/cpuset.cpus.effective") orelse online));
}

/// The number of cores that a file with a list such as "0-3,8" names; null: the file has no list.
fn listed(path: [*:0]const u8) ?usize {
    var bytes: [1024]u8 = undefined;
    const text = std.mem.trim(u8, read(path, &bytes) orelse return null, " \n");
    return if (text.len > 0) parse_list(text) else null;
}

fn parse_list(text: []const u8) ?usize {
    var count: usize = 0;
    var parts = std.mem.splitScalar(u8, text, ',');
    while (parts.next()) |part| {
        const dash = std.mem.indexOfScalar(u8, part, '-');
        const first = std.fmt.parseInt(u32, part[0 .. dash orelse part.len], 10) catch return null;
        const last = if (dash) |at| std.fmt.parseInt(u32, part[at + 1 ..], 10) catch return null //
        else first;
        if (last < first) return null;
        count +|= @as(usize, last - first) + 1;
    }
    return count;
}

fn within_quota(all: usize) u32 {
    const granted = if (on_linux) quota("/sys/fs/cgroup/cpu.max") else no_quota;
    return @intCast(std.math.clamp(@min(all, granted), 1, std.math.maxInt(u32)));
}

const no_quota = std.math.maxInt(usize);

/// The number of cores that a quota grants; a part of a core counts as one. Inside of a container
/// the file is that of the container's own group.
fn quota(path: [*:0]const u8) usize {
    var bytes: [64]u8 = undefined;
    return parse_quota(read(path, &bytes) orelse return no_quota);
}

fn read(path: [*:0]const u8, bytes: []u8) ?[]const u8 {
    const fd = c.open(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true });
    if (fd < 0) return null;
    defer _ = c.close(fd);
    const count = c.read(fd, bytes.ptr, bytes.len);
    return if (count > 0) bytes[0..@intCast(count)] else null;
}

/// The cores that the text of a quota grants. The text "150000 100000" has the microseconds of all
/// cores in a period, and the period; "max 100000" is no limit.
fn parse_quota(text: []const u8) usize {
    var parts = std.mem.tokenizeAny(u8, text, " \n");
    const allowed = std.fmt.parseInt(usize, parts.next() orelse "", 10) catch return no_quota;
    const period = std.fmt.parseInt(usize, parts.next() orelse "", 10) catch return no_quota;
    return std.math.divCeil(usize, allowed, period) catch no_quota;
}

// ---- tests

test "a thread of the library has every signal blocked and rounds as promised" {
    const Seen = struct {
        blocked: bool = false,
        mode: u64 = 0,

        fn run(seen: *@This()) void {
            var none: c.sigset_t = undefined;
            var mask: c.sigset_t = undefined;
            _ = c.sigemptyset(&none);
            _ = c.pthread_sigmask(c.SIG.BLOCK, &none, &mask);
            seen.mode = kernels.float_mode.read();
            seen.blocked = c.sigismember(&mask, .INT) == 1 and c.sigismember(&mask, .TERM) == 1;
        }
    };
    var seen: Seen = .{};
    const standard = kernels.float_mode.standard();
    defer kernels.float_mode.restore(standard);
    const ours = kernels.float_mode.read();
    // A thread inherits the mode of the thread that starts it: here one that flushes denormals.
    const flush_to_zero = if (builtin.cpu.arch == .x86_64) 1 << 15 else 1 << 24;
    kernels.float_mode.write(ours | flush_to_zero);
    const thread = try spawn("pccl-test", &seen, Seen.run);
    thread.join();
    try std.testing.expect(seen.blocked);
    try std.testing.expectEqual(ours, seen.mode);
}

test "cores are those of the affinity and of the quota" {
    try std.testing.expect(cores_usable() >= 1);
    try std.testing.expect(cores_usable() <= try std.Thread.getCpuCount());
    try std.testing.expect(cores_usable() <= cores_of_machine());
    try std.testing.expectEqual(2, parse_quota("150000 100000\n"));
    try std.testing.expectEqual(1, parse_quota("50000 100000\n"));
    for ([_][]const u8{ "max 100000\n", "", "x", "1", "1 0" }) |text| {
        try std.testing.expectEqual(no_quota, parse_quota(text));
    }
}

test "a list of cores is counted" {
    try std.testing.expectEqual(1, parse_list("0"));
    try std.testing.expectEqual(5, parse_list("0-3,8"));
    for ([_][]const u8{ "", "x", "3-1", "0-", "0,,1" }) |text|
        try std.testing.expectEqual(null, parse_list(text));
}
