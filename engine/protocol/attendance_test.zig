//! How many peers have come to a group that begins when enough are there: who is told, and when
//! (debt.zig). The harness: court_test.zig.

const std = @import("std");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const control = wire.control;
const expectEqual = std.testing.expectEqual;
const gpa = std.testing.allocator;
const ms = court_file.ms;

/// The last that a peer was told of it since it was asked last; null: nothing.
fn told(court: *Court, index: usize) !?control.Waiting {
    const bytes = try court.told(index);
    defer gpa.free(bytes);
    var last: ?control.Waiting = null;
    var rest: []const u8 = bytes;
    while (rest.len > 0) {
        if (std.mem.startsWith(u8, rest, &wire.hello.encode_answer(.welcome))) {
            rest = rest[wire.hello.answer_bytes..];
            continue;
        }
        const total = control.header_bytes +
            try control.body_length(rest[0..control.header_bytes]);
        const message = try control.decode(rest[0..total]);
        if (message == .waiting) last = message.waiting;
        court.hear(index, message);
        rest = rest[total..];
    }
    return last;
}

fn counted(here: u32, emptied: bool) control.Waiting {
    return .{ .group = 0, .here = here, .needed = 3, .emptied = emptied };
}

fn expect_status(court: *Court, wanted: ?[]const u8) !void {
    const text = try court.status();
    const key = "\"here\":";
    const at = std.mem.indexOf(u8, text, key) orelse return expectEqual(null, wanted);
    if (!std.mem.startsWith(u8, text[at..], wanted.?)) return error.NotInStatus;
}

test "those who have come to a group hear how many are missing, each number once" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.connect(0);
    try court.pass(500 * ms);
    try expectEqual(counted(1, false), (try told(&court, 0)).?);
    try court.expect_said("info 1 of 3 peers are here; group g");
    try expect_status(&court, "\"here\":1,\"needed\":3,\"emptied\":false");
    try court.connect(1);
    try court.pass(5000 * ms);
    for (0..2) |index| try expectEqual(counted(2, false), (try told(&court, index)).?);
    try court.pass(5000 * ms);
    for (0..2) |index| try expectEqual(null, try told(&court, index));
    const lines = std.mem.count(u8, court.said[0..court.said_bytes], "peers are here");
    try expectEqual(2, lines);
    try court.connect(2);
    try court.pass(500 * ms);
    for (0..3) |index| try expectEqual(null, try told(&court, index));
    try expect_status(&court, null);
}

test "a group that all have left says so to who comes, and how many it waits for again" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    try court.connect(court_file.peers_max);
    try expect_status(&court, null); // its members wait for nobody
    for (0..court_file.peers_max) |index| try court.say(index, .{ .leave = .{ .group = 0 } });
    try court.pass(500 * ms);
    try expectEqual(counted(1, true), (try told(&court, court_file.peers_max)).?);
    try court.expect_said("info 1 of 3 peers are here; all that were in it are gone; group g");
    try court.pass(10_000 * ms);
    try court.expect_said("warning only 1 of 3 peers are here after 10 s, and the others may " ++
        "have ended; all that were in it are gone; group g");
    try expect_status(&court, "\"here\":1,\"needed\":3,\"emptied\":true");
}

test "a newcomer whose address is being looked for is here" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    court.reply = .later;
    try court.connect(0);
    try expect_status(&court, "\"here\":1,\"needed\":3,\"emptied\":false");
}
