//! Fuzz targets: bytes in, and no crash, no leak, no broken invariant. Each is a function of bytes,
//! and is run three ways (docs/internals/HACKING.md, Fuzz): over what is kept in corpus/ by the
//! unit tests; guided by coverage by `make fuzz`, through std.testing.fuzz; and over fresh bytes by
//! `pccl-sim fuzz`, which changes what is kept. Whole worlds under fuzz: tests/sim/fuzz.zig.

const std = @import("std");
const base = @import("base");
const protocol = @import("protocol");
const wire = @import("wire");
const coordinator = @import("coordinator.zig");
const decoders = @import("decoders.zig");
const session = @import("session.zig");
const words = @import("words.zig");
const Prng = base.Prng;
const Smith = std.testing.Smith;

/// Longest input.
const bytes_max = 2048;
/// The memory that one coordinator, or one session, may hold here.
const budget_bytes = 16 << 20;

pub const Target = enum {
    frame,
    frame_signed,
    hello,
    answer,
    control,
    control_body,
    stream,
    descriptor,
    token,
    endpoint,
    text,
    journal,
    journal_signed,
    coordinator,
    session,
};

/// Inputs that once failed, or that runs guided by coverage have found: a file for each target, in
/// which one follows the other, each after the four bytes of its length.
const kept = kept: {
    var files: std.EnumArray(Target, []const u8) = .initUndefined();
    for (std.enums.values(Target)) |target| {
        files.set(target, @embedFile("corpus/" ++ @tagName(target)));
    }
    break :kept files;
};

/// Takes the next input from what is left of a file, its length included.
fn next_kept(rest: *[]const u8) ?[]const u8 {
    if (rest.len == 0) return null;
    const end = 4 + std.mem.readInt(u32, rest.*[0..4], .little);
    defer rest.* = rest.*[end..];
    return rest.*[0..end];
}

pub fn run(target: Target, bytes: []const u8) !void {
    switch (target) {
        inline .coordinator => try within_budget(coordinator.run, bytes),
        inline .session => try within_budget(session.run, bytes),
        inline else => |decoder| try within_budget(@field(decoders, @tagName(decoder)), bytes),
    }
}

/// More than the budget is a failure, and so is what is not given back.
fn within_budget(
    comptime machine: fn (std.mem.Allocator, []const u8) anyerror!void,
    bytes: []const u8,
) !void {
    const Counting = std.heap.DebugAllocator(.{
        .enable_memory_limit = true,
        .stack_trace_frames = 0,
        .thread_safe = false,
    });
    var counting: Counting = .init;
    counting.requested_memory_limit = budget_bytes;
    const result = machine(counting.allocator(), bytes);
    if (counting.deinit() == .leak) return error.Leak;
    return result;
}

fn from_smith(target: Target, smith: *Smith) anyerror!void {
    var buffer: [bytes_max]u8 = undefined;
    const length = smith.slice(&buffer);
    try run(target, buffer[0..length]);
}

fn fuzz(comptime target: Target) !void {
    const corpus = comptime corpus: {
        @setEvalBranchQuota(100_000);
        var inputs: []const []const u8 = &.{};
        var rest = kept.get(target);
        while (next_kept(&rest)) |input| inputs = inputs ++ .{input};
        break :corpus inputs;
    };
    try std.testing.fuzz(target, from_smith, .{ .corpus = corpus });
}

/// All that was kept, which `zig build fuzz` runs too, before anything else.
pub fn run_kept() !void {
    for (std.enums.values(Target)) |target| {
        under_way = target;
        var rest = kept.get(target);
        while (next_kept(&rest)) |input| try run(target, input[4..]);
    }
    under_way = null;
}

// ---- fresh inputs without guidance

/// The target that `fresh` has under way, for whoever reports a panic.
pub threadlocal var under_way: ?Target = null;

/// Inputs of one seed for every target. On an error `under_way` says which it was.
pub fn fresh(seed: u64, rounds: usize) !void {
    var prng: Prng = .init(seed);
    var buffer: [bytes_max]u8 = undefined;
    for (0..rounds) |_| for (std.enums.values(Target)) |target| {
        under_way = target;
        try run(target, make(&prng, target, &buffer));
    };
    under_way = null;
}

