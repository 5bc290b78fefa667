//! codec: explicit little-endian encoding of plain structs, used for all control messages. It
//! encodes integers, enums (unknown values are errors), booleans (0 or 1), byte arrays, nested
//! structs, `Bytes` (u32 length, then bytes) and `List(T)` (u32 count, then elements), in
//! declaration order. There is no padding, no pointer and no allocation: a decoded value refers to
//! the bytes it was read from. If all values of a type have one size, its bytes are taken at once
//! and the offsets of its fields are known at compile time, so that one check suffices for all
//! fields.
//!
//! Every number that is read has a bound, and so have the lengths of `Bytes` and the counts of
//! lists. A struct has its bounds in `bounds`: the largest legal value of each field, or `.any` for
//! a number that is only compared, returned or shown. A field without a bound does not compile. The
//! code that reads a list must check the integers in the list. A struct may have a method `exists`:
//! values for which it returns false are errors.

const std = @import("std");

pub const Error = error{ Short, Trailing, BadValue, TooLong, OutOfRange };

pub const Reader = struct {
    bytes: []const u8,
    offset: usize = 0,

    pub inline fn take(reader: *Reader, count: usize) Error![]const u8 {
        if (reader.bytes.len - reader.offset < count) return error.Short;
        defer reader.offset += count;
        return reader.bytes[reader.offset..][0..count];
    }
};

pub const Writer = struct {
    bytes: []u8,
    offset: usize = 0,

    pub fn put(writer: *Writer, bytes: []const u8) Error!void {
        @memcpy(try writer.room(bytes.len), bytes);
    }

    /// Takes the next `count` bytes, which the caller fills.
    inline fn room(writer: *Writer, count: usize) Error![]u8 {
        if (writer.bytes.len - writer.offset < count) return error.TooLong;
        defer writer.offset += count;
        return writer.bytes[writer.offset..][0..count];
    }
};

/// Bytes whose length is bounded only by the message and `bounds`.
pub const Bytes = struct {
    data: []const u8 = "",

    pub const is_wire_bytes = true;

    pub fn of(data: []const u8) Bytes {
        return .{ .data = data };
    }
};

/// A sequence of T. The sender sets `items`; the receiver reads the elements with `iterator`.
pub fn List(comptime T: type) type {
    return struct {
        const Self = @This();
        pub const wire_item = T;

        count: u32 = 0,
        /// The elements; set by the sender only.
        items: []const T = &.{},
        /// The checked and still encoded elements; set by the receiver only.
        encoded: []const u8 = "",

        pub fn of(items: []const T) Self {
            return .{ .count = @intCast(items.len), .items = items };
        }

        pub fn iterator(list: *const Self) Iterator {
            return .{ .list = list, .reader = .{ .bytes = list.encoded } };
        }

        pub const Iterator = struct {
            list: *const Self,
            reader: Reader,
            index: u32 = 0,

            pub fn next(it: *Iterator) ?T {
                if (it.index == it.list.count) return null;
                defer it.index += 1;
                if (it.list.items.len > 0) return it.list.items[it.index];
                // `read` checked all elements when it read the list
                return read(T, &it.reader) catch unreachable;
            }
        };
    };
}

/// The size of a T on the wire; null if it depends on the value.
fn fixed_bytes(comptime T: type) ?usize {
    switch (@typeInfo(T)) {
        .int => |info| {
            comptime std.debug.assert(info.bits % 8 == 0);
            return info.bits / 8;
        },
        .@"enum" => |info| return fixed_bytes(info.tag_type),
        .bool => return 1,
        .array => |info| return info.len * (fixed_bytes(info.child) orelse return null),
        .@"struct" => |info| {
            if (@hasDecl(T, "is_wire_bytes") or @hasDecl(T, "wire_item")) return null;
            var total: usize = 0;
            inline for (info.fields) |field| total += fixed_bytes(field.type) orelse return null;
            return total;
        },
        else => @compileError("not a wire type: " ++ @typeName(T)),
    }
}

fn Fixed(comptime T: type) type {
    return [fixed_bytes(T).?]u8;
}

fn write_fixed(comptime T: type, value: *const T, bytes: *Fixed(T)) void {
    switch (@typeInfo(T)) {
        .int => std.mem.writeInt(T, bytes, value.*, .little),
        .@"enum" => |info| write_fixed(info.tag_type, &@intFromEnum(value.*), bytes),
        .bool => bytes[0] = @intFromBool(value.*),
        .array => |info| if (info.child == u8) {
            bytes.* = value.*;
        } else {
            const size = comptime fixed_bytes(info.child).?;
            for (value, 0..) |*item, index|
                write_fixed(info.child, item, bytes[index * size ..][0..size]);
        },
        .@"struct" => |info| {
            comptime var start: usize = 0;
            inline for (info.fields) |field| {
                const size = comptime fixed_bytes(field.type).?;
                write_fixed(field.type, &@field(value, field.name), bytes[start..][0..size]);
                start += size;
            }
        },
        else => comptime unreachable, // fixed_bytes refuses other types
    }
}

fn read_fixed(comptime T: type, bytes: *const Fixed(T)) Error!T {
    switch (@typeInfo(T)) {
        .int => return std.mem.readInt(T, bytes, .little),
        .@"enum" => |info| {
            const number = try read_fixed(info.tag_type, bytes);
            return std.enums.fromInt(T, number) orelse error.BadValue;
        },
        .bool => return switch (bytes[0]) {
            0 => false,
            1 => true,
            else => error.BadValue,
        },
        .array => |info| {
            if (info.child == u8) return bytes.*;
            const size = comptime fixed_bytes(info.child).?;
            var value: T = undefined;
            for (&value, 0..) |*item, index|
                item.* = try read_fixed(info.child, bytes[index * size ..][0..size]);
            return value;
        },
        .@"struct" => |info| {
            var value: T = undefined;
            comptime var start: usize = 0;
            inline for (info.fields) |field| {
                const size = comptime fixed_bytes(field.type).?;
                const part = try read_fixed(field.type, bytes[start..][0..size]);
                try check_bound(T, field, part);
                @field(value, field.name) = part;
                start += size;
            }
            return existing(T, value);
        },
        else => comptime unreachable, // fixed_bytes refuses other types
    }
}

