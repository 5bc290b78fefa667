//! argument: the arguments of callers in C, checked, as values of the engine: structs that begin
//! with their size, strings, numbers that stand for words, the label of a peer, and rates. No
//! string is read beyond its limit, and a sentence says which argument is wrong.

const std = @import("std");
const assert = std.debug.assert;
const base = @import("base");
const session = @import("session");
const status = @import("status.zig");
const limits = base.limits;
const Rates = session.Rates;

// ---- structs, which begin with their size

// Callers and library may be of different versions, and fields are only ever appended. A shorter
// struct of an old caller is filled up with defaults. A longer struct of a new caller is fine as
// long as the fields that this library does not know are zero.

/// No struct of the header will ever be larger: a struct with a larger size is not initialised.
const size_max = 4096;

/// Reads the options of a caller; null stands for all defaults, which are zeros.
pub fn sized(comptime T: type, comptime name: []const u8, from: ?*const T) status.Error!T {
    comptime assert(std.mem.eql(u8, std.meta.fields(T)[0].name, "size"));
    var value = std.mem.zeroes(T);
    value.size = @sizeOf(T);
    const pointer = from orelse return value;
    const bytes: [*]const u8 = @ptrCast(pointer);
    const size = try size_of(T, name, bytes);
    const known = @min(size, @sizeOf(T));
    @memcpy(std.mem.asBytes(&value)[0..known], bytes[0..known]);
    for (bytes[known..size]) |byte| if (byte != 0) return bad_size(name);
    value.size = @sizeOf(T);
    return value;
}

/// Writes a result into a caller's struct, as far as the caller's version of the struct goes.
pub fn write(comptime T: type, comptime name: []const u8, to: *T, value: T) status.Error!void {
    const bytes: [*]u8 = @ptrCast(to);
    const size = try size_of(T, name, bytes);
    const known = @min(size, @sizeOf(T));
    @memcpy(bytes[@sizeOf(usize)..known], std.mem.asBytes(&value)[@sizeOf(usize)..known]);
    @memset(bytes[known..size], 0);
}

/// Refuses options whose reserved field is set: `kind` is their type, without pccl_ and _t.
pub fn check_reserved(value: u32, comptime kind: []const u8) status.Error!void {
    if (value == 0) return;
    comptime var upper: [kind.len]u8 = undefined;
    _ = comptime std.ascii.upperString(&upper, kind);
    const init = comptime "PCCL_" ++ upper ++ "_INIT";
    const format = "the reserved field of pccl_" ++ kind ++ "_t is {d}: begin with " ++ init;
    return status.bad_argument(format, .{value});
}

/// Checks the size of an output struct, before the call makes the result for it.
pub fn check_size(comptime T: type, comptime name: []const u8, to: *const T) status.Error!void {
    _ = try size_of(T, name, @ptrCast(to));
}

fn size_of(comptime T: type, comptime name: []const u8, bytes: [*]const u8) status.Error!usize {
    const size = std.mem.readInt(usize, bytes[0..@sizeOf(usize)], .native);
    return if (plausible(T, size)) size else bad_size(name);
}

/// Whether some version of the struct can have this size: each is a multiple of the alignment.
fn plausible(comptime T: type, size: usize) bool {
    return size >= @sizeOf(usize) and size <= size_max and size % @alignOf(T) == 0;
}

/// The sentence about a size that cannot be, or about a field that a caller of a later version has
/// set and this version does not know.
fn bad_size(comptime name: []const u8) status.Error {
    return status.bad_argument("the field `size` of the " ++ name ++ " is not the " ++
        "size of any version of it, or something is set in it that this version of the library " ++
        "does not know; initialise it with the _INIT macro of pccl.h", .{});
}

// ---- strings

/// Returns the string at `text`. error.TooLong: no zero ends it within bytes_max + 1 bytes.
pub fn bounded(text: [*:0]const u8, bytes_max: usize) error{TooLong}![]const u8 {
    for (0..bytes_max + 1) |length| if (text[length] == 0) return text[0..length];
    return error.TooLong;
}

/// Copies a text with a terminating zero; false if it does not fit.
pub fn copy(text: []const u8, to: [*]u8, capacity: usize) bool {
    if (text.len >= capacity) return false;
    @memcpy(to[0..text.len], text);
    to[text.len] = 0;
    return true;
}

