//! Insider: a peer with the token that breaks the rules. Its engine is the real one. The engine's
//! messages go through here and are changed, said twice, late or not at all, and other messages are
//! said besides. An insider lies as somebody that knows the protocol: most lies still parse. Which
//! nodes are insiders, and what they do, is drawn once for a world; they are gone when all is well.
//! excused.zig says what honest peers are no longer promised.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Fuzz = @import("fuzz.zig").Fuzz;
const Unit = @import("units.zig").Unit;
const Units = @import("units.zig").Units;
const faults = @import("faults.zig");
const swarm = @import("swarm.zig");
const users = @import("users.zig");
const world_file = @import("world.zig");
const Config = swarm.Config;
const Message = wire.control.Message;
const Node = world_file.Node;
const NodeIndex = world_file.NodeIndex;
const Prng = base.Prng;
const Ref = world_file.Ref;
const World = world_file.World;
const ms = world_file.ms;

const Tag = std.meta.Tag(Message);

/// By so many safe points an insider may be off.
const miscounts_max = 8;

pub const Trick = enum {
    /// Bytes or fields become others.
    mutate,
    /// A field of a message becomes another legal value.
    lie,
    repeat,
    /// Later, behind what follows.
    delay,
    withhold,
    /// A message that somebody else has sent, with a lie in it perhaps.
    invent,
    /// Data is not what it should be, and arrives. Only those who lie about data do it, more often
    /// than anything else.
    corrupt,
};

pub const Insiders = struct {
    prng: Prng,
    /// It changes bytes.
    mutator: Fuzz,
    nodes: [2]NodeIndex,
    count: u8,
    /// One unit in so many is played a trick on.
    one_in: u64,
    tricks: std.EnumSet(Trick),
    /// They never say these.
    never: std.EnumSet(Tag) = .initEmpty(),
    lies_about_data: bool,
    /// They say as they come back that they have seen decisions that nobody made.
    forges: bool = false,

    /// In a world that follows a transcript: they do what it says, and nothing besides.
    pub const scripted: Insiders = .{
        .prng = .init(1),
        .mutator = .init(1),
        .nodes = undefined,
        .count = 0,
        .one_in = 0,
        .tricks = .initEmpty(),
        .lies_about_data = false,
    };

    pub fn init(config: *const Config) ?Insiders {
        if (!config.has(.insider)) return null;
        var prng = swarm.stream(config.seed, "insiders");
        const heavy = config.levels.get(.insider) == .heavy;
        var insiders: Insiders = .{
            .prng = prng,
            .mutator = .init(config.seed),
            .nodes = undefined,
            .count = if (heavy) @intCast(prng.between(1, 2)) else 1,
            .one_in = prng.between(if (heavy) 2 else 16, if (heavy) 32 else 128),
            .tricks = .initEmpty(),
            .lies_about_data = prng.chance(2),
        };
        var forgery = swarm.stream(config.seed, "forgery");
        insiders.forges = forgery.chance(2);
        for (&insiders.nodes) |*node| node.* = @intCast(prng.between(1, config.peers_start));
        while (insiders.tricks.count() == 0) for (std.enums.values(Trick)) |trick| {
            if (prng.chance(2)) insiders.tricks.insert(trick);
        };
        // Messages that every operation, or every round, waits for.
        const awaited = [_]Tag{
            .done, .prepared, .safe_points, .activated, .report_end, .state_offer,
        };
        if (prng.chance(3)) insiders.never.insert(awaited[prng.below(awaited.len)]);
        insiders.prng = prng;
        return insiders;
    }

    pub fn has(insiders: *const Insiders, node: NodeIndex) bool {
        return std.mem.indexOfScalar(NodeIndex, insiders.nodes[0..insiders.count], node) != null;
    }
};

/// Through which an insider says what one of its connections carries.
pub const Mouth = struct {
    units: Units = .{},
    /// On its way to the network.
    out: std.ArrayList(u8) = .empty,
    out_start: usize = 0,
    /// Said later, each at its time.
    later: std.ArrayList(Later) = .empty,
    last: []const u8 = "",

    const Later = struct { at: base.Instant, bytes: []const u8 };

    fn say(mouth: *Mouth, world: *World, bytes: []const u8) void {
        mouth.out.appendSlice(world.gpa, bytes) catch @panic("out of memory");
    }
};

