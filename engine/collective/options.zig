//! Options: a call as data movement needs it, and the cut that follows from it. session/call.zig
//! makes the options; movement.zig uses them.

const std = @import("std");
const base = @import("base");
const kernels = @import("kernels");
const wire = @import("wire");
const Array = @import("arrays.zig").Array;
const Elements = @import("roles.zig").Elements;
const Partition = @import("partition.zig").Partition;
const Roles = @import("roles.zig").Roles;
const Shard = @import("partition.zig").Shard;
const Allocator = std.mem.Allocator;
const Descriptor = wire.control.Descriptor;
const assert = std.debug.assert;

pub const Options = struct {
    descriptor: Descriptor,
    arrays: []const Array,
    residual: ?kernels.Residual = null,
    /// The number of elements in each part of the call's one array, if parts differ in size.
    elements: ?Elements = null,
    /// The number of the operation, the same on all peers.
    operation: u64 = 0,
    roles: Roles,
    chunk_bytes: u32,
    /// Bytes for partial sums, the same at all members.
    window_bytes: u64,
    /// Bytes for partial sums at this peer, if one of its links has more than `window_bytes` in the
    /// air; less counts as `window_bytes`.
    window_here: u64 = 0,
    /// Bytes are on their way for longer than it takes to reduce them.
    is_far: bool = false,
    /// Does large jobs; null: the thread that makes a job does it.
    runner: ?*const base.Runner = null,

    /// The most members that may take part in the operation.
    pub fn members_max(options: *const Options) u32 {
        return if (options.descriptor.kind == .send_recv) 2 else options.roles.world_size;
    }

    /// Cuts the elements of the call; `arena` keeps the shards.
    pub fn partition(options: *const Options, arena: Allocator) Allocator.Error!Partition {
        const descriptor = &options.descriptor;
        const arrays = options.arrays;
        assert(arrays.len == 1 or options.elements == null);
        const parts = options.roles.parts();
        const shards = try base.unfilled.list(arena, Shard, parts * arrays.len);
        for (shards, 0..) |*shard, index| {
            const array = &arrays[index % arrays.len];
            const elements: Elements = options.elements orelse .{ .each = array.count / parts };
            shard.* = .{
                .elements = elements.of(&options.roles, index / arrays.len),
                .dtype = array.dtype,
                .partial_bytes = @intCast(partial_bytes(descriptor, array.dtype)),
            };
        }
        return Partition.init(.{
            .shards = shards,
            .world_size = options.members_max(),
            .chunk_bytes_max = options.chunk_bytes,
            .window_bytes = options.window_bytes,
            .codec = options.codec(),
            .is_uneven = if (options.elements) |elements| elements == .exchanged else false,
        });
    }

    /// The codec with which the operation runs. A peer alone in its world encodes nothing. In a
    /// world too large for the direct schedule an average with the codec f16 is not encoded: f16
    /// has no room for the sums of a ring (board.zig: shift).
    fn codec(options: *const Options) base.Codec {
        const descriptor = &options.descriptor;
        const world_size = options.roles.world_size;
        const is_average = descriptor.kind.reduces() and descriptor.op == .avg;
        if (world_size == 1) return .none;
        if (world_size <= base.limits.full_mesh_max) return descriptor.codec;
        return if (is_average and descriptor.codec.kind == .f16) .none else descriptor.codec;
    }

    fn partial_bytes(descriptor: *const Descriptor, dtype: base.DType) usize {
        if (!descriptor.kind.reduces()) return dtype.size();
        return base.dtype.partial_size(descriptor.op, dtype);
    }
};
