//! Structures: how the shared states of two members differ. The coordinator asks both for their
//! tensors, page by page in order of names, walks through the two lists side by side and writes a
//! sentence. It holds one page of each at most. election.zig says whom to compare.

const std = @import("std");
const base = @import("base");
const wire = @import("wire");
const Allocator = std.mem.Allocator;
const limits = base.limits;
const List = wire.codec.List;
const StateTensor = wire.control.StateTensor;

pub const Structures = struct {
    ranks: [2]u16,
    sides: [2]Side = .{ .{}, .{} },
    text_storage: [limits.state_differs_bytes_max]u8 = undefined,
    text_length: usize = 0,
    found: u32 = 0,

    const Side = struct {
        /// Tensors taken from this side so far, and how many it has; null: not known yet.
        taken: u32 = 0,
        total: ?u32 = null,
        asked: bool = false,
        page: []u8 = &.{},
        reader: wire.codec.Reader = .{ .bytes = "" },
        left: u32 = 0,
        head: ?StateTensor = null,
    };

    /// More than these are only said to be there.
    const listed_max = 6;
    const name_bytes_shown = 60;

    pub const Error = error{ OutOfMemory, Unexpected };

    /// The sentence begins with the names of the two, and calls them by their ranks after that.
    pub fn init(parties: [2]base.Ranked) Structures {
        var s: Structures = .{
            .ranks = .{ @intCast(parties[0].rank), @intCast(parties[1].rank) },
        };
        s.add("{f} against {f}: ", .{ parties[0], parties[1] });
        return s;
    }

    pub fn deinit(s: *Structures, gpa: Allocator) void {
        for (&s.sides) |*side| gpa.free(side.page);
    }

    pub const Next = union(enum) {
        /// Ask this rank for its tensors from `first` on.
        ask: struct { rank: u16, first: u32 },
        wait,
        /// Everything that is worth saying is in `text`.
        over,
    };

    /// Compares as far as it is known. Call it until it says `wait` or `over`.
    pub fn next(s: *Structures) Next {
        while (s.found <= listed_max) {
            for (&s.sides, s.ranks) |*side, rank| switch (side_ready(side)) {
                .yes => {},
                .waits => return .wait,
                .asks => {
                    side.asked = true;
                    return .{ .ask = .{ .rank = rank, .first = side.taken } };
                },
            };
            const a = s.sides[0].head;
            const b = s.sides[1].head;
            if (a == null and b == null) break;
            s.compare(a, b);
        }
        if (s.found > listed_max) s.add(", and more", .{});
        if (s.found == 0) s.add(
            "both list the same tensors, but cut them differently: one of them has another " ++
                "build of this library",
            .{},
        );
        return .over;
    }

    /// Whether the next tensor of this side, or its end, is known.
    fn side_ready(side: *Side) enum { yes, waits, asks } {
        if (side.head != null) return .yes;
        if (side.left > 0) {
            side.left -= 1;
            // It was checked when the message was decoded.
            side.head = wire.codec.read(StateTensor, &side.reader) catch unreachable;
            return .yes;
        }
        if (side.total) |total| if (side.taken >= total) return .yes;
        return if (side.asked) .waits else .asks;
    }

    fn compare(s: *Structures, a: ?StateTensor, b: ?StateTensor) void {
        const order: std.math.Order = if (a == null)
            .gt
        else if (b == null)
            .lt
        else
            std.mem.order(u8, a.?.name.data, b.?.name.data);
        switch (order) {
            .lt => s.only(0, &a.?),
            .gt => s.only(1, &b.?),
            .eq => s.both(&a.?, &b.?),
        }
        for (&s.sides, [2]bool{ order != .gt, order != .lt }) |*side, passed| if (passed) {
            side.head = null;
            side.taken += 1;
        };
    }

    fn only(s: *Structures, side: usize, tensor: *const StateTensor) void {
        s.found += 1;
        if (s.found > listed_max) return;
        s.add("{s}{f} is only on rank {d} ({f})", .{
            s.separator(),
            Name{ .bytes = tensor.name.data },
            s.ranks[side],
            Shape{ .tensor = tensor },
        });
    }

    fn both(s: *Structures, a: *const StateTensor, b: *const StateTensor) void {
        if (alike(a, b)) return;
        s.found += 1;
        if (s.found > listed_max) return;
        s.add("{s}{f} is {f} on rank {d} and {f} on rank {d}", .{
            s.separator(),
            Name{ .bytes = a.name.data },
            Shape{ .tensor = a },
            s.ranks[0],
            Shape{ .tensor = b },
            s.ranks[1],
        });
    }

    fn alike(a: *const StateTensor, b: *const StateTensor) bool {
        if (a.dtype != b.dtype or a.may_differ != b.may_differ) return false;
        if (a.shape.count != b.shape.count) return false;
        var left = a.shape.iterator();
        var right = b.shape.iterator();
        while (left.next()) |dimension| if (dimension != right.next().?) return false;
        return true;
    }

    fn separator(s: *const Structures) []const u8 {
        return if (s.found == 1) "" else "; ";
    }

    /// Leaves out what does not fit whole.
    fn add(s: *Structures, comptime format: []const u8, arguments: anytype) void {
        const free = s.text_storage[s.text_length..];
        const added = std.fmt.bufPrint(free, format, arguments) catch return;
        s.text_length += added.len;
    }

    pub fn text(s: *const Structures) []const u8 {
        return s.text_storage[0..s.text_length];
    }

    /// A page arrived. error.Unexpected: nobody asked for it.
    pub fn page(
        s: *Structures,
        gpa: Allocator,
        rank: u16,
        message: *const wire.control.StateTensors,
    ) Error!void {
        const side = for (&s.sides, s.ranks) |*side, of| {
            if (of == rank) break side;
        } else return error.Unexpected;
        if (!side.asked or message.first != side.taken) return error.Unexpected;
        const count = message.tensors.count;
        if (message.total -| message.first < count) return error.Unexpected;
        if (count == 0 and message.first < message.total) return error.Unexpected;
        if (side.total) |total| if (total != message.total) return error.Unexpected;
        if (message.tensors.encoded.len > 2 * limits.state_page_bytes) return error.Unexpected;
        const copy = try gpa.dupe(u8, message.tensors.encoded);
        gpa.free(side.page);
        side.page = copy;
        side.reader = .{ .bytes = copy };
        side.left = count;
        side.total = message.total;
        side.asked = false;
    }
};

