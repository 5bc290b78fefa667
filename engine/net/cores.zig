//! cores: how many cores this process may use, and how many all processes may. Nothing here chooses
//! threads; workers.zig does.

const std = @import("std");
const builtin = @import("builtin");
const c = std.c;

/// By its affinity, and by the quota of its control group (version 2), as a container has one. At
/// least 1.
pub fn usable() u32 {
    return within_quota(std.Thread.getCpuCount() catch 1); // on Linux those of the affinity
}

/// For all processes of this machine, or of this container: an affinity may differ in each. The
/// libraries of C do not agree on this number.
pub fn of_machine() u32 {
    if (!on_linux) return usable();
    const online = listed("/sys/devices/system/cpu/online") orelse return usable();
    return within_quota(@min(online, listed("/sys/fs/cgroup/cpuset.cpus.effective") orelse online));
}

/// How many a list such as "0-3,8" has; null: there is none.
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

const on_linux = builtin.os.tag == .linux;

fn within_quota(all: usize) u32 {
    const granted = if (on_linux) quota("/sys/fs/cgroup/cpu.max") else no_quota;
    return @intCast(std.math.clamp(@min(all, granted), 1, std.math.maxInt(u32)));
}

const no_quota = std.math.maxInt(usize);

/// A part of a core counts as one. Inside of a container the file is that of its own group.
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

/// Microseconds of all cores in a period, and the period: "150000 100000"; "max 100000" is no
/// limit.
fn parse_quota(text: []const u8) usize {
    var parts = std.mem.tokenizeAny(u8, text, " \n");
    const allowed = std.fmt.parseInt(usize, parts.next() orelse "", 10) catch return no_quota;
    const period = std.fmt.parseInt(usize, parts.next() orelse "", 10) catch return no_quota;
    return std.math.divCeil(usize, allowed, period) catch no_quota;
}

test "cores are those of the affinity and of the quota" {
    try std.testing.expect(usable() >= 1);
    try std.testing.expect(usable() <= try std.Thread.getCpuCount());
    try std.testing.expect(usable() <= of_machine());
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