/// Reads an address among options; null if it is left out.
pub fn optional_address(
    text: ?[*:0]const u8,
    comptime name: []const u8,
) status.Error!?[]const u8 {
    return bounded(text orelse return null, limits.address_bytes_max) catch status.bad_argument(
        name ++ " has more than {d} bytes; it must be host:port",
        .{limits.address_bytes_max},
    );
}

/// Reads the path of a directory or file among options; it ends with a zero, as the system wants.
pub fn optional_path(
    text: ?[*:0]const u8,
    comptime name: []const u8,
) status.Error!?[:0]const u8 {
    const path = bounded(text orelse return null, limits.path_bytes_max) catch
        return status.bad_argument(name ++ " has more than {d} bytes", .{limits.path_bytes_max});
    if (path.len == 0) return status.bad_argument(name ++ " is empty", .{});
    return path.ptr[0..path.len :0];
}

/// The sentence about a variable of the environment that has a wrong value.
pub fn bad_variable(comptime name: [:0]const u8, comptime wanted: []const u8) status.Error {
    const value = std.mem.span(std.c.getenv(name).?);
    return status.bad_argument(name ++ " is \"{s}\"; it must be " ++ wanted, .{value});
}

// ---- numbers for words of the header

/// The type pccl_probe_t of pccl.h.
pub const Probe = enum(c_uint) { auto = 0, off = 1 };

/// The type pccl_plans_t of pccl.h.
pub const Plans = enum(c_uint) { auto = 0, fixed = 1 };

/// The word that a number stands for. `kind`: the type of the header that lists the words.
pub fn word(
    comptime E: type,
    value: c_uint,
    comptime name: []const u8,
    comptime kind: []const u8,
) status.Error!E {
    return std.enums.fromInt(E, value) orelse status.bad_argument(
        name ++ " {d} is unknown; see " ++ kind,
        .{value},
    );
}

// ---- the label of a peer

/// The name of a peer for people: by default its host and process.
pub fn peer_label(given: ?[*:0]const u8) status.Error!base.Label {
    const told = bounded(given orelse return of_process(), limits.label_bytes_max) catch
        return status.bad_argument("the label has more than {d} bytes", .{limits.label_bytes_max});
    if (told.len == 0) return of_process();
    return base.Label.read(told) orelse status.bad_argument(
        "the label, \"{s}\", cannot be shown: it must be UTF-8 without control characters, line " ++
            "ends and marks that turn the writing",
        .{told},
    );
}

/// The label of this process: "node7:4242".
fn of_process() base.Label {
    var host: [host_bytes_max]u8 = @splat(0);
    // A host name that does not fit is cut, and the last byte is zero all the same.
    const is_known = std.c.gethostname(&host, host.len - 1) == 0;
    const name = if (is_known) std.mem.sliceTo(&host, 0) else "?";
    var whole: [host_bytes_max + 16]u8 = undefined;
    const pid = std.c.getpid();
    const told = std.fmt.bufPrint(&whole, "{s}:{d}", .{ name, pid }) catch unreachable;
    return .shown(told);
}

/// No host name needs more bytes than this, with its terminating zero.
const host_bytes_max = 256;

// ---- rates: "100mbit,eu-1=20mbit", in C and in Python, read only here (session/session.zig)

/// The most bytes of a text with rates: all names and their rates fit.
const text_bytes_max = limits.send_rates_max * (limits.label_bytes_max + 32);

pub const pccl_rate_parse = status.C(parse).call;

fn parse(text: ?[*:0]const u8, name: ?[*:0]const u8, rate: ?*u64) status.Error!void {
    const out = rate orelse return status.is_null("rate");
    const given = text orelse return status.is_null("text");
    const called = bounded(name orelse "the rate", limits.name_bytes_max) catch
        return status.bad_argument("the name of the rate is too long", .{});
    out.* = (try send_rates(given, called)).all;
}

