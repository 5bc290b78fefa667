//! Described: a member's call, in the words of an error: for those who called, and for the
//! coordinator, which refuses a newcomer whose call differs.

const std = @import("std");
const base = @import("base");
const control = @import("control.zig");
const Descriptor = @import("control.zig").Descriptor;
const limits = base.limits;

/// pccl.h: PCCL_FORM_BOOL.
pub const form_bool: u32 = 1_819_242_339;

/// pccl.h: PCCL_FORM_OBJECT.
pub const form_object: u32 = 1_868_720_741;

/// The user's word for one of the two operations that carry an object; null: it is none of them.
pub fn object_name(kind: control.OpKind) ?[]const u8 {
    return switch (kind) {
        .broadcast => "broadcast_object",
        .all_gather => "all_gather_object",
        else => null,
    };
}

pub fn is_object(descriptor: *const Descriptor) bool {
    return has_form(descriptor, form_object) and object_name(descriptor.kind) != null;
}

fn has_form(descriptor: *const Descriptor, form: u32) bool {
    return @as(u32, @truncate(form_alone(descriptor) orelse return false)) == form;
}

/// The form of one array. Where there are several, or shards that differ, it is in a hash.
fn form_alone(descriptor: *const Descriptor) ?u64 {
    const is_alone = descriptor.arrays == 0 and descriptor.outline.dtypes == 0;
    return if (is_alone and !descriptor.uneven) descriptor.counts else null;
}

/// The shape of an array, as the upper half of its form says it (pccl.h).
const Shape = union(enum) {
    flat,
    rows: u31,
    more,

    fn of(form: u64) Shape {
        const upper: u32 = @intCast(form >> 32);
        if (upper == 0) return .flat;
        return if (std.math.cast(u31, upper)) |length| .{ .rows = length } else .more;
    }

    pub fn format(shape: Shape, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        switch (shape) {
            .flat => try writer.writeAll("one dimension"),
            .rows => |length| try writer.print("rows of {d}", .{length}),
            .more => try writer.writeAll("three or more dimensions"),
        }
    }
};

/// The name of the elements. One array, or shards that are alike, has nothing but its form in
/// `counts`; of others it is in a hash.
pub fn dtype_name(descriptor: *const Descriptor) []const u8 {
    if (descriptor.dtype != .u8) return descriptor.dtype.name();
    if (is_object(descriptor)) return "object";
    return if (has_form(descriptor, form_bool)) "bool" else "u8";
}

/// Shards that are alike, of which each has so many elements; null where they are not, or where the
/// caller names all elements together.
fn shard_count(descriptor: *const Descriptor, world_size: usize) ?u64 {
    const shards: u64 = switch (descriptor.kind) {
        .all_gather, .gather, .scatter => world_size,
        .all_to_all => world_size * world_size,
        else => return null,
    };
    const is_list = descriptor.arrays > 0 or descriptor.outline.dtypes != 0;
    if (is_list or descriptor.uneven or shards == 0) return null;
    return if (descriptor.count % shards == 0) descriptor.count / shards else null;
}

