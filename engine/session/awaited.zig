//! Awaited: peers for which this one, a newcomer, waits, by the coordinator's word: for an error
//! and for the log. waits.zig takes it; protocol/debt.zig finds the peers.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const control = wire.control;
const limits = base.limits;

pub const Awaited = struct {
    why: control.Awaited.Why = .begin,
    count: u32 = 0,
    named: [limits.awaited_told_max]Named = undefined,
    named_count: usize = 0,
    at: base.Instant = 0,

    const Named = struct {
        id: base.PeerId,
        label: base.Label,
        /// Null: it is in no epoch.
        rank: ?u16,

        pub fn format(it: *const Named, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const rank = it.rank orelse
                return writer.print("peer {s}{f}", .{ it.id.short(), &it.label });
            const ranked: base.Ranked = .{ .rank = rank, .id = it.id, .label = it.label };
            try ranked.format(writer);
        }
    };

    /// The coordinator has lost this peer's connection.
    pub fn is_away(awaited: *const Awaited, id: base.PeerId) bool {
        if (awaited.why != .away) return false;
        for (awaited.named[0..awaited.named_count]) |*peer| if (peer.id.eql(id)) return true;
        return awaited.count > awaited.named_count; // it may be one that is not named
    }

    pub fn eql(a: *const Awaited, b: *const Awaited) bool {
        if (a.why != b.why) return false;
        if (a.count != b.count or a.named_count != b.named_count) return false;
        for (a.named[0..a.named_count], b.named[0..a.named_count]) |*one, *other|
            if (!one.id.eql(other.id)) return false;
        return true;
    }

    /// For an error; nothing where it was long ago: it is said again and again while it lasts.
    pub fn text(awaited: *const Awaited, now: base.Instant, buffer: []u8) []const u8 {
        const is_old = now -| awaited.at >= 3 * limits.wait_told_ns_max;
        if (awaited.count == 0 or is_old) return "";
        var writer: std.Io.Writer = .fixed(buffer);
        writer.print("{f}", .{awaited}) catch {}; // cut
        return writer.buffered();
    }

    pub fn format(awaited: *const Awaited, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        for (awaited.named[0..awaited.named_count], 0..) |*peer, index| {
            if (index > 0) try writer.writeAll(" and ");
            try peer.format(writer);
        }
        const more = awaited.count -| awaited.named_count;
        if (more > 0) try writer.print(" and {d} more", .{more});
        try writer.writeAll(switch (awaited.why) {
            .begin => " must call admit first: every peer must call it equally often",
            .safe_point => " must pass the next safe point (call admit) first: newcomers enter " ++
                "after all members have",
            .founders => " must ask for the group first: it begins when all its founders have",
            .in_flight => " must finish calls of the epoch before first: newcomers enter then",
            .away => " must come back to the coordinator first, or be lost at the silence " ++
                "limit: the connection to it has closed",
        });
    }
};

test "a peer is away by the coordinator's word alone, also where that has not named it" {
    const expect = std.testing.expect;
    var awaited: Awaited = .{ .why = .away, .count = 1, .named_count = 1 };
    awaited.named[0] = .{ .id = .from_int(1), .label = .{}, .rank = 0 };
    try expect(awaited.is_away(.from_int(1)));
    try expect(!awaited.is_away(.from_int(2)));
    awaited.count = 2;
    try expect(awaited.is_away(.from_int(2)));
    awaited.why = .begin;
    for (1..3) |id| try expect(!awaited.is_away(.from_int(id)));
}
