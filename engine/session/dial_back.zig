//! dial_back: a dial that the coordinator asks this peer for, because another peer wants to know
//! whether it can be reached (`pccl doctor`). It is a lane that belongs to no peer: one probe, one
//! answer. The result goes to the coordinator, which alone can tell whose proof it is. There is one
//! at a time: the next one ends it. Which address, and how often: protocol/run.zig.

const base = @import("base");
const wire = @import("wire");
const Lane = @import("link.zig").Lane;
const Session = @import("session.zig").Session;
const links = @import("links.zig");
const hello = wire.hello;

pub const Error = error{ OutOfMemory, Unexpected };

pub fn begin(s: *Session, body: *const wire.control.DialBack) Error!void {
    // The coordinator has read it the same way.
    _ = base.Endpoint.parse_told(body.address.data) catch return error.Unexpected;
    if (s.dial_back) |before| links.fail(s, before.lane, "another one is to be dialed");
    const lane = try s.gpa.create(Lane);
    lane.* = .dialed(s.gpa, null, 0, s.now + links.greet_ns_max);
    s.dial_back = .{ .lane = lane, .peer = body.peer, .nonce = body.nonce };
    s.host.vtable.dial(s.host.ctx, lane, body.address.data);
}

/// Whoever is there learns nothing of the run.
pub fn dialed(s: *Session, lane: *Lane) void {
    lane.state = .greeting;
    lane.out_busy = true;
    lane.put_head(&hello.encode(.{
        .purpose = .probe,
        .run_id = @splat(0),
        .from = .none,
        .to = s.dial_back.?.peer,
        .nonce = s.dial_back.?.nonce,
    }));
    s.host.vtable.lane_wake(s.host.ctx, lane);
}

/// The lane is gone afterwards.
pub fn answered(s: *Session, lane: *Lane) void {
    const under_way = &s.dial_back.?;
    if (hello.proof_in(lane.head[0..hello.answer_bytes])) |proof| {
        under_way.proof = proof;
        under_way.dialed = .pending;
    } else |_| under_way.dialed = .other_answers;
    links.fail(s, lane, "it has answered");
}