/// The engine of an insider sends these bytes. All are taken.
pub fn say(world: *World, ref: Ref, bytes: []const u8) void {
    const connection = world.connections.items[ref.connection];
    const mouth = &connection.mouths[ref.side];
    mouth.units.feed(world.gpa, bytes);
    while (mouth.units.next(connection.is_control, ref.side)) |unit| {
        say_unit(world, ref, mouth, unit);
    }
    drain(world, ref);
}

fn say_unit(world: *World, ref: Ref, mouth: *Mouth, unit: Unit) void {
    const insiders = &world.insiders.?;
    const prng = &insiders.prng;
    const known = switch (unit.kind) {
        .message, .frame => true,
        // It has an id of its own, and says so: see excused.zig, names.
        .hello, .answer, .noise => false,
    };
    if (!known or world.phase != .safety) return mouth.say(world, unit.bytes);
    if (unit.kind == .message) {
        const tag = std.enums.fromInt(Tag, number_of(unit.bytes)).?; // its engine knows no others
        if (insiders.never.contains(tag)) return;
        if (insiders.forges and tag == .epoch_report) return forge(world, ref, mouth, unit.bytes);
    }
    if (world.scripted) return mouth.say(world, unit.bytes);
    const corrupts = insiders.lies_about_data and insiders.tricks.contains(.corrupt) and
        unit.kind == .frame and unit.bytes.len > wire.frame.header_bytes;
    if (prng.chance(insiders.one_in)) play(world, ref, mouth, unit) //
    else if (corrupts and prng.chance(1 + insiders.one_in / 4)) corrupt(world, mouth, unit) //
    else mouth.say(world, unit.bytes);
    if (prng.chance(8)) mouth.last = world.gpa.dupe(u8, unit.bytes) catch @panic("out of memory");
}

fn number_of(message: []const u8) u16 {
    return std.mem.readInt(u16, message[4..6], .little);
}

fn play(world: *World, ref: Ref, mouth: *Mouth, unit: Unit) void {
    const insiders = &world.insiders.?;
    const prng = &insiders.prng;
    const tricks = std.enums.values(Trick);
    const trick = while (true) {
        const drawn = tricks[prng.below(tricks.len)];
        if (insiders.tricks.contains(drawn)) break drawn;
    };
    world.note("p{d} plays a trick: {t}", .{ world.end(ref).node, trick });
    if (trick != .corrupt) world.statistics.tricks.getPtr(trick).* += 1;
    world.statistics.fault(.insider);
    switch (trick) {
        .mutate => mouth.say(world, if (may_change(insiders, unit))
            changed(world, insiders, unit)
        else
            unit.bytes),
        .lie => if (is_count(unit))
            miscount(world, mouth, unit.bytes)
        else if (unit.kind == .message and may_change(insiders, unit))
            tell_lie(world, mouth, unit.bytes)
        else
            mouth.say(world, unit.bytes),
        .repeat => {
            mouth.say(world, unit.bytes);
            mouth.say(world, if (prng.chance(2)) unit.bytes else mouth.last);
        },
        .delay => {
            const at = world.now + faults.draw_time(prng, 3000);
            const bytes = world.gpa.dupe(u8, unit.bytes) catch @panic("out of memory");
            mouth.later.append(world.gpa, .{ .at = at, .bytes = bytes }) catch
                @panic("out of memory");
            world.at(at, .{ .writable = ref });
        },
        .withhold => {},
        .invent => {
            mouth.say(world, unit.bytes);
            invent(world, mouth, unit.kind);
        },
        .corrupt => if (insiders.lies_about_data and unit.kind == .frame and
            unit.bytes.len > wire.frame.header_bytes)
            corrupt(world, mouth, unit)
        else
            mouth.say(world, unit.bytes),
    }
}

/// It says as it comes back that it has seen more, or fewer, decisions than it has.
fn forge(world: *World, ref: Ref, mouth: *Mouth, bytes: []const u8) void {
    const prng = &world.insiders.?.prng;
    var message = wire.control.decode(bytes) catch unreachable; // its engine's
    const seen = &message.epoch_report.decisions_seen;
    seen.* = if (prng.chance(2)) seen.* + 1 + prng.below(3) else prng.below(seen.* + 1);
    world.note("p{d} says that it has seen {d} decisions", .{ world.end(ref).node, seen.* });
    const lie = world.gpa.alloc(u8, bytes.len) catch @panic("out of memory");
    mouth.say(world, wire.control.encode(message, lie) catch unreachable);
}

