//! Told: reads along with the coordinator's messages, and fails the world if one relies on a record
//! that the disk does not have yet: a group, an epoch, a removal, an attempt, a decision (P8). It
//! knows nothing of how the coordinator finds out; it reads the contents of the disk from its
//! bytes. Where those come from: disk.zig.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const protocol = @import("protocol");
const world_file = @import("world.zig");
const World = world_file.World;
const Allocator = std.mem.Allocator;
const control = wire.control;
const journal = protocol.journal;

const Key = struct { group: u16, epoch: u64 };

const Epoch = struct {
    members: []base.PeerId,
    out: base.Mask,
    /// The file that is there names it. Else it was over when all was written anew: who is out of
    /// it need not be on the disk.
    is_named: bool,
};

const Decision = struct { key: Key, op: control.OpId, number: u64, is_commit: bool };

/// The facts in the records on the disk, and in those of earlier files: members may be in epochs of
/// which a journal that was written anew says nothing any more.
pub const Facts = struct {
    groups: u64 = 0,
    epochs: std.AutoHashMapUnmanaged(Key, Epoch) = .empty,
    decisions: std.AutoHashMapUnmanaged(Decision, void) = .empty,
    /// The last attempt of each epoch.
    attempts: std.AutoHashMapUnmanaged(Key, u32) = .empty,
    /// Epochs of a group up to this number that the file does not name are over.
    over: [base.limits.groups_max]u64 = @splat(0),
    /// How much of the file was read.
    read_bytes: usize = 0,

    /// The file is another one now.
    pub fn forget_journal(facts: *Facts) void {
        facts.read_bytes = 0;
        var it = facts.epochs.valueIterator();
        while (it.next()) |epoch| epoch.is_named = false;
    }

    /// Reads what was added since.
    pub fn read(facts: *Facts, gpa: Allocator, bytes: []const u8) void {
        var replay: journal.Replay = .{
            .bytes = bytes,
            .good_bytes = facts.read_bytes,
            .records = @intFromBool(facts.read_bytes > 0),
        };
        // A journal with changed bits is read as far as it goes: what was said of the rest before
        // is known, and what comes behind is not believed.
        while (replay.next() catch null) |record| facts.take(gpa, &record);
        facts.read_bytes = replay.good_bytes;
    }

    fn take(facts: *Facts, gpa: Allocator, record: *const journal.Record) void {
        switch (record.*) {
            .settings => {},
            .start => |body| facts.over = @splat(body.ended_epoch),
            .group => |body| {
                facts.groups |= @as(u64, 1) << @intCast(body.id);
                facts.over[body.id] = @max(facts.over[body.id], body.last_epoch);
            },
            .activation => |*kept| {
                const body = &kept.told;
                const key: Key = .{ .group = body.group, .epoch = body.epoch };
                const entry = facts.epochs.getOrPut(gpa, key) catch @panic("out of memory");
                if (entry.found_existing) {
                    entry.value_ptr.is_named = true;
                    return;
                }
                const ids = gpa.alloc(base.PeerId, body.members.count) catch
                    @panic("out of memory");
                var it = body.members.iterator();
                for (ids) |*id| id.* = it.next().?;
                entry.value_ptr.* = .{ .members = ids, .out = .empty, .is_named = true };
            },
            .removal => |body| {
                var it = body.epochs.iterator();
                while (it.next()) |from| {
                    const key: Key = .{ .group = body.group, .epoch = from.epoch };
                    const epoch = facts.epochs.getPtr(key) orelse continue;
                    for (epoch.members, 0..) |id, rank| if (id.eql(body.peer)) epoch.out.set(rank);
                }
            },
            .attempt, .commit, .abort => unreachable, // of the log
        }
    }

    /// Reads records that were added to the log.
    pub fn read_log(facts: *Facts, gpa: Allocator, records: []const u8) void {
        var replay: journal.LogReplay = .{ .rest = records };
        while (replay.next()) |record| switch (record) {
            .attempt => |body| facts.attempts.put(
                gpa,
                .{ .group = body.group, .epoch = body.epoch },
                body.attempt,
            ) catch @panic("out of memory"),
            inline .commit, .abort => |body| facts.decisions.put(gpa, of(&body), {}) catch
                @panic("out of memory"),
            .removal => {}, // told when the journal has it
            .settings, .start, .group, .activation => unreachable, // of the journal
        };
    }

    fn of(body: anytype) Decision {
        return .{
            .key = .{ .group = body.group, .epoch = body.epoch },
            .op = body.op,
            .number = body.decision,
            .is_commit = @TypeOf(body.*) == control.Commit,
        };
    }

    /// Why a peer may not hear this yet; null if it may.
    fn forbids(
        facts: *const Facts,
        message: *const control.Message,
        node: *const world_file.Node,
        to: base.PeerId,
    ) ?[]const u8 {
        switch (message.*) {
            .joined => |body| if (facts.groups >> @intCast(body.group) & 1 == 0)
                return "a group that is not on the disk",
            .activate => |body| if (!facts.epochs.contains(.{
                .group = body.group,
                .epoch = body.epoch,
            })) return "an epoch that is not on the disk",
            .view => |body| {
                const key: Key = .{ .group = body.group, .epoch = body.epoch };
                // A view of an epoch that is over may still be under way on a slow line, also of
                // one that began and ended while no journal could be written.
                const is_over = body.epoch <= facts.over[body.group];
                const epoch = facts.epochs.getPtr(key) orelse
                    return if (is_over) null else "a view of an epoch that is not on the disk";
                if (!epoch.is_named) return null;
                const known = base.Mask.full(epoch.members.len).without(&epoch.out);
                if (!body.alive.covers(&known)) return "a loss that is not on the disk";
                const attempt = facts.attempts.get(key) orelse 1;
                if (body.attempt > attempt) return "an attempt that is not in the log";
            },
            inline .commit, .abort => |body| {
                const key: Key = .{ .group = body.group, .epoch = body.epoch };
                // It may be a decision of an epoch that was over before the log was written again.
                const epoch = facts.epochs.getPtr(key) orelse return null;
                if (!epoch.is_named) return null;
                if (has_closed(node, key)) return null;
                const is_logged = facts.decisions.contains(of(&body));
                if (!is_logged) return "a decision that is not in the log";
            },
            .expelled => |body| {
                if (body.group == std.math.maxInt(u16)) return "a removal from the run";
                // Whoever is out of the last epoch was out of those before, or went on to it.
                var last: ?*const Epoch = null;
                var number: u64 = 0;
                var it = facts.epochs.iterator();
                while (it.next()) |entry| {
                    if (entry.key_ptr.group != body.group or entry.key_ptr.epoch < number) continue;
                    if (!entry.value_ptr.is_named) continue;
                    number = entry.key_ptr.epoch;
                    last = entry.value_ptr;
                }
                const epoch = last orelse return null;
                for (epoch.members, 0..) |id, rank| {
                    if (id.eql(to) and !epoch.out.has(rank))
                        return "its removal, which is not on the disk";
                }
            },
            else => {},
        }
        return null;
    }
};

