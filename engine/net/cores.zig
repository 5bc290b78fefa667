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

/// For all processes of this machine, or of this container: an affinity may differ in each.
pub fn of_machine() u32 {
    if (!on_linux) return usable();
    const online = sysconf(nprocessors_online);
    return within_quota(if (online > 0) @intCast(online) else 1);
}

const on_linux = builtin.os.tag == .linux;
extern "c" fn sysconf(name: c_int) c_long;
const nprocessors_online = 84; // _SC_NPROCESSORS_ONLN

fn within_quota(all: usize) u32 {
    const granted = if (on_linux) quota("/sys/fs/cgroup/cpu.max") else no_quota;
    return @intCast(std.math.clamp(@min(all, granted), 1, std.math.maxInt(u32)));
}

const no_quota = std.math.maxInt(usize);

/// A part of a core counts as one. Inside of a container the file is that of its own group.
fn quota(path: [*:0]const u8) usize {
    const fd = c.open(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true });
    if (fd < 0) return no_quota;
    defer _ = c.close(fd);
    var bytes: [64]u8 = undefined;
    const count = c.read(fd, &bytes, bytes.len);
    return if (count > 0) parse_quota(bytes[0..@intCast(count)]) else no_quota;
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
