//! assembly: the fragments of a piece, which come in on several lanes and in any order: which
//! sixteenths of the piece have a place in memory, and which are there. A piece that comes in whole
//! needs no assembly. Assemblies of sums are in board.zig, of final bytes in ledger.zig, of leaves
//! of a shared state in fetch.zig. A fragment: wire/fragment.zig.

const std = @import("std");
const Fragment = @import("wire").Fragment;

pub const Assembly = struct {
    placed: Fragment.Mask = 0,
    there: Fragment.Mask = 0,

    /// Gives a fragment that is coming in its place. A fragment that comes again must be cut as
    /// before: no byte has two places.
    pub fn place(a: *Assembly, fragment: Fragment) error{ Twice, Overlap }!void {
        if (a.has(fragment)) return error.Twice;
        if (a.placed & fragment.mask() != 0) return error.Overlap;
        a.placed |= fragment.mask();
    }

    /// Whether all sixteenths of a fragment have a place.
    pub fn has(a: *const Assembly, fragment: Fragment) bool {
        return a.placed & fragment.mask() == fragment.mask();
    }

    /// A fragment did not come in whole: its place is free again. Returns whether no fragment of
    /// the piece has a place now.
    pub fn unplace(a: *Assembly, fragment: Fragment) bool {
        a.placed &= ~fragment.mask();
        return a.placed == 0;
    }

    /// Notes that a fragment has arrived whole. Returns whether all fragments of the piece have
    /// arrived.
    pub fn arrived(a: *Assembly, fragment: Fragment) bool {
        a.there |= fragment.mask();
        return a.there == Fragment.all;
    }
};

const expect = std.testing.expect;
const expectError = std.testing.expectError;

test "a piece is there when all fragments are, in any order, and each has its place once" {
    var a: Assembly = .{};
    const first: Fragment = .{ .after = 12 };
    const middle: Fragment = .{ .before = 4, .after = 3 };
    const last: Fragment = .{ .before = 13 };
    for ([_]Fragment{ last, first, middle }) |fragment| try a.place(fragment);
    for ([_]Fragment{ first, middle, last, .{ .before = 14 }, .whole }) |fragment|
        try expectError(error.Twice, a.place(fragment));
    try expect(!a.arrived(middle));
    try expect(!a.arrived(last));
    try expect(a.arrived(first));
}

test "a fragment that reaches into another is refused, and one that broke off comes again" {
    var a: Assembly = .{};
    try a.place(.{ .before = 4, .after = 4 });
    for ([_]Fragment{ .{ .before = 3, .after = 12 - 8 }, .{ .before = 11 }, .whole }) |fragment|
        try expectError(error.Overlap, a.place(fragment));
    try a.place(.{ .before = 12 });
    try expect(!a.unplace(.{ .before = 4, .after = 4 }));
    try a.place(.{ .before = 4, .after = 6 });
    try expect(!a.unplace(.{ .before = 12 }));
    try expect(a.unplace(.{ .before = 4, .after = 6 }));
}
