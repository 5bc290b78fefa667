//! Narrow: changes that a person, or shrink, makes to the draws of a seed, so that a failure shows
//! with less around it. A narrowed seed is replayed with the same flags: they are printed in the
//! form in which they are read.

const std = @import("std");
const base = @import("base");
const Check = @import("checkers.zig").Check;
const Class = @import("swarm.zig").Class;
const Config = @import("swarm.zig").Config;
const Level = @import("swarm.zig").Level;
const Profile = @import("swarm.zig").Profile;
const Rig = @import("runner.zig").Rig;
const Strike = @import("swarm.zig").Strike;
const program = @import("program.zig");
const swarm = @import("swarm.zig");
const users = @import("users.zig");
const out = std.debug.print;

pub const usage =
    \\  --set CLASS=off|rare|heavy   (repeatable)
    \\  --strike HOW:PEER@EVENT      (twice at most, 0 is the coordinator) kill, reset, vanish,
    \\                               freeze, freeze_long, reset_lanes, swallow_lanes,
    \\                               reset_control, leave; see sweep
    \\  --profile crashes            processes and the coordinator die and start again all the time
    \\  --peers N      peers that start, 1 to 128: from 17 on the world is a large one
    \\  --peers-max N  processes that may start in all, 1 to 512
    \\  --calls N  --count-max N  --lanes N  --tags N  --groups N
    \\
;

pub const Change = union(enum) {
    set: struct { class: Class, level: Level },
    strike: Strike,
    profile: Profile,
    peers: u32,
    peers_max: u32,
    calls: u32,
    count_max: u32,
    lanes: u32,
    tags: u32,
    groups: u32,

    /// `name` without dashes, as in --peers. Says in `why` what is wrong.
    pub fn parse(
        name: []const u8,
        value: []const u8,
        why: *std.Io.Writer,
    ) error{ Usage, WriteFailed }!Change {
        if (std.mem.eql(u8, name, "set")) return parse_set(value) catch {
            try why.print("--set {s}: it must be CLASS=off, CLASS=rare or CLASS=heavy, " ++
                "with one of these classes:", .{value});
            for (std.enums.values(Class)) |class| try why.print(" {t}", .{class});
            return error.Usage;
        };
        if (std.mem.eql(u8, name, "strike")) {
            const strike = Strike.parse(value) catch {
                try why.print("--strike {s}: it must be HOW:PEER@EVENT, PEER from 0 to {d}, " ++
                    "with HOW one of:", .{ value, base.limits.peers_max });
                for (std.enums.values(Strike.How)) |how| try why.print(" {t}", .{how});
                return error.Usage;
            };
            return .{ .strike = strike };
        }
        if (std.mem.eql(u8, name, "profile")) {
            if (std.mem.eql(u8, value, "crashes")) return .{ .profile = .crashes };
            try why.print("--profile {s}: it must be crashes", .{value});
            return error.Usage;
        }
        inline for (@typeInfo(Change).@"union".fields[3..]) |field| {
            if (std.mem.eql(u8, name, comptime dashed(field.name))) {
                const tag = @field(std.meta.Tag(Change), field.name);
                const number = try parse_number(u32, name, value, bounds(tag), why);
                return @unionInit(Change, field.name, number);
            }
        }
        try why.print("there is no option --{s}", .{name});
        return error.Usage;
    }

    fn parse_set(value: []const u8) error{Usage}!Change {
        const equals = std.mem.indexOfScalar(u8, value, '=') orelse return error.Usage;
        return .{ .set = .{
            .class = std.meta.stringToEnum(Class, value[0..equals]) orelse return error.Usage,
            .level = std.meta.stringToEnum(Level, value[equals + 1 ..]) orelse return error.Usage,
        } };
    }

    fn bounds(tag: std.meta.Tag(Change)) Bounds {
        return switch (tag) {
            .set, .strike, .profile => unreachable, // no numbers
            .peers => .{ .low = 1, .high = swarm.peers_start_max },
            .peers_max => .{ .low = 1, .high = base.limits.peers_max },
            .calls => .{ .low = 0, .high = 1_000_000 },
            .count_max => .{ .low = 1, .high = program.floats_max },
            .lanes => .{ .low = 0, .high = 3 },
            .tags => .{ .low = 1, .high = 4 },
            .groups => .{ .low = 1, .high = users.groups_max },
        };
    }

    fn is_possible(change: Change) bool {
        return switch (change) {
            .set, .strike, .profile => true,
            inline else => |number, tag| bounds(tag).holds(number),
        };
    }

    fn dashed(comptime name: []const u8) []const u8 {
        comptime var text: [name.len]u8 = name[0..name.len].*;
        for (&text) |*letter| if (letter.* == '_') {
            letter.* = '-';
        };
        const fixed = text;
        return &fixed;
    }

    pub fn apply(change: Change, config: *Config) void {
        switch (change) {
            .set => |body| config.levels.set(body.class, body.level),
            .strike => |strike| {
                const place: usize = if (config.strikes[0] == null) 0 else 1;
                config.strikes[place] = strike;
            },
            .profile => |profile| config.set_profile(profile),
            .peers => |count| config.resize(@intCast(count)),
            .peers_max => |count| {
                if (count < config.peers_start) config.resize(@intCast(count));
                config.peers_max = @intCast(count);
            },
            .calls => |count| config.calls = count,
            .count_max => |count| config.count_max = count,
            .lanes => |count| config.lanes = @intCast(count),
            .tags => |count| config.tags = @intCast(count),
            .groups => |count| config.groups = @intCast(count),
        }
        // The promise of such a world (checker place) does not hold when more goes wrong.
        // Enough of them for a ring around one that cannot be used.
        config.only_cuts = config.only_cuts and config.has_only(.cut_pair) and
            config.peers_start >= 4;
        config.only_resets = config.only_resets and config.has_only(.reset_control);
    }

    pub fn format(change: Change, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        switch (change) {
            .set => |body| try writer.print("--set {t}={t}", .{ body.class, body.level }),
            .strike => |strike| try writer.print("--strike {f}", .{strike}),
            .profile => |profile| try writer.print("--profile {t}", .{profile}),
            inline else => |count, tag| {
                try writer.print("--{s} {d}", .{ comptime dashed(@tagName(tag)), count });
            },
        }
    }
};

