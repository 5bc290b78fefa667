//! rates: how fast the user lets this peer send: over all links together, and to single peers that
//! the user names. Plain data; engine/abi/rates.zig reads it from a text, and measure.zig keeps to
//! it.

const std = @import("std");
const base = @import("base");
const PeerId = base.PeerId;
const limits = base.limits;

pub const Rates = struct {
    /// Bytes per second over all links together; 0: no limit.
    all: u64 = 0,
    single: [limits.send_rates_max]Single = undefined,
    count: usize = 0,

    pub const Single = struct { name: base.Label, rate: u64 };

    pub fn slice(rates: *const Rates) []const Single {
        return rates.single[0..rates.count];
    }

    /// False: there are too many.
    pub fn add(rates: *Rates, item: Single) bool {
        if (rates.count == rates.single.len) return false;
        rates.single[rates.count] = item;
        rates.count += 1;
        return true;
    }

    /// Bytes per second to this peer, by the first name that is its; 0: no limit of its own.
    pub fn of(rates: *const Rates, id: PeerId, label: *const base.Label) u64 {
        for (rates.slice()) |*item|
            if (names(item.name.slice(), id, label.slice())) return item.rate;
        return 0;
    }

    /// A label, or its beginning before a `*`; an id, whole or as errors show it.
    fn names(name: []const u8, id: PeerId, label: []const u8) bool {
        if (std.mem.eql(u8, name, label)) return true;
        if (name.len > 0 and name[name.len - 1] == '*')
            return std.mem.startsWith(u8, label, name[0 .. name.len - 1]);
        return std.mem.eql(u8, name, &id.hex()) or std.mem.eql(u8, name, &id.short());
    }
};

test "a peer is named by its label, the beginning of that, or its id; the first name counts" {
    const expect = std.testing.expectEqual;
    var rates: Rates = .{};
    for ([_][]const u8{ "eu-1", "eu-*", "01000000", "02" ++ "0" ** 30, "*" }, 1..) |name, rate|
        try std.testing.expect(rates.add(.{ .name = .shown(name), .rate = rate }));
    const other: PeerId = .from_int(7);
    try expect(1, rates.of(other, &.shown("eu-1")));
    try expect(2, rates.of(other, &.shown("eu-12")));
    try expect(3, rates.of(.from_int(1 << 120), &.{}));
    try expect(4, rates.of(.from_int(2 << 120), &.shown("us-1")));
    try expect(5, rates.of(other, &.shown("us-1")));
    rates.count = 4;
    try expect(0, rates.of(other, &.shown("us-1")));
    while (rates.add(.{ .name = .{}, .rate = 1 })) {}
    try expect(limits.send_rates_max, rates.slice().len);
}
