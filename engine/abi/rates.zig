//! rates: the text by which people say how fast a peer may send, "100mbit,eu-1=20mbit": of options,
//! variables and command lines, in C and in Python. Read here and nowhere else. Which peers a name
//! means: session/session.zig.

const std = @import("std");
const base = @import("base");
const session = @import("session");
const status = @import("status.zig");
const text_file = @import("text.zig");
const limits = base.limits;
const Rates = session.Rates;

/// All names and their rates fit.
const text_bytes_max = limits.send_rates_max * (limits.label_bytes_max + 32);

pub const pccl_rate_parse = status.C(parse).call;

fn parse(text: ?[*:0]const u8, name: ?[*:0]const u8, rate: ?*u64) status.Error!void {
    const out = rate orelse return status.is_null("rate");
    const given = text orelse return status.is_null("text");
    const called = text_file.bounded(name orelse "the rate", limits.name_bytes_max) catch
        return status.fail(.invalid_argument, "the name of the rate is too long", .{});
    out.* = (try read(given, called)).all;
}

/// `called`: its name for the user.
pub fn read(given: [*:0]const u8, called: []const u8) status.Error!Rates {
    const whole = text_file.bounded(given, text_bytes_max) catch return status.fail(
        .invalid_argument,
        "{s} has more than {d} bytes",
        .{ called, text_bytes_max },
    );
    const text = std.mem.trim(u8, whole, " ");
    var rates: Rates = .{};
    var items = std.mem.splitScalar(u8, text, ',');
    while (items.next()) |part| {
        const item = std.mem.trim(u8, part, " ");
        if (item.len == 0 and text.len > 0) return status.fail(
            .invalid_argument,
            "{s} has no rate before or after one of its commas: \"{s}\"",
            .{ called, text },
        );
        try read_item(&rates, item, called);
    }
    return rates;
}

/// "100mbit" or "eu-1=20mbit"; a label may have "=" in it, a rate has none.
fn read_item(rates: *Rates, item: []const u8, called: []const u8) status.Error!void {
    const equals = std.mem.lastIndexOfScalar(u8, item, '=');
    const rate_text = std.mem.trim(u8, if (equals) |at| item[at + 1 ..] else item, " ");
    const rate = rate_of(rate_text) orelse return status.fail(
        .invalid_argument,
        "{s} must be from 8kbit to 10tbit per second, such as \"200mbit\", \"25MB\", " ++
            "\"1.5gbit\" or a number of bytes, with \"eu-1=20mbit\" behind a comma for the peer " ++
            "of that label, not \"{s}\"; leave it out for no limit",
        .{ called, item },
    );
    const at = equals orelse {
        if (rates.all != 0) return status.fail(
            .invalid_argument,
            "{s} has two rates for all peers together; the second is \"{s}\"",
            .{ called, item },
        );
        rates.all = rate;
        return;
    };
    const name = std.mem.trim(u8, item[0..at], " ");
    const label = if (name.len == 0) null else base.Label.read(name);
    const single: Rates.Single = .{ .rate = rate, .name = label orelse return status.fail(
        .invalid_argument,
        "{s} names a peer by \"{s}\", which is no label: it must have 1 to {d} bytes that can " ++
            "be shown",
        .{ called, name, limits.label_bytes_max },
    ) };
    if (!rates.add(single)) return status.fail(
        .invalid_argument,
        "{s} has rates for more than {d} peers",
        .{ called, limits.send_rates_max },
    );
}

/// Bytes per second; null: it is none, or out of range.
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

/// A b alone may be bits or bytes, so bits are written out.
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
    const rates = try read(" 100mbit, eu-1 = 20mbit,a=b*=1MB", "send_rate");
    try std.testing.expectEqual(12_500_000, rates.all);
    try std.testing.expectEqual(2, rates.count);
    for (rates.slice(), [_]struct { []const u8, u64 }{
        .{ "eu-1", 2_500_000 },
        .{ "a=b*", 1_000_000 },
    }) |item, wanted| {
        try std.testing.expectEqualStrings(wanted[0], item.name.slice());
        try std.testing.expectEqual(wanted[1], item.rate);
    }
    try std.testing.expectEqual(0, (try read("eu-1=20mbit", "send_rate")).all);
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
        const got = status.code(if (read(case[0], "send_rate")) |_| {} else |err| err);
        try std.testing.expectEqual(.invalid_argument, got);
        const why = std.mem.span(status.pccl_last_error());
        try std.testing.expect(std.mem.startsWith(u8, why, "send_rate "));
        try std.testing.expect(std.mem.indexOf(u8, why, case[1]) != null);
    }
}
