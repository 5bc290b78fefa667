//! peer_host: what a session asks of its driver (session/host.zig), as the engine of a peer does
//! it: connections that are dialed, woken and closed, and users that are told. The session calls
//! this under the lock of the engine and expects no call back: what goes wrong is told to it later,
//! by the loop in peer_engine.zig.

const std = @import("std");
const session = @import("session");
const log = @import("log.zig");
const socket = @import("socket.zig");
const Carrier = @import("dial.zig").Carrier;
const Membership = @import("membership.zig").Membership;
const PeerEngine = @import("peer_engine.zig").PeerEngine;
const Work = @import("work.zig").Work;
const assert = std.debug.assert;

pub const vtable: session.Host.VTable = .{
    .dial = dial,
    .lane_close = lane_close,
    .lane_wake = lane_wake,
    .lane_sample = lane_sample,
    .lane_pace = lane_pace,
    .control_dial = control_dial,
    .control_close = control_close,
    .group_event = group_event,
    .operation_finished = operation_finished,
    .operation_resolved = operation_resolved,
    .fault_point = fault_point,
    .log = say,
};

fn from(context: *anyopaque) *PeerEngine {
    return @ptrCast(@alignCast(context));
}

fn dial(context: *anyopaque, lane: *session.Lane, to: []const u8) void {
    const engine = from(context);
    lane.driver = 0;
    if (engine.state == .stopped) return;
    engine.dial(lane, to) catch {
        // Without memory for a socket this peer cannot keep its promises: it goes as if it
        // were killed.
        log.put(.err, "out of memory for a connection to another peer");
        if (engine.control) |connection| socket.end_sending(connection.fd);
    };
}

fn lane_close(context: *anyopaque, lane: *session.Lane) void {
    const engine = from(context);
    if (engine.state == .stopped or lane.driver == 0) return;
    const carrier: *Carrier = @ptrFromInt(lane.driver);
    engine.forget_dial(carrier);
    engine.carrier_free(carrier);
}

fn lane_wake(context: *anyopaque, lane: *session.Lane) void {
    const engine = from(context);
    if (engine.state == .stopped or lane.driver == 0) return;
    const carrier: *Carrier = @ptrFromInt(lane.driver);
    if (carrier.connection) |connection| engine.connections.queue(connection);
}

fn lane_sample(context: *anyopaque, lane: *session.Lane) ?session.Sample {
    const engine = from(context);
    const carrier = carrier_of(engine, lane) orelse return null;
    const fd = carrier.connection.?.fd;
    var sample = engine.system.sample(fd, carrier.out.taken) orelse return null;
    sample.is_within = carrier.is_within orelse socket.is_within_machine(fd);
    carrier.is_within = sample.is_within;
    return sample;
}

fn lane_pace(context: *anyopaque, lane: *session.Lane, pace: session.Pace) void {
    const engine = from(context);
    const carrier = carrier_of(engine, lane) orelse return;
    const fd = carrier.connection.?.fd;
    const keeps = engine.system.pace(fd, pace);
    carrier.out.bucket.rate = if (keeps) 0 else pace.rate;
    if (pace.renews) engine.congestion.renew(fd, engine.connections.listener);
    if (pace.control) |control| engine.congestion.change(fd, control, &carrier.before);
}

/// One that has a socket.
fn carrier_of(engine: *PeerEngine, lane: *session.Lane) ?*Carrier {
    if (engine.state == .stopped or lane.driver == 0) return null;
    const carrier: *Carrier = @ptrFromInt(lane.driver);
    return if (carrier.connection == null) null else carrier;
}

fn control_dial(context: *anyopaque) void {
    const engine = from(context);
    if (engine.state != .running) return;
    const to = engine.coordinator_storage[0..engine.coordinator_length];
    engine.dial(null, to) catch {
        engine.redial_failed = true; // told in the next round
    };
}

fn control_close(context: *anyopaque) void {
    const engine = from(context);
    const connection = engine.control orelse return; // still being greeted
    engine.connections.close(connection);
    engine.control = null;
}

fn group_event(
    _: *anyopaque,
    group: *session.Group,
    event: session.GroupEvent,
) void {
    if (Membership.of(group)) |membership| membership.tell(event);
}

fn operation_finished(_: *anyopaque, operation: *session.Operation) void {
    if (Work.of(operation)) |work| work.tell_finished();
}

fn operation_resolved(_: *anyopaque, operation: *session.Operation) void {
    if (Work.of(operation)) |work| work.resolved.set();
}

fn fault_point(
    context: *anyopaque,
    point: session.FaultPoint,
    sequence: u64,
    done: u64,
    total: u64,
) void {
    const engine = from(context);
    const fault = engine.fault orelse return;
    if (!fault.matches(point, sequence, done, total)) return;
    engine.fault = null; // once, if it is not the end
    fault.strike();
}

fn say(context: *anyopaque, level: session.LogLevel, message: []const u8) void {
    // The effects of an end that the user asked for are no events.
    if (from(context).stopped()) return;
    log.put(@enumFromInt(@intFromEnum(level)), message);
}

comptime {
    assert(@intFromEnum(session.LogLevel.err) == @intFromEnum(log.Level.err));
}
