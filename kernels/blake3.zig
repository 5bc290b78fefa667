//! BLAKE3 without a key (https://github.com/BLAKE3-team/BLAKE3-specs): 32 bytes that stand for any
//! number of bytes. It is cryptographic, unlike digest.zig: nobody can make other bytes with the
//! same hash. Compiled once per CPU level (level.zig).
//!
//! The input is cut into chunks of 1 KiB, the leaves of a binary tree. Chunks do not depend on each
//! other, nor do the parents of one row, so a vector holds the same word of several of them, and
//! lane i is the i-th. One description of the arithmetic, `Compression`, serves every width; that
//! of one lane takes the short chunk at the end and the edge of the tree.

const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;

const is_x86 = builtin.cpu.arch == .x86_64;
const has_avx2 = is_x86 and builtin.cpu.has(.x86, .avx2);
const has_avx512 = is_x86 and builtin.cpu.has(.x86, .avx512f);
/// Chunks or parents at once: the words of a register.
const width = if (has_avx512) 16 else if (has_avx2) 8 else 4;

const block_bytes = 64;
const chunk_bytes = 1024;
const chunk_blocks = chunk_bytes / block_bytes;
/// So many chunks make a subtree whose rows are hashed one after the other.
const group_chunks = 256;
const group_bytes = group_chunks * chunk_bytes;

/// The chaining value that a chunk or a parent hands to its own parent.
const Chain = [8]u32;

const iv: Chain = .{
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};

const Flags = struct {
    const chunk_start: u32 = 1;
    const chunk_end: u32 = 2;
    const parent: u32 = 4;
    const root: u32 = 8;
};

/// Which word of the block comes where, per round: each round permutes the order of the last.
const schedule: [7][16]usize = blk: {
    const permutation = [16]usize{ 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8 };
    var rounds: [7][16]usize = undefined;
    for (&rounds[0], 0..) |*word, index| word.* = index;
    for (rounds[1..], rounds[0..6]) |*round, former| {
        for (round, permutation) |*word, from| word.* = former[from];
    }
    break :blk rounds;
};

pub fn blake3(out: *[32]u8, bytes: [*]const u8, size: usize) callconv(.c) void {
    // Complete subtrees that wait for a right sibling: one for each 1 in the binary `groups`.
    var waiting: [64 - @ctz(@as(u64, group_bytes))]Chain = undefined;
    var depth: usize = 0;
    var groups: u64 = 0;
    var rest = bytes[0..size];
    while (rest.len > group_bytes) {
        var chain = top_of_group(rest[0..group_bytes], groups * group_chunks).chain(0);
        rest = rest[group_bytes..];
        groups += 1;
        for (0..@ctz(groups)) |_| {
            depth -= 1;
            chain = Node.parent(.{ waiting[depth], chain }).chain(0);
        }
        waiting[depth] = chain;
        depth += 1;
    }
    var node = top_of_group(rest, groups * group_chunks);
    while (depth > 0) {
        depth -= 1;
        node = .parent(.{ waiting[depth], node.chain(0) });
    }
    const root = node.chain(Flags.root);
    out.* = std.mem.toBytes(root);
}

/// A chunk or a parent before its last compression, which differs if it is the root.
const Node = struct {
    before: Chain = iv,
    block: [block_bytes]u8,
    block_size: u32 = block_bytes,
    counter: u64 = 0,
    flags: u32,

    fn parent(children: [2]Chain) Node {
        return .{ .block = std.mem.toBytes(children), .flags = Flags.parent };
    }

    fn chain(node: *const Node, flags: u32) Chain {
        var one: Compression(1) = .init(node.before, node.counter, 0);
        one.compress(&.{&node.block}, node.block_size, node.flags | flags);
        return one.chain(0);
    }
};

/// The top of the tree over 1 to 256 chunks, of which only the input's last may be short.
fn top_of_group(bytes: []const u8, first_chunk: u64) Node {
    assert(bytes.len <= group_bytes);
    if (bytes.len <= chunk_bytes) return last_of_chunk(bytes, first_chunk);
    var row: [group_chunks]Chain align(block_bytes) = undefined;
    var count = bytes.len / chunk_bytes;
    hash_row(&row, bytes.ptr, count, .chunk, first_chunk);
    const short = bytes[count * chunk_bytes ..];
    if (short.len > 0) {
        row[count] = last_of_chunk(short, first_chunk + count).chain(0);
        count += 1;
    }
    // Neighbours in pairs, row by row; who has no neighbour moves up unchanged.
    while (count > 2) {
        const alone = row[count - 1];
        hash_row(&row, std.mem.asBytes(&row), count / 2, .parent, 0);
        if (count % 2 == 1) row[count / 2] = alone;
        count = count / 2 + count % 2;
    }
    return .parent(row[0..2].*);
}

