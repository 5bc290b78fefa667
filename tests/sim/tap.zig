//! Tap: reads along what one end of a connection sends, for the text of a trace: messages and
//! frames by name instead of byte counts. Only runs when a seed is replayed; it draws nothing and
//! changes nothing.

const std = @import("std");
const wire = @import("wire");
const world_file = @import("world.zig");
const World = world_file.World;
const Connection = world_file.Connection;

pub const Tap = struct {
    bytes: std.ArrayList(u8) = .empty,
    greeted: bool = false,
    lost: bool = false,

    pub fn feed(tap: *Tap, world: *World, c: *const Connection, side: u1, bytes: []const u8) void {
        if (tap.lost or c.ends[side].what == .stranger) return;
        tap.bytes.appendSlice(world.gpa, bytes) catch @panic("out of memory");
        while (tap.take(world, c, side)) |taken| {
            const rest = tap.bytes.items[taken..];
            std.mem.copyForwards(u8, tap.bytes.items[0..rest.len], rest);
            tap.bytes.shrinkRetainingCapacity(rest.len);
        }
    }

    /// Length of what was read; null if it is not whole yet.
    fn take(tap: *Tap, world: *World, c: *const Connection, side: u1) ?usize {
        const rest = tap.bytes.items;
        if (!tap.greeted) {
            const hello = wire.hello;
            const length: usize = if (side == 0) hello.hello_bytes else hello.answer_bytes;
            if (rest.len < length) return null;
            tap.greeted = true;
            return length;
        }
        if (c.is_control) return tap.take_message(world, c, side);
        if (rest.len < wire.frame.header_bytes) return null;
        const header = wire.frame.decode(rest[0..wire.frame.header_bytes]) catch {
            tap.lost = true;
            return null;
        };
        const total = wire.frame.header_bytes + header.payload_bytes;
        if (rest.len < total) return null;
        if (header.kind == .ping) return total;
        world.note("{d} -> {d} (c{d}): {t} e{d} a{d} tag {d}#{d} index {d} class {d} bytes {d}", .{
            c.ends[side].node, c.ends[1 - side].node, c.index,              header.kind,
            header.epoch,      header.attempt,        header.tag,           header.sequence,
            header.index,      header.class,          header.payload_bytes,
        });
        return total;
    }

    fn take_message(tap: *Tap, world: *World, c: *const Connection, side: u1) ?usize {
        const rest = tap.bytes.items;
        if (rest.len < wire.control.header_bytes) return null;
        const length = wire.control.body_length(rest[0..wire.control.header_bytes]) catch {
            tap.lost = true;
            return null;
        };
        const total = wire.control.header_bytes + length;
        if (rest.len < total) return null;
        const message = wire.control.decode(rest[0..total]) catch {
            tap.lost = true;
            return null;
        };
        if (message == .heartbeat or message == .heartbeat_ack) return total;
        var text: [160]u8 = undefined;
        var writer: std.Io.Writer = .fixed(&text);
        describe(&message, &writer) catch {}; // cut
        world.note("{d} -> {d}: {s}", .{
            c.ends[side].node,
            c.ends[1 - side].node,
            text[0..writer.end],
        });
        return total;
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
