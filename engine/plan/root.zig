//! plan: which way the data of an operation takes, and how long it takes, from the rates and round
//! trips that members have measured. All of it is arithmetic without state: equal arguments give
//! equal answers on every machine. Next: protocol/attempt.zig, which decides when a plan begins,
//! and collective/ring.zig and direct.zig, which move data by it.

const std = @import("std");

pub const matrix = @import("matrix.zig");
pub const Matrix = matrix.Matrix;
pub const Volume = @import("volume.zig").Volume;
pub const figures = @import("figures.zig");
pub const Figures = figures.Figures;
pub const Edges = @import("cycle.zig").Edges;
pub const cycle = @import("cycle.zig");
pub const planner = @import("planner.zig");

test {
    std.testing.refAllDecls(@This());
    _ = @import("shares.zig");
    _ = @import("volume.zig");
}
