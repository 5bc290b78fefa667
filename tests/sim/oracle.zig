//! Oracle: the values that peers contribute, and what a result must then be, element by element.
//!
//! The elements of sums are u64. In a small world, the peer with digit r contributes m << 4r, with
//! m in 1..7 drawn from the operation, the peer and the element. In the sum, hex digit r is m if r
//! counted once, 0 if it did not, 2m if it counted twice (no carry: 14 < 16), and another
//! operation's m with probability 6/7 if a stale value got in. So every element shows its
//! contributors.
//!
//! A large world has more peers than there are hex digits. There a contribution is 64 random bits,
//! and sums wrap: a sum that does not have exactly the listed contributors, each once, is right by
//! chance once in 2^63 elements. Then a search finds who is missing, twice or not listed.
//!
//! The or, and the exclusive or, of numbers that have no digit in common is their sum, so the first
//! form is theirs as well. An and is the or of the complements, the other way round. In a large
//! world each peer contributes one bit to an or, drawn for the element; others may have the same
//! bit, so that a fault shows in some elements only.

const std = @import("std");
const base = @import("base");
const program = @import("program.zig");
const Key = program.Key;
const Mask = base.Mask;

const hex_digits = 16;

/// How contributions to sums are made.
pub const Form = enum {
    digits,
    random,

    pub fn of(processes_max: usize) Form {
        return if (processes_max <= hex_digits) .digits else .random;
    }
};

fn mix(value: u64) u64 {
    var z = value;
    z = (z ^ z >> 30) *% 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) *% 0x94d049bb133111eb;
    return z ^ z >> 31;
}

fn drawn_of(key: Key, digit: u16, element: u64) u64 {
    return mix(key.hash() +% element *% 0x9e3779b97f4a7c15 +% digit);
}

pub fn contribution(op: base.ReduceOp, form: Form, key: Key, digit: u16, element: u64) u64 {
    if (op == .band) return ~contribution(.bor, form, key, digit, element);
    const drawn = drawn_of(key, digit, element);
    // Once more: those of neighbours must not follow from each other.
    const random = mix(drawn ^ @as(u64, digit) << 48);
    return switch (form) {
        .digits => (1 + drawn % 7) << @intCast(4 * @as(u32, digit)),
        .random => if (op == .bor) @as(u64, 1) << @truncate(random) else random,
    };
}

/// The value that the root broadcasts.
pub fn broadcast_value(key: Key, digit: u16, element: u64) u64 {
    return mix(key.hash() +% (element << 8) +% digit +% 1);
}

/// The contribution of a peer to an average.
pub fn average_value(key: Key, digit: u16, element: u64) i32 {
    const drawn: i32 = @intCast(mix(key.hash() ^ (element << 8) ^ digit) % 2_000_001);
    return drawn - 1_000_000;
}

/// Truncated toward zero, as integer averages are.
pub fn average(key: Key, element: u64, contributors: *const Mask) i32 {
    var sum: i64 = 0;
    var it: Digits = .{ .left = contributors.* };
    while (it.next()) |digit| sum += average_value(key, digit, element);
    return @intCast(@divTrunc(sum, contributors.count()));
}

/// The contribution of a peer to an operation on floats: an integer that is never zero and so small
/// that the sum of all processes is exact in 8 bits, in a world of at most 256; in one operation of
/// 16, now and then, one of the numbers that codecs have rules for.
pub fn float_value(processes_max: u16, key: Key, digit: u16, element: u64) f32 {
    const drawn = mix(key.hash() ^ element *% 0x9e3779b97f4a7c15 ^ @as(u64, digit) << 32);
    const specials = [_]f32{
        std.math.nan(f32), std.math.inf(f32), -std.math.inf(f32), 0x1p127, -0.0, 1e-31, 0x1p-140,
    };
    if (has_specials(key) and drawn >> 40 & 15 == 0) return specials[(drawn >> 48) % specials.len];
    const most = @max(1, @min(15, floats_exact_max / processes_max));
    const magnitude: f32 = @floatFromInt(1 + drawn % most);
    return if (drawn >> 32 & 1 == 1) -magnitude else magnitude;
}

/// Integers up to here are bf16, which has the fewest bits of all float types.
pub const floats_exact_max = 256;

pub fn has_specials(key: Key) bool {
    return mix(key.hash() ^ 0xf1) % 16 == 0;
}

/// The digits of a set, in their order.
pub const Digits = struct {
    left: Mask,
    word: usize = 0,

    pub fn next(it: *Digits) ?u16 {
        while (it.word < it.left.words.len) : (it.word += 1) {
            const word = it.left.words[it.word];
            if (word == 0) continue;
            it.left.words[it.word] = word & (word - 1);
            return @intCast(it.word * 64 + @ctz(word));
        }
        return null;
    }
};

/// Says what is wrong with one element of a sum; null if it is as it must be.
pub const Fault = struct {
    digit: u16,
    kind: Kind,

    pub const Kind = enum { missing, twice, not_listed, wrong_value };
};

