//! Described: a member's call as an error text, for the callers, and for the coordinator, which
//! refuses a newcomer whose call differs.

const std = @import("std");
const base = @import("base");
const control = @import("control.zig");
const Descriptor = @import("control.zig").Descriptor;
const limits = base.limits;

/// The form of an array of booleans (pccl.h: PCCL_FORM_BOOL).
pub const form_bool: u32 = 1_819_242_339;

/// The form of a pickled object (pccl.h: PCCL_FORM_OBJECT).
pub const form_object: u32 = 1_868_720_741;

/// The user's name of an operation if it carries an object. Null: this kind never carries one.
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

/// The form of the call's one array. Null if a hash covers the form, because there are several
/// arrays or shards of different sizes.
fn form_alone(descriptor: *const Descriptor) ?u64 {
    const is_alone = descriptor.arrays == 0 and descriptor.outline.dtypes == 0;
    return if (is_alone and !descriptor.uneven) descriptor.counts else null;
}

/// The shape of an array, from the upper half of its form (pccl.h).
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

/// The user's name of the elements' type. bool and object are known only if `counts` is the form.
pub fn dtype_name(descriptor: *const Descriptor) []const u8 {
    if (descriptor.dtype != .u8) return descriptor.dtype.name();
    if (is_object(descriptor)) return "object";
    return if (has_form(descriptor, form_bool)) "bool" else "u8";
}

/// Elements of each shard if all shards have as many. Null if shards differ in size, or if the
/// caller passes all elements as one count.
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

/// A call as text, with peers named by `Names.who`: what it moves, and each option that differs
/// from another member's call: "all_reduce(sum, 1000 f32, recovery raise, codec int8, plan ring,
/// after 3 safe points)"
pub fn Described(comptime Names: type) type {
    return struct {
        descriptor: *const Descriptor,
        /// The other member's call. Null: it is not known, and all options are named.
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

        /// Writes a call that carries an object, without the size of the pickled bytes.
        fn put_object(it: It, writer: *std.Io.Writer) std.Io.Writer.Error!void {
            const kind = it.descriptor.kind;
            try writer.print("{s}(", .{object_name(kind).?});
            if (kind == .broadcast)
                try writer.print("from {f}", .{it.names.who(it.descriptor.root)});
        }

        /// Writes a call with the count of one shard, as the caller passed it.
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
            // No text precedes the options of these calls.
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

        /// The shape of the array. Null if both calls have equal shapes, or if a shape is unknown
        /// because a hash of names covers it.
        fn shape(it: It) ?Shape {
            const called = it.other orelse return null;
            if (called.kind != it.descriptor.kind) return null;
            const own = form_alone(it.descriptor) orelse return null;
            const other = form_alone(called) orelse return null;
            const named: u32 = @truncate(own);
            if (named != 0 and named != form_bool) return null;
            return if (std.meta.eql(Shape.of(own), Shape.of(other))) null else .of(own);
        }

        /// Writes rules, as in "rules successive and refuse".
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

        /// Whether to show an option: the caller has named it, and the other call differs in it.
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

/// The user's name of an operation. Two tags belong to agreements on safe points.
pub fn name_of(kind: control.OpKind, tag: u64) []const u8 {
    return switch (tag) {
        limits.admit_tag => "admit_together",
        limits.pending_tag => "pending_agreed",
        else => @tagName(kind),
    };
}

/// An operation as text: "all_reduce (tag 5, sequence 7 of epoch 2)", "message from rank 0 to rank
/// 1 (tag 5, ...)", "sync of "weights" (sequence 0 of epoch 2)"
pub const NamedCall = struct {
    kind: control.OpKind,
    op: control.OpId,
    epoch: u64,
    /// The printable name of the state in a sync; empty if it is not known.
    state: []const u8 = "",
    /// The operation carries an object.
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

    /// Writes the tag, sequence and epoch of the operation in parentheses.
    pub fn place(it: NamedCall, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        try writer.writeAll(" (");
        // a sync's tag is a hash, which tells a person nothing
        const has_tag = it.kind != .sync and it.op.tag < limits.pending_tag;
        if (has_tag) try writer.print("tag {d}, ", .{base.Pair.user_tag_of(it.op.tag)});
        try writer.print("sequence {d} of epoch {d})", .{ it.op.sequence, it.epoch });
    }
};
