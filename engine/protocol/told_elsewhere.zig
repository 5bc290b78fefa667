//! Told: the operations in which members wait that others wait for, as it is told to those others
//! (debt.zig).

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const control = wire.control;
const limits = base.limits;

pub const Told = struct {
    items: [limits.elsewhere_told_max]control.Elsewhere = @splat(.{}),
    count: u8 = 0,

    pub fn slice(told: *const Told) []const control.Elsewhere {
        return told.items[0..told.count];
    }

    pub fn add(told: *Told, item: control.Elsewhere) void {
        told.items[told.count] = item;
        told.count += 1;
    }

    /// If the items are links: no item before this one has the same two ends.
    pub fn is_new(told: *const Told, index: usize) bool {
        const link = &told.items[index];
        for (told.items[0..index]) |*other| {
            if (other.rank == link.waits_for and other.waits_for == link.rank) return false;
        }
        return true;
    }

    pub fn forget(told: *Told, rank: u16) void {
        for (told.slice(), 0..) |*item, index| if (item.rank == rank) {
            told.count -= 1;
            told.items[index] = told.items[told.count];
            told.items[told.count] = .{};
            return;
        };
    }

    pub fn eql(told: *const Told, other: *const Told) bool {
        return std.meta.eql(told.*, other.*);
    }

    /// From a message to a member of an epoch of so many.
    pub fn read(
        list: *const wire.codec.List(control.Elsewhere),
        world_size: usize,
    ) error{Unexpected}!Told {
        var told: Told = .{};
        var it = list.iterator();
        while (it.next()) |item| {
            if (item.rank >= world_size or item.waits_for >= world_size) return error.Unexpected;
            if (item.count == 0 or item.count > world_size) return error.Unexpected;
            told.add(item); // no more than its bound
        }
        return told;
    }
};
