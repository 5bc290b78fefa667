//! header_test: include/pccl.h against the functions that are exported: for each one the same
//! number of arguments, and of each the same kind, size and const. `header` is what Zig's own
//! translation makes of the file (build.zig). tests/abi tests what the functions do.

const std = @import("std");
const header = @import("header");
const collective = @import("collective.zig");

const files = @import("root.zig").files;

/// The type of the function that is exported under this name.
fn Exported(comptime name: []const u8) type {
    inline for (files) |file| if (@hasDecl(file, name)) return @TypeOf(@field(file, name));
    return @TypeOf(collective.Named(name).function);
}

/// Why the two are not the same to a caller in C; null: they are.
fn difference(comptime C: type, comptime Ours: type) ?[]const u8 {
    const told = @typeName(C) ++ " is not " ++ @typeName(Ours);
    switch (@typeInfo(C)) {
        .void => return if (Ours == void) null else told,
        .float => return if (Ours == C) null else told,
        .int => |int| {
            const Number = switch (@typeInfo(Ours)) {
                .@"enum" => |of| of.tag_type,
                else => Ours,
            };
            if (@typeInfo(Number) != .int) return told;
            const ours = @typeInfo(Number).int;
            if (int.bits != ours.bits) return told;
            // An enum of C is an int or an unsigned int, as the compiler likes.
            return if (int.signedness == ours.signedness or int.bits == 32) null else told;
        },
        .optional => |optional| return difference(optional.child, pointer_of(Ours)),
        .pointer => |pointer| {
            const Pointer = pointer_of(Ours);
            if (@typeInfo(Pointer) != .pointer) return told;
            const ours = @typeInfo(Pointer).pointer;
            if (pointer.is_const != ours.is_const) return told;
            return pointee(pointer.child, ours.child);
        },
        .@"fn" => return of_functions(C, Ours),
        else => return told,
    }
}

fn pointer_of(comptime Ours: type) type {
    return switch (@typeInfo(Ours)) {
        .optional => |optional| optional.child,
        else => Ours,
    };
}

/// Handles are opaque in the header, and void stands for any bytes.
fn pointee(comptime C: type, comptime Ours: type) ?[]const u8 {
    const told = @typeName(C) ++ " is not " ++ @typeName(Ours);
    // A pointer to an array of ours is one to its first element.
    if (@typeInfo(Ours) == .array and @typeInfo(C) != .@"struct")
        return difference(C, @typeInfo(Ours).array.child);
    switch (@typeInfo(C)) {
        .@"opaque" => return null,
        .@"struct" => |of| {
            if (@sizeOf(C) != @sizeOf(Ours)) return told;
            // An id may be the array of its bytes.
            if (@typeInfo(Ours) != .@"struct") return null;
            const ours = @typeInfo(Ours).@"struct".fields;
            if (of.fields.len != ours.len) return told;
            for (of.fields, ours) |field, own| {
                if (@offsetOf(C, field.name) != @offsetOf(Ours, own.name)) return told;
                if (@sizeOf(field.type) != @sizeOf(own.type)) return told;
            }
            return null;
        },
        else => return difference(C, Ours),
    }
}

fn of_functions(comptime C: type, comptime Ours: type) ?[]const u8 {
    const of = @typeInfo(C).@"fn";
    const ours = @typeInfo(Ours).@"fn";
    if (of.params.len != ours.params.len) return std.fmt.comptimePrint(
        "{d} arguments, not {d}",
        .{ of.params.len, ours.params.len },
    );
    for (of.params, ours.params, 0..) |param, own, index| {
        if (difference(param.type.?, own.type.?)) |why|
            return std.fmt.comptimePrint("argument {d}: {s}", .{ index, why });
    }
    if (difference(of.return_type.?, ours.return_type.?)) |why| return "result: " ++ why;
    return null;
}

test "every function of the header is exported with the types that it declares" {
    @setEvalBranchQuota(1_000_000);
    comptime var compared: u32 = 0;
    inline for (comptime std.meta.declarations(header)) |declaration| {
        const name = declaration.name;
        if (comptime !std.mem.startsWith(u8, name, "pccl_")) continue;
        const C = @TypeOf(@field(header, name));
        if (@typeInfo(C) != .@"fn") continue;
        compared += 1;
        if (comptime difference(C, Exported(name))) |why| {
            std.debug.print("{s}: {s}\n", .{ name, why });
            return error.OtherSignature;
        }
    }
    try std.testing.expect(compared > 70); // that the header was read at all
}

test "a signature that differs is told apart" {
    const C = fn ([*c]const u8, u64, c_uint) callconv(.c) c_int;
    const expect = std.testing.expect;
    const Same = fn (?[*:0]const u8, u64, c_uint) callconv(.c) c_int;
    try expect(comptime difference(C, Same) == null);
    inline for (.{
        fn (?[*]u8, u64, c_uint) callconv(.c) c_int,
        fn (?[*]const u16, u64, c_uint) callconv(.c) c_int,
        fn (?[*]const u8, u32, c_uint) callconv(.c) c_int,
        fn (?[*]const u8, i64, c_uint) callconv(.c) c_int,
        fn (?[*]const u8, c_uint, u64) callconv(.c) c_int,
        fn (?[*]const u8, u64) callconv(.c) c_int,
        fn (?[*]const u8, u64, c_uint) callconv(.c) u64,
        fn (u64, u64, c_uint) callconv(.c) c_int,
    }) |Other| try expect(comptime difference(C, Other) != null);
}