pub const Bounds = struct {
    low: u64,
    high: u64,

    fn holds(bounds: Bounds, number: u64) bool {
        return number >= bounds.low and number <= bounds.high;
    }
};

/// The value of an option; `why` says what it must be.
pub fn parse_number(
    comptime T: type,
    name: []const u8,
    value: []const u8,
    bounds: Bounds,
    why: *std.Io.Writer,
) error{ Usage, WriteFailed }!T {
    if (std.fmt.parseInt(T, value, 10)) |number| {
        if (bounds.holds(number)) return number;
    } else |_| {}
    try why.print("--{s} {s}: it must be a number from {d} to {d}", .{
        name, value, bounds.low, bounds.high,
    });
    return error.Usage;
}

pub const Changes = std.ArrayList(Change);

/// Whether no change takes back what another asks for; `why` says which does.
pub fn check_all(changes: []const Change, why: *std.Io.Writer) error{ Usage, WriteFailed }!void {
    var peers: ?u32 = null;
    var peers_max: ?u32 = null;
    var strikes: u32 = 0;
    for (changes) |change| switch (change) {
        .peers => |count| peers = count,
        .peers_max => |count| peers_max = count,
        .strike => strikes += 1,
        else => {},
    };
    if (peers) |count| if (peers_max) |most| if (count > most) {
        try why.print("--peers {d}: it must be a number from 1 to {d}, as --peers-max says", .{
            count, most,
        });
        return error.Usage;
    };
    // Every world has room for these, whatever the seed draws.
    const processes = @max(swarm.small_max, peers orelse 0, peers_max orelse 0);
    for (changes) |change| if (change == .strike and change.strike.node > processes) {
        try why.print("--strike {f}: PEER must be a number from 0 to {d} without a larger " ++
            "--peers-max", .{ change.strike, processes });
        return error.Usage;
    };
    if (strikes > 2) {
        try why.print("--strike: it may be given from 0 to 2 times, not {d}", .{strikes});
        return error.Usage;
    }
}

