//! Digests of the output of every kernel on fixed inputs. They are equal on every CPU level and
//! architecture, in debug and release builds, today and in every later version: golden.txt holds
//! them. The unit tests compare on every level of the machine, and so does the program of
//! levels.zig in a release build; `make test-portable` runs both for aarch64 and for Windows. A
//! format or rule that is changed on purpose changes golden.txt: the program prints the new lines.

const std = @import("std");
const base = @import("base");
const kernels = @import("root.zig");
const noise = @import("noise.zig");

const Codec = base.Codec;
const DType = base.DType;
const Kind = base.codec.Kind;
const ReduceOp = base.ReduceOp;

const lines_of_file = @embedFile("golden.txt");

/// Two tiles of codec.zig and a tail that ends within a vector.
const count = 2 * 2048 + 256 + 77;
const inputs_max = 3;
const encoded_max = 4 * count + 4096;

/// A digest that differs from that of golden.txt, or is not in it.
pub const Difference = struct {
    buffer: [64]u8,
    name_size: usize,
    digest: u128,

    pub fn name(difference: *const Difference) []const u8 {
        return difference.buffer[0..difference.name_size];
    }
};

/// Runs every kernel on the level in use. Null if all digests are those of golden.txt, else the
/// first that is not, from number `begin` on.
pub fn check(gpa: std.mem.Allocator, begin: *usize) !?Difference {
    const memory = try gpa.create(Memory);
    defer gpa.destroy(memory);
    var number: usize = 0;
    var lines = std.mem.tokenizeScalar(u8, lines_of_file, '\n');
    var names: Names = .{};
    while (names.next()) |case| : (number += 1) {
        const wanted = lines.next() orelse "";
        if (number < begin.*) continue;
        var difference: Difference = .{
            .buffer = undefined,
            .name_size = 0,
            .digest = memory.digest(case),
        };
        var buffer: [128]u8 = undefined;
        const case_name = case.write(&difference.buffer);
        difference.name_size = case_name.len;
        const both = .{ case_name, difference.digest };
        const got = try std.fmt.bufPrint(&buffer, "{s} {x:0>32}", both);
        if (std.mem.eql(u8, got, wanted)) continue;
        begin.* = number + 1;
        return difference;
    }
    if (lines.next() != null) return error.GoldenHasMoreLinesThanThereAreKernels;
    return null;
}

const Case = union(enum) {
    reduce: struct { op: ReduceOp, dtype: DType },
    codec: Codec,
    /// Sums that are not encoded again.
    codec_sums: Codec,
    convert: DType,
    convert_fp8,
    rotate: base.codec.Block,
    hashes,
    outer_worker: DType,
    outer_step: kernels.OuterRule,
    sparse,

    fn write(case: Case, buffer: []u8) []const u8 {
        return switch (case) {
            .reduce => |r| std.fmt.bufPrint(buffer, "{t}/{t}", .{ r.op, r.dtype }),
            .codec, .codec_sums => |codec| std.fmt.bufPrint(buffer, "{s}{t}/{t}/{s}/{t}", .{
                if (case == .codec_sums) "sums/" else "",
                codec.kind,
                codec.block,
                if (codec.rotate) "rotated" else "straight",
                codec.rounding,
            }),
            .convert => |d| std.fmt.bufPrint(buffer, "convert/{t}", .{d}),
            .convert_fp8 => std.fmt.bufPrint(buffer, "convert/fp8_e4m3", .{}),
            .rotate => |block| std.fmt.bufPrint(buffer, "rotate/{t}", .{block}),
            .hashes => std.fmt.bufPrint(buffer, "hashes", .{}),
            .outer_worker => |d| std.fmt.bufPrint(buffer, "outer/{t}", .{d}),
            .outer_step => |rule| std.fmt.bufPrint(buffer, "outer/{t}", .{rule}),
            .sparse => std.fmt.bufPrint(buffer, "sparse", .{}),
        } catch unreachable;
    }
};

