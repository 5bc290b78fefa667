//! Disk: what survives the coordinator of a world: the bytes of its journal, written by appending
//! and by replacing all of them at once. A crash may fall into a write: then a part of what is
//! appended is there, or either the old or the new of what is replaced. What the coordinator has
//! said before is heard, and nothing of what it says afterwards. A disk may be full. Who runs on
//! it: world.zig.

const std = @import("std");
const protocol = @import("protocol");
const faults = @import("faults.zig");
const world_file = @import("world.zig");
const World = world_file.World;
const journal = protocol.journal;

pub const Disk = struct {
    world: *World,
    bytes: std.ArrayList(u8) = .empty,
    /// It takes nothing more until the next start of the coordinator, or until there is room for
    /// what replaces all.
    full: bool = false,
    /// A scenario's: the coordinator dies in the write after so many more.
    dies_after: ?u32 = null,

    pub fn journal_of(disk: *Disk) journal.Journal {
        return .{ .ctx = disk, .vtable = &.{ .append = append, .replace = replace } };
    }

    fn append(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        const written = try disk.part_of(bytes.len) orelse bytes.len;
        disk.bytes.appendSlice(disk.world.gpa, bytes[0..written]) catch @panic("out of memory");
    }

    fn replace(ctx: *anyopaque, bytes: []const u8) error{JournalFailed}!void {
        const disk: *Disk = @ptrCast(@alignCast(ctx));
        if (disk.full and !faults.chance(disk.world, .full_journal, 2)) disk.full = false;
        if (try disk.part_of(2)) |renamed| if (renamed == 0) return;
        disk.bytes.clearRetainingCapacity();
        disk.bytes.appendSlice(disk.world.gpa, bytes) catch @panic("out of memory");
    }

    /// How much of a write is done before the coordinator dies; null: it lives.
    fn part_of(disk: *Disk, length: usize) error{JournalFailed}!?usize {
        const world = disk.world;
        const node = &world.nodes[world_file.coordinator_index];
        if (node.dies) return 0; // what a dead process writes
        if (!disk.full and faults.chance(world, .full_journal, 20)) {
            world.statistics.fault(.full_journal);
            world.note("the disk of the coordinator is full", .{});
            disk.full = true;
        }
        if (disk.full) return error.JournalFailed;
        if (disk.dies_after) |*writes| {
            if (writes.* == 0) {
                disk.dies_after = null;
                disk.die();
                return length / 2;
            }
            writes.* -= 1;
        }
        if (!faults.chance(world, .torn_journal, 6)) return null;
        world.statistics.fault(.torn_journal);
        disk.die();
        const part = world.faults.stream(.torn_journal).below(length + 1);
        world.note("the coordinator dies with {d} of {d} bytes written", .{ part, length });
        return part;
    }

    /// Whatever was to be on disk before it was said is a lie from now on.
    fn die(disk: *Disk) void {
        disk.world.flush_coordinator();
        disk.world.nodes[world_file.coordinator_index].dies = true;
    }
};