/// A name as a person reads it: quoted, cut, and without anything that a terminal obeys.
const Name = struct {
    bytes: []const u8,

    pub fn format(name: Name, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const plain = name.bytes.len <= Structures.name_bytes_shown and
            std.unicode.utf8ValidateSlice(name.bytes);
        const shown = name.bytes[0..@min(name.bytes.len, Structures.name_bytes_shown)];
        try writer.writeByte('"');
        for (shown) |byte| {
            const harmless = byte >= 0x20 and byte != 0x7f and (byte < 0x80 or plain);
            try writer.writeByte(if (harmless) byte else '?');
        }
        if (shown.len < name.bytes.len) try writer.writeAll("...");
        try writer.writeByte('"');
    }
};

/// "f32[3, 4]"
const Shape = struct {
    tensor: *const StateTensor,

    pub fn format(shape: Shape, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.print("{s}[", .{shape.tensor.dtype.name()});
        var it = shape.tensor.shape.iterator();
        var index: u32 = 0;
        while (it.next()) |dimension| : (index += 1) {
            if (index == limits.state_dimensions_max) break;
            if (index > 0) try writer.writeAll(", ");
            try writer.print("{d}", .{dimension});
        }
        try writer.writeByte(']');
        if (shape.tensor.may_differ) try writer.writeAll(", may differ");
    }
};

// ---- tests

/// Answers questions from two lists, `page_tensors` at a time, as two members would.
fn test_compare(a: []const StateTensor, b: []const StateTensor, page_tensors: u32) !Structures {
    const gpa = std.testing.allocator;
    var s: Structures = .init(.{
        .{ .rank = 3, .id = .from_int(0xaa << 120), .label = .shown("node7:42") },
        .{ .rank = 5, .id = .from_int(0xbb << 120), .label = .{} },
    });
    errdefer s.deinit(gpa);
    while (true) switch (s.next()) {
        .wait => return error.Unexpected,
        .over => return s,
        .ask => |ask| {
            const all = if (ask.rank == 3) a else b;
            const end = @min(all.len, ask.first + page_tensors);
            var bytes: [8192]u8 = undefined;
            const encoded = try wire.control.encode(.{ .state_tensors = .{
                .group = 0,
                .epoch = 1,
                .attempt = 1,
                .op = .{ .tag = 0, .sequence = 0 },
                .first = ask.first,
                .total = @intCast(all.len),
                .tensors = .of(all[ask.first..end]),
            } }, &bytes);
            const message = try wire.control.decode(encoded);
            try std.testing.expectEqual(.wait, std.meta.activeTag(s.next()));
            try s.page(gpa, ask.rank, &message.state_tensors);
        },
    };
}

