//! fragment: the bytes of a piece that one frame brings. A piece is sent whole, or as several
//! fragments on several lanes, which are counted in sixteenths of the piece. So the sender chooses
//! the size of frames, and the receiver needs sixteen bits to know which bytes have arrived. A leaf
//! of a shared state is a piece here, too. frame.zig has the fragment's place in a header;
//! session/sync.zig cuts pieces; collective/assembly.zig notes what has arrived.

const std = @import("std");
const assert = std.debug.assert;

/// A fragment is a piece without `before` sixteenths at its start and `after` sixteenths at its
/// end. All bits zero: the whole piece.
pub const Fragment = packed struct(u8) {
    before: u4 = 0,
    after: u4 = 0,

    pub const whole: Fragment = .{};
    /// Sixteenths of a piece.
    pub const most = 16;
    /// A set of sixteenths, one bit each.
    pub const Mask = u16;
    pub const all: Mask = std.math.maxInt(Mask);
    pub const Count = std.math.IntFittingRange(0, most);

    /// The fragment of a header's byte. Null if the fragment would be empty.
    pub fn parse(byte: u8) ?Fragment {
        const fragment: Fragment = @bitCast(byte);
        return if (@as(u8, fragment.before) + fragment.after < most) fragment else null;
    }

    /// The next fragment of a piece of `piece_bytes`, of which `done` sixteenths have been sent: as
    /// many sixteenths as fit in `bytes`, at least one. The last fragment includes empty
    /// sixteenths.
    pub fn next(done: Count, bytes: usize, piece_bytes: usize) Fragment {
        assert(done < most);
        const each = sixteenth(piece_bytes);
        const wanted = std.math.clamp(bytes / @max(1, each), 1, most - @as(usize, done));
        const until = done + wanted;
        const is_last = until * each >= piece_bytes;
        return .{
            .before = @intCast(done),
            .after = if (is_last) 0 else @intCast(most - until),
        };
    }

    /// The end of the fragment in the piece, in sixteenths.
    pub fn end(fragment: Fragment) Count {
        return @as(Count, most) - fragment.after;
    }

    pub fn count(fragment: Fragment) Count {
        return fragment.end() - fragment.before;
    }

    pub fn is_whole(fragment: Fragment) bool {
        return fragment == whole;
    }

    pub fn mask(fragment: Fragment) Mask {
        return (all << fragment.before) & (all >> fragment.after);
    }

    pub const Range = struct {
        first: usize,
        end: usize,

        pub fn len(it: Range) usize {
            return it.end - it.first;
        }
    };

    /// The fragment's bytes in a piece of `piece_bytes`. Sixteenths have equal sizes, except for
    /// the last ones, which may be shorter or empty.
    pub fn range(fragment: Fragment, piece_bytes: usize) Range {
        const each = sixteenth(piece_bytes);
        return .{
            .first = @min(fragment.before * each, piece_bytes),
            .end = @min(fragment.end() * each, piece_bytes),
        };
    }

    fn sixteenth(piece_bytes: usize) usize {
        return (piece_bytes + most - 1) / most;
    }
};

const expect = std.testing.expect;
const expectEqual = std.testing.expectEqual;

test "fragments of any size are a piece, each byte once, and none is empty" {
    for ([_]usize{ 1, 2, 15, 16, 17, 31, 100, 4096, 66_560, 262_144 }) |piece_bytes| {
        for ([_]usize{ 0, 1, 7, 5000, 16_384, 40_000, 300_000 }) |bytes| {
            var done: Fragment.Count = 0;
            var there: Fragment.Mask = 0;
            var at: usize = 0;
            while (done < Fragment.most) {
                const fragment: Fragment = .next(done, bytes, piece_bytes);
                const range = fragment.range(piece_bytes);
                try expectEqual(at, range.first);
                try expect(range.len() > 0);
                // A fragment is longer than wanted only if it is a single sixteenth.
                try expect(range.len() <= @max(bytes, (piece_bytes + 15) / 16));
                try expectEqual(0, there & fragment.mask());
                try expectEqual(fragment.count(), @popCount(fragment.mask()));
                there |= fragment.mask();
                at = range.end;
                done = fragment.end();
            }
            try expectEqual(piece_bytes, at);
            try expectEqual(Fragment.all, there);
        }
    }
}

test "a whole piece is a byte of zeros, and a fragment of nothing is none" {
    try expectEqual(0, @as(u8, @bitCast(Fragment.whole)));
    try expect(Fragment.next(0, 300_000, 262_144).is_whole());
    for (0..256) |byte| {
        const fragment = Fragment.parse(@intCast(byte));
        try expectEqual(byte % 16 + byte / 16 < 16, fragment != null);
        if (fragment) |it| try expectEqual(byte, @as(u8, @bitCast(it)));
    }
}
