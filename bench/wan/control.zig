//! Control: the commands that change the network while it runs, a line each, and their answers, a
//! line each. It owns their grammar and what they do to the stages. Numbers are decimal, nodes are
//! numbers from 0, or `*` for all.
//!
//!     path A B key=value...  delay_us jitter_us rate_kbit queue_bytes loss_ppm flow_kbit
//!                            flow_queue_bytes: of the way from A to B
//!     node A key=value...    up_kbit up_queue_bytes down_kbit down_queue_bytes
//!     cut A B, join A B      the way from A to B is broken; is whole
//!     hole A, unhole A       packets to and from A vanish; do no more
//!     partition 0,1|2,3      cuts all ways between the groups; a node in none is alone
//!     heal                   undoes all cuts and holes
//!     lossy A B PPM          the flow of the next TCP data from A to B loses so much from now on
//!     reset A B              the connection of the next TCP data from A to B is reset
//!     statistics             the counters, an object of JSON
//!     clear                  the counters begin again
//!
//! The answer is `ok`, the object, or `error` and what is wrong.

const std = @import("std");
const stages_of = @import("stages.zig");
const counters = @import("counters.zig");
const Path = @import("path.zig").Path;
const Stages = stages_of.Stages;

pub const Error = error{ UnknownCommand, NoSuchNode, NoSuchSetting, NoNumber, TooFew, TooMany };

const Verb = enum {
    path,
    node,
    cut,
    join,
    hole,
    unhole,
    partition,
    heal,
    lossy,
    reset,
    statistics,
    clear,
};

const words_max = 16;

