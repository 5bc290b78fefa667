//! Trace: what happened in a world, as a hash (same seed, same hash) and, when asked, as text. Text
//! is made only for a seed that is replayed: a failing seed runs twice, the second time with text.
//! Used by world.zig, users.zig, checkers.zig. Nothing here reads a clock or a world.

const std = @import("std");

pub const Trace = struct {
    /// The fate of the text.
    pub const Text = enum { off, keep_last, print };
    pub const lines_kept = 40;
    const line_bytes_max = 220;

    hash: u64 = 0x9e3779b97f4a7c15,
    text: Text = .off,
    lines: [lines_kept][line_bytes_max]u8 = undefined,
    lengths: [lines_kept]u8 = @splat(0),
    count: u64 = 0,

    /// Every event of a world goes through here; the order of calls is part of the hash.
    pub fn mix(trace: *Trace, value: u64) void {
        var z = (trace.hash ^ value) *% 0xbf58476d1ce4e5b9;
        z ^= z >> 29;
        trace.hash = z +% 0x94d049bb133111eb;
    }

    /// A line for a person. `now` is the world's time in nanoseconds.
    pub fn note(trace: *Trace, now: u64, comptime format: []const u8, args: anytype) void {
        if (trace.text == .off) return;
        const slot = trace.count % lines_kept;
        trace.count += 1;
        const line = &trace.lines[slot];
        const ms = @as(f64, @floatFromInt(now)) / std.time.ns_per_ms;
        var writer: std.Io.Writer = .fixed(line);
        // A line that is too long is cut; the start says what happened.
        writer.print("{d:>12.6} ms  ", .{ms}) catch {};
        writer.print(format, args) catch {};
        trace.lengths[slot] = @intCast(writer.end);
        if (trace.text == .print) std.debug.print("{s}\n", .{line[0..writer.end]});
    }

    pub fn print_last(trace: *const Trace) void {
        const first = trace.count -| lines_kept;
        for (first..trace.count) |index| {
            const slot = index % lines_kept;
            std.debug.print("  {s}\n", .{trace.lines[slot][0..trace.lengths[slot]]});
        }
    }
};

test "the hash depends on the order of events" {
    var a: Trace = .{};
    var b: Trace = .{};
    a.mix(1);
    a.mix(2);
    b.mix(2);
    b.mix(1);
    try std.testing.expect(a.hash != b.hash);
}