/// Reads a text with rates, which sentences call `called`.
pub fn send_rates(given: [*:0]const u8, called: []const u8) status.Error!Rates {
    const whole = bounded(given, text_bytes_max) catch return status.bad_argument(
        "{s} has more than {d} bytes",
        .{ called, text_bytes_max },
    );
    const text = std.mem.trim(u8, whole, " ");
    var rates: Rates = .{};
    var items = std.mem.splitScalar(u8, text, ',');
    while (items.next()) |part| {
        const item = std.mem.trim(u8, part, " ");
        if (item.len == 0 and text.len > 0) return status.bad_argument(
            "{s} has no rate before or after one of its commas: \"{s}\"",
            .{ called, text },
        );
        try read_item(&rates, item, called);
    }
    return rates;
}

/// Reads one item, "100mbit" or "eu-1=20mbit". A label may have "=" in it, a rate has none.
fn read_item(rates: *Rates, item: []const u8, called: []const u8) status.Error!void {
    const equals = std.mem.lastIndexOfScalar(u8, item, '=');
    const rate_text = std.mem.trim(u8, if (equals) |at| item[at + 1 ..] else item, " ");
    const rate = rate_of(rate_text) orelse return status.bad_argument(
        "{s} must be from 8kbit to 10tbit per second, such as \"200mbit\", \"25MB\", " ++
            "\"1.5gbit\" or a number of bytes, with \"eu-1=20mbit\" behind a comma for the peer " ++
            "of that label, not \"{s}\"; leave it out for no limit",
        .{ called, item },
    );
    const at = equals orelse {
        if (rates.all != 0) return status.bad_argument(
            "{s} has two rates for all peers together; the second is \"{s}\"",
            .{ called, item },
        );
        rates.all = rate;
        return;
    };
    const name = std.mem.trim(u8, item[0..at], " ");
    const label = if (name.len == 0) null else base.Label.read(name);
    const single: Rates.Single = .{ .rate = rate, .name = label orelse return status.bad_argument(
        "{s} names a peer by \"{s}\", which is no label: it must have 1 to {d} bytes that can " ++
            "be shown",
        .{ called, name, limits.label_bytes_max },
    ) };
    if (!rates.add(single)) return status.bad_argument(
        "{s} has rates for more than {d} peers",
        .{ called, limits.send_rates_max },
    );
}

/// The rate of a text in bytes per second; null if the text is no rate, or a rate out of range.
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
    if (found < limits.send_rate_min or found > limits.send_rate_max) return null;
    return @intFromFloat(found);
}

/// The units of rates. A b alone may mean bits or bytes, so "bit" is written out.
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

// ---- tests

const Sample = extern struct { size: usize, a: u64, b: u32, c: u32 };
const Longer = extern struct { sample: Sample, d: u64 };

test "old and new callers are read, and nonsense is refused" {
    const full: Sample = .{ .size = @sizeOf(Sample), .a = 1, .b = 2, .c = 3 };
    try std.testing.expectEqual(full, try sized(Sample, "sample", &full));
    try std.testing.expectEqual(0, (try sized(Sample, "sample", null)).a);
    var old = full;
    old.size = 16;
    const filled = try sized(Sample, "sample", &old);
    try std.testing.expect(filled.a == 1 and filled.b == 0 and filled.c == 0);
    var new: Longer = .{ .sample = full, .d = 0 };
    new.sample.size = @sizeOf(Longer);
    try std.testing.expectEqual(full, try sized(Sample, "sample", &new.sample));
    new.d = 9;
    try std.testing.expectError(error.Failed, sized(Sample, "sample", &new.sample));
    for ([_]usize{ 0, 4, 17, 1 << 20, std.math.maxInt(usize) }) |size| {
        old.size = size;
        try std.testing.expectError(error.Failed, sized(Sample, "sample", &old));
    }
}

test "a result is written as far as the caller's struct goes" {
    var out: Sample = .{ .size = 16, .a = 0, .b = 77, .c = 77 };
    try write(Sample, "sample", &out, .{ .size = 0, .a = 5, .b = 6, .c = 7 });
    try std.testing.expectEqual(Sample{ .size = 16, .a = 5, .b = 77, .c = 77 }, out);
    var longer: Longer = .{ .sample = out, .d = 9 };
    longer.sample.size = @sizeOf(Longer);
    try write(Sample, "sample", &longer.sample, .{ .size = 0, .a = 5, .b = 6, .c = 7 });
    try std.testing.expect(longer.sample.c == 7 and longer.d == 0);
    out.size = 0;
    try std.testing.expectError(error.Failed, write(Sample, "sample", &out, out));
    try std.testing.expectError(error.Failed, check_size(Sample, "sample", &out));
    out.size = 1 << 20;
    try std.testing.expectError(error.Failed, check_size(Sample, "sample", &out));
}

