//! host: what a session wants of its driver (net/, tests/sim): functions that it calls, and events
//! and fault points that it names to it. The duties of a driver: session.zig.

const Group = @import("group.zig").Group;
const Lane = @import("link.zig").Lane;
const Pace = @import("flow.zig").Pace;
const Sample = @import("flow.zig").Sample;
const Operation = @import("operation.zig").Operation;
const protocol = @import("protocol");
const Status = protocol.Status;

pub const LogLevel = protocol.LogLevel;

pub const GroupEvent = union(enum) {
    /// A lane to each member is open: admit() may be called.
    ready,
    /// The coordinator refuses the join, for this reason: this peer was never a member.
    refused: []const u8,
    /// The group, or the coordinator, is gone before the group was ready.
    join_failed: struct { status: Status, why: []const u8 },
    /// The pending admit() entered an epoch or passed the safe point.
    admitted,
    admit_failed: Status,
    /// This peer is not a member any more.
    gone: Status,
};

/// Named points at which tests may end the process (net/fault.zig): of a sync, and of whatever
/// reduces, gathers, scatters or carries a message.
pub const FaultPoint = enum {
    operation_called,
    operation_opened,
    operation_partial,
    operation_settled,
    operation_voted,
    operation_committed,
    sync_offered,
    /// A leaf has gone to another member.
    sync_given,
    /// A leaf has come in, and is as it must be.
    sync_taken,
    sync_voted,
    sync_committed,
};

pub const Host = struct {
    ctx: *anyopaque,
    vtable: *const VTable,
    /// Those of the machine, for all of its peers.
    cores: u32 = 1,

    pub const VTable = struct {
        /// Start connecting; answer later with lane_opened or lane_closed.
        dial: *const fn (ctx: *anyopaque, lane: *Lane, address: []const u8) void,
        /// Close the connection now. The lane is invalid afterwards; do not call lane_closed.
        lane_close: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// There may be something to send on this lane: ask lane_send_slices soon, not from here.
        lane_wake: *const fn (ctx: *anyopaque, lane: *Lane) void,
        /// The system's counters of an open lane; null where it has none.
        lane_sample: *const fn (ctx: *anyopaque, lane: *Lane) ?Sample,
        lane_pace: *const fn (ctx: *anyopaque, lane: *Lane, pace: Pace) void,
        /// Start connecting to the coordinator; answer later with control_opened or control_closed.
        control_dial: *const fn (ctx: *anyopaque) void,
        /// Close the coordinator connection; do not call control_closed.
        control_close: *const fn (ctx: *anyopaque) void,
        group_event: *const fn (ctx: *anyopaque, group: *Group, event: GroupEvent) void,
        /// The session does not touch the caller's buffers any more.
        operation_finished: *const fn (ctx: *anyopaque, operation: *Operation) void,
        /// operation.committed is known now, or never will be (null).
        operation_resolved: *const fn (ctx: *anyopaque, operation: *Operation) void,
        fault_point: *const fn (
            ctx: *anyopaque,
            point: FaultPoint,
            sequence: u64,
            done: u64,
            total: u64,
        ) void,
        log: *const fn (ctx: *anyopaque, level: LogLevel, message: []const u8) void,
    };
};
