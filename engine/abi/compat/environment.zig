//! environment: the variables of docs/ENVIRONMENT.md as options of include/pccl.h, for programs of
//! PCCL 1.0, which have no arguments for them. pccl_py reads the same ones by itself; functions of
//! include/pccl.h read none. Rates: pccl_py/network.py.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const words = @import("words.zig");

/// With the terminating zero; a label that is longer is refused where it is used.
pub const label_bytes_max = 512;

/// Options of that type in which each field is what its variable says: `prefix` and its name.
pub fn options(comptime T: type, comptime prefix: []const u8) words.Error!T {
    @setEvalBranchQuota(10_000);
    var made = std.mem.zeroes(T);
    made.size = @sizeOf(T);
    inline for (@typeInfo(T).@"struct".fields) |field| {
        const is_option = comptime !std.mem.eql(u8, field.name, "reserved");
        const variable = comptime prefix ++ name_of(field.name);
        if (is_option) if (text_of(variable)) |given| switch (field.type) {
            ?[*:0]const u8 => @field(made, field.name) = given,
            c_uint, u32, u64 => @field(made, field.name) =
                try numeric(field.type, field.name, variable, std.mem.span(given)),
            else => {},
        };
    }
    return made;
}

fn numeric(
    comptime T: type,
    comptime field: []const u8,
    comptime variable: []const u8,
    given: []const u8,
) words.Error!T {
    if (comptime std.mem.endsWith(u8, field, "_ns")) return nanoseconds(variable, given);
    if (comptime std.mem.eql(u8, field, "send_rate")) return rate(variable, given);
    if (comptime std.mem.eql(u8, field, "congestion")) return congestion(variable, given);
    const is_auto = comptime std.mem.eql(u8, field, "lanes_per_link");
    if (is_auto and std.mem.eql(u8, given, "auto")) return 0;
    return number(T, variable, given);
}

fn congestion(comptime variable: []const u8, given: []const u8) words.Error!u32 {
    if (std.meta.stringToEnum(net.Congestion, given)) |known| return @intFromEnum(known);
    const format = variable ++ " must be auto, system, bbr or cubic, not \"{s}\"";
    return words.refuse(error.InvalidArgument, format, .{given});
}

/// Bytes per second; `pccl_comm_create` knows the range, which 0 is not in.
fn rate(comptime variable: []const u8, given: []const u8) words.Error!u64 {
    if (rate_of(given)) |found| return found;
    const format = variable ++ " must be from 8kbit to 10tbit per second, such as 200mbit, " ++
        "25MB, 1.5gbit or a number of bytes, not \"{s}\"";
    return words.refuse(error.InvalidArgument, format, .{given});
}

fn rate_of(given: []const u8) ?u64 {
    const end = std.mem.indexOfNone(u8, given, "0123456789.") orelse given.len;
    if (end == 0 or given[0] == '.' or given[end - 1] == '.') return null;
    const amount = std.fmt.parseFloat(f64, given[0..end]) catch return null;
    const name = std.mem.trimStart(u8, given[end..], " ");
    const unit = for (units) |unit| {
        const is_bits = std.mem.endsWith(u8, unit.name, "bit");
        const same = if (is_bits) std.ascii.eqlIgnoreCase(unit.name, name) //
            else std.mem.eql(u8, unit.name, name);
        if (same) break unit;
    } else return null;
    const found = amount * unit.bytes;
    if (found < base.limits.send_rate_min or found > base.limits.send_rate_max) return null;
    return @intFromFloat(found);
}

const units = [_]struct { name: []const u8, bytes: f64 }{
    .{ .name = "", .bytes = 1 },
    .{ .name = "B", .bytes = 1 },
    .{ .name = "kB", .bytes = 1e3 },
    .{ .name = "MB", .bytes = 1e6 },
    .{ .name = "GB", .bytes = 1e9 },
    .{ .name = "KiB", .bytes = 1 << 10 },
    .{ .name = "MiB", .bytes = 1 << 20 },
    .{ .name = "GiB", .bytes = 1 << 30 },
    .{ .name = "bit", .bytes = 1e0 / 8.0 },
    .{ .name = "kbit", .bytes = 1e3 / 8.0 },
    .{ .name = "mbit", .bytes = 1e6 / 8.0 },
    .{ .name = "gbit", .bytes = 1e9 / 8.0 },
    .{ .name = "tbit", .bytes = 1e12 / 8.0 },
};

/// An empty value counts as unset.
pub fn text_of(comptime variable: [:0]const u8) ?[*:0]const u8 {
    const given = std.c.getenv(variable) orelse return null;
    return if (given[0] == 0) null else given;
}

/// "RECONNECT_TIMEOUT" for "reconnect_timeout_ns"
fn name_of(comptime field: []const u8) [:0]const u8 {
    if (comptime std.mem.eql(u8, field, "memory_bytes")) return "MEMORY";
    if (comptime std.mem.eql(u8, field, "state_dir")) return "STATE";
    const end = comptime if (std.mem.endsWith(u8, field, "_ns")) field.len - 3 else field.len;
    return comptime name: {
        var text: [end:0]u8 = undefined;
        for (&text, field[0..end]) |*to, from| to.* = std.ascii.toUpper(from);
        const upper = text;
        break :name &upper;
    };
}