test "a string that does not end is not followed" {
    try std.testing.expectEqualStrings("abc", try bounded("abc", 3));
    try std.testing.expectError(error.TooLong, bounded("abcd", 3));
    var out: [4]u8 = undefined;
    try std.testing.expect(copy("abc", &out, out.len));
    try std.testing.expect(!copy("abcd", &out, out.len));
}

test "a path may be left out, and is not empty" {
    try std.testing.expectEqual(null, try optional_path(null, "dir"));
    try std.testing.expectEqualStrings("/tmp", (try optional_path("/tmp", "dir")).?);
    const empty = status.code(if (optional_path("", "dir")) |_| {} else |err| err);
    try std.testing.expectEqual(.invalid_argument, empty);
}

test "a peer that is given no label has that of its host and process" {
    const expect = std.testing.expect;
    const own = try peer_label(null);
    var pid: [16]u8 = undefined;
    const end = try std.fmt.bufPrint(&pid, ":{d}", .{std.c.getpid()});
    try expect(own.length > end.len and std.mem.endsWith(u8, own.slice(), end));
    try std.testing.expectEqualStrings(own.slice(), (try peer_label("")).slice());
    try std.testing.expectEqualStrings("mine", (try peer_label("mine")).slice());
    for ([_][*:0]const u8{ "x" ** (limits.label_bytes_max + 1), "a\nb" }) |wrong|
        try expect(status.code(if (peer_label(wrong)) |_| {} else |err| err) == .invalid_argument);
}

test "rates have units" {
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
        .{ "1.2.3mbit", null },
        .{ "", null },
        .{ "9" ** 400, null },
    }) |case| try std.testing.expectEqual(case[1], rate_of(case[0]));
}

test "a rate for all peers, and rates of single ones" {
    const rates = try send_rates(" 100mbit, eu-1 = 20mbit,a=b*=1MB", "send_rate");
    try std.testing.expectEqual(12_500_000, rates.all);
    try std.testing.expectEqual(2, rates.count);
    for (rates.slice(), [_]struct { []const u8, u64 }{
        .{ "eu-1", 2_500_000 },
        .{ "a=b*", 1_000_000 },
    }) |item, wanted| {
        try std.testing.expectEqualStrings(wanted[0], item.name.slice());
        try std.testing.expectEqual(wanted[1], item.rate);
    }
    try std.testing.expectEqual(0, (try send_rates("eu-1=20mbit", "send_rate")).all);
}

test "a text that is none is refused, by its name and the part that is wrong" {
    const Case = struct { [*:0]const u8, []const u8 };
    for ([_]Case{
        .{ "", "8kbit to 10tbit" },
        .{ " ", "8kbit to 10tbit" },
        .{ "100mbit,", "one of its commas: \"100mbit,\"" },
        .{ "100mbit,,eu-1=20mbit", "one of its commas" },
        .{ "100mbit,eu-1=fast", "not \"eu-1=fast\"" },
        .{ "100mbit,eu-1=", "not \"eu-1=\"" },
        .{ "100mbit,20mbit", "the second is \"20mbit\"" },
        .{ "=20mbit", "by \"\"" },
        .{ "y" ** 81 ++ "=20mbit", "1 to 80 bytes" },
        .{ "x=8kbit," ** limits.send_rates_max ++ "x=8kbit", "more than 32 peers" },
        .{ "1" ** (text_bytes_max + 1), "bytes" },
    }) |case| {
        const got = status.code(if (send_rates(case[0], "send_rate")) |_| {} else |err| err);
        try std.testing.expectEqual(.invalid_argument, got);
        const why = std.mem.span(status.pccl_last_error());
        try std.testing.expect(std.mem.startsWith(u8, why, "send_rate "));
        try std.testing.expect(std.mem.indexOf(u8, why, case[1]) != null);
    }
}
