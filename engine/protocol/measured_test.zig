//! Measurements in the status: speeds of peers and links, and who calls last (traffic.zig,
//! late.zig). The harness: court_test.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const court_file = @import("court_test.zig");
const Court = court_file.Court;
const control = wire.control;
const gpa = std.testing.allocator;
const expect = std.testing.expect;
const ms = court_file.ms;
const peers_max = court_file.peers_max;

fn expect_status(court: *Court, wanted: []const u8) !void {
    const text = try court.status();
    if (std.mem.indexOf(u8, text, wanted) != null) return;
    std.debug.print("missing: {s}\nin: {s}\n", .{ wanted, text });
    return error.NotInStatus;
}

test "the status has the speed of each peer and of its links, of one span, as it tells them" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const links = [_]control.LinkTraffic{
        .{
            .peer = court_file.id_of(2),
            .sent = 700,
            .received = 8,
            .rate = 900,
            .rtt_ns = 90 * ms,
            .again_ppm = 1_500,
            .lanes = 4,
        },
        .{ .peer = court_file.id_of(40), .sent = 1, .received = 1 }, // of another group
    };
    try court.say(1, .{ .traffic = .{
        .span_ns = 2100 * ms,
        .sent = 701,
        .received = 9,
        .links = .of(&links),
    } });
    try expect_status(&court, "\"sent_per_s\":0,\"received_per_s\":0,\"span_ns\":0,");
    try expect_status(&court, "\"sent_per_s\":701,\"received_per_s\":9," ++
        "\"span_ns\":2100000000,\"calls\":0,\"last_to_call\":0," ++
        "\"late_ns\":0,\"links\":[{\"rank\":2,\"sent_per_s\":700," ++
        "\"received_per_s\":8,\"rate\":900,\"rtt_ns\":90000000," ++
        "\"retransmitted_ppm\":1500,\"lanes\":4}]}");
    // A peer that says no more of them.
    try court.pass(11_000 * ms);
    const text = try court.status();
    try expect(std.mem.indexOf(u8, text, "\"rank\":2,\"sent_per_s\"") == null);
    try expect(std.mem.indexOf(u8, text, "\"sent_per_s\":701") == null);
}

test "more links than may be told end the connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const link: control.LinkTraffic = .{ .peer = .none, .sent = 1, .received = 1 };
    const most: [base.limits.links_told_max + 1]control.LinkTraffic = @splat(link);
    var told: control.Traffic = .{ .span_ns = 1, .sent = 1, .received = 1, .links = .{} };
    told.links = .of(most[1..]);
    try court.say(0, .{ .traffic = told });
    try expect(court.peers[0] != null);
    told.links = .of(&most);
    try court.say(0, .{ .traffic = told });
    try expect(court.peers[0] == null);
}

test "a link of more lanes than there may be ends the connection" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    const most = base.limits.lanes_per_link_max;
    for ([_]u8{ most, most + 1 }) |lanes| {
        try expect(court.peers[0] != null);
        const link: control.LinkTraffic =
            .{ .peer = .none, .sent = 1, .received = 1, .lanes = lanes };
        try court.say(0, .{ .traffic = .{
            .span_ns = 1,
            .sent = 1,
            .received = 1,
            .links = .of(&.{link}),
        } });
    }
    try expect(court.peers[0] == null);
}

test "who calls last is counted, with the time that the others have waited for it alone" {
    var court: Court = undefined;
    try court.init(gpa);
    defer court.c.destroy();
    try court.form();
    // It votes first, and has called last.
    for (0..3) |tag| for ([_]usize{ 2, 0, 1 }) |index| {
        var vote = court.vote(tag, 0);
        vote.age_ns = ([_]u64{ 900, 800, 300 })[index] * ms;
        try court.say(index, .{ .done = vote });
    };
    const none = "\"calls\":3,\"last_to_call\":0,\"late_ns\":0,";
    try expect_status(&court, none);
    try expect_status(&court, "\"calls\":3,\"last_to_call\":3,\"late_ns\":1500000000,");
    // A sync is voted for last by whoever had to fetch, and has no ages.
    for (0..3) |index| {
        var vote = court.vote(4, 0);
        vote.descriptor.kind = .sync;
        vote.age_ns = index * 100 * ms;
        try court.say(index, .{ .done = vote });
    }
    // Within a millisecond, nobody is late; the votes of an attempt that was cut short say nothing.
    for (0..3) |index| try court.done(index, 7, 0);
    try expect_status(&court, "\"calls\":4,\"last_to_call\":3,\"late_ns\":1500000000,");
    var early = court.vote(8, 0);
    early.age_ns = 900 * ms;
    try court.say(0, .{ .done = early });
    try court.stumble();
    for (0..3) |index| try court.report_end(index);
    for (0..3) |index| try court.done(index, 9, 0);
    try expect_status(&court, "\"calls\":5,\"last_to_call\":3,\"late_ns\":1500000000,");
}
