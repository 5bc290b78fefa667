//! Names of peers for people: who hears whose, and which are refused (membership.zig). The harness:
//! court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const control = wire.control;
const expectEqualStrings = std.testing.expectEqualStrings;
const gpa = std.testing.allocator;
const peers_max = court_file.peers_max;

fn join(court: *Court, index: usize, label: []const u8) !void {
    try court.knock(index, .{
        .purpose = .control,
        .run_id = @splat(1),
        .from = court_file.id_of(index),
        .instance = 1 + index,
    });
    try court.say(index, .{ .join = .{
        .name = .of("g"),
        .address = .of("a:1"),
        .address_key = @splat(0),
        .initial_world_size = 0,
        .round = 0,
        .stop_round = 0,
        .label = .of(label),
    } });
    try court.say(index, .{ .join_end = .{} });
}

/// The names that a peer was told, "01=a 02=b", and nothing else that it was told is lost.
fn told(court: *Court, index: usize, room: []u8) ![]const u8 {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var writer: std.Io.Writer = .fixed(room);
    var rest: []const u8 = bytes;
    var is_prepared = false;
    while (rest.len > 0) {
        if (std.mem.startsWith(u8, rest, &wire.hello.encode_answer(.welcome))) {
            rest = rest[wire.hello.answer_bytes..];
            continue;
        }
        const total = control.header_bytes +
            try control.body_length(rest[0..control.header_bytes]);
        const message = try control.decode(rest[0..total]);
        is_prepared = is_prepared or message == .prepare;
        if (message == .labels) {
            if (!is_prepared) return error.BeforePrepare;
            var entries = message.labels.peers.iterator();
            while (entries.next()) |entry|
                try writer.print("{x:0>2}={s} ", .{ entry.id.bytes[0], entry.label.data });
        }
        court.hear(index, message);
        rest = rest[total..];
    }
    return writer.buffered();
}

test "newcomers hear the names of all, members those of newcomers, and nobody an empty one" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    var room: [200]u8 = undefined;
    for ([_][]const u8{ "a:1", "", "c:3" }, 0..) |label, index| try join(&court, index, label);
    for (0..peers_max) |index|
        try expectEqualStrings("01=a:1 03=c:3 ", try told(&court, index, &room));
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.listen();
    for (0..peers_max) |index| try court.enter(index);
    court.now = @max(court.now, court.group().round_due());
    try join(&court, peers_max, "d:4");
    court.c.tick(court.now);
    for (0..peers_max) |index|
        try expectEqualStrings("04=d:4 ", try told(&court, index, &room));
    try expectEqualStrings("01=a:1 03=c:3 04=d:4 ", try told(&court, peers_max, &room));
    try court.expect_said("info peer 04000000 (d:4) asks to join group g");
}

test "the status names who is there and who is lost" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    for ([_][]const u8{ "a:1", "b:2", "c:3" }, 0..) |label, index| try join(&court, index, label);
    try court.listen();
    for (0..peers_max) |index| try court.prepare(index, court.round, true);
    try court.listen();
    for (0..peers_max) |index| try court.enter(index);
    try court.say(2, .{ .leave = .{ .group = 0 } });
    const text = try court.status();
    for ([_][]const u8{ "a:1", "b:2", "c:3" }, 0..) |label, rank| {
        var wanted: [100]u8 = undefined;
        const alive = if (rank < 2) "true" else "false";
        const part = try std.fmt.bufPrint(
            &wanted,
            "\"label\":\"{s}\",\"rank\":{d},\"alive\":{s}",
            .{ label, rank, alive },
        );
        try std.testing.expect(std.mem.indexOf(u8, text, part) != null);
    }
}

test "a label that cannot be shown is refused, and one that is too long ends the connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try join(&court, 0, "a\nb");
    try court.listen();
    try std.testing.expect(court.refused);
    try join(&court, 1, "x" ** (base.limits.label_bytes_max + 1));
    try std.testing.expectEqual(null, court.peers[1]);
}
