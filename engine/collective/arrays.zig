//! arrays: where the elements of an operation are in the caller's memory. A call has one array or
//! several, of any dtypes; each is cut into parts (roles.zig). The partition has a shard for each
//! array of each part, in that order. A rank's array has some of the parts of the operation, one
//! behind the other.

const std = @import("std");
const base = @import("base");
const Partition = @import("partition.zig").Partition;
const Roles = @import("roles.zig").Roles;
const Allocator = std.mem.Allocator;

pub const Array = struct {
    /// The parts of the array that this rank contributes.
    send: [*]const u8,
    /// The parts of this rank's result: apart from `send`, or over it, with the part that both have
    /// in the same place.
    recv: [*]u8,
    dtype: base.DType,
    /// The number of elements in all parts together.
    count: u64,
};

pub const Arrays = struct {
    list: []const Array,
    /// By shard: where the shard lies.
    places: []Place,
    /// By array: the result overwrites the input, so a call that fails gives all of the array back.
    is_kept: []const bool,
    result_bytes: usize,
    encoded_bytes: usize,

    /// Where a shard lies: offsets from the beginning of each buffer in bytes, and two in elements.
    pub const Place = struct {
        array: u32,
        send: usize = nowhere,
        recv: usize = nowhere,
        /// The offset in the results of all arrays together, if the shard is a part of the result.
        shadow: usize = nowhere,
        encoded: usize = nowhere,
        /// The number of elements of the result before this shard.
        result: u64 = 0,
        /// The number of elements of the arrays before this shard's array, and of the parts of that
        /// array before the shard.
        residual: u64 = 0,
    };

    /// The offset of a shard that this peer does not have in that buffer.
    pub const nowhere = std.math.maxInt(usize);

    pub fn init(
        arena: Allocator,
        partition: *const Partition,
        list: []const Array,
        roles: *const Roles,
    ) Allocator.Error!Arrays {
        const count = list.len;
        const places = try base.unfilled.list(arena, Place, partition.shards.len);
        // By array: bytes of the parts before, in the send and in the receive buffer.
        const before = try base.unfilled.list(arena, [2]usize, count);
        @memset(before, @splat(0));
        const residuals = try base.unfilled.list(arena, u64, count);
        var elements: u64 = 0;
        for (residuals, list) |*first, *array| {
            first.* = elements;
            elements += array.count;
        }
        var result: Place = .{ .array = 0, .shadow = 0, .encoded = 0 };
        for (places, partition.shards, 0..) |*place, *shard, index| {
            const number = index % count;
            const part = index / count;
            place.* = .{ .array = @intCast(number), .residual = residuals[number] };
            residuals[number] += shard.elements;
            const sent, const received = .{ &before[number][0], &before[number][1] };
            if (roles.is_sent(part)) {
                place.send = sent.*;
                sent.* += shard.bytes();
            }
            if (!roles.is_received(part)) continue;
            place.recv = received.*;
            received.* += shard.bytes();
            place.shadow = result.shadow;
            place.result = result.result;
            place.encoded = result.encoded;
            if (partition.codec.kind != .none) result.encoded += partition.encoded_bytes(shard);
            result.shadow += shard.bytes();
            result.result += shard.elements;
        }
        const is_kept = try base.unfilled.list(arena, bool, count);
        @memset(is_kept, false);
        const arrays: Arrays = .{
            .list = try arena.dupe(Array, list),
            .places = places,
            .is_kept = is_kept,
            .result_bytes = result.shadow,
            .encoded_bytes = result.encoded,
        };
        for (places, 0..) |*place, index| {
            if (arrays.in_place(index)) is_kept[place.array] = true;
        }
        return arrays;
    }

    /// Whether a part of the result lies in an array whose old bytes are not kept.
    pub fn has_apart(arrays: *const Arrays) bool {
        for (arrays.places) |*place| {
            if (place.recv != nowhere and !arrays.is_kept[place.array]) return true;
        }
        return false;
    }

    pub fn has_input(arrays: *const Arrays) bool {
        for (arrays.places) |*place| if (place.send != nowhere) return true;
        return false;
    }

    /// Whether a shard is a part of this peer's result.
    pub fn is_received(arrays: *const Arrays, shard: usize) bool {
        return arrays.places[shard].recv != nowhere;
    }

    /// The number of elements of this peer's result before a chunk. In the result, each rank's
    /// shard in turn has its arrays one after the other.
    pub fn result_first(arrays: *const Arrays, partition: *const Partition, chunk: u32) u64 {
        const index = partition.shard_of_chunk(chunk);
        const within = partition.chunk_offset(chunk) - partition.shards[index].first;
        return arrays.places[index].result + within;
    }

    /// Where a shard that this peer contributes begins.
    pub fn send(arrays: *const Arrays, shard: usize) [*]const u8 {
        const place = &arrays.places[shard];
        return arrays.list[place.array].send + place.send;
    }

    /// Where a shard of this peer's result begins.
    pub fn recv(arrays: *const Arrays, shard: usize) [*]u8 {
        const place = &arrays.places[shard];
        return arrays.list[place.array].recv + place.recv;
    }

    pub fn in_place(arrays: *const Arrays, shard: usize) bool {
        const place = &arrays.places[shard];
        if (place.send == nowhere or place.recv == nowhere) return false;
        return arrays.send(shard) == arrays.recv(shard);
    }
};
