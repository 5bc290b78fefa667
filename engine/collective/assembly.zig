//! assembly: a piece that comes in as several fragments, on several lanes and in any order: which
//! sixteenths of it have a place in memory, and which are there. One that comes in whole needs
//! none. Where they are kept: board.zig for sums, ledger.zig for final bytes, fetch.zig for leaves
//! of a shared state; what a fragment is: wire/fragment.zig.

const std = @import("std");
const Fragment = @import("wire").Fragment;

pub const Assembly = struct {
    placed: Fragment.Mask = 0,
    there: Fragment.Mask = 0,

    /// A fragment is coming in. No byte has two places: one that comes again is as it was.
    pub fn place(a: *Assembly, fragment: Fragment) error{ Twice, Overlap }!void {
        if (a.has(fragment)) return error.Twice;
        if (a.placed & fragment.mask() != 0) return error.Overlap;
        a.placed |= fragment.mask();
    }

    /// All of it has a place.
    pub fn has(a: *const Assembly, fragment: Fragment) bool {
        return a.placed & fragment.mask() == fragment.mask();
    }

    /// It did not come in whole. Whether nothing of the piece has a place now.
    pub fn unplace(a: *Assembly, fragment: Fragment) bool {
        a.placed &= ~fragment.mask();
        return a.placed == 0;
    }

    /// It is there. Whether the whole piece is.
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