/// All cases, in the order of golden.txt.
const Names = struct {
    number: usize = 0,

    const ops = std.enums.values(ReduceOp);
    const dtypes = std.enums.values(DType);
    const blocks = std.enums.values(base.codec.Block);
    const reductions = ops.len * dtypes.len;
    const codecs = std.enums.values(Kind).len * blocks.len * 4;

    fn next(names: *Names) ?Case {
        while (true) {
            var number = names.number;
            names.number += 1;
            if (number < reductions) {
                const op = ops[number / dtypes.len];
                const dtype = dtypes[number % dtypes.len];
                if (!op.takes(dtype)) continue;
                return .{ .reduce = .{ .op = op, .dtype = dtype } };
            }
            number -= reductions;
            if (number < codecs) {
                return .{ .codec = codec_at(number) orelse continue };
            }
            number -= codecs;
            if (number < dtypes.len) {
                if (!dtypes[number].is_float()) continue;
                return .{ .convert = dtypes[number] };
            }
            number -= dtypes.len;
            if (number == 0) return .convert_fp8;
            number -= 1;
            if (number < blocks.len) return .{ .rotate = blocks[number] };
            number -= blocks.len;
            if (number == 0) return .hashes;
            number -= 1;
            if (number < codecs) {
                const codec = codec_at(number) orelse continue;
                // They only read codes.
                if (codec.rounding == .nearest) return .{ .codec_sums = codec };
                continue;
            }
            number -= codecs;
            if (number < dtypes.len) {
                if (!dtypes[number].is_float()) continue;
                return .{ .outer_worker = dtypes[number] };
            }
            number -= dtypes.len;
            const rules = std.enums.values(kernels.OuterRule);
            if (number < rules.len) return .{ .outer_step = rules[number] };
            return if (number == rules.len) .sparse else null;
        }
    }

    fn codec_at(number: usize) ?Codec {
        const codec: Codec = .{
            .kind = @enumFromInt(number / (blocks.len * 4)),
            .block = blocks[number / 4 % blocks.len],
            .rotate = number & 2 != 0,
            .rounding = @enumFromInt(number & 1),
        };
        return if (codec.kind == .none or codec.problem() != null) null else codec;
    }
};