/// It has nothing in flight there, and takes no notice of what is said of it.
fn has_closed(node: *const world_file.Node, key: Key) bool {
    const session = node.session orelse return true;
    for (session.groups.items) |group| {
        if (group.member.group == key.group) return group.member.epoch_of(key.epoch) == null;
    }
    return true;
}

pub const Told = struct {
    bytes: std.ArrayList(u8) = .empty,
    greeted: bool = false,
    /// Whom the coordinator takes the other side for: fuzzed worlds change ids on their way.
    id: ?base.PeerId = null,

    pub fn hear(
        told: *Told,
        world: *World,
        to: world_file.NodeIndex,
        connection: *const protocol.Connection,
        bytes: []const u8,
    ) void {
        if (connection.peer) |peer| told.id = peer.id;
        told.bytes.appendSlice(world.gpa, bytes) catch @panic("out of memory");
        var rest = told.bytes.items;
        while (true) {
            if (!told.greeted) {
                if (rest.len < wire.hello.answer_bytes) break;
                told.greeted = true;
                rest = rest[wire.hello.answer_bytes..];
            }
            if (rest.len < control.header_bytes) break;
            const length = control.body_length(rest[0..control.header_bytes]) catch unreachable;
            const total = control.header_bytes + length;
            if (rest.len < total) break;
            const message = control.decode(rest[0..total]) catch unreachable; // its own
            told.judge(world, to, &message);
            rest = rest[total..];
        }
        std.mem.copyForwards(u8, told.bytes.items[0..rest.len], rest);
        told.bytes.shrinkRetainingCapacity(rest.len);
    }

    fn judge(
        told: *const Told,
        world: *World,
        to: world_file.NodeIndex,
        message: *const control.Message,
    ) void {
        // With a journal that has failed everything may be said.
        if (world.coordinator.run.journal_state != .ok or to == world_file.nobody) return;
        const node = &world.nodes[to];
        // It tells of groups and epochs that it is not in, and is answered about those.
        if (node.is_insider) return;
        // A changed message may say that somebody has seen what nobody was told yet.
        if (world.fuzz != null and (message.* == .abort or message.* == .commit)) return;
        const facts = &world.disk.facts;
        const why = facts.forbids(message, node, told.id orelse node.id) orelse return;
        world.checkers.fail(
            .p8_restart,
            "peer {d} is told ({t}) {s}",
            .{ node.digit(), message.*, why },
        );
    }
};