/// At most two of them, and none if no two contributions explain the value.
pub const Faults = struct {
    items: [2]?Fault = .{ null, null },

    pub fn format(faults: Faults, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (faults.items[0] == null)
            return writer.writeAll("no explanation was found");
        try writer.writeAll("contribution");
        for (faults.items, 0..) |maybe, index| if (maybe) |fault| {
            try writer.print("{s} of p{d} is {t}", .{
                if (index > 0) "," else "", fault.digit + 1, fault.kind,
            });
        };
    }
};

/// One element of the sum of all these, or of another operation on them.
pub const Sum = struct {
    processes_max: u16,
    op: base.ReduceOp = .sum,
    key: Key,
    element: u64,
    contributors: *const Mask,

    pub fn check(sum: *const Sum, value: u64) ?Faults {
        return switch (Form.of(sum.processes_max)) {
            .digits => sum.check_digits(if (sum.op == .band) ~value else value),
            .random => {
                if (sum.op.is_bitwise()) return sum.check_bits(value);
                var expected: u64 = 0;
                var it: Digits = .{ .left = sum.contributors.* };
                while (it.next()) |digit| expected +%= sum.one(digit);
                return if (value == expected) null else sum.explain(value -% expected);
            },
        };
    }

    fn one(sum: *const Sum, digit: u16) u64 {
        return contribution(sum.op, .random, sum.key, digit, sum.element);
    }

    fn check_digits(sum: *const Sum, value: u64) ?Faults {
        for (0..hex_digits) |index| {
            const digit: u16 = @intCast(index);
            const found = value >> @intCast(4 * index) & 15;
            const expected = if (sum.contributors.has(index))
                1 + drawn_of(sum.key, digit, sum.element) % 7
            else
                0;
            if (found == expected) continue;
            const kind: Fault.Kind = if (expected == 0)
                .not_listed
            else if (found == 0)
                .missing
            else if (found == 2 * expected) .twice else .wrong_value;
            return .{ .items = .{ .{ .digit = digit, .kind = kind }, null } };
        }
        return null;
    }

    fn check_bits(sum: *const Sum, value: u64) ?Faults {
        if (value == sum.bits_of(sum.contributors)) return null;
        for (0..sum.processes_max) |index| {
            var others = sum.contributors.*;
            const is_listed = others.has(index);
            if (is_listed) others.unset(index) else others.set(index);
            if (value != sum.bits_of(&others)) continue;
            const kind: Fault.Kind = if (is_listed) .missing else .not_listed;
            return .{ .items = .{ .{ .digit = @intCast(index), .kind = kind }, null } };
        }
        return .{};
    }

    fn bits_of(sum: *const Sum, digits: *const Mask) u64 {
        var it: Digits = .{ .left = digits.* };
        var bits: u64 = if (sum.op == .band) std.math.maxInt(u64) else 0;
        while (it.next()) |digit| switch (sum.op) {
            .band => bits &= sum.one(digit),
            .bor => bits |= sum.one(digit),
            .bxor => bits ^= sum.one(digit),
            .sum, .avg, .prod, .min, .max => unreachable,
        };
        return bits;
    }

    /// Which one or two contributions make such an excess over what is listed.
    fn explain(sum: *const Sum, excess: u64) Faults {
        if (sum.explain_one(0, excess)) |fault| return .{ .items = .{ fault, null } };
        for (0..sum.processes_max) |index| for (sum.faults_of(@intCast(index))) |maybe| {
            const change = maybe orelse continue;
            const other = sum.explain_one(index + 1, excess -% change.excess) orelse continue;
            return .{ .items = .{ change.fault, other } };
        };
        return .{ .items = .{ sum.explain_stale(excess), null } };
    }

    const Change = struct { fault: Fault, excess: u64 };

    fn faults_of(sum: *const Sum, digit: u16) [2]?Change {
        const mine = sum.one(digit);
        if (!sum.contributors.has(digit)) return .{
            .{ .fault = .{ .digit = digit, .kind = .not_listed }, .excess = mine }, null,
        };
        return .{
            .{ .fault = .{ .digit = digit, .kind = .missing }, .excess = 0 -% mine },
            .{ .fault = .{ .digit = digit, .kind = .twice }, .excess = mine },
        };
    }

    fn explain_one(sum: *const Sum, first: usize, excess: u64) ?Fault {
        for (first..sum.processes_max) |index| for (sum.faults_of(@intCast(index))) |maybe| {
            const change = maybe orelse continue;
            if (change.excess == excess) return change.fault;
        };
        return null;
    }

    /// Somebody's contribution to another element, or to another operation of this round.
    fn explain_stale(sum: *const Sum, excess: u64) ?Fault {
        var it: Digits = .{ .left = sum.contributors.* };
        while (it.next()) |digit| {
            const found = sum.one(digit) +% excess;
            const fault: Fault = .{ .digit = digit, .kind = .wrong_value };
            for (0..program.floats_max) |element| {
                if (contribution(sum.op, .random, sum.key, digit, element) == found) return fault;
            }
            var key = sum.key;
            for (0..program.steps_max) |index| {
                key.index = @intCast(index);
                if (contribution(sum.op, .random, key, digit, sum.element) == found) return fault;
            }
        }
        return null;
    }
};