/// All but the last compression of a chunk that is short, or the only one.
fn last_of_chunk(bytes: []const u8, counter: u64) Node {
    var one: Compression(1) = .init(iv, counter, 0);
    var flags = Flags.chunk_start;
    var rest = bytes;
    while (rest.len > block_bytes) : (rest = rest[block_bytes..]) {
        one.compress(&.{rest.ptr}, block_bytes, flags);
        flags = 0;
    }
    var node: Node = .{
        .before = one.chain(0),
        .block = @splat(0),
        .block_size = @intCast(rest.len),
        .counter = counter,
        .flags = flags | Flags.chunk_end,
    };
    @memcpy(node.block[0..rest.len], rest);
    return node;
}

/// Hashes whole chunks, or parents, that lie one behind the other. `out` may be `input`: what is
/// written is never ahead of what has been read.
fn hash_row(
    out: [*]Chain,
    input: [*]const u8,
    count: usize,
    kind: enum { chunk, parent },
    first_chunk: u64,
) void {
    const blocks: usize = if (kind == .chunk) chunk_blocks else 1;
    const bytes = blocks * block_bytes;
    var done: usize = 0;
    while (done < count) : (done += width) {
        // Lanes that are left over repeat the last one.
        const last = @min(width, count - done) - 1;
        var from: [width][*]const u8 = undefined;
        for (&from, 0..) |*pointer, lane| pointer.* = input + (done + @min(lane, last)) * bytes;
        var many: Compression(width) = if (kind == .chunk)
            .init(iv, first_chunk + done, 1)
        else
            .init(iv, 0, 0);
        for (0..blocks) |block| {
            var flags = if (kind == .chunk) 0 else Flags.parent;
            if (kind == .chunk and block == 0) flags = Flags.chunk_start;
            if (kind == .chunk and block == chunk_blocks - 1) flags = Flags.chunk_end;
            // The blocks of the next lanes: the CPU does not foresee so many streams by itself. A
            // prefetch may point past the end.
            for (from) |pointer| @prefetch(pointer + width * bytes, .{});
            many.compress(&from, block_bytes, flags);
            for (&from) |*pointer| pointer.* += block_bytes;
        }
        inline for (0..width) |lane| {
            if (lane <= last) out[done + lane] = many.chain(lane);
        }
    }
}

