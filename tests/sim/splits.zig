//! Splits: users that make sub-groups of their group's members, at places of the program that all
//! members agree on (engine/protocol/door.zig). The colors and the order of each are drawn from
//! the place, so all know them without talking. A user waits there until it is in its sub-group,
//! and keeps that until it splits again. The oracle: a sub-group has exactly the founders that the
//! coordinator had not lost to the parent's epoch, in their order, and all members see the same.

const std = @import("std");
const base = @import("base");
const session_layer = @import("session");
const program = @import("program.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const session_user = session_layer.user;
const Group = session_layer.Group;
const Instant = base.Instant;
const PeerId = base.PeerId;
const User = users.User;
const World = world_file.World;
const limits = base.limits;

const deadline_ns = 20 * std.time.ns_per_s;
const colors_max = 3;
const name_bytes_max = 64;

pub const Sub = struct {
    group: ?*Group = null,
    place: program.Key = .{ .group = 0, .epoch = 0, .round = 0, .index = 0 },
    color: u8 = 0,
    founders: [limits.peers_max]PeerId = undefined,
    founders_count: usize = 0,
    state: enum { none, joining, admitting, inside } = .none,
    /// So many this user has asked for, so that an event of another one is told apart.
    count: u32 = 0,
    /// On the clock of its node.
    deadline: Instant = 0,
    heard: [4]Heard = undefined,
    heard_count: u8 = 0,

    const Heard = enum { ready, admitted, over };
};

/// The members of each sub-group, as the first to enter has seen them.
pub const Seen = std.AutoHashMapUnmanaged(u64, u64);

/// Whether members split at this place, after a safe point.
fn is_drawn(user: *const User) bool {
    const world = user.world();
    if (!world.config.splits or world.scripted or user.index > 0) return false;
    return draw(user, "split", 0) % 3 == 0;
}

/// The same for all members of an epoch.
fn draw(user: *const User, what: []const u8, rank: u64) u64 {
    const place = [_]u64{ user.index, user.epoch, user.round_number, rank };
    const seed = std.hash.Wyhash.hash(user.world().config.seed, what);
    return std.hash.Wyhash.hash(seed, std.mem.sliceAsBytes(&place));
}

/// The color of a rank; `colors_max`: none.
fn color_of(user: *const User, rank: usize) u8 {
    const colors = 1 + draw(user, "colors", 0) % colors_max;
    const drawn = draw(user, "color", rank) % (4 * colors + 1);
    return if (drawn == 4 * colors) colors_max else @intCast(drawn % colors);
}

/// Begins a split, if there is one at this place; the user waits until it is over.
pub fn begin(user: *User) bool {
    const world = user.world();
    if (!is_drawn(user) or world.phase == .ending) return false;
    drop(user);
    const parent = user.group.?;
    const sub = &user.sub;
    sub.color = color_of(user, parent.rank());
    if (sub.color == colors_max) return false;
    sub.place = .{
        .group = user.index,
        .epoch = user.epoch,
        .round = user.round_number,
        .index = sub.color,
    };
    list_founders(user, parent);
    var room: [name_bytes_max]u8 = undefined;
    const name = std.fmt.bufPrint(&room, "{s}@{d}.{d}:{d}", .{
        parent.name, user.epoch, user.round_number, sub.color,
    }) catch unreachable;
    found(user, name) catch |err| {
        // In a fuzzed world a peer may have been told that one member is there twice. One that was
        // admitted and removed before its user came here is a member of nothing.
        const is_gone = err == error.NotReady and
            (parent.state != .joined or parent.member.current == null);
        if (world.fuzz == null and !is_gone)
            world.checkers.fail(.interface, "p{d} cannot split: {t}", .{ user.node.index, err });
        return false;
    };
    await_deadline(user, user.node.global(sub.deadline));
    return true;
}

/// Asks for a sub-group of the founders that are listed.
fn found(user: *User, name: []const u8) !void {
    const sub = &user.sub;
    const here = user.node.here();
    const founders = sub.founders[0..sub.founders_count];
    const group = try session_user.found(user.node.session.?, here, name, user.group.?, founders);
    group.user = @intFromPtr(user);
    sub.group = group;
    sub.state = .joining;
    sub.deadline = here + deadline_ns;
    sub.count += 1;
    user.world().note("p{d} asks for {s}, of {d}", .{ user.node.index, name, founders.len });
}

/// In a script; it enters by itself when it may.
pub fn found_scripted(user: *User, name: []const u8, founders: []const PeerId) !void {
    drop(user);
    const sub = &user.sub;
    sub.place = .{ .group = user.index, .epoch = user.group.?.epoch(), .round = 0, .index = 0 };
    @memcpy(sub.founders[0..founders.len], founders);
    sub.founders_count = founders.len;
    try found(user, name);
}

/// By keys, of which some are equal, and then by ranks.
fn list_founders(user: *User, parent: *const Group) void {
    const sub = &user.sub;
    sub.founders_count = 0;
    for (0..4) |key| for (parent.members(), 0..) |id, rank| {
        if (color_of(user, rank) != sub.color or draw(user, "key", rank) % 4 != key) continue;
        sub.founders[sub.founders_count] = id;
        sub.founders_count += 1;
    };
}

fn await_deadline(user: *const User, at: Instant) void {
    user.world().at(at, .{ .split_due = .{
        .node = user.node.index,
        .user = user.index,
        .count = user.sub.count,
    } });
}

/// The user gives up a group that has not come about; the session gives up an admit by itself.
pub fn due(user: *User, count: u32) void {
    const sub = &user.sub;
    const world = user.world();
    if (sub.count != count) return;
    switch (sub.state) {
        .none, .inside => return,
        .joining => {
            fail_calm(user, "was not made in time");
            over(user);
        },
        .admitting => {
            const latest = users.latest_return(user.node, sub.deadline);
            if (world.now < latest) return await_deadline(user, latest);
            world.checkers.fail(.p7_bounded_wait, "p{d}: the admit of a sub-group outlives its " ++
                "deadline", .{user.node.index});
        },
    }
    world.settle(user.node);
}

fn fail_calm(user: *const User, what: []const u8) void {
    const world = user.world();
    if (!world.config.is_calm() or world.phase != .safety) return;
    // Cuts leave a ring of all members, but perhaps no link between these founders.
    if (world.config.only_cuts) return;
    world.checkers.fail(.spurious, "p{d}: a sub-group {s}, although nothing was wrong", .{
        user.node.index, what,
    });
}

/// A callback: it only takes notes.
pub fn hear(user: *User, event: session_layer.GroupEvent) void {
    const sub = &user.sub;
    user.world().note("p{d} sub-group: {t}", .{ user.node.index, event });
    std.debug.assert(sub.heard_count < sub.heard.len);
    sub.heard[sub.heard_count] = switch (event) {
        .ready => .ready,
        .admitted => .admitted,
        .refused, .join_failed, .admit_failed, .gone => .over,
        .optimized => unreachable, // nobody asks for the paths of a sub-group
    };
    sub.heard_count += 1;
}

/// The user looks at what happened; true if there was anything.
pub fn listen(user: *User) bool {
    const sub = &user.sub;
    const any = sub.heard_count > 0;
    var place: u8 = 0;
    // over() empties the list.
    while (place < sub.heard_count) : (place += 1) switch (sub.heard[place]) {
        .ready => {
            sub.state = .admitting;
            const s = user.node.session.?;
            const here = user.node.here();
            session_user.admit(s, here, sub.group.?, sub.deadline) catch over(user);
        },
        .admitted => {
            sub.state = .inside;
            check(user);
            go_on(user);
        },
        .over => {
            if (sub.state != .inside) fail_calm(user, "failed");
            over(user);
        },
    };
    sub.heard_count = 0;
    return any;
}

fn over(user: *User) void {
    const waits = user.sub.state != .inside;
    drop(user);
    if (!waits) return;
    user.world().statistics.subs_failed += 1;
    go_on(user);
}

/// The world comes to an end.
pub fn give_up(user: *User) void {
    drop(user);
    go_on(user);
}

fn go_on(user: *User) void {
    if (user.state == .splitting) users.split_over(user);
}

/// Leaves the sub-group, if there is one.
pub fn drop(user: *User) void {
    const sub = &user.sub;
    const group = sub.group orelse return;
    sub.group = null;
    sub.state = .none;
    sub.heard_count = 0;
    users.leave_group(user, group);
}

// ---- the oracle

fn check(user: *User) void {
    const sub = &user.sub;
    const world = user.world();
    const group = sub.group.?;
    world.statistics.subs += 1;
    world.statistics.subs_short += @intFromBool(group.world_size() < sub.founders_count);
    if (user.node.is_insider) return;
    const founders = sub.founders[0..sub.founders_count];
    const members = group.members();
    var next: usize = 0;
    var hash: std.hash.Wyhash = .init(group.epoch());
    hash.update(group.name);
    const seen_as = hash.final();
    for (founders, 0..) |id, index| {
        if (next < members.len and members[next].eql(id)) {
            next += 1;
            hash.update(&id.bytes);
        } else if (may_be_missed(world, sub, id)) {
            continue;
        } else return world.checkers.fail(.founders, "p{d}: {s} is without founder {d}, {s}", .{
            user.node.index, group.name, index, id.short(),
        });
    }
    if (next < members.len) return world.checkers.fail(
        .founders,
        "p{d}: {s} has members beside its founders, or in another order",
        .{ user.node.index, group.name },
    );
    const entry = world.subs_seen.getOrPut(world.gpa, seen_as) catch @panic("out of memory");
    if (!entry.found_existing) entry.value_ptr.* = hash.final();
    if (entry.value_ptr.* != hash.final()) world.checkers.fail(
        .founders,
        "p{d} sees other members of {s} than others do",
        .{ user.node.index, group.name },
    );
}

/// Only one that the coordinator has lost to the parent's epoch. Nobody can tell what it knew of an
/// epoch that is over.
fn may_be_missed(world: *const World, sub: *const Sub, id: PeerId) bool {
    if (world.nodes[world_file.coordinator_index].state != .up) return true;
    if (world.checkers.forgetful) return true;
    const parent = world.coordinator.run.group_named(users.group_names[sub.place.group]) orelse
        return true;
    const epoch = parent.epoch_of(sub.place.epoch) orelse return true;
    return !epoch.alive.has(epoch.ranks.get(id) orelse return false);
}
