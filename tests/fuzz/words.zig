//! Words: makes values of the protocol out of any bytes, for the fuzzed state machines: numbers
//! that are small more often than not, ids and names of a few who know each other, whole messages
//! of any kind. Every byte means something, and when they are used up, all is zero.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const Message = wire.control.Message;

pub const run_id: base.RunId = @splat(1);

pub const Words = struct {
    rest: []const u8,
    /// Freed as a whole with what was made.
    arena: Allocator,

    pub fn byte(words: *Words) u8 {
        if (words.rest.len == 0) return 0;
        defer words.rest = words.rest[1..];
        return words.rest[0];
    }

    pub fn below(words: *Words, bound: usize) usize {
        return words.byte() % bound;
    }

    pub fn bytes(words: *Words, most: usize) []const u8 {
        const count = @min(words.rest.len, most);
        defer words.rest = words.rest[count..];
        return words.rest[0..count];
    }

    /// One of a few who know each other.
    pub fn id(words: *Words) base.PeerId {
        return id_of(words.below(5));
    }

    pub fn message(words: *Words) Allocator.Error!Message {
        const fields = @typeInfo(Message).@"union".fields;
        const chosen = words.below(fields.len);
        inline for (fields, 0..) |field, index| if (index == chosen) {
            return @unionInit(Message, field.name, try words.value(field.type, field.name));
        };
        unreachable;
    }

    pub fn value(words: *Words, comptime T: type, comptime name: []const u8) Allocator.Error!T {
        if (T == base.PeerId) return words.id();
        if (T == wire.Fragment) return if (words.byte() < 128) .whole else @bitCast(words.byte());
        switch (@typeInfo(T)) {
            .bool => return words.byte() & 1 == 1,
            .int => return words.number(T),
            .@"enum" => {
                const all = std.enums.values(T);
                return all[words.below(all.len)];
            },
            .array => |info| {
                var array: T = undefined;
                for (&array) |*item| item.* = if (comptime std.mem.eql(u8, name, "reserved"))
                    0
                else
                    try words.value(info.child, "");
                return array;
            },
            .@"struct" => |info| {
                if (@hasDecl(T, "is_wire_bytes")) return .of(words.text(name));
                if (@hasDecl(T, "wire_item")) {
                    const items = try words.arena.alloc(T.wire_item, words.below(5));
                    for (items) |*item| item.* = try words.value(T.wire_item, "");
                    return .of(items);
                }
                if (T == base.Mask) {
                    var mask: base.Mask = .empty;
                    mask.words[0] = words.byte();
                    return mask;
                }
                var body: T = undefined;
                inline for (info.fields) |field| {
                    @field(body, field.name) = try words.value(field.type, field.name);
                }
                return body;
            },
            else => @compileError("not a wire type: " ++ @typeName(T)),
        }
    }

    pub fn number(words: *Words, comptime T: type) T {
        const first = words.byte();
        if (first < 224 or @typeInfo(T).int.bits == 8) return @intCast(first % 8);
        if (first < 232) return std.math.maxInt(T);
        var wide: [@sizeOf(T)]u8 = @splat(0);
        const given = words.bytes(wide.len);
        @memcpy(wide[0..given.len], given);
        return std.mem.readInt(T, &wide, .little);
    }

    fn text(words: *Words, comptime name: []const u8) []const u8 {
        const known = if (comptime std.mem.eql(u8, name, "address"))
            [_][]const u8{ "n1:1", "n2:1", "127.0.0.1:1", "[::1]:1" }
        else
            [_][]const u8{ "g", "h", "w", "" };
        const chosen = words.below(known.len + 1);
        return if (chosen < known.len) known[chosen] else words.bytes(words.below(40));
    }
};

pub fn id_of(index: usize) base.PeerId {
    return .from_int(@as(u128, index + 1) << 120);
}