pub const Control = struct {
    stages: *Stages,
    lateness: *counters.Lateness,

    /// Does what a line says, and writes the answer, with its newline.
    pub fn answer(control: Control, line: []const u8, out: *std.Io.Writer) !void {
        control.obey(line, out) catch |err| switch (err) {
            error.WriteFailed => return error.WriteFailed,
            else => try out.print("error {t} in: {s}\n", .{ err, line }),
        };
    }

    fn obey(control: Control, line: []const u8, out: *std.Io.Writer) !void {
        var buffer: [words_max][]const u8 = undefined;
        const words = try split(line, &buffer);
        const verb = std.meta.stringToEnum(Verb, words[0]) orelse return error.UnknownCommand;
        const rest = words[1..];
        switch (verb) {
            .path => try control.set_paths(rest),
            .node => try control.set_nodes(rest),
            .cut => (try control.one_path(rest)).is_cut = true,
            .join => (try control.one_path(rest)).is_cut = false,
            .hole => (try control.one_node(rest)).is_hole = true,
            .unhole => (try control.one_node(rest)).is_hole = false,
            .partition => try control.partition(rest),
            .heal => control.heal(),
            .lossy => {
                if (rest.len != 3) return error.TooFew;
                const ppm = try number(u32, rest[2]);
                (try control.one_path(rest[0..2])).mark = .{ .loss_ppm = ppm };
            },
            .reset => (try control.one_path(rest)).mark = .reset,
            .statistics => return control.write_statistics(out),
            .clear => control.clear(),
        }
        try out.writeAll("ok\n");
    }

    fn set_paths(control: Control, words: []const []const u8) !void {
        if (words.len < 3) return error.TooFew;
        const sources = try control.nodes_named(words[0]);
        const targets = try control.nodes_named(words[1]);
        for (words[2..]) |word| {
            const name, const value = try setting(word);
            for (sources.begin..sources.end) |source| for (targets.begin..targets.end) |target| {
                try set_path(&control.stages.paths[source][target], name, value);
            };
        }
    }

    fn set_path(path: *Path, name: []const u8, value: u64) !void {
        const Key = enum {
            delay_us,
            jitter_us,
            rate_kbit,
            queue_bytes,
            loss_ppm,
            flow_kbit,
            flow_queue_bytes,
        };
        switch (std.meta.stringToEnum(Key, name) orelse return error.NoSuchSetting) {
            .delay_us => path.delay_ns = value * 1000,
            .jitter_us => path.jitter_ns = value * 1000,
            .rate_kbit => path.queue.rate_kbit = value,
            .queue_bytes => path.queue.limit_bytes = value,
            .loss_ppm => path.loss_ppm = @intCast(@min(value, 1_000_000)),
            .flow_kbit => path.flow_kbit = value,
            .flow_queue_bytes => path.flow_queue_bytes = value,
        }
    }

    fn set_nodes(control: Control, words: []const []const u8) !void {
        if (words.len < 2) return error.TooFew;
        const named = try control.nodes_named(words[0]);
        for (words[1..]) |word| {
            const name, const value = try setting(word);
            const Key = enum { up_kbit, up_queue_bytes, down_kbit, down_queue_bytes };
            const key = std.meta.stringToEnum(Key, name) orelse return error.NoSuchSetting;
            for (control.stages.nodes[named.begin..named.end]) |*node| switch (key) {
                .up_kbit => node.up.rate_kbit = value,
                .up_queue_bytes => node.up.limit_bytes = value,
                .down_kbit => node.down.rate_kbit = value,
                .down_queue_bytes => node.down.limit_bytes = value,
            };
        }
    }

    fn partition(control: Control, words: []const []const u8) !void {
        if (words.len != 1) return error.TooFew;
        const count = control.stages.count;
        var group_of: [stages_of.nodes_max]usize = undefined;
        for (&group_of, 0..) |*group, node| group.* = stages_of.nodes_max + node;
        var groups = std.mem.splitScalar(u8, words[0], '|');
        var index: usize = 0;
        while (groups.next()) |members| : (index += 1) {
            var names = std.mem.splitScalar(u8, members, ',');
            while (names.next()) |name| group_of[try control.node_number(name)] = index;
        }
        for (0..count) |source| for (0..count) |target| {
            if (group_of[source] == group_of[target]) continue;
            control.stages.paths[source][target].is_cut = true;
        };
    }

    fn heal(control: Control) void {
        for (&control.stages.nodes) |*node| node.is_hole = false;
        for (&control.stages.paths) |*row| for (row) |*path| {
            path.is_cut = false;
        };
    }

    fn clear(control: Control) void {
        control.lateness.* = .{};
        control.stages.strays = 0;
        for (&control.stages.paths) |*row| for (row) |*path| {
            path.counted = .{};
        };
    }

    /// The counters of the paths that something has entered.
    fn write_statistics(control: Control, out: *std.Io.Writer) !void {
        const stages = control.stages;
        try out.print("{{\"strays\":{d},\"waiting\":{d},\"late_us\":", .{
            stages.strays,
            stages.waiting.count(),
        });
        try control.lateness.write(out);
        try out.writeAll(",\"paths\":[");
        var comma: []const u8 = "";
        for (0..stages.count) |source| for (0..stages.count) |target| {
            const counted = &stages.paths[source][target].counted;
            if (counted.in_packets == 0 and counted.out_packets == 0) continue;
            try out.print("{s}{{\"source\":{d},\"target\":{d},", .{ comma, source, target });
            try counted.write(out);
            try out.writeAll("}");
            comma = ",";
        };
        try out.writeAll("]}\n");
    }

    fn one_path(control: Control, words: []const []const u8) !*Path {
        if (words.len < 2) return error.TooFew;
        if (words.len > 2) return error.TooMany;
        const source = try control.node_number(words[0]);
        return &control.stages.paths[source][try control.node_number(words[1])];
    }

    fn one_node(control: Control, words: []const []const u8) !*stages_of.Node {
        if (words.len != 1) return error.TooFew;
        return &control.stages.nodes[try control.node_number(words[0])];
    }

    const Span = struct { begin: usize, end: usize };

    fn nodes_named(control: Control, word: []const u8) !Span {
        if (std.mem.eql(u8, word, "*")) return .{ .begin = 0, .end = control.stages.count };
        const node = try control.node_number(word);
        return .{ .begin = node, .end = node + 1 };
    }

    fn node_number(control: Control, word: []const u8) !usize {
        const node = number(usize, word) catch return error.NoSuchNode;
        return if (node < control.stages.count) node else error.NoSuchNode;
    }
};

fn split(line: []const u8, buffer: *[words_max][]const u8) Error![]const []const u8 {
    var count: usize = 0;
    var words = std.mem.tokenizeScalar(u8, line, ' ');
    while (words.next()) |word| : (count += 1) {
        if (count == words_max) return error.TooMany;
        buffer[count] = word;
    }
    return if (count > 0) buffer[0..count] else error.UnknownCommand;
}

fn setting(word: []const u8) Error!struct { []const u8, u64 } {
    const equals = std.mem.indexOfScalar(u8, word, '=') orelse return error.NoNumber;
    const value = try number(u64, word[equals + 1 ..]);
    // So that no product of a setting and a packet's bytes is too large.
    return .{ word[0..equals], @min(value, 1 << 40) };
}

fn number(comptime T: type, word: []const u8) Error!T {
    return std.fmt.parseInt(T, word, 10) catch error.NoNumber;
}

const testing = std.testing;

