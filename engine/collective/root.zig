//! collective: sans-I/O data movement of one operation: how its elements are cut into chunks and
//! pieces, and which piece moves, is added or is settled next. This layer knows ranks, offsets and
//! memory; never sockets, the coordinator or the clock. Algorithms: docs/internals/ALGORITHMS.md.
//! Next: session/root.zig, which drives it.

pub const Partition = @import("partition.zig").Partition;
pub const Shard = @import("partition.zig").Shard;
pub const Array = @import("arrays.zig").Array;
pub const Arrays = @import("arrays.zig").Arrays;
pub const Roles = @import("roles.zig").Roles;
pub const Exchanged = @import("roles.zig").Exchanged;
pub const Elements = @import("roles.zig").Elements;
pub const Sizes = @import("roles.zig").Sizes;
pub const Begin = @import("board.zig").Begin;
pub const Schedule = @import("schedule.zig").Schedule;
pub const Options = @import("options.zig").Options;
pub const Movement = @import("movement.zig").Movement;
pub const Out = Movement.Out;
pub const Move = @import("job.zig").Move;
pub const no_slot = @import("job.zig").no_slot;
pub const direct_members_max = @import("direct.zig").members_max;
pub const Pool = @import("pool.zig").Pool;
pub const Fetch = @import("fetch.zig").Fetch;

test {
    _ = @import("assembly.zig");
    _ = @import("partition.zig");
    _ = @import("figures_test.zig");
    _ = @import("movement_test.zig");
    _ = @import("pool.zig");
    _ = @import("posts.zig");
    _ = @import("roles.zig");
    _ = @import("fetch_test.zig");
}