fn corrupt(world: *World, mouth: *Mouth, unit: Unit) void {
    const copy = world.gpa.dupe(u8, unit.bytes) catch @panic("out of memory");
    const prng = &world.insiders.?.prng;
    copy[prng.between(wire.frame.header_bytes, copy.len - 1)] +%= 1;
    world.statistics.tricks.getPtr(.corrupt).* += 1;
    mouth.say(world, copy);
}

/// Says how many safe points it has passed.
fn is_count(unit: Unit) bool {
    return unit.kind == .message and number_of(unit.bytes) == @intFromEnum(Tag.safe_points);
}

/// It has passed some safe points more than it has, or fewer.
fn miscount(world: *World, mouth: *Mouth, bytes: []const u8) void {
    var message = wire.control.decode(bytes) catch return mouth.say(world, bytes);
    const prng = &world.insiders.?.prng;
    const count = &message.safe_points.count;
    const by = prng.between(1, miscounts_max);
    count.* = if (prng.chance(2)) count.* -| by else count.* + by;
    const room = world.gpa.alloc(u8, bytes.len) catch @panic("out of memory");
    mouth.say(world, wire.control.encode(message, room) catch bytes);
}

/// An insider that does not lie about data leaves alone what carries or describes any. None boasts
/// of many safe points: that has newcomers wait for 4,096, more than a seed passes in its time, as
/// the transcript an_insider_far_ahead shows.
fn may_change(insiders: *const Insiders, unit: Unit) bool {
    if (is_count(unit)) return false;
    if (insiders.lies_about_data) return true;
    switch (unit.kind) {
        .frame => {
            const header = wire.frame.decode(unit.bytes[0..wire.frame.header_bytes]) catch
                return false;
            return switch (header.kind) {
                .open, .credit, .ping, .want, .lack, .probe => true,
                .partial, .final, .leaf, .hashes => false,
            };
        },
        .message => return switch (std.enums.fromInt(Tag, number_of(unit.bytes)) orelse
            return false) {
            .report_op, .state_offer, .state_tensors => false,
            else => true,
        },
        .hello, .answer, .noise => return false,
    }
}

fn changed(world: *World, insiders: *Insiders, unit: Unit) []const u8 {
    const copy = world.gpa.dupe(u8, unit.bytes) catch @panic("out of memory");
    insiders.mutator.change_all(copy);
    return copy;
}

fn invent(world: *World, mouth: *Mouth, kind: Unit.Kind) void {
    const insiders = &world.insiders.?;
    const prng = &insiders.prng;
    const heard = if (world.overheard) |o| o else return;
    if (kind == .message) {
        const message = heard.messages.pick(prng) orelse return;
        if (!may_change(insiders, .{ .kind = .message, .bytes = message })) return;
        if (prng.chance(2)) return mouth.say(world, message);
        return tell_lie(world, mouth, message);
    }
    const frame = heard.frames.pick(prng) orelse return;
    if (may_change(insiders, .{ .kind = .frame, .bytes = frame })) mouth.say(world, frame);
}

/// One field becomes something else that may be said.
fn tell_lie(world: *World, mouth: *Mouth, bytes: []const u8) void {
    var message = wire.control.decode(bytes) catch return mouth.say(world, bytes);
    const liar: Liar = .{ .world = world, .prng = &world.insiders.?.prng };
    switch (message) {
        inline else => |*body| liar.change(@TypeOf(body.*), body),
    }
    const room = world.gpa.alloc(u8, 2 * bytes.len + 64) catch @panic("out of memory");
    mouth.say(world, wire.control.encode(message, room) catch bytes);
}