/// The compression function in `lanes` lanes at once.
pub fn Compression(comptime lanes: comptime_int) type {
    return struct {
        chain_words: [8]V,
        counter_low: V,
        counter_high: V,

        const Self = @This();
        const V = if (lanes == 1) u32 else @Vector(lanes, u32);

        /// Lane i is chunk number `counter` + i * `step`.
        pub inline fn init(before: Chain, counter: u64, step: u64) Self {
            var self: Self = undefined;
            inline for (&self.chain_words, before) |*word, from| word.* = splat(from);
            if (lanes == 1) {
                self.counter_low = @truncate(counter);
                self.counter_high = @truncate(counter >> 32);
            } else {
                const Counters = @Vector(lanes, u64);
                const steps = std.simd.iota(u64, lanes) * @as(Counters, @splat(step));
                const counters = @as(Counters, @splat(counter)) + steps;
                self.counter_low = @truncate(counters);
                self.counter_high = @truncate(counters >> @splat(32));
            }
            return self;
        }

        pub inline fn chain(self: *const Self, comptime lane: usize) Chain {
            var result: Chain = undefined;
            inline for (&result, self.chain_words) |*to, word| {
                to.* = if (lanes == 1) word else word[lane];
            }
            return result;
        }

        /// Takes one block into each lane.
        pub fn compress(
            self: *Self,
            from: *const [lanes][*]const u8,
            block_size: u32,
            flags: u32,
        ) void {
            align_frame();
            const m = load_words(from);
            var a: [4]V = self.chain_words[0..4].*;
            var b: [4]V = self.chain_words[4..8].*;
            var c: [4]V = .{ splat(iv[0]), splat(iv[1]), splat(iv[2]), splat(iv[3]) };
            var d: [4]V = .{
                self.counter_low,
                self.counter_high,
                splat(block_size),
                splat(flags),
            };
            inline for (schedule) |order| {
                mix(&a, &b, &c, &d, &m, order[0..8]);
                // The diagonals are the columns of rows that are turned.
                b = turn(b, 1);
                c = turn(c, 2);
                d = turn(d, 3);
                mix(&a, &b, &c, &d, &m, order[8..16]);
                b = turn(b, 3);
                c = turn(c, 2);
                d = turn(d, 1);
            }
            inline for (0..4) |i| {
                self.chain_words[i] = a[i] ^ c[i];
                self.chain_words[4 + i] = b[i] ^ d[i];
            }
        }

        /// Each line does its step in all four columns, which do not wait for each other.
        inline fn mix(
            a: *[4]V,
            b: *[4]V,
            c: *[4]V,
            d: *[4]V,
            m: *const [16]V,
            comptime order: *const [8]usize,
        ) void {
            @setEvalBranchQuota(10_000);
            inline for (0..4) |i| a[i] +%= m[order[2 * i]];
            inline for (0..4) |i| a[i] +%= b[i];
            inline for (0..4) |i| d[i] = rotate(d[i] ^ a[i], 16);
            inline for (0..4) |i| c[i] +%= d[i];
            inline for (0..4) |i| b[i] = rotate(b[i] ^ c[i], 12);
            inline for (0..4) |i| a[i] +%= m[order[2 * i + 1]];
            inline for (0..4) |i| a[i] +%= b[i];
            inline for (0..4) |i| d[i] = rotate(d[i] ^ a[i], 8);
            inline for (0..4) |i| c[i] +%= d[i];
            inline for (0..4) |i| b[i] = rotate(b[i] ^ c[i], 7);
        }

        inline fn turn(row: [4]V, comptime places: usize) [4]V {
            var turned: [4]V = undefined;
            inline for (&turned, 0..) |*word, i| word.* = row[(i + places) % 4];
            return turned;
        }

        inline fn rotate(word: V, comptime bits: comptime_int) V {
            // AVX2 rotates whole bytes by a shuffle. LLVM would shuffle both operands of the `^`
            // instead of its result; so it must not see where the word comes from.
            if (has_avx2 and lanes == 8 and bits % 8 == 0) return std.math.rotr(V, asm (""
                : [out] "=x" (-> V),
                : [in] "0" (word),
            ), bits);
            return std.math.rotr(V, word, bits);
        }

        /// LLVM aligns a frame for a variable, but not for the vectors that it keeps there when the
        /// registers are full; every second of those would lie in two cache lines.
        inline fn align_frame() void {
            if (@alignOf(V) <= 16) return;
            var anchor: V = undefined;
            asm volatile (""
                :
                : [anchor] "r" (&anchor),
            );
        }

        inline fn splat(word: u32) V {
            return if (lanes == 1) word else @splat(word);
        }

        /// Lane i of vector w is word w of the block at from[i].
        inline fn load_words(from: *const [lanes][*]const u8) [16]V {
            if (lanes == 1) {
                const block: *align(1) const [16]u32 = @ptrCast(from[0]);
                return block.*;
            }
            var words: [16]V = undefined;
            inline for (0..4) |part| {
                // Quarter q of rows[i] is from lane 4 * q + i. It remains to transpose four by
                // four words in each quarter.
                var rows: [4]V = undefined;
                inline for (&rows, 0..) |*row, i| row.* = load_quarters(from[i..], part * 16);
                const low_01 = interleave(1, 0, rows[0], rows[1]);
                const low_23 = interleave(1, 0, rows[2], rows[3]);
                const high_01 = interleave(1, 1, rows[0], rows[1]);
                const high_23 = interleave(1, 1, rows[2], rows[3]);
                words[part * 4 + 0] = interleave(2, 0, low_01, low_23);
                words[part * 4 + 1] = interleave(2, 1, low_01, low_23);
                words[part * 4 + 2] = interleave(2, 0, high_01, high_23);
                words[part * 4 + 3] = interleave(2, 1, high_01, high_23);
            }
            return words;
        }

        inline fn load_quarters(from: [*]const [*]const u8, offset: usize) V {
            var quarters: [lanes / 4]@Vector(4, u32) = undefined;
            inline for (&quarters, 0..) |*quarter, q| {
                const words: *align(1) const @Vector(4, u32) = @ptrCast(from[4 * q] + offset);
                quarter.* = words.*;
            }
            const join = std.simd.join;
            return switch (lanes) {
                4 => quarters[0],
                8 => join(quarters[0], quarters[1]),
                16 => join(join(quarters[0], quarters[1]), join(quarters[2], quarters[3])),
                else => comptime unreachable,
            };
        }

        /// In each quarter: the low or high halves of x and y, in turns of `unit` words.
        inline fn interleave(comptime unit: usize, comptime half: usize, x: V, y: V) V {
            const mask = comptime blk: {
                var mask: [lanes]i32 = undefined;
                for (&mask, 0..) |*place, lane| {
                    const turns = lane % 4 / unit;
                    const word = lane / 4 * 4 + half * 2 + turns / 2 * unit + lane % unit;
                    place.* = if (turns % 2 == 0) word else ~@as(i32, word);
                }
                break :blk mask;
            };
            return @shuffle(u32, x, y, mask);
        }
    };
}
