//! Narrow: what a person, or shrink, changes on top of what a seed draws, so that a failure shows
//! with less around it. A narrowed seed is replayed with the same flags: they are printed in the
//! form they are read.

const std = @import("std");
const Check = @import("checkers.zig").Check;
const Class = @import("swarm.zig").Class;
const Config = @import("swarm.zig").Config;
const Level = @import("swarm.zig").Level;
const Profile = @import("swarm.zig").Profile;
const Rig = @import("runner.zig").Rig;
const Strike = @import("swarm.zig").Strike;
const out = std.debug.print;

pub const usage =
    \\  --set CLASS=off|rare|heavy   (repeatable)
    \\  --strike HOW:PEER@EVENT      (twice at most, 0 is the coordinator) kill, reset, vanish,
    \\                               freeze, freeze_long, reset_lanes, swallow_lanes,
    \\                               reset_control, leave; see sweep
    \\  --profile crashes            processes and the coordinator die and start again all the time
    \\  --peers N  --peers-max N  --calls N  --count-max N  --lanes N  --tags N  --groups N
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

    /// `name` without dashes, as in --peers.
    pub fn parse(name: []const u8, value: []const u8) error{Usage}!Change {
        if (std.mem.eql(u8, name, "set")) {
            const equals = std.mem.indexOfScalar(u8, value, '=') orelse return error.Usage;
            return .{ .set = .{
                .class = std.meta.stringToEnum(Class, value[0..equals]) orelse return error.Usage,
                .level = std.meta.stringToEnum(
                    Level,
                    value[equals + 1 ..],
                ) orelse return error.Usage,
            } };
        }
        if (std.mem.eql(u8, name, "strike")) return .{ .strike = try .parse(value) };
        if (std.mem.eql(u8, name, "profile")) return .{
            .profile = if (std.mem.eql(u8, value, "crashes")) .crashes else return error.Usage,
        };
        inline for (@typeInfo(Change).@"union".fields[3..]) |field| {
            if (std.mem.eql(u8, name, comptime dashed(field.name))) {
                const number = std.fmt.parseInt(u32, value, 10) catch return error.Usage;
                return @unionInit(Change, field.name, number);
            }
        }
        return error.Usage;
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
            .peers => |count| {
                config.peers_start = @intCast(std.math.clamp(count, 1, 12));
                config.initial_world_size = @min(config.initial_world_size, config.peers_start);
                config.min_world_size = @min(config.min_world_size, config.peers_start);
                config.peers_max = @max(config.peers_max, config.peers_start);
            },
            .peers_max => |count| {
                config.peers_max = @intCast(std.math.clamp(count, config.peers_start, 16));
            },
            .calls => |count| config.calls = count,
            .count_max => |count| config.count_max = @max(1, count),
            .lanes => |count| config.lanes = @intCast(std.math.clamp(count, 1, 3)),
            .tags => |count| config.tags = @intCast(std.math.clamp(count, 1, 4)),
            .groups => |count| config.groups = @intCast(std.math.clamp(count, 1, 2)),
        }
        // What such a world promises (checker place) does not hold when more goes wrong.
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

pub const Changes = std.ArrayList(Change);

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
            .{ .peers = config.peers_start - 1 },
            .{ .peers_max = config.peers_max - 1 },
            .{ .calls = config.calls / 2 },
            .{ .calls = config.calls -| 1 },
            .{ .count_max = config.count_max / 2 },
        };
        for (smaller) |change| {
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
        try std.testing.expectEqual(change, try Change.parse(name, words.next().?));
    }
    try std.testing.expectError(error.Usage, Change.parse("set", "nothing=off"));
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
