//! version: the version of this library, its wire version, its CPU level, and the sizes of its
//! dtypes.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const kernels = @import("kernels");
const status = @import("status.zig");

const major = 0;
const minor = 1;
const patch = 0;

pub fn pccl_version() callconv(.c) u32 {
    return major * 10000 + minor * 100 + patch;
}

pub fn pccl_version_string() callconv(.c) [*:0]const u8 {
    return std.fmt.comptimePrint("{d}.{d}.{d}", .{ major, minor, patch });
}

pub fn pccl_wire_version() callconv(.c) u32 {
    return wire.version;
}

pub fn pccl_cpu_level() callconv(.c) [*:0]const u8 {
    // A forced level counts from the first look; a bad one is reported by the first create.
    choose_cpu_level() catch {};
    return kernels.level_name();
}

pub const LevelError = error{BadCpuLevel};

/// Obeys PCCL_CPU_LEVEL. An empty value counts as unset.
pub fn choose_cpu_level() LevelError!void {
    const wanted = std.mem.span(std.c.getenv("PCCL_CPU_LEVEL") orelse return);
    if (wanted.len > 0 and !kernels.force(wanted)) return error.BadCpuLevel;
}

/// Kernels on a thread of the caller: at the chosen level, in the standard float mode.
pub const KernelMode = struct {
    before: u64,

    pub fn begin() status.Error!KernelMode {
        choose_cpu_level() catch return status.fail(
            .invalid_argument,
            "PCCL_CPU_LEVEL names no level that this CPU can run",
            .{},
        );
        return .{ .before = kernels.float_mode.standard() };
    }

    pub fn end(mode: KernelMode) void {
        kernels.float_mode.restore(mode.before);
    }
};

pub fn pccl_dtype_size(number: c_int) callconv(.c) usize {
    const small = std.math.cast(u8, number) orelse return 0;
    const dtype = base.DType.from_int(small) orelse return 0;
    return dtype.size();
}

test "sizes of dtypes, and of what is none" {
    try std.testing.expectEqual(4, pccl_dtype_size(0));
    try std.testing.expectEqual(8, pccl_dtype_size(11));
    for ([_]c_int{ 12, -1, 256, std.math.maxInt(c_int) }) |number| {
        try std.testing.expectEqual(0, pccl_dtype_size(number));
    }
    try std.testing.expectEqualStrings("0.1.0", std.mem.span(pccl_version_string()));
}
