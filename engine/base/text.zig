//! text: text from other processes: what may be a name, and how any text is shown to people. A bad
//! name is refused where it comes in (protocol/door.zig, session/state.zig); all other text that
//! reaches a log, an error or the status goes through `show`.

const std = @import("std");
const limits = @import("limits.zig");
const unicode = std.unicode;

/// Whether the text may name a group or a tensor: UTF-8 without characters that control a terminal,
/// end a line or change the direction of writing.
pub fn is_name(bytes: []const u8) bool {
    if (bytes.len == 0 or bytes.len > limits.name_bytes_max) return false;
    var rest = bytes;
    while (rest.len > 0) {
        const letter = Letter.first(rest);
        if (!letter.is_plain()) return false;
        rest = rest[letter.length..];
    }
    return true;
}

/// Writes `bytes` into `to` so that they can be shown: letters as they are; characters that control
/// a terminal, end a line or change the direction of writing, and bytes that are no UTF-8, as
/// "\x1b" or "\u{202e}". A text that is too long is cut between letters.
pub fn show(bytes: []const u8, to: []u8) []u8 {
    var writer: std.Io.Writer = .fixed(to);
    var rest = bytes;
    while (rest.len > 0) {
        const letter = Letter.first(rest);
        const whole = writer.end;
        letter.write(rest[0..letter.length], &writer) catch return to[0..whole];
        rest = rest[letter.length..];
    }
    return writer.buffered();
}

const Letter = struct {
    /// The letter; null: the byte begins no UTF-8 letter, and `length` is 1.
    code: ?u21,
    length: u3,

    fn first(bytes: []const u8) Letter {
        const wrong: Letter = .{ .code = null, .length = 1 };
        const length = unicode.utf8ByteSequenceLength(bytes[0]) catch return wrong;
        if (length > bytes.len) return wrong;
        const code = unicode.utf8Decode(bytes[0..length]) catch return wrong;
        return .{ .code = code, .length = length };
    }

    fn is_plain(letter: Letter) bool {
        return switch (letter.code orelse return false) {
            // control characters
            0...0x1f, 0x7f...0x9f => false,
            // ends of a line and of a paragraph
            0x2028, 0x2029 => false,
            // characters that change the direction of writing
            0x061c, 0x200e, 0x200f, 0x202a...0x202e, 0x2066...0x2069 => false,
            else => true,
        };
    }

    fn write(letter: Letter, bytes: []const u8, writer: *std.Io.Writer) !void {
        if (letter.is_plain()) return writer.writeAll(bytes);
        const code = letter.code orelse bytes[0];
        if (code <= 0xff) return writer.print("\\x{x:0>2}", .{code});
        try writer.print("\\u{{{x}}}", .{code});
    }
};

/// A number with its noun: "1 element", "2 elements".
pub const Counted = struct {
    number: u64,
    what: []const u8,

    pub fn format(it: Counted, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.print("{d} {s}{s}", .{ it.number, it.what, if (it.number == 1) "" else "s" });
    }
};

const testing = std.testing;

test "words agree with numbers" {
    for ([_]u64{ 0, 1, 2 }, [_][]const u8{ "0 ranks", "1 rank", "2 ranks" }) |number, wanted| {
        var line: [10]u8 = undefined;
        const counted: Counted = .{ .number = number, .what = "rank" };
        const shown = try std.fmt.bufPrint(&line, "{f}", .{counted});
        try testing.expectEqualStrings(wanted, shown);
    }
}

test "a name is refused with whatever a terminal obeys, ends a line or turns the writing" {
    for ([_][]const u8{ "g", "training 7", "größe", "日本", "a\\nb", "[/red]", "x" ** 256 }) |good|
        try testing.expect(is_name(good));
    for ([_][]const u8{
        "",           "x" ** 257,   "a\nb",       "a\rb",          "a\x1b[2Jb",
        "a\x00b",     "a\tb",       "a\x7fb",     "a\u{85}b",      "a\u{9b}b",
        "a\u{2028}b", "a\u{2029}b", "a\u{202e}b", "a\u{2066}b",    "a\u{200f}b",
        "a\u{61c}b",  "\xff",       "a\xc3",      "a\xed\xa0\x80", "\xc0\x80",
    }) |bad| try testing.expect(!is_name(bad));
}

test "what is shown is text that a terminal does not obey, and is cut between letters" {
    var room: [64]u8 = undefined;
    const cases = [_][2][]const u8{
        .{ "größe", "größe" },
        .{ "a\nb\x1b[2J", "a\\x0ab\\x1b[2J" },
        .{ "\u{9b}2J", "\\x9b2J" },
        .{ "\xffx\xc3", "\\xffx\\xc3" },
        .{ "a\u{202e}b\u{2028}", "a\\u{202e}b\\u{2028}" },
        .{ "\xf0\x9f\x92", "\\xf0\\x9f\\x92" },
    };
    for (cases) |case| try testing.expectEqualStrings(case[1], show(case[0], &room));
    // For every size of the buffer, the text shown is a beginning of the whole, without half
    // letters.
    const text = "aö\n\u{202e}日";
    const whole = "aö\\x0a\\u{202e}日";
    for (0..room.len) |size| {
        const shown = show(text, room[0..size]);
        try testing.expect(std.mem.startsWith(u8, whole, shown));
        try testing.expect(unicode.utf8ValidateSlice(shown));
        try testing.expect(std.mem.count(u8, shown, "\\") == std.mem.count(u8, shown, "\\x0a") +
            std.mem.count(u8, shown, "\\u{202e}"));
    }
}
