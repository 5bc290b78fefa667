//! Tap: reads along with one end of a connection, for the text of a trace: messages and frames by
//! name instead of byte counts. It runs only when a seed is replayed; it draws nothing and changes
//! nothing.

const std = @import("std");
const wire = @import("wire");
const world_file = @import("world.zig");
const World = world_file.World;
const Connection = world_file.Connection;
const Units = @import("units.zig").Units;

pub const Tap = struct {
    units: Units = .{},

    pub fn feed(tap: *Tap, world: *World, c: *const Connection, side: u1, bytes: []const u8) void {
        if (c.ends[side].what == .stranger) return;
        tap.units.feed(world.gpa, bytes);
        while (tap.units.next(c.is_control, side)) |unit| switch (unit.kind) {
            .hello, .answer, .noise => {},
            .message => tell_message(world, c, side, unit.bytes),
            .frame => tell_frame(world, c, side, unit.bytes),
        };
    }

    fn tell_frame(world: *World, c: *const Connection, side: u1, bytes: []const u8) void {
        const header = wire.frame.decode(bytes[0..wire.frame.header_bytes]) catch unreachable;
        if (header.kind == .ping) return;
        world.note("{d} -> {d} (c{d}): {t} e{d} a{d} tag {d}#{d} index {d} class {d} bytes {d}", .{
            c.ends[side].node, c.ends[1 - side].node, c.index,              header.kind,
            header.epoch,      header.attempt,        header.tag,           header.sequence,
            header.index,      header.class,          header.payload_bytes,
        });
    }

    fn tell_message(world: *World, c: *const Connection, side: u1, bytes: []const u8) void {
        const message = wire.control.decode(bytes) catch |err| {
            return world.note("{d} -> {d}: no message: {t}", .{
                c.ends[side].node, c.ends[1 - side].node, err,
            });
        };
        if (message == .heartbeat or message == .heartbeat_ack) return;
        var text: [160]u8 = undefined;
        var writer: std.Io.Writer = .fixed(&text);
        describe(&message, &writer) catch {}; // cut
        world.note("{d} -> {d}: {s}", .{
            c.ends[side].node,
            c.ends[1 - side].node,
            text[0..writer.end],
        });
    }
};

/// The scalar fields of a message, and how long its lists are.
fn describe(message: *const wire.control.Message, writer: *std.Io.Writer) !void {
    try writer.print("{t}", .{message.*});
    switch (message.*) {
        inline else => |body| {
            const Body = @TypeOf(body);
            inline for (@typeInfo(Body).@"struct".fields) |field| {
                try describe_field(field.type, field.name, @field(body, field.name), writer);
            }
        },
    }
}

fn describe_field(
    comptime T: type,
    comptime name: []const u8,
    value: T,
    writer: *std.Io.Writer,
) !void {
    if (comptime std.mem.eql(u8, name, "group")) return;
    switch (@typeInfo(T)) {
        .int => try writer.print(" {s}={d}", .{ name, value }),
        .bool => try writer.print(" {s}={}", .{ name, value }),
        .@"enum" => try writer.print(" {s}={t}", .{ name, value }),
        .@"struct" => {
            if (T == wire.control.OpId) {
                try writer.print(" tag {d}#{d}", .{ value.tag, value.sequence });
            } else if (T == wire.control.Descriptor) {
                try writer.print(" {s}={t}[{d}] {t} s{d}", .{
                    name, value.kind, value.count, value.recovery, value.safe_points,
                });
            } else if (@hasField(T, "words")) {
                try writer.print(" {s}={b}", .{ name, value.words[0] });
            } else if (@hasDecl(T, "short")) {
                try writer.print(" {s}={s}", .{ name, value.short() });
            } else if (@hasDecl(T, "wire_item")) {
                try writer.print(" {s}:{d}", .{ name, value.count });
            }
        },
        else => {},
    }
}
