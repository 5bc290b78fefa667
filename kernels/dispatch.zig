//! Dispatch: detects the CPU levels that this CPU and operating system can run, once, and holds the
//! chosen table. The levels themselves are objects that build.zig compiles from level.zig.

const std = @import("std");
const builtin = @import("builtin");
const options = @import("kernels_options");
const Table = @import("table.zig").Table;

/// Names of the levels built into this library, ascending: "baseline" is always the first.
pub const level_names: []const [:0]const u8 = &names;

const names = blk: {
    var list: [options.levels.len][:0]const u8 = undefined;
    for (&list, options.levels) |*name, level| name.* = level ++ "";
    break :blk list;
};

const tables = blk: {
    var list: [names.len]*const Table = undefined;
    for (&list, names) |*entry, level| {
        entry.* = @extern(*const Table, .{ .name = "pccl_kernels_" ++ level });
    }
    break :blk list;
};

/// Index of the level in use, or `undecided`. Two threads that decide at once decide the same.
var chosen: std.atomic.Value(u8) = .init(undecided);
const undecided = 255;

pub fn table() *const Table {
    return tables[level_index()];
}

/// "baseline", "v3", "v4", "v4x" on x86-64; "baseline" elsewhere.
pub fn level_name() [:0]const u8 {
    return names[level_index()];
}

/// Uses a level from now on. False, and nothing changes, if there is no such level or this CPU
/// lacks it. Results are the same on every level, so switching under running operations is
/// harmless.
pub fn force(name: []const u8) bool {
    for (names, 0..) |level, index| {
        if (!std.mem.eql(u8, name, level)) continue;
        if (!supported(index)) return false;
        chosen.store(@intCast(index), .monotonic);
        return true;
    }
    return false;
}

/// Can this CPU, under this operating system, run the level?
pub fn supported(index: usize) bool {
    return index <= highest();
}

/// For tests: all levels that are supported, or those from one on if they were built so.
pub fn tested(index: usize) bool {
    const begin = comptime for (names, 0..) |name, number| {
        if (std.mem.eql(u8, name, options.tests_from)) break number;
    } else @compileError("no level " ++ options.tests_from);
    return index >= begin and supported(index);
}

fn level_index() u8 {
    const index = chosen.load(.monotonic);
    if (index != undecided) return index;
    const best = highest();
    chosen.store(best, .monotonic);
    return best;
}

/// Levels are cumulative, so one number says which are there.
fn highest() u8 {
    if (builtin.cpu.arch != .x86_64) return 0;
    return x86_level();
}

/// 0 baseline, 1 x86-64-v3, 2 v4, 3 v4 with VBMI, VBMI2 and VAES. The bits are those of Intel's
/// manual, volume 2, CPUID; the operating system must also save the registers (XGETBV).
fn x86_level() u8 {
    if (cpuid(0, 0).eax < 7) return 0;
    const leaf1 = cpuid(1, 0);
    const leaf7 = cpuid(7, 0);
    const extended = cpuid(0x8000_0001, 0);

    const sse3_ssse3_cx16_sse41_sse42_popcnt = .{ 0, 9, 13, 19, 20, 23 };
    const fma_movbe_osxsave_avx_f16c = .{ 12, 22, 27, 28, 29 };
    const bmi1_avx2_bmi2 = .{ 3, 5, 8 };
    if (!has(leaf1.ecx, sse3_ssse3_cx16_sse41_sse42_popcnt)) return 0;
    if (!has(leaf1.ecx, fma_movbe_osxsave_avx_f16c)) return 0;
    if (!has(leaf7.ebx, bmi1_avx2_bmi2)) return 0;
    if (!has(extended.ecx, .{5})) return 0; // lzcnt
    const saved = xgetbv();
    if (saved & 0x06 != 0x06) return 0; // xmm, ymm

    const avx512_f_dq_cd_bw_vl = .{ 16, 17, 28, 30, 31 };
    if (!has(leaf7.ebx, avx512_f_dq_cd_bw_vl)) return 1;
    if (saved & 0xe6 != 0xe6) return 1; // and opmask, zmm

    const vbmi_vbmi2_vaes = .{ 1, 6, 9 };
    const aes = .{25};
    if (!has(leaf7.ecx, vbmi_vbmi2_vaes) or !has(leaf1.ecx, aes)) return 2;
    return 3;
}

fn has(register: u32, comptime bits: anytype) bool {
    comptime var mask: u32 = 0;
    inline for (bits) |bit| mask |= 1 << bit;
    return register & mask == mask;
}

const Registers = struct { eax: u32, ebx: u32, ecx: u32, edx: u32 };

fn cpuid(leaf: u32, subleaf: u32) Registers {
    var eax: u32 = undefined;
    var ebx: u32 = undefined;
    var ecx: u32 = undefined;
    var edx: u32 = undefined;
    asm volatile ("cpuid"
        : [eax] "={eax}" (eax),
          [ebx] "={ebx}" (ebx),
          [ecx] "={ecx}" (ecx),
          [edx] "={edx}" (edx),
        : [leaf] "{eax}" (leaf),
          [subleaf] "{ecx}" (subleaf),
    );
    return .{ .eax = eax, .ebx = ebx, .ecx = ecx, .edx = edx };
}

fn xgetbv() u64 {
    var low: u32 = undefined;
    var high: u32 = undefined;
    asm volatile ("xgetbv"
        : [low] "={eax}" (low),
          [high] "={edx}" (high),
        : [register] "{ecx}" (@as(u32, 0)),
    );
    return @as(u64, high) << 32 | low;
}
