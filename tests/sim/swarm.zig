//! Swarm: the draws of one seed. Each seed draws its own world (sizes, limits, network) and, for
//! every class of fault, whether it is off, rare or heavy, so that faults meet in all combinations
//! and some seeds see one class alone. Each class draws from a stream of its own: switching one off
//! (shrink) leaves the draws of the others unchanged. The classes are in faults.zig and users.zig.

const std = @import("std");
const base = @import("base");
const Prng = base.Prng;
const StateRules = @import("wire").control.StateRules;

pub const Class = enum {
    // The network.
    tiny_segments,
    slow_links,
    stall,
    reset_lane,
    reset_control,
    half_open,
    deafen,
    cut_pair,
    dial_fail,
    dial_stray,
    one_way,
    strangers,
    // Processes.
    crash,
    vanish,
    crash_at_point,
    freeze,
    freeze_coordinator,
    freeze_machine,
    crash_coordinator,
    torn_journal,
    full_journal,
    failing_journal,
    slow_journal,
    flip_journal,
    late_tick,
    drift,
    clock_jump,
    clock_stop,
    // Users.
    late_join,
    leave,
    mismatch,
    tiny_deadline,
    straggler,
    cancel,
    impatient_admit,
    strategy,
    scribble,
    // Adversaries.
    eavesdropper,
    insider,
};

pub const class_count = std.enums.values(Class).len;

pub const Level = enum(u2) { off, rare, heavy };
pub const Levels = std.EnumArray(Class, Level);

pub const Profile = enum {
    /// The mix that the seed draws.
    drawn,
    /// Processes, the coordinator's too, die and start again all the time.
    crashes,
    /// One long life (endurance.zig).
    endurance,
};

/// One fault at one event of the world, chosen and not drawn (sweep.zig).
pub const Strike = struct {
    how: How,
    /// The peer; the coordinator is 0 and can only freeze, or die and come back.
    node: u16,
    step: u64,

    pub const How = enum {
        kill,
        reset,
        vanish,
        freeze,
        freeze_long,
        reset_lanes,
        swallow_lanes,
        reset_control,
        leave,

        pub fn strikes_coordinator(how: How) bool {
            return switch (how) {
                .kill, .reset, .vanish, .freeze, .freeze_long => true,
                .reset_lanes, .swallow_lanes, .reset_control, .leave => false,
            };
        }
    };

    /// Nobody's call may fail because of it.
    fn goes_unnoticed(strike: Strike) bool {
        return switch (strike.how) {
            .kill, .reset, .vanish => strike.node == 0,
            else => false,
        };
    }

    /// "kill:2@153"
    pub fn parse(text: []const u8) error{Usage}!Strike {
        const colon = std.mem.indexOfScalar(u8, text, ':') orelse return error.Usage;
        const at = std.mem.indexOfScalarPos(u8, text, colon, '@') orelse return error.Usage;
        const node = std.fmt.parseInt(u16, text[colon + 1 .. at], 10) catch return error.Usage;
        if (node > base.limits.peers_max) return error.Usage;
        return .{
            .how = std.meta.stringToEnum(How, text[0..colon]) orelse return error.Usage,
            .node = node,
            .step = std.fmt.parseInt(u64, text[at + 1 ..], 10) catch return error.Usage,
        };
    }

    pub fn format(strike: Strike, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.print("{t}:{d}@{d}", .{ strike.how, strike.node, strike.step });
    }
};

/// Processes of a world that is not large.
pub const small_max = 16;
/// One seed in so many has 17 to 64 peers, and one in so many 3 to 8 groups.
const large_one_in = 600;
const groups_one_in = 40;
/// One seed in so many has adversaries.
const adversaries_one_in = 3;
/// In one of so many, members make sub-groups.
const splits_one_in = 4;
/// In one of so many, those who do not call are let go.
const stall_one_in = 6;
/// Peers that a world may start with.
pub const peers_start_max = 128;