pub fn config_of(seed: u64, changes: []const Change) Config {
    var config = Config.draw(seed);
    for (changes) |change| change.apply(&config);
    return config;
}

/// Takes away one thing after the other for as long as the seed breaks the same promise.
pub fn shrink(gpa: std.mem.Allocator, rig: *Rig, seed: u64, given: []const Change) !u8 {
    var changes: Changes = .empty;
    defer changes.deinit(gpa);
    try changes.appendSlice(gpa, given);
    const first = rig.run(config_of(seed, given), .off);
    const violation = first.violation orelse {
        out("seed {d} passes: there is nothing to shrink\n", .{seed});
        return 0;
    };
    out("seed {d} breaks {t} in {d} events\n", .{ seed, violation.check, first.events });
    var progress = true;
    while (progress) {
        progress = false;
        var config = config_of(seed, changes.items);
        for (std.enums.values(Class)) |class| {
            if (!config.has(class)) continue;
            const change: Change = .{ .set = .{ .class = class, .level = .off } };
            if (try keep_if_fails(
                gpa,
                rig,
                seed,
                &changes,
                change,
                violation.check,
            )) progress = true;
        }
        config = config_of(seed, changes.items);
        const smaller = [_]Change{
            .{ .groups = 1 },
            .{ .tags = 1 },
            .{ .lanes = 1 },
            .{ .peers = config.peers_start / 2 },
            .{ .peers = config.peers_start - 1 },
            .{ .peers_max = @max(config.peers_start, config.peers_max - 1) },
            .{ .calls = config.calls / 2 },
            .{ .calls = config.calls -| 1 },
            .{ .count_max = config.count_max / 2 },
        };
        for (smaller) |change| {
            if (!change.is_possible()) continue;
            var after = config_of(seed, changes.items);
            const before = after;
            change.apply(&after);
            if (std.meta.eql(before, after)) continue;
            if (try keep_if_fails(
                gpa,
                rig,
                seed,
                &changes,
                change,
                violation.check,
            )) progress = true;
        }
    }
    out("smallest: pccl-sim --seed {d}", .{seed});
    for (changes.items) |change| out(" {f}", .{change});
    out(" --trace\n", .{});
    const config = config_of(seed, changes.items);
    const result = rig.run(config, .off);
    if (result.violation) |*found| rig.explain(config, found);
    return 1;
}

fn keep_if_fails(
    gpa: std.mem.Allocator,
    rig: *Rig,
    seed: u64,
    changes: *Changes,
    change: Change,
    check: Check,
) !bool {
    try changes.append(gpa, change);
    const result = rig.run(config_of(seed, changes.items), .off);
    if (result.violation) |*violation| if (violation.check == check) {
        out("  {f}: {d} events\n", .{ change, result.events });
        forget_older(changes);
        return true;
    };
    _ = changes.pop();
    return false;
}

/// The last change stands for earlier ones of its kind.
fn forget_older(changes: *Changes) void {
    const last = changes.getLast();
    for (changes.items[0 .. changes.items.len - 1], 0..) |change, index| {
        if (std.meta.activeTag(change) != std.meta.activeTag(last)) continue;
        if (change == .strike) continue;
        if (change == .set and change.set.class != last.set.class) continue;
        _ = changes.orderedRemove(index);
        return;
    }
}