fn number(comptime T: type, comptime variable: []const u8, given: []const u8) words.Error!T {
    const value = std.fmt.parseInt(T, given, 10) catch 0;
    if (value > 0) return value;
    const format = variable ++ " must be an integer from 1 on, not \"{s}\"";
    return words.refuse(error.InvalidArgument, format, .{given});
}

/// Seconds. A time of zero, which is for PCCL_RECONNECT_TIMEOUT alone, is the shortest one.
fn nanoseconds(comptime variable: []const u8, given: []const u8) words.Error!u64 {
    const seconds_max = 1e9;
    const may_be_zero = comptime std.mem.eql(u8, variable, "PCCL_RECONNECT_TIMEOUT");
    const seconds = std.fmt.parseFloat(f64, given) catch -1;
    const is_some = seconds > 0 or (may_be_zero and seconds == 0);
    if (is_some and seconds <= seconds_max)
        return @max(1, @as(u64, @intFromFloat(seconds * std.time.ns_per_s)));
    const format = variable ++ " must be a number of seconds above 0, not \"{s}\"";
    return words.refuse(error.InvalidArgument, format, .{given});
}

/// A label with the host in the place of %h, the process id in that of %p, and % in that of %%.
pub fn filled_in(pattern: [*:0]const u8, to: *[label_bytes_max:0]u8) [*:0]const u8 {
    var writer: std.Io.Writer = .fixed(to[0..label_bytes_max]);
    fill_in(std.mem.span(pattern), &writer) catch {}; // too long: cut, and refused where it is used
    to[writer.end] = 0;
    return to;
}

fn fill_in(pattern: []const u8, writer: *std.Io.Writer) std.Io.Writer.Error!void {
    var host: [256]u8 = @splat(0);
    _ = std.c.gethostname(&host, host.len - 1);
    var at: usize = 0;
    while (at < pattern.len) : (at += 1) {
        const is_place = pattern[at] == '%' and at + 1 < pattern.len;
        switch (if (is_place) pattern[at + 1] else 0) {
            'h' => try writer.writeAll(std.mem.sliceTo(&host, 0)),
            'p' => try writer.print("{d}", .{std.c.getpid()}),
            '%' => try writer.writeByte('%'),
            else => {
                try writer.writeByte(pattern[at]);
                continue;
            },
        }
        at += 1;
    }
}

test "places of a label are filled in, and one that is too long is cut" {
    var room: [label_bytes_max:0]u8 = undefined;
    var own: [32]u8 = undefined;
    const expected = try std.fmt.bufPrint(&own, "50% %x {d} #2%", .{std.c.getpid()});
    try std.testing.expectEqualStrings(expected, std.mem.span(filled_in("50%% %x %p #2%", &room)));
    try std.testing.expectEqual(label_bytes_max, std.mem.span(filled_in("y" ** 600, &room)).len);
}

test "numbers and times are read, and nonsense is refused by the name of its variable" {
    const expect = std.testing.expectEqual;
    try expect(7, try number(u32, "PCCL_X", "7"));
    try expect(1_500_000_000, try nanoseconds("PCCL_X", "1.5"));
    try expect(1, try nanoseconds("PCCL_RECONNECT_TIMEOUT", "0"));
    for ([_][]const u8{ "", "x", "-1", "0", "nan", "inf", "1e300" }) |bad| {
        try std.testing.expectError(error.InvalidArgument, nanoseconds("PCCL_X", bad));
        try std.testing.expectError(error.InvalidArgument, number(u32, "PCCL_X", bad));
    }
    try expect(2, try numeric(u32, "lanes_per_link", "PCCL_X", "2"));
    try expect(0, try numeric(u32, "lanes_per_link", "PCCL_X", "auto"));
    try expect(3, try numeric(u32, "congestion", "PCCL_X", "cubic"));
    const reno = numeric(u32, "congestion", "PCCL_X", "reno");
    try std.testing.expectError(error.InvalidArgument, reno);
    try std.testing.expectEqualStrings("RECONNECT_TIMEOUT", name_of("reconnect_timeout_ns"));
    try std.testing.expectEqualStrings("MEMORY", name_of("memory_bytes"));
}

test "rates have units, as in pccl_py" {
    const Case = struct { []const u8, ?u64 };
    for ([_]Case{
        .{ "200mbit", 25_000_000 },
        .{ "200 Mbit", 25_000_000 },
        .{ "1.5gbit", 187_500_000 },
        .{ "25MB", 25_000_000 },
        .{ "1MiB", 1 << 20 },
        .{ "1000", 1000 },
        .{ "8kbit", 1000 },
        .{ "10tbit", 1_250_000_000_000 },
        .{ "0", null },
        .{ "999", null },
        .{ "11tbit", null },
        .{ "-1mbit", null },
        .{ "fast", null },
        .{ "25mb", null },
        .{ "1.mbit", null },
        .{ "", null },
        .{ "9" ** 400, null },
    }) |case| try std.testing.expectEqual(case[1], rate_of(case[0]));
    try std.testing.expectError(error.InvalidArgument, rate("PCCL_X", "fast"));
}