const Memory = struct {
    inputs: [inputs_max][8 * count]u8,
    encoded: [inputs_max][encoded_max]u8,
    out: [8 * count]u8,
    other: [16 * count]u8,
    chain: u128,

    fn digest(memory: *Memory, case: Case) u128 {
        memory.chain = 0;
        switch (case) {
            .reduce => |r| memory.reduce(r.op, r.dtype),
            // Without NaNs and with them; each dtype once.
            .codec => |codec| for (base_dtypes) |dtype| for ([_]bool{ false, true }) |specials| {
                memory.pieces(codec, dtype, specials);
            },
            .codec_sums => |codec| for (base_dtypes) |dtype| for ([_]bool{ false, true }) |some| {
                memory.sums(codec, dtype, some);
            },
            .convert => |d| {
                memory.fill(d, true);
                kernels.to_f32(d, &memory.out, &memory.inputs[0], count);
                memory.add(memory.out[0 .. 4 * count]);
                memory.fill(.f32, true);
                kernels.from_f32(d, &memory.out, &memory.inputs[0], count);
                memory.add(memory.out[0 .. d.size() * count]);
            },
            .convert_fp8 => {
                memory.fill(.u8, true);
                kernels.fp8_to_f32(&memory.out, &memory.inputs[0], count);
                memory.add(memory.out[0 .. 4 * count]);
                memory.fill(.f32, true);
                kernels.fp8_from_f32(&memory.out, &memory.inputs[0], count);
                memory.add(memory.out[0..count]);
            },
            .rotate => |block| {
                memory.fill(.f32, false);
                kernels.rotate(block, &memory.out, &memory.inputs[0], 3, count / 256 * 256);
                memory.add(memory.out[0 .. 4 * (count / 256 * 256)]);
            },
            .hashes => {
                memory.fill(.f32, true);
                memory.add(&memory.inputs[0]);
                memory.add(&kernels.blake3(&memory.inputs[0]));
                const k = 99;
                kernels.top_k(&memory.out, &memory.other, &memory.inputs[0], 4096, k);
                memory.add(memory.out[0 .. 4 * k]);
                memory.add(memory.other[0 .. (k * 12 + 7) / 8]);
            },
            .outer_worker => |d| for ([_]bool{ false, true }) |specials| {
                memory.outer_worker(d, specials);
            },
            .outer_step => |rule| for ([_]bool{ false, true }) |specials| {
                memory.outer_step(rule, specials);
            },
            .sparse => memory.sparse(),
        }
        return memory.chain;
    }

    fn outer_worker(memory: *Memory, d: DType, specials: bool) void {
        memory.fill(d, specials);
        const bytes = d.size() * count;
        @memcpy(memory.other[0..bytes], memory.inputs[0][0..bytes]);
        memory.fill(.f32, specials);
        const outer = &memory.inputs[1];
        const sum = kernels.outer_difference(d, &memory.out, outer, &memory.other, count);
        memory.add(memory.out[0 .. 4 * count]);
        if (!specials) memory.add(std.mem.asBytes(&sum));
        kernels.outer_mix(d, &memory.other, outer, 0.3, 0.7, count);
        memory.add(memory.other[0 .. d.size() * count]);
        kernels.outer_mix(d, &memory.other, outer, 0, 1, count);
        memory.add(memory.other[0 .. d.size() * count]);
    }

    fn outer_step(memory: *Memory, rule: kernels.OuterRule, specials: bool) void {
        memory.fill(.f32, specials);
        const how: kernels.OuterHow = .{
            .scale = 1.5,
            .learning_rate = 0.7,
            .decay = 0.9,
            .fresh = 0.1,
            .square_decay = 0.95,
            .square_fresh = 0.05,
            .weight = 0.19,
            .square_weight = 0.0975,
            .epsilon = 1e-8,
        };
        const in = &memory.inputs;
        @memcpy(memory.out[0 .. 4 * count], in[2][0 .. 4 * count]);
        for (0..2) |_| {
            kernels.outer_step(rule, &in[0], &memory.out, &in[1], &in[2], &how, count);
            memory.add(in[0][0 .. 4 * count]);
            memory.add(in[1][0 .. 4 * count]);
            memory.add(memory.out[0 .. 4 * count]);
        }
    }

    fn sparse(memory: *Memory) void {
        memory.fill(.f32, false);
        const in = &memory.inputs;
        for ([_]kernels.sparse.Sparse{
            .{ .kept = 64 },
            .{ .kept = 99, .values = .floats },
            .{ .chunk = 256, .kept = 256 },
        }) |how| {
            const piece = memory.out[0..how.bytes(count)];
            kernels.sparse.encode(how, piece, &in[0], count);
            memory.add(piece);
            kernels.sparse.add(how, &in[1], &in[2], piece, 0.3, count) catch unreachable;
            memory.add(in[1][0 .. 4 * count]);
            memory.add(in[2][0 .. 4 * count]);
        }
    }

    const base_dtypes = [_]DType{ .f32, .f64, .f16, .bf16 };

    fn add(memory: *Memory, bytes: []const u8) void {
        const seed: u64 = @truncate(memory.chain ^ memory.chain >> 64);
        memory.chain = kernels.digest(bytes, seed);
    }

    fn reduce(memory: *Memory, op: ReduceOp, dtype: DType) void {
        memory.fill(dtype, true);
        const in = &memory.inputs;
        const size = dtype.size() * count;
        const partial_size = base.dtype.partial_size(op, dtype) * count;
        kernels.first(op, dtype, &memory.other, &in[0], count);
        kernels.accumulate(op, dtype, &memory.other, &memory.other, &in[1], 2, count);
        memory.add(memory.other[0..partial_size]);
        kernels.accumulate_last(op, dtype, &memory.other, &memory.other, &in[2], 3, count);
        memory.add(memory.other[0..size]);
        kernels.reduce_k(op, dtype, &memory.out, &.{ &in[0], &in[1], &in[2] }, 3, count);
        memory.add(memory.out[0..size]);
        kernels.finish_one(op, dtype, &memory.out, &in[0], count);
        memory.add(memory.out[0..size]);
    }

    fn piece_of(codec: Codec, dtype: DType) kernels.Piece {
        return .{
            .codec = codec,
            .dtype = dtype,
            .count = count,
            .seed = 0x0123_4567_89ab_cdef,
            .operation = 42,
            .origin = 3,
            .first = (1 << 34) - 1024,
        };
    }

    fn sums(memory: *Memory, codec: Codec, dtype: DType, specials: bool) void {
        memory.fill(dtype, specials);
        const piece = piece_of(codec, dtype);
        var pointers: [inputs_max][*]const u8 = undefined;
        for (&memory.encoded, &memory.inputs, &pointers) |*encoded, *input, *pointer| {
            kernels.encode(piece, encoded, input, null);
            pointer.* = encoded;
        }
        const own = &memory.inputs[0];
        for (0..inputs_max + 1) |position| {
            const divisor: u32 = @intCast(1 + position);
            kernels.reduce_decode(piece, &memory.out, own, position, &pointers, null, divisor);
            memory.add(memory.out[0 .. dtype.size() * count]);
        }
        kernels.reduce_decode(piece, &memory.out, own, 1, pointers[1..2], null, 2);
        memory.add(memory.out[0 .. dtype.size() * count]);
    }

    fn pieces(memory: *Memory, codec: Codec, dtype: DType, specials: bool) void {
        memory.fill(dtype, specials);
        const piece = piece_of(codec, dtype);
        var pointers: [inputs_max][*]const u8 = undefined;
        for (&memory.encoded, &memory.inputs, &pointers) |*encoded, *input, *pointer| {
            kernels.encode(piece, encoded, input, null);
            memory.add(encoded[0..piece.bytes()]);
            pointer.* = encoded;
        }
        kernels.decode(piece, &memory.other, &memory.encoded[1]);
        memory.add(memory.other[0 .. dtype.size() * count]);
        const own = &memory.inputs[0];
        kernels.reduce_encode(piece, &memory.out, own, 1, pointers[1..], null, 3);
        memory.add(memory.out[0..piece.bytes()]);
        kernels.accumulate_encode(piece, &memory.out, &memory.out, own, null, 1);
        memory.add(memory.out[0..piece.bytes()]);
        // The residual of an encoding that begins with the values of another input.
        const residual: kernels.Residual = .{ .in = &memory.other, .out = &memory.other };
        var plain = piece;
        plain.dtype = .f32;
        kernels.decode(plain, &memory.other, &memory.encoded[2]);
        kernels.encode(piece, &memory.out, own, residual);
        memory.add(memory.out[0..piece.bytes()]);
        memory.add(memory.other[0 .. 4 * count]);
    }

    /// Floats of sizes from 2^-45 to 2^15 with zeros and subnormals, and with NaNs, infinities and
    /// numbers near the ends of f32 if `specials`; integers of all bits.
    fn fill(memory: *Memory, dtype: DType, specials: bool) void {
        for (&memory.inputs, 0..) |*input, turn| for (0..count) |index| {
            const at = input[index * dtype.size() ..];
            const random = noise.mix(index * inputs_max + turn);
            if (!dtype.is_float()) {
                @memcpy(at[0..dtype.size()], std.mem.asBytes(&random)[0..dtype.size()]);
                continue;
            }
            // All elements near each other are of one size, as those of a tensor are.
            const exponent: u32 = @intCast(127 - 45 + noise.mix(index / 512 + turn) % 61);
            var bits: u32 = @truncate(random & 0x807f_ffff | exponent << 23);
            switch (random >> 32 & 63) {
                0 => bits = 0,
                1 => bits = 0x8000_0000,
                2 => bits &= 0x807f_ffff,
                3 => if (specials and random >> 40 & 7 == 0) {
                    const list = [_]u32{
                        0x7fc0_0000, 0xff80_0001, 0x7f80_0000, 0xff80_0000, 0x7f7f_ffff,
                        0xff00_0000, 0x7eff_ffff, 0x0080_0000,
                    };
                    bits = list[random >> 48 & 7];
                },
                else => {},
            }
            const value: f32 = @bitCast(bits);
            const is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
            switch (dtype) {
                .f32 => @memcpy(at[0..4], std.mem.asBytes(&bits)),
                .bf16 => @memcpy(at[0..2], std.mem.asBytes(&bits)[2..4]),
                .f16 => {
                    const half: u16 = if (is_nan) 0x7e01 else @bitCast(@as(f16, @floatCast(value)));
                    @memcpy(at[0..2], std.mem.asBytes(&half));
                },
                .f64 => {
                    const nan: u64 = 0xfff0_0000_0000_0001;
                    const wide: u64 = if (is_nan) nan else @bitCast(@as(f64, value) * 1.0000001);
                    @memcpy(at[0..8], std.mem.asBytes(&wide));
                },
                else => unreachable,
            }
        };
    }
};

test "what every kernel makes of fixed inputs is what golden.txt says, on every level" {
    const before = kernels.level_name();
    defer _ = kernels.force(before);
    for (kernels.level_names, 0..) |level, index| {
        if (!kernels.tested(index)) continue;
        try std.testing.expect(kernels.force(level));
        var begin: usize = 0;
        if (try check(std.testing.allocator, &begin)) |difference| {
            errdefer std.testing.expectEqualStrings("no such level", level) catch {};
            try std.testing.expectEqualStrings("no difference", difference.name());
        }
    }
}
