//! Label: the name of a peer for people, "node7:4242 #2", shown beside its id in logs, errors and
//! the status. The peer chooses its label, so two peers may have equal labels, and no decision
//! depends on a label. protocol/membership.zig sends labels; a peer keeps labels of other peers in
//! session/session.zig.

const std = @import("std");
const limits = @import("limits.zig");
const PeerId = @import("ids.zig").PeerId;
const text = @import("text.zig");

pub const Label = struct {
    storage: [limits.label_bytes_max]u8 = undefined,
    /// Bytes of the label; 0: the peer has chosen no label, or its label is not known here.
    length: u8 = 0,

    /// Reads a label from a message. Null if the label is too long or contains what cannot be
    /// shown.
    pub fn read(bytes: []const u8) ?Label {
        var label: Label = .{};
        if (bytes.len == 0) return label;
        if (bytes.len > limits.label_bytes_max or !text.is_name(bytes)) return null;
        @memcpy(label.storage[0..bytes.len], bytes);
        label.length = @intCast(bytes.len);
        return label;
    }

    /// Makes a label of any text, such as a name of this machine: escapes what cannot be shown, and
    /// cuts what is too long.
    pub fn shown(bytes: []const u8) Label {
        var label: Label = .{};
        label.length = @intCast(text.show(bytes, &label.storage).len);
        return label;
    }

    pub fn slice(label: *const Label) []const u8 {
        return label.storage[0..label.length];
    }

    /// Writes the label as it follows the id of its peer in a line: " (node7:4242)", or nothing if
    /// empty.
    pub fn format(label: *const Label, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (label.length > 0) try writer.print(" ({s})", .{label.slice()});
    }
};

/// A peer in a log line: "7f3a01c2 (node7:4242)".
pub const Named = struct {
    id: PeerId,
    label: Label,

    pub fn format(it: Named, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.print("{s}{f}", .{ it.id.short(), it.label });
    }
};

/// A member in an error text: "rank 3 (node7:4242, 7f3a01c2)".
pub const Ranked = struct {
    rank: usize,
    id: PeerId,
    label: Label,

    pub fn format(it: Ranked, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const comma = if (it.label.length > 0) ", " else "";
        const short = it.id.short();
        try writer.print("rank {d} ({s}{s}{s})", .{ it.rank, it.label.slice(), comma, short });
    }
};

test "a label has a length that is known, and nothing that a terminal obeys" {
    const expect = std.testing.expect;
    try std.testing.expectEqualStrings("node7:42 #2", Label.read("node7:42 #2").?.slice());
    try std.testing.expectEqual(0, Label.read("").?.length);
    const longest = "x" ** limits.label_bytes_max;
    try std.testing.expectEqualStrings(longest, Label.read(longest).?.slice());
    for ([_][]const u8{ longest ++ "x", "a\nb", "\x1b[2J", "\xff", "a\u{202e}b" }) |wrong|
        try expect(Label.read(wrong) == null);
    try std.testing.expectEqualStrings("a\\x0ab", Label.shown("a\nb").slice());
    try std.testing.expectEqual(limits.label_bytes_max, Label.shown(longest ++ "y").length);
    var line: [100]u8 = undefined;
    const label = Label.read("node7:42").?;
    const id: PeerId = .from_int(1 << 120);
    for ([_]Label{ label, .{} }, [_][2][]const u8{
        .{ "01000000 (node7:42)", "rank 3 (node7:42, 01000000)" },
        .{ "01000000", "rank 3 (01000000)" },
    }) |known, wanted| {
        const named: Named = .{ .id = id, .label = known };
        try std.testing.expectEqualStrings(
            wanted[0],
            try std.fmt.bufPrint(&line, "{f}", .{named}),
        );
        const ranked: Ranked = .{ .rank = 3, .id = id, .label = known };
        try std.testing.expectEqualStrings(
            wanted[1],
            try std.fmt.bufPrint(&line, "{f}", .{ranked}),
        );
    }
}
