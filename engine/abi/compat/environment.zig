//! environment: the variables of docs/ENVIRONMENT.md as options of include/pccl.h, for programs of
//! PCCL 1.0, which have no arguments for them. pccl_py reads the same ones by itself; functions of
//! include/pccl.h read none.

const std = @import("std");
const base = @import("base");
const net = @import("net");
const argument = @import("../argument.zig");
const words = @import("words.zig");

/// With the terminating zero; a label that is longer is refused where it is used.
pub const label_bytes_max = 512;

/// Options of that type in which each field is what its variable says: `prefix` and its name.
pub fn options(comptime T: type, comptime prefix: []const u8) words.Error!T {
    @setEvalBranchQuota(10_000);
    var made = std.mem.zeroes(T);
    made.size = @sizeOf(T);
    inline for (@typeInfo(T).@"struct".fields) |field| {
        const is_rates = comptime std.mem.eql(u8, field.name, "send_rates");
        // One variable says rates in words.
        const is_option = comptime !std.mem.eql(u8, field.name, "reserved") and
            !std.mem.eql(u8, field.name, "send_rate");
        const variable = comptime prefix ++ name_of(field.name);
        if (is_option) if (text_of(variable)) |given| switch (field.type) {
            ?[*:0]const u8 => {
                if (is_rates) try check_rate(variable, given);
                @field(made, field.name) = given;
            },
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
    if (comptime std.mem.eql(u8, field, "congestion"))
        return word(net.tcp.Congestion, "auto, system, bbr or cubic", variable, given);
    if (comptime std.mem.eql(u8, field, "probe"))
        return word(argument.Probe, "auto or off", variable, given);
    const is_auto = comptime std.mem.eql(u8, field, "lanes_per_link");
    if (is_auto and std.mem.eql(u8, given, "auto")) return 0;
    return number(T, variable, given);
}

fn word(
    comptime E: type,
    comptime all: []const u8,
    comptime variable: []const u8,
    given: []const u8,
) words.Error!u32 {
    if (std.meta.stringToEnum(E, given)) |known| return @intFromEnum(known);
    const format = variable ++ " must be " ++ all ++ ", not \"{s}\"";
    return words.refuse(error.InvalidArgument, format, .{given});
}

/// It is read here as well as by `pccl_comm_create`, so that the variable is named.
fn check_rate(comptime variable: [:0]const u8, given: [*:0]const u8) words.Error!void {
    var rate: u64 = 0;
    return words.check(argument.pccl_rate_parse(given, variable, &rate), error.InternalError);
}

/// An empty value counts as unset.
pub fn text_of(comptime variable: [:0]const u8) ?[*:0]const u8 {
    const given = std.c.getenv(variable) orelse return null;
    return if (given[0] == 0) null else given;
}

/// "RECONNECT_TIMEOUT" for "reconnect_timeout_ns"
fn name_of(comptime field: []const u8) [:0]const u8 {
    if (comptime std.mem.eql(u8, field, "memory_bytes")) return "MEMORY";
    if (comptime std.mem.eql(u8, field, "state_dir")) return "STATE";
    if (comptime std.mem.eql(u8, field, "send_rates")) return "SEND_RATE";
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
    try expect(1, try numeric(u32, "probe", "PCCL_X", "off"));
    try check_rate("PCCL_X", "100mbit,eu-1=20mbit");
    try std.testing.expectError(error.InvalidArgument, check_rate("PCCL_X", "fast"));
    const reno = numeric(u32, "congestion", "PCCL_X", "reno");
    try std.testing.expectError(error.InvalidArgument, reno);
    try std.testing.expectEqualStrings("RECONNECT_TIMEOUT", name_of("reconnect_timeout_ns"));
    try std.testing.expectEqualStrings("MEMORY", name_of("memory_bytes"));
}