/// Something that is right, with some bytes changed; or nothing but noise.
fn make(prng: *Prng, target: Target, buffer: *[bytes_max]u8) []const u8 {
    if (prng.chance(4)) return noise(prng, buffer);
    const start = sample(prng, target, buffer);
    if (start.len == 0) return noise(prng, buffer);
    for (0..prng.below(4)) |_| {
        const place = prng.below(start.len);
        buffer[place] = switch (prng.below(4)) {
            0 => 0,
            1 => 0xff,
            2 => buffer[place] +% 1,
            else => @truncate(prng.next()),
        };
    }
    return if (prng.chance(8)) start[0..prng.below(start.len + 1)] else start;
}

fn noise(prng: *Prng, buffer: *[bytes_max]u8) []const u8 {
    const length = prng.below(@as(u64, 1) << @intCast(prng.between(2, 11)));
    for (buffer[0..length]) |*byte| byte.* = @truncate(prng.next());
    return buffer[0..length];
}

/// Something that was kept.
fn sample_kept(prng: *Prng, target: Target, buffer: *[bytes_max]u8) []const u8 {
    var count: u64 = 0;
    var rest = kept.get(target);
    while (next_kept(&rest)) |_| count += 1;
    rest = kept.get(target);
    for (0..prng.below(count)) |_| _ = next_kept(&rest);
    const bytes = next_kept(&rest).?[4..];
    @memcpy(buffer[0..bytes.len], bytes);
    return buffer[0..bytes.len];
}

/// Something that decodes, or was kept.
fn sample(prng: *Prng, target: Target, buffer: *[bytes_max]u8) []const u8 {
    if (prng.chance(2)) return sample_kept(prng, target, buffer);
    switch (target) {
        .frame => buffer[0..wire.frame.header_bytes].* = wire.frame.encode(
            std.mem.zeroInit(wire.frame.Header, .{ .kind = .final, .epoch = prng.below(9) }),
        ),
        .hello => {
            buffer[0..wire.hello.hello_bytes].* = wire.hello.encode(.{
                .purpose = .lane,
                .run_id = words.run_id,
                .from = .from_int(prng.next()),
            });
            return buffer[0..wire.hello.hello_bytes];
        },
        .answer => {
            buffer[0..wire.hello.answer_bytes].* = wire.hello.encode_answer(.welcome);
            return buffer[0..wire.hello.answer_bytes];
        },
        .control, .stream => {
            var scratch: [512]u8 = undefined;
            for (&scratch) |*byte| byte.* = @truncate(prng.next());
            var arena_bytes: [64 << 10]u8 = undefined;
            var arena: std.heap.FixedBufferAllocator = .init(&arena_bytes);
            var said: words.Words = .{ .rest = &scratch, .arena = arena.allocator() };
            const message = said.message() catch return "";
            return wire.control.encode(message, buffer) catch "";
        },
        .token, .endpoint, .text => return sample_kept(prng, target, buffer),
        .journal => {
            buffer[0..protocol.journal.header.len].* = protocol.journal.header;
            const record: protocol.journal.Record = .{ .start = .{
                .incarnation = 1,
                .ended_epoch = 3,
            } };
            const rest = buffer[protocol.journal.header.len..];
            const written = protocol.journal.encode(record, rest) catch unreachable;
            return buffer[0 .. protocol.journal.header.len + written.len];
        },
        .frame_signed, .control_body, .descriptor, .journal_signed => {
            return sample_kept(prng, target, buffer);
        },
        .coordinator, .session => return sample_kept(prng, target, buffer),
    }
    return buffer[0..wire.frame.header_bytes];
}

test "frame" {
    try fuzz(.frame);
}
test "frame_signed" {
    try fuzz(.frame_signed);
}
test "hello" {
    try fuzz(.hello);
}
test "answer" {
    try fuzz(.answer);
}
test "control" {
    try fuzz(.control);
}
test "control_body" {
    try fuzz(.control_body);
}
test "stream" {
    try fuzz(.stream);
}
test "descriptor" {
    try fuzz(.descriptor);
}
test "token" {
    try fuzz(.token);
}
test "endpoint" {
    try fuzz(.endpoint);
}
test "text" {
    try fuzz(.text);
}
test "journal" {
    try fuzz(.journal);
}
test "journal_signed" {
    try fuzz(.journal_signed);
}
test "coordinator" {
    try fuzz(.coordinator);
}
test "session" {
    try fuzz(.session);
}