test "the oracle names a missing, a double and a stranger's contribution" {
    // Goal: in worlds of any size each wrong sum is seen, and says whose contribution is wrong.
    const key: Key = .{ .group = 0, .epoch = 1, .round = 2, .index = 3 };
    for ([_]u16{ 16, 17, 128, 512 }) |processes| {
        const form: Form = .of(processes);
        const last = processes - 1;
        var listed: Mask = .empty;
        for ([_]u16{ 0, last }) |digit| listed.set(digit);
        const sum: Sum = .{
            .processes_max = processes,
            .key = key,
            .element = 9,
            .contributors = &listed,
        };
        const first = contribution(.sum, form, key, 0, 9);
        const right = first +% contribution(.sum, form, key, last, 9);
        try std.testing.expectEqual(null, sum.check(right));
        try expect_fault(.{ .digit = 0, .kind = .twice }, &sum, right +% first);
        try expect_fault(.{ .digit = last, .kind = .missing }, &sum, first);
        const stranger = contribution(.sum, form, key, 1, 9);
        try expect_fault(.{ .digit = 1, .kind = .not_listed }, &sum, right +% stranger);
        const stale = contribution(.sum, form, key, 0, 7);
        try expect_fault(.{ .digit = 0, .kind = .wrong_value }, &sum, right -% first +% stale);
    }
}

test "the oracle sees who is missing from the bits, and who should be" {
    // Method: of a large world some element shows it, since two peers may have the same bit.
    const key: Key = .{ .group = 0, .epoch = 1, .round = 2, .index = 3 };
    for ([_]u16{ 16, 17, 128, 512 }) |processes| for ([_]base.ReduceOp{ .band, .bor, .bxor }) |op| {
        const last = processes - 1;
        var listed: Mask = .empty;
        for ([_]u16{ 0, last }) |digit| listed.set(digit);
        var seen: [2]u32 = @splat(0);
        for (0..50) |element| {
            const sum: Sum = .{
                .processes_max = processes,
                .op = op,
                .key = key,
                .element = element,
                .contributors = &listed,
            };
            const form: Form = .of(processes);
            const first = contribution(op, form, key, 0, element);
            const right = combined(op, first, contribution(op, form, key, last, element));
            try std.testing.expectEqual(null, sum.check(right));
            const stranger = combined(op, right, contribution(op, form, key, 1, element));
            for ([_]u64{ first, stranger }, &seen, [_]Fault{
                .{ .digit = last, .kind = .missing },
                .{ .digit = 1, .kind = .not_listed },
            }) |value, *count, wanted| {
                const faults = sum.check(value) orelse continue;
                count.* += 1;
                if (op == .bxor or processes == 16)
                    try std.testing.expectEqual(wanted, faults.items[0].?);
            }
        }
        for (seen) |count| try std.testing.expect(count >= 40);
    };
}

fn combined(op: base.ReduceOp, x: u64, y: u64) u64 {
    return switch (op) {
        .band => x & y,
        .bor => x | y,
        .bxor => x ^ y,
        .sum, .avg, .prod, .min, .max => unreachable,
    };
}

fn expect_fault(wanted: Fault, sum: *const Sum, value: u64) !void {
    const faults = sum.check(value) orelse return error.NotSeen;
    try std.testing.expectEqual(wanted, faults.items[0].?);
    try std.testing.expectEqual(null, faults.items[1]);
}

test "two wrong contributions of a large world are both named, and more are seen" {
    const key: Key = .{ .group = 1, .epoch = 1, .round = 0, .index = 0 };
    var listed: Mask = .full(100);
    const sum: Sum = .{
        .processes_max = 128,
        .key = key,
        .element = 3,
        .contributors = &listed,
    };
    var value: u64 = 0;
    for (0..100) |digit| value +%= contribution(.sum, .random, key, @intCast(digit), 3);
    try std.testing.expectEqual(null, sum.check(value));
    value -%= contribution(.sum, .random, key, 70, 3);
    value +%= contribution(.sum, .random, key, 101, 3);
    var buffer: [80]u8 = undefined;
    const text = try std.fmt.bufPrint(&buffer, "{f}", .{sum.check(value).?});
    try std.testing.expectEqualStrings(
        "contribution of p71 is missing, of p102 is not_listed",
        text,
    );
    value +%= contribution(.sum, .random, key, 5, 3);
    try std.testing.expectEqual(null, sum.check(value).?.items[0]);
}

test "floats of a world of 256 and fewer have sums that every type holds" {
    const key: Key = .{ .group = 0, .epoch = 1, .round = 0, .index = 2 };
    try std.testing.expect(!has_specials(key));
    for ([_]u16{ 16, 17, 128, 256 }) |processes| for (0..50) |element| {
        var sum: f32 = 0;
        for (0..processes) |digit| {
            const value = float_value(processes, key, @intCast(digit), element);
            try std.testing.expect(value != 0);
            sum += @abs(value);
        }
        try std.testing.expect(sum <= floats_exact_max);
    };
}