fn test_tensor(name: []const u8, dtype: base.DType, shape: []const u64) StateTensor {
    return .{ .name = .of(name), .dtype = dtype, .may_differ = false, .shape = .of(shape) };
}

const test_beginning = "rank 3 (node7:42, aa000000) against rank 5 (bb000000): ";

test "the sentence says what is where and who is who, whatever the size of the pages" {
    const gpa = std.testing.allocator;
    var flagged = test_tensor("f", .f32, &.{});
    flagged.may_differ = true;
    const a = [_]StateTensor{
        test_tensor("a", .f32, &.{ 3, 4 }),
        test_tensor("b", .u8, &.{7}),
        test_tensor("d", .f16, &.{}),
        test_tensor("f", .f32, &.{}),
    };
    const b = [_]StateTensor{
        test_tensor("a", .f32, &.{ 3, 5 }),
        test_tensor("c", .u8, &.{7}),
        test_tensor("d", .f16, &.{}),
        flagged,
    };
    for (1..6) |page_tensors| {
        var s = try test_compare(&a, &b, @intCast(page_tensors));
        defer s.deinit(gpa);
        try std.testing.expectEqualStrings(
            test_beginning ++ "\"a\" is f32[3, 4] on rank 3 and f32[3, 5] on rank 5; " ++
                "\"b\" is only on rank 3 (u8[7]); " ++
                "\"c\" is only on rank 5 (u8[7]); " ++
                "\"f\" is f32[] on rank 3 and f32[], may differ on rank 5",
            s.text(),
        );
    }
}

test "many differences are counted off, equal lists are said to be, names are tamed" {
    const gpa = std.testing.allocator;
    var many: [40]StateTensor = undefined;
    var names: [40][2]u8 = undefined;
    for (&many, &names, 0..) |*tensor, *name, index| {
        name.* = .{ 'a' + @as(u8, @intCast(index / 20)), 'a' + @as(u8, @intCast(index % 20)) };
        tensor.* = test_tensor(name, .u8, &.{index});
    }
    var s = try test_compare(&many, &.{}, 7);
    defer s.deinit(gpa);
    try std.testing.expect(std.mem.endsWith(u8, s.text(), ", and more"));

    var same = try test_compare(&many, &many, 7);
    defer same.deinit(gpa);
    try std.testing.expect(std.mem.indexOf(u8, same.text(), "both list the same tensors") != null);

    const wild = [_]StateTensor{test_tensor("\x1b[31m\xff", .u8, &.{1})};
    var tamed = try test_compare(&wild, &.{}, 1);
    defer tamed.deinit(gpa);
    try std.testing.expect(std.mem.startsWith(
        u8,
        tamed.text(),
        test_beginning ++ "\"?[31m?\" is only on",
    ));
}

test "pages that nobody asked for, that lie about their place or never end are refused" {
    const gpa = std.testing.allocator;
    var s: Structures = .init(.{
        .{ .rank = 0, .id = .from_int(1), .label = .{} },
        .{ .rank = 1, .id = .from_int(2), .label = .{} },
    });
    defer s.deinit(gpa);
    var page = std.mem.zeroInit(wire.control.StateTensors, .{});
    page.total = 9;
    try std.testing.expectError(error.Unexpected, s.page(gpa, 0, &page)); // not asked yet
    _ = s.next();
    try std.testing.expectError(error.Unexpected, s.page(gpa, 2, &page)); // somebody else
    try std.testing.expectError(error.Unexpected, s.page(gpa, 0, &page)); // an empty page
    page.tensors = .{ .count = 1, .encoded = "of no account" };
    page.first = 3; // the one asked for begins with 0
    try std.testing.expectError(error.Unexpected, s.page(gpa, 0, &page));
    page.first = 0;
    try s.page(gpa, 0, &page);
}