test "a change is read in the form in which it is printed" {
    const changes = [_]Change{
        .{ .set = .{ .class = .half_open, .level = .heavy } },
        .{ .profile = .crashes },
        .{ .peers_max = 7 },
        .{ .strike = .{ .how = .vanish, .node = 2, .step = 153 } },
        .{ .calls = 3 },
    };
    for (changes) |change| {
        var buffer: [64]u8 = undefined;
        const text = try std.fmt.bufPrint(&buffer, "{f}", .{change});
        var words = std.mem.tokenizeScalar(u8, text, ' ');
        const name = words.next().?[2..];
        var why: std.Io.Writer.Discarding = .init(&.{});
        try std.testing.expectEqual(
            change,
            try Change.parse(name, words.next().?, &why.writer),
        );
    }
}

test "an option that cannot be is refused with its name, its value and its bounds" {
    for ([_][3][]const u8{
        .{ "peers", "129", "--peers 129: it must be a number from 1 to 128" },
        .{ "peers", "0", "--peers 0: it must be a number from 1 to 128" },
        .{ "peers", "many", "--peers many: it must be a number from 1 to 128" },
        .{ "groups", "9", "--groups 9: it must be a number from 1 to 8" },
        .{ "lanes", "4", "--lanes 4: it must be a number from 0 to 3" },
        .{ "tags", "5", "--tags 5: it must be a number from 1 to 4" },
        .{ "count-max", "4294967296", "--count-max 4294967296: it must be a number from 1 to 400" },
        .{ "nothing", "1", "there is no option --nothing" },
    }) |case| {
        var buffer: [500]u8 = undefined;
        var why: std.Io.Writer = .fixed(&buffer);
        try std.testing.expectError(error.Usage, Change.parse(case[0], case[1], &why));
        try std.testing.expectEqualStrings(case[2], why.buffered());
    }
    var why: std.Io.Writer.Discarding = .init(&.{});
    try std.testing.expectError(error.Usage, Change.parse("set", "nothing=off", &why.writer));
    try std.testing.expectError(error.Usage, Change.parse("strike", "kill:513@1", &why.writer));
}

test "options that take each other back are refused, and what passes holds" {
    var why: std.Io.Writer.Discarding = .init(&.{});
    const strike: Change = .{ .strike = .{ .how = .kill, .node = 17, .step = 1 } };
    for ([_][]const Change{
        &.{ .{ .peers = 8 }, .{ .peers_max = 4 } },
        &.{ .{ .peers_max = 4 }, .{ .peers = 8 } },
        &.{strike},
        &.{ .{ .strike = .{ .how = .kill, .node = 1, .step = 1 } }, strike, strike },
    }) |changes| try std.testing.expectError(error.Usage, check_all(changes, &why.writer));
    try check_all(&.{ strike, .{ .peers_max = 17 } }, &why.writer);
    for ([_]u32{ 1, 3, 12, 16, 17, 128 }) |peers| for (0..50) |seed| {
        const config = config_of(seed, &.{.{ .peers = peers }});
        try std.testing.expectEqual(peers, config.peers_start);
        try std.testing.expect(config.peers_max >= peers);
        const bounded = config_of(seed, &.{.{ .peers_max = peers }});
        try std.testing.expectEqual(peers, bounded.peers_max);
        try std.testing.expect(bounded.peers_start <= peers);
        try std.testing.expect(bounded.initial_world_size <= bounded.peers_start);
    };
}

test "a world that only cuts links is an ordinary one when more is set" {
    const seed = 500000058;
    const freeze: Change = .{ .set = .{ .class = .freeze, .level = .heavy } };
    const thaw: Change = .{ .set = .{ .class = .freeze, .level = .off } };
    const strike: Change = .{ .strike = .{ .how = .freeze_long, .node = 2, .step = 100 } };
    const seldom: Change = .{ .set = .{ .class = .cut_pair, .level = .rare } };
    try std.testing.expect(config_of(seed, &.{}).only_cuts);
    try std.testing.expect(config_of(seed, &.{ seldom, thaw, .{ .peers = 4 } }).only_cuts);
    for ([_]Change{ freeze, strike, .{ .peers = 3 } }) |change| {
        try std.testing.expect(!config_of(seed, &.{change}).only_cuts);
    }
}
