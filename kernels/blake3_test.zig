//! Tests of BLAKE3: the standard library's against the official vectors, then every CPU level that
//! this machine has against the standard library's; levels.zig names those that it lacks.

const std = @import("std");
const kernels = @import("root.zig");
const Compression = @import("blake3.zig").Compression;
const expect = std.testing.expect;
const expect_equal = std.testing.expectEqual;

const Reference = std.crypto.hash.Blake3;
const KiB = 1024;

/// From test_vectors.json of https://github.com/BLAKE3-team/BLAKE3: the first 32 bytes of `hash`
/// for an input of so many bytes, in which byte i is i % 251.
const vectors = [_]struct { usize, *const [64]u8 }{
    .{ 0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262" },
    .{ 1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213" },
    .{ 63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b" },
    .{ 64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98" },
    .{ 65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee" },
    .{ 1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11" },
    .{ 1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7" },
    .{ 1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444" },
    .{ 2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a" },
    .{ 2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030" },
    .{ 3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2" },
    .{ 4097, "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995" },
    .{ 5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff" },
    .{ 8192, "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63" },
    .{ 8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b" },
    .{ 16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4" },
    .{ 31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47" },
    .{ 102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085" },
};

/// No two chunks are alike: 251 and 1024 have no common factor.
fn vector_bytes(gpa: std.mem.Allocator, size: usize) ![]u8 {
    const bytes = try gpa.alloc(u8, size);
    for (bytes, 0..) |*byte, index| byte.* = @intCast(index % 251);
    return bytes;
}

fn reference(bytes: []const u8) [32]u8 {
    var hash: [32]u8 = undefined;
    Reference.hash(bytes, &hash, .{});
    return hash;
}

fn expect_hash(wanted: [32]u8, bytes: []const u8) !void {
    errdefer std.debug.print("failed: level {s} size {d} at {x}\n", .{
        kernels.level_name(), bytes.len, @intFromPtr(bytes.ptr) % 64,
    });
    try expect_equal(wanted, kernels.blake3(bytes));
}

/// Runs `each(context)` on every level that this machine has.
fn on_every_level(context: anytype, comptime each: fn (@TypeOf(context)) anyerror!void) !void {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    for (kernels.level_names, 0..) |name, index| {
        if (!kernels.tested(index)) continue;
        try expect(kernels.force(name));
        try each(context);
    }
}

test "BLAKE3 of the official vectors, on every level and of the standard library" {
    const gpa = std.testing.allocator;
    const bytes = try vector_bytes(gpa, 102400);
    defer gpa.free(bytes);
    for (vectors) |vector| {
        var wanted: [32]u8 = undefined;
        _ = try std.fmt.hexToBytes(&wanted, vector[1]);
        try expect_equal(wanted, reference(bytes[0..vector[0]]));
    }
    try on_every_level(bytes, struct {
        fn each(input: []const u8) !void {
            for (vectors) |vector| {
                var wanted: [32]u8 = undefined;
                _ = try std.fmt.hexToBytes(&wanted, vector[1]);
                try expect_hash(wanted, input[0..vector[0]]);
            }
        }
    }.each);
}

const Sizes = struct {
    bytes: []const u8,
    sizes: []const usize,
    wanted: []const [32]u8,

    /// `sizes` ascend, so that the standard library reads every byte once.
    fn init(gpa: std.mem.Allocator, sizes: []const usize) !Sizes {
        const bytes = try vector_bytes(gpa, sizes[sizes.len - 1]);
        errdefer gpa.free(bytes);
        const wanted = try gpa.alloc([32]u8, sizes.len);
        var hasher: Reference = .init(.{});
        var done: usize = 0;
        for (sizes, wanted) |size, *hash| {
            hasher.update(bytes[done..size]);
            hasher.final(hash);
            done = size;
        }
        return .{ .bytes = bytes, .sizes = sizes, .wanted = wanted };
    }

    fn deinit(sizes: Sizes, gpa: std.mem.Allocator) void {
        gpa.free(sizes.wanted);
        gpa.free(sizes.bytes);
    }

    fn check(sizes: Sizes) !void {
        for (sizes.sizes, sizes.wanted) |size, wanted| {
            try expect_hash(wanted, sizes.bytes[0..size]);
        }
    }
};

test "every level gives the BLAKE3 of the standard library at every length from 0 to 4200" {
    const gpa = std.testing.allocator;
    var lengths: [4201]usize = undefined;
    for (&lengths, 0..) |*length, index| length.* = index;
    const sizes: Sizes = try .init(gpa, &lengths);
    defer sizes.deinit(gpa);
    try on_every_level(sizes, Sizes.check);
}

test "every level gives the BLAKE3 of the standard library for every number of chunks to 80" {
    // 80 is past five times the widest level; each number also with a last chunk of one byte.
    const gpa = std.testing.allocator;
    var lengths: [160]usize = undefined;
    for (&lengths, 2..) |*length, index| length.* = index / 2 * KiB + index % 2;
    const sizes: Sizes = try .init(gpa, &lengths);
    defer sizes.deinit(gpa);
    try on_every_level(sizes, Sizes.check);
}

test "every level gives the BLAKE3 of the standard library around multiples of 256 KiB" {
    const gpa = std.testing.allocator;
    // 256 KiB are what blake3.zig reduces at once; how many of these have gone before shapes the
    // rest of the tree.
    const groups = [_]usize{ 1, 2, 3, 4, 5, 7, 8, 9 };
    const around = [_]isize{ -1025, -1024, -1023, -64, -1, 0, 1, 64, 1023, 1024, 1025 };
    var lengths: [groups.len * around.len]usize = undefined;
    for (&lengths, 0..) |*length, index| {
        const middle: isize = @intCast(groups[index / around.len] * 256 * KiB);
        length.* = @intCast(middle + around[index % around.len]);
    }
    const sizes: Sizes = try .init(gpa, &lengths);
    defer sizes.deinit(gpa);
    try on_every_level(sizes, Sizes.check);
}

test "every level gives the same BLAKE3 at every alignment, whatever lies around the bytes" {
    const gpa = std.testing.allocator;
    const lengths = [_]usize{ 1, 64, 1023, 1024, 3 * KiB, 17 * KiB + 5, 32 * KiB };
    const sizes: Sizes = try .init(gpa, &lengths);
    defer sizes.deinit(gpa);
    try on_every_level(sizes, struct {
        fn each(input: Sizes) !void {
            var room: [64 + 32 * KiB + 64]u8 align(64) = undefined;
            for (0..64) |offset| {
                @memset(&room, @intCast(0xa5 ^ offset));
                for (input.sizes, input.wanted) |size, wanted| {
                    const bytes = room[offset..][0..size];
                    @memcpy(bytes, input.bytes[0..size]);
                    try expect_hash(wanted, bytes);
                }
            }
        }
    }.each);
}

test "BLAKE3 counts chunks in 64 bits, in one lane and in many" {
    // Method: no input is that long, so the compression function is called by itself. All widths
    // are compared with a single lane, which is right by the tests above.
    inline for (.{ 4, 8, 16 }) |lanes| try count_in(lanes);
}

fn count_in(comptime lanes: usize) !void {
    @setEvalBranchQuota(10_000);
    var blocks: [lanes][64]u8 = undefined;
    var from: [lanes][*]const u8 = undefined;
    for (&blocks, &from, 0..) |*block, *pointer, lane| {
        for (block, 0..) |*byte, index| byte.* = @intCast((lane * 64 + index) % 251);
        pointer.* = block;
    }
    const first = (1 << 32) * 5 - 2;
    const before: [8]u32 = .{ 1, 2, 3, 4, 5, 6, 7, 8 };
    var many: Compression(lanes) = .init(before, first, 1);
    many.compress(&from, 64, 3);
    inline for (0..lanes) |lane| {
        for ([_]u64{ first + lane, (first + lane) % (1 << 32) }) |counter| {
            var one: Compression(1) = .init(before, counter, 0);
            one.compress(from[lane..][0..1], 64, 3);
            const equal = std.meta.eql(one.chain(0), many.chain(lane));
            try expect_equal(counter == first + lane, equal);
        }
    }
}
