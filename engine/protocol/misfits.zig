//! Misfits: calls of one operation that are not the one of its record, and who made them. The
//! consequences: misfit.zig.

const std = @import("std");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const control = wire.control;
const Descriptor = control.Descriptor;

pub const Misfits = struct {
    said: std.ArrayList(Said) = .empty,
    /// Some member has seen another call than its own.
    is_open: bool = false,
    /// A newcomer and a member have other sizes for the shards that they exchange.
    apart: ?Apart = null,

    pub const Said = struct { rank: u16, descriptor: Descriptor };
    const Apart = struct { newcomer: Said, member: Said };

    pub fn deinit(misfits: *Misfits, gpa: Allocator) void {
        misfits.said.deinit(gpa);
    }

    pub fn of(misfits: *const Misfits, rank: u16) ?*const Said {
        for (misfits.said.items) |*said| if (said.rank == rank) return said;
        return null;
    }
};
