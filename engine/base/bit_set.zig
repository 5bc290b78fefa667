//! BitSet: a fixed-size set of indices with a scan for the next member. Its memory is reserved at
//! init. Used for the pieces of an operation (collective/ledger.zig).

const std = @import("std");
const unfilled = @import("unfilled.zig");
const assert = std.debug.assert;

pub const BitSet = struct {
    words: []u64 = &.{},
    bits: usize = 0,
    /// Number of indices in the set.
    count: usize = 0,

    pub fn init(gpa: std.mem.Allocator, bits: usize) !BitSet {
        return .over(try gpa.alloc(u64, (bits + 63) / 64), bits);
    }

    /// Makes a set whose memory belongs to an arena; `deinit` is not called.
    pub fn in_arena(arena: std.mem.Allocator, bits: usize) !BitSet {
        return .over(try unfilled.list(arena, u64, (bits + 63) / 64), bits);
    }

    fn over(words: []u64, bits: usize) BitSet {
        @memset(words, 0);
        return .{ .words = words, .bits = bits };
    }

    pub fn deinit(set: *BitSet, gpa: std.mem.Allocator) void {
        gpa.free(set.words);
        set.* = .{};
    }

    pub fn clear(set: *BitSet) void {
        @memset(set.words, 0);
        set.count = 0;
    }

    pub fn has(set: *const BitSet, index: usize) bool {
        return set.word_of(index).* & bit_of(index) != 0;
    }

    pub fn set_bit(set: *BitSet, index: usize) void {
        const word = set.word_of(index);
        if (word.* & bit_of(index) != 0) return;
        word.* |= bit_of(index);
        set.count += 1;
    }

    pub fn unset_bit(set: *BitSet, index: usize) void {
        const word = set.word_of(index);
        if (word.* & bit_of(index) == 0) return;
        word.* &= ~bit_of(index);
        set.count -= 1;
    }

    /// The word of an index; called several times for each frame. One check is enough: there is a
    /// word for every 64 of `bits`, rounded up, so every index below `bits` has one.
    inline fn word_of(set: *const BitSet, index: usize) *u64 {
        assert(index < set.bits);
        return &set.words.ptr[index / 64];
    }

    inline fn bit_of(index: usize) u64 {
        return @as(u64, 1) << @truncate(index);
    }

    /// The first index of the set at or after `from`, wrapping around once. Null if the set is
    /// empty.
    pub inline fn next(set: *const BitSet, from: usize) ?usize {
        return if (set.count == 0) null else set.scan(from);
    }

    fn scan(set: *const BitSet, from: usize) ?usize {
        const start = if (from < set.bits) from else 0;
        const first_word = start / 64;
        const head = set.words[first_word] & ~@as(u64, 0) << @intCast(start % 64);
        if (head != 0) return first_word * 64 + @ctz(head);
        for (1..set.words.len + 1) |step| {
            const index = (first_word + step) % set.words.len;
            if (set.words[index] != 0) return index * 64 + @ctz(set.words[index]);
        }
        unreachable; // a set with count > 0 has a nonzero word
    }
};

test "next wraps around and finds every member" {
    var set = try BitSet.init(std.testing.allocator, 200);
    defer set.deinit(std.testing.allocator);
    try std.testing.expectEqual(null, set.next(0));
    for ([_]usize{ 3, 64, 199 }) |index| set.set_bit(index);
    try std.testing.expectEqual(3, set.next(0));
    try std.testing.expectEqual(64, set.next(4));
    try std.testing.expectEqual(199, set.next(65));
    set.unset_bit(199);
    try std.testing.expectEqual(3, set.next(65));
    try std.testing.expectEqual(2, set.count);
}