const Example = struct {
    stages: Stages,
    lateness: counters.Lateness = .{},
    buffer: [4096]u8 = undefined,

    fn refuse(_: *@import("packet.zig").Packet, _: u64) bool {
        return false;
    }

    fn say(example: *Example, line: []const u8) ![]const u8 {
        const control: Control = .{ .stages = &example.stages, .lateness = &example.lateness };
        var out = std.Io.Writer.fixed(&example.buffer);
        try control.answer(line, &out);
        return out.buffered();
    }

    fn init(example: *Example) void {
        example.* = .{ .stages = undefined };
        example.stages.init(testing.allocator, 4, 1, refuse);
    }
};

test "settings reach the paths and nodes that are named" {
    var example: Example = undefined;
    example.init();
    defer example.stages.deinit();
    try testing.expectEqualStrings("ok\n", try example.say("path * * delay_us=5 rate_kbit=200"));
    try testing.expectEqualStrings("ok\n", try example.say("path 0 2 delay_us=7 loss_ppm=2000000"));
    try testing.expectEqualStrings("ok\n", try example.say("node 3 up_kbit=50 down_queue_bytes=9"));
    const paths = &example.stages.paths;
    try testing.expectEqual(5_000, paths[2][0].delay_ns);
    try testing.expectEqual(7_000, paths[0][2].delay_ns);
    try testing.expectEqual(200, paths[0][2].queue.rate_kbit);
    try testing.expectEqual(1_000_000, paths[0][2].loss_ppm);
    try testing.expectEqual(50, example.stages.nodes[3].up.rate_kbit);
    try testing.expectEqual(9, example.stages.nodes[3].down.limit_bytes);
    try testing.expectEqual(0, example.stages.nodes[2].up.rate_kbit);
}

test "groups are cut from each other, and healed" {
    var example: Example = undefined;
    example.init();
    defer example.stages.deinit();
    try testing.expectEqualStrings("ok\n", try example.say("partition 0,1|2"));
    const paths = &example.stages.paths;
    try testing.expect(!paths[0][1].is_cut and paths[1][2].is_cut and paths[2][3].is_cut);
    try testing.expectEqualStrings("ok\n", try example.say("hole 1"));
    try testing.expect(example.stages.nodes[1].is_hole);
    try testing.expectEqualStrings("ok\n", try example.say("heal"));
    try testing.expect(!paths[1][2].is_cut and !example.stages.nodes[1].is_hole);
    try testing.expectEqualStrings("ok\n", try example.say("lossy 1 2 50000"));
    try testing.expectEqual(50_000, paths[1][2].mark.loss_ppm);
}

test "what is wrong in a line is said, and nothing else is done" {
    var example: Example = undefined;
    example.init();
    defer example.stages.deinit();
    for ([_]struct { []const u8, []const u8 }{
        .{ "", "UnknownCommand" },
        .{ "explode 1", "UnknownCommand" },
        .{ "cut 0", "TooFew" },
        .{ "cut 0 4", "NoSuchNode" },
        .{ "cut 0 -1", "NoSuchNode" },
        .{ "hole x", "NoSuchNode" },
        .{ "path 0 1 delay=5", "NoSuchSetting" },
        .{ "path 0 1 delay_us", "NoNumber" },
        .{ "path 0 1 delay_us=5ms", "NoNumber" },
        .{ "node 0 colour=5", "NoSuchSetting" },
        .{ "lossy 0 1", "TooFew" },
        .{ "lossy 0", "TooFew" },
        .{ "partition 0,9|1", "NoSuchNode" },
        .{ "heal" ++ " x" ** words_max, "TooMany" },
    }) |wrong| {
        const answer = try example.say(wrong[0]);
        try testing.expect(std.mem.startsWith(u8, answer, "error "));
        try testing.expect(std.mem.indexOf(u8, answer, wrong[1]) != null);
    }
}

test "statistics are one line of JSON" {
    var example: Example = undefined;
    example.init();
    defer example.stages.deinit();
    example.stages.paths[1][0].counted.entered(2, 3000);
    const answer = try example.say("statistics");
    const read = try std.json.parseFromSlice(std.json.Value, testing.allocator, answer, .{});
    defer read.deinit();
    try testing.expectEqual(1, std.mem.count(u8, answer, "\n"));
    const paths = read.value.object.get("paths").?.array;
    try testing.expectEqual(1, paths.items.len);
    try testing.expectEqual(3000, paths.items[0].object.get("in_bytes").?.integer);
    _ = try example.say("clear");
    try testing.expectEqual(0, example.stages.paths[1][0].counted.in_packets);
}
