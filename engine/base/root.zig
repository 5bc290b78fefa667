//! base: ids, limits, element types, time, randomness and small containers, for every other layer.
//! It has no peers, frames or sockets. Next: wire/root.zig (bytes <-> values).

const std = @import("std");

pub const limits = @import("limits.zig");
pub const ids = @import("ids.zig");
pub const dtype = @import("dtype.zig");
pub const codec = @import("codec.zig");
pub const BitSet = @import("bit_set.zig").BitSet;
pub const Order = @import("order.zig").Order;
pub const Paths = @import("order.zig").Paths;
pub const Plan = @import("order.zig").Plan;
pub const Shares = @import("order.zig").Shares;
pub const reaches = @import("order.zig").reaches;
pub const Pair = @import("pair.zig").Pair;
pub const Turns = @import("pair.zig").Turns;
pub const Prng = @import("prng.zig").Prng;
pub const Endpoint = @import("endpoint.zig").Endpoint;
pub const Job = @import("job.zig").Job;
pub const Runner = @import("job.zig").Runner;
pub const Label = @import("label.zig").Label;
pub const Region = @import("region.zig").Region;
pub const Named = @import("label.zig").Named;
pub const Ranked = @import("label.zig").Ranked;
pub const places = @import("places.zig");
pub const source = @import("source.zig");
pub const text = @import("text.zig");
pub const unfilled = @import("unfilled.zig");

pub const PeerId = ids.PeerId;
pub const RunId = ids.RunId;
pub const Source = ids.Source;
pub const short_run = ids.short_run;
pub const Mask = ids.Mask;
pub const DType = dtype.DType;
pub const ReduceOp = dtype.ReduceOp;
pub const Codec = codec.Codec;

/// Monotonic nanoseconds. Drivers pass the time to the sans-I/O layers, which read no clock.
pub const Instant = u64;
pub const never: Instant = std.math.maxInt(u64);

test {
    std.testing.refAllDecls(@This());
    _ = @import("bit_set.zig");
    _ = @import("order.zig");
    _ = @import("pair.zig");
    _ = @import("prng.zig");
    _ = @import("endpoint.zig");
    _ = @import("label.zig");
    _ = @import("region.zig");
    _ = @import("source.zig");
    _ = @import("text.zig");
    _ = @import("unfilled.zig");
}