pub const Config = struct {
    seed: u64,
    levels: Levels = .initFill(.off),
    strikes: [2]?Strike = .{ null, null },
    profile: Profile = .drawn,
    /// Peers that start at once; the first epoch waits for `initial_world_size` of them.
    peers_start: u16,
    initial_world_size: u16,
    /// Processes that may start in all; a new one takes over where one died.
    peers_max: u16,
    min_world_size: u16 = 1,
    groups: u8,
    lanes: u8,
    chunk_bytes: u32,
    window_bytes: u64,
    /// Room for all operations of a peer together, if it is more.
    windows_bytes: u64 = base.limits.windows_bytes_default,
    heartbeat_ns: u64,
    silence_ns: u64,
    prepare_ns: u64,
    stall_warning_ns: u64 = 10 * std.time.ns_per_s,
    /// 0: nobody is let go because others wait for its call.
    stall_ns: u64 = 0,
    /// Elements of the largest operation.
    count_max: u32,
    /// The safety phase ends after this many finished calls, or after this much time.
    calls: u32,
    safety_ns: u64,
    /// Several operations at once.
    tags: u8,
    /// So many of one group at a peer; calls beyond wait for their turn, and all members call in
    /// one order where that may be.
    in_flight_max: u8 = base.limits.operations_in_flight_max,
    /// Pieces are cut into no less, where links have as many lanes as they like.
    fragment_bytes_min: u32 = base.limits.fragment_bytes_min,
    delay_ns_max: u64,
    /// Worlds of four and more in which nothing goes wrong but links between peers, and always some
    /// ring is left: nobody may notice.
    only_cuts: bool,
    /// Worlds in which nothing goes wrong but connections to the coordinator, which are made again
    /// long before the silence limit: nobody may notice either.
    only_resets: bool = false,
    /// States outlive their calls, members give them to newcomers in the background, and those
    /// fetch before they enter. Else each call makes its own.
    keeps_state: bool,
    /// Members make sub-groups (splits.zig).
    splits: bool = false,
    /// The rules of the states of all.
    state_rules: StateRules = .{},
    /// Scenarios may do without: then nobody waits for a disk.
    has_journal: bool = true,

    pub fn draw(seed: u64) Config {
        var prng = stream(seed, "config");
        const big = prng.chance(24);
        const peers_start: u16 = @intCast(if (big) prng.between(6, 12) else prng.between(1, 5));
        const chunk_bytes = @as(u32, 8) << @intCast(prng.between(1, 3));
        const heartbeat_ns = 200 * std.time.ns_per_ms;
        var config: Config = .{
            .seed = seed,
            .peers_start = peers_start,
            .initial_world_size = peers_start,
            .peers_max = @intCast(@min(small_max, peers_start + prng.between(1, 4))),
            .groups = if (prng.chance(6)) 2 else 1,
            .lanes = @intCast(prng.between(0, 3)), // 0: as the links like
            .chunk_bytes = chunk_bytes,
            .window_bytes = chunk_bytes * prng.between(1, 8),
            .heartbeat_ns = heartbeat_ns,
            .silence_ns = 5 * heartbeat_ns,
            .prepare_ns = 10 * heartbeat_ns,
            .count_max = @as(u32, 1) << @intCast(prng.between(0, 6)),
            .calls = @intCast(peers_start * prng.between(4, 16)),
            .safety_ns = 30 * std.time.ns_per_s,
            .tags = @intCast(prng.between(1, 4)),
            .delay_ns_max = @as(u64, 1) << @intCast(prng.between(10, 24)),
            .only_cuts = false,
            .keeps_state = false,
        };
        if (prng.chance(3)) config.initial_world_size = @intCast(prng.between(1, peers_start));
        config.keeps_state = prng.chance(2);
        // One seed in eight is calm: every call must then succeed.
        if (!prng.chance(8)) config.draw_levels();
        var cuts = stream(seed, "only_cuts");
        if (cuts.chance(24)) config.cut_only(&cuts);
        var resets = stream(seed, "only_resets");
        if (!config.only_cuts and resets.chance(24)) {
            config.only_resets = true;
            config.levels = .initFill(.off);
            config.levels.set(.reset_control, if (resets.chance(2)) .rare else .heavy);
        }
        var least = stream(seed, "min_world_size");
        if (least.chance(12))
            config.min_world_size = @intCast(least.between(1, @min(4, config.initial_world_size)));
        var stall = stream(seed, "stall");
        const is_special = config.only_cuts or config.only_resets;
        if (!is_special and stall.chance(stall_one_in)) config.let_go_idle();
        var large = stream(seed, "large");
        if (!is_special and large.chance(large_one_in)) config.draw_large(&large);
        var windows = stream(seed, "windows");
        if (windows.chance(2))
            config.windows_bytes = config.window_bytes << @intCast(windows.below(6));
        var groups = stream(seed, "groups");
        if (config.peers_start <= 5 and groups.chance(groups_one_in))
            config.groups = @intCast(groups.between(3, 8));
        var state_rules = stream(seed, "state_rules");
        if (state_rules.chance(2)) config.state_rules = .{
            .successive = state_rules.chance(2),
            .refuse = !is_special and state_rules.chance(2),
            .one_sender = state_rules.chance(4),
            .highest_revision = state_rules.chance(3),
        };
        var in_flight = stream(seed, "in_flight");
        if (in_flight.chance(6)) config.in_flight_max = @intCast(in_flight.between(1, 2));
        var fragments = stream(seed, "fragments");
        if (!fragments.chance(4))
            config.fragment_bytes_min = @as(u32, 1) << @intCast(fragments.below(6));
        var split = stream(seed, "splits");
        // A peer is in 8 groups at most, and each of its groups may have a sub-group.
        const sub_groups = 2 * config.groups <= base.limits.groups_per_peer_max;
        config.splits = split.chance(splits_one_in) and sub_groups;
        var adversaries = stream(seed, "adversaries");
        if (adversaries.chance(adversaries_one_in)) config.draw_adversaries(&adversaries);
        return config;
    }

    /// Strangers, who harm nobody, come to every world; the others not to those in which nobody
    /// may notice anything.
    fn draw_adversaries(config: *Config, prng: *Prng) void {
        config.levels.set(.strangers, .heavy);
        if (config.only_cuts or config.only_resets) return;
        for ([_]Class{ .eavesdropper, .insider }) |class| {
            config.levels.set(class, switch (prng.below(6)) {
                0...2 => .off,
                3, 4 => .rare,
                else => .heavy,
            });
        }
    }

    pub fn has_adversaries(config: *const Config) bool {
        return config.has(.strangers) or config.has(.eavesdropper) or config.has(.insider);
    }

    /// Users that think for long are let go. In a calm world nobody does.
    fn let_go_idle(config: *Config) void {
        config.stall_warning_ns = 2 * config.heartbeat_ns;
        config.stall_ns = 2 * config.silence_ns;
    }

    /// More often few than many, for what many take.
    fn draw_large(config: *Config, prng: *Prng) void {
        config.groups = 1;
        config.resize(@intCast(17 + prng.below(1 + prng.below(48))));
    }

    fn cut_only(config: *Config, prng: *Prng) void {
        config.only_cuts = true;
        config.levels = .initFill(.off);
        config.levels.set(.cut_pair, .heavy);
        config.peers_start = @max(config.peers_start, @as(u16, @intCast(prng.between(4, 6))));
        config.initial_world_size = config.peers_start;
        config.peers_max = config.peers_start;
        config.calls = @as(u32, config.peers_start) * 30;
        if (prng.chance(3)) config.levels.set(.one_way, .heavy);
    }

    /// Instead of the one that the seed has drawn; other classes of faults stay as they are.
    pub fn set_profile(config: *Config, profile: Profile) void {
        config.profile = profile;
        if (profile != .crashes) return;
        var prng = stream(config.seed, @tagName(profile));
        for ([_]Class{ .crash, .vanish, .crash_at_point, .crash_coordinator }) |class| {
            config.levels.set(class, if (prng.chance(4)) .rare else .heavy);
        }
        if (prng.chance(2)) config.levels.set(.torn_journal, .heavy);
        config.only_cuts = false;
        config.only_resets = false;
        config.peers_start = @intCast(prng.between(2, 6));
        config.peers_max = 16;
        config.initial_world_size = @intCast(prng.between(1, config.peers_start));
        config.min_world_size = @min(config.min_world_size, config.initial_world_size);
        config.calls = @intCast(config.peers_start * prng.between(10, 50));
        config.safety_ns = 4 * config.safety_ns;
    }

    /// Events of a world that is no storm: those of its calls, and those of its users, in all
    /// groups and all the time, while a newcomer that has failed often waits for a minute
    /// (protocol/group.zig).
    pub fn events_max(config: *const Config) u64 {
        const calls = @as(u64, config.calls) * config.peers_max * 60_000;
        const users = @as(u64, config.groups) * config.peers_max * 500_000;
        return 600_000 + calls + users;
    }

    /// Nothing goes wrong but this; strangers harm nobody.
    pub fn has_only(config: *const Config, class: Class) bool {
        for (config.strikes) |strike| if (strike != null) return false;
        for (std.enums.values(Class)) |other| {
            const harmless = other == .strangers or other == .one_way;
            if (other != class and !harmless and config.has(other)) return false;
        }
        return true;
    }

    /// So many peers at the start. A large world has time for some rounds.
    pub fn resize(config: *Config, peers: u16) void {
        const at_once = config.initial_world_size == config.peers_start;
        config.peers_start = peers;
        config.initial_world_size = if (at_once) peers else @min(config.initial_world_size, peers);
        config.min_world_size = @min(config.min_world_size, peers);
        config.peers_max = @max(config.peers_max, peers);
        if (peers <= small_max) return;
        config.peers_max = @max(config.peers_max, peers + peers / 8);
        config.calls = @max(config.calls, 3 * @as(u32, peers));
    }

    /// Nothing drawn: what scenarios start from.
    pub fn plain() Config {
        const heartbeat_ns = 200 * std.time.ns_per_ms;
        return .{
            .seed = 0,
            .peers_start = 1,
            .initial_world_size = 1,
            .peers_max = 12,
            .groups = 1,
            .lanes = 1,
            .chunk_bytes = 16,
            .window_bytes = 64,
            .heartbeat_ns = heartbeat_ns,
            .silence_ns = 5 * heartbeat_ns,
            .prepare_ns = 10 * heartbeat_ns,
            .count_max = 64,
            .calls = 1000,
            .safety_ns = std.math.maxInt(u64),
            .tags = 4,
            .delay_ns_max = 0,
            .only_cuts = false,
            .keeps_state = false,
        };
    }

    fn draw_levels(config: *Config) void {
        for (std.enums.values(Class)) |class| {
            if (class == .eavesdropper or class == .insider) continue; // draw_adversaries
            var prng = stream(config.seed, @tagName(class));
            const level: Level = switch (prng.below(20)) {
                0...13 => .off,
                14...17 => .rare,
                else => .heavy,
            };
            config.levels.set(class, level);
        }
    }

    /// Processes that the world has room for: in a small one, more than it draws may start when all
    /// is well.
    pub fn processes_max(config: *const Config) u16 {
        return @max(small_max, config.peers_max);
    }

    pub fn loses_coordinator(config: *const Config) bool {
        return config.has(.crash_coordinator) or config.has(.torn_journal);
    }

    pub fn has(config: *const Config, class: Class) bool {
        return config.levels.get(class) != .off;
    }

    /// True if nothing that can make a call fail is on.
    pub fn is_calm(config: *const Config) bool {
        // A newcomer may bring a revision that is ahead.
        if (config.state_rules.refuse and config.state_rules.successive) return false;
        for (config.strikes) |maybe| if (maybe) |strike| if (!strike.goes_unnoticed()) return false;
        for (std.enums.values(Class)) |class| {
            const harmless = switch (class) {
                .tiny_segments, .late_tick, .late_join, .strangers, .drift, .one_way => true,
                // Its members are back in time, unless their links are slow.
                .crash_coordinator, .torn_journal => true,
                .slow_links => !config.loses_coordinator(),
                .cut_pair => config.only_cuts,
                .reset_control => config.only_resets,
                else => false,
            };
            if (!harmless and config.has(class)) return false;
        }
        return true;
    }

    pub fn format(config: Config, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.print(
            "peers {d}..{d} (first epoch {d}, at least {d}), groups {d}, lanes {d}, " ++
                "chunk {d} B, window {d} B, elements <= {d}, tags {d} ({d} in flight), calls {d}, ",
            .{
                config.peers_start,    config.peers_max,     config.initial_world_size,
                config.min_world_size, config.groups,        config.lanes,
                config.chunk_bytes,    config.window_bytes,  config.count_max,
                config.tags,           config.in_flight_max, config.calls,
            },
        );
        inline for (std.meta.fields(StateRules)) |field| {
            if (@field(config.state_rules, field.name)) try writer.writeAll(field.name ++ ", ");
        }
        try writer.writeAll(if (config.keeps_state) "states kept; faults:" else "faults:");
        var any = false;
        for (std.enums.values(Class)) |class| {
            if (!config.has(class)) continue;
            any = true;
            try writer.print(" {t}={t}", .{ class, config.levels.get(class) });
        }
        if (config.only_cuts) try writer.writeAll(" (and a ring is always left)");
        if (config.only_resets) try writer.writeAll(" (and everybody is back in time)");
        if (config.profile != .drawn) try writer.print(" (profile {t})", .{config.profile});
        for (config.strikes) |maybe| if (maybe) |strike| {
            any = true;
            try writer.print(" {f}", .{strike});
        };
        if (!any) try writer.writeAll(" none");
    }
};

