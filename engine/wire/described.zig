//! Described: what a member has called, in the words of an error: for those who called, and for the
//! coordinator, which refuses a newcomer whose call differs.

const std = @import("std");
const Descriptor = @import("control.zig").Descriptor;

/// "all_reduce(sum, 1000 f32, recovery restart, codec int8, plan ring, after 3 safe points)"
pub const Described = struct {
    descriptor: *const Descriptor,

    /// More than the longest takes.
    pub const bytes_max = 224;

    pub fn format(described: Described, writer: *std.Io.Writer) std.Io.Writer.Error!void {
        const descriptor = described.descriptor;
        const recovery = switch (descriptor.recovery) {
            .resume_chunks => "resume",
            .restart => "restart",
            .raise => "raise",
        };
        const dtype = descriptor.dtype.name();
        switch (descriptor.kind) {
            .all_reduce, .reduce_scatter => |kind| try writer.print("{t}({s}, {d} {s}", .{
                kind,
                descriptor.op.name(),
                descriptor.count,
                dtype,
            }),
            .all_gather, .all_to_all => |kind| if (descriptor.uneven)
                try writer.print("{t}({s}, {d} elements for the other and {d} from it", .{
                    kind,
                    dtype,
                    descriptor.count,
                    descriptor.counts,
                })
            else
                try writer.print("{t}({d} {s}", .{ kind, descriptor.count, dtype }),
            .broadcast, .scatter => |kind| try writer.print("{t}({d} {s} from peer {s}", .{
                kind,
                descriptor.count,
                dtype,
                descriptor.root.short(),
            }),
            .gather => try writer.print("gather({d} {s} to peer {s}", .{
                descriptor.count,
                dtype,
                descriptor.root.short(),
            }),
            .reduce => try writer.print("reduce({s}, {d} {s} to peer {s}", .{
                descriptor.op.name(),
                descriptor.count,
                dtype,
                descriptor.root.short(),
            }),
            .send_recv => try writer.print("message({d} {s}", .{ descriptor.count, dtype }),
            .barrier => try writer.writeAll("barrier("),
            .sync => try writer.writeAll("sync("),
        }
        // Their lists are long; that they differ is what matters.
        if (descriptor.counts != 0 and !descriptor.uneven)
            try writer.print(", {s} that hash to {x:0>16}", .{
                if (descriptor.kind.has_shards()) "counts or arrays" else "arrays",
                descriptor.counts,
            });
        if (descriptor.kind != .sync and descriptor.kind != .send_recv) {
            if (descriptor.kind != .barrier) try writer.writeAll(", ");
            try writer.print("recovery {s}", .{recovery});
        }
        if (descriptor.codec.kind != .none) try writer.print(", codec {f}", .{descriptor.codec});
        if (descriptor.plan != .auto) try writer.print(", plan {t}", .{descriptor.plan});
        try writer.print(", after {d} safe points)", .{descriptor.safe_points});
    }
};