pub fn write(comptime T: type, value: T, writer: *Writer) Error!void {
    if (comptime fixed_bytes(T)) |size| {
        const bytes = try writer.room(size);
        return write_fixed(T, &value, bytes[0..size]);
    }
    switch (@typeInfo(T)) {
        .array => |info| for (value) |item| try write(info.child, item, writer),
        .@"struct" => |info| if (@hasDecl(T, "is_wire_bytes")) {
            try write(u32, @intCast(value.data.len), writer);
            try writer.put(value.data);
        } else if (@hasDecl(T, "wire_item")) {
            try write(u32, value.count, writer);
            var it = value.iterator();
            while (it.next()) |item| try write(T.wire_item, item, writer);
        } else inline for (info.fields) |field| {
            try write(field.type, @field(value, field.name), writer);
        },
        else => @compileError("not a wire type: " ++ @typeName(T)),
    }
}

pub fn read(comptime T: type, reader: *Reader) Error!T {
    if (comptime fixed_bytes(T)) |size| {
        const bytes = try reader.take(size);
        return read_fixed(T, bytes[0..size]);
    }
    switch (@typeInfo(T)) {
        .array => |info| {
            var value: T = undefined;
            for (&value) |*item| item.* = try read(info.child, reader);
            return value;
        },
        .@"struct" => |info| if (@hasDecl(T, "is_wire_bytes")) {
            const length = try read(u32, reader);
            return .{ .data = try reader.take(length) };
        } else if (@hasDecl(T, "wire_item")) {
            const count = try read(u32, reader);
            const start = reader.offset;
            // Each element takes at least one byte, so a count that is too large ends with
            // error.Short.
            for (0..count) |_| _ = try read(T.wire_item, reader);
            return .{ .count = count, .encoded = reader.bytes[start..reader.offset] };
        } else {
            var value: T = undefined;
            inline for (info.fields) |field| {
                const part = try read(field.type, reader);
                try check_bound(T, field, part);
                @field(value, field.name) = part;
            }
            return existing(T, value);
        },
        else => @compileError("not a wire type: " ++ @typeName(T)),
    }
}

fn existing(comptime T: type, value: T) error{BadValue}!T {
    if (@hasDecl(T, "exists") and !value.exists()) return error.BadValue;
    return value;
}

fn check_bound(
    comptime T: type,
    comptime field: std.builtin.Type.StructField,
    part: field.type,
) error{OutOfRange}!void {
    if (comptime bound_of(T, field)) |most| {
        if (measure(part) > most) return error.OutOfRange;
    }
}

/// The largest legal value of a field. Null if every value is legal, or if the type has the bound.
fn bound_of(comptime T: type, comptime field: std.builtin.Type.StructField) ?u128 {
    const measured = @typeInfo(field.type) == .int or (@typeInfo(field.type) == .@"struct" and
        (@hasDecl(field.type, "is_wire_bytes") or @hasDecl(field.type, "wire_item")));
    if (!measured) return null;
    if (!@hasDecl(T, "bounds") or !@hasField(@TypeOf(T.bounds), field.name))
        @compileError(@typeName(T) ++ ".bounds does not name " ++ field.name);
    const bound = @field(T.bounds, field.name);
    if (@TypeOf(bound) != @EnumLiteral()) return bound;
    if (bound != .any) @compileError("a bound is a number or .any");
    return null;
}

/// The number that a bound limits: an integer, the length of `Bytes`, or the count of a list.
fn measure(part: anytype) u128 {
    const T = @TypeOf(part);
    if (@typeInfo(T) == .int) return part;
    return if (@hasDecl(T, "is_wire_bytes")) part.data.len else part.count;
}

test "a list with a lying count is an error, not an allocation" {
    var reader: Reader = .{ .bytes = &.{ 0xff, 0xff, 0xff, 0xff, 1, 2 } };
    try std.testing.expectError(error.Short, read(List(u16), &reader));
}

test "a number, a length and a count above their bounds are errors, up to them they are not" {
    const Sample = struct {
        number: u64,
        tag: u64,
        name: Bytes,
        list: List(u16),

        pub const bounds = .{ .number = 1 << 62, .tag = .any, .name = 3, .list = 2 };
    };
    const sample: Sample = .{
        .number = 1 << 62,
        .tag = std.math.maxInt(u64),
        .name = .of("abc"),
        .list = .of(&.{ 1, 2 }),
    };
    try expect_read(null, sample);
    var above = sample;
    above.number += 1;
    try expect_read(error.OutOfRange, above);
    above = sample;
    above.name = .of("abcd");
    try expect_read(error.OutOfRange, above);
    above = sample;
    above.list = .of(&.{ 1, 2, 3 });
    try expect_read(error.OutOfRange, above);
}

fn expect_read(expected: ?Error, value: anytype) !void {
    var bytes: [64]u8 = undefined;
    var writer: Writer = .{ .bytes = &bytes };
    try write(@TypeOf(value), value, &writer);
    var reader: Reader = .{ .bytes = bytes[0..writer.offset] };
    const result = read(@TypeOf(value), &reader);
    if (expected) |err| return std.testing.expectError(err, result);
    _ = try result;
}