/// A stream of draws of its own for each purpose.
pub fn stream(seed: u64, purpose: []const u8) Prng {
    return Prng.init(std.hash.Wyhash.hash(seed, purpose));
}

test "a class keeps its draws when others are switched off, and levels vary" {
    var counts = std.EnumArray(Level, u32).initFill(0);
    for (0..500) |seed| {
        const config = Config.draw(seed);
        try std.testing.expect(config.initial_world_size <= config.peers_start);
        for (std.enums.values(Class)) |class| {
            counts.getPtr(config.levels.get(class)).* += 1;
        }
    }
    for (std.enums.values(Level)) |level| try std.testing.expect(counts.get(level) > 500);
}

test "a world of few calls and many groups has time for a newcomer that waits a minute" {
    // Seed 226467, when it had these sizes: its last user got on 59 s after all was well, by when
    // those of all five groups had taken this many events.
    var config: Config = .draw(0);
    config.peers_max = 4;
    config.groups = 5;
    config.calls = 16;
    try std.testing.expect(config.events_max() > 2 * 5_313_855);
}

test "some seeds draw a large world, some of these one without a full mesh, some eight groups" {
    var large: u32 = 0;
    var without_mesh: u32 = 0;
    var groups_most: u8 = 0;
    for (0..20_000) |seed| {
        const config = Config.draw(seed);
        groups_most = @max(groups_most, config.groups);
        try std.testing.expect(config.peers_max >= config.peers_start);
        if (config.processes_max() == small_max) continue;
        try std.testing.expect(config.peers_start > small_max and config.peers_start <= 64);
        large += 1;
        without_mesh += @intFromBool(config.peers_start > base.limits.full_mesh_max);
    }
    try std.testing.expectEqual(8, groups_most);
    try std.testing.expect(large > 10 and without_mesh > 2 and without_mesh < large);
}
