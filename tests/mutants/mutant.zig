//! mutant: the switch that the mutated copies of the engine look at, and what is known of each
//! mutation. Generated copies alone have `mutant.on` in them (generate.zig); in all other builds
//! the list is empty, and nothing asks.

const listed = @import("mutants_listed");

pub const Mutant = struct {
    name: []const u8,
    /// The rule that it breaks, in one line.
    rule: []const u8,
    /// Where its first edit is.
    file: []const u8,
    line: u32,
    /// The tests that must fail with it.
    transcripts: []const []const u8 = &.{},
    units: []const []const u8 = &.{},
    checker: ?[]const u8 = null,
    /// Only seeds that lose the coordinator can tell.
    restarts: bool = false,
    /// It may end the process that it is in.
    panics: bool = false,
};

pub const list: []const Mutant = &listed.list;

/// The number of the one that is on, counted from 1.
pub var active: u16 = 0;

comptime {
    @export(&active, .{ .name = "pccl_mutant" }); // for level_mutant.zig
}

pub inline fn on(comptime number: u16) bool {
    return active == number;
}

/// Null: there is none of that name.
pub fn number_of(name: []const u8) ?u16 {
    for (list, 1..) |*item, number| if (eql(item.name, name)) return @intCast(number);
    return null;
}

fn eql(a: []const u8, b: []const u8) bool {
    return a.len == b.len and for (a, b) |x, y| {
        if (x != y) break false;
    } else true;
}