/// The words for a call, with peers named as `Names.who` does: what it moves, and each option in
/// which it differs from what another called in its place:
/// "all_reduce(sum, 1000 f32, recovery raise, codec int8, plan ring, after 3 safe points)"
pub fn Described(comptime Names: type) type {
    return struct {
        descriptor: *const Descriptor,
        /// Null: nobody knows what that was, and all options are named.
        other: ?*const Descriptor,
        names: Names,

        const It = @This();

        pub fn format(it: It, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const descriptor = it.descriptor;
            if (is_object(descriptor))
                try it.put_object(writer)
            else if (shard_count(descriptor, it.names.world_size())) |count|
                try it.put_shards(count, writer)
            else
                try it.put_whole(writer);
            if (descriptor.arrays > 0) {
                try writer.print(", {d} arrays", .{descriptor.arrays});
            } else if (descriptor.outline.dtypes != 0)
                try writer.writeAll(" together, shards of different sizes");
            try it.put_options(writer);
            try writer.writeAll(")");
        }

        /// Its bytes are not the caller's matter.
        fn put_object(it: It, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const kind = it.descriptor.kind;
            try writer.print("{s}(", .{object_name(kind).?});
            if (kind == .broadcast)
                try writer.print("from {f}", .{it.names.who(it.descriptor.root)});
        }

        /// As the caller has passed them.
        fn put_shards(it: It, count: u64, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const descriptor = it.descriptor;
            const kind = descriptor.kind;
            const whose = switch (kind) {
                .all_gather, .gather => "of each rank",
                else => "for each rank",
            };
            try writer.print("{t}({d} {s} {s}", .{ kind, count, dtype_name(descriptor), whose });
            switch (kind) {
                .gather => try writer.print(" to {f}", .{it.names.who(descriptor.root)}),
                .scatter => try writer.print(" from {f}", .{it.names.who(descriptor.root)}),
                else => {},
            }
        }

        fn put_whole(it: It, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const descriptor = it.descriptor;
            const root = it.names.who(descriptor.root);
            const dtype = dtype_name(descriptor);
            switch (descriptor.kind) {
                .all_reduce, .reduce_scatter => |kind| try writer.print("{t}({s}, {d} {s}", .{
                    kind,
                    descriptor.op.name(),
                    descriptor.count,
                    dtype,
                }),
                .all_gather, .all_to_all => |kind| if (descriptor.uneven)
                    try writer.print("{t}({s}, {f} for the other and {d} from it", .{
                        kind,
                        dtype,
                        base.text.Counted{ .number = descriptor.count, .what = "element" },
                        descriptor.counts,
                    })
                else
                    try writer.print("{t}({d} {s}", .{ kind, descriptor.count, dtype }),
                .broadcast, .scatter => |kind| try writer.print("{t}({d} {s} from {f}", .{
                    kind,
                    descriptor.count,
                    dtype,
                    root,
                }),
                .gather => try writer.print("gather({d} {s} to {f}", .{
                    descriptor.count,
                    dtype,
                    root,
                }),
                .reduce => try writer.print("reduce({s}, {d} {s} to {f}", .{
                    descriptor.op.name(),
                    descriptor.count,
                    dtype,
                    root,
                }),
                .send_recv => try writer.print("message({d} {s}", .{ descriptor.count, dtype }),
                .barrier => try writer.writeAll("barrier("),
                .sync => try writer.writeAll("sync("),
            }
        }

        fn put_options(it: It, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const descriptor = it.descriptor;
            const recovery = switch (descriptor.recovery) {
                .resume_chunks => "resume",
                .restart => "restart",
                .raise => "raise",
                .complete => "complete",
            };
            // Nothing stands before their options.
            const is_bare = switch (descriptor.kind) {
                .barrier, .sync => true,
                .all_gather => is_object(descriptor),
                else => false,
            };
            var comma: []const u8 = if (is_bare) "" else ", ";
            if (it.shape()) |own| {
                try writer.print("{s}{f}", .{ comma, own });
                comma = ", ";
            }
            if (it.differs(.recovery)) {
                try writer.print("{s}recovery {s}", .{ comma, recovery });
                comma = ", ";
            }
            if (it.differs(.codec)) {
                try writer.print("{s}codec {f}", .{ comma, descriptor.codec });
                comma = ", ";
            }
            if (it.differs(.plan)) {
                try writer.print("{s}plan {t}", .{ comma, descriptor.plan });
                comma = ", ";
            }
            if (it.differs(.rules)) {
                try writer.writeAll(comma);
                try put_rules(&descriptor.rules, writer);
                comma = ", ";
            }
            if (it.differs(.safe_points))
                try writer.print("{s}after {f}", .{
                    comma,
                    base.text.Counted{ .number = descriptor.safe_points, .what = "safe point" },
                });
        }

        /// The shape of the call. Null where it reads the same as that of the other call, and where
        /// either is unknown, because the hash of the leaves' names covers it.
        fn shape(it: It) ?Shape {
            const called = it.other orelse return null;
            if (called.kind != it.descriptor.kind) return null;
            const own = form_alone(it.descriptor) orelse return null;
            const other = form_alone(called) orelse return null;
            const named: u32 = @truncate(own);
            if (named != 0 and named != form_bool) return null;
            return if (std.meta.eql(Shape.of(own), Shape.of(other))) null else .of(own);
        }

        /// "rules successive and refuse"
        fn put_rules(
            rules: *const control.StateRules,
            writer: *std.Io.Writer,
        ) std.Io.Writer.Error!void {
            var word: []const u8 = "rules ";
            inline for (std.meta.fields(control.StateRules)) |field| {
                if (@field(rules, field.name)) {
                    try writer.print("{s}{s}", .{ word, field.name });
                    word = " and ";
                }
            }
        }

        const Option = enum { recovery, codec, plan, rules, safe_points };

        /// Whether the caller has to see an option. One that it has not named is not shown.
        fn differs(it: It, comptime option: Option) bool {
            const own = it.descriptor;
            const is_named = switch (option) {
                .recovery => own.kind != .sync and own.kind != .send_recv and
                    own.recovery != control.Recovery.default(own.kind, own.op),
                .codec => own.codec.kind != .none,
                .plan => own.plan != .auto,
                .rules => !std.meta.eql(own.rules, .{}),
                .safe_points => true,
            };
            const other = it.other orelse return is_named;
            const name = @tagName(option);
            return is_named and !std.meta.eql(@field(own, name), @field(other, name));
        }
    };
}

/// The user's word for an operation. Members agree in two of them on safe points.
pub fn name_of(kind: control.OpKind, tag: u64) []const u8 {
    return switch (tag) {
        limits.admit_tag => "admit_together",
        limits.pending_tag => "pending_agreed",
        else => @tagName(kind),
    };
}

/// "all_reduce (tag 5, sequence 7 of epoch 2)", "message from rank 0 to rank 1 (tag 5, ...)",
/// "sync of "weights" (sequence 0 of epoch 2)"
pub const NamedCall = struct {
    kind: control.OpKind,
    op: control.OpId,
    epoch: u64,
    /// The name of the state that a sync is of, as it can be shown; empty where it is not known.
    state: []const u8 = "",
    /// It carries an object.
    is_object: bool = false,

    pub fn format(it: NamedCall, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        if (base.Pair.of(it.op.tag)) |pair| {
            try writer.print("message from rank {d} to rank {d}", .{ pair.src, pair.dst });
        } else if (it.is_object)
            try writer.writeAll(object_name(it.kind) orelse @tagName(it.kind))
        else
            try writer.writeAll(name_of(it.kind, it.op.tag));
        if (it.state.len > 0) try writer.print(" of \"{s}\"", .{it.state});
        try it.place(writer);
    }

    /// Behind the words for what it is.
    pub fn place(it: NamedCall, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll(" (");
        // The tag of a sync says nothing to a person.
        const has_tag = it.kind != .sync and it.op.tag < limits.pending_tag;
        if (has_tag) try writer.print("tag {d}, ", .{base.Pair.user_tag_of(it.op.tag)});
        try writer.print("sequence {d} of epoch {d})", .{ it.op.sequence, it.epoch });
    }
};