const Liar = struct {
    world: *World,
    prng: *Prng,

    fn change(liar: Liar, comptime T: type, value: *T) void {
        switch (@typeInfo(T)) {
            .bool => value.* = !value.*,
            .int => value.* = liar.number(T, value.*),
            .@"enum" => {
                const all = std.enums.values(T);
                value.* = all[liar.prng.below(all.len)];
            },
            .array => |info| if (info.child == u8) {
                value[liar.prng.below(value.len)] +%= @intCast(liar.prng.between(1, 255));
            },
            .@"struct" => |info| if (T == base.PeerId) {
                const nodes = liar.world.nodes;
                value.* = nodes[liar.prng.between(1, nodes.len - 1)].id;
            } else if (T == base.Mask) {
                const bit = liar.prng.below(8);
                if (value.has(bit)) value.unset(bit) else value.set(bit);
            } else if (@hasDecl(T, "is_wire_bytes") or @hasDecl(T, "wire_item")) {
                // Their bytes are the mutator's.
            } else if (info.fields.len > 0) {
                const chosen = liar.prng.below(info.fields.len);
                inline for (info.fields, 0..) |field, index| if (index == chosen) {
                    liar.change(field.type, &@field(value, field.name));
                };
            },
            else => comptime unreachable,
        }
    }

    /// One that is legal, more often than not.
    fn number(liar: Liar, comptime T: type, old: T) T {
        return switch (liar.prng.below(7)) {
            6 => @as(T, 1) << @intCast(liar.prng.below(@typeInfo(T).int.bits)),
            0 => 0,
            1 => old +| 1,
            2 => old -| 1,
            3 => old / 2,
            4 => @truncate(liar.prng.below(70)),
            else => @truncate(liar.prng.next()),
        };
    }
};

/// The words of an insider go to the network as far as there is room.
pub fn drain(world: *World, ref: Ref) void {
    const connection = world.connections.items[ref.connection];
    const mouth = &connection.mouths[ref.side];
    var index: usize = 0;
    while (index < mouth.later.items.len) {
        if (mouth.later.items[index].at > world.now) {
            index += 1;
            continue;
        }
        mouth.say(world, mouth.later.orderedRemove(index).bytes);
    }
    const rest = mouth.out.items[mouth.out_start..];
    const taken = world.write(ref, rest);
    mouth.out_start += taken;
    if (taken < rest.len) {
        connection.pipes[ref.side].blocked = true;
    } else {
        mouth.out.clearRetainingCapacity();
        mouth.out_start = 0;
    }
    world.schedule_delivery(connection, ref.side);
}

/// Comes and goes, or says a lot that nobody has asked for. False if there is none.
pub fn strike(world: *World, prng: *Prng) bool {
    const insiders = if (world.insiders) |*there| there else return false;
    const node = &world.nodes[insiders.nodes[prng.below(insiders.count)]];
    if (node.state != .up or !node.is_insider or node.is_frozen()) return false;
    switch (prng.below(3)) {
        0 => {
            world.note("p{d}, an insider, leaves", .{node.index});
            users.leave(&node.users[@intCast(prng.below(node.users.len))]);
        },
        1 => {
            world.note("p{d}, an insider, ends and comes again", .{node.index});
            world.take_down(node, if (prng.chance(2)) .killed else .reset);
            world.revive(node, faults.draw_time(prng, 500));
        },
        else => {
            const ref = node.control orelse return false;
            if (world.end(ref).state != .open) return false;
            const mouth = &world.connections.items[ref.connection].mouths[ref.side];
            for (0..prng.between(1, 20)) |_| invent(world, mouth, .message);
            drain(world, ref);
        },
    }
    return true;
}

/// A transcript makes an insider of a peer that has said whole units so far.
pub fn mark(world: *World, node: *Node) void {
    if (world.insiders == null) world.insiders = .scripted;
    node.is_insider = true;
    node.was_insider = true;
    for (node.connections.items) |connection| for (&connection.ends, 0..) |*e, side| {
        if (e.node == node.index) connection.mouths[side].units.greeted = true;
    };
}

/// A transcript has it say this, besides what its engine does.
pub fn say_besides(world: *World, node: *const Node, bytes: []const u8) error{Away}!void {
    const ref = node.control orelse return error.Away;
    if (world.end(ref).state != .open) return error.Away;
    world.connections.items[ref.connection].mouths[ref.side].say(world, bytes);
    drain(world, ref);
}

/// All is to be well from now on: who breaks rules is gone, and honest ones take the places.
pub fn end(world: *World) void {
    for (world.nodes[1..]) |*node| {
        if (node.state == .up and node.is_insider) world.take_down(node, .killed);
    }
}
