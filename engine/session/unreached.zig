//! Unreached: which peers this one could not dial, and which could not dial it, by the
//! coordinator's word: for errors that would otherwise say only that time has passed. No decision
//! depends on it.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Instant = base.Instant;
const PeerId = base.PeerId;
const limits = base.limits;

pub const Unreached = struct {
    entries: [entries_max]Entry = undefined,
    count: usize = 0,

    /// More than one sentence has room for.
    const entries_max = 8;
    const shown_max = 3;
    /// A dial that failed longer ago is no reason for what fails now.
    const fresh_ns = 2 * std.time.ns_per_min;

    pub const Entry = struct {
        /// None: the coordinator.
        peer: PeerId,
        label: base.Label,
        /// That one has dialed this peer.
        is_theirs: bool,
        dialed: wire.Dialed,
        /// The address that it was dialed from; zeros if that is not known.
        source: base.Source,
        at: Instant,
        address_bytes: [limits.address_bytes_max]u8 = undefined,
        address_length: usize = 0,

        pub fn of(
            peer: base.Named,
            is_theirs: bool,
            dialed: wire.Dialed,
            source: base.Source,
            address: []const u8,
        ) Entry {
            var entry: Entry = .{
                .peer = peer.id,
                .label = peer.label,
                .is_theirs = is_theirs,
                .dialed = dialed,
                .source = source,
                .at = 0,
            };
            entry.address_length = @min(address.len, entry.address_bytes.len);
            @memcpy(entry.address_bytes[0..entry.address_length], address[0..entry.address_length]);
            return entry;
        }

        pub fn format(entry: *const Entry, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            if (entry.peer.eql(.none)) {
                try writer.writeAll("the coordinator");
            } else {
                const named: base.Named = .{ .id = entry.peer, .label = entry.label };
                try writer.print("peer {f}", .{named});
            }
            try writer.writeAll(if (entry.is_theirs)
                " could not dial this peer"
            else
                " could not be dialed");
            const address = entry.address_bytes[0..entry.address_length];
            if (address.len > 0) try writer.print(" at {s}", .{address});
            var room: [base.source.text_bytes_max]u8 = undefined;
            const from = base.source.write_host(entry.source, &room);
            if (from.len > 0) try writer.print(" from {s}", .{from});
            try writer.print(": {s}", .{entry.dialed.why()});
        }
    };

    /// False: this is known, and not long ago.
    pub fn note(u: *Unreached, now: Instant, entry: Entry) bool {
        var noted = entry;
        noted.at = now;
        var place = &u.entries[0];
        for (u.entries[0..u.count]) |*known| {
            if (known.at < place.at) place = known;
            if (!known.peer.eql(entry.peer) or known.is_theirs != entry.is_theirs) continue;
            const is_news = known.dialed != entry.dialed or now -| known.at >= fresh_ns;
            known.* = noted;
            return is_news;
        }
        if (u.count < entries_max) {
            place = &u.entries[u.count];
            u.count += 1;
        }
        place.* = noted;
        return true;
    }

    /// There are lanes to it.
    pub fn forget(u: *Unreached, peer: PeerId) void {
        var index = u.count;
        while (index > 0) {
            index -= 1;
            if (!u.entries[index].peer.eql(peer)) continue;
            u.count -= 1;
            u.entries[index] = u.entries[u.count];
        }
    }

    /// A sentence about them without its end, or nothing.
    pub fn text(u: *const Unreached, now: Instant, buffer: []u8) []const u8 {
        var writer: std.Io.Writer = .fixed(buffer);
        u.write(now, &writer) catch {}; // cut
        return writer.buffered();
    }

    fn write(u: *const Unreached, now: Instant, writer: *std.Io.Writer) !void {
        var fresh: usize = 0;
        for (u.entries[0..u.count]) |*entry| {
            if (now -| entry.at >= fresh_ns) continue;
            fresh += 1;
            if (fresh > shown_max) continue;
            if (fresh > 1) try writer.writeAll("; ");
            try entry.format(writer);
        }
        if (fresh > shown_max) try writer.print("; and {d} more", .{fresh - shown_max});
        if (fresh > 0) try writer.writeAll("; " ++ wire.dialed.remedy);
    }
};

test "what could not be dialed is told once, until it is another reason or long ago, or is over" {
    const expect = std.testing.expect;
    var u: Unreached = .{};
    var buffer: [600]u8 = undefined;
    try std.testing.expectEqualStrings("", u.text(0, &buffer));
    const first: base.Named = .{ .id = .from_int(1 << 120), .label = .shown("node7:42") };
    const coordinator: base.Named = .{ .id = .none, .label = .{} };
    const nowhere: base.Source = @splat(0);
    const here = (try base.Endpoint.parse("10.0.0.7:1")).source().?;
    try expect(u.note(5, .of(first, false, .refused, nowhere, "192.0.2.1:80")));
    try expect(!u.note(6, .of(first, false, .refused, nowhere, "192.0.2.1:80")));
    try expect(u.note(7, .of(first, false, .no_answer, here, "192.0.2.1:80")));
    try expect(u.note(7, .of(first, true, .refused, here, "")));
    try expect(u.note(7, .of(coordinator, true, .refused, nowhere, "10.0.0.1:7")));
    try std.testing.expectEqualStrings("peer 01000000 (node7:42) could not be dialed at " ++
        "192.0.2.1:80 from 10.0.0.7: no answer in 5 s (a firewall or NAT?); peer 01000000 " ++
        "(node7:42) could not dial this peer from 10.0.0.7: the connection was refused; the " ++
        "coordinator could not dial this peer at 10.0.0.1:7: the connection was refused; " ++
        wire.dialed.remedy, u.text(8, &buffer));
    u.forget(first.id);
    try std.testing.expectEqual(1, u.count);
    for (0..20) |index| {
        const other: base.Named = .{ .id = .from_int(index), .label = .{} };
        _ = u.note(9 + index, .of(other, false, .silent, nowhere, "a:1"));
    }
    try std.testing.expectEqual(8, u.count);
    try expect(std.mem.indexOf(u8, u.text(40, &buffer), "; and 5 more; one of") != null);
    try std.testing.expectEqualStrings("", u.text(40 + Unreached.fresh_ns, &buffer));
}

test "the dial that failed longest ago makes room" {
    var u: Unreached = .{};
    const nowhere: base.Source = @splat(0);
    const most = Unreached.entries_max;
    // The first has failed again, after all others.
    for (0..most + 1) |at| {
        const peer: base.Named = .{ .id = .from_int(1 + at % most), .label = .{} };
        _ = u.note(at, .of(peer, false, .refused, nowhere, ""));
    }
    const newest: base.Named = .{ .id = .from_int(most + 1), .label = .{} };
    try std.testing.expect(u.note(most + 1, .of(newest, false, .refused, nowhere, "")));
    try std.testing.expectEqual(most, u.count);
    for (u.entries) |entry| try std.testing.expect(!entry.peer.eql(.from_int(2)));
}
